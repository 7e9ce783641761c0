//! What signals mean to `forebay run`. While the command runs they are for the command: those that
//! it does not get by itself are passed on. In the drain SIGTERM, SIGHUP, or a second SIGINT or
//! SIGQUIT leave the rest to the node manager.

use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Process id of the command while it runs.
static COMMAND: AtomicI32 = AtomicI32::new(0);
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

/// From now on signals are for the command, until [`command_ended`]. One that is ignored, as
/// `nohup` and shells without job control leave it, stays so.
///
/// # Errors
/// A message when the handlers cannot be installed.
pub fn attend(command: u32) -> Result<(), String> {
    COMMAND.store(command as i32, Ordering::Release);
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
        install(signal).map_err(|error| format!("setting up signals: {error}"))?;
    }
    Ok(())
}

fn install(signal: i32) -> io::Result<()> {
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

/// The command has ended, and its process id may be another's soon: signals are for the drain.
pub fn command_ended() {
    COMMAND.store(0, Ordering::Release);
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
    match Pid::from_raw(COMMAND.load(Ordering::Acquire)) {
        // The terminal's goes to its whole process group; one that a process sends may be for us
        // alone.
        Some(_) if is_interrupt && is_of_terminal => {}
        Some(command) => {
            if let Some(signal) = Signal::from_named_raw(signal) {
                let _ = kill_process(command, signal);
            }
        }
        None if is_interrupt && INTERRUPTS.fetch_add(1, Ordering::AcqRel) == 0 => {}
        None => leave(signal),
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
