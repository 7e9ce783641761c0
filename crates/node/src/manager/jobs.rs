//! Jobs: from the start of a run's command to the end of its last process. Their reservations, and
//! the end of their scratch files and of buffers that no process needs any more.

use crate::config;
use crate::node::Node;
use crate::store::beneath::{Known, Since, Stores};
use crate::usage::{path_of_file, whole_buckets_of};
use forebay_placement::glob;
use forebay_placement::schema::{Lifetime, Mode};
use forebay_pool::FileId;
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::Timer;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::opens::Opens;
use forebay_pool::pins::Pins;
use forebay_pool::{Entry, Owner, clock, liveness};
use rustix::fd::{AsFd, AsRawFd};
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How long a run waits for its reservation while no more room is found.
const WAIT_MAX: Timer = Timer::seconds(10);
/// Names of one file that are removed at most.
const NAMES_MAX: usize = 64;

/// What a run was told that it may have.
#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Bytes of each tier, 0 for all.
    pub quotas: [Option<u64>; TIERS_MAX],
    /// Bytes that the store lacks, 0 for all.
    pub max_unsafe: u64,
    /// For how many milliseconds it may lack any, 0 for ever.
    pub max_age_ms: u32,
}

/// A job that is being set up.
pub(crate) struct Beginning {
    number: u32,
    /// Bytes that were asked for, and buckets that are still to be found.
    asked: u64,
    missing: u32,
    /// When more room was found last.
    since: Instant,
}

impl Beginning {
    /// Begins the job of the `forebay run` of process `pid`. `None`: there are too many.
    pub fn of(
        node: &Node,
        pid: u32,
        codes: (u8, u8),
        (reserve, limits): (u64, Limits),
        recording: u32,
    ) -> Option<Beginning> {
        let segment = &node.segment;
        let start = liveness::start_time(pid).unwrap_or(0);
        let number = segment.begin_job(pid, start)?;
        let job = segment.job(number)?;
        job.mode.store(codes.0, Ordering::Relaxed);
        job.trigger.store(codes.1, Ordering::Relaxed);
        job.recording.store(recording, Ordering::Relaxed);
        for ((tier, configured), told) in node.tiers().zip(&node.config.tiers).zip(limits.quotas) {
            let pages = told.unwrap_or(configured.quota) / segment.page_bytes() as u64;
            job.set_quota(tier, pages);
        }
        job.set_cap(limits.max_unsafe / segment.page_bytes() as u64, limits.max_age_ms);
        segment.count_caps();
        if limits.max_unsafe > 0 || limits.max_age_ms > 0 {
            segment.want_caps();
        }
        let whose = if reserve > 0 { reserved_for::ALL } else { reserved_for::RULES };
        job.reserved_for.store(whose, Ordering::Relaxed);
        let by_rules = || {
            let each = segment.rules().iter().map(|rule| rule.settings().reserve);
            each.fold(0, u64::saturating_add)
        };
        let asked = if reserve > 0 { reserve } else { by_rules() };
        let buckets = asked.div_ceil(segment.bucket_bytes() as u64);
        let missing = u32::try_from(buckets).unwrap_or(u32::MAX);
        Some(Beginning { number, asked, missing, since: Instant::now() })
    }

    /// Sets aside what can be had. What to say, once it is enough, or cannot be.
    pub fn go_on(&mut self, node: &Node, owner: Owner) -> Option<Message> {
        let segment = &node.segment;
        if self.missing > 0 {
            node.memory.grow_for(segment, node.pool_file.as_fd(), self.missing);
            // What is lent to small files, and they do not use.
            node.file_tiers().for_each(|tier| {
                segment.take_back_slots(tier, self.missing);
            });
            let found = segment.set_aside(self.number, self.missing, owner);
            self.missing -= found;
            if found > 0 || drop_clean(node, owner, self.missing) > 0 {
                self.since = Instant::now();
            }
        }
        if self.missing == 0 {
            segment.job(self.number)?.state.store(job_state::LIVE, Ordering::SeqCst);
            return Some(Message::JobBegun { number: self.number });
        }
        segment.want_room();
        let hopeless = self.missing > segment.reservable_now();
        if !hopeless && self.since.elapsed() < WAIT_MAX.as_duration() {
            return None;
        }
        // What could be had, if this had not been asked for.
        let held = segment.job(self.number).map_or(0, |job| job.reserved.load(Ordering::SeqCst));
        let more = if hopeless { segment.reservable_now() } else { 0 };
        segment.end_job(self.number);
        let bytes = u64::from(held + more) * segment.bucket_bytes() as u64;
        Some(Message::NoRoom { bytes, asked: self.asked })
    }
}

