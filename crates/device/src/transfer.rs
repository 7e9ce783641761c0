//! One piece of I/O and how far it has come.

use crate::{Span, Target};
use rustix::io::Errno;

/// The most buffers that are moved at once, as many as a system call takes (UIO_MAXIOV); longer
/// transfers take several.
pub const SPANS_MAX: usize = 1024;

/// Fruitless answers (EINTR, EAGAIN) in a row after which a transfer fails instead of trying again:
/// far more than signals cause, and few enough that no caller hangs on a device that never works.
const RETRIES_MAX: u32 = 1000;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device into the buffers.
    Read,
    /// From the buffers to the device.
    Write,
}

/// A read or write of a contiguous range of a [`Target`] from or to scattered buffers, and its
/// result.
///
/// Can be run again: the buffers are as they were given when a run has finished.
///
/// Implementations of [`Batch`](crate::Batch) drive it like this: [`begin`](Self::begin); while not
/// [`is_finished`](Self::is_finished), move [`remaining`](Self::remaining) at
/// [`position`](Self::position) and [`complete`](Self::complete) the answer.
pub struct Transfer {
    direction: Direction,
    target: Target,
    offset: u64,
    len: u64,
    buffers: Vec<Span>,
    /// The first buffer with bytes to move.
    next: usize,
    /// Bytes of that buffer already moved; which is shorter by them meanwhile.
    moved: usize,
    /// Bytes moved in all.
    done: u64,
    retries: u32,
    result: Option<Result<u64, Errno>>,
}

// SAFETY: the pointers are only followed while the transfer is run, and its maker promised that
// they stay valid until then, on whichever thread that is.
unsafe impl Send for Transfer {}

impl Transfer {
    /// A read of the target from byte `offset` on into the buffers, one after the other.
    ///
    /// Its result is the number of bytes read: fewer than [`len`](Self::len) only at the end of a
    /// file.
    ///
    /// # Safety
    ///
    /// While the transfer is run, every buffer must be valid for writes. Others may write it at the
    /// same time if, as in shared memory, no thread holds a reference to it.
    pub unsafe fn read(target: impl Into<Target>, offset: u64, buffers: Vec<Span>) -> Self {
        Self::new(Direction::Read, target.into(), offset, buffers)
    }

    /// A write of the buffers, one after the other, to the target from byte `offset` on.
    ///
    /// Its result is [`len`](Self::len) or an error, after which any part may have been written.
    ///
    /// # Safety
    ///
    /// While the transfer is run, every buffer must be valid for reads. Others may write it at the
    /// same time if, as in shared memory, no thread holds a reference to it.
    pub unsafe fn write(target: impl Into<Target>, offset: u64, buffers: Vec<Span>) -> Self {
        Self::new(Direction::Write, target.into(), offset, buffers)
    }

