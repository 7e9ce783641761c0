//! Copies inside the kernel between descriptors, done here when one of them is managed.

use crate::files::borrow;
use crate::real::{aliases, real, without_cancellation};
use crate::{count, last_error, managed};
use forebay_client::user_memory::is_writable;
use libc::{c_int, c_uint, off64_t, size_t, ssize_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

/// Bytes copied at once: what stays in the processor's cache, and what malloc takes from its heap.
const PIECE: usize = 64 << 10;
/// What one such call of the kernel moves at most.
const MOST: usize = 0x7fff_f000;
/// What a pipe that says it can be written takes without waiting.
const PIPE_PAGE: usize = 4096;
/// All flags of splice.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

fn bytes(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_error())
}

/// A position from which so many bytes have offsets.
fn from_start(at: i64, bytes: usize) -> Result<i64, Errno> {
    let end = i64::try_from(bytes).ok().and_then(|bytes| at.checked_add(bytes));
    if at < 0 || end.is_none() { Err(Errno::INVAL) } else { Ok(at) }
}

/// Memory for the piece under way.
struct Buffer(*mut u8, usize);

impl Buffer {
    fn of(bytes: usize) -> Result<Buffer, Errno> {
        let bytes = bytes.clamp(1, PIECE);
        let start = unsafe { libc::malloc(bytes) }.cast::<u8>();
        if start.is_null() { Err(Errno::NOMEM) } else { Ok(Buffer(start, bytes)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { libc::free(self.0.cast()) };
    }
}

/// One end of a copy: a descriptor, and what is known of it.
#[derive(Clone, Copy)]
struct End {
    fd: c_int,
    flags: OFlags,
    kind: FileType,
    device: u64,
    inode: u64,
}

impl End {
    /// Looks at a descriptor that the caller will read (or write).
    fn of(fd: c_int, writes: bool) -> Result<End, Errno> {
        End::open(fd)?.opened_for(writes)
    }

    /// Looks at a descriptor of whatever kind, opened for whatever.
    fn open(fd: c_int) -> Result<End, Errno> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        let fd_now = borrow(fd);
        let flags = rustix::fs::fcntl_getfl(fd_now)?;
        if flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        let hidden = managed(fd).map_or(OFlags::empty(), |file| file.hidden_flags());
        let stat = rustix::fs::fstat(fd_now)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(End { fd, flags: flags | hidden, kind, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether it was opened for writing, or for reading.
    fn opened_for(self, writes: bool) -> Result<End, Errno> {
        let wrong = if writes { OFlags::RDONLY } else { OFlags::WRONLY };
        if self.flags & OFlags::RWMODE == wrong { Err(Errno::BADF) } else { Ok(self) }
    }

    /// Where the copy begins: at `*offset`, which may be negative, or at the descriptor's own.
    unsafe fn position(self, offset: *mut off64_t) -> Result<i64, Errno> {
        let at = match offset.is_null() {
            true => unsafe { libc::lseek64(self.fd, 0, libc::SEEK_CUR) },
            false if is_writable(offset.cast(), size_of::<off64_t>()) => unsafe { *offset },
            false => return Err(Errno::FAULT),
        };
        if offset.is_null() && at < 0 { Err(last_error()) } else { Ok(at) }
    }

    /// Notes where the copy ended.
    unsafe fn set_position(self, offset: *mut off64_t, at: i64) {
        match offset.is_null() {
            true => drop(unsafe { libc::lseek64(self.fd, at, libc::SEEK_SET) }),
            false => unsafe { *offset = at },
        }
    }

    fn read(self, buffer: &Buffer, most: usize, at: i64) -> Result<usize, Errno> {
        let most = most.min(buffer.1);
        bytes(unsafe { libc::pread64(self.fd, buffer.0.cast(), most, at) })
    }

    /// Writes all of `buffer[..length]`, at `at` or to a descriptor without offsets. Stops early
    /// where the other side takes no more.
    fn write(self, buffer: &Buffer, length: usize, at: Option<i64>) -> (usize, Option<Errno>) {
        let mut done = 0;
        while done < length {
            let (from, rest) = (unsafe { buffer.0.add(done) }.cast(), length - done);
            let written = bytes(match at {
                Some(at) => unsafe { libc::pwrite64(self.fd, from, rest, at + done as i64) },
                None => unsafe { libc::write(self.fd, from, rest) },
            });
            match written {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(errno) => return (done, Some(errno)),
            }
        }
        (done, None)
    }

    /// Bytes from `at` up to the end that the file has now: a copy within one file moves its end,
    /// and must not follow it.
    fn remaining(self, at: i64) -> usize {
        let mut stat = unsafe { core::mem::zeroed::<libc::stat>() };
        if self.kind != FileType::RegularFile || unsafe { libc::fstat(self.fd, &mut stat) } != 0 {
            return usize::MAX;
        }
        stat.st_size.saturating_sub(at).max(0) as usize
    }

    fn is_ready(self, events: PollFlags, waits: bool) -> Result<bool, Errno> {
        let fd = borrow(self.fd);
        let mut fds = [PollFd::new(&fd, events)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut fds, if waits { None } else { Some(&now) })? > 0)
    }
}

/// Copies up to `length` bytes from `from` at `at` to `to`. Returns how many, unless the first
/// piece failed.
fn copy(
    from: End,
    at: i64,
    to: End,
    mut to_at: Option<i64>,
    length: usize,
) -> Result<usize, Errno> {
    let length = length.min(from.remaining(at)).min(MOST);
    let buffer = Buffer::of(length)?;
    let mut done = 0;
    while done < length {
        let (put, got, error) = match from.read(&buffer, length - done, at + done as i64) {
            Ok(got) => {
                let (put, error) = to.write(&buffer, got, to_at);
                (put, got, error)
            }
            Err(errno) => (0, 0, Some(errno)),
        };
        done += put;
        to_at = to_at.map(|to_at| to_at + put as i64);
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if got > 0 && put == got => {}
            _ => break,
        }
    }
    Ok(done)
}

unsafe fn copy_range(
    (from, from_offset): (c_int, *mut off64_t),
    (to, to_offset): (c_int, *mut off64_t),
    bytes: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    if flags != 0 {
        let open = |fd: c_int| {
            // SAFETY: only asked about.
            let flags = (fd >= 0).then(|| rustix::fs::fcntl_getfl(borrow(fd)));
            flags.is_some_and(|flags| flags.is_ok_and(|flags| !flags.contains(OFlags::PATH)))
        };
        return Err(if open(from) && open(to) { Errno::INVAL } else { Errno::BADF });
    }
    let ends = [End::open(from)?, End::open(to)?];
    // In the kernel's order: a directory comes first, wherever it is and however it was opened.
    if ends.iter().any(|end| end.kind == FileType::Directory) {
        return Err(Errno::ISDIR);
    }
    if ends.iter().any(|end| end.kind != FileType::RegularFile) {
        return Err(Errno::INVAL);
    }
    let (from, to) = (ends[0].opened_for(false)?, ends[1].opened_for(true)?);
    let at = unsafe { from.position(from_offset) }?;
    let to_at = unsafe { to.position(to_offset) }?;
    if to.flags.contains(OFlags::APPEND) {
        return Err(Errno::BADF);
    }
    if from.device != to.device {
        return Err(Errno::XDEV);
    }
    let wraps = |at: i64| (at as u64).checked_add(bytes as u64).is_none();
    if wraps(at) || wraps(to_at) {
        return Err(Errno::OVERFLOW);
    }
    if at < 0 || to_at < 0 {
        return Err(Errno::INVAL);
    }
    let mut length = bytes.min(from.remaining(at)).min(MOST);
    if let Some(file) = managed(to.fd) {
        // Also where nothing is left to be copied; what has no offset is cut off first.
        length = length.min((i64::MAX - to_at) as usize);
        length = file.allowed(to_at as u64, length)?;
    }
    let (end, to_end) = (at + length as i64, to_at + length as i64);
    if from.inode == to.inode && to_end > at && to_at < end {
        return Err(Errno::INVAL);
    }
    let done = copy(from, at, to, Some(to_at), length)?;
    unsafe {
        from.set_position(from_offset, at + done as i64);
        to.set_position(to_offset, to_at + done as i64);
    }
    Ok(done)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"copy_file_range"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    }
    // Whose frames hold a buffer.
    without_cancellation(|| {
        count(unsafe { copy_range((from, from_offset), (to, to_offset), bytes, flags) })
    })
}

unsafe fn send(to: c_int, from: c_int, offset: *mut off64_t, bytes: usize) -> Result<usize, Errno> {
    let from = End::of(from, false)?;
    if !matches!(from.kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(if offset.is_null() { Errno::INVAL } else { Errno::SPIPE });
    }
    let at = from_start(unsafe { from.position(offset) }?, bytes)?;
    let to = End::of(to, true)?;
    let mut bytes = bytes.min(MOST);
    for file in [from.fd, to.fd].into_iter().filter_map(managed) {
        bytes = file.possible(at as u64, bytes).ok_or(Errno::OVERFLOW)?;
    }
    if to.flags.contains(OFlags::APPEND) {
        return Err(Errno::INVAL);
    }
    let done = copy(from, at, to, None, bytes)?;
    unsafe { from.set_position(offset, at + done as i64) };
    Ok(done)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    bytes: size_t,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"sendfile64"(to => c_int, from => c_int, offset => *mut off64_t, bytes => size_t) -> ssize_t);
    }
    // Whose frames hold a buffer.
    without_cancellation(|| count(unsafe { send(to, from, offset, bytes) }))
}

