//! Files that records name, looked for beneath the stores' directories and nowhere else.
//!
//! What pool, journal and slots say may have been changed by others, or be corrupt. So a path of
//! theirs is only where to look: it is resolved from the store's directory without leaving it, what
//! lies there is looked at before it is opened, and it is opened only if it is the regular file
//! that the record is about.

use forebay_pool::layout::FileRecord;
use forebay_pool::{Identity, clock};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;

/// Directory entries looked at for a file that is not where it was.
pub(crate) const SEARCH_MAX: usize = 2_000_000;
/// How often a path is resolved anew while others rename what it leads through.
const TRIES: usize = 16;
/// The kernel's limit for a file's handle.
pub(crate) const HANDLE_MAX: usize = 128;

/// What a record says of the file that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Known {
    pub device: u64,
    pub inode: u64,
    /// Time of birth in nanoseconds; 0 if the store did not know.
    pub born_ns: u64,
    /// Checksum of the kernel's handle, which has the inode's generation; 0 is not known.
    pub handle: u32,
}

/// How sure one can be of the devices' numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Since {
    /// The record is of this run of the machine.
    Boot,
    /// It may be older: some devices have another number by now.
    Ever,
}

impl Known {
    /// What the pool's record says.
    pub fn of(record: &FileRecord) -> Known {
        let Identity { device, inode } = record.identity();
        let born_ns = record.born_ns.load(Ordering::Acquire);
        Known { device, inode, born_ns, handle: record.handle.load(Ordering::Acquire) }
    }

    /// What the kernel says of an open file.
    ///
    /// # Errors
    /// The kernel's; `STALE` for what is no regular file.
    pub fn seen(fd: impl AsFd) -> Result<Known, Errno> {
        Known::seen_if_regular(fd)?.ok_or(Errno::STALE)
    }

    /// The same; `None` for what is no regular file.
    ///
    /// # Errors
    /// The kernel's.
    fn seen_if_regular(fd: impl AsFd) -> Result<Option<Known>, Errno> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let handle = handle_of(fd.as_fd()).map_or(0, |(kind, bytes)| sum_of_handle(kind, &bytes));
        let (kind, device, inode, born_ns) =
            match rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, wanted) {
                Ok(found) => {
                    let born = found.stx_btime;
                    let knows = found.stx_mask & StatxFlags::BTIME.bits() != 0;
                    let born = clock::joined_ns(born.tv_sec, i64::from(born.tv_nsec));
                    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
                    let kind = FileType::from_raw_mode(found.stx_mode.into());
                    (kind, device, found.stx_ino, if knows { born } else { 0 })
                }
                // Where it is not allowed.
                Err(Errno::NOSYS | Errno::PERM) => {
                    let found = rustix::fs::fstat(&fd)?;
                    (FileType::from_raw_mode(found.st_mode), found.st_dev, found.st_ino, 0)
                }
                Err(errno) => return Err(errno),
            };
        let is_regular = kind == FileType::RegularFile;
        Ok(is_regular.then_some(Known { device, inode, born_ns, handle }))
    }

    /// Whether `seen` is the file. An unknown time of birth is that of a store which knows none,
    /// unless the kernel's handle, as a pool has it, says that it is the file.
    pub fn is(&self, seen: &Known, since: Since) -> bool {
        let handles = self.handle != 0 && seen.handle != 0;
        let born = self.born_ns == seen.born_ns
            || since == Since::Boot && self.born_ns == 0 && handles && self.handle == seen.handle;
        let proof = since == Since::Ever && self.born_ns != 0;
        self.inode == seen.inode
            && born
            && (!handles || self.handle == seen.handle)
            && (self.device == seen.device || proof)
    }
}

/// The kernel's handle of a file: it tells one that was made later with the same inode number.
/// `None` where the file system gives none.
pub(crate) fn handle_of(fd: BorrowedFd<'_>) -> Option<(i32, Vec<u8>)> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; HANDLE_MAX],
    }
    let mut handle = Handle { bytes: HANDLE_MAX as u32, kind: 0, handle: [0; HANDLE_MAX] };
    let mut mount = 0;
    // SAFETY: the structure has the kernel's layout, and room for the largest handle.
    let result = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            std::ptr::from_mut(&mut handle).cast(),
            &mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    let bytes = handle.handle.get(..handle.bytes as usize)?;
    (result == 0).then(|| (handle.kind, bytes.to_vec()))
}