    fn new(direction: Direction, target: Target, offset: u64, buffers: Vec<Span>) -> Self {
        let len = buffers.iter().map(|buffer| buffer.bytes as u64).sum();
        let (next, moved, done, retries, result) = (0, 0, 0, 0, None);
        Self { direction, target, offset, len, buffers, next, moved, done, retries, result }
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// What is read or written.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Lets runs from now on go another way to the same bytes.
    pub fn redirect(&mut self, target: impl Into<Target>) {
        self.target = target.into();
    }

    /// The first byte of the target that is concerned.
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
    pub fn buffers(&self) -> &[Span] {
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
        // To io_uring, an offset of all ones means that of the open file.
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

    /// What is to be moved next: buffers with bytes left, at most [`SPANS_MAX`] of them.
    pub fn remaining(&self) -> &[Span] {
        let rest = &self.buffers[self.next..];
        &rest[..rest.len().min(SPANS_MAX)]
    }

    /// The byte of the target at which [`remaining`](Self::remaining) begins.
    pub fn position(&self) -> u64 {
        self.offset + self.done
    }

    /// Takes what became of [`remaining`](Self::remaining): bytes moved or an error.
    pub fn complete(&mut self, answer: Result<usize, Errno>) {
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
    pub fn split(&self, bytes: u64) -> (Self, Self) {
        let mut left = bytes as usize;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        for buffer in &self.buffers {
            let cut = buffer.bytes.min(left);
            left -= cut;
            head.push(Span { bytes: cut, ..*buffer });
            let base = buffer.base.wrapping_add(cut);
            tail.push(Span { base, bytes: buffer.bytes - cut });
        }
        let middle = self.offset.saturating_add(bytes);
        (
            Self::new(self.direction, self.target, self.offset, head),
            Self::new(self.direction, self.target, middle, tail),
        )
    }

    fn advance(&mut self, bytes: usize) {
        self.retries = 0;
        self.done += bytes as u64;
        let mut left = bytes;
        while left > 0 {
            let buffer = &mut self.buffers[self.next];
            let step = left.min(buffer.bytes);
            buffer.base = buffer.base.wrapping_add(step);
            buffer.bytes -= step;
            self.moved += step;
            left -= step;
            self.skip_moved();
        }
    }

    /// Goes on to the next buffer with bytes left; without any, the run is finished.
    fn skip_moved(&mut self) {
        while self.buffers.get(self.next).is_some_and(|buffer| buffer.bytes == 0) {
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
            buffer.base = buffer.base.wrapping_sub(self.moved);
            buffer.bytes += self.moved;
            self.moved = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreFile;

    const FILE: Target = Target::File(StoreFile::new(3));

    /// A transfer that is never run: its addresses count up from 4096 without gaps.
    fn transfer(direction: Direction, lens: &[usize]) -> Transfer {
        let mut address = 4096;
        let buffers = lens.iter().map(|&bytes| {
            let base = std::ptr::without_provenance_mut(address);
            address += bytes;
            Span { base, bytes }
        });
        let mut transfer = Transfer::new(direction, FILE, 100, buffers.collect());
        transfer.begin();
        transfer
    }

    fn spans(buffers: &[Span]) -> Vec<(usize, usize)> {
        buffers.iter().map(|b| (b.base.addr(), b.bytes)).collect()
    }

    #[test]
    fn has_no_result_before_it_is_run() {
        let transfer = transfer(Direction::Read, &[1]);
        assert!(!transfer.is_finished());
        assert_eq!(transfer.result(), Err(Errno::INPROGRESS));
    }

    /// Short answers of every size: each byte is asked for once, in order, and all ends as it
    /// began.
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
                    transfer.complete(Ok(bytes));
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
        transfer.complete(Ok(6));
        transfer.complete(Err(Errno::NOSPC));
        assert_eq!(transfer.result(), Err(Errno::NOSPC));
        assert_eq!(spans(transfer.buffers()), whole);
    }

    #[test]
    fn nothing_written_is_an_error_and_nothing_read_the_end() {
        let mut write = transfer(Direction::Write, &[4]);
        write.complete(Ok(0));
        assert_eq!(write.result(), Err(Errno::IO));

        let mut read = transfer(Direction::Read, &[4]);
        read.complete(Ok(3));
        read.complete(Ok(0));
        assert_eq!(read.result(), Ok(3));
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        for errno in [Errno::INTR, Errno::AGAIN] {
            let mut transfer = transfer(Direction::Read, &[4]);
            for _progress in 0..3 {
                for _ in 0..RETRIES_MAX {
                    transfer.complete(Err(errno));
                }
                assert!(!transfer.is_finished());
                transfer.complete(Ok(1));
            }
            for _ in 0..=RETRIES_MAX {
                assert!(!transfer.is_finished());
                transfer.complete(Err(errno));
            }
            assert_eq!(transfer.result(), Err(errno));
        }
    }

    #[test]
    fn no_system_call_gets_too_many_buffers() {
        let mut transfer = transfer(Direction::Write, &[1; 2 * SPANS_MAX + 1]);
        for expected in [SPANS_MAX, SPANS_MAX, 1] {
            assert_eq!(transfer.remaining().len(), expected);
            transfer.complete(Ok(expected));
        }
        assert_eq!(transfer.result(), Ok(2 * SPANS_MAX as u64 + 1));
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
