//! What the indexes of a container say: of the writer that this process is, and of all others.

use super::files::{Folder, Handle, Lock, RecordFile};
use super::index::{self, Entry, Found, Kind, SLOT};
use super::space::{Space, rounded};
use core::ffi::c_int;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A version of a record, and the slot that says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub entry: Entry,
    pub slot: u32,
    /// It was written since the container was opened, so its bytes are what they were then.
    pub is_trusted: bool,
    /// A sync was told to be done: it goes only when a later version is as safe.
    pub is_synced: bool,
}

/// What a writer's index says.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The versions of each record that are whole, the latest last.
    pub versions: BTreeMap<u64, Vec<Version>>,
    /// Records that were not written to their end, and the version that was begun; 0 where the
    /// slot does not say.
    pub torn: BTreeMap<u64, u64>,
    /// What each slot held when the index was read: its record, and what is known of that unless
    /// the slot is torn.
    slots: BTreeMap<u32, (u64, Option<Entry>)>,
    /// Of these, the slots that say of a record that it was not written to its end.
    attempts: BTreeMap<u64, Vec<u32>>,
}

impl Known {
    /// Reads an index.
    fn read(file: &RecordFile) -> Result<Known, c_int> {
        let mut known = Known::default();
        let size = file.size()?;
        let mut part = vec![0u8; (1usize << 16).min(size as usize)];
        let mut at = 0u64;
        while at < size && !part.is_empty() {
            let bytes = part.len().min((size - at) as usize);
            let Some(part) = part.get_mut(..bytes) else { break };
            file.read_part(part, at)?;
            for (number, slot) in part.as_chunks::<SLOT>().0.iter().enumerate() {
                let number = (at / SLOT as u64) as u32 + number as u32;
                if number > 0 {
                    known.add(number, index::found(slot));
                }
            }
            at += bytes as u64;
        }
        known.versions.values_mut().for_each(|versions| versions.sort_by_key(|v| v.entry.version));
        Ok(known)
    }

    /// Adds records that an earlier pass over the index has seen, and this one has not.
    fn keep(&mut self, earlier: Known) {
        for (id, versions) in earlier.versions {
            self.versions.entry(id).or_insert(versions);
        }
    }

    fn add(&mut self, slot: u32, found: Found) {
        let (id, entry) = match found {
            Found::Empty => return,
            Found::Torn(id) => {
                self.torn.entry(id).or_insert(0);
                (id, None)
            }
            Found::Entry(entry) if entry.kind == Kind::Begun => {
                let version = self.torn.entry(entry.id).or_insert(0);
                *version = entry.version.max(*version);
                (entry.id, Some(entry))
            }
            Found::Entry(entry) => {
                let version = Version { entry, slot, is_trusted: false, is_synced: true };
                self.versions.entry(entry.id).or_default().push(version);
                (entry.id, Some(entry))
            }
        };
        if entry.is_none_or(|entry| entry.kind == Kind::Begun) {
            self.attempts.entry(id).or_default().push(slot);
        }
        self.slots.insert(slot, (id, entry));
    }
}

/// Another writer, of this process, another one, or one that has ended.
#[derive(Debug)]
pub(crate) struct Peer {
    index: Arc<RecordFile>,
    /// Opened with the first record that is read of it.
    data: Option<Arc<RecordFile>>,
    changes: u64,
    pub known: Known,
    /// A process writes as it: what is begun may become whole.
    pub is_live: bool,
    /// Its index did not change while it was read: what is not in `known` is not there.
    pub is_settled: bool,
}

/// How often a look reads an index that changes meanwhile: beside a busy writer it changes in each
/// pass. Twice at least, and as often as this many bytes take.
const PASSES: core::ops::RangeInclusive<u64> = 2..=100;
const LOOK_BYTES: u64 = 1 << 20;

impl Peer {
    /// `None` if it has no index yet.
    pub fn open(session: Handle, folder: &Folder, number: u32) -> Option<Peer> {
        let path = folder.of(number, "index");
        let index = Arc::new(RecordFile::open(session, &path, libc::O_RDONLY).ok()?);
        let known = Known::default();
        Some(Peer { index, data: None, changes: 0, known, is_live: false, is_settled: false })
    }

