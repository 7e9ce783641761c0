//! Jobs: one `forebay run` each, with all processes that come of it. What they have to themselves:
//! scratch files, which end with the job, and buckets that are set aside.

use crate::free_map::{RESERVED, USED};
use crate::layout::*;
use crate::liveness;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::{BucketId, FileId};

/// What is left of RAM for all programs, whatever is reserved: one bucket in so many, and at least
/// [`FOR_ALL_MIN`].
const FOR_ALL_SHARE: u32 = 8;
const FOR_ALL_MIN: u32 = 4;

/// What buckets have in `reserved` that are set aside for job `number`.
fn mark_of(number: u32) -> u16 {
    (number % JOBS_MAX as u32) as u16 + 1
}

impl Segment {
    /// All jobs that have a place.
    pub fn jobs(&self) -> impl Iterator<Item = &JobRecord> {
        let taken = |job: &&JobRecord| job.state.load(Ordering::SeqCst) != job_state::FREE;
        self.header().job.iter().filter(taken)
    }

    /// The job of this number, as long as it has a place.
    pub fn job(&self, number: u32) -> Option<&JobRecord> {
        let job = &self.header().job[number as usize % JOBS_MAX];
        let same = number != 0 && job.number.load(Ordering::Acquire) == number;
        (same && job.state.load(Ordering::SeqCst) != job_state::FREE).then_some(job)
    }

    /// Makes a job for the `forebay run` of process `pid`, which started at `start`; `None` if
    /// there are too many. Numbers count up from 1, but for those whose place is taken. For the
    /// node manager, which then sets it up and lets it live.
    pub fn begin_job(&self, pid: u32, start: u64) -> Option<u32> {
        let jobs = &self.header().job;
        // Numbers run out after four billion jobs, and begin again.
        let last = jobs.iter().map(|job| job.number.load(Ordering::Relaxed)).max()?;
        let last = if last > u32::MAX - JOBS_MAX as u32 { 0 } else { last };
        let (number, job) = (last + 1..=last + JOBS_MAX as u32)
            .map(|number| (number, &jobs[number as usize % JOBS_MAX]))
            .find(|(_, job)| job.state.load(Ordering::SeqCst) == job_state::FREE)?;
        job.pid.store(pid, Ordering::Relaxed);
        job.start.store(start, Ordering::Relaxed);
        job.mode.store(0, Ordering::Relaxed);
        job.trigger.store(0, Ordering::Relaxed);
        job.reserved_for.store(0, Ordering::Relaxed);
        job.ended.store(0, Ordering::Relaxed);
        job.reserved.store(0, Ordering::Relaxed);
        job.free.store(0, Ordering::Relaxed);
        job.cursor.store(0, Ordering::Relaxed);
        job.recording.store(0, Ordering::Relaxed);
        job.clear_quotas();
        job.number.store(number, Ordering::Release);
        job.state.store(job_state::STARTING, Ordering::SeqCst);
        Some(number)
    }

    /// Makes the process of `slot` a part of job `number`. False, and it is of the one that it was
    /// of, if the job is over.
    pub fn join_job(&self, slot: u32, number: u32) -> bool {
        let is_open = || {
            self.job(number).is_some_and(|job| {
                matches!(job.state.load(Ordering::SeqCst), job_state::LIVE | job_state::ENDING)
            })
        };
        // Not out of its own for a moment, which may be the one in which that is looked at.
        if !is_open() {
            return false;
        }
        let place = &self.client(slot).job;
        let before = place.swap(number, Ordering::SeqCst);
        // It may have ended before it was seen that it has one more.
        let joined = is_open();
        if !joined {
            place.store(before, Ordering::SeqCst);
        }
        joined
    }

    /// Whether the `forebay run` of a job lives.
    pub fn job_is_run(&self, job: &JobRecord) -> bool {
        liveness::is_alive(job.pid.load(Ordering::Relaxed), job.start.load(Ordering::Relaxed))
    }

