//! A container of records: written at once, read in an order that helpers bring up ahead.

use super::copy::{Chooser, Shared, Way, copy, copy_alone};
use super::files::{Folder, Handle, Lock, RecordFile};
use super::index::{Entry, Kind};
use super::order::{Order, Rule};
use super::sum::Sum;
use super::window::{Ahead, Window};
use super::writers::{Mine, Peer, Version};
use crate::report::{code, fail};
use core::ffi::c_int;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a caller wants of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub order: Rule,
    /// Records share a file of their writer; false: each has its own.
    pub is_packed: bool,
    /// The files stay when the last process has closed the container.
    pub is_kept: bool,
    /// Threads that read ahead.
    pub helpers: u32,
    /// Bytes that are read ahead.
    pub memory: u64,
    /// Bytes beyond these that the tiers hold of what this container writes; `None`: no limit.
    pub fast: Option<u64>,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub writes: u64,
    pub reads: u64,
    /// Reads that found all of their record in memory.
    pub hits: u64,
    /// Reads that waited for a helper that had begun.
    pub late: u64,
    /// Records that helpers brought up.
    pub loaded: u64,
    /// Records that were left to the store, to keep a limit.
    pub spilled: u64,
}

/// What all threads share, under the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub mine: Mine,
    peers: BTreeMap<u32, Peer>,
    /// When the folder was last listed, if it did not change at that time.
    listed_ns: Option<i128>,
    /// Versions whose bytes are not what their index says: writer, version.
    bad: BTreeSet<(u32, u64)>,
    /// Records that are being written.
    writing: HashSet<u64>,
    pub order: Order,
    pub window: Window,
    pub counts: Counts,
    version: u64,
    /// What the tiers may hold of this container's records: versions and bytes.
    buffered: BTreeMap<u64, (u64, u64)>,
    buffered_bytes: u64,
    /// A copy that helpers may take part in.
    pub copying: Option<Arc<Shared>>,
    chooser: Chooser,
    /// Bytes of the largest record that was written.
    pub largest: u64,
    /// Nothing can be left to the store: its files are scratch by a rule, or it has failed.
    pub cannot_spill: bool,
}

/// A version of a record, and who wrote it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub writer: u32,
    pub version: Version,
}

/// A container.
#[derive(Debug)]
pub(crate) struct Store {
    session: Handle,
    folder: Folder,
    options: Options,
    /// Children of fork() have no helpers, and share no state with their parent.
    process: u32,
    state: Mutex<State>,
    changed: Condvar,
    is_closing: AtomicBool,
    shared: Lock,
    /// This process has made the folder.
    is_made: bool,
}

/// Bytes that are summed and copied at a time: both find them in a cache.
const PART: usize = 256 << 10;

/// Bytes of a copy whose way is learned: what the program reads next is not in a cache in any
/// case.
const LARGE: usize = 16 << 20;

/// How often a read begins again because its record was written by another process meanwhile.
const TRIES: u32 = 100;

/// How often a record that was not found is looked for in indexes that change all the time: one
/// that is written again and again moves, and may be missed by a pass.
const LOOKS: u32 = 4;

/// How long a store that is full is waited for when a container is opened: what was removed just
/// before gives its room back a moment later.
const FULL: Duration = Duration::from_secs(3);
const FULL_NAP: Duration = Duration::from_millis(50);

/// A name that appears within this time after the folder was listed may not change its time.
const TICK_NS: i128 = 1_000_000_000;

impl Store {
    /// Opens the container of a folder, and makes it if it is not there.
    pub fn open(session: Handle, folder: Folder, options: Options) -> Result<Store, c_int> {
        let since = Instant::now();
        loop {
            let (shared, is_made) = folder.enter()?;
            match Store::files(session, &folder, options) {
                Ok(mine) => {
                    let store = Store::over(session, folder, options, (mine, shared, is_made));
                    let taken = store.take_in(&mut store.lock());
                    return match taken {
                        Ok(()) => Ok(store),
                        Err(code) => {
                            store.abandon();
                            Err(code)
                        }
                    };
                }
                Err(code) => {
                    if is_made {
                        folder.abandon(&shared);
                    }
                    if code != -libc::ENOSPC || since.elapsed() >= FULL {
                        return Err(code);
                    }
                    std::thread::sleep(FULL_NAP);
                }
            }
        }
    }

