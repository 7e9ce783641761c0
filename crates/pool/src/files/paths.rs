//! The paths that file records keep: hints, by which a file is found that no process has open, and
//! named to people. Identity decides.
//!
//! They are kept relative to the store's directory, most of them in the record. Longer ones lie in
//! one of two tables with a place for each record, which have memory only where they are used.

use crate::FileId;
use crate::layout::{FileRecord, LONGER_PATH_BYTES, PATH_BYTES, SHORT_PATH_BYTES};
use crate::segment::Segment;
use crate::sync::Ordering;
use core::ffi::CStr;
use core::sync::atomic::AtomicU8;

impl Segment {
    /// The path by which the file of a record of this segment was opened; empty if that was too
    /// long to keep.
    pub fn path_of(&self, record: &FileRecord) -> Vec<u8> {
        let mut path = [0; PATH_BYTES + 1];
        self.copy_path(record, &mut path).map(CStr::to_bytes).unwrap_or_default().to_vec()
    }

    /// Copies the path to `to`, with a 0 behind it.
    pub fn copy_path<'a>(
        &self,
        record: &FileRecord,
        to: &'a mut [u8; PATH_BYTES + 1],
    ) -> Option<&'a CStr> {
        let kept = self.kept_path(record);
        let is_absolute = kept.first().is_none_or(|byte| byte.load(Ordering::Relaxed) == b'/');
        let root = if is_absolute { &[][..] } else { self.root_of(record) };
        let from = root.len() + usize::from(!is_absolute);
        let whole = to.get_mut(..from + kept.len()).filter(|whole| whole.len() <= PATH_BYTES)?;
        whole[..root.len()].copy_from_slice(root);
        whole[root.len()..from].fill(b'/');
        for (place, byte) in whole[from..].iter_mut().zip(kept) {
            *place = byte.load(Ordering::Relaxed);
        }
        to[from + kept.len()] = 0;
        CStr::from_bytes_until_nul(to).ok()
    }

    /// Keeps `path`, which is absolute, if it fits and there is memory for it; no path
    /// otherwise.
    pub fn set_path(&self, record: &FileRecord, path: &[u8]) {
        record.path_length.store(0, Ordering::Release);
        let kept = self.beneath_root(record, path);
        let fits = path.starts_with(b"/") && path.len() <= PATH_BYTES;
        if !fits || !self.has_memory_for(record, kept.len()) {
            return;
        }
        for (place, &byte) in self.place_of_path(record, kept.len()).iter().zip(kept) {
            place.store(byte, Ordering::Relaxed);
        }
        record.path_length.store(kept.len() as u32, Ordering::Release);
    }

    /// Keeps `path` of a file that lies in another store now.
    pub fn move_path(&self, record: &FileRecord, store: u32, path: &[u8]) {
        // What is kept belongs to the old one.
        record.path_length.store(0, Ordering::Release);
        record.store.store(store, Ordering::Release);
        self.set_path(record, path);
    }

    /// Whether the file is known by `path`; never by one that is not absolute.
    pub fn has_path(&self, record: &FileRecord, path: &[u8]) -> bool {
        let (kept, wanted) = (self.kept_path(record), self.beneath_root(record, path));
        path.starts_with(b"/") && kept.len() == wanted.len() && is_text(kept, wanted)
    }

    /// Whether the last part of the path is `name`.
    pub fn is_called(&self, record: &FileRecord, name: &[u8]) -> bool {
        let kept = self.kept_path(record);
        let from = kept.len().checked_sub(name.len());
        let Some((folder, last)) = from.and_then(|from| kept.split_at_checked(from)) else {
            return false;
        };
        let begins = folder.last().is_none_or(|byte| byte.load(Ordering::Relaxed) == b'/');
        !name.is_empty() && !name.contains(&b'/') && begins && is_text(last, name)
    }

    /// Replaces the last part of the path, if that is `old`, by `new`; returns whether it was, and
    /// the path is the new one now.
    pub fn rename_last(&self, record: &FileRecord, old: &[u8], new: &[u8]) -> bool {
        if !self.is_called(record, old) {
            return false;
        }
        let mut path = [0; PATH_BYTES + 1];
        let Some(known) = self.copy_path(record, &mut path).map(|path| path.to_bytes().len())
        else {
            return false;
        };
        let folder = known - old.len();
        let Some(place) = path.get_mut(folder..folder + new.len()) else { return false };
        place.copy_from_slice(new);
        let renamed = &path[..folder + new.len()];
        self.set_path(record, renamed);
        self.has_path(record, renamed)
    }

    /// The directory of the store that the file lies in, without a `/` at its end.
    fn root_of(&self, record: &FileRecord) -> &[u8] {
        let number = record.store.load(Ordering::Acquire) as usize;
        let Some(store) = self.header().store.get(number) else { return &[] };
        let path = CStr::from_bytes_until_nul(&store.path).unwrap_or_default().to_bytes();
        path.strip_suffix(b"/").unwrap_or(path)
    }

    /// What of `path` is kept: all of one that does not lie beneath the store's directory.
    fn beneath_root<'p>(&self, record: &FileRecord, path: &'p [u8]) -> &'p [u8] {
        let beneath =
            path.strip_prefix(self.root_of(record)).and_then(|rest| rest.strip_prefix(b"/"));
        // One with two slashes in a row is not canonical.
        beneath.filter(|rest| !rest.starts_with(b"/")).unwrap_or(path)
    }

    fn kept_path<'a>(&'a self, record: &'a FileRecord) -> &'a [AtomicU8] {
        let length = record.path_length.load(Ordering::Acquire) as usize;
        self.place_of_path(record, length).get(..length).unwrap_or_default()
    }

    /// Where a path of `length` bytes is kept.
    fn place_of_path<'a>(&'a self, record: &'a FileRecord, length: usize) -> &'a [AtomicU8] {
        const LONGER: usize = SHORT_PATH_BYTES + 1;
        let number = self.number_of(record).raw();
        match length {
            0..=SHORT_PATH_BYTES => &record.path,
            LONGER..=LONGER_PATH_BYTES => self.longer_path(number),
            _ => self.longest_path(number),
        }
    }

    /// Whether a path of `length` bytes can be kept: a store to memory that there is not, because
    /// /dev/shm is full, would end the process.
    fn has_memory_for(&self, record: &FileRecord, length: usize) -> bool {
        length <= SHORT_PATH_BYTES || self.populate_path(self.place_of_path(record, length))
    }

    fn number_of(&self, record: &FileRecord) -> FileId {
        let at = core::ptr::from_ref(record).addr() - self.files().records.as_ptr().addr();
        FileId::from_raw((at / size_of::<FileRecord>()) as u32)
    }
}

fn is_text(kept: &[AtomicU8], text: &[u8]) -> bool {
    kept.iter().map(|byte| byte.load(Ordering::Relaxed)).eq(text.iter().copied())
}
