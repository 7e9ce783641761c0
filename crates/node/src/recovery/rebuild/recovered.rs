//! What an instance without segment left on its file tiers: the bytes that were found, what is
//! known of their files, and what is lost.

use crate::journal::contents::Change;
use crate::journal::record::FileIdentity;
use crate::store::beneath::Known;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Lost ranges that are named; the others are counted.
const NAMED_MAX: usize = 100;

/// Bytes of a file that a slot has and the store has not, and whose checksums are right.
pub(super) struct SlotPiece {
    /// When the slot's record was written.
    pub sequence: u64,
    pub file: FileIdentity,
    /// Where in the file they belong.
    pub offset: u64,
    /// How many; never behind the end that the file had.
    pub bytes: u64,
    /// The tier's slots, and where in them the bytes are.
    pub source: Rc<File>,
    pub at: u64,
}

impl SlotPiece {
    /// The bytes.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes as usize];
        self.source.read_exact_at(&mut bytes, self.at)?;
        Ok(bytes)
    }
}

/// Something to be done to a file again.
pub(super) enum Step<'a> {
    Slot(SlotPiece),
    Log(&'a Change),
}

impl Step<'_> {
    /// The bytes that it brings.
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Step::Slot(piece) => Some(piece.offset..piece.offset + piece.bytes),
            Step::Log(Change::Data { offset, bytes, .. }) => {
                Some(*offset..offset.saturating_add(bytes.len() as u64))
            }
            Step::Log(_) => None,
        }
    }
}

/// Bytes that are not to be had any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// The file, if it is one of the store.
    pub file: Option<FileIdentity>,
    /// Its path, or what of a tier is damaged.
    pub what: String,
    pub range: Option<Range<u64>>,
    pub why: String,
}

/// What is known of a file beside its bytes.
pub(super) struct FileHint {
    pub path: PathBuf,
    pub store: usize,
    pub mtime_ns: u64,
    pub sequence: u64,
    /// See [`Known`].
    pub handle: u32,
}

impl FileHint {
    /// What the file's store is asked for.
    pub fn known(&self, key: FileIdentity) -> Known {
        let FileIdentity { device, inode, born_ns } = key;
        Known { device, inode, born_ns, handle: self.handle }
    }
}

/// What an instance's file tiers hold.
#[derive(Default)]
pub(super) struct RecoveredData {
    /// By ascending sequence.
    pub pieces: Vec<SlotPiece>,
    pub files: HashMap<FileIdentity, FileHint>,
    pub lost: Vec<Lost>,
    /// What the journal has of some file was brought nowhere.
    pub needs_journal: bool,
}

impl RecoveredData {
    /// Adds a piece, to the one before it if it continues that.
    pub fn add(&mut self, piece: SlotPiece) {
        if let Some(last) = self.pieces.last_mut()
            && (last.file, last.sequence) == (piece.file, piece.sequence)
            && last.offset + last.bytes == piece.offset
            && last.at + last.bytes == piece.at
        {
            last.bytes += piece.bytes;
        } else {
            self.pieces.push(piece);
        }
    }

    /// A range of a file is lost.
    pub fn lose(&mut self, file: FileIdentity, what: &str, range: Range<u64>, why: String) {
        if let Some(last) = self.lost.last_mut()
            && last.file == Some(file)
            && last.why == why
            && let Some(lost) = &mut last.range
            && lost.end == range.start
        {
            lost.end = range.end;
        } else {
            let (file, what) = (Some(file), what.to_owned());
            self.lost.push(Lost { file, what, range: Some(range), why });
        }
    }

    /// Something of a tier is lost, of which file is not known.
    pub fn lose_unknown(&mut self, what: &Path, why: String) {
        let what = what.display().to_string();
        self.lost.push(Lost { file: None, what, range: None, why });
    }

    /// Nothing of a file can be brought anywhere, for this reason.
    pub fn lose_all(
        &mut self,
        key: FileIdentity,
        hint: &FileHint,
        steps: &[(u64, Step<'_>)],
        why: &str,
    ) {
        let name = hint.path.display().to_string();
        for (_, step) in steps {
            self.needs_journal |= matches!(step, Step::Log(_));
            let Some(range) = step.range() else { continue };
            let (file, what, why) = (Some(key), name.clone(), why.to_owned());
            self.lost.push(Lost { file, what, range: Some(range), why });
        }
    }

    /// What is lost, for people.
    pub fn describe_lost(&self) -> String {
        let mut text = String::new();
        for lost in self.lost.iter().take(NAMED_MAX) {
            let _ = match &lost.range {
                Some(Range { start, end }) => {
                    write!(text, "\n  {}: bytes {start}..{end}: {}", lost.what, lost.why)
                }
                None => write!(text, "\n  {}: {}", lost.what, lost.why),
            };
        }
        if self.lost.len() > NAMED_MAX {
            let _ = write!(text, "\n  and {} more", self.lost.len() - NAMED_MAX);
        }
        text
    }
}