    /// The scratch files of job `number`.
    pub fn scratch_of(&self, number: u32) -> impl Iterator<Item = FileId> {
        self.files().touched().filter(move |&file| {
            let record = self.file(file);
            record.has(FileFlags::SCRATCH) && record.job.load(Ordering::Acquire) == number
        })
    }

    /// Buckets of tier `tier` that can be set aside: of RAM a part is left for all programs.
    fn reservable(&self, tier: TierId) -> u32 {
        let header = self.header();
        match tier {
            TierId::RAM => {
                let buckets = self.ram_capacity();
                buckets.saturating_sub((buckets / FOR_ALL_SHARE).max(FOR_ALL_MIN))
            }
            tier => header.tier[tier].buckets,
        }
    }

    /// Buckets of all tiers that no job has set aside and a new one could have, used ones included.
    /// As if all of RAM were ready.
    pub fn reservable_now(&self) -> u32 {
        let header = self.header();
        let all = |tier: TierId| match (tier, header.tier[tier].buckets) {
            (TierId::RAM, buckets) => {
                buckets.saturating_sub((buckets / FOR_ALL_SHARE).max(FOR_ALL_MIN))
            }
            (_, buckets) => buckets,
        };
        let taken = |tier: TierId| header.set_aside[tier].load(Ordering::Relaxed);
        header.tiers_in_use().map(|tier| all(tier).saturating_sub(taken(tier))).sum()
    }

    /// Sets up to `count` free buckets aside for job `number`, of the fastest tiers. Returns how
    /// many it found. For the node manager.
    pub fn set_aside(&self, number: u32, count: u32, owner: Owner) -> u32 {
        let Some(job) = self.job(number) else { return 0 };
        let mut found = 0;
        for tier in self.header().tiers_in_use() {
            let taken = &self.header().set_aside[tier];
            let room = self.reservable(tier).saturating_sub(taken.load(Ordering::Relaxed));
            let wanted = room.min(count - found);
            if wanted == 0 {
                continue;
            }
            let mut buckets = Vec::new();
            self.free_buckets(tier).take(owner, 0, wanted, |bucket| {
                buckets.push(BucketId::from_raw(bucket));
            });
            self.header().tier[tier].free.fetch_sub(buckets.len() as u32, Ordering::Relaxed);
            taken.fetch_add(buckets.len() as u32, Ordering::Relaxed);
            for &bucket in &buckets {
                if let Some(meta) = self.bucket(bucket) {
                    meta.reserved.store(mark_of(number), Ordering::SeqCst);
                    meta.state.store(RESERVED, Ordering::SeqCst);
                }
            }
            found += buckets.len() as u32;
            // Those of lower tiers only when it has no more.
            if tier.is_ram()
                && found < count
                && wanted > buckets.len() as u32
                && self.growable() > 0
            {
                break;
            }
        }
        job.reserved.fetch_add(found, Ordering::SeqCst);
        job.free.fetch_add(found, Ordering::SeqCst);
        found
    }

    /// Takes a free bucket of job `number`'s reservation for `owner`, and its tier.
    pub fn take_reserved(&self, number: u32, owner: Owner) -> Option<(TierId, BucketId)> {
        let job = self.job(number)?;
        // Not looked for in vain at every block.
        if job.free.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mark = mark_of(number);
        let start = job.cursor.load(Ordering::Relaxed).min(self.header().buckets);
        let mine = |bucket: &BucketId| {
            self.bucket(*bucket).is_some_and(|meta| {
                meta.reserved.load(Ordering::Relaxed) == mark
                    && meta.state.load(Ordering::Relaxed) == RESERVED
                    && meta
                        .state
                        .compare_exchange(
                            RESERVED,
                            owner.raw(),
                            Ordering::AcqRel,
                            Ordering::Relaxed,
                        )
                        .is_ok()
            })
        };
        let header = self.header();
        let later = header.whole_buckets_in(start..u32::MAX);
        let found = later.chain(header.whole_buckets_in(0..start)).find(mine);
        let Some(bucket) = found else {
            job.free.store(0, Ordering::Release);
            return None;
        };
        let one_less = |free: u32| free.checked_sub(1);
        let _ = job.free.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        job.cursor.store(bucket.raw() + 1, Ordering::Relaxed);
        Some((self.tier_of(bucket), bucket))
    }

