//! Making room on a tier: clean blocks are dropped, or kept one tier down if they will be read
//! again; dirty ones move to the next tier that has space, or are flushed when none has. Each tier
//! has its own demoter.

use crate::drain::{FlushScope, Flusher};
use crate::node::{BlockRef, Node};
use crate::organize::coldest::Coldest;
use crate::organize::lend::{Lender, SlotLender};
use crate::organize::mover::Mover;
use crate::usage::{bytes_of, sparse_of, whole_buckets_of};
use forebay_client::{hotness_of, policy_of};
use forebay_placement::admission::Trail;
use forebay_placement::evict::{Candidate, choose};
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave::{
    CHOICE, Division, Keeps, Reads, Victims, WayDown, divide, fate, keeping_pays, piece_blocks,
    way_down,
};
use forebay_placement::organizer::{Event, Task, organize};
use forebay_placement::promote::Level;
use forebay_placement::room::{Headroom, Pressure, Waits, in_turns, room_needed, wanted};
use forebay_placement::{Destination, Hierarchy, TierSnapshot, destination, rounds};
use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::Timer;
use forebay_pool::datasets::RuledBlocks;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::pins::Pins;
use forebay_pool::{Owner, futex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How often a tier's free space is looked at without being asked.
const LOOK: Timer = Timer::ms(rounds::LOOK_MS);
/// The same while writers wait now and then.
const LOOK_PRESSED: Timer = Timer::ms(rounds::LOOK_PRESSED_MS);

/// Which buckets of a tier are looked at: what leaves the others makes no room there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Whole,
    Sparse,
    /// Those of the files that count for this job.
    WholeOf(u32),
    SparseOf(u32),
}

impl Which {
    fn is_sparse(self) -> bool {
        matches!(self, Which::Sparse | Which::SparseOf(_))
    }

    /// The job whose files alone are looked at.
    fn job(self) -> Option<u32> {
        match self {
            Which::WholeOf(job) | Which::SparseOf(job) => Some(job),
            Which::Whole | Which::Sparse => None,
        }
    }
}

/// The worker that makes room on one tier.
pub(crate) struct Demoter {
    node: Arc<Node>,
    tier: TierId,
    owner: Owner,
    mover: Mover,
    flusher: Flusher,
    lender: Lender,
    slot_lender: SlotLender,
    blocks: Vec<Candidate>,
    /// What programs have pinned, as of the last look.
    pins: Pins,
    /// Where rules of datasets hold, as of the last look.
    ruled: RuledBlocks,
    coldest: Coldest,
    headroom: Headroom,
    since: Instant,
}

impl Demoter {
    pub fn new(node: &Arc<Node>, tier: TierId) -> Demoter {
        let owner = Node::new_owner();
        Demoter {
            tier,
            owner,
            mover: Mover::new(node, owner),
            flusher: Flusher::new(node),
            lender: Lender::default(),
            slot_lender: SlotLender::new(node, tier, owner),
            blocks: Vec::new(),
            pins: Pins::default(),
            ruled: RuledBlocks::default(),
            coldest: Coldest::default(),
            headroom: Headroom::default(),
            since: Instant::now(),
            node: Arc::clone(node),
        }
    }

    /// The demoter's life.
    pub fn run(mut self) {
        let mut answered = self.node.header().room_wanted.load(Ordering::Acquire);
        let mut cleaned = self.node.cleaned.load(Ordering::Acquire);
        while !self.node.stopping() {
            let wanted = self.node.header().room_wanted.load(Ordering::Acquire);
            let by_flushes = self.node.cleaned.load(Ordering::Acquire);
            let asked = wanted.wrapping_sub(answered) > by_flushes.wrapping_sub(cleaned);
            (answered, cleaned) = (wanted, by_flushes);
            if self.make_room(asked) == 0 {
                let look = if self.headroom.is_pressed() { LOOK_PRESSED } else { LOOK };
                let look = self.node.wait_ms(look.as_ms());
                futex::wait(&self.node.header().room_wanted, wanted, look);
            }
        }
    }

