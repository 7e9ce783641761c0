//! Caps: how much may be in the tiers that the store lacks, of the files of one job and of all, in
//! pages. Scratch files, which never go to the store, do not count.
//!
//! As with quotas nothing is ever taken off a count: threads add what they are about to make dirty,
//! the node manager counts all again from the buckets, and what a killed process has counted counts
//! until then. See docs/design/caps.md.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner};
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[64 << 20]))?;
//! let me = Owner::new(segment.clients().claim(std::process::id(), 1).expect("one is free"), 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let file = segment.file(file);
//! assert!(segment.has_room_unsafe(file, 1 << 20), "nothing is capped");
//! segment.set_cap(64);
//! segment.note_unsafe(file, 60);
//! assert!(segment.has_room_unsafe(file, 4) && !segment.has_room_unsafe(file, 5));
//! // Nothing came of it.
//! assert!(segment.recount_unsafe() && segment.has_room_unsafe(file, 64));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::layout::*;
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::{FileId, futex};
use forebay_placement::caps::is_pressed;

/// Pages that the store lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsafePages {
    /// Those of all files.
    pub all: u32,
    /// Those of the files of each job with limits, by its place.
    pub by_job: [u32; JOBS_MAX],
}

impl JobQuota {
    /// Whether so much of it is used that it is flushed whatever the trigger says.
    pub fn is_pressed(&self) -> bool {
        self.limit().is_some_and(|limit| is_pressed(self.used().into(), limit.into()))
    }

    fn has_room(&self, pages: u32) -> bool {
        self.limit().is_none_or(|limit| self.used().saturating_add(pages) <= limit)
    }
}

impl Segment {
    /// Whether anything is capped.
    #[inline(always)]
    pub fn has_caps(&self) -> bool {
        self.header().caps.load(Ordering::Relaxed) != 0
    }

    /// Sets what all files together may have in the tiers that the store lacks, in pages; 0 is as
    /// much as there is room for. For the node manager, as it begins.
    pub fn set_cap(&self, pages: u64) {
        self.header().cap.set_limit(pages);
        self.count_caps();
    }

    /// Counts the caps that there are. For the node manager.
    pub fn count_caps(&self) {
        let all = self.jobs().map(|job| &job.cap).chain([&self.header().cap]);
        let count = all.filter(|cap| cap.limit().is_some()).count();
        self.header().caps.store(count as u32, Ordering::SeqCst);
    }

    /// The caps that hold for a file.
    fn caps_of(&self, record: &FileRecord) -> impl Iterator<Item = &JobQuota> {
        let of_job = self.quota_job(record).map(|job| &job.cap);
        let meant = !record.has(FileFlags::SCRATCH);
        of_job.into_iter().chain([&self.header().cap]).filter(move |_| meant)
    }

    /// For how many milliseconds the store may lack what is written to a file, as its job says.
    pub fn max_age_of(&self, record: &FileRecord) -> Option<u32> {
        let of_job = self.quota_job(record)?.max_age_ms.load(Ordering::Relaxed);
        (of_job > 0 && !record.has(FileFlags::SCRATCH)).then_some(of_job)
    }

    /// Whether so many more pages of a file may be in the tiers that the store lacks.
    pub fn has_room_unsafe(&self, record: &FileRecord, pages: u32) -> bool {
        self.caps_of(record).all(|cap| cap.has_room(pages))
    }

    /// Counts pages of a file that the store will lack, whatever the caps say. Wakes the node
    /// manager where flushes are to begin.
    pub fn note_unsafe(&self, record: &FileRecord, pages: u32) {
        let mut begins = false;
        for cap in self.caps_of(record).filter(|cap| cap.limit().is_some()) {
            let was_pressed = cap.is_pressed();
            cap.taken.fetch_add(pages, Ordering::SeqCst);
            begins |= !was_pressed && cap.is_pressed();
        }
        if begins {
            self.want_caps();
        }
    }

    /// The same of pages of the file of this number that are copied to another bucket.
    pub fn note_copied(&self, file: FileId, pages: u64) {
        if pages != 0 && self.has_caps() && self.header().has_file(file) {
            self.note_unsafe(self.file(file), pages.count_ones());
        }
    }

