//! Questions about a segment that several folders ask: which buckets can be in use, how much of
//! them is dirty, what the header's texts say.

use forebay_placement::TierId;
use forebay_pool::layout::{BucketMeta, FileFlags, FileRecord};
use forebay_pool::segment::text;
use forebay_pool::{BucketId, Entry, FileId, PageSet, Segment};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A path kept in the header.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(text(bytes).to_bytes()))
}

/// The path that a record has of its file; empty if it has none.
pub(crate) fn path_of_file(segment: &Segment, record: &FileRecord) -> PathBuf {
    PathBuf::from(OsString::from_vec(segment.path_of(record)))
}

/// Dirty bytes of tier `tier` of a segment, those on their way to the store included, in buckets
/// that `counts` accepts. Those of scratch files are not meant for the store.
pub(crate) fn dirty_bytes(
    segment: &Segment,
    tier: TierId,
    counts: impl Fn(&BucketMeta) -> bool,
) -> u64 {
    pending_bytes(segment, tier, |meta| !is_scratch(segment, meta) && counts(meta))
}

/// The same, of scratch files alone.
pub(crate) fn scratch_bytes(segment: &Segment, tier: TierId) -> u64 {
    pending_bytes(segment, tier, |meta| is_scratch(segment, meta))
}

fn is_scratch(segment: &Segment, meta: &BucketMeta) -> bool {
    let file = meta.file.load(Ordering::Relaxed);
    segment.header().has_file(file) && segment.file(file).has(FileFlags::SCRATCH)
}

fn pending_bytes(segment: &Segment, tier: TierId, counts: impl Fn(&BucketMeta) -> bool) -> u64 {
    let page = segment.page_bytes() as u64;
    let pages: u64 = buckets_of(segment, tier)
        .filter_map(|bucket| segment.bucket(bucket))
        .map(|meta| {
            let pending = meta.pending();
            if pending != 0 && counts(meta) { u64::from(pending.count_ones()) } else { 0 }
        })
        .sum();
    pages * page
}

/// Calls `visit` with the bucket of each block of `files` that is in a tier.
pub(crate) fn for_each_bucket_of(
    segment: &Segment,
    files: &[FileId],
    mut visit: impl FnMut(TierId, BucketId, &BucketMeta),
) {
    for &file in files {
        segment.for_each_entry(segment.file(file), 0, |_, place| {
            if let Entry::Resident { tier, bucket } = Entry::decode(place.load(Ordering::Acquire))
                && let Some(meta) = segment.bucket(bucket)
            {
                visit(tier, bucket, meta);
            }
            true
        });
    }
}

/// Whether `files` have fewer blocks than there are `buckets`: these are found sooner by them.
pub(crate) fn have_few_blocks(segment: &Segment, files: &[FileId], buckets: usize) -> bool {
    let unit = segment.bucket_bytes() as u64;
    let mut left = buckets as u64;
    files.iter().all(|&file| {
        let blocks = segment.file(file).size.load(Ordering::Relaxed).div_ceil(unit).max(1);
        let fits = blocks <= left;
        left = left.saturating_sub(blocks);
        fits
    })
}

/// The buckets of a tier that can be in use, the sparse ones among them.
pub(crate) fn buckets_of(
    segment: &Segment,
    tier: TierId,
) -> impl DoubleEndedIterator<Item = BucketId> + Clone {
    whole_buckets_of(segment, tier).chain(sparse_of(segment, tier))
}

/// The sparse buckets of a tier that can be in use.
pub(crate) fn sparse_of(
    segment: &Segment,
    tier: TierId,
) -> impl DoubleEndedIterator<Item = BucketId> + ExactSizeIterator + Clone {
    let sparse = segment.header().sparse_in_use(tier);
    BucketId::range(sparse.start, sparse.end)
}

/// Bytes of its tier that a block takes: of one in a sparse bucket those of its pages.
pub(crate) fn bytes_of(segment: &Segment, bucket: BucketId) -> u64 {
    match segment.claimed(bucket) {
        Some(pages) => u64::from(pages.load(Ordering::Relaxed)) * segment.page_bytes() as u64,
        None => segment.bucket_bytes() as u64,
    }
}

/// The buckets of a tier that can be in use and have memory, or a slot, for all of their pages.
pub(crate) fn whole_buckets_of(
    segment: &Segment,
    tier: TierId,
) -> impl DoubleEndedIterator<Item = BucketId> + ExactSizeIterator + Clone {
    let header = segment.header();
    let first = header.tier[tier].first_bucket;
    let count = match tier {
        TierId::RAM => header.ram_ready.load(Ordering::Acquire),
        _ => header.tier[tier].buckets,
    };
    BucketId::range(first, first + count)
}

/// The byte ranges of neighbouring pages of a set, within their bucket.
pub(crate) fn ranges(pages: u64, page: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    PageSet(pages).runs().map(move |run| run.start as u64 * page..run.end as u64 * page)
}
