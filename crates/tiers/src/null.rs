//! The device that is none: for measuring everything above it.

use forebay_device::{
    BackingStore, Batch, Direction, Errno, Identity, Properties, SlotDevice, Span, Stat, StoreFile,
    Transfer,
};
use std::ops::Range;

/// Accepts every write and reads zeros without end; looks at no target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Batch for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for transfer in transfers {
            transfer.begin();
            if transfer.direction() == Direction::Read {
                for buffer in transfer.buffers() {
                    // SAFETY: the maker of the transfer promised that its buffers are valid.
                    unsafe { buffer.base.write_bytes(0, buffer.bytes) };
                }
            }
            transfer.finish(Ok(transfer.len()));
        }
    }

    fn sync(&mut self, _file: StoreFile) -> Result<(), Errno> {
        Ok(())
    }
}

impl SlotDevice for Null {
    fn properties(&self) -> Properties {
        Properties { is_volatile: true, is_remote: false }
    }

    unsafe fn read(&self, _slot: u32, _from: u64, into: &mut [Span]) -> Result<(), Errno> {
        for piece in into {
            // SAFETY: as the caller promises.
            unsafe { piece.base.write_bytes(0, piece.bytes) };
        }
        Ok(())
    }

    unsafe fn write(&self, _slot: u32, _from: u64, _bytes: Span) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _slots: Range<u32>) -> Result<(), Errno> {
        Ok(())
    }

    fn batch(&self, _depth: u32) -> Box<dyn Batch> {
        Box::new(Null)
    }
}

/// All files are one, which stays empty.
impl BackingStore for Null {
    fn stat(&self, _file: StoreFile) -> Result<Stat, Errno> {
        let identity = Identity { store: 0, id: 0 };
        Ok(Stat { identity, size: 0, links: 1, modified_ns: 0, changed_ns: 0 })
    }

    unsafe fn read(&self, _file: StoreFile, _offset: u64, _into: Span) -> Result<usize, Errno> {
        Ok(0)
    }

    unsafe fn write(&self, _file: StoreFile, _offset: u64, from: Span) -> Result<usize, Errno> {
        Ok(from.bytes)
    }

    fn sync(&self, _file: StoreFile) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _file: StoreFile, _size: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch(&self, _file: StoreFile, _range: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn set_modified(&self, _file: StoreFile, _modified_ns: i64) -> Result<(), Errno> {
        Ok(())
    }

    fn sync_all(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn batch(&self, _depth: u32) -> Box<dyn Batch> {
        Box::new(Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_writes_and_reads_zeros() {
        let mut bytes = [7_u8; 100];
        let buffer = Span::of(&mut bytes[..60]);
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut transfers = unsafe {
            [
                Transfer::write(StoreFile::NONE, 0, vec![buffer]),
                Transfer::read(StoreFile::NONE, 0, vec![buffer]),
            ]
        };
        Null.run(&mut transfers);
        assert_eq!(transfers.map(|transfer| transfer.result()), [Ok(60), Ok(60)]);
        assert_eq!(bytes[..60], [0; 60]);
        assert_eq!(bytes[60..], [7; 40]);
        assert_eq!(Null.sync(StoreFile::NONE), Ok(()));
    }
}