    /// The files that this container writes.
    fn files(session: Handle, folder: &Folder, options: Options) -> Result<Mine, c_int> {
        if options.is_kept {
            folder.keep()?;
        }
        let mine = Mine::open(session, folder, block_bytes())?;
        if !options.is_packed {
            Folder::make(&folder.of(mine.number, "records"))?;
        }
        Folder::sync(&folder.0)?;
        Ok(mine)
    }

    fn over(
        session: Handle,
        folder: Folder,
        options: Options,
        (mine, shared, is_made): (Mine, Lock, bool),
    ) -> Store {
        let mut order = Order::new(options.order);
        order.learn(read_trace(&folder, mine.number));
        let state = State {
            peers: BTreeMap::new(),
            listed_ns: None,
            bad: BTreeSet::new(),
            writing: HashSet::new(),
            order,
            window: Window::new(options.memory, cache_bytes()),
            counts: Counts::default(),
            version: 0,
            buffered: BTreeMap::new(),
            buffered_bytes: 0,
            copying: None,
            chooser: Chooser::default(),
            largest: 0,
            cannot_spill: false,
            mine,
        };
        Store {
            session,
            folder,
            options,
            process: std::process::id(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_closing: AtomicBool::new(false),
            shared,
            is_made,
        }
    }

    /// What was there before comes first in the order of writes.
    fn take_in(&self, state: &mut State) -> Result<(), c_int> {
        self.look(state)?;
        let mut found: Vec<_> = ids(state).into_iter().collect();
        found.sort_by_key(|&id| locate(state, id).map(|found| found.version.entry.version));
        for id in found {
            state.order.wrote(id);
        }
        Ok(())
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, without the lock.
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self) {
        self.changed.notify_all();
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether this process opened it. The lock of a parent may be held for ever in its child.
    pub fn check_process(&self) -> Result<(), c_int> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(fail(
            code::CLOSED,
            format_args!(
                "{} was opened by process {} before a fork(); open it again in the child",
                self.folder.0.display(),
                self.process
            ),
        ))
    }

    /// Whether its session is still there.
    fn check(&self) -> Result<crate::handles::OpenSession, c_int> {
        self.check_process()?;
        crate::handles::session(self.session.pointer())
    }

    /// Writes a record: it is whole, and survives the program, when this returns.
    ///
    /// # Safety
    /// `bytes` bytes can be read at `from`.
    pub unsafe fn write(
        &self,
        id: u64,
        from: *const u8,
        bytes: u64,
        element: u32,
    ) -> Result<(), c_int> {
        let _session = self.check()?;
        self.check_size(id, bytes)?;
        let mut state = self.lock();
        while state.writing.contains(&id) {
            state = self.wait(state);
        }
        let (sum, kind) = (0, Kind::Begun);
        let version = state.next_version(id);
        let entry = Entry { kind, id, version, offset: 0, bytes, element, file: 0, sum };
        let mut begun = state.mine.begin(entry, self.options.is_packed)?;
        state.writing.insert(id);
        drop(state);
        // SAFETY: as the caller says.
        let written = unsafe { self.put(&begun.entry, from) };
        let mut state = self.lock();
        let done = match written {
            Ok(sum) => {
                begun.entry.sum = sum;
                state.mine.complete(begun, &self.folder)
            }
            Err(code) => {
                state.mine.free(begun, &self.folder);
                Err(code)
            }
        };
        state.writing.remove(&id);
        if done.is_ok() {
            state.counts.writes += 1;
            state.largest = state.largest.max(bytes);
            state.window.forget(id);
            state.order.wrote(id);
            state.note_buffered(id, version, bytes);
        }
        drop(state);
        self.tell();
        done.map(|_| ())
    }

    fn check_size(&self, id: u64, bytes: u64) -> Result<(), c_int> {
        let limit = self.options.fast.map(|fast| fast.saturating_add(self.options.memory));
        let tiers = tier_bytes();
        let largest = limit.unwrap_or(u64::MAX).min(tiers.unwrap_or(u64::MAX));
        if bytes <= largest {
            return Ok(());
        }
        let what = if tiers == Some(largest) { "the tiers hold" } else { "its limits allow" };
        Err(fail(
            -libc::EFBIG,
            format_args!(
                "record {id} of {bytes} bytes is larger than all that {what}: {largest} bytes; \
                 write it as several records, or raise that"
            ),
        ))
    }

    /// Writes the bytes of a record; their sum.
    ///
    /// # Safety
    /// As [`Store::write`].
    unsafe fn put(&self, entry: &Entry, from: *const u8) -> Result<u64, c_int> {
        let state = self.lock();
        let (number, packed) = (state.mine.number, Arc::clone(&state.mine.data));
        drop(state);
        let file = if entry.file == 0 {
            packed
        } else {
            let path = self.folder.record(number, entry.file);
            // A kill may have left one whose slot was emptied.
            let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR;
            Arc::new(RecordFile::open(self.session, &path, flags)?)
        };
        let (mut sum, mut done) = (Sum::default(), 0);
        while done < entry.bytes as usize {
            let bytes = PART.min(entry.bytes as usize - done);
            // SAFETY: within what the caller gives; a slice is made of it part by part, which no
            // other thread writes to by the contract of the call.
            unsafe {
                let part = core::slice::from_raw_parts(from.add(done), bytes);
                sum.add(part);
                file.write(part.as_ptr(), bytes, entry.offset + done as u64)?;
            }
            done += bytes;
        }
        Ok(sum.get())
    }

    /// Reads a record to `to`.
    ///
    /// # Safety
    /// `bytes` bytes can be written at `to`.
    pub unsafe fn read(&self, id: u64, to: *mut u8, bytes: u64, element: u32) -> Result<(), c_int> {
        let _session = self.check()?;
        let mut is_late = false;
        let mut state = self.lock();
        for _ in 0..TRIES {
            while state.writing.contains(&id) {
                state = self.wait(state);
            }
            let found = self.find(&mut state, id)?;
            let entry = found.version.entry;
            fits(&entry, bytes, element)?;
            match state.window.take(id, entry.version) {
                Ahead::Loading => {
                    is_late = true;
                    state = self.wait(state);
                }
                Ahead::Ready(buffer, is_hot) => {
                    state.note_read(id, !is_late, is_late);
                    // SAFETY: of one length, as `fits` has seen; the caller's memory.
                    unsafe { self.give(state, &buffer, to, is_hot) };
                    self.lock().window.give_back(buffer);
                    self.tell();
                    return Ok(());
                }
                Ahead::Nothing => {
                    let Some(file) = self.file_there(&mut state, id, &found)? else { continue };
                    state.hold(&found);
                    drop(state);
                    let is_hit = file.is_in_memory(entry.offset, entry.bytes);
                    // SAFETY: as the caller says; so many bytes, as `fits` has seen.
                    let read = unsafe { get(&file, &found.version, to) };
                    state = self.lock();
                    state.release(&found, &self.folder);
                    match read {
                        Ok(true) => {
                            state.note_read(id, is_hit, is_late && !is_hit);
                            drop(state);
                            self.tell();
                            return Ok(());
                        }
                        Ok(false) => self.not_whole(&mut state, id, &found)?,
                        Err(_) if self.has_changed(&mut state, id, &found) => {}
                        Err(code) => return Err(code),
                    }
                }
            }
        }
        Err(busy(id))
    }

    /// Copies a record that was read ahead to the caller's memory.
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn give<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        from: &[u8],
        to: *mut u8,
        is_hot: bool,
    ) {
        if from.len() < LARGE || is_hot {
            drop(state);
            self.tell();
            // SAFETY: as the caller says.
            return unsafe { copy(from, to, is_hot) };
        }
        let can_share = self.options.helpers > 0 && state.copying.is_none();
        let way = state.chooser.next(can_share);
        let start = Instant::now();
        if way == Way::Together {
            // SAFETY: as the caller says; this call waits until all of it is done.
            let shared = Arc::new(unsafe { Shared::new(from, to) });
            state.copying = Some(Arc::clone(&shared));
            drop(state);
            self.tell();
            shared.work();
            state = self.lock();
            state.copying = None;
            while !shared.is_done() {
                state = self.wait(state);
            }
        } else {
            drop(state);
            self.tell();
            // SAFETY: as the caller says.
            unsafe { copy_alone(from, to, way) };
            state = self.lock();
        }
        state.chooser.note(way, from.len(), start.elapsed().as_nanos() as u64);
    }

