//! Quotas: how much of a tier the files of one job may take, in pages.
//!
//! A file counts for the job with quotas that opened it last. What is in use is counted from the
//! buckets, by the node manager; between two counts each taker adds what it takes. So nothing is
//! ever taken off a counter, and none is wrong for long after a kill: what a killed process has
//! claimed and not used counts until the next count. A count may miss what threads have claimed
//! and not yet used at that moment, a block for each.

use crate::free_map::{FILLING, USED};
use crate::layout::*;
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};
use crate::{BucketId, TierId};

/// The largest limit, in pages: 8 TiB of 4 KiB. More is none.
const LIMIT_MAX: u32 = u32::MAX / 2;

impl JobQuota {
    /// Pages that the job may use; `None`: all there are.
    pub fn limit(&self) -> Option<u32> {
        Some(self.limit.load(Ordering::Acquire)).filter(|&limit| limit > 0)
    }

    /// Pages that it uses, as far as is known.
    pub fn used(&self) -> u32 {
        let used = self.taken.load(Ordering::SeqCst).wrapping_add(self.base.load(Ordering::SeqCst));
        if used > LIMIT_MAX { 0 } else { used }
    }

    /// Sets how many pages may be used; 0 is all there are, as is more than can be counted.
    pub(crate) fn set_limit(&self, pages: u64) {
        let limit = u32::try_from(pages).ok().filter(|&limit| limit <= LIMIT_MAX);
        self.limit.store(limit.unwrap_or(0), Ordering::Release);
    }

    /// Counts `pages` more as used, if that is allowed.
    fn claim(&self, pages: u32) -> bool {
        let Some(limit) = self.limit() else { return true };
        let more = |taken: u32| {
            let used = taken.wrapping_add(self.base.load(Ordering::SeqCst));
            let used = if used > LIMIT_MAX { 0 } else { used };
            (used.saturating_add(pages) <= limit).then(|| taken.wrapping_add(pages))
        };
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }
}

