//! What a running manager knows of its log: which files have data in it, which of their pages, and
//! which of them are checkpointed.

use super::log::{Log, LogError};
use super::record::{Body, Key, Record};
use crate::config::Config;
use crate::store::beneath::handle_of;
use crate::store::descriptors::Descriptors;
use forebay_device::Batch;
use forebay_pool::BucketId;
use forebay_pool::layout::{FileFlags, PAGES_PER_BUCKET};
use forebay_pool::{FileId, PageSet, Segment, crash};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

const PAGES: usize = PAGES_PER_BUCKET as usize;

/// What the journal has to know of a node.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub segment: &'a Segment,
    pub config: &'a Config,
    pub descriptors: &'a Descriptors,
}

/// What the manager knows of the log.
#[derive(Default)]
pub(crate) struct State {
    pub(super) log: Option<Log>,
    /// The device failed, or a record is corrupt: nothing more is promised before a new generation.
    pub(super) failed: bool,
    /// Data did not fit: no file's is appended before a new generation.
    pub(super) full: bool,
    /// Files whose checkpoint the log could not take: they do not keep the generation from ending,
    /// and nothing more of them is appended before that.
    pub(super) unlogged: HashSet<FileId>,
    /// Files of which the log has data.
    pub(super) files: HashMap<FileId, Logged>,
    /// Of each file, the sequence of its newest record that a replay would apply.
    pub(super) newest: HashMap<FileId, u64>,
    /// Of files with slots: their last checkpoint in this generation.
    pub(super) checkpoints: HashMap<FileId, u64>,
    /// Of files that had slots when this generation began: their last checkpoint then.
    live: HashMap<FileId, Option<u64>>,
}

/// A file that the store has, durably, up to a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pub file: FileId,
    pub sequence: u64,
}

/// What the log has of a file.
pub(super) struct Logged {
    generation: u32,
    /// Sequence of the first of its records.
    since: u64,
    key: Key,
    blocks: HashMap<u64, LoggedBlock>,
}

/// Which content of a block is in the log.
struct LoggedBlock {
    bucket: BucketId,
    version: u32,
    /// Pages that were appended, and what they were like.
    pages: u64,
    hashes: Box<[u64; PAGES]>,
}

/// Pages of a block to be appended.
pub(crate) struct BlockPages<'a> {
    pub block: u64,
    pub bucket: BucketId,
    pub version: u32,
    pub pages: u64,
    /// The block's bytes.
    pub data: &'a [u8],
    pub page: usize,
}

/// The file's size, time and path, as records of its data have them.
pub(crate) struct FileMeta<'a> {
    pub sequence: u64,
    pub size: u64,
    pub mtime_ns: u64,
    pub path: &'a [u8],
}

impl State {
    /// Opens the log, of `bytes` if it is new, unless it is open.
    ///
    /// # Errors
    /// The device's.
    pub fn open(
        &mut self,
        path: &Path,
        bytes: u64,
        node: Context<'_>,
        io: &mut dyn Batch,
    ) -> Result<(), Errno> {
        if self.log.is_none() {
            let log = Log::open(path, bytes, node.segment.header().files, io)?;
            // Only a damaged segment is behind its journal.
            log.found().into_iter().for_each(|found| node.segment.number_from(found));
            if log.is_damaged() {
                error!(
                    "{}: a record is damaged; all goes to the store before more comes to it",
                    path.display()
                );
                self.failed = true;
            }
            self.log = Some(log);
        }
        Ok(())
    }

    /// Appends a record.
    ///
    /// # Errors
    /// Why it could not be appended; nothing is from then on, before a new generation.
    pub fn append(&mut self, record: &Record<'_>, io: &mut dyn Batch) -> Result<(), LogError> {
        let log = self.log.as_mut().ok_or(LogError::Full)?;
        if self.failed {
            return Err(LogError::Device(Errno::IO));
        }
        let result = log.append(record, io);
        self.failed |= matches!(result, Err(LogError::Device(_)));
        self.full |= matches!(result, Err(LogError::Full));
        result
    }

