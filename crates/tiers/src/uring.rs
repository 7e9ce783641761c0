//! Transfers through io_uring: many in flight, fed as completions arrive.

use forebay_device::{Batch, Direction, Errno, Span, StoreFile, Transfer, Worked};
use forebay_posix::{FileSlots, Positional, begin, carry_on, locate};
use io_uring::{IoUring, opcode, squeue, types::Fd};
use libc::iovec;
use std::collections::VecDeque;
use std::io;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::sleep;
use std::time::Duration;

const _: () = assert!(size_of::<Span>() == size_of::<iovec>());
const _: () = assert!(offset_of!(Span, base) == offset_of!(iovec, iov_base));
const _: () = assert!(offset_of!(Span, bytes) == offset_of!(iovec, iov_len));

/// The deepest queue: more requests in flight than any device can work on at once.
const DEPTH_MAX: u32 = 4096;

/// Between two looks at a kernel that is short of memory, or at a ring that cannot be waited on.
const PAUSE: Duration = Duration::from_millis(1);

/// A batch of files with an io_uring of its own.
///
/// Nothing is in flight between two calls, so it can be dropped, or move to another thread, at any
/// time. If the kernel ever refuses the ring, this client finishes all work without it.
pub struct Uring {
    ring: IoUring,
    slots: Option<FileSlots>,
    /// The most requests in flight; half the completion queue, which so never overflows.
    depth: usize,
    /// Pushed, but not yet taken by the kernel; oldest first.
    queued: VecDeque<usize>,
    /// Completed in part: to be pushed again.
    unfinished: Vec<usize>,
    broken: bool,
}

impl Uring {
    /// Makes a ring for files and these slots, with up to `queue_depth` requests in flight (at
    /// least 1, at most 4096).
    ///
    /// Fails with the kernel's error, mostly EPERM or ENOSYS, where io_uring is forbidden.
    pub fn new(slots: Option<FileSlots>, queue_depth: u32) -> Result<Self, Errno> {
        let entries = queue_depth.clamp(1, DEPTH_MAX);
        let ring = IoUring::new(entries).map_err(errno)?;
        let depth = entries as usize;
        let (queued, unfinished) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        let mut client = Self { ring, slots, depth, queued, unfinished, broken: false };
        client.try_nop()?;
        Ok(client)
    }

    /// Some sandboxes let a ring be made, but not used.
    fn try_nop(&mut self) -> Result<(), Errno> {
        self.push(0, opcode::Nop::new().build());
        while self.ring.completion().next().is_none() {
            self.enter(1)?;
        }
        Ok(())
    }

