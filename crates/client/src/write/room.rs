//! A bucket for a new block.

use super::WrittenPart;
use crate::access::EnteredFile;
use crate::placement::{hierarchy, question};
use crate::session::Session;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_placement::{Destination, Piece, PolicyId, Request};
use forebay_pool::BucketId;
use forebay_pool::clock::{self, Timer};
use forebay_pool::guards::FreshBucket;
use forebay_pool::layout::*;
use forebay_pool::{Owner, futex};
use rustix::io::Errno;

/// How long a writer waits for room while none is made, before it writes around the tiers.
const ROOM_TIMEOUT: Timer = Timer::seconds(5);
/// How often it then looks whether there is still a manager.
const ROOM_LOOK: Timer = Timer::ms(50);

/// How long a new small file waits at a time for pages, which takes the node manager a tenth of a
/// millisecond, and how often, before it gets a bucket of the usual kind.
const SPARSE_LOOK: Timer = Timer::ms(5);
const SPARSE_LOOKS: u32 = 4;
/// The same of a small file in a slot, which the tier's file has to give room for.
const SLOT_LOOKS: u32 = 20;
/// Beside the tiers that have refused a write: that no sparse bucket could be had.
pub(super) const NO_SPARSE: u32 = 1 << 31;

/// Buckets that are free and still locked by a thread that does not go on, two milliseconds each:
/// after so many a write goes around the tiers, and what cannot do without a bucket fails.
const LOCKED_MOST: usize = 32;

/// What a whole bucket counts in a quota.
const BUCKET_PAGES: u32 = PAGES_PER_BUCKET;

/// What a writer that finds no bucket of RAM waits for.
#[derive(Clone, Copy)]
enum Awaited {
    /// Room that is made for all that wait: back-pressure.
    Room,
    /// Room for so many bytes, for which a plan has what stays otherwise move out of the way.
    Planned(u64),
    /// What RAM gets although nothing else moves: of blocks that are on their way out or can be
    /// dropped, or of memory. The wait ends when there is nothing of that.
    Leaving,
}

