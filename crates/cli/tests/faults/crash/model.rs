//! What the files of a script for `programs/scripted.c` must hold: after each operation, after a
//! crash in the middle of one, and after a loss of power.

use std::collections::BTreeMap;
use std::fmt;

/// Files of a script: `f0` to `f9`.
pub const FILES: u8 = 10;

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Bytes of a seed to an offset; in two pieces with one call if the flag says so.
    Write {
        file: u8,
        at: usize,
        bytes: usize,
        seed: u64,
        pieces: bool,
    },
    Append {
        file: u8,
        bytes: usize,
        seed: u64,
    },
    Truncate {
        file: u8,
        size: usize,
    },
    /// An open with O_TRUNC.
    Empty {
        file: u8,
    },
    Punch {
        file: u8,
        at: usize,
        bytes: usize,
    },
    Rename {
        file: u8,
        to: u8,
    },
    Unlink {
        file: u8,
    },
    Sync {
        file: u8,
        data_only: bool,
    },
    Close {
        file: u8,
    },
    Read {
        file: u8,
    },
}

/// A line of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Which of the two processes.
    pub process: u8,
    pub step: Step,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process;
        match self.step {
            Step::Write { file, at, bytes, seed, pieces } => {
                let operation = if pieces { 'W' } else { 'w' };
                write!(f, "{process} {operation} {file} {at} {bytes} {seed}")
            }
            Step::Append { file, bytes, seed } => write!(f, "{process} a {file} {bytes} {seed}"),
            Step::Truncate { file, size } => write!(f, "{process} t {file} {size}"),
            Step::Empty { file } => write!(f, "{process} z {file}"),
            Step::Punch { file, at, bytes } => write!(f, "{process} h {file} {at} {bytes}"),
            Step::Rename { file, to } => write!(f, "{process} r {file} {to}"),
            Step::Unlink { file } => write!(f, "{process} u {file}"),
            Step::Sync { file, data_only: false } => write!(f, "{process} s {file}"),
            Step::Sync { file, data_only: true } => write!(f, "{process} d {file}"),
            Step::Close { file } => write!(f, "{process} c {file}"),
            Step::Read { file } => write!(f, "{process} v {file}"),
        }
    }
}

/// The bytes that a write with `seed` writes.
pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 56 ^ mixed >> 32) as u8 | 1
    };
    (0..bytes as u64).map(byte).collect()
}

/// What `scripted` reports of bytes that it read.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |value, &byte| {
        (value ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A line of the report of `scripted`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub result: i64,
    pub errno: i32,
    pub hash: u64,
}

/// The contents of files by number.
pub type Contents = BTreeMap<u8, Vec<u8>>;

/// One file.
#[derive(Clone, Default, Debug)]
struct File {
    bytes: Vec<u8>,
    /// Its contents since the last sync that returned, that of the sync first; empty if it was
    /// never synced.
    since_sync: Vec<Vec<u8>>,
    /// All of its contents if it was never synced.
    unsynced: Vec<Vec<u8>>,
}

/// All files after some operations.
#[derive(Clone, Default, Debug)]
pub struct Model {
    files: BTreeMap<u8, File>,
}

impl Model {
    /// Files that are on the store, durably, before anything happens.
    pub fn with(contents: &Contents) -> Model {
        let file = |bytes: &Vec<u8>| File {
            bytes: bytes.clone(),
            since_sync: vec![bytes.clone()],
            unsynced: Vec::new(),
        };
        Model { files: contents.iter().map(|(&name, bytes)| (name, file(bytes))).collect() }
    }

