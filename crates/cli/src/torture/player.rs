//! A program of the standing lists: it plays a script step by step, through the calls of libc, and
//! notes on file what each step has told it.

use super::script::{Files, How, READ_MAX, SLOTS, Script, Step, Told};
use super::system;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How often a file is looked for that another process makes or removes.
const LOOK: Duration = Duration::from_millis(1);

/// Marks in the list of points that are passed: where the steps begin, where another image does,
/// where they end.
pub const MARKS: [&str; 3] = ["-begin", "-image", "-end"];

/// Files by which a player and its conductor wait for each other, in the conductor's folder.
pub struct Signs(PathBuf);

impl Signs {
    /// In this folder.
    pub fn of(folder: &Path) -> Signs {
        Signs(folder.to_owned())
    }

    /// The second program may begin.
    pub fn go(&self) -> PathBuf {
        self.0.join("go")
    }

    /// The second program is where it begins.
    pub fn ready(&self) -> PathBuf {
        self.0.join("ready")
    }

    /// The first program pauses, or waits at its end, as long as it is there.
    pub fn held(&self) -> PathBuf {
        self.0.join("held")
    }

    fn told(&self, player: usize) -> PathBuf {
        self.0.join(format!("told-{player}"))
    }

    fn read(&self, player: usize, index: usize) -> PathBuf {
        self.0.join(format!("read-{player}-{index}"))
    }

    /// Removes all of them.
    pub fn clear(&self) {
        let all = [self.go(), self.ready(), self.held(), self.told(0), self.told(1)];
        all.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }

    /// How many steps of a player have told something.
    pub fn count(&self, player: usize) -> usize {
        let text = std::fs::read(self.told(player)).unwrap_or_default();
        text.iter().filter(|&&byte| byte == b'\n').count()
    }

    /// What the steps of a player have told.
    pub fn all_told(&self, player: usize) -> io::Result<Vec<Told>> {
        let text = match std::fs::read_to_string(self.told(player)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        whole.enumerate().map(|(index, line)| self.parse(player, index, line)).collect()
    }

    fn parse(&self, player: usize, index: usize, line: &str) -> io::Result<Told> {
        let wrong = || io::Error::other(format!("{line}: not what a step tells"));
        Ok(match line.split_once(' ') {
            None if line == "done" => Told::Done,
            None if line == "bytes" => Told::Bytes(std::fs::read(self.read(player, index))?),
            Some(("failed", errno)) => Told::Failed(errno.parse().map_err(|_| wrong())?),
            Some(("size", size)) => Told::Size(size.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        })
    }

    fn note(&self, player: usize, index: usize, told: &Told) -> io::Result<()> {
        let line = match told {
            Told::Done => "done\n".to_owned(),
            Told::Failed(errno) => format!("failed {errno}\n"),
            Told::Size(size) => format!("size {size}\n"),
            Told::Bytes(bytes) => {
                std::fs::write(self.read(player, index), bytes)?;
                "bytes\n".to_owned()
            }
        };
        let mut options = OpenOptions::new();
        options.append(true).create(true).open(self.told(player))?.write_all(line.as_bytes())
    }
}

/// Where a script is played on by another image: the step, and its descriptors.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The next step.
    pub from: usize,
    /// Numbers of descriptors, -1 for none.
    pub slots: Vec<RawFd>,
}

/// Plays a script.
pub struct Player {
    files: Files,
    signs: Signs,
    player: usize,
    /// Whether it looks past Forebay at what it has synced.
    looks: bool,
    slots: [Option<File>; SLOTS],
}

/// Notes a place in the list of points that are passed, if there is one. Without one it passes the
/// same points.
fn mark(what: &str) -> io::Result<()> {
    let list = std::env::var_os("FOREBAY_CRASH_LIST").unwrap_or_else(|| "/dev/null".into());
    let mut list = OpenOptions::new().append(true).open(list)?;
    list.write_all(format!("client {what}\n").as_bytes())
}

impl Player {
    /// The one of number `player`, 0 or 1, of a case with these files.
    pub fn new(files: Files, folder: &Path, player: usize, looks: bool) -> Player {
        Player { files, signs: Signs::of(folder), player, looks, slots: Default::default() }
    }

    /// Plays the script, or the rest of it.
    ///
    /// # Errors
    /// Those of what is not the script's: its own are told.
    pub fn play(&mut self, script: &Script, inherited: Option<&Inherited>) -> io::Result<()> {
        if let Some(inherited) = inherited {
            mark(MARKS[1])?;
            for (slot, &number) in self.slots.iter_mut().zip(&inherited.slots) {
                // SAFETY: the image before this one has left it open for this one.
                *slot = (number >= 0).then(|| unsafe { File::from_raw_fd(number) });
            }
        }
        let from = inherited.map_or(0, |inherited| inherited.from);
        for (index, step) in script.all().enumerate().skip(from) {
            if index == script.setup.len() {
                self.begin()?;
            }
            let told = match self.perform(index, step) {
                Ok(told) => told,
                Err(error) => Told::Failed(error.raw_os_error().unwrap_or(0)),
            };
            self.signs.note(self.player, index, &told)?;
        }
        if self.player == 0 {
            mark(MARKS[2])?;
            wait_while(|| self.signs.held().exists());
        }
        Ok(())
    }

    fn begin(&self) -> io::Result<()> {
        if self.player == 0 {
            return mark(MARKS[0]);
        }
        std::fs::write(self.signs.ready(), "")?;
        wait_while(|| !self.signs.go().exists());
        Ok(())
    }