impl EnteredFile<'_> {
    /// Whether the block of a part is, as far as known, all of a small file: of one that takes at
    /// most half of a bucket.
    fn is_small(&self, part: WrittenPart) -> bool {
        let half = self.session.segment.bucket_bytes() as u64 / 2;
        part.block == 0
            && part.within as u64 + part.ahead <= half
            && self.record.size.load(Ordering::Relaxed) <= half
    }

    /// Pages of a block that is written up to the end of a part, without gaps.
    pub(super) fn pages_upto(&self, part: WrittenPart) -> u32 {
        part.end().div_ceil(self.session.segment.page_bytes()) as u32
    }

    /// A bucket of RAM, with its tier.
    pub(super) fn ram_bucket(&self) -> Option<(TierId, BucketId)> {
        Some((TierId::RAM, self.session.room(self.owner)?))
    }

    /// Moves a block out of a sparse bucket for whose pages there is no memory. False if there is
    /// no other bucket either.
    ///
    /// # Errors
    /// `INTR`; `TIMEDOUT`.
    #[cold]
    pub(super) fn leave_sparse(&self, entry: &AtomicU64, block: u64) -> Result<bool, Errno> {
        let segment = &self.session.segment;
        // There may be no room for seconds: no lock is held meanwhile.
        let Some((tier, bucket)) = self.ram_bucket() else { return Ok(false) };
        let held = match segment.lock_block_unless_interrupted(entry, self.owner) {
            Ok(held) => held.filter(|held| segment.is_sparse(held.bucket()) && held.is_taken()),
            Err(errno) => {
                segment.free_bucket(bucket);
                return Err(errno);
            }
        };
        let waited = held
            .as_ref()
            .map_or(Ok(()), |held| segment.wait_for_writeback_unless_interrupted(held.meta()));
        let Some(held) = held.filter(|_| waited.is_ok()) else {
            segment.free_bucket(bucket);
            return waited.map(|()| true);
        };
        let Some((_, fresh)) = self.fresh(block, {
            let mut taken = Some((tier, bucket));
            move || taken.take().or_else(|| Some((TierId::RAM, segment.take_bucket(self.owner)?)))
        }) else {
            return Ok(false);
        };
        segment.note_quota(self.record, TierId::RAM, BUCKET_PAGES);
        drop(fresh.take_over(entry, held, self.session));
        Ok(true)
    }

    /// A bucket for a new block, and its tier: the one that the placement engine chooses, or the
    /// next that has room. `None`: the store. What is meant for a lower tier gets a bucket of RAM
    /// while that has or gets room, and `bound` then says where the block goes from there: so the
    /// program does not wait for the tier's device.
    pub(super) fn bucket_for(
        &self,
        part: WrittenPart,
        refused: u32,
        bound: &Cell<Option<TierId>>,
    ) -> Option<(TierId, BucketId)> {
        match self.session.segment.quota_job(self.record) {
            None => self.any_bucket_for(part, refused, bound),
            Some(_) => self.bucket_within_quota(part, refused, bound),
        }
    }

    /// The same, of a file whose job has quotas: what it is given is counted before, as a whole
    /// bucket of RAM, by way of which it mostly goes.
    #[cold]
    fn bucket_within_quota(
        &self,
        part: WrittenPart,
        refused: u32,
        bound: &Cell<Option<TierId>>,
    ) -> Option<(TierId, BucketId)> {
        let segment = &self.session.segment;
        let claims = |tier| segment.claim_quota(self.record, tier, BUCKET_PAGES);
        if self.session.await_quota(self.record) {
            let (tier, bucket) = self.any_bucket_for(part, refused, bound)?;
            if tier.is_ram() || claims(tier) {
                return Some((tier, bucket));
            }
            segment.free_bucket(bucket);
            bound.set(None);
            return self.ram_bucket();
        }
        // RAM has no room for this job: another tier may have, else the store.
        let client = segment.client(self.owner.slot());
        let below = segment.header().file_tiers();
        let takes = |tier: &TierId| refused >> tier.index() & 1 == 0 && segment.is_sound(*tier);
        for tier in below.filter(takes) {
            let mut hint = client.bucket_hint.load(Ordering::Relaxed);
            if claims(tier)
                && let Some(slot) = segment.take_slot(tier, self.owner, &mut hint)
            {
                client.bucket_hint.store(hint, Ordering::Relaxed);
                return Some((tier, slot));
            }
        }
        None
    }

    fn any_bucket_for(
        &self,
        part: WrittenPart,
        refused: u32,
        bound: &Cell<Option<TierId>>,
    ) -> Option<(TierId, BucketId)> {
        bound.set(None);
        let takes =
            |tier: TierId| refused >> tier.index() & 1 == 0 && self.session.segment.is_sound(tier);
        if refused & !NO_SPARSE == 0
            && let Some(taken) = self.reserved_for()
        {
            if takes(taken.0) {
                return Some(taken);
            }
            self.session.segment.free_bucket(taken.1);
        }
        let is_small = refused & NO_SPARSE == 0 && self.is_small(part);
        let (policy, piece) = self.destination(part, is_small);
        // What stays is asked to make way only where this process has no bucket left.
        if let Destination::Tier(tier) = piece.to
            && piece.room > 0
            && (tier > 0 || policy.policy().moves_down())
        {
            self.session.segment.plan_room(TierId::new(tier), piece.bytes);
        }
        let spreads = policy.policy().spreads();
        if spreads && piece.to != Destination::Store && piece.bytes < part.ahead {
            // More than RAM holds: all lower tiers begin now to take what RAM is to give up.
            self.session.segment.plan_room(TierId::RAM, part.ahead);
        }
        let first = match piece.to {
            Destination::Tier(0) if is_small => {
                let (owner, pages) = (self.owner, self.pages_upto(part));
                let sparse = self.session.sparse_room(TierId::RAM, owner, pages);
                let taken = sparse.map(|bucket| (TierId::RAM, bucket));
                match taken.or_else(|| self.ram_bucket()) {
                    Some(taken) => return Some(taken),
                    None => 1,
                }
            }
            Destination::Tier(0) if policy.policy().moves_down() => match self.ram_bucket() {
                Some(taken) => return Some(taken),
                None => 1,
            },
            Destination::Tier(0) => match self.bucket_beside_what_stays(piece) {
                Some(bucket) => return Some((TierId::RAM, bucket)),
                None => 1,
            },
            Destination::Tier(tier) => tier,
            Destination::Store => return None,
        };
        if policy.policy().stages()
            && takes(TierId::new(first))
            && let Some(bucket) = self.staging_bucket(policy)
        {
            bound.set((!spreads).then(|| TierId::new(first)));
            return Some((TierId::RAM, bucket));
        }
        let client = self.session.segment.client(self.owner.slot());
        let tiers = self.session.segment.header().tiers_in_use().skip(first);
        for tier in tiers.filter(|&tier| takes(tier)) {
            if is_small
                && let Some(slot) =
                    self.session.sparse_room(tier, self.owner, self.pages_upto(part))
            {
                return Some((tier, slot));
            }
            let mut hint = client.bucket_hint.load(Ordering::Relaxed);
            if let Some(slot) = self.session.segment.take_slot(tier, self.owner, &mut hint) {
                client.bucket_hint.store(hint, Ordering::Relaxed);
                return Some((tier, slot));
            }
        }
        self.ram_bucket()
    }

    /// A bucket of RAM for a block that will leave it for a lower tier, if RAM has room or gets it:
    /// because blocks are on their way out, or, if those of the block's policy spread, because they
    /// move down.
    fn staging_bucket(&self, policy: PolicyId) -> Option<BucketId> {
        let segment = &self.session.segment;
        if let Some(bucket) = segment.take_bucket(self.owner) {
            return Some(bucket);
        }
        let policy = policy.policy();
        let gets_room =
            segment.bound_in_ram() > 0 || policy.spreads() && !self.session.is_pinned_whole();
        if !gets_room {
            return None;
        }
        let awaited = if policy.moves_down() { Awaited::Room } else { Awaited::Leaving };
        self.session.room_of(self.owner, awaited)
    }

    /// A bucket of RAM for a piece that is planned there, of a file whose policy moves nothing
    /// down. `None` if others have taken what was free: the next tier has room.
    fn bucket_beside_what_stays(&self, piece: Piece) -> Option<BucketId> {
        let awaited = match piece.room {
            0 => Awaited::Leaving,
            _ => Awaited::Planned(piece.bytes),
        };
        self.session.room_of(self.owner, awaited)
    }

    /// Where the block of a part of a write goes, and which policy says so.
    fn destination(&self, part: WrittenPart, is_small: bool) -> (PolicyId, Piece) {
        let (record, ahead) = (self.record, part.ahead);
        let seed = self.session.counters().writes.load(Ordering::Relaxed);
        let settings = self.session.settings_at(self.id, record, part.block);
        let (policy, request) = question(&self.session.segment, Some(record), settings, ahead);
        let mut request = Request { seed, ..request };
        let segment = &self.session.segment;
        let mut tiers = hierarchy(segment, record.store.load(Ordering::Relaxed) as usize);
        if is_small {
            // It takes pages of those that are lent.
            let page = segment.page_bytes() as u64;
            request.bytes = ahead.next_multiple_of(page);
            tiers = tiers.with_more_free(0, u64::from(segment.sparse_left(TierId::RAM)) * page);
        }
        (policy, self.session.engine.first(policy, &tiers, &request))
    }

    /// A bucket that is set aside for this run, if the file may have one: the fastest first.
    fn reserved_for(&self) -> Option<(TierId, BucketId)> {
        let job = self.session.job()?;
        if job.reserved.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let record = self.record;
        let entitled = job.reserved_for.load(Ordering::Relaxed) == reserved_for::ALL
            || self.session.segment.rule_of(record).is_some_and(|rule| rule.settings().reserve > 0);
        if !entitled {
            return None;
        }
        self.session.segment.take_reserved(job.number.load(Ordering::Relaxed), self.owner)
    }

    /// A bucket that `take` gives, with its tier, locked for `block`. `None` if there is none, or
    /// if each of as many as are tried is still locked by a thread that has given it back and does
    /// not go on.
    #[inline(always)]
    pub(super) fn fresh(
        &self,
        block: u64,
        mut take: impl FnMut() -> Option<(TierId, BucketId)>,
    ) -> Option<(TierId, FreshBucket<'_>)> {
        let (tier, bucket) = take()?;
        match self.session.segment.try_init_bucket(bucket, self.id, block, self.owner) {
            Some(fresh) => Some((tier, fresh)),
            None => self.fresh_beside(bucket, block, take),
        }
    }

    /// The same, where bucket `locked` is still locked.
    #[cold]
    fn fresh_beside(
        &self,
        locked: BucketId,
        block: u64,
        mut take: impl FnMut() -> Option<(TierId, BucketId)>,
    ) -> Option<(TierId, FreshBucket<'_>)> {
        let mut kept = [locked; LOCKED_MOST];
        let mut count = 1;
        let mut fresh = None;
        while count < LOCKED_MOST
            && let Some((tier, bucket)) = take()
        {
            let init = self.session.segment.try_init_bucket(bucket, self.id, block, self.owner);
            if let Some(init) = init {
                fresh = Some((tier, init));
                break;
            }
            kept[count] = bucket;
            count += 1;
        }
        for &bucket in &kept[..count] {
            self.session.segment.free_bucket(bucket);
        }
        fresh
    }
}

