//! Saving what the tiers hold of files that their store cannot take: to another directory, without
//! changing the pool.
//!
//! No lock is taken. What a block's bytes were is known to be from one moment when its lock word is the
//! same before and after they were copied, as for every reader; and what the file was, when that holds
//! of all its blocks.

use crate::instance::runtime::Runtime;
use crate::recovery::inspect::{Inspected, inspect};
use crate::store::beneath::{Known, Since, Stores};
use crate::usage::path_of;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::{PageSet, Segment, SegmentError, clock};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Times that a file which is being written is copied anew.
const TRIES: usize = 5;
/// How long a lock held by a living process is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes read from a store at once, and so the finest part of it that is given up.
const STORE_PIECE: u64 = 64 << 10;
/// Where files go whose path is not known.
const UNNAMED: &str = "forebay-unnamed";

/// Where bytes came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A tier had them.
    Tier,
    /// The store had them.
    Store,
    /// They could not be read, for this reason.
    Missing(String),
}

/// A file that was saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Where it was opened; may be empty.
    pub original: PathBuf,
    /// Its copy, relative to the target.
    pub copy: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its modification time, nanoseconds of CLOCK_REALTIME.
    pub mtime_ns: u64,
    /// Where its bytes came from, in order. What no range covers was never written.
    pub ranges: Vec<(Range<u64>, Source)>,
    /// It was written all the time: the copy's blocks may be from different moments.
    pub torn: bool,
}

impl Saved {
    /// Whether the copy is all that there is to the file.
    pub fn is_whole(&self) -> bool {
        !self.torn && !self.ranges.iter().any(|(_, source)| matches!(source, Source::Missing(_)))
    }

    /// Bytes from `source`'s kind.
    pub fn bytes(&self, kind: fn(&Source) -> bool) -> u64 {
        let of_kind = self.ranges.iter().filter(|(_, source)| kind(source));
        of_kind.map(|(range, _)| range.end - range.start).sum()
    }
}

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

struct Salvager<'a> {
    pool: &'a Inspected,
    segment: &'a Segment,
    target: &'a Path,
    slots: Vec<Result<File, String>>,
    /// The stores' directories, if the pool may be believed that.
    stores: Result<Stores, String>,
}

/// The directories that the pool at `path` says are its stores. Where its configuration is known, that has to
/// say the same.
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
struct Glimpse {
    block: u64,
    bucket: u32,
    version: u32,
    valid: u64,
}

/// The name of the copy of a file that was opened as `path` below `store`; of one whose path is not known, or leads
/// elsewhere, its inode tells.
pub(crate) fn name_of_copy(path: Option<&Path>, store: &Path, inode: u64) -> PathBuf {
    let relative = path.and_then(|path| path.strip_prefix(store).ok()).filter(|path| {
        let mut parts = path.components();
        parts.clone().count() > 0 && parts.all(|part| matches!(part, Component::Normal(_)))
    });
    match relative {
        Some(relative) => relative.to_owned(),
        None => Path::new(UNNAMED).join(format!("inode-{inode}")),
    }
}

