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
        self.slots.insert(slot, (id, entry));
    }
}

/// Another writer, of this process, another one, or one that has ended.
#[derive(Debug)]
pub(crate) struct Peer {
    index: RecordFile,
    /// Opened with the first record that is read of it.
    data: Option<Arc<RecordFile>>,
    changes: u64,
    pub known: Known,
    /// A process writes as it: what is begun may become whole.
    pub is_live: bool,
}

/// How often an index is read again that changes meanwhile.
const TRIES: u32 = 100;

impl Peer {
    /// `None` if it has no index yet.
    pub fn open(session: Handle, folder: &Folder, number: u32) -> Option<Peer> {
        let index = RecordFile::open(session, &folder.of(number, "index"), libc::O_RDONLY).ok()?;
        let known = Known::default();
        Some(Peer { index, data: None, changes: 0, known, is_live: false })
    }

    /// Looks whether its index has changed since, and reads it then.
    pub fn refresh(&mut self, folder: &Folder, number: u32) -> Result<(), c_int> {
        for _ in 0..TRIES {
            let mut head = [0; SLOT];
            self.index.read_part(&mut head, 0)?;
            let changes = index::changes(&head).unwrap_or(0);
            if changes == self.changes {
                break;
            }
            // A record may move to a slot that was read before, from one that is read later: then
            // the count was raised between the two.
            self.known = Known::read(&self.index)?;
            self.changes = changes;
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

    /// Brings its index to where it survives a loss of power.
    pub fn sync(&self, level: c_int, timeout_ms: i64) -> Result<(), c_int> {
        self.index.sync(level, timeout_ms)
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
    /// Slots whose records are being read, and how often.
    uses: HashMap<u32, u32>,
    /// Slots that are freed once their records are not read any more.
    doomed: BTreeMap<u32, Entry>,
    /// Keeps others from writing as this writer.
    _lock: Lock,
}

/// The unit in which small records take room.
const PAGE: u64 = 4096;

impl Mine {
    /// Takes a writer's files over that no container uses, or makes new ones.
    pub fn open(session: Handle, folder: &Folder, unit: u64) -> Result<Mine, c_int> {
        let (number, lock) = Mine::lock(folder)?;
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
            uses: HashMap::new(),
            doomed: BTreeMap::new(),
            index: Arc::new(index),
            data: Arc::new(data),
            known,
            _lock: lock,
        };
        mine.changed()?;
        Ok(mine)
    }

    fn lock(folder: &Folder) -> Result<(u32, Lock), c_int> {
        let there = folder.writers()?;
        for &number in &there {
            if let Ok(lock) = Lock::open(&folder.of(number, "lock"), false)
                && lock.try_own()
            {
                return Ok((number, lock));
            }
        }
        let mut number = there.last().map_or(0, |last| last + 1);
        loop {
            let path = folder.of(number, "lock");
            match Lock::open(&path, true) {
                // Another one may have found it, and be quicker.
                Ok(lock) if lock.try_own() => return Ok((number, lock)),
                Ok(_) | Err(rustix::io::Errno::EXIST) => number += 1,
                Err(errno) => {
                    let errno = -errno.raw_os_error();
                    return Err(crate::report::failed(errno, format_args!("{}", path.display())));
                }
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

    /// Fills an empty slot.
    fn fill(&self, slot: u32, bytes: &[u8; SLOT]) -> Result<(), c_int> {
        let (first, rest) = bytes.split_at(index::FIRST);
        let at = u64::from(slot) * SLOT as u64;
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
        let (bytes, unit) = self.extent(entry.bytes);
        if is_packed {
            let taken = self.space.take(bytes, unit);
            entry.offset = taken.ok_or_else(|| {
                let text = format_args!("a record of {bytes} bytes has no room in a file");
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
                self.give_up(version);
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
        let slots = self.known.slots.iter().map(|(&slot, &(of, entry))| (slot, of, entry));
        let is_old = |&(_, of, entry): &(u32, u64, Option<Entry>)| {
            of == id && entry.is_none_or(|entry| entry.kind == Kind::Begun)
        };
        for (slot, _, entry) in slots.filter(is_old).collect::<Vec<_>>() {
            match entry {
                Some(entry) => {
                    let is_trusted = false;
                    self.free(Version { entry, slot, is_trusted, is_synced: false }, folder);
                }
                // What it had taken was free when the files were opened.
                None if self.empty(slot).is_ok() => {
                    self.known.slots.remove(&slot);
                    self.free.insert(slot);
                }
                None => {}
            }
        }
    }

    /// Frees a slot and its room.
    fn give_up(&mut self, version: Version) {
        if self.empty(version.slot).is_ok() {
            self.known.slots.remove(&version.slot);
            self.free.insert(version.slot);
        }
        if version.entry.file == 0 && version.entry.kind != Kind::Dropped {
            let (bytes, _) = self.extent(version.entry.bytes);
            self.space.give(version.entry.offset, bytes);
        }
    }

    /// Frees what a version takes, once no thread reads it.
    pub fn free(&mut self, version: Version, folder: &Folder) {
        if self.uses.contains_key(&version.slot) {
            self.doomed.insert(version.slot, version.entry);
            return;
        }
        if version.entry.file != 0 {
            Folder::remove(&folder.record(self.number, version.entry.file));
        }
        self.give_up(version);
    }

    /// Keeps the bytes of a version in place while they are read.
    pub fn hold(&mut self, slot: u32) {
        *self.uses.entry(slot).or_insert(0) += 1;
    }

    /// Ends that.
    pub fn release(&mut self, slot: u32, folder: &Folder) {
        let Some(uses) = self.uses.get_mut(&slot) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&slot);
            if let Some(entry) = self.doomed.remove(&slot) {
                let is_trusted = true;
                self.free(Version { entry, slot, is_trusted, is_synced: false }, folder);
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
        let old = self.known.versions.remove(&id).unwrap_or_default();
        old.into_iter().for_each(|version| self.free(version, folder));
        self.known.torn.remove(&id);
        self.forget_torn(id, folder);
        if let Some(entry) = by {
            let slot = self.free.pop_first().unwrap_or(self.slots);
            self.slots = self.slots.max(slot + 1);
            self.fill(slot, &entry.slot())?;
            let version = Version { entry, slot, is_trusted: true, is_synced: true };
            self.known.versions.insert(id, vec![version]);
        }
        self.changed()
    }
}