impl Session {
    /// A sparse bucket of a tier for `pages` of a small file; when their budget is used up, waits a
    /// moment while the node manager lends them more. `None` when it does not.
    fn sparse_room(&self, tier: TierId, owner: Owner, pages: u32) -> Option<BucketId> {
        let segment = &self.segment;
        let header = segment.header();
        let of_tier = &header.tier[tier];
        let most = if tier.is_ram() { SPARSE_LOOKS } else { SLOT_LOOKS };
        let mut looks = 0;
        loop {
            let made = header.room_made.load(Ordering::Acquire);
            if tier.is_ram() && segment.sparse_left(tier) >= pages {
                return segment.take_sparse(owner, pages);
            }
            let slot =
                if tier.is_ram() { None } else { segment.take_sparse_slot(tier, owner, pages) };
            if slot.is_some() {
                return slot;
            }
            let low = of_tier.low.load(Ordering::Relaxed);
            if of_tier.sparse.buckets == 0
                || looks == most
                || segment.free_in(tier) <= low / 2
                || self.waited_for_pages.load(Ordering::Relaxed) == u64::from(made)
            {
                break;
            }
            if tier.is_ram() {
                segment.want_room()
            } else {
                segment.miss_pages(tier)
            }
            futex::wait(&header.room_made, made, SPARSE_LOOK.as_ms());
            looks += 1;
        }
        if looks == most {
            let made = header.room_made.load(Ordering::Acquire);
            self.waited_for_pages.store(u64::from(made), Ordering::Relaxed);
        }
        None
    }

