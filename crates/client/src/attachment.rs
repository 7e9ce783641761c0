//! Which pools this process has sessions of: one of each.

use rustix::fs::Stat;
use std::sync::{Mutex, PoisonError};

/// The pools (device and inode) that this process has sessions of: it has one slot in each.
static ATTACHED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// An entry of [`ATTACHED`].
pub(crate) struct Attachment((u64, u64));

impl Attachment {
    /// Notes that this process has a session of `pool`. `None` if it had one.
    pub fn to(pool: &Stat) -> Option<Attachment> {
        let pool = (pool.st_dev, pool.st_ino);
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.contains(&pool) {
            return None;
        }
        attached.push(pool);
        Some(Attachment(pool))
    }

    /// The same for a session in a vforked child, which is never dropped.
    pub fn again(&self) -> Attachment {
        Attachment(self.0)
    }

    /// What tells the sessions of a process apart.
    pub fn number(&self) -> u64 {
        self.0.1
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|pool| *pool != self.0);
    }
}