    /// Looks whether its index has changed since, and reads it then.
    pub fn refresh(&mut self, folder: &Folder, number: u32) -> Result<(), c_int> {
        let mut earlier = None;
        let whole = LOOK_BYTES / self.index.size()?.max(1);
        let passes = whole.clamp(*PASSES.start(), *PASSES.end());
        for pass in 0..=passes {
            let mut head = [0; SLOT];
            self.index.read_part(&mut head, 0)?;
            let changes = index::changes(&head).unwrap_or(0);
            self.is_settled = changes == self.changes;
            if self.is_settled || pass == passes {
                break;
            }
            // A record may move to a slot that was read before, from one that is read later: then
            // the count was raised between the two.
            let now = Known::read(&self.index)?;
            let before = core::mem::replace(&mut self.known, now);
            earlier = (pass > 0).then_some(before);
            self.changes = changes;
        }
        if !self.is_settled
            && let Some(earlier) = earlier
        {
            // It was there when this look had begun; a reader looks at its sum.
            self.known.keep(earlier);
        }
        let is_open = !self.known.torn.is_empty();
        self.is_live = is_open && Lock::is_owned(&folder.of(number, "lock"));
        Ok(())
    }

    /// Its packed file.
    pub fn data(
        &mut self,
        session: Handle,
        folder: &Folder,
        number: u32,
    ) -> Result<Arc<RecordFile>, c_int> {
        if let Some(data) = &self.data {
            return Ok(Arc::clone(data));
        }
        let data = RecordFile::open(session, &folder.of(number, "data"), libc::O_RDONLY)?;
        Ok(Arc::clone(self.data.insert(Arc::new(data))))
    }

    /// Its index, to be synced without the lock of the container.
    pub fn index(&self) -> Arc<RecordFile> {
        Arc::clone(&self.index)
    }
}

/// What this container writes: its index, and what its files have room for.
#[derive(Debug)]
pub(crate) struct Mine {
    pub number: u32,
    index: Arc<RecordFile>,
    pub data: Arc<RecordFile>,
    pub known: Known,
    changes: u64,
    /// Slots below `slots` that hold nothing.
    free: BTreeSet<u32>,
    slots: u32,
    space: Space,
    /// The unit in which records of many bytes take room.
    unit: u64,
    next_file: u32,
    /// So many bytes of the index stay in RAM, or what else had to be is refused.
    pinned: u64,
    /// Versions that are being read, as record and number, and how often.
    uses: HashMap<(u64, u64), u32>,
    /// Those that have no slot any more, and whose room is free once they are not read.
    doomed: HashMap<(u64, u64), Entry>,
    /// Keeps others from writing as this writer.
    _lock: Lock,
}

/// Bytes of an index that are pinned at once: a block.
const PINNED: u64 = 256 << 10;
/// The most that is pinned: of 65,536 records.
const PINNED_MAX: u64 = 4 << 20;

/// The unit in which small records take room.
const PAGE: u64 = 4096;

impl Mine {
    /// Takes a writer's files over that no container uses, or makes new ones.
    pub fn open(session: Handle, folder: &Folder, unit: u64) -> Result<Mine, c_int> {
        let (number, lock, is_new) = Mine::lock(folder)?;
        let opened = Mine::open_as(session, folder, unit, (number, lock));
        if opened.is_err() && is_new {
            ["data", "index", "lock"]
                .iter()
                .for_each(|what| Folder::remove(&folder.of(number, what)));
        }
        opened
    }

    fn open_as(
        session: Handle,
        folder: &Folder,
        unit: u64,
        (number, lock): (u32, Lock),
    ) -> Result<Mine, c_int> {
        let flags = libc::O_CREAT | libc::O_RDWR;
        let data = RecordFile::open(session, &folder.of(number, "data"), flags)?;
        let index = RecordFile::open(session, &folder.of(number, "index"), flags)?;
        let known = Known::read(&index)?;
        let slots = (index.size()? / SLOT as u64).max(1) as u32;
        let entries = || known.slots.values().filter_map(|(_, entry)| *entry);
        let packed = entries().filter(|entry| entry.file == 0 && entry.kind != Kind::Dropped);
        let used = packed.map(|entry| (entry.offset, rounded(entry.bytes, PAGE))).collect();
        let mut head = [0; SLOT];
        index.read_part(&mut head, 0)?;
        let mut mine = Mine {
            number,
            changes: index::changes(&head).unwrap_or(0),
            free: (1..slots).filter(|slot| !known.slots.contains_key(slot)).collect(),
            slots,
            space: Space::around(used),
            unit: unit.max(PAGE),
            next_file: entries().map(|entry| entry.file).max().unwrap_or(0) + 1,
            pinned: 0,
            uses: HashMap::new(),
            doomed: HashMap::new(),
            index: Arc::new(index),
            data: Arc::new(data),
            known,
            _lock: lock,
        };
        // Before there are helpers: the first message to the manager makes the table of
        // descriptors larger, for which the kernel lets a process with several threads wait.
        mine.pin(0);
        mine.changed()?;
        Ok(mine)
    }

