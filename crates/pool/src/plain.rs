//! Tables on plain memory, for tests of views.

/// `count` items as they are in a new segment: all zero.
pub(crate) fn zeroed<T: Table>(count: usize) -> Box<[T]> {
    // SAFETY: a table is of atomics, arrays of them, and locks that are one, all valid as zero.
    (0..count).map(|_| unsafe { core::mem::zeroed() }).collect()
}

/// What a segment has a table of, or a word.
pub(crate) trait Table {}

impl Table for crate::layout::ClientSlot {}
impl Table for crate::layout::Description {}
impl Table for crate::layout::FileRecord {}
impl Table for crate::seq_lock::RobustSeqLock<crate::ranks::Stripe> {}
impl Table for crate::sync::AtomicU32 {}
impl Table for crate::sync::AtomicU64 {}
