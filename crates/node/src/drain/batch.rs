//! One batch of a flush: dirty pages of a file become pages under writeback, then writes to its
//! store.

use crate::drain::flusher::{FlushScope, Flusher, WRITE_BYTES};
use crate::drain::verify::Written;
use crate::node::BlockRef;
use forebay_device::{Span, StoreFile, Target, Transfer};
use forebay_placement::TierId;
use forebay_placement::flush_order::{Extent, Limits, Write, order};
use forebay_pool::fence::Flushing;
use forebay_pool::free_map::USED;
use forebay_pool::layout::FileFlags;
use forebay_pool::moves::Place;
use forebay_pool::{FileId, PageSet, clock, crash};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Writes of at least so many bytes go past the page cache, where that can be: a device is waited
/// for then, but nothing is copied, and no memory is taken from programs.
const DIRECT_BYTES: u64 = 1 << 20;

/// Pages of a block whose flush has begun.
pub(super) struct InFlight {
    pub(super) dirty: BlockRef,
    pub(super) pages: u64,
    /// End of the file for this flush: nothing is written behind it.
    pub(super) limit: u64,
    /// Where the block's bytes are for the duration of the flush.
    pub(super) data: *const u8,
}

impl Flusher {
    /// Flushes some blocks of one file. `None` after an error: the rest would fail too.
    pub(super) fn flush_batch(
        &mut self,
        file: FileId,
        batch: &[BlockRef],
        which: &FlushScope,
    ) -> Option<u64> {
        let start = clock::realtime_ns();
        let born = self.node.segment.file(file).born_ns.load(Ordering::Acquire);
        // A file without a name is dropped with its last descriptor; until then only a want of
        // room, a sync or a drain sends it to the store.
        let draining = self.node.draining.load(Ordering::Acquire);
        if !self.may_begin(file, born) {
            return None;
        }
        let store = self.store_of(file);
        let kept = &self.node.descriptors;
        let stat = || kept.stat(&self.node.segment, file, &*self.node.stores[store]);
        if matches!(which, FlushScope::Due(_))
            && !draining
            && stat().is_some_and(|stat| stat.links == 0)
        {
            return None;
        }
        if matches!(which, FlushScope::Due(_)) {
            self.node.await_turn(self.dirty_bytes(batch));
        }
        let waits = matches!(which, FlushScope::File(_));
        if waits && !self.await_truncate(file) {
            self.was_held = true;
        }
        let mut begun: Vec<_> =
            batch.iter().filter_map(|&dirty| self.begin(dirty, waits)).collect();
        if begun.is_empty() {
            return Some(0);
        }
        // Only now: while the file has blocks in writeback no thread reconciles it, and closes the
        // descriptor that may be the only one of a file without a name.
        let held = match self.descriptor(file) {
            Ok(held) => held,
            Err(errno) => {
                // One that has lost its last name is dropped when it is certain that no process has
                // it open: that it cannot be written is no error to tell.
                let gone =
                    errno == Errno::STALE && self.node.segment.file(file).has(FileFlags::UNLINKED);
                match gone {
                    true => drop(self.postpone(file)),
                    false => self.failed(file, born, errno),
                }
                begun.iter().for_each(|block| self.end(block, false));
                return None;
            }
        };
        crate::drain::conflict::check(&self.node, file, held.file());
        // What cannot be read as it was written is kept, and is never given to the store; the rest
        // is.
        let unread = self.stage(&mut begun);
        let (mut writes, pieces) = self.writes(&begun, held.file(), store);
        // It may have waited for long: for its turn, and for what programs hold.
        if !self.may_begin(file, born) {
            begun.iter().for_each(|block| self.end(block, false));
            return None;
        }
        crash::point("flush.writing");
        self.write(file, store, &mut writes);
        let results = match self.stripe_of_staged(file) {
            Some(stripe) => self.verify(file, stripe, &held, &writes),
            None => writes.iter().map(Written::of).collect(),
        };
        let mut bytes = 0;
        let mut good = vec![true; begun.len()];
        let (mut error, mut differs) = (None, false);
        for ((write, result), blocks) in writes.iter().zip(results).zip(pieces) {
            match result {
                Written::Bytes(written) => {
                    bytes += written;
                    let end = write.offset() + written;
                    self.node.segment.file(file).store_size.fetch_max(end, Ordering::AcqRel);
                }
                Written::Again => {
                    differs = true;
                    good[blocks].fill(false);
                }
                Written::Failed(errno) => {
                    error = Some(errno);
                    good[blocks].fill(false);
                }
            }
        }
        // Before any page counts as clean, or as not written: a thread that sees that sees the
        // error.
        self.node.segment.file(file).clear(FileFlags::SYNCED);
        if let Some(errno) = error.or(unread.then_some(Errno::IO)) {
            self.failed(file, born, errno);
        }
        for (block, &good) in begun.iter().zip(&good) {
            crash::point("flush.ending");
            self.end(block, good);
            crash::point("flush.ended");
            self.record(block.dirty);
        }
        if self.node.segment.are_caps_pressed() {
            self.node.recount_unsafe();
        }
        if begun.iter().any(|block| self.node.segment.tier_of(block.dirty.bucket).is_ram()) {
            self.node.look_for_room();
            if self.node.segment.bound_in_ram() > 0 {
                // What was bound for a lower tier is clean now, and stays.
                self.node.segment.wake_bound();
            }
        }
        self.trace_flush(start, &begun, &good);
        // A sync comes back to it.
        self.was_held |= differs;
        match error {
            Some(_) => None,
            None if differs => None,
            None if unread => Some(bytes),
            None => {
                if bytes > 0 {
                    self.succeeded(file, waits);
                }
                Some(bytes)
            }
        }
    }

