//! What every I/O client does, written once; the table at the end names the clients.

use forebay_placement::Speed;
use forebay_tiers::{
    Direction, FaultScript, Faulty, IOVECS_MAX, IoClient, Positional, Throttled, Transfer, Uring,
};
use libc::iovec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
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
fn pieces(bytes: &mut [u8], piece: usize) -> Vec<iovec> {
    bytes
        .chunks_mut(piece)
        .map(|chunk| iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() })
        .collect()
}

fn read(fd: RawFd, offset: u64, bytes: &mut [u8], piece: usize) -> Transfer {
    // SAFETY: each test keeps its buffers alive and alone until the run is over.
    unsafe { Transfer::read(fd, offset, pieces(bytes, piece)) }
}

fn write(fd: RawFd, offset: u64, bytes: &mut [u8], piece: usize) -> Transfer {
    // SAFETY: as above.
    unsafe { Transfer::write(fd, offset, pieces(bytes, piece)) }
}

fn run(client: &mut dyn IoClient, transfer: Transfer) -> Result<u64, Errno> {
    let mut batch = [transfer];
    client.run(&mut batch);
    batch[0].result()
}

/// Writes and reads back through `client`, and compares with what the file itself says.
fn check_round_trip(client: &mut dyn IoClient, offset: u64, len: usize, piece: usize) {
    let file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    let mut written = pattern(len, 1);
    let expected = written.clone();
    assert_eq!(run(client, write(fd, offset, &mut written, piece)), Ok(len as u64));
    assert_eq!(file.metadata().unwrap().len(), offset + len as u64);

    let mut found = vec![0; len];
    file.read_exact_at(&mut found, offset).unwrap();
    assert!(found == expected, "the file has other bytes");

    let mut back = vec![0; len];
    assert_eq!(run(client, read(fd, offset, &mut back, piece)), Ok(len as u64));
    assert!(back == expected, "other bytes were read");
}

fn round_trip(client: &mut dyn IoClient) {
    for piece in [1, 7, 4096, 1 << 20] {
        check_round_trip(client, 0, 1000, piece);
    }
    check_round_trip(client, 12_345, 100_000, 999);
}

fn more_buffers_than_a_system_call_takes(client: &mut dyn IoClient) {
    for count in [IOVECS_MAX - 1, IOVECS_MAX, IOVECS_MAX + 1, 3 * IOVECS_MAX + 5] {
        check_round_trip(client, 3, count * 2, 2);
    }
}

fn huge_transfer(client: &mut dyn IoClient) {
    check_round_trip(client, 0, 8 << 20, 4096);
}

/// More than the 2 GiB - 4 KiB that the kernel moves at once, from memory that is never touched.
fn more_bytes_than_a_system_call_moves(client: &mut dyn IoClient) {
    const GIB: usize = 1 << 30;
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, unmapped when nothing uses it any more.
    unsafe {
        let iov_base = mmap_anonymous(std::ptr::null_mut(), GIB, ProtFlags::READ, flags).unwrap();
        let buffers = vec![iovec { iov_base, iov_len: GIB }; 5];
        let result = run(client, Transfer::write(null.as_raw_fd(), 0, buffers));
        munmap(iov_base, GIB).unwrap();
        assert_eq!(result, Ok(5 * GIB as u64));
    }
}

fn sparse_offsets(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    let offsets = [5, 1 << 20, (1 << 33) + 1];
    let mut written = offsets.map(|offset| pattern(5000, offset as usize));
    let mut batch: Vec<_> =
        offsets.iter().zip(&mut written).map(|(&at, bytes)| write(fd, at, bytes, 512)).collect();
    client.run(&mut batch);
    assert!(batch.iter().all(|transfer| transfer.result() == Ok(5000)));

    let mut back = vec![9; 5000];
    for offset in offsets {
        assert_eq!(run(client, read(fd, offset, &mut back, 4096)), Ok(5000));
        assert!(back == pattern(5000, offset as usize), "at {offset}");
    }
    assert_eq!(run(client, read(fd, 1 << 32, &mut back, 4096)), Ok(5000));
    assert!(back.iter().all(|&byte| byte == 0), "a hole is not zero");
}

fn reads_end_at_the_end_of_file(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    file.write_all_at(&pattern(100, 0), 0).unwrap();
    for (offset, expected) in [(0, 100), (30, 70), (99, 1), (100, 0), (1 << 40, 0)] {
        let mut back = vec![9; 200];
        assert_eq!(run(client, read(fd, offset, &mut back, 64)), Ok(expected), "at {offset}");
        let (bytes, untouched) = back.split_at(expected as usize);
        assert_eq!(bytes, pattern(bytes.len(), offset as usize));
        assert!(untouched.iter().all(|&byte| byte == 9), "bytes beyond the end were touched");
    }
}

