//! The file of `forebay run --record`: what the processes of a run did, one step a line, as
//! `forebay simulate` reads it.

use forebay_pool::calls::{CALLS_MAX, Call, CallKind, Calls};
use forebay_pool::clock;
use forebay_pool::orders::REPLACED;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// The first line.
pub const HEADER: &str = "rank,operation,file,offset,bytes,seconds";
/// Shorter pauses of a program are left out: they are the recording's.
const PAUSE_NS: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// A run's calls, and the file for them.
pub struct Recorder {
    path: PathBuf,
    file: File,
    /// The file is made for it, and nothing was written to it.
    is_new: bool,
    calls: Calls,
}

impl Recorder {
    /// Opens the file, or makes it, for the calls in `memory`, in which they are wanted. What the
    /// file has stays until the command has ended.
    ///
    /// # Errors
    /// The system's, with the file's name.
    pub fn to(path: &Path, memory: &OwnedFd) -> Result<Recorder, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("--record: {}: {error}; give another file", path.display())
        };
        let new = File::options().write(true).create_new(true).open(path);
        let is_new = new.is_ok();
        // A link to a file that there is not is none that can be made anew.
        let file = match new {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                File::options().write(true).create(true).truncate(false).open(path)
            }
            new => new,
        };
        let file = file.map_err(|error| failed(&error))?;
        let calls = Calls::of(memory).map_err(|error| failed(&error))?;
        let calls = calls.ok_or_else(|| failed(&"no calls are wanted"))?;
        Ok(Recorder { path: path.to_owned(), file, is_new, calls })
    }

    /// Writes the file once the command has ended.
    ///
    /// # Errors
    /// The system's, with the file's name.
    pub fn write(mut self) -> Result<(), String> {
        let text = steps(self.calls.iter(), clock::realtime_ns());
        self.is_new = false;
        let written = self.empty().and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| format!("--record: {}: {error}", self.path.display()))?;
        match self.calls.missed() {
            0 => Ok(()),
            missed => {
                eprintln!(
                    "forebay: --record: {}: has the first {CALLS_MAX} calls; {missed} more were not \
                     recorded",
                    self.path.display()
                );
                Ok(())
            }
        }
    }
}

impl Recorder {
    /// Takes what an earlier run has written out of the file; a pipe or a device has nothing.
    fn empty(&self) -> std::io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_new {
            // The command was not started.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The steps of all ranks, each thread of each process one, in the order in which they began. The
/// command has ended at `end_ns`; until then no drain began.
fn steps(calls: impl Iterator<Item = Call>, end_ns: u64) -> String {
    // A file that takes the inode of one that was removed has another path.
    let mut paths: Vec<Vec<u8>> = Vec::new();
    let mut path_of: HashMap<(u64, u64), usize> = HashMap::new();
    let mut steps = Vec::new();
    for call in calls {
        let of_file = path_of.get(&(call.device, call.inode)).copied();
        let Some((at, length, bytes)) = call.path_part() else {
            steps.push((call, of_file));
            continue;
        };
        let end = (at + bytes.len()).min(length);
        let part = &bytes[..end.saturating_sub(at)];
        let known = of_file.filter(|&known| at > 0 || is_of(&paths[known], length, part));
        let index = known.unwrap_or(paths.len());
        if known.is_none() {
            paths.push(vec![b'_'; length]);
            path_of.insert((call.device, call.inode), index);
        }
        if let Some(place) = paths[index].get_mut(at..end) {
            place.copy_from_slice(part);
        }
    }
    steps.sort_by_key(|(call, _)| call.start_ns);
    let begin_ns = steps.first().map_or(0, |(call, _)| call.start_ns);
    // Rank and the end of its last step.
    let mut ranks: HashMap<(u32, u32), (usize, u64)> = HashMap::new();
    let mut text = format!("{HEADER}\n0,begin,,,,{}.{:09}\n", begin_ns / SECOND, begin_ns % SECOND);
    for (call, path) in &steps {
        let next = ranks.len();
        let (rank, ended_ns) = ranks.entry((call.process, call.thread)).or_insert((next, begin_ns));
        let pause_ns = call.start_ns.saturating_sub(*ended_ns);
        if pause_ns >= PAUSE_NS {
            let _ = writeln!(text, "{rank},compute,,,,{:.9}", pause_ns as f64 / 1e9);
        }
        *ended_ns = call.end_ns.max(call.start_ns);
        let file = match path.and_then(|index| paths.get(index)) {
            Some(path) => String::from_utf8_lossy(path).replace(REPLACED, "_"),
            None => format!("{}:{}", call.device, call.inode),
        };
        let took = (*ended_ns - call.start_ns) as f64 / 1e9;
        let (offset, bytes) = (call.offset, call.bytes);
        let _ = match call.kind {
            CallKind::Open => writeln!(text, "{rank},open,{file},,,"),
            CallKind::Create => writeln!(text, "{rank},create,{file},,,"),
            CallKind::Read => writeln!(text, "{rank},read,{file},{offset},{bytes},{took:.9}"),
            CallKind::Write => writeln!(text, "{rank},write,{file},{offset},{bytes},{took:.9}"),
            CallKind::Close => writeln!(text, "{rank},close,{file},,,"),
            CallKind::Truncate => writeln!(text, "{rank},truncate,{file},{offset},,{took:.9}"),
            CallKind::Remove => writeln!(text, "{rank},remove,{file},,,"),
            CallKind::Path => continue,
        };
    }
    let last = ranks.into_values().max_by_key(|&(rank, ended_ns)| (ended_ns, rank));
    if let Some((rank, ended_ns)) = last {
        let pause = end_ns.saturating_sub(ended_ns) as f64 / 1e9;
        let _ = writeln!(text, "{rank},compute,,,,{pause:.9}");
    }
    text
}

/// Whether a path of this length may begin like this.
fn is_of(path: &[u8], length: usize, begin: &[u8]) -> bool {
    path.len() == length && path.starts_with(begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pool::calls::Wanted;

    #[test]
    fn calls_become_steps() {
        let calls = Calls::of(Calls::memory(Wanted::CALLS).unwrap()).unwrap().unwrap();
        let call = |kind, process, start_ns, end_ns, bytes| Call {
            kind,
            process,
            thread: 1,
            device: 1,
            inode: 2,
            bytes,
            start_ns,
            end_ns,
            ..Call::default()
        };
        calls.add_path(1, 2, b"/pfs/a,b");
        calls.add(&call(CallKind::Create, 70, 5_000, 5_000, 0));
        calls.add(&call(CallKind::Write, 70, 5_500, 9_000, 4096));
        calls.add(&call(CallKind::Read, 71, 7_000, 8_000, 10));
        calls.add(&call(CallKind::Close, 70, 1_000_009_000, 1_000_009_000, 0));
        let cut = call(CallKind::Truncate, 71, 8_500, 8_600, 0);
        calls.add(&Call { offset: 7, ..cut });
        calls.add(&call(CallKind::Remove, 71, 8_700, 8_700, 0));
        let expected = format!(
            "{HEADER}\n0,begin,,,,0.000005000\n0,create,/pfs/a_b,,,\n0,write,/pfs/a_b,0,4096,0.000003500\n\
             1,compute,,,,0.000002000\n1,read,/pfs/a_b,0,10,0.000001000\n\
             1,truncate,/pfs/a_b,7,,0.000000100\n1,remove,/pfs/a_b,,,\n\
             0,compute,,,,1.000000000\n0,close,/pfs/a_b,,,\n0,compute,,,,2.000000000\n"
        );
        assert_eq!(steps(calls.iter(), 3_000_009_000), expected);
    }
}
