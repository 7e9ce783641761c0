//! Files without the chunks that are there twice. Chunks are cut where their bytes say so
//! (FastCDC, Xia et al., ATC 2016 and TPDS 2020), so that equal parts are found at any distance,
//! and two chunks are the same where BLAKE3 of them is.
//!
//! ```text
//! header   "FBYDEDUP", version 1, least, average and most bytes of a chunk     u64, 4 x u32
//!          0, CRC32C of the header before it                                   u32, u32
//! chunks   each that is not the same as one before it, one after the other
//! table    for each of these its bytes and its BLAKE3                          u32, 32 bytes
//! recipe   for each chunk of the original, in order, its number in the table   u32
//! footer   kept chunks, chunks, original bytes                                 3 x u64
//!          CRC32C of table and recipe, CRC32C of the footer before it, "FDUP"  3 x u32
//! ```
//!
//! All numbers are little-endian.

use super::{Format, Info, PIECE_MAX, u32_at, u64_at};
use crate::error::{Error, Result, doing};
use crate::source::Source;
use fastcdc::v2020::{AVERAGE_MAX, AVERAGE_MIN, MINIMUM_MIN, StreamCDC};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;

/// Chunks of a file at most, kept or not: a table of some 250 MiB in memory if all are kept, and
/// 160 more while it is read. With chunks of 64 KiB, 256 GiB.
pub const CHUNKS_MAX: usize = 4 << 20;
/// Bytes of a chunk on average where nothing else is asked for.
pub const CHUNK_BYTES: u32 = 64 << 10;

pub(super) const MAGIC: [u8; 8] = *b"FBYDEDUP";
const END_MAGIC: [u8; 4] = *b"FDUP";
const VERSION: u32 = 1;
const HEADER: u64 = 32;
const ENTRY: u64 = 36;
const NUMBER: u64 = 4;
const FOOTER: u64 = 36;
/// Bytes of memory that a kept chunk has while it is looked for: digest and number in a map that
/// is half full, and its entry.
const MEMORY_OF_CHUNK: u64 = 112;

/// How a file is deduplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// Bytes of a chunk on average, a power of two from 1 KiB to 4 MiB; the least are a quarter
    /// and the most four times of that.
    pub chunk: u32,
    /// Bytes of memory for what is known of chunks. Once it is used up, new chunks are kept
    /// without being known: equal ones behind them are kept again.
    pub memory: u64,
}

impl Default for Dedup {
    fn default() -> Dedup {
        Dedup { chunk: CHUNK_BYTES, memory: 256 << 20 }
    }
}

