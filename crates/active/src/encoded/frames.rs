//! Compressed files: independent frames of Zstandard or LZ4, one after the other, then a table of
//! them in a frame that decoders skip. So `zstd -dc FILE` and `lz4 -dc FILE` give the original.
//!
//! The table is that of the format "zstd seekable" (`contrib/seekable_format` of Zstandard), and
//! the same for LZ4, whose skippable frames are the same:
//!
//! ```text
//! magic 0x184D2A5E, bytes of what follows     u32, u32
//! for each frame: its bytes, those that it decodes to      u32, u32
//! number of frames, descriptor 0, magic 0x8F92EAB1         u32, u8, u32
//! ```
//!
//! All numbers are little-endian. Each frame ends with a sum of what it decodes to: 32 bits of
//! XXH64 (Zstandard), XXH32 (LZ4).

use super::{Format, Info, PIECE_MAX, u32_at};
use crate::error::{Error, Result, doing};
use crate::source::Source;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Range;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Frames of a file at most: a table of 64 MiB in memory. With frames of 1 MiB, 4 TiB.
pub const FRAMES_MAX: usize = 4 << 20;
/// Original bytes of a frame where nothing else is asked for. A read of 4 KiB decodes 1 MiB, some
/// 1 ms; larger frames are smaller by a per cent or two.
pub const FRAME_BYTES: u32 = 1 << 20;
/// Original bytes of a frame at least.
pub const FRAME_BYTES_MIN: u32 = 64 << 10;

const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;
/// Bytes of the skippable frame's header, of an entry, and of what is behind the entries.
const HEADER: u64 = 8;
const ENTRY: u64 = 8;
const FOOTER: u64 = 9;
/// The bit of an LZ4 frame's first byte behind the magic that says: a sum is at its end.
const LZ4_HAS_SUM: u8 = 1 << 2;

/// How frames are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Zstandard.
    Zstd,
    /// LZ4.
    Lz4,
}

impl Codec {
    /// The codec whose frames begin so.
    pub(super) fn of(magic: [u8; 4]) -> Option<Codec> {
        match u32::from_le_bytes(magic) {
            0xFD2F_B528 => Some(Codec::Zstd),
            0x184D_2204 => Some(Codec::Lz4),
            _ => None,
        }
    }

    /// The form that a file of it has.
    pub fn format(self) -> Format {
        match self {
            Codec::Zstd => Format::Zstd,
            Codec::Lz4 => Format::Lz4,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format().name())
    }
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compress {
    /// By which codec.
    pub codec: Codec,
    /// Its level, of Zstandard: 1 (fast) to 19 (small). LZ4 has one only.
    pub level: i32,
    /// Original bytes of a frame: [`FRAME_BYTES_MIN`] to [`PIECE_MAX`].
    pub frame: u32,
}

impl Compress {
    /// Level 3, frames of 1 MiB.
    pub fn new(codec: Codec) -> Compress {
        Compress { codec, level: 3, frame: FRAME_BYTES }
    }

