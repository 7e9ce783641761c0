//! A program of the torture: an ordinary one, as far as Forebay can see, that does everything with
//! its own files that programs do, appends to a file of all, writes its pieces of another, and
//! compares all that it reads with what it has written. It may be killed at any instant, and begins
//! again where it was.

mod descriptors;
mod names;
mod ranges;

use super::counts::{Counts, WordsFile};
use super::history::History;
use super::hits::{self, Call};
use super::log;
use super::operations::Operation;
use super::orphan::Orphan;
use super::scenario::ListArguments;
use super::shadow::{COMMON, Change, FILES, OWN, Role, STRIPE, Shadow};
use super::system;
use clap::Args;
use forebay_placement::Random;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Files do not grow beyond this, except by a truncate to somewhat more: some have a part of a
/// bucket, some a few, one many.
const SIZES: [u64; FILES as usize] =
    [40 << 10, 300 << 10, 100 << 10, 700 << 10, 20 << 10, 2 << 20, 40 * STRIPE];
/// Bytes that a tier keeps together.
const BLOCK: u64 = 256 << 10;
/// Where a file has bytes whose index does not fit into one node.
const FAR: [u64; 3] = [0, 17 << 20, 40 << 20];
/// Bytes of one write or read, at most.
const PIECE_MAX: u64 = 100 << 10;
/// How long a call is tried again that faults let fail.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// What a program may be told while its store fails on purpose: EIO, ENOSPC, EDQUOT, ESTALE; and
/// while a node manager is stopped: ETIMEDOUT.
const INJECTED: [i32; 5] = [5, 28, 122, 116, hits::STOPPED];

/// Options of the hidden subcommand.
#[derive(Args, Clone)]
pub struct WorkerArguments {
    /// Where the torture takes place
    #[arg(long)]
    pub place: PathBuf,
    /// Which worker this is
    #[arg(long)]
    pub number: u64,
    /// Of the whole torture
    #[arg(long)]
    pub seed: u64,
    /// When to end in any case, in seconds since 1970
    #[arg(long)]
    pub until: u64,
    /// What the keeper does to its programs: kill, point, freeze, pause
    #[arg(long, value_delimiter = ',')]
    pub trouble: Vec<String>,
    /// Be a program, and end after so many operations
    #[arg(long)]
    pub operations: Option<u64>,
    /// Which of the programs
    #[arg(long, default_value_t = 0)]
    pub life: u64,
    /// Do these operations, by their numbers, and no others
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<usize>,
    /// The keeper, without which a program ends
    #[arg(long)]
    pub keeper: Option<u32>,
    /// Do these operations, by their numbers, half of the time
    #[arg(long, value_delimiter = ',')]
    pub often: Vec<usize>,
    /// What programs are to do at a point, one after the other: pause, hold, kill or die, a colon,
    /// the point; + between
    #[arg(long)]
    pub aim: Option<String>,
    /// Write what comes from standard input to standard output
    #[arg(long)]
    pub pour: bool,
    /// Be another user that tries to get at everything
    #[arg(long)]
    pub other_user: bool,
    #[command(flatten)]
    pub list: ListArguments,
}

impl WorkerArguments {
    /// What the worker keeps.
    pub fn folder(&self) -> PathBuf {
        self.place.join(format!("worker-{}", self.number))
    }

    /// Whether to end: by a file `stop`, or the time.
    pub fn is_over(&self) -> bool {
        let until = UNIX_EPOCH + Duration::from_secs(self.until);
        self.place.join("stop").exists() || SystemTime::now() > until
    }
}

/// Writes all that comes from standard input to standard output, which is a file. The exit code is
/// an errno.
pub fn pour(arguments: &WorkerArguments) -> ExitCode {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_pid() as u32);
    let mut bytes = Vec::new();
    let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let poured = match io::stdin().read_to_end(&mut bytes) {
        // The program whose change it is has died.
        Ok(_) if arguments.keeper != parent => Ok(()),
        Ok(_) => system::write_out(&bytes),
        Err(error) => Err(error),
    };
    ExitCode::from(poured.map_or_else(errno, |()| 0) as u8)
}

