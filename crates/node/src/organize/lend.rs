//! Memory for small files: how much of the RAM tier is lent to sparse buckets. The numbers are
//! those of docs/design/small-files.md.

use crate::node::Node;
use forebay_placement::TierId;
use forebay_pool::layout::PAGES_PER_BUCKET;
use forebay_pool::{Owner, Segment};
use rustix::fd::AsFd;
use std::sync::atomic::Ordering;

/// Looks in a row at which much was lent for nothing, before it is taken back: two seconds.
const CALM_LOOKS: u32 = 4;

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
        if header.sparse_buckets == 0 {
            return Wanted::default();
        }
        let least = least(segment);
        let limit = || header.sparse_limit.load(Ordering::Acquire);
        let low = |limit: u32| (limit / 4).max(least / 2);
        let ram = &header.tier[TierId::RAM];
        let is_short = segment.free_in(TierId::RAM) < ram.low.load(Ordering::Relaxed);
        let found = segment.count_sparse();
        let mut made = 0;
        if found.idle > 0 && (!asked || is_short || segment.sparse_left() < low(limit())) {
            made += segment.trim_sparse(owner, u32::MAX);
        }
        if segment.sparse_left() < low(limit()) {
            // Half of the low watermark is left to other writers.
            let spare =
                segment.free_in(TierId::RAM).saturating_sub(ram.low.load(Ordering::Relaxed) / 2);
            let wanted = (limit() / 2).max(least) / PAGES_PER_BUCKET;
            made += node.memory.lend(segment, node.pool_file.as_fd(), wanted.min(spare));
        } else {
            made += self.take_back(node, least, asked, is_short);
        }
        let low = low(limit());
        header.sparse_low.store(low, Ordering::Relaxed);
        if made > 0 {
            node.post_room();
        }
        let left = segment.sparse_left();
        Wanted {
            pages: if left < low && found.buckets > 0 { 2 * low - left } else { 0 },
            used: found.claimed - found.idle,
            buckets: found.buckets,
            page: segment.page_bytes() as u64,
        }
    }

    /// Takes back what is lent for nothing: at once if buckets of the usual kind are short, else
    /// when that has been so for a while. Returns of how many
    /// buckets.
    fn take_back(&mut self, node: &Node, least: u32, asked: bool, is_short: bool) -> u32 {
        let (segment, header) = (&node.segment, node.header());
        let (left, limit) = (segment.sparse_left(), header.sparse_limit.load(Ordering::Acquire));
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
