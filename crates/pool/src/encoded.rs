//! The mark of a file whose bytes on the store are an encoded form of what it is: an extended
//! attribute that says which form, how long that is, and where it lies. See
//! docs/design/encoded.md.
//!
//! ```
//! use forebay_pool::encoded::{Content, Mark};
//!
//! let mark = Mark::of(*b"zstd\0\0\0\0", 10 << 20, b"frames", 7);
//! let text = mark.text();
//! assert_eq!(Mark::parse(&text), Some(mark));
//! assert_eq!(mark.content, Content::Here);
//! // Other text is no mark.
//! assert_eq!(Mark::parse(b"1 zstd"), None);
//! ```

use core::ffi::CStr;
use rustix::fs::{Stat, fgetxattr};
use rustix::io::Errno;

/// The extended attribute.
pub const MARK: &CStr = c"user.forebay.encoded";
/// The folder, directly in a store's directory, with encoded bytes that are on their way to, or
/// from, the files that they are of.
pub const FOLDER: &str = ".forebay-encoded";
/// Bytes at the beginning and at the end of the encoded form that the mark has a checksum of.
pub const EDGE: u64 = 4096;
/// Bytes of a mark at most.
pub const MARK_MAX: usize = 192;

/// Where the encoded bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// In the file.
    Here,
    /// In a file of [`FOLDER`], named by the mark's number. What the file itself has is neither
    /// the encoded bytes nor the original ones.
    Beside,
}

/// What the attribute says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The name of the form, with zeros behind it.
    pub form: [u8; 8],
    /// Bytes of the original, and the size that the file has.
    pub original: u64,
    /// Bytes of the encoded form.
    pub encoded: u64,
    /// CRC32C of the first bytes of the encoded form, [`EDGE`] of them, or all.
    pub head: u32,
    /// The same of the last ones.
    pub tail: u32,
    /// The name of the file beside it, and no other's.
    pub number: u64,
    /// Where the encoded bytes are.
    pub content: Content,
}

impl Mark {
    /// The mark of a file that was `original` bytes long, and is `encoded` now.
    pub fn of(form: [u8; 8], original: u64, encoded: &[u8], number: u64) -> Mark {
        let edge = encoded.len().min(EDGE as usize);
        let (head, tail) = (&encoded[..edge], &encoded[encoded.len() - edge..]);
        Mark {
            form,
            original,
            encoded: encoded.len() as u64,
            head: crc32c::crc32c(head),
            tail: crc32c::crc32c(tail),
            number,
            content: Content::Here,
        }
    }

    /// The form's name.
    pub fn form_name(&self) -> &str {
        let end = self.form.iter().position(|&byte| byte == 0).unwrap_or(self.form.len());
        core::str::from_utf8(&self.form[..end]).unwrap_or_default()
    }

    /// The name of the file beside it.
    pub fn name_beside(&self) -> String {
        format!("{:016x}", self.number)
    }

    /// The attribute's value: words that getfattr shows.
    pub fn text(&self) -> Vec<u8> {
        let place = match self.content {
            Content::Here => "here",
            Content::Beside => "beside",
        };
        let text = format!(
            "1 {} original {} encoded {} head {:08x} tail {:08x} number {:016x} {place}",
            self.form_name(),
            self.original,
            self.encoded,
            self.head,
            self.tail,
            self.number,
        );
        format!("{text} {:08x}", crc32c::crc32c(text.as_bytes())).into_bytes()
    }

