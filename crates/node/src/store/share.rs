//! How many descriptors of files the manager keeps: see docs/design/registration.md.

use rustix::process::Resource;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors that threads open for a moment, and what begins later.
const RESERVE: usize = 48;
/// Of each process of a program: its connection, and what tells of its end.
const OF_PROCESS: usize = 2;
/// So many are kept whatever else is open.
const LEAST: usize = 8;
/// Beside what is open from the beginning so many must be left.
const LEFT_MIN: usize = 64;

/// The share of the descriptors of this process that files get.
pub(crate) struct Share {
    /// What the limit leaves beside what is open from the beginning, and the reserve.
    left: AtomicUsize,
    processes: AtomicUsize,
}

impl Default for Share {
    fn default() -> Share {
        Share { left: AtomicUsize::new(usize::MAX), processes: AtomicUsize::new(0) }
    }
}

impl Share {
    /// Looks at what is open now, before there are files, and at the limit.
    ///
    /// # Errors
    /// The limit that is needed, if this one leaves too few.
    pub fn look(&self) -> Result<(), usize> {
        let Some(limit) = rustix::process::getrlimit(Resource::Nofile).current else {
            return Ok(());
        };
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Ok(()) };
        self.set(usize::try_from(limit).unwrap_or(usize::MAX), open.count())
    }

    fn set(&self, limit: usize, open: usize) -> Result<(), usize> {
        if limit.saturating_sub(open) < LEFT_MIN {
            return Err((open + LEFT_MIN).next_power_of_two());
        }
        self.left.store(limit - open.min(limit) - RESERVE.min(limit - open), Ordering::Relaxed);
        Ok(())
    }

    /// Notes how many processes are connected.
    pub fn note_processes(&self, count: usize) {
        self.processes.store(count, Ordering::Relaxed);
    }

    /// So many can be kept.
    pub fn all(&self) -> usize {
        let processes = self.processes.load(Ordering::Relaxed) * OF_PROCESS;
        self.left.load(Ordering::Relaxed).saturating_sub(processes).max(LEAST)
    }

    /// So many are kept of files that can as well be found later: the others have no choice.
    pub fn most(&self) -> usize {
        let all = self.all();
        all - all / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_leaves_is_shared() {
        let share = Share::default();
        assert_eq!(share.set(20_000, 45), Ok(()));
        assert_eq!((share.all(), share.most()), (19_907, 14_931));
        share.note_processes(4096);
        assert_eq!((share.all(), share.most()), (11_715, 8787));
        assert_eq!(share.set(128, 45), Ok(()));
        share.note_processes(3);
        assert_eq!((share.all(), share.most()), (29, 22));
        share.note_processes(100);
        assert_eq!((share.all(), share.most()), (8, 6));
        assert_eq!(share.set(128, 65), Err(256));
        assert_eq!(share.set(128, 64), Ok(()));
        assert_eq!(share.set(100, 100), Err(256));
    }
}
