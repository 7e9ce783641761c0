//! Where glibc keeps what in a FILE: `struct _IO_FILE`, which is public in
//! <bits/types/struct_FILE.h>, and the same on every 64-bit glibc; behind it the function table,
//! and in a cookie stream the cookie.

use core::marker::PhantomData;
use core::ptr::NonNull;
use libc::{FILE, c_int, c_void};

/// Where in a stream a field of type `T` lies.
#[derive(Clone, Copy)]
pub struct Place<T>(usize, PhantomData<T>);

const fn at<T>(offset: usize) -> Place<T> {
    Place(offset, PhantomData)
}

/// The flags, and some of them.
pub const FLAGS_AT: Place<u32> = at(0);
/// The buffer is not glibc's to free.
pub const USER_BUFFER: u32 = 0x1;
pub const UNBUFFERED: u32 = 0x2;
pub const NO_READS: u32 = 0x4;
pub const NO_WRITES: u32 = 0x8;
pub const EOF_SEEN: u32 = 0x10;
pub const ERROR_SEEN: u32 = 0x20;
/// What is read next was pushed back.
pub const IN_BACKUP: u32 = 0x100;
pub const LINE_BUFFERED: u32 = 0x200;
pub const WRITING: u32 = 0x800;
pub const APPENDING: u32 = 0x1000;
/// Begin and end of what was read and not yet taken.
pub const READ_POINTER_AT: Place<*mut u8> = at(8);
pub const READ_END_AT: Place<*mut u8> = at(16);
/// All eight pointers, of which the last two are the buffer itself.
pub const POINTERS_AT: Place<[*mut u8; 8]> = at(8);
/// The six before the buffer.
pub const POSITIONS_AT: Place<[*mut u8; 6]> = at(8);
pub const READ_BASE_AT: Place<*mut u8> = at(24);
pub const WRITE_BASE_AT: Place<*mut u8> = at(32);
pub const BUFFER_AT: Place<*mut u8> = at(56);
pub const BUFFER_END_AT: Place<*mut u8> = at(64);
/// `_IO_save_base`: the area of what is pushed back, or, while that is read, the buffer.
pub const SAVED_AT: Place<*mut u8> = at(72);
/// `_fileno`.
pub const FILENO_AT: Place<c_int> = at(112);
/// `_flags2`, and in it: the lock is needed; it was opened with `e`, which holds when it is
/// reopened, too.
pub const FLAGS2_AT: Place<u32> = at(116);
pub const NEEDS_LOCK: u32 = 0x80;
pub const CLOSED_AT_EXEC: u32 = 0x40;
/// `_offset`, the position that glibc remembers; -1 is none.
pub const OFFSET_AT: Place<i64> = at(144);
/// `_wide_data`.
pub const WIDE_DATA_AT: Place<*mut c_void> = at(160);
/// `_mode`, the orientation: bytes if negative, none yet if zero.
pub const ORIENTATION_AT: Place<c_int> = at(192);
/// glibc made its buffer and closes its descriptor, as of a stream on a file.
pub const FILE_BUFFER: u32 = 0x2000;
/// The function table, behind the 216 bytes of the structure.
pub const JUMPS_AT: Place<usize> = at(216);
/// In a cookie stream the cookie follows, and its functions, of which the first reads.
pub const COOKIE_AT: Place<*mut c_void> = at(224);
pub const READER_AT: Place<usize> = at(232);

/// A stream, whose fields can be used.
#[derive(Clone, Copy)]
pub struct Stream<'a>(NonNull<FILE>, PhantomData<&'a FILE>);

impl<'a> Stream<'a> {
    /// `None` if it is null.
    ///
    /// # Safety
    /// A stream, open for `'a`. It is used under its lock, or before other threads have it, but for
    /// two words that are read at any time: its descriptor's number and its function table. What is
    /// set in it is what glibc may find there.
    #[inline]
    pub unsafe fn at(stream: *mut FILE) -> Option<Stream<'a>> {
        NonNull::new(stream).map(|stream| Stream(stream, PhantomData))
    }

    pub fn as_ptr(self) -> *mut FILE {
        self.0.as_ptr()
    }

    #[inline]
    pub fn get<T: Copy>(self, place: Place<T>) -> T {
        // SAFETY: the places are those above, each with its type. Only glibc's three static streams
        // end before the last two, and there lies other data of the library's.
        unsafe { self.0.cast::<u8>().add(place.0).cast::<T>().read() }
    }

    #[inline]
    pub fn set<T: Copy>(self, place: Place<T>, value: T) {
        // SAFETY: as in `get`; those last two are never set.
        unsafe { self.0.cast::<u8>().add(place.0).cast::<T>().write(value) }
    }

    pub fn raise(self, flags: u32) {
        self.set(FLAGS_AT, self.get(FLAGS_AT) | flags);
    }

    pub fn lower(self, flags: u32) {
        self.set(FLAGS_AT, self.get(FLAGS_AT) & !flags);
    }
}
