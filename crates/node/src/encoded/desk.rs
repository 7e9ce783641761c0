//! Threads of the node manager that exchange files for programs that wait.

use super::swap::{Context, Dropping, path_of, replace, restore, settle};
use super::{Failure, Refusal};
use crate::node::Node;
use forebay_pool::layout::FileFlags;
use forebay_pool::message::{Message, Outcome};
use forebay_pool::{Identity, Owner};
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Threads: one may be busy with a large file.
pub(crate) const DESK_THREADS: usize = 2;
/// What waits at a time.
const WORK_MAX: usize = 256;

/// What is wanted of a file.
pub(crate) enum Task {
    /// Its original bytes, or none.
    Restore(Dropping),
    /// What was encoded beside it, with this number.
    Replace(u64),
}

/// One file.
pub(crate) struct Work {
    pub task: Task,
    /// O_PATH, or more.
    pub file: OwnedFd,
    /// Who is told.
    pub asker: Weak<OwnedFd>,
}

fn answer(asker: &Weak<OwnedFd>, outcome: Outcome) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if let Some(asker) = asker.upgrade() {
        // One that does not read has no use for it.
        let _ = rustix::net::send(&asker, &Message::Exchanged { outcome }.encode(), flags);
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Files that a thread is busy with.
    busy: Vec<Identity>,
    is_over: bool,
}

/// What waits, and what is under way.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work, or refuses it if there is too much.
    pub fn push(&self, work: Work) {
        let mut state = self.state();
        if state.waiting.len() < WORK_MAX && !state.is_over {
            state.waiting.push_back(work);
            drop(state);
            self.changed.notify_all();
        } else {
            drop(state);
            answer(&work.asker, Outcome::Refused(Refusal::Busy.code()));
        }
    }

    /// No more is done.
    pub fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Work> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_over;
        let woken = self.changed.wait_while(self.state(), is_idle);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner);
        if state.is_over { None } else { state.waiting.pop_front() }
    }

    /// Calls `act` while no other thread of the manager exchanges this file.
    fn alone<R>(&self, file: Identity, act: impl FnOnce() -> R) -> R {
        let is_busy = |state: &mut State| state.busy.contains(&file);
        let free = self.changed.wait_while(self.state(), is_busy);
        free.unwrap_or_else(PoisonError::into_inner).busy.push(file);
        let result = act();
        self.state().busy.retain(|busy| *busy != file);
        self.changed.notify_all();
        result
    }
}

/// A thread that does what waits.
pub(crate) struct DeskThread {
    node: Arc<Node>,
    desk: Arc<Desk>,
    stores: Vec<PathBuf>,
    owner: Owner,
    /// Begins with what a manager that is gone has left.
    settles: bool,
}

impl DeskThread {
    pub fn new(node: &Arc<Node>, desk: &Arc<Desk>, settles: bool) -> DeskThread {
        let stores = node.config.backing.iter().map(|backing| backing.path.clone());
        let stores = stores.map(|path| path.canonicalize().unwrap_or(path)).collect();
        let (node, desk) = (Arc::clone(node), Arc::clone(desk));
        DeskThread { node, desk, stores, owner: Node::new_owner(), settles }
    }

    /// The thread's life.
    pub fn run(self) {
        let is_ending = || self.node.stopping();
        let shares = self.node.config.shares_files();
        let context = Context { stores: &self.stores, shares, is_ending: &is_ending };
        if self.settles {
            let alone = |file, act: &mut dyn FnMut()| self.desk.alone(file, act);
            self.stores.iter().for_each(|store| settle(&context, store, &alone));
        }
        while let Some(work) = self.desk.next() {
            let asker = Weak::clone(&work.asker);
            let outcome = self.carry_out(&context, work);
            answer(&asker, outcome);
        }
    }

    fn carry_out(&self, context: &Context<'_>, work: Work) -> Outcome {
        let Work { task, file, .. } = work;
        let Ok(stat) = rustix::fs::fstat(&file) else { return Outcome::Error(libc::EIO as u16) };
        let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
        let path = path_of(&file);
        let replaces = matches!(task, Task::Replace(_));
        let done = self.desk.alone(identity, || match task {
            Task::Restore(dropping) => restore(context, file, dropping),
            Task::Replace(number) => {
                replace(context, file, number, |file| self.is_at_rest(file)).map(Some)
            }
        });
        match done {
            Ok(Some(_)) => {
                self.note_changed(identity, &path);
                Outcome::Done
            }
            Ok(None) => Outcome::Plain,
            Err(Failure::Refused(refusal)) if replaces => Outcome::Refused(refusal.code()),
            Err(Failure::Ending) => Outcome::Refused(Refusal::Busy.code()),
            Err(failure) if replaces => {
                eprintln!("{}: not replaced: {failure}", path.display());
                Outcome::Error(failure.errno().raw_os_error() as u16)
            }
            Err(failure) => {
                error!(
                    "{}: it is encoded, and not restored: {failure}; a program that opens it gets an \
                     error. docs/encoded.md says how to decode it by hand",
                    path.display()
                );
                Outcome::Error(failure.errno().raw_os_error() as u16)
            }
        }
    }

    /// Whether the store has all of a file that no process has open.
    fn is_at_rest(&self, file: Identity) -> bool {
        let segment = &self.node.segment;
        let _inside = segment.enter_table(self.owner);
        let is_clean = |found: Option<forebay_pool::FileId>| {
            found.is_none_or(|found| {
                let record = segment.file(found);
                let ahead = FileFlags::METADATA_DIRTY
                    | FileFlags::DIRTY
                    | FileFlags::FAILING
                    | FileFlags::SCRATCH;
                !record.flags.load(Ordering::Acquire).intersects(ahead)
                    && !record.is_tracked()
                    && !record.has_intent()
                    && !self.node.is_pending(found)
            })
        };
        segment.with_file(file, self.owner, is_clean).unwrap_or(false)
    }

    /// The store's file was changed by us: by no other program.
    fn note_changed(&self, file: Identity, path: &std::path::Path) {
        let segment = &self.node.segment;
        let Ok(stat) = rustix::fs::stat(path) else { return };
        if (Identity { device: stat.st_dev, inode: stat.st_ino }) != file {
            return;
        }
        let changed_ns = forebay_pool::clock::joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64);
        let _inside = segment.enter_table(self.owner);
        let note = |found: Option<forebay_pool::FileId>| {
            if let Some(found) = found {
                let record = segment.file(found);
                record.store_changed_ns.store(changed_ns, Ordering::Release);
                record.changed_ns.store(changed_ns, Ordering::Release);
            }
        };
        let _ = segment.with_file(file, self.owner, note);
    }
}
