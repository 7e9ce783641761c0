//! Making room: clean blocks are dropped, dirty ones move to the next tier that has space, or are
//! flushed when none has. Each tier has its own demoter.

use crate::flush::{Flusher, Which};
use crate::node::{Node, buckets_of};
use forebay_placement::{Destination, destination, room_needed};
use forebay_pool::free_map::{FILLING, USED};
use forebay_pool::layout::*;
use forebay_pool::{Entry, Owner, clock, futex};
use forebay_tiers::{IoClient, Transfer};
use libc::iovec;
use rustix::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that move at once.
const BATCH_BYTES: usize = 16 << 20;
/// How often a tier's free space is looked at when nobody asks, in milliseconds.
const LOOK_MS: u64 = 500;

/// A block that may leave its tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Victim {
    file: u32,
    block: u64,
    bucket: u32,
}

/// A block being copied to a slot.
struct Copying {
    victim: Victim,
    slot: u32,
    version: u32,
    valid: u64,
}

/// The worker that makes room on one tier.
pub(crate) struct Demoter {
    node: Arc<Node>,
    tier: usize,
    owner: Owner,
    clients: Vec<Box<dyn IoClient>>,
    flusher: Flusher,
    staging: Vec<u8>,
    hint: u32,
}

impl Demoter {
    pub fn new(node: &Arc<Node>, tier: usize) -> Demoter {
        Demoter {
            tier,
            owner: Node::new_owner(),
            clients: (0..node.tiers()).map(|tier| node.tier_client(tier)).collect(),
            flusher: Flusher::new(node),
            staging: Vec::new(),
            hint: 0,
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
        if self.tier == 0 {
            let free = (snapshot.free / unit) as u32;
            self.node.header().ram_free.store(free, Ordering::Relaxed);
            let low = (snapshot.capacity as f64 * self.node.watermarks.low) as u64 / unit;
            self.node.header().ram_low.store(low.max(1) as u32, Ordering::Relaxed);
        }
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
                Destination::Tier(below) => self.demote(&dirty, below),
                Destination::Store => self.flush_and_evict(&dirty),
            };
        }
        if freed > 0 && self.tier == 0 {
            self.node.announce_room();
        }
        freed
    }

    /// Blocks of the tier, those written longest ago first: clean ones, and dirty ones.
    fn victims(&self, count: usize) -> (Vec<Victim>, Vec<Victim>) {
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
            let victim = Victim {
                file: meta.file.load(Ordering::Relaxed),
                block: meta.block.load(Ordering::Relaxed),
                bucket,
            };
            let age = clock::stamp_age(now, meta.written.load(Ordering::Relaxed));
            let list =
                if meta.dirty.load(Ordering::Acquire) == 0 { &mut clean } else { &mut dirty };
            list.push((std::cmp::Reverse(age), victim));
        }
        let oldest = |mut list: Vec<(std::cmp::Reverse<u32>, Victim)>| {
            list.sort_unstable();
            list.truncate(count);
            list.into_iter().map(|(_, victim)| victim).collect()
        };
        (oldest(clean), oldest(dirty))
    }

    /// Drops blocks that are clean; returns how many were.
    fn evict(&self, victims: &[Victim]) -> u32 {
        let segment = &self.node.segment;
        let mut freed = 0;
        for victim in victims {
            let Some(place) = self.place(victim) else { continue };
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

    /// The index entry of a victim, if it still names the victim's bucket.
    fn place(&self, victim: &Victim) -> Option<&std::sync::atomic::AtomicU64> {
        let segment = &self.node.segment;
        if victim.file >= segment.header().files || !segment.is_indexed(victim.bucket) {
            return None;
        }
        segment.entry(segment.file(victim.file), victim.block)
    }

    fn flush_and_evict(&mut self, victims: &[Victim]) -> u32 {
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

    /// Moves dirty blocks to tier `below`; returns how many buckets became free.
    fn demote(&mut self, victims: &[Victim], below: usize) -> u32 {
        let start = clock::realtime_ns();
        let mut copying = Vec::new();
        for &victim in victims {
            let Some(slot) = self.take_slot(below) else { break };
            match self.snapshot(victim, slot) {
                Some(copy) => copying.push(copy),
                None => self.node.segment.free_bucket(slot),
            }
        }
        let good = self.copy(&copying, below);
        let mut freed = 0;
        for (copy, good) in copying.iter().zip(good) {
            if good && self.switch(copy, below) {
                freed += 1;
            } else {
                self.node.segment.free_bucket(copy.slot);
            }
        }
        let bytes = u64::from(freed) * self.node.segment.bucket_bytes() as u64;
        let (from, to) = (self.node.tier_name(self.tier), self.node.tier_name(below));
        self.node.trace.moved(start, "demote", from, to, bytes);
        freed
    }

    fn take_slot(&mut self, tier: usize) -> Option<u32> {
        let segment = &self.node.segment;
        let mut slot = None;
        let map = segment.free_buckets(tier);
        let (_, next) = map.take(self.owner, self.hint, 1, |taken| slot = Some(taken));
        self.hint = next;
        segment.bucket(slot?)?.state.store(FILLING, Ordering::Release);
        slot
    }

    fn snapshot(&self, victim: Victim, slot: u32) -> Option<Copying> {
        let meta = self.node.segment.bucket(victim.bucket)?;
        let glance = meta.lock.glance()?;
        let valid = meta.valid.load(Ordering::Acquire);
        let version = meta.lock.version();
        (meta.lock.unchanged_since(glance) && valid != 0 && self.place(&victim).is_some())
            .then_some(Copying { victim, slot, version, valid })
    }

    /// Copies the blocks' bytes to their slots, without holding any lock. Returns which arrived.
    fn copy(&mut self, copying: &[Copying], below: usize) -> Vec<bool> {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let bucket = segment.bucket_bytes();
        let page = segment.page_bytes();
        let mut good = vec![true; copying.len()];
        let range = |copy: &Copying| {
            let first = copy.valid.trailing_zeros() as usize * page;
            let end = (64 - copy.valid.leading_zeros() as usize) * page;
            (first, end)
        };
        if self.tier > 0 {
            self.staging.resize((copying.len() * bucket).max(self.staging.len()), 0);
        }
        let sources: Vec<*mut u8> = copying
            .iter()
            .enumerate()
            .map(|(index, copy)| match self.tier {
                0 => segment.bucket_data(copy.victim.bucket),
                // SAFETY: the staging buffer was just made large enough.
                _ => unsafe { self.staging.as_mut_ptr().add(index * bucket) },
            })
            .collect();
        let buffer = |index: usize| {
            let (first, end) = range(&copying[index]);
            // SAFETY: inside the bucket or its copy.
            let base = unsafe { sources[index].add(first) };
            vec![iovec { iov_base: base.cast(), iov_len: end - first }]
        };
        let file_of = |tier: usize| node.slots[tier].as_ref().map(|file| file.as_raw_fd());
        let offset =
            |slot: u32, index: usize| segment.slot_offset(slot) + range(&copying[index]).0 as u64;
        if self.tier > 0 {
            let Some(fd) = file_of(self.tier) else { return vec![false; copying.len()] };
            let mut reads: Vec<_> = (0..copying.len())
                // SAFETY: the staging buffer is this demoter's.
                .map(|i| unsafe {
                    Transfer::read(fd, offset(copying[i].victim.bucket, i), buffer(i))
                })
                .collect();
            self.clients[self.tier].run(&mut reads);
            for (good, read) in good.iter_mut().zip(&reads) {
                *good = read.result().is_ok_and(|bytes| bytes == read.len());
            }
        }
        let Some(fd) = file_of(below) else { return vec![false; copying.len()] };
        let mut writes: Vec<_> = (0..copying.len())
            // SAFETY: a bucket's memory stays mapped whatever becomes of the bucket; bytes that
            // change meanwhile are noticed by the version.
            .map(|i| unsafe { Transfer::write(fd, offset(copying[i].slot, i), buffer(i)) })
            .collect();
        self.clients[below].run(&mut writes);
        for (good, write) in good.iter_mut().zip(&writes) {
            if let Err(errno) = write.result() {
                eprintln!("tier {}: {errno}", node.tier_name(below));
                *good = false;
            }
        }
        good
    }

    /// Lets the index name the slot instead of the bucket, unless somebody wrote meanwhile.
    fn switch(&self, copy: &Copying, below: usize) -> bool {
        let segment = &self.node.segment;
        let (Some(meta), Some(slot)) =
            (segment.bucket(copy.victim.bucket), segment.bucket(copy.slot))
        else {
            return false;
        };
        if meta.lock.try_lock(self.owner).is_err() {
            return false;
        }
        let place = self.place(&copy.victim).filter(|_| {
            meta.lock.version() == copy.version
                && meta.state.load(Ordering::Acquire) == USED
                && meta.writeback.load(Ordering::Acquire) == 0
                && meta.valid.load(Ordering::Acquire) == copy.valid
        });
        let Some(place) = place else {
            meta.lock.unlock_unchanged();
            return false;
        };
        // An entry begins to name a bucket while that is locked: a reader that found the block in the
        // same slot long ago must not accept what it saw of the filling.
        segment.lock(&slot.lock, self.owner);
        slot.file.store(copy.victim.file, Ordering::Relaxed);
        slot.block.store(copy.victim.block, Ordering::Relaxed);
        slot.valid.store(copy.valid, Ordering::Relaxed);
        slot.dirty.store(meta.dirty.load(Ordering::Acquire), Ordering::Relaxed);
        slot.writeback.store(0, Ordering::Relaxed);
        slot.written.store(meta.written.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.state.store(USED, Ordering::Release);
        place.store(Entry::resident(below as u8, copy.slot).encode(), Ordering::Release);
        segment.free_bucket(copy.victim.bucket);
        meta.lock.unlock_changed();
        slot.lock.unlock_changed();
        true
    }
}
