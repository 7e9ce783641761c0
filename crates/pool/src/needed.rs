//! What processes found out about program files and libraries: before which libraries an adapter is
//! to be loaded with them. Each exec would read the same files again.
//!
//! A word is all that is known of one file, so that nothing is ever half written: what identifies
//! the file, and its needs in the lowest bits. Two files of one place push each other out.

use crate::layout::{Header, NEEDED_FILES};
use crate::sync::Ordering;

/// Bits of a word that say what a file needs.
const NEEDS: u64 = 15;

/// The part of a word that identifies a file; 0 is an empty word.
fn mark_of(key: u64) -> u64 {
    (key & !NEEDS).max(NEEDS + 1)
}

impl Header {
    /// What the file needs that has this key, four bits; `None` if it is not known.
    pub fn needs_of(&self, key: u64) -> Option<u8> {
        let word = self.needed[place_of(key)].load(Ordering::Relaxed);
        (word & !NEEDS == mark_of(key)).then_some((word & NEEDS) as u8)
    }

    /// Notes that for other processes.
    pub fn note_needs(&self, key: u64, needs: u8) {
        let word = mark_of(key) | u64::from(needs) & NEEDS;
        self.needed[place_of(key)].store(word, Ordering::Relaxed);
    }
}

fn place_of(key: u64) -> usize {
    (key >> 48) as usize % NEEDED_FILES
}

#[cfg(test)]
mod tests {
    use crate::layout::{Geometry, NEEDED_FILES};
    use crate::segment::anonymous;

    #[test]
    fn what_is_noted_of_a_file_is_said_of_no_other() {
        let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20])).unwrap();
        let header = segment.header();
        let (one, beside) = (0x0123_4567_89ab_cde0, 0x0123_4567_89ab_cdf0);
        assert_eq!(header.needs_of(0), None);
        header.note_needs(one, 0);
        assert_eq!((header.needs_of(one), header.needs_of(beside)), (Some(0), None));
        // It lies in the same place.
        header.note_needs(beside, 5);
        assert_eq!((header.needs_of(one), header.needs_of(beside)), (None, Some(5)));
        header.note_needs(0, 15);
        assert_eq!(header.needs_of(0), Some(15));
        assert_eq!(header.needed.len(), NEEDED_FILES);
    }
}
