//! Sizes, times and offsets as programs see them.

use crate::access::EnteredFile;
use crate::glimpsing::{GroupName, KnownHere};
use crate::open::SET_ID_BITS;
use crate::open_file::OpenFile;
use crate::opening::PathAt;
use crate::session::Session;
use crate::waiting::surely;
use core::sync::atomic::Ordering;
use forebay_pool::backoff::Backoff;
use forebay_pool::glimpses::Glimpsed;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::lease::Lease;
use forebay_pool::{FileId, Identity, Owner, clock, crash};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// Bytes of a unit of `st_blocks`.
const STAT_UNIT: u64 = 512;
/// Bytes of a store's block, as it is assumed where the store has not got the bytes yet.
const STORE_BLOCK: u64 = 4096;

/// How often other nodes are asked about one file while that changes on the store.
const GLIMPSES_MAX: u32 = 3;

/// The fields of a `stat` that buffering changes. The caller fills in what the kernel said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFields {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last modification, nanoseconds of CLOCK_REALTIME.
    pub mtime_ns: u64,
    /// Last change of status, nanoseconds of CLOCK_REALTIME.
    pub changed_ns: u64,
}

/// Units of a file of `size` bytes without holes.
fn dense_units(size: u64) -> u64 {
    size.div_ceil(STORE_BLOCK) * (STORE_BLOCK / STAT_UNIT)
}

/// What [`Session::correct`] found.
#[derive(Clone, Copy, Default)]
struct Correction {
    /// Whether a field changed.
    changed: bool,
    /// Whether the kernel may have been asked in the middle of a flush that has ended since: then
    /// what it said is half old, and it has to be asked again.
    doubtful: bool,
    /// How much several nodes have of it, which is so if the store has no other size by then.
    at_least: Option<u64>,
}

impl StatFields {
    /// The same of a file that is longer than the kernel says.
    fn extended(self, size: u64, mtime_ns: u64) -> Self {
        let grows = dense_units(size).saturating_sub(dense_units(self.size));
        let blocks = (self.blocks + grows).min(self.blocks.max(dense_units(size)));
        let changed_ns = self.changed_ns.max(mtime_ns);
        Self { size, blocks, mtime_ns, changed_ns, ..self }
    }
}