/// Fills a pipe from a file, up to `length` bytes: waits for room only while nothing has moved, and
/// never for a reader to make more.
fn fill_pipe(from: End, at: i64, pipe: End, length: usize, waits: bool) -> Result<usize, Errno> {
    let length = length.min(from.remaining(at));
    let buffer = Buffer::of(length)?;
    let fd = borrow(pipe.fd);
    let mut done = 0;
    // How much the pipe takes for certain: all that it holds if it is empty, else a page.
    let mut room = match rustix::io::ioctl_fionread(fd)? {
        0 => rustix::pipe::fcntl_getpipe_size(fd)?,
        _ => 0,
    };
    while done < length {
        if room == 0 {
            if !pipe.is_ready(PollFlags::OUT, waits && done == 0)? {
                if done == 0 {
                    return Err(Errno::AGAIN);
                }
                break;
            }
            room = PIPE_PAGE;
        }
        let got = match from.read(&buffer, room.min(length - done), at + done as i64) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = pipe.write(&buffer, got, None);
        done += put;
        room = room.saturating_sub(put);
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if put == got => {}
            _ => break,
        }
    }
    Ok(done)
}

/// Empties a pipe to a file, up to `length` bytes: waits for bytes only while nothing has moved.
fn empty_pipe(pipe: End, to: End, at: i64, length: usize, waits: bool) -> Result<usize, Errno> {
    let buffer = Buffer::of(length)?;
    let fd = borrow(pipe.fd);
    let mut done = 0;
    while done < length {
        if done > 0 && rustix::io::ioctl_fionread(fd)? == 0 {
            break;
        }
        if !waits && !pipe.is_ready(PollFlags::IN, false)? {
            return if done == 0 { Err(Errno::AGAIN) } else { Ok(done) };
        }
        let most = buffer.1.min(length - done);
        let got = match bytes(unsafe { libc::read(pipe.fd, buffer.0.cast(), most) }) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = to.write(&buffer, got, Some(at + done as i64));
        done += put;
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if put == got => {}
            _ => break,
        }
    }
    Ok(done)
}

