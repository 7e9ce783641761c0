//! What `forebay_device` describes, on POSIX files: each operation is the raw system call.
//!
//! To this crate a [`StoreFile`] is a descriptor. It may be used inside a program: it makes raw
//! system calls, starts nothing, and uses no io_uring.
//!
//! ```
//! use forebay_device::{Batch, Span, Transfer};
//! use forebay_posix::{Positional, store_file};
//!
//! let file = tempfile::tempfile().unwrap();
//! let mut bytes = *b"a bucket";
//! let buffers = vec![Span::of(&mut bytes)];
//! // SAFETY: `bytes` outlives the run, and nothing else uses it meanwhile.
//! let mut batch = [unsafe { Transfer::write(store_file(&file), 0, buffers) }];
//! let mut positional = Positional::default();
//! positional.run(&mut batch);
//! assert_eq!(batch[0].result(), Ok(8));
//! positional.sync(store_file(&file)).unwrap();
//! ```

mod emulated;
mod positional;
mod slots;
mod store;
pub mod whole;

pub use emulated::{now_ns, sleep_until};
pub use positional::{Positional, begin, carry_on, locate};
pub use slots::FileSlots;
pub use store::PosixStore;

use forebay_device::{Batch, Errno, StoreFile};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};

/// What makes batches: of these slots, or of files alone; so many transfers at once.
///
/// [`Positional::open`], or one that uses more of the kernel than a program may be made to.
pub type MakeBatch = fn(Option<FileSlots>, u32) -> Box<dyn Batch>;

/// An open file, as a store of POSIX files knows it; valid as long as `file` is open.
#[inline]
pub fn store_file(file: impl AsFd) -> StoreFile {
    StoreFile::new(file.as_fd().as_raw_fd())
}

/// The descriptor that `file` is.
///
/// # Errors
/// `BADF` where it is none. One that is not open is refused by the system call that it is lent to.
#[inline]
pub fn descriptor<'fd>(file: StoreFile) -> Result<BorrowedFd<'fd>, Errno> {
    if file.number() < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: only lent to system calls, which check it.
    Ok(unsafe { BorrowedFd::borrow_raw(file.number()) })
}