impl Dedup {
    /// The same with chunks that are large enough for a file of `length` bytes: there is room for
    /// [`CHUNKS_MAX`], and none has less than a quarter of the average.
    #[must_use]
    pub fn for_length(mut self, length: u64) -> Dedup {
        while u64::from(self.chunk) < AVERAGE_MAX as u64
            && length / u64::from(self.chunk / 4).max(1) >= CHUNKS_MAX as u64
        {
            self.chunk *= 2;
        }
        self
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Which value cannot be.
    pub fn check(&self) -> Result<()> {
        let fits = self.chunk.is_power_of_two() && (1 << 10..=4 << 20).contains(&self.chunk);
        if !fits {
            return Err(Error::Option(format!(
                "a chunk of {} bytes is not a power of two within 1 KiB to 4 MiB",
                self.chunk
            )));
        }
        Ok(())
    }

    fn least(&self) -> u32 {
        self.chunk / 4
    }

    fn most(&self) -> u32 {
        self.chunk * 4
    }
}

const _: () = assert!(AVERAGE_MIN <= 1 << 10 && AVERAGE_MAX >= 4 << 20);
const _: () = assert!(MINIMUM_MIN <= (1 << 10) / 4);
const _: () = assert!(PIECE_MAX as u64 >= 4 * AVERAGE_MAX as u64);

/// Writes all of `input` without the chunks that are there twice; returns what was written.
///
/// # Errors
/// A value of `options` cannot be, a read or write fails, or there are too many chunks.
pub fn dedup(input: &mut dyn Read, output: &mut dyn Write, options: &Dedup) -> Result<Info> {
    options.check()?;
    let mut header = Vec::with_capacity(HEADER as usize);
    header.extend(MAGIC);
    for number in [VERSION, options.least(), options.chunk, options.most(), 0] {
        header.extend(number.to_le_bytes());
    }
    header.extend(crc32c::crc32c(&header).to_le_bytes());
    let write = doing("write chunks");
    output.write_all(&header).map_err(&write)?;
    let known_max = options.memory / MEMORY_OF_CHUNK;
    let mut known: HashMap<[u8; 32], u32> = HashMap::new();
    let (mut table, mut recipe) = (Vec::new(), Vec::new());
    let (mut kept, mut kept_bytes, mut original_len) = (0u32, 0u64, 0u64);
    let [least, average, most] =
        [options.least(), options.chunk, options.most()].map(|bytes| bytes as usize);
    for chunk in StreamCDC::new(input, least, average, most) {
        let chunk = chunk.map_err(|error| doing("read the original")(error.into()))?.data;
        if recipe.len() as u64 == CHUNKS_MAX as u64 * NUMBER {
            return Err(Error::Unfit(format!(
                "has more than {CHUNKS_MAX} chunks of {average} bytes; give larger chunks"
            )));
        }
        let digest = *blake3::hash(&chunk).as_bytes();
        let number = match known.get(&digest) {
            Some(&number) => number,
            None => {
                output.write_all(&chunk).map_err(&write)?;
                table.extend((chunk.len() as u32).to_le_bytes());
                table.extend(digest);
                if (known.len() as u64) < known_max {
                    known.insert(digest, kept);
                }
                kept += 1;
                kept_bytes += chunk.len() as u64;
                kept - 1
            }
        };
        recipe.extend(number.to_le_bytes());
        original_len += chunk.len() as u64;
    }
    let chunks = recipe.len() as u64 / NUMBER;
    let mut footer = Vec::with_capacity(FOOTER as usize);
    for number in [u64::from(kept), chunks, original_len] {
        footer.extend(number.to_le_bytes());
    }
    let sum = crc32c::crc32c_append(crc32c::crc32c(&table), &recipe);
    footer.extend(sum.to_le_bytes());
    footer.extend(crc32c::crc32c(&footer).to_le_bytes());
    footer.extend(END_MAGIC);
    for part in [&table, &recipe, &footer] {
        output.write_all(part).map_err(&write)?;
    }
    let tail = (table.len() + recipe.len() + footer.len()) as u64;
    let encoded_len = HEADER + kept_bytes + tail;
    Ok(Info { format: Format::Dedup, original_len, encoded_len, pieces: chunks, kept: kept.into() })
}

/// What is kept, and where: the table and the recipe of a file, checked against its length.
#[derive(Debug)]
pub(super) struct Table {
    /// Of each kept chunk its first byte in the file, how many there are, and their digest.
    kept: Vec<(u64, u32, [u8; 32])>,
    /// Of each chunk of the original which kept one it is.
    recipe: Vec<u32>,
    /// Of each chunk of the original its first byte; the last is behind them all.
    starts: Vec<u64>,
}

impl Table {
    /// Reads the table of a file of `length` bytes.
    pub(super) fn read(source: &impl Source, length: u64) -> Result<Table> {
        let cut = || Error::damaged("its end is not there; it was cut short");
        let read = "read the table of its chunks";
        let footer_at = length.checked_sub(FOOTER).filter(|&at| at >= HEADER).ok_or_else(cut)?;
        let (mut header, mut footer) = ([0; HEADER as usize], [0; FOOTER as usize]);
        source.read_exact_at(&mut header, 0).map_err(doing(read))?;
        source.read_exact_at(&mut footer, footer_at).map_err(doing(read))?;
        if crc32c::crc32c(&header[..28]) != u32_at(&header, 28) {
            return Err(Error::damaged("the sum of its header is another"));
        }
        if u32_at(&header, 8) != VERSION {
            return Err(Error::NotEncoded(format!(
                "it is in version {} of the format, and version {VERSION} is known here",
                u32_at(&header, 8)
            )));
        }
        if footer[32..] != END_MAGIC || crc32c::crc32c(&footer[..28]) != u32_at(&footer, 28) {
            return Err(cut());
        }
        let [kept, chunks, original_len] = [0, 8, 16].map(|at| u64_at(&footer, at));
        if kept > chunks || chunks > CHUNKS_MAX as u64 {
            return Err(Error::damaged(format!("it has {chunks} chunks, more than {CHUNKS_MAX}")));
        }
        let tail = kept * ENTRY + chunks * NUMBER;
        let table_at = footer_at.checked_sub(tail).filter(|&at| at >= HEADER).ok_or_else(cut)?;
        let mut bytes = vec![0; tail as usize];
        source.read_exact_at(&mut bytes, table_at).map_err(doing(read))?;
        if crc32c::crc32c(&bytes) != u32_at(&footer, 24) {
            return Err(Error::damaged("the sum of its table of chunks is another"));
        }
        let (table, recipe) = bytes.split_at((kept * ENTRY) as usize);
        let table = Table::of(table, recipe)?;
        let ends = table.kept.last().map_or(HEADER, |&(at, len, _)| at + u64::from(len));
        if ends != table_at || table.starts[table.recipe.len()] != original_len {
            return Err(Error::damaged("its chunks are longer or shorter than its table says"));
        }
        Ok(table)
    }

