//! Ways to carry out transfers, beside the one of `forebay_posix`: io_uring, nothing at all, and
//! what is laid around another: the speed of an emulated device, faults on purpose.
//!
//! Each is a [`Batch`], which carries out [`Transfer`](forebay_device::Transfer)s. The node manager
//! gives each of its threads one of its own; nothing here is shared between threads, except what a
//! [`FaultScript`] and the clock of a [`Throttled`] device share on purpose.
//!
//! ```
//! use forebay_device::{Batch, Span, Transfer};
//! use forebay_posix::store_file;
//! use forebay_tiers::open_batch;
//!
//! let file = tempfile::tempfile().unwrap();
//! let mut bytes = *b"a bucket";
//! let buffers = vec![Span::of(&mut bytes)];
//! // SAFETY: `bytes` outlives the run, and nothing else uses it meanwhile.
//! let mut batch = [unsafe { Transfer::write(store_file(&file), 0, buffers) }];
//! let mut ring = open_batch(None, 8);
//! ring.run(&mut batch);
//! assert_eq!(batch[0].result(), Ok(8));
//! ring.sync(store_file(&file)).unwrap();
//! ```

mod faulty;
pub mod measure;
mod null;
mod script;
mod throttled;
mod uring;

pub use faulty::{Fault, FaultScript, Faulty, Operation, Rule, When};
pub use null::Null;
pub use script::{ScriptError, parse_script};
pub use throttled::Throttled;
pub use uring::Uring;

use forebay_device::Batch;
use forebay_posix::{FileSlots, Positional};

/// The fastest batch of files and slots that this machine allows: io_uring with up to `queue_depth`
/// requests in flight, or [`Positional`] where it is forbidden, as in many containers.
pub fn open_batch(slots: Option<FileSlots>, queue_depth: u32) -> Box<dyn Batch> {
    match Uring::new(slots, queue_depth) {
        Ok(uring) => Box::new(uring),
        Err(_) => Positional::open(slots, queue_depth),
    }
}