    /// A writer's number, its lock, and whether it is a new one.
    fn lock(folder: &Folder) -> Result<(u32, Lock, bool), c_int> {
        let there = folder.writers()?;
        for &number in &there {
            if let Ok(lock) = Lock::open(&folder.of(number, "lock"), false)
                && lock.try_own()
            {
                return Ok((number, lock, false));
            }
        }
        let mut number = there.last().map_or(0, |last| last + 1);
        loop {
            let path = folder.of(number, "lock");
            match Lock::open(&path, true) {
                // Another one may have found it, and be quicker.
                Ok(lock) if lock.try_own() => return Ok((number, lock, true)),
                Ok(_) | Err(rustix::io::Errno::EXIST) => number += 1,
                Err(errno) => return Err(super::files::io_error(errno, &path)),
            }
        }
    }

    /// Its index, to be synced without the lock of the container.
    pub fn index(&self) -> Arc<RecordFile> {
        Arc::clone(&self.index)
    }

    fn put(&self, slot: u32, bytes: &[u8; SLOT]) -> Result<(), c_int> {
        self.index.write_all(bytes, u64::from(slot) * SLOT as u64)
    }

    /// Keeps the index in RAM up to a byte: each record changes it four times, which is to cost
    /// copies in memory alone.
    fn pin(&mut self, at: u64) {
        while self.pinned <= at && self.pinned < PINNED_MAX {
            let is_pinned = self.index.pin(self.pinned, PINNED);
            self.pinned = if is_pinned { self.pinned + PINNED } else { u64::MAX };
        }
    }

    /// Fills an empty slot.
    fn fill(&mut self, slot: u32, bytes: &[u8; SLOT]) -> Result<(), c_int> {
        let (first, rest) = bytes.split_at(index::FIRST);
        let at = u64::from(slot) * SLOT as u64;
        self.pin(at);
        self.index.write_all(rest, at + index::FIRST as u64)?;
        self.index.write_all(first, at)
    }

    /// Empties a slot.
    fn empty(&self, slot: u32) -> Result<(), c_int> {
        self.index.write_all(&[0; index::FIRST], u64::from(slot) * SLOT as u64)
    }

    /// Tells other processes to look again.
    fn changed(&mut self) -> Result<(), c_int> {
        self.changes += 1;
        self.put(0, &index::head(self.changes))
    }

    /// Bytes that a record takes in the packed file, and where they may begin.
    fn extent(&self, bytes: u64) -> (u64, u64) {
        let unit = if bytes >= self.unit { self.unit } else { PAGE };
        (rounded(bytes, PAGE), unit)
    }

    /// Takes room for a record, and says in the index that it is begun.
    pub fn begin(&mut self, mut entry: Entry, is_packed: bool) -> Result<Version, c_int> {
        entry.kind = Kind::Begun;
        if is_packed {
            let (bytes, unit) = self.extent(entry.bytes);
            let taken = self.space.take(bytes, unit);
            entry.offset = taken.ok_or_else(|| {
                let text = format_args!("a record of {} bytes has no room in a file", entry.bytes);
                crate::report::fail(-libc::EFBIG, text)
            })?;
        } else {
            entry.file = self.next_file;
            self.next_file = self.next_file.wrapping_add(1).max(1);
        }
        let slot = self.free.pop_first().unwrap_or(self.slots);
        self.slots = self.slots.max(slot + 1);
        let version = Version { entry, slot, is_trusted: true, is_synced: false };
        match self.fill(slot, &entry.slot()) {
            Ok(()) => Ok(version),
            Err(code) => {
                self.empty_slot(&version);
                self.give_room(&version.entry);
                Err(code)
            }
        }
    }

    /// A record is whole: it is the one that is read from now on.
    pub fn complete(&mut self, mut version: Version, folder: &Folder) -> Result<Entry, c_int> {
        version.entry.kind = Kind::Whole;
        if let Err(code) = self.put(version.slot, &version.entry.slot()) {
            self.free(version, folder);
            return Err(code);
        }
        let id = version.entry.id;
        self.known.torn.remove(&id);
        // Before the earlier version is gone: other processes that miss it look again.
        let told = self.changed();
        let versions = self.known.versions.entry(id).or_default();
        let mut old = Vec::new();
        // A version that survives a loss of power stays until a later one does.
        versions.retain(|version| {
            if !version.is_synced {
                old.push(*version);
            }
            version.is_synced
        });
        versions.push(version);
        old.into_iter().for_each(|version| self.free(version, folder));
        self.forget_torn(id, folder);
        told.map(|()| version.entry)
    }

