//! Sparse buckets: homes of small files, of which only the pages in use have memory, or room in
//! their tier's file. See docs/design/small-files.md.
//!
//! A page is claimed from a budget before it gets memory or room, and counts as claimed until that
//! is given up. What a killed process leaves in between is in the bucket's own count, from which
//! the node manager corrects the sum.

use crate::backoff::Backoff;
use crate::free_map::{FILLING, FREE, UNBACKED};
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};
use crate::{BucketId, FileId, crash};
use core::ops::Range;

/// Buckets whose memory is given up at once: what processes are reading is looked at once for all.
const TRIMMED: usize = 64;

/// Slots whose room is given up at once: a file system may take a fifth of a millisecond for each.
const SLOTS_TRIMMED: u32 = 2048;

/// How the sparse buckets are used.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SparseUse {
    /// Pages that have memory, or may.
    pub claimed: u32,
    /// Those of them in buckets that are free, or on the way to that.
    pub idle: u32,
    /// Buckets in use.
    pub buckets: u32,
}

impl Segment {
    /// Pages that sparse buckets of a tier may still claim.
    pub fn sparse_left(&self, tier: TierId) -> u32 {
        let sparse = &self.header().tier[tier].sparse;
        let limit = sparse.limit.load(Ordering::Relaxed);
        limit.saturating_sub(sparse.used.load(Ordering::Relaxed))
    }

    /// Takes a free sparse slot of a file tier for `owner`, with room for `pages` pages from its
    /// first on.
    pub fn take_sparse_slot(&self, tier: TierId, owner: Owner, pages: u32) -> Option<BucketId> {
        if self.sparse_left(tier) < pages || crash::refused("slot") {
            return None;
        }
        let taken = self.take_ready_sparse(tier, owner)?;
        crash::point("sparse.slot-taken");
        if self.claimed(taken).is_some_and(|claimed| self.claim_upto(tier, claimed, pages)) {
            return Some(taken);
        }
        self.free_bucket(taken);
        None
    }

    /// Takes a free sparse bucket for `owner`, for a block of which `pages` are about to be
    /// written. They are to be [backed](Segment::back_pages) once it is locked.
    pub fn take_sparse(&self, owner: Owner, pages: u32) -> Option<BucketId> {
        if self.header().sparse(TierId::RAM).is_empty() || crash::refused("bucket") {
            return None;
        }
        let taken = self.take_ready_sparse(TierId::RAM, owner).or_else(|| {
            self.ready_more_sparse();
            self.take_ready_sparse(TierId::RAM, owner)
        })?;
        crash::point("sparse.taken");
        // The last file may have been much larger.
        if self.sparse_pages(taken)?.claimed.load(Ordering::Relaxed) > 2 * pages {
            self.shrink_sparse(taken, pages, owner, |file| self.is_read(file));
        }
        Some(taken)
    }

    fn take_ready_sparse(&self, tier: TierId, owner: Owner) -> Option<BucketId> {
        let mut taken = None;
        let place = &self.header().tier[tier].sparse.hint;
        let map = self.free_sparse(tier);
        if map.count == 0 {
            return None;
        }
        let hint = place.load(Ordering::Relaxed);
        let (_, next) = map.take(owner, hint, 1, |bucket| taken = Some(BucketId::from_raw(bucket)));
        if next != hint {
            place.store(next, Ordering::Relaxed);
        }
        taken
    }

    /// Lets another 64 buckets be used that never were.
    fn ready_more_sparse(&self) {
        let mark = &self.header().tier[TierId::RAM].sparse.ready;
        let ready = mark.load(Ordering::Acquire);
        if ready >= self.header().tier[TierId::RAM].sparse.buckets {
            return;
        }
        let raised = mark.compare_exchange(ready, ready + 64, Ordering::AcqRel, Ordering::Relaxed);
        crash::point("sparse.ready");
        if raised.is_ok() {
            self.repair_sparse_from(TierId::RAM, ready);
        }
    }

