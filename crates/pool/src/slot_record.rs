//! The slot table: one record of 1 KiB for each slot of a file tier, in a file beside the slots. It
//! says which pages of which file a slot holds, so that they are found again when the segment is
//! gone.
//!
//! ```
//! use forebay_pool::SlotRecord;
//!
//! let mut record = SlotRecord::void(4);
//! (record.device, record.inode, record.block) = (1, 2, 3);
//! record.set_path(b"/store/file".iter().copied());
//! let bytes = record.encode();
//! assert!(SlotRecord::decode(&bytes) == Ok(Some(record)));
//! let mut damaged = bytes;
//! damaged[100] ^= 1;
//! assert!(SlotRecord::decode(&damaged).is_err());
//! ```

use crate::checksum::checksum_of;
use crate::layout::{FileFlags, FileRecord, PAGES_PER_BUCKET, PATH_BYTES};
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::{BucketId, FileId};
use core::ffi::CStr;
use core::fmt;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 1024;
/// Bytes of a path that fit into a record.
pub const RECORD_PATH_BYTES: usize = SUM_AT - PATH_AT;
/// How the name of a tier's slots ends, and how those of their table and of the journal beside them
/// do.
pub const SLOTS_END: &str = ".slots";
/// See [`SLOTS_END`].
pub const INDEX_END: &str = ".index";
/// See [`SLOTS_END`].
pub const JOURNAL_END: &str = ".journal";

const MAGIC: u64 = u64::from_le_bytes(*b"FBSLOT\0\x01");
/// Of records; these and the magic number and checksum stay where they are in every later version.
pub const VERSION: u32 = 1;
const PAGES: usize = PAGES_PER_BUCKET as usize;
/// Nine words, four halves, the sums of the pages, the path, and the record's own sum.
const SUMS_AT: usize = 104;
const PATH_AT: usize = SUMS_AT + PAGES * 4;
const SUM_AT: usize = RECORD_BYTES - 4;

/// What a slot holds.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotRecord {
    /// Identity of the file: device.
    pub device: u64,
    /// Identity: inode.
    pub inode: u64,
    /// Identity: time of birth, in nanoseconds; 0 if the store does not know.
    pub born_ns: u64,
    /// Bytes of the file when this was written.
    pub size: u64,
    /// Its modification time then, CLOCK_REALTIME nanoseconds.
    pub mtime_ns: u64,
    /// Block of the file.
    pub block: u64,
    /// Pages that hold the block's content.
    pub valid: u64,
    /// Pages that the store does not have. With none, the record is void.
    pub dirty: u64,
    /// When this was written: see [`Segment::next_sequence`].
    pub sequence: u64,
    /// Which store.
    pub store: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Identity: checksum of the kernel's handle of the file; 0 is not known.
    pub handle: u32,
    /// Checksums of the pages; 0 is not known.
    pub sums: [u32; PAGES],
    path: [u8; RECORD_PATH_BYTES],
    path_length: u32,
}

/// Why a record cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// Its checksum is wrong, or no version of Forebay wrote it.
    Damaged,
    /// It is of this version of records, which is another one.
    Version(u32),
}

impl fmt::Debug for SlotRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotRecord")
            .field("inode", &self.inode)
            .field("block", &self.block)
            .field("valid", &self.valid)
            .field("dirty", &self.dirty)
            .field("sequence", &self.sequence)
            .field("path", &String::from_utf8_lossy(self.path()))
            .finish_non_exhaustive()
    }
}

impl SlotRecord {
    /// A record that says that a slot holds nothing that the store lacks.
    pub fn void(sequence: u64) -> SlotRecord {
        SlotRecord {
            device: 0,
            inode: 0,
            born_ns: 0,
            size: 0,
            mtime_ns: 0,
            block: 0,
            valid: 0,
            dirty: 0,
            sequence,
            store: 0,
            page_bytes: 0,
            handle: 0,
            sums: [0; PAGES],
            path: [0; RECORD_PATH_BYTES],
            path_length: 0,
        }
    }

    /// The path under which the file was opened; empty if it was too long. A hint.
    pub fn path(&self) -> &[u8] {
        &self.path[..(self.path_length as usize).min(RECORD_PATH_BYTES)]
    }

    /// Keeps `path`, if it fits.
    pub fn set_path(&mut self, path: impl Iterator<Item = u8>) {
        self.path_length = 0;
        for byte in path {
            if self.path_length as usize == RECORD_PATH_BYTES {
                self.path_length = 0;
                return;
            }
            self.path[self.path_length as usize] = byte;
            self.path_length += 1;
        }
    }

    /// Whether `bytes`, read from page `page` of the slot, are what the record is about. Of a page
    /// without a sum that cannot be known.
    pub fn page_agrees(&self, page: usize, bytes: &[u8]) -> bool {
        let known = self.sums[page % self.sums.len()];
        known != 0 && known == checksum_of(bytes)
    }

