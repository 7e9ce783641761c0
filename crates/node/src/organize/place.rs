//! Carrying out the lower pieces of plans: what programs, or the demoter of RAM, have bound for a
//! file tier goes there. Each file tier has its own placer, so that all work at the same time.

use crate::node::{BlockRef, Node};
use crate::organize::mover::Mover;
use crate::usage::whole_buckets_of;
use forebay_placement::leave::piece_blocks;
use forebay_placement::rounds::{self, PLACER_PATIENCE, is_ripe};
use forebay_placement::{Destination, TierId, destination};
use forebay_pool::clock::{Timer, stamp_age};
use forebay_pool::free_map::USED;
use forebay_pool::pins::Pins;
use forebay_pool::{crash, futex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After how long without a write a block leaves RAM that was not written in full.
const RIPE: Timer = Timer::ms(rounds::RIPE_MS);
/// How often what is not ripe, or has no room yet, is looked at.
const LOOK: Timer = Timer::ms(rounds::PLACER_LOOK_MS);
/// For how long a placer waits that has nothing to do: until it is woken.
const UNTIL_WOKEN: Timer = Timer::seconds(3600);

/// The worker that takes blocks from RAM to one file tier.
pub(crate) struct Placer {
    node: Arc<Node>,
    tier: TierId,
    mover: Mover,
    ready: Vec<BlockRef>,
    /// What programs have pinned, as of the last look.
    pins: Pins,
    /// How often in a row the tier had no room.
    in_vain: u32,
}

impl Placer {
    pub fn new(node: &Arc<Node>, tier: TierId) -> Placer {
        Placer {
            mover: Mover::new(node, Node::new_owner()),
            node: Arc::clone(node),
            tier,
            ready: Vec::new(),
            pins: Pins::default(),
            in_vain: 0,
        }
    }

    /// The placer's life.
    pub fn run(mut self) {
        while !self.node.stopping() {
            let seen = self.node.header().blocks_bound.load(Ordering::SeqCst);
            let before = self.node.header().tier[self.tier].bound.load(Ordering::Relaxed);
            let bound = self.find();
            crash::point("place.found");
            // What was bound meanwhile is counted twice at most, until it is looked at again; it is
            // never lost, as writers give up when nothing is bound.
            let change = bound.wrapping_sub(before);
            let count = &self.node.header().tier[self.tier].bound;
            let now = count.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
            if before > 0 && now == 0 {
                // Those that wait for it write to the tier themselves.
                self.node.post_room();
            }
            if self.place() > 0 {
                continue;
            }
            let header = self.node.header();
            let wait = if bound > 0 { LOOK } else { UNTIL_WOKEN };
            header.placers_asleep.store(1, Ordering::SeqCst);
            futex::wait(&header.blocks_bound, seen, wait.as_ms());
        }
    }

    /// Fills `ready` with what can go to the tier now; returns how much is bound for it. What the
    /// store has is as good as gone, and stays.
    fn find(&mut self) -> u32 {
        let segment = &self.node.segment;
        let now = self.node.now();
        let ram = &segment.header().tier[TierId::RAM];
        let is_short = segment.free_in(TierId::RAM) < ram.low.load(Ordering::Relaxed);
        self.ready.clear();
        self.pins.look(segment);
        let (mut bound, mut stays) = (0, false);
        for bucket in whole_buckets_of(segment, TierId::RAM) {
            let Some(meta) = segment.bucket(bucket) else { continue };
            let file = meta.file.load(Ordering::Relaxed);
            if usize::from(meta.bound_for.load(Ordering::Relaxed)) != self.tier.index()
                || meta.state.load(Ordering::Acquire) != USED
                || !segment.header().has_file(file)
            {
                continue;
            }
            let block = meta.block.load(Ordering::Relaxed);
            let slowest = self.pins.limit(segment, file, block);
            let is_pinned = slowest.is_some_and(|slowest| self.tier > slowest);
            if is_pinned || meta.pending() == 0 && meta.valid.load(Ordering::Relaxed) != 0 {
                meta.bound_for.store(0, Ordering::Relaxed);
                stays = true;
                continue;
            }
            bound += 1;
            let age = stamp_age(now, meta.written.load(Ordering::Relaxed));
            let is_full = meta.valid.load(Ordering::Relaxed) == u64::MAX;
            let goes = is_ripe(is_full, is_short, age.into(), RIPE.as_ms());
            if goes && meta.lock.holder().is_none() && meta.pages.writeback() == 0 {
                self.ready.push(BlockRef { file, block, bucket });
            }
        }
        if stays {
            self.node.look_for_room();
        }
        self.ready.sort_unstable();
        bound
    }

    /// Takes what is ready to the tier; returns how many blocks have left RAM, or are to go
    /// elsewhere.
    fn place(&mut self) -> u32 {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let unit = segment.bucket_bytes() as u64;
        let capacity = u64::from(segment.ram_capacity()) * unit;
        let piece = piece_blocks(capacity, unit) as usize;
        let ready = std::mem::take(&mut self.ready);
        let mut placed = 0;
        let spreads = |found: &BlockRef| node.spreads(found.file);
        let groups = ready.chunk_by(|a, b| spreads(a) == spreads(b));
        for blocks in groups.flat_map(|group| group.chunks(piece)) {
            if node.stopping() {
                break;
            }
            // Where any lower tier will do, the demoter has chosen this one.
            let what = if spreads(&blocks[0]) { "demote" } else { "place" };
            let moved = self.mover.shift_as(what, blocks, TierId::RAM, self.tier);
            if moved == 0 && segment.free_buckets(self.tier).available() == 0 {
                break;
            }
            placed += moved;
            if moved > 0 {
                node.post_room();
            }
        }
        let is_full = !ready.is_empty()
            && placed == 0
            && (segment.free_buckets(self.tier).available() == 0 || !segment.is_sound(self.tier));
        self.in_vain = if is_full { self.in_vain + 1 } else { 0 };
        if self.in_vain > PLACER_PATIENCE || is_full && !segment.is_sound(self.tier) {
            self.in_vain = 0;
            self.rebind(&ready);
            placed = ready.len() as u32;
        }
        self.ready = ready;
        placed
    }

    /// The tier takes none of these: they go to the next that has room, or stay in RAM like any
    /// other block.
    fn rebind(&self, blocks: &[BlockRef]) {
        let segment = &self.node.segment;
        for found in blocks {
            let Some(meta) = segment.bucket(found.bucket) else { continue };
            let unit = segment.bucket_bytes() as u64;
            let below = destination(&self.node.hierarchy(), self.tier.index(), unit);
            match below {
                Destination::Tier(below) => {
                    segment.bind(meta, TierId::new(below));
                }
                Destination::Store => {
                    meta.bound_for.store(0, Ordering::Relaxed);
                }
            }
        }
        segment.wake_bound();
        segment.want_room();
    }
}
