//! Memory through which blocks go from node to node: one half for those that peers pull from here,
//! one for those that are pulled. It is exposed as a whole when the group begins.

use forebay_fabric::{Access, Fabric, FabricError, Region};
use std::cell::UnsafeCell;
use std::sync::OnceLock;

/// See the module.
///
/// Slots are the caller's to give out: a slot that a pull fills is used by nothing else until
/// [`crate::LinkEvent::Pulled`] has come.
pub struct Staging {
    memory: Box<[UnsafeCell<u8>]>,
    slot_bytes: usize,
    region: OnceLock<Region>,
}

// SAFETY: it is used by raw copies only, and no reference to its bytes is ever made. A slot has one
// writer at a time; a peer that reads one while it is written gets bytes that their sum refuses.
unsafe impl Sync for Staging {}
// SAFETY: as above; its memory belongs to no thread.
unsafe impl Send for Staging {}

impl Staging {
    /// Slots of so many bytes each. Their memory comes with their first use.
    pub fn new(slots: usize, slot_bytes: usize) -> Self {
        let bytes = vec![0_u8; slots * slot_bytes].into_boxed_slice();
        let raw = Box::into_raw(bytes) as *mut [UnsafeCell<u8>];
        // SAFETY: an UnsafeCell has the layout of what is in it, and the box was the only owner.
        let memory = unsafe { Box::from_raw(raw) };
        Self { memory, slot_bytes, region: OnceLock::new() }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// How many there are.
    pub fn slots(&self) -> usize {
        self.memory.len() / self.slot_bytes.max(1)
    }

    /// Where a slot begins.
    pub fn offset(&self, slot: usize) -> u64 {
        (slot * self.slot_bytes) as u64
    }

    /// The memory of a slot, [`Staging::slot_bytes`] long; null if there is none of this number.
    pub fn at(&self, slot: usize) -> *mut u8 {
        match self.memory.get(slot * self.slot_bytes..(slot + 1) * self.slot_bytes) {
            Some(bytes) => UnsafeCell::raw_get(bytes.as_ptr()),
            None => std::ptr::null_mut(),
        }
    }

    /// What peers call it; `None` before the group has begun.
    pub fn region(&self) -> Option<Region> {
        self.region.get().copied()
    }

    /// Lets peers pull from it, and pulls go there, by this fabric, which may not outlive it. Once.
    ///
    /// # Errors
    /// Those of [`Fabric::expose`].
    pub(crate) fn expose(&self, fabric: &mut dyn Fabric) -> Result<(), FabricError> {
        let at = UnsafeCell::raw_get(self.memory.as_ptr());
        // SAFETY: the memory lives as long as the fabric, whose owner has this staging, too; there
        // are no references to it.
        let region = unsafe { fabric.expose(at, self.memory.len(), Access::ReadOnly) }?;
        let _ = self.region.set(region);
        Ok(())
    }
}
