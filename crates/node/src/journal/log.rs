//! The log as the manager writes it. The journal's file:
//!
//! ```text
//!      0 superblock, copy 0      the higher generation holds; mostly both are the same
//!  65536 superblock, copy 1
//! 131072 marks                   64 bytes for each file record, see `forebay_pool::mark`
//!  start log                     records, from its start again in each generation
//! ```

use super::file::write;
use super::record::{Body, FileIdentity, Position, Record};
use super::scan::{orphan_records, scan};
use super::superblock::{COPY_BYTES, Copies, LIVE_MAX, OTHER_VERSION, Superblock, VERSION};
use crate::instance::runtime::sync_folder_of;
use forebay_device::Batch;
use forebay_pool::mark::{MARK_BYTES, MARKS_AT};
use forebay_pool::private::{self, Wrong};
use forebay_pool::{clock, crash, power_loss};
use forebay_posix::store_file;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;

#[cfg(test)]
mod tests;

/// The share of the log that records of data may not take, one part in so many: the checkpoints of
/// the files that the rest of it has data of must find room.
const RESERVE: u64 = 16;
/// Records are written out when so many bytes have come together.
const BATCH_BYTES: usize = 4 << 20;
/// Bytes that a log whose records are all dead has before a new generation begins: that costs a
/// sync.
const WORTH_RESTART: u64 = 1 << 20;

/// Why a record was not appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogError {
    /// There is no room.
    Full,
    /// A client holds what is to be written, and does not go on.
    Held,
    /// The device's.
    Device(Errno),
}

impl LogError {
    fn errno(self) -> Errno {
        match self {
            LogError::Full => Errno::NOSPC,
            LogError::Held => Errno::AGAIN,
            LogError::Device(errno) => errno,
        }
    }
}

/// The log as the manager writes it.
pub(crate) struct Log {
    file: OwnedFd,
    superblock: Superblock,
    /// Where the next batch goes, and the position of the record after it.
    at: u64,
    position: Position,
    batch: Vec<u8>,
    /// The other copy of the superblock is to be written before anything of the generation is
    /// promised.
    copy_due: bool,
    /// The highest sequence of the records that were there.
    found: Option<u64>,
    /// A record that was durable is none any more: what came behind it could not be read back.
    is_damaged: bool,
}

impl Log {
    /// Opens the journal at `path`, or makes one of `bytes` with marks for `files` file records.
    /// One of this version that is there is carried on.
    ///
    /// # Errors
    /// The device's; [`OTHER_VERSION`].
    pub fn open(path: &Path, bytes: u64, files: u32, io: &mut dyn Batch) -> Result<Log, Errno> {
        let file = private::open_or_create(path, OFlags::RDWR).map_err(Wrong::errno)?;
        let start = (MARKS_AT + u64::from(files) * MARK_BYTES as u64).next_multiple_of(4096);
        let copies = Copies::of(&file)?;
        let Some(superblock) = copies.best else {
            // Generations that no other journal has: neither what damaged superblocks were about,
            // nor what lies in data of users, is of this log.
            let generation = clock::realtime_ns();
            let end = start + bytes;
            let superblock =
                Superblock { generation, start, end, checkpoint_lsn: None, live: Vec::new() };
            let mut log = Log::new(file, superblock);
            log.restart(None, &[], io).map_err(|error| {
                if copies.damaged == 0 {
                    // A part of a copy is none, and recovery would take it for a corrupt one.
                    power_loss::resizing(log.file.as_fd(), 0);
                    let _ = rustix::fs::ftruncate(&log.file, 0);
                }
                error.errno()
            })?;
            sync_folder_of(path);
            return Ok(log);
        };
        if copies.version != VERSION {
            // What it has is brought to the store before there is a pool; it is never written to.
            return Err(OTHER_VERSION);
        }
        let mut log = Log::new(file, superblock);
        scan(&log.file, &log.superblock, |record, at, position| {
            log.found = log.found.max(Some(record.sequence));
            (log.at, log.position) = (at, position);
        })?;
        orphan_records(&log.file, &log.superblock, log.at, |record, _, synced| {
            log.found = log.found.max(Some(record.sequence));
            log.is_damaged |= synced > log.at;
            true
        })?;
        if !copies.agree {
            // It may be in the page cache only, and has to be durable before the other one is
            // replaced.
            io.sync(store_file(&log.file))?;
            let at = if copies.best_at == 0 { COPY_BYTES } else { 0 };
            write(io, &log.file, at, &mut log.superblock.encode())?;
            io.sync(store_file(&log.file))?;
        }
        Ok(log)
    }

