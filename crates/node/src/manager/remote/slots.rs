//! Blocks of file tiers that other nodes want. A thread for each tier reads them into the memory
//! that peers pull from, as that may take what a device takes. Nothing is held meanwhile: that they
//! are still what the file has is seen afterwards, from the bucket's version and the pages' sums.

use super::{Parked, Remote, group_file, is_read_by_several, is_whole};
use crate::node::{Node, QUEUE_DEPTH};
use forebay_device::{Batch, Span, Target, Transfer};
use forebay_pool::layout::{PAGES_PER_BUCKET, TierId};
use forebay_pool::seq_lock::ReadStamp;
use forebay_pool::{BucketId, FileId, PageSet, crash};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};

/// Where a block lay when it was looked for, whole and as other nodes may have it.
pub(super) struct Lying {
    id: FileId,
    /// Of the file's record.
    generation: u32,
    /// Of the index.
    word: u64,
    bucket: BucketId,
    begin: ReadStamp,
    bytes: usize,
    pages: PageSet,
    /// The sums of its pages.
    sums: Box<[u32; PAGES_PER_BUCKET as usize]>,
}

impl Lying {
    /// Of a block of so many bytes, which the index names by `word`. `None` if it cannot be read
    /// there, or is known to be corrupt.
    pub fn of(
        node: &Node,
        (id, generation): (FileId, u32),
        (word, bucket, begin): (u64, BucketId, ReadStamp),
        bytes: usize,
    ) -> Option<Lying> {
        let segment = &node.segment;
        let tier = segment.tier_of(bucket);
        let pages = PageSet::span(0..bytes.div_ceil(segment.page_bytes()));
        let sums = segment.checksums(bucket)?;
        let is_sound = segment.is_sound(tier) && node.devices[tier].is_some();
        (is_sound && sums.corrupt(pages.0) == 0).then(|| {
            let sums = Box::new(sums.of(pages));
            Lying { id, generation, word, bucket, begin, bytes, pages, sums }
        })
    }
}

/// What became of it while it was read.
enum Checked {
    /// It is what the file has.
    Right,
    /// It lies somewhere else now, or is another one.
    Moved,
    /// The device has not kept it.
    Corrupt,
}

/// A block to be read.
pub(super) struct SlotRead {
    number: u64,
    /// Of the tier.
    from: u32,
    bytes: usize,
    /// The place in memory.
    to: usize,
}

/// The thread "remote" and the name of a tier: see the module.
pub(crate) struct SlotReader {
    node: Arc<Node>,
    tier: TierId,
    reads: Receiver<SlotRead>,
    client: Box<dyn Batch>,
}

impl SlotReader {
    pub(super) fn new(node: &Arc<Node>, tier: TierId) -> ((TierId, Sender<SlotRead>), SlotReader) {
        let (asked, reads) = mpsc::channel();
        let client = node.tier_client(tier);
        ((tier, asked), SlotReader { node: Arc::clone(node), tier, reads, client })
    }

    /// Whose slots it reads.
    pub fn tier(&self) -> TierId {
        self.tier
    }

    /// Until the thread "remote" ends.
    pub fn run(mut self) {
        while let Ok(first) = self.reads.recv() {
            let more = self.reads.try_iter().take(QUEUE_DEPTH as usize - 1);
            let reads: Vec<SlotRead> = [first].into_iter().chain(more).collect();
            self.read(&reads);
        }
    }

    fn read(&mut self, reads: &[SlotRead]) {
        let Some(remote) = &self.node.group.remote else { return };
        let transfer = |read: &SlotRead| {
            let span = Span { base: remote.staging.at(read.to), bytes: read.bytes };
            // SAFETY: the place is this read's until it is told that it has ended.
            unsafe { Transfer::read(Target::Slot(read.from), 0, vec![span]) }
        };
        let mut transfers: Vec<Transfer> = reads.iter().map(transfer).collect();
        crash::point("remote.slot-reading");
        self.client.run(&mut transfers);
        crash::point("remote.slot-read");
        for (read, transfer) in reads.iter().zip(&transfers) {
            if let Err(errno) = transfer.result() {
                let _ = self.node.note_device(self.tier, Err(errno));
            }
            remote.slot_read(read.number, transfer.result() == Ok(transfer.len()));
        }
    }
}

impl Remote {
    /// Has a block be read that is to be given away from this slot.
    pub(super) fn read_slot(&mut self, parked: Parked, lying: Lying, slot: usize) {
        let number = self.new_number();
        let segment = &self.node.segment;
        let read = SlotRead {
            number,
            from: segment.slot_in_tier(lying.bucket),
            bytes: lying.pages.bounds().end * segment.page_bytes(),
            to: slot,
        };
        let reader = self.slot_readers.get(&segment.tier_of(lying.bucket));
        if reader.is_some_and(|reader| reader.send(read).is_ok()) {
            self.slot_reads.insert(number, (parked, lying, slot));
        } else {
            self.free[1].push(slot);
            self.refuse(&parked);
        }
    }

    /// A read has ended, as it should or not: gives the block away if it still is what the file
    /// has.
    pub(super) fn slot_read(&mut self, number: u64, is_read: bool) {
        let Some((parked, lying, slot)) = self.slot_reads.remove(&number) else { return };
        let in_time = is_read && parked.is_awaited();
        match if in_time { self.check(&parked, &lying, slot) } else { Checked::Corrupt } {
            Checked::Right => {
                if self.give(&parked, slot, lying.bytes)
                    && let Some(post) = self.post()
                {
                    post.counts.given_from_tiers.fetch_add(1, Ordering::Relaxed);
                }
            }
            Checked::Moved => {
                self.free[1].push(slot);
                self.serve(parked);
            }
            Checked::Corrupt => {
                self.free[1].push(slot);
                self.refuse(&parked);
            }
        }
    }

    /// Whether what was read is the block: it was not moved, written, or given back meanwhile, and
    /// the sums of its pages are right.
    fn check(&self, parked: &Parked, lying: &Lying, slot: usize) -> Checked {
        let segment = &self.node.segment;
        let Some(_inside) = self.enter(segment, lying.id) else { return Checked::Moved };
        let record = segment.file(lying.id);
        let entry = segment.entry(record, parked.block);
        let (Some(meta), Some(sums)) =
            (segment.bucket(lying.bucket), segment.checksums(lying.bucket))
        else {
            return Checked::Moved;
        };
        let is_same = is_read_by_several(segment, lying.id, parked.block)
            && group_file(record) == parked.file
            && record.generation.load(Ordering::Acquire) == lying.generation
            && entry.is_some_and(|entry| entry.load(Ordering::Acquire) == lying.word)
            && is_whole(record, meta, lying.pages)
            && !meta.lock.read_retry(lying.begin);
        if !is_same {
            return Checked::Moved;
        }
        let at = self.staging.at(slot).cast_const();
        // SAFETY: the slot is this thread's again, and as long as a bucket.
        let block = unsafe { std::slice::from_raw_parts(at, segment.bucket_bytes()) };
        match sums.corrupt_pages(lying.pages, &lying.sums, block).is_empty() {
            true => Checked::Right,
            false => Checked::Corrupt,
        }
    }
}