    /// Frees some buckets of the tier if it is short of them. Returns how many.
    fn make_room(&mut self, asked: bool) -> u32 {
        self.free_quotas();
        let hierarchy = self.node.hierarchy();
        let Some(snapshot) = hierarchy.tier(self.tier.index()) else { return 0 };
        let unit = self.node.segment.bucket_bytes() as u64;
        let header = &self.node.header().tier[self.tier];
        header.free.store((snapshot.free / unit) as u32, Ordering::Relaxed);
        let low = (snapshot.capacity as f64 * self.node.watermarks().low) as u64 / unit;
        header.low.store(low.max(1) as u32, Ordering::Relaxed);
        self.coldest.refresh(&self.node, self.tier);
        let small = match self.tier.is_ram() {
            true => self.lender.tend(&self.node, self.owner, asked),
            false => self.slot_lender.tend(&self.node, self.tier, self.owner),
        };
        if Level::of(&snapshot, self.node.watermarks(), 0).is_roomy {
            // One use of a block below is enough to bring it here.
            for below in self.tier.below(hierarchy.len()) {
                self.node.header().tier[below].promotes_at.store(1, Ordering::Relaxed);
            }
        }
        let planned = u64::from(header.room_planned.swap(0, Ordering::Relaxed)) * unit;
        let planned = in_turns(&snapshot, planned, unit);
        let headroom = self.headroom(&hierarchy, &snapshot);
        let is_pressed = headroom.is_some();
        // Programs wait for room in RAM only.
        let pressure = Pressure {
            asked: asked && self.tier.is_ram(),
            headroom: headroom.filter(|_| self.tier.is_ram()),
            planned,
        };
        let wanted = wanted(pressure, unit);
        let event = Event::Space { tier: self.tier.index(), wanted };
        let tasks = organize(&event, &hierarchy, &self.node.organizer_settings());
        let bytes: u64 = tasks
            .iter()
            .map(|task| match task {
                Task::Demote { bytes, .. } => bytes,
                _ => 0,
            })
            .sum();
        // What is on its way out makes room, too.
        let bound = if self.tier.is_ram() { self.node.segment.bound_in_ram() } else { 0 };
        let bytes = bytes.saturating_sub(u64::from(bound) * unit);
        if bytes == 0 && small.pages == 0 {
            let of_tier = &self.node.header().tier[self.tier];
            if of_tier.pinned.load(Ordering::Relaxed) >= of_tier.buckets {
                // It was so at the last look, which may be long ago.
                self.look(true, Which::Whole);
            }
            // What a writer has asked for has come before this look, or is on its way out and is
            // posted when it is there: a writer that is woken for nothing asks again at once.
            if asked && self.tier.is_ram() && snapshot.free > 0 {
                self.node.post_room();
            }
            return 0;
        }
        // A plan of any policy may move what is in the way of a write.
        let is_awaited = asked
            && (is_pressed || planned > 0)
            && wanted > snapshot.free + u64::from(bound) * unit
            && !self.gets_room(planned);
        let mut victims = self.choose((bytes / unit) as usize, &hierarchy, Which::Whole);
        victims.append(self.choose(
            small.blocks(bytes, snapshot.capacity),
            &hierarchy,
            Which::Sparse,
        ));
        let mut freed = self.evict(&victims.dropped);
        self.post_freed(freed);
        let below = TierId::new(self.tier.index() + 1);
        if below.index() < hierarchy.len() && !victims.pinned.is_empty() {
            freed += self.mover.shift(&victims.pinned, self.tier, below);
            self.post_freed(freed);
        }
        let piece = piece_blocks(snapshot.capacity, unit) as usize;
        for blocks in victims.kept.chunks(piece) {
            let moved = self.mover.shift(blocks, self.tier, below);
            freed += moved + if moved == 0 { self.evict(blocks) } else { 0 };
            self.post_freed(freed);
        }
        if self.tier.is_ram() && (is_pressed || planned > 0) {
            self.spread(&mut victims.dirty);
        }
        let moves = |found: &BlockRef| self.node.moves_down(found.file);
        let groups = victims.dirty.chunk_by(|a, b| moves(a) == moves(b));
        let pieces: Vec<_> = groups.flat_map(|group| group.chunks(piece)).collect();
        let missing = planned.saturating_sub(snapshot.free).div_ceil(unit) as usize;
        for blocks in pieces {
            // Of those that should stay no more than the writers wait for: what else became free
            // would draw other files here, for whose rest the next had to make way.
            let stays = !self.node.moves_down(blocks[0].file);
            let blocks = match stays && !is_pressed {
                true => &blocks[..blocks.len().min(missing.max(1))],
                false => blocks,
            };
            let moves_down = !stays || is_awaited && freed == 0;
            let of_block = |found: &BlockRef| bytes_of(&self.node.segment, found.bucket);
            let bytes = blocks.iter().map(of_block).sum();
            let hierarchy = self.node.hierarchy();
            freed += match way_down(&hierarchy, self.tier.index(), bytes, moves_down) {
                WayDown::Tier(below) => self.mover.shift(blocks, self.tier, TierId::new(below)),
                WayDown::Flush => self.flush_and_evict(blocks),
                WayDown::Wait => 0,
            };
            self.post_freed(freed);
            if self.node.stopping() {
                break;
            }
        }
        freed
    }

