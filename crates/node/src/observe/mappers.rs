//! Which processes have a file mapped, or may have, as far as /proc says: those of this user, or
//! all of them for root.
//!
//! What a process has mapped that is not dumpable (prctl, or a program that its user may execute
//! and not read) only root is told. Of such a one the rest must be as that of a child that has just
//! been forked by a process with the file mapped.

use rustix::fd::AsFd;
use rustix::fs::{fstat, major, minor};
use std::fs;
use std::io;

/// The name of the library that runs inside programs: others, commands of ours, only look at a
/// segment.
const LIBRARY: &[u8] = b"/libforebay_preload.so";

/// The programs that may have the segment of `bytes` in `file` mapped, and have just been forked if
/// /proc does not tell, but for this process. One that lives all the while is among them.
///
/// # Errors
/// If /proc does not list processes.
pub(crate) fn of(file: &impl AsFd, bytes: u64) -> io::Result<impl Iterator<Item = u32>> {
    let mapping = mapping_of(file)?;
    let parts = move |pid| match maps(pid, &[mapping.as_bytes(), LIBRARY]) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => may_be_child(pid, bytes),
        maps => maps.unwrap_or(false),
    };
    let me = std::process::id();
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let processes = fs::read_dir("/proc")?.filter_map(number).filter(move |&pid| pid != me);
    Ok(processes.filter(move |&pid| parts(pid)))
}

/// Whether process `pid`, of whose mappings nothing is known, is one of this user's with a single
/// thread and so many bytes mapped.
fn may_be_child(pid: u32, bytes: u64) -> bool {
    match fs::read(format!("/proc/{pid}/status")) {
        Ok(status) => {
            is_child(&String::from_utf8_lossy(&status), rustix::process::geteuid().as_raw(), bytes)
        }
        // It is there, and nothing is told of it.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn is_child(status: &str, user: u32, bytes: u64) -> bool {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("")
    };
    let mut users = field("Uid").split_whitespace().map(str::parse);
    let single = field("Threads").trim() == "1";
    let kilobytes: u64 = field("VmSize").trim().trim_end_matches(" kB").parse().unwrap_or_default();
    users.any(|one| one == Ok(user)) && single && kilobytes >= bytes / 1024
}

/// What lines of /proc/pid/maps say of `file`.
fn mapping_of(file: &impl AsFd) -> io::Result<String> {
    let stat = fstat(file)?;
    let (device, inode) = (stat.st_dev, stat.st_ino);
    Ok(format!(" {:02x}:{:02x} {inode} ", major(device), minor(device)))
}

/// Whether process `pid` has a mapping with each of `parts` in its line.
fn maps(pid: u32, parts: &[&[u8]]) -> io::Result<bool> {
    // Paths in it may be of any bytes.
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(parts.iter().all(|&wanted| maps.windows(wanted.len()).any(|part| part == wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_known_by_what_it_has_mapped() {
        let mut cat = Command::new("cat");
        let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let program = fs::File::open(format!("/proc/{}/exe", child.id())).unwrap();
        let other = fs::File::open("/proc/self/exe").unwrap();
        let of = |file| mapping_of(file).unwrap();
        let seen = || {
            [&program, &other]
                .map(|file| maps(child.id(), &[of(file).as_bytes(), b"/lib"]).unwrap())
        };
        // It has its program, and then its libraries, only some time after the exec.
        let since = std::time::Instant::now();
        while seen() != [true, false] && since.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        let seen = seen();
        let missing = maps(child.id(), &[of(&program).as_bytes(), LIBRARY]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((seen, missing), ([true, false], false));
        assert!(maps(child.id(), &[of(&program).as_bytes()]).is_err());
    }

    #[test]
    fn a_process_that_is_not_dumpable_is_judged_by_what_all_may_know() {
        let status = "Name:\tagent\nUid:\t1000\t0\t0\t0\nVmSize:\t   20480 kB\nThreads:\t1\n";
        assert!(is_child(status, 1000, 20 << 20) && is_child(status, 0, 1));
        assert!(!is_child(status, 1001, 1) && !is_child(status, 1000, 21 << 20));
        assert!(!is_child(&status.replace("Threads:\t1", "Threads:\t2"), 1000, 1));
        assert!(!is_child("", 0, 0));
    }
}