    /// A RAM bucket; when none is free, waits while the node manager makes room. `None` when it
    /// does not.
    pub(crate) fn room(&self, owner: Owner) -> Option<BucketId> {
        self.room_of(owner, Awaited::Room)
    }

    /// The same of a writer that waits for what is said.
    fn room_of(&self, owner: Owner, awaited: Awaited) -> Option<BucketId> {
        if let Some(bucket) = self.segment.take_bucket(owner) {
            return Some(bucket);
        }
        let header = self.segment.header();
        let mut made = header.room_made.load(Ordering::Acquire);
        // What only lacks memory gets it in a moment; there is no pressure.
        let grows = self.segment.growable() > 0;
        // Nothing has become free since a thread here waited in vain: each write would wait as
        // long.
        if self.waited_in_vain.load(Ordering::Relaxed) == u64::from(made) {
            return None;
        }
        if !grows && matches!(awaited, Awaited::Room) && !self.is_pinned_whole() {
            self.counters().backpressure.fetch_add(1, Ordering::Relaxed);
        }
        let mut idle_ms = 0;
        while idle_ms < ROOM_TIMEOUT.as_ms() {
            made = header.room_made.load(Ordering::Acquire);
            if let Some(bucket) = self.segment.take_bucket(owner) {
                return Some(bucket);
            }
            match awaited {
                Awaited::Leaving if !self.gets_room_by_itself() => return None,
                Awaited::Room | Awaited::Planned(_) if self.is_pinned_whole() => return None,
                // Others may have taken the room that was made for it.
                Awaited::Planned(bytes) => self.segment.plan_room(TierId::RAM, bytes),
                _ => {}
            }
            futex::wait(&header.room_made, made, ROOM_LOOK.as_ms());
            if header.room_made.load(Ordering::Acquire) != made {
                idle_ms = 0;
                continue;
            }
            idle_ms += ROOM_LOOK.as_ms();
            // None makes room that is dead or stopped.
            if !self.segment.manager_is_alive() || self.segment.manager_is_stopped() {
                break;
            }
        }
        self.waited_in_vain.store(u64::from(made), Ordering::Relaxed);
        None
    }

    /// Waits until the job of a file may take another bucket of RAM, and counts it, while the node
    /// manager makes room in what the job has. False when it does not.
    fn await_quota(&self, record: &FileRecord) -> bool {
        self.await_quota_as(record, false)
    }

    /// The same for a pin, which waits also where another thread has waited in vain: nothing takes
    /// its place.
    pub(crate) fn await_quota_for_pin(&self, record: &FileRecord) -> bool {
        self.await_quota_as(record, true)
    }

