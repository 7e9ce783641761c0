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

/// Memory for the piece under way, of at most so many bytes.
fn buffer(bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.clamp(1, PIECE)).map_err(|_| Errno::NOMEM)?;
    Ok(buffer)
}

/// The offset that a call names: the program's, or null for the descriptor's own.
#[derive(Clone, Copy)]
struct Offset(*mut off64_t);

impl Offset {
    /// The one at `given`, wherever that is.
    ///
    /// # Safety
    /// If it can be written, it is the call's to read and write for as long as the offset, or a
    /// place made of it, is used.
    unsafe fn at(given: *mut off64_t) -> Offset {
        Offset(given)
    }

    fn is_given(self) -> bool {
        !self.0.is_null()
    }
}

/// Where one side of a copy begins.
struct Place {
    at: i64,
    end: End,
    /// Found writable, if it is given.
    offset: Offset,
}

impl Place {
    /// Notes where the copy ended.
    fn set(self, at: i64) {
        match self.offset.is_given() {
            // SAFETY: found writable when the copy began.
            true => unsafe { self.offset.0.write_unaligned(at) },
            false => drop(self.end.seek(at, libc::SEEK_SET)),
        }
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

    fn seek(self, offset: i64, whence: c_int) -> i64 {
        // SAFETY: takes no memory of ours.
        unsafe { libc::lseek64(self.fd, offset, whence) }
    }

    /// Where the copy begins: at the given offset, which may be negative, or at the descriptor's
    /// own.
    fn place(self, offset: Offset) -> Result<Place, Errno> {
        let at = match offset.is_given() {
            false => self.seek(0, libc::SEEK_CUR),
            // SAFETY: just found writable.
            true if is_writable(offset.0.cast(), size_of::<off64_t>()) => unsafe {
                offset.0.read_unaligned()
            },
            true => return Err(Errno::FAULT),
        };
        if !offset.is_given() && at < 0 {
            Err(last_error())
        } else {
            Ok(Place { at, end: self, offset })
        }
    }

    /// Reads up to `most` bytes into `buffer`, as far as it has room: at `at`, or from a descriptor
    /// without offsets. Returns how many.
    fn read(self, buffer: &mut Vec<u8>, most: usize, at: Option<i64>) -> Result<usize, Errno> {
        let (to, most) = (buffer.as_mut_ptr(), most.min(buffer.capacity()));
        // SAFETY: the buffer has room for `most` bytes, and those that were read are filled.
        unsafe {
            let read = match at {
                Some(at) => libc::pread64(self.fd, to.cast(), most, at),
                None => libc::read(self.fd, to.cast(), most),
            };
            let read = bytes(read)?;
            buffer.set_len(read);
            Ok(read)
        }
    }

    /// Writes all of `piece`, at `at` or to a descriptor without offsets. Stops early where the
    /// other side takes no more.
    fn write(self, piece: &[u8], at: Option<i64>) -> (usize, Option<Errno>) {
        let mut done = 0;
        while done < piece.len() {
            let rest = &piece[done..];
            let (from, length) = (rest.as_ptr().cast(), rest.len());
            // SAFETY: a slice's start and length.
            let written = bytes(unsafe {
                match at {
                    Some(at) => libc::pwrite64(self.fd, from, length, at + done as i64),
                    None => libc::write(self.fd, from, length),
                }
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
        if self.kind != FileType::RegularFile {
            return usize::MAX;
        }
        // SAFETY: a struct of numbers, which the call fills.
        let (result, stat) = unsafe {
            let mut stat = core::mem::zeroed::<libc::stat>();
            (libc::fstat(self.fd, &mut stat), stat)
        };
        match result {
            0 => stat.st_size.saturating_sub(at).max(0) as usize,
            _ => usize::MAX,
        }
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
    let mut buffer = buffer(length)?;
    let mut done = 0;
    while done < length {
        let (put, got, error) = match from.read(&mut buffer, length - done, Some(at + done as i64))
        {
            Ok(got) => {
                let (put, error) = to.write(&buffer, to_at);
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

fn copy_range(
    (from, from_offset): (c_int, Offset),
    (to, to_offset): (c_int, Offset),
    bytes: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    if flags != 0 {
        let open = |fd: c_int| {
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
    let (from_place, to_place) = (from.place(from_offset)?, to.place(to_offset)?);
    let (at, to_at) = (from_place.at, to_place.at);
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
    from_place.set(at + done as i64);
    to_place.set(to_at + done as i64);
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
    // SAFETY: the program's offsets.
    let (from_offset, to_offset) = unsafe { (Offset::at(from_offset), Offset::at(to_offset)) };
    // Whose frames hold a buffer.
    without_cancellation(|| count(copy_range((from, from_offset), (to, to_offset), bytes, flags)))
}

fn send(to: c_int, from: c_int, offset: Offset, bytes: usize) -> Result<usize, Errno> {
    let from = End::of(from, false)?;
    if !matches!(from.kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(if offset.is_given() { Errno::SPIPE } else { Errno::INVAL });
    }
    let place = from.place(offset)?;
    let at = from_start(place.at, bytes)?;
    let to = End::of(to, true)?;
    let mut bytes = bytes.min(MOST);
    for file in [from.fd, to.fd].into_iter().filter_map(managed) {
        bytes = file.possible(at as u64, bytes).ok_or(Errno::OVERFLOW)?;
    }
    if to.flags.contains(OFlags::APPEND) {
        return Err(Errno::INVAL);
    }
    let done = copy(from, at, to, None, bytes)?;
    place.set(at + done as i64);
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
    // SAFETY: the program's offset.
    let offset = unsafe { Offset::at(offset) };
    // Whose frames hold a buffer.
    without_cancellation(|| count(send(to, from, offset, bytes)))
}

/// Fills a pipe from a file, up to `length` bytes: waits for room only while nothing has moved, and
/// never for a reader to make more.
fn fill_pipe(from: End, at: i64, pipe: End, length: usize, waits: bool) -> Result<usize, Errno> {
    let length = length.min(from.remaining(at));
    let mut buffer = buffer(length)?;
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
        let got = match from.read(&mut buffer, room.min(length - done), Some(at + done as i64)) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = pipe.write(&buffer, None);
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
    let mut buffer = buffer(length)?;
    let fd = borrow(pipe.fd);
    let mut done = 0;
    while done < length {
        if done > 0 && rustix::io::ioctl_fionread(fd)? == 0 {
            break;
        }
        if !waits && !pipe.is_ready(PollFlags::IN, false)? {
            return if done == 0 { Err(Errno::AGAIN) } else { Ok(done) };
        }
        let got = match pipe.read(&mut buffer, length - done, None) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = to.write(&buffer, Some(at + done as i64));
        done += put;
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if put == got => {}
            _ => break,
        }
    }
    Ok(done)
}

fn splice_range(
    (from, from_offset): (c_int, Offset),
    (to, to_offset): (c_int, Offset),
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
        if to_offset.is_given() {
            return Err(Errno::SPIPE);
        }
        let place = from.place(from_offset)?;
        let at = from_start(place.at, bytes)?;
        let done = fill_pipe(from, at, to, bytes, waits(to))?;
        place.set(at + done as i64);
        Ok(done)
    } else if from.kind == FileType::Fifo {
        if from_offset.is_given() {
            return Err(Errno::SPIPE);
        }
        let place = to.place(to_offset)?;
        let at = from_start(place.at, bytes)?;
        if to.flags.contains(OFlags::APPEND) {
            return Err(Errno::INVAL);
        }
        let done = empty_pipe(from, to, at, bytes, waits(from))?;
        place.set(at + done as i64);
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
    // SAFETY: the program's offsets.
    let (from_offset, to_offset) = unsafe { (Offset::at(from_offset), Offset::at(to_offset)) };
    // Whose frames hold a buffer.
    without_cancellation(|| count(splice_range((from, from_offset), (to, to_offset), bytes, flags)))
}

aliases! {
    "C" sendfile = sendfile64(to: c_int, from: c_int, offset: *mut off64_t, bytes: size_t) -> ssize_t;
}
