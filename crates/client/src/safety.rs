//! Where the bytes of a file are, and how far they are from being safe: for front ends whose
//! callers ask. A flush is begun, looked at and waited for as a thing of its own, where fsync is
//! all of that in one call.

use crate::manager_watch::ManagerState;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::sync::WORK_LOOK;
use crate::waiting::Wait;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_placement::mix;
use forebay_pool::layout::*;
use forebay_pool::{BucketId, Entry, FileId, FoundFile, SyncState, clock, futex};
use rustix::io::Errno;

/// What a flush brings a file to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What survives a loss of power: the store, or the journal on a file tier.
    Durable,
    /// The store, durably.
    Store,
}

/// A flush that was asked for: of what was written before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What the node manager counts.
    pub ticket: u32,
    /// The errors of the file before.
    pub errors: u32,
    /// What the blocks were that the store lacked, for one to the journal; 0 is nothing known.
    pub seen: u64,
    /// Which file it is of: number and generation of its record.
    pub file: u64,
}

/// How it stands with a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is under way.
    Waiting,
    /// It is done.
    Done,
    /// It is done, and the file was written since, or that cannot be told.
    Changed,
}

/// What a wait for a flush has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// It is done.
    Done,
    /// The time is over.
    Late,
    /// No node manager is there to do it: a new flush does it itself.
    Alone,
}

/// Bytes of a file, in whole pages, that its store lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsafe {
    /// In memory.
    pub memory: u64,
    /// On file tiers, which keep them when the node is started again.
    pub tiers: u64,
    /// The store's file has another size, or lacks what a process is about to give it.
    pub is_resized: bool,
}

/// Consecutive bytes of a file that are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// The tier; `None`: they are on the store alone.
    pub tier: Option<TierId>,
    /// The store lacks them.
    pub is_ahead: bool,
}

/// Looks, a millisecond apart, at what the node manager does for a moment.
const LOOKS: u32 = 20;
/// The same of a call that has waited for a flush: the journal takes its time for a checkpoint.
const LOOKS_OF_WAIT: u32 = 200;

impl Level {
    fn flags(self) -> FileFlags {
        match self {
            Level::Durable => FileFlags::TO_LOG,
            Level::Store => FileFlags::TO_FLUSH | FileFlags::DURABLE,
        }
    }
}

