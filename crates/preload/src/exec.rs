//! exec and posix_spawn in all their forms.

use crate::child;
use crate::errno::set_errno;
use crate::real::{aliases, real};
use crate::session::{session, session_of_table, session_or_parents};
use crate::spawn_actions::standard_error_of;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use forebay_client::user_memory::{Strings, UserPath};
use forebay_client::{Managed, Session, Start, Variables};
use libc::{c_char, c_int, c_void, pid_t};
use rustix::io::Errno;

fn libc_environ() -> Strings {
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: the C library's variable; programs do not change it while another thread reads it.
    unsafe { environ }
}

/// Puts what every child has to carry back into this process's own environment where the program
/// removed it.
///
/// # Safety
/// No other thread changes the environment meanwhile.
pub(crate) unsafe fn restore_environment() {
    let Some(session) = session() else { return };
    // SAFETY: nothing changes it before all that is missing is known.
    let Some(given) = (unsafe { Variables::at(libc_environ()) }) else { return };
    for entry in session.missing(given).into_iter().flatten() {
        // SAFETY: a C string, which becomes part of the environment and is never freed.
        unsafe { libc::putenv(entry.as_ptr().cast_mut()) };
    }
}

/// Makes the call that starts a program, with the environment that it shall have, once the session
/// knows of the program through `about`.
///
/// # Safety
/// `variables` are the program's.
unsafe fn starting(
    how: Starts,
    variables: Strings,
    about: impl FnOnce(&Session, Variables<'_>) -> Start,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let Some(session) = session_or_parents() else { return call(variables) };
    // SAFETY: a program that changes them during the call gets what it asks for.
    let Some(given) = (unsafe { Variables::at(variables) }) else { return call(variables) };
    let start = about(session, given);
    let environment = session.environment(given, start.needs);
    match how {
        Starts::Here if start.joins => {
            let told = child::told().unwrap_or_else(|| session_told(session));
            // SAFETY: the program's variables, and ours.
            unsafe { session.telling(environment.list(), told, call) }
        }
        Starts::InChild(child) if start.joins && !child::is_child() => {
            let mut result = 0;
            let spawn = |list: Strings| {
                result = call(list);
                // SAFETY: a place of the caller's, which the call has written by now.
                (result == 0).then(|| unsafe { child.read() } as u32)
            };
            // SAFETY: the program's variables, and ours.
            unsafe { session.telling_child(environment.list(), spawned_managed(session), spawn) };
            result
        }
        _ => call(environment.list()),
    }
}

/// Which descriptors may be managed that a child has which is made now to execute a program.
fn spawned_managed(session: &Session) -> Managed {
    match session.has_files() || OPENS.load(Ordering::Acquire) {
        true => Managed::Any,
        false => Managed::NONE,
    }
}

/// Whether any child that the C library makes was to open a file.
static OPENS: AtomicBool = AtomicBool::new(false);

/// What the program is told that this process executes, or a vforked child that has a session.
fn session_told(owner: &Session) -> (u32, Managed) {
    // A vforked child has one by now, if its descriptors had to be handed over.
    let own = session_or_parents().unwrap_or(owner);
    (own.own_slot(), own.managed_descriptors())
}

/// Where a program starts: in this process, or in a new one, the number of which is written here.
#[derive(Clone, Copy)]
enum Starts {
    Here,
    InChild(*const pid_t),
}

/// The same for the program at `path`.
///
/// # Safety
/// Path and variables are the program's.
unsafe fn starting_at(
    how: Starts,
    path: *const c_char,
    variables: Strings,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the program's path.
    let path = unsafe { UserPath::at(path) };
    let about = |owner: &Session, given: Variables<'_>| owner.program_starts(path, given, session);
    // SAFETY: the program's variables.
    unsafe { starting(how, variables, about, call) }
}

/// Where the C library looks for programs if there is no PATH.
fn usual_path(room: &mut [u8; 256]) -> &CStr {
    // SAFETY: room for so many bytes, which the call fills up to a zero.
    unsafe { libc::confstr(libc::_CS_PATH, room.as_mut_ptr().cast(), room.len()) };
    CStr::from_bytes_until_nul(room).unwrap_or_default()
}

/// The same for the program that `file` means in the folders of PATH.
///
/// # Safety
/// Name and variables are the program's, and no other thread changes the environment meanwhile.
unsafe fn starting_found(
    how: Starts,
    file: *const c_char,
    variables: Strings,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let room = &mut [0; 256];
    // SAFETY: the program's name of a file, and an entry of the environment, which stays as it is.
    let (file, search) = unsafe {
        let search = libc::getenv(c"PATH".as_ptr());
        let given = (!search.is_null()).then(|| CStr::from_ptr(search));
        (UserPath::at(file), given.unwrap_or_else(|| usual_path(room)))
    };
    let about = |owner: &Session, given: Variables<'_>| {
        owner.found_program_starts(file, search, given, session)
    };
    // SAFETY: the program's variables.
    unsafe { starting(how, variables, about, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    let call = |list| real!(c"execve"(path => *const c_char, arguments => Strings, list => Strings) -> c_int);
    // SAFETY: the program's call.
    unsafe { starting_at(Starts::Here, path, variables, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's call, with its variables.
    unsafe { execve(path, arguments, libc_environ()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    let call = |list| real!(c"execvpe"(file => *const c_char, arguments => Strings, list => Strings) -> c_int);
    // SAFETY: the program's call.
    unsafe { starting_found(Starts::Here, file, variables, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's call, with its variables.
    unsafe { execvpe(file, arguments, libc_environ()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int {
    let about =
        |owner: &Session, given: Variables<'_>| owner.opened_program_starts(fd, given, session);
    let call =
        |list| real!(c"fexecve"(fd => c_int, arguments => Strings, list => Strings) -> c_int);
    // SAFETY: the program's call.
    unsafe { starting(Starts::Here, variables, about, call) }
}

type Spawn = *const c_void;

/// Before a child is made whose loader may write to its standard error.
///
/// # Safety
/// As of [`standard_error_of`].
unsafe fn release_standard_error(actions: Spawn) {
    let Some(session) = session_of_table() else { return };
    // SAFETY: as the caller says.
    if let Some(fd) = unsafe { standard_error_of(actions.cast()) } {
        session.release_if_standard_error(libc::STDERR_FILENO, fd);
    }
}

/// Calls `start`, which spawns a child and writes its number to where it is told, and gives that to
/// the program, at `pid`.
///
/// # Safety
/// `pid` is null, or a place for the number; `actions` as of [`standard_error_of`].
unsafe fn spawned(
    pid: *mut pid_t,
    actions: Spawn,
    start: impl FnOnce(*mut pid_t) -> c_int,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { release_standard_error(actions) };
    let mut child = 0;
    let result = start(&raw mut child);
    if result == 0 && !pid.is_null() {
        // SAFETY: as the caller says.
        unsafe { pid.write(child) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: Spawn,
    attributes: Spawn,
    arguments: Strings,
    variables: Strings,
) -> c_int {
    let start = |number: *mut pid_t| {
        let call = |list| real!(c"posix_spawn"(number => *mut pid_t, path => *const c_char, actions => Spawn, attributes => Spawn, arguments => Strings, list => Strings) -> c_int);
        // SAFETY: the program's call, and a place for the number.
        unsafe { starting_at(Starts::InChild(number), path, variables, call) }
    };
    // SAFETY: the program's place for the number, if it has one, and its actions.
    unsafe { spawned(pid, actions, start) }
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
    let start = |number: *mut pid_t| {
        let call = |list| real!(c"posix_spawnp"(number => *mut pid_t, file => *const c_char, actions => Spawn, attributes => Spawn, arguments => Strings, list => Strings) -> c_int);
        // SAFETY: the program's call, and a place for the number.
        unsafe { starting_found(Starts::InChild(number), file, variables, call) }
    };
    // SAFETY: the program's place for the number, if it has one, and its actions.
    unsafe { spawned(pid, actions, start) }
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
    OPENS.store(true, Ordering::Release);
    // SAFETY: the program's path.
    let named = unsafe { UserPath::at(path) };
    if let Some(session) = session()
        && let Err(errno) = session.hand_over(named)
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
