//! Ranges of a file: allocating and punching them, looking for data and holes, and advice about
//! what will be read.

use crate::access::{EnteredFile, ExclusiveFile};
use crate::changed::raise;
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::store;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::message::Message;
use forebay_pool::{Entry, FileId, crash};
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

impl OpenFile<'_> {
    /// `fallocate`. Room is made on the store, so that a later flush finds it; holes are punched
    /// in the tiers and on the store; what shifts the file's bytes goes through the kernel once
    /// the file is clean.
    ///
    /// # Errors
    /// The kernel's errno, which has then changed nothing; a tier's; `BADF` if the descriptor is
    /// not what it was; as of [`OpenFile::sync`] where a node manager that is stopped would have to
    /// take part.
    pub fn allocate(&self, mode: AllocateMode, offset: i64, bytes: i64) -> Result<(), Errno> {
        let call = || {
            forebay_pool::power_loss::writing(borrow(self.fd), offset as u64, bytes as u64);
            rustix::fs::fallocate(borrow(self.fd), mode, offset as u64, bytes as u64)
        };
        let range = match (offset >= 0 && bytes > 0).then(|| offset.checked_add(bytes)).flatten() {
            Some(end) => offset as u64..end as u64,
            // The kernel knows which error that is.
            None => return call(),
        };
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let action = mode - FallocateFlags::KEEP_SIZE;
        if action.is_empty() && keeps_size {
            self.session.restarting(|| {
                let _inside = self.enter_for(Need::Whole(Access::Alone))?;
                self.on_store(call)
            })
        } else if action.is_empty() {
            let extend = |file: &ExclusiveFile<'_>| {
                file.settle_committing()?;
                file.clean_up_store()?;
                self.session.segment.clear_tail(self.id, range.end, file.owner, self.session)?;
                file.lengthening(|| {
                    self.on_store(call)?;
                    crash::point("allocate.store");
                    self.grown_on_store(range.end);
                    Ok(())
                })
            };
            self.session.restarting(|| self.exclusively_for(Need::Whole(Access::Alone), extend))
        } else if action == FallocateFlags::PUNCH_HOLE || action == FallocateFlags::ZERO_RANGE {
            let punch = |file: &ExclusiveFile<'_>| {
                file.settle_committing()?;
                file.punch(range.clone(), keeps_size, call)
            };
            self.session.restarting(|| self.exclusively_for(Need::Whole(Access::Alone), punch))
        } else {
            self.with_clean(call)?
        }
    }

    /// Notes that the store's file has at least `end` bytes.
    fn grown_on_store(&self, end: u64) {
        let record = self.record;
        raise(&record.store_size, end);
        raise(&record.size, end);
    }

    /// Makes a call that changes the store's file, and takes over the times that it gives it.
    pub(crate) fn on_store(&self, call: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let before = store::stat(self.fd);
        let record = self.record;
        record.set(FileFlags::STORE_WRITTEN);
        call()?;
        record.clear(FileFlags::SYNCED);
        if let (Ok(before), Ok(after)) = (before, store::stat(self.fd)) {
            // The kernel's clock may be behind what a program has seen.
            let seen = record.changed_ns.load(Ordering::Relaxed);
            if before.changed_ns != after.changed_ns {
                record.changed_ns.fetch_max(after.changed_ns as u64, Ordering::Relaxed);
            }
            if before.modified_ns != after.modified_ns {
                record.mtime_ns.store(seen.max(after.modified_ns as u64), Ordering::Relaxed);
            }
            if !record.has(FileFlags::METADATA_DIRTY) {
                // Our own change is no reason to look for another's.
                record.store_mtime_ns.store(after.modified_ns as u64, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Where the next data, or the next hole, at or behind `offset` begins. What is buffered and
    /// not yet on the store is data; for the rest the store is asked.
    ///
    /// # Errors
    /// `NXIO` if `offset` is not within the file, or no data follows.
    pub(crate) fn seek_data_or_hole(&self, offset: i64, hole: bool) -> Result<u64, Errno> {
        let size = self.size()?;
        let start = u64::try_from(offset).ok().filter(|&start| start < size).ok_or(Errno::NXIO)?;
        let inside = self.enter_for(Need::Whole(Access::Read))?;
        let look = |fd| match hole {
            true => Ok(inside.next_hole(start, size, fd)),
            false => inside.next_data(start, fd).filter(|&at| at < size).ok_or(Errno::NXIO),
        };
        // A description of our own: the offset of the program's is the marker.
        match self.reader(look) {
            found @ (Ok(_) | Err(Errno::NXIO)) => found,
            // It may not be opened again.
            Err(_) => {
                let found = look(self.fd);
                let marker =
                    self.session.segment.descriptions().marker(self.description_id()).encode();
                let _ = rustix::fs::seek(borrow(self.fd), SeekFrom::Start(marker));
                found
            }
        }
    }

    /// Takes a program's advice about `bytes` from `offset` on; all up to the end if `bytes` is 0.
    pub fn advise(&self, offset: u64, bytes: u64, advice: Advice) {
        let end = if bytes == 0 { u64::MAX } else { offset.saturating_add(bytes) };
        let flags = &self.description.flags;
        let pattern = DescriptionFlags::RANDOM | DescriptionFlags::SEQUENTIAL;
        let set = |flag: DescriptionFlags| {
            flags.clear(pattern, Ordering::AcqRel);
            flags.set(flag, Ordering::AcqRel);
        };
        match advice {
            Advice::Normal => set(DescriptionFlags::NONE),
            Advice::Random => set(DescriptionFlags::RANDOM),
            Advice::Sequential => set(DescriptionFlags::SEQUENTIAL),
            Advice::WillNeed => {
                let bucket = self.session.segment.bucket_bytes() as u64;
                let end = end.min(self.record.store_size.load(Ordering::Acquire));
                let blocks = end.div_ceil(bucket).saturating_sub(offset / bucket);
                let blocks = blocks.min(u64::from(STAGE_BLOCKS_MAX)) as u32;
                self.want_staged(offset / bucket, blocks);
            }
            Advice::DontNeed => self.drop_clean_range(offset, end),
        }
    }

    /// Asks the node manager to bring blocks to RAM while there is room.
    pub(crate) fn want_staged(&self, first: u64, blocks: u32) {
        if blocks > 0 {
            self.ask_to_stage(|file, generation| Message::Stage {
                file,
                generation,
                first,
                blocks,
            });
        }
    }

    /// The record of the file and its generation, by which the node manager is asked to bring its
    /// blocks to a tier, and how many bytes it has: once this node may read all of it. `None` if
    /// the file is used through the kernel.
    ///
    /// # Errors
    /// What a lease of the file is refused with; `IO` if it does not come; `BADF` if the descriptor
    /// was closed.
    pub fn to_stage(&self) -> Result<Option<(FileId, u32, u64)>, Errno> {
        if self.record.is_written_through() {
            self.buffer_again();
        }
        let _inside = self.enter_for(Need::Whole(Access::Read))?;
        let record = self.record;
        let generation = record.generation.load(Ordering::Relaxed);
        let size = record.size.load(Ordering::Acquire);
        Ok((!record.has(FileFlags::DIRECT)).then_some((self.id, generation, size)))
    }

    /// Sends a message about what a file will be read from, made of its record and generation.
    pub(crate) fn ask_to_stage(&self, about: impl FnOnce(FileId, u32) -> Message) {
        let record = self.record;
        if record.has(FileFlags::DIRECT) || !self.may(DescriptionFlags::READ) {
            return;
        }
        let message = about(self.id, record.generation.load(Ordering::Relaxed));
        self.lend(OFlags::RDONLY, |fd| self.session.manager.send_hint(message, fd));
    }

    /// Drops the clean blocks that lie in a range whole, and asks for a flush of the dirty ones.
    fn drop_clean_range(&self, from: u64, to: u64) {
        // It is advice: a signal ends it.
        let Ok(inside) = self.enter(self.session.owner()) else { return };
        let dirty = inside.drop_clean_blocks(from, to);
        drop(inside);
        if dirty {
            self.register();
            self.session.segment.request_sync(self.id, Some(self.session.owner()), false);
        }
    }
}

impl ExclusiveFile<'_> {
    fn punch(
        &self,
        range: Range<u64>,
        keeps_size: bool,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let end = range.end;
        self.bring_failing_up(range.start)?;
        self.bring_failing_up(end)?;
        if !keeps_size {
            self.clean_up_store()?;
        }
        let on_store = || {
            self.log_truncate()?;
            if keeps_size {
                return self.on_store(call);
            }
            self.lengthening(|| {
                self.on_store(call)?;
                self.grown_on_store(end);
                Ok(())
            })
        };
        let (mut on_store, mut stored) = (Some(on_store), Ok(()));
        let punched = self.again_in_ram(&[range.start, end], || {
            if !keeps_size {
                self.session.segment.clear_tail(self.id, end, self.owner, self.session)?;
            }
            self.session.segment.punch(self.id, range.clone(), self.owner, self, || {
                if let Some(on_store) = on_store.take() {
                    stored = on_store();
                }
                stored
            })
        });
        if let Err(errno) = punched {
            self.retract_truncate(errno);
        }
        punched
    }
}

impl EnteredFile<'_> {
    /// The first range at or behind `from` that the store does not have yet.
    fn next_pending(&self, from: u64) -> Option<Range<u64>> {
        let mut found = None;
        self.session.segment.for_each_pending(self.id, from, |range| {
            if range.end > from {
                found = Some(range);
            }
            found.is_none()
        });
        found
    }

    fn next_data(&self, start: u64, fd: i32) -> Option<u64> {
        // The tiers first: what a flush takes from them meanwhile, the store then has.
        let buffered = self.next_pending(start).map(|range| range.start.max(start));
        let stored = rustix::fs::seek(borrow(fd), SeekFrom::Data(start)).ok();
        buffered.into_iter().chain(stored).min()
    }

    fn next_hole(&self, start: u64, size: u64, fd: i32) -> u64 {
        let page = self.session.segment.page_bytes() as u64;
        let mut at = start;
        while at < size {
            let pending = self.next_pending(at).filter(|range| range.start <= at);
            at = match (pending, rustix::fs::seek(borrow(fd), SeekFrom::Hole(at))) {
                (Some(range), _) => range.end,
                // The store's end, or a hole: there are no holes in the middle of a page.
                (None, Ok(hole)) if hole > at => hole.next_multiple_of(page),
                (None, _) => return at,
            };
        }
        size
    }

    /// Drops the clean blocks that lie in a range whole. Whether there are dirty ones.
    fn drop_clean_blocks(&self, from: u64, to: u64) -> bool {
        let bucket = self.session.segment.bucket_bytes() as u64;
        let record = self.record;
        let end = to.min(record.size.load(Ordering::Acquire).next_multiple_of(bucket));
        let mut dirty = false;
        self.session.segment.for_each_entry(record, from.div_ceil(bucket), |block, entry| {
            if (block + 1) * bucket > end {
                return false;
            }
            if matches!(Entry::decode(entry.load(Ordering::Acquire)), Entry::Busy(_)) {
                return true;
            }
            let held = match self.session.segment.lock_block_unless_interrupted(entry, self.owner) {
                Ok(Some(held)) => held,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let pending = held.meta().pending();
            if self.session.segment.pinned_to(self.id, block).is_some() {
                return true;
            }
            if pending == 0 && held.is_taken() {
                self.session.segment.discard_block(entry, held);
                return true;
            }
            dirty |= pending != 0;
            true
        });
        dirty
    }
}
