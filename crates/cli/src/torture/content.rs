//! Bytes that say where they belong: each follows from seed, file, version and offset.

use forebay_placement::mix;

/// Whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Of the whole torture.
    pub seed: u64,
    /// Worker and file in one number.
    pub file: u64,
    /// Which write to it.
    pub version: u64,
}

impl Source {
    /// Fills `bytes` with what belongs at `offset`.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        let base = mix(self.seed ^ mix(self.file << 40 ^ self.version));
        let mut at = 0;
        while at < bytes.len() {
            let position = offset + at as u64;
            let word = mix(base ^ (position / 8)).to_le_bytes();
            let skip = (position % 8) as usize;
            let count = (8 - skip).min(bytes.len() - at);
            bytes[at..at + count].copy_from_slice(&word[skip..skip + count]);
            at += count;
        }
    }
}

/// A short check number of some bytes.
pub fn check_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0x5eed, |sum, &byte| mix(sum ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_the_whole_has_there() {
        let source = Source { seed: 1, file: 2, version: 3 };
        let (mut whole, mut part) = ([0; 100], [0; 37]);
        source.fill(1000, &mut whole);
        source.fill(1013, &mut part);
        assert_eq!(part, whole[13..50]);
        let mut other = [0; 100];
        Source { version: 4, ..source }.fill(1000, &mut other);
        assert!(whole.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
    }
}
