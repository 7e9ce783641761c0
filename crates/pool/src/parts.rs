//! What this node may do with parts of a file that several nodes write, and with its size.
//!
//! A table of fixed size in the pool has the parts that this node holds, of all files whose lease
//! is [`crate::lease::Lease::Shared`]; what is not in it, it does not hold. The node manager alone
//! adds to it and takes away. It takes away what a program may use only with the file exclusively,
//! so that what a program finds while it is inside the file stays until it leaves.
//!
//! A part that was granted is *taken up* by the first program that uses it: it looks at the store's
//! file, which others may have written since, and the manager knows that the grant was of use.
//!
//! ```
//! use forebay_pool::parts::{PART_BYTES, Part, PartLevel};
//!
//! assert_eq!(Part::at(3 * PART_BYTES + 5), Some(Part::from_raw(3)));
//! assert_eq!(Part::at(u64::MAX), None);
//! assert!(PartLevel::Write.covers(PartLevel::Read));
//! assert!(!PartLevel::Shared.covers(PartLevel::Read), "others may make the file longer");
//! ```

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{FileId, crash};
use core::ops::Range;
use forebay_placement::mix;
use rustix::io::Errno;

/// Bytes of a part.
pub const PART_BYTES: u64 = 1 << 20;
/// Places that lie next to each other: two lines of a cache.
const GROUP: usize = 8;
/// How many groups of places a part may be in. With four of eight, a table is some seven tenths
/// full before a part has none; in one row, as many places are all taken when it is half full.
const CHOICES: u64 = 4;

/// Places of a table that a test has made small.
const FEW: usize = 128;

/// A part of a file, or its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part(u32);

impl Part {
    /// The size of the file.
    pub const SIZE: Part = Part(u32::MAX);

    /// As in a message, and in the table.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// From a message, or of the table.
    pub const fn from_raw(raw: u32) -> Part {
        Part(raw)
    }

    /// The part that has the byte at `offset`. `None` where there are no parts any more, from
    /// nearly 4 PiB on.
    pub fn at(offset: u64) -> Option<Part> {
        let part = u32::try_from(offset / PART_BYTES).ok().map(Part)?;
        (part != Part::SIZE).then_some(part)
    }

    /// Where its bytes are; of the size, none.
    pub const fn bytes(self) -> Range<u64> {
        if self.0 == Part::SIZE.0 {
            return 0..0;
        }
        let start = self.0 as u64 * PART_BYTES;
        start..start + PART_BYTES
    }
}

/// Parts that are asked for together with one, as they will be needed next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartsAhead {
    /// How many.
    pub count: u32,
    /// From each to the next; 0 is 1.
    pub stride: u32,
}

/// What a node has of a part, or of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartLevel {
    /// Nothing: no byte of it is buffered.
    None,
    /// It does not change.
    Read,
    /// Of a size: this node, and others, may make the file longer, and none knows how long it is.
    Shared,
    /// No other node has it.
    Write,
    /// Several nodes use it through the kernel: no byte of it is buffered on any.
    Direct,
}

impl PartLevel {
    /// The reverse of `as`.
    pub const fn from_bits(bits: u32) -> Option<PartLevel> {
        Some(match bits {
            0 => PartLevel::None,
            1 => PartLevel::Read,
            2 => PartLevel::Shared,
            3 => PartLevel::Write,
            4 => PartLevel::Direct,
            _ => return None,
        })
    }

    /// Whether this is as good as `wanted`.
    pub const fn covers(self, wanted: PartLevel) -> bool {
        let is_read_shared = matches!((self, wanted), (PartLevel::Shared, PartLevel::Read));
        self as u8 >= wanted as u8 && !is_read_shared
    }
}

/// The word of a lease at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartWord(u32);

const LEVEL: u32 = 7;
const TAKEN: u32 = 1 << 3;
const ERRNO: u32 = 0xfff << 4;
const REFUSAL: u32 = 1 << 16;

impl PartWord {
    /// What this node has.
    pub const fn level(self) -> PartLevel {
        match PartLevel::from_bits(self.0 & LEVEL) {
            Some(level) => level,
            None => PartLevel::None,
        }
    }

    /// Whether a program has taken it up.
    pub const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// Which refusal was the last: differs from an earlier value if there was one since. 0 is none.
    pub const fn refusals(self) -> u32 {
        self.0 >> 16
    }

    /// Why the last one was refused.
    pub fn refused(self) -> Errno {
        match (self.0 & ERRNO) >> 4 {
            0 => Errno::IO,
            errno => Errno::from_raw_os_error(errno as i32),
        }
    }
}

/// One lease, in the table.
#[repr(C)]
pub struct PartLease {
    /// The file record plus one in the upper half, the part below; 0 is a free place.
    key: AtomicU64,
    word: AtomicU32,
    unused: AtomicU32,
}