/// Frees up to `most` buckets whose blocks the store has. Returns how many.
fn drop_clean(node: &Node, owner: Owner, most: u32) -> u32 {
    let segment = &node.segment;
    let (mut freed, mut pins) = (0, Pins::default());
    pins.look(segment);
    for bucket in node.tiers().flat_map(|tier| whole_buckets_of(segment, tier)) {
        let Some(meta) = segment.bucket(bucket) else { continue };
        let file = meta.file.load(Ordering::Relaxed);
        let clean = meta.state.load(Ordering::Acquire) == USED
            && meta.reserved.load(Ordering::Relaxed) == 0
            && meta.pending() == 0
            && segment.header().has_file(file)
            && segment.is_indexed(bucket);
        if !clean || meta.lock.holder().is_some() {
            continue;
        }
        let block = meta.block.load(Ordering::Relaxed);
        let Some(place) = segment.entry(segment.file(file), block) else { continue };
        let locked = segment.lock_block_within(place, owner, &mut Backoff::spent());
        let Ok(Some(locked)) = locked else { continue };
        let is_pinned = pins.limit_now(segment, file, block).is_some();
        if !is_pinned && locked.meta().pending_under_lock() == 0 {
            segment.discard_block(place, locked);
            freed += 1;
        }
        if freed >= most {
            break;
        }
    }
    freed
}

/// After a predecessor's death: what it was setting up never began, and what it was ending goes on.
pub(crate) fn take_over(node: &Node) {
    let segment = &node.segment;
    segment.recover_reservations();
    for job in segment.jobs() {
        if job.state.load(Ordering::SeqCst) == job_state::STARTING {
            segment.end_job(job.number.load(Ordering::Acquire));
        }
    }
}

/// Whether a run has ended whose scratch files are still there.
pub(crate) fn is_any_ending(node: &Node) -> bool {
    node.segment.jobs().any(|job| job.ended.load(Ordering::Relaxed) != 0)
}

/// Ends the jobs whose last process is gone.
pub(crate) fn look_at_jobs(node: &Node, owner: Owner) {
    let segment = &node.segment;
    for job in segment.jobs() {
        let number = job.number.load(Ordering::Acquire);
        let state = job.state.load(Ordering::SeqCst);
        if state == job_state::STARTING {
            if !segment.job_is_run(job) {
                segment.end_job(number);
            }
            continue;
        }
        if state == job_state::LIVE {
            if segment.job_is_run(job) {
                continue;
            }
            job.state.store(job_state::ENDING, Ordering::SeqCst);
        }
        if !segment.clients().has_of_job(number) {
            job.state.store(job_state::OVER, Ordering::SeqCst);
            // One may have joined before it could see that.
            if segment.clients().has_of_job(number) {
                job.state.store(job_state::ENDING, Ordering::SeqCst);
            } else {
                // A file that a thread is in the middle of goes in the next round.
                if !delete_scratch(node, number, owner) {
                    continue;
                }
                segment.end_job(number);
            }
        }
        job.ended.store(0, Ordering::Relaxed);
    }
}

/// Deletes the scratch files of a job; whether all are gone.
fn delete_scratch(node: &Node, number: u32, owner: Owner) -> bool {
    let segment = &node.segment;
    let files: Vec<FileId> = segment.scratch_of(number).collect();
    if files.is_empty() {
        return true;
    }
    let open = segment.descriptions().open_files(segment.header().files);
    let mut all = true;
    for file in files {
        all &= delete(node, file, owner, open[file.index()]);
    }
    node.post_room();
    all
}

