//! The segment: made, attached to, and seen as its structures.
//!
//! ```
//! use forebay_pool::Owner;
//! use forebay_pool::files::Identity;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! // A RAM tier of 16 MiB, in buckets of 64 pages of 4 KiB.
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! assert_eq!(segment.bucket_bytes(), 256 << 10);
//! let file = Identity { device: 1, inode: 2 };
//! let made = segment.with_file_or_new(file, Owner::new(1, 0), |_, is_new| is_new);
//! assert_eq!(made, Some(true));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::buckets::{BucketStates, Buckets};
use crate::clients::Clients;
use crate::clock;
use crate::crash;
use crate::descriptions::{Descriptions, Marker};
use crate::entry::Entry;
use crate::files::{Files, Names};
use crate::free_map::{FREE, FreeMap};
use crate::index::{Index, IndexNodes, NodeStates};
use crate::layout::*;
use crate::liveness;
pub use crate::owner::MANAGER_SLOT;
use crate::owner::Owner;
use crate::private::{self, Wrong};
use crate::queue::Queue;
use crate::ranks;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BucketId, FileId};
use core::ffi::CStr;
use core::mem::offset_of;
use core::ptr::NonNull;
use forebay_placement::schema::RULES_MAX;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Linux 6.1; rustix has no name for it yet.
const MADV_COLLAPSE: i32 = 25;

unsafe extern "C" {
    fn madvise(at: *mut core::ffi::c_void, bytes: usize, advice: i32) -> i32;
}

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

