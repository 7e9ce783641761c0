//! Descriptions and file records that no process has any more: closed, flushed, dropped.

use super::Housekeeper;
use crate::drain::reconcile;
use crate::group::LeaseEvent;
use crate::group::records::group_file;
use crate::manager::jobs;
use crate::manager::leases::flush_the_rest;
use crate::store::descriptors;
use forebay_placement::schema::Lifetime;
use forebay_placement::staged::Stage;
use forebay_pool::FileId;
use forebay_pool::clock::Timer;
use forebay_pool::crash;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::lease::Lease;
use forebay_pool::opens::Opens;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long a description that no process holds can still be adopted by an exec under way.
pub(super) const ADOPTION: Timer = Timer::seconds(1);

pub(super) const SHORT_ADOPTION: Timer = Timer::ms(50);

/// How long a description may be on its way through a socket; when descriptions are short, how
/// long it still may.
pub(super) const FLIGHT: Timer = Timer::seconds(600);

pub(super) const SHORT_FLIGHT: Timer = Timer::seconds(10);

/// How long some open may be under way until the kernel is asked which files that process has open.
pub(super) const OPENING: Timer = Timer::seconds(1);

/// Records that are looked at in each sweep although nothing is known to have happened to their
/// files: at least so many, and of a large table so small a part.
const TURN: u32 = 1024;
const TURNS: u32 = 256;
/// Records of which index nodes without anything below them are freed in one sweep.
const PRUNED: u32 = 65_536;
/// How often all are looked at while opens find no free record.
const FULL: Timer = Timer::seconds(5);

/// Records up to which those are kept that only tell the time of change, see
/// [`Housekeeper::keeps_time`].
pub(super) const KEPT_RECORDS: usize = 8192;

/// How long a file is not looked for again after not all of the stores could be looked at.
const DOUBT: Timer = Timer::seconds(2);

/// Files that may be there all the same: the generation of the record, and since when.
pub(super) type Doubted = HashMap<FileId, (u32, u32)>;

/// Files without a name of which a descriptor may be on its way: the generation of the record, and
/// the sweep in which it was missing first.
pub(super) type Expected = HashMap<FileId, (u32, u32)>;

/// Files without a name that some process may be about to open: the generation of the record, and
/// since when.
pub(super) type Awaited = HashMap<FileId, (u32, u32)>;

/// What became of a file that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its record was removed.
    Removed,
    /// Its record stays as it is until something happens to the file.
    Kept,
    /// It is to be looked at again.
    Again,
    /// The same, and what there is of it is to be set aside.
    Missing,
}