    /// Carries out one operation and says what `scripted` must report of it.
    pub fn apply(&mut self, step: Step) -> Report {
        let good = |result: usize| Report { result: result as i64, errno: 0, hash: 0 };
        let missing = Report { result: -1, errno: libc_enoent(), hash: 0 };
        let report = match step {
            Step::Write { file, at, bytes, seed, .. } => {
                self.write(file, at, &content(seed, bytes));
                good(bytes)
            }
            Step::Append { file, bytes, seed } => {
                let at = self.open(file).bytes.len();
                self.write(file, at, &content(seed, bytes));
                good(bytes)
            }
            Step::Truncate { file, size } => {
                self.open(file).bytes.resize(size, 0);
                good(0)
            }
            Step::Empty { file } => {
                self.open(file).bytes.clear();
                good(0)
            }
            Step::Punch { file, at, bytes } => {
                let file = &mut self.open(file).bytes;
                let end = (at + bytes).min(file.len());
                if at < end {
                    file[at..end].fill(0);
                }
                good(0)
            }
            Step::Rename { file, to } => {
                if file != to
                    && let Some(moved) = self.files.remove(&file)
                {
                    self.files.insert(to, moved);
                } else if !self.files.contains_key(&file) {
                    return missing;
                }
                good(0)
            }
            Step::Unlink { file } => match self.files.remove(&file) {
                Some(_) => good(0),
                None => missing,
            },
            Step::Sync { file, .. } => {
                let file = self.open(file);
                file.since_sync = vec![file.bytes.clone()];
                file.unsynced.clear();
                good(0)
            }
            Step::Close { .. } => good(0),
            Step::Read { file } => {
                let file = self.open(file);
                Report { hash: hash(&file.bytes), ..good(file.bytes.len()) }
            }
        };
        for file in self.files.values_mut() {
            let versions = match file.since_sync.is_empty() {
                true => &mut file.unsynced,
                false => &mut file.since_sync,
            };
            if versions.last() != Some(&file.bytes) {
                versions.push(file.bytes.clone());
            }
        }
        report
    }

    fn open(&mut self, file: u8) -> &mut File {
        self.files.entry(file).or_default()
    }

    fn write(&mut self, file: u8, at: usize, bytes: &[u8]) {
        let file = &mut self.open(file).bytes;
        let end = at + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[at..end].copy_from_slice(bytes);
    }

    /// The size of a file; 0 if there is none.
    pub fn size(&self, file: u8) -> usize {
        self.files.get(&file).map_or(0, |file| file.bytes.len())
    }

    /// Everything as it is now.
    pub fn contents(&self) -> Contents {
        self.files.iter().map(|(&name, file)| (name, file.bytes.clone())).collect()
    }

    /// Compares what was found with this state, or with what a crash in the middle of `step` may
    /// leave: the names of before or after, every byte that of before or after, a size in between.
    pub fn compare(&self, found: &Contents, step: Option<Step>) -> Result<(), String> {
        let mut after = self.clone();
        if let Some(step) = step {
            after.apply(step);
        }
        let names = |contents: &Model| contents.files.keys().copied().collect::<Vec<_>>();
        let got: Vec<_> = found.keys().copied().collect();
        if let Some(Step::Rename { .. } | Step::Unlink { .. }) = step {
            return match same(&self.contents(), found) {
                Ok(()) => Ok(()),
                Err(_) => same(&after.contents(), found),
            };
        }
        if got != names(self) && got != names(&after) {
            return Err(format!("files {got:?} instead of {:?}", names(self)));
        }
        for (name, got) in found {
            let none = Vec::new();
            let before = self.files.get(name).map_or(&none, |file| &file.bytes);
            let after = after.files.get(name).map_or(&none, |file| &file.bytes);
            let least = before.len().min(after.len());
            let most = before.len().max(after.len());
            // Only a write grows a file step by step.
            let stepwise = matches!(step, Some(Step::Write { .. } | Step::Append { .. }));
            let size = got.len();
            if !(size == least || size == most || stepwise && (least..=most).contains(&size)) {
                return Err(format!("f{name}: {size} bytes, before {least}, after {most}"));
            }
            let at = |content: &Vec<u8>, at: usize| content.get(at).copied().unwrap_or(0);
            let wrong =
                |&here: &usize| got[here] != at(before, here) && got[here] != at(after, here);
            if let Some(here) = (0..size).find(wrong) {
                let count = (0..size).filter(wrong).count();
                return Err(format!(
                    "f{name}: {count} of {size} bytes are wrong, the first at {here}: {} instead of {} or {}",
                    got[here],
                    at(before, here),
                    at(after, here),
                ));
            }
        }
        Ok(())
    }