    /// Lets the free maps have each free sparse bucket: of a file tier those without pages.
    pub(crate) fn repair_sparse(&self) {
        self.header().tiers_in_use().for_each(|tier| self.repair_sparse_from(tier, 0));
    }

    pub(crate) fn repair_sparse_from(&self, tier: TierId, first: u32) {
        let map = self.free_sparse(tier);
        for bucket in BucketId::range(map.first + first.min(map.count), map.first + map.count) {
            let is_free = |meta: &BucketMeta| meta.state.load(Ordering::Acquire) == FREE;
            if self.bucket(bucket).is_some_and(is_free) && (tier.is_ram() || self.is_empty(bucket))
            {
                map.offer(bucket.raw());
            }
        }
    }

    fn is_empty(&self, bucket: BucketId) -> bool {
        self.claimed(bucket).is_none_or(|claimed| claimed.load(Ordering::Acquire) == 0)
    }

    /// Sees to it that the first `end` pages of a bucket have memory, or room in their tier's file,
    /// if it is a sparse one: the caller has it locked. False if the budget or /dev/shm has none
    /// for them; what was valid still is.
    #[must_use]
    pub fn back_pages(&self, bucket: BucketId, end: u32) -> bool {
        let Some(pages) = self.sparse_pages(bucket) else { return self.claim_pages(bucket, end) };
        let backed = pages.backed.load(Ordering::Relaxed);
        if end <= backed {
            return true;
        }
        // A file that grows page by page asks seven times until it fills a bucket, and not 64.
        let ahead = (2 * backed).clamp(end, PAGES_PER_BUCKET);
        let Some(upto) = [ahead, end]
            .into_iter()
            .find(|&upto| self.claim_upto(TierId::RAM, &pages.claimed, upto))
        else {
            self.want_room();
            return false;
        };
        crash::point("sparse.claimed");
        if !self.populate_pages(bucket, backed..upto) {
            return false;
        }
        pages.backed.store(upto, Ordering::Release);
        crash::point("sparse.backed");
        true
    }

    /// The same of a bucket that is none of RAM's sparse ones.
    fn claim_pages(&self, bucket: BucketId, end: u32) -> bool {
        let Some(claimed) = self.claimed(bucket) else { return true };
        let tier = self.tier_of(bucket);
        let has_room = self.claim_upto(tier, claimed, end);
        if !has_room {
            self.miss_pages(tier);
        }
        has_room
    }

    /// Tells the node manager that there were no pages for a sparse slot.
    #[cold]
    pub fn miss_pages(&self, tier: TierId) {
        self.header().tier[tier].sparse.missed.fetch_add(1, Ordering::Relaxed);
        self.want_room();
    }

    fn claim_upto(&self, tier: TierId, pages: &AtomicU32, upto: u32) -> bool {
        let sparse = &self.header().tier[tier].sparse;
        let claimed = pages.load(Ordering::Relaxed);
        let more = upto.saturating_sub(claimed);
        if more == 0 {
            return true;
        }
        // The bucket's count first: it is what the sum is corrected by.
        pages.store(upto, Ordering::Release);
        crash::point("sparse.claiming");
        let before = sparse.used.fetch_add(more, Ordering::SeqCst);
        let limit = sparse.limit.load(Ordering::SeqCst);
        if before.saturating_add(more) > limit {
            pages.store(claimed, Ordering::Release);
            unclaim(&sparse.used, more);
            return false;
        }
        let low = sparse.low.load(Ordering::Relaxed);
        let left = limit - before;
        if left >= low && left - more < low {
            self.want_room();
        }
        true
    }