    /// Bytes were read that are not those of the version: another process has written it again,
    /// or not all of it was there when the node was started again.
    fn not_whole(&self, state: &mut State, id: u64, found: &Located) -> Result<(), c_int> {
        if !self.has_changed(state, id, found) {
            state.bad.insert((found.writer, found.version.entry.version));
        }
        Ok(())
    }

    /// Looks for a record.
    fn find(&self, state: &mut State, id: u64) -> Result<Located, c_int> {
        for _ in 0..LOOKS {
            self.look(state)?;
            if let Some(found) = locate(state, id) {
                return Ok(found);
            }
            if state.peers.values().all(|peer| peer.is_settled) {
                break;
            }
        }
        Err(self.missing(state, id))
    }

    /// The file that has a version; `None` if it is gone: another process has written the record
    /// again or dropped it, or the node lost the file. What there is now is to be looked for again.
    fn file_there(
        &self,
        state: &mut State,
        id: u64,
        found: &Located,
    ) -> Result<Option<Arc<RecordFile>>, c_int> {
        match self.file_of(state, found) {
            Err(errno) if errno == -libc::ENOENT => {
                self.not_whole(state, id, found)?;
                Ok(None)
            }
            file => file.map(Some),
        }
    }

    /// Whether a record is not what it was any more.
    fn has_changed(&self, state: &mut State, id: u64, found: &Located) -> bool {
        let _ = self.look(state);
        let now = locate(state, id).map(|now| (now.writer, now.version.entry.version));
        now != Some((found.writer, found.version.entry.version))
    }

