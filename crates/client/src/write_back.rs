//! Writing the few dirty pages of a file to its store from the process that wants them there: a
//! write and a sync of some KiB take less than telling the node manager of it. Larger amounts,
//! what is on file tiers or in the journal, and whatever failed before are the manager's.
//!
//! What a flush of the manager marks as under writeback stays dirty here until the store has it,
//! and the bucket's lock keeps its bytes: a process that dies in between has lost nothing, and its
//! lock is taken over. See "Clean in the caller" in docs/design/main-job.md.

use crate::access::EnteredFile;
use crate::changed::raise;
use crate::open_file::OpenFile;
use crate::store;
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::{self, Timer};
use forebay_pool::guards::BlockGuard;
use forebay_pool::layout::*;
use forebay_pool::{Owner, PageSet, crash};
use rustix::fd::RawFd;
use rustix::io::Errno;

/// Blocks of which a process writes pages to the store itself, and bytes of all of them: what the
/// page cache takes in less than a millisecond.
const BLOCKS_MOST: usize = 16;
const BYTES_MOST: usize = 1 << 20;

/// How long a file that is synced again and again goes without the times that programs see: to set
/// them, or to ask for them, makes the store's next sync write its inode, too, which takes more
/// than the data.
const TIMES_AGE: Timer = Timer::seconds(1);

impl OpenFile<'_> {
    /// Brings what is dirty to the store, if this process can and may do that, and gives the
    /// store's file its times. False if it is left to the node manager, wholly or in part.
    ///
    /// # Errors
    /// `INTR`, and `BADF`, as of [`OpenFile::enter`].
    pub(crate) fn write_back_few(&self) -> Result<bool, Errno> {
        let owner = self.session.owner();
        if !self.enter(owner)?.write_back_entered()? {
            return Ok(false);
        }
        self.end_write_back(owner);
        Ok(true)
    }

    /// The same before a sync of the store's file, whose times may follow later: at the close, the
    /// next sync a second from now, or by the node manager's next flush.
    ///
    /// # Errors
    /// As of [`OpenFile::write_back_few`].
    pub(crate) fn write_back_for_sync(&self) -> Result<bool, Errno> {
        let (owner, size) = (self.session.owner(), self.record.store_size.load(Ordering::Acquire));
        if !self.enter(owner)?.write_back_entered()? {
            return Ok(false);
        }
        self.end_write_back_for_sync(owner, size);
        Ok(true)
    }

    /// [`OpenFile::end_write_back`], if the store's file, which had `size` bytes before, is to have
    /// its times now.
    fn end_write_back_for_sync(&self, owner: Owner, size: u64) {
        let noted_ns = self.record.store_changed_ns.load(Ordering::Relaxed);
        let age_ns = clock::realtime_coarse_ns().saturating_sub(noted_ns);
        // The inode of one that has grown is written anyway.
        let has_grown = size != self.record.store_size.load(Ordering::Acquire);
        if has_grown || age_ns > TIMES_AGE.as_ns() {
            self.end_write_back(owner);
        }
    }

    /// Ends the state "ahead of the store" of a file whose times were left for later, if nothing of
    /// it is dirty.
    pub(crate) fn end_syncs(&self) {
        if self.record.has(FileFlags::CONFLICT_CHECKED) {
            self.settle(self.session.owner());
        }
    }

    /// The same after a write of `range` through a descriptor with O_SYNC, through which what is
    /// written to the store is durable at once. False also if another thread was faster with some
    /// of it, which may not be durable.
    ///
    /// # Errors
    /// As of [`OpenFile::write_back_few`].
    pub(crate) fn write_through(&self, range: &Range<u64>) -> Result<bool, Errno> {
        let page = self.session.segment.page_bytes() as u64;
        let pages = range.end.div_ceil(page) - range.start / page;
        let (owner, size) = (self.session.owner(), self.record.store_size.load(Ordering::Acquire));
        if self.enter(owner)?.write_back_with(range)? != Some(pages) {
            return Ok(false);
        }
        self.end_write_back_for_sync(owner, size);
        Ok(!self.record.is_tracked())
    }

    /// Brings what is dirty of the blocks of `range` to the store, if this process can and may do
    /// that: [`BLOCKS_MOST`] of them at most. False if it is left to the node manager, wholly or in
    /// part.
    ///
    /// # Errors
    /// As of [`OpenFile::write_back_few`].
    pub(crate) fn write_back_range(&self, range: &Range<u64>) -> Result<bool, Errno> {
        let owner = self.session.owner();
        if !self.enter(owner)?.write_range_back(range)? {
            return Ok(false);
        }
        self.end_write_back(owner);
        Ok(true)
    }

    fn end_write_back(&self, owner: Owner) {
        crash::point("write-back.written");
        self.settle(owner);
        crash::point("write-back.settled");
    }

    /// Whether the file is one that processes may bring to the store themselves.
    fn is_left_to_callers(&self) -> bool {
        let store = self.record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let store = &self.session.segment.header().store[store];
        let emulation = &store.emulation;
        let is_real = emulation.write_bandwidth == 0 && emulation.latency_ns == 0;
        is_real
            && store.left_to_manager.load(Ordering::Relaxed) == 0
            && !crash::refused("write-back")
    }

    /// Gives the store's file, of which nothing is dirty, the times that programs see, and ends the
    /// state "ahead of the store", as the node manager does after a flush. Where others use the
    /// file, or its size is not the record's, that is left to the manager.
    fn settle(&self, owner: Owner) {
        let (record, segment) = (self.record, &self.session.segment);
        let Ok(beside) = self.enter_beside(owner) else { return };
        // Not to exclude others for nothing.
        if !record.has(FileFlags::METADATA_DIRTY)
            || segment.few_dirty(self.id, 0, &mut []).is_none()
        {
            return;
        }
        let Some(_exclusive) = segment.try_lock_exclusive(&beside, self.id, owner) else { return };
        let keeps =
            FileFlags::DIRECT | FileFlags::CONFLICT | FileFlags::FAILING | FileFlags::SHARED;
        if !record.has(FileFlags::METADATA_DIRTY)
            || record.flags.load(Ordering::Acquire).intersects(keeps)
            || record.is_tracked()
            || record.has_intent()
            || record.has_lengtheners()
            || segment.few_dirty(self.id, 0, &mut []).is_none()
        {
            return;
        }
        crash::point("write-back.settling");
        // Only the owner of a file may set its times; others see the time of the flush.
        let _ = store::set_modified(self.fd, record.mtime_ns.load(Ordering::Acquire));
        crash::point("write-back.timed");
        let Ok(stat) = store::stat(self.fd) else { return };
        if stat.size != record.size.load(Ordering::Acquire) {
            return;
        }
        record.note_store_file(stat.size, stat.modified_ns as u64, stat.changed_ns as u64);
        crash::point("write-back.noted");
        record.end_ahead();
    }
}

