//! The tiers and stores that there are, opened behind the traits of `forebay_device`, and what is
//! laid around their batches: observed speeds, scripted faults, and the note of each write that
//! lets a test undo what a loss of power would take.
//!
//! May use no other folder of this crate.

pub(crate) mod bandwidth;
pub(crate) mod faults;
pub(crate) mod power_loss;

use forebay_device::{BackingStore, SlotDevice};
use forebay_posix::{FileSlots, PosixStore, store_file};
use power_loss::{PowerLoss, PowerLossBatch};
use rustix::fd::OwnedFd;
use std::path::PathBuf;

/// A tier whose slots of `slot_bytes` lie in a local file, which the caller keeps open as long as
/// the device is used.
pub(crate) fn open_slots(file: &OwnedFd, slot_bytes: u64) -> Box<dyn SlotDevice> {
    Box::new(PowerLoss(FileSlots::new(store_file(file), slot_bytes, PowerLossBatch::open)))
}

/// The store that a directory is.
pub(crate) fn open_store(folder: PathBuf) -> Box<dyn BackingStore> {
    Box::new(PowerLoss(PosixStore::new(folder, PowerLossBatch::open)))
}