/// The checksum of a file's handle; 0 where there is none.
pub(crate) fn sum_of_handle(kind: i32, bytes: &[u8]) -> u32 {
    match bytes {
        [] => 0,
        _ => crc32c::crc32c_append(crc32c::crc32c(&kind.to_le_bytes()), bytes).max(1),
    }
}

/// Whether files of the directory at `folder` have a time of birth.
pub(crate) fn knows_births(folder: &Path) -> bool {
    let found = rustix::fs::statx(rustix::fs::CWD, folder, AtFlags::empty(), StatxFlags::BTIME);
    found.is_ok_and(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0)
}

/// The stores' directories.
#[derive(Clone, Debug)]
pub(crate) struct Stores(Vec<PathBuf>);

impl Stores {
    pub fn of<'a>(folders: impl Iterator<Item = &'a Path>) -> Stores {
        Stores(folders.map(Path::to_owned).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }

    /// The directory that `path` says it lies beneath.
    ///
    /// # Errors
    /// `XDEV` if it lies beneath none; that of opening the directory.
    fn above<'a>(&self, path: &'a Path) -> Result<(Beneath, &'a Path), Errno> {
        let (folder, relative) = self.parts(path)?;
        Ok((Beneath::of(folder)?, relative))
    }

    /// Where the directory is that `path` says it lies beneath, and the rest of it.
    ///
    /// # Errors
    /// `XDEV` if it lies beneath none.
    fn parts<'a>(&self, path: &'a Path) -> Result<(&Path, &'a Path), Errno> {
        // Of directories within each other the inner one.
        let above = self.iter().filter(|folder| path.starts_with(folder));
        let folder = above.max_by_key(|folder| folder.as_os_str().len()).ok_or(Errno::XDEV)?;
        Ok((folder, below(folder, path)?))
    }

    /// Whether `path` names something beneath a store's directory, as it is written.
    pub fn hold(&self, path: &Path) -> bool {
        self.iter().any(|folder| below(folder, path).is_ok())
    }

    /// Opens the file of `known` that lies at `path`.
    ///
    /// # Errors
    /// `XDEV` if the path leads out of the stores; `STALE` if another file lies there; that of
    /// looking at it, or of opening it.
    pub fn open(
        &self,
        path: &Path,
        access: OFlags,
        known: &Known,
        since: Since,
    ) -> Result<OwnedFd, Errno> {
        let (folder, relative) = self.above(path)?;
        folder.open(relative, access, known, since)
    }

    /// A descriptor that says which file it is, of the file of `known` that lies at `path`; store
    /// directories that were opened for files before are in `roots`.
    ///
    /// # Errors
    /// As of [`Stores::open`].
    pub fn place(
        &self,
        path: &Path,
        known: &Known,
        roots: &mut Roots,
    ) -> Result<(OwnedFd, Known), Errno> {
        let (folder, relative) = self.parts(path)?;
        let place = |beneath: &Beneath| {
            let there = beneath.resolve(relative, OFlags::PATH)?;
            let seen = Known::seen(&there)?;
            if known.is(&seen, Since::Boot) { Ok((there, seen)) } else { Err(Errno::STALE) }
        };
        place(roots.beneath(folder)?).or_else(|_| place(&Beneath::of(folder)?))
    }

    /// The same of one that has another name in the directory of `path`.
    ///
    /// # Errors
    /// `STALE` if it has none there; that of looking.
    pub fn place_beside(&self, path: &Path, known: &Known) -> Result<(OwnedFd, Known), Errno> {
        let (folder, relative) = self.parts(path)?;
        let beneath = Beneath::of(folder)?;
        let parent = relative.parent().filter(|parent| !parent.as_os_str().is_empty());
        let fd = beneath.directory(parent, OFlags::RDONLY)?;
        let of_file = |entry: &rustix::fs::DirEntry| entry.ino() == known.inode;
        for entry in Dir::read_from(&fd)?.filter_map(Result::ok).filter(of_file) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let there = rustix::fs::openat(&fd, entry.file_name(), flags, Mode::empty());
            let Ok(there) = there else { continue };
            match Known::seen(&there) {
                Ok(seen) if known.is(&seen, Since::Boot) => return Ok((there, seen)),
                _ => {}
            }
        }
        Err(Errno::STALE)
    }

    /// What the kernel says of the regular file that lies at `path`.
    ///
    /// # Errors
    /// `XDEV` if the path leads out of the stores; that of looking at it; `STALE` for another kind.
    pub fn seen(&self, path: &Path) -> Result<Known, Errno> {
        let (folder, relative) = self.above(path)?;
        Known::seen(folder.resolve(relative, OFlags::PATH)?)
    }

    /// Whether the file of `known` lies at `path`.
    pub fn has(&self, path: &Path, known: &Known, since: Since) -> bool {
        self.seen(path).is_ok_and(|seen| known.is(&seen, since))
    }

    /// Removes the name `path` of the file of `known`. Returns whether it was its last.
    ///
    /// # Errors
    /// `STALE` if another file has it; that of looking at it, or of removing it.
    pub fn remove(&self, path: &Path, known: &Known, since: Since) -> Result<bool, Errno> {
        let (folder, relative) = self.above(path)?;
        let (parent, name) = folder.parent(relative)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        if !known.is(&Known::seen(&there)?, since) {
            return Err(Errno::STALE);
        }
        let last = rustix::fs::fstat(&there)?.st_nlink == 1;
        rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
        Ok(last)
    }

    /// Looks for the file of `known`: first beneath `first`, which it was made in.
    ///
    /// # Errors
    /// `STALE` if it is in none of them; another one if that is not known: `NODEV`, if the store
    /// that it was made in is not there.
    pub fn search(&self, first: &Path, known: &Known, since: Since) -> Result<PathBuf, Errno> {
        let others = self.iter().filter(|other| *other != first);
        let mut unknown = None;
        for folder in std::iter::once(first).chain(others) {
            let device = (folder == first).then_some(known.device);
            match search(folder, known, since, device, SEARCH_MAX) {
                Err(Errno::STALE) => {}
                Err(errno) => unknown = unknown.or(Some(errno)),
                found => return found,
            }
        }
        Err(unknown.unwrap_or(Errno::STALE))
    }
}

