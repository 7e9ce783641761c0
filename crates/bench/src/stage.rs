//! The movers of the staging systems: copy whole files from the burst buffer to the store.
//!
//! Runs as a process of its own, `forebay bench-worker`, which starts the program. Both are under
//! `forebay run` with unbuffered directories, so that what the movers read and write takes as long on
//! the emulated devices, and gets in the program's way there as much, as it would in reality.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// When a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as nobody has it open any more.
    Close,
    /// When the program has ended.
    Exit,
}

/// Threads that copy: while some read, others write.
const MOVERS: usize = 4;
/// Bytes that a mover copies at once.
const PIECE: u64 = 1 << 20;
/// How often the program and its files are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// Runs the program, and copies its files from directory `from` to directory `to`. When it returns,
/// all are there.
///
/// # Errors
/// What could not be run or copied.
pub fn stage(
    from: &Path,
    to: &Path,
    when: When,
    program: &[OsString],
) -> Result<ExitStatus, String> {
    let (name, arguments) = program.split_first().ok_or("no program")?;
    let mut watch = Watch::new(from)?;
    let (pieces, queue) = channel();
    let queue = Mutex::new(queue);
    thread::scope(|scope| {
        let movers: Vec<_> = (0..MOVERS).map(|_| scope.spawn(|| move_pieces(&queue))).collect();
        let mut child = Command::new(name)
            .args(arguments)
            .spawn()
            .map_err(|e| format!("{}: {e}", Path::new(name).display()))?;
        let mut mover = Stage { from, to, pieces, staged: BTreeSet::new() };
        let status = loop {
            let ended = child.try_wait().map_err(|e| format!("waiting for the program: {e}"))?;
            let closed = watch.closed()?;
            if when == When::Close {
                closed.into_iter().try_for_each(|file| mover.stage(file))?;
            }
            match ended {
                Some(status) => break status,
                None => thread::sleep(LOOK),
            }
        };
        mover.stage_rest()?;
        drop(mover); // Ends the queue.
        for mover in movers {
            mover.join().map_err(|_| "a mover panicked")??;
        }
        Ok(status)
    })
}

/// A part of a file to copy.
struct Piece {
    files: Arc<(File, File)>,
    offset: u64,
    bytes: u64,
}

struct Stage<'a> {
    from: &'a Path,
    to: &'a Path,
    pieces: Sender<Piece>,
    staged: BTreeSet<OsString>,
}

impl Stage<'_> {
    fn stage(&mut self, name: OsString) -> Result<(), String> {
        let failed = |e: io::Error| format!("staging {}: {e}", Path::new(&name).display());
        let source = File::open(self.from.join(&name)).map_err(failed)?;
        let size = source.metadata().map_err(failed)?.len();
        let mut options = OpenOptions::new();
        let target = options.write(true).create(true).truncate(true).open(self.to.join(&name));
        let files = Arc::new((source, target.map_err(failed)?));
        for offset in (0..size).step_by(PIECE as usize) {
            let piece =
                Piece { files: Arc::clone(&files), offset, bytes: PIECE.min(size - offset) };
            self.pieces.send(piece).map_err(|_| "all movers are gone".to_owned())?;
        }
        self.staged.insert(name);
        Ok(())
    }

    fn stage_rest(&mut self) -> Result<(), String> {
        let listed = fs::read_dir(self.from).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
        });
        let names = listed.map_err(|e| format!("{}: {e}", self.from.display()))?;
        names.into_iter().try_for_each(|name| match self.staged.contains(&name) {
            true => Ok(()),
            false => self.stage(name),
        })
    }
}

fn move_pieces(queue: &Mutex<Receiver<Piece>>) -> Result<(), String> {
    let mut buffer = vec![0; PIECE as usize];
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(piece) = next else { return Ok(()) };
        let bytes = &mut buffer[..piece.bytes as usize];
        let (source, target) = &*piece.files;
        source
            .read_exact_at(bytes, piece.offset)
            .and_then(|()| target.write_all_at(bytes, piece.offset))
            .map_err(|e| format!("moving a file: {e}"))?;
    }
}

/// Tells which files of a directory have been written and closed by everybody.
struct Watch {
    folder: PathBuf,
    notify: OwnedFd,
    /// Of each file: how often it is open, and whether it was written.
    files: BTreeMap<OsString, (i32, bool)>,
}

impl Watch {
    fn new(folder: &Path) -> Result<Self, String> {
        let failed = |e: Errno| format!("watching {}: {e}", folder.display());
        let notify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
        let events = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&notify, folder, events).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), notify, files: BTreeMap::new() })
    }

    fn closed(&mut self) -> Result<Vec<OsString>, String> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.notify, &mut room);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(format!("watching {}: {error}", self.folder.display())),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return Err(format!("watching {}: too many events", self.folder.display()));
            }
            let Some(name) = event.file_name() else { continue };
            let name = OsString::from_vec(name.to_bytes().to_vec());
            let (open, written) = self.files.entry(name).or_default();
            if event.events().contains(ReadFlags::OPEN) {
                *open += 1;
            } else {
                *open -= 1;
                *written |= event.events().contains(ReadFlags::CLOSE_WRITE);
            }
        }
        let mut closed = Vec::new();
        for (name, (open, written)) in &mut self.files {
            if *open <= 0 && *written {
                *written = false;
                closed.push(name.clone());
            }
        }
        Ok(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_closed_when_nobody_has_them_open() {
        let folder =
            std::env::temp_dir().join(format!("forebay-bench-watch-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut watch = Watch::new(&folder).unwrap();
        let first = File::create(folder.join("shared")).unwrap();
        let second = OpenOptions::new().write(true).open(folder.join("shared")).unwrap();
        drop(first);
        assert!(watch.closed().unwrap().is_empty());
        drop(second);
        assert_eq!(watch.closed().unwrap(), ["shared"]);
        drop(File::open(folder.join("shared")).unwrap());
        assert!(watch.closed().unwrap().is_empty(), "reading is no reason to copy it again");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn everything_is_staged() {
        let root = std::env::temp_dir().join(format!("forebay-bench-stage-{}", std::process::id()));
        for when in [When::Close, When::Exit] {
            let (from, to) = (root.join("from"), root.join("to"));
            fs::create_dir_all(&from).unwrap();
            fs::create_dir(&to).unwrap();
            let script =
                format!("cd {}; head -c 3000000 /dev/zero > a; echo b > b", from.display());
            let program = ["sh", "-c", &script].map(OsString::from);
            assert!(stage(&from, &to, when, &program).unwrap().success());
            assert_eq!(fs::read(to.join("a")).unwrap(), vec![0; 3_000_000]);
            assert_eq!(fs::read(to.join("b")).unwrap(), b"b\n");
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
