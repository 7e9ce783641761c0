//! After a loss of the segment: what the journal has, and the store has not, is written to the file that
//! it was written to. Which and when, together with what slots have, says `recovery/rebuild`.

use super::contents::Change;
use forebay_device::{BackingStore, Batch, Errno, Span, StoreFile, Transfer};
use std::ops::Range;

/// Zeros that are written at once where a store cannot punch.
const ZEROS_BYTES: u64 = 1 << 20;

/// A store, to make changes of its files again.
pub(crate) struct StoreWriter {
    store: Box<dyn BackingStore>,
    batch: Box<dyn Batch>,
}

impl StoreWriter {
    /// Writes to `store` by its `batch`.
    pub fn new(store: Box<dyn BackingStore>, batch: Box<dyn Batch>) -> StoreWriter {
        StoreWriter { store, batch }
    }

    /// Makes one change of a file again.
    ///
    /// # Errors
    /// The store's.
    pub fn redo(&mut self, file: StoreFile, change: &Change) -> Result<(), Errno> {
        match change {
            Change::Data { offset, size, bytes, .. } => {
                self.write(file, *offset, bytes)?;
                if self.store.stat(file)?.size < *size {
                    self.store.truncate(file, *size)?;
                }
                Ok(())
            }
            Change::Truncate { size } => self.store.truncate(file, *size),
            Change::Punch { start, end } => self.punch(file, *start..*end),
        }
    }

    /// Writes all of `bytes` to a file.
    ///
    /// # Errors
    /// The store's.
    pub fn write(&mut self, file: StoreFile, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let buffer = Span { base: bytes.as_ptr().cast_mut(), bytes: bytes.len() };
        // SAFETY: the bytes outlive the run, which only reads them.
        let mut writes = [unsafe { Transfer::write(file, offset, vec![buffer]) }];
        self.batch.run(&mut writes);
        match writes[0].result()? {
            written if written == bytes.len() as u64 => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Gives a file the time when a program changed it, in nanoseconds since 1970, if it may: only the
    /// owner of a file sets its times.
    pub fn set_modified(&self, file: StoreFile, modified_ns: u64) {
        let _ = self.store.set_modified(file, modified_ns as i64);
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// The store's.
    pub fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        self.batch.sync(file)
    }

    /// Makes a range zero that does not let the file grow.
    fn punch(&mut self, file: StoreFile, range: Range<u64>) -> Result<(), Errno> {
        let range = range.start..range.end.min(self.store.stat(file)?.size);
        if range.is_empty() {
            return Ok(());
        }
        match self.store.punch(file, range.clone()) {
            Err(Errno::OPNOTSUPP) => {
                let zeros = vec![0; (range.end - range.start).min(ZEROS_BYTES) as usize];
                for at in range.clone().step_by(zeros.len()) {
                    let count = (range.end - at).min(zeros.len() as u64) as usize;
                    self.write(file, at, &zeros[..count])?;
                }
                Ok(())
            }
            other => other,
        }
    }
}