/// Directories of stores that are kept open while many files are looked for. Another one may get
/// the name: what is not found beneath one of these is looked for anew.
#[derive(Default)]
pub(crate) struct Roots(Vec<Beneath>);

impl Roots {
    fn beneath(&mut self, folder: &Path) -> Result<&Beneath, Errno> {
        let known = self.0.iter().position(|known| known.folder == folder);
        let at = match known {
            Some(at) => at,
            None => {
                self.0.push(Beneath::of(folder)?);
                self.0.len() - 1
            }
        };
        Ok(&self.0[at])
    }
}

/// What of `path` lies beneath `folder`: names, and no step back.
///
/// # Errors
/// `XDEV` if it lies elsewhere.
fn below<'a>(folder: &Path, path: &'a Path) -> Result<&'a Path, Errno> {
    let relative = path.strip_prefix(folder).map_err(|_| Errno::XDEV)?;
    let mut parts = relative.components();
    let names = parts.clone().count() > 0 && parts.all(|part| matches!(part, Component::Normal(_)));
    if names { Ok(relative) } else { Err(Errno::XDEV) }
}

/// A directory of which nothing that lies elsewhere is reached: not by `..`, not by an absolute
/// path, not by a symbolic link.
#[derive(Debug)]
pub(crate) struct Beneath {
    folder: PathBuf,
    root: OwnedFd,
}