    /// Has the node manager flush for caps, and count.
    pub fn want_caps(&self) {
        let wanted = &self.header().caps_wanted;
        wanted.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(wanted);
    }

    /// Whether flushes are to begin for some cap.
    pub fn are_caps_pressed(&self) -> bool {
        self.has_caps()
            && (self.header().cap.is_pressed() || self.jobs().any(|job| job.cap.is_pressed()))
    }

    /// Changes when the node manager counts something else for a cap that holds for a file.
    pub fn counted_unsafe(&self, record: &FileRecord) -> u64 {
        let bases = self.caps_of(record).map(|cap| cap.base.load(Ordering::SeqCst));
        bases.fold(0, |sum, base| sum << 32 | u64::from(base))
    }

    /// Pages of all files that the store lacks, as the buckets say.
    pub fn count_unsafe(&self) -> UnsafePages {
        let header = self.header();
        let mut found = UnsafePages { all: 0, by_job: [0; JOBS_MAX] };
        for meta in header.bucket_ids().filter_map(|bucket| self.bucket(bucket)) {
            let pages = meta.pending().count_ones();
            let file = meta.file.load(Ordering::Relaxed);
            if pages == 0 || !header.has_file(file) || self.file(file).has(FileFlags::SCRATCH) {
                continue;
            }
            found.all = found.all.saturating_add(pages);
            let number = self.file(file).quota_job.load(Ordering::Relaxed);
            if self.job(number).is_some() {
                let place = &mut found.by_job[number as usize % JOBS_MAX];
                *place = place.saturating_add(pages);
            }
        }
        found
    }

    /// Counts them for the caps, and wakes those that wait if that is another count. For the node
    /// manager, one thread at a time.
    pub fn recount_unsafe(&self) -> bool {
        let header = self.header();
        let caps = || header.job.iter().map(|job| &job.cap).chain([&header.cap]);
        // Before the look: what is made dirty meanwhile counts twice at most.
        let before: Vec<_> = caps().map(|cap| cap.taken.load(Ordering::SeqCst)).collect();
        let UnsafePages { all, by_job } = self.count_unsafe();
        let mut differs = false;
        for ((cap, used), before) in caps().zip(by_job.into_iter().chain([all])).zip(before) {
            if cap.limit().is_some() {
                let base = used.wrapping_sub(before);
                differs |= cap.base.swap(base, Ordering::SeqCst) != base;
            }
        }
        if differs {
            header.caps_counted.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&header.caps_counted);
        }
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;
    use crate::{BucketId, Identity, Owner};

    /// A segment, two files, and a job with a cap of so many pages for which the first counts.
    fn capped(pages: u64) -> (Segment, impl Sized, [FileId; 2], u32, Owner) {
        let tiers = Geometry::for_tiers(4096, &[64 << 18, 64 << 18]);
        let (segment, memory) = anonymous(&tiers).unwrap();
        let me = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        let file = |inode| {
            let name = Identity { device: 1, inode };
            segment.with_file_or_new(name, me, |file, _| file).unwrap()
        };
        let files = [file(1), file(2)];
        let number = segment.begin_job(1, 0).unwrap();
        segment.job(number).unwrap().set_cap(pages, 0);
        segment.count_caps();
        segment.file(files[0]).quota_job.store(number, Ordering::Relaxed);
        (segment, memory, files, number, me)
    }

    fn dirty(segment: &Segment, file: FileId, block: u64, pages: u64, me: Owner) -> BucketId {
        let bucket = segment.take_bucket(me).unwrap();
        let fresh = segment.init_bucket(bucket, file, block, me).unwrap();
        let entry = segment.entry_or_insert(segment.file(file), block, me).unwrap();
        let held = fresh.publish(entry, TierId::RAM).unwrap();
        held.meta().valid.store(pages, Ordering::Relaxed);
        held.meta().mark_dirty(pages, 1);
        bucket
    }