    /// Appends that the store has a file up to a sequence, durably.
    ///
    /// # Errors
    /// See [`State::append`].
    pub fn append_checkpoint(
        &mut self,
        node: Context<'_>,
        &Checkpoint { file, sequence }: &Checkpoint,
        io: &mut dyn Batch,
    ) -> Result<(), LogError> {
        let key = self.key(node, file)?;
        match crash::planted("journal-no-checkpoint") {
            true => Ok(()),
            false => self.append(&Record { sequence, key, body: Body::Checkpoint }, io),
        }
    }

    /// Writes what was appended; durably, if asked.
    ///
    /// # Errors
    /// The device's. Nothing more is appended then before a new generation: what the kernel
    /// could not write once it does not try again.
    pub fn commit(&mut self, durably: bool, io: &mut dyn Batch) -> Result<(), LogError> {
        let log = self.log.as_mut().ok_or(LogError::Full)?;
        if self.failed {
            return Err(LogError::Device(Errno::IO));
        }
        let result = log.commit(durably, io);
        self.failed |= result.is_err();
        result
    }

    /// Begins to append data of `file`.
    ///
    /// # Errors
    /// `Full` where there is no log, or no room in it; `Held` if a truncate is under way; the
    /// device's.
    pub fn begin(&mut self, node: Context<'_>, file: FileId) -> Result<(), LogError> {
        if self.failed || self.full || self.log.is_none() {
            return Err(LogError::Full);
        }
        let record = node.segment.file(file);
        let is_logged = record.set(FileFlags::LOGGED);
        node.segment.files().touch(file);
        if !is_logged {
            // A checkpoint was noted since the caller set it; a truncate that began meanwhile has
            // told the journal nothing.
            fence(Ordering::SeqCst);
            if record.has_intent() {
                return Err(LogError::Held);
            }
        }
        let generation = record.generation.load(Ordering::Acquire);
        let key = self.key(node, file)?;
        let since = node.segment.sequence();
        self.files
            .entry(file)
            .and_modify(|logged| {
                if logged.generation != generation || logged.key.born_ns != key.born_ns {
                    logged.blocks.clear();
                }
                (logged.generation, logged.key) = (generation, key.clone());
            })
            .or_insert_with(|| Logged {
                generation,
                since,
                key: key.clone(),
                blocks: HashMap::new(),
            });
        Ok(())
    }

