//! The seam between Forebay and what it stores bytes on: two traits and their types, no
//! implementation.
//!
//! A [`SlotDevice`] has the bytes of a tier, a [`BackingStore`] the files below. Each also gives
//! [`Batch`]es, which carry out many [`Transfer`]s at once. No type of this crate is a file
//! descriptor.

mod slots;
mod span;
mod store;
mod transfer;

pub use rustix::io::Errno;
pub use slots::{Properties, SlotDevice};
pub use span::Span;
pub use store::{BackingStore, Identity, Stat, StoreFile};
pub use transfer::{Direction, SPANS_MAX, Transfer};

/// What the offsets of a [`Transfer`] count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A slot of the tier that the batch is of. No transfer goes beyond its end: it fails with
    /// `INVAL`, and moves nothing.
    Slot(u32),
    /// A file of the store that the batch is of, or one that lies beside a tier's slots.
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

    /// The same, with work that the caller has to do anyway, and which these transfers need not
    /// wait for: it reads their buffers at most. It is done exactly once, while the transfers are
    /// under way where the device goes on without this thread, else before them. Returns which of
    /// the two.
    fn run_beside(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) -> Worked {
        work();
        self.run(transfers);
        Worked::Before
    }

    /// Returns when the file's bytes, and what is needed to find them again, are on the device.
    ///
    /// # Errors
    /// The device's.
    fn sync(&mut self, file: StoreFile) -> Result<(), Errno>;
}

/// When [`Batch::run_beside`] has done its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// Before the transfers began: its time is none of theirs.
    Before,
    /// While they were under way.
    Beside,
}

impl<B: Batch + ?Sized> Batch for Box<B> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        (**self).run(transfers);
    }

    fn run_beside(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) -> Worked {
        (**self).run_beside(transfers, work)
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        (**self).sync(file)
    }
}
