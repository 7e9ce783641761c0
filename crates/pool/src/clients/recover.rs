//! What a new node manager does with what its predecessor has left.

use crate::BucketId;
use crate::FileId;
use crate::backoff::Backoff;
use crate::crash;
use crate::free_map::{FILLING, FREE, RESERVED, UNBACKED, USED};
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::sync::Ordering;

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

impl Segment {
    /// What a new node manager does before it serves an old segment: takes back what its
    /// predecessor and all dead processes held, counts pages under writeback as dirty again,
    /// frees what no index entry names, and makes the free maps agree with the states.
    pub fn recover(&self, mut unfinished: impl FnMut(FileId, Owner)) -> Recovered {
        let mut found = Recovered::default();
        self.raise_marks();
        // What the predecessor was to look at is not all known: see `Files::settle`.
        self.files().touch_all();
        self.files().note_free(0, u32::MAX);
        self.take_orphaned_intents(&mut unfinished);
        self.reap_holdings(MANAGER_SLOT, &mut unfinished);
        for (slot, client) in self.clients().used() {
            let state = client.state.load(Ordering::Acquire);
            let alive = match state {
                slot_state::FREE => continue,
                slot_state::REAPING => false,
                _ => client.lives(),
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
        self.recover_memory();
        self.recover_lent();
        self.repair_sparse();
        for tier in self.header().tiers_in_use() {
            let map = self.free_buckets(tier);
            let ready = if tier.is_ram() {
                self.header().ram_ready.load(Ordering::Acquire)
            } else {
                map.count
            };
            map.repair(ready);
            let without = if tier.is_ram() { self.growable() } else { 0 };
            self.header().tier[tier].free.store(map.available() + without, Ordering::Relaxed);
        }
        self.index_nodes(MANAGER_SLOT).free().repair(self.header().nodes);
        found
    }

    /// Finds truncates and punches whose owner was reaped by a manager that died before it
    /// completed them.
    fn take_orphaned_intents(&self, mut unfinished: impl FnMut(FileId, Owner)) {
        for file in self.files().live() {
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
    /// page under writeback, and the holder of the lock only adds pages, or waits for those under
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
            FREE | RESERVED | UNBACKED => return,
            FILLING => return self.free_bucket(bucket),
            USED => {}
            raw => {
                let dead = Owner::from_raw(raw).is_none_or(|owner| self.clients().is_dead(owner));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::entry::Entry;
    use crate::segment::anonymous;

    #[test]
    fn recovery_makes_writeback_dirty_and_frees_orphans() {
        let geometry = Geometry::for_tiers(4096, &[256 << 18]);
        let (segment, _file) = anonymous(&geometry).unwrap();
        let before = segment.free_buckets(TierId::RAM).available();
        let slot = segment.clients().claim(u32::MAX - 7, 1).unwrap();
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
}
