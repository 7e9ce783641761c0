//! Encoding a file, beside it: the part that takes time, and that needs no node manager. The
//! original is read, and not changed.

use super::beside::{Beside, Seen};
use super::{Failure, Refusal, doing};
use forebay_active::encoded::{Codec, Compress, Dedup, Format, Reader, compress, dedup};
use forebay_pool::clock::{self, Timer};
use forebay_pool::encoded::{Content, Mark, is_marked, may_be_marked};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes that a file has to become smaller by: what the store counts in may be as large as that.
pub(super) const GAIN_MIN: u64 = 64 << 10;
/// A file that was changed less long ago is not encoded: the clock of a store may give what changes
/// again soon the same time.
const AT_REST: Timer = Timer::ms(500);
/// Bytes that are compared at once.
const PIECE: usize = 1 << 20;

/// A file that was encoded beside. While this lives, no manager takes the result for one that was
/// left.
pub struct Encoded {
    beside: Beside,
    number: u64,
    /// Keeps the lock.
    _file: File,
    /// Bytes of the original, and of the encoded form.
    pub bytes: (u64, u64),
}

impl Encoded {
    /// The number by which the node manager finds it.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        // Where it was put in place there is nothing left. What a file needs has its mark: see
        // `keep`.
        if self.number != 0 {
            self.beside.remove(self.number);
        }
    }
}

impl Encoded {
    /// The node manager has taken it, or may have: what becomes of it is its business.
    pub fn keep(mut self) {
        self.number = 0;
    }
}

/// Encodes the file at `path`, which lies in the store in directory `store`, by `format` (of
/// Zstandard, with this `level`), and compares what comes of it, decoded, with the file.
///
/// # Errors
/// Why it is left as it is, or what failed.
pub fn encode(
    path: &Path,
    store: &Path,
    format: Format,
    level: Option<i32>,
) -> Result<Encoded, Failure> {
    let mut file = File::open(path)
        .map_err(|error| Failure::System("opening it", Failure::errno_of(&error)))?;
    let look = |file: &File| rustix::fs::fstat(file).map_err(doing("looking at it"));
    let stat = look(&file)?;
    check_kind(&stat)?;
    if may_be_marked(&stat) && is_marked(&file) {
        return Err(Refusal::Already.into());
    }
    let seen = Seen::of(&stat);
    let now_ns = clock::realtime_ns();
    if now_ns.saturating_sub(seen.changed_ns) < AT_REST.as_ns() {
        return Err(Refusal::Changed.into());
    }
    let mut magic = [0; 4];
    let head = file.read(&mut magic).map_err(reading)?;
    if head == 4 && (magic == *b"\x7fELF" || magic.starts_with(b"#!")) {
        return Err(Refusal::Kind.into());
    }
    file.seek(SeekFrom::Start(0)).map_err(reading)?;
    let mut beside = Beside::of(store).map_err(doing("making the folder for what is encoded"))?;
    let number = new_number();
    let made = beside.begin(number).map_err(doing("making the encoded file"));
    let made = made.inspect_err(|_| beside.remove_if_empty())?;
    let mut encoded =
        Encoded { beside, number, _file: made.try_clone().map_err(reading)?, bytes: (0, 0) };
    let mut output = BufWriter::with_capacity(PIECE, &made);
    let info = match format {
        Format::Zstd | Format::Lz4 => {
            let codec = if format == Format::Zstd { Codec::Zstd } else { Codec::Lz4 };
            let mut options = Compress::new(codec).for_length(seen.size);
            options.level = level.unwrap_or(options.level);
            compress(&mut file, &mut output, &options)?
        }
        Format::Dedup => dedup(&mut file, &mut output, &Dedup::default().for_length(seen.size))?,
    };
    output.flush().map_err(writing)?;
    drop(output);
    encoded.bytes = (info.original_len, info.encoded_len);
    if info.original_len != seen.size {
        return Err(Refusal::Changed.into());
    }
    if info.encoded_len + GAIN_MIN > info.original_len {
        return Err(Refusal::Gain.into());
    }
    compare(&file, &made, info.encoded_len)?;
    if Seen::of(&look(&file)?) != seen {
        return Err(Refusal::Changed.into());
    }
    let mark = mark_of(&made, format, info.original_len, info.encoded_len, number)?;
    let path = path.canonicalize().map_err(reading)?;
    encoded.beside.finish(&made, &mark, &seen, &path).map_err(|errno| match errno {
        Errno::OPNOTSUPP => Refusal::Attributes.into(),
        errno => Failure::System("making the encoded file durable", errno),
    })?;
    Ok(encoded)
}

/// Whether files of this kind are encoded.
pub(super) fn check_kind(stat: &rustix::fs::Stat) -> Result<(), Failure> {
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_mode & 0o7111 != 0 {
        return Err(Refusal::Kind.into());
    }
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || stat.st_mode & 0o200 == 0 {
        return Err(Refusal::Owner.into());
    }
    if (stat.st_size as u64) < GAIN_MIN {
        return Err(Refusal::Gain.into());
    }
    Ok(())
}

fn reading(error: std::io::Error) -> Failure {
    Failure::System("reading it", Failure::errno_of(&error))
}

fn writing(error: std::io::Error) -> Failure {
    Failure::System("writing the encoded file", Failure::errno_of(&error))
}

/// A number that no other file has: zero means none.
fn new_number() -> u64 {
    use std::hash::BuildHasher;
    // Keyed at random in each process; the clock tells those of one process apart.
    let now = (std::process::id(), clock::realtime_ns(), clock::monotonic_ns());
    std::collections::hash_map::RandomState::new().hash_one(now).max(1)
}

/// Compares a file with what its encoded form decodes to.
fn compare(original: &File, encoded: &File, encoded_len: u64) -> Result<(), Failure> {
    use std::os::unix::fs::FileExt;
    let mut reader = Reader::open(encoded, encoded_len)?;
    let (mut decoded, mut is) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < reader.original_len() {
        let bytes = reader.read_at(&mut decoded, at)?;
        original.read_exact_at(&mut is[..bytes], at).map_err(reading)?;
        if bytes == 0 || decoded[..bytes] != is[..bytes] {
            return Err(Refusal::Changed.into());
        }
        at += bytes as u64;
    }
    Ok(())
}

fn mark_of(
    file: &File,
    format: Format,
    original: u64,
    encoded: u64,
    number: u64,
) -> Result<Mark, Failure> {
    let (head, tail) = super::beside::edges_of(file, encoded).map_err(doing("reading it again"))?;
    let mut form = [0; 8];
    form[..format.name().len()].copy_from_slice(format.name().as_bytes());
    Ok(Mark { form, original, encoded, head, tail, number, content: Content::Here })
}
