//! Sums of files, as manifests that `sha256sum -c` and `b3sum -c` read.

use crate::error::{Error, Result, doing};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Bytes that are read at once.
const PART: usize = 1 << 20;

/// A function that sums bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// CRC-32C (Castagnoli): finds accidents only.
    Crc32c,
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
}

impl Sum {
    /// All, by name.
    pub const ALL: [(&str, Sum); 3] =
        [("crc32c", Sum::Crc32c), ("sha256", Sum::Sha256), ("blake3", Sum::Blake3)];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sum::Crc32c => "crc32c",
            Sum::Sha256 => "sha256",
            Sum::Blake3 => "blake3",
        }
    }

    /// What the name of a manifest ends with.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Sum::Crc32c => ".crc32c",
            Sum::Sha256 => ".sha256",
            Sum::Blake3 => ".b3",
        }
    }

    /// The sum whose manifests have names that end so.
    pub fn of_manifest(name: &[u8]) -> Option<Sum> {
        let ends = |sum: &Sum| name.ends_with(sum.suffix().as_bytes());
        Sum::ALL.into_iter().map(|(_, sum)| sum).find(ends)
    }

    /// Sums all bytes; returns hex digits, and how many bytes there were.
    ///
    /// # Errors
    /// Those of the reads.
    pub fn of(self, input: &mut (impl Read + ?Sized)) -> Result<(String, u64)> {
        let mut state = match self {
            Sum::Crc32c => State::Crc32c(0),
            Sum::Sha256 => State::Sha256(Sha256::new()),
            Sum::Blake3 => State::Blake3(Box::new(blake3::Hasher::new())),
        };
        let (mut part, mut length) = (vec![0; PART], 0);
        loop {
            match input.read(&mut part) {
                Ok(0) => break,
                Ok(read) => {
                    state.add(&part[..read]);
                    length += read as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(doing("read the original")(error)),
            }
        }
        Ok((state.end(), length))
    }
}

enum State {
    Crc32c(u32),
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl State {
    fn add(&mut self, bytes: &[u8]) {
        match self {
            State::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
            State::Sha256(hasher) => hasher.update(bytes),
            State::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    fn end(self) -> String {
        let bytes = match self {
            State::Crc32c(sum) => sum.to_be_bytes().to_vec(),
            State::Sha256(hasher) => hasher.finalize().to_vec(),
            State::Blake3(hasher) => hasher.finalize().as_bytes().to_vec(),
        };
        let mut digits = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let _ = write!(digits, "{byte:02x}");
        }
        digits
    }
}

/// A manifest: the sum of a file with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Which sum.
    pub sum: Sum,
}

impl Checksum {
    /// Sums `input`, which is named `name`; returns how many bytes it has.
    pub(crate) fn run(
        &self,
        input: &mut (impl Read + ?Sized),
        name: &[u8],
        output: &mut (impl Write + ?Sized),
    ) -> Result<u64> {
        let (digits, length) = self.sum.of(input)?;
        output.write_all(&line(&digits, name)).map_err(doing("write the manifest"))?;
        Ok(length)
    }
}

/// A line of a manifest, as coreutils write it: a name with a line's end or a backslash has these
/// escaped, and a backslash before the line.
fn line(digits: &str, name: &[u8]) -> Vec<u8> {
    let mut line = Vec::new();
    let is_escaped = name.iter().any(|byte| b"\\\n\r".contains(byte));
    if is_escaped {
        line.push(b'\\');
    }
    line.extend(digits.as_bytes());
    line.extend(b"  ");
    for &byte in name {
        match byte {
            b'\\' => line.extend(b"\\\\"),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

/// The names and sums of a manifest.
///
/// # Errors
/// A line is none.
pub fn read_manifest(text: &[u8]) -> Result<Vec<(PathBuf, String)>> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| entry(line).ok_or_else(|| not_a_line(line))).collect()
}

fn not_a_line(line: &[u8]) -> Error {
    let line: String = String::from_utf8_lossy(line).chars().take(80).collect();
    Error::Unfit(format!("has the line \"{line}\", which is not a sum, two spaces and a name"))
}

fn entry(line: &[u8]) -> Option<(PathBuf, String)> {
    let (is_escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let space = line.iter().position(|&byte| byte == b' ')?;
    let (digits, name) = line.split_at(space);
    // The second character says how the file is read, which makes no difference here.
    let name = name.strip_prefix(b"  ").or_else(|| name.strip_prefix(b" *"))?;
    if digits.is_empty() || name.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut unescaped = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        unescaped.push(match byte {
            b'\\' if is_escaped => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => byte,
        });
    }
    let digits = String::from_utf8_lossy(digits).to_ascii_lowercase();
    Some((PathBuf::from(std::ffi::OsString::from_vec(unescaped)), digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_known_ones() {
        let of = |sum: Sum| sum.of(&mut &b"123456789"[..]).unwrap();
        assert_eq!(of(Sum::Crc32c), ("e3069283".to_owned(), 9));
        let sha256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(of(Sum::Sha256).0, sha256);
        // From the test vectors of BLAKE3: the empty input.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Sum::Blake3.of(&mut &b""[..]).unwrap().0, empty);
    }

    #[test]
    fn names_come_back_from_manifests() {
        for name in [&b"a"[..], b"two words", b"a\\b", b"a\nb\r", b" x", b"\xff\xfe"] {
            let line = line("00ff", name);
            let read = read_manifest(&line).unwrap();
            let name = PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
            assert_eq!(read, [(name, "00ff".to_owned())]);
        }
        for text in [&b"xyz  a"[..], b"00 a", b"00", b"00  ", b"\\00  a\\q"] {
            assert!(read_manifest(text).is_err(), "{text:?}");
        }
    }
}
