//! Sorting: external merge sort within a limit of memory (Knuth, The Art of Computer Programming
//! vol. 3, section 5.4).

use crate::error::{Error, Result, doing};
use crate::records::{Field, Records, shorter};
use crate::{Context, Input, Output};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Keys at most.
const KEYS_MAX: usize = 8;
/// Bytes that are read of a run at once, at least: fewer would make seeks of a merge.
const RUN_BUFFER_MIN: usize = 256 << 10;

/// A field to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The field.
    pub field: Field,
    /// Whether the largest comes first.
    pub is_descending: bool,
}

/// Records in the order of keys; those with equal keys stay in the order they had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    /// The records.
    pub records: Records,
    /// The keys; the first weighs most.
    pub keys: Vec<SortKey>,
}

impl Sort {
    /// Keys as they are written: `FIELD` or `FIELD:desc`, with commas between them.
    ///
    /// # Errors
    /// What is none.
    pub fn keys_of(text: &str) -> Result<Vec<SortKey>> {
        let key = |text: &str| {
            let (field, is_descending) = match text.trim().rsplit_once(':') {
                None => (text, false),
                Some((field, "desc")) => (field, true),
                Some((field, "asc")) => (field, false),
                Some((_, order)) => {
                    let what = format!("\"{order}\" is no order; give asc or desc");
                    return Err(Error::Option(what));
                }
            };
            Ok(SortKey { field: field.parse()?, is_descending })
        };
        text.split(',').map(key).collect()
    }

    /// Checks that the records have the keys.
    pub(crate) fn check(&self) -> Result<()> {
        self.records.check()?;
        if !(1..=KEYS_MAX).contains(&self.keys.len()) {
            let what = format!("{} keys; give 1 to {KEYS_MAX}", self.keys.len());
            return Err(Error::Option(what));
        }
        self.keys.iter().try_for_each(|key| key.field.check(self.records.record))
    }

    /// Bytes that compare as records do.
    fn key(&self, record: &[u8], key: &mut Vec<u8>) {
        key.clear();
        for SortKey { field, is_descending } in &self.keys {
            let from = key.len();
            field.append_order(record, key);
            if *is_descending {
                key[from..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
    }

    fn key_len(&self) -> usize {
        self.keys.iter().map(|key| key.field.length as usize).sum()
    }

    /// Sorts `length` bytes; returns how many records there are.
    pub(crate) fn run(
        &self,
        input: &mut dyn Input,
        length: u64,
        output: &mut dyn Output,
        context: &Context,
    ) -> Result<u64> {
        let count = self.records.count(length)?;
        let mut output = BufWriter::with_capacity(1 << 20, output);
        self.records.copy_header(input, &mut output)?;
        let record = self.records.record as usize;
        // A record in memory, its entry, and its bytes again while they are written.
        let each = record + size_of::<Entry>();
        let at_once = (context.memory as usize / each).clamp(2, u32::MAX as usize) as u64;
        let mut left = count;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut scratch: Option<Scratch> = None;
        let mut block = Vec::new();
        let mut entries = Vec::new();
        while left > 0 {
            let records = left.min(at_once);
            block.resize(records as usize * record, 0);
            let read = input.read_exact(&mut block);
            read.map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => shorter(),
                _ => doing("read records")(error),
            })?;
            self.sort_block(&block, &mut entries);
            let sorted =
                entries.iter().map(|entry| &block[entry.index as usize * record..][..record]);
            left -= records;
            if left == 0 && runs.is_empty() {
                write_all(sorted, &mut output)?;
                break;
            }
            let scratch = match &mut scratch {
                Some(scratch) => scratch,
                none => none.insert(Scratch::new(context)?),
            };
            runs.push(scratch.add(sorted)?);
        }
        drop((block, entries));
        if let Some(scratch) = scratch {
            self.merge(scratch, runs, &mut output, context)?;
        }
        output.flush().map_err(doing("write records"))?;
        Ok(count)
    }

    fn sort_block(&self, block: &[u8], entries: &mut Vec<Entry>) {
        let record = self.records.record as usize;
        let mut key = Vec::with_capacity(self.key_len());
        entries.clear();
        entries.extend(block.chunks_exact(record).zip(0..).map(|(record, index)| {
            self.key(record, &mut key);
            Entry { prefix: prefix(&key), index }
        }));
        if self.key_len() <= 8 {
            entries.sort_unstable();
            return;
        }
        let mut other = Vec::with_capacity(self.key_len());
        let at = |entry: &Entry| &block[entry.index as usize * record..][..record];
        entries.sort_unstable_by(|a, b| {
            a.prefix.cmp(&b.prefix).then_with(|| {
                self.key(at(a), &mut key);
                self.key(at(b), &mut other);
                key.cmp(&other).then(a.index.cmp(&b.index))
            })
        });
    }

    /// Merges runs, in several passes if they are too many for the memory.
    fn merge(
        &self,
        mut scratch: Scratch,
        mut runs: Vec<Range<u64>>,
        output: &mut dyn Write,
        context: &Context,
    ) -> Result<()> {
        let buffer_min = RUN_BUFFER_MIN.max(self.records.record as usize);
        let most = (context.memory as usize / buffer_min).max(2);
        while runs.len() > most {
            let mut next = Scratch::new(context)?;
            let mut merged = Vec::new();
            for group in runs.chunks(most) {
                let from = next.end;
                let mut writer = BufWriter::with_capacity(1 << 20, &mut next);
                self.merge_once(&scratch, group, &mut writer, context)?;
                writer.flush().map_err(doing("write records to the scratch file"))?;
                drop(writer);
                merged.push(from..next.end);
            }
            (scratch, runs) = (next, merged);
        }
        self.merge_once(&scratch, &runs, output, context)
    }

    fn merge_once(
        &self,
        scratch: &Scratch,
        runs: &[Range<u64>],
        output: &mut dyn Write,
        context: &Context,
    ) -> Result<()> {
        let record = self.records.record as usize;
        let share = (context.memory as usize / runs.len().max(1)).clamp(record, 8 << 20);
        let capacity = share / record * record;
        let mut heap = BinaryHeap::with_capacity(runs.len());
        for (number, run) in runs.iter().enumerate() {
            let mut head = Head { key: Vec::new(), number, run: Run::new(run.clone(), capacity) };
            if head.advance(self, scratch)? {
                heap.push(head);
            }
        }
        while let Some(mut head) = heap.peek_mut() {
            output.write_all(head.run.record(record)).map_err(doing("write records"))?;
            head.run.at += record;
            if !head.advance(self, scratch)? {
                std::collections::binary_heap::PeekMut::pop(head);
            }
        }
        Ok(())
    }
}

/// A record in memory: the first bytes of its key, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    prefix: u64,
    index: u32,
}