    /// Looks whether other processes have written, made or removed records.
    fn look(&self, state: &mut State) -> Result<(), c_int> {
        let changed_ns = self.folder.changed_ns();
        if changed_ns.is_none() || changed_ns != state.listed_ns {
            let now = clock_gettime(ClockId::Realtime);
            let now_ns = i128::from(now.tv_sec) * 1_000_000_000 + now.tv_nsec as i128;
            let is_old = changed_ns.is_some_and(|changed| changed + TICK_NS < now_ns);
            state.listed_ns = changed_ns.filter(|_| is_old);
            let writers = self.folder.writers()?;
            state.peers.retain(|number, _| writers.contains(number));
            let others = writers.into_iter().filter(|&number| number != state.mine.number);
            for number in others.collect::<Vec<_>>() {
                if let std::collections::btree_map::Entry::Vacant(place) = state.peers.entry(number)
                    && let Some(peer) = Peer::open(self.session, &self.folder, number)
                {
                    place.insert(peer);
                }
            }
        }
        for (&number, peer) in &mut state.peers {
            peer.refresh(&self.folder, number)?;
        }
        Ok(())
    }

    /// The file that has a version.
    pub fn file_of(&self, state: &mut State, found: &Located) -> Result<Arc<RecordFile>, c_int> {
        let (entry, writer) = (&found.version.entry, found.writer);
        if entry.file != 0 {
            Folder::check(&self.folder.of(writer, "records"))?;
            let path = self.folder.record(writer, entry.file);
            let file = RecordFile::open(self.session, &path, libc::O_RDWR);
            return file.map(Arc::new);
        }
        match state.peers.get_mut(&writer) {
            Some(peer) => peer.data(self.session, &self.folder, writer),
            None => Ok(Arc::clone(&state.mine.data)),
        }
    }

