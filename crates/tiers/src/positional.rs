//! Transfers one after the other, with preadv and pwritev.

use crate::{Direction, IoClient, Transfer};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::slice;

/// The client that works everywhere; one system call at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positional;

impl IoClient for Positional {
    fn name(&self) -> &'static str {
        "positional"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for transfer in transfers {
            transfer.begin();
            carry_on(transfer);
        }
    }

    fn sync(&mut self, fd: RawFd) -> Result<(), Errno> {
        let fd = borrow(fd)?;
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(fd))
    }
}

/// Carries a begun transfer to its end.
pub(crate) fn carry_on(transfer: &mut Transfer) {
    while !transfer.is_finished() {
        let answer = step(transfer);
        transfer.settle(answer);
    }
}

fn step(transfer: &Transfer) -> Result<usize, Errno> {
    let fd = borrow(transfer.fd())?;
    let position = transfer.position();
    let iovecs = transfer.remaining();
    match transfer.direction() {
        Direction::Write => {
            // SAFETY: IoSlice has the layout of iovec; the buffers are valid for reads.
            let slices =
                unsafe { slice::from_raw_parts(iovecs.as_ptr().cast::<IoSlice>(), iovecs.len()) };
            rustix::io::pwritev(fd, slices, position)
        }
        Direction::Read => {
            let mut iovecs = iovecs.to_vec();
            // SAFETY: IoSliceMut has the layout of iovec; the buffers are valid for writes.
            let slices = unsafe {
                slice::from_raw_parts_mut(iovecs.as_mut_ptr().cast::<IoSliceMut>(), iovecs.len())
            };
            rustix::io::preadv(fd, slices, position)
        }
    }
}

fn borrow<'fd>(fd: RawFd) -> Result<BorrowedFd<'fd>, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: only lent to the system call that follows, which checks it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
