//! Joining a segment that another process has made.

use super::error::system;
use super::mapping::Mapping;
use super::{Segment, SegmentError, text};
use crate::layout::{
    Counts, DESCRIPTIONS_MAX, DESCRIPTIONS_PIECE, FILES_MAX, Header, LAYOUT_VERSION, MAGIC,
    NAMES_MAKER, Offsets, PAGES_PER_BUCKET, RuleRecord, STORES_MAX, TIERS_MAX, TierId,
};
use crate::private;
use crate::private::Wrong;
use crate::sync::Ordering;
use forebay_placement::schema::RULES_MAX;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, Stat};
use rustix::mm::MapFlags;
use std::path::Path;

impl Segment {
    /// Maps the segment in `file` after checking its header.
    ///
    /// # Errors
    /// `NotAPool`, `OtherVersion` or `Damaged`; the file is left as it is.
    pub fn attach(file: BorrowedFd<'_>) -> Result<Segment, SegmentError> {
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        Segment::attach_seen(file, &stat)
    }

    /// The same of a file of which `stat` was just seen.
    ///
    /// # Errors
    /// As of [`Segment::attach`].
    pub fn attach_seen(file: BorrowedFd<'_>, stat: &Stat) -> Result<Segment, SegmentError> {
        let segment = Segment::attach_bounded(file, stat)?;
        segment.check_sum().map(|()| segment)
    }

    /// The same without a look at the checksum, for a process that is told by one of this segment
    /// that it is the same: that has compared it.
    ///
    /// # Errors
    /// As of [`Segment::attach`].
    pub fn attach_bounded(file: BorrowedFd<'_>, stat: &Stat) -> Result<Segment, SegmentError> {
        let segment = Segment::attach_unsummed(file, stat, MapFlags::SHARED)?;
        match segment.has_bounded_marks() {
            true => Ok(segment),
            false => Err(SegmentError::Damaged("marks beyond the ends of their tables")),
        }
    }

    /// The same for a node manager without a live predecessor, which also repairs what can be.
    ///
    /// # Errors
    /// Those of [`Segment::attach`].
    pub fn attach_repairing(file: BorrowedFd<'_>) -> Result<Segment, SegmentError> {
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        let segment = Segment::attach_unsummed(file, &stat, MapFlags::SHARED)?;
        segment.check_sum()?;
        segment.bound_marks();
        Ok(segment)
    }

    /// Maps a private copy of the segment in `file`, which no node manager serves: what is changed
    /// in it never reaches the file. For tools that look at damaged pools: the second value says
    /// what is wrong with a header whose sizes are usable.
    ///
    /// # Errors
    /// Those of [`Segment::attach`].
    pub fn attach_copy(
        file: BorrowedFd<'_>,
    ) -> Result<(Segment, Option<SegmentError>), SegmentError> {
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        // A pool is larger than the memory of its machine, and next to nothing of it is changed.
        let own = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let segment = Segment::attach_unsummed(file, &stat, own)?;
        let wrong = segment.check_sum().err();
        segment.bound_marks();
        Ok((segment, wrong))
    }

    /// Compares the checksum of what never changes.
    ///
    /// # Errors
    /// `Damaged` if it is another.
    pub fn check_sum(&self) -> Result<(), SegmentError> {
        match self.header().checksum.load(Ordering::Acquire) == self.sum() {
            true => Ok(()),
            false => Err(SegmentError::Damaged("its checksum is wrong")),
        }
    }

    /// The checksum as the header and the rules now give it.
    pub fn sum(&self) -> u64 {
        let count = (self.header().rules as usize).min(RULES_MAX);
        // SAFETY: the section holds RULES_MAX records, which never change after `create`.
        let rules = unsafe {
            core::slice::from_raw_parts(
                self.base.as_ptr().add(self.offsets.rules).cast_const(),
                count * size_of::<RuleRecord>(),
            )
        };
        self.header().sum(rules)
    }

    /// Whether the header of a pool without a magic number is one that was being made: a manager
    /// that was killed before it had served a program left it, and nothing can be in it.
    ///
    /// # Errors
    /// The system's.
    pub fn is_unfinished(file: BorrowedFd<'_>) -> Result<bool, SegmentError> {
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        if (stat.st_size as usize) < size_of::<Header>() {
            // Cut to this length it may once have been more.
            return Ok(stat.st_size == 0);
        }
        let probe = Mapping::new(file, size_of::<Header>())?;
        // SAFETY: the file is at least this long, and the header has only plain integers.
        let header = unsafe { &*probe.base.cast::<Header>() };
        let checksum = header.checksum.load(Ordering::Acquire);
        Ok(header.magic.load(Ordering::Acquire) == 0
            && header.manager_epoch.load(Ordering::Acquire) == 0
            && (checksum == 0 || header.layout_version == LAYOUT_VERSION))
    }

