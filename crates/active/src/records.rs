//! Files of records that all have the same length: their fields, and whether a file has such.

use crate::error::{Error, Result, doing};
use std::cmp::Ordering;
use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

/// Bytes of a record at most: 16 MiB, so that some are in memory at once.
pub const RECORD_MAX: u32 = 16 << 20;

/// How the bytes of a field are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number without a sign.
    Unsigned,
    /// A number in two's complement.
    Signed,
    /// A number of IEEE 754.
    Float,
    /// Bytes, the first of which weighs most.
    Bytes,
}

/// A field of a record. Written `TYPE@OFFSET`, where TYPE is one of `u8`, `u16`, `u32`, `u64`,
/// `i8` to `i64`, `f32`, `f64`, with `be` behind it where the byte order is big-endian, or
/// `bytesN`.
///
/// ```
/// use forebay_active::records::Field;
///
/// let energy: Field = "f64@24".parse().unwrap();
/// assert_eq!((energy.offset, energy.length), (24, 8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// First byte in the record.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
    /// What they mean.
    pub kind: Kind,
    /// Whether the first byte of a number weighs most.
    pub is_big_endian: bool,
}

impl FromStr for Field {
    type Err = Error;

    fn from_str(text: &str) -> Result<Field> {
        let wrong = || {
            Error::Option(format!(
                "\"{text}\" is no field; give TYPE@OFFSET, with TYPE one of u8 to u64, i8 to i64, \
                 f32, f64 (be behind it for big-endian) or bytesN, for example f64@24"
            ))
        };
        let (named, offset) = text.trim().split_once('@').ok_or_else(wrong)?;
        let offset = offset.parse().map_err(|_| wrong())?;
        let (named, is_big_endian) = match named.strip_suffix("be") {
            Some(named) if !named.starts_with("bytes") => (named, true),
            _ => (named, false),
        };
        let (kind, length) = if let Some(length) = named.strip_prefix("bytes") {
            (Kind::Bytes, length.parse().map_err(|_| wrong())?)
        } else {
            let (kind, bits) = named.split_at_checked(1).ok_or_else(wrong)?;
            match (kind, bits) {
                ("u", "8" | "16" | "32" | "64") => (Kind::Unsigned, bits),
                ("i", "8" | "16" | "32" | "64") => (Kind::Signed, bits),
                ("f", "32" | "64") => (Kind::Float, bits),
                _ => return Err(wrong()),
            }
            .map_bits()
        };
        if length == 0 {
            return Err(wrong());
        }
        Ok(Field { offset, length, kind, is_big_endian })
    }
}

/// Bits of a type, as bytes.
trait MapBits {
    fn map_bits(self) -> (Kind, u32);
}

impl MapBits for (Kind, &str) {
    fn map_bits(self) -> (Kind, u32) {
        (self.0, self.1.parse::<u32>().map_or(0, |bits| bits / 8))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Unsigned => 'u',
            Kind::Signed => 'i',
            Kind::Float => 'f',
            Kind::Bytes => return write!(f, "bytes{}@{}", self.length, self.offset),
        };
        let order = if self.is_big_endian { "be" } else { "" };
        write!(f, "{kind}{}{order}@{}", self.length * 8, self.offset)
    }
}

impl Field {
    /// Checks that records of `length` bytes have it.
    pub(crate) fn check(&self, record: u32) -> Result<()> {
        let end = u64::from(self.offset) + u64::from(self.length);
        if end > u64::from(record) {
            return Err(Error::Option(format!(
                "the field {self} ends at byte {end} of a record, which has {record}"
            )));
        }
        Ok(())
    }

    fn bytes<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        &record[self.offset as usize..][..self.length as usize]
    }

    /// The bits of a number.
    fn bits(&self, record: &[u8]) -> u64 {
        let bytes = self.bytes(record);
        let mut whole = [0; 8];
        if self.is_big_endian {
            whole[8 - bytes.len()..].copy_from_slice(bytes);
            u64::from_be_bytes(whole)
        } else {
            whole[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(whole)
        }
    }

    /// Appends bytes that compare as the field's values do. Floats are in the total order of IEEE
    /// 754: negative NaN, numbers with -0 before +0, NaN.
    pub(crate) fn append_order(&self, record: &[u8], key: &mut Vec<u8>) {
        let sign = 1_u64 << (self.length * 8 - 1).min(63);
        let bits = match self.kind {
            Kind::Bytes => return key.extend(self.bytes(record)),
            Kind::Unsigned => self.bits(record),
            Kind::Signed => self.bits(record) ^ sign,
            Kind::Float => match self.bits(record) {
                negative if negative & sign != 0 => !negative,
                positive => positive | sign,
            },
        };
        key.extend(&bits.to_be_bytes()[8 - self.length as usize..]);
    }

    /// How the field's value compares with a constant; none where a NaN has to do with it.
    pub(crate) fn compare(&self, record: &[u8], constant: &Constant) -> Option<Ordering> {
        match constant {
            Constant::Bytes(bytes) => Some(self.bytes(record).cmp(bytes)),
            Constant::Whole(number) => {
                let bits = self.bits(record);
                let unused = 64 - self.length * 8;
                let value = match self.kind {
                    Kind::Signed => i128::from((bits << unused) as i64 >> unused),
                    _ => i128::from(bits),
                };
                Some(value.cmp(number))
            }
            Constant::Float(number) => {
                let bits = self.bits(record);
                let value = match self.length {
                    4 => f32::from_bits(bits as u32).into(),
                    _ => f64::from_bits(bits),
                };
                value.partial_cmp(number)
            }
        }
    }

    /// A constant to compare the field with.
    pub(crate) fn constant(&self, text: &str) -> Result<Constant> {
        let wrong = |what: &str| {
            Error::Option(format!("\"{text}\" cannot be compared with the field {self}: {what}"))
        };
        match self.kind {
            Kind::Unsigned | Kind::Signed => {
                let number = text.parse().map_err(|_| wrong("it is no whole number"))?;
                Ok(Constant::Whole(number))
            }
            Kind::Float => {
                let number: f64 = text.parse().map_err(|_| wrong("it is no number"))?;
                // What the field can have of it: 0.1 as f32 is another number.
                let number = if self.length == 4 { f64::from(number as f32) } else { number };
                Ok(Constant::Float(number))
            }
            Kind::Bytes => {
                let bytes = match text.strip_prefix("0x") {
                    Some(digits) => hex(digits).ok_or_else(|| wrong("it has no hex digits"))?,
                    None => {
                        let quoted =
                            text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
                        let quoted = quoted.ok_or_else(|| wrong("give 'text' or 0x and digits"))?;
                        quoted.as_bytes().to_vec()
                    }
                };
                if bytes.len() != self.length as usize {
                    return Err(wrong(&format!("it has {} bytes", bytes.len())));
                }
                Ok(Constant::Bytes(bytes))
            }
        }
    }
}

