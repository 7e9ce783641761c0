//! A /dev/shm for one site alone: commands without `--config` act on all pools of the user, and
//! tests run side by side.

use super::skip;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use tempfile::TempDir;

const SHM: &std::ffi::CStr = c"/dev/shm";

/// What the site's commands see as /dev/shm.
pub struct Memory {
    /// Below the real one, and a name space of mounts in which it takes that one's place.
    own: Option<(TempDir, Arc<OwnedFd>)>,
    /// Without it: the right to be the only site.
    _turn: Option<Arc<File>>,
}

impl Memory {
    pub fn new() -> Memory {
        let folder = tempfile::Builder::new().prefix("fb-").tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let own = namespace(folder.path()).ok().map(|space| (folder, Arc::new(space)));
        let turn = own.is_none().then(turn);
        Memory { own, _turn: turn }
    }

    /// Where this process sees it.
    pub fn folder(&self) -> PathBuf {
        self.own.as_ref().map_or(PathBuf::from("/dev/shm"), |(own, _)| own.path().to_owned())
    }

    /// What a file in it is called by its commands.
    pub fn seen(&self, path: &Path) -> PathBuf {
        Path::new("/dev/shm").join(path.file_name().unwrap())
    }

    /// Whether nothing of others is in it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Lets a command see it.
    pub fn enter(&self, command: &mut Command) {
        let Some((_, space)) = &self.own else { return };
        let space = Arc::clone(space);
        let enter = move || {
            let mut folder = [0; libc::PATH_MAX as usize];
            // SAFETY: system calls with pointers to what lives longer.
            let good = unsafe {
                !libc::getcwd(folder.as_mut_ptr(), folder.len()).is_null()
                    && libc::setns(space.as_raw_fd(), libc::CLONE_NEWNS) == 0
                    && libc::chdir(folder.as_ptr()) == 0
            };
            if good { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: only system calls between fork and exec.
        unsafe { command.pre_exec(enter) };
    }
}

/// Mounts of their own in which `folder` is /dev/shm.
fn namespace(folder: &Path) -> io::Result<OwnedFd> {
    let folder = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // A thread can have its own; it lives as long as the descriptor.
    let make = move || {
        let none = std::ptr::null();
        // SAFETY: system calls with pointers to what lives longer.
        let good = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(folder.as_ptr(), SHM.as_ptr(), none, libc::MS_BIND, none.cast()) == 0
        };
        match good {
            true => File::open("/proc/thread-self/ns/mnt").map(OwnedFd::from),
            false => Err(io::Error::last_os_error()),
        }
    };
    std::thread::spawn(make).join().unwrap()
}

/// Waits until no other site is at work, of this test program or another one.
fn turn() -> Arc<File> {
    thread_local! {
        static HELD: RefCell<Weak<File>> = const { RefCell::new(Weak::new()) };
    }
    HELD.with_borrow_mut(|held| {
        held.upgrade().unwrap_or_else(|| {
            skip("not beside others, nor apart from pools that you have: mounts need root");
            let name = format!("forebay-tests-{}", rustix::process::geteuid().as_raw());
            let file = File::create(std::env::temp_dir().join(name)).unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let file = Arc::new(file);
            *held = Arc::downgrade(&file);
            file
        })
    })
}
