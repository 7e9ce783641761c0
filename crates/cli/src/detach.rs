//! Starting a process that nothing of ours takes down: neither a signal to our process group or
//! session, nor one to our children, nor what we were started with.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

/// The descriptor on which a detached process reports.
pub const REPORT: RawFd = 3;

/// Signals are numbered up to here.
const SIGNAL_MAX: i32 = 64;

/// Descriptors that are marked one by one where the kernel cannot mark a range (before 5.11).
const MARKED_MAX: RawFd = 4096;

/// A process that is starting. Until it is released, its parent is a *guardian*, a child of ours
/// that tells us how it ends, and that ends with us.
pub struct Detached {
    guardian: Child,
}

impl Detached {
    /// Lets the process go on by itself: it becomes a child of init, or of the nearest process that
    /// takes its place.
    pub fn release(mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }

    /// Waits for the end of the process, and says how it ended.
    ///
    /// # Errors
    /// That of waiting.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.guardian.wait()
    }
}

/// Starts `command`, with `report` as its descriptor [`REPORT`] and no other of ours but the
/// standard ones as the command has them, in a session of its own, with all signals as by default.
///
/// # Errors
/// Those of starting a program.
pub fn spawn(mut command: Command, report: OwnedFd) -> io::Result<Detached> {
    let starter = rustix::process::getpid();
    let end = report.as_raw_fd();
    // SAFETY: only async-signal-safe calls between fork and exec; `report` stays open until then.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            reset();
            give(end)?;
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                // A group that has never been without a parent's is not hung up when it becomes
                // orphaned.
                0 => Ok(rustix::process::setsid().map(drop)?),
                child => guard(child, starter),
            }
        });
    }
    // It returns when the command was executed, or could not be.
    let guardian = command.spawn()?;
    Ok(Detached { guardian })
}

/// Signals that we ignore, and an odd file mode creation mask, are not meant for others: `nohup`,
/// shells and batch systems leave such things behind. (Rust unblocks the signals.)
fn reset() {
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: no handler is set. Those that cannot be changed stay.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mask = rustix::process::umask(rustix::fs::Mode::RWXU);
    rustix::process::umask(mask - rustix::fs::Mode::RWXU);
}

/// Gives the program `end` as [`REPORT`], and none behind it: a pipe to the program's end must not
/// stay open as long as the detached process lives.
///
/// # Safety
/// In a child that is about to execute a program.
unsafe fn give(end: RawFd) -> io::Result<()> {
    let given = match end == REPORT {
        // SAFETY: changes a descriptor of the child, which uses no other.
        true => unsafe { libc::fcntl(REPORT, libc::F_SETFD, 0) },
        // SAFETY: the same.
        false => unsafe { libc::dup2(end, REPORT) },
    };
    if given == -1 {
        return Err(io::Error::last_os_error());
    }
    let first = REPORT + 1;
    let cloexec = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: marks descriptors, which end with the exec.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, cloexec) } != 0 {
        for fd in first..MARKED_MAX {
            // SAFETY: the same.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// The guardian's life: it ends as `child` does, or with `starter`.
///
/// # Safety
/// In a child that executes nothing.
unsafe fn guard(child: libc::pid_t, starter: rustix::process::Pid) -> ! {
    // SAFETY: system calls in a child that uses no descriptor, and ends here.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if rustix::process::getppid() != Some(starter) {
            libc::_exit(0);
        }
        // Not to keep open what tells our starter of the child's exec, and of its end.
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
            for fd in 0..MARKED_MAX {
                libc::close(fd);
            }
        }
        let mut status = 0;
        while libc::waitpid(child, &mut status, 0) == -1 {
            if *libc::__errno_location() != libc::EINTR {
                libc::_exit(0);
            }
        }
        if libc::WIFSIGNALED(status) {
            // No second core.
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::kill(libc::getpid(), libc::WTERMSIG(status));
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

/// Reaps `pid` when it ends, if it became our child again: where we are the first process of a
/// container, nothing else does.
pub fn reap_if_ours(pid: u32) {
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else { return };
    let wait = move |options| rustix::process::waitpid(Some(pid), options);
    if matches!(wait(rustix::process::WaitOptions::NOHANG), Ok(None)) {
        std::thread::spawn(move || wait(rustix::process::WaitOptions::empty()));
    }
}
