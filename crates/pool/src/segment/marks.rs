//! How much of the tables has ever been in use.

use super::Segment;
use crate::free_map::FREE;
use crate::layout::{TierId, file_state};
use crate::sync::{AtomicU32, Ordering};
use crate::{BucketId, FileId, crash};

impl Segment {
    /// How much of the tables of files, buckets in RAM and descriptions has ever been in
    /// use, and how long those are. Processes raise the marks at any time: each is changed in one
    /// step, and never set to what it was when it was looked at.
    fn marks(&self) -> [(&AtomicU32, u32); 5] {
        let header = self.header();
        [
            (&header.files_high, header.files_ready().min(header.files)),
            (&header.ram_ready, self.ram_buckets),
            (&header.tier[TierId::RAM].sparse.ready, self.sparse.len() as u32),
            // Raised with the memory that they count, and never behind it.
            (&header.files_ready, header.files),
            (&header.descriptions_ready, header.descriptions),
        ]
    }

    /// The same of sparse slots, whose tables have memory up to there.
    fn slot_marks(&self) -> impl Iterator<Item = (&AtomicU32, u32)> {
        let of_tier = |tier: TierId| {
            let sparse = &self.header().tier[tier].sparse;
            (&sparse.ready, sparse.buckets)
        };
        self.header().file_tiers().map(of_tier)
    }

    pub(super) fn has_bounded_marks(&self) -> bool {
        let is_bounded = |(mark, most): (&AtomicU32, u32)| mark.load(Ordering::Acquire) <= most;
        self.marks().into_iter().chain(self.slot_marks()).all(is_bounded)
    }

    pub(super) fn bound_marks(&self) {
        for (mark, most) in self.marks().into_iter().chain(self.slot_marks()) {
            mark.fetch_min(most, Ordering::AcqRel);
        }
    }

    /// Raises the marks to what is in use behind them. For a manager that takes over.
    pub(crate) fn raise_marks(&self) {
        self.clients().note_taken();
        let file = |&file: &u32| {
            self.file(FileId::from_raw(file)).state.load(Ordering::Acquire) != file_state::FREE
        };
        let bucket = |&bucket: &u32| {
            self.bucket(BucketId::from_raw(bucket))
                .is_some_and(|meta| meta.state.load(Ordering::Acquire) != FREE)
        };
        let sparse = |&number: &u32| bucket(&(self.sparse.start + number));
        let uses: [&dyn Fn(&u32) -> bool; 3] = [&file, &bucket, &sparse];
        for ((mark, most), used) in self.marks().into_iter().zip(uses) {
            let last = (mark.load(Ordering::Acquire)..most).rev().find(used);
            crash::point("recover.marks");
            if let Some(last) = last {
                mark.fetch_max(last + 1, Ordering::AcqRel);
            }
        }
        // A part of a word of the free map may be left out.
        let ready = &self.header().tier[TierId::RAM].sparse.ready;
        ready.fetch_max(ready.load(Ordering::Acquire).next_multiple_of(64), Ordering::AcqRel);
    }
}
