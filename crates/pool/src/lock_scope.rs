//! The words of shared locks: of what a thread has one. They know no segment: see
//! docs/design/views.md.

use crate::FileId;
#[cfg(debug_assertions)]
#[cfg(debug_assertions)]
use crate::ranks::{self, Rank};
use crate::sync::AtomicU64;

/// What a shared lock is of.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockScope(u32);

impl LockScope {
    /// The file table, no file in particular.
    pub const TABLE: LockScope = LockScope(u32::MAX - 1);
    /// Bit of a scope that is not the file, but the file table with a descriptor of the file.
    const BESIDE: u32 = 1 << 30;

    /// A file.
    #[inline]
    pub fn file(file: FileId) -> LockScope {
        LockScope(file.raw())
    }

    /// The file table, with a descriptor of `file`: a thread that wants the file exclusively does
    /// not wait for it, but one that closes the descriptor does.
    pub fn beside(file: FileId) -> LockScope {
        LockScope(file.raw() | LockScope::BESIDE)
    }

    /// Whether a thread in it may use a descriptor of `file`.
    pub fn uses(self, file: FileId) -> bool {
        self == LockScope::file(file) || self == LockScope::beside(file)
    }

    /// Whether a thread that has it needs no lock of `other`: it is in the table whatever it has,
    /// and beside a file that it is inside.
    pub fn covers(self, other: LockScope) -> bool {
        other == LockScope::TABLE || other == self || other.0 == self.0 | LockScope::BESIDE
    }

    /// The file, if it is one.
    pub fn as_file(self) -> Option<FileId> {
        let is_file = self != LockScope::TABLE && self.0 & LockScope::BESIDE == 0;
        is_file.then_some(FileId::from_raw(self.0))
    }

    /// Its place in the order of locks.
    #[cfg(debug_assertions)]
    pub(crate) fn rank(self) -> Rank {
        if self.as_file().is_some() { Rank::Inside } else { Rank::Table }
    }
}

/// A word of shared locks: thread number in the upper half, scope plus one in the lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLock {
    /// Thread number within the slot.
    pub thread: u32,
    /// What the lock is of.
    pub scope: LockScope,
}

impl SharedLock {
    /// The word.
    pub fn encode(self) -> u64 {
        u64::from(self.thread) << 32 | u64::from(self.scope.0 + 1)
    }

    /// Notes for the [order of locks](crate::ranks) that the calling thread's word `place` says
    /// `word` now.
    #[inline(always)]
    pub(crate) fn note(word: u64, place: &AtomicU64) {
        #[cfg(debug_assertions)]
        match SharedLock::decode(word) {
            None => ranks::released(place),
            Some(lock) => ranks::becomes(lock.scope.rank(), place),
        }
        #[cfg(not(debug_assertions))]
        let _ = (word, place);
    }

    /// Whether the lock in a word, if there is one, is of `scope`. Cheaper than to decode it: who
    /// wants a file exclusively looks at each word of each process.
    #[inline(always)]
    pub(crate) fn is_of(word: u64, scope: LockScope) -> bool {
        word as u32 == scope.0 + 1
    }

    /// The shared lock in a word; `None` for zero.
    pub fn decode(word: u64) -> Option<SharedLock> {
        let scope = (word as u32).checked_sub(1)?;
        Some(SharedLock { thread: (word >> 32) as u32, scope: LockScope(scope) })
    }
}
