//! Two node managers must not buffer the same directory: neither would see what the other holds.
//! Those of this user are known by their pools, see [`crate::instance::runtime::Runtime::all`]; of
//! two that start at once at least one sees the other by a lock on the directory itself.
//!
//! A lock for reading can be had on a directory that one may only read, so that any user can have
//! it: a lock of another user's is a hint, and no reason to refuse. The bytes that are locked lie
//! where no program's own locks do; programs that lock the directory itself are not disturbed.

use crate::instance::discovery::own_uid;
use forebay_pool::clock::Timer;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Byte that is locked in a directory that is served, and in each directory above it.
const SERVED: i64 = 0x4642_5259_0000;
const ABOVE: i64 = SERVED + 1;
/// How long a predecessor may take to be gone: the kernel closes its files when its last I/O has
/// ended.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a lock may stay whose holder shows its descriptors no more, because it is ending.
const ENDING: Duration = Duration::from_millis(500);

/// After this it is said what a start waits for: one that ends as usual is gone by then.
const SAY: Timer = Timer::ms(300);

/// What a start waits for, told once to the process that waits for the start.
pub(crate) struct Waits<'a> {
    report: Option<&'a File>,
    since: Option<Instant>,
    told: bool,
}

/// How the line begins that says what a start waits for, among those that it reports.
pub const WAITS: &str = "waiting: ";

impl<'a> Waits<'a> {
    /// `report` gets the line.
    pub fn new(report: Option<&'a File>) -> Waits<'a> {
        Waits { report, since: None, told: false }
    }

    /// To be called again and again while that is waited for.
    pub fn say(&mut self, what: &str) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.told || since.elapsed() < SAY.as_duration() {
            return;
        }
        self.told = true;
        info!("forebay: {WAITS}{what}");
        if let Some(mut report) = self.report {
            let _ = report.write_all(format!("{WAITS}{what}\n").as_bytes());
        }
    }
}

/// Locks that hold as long as this lives.
pub(crate) struct Guard {
    _locked: Vec<OwnedFd>,
    /// A process that is not seen holds such a lock: what to say of it.
    pub warning: Option<String>,
}

/// A mark that another process has on a directory of ours, or on one above it.
struct Taken {
    store: PathBuf,
    device: u64,
    inode: u64,
    /// The bytes that say so there: others of this user's managers may have marked it, too, by
    /// right.
    bytes: &'static [i64],
}

/// Marks these directories as served. Where other nodes are of a group with this one, theirs mark
/// them, too, by right: stores have locks of all nodes.
///
/// # Errors
/// A message that names a directory that another manager of this user serves, or one above or below
/// it.
pub(crate) fn guard<'a>(
    stores: impl Iterator<Item = &'a Path> + Clone,
    is_in_group: bool,
    waits: &mut Waits<'_>,
) -> Result<Guard, String> {
    let since = Instant::now();
    // When one of ours was last seen to have a mark: it may be ending since.
    let mut seen = since;
    loop {
        let mut held = Vec::new();
        let taken: Vec<_> = stores.clone().filter_map(|store| mark(store, &mut held)).collect();
        let Some(first) = taken.first() else {
            return Ok(Guard { _locked: held, warning: None });
        };
        let own = taken.iter().find_map(|taken| Some((holder(taken)?, taken)));
        let describe = |pid: u32, taken: &Taken| {
            format!(
                "{}: it, or a directory above or below it, is buffered by another node manager of yours \
                 (process {pid}); only one can serve it",
                taken.store.display()
            )
        };
        let goes_on = match own {
            Some(_) => {
                seen = Instant::now();
                since.elapsed() < WAIT_MAX
            }
            None => seen.elapsed() < ENDING,
        };
        if goes_on {
            if let Some((pid, taken)) = own {
                waits.say(&describe(pid, taken));
            }
            drop(held);
            // Not in step with another that does the same.
            let apart = u64::from(std::process::id() % 32);
            std::thread::sleep(Duration::from_millis(20 + apart));
            continue;
        }
        if let Some((pid, taken)) = own {
            return Err(describe(pid, taken));
        }
        let warning = (!is_in_group).then(|| unseen(&first.store));
        return Ok(Guard { _locked: held, warning });
    }
}

/// What is said of a mark whose holder is none of this user's processes here.
fn unseen(store: &Path) -> String {
    format!(
        "{}: a program of another user, in another container or on another node has marked it, or a directory above \
         or below it, as buffered. If that is a node manager, what both write to one file is noticed only when it is \
         flushed; node managers of one user's nodes agree in a group, see --hosts",
        store.display()
    )
}