    /// Whether both say the same of what the store lacks, whenever they were written.
    pub fn agrees_with(&self, other: &SlotRecord) -> bool {
        let of = |record: &SlotRecord| {
            (record.device, record.inode, record.born_ns, record.block, record.valid, record.dirty)
        };
        self.dirty == 0 && other.dirty == 0 || of(self) == of(other) && self.sums == other.sums
    }

    /// The bytes that stand for it in the table.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let words = [
            MAGIC,
            self.device,
            self.inode,
            self.born_ns,
            self.size,
            self.mtime_ns,
            self.block,
            self.valid,
            self.dirty,
            self.sequence,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let halves = [VERSION, self.store, self.page_bytes, self.path_length, self.handle, 0];
        for (place, half) in bytes[80..].chunks_exact_mut(4).zip(halves) {
            place.copy_from_slice(&half.to_le_bytes());
        }
        for (place, sum) in bytes[SUMS_AT..PATH_AT].chunks_exact_mut(4).zip(self.sums) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes[PATH_AT..SUM_AT].copy_from_slice(&self.path);
        let sum = checksum(&bytes);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The record that `bytes` stand for; `None` for a slot that was never written.
    ///
    /// # Errors
    /// `Damaged` for anything else, but a record of another version.
    pub fn decode(bytes: &[u8]) -> Result<Option<SlotRecord>, Unreadable> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().map_err(|_| Unreadable::Damaged)?;
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let word = |n: usize| u64::from_le_bytes(*bytes[n * 8..].first_chunk().unwrap_or(&[0; 8]));
        let half = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 4]));
        let mut record = SlotRecord {
            device: word(1),
            inode: word(2),
            born_ns: word(3),
            size: word(4),
            mtime_ns: word(5),
            block: word(6),
            valid: word(7),
            dirty: word(8),
            store: half(84),
            page_bytes: half(88),
            path_length: half(92),
            handle: half(96),
            ..SlotRecord::void(word(9))
        };
        for (page, sum) in record.sums.iter_mut().enumerate() {
            *sum = half(SUMS_AT + page * 4);
        }
        record.path.copy_from_slice(&bytes[PATH_AT..SUM_AT]);
        if word(0) != MAGIC || half(SUM_AT) != checksum(bytes) {
            return Err(Unreadable::Damaged);
        }
        match half(80) {
            VERSION if record.path_length as usize <= RECORD_PATH_BYTES => Ok(Some(record)),
            VERSION => Err(Unreadable::Damaged),
            other => Err(Unreadable::Version(other)),
        }
    }
}

fn checksum(bytes: &[u8; RECORD_BYTES]) -> u32 {
    checksum_of(&bytes[..SUM_AT])
}

impl Segment {
    /// What slot `bucket` holds now; void if the store lacks nothing of it. The caller holds the
    /// bucket's lock and writes it at [`Segment::record_offset`].
    pub fn slot_record(&self, bucket: BucketId) -> SlotRecord {
        let mut made = SlotRecord::void(self.next_sequence());
        let (Some(meta), Some(sums)) = (self.bucket(bucket), self.checksums(bucket)) else {
            return made;
        };
        let file = meta.file.load(Ordering::Relaxed);
        if !self.header().has_file(file) {
            return made;
        }
        made.valid = meta.valid.load(Ordering::Acquire);
        let pending = meta.pending();
        made.dirty = pending & made.valid;
        made.block = meta.block.load(Ordering::Relaxed);
        made.page_bytes = self.header().page_size;
        for (page, sum) in made.sums.iter_mut().enumerate() {
            *sum = sums.get(page);
        }
        let record: &FileRecord = self.file(file);
        if record.has(FileFlags::SCRATCH) {
            // Never written to the store.
            made.dirty = 0;
        }
        let identity = record.identity();
        (made.device, made.inode) = (identity.device, identity.inode);
        made.born_ns = record.born_ns.load(Ordering::Relaxed);
        made.handle = record.handle.load(Ordering::Relaxed);
        made.size = record.size.load(Ordering::Acquire);
        if let Some(goal) = record.intent.load(Ordering::Acquire).checked_sub(1) {
            // The store is cut before slots are: behind the goal it lacks nothing any more.
            let page = u64::from(made.page_bytes);
            let start = made.block * page * u64::from(PAGES_PER_BUCKET);
            let pages = goal.saturating_sub(start).div_ceil(page);
            made.dirty &= if pages < 64 { (1 << pages) - 1 } else { u64::MAX };
            made.size = made.size.min(goal);
        }
        made.mtime_ns = record.mtime_ns.load(Ordering::Relaxed);
        made.store = record.store.load(Ordering::Relaxed);
        let mut path = [0; PATH_BYTES + 1];
        let path = self.copy_path(record, &mut path).map(CStr::to_bytes).unwrap_or_default();
        made.set_path(path.iter().copied());
        made
    }

    /// Where in its tier's table the record of slot `bucket` is.
    pub fn record_offset(&self, bucket: BucketId) -> u64 {
        u64::from(self.slot_in_tier(bucket)) * RECORD_BYTES as u64
    }

