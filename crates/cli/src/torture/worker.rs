//! A worker of the torture: an ordinary program, as far as Forebay can see, that writes, reads, cuts,
//! renames and removes its own files, appends to a common one, and compares all that it reads with
//! what it has written. It may be killed at any instant, and begins again where it was.

use super::content::Random;
use super::counts::{Counts, CountsFile};
use super::log;
use super::shadow::{Change, FILES, Shadow};
use clap::Args;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Files do not grow beyond this, except by a truncate to somewhat more.
const SIZE_MAX: u64 = 3 << 20;
/// Bytes of one write or read, at most.
const PIECE_MAX: u64 = 300 << 10;
/// What a program may be told while its store fails on purpose: EIO, ENOSPC, EDQUOT, ESTALE.
const EXPECTED: [i32; 4] = [5, 28, 122, 116];

/// Options of the hidden subcommand.
#[derive(Args)]
pub struct WorkerArguments {
    /// Where the torture takes place
    #[arg(long)]
    place: PathBuf,
    /// Which worker this is
    #[arg(long)]
    number: u64,
    /// Of the whole torture
    #[arg(long)]
    seed: u64,
    /// When to end in any case, in seconds since 1970
    #[arg(long)]
    until: u64,
}

/// Works until it is told to end, by a file `stop` or the time. The exit code tells whether what it
/// found was right.
pub fn work(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let folder = arguments.place.join(format!("worker-{}", arguments.number));
    let explain = |error: io::Error| format!("{}: {error}", folder.display());
    let mut worker = Worker::open(arguments).map_err(explain)?;
    let wrong = match worker.run() {
        Ok(wrong) => wrong,
        Err(error) => Some(format!("worker {}: {error}", arguments.number)),
    };
    worker.counts_file.keep(&worker.counts).map_err(explain)?;
    let Some(wrong) = wrong else { return Ok(ExitCode::SUCCESS) };
    std::fs::write(folder.join("loss"), &wrong).map_err(explain)?;
    Err(wrong)
}

struct Worker {
    shadow: Shadow,
    counts: Counts,
    counts_file: CountsFile,
    random: Random,
    open: [Option<File>; FILES as usize],
    log: File,
    acks: File,
    number: u64,
    stop: PathBuf,
    until: SystemTime,
}

type Found = io::Result<Option<String>>;

impl Worker {
    fn open(arguments: &WorkerArguments) -> io::Result<Worker> {
        let folder = arguments.place.join(format!("worker-{}", arguments.number));
        let store = arguments.place.join("store");
        let shadow = Shadow::open(&folder, &store, arguments.seed, arguments.number)?;
        std::fs::write(folder.join("pid"), std::process::id().to_string())?;
        let counts_file = CountsFile::open(&folder)?;
        let counts = counts_file.read()?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let life = arguments.number << 32 ^ counts.operations << 8;
        let mut acks = OpenOptions::new();
        acks.read(true).write(true).create(true).truncate(false);
        Ok(Worker {
            shadow,
            counts,
            counts_file,
            random: Random::new(arguments.seed ^ life),
            open: Default::default(),
            log: options.open(log::path(&store))?,
            acks: acks.open(folder.join("acks"))?,
            number: arguments.number,
            stop: arguments.place.join("stop"),
            until: UNIX_EPOCH + Duration::from_secs(arguments.until),
        })
    }

    fn run(&mut self) -> Found {
        if let Some(wrong) = self.shadow.settle()? {
            return Ok(Some(wrong));
        }
        loop {
            for file in 0..FILES {
                if let Some(wrong) = self.verify(file)? {
                    return Ok(Some(wrong));
                }
            }
            for _ in 0..400 {
                if self.stop.exists() || SystemTime::now() > self.until {
                    return Ok(None);
                }
                let wrong = self.step()?;
                self.counts.operations += 1;
                self.counts_file.keep(&self.counts)?;
                if wrong.is_some() {
                    return Ok(wrong);
                }
            }
        }
    }

    fn step(&mut self) -> Found {
        let file = self.random.below(FILES);
        let size = self.shadow.size(file)?;
        match self.random.below(100) {
            0..40 => {
                let bytes = self.length();
                let offset = self.random.below(SIZE_MAX - bytes);
                let aligned = if self.random.one_in(2) { offset & !4095 } else { offset };
                self.write(file, aligned, bytes)
            }
            40..52 => {
                let offset = if size + PIECE_MAX > SIZE_MAX { 0 } else { size };
                let bytes = self.length();
                self.write(file, offset, bytes)
            }
            52..78 => self.read(file, size),
            78..84 => self.sync(file),
            84..88 => {
                let size = match self.random.below(3) {
                    0 => 0,
                    1 => self.random.below(size + 1),
                    _ => self.random.below(SIZE_MAX),
                };
                self.truncate(file, size)
            }
            88..92 => {
                self.open[file as usize] = None;
                Ok(None)
            }
            92 => {
                let (path, other) = (self.shadow.path(file), self.shadow.other_path(file));
                if path.exists() {
                    std::fs::rename(&path, &other)?;
                    std::fs::rename(&other, &path)?;
                }
                Ok(None)
            }
            93 => self.remove(file),
            94 => self.verify(file),
            _ => self.append(),
        }
    }

