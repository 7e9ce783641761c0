//! Memory and slots for small files: how much of a tier is lent to sparse buckets. The numbers are
//! those of docs/design/small-files.md.

use crate::devices::power_loss::PowerLossBatch;
use crate::node::Node;
use forebay_device::{Batch, Errno};
use forebay_placement::TierId;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::layout::PAGES_PER_BUCKET;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::sparse::SparseUse;
use forebay_pool::{BucketId, Owner, Segment, SlotRecord, crash};
use forebay_posix::store_file;
use rustix::fd::{AsFd, OwnedFd};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Looks in a row at which much was lent for nothing, before it is taken back: two seconds.
const CALM_LOOKS: u32 = 4;

/// The pages of sparse slots are counted at one of so many looks while nothing is short.
const COUNT_LOOKS: u32 = 8;

/// Slots of a file tier that are lent at a time at least, and stay lent while others are not
/// short.
const LEAST_SLOTS: u32 = 4;

/// The part of the tier that is lent while small files need no more.
const LEAST_SHARE: u32 = 32;

/// What is to leave sparse buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// Pages that are missing.
    pub pages: u32,
    /// Pages in use, and the buckets that have them.
    used: u32,
    buckets: u32,
    /// Bytes of a page.
    page: u64,
}

impl Wanted {
    /// How many blocks shall leave: as many as have the missing pages, or, where the tier as a
    /// whole is short of `bytes` of its `capacity`, what is missing in proportion.
    pub fn blocks(&self, bytes: u64, capacity: u64) -> usize {
        let share = u64::from(self.used) * self.page;
        let part = (u128::from(bytes) * u128::from(share) / u128::from(capacity.max(1))) as u64;
        let pages = u64::from(self.pages).max(part.div_ceil(self.page.max(1)));
        let blocks = (pages * u64::from(self.buckets)).div_ceil(u64::from(self.used.max(1)));
        blocks.min(u64::from(self.buckets)) as usize
    }
}

impl Wanted {
    /// What `pages` more take from what is found in sparse buckets.
    fn of(segment: &Segment, found: SparseUse, pages: u32) -> Wanted {
        Wanted {
            pages: if found.buckets > 0 { pages } else { 0 },
            used: found.claimed - found.idle,
            buckets: found.buckets,
            page: segment.page_bytes() as u64,
        }
    }
}

/// The pages that are lent when nothing else is to be had for them: a thirty-second of the tier.
fn least(segment: &Segment) -> u32 {
    (segment.ram_buckets() / LEAST_SHARE).max(segment.piece_buckets()) * PAGES_PER_BUCKET
}

/// Lends memory of the RAM tier to sparse buckets, and takes it back.
#[derive(Default)]
pub(super) struct Lender {
    calm: u32,
}

impl Lender {
    /// Sees to it that there are pages for small files, and that no more is lent than they are
    /// likely to use. `asked`: a thread waits for room. Says what shall leave.
    pub fn tend(&mut self, node: &Node, owner: Owner, asked: bool) -> Wanted {
        let (segment, header) = (&node.segment, node.header());
        if header.tier[TierId::RAM].sparse.buckets == 0 {
            return Wanted::default();
        }
        let least = least(segment);
        let limit = || header.tier[TierId::RAM].sparse.limit.load(Ordering::Acquire);
        let low = |limit: u32| (limit / 4).max(least / 2);
        let ram = &header.tier[TierId::RAM];
        let is_short = segment.free_in(TierId::RAM) < ram.low.load(Ordering::Relaxed);
        let found = segment.count_sparse(TierId::RAM);
        let mut made = 0;
        if found.idle > 0 && (!asked || is_short || segment.sparse_left(TierId::RAM) < low(limit()))
        {
            made += segment.trim_sparse(owner, u32::MAX);
        }
        if segment.sparse_left(TierId::RAM) < low(limit()) {
            // Half of the low watermark is left to other writers.
            let spare =
                segment.free_in(TierId::RAM).saturating_sub(ram.low.load(Ordering::Relaxed) / 2);
            let wanted = (limit() / 2).max(least) / PAGES_PER_BUCKET;
            made += node.memory.lend(segment, node.pool_file.as_fd(), wanted.min(spare));
        } else {
            made += self.take_back(node, least, asked, is_short);
        }
        let low = low(limit());
        header.tier[TierId::RAM].sparse.low.store(low, Ordering::Relaxed);
        if made > 0 {
            node.post_room();
        }
        let left = segment.sparse_left(TierId::RAM);
        Wanted::of(segment, found, if left < low { 2 * low - left } else { 0 })
    }

