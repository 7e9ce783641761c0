//! The client without a device: for measuring everything above it.

use crate::{Direction, IoClient, Transfer};
use rustix::io::Errno;
use std::os::fd::RawFd;

/// Accepts every write and reads zeros without end; looks at no descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl IoClient for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for transfer in transfers {
            transfer.begin();
            if transfer.direction() == Direction::Read {
                for buffer in transfer.buffers() {
                    // SAFETY: whoever made the transfer promised that its buffers are valid.
                    unsafe { buffer.iov_base.cast::<u8>().write_bytes(0, buffer.iov_len) };
                }
            }
            transfer.finish(Ok(transfer.len()));
        }
    }

    fn sync(&mut self, _fd: RawFd) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_writes_and_reads_zeros() {
        let mut bytes = [7_u8; 100];
        let buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 60 };
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut transfers =
            unsafe { [Transfer::write(-1, 0, vec![buffer]), Transfer::read(-1, 0, vec![buffer])] };
        Null.run(&mut transfers);
        assert_eq!(transfers.map(|transfer| transfer.result()), [Ok(60), Ok(60)]);
        assert_eq!(bytes[..60], [0; 60]);
        assert_eq!(bytes[60..], [7; 40]);
        assert_eq!(Null.sync(-1), Ok(()));
    }
}
