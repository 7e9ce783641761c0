//! The files of a container: opened, read and written by the functions that programs use, so with
//! the session that the preload library has, or by the kernel where there is none.

use crate::report::{fail, failed};
use core::ffi::{CStr, c_int, c_void};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A handle of a session or a file, as a number: which thread uses it does not matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(usize);

impl Handle {
    pub fn of(pointer: *mut c_void) -> Handle {
        Handle(pointer.addr())
    }

    pub fn pointer(self) -> *mut c_void {
        core::ptr::without_provenance_mut(self.0)
    }
}

/// A path for calls of the C library.
pub(crate) fn c_path(path: &Path) -> Result<CString, c_int> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        fail(-libc::EINVAL, format_args!("{}: a path with a zero byte", path.display()))
    })
}

/// A write: the file, the offset, and what was written.
#[cfg(test)]
pub(crate) type Write = (PathBuf, u64, Vec<u8>);

#[cfg(test)]
thread_local! {
    /// The writes of this thread, where a test wants them.
    pub(crate) static WRITES: core::cell::RefCell<Option<Vec<Write>>> =
        const { core::cell::RefCell::new(None) };
}

/// An open file of a container. Closed when dropped, or with its session.
#[derive(Debug)]
pub(crate) struct RecordFile(Handle);

impl Drop for RecordFile {
    fn drop(&mut self) {
        crate::forebay_close(self.0.pointer());
    }
}

impl RecordFile {
    /// Opens `path` with flags of open(2), for the user alone but for what the umask takes. A
    /// symbolic link is not followed.
    pub fn open(session: Handle, path: &Path, flags: c_int) -> Result<RecordFile, c_int> {
        let name = c_path(path)?;
        let flags = flags | libc::O_NOFOLLOW;
        let mut file = core::ptr::null_mut();
        // SAFETY: a path, and a place for the handle.
        let code = unsafe {
            crate::forebay_open(session.pointer(), name.as_ptr(), flags, 0o666, &mut file)
        };
        match code {
            0 => Ok(RecordFile(Handle::of(file))),
            errno if errno == -libc::ELOOP => Err(is_link(path)),
            code => Err(code),
        }
    }

    /// Reads `bytes` bytes at `offset` to `to`: all, or `EIO` where the file is shorter.
    ///
    /// # Safety
    /// So many bytes can be written at `to`.
    pub unsafe fn read(&self, to: *mut u8, bytes: usize, offset: u64) -> Result<(), c_int> {
        let mut done = 0;
        while done < bytes {
            // SAFETY: within what the caller gives.
            let read = unsafe {
                let to = to.add(done).cast();
                let (left, at) = ((bytes - done) as i64, (offset + done as u64) as i64);
                crate::forebay_read(self.0.pointer(), to, left, at)
            };
            match read {
                1.. => done += read as usize,
                0 => {
                    let text = format_args!(
                        "{} ends {} bytes before a record does",
                        self.named(),
                        bytes - done
                    );
                    return Err(fail(-libc::EIO, text));
                }
                errno if errno == -i64::from(libc::EINTR) => {}
                errno => return Err(errno as c_int),
            }
        }
        Ok(())
    }

    /// Reads into a slice; what lies behind the end of the file stays.
    pub fn read_part(&self, to: &mut [u8], offset: u64) -> Result<(), c_int> {
        let size = self.size()?;
        let bytes = (size.saturating_sub(offset) as usize).min(to.len());
        // SAFETY: within the slice.
        unsafe { self.read(to.as_mut_ptr(), bytes, offset) }
    }

    /// Writes `bytes` bytes at `offset`: all of them.
    ///
    /// # Safety
    /// So many bytes can be read at `from`.
    pub unsafe fn write(&self, from: *const u8, bytes: usize, offset: u64) -> Result<(), c_int> {
        #[cfg(test)]
        self.note(from, bytes, offset);
        let mut done = 0;
        while done < bytes {
            // SAFETY: within what the caller gives.
            let written = unsafe {
                let from = from.add(done).cast();
                let (left, at) = ((bytes - done) as i64, (offset + done as u64) as i64);
                crate::forebay_write(self.0.pointer(), from, left, at)
            };
            match written {
                0.. => done += written as usize,
                errno if errno == -i64::from(libc::EINTR) => {}
                errno => return Err(errno as c_int),
            }
        }
        Ok(())
    }

