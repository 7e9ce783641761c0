//! Ranges of a file: allocating and punching them, looking for data and holes, and advice about
//! what will be read.

use crate::clean::Through;
use crate::open::{ctime_ns, mtime_ns};
use crate::session::{Handle, Session, borrow};
use crate::waits::restarting;
use crate::write::raise;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::{Entry, crash};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

/// The mode of a `fallocate` call.
pub type AllocateMode = FallocateFlags;

/// Blocks that are asked for ahead of a sequential reader: 2 MiB.
pub(crate) const READ_AHEAD_BLOCKS: u32 = 8;
/// Blocks that one request to the node manager names at most: 1 GiB.
const STAGE_BLOCKS_MAX: u32 = 4096;

/// What a program says about its use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing in particular.
    Normal,
    /// It will be read from front to back.
    Sequential,
    /// It will be read here and there.
    Random,
    /// It will be read soon.
    WillNeed,
    /// It will not be used soon.
    DontNeed,
}

impl Session {
    /// `fallocate`. Room is made on the store, so that a later flush finds it; holes are punched
    /// in the tiers and on the store; what shifts the file's bytes goes through the kernel once
    /// the file is clean.
    ///
    /// # Errors
    /// The kernel's errno, which has then changed nothing; a tier's; `BADF` if the descriptor is not what it was; as of
    /// [`Session::sync`] where a node manager that is stopped would have to take part.
    pub fn allocate(
        &self,
        handle: Handle,
        mode: AllocateMode,
        offset: i64,
        bytes: i64,
    ) -> Result<(), Errno> {
        let call = || {
            forebay_pool::undo::writing(borrow(handle.fd), offset as u64, bytes as u64);
            rustix::fs::fallocate(borrow(handle.fd), mode, offset as u64, bytes as u64)
        };
        let range = match (offset >= 0 && bytes > 0).then(|| offset.checked_add(bytes)).flatten() {
            Some(end) => offset as u64..end as u64,
            // The kernel knows which error that is.
            None => return call(),
        };
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let action = mode - FallocateFlags::KEEP_SIZE;
        if action.is_empty() && keeps_size {
            let owner = self.owner();
            restarting(|| {
                let inside = self.enter(handle, owner)?;
                let result = self.on_store(handle, call);
                self.segment.leave(owner, inside);
                result
            })
        } else if action.is_empty() {
            let extend = |session: &Session| {
                session.clean_up_store(handle)?;
                let owner = session.owner();
                session.segment.clear_tail(handle.file, range.end, owner, session)?;
                session.lengthening(handle, || {
                    session.on_store(handle, call)?;
                    crash::point("allocate.store");
                    session.grown_on_store(handle, range.end);
                    Ok(())
                })
            };
            restarting(|| self.exclusively(handle, extend))
        } else if action == FallocateFlags::PUNCH_HOLE || action == FallocateFlags::ZERO_RANGE {
            let punch = |session: &Session| session.punch(handle, range.clone(), keeps_size, call);
            restarting(|| self.exclusively(handle, punch))
        } else {
            self.with_clean(handle, call)?
        }
    }

    /// The caller has the file exclusively.
    fn punch(
        &self,
        handle: Handle,
        range: Range<u64>,
        keeps_size: bool,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let end = range.end;
        let outside = Through { session: self, handle };
        self.bring_failing_up(handle, range.start)?;
        self.bring_failing_up(handle, end)?;
        if !keeps_size {
            self.clean_up_store(handle)?;
            self.segment.clear_tail(handle.file, end, self.owner(), &outside)?;
        }
        let punched = self.segment.punch(handle.file, range, self.owner(), &outside, || {
            self.note_cut(handle)?;
            if keeps_size {
                return self.on_store(handle, call);
            }
            self.lengthening(handle, || {
                self.on_store(handle, call)?;
                self.grown_on_store(handle, end);
                Ok(())
            })
        });
        if let Err(errno) = punched {
            self.undo_cut(handle, errno);
        }
        punched
    }

    /// Notes that the store's file has at least `end` bytes.
    fn grown_on_store(&self, handle: Handle, end: u64) {
        let record = self.record(handle);
        raise(&record.store_size, end);
        raise(&record.size, end);
    }

    /// Makes a call that changes the store's file, and takes over the times that it gives it.
    pub(crate) fn on_store(
        &self,
        handle: Handle,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let before = rustix::fs::fstat(borrow(handle.fd));
        let record = self.record(handle);
        record.set(file_flag::TOUCHED);
        call()?;
        record.clear(file_flag::SYNCED);
        if let (Ok(before), Ok(after)) = (before, rustix::fs::fstat(borrow(handle.fd))) {
            if mtime_ns(&before) != mtime_ns(&after) {
                record.mtime_ns.store(mtime_ns(&after), Ordering::Relaxed);
            }
            if ctime_ns(&before) != ctime_ns(&after) {
                record.changed_ns.fetch_max(ctime_ns(&after), Ordering::Relaxed);
            }
            if !record.has(file_flag::AHEAD) {
                // Our own change is no reason to look for another's.
                record.store_mtime_ns.store(mtime_ns(&after), Ordering::Release);
            }
        }
        Ok(())
    }