impl OpenFile<'_> {
    /// Moves the description's offset.
    ///
    /// # Errors
    /// `INVAL` for a negative or overflowing result or an unknown `whence`; `NXIO` where there is
    /// no data, or no file.
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, Errno> {
        self.session.restarting(|| self.seek_once(offset, whence))
    }

    fn seek_once(&self, offset: i64, whence: Whence) -> Result<u64, Errno> {
        let description = self.description;
        let sought = self.positioned(|current| {
            let base = match whence {
                Whence::Start => 0,
                Whence::Current => current,
                Whence::End => self.size()?,
                Whence::Data | Whence::Hole => {
                    let found = self.seek_data_or_hole(offset, whence == Whence::Hole)?;
                    description.offset.store(found, Ordering::Release);
                    return Ok(found);
                }
            };
            let target = i64::try_from(base)
                .ok()
                .and_then(|base| base.checked_add(offset))
                .ok_or(Errno::OVERFLOW)?;
            let target = u64::try_from(target).map_err(|_| Errno::INVAL)?;
            if !self.can_have(target) {
                return Err(Errno::INVAL);
            }
            description.offset.store(target, Ordering::Release);
            Ok(target)
        })?;
        sought.map_or_else(|| self.kernels_seek(offset, whence), Ok)
    }

    /// The file's size in bytes.
    ///
    /// # Errors
    /// The store's errno, for a file of which nothing is buffered.
    pub fn size(&self) -> Result<u64, Errno> {
        let record = self.record;
        if let Some(goal) = record.truncated_to() {
            return Ok(goal);
        }
        let telling = FileFlags::METADATA_DIRTY | FileFlags::DIRECT | FileFlags::SHARED;
        if record.flags.load(Ordering::Acquire) & telling == FileFlags::METADATA_DIRTY {
            return Ok(record.size.load(Ordering::Acquire));
        }
        let lease = record.lease.load();
        let known = match self.session.known_here(self.id, lease) {
            KnownHere::All
                if matches!(lease.held(), Lease::Shared | Lease::Lent | Lease::Borrowed) =>
            {
                return Ok(record.size.load(Ordering::Acquire));
            }
            // What is written here is ahead of the store, what others have written is there.
            KnownHere::All if self.commits() => record.size.load(Ordering::Acquire),
            KnownHere::All | KnownHere::Stored => 0,
            KnownHere::Nothing => return self.size_by_others(),
        };
        Ok(crate::store::stat(self.fd)?.size.max(known))
    }

    /// The size of a file that this node has no lease of.
    ///
    /// # Errors
    /// As of [`Session::glimpse`]; the store's errno.
    fn size_by_others(&self) -> Result<u64, Errno> {
        let stored = || crate::store::stat(self.fd).map(|stat| stat.size);
        let mut before = stored()?;
        let mut glimpses = 0;
        loop {
            let glimpsed = self.session.glimpse(self.session.group_name(self.record))?;
            glimpses += 1;
            if let Glimpsed::Known { size, .. } = glimpsed {
                return Ok(size);
            }
            // What others had of it before the question is there.
            let after = stored()?;
            match glimpsed {
                // The store may have had more when they were asked, and less again by now.
                Glimpsed::AtLeast { size } if size > after => {
                    if after == before || glimpses == GLIMPSES_MAX {
                        return Ok(size);
                    }
                    before = after;
                }
                _ => return Ok(after),
            }
        }
    }

    /// Whether implicit-offset calls on the descriptor go to the kernel: a program without
    /// Forebay shares its offset.
    pub fn uses_kernel_offset(&self) -> bool {
        self.may(DescriptionFlags::KERNEL_OFFSET)
    }

    /// Whether the offset is the description's own. The caller has its lock.
    #[inline]
    pub(crate) fn keeps_offset(&self) -> bool {
        let kernels = DescriptionFlags::KERNEL_OFFSET | DescriptionFlags::RELEASING;
        !self.description.flags.load(Ordering::Relaxed).intersects(kernels)
    }

    /// The flags that F_GETFL shall show where the kernel says `flags`: with those kept from it,
    /// and without what we added.
    pub fn shown_flags(&self, flags: rustix::fs::OFlags) -> rustix::fs::OFlags {
        let mut shown = flags | self.hidden_flags();
        shown.set(rustix::fs::OFlags::NOFOLLOW, self.may(DescriptionFlags::NO_FOLLOW));
        shown
    }

    /// The flags that were kept from the kernel.
    pub(crate) fn hidden_flags(&self) -> rustix::fs::OFlags {
        let mut flags = rustix::fs::OFlags::empty();
        if self.may(DescriptionFlags::APPEND) {
            flags |= rustix::fs::OFlags::APPEND;
        }
        if self.may(DescriptionFlags::UNCACHED) {
            flags |= rustix::fs::OFlags::DIRECT;
        }
        flags
    }

    /// What it was opened for, and those flags.
    pub(crate) fn opened_flags(&self) -> rustix::fs::OFlags {
        let opened = match (self.may(DescriptionFlags::READ), self.may(DescriptionFlags::WRITE)) {
            (true, true) => rustix::fs::OFlags::RDWR,
            (false, true) => rustix::fs::OFlags::WRONLY,
            _ => rustix::fs::OFlags::RDONLY,
        };
        opened | self.hidden_flags()
    }

    /// Takes over O_APPEND and O_DIRECT from an F_SETFL call.
    pub fn set_hidden_flags(&self, flags: rustix::fs::OFlags) {
        let owner = self.session.owner();
        let Ok(_inside) = self.enter_beside(owner) else { return };
        let kept = &self.description.flags;
        for (flag, ours) in [
            (rustix::fs::OFlags::APPEND, DescriptionFlags::APPEND),
            (rustix::fs::OFlags::DIRECT, DescriptionFlags::UNCACHED),
        ] {
            if flags.contains(flag) {
                kept.set(ours, Ordering::AcqRel);
            } else {
                kept.clear(ours, Ordering::AcqRel);
            }
        }
    }
}

