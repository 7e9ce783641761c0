//! Which blocks of files hold which datasets, and the rule that holds for each: what a library that
//! knows the structure of a file has told. See docs/design/hdf5.md.
//!
//! A table of fixed size in the pool has names and ranges of blocks. A thread that notes a dataset
//! has the file open and holds the stripe of its record, so that each dataset and each range is
//! changed by one thread at a time; a free place is taken by one exchange. What a killed process
//! has left half done is told by a checksum, or by a number that two words of a range have in
//! common, and holds for nothing. What was noted of a file ends with its record, whose generation
//! then rises: no list has to be kept. It decides where bytes lie, never what they are.

use crate::FileId;
use crate::layout::{FileRecord, RuleRecord};
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use forebay_placement::mix;
use forebay_placement::schema::{RULES_MAX, Settings};
use std::vec::Vec;

/// Datasets of all files of a pool that are known by name.
pub const DATASETS_MAX: usize = 1024;
/// Ranges of blocks of all datasets.
pub const RANGES_MAX: usize = 8192;
/// Longest path of a dataset in its file, in bytes; what the pattern of a rule may have.
pub const NAME_MAX: usize = 191;

/// Bits of a file's generation that tell what is of an earlier file in the same record.
const GENERATION_BITS: u32 = 20;
const DATASET_BITS: u32 = 10;
const _: () = assert!(DATASETS_MAX == 1 << DATASET_BITS);
/// Where the number begins that both words of a range have.
const NONCE_AT: u32 = 51;
const FIRST_BITS: u32 = 32;
const COUNT_MAX: u64 = (1 << (NONCE_AT - FIRST_BITS)) - 1;

/// A dataset of a file.
#[repr(C)]
pub struct DatasetRecord {
    /// Which file; 0 is a free place.
    key: AtomicU64,
    /// Of key and name: without it the record holds for nothing.
    sum: AtomicU64,
    /// The rule that holds, plus one; 0 is none.
    rule: AtomicU32,
    length: AtomicU32,
    name: [AtomicU8; NAME_MAX + 1],
}

/// Blocks of a dataset.
#[repr(C)]
pub struct RangeRecord {
    /// Number, file, dataset; 0 is a free place.
    tag: AtomicU64,
    /// Number, count, first block.
    blocks: AtomicU64,
}

/// Words of the filter of files with datasets.
const FILTER_WORDS: usize = 64;

/// All datasets of a pool.
#[repr(C)]
pub struct DatasetTable {
    /// Places that were ever in use.
    datasets_high: AtomicU32,
    ranges_high: AtomicU32,
    /// How often a dataset was noted.
    seen: AtomicU32,
    /// How often one found no place.
    refused: AtomicU32,
    /// A bit for each file that may have datasets, by its number: several files share one.
    filter: [AtomicU64; FILTER_WORDS],
    /// The same of each rule that held.
    matched: [AtomicU32; RULES_MAX],
    dataset: [DatasetRecord; DATASETS_MAX],
    range: [RangeRecord; RANGES_MAX],
}

/// What noting a dataset has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// All of it is known.
    Whole,
    /// Its name, and not all of its blocks: the table has no room for more ranges.
    Partly,
    /// Nothing: the name is too long, or the table has no room for more datasets.
    Nothing,
}

/// A dataset as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Its path in the file.
    pub name: Vec<u8>,
    /// The number of the rule that holds, from 0.
    pub rule: Option<usize>,
    /// Its blocks, in order.
    pub blocks: Vec<Range<u64>>,
}

/// What a record is known by as long as it is of the same file.
fn key_of(file: FileId, record: &FileRecord) -> u64 {
    let generation = record.generation.load(Ordering::Acquire) & ((1 << GENERATION_BITS) - 1);
    (u64::from(file.raw()) + 1) << GENERATION_BITS | u64::from(generation)
}

fn sum_of(key: u64, name: &[u8]) -> u64 {
    let add = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    // Not 0, which a new record has.
    name.iter().fold(mix(key), add) | 1
}

/// How a record has the number of a rule.
fn code_of(rule: Option<usize>) -> u32 {
    rule.map_or(0, |rule| rule as u32 + 1)
}

