//! The folder of a store with encoded bytes that are on their way to, or from, the files that they
//! are of. It is there only while something is in it.
//!
//! A file in it bears the number of a mark. It is written as `NUMBER.new`, locked by who writes it,
//! and gets its name when it is durable. Its own attribute is the mark as the original is to have
//! it, and another one says which file that is.

use super::Failure;
use forebay_active::Source;
use forebay_pool::clock;
use forebay_pool::crash;
use forebay_pool::encoded::{EDGE, FOLDER, MARK, MARK_MAX, Mark};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The attribute that says which file the bytes are of.
const ORIGINAL: &std::ffi::CStr = c"user.forebay.original";
/// Bytes of that at most: numbers, and a path.
const ORIGINAL_MAX: usize = 8192;
const NEW: &str = ".new";
/// How often the folder is made again where others remove it.
const AGAIN: usize = 16;

/// How a file was when it was read, so that it is seen whether it is still the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When it was last written, nanoseconds.
    pub modified_ns: u64,
    /// When it was last changed in any way, nanoseconds.
    pub changed_ns: u64,
}

impl Seen {
    /// What the kernel says of a file.
    pub fn of(stat: &Stat) -> Seen {
        Seen {
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified_ns: clock::joined_ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: clock::joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    fn text(&self, path: &Path) -> Vec<u8> {
        let Seen { inode, size, modified_ns, changed_ns } = self;
        let mut text = format!("{inode} {size} {modified_ns} {changed_ns} ").into_bytes();
        text.extend(path.as_os_str().as_bytes());
        text
    }

    fn parse(text: &[u8]) -> Option<(Seen, PathBuf)> {
        let mut words = text.splitn(5, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
        let (inode, size, modified_ns, changed_ns) = (number()?, number()?, number()?, number()?);
        let path = PathBuf::from(std::ffi::OsString::from_vec(words.next()?.to_vec()));
        Some((Seen { inode, size, modified_ns, changed_ns }, path))
    }
}

/// The folder of one store.
pub struct Beside {
    store: PathBuf,
    folder: OwnedFd,
}

impl Beside {
    /// The folder of the store in this directory; makes it.
    ///
    /// # Errors
    /// The store's errno; `PERM` where it is another user's, or others may write to it.
    pub fn of(store: &Path) -> Result<Beside, Errno> {
        Beside::open(store, true)
    }

    /// The same, if it is there.
    ///
    /// # Errors
    /// As of [`Beside::of`]; `NOENT`.
    pub fn existing(store: &Path) -> Result<Beside, Errno> {
        Beside::open(store, false)
    }

    fn open(store: &Path, makes: bool) -> Result<Beside, Errno> {
        let path = store.join(FOLDER);
        if makes {
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || stat.st_mode & 0o022 != 0 {
            return Err(Errno::PERM);
        }
        Ok(Beside { store: store.to_owned(), folder })
    }

    /// Another description of the folder, to be locked.
    ///
    /// # Errors
    /// The store's.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        crate::store::beneath::reopen(&self.folder, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Where the file of this name is, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.store.join(FOLDER).join(name)
    }

    /// Begins a file, for bytes that will have the number `number`. Until it is finished, its
    /// descriptor holds a lock that says that a process writes it.
    ///
    /// # Errors
    /// The store's.
    pub fn begin(&mut self, number: u64) -> Result<File, Errno> {
        let mut begun = self.begin_once(number);
        for _ in 0..AGAIN {
            if !matches!(begun, Err(Errno::AGAIN)) {
                break;
            }
            begun = self.begin_once(number);
        }
        begun
    }

    fn begin_once(&mut self, number: u64) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let name = format!("{number:016x}{NEW}");
        let mode = Mode::RUSR | Mode::WUSR;
        let make =
            |folder: &OwnedFd| rustix::fs::openat(folder, &name, flags | OFlags::CLOEXEC, mode);
        let mut made = make(&self.folder);
        for _ in 0..AGAIN {
            // Who was last in it has removed it meanwhile.
            if !matches!(made, Err(Errno::NOENT)) {
                break;
            }
            *self = Beside::of(&self.store)?;
            made = make(&self.folder);
        }
        let file = made?;
        // Before it was locked it may have been taken for one that was left, and removed.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        match rustix::fs::fstat(&file)?.st_nlink {
            0 => Err(Errno::AGAIN),
            _ => Ok(file.into()),
        }
    }

    /// Gives what was begun its mark and its name, durably. `seen` is what is encoded, at `path`.
    ///
    /// # Errors
    /// The store's.
    pub fn finish(&self, file: &File, mark: &Mark, seen: &Seen, path: &Path) -> Result<(), Errno> {
        rustix::fs::fsetxattr(file, ORIGINAL, &seen.text(path), XattrFlags::empty())?;
        rustix::fs::fsetxattr(file, MARK, &mark.text(), XattrFlags::empty())?;
        rustix::fs::fsync(file)?;
        let name = mark.name_beside();
        rustix::fs::renameat(&self.folder, format!("{name}{NEW}"), &self.folder, &name)?;
        rustix::fs::fsync(&self.folder)?;
        crash::point("encoded.beside");
        Ok(())
    }

    /// The finished file that a mark names, which has the bytes that it describes.
    ///
    /// # Errors
    /// `NOENT`; `BADMSG` if what is there is something else; the store's.
    pub fn find(&self, mark: &Mark) -> Result<File, Errno> {
        let file = self.open_named(&mark.name_beside())?;
        let stat = rustix::fs::fstat(&file)?;
        let fits = stat.st_size as u64 == mark.encoded
            && edges_of(&file, mark.encoded)? == (mark.head, mark.tail);
        if fits { Ok(file) } else { Err(Errno::BADMSG) }
    }

    fn open_named(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        if is_ours && is_file { Ok(file.into()) } else { Err(Errno::BADMSG) }
    }

    /// What the finished file `number` says of itself: the mark that is meant, what it was made of,
    /// and where that was.
    ///
    /// # Errors
    /// `NOENT`; `BADMSG` if it is not one that was finished; the store's.
    pub fn told(&self, number: u64) -> Result<(Mark, Seen, PathBuf), Errno> {
        let file = self.open_named(&format!("{number:016x}"))?;
        told_by(&file).filter(|(mark, ..)| mark.number == number).ok_or(Errno::BADMSG)
    }

    /// Removes a file, finished or not, and the folder if nothing else is in it.
    pub fn remove(&self, number: u64) {
        self.discard(number);
        self.remove_if_empty();
    }

    /// Removes a file, finished or not, for another one.
    pub fn discard(&self, number: u64) {
        for end in ["", NEW] {
            let name = format!("{number:016x}{end}");
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
    }

    /// Removes the folder if nothing is in it.
    pub fn remove_if_empty(&self) {
        let _ = rustix::fs::rmdir(self.store.join(FOLDER));
    }

    /// Removes what writers have begun that are gone.
    pub fn remove_left(&self) {
        // What cannot be read is left for another time.
        let _ = self.sweep();
    }

    /// Removes what writers have left that are gone, and gives all finished files: number, and
    /// where what they are of was.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep(&self) -> Result<Vec<(u64, Seen, PathBuf)>, Errno> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.folder)?.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let Some(name) = name.to_str() else { continue };
            let (number, is_new) = match name.strip_suffix(NEW) {
                Some(number) => (number, true),
                None => (name, false),
            };
            let Some(number) = u64::from_str_radix(number, 16).ok().filter(|_| number.len() == 16)
            else {
                continue;
            };
            let Ok(file) = self.open_named(name) else { continue };
            let is_left =
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_new && is_left {
                let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            } else if is_left && let Some((_, seen, path)) = told_by(&file) {
                found.push((number, seen, path));
            }
        }
        Ok(found)
    }
}

