//! Where glibc keeps what in a FILE: `struct _IO_FILE`, which is public in
//! <bits/types/struct_FILE.h>, and the same on every 64-bit glibc; behind it the function table,
//! and in a cookie stream the cookie.

use libc::{FILE, c_int};

/// The flags, and some of them.
pub const FLAGS_AT: usize = 0;
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
pub const READ_POINTER_AT: usize = 8;
pub const READ_END_AT: usize = 16;
/// All eight pointers, of which the last two are the buffer itself.
pub const POINTERS_AT: usize = 8;
pub const READ_BASE_AT: usize = 24;
pub const WRITE_BASE_AT: usize = 32;
pub const BUFFER_AT: usize = 56;
/// `_fileno`.
pub const FILENO_AT: usize = 112;
/// `_flags2`, and in it: the lock is needed; it was opened with `e`, which holds when it is
/// reopened, too.
pub const FLAGS2_AT: usize = 116;
pub const NEEDS_LOCK: u32 = 0x80;
pub const CLOSED_AT_EXEC: u32 = 0x40;
/// `_offset`, the position that glibc remembers; -1 is none.
pub const OFFSET_AT: usize = 144;
/// `_wide_data`.
pub const WIDE_DATA_AT: usize = 160;
/// `_mode`, the orientation: bytes if negative, none yet if zero.
pub const ORIENTATION_AT: usize = 192;
/// glibc made its buffer and closes its descriptor, as of a stream on a file.
pub const FILE_BUFFER: u32 = 0x2000;
/// The function table, behind the 216 bytes of the structure.
pub const JUMPS_AT: usize = 216;
/// In a cookie stream the cookie follows, and its functions, of which the first reads.
pub const COOKIE_AT: usize = 224;
pub const READER_AT: usize = 232;

/// A field of the stream's structure.
///
/// # Safety
/// A stream, open; `at` is one of the places above, and `T` what lies there.
pub unsafe fn field<T>(stream: *mut FILE, at: usize) -> *mut T {
    // SAFETY: within the structure.
    unsafe { stream.cast::<u8>().add(at).cast() }
}

/// The stream's descriptor; negative if it has none. errno stays as it is.
///
/// # Safety
/// A stream, open.
pub unsafe fn number(stream: *mut FILE) -> c_int {
    // SAFETY: see above.
    unsafe { field::<c_int>(stream, FILENO_AT).read() }
}

/// The stream's flags.
///
/// # Safety
/// A stream, open, whose lock the thread holds, or that no other thread knows.
pub unsafe fn flags_place<'a>(stream: *mut FILE) -> &'a mut u32 {
    // SAFETY: see above.
    unsafe { &mut *field::<u32>(stream, FLAGS_AT) }
}