impl DatasetRecord {
    /// Its name, if it is a dataset of `key`.
    fn name_for(&self, key: u64) -> Option<([u8; NAME_MAX], usize)> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let sum = self.sum.load(Ordering::Acquire);
        let length = (self.length.load(Ordering::Relaxed) as usize).min(NAME_MAX);
        let mut name = [0; NAME_MAX];
        for (to, from) in name.iter_mut().zip(&self.name[..length]) {
            *to = from.load(Ordering::Relaxed);
        }
        (sum_of(key, &name[..length]) == sum).then_some((name, length))
    }

    fn is_called(&self, key: u64, name: &[u8]) -> bool {
        self.name_for(key).is_some_and(|(found, length)| &found[..length] == name)
    }

    /// Names it; it holds for nothing until that is done.
    fn rename(&self, key: u64, name: &[u8], rule: Option<usize>) {
        self.sum.store(0, Ordering::Release);
        self.rule.store(code_of(rule), Ordering::Relaxed);
        self.length.store(name.len() as u32, Ordering::Relaxed);
        for (to, &from) in self.name.iter().zip(name) {
            to.store(from, Ordering::Relaxed);
        }
        crate::crash::point("dataset.named");
        self.sum.store(sum_of(key, name), Ordering::Release);
    }

    fn rule(&self) -> Option<usize> {
        (self.rule.load(Ordering::Relaxed) as usize).checked_sub(1)
    }
}

/// The key of a file in the tag of a range.
fn key_in(tag: u64) -> u64 {
    tag >> DATASET_BITS & ((1 << (NONCE_AT - DATASET_BITS)) - 1)
}

impl RangeRecord {
    /// Its blocks and the number of its dataset, if it is of the file of `key`.
    fn of(&self, key: u64) -> Option<(usize, Range<u64>)> {
        let tag = self.tag.load(Ordering::Acquire);
        if key_in(tag) != key {
            return None;
        }
        let blocks = self.blocks.load(Ordering::Acquire);
        if tag >> NONCE_AT != blocks >> NONCE_AT {
            return None;
        }
        let first = blocks & ((1 << FIRST_BITS) - 1);
        let count = blocks >> FIRST_BITS & COUNT_MAX;
        Some((tag as usize & (DATASETS_MAX - 1), first..first + count))
    }

    /// The key of its file; 0 if it is free.
    fn key(&self) -> u64 {
        key_in(self.tag.load(Ordering::Acquire))
    }
}

// Of each pool, whether it has datasets or not: 345 KiB.
const _: () = assert!(size_of::<DatasetTable>() == 353_296);

impl DatasetTable {
    fn place_in_filter(&self, file: FileId) -> (&AtomicU64, u64) {
        let bit = file.index() % (FILTER_WORDS * 64);
        (&self.filter[bit / 64], 1 << (bit % 64))
    }

    fn datasets(&self) -> &[DatasetRecord] {
        let high = self.datasets_high.load(Ordering::Acquire) as usize;
        &self.dataset[..high.min(DATASETS_MAX)]
    }

    fn ranges(&self) -> &[RangeRecord] {
        let high = self.ranges_high.load(Ordering::Acquire) as usize;
        &self.range[..high.min(RANGES_MAX)]
    }
}