impl EnteredFile<'_> {
    /// Before a write at `offset` of a file that has a set-id bit: takes the bit away, as the
    /// kernel does, unless this process may keep it. The caller is inside the file.
    #[cold]
    pub(crate) fn clear_set_id(&self, offset: u64) {
        self.record.clear(FileFlags::SET_ID);
        let fd = crate::fd::borrow(self.fd);
        let Ok(stat) = rustix::fs::fstat(fd) else { return };
        // Without the group's right to execute, the bit once meant mandatory locking.
        let group = if stat.st_mode & 0o010 != 0 { 0o2000 } else { 0 };
        let doomed = stat.st_mode & (0o4000 | group);
        let kept = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID));
        if doomed != 0 && !kept {
            let mode = rustix::fs::Mode::from_bits_retain(stat.st_mode & 0o7777 & !doomed);
            if rustix::fs::fchmod(fd, mode).is_err() {
                // Not the owner's process. The kernel does it for any process that changes the
                // file, and an allocation where the write will need one changes nothing that a
                // process can read.
                let keeps_size = rustix::fs::FallocateFlags::KEEP_SIZE;
                let allocate = || rustix::fs::fallocate(fd, keeps_size, offset, 1);
                let _ = self.on_store(allocate);
            }
        }
    }
}

