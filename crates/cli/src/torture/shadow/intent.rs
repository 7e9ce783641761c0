//! The change that a worker is making: noted before it, so that after a kill it is known what may
//! or may not have happened.

use super::verify::difference;
use super::{COMMON, Change, OWN, Role, Shadow};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of an intent on file.
pub(super) const INTENT_BYTES: usize = 40;

/// A change that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) file: u64,
    pub(super) change: Change,
    /// It succeeded; only the shadow may not have it yet.
    pub(super) acknowledged: bool,
}

impl Intent {
    pub(super) fn encode(self) -> [u8; INTENT_BYTES] {
        let Intent { file, change, acknowledged } = self;
        let (kind, a, b, c) = match change {
            Change::Write { offset, bytes, version } => (1, offset, bytes, version),
            Change::Truncate { size } => (2, size, 0, 0),
            Change::Remove => (3, 0, 0, 0),
            Change::Punch { offset, bytes } => (4, offset, bytes, 0),
            Change::Replace { bytes, version } => (5, 0, bytes, version),
        };
        let words = [kind | u64::from(acknowledged) << 8, file, a, b, c];
        let mut bytes = [0; INTENT_BYTES];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None`: nothing is noted there.
    pub(super) fn decode(bytes: &[u8; INTENT_BYTES]) -> Option<Intent> {
        let word = |at: usize| {
            bytes[at * 8..at * 8 + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let change = match word(0) & 0xff {
            1 => Change::Write { offset: word(2), bytes: word(3), version: word(4) },
            2 => Change::Truncate { size: word(2) },
            3 => Change::Remove,
            4 => Change::Punch { offset: word(2), bytes: word(3) },
            5 => Change::Replace { bytes: word(3), version: word(4) },
            _ => return None,
        };
        Some(Intent { file: word(1), change, acknowledged: word(0) >> 8 != 0 })
    }
}

impl Shadow {
    /// To be called before a change: from now on either is right.
    pub fn begin(&self, file: u64, change: Change) -> io::Result<()> {
        let intent = Intent { file, change, acknowledged: false };
        let since = &self.since[file as usize];
        since.write_all_at(&intent.encode(), since.metadata()?.len())?;
        self.note(Some(intent))
    }

    /// The change succeeded: from now on only the new is right.
    pub fn acknowledge(&self, file: u64, change: Change) -> io::Result<()> {
        let intent = Intent { file, change, acknowledged: true };
        self.note(Some(intent))?;
        self.apply(intent)?;
        match change {
            // Names are not buffered.
            Change::Remove => self.told_synced(file)?,
            Change::Replace { bytes, version } => self.replaced(file, bytes, version)?,
            _ => {}
        }
        self.note(None)
    }

    /// The file that lies there now was empty when it was safe, and has been written since.
    pub(super) fn replaced(&self, file: u64, bytes: u64, version: u64) -> io::Result<()> {
        let fresh = self.folder.join("synced-new");
        File::create(&fresh)?;
        // In this order: what is noted longer than needed explains more, not less.
        std::fs::rename(fresh, self.folder.join(format!("synced-{file}")))?;
        File::create(self.told(file))?;
        let change = Change::Write { offset: 0, bytes, version };
        let intent = Intent { file, change, acknowledged: false };
        let since = &self.since[file as usize];
        since.write_all_at(&intent.encode(), 0)?;
        since.set_len(INTENT_BYTES as u64)
    }

    /// The cut, or the hole, that was begun last and may or may not have happened.
    pub fn unfinished_cut(&self) -> io::Result<Option<(u64, Change)>> {
        let found = self.noted()?.filter(|intent| !intent.acknowledged);
        let is_cut = |change| matches!(change, Change::Truncate { .. } | Change::Punch { .. });
        Ok(found.map(|intent| (intent.file, intent.change)).filter(|(_, change)| is_cut(*change)))
    }

    /// What was being done when memory was lost needs no resolving any more.
    pub fn forget_intent(&self) -> io::Result<()> {
        self.note(None)
    }

    /// Resolves what was begun and may or may not have happened, by looking at the file.
    ///
    /// Returns what is wrong with it, if anything.
    pub fn resolve(&self) -> io::Result<Option<String>> {
        self.resolve_names()?;
        self.resolve_change()
    }

    /// The same in the middle of an operation, whose other names of the file stay: it goes on with
    /// them.
    pub fn resolve_change(&self) -> io::Result<Option<String>> {
        let Some(intent) = self.noted()? else { return Ok(None) };
        if intent.acknowledged {
            self.apply(intent)?;
        } else if let Some(wrong) = self.adopt(intent)? {
            return Ok(Some(wrong));
        }
        self.note(None)?;
        Ok(None)
    }

    /// Ends renames that were interrupted, and removes what has no name that stays.
    pub fn resolve_names(&self) -> io::Result<()> {
        for file in 0..OWN {
            let path = self.path(file);
            for role in [Role::Moved, Role::Link] {
                let other = self.other_path(role, file);
                if other.exists() && !path.exists() {
                    std::fs::rename(&other, &path)?;
                }
            }
            for role in [Role::Link, Role::New, Role::Gone, Role::Source] {
                match std::fs::remove_file(self.other_path(role, file)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Takes over what the file holds, if that is explained by the change or its absence.
    pub(super) fn adopt(&self, intent: Intent) -> io::Result<Option<String>> {
        let Intent { file, change, .. } = intent;
        let shadow = &self.shadows[file as usize];
        let old_size = self.size(file)?;
        let found = match File::open(self.path(file)) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let size = match &found {
            Some(found) => found.metadata()?.len(),
            None => 0,
        };
        let wrong = |what: String| {
            Ok(Some(format!("{}: {what} after {change:?}", self.path(file).display())))
        };
        match change {
            Change::Write { offset, bytes, version } => {
                let most = old_size.max(offset + bytes);
                let size = if file == COMMON { most } else { size };
                if size < old_size || size > most {
                    return wrong(format!("{size} bytes instead of {old_size} to {most}"));
                }
                let Some(found) = found else { return Ok(None) };
                let length = size.min(offset + bytes).saturating_sub(offset) as usize;
                let (mut got, mut old) = (vec![0; length], vec![0; length]);
                self.read(file, &found, &mut got, offset)?;
                let known = old_size.saturating_sub(offset).min(length as u64) as usize;
                shadow.read_exact_at(&mut old[..known], offset)?;
                let new = self.bytes(file, version, offset, length);
                if let Some(at) = (0..length).find(|&at| got[at] != old[at] && got[at] != new[at]) {
                    return wrong(format!("byte {} is neither old nor new", offset + at as u64));
                }
                shadow.set_len(size)?;
                shadow.write_all_at(&got, offset)?;
            }
            Change::Truncate { size: new } => {
                if size != old_size && size != new {
                    return wrong(format!("{size} bytes instead of {old_size} or {new}"));
                }
                shadow.set_len(size)?;
            }
            Change::Remove => {
                if size != old_size && found.is_some() {
                    return wrong(format!("{size} bytes instead of {old_size} or none"));
                }
                shadow.set_len(size)?;
            }
            Change::Punch { offset, bytes } => {
                if size != old_size {
                    return wrong(format!("{size} bytes instead of {old_size}"));
                }
                let Some(found) = found else { return Ok(None) };
                let length = size.min(offset + bytes).saturating_sub(offset) as usize;
                let (mut got, mut old) = (vec![0; length], vec![0; length]);
                self.read(file, &found, &mut got, offset)?;
                shadow.read_exact_at(&mut old, offset)?;
                if let Some(at) = (0..length).find(|&at| got[at] != old[at] && got[at] != 0) {
                    return wrong(format!("byte {} is neither old nor zero", offset + at as u64));
                }
                shadow.write_all_at(&got, offset)?;
            }
            Change::Replace { bytes, version } => {
                let mut got = vec![0; size as usize];
                if let Some(found) = found {
                    self.read(file, &found, &mut got, 0)?;
                }
                let mut old = vec![0; old_size as usize];
                shadow.read_exact_at(&mut old, 0)?;
                let new = self.bytes(file, version, 0, bytes as usize);
                if got == new {
                    self.apply(intent)?;
                    self.replaced(file, bytes, version)?;
                } else if let Some(what) = difference(&got, &old) {
                    return wrong(format!("{size} bytes, neither new nor old: {what}"));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn apply(&self, intent: Intent) -> io::Result<()> {
        let shadow = &self.shadows[intent.file as usize];
        match intent.change {
            Change::Write { offset, bytes, version } => shadow
                .write_all_at(&self.bytes(intent.file, version, offset, bytes as usize), offset),
            Change::Truncate { size } => shadow.set_len(size),
            Change::Remove => shadow.set_len(0),
            Change::Punch { offset, bytes } => {
                let end = shadow.metadata()?.len().min(offset + bytes);
                shadow.write_all_at(&vec![0; end.saturating_sub(offset) as usize], offset)
            }
            Change::Replace { bytes, version } => {
                let bytes = self.bytes(intent.file, version, 0, bytes as usize);
                shadow.write_all_at(&bytes, 0)?;
                shadow.set_len(bytes.len() as u64)
            }
        }
    }

    pub(super) fn note(&self, intent: Option<Intent>) -> io::Result<()> {
        let bytes = intent.map_or([0; INTENT_BYTES], Intent::encode);
        self.intent.write_all_at(&bytes, 0)
    }

    pub(super) fn noted(&self) -> io::Result<Option<Intent>> {
        let mut bytes = [0; INTENT_BYTES];
        if self.intent.read_at(&mut bytes, 0)? < INTENT_BYTES {
            return Ok(None);
        }
        Ok(Intent::decode(&bytes))
    }
}
