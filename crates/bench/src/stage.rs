//! The movers of the staging systems: copy whole files from the burst buffer to the store.
//!
//! Runs as a process of its own, `forebay bench-worker`, which starts the program. Both are under
//! `forebay run` with unbuffered directories, so that what the movers read and write takes as long
//! on the emulated devices, and gets in the program's way there as much, as it would in reality.
//!
//! ```
//! use forebay_bench::stage::{Movers, When, stage};
//! use std::fs::{create_dir_all, read, remove_dir_all};
//!
//! let folder = std::env::temp_dir().join(format!("forebay-stage-{}", std::process::id()));
//! let (fast, slow) = (folder.join("fast"), folder.join("slow"));
//! create_dir_all(&fast).and_then(|()| create_dir_all(&slow)).unwrap();
//! let program = ["sh", "-c", "echo data >$0/checkpoint", fast.to_str().unwrap()];
//! let movers = Movers::default();
//! let status = stage(&fast, &slow, When::Close, movers, &program.map(Into::into)).unwrap();
//! assert!(status.success());
//! assert_eq!(read(slow.join("checkpoint")).unwrap(), b"data\n");
//! remove_dir_all(&folder).unwrap();
//! ```

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
use std::time::{Duration, SystemTime};

/// When a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as it was closed.
    Close,
    /// When the program has ended.
    Exit,
}

impl When {
    /// As `forebay bench-worker` is told.
    pub fn name(self) -> &'static str {
        match self {
            When::Close => "close",
            When::Exit => "exit",
        }
    }
}

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movers {
    /// Threads: while some read, others write. One does both in turn.
    pub count: usize,
    /// Bytes that a mover copies at once.
    pub piece: u64,
}

impl Default for Movers {
    fn default() -> Movers {
        Movers { count: 4, piece: 1 << 20 }
    }
}
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
    movers: Movers,
    program: &[OsString],
) -> Result<ExitStatus, String> {
    let (name, arguments) = program.split_first().ok_or("no program")?;
    let mut watch = Watch::new(from)?;
    let (pieces, queue) = channel();
    let queue = Mutex::new(queue);
    let (count, piece) = (movers.count.max(1), movers.piece.max(1));
    thread::scope(|scope| {
        let work = || move_pieces(&queue, piece);
        let movers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let mut child = Command::new(name)
            .args(arguments)
            .spawn()
            .map_err(|e| format!("{}: {e}", Path::new(name).display()))?;
        let mut mover = Stage { from, to, piece, pieces, staged: BTreeMap::new() };
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
    piece: u64,
    pieces: Sender<Piece>,
    /// What each file was when it was copied: its size and time of change.
    staged: BTreeMap<OsString, (u64, SystemTime)>,
}

impl Stage<'_> {
    /// Copies a file, unless it is as it was when it was last copied.
    fn stage(&mut self, name: OsString) -> Result<(), String> {
        let failed = |e: io::Error| format!("staging {}: {e}", Path::new(&name).display());
        let source = File::open(self.from.join(&name)).map_err(failed)?;
        let found = source.metadata().map_err(failed)?;
        let size = found.len();
        let version = (size, found.modified().map_err(failed)?);
        if self.staged.get(&name) == Some(&version) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let target = options.write(true).create(true).truncate(true).open(self.to.join(&name));
        let files = Arc::new((source, target.map_err(failed)?));
        for offset in (0..size).step_by(self.piece as usize) {
            let bytes = self.piece.min(size - offset);
            let piece = Piece { files: Arc::clone(&files), offset, bytes };
            self.pieces.send(piece).map_err(|_| "all movers are gone".to_owned())?;
        }
        self.staged.insert(name, version);
        Ok(())
    }

    fn stage_rest(&mut self) -> Result<(), String> {
        let listed = fs::read_dir(self.from).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
        });
        let names = listed.map_err(|e| format!("{}: {e}", self.from.display()))?;
        names.into_iter().try_for_each(|name| self.stage(name))
    }
}

fn move_pieces(queue: &Mutex<Receiver<Piece>>, most: u64) -> Result<(), String> {
    let mut buffer = vec![0; most as usize];
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

/// Tells which files of a directory have been closed by a writer. A file that several processes
/// write is complete then: parallel programs close it together.
struct Watch {
    folder: PathBuf,
    notify: OwnedFd,
}

impl Watch {
    fn new(folder: &Path) -> Result<Self, String> {
        let failed = |e: Errno| format!("watching {}: {e}", folder.display());
        let notify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
        inotify::add_watch(&notify, folder, WatchFlags::CLOSE_WRITE).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), notify })
    }

    fn closed(&mut self) -> Result<BTreeSet<OsString>, String> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.notify, &mut room);
        let mut closed = BTreeSet::new();
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(closed),
                Err(error) => return Err(format!("watching {}: {error}", self.folder.display())),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return Err(format!("watching {}: too many events", self.folder.display()));
            }
            let name = event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec()));
            closed.extend(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writers_count() {
        let folder =
            std::env::temp_dir().join(format!("forebay-bench-watch-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut watch = Watch::new(&folder).unwrap();
        drop(File::create(folder.join("new")).unwrap());
        assert_eq!(watch.closed().unwrap(), BTreeSet::from(["new".into()]));
        drop(File::open(folder.join("new")).unwrap());
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
            let movers = Movers { count: 2, piece: 1 << 16 };
            assert!(stage(&from, &to, when, movers, &program).unwrap().success());
            assert_eq!(fs::read(to.join("a")).unwrap(), vec![0; 3_000_000]);
            assert_eq!(fs::read(to.join("b")).unwrap(), b"b\n");
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