impl Session {
    /// What a stat of a regular file says. `ask` asks the kernel, and is asked again where it may
    /// have been in the middle of a flush; it returns `None` for what no process here buffers.
    /// `epoch` is [`Session::stat_epoch`] before `ask` is called, or the call that it speaks of.
    /// `at` and `flags` are those of the call. Returns what differs from the kernel's last answer,
    /// or `None`.
    ///
    /// # Errors
    /// `INTR`. Of a file that another node may have: `IO` if that is gone, `TIMEDOUT` if it does
    /// not answer.
    pub fn corrected(
        &self,
        mut epoch: u32,
        mut ask: impl FnMut() -> Option<StatFields>,
        (at, flags): (PathAt<'_>, AtFlags),
    ) -> Result<Option<StatFields>, Errno> {
        let mut before: Option<(StatFields, Option<StatFields>, Option<u64>)> = None;
        let (mut glimpses, mut settled) = (0, false);
        loop {
            let Some(said) = ask() else {
                let now = self.stat_epoch();
                if now == epoch {
                    return Ok(None);
                }
                epoch = now;
                continue;
            };
            // The kernel says the same as before the record was looked at: nothing was flushed in
            // between. What it says of a file that no node of the group had a moment ago is true,
            // however often others change it.
            if let Some((asked, corrected, at_least)) = before {
                if let Some(size) = at_least.filter(|_| asked.size == said.size) {
                    return Ok(Some(said.extended(size, said.mtime_ns)));
                }
                if asked == said || settled {
                    return Ok(corrected);
                }
            }
            crash::point("stat.asked");
            let mut fields = said;
            settled = false;
            let correction = match self.ask_others_about(&mut fields, at, flags)? {
                None => self.correct(&mut fields, || self.born_ns(at, flags, said.inode))?,
                Some(correction) => {
                    glimpses += 1;
                    settled = glimpses >= GLIMPSES_MAX && correction.doubtful;
                    correction
                }
            };
            let corrected = correction.changed.then_some(fields);
            // The record that tells of a flush may have gone, or count no more.
            let now = self.stat_epoch();
            if !correction.doubtful && now == epoch {
                return Ok(corrected);
            }
            epoch = now;
            before = Some((said, corrected, correction.at_least));
        }
    }

    /// Has other nodes say what they know of a file that this one has no lease of. `None` if it
    /// has, or the file lies in no store.
    ///
    /// # Errors
    /// As of [`Session::corrected`].
    fn ask_others_about(
        &self,
        fields: &mut StatFields,
        at: PathAt<'_>,
        flags: AtFlags,
    ) -> Result<Option<Correction>, Errno> {
        if !self.shares_files() {
            return Ok(None);
        }
        let identity = Identity { device: fields.device, inode: fields.inode };
        let again = Correction { doubtful: true, ..Correction::default() };
        let (known, store) = match self.segment.files().may_have(identity) {
            false => (KnownHere::Nothing, None),
            true => self.known_of(identity, fields.changed_ns, |born_ns| {
                born_ns == self.born_ns(at, flags, identity.inode)
            })?,
        };
        match known {
            KnownHere::All => return Ok(None),
            KnownHere::Stored => return Ok(Some(again)),
            KnownHere::Nothing => {}
        }
        let place = match store {
            Some(store) => Some((self.born_ns(at, flags, identity.inode), store)),
            None => self.place_of(at, flags, identity.inode),
        };
        // What lies in no store, or is not buffered there, no node has.
        let is_buffered = |store: usize| self.segment.header().store[store].bypass == 0;
        let Some((born_ns, store)) = place.filter(|(_, store)| is_buffered(*store)) else {
            return Ok(None);
        };
        let name = GroupName { store: store as u16, inode: identity.inode, born_ns };
        let glimpsed = self.glimpse(name)?;
        let (size, mtime_ns) = match glimpsed {
            // Now the kernel knows it, too.
            Glimpsed::Stored | Glimpsed::Refused(_) => return Ok(Some(again)),
            Glimpsed::AtLeast { size } if size <= fields.size => return Ok(Some(again)),
            // Its times are the store's, of all nodes' flushes.
            Glimpsed::AtLeast { size } => (size, fields.mtime_ns),
            Glimpsed::Known { size, mtime_ns } => (size, mtime_ns),
        };
        // The store may have had more of what several nodes have when they were asked.
        let doubtful = matches!(glimpsed, Glimpsed::AtLeast { .. });
        *fields = fields.extended(size, mtime_ns);
        Ok(Some(Correction { changed: true, doubtful, at_least: doubtful.then_some(size) }))
    }

    /// A number that is another one once a file has gone from the table, or turned direct.
    #[inline]
    pub fn stat_epoch(&self) -> u32 {
        self.segment.stat_epoch()
    }

    /// Brings what the kernel said about a regular file up to date.
    ///
    /// # Errors
    /// `INTR`.
    fn correct(
        &self,
        fields: &mut StatFields,
        born: impl Fn() -> u64,
    ) -> Result<Correction, Errno> {
        let identity = Identity { device: fields.device, inode: fields.inode };
        if !self.is_store_device(fields.device) || !self.segment.files().may_have(identity) {
            return Ok(Correction::default());
        }
        self.restarting(|| {
            let owner = self.owner();
            let _inside = self.segment.enter_table(owner);
            self.correct_inside(identity, fields, owner, &born)
        })
    }

    fn correct_inside(
        &self,
        identity: Identity,
        fields: &mut StatFields,
        owner: Owner,
        born: &impl Fn() -> u64,
    ) -> Result<Correction, Errno> {
        let mut doubtful = false;
        if self.may_be_namesake(identity, fields, owner)?
            && let born @ 1.. = born()
        {
            let known = |file| self.segment.file(file).born_ns.load(Ordering::Acquire);
            let other = |file: Option<FileId>| file.is_some_and(|file| known(file) != born);
            if self.segment.with_file(identity, owner, other)? {
                return Ok(Correction::default());
            }
        }
        let ahead = self.segment.with_file(identity, owner, |file| {
            let file = file.filter(|&file| !self.segment.file(file).has(FileFlags::DIRECT))?;
            let record = self.segment.file(file);
            record.set(FileFlags::LOOKED_AT);
            let goal = record.truncated_to();
            let changed = record.changed_ns.load(Ordering::Relaxed);
            if record.is_borrowed() && !record.lease.load().is_unsure() {
                fields.size = record.size.load(Ordering::Acquire);
                fields.mtime_ns = record.mtime_ns.load(Ordering::Acquire);
                fields.changed_ns = fields.changed_ns.max(fields.mtime_ns);
                // Which of it are holes only the node knows that lends it.
                let dense = dense_units(fields.size);
                fields.blocks = fields.blocks.max(dense);
                return Some(None);
            }
            if record.is_shared() {
                // No node makes it shorter. Its times are the store's, of all nodes' flushes.
                let size = record.size.load(Ordering::Acquire);
                let grows = size > fields.size;
                fields.size = fields.size.max(size);
                return grows.then_some(Some(file));
            }
            if !record.has(FileFlags::METADATA_DIRTY) {
                doubtful = fields.size != record.size.load(Ordering::Acquire)
                    || fields.mtime_ns != record.mtime_ns.load(Ordering::Relaxed);
                // What the flush did to the time of change is not the program's doing.
                let noted = record.store_changed_ns.load(Ordering::Relaxed) == fields.changed_ns;
                let ours = noted && changed != fields.changed_ns;
                if ours {
                    // Also where the kernel's clock is behind what a program has seen.
                    fields.changed_ns = changed;
                } else if changed < fields.changed_ns {
                    // Perhaps of a flush under way: what a program has seen never goes back.
                    record.changed_ns.fetch_max(fields.changed_ns, Ordering::Relaxed);
                }
                if let Some(goal) = goal {
                    (fields.size, doubtful) = (goal, false);
                }
                return (ours || goal.is_some()).then_some(None);
            }
            fields.size = goal.unwrap_or_else(|| record.size.load(Ordering::Acquire));
            fields.mtime_ns = record.mtime_ns.load(Ordering::Relaxed);
            fields.changed_ns = changed;
            Some(Some(file))
        })?;
        if let Some(Some(file)) = ahead {
            let dense = dense_units(fields.size);
            fields.blocks = self.blocks(file, dense, fields.blocks);
            // What was flushed after the kernel was asked is neither there nor pending any more.
            doubtful |= fields.blocks < dense;
        }
        Ok(Correction { changed: ahead.is_some(), doubtful, at_least: None })
    }

    /// Whether what the record says may be about an older file with the inode: one that was
    /// deleted, or whose status the store has changed in a way that no flush did. The caller is in
    /// the table.
    fn may_be_namesake(
        &self,
        identity: Identity,
        fields: &StatFields,
        owner: Owner,
    ) -> Result<bool, Errno> {
        self.segment.with_file(identity, owner, |file| {
            let Some(file) = file else { return false };
            let record = self.segment.file(file);
            let changed = record.store_changed_ns.load(Ordering::Relaxed) != fields.changed_ns;
            (record.has(FileFlags::METADATA_DIRTY) || record.truncated_to().is_some())
                && (changed || record.has(FileFlags::UNLINKED))
        })
    }

    /// Units of 512 bytes of a file that is ahead of the store: what the store has, and what it
    /// will get, but not more than `dense`, a file without holes.
    fn blocks(&self, file: FileId, dense: u64, stored: u64) -> u64 {
        const RUNS_MAX: u32 = 1024;
        let (mut pending, mut runs) = (0, 0);
        self.segment.for_each_pending(file, 0, |range| {
            pending += (range.end - range.start) / STAT_UNIT;
            runs += 1;
            // A file of so many runs is not looked at to its end.
            runs < RUNS_MAX
        });
        let pending = if runs < RUNS_MAX { pending } else { dense };
        stored.max(dense.min(stored + pending))
    }

    /// Calls `act`, which sets the times of a file, while no flush can set them too. If it says so,
    /// programs see `mtime` from then on, and a later flush restores it.
    ///
    /// # Errors
    /// `INTR`; `act` was not called.
    pub fn set_times(
        &self,
        device: u64,
        inode: u64,
        mtime: NewTime,
        act: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        let identity = Identity { device, inode };
        let (table, file, inside) = self.restarting(|| {
            let owner = self.owner();
            let table = self.segment.enter_table(owner);
            let file = self.segment.with_file(identity, owner, |file| file)?;
            let inside = file.map(|file| self.enter_known(file, owner)).transpose()?;
            Ok((table, file, inside.flatten()))
        })?;
        if let Some(file) = file {
            self.segment.file(file).set(FileFlags::STORE_WRITTEN);
        }
        if act()
            && let (Some(file), Some(_)) = (file, &inside)
        {
            let record = self.segment.file(file);
            if record.identity() == identity {
                let now = self.time_of_change(record, clock::realtime_coarse_ns());
                record.changed_ns.fetch_max(now, Ordering::Relaxed);
                match mtime {
                    NewTime::Kept => {}
                    NewTime::Now => record.mtime_ns.store(now, Ordering::Release),
                    NewTime::At(mtime) => record.mtime_ns.store(mtime, Ordering::Release),
                }
            }
        }
        drop(inside);
        drop(table);
        Ok(())
    }

    /// Enters a file of which this process may have no descriptor. `None` if a dead process has it
    /// for itself.
    fn enter_known(&self, file: FileId, owner: Owner) -> Result<Option<SharedGuard<'_>>, Errno> {
        let mut backoff = Backoff::default();
        loop {
            match self.segment.try_enter(file, owner) {
                Ok(inside) => return Ok(Some(inside)),
                Err(holder) if backoff.wait() => {
                    if self.segment.clients().is_dead(holder) {
                        return Ok(None);
                    }
                    self.segment.ends_wait_in_time(holder, &backoff)?;
                }
                Err(_) => {}
            }
        }
    }

