//! Looking, without a part in the group, whether it has given up this node: for a node that has
//! gone on alone, and for what a manager finds in a pool that was in a group before.

use crate::group::PoolLife;
use forebay_cluster::{Flushing, GroupError, given_up};
use forebay_membership::{GivenUp, Incarnation, Member, NodeId, Times};
use forebay_pool::clock;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What is said of a pool whose earlier group has given up its node.
pub(super) const GIVEN_UP: &str = "the group that had this pool before has given up this node: others may have written the \
     files of which the tiers have bytes that are not on the store. These are kept, and do not go \
     there: forebay salvage writes them to another directory";

/// Whether the manager ends, to be waited for.
#[derive(Default)]
pub(super) struct End(Mutex<bool>, Condvar);

impl End {
    /// It does.
    pub fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }

    fn has_begun(&self) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for it, for so long at most.
    fn wait(&self, most: Duration) {
        let lock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.1.wait_timeout_while(lock, most, |has_begun| !*has_begun));
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct FlushWatch {
    folder: PathBuf,
    node: NodeId,
    /// The first life that had the pool, once there is one.
    oldest: Arc<dyn Fn() -> Option<Incarnation> + Send + Sync>,
    flushing: Arc<dyn Fn(Flushing) + Send + Sync>,
    is_fenced: Arc<dyn Fn() -> bool + Send + Sync>,
    end: Arc<End>,
    times: Times,
}

impl FlushWatch {
    /// Of the group that had a pool before, if that is known.
    pub fn of(pool: &PoolLife, end: Arc<End>) -> Option<Self> {
        let (folder, node) = pool.before.as_ref()?;
        pool.oldest.map(|_| Self::of_group(pool, folder, *node, end))
    }

    /// Of the group that has a pool now.
    pub fn of_group(pool: &PoolLife, folder: &Path, node: NodeId, end: Arc<End>) -> Self {
        let (folder, flushing) = (folder.to_owned(), Arc::clone(&pool.flushing));
        let (oldest, is_fenced) = (Arc::clone(&pool.oldest_now), Arc::clone(&pool.is_fenced_now));
        Self { folder, node, oldest, flushing, is_fenced, end, times: Times::default() }
    }

    /// Looks until the folder could be read, or the manager ends. Whether the node was not given
    /// up.
    pub fn await_look(&self) -> bool {
        let mut said = None;
        while !self.end.has_begun() {
            match self.look() {
                Ok(is_given_up) => return !is_given_up,
                Err(error) => {
                    if said.as_ref() != Some(&error) {
                        error!("nothing is flushed until the group's folder was read: {error}");
                    }
                    said = Some(error);
                }
            }
            self.pause();
        }
        true
    }

    /// Goes on looking, on a thread of its own, until the manager ends or the node was given up.
    pub fn spawn(self) {
        self.spawn_if(|_| true);
    }

    /// The same beside a part in the group, where that has not looked for too long: its card, or
    /// the newest view, is not there any more, and what is there gives up none.
    pub fn spawn_beside(self) {
        self.spawn_if(|watch| (watch.is_fenced)());
    }

    fn spawn_if(self, is_due: fn(&Self) -> bool) {
        let looks = move || {
            while (!is_due(&self) || self.await_look()) && !self.end.has_begun() {
                self.pause();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("group-watch".into()).spawn(looks) {
            error!("no thread looks at the group's folder, and nothing is flushed: {error}");
        }
    }

    /// Looks once, and notes what follows for flushes; whether the node was given up.
    fn look(&self) -> Result<bool, GroupError> {
        let began_ms = clock::boottime_ns() / 1_000_000;
        let oldest = (self.oldest)().unwrap_or(Incarnation(u32::MAX));
        let found = given_up(&self.folder, Member { node: self.node, incarnation: oldest })?;
        if let Some(GivenUp { member, view }) = found {
            (self.flushing)(Flushing::GivenUp);
            let folder = self.folder.display();
            eprintln!("{folder}: view {view} gives up life {} of this node", member.incarnation.0);
            return Ok(true);
        }
        (self.flushing)(Flushing::Until(began_ms + self.times.valid));
        Ok(false)
    }

    fn pause(&self) {
        self.end.wait(Duration::from_millis(self.times.look));
    }
}