    /// Gives all programs what is set aside for job `number`; blocks in it stay. For the node
    /// manager.
    pub fn release_reservation(&self, number: u32) {
        let Some(job) = self.job(number) else { return };
        let has_any = job.reserved.swap(0, Ordering::SeqCst) != 0;
        job.free.store(0, Ordering::SeqCst);
        // Most jobs have nothing: they begin and end without a look at the buckets.
        if !has_any {
            return;
        }
        let mark = mark_of(number);
        for bucket in self.header().whole_buckets_in(0..u32::MAX) {
            let Some(meta) = self.bucket(bucket) else { continue };
            if meta.reserved.load(Ordering::SeqCst) == mark {
                meta.reserved.store(0, Ordering::SeqCst);
                let taken = &self.header().set_aside[self.tier_of(bucket)];
                taken.fetch_sub(1, Ordering::Relaxed);
                self.buckets().free_reserved(bucket, meta);
            }
        }
    }

    /// Bytes of job `number`'s reservation that hold blocks.
    pub fn reserved_in_use(&self, number: u32) -> u64 {
        let mark = mark_of(number);
        let used = |&bucket: &BucketId| {
            self.bucket(bucket).is_some_and(|meta| {
                meta.reserved.load(Ordering::Relaxed) == mark
                    && meta.state.load(Ordering::Relaxed) == USED
            })
        };
        let whole = self.header().whole_buckets_in(0..u32::MAX);
        whole.filter(used).count() as u64 * self.bucket_bytes() as u64
    }

    /// Makes what jobs have set aside agree with the marks of the buckets, after a manager that may
    /// have died in between. For the node manager.
    pub fn recover_reservations(&self) {
        let mut by_tier = [0; TIERS_MAX];
        let mut by_job = [0; JOBS_MAX];
        for bucket in self.header().bucket_ids() {
            let Some(meta) = self.bucket(bucket) else { continue };
            let Some(place) = meta.reserved.load(Ordering::SeqCst).checked_sub(1) else {
                // Between mark and state nothing can be lost; without a mark all programs may take
                // it.
                self.buckets().free_reserved(bucket, meta);
                continue;
            };
            let job = self.header().job.get(place as usize);
            if job.is_none_or(|job| job.state.load(Ordering::SeqCst) == job_state::FREE) {
                meta.reserved.store(0, Ordering::SeqCst);
                self.buckets().free_reserved(bucket, meta);
                continue;
            }
            by_tier[self.tier_of(bucket)] += 1;
            by_job[place as usize % JOBS_MAX] += 1;
        }
        for (place, count) in self.header().set_aside.iter().zip(by_tier) {
            place.store(count, Ordering::Relaxed);
        }
        for (job, count) in self.header().job.iter().zip(by_job) {
            job.reserved.store(count, Ordering::SeqCst);
            // Too many is put right by the first that finds none.
            job.free.store(count, Ordering::SeqCst);
        }
    }

