//! The calls that the processes of a run make, for `forebay run --record`: memory of the run that
//! its processes share, with a place for each call, and behind them one for
//! [`crate::spans`]. No process waits for another one there, and one that is killed leaves
//! at most its last call out.
//!
//! ```
//! use forebay_pool::calls::{Call, CallKind, Calls, Wanted};
//!
//! let memory = Calls::memory(Wanted::CALLS)?;
//! let (run, program) = (Calls::of(&memory)?.unwrap(), Calls::of(&memory)?.unwrap());
//! let call = Call { kind: CallKind::Write, inode: 7, bytes: 4096, ..Call::default() };
//! program.add(&call);
//! assert_eq!(run.iter().collect::<Vec<_>>(), [call]);
//! assert_eq!(run.missed(), 0);
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use crate::spans;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Calls that a run can record: 64 MiB of memory, of which those have some that are used. A program
/// that calls a thousand times a second fills it in a quarter of an hour.
pub const CALLS_MAX: usize = 1 << 20;
/// Bytes of a path that are recorded.
pub const PATH_MAX: usize = 255;
const PATH_PART: usize = 32;

/// What a process did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum CallKind {
    /// Opened a file.
    #[default]
    Open = 1,
    /// Opened it and cut it to nothing.
    Create = 2,
    /// Read.
    Read = 3,
    /// Wrote.
    Write = 4,
    /// Gave up its last descriptor of an open-file description.
    Close = 5,
    /// No call, but a part of a file's path.
    Path = 6,
    /// Gave a file another size: `offset`.
    Truncate = 7,
    /// Took a file's last name away.
    Remove = 8,
}

impl CallKind {
    const ALL: [CallKind; 8] = [
        Self::Open,
        Self::Create,
        Self::Read,
        Self::Write,
        Self::Close,
        Self::Path,
        Self::Truncate,
        Self::Remove,
    ];
}

/// A call of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// What it did.
    pub kind: CallKind,
    /// The process.
    pub process: u32,
    /// Its thread, of the process's own count.
    pub thread: u32,
    /// The file's device.
    pub device: u64,
    /// The file.
    pub inode: u64,
    /// Where in the file.
    pub offset: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// When it began and ended, in nanoseconds of CLOCK_REALTIME.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
}

/// One cache line each; what is written last says that the rest is.
#[repr(C)]
#[derive(Default)]
struct Place {
    kind: AtomicU32,
    process: AtomicU32,
    thread: AtomicU32,
    spare: AtomicU32,
    numbers: [AtomicU64; 6],
}

/// The recorded calls, as one process has them mapped.
#[derive(Debug)]
pub struct Calls {
    base: *mut Place,
}

// SAFETY: a mapping of atomics, which stays as long as this does.
unsafe impl Send for Calls {}
// SAFETY: as above.
unsafe impl Sync for Calls {}

/// What is noted of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted(u64);

impl Wanted {
    /// Each call, for `run --record`.
    pub const CALLS: Wanted = Wanted(1);
    /// What threads spend their time on, see [`crate::spans`].
    pub const SPANS: Wanted = Wanted(2);

    /// Both.
    pub const fn and(self, other: Wanted) -> Wanted {
        Wanted(self.0 | other.0)
    }

    /// Whether all of `other` is wanted.
    pub const fn contains(self, other: Wanted) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The first place counts, and says what is wanted.
const PLACES: usize = CALLS_MAX + 1;
/// Mappings begin at a page, whatever size pages have.
const PAGE_MAX: usize = 64 << 10;
pub(crate) const BYTES: usize = (PLACES * size_of::<Place>()).next_multiple_of(PAGE_MAX);
/// With the spans behind it.
pub(crate) const TOTAL_BYTES: usize = BYTES + spans::BYTES;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Where it says what is wanted: behind the count of calls.
const WANTED_AT: u64 = (core::mem::offset_of!(Place, numbers) + size_of::<u64>()) as u64;

/// What the memory of a run says is wanted.
///
/// # Errors
/// The system's; `INVAL` if it is not memory of a run.
pub(crate) fn check(memory: &impl AsFd) -> Result<Wanted, Errno> {
    // Only such memory is sealed: another process may have the number of a run that is gone, and
    // its descriptor be of anything.
    let is_sealed = rustix::fs::fcntl_get_seals(memory)?.contains(SEALS);
    if !is_sealed || rustix::fs::fstat(memory)?.st_size as usize != TOTAL_BYTES {
        return Err(Errno::INVAL);
    }
    let mut wanted = [0; 8];
    rustix::io::pread(memory, &mut wanted, WANTED_AT)?;
    Ok(Wanted(u64::from_ne_bytes(wanted)))
}

impl Calls {
    /// Memory for what is noted of a run.
    ///
    /// # Errors
    /// The system's.
    pub fn memory(wanted: Wanted) -> Result<OwnedFd, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create(c"forebay-calls", flags)?;
        rustix::fs::ftruncate(&memory, TOTAL_BYTES as u64)?;
        rustix::io::pwrite(&memory, &wanted.0.to_ne_bytes(), WANTED_AT)?;
        // Its processes have it mapped: no other process takes pages away from them.
        rustix::fs::fcntl_add_seals(&memory, SEALS)?;
        Ok(memory)
    }

