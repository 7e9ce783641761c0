//! How much of the tables has ever been in use.

use super::Segment;
use crate::free_map::FREE;
use crate::layout::{file_state, slot_state};
use crate::sync::{AtomicU32, Ordering};
use crate::{BucketId, FileId, crash};

impl Segment {
    /// How much of the tables of clients, files, buckets in RAM and descriptions has ever been in
    /// use, and how long those are. Processes raise the marks at any time: each is changed in one
    /// step, and never set to what it was when it was looked at.
    fn marks(&self) -> [(&AtomicU32, u32); 6] {
        let header = self.header();
        [
            (&header.clients_high, header.clients),
            (&header.files_high, header.files_ready().min(header.files)),
            (&header.ram_ready, self.ram_buckets),
            (&header.sparse_ready, header.sparse_buckets),
            // Raised with the memory that they count, and never behind it.
            (&header.files_ready, header.files),
            (&header.descriptions_ready, header.descriptions),
        ]
    }

    pub(super) fn has_bounded_marks(&self) -> bool {
        let is_bounded = |(mark, most): (&AtomicU32, u32)| mark.load(Ordering::Acquire) <= most;
        self.marks().into_iter().all(is_bounded)
            && self.header().clients_high.load(Ordering::Acquire) >= 1
    }

    pub(super) fn bound_marks(&self) {
        for (mark, most) in self.marks() {
            mark.fetch_min(most, Ordering::AcqRel);
        }
        self.header().clients_high.fetch_max(1, Ordering::AcqRel);
    }

    /// Raises the marks to what is in use behind them. For a manager that takes over.
    pub(crate) fn raise_marks(&self) {
        let client =
            |&slot: &u32| self.client(slot).state.load(Ordering::Acquire) != slot_state::FREE;
        let file = |&file: &u32| {
            self.file(FileId::from_raw(file)).state.load(Ordering::Acquire) != file_state::FREE
        };
        let bucket = |&bucket: &u32| {
            self.bucket(BucketId::from_raw(bucket))
                .is_some_and(|meta| meta.state.load(Ordering::Acquire) != FREE)
        };
        let sparse = |&number: &u32| bucket(&(self.sparse.start + number));
        let uses: [&dyn Fn(&u32) -> bool; 4] = [&client, &file, &bucket, &sparse];
        for ((mark, most), used) in self.marks().into_iter().zip(uses) {
            let last = (mark.load(Ordering::Acquire)..most).rev().find(used);
            crash::point("recover.marks");
            if let Some(last) = last {
                mark.fetch_max(last + 1, Ordering::AcqRel);
            }
        }
        // A part of a word of the free map may be left out.
        let ready = &self.header().sparse_ready;
        ready.fetch_max(ready.load(Ordering::Acquire).next_multiple_of(64), Ordering::AcqRel);
    }
}
