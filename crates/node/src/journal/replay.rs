//! After a loss of the segment: what the journal has, and the store has not, is written to the file
//! that it was written to. Which and when, together with what slots have, says `recovery/rebuild`.

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

    /// Gives a file the time when a program changed it, in nanoseconds since 1970, if it may: only
    /// the owner of a file sets its times.
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::{Direction, Identity, Stat, Target};
    use std::sync::{Arc, Mutex};

    /// A store without descriptors that cannot punch: objects in memory, known by their number.
    #[derive(Clone, Default)]
    struct Objects(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Objects {
        fn with<R>(
            &self,
            file: StoreFile,
            then: impl FnOnce(&mut Vec<u8>) -> R,
        ) -> Result<R, Errno> {
            let mut objects = self.0.lock().unwrap();
            objects.get_mut(file.number() as usize).map(then).ok_or(Errno::BADF)
        }
    }

    impl BackingStore for Objects {
        fn stat(&self, file: StoreFile) -> Result<Stat, Errno> {
            let identity = Identity { store: 1, id: file.number() as u64 };
            let size = self.with(file, |object| object.len() as u64)?;
            Ok(Stat { identity, size, links: 1, modified_ns: 0, changed_ns: 0 })
        }

        unsafe fn read(&self, file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
            self.with(file, |object| {
                let from = object.get(offset as usize..).unwrap_or_default();
                let bytes = from.len().min(into.bytes);
                // SAFETY: as the caller promises.
                unsafe { into.base.copy_from(from.as_ptr(), bytes) };
                bytes
            })
        }

        unsafe fn write(&self, file: StoreFile, offset: u64, from: Span) -> Result<usize, Errno> {
            self.with(file, |object| {
                let (start, end) = (offset as usize, offset as usize + from.bytes);
                object.resize(object.len().max(end), 0);
                // SAFETY: as the caller promises.
                unsafe { object[start..end].as_mut_ptr().copy_from(from.base, from.bytes) };
                from.bytes
            })
        }

        fn sync(&self, file: StoreFile) -> Result<(), Errno> {
            self.with(file, |_| ())
        }

        fn truncate(&self, file: StoreFile, size: u64) -> Result<(), Errno> {
            self.with(file, |object| object.resize(size as usize, 0))
        }

        fn punch(&self, _file: StoreFile, _range: Range<u64>) -> Result<(), Errno> {
            Err(Errno::OPNOTSUPP)
        }

        fn set_modified(&self, file: StoreFile, _modified_ns: i64) -> Result<(), Errno> {
            self.with(file, |_| ())
        }

        fn sync_all(&self) -> Result<(), Errno> {
            Ok(())
        }

        fn batch(&self, _depth: u32) -> Box<dyn Batch> {
            Box::new(self.clone())
        }
    }

    impl Batch for Objects {
        fn name(&self) -> &'static str {
            "objects"
        }

        fn run(&mut self, transfers: &mut [Transfer]) {
            for transfer in transfers {
                transfer.begin();
                while !transfer.is_finished() {
                    let (at, span) = (transfer.position(), transfer.remaining()[0]);
                    let moved = match (transfer.target(), transfer.direction()) {
                        // SAFETY: as the maker of the transfer promises.
                        (Target::File(file), Direction::Read) => unsafe {
                            self.read(file, at, span)
                        },
                        // SAFETY: as above.
                        (Target::File(file), Direction::Write) => unsafe {
                            BackingStore::write(self, file, at, span)
                        },
                        (Target::Slot(_), _) => Err(Errno::BADF),
                    };
                    transfer.complete(moved);
                }
            }
        }

        fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
            BackingStore::sync(self, file)
        }
    }

    #[test]
    fn changes_are_made_again_on_a_store_without_descriptors_or_holes() {
        let objects = Objects(Arc::new(Mutex::new(vec![vec![9; 10], Vec::new()])));
        let mut writer = StoreWriter::new(Box::new(objects.clone()), objects.batch(1));
        let file = StoreFile::new(1);
        let data = |offset, size, bytes: &[u8]| Change::Data {
            offset,
            size,
            mtime_ns: 1,
            bytes: bytes.to_vec(),
        };
        writer.redo(file, &data(2, 8, &[1; 4])).unwrap();
        writer.redo(file, &Change::Punch { start: 3, end: 5 }).unwrap();
        assert_eq!(objects.0.lock().unwrap()[1], [0, 0, 1, 0, 0, 1, 0, 0]);
        writer.redo(file, &Change::Truncate { size: 6 }).unwrap();
        writer.redo(file, &Change::Punch { start: 5, end: 100 }).unwrap();
        writer.redo(file, &Change::Punch { start: 6, end: 100 }).unwrap();
        writer.sync(file).unwrap();
        assert_eq!(objects.0.lock().unwrap()[1], [0, 0, 1, 0, 0, 0]);
        assert_eq!(objects.0.lock().unwrap()[0], [9; 10], "another object was changed");
        let missing = StoreFile::new(2);
        assert_eq!(writer.redo(missing, &data(0, 1, &[1])), Err(Errno::BADF));
    }
}