impl EnteredFile<'_> {
    /// [`OpenFile::write_back_few`] without the times.
    pub(crate) fn write_back_entered(&self) -> Result<bool, Errno> {
        self.write_back_with(&(0..0)).map(|written| written.is_some())
    }

    /// Whether this process may bring pages of the file to the store, as far as the file goes.
    fn may_write_back(&self) -> bool {
        let record = self.record;
        let others = FileFlags::DIRECT
            | FileFlags::FAILING
            | FileFlags::CONFLICT
            | FileFlags::LOGGED
            | FileFlags::SLOTTED
            // Which a write takes away where the process may not keep it.
            | FileFlags::SET_ID;
        let is_others = record.flags.load(Ordering::Acquire).intersects(others);
        // A flush past the page cache, which takes only files that no process has open, is seen in
        // the pages under writeback, or sees the description.
        fence(Ordering::SeqCst);
        let header = self.session.segment.header();
        // What is flushed of a staged file is compared with the store's.
        let is_others = is_others || record.is_staged();
        self.is_left_to_callers() && !is_others && !record.has_intent() && header.may_flush()
    }

    /// [`OpenFile::write_back_range`] without the times.
    fn write_range_back(&self, range: &Range<u64>) -> Result<bool, Errno> {
        if !self.may_write_back() {
            return Ok(false);
        }
        let bucket = self.session.segment.bucket_bytes() as u64;
        let (from, to) = (range.start / bucket, range.end.div_ceil(bucket));
        let mut blocks = [0; BLOCKS_MOST];
        let mut count = 0;
        for (place, block) in blocks.iter_mut().zip(from..to) {
            (*place, count) = (block, count + 1);
        }
        let write = |fd| self.write_blocks_back(fd, &blocks[..count], &(0..0));
        let written = self.through_writable(write).and_then(Result::ok).flatten();
        Ok(written.is_some())
    }

    /// [`EnteredFile::write_back_entered`]; how many of the pages that have bytes of `wanted` it
    /// has written.
    fn write_back_with(&self, wanted: &Range<u64>) -> Result<Option<u64>, Errno> {
        if !self.may_write_back() {
            return Ok(None);
        }
        let segment = &self.session.segment;
        let mut blocks = [0; BLOCKS_MOST];
        let pages = BYTES_MOST / segment.page_bytes();
        let Some(count) = segment.few_dirty(self.id, pages as u32, &mut blocks) else {
            return Ok(None);
        };
        if count == 0 {
            return Ok(Some(0));
        }
        let write = |fd| self.write_blocks_back(fd, &blocks[..count], wanted);
        // An error is the manager's to report, which tries again.
        Ok(self.through_writable(write).and_then(|written| written.ok().flatten()))
    }

    /// Writes the dirty pages of some blocks through `fd`; how many of those that have bytes of
    /// `wanted`. `None` where a block has moved, or is being flushed.
    fn write_blocks_back(
        &self,
        fd: RawFd,
        blocks: &[u64],
        wanted: &Range<u64>,
    ) -> Result<Option<u64>, Errno> {
        if !self.is_unchanged_by_others(fd)? {
            return Ok(None);
        }
        let segment = &self.session.segment;
        let bucket = segment.bucket_bytes() as u64;
        let (mut written, mut backoff) = (0, Backoff::default());
        for &block in blocks {
            let Some(place) = segment.entry(self.record, block) else { continue };
            // One that does not go on is the manager's to wait for, which serves others meanwhile.
            let held = segment.lock_block_within(place, self.owner, &mut backoff);
            let Some(held) = held.map_err(|_| Errno::AGAIN)? else { continue };
            let meta = held.meta();
            if !held.tier().is_ram() || meta.pages.writeback() != 0 {
                return Ok(None);
            }
            let dirty = meta.pages.dirty() & meta.valid.load(Ordering::Acquire);
            crash::point("write-back.begin");
            for run in PageSet(dirty).runs() {
                let pages = PageSet::span(run.clone()).0;
                self.write_run(fd, &held, block, run)?;
                crash::point("write-back.run");
                meta.pages.clear_dirty(pages);
            }
            let within = |at: u64| at.saturating_sub(block * bucket).min(bucket) as usize;
            let (start, end) = (within(wanted.start), within(wanted.end));
            if start < end {
                let wanted = PageSet::of_bytes(start..end, segment.page_bytes().trailing_zeros());
                written += u64::from((wanted.0 & dirty).count_ones());
            }
            if dirty != 0 && meta.pages.pending_under_lock() == 0 {
                segment.header().tier[TierId::RAM].clean.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Some(written))
    }

    /// Writes neighbouring pages of a locked block in RAM, up to the end of the file.
    fn write_run(
        &self,
        fd: RawFd,
        held: &BlockGuard<'_>,
        block: u64,
        run: Range<usize>,
    ) -> Result<(), Errno> {
        let (page, bucket) =
            (self.session.segment.page_bytes(), self.session.segment.bucket_bytes() as u64);
        let (mut at, end) = (run.start * page, run.end * page);
        let size = self.record.size.load(Ordering::Acquire);
        let end = end.min(size.saturating_sub(block * bucket).min(bucket) as usize);
        let syncs = fd == self.fd && self.may(DescriptionFlags::SYNC);
        while at < end {
            let offset = block * bucket + at as u64;
            if !self.session.is_within_limit(block * bucket + end as u64) {
                return Err(Errno::FBIG);
            }
            let from = self.session.ram(held.bucket()).after(at).first(end - at).readable();
            let write = if syncs { store::write_through } else { store::write };
            let written = write(fd, from, offset);
            // Before any page counts as clean.
            self.record.clear(FileFlags::SYNCED);
            let written = written?;
            if written == 0 {
                return Err(Errno::IO);
            }
            raise(&self.record.store_size, offset + written as u64);
            at += written;
        }
        Ok(())
    }

    /// Whether no other program has changed the store's file since it last agreed with the record,
    /// as far as that can be told: before the first write to it. The manager tells of a conflict.
    fn is_unchanged_by_others(&self, fd: RawFd) -> Result<bool, Errno> {
        let record = self.record;
        if record.has(FileFlags::CONFLICT_CHECKED) {
            return Ok(true);
        }
        let flags = record.flags.load(Ordering::Acquire);
        // In this order: a process that finds it checked may write, which is no change by others.
        let stat = store::stat(fd)?;
        let is_ours = FileFlags::STORE_WRITTEN | FileFlags::SCRATCH;
        if !flags.intersects(is_ours) && !record.is_shared() {
            let is_named = stat.links != 0 || flags.contains(FileFlags::UNLINKED);
            let is_same = stat.size == record.store_size.load(Ordering::Acquire)
                && stat.modified_ns as u64 == record.store_mtime_ns.load(Ordering::Acquire);
            if !is_named || !is_same {
                // Unless another thread was faster, and has written since.
                return Ok(record.has(FileFlags::CONFLICT_CHECKED));
            }
        }
        record.set(FileFlags::CONFLICT_CHECKED);
        crash::point("write-back.checked");
        Ok(true)
    }
}
