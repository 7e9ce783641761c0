//! What every batch does, written once; the table at the end names them.
//!
//! One without a device keeps nothing: files stay empty and reads give zeros. All else that the
//! cases ask for, results, batches, buffers and threads, it does like the others.

use forebay_device::{Batch, Direction, Errno, SPANS_MAX, Span, StoreFile, Transfer};
use forebay_placement::Speed;
use forebay_posix::{Positional, store_file};
use forebay_tiers::{FaultScript, Faulty, Null, Throttled, Uring};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// Smaller than most batches below, so that the queue has to be fed.
const QUEUE_DEPTH: u32 = 4;

/// Bytes whose value depends on their position, so that any shift shows.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (seed..seed + len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// Buffers of up to `piece` bytes that cover the slice in order.
fn pieces(bytes: &mut [u8], piece: usize) -> Vec<Span> {
    bytes.chunks_mut(piece).map(Span::of).collect()
}

fn read(file: StoreFile, offset: u64, bytes: &mut [u8], piece: usize) -> Transfer {
    // SAFETY: each test keeps its buffers alive and alone until the run is over.
    unsafe { Transfer::read(file, offset, pieces(bytes, piece)) }
}

fn write(file: StoreFile, offset: u64, bytes: &mut [u8], piece: usize) -> Transfer {
    // SAFETY: as above.
    unsafe { Transfer::write(file, offset, pieces(bytes, piece)) }
}

/// What is behind a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Device {
    /// The file that each transfer names.
    Files,
    /// None: writes go nowhere, and reads give zeros.
    Nothing,
}

/// A client under test.
struct Subject {
    client: Box<dyn Batch>,
    device: Device,
}

impl Subject {
    fn run(&mut self, transfer: Transfer) -> Result<u64, Errno> {
        let mut batch = [transfer];
        self.client.run(&mut batch);
        batch[0].result()
    }

    /// What a file has after `written` was.
    fn kept(&self, written: Vec<u8>) -> Vec<u8> {
        match self.device {
            Device::Files => written,
            Device::Nothing => vec![0; written.len()],
        }
    }

    /// The length of a new file after writes up to `end`.
    fn end(&self, end: u64) -> u64 {
        if self.device == Device::Files { end } else { 0 }
    }

    /// Whether `file` has these bytes at `offset` and no others behind them.
    fn assert_kept(&self, file: &File, offset: u64, written: &[u8]) {
        assert_eq!(file.metadata().unwrap().len(), self.end(offset + written.len() as u64));
        if self.device == Device::Files {
            let mut found = vec![0; written.len()];
            file.read_exact_at(&mut found, offset).unwrap();
            assert!(found == written, "the file has other bytes");
        }
    }
}

/// Writes and reads back through the client, and compares with what the file itself says.
fn check_round_trip(subject: &mut Subject, offset: u64, len: usize, piece: usize) {
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    let mut written = pattern(len, 1);
    assert_eq!(subject.run(write(fd, offset, &mut written, piece)), Ok(len as u64));
    assert!(written == pattern(len, 1), "a write changed its buffers");
    subject.assert_kept(&file, offset, &written);

    let mut back = vec![9; len];
    assert_eq!(subject.run(read(fd, offset, &mut back, piece)), Ok(len as u64));
    assert!(back == subject.kept(written), "other bytes were read");
}

fn round_trip(subject: &mut Subject) {
    for piece in [1, 7, 4096, 1 << 20] {
        check_round_trip(subject, 0, 1000, piece);
    }
    check_round_trip(subject, 12_345, 100_000, 999);
}

fn more_buffers_than_a_system_call_takes(subject: &mut Subject) {
    for count in [SPANS_MAX - 1, SPANS_MAX, SPANS_MAX + 1, 3 * SPANS_MAX + 5] {
        check_round_trip(subject, 3, count * 2, 2);
    }
}

fn huge_transfer(subject: &mut Subject) {
    check_round_trip(subject, 0, 8 << 20, 4096);
}

