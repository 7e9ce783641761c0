//! The journal's part of a sync: what is appended to it, and the checkpoint, which says that the
//! store has all of a file, durably, so that its records count no more.

use crate::drain::flusher::{AwaitedCheckpoint, Flusher};
use crate::drain::reconcile::reconcile;
use crate::drain::slots::read_slot;
use crate::journal::log::LogError;
use crate::journal::{BlockPages, Checkpoint, FileMeta};
use forebay_placement::TierId;
use forebay_pool::backoff::Backoff;
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, Owner, crash};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

impl Flusher {
    /// Appends what is not yet on the store. Returns whether the file had nothing in the log
    /// before.
    ///
    /// # Errors
    /// Nothing can be promised by the log: the file has to go to the store.
    pub(super) fn log(&mut self, file: FileId) -> Result<bool, LogError> {
        let node = Arc::clone(&self.node);
        let (segment, record) = (&node.segment, node.segment.file(file));
        let Some(journal) = node.journal.as_ref().filter(|journal| journal.takes_data()) else {
            return Err(LogError::Full);
        };
        // Before intents are looked for: a thread that sets one later tells the journal first.
        let slotted = record.has(FileFlags::SLOTTED);
        let first = !record.set(FileFlags::LOGGED) && !slotted;
        segment.files().touch(file);
        fence(Ordering::SeqCst);
        if !self.await_truncate(file) {
            return Err(LogError::Held);
        }
        if !first && !record.has(FileFlags::SYNCED) {
            return Err(LogError::Full);
        }
        let mut state = journal.lock();
        state.begin(node.context(), file)?;
        let path = segment.path_of(record);
        // What is written from here on has a higher one.
        let of_file = FileMeta {
            sequence: segment.next_sequence(),
            size: record.size.load(Ordering::Acquire),
            mtime_ns: record.mtime_ns.load(Ordering::Acquire),
            path: &path,
        };
        let (owner, page) = (self.owner, segment.page_bytes());
        let Flusher { staging, tiers, backoff, .. } = self;
        let mut result = Ok(());
        segment.for_each_entry(record, 0, |block, place| {
            let locked = match segment.lock_block_within(place, owner, backoff) {
                Ok(Some(locked)) => locked,
                Ok(None) => return true,
                Err(_) => {
                    result = Err(LogError::Held);
                    return false;
                }
            };
            let meta = locked.meta();
            let pending = meta.pending_under_lock();
            let pages = pending & meta.valid.load(Ordering::Acquire);
            let (bucket, version) = (locked.bucket(), meta.lock.version());
            if pages != 0 && !state.has(file, block, bucket, version, pages) {
                let read = match locked.tier() {
                    TierId::RAM => {
                        let data = segment.bucket_data(bucket).cast_const();
                        // SAFETY: the bucket's bytes; its lock is held, so no thread writes.
                        Ok(unsafe { std::slice::from_raw_parts(data, segment.bucket_bytes()) })
                    }
                    _ => read_slot(&node, bucket, pages, staging, tiers).map_err(LogError::Device),
                };
                result = read.and_then(|data| {
                    let pages = BlockPages { block, bucket, version, pages, data, page };
                    state.append_pages(file, &of_file, &pages, &mut *tiers[journal.tier])
                });
            }
            result.is_ok()
        });
        result.map(|()| first)
    }

    /// Whether what a committed log has makes the file safe; the store is synced for it where it
    /// has more than at its last sync.
    pub(super) fn is_safe_with_journal(&mut self, file: FileId, first: bool) -> bool {
        let record = self.node.segment.file(file);
        // Looked at after the file was: what a flush took from under our eyes is on the store.
        record.has(FileFlags::SYNCED) || first && self.sync_store(file).is_ok()
    }

    /// Tells the journal of a truncate or a punch under way, which waits for that.
    pub(super) fn serve_truncate(&mut self, file: FileId) {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        if !record.has(FileFlags::TO_RECORD_TRUNCATE) {
            return;
        }
        let goal = || {
            let words = [&record.intent, &record.range_start, &record.range_end];
            words.map(|word| word.load(Ordering::Acquire))
        };
        let before = goal();
        if let Some(journal) = &node.journal
            && let Err(error) =
                journal.log_truncate(node.context(), file, &mut *self.tiers[journal.tier])
        {
            // The next sync goes to the store, and checkpoints the file.
            record.clear(FileFlags::SYNCED);
            error!("the journal cannot be told of a truncate: {error:?}");
        }
        // One that was given up while this process was stopped may be followed by another.
        if goal() == before {
            record.clear(FileFlags::TO_RECORD_TRUNCATE);
        }
        self.post_done();
    }