    /// Notes that a program changed a file's status: its mode, its owner, its names. A write that
    /// follows clears set-id bits of `mode`.
    pub(crate) fn status_changed(&self, device: u64, inode: u64, mode: u32) {
        let note = |file: Option<FileId>| {
            if let Some(file) = file {
                note_status(self, self.segment.file(file), mode);
            }
        };
        // It has happened.
        let _ = surely(|| self.with_record(Identity { device, inode }, note));
    }
}

impl OpenFile<'_> {
    /// The same of this file, where `mode` was set, or 0 where it was not. False, and nothing was
    /// done, if the descriptor is not what it was.
    pub(crate) fn status_changed(&self, mode: u32) -> bool {
        let Ok(_inside) = self.enter_beside(self.session.owner()) else { return false };
        note_status(self.session, self.record, mode);
        true
    }
}

fn note_status(session: &Session, record: &FileRecord, mode: u32) {
    let now = session.time_of_change(record, clock::realtime_coarse_ns());
    record.changed_ns.fetch_max(now, Ordering::Relaxed);
    if mode & SET_ID_BITS != 0 {
        record.set(FileFlags::SET_ID);
    }
    if mode & 0o111 != 0 {
        record.set(FileFlags::EXECUTABLE);
    }
}

/// What becomes of a modification time that a program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// It stays.
    Kept,
    /// The time of the call.
    Now,
    /// Nanoseconds of CLOCK_REALTIME.
    At(u64),
}

/// From where an offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The beginning.
    Start,
    /// The description's offset.
    Current,
    /// The file's size.
    End,
    /// The next data at or behind the offset.
    Data,
    /// The next hole at or behind the offset; there is one at the end.
    Hole,
}
