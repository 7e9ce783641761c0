//! Slots one after the other in a file.

use crate::{MakeBatch, descriptor, whole};
use forebay_device::{Batch, Errno, Properties, SlotDevice, Span, StoreFile};
use rustix::fs::FallocateFlags;
use std::ops::Range;

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
    #[inline]
    pub fn locate(&self, slot: u32, from: u64) -> (StoreFile, u64) {
        (self.file, u64::from(slot) * self.slot_bytes + from)
    }

    /// Whether a slot has `bytes` from its byte `from` on.
    #[inline]
    pub fn has(&self, from: u64, bytes: u64) -> bool {
        from.checked_add(bytes).is_some_and(|end| end <= self.slot_bytes)
    }
}

impl SlotDevice for FileSlots {
    fn properties(&self) -> Properties {
        Self::PROPERTIES
    }

    #[inline]
    unsafe fn read(&self, slot: u32, from: u64, into: &mut [Span]) -> Result<(), Errno> {
        let bytes = Span::total(into);
        if !self.has(from, bytes as u64) {
            return Err(Errno::INVAL);
        }
        let (file, offset) = self.locate(slot, from);
        // SAFETY: as the caller promises.
        all(unsafe { whole::read_pieces(file, offset, into) }?, bytes)
    }

    #[inline]
    unsafe fn write(&self, slot: u32, from: u64, bytes: Span) -> Result<(), Errno> {
        if !self.has(from, bytes.bytes as u64) {
            return Err(Errno::INVAL);
        }
        let (file, offset) = self.locate(slot, from);
        // SAFETY: as the caller promises.
        all(unsafe { whole::write(file, offset, bytes) }?, bytes.bytes)
    }

    fn discard(&self, slots: Range<u32>) -> Result<(), Errno> {
        if slots.is_empty() {
            return Ok(());
        }
        let (file, start) = self.locate(slots.start, 0);
        let (_, end) = self.locate(slots.end, 0);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(descriptor(file)?, mode, start, end.saturating_sub(start))
    }

    fn batch(&self, depth: u32) -> Box<dyn Batch> {
        (self.make_batch)(Some(*self), depth)
    }
}

/// A device that does less than it is asked to has failed.
fn all(moved: usize, bytes: usize) -> Result<(), Errno> {
    if moved == bytes { Ok(()) } else { Err(Errno::IO) }
}