    /// Makes room in what jobs may use of the tier, where they have used most of it: their own
    /// blocks leave, and no others.
    fn free_quotas(&mut self) {
        let node = Arc::clone(&self.node);
        let (segment, tier) = (&node.segment, self.tier);
        if !segment.has_quotas(tier) {
            return;
        }
        let bases = || -> Vec<u32> {
            segment.jobs().map(|job| job.quota[tier].base.load(Ordering::SeqCst)).collect()
        };
        let before = bases();
        segment.recount_quotas(tier);
        let page = segment.page_bytes() as u64;
        let unit = segment.bucket_bytes() as u64;
        for job in segment.jobs() {
            let Some(limit) = job.quota[tier].limit() else { continue };
            let (limit, used) = (u64::from(limit) * page, u64::from(job.quota[tier].used()) * page);
            let of_job = TierSnapshot {
                capacity: limit,
                free: limit.saturating_sub(used),
                ..TierSnapshot::default()
            };
            let missing = room_needed(of_job, node.watermarks(), 0, unit);
            if missing == 0 {
                continue;
            }
            let number = job.number.load(Ordering::Relaxed);
            let blocks = missing.div_ceil(unit) as usize;
            let hierarchy = node.hierarchy();
            let mut victims = self.choose(blocks, &hierarchy, Which::WholeOf(number));
            // Of small files as many more: what a block has of pages is not known before.
            victims.append(self.choose(blocks, &hierarchy, Which::SparseOf(number)));
            self.empty(victims, limit);
            segment.recount_quotas(tier);
        }
        // Only then: a waiter that is woken asks for the next round.
        if tier.is_ram() && bases() != before {
            node.post_room();
        }
    }

    /// Takes the blocks of one job out of the tier: down, or to the store.
    fn empty(&mut self, victims: Victims<BlockRef>, capacity: u64) {
        let unit = self.node.segment.bucket_bytes() as u64;
        let piece = piece_blocks(capacity, unit) as usize;
        let mut freed = self.evict(&victims.dropped);
        let below = TierId::new(self.tier.index() + 1);
        let has_below = below.index() < self.node.hierarchy().len();
        if has_below {
            freed += self.mover.shift(&victims.pinned, self.tier, below);
        }
        for blocks in victims.kept.chunks(piece) {
            let moved = if has_below { self.mover.shift(blocks, self.tier, below) } else { 0 };
            freed += moved + if moved == 0 { self.evict(blocks) } else { 0 };
        }
        if freed > 0 {
            self.node.segment.recount_quotas(self.tier);
            self.post_freed(freed);
        }
        for blocks in victims.dirty.chunks(piece) {
            let of_block = |found: &BlockRef| bytes_of(&self.node.segment, found.bucket);
            let bytes = blocks.iter().map(of_block).sum();
            let way = way_down(&self.node.hierarchy(), self.tier.index(), bytes, true);
            let moved = match way {
                WayDown::Tier(below) => self.mover.shift(blocks, self.tier, TierId::new(below)),
                WayDown::Flush | WayDown::Wait => 0,
            };
            // Where that tier is full, or the job has used up what it may have of it, too.
            let moved = if moved == 0 { self.flush_and_evict(blocks) } else { moved };
            if moved > 0 {
                self.node.segment.recount_quotas(self.tier);
                self.post_freed(moved);
            }
            if self.node.stopping() {
                return;
            }
        }
    }