fn failures_do_not_disturb_the_others(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let read_only = File::open("/dev/null").unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let directory = File::open("/").unwrap();
    let fd = file.as_raw_fd();
    let mut bytes = vec![pattern(10_000, 0); 9];
    let mut parts = bytes.iter_mut();
    let mut next = || parts.next().unwrap().as_mut_slice();
    let mut batch = [
        write(fd, 0, next(), 100),
        write(-1, 0, next(), 100),
        write(fd, 10_000, next(), 100),
        write(1 << 20, 0, next(), 100),
        write(read_only.as_raw_fd(), 0, next(), 100),
        write(full.as_raw_fd(), 0, next(), 100),
        read(directory.as_raw_fd(), 0, next(), 100),
        write(fd, u64::MAX, next(), 100),
        write(fd, 20_000, next(), 100),
    ];
    client.run(&mut batch);
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

fn batches_larger_than_the_queue(client: &mut dyn IoClient) {
    const COUNT: usize = 50 * QUEUE_DEPTH as usize;
    const LEN: usize = 3000;
    let file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    let mut written = pattern(COUNT * LEN, 7);
    let mut back = vec![0; COUNT * LEN];
    for (bytes, direction) in [(&mut written, Direction::Write), (&mut back, Direction::Read)] {
        let parts = bytes.chunks_mut(LEN).enumerate();
        let mut batch: Vec<_> = parts
            .map(|(n, part)| match direction {
                Direction::Write => write(fd, (n * LEN) as u64, part, 1000),
                Direction::Read => read(fd, (n * LEN) as u64, part, 1000),
            })
            .collect();
        client.run(&mut batch);
        let results: Vec<_> = batch.iter().map(Transfer::result).collect();
        assert_eq!(results, [Ok(LEN as u64); COUNT], "{direction:?}");
    }
    assert!(back == pattern(COUNT * LEN, 7));
}

fn nothing_to_do(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let fd = file.as_raw_fd();
    client.run(&mut []);
    assert_eq!(run(client, write(fd, 50, &mut [], 1)), Ok(0));
    let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    // SAFETY: buffers without bytes.
    let transfer = unsafe { Transfer::read(fd, 50, vec![empty; 2 * IOVECS_MAX]) };
    assert_eq!(run(client, transfer), Ok(0));
    assert_eq!(file.metadata().unwrap().len(), 0);
}

fn empty_buffers_among_full_ones(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(10, 0);
    let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut buffers = vec![empty; IOVECS_MAX + 1];
    for piece in pieces(&mut bytes, 3) {
        buffers.extend([piece, empty]);
    }
    // SAFETY: `bytes` outlives the run and is not used meanwhile.
    let transfer = unsafe { Transfer::write(file.as_raw_fd(), 0, buffers) };
    assert_eq!(run(client, transfer), Ok(10));
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found[..], pattern(10, 0));
}

fn a_batch_can_run_again(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(5000, 0);
    let mut batch = [write(file.as_raw_fd(), 0, &mut bytes, 2)];
    for _ in 0..3 {
        file.set_len(0).unwrap();
        client.run(&mut batch);
        assert_eq!(batch[0].result(), Ok(5000));
        assert_eq!(file.metadata().unwrap().len(), 5000);
    }
}

fn sync(client: &mut dyn IoClient) {
    let file = tempfile::tempfile().unwrap();
    let mut bytes = pattern(100, 0);
    assert_eq!(run(client, write(file.as_raw_fd(), 0, &mut bytes, 100)), Ok(100));
    assert_eq!(client.sync(file.as_raw_fd()), Ok(()));
    assert_eq!(client.sync(-1), Err(Errno::BADF));
    assert_eq!(client.sync(1 << 20), Err(Errno::BADF));
}

/// Signals rain on the thread all the while; its waits are interrupted.
fn signals(client: &mut dyn IoClient) {
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
                batches_larger_than_the_queue(client);
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
fn moves_between_threads(client: &mut dyn IoClient) {
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| check_round_trip(client, 0, 1000, 10));
        });
    }
}

/// `None`, and says so past the test harness, where io_uring is forbidden.
fn uring() -> Option<Uring> {
    Uring::new(QUEUE_DEPTH)
        .inspect_err(|errno| {
            let text = format!("SKIPPED, NOT TESTED: no io_uring: {errno}\n");
            io::stderr().write_all(text.as_bytes()).unwrap();
        })
        .ok()
}

/// Fast enough for the tests, slow enough to sleep.
fn throttled<C: IoClient>(inner: C) -> impl IoClient {
    let speed = Speed { read_bandwidth: 20 << 30, write_bandwidth: 10 << 30, latency_ns: 100_000 };
    Throttled::new(inner, speed, Arc::new(AtomicU64::new(0)))
}

fn faulty<C: IoClient>(inner: C) -> impl IoClient {
    Faulty::new(inner, FaultScript::new())
}

type Client = Option<Box<dyn IoClient>>;

/// Makes a module of the cases for each client.
macro_rules! conformance {
    ($($client:ident: $make:expr;)*) => {
        $(mod $client {
            use super::*;

            fn with_client(case: fn(&mut dyn IoClient)) {
                let made: Client = $make;
                if let Some(mut client) = made {
                    case(&mut *client);
                }
            }

            conformance! { @cases
                round_trip
                more_buffers_than_a_system_call_takes
                huge_transfer
                more_bytes_than_a_system_call_moves
                sparse_offsets
                reads_end_at_the_end_of_file
                failures_do_not_disturb_the_others
                batches_larger_than_the_queue
                nothing_to_do
                empty_buffers_among_full_ones
                a_batch_can_run_again
                sync
                signals
                moves_between_threads
            }
        })*
    };
    (@cases $($case:ident)*) => {
        $(#[test]
        fn $case() {
            with_client(super::$case);
        })*
    };
}

conformance! {
    positional: Some(Box::new(Positional));
    uring: super::uring().map(|client| Box::new(client) as _);
    throttled_positional: Some(Box::new(throttled(Positional)));
    throttled_uring: super::uring().map(|client| Box::new(throttled(client)) as _);
    faulty_positional: Some(Box::new(faulty(Positional)));
    faulty_uring: super::uring().map(|client| Box::new(faulty(client)) as _);
    default: Some(forebay_tiers::open_client(QUEUE_DEPTH));
}
