//! What signals mean to `forebay run`. From [`install`] until the command runs they are noted, and
//! the command is not started. While it runs they are for the command: those that it does not get
//! by itself are passed on. In the drain SIGTERM, SIGHUP, or a second SIGINT or SIGQUIT leave the
//! rest to the node manager.

use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The command runs later, or not at all.
const NOT_YET: i32 = -1;
/// The command has ended, or will not be started.
const OVER: i32 = 0;

/// Process id of the command while it runs, or one of the above.
static COMMAND: AtomicI32 = AtomicI32::new(NOT_YET);
/// Signals that came before the command ran and that it did not get, as bits.
static EARLY: AtomicU32 = AtomicU32::new(0);
/// The signal that ended the drain for us; 0 for none.
static LEFT: AtomicI32 = AtomicI32::new(0);
/// When it came, in milliseconds of the monotonic clock.
static LEFT_AT: AtomicU64 = AtomicU64::new(0);
/// SIGINT and SIGQUIT since the command has ended.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// A further signal ends us on the spot if the drain has not been left for so long. Those that come
/// at once are one: `timeout` signals its child, and then its group.
const OBEYED: Duration = Duration::from_secs(1);

/// What is said then: a handler can say no more.
const ON_THE_SPOT: &[u8] =
    b"forebay: leaving; `forebay status` shows what is not yet on the store, `forebay recover` drains it\n";

/// The signals that are taken.
const TAKEN: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// From now on no signal ends us. One that is ignored, as `nohup` and shells without job control
/// leave it, stays so. The command gets neither handlers nor a mask: an exec takes handlers away,
/// and no signal is blocked.
///
/// # Errors
/// A message when the handlers cannot be installed.
pub fn install() -> Result<(), String> {
    let failed = |error| format!("setting up signals: {error}");
    TAKEN.into_iter().try_for_each(|signal| take_over(signal).map_err(failed))
}

/// For a child that is forked and executes nothing: signals end it again, those that are ignored
/// stay so.
pub fn uninstall() {
    for signal in TAKEN {
        // SAFETY: structures of plain numbers, for which zeros are good, that live for the calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let found = libc::sigaction(signal, std::ptr::null(), &mut action);
            if found == 0 && action.sa_sigaction != libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
    let early = EARLY.swap(0, Ordering::SeqCst);
    if let Some(signal) = TAKEN.into_iter().find(|signal| early & (1 << signal) != 0) {
        // SAFETY: ends this process.
        unsafe { libc::raise(signal) };
    }
}

/// The signal that has come before the command was started, if one has.
pub fn early() -> Option<i32> {
    let early = EARLY.load(Ordering::SeqCst);
    TAKEN.into_iter().find(|signal| early & (1 << signal) != 0)
}

/// From now on signals are for the command, until [`command_ended`], and so are those that have
/// come since [`early`] was asked: the terminal's, too, which may have been sent before the command
/// was there.
pub fn attend(command: u32) {
    let Some(pid) = Pid::from_raw(command as i32) else { return };
    COMMAND.store(command as i32, Ordering::SeqCst);
    pass_on_early(pid);
}

fn pass_on_early(command: Pid) {
    let early = EARLY.swap(0, Ordering::SeqCst);
    TAKEN.into_iter().filter(|signal| early & (1 << signal) != 0).for_each(|signal| {
        pass_on(command, signal);
    });
}

fn pass_on(command: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = kill_process(command, signal);
    }
}

fn take_over(signal: i32) -> io::Result<()> {
    let done = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: structures of plain numbers, for which zeros are good, that live for the calls; the
    // handler calls only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        done(libc::sigaction(signal, std::ptr::null(), &mut action))?;
        if action.sa_sigaction == libc::SIG_IGN {
            return Ok(());
        }
        action = std::mem::zeroed();
        action.sa_sigaction = take as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        done(libc::sigaction(signal, &action, std::ptr::null_mut()))
    }
}

/// The command has ended, and its process id may be another's soon, or it is not started: signals
/// are for the drain.
pub fn command_ended() {
    COMMAND.store(OVER, Ordering::SeqCst);
}

/// The signal that says to leave the drain to the node manager, if one has come.
pub fn to_leave() -> Option<i32> {
    Some(LEFT.load(Ordering::Acquire)).filter(|&signal| signal != 0)
}

/// Whether the drain was interrupted, maybe not yet for good.
pub fn is_interrupted() -> bool {
    INTERRUPTS.load(Ordering::Acquire) > 0
}

extern "C" fn take(signal: i32, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    let is_interrupt = matches!(signal, libc::SIGINT | libc::SIGQUIT);
    // SAFETY: the kernel passes a structure that lives as long as the handler runs.
    let is_of_terminal = unsafe { (*info).si_code } > 0;
    // The interrupted code may be about to look at it.
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    match COMMAND.load(Ordering::SeqCst) {
        NOT_YET => {
            EARLY.fetch_or(1 << signal, Ordering::SeqCst);
            // Another thread may have taken what was early just before.
            match COMMAND.load(Ordering::SeqCst) {
                NOT_YET | OVER => {}
                command => Pid::from_raw(command).into_iter().for_each(pass_on_early),
            }
        }
        OVER if is_interrupt && INTERRUPTS.fetch_add(1, Ordering::AcqRel) == 0 => {}
        OVER => leave(signal),
        // The terminal's goes to its whole process group; one that a process sends may be for us
        // alone.
        _ if is_interrupt && is_of_terminal => {}
        command => Pid::from_raw(command).into_iter().for_each(|pid| pass_on(pid, signal)),
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn leave(signal: i32) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
    // First the time: a thread that sees the signal sees when it came.
    let at = LEFT_AT.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    let _ = LEFT.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
    if at.is_err_and(|at| now.saturating_sub(at) > OBEYED.as_millis() as u64) {
        // SAFETY: async-signal-safe calls; the text lives for ever.
        unsafe {
            libc::write(2, ON_THE_SPOT.as_ptr().cast(), ON_THE_SPOT.len());
            libc::_exit(128 + signal);
        }
    }
}

/// The code of an end by a signal, as shells have it.
pub fn code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(crate::FAILED)
}

/// The same, of this process.
pub fn ended_by(signal: i32) -> ExitCode {
    ExitCode::from(code_of(signal))
}
