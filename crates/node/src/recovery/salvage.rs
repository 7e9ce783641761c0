//! Saving what the tiers hold of files that their store cannot take: to another directory, without
//! changing the pool.
//!
//! No lock is taken. What a block's bytes were is known to be from one moment when its lock word is
//! the same before and after they were copied, as for every reader; and what the file was, when
//! that holds of all its blocks.

mod gaps;
mod manifest;

pub use crate::recovery::copies::prepare_target;
use forebay_pool::BucketId;
pub use manifest::{Saved, Source};

use crate::instance::runtime::Runtime;
use crate::recovery::copies::{UNNAMED, create, name_of_copy, set_modified};
use crate::recovery::inspect::{Inspected, inspect};
use crate::store::beneath::{Known, Since, Stores};
use crate::usage::{path_of, path_of_file};
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::{FileId, PageSet, Segment, SegmentError, clock};
use gaps::{gaps, save_gap};
use manifest::{escaped, joined, lines};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Times that a file which is being written is copied anew.
const TRIES: usize = 5;
/// How long a lock held by a living process is waited for.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// What was saved of a pool.
#[derive(Debug)]
pub struct Salvaged {
    /// Files with data that the store does not have.
    pub files: Vec<Saved>,
    /// Unflushed blocks that a damaged pool does not say clearly whose they are.
    pub strays: Vec<String>,
}

impl Salvaged {
    /// Whether nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.strays.is_empty() && self.files.iter().all(Saved::is_whole)
    }
}

/// Why nothing, or no more, could be saved.
#[derive(Debug)]
pub enum SalvageError {
    /// The pool cannot be looked at.
    Pool(SegmentError),
    /// The target cannot be written.
    Target(PathBuf, io::Error),
}

impl std::fmt::Display for SalvageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pool(error) => error.fmt(f),
            Self::Target(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

/// Saves what the pool at `path` has for its stores below the directory `target`. A line for each
/// file and each range of it goes to `manifest`.
///
/// # Errors
/// Why the pool cannot be read, or the target not be written.
pub fn salvage(
    path: &Path,
    target: &Path,
    manifest: &mut impl Write,
) -> Result<Salvaged, SalvageError> {
    let pool = inspect(path).map_err(SalvageError::Pool)?;
    let stores = stores_of(&pool.segment, path);
    Salvager::new(&pool, target, stores).run(path, manifest)
}

/// Writes what the tiers have of a file that the caller holds to `out`, and what the store alone
/// has as holes.
///
/// # Errors
/// Why not all of it can be read, or written.
pub(crate) fn copy_resident(pool: &Inspected, file: FileId, mut out: &File) -> Result<(), String> {
    let unknown = Err("the store is not read".to_owned());
    let salvager = Salvager::new(pool, Path::new(""), unknown);
    let record = pool.segment.file(file);
    let size = record.size.load(Ordering::Acquire);
    let explain = |error: io::Error| error.to_string();
    // Blocks may be moved from tier to tier meanwhile.
    for _ in 0..TRIES {
        out.set_len(0).map_err(explain)?;
        let before = salvager.blocks(file);
        let mut ranges = Vec::new();
        let mut quiet = true;
        for block in &before {
            quiet &= salvager.save_block(block, size, out, &mut ranges).map_err(explain)?;
        }
        if !quiet || before != salvager.blocks(file) {
            continue;
        }
        for (range, source) in ranges {
            if let Source::Missing(why) = source {
                return Err(format!("bytes {}..{}: {why}", range.start, range.end));
            }
        }
        out.set_len(size).map_err(explain)?;
        out.flush().map_err(explain)?;
        set_modified(out, record.mtime_ns.load(Ordering::Acquire));
        return Ok(());
    }
    Err("its blocks are being moved all the time".to_owned())
}

struct Salvager<'a> {
    pool: &'a Inspected,
    segment: &'a Segment,
    target: &'a Path,
    slots: Vec<Result<File, String>>,
    /// The stores' directories, if the pool may be believed that.
    stores: Result<Stores, String>,
}

