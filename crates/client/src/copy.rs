//! Copies inside the kernel between descriptors, done here when one of them is managed.

use crate::attributes::Whence;
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::span::{Span, Writable};
use crate::user_buffers::UserBuffers;
use crate::user_memory::UserOffset;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::RawFd;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

/// Bytes copied at once: what stays in the processor's cache, and what malloc takes from its heap.
const PIECE: usize = 64 << 10;
/// What one such call of the kernel moves at most.
const MOST: usize = 0x7fff_f000;
/// What a pipe that says it can be written takes without waiting.
const PIPE_PAGE: usize = 4096;
/// All flags of splice.
const SPLICE_FLAGS: SpliceFlags = SpliceFlags::MOVE
    .union(SpliceFlags::NONBLOCK)
    .union(SpliceFlags::MORE)
    .union(SpliceFlags::GIFT);

/// One side of a copy, as a call names it.
#[derive(Clone, Copy)]
pub struct CopySide<'a> {
    /// A descriptor of any kind.
    pub fd: RawFd,
    /// Where the copy begins, and where the program learns how far it came; `None` for the
    /// descriptor's own offset.
    pub offset: Option<UserOffset<'a>>,
}

/// A position from which so many bytes have offsets.
fn from_start(at: i64, bytes: usize) -> Result<i64, Errno> {
    let end = i64::try_from(bytes).ok().and_then(|bytes| at.checked_add(bytes));
    if at < 0 || end.is_none() { Err(Errno::INVAL) } else { Ok(at) }
}

fn offset(at: i64) -> Result<u64, Errno> {
    u64::try_from(at).map_err(|_| Errno::INVAL)
}

/// Memory for the piece under way, of at most so many bytes.
fn buffer(bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.clamp(1, PIECE)).map_err(|_| Errno::NOMEM)?;
    Ok(buffer)
}

/// Where one side of a copy begins.
struct Place<'e> {
    at: i64,
    end: End<'e>,
    offset: Option<UserOffset<'e>>,
}

impl Place<'_> {
    /// Notes where the copy ended.
    fn set(self, at: i64) -> Result<(), Errno> {
        match self.offset {
            Some(offset) => offset.set(at),
            None => {
                // What was copied is copied, wherever the offset is.
                let _ = self.end.seek(SeekFrom::Start(at as u64));
                Ok(())
            }
        }
    }
}

/// One end of a copy: a descriptor, and what is known of it.
#[derive(Clone, Copy)]
struct End<'e> {
    session: &'e Session,
    fd: RawFd,
    flags: OFlags,
    kind: FileType,
    device: u64,
    inode: u64,
}

impl<'e> End<'e> {
    /// Looks at a descriptor that the caller will read (or write).
    fn of(session: &'e Session, fd: RawFd, writes: bool) -> Result<End<'e>, Errno> {
        End::open(session, fd)?.opened_for(writes)
    }

    /// Looks at a descriptor of whatever kind, opened for whatever.
    fn open(session: &'e Session, fd: RawFd) -> Result<End<'e>, Errno> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        let flags = rustix::fs::fcntl_getfl(borrow(fd))?;
        if flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        let hidden = session.file(fd).map_or(OFlags::empty(), |file| file.hidden_flags());
        let stat = rustix::fs::fstat(borrow(fd))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (device, inode) = (stat.st_dev, stat.st_ino);
        Ok(End { session, fd, flags: flags | hidden, kind, device, inode })
    }

    /// Whether it was opened for writing, or for reading.
    fn opened_for(self, writes: bool) -> Result<End<'e>, Errno> {
        let wrong = if writes { OFlags::RDONLY } else { OFlags::WRONLY };
        if self.flags & OFlags::RWMODE == wrong { Err(Errno::BADF) } else { Ok(self) }
    }

    /// Calls `act` with the open file, or with `None` where the kernel has what is asked for. Where
    /// another thread has closed or replaced the descriptor meanwhile, `act` is called again.
    fn with_file<R>(
        self,
        uses_offset: bool,
        mut act: impl FnMut(Option<OpenFile<'e>>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        loop {
            let file = self.session.file(self.fd);
            let file = file.filter(|file| !uses_offset || !file.uses_kernel_offset());
            match (act(file), file) {
                (Err(Errno::BADF), Some(file)) if !file.is_current() => {}
                (result, _) => return result,
            }
        }
    }

    fn seek(self, to: SeekFrom) -> Result<u64, Errno> {
        self.with_file(true, |file| match (file, to) {
            (Some(file), SeekFrom::Start(offset)) => file.seek(offset as i64, Whence::Start),
            (Some(file), _) => file.seek(0, Whence::Current),
            (None, to) => rustix::fs::seek(borrow(self.fd), to),
        })
    }

