//! Copies inside the kernel between descriptors, done here when one of them is managed.

mod end;
mod pipe;
mod stored;

use crate::fd::borrow;
use crate::recording;
use crate::session::Session;
use crate::user_memory::UserOffset;
use end::{End, KnownEnd};
use forebay_pool::layout::FileFlags;
use pipe::{empty_pipe, fill_pipe};
use rustix::event::PollFlags;
use rustix::fd::RawFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

/// Bytes copied at once: what stays in the processor's cache, and what malloc takes from its heap.
const PIECE: usize = 64 << 10;
/// What one such call of the kernel moves at most.
const MOST: usize = 0x7fff_f000;
/// All flags of splice.
const SPLICE_FLAGS: SpliceFlags = SpliceFlags::MOVE
    .union(SpliceFlags::NONBLOCK)
    .union(SpliceFlags::MORE)
    .union(SpliceFlags::GIFT);

/// What the kernel has copied.
pub(crate) struct Copied {
    pub bytes: usize,
    /// Whether that is all that it was to copy.
    pub whole: bool,
}

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

/// Memory for the piece under way, of at most so many bytes.
fn buffer(bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.clamp(1, PIECE)).map_err(|_| Errno::NOMEM)?;
    Ok(buffer)
}

/// Copies up to `length` bytes from `from` at `at` to `to`. Returns how many, unless the first
/// piece failed.
fn copy(
    from: KnownEnd<'_>,
    at: i64,
    to: KnownEnd<'_>,
    mut to_at: Option<i64>,
    length: usize,
) -> Result<usize, Errno> {
    let length = length.min(from.remaining(at)).min(MOST);
    // A stream that no session has.
    let straight = to_at.is_none() && to.session.file(to.fd).is_none();
    let mut buffer = buffer(length)?;
    let mut done = 0;
    while done < length {
        if straight && let Some(put) = straight_from_ram(from, at, to, done, length - done)? {
            done += put;
            continue;
        }
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

/// The same to a file at `to_at`. The kernel copies what the store has where it also knows the
/// target; where it refuses, the copy through memory says why.
fn copy_to_file(
    from: KnownEnd<'_>,
    at: i64,
    to: KnownEnd<'_>,
    to_at: i64,
    length: usize,
) -> Result<usize, Errno> {
    let target = to.session.file(to.fd);
    if target.is_some_and(|file| !file.record.has(FileFlags::DIRECT)) {
        return copy(from, at, to, Some(to_at), length);
    }
    let mut done = 0;
    while done < length {
        let (mut here, mut there) = ((at + done as i64) as u64, (to_at + done as i64) as u64);
        let (begin, left) = (here, length - done);
        let stored = match target {
            // The kernel has all of what is not managed.
            Some(_) if from.session.file(from.fd).is_none() => left,
            _ => from.stored(begin, left).unwrap_or(0),
        };
        let start_ns = recording::begin_ns();
        let copied = match (stored, target) {
            (0, _) => Ok(0),
            (_, Some(file)) => match file.copy_in(from.fd, Some(here), Some(there), stored) {
                Ok(copied) => Ok(copied.map_or(0, |copied| copied.bytes)),
                Err(Errno::BADF) => Ok(0),
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            },
            (_, None) => rustix::fs::copy_file_range(
                borrow(from.fd),
                Some(&mut here),
                borrow(to.fd),
                Some(&mut there),
                stored,
            ),
        };
        let copied = match copied {
            // With its signal, which is not to come twice.
            Err(Errno::FBIG) if done == 0 => return Err(Errno::FBIG),
            Err(Errno::FBIG) => return Ok(done),
            copied => copied.unwrap_or(0),
        };
        if copied > 0 {
            from.note_copied(begin, copied, start_ns);
            done += copied;
            continue;
        }
        let most = if target.is_some() { left } else { left.min(PIECE) };
        match copy(from, begin as i64, to, Some(to_at + done as i64), most) {
            Ok(copied) if copied == most => done += copied,
            Ok(copied) => return Ok(done + copied),
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// [`End::put_from_ram`] of a copy from `at` on that has `left` bytes to go after `done`. An error
/// is said where nothing was copied, and comes again with the next call.
fn straight_from_ram(
    from: KnownEnd<'_>,
    at: i64,
    to: KnownEnd<'_>,
    done: usize,
    left: usize,
) -> Result<Option<usize>, Errno> {
    match from.put_from_ram((at + done as i64) as u64, to.fd, left) {
        Err(_) if done > 0 => Ok(None),
        put => Ok(put?.filter(|&put| put > 0)),
    }
}

/// Whether a copy of which something has moved would have to wait at `to`, which is a pipe: the
/// kernel leaves it at that.
fn is_full_pipe(session: &Session, to: RawFd) -> bool {
    let to = End { session, fd: to };
    let kind = rustix::fs::fstat(borrow(to.fd)).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::Fifo) && !to.is_ready(PollFlags::OUT, false).unwrap_or(false)
}

impl Session {
    /// Copies up to `bytes` from `from` to `to`, at its own position if it has one: what the store
    /// has by `kernel`, what comes between in pieces by `piece`, which gets how much to copy, and
    /// whether something has moved before.
    ///
    /// # Errors
    /// Those of `kernel` and `piece`, if nothing was copied.
    fn copy_in_pieces(
        &self,
        from: CopySide<'_>,
        to: RawFd,
        bytes: usize,
        kernel: impl Fn(&mut u64, usize) -> Result<usize, Errno>,
        piece: impl Fn(usize, bool) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let source = End { session: self, fd: from.fd };
        let is_managed = to < 0 || self.file(to).is_some();
        let mut done = 0;
        loop {
            let left = bytes - done;
            let copied = match is_managed {
                true => Ok(None),
                false => source.copied_by_kernel(from.offset, left, &kernel),
            };
            let copied = copied.and_then(|copied| match copied {
                Some(copied) => Ok(copied),
                None => {
                    let most = if is_managed { left } else { left.min(PIECE) };
                    let bytes = piece(most, done > 0)?;
                    Ok(Copied { bytes, whole: bytes == most })
                }
            });
            match copied {
                Ok(Copied { bytes: moved, whole }) => {
                    done += moved;
                    if !whole || done >= bytes || is_full_pipe(self, to) {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// `copy_file_range` where one of the two is managed. Returns the bytes copied.
    ///
    /// # Errors
    /// The kernel's for such a call; those of reading and writing if nothing was copied; `NOMEM`.
    pub fn copy_range(
        &self,
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
        match self.copy_straight(from_side, to_side, bytes)? {
            None => self.copy_range_from(from_side, to_side, bytes),
            Some(Copied { bytes: done, whole }) if !whole || done == bytes => Ok(done),
            // What was copied counts, whatever becomes of the rest.
            Some(Copied { bytes: done, .. }) => {
                Ok(done + self.copy_range_from(from_side, to_side, bytes - done).unwrap_or(0))
            }
        }
    }

    /// The first of it, by one call of the kernel's, as it copies whole small files: at both
    /// descriptors' own offsets, from a file that is not managed to one that is written through.
    /// `None`, and nothing was done, where it is not that. Not `whole` where there is no more, or
    /// the kernel has stopped.
    fn copy_straight(
        &self,
        from: CopySide<'_>,
        to: CopySide<'_>,
        bytes: usize,
    ) -> Result<Option<Copied>, Errno> {
        let is_plain = from.offset.is_none() && to.offset.is_none() && bytes <= i64::MAX as usize;
        if !is_plain || bytes == 0 || self.file(from.fd).is_some() {
            return Ok(None);
        }
        match self.file(to.fd).filter(|file| file.record.is_written_through()) {
            None => Ok(None),
            Some(file) => match file.copy_in(from.fd, None, None, bytes) {
                Err(Errno::BADF) => Ok(None),
                copied => copied,
            },
        }
    }

    /// The same, of ends that have to be looked at.
    fn copy_range_from(
        &self,
        from_side: CopySide<'_>,
        to_side: CopySide<'_>,
        bytes: usize,
    ) -> Result<usize, Errno> {
        let ends = [KnownEnd::open(self, from_side.fd)?, KnownEnd::open(self, to_side.fd)?];
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
        if let Some(file) = self.file(to.fd) {
            // Also where nothing is left to be copied; what has no offset is cut off first.
            length = length.min((i64::MAX - to_at) as usize);
            length = file.allowed(to_at as u64, length)?;
        }
        let (end, to_end) = (at + length as i64, to_at + length as i64);
        if from.inode == to.inode && to_end > at && to_at < end {
            return Err(Errno::INVAL);
        }
        let done = copy_to_file(from, at, to, to_at, length)?;
        if done == 0 {
            return Ok(0);
        }
        let noted = (from_place.set(at + done as i64), to_place.set(to_at + done as i64));
        noted.0.and(noted.1)?;
        Ok(done)
    }

    /// `sendfile` where one of the two is managed: to `to`, at its own offset if it has one.
    /// Returns the bytes copied.
    ///
    /// # Errors
    /// As of [`Session::copy_range`].
    pub fn send_file(&self, to: RawFd, from: CopySide<'_>, bytes: usize) -> Result<usize, Errno> {
        let kernel = |at: &mut u64, length| {
            rustix::fs::sendfile(borrow(to), borrow(from.fd), Some(at), length)
        };
        let piece = |most, moved| self.send_piece(to, from, bytes, most, moved);
        self.copy_in_pieces(from, to, bytes.min(MOST), kernel, piece)
    }

    /// Copies the first `most` of `bytes` through memory, or from RAM. Where some have `moved`
    /// before, a pipe is not waited for.
    fn send_piece(
        &self,
        to: RawFd,
        from: CopySide<'_>,
        bytes: usize,
        most: usize,
        moved: bool,
    ) -> Result<usize, Errno> {
        let given = from.offset;
        let from = KnownEnd::of(self, from.fd, false)?;
        if !matches!(from.kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(if given.is_some() { Errno::SPIPE } else { Errno::INVAL });
        }
        let place = from.place(given)?;
        let at = from_start(place.at, bytes)?;
        let to = KnownEnd::of(self, to, true)?;
        let mut bytes = bytes.min(MOST);
        for file in [from.fd, to.fd].into_iter().filter_map(|fd| self.file(fd)) {
            bytes = file.possible(at as u64, bytes).ok_or(Errno::OVERFLOW)?;
        }
        let done = if to.kind == FileType::Fifo {
            let waits = !moved && !to.flags.contains(OFlags::NONBLOCK);
            fill_pipe(from, at, to, bytes.min(most), waits)?
        } else if to.flags.contains(OFlags::APPEND) {
            return Err(Errno::INVAL);
        } else {
            copy(from, at, to, None, bytes.min(most))?
        };
        place.set(at + done as i64)?;
        Ok(done)
    }

    /// `splice` where one of the two is managed: the other one has to be a pipe. Returns the bytes
    /// moved.
    ///
    /// # Errors
    /// As of [`Session::copy_range`]; `AGAIN` where the pipe would have to be waited for and the
    /// call may not.
    pub fn splice(
        &self,
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
        let bytes = bytes.min(MOST);
        if to_side.offset.is_some() {
            return self.splice_piece(from_side, to_side, bytes, flags);
        }
        let (from, to) = (from_side.fd, to_side.fd);
        let at_once = flags | SpliceFlags::NONBLOCK;
        let kernel = |at: &mut u64, length| {
            rustix::pipe::splice(borrow(from), Some(at), borrow(to), None, length, flags)
        };
        let piece = |most, moved: bool| {
            self.splice_piece(from_side, to_side, most, if moved { at_once } else { flags })
        };
        // A file that is filled from a pipe.
        match self.file(to) {
            Some(_) => self.splice_piece(from_side, to_side, bytes, flags),
            None => self.copy_in_pieces(from_side, to, bytes, kernel, piece),
        }
    }

    /// Moves up to `bytes` through memory, or from RAM.
    fn splice_piece(
        &self,
        from_side: CopySide<'_>,
        to_side: CopySide<'_>,
        bytes: usize,
        flags: SpliceFlags,
    ) -> Result<usize, Errno> {
        let from = KnownEnd::of(self, from_side.fd, false)?;
        let to = KnownEnd::of(self, to_side.fd, true)?;
        let waits = |pipe: KnownEnd<'_>| {
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
}
