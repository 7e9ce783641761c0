//! Whether a process still runs, by pid and start time, so that a re-used pid is not mistaken.
//!
//! ```
//! use forebay_pool::liveness::{is_alive, start_time};
//!
//! let pid = std::process::id();
//! let start = start_time(pid).expect("/proc tells of this process");
//! assert!(is_alive(pid, start));
//! // Another process with the same number, later.
//! assert!(!is_alive(pid, start + 1));
//! ```

use rustix::fd::IntoRawFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// Which PID namespace this process is in: the inode of the kernel's file for it. 0 where /proc
/// does not tell.
///
/// Numbers of processes say nothing in another one.
pub fn namespace() -> u64 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |found| found.st_ino)
}

/// The inode of the PID namespace that the machine began with: all processes are seen from there.
pub const FIRST_NAMESPACE: u64 = 0xeffffffc;

/// Which start of the machine this is: a number that another one does not have. 0 where /proc does
/// not tell.
pub fn boot() -> u64 {
    let said = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = said.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Start time of process `pid` in clock ticks after boot; `None` when it is gone, or has ended
/// and only waits for its parent to notice, or when /proc cannot be read.
pub fn start_time(pid: u32) -> Option<u64> {
    look(pid).ok().flatten()
}

/// Whether the process `pid` that started at `start` still runs; a `start` of zero is not known.
/// Where /proc does not tell, a process of this number is taken for the same one.
pub fn is_alive(pid: u32, start: u64) -> bool {
    match look(pid) {
        Ok(found) => found.is_some_and(|found| found == start || start == 0),
        Err(_) => Pid::from_raw(pid as i32).is_some_and(|pid| {
            !matches!(rustix::process::test_kill_process(pid), Err(Errno::SRCH))
        }),
    }
}

/// A moment by the clock that says when processes start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Moment {
    /// This one.
    #[must_use]
    pub fn now() -> Moment {
        Moment(crate::clock::boottime_ns())
    }

    /// By CLOCK_BOOTTIME.
    #[must_use]
    pub fn at_ns(ns: u64) -> Moment {
        Moment(ns)
    }

    /// Nanoseconds of CLOCK_BOOTTIME.
    pub fn as_ns(self) -> u64 {
        self.0
    }

    /// The clock tick that it is in, as /proc counts them; `None` near the end of one.
    fn tick(self) -> Option<u64> {
        /// A hundredth of a second, in nanoseconds: USER_HZ is 100 wherever Linux has 64 bits.
        const TICK: u64 = 10_000_000;
        /// Nanoseconds, more than the clocks of two processors are apart.
        const NEAR: u64 = 10_000;
        let within = self.0 % TICK;
        (NEAR..TICK - NEAR).contains(&within).then_some(self.0 / TICK)
    }
}

/// The start time of this process, which was forked after `moment`, where the clock tells: when
/// that is in this very tick. Without a system call.
pub fn started_since(moment: Moment) -> Option<u64> {
    let tick = moment.tick()?;
    (Moment::now().tick() == Some(tick)).then_some(tick)
}

/// What keeps a process from going on, as far as /proc says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halt {
    /// A signal has stopped it, or a debugger: it goes on when it is told to.
    Stopped,
    /// It waits for a device.
    Device,
}

/// What keeps process `pid` from going on; `None` if nothing does, or it is gone.
pub fn halt(pid: u32) -> Option<Halt> {
    let mut name = [0u8; 32];
    let path = stat_path(pid, &mut name);
    let file =
        rustix::fs::openat(rustix::fs::CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
    let mut text = [0u8; 1024];
    let length = rustix::io::read(&file, &mut text[..]).ok()?;
    parse_halt(&text[..length])
}

/// Field 3 of /proc/pid/stat.
fn parse_halt(text: &[u8]) -> Option<Halt> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    match text[after_name..].iter().find(|&&byte| byte != b' ')? {
        b'T' | b't' => Some(Halt::Stopped),
        b'D' => Some(Halt::Device),
        _ => None,
    }
}

