//! exec and posix_spawn: the new program must find the library and the pool, and if it cannot load
//! the library, its descriptors must be the kernel's.

use crate::fd::borrow;
use crate::session::Session;
use crate::user_memory::UserPath;
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::FdFlags;
use std::ffi::CString;

/// What the environment of every child has to carry.
const CARRIED: [&CStr; SETTINGS] =
    [c"LD_PRELOAD", c"FOREBAY_POOL", c"FOREBAY_SOCKET", c"FOREBAY_JOB"];
const SETTINGS: usize = 4;

/// A program that has this in its environment runs without Forebay.
const DISABLED: &CStr = c"FOREBAY_DISABLE";

/// A list of C strings as `environ` is one.
pub type Strings = *const *const c_char;

/// An environment: entries "NAME=value".
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    list: Strings,
    entries: PhantomData<&'a CStr>,
}

impl<'a> Variables<'a> {
    /// Those of `list`.
    ///
    /// # Safety
    /// It is null, or an array of C strings that ends with null, and stays as it is for as long as
    /// it, or an entry of it, is used.
    pub unsafe fn at(list: Strings) -> Variables<'a> {
        Variables { list, entries: PhantomData }
    }

    fn entries(self) -> impl Iterator<Item = &'a CStr> {
        let entry = move |index| {
            if self.list.is_null() {
                return None;
            }
            // SAFETY: an array of C strings, of which nothing behind the null at its end is read.
            unsafe {
                let entry = *self.list.add(index);
                (!entry.is_null()).then(|| CStr::from_ptr(entry))
            }
        };
        (0..).map_while(entry).fuse()
    }

    /// The entry for `name`.
    fn find(self, name: &CStr) -> Option<&'a CStr> {
        self.entries().find(|entry| defines(entry, name))
    }

    fn has(self, name: &CStr) -> bool {
        self.find(name).is_some()
    }
}

fn defines(entry: &CStr, name: &CStr) -> bool {
    let rest = entry.to_bytes().strip_prefix(name.to_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Our settings as this process received them, "NAME=value": programs clear their environment.
#[derive(Debug, Default)]
pub struct Carried {
    entries: [Option<CString>; SETTINGS],
}

impl Carried {
    /// The settings in the environment as it was given; none where it switches Forebay off.
    pub fn of(given: Variables<'_>) -> Carried {
        if given.has(DISABLED) {
            return Carried::default();
        }
        Carried { entries: CARRIED.map(|name| given.find(name).map(CStr::to_owned)) }
    }

    /// The pool that the process is to join.
    pub fn pool(&self) -> Option<&CStr> {
        self.value(1)
    }

    /// The socket of the pool's node manager.
    pub fn socket(&self) -> Option<&CStr> {
        self.value(2)
    }

    /// The number of the run that the process belongs to.
    pub fn job(&self) -> Option<&CStr> {
        self.value(3)
    }

    /// The library's path: the first one in the LD_PRELOAD that this process was started with.
    fn library(&self) -> Option<&[u8]> {
        self.value(0)?.to_bytes().split(|&byte| byte == b':').next()
    }

    fn entries(&self) -> [Option<&CStr>; SETTINGS] {
        self.entries.each_ref().map(Option::as_deref)
    }

    /// The value of a setting, by its place in `CARRIED`.
    fn value(&self, setting: usize) -> Option<&CStr> {
        let value = CARRIED[setting].count_bytes() + 1;
        let entry = self.entries()[setting]?.to_bytes_with_nul();
        CStr::from_bytes_with_nul(entry.get(value..)?).ok()
    }

    /// Whether an LD_PRELOAD entry names the library.
    fn is_in(&self, entry: &CStr) -> bool {
        let Some(ours) = self.library() else { return true };
        let value = entry.to_bytes().splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default();
        value.split(|&byte| byte == b':' || byte == b' ').any(|name| name == ours)
    }
}

/// An environment with our settings added where they are missing.
pub struct Environment<'a> {
    given: Variables<'a>,
    /// Empty where nothing is missing.
    made: Vec<*const c_char>,
    /// What an entry of `made` points to.
    preload: Option<Vec<u8>>,
}

/// "LD_PRELOAD=ours:theirs" with its zero, for an LD_PRELOAD entry; `None` without memory.
fn merged(carried: &Carried, entry: &CStr) -> Option<Vec<u8>> {
    let ours = carried.library()?;
    let name = b"LD_PRELOAD=";
    let theirs = &entry.to_bytes_with_nul()[name.len()..];
    let separator: &[u8] = if theirs.len() > 1 { b":" } else { b"" };
    let pieces: [&[u8]; 4] = [name, ours, separator, theirs];
    let mut made = Vec::new();
    made.try_reserve_exact(pieces.iter().map(|piece| piece.len()).sum()).ok()?;
    for piece in pieces {
        made.extend_from_slice(piece);
    }
    Some(made)
}

impl<'a> Environment<'a> {
    fn with(carried: &'a Carried, given: Variables<'a>) -> Environment<'a> {
        let mut environment = Environment { given, made: Vec::new(), preload: None };
        if given.has(DISABLED) {
            return environment;
        }
        let mut missing = carried.entries();
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            *setting = setting.filter(|_| !given.has(name));
        }
        let is_foreign = |entry: &&CStr| defines(entry, CARRIED[0]) && !carried.is_in(entry);
        let foreign = given.entries().find(is_foreign);
        if missing == [None; SETTINGS] && foreign.is_none() {
            return environment;
        }
        let most = given.entries().count() + SETTINGS + 1;
        if environment.made.try_reserve_exact(most).is_err() {
            return environment;
        }
        environment.preload = foreign.and_then(|entry| merged(carried, entry));
        for item in given.entries().chain(missing.into_iter().flatten()) {
            let replacement = match &environment.preload {
                Some(merged) if foreign.is_some_and(|foreign| core::ptr::eq(foreign, item)) => {
                    merged.as_ptr().cast()
                }
                _ => item.as_ptr(),
            };
            environment.made.push(replacement);
        }
        environment.made.push(core::ptr::null());
        environment
    }

    /// What the C library is to be given.
    pub fn list(&self) -> Strings {
        if self.made.is_empty() { self.given.list } else { self.made.as_ptr() }
    }
}

