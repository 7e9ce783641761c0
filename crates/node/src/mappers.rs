//! Which processes have a file mapped, as far as /proc says: those of this user, or all of them for root.

use rustix::fd::AsFd;
use rustix::fs::{fstat, major, minor};
use std::fs;
use std::io;

/// The name of the library that runs inside programs: others, commands of ours, only look at a segment.
const LIBRARY: &[u8] = b"/libforebay_preload.so";

/// The programs that have the segment in `file` mapped, but for this process. One that lives all the while is among them.
///
/// # Errors
/// If /proc does not list processes.
pub(crate) fn of(file: &impl AsFd) -> io::Result<impl Iterator<Item = u32>> {
    let mapping = mapping_of(file)?;
    let me = std::process::id();
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let processes = fs::read_dir("/proc")?.filter_map(number).filter(move |&pid| pid != me);
    Ok(processes.filter(move |&pid| maps(pid, &[mapping.as_bytes(), LIBRARY])))
}

/// What lines of /proc/pid/maps say of `file`.
fn mapping_of(file: &impl AsFd) -> io::Result<String> {
    let stat = fstat(file)?;
    let (device, inode) = (stat.st_dev, stat.st_ino);
    Ok(format!(" {:02x}:{:02x} {inode} ", major(device), minor(device)))
}

/// Whether process `pid` has a mapping with each of `parts` in its line.
fn maps(pid: u32, parts: &[&[u8]]) -> bool {
    // Paths in it may be of any bytes.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    parts.iter().all(|&wanted| maps.windows(wanted.len()).any(|part| part == wanted))
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
        let seen =
            || [&program, &other].map(|file| maps(child.id(), &[of(file).as_bytes(), b"/lib"]));
        // It has its program, and then its libraries, only some time after the exec.
        let since = std::time::Instant::now();
        while seen() != [true, false] && since.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        let seen = seen();
        let missing = maps(child.id(), &[of(&program).as_bytes(), LIBRARY]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((seen, missing), ([true, false], false));
        assert!(!maps(child.id(), &[of(&program).as_bytes()]));
    }
}
