//! The caller's buffers of a call that moves data.
//!
//! As in the kernel, a buffer that is invalid in part is used up to there, and one call moves at
//! most [`MOST`] bytes.

use crate::span::{Readable, Span, Writable};
use crate::user_memory::{is_possible, is_readable, readable_part, writable_part};
use rustix::io::Errno;

/// Bytes that one call moves at most: the kernel's MAX_RW_COUNT.
const MOST: usize = 0x7fff_f000;
/// Pieces that one call takes at most: IOV_MAX.
const PIECES: usize = 1024;

/// A piece of a program's memory, laid out like `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Iovec {
    /// First byte.
    pub base: *mut u8,
    /// Bytes.
    pub length: usize,
}

/// What a call does with the caller's memory: [`Readable`] for writes, [`Writable`] for reads.
pub trait Access {
    /// How many of `bytes` at `base` can be used so before the first that cannot.
    fn usable(base: *const u8, bytes: usize) -> usize;
}

impl Access for Readable {
    #[inline]
    fn usable(base: *const u8, bytes: usize) -> usize {
        readable_part(base, bytes)
    }
}

impl Access for Writable {
    #[inline]
    fn usable(base: *const u8, bytes: usize) -> usize {
        writable_part(base, bytes)
    }
}

/// The caller's memory, checked once: at most what one call moves, as far as it can be used.
#[derive(Debug)]
pub struct UserBuffers<'b, A> {
    /// The only piece, as far as it can be used. Where there are several its length is that of all
    /// of them, as far as they can be used.
    one: Span<'b, A>,
    /// Where there are several: all of them, whole.
    list: &'b [Span<'b, A>],
    /// Bytes that were asked for, as far as one call goes.
    asked: usize,
    /// Why there are none.
    refused: Option<Errno>,
}

impl<A: Access> UserBuffers<'_, A> {
    /// The `bytes` at `base`, wherever that is.
    ///
    /// # Safety
    /// As far as the memory can be used it is the caller's to give: no Rust reference says that it
    /// does not change, and no thread takes it away while the buffers are used.
    #[inline]
    pub unsafe fn at(base: *const u8, bytes: usize) -> Self {
        if !is_possible(base, bytes) {
            return Self::refused(Errno::FAULT);
        }
        let asked = bytes.min(MOST);
        let usable = A::usable(base, asked);
        // SAFETY: found usable, and the caller's to give.
        let one = unsafe { Span::new(base.cast_mut(), usable) };
        UserBuffers { one, list: &[], asked, refused: None }
    }

    /// The `number` pieces that a list at `pieces` names, wherever that is.
    ///
    /// # Safety
    /// As of [`UserBuffers::at`], for the list and for each piece.
    pub unsafe fn listed(pieces: *const Iovec, number: i32) -> Self {
        let Some(number) = usize::try_from(number).ok().filter(|&number| number <= PIECES) else {
            return Self::refused(Errno::INVAL);
        };
        if number == 0 {
            return UserBuffers { one: Span::EMPTY, list: &[], asked: 0, refused: None };
        }
        if !is_readable(pieces.cast(), number * size_of::<Iovec>()) {
            return Self::refused(Errno::FAULT);
        }
        // SAFETY: one layout, and readable. What of a piece cannot be used is cut off in `with`.
        let list = unsafe { core::slice::from_raw_parts(pieces.cast::<Span<'_, A>>(), number) };
        if list.iter().any(|piece| piece.len() > isize::MAX as usize) {
            return Self::refused(Errno::INVAL);
        }
        if list.iter().any(|piece| !is_possible(piece.base(), piece.len())) {
            return Self::refused(Errno::FAULT);
        }
        let (mut usable, mut asked) = (0, 0);
        for piece in list {
            let length = piece.len().min(MOST - asked);
            if usable == asked {
                usable += A::usable(piece.base(), length);
            }
            asked += length;
        }
        // SAFETY: as long as is usable if it is the only one, and else only its length is looked
        // at.
        let one = unsafe { Span::new(list[0].base(), usable) };
        let list = if number == 1 { &[] } else { list };
        UserBuffers { one, list, asked, refused: None }
    }

    /// Calls `act` with the pieces, as far as they can be used, or else `refuse` with the reason:
    /// `FAULT` if the first byte cannot be used.
    #[inline(always)]
    pub(crate) fn with<R>(
        &self,
        act: impl Fn(&[Span<'_, A>]) -> R,
        refuse: impl FnOnce(Errno) -> R,
    ) -> R {
        match self.pieces() {
            Some(pieces) => act(pieces),
            None => self.with_part(act, refuse),
        }
    }

    /// The pieces, where all of what is asked for can be used, or there is one piece. `None`: see
    /// [`UserBuffers::with_part`].
    #[inline(always)]
    fn pieces(&self) -> Option<&[Span<'_, A>]> {
        if self.list.is_empty() && self.one.len() > 0 {
            return Some(core::slice::from_ref(&self.one));
        }
        self.several()
    }

    #[inline(never)]
    fn several(&self) -> Option<&[Span<'_, A>]> {
        match self.list {
            [] => (self.asked == 0 && self.refused.is_none()).then_some(&[]),
            list => (self.one.len() == self.asked && self.asked < MOST).then_some(list),
        }
    }

    /// Calls `act` with what can be used of several pieces, or `refuse`.
    // Apart, because a handler's stack may be small.
    #[cold]
    #[inline(never)]
    fn with_part<R>(
        &self,
        act: impl FnOnce(&[Span<'_, A>]) -> R,
        refuse: impl FnOnce(Errno) -> R,
    ) -> R {
        let mut left = self.one.len();
        if left == 0 || self.refused.is_some() {
            return refuse(self.refused.unwrap_or(Errno::FAULT));
        }
        let mut part = [const { Span::EMPTY }; PIECES];
        for (place, piece) in part.iter_mut().zip(self.list) {
            *place = piece.first(left);
            left -= place.len();
        }
        act(&part[..self.list.len()])
    }

    /// Whether there are bytes, and the first of them cannot be used.
    pub(crate) fn is_faulty(&self) -> bool {
        self.refused.is_none() && self.asked > 0 && self.one.len() == 0
    }
}

impl<A> UserBuffers<'_, A> {
    fn refused(errno: Errno) -> Self {
        UserBuffers { one: Span::EMPTY, list: &[], asked: 0, refused: Some(errno) }
    }
}

impl<'b, A> From<Span<'b, A>> for UserBuffers<'b, A> {
    fn from(one: Span<'b, A>) -> Self {
        let one = one.first(MOST);
        UserBuffers { asked: one.len(), one, list: &[], refused: None }
    }
}

impl<'b> From<&'b [u8]> for UserBuffers<'b, Readable> {
    fn from(bytes: &'b [u8]) -> Self {
        Span::from(bytes).into()
    }
}

impl<'b> From<&'b mut [u8]> for UserBuffers<'b, Writable> {
    fn from(bytes: &'b mut [u8]) -> Self {
        Span::from(bytes).into()
    }
}