    fn new(file: OwnedFd, superblock: Superblock) -> Log {
        let (at, position) = (superblock.start, superblock.first());
        let (batch, copy_due, found, is_damaged) = (Vec::new(), false, None, false);
        Log { file, superblock, at, position, batch, copy_due, found, is_damaged }
    }

    /// Whether it must not be carried on: what comes to it could not be read back.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// The highest sequence of what was there when it was opened.
    pub fn found(&self) -> Option<u64> {
        self.found.max(self.superblock.checkpoint_lsn)
    }

    /// Bytes of the log in use.
    pub fn used(&self) -> u64 {
        self.at - self.superblock.start + self.batch.len() as u64
    }

    /// Bytes of the log.
    pub fn bytes(&self) -> u64 {
        self.superblock.end - self.superblock.start
    }

    /// Up to which sequence the store has each file that the superblock does not name.
    pub fn checkpoint_lsn(&self) -> Option<u64> {
        self.superblock.checkpoint_lsn
    }

    /// Whether a new generation is worth its sync.
    pub fn is_worth_restart(&self) -> bool {
        self.used() >= WORTH_RESTART.min(self.bytes() / 2)
    }

    /// Adds a record to the batch; it is safe after [`Log::commit`].
    ///
    /// # Errors
    /// `Full`, and nothing was added; the device's, if a full batch could not be written.
    pub fn append(&mut self, record: &Record<'_>, io: &mut dyn Batch) -> Result<(), LogError> {
        self.push(record)?;
        if self.batch.len() >= BATCH_BYTES { self.write_out(io) } else { Ok(()) }
    }

    /// Adds a record to the batch, which is written with the next commit.
    ///
    /// # Errors
    /// `Full`, and nothing was added.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), LogError> {
        let is_data = matches!(record.body, Body::Data { .. });
        let reserve = if is_data { self.bytes() / RESERVE } else { 0 };
        let needed = record.encoded_len() as u64 + reserve;
        if self.used() + needed > self.bytes() {
            return Err(LogError::Full);
        }
        self.position = record.encode(self.position, &mut self.batch);
        crash::point("journal.append");
        Ok(())
    }

    fn write_out(&mut self, io: &mut dyn Batch) -> Result<(), LogError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        crash::point("journal.writing");
        write(io, &self.file, self.at, &mut self.batch).map_err(LogError::Device)?;
        crash::point("journal.written");
        self.at += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }

    /// Writes what was appended; durably, if asked.
    ///
    /// # Errors
    /// The device's. The records stay in the batch if they could not be written.
    pub fn commit(&mut self, durably: bool, io: &mut dyn Batch) -> Result<(), LogError> {
        self.write_out(io)?;
        if durably && self.copy_due {
            self.write_copy(io).map_err(LogError::Device)?;
        }
        if durably && !crash::planted("journal-unsynced") {
            io.sync(store_file(&self.file)).map_err(LogError::Device)?;
            self.position.synced = self.at;
            crash::point("journal.synced");
        }
        Ok(())
    }

    /// Begins a new generation: all records are forgotten, also those that were not yet written.
    ///
    /// # Errors
    /// `Full` if there are too many live files to name: the generation before goes on. The
    /// device's: which of the two generations holds after a power loss is open, and neither may be
    /// carried on.
    pub fn restart(
        &mut self,
        checkpoint_lsn: Option<u64>,
        live: &[(FileIdentity, Option<u64>)],
        io: &mut dyn Batch,
    ) -> Result<(), LogError> {
        if live.len() > LIVE_MAX {
            return Err(LogError::Full);
        }
        let generation = self.superblock.generation + 1;
        let live = live.to_vec();
        let superblock = Superblock { generation, checkpoint_lsn, live, ..self.superblock };
        crash::point("journal.restarting");
        let at = superblock.generation % 2 * COPY_BYTES;
        write(io, &self.file, at, &mut superblock.encode()).map_err(LogError::Device)?;
        crash::point("journal.head");
        io.sync(store_file(&self.file)).map_err(LogError::Device)?;
        crash::point("journal.restarted");
        (self.at, self.position) = (superblock.start, superblock.first());
        self.superblock = superblock;
        self.batch.clear();
        // It is durable with the first commit of the generation, before which there is nothing to
        // lose; what fails now is tried again then.
        self.copy_due = true;
        let _ = self.write_copy(io);
        Ok(())
    }

    /// Writes the other copy, too: else, if this one is corrupt, an earlier generation would hold
    /// again.
    fn write_copy(&mut self, io: &mut dyn Batch) -> Result<(), Errno> {
        let at = (1 - self.superblock.generation % 2) * COPY_BYTES;
        write(io, &self.file, at, &mut self.superblock.encode())?;
        self.copy_due = false;
        crash::point("journal.heads");
        Ok(())
    }
}
