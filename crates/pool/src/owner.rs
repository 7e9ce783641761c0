//! The owner of something in shared memory: a client slot and one of its threads.
//!
//! ```
//! use forebay_pool::Owner;
//!
//! let owner = Owner::new(3, 7);
//! assert_eq!(owner.slot(), 3);
//! assert_eq!(Owner::from_raw(owner.raw()), Some(owner));
//! assert_eq!(Owner::from_raw(0), None);
//! ```

/// Slot of the node manager.
pub const MANAGER_SLOT: u32 = 0;

/// A client slot (12 bits) and a thread of it (20 bits). Never zero: thread numbers start at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    /// Bits of the thread number.
    pub const THREAD_BITS: u32 = 20;
    const REAPER: u32 = (1 << Self::THREAD_BITS) - 1;

    /// The owner for thread `thread` (counted from 0, wrapped into 20 bits) of `slot`.
    #[inline]
    pub fn new(slot: u32, thread: u32) -> Owner {
        // A division only for a process that had a million threads.
        let few = thread < Self::REAPER - 1;
        let thread = if few { thread } else { thread % (Self::REAPER - 1) };
        Owner((slot << Self::THREAD_BITS) | (thread + 1))
    }

    /// The owner of what a dead process of `slot` held until it is given back. No thread has this
    /// number, so that no thread mistakes the reaper for the dead thread.
    pub fn reaper(slot: u32) -> Owner {
        Owner((slot << Self::THREAD_BITS) | Self::REAPER)
    }

    /// Whether it is a dead process's place-holder, see [`Owner::reaper`].
    pub fn is_reaper(self) -> bool {
        self.0 & Self::REAPER == Self::REAPER
    }

    /// The owner stamped in a word, if any.
    #[inline]
    pub fn from_raw(raw: u32) -> Option<Owner> {
        (raw != 0).then_some(Owner(raw))
    }

    /// The word to stamp.
    #[inline]
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The client slot.
    #[inline]
    pub fn slot(self) -> u32 {
        self.0 >> Self::THREAD_BITS
    }

    /// The thread number within its slot, from one.
    #[inline]
    pub fn thread(self) -> u32 {
        self.0 & ((1 << Self::THREAD_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_keeps_slot_and_thread_apart() {
        let owner = Owner::new(4095, 77);
        assert_eq!((owner.slot(), owner.thread()), (4095, 78));
        assert_ne!(Owner::new(0, 0).raw(), 0);
        assert_ne!(Owner::new(0, (1 << 20) - 1).raw(), 0);
    }
}
