//! Memory that transfers may use. All reads and writes of exposed memory are here.

use crate::table::Table;
use crate::{Access, FabricError, Refusal, Region};

/// The regions of one fabric.
#[derive(Default)]
pub(crate) struct Regions(Table<Exposed>);

struct Exposed {
    at: *mut u8,
    bytes: u64,
    access: Access,
}

// SAFETY: the pointer is used by the thread that has the table, and `expose` asks for memory that
// stays valid whichever thread that is.
unsafe impl Send for Exposed {}

/// Who wants to do what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The owner, who may do anything.
    Own,
    /// A peer that pulls.
    Pull,
    /// A peer that pushes.
    Push,
}

impl Regions {
    /// Takes a region in.
    ///
    /// # Safety
    /// As [`crate::Fabric::expose`] says, until it is removed.
    pub(crate) unsafe fn expose(
        &mut self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, FabricError> {
        let fits = bytes <= isize::MAX as usize && (at as usize).checked_add(bytes).is_some();
        if at.is_null() || !fits {
            return Err(FabricError::Region);
        }
        Ok(Region(self.0.insert(Exposed { at, bytes: bytes as u64, access })))
    }

    pub(crate) fn remove(&mut self, region: Region) -> Result<(), FabricError> {
        self.0.remove(region.0).map(|_| ()).ok_or(FabricError::Region)
    }

    /// Where these bytes are, if they may be used so.
    fn locate(
        &self,
        region: Region,
        offset: u64,
        bytes: u64,
        what: Use,
    ) -> Result<*mut u8, Refusal> {
        let exposed = self.0.get(region.0).ok_or(Refusal::Region)?;
        if offset.checked_add(bytes).is_none_or(|end| end > exposed.bytes) {
            return Err(Refusal::Bounds);
        }
        if what == Use::Push && exposed.access == Access::ReadOnly {
            return Err(Refusal::Access);
        }
        // SAFETY: the offset is within the region, which lies within one piece of memory.
        Ok(unsafe { exposed.at.add(offset as usize) })
    }

    /// Whether these bytes may be used so.
    pub(crate) fn check(
        &self,
        region: Region,
        offset: u64,
        bytes: u64,
        what: Use,
    ) -> Result<(), Refusal> {
        self.locate(region, offset, bytes, what).map(|_| ())
    }

    /// The bytes of a region, to be copied at once.
    pub(crate) fn bytes(
        &self,
        region: Region,
        offset: u64,
        bytes: usize,
        what: Use,
    ) -> Result<&[u8], Refusal> {
        let at = self.locate(region, offset, bytes as u64, what)?;
        // SAFETY: the memory is mapped and readable until the region is removed, for which the
        // table would have to be borrowed. Others may write it, see `Fabric::expose`: what is made
        // of the slice is a copy, and of those bytes nothing is concluded.
        Ok(unsafe { std::slice::from_raw_parts(at, bytes) })
    }

    /// Copies into a region.
    pub(crate) fn write(
        &self,
        region: Region,
        offset: u64,
        from: &[u8],
        what: Use,
    ) -> Result<(), Refusal> {
        let at = self.locate(region, offset, from.len() as u64, what)?;
        // SAFETY: the memory is mapped and writable, as `Fabric::expose` asks of what a transfer
        // writes, and no reference to it is in use; so it does not overlap with `from` either.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_exposed_is_touched() {
        let mut memory = [1_u8, 2, 3, 4, 5, 6];
        let mut regions = Regions::default();
        // SAFETY: the middle of `memory`, which is looked at again after the region is removed.
        let region = unsafe { regions.expose(memory[1..].as_mut_ptr(), 4, Access::ReadOnly) };
        let region = region.unwrap();
        assert_eq!(regions.bytes(region, 1, 3, Use::Pull), Ok(&[3, 4, 5][..]));
        assert_eq!(regions.bytes(region, 4, 0, Use::Pull), Ok(&[][..]));
        for (offset, bytes) in [(2, 3), (5, 0), (0, 5), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(regions.check(region, offset, bytes, Use::Own), Err(Refusal::Bounds));
        }
        assert_eq!(regions.write(region, 0, &[9], Use::Push), Err(Refusal::Access));
        assert_eq!(regions.write(region, 3, &[9, 9], Use::Own), Err(Refusal::Bounds));
        assert_eq!(regions.write(region, 3, &[9], Use::Own), Ok(()));
        assert_eq!(regions.remove(region), Ok(()));
        assert_eq!(regions.remove(region), Err(FabricError::Region));
        assert_eq!(regions.check(region, 0, 0, Use::Own), Err(Refusal::Region));
        assert_eq!(memory, [1, 2, 3, 4, 9, 6]);
    }

    #[test]
    fn no_region_is_null_or_wraps() {
        let mut regions = Regions::default();
        let end = std::ptr::without_provenance_mut(usize::MAX);
        for (at, bytes) in [(std::ptr::null_mut(), 1), (end, 2)] {
            // SAFETY: it is refused.
            let refused = unsafe { regions.expose(at, bytes, Access::ReadOnly) };
            assert_eq!(refused, Err(FabricError::Region));
        }
    }
}
