//! Taking back what a dead process had.

use crate::crash;
use crate::entry::Entry;
use crate::free_map::{FILLING, FREE, RESERVED, UNBACKED, USED};
use crate::guards::ExclusiveGuard;
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BucketId, FileId};

impl Counters {
    /// Adds the counts of a process that is gone, and takes them from its slot.
    fn take_over(&self, gone: &Counters) {
        for (total, counter) in self.all().iter().zip(gone.all()) {
            total.value.fetch_add(counter.value.swap(0, Ordering::AcqRel), Ordering::Relaxed);
        }
    }
}

impl Segment {
    /// Gives `file`, which is held by `reaper` of a process that goes on after an exec, to `heir`,
    /// a slot that this process has claimed for that: it is reaped, and what was left undone is
    /// completed, as if a process had died over it.
    pub fn bequeath(&self, file: FileId, reaper: Owner, heir: u32) {
        self.client(heir).seem_inside();
        let exclusive = &self.file(file).exclusive;
        let (from, to) = (reaper.raw(), Owner::reaper(heir).raw());
        let _ = exclusive.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        crash::point("slot.bequeathed");
        self.client(heir).state.store(slot_state::REAPING, Ordering::Release);
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
        self.watches().remove_of(slot);
        self.header().past.take_over(&client.counters);
        // The next process's use of the same bucket is another one.
        client.last_bucket.store(0, Ordering::Relaxed);
        self.clients().vacate(slot);
        Some(inside)
    }

    /// Takes back the locks, cached buckets and nodes of `slot`, whose process is gone. Returns
    /// whether it was inside a file or the table, `None` if this is to be called again.
    pub fn reap_holdings(&self, slot: u32, unfinished: impl FnMut(FileId, Owner)) -> Option<bool> {
        let client = self.client(slot);
        // A thread that was in the kernel's open had no shared lock.
        client.opening.store(0, Ordering::SeqCst);
        // The manager's own threads lock buckets without a shared lock.
        let inside = slot == MANAGER_SLOT || client.is_inside();
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
            self.repair_sparse();
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
        // It had the file open.
        for file in self.files().touched_or_left() {
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

    /// False if it is to be called again.
    fn reap_locks(&self, slot: u32, mut unfinished: impl FnMut(FileId, Owner)) -> bool {
        let reaper = Owner::reaper(slot);
        self.queue().take_back(|owner| owner.slot() == slot);
        self.asks().take_back(|owner| owner.slot() == slot);
        self.registrations().take_back(|owner| owner.slot() == slot);
        // It may have died before it came to say which file is to be found.
        self.registrations().miss();
        self.files().stripes.iter().for_each(|stripe| stripe.take_back(slot));
        self.descriptions().reap(slot);
        if !self.reap_files(slot, reaper) {
            return false;
        }
        // Buckets before files: a truncate is completed by a thread that locks buckets.
        self.reap_buckets(slot);
        // Those that it had open: a thread is inside no other file alone.
        for file in self.files().touched() {
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
}

fn is_state(raw: u32) -> bool {
    matches!(raw, FREE | USED | FILLING | RESERVED | UNBACKED)
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
    use crate::backoff::Backoff;
    use crate::liveness;
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
        let slot = segment.clients().claim(DEAD_PID, 1).unwrap();
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
    fn a_lock_of_a_dead_process_is_taken_without_the_manager() {
        let (segment, _file) = pool();
        let slot = segment.clients().claim(DEAD_PID, 1).unwrap();
        let bucket = segment.bucket(BucketId::from_raw(9)).unwrap();
        bucket.lock.try_lock(Owner::new(slot, 1)).unwrap();
        let pid = std::process::id();
        let mine = segment.clients().claim(pid, liveness::start_time(pid).unwrap()).unwrap();
        let mine = Owner::new(mine, 0);
        let Ok(lock) = segment.lock_bucket_looking(bucket, mine, Segment::waits_on);
        assert_eq!((lock.is_taken(), bucket.lock.holder()), (true, Some(mine)));
    }

    #[test]
    fn an_open_in_which_a_process_died_is_none_of_the_next_one_in_its_slot() {
        let (segment, _file) = pool();
        let slot = segment.clients().claim(DEAD_PID, 1).unwrap();
        segment.client(slot).begin_open();
        assert!(segment.clients().openers().eq([DEAD_PID]));
        segment.reap_slot(slot, |_, _| {});
        assert_eq!(segment.clients().claim(std::process::id(), 1), Some(slot));
        assert_eq!(segment.clients().openers().count(), 0);
    }

    #[test]
    fn what_a_dead_process_was_discarding_is_freed_by_who_takes_its_lock() {
        let (segment, _file) = pool();
        let before = segment.free_buckets(TierId::RAM).available();
        let pid = std::process::id();
        let claim = || segment.clients().claim(pid, liveness::start_time(pid).unwrap()).unwrap();
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
}