    /// Why a record cannot be read.
    fn missing(&self, state: &State, id: u64) -> c_int {
        let folder = self.folder.0.display();
        if state.is_torn(id) {
            return fail(
                code::TORN,
                format_args!(
                    "{folder}: record {id} is not whole: its writer was killed while it wrote it, \
                     or the node lost it; write it again, or drop it"
                ),
            );
        }
        fail(
            code::NO_RECORD,
            format_args!("{folder}: record {id} was never written, or was dropped"),
        )
    }

    /// Bytes of a record, and of its elements.
    pub fn size(&self, id: u64) -> Result<(u64, u32), c_int> {
        let _session = self.check()?;
        let mut state = self.lock();
        while state.writing.contains(&id) {
            state = self.wait(state);
        }
        let entry = self.find(&mut state, id)?.version.entry;
        Ok((entry.bytes, entry.element))
    }

    /// The records that are there, in ascending order.
    pub fn ids(&self) -> Result<Vec<u64>, c_int> {
        let _session = self.check()?;
        let mut state = self.lock();
        self.look(&mut state)?;
        Ok(ids(&state).into_iter().collect())
    }

    /// Waits until a record is where it survives a loss of power.
    pub fn sync(&self, id: u64, level: c_int, timeout_ms: i64) -> Result<(), c_int> {
        let _session = self.check()?;
        for _ in 0..TRIES {
            let mut state = self.lock();
            while state.writing.contains(&id) {
                state = self.wait(state);
            }
            let found = self.find(&mut state, id)?;
            let Some(file) = self.file_there(&mut state, id, &found)? else { continue };
            // The bytes before the index that says that they are there.
            let (index, is_mine) = match state.peers.get(&found.writer) {
                Some(peer) => (peer.index(), false),
                None => (state.mine.index(), true),
            };
            state.hold(&found);
            drop(state);
            let synced = file.sync(level, timeout_ms).and_then(|()| index.sync(level, timeout_ms));
            let synced = synced.and_then(|()| self.sync_names(&found));
            let mut state = self.lock();
            state.release(&found, &self.folder);
            match synced {
                Ok(()) if is_mine => {
                    return state.mine.synced(id, found.version.entry.version, &self.folder);
                }
                // Another process has removed it meanwhile.
                Err(errno)
                    if errno == -libc::ENOENT && self.has_changed(&mut state, id, &found) => {}
                synced => return synced,
            }
        }
        Err(busy(id))
    }

    fn sync_names(&self, found: &Located) -> Result<(), c_int> {
        match found.version.entry.file {
            0 => Ok(()),
            _ => Folder::sync(&self.folder.of(found.writer, "records")),
        }
    }

    /// Forgets a record, of whichever writer.
    pub fn drop_record(&self, id: u64) -> Result<(), c_int> {
        let _session = self.check()?;
        let mut state = self.lock();
        while state.writing.contains(&id) {
            state = self.wait(state);
        }
        if let Err(code) = self.find(&mut state, id)
            && !state.is_torn(id)
        {
            return Err(code);
        }
        let of_others = state
            .peers
            .values()
            .any(|peer| peer.known.versions.contains_key(&id) || peer.known.torn.contains_key(&id));
        let version = state.next_version(id);
        let entry = Entry {
            kind: Kind::Dropped,
            id,
            version,
            offset: 0,
            bytes: 0,
            element: 0,
            file: 0,
            sum: 0,
        };
        let done = state.mine.forget(id, of_others.then_some(entry), &self.folder);
        state.window.forget(id);
        state.order.dropped(id);
        state.forget_buffered(id);
        drop(state);
        self.tell();
        done
    }

    /// Says in which order records will be read.
    pub fn will_read(&self, ids: &[u64]) -> Result<(), c_int> {
        let _session = self.check()?;
        self.lock().order.will_read(ids);
        self.tell();
        Ok(())
    }

