//! exec and posix_spawn in all their forms.

use crate::real::{aliases, real};
use crate::spawn::{Environment, Strings, Variables, prepare, prepare_found};
use crate::{managed, session, set_errno};
use forebay_client::user_memory::UserPath;
use libc::{c_char, c_int, c_void, pid_t};
use rustix::io::Errno;

pub(crate) fn libc_environ() -> Strings {
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: the C library's variable; programs do not change it while another thread reads it.
    unsafe { environ }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    // SAFETY: the program's path and variables.
    let (named, given) = unsafe { (UserPath::at(path), Variables::at(variables)) };
    prepare(named, given);
    let environment = Environment::with_ours(given);
    let list = environment.list();
    real!(c"execve"(path => *const c_char, arguments => Strings, list => Strings) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's call, with its variables.
    unsafe { execve(path, arguments, libc_environ()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    // SAFETY: the program's variables.
    let given = unsafe { Variables::at(variables) };
    if !file.is_null() {
        // SAFETY: the program's path, searched for as the C library does it.
        unsafe { prepare_found(UserPath::at(file), given) };
    }
    let environment = Environment::with_ours(given);
    let list = environment.list();
    real!(c"execvpe"(file => *const c_char, arguments => Strings, list => Strings) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's call, with its variables.
    unsafe { execvpe(file, arguments, libc_environ()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int {
    if let Some(file) = managed(fd) {
        let _ = file.release_descriptor();
    }
    // SAFETY: the program's variables.
    let environment = Environment::with_ours(unsafe { Variables::at(variables) });
    let list = environment.list();
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
    // SAFETY: the program's path and variables.
    let (named, given) = unsafe { (UserPath::at(path), Variables::at(variables)) };
    prepare(named, given);
    let environment = Environment::with_ours(given);
    let list = environment.list();
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
    // SAFETY: the program's variables.
    let given = unsafe { Variables::at(variables) };
    // SAFETY: the program's path, searched for as the C library does it.
    unsafe { prepare_found(UserPath::at(file), given) };
    let environment = Environment::with_ours(given);
    let list = environment.list();
    real!(c"posix_spawnp"(pid => *mut pid_t, file => *const c_char, actions => Spawn, attributes => Spawn, arguments => Strings, list => Strings) -> c_int)
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
