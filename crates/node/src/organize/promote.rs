//! Bringing hot blocks up: one worker looks at what was read from the file tiers, and moves to a
//! faster tier what is clearly hotter than what lies there. Where that has no room to spare, blocks
//! of files whose policy compares hotness are exchanged for the coldest there.

use crate::node::{BlockRef, Node};
use crate::organize::mover::Mover;
use crate::usage::buckets_of;
use forebay_client::{hotness_of, policy_of};
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave::{WayDown, way_down};
use forebay_placement::promote::{
    Block, Left, Level, Rise, asked, exchanges, exchanges_at_once, pairs, rise,
};
use forebay_placement::rounds::{PROMOTER_REST_MS, promoter_patience_ms};
use forebay_placement::{TierSnapshot, Worth};
use forebay_pool::clock::Timer;
use forebay_pool::datasets::RuledBlocks;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::pins::Pins;
use forebay_pool::{Segment, clock, futex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The rest after a look at what was used.
const REST: Timer = Timer::ms(PROMOTER_REST_MS);

/// After a look that moved nothing, which others' moves of the same blocks may have been the reason
/// of, the promoter rests so many times as long as that took, at least.
const RESTS: u32 = 4;

/// A look at a tier that no use has asked for.
#[derive(Clone, Copy)]
struct NextLook {
    due: Instant,
    /// The wait until then, in milliseconds, not scaled; 0 where the last look moved something.
    patience_ms: u64,
}

impl NextLook {
    /// What follows a look that began `since`, had this one `before` it and has `left` something.
    fn after(left: Left, since: Instant, before: Option<NextLook>) -> Option<NextLook> {
        let (patience_ms, wait) = match left {
            Left::Nothing => return None,
            Left::More => (0, Duration::ZERO),
            Left::Stuck => {
                let patience_ms = promoter_patience_ms(before.map_or(0, |look| look.patience_ms));
                let least = since.elapsed() * RESTS;
                (patience_ms, Timer::ms(patience_ms).as_duration().max(least))
            }
        };
        Some(NextLook { due: Instant::now() + wait, patience_ms })
    }

    /// How long it is until then.
    fn wait(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }
}

/// The worker that promotes.
pub(crate) struct Promoter {
    node: Arc<Node>,
    mover: Mover,
    /// What programs have pinned, as of the last look.
    pins: Pins,
    /// Where rules of datasets hold, as of the last look.
    ruled: RuledBlocks,
    /// What each tier's count of uses was at the last look.
    seen: [u32; TIERS_MAX],
    /// Of tiers with blocks that are to go up still.
    next_look: [Option<NextLook>; TIERS_MAX],
    /// When the blocks last cooled, and how often they have.
    cooled: (u32, u32),
}

impl Promoter {
    pub fn new(node: &Arc<Node>) -> Promoter {
        Promoter {
            mover: Mover::new(node, Node::new_owner()),
            pins: Pins::default(),
            ruled: RuledBlocks::default(),
            seen: [0; TIERS_MAX],
            next_look: [None; TIERS_MAX],
            cooled: (node.now(), 0),
            node: Arc::clone(node),
        }
    }

    /// The worker's life.
    pub fn run(mut self) {
        while !self.node.stopping() {
            let node = Arc::clone(&self.node);
            let seen = node.header().blocks_hot.load(Ordering::SeqCst);
            let mut has_looked = false;
            for tier in node.file_tiers() {
                let used = node.header().tier[tier].used.load(Ordering::Relaxed);
                let next = self.next_look[tier];
                if used != self.seen[tier] || next.is_some_and(|look| look.wait().is_zero()) {
                    self.seen[tier] = used;
                    let since = Instant::now();
                    self.next_look[tier] = NextLook::after(self.promote(tier), since, next);
                    has_looked = true;
                }
            }
            let (then, passes) = self.cooled;
            let half_life = node.header().half_life_ms();
            if clock::stamp_age(node.now(), then) >= half_life {
                self.cooled = (node.now(), passes.wrapping_add(1));
                cool(&node, passes.wrapping_add(1));
            }
            let hot = &node.header().blocks_hot;
            if has_looked {
                // Uses while it rests wake no thread; they are seen behind it.
                let seen = hot.load(Ordering::SeqCst);
                futex::wait(hot, seen, REST.as_ms());
                continue;
            }
            // Until an access makes a block hot enough, or what had to stay below may go. Blocks
            // cool while the manager rests, too.
            let cools = half_life.saturating_sub(clock::stamp_age(node.now(), self.cooled.0));
            let looks = self.next_look.iter().flatten();
            let looks = looks.map(|look| look.wait().as_millis() as u64 + 1).min();
            node.header().promoter_asleep.store(1, Ordering::SeqCst);
            futex::wait(hot, seen, u64::from(cools.max(1)).min(looks.unwrap_or(u64::MAX)));
        }
    }

    /// Moves the hottest blocks of a tier up, each to the fastest tier that it deserves.
    fn promote(&mut self, tier: TierId) -> Left {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let hierarchy = node.hierarchy();
        self.pins.look(segment);
        self.ruled.look(segment);
        let mut hot: Vec<(Block, BlockRef)> =
            blocks(segment, &self.ruled, tier).filter(|(block, _)| block.uses > 0).collect();
        hot.sort_unstable_by_key(|(block, _)| std::cmp::Reverse(block.uses));
        let mut least = u32::MAX;
        let mut left = Left::Nothing;
        for above in TierId::all(tier.index()) {
            let Some(snapshot) = hierarchy.tier(above.index()) else { continue };
            let level = self.level(above, &snapshot);
            least = least.min(asked(&level));
            let unit = segment.bucket_bytes() as u64;
            let compares = |found: &BlockRef| compares_hotness(segment, &self.ruled, found);
            let Rise { mut comes, exchanged: mut more, rest } =
                rise(hot, &snapshot, &level, (node.watermarks(), unit), compares);
            hot = rest;
            comes.sort_unstable();
            let came = self.mover.shift(&comes, tier, above);
            let wanted = comes.len() + more.len();
            more.truncate(exchanges_at_once(&snapshot, unit, came.into()) as usize);
            let moved = (came + self.exchange(&more, tier, above, &level)) as usize;
            left = left.max(Left::of(moved, wanted));
        }
        node.header().tier[tier].promotes_at.store(least, Ordering::Relaxed);
        left
    }

    /// Brings hot blocks, the hottest first, up to a tier without room to spare, each for a block
    /// there that is colder; returns how many came.
    fn exchange(
        &mut self,
        hot: &[(Block, BlockRef)],
        tier: TierId,
        above: TierId,
        level: &Level,
    ) -> u32 {
        let Some(hottest) = hot.first() else { return 0 };
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let cold: Vec<_> = blocks(segment, &self.ruled, above)
            .filter(|(block, found)| {
                exchanges(&hottest.0, &Level { coldest: block.uses, ..*level })
                    && may_leave(&node, block, found)
                    && self.pins.limit(segment, found.file, found.block).is_none()
            })
            .map(|(block, found)| (rank(segment, &self.ruled, above, &found), block.uses, found))
            .collect();
        let ranked = |(block, found): &(Block, BlockRef)| {
            (*block, rank(segment, &self.ruled, above, found), *found)
        };
        let pairs = pairs(hot.iter().map(ranked), cold, level);
        let bytes = pairs.len() as u64 * segment.bucket_bytes() as u64;
        let below = way_down(&node.hierarchy(), above.index(), bytes, true);
        let (WayDown::Tier(below), false) = (below, pairs.is_empty()) else { return 0 };
        let (mut up, mut down): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        up.sort_unstable();
        down.sort_unstable();
        self.mover.exchange((&up, tier), (&down, above), TierId::new(below))
    }

    /// A tier as the decision to promote sees it.
    fn level(&self, tier: TierId, snapshot: &TierSnapshot) -> Level {
        let all = blocks(&self.node.segment, &self.ruled, tier);
        let may_leave = all.filter(|(block, _)| !block.pinned);
        Level::of(snapshot, self.node.watermarks(), 0)
            .with_coldest(may_leave.map(|(block, _)| block.uses))
    }
}

/// The blocks of a tier, with what is known of their use.
fn blocks(
    segment: &Segment,
    ruled: &RuledBlocks,
    tier: TierId,
) -> impl Iterator<Item = (Block, BlockRef)> {
    buckets_of(segment, tier).filter_map(move |bucket| {
        let meta = segment.bucket(bucket)?;
        let file = meta.file.load(Ordering::Relaxed);
        if meta.state.load(Ordering::Acquire) != USED
            || meta.reserved.load(Ordering::Relaxed) != 0
            || !segment.header().has_file(file)
        {
            return None;
        }
        let block = meta.block.load(Ordering::Relaxed);
        let pinned = ruled.settings(segment, file, block).pin
            || segment.is_staged_in(segment.file(file), tier, meta);
        let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
        let found = BlockRef { file, block, bucket };
        Some((Block::of(access_stats, pinned), found))
    })
}

/// Whether a block may leave its tier now for another block.
fn may_leave(node: &Node, block: &Block, found: &BlockRef) -> bool {
    let segment = &node.segment;
    !block.pinned
        && !segment.is_of_pages(found.bucket)
        && node.moves_down(found.file)
        && segment.bucket(found.bucket).is_some_and(|meta| {
            meta.bound_for.load(Ordering::Relaxed) == 0
                && meta.pages.writeback() == 0
                && meta.lock.holder().is_none()
        })
}

/// Whether the policy of a block compares hotness. Where a rule names a tier, none does.
fn compares_hotness(segment: &Segment, ruled: &RuledBlocks, found: &BlockRef) -> bool {
    let settings = ruled.settings(segment, found.file, found.block);
    settings.tier.is_none() && policy_of(segment, &settings).policy().compares_hotness()
}

/// By what blocks of one file leave a tier before those of another, as its demoter sees it: what it
/// would take down again at once is not brought up.
fn rank(segment: &Segment, ruled: &RuledBlocks, tier: TierId, found: &BlockRef) -> (u8, Worth) {
    if !segment.header().has_file(found.file) {
        return Default::default();
    }
    let record = segment.file(found.file);
    let settings = ruled.settings(segment, found.file, found.block);
    let capacity = u64::from(segment.header().tier[tier].buckets) * segment.bucket_bytes() as u64;
    let (hotness, size) = (hotness_of(segment, record), record.size.load(Ordering::Relaxed));
    (settings.priority, policy_of(segment, &settings).policy().worth(hotness, size, capacity))
}

/// A half-life has passed: the uses of every block count half.
fn cool(node: &Node, pass: u32) {
    for bucket in node.segment.header().bucket_ids().filter_map(|id| node.segment.bucket(id)) {
        let access_stats = AccessStats(bucket.access_stats.load(Ordering::Relaxed));
        let cooled = access_stats.cooled(pass);
        if cooled != access_stats {
            bucket.access_stats.store(cooled.0, Ordering::Relaxed);
        }
    }
}