    fn slot(&self, slot: usize) -> io::Result<&File> {
        self.slots[slot].as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn open(&mut self, slot: usize, name: char, how: How) -> io::Result<()> {
        let mut options = OpenOptions::new();
        match how {
            How::Plain => options.read(true).write(true),
            How::Append => options.read(true).append(true),
            How::Empty => options.read(true).write(true).truncate(true),
            How::Create => options.read(true).write(true).create(true).truncate(false),
        };
        self.slots[slot] = Some(options.open(self.files.path(name))?);
        Ok(())
    }

    fn perform(&mut self, index: usize, step: Step) -> io::Result<Told> {
        match step {
            Step::Open { slot, name, how } => self.open(slot, name, how)?,
            Step::Close { slot } => {
                self.slot(slot)?;
                self.slots[slot] = None;
            }
            Step::Write { slot, at, length, tag } => {
                let bytes = self.files.bytes(tag, at, length);
                whole(self.slot(slot)?.write_at(&bytes, at)?, length)?;
            }
            Step::WriteHere { slot, at, length, tag } => {
                let bytes = self.files.bytes(tag, at, length);
                let mut file = self.slot(slot)?;
                file.seek(SeekFrom::Start(at))?;
                whole(file.write(&bytes)?, length)?;
            }
            Step::Append { slot, length, tag } => {
                let bytes = self.files.bytes(tag, 0, length);
                let mut file = self.slot(slot)?;
                whole(file.write(&bytes)?, length)?;
            }
            Step::Read { slot } => {
                let mut bytes = vec![0; READ_MAX];
                let count = self.slot(slot)?.read_at(&mut bytes, 0)?;
                bytes.truncate(count);
                return Ok(Told::Bytes(bytes));
            }
            Step::Size { slot } => return Ok(Told::Size(self.slot(slot)?.metadata()?.len())),
            Step::Truncate { slot, size } => self.slot(slot)?.set_len(size)?,
            Step::Punch { slot, at, length } => system::punch(self.slot(slot)?, at, length)?,
            Step::Allocate { slot, size } => system::allocate(self.slot(slot)?, size)?,
            Step::Map { slot, at, length, tag } => {
                let bytes = self.files.bytes(tag, at, length);
                system::write_mapped(self.slot(slot)?, at, &bytes)?;
            }
            Step::Copy { from, to, at, length } => {
                let (from, to) = (self.slot(from)?, self.slot(to)?);
                system::copy_range(from, to, at, length as usize)?;
            }
            Step::Send { from, to, at, length } => {
                let (from, to) = (self.slot(from)?, self.slot(to)?);
                system::send(from, to, at, length as usize)?;
            }
            Step::Rename { from, to } => {
                std::fs::rename(self.files.path(from), self.files.path(to))?;
            }
            Step::Link { from, to } => {
                std::fs::hard_link(self.files.path(from), self.files.path(to))?;
            }
            Step::Unlink { name } => std::fs::remove_file(self.files.path(name))?,
            Step::Sync { slot } => {
                self.slot(slot)?.sync_all()?;
                if self.looks && self.files.are_synced_to_store() {
                    look_past(self.slot(slot)?)?;
                }
            }
            Step::Dup { slot, to } => self.slots[to] = Some(self.slot(slot)?.try_clone()?),
            Step::Fork { slot, at, length, tag } => {
                let bytes = self.files.bytes(tag, at, length);
                fork_and_write(self.slot(slot)?, at, &bytes)?;
            }
            Step::Exec => return Err(self.exec(index)),
        }
        Ok(Told::Done)
    }

    /// Goes on as another image; returns only if that fails.
    fn exec(&self, index: usize) -> io::Error {
        let number = |slot: &Option<File>| slot.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let numbers: Vec<_> = self.slots.iter().map(number).collect();
        for &fd in numbers.iter().filter(|&&fd| fd >= 0) {
            // SAFETY: numbers only.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        }
        let told = self.signs.note(self.player, index, &Told::Done).and_then(|()| mark(MARKS[1]));
        if let Err(error) = told {
            return error;
        }
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let slots: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return error,
        };
        Command::new(program)
            .args(words)
            .arg(format!("--from={}", index + 1))
            .arg(format!("--slots={}", slots.join(",")))
            .exec()
    }
}

fn whole(done: usize, asked: u64) -> io::Result<()> {
    if done as u64 == asked { Ok(()) } else { Err(io::Error::other("a part was written")) }
}

/// Compares a file with what the store has of it.
fn look_past(file: &File) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let past = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut here, mut there) = (vec![0; READ_MAX], vec![0; READ_MAX]);
    let size = file.read_at(&mut here, 0)?;
    let mut stored = 0;
    loop {
        match rustix::io::pread(&past, &mut there[stored..], stored as u64)? {
            0 => break,
            count => stored += count,
        }
    }
    match here[..size] == there[..stored] {
        true => Ok(()),
        false => Err(io::Error::other("the store has not what was synced")),
    }
}

fn wait_while(is_so: impl Fn() -> bool) {
    while is_so() {
        std::thread::sleep(LOOK);
    }
}

/// Forks a child that writes and ends. If it dies by a signal, so does this process.
fn fork_and_write(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    let (fd, mut status) = (file.as_raw_fd(), 0);
    // SAFETY: the child makes two calls that are allowed there, and waitpid gets a number that
    // outlives it.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                let done = libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at as i64);
                let errno = *libc::__errno_location();
                libc::_exit(if done == bytes.len() as isize { 0 } else { errno.max(1) });
            }
            child => libc::waitpid(child, &mut status, 0),
        };
        if libc::WIFSIGNALED(status) {
            libc::raise(libc::SIGKILL);
        }
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