impl OpenFile<'_> {
    /// Has the node manager begin to bring the file to `level`, whatever its rule says of
    /// durability, and returns at once. `None`: the store's file has all of it, and only the kernel
    /// knows whether that is durable, or written later. So it is of a file that is used through the
    /// kernel; and where there is no node manager: this process has written it then, however
    /// long that takes.
    ///
    /// # Errors
    /// `NOTSUP` of a scratch file, which ends with its job; `INTR` and `BADF` as of
    /// [`OpenFile::sync`]; the store's, where there is no node manager.
    pub fn begin_flush(&self, level: Level) -> Result<Option<Flush>, Errno> {
        let record = self.record;
        if record.has(FileFlags::SCRATCH) {
            return Err(Errno::NOTSUP);
        }
        if self.session.segment.was_lengthened(record) {
            // What a killed process has left behind the end was never acknowledged.
            self.exclusively(|file| file.clean_up_store())?;
        }
        if record.has(FileFlags::DIRECT) {
            return Ok(None);
        }
        if self.session.manager_watch.look(&self.session.segment) == ManagerState::Gone {
            self.session.restarting(|| self.flush_here(true))?;
            return Ok(None);
        }
        self.register();
        let errors = record.errors();
        // Before: what is written from here on shows.
        let seen = if level == Level::Durable { self.pending_blocks()? } else { 0 };
        let owner = self.session.owner();
        let ticket = self.session.segment.request(self.id, Some(owner), level.flags());
        Ok(Some(Flush { ticket, errors, seen, file: self.numbered() }))
    }

    /// Tells the file from all others that the pool has had, as long as it is open.
    fn numbered(&self) -> u64 {
        let generation = self.record.generation.load(Ordering::Relaxed);
        u64::from(self.id.raw()) << 32 | u64::from(generation)
    }

    /// Whether no other call has the file for itself, after some milliseconds at most: the node
    /// manager has it for a moment when it gives the store's file its times. A stopped process is
    /// not waited for.
    fn is_free_soon(&self) -> bool {
        let exclusive = &self.record.exclusive;
        (0..LOOKS).any(|_| {
            let holder = exclusive.load(Ordering::SeqCst);
            if holder != 0 && !self.session.segment.is_held_by_stopped(self.id) {
                futex::wait(exclusive, holder, 1);
            }
            exclusive.load(Ordering::SeqCst) == 0
        })
    }

    /// Whether the node manager has done all that was asked for, after so many milliseconds at
    /// most: it asks itself for a checkpoint of what the journal has, once a flush is done.
    fn is_settled_within(&self, looks: u32) -> bool {
        let work_done = &self.session.segment.header().work_done;
        (0..looks).any(|_| {
            let done = work_done.load(Ordering::Acquire);
            if self.record.awaits_sync() {
                futex::wait(work_done, done, 1);
            }
            !self.record.awaits_sync()
        })
    }

    /// A number for the contents that the store lacks: each write of a block raises the version of
    /// the block's lock, as the journal knows by it what it has. 0 is none: another call has the
    /// file for itself, or is changing its size.
    fn pending_blocks(&self) -> Result<u64, Errno> {
        let record = self.record;
        if !self.is_free_soon() {
            return Ok(0);
        }
        let inside = self.enter_restarting(self.session.owner())?;
        let mut sum = mix(record.size.load(Ordering::Acquire));
        self.session.segment.for_each_entry(inside.record, 0, |block, place| {
            if let Some(seen) = self.look_at_block(place).filter(|seen| seen.ahead != 0) {
                let bucket = u64::from(seen.bucket.raw()) << 32 | u64::from(seen.version);
                sum = mix(sum ^ mix(block)) ^ mix(bucket);
            }
            true
        });
        Ok(if record.has_intent() { 0 } else { sum.max(1) })
    }

    /// How it stands with `flush`, which was begun through this descriptor. It is done where the
    /// record says now that nothing is missing on the store, which was synced since, or that what
    /// is missing is what the journal was given.
    ///
    /// # Errors
    /// That of a flush of the file which has failed since; `BADFD` if the descriptor refers to
    /// another file by now; `CONNREFUSED` where the node manager ended before it was done.
    pub fn progress(&self, flush: &Flush) -> Result<Progress, Errno> {
        if self.numbered() != flush.file {
            return Err(Errno::BADFD);
        }
        let segment = &self.session.segment;
        if !segment.is_synced(self.id, flush.ticket) {
            return match self.session.manager_watch.look(segment) {
                ManagerState::Gone => Err(Errno::CONNREFUSED),
                _ => Ok(Progress::Waiting),
            };
        }
        if self.record.errors() != flush.errors {
            return Err(self.last_error().unwrap_or(Errno::IO));
        }
        let is_safe = self.is_safe_on_store()? || self.is_in_journal(flush)?;
        Ok(if is_safe { Progress::Done } else { Progress::Changed })
    }

    /// Whether the store has all that any process of this node has written, durably.
    fn is_safe_on_store(&self) -> Result<bool, Errno> {
        let record = self.record;
        let unclear = FileFlags::DIRECT | FileFlags::FAILING;
        if record.flags.load(Ordering::Acquire).intersects(unclear) || !self.is_free_soon() {
            return Ok(false);
        }
        let found = self.not_on_store()?;
        if found != Unsafe::default() || record.has_lengtheners() {
            return Ok(false);
        }
        // In this order: what made a page clean has cleared the flag before, and the flag is set
        // before the sync that is to be answered: one that was under way has ended well, or has
        // cleared it again.
        let is_synced = || record.has(FileFlags::SYNCED);
        Ok(is_synced() && self.is_settled_within(LOOKS) && is_synced())
    }

    /// Whether nothing was written since `flush` began, and all flushes are done: the contents that
    /// were looked at may be those of a later one.
    fn is_in_journal(&self, flush: &Flush) -> Result<bool, Errno> {
        let unclear = FileFlags::DIRECT | FileFlags::FAILING;
        let is_clear = !self.record.flags.load(Ordering::Acquire).intersects(unclear);
        Ok(flush.seen != 0
            && is_clear
            && self.pending_blocks()? == flush.seen
            && self.is_settled_within(LOOKS))
    }

    /// Waits for `flush` until `deadline_ns` of CLOCK_MONOTONIC; for ever without one.
    ///
    /// # Errors
    /// That of a flush of the file which has failed since; `BADFD` as of [`OpenFile::progress`];
    /// `INTR` and `TIMEDOUT` as of [`OpenFile::sync`], where the node manager is stopped.
    pub fn await_flush(&self, flush: &Flush, deadline_ns: Option<u64>) -> Result<Awaited, Errno> {
        if self.numbered() != flush.file {
            return Err(Errno::BADFD);
        }
        let awaited = self.session.restarting(|| self.await_flush_once(flush, deadline_ns))?;
        if awaited == Awaited::Done {
            if self.record.errors() != flush.errors {
                return Err(self.last_error().unwrap_or(Errno::IO));
            }
            let has_time = deadline_ns.is_none_or(|deadline| clock::monotonic_ns() < deadline);
            if self.record.is_tracked() && has_time {
                // So that a look after it finds the file safe.
                self.is_settled_within(LOOKS_OF_WAIT);
            }
            // This description has learned of it.
            let _ = self.unreported_error();
            self.look_afresh()?;
        }
        Ok(awaited)
    }

    fn await_flush_once(&self, flush: &Flush, deadline_ns: Option<u64>) -> Result<Awaited, Errno> {
        let (segment, wait) = (&self.session.segment, Wait::begin());
        let header = segment.header();
        let stands = || segment.manager_is_stopped() || segment.is_held_by_stopped(self.id);
        loop {
            let done = header.work_done.load(Ordering::Acquire);
            if segment.is_synced(self.id, flush.ticket) {
                return Ok(Awaited::Done);
            }
            let Some(pause_ms) = pause_until(deadline_ns) else {
                // A caller that only looks learns of it, too.
                return Ok(match self.session.manager_watch.look(segment) {
                    ManagerState::Gone => Awaited::Alone,
                    _ => Awaited::Late,
                });
            };
            futex::wait(&header.work_done, done, pause_ms);
            if segment.is_synced(self.id, flush.ticket) {
                return Ok(Awaited::Done);
            }
            if !self.is_current() {
                return Err(Errno::BADF);
            }
            wait.look(stands)?;
            match self.session.manager_watch.look(segment) {
                ManagerState::AtWork => {}
                ManagerState::Gone => return Ok(Awaited::Alone),
                // A caller that gave a limit has said how long it waits.
                ManagerState::Stopped if deadline_ns.is_none() => return Err(Errno::TIMEDOUT),
                ManagerState::Stopped => {}
            }
        }
    }

    /// What the store lacks of the file now.
    ///
    /// # Errors
    /// As of a read.
    pub fn not_on_store(&self) -> Result<Unsafe, Errno> {
        let inside = self.enter_restarting(self.session.owner())?;
        let (segment, page) = (&self.session.segment, self.session.segment.page_bytes() as u64);
        let mut found = Unsafe::default();
        segment.for_each_entry(inside.record, 0, |_, place| {
            if let Some(block) = self.look_at_block(place) {
                let bytes = u64::from((block.valid & block.ahead).count_ones()) * page;
                match block.tier.is_ram() {
                    true => found.memory += bytes,
                    false => found.tiers += bytes,
                }
            }
            true
        });
        let record = self.record;
        let is_ahead = record.has(FileFlags::METADATA_DIRTY) && !record.has(FileFlags::DIRECT);
        let sizes = || record.size.load(Ordering::Acquire) != record.stored();
        found.is_resized = record.has_intent() || is_ahead && sizes();
        Ok(found)
    }

    /// Calls `visit` with where the bytes of `range` are, from the first to the last that the file
    /// has, until it returns false. Neighbours differ. What the store alone has may be a hole. All
    /// of it may be elsewhere a moment later.
    ///
    /// # Errors
    /// As of a read; the store's, for the file's size.
    pub fn placement(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<(), Errno> {
        let end = range.end.min(self.size()?);
        let mut joiner = Joiner { at: range.start, end, last: None, visit: &mut visit };
        if range.start >= end {
            return Ok(());
        }
        let inside = self.enter_restarting(self.session.owner())?;
        let segment = &self.session.segment;
        let (bucket, page) = (segment.bucket_bytes() as u64, segment.page_bytes() as u64);
        let mut goes_on = true;
        segment.for_each_entry(inside.record, range.start / bucket, |block, place| {
            let start = block.saturating_mul(bucket);
            if start >= end {
                return false;
            }
            let Some(found) = self.look_at_block(place) else { return true };
            for number in (0..u64::from(PAGES_PER_BUCKET)).filter(|bit| found.valid >> bit & 1 == 1)
            {
                let is_ahead = found.ahead >> number & 1 == 1;
                let from = start + number * page;
                goes_on = goes_on && joiner.add(from..from + page, found.tier, is_ahead);
            }
            goes_on
        });
        if goes_on {
            joiner.finish();
        }
        Ok(())
    }

    /// The pages of the block that `place` names; `None` if no tier has it.
    fn look_at_block(&self, place: &core::sync::atomic::AtomicU64) -> Option<SeenBlock> {
        let segment = &self.session.segment;
        loop {
            let word = place.load(Ordering::Acquire);
            let Entry::Resident { bucket, .. } = Entry::decode(word) else { return None };
            let meta = segment.bucket(bucket)?;
            let (valid, ahead) = (meta.valid.load(Ordering::Acquire), meta.pending());
            let (tier, version) = (segment.tier_of(bucket), meta.lock.version());
            if place.load(Ordering::Acquire) == word {
                return Some(SeenBlock { tier, bucket, version, valid, ahead });
            }
        }
    }
}

