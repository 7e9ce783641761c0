//! Operations with descriptors: files opened again, duplicated, inherited, taken over by another
//! program.

use super::super::operations::Operation;
use super::super::shadow::{Change, OWN};
use super::super::system;
use super::{Found, SIZES, Worker};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::Duration;

impl Worker {
    pub(super) fn open_empty(&mut self, file: u64) -> Found {
        self.note(Operation::OpenEmpty, file, "")?;
        self.file(file)?;
        self.change(file, Change::Truncate { size: 0 }, |worker| {
            let mut options = OpenOptions::new();
            options.write(true).truncate(true);
            options.open(worker.shadow.path(file)).map(|_| 0)
        })
    }

    pub(super) fn open_append(&mut self, file: u64, size: u64, bytes: u64) -> Found {
        let bytes = bytes.min(20_000);
        if size + bytes > 2 * SIZES[file as usize] {
            return self.truncate(file, 0);
        }
        self.note(Operation::OpenAppend, file, &format!("{bytes} at {size}"))?;
        let mut options = OpenOptions::new();
        let mut opened = options.append(true).create(true).open(self.shadow.path(file))?;
        self.write_by(file, size, bytes, |_, content| {
            opened.write(content).map(|written| written as u64)
        })
    }

    pub(super) fn second(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        let writer = self.random.below(2) as usize;
        self.note(Operation::Second, file, &format!("{bytes} at {offset}"))?;
        self.slot(file, writer)?;
        let wrong = self.write_by(file, offset, bytes, |worker, content| {
            worker.slot(file, writer)?.write_at(content, offset).map(|written| written as u64)
        })?;
        if wrong.is_some() || self.shadow.size(file)? < offset + bytes {
            return Ok(wrong);
        }
        self.slot(file, 1 - writer)?;
        self.compare_range(file, 1 - writer, offset, bytes as usize)
    }

    pub(super) fn dup(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(Operation::Dup, file, &format!("{bytes} at {offset}"))?;
        let mut other = self.file(file)?.try_clone()?;
        let mut twin = other.try_clone()?;
        other.seek(SeekFrom::Start(offset))?;
        let wrong = self.write_by(file, offset, bytes, |_, content| {
            let (head, tail) = content.split_at(content.len() / 2);
            let written = other.write(head)?;
            if written < head.len() {
                return Ok(written as u64);
            }
            match twin.write(tail) {
                Ok(more) => Ok((written + more) as u64),
                // What the first has written is written; what came of the rest is to be looked at.
                Err(error) => Err(error),
            }
        })?;
        let (here, there) = (other.stream_position()?, twin.stream_position()?);
        let least = if self.shadow.size(file)? < offset + bytes { 0 } else { offset };
        if wrong.is_none() && (here != there || here < least || here > offset + bytes) {
            let path = self.shadow.path(file);
            return Ok(Some(format!(
                "{}: positions {here} and {there} of one description after {bytes} bytes at {offset}",
                path.display()
            )));
        }
        Ok(wrong)
    }

    pub(super) fn fork(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(Operation::Fork, file, &format!("{bytes} at {offset}"))?;
        self.file(file)?;
        self.write_by(file, offset, bytes, |worker, content| {
            system::write_in_child(worker.file(file)?, offset, content)
        })
    }

    pub(super) fn inherit(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(Operation::Inherit, file, &format!("{bytes} at {offset}"))?;
        let mut passed = self.file(file)?.try_clone()?;
        passed.seek(SeekFrom::Start(offset))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("torture-worker").arg("--pour");
        for (name, value) in [("place", "."), ("number", "0"), ("seed", "0"), ("until", "0")] {
            command.arg(format!("--{name}={value}"));
        }
        command.arg(format!("--keeper={}", std::process::id()));
        command.stdin(Stdio::piped()).stdout(passed).stderr(Stdio::null());
        self.write_by(file, offset, bytes, |_, content| {
            let mut child = command.spawn()?;
            // It may die before it has read all; then it says more.
            let given = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(content));
            system::ended(child.wait()?.into_raw())?;
            given.map(|()| content.len() as u64)
        })
    }

    pub(super) fn over(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(Operation::Over, file, &format!("{bytes} at {offset}"))?;
        let replaced = self.file((file + 1) % OWN)?.try_clone()?;
        let opened = self.file(file)?.try_clone()?;
        self.write_by(file, offset, bytes, |_, content| {
            system::replace(&opened, &replaced)?;
            replaced.write_at(content, offset).map(|written| written as u64)
        })
    }

    /// The new image completes what a thread of the old one has left undone, and begins as a
    /// program does whose predecessor died in a cut. Its operations are counted anew.
    pub(super) fn exec(&mut self, file: u64, size: u64) -> Found {
        let size = self.random.below(size + 1);
        self.note(Operation::Exec, file, &format!("to {size}"))?;
        let opened = self.file(file)?.try_clone()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        let wait = Duration::from_micros(self.random.below(300));
        self.counts.operations += 1;
        self.counts.kinds[Operation::Exec.index()] += 1;
        self.counts_file.keep(&self.counts)?;
        self.shadow.begin(file, Change::Truncate { size })?;
        std::thread::spawn(move || opened.set_len(size));
        std::thread::sleep(wait);
        Err(command.exec())
    }
}