    /// Whether a flush may begin, see [`forebay_pool::fence`]. While that is not known it is tried
    /// again; a node that was given up keeps what it has.
    fn may_begin(&mut self, file: FileId, born: u64) -> bool {
        match self.node.flushing() {
            Flushing::Free => true,
            Flushing::Fenced => {
                self.was_held = true;
                false
            }
            Flushing::GivenUp => {
                self.failed(file, born, Errno::IO);
                false
            }
        }
    }

    /// Records what a flush has taken from each tier: a sync's takes a file's blocks wherever they
    /// lie.
    fn trace_flush(&self, start: u64, begun: &[InFlight], good: &[bool]) {
        let (segment, page) = (&self.node.segment, self.node.segment.page_bytes() as u64);
        for tier in self.node.tiers() {
            let of_tier = begun
                .iter()
                .zip(good)
                .filter(|(block, good)| **good && segment.tier_of(block.dirty.bucket) == tier);
            let bytes = of_tier.map(|(block, _)| {
                let start = block.dirty.block * segment.bucket_bytes() as u64;
                let runs = PageSet(block.pages).runs();
                let ends = runs.map(|run| (run.start as u64 * page, run.end as u64 * page));
                let limit = block.limit.saturating_sub(start);
                ends.map(|(from, to)| to.min(limit).saturating_sub(from)).sum::<u64>()
            });
            self.node.moved(start, "flush", Place::Tier(tier), Place::Store, bytes.sum());
        }
    }

