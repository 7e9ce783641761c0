//! Operations with names: files renamed, replaced, linked, removed, and used without a name.

use super::super::hits::Call;
use super::super::operations::Operation;
use super::super::orphan::Orphan;
use super::super::shadow::{Change, Role};
use super::{Found, Worker};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

impl Worker {
    pub(super) fn rename(&mut self, file: u64) -> Found {
        self.note(Operation::Rename, file, "")?;
        let (path, other) = (self.shadow.path(file), self.shadow.other_path(Role::Moved, file));
        if path.exists() {
            self.calls("the rename");
            std::fs::rename(&path, &other)?;
            self.calls("the rename back");
            std::fs::rename(&other, &path)?;
        }
        Ok(None)
    }

    pub(super) fn replace(&mut self, file: u64, bytes: u64) -> Found {
        let is_synced = self.random.one_in(2);
        self.note(Operation::Replace, file, &format!("{bytes}, synced: {is_synced}"))?;
        let old = self.orphan_of(file)?;
        let version = self.counts.operations;
        let content = self.shadow.bytes(file, version, 0, bytes as usize);
        let fresh = self.shadow.other_path(Role::New, file);
        let mut made = File::create(&fresh)?;
        let mut written = made.write_all(&content);
        let mut synced = false;
        if written.is_ok() && is_synced {
            match made.sync_all() {
                Ok(()) => synced = true,
                Err(error) => written = self.excused(file, error, Call::Sync).map(drop),
            }
        }
        if let Err(error) = written {
            drop(made);
            std::fs::remove_file(&fresh)?;
            return self.excused(file, error, Call::Plain);
        }
        self.open[file as usize] = [None, None];
        let path = self.shadow.path(file);
        let wrong = self.change(file, Change::Replace { bytes, version }, |_| {
            std::fs::rename(&fresh, &path).map(|()| bytes)
        })?;
        if synced && wrong.is_none() {
            self.shadow.told_synced(file)?;
        }
        self.orphan = Some(old);
        self.look_at_orphan().map(|other| wrong.or(other))
    }

    /// The file as processes see it that have it open, whatever happens to its name.
    pub(super) fn orphan_of(&mut self, file: u64) -> io::Result<Orphan> {
        let opened = self.file(file)?.try_clone()?;
        let since = self.excused_from(file);
        Ok(Orphan::of(opened, self.shadow.whole(file)?, since))
    }

    pub(super) fn link(&mut self, file: u64, offset: u64, bytes: u64) -> Found {
        self.note(Operation::Link, file, &format!("{bytes} at {offset}"))?;
        let (path, link) = (self.shadow.path(file), self.shadow.other_path(Role::Link, file));
        self.file(file)?;
        self.calls("the link");
        std::fs::hard_link(&path, &link)?;
        self.calls("the open of the link");
        let opened = Worker::options().open(&link)?;
        self.calls("the write");
        let wrong = self.write_by(file, offset, bytes, |_, content| {
            opened.write_at(content, offset).map(|written| written as u64)
        })?;
        if self.random.one_in(2) {
            self.calls("the removal of the link");
            std::fs::remove_file(&link)?;
        } else {
            self.calls("the removal of the first name");
            std::fs::remove_file(&path)?;
            self.calls("the rename to the first name");
            std::fs::rename(&link, &path)?;
        }
        self.calls("verifying");
        match wrong {
            None => self.verify(file),
            wrong => Ok(wrong),
        }
    }

    pub(super) fn remove(&mut self, file: u64) -> Found {
        self.note(Operation::Unlink, file, "")?;
        // What is unlinked lives on for processes that have it open.
        let old = match self.random.one_in(2) && self.shadow.path(file).exists() {
            true => Some(self.orphan_of(file)?),
            false => None,
        };
        self.open[file as usize] = [None, None];
        let path = self.shadow.path(file);
        let wrong = self.change(file, Change::Remove, |_| match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(0),
        })?;
        if old.is_some() {
            self.orphan = old;
        }
        self.look_at_orphan().map(|other| wrong.or(other))
    }

    pub(super) fn look_at_orphan(&mut self) -> Found {
        let Some(orphan) = &self.orphan else { return Ok(None) };
        let (bytes, wrong) = orphan.verify()?;
        self.counts.verified += bytes;
        Ok(wrong.map(|what| format!("worker {}: a file without a name: {what}", self.number)))
    }

    pub(super) fn without_name(&mut self, file: u64, bytes: u64) -> Found {
        let version = self.counts.operations;
        self.history.note(version + self.life, Operation::Orphan, "-", &format!("{bytes}"))?;
        let content = self.shadow.bytes(200, version, 0, bytes as usize);
        let path = self.shadow.other_path(Role::Gone, file);
        // It was never safe since.
        let since = self.orphan.as_ref().map_or(self.began, Orphan::since);
        let (call, done) = match self.orphan.take() {
            None => (Call::Plain, Orphan::make(&path, content).map(Some)),
            Some(orphan) => orphan.step(&mut self.random, content),
        };
        match done {
            Ok(orphan) => self.orphan = orphan,
            // Whatever has come of it is gone with it.
            Err(error) => {
                let _ = std::fs::remove_file(path);
                return self.excused_since(since, error, call);
            }
        }
        self.look_at_orphan()
    }
}
