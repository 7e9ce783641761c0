//! The application's buffers.

/// A piece of the application's memory, laid out like `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Iovec {
    /// First byte.
    pub base: *mut u8,
    /// Bytes.
    pub length: usize,
}

/// A position in a list of pieces.
pub(crate) struct Cursor<'a> {
    pieces: &'a [Iovec],
    piece: usize,
    within: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(pieces: &'a [Iovec]) -> Cursor<'a> {
        Cursor { pieces, piece: 0, within: 0 }
    }

    /// The memory at the position: its address and how many bytes follow without a break.
    #[inline]
    pub fn here(&mut self) -> (*mut u8, usize) {
        while let Some(piece) = self.pieces.get(self.piece) {
            if self.within < piece.length {
                // SAFETY: within the piece the application gave.
                return (unsafe { piece.base.add(self.within) }, piece.length - self.within);
            }
            self.piece += 1;
            self.within = 0;
        }
        (core::ptr::null_mut(), 0)
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

    /// Copies `bytes` from the application to `to`.
    ///
    /// # Safety
    /// `to` has room, and the application's buffers are readable.
    #[inline]
    pub unsafe fn copy_out(&mut self, mut to: *mut u8, mut bytes: usize) {
        while bytes > 0 {
            let (from, length) = self.here();
            let count = length.min(bytes);
            if count == 0 {
                return;
            }
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, count);
                to = to.add(count);
            }
            self.advance(count);
            bytes -= count;
        }
    }

    /// Copies `bytes` from `from` to the application.
    ///
    /// # Safety
    /// `from` is readable, and the application's buffers are writable.
    #[inline]
    pub unsafe fn copy_in(&mut self, mut from: *const u8, mut bytes: usize) {
        while bytes > 0 {
            let (to, length) = self.here();
            let count = length.min(bytes);
            if count == 0 {
                return;
            }
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, count);
                from = from.add(count);
            }
            self.advance(count);
            bytes -= count;
        }
    }
}

/// Bytes of all pieces, or `None` when they exceed what a system call may transfer.
#[inline]
pub(crate) fn total(pieces: &[Iovec]) -> Option<usize> {
    pieces
        .iter()
        .try_fold(0usize, |sum, piece| sum.checked_add(piece.length))
        .filter(|&sum| sum <= isize::MAX as usize)
}