    /// Moves a block's dirty pages to writeback.
    fn begin(&mut self, dirty: BlockRef, waits: bool) -> Option<InFlight> {
        let segment = &self.node.segment;
        let meta = segment.bucket(dirty.bucket)?;
        let _lock = if waits {
            let locked = segment.lock_bucket_within(meta, self.owner, &mut self.backoff);
            let Ok(lock) = locked else {
                self.was_held = true;
                return None;
            };
            // Another flusher's write is part of what a sync waits for.
            segment.wait_for_writeback(meta);
            lock
        } else {
            // Or a writer is at it; the next pass comes soon.
            meta.lock.guard(self.owner)?
        };
        let still = meta.state.load(Ordering::Acquire) == USED
            && meta.file.load(Ordering::Relaxed) == dirty.file
            && meta.block.load(Ordering::Relaxed) == dirty.block
            && segment.is_indexed(dirty.bucket)
            && meta.pages.writeback() == 0
            && dirty.block < i64::MAX as u64 / segment.bucket_bytes() as u64
            && !self.is_being_punched(dirty);
        let mut begun = None;
        if still {
            let record = segment.file(dirty.file);
            let size = record.size.load(Ordering::Acquire);
            let goal = record.intent.load(Ordering::Acquire).checked_sub(1);
            let limit = goal.map_or(size, |goal| goal.min(size));
            let dirtied = meta.pages.dirty() & meta.valid.load(Ordering::Acquire);
            // What a truncate under way takes stays dirty: the store may refuse it.
            let pages = match goal {
                Some(goal) if goal < size => dirtied & self.pages_before(goal, dirty.block),
                _ => dirtied,
            };
            if pages != 0 {
                meta.pages.begin_writeback(pages);
                let data = match segment.tier_of(dirty.bucket) {
                    TierId::RAM => segment.bucket_data(dirty.bucket).cast_const(),
                    _ => std::ptr::null(),
                };
                begun = Some(InFlight { dirty, pages, limit, data });
            }
        }
        begun
    }

    /// The pages of a block that lie before byte `end` of the file, with all their bytes.
    fn pages_before(&self, end: u64, block: u64) -> u64 {
        let bytes = end.saturating_sub(block * self.node.segment.bucket_bytes() as u64);
        let pages = bytes / self.node.segment.page_bytes() as u64;
        PageSet::span(0..pages.min(64) as usize).0
    }

    /// Whether a punch under way touches the block: it must not reach the store after the punch.
    fn is_being_punched(&self, dirty: BlockRef) -> bool {
        let bytes = self.node.segment.bucket_bytes() as u64;
        let (start, end) = (dirty.block * bytes, (dirty.block + 1) * bytes);
        let punched = self.node.segment.file(dirty.file).punched();
        punched.is_some_and(|punched| punched.start < end && start < punched.end)
    }

    pub(super) fn dirty_bytes(&self, batch: &[BlockRef]) -> u64 {
        let segment = &self.node.segment;
        let metas = batch.iter().filter_map(|dirty| segment.bucket(dirty.bucket));
        let pages: u32 = metas.map(|meta| meta.pages.dirty().count_ones()).sum();
        u64::from(pages) * segment.page_bytes() as u64
    }

