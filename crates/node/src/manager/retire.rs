//! The end of a node manager.
//!
//! Each file is brought to the store, and made clean while it is held exclusively. If programs have
//! files open, every file is made direct besides, new ones from the beginning: all that have a file
//! open use it through the kernel then, by the same record. So nothing is wrong if the manager is
//! wanted again after all. The segment is removed only when no process uses it any more: one that
//! went on without it would not be seen by the next manager.
//!
//! Files are brought to the store by a thread of its own: what a client holds it up with must not
//! keep the control thread from reading descriptors, reaping clients and answering commands.

use crate::drain::{FADING, Flusher, is_fading};
use crate::manager::clean::{Left, Outcome, clean_held, is_clean, left_to_flushers, while_held};
use crate::manager::housekeeping::complete_intent;
use crate::node::Node;
use forebay_pool::clock::Timer;
use forebay_pool::layout::{FileFlags, retirement};
use forebay_pool::{FileId, Owner, crash};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long files are tried that cannot be written.
const GIVE_UP: Timer = Timer::seconds(3);
/// In so many passes at least: what keeps one may be over after some, and a busy machine makes few.
const GIVE_UP_PASSES: u32 = 20;
/// Time between two passes.
const PAUSE: Timer = Timer::ms(10);

/// How far the manager is with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is something to do.
    UnderWay,
    /// All that is left are so many files that the store, or the journal, refuses.
    Refused(usize),
    /// All files are direct, and programs go on with them.
    Direct,
    /// No process can join any more; the segment can be removed.
    Gone,
}

/// The manager's way to its end.
pub(crate) struct Retirement {
    node: Arc<Node>,
    pass: Option<JoinHandle<HashSet<FileId>>>,
    /// Files that the last pass could not bring to the store.
    refused: HashSet<FileId>,
    /// Passes that could not bring some file to the store, one after the other.
    vain: u32,
    again: Instant,
}

impl Retirement {
    pub fn new(node: &Arc<Node>) -> Retirement {
        Retirement {
            node: Arc::clone(node),
            pass: None,
            refused: HashSet::new(),
            vain: 0,
            again: Instant::now(),
        }
    }

    fn state(&self) -> u32 {
        self.node.header().retired.load(Ordering::SeqCst)
    }

    fn set_state(&self, state: u32) {
        self.node.header().retired.store(state, Ordering::SeqCst);
        // A thread that makes a record looks at the state when the record can be seen.
        fence(Ordering::SeqCst);
    }

    /// Whether only programs are waited for.
    pub fn is_over(&self) -> bool {
        self.state() == retirement::DIRECT
    }

    /// Whether files are being brought to the store for it.
    pub fn is_busy(&self) -> bool {
        self.pass.is_some()
    }

    /// The manager is wanted: files that come into the table are buffered.
    pub fn take_back(&mut self) {
        if self.state() != retirement::NONE {
            self.set_state(retirement::NONE);
        }
        if let Some(pass) = self.pass.take_if(|pass| pass.is_finished()) {
            let _ = pass.join();
        }
    }

    /// Goes on. `told` is since when the manager is to end although programs may be using it;
    /// `idle`, that none does, and `still_idle` asks again.
    pub fn go_on(
        &mut self,
        told: Option<Instant>,
        idle: bool,
        still_idle: impl Fn() -> bool,
    ) -> Progress {
        if self.state() == retirement::NONE && !idle {
            self.set_state(retirement::CLEARING);
            crash::point("manager.retiring");
        }
        if let Some(pass) = self.pass.take_if(|pass| pass.is_finished()) {
            self.refused = pass.join().unwrap_or_default();
            self.vain = if self.refused.is_empty() { 0 } else { self.vain + 1 };
            self.again = Instant::now() + PAUSE.as_duration();
        }
        if self.pass.is_some() {
            return Progress::UnderWay;
        }
        let direct = !idle;
        let node = &self.node;
        let files = node.segment.files();
        let is_left = |file: &FileId| !is_done(node, *file, direct);
        // All are to turn direct; else those that were not touched have nothing left to be done.
        let left: Vec<FileId> = match direct {
            true => files.live().filter(is_left).collect(),
            false => files.touched().filter(is_left).collect(),
        };
        if left.is_empty() {
            return self.conclude(idle, still_idle);
        }
        let waited = told.map_or(Duration::ZERO, |since| since.elapsed());
        if waited > GIVE_UP.as_duration()
            && self.vain >= GIVE_UP_PASSES
            && left.iter().all(|file| self.refused.contains(file))
            && (waited > FADING || !left.iter().any(|&file| is_fading(node, file)))
        {
            return Progress::Refused(left.len());
        }
        if Instant::now() >= self.again {
            let node = Arc::clone(node);
            let pass = move || pass(&node, &left, direct, waited);
            let started = std::thread::Builder::new().name("retire".to_owned()).spawn(pass);
            self.pass = started.ok();
            self.again = Instant::now() + PAUSE.as_duration();
        }
        Progress::UnderWay
    }

