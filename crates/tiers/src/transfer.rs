//! One piece of I/O and how far it has come.

use libc::iovec;
use rustix::io::Errno;
use std::os::fd::RawFd;

/// The most buffers one system call takes (UIO_MAXIOV); longer transfers take several.
pub const IOVECS_MAX: usize = libc::UIO_MAXIOV as usize;

/// Fruitless answers (EINTR, EAGAIN) in a row after which a transfer fails instead of trying again:
/// far more than signals cause, and few enough that no caller hangs on a descriptor that never works.
const RETRIES_MAX: u32 = 1000;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the buffers.
    Read,
    /// From the buffers into the file.
    Write,
}

/// A read or write of a contiguous range of a file from or to scattered buffers, and its result.
///
/// Can be run again: the buffers are as they were given when a run has finished.
///
/// Implementations of [`IoClient`](crate::IoClient) drive it like this: [`begin`](Self::begin); while
/// not [`is_finished`](Self::is_finished), let the kernel move [`remaining`](Self::remaining) at
/// [`position`](Self::position) and [`settle`](Self::settle) its answer.
pub struct Transfer {
    direction: Direction,
    fd: RawFd,
    offset: u64,
    len: u64,
    buffers: Vec<iovec>,
    /// The first buffer with bytes to move.
    next: usize,
    /// Bytes of that buffer already moved; its iovec is shortened by them meanwhile.
    moved: usize,
    /// Bytes moved in all.
    done: u64,
    retries: u32,
    result: Option<Result<u64, Errno>>,
}

// SAFETY: the pointers are only followed while a client runs the transfer, and whoever made it
// promised that they stay valid until then, on whichever thread that is.
unsafe impl Send for Transfer {}

impl Transfer {
    /// A read of the file from byte `offset` on into the buffers, one after the other.
    ///
    /// Its result is the number of bytes read: fewer than [`len`](Self::len) only at the end of file.
    ///
    /// # Safety
    ///
    /// While the transfer is run, every buffer must be valid for writes. Others may write it at the
    /// same time if, as in shared memory, nobody holds a reference to it.
    pub unsafe fn read(fd: RawFd, offset: u64, buffers: Vec<iovec>) -> Self {
        Self::new(Direction::Read, fd, offset, buffers)
    }

    /// A write of the buffers, one after the other, to the file from byte `offset` on.
    ///
    /// Its result is [`len`](Self::len) or an error, after which any part may have been written.
    ///
    /// # Safety
    ///
    /// While the transfer is run, every buffer must be valid for reads. Others may write it at the
    /// same time if, as in shared memory, nobody holds a reference to it.
    pub unsafe fn write(fd: RawFd, offset: u64, buffers: Vec<iovec>) -> Self {
        Self::new(Direction::Write, fd, offset, buffers)
    }

