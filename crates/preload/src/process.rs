//! fork, and what changes the whole process.

use crate::errno::status;
use crate::real::{aliases, real};
use crate::session::{session, settle};
use crate::stdio::foreign::carries;
use crate::stdio::layout::Stream;
use crate::stdio::standard;
use forebay_client::Session;
use libc::{c_char, c_int, c_uint, c_ulong, c_void, pid_t, size_t};
use rustix::io::Errno;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> pid_t {
    let call = || real!(c"fork"() -> pid_t);
    let Some(session) = session() else { return call() };
    let Some(prepared) = session.before_fork_in_time() else {
        return status(Err(Errno::AGAIN));
    };
    match call() {
        0 => {
            if let Err(refused) = session.forked(prepared, crate::number()) {
                crate::session::refuse("start", refused);
            }
            crate::session::alone(session);
            standard::alone();
            0
        }
        -1 => {
            session.fork_failed(prepared);
            -1
        }
        child => {
            session.fork_succeeded(&prepared, child as u32);
            child
        }
    }
}

/// glibc's daemon forks and redirects the standard descriptors inside itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keep_folder: c_int, keep_streams: c_int) -> c_int {
    // SAFETY: the calls that a daemon consists of, with numbers and with paths of ours. The parent
    // ends as glibc's does.
    unsafe {
        match fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if keep_folder == 0 && libc::chdir(c"/".as_ptr()) == -1 {
            return -1;
        }
        if keep_streams == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null == -1 {
                return -1;
            }
            for fd in 0..3 {
                libc::dup2(null, fd);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
    0
}

/// glibc's forkpty forks inside itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn forkpty(
    main: *mut c_int,
    name: *mut libc::c_char,
    terminal: *const libc::termios,
    size: *const libc::winsize,
) -> pid_t {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: what the program says of the terminal, and its place for the name; our numbers.
    if unsafe { libc::openpty(&mut master, &mut slave, name, terminal, size) } == -1 {
        return -1;
    }
    // SAFETY: the fork that the program asked for. What is closed was opened here, and `main` is
    // the program's place for it.
    unsafe {
        let child = fork();
        match child {
            0 => {
                libc::close(master);
                if libc::setsid() == -1 || libc::ioctl(slave, libc::TIOCSCTTY, 0) == -1 {
                    libc::_exit(1);
                }
                for fd in 0..3 {
                    libc::dup2(slave, fd);
                }
                if slave > 2 {
                    libc::close(slave);
                }
            }
            -1 => {
                libc::close(master);
                libc::close(slave);
            }
            _ => {
                main.write(master);
                libc::close(slave);
            }
        }
        child
    }
}

/// The C library starts the shell with the environment as the program left it.
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const libc::c_char) -> c_int {
    // SAFETY: the call is to read the environment, so that no other thread may change it now.
    unsafe { crate::exec::restore_environment() };
    real!(c"system"(command => *const libc::c_char) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn popen(
    command: *const libc::c_char,
    mode: *const libc::c_char,
) -> *mut libc::FILE {
    // SAFETY: the call is to read the environment, so that no other thread may change it now.
    unsafe { crate::exec::restore_environment() };
    let stream = real!(c"popen"(command => *const libc::c_char, mode => *const libc::c_char) -> isize)
        as *mut libc::FILE;
    // SAFETY: just opened, or null.
    carries(unsafe { Stream::at(stream) }, true);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: a stream of the program's, which is closed only below.
    carries(unsafe { Stream::at(stream) }, false);
    real!(c"pclose"(stream => *mut libc::FILE) -> c_int)
}

/// The cached limit on the size of files follows what the program sets.
macro_rules! limits {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // A process of less memory, or fewer descriptors, could not join.
            settle();
            crate::session::session_of_table().into_iter().for_each(Session::make_room_for_files);
            let result = real!($symbol($($argument => $type),*) -> c_int);
            match crate::session::session_of_table() {
                Some(session) => session.limits_changed(),
                // A vforked child looks at its own when it takes a session.
                None => crate::session::parents().into_iter().for_each(Session::reach_changed),
            }
            result
        }
    )* };
}

limits! {
    setrlimit c"setrlimit" (resource: c_int, limit: *const libc::rlimit);
    setrlimit64 c"setrlimit64" (resource: c_int, limit: *const libc::rlimit);
    prlimit c"prlimit" (process: pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit);
    prlimit64 c"prlimit64" (process: pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit);
}

/// A process that becomes another user's, or gets another root directory, takes along what it
/// could not open again.
macro_rules! parting {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let Some(session) = session() else {
                return real!($symbol($($argument => $type),*) -> c_int);
            };
            session.keep_reach();
            let result = real!($symbol($($argument => $type),*) -> c_int);
            session.root_changed();
            result
        }
    )* };
}

parting! {
    chroot c"chroot" (path: *const libc::c_char);
    setuid c"setuid" (user: libc::uid_t);
    seteuid c"seteuid" (user: libc::uid_t);
    setreuid c"setreuid" (real: libc::uid_t, effective: libc::uid_t);
    setresuid c"setresuid" (real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t);
}

/// A process joins before it may find other files where the pool is, or may not use them.
macro_rules! settling {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            settle();
            real!($symbol($($argument => $type),*) -> c_int)
        }
    )* };
}

settling! {
    unshare c"unshare" (flags: c_int);
    setns c"setns" (fd: c_int, kind: c_int);
    mount c"mount" (from: *const c_char, to: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void);
    umount c"umount" (path: *const c_char);
    umount2 c"umount2" (path: *const c_char, flags: c_int);
    setfsuid c"setfsuid" (user: libc::uid_t);
    pivot_root c"pivot_root" (new: *const c_char, old: *const c_char);
    move_mount c"move_mount" (from: c_int, source: *const c_char, to: c_int, target: *const c_char, flags: c_uint);
    mount_setattr c"mount_setattr" (fd: c_int, path: *const c_char, flags: c_uint, attributes: *mut c_void, size: size_t);
    // What is mapped afterwards has to be in memory.
    mlockall c"mlockall" (flags: c_int);
    // Its arguments differ with the option: all registers are passed on.
    prctl c"prctl" (option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong);
}

aliases! {
    "C" _Fork = fork() -> pid_t;
}