impl PartLease {
    /// What it is now.
    pub fn load(&self) -> PartWord {
        PartWord(self.word.load(Ordering::Acquire))
    }

    /// The group has granted `level`, and no program has taken it up yet. The node manager alone.
    pub fn grant(&self, level: PartLevel) {
        self.change(|word| word & !(LEVEL | TAKEN) | level as u32);
    }

    /// What was granted is in use. The caller is inside the file, and the record knows how long the
    /// store's file is.
    pub fn take_up(&self) {
        self.word.fetch_or(TAKEN, Ordering::AcqRel);
    }

    /// This node has no more than `left`. The node manager alone, which has the file exclusively.
    pub fn reduce(&self, left: PartLevel) {
        self.change(|word| word & !LEVEL | left as u32);
    }

    /// What programs wait for cannot be had. The node manager alone.
    pub fn refuse(&self, why: Errno) {
        self.change(|word| {
            let errno = (why.raw_os_error() as u32) << 4 & ERRNO;
            // Never 0.
            let next = match word.wrapping_add(REFUSAL) & !(REFUSAL - 1) {
                0 => REFUSAL,
                count => count,
            };
            next | errno | word & (LEVEL | TAKEN)
        });
    }

    fn change(&self, change: impl Fn(u32) -> u32) {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.word.fetch_update(order.0, order.1, |word| Some(change(word)));
    }
}

/// The table. Any thread may look at it; the node manager's keeper of leases alone
/// changes it, one thread at a time.
#[derive(Clone, Copy)]
pub struct PartLeases<'s> {
    places: &'s [PartLease],
}

const fn key(file: FileId, part: Part) -> u64 {
    (file.raw() as u64 + 1) << 32 | part.raw() as u64
}

impl<'s> PartLeases<'s> {
    pub(crate) fn new(places: &'s [PartLease]) -> Self {
        PartLeases { places }
    }

    /// The places that a part may have. Those of parts that follow each other lie apart: long runs
    /// of two files would be in each other's way in a table that is nearly free.
    fn places_of(self, file: FileId, part: Part) -> impl Iterator<Item = &'s PartLease> {
        let key = mix(key(file, part));
        let groups = if crash::planted("few-parts") { FEW } else { self.places.len() } / GROUP;
        let group = move |choice| mix(key ^ choice) as usize % groups.max(1) * GROUP;
        (0..CHOICES).flat_map(move |choice| self.places.iter().skip(group(choice)).take(GROUP))
    }

    /// The lease of a part. The caller is inside the file if what it finds is to stay.
    pub fn find(self, file: FileId, part: Part) -> Option<&'s PartLease> {
        let key = key(file, part);
        self.places_of(file, part).find(|lease| lease.key.load(Ordering::Acquire) == key)
    }

    /// The word of the lease of a part; all zero if it has none.
    pub fn load(self, file: FileId, part: Part) -> PartWord {
        self.find(file, part).map_or(PartWord(0), PartLease::load)
    }

    /// The lease of a part, of which this node has nothing if it is a new one. `None` if there is
    /// no place for it. The node manager alone.
    pub fn insert(self, file: FileId, part: Part) -> Option<&'s PartLease> {
        if let Some(found) = self.find(file, part) {
            return Some(found);
        }
        let mut places = self.places_of(file, part);
        let free = places.find(|lease| lease.key.load(Ordering::Relaxed) == 0)?;
        free.word.store(0, Ordering::Relaxed);
        free.key.store(key(file, part), Ordering::Release);
        Some(free)
    }

    /// Of the leases that are where that of a part would have to be, one that can make room for it.
    pub fn in_the_way(self, file: FileId, part: Part) -> impl Iterator<Item = (FileId, Part)> {
        self.places_of(file, part).filter_map(PartLease::whose)
    }

    /// Forgets the lease of a part. The node manager alone; where programs may use it, with the
    /// file exclusively.
    pub fn remove(self, file: FileId, part: Part) {
        if let Some(lease) = self.find(file, part) {
            lease.key.store(0, Ordering::Release);
        }
    }

    /// Forgets all leases of parts of a file. As of [`PartLeases::remove`].
    pub fn remove_all(self, file: FileId) {
        for (_, part) in self.all().filter(|(of, _)| *of == file) {
            self.remove(file, part);
        }
    }

    /// All parts that have a lease.
    pub fn all(self) -> impl Iterator<Item = (FileId, Part)> {
        self.places.iter().filter_map(PartLease::whose)
    }
}

impl PartLease {
    fn whose(&self) -> Option<(FileId, Part)> {
        let key = self.key.load(Ordering::Acquire);
        let file = ((key >> 32) as u32).checked_sub(1)?;
        Some((FileId::from_raw(file), Part::from_raw(key as u32)))
    }
}