    /// Waits until the job of a file uses no more of RAM than it may: what is beyond that goes to a
    /// lower tier. False if it does not.
    pub(crate) fn await_within_quota(&self, record: &FileRecord) -> bool {
        let is_within = || {
            let quota = self.segment.quota_job(record).map(|job| &job.quota[TierId::RAM]);
            quota.is_none_or(|quota| quota.limit().is_none_or(|limit| quota.used() <= limit))
        };
        self.await_freed(record, is_within).is_ok()
    }

    fn await_quota_as(&self, record: &FileRecord, is_pin: bool) -> bool {
        let claims = || self.segment.claim_quota(record, TierId::RAM, BUCKET_PAGES);
        if claims() {
            return true;
        }
        // Nothing has become free since a thread here waited in vain.
        if !is_pin && self.quota_in_vain.load(Ordering::Relaxed) == self.freed_of_quota(record) {
            self.segment.want_room();
            return false;
        }
        self.counters().backpressure.fetch_add(1, Ordering::Relaxed);
        self.counters().quota_waits.fetch_add(1, Ordering::Relaxed);
        let Err(seen) = self.await_freed(record, claims) else { return true };
        self.quota_in_vain.store(seen, Ordering::Relaxed);
        claims()
    }

    /// Changes with each bucket of RAM that the job of a file gives up.
    fn freed_of_quota(&self, record: &FileRecord) -> u64 {
        let job = self.segment.quota_job(record);
        job.map_or(0, |job| 1 << 32 | u64::from(job.quota[TierId::RAM].base.load(Ordering::SeqCst)))
    }

    /// Waits until `is_enough`, while the node manager makes room in what the job of a file may
    /// have of RAM. When it has made none for long: what [`Session::freed_of_quota`] was.
    fn await_freed(&self, record: &FileRecord, is_enough: impl Fn() -> bool) -> Result<(), u64> {
        let made = &self.segment.header().room_made;
        let freed = || self.freed_of_quota(record);
        self.await_limit(made, freed, || self.segment.want_room(), is_enough)
    }

    /// Waits on `made` until `is_enough`, while the node manager does what it is asked for by
    /// `want`. When `now_seen` has said the same for long: what it said.
    pub(super) fn await_limit(
        &self,
        made: &AtomicU32,
        now_seen: impl Fn() -> u64,
        want: impl Fn(),
        is_enough: impl Fn() -> bool,
    ) -> Result<(), u64> {
        let mut seen = now_seen();
        // By the clock: room that is made for others wakes this thread, too.
        let mut since = clock::monotonic_ns();
        while clock::monotonic_ns().saturating_sub(since) < ROOM_TIMEOUT.as_ns() {
            let before = made.load(Ordering::Acquire);
            if is_enough() {
                return Ok(());
            }
            want();
            futex::wait(made, before, ROOM_LOOK.as_ms());
            let now = now_seen();
            if now != seen {
                // Others may have got the room that was made.
                (seen, since) = (now, clock::monotonic_ns());
            }
            if !self.segment.manager_is_alive() || self.segment.manager_is_stopped() {
                break;
            }
        }
        Err(seen)
    }

    /// Whether all of RAM is pinned, as of the demoter's last look: it gets no room.
    fn is_pinned_whole(&self) -> bool {
        let ram = &self.segment.header().tier[TierId::RAM];
        ram.pinned.load(Ordering::Relaxed) >= ram.buckets && self.segment.growable() == 0
    }

    /// Whether RAM gets room although nothing moves that is not on its way.
    fn gets_room_by_itself(&self) -> bool {
        let clean = &self.segment.header().tier[TierId::RAM].clean;
        self.segment.bound_in_ram() > 0
            || self.segment.growable() > 0
            || clean.load(Ordering::Relaxed) > 0
    }

    /// Maps the pages of a RAM bucket, which the caller has locked, before they are touched one by
    /// one; at most once for each piece: that has memory as long as one of its buckets is in use.
    pub(crate) fn populate(&self, bucket: BucketId) {
        let piece = self.segment.piece_of(bucket);
        // Sparse buckets get memory page by page.
        if piece.is_empty() {
            return;
        }
        let number = piece.start / self.segment.piece_buckets();
        let Some(word) = self.populated.get(number as usize) else { return };
        if word.load(Ordering::Relaxed) != 0 || word.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let at = self.segment.bucket_data(BucketId::from_raw(piece.start));
        // SAFETY: part of the segment's mapping; only page tables change.
        let _ = unsafe {
            rustix::mm::madvise(
                at.cast(),
                piece.len() * self.segment.bucket_bytes(),
                rustix::mm::Advice::LinuxPopulateRead,
            )
        };
    }
}