    fn new(direction: Direction, fd: RawFd, offset: u64, buffers: Vec<iovec>) -> Self {
        let len = buffers.iter().map(|buffer| buffer.iov_len as u64).sum();
        let (next, moved, done, retries, result) = (0, 0, 0, 0, None);
        Self { direction, fd, offset, len, buffers, next, moved, done, retries, result }
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The file.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Lets runs from now on go through another descriptor of the same file.
    pub fn redirect(&mut self, fd: RawFd) {
        self.fd = fd;
    }

    /// The first byte of the file that is concerned.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes to move.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffers, whole only while the transfer is not being run.
    pub fn buffers(&self) -> &[iovec] {
        &self.buffers
    }

    /// Bytes moved by the last run, or why it failed; EINPROGRESS before any run.
    pub fn result(&self) -> Result<u64, Errno> {
        self.result.unwrap_or(Err(Errno::INPROGRESS))
    }

    /// Starts a run: forgets the last one; finishes at once what needs no I/O.
    pub fn begin(&mut self) {
        self.restore();
        (self.next, self.done, self.retries, self.result) = (0, 0, 0, None);
        // To io_uring, an offset of all ones means the descriptor's own.
        if self.offset > i64::MAX as u64 {
            self.finish(Err(Errno::INVAL));
        } else {
            self.skip_moved();
        }
    }

    /// Whether the run has its result.
    pub fn is_finished(&self) -> bool {
        self.result.is_some()
    }

    /// What the next system call moves: buffers with bytes left, at most [`IOVECS_MAX`] of them.
    pub fn remaining(&self) -> &[iovec] {
        let rest = &self.buffers[self.next..];
        &rest[..rest.len().min(IOVECS_MAX)]
    }

    /// The byte of the file at which [`remaining`](Self::remaining) begins.
    pub fn position(&self) -> u64 {
        self.offset + self.done
    }

    /// Takes the answer to a system call on [`remaining`](Self::remaining): bytes moved or an error.
    pub fn settle(&mut self, answer: Result<usize, Errno>) {
        match answer {
            Ok(0) if self.direction == Direction::Write => self.finish(Err(Errno::IO)),
            Ok(0) => self.finish(Ok(self.done)),
            Ok(bytes) => self.advance(bytes),
            Err(Errno::INTR | Errno::AGAIN) if self.retries < RETRIES_MAX => self.retries += 1,
            Err(errno) => self.finish(Err(errno)),
        }
    }

    /// Ends the run with this result.
    pub fn finish(&mut self, result: Result<u64, Errno>) {
        self.restore();
        self.result = Some(result);
    }

    /// The same transfer in two: the first `bytes` and the rest.
    pub(crate) fn split(&self, bytes: u64) -> (Self, Self) {
        let mut left = bytes as usize;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        for buffer in &self.buffers {
            let cut = buffer.iov_len.min(left);
            left -= cut;
            head.push(iovec { iov_len: cut, ..*buffer });
            let iov_base = buffer.iov_base.wrapping_byte_add(cut);
            tail.push(iovec { iov_base, iov_len: buffer.iov_len - cut });
        }
        let middle = self.offset.saturating_add(bytes);
        (
            Self::new(self.direction, self.fd, self.offset, head),
            Self::new(self.direction, self.fd, middle, tail),
        )
    }

    fn advance(&mut self, bytes: usize) {
        self.retries = 0;
        self.done += bytes as u64;
        let mut left = bytes;
        while left > 0 {
            let buffer = &mut self.buffers[self.next];
            let step = left.min(buffer.iov_len);
            buffer.iov_base = buffer.iov_base.wrapping_byte_add(step);
            buffer.iov_len -= step;
            self.moved += step;
            left -= step;
            self.skip_moved();
        }
    }

    /// Goes on to the next buffer with bytes left; without any, the run is finished.
    fn skip_moved(&mut self) {
        while self.buffers.get(self.next).is_some_and(|buffer| buffer.iov_len == 0) {
            self.restore();
            self.next += 1;
        }
        if self.next == self.buffers.len() {
            self.finish(Ok(self.done));
        }
    }

    /// Makes the partly moved buffer whole again.
    fn restore(&mut self) {
        if let Some(buffer) = self.buffers.get_mut(self.next) {
            buffer.iov_base = buffer.iov_base.wrapping_byte_sub(self.moved);
            buffer.iov_len += self.moved;
            self.moved = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer that is never run: its addresses count up from 4096 without gaps.
    fn transfer(direction: Direction, lens: &[usize]) -> Transfer {
        let mut address = 4096;
        let buffers = lens.iter().map(|&iov_len| {
            let iov_base = std::ptr::without_provenance_mut(address);
            address += iov_len;
            iovec { iov_base, iov_len }
        });
        let mut transfer = Transfer::new(direction, 3, 100, buffers.collect());
        transfer.begin();
        transfer
    }

    fn spans(buffers: &[iovec]) -> Vec<(usize, usize)> {
        buffers.iter().map(|b| (b.iov_base.addr(), b.iov_len)).collect()
    }

    #[test]
    fn has_no_result_before_it_is_run() {
        let transfer = transfer(Direction::Read, &[1]);
        assert!(!transfer.is_finished());
        assert_eq!(transfer.result(), Err(Errno::INPROGRESS));
    }

    /// Short answers of every size: each byte is asked for once, in order, and all ends as it began.
    #[test]
    fn continues_after_short_answers_and_can_run_again() {
        let lens = [0, 3, 0, 0, 5, 1, 0];
        for step in 1..=10 {
            let mut transfer = transfer(Direction::Write, &lens);
            let whole = spans(transfer.buffers());
            for _run in 0..2 {
                transfer.begin();
                let mut expected = 0;
                while !transfer.is_finished() {
                    assert_eq!(transfer.position(), 100 + expected as u64);
                    let remaining = spans(transfer.remaining());
                    assert_eq!(remaining[0].0, 4096 + expected);
                    let bytes = remaining.iter().map(|span| span.1).sum::<usize>().min(step);
                    assert!(bytes > 0);
                    expected += bytes;
                    transfer.settle(Ok(bytes));
                }
                assert_eq!(transfer.result(), Ok(9));
                assert_eq!(spans(transfer.buffers()), whole);
            }
        }
    }

    #[test]
    fn an_error_after_a_short_answer_leaves_the_buffers_whole() {
        let mut transfer = transfer(Direction::Write, &[4, 4]);
        let whole = spans(transfer.buffers());
        transfer.settle(Ok(6));
        transfer.settle(Err(Errno::NOSPC));
        assert_eq!(transfer.result(), Err(Errno::NOSPC));
        assert_eq!(spans(transfer.buffers()), whole);
    }

    #[test]
    fn nothing_written_is_an_error_and_nothing_read_the_end() {
        let mut write = transfer(Direction::Write, &[4]);
        write.settle(Ok(0));
        assert_eq!(write.result(), Err(Errno::IO));

        let mut read = transfer(Direction::Read, &[4]);
        read.settle(Ok(3));
        read.settle(Ok(0));
        assert_eq!(read.result(), Ok(3));
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        for errno in [Errno::INTR, Errno::AGAIN] {
            let mut transfer = transfer(Direction::Read, &[4]);
            for _progress in 0..3 {
                for _ in 0..RETRIES_MAX {
                    transfer.settle(Err(errno));
                }
                assert!(!transfer.is_finished());
                transfer.settle(Ok(1));
            }
            for _ in 0..=RETRIES_MAX {
                assert!(!transfer.is_finished());
                transfer.settle(Err(errno));
            }
            assert_eq!(transfer.result(), Err(errno));
        }
    }

    #[test]
    fn no_system_call_gets_too_many_buffers() {
        let mut transfer = transfer(Direction::Write, &[1; 2 * IOVECS_MAX + 1]);
        for expected in [IOVECS_MAX, IOVECS_MAX, 1] {
            assert_eq!(transfer.remaining().len(), expected);
            transfer.settle(Ok(expected));
        }
        assert_eq!(transfer.result(), Ok(2 * IOVECS_MAX as u64 + 1));
    }

    #[test]
    fn splits_at_every_byte() {
        let whole = transfer(Direction::Read, &[3, 0, 2]);
        for at in 0..=5 {
            let (head, tail) = whole.split(at);
            assert_eq!((head.len(), tail.len()), (at, 5 - at));
            assert_eq!((head.offset(), tail.offset()), (100, 100 + at));
            let spans = [spans(head.buffers()), spans(tail.buffers())].concat();
            assert!(spans.into_iter().flat_map(|(at, len)| at..at + len).eq(4096..4101));
        }
    }
}
