//! After a loss of the segment: what the journal has, and the store has not, is written to the files
//! that it was written to, and made durable there.

use super::identify;
use super::log::{Change, Contents, FileLog};
use super::record::Key;
use crate::descriptors::search;
use crate::node::Node;
use forebay_pool::{Identity, clock};
use forebay_tiers::{IoClient, Transfer};
use libc::iovec;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Applies what an earlier manager's journal has, and removes it. For a manager that has found no
/// segment, before it serves anybody. A file that is not there any more is named and left out.
///
/// # Errors
/// A message that names the file that could not be written, and what to do; nothing is removed then,
/// and it can be tried again.
pub(crate) fn apply(node: &Arc<Node>) -> Result<(), String> {
    let Some(journal) = &node.journal else { return Ok(()) };
    let name = journal.path.display();
    let contents = Contents::read(&journal.path).map_err(|errno| format!("{name}: {errno}"))?;
    if !contents.found {
        return Ok(());
    }
    let (mut files, mut bytes) = (0, 0);
    for (key, file) in &contents.files {
        let path = String::from_utf8_lossy(&file.path);
        let written = open(node, key, &file.path).map(|fd| write(node, key, file, &fd));
        match written {
            Some(Ok(())) => {
                files += 1;
                bytes += data_bytes(file);
            }
            Some(Err(errno)) => {
                return Err(format!(
                    "{path}: {errno}; fsync had acknowledged data of it, which {name} has: mend \
                     the store and try again, or move the journal away to go on without it"
                ));
            }
            None => eprintln!(
                "{path} (inode {}) is not there any more; {} bytes of it that fsync had \
                 acknowledged are dropped",
                key.inode,
                data_bytes(file)
            ),
        }
    }
    if !contents.files.is_empty() {
        eprintln!("wrote {bytes} bytes of {files} files from the journal to the store");
    }
    std::fs::remove_file(&journal.path).map_err(|error| format!("{name}: {error}"))?;
    super::log::sync_folder_of(&journal.path);
    Ok(())
}

fn data_bytes(file: &FileLog) -> usize {
    let bytes = |(_, change): &(u64, Change)| match change {
        Change::Data { bytes, .. } => bytes.len(),
        _ => 0,
    };
    file.changes.iter().map(bytes).sum()
}

/// The file that was written to, found by its path or, if it was renamed, below its directory.
fn open(node: &Node, key: &Key, path: &[u8]) -> Option<OwnedFd> {
    let folder = &node.config.backing.get(usize::from(key.store))?.path;
    let device = std::fs::metadata(folder).ok()?.dev();
    let path = Path::new(OsStr::from_bytes(path));
    open_checked(key, device, path).or_else(|| {
        let found = search(folder, Identity { device, inode: key.inode })?;
        open_checked(key, device, &found)
    })
}

/// A reused inode number must not receive another file's bytes.
fn open_checked(key: &Key, device: u64, path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty()).or_else(|_| {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty())
    });
    let fd = fd.ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    // Devices of some file systems have another number after a reboot.
    let mut found =
        Key { store: key.store, device: key.device, inode: stat.st_ino, ..Key::default() };
    identify(&fd, &mut found);
    if key.handle.is_empty() || found.handle.is_empty() {
        (found.handle_type, found.handle) = (key.handle_type, key.handle.clone());
    }
    if key.born_ns == 0 || found.born_ns == 0 {
        found.born_ns = key.born_ns;
    }
    (stat.st_dev == device && found == *key).then_some(fd)
}

fn write(node: &Arc<Node>, key: &Key, file: &FileLog, fd: &OwnedFd) -> Result<(), Errno> {
    let mut io = node.store_client(usize::from(key.store));
    let mut mtime = None;
    for (_, change) in &file.changes {
        match change {
            Change::Data { offset, size, mtime_ns, bytes } => {
                mtime = Some(*mtime_ns);
                write_bytes(&mut *io, fd, *offset, bytes)?;
                if (rustix::fs::fstat(fd)?.st_size as u64) < *size {
                    rustix::fs::ftruncate(fd, *size)?;
                }
            }
            Change::Cut { size } => rustix::fs::ftruncate(fd, *size)?,
            Change::Punch { start, end } => punch(&mut *io, fd, *start, *end)?,
        }
    }
    if let Some(mtime) = mtime {
        let (seconds, nanoseconds) = clock::parted_ns(mtime);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
        };
        // Only the owner of a file may set its times.
        let _ = rustix::fs::futimens(fd, &times);
    }
    io.sync(fd.as_raw_fd())
}

fn write_bytes(
    io: &mut dyn IoClient,
    fd: &OwnedFd,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Errno> {
    let base = bytes.as_ptr().cast_mut().cast();
    let buffer = iovec { iov_base: base, iov_len: bytes.len() };
    // SAFETY: the bytes outlive the run, which only reads them.
    let mut writes = [unsafe { Transfer::write(fd.as_raw_fd(), offset, vec![buffer]) }];
    io.run(&mut writes);
    match writes[0].result()? {
        written if written == bytes.len() as u64 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Makes a range zero that does not let the file grow.
fn punch(io: &mut dyn IoClient, fd: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let end = end.min(rustix::fs::fstat(fd)?.st_size as u64);
    if start >= end {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(fd, mode, start, end - start) {
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; (end - start).min(1 << 20) as usize];
            for at in (start..end).step_by(zeros.len()) {
                let count = (end - at).min(zeros.len() as u64) as usize;
                write_bytes(io, fd, at, &zeros[..count])?;
            }
            Ok(())
        }
        other => other,
    }
}