/// Why a segment cannot be used.
#[derive(Debug)]
pub enum SegmentError {
    /// A system call failed while doing what the text says.
    System(&'static str, Errno),
    /// Another user may have a hand in the file.
    NotPrivate(Wrong),
    /// Not a Forebay pool, or one that was never finished.
    NotAPool,
    /// Made by another version: the layout version found, and which version of Forebay made it;
    /// empty if it does not say.
    OtherVersion(u32, String),
    /// The sizes in its header contradict each other or the file.
    Damaged(&'static str),
    /// /dev/shm has no room for even the tables: bytes needed.
    NoRoom(u64),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(what, errno) => write!(f, "{what}: {errno}"),
            Self::NotPrivate(wrong) => write!(f, "{wrong}"),
            Self::NotAPool => f.write_str("it is not a Forebay pool (wrong magic number)"),
            Self::OtherVersion(found, maker) => {
                let maker = if maker.is_empty() { maker } else { &format!(": {maker}") };
                write!(
                    f,
                    "it was made by another version of Forebay{maker} (layout {found}, this is \
                     {MAKER} with layout {LAYOUT_VERSION}; docs/recovery.md#which-version names the one)"
                )
            }
            Self::Damaged(what) => write!(f, "its header is damaged: {what}"),
            Self::NoRoom(bytes) => write!(
                f,
                "no room for its tables ({} MiB); free space in /dev/shm or make the tiers smaller",
                bytes >> 20
            ),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<Wrong> for SegmentError {
    fn from(wrong: Wrong) -> SegmentError {
        match wrong {
            Wrong::System(errno) => SegmentError::System("opening the pool", errno),
            other => SegmentError::NotPrivate(other),
        }
    }
}

/// A mapped segment. Shared by all threads; unmapped when dropped.
pub struct Segment {
    base: NonNull<u8>,
    mapped: usize,
    offsets: Offsets,
    bucket_bytes: usize,
    /// log2 of a page's bytes: a division of a 4 KiB write's offset costs as much as its lock.
    page_shift: u32,
    ram_buckets: u32,
}

// SAFETY: the mapping belongs to the value and no thread.
unsafe impl Send for Segment {}
// SAFETY: all content is atomics, or bytes guarded by the protocol of the bucket locks.
unsafe impl Sync for Segment {}

fn system(what: &'static str) -> impl Fn(Errno) -> SegmentError {
    move |errno| SegmentError::System(what, errno)
}

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
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, offsets.fixed_end as u64).map_err(
            |errno| match errno {
                Errno::NOSPC | Errno::NOMEM => SegmentError::NoRoom(offsets.fixed_end as u64),
                other => SegmentError::System("reserving the pool's tables", other),
            },
        )?;
        let segment = Segment::map(
            file,
            MapFlags::SHARED,
            offsets,
            geometry.bucket_bytes(),
            counts.ram_buckets,
        )?;
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
        header.segment_bytes = offsets.end as u64;
        header.clients_high = AtomicU32::new(1);
        header.sequence = AtomicU64::new(1);
        let mut first = 0;
        for (tier, &buckets) in header.tier.iter_mut().zip(&geometry.tier_buckets) {
            tier.first_bucket = first;
            tier.buckets = buckets;
            first += buckets.next_multiple_of(64);
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
        segment.index_nodes(MANAGER_SLOT).free().repair(counts.nodes);
        segment.header().checksum.store(segment.sum(), Ordering::Release);
        segment.header().magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps the segment in `file` after checking its header.
    ///
    /// # Errors
    /// `NotAPool`, `OtherVersion` or `Damaged`; the file is left as it is.
    pub fn attach(file: BorrowedFd<'_>) -> Result<Segment, SegmentError> {
        let segment = Segment::attach_unsummed(file, MapFlags::SHARED)?;
        segment.check_sum()?;
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
        let segment = Segment::attach_unsummed(file, MapFlags::SHARED)?;
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
        let segment = Segment::attach_unsummed(file, MapFlags::PRIVATE)?;
        let wrong = segment.check_sum().err();
        segment.bound_marks();
        Ok((segment, wrong))
    }

    fn check_sum(&self) -> Result<(), SegmentError> {
        match self.header().checksum.load(Ordering::Acquire) == self.sum() {
            true => Ok(()),
            false => Err(SegmentError::Damaged("its checksum is wrong")),
        }
    }

    /// How much of the tables of clients, files and RAM buckets has ever been in use, and how long
    /// those are. Processes raise the marks at any time: each is changed in one step, and never set
    /// to what it was when it was looked at.
    fn marks(&self) -> [(&AtomicU32, u32); 3] {
        let header = self.header();
        [
            (&header.clients_high, header.clients),
            (&header.files_high, header.files),
            (&header.ram_ready, self.ram_buckets),
        ]
    }

    fn has_bounded_marks(&self) -> bool {
        let is_bounded = |(mark, most): (&AtomicU32, u32)| mark.load(Ordering::Acquire) <= most;
        self.marks().into_iter().all(is_bounded)
            && self.header().clients_high.load(Ordering::Acquire) >= 1
    }

    fn bound_marks(&self) {
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
        let uses: [&dyn Fn(&u32) -> bool; 3] = [&client, &file, &bucket];
        for ((mark, most), used) in self.marks().into_iter().zip(uses) {
            let last = (mark.load(Ordering::Acquire)..most).rev().find(used);
            crash::point("recover.marks");
            if let Some(last) = last {
                mark.fetch_max(last + 1, Ordering::AcqRel);
            }
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

    fn attach_unsummed(file: BorrowedFd<'_>, sharing: MapFlags) -> Result<Segment, SegmentError> {
        let stat = rustix::fs::fstat(file).map_err(system("looking at the pool"))?;
        if (stat.st_size as usize) < size_of::<Header>() {
            return Err(SegmentError::NotAPool);
        }
        let probe = Mapping::new(file, size_of::<Header>())?;
        // SAFETY: the file is at least this long, and the header has only plain integers.
        let header = unsafe { &*probe.base.cast::<Header>() };
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
        Segment::map(file, sharing, offsets, counts.bucket_bytes, counts.ram_buckets)
    }

    /// Maps at an address that is a multiple of a huge page, so that the kernel can map one.
    fn map(
        file: BorrowedFd<'_>,
        sharing: MapFlags,
        offsets: Offsets,
        bucket_bytes: u64,
        ram_buckets: u32,
    ) -> Result<Segment, SegmentError> {
        let fail = system("mapping the pool");
        let room = offsets.end + DATA_ALIGN;
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
            rustix::mm::mmap(
                base.cast(),
                offsets.end,
                ProtFlags::READ | ProtFlags::WRITE,
                sharing | MapFlags::FIXED,
                file,
                0,
            )
            .map_err(&fail)?;
            if skip > 0 {
                let _ = rustix::mm::munmap(start.cast(), skip);
            }
            let rest = room - skip - offsets.end;
            if rest > 0 {
                let _ = rustix::mm::munmap(base.add(offsets.end).cast(), rest);
            }
            Ok(Segment {
                base: NonNull::new_unchecked(base),
                mapped: offsets.end,
                offsets,
                bucket_bytes: bucket_bytes as usize,
                page_shift: (bucket_bytes / u64::from(PAGES_PER_BUCKET)).trailing_zeros(),
                ram_buckets,
            })
        }
    }

    /// Reserves memory for the next piece of the RAM tier, makes it resident, and adds its
    /// buckets to the free map. Returns the buckets added: 0 when all are there.
    ///
    /// # Errors
    /// `NOSPC` or `NOMEM` when /dev/shm is full; the tier stays as large as it is.
    pub fn grow(&self, file: BorrowedFd<'_>, piece_bytes: u64) -> Result<u32, Errno> {
        let header = self.header();
        let ready = header.ram_ready.load(Ordering::Acquire);
        let piece = (piece_bytes as usize / self.bucket_bytes).max(1) as u32;
        let upto = (ready + piece).min(self.ram_buckets);
        if upto == ready {
            return Ok(0);
        }
        let start = self.offsets.data + ready as usize * self.bucket_bytes;
        let end = self.offsets.data + upto as usize * self.bucket_bytes;
        rustix::fs::fallocate(file, FallocateFlags::empty(), start as u64, (end - start) as u64)?;
        // SAFETY: inside the mapping; both only change how the pages are backed.
        unsafe {
            let at = self.base.as_ptr().add(start).cast();
            let _ = rustix::mm::madvise(at, end - start, Advice::LinuxPopulateWrite);
            // One huge page: a process that maps the pool then takes one page fault instead of 512.
            let _ = madvise(at, end - start, MADV_COLLAPSE);
        }
        header.ram_ready.store(upto, Ordering::Release);
        let map = self.free_buckets(TierId::RAM);
        for bucket in ready..upto {
            map.offer(bucket);
        }
        header.tier[TierId::RAM].free.fetch_add(upto - ready, Ordering::Relaxed);
        Ok(upto - ready)
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: mapped for as long as self; the plain fields never change after `create`.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[inline]
    fn at<T>(&self, section: usize, index: u32) -> &T {
        // SAFETY: callers have checked the index against the header's count, and the section was
        // laid out for that count.
        unsafe { self.base.add(section).cast::<T>().add(index as usize).as_ref() }
    }

    /// The rules of the buffering schema: the first that matches a file holds.
    pub fn rules(&self) -> &[RuleRecord] {
        let count = (self.header().rules as usize).min(RULES_MAX);
        // SAFETY: the section holds RULES_MAX records of plain integers; they never change after
        // `create`.
        unsafe {
            core::slice::from_raw_parts(self.base.as_ptr().add(self.offsets.rules).cast(), count)
        }
    }

    /// What clients tell the node manager that needs no descriptor.
    #[inline]
    pub fn queue(&self) -> &Queue {
        self.at(self.offsets.queue, 0)
    }

    /// The rule that holds for the file of a record.
    #[inline]
    pub fn rule_of(&self, record: &FileRecord) -> Option<&RuleRecord> {
        let rule = record.rule.load(Ordering::Relaxed).checked_sub(1)?;
        self.rules().get(usize::from(rule))
    }

    /// The client slots, and who has them.
    #[inline(always)]
    pub fn clients(&self) -> Clients<'_> {
        let header = self.header();
        Clients {
            slots: self.slice(self.offsets.clients, header.clients as usize),
            high: &header.clients_high,
            manager: (&header.manager_pid, &header.manager_start),
            manager_epoch: &header.manager_epoch,
            unrecorded: &header.unrecorded,
        }
    }

    /// [`Clients::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn client(&self, slot: u32) -> &ClientSlot {
        let slot = if slot < self.header().clients { slot } else { MANAGER_SLOT };
        self.at(self.offsets.clients, slot)
    }

    /// The table of files.
    #[inline(always)]
    pub fn files(&self) -> Files<'_> {
        let header = self.header();
        Files {
            records: self.slice(self.offsets.files, header.files as usize),
            heads: self.slice(self.offsets.heads, header.heads as usize),
            stripes: self.slice(self.offsets.stripes, STRIPES),
            cursor: &header.file_cursor,
            high: &header.files_high,
        }
    }

    /// Which names of files were changed.
    #[inline(always)]
    pub fn names(&self) -> Names<'_> {
        Names { changes: &self.header().name_changes, last: &self.header().changed_names }
    }

