//! Tables that get memory when it is needed.

use super::Segment;
use crate::crash;
use crate::layout::{
    BucketMeta, DESCRIPTIONS_PIECE, Description, FILES_PIECE, FileRecord, LONGER_PATH_BYTES,
    Offsets, PATH_BYTES, SPARSE_PIECE, SlotChecksums, TierId,
};
use crate::sync::Ordering;
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use rustix::mm::Advice;

/// What is given memory begins at a multiple of this: sections do.
const PAGE: usize = 4096;

/// Where the descriptions from `first` on, as many as get memory at a time, and the bits for them
/// lie. Both begin where a page does.
pub(super) fn piece_of_descriptions(
    offsets: &Offsets,
    descriptions: u32,
    clients: u32,
    first: u32,
) -> [Range<usize>; 2] {
    let ids = first as usize..descriptions.min(first + DESCRIPTIONS_PIECE) as usize;
    let record = |id: usize| offsets.descriptions + id * size_of::<Description>();
    let bits = |id: usize| offsets.bitmaps + id * clients as usize / 8;
    [record(ids.start)..record(ids.end), bits(ids.start)..bits(ids.end)]
}

/// Where the file records from `first` on, as many as get memory at a time, lie.
pub(super) fn piece_of_files(offsets: &Offsets, files: u32, first: u32) -> Range<usize> {
    let record = |id: u32| offsets.files + id as usize * size_of::<FileRecord>();
    record(first)..record(files.min(first + FILES_PIECE))
}

/// Where the states and the checksums of these slots lie; `first` is the first slot of all.
pub(super) fn piece_of_slots(
    offsets: &Offsets,
    first: u32,
    slots: Range<u32>,
) -> [Range<usize>; 2] {
    let state = |id: u32| offsets.buckets + id as usize * size_of::<BucketMeta>();
    let sums = |id: u32| offsets.sums + (id - first) as usize * size_of::<SlotChecksums>();
    [state(slots.start)..state(slots.end), sums(slots.start)..sums(slots.end)]
}

impl Segment {
    /// Gives memory to the tables of more sparse slots of file tier `tier`. False if there are no
    /// more, or the memory is not to be had. For the node manager, whose threads may do it at once.
    pub fn ready_more_slots(&self, tier: TierId) -> bool {
        let sparse = &self.header().tier[tier].sparse;
        let all = self.header().sparse(tier);
        let ready = sparse.ready.load(Ordering::Acquire);
        let upto = sparse.buckets.min(ready.saturating_add(SPARSE_PIECE));
        if tier.is_ram() || ready >= upto || crash::refused("files") {
            return false;
        }
        let pieces =
            piece_of_slots(&self.offsets, self.sparse.end, all.start + ready..all.start + upto);
        let has_memory = pieces.into_iter().all(|piece| {
            // They may begin and end in pages that others have a part of.
            self.populate(piece.start / PAGE * PAGE..piece.end)
        });
        if !has_memory {
            return false;
        }
        crash::point("sparse.slots-ready");
        if sparse.ready.fetch_max(upto, Ordering::AcqRel) == ready {
            self.repair_sparse_from(tier, ready);
        }
        true
    }

    /// Gives memory to more file records than the `ready` ones, as
    /// [`Segment::grow_descriptions`] does.
    pub(crate) fn grow_files(&self, ready: u32) -> bool {
        let header = self.header();
        if ready >= header.files || crash::refused("files") {
            return false;
        }
        if !self.populate(piece_of_files(&self.offsets, header.files, ready)) {
            return false;
        }
        let upto = header.files.min(ready + FILES_PIECE);
        header.files_ready.fetch_max(upto, Ordering::AcqRel);
        true
    }

    /// Gives memory to more open-file descriptions than the `ready` ones. False if there are no
    /// more, or the memory is not to be had. Any process may do it, and die over it: what has
    /// memory is not yet counted then, and is not given it twice.
    pub(super) fn grow_descriptions(&self, ready: u32) -> bool {
        let header = self.header();
        if ready >= header.descriptions || crash::refused("descriptions") {
            return false;
        }
        let (descriptions, clients) = (header.descriptions, header.clients);
        let pieces = piece_of_descriptions(&self.offsets, descriptions, clients, ready);
        if !pieces.into_iter().all(|piece| self.populate(piece)) {
            return false;
        }
        let upto = header.descriptions.min(ready + DESCRIPTIONS_PIECE);
        let seen = header.descriptions_ready.fetch_max(upto, Ordering::AcqRel);
        if seen == ready {
            // The new ones are all free.
            header.description_cursor.store(ready, Ordering::Relaxed);
        }
        true
    }

    /// Where record `file` keeps a path that is too long for itself.
    pub(crate) fn longer_path(&self, file: u32) -> &[AtomicU8] {
        self.at::<[AtomicU8; LONGER_PATH_BYTES]>(self.offsets.longer_paths, file)
    }

    /// Where record `file` keeps a path that is too long for that, too.
    pub(crate) fn longest_path(&self, file: u32) -> &[AtomicU8] {
        self.at::<[AtomicU8; PATH_BYTES]>(self.offsets.longest_paths, file)
    }

    /// Gives memory to a place of a path; false if there is none.
    pub(crate) fn populate_path(&self, place: &[AtomicU8]) -> bool {
        let start = place.as_ptr().addr() - self.base.addr().get();
        self.populate(start / PAGE * PAGE..start + place.len())
    }

    /// Gives memory to a part of a table, which begins where a page does; false if there is none.
    fn populate(&self, piece: Range<usize>) -> bool {
        let bytes = piece.len().next_multiple_of(PAGE);
        // SAFETY: inside the mapping. Where /dev/shm is full it fails, where a store would end the
        // process.
        let done = unsafe {
            let at = self.base.add(piece.start).as_ptr().cast();
            rustix::mm::madvise(at, bytes, Advice::LinuxPopulateWrite)
        };
        done.is_ok()
    }
}