    fn of(table: &[u8], recipe: &[u8]) -> Result<Table> {
        let mut at = HEADER;
        let mut kept = Vec::with_capacity(table.len() / ENTRY as usize);
        for entry in table.chunks_exact(ENTRY as usize) {
            let len = u32_at(entry, 0);
            if len == 0 || len > PIECE_MAX {
                return Err(Error::damaged(format!("its table has a chunk of {len} bytes")));
            }
            kept.push((at, len, entry[4..].try_into().expect("32 bytes")));
            at += u64::from(len);
        }
        let mut numbers = Vec::with_capacity(recipe.len() / NUMBER as usize);
        let mut starts = Vec::with_capacity(numbers.capacity() + 1);
        let mut original = 0;
        for number in recipe.chunks_exact(NUMBER as usize) {
            let number = u32_at(number, 0);
            let Some(&(_, len, _)) = kept.get(number as usize) else {
                return Err(Error::damaged(format!("it names chunk {number}, which it has not")));
            };
            numbers.push(number);
            starts.push(original);
            original += u64::from(len);
        }
        starts.push(original);
        Ok(Table { kept, recipe: numbers, starts })
    }

    pub(super) fn info(&self, encoded_len: u64) -> Info {
        Info {
            format: Format::Dedup,
            original_len: self.starts[self.recipe.len()],
            encoded_len,
            pieces: self.recipe.len() as u64,
            kept: self.kept.len() as u64,
        }
    }

    /// The chunk with the original byte `offset`, which is before the end.
    pub(super) fn index_of(&self, offset: u64) -> usize {
        self.starts.partition_point(|&start| start <= offset) - 1
    }

    pub(super) fn original(&self, index: usize) -> Range<u64> {
        self.starts[index]..self.starts[index + 1]
    }

    /// Reads a chunk into `bytes`, and compares its digest.
    pub(super) fn decode(
        &self,
        source: &impl Source,
        index: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let (at, len, digest) = self.kept[self.recipe[index] as usize];
        bytes.resize(len as usize, 0);
        source.read_exact_at(bytes, at).map_err(doing("read a chunk"))?;
        if *blake3::hash(bytes).as_bytes() != digest {
            bytes.clear();
            return Err(Error::damaged(format!(
                "the chunk at byte {at}, original byte {}, is not what was written",
                self.starts[index]
            )));
        }
        Ok(())
    }
}