    /// Gives up the memory of all but the first `keep` pages of a bucket that the caller has taken,
    /// unless a thread is still reading what it found there: `is_read` says that of a file. Returns
    /// how many pages may be claimed for that.
    fn shrink_sparse(
        &self,
        bucket: BucketId,
        keep: u32,
        owner: Owner,
        is_read: impl Fn(FileId) -> bool,
    ) -> u32 {
        let (Some(meta), Some(pages)) = (self.bucket(bucket), self.sparse_pages(bucket)) else {
            return 0;
        };
        let locked = self.lock_fresh_within(meta, owner, &mut Backoff::nearly_spent());
        let Ok(mut lock) = locked else { return 0 };
        let claimed = pages.claimed.load(Ordering::Acquire).min(PAGES_PER_BUCKET);
        if claimed <= keep || is_read(meta.file.load(Ordering::Relaxed)) {
            return 0;
        }
        pages.backed.fetch_min(keep, Ordering::AcqRel);
        crash::point("sparse.shrinking");
        if !self.remove_pages(bucket, keep..claimed) {
            return 0;
        }
        crash::point("sparse.removed");
        pages.claimed.store(keep, Ordering::Release);
        unclaim(&self.header().tier[TierId::RAM].sparse.used, claimed - keep);
        lock.changed();
        claimed - keep
    }

    /// Whether a thread may still be reading what it has found of `file`. What no entry has named
    /// since before the call no other thread finds.
    pub(crate) fn is_read(&self, file: FileId) -> bool {
        crate::sync::fence(Ordering::SeqCst);
        self.header().has_file(file) && self.clients().may_be_reading(file, self.file(file))
    }

    /// Gives up the memory of free sparse buckets, until `most` pages are. Returns how many may be
    /// claimed for that. For the node manager.
    pub fn trim_sparse(&self, owner: Owner, most: u32) -> u32 {
        let sparse = self.header().sparse_in_use(TierId::RAM);
        let mut idle = BucketId::range(sparse.start, sparse.end)
            .rev()
            .filter(|&bucket| self.take_idle(bucket));
        let mut freed = 0;
        let mut batch = Vec::with_capacity(TRIMMED);
        while freed < most {
            batch.clear();
            batch.extend(idle.by_ref().take(TRIMMED));
            if batch.is_empty() {
                break;
            }
            let read = self.files_read();
            for &bucket in &batch {
                let is_read = |file| read.contains(&file) || self.has_owner(file);
                freed += self.shrink_sparse(bucket, 0, owner, is_read);
                self.free_bucket(bucket);
            }
        }
        freed
    }