    /// Small ones, whole pages, and large ones.
    fn length(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 1 + self.random.below(200),
            1 => 4096 * (1 + self.random.below(8)),
            2 => 1 + self.random.below(20_000),
            _ => 1 + self.random.below(PIECE_MAX),
        }
    }

    fn file(&mut self, file: u64) -> io::Result<&File> {
        let place = &mut self.open[file as usize];
        let opened = match place.take() {
            Some(opened) => opened,
            None => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                options.open(self.shadow.path(file))?
            }
        };
        Ok(place.insert(opened))
    }

    fn write(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        let version = self.counts.operations;
        let content = self.shadow.bytes(file, version, offset, bytes as usize);
        let change = Change::Write { offset, bytes, version };
        self.file(file)?;
        self.shadow.begin(file, change)?;
        match self.file(file)?.write_at(&content, offset) {
            Ok(written) => {
                let written = written as u64;
                self.counts.written += written;
                self.shadow.acknowledge(file, Change::Write { offset, bytes: written, version })?;
                Ok(None)
            }
            Err(error) => self.failed(error),
        }
    }

    fn truncate(&mut self, file: u64, size: u64) -> Found {
        let change = Change::Truncate { size };
        self.file(file)?;
        self.shadow.begin(file, change)?;
        match self.file(file)?.set_len(size) {
            Ok(()) => self.shadow.acknowledge(file, change).map(|()| None),
            Err(error) => self.failed(error),
        }
    }

    fn remove(&mut self, file: u64) -> Found {
        self.open[file as usize] = None;
        self.shadow.begin(file, Change::Remove)?;
        match std::fs::remove_file(self.shadow.path(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.failed(error),
            _ => self.shadow.acknowledge(file, Change::Remove).map(|()| None),
        }
    }

    fn sync(&mut self, file: u64) -> Found {
        let whole = self.random.one_in(2);
        let opened = self.file(file)?;
        let result = if whole { opened.sync_all() } else { opened.sync_data() };
        match result {
            Ok(()) => self.shadow.synced(file).map(|()| None),
            Err(error) => self.expected(error),
        }
    }

    fn append(&mut self) -> Found {
        let number = self.acks.metadata()?.len();
        self.acks.write_all_at(&[0], number)?;
        let record = log::record(self.number, number);
        match self.log.write(&record) {
            Ok(written) if written == record.len() => {
                self.acks.write_all_at(&[log::APPENDED], number)?;
                if !self.random.one_in(8) {
                    return Ok(None);
                }
                match self.log.sync_data() {
                    Ok(()) => self.acks.write_all_at(&[log::SYNCED], number).map(|()| None),
                    Err(error) => self.expected(error),
                }
            }
            Ok(_) => Ok(None),
            Err(error) => self.expected(error),
        }
    }

    fn read(&mut self, file: u64, size: u64) -> Found {
        if size == 0 {
            return Ok(None);
        }
        let offset = self.random.below(size);
        let bytes = self.length().min(size - offset) as usize;
        self.file(file)?;
        let Some(opened) = &self.open[file as usize] else { return Ok(None) };
        let wrong = match self.shadow.verify_range(file, opened, offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some(format!("{}: ends before {size}", self.shadow.path(file).display()))
            }
            other => other?,
        };
        self.counts.verified += bytes as u64;
        Ok(wrong)
    }

    fn verify(&mut self, file: u64) -> Found {
        let (bytes, wrong) = self.shadow.verify(file)?;
        self.counts.verified += bytes;
        Ok(wrong)
    }

    /// A change failed: it may have happened in part.
    fn failed(&mut self, error: io::Error) -> Found {
        match self.expected(error)? {
            None => self.shadow.settle(),
            wrong => Ok(wrong),
        }
    }

    /// An error that a failing store explains is none.
    fn expected(&mut self, error: io::Error) -> Found {
        match error.raw_os_error() {
            Some(errno) if EXPECTED.contains(&errno) => {
                self.counts.errors += 1;
                Ok(None)
            }
            _ => Err(error),
        }
    }
}