unsafe fn splice_range(
    (from, from_offset): (c_int, *mut off64_t),
    (to, to_offset): (c_int, *mut off64_t),
    bytes: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    if bytes == 0 {
        return Ok(0);
    }
    if flags & !SPLICE_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let (from, to) = (End::of(from, false)?, End::of(to, true)?);
    let bytes = bytes.min(MOST);
    let waits =
        |pipe: End| flags & libc::SPLICE_F_NONBLOCK == 0 && !pipe.flags.contains(OFlags::NONBLOCK);
    // One end is managed, and so a file: the other has to be a pipe.
    if to.kind == FileType::Fifo {
        if !to_offset.is_null() {
            return Err(Errno::SPIPE);
        }
        let at = from_start(unsafe { from.position(from_offset) }?, bytes)?;
        let done = fill_pipe(from, at, to, bytes, waits(to))?;
        unsafe { from.set_position(from_offset, at + done as i64) };
        Ok(done)
    } else if from.kind == FileType::Fifo {
        if !from_offset.is_null() {
            return Err(Errno::SPIPE);
        }
        let at = from_start(unsafe { to.position(to_offset) }?, bytes)?;
        if to.flags.contains(OFlags::APPEND) {
            return Err(Errno::INVAL);
        }
        let done = empty_pipe(from, to, at, bytes, waits(from))?;
        unsafe { to.set_position(to_offset, at + done as i64) };
        Ok(done)
    } else {
        Err(Errno::INVAL)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"splice"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    }
    // Whose frames hold a buffer.
    without_cancellation(|| {
        count(unsafe { splice_range((from, from_offset), (to, to_offset), bytes, flags) })
    })
}

aliases! {
    "C" sendfile = sendfile64(to: c_int, from: c_int, offset: *mut off64_t, bytes: size_t) -> ssize_t;
}
