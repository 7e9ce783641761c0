//! The batch without a device: for measuring everything above it.

use forebay_device::{Batch, Direction, Errno, StoreFile, Transfer};

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
                    // SAFETY: whoever made the transfer promised that its buffers are valid.
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::Span;

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