/// Whether process `pid` is stopped, by a signal or by a debugger, as far as /proc tells.
pub fn is_stopped(pid: u32) -> bool {
    halt(pid) == Some(Halt::Stopped)
}

/// What /proc says of `pid`. An error if it says nothing: not mounted, or no descriptor is left.
fn look(pid: u32) -> Result<Option<u64>, Errno> {
    let mut name = [0u8; 32];
    let path = stat_path(pid, &mut name);
    let file = match rustix::fs::openat(
        rustix::fs::CWD,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Err(Errno::NOENT) => {
            rustix::fs::access(c"/proc/self/stat", rustix::fs::Access::EXISTS)?;
            return Ok(None);
        }
        other => other?,
    };
    let mut text = [0u8; 1024];
    let read = rustix::io::read(&file, &mut text[..]);
    // By the system call itself: in a forked child, a thread that is not there may have been about
    // to close this number, and the library's close would wait for it.
    // SAFETY: nothing else has this descriptor.
    unsafe { rustix::io::close(file.into_raw_fd()) };
    match read {
        Err(Errno::SRCH) => Ok(None),
        length => Ok(parse_stat(&text[..length?])),
    }
}

fn stat_path(pid: u32, buffer: &mut [u8; 32]) -> &core::ffi::CStr {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"/proc/");
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut rest = pid;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put(&digits[first..]);
    put(b"/stat\0");
    core::ffi::CStr::from_bytes_until_nul(buffer).unwrap_or(c"/proc/0/stat")
}

/// Field 22 of /proc/pid/stat, unless field 3 says zombie or dead. The name in field 2 may
/// hold spaces and parentheses, so fields count from the last parenthesis.
fn parse_stat(text: &[u8]) -> Option<u64> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = text[after_name..].split(|&byte| byte == b' ').filter(|f| !f.is_empty());
    let ended = matches!(fields.next()?, b"Z" | b"X");
    let number = |field: &[u8]| core::str::from_utf8(field).ok()?.parse::<u64>().ok();
    // Field 20: the main thread may have ended while others go on.
    let threads = number(fields.nth(16)?)?;
    let start = number(fields.nth(1)?)?;
    (!ended || threads > 1).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_start_time_is_another_process() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(is_alive(me, start));
        assert!(!is_alive(me, start + 1));
        assert!(is_alive(me, 0));
    }

    #[test]
    fn the_clock_tells_when_a_child_has_started() {
        let mut told = 0;
        for _ in 0..50 {
            let moment = Moment::now();
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let since = started_since(moment);
            let start = start_time(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            if since.is_some() {
                told += 1;
                assert_eq!(since, start);
            }
        }
        assert!(told > 0, "no child has started within a tick");
        // Long ago.
        assert_eq!(started_since(Moment(Moment::now().0 - 20_000_000)), None);
    }

    #[test]
    fn an_ended_child_is_dead_before_it_is_waited_for() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while start_time(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        use rustix::process::{Signal, kill_process};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        while halt(child.id()) != Some(Halt::Stopped) {
            std::thread::yield_now();
        }
        assert!(is_alive(child.id(), 0));
        kill_process(pid, Signal::CONT).unwrap();
        while halt(child.id()) == Some(Halt::Stopped) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(halt(child.id()), None);
        assert_eq!(parse_halt(b"7 (a) T) D 1 2"), Some(Halt::Device));
        assert_eq!(parse_halt(b"7 (a) T) t 1 2"), Some(Halt::Stopped));
        assert_eq!(parse_halt(b"7 (T"), None);
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let text = b"7 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(text), Some(4242));
        assert_eq!(parse_stat(b"7 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 9"), None);
        assert_eq!(parse_stat(b"7 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 9"), Some(9));
        assert_eq!(parse_stat(b"garbage"), None);
    }
}
