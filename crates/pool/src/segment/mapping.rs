//! The mapping: where each section lies in memory, and its bytes.

use super::error::system;
use super::memory::SMALL_PAGE;
use super::{Segment, SegmentError};
use crate::entry::Entry;
use crate::layout::{
    Counts, DATA_ALIGN, FileRecord, Header, Offsets, PAGES_PER_BUCKET, STORES_MAX, TierId,
};
use crate::sync::{AtomicU64, Ordering};
use crate::{BucketId, ranks};
use core::ptr::NonNull;
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cache lines that are asked for ahead: enough for the processor's own prefetcher to go on, and so
/// few that they fit into its window. With all 64 of a page half of the gain is lost.
const PREFETCHED_LINES: usize = 8;

/// Asks for a cache line; nothing happens if it is not memory.
#[inline(always)]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture, and a prefetch never faults.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Segment {
    /// Maps the segment in `file`.
    pub(super) fn map(
        file: BorrowedFd<'_>,
        sharing: MapFlags,
        offsets: Offsets,
        counts: &Counts,
    ) -> Result<Segment, SegmentError> {
        let whole = Mapping::aligned(file, offsets.end, sharing)?;
        Ok(Segment::of(whole, offsets, counts))
    }

    /// The segment that is mapped in `whole`, and has these sections.
    pub(super) fn of(whole: Mapping, offsets: Offsets, counts: &Counts) -> Segment {
        let whole = core::mem::ManuallyDrop::new(whole);
        Segment {
            // SAFETY: a mapping is nowhere near null.
            base: unsafe { NonNull::new_unchecked(whole.base) },
            mapped: whole.length,
            offsets,
            bucket_bytes: counts.bucket_bytes as usize,
            page_shift: (counts.bucket_bytes / u64::from(PAGES_PER_BUCKET)).trailing_zeros(),
            ram_buckets: counts.ram_buckets,
            sparse: counts.first_sparse()..counts.first_sparse() + counts.sparse_buckets,
            trails: counts.trails(),
            shared_devices: [const { None }; STORES_MAX],
        }
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: mapped for as long as self; the plain fields never change after `create`.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[inline]
    pub(super) fn at<T>(&self, section: usize, index: u32) -> &T {
        // SAFETY: callers have checked the index against the header's count, and the section was
        // laid out for that count.
        unsafe { self.base.add(section).cast::<T>().add(index as usize).as_ref() }
    }

    #[inline(always)]
    pub(super) fn slice<T>(&self, section: usize, count: usize) -> &[T] {
        // SAFETY: the section was laid out for `count` items, which are all atomics.
        unsafe { NonNull::slice_from_raw_parts(self.base.add(section).cast::<T>(), count).as_ref() }
    }

    pub(super) fn words(&self, section: usize, items: u32) -> &[AtomicU64] {
        self.slice(section, items.div_ceil(64) as usize)
    }

    /// The bytes of RAM bucket `bucket`. Reading or writing them follows the protocol of its lock.
    #[inline]
    pub fn bucket_data(&self, bucket: BucketId) -> *mut u8 {
        debug_assert!(bucket.raw() < self.ram_buckets || self.is_sparse(bucket));
        // SAFETY: RAM bucket ids come first, the sparse ones last of them, and the data section
        // holds that many.
        unsafe { self.base.as_ptr().add(self.offsets.data + bucket.index() * self.bucket_bytes) }
    }

    /// Has the processor fetch the beginning of what is about to be read at `offset` of `file`, if
    /// it lies in RAM. A hint: the caller need not be inside the file.
    ///
    /// To be called first of all: the processor looks only some hundred instructions ahead, so that
    /// lines asked for here still overlap with those that the call before is copying.
    #[inline(always)]
    pub fn prefetch(&self, file: &FileRecord, offset: u64) {
        let (block, within) = self.block_at(offset);
        let Some(place) = self.entry(file, block) else { return };
        let Entry::Resident { tier: TierId::RAM, bucket, .. } =
            Entry::decode(place.load(Ordering::Relaxed))
        else {
            return;
        };
        let Some(meta) = self.bucket(bucket) else { return };
        prefetch_line(core::ptr::from_ref(meta).cast());
        let bytes = bucket.index() * self.bucket_bytes + within;
        let first = self.base.as_ptr().wrapping_add(self.offsets.data + bytes).cast_const();
        for line in 0..PREFETCHED_LINES {
            prefetch_line(first.wrapping_add(line * LINE));
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let start = self.base.addr().get();
        ranks::unmapped(start..start + self.mapped);
        // SAFETY: this mapping is ours and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// An address for a mapping of `length` bytes that is a multiple of a huge page, and is probably
/// free: the kernel takes another if it is not. It lies below this library, as what the kernel
/// chooses does.
fn likely_place(length: usize) -> *mut core::ffi::c_void {
    /// For libraries that are loaded later.
    const ROOM: usize = 1 << 30;
    let here = likely_place as *const () as usize;
    let place = here.saturating_sub(ROOM + length) / DATA_ALIGN * DATA_ALIGN;
    core::ptr::without_provenance_mut(place)
}

/// A temporary mapping of a file's beginning.
pub(super) struct Mapping {
    pub(super) base: *mut u8,
    length: usize,
}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, length: usize) -> Result<Mapping, SegmentError> {
        // SAFETY: a fresh mapping, read only.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(system("mapping the pool's header"))?;
        Ok(Mapping { base: base.cast(), length })
    }

    /// Maps all `length` bytes of `file` at an address that is a multiple of a huge page, so that
    /// the kernel can map one.
    pub(super) fn aligned(
        file: BorrowedFd<'_>,
        length: usize,
        sharing: MapFlags,
    ) -> Result<Mapping, SegmentError> {
        let fail = system("mapping the pool");
        let usable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let base =
            unsafe { rustix::mm::mmap(likely_place(length), length, usable, sharing, file, 0) };
        let found = Mapping { base: base.map_err(&fail)?.cast(), length };
        if found.base.addr().is_multiple_of(DATA_ALIGN) {
            return Ok(found);
        }
        drop(found);
        let room = length + DATA_ALIGN;
        // SAFETY: a fresh reservation, of which all but the aligned part is given back.
        unsafe {
            let start = rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
            .map_err(&fail)?
            .cast::<u8>();
            let skip = start.align_offset(DATA_ALIGN);
            let base = start.add(skip);
            let fixed = sharing | MapFlags::FIXED;
            rustix::mm::mmap(base.cast(), length, usable, fixed, file, 0).map_err(&fail)?;
            if skip > 0 {
                let _ = rustix::mm::munmap(start.cast(), skip);
            }
            let end = base.add(length.next_multiple_of(SMALL_PAGE));
            let rest = start.add(room).offset_from_unsigned(end);
            if rest > 0 {
                let _ = rustix::mm::munmap(end.cast(), rest);
            }
            Ok(Mapping { base, length })
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}
