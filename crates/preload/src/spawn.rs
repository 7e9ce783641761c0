//! exec and posix_spawn: the new program must find the library and the pool, and if it cannot load
//! the library, its descriptors must be the kernel's.

use crate::exec::libc_environ;
use crate::session;
use core::ffi::CStr;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::user_memory::UserPath;
use libc::c_char;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};

/// What the environment of every child has to carry.
const CARRIED: [&CStr; SETTINGS] =
    [c"LD_PRELOAD", c"FOREBAY_POOL", c"FOREBAY_SOCKET", c"FOREBAY_JOB"];
const SETTINGS: usize = 4;

/// A program that has this in its environment runs without Forebay.
const DISABLED: &CStr = c"FOREBAY_DISABLE";

pub(crate) type Strings = *const *const c_char;

/// An environment: entries "NAME=value".
#[derive(Clone, Copy)]
pub(crate) struct Variables<'a> {
    list: Strings,
    entries: PhantomData<&'a CStr>,
}

impl<'a> Variables<'a> {
    /// Those of `list`.
    ///
    /// # Safety
    /// It is null, or an array of C strings that ends with null, and stays as it is for as long as
    /// it, or an entry of it, is used.
    pub(crate) unsafe fn at(list: Strings) -> Variables<'a> {
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
static KEPT: [AtomicPtr<c_char>; SETTINGS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SETTINGS];

fn own_settings() -> [Option<&'static CStr>; SETTINGS] {
    core::array::from_fn(|index| {
        let entry = KEPT[index].load(Ordering::Acquire);
        // SAFETY: a copy that is never freed.
        (!entry.is_null()).then(|| unsafe { CStr::from_ptr(entry) })
    })
}

/// Remembers the settings from the environment as it was given.
///
/// # Safety
/// `variables` is null, or an array of C strings that ends with null.
pub(crate) unsafe fn start(variables: Strings) {
    // SAFETY: what the caller has, used here only.
    let given = unsafe { Variables::at(variables) };
    if given.has(DISABLED) {
        return;
    }
    for (place, name) in KEPT.iter().zip(CARRIED) {
        if let Some(entry) = given.find(name) {
            // SAFETY: a C string.
            place.store(unsafe { libc::strdup(entry.as_ptr()) }, Ordering::Release);
        }
    }
}

/// The settings' values, in the order of `CARRIED`.
pub(crate) fn values() -> [Option<&'static CStr>; SETTINGS] {
    let settings = own_settings();
    core::array::from_fn(|index| {
        let value = CARRIED[index].count_bytes() + 1;
        CStr::from_bytes_with_nul(settings[index]?.to_bytes_with_nul().get(value..)?).ok()
    })
}

/// An environment with our settings added where they are missing.
pub(crate) struct Environment<'a> {
    given: Variables<'a>,
    /// Empty where nothing is missing.
    made: Vec<*const c_char>,
    /// What an entry of `made` points to.
    preload: Option<Vec<u8>>,
}

/// Whether an LD_PRELOAD entry names this library.
fn names_us(entry: &CStr) -> bool {
    let Some(ours) = our_library() else { return true };
    let value = entry.to_bytes().splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default();
    value.split(|&byte| byte == b':' || byte == b' ').any(|name| name == ours)
}

/// This library's path: the first one in the LD_PRELOAD that this process was started with.
fn our_library() -> Option<&'static [u8]> {
    values()[0]?.to_bytes().split(|&byte| byte == b':').next()
}