    /// Frees the slots of attempts at a record, which is whole now.
    fn forget_torn(&mut self, id: u64, folder: &Folder) {
        for slot in self.known.attempts.remove(&id).unwrap_or_default() {
            match self.known.slots.get(&slot) {
                Some(&(_, Some(entry))) => {
                    let is_trusted = false;
                    self.free(Version { entry, slot, is_trusted, is_synced: false }, folder);
                }
                // What it had taken was free when the files were opened.
                Some((_, None)) if self.empty(slot).is_ok() => {
                    self.known.slots.remove(&slot);
                    self.free.insert(slot);
                }
                _ => {}
            }
        }
    }

    /// Empties the slot of a version. Whether the index does not name it any more.
    fn empty_slot(&mut self, version: &Version) -> bool {
        let is_empty = self.empty(version.slot).is_ok();
        if is_empty {
            self.known.slots.remove(&version.slot);
            self.free.insert(version.slot);
        }
        is_empty || version.entry.kind == Kind::Begun
    }

    /// Gives the room of a version back.
    fn give_room(&mut self, entry: &Entry) {
        if entry.file == 0 && entry.kind != Kind::Dropped {
            let (bytes, _) = self.extent(entry.bytes);
            self.space.give(entry.offset, bytes);
        }
    }

    /// Frees what a version takes: its slot now, its bytes once no thread reads them.
    pub fn free(&mut self, version: Version, folder: &Folder) {
        if self.empty_slot(&version) {
            self.free_bytes(&version.entry, folder);
        }
    }

    fn free_bytes(&mut self, entry: &Entry, folder: &Folder) {
        let key = (entry.id, entry.version);
        if self.uses.contains_key(&key) {
            self.doomed.insert(key, *entry);
            return;
        }
        if entry.file != 0 {
            Folder::remove(&folder.record(self.number, entry.file));
        }
        self.give_room(entry);
    }

    /// Keeps the bytes of a version in place while they are read.
    pub fn hold(&mut self, entry: &Entry) {
        *self.uses.entry((entry.id, entry.version)).or_insert(0) += 1;
    }

    /// Ends that.
    pub fn release(&mut self, entry: &Entry, folder: &Folder) {
        let key = (entry.id, entry.version);
        let Some(uses) = self.uses.get_mut(&key) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&key);
            if let Some(entry) = self.doomed.remove(&key) {
                self.free_bytes(&entry, folder);
            }
        }
    }

    /// A version survives a loss of power: earlier ones are not needed any more.
    pub fn synced(&mut self, id: u64, number: u64, folder: &Folder) -> Result<(), c_int> {
        let mut old = Vec::new();
        for version in self.known.versions.get_mut(&id).into_iter().flatten() {
            version.is_synced |= version.entry.version == number;
        }
        if let Some(versions) = self.known.versions.get_mut(&id) {
            versions.retain(|version| {
                let is_old = version.entry.version < number;
                if is_old {
                    old.push(*version);
                }
                !is_old
            });
        }
        if old.is_empty() {
            return Ok(());
        }
        old.into_iter().for_each(|version| self.free(version, folder));
        self.changed()
    }

    /// A record is not needed any more. `by` says so of one that another writer has.
    pub fn forget(&mut self, id: u64, by: Option<Entry>, folder: &Folder) -> Result<(), c_int> {
        let mut old = self.known.versions.remove(&id).unwrap_or_default();
        old.retain(|version| self.empty_slot(version));
        self.known.torn.remove(&id);
        self.forget_torn(id, folder);
        if let Some(entry) = by {
            let slot = self.free.pop_first().unwrap_or(self.slots);
            self.slots = self.slots.max(slot + 1);
            self.fill(slot, &entry.slot())?;
            let version = Version { entry, slot, is_trusted: true, is_synced: true };
            self.known.versions.insert(id, vec![version]);
        }
        // Before the bytes are gone: other processes that miss them look again.
        let told = self.changed();
        old.iter().for_each(|version| self.free_bytes(&version.entry, folder));
        told
    }
}
