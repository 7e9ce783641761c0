//! The journal: an append-only, checksummed log on the fastest file tier that takes it, which makes
//! a sync durable before the backing store has the bytes (docs/design/durability.md).
//!
//! What the log has of a file counts until a *checkpoint* of the file: the store has everything,
//! durably. When nothing in it counts, the log begins again at its start, as a new *generation*.
//!
//! [`mod@file`] reads and writes it, [`superblock`] heads it, [`record`] is the format of its
//! records, [`scan`] finds them; [`log`] appends, [`state`] knows what it has appended;
//! [`contents`] is what recovery takes from it, and [`replay`] brings that to a file. May use
//! `config`, `devices`, `instance` and `store`.

pub(crate) mod contents;
pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod scan;
pub(crate) mod state;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;

use forebay_placement::TierId;
pub(crate) use state::{BlockPages, Checkpoint, Context, FileMeta};

use crate::config::{Config, Rule};
use crate::devices::power_loss::PowerLossBatch;
use crate::instance::runtime::Runtime;
use forebay_device::Batch;
use forebay_placement::schema::{Durability, Mode};
use forebay_placement::staged::Stage;
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, crash, private};
use log::LogError;
use record::{Body, Key, Record};
use rustix::io::Errno;
use state::State;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The journal of a node manager.
pub(crate) struct Journal {
    /// Its file.
    pub path: PathBuf,
    /// The tier that it lies on.
    pub tier: TierId,
    bytes: u64,
    state: Mutex<State>,
}

impl Journal {
    /// The journal of this configuration: where it is, or else would be, on its fastest file tier.
    /// `None` if it has none.
    pub fn of(config: &Config, runtime: &Runtime) -> Option<Journal> {
        Journal::on_one_of(config, runtime, |_| true)
    }

    /// The same; a new one rather on a tier that `takes` it. There is never more than one that has
    /// anything in it.
    pub fn on_one_of(
        config: &Config,
        runtime: &Runtime,
        takes: impl Fn(TierId) -> bool,
    ) -> Option<Journal> {
        let paths: Vec<_> = runtime.journals(config).collect();
        let there = paths.iter().find(|(_, path)| private::is_there(path));
        let chosen = there.or_else(|| paths.iter().find(|(tier, _)| takes(*tier)));
        let (tier, path) = chosen.or(paths.first())?.clone();
        Some(Journal { path, tier, bytes: config.journal_bytes(), state: Mutex::default() })
    }

