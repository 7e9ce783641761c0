//! Real I/O by the application itself: the backing store through its own descriptor, and slots of
//! file tiers. Where a tier or a store is emulated, the caller sleeps as long as the device would
//! take.

use crate::fd::{borrow, hide, reopen};
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::span::{Readable, Span, Writable};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_device::{BackingStore, SlotDevice, Stat, StoreFile};
use forebay_placement::NodeId;
use forebay_pool::BucketId;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::clock;
use forebay_pool::crash;
use forebay_pool::layout::*;
use forebay_pool::power_loss;
use forebay_pool::private::{self, Wrong};
use forebay_pool::segment::text;
use forebay_pool::slot_head::Foreign;
use forebay_pool::slot_record::{INDEX_END, JOURNAL_END, RECORD_BYTES, SLOTS_END};
use forebay_posix::{FileSlots, Positional, PosixStore, whole};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::fs::{OFlags, copy_file_range};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};

/// Pieces of an append that are written in one go.
const APPENDED: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Occupies an emulated device for the time that `bytes` take, and waits until then. `next_free` is
/// when it is free again.
fn occupy(device: &Emulation, next_free: &AtomicU64, direction: Direction, bytes: usize) {
    let bandwidth = match direction {
        Direction::Read => device.read_bandwidth,
        Direction::Write => device.write_bandwidth,
    };
    if bandwidth == 0 && device.latency_ns == 0 {
        return;
    }
    let now = clock::monotonic_ns();
    let latency_ns = device.latency_ns;
    let wake =
        forebay_placement::occupy(next_free, now, bytes as u64, bandwidth, latency_ns).wake_ns;
    forebay_posix::sleep_until(wake);
}

/// All stores, by the descriptors that the program has of their files.
static STORE: PosixStore = PosixStore::of_descriptors();

/// Reads to `to` from `offset`, up to the end of the file. Returns the bytes read.
fn read(fd: RawFd, to: Span<'_, Writable>, offset: u64) -> Result<usize, Errno> {
    // SAFETY: writable spans, which others may write, too.
    unsafe { STORE.read(StoreFile::new(fd), offset, to.raw()) }
}

/// The same by one call: fewer bytes wherever the kernel says so.
fn read_once(fd: RawFd, to: Span<'_, Writable>, offset: u64) -> Result<usize, Errno> {
    // SAFETY: a writable span, which others may write, too.
    unsafe { whole::read_once(StoreFile::new(fd), offset, to.raw()) }
}

/// Writes `from` at `offset`; on an error after some bytes, their number.
pub(crate) fn write(fd: RawFd, from: Span<'_, Readable>, offset: u64) -> Result<usize, Errno> {
    power_loss::writing(borrow(fd), offset, from.len() as u64);
    // SAFETY: a readable span, which others may write.
    unsafe { STORE.write(StoreFile::new(fd), offset, from.raw()) }
}

/// [`write()`] through a descriptor with O_SYNC or O_DSYNC: what is written is durable.
pub(crate) fn write_through(
    fd: RawFd,
    from: Span<'_, Readable>,
    offset: u64,
) -> Result<usize, Errno> {
    power_loss::writing(borrow(fd), offset, from.len() as u64);
    let began = clock::monotonic_ns();
    // SAFETY: a readable span, which others may write.
    let written = unsafe { STORE.write(StoreFile::new(fd), offset, from.raw()) }?;
    power_loss::wrote_through(borrow(fd), offset, written as u64, began);
    Ok(written)
}

/// What the store says of the file.
///
/// # Errors
/// The store's errno.
pub(crate) fn stat(fd: RawFd) -> Result<Stat, Errno> {
    STORE.stat(StoreFile::new(fd))
}

/// What a block answers that lies in a bucket of `node`, which is not this one: the one place from
/// which a program would ask its node manager for it. No node lends buckets yet, so that the entry
/// is damaged.
#[cold]
pub(crate) fn elsewhere(_node: NodeId) -> Errno {
    Errno::IO
}

/// Makes the file durable on its store.
///
/// # Errors
/// The store's errno.
pub(crate) fn fsync(fd: RawFd) -> Result<(), Errno> {
    let began = clock::monotonic_ns();
    STORE.sync(StoreFile::new(fd))?;
    power_loss::synced(borrow(fd), began);
    Ok(())
}

/// Gives the store's file a size.
///
/// # Errors
/// The store's errno; `INVAL` or `BADF` if the descriptor may not write.
pub(crate) fn truncate(fd: RawFd, size: u64) -> Result<(), Errno> {
    power_loss::resizing(borrow(fd), size);
    STORE.truncate(StoreFile::new(fd), size)
}