    /// Feeds the ring until no transfer is in flight; those that it could not carry out have no
    /// result. The work is done once the first are on their way. Nothing in here may unwind: the
    /// kernel is using the buffers.
    fn feed(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) {
        let mut fresh = 0..transfers.len();
        let mut in_flight = 0;
        let mut work = Some(work);
        let mut panicked = None;
        self.unfinished.clear();
        loop {
            while !self.broken
                && in_flight < self.depth
                && let Some(index) = self.unfinished.pop().or_else(|| fresh.next())
            {
                if !transfers[index].is_finished() {
                    self.push(index, request(&transfers[index], self.slots));
                    in_flight += 1;
                }
            }
            if in_flight == 0 {
                break;
            }
            let wanted = usize::from(work.is_none());
            if self.broken {
                sleep(PAUSE);
            } else if self.enter(wanted).is_err() {
                self.broken = true;
                in_flight -= self.queued.len();
            }
            for completion in self.ring.completion() {
                in_flight -= 1;
                let index = completion.user_data() as usize;
                if complete(&mut transfers[index], completion.result()) {
                    self.unfinished.push(index);
                }
            }
            if let Some(work) = work.take() {
                panicked = catch_unwind(AssertUnwindSafe(work)).err();
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }

    /// Adds a request for transfer `index`; never more than `depth` are in flight, so there is
    /// room.
    fn push(&mut self, index: usize, request: squeue::Entry) {
        // SAFETY: `feed` returns only when the kernel is done with the transfer, which stays in
        // place.
        let pushed = unsafe { self.ring.submission().push(&request.user_data(index as u64)) };
        debug_assert!(pushed.is_ok(), "in flight are at most as many as the queue has entries");
        self.queued.push_back(index);
    }

    /// Hands the queue to the kernel and waits for so many completions; may return early.
    fn enter(&mut self, wanted: usize) -> Result<(), Errno> {
        let result = self.ring.submit_and_wait(wanted).map_err(errno);
        let left = self.ring.submission().len();
        self.queued.drain(..self.queued.len() - left);
        match result {
            Ok(_) | Err(Errno::INTR | Errno::BUSY) => Ok(()),
            Err(Errno::AGAIN) => {
                sleep(PAUSE);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

impl Batch for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        self.run_beside(transfers, &mut || {});
    }

    fn run_beside(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) -> Worked {
        transfers.iter_mut().for_each(|transfer| begin(transfer, self.slots));
        // With nothing else in flight a ring has no advantage, and a file system that cannot write
        // without waiting costs it a thread.
        let is_fed =
            !self.broken && transfers.iter().filter(|each| !each.is_finished()).count() > 1;
        if is_fed {
            self.feed(transfers, work);
        } else {
            work();
        }
        transfers.iter_mut().for_each(|transfer| carry_on(transfer, self.slots));
        if is_fed { Worked::Beside } else { Worked::Before }
    }

    /// A plain system call: with nothing else in flight, a ring has no advantage.
    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        Positional::default().sync(file)
    }
}

fn request(transfer: &Transfer, slots: Option<FileSlots>) -> squeue::Entry {
    let (file, position) = locate(transfer, slots);
    let fd = Fd(file.number());
    let spans = transfer.remaining();
    let (first, count) = (spans.as_ptr().cast::<iovec>(), spans.len() as u32);
    match transfer.direction() {
        Direction::Read => opcode::Readv::new(fd, first, count).offset(position).build(),
        Direction::Write => opcode::Writev::new(fd, first, count).offset(position).build(),
    }
}

/// Gives the transfer the kernel's answer; whether the ring should carry on with it.
///
/// Nothing here is cancelled: ECANCELED says that the kernel found no worker thread for a request
/// that has to wait, because of a signal or a limit of threads. It is left, untouched, to be done
/// without.
fn complete(transfer: &mut Transfer, result: i32) -> bool {
    let answer = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
    if answer == Err(Errno::CANCELED) {
        return false;
    }
    transfer.complete(answer);
    !transfer.is_finished()
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::SPANS_MAX;
    use forebay_posix::store_file;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::{mem, ptr, slice, thread};

    const LEN: usize = 1000;

    /// `None`, and says so past the test harness, where io_uring is forbidden.
    fn client() -> Option<Uring> {
        Uring::new(None, 3)
            .inspect_err(|errno| {
                let text = format!("SKIPPED, NOT TESTED: no io_uring: {errno}\n");
                io::stderr().write_all(text.as_bytes()).unwrap();
            })
            .ok()
    }

    fn write_all(client: &mut Uring, file: &File, byte: u8) {
        let mut bytes = vec![byte; 20 * LEN];
        let transfers = bytes.chunks_mut(LEN).enumerate().map(|(n, part)| {
            let buffer = Span::of(part);
            // SAFETY: `bytes` outlives the run and is not used meanwhile.
            unsafe { Transfer::write(store_file(file), (n * LEN) as u64, vec![buffer]) }
        });
        let mut batch: Vec<_> = transfers.collect();
        client.run(&mut batch);
        assert!(batch.iter().all(|transfer| transfer.result() == Ok(LEN as u64)));
        let mut found = vec![0; 20 * LEN];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
    }

    #[test]
    fn carries_on_in_the_ring_what_was_completed_in_part() {
        let Some(mut client) = client() else { return };
        let file = tempfile::tempfile().unwrap();
        let mut byte = 1_u8;
        let buffer = Span { base: ptr::from_mut(&mut byte), bytes: 1 };
        let buffers = vec![buffer; 2 * SPANS_MAX + 1];
        // SAFETY: `byte` outlives the feed and is not used meanwhile.
        let mut transfer = unsafe { Transfer::write(store_file(&file), 0, buffers) };
        transfer.begin();
        client.feed(slice::from_mut(&mut transfer), &mut || {});
        assert_eq!(transfer.result(), Ok(transfer.len()));
    }

    /// The kernel may not use buffers any more when their owner unwinds.
    #[test]
    fn work_that_panics_ends_when_no_transfer_is_under_way() {
        let Some(mut client) = client() else { return };
        let (input, mut output) = io::pipe().unwrap();
        let mut bytes = [0_u8; 2];
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut batch = bytes.each_mut().map(|byte| unsafe {
            let buffer = Span { base: ptr::from_mut(byte), bytes: 1 };
            Transfer::read(store_file(&input), 0, vec![buffer])
        });
        let run = || {
            client.run_beside(&mut batch, &mut || {
                output.write_all(b"ab").unwrap();
                panic!("on purpose");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert!(batch.iter().all(|transfer| transfer.result() == Ok(1)));
    }

    #[test]
    fn a_request_without_a_worker_thread_is_not_an_error() {
        let buffer = Span { base: ptr::null_mut(), bytes: 1 };
        // SAFETY: never run.
        let mut transfer = unsafe { Transfer::write(StoreFile::NONE, 0, vec![buffer]) };
        transfer.begin();
        assert!(!complete(&mut transfer, -libc::ECANCELED), "asking again could go on for ever");
        assert!(!transfer.is_finished());
        assert!(complete(&mut transfer, -libc::EINTR));
        assert!(!complete(&mut transfer, 1));
        assert_eq!(transfer.result(), Ok(1));
    }

    #[test]
    fn an_interrupted_wait_does_not_break_the_ring() {
        extern "C" fn ignore(_signal: i32) {}
        let Some(mut client) = client() else { return };
        let (input, mut output) = io::pipe().unwrap();
        let mut bytes = [0_u8; 2];
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut batch = bytes.each_mut().map(|byte| unsafe {
            let buffer = Span { base: ptr::from_mut(byte), bytes: 1 };
            Transfer::read(store_file(&input), 0, vec![buffer])
        });
        let thread = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: always succeeds.
                thread.store(unsafe { libc::pthread_self() }, Relaxed);
                client.run(&mut batch);
            });
            // SAFETY: the handler does nothing; without SA_RESTART, waits end with EINTR. The
            // thread lives as long as the pipe is empty.
            unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
                assert_eq!(libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()), 0);
                while thread.load(Relaxed) == 0 {}
                for _ in 0..20 {
                    sleep(PAUSE);
                    libc::pthread_kill(thread.load(Relaxed), libc::SIGUSR2);
                }
            }
            output.write_all(&[7; 2]).unwrap();
        });
        assert_eq!(batch.map(|transfer| transfer.result()), [Ok(1); 2]);
        assert_eq!(bytes, [7; 2]);
        assert!(!client.broken);
    }