/// The directories that the pool at `path` says are its stores. Where its configuration is known,
/// that has to say the same.
fn stores_of(segment: &Segment, path: &Path) -> Result<Stores, String> {
    let header = segment.header();
    let named = &header.store[..header.stores as usize % (STORES_MAX + 1)];
    let stores = Stores::of(named.iter().map(|store| path_of(&store.path)));
    let runtimes = Runtime::all().unwrap_or_default();
    let of_pool = runtimes.into_iter().find(|runtime| runtime.pool == path);
    if let Some(config) = of_pool.and_then(|runtime| runtime.read_config()) {
        let is_known = |store: &Path| config.backing.iter().any(|backing| backing.path == store);
        if let Some(strange) = stores.iter().find(|store| !is_known(store)) {
            return Err(format!(
                "{}: the pool's configuration names no such store",
                strange.display()
            ));
        }
    }
    Ok(stores)
}

/// What a block is, without its bytes: whether it changed is seen from this.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BlockState {
    block: u64,
    bucket: BucketId,
    version: u32,
    valid: u64,
}

impl<'a> Salvager<'a> {
    fn new(pool: &'a Inspected, target: &'a Path, stores: Result<Stores, String>) -> Salvager<'a> {
        let segment = &pool.segment;
        let slots = segment.header().tiers_in_use().map(|tier| pool.slots(tier));
        Salvager { pool, segment, target, slots: slots.collect(), stores }
    }

    fn run(&self, pool: &Path, manifest: &mut impl Write) -> Result<Salvaged, SalvageError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |error| SalvageError::Target(path, error)
        };
        let mut note = |line: String| writeln!(manifest, "{line}").map_err(fail(self.target));
        note(format!("pool\t{}", escaped(pool)))?;
        if let Some(wrong) = &self.pool.wrong {
            note(format!("damaged\t{wrong}"))?;
        }
        let mut salvaged = Salvaged { files: Vec::new(), strays: Vec::new() };
        let mut named = HashSet::new();
        for file in self.segment.files().live() {
            let blocks = self.blocks(file);
            named.extend(blocks.iter().map(|block| block.bucket));
            if !blocks.iter().any(|block| self.is_pending(block.bucket)) {
                continue;
            }
            let (copy, mut out) =
                self.make(file).map_err(|(path, error)| SalvageError::Target(path, error))?;
            let saved = self
                .save(file, copy, &mut out)
                .map_err(|(path, error)| SalvageError::Target(path, error))?;
            for line in lines(&saved) {
                note(line)?;
            }
            salvaged.files.push(saved);
        }
        // Processes at work may hold what no entry names yet.
        for bucket in self.segment.header().bucket_ids().filter(|_| !self.pool.in_use) {
            if self.is_pending(bucket) && !named.contains(&bucket) && self.is_stray(bucket) {
                let stray = self
                    .stray(bucket)
                    .map_err(|(path, error)| SalvageError::Target(path, error))?;
                note(format!("stray\t{stray}"))?;
                salvaged.strays.push(stray);
            }
        }
        Ok(salvaged)
    }

    /// Whether a bucket has pages that the store does not have.
    fn is_pending(&self, bucket: BucketId) -> bool {
        self.segment.bucket(bucket).is_some_and(|meta| {
            let pages = meta.pending();
            pages & meta.valid.load(Ordering::Acquire) != 0
        })
    }

    /// Whether a bucket has data of a file. One that is locked is fresh: its process was killed
    /// over it.
    fn is_stray(&self, bucket: BucketId) -> bool {
        self.segment.bucket(bucket).is_some_and(|meta| meta.lock.holder().is_none())
    }

    /// The blocks of a file that lie in buckets which say so themselves.
    fn blocks(&self, file: FileId) -> Vec<BlockState> {
        let state_of = |(block, bucket): (u64, BucketId)| {
            let meta = self.segment.bucket(bucket)?;
            let its_own = meta.state.load(Ordering::Acquire) == USED
                && meta.file.load(Ordering::Relaxed) == file
                && meta.block.load(Ordering::Relaxed) == block;
            let version = meta.lock.version();
            let valid = meta.valid.load(Ordering::Acquire);
            its_own.then_some(BlockState { block, bucket, version, valid })
        };
        self.segment.resident_blocks(file).into_iter().filter_map(state_of).collect()
    }

    /// Makes the file that takes the copy.
    fn make(&self, file: FileId) -> Result<(PathBuf, File), (PathBuf, io::Error)> {
        let record = self.segment.file(file);
        let path = path_of_file(self.segment, record);
        let header = self.segment.header();
        let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let path = Some(path.as_path()).filter(|_| !record.has(FileFlags::UNLINKED));
        let wanted =
            name_of_copy(path, path_of(&header.store[store].path), record.identity().inode);
        create(self.target, &wanted)
    }

    fn save(
        &self,
        file: FileId,
        copy: PathBuf,
        out: &mut File,
    ) -> Result<Saved, (PathBuf, io::Error)> {
        let record = self.segment.file(file);
        let fail = |error| (self.target.join(&copy), error);
        let state =
            || (record.size.load(Ordering::Acquire), record.mtime_ns.load(Ordering::Acquire));
        let mut turn = 0;
        let (ranges, (size, mtime_ns), torn) = loop {
            turn += 1;
            out.set_len(0).map_err(fail)?;
            let (before, known) = (self.blocks(file), state());
            let mut ranges = Vec::new();
            let mut quiet = true;
            for block in &before {
                quiet &= self.save_block(block, known.0, out, &mut ranges).map_err(fail)?;
            }
            self.save_rest(file, known.0, out, &mut ranges).map_err(fail)?;
            out.set_len(known.0).map_err(fail)?;
            let same = quiet && before == self.blocks(file) && known == state();
            if same || !self.pool.in_use || turn == TRIES {
                break (ranges, known, !same);
            }
        };
        set_modified(&*out, mtime_ns);
        out.sync_all().map_err(fail)?;
        let original = path_of_file(self.segment, record);
        Ok(Saved { original, copy, size, mtime_ns, ranges: joined(ranges), torn })
    }

    /// Copies the valid pages of a block. Returns whether no process changed it meanwhile.
    fn save_block(
        &self,
        state: &BlockState,
        size: u64,
        out: &File,
        ranges: &mut Vec<(Range<u64>, Source)>,
    ) -> io::Result<bool> {
        let segment = self.segment;
        let Some(meta) = segment.bucket(state.bucket) else { return Ok(false) };
        let quiet = self.await_unlocked(meta);
        let (page, start) = (
            segment.page_bytes() as u64,
            state.block.saturating_mul(segment.bucket_bytes() as u64),
        );
        let mut bytes = vec![0; segment.page_bytes()];
        for number in PageSet(state.valid).pages() {
            let from = number as u64 * page;
            let to = (from + page).min(size.saturating_sub(start));
            if from >= to {
                break;
            }
            let source = match self.read_page(state.bucket, number, &mut bytes) {
                Ok(()) => {
                    out.write_all_at(&bytes[..(to - from) as usize], start + from)?;
                    Source::Tier
                }
                Err(why) => Source::Missing(why),
            };
            ranges.push((start + from..start + to, source));
        }
        Ok(quiet && meta.lock.version() == state.version)
    }

    /// Reads a page of a bucket. On a file tier it has to be what was written.
    fn read_page(&self, bucket: BucketId, number: usize, bytes: &mut [u8]) -> Result<(), String> {
        let from = number * bytes.len();
        let tier = self.segment.tier_of(bucket);
        if tier.is_ram() {
            // SAFETY: inside the bucket; whether a process wrote meanwhile is seen from its
            // version.
            unsafe {
                let at = self.segment.bucket_data(bucket).add(from);
                core::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len());
            }
            return Ok(());
        }
        let slots = self.slots[tier].as_ref().map_err(Clone::clone)?;
        let offset = self.segment.slot_offset(bucket) + from as u64;
        let read = |to: &mut [u8]| slots.read_exact_at(to, offset);
        let right = match self.segment.checksums(bucket) {
            Some(sums) => sums.read_page(number, bytes, read),
            None => read(bytes).map(|()| true),
        };
        match right.map_err(|error| error.to_string())? {
            true => Ok(()),
            false => Err("its checksum is wrong".into()),
        }
    }

    /// Waits until no living process holds the bucket's lock. False if one still does.
    fn await_unlocked(&self, meta: &BucketMeta) -> bool {
        let since = Instant::now();
        while let Some(holder) = meta.lock.holder() {
            if !self.pool.in_use || self.segment.clients().is_dead(holder) {
                return true;
            }
            if since.elapsed() > LOCK_WAIT_MAX {
                return false;
            }
            clock::sleep_ns(1_000_000);
        }
        true
    }

    /// Copies from the store what no tier has.
    fn save_rest(
        &self,
        file: FileId,
        size: u64,
        out: &File,
        ranges: &mut Vec<(Range<u64>, Source)>,
    ) -> io::Result<()> {
        let record = self.segment.file(file);
        let end = record.store_size.load(Ordering::Acquire).min(size);
        let tiers: Vec<Range<u64>> = ranges.iter().map(|(range, _)| range.clone()).collect();
        let store = self.open_on_store(record);
        for gap in gaps(&tiers, end) {
            match &store {
                Ok(store) => save_gap(store, gap, out, ranges)?,
                Err(why) => ranges.push((gap, Source::Missing(why.clone()))),
            }
        }
        ranges.sort_by_key(|(range, _)| range.start);
        Ok(())
    }

    fn open_on_store(&self, record: &FileRecord) -> Result<OwnedFd, String> {
        let path = path_of_file(self.segment, record);
        let known = Known::of(record);
        let header = self.segment.header();
        let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let stores = self.stores.as_ref().map_err(Clone::clone)?;
        let open = |path: &Path| stores.open(path, OFlags::RDONLY, &known, Since::Boot);
        let opened = match open(&path) {
            Err(errno @ (Errno::NOENT | Errno::STALE | Errno::XDEV)) => stores
                .search(path_of(&header.store[store].path), &known, Since::Boot)
                .map_err(|_| errno)
                .and_then(|found| open(&found)),
            other => other,
        };
        let opened = opened.map_err(|errno| io::Error::from(errno).to_string())?;
        // A user that looks at another user's pool reads for that user only what is that user's.
        let own = self.pool.owner == rustix::process::geteuid().as_raw();
        match rustix::fs::fstat(&opened) {
            Ok(found) if own || found.st_uid == self.pool.owner => Ok(opened),
            _ => Err("the store's file belongs to another user than the pool".into()),
        }
    }

    /// Saves a bucket of unclear belonging. Returns what it says of itself.
    fn stray(&self, bucket: BucketId) -> Result<String, (PathBuf, io::Error)> {
        let (copy, out) =
            create(self.target, &Path::new(UNNAMED).join(format!("bucket-{bucket}")))?;
        let Some(meta) = self.segment.bucket(bucket) else { return Ok(String::new()) };
        let (file, block) = (meta.file.load(Ordering::Relaxed), meta.block.load(Ordering::Relaxed));
        let path = match self.segment.header().has_file(file) {
            true => path_of_file(self.segment, self.segment.file(file)),
            false => PathBuf::new(),
        };
        let valid = meta.valid.load(Ordering::Acquire);
        let state = BlockState { block: 0, bucket, version: 0, valid };
        let mut ranges = Vec::new();
        self.save_block(&state, u64::MAX, &out, &mut ranges)
            .map_err(|error| (self.target.join(&copy), error))?;
        let read = ranges.iter().all(|(_, source)| *source == Source::Tier);
        let state = if read { "" } else { "\tpartly unreadable" };
        Ok(format!("{}\tblock {block}\t{}{state}", escaped(&copy), escaped(&path)))
    }
}