    /// Whether writers get room without a move of what should stay: as much as plans want, or else
    /// any, is free or on its way out. The placers' counts are too small while they look; each
    /// bucket is looked at here.
    fn gets_room(&self, planned: u64) -> bool {
        if !self.tier.is_ram() {
            return false;
        }
        let segment = &self.node.segment;
        let mut backoff = Backoff::default();
        let mut leaves = 0;
        for bucket in whole_buckets_of(segment, self.tier) {
            let Some(meta) = segment.bucket(bucket) else { continue };
            // What a writer has just taken it is about to bind, as long as it holds the lock.
            let is_bound = loop {
                let begin = meta.lock.read_begin();
                let state = meta.state.load(Ordering::Acquire);
                let is_bound = state == USED && meta.bound_for.load(Ordering::Relaxed) != 0;
                let is_settled = begin.is_some_and(|begin| !meta.lock.read_retry(begin));
                if is_settled || backoff.is_spent() {
                    break is_bound;
                }
                backoff.wait();
            };
            leaves += u64::from(is_bound);
        }
        let free = u64::from(segment.free_buckets(self.tier).available() + segment.growable());
        let room = (free + leaves) * segment.bucket_bytes() as u64;
        room >= planned.max(1)
    }

    /// Leaves to the placers of other tiers the share of these blocks that all lower tiers together
    /// move in the time that the first needs for what stays in the list.
    fn spread(&self, dirty: &mut Vec<BlockRef>) {
        let segment = &self.node.segment;
        let unit = segment.bucket_bytes() as u64;
        let spreading = dirty.iter().filter(|found| self.node.spreads(found.file));
        let count = spreading.clone().count() as u64;
        // Speeds of tiers do not depend on the store.
        let hierarchy = forebay_client::hierarchy(segment, 0);
        let marks = self.node.watermarks();
        let Division { itself, placers } =
            divide(&hierarchy, marks, self.tier.index(), count, unit);
        // The first of the list leave first.
        let mut spreading = spreading.skip(itself as usize);
        let mut given = Vec::new();
        for tier in self.tier.below(hierarchy.len()) {
            for found in spreading.by_ref().take(placers[tier.index()] as usize) {
                if let Some(meta) = segment.bucket(found.bucket) {
                    segment.bind(meta, tier);
                    given.push(*found);
                }
            }
        }
        segment.wake_bound();
        given.sort_unstable();
        dirty.retain(|found| given.binary_search(found).is_err());
    }

    /// What is kept free for writers that wait now and then; `None` if none has waited lately.
    fn headroom(&mut self, hierarchy: &Hierarchy, tier: &TierSnapshot) -> Option<u64> {
        let unit = self.node.segment.bucket_bytes() as u64;
        let all = self.node.counted(|counters| &counters.backpressure);
        // Those at a cap wait for the store, whatever room there is.
        let for_quotas = self.node.counted(|counters| &counters.quota_waits)
            + self.node.counted(|counters| &counters.cap_waits);
        let waits = Waits { all, for_quotas };
        let below = destination(hierarchy, self.tier.index(), unit);
        let moves_down = below != Destination::Store;
        let now_ms = self.since.elapsed().as_millis() as u64;
        let marks = self.node.watermarks();
        let headroom = self.headroom.look(now_ms, waits, moves_down, tier, marks, unit);
        if self.tier.is_ram() {
            self.node.kept_free.store(self.headroom.kept(), Ordering::Relaxed);
        }
        headroom
    }

    /// Tells those that wait for the tier's room: programs for RAM, of a file tier its placer.
    fn post_freed(&self, freed: u32) {
        if freed == 0 {
            return;
        }
        if self.tier.is_ram() {
            self.node.post_room();
        } else if self.node.header().tier[self.tier].bound.load(Ordering::Relaxed) > 0 {
            self.node.segment.wake_bound();
        }
    }