struct SeenBlock {
    tier: TierId,
    bucket: BucketId,
    /// How often it was changed.
    version: u32,
    valid: u64,
    /// The store lacks them.
    ahead: u64,
}

/// Puts together what lies side by side in one place, and the store between.
struct Joiner<'v, F> {
    /// Up to where all is known.
    at: u64,
    end: u64,
    last: Option<Extent>,
    visit: &'v mut F,
}

impl<F: FnMut(Extent) -> bool> Joiner<'_, F> {
    fn add(&mut self, pages: Range<u64>, tier: TierId, is_ahead: bool) -> bool {
        let (from, upto) = (pages.start.max(self.at), pages.end.min(self.end));
        if from >= upto {
            return true;
        }
        let store = self.push(self.at..from, None, false);
        store && self.push(from..upto, Some(tier), is_ahead)
    }

    fn push(&mut self, bytes: Range<u64>, tier: Option<TierId>, is_ahead: bool) -> bool {
        if bytes.is_empty() {
            return true;
        }
        self.at = bytes.end;
        let length = bytes.end - bytes.start;
        match &mut self.last {
            Some(last) if (last.tier, last.is_ahead) == (tier, is_ahead) => {
                last.bytes += length;
                true
            }
            last => {
                let next = Extent { offset: bytes.start, bytes: length, tier, is_ahead };
                last.replace(next).is_none_or(&mut self.visit)
            }
        }
    }

    fn finish(mut self) {
        if self.push(self.at..self.end, None, false) {
            self.last.take().map(&mut self.visit);
        }
    }
}