/// "LD_PRELOAD=ours:theirs" with its zero, for an LD_PRELOAD entry; `None` without memory.
fn merged(entry: &CStr) -> Option<Vec<u8>> {
    let ours = our_library()?;
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
    pub(crate) fn with_ours(given: Variables<'a>) -> Environment<'a> {
        let mut environment = Environment { given, made: Vec::new(), preload: None };
        if session().is_none() || given.has(DISABLED) {
            return environment;
        }
        let mut missing = own_settings();
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            *setting = setting.filter(|_| !given.has(name));
        }
        let foreign = given.entries().find(|entry| defines(entry, CARRIED[0]) && !names_us(entry));
        if missing == [None; SETTINGS] && foreign.is_none() {
            return environment;
        }
        let most = given.entries().count() + SETTINGS + 1;
        if environment.made.try_reserve_exact(most).is_err() {
            return environment;
        }
        environment.preload = foreign.and_then(merged);
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
    pub(crate) fn list(&self) -> Strings {
        if self.made.is_empty() { self.given.list } else { self.made.as_ptr() }
    }
}

/// Puts our settings back into this process's own environment where the program removed them.
///
/// # Safety
/// No other thread changes the environment meanwhile.
pub(crate) unsafe fn restore_environment() {
    // SAFETY: only this thread changes it, and keeps no entry over that.
    let given = || unsafe { Variables::at(libc_environ()) };
    if session().is_none() || given().has(DISABLED) {
        return;
    }
    for (setting, name) in own_settings().into_iter().zip(CARRIED) {
        let entry = match given().find(name) {
            None => setting.map(|setting| setting.as_ptr().cast_mut()),
            Some(given) if name == CARRIED[0] && !names_us(given) => {
                merged(given).map(|merged| merged.leak().as_mut_ptr().cast())
            }
            Some(_) => continue,
        };
        if let Some(entry) = entry {
            // SAFETY: a C string, which becomes part of the environment and is never freed.
            unsafe { libc::putenv(entry) };
        }
    }
}

/// Before a program at `path` is executed: it is read from the store by the kernel, and if it
/// does not load us it uses the descriptors it inherits through the kernel.
pub(crate) fn prepare(path: UserPath<'_>, variables: Variables<'_>) {
    let Some(session) = session() else { return };
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
            let fd = crate::files::borrow(file.fd);
            let stays = rustix::io::fcntl_getfd(fd)
                .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC));
            if stays && !file.uses_kernel_offset() {
                let _ = file.release_to_kernel();
            }
        }
    }
}

/// Whether a program that this process executes now finds the library and the pool, may use them
/// as the user it will be, and has the address space for them.
fn can_join(session: &forebay_client::Session) -> bool {
    let library = our_library().is_some_and(|library| {
        let flags = rustix::fs::AtFlags::EACCESS;
        rustix::fs::accessat(rustix::fs::CWD, library, rustix::fs::Access::READ_OK, flags).is_ok()
    });
    let pool = values()[1].is_some_and(|pool| {
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        let flags = rustix::fs::AtFlags::EACCESS;
        rustix::fs::accessat(rustix::fs::CWD, pool, access, flags).is_ok()
    });
    let proc = rustix::fs::access(c"/proc/self/stat", rustix::fs::Access::READ_OK).is_ok();
    library && pool && proc && session.fits()
}

/// Whether the kernel will start the program through a dynamic loader that honours LD_PRELOAD.
fn loads_libraries(file: &rustix::fd::OwnedFd, depth: u32) -> bool {
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
        let set_user =
            stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != rustix::process::geteuid().as_raw();
        let set_group =
            stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != rustix::process::getegid().as_raw();
        set_user || set_group
    });
    !privileged && has_interpreter(head, file).unwrap_or(false)
}

/// Whether a 64-bit ELF file has a PT_INTERP program header.
fn has_interpreter(head: &[u8], file: &rustix::fd::OwnedFd) -> Option<bool> {
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

/// As `prepare`, for the first program that `file` means in the folders of PATH.
///
/// # Safety
/// No other thread changes the environment meanwhile.
pub(crate) unsafe fn prepare_found(file: UserPath<'_>, variables: Variables<'_>) {
    let Some(name) = file.get() else { return };
    let name = name.to_bytes();
    // SAFETY: an entry of the environment, which stays as it is.
    let path = unsafe {
        let path = libc::getenv(c"PATH".as_ptr());
        (!path.is_null()).then(|| CStr::from_ptr(path))
    };
    let Some(path) = path.filter(|_| !name.contains(&b'/')) else {
        return prepare(file, variables);
    };
    let mut buffer = [0u8; 4096];
    for folder in path.to_bytes().split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + name.len();
        if length >= buffer.len() {
            continue;
        }
        buffer[..folder.len()].copy_from_slice(folder);
        buffer[folder.len()] = b'/';
        buffer[folder.len() + 1..length].copy_from_slice(name);
        buffer[length] = 0;
        let Ok(candidate) = CStr::from_bytes_with_nul(&buffer[..=length]) else { continue };
        // SAFETY: a C string.
        if unsafe { libc::access(candidate.as_ptr(), libc::X_OK) } == 0 {
            return prepare(UserPath::from(candidate), variables);
        }
    }
}