impl Beneath {
    /// Of the directory that is at `folder` now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(folder: &Path) -> Result<Beneath, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(folder, flags, Mode::empty())?;
        Ok(Beneath { folder: folder.to_owned(), root })
    }

    fn resolve(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), how) {
                Err(Errno::AGAIN) => {}
                // Older than Linux 5.6, or not allowed.
                Err(Errno::NOSYS | Errno::PERM) => break,
                result => return result,
            }
        }
        self.step(relative, flags)
    }

    /// The same, one name after the other; follows no symbolic link at all.
    fn step(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut here = None;
        let mut parts = relative.components().peekable();
        while let Some(part) = parts.next() {
            let Component::Normal(name) = part else { return Err(Errno::XDEV) };
            let from = here.as_ref().unwrap_or(&self.root);
            let flags = if parts.peek().is_some() { folder } else { flags };
            here = Some(rustix::fs::openat(from, name, flags, Mode::empty())?);
        }
        here.ok_or(Errno::XDEV)
    }

    /// The directory that `relative` lies in, and its name there.
    fn parent<'a>(&self, relative: &'a Path) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let name = relative.file_name().ok_or(Errno::XDEV)?;
        let parent = relative.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((self.directory(parent, OFlags::PATH)?, name))
    }

    fn directory(&self, relative: Option<&Path>, access: OFlags) -> Result<OwnedFd, Errno> {
        let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match relative {
            Some(relative) => self.resolve(relative, flags),
            None => rustix::fs::openat(&self.root, c".", flags, Mode::empty()),
        }
    }

    /// See [`Stores::open`]. Nothing but the file itself is ever opened, so that nothing happens to
    /// what else may lie there: devices, FIFOs, files with leases.
    fn open(
        &self,
        relative: &Path,
        access: OFlags,
        known: &Known,
        since: Since,
    ) -> Result<OwnedFd, Errno> {
        let there = self.resolve(relative, OFlags::PATH)?;
        match known.is(&Known::seen(&there)?, since) {
            true => reopen(&there, access),
            false => Err(Errno::STALE),
        }
    }

    /// Gives `each` all that is not a directory, with the directory that it lies in, until it has
    /// enough and says true.
    pub fn walk(&self, most: usize, each: &mut dyn FnMut(&Entry<'_>) -> bool) -> Walked {
        let mut walked = Walked::default();
        let mut folders = vec![PathBuf::new()];
        let mut seen = 0;
        while let Some(relative) = folders.pop() {
            let named = Some(relative.as_path()).filter(|path| !path.as_os_str().is_empty());
            let opened = self.directory(named, OFlags::RDONLY);
            let entries = opened.and_then(|fd| Ok((Dir::read_from(&fd)?, fd)));
            let (entries, fd) = match entries {
                Ok(entries) => entries,
                Err(Errno::ACCESS) if self.is_closed(named) => {
                    walked.passed_over = true;
                    continue;
                }
                Err(errno) => {
                    walked.doubt = walked.doubt.or(doubt(errno));
                    continue;
                }
            };
            if let Ok(found) = rustix::fs::fstat(&fd)
                && !walked.devices.contains(&found.st_dev)
            {
                walked.devices.push(found.st_dev);
            }
            for entry in entries {
                let Ok(entry) = entry else {
                    walked.doubt = Some(Errno::IO);
                    break;
                };
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                seen += 1;
                if seen > most {
                    walked.doubt = Some(Errno::NFILE);
                    return walked;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => kind_of(&fd, name),
                    kind => Ok(kind),
                };
                let path = relative.join(OsStr::from_bytes(name.to_bytes()));
                match kind {
                    Ok(FileType::Directory) => folders.push(path),
                    Ok(_) => {
                        let entry = Entry {
                            inode: entry.ino(),
                            folder: &fd,
                            name,
                            path: self.folder.join(path),
                        };
                        if each(&entry) {
                            return walked;
                        }
                    }
                    Err(errno) => walked.doubt = walked.doubt.or(doubt(errno)),
                }
            }
        }
        walked
    }

    /// Whether a directory that may not be read is another user's and may not be entered either:
    /// by a name that is known, files may be moved to one that may be.
    fn is_closed(&self, relative: Option<&Path>) -> bool {
        let here = self.directory(relative, OFlags::PATH);
        let enter = |fd: OwnedFd| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(fd, c".", flags, Mode::empty())
        };
        !self.is_own(relative) && matches!(here.and_then(enter), Err(Errno::ACCESS))
    }

    /// Whether a directory is this user's; if that cannot be known, whether its parent is.
    fn is_own(&self, relative: Option<&Path>) -> bool {
        let owner = |path: Option<&Path>| {
            let fd = self.directory(path.filter(|path| !path.as_os_str().is_empty()), OFlags::PATH);
            fd.and_then(rustix::fs::fstat).map(|found| found.st_uid)
        };
        let owned = owner(relative).or_else(|_| owner(relative.and_then(Path::parent)));
        owned == Ok(rustix::process::geteuid().as_raw())
    }
}