/// Milliseconds to sleep before the next look; `None` once the time is over.
fn pause_until(deadline_ns: Option<u64>) -> Option<u64> {
    let Some(deadline) = deadline_ns else { return Some(WORK_LOOK.as_ms()) };
    let left = deadline.checked_sub(clock::monotonic_ns()).filter(|&left| left > 0)?;
    Some(left.div_ceil(1_000_000).min(WORK_LOOK.as_ms()))
}

impl Session {
    /// The files that are ahead of their stores, but for scratch files.
    fn ahead(&self) -> impl Iterator<Item = FoundFile> + '_ {
        self.segment.found_in_use().filter(|found| {
            let record = self.segment.file(found.file);
            let has_some = record.has(FileFlags::METADATA_DIRTY) || record.awaits_sync();
            has_some && !record.has(FileFlags::SCRATCH)
        })
    }

    /// Has the node manager begin to bring all that is buffered in the pool to `level`, whichever
    /// process wrote it.
    ///
    /// # Errors
    /// `CONNREFUSED` where there is no node manager.
    pub fn begin_flush_of_all(&self, level: Level) -> Result<(), Errno> {
        if self.manager_watch.look(&self.segment) == ManagerState::Gone {
            return Err(Errno::CONNREFUSED);
        }
        for found in self.ahead() {
            self.segment.request(found.file, Some(self.owner()), level.flags());
        }
        Ok(())
    }

    /// Waits until all that was asked for of all files is done, at most until `deadline_ns` of
    /// CLOCK_MONOTONIC. Whether that is so.
    ///
    /// # Errors
    /// That of a file that cannot be flushed: the others were waited for; `INTR` and `TIMEDOUT` as
    /// of [`OpenFile::sync`]; `CONNREFUSED` where there is no node manager.
    pub fn await_flush_of_all(&self, deadline_ns: Option<u64>) -> Result<bool, Errno> {
        let wait = Wait::begin();
        let mut failed = None;
        for found in self.ahead() {
            let record = self.segment.file(found.file);
            let ticket = record.sync_wanted.load(Ordering::Acquire);
            while self.segment.sync_state(found, ticket) == SyncState::Waiting {
                if !self.pause_for(found.file, &wait, deadline_ns)? {
                    return Ok(false);
                }
            }
            failed = failed.or_else(|| record.failing_errno());
        }
        failed.map_or(Ok(true), |errno| Err(Errno::from_raw_os_error(errno)))
    }

    /// Sleeps until the node manager has done something, or a moment. False once the time is over.
    fn pause_for(
        &self,
        file: FileId,
        wait: &Wait,
        deadline_ns: Option<u64>,
    ) -> Result<bool, Errno> {
        let header = self.segment.header();
        let done = header.work_done.load(Ordering::Acquire);
        if self.segment.file(file).awaits_sync() {
            let Some(pause_ms) = pause_until(deadline_ns) else { return Ok(false) };
            futex::wait(&header.work_done, done, pause_ms);
        }
        wait.look(|| self.segment.manager_is_stopped() || self.segment.is_held_by_stopped(file))?;
        match self.manager_watch.look(&self.segment) {
            ManagerState::AtWork => Ok(true),
            ManagerState::Gone => Err(Errno::CONNREFUSED),
            ManagerState::Stopped if deadline_ns.is_none() => Err(Errno::TIMEDOUT),
            ManagerState::Stopped => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(end: u64, pages: &[(Range<u64>, usize, bool)]) -> Vec<(u64, u64, i32, bool)> {
        let mut all = Vec::new();
        let mut visit = |extent: Extent| {
            let tier = extent.tier.map_or(-1, |tier| tier.index() as i32);
            all.push((extent.offset, extent.bytes, tier, extent.is_ahead));
            true
        };
        let mut joiner = Joiner { at: 100, end, last: None, visit: &mut visit };
        for (range, tier, is_ahead) in pages {
            assert!(joiner.add(range.clone(), TierId::new(*tier), *is_ahead));
        }
        joiner.finish();
        all
    }

    #[test]
    fn extents_cover_the_range_without_gaps_and_neighbours_differ() {
        assert_eq!(joined(200, &[]), [(100, 100, -1, false)]);
        assert_eq!(joined(200, &[(0..50, 0, true)]), [(100, 100, -1, false)]);
        let all =
            [(50..120, 0, true), (120..130, 0, true), (130..140, 0, false), (160..400, 1, true)];
        assert_eq!(
            joined(200, &all),
            [(100, 30, 0, true), (130, 10, 0, false), (140, 20, -1, false), (160, 40, 1, true)]
        );
    }

    #[test]
    fn a_visitor_that_has_enough_is_asked_no_more() {
        let mut seen = 0;
        let mut visit = |_: Extent| {
            seen += 1;
            false
        };
        let mut joiner = Joiner { at: 0, end: 100, last: None, visit: &mut visit };
        assert!(joiner.add(0..10, TierId::RAM, false));
        assert!(!joiner.add(20..30, TierId::RAM, false));
        assert_eq!(seen, 1);
    }
}
