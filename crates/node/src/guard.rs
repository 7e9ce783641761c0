//! Two node managers must not buffer the same directory: neither would see what the other holds. Of this
//! user's all are known by their folders; another user's is noticed by a lock on the directory itself.
//!
//! A lock for reading can be had on a directory that one may only read, and can be seen by whoever asks
//! whether a lock for writing would be possible. The bytes that are locked lie where no program's own
//! locks do; programs that lock the directory itself are not disturbed.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use std::time::{Duration, Instant};

/// Byte that is locked in a directory that is served, and in each directory above it.
const SERVED: i64 = 0x4642_5259_0000;
const ABOVE: i64 = SERVED + 1;
/// How long a predecessor may take to be gone: the kernel closes its files when its last I/O has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks that hold as long as this lives.
pub(crate) struct Guard {
    _locked: Vec<OwnedFd>,
}

/// Marks these directories as served.
///
/// # Errors
/// A message that names a directory that another manager serves, or one above or below it.
pub(crate) fn guard<'a>(stores: impl Iterator<Item = &'a Path> + Clone) -> Result<Guard, String> {
    let since = Instant::now();
    loop {
        let mut held = Vec::new();
        let taken = stores.clone().find(|store| !mark(store, &mut held));
        match taken {
            None => return Ok(Guard { _locked: held }),
            Some(_) if since.elapsed() < PATIENCE => {
                drop(held);
                std::thread::sleep(Duration::from_millis(50));
            }
            Some(store) => {
                return Err(format!(
                    "{}: it, or a directory above or below it, is buffered by another node manager, \
                     of another user or with another FOREBAY_RUNTIME_DIR; only one can serve it",
                    store.display()
                ));
            }
        }
    }
}

/// Marks one directory; false if another manager has marked it, or one above or below.
fn mark(store: &Path, held: &mut Vec<OwnedFd>) -> bool {
    for (depth, folder) in store.ancestors().enumerate() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // One that may not be read has no marks that we could see, nor can it have ours.
        let Ok(fd) = rustix::fs::open(folder, flags, Mode::empty()) else { continue };
        // First ours, then a look at theirs: of two that come at once, at least one sees the other.
        let (own, theirs) = match depth {
            0 => (SERVED, &[SERVED, ABOVE][..]),
            _ => (ABOVE, &[SERVED][..]),
        };
        let _ = lock(&fd, libc::F_OFD_SETLK, libc::F_RDLCK, own);
        let locked =
            |&byte: &i64| lock(&fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte) == Some(libc::F_RDLCK);
        let taken = theirs.iter().any(locked);
        held.push(fd);
        if taken {
            return false;
        }
    }
    true
}

/// A lock command on one byte; the kind of lock that is there afterwards, `None` where the file system
/// has no locks.
fn lock(fd: &OwnedFd, command: i32, kind: i32, byte: i64) -> Option<i32> {
    // SAFETY: a structure of plain numbers, for which zeros are good.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (byte, 1);
    // SAFETY: the structure lives for the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut lock) };
    (result == 0).then_some(i32::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_above_and_below_are_taken_and_beside_is_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let (store, below, beside) = (folder("a/store"), folder("a/store/b/c"), folder("a/other"));
        let above = folder("a");
        let free = |path: &Path| mark(path, &mut Vec::new());
        let mut held = Vec::new();
        assert!(mark(&store, &mut held));
        assert!(!free(&store) && !free(&below) && !free(&above));
        assert!(free(&beside));
        drop(held);
        assert!(free(&store) && free(&below) && free(&above));
    }
}