    /// Compares what was found after a loss of power: what a sync has acknowledged is there, or
    /// what was written later, byte by byte. Of a file that was never synced only that it has no
    /// bytes that were never written to it. Names are taken to be durable.
    pub fn compare_durable(&self, found: &Contents, step: Option<Step>) -> Result<(), String> {
        let mut after = self.clone();
        // What a sync promises it promises when it has returned.
        if let Some(step) = step.filter(|step| !matches!(step, Step::Sync { .. })) {
            after.apply(step);
            if let Step::Rename { .. } | Step::Unlink { .. } = step {
                return self.compare_durable(found, None).or(after.compare_durable(found, None));
            }
        }
        for (name, file) in &after.files {
            let Some(oldest) = file.since_sync.first() else {
                let got = found.get(name).map_or(&[][..], |got| got);
                let is_its = |(here, byte): (usize, &u8)| {
                    *byte == 0 || file.unsynced.iter().any(|was| was.get(here) == Some(byte))
                };
                match got.iter().enumerate().position(|byte| !is_its(byte)) {
                    Some(here) => return Err(format!("f{name}: byte {here} was never its own")),
                    None => continue,
                }
            };
            let versions = &file.since_sync;
            let Some(got) = found.get(name) else {
                return Err(format!("f{name}, synced with {} bytes, is gone", oldest.len()));
            };
            let sizes = versions.iter().map(Vec::len);
            let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
            if !(least..=most).contains(&got.len()) {
                return Err(format!("f{name}: {} bytes instead of {least} to {most}", got.len()));
            }
            // Zero, too, where the file grew over it and its new bytes were lost.
            let grew = |here: usize| {
                let over = |pair: &[Vec<u8>]| pair[0].len() <= here && here < pair[1].len();
                versions.windows(2).any(over)
            };
            // And where what was written since the sync came back behind a cut that followed it.
            let was_cut = |here: usize| {
                let written = versions.iter().skip(1);
                let mut rest = written.skip_while(|version| version.len() <= here);
                rest.any(|version| version.len() <= here)
            };
            let may = |here: usize| {
                versions.iter().any(|version| version.get(here) == Some(&got[here]))
                    || got[here] == 0 && (grew(here) || was_cut(here))
            };
            if let Some(here) = (0..got.len()).find(|&here| !may(here)) {
                let count = (0..got.len()).filter(|&here| !may(here)).count();
                return Err(format!(
                    "f{name}: {count} of {} bytes are none that were written since the sync, the first at \
                     {here}: {} instead of {}",
                    got.len(),
                    got[here],
                    oldest.get(here).copied().unwrap_or(0),
                ));
            }
        }
        Ok(())
    }
}

fn libc_enoent() -> i32 {
    rustix::io::Errno::NOENT.raw_os_error()
}

fn same(wanted: &Contents, found: &Contents) -> Result<(), String> {
    let names = |contents: &Contents| contents.keys().copied().collect::<Vec<_>>();
    if names(wanted) != names(found) {
        return Err(format!("files {:?} instead of {:?}", names(found), names(wanted)));
    }
    for (name, wanted) in wanted {
        let found = &found[name];
        if wanted != found {
            let at = wanted.iter().zip(found).position(|(a, b)| a != b);
            let (found, wanted) = (found.len(), wanted.len());
            return Err(format!("f{name}: {found} bytes instead of {wanted}, differs at {at:?}"));
        }
    }
    Ok(())
}