/// Whether the kernel will start the program through a dynamic loader that honours LD_PRELOAD.
fn loads_libraries(file: &OwnedFd, depth: u32) -> bool {
    let mut head = [0u8; 512];
    let Ok(got) = rustix::io::pread(file, &mut head[..], 0) else { return false };
    let head = &head[..got];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
        let name = line
            .split(|byte| byte.is_ascii_whitespace())
            .find(|word| !word.is_empty())
            .unwrap_or(b"");
        return depth < 4
            && rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .is_ok_and(|interpreter| loads_libraries(&interpreter, depth + 1));
    }
    let privileged = rustix::fs::fstat(file).is_ok_and(|stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let set_user =
            mode.contains(Mode::SUID) && stat.st_uid != rustix::process::geteuid().as_raw();
        let set_group =
            mode.contains(Mode::SGID) && stat.st_gid != rustix::process::getegid().as_raw();
        set_user || set_group
    });
    !privileged && has_interpreter(head, file).unwrap_or(false)
}

/// Whether a 64-bit ELF file has a PT_INTERP program header.
fn has_interpreter(head: &[u8], file: &OwnedFd) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let offset = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let size = u16::from_le_bytes(head.get(54..56)?.try_into().ok()?);
    let number = u16::from_le_bytes(head.get(56..58)?.try_into().ok()?);
    Some((0..number.min(128)).any(|index| {
        let mut kind = [0u8; 4];
        let at = offset + u64::from(index) * u64::from(size);
        rustix::io::pread(file, &mut kind[..], at) == Ok(4) && u32::from_le_bytes(kind) == PT_INTERP
    }))
}

impl Session {
    /// The session, whose process gives `carried` to every child.
    #[must_use]
    pub fn carrying(mut self, carried: Carried) -> Session {
        self.carried = carried;
        self
    }

    /// The environment that a new program gets where its starter has given it `given`.
    pub fn environment<'a>(&'a self, given: Variables<'a>) -> Environment<'a> {
        Environment::with(&self.carried, given)
    }

    /// What is missing in `given`, the environment of this process: entries to be put there, which
    /// are never freed.
    pub fn missing(&'static self, given: Variables<'_>) -> [Option<&'static CStr>; SETTINGS] {
        if given.has(DISABLED) {
            return [None; SETTINGS];
        }
        let mut missing = self.carried.entries();
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            match given.find(name) {
                None => {}
                Some(given) if name == CARRIED[0] && !self.carried.is_in(given) => {
                    let merged = merged(&self.carried, given);
                    *setting = merged.and_then(|made| CStr::from_bytes_with_nul(made.leak()).ok());
                }
                Some(_) => *setting = None,
            }
        }
        missing
    }
}

/// Before a program at `path` is executed: it is read from the store by the kernel, and if it
/// does not load us it uses the descriptors it inherits through the kernel.
pub fn prepare(session: &Session, path: UserPath<'_>, variables: Variables<'_>) {
    let Some(path) = path.get() else { return };
    // A FIFO would make a plain open wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return;
    };
    session.make_clean(file.as_raw_fd());
    let joins = !variables.has(DISABLED) && loads_libraries(&file, 0);
    if !joins || !can_join(session) {
        session.stranger_starts();
        // It also opens what it likes by name.
        session.sync_all(false);
        for file in session.files() {
            let stays = rustix::io::fcntl_getfd(borrow(file.fd))
                .is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
            if stays && !file.uses_kernel_offset() {
                let _ = file.release_to_kernel();
            }
        }
    }
}

/// Whether a program that this process executes now finds the library and the pool, may use
/// them as the user it will be, and has the address space for them.
fn can_join(session: &Session) -> bool {
    let library = session.carried.library().is_some_and(|library| {
        rustix::fs::accessat(CWD, library, Access::READ_OK, AtFlags::EACCESS).is_ok()
    });
    let pool = session.carried.pool().is_some_and(|pool| {
        let access = Access::READ_OK | Access::WRITE_OK;
        rustix::fs::accessat(CWD, pool, access, AtFlags::EACCESS).is_ok()
    });
    let proc = rustix::fs::access(c"/proc/self/stat", Access::READ_OK).is_ok();
    library && pool && proc && session.fits()
}

/// As `prepare`, for the first program that `name` means in the folders of
/// `search`, the PATH of this process.
pub fn prepare_found(
    session: &Session,
    name: UserPath<'_>,
    search: Option<&CStr>,
    variables: Variables<'_>,
) {
    let Some(file) = name.get() else { return };
    let file = file.to_bytes();
    let Some(search) = search.filter(|_| !file.contains(&b'/')) else {
        return prepare(session, name, variables);
    };
    let mut buffer = [0u8; 4096];
    for folder in search.to_bytes().split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + file.len();
        if length >= buffer.len() {
            continue;
        }
        buffer[..folder.len()].copy_from_slice(folder);
        buffer[folder.len()] = b'/';
        buffer[folder.len() + 1..length].copy_from_slice(file);
        buffer[length] = 0;
        let Ok(candidate) = CStr::from_bytes_with_nul(&buffer[..=length]) else { continue };
        if rustix::fs::access(candidate, Access::EXEC_OK).is_ok() {
            return prepare(session, UserPath::from(candidate), variables);
        }
    }
}