    /// Where the copy begins: at the given offset, which may be negative, or at the descriptor's
    /// own.
    fn place(self, offset: Option<UserOffset<'e>>) -> Result<Place<'e>, Errno> {
        let at = match offset {
            Some(offset) => offset.get()?,
            None => self.seek(SeekFrom::Current(0))? as i64,
        };
        Ok(Place { at, end: self, offset })
    }

    /// Reads up to `most` bytes into `buffer`, as far as it has room: at `at`, or from a descriptor
    /// without offsets. Returns how many.
    fn read(self, buffer: &mut Vec<u8>, most: usize, at: Option<i64>) -> Result<usize, Errno> {
        let at = at.map(offset).transpose()?;
        buffer.clear();
        let most = most.min(buffer.capacity());
        let read = self.with_file(at.is_none(), |file| {
            let room = &mut buffer.spare_capacity_mut()[..most];
            let Some(file) = file else {
                let fd = borrow(self.fd);
                return match at {
                    Some(at) => rustix::io::pread(fd, room, at),
                    None => rustix::io::read(fd, room),
                }
                .map(|(read, _)| read.len());
            };
            // SAFETY: room of the vector, which is used here only.
            let room = unsafe { Span::<Writable>::new(room.as_mut_ptr().cast(), most) };
            match at {
                Some(at) => file.pread(&UserBuffers::from(room), at),
                None => file.read(&UserBuffers::from(room)),
            }
        })?;
        // SAFETY: so many were read.
        unsafe { buffer.set_len(read) };
        Ok(read)
    }

    /// Writes all of `piece`, at `at` or to a descriptor without offsets. Stops early where the
    /// other side takes no more.
    fn write(self, piece: &[u8], at: Option<i64>) -> (usize, Option<Errno>) {
        let mut done = 0;
        while done < piece.len() {
            match self.write_some(&piece[done..], at.map(|at| at + done as i64)) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(errno) => return (done, Some(errno)),
            }
        }
        (done, None)
    }

    fn write_some(self, piece: &[u8], at: Option<i64>) -> Result<usize, Errno> {
        let at = at.map(offset).transpose()?;
        self.with_file(at.is_none(), |file| match (file, at) {
            (Some(file), at) => file.write_placed(&UserBuffers::from(piece), at, file.appends()),
            (None, Some(at)) => rustix::io::pwrite(borrow(self.fd), piece, at),
            (None, None) => rustix::io::write(borrow(self.fd), piece),
        })
    }