    /// Reads all records whose bytes may not be what they were; the records that are not whole.
    pub fn check_records(&self) -> Result<Vec<u64>, c_int> {
        let _session = self.check()?;
        let mut buffer = Vec::new();
        for id in self.ids()? {
            for _ in 0..TRIES {
                let mut state = self.lock();
                let Some(found) = locate(&state, id).filter(|found| !found.version.is_trusted)
                else {
                    break;
                };
                let bytes = found.version.entry.bytes as usize;
                buffer.clear();
                if buffer.try_reserve_exact(bytes).is_err() {
                    return Err(fail(-libc::ENOMEM, format_args!("record {id} of {bytes} bytes")));
                }
                let Some(file) = self.file_there(&mut state, id, &found)? else { continue };
                state.hold(&found);
                drop(state);
                // SAFETY: room for so many bytes.
                let read = unsafe { get(&file, &found.version, buffer.as_mut_ptr()) };
                let mut state = self.lock();
                state.release(&found, &self.folder);
                match read {
                    Ok(true) => break,
                    Ok(false) => self.not_whole(&mut state, id, &found)?,
                    Err(_) if self.has_changed(&mut state, id, &found) => {}
                    Err(code) => return Err(code),
                }
            }
        }
        Ok(self.lock().torn().into_iter().collect())
    }

    /// Records, and their bytes.
    pub fn contents(&self) -> Result<(u64, u64), c_int> {
        let _session = self.check()?;
        let mut state = self.lock();
        self.look(&mut state)?;
        let bytes = |id| locate(&state, id).map_or(0, |found| found.version.entry.bytes);
        let ids = ids(&state);
        Ok((ids.len() as u64, ids.into_iter().map(bytes).sum()))
    }

    /// Ends the work of helpers: those that wait return.
    pub fn begin_close(&self) {
        let _state = self.lock();
        self.is_closing.store(true, Ordering::Release);
        self.tell();
    }

    /// Ends a container that could not be opened: records that were there before stay.
    pub fn abandon(self) {
        let Store { folder, state, shared, is_made, .. } = self;
        drop(state);
        if is_made {
            folder.abandon(&shared);
        }
    }

    /// Removes the files if this was the last user, and they are not to be kept.
    pub fn finish(self) {
        let Store { folder, options, shared, state, .. } = self;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if options.is_kept {
            write_trace(&folder, state.mine.number, state.order.learned());
        }
        drop(state);
        shared.free();
        if shared.try_own() && !folder.is_kept() {
            folder.clear();
        }
    }
}

impl State {
    /// A version that is later than all that are known.
    fn next_version(&mut self, id: u64) -> u64 {
        let now = clock_gettime(ClockId::Realtime);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let known = latest(self, id).map_or(0, |found| found.version.entry.version);
        let torn = self.mine.known.torn.get(&id).copied().unwrap_or(0);
        self.version = now_ns.max(self.version + 1).max(known + 1).max(torn + 1);
        self.version
    }

    fn note_read(&mut self, id: u64, is_hit: bool, is_late: bool) {
        self.counts.reads += 1;
        self.counts.hits += u64::from(is_hit);
        self.counts.late += u64::from(is_late);
        self.order.read(id);
    }

    fn note_buffered(&mut self, id: u64, version: u64, bytes: u64) {
        self.forget_buffered(id);
        self.buffered.insert(id, (version, bytes));
        self.buffered_bytes += bytes;
    }

    fn forget_buffered(&mut self, id: u64) {
        if let Some((_, bytes)) = self.buffered.remove(&id) {
            self.buffered_bytes -= bytes;
        }
    }

    /// The records that are to leave the tiers so that no more than `limit` bytes stay: those that
    /// are read last.
    pub fn beyond(&mut self, limit: u64) -> Vec<Located> {
        let mut found = Vec::new();
        if self.buffered_bytes <= limit || self.cannot_spill {
            return found;
        }
        // Some more than necessary, so that not each write begins a flush.
        let goal = limit - limit / 8;
        let far: Vec<_> = self.order.farthest().collect();
        for id in far {
            if self.buffered_bytes <= goal {
                break;
            }
            if !self.buffered.contains_key(&id) || self.writing.contains(&id) {
                continue;
            }
            self.forget_buffered(id);
            let own = locate(self, id).filter(|located| located.writer == self.mine.number);
            found.extend(own);
        }
        found
    }