/// Makes `wanted` below `target`, or a name like it that is still free.
///
/// # Errors
/// The system's, and of which file.
pub(crate) fn create(
    target: &Path,
    wanted: &Path,
) -> Result<(PathBuf, File), (PathBuf, io::Error)> {
    let whole = target.join(wanted);
    let folder = whole.parent().unwrap_or(target);
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut turn = 0;
    loop {
        turn += 1;
        let mut name = wanted.as_os_str().to_owned();
        if turn > 1 {
            name.push(format!(".{turn}"));
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        match made.and_then(|()| options.open(target.join(&name))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && turn < 1000 => {}
            Err(error) => return Err((whole, error)),
            Ok(file) => return Ok((name.into(), file)),
        }
    }
}

impl<'a> Salvager<'a> {
    fn new(pool: &'a Inspected, target: &'a Path, stores: Result<Stores, String>) -> Salvager<'a> {
        let segment = &pool.segment;
        let slots = (0..segment.header().tiers as usize).map(|tier| pool.slots(tier));
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
        for file in self.segment.live_files() {
            let glimpses = self.glimpses(file);
            named.extend(glimpses.iter().map(|glimpse| glimpse.bucket));
            if !glimpses.iter().any(|glimpse| self.is_pending(glimpse.bucket)) {
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
        for bucket in (0..self.segment.header().buckets).filter(|_| !self.pool.in_use) {
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
    fn is_pending(&self, bucket: u32) -> bool {
        self.segment.bucket(bucket).is_some_and(|meta| {
            let pages = meta.pending();
            pages & meta.valid.load(Ordering::Acquire) != 0
        })
    }

    /// A fresh bucket of a process that was killed over it is nobody's.
    fn is_stray(&self, bucket: u32) -> bool {
        self.segment.bucket(bucket).is_some_and(|meta| meta.lock.holder().is_none())
    }

    /// The blocks of a file that lie in buckets which say so themselves.
    fn glimpses(&self, file: u32) -> Vec<Glimpse> {
        let glimpse = |(block, bucket): (u64, u32)| {
            let meta = self.segment.bucket(bucket)?;
            let its_own = meta.state.load(Ordering::Acquire) == USED
                && meta.file.load(Ordering::Relaxed) == file
                && meta.block.load(Ordering::Relaxed) == block;
            let version = meta.lock.version();
            let valid = meta.valid.load(Ordering::Acquire);
            its_own.then_some(Glimpse { block, bucket, version, valid })
        };
        self.segment.resident_blocks(file).into_iter().filter_map(glimpse).collect()
    }

    /// Makes the file that takes the copy.
    fn make(&self, file: u32) -> Result<(PathBuf, File), (PathBuf, io::Error)> {
        let record = self.segment.file(file);
        let path = PathBuf::from(OsString::from_vec(record.path()));
        let header = self.segment.header();
        let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let path = Some(path.as_path()).filter(|_| !record.has(FileFlags::UNLINKED));
        let wanted =
            name_of_copy(path, path_of(&header.store[store].path), record.identity().inode);
        create(self.target, &wanted)
    }

    fn save(
        &self,
        file: u32,
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
            let (before, known) = (self.glimpses(file), state());
            let mut ranges = Vec::new();
            let mut quiet = true;
            for glimpse in &before {
                quiet &= self.save_block(glimpse, known.0, out, &mut ranges).map_err(fail)?;
            }
            self.save_rest(file, known.0, out, &mut ranges).map_err(fail)?;
            out.set_len(known.0).map_err(fail)?;
            let same = quiet && before == self.glimpses(file) && known == state();
            if same || !self.pool.in_use || turn == TRIES {
                break (ranges, known, !same);
            }
        };
        let (seconds, nanoseconds) = clock::parted_ns(mtime_ns);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
        };
        let _ = rustix::fs::futimens(&*out, &times);
        out.sync_all().map_err(fail)?;
        let original = PathBuf::from(OsString::from_vec(record.path()));
        Ok(Saved { original, copy, size, mtime_ns, ranges: joined(ranges), torn })
    }

    /// Copies the valid pages of a block. Returns whether nobody was at it meanwhile.
    fn save_block(
        &self,
        glimpse: &Glimpse,
        size: u64,
        out: &File,
        ranges: &mut Vec<(Range<u64>, Source)>,
    ) -> io::Result<bool> {
        let segment = self.segment;
        let Some(meta) = segment.bucket(glimpse.bucket) else { return Ok(false) };
        let quiet = self.await_unlocked(meta);
        let (page, start) = (
            segment.page_bytes() as u64,
            glimpse.block.saturating_mul(segment.bucket_bytes() as u64),
        );
        let mut bytes = vec![0; segment.page_bytes()];
        for number in PageSet(glimpse.valid).pages() {
            let from = number as u64 * page;
            let to = (from + page).min(size.saturating_sub(start));
            if from >= to {
                break;
            }
            let source = match self.read_page(glimpse.bucket, number, &mut bytes) {
                Ok(()) => {
                    out.write_all_at(&bytes[..(to - from) as usize], start + from)?;
                    Source::Tier
                }
                Err(why) => Source::Missing(why),
            };
            ranges.push((start + from..start + to, source));
        }
        Ok(quiet && meta.lock.version() == glimpse.version)
    }

    /// Reads a page of a bucket. On a file tier it has to be what was written.
    fn read_page(&self, bucket: u32, number: usize, bytes: &mut [u8]) -> Result<(), String> {
        let from = number * bytes.len();
        let tier = self.segment.tier_of(bucket);
        if tier == 0 {
            // SAFETY: inside the bucket; whether somebody wrote meanwhile is seen from its version.
            unsafe {
                let at = self.segment.bucket_data(bucket).add(from);
                core::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len());
            }
            return Ok(());
        }
        let slots = self.slots[tier].as_ref().map_err(Clone::clone)?;
        let offset = self.segment.slot_offset(bucket) + from as u64;
        let read = |to: &mut [u8]| slots.read_exact_at(to, offset);
        let right = match self.segment.sums(bucket) {
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
            if !self.pool.in_use || self.segment.owner_is_dead(holder) {
                return true;
            }
            if since.elapsed() > LOCK_PATIENCE {
                return false;
            }
            clock::sleep_ns(1_000_000);
        }
        true
    }

    /// Copies from the store what no tier has.
    fn save_rest(
        &self,
        file: u32,
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
        let path = PathBuf::from(OsString::from_vec(record.path()));
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
        // Who looks at another user's pool reads for that user only what is that user's.
        let own = self.pool.owner == rustix::process::geteuid().as_raw();
        match rustix::fs::fstat(&opened) {
            Ok(found) if own || found.st_uid == self.pool.owner => Ok(opened),
            _ => Err("the store's file belongs to another user than the pool".into()),
        }
    }

    /// Saves a bucket of unclear belonging. Returns what it says of itself.
    fn stray(&self, bucket: u32) -> Result<String, (PathBuf, io::Error)> {
        let (copy, out) =
            create(self.target, &Path::new(UNNAMED).join(format!("bucket-{bucket}")))?;
        let Some(meta) = self.segment.bucket(bucket) else { return Ok(String::new()) };
        let (file, block) = (meta.file.load(Ordering::Relaxed), meta.block.load(Ordering::Relaxed));
        let path = match file < self.segment.header().files {
            true => PathBuf::from(OsString::from_vec(self.segment.file(file).path())),
            false => PathBuf::new(),
        };
        let glimpse =
            Glimpse { block: 0, bucket, version: 0, valid: meta.valid.load(Ordering::Acquire) };
        let mut ranges = Vec::new();
        self.save_block(&glimpse, u64::MAX, &out, &mut ranges)
            .map_err(|error| (self.target.join(&copy), error))?;
        let read = ranges.iter().all(|(_, source)| *source == Source::Tier);
        let state = if read { "" } else { "\tpartly unreadable" };
        Ok(format!("{}\tblock {block}\t{}{state}", escaped(&copy), escaped(&path)))
    }
}

/// Copies the data in a range of the store's file; holes stay holes.
fn save_gap(
    store: &OwnedFd,
    gap: Range<u64>,
    out: &File,
    ranges: &mut Vec<(Range<u64>, Source)>,
) -> io::Result<()> {
    let mut bytes = vec![0; STORE_PIECE as usize];
    let mut at = gap.start;
    while at < gap.end {
        at = match rustix::fs::seek(store, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => at,
        };
        let end = (at / STORE_PIECE + 1).saturating_mul(STORE_PIECE).min(gap.end);
        if at >= end {
            break;
        }
        let part = &mut bytes[..(end - at) as usize];
        let got = rustix::io::pread(store.as_fd(), &mut *part, at);
        let range = at..end;
        match got {
            Ok(0) => return Ok(()),
            Ok(got) => {
                out.write_all_at(&part[..got], at)?;
                at += got as u64;
                ranges.push((range.start..at, Source::Store));
            }
            Err(errno) => {
                ranges.push((range, Source::Missing(io::Error::from(errno).to_string())));
                at = end;
            }
        }
    }
    Ok(())
}

/// What `covered`, in ascending order, leaves of the bytes up to `end`.
fn gaps(covered: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in covered {
        if at < range.start.min(end) {
            gaps.push(at..range.start.min(end));
        }
        at = at.max(range.end);
    }
    if at < end {
        gaps.push(at..end);
    }
    gaps
}

/// Neighbours from the same source become one.
fn joined(ranges: Vec<(Range<u64>, Source)>) -> Vec<(Range<u64>, Source)> {
    let mut joined: Vec<(Range<u64>, Source)> = Vec::new();
    for (range, source) in ranges {
        match joined.last_mut() {
            Some((last, kind)) if last.end == range.start && *kind == source => {
                last.end = range.end
            }
            _ => joined.push((range, source)),
        }
    }
    joined
}

/// A file's lines in the manifest: fields are parted by tabs.
fn lines(saved: &Saved) -> Vec<String> {
    let state = match (saved.is_whole(), saved.torn) {
        (true, _) => "whole",
        (_, true) => "torn",
        _ => "incomplete",
    };
    let seconds = saved.mtime_ns as f64 / 1e9;
    let (copy, original) = (escaped(&saved.copy), escaped(&saved.original));
    let mut lines =
        vec![format!("file\t{copy}\t{}\t{seconds:.9}\t{state}\t{original}", saved.size)];
    lines.extend(saved.ranges.iter().map(|(range, source)| {
        let (kind, why) = match source {
            Source::Tier => ("tier", String::new()),
            Source::Store => ("store", String::new()),
            Source::Missing(why) => ("missing", format!("\t{why}")),
        };
        format!("{kind}\t{}\t{}{why}", range.start, range.end)
    }));
    lines
}

/// A path in one field.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

/// Makes the target directory, or accepts an empty one.
///
/// # Errors
/// The system's, and `DirectoryNotEmpty`.
pub fn prepare_target(target: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match std::fs::read_dir(target)?.next() {
        None => Ok(()),
        Some(_) => Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_covered() {
        let starts_and_ends = |covered: &[Range<u64>]| -> Vec<(u64, u64)> {
            gaps(covered, 10).iter().map(|gap| (gap.start, gap.end)).collect()
        };
        assert_eq!(starts_and_ends(&[]), [(0, 10)]);
        assert_eq!(starts_and_ends(&[2..4, 4..6, 8..20]), [(0, 2), (6, 8)]);
        assert_eq!(starts_and_ends(&[20..30, 30..40]), [(0, 10)]);
        assert_eq!(starts_and_ends(&[0..4, 4..10]), []);
    }

    #[test]
    fn a_manifest_keeps_its_fields_apart() {
        assert_eq!(escaped(Path::new("a\tb\nc\\")), "a\\tb\\nc\\\\");
    }
}