    /// Takes back what is lent for nothing: at once if buckets of the usual kind are short, else
    /// when that has been so for a while. Returns of how many
    /// buckets.
    fn take_back(&mut self, node: &Node, least: u32, asked: bool, is_short: bool) -> u32 {
        let (segment, header) = (&node.segment, node.header());
        let (left, limit) = (
            segment.sparse_left(TierId::RAM),
            header.tier[TierId::RAM].sparse.limit.load(Ordering::Acquire),
        );
        let is_awaited = asked && segment.free_in(TierId::RAM) == 0;
        // So much is left that less would not be lent again at once.
        let kept = if is_awaited { 0 } else { (limit / 4 + limit / 2).max(least) };
        let spare = left.saturating_sub(kept) / PAGES_PER_BUCKET;
        self.calm = if spare == 0 || asked { 0 } else { self.calm + 1 };
        if spare == 0 || !is_short && !is_awaited && self.calm < CALM_LOOKS {
            return 0;
        }
        node.memory.take_back_lent(segment, spare)
    }
}

/// Reads from byte `at` of a file, as far as it reaches.
fn read_upto(file: &OwnedFd, mut bytes: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pread(file, &mut *bytes, at)? {
            0 => break,
            count => {
                bytes = &mut bytes[count..];
                at += count as u64;
            }
        }
    }
    Ok(())
}

/// How many more slots of a file tier are lent at a time: a quarter of those that are.
fn more_of(segment: &Segment, tier: TierId) -> u32 {
    let limit = segment.header().tier[tier].sparse.limit.load(Ordering::Relaxed);
    (limit / 4 / PAGES_PER_BUCKET).max(LEAST_SLOTS)
}

impl Node {
    /// A sparse slot of a file tier for a block of so many pages, for which room is lent if none is
    /// left.
    pub(super) fn take_sparse_slot(
        &self,
        tier: TierId,
        owner: Owner,
        pages: u32,
    ) -> Option<BucketId> {
        let segment = &self.segment;
        if segment.header().tier[tier].sparse.buckets == 0 {
            return None;
        }
        segment.take_sparse_slot(tier, owner, pages).or_else(|| {
            let has_room = segment.sparse_left(tier) >= pages
                || self.trim_slots(tier) >= pages
                || self.lend_slots(tier, owner, more_of(segment, tier)) > 0;
            let has_numbers =
                segment.free_sparse(tier).available() > 0 || segment.ready_more_slots(tier);
            let is_worth_it = has_room && has_numbers;
            is_worth_it.then(|| segment.take_sparse_slot(tier, owner, pages)).flatten()
        })
    }

    /// Lends the room of up to `most` free slots of a file tier to its sparse ones. Returns of how
    /// many.
    pub(super) fn lend_slots(&self, tier: TierId, owner: Owner, most: u32) -> u32 {
        let segment = &self.segment;
        if !self.may_discard(tier) || !segment.is_sound(tier) {
            return 0;
        }
        let retired = segment.retire_slots(tier, most, owner);
        let number = |&slot: &BucketId| segment.slot_in_tier(slot);
        let runs: Vec<_> = retired.iter().map(|slot| number(slot)..number(slot) + 1).collect();
        let lent = self.discard(tier, &runs);
        crash::point("lend.slot-discarded");
        for (number, &slot) in retired.iter().enumerate() {
            if number < lent { segment.lend_slot(slot) } else { segment.free_bucket(slot) }
        }
        lent as u32
    }