    /// What an attribute says, which any program may have written. `None` if it is no mark.
    pub fn parse(text: &[u8]) -> Option<Mark> {
        let text = core::str::from_utf8(text).ok().filter(|text| text.len() <= MARK_MAX)?;
        let (said, sum) = text.rsplit_once(' ')?;
        if hex(sum)? != u64::from(crc32c::crc32c(said.as_bytes())) {
            return None;
        }
        let mut words = said.split(' ');
        let mut next = |name: &str| {
            let known = name.is_empty() || words.next()? == name;
            words.next().filter(|_| known)
        };
        if next("")? != "1" {
            return None;
        }
        let name = next("")?.as_bytes();
        let mut form = [0; 8];
        form.get_mut(..name.len())?.copy_from_slice(name);
        let original = next("original")?.parse().ok()?;
        let encoded = next("encoded")?.parse().ok()?;
        let head = hex(next("head")?)? as u32;
        let tail = hex(next("tail")?)? as u32;
        let number = hex(next("number")?)?;
        let content = match next("")? {
            "here" => Content::Here,
            "beside" => Content::Beside,
            _ => return None,
        };
        let is_one = words.next().is_none() && encoded > 0 && encoded < original;
        is_one.then_some(Mark { form, original, encoded, head, tail, number, content })
    }
}

fn hex(word: &str) -> Option<u64> {
    (!word.starts_with('+')).then(|| u64::from_str_radix(word, 16).ok())?
}

/// The sticky bit: on a regular file it means nothing to Linux. A file has it while its bytes are
/// exchanged, when how much room it takes says nothing of what it has.
pub const EXCHANGING: u32 = 0o1000;

/// Whether a file may have a mark: it takes less room than it is long, as one that was made longer
/// than its encoded form, or is just exchanged. Files with holes do, too.
#[inline]
pub fn may_be_marked(stat: &Stat) -> bool {
    stat.st_size > 0
        && ((stat.st_blocks as u64).saturating_mul(512) < stat.st_size as u64
            || stat.st_mode & EXCHANGING != 0)
}

/// Whether the open file has the attribute, whatever it says.
pub fn is_marked(fd: impl rustix::fd::AsFd) -> bool {
    let mut text = [0u8; MARK_MAX];
    match fgetxattr(fd, MARK, &mut text[..]) {
        Ok(_) | Err(Errno::RANGE) => true,
        Err(_) => false,
    }
}

/// The mark of an open file of this size; `None` if it has none, or one of another size.
///
/// # Errors
/// The store's errno.
pub fn mark_of(fd: impl rustix::fd::AsFd, size: u64) -> Result<Option<Mark>, Errno> {
    Ok(mark_of_any_size(fd)?.filter(|mark| mark.original == size))
}

/// The same, whatever the size.
///
/// # Errors
/// The store's errno.
pub fn mark_of_any_size(fd: impl rustix::fd::AsFd) -> Result<Option<Mark>, Errno> {
    let mut text = [0u8; MARK_MAX];
    match fgetxattr(fd, MARK, &mut text[..]) {
        Ok(length) => Ok(text.get(..length).and_then(Mark::parse)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark::of(*b"lz4\0\0\0\0\0", 1 << 40, &[9; 10_000], u64::MAX)
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for content in [Content::Here, Content::Beside] {
            let mark = Mark { content, ..mark() };
            assert!(mark.text().len() <= MARK_MAX, "{}", mark.text().len());
            assert_eq!(Mark::parse(&mark.text()), Some(mark));
        }
        let longest = Mark { original: u64::MAX, encoded: u64::MAX - 1, ..mark() };
        assert_eq!(Mark::parse(&longest.text()), Some(longest));
    }

    #[test]
    fn what_was_changed_is_no_mark() {
        let text = mark().text();
        for at in 0..text.len() {
            for flipped in [1, 0x10, 0x80] {
                let mut other = text.clone();
                other[at] ^= flipped;
                assert_ne!(Mark::parse(&other), Some(mark()), "byte {at}");
            }
            assert_eq!(Mark::parse(&text[..at]), None);
        }
        assert_eq!(Mark::parse(&[b' '; MARK_MAX]), None);
    }

    #[test]
    fn a_form_that_is_longer_than_its_original_is_none() {
        let mark = Mark { original: 10_000, ..mark() };
        assert_eq!(Mark::parse(&mark.text()), None);
    }
}