    /// Takes a free sparse bucket that has memory. A manager that dies over it leaves it to the
    /// next, as one that a move was filling.
    fn take_idle(&self, bucket: BucketId) -> bool {
        let (Some(meta), Some(claimed)) = (self.bucket(bucket), self.claimed(bucket)) else {
            return false;
        };
        claimed.load(Ordering::Acquire) != 0
            && meta.state.load(Ordering::Relaxed) == FREE
            && meta
                .state
                .compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Gives up the room of free sparse slots of a file tier: `discard` takes that of runs of
    /// neighbouring ones from the tier's file, by their numbers in the tier, and says of how many
    /// runs it did. Returns how many pages may be claimed for that. For the node manager. Readers
    /// need not have left: they look whether the block still lies there once they have read.
    pub fn trim_slots(&self, tier: TierId, discard: impl FnOnce(&[Range<u32>]) -> usize) -> u32 {
        let sparse = &self.header().tier[tier].sparse;
        sparse.idle.store(0, Ordering::Relaxed);
        let Range { mut start, end } = self.header().sparse_in_use(tier);
        let first = self.header().tier[tier].first_bucket;
        let mut runs = Vec::new();
        let mut left = SLOTS_TRIMMED;
        while start < end && left > 0 {
            let some = start..end.min(start + left);
            let idle =
                BucketId::range(some.start, some.end).take_while(|&slot| self.take_idle(slot));
            let taken = idle.count() as u32;
            runs.extend((taken > 0).then_some(start - first..start - first + taken));
            left -= taken;
            start += taken + 1;
        }
        if runs.is_empty() {
            return 0;
        }
        if left == 0 {
            // There may be more: the next time.
            sparse.idle.fetch_max(1, Ordering::Relaxed);
        }
        crash::point("sparse.slots-idle");
        let gone = discard(&runs);
        crash::point("sparse.discarded");
        let mut freed = 0;
        for (number, run) in runs.into_iter().enumerate() {
            for slot in BucketId::range(first + run.start, first + run.end) {
                if number < gone
                    && let Some(claimed) = self.claimed(slot)
                {
                    let pages = claimed.swap(0, Ordering::AcqRel).min(PAGES_PER_BUCKET);
                    unclaim(&sparse.used, pages);
                    freed += pages;
                }
                self.free_bucket(slot);
            }
        }
        freed
    }

    fn has_owner(&self, file: FileId) -> bool {
        self.header().has_file(file) && self.file(file).exclusive.load(Ordering::SeqCst) != 0
    }

    /// The files that threads are inside.
    fn files_read(&self) -> Vec<FileId> {
        crate::sync::fence(Ordering::SeqCst);
        let words = self.clients().all_used().flat_map(|(_, slot)| slot.shared_locks.iter());
        let scopes = words.filter_map(|word| SharedLock::decode(word.load(Ordering::SeqCst)));
        scopes.filter_map(|lock| lock.scope.as_file()).collect()
    }

    /// Counts the pages of the sparse buckets of a tier, and corrects their sum: what other threads
    /// claim and give up meanwhile may be missed until the next time.
    pub fn count_sparse(&self, tier: TierId) -> SparseUse {
        let mut found = SparseUse::default();
        let place = &self.header().tier[tier].sparse.used;
        let before = place.load(Ordering::Acquire);
        let sparse = self.header().sparse_in_use(tier);
        for bucket in BucketId::range(sparse.start, sparse.end) {
            let (Some(meta), Some(claimed)) = (self.bucket(bucket), self.claimed(bucket)) else {
                continue;
            };
            let claimed = claimed.load(Ordering::Acquire).min(PAGES_PER_BUCKET);
            found.claimed += claimed;
            match meta.state.load(Ordering::Relaxed) {
                // One that is being trimmed, or is not yet filled.
                FREE | FILLING => found.idle += claimed,
                _ => found.buckets += 1,
            }
        }
        // Only if no thread has changed it: a wrong sum stays until it was looked at in peace.
        let _ = place.compare_exchange(before, found.claimed, Ordering::AcqRel, Ordering::Relaxed);
        found
    }

    /// What a new manager does: the counts agree with the buckets.
    pub(crate) fn recover_lent(&self) {
        let header = self.header();
        // Of a count that is damaged, what there can be.
        let most = self.ram_buckets().saturating_sub(self.backed()) * PAGES_PER_BUCKET;
        header.tier[TierId::RAM].sparse.limit.fetch_min(most, Ordering::AcqRel);
        crash::point("recover.lent");
        let all = header.sparse(TierId::RAM);
        for bucket in BucketId::range(all.start, all.end) {
            let (Some(meta), Some(pages)) = (self.bucket(bucket), self.sparse_pages(bucket)) else {
                continue;
            };
            // They agree, but for damage.
            let end = u64::BITS - meta.valid.load(Ordering::Acquire).leading_zeros();
            pages.backed.fetch_max(end, Ordering::AcqRel);
            pages.backed.fetch_min(PAGES_PER_BUCKET, Ordering::AcqRel);
            pages.claimed.fetch_max(pages.backed.load(Ordering::Acquire), Ordering::AcqRel);
            pages.claimed.fetch_min(PAGES_PER_BUCKET, Ordering::AcqRel);
        }
        self.count_sparse(TierId::RAM);
        self.header().file_tiers().for_each(|tier| self.recover_lent_slots(tier));
    }

    /// The same of a file tier: as many pages are lent as slots say that their room is.
    fn recover_lent_slots(&self, tier: TierId) {
        let sparse = &self.header().tier[tier].sparse;
        let is_none = |meta: &BucketMeta| {
            let state = &meta.state;
            let _ = state.compare_exchange(UNBACKED, FREE, Ordering::AcqRel, Ordering::Relaxed);
        };
        if sparse.buckets == 0 {
            // They are damaged.
            self.lent_slots(tier).filter_map(|slot| self.bucket(slot)).for_each(is_none);
        }
        let lent = self.lent_slots(tier).count() as u32;
        sparse.limit.store(lent * PAGES_PER_BUCKET, Ordering::Release);
        crash::point("recover.lent-slots");
        let all = self.header().sparse_in_use(tier);
        for bucket in BucketId::range(all.start, all.end) {
            let (Some(meta), Some(claimed)) = (self.bucket(bucket), self.claimed(bucket)) else {
                continue;
            };
            is_none(meta);
            let end = u64::BITS - meta.valid.load(Ordering::Acquire).leading_zeros();
            claimed.fetch_max(end, Ordering::AcqRel);
            claimed.fetch_min(PAGES_PER_BUCKET, Ordering::AcqRel);
        }
        sparse.idle.store(self.count_sparse(tier).idle, Ordering::Relaxed);
    }
}

fn unclaim(used: &AtomicU32, pages: u32) {
    let less = |used: u32| Some(used.saturating_sub(pages));
    let _ = used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::entry::Entry;
    use crate::free_map::USED;
    use crate::guards::BlockGuard;
    use crate::owner::MANAGER_SLOT;
    use crate::segment::anonymous;
    use rustix::fd::{AsFd, OwnedFd};

    const PAGE: u64 = 4096;

    fn pool() -> (Segment, OwnedFd) {
        anonymous(&Geometry::for_tiers(4096, &[128 << 18, 64 << 18]).with_sparse()).unwrap()
    }

    fn memory(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
    }

    /// Writes `pages` pages of a new file to a sparse bucket.
    fn write(segment: &Segment, inode: u64, pages: u32, owner: Owner) -> Option<BucketId> {
        let bucket = segment.take_sparse(owner, pages)?;
        let identity = Identity { device: 1, inode };
        let file = segment.with_file_or_new(identity, owner, |file, _| file).unwrap();
        let place = segment.entry_or_insert(segment.file(file), 0, owner).unwrap();
        let fresh = segment.init_bucket(bucket, file, 0, owner).unwrap();
        if !segment.back_pages(bucket, pages) {
            return None;
        }
        // SAFETY: inside the bucket, which is locked; the pages have memory.
        unsafe { segment.bucket_data(bucket).write_bytes(7, pages as usize * PAGE as usize) };
        fresh.meta().valid.store(u64::MAX >> (64 - pages), Ordering::Release);
        drop(fresh.publish(place, TierId::RAM));
        Some(bucket)
    }

    fn delete(segment: &Segment, bucket: BucketId, owner: Owner) {
        let meta = segment.bucket(bucket).unwrap();
        let record = segment.file(meta.file.load(Ordering::Relaxed));
        let place = segment.entry(record, 0).unwrap();
        let block: BlockGuard<'_> = segment.lock_block(place, owner).unwrap();
        segment.discard_block(place, block);
    }

    /// Lends the memory of `buckets` free ones.
    fn lend(segment: &Segment, file: &OwnedFd, buckets: u32) {
        for retired in segment.retire(buckets) {
            segment.unback(file.as_fd(), &retired).unwrap();
        }
        assert_eq!(segment.lend(buckets), buckets);
    }

    #[test]
    fn a_small_file_has_memory_for_its_pages_alone() {
        let (segment, memory_file) = pool();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        let before = memory(&memory_file);
        assert_eq!(write(&segment, 1, 1, me), None, "nothing is lent yet");
        assert_eq!(segment.lend(1), 0, "all is in use as it is");
        lend(&segment, &memory_file, 8);
        assert_eq!((segment.free_in(TierId::RAM), segment.growable()), (120, 0));
        let lent = 8 * segment.bucket_bytes() as u64;
        assert_eq!(memory(&memory_file), before - lent);
        let small = write(&segment, 1, 1, me).unwrap();
        let large = write(&segment, 2, 30, me).unwrap();
        assert!(segment.is_sparse(small) && segment.tier_of(large) == TierId::RAM);
        assert_eq!(memory(&memory_file), before - lent + 31 * PAGE);
        let all = SparseUse { claimed: 31, idle: 0, buckets: 2 };
        assert_eq!(
            (segment.count_sparse(TierId::RAM), segment.sparse_left(TierId::RAM)),
            (all, 8 * 64 - 31)
        );
        assert_eq!(segment.check(), []);
        assert_eq!(segment.grow(memory_file.as_fd(), 8 << 20), Ok(0), "it is lent");
        // One that a file of 30 pages had is made smaller for one of two.
        delete(&segment, large, me);
        assert_eq!(
            segment.count_sparse(TierId::RAM),
            SparseUse { claimed: 31, idle: 30, buckets: 1 }
        );
        segment.header().tier[TierId::RAM].sparse.hint.store(0, Ordering::Relaxed);
        assert_eq!(write(&segment, 3, 2, me), Some(large));
        assert_eq!(
            segment.count_sparse(TierId::RAM),
            SparseUse { claimed: 3, idle: 0, buckets: 2 }
        );
        assert_eq!(segment.take_back_lent(8), 7, "pages of one are in use");
        delete(&segment, large, me);
        delete(&segment, small, me);
        assert_eq!(segment.trim_sparse(me, u32::MAX), 3);
        assert_eq!(segment.take_back_lent(9), 1);
        assert_eq!((segment.sparse_left(TierId::RAM), segment.free_in(TierId::RAM)), (0, 128));
        assert_eq!(segment.grow(memory_file.as_fd(), 8 << 20), Ok(8));
        assert_eq!((memory(&memory_file), segment.check()), (before, vec![]));
    }

    #[test]
    fn a_block_that_grows_asks_for_twice_its_pages() {
        let (segment, memory_file) = pool();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        lend(&segment, &memory_file, 8);
        let bucket = write(&segment, 1, 1, me).unwrap();
        let claimed = |end| {
            assert!(segment.back_pages(bucket, end));
            segment.sparse_pages(bucket).unwrap().claimed.load(Ordering::Relaxed)
        };
        assert_eq!([1, 2, 3, 4, 5, 9, 33].map(claimed), [1, 2, 4, 4, 8, 16, 33]);
        // The last pages of the budget are given one by one.
        let others = 8 * 64 - 33 - 5;
        segment.header().tier[TierId::RAM].sparse.used.fetch_add(others, Ordering::Relaxed);
        let last = write(&segment, 2, 4, me).unwrap();
        assert!(segment.back_pages(last, 5) && !segment.back_pages(last, 6));
        assert_eq!(segment.sparse_left(TierId::RAM), 0);
    }

    #[test]
    fn what_a_thread_may_still_read_keeps_its_memory() {
        let (segment, memory_file) = pool();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        lend(&segment, &memory_file, 8);
        let bucket = write(&segment, 1, 8, me).unwrap();
        let file = segment.bucket(bucket).unwrap().file.load(Ordering::Relaxed);
        let inside = segment.try_enter(file, me).unwrap();
        delete(&segment, bucket, me);
        assert_eq!(segment.trim_sparse(me, u32::MAX), 0);
        drop(inside);
        assert_eq!(segment.trim_sparse(me, u32::MAX), 8);
    }

    #[test]
    fn a_manager_that_takes_over_counts_what_was_lent_and_claimed() {
        let (segment, memory_file) = pool();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        lend(&segment, &memory_file, 16);
        let before = memory(&memory_file);
        let bucket = write(&segment, 1, 3, me).unwrap();
        // Killed between two steps of each kind.
        let header = segment.header();
        header.tier[TierId::RAM].sparse.used.store(99, Ordering::Relaxed);
        header.tier[TierId::RAM].sparse.ready.store(0, Ordering::Relaxed);
        let idle = segment.sparse_pages(BucketId::from_raw(bucket.raw() + 1)).unwrap();
        idle.claimed.store(2, Ordering::Relaxed);
        let taken = BucketId::from_raw(bucket.raw() + 2);
        segment.bucket(taken).unwrap().state.store(FILLING, Ordering::Relaxed);
        segment.recover(|_, _| ());
        assert_eq!(segment.check(), []);
        assert_eq!((segment.lent(), segment.sparse_left(TierId::RAM)), (16, 16 * 64 - 5));
        assert_eq!(memory(&memory_file), before + 3 * PAGE);
        let meta = segment.bucket(bucket).unwrap();
        assert_eq!(meta.state.load(Ordering::Relaxed), USED);
        assert!(segment.is_indexed(bucket) && !segment.is_indexed(taken));
        assert_eq!(segment.trim_sparse(me, u32::MAX), 2);
        header.tier[TierId::RAM].sparse.limit.store(99 * 64, Ordering::Relaxed);
        segment.recover(|_, _| ());
        assert_eq!(segment.lent(), 16, "others have the rest");
        let place = segment.file(meta.file.load(Ordering::Relaxed)).entry0.load(Ordering::Relaxed);
        assert_eq!(Entry::decode(place), Entry::Resident { tier: TierId::RAM, bucket });
    }

    const BELOW: TierId = TierId::new(1);

    /// A file tier of 128 slots, the room of `lent` of which is lent to sparse ones.
    fn pool_of_slots(lent: u32, me: Owner) -> (Segment, OwnedFd) {
        let geometry = Geometry::for_tiers(4096, &[64 << 18, 128 << 18]).with_sparse();
        let (segment, file) = anonymous(&geometry).unwrap();
        assert!(segment.ready_more_slots(BELOW));
        lend_slots(&segment, lent, me);
        (segment, file)
    }

    fn lend_slots(segment: &Segment, count: u32, me: Owner) {
        let retired = segment.retire_slots(BELOW, count, me);
        assert_eq!(retired.len() as u32, count);
        retired.into_iter().for_each(|slot| segment.lend_slot(slot));
    }

    #[test]
    fn sparse_slots_share_the_pages_of_slots_that_are_lent() {
        let me = Owner::new(MANAGER_SLOT, 3);
        let (segment, _file) = pool_of_slots(0, me);
        assert_eq!(segment.take_sparse_slot(BELOW, me, 1), None, "nothing is lent yet");
        let whole = BucketId::from_raw(segment.header().tier[1].first_bucket);
        assert!(segment.claimed(whole).is_none() && segment.back_pages(whole, 64));
        lend_slots(&segment, 2, me);
        assert_eq!((segment.free_in(BELOW), segment.sparse_left(BELOW)), (126, 128));
        let slots: Vec<_> =
            (0..64).map(|_| segment.take_sparse_slot(BELOW, me, 1).unwrap()).collect();
        assert!(slots.iter().all(|&slot| segment.is_of_pages(slot) && !segment.is_sparse(slot)));
        let mut numbers: Vec<_> = slots.iter().map(|&slot| segment.slot_in_tier(slot)).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(128..192), "{numbers:?}");
        // One grows, as far as there are pages.
        assert!(segment.back_pages(slots[0], 64) && segment.sparse_left(BELOW) == 1);
        assert!(segment.back_pages(slots[0], 7), "it has them");
        assert!(
            !segment.back_pages(slots[1], 3) && segment.take_sparse_slot(BELOW, me, 2).is_none()
        );
        let used = SparseUse { claimed: 127, idle: 0, buckets: 64 };
        assert_eq!(segment.count_sparse(BELOW), used);
        // Nothing is to be had of what is free before its room was given up.
        slots[..32].iter().for_each(|&slot| segment.free_bucket(slot));
        let idle = SparseUse { claimed: 127, idle: 95, buckets: 32 };
        assert_eq!((segment.count_sparse(BELOW), segment.sparse_left(BELOW)), (idle, 1));
        segment.repair_sparse();
        let other = segment.take_sparse_slot(BELOW, me, 1).unwrap();
        assert!(!slots.contains(&other));
        assert_eq!(segment.take_sparse_slot(BELOW, me, 1), None);
        let mut given = Vec::new();
        assert_eq!(segment.trim_slots(BELOW, |_| 0), 0, "the device refuses");
        let freed = segment.trim_slots(BELOW, |runs| {
            given.extend_from_slice(runs);
            runs.len()
        });
        let [first, last] = [slots[0], slots[31]].map(|slot| segment.slot_in_tier(slot));
        assert_eq!((freed, given.len(), &given[0]), (95, 1, &(first..last + 1)));
        assert_eq!(segment.sparse_left(BELOW), 95);
        // Back to the others go only slots of which all pages are unused.
        assert_eq!((segment.take_back_slots(BELOW, 9), segment.free_in(BELOW)), (1, 127));
        assert_eq!((segment.sparse_left(BELOW), segment.take_back_slots(BELOW, 9)), (31, 0));
        assert!((0..31).all(|_| segment.take_sparse_slot(BELOW, me, 1).is_some()));
    }