fn prefix(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let count = key.len().min(8);
    first[..count].copy_from_slice(&key[..count]);
    u64::from_be_bytes(first)
}

fn write_all<'a>(records: impl Iterator<Item = &'a [u8]>, output: &mut impl Write) -> Result<()> {
    for record in records {
        output.write_all(record).map_err(doing("write records"))?;
    }
    Ok(())
}

/// A file without a name that has runs, one after the other.
struct Scratch {
    file: File,
    end: u64,
}

impl Scratch {
    fn new(context: &Context) -> Result<Scratch> {
        Ok(Scratch { file: context.scratch_file()?, end: 0 })
    }

    fn add<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> Result<Range<u64>> {
        let from = self.end;
        let mut writer = BufWriter::with_capacity(1 << 20, &mut *self);
        write_all(records, &mut writer)?;
        writer.flush().map_err(doing("write records to the scratch file"))?;
        drop(writer);
        Ok(from..self.end)
    }
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write_at(bytes, self.end)?;
        self.end += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A run that is merged: what of it is in memory, and what is left.
struct Run {
    left: Range<u64>,
    buffer: Vec<u8>,
    capacity: usize,
    at: usize,
}

impl Run {
    fn new(left: Range<u64>, capacity: usize) -> Run {
        Run { left, buffer: Vec::new(), capacity, at: 0 }
    }

    fn record(&self, record: usize) -> &[u8] {
        &self.buffer[self.at..][..record]
    }

    /// Has a record at `at`, unless the run has none left.
    fn fill(&mut self, scratch: &Scratch) -> Result<bool> {
        if self.at < self.buffer.len() {
            return Ok(true);
        }
        let count = (self.left.end - self.left.start).min(self.capacity as u64) as usize;
        self.buffer.resize(count, 0);
        let read = scratch.file.read_exact_at(&mut self.buffer, self.left.start);
        read.map_err(doing("read records from the scratch file"))?;
        self.left.start += count as u64;
        self.at = 0;
        Ok(count > 0)
    }
}

/// A run with the key of its next record. The largest in a heap is the one to write next.
struct Head {
    key: Vec<u8>,
    number: usize,
    run: Run,
}

impl Head {
    fn advance(&mut self, sort: &Sort, scratch: &Scratch) -> Result<bool> {
        if !self.run.fill(scratch)? {
            return Ok(false);
        }
        sort.key(self.run.record(sort.records.record as usize), &mut self.key);
        Ok(true)
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        // Equal records of earlier runs come first.
        (&other.key, other.number).cmp(&(&self.key, self.number))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}
