//! Each fault of a script hits what it should, does what it says, and nothing else.

use forebay_device::{Batch, Errno, Span, StoreFile, Transfer};
use forebay_posix::{Positional, store_file};
use forebay_tiers::{Fault, FaultScript, Faulty, Operation, Rule, When};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LEN: usize = 10;

struct Bench {
    script: FaultScript,
    client: Faulty<Positional>,
    file: File,
}

impl Bench {
    fn new(operation: Operation, when: When, fault: Fault) -> Self {
        let script = FaultScript::new();
        script.add(Rule::new(operation, when, fault));
        let client = Faulty::new(Positional::default(), script.clone());
        Self { script, client, file: tempfile::tempfile().unwrap() }
    }

    /// Writes `count` pieces of 10 bytes in one batch; the n-th consists of the byte n + 1.
    fn write(&mut self, count: usize) -> Vec<Result<u64, Errno>> {
        let mut pieces: Vec<_> = (1..=count).map(|n| [n as u8; LEN]).collect();
        let transfers = pieces.iter_mut().enumerate().map(|(n, piece)| {
            let buffer = Span::of(piece);
            // SAFETY: `pieces` outlives the run and is not used meanwhile.
            unsafe { Transfer::write(store_file(&self.file), (n * LEN) as u64, vec![buffer]) }
        });
        let mut batch: Vec<_> = transfers.collect();
        self.client.run(&mut batch);
        batch.iter().map(Transfer::result).collect()
    }

    /// One read of 10 bytes; what arrived in a buffer of nines.
    fn read(&mut self) -> (Result<u64, Errno>, [u8; LEN]) {
        let mut bytes = [9; LEN];
        let buffer = Span::of(&mut bytes);
        // SAFETY: `bytes` outlives the run and is not used meanwhile.
        let mut batch = [unsafe { Transfer::read(store_file(&self.file), 0, vec![buffer]) }];
        self.client.run(&mut batch);
        (batch[0].result(), bytes)
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.file.metadata().unwrap().len() as usize];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}

const DONE: Result<u64, Errno> = Ok(LEN as u64);

#[test]
fn the_next_writes_fail_and_then_work_again() {
    let failed = Err(Errno::NOSPC);
    let mut bench = Bench::new(Operation::Write, When::Next(3), Fault::Fail(Errno::NOSPC));
    assert_eq!(bench.write(2), [failed, failed]);
    assert_eq!(bench.content(), []);
    assert_eq!(bench.write(3), [failed, DONE, DONE]);
    assert_eq!(bench.script.hits(), 3);
}

#[test]
fn every_nth_write_fails_across_batches() {
    let failed = Err(Errno::IO);
    let mut bench = Bench::new(Operation::Write, When::Every(3), Fault::Fail(Errno::IO));
    assert_eq!(bench.write(4), [DONE, DONE, failed, DONE]);
    assert_eq!(bench.write(2), [DONE, failed]);
    let mut never = Bench::new(Operation::Write, When::Every(0), Fault::Fail(Errno::IO));
    assert_eq!(never.write(2), [DONE, DONE]);
}

#[test]
fn fails_while_a_flag_is_set() {
    let flag = Arc::new(AtomicBool::new(false));
    let mut bench =
        Bench::new(Operation::Write, When::While(Arc::clone(&flag)), Fault::Fail(Errno::STALE));
    for set in [false, true, true, false] {
        flag.store(set, SeqCst);
        assert_eq!(bench.write(1), [if set { Err(Errno::STALE) } else { DONE }]);
    }
}

#[test]
fn only_the_named_operation_is_hit() {
    let mut bench = Bench::new(Operation::Read, When::Next(1), Fault::Fail(Errno::IO));
    assert_eq!(bench.write(1), [DONE]);
    assert_eq!(bench.client.sync(store_file(&bench.file)), Ok(()));
    assert_eq!(bench.read().0, Err(Errno::IO));
    assert_eq!(bench.read(), (DONE, [1; LEN]));
}

#[test]
fn a_torn_write_leaves_its_first_half() {
    let mut bench = Bench::new(Operation::Write, When::Next(1), Fault::Tear(Errno::IO));
    assert_eq!(bench.write(1), [Err(Errno::IO)]);
    assert_eq!(bench.content(), [1; LEN / 2]);
}

#[test]
fn a_short_transfer_is_completed() {
    let mut bench = Bench::new(Operation::Write, When::Every(2), Fault::Short);
    assert_eq!(bench.write(3), [DONE, DONE, DONE]);
    assert_eq!(bench.content(), [[1; LEN], [2; LEN], [3; LEN]].concat());

    bench.script.add(Rule::new(Operation::Read, When::Next(3), Fault::Short));
    assert_eq!(bench.read(), (DONE, [1; LEN]));
    bench.file.set_len(7).unwrap();
    assert_eq!(bench.read(), (Ok(7), [1, 1, 1, 1, 1, 1, 1, 9, 9, 9]));
    bench.file.set_len(2).unwrap();
    assert_eq!(bench.read(), (Ok(2), [1, 1, 9, 9, 9, 9, 9, 9, 9, 9]));
    assert_eq!(bench.script.hits(), 4);
}

#[test]
fn a_lost_write_is_reported_as_done() {
    let mut bench = Bench::new(Operation::Write, When::Next(1), Fault::Lose);
    assert_eq!(bench.write(2), [DONE, DONE]);
    assert_eq!(bench.content(), [[0; LEN], [2; LEN]].concat());
}

#[test]
fn a_delayed_write_is_late_but_whole() {
    let delay = Duration::from_millis(20);
    let mut bench = Bench::new(Operation::Write, When::Next(1), Fault::Delay(delay));
    let start = Instant::now();
    assert_eq!(bench.write(1), [DONE]);
    assert!(start.elapsed() >= delay);
    assert_eq!(bench.content(), [1; LEN]);
}

#[test]
fn syncs_fail_or_lie() {
    let mut bench = Bench::new(Operation::Sync, When::Next(1), Fault::Fail(Errno::IO));
    bench.script.add(Rule::new(Operation::Sync, When::Next(1), Fault::Lose));
    let fd = store_file(&bench.file);
    assert_eq!(bench.client.sync(fd), Err(Errno::IO));
    assert_eq!(
        bench.client.sync(StoreFile::NONE),
        Ok(()),
        "a lie: the descriptor is not even open"
    );
    assert_eq!(bench.client.sync(StoreFile::NONE), Err(Errno::BADF));
}

#[test]
fn the_first_rule_that_hits_decides() {
    let mut bench = Bench::new(Operation::Write, When::Every(2), Fault::Fail(Errno::IO));
    bench.script.add(Rule::new(Operation::Write, When::Next(2), Fault::Fail(Errno::DQUOT)));
    let (io, quota) = (Err(Errno::IO), Err(Errno::DQUOT));
    assert_eq!(bench.write(5), [quota, io, quota, io, DONE]);
    bench.script.clear();
    assert_eq!(bench.write(2), [DONE, DONE]);
    assert_eq!(bench.script.hits(), 4);
}