/// Works until it is told to end, or has done its operations. The exit code tells whether what it
/// found was right.
pub fn work(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let folder = arguments.folder();
    let explain = |error: io::Error| format!("{}: {error}", folder.display());
    // A program without its keeper would go on unwatched.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_pid() as u32);
    if arguments.keeper.is_some_and(|keeper| parent != Some(keeper)) {
        // It was killed before it would have told: another keeper's program is at work with the
        // same files.
        return Ok(ExitCode::SUCCESS);
    }
    let mut worker = Worker::open(arguments).map_err(explain)?;
    let ended = worker.run(arguments).or_else(|error| worker.gives_up(error));
    let wrong = match ended {
        Ok(wrong) => wrong,
        Err(error) => Some(format!("worker {}: {error} in {}", arguments.number, worker.doing())),
    };
    worker.counts_file.keep(&worker.counts).map_err(explain)?;
    let Some(wrong) = wrong else { return Ok(ExitCode::SUCCESS) };
    std::fs::write(folder.join("loss"), &wrong).map_err(explain)?;
    Err(wrong)
}

struct Worker {
    shadow: Shadow,
    counts: Counts,
    counts_file: WordsFile,
    history: History,
    random: Random,
    /// Two descriptors of each file.
    open: [[Option<File>; 2]; FILES as usize],
    orphan: Option<Orphan>,
    log: File,
    acks: File,
    number: u64,
    life: u64,
    /// When this program began, in nanoseconds since 1970.
    began: u64,
    /// When a program was told last before that that each file is safe.
    told_before: [u64; FILES as usize],
    hits: PathBuf,
    doing: Option<(Operation, u64)>,
    /// The call of an operation of several that is made, of those that say so.
    call: &'static str,
}

type Found = io::Result<Option<String>>;

impl Worker {
    fn open(arguments: &WorkerArguments) -> io::Result<Worker> {
        let folder = arguments.folder();
        let store = arguments.place.join("store");
        let shadow = Shadow::open(&folder, &store, arguments.seed, arguments.number)?;
        std::fs::write(folder.join("pid"), std::process::id().to_string())?;
        let told_before = std::array::from_fn(|file| shadow.told_since(file as u64));
        let counts_file = WordsFile::open(&folder.join("counts"))?;
        let counts: Counts = counts_file.read()?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let life = arguments.number << 48 ^ arguments.life << 32 ^ counts.operations;
        let mut acks = OpenOptions::new();
        acks.read(true).write(true).create(true).truncate(false);
        Ok(Worker {
            shadow,
            counts,
            counts_file,
            history: History::open(&folder)?,
            random: Random::new(arguments.seed ^ Random::new(life).next_u64()),
            open: Default::default(),
            orphan: None,
            log: options.open(log::path(&store))?,
            acks: acks.open(folder.join("acks"))?,
            number: arguments.number,
            life: arguments.life,
            began: hits::now_ns(),
            told_before,
            hits: arguments.place.join("hits"),
            doing: None,
            call: "",
        })
    }

    /// Any call may say that the node manager was stopped for too long. The program ends then, as
    /// if it was killed in the call, and the next one finds out what became of that.
    fn gives_up(&mut self, error: io::Error) -> Found {
        match error.raw_os_error() {
            Some(hits::STOPPED) => self.excused_since(0, error, Call::Plain),
            _ => Err(error),
        }
    }

    fn doing(&self) -> String {
        self.doing.map_or("the beginning".into(), |(operation, file)| {
            let call = if self.call.is_empty() { "" } else { &format!("{}, ", self.call) };
            format!("{call}{} of worker-{}-file-{file}", operation.name(), self.number)
        })
    }

    fn calls(&mut self, call: &'static str) {
        self.call = call;
    }