    /// [`Files::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn file(&self, file: FileId) -> &FileRecord {
        debug_assert!(file.raw() < self.header().files);
        self.at(self.offsets.files, file.raw().min(self.header().files - 1))
    }

    /// [`Descriptions::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn description(&self, description: u32) -> &Description {
        debug_assert!(description < self.header().descriptions);
        self.at(self.offsets.descriptions, description.min(self.header().descriptions - 1))
    }

    /// The open-file descriptions, and which processes hold them.
    #[inline(always)]
    pub fn descriptions(&self) -> Descriptions<'_> {
        let header = self.header();
        let (count, slots) = (header.descriptions as usize, header.clients as usize);
        Descriptions {
            all: self.slice(self.offsets.descriptions, count),
            held: self.slice(self.offsets.bitmaps, slots * (count / 64)),
            slots: &header.clients_high,
            cursor: &header.description_cursor,
        }
    }

    /// [`Descriptions::open`] of `file`.
    pub fn open_description(
        &self,
        file: FileId,
        flags: DescriptionFlags,
        owner: Owner,
    ) -> Option<Marker> {
        self.descriptions().open(file, self.file(file), flags, owner)
    }

    /// The processes that hold a description of `file`.
    pub fn holders(&self, file: FileId) -> impl Iterator<Item = u32> {
        let holders = self.descriptions().holders(file);
        holders.map(|slot| self.client(slot).pid.load(Ordering::Acquire))
    }

    /// The block index, to look something up.
    #[inline(always)]
    pub fn index(&self) -> Index<'_> {
        Index::of(self.slice(self.offsets.nodes, self.header().nodes as usize))
    }

    /// The block index, to let it grow or shrink for the process of client slot `slot`.
    pub fn index_nodes(&self, slot: u32) -> IndexNodes<'_> {
        let nodes = self.header().nodes;
        IndexNodes {
            index: self.index(),
            states: NodeStates(self.slice(self.offsets.node_states, nodes as usize)),
            bits: self.words(self.offsets.node_bits, nodes),
            cache: &self.client(slot).nodes,
        }
    }

    /// [`Index::entry`].
    #[inline(always)]
    pub fn entry<'a>(&'a self, file: &'a FileRecord, block: u64) -> Option<&'a AtomicU64> {
        self.index().entry(file, block)
    }

    /// [`IndexNodes::entry_or_insert`].
    #[inline]
    pub fn entry_or_insert<'a>(
        &'a self,
        file: &'a FileRecord,
        block: u64,
        owner: Owner,
    ) -> Option<&'a AtomicU64> {
        match self.entry(file, block) {
            None => self.index_nodes(owner.slot()).entry_or_insert(file, block, owner),
            there => there,
        }
    }

    /// [`Index::for_each_entry`].
    pub fn for_each_entry(
        &self,
        file: &FileRecord,
        first: u64,
        visit: impl FnMut(u64, &AtomicU64) -> bool,
    ) {
        self.index().for_each_entry(file, first, visit);
    }

    /// The buckets of all tiers.
    #[inline(always)]
    pub fn buckets(&self) -> Buckets<'_> {
        let header = self.header();
        let (tiers, buckets) = (header.tiers as usize, header.buckets);
        let slots = buckets - self.ram_buckets.next_multiple_of(64).min(buckets);
        Buckets {
            metas: self.slice(self.offsets.buckets, buckets as usize),
            sums: self.slice(self.offsets.sums, slots as usize),
            bits: self.words(self.offsets.bucket_bits, buckets),
            tiers: header.tier.get(..tiers).unwrap_or(&header.tier),
            jobs: &header.job,
        }
    }

    /// [`Buckets::meta`], without what else belongs to the view: with debug assertions that takes
    /// instructions although it is not used.
    #[inline]
    pub fn bucket(&self, bucket: BucketId) -> Option<&BucketMeta> {
        let number = bucket.raw();
        (number < self.header().buckets).then(|| self.at(self.offsets.buckets, number))
    }

    /// Bytes of a bucket.
    #[inline]
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_bytes
    }

    /// Bytes of a page.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.header().page_size as usize
    }

    /// log2 of it.
    #[inline]
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The block of a byte offset in a file, and the byte within it.
    #[inline]
    pub fn block_at(&self, offset: u64) -> (u64, usize) {
        let shift = self.page_shift + PAGES_PER_BUCKET.trailing_zeros();
        (offset >> shift, (offset & ((1 << shift) - 1)) as usize)
    }

    /// Buckets of the RAM tier.
    pub fn ram_buckets(&self) -> u32 {
        self.ram_buckets
    }

    /// The bytes of RAM bucket `bucket`. Reading or writing them follows the protocol of its lock.
    #[inline]
    pub fn bucket_data(&self, bucket: BucketId) -> *mut u8 {
        debug_assert!(bucket.raw() < self.ram_buckets);
        // SAFETY: RAM bucket ids come first, and the data section holds that many.
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

    /// [`Buckets::tier_of`].
    pub fn tier_of(&self, bucket: BucketId) -> TierId {
        self.buckets().tier_of(bucket)
    }

    /// The slot of its tier that a bucket below RAM is.
    pub fn slot_in_tier(&self, bucket: BucketId) -> u32 {
        bucket.raw() - self.header().tier[self.tier_of(bucket)].first_bucket
    }

    /// Byte offset of a file-tier bucket in its tier's file.
    pub fn slot_offset(&self, bucket: BucketId) -> u64 {
        u64::from(self.slot_in_tier(bucket)) * self.bucket_bytes as u64
    }

    /// [`Buckets::checksums`].
    #[inline]
    pub fn checksums(&self, bucket: BucketId) -> Option<&SlotChecksums> {
        if bucket.raw() < self.ram_buckets { None } else { self.buckets().checksums(bucket) }
    }

    /// The number that the next event will have.
    pub fn sequence(&self) -> u64 {
        self.header().sequence.load(Ordering::SeqCst)
    }

    /// Lets the next number be above `found`, which an event had.
    pub fn number_from(&self, found: u64) {
        // One that no event can have had leaves room for those to come.
        let next = found.saturating_add(1).min(1 << 63);
        self.header().sequence.fetch_max(next, Ordering::SeqCst);
    }

    /// A number for an event: above those of all earlier ones.
    pub fn next_sequence(&self) -> u64 {
        self.header().sequence.fetch_add(1, Ordering::SeqCst)
    }

    /// Whether tier `tier` may be given new blocks: its device has not failed.
    #[inline]
    pub fn is_sound(&self, tier: TierId) -> bool {
        self.header().failed_tiers.load(Ordering::Relaxed) >> tier.index() & 1 == 0
    }

    /// Takes tier `tier` out of the hierarchy because its device fails or is full, if that is what
    /// `errno` says. True for the first to say so.
    pub fn fail_tier(&self, tier: TierId, errno: Errno) -> bool {
        if tier.is_ram() || is_own_fault(errno) || !self.is_sound(tier) {
            return false;
        }
        let header = &self.header().tier[tier];
        header.failed_errno.store(errno.raw_os_error() as u32, Ordering::Relaxed);
        let now = clock::stamp(clock::realtime_coarse_ns());
        header.failed_at.store(now, Ordering::Relaxed);
        let bit = 1u32 << tier.index();
        self.header().failed_tiers.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Why nothing new goes to tier `tier`, and since when in milliseconds of [`clock::stamp`];
    /// `None` if it is sound.
    pub fn tier_failure(&self, tier: TierId) -> Option<(Errno, u32)> {
        let header = &self.header().tier[tier];
        let errno = header.failed_errno.load(Ordering::Relaxed) as i32;
        (!self.is_sound(tier))
            .then(|| (Errno::from_raw_os_error(errno), header.failed_at.load(Ordering::Relaxed)))
    }

    /// Lets tier `tier` take new blocks again.
    pub fn restore_tier(&self, tier: TierId) {
        self.header().failed_tiers.fetch_and(!(1 << tier.index()), Ordering::AcqRel);
    }

    /// [`Buckets::free_map`].
    pub fn free_buckets(&self, tier: TierId) -> FreeMap<'_, BucketStates<'_>> {
        self.buckets().free_map(tier)
    }

    #[inline(always)]
    fn slice<T>(&self, section: usize, count: usize) -> &[T] {
        // SAFETY: the section was laid out for `count` items, which are all atomics.
        unsafe { NonNull::slice_from_raw_parts(self.base.add(section).cast::<T>(), count).as_ref() }
    }

    fn words(&self, section: usize, items: u32) -> &[AtomicU64] {
        self.slice(section, items.div_ceil(64) as usize)
    }

    /// [`Clients::manager_is_alive`].
    pub fn manager_is_alive(&self) -> bool {
        self.clients().manager_is_alive()
    }

    /// Whether the numbers of processes in the slots are what they are here: in another PID
    /// namespace they are others. Also where /proc does not tell.
    pub fn has_numbers_of_here(&self) -> bool {
        let (theirs, ours) =
            (self.header().namespace.load(Ordering::Relaxed), liveness::namespace());
        theirs == ours || theirs == 0 || ours == 0
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

/// A temporary mapping of a file's beginning.
struct Mapping {
    base: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, length: usize) -> Result<Mapping, SegmentError> {
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
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

/// Whether an error is about the calling process, its limits and memory, and says nothing of the
/// device.
pub fn is_own_fault(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::FAULT
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::INTR
            | Errno::AGAIN
            | Errno::FBIG
            | Errno::ACCESS
            | Errno::PERM
    )
}

fn counts_of(geometry: &Geometry) -> Counts {
    Counts {
        clients: geometry.clients,
        descriptions: geometry.descriptions,
        heads: (geometry.files * 2).next_power_of_two(),
        files: geometry.files,
        nodes: geometry.nodes,
        buckets: geometry.tier_buckets.iter().map(|n| n.next_multiple_of(64)).sum(),
        ram_buckets: geometry.tier_buckets[0],
        bucket_bytes: geometry.bucket_bytes(),
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
    ok((1..=1 << 24).contains(&header.files), "number of files")?;
    ok((64..=65536).contains(&header.descriptions), "number of descriptions")?;
    ok(header.descriptions.is_multiple_of(64), "number of descriptions")?;
    ok((1..1 << 31).contains(&header.nodes), "number of index nodes")?;
    ok((1..1 << 30).contains(&header.buckets), "number of buckets")?;
    ok(header.heads <= 1 << 26, "number of hash heads")?;
    ok(header.heads.is_power_of_two(), "number of hash heads")?;
    let mut first = 0u64;
    for tier in &header.tier[..header.tiers as usize] {
        ok(u64::from(tier.first_bucket) == first, "buckets of the tiers")?;
        first += u64::from(tier.buckets).next_multiple_of(64);
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

/// Makes the empty pool file at `path`, readable by this user only.
///
/// # Errors
/// The system's errno; `EXIST` when there is one already.
pub fn create_pool(path: &Path) -> Result<OwnedFd, Errno> {
    private::create(path, OFlags::RDWR)
}

/// What the head of a pool says that holds for every layout from 8 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Its [`LAYOUT_VERSION`].
    pub layout_version: u32,
    /// Its instance; empty before layout 8.
    pub instance: String,
    /// The folder of its instance; empty if that is not known.
    pub folder: PathBuf,
    /// It is a pool, not a copy of one.
    pub is_original: bool,
}

/// Reads what pool `file` says of itself; `None` if it is no finished pool.
pub fn identify(file: BorrowedFd<'_>) -> Option<PoolIdentity> {
    const LENGTH: usize = offset_of!(Header, folder) + FOLDER_BYTES;
    let mut head = [0u8; LENGTH];
    if rustix::io::pread(file, &mut head, 0).ok()? < LENGTH {
        return None;
    }
    let bytes = |at: usize, length: usize| &head[at..at + length];
    let number = |at: usize| u64::from_ne_bytes(*bytes(at, 8).first_chunk().unwrap_or(&[0; 8]));
    if number(offset_of!(Header, magic)) != MAGIC {
        return None;
    }
    let version = bytes(offset_of!(Header, layout_version), 4).first_chunk();
    let layout_version = u32::from_ne_bytes(*version?);
    let mut found = PoolIdentity {
        layout_version,
        instance: String::new(),
        folder: PathBuf::new(),
        is_original: true,
    };
    if layout_version >= 8 {
        let instance = bytes(offset_of!(Header, instance), INSTANCE_BYTES);
        let inode = rustix::fs::fstat(file).ok()?.st_ino;
        let folder = bytes(offset_of!(Header, folder), FOLDER_BYTES);
        let end = folder.iter().position(|&byte| byte == 0).unwrap_or(0);
        found.instance = String::from_utf8_lossy(instance).into_owned();
        found.folder = PathBuf::from(OsStr::from_bytes(&folder[..end]));
        found.is_original = number(offset_of!(Header, inode)) == inode;
    }
    Some(found)
}

/// Whether `file` is a pool that was never finished: nothing can be in it.
pub fn is_blank(file: BorrowedFd<'_>) -> bool {
    const LENGTH: usize = offset_of!(Header, manager_epoch) + 4;
    let mut head = [0u8; LENGTH];
    let got = rustix::io::pread(file, &mut head, 0);
    let is_zero = |at: usize, length: usize| head[at..at + length].iter().all(|&byte| byte == 0);
    match got {
        Ok(0) => true,
        Ok(LENGTH) => {
            is_zero(offset_of!(Header, magic), 8) && is_zero(offset_of!(Header, manager_epoch), 4)
        }
        _ => false,
    }
}

/// A C string kept in a fixed array of the header.
pub fn text(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(bytes).unwrap_or(c"")
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