/// More than the 2 GiB - 4 KiB that the kernel moves at once, from memory that is never touched.
fn more_bytes_than_a_system_call_moves(subject: &mut Subject) {
    const GIB: usize = 1 << 30;
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, unmapped when nothing uses it any more.
    unsafe {
        let base = mmap_anonymous(std::ptr::null_mut(), GIB, ProtFlags::READ, flags).unwrap();
        let buffers = vec![Span { base: base.cast(), bytes: GIB }; 5];
        let result = subject.run(Transfer::write(store_file(&null), 0, buffers));
        munmap(base, GIB).unwrap();
        assert_eq!(result, Ok(5 * GIB as u64));
    }
}

fn sparse_offsets(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    let offsets = [5, 1 << 20, (1 << 33) + 1];
    let mut written = offsets.map(|offset| pattern(5000, offset as usize));
    let mut batch: Vec<_> =
        offsets.iter().zip(&mut written).map(|(&at, bytes)| write(fd, at, bytes, 512)).collect();
    subject.client.run(&mut batch);
    assert!(batch.iter().all(|transfer| transfer.result() == Ok(5000)));

    let mut back = vec![9; 5000];
    for offset in offsets {
        assert_eq!(subject.run(read(fd, offset, &mut back, 4096)), Ok(5000));
        assert!(back == subject.kept(pattern(5000, offset as usize)), "at {offset}");
    }
    assert_eq!(subject.run(read(fd, 1 << 32, &mut back, 4096)), Ok(5000));
    assert!(back.iter().all(|&byte| byte == 0), "a hole is not zero");
}

fn reads_never_end(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    for offset in [0, 1 << 40] {
        let mut back = vec![9; 200];
        assert_eq!(subject.run(read(store_file(&file), offset, &mut back, 64)), Ok(200));
        assert_eq!(back, [0; 200]);
    }
}

fn reads_end_at_the_end_of_file(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    file.write_all_at(&pattern(100, 0), 0).unwrap();
    for (offset, expected) in [(0, 100), (30, 70), (99, 1), (100, 0), (1 << 40, 0)] {
        let mut back = vec![9; 200];
        assert_eq!(subject.run(read(fd, offset, &mut back, 64)), Ok(expected), "at {offset}");
        let (bytes, untouched) = back.split_at(expected as usize);
        assert_eq!(bytes, pattern(bytes.len(), offset as usize));
        assert!(untouched.iter().all(|&byte| byte == 9), "bytes beyond the end were touched");
    }
}

fn failures_do_not_disturb_the_others(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let read_only = File::open("/dev/null").unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let directory = File::open("/").unwrap();
    let fd = store_file(&file);
    let mut bytes = vec![pattern(10_000, 0); 9];
    let mut parts = bytes.iter_mut();
    let mut next = || parts.next().unwrap().as_mut_slice();
    let mut batch = [
        write(fd, 0, next(), 100),
        write(StoreFile::NONE, 0, next(), 100),
        write(fd, 10_000, next(), 100),
        write(StoreFile::new(1 << 20), 0, next(), 100),
        write(store_file(&read_only), 0, next(), 100),
        write(store_file(&full), 0, next(), 100),
        read(store_file(&directory), 0, next(), 100),
        write(fd, u64::MAX, next(), 100),
        write(fd, 20_000, next(), 100),
    ];
    subject.client.run(&mut batch);
    let bad = Err(Errno::BADF);
    let expected = [
        Ok(10_000),
        bad,
        Ok(10_000),
        bad,
        bad,
        Err(Errno::NOSPC),
        Err(Errno::ISDIR),
        Err(Errno::INVAL),
        Ok(10_000),
    ];
    assert_eq!(batch.map(|transfer| transfer.result()), expected);
    let mut found = vec![0; 30_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == pattern(10_000, 0).repeat(3));
    assert_eq!(file.metadata().unwrap().len(), 30_000);
}

