//! The orders that an earlier run has read files in, where this run is to follow them
//! (`forebay run --follow`).

use crate::access::EnteredFile;
use crate::open::link_of;
use crate::recording::memory_of_run;
use crate::session::Session;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_pool::layout::FOLLOWS;
use forebay_pool::orders::{Orders, hash};
use rustix::fs::OFlags;

/// Never freed: a thread may be at it.
static ORDERS: AtomicPtr<Orders> = AtomicPtr::new(core::ptr::null_mut());

/// Those of this run, if any.
pub(crate) fn orders() -> Option<&'static Orders> {
    // SAFETY: set once, never freed.
    unsafe { ORDERS.load(Ordering::Acquire).as_ref() }
}

impl Session {
    /// Learns which orders this run is to follow, if it is. Without a word if they cannot be had:
    /// the program's work comes first.
    pub(crate) fn join_following(&self) {
        let Some(job) = self.job() else { return };
        let number = (job.recording.load(Ordering::Relaxed) & !FOLLOWS) >> 16;
        let memory = memory_of_run(job.pid.load(Ordering::Relaxed), number, OFlags::RDONLY);
        if let Some(orders) = memory.and_then(|memory| Orders::of(memory).ok()) {
            ORDERS.store(Box::into_raw(Box::new(orders)), Ordering::Release);
        }
    }
}

impl EnteredFile<'_> {
    /// The list of an order of this file that begins with `block`.
    #[cold]
    pub(crate) fn order(&self, orders: &Orders, block: u64) -> Option<u32> {
        let mut buffer = core::mem::MaybeUninit::uninit();
        let found = orders.find(hash(link_of(self.fd, &mut buffer)?), block)?;
        if let Some(job) = self.session.job() {
            job.recording.fetch_or(FOLLOWS, Ordering::Relaxed);
        }
        Some(found)
    }
}