    /// The `want` blocks that leave the tier, and what is to become of them.
    fn choose(&mut self, want: usize, hierarchy: &Hierarchy, which: Which) -> Victims<BlockRef> {
        if want == 0 {
            return Victims::default();
        }
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let now = node.now();
        let unit = segment.bucket_bytes() as u64;
        let below = destination(hierarchy, self.tier.index(), unit);
        self.look(below != Destination::Store, which);
        let eviction = node.config.placement.eviction;
        let found = choose(eviction, &mut self.blocks, want * CHOICE, now);
        for block in &self.blocks {
            if let Some(meta) = segment.bucket(BucketId::from_raw(block.id))
                && !block.leaves
            {
                let access_stats = meta.access_stats.load(Ordering::Relaxed);
                if access_stats != block.access_stats.0 {
                    meta.access_stats.store(block.access_stats.0, Ordering::Relaxed);
                }
            }
        }
        let below = hierarchy.tier(self.tier.index() + 1);
        let keeps: Vec<Keeps> = (0..node.config.backing.len())
            .map(|store| {
                let speeds = || forebay_client::hierarchy(segment, store);
                let pays = || keeping_pays(&speeds(), self.tier.index() + 1, unit);
                Keeps::of(below.as_ref(), node.watermarks(), pays)
            })
            .collect();
        let mut victims = Victims::default();
        for block in &self.blocks[..found] {
            let Some(meta) = segment.bucket(BucketId::from_raw(block.id)) else { continue };
            let file = meta.file.load(Ordering::Relaxed);
            let found = BlockRef {
                file,
                block: meta.block.load(Ordering::Relaxed),
                bucket: BucketId::from_raw(block.id),
            };
            let keeps = match segment.header().has_file(file) {
                true => keeps.get(node.store_of(file)).copied().unwrap_or(Keeps::Nothing),
                false => Keeps::Nothing,
            };
            if self.pins.limit(segment, file, found.block).is_some() {
                // It may leave this tier, but not all of them.
                victims.pinned.push(found);
                continue;
            }
            let reads = if keeps == Keeps::Nothing { Reads::None } else { self.reads(&found) };
            victims.push(fate(meta.pages.dirty() != 0, reads, keeps), found);
        }
        let mut victims = victims.cheapest(want);
        for list in [&mut victims.kept, &mut victims.dirty, &mut victims.pinned] {
            list.sort_unstable();
        }
        victims
    }

    /// Fills `blocks` with what could leave the tier, and notes what placement wants to know of it.
    /// `has_room_below`: a lower tier has, so that even what the store refuses can leave where it
    /// may move there.
    fn look(&mut self, has_room_below: bool, which: Which) {
        let segment = &self.node.segment;
        self.pins.look(segment);
        self.ruled.look(segment);
        let (mut pinned, mut clean) = (0, 0);
        // Whether any block leaves, or may.
        let mut moves = false;
        let buckets = self.node.header().tier[self.tier].buckets;
        let capacity = u64::from(buckets) * segment.bucket_bytes() as u64;
        self.blocks.clear();
        let (whole, sparse) = match which.is_sparse() {
            false => (Some(whole_buckets_of(segment, self.tier)), None),
            true => (None, Some(sparse_of(segment, self.tier))),
        };
        let job = which.job();
        for bucket in whole.into_iter().flatten().chain(sparse.into_iter().flatten()) {
            let Some(meta) = segment.bucket(bucket) else { continue };
            let file = meta.file.load(Ordering::Relaxed);
            if meta.state.load(Ordering::Acquire) != USED {
                continue;
            }
            if meta.pages.writeback() != 0
                || meta.lock.holder().is_some()
                || meta.bound_for.load(Ordering::Relaxed) != 0
                || !segment.header().has_file(file)
            {
                moves = true;
                continue;
            }
            if meta.reserved.load(Ordering::Relaxed) != 0 {
                // Not even a candidate: what is set aside is not counted as the tier's.
                continue;
            }
            let block = meta.block.load(Ordering::Relaxed);
            let limit = self.pins.limit(segment, file, block);
            if limit.is_some_and(|slowest| slowest <= self.tier) {
                pinned += 1;
                continue;
            }
            let record = segment.file(file);
            if job.is_some_and(|job| record.quota_job.load(Ordering::Relaxed) != job) {
                continue;
            }
            let settings = self.ruled.settings(segment, file, block);
            let policy = policy_of(segment, &settings).policy();
            let may_move = has_room_below && policy.moves_down();
            let is_stuck = record.has(FileFlags::FAILING) && !may_move;
            if is_stuck && meta.pages.dirty() != 0 {
                moves = true;
                continue;
            }
            let stays = settings.pin || segment.is_staged_in(record, self.tier, meta);
            if stays {
                pinned += 1;
            } else {
                moves = true;
                // One that is being filled has nothing yet, and nothing that could be dropped.
                let has_bytes = meta.valid.load(Ordering::Relaxed) != 0;
                let is_clean = has_bytes && meta.pages.dirty() == 0 && limit.is_none();
                clean += u32::from(is_clean);
            }
            self.blocks.push(Candidate {
                id: bucket.raw(),
                access_stats: AccessStats(meta.access_stats.load(Ordering::Relaxed)),
                pinned: stays,
                priority: settings.priority,
                worth: policy.worth(
                    hotness_of(segment, record),
                    record.size.load(Ordering::Relaxed),
                    capacity,
                ),
                leaves: false,
            });
        }
        if which != Which::Whole {
            return;
        }
        let header = &self.node.header().tier[self.tier];
        let has_small = || {
            let mut all = sparse_of(segment, self.tier).filter_map(|bucket| segment.bucket(bucket));
            all.any(|meta| meta.state.load(Ordering::Acquire) == USED)
        };
        if !moves
            && pinned > buckets / 2
            && segment.free_in(self.tier) == 0
            && !(self.tier.is_ram() && segment.growable() > 0)
            && !has_small()
        {
            // The few that no block is in give no room to those that wait.
            pinned = buckets;
        }
        header.pinned.store(pinned, Ordering::Relaxed);
        header.clean.store(clean, Ordering::Relaxed);
    }