    /// What managers and programs leave that are killed between any two steps.
    #[test]
    fn a_new_manager_counts_what_is_lent_and_claimed() {
        let me = Owner::new(MANAGER_SLOT, 3);
        let (segment, _file) = pool_of_slots(3, me);
        let sparse = &segment.header().tier[BELOW].sparse;
        let [taken, freed, other] =
            [2, 5, 9].map(|pages| segment.take_sparse_slot(BELOW, me, pages).unwrap());
        segment.free_bucket(freed);
        // Lent, and not yet counted; retired, and not yet lent; counted twice; taken and no more.
        let retired = segment.retire_slots(BELOW, 2, me);
        let state = &segment.bucket(retired[0]).unwrap().state;
        state.store(UNBACKED, Ordering::Relaxed);
        sparse.used.fetch_add(40, Ordering::Relaxed);
        sparse.limit.store(7, Ordering::Relaxed);
        segment.claimed(other).unwrap().store(64, Ordering::Relaxed);
        // All are the dead manager's.
        segment.recover(|_, _| {});
        let idle = SparseUse { claimed: 2 + 5 + 64, idle: 2 + 5 + 64, buckets: 0 };
        assert_eq!(
            (sparse.limit.load(Ordering::Relaxed), segment.count_sparse(BELOW)),
            (4 * 64, idle)
        );
        assert_eq!((segment.sparse_left(BELOW), segment.free_in(BELOW)), (4 * 64 - 71, 124));
        assert_eq!(segment.trim_slots(BELOW, <[_]>::len), 71);
        assert_eq!((segment.take_back_slots(BELOW, 9), segment.free_in(BELOW)), (4, 128));
        assert_eq!(segment.claimed(taken).unwrap().load(Ordering::Relaxed), 0);
        assert_eq!(segment.free_sparse(BELOW).available(), SPARSE_PIECE);
    }

