//! Which tier, of which node.

use core::fmt;
use core::ops::{Index, IndexMut};

/// A tier of a node: its place in the hierarchy, fastest first. The backing store is none.
///
/// ```
/// use forebay_placement::TierId;
///
/// let below: Vec<_> = TierId::all(3).filter(|tier| !tier.is_ram()).collect();
/// assert_eq!(below, [TierId::new(1), TierId::new(2)]);
/// assert_eq!(["ram", "nvme", "ssd"][below[0]], "nvme");
/// ```
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TierId(u8);

impl TierId {
    /// The tier of RAM, the only one whose bytes programs read and write in place.
    pub const RAM: TierId = TierId(0);

    /// The tier at place `index`, which is below [`crate::TIERS_MAX`].
    #[inline]
    pub const fn new(index: usize) -> TierId {
        TierId(index as u8)
    }

    /// Its place, from 0.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether it is the tier of RAM.
    #[inline]
    pub const fn is_ram(self) -> bool {
        self.0 == 0
    }

    /// All of `count` tiers, fastest first.
    pub fn all(
        count: usize,
    ) -> impl DoubleEndedIterator<Item = TierId> + ExactSizeIterator + Clone {
        (0..count).map(TierId::new)
    }

    /// Those of `count` tiers that are slower than this one, fastest first.
    pub fn below(self, count: usize) -> impl DoubleEndedIterator<Item = TierId> + Clone {
        (self.index() + 1..count).map(TierId::new)
    }
}

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Index<TierId> for [T] {
    type Output = T;

    #[inline(always)]
    fn index(&self, tier: TierId) -> &T {
        &self[tier.index()]
    }
}

impl<T> IndexMut<TierId> for [T] {
    #[inline(always)]
    fn index_mut(&mut self, tier: TierId) -> &mut T {
        &mut self[tier.index()]
    }
}

impl<T> Index<TierId> for Vec<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, tier: TierId) -> &T {
        &self.as_slice()[tier.index()]
    }
}

impl<T> IndexMut<TierId> for Vec<T> {
    #[inline(always)]
    fn index_mut(&mut self, tier: TierId) -> &mut T {
        &mut self.as_mut_slice()[tier.index()]
    }
}

/// A node of a job, as the nodes number each other.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(u16);

impl NodeId {
    /// The node that the calling process runs on.
    pub const LOCAL: NodeId = NodeId(0);

    /// The node that a number names.
    #[inline]
    pub const fn from_raw(number: u16) -> NodeId {
        NodeId(number)
    }

    /// Its number.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// Whether it is the node that the calling process runs on.
    #[inline]
    pub const fn is_local(self) -> bool {
        self.0 == 0
    }
}
