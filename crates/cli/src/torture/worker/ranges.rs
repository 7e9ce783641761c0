//! Operations on ranges: mapped, punched, allocated and copied.

use super::super::hits::Call;
use super::super::operations::Operation;
use super::super::shadow::{Change, Role};
use super::super::system;
use super::{Found, Worker};
use std::fs::File;

impl Worker {
    pub(super) fn map_read(&mut self, file: u64, size: u64) -> Found {
        self.note(Operation::MapRead, file, "")?;
        if size == 0 {
            return Ok(None);
        }
        let offset = self.random.below(size) & !4095;
        let length = self.length(size - offset) as usize;
        let opened = self.file(file)?.try_clone()?;
        let copy = match system::read_mapped(&opened, offset, length) {
            Ok(copy) => copy,
            Err(error) => return self.excused(file, error, Call::Sync),
        };
        self.counts.verified += length as u64;
        self.shadow.compare(file, &copy, offset)
    }

    pub(super) fn map_write(&mut self, file: u64, size: u64, offset: u64, bytes: u64) -> Found {
        let bytes = bytes.min(size.saturating_sub(offset));
        self.note(Operation::MapWrite, file, &format!("{bytes} at {offset}"))?;
        if bytes == 0 {
            return Ok(None);
        }
        let opened = self.file(file)?.try_clone()?;
        self.write_by(file, offset, bytes, |_, content| {
            system::write_mapped(&opened, offset, content).map(|()| content.len() as u64)
        })
    }

    pub(super) fn punch(&mut self, file: u64, size: u64) -> Found {
        if size == 0 {
            return Ok(None);
        }
        let offset = self.random.below(size);
        let bytes = self.length(size);
        self.note(Operation::Punch, file, &format!("{bytes} at {offset}"))?;
        self.file(file)?;
        self.change(file, Change::Punch { offset, bytes }, |worker| {
            system::punch(worker.file(file)?, offset, bytes).map(|()| 0)
        })
    }

    pub(super) fn allocate(&mut self, file: u64, size: u64, end: u64) -> Found {
        self.note(Operation::Allocate, file, &format!("to {end}"))?;
        self.file(file)?;
        self.change(file, Change::Truncate { size: size.max(end) }, |worker| {
            system::allocate(worker.file(file)?, end).map(|()| 0)
        })
    }

    pub(super) fn copy(
        &mut self,
        operation: Operation,
        file: u64,
        offset: u64,
        bytes: u64,
    ) -> Found {
        self.note(operation, file, &format!("{bytes} at {offset}"))?;
        let version = self.counts.operations;
        let content = self.shadow.bytes(file, version, offset, bytes as usize);
        let source = self.shadow.other_path(Role::Source, file);
        if let Err(error) = std::fs::write(&source, &content) {
            return self.excused(file, error, Call::Plain);
        }
        let from = File::open(&source)?;
        self.file(file)?;
        let wrong = self.write_by(file, offset, bytes, |worker, content| {
            let to = worker.file(file)?;
            match operation {
                Operation::CopyRange => system::copy_range(&from, to, offset, content.len()),
                _ => system::send(&from, to, offset, content.len()),
            }
        })?;
        if self.random.one_in(2) {
            std::fs::remove_file(source)?;
        }
        Ok(wrong)
    }
}