    /// Notes a write, for tests that cut them off.
    #[cfg(test)]
    fn note(&self, from: *const u8, bytes: usize, offset: u64) {
        let link = format!("/proc/self/fd/{}", crate::forebay_fd(self.0.pointer()));
        // SAFETY: as the caller of `write` says.
        let bytes = unsafe { core::slice::from_raw_parts(from, bytes) }.to_vec();
        WRITES.with_borrow_mut(|writes| {
            if let Some(writes) = writes {
                writes.push((std::fs::read_link(link).unwrap_or_default(), offset, bytes));
            }
        });
    }

    /// The same of a slice.
    pub fn write_all(&self, from: &[u8], offset: u64) -> Result<(), c_int> {
        // SAFETY: the slice.
        unsafe { self.write(from.as_ptr(), from.len(), offset) }
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<u64, c_int> {
        u64::try_from(crate::forebay_size(self.0.pointer())).map_err(|_| -libc::EIO)
    }

    /// Brings all of it to where it survives a loss of power.
    pub fn sync(&self, level: c_int, timeout_ms: i64) -> Result<(), c_int> {
        match crate::forebay_flush(self.0.pointer(), level) {
            0 => {}
            code => return Err(code),
        }
        match crate::forebay_wait(self.0.pointer(), level, timeout_ms) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Says that a range is not used soon.
    pub fn leave(&self, offset: u64, bytes: u64) {
        self.hint(4, offset, bytes);
    }

    /// Says that a range will be read soon.
    pub fn announce(&self, offset: u64, bytes: u64) {
        self.hint(3, offset, bytes);
    }

    /// Keeps a range in RAM for as long as the file is open. False where nothing is buffered, or
    /// too much is pinned already.
    pub fn pin(&self, offset: u64, bytes: u64) -> bool {
        crate::forebay_pin(self.0.pointer(), offset as i64, bytes as i64, 0) == 0
    }

    fn hint(&self, hint: c_int, offset: u64, bytes: u64) {
        if bytes > 0 {
            crate::forebay_hint(self.0.pointer(), hint, offset as i64, bytes as i64);
        }
    }

    /// Whether all of a range is in the RAM tier. False plainly.
    pub fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        self.all_extents(offset, bytes, |tier| tier == 0)
    }

    /// Whether all of a range is in some tier. False plainly.
    pub fn is_in_tiers(&self, offset: u64, bytes: u64) -> bool {
        self.all_extents(offset, bytes, |tier| tier >= 0)
    }

    /// Whether all of a range lies where it is said, in few extents. False plainly.
    fn all_extents(&self, offset: u64, bytes: u64, is_there: impl Fn(c_int) -> bool) -> bool {
        if crate::session::services().is_none() {
            return false;
        }
        let mut extents = [forebay_client::services::ExtentNow::default(); 16];
        let room = extents.len();
        // SAFETY: room for so many.
        let count = unsafe {
            let to = extents.as_mut_ptr().cast();
            let (offset, bytes) = (offset as i64, bytes as i64);
            crate::forebay_placement(self.0.pointer(), offset, bytes, to, room as c_int)
        };
        let found = usize::try_from(count).ok().and_then(|count| extents.get(..count));
        found.is_some_and(|extents| {
            let end: u64 = extents.iter().map(|extent| extent.bytes as u64).sum();
            end == bytes && extents.iter().all(|extent| is_there(extent.tier))
        })
    }

    fn named(&self) -> crate::kernel::Named {
        crate::kernel::Named(crate::forebay_fd(self.0.pointer()))
    }
}

/// What is no file of a container's.
fn is_link(path: &Path) -> c_int {
    fail(
        -libc::ELOOP,
        format_args!(
            "{} is a symbolic link, and a container follows none; remove it",
            path.display()
        ),
    )
}

pub(crate) fn io_error(errno: Errno, path: &Path) -> c_int {
    if errno == Errno::LOOP {
        return is_link(path);
    }
    failed(-errno.raw_os_error(), format_args!("{}", path.display()))
}

/// A file that only carries a lock: empty, and never buffered. The lock ends with the process, and
/// with its forked children.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Opens the file at `path`, and makes it with `is_new`; not locked yet.
    pub fn open(path: &Path, is_new: bool) -> Result<Lock, Errno> {
        let made = if is_new { OFlags::CREATE | OFlags::EXCL } else { OFlags::CREATE };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | made;
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map(Lock)
    }