    /// Where the next data, or the next hole, at or behind `offset` begins. What is buffered and
    /// not yet on the store is data; for the rest the store is asked.
    ///
    /// # Errors
    /// `NXIO` if `offset` is not within the file, or no data follows.
    pub(crate) fn seek_data_or_hole(
        &self,
        handle: Handle,
        offset: i64,
        hole: bool,
    ) -> Result<u64, Errno> {
        let size = self.size(handle)?;
        let start = u64::try_from(offset).ok().filter(|&start| start < size).ok_or(Errno::NXIO)?;
        let owner = self.owner();
        let inside = self.enter(handle, owner)?;
        let look = |fd| match hole {
            true => Ok(self.next_hole(handle.file, start, size, fd)),
            false => {
                self.next_data(handle.file, start, fd).filter(|&at| at < size).ok_or(Errno::NXIO)
            }
        };
        // A description of our own: the offset of the program's is the marker.
        let found = match self.reader(handle, look) {
            found @ (Ok(_) | Err(Errno::NXIO)) => found,
            // It may not be opened again.
            Err(_) => {
                let found = look(handle.fd);
                let marker = self.segment.marker(handle.description()).encode();
                let _ = rustix::fs::seek(borrow(handle.fd), SeekFrom::Start(marker));
                found
            }
        };
        self.segment.leave(owner, inside);
        found
    }

    /// The first range at or behind `from` that the store does not have yet.
    fn next_pending(&self, file: u32, from: u64) -> Option<Range<u64>> {
        let mut found = None;
        self.segment.for_each_pending(file, from, |range| {
            if range.end > from {
                found = Some(range);
            }
            found.is_none()
        });
        found
    }

    fn next_data(&self, file: u32, start: u64, fd: i32) -> Option<u64> {
        // The tiers first: what a flush takes from them meanwhile, the store then has.
        let buffered = self.next_pending(file, start).map(|range| range.start.max(start));
        let stored = rustix::fs::seek(borrow(fd), SeekFrom::Data(start)).ok();
        buffered.into_iter().chain(stored).min()
    }

    fn next_hole(&self, file: u32, start: u64, size: u64, fd: i32) -> u64 {
        let page = self.segment.page_bytes() as u64;
        let mut at = start;
        while at < size {
            let pending = self.next_pending(file, at).filter(|range| range.start <= at);
            at = match (pending, rustix::fs::seek(borrow(fd), SeekFrom::Hole(at))) {
                (Some(range), _) => range.end,
                // The store's end, or a hole: there are no holes in the middle of a page.
                (None, Ok(hole)) if hole > at => hole.next_multiple_of(page),
                (None, _) => return at,
            };
        }
        size
    }

    /// Takes a program's advice about `bytes` from `offset` on; all up to the end if `bytes` is 0.
    pub fn advise(&self, handle: Handle, offset: u64, bytes: u64, advice: Advice) {
        let end = if bytes == 0 { u64::MAX } else { offset.saturating_add(bytes) };
        let flags = &self.description(handle).flags;
        let pattern = description_flag::RANDOM | description_flag::SEQUENTIAL;
        let set = |flag: u32| {
            flags.fetch_and(!pattern, Ordering::AcqRel);
            flags.fetch_or(flag, Ordering::AcqRel);
        };
        match advice {
            Advice::Normal => set(0),
            Advice::Random => set(description_flag::RANDOM),
            Advice::Sequential => set(description_flag::SEQUENTIAL),
            Advice::WillNeed => {
                let bucket = self.segment.bucket_bytes() as u64;
                let end = end.min(self.record(handle).store_size.load(Ordering::Acquire));
                let blocks = end.div_ceil(bucket).saturating_sub(offset / bucket);
                let blocks = blocks.min(u64::from(STAGE_BLOCKS_MAX)) as u32;
                self.want_staged(handle, offset / bucket, blocks);
            }
            Advice::DontNeed => self.drop_clean_range(handle, offset, end),
        }
    }

    /// Asks the node manager to bring blocks to RAM while there is room.
    pub(crate) fn want_staged(&self, handle: Handle, first: u64, blocks: u32) {
        if blocks > 0 {
            self.ask_to_stage(handle, |file, generation| Message::Stage {
                file,
                generation,
                first,
                blocks,
            });
        }
    }

    /// Sends a message about what a file will be read from, made of its record and generation.
    pub(crate) fn ask_to_stage(&self, handle: Handle, about: impl FnOnce(u32, u32) -> Message) {
        let record = self.record(handle);
        if record.has(file_flag::DIRECT) || !self.may(handle, description_flag::READ) {
            return;
        }
        let message = about(handle.file, record.generation.load(Ordering::Relaxed));
        self.lend(handle, OFlags::RDONLY, |fd| self.manager.send_hint(message, fd));
    }

    /// Drops the clean blocks that lie in a range whole, and asks for a flush of the dirty ones.
    fn drop_clean_range(&self, handle: Handle, from: u64, to: u64) {
        let bucket = self.segment.bucket_bytes() as u64;
        let record = self.record(handle);
        let end = to.min(record.size.load(Ordering::Acquire).next_multiple_of(bucket));
        let owner = self.owner();
        // It is advice: a signal ends it.
        let Ok(inside) = self.enter(handle, owner) else { return };
        let mut dirty = false;
        self.segment.for_each_entry(record, from.div_ceil(bucket), |block, place| {
            if (block + 1) * bucket > end {
                return false;
            }
            if matches!(Entry::decode(place.load(Ordering::Acquire)), Entry::Busy(_)) {
                return true;
            }
            let resident = match self.segment.lock_resident_unless_interrupted(place, owner) {
                Ok(Some(resident)) => resident,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let Some(meta) = self.segment.bucket(resident.bucket) else { return true };
            let pending = meta.pending();
            if pending == 0 && resident.taken {
                self.segment.discard_resident(place, resident);
                return true;
            }
            dirty |= pending != 0;
            if resident.taken {
                meta.lock.unlock_unchanged();
            }
            true
        });
        self.segment.leave(owner, inside);
        if dirty {
            self.announce(handle);
            self.segment.request_sync(handle.file, Some(self.owner()), false);
        }
    }
}
