//! Faults on purpose: a script says which operations go wrong, and how.

use forebay_device::{Batch, Direction, Errno, StoreFile, Transfer};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

/// What a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A transfer from the file.
    Read,
    /// A transfer to the file.
    Write,
    /// A sync of the file.
    Sync,
}

impl From<Direction> for Operation {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Operation::Read,
            Direction::Write => Operation::Write,
        }
    }
}

/// Which of the operations are hit.
#[derive(Clone, Debug)]
pub enum When {
    /// The next so many.
    Next(u64),
    /// Every n-th; 0 = none.
    Every(u64),
    /// The n-th alone, counted from 1.
    At(u64),
    /// The n-th and all after it.
    From(u64),
    /// All while the flag is set.
    While(Arc<AtomicBool>),
    /// All while there is something at this path.
    Exists(PathBuf),
}

/// What happens to an operation that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing is moved.
    Fail(Errno),
    /// The first half is moved, then it fails.
    Tear(Errno),
    /// It is moved in two halves, one after the other, as if the kernel had answered short.
    Short,
    /// It is reported as a success, but nothing is moved: a device that lies.
    Lose,
    /// It succeeds after this time.
    Delay(Duration),
}

/// One line of a [`FaultScript`].
#[derive(Clone, Debug)]
pub struct Rule {
    operation: Operation,
    when: When,
    fault: Fault,
    seen: u64,
}

impl Rule {
    /// Lets `fault` happen to these operations. A sync has no halves: to it, a tear is a failure.
    pub fn new(operation: Operation, when: When, fault: Fault) -> Self {
        Self { operation, when, fault, seen: 0 }
    }

    /// Counts the operation if the rule is about its kind; whether it is hit.
    fn hits(&mut self, operation: Operation) -> bool {
        if self.operation != operation {
            return false;
        }
        self.seen += 1;
        match &self.when {
            When::Next(count) => self.seen <= *count,
            When::Every(nth) => *nth > 0 && self.seen.is_multiple_of(*nth),
            When::At(number) => self.seen == *number,
            When::From(first) => self.seen >= *first,
            When::While(flag) => flag.load(Relaxed),
            When::Exists(path) => path.symlink_metadata().is_ok(),
        }
    }
}

/// The rules of any number of [`Faulty`] batches, to be changed at any time from any thread.
///
/// Clones share the rules. The first rule that hits decides; those after it do not see the
/// operation.
#[derive(Clone, Debug, Default)]
pub struct FaultScript(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    rules: Vec<Rule>,
    hits: u64,
    /// Those that were not taken yet.
    fresh: Vec<(Operation, Fault)>,
}

/// Hits that are remembered for [`FaultScript::take_hits`].
const FRESH_MAX: usize = 4096;

impl FaultScript {
    /// A script without rules: everything works.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule after the others.
    pub fn add(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// Puts these rules in place of the others.
    pub fn replace(&self, rules: Vec<Rule>) {
        self.lock().rules = rules;
    }

    /// Removes all rules; what comes from now on works.
    pub fn clear(&self) {
        self.lock().rules.clear();
    }

    /// Operations hit so far: a test that injects faults asserts that they happened.
    pub fn hits(&self) -> u64 {
        self.lock().hits
    }

    /// The hits since the last call, at most the first 4096 of them.
    pub fn take_hits(&self) -> Vec<(Operation, Fault)> {
        std::mem::take(&mut self.lock().fresh)
    }

    fn decide(&self, operation: Operation) -> Option<Fault> {
        let mut script = self.lock();
        let fault =
            script.rules.iter_mut().find_map(|rule| rule.hits(operation).then_some(rule.fault))?;
        script.hits += 1;
        if script.fresh.len() < FRESH_MAX {
            script.fresh.push((operation, fault));
        }
        Some(fault)
    }

    /// A thread that panicked with the lock left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another batch with the faults of a script.
pub struct Faulty<C> {
    inner: C,
    script: FaultScript,
}

impl<C: Batch> Faulty<C> {
    /// Lets the operations of `inner` go wrong as the script says.
    pub fn new(inner: C, script: FaultScript) -> Self {
        Self { inner, script }
    }

    fn run_hit(&mut self, transfer: &mut Transfer, fault: Fault) {
        transfer.begin();
        let result = match fault {
            Fault::Fail(errno) => Err(errno),
            Fault::Lose => Ok(transfer.len()),
            Fault::Tear(errno) => self.run_halves(transfer, false).and(Err(errno)),
            Fault::Short => self.run_halves(transfer, true),
            Fault::Delay(time) => {
                sleep(time);
                return self.inner.run(std::slice::from_mut(transfer));
            }
        };
        transfer.finish(result);
    }

    fn run_halves(&mut self, transfer: &Transfer, both: bool) -> Result<u64, Errno> {
        let (mut head, mut tail) = transfer.split(transfer.len() / 2);
        self.inner.run(std::slice::from_mut(&mut head));
        let moved = head.result()?;
        if !both || moved < head.len() {
            return Ok(moved);
        }
        self.inner.run(std::slice::from_mut(&mut tail));
        Ok(moved + tail.result()?)
    }
}

impl<C: Batch> Batch for Faulty<C> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    /// What is not hit runs concurrently, between the transfers that are.
    fn run(&mut self, transfers: &mut [Transfer]) {
        let decide = |transfer: &Transfer| self.script.decide(transfer.direction().into());
        let faults: Vec<_> = transfers.iter().map(decide).collect();
        let mut rest = transfers;
        for group in faults.split_inclusive(Option::is_some) {
            let (now, later) = rest.split_at_mut(group.len());
            rest = later;
            match (now.split_last_mut(), group.last()) {
                (Some((hit, before)), Some(&Some(fault))) => {
                    self.inner.run(before);
                    self.run_hit(hit, fault);
                }
                _ => self.inner.run(now),
            }
        }
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        match self.script.decide(Operation::Sync) {
            Some(Fault::Fail(errno) | Fault::Tear(errno)) => return Err(errno),
            Some(Fault::Lose) => return Ok(()),
            Some(Fault::Delay(time)) => sleep(time),
            Some(Fault::Short) | None => {}
        }
        self.inner.sync(file)
    }
}
