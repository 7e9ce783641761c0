//! The seam between Forebay and what it stores bytes on: types and traits, no implementation.
//!
//! A [`Batch`] carries out [`Transfer`]s between memory and a [`Target`]; who opened the target
//! gives the batch that knows it. No type of this crate is a file descriptor.

mod span;
mod transfer;

pub use rustix::io::Errno;
pub use span::Span;
pub use transfer::{Direction, SPANS_MAX, Transfer};

/// An open file of a store: a number that the store gave out, and that only it understands.
///
/// To a store of POSIX files it is the descriptor. It is valid as long as its holder keeps the
/// file open; the store refuses a number that it does not know, with `BADF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFile(i32);

impl StoreFile {
    /// A file that no store has.
    pub const NONE: StoreFile = StoreFile(-1);

    /// The file that its store knows by `number`.
    pub const fn new(number: i32) -> StoreFile {
        StoreFile(number)
    }

    /// The store's number.
    pub const fn number(self) -> i32 {
        self.0
    }
}

/// What the offsets of a [`Transfer`] count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file of a store, or one that lies beside a tier's slots.
    File(StoreFile),
}

impl From<StoreFile> for Target {
    fn from(file: StoreFile) -> Target {
        Target::File(file)
    }
}

/// Many transfers at once, as the node manager makes them.
///
/// Used by one thread at a time; each thread has its own. A new implementation passes
/// `crates/tiers/tests/conformance.rs`.
pub trait Batch: Send {
    /// A word for status pages and metrics.
    fn name(&self) -> &'static str;

    /// Carries out all transfers, concurrently where it can; returns when each has its result.
    ///
    /// Transfers of one batch have no order among them. A failing one does not stop the others.
    fn run(&mut self, transfers: &mut [Transfer]);

    /// Returns when the file's bytes, and what is needed to find them again, are on the device.
    ///
    /// # Errors
    /// The device's.
    fn sync(&mut self, file: StoreFile) -> Result<(), Errno>;
}

impl<B: Batch + ?Sized> Batch for Box<B> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        (**self).run(transfers);
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        (**self).sync(file)
    }
}