    #[test]
    fn goes_on_without_a_ring_that_broke() {
        let Some(mut client) = client() else { return };
        let file = tempfile::tempfile().unwrap();
        write_all(&mut client, &file, 1);
        assert!(!client.broken);

        break_ring(client.ring.as_raw_fd());
        for byte in 2..5 {
            write_all(&mut client, &file, byte);
            assert!(client.broken);
        }
    }

    /// Pipes tell when the requests are in flight, and keep one there while the ring breaks.
    #[test]
    fn waits_for_what_is_in_flight_when_the_ring_breaks() {
        let Some(mut client) = client() else { return };
        let file = tempfile::tempfile().unwrap();
        let (mut started, start) = io::pipe().unwrap();
        let (early, mut complete_early) = io::pipe().unwrap();
        let (late, mut complete_late) = io::pipe().unwrap();
        let ring = client.ring.as_raw_fd();
        let mut bytes = [1_u8, 0, 0, 4];
        let buffers =
            bytes.each_mut().map(|byte| vec![Span { base: ptr::from_mut(byte), bytes: 1 }]);
        let [first, second, third, fourth] = buffers;
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut batch = unsafe {
            [
                Transfer::write(store_file(&start), 0, first),
                Transfer::read(store_file(&early), 0, second),
                Transfer::read(store_file(&late), 0, third),
                Transfer::write(store_file(&file), 0, fourth),
            ]
        };
        thread::scope(|scope| {
            let run = scope.spawn(|| client.run(&mut batch));
            started.read_exact(&mut [0]).unwrap();
            break_ring(ring);
            complete_early.write_all(&[2]).unwrap();
            sleep(10 * PAUSE);
            assert!(!run.is_finished(), "the kernel still has a buffer");
            complete_late.write_all(&[3]).unwrap();
        });
        assert!(client.broken);
        assert_eq!(batch.map(|transfer| transfer.result()), [Ok(1); 4]);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(file.metadata().unwrap().len(), 1);
    }

    /// Lets the ring's descriptor lead to something that is no ring.
    fn break_ring(ring: RawFd) {
        let null = File::open("/dev/null").unwrap();
        // SAFETY: the descriptor stays open, so closing it later is right.
        assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), ring) }, ring);
    }

    #[test]
    fn any_depth_is_made_to_fit() {
        for depth in [0, 1, 5, DEPTH_MAX, u32::MAX] {
            if let Ok(mut client) = Uring::new(None, depth) {
                assert!((1..=DEPTH_MAX as usize).contains(&client.depth));
                write_all(&mut client, &tempfile::tempfile().unwrap(), 1);
            }
        }
    }
}
