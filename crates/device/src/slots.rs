//! The bytes of a tier.

use crate::{Batch, Errno, Span};
use std::ops::Range;

/// What may be expected of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// A loss of power takes everything: nothing that is to outlast one is noted about it, and no
    /// sync may count on it.
    pub is_volatile: bool,
    /// Another node has the bytes: only the node manager reaches them, and may wait for that.
    pub is_remote: bool,
}

impl Properties {
    /// Of RAM, which has no [`SlotDevice`]: its buckets are memory.
    pub const RAM: Properties = Properties { is_volatile: true, is_remote: false };

    /// Whether a journal can lie there: it is written by this node, and outlasts a loss of power.
    pub fn keeps_journal(self) -> bool {
        !self.is_volatile && !self.is_remote
    }
}

/// The bytes of one tier below RAM, in slots of one bucket each, numbered from 0.
///
/// What a slot holds, its checksums, and which thread may use it when is decided above; a device
/// only moves bytes. Its methods wait for them, and may be called by any thread. A new
/// implementation passes
/// `crates/tiers/tests/devices.rs`.
pub trait SlotDevice: Send + Sync {
    /// What may be expected of it; always the same.
    fn properties(&self) -> Properties;

    /// Reads bytes of `slot` from its byte `from` on, all that there is room for in `into`, one
    /// piece after the other, by one request where the device can. The list itself is only read.
    ///
    /// # Safety
    /// `into` is valid for writes. Others may write it at the same time, if no thread holds a
    /// reference to it.
    ///
    /// # Errors
    /// The device's; `IO` where it has fewer, `INVAL` beyond the slot's end.
    unsafe fn read(&self, slot: u32, from: u64, into: &mut [Span]) -> Result<(), Errno>;

    /// Writes all of `bytes` to `slot` from its byte `from` on.
    ///
    /// # Safety
    /// `bytes` are valid for reads. Others may write them at the same time, if no thread holds a
    /// reference to them.
    ///
    /// # Errors
    /// The device's, after which any part may have been written; `INVAL` beyond the slot's end.
    unsafe fn write(&self, slot: u32, from: u64, bytes: Span) -> Result<(), Errno>;

    /// Takes back the room of neighbouring slots, whose bytes are not wanted any more: they are
    /// zeros until they are written again.
    ///
    /// # Errors
    /// The device's; `OPNOTSUPP` where slots keep their room for good.
    fn discard(&self, slots: Range<u32>) -> Result<(), Errno>;

    /// Transfers of slots, with up to `depth` under way at once.
    fn batch(&self, depth: u32) -> Box<dyn Batch>;
}