    /// Pages that the store lacks and that are known to be corrupt: file, block and pages.
    pub fn corrupt_pages(&self) -> impl Iterator<Item = (FileId, u64, u64)> {
        self.header().bucket_ids().filter_map(|bucket| {
            let (meta, sums) = (self.bucket(bucket)?, self.checksums(bucket)?);
            let pages = sums.corrupt(meta.pending());
            let file = meta.file.load(Ordering::Relaxed);
            (pages != 0 && self.header().has_file(file) && self.is_indexed(bucket))
                .then(|| (file, meta.block.load(Ordering::Relaxed), pages))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_placement::TierId;

    /// Numbers that look random; another seed, another run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ mixed >> 27
        }
    }

    fn numbers() -> Numbers {
        let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given
            .unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ crate::clock::realtime_ns());
        println!("replay with FOREBAY_SEED={seed}");
        Numbers(seed)
    }

    fn any(numbers: &mut Numbers) -> SlotRecord {
        let mut record = SlotRecord::void(numbers.next());
        for word in [
            &mut record.device,
            &mut record.inode,
            &mut record.born_ns,
            &mut record.size,
            &mut record.mtime_ns,
            &mut record.block,
            &mut record.valid,
            &mut record.dirty,
        ] {
            *word = numbers.next();
        }
        record.store = numbers.next() as u32;
        record.page_bytes = numbers.next() as u32;
        record.handle = numbers.next() as u32;
        record.sums.fill_with(|| numbers.next() as u32);
        let length = numbers.next() as usize % (RECORD_PATH_BYTES + 1);
        record.set_path((0..length).map(|_| numbers.next() as u8));
        assert_eq!(record.path().len(), length);
        record
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let mut numbers = numbers();
        for _ in 0..200 {
            let record = any(&mut numbers);
            assert!(SlotRecord::decode(&record.encode()) == Ok(Some(record)));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut numbers = numbers();
        let good = any(&mut numbers).encode();
        for bit in 0..RECORD_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotRecord::decode(&bad), Err(Unreadable::Damaged), "bit {bit}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut numbers = numbers();
        assert_eq!(SlotRecord::decode(&[0; RECORD_BYTES]), Ok(None));
        for length in [0, 1, RECORD_BYTES - 1, RECORD_BYTES + 1] {
            assert_eq!(SlotRecord::decode(&vec![7; length]), Err(Unreadable::Damaged));
        }
        for _ in 0..2000 {
            let mut bytes = any(&mut numbers).encode();
            for _ in 0..=numbers.next() % 8 {
                let at = numbers.next() as usize % RECORD_BYTES;
                bytes[at] = bytes[at].wrapping_add(numbers.next() as u8 | 1);
            }
            // A right sum over wrong bytes, too: what decodes must be usable.
            let sum = checksum(&bytes);
            bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(Some(record)) = SlotRecord::decode(&bytes) {
                assert!(record.path().len() <= RECORD_PATH_BYTES);
            }
        }
    }

    #[test]
    fn a_path_that_does_not_fit_is_not_kept_in_part() {
        let mut record = SlotRecord::void(1);
        record.set_path(core::iter::repeat_n(b'x', RECORD_PATH_BYTES));
        assert_eq!(record.path().len(), RECORD_PATH_BYTES);
        record.set_path(core::iter::repeat_n(b'x', RECORD_PATH_BYTES + 1));
        assert_eq!(record.path(), b"");
    }

    #[test]
    fn a_record_says_what_the_slot_holds() {
        use crate::files::Identity;
        use crate::layout::Geometry;
        use crate::{Owner, segment::anonymous};
        let (segment, _memory) =
            anonymous(&Geometry::for_tiers(4096, &[64 << 18, 64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let identity = Identity { device: 5, inode: 6 };
        let file = segment.with_file_or_new(identity, me, |file, _| file).unwrap();
        segment.set_path(segment.file(file), b"/a/b");
        segment.file(file).size.store(77, Ordering::Relaxed);
        let slot = segment.take_slot(TierId::new(1), me, &mut 0).unwrap();
        assert!(segment.checksums(BucketId::from_raw(3)).is_none());
        core::mem::forget(segment.init_bucket(slot, file, 9, me).unwrap());
        let meta = segment.bucket(slot).unwrap();
        meta.valid.store(0b111, Ordering::Relaxed);
        meta.pages.set(0b001, 0b010);
        segment.checksums(slot).unwrap().set(2, 99);
        let (first, second) = (segment.slot_record(slot), segment.slot_record(slot));
        assert!(first.sequence < second.sequence);
        assert_eq!((first.device, first.inode, first.block, first.size), (5, 6, 9, 77));
        assert_eq!((first.valid, first.dirty, first.sums[2]), (0b111, 0b011, 99));
        assert_eq!(first.path(), b"/a/b");
        let third = BucketId::from_raw(segment.header().tier[1].first_bucket + 2);
        assert_eq!(segment.record_offset(third), 2048);
    }
}