    /// Ends a cut or a punch in which a program before this one died: Forebay will do so at some
    /// time, and it cannot be said when.
    fn finish_cut(&mut self) -> Found {
        let Some((file, change)) = self.shadow.unfinished_cut()? else { return Ok(None) };
        let since = Instant::now();
        loop {
            let path = self.shadow.path(file);
            let opened = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(opened) => opened,
                // It has never been made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let (size, old) = (opened.metadata()?.len(), self.shadow.size(file)?);
            let (new, done) = match change {
                Change::Truncate { size } => (size, opened.set_len(size)),
                Change::Punch { offset, bytes } => (old, system::punch(&opened, offset, bytes)),
                _ => return Ok(None),
            };
            if size != old && size != new {
                let path = self.shadow.path(file);
                let what = format!("{size} bytes instead of {old} or {new} after {change:?}");
                return Ok(Some(format!("{}: {what}", path.display())));
            }
            match done {
                Ok(()) => return self.shadow.acknowledge(file, change).map(|()| None),
                Err(error) if since.elapsed() > WAIT_MAX => return Err(error),
                Err(error) => {
                    if let Some(wrong) = self.excused(file, error, Call::Checkpointing)? {
                        return Ok(Some(wrong));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn run(&mut self, arguments: &WorkerArguments) -> Found {
        self.shadow.resolve_names()?;
        if let Some(wrong) = self.finish_cut()? {
            return Ok(Some(wrong));
        }
        if let Some(wrong) = self.shadow.resolve()? {
            return Ok(Some(wrong));
        }
        for _ in 0..2 {
            let file = self.random.below(FILES);
            if let Some(wrong) = self.verify(file)? {
                return Ok(Some(wrong));
            }
        }
        let listed = arguments.only.iter().map(|&index| super::operations::ALL[index].0);
        let listed: Vec<_> = listed.collect();
        let often = arguments.often.iter().map(|&index| super::operations::ALL[index].0);
        let often: Vec<_> = often.collect();
        for number in 0..arguments.operations.unwrap_or(u64::MAX) {
            let operation = match listed.get(number as usize) {
                Some(operation) => *operation,
                None if !listed.is_empty() => break,
                None if !often.is_empty() && self.random.one_in(2) => {
                    often[self.random.below(often.len() as u64) as usize]
                }
                None => Operation::any(&mut self.random),
            };
            if arguments.is_over() {
                break;
            }
            let wrong = self.step(operation)?;
            self.counts.operations += 1;
            self.counts.kinds[operation.index()] += 1;
            self.counts_file.keep(&self.counts)?;
            if wrong.is_some() {
                return Ok(wrong);
            }
        }
        if !listed.is_empty() {
            for file in 0..FILES {
                if let Some(wrong) = self.verify(file)? {
                    return Ok(Some(wrong));
                }
            }
        }
        Ok(None)
    }

    fn step(&mut self, operation: Operation) -> Found {
        use Operation as Op;
        let file = self.random.below(OWN);
        let size = self.shadow.size(file)?;
        let most = SIZES[file as usize];
        let bytes = self.length(most);
        let anywhere = self.random.below(most - bytes + 1);
        let anywhere = if self.random.one_in(2) { anywhere & !4095 } else { anywhere };
        let end = if size + bytes > most { 0 } else { size };
        let hole = (size + 4096 * self.random.below(40)).min(most - bytes);
        self.doing = Some((operation, file));
        self.calls("");
        match operation {
            Op::Write => self.write(operation, file, anywhere, bytes),
            Op::Extend => self.write(operation, file, end, bytes),
            Op::Sparse => self.write(operation, file, hole, bytes.min(50)),
            Op::Read => self.read(file, size),
            Op::Fsync => self.sync(operation, file).map(drop_count),
            Op::Fdatasync => {
                let file = if self.random.one_in(6) { COMMON } else { file };
                self.sync(operation, file).map(drop_count)
            }
            Op::Stored => self.stored(file),
            Op::Truncate => {
                let size = match self.random.below(3) {
                    0 => 0,
                    1 => self.random.below(size + 1),
                    _ => self.random.below(most),
                };
                self.truncate(file, size)
            }
            Op::OpenEmpty => self.open_empty(file),
            Op::OpenAppend => self.open_append(file, size, bytes),
            Op::Second => self.second(file, anywhere, bytes),
            Op::Dup => self.dup(file, anywhere, bytes),
            Op::Close => self.close(file),
            Op::Stat => self.stat(file, size),
            Op::Rename => self.rename(file),
            Op::Replace => self.replace(file, bytes),
            Op::Link => self.link(file, anywhere, bytes),
            Op::Unlink => self.remove(file),
            Op::Orphan => self.without_name(file, bytes),
            Op::MapRead => self.map_read(file, size),
            Op::MapWrite => self.map_write(file, size, anywhere, bytes),
            Op::Punch => self.punch(file, size),
            Op::Allocate => self.allocate(file, size, anywhere + bytes),
            Op::CopyRange | Op::Send => self.copy(operation, file, anywhere, bytes),
            Op::Common => {
                let stripe = self.random.below(SIZES[COMMON as usize] / STRIPE);
                let within = self.random.below(STRIPE);
                let bytes = 1 + self.random.below(STRIPE - within);
                self.write(operation, COMMON, stripe * STRIPE + within, bytes)
            }
            Op::ReadCommon => {
                let size = self.shadow.size(COMMON)?;
                self.read(COMMON, size)
            }
            Op::Log => self.append(),
            Op::SyncLog => self.sync_log(),
            Op::Verify => {
                self.note(operation, file, "")?;
                self.verify(file)
            }
            Op::Flush => self.flush(file),
            Op::Whole => {
                // Those that have some.
                let file = [3, 5][self.random.below(2) as usize];
                let block = self.random.below(SIZES[file as usize] / BLOCK);
                self.doing = Some((operation, file));
                self.write(operation, file, block * BLOCK, BLOCK)
            }
            Op::Fork => self.fork(file, anywhere, bytes),
            Op::Inherit => self.inherit(file, anywhere, bytes),
            Op::Over => self.over(file, anywhere, bytes),
            Op::Far => self.far(file),
            Op::Exec => self.exec(file, size),
        }
    }

    /// Small ones, whole pages, and large ones, up to `most`.
    fn length(&mut self, most: u64) -> u64 {
        let length = match self.random.below(8) {
            0..3 => 1 + self.random.below(200),
            3 | 4 => 4096 * (1 + self.random.below(4)),
            5 | 6 => 1 + self.random.below(10_000),
            _ => 1 + self.random.below(PIECE_MAX),
        };
        length.min(most)
    }

    fn note(&self, operation: Operation, file: u64, what: &str) -> io::Result<()> {
        // In which one dies is not overwritten by the next program's first.
        let number = self.counts.operations + self.life;
        self.history.note(number, operation, &file.to_string(), what)
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options
    }

    /// One of the file's two descriptors.
    fn slot(&mut self, file: u64, slot: usize) -> io::Result<&File> {
        let place = &mut self.open[file as usize][slot];
        let opened = match place.take() {
            Some(opened) => opened,
            None => Worker::options().open(self.shadow.path(file))?,
        };
        Ok(place.insert(opened))
    }

    fn file(&mut self, file: u64) -> io::Result<&File> {
        let slot = self.random.below(2) as usize;
        self.slot(file, slot)
    }

    /// Makes a change by `call`, which returns how many bytes it has written.
    fn change(
        &mut self,
        file: u64,
        change: Change,
        call: impl FnOnce(&mut Worker) -> io::Result<u64>,
    ) -> Found {
        self.shadow.begin(file, change)?;
        match call(self) {
            Ok(bytes) => {
                let change = match change {
                    Change::Write { offset, version, .. } => {
                        Change::Write { offset, bytes, version }
                    }
                    other => other,
                };
                self.counts.written += bytes;
                self.shadow.acknowledge(file, change).map(|()| None)
            }
            Err(error) => self.failed(file, error),
        }
    }

    /// A change that writes these bytes.
    fn write_by(
        &mut self,
        file: u64,
        offset: u64,
        bytes: u64,
        call: impl FnOnce(&mut Worker, &[u8]) -> io::Result<u64>,
    ) -> Found {
        let version = self.counts.operations;
        let content = self.shadow.bytes(file, version, offset, bytes as usize);
        let change = Change::Write { offset, bytes, version };
        self.change(file, change, |worker| call(worker, &content))
    }

    fn write(&mut self, operation: Operation, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(operation, file, &format!("{bytes} at {offset}"))?;
        let slot = self.random.below(2) as usize;
        self.slot(file, slot)?;
        let (place, _) = self.shadow.place_of(file, offset);
        self.write_by(file, offset, bytes, |worker, content| {
            worker.slot(file, slot)?.write_at(content, place).map(|written| written as u64)
        })
    }

    fn truncate(&mut self, file: u64, size: u64) -> Found {
        self.note(Operation::Truncate, file, &format!("to {size}"))?;
        self.file(file)?;
        self.change(file, Change::Truncate { size }, |worker| {
            worker.file(file)?.set_len(size).map(|()| 0)
        })
    }

    /// A file of many megabytes that has few bytes: its own, and gone afterwards.
    fn far(&mut self, file: u64) -> Found {
        let version = self.counts.operations;
        self.history.note(version + self.life, Operation::Far, "-", "")?;
        let path = self.shadow.other_path(Role::Gone, file);
        let made = self.make_far(&path, version);
        std::fs::remove_file(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        match made {
            Ok(wrong) => Ok(wrong),
            Err(error) => self.excused_since(self.began, error, Call::Plain),
        }
    }

    fn make_far(&mut self, path: &Path, version: u64) -> Found {
        let mut options = Worker::options();
        let opened = options.truncate(true).open(path)?;
        let content = |shadow: &Shadow, at| shadow.bytes(201, version, at, 300);
        for at in FAR {
            opened.write_all_at(&content(&self.shadow, at), at)?;
        }
        for at in FAR {
            let mut got = vec![0; 300];
            opened.read_exact_at(&mut got, at)?;
            self.counts.verified += 300;
            if got != content(&self.shadow, at) {
                return Ok(Some(format!(
                    "worker {}: {}: wrong at {at}",
                    self.number,
                    path.display()
                )));
            }
        }
        Ok(None)
    }

    fn close(&mut self, file: u64) -> Found {
        self.note(Operation::Close, file, "")?;
        self.open[file as usize] = [None, None];
        Ok(None)
    }

    fn stat(&mut self, file: u64, size: u64) -> Found {
        self.note(Operation::Stat, file, &format!("{size}"))?;
        let mut opened = self.file(file)?.try_clone()?;
        let by_name = std::fs::metadata(self.shadow.path(file))?.len();
        let (by_number, end) = (opened.metadata()?.len(), opened.seek(SeekFrom::End(0))?);
        if [by_name, by_number, end] == [size; 3] {
            return Ok(None);
        }
        let path = self.shadow.path(file);
        Ok(Some(format!(
            "{}: stat says {by_name}, fstat {by_number}, lseek {end} instead of {size}",
            path.display()
        )))
    }

    /// Whether it has succeeded; what is wrong.
    fn sync(&mut self, operation: Operation, file: u64) -> io::Result<(bool, Option<String>)> {
        self.note(operation, file, "")?;
        let opened = self.file(file)?;
        let result = match operation {
            Operation::Fdatasync => opened.sync_data(),
            _ => opened.sync_all(),
        };
        match result {
            Ok(()) => self.shadow.told_synced(file).map(|()| (true, None)),
            Err(error) => self.excused(file, error, Call::Sync).map(|wrong| (false, wrong)),
        }
    }

    fn stored(&mut self, file: u64) -> Found {
        let file = if self.random.one_in(6) { COMMON } else { file };
        match self.sync(Operation::Stored, file)? {
            (true, None) if self.shadow.is_synced_to_store(file) => self.look_at_store(file),
            (true, None) => self.verify(file),
            (_, wrong) => Ok(wrong),
        }
    }

    fn look_at_store(&mut self, file: u64) -> Found {
        let (bytes, wrong) = self.shadow.verify_stored(file)?;
        self.counts.stored += bytes;
        Ok(wrong)
    }

    /// `forebay flush`, as a user in another terminal would.
    fn flush(&mut self, file: u64) -> Found {
        self.note(Operation::Flush, file, "")?;
        let path = self.shadow.path(file);
        if !path.exists() {
            return Ok(None);
        }
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name == "LD_PRELOAD" || name.starts_with("FOREBAY_") && !name.ends_with("_DIR") {
                command.env_remove(name);
            }
        }
        command.args([Path::new("flush"), &path]).stdin(Stdio::null()).stdout(Stdio::null());
        match command.stderr(Stdio::null()).status()?.success() {
            true => self.look_at_store(file),
            // It has said that it could not.
            false => Ok(None),
        }
    }

    fn append(&mut self) -> Found {
        let number = self.acks.metadata()?.len();
        self.history.note(
            self.counts.operations + self.life,
            Operation::Log,
            "-",
            &number.to_string(),
        )?;
        self.acks.write_all_at(&[0], number)?;
        let record = log::record(self.number, number);
        match self.log.write(&record) {
            Ok(written) if written == record.len() => {
                self.acks.write_all_at(&[log::APPENDED], number).map(|()| None)
            }
            Ok(_) => Ok(None),
            Err(error) => self.excused(COMMON, error, Call::Plain),
        }
    }

    fn sync_log(&mut self) -> Found {
        let Some(last) = self.acks.metadata()?.len().checked_sub(1) else { return Ok(None) };
        let mut ack = [0];
        self.acks.read_at(&mut ack, last)?;
        match self.log.sync_data() {
            // One of which nothing is known stays so.
            Ok(()) if ack == [log::APPENDED] => {
                self.acks.write_all_at(&[log::SYNCED], last).map(|()| None)
            }
            Ok(()) => Ok(None),
            Err(error) => self.excused_since(0, error, Call::Sync),
        }
    }

    fn read(&mut self, file: u64, size: u64) -> Found {
        if size == 0 {
            return Ok(None);
        }
        let offset = self.random.below(size);
        let bytes = self.length(size - offset) as usize;
        self.note(Operation::Read, file, &format!("{bytes} at {offset}"))?;
        let slot = self.random.below(2) as usize;
        self.slot(file, slot)?;
        self.compare_range(file, slot, offset, bytes)
    }

    fn compare_range(&mut self, file: u64, slot: usize, offset: u64, bytes: usize) -> Found {
        let Some(opened) = &self.open[file as usize][slot] else { return Ok(None) };
        let wrong = match self.shadow.verify_range(file, opened, offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(error.to_string()),
            Err(error) => return self.excused(file, error, Call::Plain),
            Ok(wrong) => wrong,
        };
        self.counts.verified += bytes as u64;
        Ok(wrong)
    }

    fn verify(&mut self, file: u64) -> Found {
        match self.shadow.verify(file) {
            Ok((bytes, wrong)) => {
                self.counts.verified += bytes;
                Ok(wrong)
            }
            Err(error) => self.excused(file, error, Call::Plain),
        }
    }

    /// A change failed: it may have happened in part.
    fn failed(&mut self, file: u64, error: io::Error) -> Found {
        match self.excused(file, error, self.call())? {
            None => self.shadow.resolve_change(),
            wrong => Ok(wrong),
        }
    }

    /// What kind of call the change is that is being made.
    fn call(&self) -> Call {
        use Operation as Op;
        match self.doing {
            Some((
                Op::Truncate
                | Op::OpenEmpty
                | Op::OpenAppend
                | Op::MapWrite
                | Op::Punch
                | Op::Allocate
                | Op::CopyRange
                | Op::Inherit
                | Op::Exec
                | Op::Send,
                _,
            )) => Call::Checkpointing,
            _ => Call::Plain,
        }
    }

    /// An error that a fault explains is none: one that has hit since all of the file was safe; or
    /// since it was when this program began, as each description tells once of what failed,
    /// whichever process has synced the file since, and also of what failed before it was opened,
    /// if no program had learned of it by then.
    fn excused(&mut self, file: u64, error: io::Error, call: Call) -> Found {
        let since = self.excused_from(file);
        self.excused_since(since, error, call)
    }

    /// Since when a fault may be told of to this program.
    fn excused_from(&self, file: u64) -> u64 {
        let before = self.told_before[file as usize].min(self.began);
        self.shadow.told_since(file).min(before)
    }

    fn excused_since(&mut self, since: u64, error: io::Error, call: Call) -> Found {
        match error.raw_os_error() {
            Some(errno)
                if INJECTED.contains(&errno) && hits::explains(&self.hits, errno, since, call) =>
            {
                self.counts.errors += 1;
                Ok(None)
            }
            _ => Err(error),
        }
    }
}

fn drop_count((_, wrong): (bool, Option<String>)) -> Option<String> {
    wrong
}