    /// The tables of 65,536 sparse slots of a tier of 1 GiB are 21 MiB.
    #[test]
    fn tables_of_slots_have_memory_once_they_are_used() {
        let plain = Geometry::for_tiers(4096, &[64 << 18, 1 << 30]);
        let sparse = Geometry { sparse_buckets: vec![0, 1 << 16], ..plain.clone() };
        let before = memory(&anonymous(&plain).unwrap().1);
        let (segment, file) = anonymous(&sparse).unwrap();
        let tables = memory(&file) - before;
        assert!(tables < 1 << 20, "{tables} bytes more");
        assert_eq!(segment.header().bucket_ids().count(), 64 + 4096);
        assert!(segment.ready_more_slots(BELOW));
        let piece = memory(&file) - before - tables;
        assert!((160 << 10..200 << 10).contains(&piece), "{piece} bytes for {SPARSE_PIECE} slots");
        assert_eq!(segment.header().bucket_ids().count(), 64 + 4096 + SPARSE_PIECE as usize);
        while segment.ready_more_slots(BELOW) {}
        let me = Owner::new(MANAGER_SLOT, 0);
        lend_slots(&segment, 1024, me);
        for _ in 0..1 << 16 {
            assert!(segment.take_sparse_slot(BELOW, me, 1).is_some());
        }
        assert_eq!(segment.sparse_left(BELOW), 0);
    }
}