    /// Locks it for this container alone, unless another one has it.
    pub fn try_own(&self) -> bool {
        rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Whether a container has the file at `path` for itself.
    pub fn is_owned(path: &Path) -> bool {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let there = rustix::fs::open(path, flags, Mode::empty()).map(Lock);
        there.is_ok_and(|lock| !lock.try_own())
    }

    /// Waits until no container has it for itself, and shares it.
    pub fn share(&self) -> Result<(), Errno> {
        loop {
            match rustix::fs::flock(&self.0, FlockOperation::LockShared) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    /// Gives it up.
    pub fn free(&self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }

    /// Whether `path` is still this file.
    pub fn is_at(&self, path: &Path) -> bool {
        let (mine, there) = (rustix::fs::fstat(&self.0), rustix::fs::lstat(path));
        matches!((mine, there), (Ok(mine), Ok(there))
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino))
    }
}

/// The folder of a container.
#[derive(Clone, Debug)]
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    /// That of the container `name` in `directory`, wherever the process goes to from here.
    pub fn of_name(directory: &Path, name: &str) -> Result<Folder, c_int> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let whole = std::path::absolute(directory).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            failed(-errno, format_args!("the directory that {} is in", directory.display()))
        })?;
        Ok(Folder(whole.join(format!("{name}.records"))))
    }

    /// Sees that a folder is one, of this user or of root, and no link to another place.
    pub fn check(path: &Path) -> Result<(), c_int> {
        let status = rustix::fs::lstat(path).map_err(|errno| io_error(errno, path))?;
        match rustix::fs::FileType::from_raw_mode(status.st_mode) {
            rustix::fs::FileType::Directory => {}
            rustix::fs::FileType::Symlink => return Err(is_link(path)),
            _ => return Err(io_error(Errno::NOTDIR, path)),
        }
        let own = rustix::process::geteuid().as_raw();
        if status.st_uid == own || status.st_uid == 0 {
            return Ok(());
        }
        Err(fail(
            -libc::EPERM,
            format_args!(
                "{} is of user {}, and a container of user {own} takes no folder of others; give \
                 another name or directory",
                path.display(),
                status.st_uid
            ),
        ))
    }

    /// What all that use the container share a lock of.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Says that the files stay: there if a container was ever opened so.
    fn mark(&self) -> PathBuf {
        self.0.join("kept")
    }

    /// The files stay when the last user is gone.
    pub fn keep(&self) -> Result<(), c_int> {
        let path = self.mark();
        Lock::open(&path, false).map(|_| ()).map_err(|errno| io_error(errno, &path))
    }

    /// Whether they do.
    pub fn is_kept(&self) -> bool {
        rustix::fs::lstat(self.mark()).is_ok()
    }

    /// Removes what a failed open has made in a folder that it has made.
    pub fn abandon(&self, shared: &Lock) {
        shared.free();
        // Another one may have come in.
        if shared.try_own() {
            Folder::remove(&self.mark());
            self.clear();
        }
    }

    /// A file of a writer: its `index`, `data`, `lock`, `order`, or a folder of `records`.
    pub fn of(&self, writer: u32, what: &str) -> PathBuf {
        self.0.join(format!("w{writer:04}.{what}"))
    }

    /// The file of a record of its own.
    pub fn record(&self, writer: u32, file: u32) -> PathBuf {
        self.of(writer, "records").join(format!("{file:08}"))
    }

    /// The writers that the container has or had, in ascending order.
    pub fn writers(&self) -> Result<Vec<u32>, c_int> {
        let entries = std::fs::read_dir(&self.0).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            failed(-errno, format_args!("{}", self.0.display()))
        })?;
        let number = |name: std::ffi::OsString| {
            let name = name.into_string().ok()?;
            name.strip_prefix('w')?.strip_suffix(".lock")?.parse().ok()
        };
        let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
        let mut writers: Vec<u32> = names.filter_map(number).collect();
        writers.sort_unstable();
        Ok(writers)
    }

    /// When its list of names was last changed.
    pub fn changed_ns(&self) -> Option<i128> {
        let status = rustix::fs::lstat(&self.0).ok()?;
        Some(i128::from(status.st_mtime) * 1_000_000_000 + status.st_mtime_nsec as i128)
    }

    /// Makes the folder, if it is not there. Whether it was not.
    pub fn make(path: &Path) -> Result<bool, c_int> {
        let name = c_path(path)?;
        // SAFETY: a path.
        match unsafe { libc::mkdir(name.as_ptr(), 0o777) } {
            0 => Ok(true),
            _ => match crate::last_errno() {
                libc::EEXIST => Folder::check(path).map(|()| false),
                errno => Err(failed(-errno, format_args!("{}", path.display()))),
            },
        }
    }

    /// Removes a file; it is no error if it is not there.
    pub fn remove(path: &Path) {
        let Ok(name) = c_path(path) else { return };
        // SAFETY: a path.
        unsafe { libc::unlink(name.as_ptr()) };
    }

    fn remove_folder(path: &Path) {
        let Ok(name) = c_path(path) else { return };
        // SAFETY: a path.
        unsafe { libc::rmdir(name.as_ptr()) };
    }

    /// Removes all that containers make in it, and the folder if nothing else is there.
    pub fn clear(&self) {
        for writer in self.writers().unwrap_or_default() {
            let records = self.of(writer, "records");
            // What is behind a link is not the container's.
            let is_there = Folder::check(&records).is_ok();
            for entry in is_there
                .then(|| std::fs::read_dir(&records))
                .into_iter()
                .flatten()
                .flatten()
                .flatten()
            {
                Folder::remove(&entry.path());
            }
            Folder::remove_folder(&records);
            for what in ["data", "index", "order", "lock"] {
                Folder::remove(&self.of(writer, what));
            }
        }
        Folder::remove(&self.lock());
        Folder::remove_folder(&self.0);
    }

    /// Brings the names in it to where a loss of power leaves them.
    pub fn sync(path: &Path) -> Result<(), c_int> {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let synced = rustix::fs::open(path, folder, Mode::empty())
            .and_then(|folder| rustix::fs::fsync(&folder));
        synced.map_err(|errno| io_error(errno, path))
    }

    /// Shares the lock of the folder, which is made if it is not there. Whether it was not.
    pub fn enter(&self) -> Result<(Lock, bool), c_int> {
        // The last user may be removing everything: then it is made again.
        for _ in 0..1000 {
            let is_made = match Folder::make(&self.0) {
                // Removed between two looks.
                Err(errno)
                    if errno == -libc::ENOENT && self.0.parent().is_some_and(Path::is_dir) =>
                {
                    continue;
                }
                made => made?,
            };
            let path = self.lock();
            let lock = match Lock::open(&path, false) {
                Ok(lock) => lock,
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    if is_made {
                        Folder::remove_folder(&self.0);
                    }
                    return Err(io_error(errno, &path));
                }
            };
            lock.share().map_err(|errno| io_error(errno, &path))?;
            if lock.is_at(&path) {
                return Ok((lock, is_made));
            }
        }
        Err(fail(
            -libc::EBUSY,
            format_args!("{}: other processes make and remove it all the time", self.0.display()),
        ))
    }
}

/// The name of a container, checked: a part of a path.
pub(crate) fn check_name(name: &CStr) -> Result<&str, c_int> {
    let text = name.to_str().unwrap_or("");
    let is_good = !text.is_empty() && text.len() <= 200 && !text.contains('/');
    if is_good && !text.starts_with('.') {
        return Ok(text);
    }
    Err(fail(
        -libc::EINVAL,
        format_args!(
            "\"{}\" is no name of a container: give 1 to 200 bytes of UTF-8 without '/', not \
             beginning with '.'",
            name.to_bytes().escape_ascii()
        ),
    ))
}
