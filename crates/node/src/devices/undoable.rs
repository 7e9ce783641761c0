//! The writes of node managers, as tests undo them to simulate a loss of power (`forebay_pool::undo`).

use forebay_pool::{clock, undo};
use forebay_tiers::{Direction, IoClient, Positional, Transfer};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, RawFd};

/// An I/O client whose writes a test can undo. Without debug assertions it adds nothing.
pub(crate) struct Undoable(Box<dyn IoClient>);

impl Undoable {
    pub fn new(inner: Box<dyn IoClient>) -> Undoable {
        Undoable(inner)
    }

    /// One system call at a time, for what is written rarely.
    pub fn plain() -> Undoable {
        Undoable(Box::new(Positional))
    }
}

impl IoClient for Undoable {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for write in transfers.iter().filter(|transfer| transfer.direction() == Direction::Write) {
            // SAFETY: open for as long as the transfer.
            let fd = unsafe { BorrowedFd::borrow_raw(write.fd()) };
            undo::writing(fd, write.offset(), write.len());
        }
        self.0.run(transfers);
    }

    fn sync(&mut self, fd: RawFd) -> Result<(), Errno> {
        let began = clock::monotonic_ns();
        self.0.sync(fd)?;
        // SAFETY: the caller's, still open.
        undo::synced(unsafe { BorrowedFd::borrow_raw(fd) }, began);
        Ok(())
    }
}