/// What a field is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    Whole(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    digits.len().is_multiple_of(2).then(|| digits.chunks_exact(2).map(pair).collect())?
}

/// Where the records of a file are: behind a header, which results have as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// Bytes of a record.
    pub record: u32,
    /// Bytes before the first record.
    pub header: u64,
}

impl Records {
    /// Checks the length of a record.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=RECORD_MAX).contains(&self.record) {
            return Err(Error::Option(format!(
                "a record of {} bytes is not within 1 byte to 16 MiB",
                self.record
            )));
        }
        Ok(())
    }

    /// How many records a file of `length` bytes has.
    ///
    /// # Errors
    /// It is no header with whole records behind it.
    pub(crate) fn count(&self, length: u64) -> Result<u64> {
        let Some(inside) = length.checked_sub(self.header) else {
            return Err(Error::Unfit(format!(
                "has {length} bytes, fewer than its header of {}; give another header",
                self.header
            )));
        };
        let record = u64::from(self.record);
        match inside % record {
            0 => Ok(inside / record),
            left => Err(Error::Unfit(format!(
                "has {inside} bytes of records, which are not records of {record}: {left} bytes \
                 are left; give another record, or the header's length"
            ))),
        }
    }

    /// Passes the header on.
    pub(crate) fn copy_header(
        &self,
        input: &mut (impl Read + ?Sized),
        output: &mut (impl Write + ?Sized),
    ) -> Result<()> {
        let copied = std::io::copy(&mut input.take(self.header), output);
        let copied = copied.map_err(doing("copy the header"))?;
        if copied < self.header { Err(shorter()) } else { Ok(()) }
    }
}

/// The file became shorter while it was read.
pub(crate) fn shorter() -> Error {
    Error::Unfit("became shorter while it was read; nothing was made of it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_written_alike() {
        for text in ["u8@0", "u16@2", "i64@8", "f32be@4", "u64be@1", "bytes12@3"] {
            assert_eq!(text.parse::<Field>().unwrap().to_string(), text);
        }
        for text in ["", "f64", "f16@0", "u12@1", "bytes@0", "bytes0@0", "f64@x", "bytes4be@0"] {
            assert!(text.parse::<Field>().is_err(), "{text}");
        }
    }

    #[test]
    fn order_bytes_compare_as_values_do() {
        fn sorted<const N: usize>(field: &str, values: &[[u8; N]]) {
            let field: Field = field.parse().unwrap();
            let key = |value: &[u8; N]| {
                let mut key = Vec::new();
                field.append_order(value, &mut key);
                key
            };
            assert!(values.windows(2).all(|two| key(&two[0]) < key(&two[1])), "{field}");
        }
        sorted("i16@0", &[-300_i16, -1, 0, 1, 300].map(i16::to_le_bytes));
        sorted("i64be@0", &[i64::MIN, -1, 0, i64::MAX].map(i64::to_be_bytes));
        sorted("u32@0", &[0_u32, 255, 256, u32::MAX].map(u32::to_le_bytes));
        let floats = [f32::NEG_INFINITY, -2.5, -0.0, 0.0, 1e-40, 3.5, f32::INFINITY, f32::NAN];
        sorted("f32@0", &floats.map(f32::to_le_bytes));
        sorted("f64be@0", &floats.map(|float| f64::from(float).to_be_bytes()));
        sorted("bytes3@0", &[*b"aaa", *b"aab", *b"b\0\0"]);
    }

    #[test]
    fn constants_are_of_the_fields_type() {
        let of = |field: &str, text: &str| field.parse::<Field>().unwrap().constant(text);
        let compare = |field: &str, record: &[u8], text: &str| {
            let field: Field = field.parse().unwrap();
            field.compare(record, &field.constant(text).unwrap())
        };
        assert_eq!(compare("i8@0", &[0xff], "-1"), Some(Ordering::Equal));
        assert_eq!(compare("u8@0", &[0xff], "-1"), Some(Ordering::Greater));
        assert_eq!(compare("f32@0", &0.1_f32.to_le_bytes(), "0.1"), Some(Ordering::Equal));
        assert_eq!(compare("f64@0", &f64::NAN.to_le_bytes(), "0"), None);
        assert_eq!(compare("bytes2@1", b"xab", "'ab'"), Some(Ordering::Equal));
        assert_eq!(compare("bytes2@0", b"ab", "0x6163"), Some(Ordering::Less));
        assert!(of("u8@0", "1.5").is_err());
        assert!(of("bytes2@0", "'abc'").is_err());
        assert!(of("bytes2@0", "0xa").is_err());
    }
}