/// Ranges of blocks that are in order and apart, from bytes in any order.
fn in_blocks(bytes: &[Range<u64>], block_bytes: u64) -> Vec<Range<u64>> {
    let whole = |range: &Range<u64>| range.start / block_bytes..range.end.div_ceil(block_bytes);
    let mut blocks: Vec<_> = bytes.iter().filter(|range| !range.is_empty()).map(whole).collect();
    blocks.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in blocks {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    // As long as one record can say.
    let pieces = |range: Range<u64>| {
        let starts = range.clone().step_by(COUNT_MAX as usize);
        starts.map(move |start| start..range.end.min(start + COUNT_MAX))
    };
    joined.into_iter().flat_map(pieces).filter(|range| range.start >> FIRST_BITS == 0).collect()
}

impl Segment {
    /// Whether what a key is of has its record no more.
    fn is_gone(&self, key: u64) -> bool {
        let number =
            (key >> GENERATION_BITS).checked_sub(1).and_then(|file| u32::try_from(file).ok());
        let Some(file) = number.map(FileId::from_raw) else { return true };
        !self.header().has_file(file) || key_of(file, self.file(file)) != key
    }

    /// Whether datasets of a file may be known. A look at two words.
    #[inline]
    pub fn may_have_datasets(&self, file: FileId) -> bool {
        let (word, bit) = self.dataset_table().place_in_filter(file);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Notes that dataset `name` of a file lies in these `bytes`, and no longer elsewhere, and that
    /// the rule of number `rule` holds for it. The caller has the file open, and holds the stripe
    /// of its record.
    pub fn note_dataset(
        &self,
        file: FileId,
        name: &[u8],
        rule: Option<usize>,
        bytes: &[Range<u64>],
    ) -> Noted {
        self.note_dataset_from(file, name, rule, bytes, 0)
    }

    /// The same of a dataset of which only the part from byte `from` on is looked at: what is known
    /// of it in blocks before that stays.
    pub fn note_dataset_from(
        &self,
        file: FileId,
        name: &[u8],
        rule: Option<usize>,
        bytes: &[Range<u64>],
        from: u64,
    ) -> Noted {
        let table = self.dataset_table();
        let key = key_of(file, self.file(file));
        table.seen.fetch_add(1, Ordering::Relaxed);
        if let Some(matched) = rule.and_then(|rule| table.matched.get(rule)) {
            matched.fetch_add(1, Ordering::Relaxed);
        }
        let Some(index) = self.dataset_place(file, key, name, rule) else {
            table.refused.fetch_add(1, Ordering::Relaxed);
            return Noted::Nothing;
        };
        let block_bytes = self.bucket_bytes() as u64;
        let (wanted, first) = (in_blocks(bytes, block_bytes), from / block_bytes);
        let mut is_known = vec![false; wanted.len()];
        for range in table.ranges() {
            let Some((_, blocks)) = range.of(key).filter(|&(dataset, _)| dataset == index) else {
                continue;
            };
            match wanted.binary_search_by_key(&blocks.start, |wanted| wanted.start) {
                Ok(at) if wanted[at] == blocks => is_known[at] = true,
                _ if blocks.start < first => {}
                _ => range.tag.store(0, Ordering::Release),
            }
        }
        let mut from = 0;
        let new = wanted.iter().zip(is_known).filter(|(_, is_known)| !is_known);
        match new
            .map(|(blocks, _)| blocks)
            .all(|blocks| self.take_range(key, index, blocks, &mut from))
        {
            true => Noted::Whole,
            false => Noted::Partly,
        }
    }

    /// The place of a dataset, a new one if it has none.
    fn dataset_place(
        &self,
        file: FileId,
        key: u64,
        name: &[u8],
        rule: Option<usize>,
    ) -> Option<usize> {
        let table = self.dataset_table();
        let known = table.datasets().iter().position(|dataset| dataset.is_called(key, name));
        if let Some(index) = known {
            table.dataset[index].rule.store(code_of(rule), Ordering::Relaxed);
            return Some(index);
        }
        if name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let index = table.dataset.iter().position(|dataset| {
            let seen = dataset.key.load(Ordering::Acquire);
            let is_free = seen == 0 || self.is_gone(seen);
            is_free
                && dataset
                    .key
                    .compare_exchange(seen, key, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        table.dataset[index].rename(key, name, rule);
        table.datasets_high.fetch_max(index as u32 + 1, Ordering::AcqRel);
        let (word, bit) = table.place_in_filter(file);
        word.fetch_or(bit, Ordering::AcqRel);
        Some(index)
    }

    /// Notes blocks of a dataset. False if there is no place; those before `from` are taken.
    fn take_range(&self, key: u64, dataset: usize, blocks: &Range<u64>, from: &mut usize) -> bool {
        let table = self.dataset_table();
        let place = table.range.iter().enumerate().skip(*from).find_map(|(index, range)| {
            let seen = range.tag.load(Ordering::Acquire);
            if seen != 0 && !self.is_gone(range.key()) {
                return None;
            }
            // Another number than the word has that is there.
            let before = range.blocks.load(Ordering::Relaxed) >> NONCE_AT;
            let nonce = (before + 1) & ((1 << (64 - NONCE_AT)) - 1);
            let tag = nonce << NONCE_AT | key << DATASET_BITS | dataset as u64;
            let taken = range.tag.compare_exchange(seen, tag, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok().then_some((index, range, nonce))
        });
        *from = place.as_ref().map_or(RANGES_MAX, |(index, ..)| index + 1);
        let Some((index, range, nonce)) = place else { return false };
        crate::crash::point("dataset.range");
        let count = blocks.end - blocks.start;
        range
            .blocks
            .store(nonce << NONCE_AT | count << FIRST_BITS | blocks.start, Ordering::Release);
        table.ranges_high.fetch_max(index as u32 + 1, Ordering::AcqRel);
        true
    }

    /// Notes that what was at path `from` in a file, a dataset or a group of them, is at path `to`
    /// from now on, or nowhere: `None`. `rule` says which rule holds for a dataset by its new path.
    /// Returns how many datasets that were. The caller has the file open, and holds the stripe of
    /// its record.
    pub fn rename_datasets(
        &self,
        file: FileId,
        from: &[u8],
        to: Option<&[u8]>,
        rule: impl Fn(&[u8]) -> Option<usize>,
    ) -> usize {
        if !self.may_have_datasets(file) || from.is_empty() {
            return 0;
        }
        let (table, key) = (self.dataset_table(), key_of(file, self.file(file)));
        let mut count = 0;
        for (index, dataset) in table.datasets().iter().enumerate() {
            let Some((name, length)) = dataset.name_for(key) else { continue };
            let Some(rest) = name[..length].strip_prefix(from) else { continue };
            if !rest.is_empty() && rest[0] != b'/' {
                continue;
            }
            count += 1;
            let new = to.map(|to| [to, rest].concat());
            let Some(new) = new.filter(|new| !new.is_empty() && new.len() <= NAME_MAX) else {
                self.forget_dataset(key, index);
                continue;
            };
            let other = table.datasets().iter().position(|other| other.is_called(key, &new));
            if let Some(other) = other.filter(|&other| other != index) {
                self.forget_dataset(key, other);
            }
            dataset.rename(key, &new, rule(&new));
        }
        count
    }

    /// Forgets one dataset: its blocks first, so that no later one in its place has them.
    fn forget_dataset(&self, key: u64, index: usize) {
        let table = self.dataset_table();
        for range in table.ranges() {
            if range.of(key).is_some_and(|(dataset, _)| dataset == index) {
                range.tag.store(0, Ordering::Release);
            }
        }
        let seen = &table.dataset[index].key;
        let _ = seen.compare_exchange(key, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Forgets all datasets of a file: it is empty now. The caller holds the stripe of its record.
    pub fn forget_datasets(&self, file: FileId) {
        if !self.may_have_datasets(file) {
            return;
        }
        let (table, key) = (self.dataset_table(), key_of(file, self.file(file)));
        let forget = |word: &AtomicU64, seen: u64| {
            // Another thread may have taken the place of what it found gone.
            let _ = word.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
        };
        for range in table.ranges() {
            let tag = range.tag.load(Ordering::Acquire);
            if range.key() == key {
                forget(&range.tag, tag);
            }
        }
        table.datasets().iter().for_each(|dataset| forget(&dataset.key, key));
    }

    /// The rule that holds for a block of a file: the first in order of those of the datasets that
    /// have bytes there, else the file's.
    #[inline]
    pub fn rule_at(&self, file: FileId, record: &FileRecord, block: u64) -> Option<&RuleRecord> {
        let of_dataset = match self.may_have_datasets(file) {
            true => self.dataset_rule_at(key_of(file, record), block),
            false => None,
        };
        of_dataset.or_else(|| self.rule_of(record))
    }

    #[cold]
    fn dataset_rule_at(&self, key: u64, block: u64) -> Option<&RuleRecord> {
        let table = self.dataset_table();
        let here = table.ranges().iter().filter_map(|range| range.of(key));
        let here = here.filter(|(_, blocks)| blocks.contains(&block));
        let rule = here.filter_map(|(dataset, _)| table.dataset[dataset].rule()).min()?;
        self.rules().get(rule)
    }

    /// The datasets of a file that are known, in order of their names.
    pub fn datasets_of(&self, file: FileId) -> Vec<Dataset> {
        if !self.may_have_datasets(file) {
            return Vec::new();
        }
        let (table, key) = (self.dataset_table(), key_of(file, self.file(file)));
        let mut found = Vec::new();
        for (index, dataset) in table.datasets().iter().enumerate() {
            let Some((name, length)) = dataset.name_for(key) else { continue };
            let ranges = table.ranges().iter().filter_map(|range| range.of(key));
            let of_it = ranges.filter(|(other, _)| *other == index);
            let mut blocks: Vec<_> = of_it.map(|(_, blocks)| blocks).collect();
            blocks.sort_unstable_by_key(|blocks| blocks.start);
            found.push(Dataset { name: name[..length].to_vec(), rule: dataset.rule(), blocks });
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// How often datasets were noted since the pool was made, and how often one found no place.
    pub fn datasets_seen(&self) -> (u32, u32) {
        let table = self.dataset_table();
        (table.seen.load(Ordering::Relaxed), table.refused.load(Ordering::Relaxed))
    }

    /// How often a dataset was noted for which the rule of number `rule` holds.
    pub fn datasets_matched(&self, rule: usize) -> u32 {
        self.dataset_table().matched.get(rule).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// Where rules of datasets hold at one time, for threads that look at many blocks.
#[derive(Debug, Default)]
pub struct RuledBlocks {
    /// Key of the file, first block, end, rule.
    sorted: Vec<(u64, u64, u64, usize)>,
    /// The most blocks that one of them has: no range that begins earlier reaches a block.
    longest: u64,
}

impl RuledBlocks {
    /// Looks again, for a new round.
    pub fn look(&mut self, segment: &Segment) {
        self.sorted.clear();
        self.longest = 0;
        let table = segment.dataset_table();
        for range in table.ranges() {
            let key = range.key();
            let Some((dataset, blocks)) = range.of(key).filter(|_| key != 0) else { continue };
            if let Some(rule) = table.dataset[dataset].rule() {
                self.longest = self.longest.max(blocks.end - blocks.start);
                self.sorted.push((key, blocks.start, blocks.end, rule));
            }
        }
        self.sorted.sort_unstable();
    }

    /// What is set for a block: by the rule of a dataset that has bytes there, else by the file's.
    pub fn settings(&self, segment: &Segment, file: FileId, block: u64) -> Settings {
        if !segment.header().has_file(file) {
            return Settings::default();
        }
        let record = segment.file(file);
        let of_dataset = (!self.sorted.is_empty()).then(|| self.rule(key_of(file, record), block));
        let rule = of_dataset.flatten().and_then(|rule| segment.rules().get(rule));
        rule.or_else(|| segment.rule_of(record)).map(RuleRecord::settings).unwrap_or_default()
    }

    fn rule(&self, key: u64, block: u64) -> Option<usize> {
        let end = self.sorted.partition_point(|&(of, first, ..)| (of, first) <= (key, block));
        let reaches =
            |&&(of, first, ..): &&(u64, u64, u64, usize)| of == key && first + self.longest > block;
        let before = self.sorted[..end].iter().rev().take_while(reaches);
        before.filter(|&&(_, _, end, _)| block < end).map(|&(.., rule)| rule).min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "a list of ranges that has one")]

    use super::*;
    use crate::Identity;
    use crate::layout::Geometry;
    use crate::owner::Owner;
    use crate::segment::Segment;
    use forebay_placement::schema::{Conditions, Rule};
    use rustix::fd::AsFd;

    const BLOCK: u64 = 64 * 4096;

    fn segment() -> (Segment, Owner) {
        let geometry = Geometry::for_tiers(4096, &[64 << 18, 128 << 18]);
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("forebay-datasets", flags).unwrap();
        let rule = |tier| Rule {
            when: Conditions { dataset: b"/**", ..Conditions::default() },
            set: Settings { tier: Some(tier), pin: tier == 1, ..Settings::default() },
        };
        let rules = [rule(0), rule(1)].map(|rule| RuleRecord::new(&rule, "", "").unwrap());
        let segment = Segment::create_with_rules(file.as_fd(), &geometry, &rules, |_| {}).unwrap();
        let owner = Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0);
        (segment, owner)
    }

    fn file(segment: &Segment, inode: u64, me: Owner) -> FileId {
        segment.with_file_or_new(Identity { device: 1, inode }, me, |file, _| file).unwrap()
    }

    fn tier_at(segment: &Segment, file: FileId, block: u64) -> Option<u8> {
        let settings = segment.rule_at(file, segment.file(file), block)?.settings();
        let mut seen = RuledBlocks::default();
        seen.look(segment);
        assert_eq!(seen.settings(segment, file, block), settings, "both looks agree");
        settings.tier
    }

    #[test]
    fn the_first_rule_of_the_datasets_in_a_block_holds() {
        let (segment, me) = segment();
        let (mine, other) = (file(&segment, 7, me), file(&segment, 8, me));
        assert!(!segment.may_have_datasets(mine));
        assert_eq!(tier_at(&segment, mine, 0), None);
        let b = [3 * BLOCK + 5..5 * BLOCK + 1, 9 * BLOCK..9 * BLOCK];
        assert_eq!(segment.note_dataset(mine, b"/b", Some(1), &b), Noted::Whole);
        let tiers: Vec<_> = (2..7).map(|block| tier_at(&segment, mine, block)).collect();
        assert_eq!(tiers, [None, Some(1), Some(1), Some(1), None]);
        assert_eq!(tier_at(&segment, other, 4), None);
        segment.note_dataset(mine, b"/a", Some(0), &[0..3 * BLOCK + 1]);
        segment.note_dataset(mine, b"/c", None, &[3 * BLOCK..4 * BLOCK]);
        let tiers: Vec<_> = (2..5).map(|block| tier_at(&segment, mine, block)).collect();
        assert_eq!(tiers, [Some(0), Some(0), Some(1)]);
        let found = segment.datasets_of(mine);
        assert_eq!(
            found.iter().map(|found| &found.name[..]).collect::<Vec<_>>(),
            [b"/a", b"/b", b"/c"]
        );
        assert_eq!(found[1].blocks, [3..6]);
        let rules: Vec<_> = found.iter().map(|dataset| dataset.rule).collect();
        assert_eq!(rules, [Some(0), Some(1), None]);
        assert_eq!(segment.datasets_seen(), (3, 0));
        assert_eq!((segment.datasets_matched(0), segment.datasets_matched(1)), (1, 1));
    }

    #[test]
    fn a_dataset_that_grows_or_moves_is_where_it_was_noted_last() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        segment.note_dataset(mine, b"/a", Some(0), &[BLOCK..2 * BLOCK]);
        // Chunks in any order, and neighbours that touch.
        let chunks = [8 * BLOCK..9 * BLOCK, BLOCK..BLOCK + 9, BLOCK + 9..3 * BLOCK];
        segment.note_dataset(mine, b"/a", Some(1), &chunks);
        assert_eq!(segment.datasets_of(mine)[0].blocks, [1..3, 8..9]);
        assert_eq!(tier_at(&segment, mine, 2), Some(1));
        assert_eq!((segment.datasets_of(mine).len(), segment.datasets_seen()), (1, (2, 0)));
        let moved = 20 * BLOCK..21 * BLOCK;
        segment.note_dataset(mine, b"/a", Some(1), std::slice::from_ref(&moved));
        assert_eq!(segment.datasets_of(mine)[0].blocks, [20..21]);
        segment.forget_datasets(mine);
        assert_eq!(segment.datasets_of(mine), []);
        assert_eq!(tier_at(&segment, mine, 20), None);
        segment.note_dataset(mine, b"/b", None, &[0..1]);
        assert_eq!(segment.datasets_of(mine).len(), 1, "places are used again");
        assert_eq!(segment.dataset_table().datasets_high.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_was_known_before_the_part_that_is_looked_at_stays() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        let places = [0..9, 3 * BLOCK..3 * BLOCK + 9, 8 * BLOCK..9 * BLOCK];
        segment.note_dataset(mine, b"metadata", Some(0), &places);
        let later = [6 * BLOCK + 1..6 * BLOCK + 2];
        segment.note_dataset_from(mine, b"metadata", Some(0), &later, 5 * BLOCK + 7);
        assert_eq!(segment.datasets_of(mine)[0].blocks, [0..1, 3..4, 6..7]);
    }

    #[test]
    fn what_moves_keeps_its_blocks_and_follows_the_rule_of_its_new_name() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        segment.note_dataset(mine, b"/a/x", Some(0), &[0..BLOCK]);
        segment.note_dataset(mine, b"/a/y", Some(0), &[BLOCK..2 * BLOCK]);
        segment.note_dataset(mine, b"/ab", Some(0), &[2 * BLOCK..3 * BLOCK]);
        segment.note_dataset(mine, b"/b/y", Some(0), &[3 * BLOCK..4 * BLOCK]);
        assert_eq!(segment.rename_datasets(mine, b"/a", Some(b"/b"), |_| Some(1)), 2);
        let found = segment.datasets_of(mine);
        let names: Vec<_> = found.iter().map(|found| (&found.name[..], &found.blocks[0])).collect();
        assert_eq!(names, [(&b"/ab"[..], &(2..3)), (b"/b/x", &(0..1)), (b"/b/y", &(1..2))]);
        let tiers: Vec<_> = (0..4).map(|block| tier_at(&segment, mine, block)).collect();
        assert_eq!(tiers, [Some(1), Some(1), Some(0), None], "what was there is replaced");
        let long = [b'n'; NAME_MAX];
        assert_eq!(segment.rename_datasets(mine, b"/b/x", Some(&long), |_| None), 1);
        assert_eq!(segment.rename_datasets(mine, b"/b/x", None, |_| None), 0);
        assert_eq!(segment.rename_datasets(mine, &long, Some(b"/n"), |_| None), 1);
        assert_eq!(segment.rename_datasets(mine, b"/n", Some(&[b'n'; 192]), |_| None), 1);
        assert_eq!(segment.rename_datasets(mine, b"/b/y", None, |_| None), 1);
        assert_eq!(segment.datasets_of(mine).len(), 1);
        assert_eq!(tier_at(&segment, mine, 0), None);
    }

    #[test]
    fn what_an_earlier_file_had_in_a_record_holds_no_more() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        segment.note_dataset(mine, b"/a", Some(0), &[0..BLOCK]);
        segment.file(mine).generation.fetch_add(1, Ordering::SeqCst);
        assert_eq!(tier_at(&segment, mine, 0), None);
        assert_eq!(segment.datasets_of(mine), []);
        segment.note_dataset(mine, b"/b", Some(1), &[0..BLOCK]);
        assert_eq!(tier_at(&segment, mine, 0), Some(1));
        assert_eq!(segment.dataset_table().ranges_high.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        let every_other: Vec<_> =
            (0..RANGES_MAX as u64 + 5).map(|n| 2 * n * BLOCK..(2 * n + 1) * BLOCK).collect();
        assert_eq!(segment.note_dataset(mine, b"/many", Some(0), &every_other), Noted::Partly);
        assert_eq!(tier_at(&segment, mine, 2 * RANGES_MAX as u64 - 2), Some(0));
        for n in 1..DATASETS_MAX {
            let name = format!("/{n}");
            assert_ne!(segment.note_dataset(mine, name.as_bytes(), None, &[]), Noted::Nothing);
        }
        assert_eq!(segment.note_dataset(mine, b"/last", None, &[]), Noted::Nothing);
        assert_eq!(segment.datasets_seen(), (DATASETS_MAX as u32 + 1, 1));
        let long = [b'x'; NAME_MAX + 1];
        segment.forget_datasets(mine);
        assert_eq!(segment.note_dataset(mine, &long, None, &[]), Noted::Nothing);
        assert_eq!(segment.note_dataset(mine, &long[1..], None, &[]), Noted::Whole);
        assert_eq!(segment.datasets_of(mine)[0].name, long[1..]);
    }

    #[test]
    fn what_a_killed_process_left_half_done_holds_for_nothing() {
        let (segment, me) = segment();
        let mine = file(&segment, 7, me);
        segment.note_dataset(mine, b"/a", Some(0), &[0..BLOCK]);
        let table = segment.dataset_table();
        // Between the two words of a range, of which the second is of an earlier dataset.
        let blocks = table.range[0].blocks.load(Ordering::Relaxed);
        table.range[0].blocks.store(blocks ^ 1 << NONCE_AT, Ordering::Relaxed);
        assert_eq!(tier_at(&segment, mine, 0), None);
        table.range[0].blocks.store(blocks, Ordering::Relaxed);
        assert_eq!(tier_at(&segment, mine, 0), Some(0));
        // Before a name is whole.
        table.dataset[0].name[1].store(b'b', Ordering::Relaxed);
        assert_eq!(segment.datasets_of(mine), []);
    }

    #[test]
    fn a_range_beyond_what_a_record_can_say_takes_several() {
        let long = in_blocks(&[0..(COUNT_MAX + 2) * BLOCK], BLOCK);
        assert_eq!(long, [0..COUNT_MAX, COUNT_MAX..COUNT_MAX + 2]);
    }
}
