//! Files in an encoded form from which the original bytes come back, any of them without those
//! before: compressed in frames ([`frames`]), or without the chunks that are there twice
//! ([`mod@dedup`]).
//!
//! What is read here may have been made by any user. Every length is checked against the file's
//! and against the limits below before memory is taken for it, and all that is decoded was
//! summed when it was written.
//!
//! ```
//! use forebay_active::encoded::{Codec, Compress, Reader, compress};
//!
//! let original = b"forebay ".repeat(1 << 20);
//! let mut encoded = Vec::new();
//! compress(&mut original.as_slice(), &mut encoded, &Compress::new(Codec::Zstd)).unwrap();
//! let length = encoded.len() as u64;
//! let mut reader = Reader::open(encoded, length).unwrap();
//! let mut word = [0; 7];
//! assert_eq!(reader.read_at(&mut word, 5_000_000).unwrap(), 7);
//! assert_eq!(&word, b"forebay");
//! ```

pub mod dedup;
pub mod frames;

use crate::error::{Error, Result, doing};
use crate::source::Source;
use std::fmt;
use std::io::Write;
use std::ops::Range;

pub use dedup::{Dedup, dedup};
pub use frames::{Codec, Compress, compress};

/// Original bytes of a piece (a frame or a chunk) at most: what a reader keeps of them, twice.
pub const PIECE_MAX: u32 = 16 << 20;

/// The forms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Frames of Zstandard, with a table of them at the end: the format "zstd seekable".
    Zstd,
    /// Frames of LZ4, with the same table.
    Lz4,
    /// Chunks, each once, and in which order they are the file.
    Dedup,
}

impl Format {
    /// All forms.
    pub const ALL: [Format; 3] = [Format::Zstd, Format::Lz4, Format::Dedup];

    /// Its name: `zstd`, `lz4`, `dedup`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Zstd => "zstd",
            Format::Lz4 => "lz4",
            Format::Dedup => "dedup",
        }
    }

    /// The form with that name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of an encoded file without decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its form.
    pub format: Format,
    /// Bytes of the original.
    pub original_len: u64,
    /// Bytes of the encoded form.
    pub encoded_len: u64,
    /// Frames, or chunks of the original.
    pub pieces: u64,
    /// Frames, or chunks that are kept: those that are not the same as another.
    pub kept: u64,
}

/// Reads an encoded file at any offset of the original.
///
/// Has memory for its table (16 bytes a frame, 12 a chunk and 48 a kept chunk; the most is
/// [`frames::FRAMES_MAX`] or [`dedup::CHUNKS_MAX`] of them) and for one piece. One thread at a
/// time; several readers of a file do not know of each other.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    layout: Layout,
    info: Info,
    /// The original range and the bytes of the piece that was decoded last.
    last: Range<u64>,
    bytes: Vec<u8>,
    /// Encoded bytes, while a piece is decoded.
    scratch: Vec<u8>,
}

#[derive(Debug)]
enum Layout {
    Frames(frames::Table),
    Dedup(dedup::Table),
}

impl<S: Source> Reader<S> {
    /// Opens the encoded file that the first `encoded_len` bytes of `source` are; what comes
    /// behind them is not looked at. [`encoded_end`] finds that length where it is not known.
    ///
    /// # Errors
    /// It is not encoded in a form of this crate, it is damaged, it is larger than the limits, or
    /// it cannot be read.
    pub fn open(source: S, encoded_len: u64) -> Result<Reader<S>> {
        let mut magic = [0; 8];
        if encoded_len < magic.len() as u64 {
            return Err(Error::NotEncoded(format!("it has {encoded_len} bytes")));
        }
        source.read_exact_at(&mut magic, 0).map_err(doing("read its beginning"))?;
        let (layout, info) = if magic == dedup::MAGIC {
            let table = dedup::Table::read(&source, encoded_len)?;
            let info = table.info(encoded_len);
            (Layout::Dedup(table), info)
        } else {
            let codec = Codec::of(magic[..4].try_into().expect("four bytes")).ok_or_else(|| {
                Error::NotEncoded("it begins with none of zstd, lz4 and dedup".to_owned())
            })?;
            let table = frames::Table::read(codec, &source, encoded_len)?;
            let info = table.info(encoded_len);
            (Layout::Frames(table), info)
        };
        Ok(Reader { source, layout, info, last: 0..0, bytes: Vec::new(), scratch: Vec::new() })
    }

    /// What is known of it.
    pub fn info(&self) -> Info {
        self.info
    }

    /// Bytes of the original.
    pub fn original_len(&self) -> u64 {
        self.info.original_len
    }

    /// The source, as it was given.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The range of the original that is decoded at once where `offset` is wanted; none behind
    /// its end.
    pub fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        let index = self.index_of(offset)?;
        Some(match &self.layout {
            Layout::Frames(table) => table.original(index),
            Layout::Dedup(table) => table.original(index),
        })
    }

    fn index_of(&self, offset: u64) -> Option<usize> {
        (offset < self.info.original_len).then(|| match &self.layout {
            Layout::Frames(table) => table.index_of(offset),
            Layout::Dedup(table) => table.index_of(offset),
        })
    }

    /// Reads original bytes from `offset` on: all of `buffer`, or up to the original's end.
    ///
    /// # Errors
    /// What covers them is damaged, or cannot be read. Some of `buffer` may have changed.
    pub fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.saturating_add(done as u64);
            if at >= self.info.original_len {
                break;
            }
            self.decode(at)?;
            let from = &self.bytes[(at - self.last.start) as usize..];
            let count = from.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&from[..count]);
            done += count;
        }
        Ok(done)
    }

    /// Writes the whole original.
    ///
    /// # Errors
    /// As [`Reader::read_at`], or the write fails.
    pub fn copy_to(&mut self, output: &mut dyn Write) -> Result<u64> {
        let mut at = 0;
        while at < self.info.original_len {
            self.decode(at)?;
            output.write_all(&self.bytes).map_err(doing("write the original bytes"))?;
            at = self.last.end;
        }
        Ok(at)
    }

    /// Has the piece with `offset`, which is before the end, in `bytes`.
    fn decode(&mut self, offset: u64) -> Result<()> {
        if self.last.contains(&offset) {
            return Ok(());
        }
        let index = self.index_of(offset).expect("before the end");
        self.last = 0..0;
        self.bytes.clear();
        self.last = match &self.layout {
            Layout::Frames(table) => {
                table.decode(&self.source, index, &mut self.scratch, &mut self.bytes)?;
                table.original(index)
            }
            Layout::Dedup(table) => {
                table.decode(&self.source, index, &mut self.bytes)?;
                table.original(index)
            }
        };
        Ok(())
    }
}

/// Where the encoded bytes of a file of `length` bytes end, if there are zeros behind them: no
/// encoded form ends with a zero. For a file that was made longer, and no other record says how
/// long it was; reads from the end backwards.
///
/// # Errors
/// Those of the reads.
pub fn encoded_end(source: &(impl Source + ?Sized), length: u64) -> Result<u64> {
    let mut buffer = vec![0; 256 << 10];
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(buffer.len() as u64);
        let part = &mut buffer[..(end - start) as usize];
        source.read_exact_at(part, start).map_err(doing("read its end"))?;
        if let Some(last) = part.iter().rposition(|&byte| byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// A little-endian number at `offset`, which is within `bytes`.
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// A little-endian number at `offset`, which is within `bytes`.
fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}
