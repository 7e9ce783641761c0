//! Work that leaves nothing behind when a signal ends it: the demo and the benchmarks.
//!
//! It is done by a child. The parent waits, and adopts what its descendants leave behind, node
//! managers too. After a signal it ends all of them at once, whatever they have not drained, and
//! removes their pools, mounts and folders.

use crate::signals;
use crate::task;
use forebay_node::runtime::Runtime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open,
    set_child_subreaper, wait, waitpid,
};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a killed process may take to end: one in the middle of a device's request does not end
/// at once.
const END: Duration = Duration::from_secs(10);

/// Does `work` in a child, which makes folders called `name` with its process id behind in
/// `parents`. Returns the code that it ends with; 128 and the signal's number when a signal ended
/// it, or came to this process.
///
/// # Errors
/// The work's message; that no child can be made.
pub fn dispose_of(
    name: &str,
    parents: &[PathBuf],
    work: impl FnOnce() -> Result<ExitCode, String>,
) -> Result<ExitCode, String> {
    let failed = |errno: Errno| format!("starting a process: {errno}");
    set_child_subreaper(Some(getpid())).map_err(failed)?;
    signals::install()?;
    // SAFETY: this process has one thread, so that the child may go on as if it had been started.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(format!("starting a process: {}", io::Error::last_os_error())),
        0 => {
            signals::uninstall();
            return work();
        }
        child => Pid::from_raw(child).ok_or("starting a process: no process id")?,
    };
    let status = await_end(child).map_err(failed)?;
    let Some(signal) = signals::early().or(status.and_then(WaitStatus::terminating_signal)) else {
        let code = status.and_then(WaitStatus::exit_status);
        return Ok(ExitCode::from(
            code.and_then(|c| u8::try_from(c).ok()).unwrap_or(crate::FAILED),
        ));
    };
    end_all();
    let folders = folders(&format!("{name}-{}", child.as_raw_nonzero()), parents);
    remove_pools(&folders);
    folders.iter().for_each(|folder| remove(folder));
    Ok(signals::ended_by(signal))
}

/// Waits until the child has ended, or a signal has come: then there is no status.
fn await_end(child: Pid) -> Result<Option<WaitStatus>, Errno> {
    let ends = pidfd_open(child, PidfdFlags::empty())?;
    let look = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    loop {
        if signals::early().is_some() {
            return Ok(None);
        }
        match poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&look)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => {
                return Ok(waitpid(Some(child), WaitOptions::empty())?.map(|(_, status)| status));
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Kills all children of this process, and then what they leave to it, until nothing is left.
fn end_all() {
    let ours = std::process::id();
    let since = Instant::now();
    while since.elapsed() < END {
        for pid in processes().filter(|&pid| task::parent(pid) == Some(ours)) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Folders that a process has made in `parents`: called `name`, or so with a number behind.
fn folders(name: &str, parents: &[PathBuf]) -> Vec<PathBuf> {
    let is_its = |found: &OsStr| {
        let rest = found.as_bytes().strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'-')
    };
    let mut found: Vec<PathBuf> = { parents.iter() }
        .flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten())
        .filter(|entry| is_its(&entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Removes the pools of instances that buffer something in `folders`, whose managers are dead.
fn remove_pools(folders: &[PathBuf]) {
    let canonical: Vec<PathBuf> = folders.iter().flat_map(fs::canonicalize).collect();
    let is_in = |path: &PathBuf| canonical.iter().any(|folder| path.starts_with(folder));
    for runtime in Runtime::all().unwrap_or_default() {
        if runtime.backing().is_some_and(|stores| stores.iter().any(is_in)) {
            runtime.remove();
        }
    }
}

/// Removes a folder, with what is mounted there.
fn remove(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    for point in points.filter(|point| point.starts_with(folder)) {
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.arg("-uz").arg(point).stderr(Stdio::null()).status();
    }
    if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("forebay: cannot remove {}: {error}", folder.display());
    }
}