    /// Keeps the bytes of a version in place.
    pub fn hold(&mut self, found: &Located) {
        if found.writer == self.mine.number {
            self.mine.hold(&found.version.entry);
        }
    }

    /// Ends that.
    pub fn release(&mut self, found: &Located, folder: &Folder) {
        if found.writer == self.mine.number {
            self.mine.release(&found.version.entry, folder);
        }
    }

    /// Records whose last write is not whole.
    fn torn(&self) -> BTreeSet<u64> {
        let mut torn: BTreeSet<u64> =
            self.ended().flat_map(|known| known.torn.keys()).copied().collect();
        if !self.bad.is_empty() {
            torn.extend(all_ids(self));
        }
        torn.retain(|&id| self.is_torn(id));
        torn
    }

    /// What those say that write no more, but for this process.
    fn ended(&self) -> impl Iterator<Item = &super::writers::Known> {
        let ended = self.peers.values().filter(|peer| !peer.is_live);
        ended.map(|peer| &peer.known).chain([&self.mine.known])
    }

    /// Whether the last write of a record is not whole.
    fn is_torn(&self, id: u64) -> bool {
        let last = latest(self, id);
        let is_later = |&version: &u64| {
            version == 0 || last.is_none_or(|found| version > found.version.entry.version)
        };
        let is_bad =
            |found: Located| self.bad.contains(&(found.writer, found.version.entry.version));
        self.ended().any(|known| known.torn.get(&id).is_some_and(is_later))
            || last.is_some_and(is_bad)
    }
}

/// The latest version of a record that an index has, whole or bad, or that it was dropped.
fn latest(state: &State, id: u64) -> Option<Located> {
    newest(state, id, |_| true)
}

fn newest(state: &State, id: u64, is_good: impl Fn(&Located) -> bool) -> Option<Located> {
    let peers = state.peers.iter().map(|(&number, peer)| (number, &peer.known));
    let all = peers.chain([(state.mine.number, &state.mine.known)]);
    let of = |(writer, known): (u32, &super::writers::Known)| {
        let versions = known.versions.get(&id)?.iter().rev();
        versions.map(|&version| Located { writer, version }).find(|found| is_good(found))
    };
    all.filter_map(of).max_by_key(|found| found.version.entry.version)
}

/// The latest version of a record whose bytes are not known to be bad.
pub(crate) fn locate(state: &State, id: u64) -> Option<Located> {
    let is_good =
        |found: &Located| !state.bad.contains(&(found.writer, found.version.entry.version));
    newest(state, id, is_good).filter(|found| found.version.entry.kind == Kind::Whole)
}

fn all_ids(state: &State) -> BTreeSet<u64> {
    let peers = state.peers.values().flat_map(|peer| peer.known.versions.keys());
    peers.chain(state.mine.known.versions.keys()).copied().collect()
}

/// The records that can be read.
fn ids(state: &State) -> BTreeSet<u64> {
    all_ids(state).into_iter().filter(|&id| locate(state, id).is_some()).collect()
}

fn busy(id: u64) -> c_int {
    let text = format_args!("record {id}: other processes write it faster than it can be read");
    fail(-libc::EBUSY, text)
}

/// Whether a record is what the caller has room for.
fn fits(entry: &Entry, bytes: u64, element: u32) -> Result<(), c_int> {
    let id = entry.id;
    if entry.element != element {
        return Err(fail(
            code::ELEMENT,
            format_args!(
                "record {id} was written with elements of {} bytes, and is read with elements of \
                 {element}; use the type that it was written with",
                entry.element
            ),
        ));
    }
    if entry.bytes == bytes {
        return Ok(());
    }
    let size = u64::from(element.max(1));
    Err(fail(
        code::ELEMENT,
        format_args!(
            "record {id} has {} elements, and there is room for {}; resize the container to \
             that of the record",
            entry.bytes / size,
            bytes / size
        ),
    ))
}

