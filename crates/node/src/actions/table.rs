//! The table of runs: a private file in the instance's folder, one run in a line as JSON, replaced
//! as a whole. It is written by the node manager, and read by its successor and by commands.
//!
//! Not synced: after a loss of power the pool is gone as well, and recovery drains everything.

use crate::config::read_up_to;
use crate::instance::runtime::{Runtime, replace_private};
use forebay_pool::FileId;
use forebay_pool::private::{self, Wrong};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// More than the runs that a manager keeps take with the longest paths.
const TABLE_MAX: u64 = 64 << 20;

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It has not begun.
    Waiting,
    /// Its command runs.
    Running,
    /// Its command has exited 0 and its result is on the store; what it said of the file is carried
    /// out as soon as no process has the file open.
    Deciding,
    /// It has ended as it should.
    Done,
    /// The same, and the file was removed instead of being drained.
    Dropped,
    /// Its file is none that the operation is done on: why is what it said.
    Refused,
    /// Its command failed, or could not be started.
    Failed,
    /// It took too long.
    TimedOut,
    /// It was killed, or never begun, as the node manager ended, or its file went away.
    Stopped,
}

impl RunState {
    /// All, with their names.
    pub const ALL: [(&'static str, RunState); 9] = [
        ("waiting", RunState::Waiting),
        ("running", RunState::Running),
        ("deciding", RunState::Deciding),
        ("done", RunState::Done),
        ("dropped", RunState::Dropped),
        ("refused", RunState::Refused),
        ("failed", RunState::Failed),
        ("timed out", RunState::TimedOut),
        ("stopped", RunState::Stopped),
    ];

    /// Whether nothing follows.
    pub fn is_end(self) -> bool {
        !matches!(self, RunState::Waiting | RunState::Running | RunState::Deciding)
    }

    /// Whether it has not ended as it should.
    pub fn has_failed(self) -> bool {
        matches!(self, RunState::Failed | RunState::TimedOut | RunState::Stopped)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, state)| *state == self).map_or("", |(name, _)| name)
    }
}

/// One run of an action on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Tells it from all others of the instance.
    pub id: u64,
    /// The name of the action.
    pub action: String,
    /// What kind of action that is.
    pub kind: String,
    /// Where the file was when it was noted.
    pub path: PathBuf,
    /// Which step, if it is one of a series.
    pub step: Option<u64>,
    /// How it stands.
    pub state: RunState,
    /// The file's record, as a number.
    pub file: u32,
    /// The generation of the record.
    pub generation: u32,
    /// Identity of the file: device.
    pub device: u64,
    /// Identity of the file: inode.
    pub inode: u64,
    /// The file's drain waits for its end.
    pub holds: bool,
    /// Other steps or closes that it stands for.
    pub merged: u32,
    /// Where its result is before it has its name.
    pub temporary: Option<PathBuf>,
    /// When it was noted, began and ended: milliseconds since 1970, or 0.
    pub noted_ms: u64,
    /// See `noted_ms`.
    pub began_ms: u64,
    /// See `noted_ms`.
    pub ended_ms: u64,
    /// Its result, once that is durably on the store.
    pub result: Option<PathBuf>,
    /// What is to be said of it.
    pub said: String,
}

impl Entry {
    /// Whether it is of this file.
    pub(crate) fn is_of(&self, file: FileId, generation: u32) -> bool {
        self.file == file.raw() && self.generation == generation
    }

    fn line(&self) -> String {
        // Paths may be no UTF-8.
        let path = |path: &PathBuf| match path.to_str() {
            Some(text) => Value::from(text),
            None => Value::from(path.as_os_str().as_bytes()),
        };
        json!({
            "id": self.id, "action": self.action, "kind": self.kind, "path": path(&self.path),
            "step": self.step, "state": self.state.name(), "file": self.file,
            "generation": self.generation, "device": self.device, "inode": self.inode,
            "holds": self.holds, "merged": self.merged,
            "temporary": self.temporary.as_ref().map(path),
            "noted_ms": self.noted_ms, "began_ms": self.began_ms, "ended_ms": self.ended_ms,
            "result": self.result.as_ref().map(path), "said": self.said,
        })
        .to_string()
    }

    fn of(line: &str) -> Option<Entry> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |key: &str| value[key].as_u64();
        let small = |key: &str| u32::try_from(number(key)?).ok();
        let text = |key: &str| Some(value[key].as_str()?.to_owned());
        let path = |key: &str| {
            if let Some(text) = value[key].as_str() {
                return Some(PathBuf::from(text));
            }
            let bytes = value[key].as_array()?.iter();
            let byte = |byte: &Value| u8::try_from(byte.as_u64()?).ok();
            Some(PathBuf::from(OsString::from_vec(bytes.map(byte).collect::<Option<_>>()?)))
        };
        let state = value["state"].as_str()?;
        Some(Entry {
            id: number("id")?,
            action: text("action")?,
            kind: text("kind")?,
            path: path("path")?,
            step: number("step"),
            state: RunState::ALL.into_iter().find(|(name, _)| *name == state)?.1,
            file: small("file")?,
            generation: small("generation")?,
            device: number("device")?,
            inode: number("inode")?,
            holds: value["holds"].as_bool()?,
            merged: small("merged")?,
            temporary: path("temporary"),
            noted_ms: number("noted_ms")?,
            began_ms: number("began_ms")?,
            ended_ms: number("ended_ms")?,
            result: path("result"),
            said: text("said")?,
        })
    }
}

/// All runs of an instance that are known, the oldest first; none where there is no table, or none
/// that is this user's alone.
pub fn read(runtime: &Runtime) -> Vec<Entry> {
    // One that is replaced between open and look has no name any more, which is refused.
    const TRIES: usize = 100;
    let open = || private::open(&runtime.actions(), OFlags::RDONLY);
    let tries = std::iter::repeat_with(open).take(TRIES);
    let mut opened = tries.skip_while(|file| matches!(file, Err(Wrong::Links(0))));
    let file = opened.next().and_then(Result::ok).map(File::from);
    let text = file.and_then(|file| read_up_to(TABLE_MAX, file).ok()?);
    let text = text.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default();
    let mut all: Vec<Entry> = text.lines().filter_map(Entry::of).collect();
    all.sort_by_key(|entry| entry.id);
    all
}

/// Replaces the table.
pub(super) fn write<'e>(
    runtime: &Runtime,
    entries: impl Iterator<Item = &'e Entry>,
) -> io::Result<()> {
    let mut text = String::new();
    for entry in entries {
        text += &entry.line();
        text.push('\n');
    }
    replace_private(&runtime.actions(), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let entry = Entry {
            id: 7,
            action: "index".to_owned(),
            kind: "analysis".to_owned(),
            path: PathBuf::from(OsString::from_vec(b"/store/\xff\"\n".to_vec())),
            step: Some(3),
            state: RunState::TimedOut,
            file: 1,
            generation: 2,
            device: u64::MAX,
            inode: 4,
            holds: true,
            merged: 5,
            temporary: Some(PathBuf::from("/t")),
            noted_ms: 6,
            began_ms: 7,
            ended_ms: 8,
            result: None,
            said: "two\nlines".to_owned(),
        };
        assert_eq!(entry.line().lines().count(), 1);
        assert_eq!(Entry::of(&entry.line()), Some(entry.clone()));
        assert_eq!(Entry::of("{}"), None);
        for (name, state) in RunState::ALL {
            assert_eq!(state.name(), name);
            let one = Entry { state, ..entry.clone() };
            assert_eq!(Entry::of(&one.line()), Some(one));
        }
    }
}
