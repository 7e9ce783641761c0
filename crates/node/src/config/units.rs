//! Sizes and times as people write them.

use std::fmt;

pub(crate) const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];
/// Durations are kept in nanoseconds.
pub(crate) const TIME_UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a decimal number and its unit, exactly; none if malformed or more than 64 bits hold.
pub(crate) fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let scale = u128::from(*scale);
    let whole = u128::from(whole.parse::<u64>().ok()?) * scale;
    let fraction =
        u128::from(fraction.parse::<u64>().ok()?) * scale / 10u128.pow(fraction.len() as u32);
    u64::try_from(whole + fraction).ok()
}

/// The bytes in "64MiB", or in a plain number.
pub fn size_of(text: &str) -> Option<u64> {
    quantity(text, SIZE_UNITS).or_else(|| text.trim().parse().ok())
}

/// The nanoseconds in "10min".
pub fn time_of(text: &str) -> Option<u64> {
    quantity(text, TIME_UNITS)
}

/// A size for people, rounded to one decimal.
pub(crate) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) =
            [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
                .into_iter()
                .find(|(_, scale)| self.0 >= *scale)
                .unwrap_or(("B", 1));
        write!(f, "{:.1} {unit}", self.0 as f64 / scale as f64)
    }
}

/// A size as it is written in the file: exact where it can be.
pub(crate) fn size(bytes: u64) -> String {
    let unit = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        .into_iter()
        .find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    match unit {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => Size(bytes).to_string(),
    }
}

pub(crate) fn round_down(bytes: u64, unit: u64) -> u64 {
    bytes / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        for (text, bytes) in [
            ("1B", 1),
            ("4KiB", 4096),
            ("1.5 MiB", 3 << 19),
            ("23MB", 23_000_000),
            ("27.6MB", 27_600_000),
            ("0.1GB", 100_000_000),
            ("2TiB", 2 << 40),
            (" 3TB ", 3_000_000_000_000),
            ("64M", 64 << 20),
            ("1.5 G", 3 << 29),
            ("2K", 2048),
        ] {
            assert_eq!(quantity(text, SIZE_UNITS), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "1", "-1KB", "1.KB", ".5KB", "1.2.3KB", "1 K iB", "1kb", "1e3KB"] {
            assert_eq!(quantity(text, SIZE_UNITS), None, "{text}");
        }
        assert_eq!(quantity("16777215TiB", SIZE_UNITS), Some(u64::MAX - (1 << 40) + 1));
        assert_eq!(quantity("16777216TiB", SIZE_UNITS), None);
        assert_eq!(quantity("4.16ms", TIME_UNITS), Some(4_160_000));
        for text in ["2min", "2m", "120s", "2 min"] {
            assert_eq!(time_of(text), Some(120_000_000_000), "{text}");
        }
        assert_eq!(time_of("1.5h"), Some(5_400_000_000_000));
        assert_eq!(time_of("2M"), None, "a size");
    }
}
