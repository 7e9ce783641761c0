//! The changes that node managers make to files, as tests undo them to simulate a loss of power
//! (`forebay_pool::power_loss`). Without debug assertions all of this adds nothing.

use forebay_device::{
    BackingStore, Batch, Direction, Errno, Properties, SlotDevice, Span, Stat, StoreFile, Target,
    Transfer,
};
use forebay_pool::{clock, power_loss};
use forebay_posix::{FileSlots, Positional, PosixStore, descriptor};
use forebay_tiers::open_batch;
use rustix::fd::AsFd;
use rustix::fs::SeekFrom;
use std::ops::Range;

/// A batch of files, and of slots in one, whose changes a test can undo.
pub(crate) struct PowerLossBatch {
    inner: Box<dyn Batch>,
    slots: Option<FileSlots>,
}

impl PowerLossBatch {
    /// The fastest that this machine allows; a [`forebay_posix::MakeBatch`].
    pub fn open(slots: Option<FileSlots>, depth: u32) -> Box<dyn Batch> {
        Box::new(PowerLossBatch { inner: open_batch(slots, depth), slots })
    }

    /// One system call at a time, for what is written rarely.
    pub fn plain() -> PowerLossBatch {
        PowerLossBatch { inner: Positional::open(None, 1), slots: None }
    }
}

impl Batch for PowerLossBatch {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for write in transfers.iter().filter(|transfer| transfer.direction() == Direction::Write) {
            let (file, offset) = match (write.target(), self.slots) {
                (Target::Slot(slot), Some(slots)) => slots.locate(slot, write.offset()),
                (Target::Slot(_), None) => continue,
                (Target::File(file), _) => (file, write.offset()),
            };
            writing(file, offset, write.len());
        }
        self.inner.run(transfers);
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        let began = clock::monotonic_ns();
        self.inner.sync(file)?;
        power_loss::synced(descriptor(file)?, began);
        Ok(())
    }
}

/// Before `bytes` are written at `offset`. What is no file is refused by the write itself.
fn writing(file: StoreFile, offset: u64, bytes: u64) {
    if let Ok(file) = descriptor(file) {
        power_loss::writing(file, offset, bytes);
    }
}

/// Before a range that may be mostly holes becomes one: what is there is noted.
fn punching(file: StoreFile, range: Range<u64>) {
    let Ok(fd) = descriptor(file) else { return };
    let mut at = range.start;
    while cfg!(debug_assertions)
        && at < range.end
        && let Ok(data) = rustix::fs::seek(fd, SeekFrom::Data(at))
        && data < range.end
    {
        at = rustix::fs::seek(fd, SeekFrom::Hole(data)).map_or(range.end, |at| at.min(range.end));
        writing(file, data, at - data);
    }
}

/// A tier or a store on POSIX files whose changes a test can undo.
pub(crate) struct PowerLoss<D>(pub D);

impl SlotDevice for PowerLoss<FileSlots> {
    fn properties(&self) -> Properties {
        self.0.properties()
    }

    unsafe fn read(&self, slot: u32, from: u64, into: &mut [Span]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.0.read(slot, from, into) }
    }

    unsafe fn write(&self, slot: u32, from: u64, bytes: Span) -> Result<(), Errno> {
        let (file, offset) = self.0.locate(slot, from);
        writing(file, offset, bytes.bytes as u64);
        // SAFETY: as the caller promises.
        unsafe { self.0.write(slot, from, bytes) }
    }

    fn discard(&self, slots: Range<u32>) -> Result<(), Errno> {
        let (file, start) = self.0.locate(slots.start, 0);
        let (_, end) = self.0.locate(slots.end, 0);
        punching(file, start..end);
        self.0.discard(slots)
    }

    fn batch(&self, depth: u32) -> Box<dyn Batch> {
        self.0.batch(depth)
    }
}

impl BackingStore for PowerLoss<PosixStore> {
    fn stat(&self, file: StoreFile) -> Result<Stat, Errno> {
        self.0.stat(file)
    }

    unsafe fn read(&self, file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.0.read(file, offset, into) }
    }

    unsafe fn write(&self, file: StoreFile, offset: u64, from: Span) -> Result<usize, Errno> {
        writing(file, offset, from.bytes as u64);
        // SAFETY: as the caller promises.
        unsafe { self.0.write(file, offset, from) }
    }

    fn sync(&self, file: StoreFile) -> Result<(), Errno> {
        let began = clock::monotonic_ns();
        self.0.sync(file)?;
        power_loss::synced(descriptor(file)?, began);
        Ok(())
    }

    fn truncate(&self, file: StoreFile, size: u64) -> Result<(), Errno> {
        power_loss::resizing(descriptor(file)?, size);
        self.0.truncate(file, size)
    }

    fn punch(&self, file: StoreFile, range: Range<u64>) -> Result<(), Errno> {
        writing(file, range.start, range.end - range.start);
        self.0.punch(file, range)
    }

    fn set_modified(&self, file: StoreFile, modified_ns: i64) -> Result<(), Errno> {
        self.0.set_modified(file, modified_ns)
    }

    fn sync_all(&self) -> Result<(), Errno> {
        let began = clock::monotonic_ns();
        self.0.sync_all()?;
        if cfg!(debug_assertions) {
            power_loss::synced_all(self.0.open_folder()?.as_fd(), began);
        }
        Ok(())
    }

    fn batch(&self, depth: u32) -> Box<dyn Batch> {
        self.0.batch(depth)
    }
}
