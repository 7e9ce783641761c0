//! What commands have left behind: processes, found by the variable that all of them carry, and
//! files.

use crate::actions::MARK;
use forebay_pool::private;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::path::Path;

/// The value of the variable for a run of an instance.
pub(super) fn mark(instance: &str, id: u64) -> String {
    format!("{instance}.{id}.")
}

/// Kills all processes of all runs of an instance.
pub(super) fn kill_all(instance: &str) {
    kill(&format!("{instance}."));
}

/// Kills all processes whose mark begins so. The environment is that with which a process was
/// started, and of this user's only; the descriptor keeps the id from being another process's.
pub(super) fn kill(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    // One may have started another meanwhile.
    for _ in 0..8 {
        let mut found = false;
        for pid in pids() {
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
            let is_marked = environment.is_ok_and(|all| {
                all.split(|byte| *byte == 0).any(|entry| entry.starts_with(wanted.as_bytes()))
            });
            if is_marked {
                found |= pidfd_send_signal(&process, Signal::KILL).is_ok();
            }
        }
        if !found {
            break;
        }
    }
}

fn pids() -> impl Iterator<Item = Pid> {
    let own = rustix::process::getpid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    entries.filter_map(pid).filter_map(Pid::from_raw).filter(move |pid| *pid != own)
}

/// Removes a result without a name.
pub(super) fn remove(path: &Path) {
    private::remove(path);
}