    /// Waits until no truncate or punch of the file is under way, or its owner is dead. The caller
    /// holds nothing that they could wait for. False if its owner does not go on with it.
    pub(super) fn await_truncate(&mut self, file: FileId) -> bool {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        while record.has_intent() && !self.node.stopping() {
            // It may wait for this thread.
            self.serve_truncate(file);
            if self.backoff.is_spent() {
                let holder = Owner::from_raw(record.exclusive.load(Ordering::SeqCst));
                return holder.is_none_or(|holder| node.segment.clients().is_dead(holder));
            }
            self.backoff.wait();
        }
        true
    }

    /// When half of the log is used, or its device failed, checkpoints a file that it has data of.
    /// Returns whether there was one.
    pub(super) fn make_room_in_journal(&mut self) -> bool {
        let node = Arc::clone(&self.node);
        let may = |file: FileId| {
            let record = node.segment.file(file);
            record.has(FileFlags::LOGGED)
                && !record.has(FileFlags::FAILING)
                && !self.deferred.contains_key(&file)
        };
        let Some(journal) = &node.journal else { return false };
        let Some(file) = journal.to_checkpoint(node.context(), may) else {
            journal.repair(node.context(), &mut *self.tiers[journal.tier]);
            return false;
        };
        let ticket = node.segment.file(file).sync_wanted.load(Ordering::Acquire);
        self.backoff = Backoff::default();
        self.sync_with(file, ticket, FileFlags::DURABLE);
        true
    }

    /// Makes a file durable on the store that has nothing dirty, and notes in the journal that what
    /// it has of it counts no more.
    ///
    /// # Errors
    /// The store's, or the journal's.
    pub fn checkpoint_durably(&mut self, file: FileId) -> Result<(), Errno> {
        let node = Arc::clone(&self.node);
        self.take_slotted(file);
        let sequence = node.segment.next_sequence();
        if self.node.is_pending(file) {
            return Err(Errno::AGAIN);
        }
        self.sync_store(file)?;
        self.note_checkpoints(&[Checkpoint { file, sequence }])[0]
    }

    /// Slots that hold some of the file need the checkpoint, too. Returns whether there may be
    /// some.
    pub(super) fn take_slotted(&self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        if !record.has(FileFlags::SLOTTED) {
            return false;
        }
        if let Some(journal) = &self.node.journal {
            journal.expect_checkpoint(file);
        }
        // First: a round that begins now must find one of them.
        record.set(FileFlags::LOGGED);
        record.clear(FileFlags::SLOTTED);
        self.node.segment.files().touch(file);
        true
    }

    /// Tells the journal, durably, of files that are on the store. Each file's result.
    pub(super) fn note_checkpoints(&mut self, files: &[Checkpoint]) -> Vec<Result<(), Errno>> {
        let node = Arc::clone(&self.node);
        let Some(journal) = &node.journal else { return vec![Ok(()); files.len()] };
        let io = &mut *self.tiers[journal.tier];
        let results = journal.checkpoint(node.context(), files, io).into_iter();
        results.map(|result| result.map_err(|_| Errno::IO)).collect()
    }

    /// Notes that a file got its checkpoint, or not. An error of one that no caller waits for
    /// reaches no program: the store has all of the file, and a later sync finds it without one and
    /// learns of it.
    pub(super) fn end_checkpoint(
        &mut self,
        file: FileId,
        result: Result<(), Errno>,
        is_awaited: bool,
    ) {
        match result {
            Ok(()) => self.succeeded(file, true),
            Err(errno) if is_awaited => {
                let born = self.node.segment.file(file).born_ns.load(Ordering::Acquire);
                self.failed(file, born, errno);
            }
            Err(_) => _ = self.postpone(file),
        }
    }

    /// Makes the checkpoints of files of which nothing else was wanted in this round.
    pub(super) fn end_checkpoints(&mut self) {
        let node = Arc::clone(&self.node);
        let awaited = std::mem::take(&mut self.checkpoints);
        if awaited.is_empty() {
            return;
        }
        let checkpoints: Vec<_> = awaited.iter().map(|one| one.checkpoint).collect();
        let results = self.note_checkpoints(&checkpoints);
        for (AwaitedCheckpoint { checkpoint, ticket }, result) in awaited.into_iter().zip(results) {
            self.end_checkpoint(checkpoint.file, result, false);
            crash::point("sync.synced");
            reconcile(&node, checkpoint.file, self.owner);
            self.answer(checkpoint.file, ticket);
            crash::point("sync.answered");
        }
    }
}
