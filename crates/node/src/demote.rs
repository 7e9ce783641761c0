//! Making room: clean blocks are dropped, dirty ones move to the next tier that has space, or are
//! flushed when none has. Each tier has its own demoter.

use crate::flush::{Flusher, Which};
use crate::mover::{BATCH_BYTES, Found, Mover};
use crate::node::{Node, buckets_of};
use forebay_placement::{Destination, destination, room_needed};
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::{Owner, clock, futex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a tier's free space is looked at when nobody asks, in milliseconds.
const LOOK_MS: u64 = 500;

/// The worker that makes room on one tier.
pub(crate) struct Demoter {
    node: Arc<Node>,
    tier: usize,
    owner: Owner,
    mover: Mover,
    flusher: Flusher,
}

impl Demoter {
    pub fn new(node: &Arc<Node>, tier: usize) -> Demoter {
        let owner = Node::new_owner();
        Demoter {
            tier,
            owner,
            mover: Mover::new(node, owner),
            flusher: Flusher::new(node),
            node: Arc::clone(node),
        }
    }

    /// The demoter's life.
    pub fn run(mut self) {
        let mut answered = self.node.header().room_wanted.load(Ordering::Acquire);
        while !self.node.stopping() {
            let wanted = self.node.header().room_wanted.load(Ordering::Acquire);
            let asked = wanted != answered;
            answered = wanted;
            if self.make_room(asked) == 0 {
                futex::wait(&self.node.header().room_wanted, wanted, LOOK_MS);
            }
        }
    }

    /// Frees some buckets of the tier if it is short of them. Returns how many.
    fn make_room(&mut self, asked: bool) -> u32 {
        let hierarchy = self.node.hierarchy();
        let Some(snapshot) = hierarchy.tier(self.tier) else { return 0 };
        let unit = self.node.segment.bucket_bytes() as u64;
        let header = &self.node.header().tier[self.tier];
        header.free.store((snapshot.free / unit) as u32, Ordering::Relaxed);
        let low = (snapshot.capacity as f64 * self.node.watermarks.low) as u64 / unit;
        header.low.store(low.max(1) as u32, Ordering::Relaxed);
        let wanted = if asked && self.tier == 0 { unit } else { 0 };
        let needed = room_needed(snapshot, self.node.watermarks, wanted, unit);
        if needed == 0 {
            if asked && self.tier == 0 {
                self.node.announce_room();
            }
            return 0;
        }
        let count = (needed / unit).min((BATCH_BYTES as u64 / unit).max(1)) as usize;
        let (clean, mut dirty) = self.victims(count);
        let mut freed = self.evict(&clean);
        if (freed as usize) < count && !dirty.is_empty() {
            dirty.truncate(count - freed as usize);
            dirty.sort_unstable();
            freed += match destination(&hierarchy, self.tier, dirty.len() as u64 * unit) {
                Destination::Tier(below) => self.mover.shift(&dirty, self.tier, below),
                Destination::Store => self.flush_and_evict(&dirty),
            };
        }
        if freed > 0 && self.tier == 0 {
            self.node.announce_room();
        }
        freed
    }

    /// Blocks of the tier, those written longest ago first: clean ones, and dirty ones.
    fn victims(&self, count: usize) -> (Vec<Found>, Vec<Found>) {
        let segment = &self.node.segment;
        let now = self.node.now();
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        for bucket in buckets_of(segment, self.tier) {
            let Some(meta) = segment.bucket(bucket) else { continue };
            if meta.state.load(Ordering::Acquire) != USED
                || meta.writeback.load(Ordering::Acquire) != 0
                || meta.lock.holder().is_some()
            {
                continue;
            }
            let victim = Found {
                file: meta.file.load(Ordering::Relaxed),
                block: meta.block.load(Ordering::Relaxed),
                bucket,
            };
            let age = clock::stamp_age(now, meta.written.load(Ordering::Relaxed));
            let list =
                if meta.dirty.load(Ordering::Acquire) == 0 { &mut clean } else { &mut dirty };
            list.push((std::cmp::Reverse(age), victim));
        }
        let oldest = |mut list: Vec<(std::cmp::Reverse<u32>, Found)>| {
            list.sort_unstable();
            list.truncate(count);
            list.into_iter().map(|(_, victim)| victim).collect()
        };
        (oldest(clean), oldest(dirty))
    }

    /// Drops blocks that are clean; returns how many were.
    fn evict(&self, victims: &[Found]) -> u32 {
        let segment = &self.node.segment;
        let mut freed = 0;
        for victim in victims {
            let Some(place) = self.node.place(victim) else { continue };
            let Some(resident) = segment.lock_resident(place, self.owner) else { continue };
            let Some(meta) = segment.bucket(resident.bucket) else { continue };
            let clean = resident.bucket == victim.bucket
                && meta.dirty.load(Ordering::Acquire) == 0
                && meta.writeback.load(Ordering::Acquire) == 0;
            if clean {
                segment.discard_resident(place, resident);
                freed += 1;
            } else if resident.taken {
                meta.lock.unlock_unchanged();
            }
        }
        freed
    }

    fn flush_and_evict(&mut self, victims: &[Found]) -> u32 {
        let mut files: Vec<_> = victims.iter().map(|victim| victim.file).collect();
        files.dedup();
        let mut freed = 0;
        for file in files {
            if self.node.segment.file(file).has(file_flag::FAILING) {
                continue;
            }
            let of_file: Vec<_> =
                victims.iter().copied().filter(|victim| victim.file == file).collect();
            let blocks = of_file.iter().map(|victim| (victim.block, victim.bucket)).collect();
            self.flusher.flush(Which::Blocks(file, blocks));
            freed += self.evict(&of_file);
        }
        freed
    }
}
