//! The index of a writer: a file of slots of 64 bytes, each with a sum of its own. The first is the
//! head, with a count of changes that tells other processes when to look again.
//!
//! A slot says first that a record is being written, and is then written over to say that it is
//! whole. Its number is at the same place both times, so that a slot which a kill has left torn
//! still names its record. An empty slot begins with a zero: one is filled from its ninth byte on
//! first and then with its first eight, and emptied by these alone, so a kill leaves none that
//! names a record which was in it before.

/// Bytes of a slot.
pub(crate) const SLOT: usize = 64;

/// Bytes that decide whether a slot is empty.
pub(crate) const FIRST: usize = 8;

const MAGIC: u32 = 0x3152_4246; // "FBR1", of which no byte is zero
/// The bytes that the sum of a slot is of.
const SUMMED: core::ops::Range<usize> = FIRST..SLOT;

/// What a slot says of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is being written.
    Begun = 1,
    /// All of it is there.
    Whole = 2,
    /// A record of another writer was dropped.
    Dropped = 3,
}

/// One version of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub id: u64,
    /// Higher than that of each earlier version: nanoseconds of CLOCK_REALTIME, or one more than
    /// the last.
    pub version: u64,
    /// Where it begins in its file.
    pub offset: u64,
    pub bytes: u64,
    /// Bytes of an element.
    pub element: u32,
    /// The number of its own file; 0 is the packed one.
    pub file: u32,
    /// The sum of its bytes, see `sum.rs`.
    pub sum: u64,
}

/// What was found in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Empty,
    Entry(Entry),
    /// A slot that was not written to its end: the record that it names.
    Torn(u64),
}

fn word(from: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(from.iter().skip(at)).for_each(|(to, &from)| *to = from);
    u64::from_le_bytes(bytes)
}

fn half(from: &[u8], at: usize) -> u32 {
    word(from, at) as u32
}

fn sum_of(slot: &[u8; SLOT]) -> u32 {
    crc32c::crc32c(&slot[SUMMED])
}

impl Entry {
    pub fn slot(&self) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &self.id.to_le_bytes());
        put(16, &self.version.to_le_bytes());
        put(24, &self.offset.to_le_bytes());
        put(32, &self.bytes.to_le_bytes());
        put(40, &self.element.to_le_bytes());
        put(44, &self.file.to_le_bytes());
        put(48, &self.sum.to_le_bytes());
        put(56, &[self.kind as u8]);
        let sum = sum_of(&slot);
        slot[4..8].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    /// The end of its bytes in its file; `None` of numbers that no file has.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes).filter(|&end| i64::try_from(end).is_ok())
    }
}

/// What a slot says.
pub(crate) fn found(slot: &[u8; SLOT]) -> Found {
    if slot[0] == 0 {
        return Found::Empty;
    }
    let id = word(slot, 8);
    let kind = match slot[56] {
        1 => Kind::Begun,
        2 => Kind::Whole,
        3 => Kind::Dropped,
        _ => return Found::Torn(id),
    };
    let entry = Entry {
        kind,
        id,
        version: word(slot, 16),
        offset: word(slot, 24),
        bytes: word(slot, 32),
        element: half(slot, 40),
        file: half(slot, 44),
        sum: word(slot, 48),
    };
    let is_whole = half(slot, 0) == MAGIC && half(slot, 4) == sum_of(slot);
    match is_whole && entry.end().is_some() {
        true => Found::Entry(entry),
        false => Found::Torn(id),
    }
}

/// The first slot of an index that has changed so often.
pub(crate) fn head(changes: u64) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..4].copy_from_slice(&MAGIC.to_le_bytes());
    slot[8..16].copy_from_slice(&changes.to_le_bytes());
    slot
}

/// How often an index has changed, by its first slot; `None` if it is none.
pub(crate) fn changes(head: &[u8; SLOT]) -> Option<u64> {
    (half(head, 0) == MAGIC).then(|| word(head, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            kind: Kind::Whole,
            id: 0x0102_0304_0506_0708,
            version: 77,
            offset: 4096,
            bytes: 1000,
            element: 8,
            file: 3,
            sum: 99,
        }
    }

    #[test]
    fn a_slot_says_what_was_put_into_it() {
        for kind in [Kind::Begun, Kind::Whole, Kind::Dropped] {
            let entry = Entry { kind, ..entry() };
            assert_eq!(found(&entry.slot()), Found::Entry(entry));
        }
        assert_eq!(found(&[0; SLOT]), Found::Empty);
        assert_eq!(changes(&head(9)), Some(9));
        assert_eq!(changes(&[0; SLOT]), None);
    }

    #[test]
    fn a_slot_that_a_kill_has_cut_anywhere_names_its_record() {
        let begun = Entry { kind: Kind::Begun, sum: 0, ..entry() }.slot();
        let whole = entry().slot();
        for cut in 0..SLOT {
            let mut torn = begun;
            torn[..cut].copy_from_slice(&whole[..cut]);
            match found(&torn) {
                Found::Torn(id) => assert_eq!(id, entry().id, "{cut}"),
                Found::Entry(found) if torn == begun => assert_eq!(found.kind, Kind::Begun),
                Found::Entry(found) => assert_eq!((torn, found), (whole, entry()), "{cut}"),
                Found::Empty => panic!("{cut}"),
            }
        }
    }

    #[test]
    fn numbers_that_no_file_has_are_not_believed() {
        let wrong = Entry { offset: u64::MAX - 5, ..entry() };
        assert_eq!(found(&wrong.slot()), Found::Torn(entry().id));
    }
}