    /// [`Segment::trim_slots`], where there is anything to give up.
    fn trim_slots(&self, tier: TierId) -> u32 {
        match self.header().tier[tier].sparse.idle.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.segment.trim_slots(tier, |runs| self.discard(tier, runs)),
        }
    }

    /// Takes the room of runs of free slots, which the caller has taken, from the tier's file.
    /// Returns of how many runs.
    fn discard(&self, tier: TierId, runs: &[Range<u32>]) -> usize {
        let Some(device) = &self.devices[tier] else { return 0 };
        if self.void_for_good(tier, runs).is_err() {
            return 0;
        }
        crash::point("sparse.table-synced");
        let is_gone = |slots: &Range<u32>| match device.discard(slots.clone()) {
            Err(Errno::OPNOTSUPP) => {
                self.keeps_slots.fetch_or(1 << tier.index(), Ordering::Relaxed);
                false
            }
            discarded => discarded.is_ok(),
        };
        runs.iter().take_while(|&slots| is_gone(slots)).count()
    }

    /// Before the room of runs of slots that nothing uses is taken: sees to it that their records
    /// lead to nothing, durably. Else these could lead to zeros after a loss of power.
    fn void_for_good(&self, tier: TierId, runs: &[Range<u32>]) -> Result<(), Errno> {
        let Some(index) = &self.indexes[tier] else { return Ok(()) };
        let first = self.header().tier[tier].first_bucket;
        let (mut bytes, mut have_records) = (Vec::new(), false);
        for run in runs {
            bytes.clear();
            bytes.resize(run.len() * RECORD_BYTES, 0);
            let start = self.segment.record_offset(BucketId::from_raw(first + run.start));
            let read = read_upto(index, &mut bytes, start);
            self.note_device(tier, read)?;
            let records = bytes.chunks_exact(RECORD_BYTES).map(SlotRecord::decode);
            for (slot, record) in BucketId::range(first + run.start, first + run.end).zip(records) {
                have_records |= record != Ok(None);
                let is_void =
                    record.is_ok_and(|record| record.is_none_or(|found| found.dirty == 0));
                if !is_void {
                    // Of a flush that has ended a moment ago, or that did not get the lock for it.
                    let void = SlotRecord::void(self.segment.next_sequence()).encode();
                    self.note_device(tier, self.write_record(slot, &void))?;
                }
            }
        }
        match have_records && !crash::planted("punch-unsynced") {
            true => self.note_device(tier, PowerLossBatch::plain().sync(store_file(index))),
            false => Ok(()),
        }
    }

    /// Whether a tier's device takes room back, as far as is known.
    fn may_discard(&self, tier: TierId) -> bool {
        self.keeps_slots.load(Ordering::Relaxed) >> tier.index() & 1 == 0
    }
}

/// Keeps as much of a file tier lent to sparse slots as small files use. What the node manager
/// itself moves there it lends when it needs it; programs are ahead of it.
pub(super) struct SlotLender {
    missed: u32,
    calm: u32,
    looks: u32,
}

impl SlotLender {
    /// Of a file tier with something lent, so that the first small files of programs need not wait
    /// for that.
    pub fn new(node: &Node, tier: TierId, owner: Owner) -> SlotLender {
        let sparse = &node.header().tier[tier].sparse;
        let missed = sparse.missed.load(Ordering::Relaxed);
        if !tier.is_ram() && sparse.buckets > 0 {
            if sparse.limit.load(Ordering::Relaxed) == 0 {
                node.lend_slots(tier, owner, LEAST_SLOTS);
            }
            if sparse.ready.load(Ordering::Relaxed) == 0 {
                node.segment.ready_more_slots(tier);
            }
            sparse.low.store(LEAST_SLOTS * PAGES_PER_BUCKET / 2, Ordering::Relaxed);
        }
        SlotLender { missed, calm: 0, looks: 0 }
    }

    /// Gives up what is idle, lends more where little is left, or programs have missed pages, and
    /// takes back what is unused: at once if other slots are short, else when that has been so for
    /// a while. Says what shall leave.
    pub fn tend(&mut self, node: &Node, tier: TierId, owner: Owner) -> Wanted {
        let (segment, header) = (&node.segment, node.header());
        let of_tier = &header.tier[tier];
        let sparse = &of_tier.sparse;
        let missed = sparse.missed.load(Ordering::Relaxed);
        let misses = missed != std::mem::replace(&mut self.missed, missed);
        if sparse.buckets == 0 {
            return Wanted::default();
        }
        let mut made = node.trim_slots(tier);
        let limit = sparse.limit.load(Ordering::Relaxed);
        let low = (limit / 4).max(LEAST_SLOTS * PAGES_PER_BUCKET / 2);
        sparse.low.store(low, Ordering::Relaxed);
        let is_short = segment.free_in(tier) < of_tier.low.load(Ordering::Relaxed);
        let left = segment.sparse_left(tier);
        if misses || left < low && !is_short {
            made += node.lend_slots(tier, owner, more_of(segment, tier));
            if segment.free_sparse(tier).available() < low {
                segment.ready_more_slots(tier);
            }
            self.calm = 0;
        } else {
            let kept =
                if is_short { 0 } else { (limit / 4 * 3).max(LEAST_SLOTS * PAGES_PER_BUCKET) };
            let spare = left.saturating_sub(kept) / PAGES_PER_BUCKET;
            self.calm = if spare == 0 { 0 } else { self.calm + 1 };
            if spare > 0 && (is_short || self.calm >= CALM_LOOKS) {
                segment.take_back_slots(tier, spare);
            }
        }
        if made > 0 {
            node.post_room();
        }
        self.looks = self.looks.wrapping_add(1);
        // There may be very many.
        if !misses && !is_short && left >= low && !self.looks.is_multiple_of(COUNT_LOOKS) {
            return Wanted::default();
        }
        let lacks = misses && segment.sparse_left(tier) == 0;
        let found = segment.count_sparse(tier);
        Wanted::of(segment, found, if lacks { PAGES_PER_BUCKET } else { 0 })
    }
}
