//! exec and posix_spawn: the new program must find the library and the pool, and if it cannot load
//! the library, its descriptors must be the kernel's.

use crate::real::{aliases, real};
use crate::session;
use crate::{managed, set_errno};
use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{c_char, c_int, c_void, pid_t};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What the environment of every child has to carry.
const CARRIED: [&CStr; SETTINGS] =
    [c"LD_PRELOAD", c"FOREBAY_POOL", c"FOREBAY_SOCKET", c"FOREBAY_JOB"];
const SETTINGS: usize = 4;

/// A program that has this in its environment runs without Forebay.
const DISABLED: &CStr = c"FOREBAY_DISABLE";

type Strings = *const *const c_char;

unsafe fn strings<'a>(list: Strings) -> impl Iterator<Item = *const c_char> + 'a {
    (0..).map_while(move |index| {
        let item = if list.is_null() { list.cast() } else { unsafe { *list.add(index) } };
        (!item.is_null()).then_some(item)
    })
}

unsafe fn defines(entry: *const c_char, name: &CStr) -> bool {
    let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
    bytes.strip_prefix(name.to_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

unsafe fn has(variables: Strings, name: &CStr) -> bool {
    unsafe { strings(variables) }.any(|entry| unsafe { defines(entry, name) })
}

/// Our settings as this process received them, "NAME=value": programs clear their environment.
static KEPT: [AtomicPtr<c_char>; SETTINGS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SETTINGS];

fn own_settings() -> [*const c_char; SETTINGS] {
    core::array::from_fn(|index| KEPT[index].load(Ordering::Acquire).cast_const())
}

/// Remembers the settings from the environment as it was given.
pub(crate) unsafe fn start(variables: Strings) {
    if unsafe { has(variables, DISABLED) } {
        return;
    }
    for (place, name) in KEPT.iter().zip(CARRIED) {
        if let Some(entry) = unsafe { strings(variables) }.find(|&e| unsafe { defines(e, name) }) {
            place.store(unsafe { libc::strdup(entry) }, Ordering::Release);
        }
    }
}

/// The settings' values, in the order of `CARRIED`.
pub(crate) fn values() -> [Option<&'static CStr>; SETTINGS] {
    core::array::from_fn(|index| {
        let entry = KEPT[index].load(Ordering::Acquire);
        let name = CARRIED[index].count_bytes() + 1;
        // SAFETY: a copy that is never freed, and begins with "NAME=".
        (!entry.is_null()).then(|| unsafe { CStr::from_ptr(entry.add(name)) })
    })
}

/// An environment with our settings added where they are missing.
struct Environment {
    list: Strings,
    /// What was allocated for it: the list, and a merged LD_PRELOAD.
    made: [*mut c_void; 2],
}

/// Whether an LD_PRELOAD entry names this library.
unsafe fn names_us(entry: *const c_char) -> bool {
    let Some(ours) = our_library() else { return true };
    let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
    let value = bytes.splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default();
    value.split(|&byte| byte == b':' || byte == b' ').any(|name| name == ours)
}

/// This library's path: the first one in the LD_PRELOAD that this process was started with.
fn our_library() -> Option<&'static [u8]> {
    values()[0]?.to_bytes().split(|&byte| byte == b':').next()
}

/// "LD_PRELOAD=ours:theirs" in fresh memory; null if there is none.
unsafe fn merged(entry: *const c_char) -> *mut c_char {
    let Some(ours) = our_library() else { return core::ptr::null_mut() };
    let name = b"LD_PRELOAD=";
    let theirs = &unsafe { CStr::from_ptr(entry) }.to_bytes_with_nul()[name.len()..];
    let separator: &[u8] = if theirs.len() > 1 { b":" } else { b"" };
    let pieces: [&[u8]; 4] = [name, ours, separator, theirs];
    let length = pieces.iter().map(|piece| piece.len()).sum();
    let made = unsafe { libc::malloc(length) }.cast::<u8>();
    if made.is_null() {
        return core::ptr::null_mut();
    }
    let mut at = made;
    for piece in pieces {
        unsafe {
            at.copy_from_nonoverlapping(piece.as_ptr(), piece.len());
            at = at.add(piece.len());
        }
    }
    made.cast()
}

impl Environment {
    unsafe fn with_ours(given: Strings) -> Environment {
        let untouched = Environment { list: given, made: [core::ptr::null_mut(); 2] };
        if session().is_none() || unsafe { has(given, DISABLED) } {
            return untouched;
        }
        let settings = own_settings();
        let missing: [bool; SETTINGS] = core::array::from_fn(|index| {
            !settings[index].is_null() && !unsafe { has(given, CARRIED[index]) }
        });
        let foreign = unsafe { strings(given) }
            .find(|&entry| unsafe { defines(entry, CARRIED[0]) && !names_us(entry) });
        if missing == [false; SETTINGS] && foreign.is_none() {
            return untouched;
        }
        let count = unsafe { strings(given) }.count();
        let list = unsafe { libc::malloc((count + SETTINGS + 1) * size_of::<*const c_char>()) };
        if list.is_null() {
            return untouched;
        }
        let entry = foreign.map_or(core::ptr::null_mut(), |entry| unsafe { merged(entry) });
        let places = list.cast::<*const c_char>();
        let mut at = 0;
        let ours = (0..SETTINGS).filter(|&index| missing[index]).map(|index| settings[index]);
        for item in unsafe { strings(given) }.chain(ours) {
            let replaced = Some(item) == foreign && !entry.is_null();
            let item = if replaced { entry.cast_const() } else { item };
            unsafe { places.add(at).write(item) };
            at += 1;
        }
        unsafe { places.add(at).write(core::ptr::null()) };
        Environment { list: places.cast_const(), made: [list, entry.cast()] }
    }
}

/// Puts our settings back into this process's own environment where the program removed them.
pub(crate) unsafe fn restore_environment() {
    if session().is_none() || unsafe { has(libc_environ(), DISABLED) } {
        return;
    }
    let settings = own_settings();
    for (setting, name) in settings.iter().zip(CARRIED) {
        let given = unsafe { strings(libc_environ()) }.find(|&e| unsafe { defines(e, name) });
        let entry = match given {
            None => setting.cast_mut(),
            Some(given) if name == CARRIED[0] && !unsafe { names_us(given) } => unsafe {
                merged(given)
            },
            Some(_) => continue,
        };
        if !entry.is_null() {
            // The string becomes part of the environment and is never freed.
            unsafe { libc::putenv(entry) };
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        for made in self.made {
            unsafe { libc::free(made) };
        }
    }
}

/// Before a program at `path` is executed: it is read from the store by the kernel, and if it
/// does not load us it uses the descriptors it inherits through the kernel.
unsafe fn prepare(path: *const c_char, variables: Strings) {
    let Some(session) = session() else { return };
    let Some(path) = (unsafe { crate::files::text_at(path) }) else { return };
    // A FIFO would make a plain open wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return;
    };
    session.make_clean(file.as_raw_fd());
    let joins = !unsafe { has(variables, DISABLED) } && loads_libraries(&file, 0);
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

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    unsafe { prepare(path, variables) };
    let environment = unsafe { Environment::with_ours(variables) };
    let list = environment.list;
    real!(c"execve"(path => *const c_char, arguments => Strings, list => Strings) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    unsafe { execve(path, arguments, libc_environ()) }
}

unsafe fn libc_environ() -> Strings {
    unsafe extern "C" {
        static environ: Strings;
    }
    unsafe { environ }
}

/// Calls `act` with each path that `file` may mean, until it returns true.
unsafe fn search(file: *const c_char, mut act: impl FnMut(*const c_char) -> bool) {
    let Some(name) = (unsafe { crate::files::text_at(file) }) else { return };
    let name = name.to_bytes();
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if name.contains(&b'/') || path.is_null() {
        act(file);
        return;
    }
    let mut buffer = [0u8; 4096];
    for folder in unsafe { CStr::from_ptr(path) }.to_bytes().split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + name.len();
        if length >= buffer.len() {
            continue;
        }
        buffer[..folder.len()].copy_from_slice(folder);
        buffer[folder.len()] = b'/';
        buffer[folder.len() + 1..length].copy_from_slice(name);
        buffer[length] = 0;
        let candidate = buffer.as_ptr().cast::<c_char>();
        if unsafe { libc::access(candidate, libc::X_OK) } == 0 && act(candidate) {
            return;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    if !file.is_null() {
        unsafe {
            search(file, |path| {
                prepare(path, variables);
                true
            });
        }
    }
    let environment = unsafe { Environment::with_ours(variables) };
    let list = environment.list;
    real!(c"execvpe"(file => *const c_char, arguments => Strings, list => Strings) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    unsafe { execvpe(file, arguments, libc_environ()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int {
    if let Some(file) = managed(fd) {
        let _ = file.release_descriptor();
    }
    let environment = unsafe { Environment::with_ours(variables) };
    let list = environment.list;
    real!(c"fexecve"(fd => c_int, arguments => Strings, list => Strings) -> c_int)
}

type Spawn = *const c_void;

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: Spawn,
    attributes: Spawn,
    arguments: Strings,
    variables: Strings,
) -> c_int {
    unsafe { prepare(path, variables) };
    let environment = unsafe { Environment::with_ours(variables) };
    let list = environment.list;
    real!(c"posix_spawn"(pid => *mut pid_t, path => *const c_char, actions => Spawn, attributes => Spawn, arguments => Strings, list => Strings) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: Spawn,
    attributes: Spawn,
    arguments: Strings,
    variables: Strings,
) -> c_int {
    if file.is_null() {
        set_errno(Errno::FAULT);
        return Errno::FAULT.raw_os_error();
    }
    unsafe {
        search(file, |path| {
            prepare(path, variables);
            true
        });
    }
    let environment = unsafe { Environment::with_ours(variables) };
    let list = environment.list;
    real!(c"posix_spawnp"(pid => *mut pid_t, file => *const c_char, actions => Spawn, attributes => Spawn, arguments => Strings, list => Strings) -> c_int)
}

/// Exports a public name that jumps to a variadic function of the C shim.
macro_rules! variadic {
    ($($name:ident -> $target:ident;)*) => { $(
        unsafe extern "C" { fn $target(); }
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("b {}", sym $target);
        }
    )* };
}

variadic! {
    execl -> forebay_execl;
    execlp -> forebay_execlp;
    execle -> forebay_execle;
    dprintf -> forebay_dprintf;
    vdprintf -> forebay_vdprintf;
    __dprintf_chk -> forebay_dprintf_chk;
    __vdprintf_chk -> forebay_vdprintf_chk;
    fwprintf -> forebay_fwprintf;
    wprintf -> forebay_wprintf;
    __fwprintf_chk -> forebay_fwprintf_chk;
    __wprintf_chk -> forebay_wprintf_chk;
    fwscanf -> forebay_fwscanf;
    wscanf -> forebay_wscanf;
    __isoc99_fwscanf -> forebay_isoc99_fwscanf;
    __isoc99_wscanf -> forebay_isoc99_wscanf;
    __isoc23_fwscanf -> forebay_isoc23_fwscanf;
    __isoc23_wscanf -> forebay_isoc23_wscanf;
}

/// The child of a posix_spawn opens files before it can load us: a file that is buffered now is
/// used through the kernel by every process from here on.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addopen(
    actions: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    let here = unsafe { crate::files::path_here(path) };
    if let Some(session) = session()
        && let Err(errno) = session.hand_over(here.path)
    {
        return errno.raw_os_error();
    }
    real!(c"posix_spawn_file_actions_addopen"(actions => *mut c_void, fd => c_int, path => *const c_char, flags => c_int, mode => libc::mode_t) -> c_int)
}

aliases! {
    /// For the C shim: execl and its kin, their arguments collected.
    "C" forebay_execve = execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int;
    /// For the C shim: execlp, its arguments collected.
    "C" forebay_execvpe = execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int;
}
