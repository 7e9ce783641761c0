//! read, write and their positional, vectored and fortified forms.
//!
//! As in the kernel, a buffer that is invalid in part is used up to there, and one call moves at
//! most [`MOST`] bytes.

use crate::real::{cancellable, cancellation_point};
use crate::{count, managed};
use forebay_client::user_memory::{is_possible, is_readable, readable_part, writable_part};
use forebay_client::{Iovec, OpenFile, Whence};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;

/// Bytes that one call moves at most: the kernel's MAX_RW_COUNT.
const MOST: usize = 0x7fff_f000;
/// Pieces that one call takes at most: IOV_MAX.
const PIECES: usize = 1024;

/// How much of a buffer can be used, for reading from it or for writing to it.
type Check = fn(*const u8, usize) -> usize;

/// The program's buffers, and how many of their bytes can be used.
struct Buffers<'a> {
    pieces: &'a [Iovec],
    usable: usize,
    /// Bytes that were asked for, as far as one call goes.
    asked: usize,
}

impl<'a> Buffers<'a> {
    #[inline]
    fn one(piece: &'a Iovec, check: Check) -> Result<Buffers<'a>, Errno> {
        if !is_possible(piece.base, piece.length) {
            return Err(Errno::FAULT);
        }
        let asked = piece.length.min(MOST);
        let usable = check(piece.base, asked);
        Ok(Buffers { pieces: core::slice::from_ref(piece), usable, asked })
    }

    unsafe fn several(
        pieces: *const iovec,
        number: c_int,
        check: Check,
    ) -> Result<Buffers<'a>, Errno> {
        let number = usize::try_from(number).ok().filter(|&number| number <= PIECES);
        let number = number.ok_or(Errno::INVAL)?;
        if number == 0 {
            return Ok(Buffers { pieces: &[], usable: 0, asked: 0 });
        }
        if !is_readable(pieces.cast(), number * size_of::<iovec>()) {
            return Err(Errno::FAULT);
        }
        // SAFETY: one layout, and readable.
        let pieces = unsafe { core::slice::from_raw_parts(pieces.cast::<Iovec>(), number) };
        if pieces.iter().any(|piece| piece.length > isize::MAX as usize) {
            return Err(Errno::INVAL);
        }
        if pieces.iter().any(|piece| !is_possible(piece.base, piece.length)) {
            return Err(Errno::FAULT);
        }
        let (mut usable, mut asked) = (0, 0);
        for piece in pieces {
            let length = piece.length.min(MOST - asked);
            if usable == asked {
                usable += check(piece.base, length);
            }
            asked += length;
        }
        Ok(Buffers { pieces, usable, asked })
    }

    /// Calls `act` with the usable part.
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&[Iovec]) -> R) -> R {
        match self.pieces {
            [one] => act(&[Iovec { base: one.base, length: self.usable }]),
            pieces if self.usable == self.asked && self.asked < MOST => act(pieces),
            _ => self.with_part(act),
        }
    }

    /// Apart, because a handler's stack may be small.
    #[cold]
    #[inline(never)]
    fn with_part<R>(&self, act: impl FnOnce(&[Iovec]) -> R) -> R {
        let mut part = [const { Iovec { base: core::ptr::null_mut(), length: 0 } }; PIECES];
        let mut left = self.usable;
        for (place, piece) in part.iter_mut().zip(self.pieces) {
            *place = Iovec { base: piece.base, length: piece.length.min(left) };
            left -= place.length;
        }
        act(&part[..self.pieces.len()])
    }

    fn is_faulty(&self) -> bool {
        self.usable == 0 && self.asked > 0
    }
}

/// Reads from `offset`, or from the description's.
#[inline]
unsafe fn read_managed(
    file: &OpenFile<'_>,
    buffers: Result<Buffers<'_>, Errno>,
    offset: Option<u64>,
) -> Result<usize, Errno> {
    let read = |pieces: &[Iovec]| unsafe {
        match offset {
            Some(offset) => file.pread(pieces, offset),
            None => file.read(pieces),
        }
    };
    // Whether the descriptor may be read at all comes first.
    let buffers = match buffers {
        Ok(buffers) if !buffers.is_faulty() => return buffers.with(read),
        other => read(&[]).and(other)?,
    };
    let from = match offset {
        Some(offset) => offset,
        None => file.seek(0, Whence::Current)?,
    };
    // At the end nothing is copied, wherever to.
    if buffers.asked > 0 && from < file.size()? { Err(Errno::FAULT) } else { Ok(0) }
}

/// Writes at the end if `append`, else at `offset`, or at the description's.
#[inline]
unsafe fn write_managed(
    file: &OpenFile<'_>,
    buffers: Result<Buffers<'_>, Errno>,
    offset: Option<u64>,
    append: bool,
) -> Result<usize, Errno> {
    let write = |pieces: &[Iovec]| unsafe { file.write_placed(pieces, offset, append) };
    match buffers {
        Ok(buffers) if !buffers.is_faulty() => buffers.with(write),
        Ok(_) => {
            write(&[])?;
            file.note_failed_write();
            Err(Errno::FAULT)
        }
        Err(errno) => write(&[]).and(Err(errno)),
    }
}

/// As [`count`]; but where another thread has closed or replaced the descriptor before the call came to it,
/// `again` makes the call of what the number is by now.
#[inline(always)]
fn count_current(
    file: &OpenFile<'_>,
    result: Result<usize, Errno>,
    again: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match result {
        Ok(bytes) => bytes as ssize_t,
        Err(Errno::BADF) if !file.is_current() => again(),
        Err(errno) => count(Err(errno)),
    }
}

