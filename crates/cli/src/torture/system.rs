//! Calls that std has no names for, through libc, where Forebay's library sees them.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// A part of a file in memory.
struct Mapping {
    start: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// Maps from `offset`, a whole number of pages, on.
    fn of(file: &File, offset: u64, length: usize, protection: i32) -> io::Result<Mapping> {
        // SAFETY: where the kernel likes; no other thread has the memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(Mapping { start, length }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// Reads through a mapping; `offset` is a whole number of pages, and all of it lies in the file.
///
/// # Errors
/// Those of mmap.
pub fn read_mapped(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mapping = Mapping::of(file, offset, length, libc::PROT_READ)?;
    let mut copy = vec![0u8; length];
    // SAFETY: both have the length; the file does, too, or this process ends with SIGBUS, which is
    // told.
    unsafe { std::ptr::copy_nonoverlapping(mapping.start.cast(), copy.as_mut_ptr(), length) };
    Ok(copy)
}

/// Writes through a mapping, and syncs it; all of it lies in the file.
///
/// # Errors
/// Those of mmap and msync.
pub fn write_mapped(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let before = offset % PAGE;
    let length = before as usize + bytes.len();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let mapping = Mapping::of(file, offset - before, length, protection)?;
    // SAFETY: as above.
    unsafe {
        let to = mapping.start.cast::<u8>().add(before as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        match libc::msync(mapping.start, mapping.length, libc::MS_SYNC) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn fallocate(file: &File, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe {
        libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Punches a hole.
///
/// # Errors
/// Those of fallocate.
pub fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
}

/// Makes a file at least so long.
///
/// # Errors
/// Those of fallocate.
pub fn allocate(file: &File, size: u64) -> io::Result<()> {
    fallocate(file, 0, 0, size)
}

/// dup2: lets `to` refer to what `from` refers to.
///
/// # Errors
/// Those of dup2.
pub fn replace(from: &File, to: &File) -> io::Result<()> {
    // SAFETY: numbers of open descriptors only.
    match unsafe { libc::dup2(from.as_raw_fd(), to.as_raw_fd()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets a forked child write `bytes` at `offset`; it ends with this process. If it is killed, so is
/// this process.
///
/// # Errors
/// Those of fork and of the child's writes, whatever was written before.
pub fn write_in_child(file: &File, offset: u64, bytes: &[u8]) -> io::Result<u64> {
    let (fd, parent, mut status) = (file.as_raw_fd(), std::process::id() as i32, 0);
    // SAFETY: the child makes calls that are allowed there, and waitpid gets a number that outlives
    // it.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let mut done = 0;
                while libc::getppid() == parent && done < bytes.len() {
                    let rest = &bytes[done..];
                    let place = offset + done as u64;
                    match libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), place as i64) {
                        count @ 1.. => done += count as usize,
                        _ => libc::_exit((*libc::__errno_location()).max(1)),
                    }
                }
                libc::_exit(0);
            }
            child => while libc::waitpid(child, &mut status, 0) == -1 {},
        }
    }
    ended(status).map(|()| bytes.len() as u64)
}

/// Writes all of `bytes` to standard output.
///
/// # Errors
/// Those of write.
pub fn write_out(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes outlive the call.
        match unsafe { libc::write(1, bytes.as_ptr().cast(), bytes.len()) } {
            count @ 1.. => bytes = &bytes[count as usize..],
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// What the end of a child means whose exit status is an errno. If it was killed, this process is,
/// too.
///
/// # Errors
/// That errno.
pub fn ended(status: i32) -> io::Result<()> {
    if libc::WIFSIGNALED(status) {
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Copies the first `length` bytes of `from` to `offset`; returns how many.
///
/// # Errors
/// Those of copy_file_range, whatever was copied before.
pub fn copy_range(from: &File, to: &File, offset: u64, length: usize) -> io::Result<u64> {
    let (mut source, mut target) = (0, offset as libc::off64_t);
    repeat(length, |left| {
        // SAFETY: both numbers outlive the call.
        unsafe {
            libc::copy_file_range(
                from.as_raw_fd(),
                &mut source,
                to.as_raw_fd(),
                &mut target,
                left,
                0,
            )
        }
    })
}

/// The same by sendfile, at the target's position.
///
/// # Errors
/// Those of sendfile, whatever was copied before.
pub fn send(from: &File, mut to: &File, offset: u64, length: usize) -> io::Result<u64> {
    to.seek(SeekFrom::Start(offset))?;
    let mut source = 0;
    repeat(length, |left| {
        // SAFETY: the number outlives the call.
        unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), &mut source, left) }
    })
}

fn repeat(length: usize, mut call: impl FnMut(usize) -> isize) -> io::Result<u64> {
    let mut done = 0;
    while done < length {
        match call(length - done) {
            0 => break,
            count if count > 0 => done += count as usize,
            // What was copied before has to be looked at, with what may have been copied since.
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(done as u64)
}
