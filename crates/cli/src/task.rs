//! What the kernel says of a task.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Field `number` of /proc/PID/stat, from the third on. `None` if process `pid` is gone.
fn field<T: FromStr>(pid: u32, number: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any character in it.
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(number - 3)?.parse().ok()
}

/// The kernel's flags of process `pid`. `None` if it is gone.
pub fn task_flags(pid: u32) -> Option<u64> {
    field(pid, 9)
}

/// The parent of process `pid`. `None` if it is gone.
pub fn parent(pid: u32) -> Option<u32> {
    field(pid, 4)
}

/// Waits until process `pid` has ended, for up to `limit`, and returns whether it has. False, and
/// at once, also if that cannot be seen: it is gone already, or the kernel opens no processes.
pub fn await_end(pid: u32, limit: Duration) -> bool {
    let Some(pid) = Pid::from_raw(pid as i32) else { return false };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let since = Instant::now();
    loop {
        let left = limit.saturating_sub(since.elapsed());
        let left =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ended => return ended.is_ok_and(|ended| ended > 0),
        }
    }
}