    /// Maps such memory, `None` if no calls are wanted.
    ///
    /// # Errors
    /// The system's; `INVAL` if it is not memory of a run.
    pub fn of(memory: impl AsFd) -> Result<Option<Calls>, Errno> {
        if !check(&memory)?.contains(Wanted::CALLS) {
            return Ok(None);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a size that the memory has.
        let base =
            unsafe { mmap(core::ptr::null_mut(), BYTES, access, MapFlags::SHARED, memory, 0)? };
        Ok(Some(Calls { base: base.cast() }))
    }

    fn places(&self) -> &[Place] {
        // SAFETY: the mapping; zeros are valid.
        unsafe { core::slice::from_raw_parts(self.base, PLACES) }
    }

    fn count(&self) -> &AtomicU64 {
        &self.places()[0].numbers[0]
    }

    /// Notes a call. It is missed where there is no place any more.
    pub fn add(&self, call: &Call) {
        let taken = self.count().fetch_add(1, Ordering::Relaxed) as usize;
        let Some(place) = self.places().get(taken.saturating_add(1)) else { return };
        place.process.store(call.process, Ordering::Relaxed);
        place.thread.store(call.thread, Ordering::Relaxed);
        let Call { device, inode, offset, bytes, start_ns, end_ns, .. } = *call;
        for (place, number) in
            place.numbers.iter().zip([device, inode, offset, bytes, start_ns, end_ns])
        {
            place.store(number, Ordering::Relaxed);
        }
        place.kind.store(call.kind as u32, Ordering::Release);
    }

    /// Notes the path of a file, as far as there is room for it.
    pub fn add_path(&self, device: u64, inode: u64, path: &[u8]) {
        let path = &path[..path.len().min(PATH_MAX)];
        for (part, piece) in path.chunks(PATH_PART).enumerate() {
            let mut bytes = [0; PATH_PART];
            bytes[..piece.len()].copy_from_slice(piece);
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
            self.add(&Call {
                kind: CallKind::Path,
                process: part as u32,
                thread: path.len() as u32,
                device,
                inode,
                offset: word(0),
                bytes: word(8),
                start_ns: word(16),
                end_ns: word(24),
            });
        }
    }

    /// All that was noted in full, in the order in which it was begun.
    pub fn iter(&self) -> impl Iterator<Item = Call> + '_ {
        let count = self.count().load(Ordering::Acquire).min(CALLS_MAX as u64) as usize;
        self.places()[1..=count].iter().filter_map(|place| {
            let kind = place.kind.load(Ordering::Acquire);
            let kind = CallKind::ALL.into_iter().find(|known| *known as u32 == kind)?;
            let number = |at: usize| place.numbers[at].load(Ordering::Relaxed);
            Some(Call {
                kind,
                process: place.process.load(Ordering::Relaxed),
                thread: place.thread.load(Ordering::Relaxed),
                device: number(0),
                inode: number(1),
                offset: number(2),
                bytes: number(3),
                start_ns: number(4),
                end_ns: number(5),
            })
        })
    }

    /// Calls for which there was no place.
    pub fn missed(&self) -> u64 {
        self.count().load(Ordering::Relaxed).saturating_sub(CALLS_MAX as u64)
    }
}

impl Call {
    /// Of a part of a path: which part it is, the length of the whole path, and its bytes.
    pub fn path_part(&self) -> Option<(usize, usize, [u8; PATH_PART])> {
        let mut bytes = [0; PATH_PART];
        let words = [self.offset, self.bytes, self.start_ns, self.end_ns];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let is_part = self.kind == CallKind::Path;
        is_part.then_some((self.process as usize * PATH_PART, self.thread as usize, bytes))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // SAFETY: the mapping, which nothing refers to any more.
        let _ = unsafe { munmap(self.base.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_in_parts() {
        let calls = Calls::of(Calls::memory(Wanted::CALLS).unwrap()).unwrap().unwrap();
        let path = "/some/where/".repeat(5) + "file";
        calls.add_path(3, 9, path.as_bytes());
        let mut whole = Vec::new();
        for call in calls.iter() {
            let (at, length, bytes) = call.path_part().unwrap();
            assert_eq!((call.device, call.inode, length), (3, 9, path.len()));
            assert_eq!(at, whole.len());
            whole.extend(bytes);
        }
        whole.truncate(path.len());
        assert_eq!(whole, path.as_bytes());
    }

    #[test]
    fn what_has_no_place_is_counted() {
        let calls = Calls::of(Calls::memory(Wanted::CALLS).unwrap()).unwrap().unwrap();
        calls.count().store(CALLS_MAX as u64 - 1, Ordering::Relaxed);
        let call = Call { kind: CallKind::Close, process: 5, ..Call::default() };
        (0..3).for_each(|_| calls.add(&call));
        assert_eq!((calls.iter().collect::<Vec<_>>(), calls.missed()), (vec![call], 2));
    }

    #[test]
    fn other_memory_is_refused() {
        let memory = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, TOTAL_BYTES as u64).unwrap();
        assert_eq!(Calls::of(memory).unwrap_err(), Errno::INVAL);
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(Calls::of(other).unwrap_err(), Errno::INVAL);
        let calls = Calls::memory(Wanted::CALLS).unwrap();
        assert!(rustix::fs::ftruncate(&calls, 0).is_err());
        assert!(Calls::of(Calls::memory(Wanted::SPANS).unwrap()).unwrap().is_none());
    }
}
