//! Client slots: claimed by processes, handed to forked children, reaped after a death.

use crate::backoff::Backoff;
use crate::crash;
use crate::entry::Entry;
use crate::free_map::{FILLING, FREE, RESERVED, USED};
use crate::guards::ExclusiveGuard;
use crate::layout::*;
use crate::liveness;
use crate::owner::Owner;
use crate::segment::{MANAGER_SLOT, Segment};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BucketId, FileId};

/// Process numbers are below 2^22 (Linux's PID_MAX_LIMIT); beside a child's stand the lower bits of
/// the generation of the slot that is for it.
const PID_BITS: u32 = 22;
const PID_MASK: u32 = (1 << PID_BITS) - 1;

impl Segment {
    /// Claims a slot for process `pid` that started at `start`. `None` when all are in use.
    pub fn claim_slot(&self, pid: u32, start: u64) -> Option<u32> {
        if crash::refused("client") {
            return None;
        }
        let slot = self.reserve_slot(pid, start)?;
        self.client(slot).state.store(slot_state::LIVE, Ordering::Release);
        Some(slot)
    }

    /// Takes a slot for a child about to be forked by `pid`. Until the child confirms with
    /// [`Segment::confirm_slot`], the slot lives as long as its parent, or as the child.
    pub fn reserve_slot(&self, pid: u32, start: u64) -> Option<u32> {
        for slot in 1..self.header().clients {
            let client = self.client(slot);
            if client.state.load(Ordering::Relaxed) != slot_state::FREE
                || client
                    .state
                    .compare_exchange(
                        slot_state::FREE,
                        slot_state::RESERVED,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_err()
            {
                continue;
            }
            crash::point("slot.reserved");
            // The start before the process: with that of an earlier one it would be taken for dead.
            client.start.store(start, Ordering::Release);
            client.pid.store(pid, Ordering::SeqCst);
            client.job.store(0, Ordering::Release);
            client.unrecorded.store(0, Ordering::SeqCst);
            client.generation.fetch_add(1, Ordering::AcqRel);
            // Different clients start their searches in different places.
            client.bucket_hint.store(slot.wrapping_mul(37), Ordering::Relaxed);
            self.header().clients_high.fetch_max(slot + 1, Ordering::SeqCst);
            return Some(slot);
        }
        None
    }

    /// Makes a reserved slot that of process `pid`. False if it is not the one any more that was
    /// reserved when it had `generation`: it was taken for that of a process that is dead.
    pub fn confirm_slot(&self, slot: u32, generation: u32, pid: u32, start: u64) -> bool {
        let client = self.client(slot);
        let is_ours = client.state.load(Ordering::SeqCst) == slot_state::RESERVED
            && client.generation.load(Ordering::SeqCst) == generation;
        if !is_ours {
            return false;
        }
        // First, so that the manager has who lives.
        self.note_child(slot, generation, pid);
        client.pid.store(pid, Ordering::Release);
        client.start.store(start, Ordering::Release);
        let (from, to) = (slot_state::RESERVED, slot_state::LIVE);
        client.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Copies what `parent` holds, and the job it belongs to, to its child's slot.
    pub fn inherit(&self, parent: u32, child: u32) {
        let unrecorded = self.client(parent).unrecorded.load(Ordering::SeqCst);
        self.client(child).unrecorded.fetch_or(unrecorded, Ordering::SeqCst);
        let job = self.client(parent).job.load(Ordering::SeqCst);
        self.client(child).job.store(job, Ordering::SeqCst);
        self.descriptions().inherit(parent, child);
    }

    /// Takes a reserved slot away from a child that was never there, or is dead: to be reaped.
    /// False if it was confirmed meanwhile.
    pub fn take_unconfirmed(&self, slot: u32) -> bool {
        let state = &self.client(slot).state;
        let (from, to) = (slot_state::RESERVED, slot_state::REAPING);
        state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the numbers of processes in the slots are what they are here: in another PID
    /// namespace they are others. Also where /proc does not tell.
    pub fn has_numbers_of_here(&self) -> bool {
        let (theirs, ours) =
            (self.header().namespace.load(Ordering::Relaxed), liveness::namespace());
        theirs == ours || theirs == 0 || ours == 0
    }

    /// Counts an open that the process of `slot` is about to begin, until [`Segment::end_open`].
    #[inline]
    pub fn begin_open(&self, slot: u32) {
        self.client(slot).opening.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends an open: it has failed, or the file's description is live.
    #[inline]
    pub fn end_open(&self, slot: u32) {
        self.client(slot).opening.fetch_sub(1, Ordering::SeqCst);
    }

    /// The processes that have opens under way. A file without a description may still be read by
    /// one: it may have the file open, as far as the kernel knows, and not have come to its record,
    /// and the file have lost its name meanwhile. When it was seen to have no name, and after that
    /// there is no opener, no process will come to have it open.
    pub fn openers(&self) -> impl Iterator<Item = u32> {
        let opens = |slot: &u32| {
            let client = self.client(*slot);
            client.state.load(Ordering::SeqCst) != slot_state::FREE
                && client.opening.load(Ordering::SeqCst) != 0
        };
        let slots = 1..self.header().clients_high.load(Ordering::SeqCst);
        slots.filter(opens).map(|slot| self.client(slot).pid.load(Ordering::Acquire))
    }

    /// Gives a reserved slot back: the fork failed.
    pub fn cancel_slot(&self, slot: u32) {
        self.descriptions().release_all(slot);
        self.vacate(slot);
    }

    /// The process that reserves the slot next must not be taken for the process that had it, nor
    /// for one whose child that was for.
    fn vacate(&self, slot: u32) {
        let client = self.client(slot);
        client.pid.store(0, Ordering::Release);
        client.child.store(0, Ordering::Release);
        client.unrecorded.store(0, Ordering::SeqCst);
        // A parent may still be about to name its child, which is gone.
        client.generation.fetch_add(1, Ordering::AcqRel);
        client.state.store(slot_state::FREE, Ordering::Release);
    }

    /// Notes, for the parent that has reserved `slot` in its `generation`, which child that is for.
    /// The child may have had it, and died, and the slot be another's.
    pub fn note_child(&self, slot: u32, generation: u32, child: u32) {
        let word = generation << PID_BITS | child & PID_MASK;
        self.client(slot).child.store(word, Ordering::Release);
    }

    /// The child that a reserved slot is for, if the parent has named one.
    pub fn child_of(&self, slot: u32) -> Option<u32> {
        let client = self.client(slot);
        let word = client.child.load(Ordering::Acquire);
        let generation = client.generation.load(Ordering::Acquire);
        let is_of_now = word >> PID_BITS == generation << PID_BITS >> PID_BITS;
        (is_of_now && word & PID_MASK != 0).then_some(word & PID_MASK)
    }

    /// The live slot of process `pid`, if it has one: an exec keeps the process and its slot.
    pub fn slot_of(&self, pid: u32, start: u64) -> Option<u32> {
        (1..self.header().clients_high.load(Ordering::Acquire)).find(|&slot| {
            let client = self.client(slot);
            client.state.load(Ordering::Acquire) == slot_state::LIVE
                && client.pid.load(Ordering::Acquire) == pid
                && client.start.load(Ordering::Acquire) == start
        })
    }

    /// Gives `file`, which is held by `reaper` of a process that goes on after an exec, to `heir`,
    /// a slot that this process has claimed for that: it is reaped, and what was left undone is
    /// completed, as if a process had died over it.
    pub fn bequeath(&self, file: FileId, reaper: Owner, heir: u32) {
        self.seem_inside(heir);
        let exclusive = &self.file(file).exclusive;
        let (from, to) = (reaper.raw(), Owner::reaper(heir).raw());
        let _ = exclusive.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        crash::point("slot.bequeathed");
        self.client(heir).state.store(slot_state::REAPING, Ordering::Release);
    }

    /// Lets the process that reaps `slot` look for what it holds.
    pub fn seem_inside(&self, slot: u32) {
        let word = SharedLock { thread: 1, scope: LockScope::TABLE }.encode();
        self.client(slot).shared_locks[0].store(word, Ordering::SeqCst);
    }

    /// Takes back everything that the dead process of `slot` held, and frees the slot. For the node
    /// manager. Files with a truncate left undone are handed to `unfinished`, still exclusively
    /// held by the dead owner given. Returns whether it died inside a file; `None` if something of
    /// it can only be taken back when another process, which may be stopped, has let go: to be
    /// called again.
    pub fn reap_slot(&self, slot: u32, unfinished: impl FnMut(FileId, Owner)) -> Option<bool> {
        let client = self.client(slot);
        client.state.store(slot_state::REAPING, Ordering::Release);
        crash::point("reap.begin");
        let inside = self.reap_holdings(slot, unfinished)?;
        crash::point("reap.holdings");
        self.descriptions().release_all(slot);
        self.add_to_past(&client.counters);
        self.vacate(slot);
        Some(inside)
    }

    /// Takes back the locks, cached buckets and nodes of `slot`, whose process is gone. Returns
    /// whether it was inside a file or the table, `None` if this is to be called again.
    pub fn reap_holdings(&self, slot: u32, unfinished: impl FnMut(FileId, Owner)) -> Option<bool> {
        let client = self.client(slot);
        // A thread that was in the kernel's open had no shared lock.
        client.opening.store(0, Ordering::SeqCst);
        // The manager's own threads lock buckets without a shared lock.
        let inside = slot == MANAGER_SLOT
            || client.shared_locks.iter().any(|word| word.load(Ordering::Acquire) != 0);
        if inside {
            crash::point("reap.inside");
            if !self.reap_locks(slot, unfinished) {
                return None;
            }
            crash::point("reap.locks");
        }
        // What is not stamped as this slot's is in use: the place is damaged.
        let is_its_own = |state: &AtomicU32| {
            let state = state.load(Ordering::Acquire);
            !is_state(state) && Owner::from_raw(state).is_some_and(|owner| owner.slot() == slot)
        };
        for place in &client.buckets {
            if let Some(bucket) = place.swap(0, Ordering::AcqRel).checked_sub(1)
                && let bucket = BucketId::from_raw(bucket)
                && self.bucket(bucket).is_some_and(|meta| is_its_own(&meta.state))
            {
                crash::point("reap.cache");
                self.free_bucket(bucket);
            }
        }
        let nodes = self.index_nodes(slot);
        for place in nodes.cache {
            if let Some(node) = place.swap(0, Ordering::AcqRel).checked_sub(1)
                && nodes.index.node(node).is_some()
                && is_its_own(nodes.state(node))
            {
                nodes.release(node);
            }
        }
        if inside {
            self.reap_nodes(slot);
            // Bits whose items were not taken any more.
            self.free_buckets(TierId::RAM).repair(self.header().ram_ready.load(Ordering::Acquire));
            nodes.free().repair(self.header().nodes);
            // Last: the thread that completes an interrupted reaping starts again.
            for word in &client.shared_locks {
                word.store(0, Ordering::Release);
            }
        }
        Some(inside)
    }

    /// Takes back the nodes that a dead process took and did not cache: those that it linked are
    /// in use, the others are free.
    fn reap_nodes(&self, slot: u32) {
        let nodes = self.index_nodes(slot);
        let stamp = |node: u32| {
            let state = nodes.state(node).load(Ordering::Acquire);
            (Owner::from_raw(state)?.slot() == slot && !is_state(state)).then_some(state)
        };
        let stamped: Vec<u32> =
            (0..self.header().nodes).filter(|&node| stamp(node).is_some()).collect();
        if stamped.is_empty() {
            return;
        }
        let mut linked = vec![false; stamped.len()];
        let files = self.header().file_ids();
        let used =
            |file: &FileId| self.file(*file).state.load(Ordering::Acquire) != file_state::FREE;
        for file in files.filter(used) {
            nodes.index.for_each_node(self.file(file), &mut |node| {
                if let Ok(at) = stamped.binary_search(&node) {
                    linked[at] = true;
                }
            });
        }
        for (&node, &linked) in stamped.iter().zip(&linked) {
            let Some(state) = stamp(node) else { continue };
            let next = if linked { USED } else { Owner::reaper(slot).raw() };
            // Unless it was pruned meanwhile.
            let place = nodes.state(node);
            let same = place.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed);
            if same.is_ok() && !linked {
                nodes.release(node);
            }
        }
    }

    fn add_to_past(&self, counters: &Counters) {
        let past = self.header().past.all();
        for (total, counter) in past.iter().zip(counters.all()) {
            total.value.fetch_add(counter.value.swap(0, Ordering::AcqRel), Ordering::Relaxed);
        }
    }

    /// False if it is to be called again.
    fn reap_locks(&self, slot: u32, mut unfinished: impl FnMut(FileId, Owner)) -> bool {
        let reaper = Owner::reaper(slot);
        self.queue().take_back(|owner| owner.slot() == slot);
        self.stripes().for_each(|stripe| stripe.take_back(slot));
        self.descriptions().reap(slot);
        if !self.reap_files(slot, reaper) {
            return false;
        }
        // Buckets before files: a truncate is completed by someone who locks buckets.
        self.reap_buckets(slot);
        for file in self.live_files() {
            let record = self.file(file);
            record.append.take_back(slot);
            // Before anything else of the file can be taken for free.
            self.note_lengtheners(record, slot);
            self.for_each_entry(record, 0, |_, place| {
                free_if_busy(place, slot);
                true
            });
            let exclusive = &record.exclusive;
            let holder = Owner::from_raw(exclusive.load(Ordering::SeqCst));
            // A client that waits for the file may take it first.
            if let Some(holder) = holder.filter(|holder| holder.slot() == slot)
                && exclusive
                    .compare_exchange(
                        holder.raw(),
                        reaper.raw(),
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                crash::point("reap.exclusive");
                if record.has_intent() {
                    unfinished(file, reaper);
                } else {
                    drop(ExclusiveGuard::of(record, Some(reaper)));
                }
            }
        }
        true
    }

    fn reap_buckets(&self, slot: u32) {
        for bucket in self.header().bucket_ids() {
            let Some(meta) = self.bucket(bucket) else { continue };
            let cached = Owner::from_raw(meta.state.load(Ordering::Acquire))
                .is_some_and(|owner| owner.slot() == slot && !is_state(owner.raw()));
            let holder = meta.lock.holder().filter(|holder| holder.slot() == slot);
            if holder.is_some() {
                self.note_dirty_tail(meta);
            }
            if let Some(holder) = holder
                && let Some(mut lock) = meta.lock.guard_of_dead(holder, Owner::reaper(slot))
            {
                meta.pages.repair(&meta.valid);
                crash::point("reap.bucket");
                if meta.state.load(Ordering::Acquire) == USED && !self.is_indexed(bucket) {
                    self.free_bucket(bucket);
                }
                lock.changed();
            }
            // Taken, and killed before it came into the cache. Cached ones are freed there.
            let in_cache = || {
                let caches = &self.client(slot).buckets;
                caches.iter().any(|place| place.load(Ordering::Relaxed) == bucket.raw() + 1)
            };
            if cached && !in_cache() {
                self.free_bucket(bucket);
            }
        }
    }

    /// Whether the index entry of the bucket's block names this bucket.
    pub fn is_indexed(&self, bucket: BucketId) -> bool {
        let Some(meta) = self.bucket(bucket) else { return false };
        let file = meta.file.load(Ordering::Relaxed);
        if !self.header().has_file(file)
            || self.file(file).state.load(Ordering::Acquire) != file_state::LIVE
        {
            return false;
        }
        let block = meta.block.load(Ordering::Relaxed);
        self.entry(self.file(file), block).is_some_and(|place| {
            matches!(
                Entry::decode(place.load(Ordering::Acquire)),
                Entry::Resident { bucket: named, .. } if named == bucket
            )
        })
    }

    /// What a new node manager does before it serves an old segment: takes back what its
    /// predecessor and all dead processes held, counts pages under writeback as dirty again,
    /// frees what no index entry names, and makes the free maps agree with the states.
    pub fn recover(&self, mut unfinished: impl FnMut(FileId, Owner)) -> Recovered {
        let mut found = Recovered::default();
        self.raise_marks();
        self.take_orphaned_intents(&mut unfinished);
        self.reap_holdings(MANAGER_SLOT, &mut unfinished);
        for slot in 1..self.header().clients_high.load(Ordering::Acquire) {
            let state = self.client(slot).state.load(Ordering::Acquire);
            let alive = match state {
                slot_state::FREE => continue,
                slot_state::REAPING => false,
                _ => liveness::is_alive(
                    self.client(slot).pid.load(Ordering::Acquire),
                    self.client(slot).start.load(Ordering::Acquire),
                ),
            };
            if state == slot_state::RESERVED && !alive {
                // Just being reserved, or a child's that may live: the manager's rounds see to it.
                continue;
            }
            if alive {
                found.clients += 1;
            } else {
                self.reap_slot(slot, &mut unfinished);
            }
        }
        crash::point("recover.reaped");
        let manager = Owner::new(MANAGER_SLOT, 0);
        let mut backoff = Backoff::default();
        for bucket in self.header().bucket_ids() {
            self.recover_bucket(bucket, manager, &mut backoff, &mut found);
        }
        crash::point("recover.buckets");
        for tier in self.header().tiers_in_use() {
            let map = self.free_buckets(tier);
            let ready = if tier.is_ram() {
                self.header().ram_ready.load(Ordering::Acquire)
            } else {
                map.count
            };
            map.repair(ready);
            self.header().tier[tier].free.store(map.available(), Ordering::Relaxed);
        }
        self.index_nodes(MANAGER_SLOT).free().repair(self.header().nodes);
        found
    }

    /// Finds truncates and punches whose owner was reaped by a manager that died before it
    /// completed them.
    fn take_orphaned_intents(&self, mut unfinished: impl FnMut(FileId, Owner)) {
        for file in self.live_files() {
            let record = self.file(file);
            let seen = record.exclusive.load(Ordering::SeqCst);
            let slot = Owner::from_raw(seen).map(Owner::slot);
            // What the manager and those that are still to be reaped hold is found with them.
            let orphaned = slot.is_none_or(|slot| {
                slot != MANAGER_SLOT
                    && self.client(slot).state.load(Ordering::Acquire) == slot_state::FREE
            });
            if !orphaned || seen == 0 && !record.has_intent() {
                continue;
            }
            let reaper = Owner::reaper(slot.unwrap_or(MANAGER_SLOT));
            let exchange = record.exclusive.compare_exchange(
                seen,
                reaper.raw(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            // One that no process held is the manager's now, whose holdings come next.
            if exchange.is_ok() && slot.is_some() {
                unfinished(file, reaper);
            }
        }
    }

    /// Counts the pages as dirty that a dead manager was writing. Needs no lock: no thread frees a
    /// page under writeback, and who holds the lock only adds pages, or waits for those under
    /// writeback.
    fn take_back_writeback(&self, meta: &BucketMeta, found: &mut Recovered) {
        let torn = meta.pages.take_back(&meta.valid, || crash::point("recover.writeback"));
        if meta.state.load(Ordering::Acquire) == FREE {
            // Given back meanwhile, by a thread that did not wait for a dead manager.
            meta.pages.clear_dirty(torn);
        }
        let dirty = meta.pages.dirty();
        if dirty != 0 {
            found.dirty_pages += u64::from(dirty.count_ones());
            self.file(meta.file.load(Ordering::Relaxed)).set(FileFlags::DIRTY);
        }
    }

    fn recover_bucket(
        &self,
        bucket: BucketId,
        manager: Owner,
        backoff: &mut Backoff,
        found: &mut Recovered,
    ) {
        let Some(meta) = self.bucket(bucket) else { return };
        match meta.state.load(Ordering::Acquire) {
            FREE | RESERVED => return,
            FILLING => return self.free_bucket(bucket),
            USED => {}
            raw => {
                let dead = Owner::from_raw(raw).is_none_or(|owner| self.owner_is_dead(owner));
                if dead {
                    self.free_bucket(bucket);
                }
                return;
            }
        }
        // A live client may be initializing it, or at work in it, and stopped over that; its lock
        // is then held.
        let Ok(mut lock) = self.lock_bucket_within(meta, manager, backoff) else {
            if meta.state.load(Ordering::Acquire) == USED && self.is_indexed(bucket) {
                self.take_back_writeback(meta, found);
            }
            return;
        };
        if meta.state.load(Ordering::Acquire) == USED {
            if self.is_indexed(bucket) {
                self.take_back_writeback(meta, found);
            } else {
                found.orphans += 1;
                self.free_bucket(bucket);
            }
        }
        lock.changed();
    }
}

/// What [`Segment::recover`] found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Clients that still run.
    pub clients: u32,
    /// Dirty pages to drain.
    pub dirty_pages: u64,
    /// Buckets that nothing named.
    pub orphans: u32,
}

fn is_state(raw: u32) -> bool {
    matches!(raw, FREE | USED | FILLING | RESERVED)
}

fn free_if_busy(place: &AtomicU64, slot: u32) {
    let word = place.load(Ordering::Acquire);
    if let Entry::Busy(owner) = Entry::decode(word)
        && owner.slot() == slot
    {
        let _ = place.compare_exchange(word, Entry::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::segment::anonymous;

    const DEAD_PID: u32 = u32::MAX - 7;

    fn pool() -> (Segment, rustix::fd::OwnedFd) {
        anonymous(&Geometry::for_tiers(4096, &[256 << 18])).unwrap()
    }

    /// Leaves every kind of thing behind that a killed process can.
    #[test]
    fn a_dead_process_leaves_nothing_behind() {
        let (segment, _file) = pool();
        let before = segment.free_buckets(TierId::RAM).available();
        let slot = segment.claim_slot(DEAD_PID, 1).unwrap();
        // Threads of it, as no thread comes to all of that.
        let [dead, other, third] = [4, 5, 6].map(|thread| Owner::new(slot, thread));
        let me = Owner::new(MANAGER_SLOT, 0);
        let identity = Identity { device: 1, inode: 2 };
        let file = segment.with_file_or_new(identity, dead, |file, _| file).unwrap();
        segment.open_description(file, DescriptionFlags::NONE, dead).unwrap();

        let published = segment.take_bucket(dead).unwrap();
        core::mem::forget(segment.init_bucket(published, file, 3, dead).unwrap());
        let meta = segment.bucket(published).unwrap();
        meta.valid.store(0b0111, Ordering::Relaxed);
        meta.pages.reset(0b1010);
        let record = segment.file(file);
        let place = segment.entry_or_insert(record, 3, dead).unwrap();
        place.store(Entry::resident(TierId::RAM, published).encode(), Ordering::Release);

        let unpublished = segment.take_bucket(dead).unwrap();
        core::mem::forget(segment.init_bucket(unpublished, file, 4, other).unwrap());
        let around = segment.entry_or_insert(record, 5, dead).unwrap();
        around.store(Entry::Busy(dead).encode(), Ordering::Release);
        record.append.try_lock(dead).unwrap();
        let table = segment.enter_table(third);
        core::mem::forget(segment.lock_exclusive(&table, file, third).unwrap());
        record.intent.store(1, Ordering::Relaxed);

        let mut undone = Vec::new();
        segment.reap_slot(slot, |file, owner| undone.push((file, owner)));
        assert_eq!(undone, [(file, Owner::reaper(slot))]);
        assert_eq!(segment.free_buckets(TierId::RAM).available(), before - 1);
        assert_eq!(
            Entry::decode(place.load(Ordering::Relaxed)),
            Entry::resident(TierId::RAM, published)
        );
        assert_eq!(meta.pages.dirty(), 0b0010, "not valid, so not dirty");
        assert_eq!(Entry::decode(around.load(Ordering::Relaxed)), Entry::Empty);
        assert!(record.append.try_lock(me).is_ok());
        assert!(meta.lock.try_lock(me).is_ok());
        assert_eq!(segment.client(slot).state.load(Ordering::Relaxed), slot_state::FREE);
        assert_eq!(segment.descriptions().held(slot, 0).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn recovery_makes_writeback_dirty_and_frees_orphans() {
        let (segment, _file) = pool();
        let before = segment.free_buckets(TierId::RAM).available();
        let slot = segment.claim_slot(DEAD_PID, 1).unwrap();
        let dead = Owner::new(slot, 0);
        let identity = Identity { device: 1, inode: 2 };
        let file = segment.with_file_or_new(identity, dead, |file, _| file).unwrap();
        for block in 0..3 {
            let bucket = segment.take_bucket(dead).unwrap();
            core::mem::forget(segment.init_bucket(bucket, file, block, dead).unwrap());
            let meta = segment.bucket(bucket).unwrap();
            meta.valid.store(3, Ordering::Relaxed);
            meta.pages.set(meta.pages.dirty(), 3);
            if block != 2 {
                let place = segment.entry_or_insert(segment.file(file), block, dead).unwrap();
                place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
            }
            meta.lock.unlock_changed();
        }
        let found = segment.recover(|_, _| {});
        assert_eq!(found, Recovered { clients: 0, dirty_pages: 4, orphans: 1 });
        assert_eq!(segment.free_buckets(TierId::RAM).available(), before - 2);
        assert_eq!(segment.recover(|_, _| {}).orphans, 0);
        assert!(segment.file(file).has(FileFlags::DIRTY));
    }

    #[test]
    fn a_child_is_named_for_one_reservation_only() {
        let (segment, _file) = pool();
        let slot = segment.reserve_slot(7, 1).unwrap();
        let generation = segment.client(slot).generation.load(Ordering::Relaxed);
        assert_eq!(segment.child_of(slot), None);
        segment.note_child(slot, generation, 4_194_303);
        assert_eq!(segment.child_of(slot), Some(4_194_303));
        segment.cancel_slot(slot);
        assert_eq!(segment.child_of(slot), None);
        // A parent that comes late.
        segment.note_child(slot, generation, 9);
        assert_eq!(segment.child_of(slot), None);
        assert_eq!(segment.reserve_slot(8, 1), Some(slot));
        assert_eq!(segment.child_of(slot), None);
        segment.note_child(slot, generation, 9);
        assert_eq!(segment.child_of(slot), None);
    }

    #[test]
    fn a_lock_of_a_dead_process_is_taken_without_the_manager() {
        let (segment, _file) = pool();
        let slot = segment.claim_slot(DEAD_PID, 1).unwrap();
        let bucket = segment.bucket(BucketId::from_raw(9)).unwrap();
        bucket.lock.try_lock(Owner::new(slot, 1)).unwrap();
        let pid = std::process::id();
        let mine = segment.claim_slot(pid, liveness::start_time(pid).unwrap()).unwrap();
        let mine = Owner::new(mine, 0);
        let Ok(lock) = segment.lock_bucket_looking(bucket, mine, Segment::waits_on);
        assert_eq!((lock.is_taken(), bucket.lock.holder()), (true, Some(mine)));
    }

    #[test]
    fn an_open_in_which_a_process_died_is_none_of_the_next_one_in_its_slot() {
        let (segment, _file) = pool();
        let slot = segment.claim_slot(DEAD_PID, 1).unwrap();
        segment.begin_open(slot);
        assert!(segment.openers().eq([DEAD_PID]));
        segment.reap_slot(slot, |_, _| {});
        assert_eq!(segment.claim_slot(std::process::id(), 1), Some(slot));
        assert_eq!(segment.openers().count(), 0);
    }

    #[test]
    fn what_a_dead_process_was_discarding_is_freed_by_who_takes_its_lock() {
        let (segment, _file) = pool();
        let before = segment.free_buckets(TierId::RAM).available();
        let pid = std::process::id();
        let claim = || segment.claim_slot(pid, liveness::start_time(pid).unwrap()).unwrap();
        let (dying, mine) = (Owner::new(claim(), 1), Owner::new(claim(), 1));
        let identity = Identity { device: 1, inode: 2 };
        let file = segment.with_file_or_new(identity, mine, |file, _| file).unwrap();
        let bucket = segment.take_bucket(dying).unwrap();
        core::mem::forget(segment.init_bucket(bucket, file, 3, dying).unwrap());
        let meta = segment.bucket(bucket).unwrap();
        meta.valid.store(3, Ordering::Relaxed);
        meta.pages.reset(3);
        let place = segment.entry_or_insert(segment.file(file), 3, dying).unwrap();
        place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
        // While the lock is waited for.
        let die = |segment: &Segment, _: Owner, _: &Backoff| -> Result<(), ()> {
            place.store(Entry::EMPTY, Ordering::Release);
            segment.client(dying.slot()).pid.store(DEAD_PID, Ordering::Release);
            Ok(())
        };
        assert_eq!(
            segment.lock_block_looking(place, mine, die).unwrap().map(|block| block.word()),
            None
        );
        assert_eq!((meta.pending(), meta.lock.holder()), (0, None));
        segment.reap_slot(dying.slot(), |_, _| {});
        assert_eq!(segment.free_buckets(TierId::RAM).available(), before);
    }

    #[test]
    fn files_without_a_record_are_forgotten_with_the_last_process_that_may_use_them() {
        let (segment, _file) = pool();
        let me = std::process::id();
        let start = liveness::start_time(me).unwrap();
        let parent = segment.claim_slot(me, start).unwrap();
        let (one, other) = (Identity { device: 7, inode: 1 }, Identity { device: 7, inode: 2 });
        segment.note_unrecorded(one, Owner::new(parent, 1));
        let child = segment.reserve_slot(me, start).unwrap();
        segment.inherit(parent, child);
        // Noted by another thread between that and the fork.
        segment.note_unrecorded(other, Owner::new(parent, 2));
        segment.forget_unrecorded();
        assert!(segment.is_unrecorded(one) && segment.is_unrecorded(other));
        segment.cancel_slot(parent);
        segment.forget_unrecorded();
        assert!(segment.is_unrecorded(one) && segment.is_unrecorded(other));
        segment.cancel_slot(child);
        assert!(segment.is_unrecorded(one));
        segment.forget_unrecorded();
        assert!(!segment.is_unrecorded(one) && !segment.is_unrecorded(other));
    }
}