/// Reads a version: whether its bytes are what its sum says. Of one that was written since the
/// container was opened they are.
///
/// # Safety
/// All of it can be written at `to`.
pub(crate) unsafe fn get(file: &RecordFile, version: &Version, to: *mut u8) -> Result<bool, c_int> {
    let entry = &version.entry;
    let bytes = entry.bytes as usize;
    if version.is_trusted {
        // SAFETY: as the caller says.
        unsafe { file.read(to, bytes, entry.offset)? };
        return Ok(true);
    }
    // After a loss of power it may be shorter than the record.
    if file.size()? < entry.offset + entry.bytes {
        return Ok(false);
    }
    let (mut sum, mut done) = (Sum::default(), 0);
    while done < bytes {
        let part = PART.min(bytes - done);
        // SAFETY: within what the caller gives; what was read is a slice for the sum.
        unsafe {
            file.read(to.add(done), part, entry.offset + done as u64)?;
            sum.add(core::slice::from_raw_parts(to.add(done), part));
        }
        done += part;
    }
    Ok(sum.get() == entry.sum)
}

/// Bytes that all tiers hold; `None` plainly.
fn tier_bytes() -> Option<u64> {
    let services = crate::session::services()?;
    let mut sum = 0u64;
    for number in 0.. {
        let mut now = core::mem::MaybeUninit::<forebay_client::services::TierNow>::uninit();
        // SAFETY: `now` is written to where the result is 0.
        match unsafe { (services.tier)(number, now.as_mut_ptr()) } {
            // SAFETY: it was.
            0 => sum = sum.saturating_add(unsafe { now.assume_init() }.capacity),
            _ => break,
        }
    }
    Some(sum)
}

/// Bytes of a block of the pool, in which large records begin; those of a page plainly.
fn block_bytes() -> u64 {
    let Some(services) = crate::session::services() else { return 4096 };
    let mut now = core::mem::MaybeUninit::<forebay_client::services::PoolNow>::uninit();
    // SAFETY: `now` is written to where the result is 0.
    match unsafe { (services.pool)(now.as_mut_ptr()) } {
        // SAFETY: it was.
        0 => unsafe { now.assume_init() }.block_bytes,
        _ => 4096,
    }
}

/// Bytes of the last level of the processor's caches; 8 MiB where that is not known.
fn cache_bytes() -> u64 {
    let path = "/sys/devices/system/cpu/cpu0/cache/index3/size";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let text = text.trim();
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M').unwrap_or(text), 1 << 20),
    };
    number.parse::<u64>().map_or(8 << 20, |number| number * unit)
}

/// The order in which an earlier user of a writer's files has read; empty if there is none.
fn read_trace(folder: &Folder, writer: u32) -> Vec<u64> {
    let mut bytes = Vec::new();
    let read = plain_file().read(true).open(folder.of(writer, "order"));
    if read.and_then(|mut file| file.read_to_end(&mut bytes)).is_err() {
        return Vec::new();
    }
    let (words, _) = bytes.as_chunks::<8>();
    let mut words = words.iter().map(|&word| u64::from_le_bytes(word));
    let sum = words.next();
    let trace: Vec<u64> = words.collect();
    if sum == Some(sum_of(&trace)) { trace } else { Vec::new() }
}

fn sum_of(trace: &[u64]) -> u64 {
    let add = |sum, word: &u64| crc32c::crc32c_append(sum, &word.to_le_bytes());
    u64::from(trace.iter().fold(0, add))
}

fn write_trace(folder: &Folder, writer: u32, trace: &[u64]) {
    if trace.is_empty() {
        return;
    }
    let words = [sum_of(trace)].into_iter().chain(trace.iter().copied());
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    // A hint for the next user; it is not missed.
    let mut options = plain_file();
    let options = options.write(true).create(true).truncate(true);
    let _ = options.open(folder.of(writer, "order")).and_then(|mut file| file.write_all(&bytes));
}

/// Options to open a file that is no link.
fn plain_file() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW);
    options
}

impl Store {
    /// The folder of its files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}