    /// Whether nothing was ever written to its file, if there is one.
    pub fn is_new(&self) -> bool {
        match private::look(&self.path) {
            Ok(found) => found.st_size == 0,
            Err(wrong) => wrong.is_missing(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the journal's file if some file of the configuration wants it, or carries on one that
    /// is there.
    ///
    /// # Errors
    /// The device's.
    pub fn start(&self, node: Context<'_>) -> Result<(), Errno> {
        match node.config.wants_journal() || private::is_there(&self.path) {
            true => self.make(node),
            false => Ok(()),
        }
    }

    /// Makes the journal's file, or carries on the one that is there, unless it is open.
    ///
    /// # Errors
    /// The device's.
    pub fn make(&self, node: Context<'_>) -> Result<(), Errno> {
        self.open(&mut self.lock(), node, &mut PowerLossBatch::plain())
    }

    /// Opens the log, unless it is open.
    fn open(&self, state: &mut State, node: Context<'_>, io: &mut dyn Batch) -> Result<(), Errno> {
        state.open(&self.path, self.bytes, node, io)
    }

    /// Appends the truncate or the punch of `file` that is under way, durably. Nothing if recovery
    /// would apply nothing of it.
    ///
    /// # Errors
    /// Why it could not be appended.
    pub fn log_truncate(
        &self,
        node: Context<'_>,
        file: FileId,
        io: &mut dyn Batch,
    ) -> Result<(), LogError> {
        let record = node.segment.file(file);
        if !record.is_logged() || !record.has_intent() {
            return Ok(());
        }
        let mut state = self.lock();
        // A checkpoint of the file may have been logged meanwhile.
        if !record.is_logged() {
            return Ok(());
        }
        let key = state.key(node, file)?;
        self.open(&mut state, node, io).map_err(LogError::Device)?;
        state.unlogged.remove(&file);
        let punched =
            record.punched().map(|range| Body::Punch { start: range.start, end: range.end });
        let size = record.intent.load(Ordering::Acquire).checked_sub(1);
        for body in punched.into_iter().chain(size.map(|size| Body::Truncate { size })) {
            let sequence = node.segment.next_sequence();
            if !crash::planted("journal-no-truncate") {
                state.newest.insert(file, sequence);
                state.append(&Record { sequence, key: key.clone(), body }, io)?;
            }
        }
        crash::point("journal.truncated");
        state.commit(true, io)
    }

    /// Logs that everything of each file up to its sequence is durable on the store, and begins a
    /// new generation if nothing else is in the log. The record is durable itself: a program's next
    /// sync of the file goes to the store alone, and after a power loss older bytes of journal or
    /// slots would come back over what it acknowledged.
    ///
    /// A file that the log has newer records of stays `LOGGED`: a truncate may have come between
    /// the sequence and the record, and only a later checkpoint covers its record.
    ///
    /// # Errors
    /// Why it could not be logged, for each file.
    pub fn checkpoint(
        &self,
        node: Context<'_>,
        files: &[Checkpoint],
        io: &mut dyn Batch,
    ) -> Vec<Result<(), LogError>> {
        let mut state = self.lock();
        if let Err(errno) = self.open(&mut state, node, io) {
            return vec![Err(LogError::Device(errno)); files.len()];
        }
        crash::point("journal.checkpointing");
        let mut results: Vec<_> =
            files.iter().map(|checkpoint| state.append_checkpoint(node, checkpoint, io)).collect();
        let committed = state.commit(true, io);
        crash::point("journal.checkpointed");
        for (&Checkpoint { file, sequence }, result) in files.iter().zip(&mut results) {
            *result = result.and(committed);
            state.checkpoints.insert(file, sequence);
            state.files.remove(&file);
            match result {
                Ok(()) => {
                    state.unlogged.remove(&file);
                    if state.newest.get(&file).is_none_or(|newest| *newest <= sequence) {
                        state.newest.remove(&file);
                        node.segment.file(file).clear(FileFlags::LOGGED);
                    }
                }
                Err(_) => _ = state.unlogged.insert(file),
            }
        }
        if state.restart_if_dead(node, io) {
            for (checkpoint, result) in files.iter().zip(&mut results) {
                if result.is_err() {
                    node.segment.file(checkpoint.file).clear(FileFlags::LOGGED);
                    *result = Ok(());
                }
            }
        }
        results
    }

    /// Slots hold some of `file` that needs a checkpoint together with what the log has: until that
    /// is done the file keeps the generation from ending again.
    pub fn expect_checkpoint(&self, file: FileId) {
        self.lock().unlogged.remove(&file);
    }

    /// Appends where the staged file `file` stands, durably. No byte depends on it: recovery tells
    /// by it which files were not finished.
    ///
    /// # Errors
    /// Why it could not be appended.
    pub fn note_stage(
        &self,
        node: Context<'_>,
        file: FileId,
        stage: Stage,
        io: &mut dyn Batch,
    ) -> Result<(), LogError> {
        let path = node.segment.path_of(node.segment.file(file));
        let mut state = self.lock();
        state.begin(node, file)?;
        let key = state.key(node, file)?;
        let sequence = node.segment.next_sequence();
        state.newest.insert(file, sequence);
        state.append(&Record { sequence, key, body: Body::Stage { stage, path: &path } }, io)?;
        crash::point("journal.staged");
        state.commit(true, io)
    }

    /// Notes that `file` has no name and no user any more, and is dropped.
    pub fn gone(&self, node: Context<'_>, file: FileId) {
        let record = node.segment.file(file);
        if !record.is_tracked() {
            return;
        }
        let mut state = self.lock();
        let sequence = node.segment.next_sequence();
        if let (Ok(key), Some(log)) = (state.key(node, file), &mut state.log) {
            // Written with the next commit. Without it recovery finds no such file.
            let _ = log.push(&Record { sequence, key, body: Body::Gone });
        }
        crash::point("journal.gone");
        state.files.remove(&file);
        state.newest.remove(&file);
        state.unlogged.remove(&file);
        record.clear(FileFlags::LOGGED | FileFlags::SLOTTED);
    }

    /// The file that the log has data of for longest, of those that `may` have a checkpoint, if
    /// half of the log is used, or nothing is appended before all have one.
    pub fn to_checkpoint(&self, node: Context<'_>, may: impl Fn(FileId) -> bool) -> Option<FileId> {
        let state = self.lock();
        let is_half_full = state.log.as_ref().is_some_and(|log| log.used() > log.bytes() / 2);
        if !(state.full || state.failed || is_half_full) {
            return None;
        }
        let files = node.segment.files().touched().filter(|&file| may(file));
        let files = files.filter(|file| !state.unlogged.contains(file));
        files.min_by_key(|&file| state.logged_since(file))
    }

    /// Begins a new generation, if it can, where the log takes nothing any more. To be called again
    /// and again, for the device may have failed only for a while.
    pub fn repair(&self, node: Context<'_>, io: &mut dyn Batch) {
        let mut state = self.lock();
        if state.failed || state.full {
            state.restart_if_dead(node, io);
        }
    }

    /// Whether data of files can be appended.
    pub fn takes_data(&self) -> bool {
        let state = self.lock();
        !state.full && !state.failed && state.log.is_some()
    }

    /// Everything is on the store, durably, and the tiers' files are about to be removed.
    pub fn stop(&self, node: Context<'_>) {
        let mut state = self.lock();
        let sequence = node.segment.next_sequence();
        let io = &mut PowerLossBatch::plain();
        if state.log.is_some() {
            let stop = Record { sequence, key: Key::default(), body: Body::Stop };
            let _ = state.append(&stop, io).and_then(|()| state.commit(true, io));
            crash::point("journal.stopped");
        }
    }
}

impl Config {
    /// Whether fsync of some file is to be answered when a file tier has its bytes, or some file is
    /// staged.
    pub(crate) fn wants_journal(&self) -> bool {
        let nonvolatile = Some(Durability::NonVolatile);
        let of_rule =
            |rule: &Rule| rule.set.durability == nonvolatile || rule.set.mode == Some(Mode::Staged);
        Some(self.flush.durability) == nonvolatile || self.rules.iter().any(of_rule)
    }
}
