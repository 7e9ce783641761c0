//! Moving blocks between tiers, down and up. No lock is held while bytes are copied: whether a
//! thread wrote meanwhile is seen from the bucket's version when the index is switched over.

use crate::node::{BlockRef, Node};
use forebay_device::{Batch, Span, Target, Transfer};
use forebay_placement::TierId;
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave;
use forebay_placement::promote::promoted;
use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::checksum::checksum_of;
use forebay_pool::free_map::{FILLING, USED};
use forebay_pool::layout::{PAGES_PER_BUCKET, SlotChecksums};
use forebay_pool::moves::Place;
use forebay_pool::pins::Pins;
use forebay_pool::{Entry, Owner, PageSet, clock, crash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that move at once.
pub(crate) const BATCH_BYTES: usize = leave::BATCH_BYTES as usize;

/// Slots that are taken back from small files where another block finds none.
pub(crate) const BACK_AT_ONCE: u32 = 16;

/// A block being copied to a bucket of another tier.
struct Copying {
    found: BlockRef,
    to: BucketId,
    version: u32,
    valid: u64,
    /// The sums of its pages, as they were copied.
    sums: Box<[u32; PAGES_PER_BUCKET as usize]>,
    /// Pages that are not what was written to the slot that they were read from.
    corrupt: u64,
    /// Its bytes, of a sparse bucket: those may lose their memory while no lock is held.
    kept: Option<Vec<u8>>,
}

/// A worker's means to move blocks.
pub(crate) struct Mover {
    node: Arc<Node>,
    owner: Owner,
    clients: Vec<Box<dyn Batch>>,
    /// Bytes on their way from one file tier to another.
    staging: Vec<u8>,
    /// Buckets that were taken as blocks left them, for those that they are exchanged for.
    given_up: Vec<BucketId>,
    /// What programs have pinned, as of the last block that went down.
    pins: Pins,
    hint: u32,
}

impl Mover {
    pub fn new(node: &Arc<Node>, owner: Owner) -> Mover {
        Mover {
            owner,
            clients: node.tiers().map(|tier| node.tier_client(tier)).collect(),
            staging: Vec::new(),
            given_up: Vec::new(),
            pins: Pins::default(),
            hint: 0,
            node: Arc::clone(node),
        }
    }

    /// Brings blocks `up` from tier `below` to tier `above` in exchange for as many others there,
    /// which go `down` to tier `to`: what is free above is no less before, after, or in between.
    /// Returns how many came up.
    pub fn exchange(
        &mut self,
        (up, below): (&[BlockRef], TierId),
        (down, above): (&[BlockRef], TierId),
        to: TierId,
    ) -> u32 {
        self.given_up.reserve(down.len());
        let keeps = |mover: &mut Mover| {
            let taken = mover.take(above);
            mover.given_up.extend(taken);
        };
        let gone = self.shift_with("demote", down, (above, to), keeps);
        crash::point("exchange.gone");
        let room = &up[..up.len().min(gone as usize)];
        let came = self.shift(room, below, above);
        crash::point("exchange.come");
        if !self.given_up.is_empty() {
            for bucket in self.given_up.drain(..) {
                self.node.segment.free_bucket(bucket);
            }
            if above.is_ram() {
                self.node.post_room();
            }
        }
        came
    }

    /// Moves blocks from tier `from` to tier `to`; returns how many arrived. Those that a thread
    /// wrote to meanwhile stay, as do those for which there is no room.
    pub fn shift(&mut self, blocks: &[BlockRef], from: TierId, to: TierId) -> u32 {
        self.shift_as(if to > from { "demote" } else { "promote" }, blocks, from, to)
    }

    /// The same, called something else in traces.
    pub fn shift_as(&mut self, what: &str, blocks: &[BlockRef], from: TierId, to: TierId) -> u32 {
        self.shift_with(what, blocks, (from, to), |_| {})
    }

    /// The same; `left` is called as soon as a block has left its bucket.
    fn shift_with(
        &mut self,
        what: &str,
        blocks: &[BlockRef],
        (from, to): (TierId, TierId),
        left: impl Fn(&mut Mover),
    ) -> u32 {
        let mut moved = 0;
        let bucket = self.node.segment.bucket_bytes();
        for batch in blocks.chunks((BATCH_BYTES / bucket).max(1)) {
            let start = clock::realtime_ns();
            let leaves_ram = from.is_ram() && to > from;
            let written = if leaves_ram { self.node.written() } else { 0 };
            let arrived = self.shift_batch(batch, from, to, &left);
            if leaves_ram {
                self.node.note_exposure(arrived, written);
            }
            let bytes = u64::from(arrived) * bucket as u64;
            self.node.moved(start, what, Place::Tier(from), Place::Tier(to), bytes);
            moved += arrived;
        }
        moved
    }

    fn shift_batch(
        &mut self,
        blocks: &[BlockRef],
        from: TierId,
        to: TierId,
        left: &impl Fn(&mut Mover),
    ) -> u32 {
        let node = Arc::clone(&self.node);
        let reading = from.is_ram().then(|| node.memory.reads());
        let mut copying = Vec::with_capacity(blocks.len());
        for &found in blocks {
            let small = self.small_pages(&found);
            let target = small.and_then(|pages| self.take_sparse(to, pages));
            let given_up = &mut self.given_up;
            let is_there = |bucket: &mut BucketId| node.segment.tier_of(*bucket) == to;
            let target = target.or_else(|| given_up.pop_if(is_there)).or_else(|| self.take(to));
            let Some(target) = target else { break };
            match self.snapshot(found, target).and_then(|copy| self.keep(copy)) {
                Some(copy) => copying.push(copy),
                None => self.node.segment.free_bucket(target),
            }
        }
        let good = self.copy(&mut copying, from, to);
        drop(reading);
        crash::point("move.copied");
        let mut moved = 0;
        for (copy, good) in copying.iter().zip(good) {
            if good && self.switch(copy, to) {
                moved += 1;
                left(self);
            } else {
                self.node.segment.free_bucket(copy.to);
            }
        }
        moved
    }

    fn take(&mut self, tier: TierId) -> Option<BucketId> {
        let segment = &self.node.segment;
        if !segment.is_sound(tier) {
            return None;
        }
        let mut take = || segment.take_slot(tier, self.owner, &mut self.hint);
        let taken = match take() {
            // What is lent to small files, and they do not use.
            None if !tier.is_ram() && segment.take_back_slots(tier, BACK_AT_ONCE) > 0 => take(),
            taken => taken,
        }?;
        crash::point("move.taken");
        segment.bucket(taken)?.state.store(FILLING, Ordering::Release);
        Some(taken)
    }

    /// The pages of a block that is all of a small file, as far as is known.
    fn small_pages(&self, found: &BlockRef) -> Option<u32> {
        let segment = &self.node.segment;
        let half = segment.bucket_bytes() as u64 / 2;
        let size = || segment.file(found.file).size.load(Ordering::Acquire);
        if found.block != 0 || !segment.header().has_file(found.file) || size() > half {
            return None;
        }
        let pages = PageSet(segment.bucket(found.bucket)?.valid.load(Ordering::Acquire)).bounds();
        (!pages.is_empty() && pages.end as u32 <= PAGES_PER_BUCKET / 2).then_some(pages.end as u32)
    }

    /// A sparse bucket of a tier with so many pages.
    fn take_sparse(&self, tier: TierId, pages: u32) -> Option<BucketId> {
        let segment = &self.node.segment;
        if !segment.is_sound(tier) {
            return None;
        }
        let taken = match tier {
            TierId::RAM => segment.take_sparse(self.owner, pages),
            _ => self.node.take_sparse_slot(tier, self.owner, pages),
        }?;
        crash::point("move.taken");
        let meta = segment.bucket(taken)?;
        meta.state.store(FILLING, Ordering::Release);
        let has_pages = {
            let lock = segment.lock_fresh_within(meta, self.owner, &mut Backoff::default());
            lock.is_ok_and(|_lock| segment.back_pages(taken, pages))
        };
        if !has_pages {
            segment.free_bucket(taken);
        }
        has_pages.then_some(taken)
    }

    fn snapshot(&self, found: BlockRef, to: BucketId) -> Option<Copying> {
        let meta = self.node.segment.bucket(found.bucket)?;
        let begin = meta.lock.read_begin()?;
        let valid = meta.valid.load(Ordering::Acquire);
        let version = meta.lock.version();
        // A small file may have grown since its pages were counted.
        let claimed = self.node.segment.claimed(to).map(|claimed| claimed.load(Ordering::Relaxed));
        let fits = claimed.is_none_or(|pages| PageSet(valid).bounds().end <= pages as usize);
        let is_whole = !meta.lock.read_retry(begin) && valid != 0 && fits;
        (is_whole && self.node.place(&found).is_some()).then(|| Copying {
            found,
            to,
            version,
            valid,
            sums: Box::new([0; 64]),
            corrupt: 0,
            kept: None,
        })
    }

    /// The same with the bytes of the block, if its bucket is a sparse one. `None` if a thread is
    /// at work in it.
    fn keep(&self, copy: Copying) -> Option<Copying> {
        let segment = &self.node.segment;
        if !segment.is_sparse(copy.found.bucket) {
            return Some(copy);
        }
        let meta = segment.bucket(copy.found.bucket)?;
        let _lock = meta.lock.guard(self.owner)?;
        if meta.lock.version() != copy.version || meta.valid.load(Ordering::Acquire) != copy.valid {
            return None;
        }
        let bytes = PageSet(copy.valid).bounds().end * segment.page_bytes();
        // SAFETY: inside the bucket, which is locked; the pages up to the last valid one have
        // memory.
        let content = unsafe {
            std::slice::from_raw_parts(segment.bucket_data(copy.found.bucket).cast_const(), bytes)
        };
        Some(Copying { kept: Some(content.to_vec()), ..copy })
    }

    /// Copies the blocks' bytes, without holding any lock. Returns which arrived.
    fn copy(&mut self, copying: &mut [Copying], from: TierId, to: TierId) -> Vec<bool> {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let (bucket, page) = (segment.bucket_bytes(), segment.page_bytes());
        let mut good = vec![true; copying.len()];
        if !from.is_ram() && !to.is_ram() {
            self.staging.resize((copying.len() * bucket).max(self.staging.len()), 0);
        }
        let staging = self.staging.as_mut_ptr();
        // Where in memory each block is on its way: in the RAM bucket that it leaves or enters.
        let memory = |index: usize, copy: &Copying| match (from, to) {
            _ if copy.kept.is_some() => {
                copy.kept.as_ref().map_or(std::ptr::null_mut(), |kept| kept.as_ptr().cast_mut())
            }
            (TierId::RAM, _) => segment.bucket_data(copy.found.bucket),
            (_, TierId::RAM) => segment.bucket_data(copy.to),
            // SAFETY: the staging buffer was just made large enough.
            _ => unsafe { staging.add(index * bucket) },
        };
        let first = |copy: &Copying| PageSet(copy.valid).bounds().start * page;
        let buffer = |(index, copy): (usize, &Copying)| {
            let end = PageSet(copy.valid).bounds().end * page;
            // SAFETY: inside the bucket or its copy.
            let base = unsafe { memory(index, copy).add(first(copy)) };
            vec![Span { base, bytes: end - first(copy) }]
        };
        let slot = |bucket: BucketId| Target::Slot(segment.slot_in_tier(bucket));
        let is_there = |tier: TierId| tier.is_ram() || node.devices[tier].is_some();
        if !is_there(from) || !is_there(to) {
            return vec![false; copying.len()];
        }
        if !from.is_ram() {
            for copy in copying.iter_mut() {
                let Some(sums) = segment.checksums(copy.found.bucket) else { continue };
                *copy.sums = sums.of(PageSet(copy.valid));
            }
            let mut reads: Vec<_> = (copying.iter().enumerate())
                // SAFETY: the memory is the staging buffer, or buckets that only this mover has.
                .map(|(i, copy)| unsafe {
                    Transfer::read(slot(copy.found.bucket), first(copy) as u64, buffer((i, copy)))
                })
                .collect();
            self.run(from, &mut reads, &mut good, &mut || {});
        }
        let sum_up = |copying: &mut [Copying], good: &[bool]| {
            for (index, copy) in copying.iter_mut().enumerate().filter(|&(index, _)| good[index]) {
                let from = segment.checksums(copy.found.bucket);
                for number in PageSet(copy.valid).pages() {
                    // SAFETY: inside the bucket or its copy; bytes that change meanwhile are
                    // noticed by the version.
                    let bytes = unsafe {
                        let at = memory(index, copy).add(number * page);
                        std::slice::from_raw_parts(at, page)
                    };
                    let sum = checksum_of(bytes);
                    let before = std::mem::replace(&mut copy.sums[number], sum);
                    let is_corrupt = |sums: &SlotChecksums| {
                        before != 0 && sum != before && sums.get(number) == before
                    };
                    copy.corrupt |= u64::from(from.is_some_and(is_corrupt)) << number;
                }
            }
        };
        if to.is_ram() {
            sum_up(copying, &good);
            return good;
        }
        let mut writes: Vec<_> = (copying.iter().enumerate())
            // SAFETY: a bucket's memory stays mapped whatever becomes of the bucket; bytes that
            // change meanwhile are noticed by the version.
            .map(|(i, copy)| unsafe {
                Transfer::write(slot(copy.to), first(copy) as u64, buffer((i, copy)))
            })
            .collect();
        let were_read = good.clone();
        self.run(to, &mut writes, &mut good, &mut || sum_up(copying, &were_read));
        good
    }

    /// Carries out the transfers, with `work` beside them; clears `good` of those that fail.
    fn run(
        &mut self,
        tier: TierId,
        transfers: &mut [Transfer],
        good: &mut [bool],
        work: &mut dyn FnMut(),
    ) {
        self.clients[tier].run_beside(transfers, work);
        for (good, transfer) in good.iter_mut().zip(transfers.iter()) {
            match transfer.result() {
                Ok(bytes) => *good &= bytes == transfer.len(),
                Err(errno) => {
                    let _ = self.node.note_device(tier, Err(errno));
                    *good = false;
                }
            }
        }
    }

    /// Lets the index name the new bucket instead of the old one, unless a thread wrote meanwhile.
    fn switch(&mut self, copy: &Copying, to: TierId) -> bool {
        let segment = &self.node.segment;
        let (Some(old), Some(new)) = (segment.bucket(copy.found.bucket), segment.bucket(copy.to))
        else {
            return false;
        };
        let Some(mut old_lock) = old.lock.guard(self.owner) else { return false };
        let place: Option<&AtomicU64> = self.node.place(&copy.found).filter(|_| {
            old.lock.version() == copy.version
                && old.state.load(Ordering::Acquire) == USED
                && old.pages.writeback() == 0
                && old.valid.load(Ordering::Acquire) == copy.valid
        });
        let Some(place) = place else { return false };
        if to > segment.tier_of(copy.found.bucket) {
            let slowest = self.pins.limit_now(segment, copy.found.file, copy.found.block);
            if slowest.is_some_and(|slowest| to > slowest) {
                return false;
            }
        }
        let pages = match segment.claimed(copy.to) {
            Some(claimed) => claimed.load(Ordering::Relaxed),
            None => PAGES_PER_BUCKET,
        };
        if !segment.claim_quota(segment.file(copy.found.file), to, pages) {
            return false;
        }
        // What is corrupt stays: the store has it, or the program's bytes are lost.
        let dirty = old.pages.dirty();
        let lost = copy.corrupt & dirty;
        if lost != 0 {
            if let Some(sums) = segment.checksums(copy.found.bucket) {
                self.node.report_corrupt(old, sums, lost, false);
            }
            return false;
        }
        let valid = copy.valid & !copy.corrupt;
        // An entry begins to name a bucket while that is locked: a reader that found the block in
        // the same bucket long ago must not accept what it saw of the filling.
        let locked = segment.lock_fresh_within(new, self.owner, &mut Backoff::default());
        let Ok(mut new_lock) = locked else { return false };
        new.file.store(copy.found.file, Ordering::Relaxed);
        new.block.store(copy.found.block, Ordering::Relaxed);
        new.valid.store(valid, Ordering::Relaxed);
        // A count under way may have looked at this bucket, and not yet at the other.
        segment.note_copied(copy.found.file, dirty);
        new.pages.reset(dirty);
        new.bound_for.store(0, Ordering::Relaxed);
        new.written.store(old.written.load(Ordering::Relaxed), Ordering::Relaxed);
        new.dirtied.store(old.dirtied.load(Ordering::Relaxed), Ordering::Relaxed);
        let access_stats = AccessStats(old.access_stats.load(Ordering::Relaxed));
        let now = self.node.now();
        let up = to < segment.tier_of(copy.found.bucket);
        let access_stats = if up { promoted(access_stats, now) } else { access_stats.stamped(now) };
        new.access_stats.store(access_stats.0, Ordering::Relaxed);
        new.state.store(USED, Ordering::Release);
        if let Some(sums) = segment.checksums(copy.to) {
            PageSet(valid).pages().for_each(|page| sums.set(page, copy.sums[page]));
            segment.record_slot(&*self.node, copy.to);
        }
        crash::point("move.initialized");
        // The new record first: killed in between, the block is found once at least.
        segment.void_slot(&*self.node, copy.found.bucket);
        segment.file(copy.found.file).note_tier(to);
        place.store(Entry::resident(to, copy.to).encode(), Ordering::Release);
        crash::point("move.switched");
        segment.free_bucket(copy.found.bucket);
        crash::point("move.freed");
        old_lock.changed();
        new_lock.changed();
        true
    }
}
