//! read, write and their positional, vectored and fortified forms.

use crate::errno::count;
use crate::real::{aliases, cancellable, cancellation_point};
use crate::session::managed;
use forebay_client::{OpenFile, Readable, UserBuffers};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;

/// As [`count`]; but where another thread has closed or replaced the descriptor before the call
/// came to it, `again` makes the call of what the number is by now.
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

/// Writes at `place`, or at the end where a flag or the description says so.
fn write_flagged(
    file: &OpenFile<'_>,
    buffers: &UserBuffers<'_, Readable>,
    place: Option<u64>,
    flags: c_int,
) -> Result<usize, Errno> {
    let append = match flags & (libc::RWF_APPEND | RWF_NOAPPEND) {
        0 => file.appends(),
        chosen => chosen == libc::RWF_APPEND,
    };
    let written = file.write_placed(buffers, place, append)?;
    if written > 0 && flags & SYNCED != 0 {
        file.sync_written(true)?;
    }
    Ok(written)
}

/// Calls that move data between the program's buffers and a managed file, if that is usable so.
macro_rules! transfers {
    ($($visible:vis $name:ident $symbol:literal ($fd:ident: c_int, $($argument:ident: $type:ty),*)
        on $file:ident if $usable:expr, $buffers:ident = $made:expr => $result:expr;)*) => { $(
        #[unsafe(no_mangle)]
        $visible unsafe extern "C-unwind" fn $name($fd: c_int, $($argument: $type),*) -> ssize_t {
            match managed($fd) {
                Some($file) if $usable => {
                    cancellation_point();
                    // SAFETY: the program's buffers, and its list of them.
                    let $buffers = unsafe { $made };
                    let result: Result<usize, Errno> = $result;
                    // SAFETY: the program's call, made again.
                    count_current(&$file, result, || unsafe { $name($fd, $($argument),*) })
                }
                _ => cancellable!($symbol($fd => c_int, $($argument => $type),*) -> ssize_t),
            }
        }
    )* };
}

transfers! {
    read c"read" (fd: c_int, buffer: *mut c_void, bytes: size_t)
        on file if !file.uses_kernel_offset(), to = UserBuffers::at(buffer.cast(), bytes)
        => file.read(&to);
    readv c"readv" (fd: c_int, pieces: *const iovec, number: c_int)
        on file if !file.uses_kernel_offset(), to = UserBuffers::listed(pieces.cast(), number)
        => file.read(&to);
    pub(crate) pread64 c"pread64" (fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t)
        on file if true, to = UserBuffers::at(buffer.cast(), bytes)
        => at(offset).and_then(|offset| file.pread(&to, offset));
    preadv64 c"preadv64" (fd: c_int, pieces: *const iovec, number: c_int, offset: off_t)
        on file if true, to = UserBuffers::listed(pieces.cast(), number)
        => at(offset).and_then(|offset| file.pread(&to, offset));
    preadv64v2 c"preadv64v2" (fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int)
        on file if offset != -1 || !file.uses_kernel_offset(),
        to = UserBuffers::listed(pieces.cast(), number)
        => place(offset, flags).and_then(|place| match place {
            Some(offset) => file.pread(&to, offset),
            None => file.read(&to),
        });
    write c"write" (fd: c_int, buffer: *const c_void, bytes: size_t)
        on file if !file.uses_kernel_offset(), from = UserBuffers::at(buffer.cast(), bytes)
        => file.write_placed(&from, None, file.appends());
    writev c"writev" (fd: c_int, pieces: *const iovec, number: c_int)
        on file if !file.uses_kernel_offset(), from = UserBuffers::listed(pieces.cast(), number)
        => file.write_placed(&from, None, file.appends());
    pub(crate) pwrite64 c"pwrite64" (fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t)
        on file if true, from = UserBuffers::at(buffer.cast(), bytes)
        => at(offset).and_then(|offset| file.write_placed(&from, Some(offset), file.appends()));
    pwritev64 c"pwritev64" (fd: c_int, pieces: *const iovec, number: c_int, offset: off_t)
        on file if true, from = UserBuffers::listed(pieces.cast(), number)
        => at(offset).and_then(|offset| file.write_placed(&from, Some(offset), file.appends()));
    pwritev64v2 c"pwritev64v2" (fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int)
        on file if offset != -1 || !file.uses_kernel_offset(),
        from = UserBuffers::listed(pieces.cast(), number)
        => place(offset, flags).and_then(|place| write_flagged(&file, &from, place, flags));
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
    // SAFETY: the program's call; the buffer has room.
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
    // SAFETY: the program's call; the buffer has room.
    unsafe { pread64(fd, buffer, bytes, offset) }
}

aliases! {
    "C-unwind" pread = pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t;
    "C-unwind" pwrite = pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t) -> ssize_t;
    "C-unwind" preadv = preadv64(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t) -> ssize_t;
    "C-unwind" pwritev = pwritev64(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t) -> ssize_t;
    "C-unwind" preadv2 = preadv64v2(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t;
    "C-unwind" pwritev2 = pwritev64v2(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t;
    "C-unwind" __pread64_chk = __pread_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t;
}