fn kind_of(folder: &OwnedFd, name: &CStr) -> Result<FileType, Errno> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode))
}

/// What [`Beneath::walk`] finds.
pub(crate) struct Entry<'a> {
    /// As the directory says.
    pub inode: u64,
    folder: &'a OwnedFd,
    name: &'a CStr,
    pub path: PathBuf,
}

impl Entry<'_> {
    /// What the kernel says of it; `None` if it is no regular file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn seen(&self) -> Result<Option<Known>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::openat(self.folder, self.name, flags, Mode::empty())?;
        Known::seen_if_regular(there)
    }
}

/// How far a walk came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walked {
    /// Why something that may be there was not looked at.
    pub doubt: Option<Errno>,
    /// Directories of other users may be neither read nor entered, such as lost+found.
    pub passed_over: bool,
    /// What the directories that were read are on.
    devices: Vec<u64>,
}

impl Walked {
    /// Whether everything was looked at.
    pub fn is_complete(&self) -> bool {
        self.doubt.is_none() && !self.passed_over
    }
}

/// Looks for a file by identity beneath `folder`, which it has been moved within. Folders of other
/// users that may be neither read nor entered are passed over.
///
/// # Errors
/// `STALE` if it is not there. Another one if not everything could be looked at: it may be there.
/// `NODEV` if the folder is missing, or none that was read is on `device`, where one is to be: that
/// is not mounted, or another one is mounted over it.
fn search(
    folder: &Path,
    known: &Known,
    since: Since,
    device: Option<u64>,
    most: usize,
) -> Result<PathBuf, Errno> {
    let beneath = Beneath::of(folder).map_err(|errno| doubt(errno).unwrap_or(Errno::NODEV))?;
    let (mut found, mut unknown) = (None, None);
    let walked = beneath.walk(most, &mut |entry| {
        if entry.inode != known.inode {
            return false;
        }
        match entry.seen() {
            Ok(Some(seen)) if known.is(&seen, since) => found = Some(entry.path.clone()),
            Ok(_) => {}
            Err(errno) => unknown = unknown.or(doubt(errno)),
        }
        found.is_some()
    });
    if let Some(found) = found {
        return Ok(found);
    }
    let is_missing = device.is_some_and(|device| !walked.devices.contains(&device));
    let missing = is_missing.then_some(Errno::NODEV);
    Err(unknown.or(walked.doubt).or(missing).unwrap_or(Errno::STALE))
}

/// What an error of looking at something says of whether the file is there; `None`: it is not.
pub(crate) fn doubt(errno: Errno) -> Option<Errno> {
    match errno {
        // It went while it was looked at, or is a link that leads elsewhere by now.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => None,
        // Of what was looked at, not of the file that is searched for.
        Errno::STALE => Some(Errno::IO),
        errno => Some(errno),
    }
}

