//! I/O clients: the drivers of the tiers, behind one small trait.
//!
//! A client carries out batches of [`Transfer`]s between memory and files. The node manager gives
//! each of its threads a client of its own; nothing here is shared between threads, except what a
//! [`FaultScript`] and the clock of a [`Throttled`] device share on purpose.
//!
//! ```
//! use forebay_tiers::{Transfer, open_client};
//! use std::os::fd::AsRawFd;
//!
//! let file = tempfile::tempfile().unwrap();
//! let mut bytes = *b"a bucket";
//! let buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
//! // SAFETY: `bytes` outlives the run, and nothing else uses it meanwhile.
//! let mut batch = [unsafe { Transfer::write(file.as_raw_fd(), 0, vec![buffer]) }];
//! let mut client = open_client(8);
//! client.run(&mut batch);
//! assert_eq!(batch[0].result(), Ok(8));
//! client.sync(file.as_raw_fd()).unwrap();
//! ```

#![warn(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

mod faulty;
mod null;
mod positional;
pub mod probe;
mod script;
mod throttled;
mod transfer;
mod uring;

pub use faulty::{Fault, FaultScript, Faulty, Operation, Rule, When};
pub use null::Null;
pub use positional::Positional;
pub use script::{ScriptError, parse_script};
pub use throttled::{Throttled, now_ns, sleep_until};
pub use transfer::{Direction, IOVECS_MAX, Transfer};
pub use uring::Uring;

use rustix::io::Errno;
use std::os::fd::RawFd;

/// The driver of a tier.
///
/// A client is used by one thread at a time. A new implementation passes `tests/conformance.rs`.
pub trait IoClient: Send {
    /// A word for status pages and metrics.
    fn name(&self) -> &'static str;

    /// Carries out all transfers, concurrently where it can; returns when each has its result.
    ///
    /// Transfers of one batch have no order among them. A failing one does not stop the others.
    fn run(&mut self, transfers: &mut [Transfer]);

    /// Returns when the file's bytes, and what is needed to find them again, are on the device.
    fn sync(&mut self, fd: RawFd) -> Result<(), Errno>;
}

impl<C: IoClient + ?Sized> IoClient for Box<C> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        (**self).run(transfers);
    }

    fn sync(&mut self, fd: RawFd) -> Result<(), Errno> {
        (**self).sync(fd)
    }
}

/// The fastest client this machine allows: io_uring with up to `queue_depth` requests in flight, or
/// [`Positional`] where it is forbidden, as in many containers.
pub fn open_client(queue_depth: u32) -> Box<dyn IoClient> {
    match Uring::new(queue_depth) {
        Ok(uring) => Box::new(uring),
        Err(_) => Box::new(Positional),
    }
}