    fn attach_unsummed(
        file: BorrowedFd<'_>,
        stat: &Stat,
        sharing: MapFlags,
    ) -> Result<Segment, SegmentError> {
        if (stat.st_size as usize) < size_of::<Header>() {
            return Err(SegmentError::NotAPool);
        }
        let whole = Mapping::aligned(file, stat.st_size as usize, sharing)?;
        // SAFETY: the file is at least this long, and the header has only plain integers.
        let header = unsafe { &*whole.base.cast::<Header>() };
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(SegmentError::NotAPool);
        }
        if header.layout_version != LAYOUT_VERSION {
            let names_maker = header.layout_version >= NAMES_MAKER;
            let maker = if names_maker { text(&header.maker) } else { c"" };
            let maker = maker.to_string_lossy().into_owned();
            return Err(SegmentError::OtherVersion(header.layout_version, maker));
        }
        let counts = check_header(header)?;
        let offsets = Offsets::of(&counts);
        if offsets.end as u64 != header.segment_bytes || stat.st_size as u64 != offsets.end as u64 {
            return Err(SegmentError::Damaged("its sizes do not add up to the file's"));
        }
        Ok(Segment::of(whole, offsets, &counts))
    }
}

/// Checks what every later access relies on.
fn check_header(header: &Header) -> Result<Counts, SegmentError> {
    let ok = |good: bool, what| if good { Ok(()) } else { Err(SegmentError::Damaged(what)) };
    let page = header.page_size;
    ok(page.is_power_of_two() && (4096..=65536).contains(&page), "page size")?;
    ok((1..=TIERS_MAX as u32).contains(&header.tiers), "number of tiers")?;
    ok(header.stores <= STORES_MAX as u32, "number of stores")?;
    ok((2..=4096).contains(&header.clients), "number of clients")?;
    ok((1..=FILES_MAX).contains(&header.files), "number of files")?;
    let (few, most) = (DESCRIPTIONS_PIECE, DESCRIPTIONS_MAX);
    ok((64..=most).contains(&header.descriptions), "number of descriptions")?;
    let multiple = if header.descriptions > few { few } else { 64 };
    ok(header.descriptions.is_multiple_of(multiple), "number of descriptions")?;
    ok((1..1 << 31).contains(&header.nodes), "number of index nodes")?;
    ok((1..1 << 30).contains(&header.buckets), "number of buckets")?;
    ok(header.heads <= 1 << 26, "number of hash heads")?;
    ok(header.heads.is_power_of_two(), "number of hash heads")?;
    let mut first = 0u64;
    for tier in &header.tier[..header.tiers as usize] {
        ok(tier.sparse.buckets.is_multiple_of(64), "number of sparse buckets")?;
        ok(u64::from(tier.first_bucket) == first, "buckets of the tiers")?;
        first += u64::from(tier.buckets).next_multiple_of(64) + u64::from(tier.sparse.buckets);
    }
    ok(first == u64::from(header.buckets), "buckets of the tiers")?;
    Ok(Counts {
        clients: header.clients,
        descriptions: header.descriptions,
        heads: header.heads,
        files: header.files,
        nodes: header.nodes,
        buckets: header.buckets,
        ram_buckets: header.tier[TierId::RAM].buckets,
        sparse_buckets: header.tier[TierId::RAM].sparse.buckets,
        sparse_slots: header.sparse_slots(),
        bucket_bytes: u64::from(page) * u64::from(PAGES_PER_BUCKET),
    })
}

/// Opens the pool file at `path` for a client or a manager, if it is ours alone.
///
/// # Errors
/// What is wrong with it, see [`private::open`].
pub fn open_pool(path: &Path) -> Result<OwnedFd, Wrong> {
    private::open(path, OFlags::RDWR)
}

/// The same for a process of `user`, with what was seen of the file.
///
/// # Errors
/// As of [`open_pool`].
pub fn open_pool_seen(path: &Path, user: u32) -> Result<(OwnedFd, Stat), Wrong> {
    private::open_seen(path, OFlags::RDWR, user)
}