    /// Bytes from `at` up to the end that the file has now: a copy within one file moves its end,
    /// and must not follow it.
    fn remaining(self, at: i64) -> usize {
        if self.kind != FileType::RegularFile {
            return usize::MAX;
        }
        let size = self.with_file(false, |file| match file {
            Some(file) => file.size(),
            None => rustix::fs::fstat(borrow(self.fd)).map(|stat| stat.st_size as u64),
        });
        size.map_or(usize::MAX, |size| (size as i64).saturating_sub(at).max(0) as usize)
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
    from: End<'_>,
    at: i64,
    to: End<'_>,
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
    session: &Session,
    from_side: CopySide<'_>,
    to_side: CopySide<'_>,
    bytes: usize,
    flags: u32,
) -> Result<usize, Errno> {
    if flags != 0 {
        let open = |fd: RawFd| {
            let flags = (fd >= 0).then(|| rustix::fs::fcntl_getfl(borrow(fd)));
            flags.is_some_and(|flags| flags.is_ok_and(|flags| !flags.contains(OFlags::PATH)))
        };
        return Err(if open(from_side.fd) && open(to_side.fd) {
            Errno::INVAL
        } else {
            Errno::BADF
        });
    }
    let ends = [End::open(session, from_side.fd)?, End::open(session, to_side.fd)?];
    // In the kernel's order: a directory comes first, wherever it is and however it was opened.
    if ends.iter().any(|end| end.kind == FileType::Directory) {
        return Err(Errno::ISDIR);
    }
    if ends.iter().any(|end| end.kind != FileType::RegularFile) {
        return Err(Errno::INVAL);
    }
    let (from, to) = (ends[0].opened_for(false)?, ends[1].opened_for(true)?);
    let (from_place, to_place) = (from.place(from_side.offset)?, to.place(to_side.offset)?);
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
    if let Some(file) = session.file(to.fd) {
        // Also where nothing is left to be copied; what has no offset is cut off first.
        length = length.min((i64::MAX - to_at) as usize);
        length = file.allowed(to_at as u64, length)?;
    }
    let (end, to_end) = (at + length as i64, to_at + length as i64);
    if from.inode == to.inode && to_end > at && to_at < end {
        return Err(Errno::INVAL);
    }
    let done = copy(from, at, to, Some(to_at), length)?;
    let noted = (from_place.set(at + done as i64), to_place.set(to_at + done as i64));
    noted.0.and(noted.1)?;
    Ok(done)
}

fn send(session: &Session, to: RawFd, from: CopySide<'_>, bytes: usize) -> Result<usize, Errno> {
    let given = from.offset;
    let from = End::of(session, from.fd, false)?;
    if !matches!(from.kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(if given.is_some() { Errno::SPIPE } else { Errno::INVAL });
    }
    let place = from.place(given)?;
    let at = from_start(place.at, bytes)?;
    let to = End::of(session, to, true)?;
    let mut bytes = bytes.min(MOST);
    for file in [from.fd, to.fd].into_iter().filter_map(|fd| session.file(fd)) {
        bytes = file.possible(at as u64, bytes).ok_or(Errno::OVERFLOW)?;
    }
    if to.flags.contains(OFlags::APPEND) {
        return Err(Errno::INVAL);
    }
    let done = copy(from, at, to, None, bytes)?;
    place.set(at + done as i64)?;
    Ok(done)
}

/// Fills a pipe from a file, up to `length` bytes: waits for room only while nothing has moved, and
/// never for a reader to make more.
fn fill_pipe(
    from: End<'_>,
    at: i64,
    pipe: End<'_>,
    length: usize,
    waits: bool,
) -> Result<usize, Errno> {
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
fn empty_pipe(
    pipe: End<'_>,
    to: End<'_>,
    at: i64,
    length: usize,
    waits: bool,
) -> Result<usize, Errno> {
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
    session: &Session,
    from_side: CopySide<'_>,
    to_side: CopySide<'_>,
    bytes: usize,
    flags: SpliceFlags,
) -> Result<usize, Errno> {
    if bytes == 0 {
        return Ok(0);
    }
    if !flags.difference(SPLICE_FLAGS).is_empty() {
        return Err(Errno::INVAL);
    }
    let (from, to) = (End::of(session, from_side.fd, false)?, End::of(session, to_side.fd, true)?);
    let bytes = bytes.min(MOST);
    let waits = |pipe: End<'_>| {
        !flags.contains(SpliceFlags::NONBLOCK) && !pipe.flags.contains(OFlags::NONBLOCK)
    };
    // One end is managed, and so a file: the other has to be a pipe.
    if to.kind == FileType::Fifo {
        if to_side.offset.is_some() {
            return Err(Errno::SPIPE);
        }
        let place = from.place(from_side.offset)?;
        let at = from_start(place.at, bytes)?;
        let done = fill_pipe(from, at, to, bytes, waits(to))?;
        place.set(at + done as i64)?;
        Ok(done)
    } else if from.kind == FileType::Fifo {
        if from_side.offset.is_some() {
            return Err(Errno::SPIPE);
        }
        let place = to.place(to_side.offset)?;
        let at = from_start(place.at, bytes)?;
        if to.flags.contains(OFlags::APPEND) {
            return Err(Errno::INVAL);
        }
        let done = empty_pipe(from, to, at, bytes, waits(from))?;
        place.set(at + done as i64)?;
        Ok(done)
    } else {
        Err(Errno::INVAL)
    }
}
impl Session {
    /// `copy_file_range` where one of the two is managed. Returns the bytes copied.
    ///
    /// # Errors
    /// The kernel's for such a call; those of reading and writing if nothing was copied; `NOMEM`.
    pub fn copy_range(
        &self,
        from: CopySide<'_>,
        to: CopySide<'_>,
        bytes: usize,
        flags: u32,
    ) -> Result<usize, Errno> {
        copy_range(self, from, to, bytes, flags)
    }

    /// `sendfile` where one of the two is managed: to `to`, at its own offset if it has one.
    /// Returns the bytes copied.
    ///
    /// # Errors
    /// As of [`Session::copy_range`].
    pub fn send_file(&self, to: RawFd, from: CopySide<'_>, bytes: usize) -> Result<usize, Errno> {
        send(self, to, from, bytes)
    }

    /// `splice` where one of the two is managed: the other one has to be a pipe. Returns the bytes
    /// moved.
    ///
    /// # Errors
    /// As of [`Session::copy_range`]; `AGAIN` where the pipe would have to be waited for and the
    /// call may not.
    pub fn splice(
        &self,
        from: CopySide<'_>,
        to: CopySide<'_>,
        bytes: usize,
        flags: SpliceFlags,
    ) -> Result<usize, Errno> {
        splice_range(self, from, to, bytes, flags)
    }
}