fn batches_larger_than_the_queue(subject: &mut Subject) {
    const COUNT: usize = 50 * QUEUE_DEPTH as usize;
    const LEN: usize = 3000;
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    let mut written = pattern(COUNT * LEN, 7);
    let mut back = vec![9; COUNT * LEN];
    for (bytes, direction) in [(&mut written, Direction::Write), (&mut back, Direction::Read)] {
        let parts = bytes.chunks_mut(LEN).enumerate();
        let mut batch: Vec<_> = parts
            .map(|(n, part)| match direction {
                Direction::Write => write(fd, (n * LEN) as u64, part, 1000),
                Direction::Read => read(fd, (n * LEN) as u64, part, 1000),
            })
            .collect();
        subject.client.run(&mut batch);
        let results: Vec<_> = batch.iter().map(Transfer::result).collect();
        assert_eq!(results, [Ok(LEN as u64); COUNT], "{direction:?}");
    }
    assert!(back == subject.kept(pattern(COUNT * LEN, 7)));
}

/// Work is done exactly once, whatever the transfers come to, and may read their buffers.
fn work_beside_transfers(subject: &mut Subject) {
    const LEN: usize = 5000;
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    for count in [0, 1, 2, 3 * QUEUE_DEPTH as usize] {
        file.set_len(0).unwrap();
        let mut bytes = pattern(count * LEN, 3);
        let parts = bytes.chunks_mut(LEN).enumerate();
        let mut batch: Vec<_> =
            parts.map(|(n, part)| write(fd, (n * LEN) as u64, part, 1000)).collect();
        let (mut done, mut sum) = (0, 0);
        subject.client.run_beside(&mut batch, &mut || {
            done += 1;
            sum = bytes.iter().map(|&byte| u64::from(byte)).sum();
        });
        assert_eq!(done, 1, "{count} transfers");
        assert!(batch.iter().all(|transfer| transfer.result() == Ok(LEN as u64)));
        assert_eq!(sum, pattern(count * LEN, 3).iter().map(|&byte| u64::from(byte)).sum::<u64>());
        subject.assert_kept(&file, 0, &pattern(count * LEN, 3));
    }
}

fn nothing_to_do(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let fd = store_file(&file);
    subject.client.run(&mut []);
    assert_eq!(subject.run(write(fd, 50, &mut [], 1)), Ok(0));
    let empty = Span::EMPTY;
    // SAFETY: buffers without bytes.
    let transfer = unsafe { Transfer::read(fd, 50, vec![empty; 2 * SPANS_MAX]) };
    assert_eq!(subject.run(transfer), Ok(0));
    assert_eq!(file.metadata().unwrap().len(), 0);
}

fn empty_buffers_among_full_ones(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(10, 0);
    let empty = Span::EMPTY;
    let mut buffers = vec![empty; SPANS_MAX + 1];
    for piece in pieces(&mut bytes, 3) {
        buffers.extend([piece, empty]);
    }
    // SAFETY: `bytes` outlives the run and is not used meanwhile.
    let transfer = unsafe { Transfer::write(store_file(&file), 0, buffers) };
    assert_eq!(subject.run(transfer), Ok(10));
    subject.assert_kept(&file, 0, &pattern(10, 0));
}

fn a_batch_can_run_again(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(5000, 0);
    let mut batch = [write(store_file(&file), 0, &mut bytes, 2)];
    for _ in 0..3 {
        file.set_len(0).unwrap();
        subject.client.run(&mut batch);
        assert_eq!(batch[0].result(), Ok(5000));
        subject.assert_kept(&file, 0, &pattern(5000, 0));
    }
}

fn sync(subject: &mut Subject) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(100, 0);
    assert_eq!(subject.run(write(store_file(&file), 0, &mut bytes, 100)), Ok(100));
    assert_eq!(subject.client.sync(store_file(&file)), Ok(()));
}

fn syncs_of_no_file_fail(subject: &mut Subject) {
    assert_eq!(subject.client.sync(StoreFile::NONE), Err(Errno::BADF));
    assert_eq!(subject.client.sync(StoreFile::new(1 << 20)), Err(Errno::BADF));
}

