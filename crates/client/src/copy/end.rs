//! One end of a copy: a descriptor of any kind, read and written as an open file where it is one.

use crate::attributes::Whence;
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::span::{Span, Writable};
use crate::user_buffers::UserBuffers;
use crate::user_memory::UserOffset;
use core::ops::Deref;
use forebay_pool::Identity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::RawFd;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;

/// A position in a file, for reading and writing there.
fn offset(at: i64) -> Result<u64, Errno> {
    u64::try_from(at).map_err(|_| Errno::INVAL)
}

/// Where one side of a copy begins.
pub(super) struct Place<'e> {
    pub at: i64,
    end: End<'e>,
    offset: Option<UserOffset<'e>>,
}

impl Place<'_> {
    /// Notes where the copy ended.
    pub fn set(self, at: i64) -> Result<(), Errno> {
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

/// One end of a copy: a descriptor of any kind, at which nothing was looked yet.
#[derive(Clone, Copy)]
pub(super) struct End<'e> {
    pub session: &'e Session,
    pub fd: RawFd,
}

/// One end of a copy, and what the kernel says of it.
#[derive(Clone, Copy)]
pub(super) struct KnownEnd<'e> {
    end: End<'e>,
    pub flags: OFlags,
    pub kind: FileType,
    pub device: u64,
    pub inode: u64,
    /// What the kernel says of its size; `None` where it need not be right.
    size: Option<u64>,
}

impl<'e> Deref for KnownEnd<'e> {
    type Target = End<'e>;

    fn deref(&self) -> &End<'e> {
        &self.end
    }
}

impl<'e> KnownEnd<'e> {
    /// Looks at a descriptor that the caller will read (or write).
    pub fn of(session: &'e Session, fd: RawFd, writes: bool) -> Result<KnownEnd<'e>, Errno> {
        KnownEnd::open(session, fd)?.opened_for(writes)
    }

    /// Looks at a descriptor of whatever kind, opened for whatever.
    pub fn open(session: &'e Session, fd: RawFd) -> Result<KnownEnd<'e>, Errno> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        let end = End { session, fd };
        if let Some(file) = session.file(fd) {
            let (flags, kind) = (file.opened_flags(), FileType::RegularFile);
            let Identity { device, inode } = file.record.identity();
            return Ok(KnownEnd { end, flags, kind, device, inode, size: None });
        }
        let flags = rustix::fs::fcntl_getfl(borrow(fd))?;
        if flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        let stat = rustix::fs::fstat(borrow(fd))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (device, inode) = (stat.st_dev, stat.st_ino);
        Ok(KnownEnd { end, flags, kind, device, inode, size: Some(stat.st_size as u64) })
    }

    /// Whether it was opened for writing, or for reading.
    pub fn opened_for(self, writes: bool) -> Result<KnownEnd<'e>, Errno> {
        let wrong = if writes { OFlags::RDONLY } else { OFlags::WRONLY };
        if self.flags & OFlags::RWMODE == wrong { Err(Errno::BADF) } else { Ok(self) }
    }

    /// Bytes from `at` up to the end that the file has now, or had when it was looked at: a copy
    /// within one file moves its end, and must not follow it.
    pub fn remaining(self, at: i64) -> usize {
        if self.kind != FileType::RegularFile {
            return usize::MAX;
        }
        let size = self.with_file(false, |file| match (file, self.size) {
            (Some(file), _) => file.size(),
            (None, Some(size)) => Ok(size),
            (None, None) => rustix::fs::fstat(borrow(self.fd)).map(|stat| stat.st_size as u64),
        });
        size.map_or(usize::MAX, |size| (size as i64).saturating_sub(at).max(0) as usize)
    }
}

impl<'e> End<'e> {
    /// Calls `act` with the open file, or with `None` where the kernel has what is asked for. Where
    /// another thread has closed or replaced the descriptor meanwhile, `act` is called again.
    pub fn with_file<R>(
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
    pub fn place(self, offset: Option<UserOffset<'e>>) -> Result<Place<'e>, Errno> {
        let at = match offset {
            Some(offset) => offset.get()?,
            None => self.seek(SeekFrom::Current(0))? as i64,
        };
        Ok(Place { at, end: self, offset })
    }

    /// Reads up to `most` bytes into `buffer`, as far as it has room: at `at`, or from a descriptor
    /// without offsets. Returns how many.
    pub fn read(self, buffer: &mut Vec<u8>, most: usize, at: Option<i64>) -> Result<usize, Errno> {
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
    pub fn write(self, piece: &[u8], at: Option<i64>) -> (usize, Option<Errno>) {
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

    pub fn is_ready(self, events: PollFlags, waits: bool) -> Result<bool, Errno> {
        let fd = borrow(self.fd);
        let mut fds = [PollFd::new(&fd, events)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut fds, if waits { None } else { Some(&now) })? > 0)
    }
}