    /// The writes for some blocks of one file in ascending order: neighbouring pages become one
    /// write, up to where the next stripes of the store begin. Beside each, the range of blocks
    /// that it covers.
    fn writes(
        &self,
        begun: &[InFlight],
        file: StoreFile,
        store: usize,
    ) -> (Vec<Transfer>, Vec<std::ops::Range<usize>>) {
        let page = self.node.segment.page_bytes();
        let bucket = self.node.segment.bucket_bytes() as u64;
        let mut extents = Vec::new();
        for (index, block) in begun.iter().enumerate() {
            for run in PageSet(block.pages).runs() {
                let offset = block.dirty.block * bucket + (run.start * page) as u64;
                let end = (offset + (run.len() * page) as u64).min(block.limit);
                if offset < end {
                    let bytes = end - offset;
                    extents.push(Extent {
                        file: block.dirty.file.raw(),
                        offset,
                        bytes,
                        id: index as u32,
                    });
                }
            }
        }
        let stripe = self.node.stripes.get(store).copied().unwrap_or(1);
        let one_stripe = begun.first().and_then(|block| self.stripe_of_staged(block.dirty.file));
        let limits = match one_stripe {
            Some(stripe) => Limits::one_stripe(stripe),
            None => Limits { most: WRITE_BYTES.max(stripe), stripe, within: 0 },
        };
        let mut writes: Vec<Write> = order(&mut extents, limits).collect();
        // The end of a file, which mostly is inside a page, must not keep the rest from going
        // direct. A staged file's is one request with the rest of its stripe.
        if one_stripe.is_none()
            && let Some(last) = writes.last_mut()
        {
            let odd = (last.offset + last.bytes) % page as u64;
            if odd != 0 && last.bytes >= DIRECT_BYTES + odd {
                last.bytes -= odd;
                let (offset, end) = (last.offset + last.bytes, last.extents.end);
                let tail = Write { offset, bytes: odd, extents: end - 1..end, ..*last };
                writes.push(tail);
            }
        }
        let transfer = |write: Write| {
            let of_write = &extents[write.extents];
            let end = write.offset + write.bytes;
            let buffers = of_write.iter().map(|extent| {
                let block = &begun[extent.id as usize];
                let from = extent.offset.max(write.offset);
                let length = (extent.offset + extent.bytes).min(end) - from;
                // SAFETY: inside the bucket.
                let base = unsafe { block.data.add((from - block.dirty.block * bucket) as usize) };
                Span { base: base.cast_mut(), bytes: length as usize }
            });
            let index = |extent: Option<&Extent>| extent.map_or(0, |extent| extent.id as usize);
            let blocks = index(of_write.first())..index(of_write.last()) + 1;
            // SAFETY: pages under writeback stay where they are until the flush has ended; staged
            // ones are this flusher's.
            (unsafe { Transfer::write(file, write.offset, buffers.collect()) }, blocks)
        };
        writes.into_iter().map(transfer).unzip()
    }

    /// Runs the writes of one file: large ones past the page cache if no program has the file open.
    fn write(&mut self, file: FileId, store: usize, writes: &mut [Transfer]) {
        let node = Arc::clone(&self.node);
        let turn = node.descriptors.turn(file);
        // Of a staged file the other worker may be at it, which goes past the page cache, too.
        let is_staged = self.stripe_of_staged(file).is_some();
        let take_turn = || match is_staged {
            true => Some(turn.write().unwrap_or_else(PoisonError::into_inner)),
            false => turn.try_write().ok(),
        };
        let alone = (writes.iter().any(is_for_direct) && !node.is_emulated(store))
            .then(take_turn)
            .flatten()
            // A program might write through the cache, or change what is on its way.
            .filter(|_| node.segment.descriptions().holders(file).next().is_none());
        let direct = alone.as_ref().and_then(|_| node.descriptors.direct(&node.segment, file));
        let client = &mut self.stores[store];
        let Some(direct) = direct else {
            drop(alone);
            let _shared = turn.read().unwrap_or_else(PoisonError::into_inner);
            return client.run(writes);
        };
        let through = writes.first().map_or(StoreFile::NONE.into(), Transfer::target);
        let direct = Target::from(direct.file());
        writes
            .iter_mut()
            .filter(|write| is_for_direct(write))
            .for_each(|write| write.redirect(direct));
        writes.chunk_by_mut(|a, b| a.target() == b.target()).for_each(|same| client.run(same));
        for write in writes.iter_mut().filter(|write| write.target() == direct) {
            write.redirect(through);
            // So says a device of larger blocks.
            if write.result() == Err(Errno::INVAL) {
                node.descriptors.refuse_direct(file);
                client.run(std::slice::from_mut(write));
            }
        }
    }
}

/// Whether a write can go past the page cache, and is worth it.
fn is_for_direct(write: &Transfer) -> bool {
    // Also of the page cache, beside whose pages the write goes.
    let unit = rustix::param::page_size().max(4096);
    let fits = |buffer: &Span| (buffer.base.addr() | buffer.bytes).is_multiple_of(unit);
    write.len() >= DIRECT_BYTES
        && write.offset().is_multiple_of(unit as u64)
        && write.buffers().iter().all(fits)
}