/// Signals rain on the thread all the while; its waits are interrupted.
fn signals(subject: &mut Subject) {
    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn count(_signal: i32) {
        ARRIVED.fetch_add(1, SeqCst);
    }
    // SAFETY: the handler only touches an atomic; without SA_RESTART, waits end with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let target = AtomicU64::new(0);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let dry = ARRIVED.load(SeqCst);
            // SAFETY: always succeeds.
            target.store(unsafe { libc::pthread_self() }, SeqCst);
            while ARRIVED.load(SeqCst) == dry {
                thread::yield_now();
            }
            for _ in 0..5 {
                batches_larger_than_the_queue(subject);
            }
        });
        while !worker.is_finished() {
            if target.load(SeqCst) != 0 {
                // SAFETY: a thread that is not joined yet can be sent signals.
                unsafe { libc::pthread_kill(target.load(SeqCst), libc::SIGUSR1) };
            }
            thread::yield_now();
        }
    });
}

/// A client may be made by one thread and used by others, one at a time.
fn moves_between_threads(subject: &mut Subject) {
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| check_round_trip(subject, 0, 1000, 10));
        });
    }
}

/// `None`, and says so past the test harness, where io_uring is forbidden.
fn uring() -> Option<Uring> {
    Uring::new(None, QUEUE_DEPTH)
        .inspect_err(|errno| {
            let text = format!("SKIPPED, NOT TESTED: no io_uring: {errno}\n");
            io::stderr().write_all(text.as_bytes()).unwrap();
        })
        .ok()
}

/// Fast enough for the tests, slow enough to sleep.
fn throttled<C: Batch>(inner: C) -> impl Batch {
    let speed = Speed { read_bandwidth: 20 << 30, write_bandwidth: 10 << 30, latency_ns: 100_000 };
    Throttled::new(inner, speed, Arc::new(AtomicU64::new(0)))
}

fn faulty<C: Batch>(inner: C) -> impl Batch {
    Faulty::new(inner, FaultScript::new())
}

/// `None` where the kernel does not allow the client.
type Client = Option<Box<dyn Batch>>;

/// Makes a module of the cases for each client.
macro_rules! conformance {
    ($($client:ident: $device:ident, $make:expr;)*) => {
        $(mod $client {
            use super::*;

            fn with_subject(case: fn(&mut Subject)) {
                let made: Client = $make;
                if let Some(client) = made {
                    case(&mut Subject { client, device: Device::$device });
                }
            }

            conformance! { @cases
                round_trip
                more_buffers_than_a_system_call_takes
                huge_transfer
                more_bytes_than_a_system_call_moves
                sparse_offsets
                batches_larger_than_the_queue
                work_beside_transfers
                nothing_to_do
                empty_buffers_among_full_ones
                a_batch_can_run_again
                sync
                signals
                moves_between_threads
            }
            conformance! { @$device }
        })*
    };
    (@Files) => {
        conformance! { @cases
            reads_end_at_the_end_of_file
            failures_do_not_disturb_the_others
            syncs_of_no_file_fail
        }
    };
    (@Nothing) => {
        conformance! { @cases
            reads_never_end
        }
    };
    (@cases $($case:ident)*) => {
        $(#[test]
        fn $case() {
            with_subject(super::$case);
        })*
    };
}

conformance! {
    positional: Files, Some(Box::new(Positional::default()));
    uring: Files, super::uring().map(|client| Box::new(client) as _);
    throttled_positional: Files, Some(Box::new(throttled(Positional::default())));
    throttled_uring: Files, super::uring().map(|client| Box::new(throttled(client)) as _);
    faulty_positional: Files, Some(Box::new(faulty(Positional::default())));
    faulty_uring: Files, super::uring().map(|client| Box::new(faulty(client)) as _);
    default: Files, Some(forebay_tiers::open_batch(None, QUEUE_DEPTH));
    null: Nothing, Some(Box::new(Null));
    throttled_null: Nothing, Some(Box::new(throttled(Null)));
}