    /// The sequence since which the log has data of `file`; 0 if that is not known.
    pub fn logged_since(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |logged| logged.since)
    }

    /// Whether the log has these pages, as they are, already.
    pub fn has(
        &self,
        file: FileId,
        block: u64,
        bucket: BucketId,
        version: u32,
        pages: u64,
    ) -> bool {
        self.files.get(&file).and_then(|logged| logged.blocks.get(&block)).is_some_and(|known| {
            (known.bucket, known.version) == (bucket, version) && pages & !known.pages == 0
        })
    }

    /// Appends those of a block's pages that the log does not have as they are.
    ///
    /// # Errors
    /// Why not all could be appended.
    pub fn append_pages(
        &mut self,
        file: FileId,
        meta: &FileMeta<'_>,
        pages: &BlockPages<'_>,
        io: &mut dyn Batch,
    ) -> Result<(), LogError> {
        let page = pages.page;
        let start = pages.block * (PAGES * page) as u64;
        let inside = meta.size.saturating_sub(start).min((PAGES * page) as u64) as usize;
        let logged = self.files.get_mut(&file).ok_or(LogError::Full)?;
        let key = logged.key.clone();
        let known = logged.blocks.remove(&pages.block);
        let mut block = known.unwrap_or_else(|| LoggedBlock {
            bucket: BucketId::from_raw(0),
            version: 0,
            pages: 0,
            hashes: Box::new([0; PAGES]),
        });
        let mut changed = 0u64;
        for number in PageSet(pages.pages).pages() {
            let bytes = (number * page).min(inside)..((number + 1) * page).min(inside);
            let hash = hash_of(&pages.data[bytes]);
            if block.pages >> number & 1 == 0 || block.hashes[number] != hash {
                block.hashes[number] = hash;
                changed |= 1 << number;
            }
        }
        for run in PageSet(changed).runs() {
            let bytes = (run.start * page).min(inside)..(run.end * page).min(inside);
            if bytes.is_empty() {
                continue;
            }
            let body = Body::Data {
                offset: start + bytes.start as u64,
                size: meta.size,
                mtime_ns: meta.mtime_ns,
                path: meta.path,
                bytes: &pages.data[bytes],
            };
            self.newest.insert(file, meta.sequence);
            // What cannot be appended is not remembered.
            self.append(&Record { sequence: meta.sequence, key: key.clone(), body }, io)?;
        }
        (block.bucket, block.version) = (pages.bucket, pages.version);
        block.pages |= changed;
        if let Some(logged) = self.files.get_mut(&file) {
            logged.blocks.insert(pages.block, block);
        }
        Ok(())
    }

    /// What makes the file this file.
    pub fn key(&self, node: Context<'_>, file: FileId) -> Result<Key, LogError> {
        let record = node.segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let born_ns = record.born_ns.load(Ordering::Acquire);
        // A record that meets a namesake of its file, with the inode number, keeps its generation.
        let is_same =
            |known: &&Logged| known.generation == generation && known.key.born_ns == born_ns;
        if let Some(logged) = self.files.get(&file).filter(is_same) {
            return Ok(logged.key.clone());
        }
        let identity = record.identity();
        let store = record.store.load(Ordering::Relaxed) as u8;
        let mut key = Key {
            store,
            device: identity.device,
            inode: identity.inode,
            born_ns,
            ..Key::default()
        };
        let folder = &node.config.backing.get(usize::from(store)).ok_or(LogError::Full)?.path;
        if let Ok(fd) = node.descriptors.of(node.segment, file, folder) {
            identify(&fd, &mut key);
            // As the records of slots and marks name it.
            key.born_ns = born_ns;
        }
        Ok(key)
    }

    /// Begins a new generation if nothing in the log is live. Returns whether it did.
    pub fn restart_if_dead(&mut self, node: Context<'_>, io: &mut dyn Batch) -> bool {
        let Some(log) = &mut self.log else { return false };
        let unlogged = &self.unlogged;
        let live = |file: FileId| {
            node.segment.file(file).has(FileFlags::LOGGED) && !unlogged.contains(&file)
        };
        if !(self.failed || self.full || log.is_worth_restart())
            || node.segment.files().touched().any(live)
        {
            return false;
        }
        // What comes to a slot from now on has a higher sequence, or its file the flag.
        let checkpoint_lsn = node.segment.next_sequence();
        let before = log.checkpoint_lsn();
        let slotted = node.segment.files().touched();
        let slotted = slotted.filter(|&file| node.segment.file(file).has(FileFlags::SLOTTED));
        let slotted: Vec<FileId> = slotted.collect();
        let checkpoint_of = |file: &FileId| {
            let then = self.live.get(file).copied().unwrap_or(before);
            then.max(self.checkpoints.get(file).copied())
        };
        let live: HashMap<_, _> = slotted.iter().map(|file| (*file, checkpoint_of(file))).collect();
        let mut keys = Vec::new();
        for (&file, &upto) in &live {
            match self.key(node, file) {
                Ok(key) => keys.push((key.identity(), upto)),
                Err(_) => return false,
            }
        }
        let Some(log) = &mut self.log else { return false };
        if let Err(error) = log.restart(Some(checkpoint_lsn), &keys, io) {
            // The new superblock may hold after a power loss, which knows nothing of what the old
            // generation took.
            self.failed |= matches!(error, LogError::Device(_));
            return false;
        }
        self.live = live;
        self.checkpoints.clear();
        self.newest.clear();
        self.unlogged.clear();
        (self.failed, self.full) = (false, false);
        true
    }
}

/// What the kernel says about the file behind `fd`.
pub(crate) fn identify(fd: impl AsFd, key: &mut Key) {
    if let Ok(found) = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
        && found.stx_mask & StatxFlags::BTIME.bits() != 0
    {
        let born = found.stx_btime;
        key.born_ns = forebay_pool::clock::joined_ns(born.tv_sec, i64::from(born.tv_nsec));
    }
    if let Some((handle_type, handle)) = handle_of(fd.as_fd()) {
        (key.handle_type, key.handle) = (handle_type, handle);
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