    fn conclude(&self, idle: bool, still_idle: impl Fn() -> bool) -> Progress {
        if !idle {
            if self.state() == retirement::CLEARING {
                self.set_state(retirement::DIRECT);
                info!("everything is on the store; programs go on without buffering");
            }
            return Progress::Direct;
        }
        let before = self.state();
        self.set_state(retirement::GONE);
        crash::point("manager.retired");
        let node = &self.node;
        // A client claims its slot first and looks at the state then.
        if still_idle() && node.segment.files().touched().all(|file| is_done(node, file, false)) {
            return Progress::Gone;
        }
        self.set_state(before);
        Progress::UnderWay
    }
}

impl Drop for Retirement {
    fn drop(&mut self) {
        if self.state() == retirement::CLEARING {
            // What could not be brought to the store stays buffered.
            self.set_state(retirement::NONE);
        }
        self.node.stopping.store(true, Ordering::Release);
        if let Some(pass) = self.pass.take() {
            let _ = pass.join();
        }
    }
}

/// Whether nothing is left to do for a file: it is clean, and if programs go on, `direct`. Scratch
/// files stay buffered for as long as their programs run.
fn is_done(node: &Node, file: FileId, direct: bool) -> bool {
    let record = node.segment.file(file);
    let scratch = record.has(FileFlags::SCRATCH);
    match direct {
        true => scratch || record.stays_direct() && is_clean(node, file),
        false => (!scratch || record.has(FileFlags::UNLINKED)) && is_clean(node, file),
    }
}

/// Brings files to the store, one after the other. Returns those that cannot be.
fn pass(node: &Arc<Node>, files: &[FileId], direct: bool, waited: Duration) -> HashSet<FileId> {
    let mut flusher = Flusher::new(node);
    let owner = Node::new_owner();
    let mut refused = HashSet::new();
    for &file in files {
        if node.stopping() {
            break;
        }
        let outcome = if node.segment.file(file).has(FileFlags::FAILING) && !node.may_retry(file) {
            Outcome::Refused
        } else if left_to_flushers(node, file, waited).is_some() {
            Outcome::Busy
        } else {
            finish(node, &mut flusher, file, owner, direct)
        };
        if outcome == Outcome::Refused {
            refused.insert(file);
        }
    }
    refused
}

/// Brings one file to the store while no other thread is inside it.
fn finish(
    node: &Arc<Node>,
    flusher: &mut Flusher,
    file: FileId,
    owner: Owner,
    direct: bool,
) -> Outcome {
    while_held(node, file, owner, |record| {
        // Of an owner that died in the middle of it.
        if record.has_intent() && complete_intent(node, file, owner).is_err() {
            return Outcome::Refused;
        }
        if record.has(FileFlags::SCRATCH) {
            if direct {
                return Outcome::Done;
            }
            crate::manager::jobs::delete_held(node, file, owner, false);
        }
        let outcome = clean_held(node, flusher, file, owner, Left::Nothing);
        if outcome == Outcome::Done && direct {
            node.segment.raise_stat_epoch();
            record.turn_direct();
            crash::point("manager.direct");
        }
        outcome
    })
}