/// Deletes a scratch file. Of one that a process has `open` only the names go now; what is buffered
/// follows when it is closed, as after any unlink. False: it is in use at this very moment.
pub(crate) fn delete(node: &Node, file: FileId, owner: Owner, open: bool) -> bool {
    let segment = &node.segment;
    let table = segment.enter_table(owner);
    let exclusive = segment.try_lock_exclusive(&table, file, owner);
    if exclusive.is_some() {
        delete_held(node, file, owner, open);
    }
    exclusive.is_some()
}

/// The same, of a file that the caller has exclusively.
pub(crate) fn delete_held(node: &Node, file: FileId, owner: Owner, open: bool) {
    let segment = &node.segment;
    let record = segment.file(file);
    let store = record.store.load(Ordering::Relaxed) as usize;
    let Some(backing) = node.config.backing.get(store) else { return };
    if open {
        // Its blocks may have to go somewhere when it has no name any more.
        let _ = node.descriptors.of(segment, file, &backing.path);
    }
    match remove_names(node, file, &backing.path) {
        Removed::All => {
            record.job.store(0, Ordering::Release);
            record.set(FileFlags::UNLINKED);
            if !open {
                segment.drop_all_blocks(file, owner, node);
                record.clear(FileFlags::METADATA_DIRTY | FileFlags::REGISTERED);
                record.clear(FileFlags::DIRTY | FileFlags::FAILING);
                node.descriptors.close(segment, file);
            }
        }
        // It was given a name that is to last, where we could not see it.
        Removed::Kept => {
            record.clear(FileFlags::SCRATCH);
            record.mode.store(Mode::Async as u8, Ordering::Release);
            record.job.store(0, Ordering::Release);
        }
    }
}

/// What became of a file's names.
enum Removed {
    /// It has none any more.
    All,
    /// It has one that belongs to no job's scratch.
    Kept,
}

/// Removes all names of a scratch file, wherever it was moved.
fn remove_names(node: &Node, file: FileId, folder: &Path) -> Removed {
    let segment = &node.segment;
    let record = segment.file(file);
    let known = path_of_file(segment, record);
    let held = node.descriptors.at_hand(segment, file);
    // It may have been moved, or linked, to another directory of the same file system.
    let stores = Stores::of(node.config.backing.iter().map(|backing| &*backing.path));
    let of_record = Known::of(record);
    let store = &node.stores[node.store_of(file)];
    let names = || held.as_ref().and_then(|held| store.stat(held.file()).ok()).map(|s| s.links);
    for turn in 0..NAMES_MAX {
        if names() == Some(0) {
            return Removed::All;
        }
        let by_descriptor = || {
            let fd = held.as_ref()?.as_fd().as_raw_fd();
            std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()
        };
        let found = [(turn == 0).then(|| known.clone()), by_descriptor()]
            .into_iter()
            .flatten()
            .find(|path| stores.has(path, &of_record, Since::Boot))
            .or_else(|| stores.search(folder, &of_record, Since::Boot).ok());
        let Some(path) = found else {
            // Without a name that we can find: moved away if the kernel knows one.
            return if names().is_none_or(|names| names == 0) {
                Removed::All
            } else {
                Removed::Kept
            };
        };
        if path != known && !is_scratch_there(node, file, folder, &path) {
            segment.set_path(record, path.as_os_str().as_bytes());
            return Removed::Kept;
        }
        match stores.remove(&path, &of_record, Since::Boot) {
            Ok(last) if !last => {}
            Ok(_) => return Removed::All,
            Err(errno) => {
                eprintln!("scratch file {}: {errno}; it stays", path.display());
                return Removed::All;
            }
        }
    }
    Removed::All
}

/// Whether a scratch file that was moved to `path` unseen is scratch there, too.
fn is_scratch_there(node: &Node, file: FileId, folder: &Path, path: &Path) -> bool {
    let segment = &node.segment;
    if !path.starts_with(folder) {
        // Another directory, where rules were made for other files: as the run and it say.
        let backing = node.config.backing.iter().find(|backing| path.starts_with(&backing.path));
        let job = segment.job(segment.file(file).job.load(Ordering::Acquire));
        let of_job = job.and_then(|job| Mode::from_code(job.mode.load(Ordering::Relaxed)));
        return backing.is_some_and(|backing| match of_job {
            Some(mode) => mode == Mode::Scratch,
            None => backing.mode == config::Mode::Scratch,
        });
    }
    let Some(rule) = segment.rule_of(segment.file(file)).map(RuleRecord::rule) else { return true };
    let of_rule = rule.set.mode == Some(Mode::Scratch);
    let below = path.strip_prefix(folder).unwrap_or(path).as_os_str().as_bytes();
    let name =
        if rule.when.path.first() == Some(&b'/') { path.as_os_str().as_bytes() } else { below };
    !of_rule || rule.when.path.is_empty() || glob::matches(rule.when.path, name)
}

