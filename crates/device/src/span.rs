//! A piece of memory that takes part in a transfer.

/// The first byte and the number of bytes of a piece of memory, laid out as the kernel's `iovec`.
///
/// It says nothing of how long the memory is valid, or what else uses it: the maker of the
/// [`Transfer`](crate::Transfer) that has it promises that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// The first byte.
    pub base: *mut u8,
    /// How many bytes.
    pub bytes: usize,
}

impl Span {
    /// A piece without bytes.
    pub const EMPTY: Span = Span { base: std::ptr::null_mut(), bytes: 0 };

    /// Bytes of all pieces of a list.
    pub fn total(pieces: &[Span]) -> usize {
        pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// The bytes of a slice, to be read or written.
    pub fn of(bytes: &mut [u8]) -> Span {
        Span { base: bytes.as_mut_ptr(), bytes: bytes.len() }
    }
}