fn told_by(file: &File) -> Option<(Mark, Seen, PathBuf)> {
    let mut text = vec![0u8; ORIGINAL_MAX];
    let length = rustix::fs::fgetxattr(file, ORIGINAL, &mut text[..]).ok()?;
    let (seen, path) = Seen::parse(text.get(..length)?)?;
    let mut text = [0u8; MARK_MAX];
    let length = rustix::fs::fgetxattr(file, MARK, &mut text[..]).ok()?;
    Some((Mark::parse(text.get(..length)?)?, seen, path))
}

/// Checksums of the first and of the last bytes of the `encoded` first ones of a file, as a mark
/// has them.
///
/// # Errors
/// The store's.
pub(super) fn edges_of(file: &File, encoded: u64) -> Result<(u32, u32), Errno> {
    let bytes = encoded.min(EDGE);
    let mut buffer = vec![0; bytes as usize];
    let mut sum_at = |offset| match file.read_exact_at(&mut buffer, offset) {
        Ok(()) => Ok(crc32c::crc32c(&buffer)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(Failure::errno_of(&error)),
    };
    Ok((sum_at(0)?, sum_at(encoded - bytes)?))
}

/// A descriptor of the file at `path`, if that is the file that was seen, whatever its bytes are by
/// now. It can be opened by [`crate::store::beneath::reopen`].
pub(super) fn find_original(path: &Path, seen: &Seen) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    (is_file && stat.st_ino == seen.inode).then_some(file)
}