    #[test]
    fn caps_hold_for_the_files_of_a_job_and_counts_are_made_again_from_the_buckets() {
        let (segment, _memory, [mine, other], number, me) = capped(128);
        let [mine_record, other_record] = [mine, other].map(|file| segment.file(file));
        let cap = &segment.job(number).unwrap().cap;
        assert!(segment.has_caps() && segment.has_room_unsafe(mine_record, 128));
        assert!(!segment.has_room_unsafe(mine_record, 129));
        assert!(segment.has_room_unsafe(other_record, 1 << 30), "no job's");

        // What was counted and came to nothing, as of a process that was killed.
        let wanted = segment.header().caps_wanted.load(Ordering::SeqCst);
        segment.note_unsafe(mine_record, 95);
        assert!(!cap.is_pressed());
        assert_eq!(segment.header().caps_wanted.load(Ordering::SeqCst), wanted);
        segment.note_unsafe(mine_record, 1);
        assert!(cap.is_pressed() && segment.are_caps_pressed());
        assert_eq!(segment.header().caps_wanted.load(Ordering::SeqCst), wanted + 1);
        segment.note_unsafe(other_record, 77);
        dirty(&segment, mine, 0, 0b111, me);
        let bucket = dirty(&segment, mine, 1, u64::MAX, me);
        dirty(&segment, other, 0, u64::MAX, me);
        assert!(segment.recount_unsafe());
        assert_eq!((cap.used(), segment.count_unsafe().all), (67, 131));
        assert!(!segment.recount_unsafe(), "nothing has changed");
        // Under writeback it is not there yet.
        let pages = &segment.bucket(bucket).unwrap().pages;
        pages.begin_writeback(u64::MAX);
        assert!(!segment.recount_unsafe() && cap.used() == 67);
        let counted = segment.counted_unsafe(mine_record);
        pages.end_writeback(u64::MAX, false);
        assert!(segment.recount_unsafe() && cap.used() == 3);
        assert_ne!(segment.counted_unsafe(mine_record), counted);

        // Beyond the limit where it has to be, and nothing more then.
        segment.note_copied(mine, u64::MAX);
        segment.note_copied(mine, u64::MAX);
        assert!(cap.used() == 131 && !segment.has_room_unsafe(mine_record, 1));

        segment.end_job(number);
        assert!(!segment.has_caps() && segment.has_room_unsafe(mine_record, 1 << 30));
        // The next job in its place has nothing of it.
        let next = (0..).find_map(|_| {
            let next = segment.begin_job(1, 0).unwrap();
            let is_there = next as usize % JOBS_MAX == number as usize % JOBS_MAX;
            if !is_there {
                segment.end_job(next);
            }
            is_there.then_some(next)
        });
        let next = segment.job(next.unwrap()).unwrap();
        assert_eq!((next.cap.limit(), next.is_limited()), (None, false));
        next.set_cap(64, 0);
        segment.recount_unsafe();
        assert_eq!(next.cap.used(), 0);
    }

    #[test]
    fn the_cap_of_all_holds_beside_that_of_a_job_and_scratch_files_do_not_count() {
        let (segment, _memory, [mine, other], number, me) = capped(256);
        let [mine_record, other_record] = [mine, other].map(|file| segment.file(file));
        segment.set_cap(100);
        segment.note_unsafe(other_record, 90);
        assert!(segment.has_room_unsafe(mine_record, 10));
        assert!(!segment.has_room_unsafe(mine_record, 11) && segment.are_caps_pressed());
        dirty(&segment, other, 0, u64::MAX, me);
        segment.file(other).set(FileFlags::SCRATCH);
        segment.recount_unsafe();
        assert!(segment.has_room_unsafe(mine_record, 100) && segment.count_unsafe().all == 0);
        assert!(segment.has_room_unsafe(other_record, 1 << 30));
        segment.note_unsafe(other_record, 1 << 20);
        assert_eq!(segment.header().cap.used(), 0);
        segment.end_job(number);
        assert!(segment.has_caps());
        segment.set_cap(0);
        assert!(!segment.has_caps());
    }

    #[test]
    fn an_age_alone_is_a_limit_and_no_cap() {
        let (segment, _memory, [mine, _], number, _) = capped(0);
        let job = segment.job(number).unwrap();
        assert!(!segment.has_caps() && !job.is_limited());
        job.set_cap(0, 2000);
        assert!(job.is_limited() && segment.has_room_unsafe(segment.file(mine), 1 << 30));
        assert_eq!(segment.max_age_of(segment.file(mine)), Some(2000));
    }
}