impl Housekeeper {
    /// Frees descriptions that no process holds, and records of files that no process has open.
    pub(super) fn sweep(&mut self, now: u32) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        // Before the descriptions are looked at. What may be being opened now is left for the next
        // time.
        let counted = |file| segment.files().count_opens(file).map(|opens| (file, opens));
        let files = self.files_to_look_at(now);
        let files: Vec<(FileId, Opens)> = files.into_iter().filter_map(counted).collect();
        let (mut open, mut mapped) = (HashSet::new(), HashSet::new());
        // When they are short, those that were closed wait less for an exec that wants them.
        let (grace, flight) = match self.used > segment.header().descriptions / 2 {
            true => (SHORT_ADOPTION, SHORT_FLIGHT),
            false => (ADOPTION, FLIGHT),
        };
        let (grace, flight) = (grace.as_stamp(), flight.as_stamp());
        let mut used = 0;
        segment.free_left_mappings(self.owner);
        segment.descriptions().sweep(now, grace, flight, |description| {
            used += 1;
            let description = segment.description(description);
            let file = description.file.load(Ordering::Acquire);
            open.insert(file);
            let flags = description.flags.load(Ordering::Acquire);
            if flags.contains(DescriptionFlags::MAPPING) {
                mapped.insert(file);
            }
        });
        self.used = used;
        for &(file, _) in &files {
            let record = segment.file(file);
            let is_known = record.has(FileFlags::UNMAPPED);
            if record.has(FileFlags::MAPPED) && !mapped.contains(&file) && !is_known {
                crash::point("housekeeping.unmapped");
                record.set(FileFlags::UNMAPPED);
            }
        }
        segment.clients().forget_unrecorded();
        jobs::end_lifetimes(&node, self.owner, &files, &open);
        let table = segment.enter_table(self.owner);
        let mut awaited = Awaited::new();
        let mut missing = Vec::new();
        for &(file, opens) in &files {
            let outcome = match open.contains(&file) {
                true => Outcome::Again,
                false => self.look_at_closed(&table, file, opens, &mut awaited),
            };
            match outcome {
                Outcome::Removed => {}
                Outcome::Kept if self.is_settled(file) => {
                    // A thread that is inside it without having it open may leave something to do.
                    if segment.files().is_touched(file)
                        && let Some(_exclusive) =
                            segment.try_lock_exclusive(&table, file, self.owner)
                    {
                        segment.files().settle(file, opens, || self.is_settled(file));
                    }
                }
                Outcome::Kept | Outcome::Again => segment.files().touch(file),
                Outcome::Missing => {
                    segment.files().touch(file);
                    missing.push((file, opens));
                }
            }
        }
        self.awaited = awaited;
        let is_recent = |&(_, since): &(u32, u32)| {
            forebay_pool::clock::stamp_age(now, since) < DOUBT.as_stamp()
        };
        self.doubted.get_mut().retain(|_, doubt| is_recent(doubt));
        self.expected.get_mut().retain(|_, expected| is_recent(expected));
        self.prune(&table);
        drop(table);
        self.set_aside(missing);
    }

    /// The files that something happened to, and some of the others, so that each has its turn: a
    /// block that leaves the tiers says nothing of its file, and a killed process may not have come
    /// to it. All, where records are short.
    fn files_to_look_at(&mut self, now: u32) -> Vec<FileId> {
        let segment = &self.node.segment;
        let (header, files) = (segment.header(), segment.files());
        let high = header.files_high.load(Ordering::Acquire);
        let refused = header.opens_refused.load(Ordering::Relaxed);
        let is_full = refused != self.refused.0
            && forebay_pool::clock::stamp_age(now, self.refused.1) >= FULL.as_stamp();
        if is_full {
            self.refused = (refused, now);
        }
        let count = if is_full {
            (self.next, self.counted) = (0, 0);
            high
        } else {
            TURN.max(high / TURNS)
        };
        let turn = self.next..self.next.saturating_add(count);
        let others = |file: &FileId| !turn.contains(&file.raw());
        let mut found: Vec<FileId> = files.live_from(turn.start, count).collect();
        files.note_free(turn.start, count);
        self.counted += found.len();
        found.extend(files.touched().filter(others));
        self.next = turn.end;
        if self.next >= high {
            self.crowded = self.counted > KEPT_RECORDS.min(header.files as usize / 2);
            (self.next, self.counted) = (0, 0);
        }
        found
    }

    /// Whether nothing is left to be done for a closed file, however long it stays in the table.
    fn is_settled(&self, file: FileId) -> bool {
        let segment = &self.node.segment;
        let record = segment.file(file);
        // All versions are looked at together: one more ends the oldest. Other lifetimes end in
        // turn.
        let is_version = || {
            let rule = segment.rule_of(record).map(RuleRecord::settings);
            matches!(rule.and_then(|rule| rule.lifetime), Some(Lifetime::KeepVersions(_)))
                && jobs::holds(&self.node, file)
        };
        is_settled(record)
            && !self.node.descriptors.has(segment, file)
            && !is_version()
            && !self.node.actions.awaits(segment, file)
    }

    /// A file without an open description: forgotten once nothing of it is buffered, and its blocks
    /// dropped if it has no name any more.
    pub(super) fn look_at_closed(
        &self,
        table: &SharedGuard<'_>,
        file: FileId,
        opens: Opens,
        awaited: &mut Awaited,
    ) -> Outcome {
        let segment = &self.node.segment;
        let try_exclusive = || segment.try_lock_exclusive(table, file, self.owner);
        let record = segment.file(file);
        // What the kernel says comes first: the inode may belong to a new file by now.
        let store = &*self.node.stores[self.node.store_of(file)];
        let stat = || {
            let asks = self.asks_for_names || record.has(FileFlags::UNLINKED);
            asks.then(|| self.node.descriptors.stat(segment, file, store))?
        };
        let nameless = || match stat() {
            Some(stat) => stat.links == 0,
            // Noted before the call: it may have failed, or not have come about.
            None => record.has(FileFlags::UNLINKED) && self.is_gone(file),
        };
        let unchanged = || opens.are_still(&record.opens);
        let mut dropped = false;
        if self.is_spent(file) {
            if let Some(_exclusive) = try_exclusive()
                && unchanged()
                && self.is_spent(file)
            {
                segment.drop_clean_blocks(file, self.owner);
            }
        } else if self.is_to_be_flushed_for_others(file) && nameless() {
            // They have it open, perhaps, and read on from here or from there.
            match record.lease.load().held() {
                Lease::Lent => self.node.group.tell_leases(LeaseEvent::Unlend(file)),
                _ => flush_the_rest(&self.node, file),
            }
            return Outcome::Again;
        } else if nameless()
            && !self.may_be_being_opened(file, awaited)
            && let Some(_exclusive) = try_exclusive()
        {
            // No process can come to have it open any more.
            if unchanged() && nameless() {
                crate::drain::conflict::check_dropped(&self.node, file);
                crash::point("housekeeping.dropping");
                if let Some(journal) = &self.node.journal {
                    journal.gone(self.node.context(), file);
                }
                segment.drop_all_blocks(file, self.owner, &*self.node);
                crash::point("housekeeping.dropped");
                record.clear(FileFlags::METADATA_DIRTY | FileFlags::DIRTY | FileFlags::FAILING);
                dropped = true;
            }
        }
        // Not before it is in the way: moved away, it may yet be opened where it is.
        if self.is_missing(file)
            && (self.ends || self.node.draining.load(Ordering::Acquire))
            && !self.may_be_being_opened(file, awaited)
        {
            self.forget_missing(file);
            return Outcome::Missing;
        }
        reconcile(&self.node, file, self.owner);
        if record.has(FileFlags::SCRATCH) && !dropped {
            // It ends with its job, empty or not.
            let held = self.node.descriptors.has(segment, file);
            if (held || record.has(FileFlags::DIRECT))
                && let Some(_exclusive) = try_exclusive()
                && unchanged()
            {
                jobs::lay_down(&self.node, file);
            }
            return Outcome::Again;
        }
        let empty = || {
            let mut empty = true;
            segment.for_each_entry(record, 0, |_, _| {
                empty = false;
                false
            });
            empty && (!record.has(FileFlags::METADATA_DIRTY) || dropped) && !record.is_tracked()
        };
        if self.keeps_time(record) || !empty() {
            return Outcome::Kept;
        }
        // What runs on a file knows it by its record.
        let actions = &self.node.actions;
        if actions.awaits(segment, file) || !dropped && actions.has_run(segment, file) {
            return Outcome::Again;
        }
        crash::point("housekeeping.removing");
        // A thread that stages or flushes is inside the file without having it open.
        let Some(exclusive) = try_exclusive() else { return Outcome::Again };
        let in_group = group_file(record);
        if !segment.remove_file(file, exclusive, self.owner, opens, empty) {
            return Outcome::Again;
        }
        self.node.group.tell_leases(LeaseEvent::Removed(in_group));
        self.node.descriptors.close(segment, file);
        Outcome::Removed
    }

    /// Whether other nodes may have a file open of which the store has not all yet, and can get it.
    /// What one has open, it asks for when it reads or writes it.
    fn is_to_be_flushed_for_others(&self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        let is_lent = record.lease.load().held() == Lease::Lent;
        let is_open_there = || {
            self.node.header().shares_files.load(Ordering::Acquire) != 0
                && !record.has(FileFlags::SCRATCH)
        };
        (is_lent || is_open_there())
            && !self.ends
            && !record.has(FileFlags::FAILING)
            && self.node.descriptors.has(&self.node.segment, file)
            && self.node.is_pending(file)
    }

    /// Whether a record of which nothing is buffered any more is kept for the time of change that
    /// programs saw before the flush. Without it, that of the flush would appear at some later
    /// time, and tools that ask whether a file is still the one they looked at (git, rsync,
    /// backups) would take it for changed. Only while there is room for records, and if the time of
    /// birth tells the file from a later one with the inode.
    pub(super) fn keeps_time(&self, record: &FileRecord) -> bool {
        let seen = record.changed_ns.load(Ordering::Acquire);
        !self.crowded
            && seen < record.store_changed_ns.load(Ordering::Acquire)
            && record.born_ns.load(Ordering::Acquire) != 0
            && !record.has(FileFlags::UNLINKED)
            && !record.has(FileFlags::DIRECT)
            && !record.has_untold_error()
    }

    /// Whether some process may have opened a file, as far as the kernel knows, and not come to its
    /// record yet. The file was seen to have no name before.
    pub(super) fn may_be_being_opened(&self, file: FileId, awaited: &mut Awaited) -> bool {
        let segment = &self.node.segment;
        let openers: Vec<u32> = segment.clients().openers().collect();
        if openers.is_empty() {
            return false;
        }
        let (record, now) = (segment.file(file), self.node.now());
        let generation = record.generation.load(Ordering::Acquire);
        let known = self.awaited.get(&file).filter(|(known, _)| *known == generation);
        let since = known.map_or(now, |(_, since)| *since);
        // An open can take long: of another file, a FIFO for one.
        if forebay_pool::clock::stamp_age(now, since) >= OPENING.as_stamp()
            && !openers.iter().any(|&pid| descriptors::may_have_open(pid, record.identity()))
        {
            return false;
        }
        awaited.insert(file, (generation, since));
        true
    }

    /// Whether the last name of a file was to be removed, and the store has all of it: wherever it
    /// may be, nothing is lost with its blocks.
    pub(super) fn is_spent(&self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        record.has(FileFlags::UNLINKED)
            && !record.has(FileFlags::METADATA_DIRTY)
            && !record.has(FileFlags::SCRATCH)
            && !record.is_tracked()
            && !self.node.is_pending(file)
    }

    /// Whether a file of which its last name was to be removed cannot be found any more, and is
    /// certainly not there.
    pub(super) fn is_gone(&self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let doubt = self.doubted.borrow().get(&file).copied();
        if doubt.is_some_and(|(known, _)| known == generation) {
            return false;
        }
        // The process that took the name away has sent a descriptor before. It may have done so
        // since this thread has read such messages: without it all of the store would be searched.
        let is_told = record.has(FileFlags::REGISTERED);
        if is_told && !self.node.descriptors.has(&self.node.segment, file) {
            let mut expected = self.expected.borrow_mut();
            let known = expected.get(&file).filter(|(known, _)| *known == generation);
            if known.is_none_or(|(_, since)| *since == self.last_sweep) {
                expected.insert(file, (generation, self.last_sweep));
                return false;
            }
        }
        let store = record.store.load(Ordering::Relaxed) as usize;
        let Some(backing) = self.node.config.backing.get(store) else { return false };
        match self.node.descriptors.of(&self.node.segment, file, &backing.path) {
            Err(Errno::STALE) => true,
            Err(_) => {
                self.doubted.borrow_mut().insert(file, (generation, self.node.now()));
                false
            }
            Ok(fd) => !record.note_whether_named(&*fd),
        }
    }

    /// When index nodes become scarce, frees those below which nothing is left: of some records at
    /// a time, as that may go on for long.
    pub(super) fn prune(&mut self, table: &SharedGuard<'_>) {
        let segment = &self.node.segment;
        let nodes = segment.index_nodes(self.owner.slot()).free();
        if nodes.available() > nodes.count / 4 {
            return;
        }
        let has_nodes = |file: &FileId| segment.file(*file).root.load(Ordering::Acquire) != 0;
        let turn = segment.files().live_from(self.next_pruned, PRUNED);
        self.next_pruned = self.next_pruned.saturating_add(PRUNED);
        if self.next_pruned >= segment.header().files_high.load(Ordering::Acquire) {
            self.next_pruned = 0;
        }
        for file in turn.filter(has_nodes) {
            if let Some(_exclusive) = segment.try_lock_exclusive(table, file, self.owner) {
                segment.index_nodes(self.owner.slot()).prune(segment.file(file));
            }
        }
    }
}

/// Whether a record says that nothing is left to be done for its file, which is closed.
fn is_settled(record: &FileRecord) -> bool {
    const BUSY: [FileFlags; 17] = [
        FileFlags::DIRECT,
        FileFlags::METADATA_DIRTY,
        FileFlags::DIRTY,
        FileFlags::REGISTERED,
        FileFlags::DURABLE,
        FileFlags::FAILING,
        FileFlags::UNLINKED,
        FileFlags::RELEASE,
        FileFlags::CONFLICT,
        FileFlags::SCRATCH,
        FileFlags::LOGGED,
        FileFlags::SLOTTED,
        FileFlags::TO_LOG,
        FileFlags::TO_FLUSH,
        FileFlags::TO_CHECKPOINT,
        FileFlags::TO_RECORD_TRUNCATE,
        FileFlags::HELD,
    ];
    let busy = BUSY.into_iter().fold(FileFlags::NONE, |all, flag| all | flag);
    !record.flags.load(Ordering::Acquire).intersects(busy)
        // The elevator looks at files that something may be left to be done for.
        && record.stage().is_none_or(|stage| stage == Stage::Drained)
        && !record.has_intent()
        && !record.has_lengtheners()
        && !record.awaits_sync()
}