impl JobRecord {
    /// Whether the job has a quota of any tier, a cap or an age.
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Acquire) != 0
    }

    /// Sets what the job may use of a tier, in pages; 0 is all. For the node manager, before the
    /// job lives.
    pub fn set_quota(&self, tier: TierId, pages: u64) {
        self.quota[tier].set_limit(pages);
        self.note_limits();
    }

    /// Sets how many pages of its files the store may lack, and for how many milliseconds; 0 is
    /// without end. For the node manager, before the job lives; [`Segment::count_caps`] makes it
    /// known.
    pub fn set_cap(&self, pages: u64, max_age_ms: u32) {
        self.cap.set_limit(pages);
        self.max_age_ms.store(max_age_ms, Ordering::Relaxed);
        self.note_limits();
    }

    fn note_limits(&self) {
        let any = self.quota.iter().chain([&self.cap]).any(|quota| quota.limit().is_some());
        let any = any || self.max_age_ms.load(Ordering::Relaxed) > 0;
        self.is_limited.store(any.into(), Ordering::Release);
    }

    /// Forgets all quotas, the cap, and counts.
    pub(crate) fn clear_quotas(&self) {
        self.is_limited.store(0, Ordering::Relaxed);
        self.max_age_ms.store(0, Ordering::Relaxed);
        for quota in self.quota.iter().chain([&self.cap]) {
            for word in [&quota.limit, &quota.taken, &quota.base] {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Segment {
    /// The job with limits for which a file counts.
    #[inline]
    pub fn quota_job(&self, record: &FileRecord) -> Option<&JobRecord> {
        let number = record.quota_job.load(Ordering::Relaxed);
        if number == 0 {
            return None;
        }
        self.job(number).filter(|job| job.is_limited())
    }

    /// Counts `pages` of a tier as used by the job of a file. False if its quota is used up: the
    /// block may not be there.
    pub fn claim_quota(&self, record: &FileRecord, tier: TierId, pages: u32) -> bool {
        self.quota_job(record).is_none_or(|job| job.quota[tier].claim(pages))
    }

    /// Counts `pages` of a tier as used by the job of a file, whatever its quota says: its block
    /// has to be there.
    pub fn note_quota(&self, record: &FileRecord, tier: TierId, pages: u32) {
        if let Some(job) = self.quota_job(record) {
            job.quota[tier].taken.fetch_add(pages, Ordering::SeqCst);
        }
    }

    /// Whether any job has a quota of this tier.
    pub fn has_quotas(&self, tier: TierId) -> bool {
        self.jobs().any(|job| job.quota[tier].limit().is_some())
    }

    /// Pages of a tier that the files of each job with quotas use, by its place.
    pub fn count_by_job(&self, tier: TierId) -> [u32; JOBS_MAX] {
        let header = self.header();
        let mut used = [0_u32; JOBS_MAX];
        let first = header.tier[tier].first_bucket;
        let whole = first..first + header.tier[tier].buckets;
        let sparse = header.sparse_in_use(tier);
        for bucket in whole.chain(sparse).map(BucketId::from_raw) {
            let Some(meta) = self.bucket(bucket) else { continue };
            let state = meta.state.load(Ordering::Acquire);
            let file = meta.file.load(Ordering::Relaxed);
            if state != USED && state != FILLING || !header.has_file(file) {
                continue;
            }
            let number = self.file(file).quota_job.load(Ordering::Relaxed);
            // One that is over may have had the place of another.
            if self.job(number).is_none() {
                continue;
            }
            let pages = self
                .claimed(bucket)
                .map_or(PAGES_PER_BUCKET, |claimed| claimed.load(Ordering::Relaxed));
            let place = &mut used[number as usize % JOBS_MAX];
            *place = place.saturating_add(pages);
        }
        used
    }

    /// Counts what jobs use of a tier. For the node manager, one thread for each tier.
    pub fn recount_quotas(&self, tier: TierId) {
        let jobs = &self.header().job;
        let taken = |job: &JobRecord| job.quota[tier].taken.load(Ordering::SeqCst);
        // Before the look: what is taken meanwhile counts twice at most.
        let before = core::array::from_fn::<_, JOBS_MAX, _>(|place| taken(&jobs[place]));
        let used = self.count_by_job(tier);
        for ((job, used), before) in jobs.iter().zip(used).zip(before) {
            if job.quota[tier].limit().is_some() {
                job.quota[tier].base.store(used.wrapping_sub(before), Ordering::SeqCst);
            }
        }
    }
}

/// Stores `value` where it is another one: the line stays with its readers else.
pub fn note(place: &AtomicU32, value: u32) {
    if place.load(Ordering::Relaxed) != value {
        place.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;
    use crate::{Identity, Owner};

    #[test]
    fn a_job_takes_as_much_as_it_may_and_counts_are_made_again_from_the_buckets() {
        let tiers = Geometry::for_tiers(4096, &[64 << 18, 64 << 18]);
        let (segment, _memory) = anonymous(&tiers).unwrap();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        let file = |inode| {
            let name = Identity { device: 1, inode };
            segment.with_file_or_new(name, me, |file, _| file).unwrap()
        };
        let (mine, other) = (file(1), file(2));
        let number = segment.begin_job(1, 0).unwrap();
        let job = segment.job(number).unwrap();
        assert!(segment.claim_quota(segment.file(mine), TierId::RAM, 1 << 30), "no job's");
        segment.file(mine).quota_job.store(number, Ordering::Relaxed);
        assert!(!job.is_limited() && segment.quota_job(segment.file(mine)).is_none());
        job.set_quota(TierId::RAM, 4 * 64);
        let claim = |file, tier, pages| segment.claim_quota(segment.file(file), tier, pages);
        assert!(segment.has_quotas(TierId::RAM) && !segment.has_quotas(TierId::new(1)));
        assert!((0..4).all(|_| claim(mine, TierId::RAM, 64)));
        assert!(!claim(mine, TierId::RAM, 1) && claim(mine, TierId::new(1), 1 << 30));
        assert!(claim(other, TierId::RAM, 1 << 30));

        // What was claimed and not used is there again.
        for block in 0..3 {
            let bucket = segment.take_bucket(me).unwrap();
            let of = if block == 2 { other } else { mine };
            let meta = segment.bucket(bucket).unwrap();
            meta.file.store(of, Ordering::Relaxed);
            meta.state.store(USED, Ordering::Release);
        }
        segment.recount_quotas(TierId::RAM);
        assert_eq!(job.quota[TierId::RAM].used(), 128);
        assert!(claim(mine, TierId::RAM, 128) && !claim(mine, TierId::RAM, 1));
        // A claim while it is counted is not lost.
        let before = job.quota[TierId::RAM].used();
        segment.recount_quotas(TierId::RAM);
        assert!(claim(mine, TierId::RAM, 64) && job.quota[TierId::RAM].used() < before);
        segment.file(mine).quota_job.store(0, Ordering::Relaxed);
        segment.recount_quotas(TierId::RAM);
        assert_eq!(job.quota[TierId::RAM].used(), 0);

        segment.file(mine).quota_job.store(number, Ordering::Relaxed);
        segment.note_quota(segment.file(mine), TierId::RAM, 1000);
        assert_eq!(job.quota[TierId::RAM].used(), 1000, "more than it may, and nothing besides");
        assert!(!claim(mine, TierId::RAM, 1));

        segment.end_job(number);
        segment.file(mine).quota_job.store(number, Ordering::Relaxed);
        assert!(claim(mine, TierId::RAM, 1 << 30), "a job that is over has none");
        let next = segment.begin_job(1, 0).unwrap();
        assert!(!segment.job(next).unwrap().is_limited());
        // What files of a job have left counts for none that gets its place.
        let heir = number + JOBS_MAX as u32;
        let heirs = core::iter::repeat_with(|| segment.begin_job(1, 0).unwrap());
        let others: Vec<_> = heirs.take_while(|&begun| begun != heir).collect();
        segment.job(heir).unwrap().set_quota(TierId::RAM, 64);
        segment.recount_quotas(TierId::RAM);
        assert_eq!(segment.job(heir).unwrap().quota[TierId::RAM].used(), 0);
        others.into_iter().for_each(|other| segment.end_job(other));

        for limit in [u64::MAX, 1 << 31] {
            segment.job(next).unwrap().set_quota(TierId::RAM, limit);
            assert!(!segment.job(next).unwrap().is_limited(), "more than there can be is none");
        }
    }
}
