//! What the kernel says of a task.

use std::fs;

/// The kernel's flags of process `pid`, the ninth field of /proc/PID/stat. `None` if it is gone.
pub fn task_flags(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any character in it.
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(6)?.parse().ok()
}
