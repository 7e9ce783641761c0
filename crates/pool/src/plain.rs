//! Tables on plain memory, for tests of views.

/// `count` items as they are in a new segment: all zero.
pub(crate) fn zeroed<T: Table>(count: usize) -> Box<[T]> {
    // SAFETY: all zero is a value of `T`, as `Table` says.
    (0..count).map(|_| unsafe { core::mem::zeroed() }).collect()
}

/// What a segment has a table of, or a word.
///
/// # Safety
/// All bytes zero are a valid value.
pub(crate) unsafe trait Table {}

// SAFETY: atomics and arrays of them.
unsafe impl Table for crate::layout::ClientSlot {}
// SAFETY: atomics, and a lock that is one.
unsafe impl Table for crate::layout::Description {}
// SAFETY: atomics, arrays of them, and a lock that is one.
unsafe impl Table for crate::layout::FileRecord {}
// SAFETY: one atomic, and nothing beside it.
unsafe impl Table for crate::seq_lock::RobustSeqLock<crate::ranks::Stripe> {}
// SAFETY: an integer.
unsafe impl Table for crate::sync::AtomicU32 {}
// SAFETY: an integer.
unsafe impl Table for crate::sync::AtomicU64 {}
