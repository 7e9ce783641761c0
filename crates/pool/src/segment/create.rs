//! Making a segment.

use super::error::system;
use super::grown::{piece_of_descriptions, piece_of_files, piece_of_slots};
use super::{Segment, SegmentError};
use crate::layout::{
    Counts, DESCRIPTIONS_PIECE, FILES_PIECE, Geometry, Header, LAYOUT_VERSION, MAGIC, MAKER,
    Offsets, RuleRecord, TierId,
};
use crate::owner::MANAGER_SLOT;
use crate::private;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::ops::Range;
use forebay_placement::schema::RULES_MAX;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::path::Path;

impl Segment {
    /// Makes a segment in the empty file `file` and reserves memory for its tables. `fill` sets
    /// what the header says about tiers and stores. No bucket is free yet: see [`Segment::grow`].
    ///
    /// # Errors
    /// `NoRoom` if the tables cannot be reserved, or the system's error.
    pub fn create(
        file: BorrowedFd<'_>,
        geometry: &Geometry,
        fill: impl FnOnce(&mut Header),
    ) -> Result<Segment, SegmentError> {
        Segment::create_with_rules(file, geometry, &[], fill)
    }

    /// The same, with rules of the buffering schema: the first [`RULES_MAX`].
    ///
    /// # Errors
    /// Those of [`Segment::create`].
    pub fn create_with_rules(
        file: BorrowedFd<'_>,
        geometry: &Geometry,
        rules: &[RuleRecord],
        fill: impl FnOnce(&mut Header),
    ) -> Result<Segment, SegmentError> {
        let counts = counts_of(geometry);
        let offsets = Offsets::of(&counts);
        rustix::fs::ftruncate(file, offsets.end as u64).map_err(system("sizing the pool"))?;
        let [first, bits] = piece_of_descriptions(&offsets, counts.descriptions, counts.clients, 0);
        let files = piece_of_files(&offsets, counts.files, 0);
        let mut reserved = fixed(&offsets, geometry);
        reserved.extend([files, first, bits]);
        let needed = reserved.iter().map(|range| range.len() as u64).sum();
        for range in reserved {
            let (at, bytes) = (range.start as u64, range.len() as u64);
            rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes).map_err(|errno| {
                match errno {
                    Errno::NOSPC | Errno::NOMEM => SegmentError::NoRoom(needed),
                    other => SegmentError::System("reserving the pool's tables", other),
                }
            })?;
        }
        let segment = Segment::map(file, MapFlags::SHARED, offsets, &counts)?;
        // SAFETY: no other process knows the file yet.
        let header = unsafe { segment.base.cast::<Header>().as_mut() };
        header.layout_version = LAYOUT_VERSION;
        set_text(&mut header.maker, MAKER.as_bytes());
        header.page_size = geometry.page_size;
        header.tiers = geometry.tier_buckets.len() as u32;
        header.buckets = counts.buckets;
        header.clients = counts.clients;
        header.files = counts.files;
        header.descriptions = counts.descriptions;
        header.nodes = counts.nodes;
        header.heads = counts.heads;
        header.files_ready = AtomicU32::new(counts.files.min(FILES_PIECE));
        header.descriptions_ready = AtomicU32::new(counts.descriptions.min(DESCRIPTIONS_PIECE));
        header.segment_bytes = offsets.end as u64;
        header.sequence = AtomicU64::new(1);
        let mut first = 0;
        for (number, &buckets) in geometry.tier_buckets.iter().enumerate() {
            let tier = &mut header.tier[number];
            tier.first_bucket = first;
            tier.buckets = buckets;
            tier.sparse.buckets = geometry.sparse_of(number);
            first += buckets.next_multiple_of(64) + tier.sparse.buckets;
        }
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        header.inode = AtomicU64::new(stat.st_ino);
        fill(header);
        header.rules = rules.len().min(RULES_MAX) as u32;
        let table = segment.offsets.rules;
        for (index, rule) in rules.iter().take(RULES_MAX).enumerate() {
            // SAFETY: the section holds RULES_MAX records, and no other process knows the file yet.
            unsafe { segment.base.add(table).cast::<RuleRecord>().add(index).write(rule.clone()) };
        }
        for tier in TierId::RAM.below(geometry.tier_buckets.len()) {
            let map = segment.free_buckets(tier);
            map.repair(map.count);
            segment.header().tier[tier].free.store(map.count, Ordering::Relaxed);
        }
        // All are free, but for the memory.
        segment.set_ram_limit(counts.ram_buckets);
        segment.index_nodes(MANAGER_SLOT).free().repair(counts.nodes);
        segment.header().checksum.store(segment.sum(), Ordering::Release);
        segment.header().magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }
}