/// Keeps a closed scratch file without a descriptor: many of them would use up all there are. The
/// caller has the file exclusively.
pub(crate) fn lay_down(node: &Node, file: FileId) {
    let record = node.segment.file(file);
    if let Some(fd) = node.descriptors.at_hand(&node.segment, file) {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
        if let Ok(path) = path {
            node.segment.set_path(record, path.as_os_str().as_bytes());
        }
        record.clear(FileFlags::REGISTERED);
        node.descriptors.close(&node.segment, file);
    }
    if !node.segment.clients().is_unrecorded(record.identity()) {
        record.clear(FileFlags::DIRECT | FileFlags::MAPPED | FileFlags::UNMAPPED);
    }
}

/// When a file was written, which it is, and how often it had been opened when it was seen to be
/// closed.
type Version = (u64, (FileId, Opens));

/// Ends what rules give a lifetime, of files that no process has open: scratch files are deleted;
/// of others the buffers go once the store has what is in them.
pub(crate) fn end_lifetimes(
    node: &Node,
    owner: Owner,
    files: &[(FileId, Opens)],
    open: &HashSet<FileId>,
) {
    let segment = &node.segment;
    let lifetimes = segment.rules().iter().any(|rule| rule.settings().lifetime.is_some());
    if !lifetimes {
        return;
    }
    let mut versions: HashMap<(u32, u16), Vec<Version>> = HashMap::new();
    let mut over = Vec::new();
    let now = clock::realtime_coarse_ns();
    for &(file, opens) in files {
        let record = segment.file(file);
        let lifetime = segment.rule_of(record).and_then(|rule| rule.settings().lifetime);
        let Some(lifetime) = lifetime.filter(|_| !open.contains(&file) && holds(node, file)) else {
            continue;
        };
        let written = record.mtime_ns.load(Ordering::Acquire);
        match lifetime {
            Lifetime::KeepVersions(count) => {
                let rule = record.rule.load(Ordering::Relaxed);
                let of_rule = versions.entry((count, rule)).or_default();
                of_rule.push((written, (file, opens)));
            }
            Lifetime::OverwriteWhenRead if record.has(FileFlags::READ_OUT) => {
                over.push((file, opens));
            }
            Lifetime::Expires(after) if now.saturating_sub(written) >= after => {
                over.push((file, opens));
            }
            Lifetime::OverwriteWhenRead | Lifetime::Expires(_) => {}
        }
    }
    for ((count, _), mut of_rule) in versions {
        of_rule.sort_unstable_by_key(|&(written, (file, _))| (written, file));
        let surplus = of_rule.len().saturating_sub(count as usize);
        over.extend(of_rule[..surplus].iter().map(|&(_, file)| file));
    }
    for (file, opens) in over {
        let record = segment.file(file);
        let is_scratch = record.has(FileFlags::SCRATCH);
        let table = segment.enter_table(owner);
        if (is_scratch || !record.has(FileFlags::DIRTY))
            && let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner)
            // A process may have opened it since it was found to be closed.
            && opens.are_still(&record.opens)
        {
            match is_scratch {
                true => delete_held(node, file, owner, false),
                false => drop(segment.drop_clean_blocks(file, owner)),
            }
        }
    }
}

/// Whether a file is a version of anything: a scratch file that was written, or one that has
/// buffers.
pub(crate) fn holds(node: &Node, file: FileId) -> bool {
    let segment = &node.segment;
    let record = segment.file(file);
    let mut buffered = false;
    segment.for_each_entry(record, 0, |_, place| {
        buffered = matches!(Entry::decode(place.load(Ordering::Acquire)), Entry::Resident { .. });
        !buffered
    });
    buffered || record.has(FileFlags::SCRATCH) && record.size.load(Ordering::Acquire) > 0
}