/// Lets a range of the store's file be zeros.
///
/// # Errors
/// The store's errno; `BADF` if the descriptor may not write.
pub(crate) fn punch(fd: RawFd, range: Range<u64>) -> Result<(), Errno> {
    power_loss::writing(borrow(fd), range.start, range.end - range.start);
    STORE.punch(StoreFile::new(fd), range)
}

/// Gives the store's file a modification time, in nanoseconds as in its record.
///
/// # Errors
/// The store's errno; `PERM` where the file is another user's.
pub(crate) fn set_modified(fd: RawFd, modified_ns: u64) -> Result<(), Errno> {
    STORE.set_modified(StoreFile::new(fd), modified_ns as i64)
}

/// The file is borrowed, and the store may lack what another node has written: it is waited for
/// that. No program sees this.
pub(crate) const STORE_IS_BEHIND: Errno = Errno::STALE;

impl OpenFile<'_> {
    /// Reads from the backing store through the application's descriptor. A descriptor that may
    /// not read is opened again for it, as far as the file's permissions allow.
    pub(crate) fn store_read(&self, to: Span<'_, Writable>, offset: u64) -> Result<usize, Errno> {
        self.store_read_by(read, to, offset)
    }

    /// The same by one call, which may get less than there is, as a program's own call may.
    pub(crate) fn store_read_once(
        &self,
        to: Span<'_, Writable>,
        offset: u64,
    ) -> Result<usize, Errno> {
        self.store_read_by(read_once, to, offset)
    }

    fn store_read_by(
        &self,
        read: fn(RawFd, Span<'_, Writable>, u64) -> Result<usize, Errno>,
        to: Span<'_, Writable>,
        offset: u64,
    ) -> Result<usize, Errno> {
        let result = if self.may(DescriptionFlags::READ) {
            read(self.fd, to, offset)
        } else {
            self.reader(|fd| read(fd, to, offset))
        };
        self.session.occupy_store(self.record, Direction::Read, to.len());
        if let Ok(got) = result {
            self.missed(got);
        }
        result
    }

    /// Reads what the kernel has in memory of a file on a device that is not emulated, without
    /// waiting for that. May get less than there is.
    ///
    /// # Errors
    /// `AGAIN` if it has nothing of it; another where that cannot be told.
    pub(crate) fn store_read_cached(
        &self,
        to: Span<'_, Writable>,
        offset: u64,
    ) -> Result<usize, Errno> {
        // SAFETY: a writable span, which others may write, too.
        let got = unsafe { whole::read_cached(StoreFile::new(self.fd), offset, to.raw()) }?;
        self.missed(got);
        Ok(got)
    }

    pub(crate) fn missed(&self, bytes: usize) {
        let counters = self.session.counters();
        self.session.count_up(&counters.missed_bytes, bytes as u64);
    }

    /// Whether the kernel's memory is no shorter way to the file's bytes than its store.
    pub(crate) fn is_emulated(&self) -> bool {
        self.session.store_device(self.record).reads_slowly()
    }

    /// Writes to the backing store through the application's descriptor. One that may not write, of
    /// a program that syncs what another one has written, is opened again for it.
    pub(crate) fn store_write(
        &self,
        from: Span<'_, Readable>,
        offset: u64,
    ) -> Result<usize, Errno> {
        let result = if self.may(DescriptionFlags::WRITE) {
            write(self.fd, from, offset)
        } else {
            reopen(self.fd, OFlags::WRONLY).and_then(|fd| write(fd.as_raw_fd(), from, offset))
        };
        self.session.occupy_store(self.record, Direction::Write, from.len());
        self.record.clear(FileFlags::SYNCED);
        result
    }

    /// The same of what the kernel copies from `from`: at `at`, or at its own offset, which moves.
    pub(crate) fn store_copy(
        &self,
        from: RawFd,
        mut at: Option<u64>,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, Errno> {
        power_loss::writing(borrow(self.fd), offset, bytes as u64);
        let (from, to, mut there) = (borrow(from), borrow(self.fd), offset);
        let copied = copy_file_range(from, at.as_mut(), to, Some(&mut there), bytes)?;
        self.session.occupy_store(self.record, Direction::Write, copied);
        self.record.clear(FileFlags::SYNCED);
        Ok(copied)
    }
}

impl OpenFile<'_> {
    /// Has the kernel write the first `length` bytes of `pieces` to the end of the store's file, in
    /// one go where they are few. `end` is where it ended a moment ago. Returns the bytes written;
    /// on an error after some, their number.
    ///
    /// # Errors
    /// The store's errno.
    pub(crate) fn store_append(
        &self,
        pieces: &[Span<'_, Readable>],
        length: usize,
        end: u64,
    ) -> Result<usize, Errno> {
        let (mut done, mut at) = (0, 0);
        while done < length {
            let mut slices = [IoSlice::new(&[]); APPENDED];
            let (mut bytes, mut number) = (0, 0);
            for (slice, piece) in slices.iter_mut().zip(pieces.get(at..).unwrap_or_default()) {
                let piece = piece.first(length - done - bytes);
                *slice = IoSlice::new(piece.bytes());
                (bytes, number) = (bytes + piece.len(), number + 1);
            }
            power_loss::writing(borrow(self.fd), end + done as u64, bytes as u64);
            // Not at an offset, and the description's stays what it is.
            let put = pwritev2(borrow(self.fd), &slices[..number], 0, ReadWriteFlags::APPEND);
            self.session.occupy_store(self.record, Direction::Write, bytes);
            self.record.clear(FileFlags::SYNCED);
            match put {
                Err(errno) if done == 0 => return Err(errno),
                Ok(put) if put == bytes => (done, at) = (done + put, at + number),
                Ok(put) => return Ok(done + put),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

impl Session {
    /// The bytes of RAM bucket `bucket`, to be used by the protocol of its lock.
    #[inline(always)]
    pub(crate) fn ram(&self, bucket: BucketId) -> Span<'_, Writable> {
        // SAFETY: the segment is mapped as long as the session, and its buckets are never borrowed.
        unsafe { Span::new(self.segment.bucket_data(bucket), self.segment.bucket_bytes()) }
    }

    fn store_device(&self, file: &FileRecord) -> &Emulation {
        let store = file.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        &self.segment.header().store[store].emulation
    }

    fn occupy_store(&self, file: &FileRecord, direction: Direction, bytes: usize) {
        let next_free = self.segment.store_next_free(file.store.load(Ordering::Relaxed) as usize);
        occupy(self.store_device(file), next_free, direction, bytes);
    }

    fn occupy_tier(&self, tier: TierId, direction: Direction, bytes: usize) {
        let device = &self.segment.header().tier[tier].emulation;
        occupy(device, &device.next_free_ns, direction, bytes);
    }

    /// The journal's file, beside the slots of the fastest file tier that took it.
    ///
    /// # Errors
    /// The errno of opening it, `NOENT` if there is none.
    pub(crate) fn open_journal(&self) -> Result<rustix::fd::OwnedFd, Errno> {
        let tiers = &self.segment.header().tier;
        let slots = tiers.iter().map(|tier| text(&tier.path).to_bytes());
        let end = JOURNAL_END.as_bytes();
        for stem in slots.filter_map(|path| path.strip_suffix(SLOTS_END.as_bytes())) {
            let mut path = [0; LONG_PATH_BYTES];
            let room = path.get_mut(..stem.len() + end.len()).ok_or(Errno::NAMETOOLONG)?;
            room[..stem.len()].copy_from_slice(stem);
            room[stem.len()..].copy_from_slice(end);
            match private::open(text(&path), OFlags::WRONLY) {
                Err(Wrong::Owner(_)) => {}
                Err(wrong) if wrong.is_missing() => {}
                other => return other.map_err(Wrong::errno),
            }
        }
        Err(Errno::NOENT)
    }

    /// The slots of tier `tier`, as this process reaches them.
    fn slots(&self, tier: TierId) -> Result<FileSlots, Errno> {
        let (file, bytes) = (self.tier_file(tier)?, self.segment.bucket_bytes() as u64);
        Ok(FileSlots::new(StoreFile::new(file), bytes, Positional::open))
    }

    /// The descriptor of the file that holds tier `tier`'s slots.
    pub(crate) fn tier_file(&self, tier: TierId) -> Result<RawFd, Errno> {
        let path = text(&self.segment.header().tier[tier].path);
        self.open_tier(tier.index(), path, self.segment.slots_end(tier))
    }

    /// The descriptor of the table of tier `tier`'s slots, which lies beside them.
    pub(crate) fn index_file(&self, tier: TierId) -> Result<RawFd, Errno> {
        let index = TIERS_MAX + tier.index();
        if let Some(fd) = self.tier_files[index].load(Ordering::Acquire).checked_sub(1) {
            return Ok(fd as RawFd);
        }
        let slots = text(&self.segment.header().tier[tier].path).to_bytes();
        let stem = slots.strip_suffix(SLOTS_END.as_bytes()).ok_or(Errno::NOENT)?;
        let mut path = [0u8; LONG_PATH_BYTES];
        path[..stem.len()].copy_from_slice(stem);
        path[stem.len()..stem.len() + INDEX_END.len()].copy_from_slice(INDEX_END.as_bytes());
        self.open_tier(index, text(&path), self.segment.records_end(tier))
    }

    /// Opens a file of the pool, with its head at `end`.
    fn open_tier(&self, index: usize, path: &core::ffi::CStr, end: u64) -> Result<RawFd, Errno> {
        let known = &self.tier_files[index];
        if let Some(fd) = known.load(Ordering::Acquire).checked_sub(1) {
            return Ok(fd as RawFd);
        }
        if crash::refused("descriptor") {
            return Err(Errno::MFILE);
        }
        let file = private::open(path, OFlags::RDWR).map_err(Wrong::errno)?;
        self.segment.check_head(file.as_fd(), end).map_err(|foreign| match foreign {
            Foreign::System(errno) => errno,
            _ => Errno::STALE,
        })?;
        let fd = hide(file);
        match known.compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(fd),
            Err(theirs) => {
                // SAFETY: just opened here, known to no other thread.
                unsafe { rustix::io::close(fd) };
                Ok(theirs as RawFd - 1)
            }
        }
    }

    /// Fills `to` from byte `within` of a file tier's bucket.
    pub(crate) fn slot_read(
        &self,
        bucket: BucketId,
        within: usize,
        to: Span<'_, Writable>,
    ) -> Result<(), Errno> {
        self.slot_read_pieces(bucket, within, [to])
    }

    /// The same of several pieces, one after the other, by one request.
    pub(crate) fn slot_read_pieces<const N: usize>(
        &self,
        bucket: BucketId,
        within: usize,
        to: [Span<'_, Writable>; N],
    ) -> Result<(), Errno> {
        let mut pieces = to.map(|piece| piece.raw());
        let bytes = forebay_device::Span::total(&pieces);
        let tier = self.segment.tier_of(bucket);
        let slot = self.segment.slot_in_tier(bucket);
        let got = match crash::slot_fault("read") {
            Some(errno) => Err(errno),
            // SAFETY: a writable span, which others may write, too.
            None => self
                .slots(tier)
                .and_then(|slots| unsafe { slots.read(slot, within as u64, &mut pieces) }),
        };
        self.occupy_tier(tier, Direction::Read, bytes);
        self.note_device(tier, got)
    }

    /// Writes `from` to byte `within` of a file tier's bucket.
    pub(crate) fn slot_write(
        &self,
        bucket: BucketId,
        within: usize,
        from: Span<'_, Readable>,
    ) -> Result<(), Errno> {
        let tier = self.segment.tier_of(bucket);
        let slot = self.segment.slot_in_tier(bucket);
        let put = match crash::slot_fault("write") {
            Some(errno) => Err(errno),
            None => self.slots(tier).and_then(|slots| {
                let (file, offset) = slots.locate(slot, within as u64);
                power_loss::writing(borrow(file.number()), offset, from.len() as u64);
                // SAFETY: a readable span, which others may write.
                unsafe { slots.write(slot, within as u64, from.raw()) }
            }),
        };
        self.occupy_tier(tier, Direction::Write, from.len());
        self.note_device(tier, put)
    }

    /// A device that says that it fails, or is full, takes nothing new.
    fn note_device(&self, tier: TierId, result: Result<(), Errno>) -> Result<(), Errno> {
        if let Err(errno) = result {
            self.segment.fail_tier(tier, errno);
        }
        result
    }
}

impl SlotFiles for Session {
    fn read_slot(&self, bucket: BucketId, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.slot_read(bucket, within, to.into())
    }

    fn write_slot(&self, bucket: BucketId, within: usize, from: &[u8]) -> Result<(), Errno> {
        self.slot_write(bucket, within, from.into())
    }

    /// Small beside what it stands for: an emulated device is not charged for it.
    fn write_record(&self, bucket: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
        let fd = self.index_file(self.segment.tier_of(bucket))?;
        let offset = self.segment.record_offset(bucket);
        let put = write(fd, record[..].into(), offset)?;
        if put == record.len() { Ok(()) } else { Err(Errno::IO) }
    }
}