    /// Takes the place of a job that is over. For the node manager.
    pub fn end_job(&self, number: u32) {
        self.release_reservation(number);
        if let Some(job) = self.job(number) {
            job.state.store(job_state::FREE, Ordering::SeqCst);
            if job.cap.limit().is_some() {
                self.count_caps();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;

    /// The first record.
    const FILE: FileId = FileId::from_raw(0);

    #[test]
    fn what_is_set_aside_is_for_one_job_alone() {
        let tiers = Geometry::for_tiers(4096, &[64 << 18, 64 << 18]);
        let (segment, _file) = anonymous(&tiers).unwrap();
        let me = Owner::new(1, 0);
        let available = |tier| segment.free_buckets(TierId::new(tier)).available();
        let number = segment.begin_job(1, 0).unwrap();
        assert_eq!(segment.set_aside(number, 60, me), 60);
        assert_eq!((available(0), available(1)), (8, 60), "an eighth of RAM is for all programs");
        let other = segment.begin_job(1, 0).unwrap();
        assert_ne!(other, number);
        assert_eq!(segment.set_aside(other, 100, me), 60);
        assert_eq!((segment.reservable_now(), available(1)), (0, 0));

        let taken: Vec<_> = (0..60).map(|_| segment.take_reserved(number, me).unwrap()).collect();
        assert_eq!(taken.iter().filter(|(tier, _)| tier.is_ram()).count(), 56);
        assert_eq!(segment.take_reserved(number, me), None);
        // What is freed comes back, and to this job.
        let fresh = segment.init_bucket(taken[7].1, FILE, 0, me).unwrap();
        assert_eq!(segment.reserved_in_use(number), 1 << 18);
        drop(fresh);
        assert_eq!(segment.take_reserved(number, me), Some(taken[7]));

        // A block outlives the reservation in which it lies.
        core::mem::forget(segment.init_bucket(taken[8].1, FILE, 0, me).unwrap());
        for (_, bucket) in taken.iter().filter(|(_, bucket)| *bucket != taken[8].1) {
            segment.free_bucket(*bucket);
        }
        segment.recover_reservations();
        assert_eq!((available(0), segment.reservable_now()), (8, 0));
        segment.end_job(number);
        segment.end_job(other);
        assert_eq!((available(0), available(1)), (63, 64));
        segment.free_bucket(taken[8].1);
        assert_eq!((available(0), segment.reservable_now()), (64, 120));
        assert!(segment.job(number).is_none());
        assert!(segment.begin_job(1, 0).unwrap() > number, "no number comes twice");
    }

    #[test]
    fn buckets_are_looked_at_only_for_jobs_that_have_some() {
        let tiers = Geometry::for_tiers(4096, &[64 << 18, 64 << 18]);
        let (segment, _file) = anonymous(&tiers).unwrap();
        let number = segment.begin_job(1, 0).unwrap();
        // As no job leaves it that counts nothing.
        let place = &segment.bucket(BucketId::from_raw(5)).unwrap().reserved;
        place.store(mark_of(number), Ordering::SeqCst);
        segment.release_reservation(number);
        assert_eq!(place.load(Ordering::SeqCst), mark_of(number), "it was looked at");
        segment.job(number).unwrap().reserved.store(1, Ordering::SeqCst);
        segment.release_reservation(number);
        assert_eq!(place.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn no_process_joins_a_job_that_is_over() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let pid = std::process::id();
        let slot = segment.clients().claim(pid, 1).unwrap();
        let number = segment.begin_job(pid, 1).unwrap();
        assert!(!segment.join_job(slot, number), "it has not begun");
        segment.job(number).unwrap().state.store(job_state::LIVE, Ordering::SeqCst);
        assert!(segment.join_job(slot, number) && segment.clients().has_of_job(number));
        let child = segment.clients().reserve(pid, 1).unwrap();
        segment.inherit(slot, child);
        assert_eq!(segment.reap_slot(slot, |_, _| {}), Some(false));
        assert!(segment.clients().has_of_job(number), "its child goes on");
        assert_eq!(segment.reap_slot(child, |_, _| {}), Some(false));
        assert!(!segment.clients().has_of_job(number));
        segment.job(number).unwrap().state.store(job_state::OVER, Ordering::SeqCst);
        let late = segment.clients().claim(pid, 1).unwrap();
        assert!(!segment.join_job(late, number) && !segment.join_job(late, number + 1));
        assert!(!segment.clients().has_of_job(number));
        assert_eq!((number, segment.begin_job(pid, 1)), (1, Some(2)));
        segment.end_job(2);
        assert_eq!(segment.begin_job(pid, 1), Some(3));
        while segment.begin_job(pid, 1).is_some() {}
        assert_eq!(segment.jobs().count(), JOBS_MAX);
    }
}