fn at(offset: off_t) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

fn piece(buffer: *const c_void, bytes: size_t) -> Iovec {
    Iovec { base: buffer as *mut u8, length: bytes }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            let piece = piece(buffer, bytes);
            let buffers = Buffers::one(&piece, writable_part);
            let result = unsafe { read_managed(&file, buffers, None) };
            count_current(&file, result, || unsafe { read(fd, buffer, bytes) })
        }
        _ => cancellable!(c"read"(fd => c_int, buffer => *mut c_void, bytes => size_t) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            let piece = piece(buffer, bytes);
            let buffers = Buffers::one(&piece, readable_part);
            let append = file.appends();
            let result = unsafe { write_managed(&file, buffers, None, append) };
            count_current(&file, result, || unsafe { write(fd, buffer, bytes) })
        }
        _ => {
            cancellable!(c"write"(fd => c_int, buffer => *const c_void, bytes => size_t) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pread64(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pread64"(fd => c_int, buffer => *mut c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let piece = piece(buffer, bytes);
    let result = at(offset).and_then(|offset| {
        let buffers = Buffers::one(&piece, writable_part);
        unsafe { read_managed(&file, buffers, Some(offset)) }
    });
    count_current(&file, result, || unsafe { pread64(fd, buffer, bytes, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pread64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pwrite64(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pwrite64"(fd => c_int, buffer => *const c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let piece = piece(buffer, bytes);
    let result = at(offset).and_then(|offset| {
        let buffers = Buffers::one(&piece, readable_part);
        let append = file.appends();
        unsafe { write_managed(&file, buffers, Some(offset), append) }
    });
    count_current(&file, result, || unsafe { pwrite64(fd, buffer, bytes, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwrite(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pwrite64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            let buffers = unsafe { Buffers::several(pieces, number, writable_part) };
            let result = unsafe { read_managed(&file, buffers, None) };
            count_current(&file, result, || unsafe { readv(fd, pieces, number) })
        }
        _ => {
            cancellable!(c"readv"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            let buffers = unsafe { Buffers::several(pieces, number, readable_part) };
            let append = file.appends();
            let result = unsafe { write_managed(&file, buffers, None, append) };
            count_current(&file, result, || unsafe { writev(fd, pieces, number) })
        }
        _ => {
            cancellable!(c"writev"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"preadv64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        let buffers = unsafe { Buffers::several(pieces, number, writable_part) };
        unsafe { read_managed(&file, buffers, Some(offset)) }
    });
    count_current(&file, result, || unsafe { preadv64(fd, pieces, number, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe { preadv64(fd, pieces, number, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pwritev64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        let buffers = unsafe { Buffers::several(pieces, number, readable_part) };
        let append = file.appends();
        unsafe { write_managed(&file, buffers, Some(offset), append) }
    });
    count_current(&file, result, || unsafe { pwritev64(fd, pieces, number, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe { pwritev64(fd, pieces, number, offset) }
}

/// Flags of the second forms that are newer than the libc crate.
const RWF_NOAPPEND: c_int = 0x20;
const RWF_DONTCACHE: c_int = 0x80;
const SYNCED: c_int = libc::RWF_SYNC | libc::RWF_DSYNC;
/// Flags that both directions take, although some say nothing to a read, or only how fast a
/// transfer shall be. What is buffered is at hand, and so never EAGAIN.
const KNOWN: c_int =
    libc::RWF_HIPRI | libc::RWF_NOWAIT | libc::RWF_APPEND | RWF_NOAPPEND | RWF_DONTCACHE | SYNCED;

/// The place that the second forms mean by `offset`: -1 is the description's.
fn place(offset: off_t, flags: c_int) -> Result<Option<u64>, Errno> {
    if flags & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if flags & libc::RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(Errno::INVAL);
    }
    if offset == -1 { Ok(None) } else { at(offset).map(Some) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match managed(fd) {
        Some(file) if offset != -1 || !file.uses_kernel_offset() => {
            cancellation_point();
            let result = place(offset, flags).and_then(|place| {
                let buffers = unsafe { Buffers::several(pieces, number, writable_part) };
                unsafe { read_managed(&file, buffers, place) }
            });
            count_current(&file, result, || unsafe {
                preadv64v2(fd, pieces, number, offset, flags)
            })
        }
        _ => {
            cancellable!(c"preadv64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe { preadv64v2(fd, pieces, number, offset, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match managed(fd) {
        Some(file) if offset != -1 || !file.uses_kernel_offset() => {
            cancellation_point();
            let result = place(offset, flags).and_then(|place| {
                let buffers = unsafe { Buffers::several(pieces, number, readable_part) };
                let append = match flags & (libc::RWF_APPEND | RWF_NOAPPEND) {
                    0 => file.appends(),
                    chosen => chosen == libc::RWF_APPEND,
                };
                let written = unsafe { write_managed(&file, buffers, place, append) }?;
                if written > 0 && flags & SYNCED != 0 {
                    file.sync_written(true)?;
                }
                Ok(written)
            });
            count_current(&file, result, || unsafe {
                pwritev64v2(fd, pieces, number, offset, flags)
            })
        }
        _ => {
            cancellable!(c"pwritev64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe { pwritev64v2(fd, pieces, number, offset, flags) }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// The fortified forms know the size of the buffer.
fn check(bytes: size_t, room: size_t) {
    if bytes > room {
        // SAFETY: what glibc itself does with such a program.
        unsafe { __chk_fail() }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    unsafe { read(fd, buffer, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    unsafe { pread64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread64_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    unsafe { __pread_chk(fd, buffer, bytes, offset, room) }
}