    /// The same with frames that are large enough for a file of `length` bytes: a table has room
    /// for [`FRAMES_MAX`] of them.
    #[must_use]
    pub fn for_length(mut self, length: u64) -> Compress {
        while self.frame < PIECE_MAX && length / u64::from(self.frame) >= FRAMES_MAX as u64 {
            self.frame = (self.frame * 2).min(PIECE_MAX);
        }
        self
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Which value cannot be.
    pub fn check(&self) -> Result<()> {
        if !(1..=19).contains(&self.level) {
            return Err(Error::Option(format!("level {} is not one of 1 to 19", self.level)));
        }
        if !(FRAME_BYTES_MIN..=PIECE_MAX).contains(&self.frame) {
            return Err(Error::Option(format!(
                "a frame of {} bytes is not within 64 KiB to 16 MiB",
                self.frame
            )));
        }
        Ok(())
    }
}

/// Compresses all of `input`, in memory for two frames; returns what was written.
///
/// # Errors
/// A value of `options` cannot be, a read or write fails, or there are too many bytes for the
/// frame's size.
pub fn compress(input: &mut dyn Read, output: &mut dyn Write, options: &Compress) -> Result<Info> {
    options.check()?;
    let mut encoder = Encoder::new(options)?;
    let (mut frame, mut compressed) = (Vec::with_capacity(options.frame as usize), Vec::new());
    let mut entries: Vec<u8> = Vec::new();
    let (mut original_len, mut frames) = (0, 0);
    let mut encoded_len = 0;
    loop {
        frame.clear();
        let mut part = input.take(options.frame.into());
        part.read_to_end(&mut frame).map_err(doing("read the original"))?;
        // A file without bytes has one frame without any, so that its beginning tells its form.
        if frame.is_empty() && frames > 0 {
            break;
        }
        if frames == FRAMES_MAX {
            return Err(Error::Unfit(format!(
                "has more than {FRAMES_MAX} frames of {} bytes; give larger frames",
                options.frame
            )));
        }
        encoder.encode(&frame, &mut compressed)?;
        output.write_all(&compressed).map_err(doing("write what was compressed"))?;
        entries.extend((compressed.len() as u32).to_le_bytes());
        entries.extend((frame.len() as u32).to_le_bytes());
        frames += 1;
        original_len += frame.len() as u64;
        encoded_len += compressed.len() as u64;
        if (frame.len() as u64) < u64::from(options.frame) {
            break;
        }
    }
    let inside = entries.len() as u64 + FOOTER;
    let pieces = if original_len == 0 { 0 } else { frames as u64 };
    let mut table = Vec::with_capacity((HEADER + inside) as usize);
    table.extend(SKIPPABLE_MAGIC.to_le_bytes());
    table.extend((inside as u32).to_le_bytes());
    table.extend(entries);
    table.extend((frames as u32).to_le_bytes());
    table.push(0);
    table.extend(SEEKABLE_MAGIC.to_le_bytes());
    output.write_all(&table).map_err(doing("write the table of frames"))?;
    Ok(Info {
        format: options.codec.format(),
        original_len,
        encoded_len: encoded_len + table.len() as u64,
        pieces,
        kept: pieces,
    })
}

enum Encoder {
    Zstd(Compressor<'static>),
    Lz4,
}

impl Encoder {
    fn new(options: &Compress) -> Result<Encoder> {
        Ok(match options.codec {
            Codec::Lz4 => Encoder::Lz4,
            Codec::Zstd => {
                let begun = Compressor::new(options.level).and_then(|mut compressor| {
                    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
                    Ok(compressor)
                });
                Encoder::Zstd(begun.map_err(doing("begin to compress"))?)
            }
        })
    }

    fn encode(&mut self, frame: &[u8], compressed: &mut Vec<u8>) -> Result<()> {
        compressed.clear();
        match self {
            Encoder::Zstd(compressor) => {
                compressed.reserve(zstd::zstd_safe::compress_bound(frame.len()));
                let done = compressor.compress_to_buffer(frame, compressed);
                done.map_err(doing("compress"))?;
            }
            Encoder::Lz4 => {
                let info = FrameInfo::new()
                    .block_mode(BlockMode::Linked)
                    .block_size(BlockSize::Max1MB)
                    .content_size(Some(frame.len() as u64))
                    .content_checksum(true);
                let mut encoder = FrameEncoder::with_frame_info(info, compressed);
                let done = encoder.write_all(frame).and_then(|()| Ok(encoder.finish()?));
                done.map_err(doing("compress"))?;
            }
        }
        Ok(())
    }
}

/// Where frames begin: the table of a file, checked against its length.
#[derive(Debug)]
pub(super) struct Table {
    codec: Codec,
    /// Of each frame the first original and the first encoded byte; the last is behind the frames.
    starts: Vec<(u64, u64)>,
}

impl Table {
    /// Reads the table of a file of `length` bytes.
    pub(super) fn read(codec: Codec, source: &impl Source, length: u64) -> Result<Table> {
        let cut = || Error::damaged("the table of its frames is not at its end; it was cut short");
        let footer_at = length.checked_sub(FOOTER).ok_or_else(cut)?;
        let mut footer = [0; FOOTER as usize];
        let read = "read the table of its frames";
        source.read_exact_at(&mut footer, footer_at).map_err(doing(read))?;
        if u32_at(&footer, 5) != SEEKABLE_MAGIC {
            // Any file of zstd and lz4 begins as these do.
            return Err(Error::NotEncoded(format!(
                "it has no table of frames at its end; if {codec} made it, `{codec} -d` reads it"
            )));
        }
        if footer[4] & 0x7f != 0 {
            return Err(Error::damaged("the table of its frames has unknown fields"));
        }
        // Other writers of the format put a sum of each frame into the table.
        let entry = if footer[4] & 0x80 == 0 { ENTRY } else { ENTRY + 4 };
        let frames = u32_at(&footer, 0) as usize;
        if frames > FRAMES_MAX {
            return Err(Error::damaged(format!("it has {frames} frames, more than {FRAMES_MAX}")));
        }
        let inside = frames as u64 * entry;
        let header_at = footer_at.checked_sub(inside + HEADER).ok_or_else(cut)?;
        let mut header = [0; HEADER as usize];
        source.read_exact_at(&mut header, header_at).map_err(doing(read))?;
        let is_whole = u32_at(&header, 0) == SKIPPABLE_MAGIC
            && u64::from(u32_at(&header, 4)) == inside + FOOTER;
        if !is_whole {
            return Err(cut());
        }
        let mut starts = Vec::with_capacity(frames + 1);
        let (mut original, mut encoded) = (0u64, 0u64);
        let mut part = vec![0; (4096 * entry as usize).min(inside as usize)];
        let mut at = header_at + HEADER;
        while at < footer_at {
            let count = part.len().min((footer_at - at) as usize);
            let part = &mut part[..count];
            source.read_exact_at(part, at).map_err(doing(read))?;
            for entry in part.chunks_exact(entry as usize) {
                let (bytes, decoded) = (u32_at(entry, 0), u32_at(entry, 4));
                if decoded > PIECE_MAX || bytes > bound(PIECE_MAX) {
                    let frame = starts.len();
                    return Err(Error::damaged(format!("its frame {frame} is larger than 16 MiB")));
                }
                // A file without bytes has one such frame. Others would be left out unseen.
                if decoded == 0 && frames > 1 {
                    let frame = starts.len();
                    return Err(Error::damaged(format!("its frame {frame} has no bytes")));
                }
                starts.push((original, encoded));
                original += u64::from(decoded);
                encoded += u64::from(bytes);
            }
            at += count as u64;
        }
        starts.push((original, encoded));
        if encoded != header_at {
            return Err(Error::damaged("its frames do not end where the table of them begins"));
        }
        let table = Table { codec, starts };
        if table.starts.last() == Some(&(0, header_at)) && frames == 1 {
            table.decode(source, 0, &mut Vec::new(), &mut Vec::new())?;
        }
        Ok(table)
    }

