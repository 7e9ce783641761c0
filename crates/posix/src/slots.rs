//! Slots one after the other in a file.

use crate::{MakeBatch, descriptor};
use forebay_device::{Batch, Errno, Properties, SlotDevice, StoreFile};
use rustix::io::{pread, pwrite, retry_on_intr};

/// The slots of a tier in one local file, from its beginning on.
///
/// It knows the file by its number: its holder keeps the file open for as long as this is used.
#[derive(Clone, Copy, Debug)]
pub struct FileSlots {
    file: StoreFile,
    slot_bytes: u64,
    make_batch: MakeBatch,
}

impl FileSlots {
    /// Of every tier of files.
    pub const PROPERTIES: Properties = Properties { is_volatile: false, is_remote: false };

    /// Slots of `slot_bytes` in `file`, with the batches that `make_batch` makes.
    pub const fn new(file: StoreFile, slot_bytes: u64, make_batch: MakeBatch) -> FileSlots {
        FileSlots { file, slot_bytes, make_batch }
    }

    /// The file, and the byte of it that is byte `from` of `slot`.
    pub fn locate(&self, slot: u32, from: u64) -> (StoreFile, u64) {
        (self.file, u64::from(slot) * self.slot_bytes + from)
    }

    /// Whether a slot has `bytes` from its byte `from` on.
    pub fn has(&self, from: u64, bytes: u64) -> bool {
        from.checked_add(bytes).is_some_and(|end| end <= self.slot_bytes)
    }
}

impl SlotDevice for FileSlots {
    fn properties(&self) -> Properties {
        Self::PROPERTIES
    }

    fn read(&self, slot: u32, from: u64, into: &mut [u8]) -> Result<(), Errno> {
        if !self.has(from, into.len() as u64) {
            return Err(Errno::INVAL);
        }
        let (file, offset) = self.locate(slot, from);
        let file = descriptor(file)?;
        all(retry_on_intr(|| pread(file, &mut *into, offset))?, into.len())
    }

    fn write(&self, slot: u32, from: u64, bytes: &[u8]) -> Result<(), Errno> {
        if !self.has(from, bytes.len() as u64) {
            return Err(Errno::INVAL);
        }
        let (file, offset) = self.locate(slot, from);
        let file = descriptor(file)?;
        all(retry_on_intr(|| pwrite(file, bytes, offset))?, bytes.len())
    }

    fn batch(&self, depth: u32) -> Box<dyn Batch> {
        (self.make_batch)(Some(*self), depth)
    }
}

/// A slot is at most a few megabytes: the kernel moves it at once, or the device fails.
fn all(moved: usize, bytes: usize) -> Result<(), Errno> {
    if moved == bytes { Ok(()) } else { Err(Errno::IO) }
}