    /// What is known of the reads of a block of a file that is there.
    fn reads(&self, found: &BlockRef) -> Reads {
        let segment = &self.node.segment;
        let stats =
            segment.bucket(found.bucket).map(|meta| meta.access_stats.load(Ordering::Relaxed));
        let (trail, key) = segment.trail(segment.file(found.file).identity(), found.block);
        let is_copy = Trail(trail.load(Ordering::Relaxed)).is_from_device(key)
            || self.node.is_own_copy(found);
        let is_again = stats.is_some_and(|stats| AccessStats(stats).is_main());
        Reads::of(hotness_of(segment, segment.file(found.file)), is_again, is_copy)
    }

    /// Drops blocks that are clean; returns how many were.
    fn evict(&mut self, victims: &[BlockRef]) -> u32 {
        let (node, pins) = (&self.node, &mut self.pins);
        let segment = &node.segment;
        let (mut freed, mut whole) = (0, 0);
        let mut backoff = Backoff::default();
        for victim in victims {
            let Some(place) = node.place(victim) else { continue };
            let locked = segment.lock_block_within(place, self.owner, &mut backoff);
            let Ok(Some(locked)) = locked else { continue };
            if pins.limit_now(segment, victim.file, victim.block).is_some() {
                continue;
            }
            if locked.bucket() == victim.bucket && locked.meta().pending_under_lock() == 0 {
                whole += u32::from(!segment.is_of_pages(victim.bucket));
                segment.discard_block(place, locked);
                freed += 1;
            }
        }
        let clean = &node.header().tier[self.tier].clean;
        let _ = clean.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            Some(count.saturating_sub(whole))
        });
        freed
    }

    fn flush_and_evict(&mut self, victims: &[BlockRef]) -> u32 {
        let mut freed = 0;
        let written = self.node.written();
        for of_file in victims.chunk_by(|a, b| a.file == b.file) {
            let file = of_file[0].file;
            if self.node.segment.file(file).has(FileFlags::FAILING) {
                continue;
            }
            let blocks = of_file.iter().map(|victim| (victim.block, victim.bucket)).collect();
            self.flusher.flush(FlushScope::Blocks(file, blocks));
            freed += self.evict(of_file);
        }
        if self.tier.is_ram() {
            self.node.note_exposure(freed, written);
        }
        freed
    }
}