    pub(super) fn info(&self, encoded_len: u64) -> Info {
        let (original_len, _) = self.starts[self.starts.len() - 1];
        let frames = self.starts.len() as u64 - 1;
        let pieces = if original_len == 0 { 0 } else { frames };
        Info { format: self.codec.format(), original_len, encoded_len, pieces, kept: pieces }
    }

    /// The frame with the original byte `offset`, which is before the end.
    pub(super) fn index_of(&self, offset: u64) -> usize {
        self.starts.partition_point(|&(original, _)| original <= offset) - 1
    }

    pub(super) fn original(&self, index: usize) -> Range<u64> {
        self.starts[index].0..self.starts[index + 1].0
    }

    /// Decodes a frame into `decoded`, which is empty.
    pub(super) fn decode(
        &self,
        source: &impl Source,
        index: usize,
        scratch: &mut Vec<u8>,
        decoded: &mut Vec<u8>,
    ) -> Result<()> {
        let (begin, end) = (self.starts[index].1, self.starts[index + 1].1);
        let range = self.original(index);
        let wanted = (range.end - range.start) as usize;
        scratch.resize((end - begin) as usize, 0);
        source.read_exact_at(scratch, begin).map_err(doing("read a frame"))?;
        let what = match self.codec {
            Codec::Zstd => zstd_frame(scratch, wanted, decoded),
            Codec::Lz4 => lz4_frame(scratch, wanted, decoded),
        };
        let what = match what {
            Ok(()) if decoded.len() == wanted => return Ok(()),
            Ok(()) => "has another length than the table says".to_owned(),
            Err(error) => format!("cannot be decoded: {error}"),
        };
        decoded.clear();
        Err(Error::damaged(format!(
            "the frame at byte {begin}, original byte {}, {what}",
            range.start
        )))
    }
}

/// Bytes that a frame of `original` bytes has at most, of either codec.
fn bound(original: u32) -> u32 {
    original + original / 128 + (64 << 10)
}

fn zstd_frame(frame: &[u8], wanted: usize, decoded: &mut Vec<u8>) -> io::Result<()> {
    decoded.reserve_exact(wanted);
    // The vector's capacity limits what is decoded.
    Decompressor::new()?.decompress_to_buffer(frame, decoded)?;
    Ok(())
}

fn lz4_frame(mut frame: &[u8], wanted: usize, decoded: &mut Vec<u8>) -> io::Result<()> {
    let other = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    // The decoder takes a frame without an end, and without a sum, too.
    let ends = frame.len().checked_sub(8).map(|at| u32_at(frame, at));
    let is_summed = frame.get(4).is_some_and(|flags| flags & LZ4_HAS_SUM != 0);
    if ends != Some(0) || !is_summed {
        return Err(other("it has no end, or no sum"));
    }
    decoded.reserve_exact(wanted);
    let mut decoder = FrameDecoder::new(&mut frame);
    decoder.by_ref().take(wanted as u64).read_to_end(decoded)?;
    // The sum is compared where the end is read.
    if decoder.read(&mut [0])? != 0 {
        return Err(other("it decodes to more than the table says"));
    }
    if frame.is_empty() { Ok(()) } else { Err(other("there are bytes behind its end")) }
}