/// A description of our own of the file behind `fd`. Waits for no holder of a lease.
pub(crate) fn reopen(fd: impl AsFd, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        // Without /proc; it says nothing of the file.
        Err(Errno::NOENT) => return Err(Errno::NOSYS),
        result => result?,
    };
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn known(path: &Path) -> Known {
        Known::seen(fs::File::open(path).unwrap()).unwrap()
    }

    /// A store with a file, a folder with another, and a file outside.
    fn world() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let all = tempfile::tempdir().unwrap();
        let root = all.path().canonicalize().unwrap();
        let (store, canary) = (root.join("store"), root.join("canary"));
        fs::create_dir_all(store.join("real")).unwrap();
        fs::write(store.join("real/file"), "inside").unwrap();
        fs::write(&canary, "outside").unwrap();
        (all, store, canary)
    }

    #[test]
    fn nothing_outside_is_opened_whatever_leads_there() {
        let (_all, store, canary) = world();
        let inside = store.join("real/file");
        symlink("real", store.join("link")).unwrap();
        symlink("../canary", store.join("out")).unwrap();
        symlink("..", store.join("up")).unwrap();
        symlink(store.parent().unwrap(), store.join("absolute")).unwrap();
        symlink("/proc/self/root", store.join("magic")).unwrap();
        let stores = Stores::of(std::iter::once(store.as_path()));
        let open = |path: PathBuf, of: &Path| {
            stores.open(&path, OFlags::RDWR, &known(of), Since::Boot).map(drop)
        };
        assert_eq!(open(inside.clone(), &inside), Ok(()));
        assert_eq!(open(store.join("link/file"), &inside), Ok(()));
        assert_eq!(open(store.join("real/file"), &canary), Err(Errno::STALE));
        let ways = ["../canary", "real/../../canary", "up/canary", "absolute/canary", "out"];
        let magic = format!("magic{}", canary.display());
        for way in ways.into_iter().chain([magic.as_str(), "", "real/.."]) {
            let refused = open(store.join(way), &canary);
            let outside = matches!(refused, Err(Errno::XDEV | Errno::LOOP | Errno::STALE));
            assert!(outside, "{way}: {refused:?}");
            assert!(!stores.has(&store.join(way), &known(&canary), Since::Boot), "{way}");
            assert!(
                stores.remove(&store.join(way), &known(&canary), Since::Boot).is_err(),
                "{way}"
            );
        }
        assert_eq!(open(canary.clone(), &canary), Err(Errno::XDEV));
        assert_eq!(fs::read(&canary).unwrap(), b"outside");
        assert_eq!(stores.search(&store, &known(&canary), Since::Boot), Err(Errno::STALE));
        // Without openat2.
        let beneath = Beneath::of(&store).unwrap();
        assert!(beneath.step(Path::new("real/file"), OFlags::PATH).is_ok());
        for way in ways.into_iter().chain([magic.as_str(), "", "link/file", "."]) {
            let at = beneath.step(Path::new(way), OFlags::PATH | OFlags::NOFOLLOW);
            let harmless = at.as_ref().is_ok_and(|fd| Known::seen(fd).is_err());
            assert!(at.is_err() || harmless, "{way}");
        }
    }

    #[test]
    fn only_the_name_of_the_file_itself_is_removed() {
        let (_all, store, canary) = world();
        let stores = Stores::of(std::iter::once(store.as_path()));
        let (file, other) = (store.join("real/file"), store.join("other"));
        fs::hard_link(&file, &other).unwrap();
        let of_file = known(&file);
        assert!(stores.has(&other, &of_file, Since::Boot));
        assert_eq!(stores.remove(&other, &known(&canary), Since::Boot), Err(Errno::STALE));
        assert_eq!(stores.remove(&other, &of_file, Since::Boot), Ok(false));
        assert!(!other.exists());
        assert_eq!(stores.remove(&file, &of_file, Since::Boot), Ok(true));
        assert!(!stores.has(&file, &of_file, Since::Boot));
    }

    #[test]
    fn a_time_of_birth_that_is_not_said_is_none_that_fits() {
        let (_all, store, _) = world();
        let seen = known(&store.join("real/file"));
        assert_ne!(seen.born_ns, 0, "this file system does not know when files were born");
        let mut said = Known { born_ns: 0, handle: 0, ..seen };
        for since in [Since::Boot, Since::Ever] {
            assert!(!said.is(&seen, since), "{since:?}");
            assert!(seen.is(&seen, since), "{since:?}");
            assert!(said.is(&Known { born_ns: 0, ..seen }, since), "{since:?}");
            assert!(!seen.is(&Known { born_ns: 0, ..seen }, since), "{since:?}");
            let other = Known { handle: seen.handle ^ 2, ..seen };
            assert!(seen.handle == 0 || !other.is(&seen, since), "{since:?}");
        }
        let moved = Known { device: seen.device + 1, ..seen };
        assert!(moved.is(&seen, Since::Ever) && !moved.is(&seen, Since::Boot));
        said.handle = seen.handle;
        assert!(!said.is(&seen, Since::Ever));
        assert_eq!(said.is(&seen, Since::Boot), seen.handle != 0);
    }

    #[test]
    fn a_search_that_did_not_see_everything_does_not_say_that_a_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        (0..9).for_each(|number| fs::write(folder.path().join(number.to_string()), "").unwrap());
        let file = folder.path().join("5");
        let look = |known: &Known, most| {
            search(folder.path(), known, Since::Boot, Some(known.device), most)
        };
        assert_eq!(look(&known(&file), SEARCH_MAX), Ok(file));
        // Outside of the folder.
        let outside = tempfile::NamedTempFile::new().unwrap();
        let gone = known(outside.path());
        assert_eq!(look(&gone, SEARCH_MAX), Err(Errno::STALE));
        assert_eq!(look(&gone, 9), Err(Errno::STALE));
        assert_eq!(look(&gone, 8), Err(Errno::NFILE));
        // One that was removed since hides nothing; a device that is ill, or a folder that may not
        // be read, may.
        assert_eq!(doubt(Errno::NOENT), None);
        assert_eq!(doubt(Errno::IO), Some(Errno::IO));
        assert_eq!(doubt(Errno::STALE), Some(Errno::IO));
        assert_eq!(doubt(Errno::ACCESS), Some(Errno::ACCESS));
    }

    #[test]
    fn a_file_is_not_gone_with_its_store() {
        let (all, store, canary) = world();
        let away = all.path().join("away");
        let file = store.join("real/file");
        let stores = Stores::of([store.as_path(), away.as_path()].into_iter());
        let look = |known: &Known| stores.search(&store, known, Since::Boot);
        let known = known(&file);
        // Another store may have it; but it is not there itself.
        fs::rename(&file, &canary).unwrap();
        assert_eq!(look(&known), Err(Errno::NODEV));
        fs::create_dir(&away).unwrap();
        assert_eq!(look(&known), Err(Errno::STALE));
        // Nothing is on the device that it was on: that is not mounted.
        let elsewhere = Known { device: known.device + 1, ..known };
        assert_eq!(look(&elsewhere), Err(Errno::NODEV));
        fs::rename(&store, all.path().join("aside")).unwrap();
        assert_eq!(look(&known), Err(Errno::NODEV));
        fs::rename(&canary, away.join("file")).unwrap();
        assert_eq!(look(&known), Ok(away.join("file")));
        fs::rename(away.join("file"), &canary).unwrap();
        fs::write(&store, "").unwrap();
        assert_eq!(look(&known), Err(Errno::NODEV));
    }

    #[test]
    fn a_file_may_be_where_others_let_it_be_moved_to_only() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let others = folder.path().join("others");
        fs::create_dir(&others).unwrap();
        fs::write(others.join("file"), "").unwrap();
        let known = known(&others.join("file"));
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(folder.path(), 0o755);
        let look = || {
            let as_user = || {
                // SAFETY: a system call, which changes the user of this thread alone.
                let done = unsafe { libc::syscall(libc::SYS_setresuid, 65533, 65533, 65533) };
                assert_eq!(done, 0);
                search(folder.path(), &known, Since::Boot, Some(known.device), SEARCH_MAX)
            };
            std::thread::scope(|scope| scope.spawn(as_user).join().unwrap())
        };
        let wanted = [
            (0o700, Err(Errno::STALE)),
            (0o711, Err(Errno::ACCESS)),
            (0o733, Err(Errno::ACCESS)),
            (0o755, Ok(others.join("file"))),
        ];
        for (mode, wanted) in wanted {
            allow(&others, mode);
            assert_eq!(look(), wanted, "{mode:o}");
        }
    }
}