/// What has memory from the beginning of the sections up to `fixed_end`: all but the tables of
/// sparse slots.
fn fixed(offsets: &Offsets, geometry: &Geometry) -> Vec<Range<usize>> {
    let mut fixed = Vec::new();
    let (mut start, mut first, mut first_slot) = (0, 0, 0);
    let mut holes: [Vec<Range<usize>>; 2] = [Vec::new(), Vec::new()];
    for (number, buckets) in geometry.tier_buckets.iter().enumerate() {
        let sparse = geometry.sparse_of(number);
        let behind = first + buckets.next_multiple_of(64);
        first = behind + sparse;
        if number == 0 {
            first_slot = first;
        } else if sparse > 0 {
            let tables = piece_of_slots(offsets, first_slot, behind..first);
            for (holes, table) in holes.iter_mut().zip(tables) {
                // A page that others have a part of has memory.
                let hole = table.start.next_multiple_of(4096)..table.end / 4096 * 4096;
                holes.extend((hole.start < hole.end).then_some(hole));
            }
        }
    }
    for hole in holes.into_iter().flatten() {
        fixed.push(start..hole.start);
        start = hole.end;
    }
    fixed.push(start..offsets.fixed_end);
    fixed
}

fn counts_of(geometry: &Geometry) -> Counts {
    Counts {
        clients: geometry.clients,
        descriptions: geometry.descriptions,
        heads: geometry.files.next_power_of_two(),
        files: geometry.files,
        nodes: geometry.nodes,
        buckets: geometry.tier_buckets.iter().map(|n| n.next_multiple_of(64)).sum::<u32>()
            + geometry.sparse_buckets.iter().sum::<u32>(),
        ram_buckets: geometry.tier_buckets[0],
        sparse_buckets: geometry.sparse_of(0),
        sparse_slots: geometry.sparse_buckets.iter().skip(1).sum(),
        bucket_bytes: geometry.bucket_bytes(),
    }
}

/// Makes the empty pool file at `path`, readable by this user only.
///
/// # Errors
/// The system's errno; `EXIST` when there is one already.
pub fn create_pool(path: &Path) -> Result<OwnedFd, Errno> {
    private::create(path, OFlags::RDWR)
}

/// Stores `value` in a fixed array, cut to what fits with a terminating zero.
pub fn set_text(bytes: &mut [u8], value: &[u8]) {
    let length = value.len().min(bytes.len() - 1);
    bytes[..length].copy_from_slice(&value[..length]);
    bytes[length..].fill(0);
}

/// A segment in an unnamed file of memory, all of it resident: for tests and tools.
///
/// # Errors
/// Those of [`Segment::create`].
pub fn anonymous(geometry: &Geometry) -> Result<(Segment, OwnedFd), SegmentError> {
    let file = rustix::fs::memfd_create("forebay-pool", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(system("making a memory file"))?;
    let segment = Segment::create(file.as_fd(), geometry, |_| {})?;
    while segment.grow(file.as_fd(), 2 << 20).map_err(system("reserving memory"))? > 0 {}
    Ok((segment, file))
}
