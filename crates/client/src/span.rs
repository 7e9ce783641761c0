//! Memory that other threads may use meanwhile: buffers of the program, and buckets of the RAM
//! tier.
//!
//! It is never borrowed as Rust data, but copied, or given to the kernel.

use core::marker::PhantomData;

/// Bytes that can be read.
#[derive(Clone, Copy, Debug)]
pub struct Readable;

/// Bytes that can be read and written.
#[derive(Clone, Copy, Debug)]
pub struct Writable;

/// A piece of memory that is valid for `'m`, to be read, or to be written as well, as `A` says.
/// Laid out like `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Span<'m, A> {
    base: *mut u8,
    length: usize,
    memory: PhantomData<(&'m (), A)>,
}

impl<A> Span<'_, A> {
    pub const EMPTY: Self = Span { base: core::ptr::null_mut(), length: 0, memory: PhantomData };

    /// The `length` bytes at `base`.
    ///
    /// # Safety
    /// For the lifetime they can be read and, if `A` is [`Writable`], written; no Rust reference
    /// says that they do not change.
    #[inline(always)]
    pub unsafe fn new(base: *mut u8, length: usize) -> Self {
        Span { base, length, memory: PhantomData }
    }

    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The same for a device.
    #[inline(always)]
    pub fn raw(&self) -> forebay_device::Span {
        forebay_device::Span { base: self.base, bytes: self.length }
    }

    /// What is left without the first `bytes`.
    #[inline(always)]
    pub fn after(&self, bytes: usize) -> Self {
        let bytes = bytes.min(self.length);
        Span { base: self.base.wrapping_add(bytes), length: self.length - bytes, ..*self }
    }

    /// The first `bytes`, if there are so many.
    #[inline(always)]
    pub fn first(&self, bytes: usize) -> Self {
        Span { length: bytes.min(self.length), ..*self }
    }
}

impl<'m> Span<'m, Readable> {
    /// The bytes, to have sums made of them. Another thread may change them meanwhile: such a sum
    /// agrees with nothing, which its users expect.
    pub fn bytes(&self) -> &'m [u8] {
        // SAFETY: readable, see `Span::new`; what is read is only compared.
        unsafe { core::slice::from_raw_parts(self.base, self.length) }
    }
}

impl<'m> Span<'m, Writable> {
    #[inline(always)]
    pub fn readable(&self) -> Span<'m, Readable> {
        Span { base: self.base, length: self.length, memory: PhantomData }
    }

    /// Copies the first bytes of `from`, as many as there are in both.
    #[inline(always)]
    pub fn copy_from(&self, from: Span<'_, Readable>) {
        let bytes = self.length.min(from.length);
        // SAFETY: `from` is readable and this writable for so many, see `Span::new`. They do not
        // overlap: a span of the program's memory is copied to one of a bucket or a chunk, or back.
        unsafe { core::ptr::copy_nonoverlapping(from.base.cast_const(), self.base, bytes) }
    }

    /// Sets all bytes to zero.
    #[inline(always)]
    pub fn zero(&self) {
        // SAFETY: writable, see `Span::new`.
        unsafe { self.base.write_bytes(0, self.length) }
    }
}

impl<'m> From<&'m [u8]> for Span<'m, Readable> {
    fn from(bytes: &'m [u8]) -> Self {
        Span { base: bytes.as_ptr().cast_mut(), length: bytes.len(), memory: PhantomData }
    }
}

impl<'m> From<&'m mut [u8]> for Span<'m, Writable> {
    fn from(bytes: &'m mut [u8]) -> Self {
        Span { base: bytes.as_mut_ptr(), length: bytes.len(), memory: PhantomData }
    }
}

/// A position in a list of pieces.
pub(crate) struct Cursor<'a, A> {
    pieces: &'a [Span<'a, A>],
    piece: usize,
    within: usize,
}

impl<'a, A> Cursor<'a, A> {
    pub fn new(pieces: &'a [Span<'a, A>]) -> Cursor<'a, A> {
        Cursor { pieces, piece: 0, within: 0 }
    }

    /// The memory at the position, as far as it goes without a break.
    #[inline]
    pub fn here(&mut self) -> Span<'a, A> {
        while let Some(piece) = self.pieces.get(self.piece) {
            if self.within < piece.length {
                return piece.after(self.within);
            }
            self.piece += 1;
            self.within = 0;
        }
        Span::EMPTY
    }

    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.within += bytes;
    }

    pub fn position(&self) -> (usize, usize) {
        (self.piece, self.within)
    }

    pub fn rewind(&mut self, position: (usize, usize)) {
        (self.piece, self.within) = position;
    }
}

impl Cursor<'_, Readable> {
    /// Fills `to` from the pieces, as far as they go.
    #[inline]
    pub fn copy_out(&mut self, mut to: Span<'_, Writable>) {
        while to.length > 0 {
            let from = self.here();
            let count = from.length.min(to.length);
            if count == 0 {
                return;
            }
            to.copy_from(from);
            to = to.after(count);
            self.advance(count);
        }
    }
}

impl Cursor<'_, Writable> {
    /// Copies `from` to the pieces, as far as they go.
    #[inline]
    pub fn copy_in(&mut self, mut from: Span<'_, Readable>) {
        while from.length > 0 {
            let to = self.here();
            let count = to.length.min(from.length);
            if count == 0 {
                return;
            }
            to.copy_from(from);
            from = from.after(count);
            self.advance(count);
        }
    }
}

/// Bytes of all pieces, or `None` when they exceed what a system call may transfer.
#[inline]
pub(crate) fn total<A>(pieces: &[Span<'_, A>]) -> Option<usize> {
    pieces
        .iter()
        .try_fold(0usize, |sum, piece| sum.checked_add(piece.length))
        .filter(|&sum| sum <= isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_copies_across_pieces() {
        let (one, other) = ([1u8, 2, 3], [4u8, 5]);
        let pieces = [Span::from(&one[..]), Span::EMPTY, Span::from(&other[..])];
        assert_eq!(total(&pieces), Some(5));
        let mut cursor = Cursor::new(&pieces);
        let mut to = [0u8; 4];
        cursor.copy_out(Span::from(&mut to[..]));
        assert_eq!(to, [1, 2, 3, 4]);
        assert_eq!(cursor.here().len(), 1);
        let mut rest = [9u8; 3];
        cursor.copy_out(Span::from(&mut rest[..]));
        assert_eq!(rest, [5, 9, 9]);
    }
}
