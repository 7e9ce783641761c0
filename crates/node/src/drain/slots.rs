//! Blocks on file tiers, read to memory to be flushed or logged. A page that is not what was
//! written is neither.

use crate::drain::batch::InFlight;
use crate::drain::flusher::Flusher;
use crate::node::Node;
use forebay_device::{Batch, Span, Target, Transfer};
use forebay_placement::TierId;
use forebay_pool::BucketId;
use forebay_pool::PageSet;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::layout::PAGES_PER_BUCKET;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is asked of a tier at once: a program's own read waits behind no more than that, and a
/// device with 100 us and 3 GB/s is kept busy by a third of it.
const TOGETHER_BYTES: usize = 1 << 20;

impl Flusher {
    /// Reads blocks that lie on file tiers to memory. Pages that cannot be read, or are not what
    /// was written, are dirty again and no part of this flush. Returns whether there were any.
    pub(super) fn stage(&mut self, begun: &mut [InFlight]) -> bool {
        let node = Arc::clone(&self.node);
        let bucket = node.segment.bucket_bytes();
        let page = node.segment.page_bytes();
        let on_file = begun.iter().filter(|block| block.data.is_null()).count();
        if self.staging.len() < on_file * bucket {
            self.staging.resize(on_file * bucket, 0);
        }
        let mut reads: HashMap<TierId, (Vec<Transfer>, Vec<usize>)> = HashMap::new();
        let mut before = vec![[0u32; PAGES_PER_BUCKET as usize]; begun.len()];
        let mut failed = false;
        let mut staging = std::mem::take(&mut self.staging);
        let mut places = staging.chunks_mut(bucket);
        for (index, block) in begun.iter_mut().enumerate() {
            let Some(sums) = node.segment.checksums(block.dirty.bucket) else { continue };
            let Some(place) = places.next() else { break };
            block.data = place.as_ptr();
            let tier = node.segment.tier_of(block.dirty.bucket);
            if node.devices[tier].is_none() {
                failed = true;
                self.give_back(block, block.pages);
                continue;
            }
            let pages = PageSet(block.pages);
            before[index] = sums.of(pages);
            let Range { start: first, end } = pages.bounds();
            let range = &mut place[first * page..end * page];
            let buffer = Span::of(range);
            let slot = Target::Slot(node.segment.slot_in_tier(block.dirty.bucket));
            // SAFETY: the staging buffer outlives the run below, and no other thread has it.
            let read = unsafe { Transfer::read(slot, (first * page) as u64, vec![buffer]) };
            let (reads, blocks) = reads.entry(tier).or_default();
            reads.push(read);
            blocks.push(index);
        }
        self.staging = staging;
        for (tier, (mut reads, blocks)) in reads {
            for together in reads.chunks_mut((TOGETHER_BYTES / bucket).max(1)) {
                self.tiers[tier].run(together);
            }
            for (read, index) in reads.iter().zip(blocks) {
                let block = &mut begun[index];
                let result = match read.result() {
                    Ok(got) if got == read.len() => Ok(()),
                    Ok(_) => Err(Errno::IO),
                    Err(errno) => Err(errno),
                };
                let wrong = match node.note_device(tier, result) {
                    Ok(()) => self.corrupt(block, &before[index]),
                    Err(_) => self.unreadable(block),
                };
                if wrong != 0 {
                    failed = true;
                    self.give_back(block, wrong);
                }
            }
        }
        failed
    }

    /// Pages of a staged block that are not what was written.
    fn corrupt(&self, block: &InFlight, before: &[u32; PAGES_PER_BUCKET as usize]) -> u64 {
        let Some(sums) = self.node.segment.checksums(block.dirty.bucket) else { return 0 };
        // SAFETY: a block's part of the staging buffer, which is this flusher's.
        let bytes =
            unsafe { std::slice::from_raw_parts(block.data, self.node.segment.bucket_bytes()) };
        let wrong = sums.corrupt_pages(PageSet(block.pages), before, bytes).0;
        let known = sums.corrupt(block.pages & !wrong);
        if known != 0 {
            // It could not be read before, and can be now.
            sums.corrupt.fetch_and(!known, Ordering::AcqRel);
        }
        wrong
    }

    /// Pages of a block that cannot be read one by one either; the others are then staged.
    fn unreadable(&self, block: &InFlight) -> u64 {
        let page = self.node.segment.page_bytes();
        let Some(sums) = self.node.segment.checksums(block.dirty.bucket) else {
            return block.pages;
        };
        let wrong = |number: usize| {
            // SAFETY: inside the staging buffer, which is this flusher's.
            let to = unsafe {
                let at = block.data.cast_mut().add(number * page);
                std::slice::from_raw_parts_mut(at, page)
            };
            let bucket = block.dirty.bucket;
            sums.read_page(number, to, |to| self.node.read_slot(bucket, number * page, to))
                != Ok(true)
        };
        PageSet(block.pages).filter(wrong).0
    }

    /// Takes pages that are not what was written out of a flush, and names them.
    fn give_back(&self, block: &mut InFlight, pages: u64) {
        let segment = &self.node.segment;
        let bucket = block.dirty.bucket;
        if let (Some(meta), Some(sums)) = (segment.bucket(bucket), segment.checksums(bucket)) {
            self.node.report_corrupt(meta, sums, pages, true);
            meta.pages.end_writeback(pages, true);
        }
        block.pages &= !pages;
    }
}

/// Reads these pages of a slot, whose lock the caller holds, to where they are in a bucket, and
/// compares them with their sums.
pub(super) fn read_slot<'s>(
    node: &Node,
    bucket: BucketId,
    pages: u64,
    staging: &'s mut Vec<u8>,
    tiers: &mut [Box<dyn Batch>],
) -> Result<&'s [u8], Errno> {
    let segment = &node.segment;
    let (bytes, page, tier) =
        (segment.bucket_bytes(), segment.page_bytes(), segment.tier_of(bucket));
    if staging.len() < bytes {
        staging.resize(bytes, 0);
    }
    let pages = PageSet(pages);
    let Range { start: first, end } = pages.bounds();
    let range = &mut staging[first * page..end * page];
    let buffer = Span::of(range);
    if node.devices[tier].is_none() {
        return Err(Errno::STALE);
    }
    let slot = Target::Slot(segment.slot_in_tier(bucket));
    // SAFETY: the staging buffer outlives the run, and no other thread has it.
    let mut reads = [unsafe { Transfer::read(slot, (first * page) as u64, vec![buffer]) }];
    tiers[tier].run(&mut reads);
    let got = match reads[0].result() {
        Ok(got) if got == reads[0].len() => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    };
    node.note_device(tier, got)?;
    let (Some(meta), Some(sums)) = (segment.bucket(bucket), segment.checksums(bucket)) else {
        return Err(Errno::STALE);
    };
    let wrong = sums.corrupt_pages(pages, &sums.of(pages), &staging[..bytes]);
    if !wrong.is_empty() {
        node.report_corrupt(meta, sums, wrong.0, true);
        return Err(Errno::IO);
    }
    Ok(&staging[..bytes])
}