/// Marks one directory; a mark of another manager's on it, or on one above or below, if there is
/// one.
fn mark(store: &Path, held: &mut Vec<OwnedFd>) -> Option<Taken> {
    let mut taken = None;
    for (depth, folder) in store.ancestors().enumerate() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // One that may not be read has no marks that we could see, nor can it have ours.
        let Ok(fd) = rustix::fs::open(folder, flags, Mode::empty()) else { continue };
        // First ours, then a look at theirs: of two that come at once, at least one sees the other.
        let (own, theirs): (i64, &'static [i64]) = match depth {
            0 => (SERVED, &[SERVED, ABOVE]),
            _ => (ABOVE, &[SERVED]),
        };
        let _ = lock(&fd, libc::F_OFD_SETLK, libc::F_RDLCK, own);
        if taken.is_none()
            && theirs.iter().any(|&byte| is_locked(&fd, byte))
            && let Ok(found) = rustix::fs::fstat(&fd)
        {
            let (device, inode) = (found.st_dev, found.st_ino);
            taken = Some(Taken { store: store.to_owned(), device, inode, bytes: theirs });
        }
        held.push(fd);
    }
    taken
}

/// Whether a manager serves `path`, or a directory above it, or below it if it is one: for those
/// whose pool is not seen, as from another container. One that ends has some time for it.
pub fn is_served(path: &Path) -> bool {
    let since = Instant::now();
    while has_mark(path) {
        if since.elapsed() > WAIT_MAX {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn has_mark(path: &Path) -> bool {
    path.ancestors().enumerate().any(|(depth, folder)| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(folder, flags, Mode::empty()) else { return false };
        is_locked(&fd, SERVED) || depth == 0 && is_locked(&fd, ABOVE)
    })
}

fn is_locked(fd: &OwnedFd, byte: i64) -> bool {
    lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte) == Some(libc::F_RDLCK)
}

/// A process of this user, not this one, that has marked the directory so that it is taken.
fn holder(taken: &Taken) -> Option<u32> {
    let marks: Vec<_> = taken.bytes.iter().map(|byte| format!(" {byte} {byte}")).collect();
    let is_marked = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let is_mark = |line: &str| {
            line.contains("OFDLCK") && marks.iter().any(|mark| line.trim_end().ends_with(mark))
        };
        text.lines().any(is_mark)
    };
    let holds = |pid: &u32| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let is_ours = fs::metadata(&folder).is_ok_and(|found| found.uid() == own_uid());
        let entries = fs::read_dir(folder.join("fdinfo")).into_iter().flatten().flatten();
        is_ours
            && entries.filter(|entry| is_marked(&entry.path())).any(|entry| {
                let found = fs::metadata(folder.join("fd").join(entry.file_name()));
                found.is_ok_and(|found| (found.dev(), found.ino()) == (taken.device, taken.inode))
            })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id())
        .find(holds)
}

/// A lock command on one byte; the kind of lock that is there afterwards, `None` where the file
/// system has no locks.
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
        let free = |path: &Path| mark(path, &mut Vec::new()).is_none();
        let mut held = Vec::new();
        assert!(mark(&store, &mut held).is_none());
        assert!(!free(&store) && !free(&below) && !free(&above));
        assert!(free(&beside));
        drop(held);
        // A process that another test has just forked shares the descriptors until its exec.
        let since = Instant::now();
        while !(free(&store) && free(&below) && free(&above)) {
            assert!(since.elapsed() < WAIT_MAX, "they are still marked");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process that has marked `folder` by `byte` as long as it lives.
    fn marker(folder: &Path, byte: i64) -> std::process::Child {
        use std::os::unix::process::CommandExt;
        let folder = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
        let mut command = std::process::Command::new("sleep");
        let marks = move || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = rustix::fs::open(folder.as_c_str(), flags, Mode::empty())?;
            let _ = lock(&fd, libc::F_OFD_SETLK, libc::F_RDLCK, byte);
            std::mem::forget(fd);
            Ok(())
        };
        // SAFETY: only system calls between fork and exec.
        unsafe { command.arg("1000").pre_exec(marks) };
        command.spawn().unwrap()
    }

    #[test]
    fn a_process_of_ours_that_has_marked_a_directory_is_known() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().canonicalize().unwrap();
        let mut child = marker(&store, SERVED);
        let taken = mark(&store, &mut Vec::new()).expect("it is marked");
        let found = holder(&taken);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(child.id()));
        assert!(mark(&store, &mut Vec::new()).is_none());
    }

    /// A mark of another user's on a directory above, and one of ours there that is about a
    /// directory beside.
    #[test]
    fn a_process_of_ours_beside_is_not_taken_for_the_holder_of_anothers_mark() {
        let root = tempfile::tempdir().unwrap();
        let above = root.path().canonicalize().unwrap();
        let store = above.join("store");
        std::fs::create_dir(&store).unwrap();
        let mut child = marker(&above, ABOVE);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let other = rustix::fs::open(&above, flags, Mode::empty()).unwrap();
        let _ = lock(&other, libc::F_OFD_SETLK, libc::F_RDLCK, SERVED);
        let since = Instant::now();
        let found = loop {
            match mark(&store, &mut Vec::new()).map(|taken| holder(&taken)) {
                // A process that another test has just forked shares the descriptors until its
                // exec.
                Some(Some(pid)) if pid != child.id() && since.elapsed() < WAIT_MAX => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => break other,
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(None));
    }
}
