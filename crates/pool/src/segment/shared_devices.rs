//! The emulated devices of stores that other node managers share.

use super::{Segment, text};
use crate::layout::{STORES_MAX, StoreHeader};
use crate::shared_device::{DeviceError, DeviceSpeed, SharedDevice};
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

impl Segment {
    /// Maps the files of the devices that other node managers share, and makes those that are not
    /// there: for the node manager, before it moves anything.
    ///
    /// # Errors
    /// The number of a store, and what is wrong with its file.
    pub fn make_shared_devices(&mut self) -> Result<(), (usize, DeviceError)> {
        self.map_shared_devices(|path, speed| SharedDevice::open_or_create(path, speed))
    }

    /// The same for a process of `user`; none is made.
    ///
    /// # Errors
    /// The number of a store, and what is wrong with its file.
    pub fn join_shared_devices(&mut self, user: u32) -> Result<(), (usize, DeviceError)> {
        self.map_shared_devices(|path, speed| SharedDevice::open(path, speed, user))
    }

    fn map_shared_devices(
        &mut self,
        map: impl Fn(&CStr, DeviceSpeed) -> Result<SharedDevice, DeviceError>,
    ) -> Result<(), (usize, DeviceError)> {
        for number in 0..self.header().stores as usize {
            let StoreHeader { shared, emulation, .. } = &self.header().store[number];
            let path = text(shared);
            if !path.is_empty() {
                let device = map(path, emulation.into()).map_err(|error| (number, error))?;
                self.shared_devices[number] = Some(device);
            }
        }
        Ok(())
    }

    /// CLOCK_MONOTONIC nanoseconds at which the emulated device of store `store` is free again, in
    /// the segment or in the file that managers share.
    #[inline]
    pub fn store_next_free(&self, store: usize) -> &AtomicU64 {
        let store = store % STORES_MAX;
        match &self.shared_devices[store] {
            Some(device) => device.next_free_ns(),
            None => &self.header().store[store].emulation.next_free_ns,
        }
    }
}
