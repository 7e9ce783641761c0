//! What is leased: a file as a whole, its size, or one part of it.

use crate::level::Level;
use forebay_membership::{FileId, Partition};
use std::ops::Bound;

/// How many bytes a part has: a power of two, the same on all nodes.
pub const PART_BYTES: u64 = 1 << 20;

/// So many parts may be asked for ahead of one that is wanted.
pub const AHEAD_MAX: u8 = 63;

/// What of a file is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    /// All of it.
    Whole,
    /// Its size, while nodes share it.
    Size,
    /// The part of this number, of [`PART_BYTES`], while nodes share the file.
    Part(u32),
}

/// What a lease is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The file.
    pub file: FileId,
    /// What of it.
    pub of: Of,
}

impl Object {
    /// All of a file.
    pub fn whole(file: FileId) -> Self {
        Self { file, of: Of::Whole }
    }

    /// Its size.
    pub fn size(file: FileId) -> Self {
        Self { file, of: Of::Size }
    }

    /// One part of it.
    pub fn part(file: FileId, number: u32) -> Self {
        Self { file, of: Of::Part(number) }
    }

    /// The part that a byte of the file is in. `None` from 4 PiB on: a file that is used there is
    /// to be wanted as a whole, `Direct`.
    pub fn part_at(file: FileId, offset: u64) -> Option<Self> {
        u32::try_from(offset / PART_BYTES).ok().map(|number| Self::part(file, number))
    }

    /// Which partition it is in: its first member is the home. Whole and size are where the file
    /// is; 4096 parts that follow each other are in one.
    pub fn partition(self) -> Partition {
        match self.of {
            Of::Whole | Of::Size => Partition::of_file(self.file),
            Of::Part(number) => Partition::of_part(self.file, number),
        }
    }

    /// Whether a node can have it at this level: parts are not shared, and a size is not used
    /// through the kernel by itself.
    pub fn may_have(self, level: Level) -> bool {
        match self.of {
            Of::Whole => true,
            Of::Size | Of::Part(_) if matches!(level, Level::Borrowed | Level::Lent) => false,
            Of::Size => level != Level::Direct,
            Of::Part(_) => level != Level::Shared,
        }
    }

    pub(crate) fn is_whole(self) -> bool {
        self.of == Of::Whole
    }

    /// The whole of its file.
    pub(crate) fn in_whole(self) -> Self {
        Self::whole(self.file)
    }

    /// The size and all parts of a file, as a range.
    pub(crate) fn below(file: FileId) -> std::ops::RangeInclusive<Self> {
        Self::size(file)..=Self::part(file, u32::MAX)
    }

    /// All of other files that have had the inode of this one, by the order of their generations:
    /// below it, and above it.
    pub fn of_namesakes(file: FileId) -> [(Bound<Self>, Bound<Self>); 2] {
        let (first, last) = (Self::whole(file), Self::part(file, u32::MAX));
        let below = Self::whole(FileId { generation: 0, ..file });
        let above = Self::part(FileId { generation: u32::MAX, ..file }, u32::MAX);
        [
            (Bound::Included(below), Bound::Excluded(first)),
            // Equal bounds may not both be excluded.
            (Bound::Excluded(last), Bound::Included(above)),
        ]
    }
}

/// What a want says besides its level. The default says nothing more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Terms {
    /// Of a whole that is wanted to read or write: [`Level::Shared`] is as good, if others go on
    /// using the file. A node that is to truncate the file says false.
    pub may_share: bool,
    /// Of a whole that is wanted to read: [`Level::Borrowed`] is as good, if another node has
    /// what the store has not yet.
    pub may_borrow: bool,
    /// Of a part: so many of the following ones, too, if they are free; [`AHEAD_MAX`] at most.
    pub ahead: u8,
    /// From each of them to the next; 0 is 1.
    pub stride: u32,
}

impl Terms {
    /// A whole may be shared.
    pub fn share() -> Self {
        Self { may_share: true, ..Self::default() }
    }

    /// A whole may be shared, or borrowed.
    pub fn borrow() -> Self {
        Self { may_borrow: true, ..Self::share() }
    }

    /// A part, and up to so many that follow it.
    pub fn ahead(count: u8) -> Self {
        Self::strided(count, 1)
    }

    /// A part, and up to so many others that are so far from each other.
    pub fn strided(count: u8, stride: u32) -> Self {
        Self { ahead: count, stride, ..Self::default() }
    }

    /// The one form of it for a want.
    pub(crate) fn of(self, object: Object, level: Level) -> Self {
        let may_share = self.may_share && Self::can_share(object, level);
        let may_borrow = self.may_borrow && object.is_whole() && level == Level::Read;
        let is_part = matches!(object.of, Of::Part(_));
        match self.ahead.min(AHEAD_MAX) {
            ahead if is_part && ahead > 0 => {
                Self { may_share, may_borrow, ahead, stride: self.stride.max(1) }
            }
            _ => Self { may_share, may_borrow, ahead: 0, stride: 0 },
        }
    }

    fn can_share(object: Object, level: Level) -> bool {
        object.is_whole() && matches!(level, Level::Read | Level::Write)
    }

    /// All parts that it names but for the first.
    pub(crate) fn all(self) -> Ahead {
        let bits = match self.ahead {
            0 => 0,
            count => u64::MAX >> (64 - u32::from(count.min(AHEAD_MAX))),
        };
        Ahead::of(self.stride, bits)
    }
}

/// Parts that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Run {
    /// The runs of parts that are in order.
    pub(crate) fn of(parts: impl IntoIterator<Item = u32>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for part in parts {
            match runs.last_mut().filter(|run| run.first.checked_add(run.count) == Some(part)) {
                Some(run) => run.count += 1,
                None => runs.push(Self { first: part, count: 1 }),
            }
        }
        runs
    }
}

/// Parts besides one that a message is about: bit k stands for the one at k + 1 strides from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ahead {
    stride: u32,
    bits: u64,
}

impl Ahead {
    /// These; without a bit, or a stride, none. There are [`AHEAD_MAX`] at most.
    pub fn of(stride: u32, bits: u64) -> Self {
        let bits = bits & u64::MAX >> (64 - u32::from(AHEAD_MAX));
        match bits {
            0 => Self::default(),
            _ if stride == 0 => Self::default(),
            _ => Self { stride, bits },
        }
    }

    /// The stride and the bits: both are 0, or none is.
    pub fn form(self) -> (u32, u64) {
        (self.stride, self.bits)
    }

    /// Whether it names none.
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// What it names, seen from a part: in order, in the same partition as that. A peer may name
    /// others, which are none.
    pub(crate) fn from(self, object: Object) -> impl Iterator<Item = Object> {
        let home = object.partition();
        let first = match object.of {
            Of::Part(number) => Some(number),
            Of::Whole | Of::Size => None,
        };
        (0..u32::from(AHEAD_MAX)).filter(move |bit| self.bits >> bit & 1 == 1).filter_map(
            move |bit| {
                let number = first?.checked_add(self.stride.checked_mul(bit + 1)?)?;
                let part = Object::part(object.file, number);
                (part.partition() == home).then_some(part)
            },
        )
    }

    /// Those of them of which this is true.
    pub(crate) fn filter(self, object: Object, mut is: impl FnMut(Object) -> bool) -> Self {
        let Of::Part(first) = object.of else { return Self::default() };
        let mut bits = 0;
        for part in self.from(object).filter(|part| is(*part)) {
            if let Of::Part(number) = part.of {
                bits |= 1 << ((number - first) / self.stride - 1);
            }
        }
        Self::of(self.stride, bits)
    }

    /// As few groups as these parts, which are in order and in one partition, have: each a first
    /// one and the others from there.
    pub(crate) fn groups(parts: &[u32]) -> Vec<(u32, Self)> {
        let mut groups: Vec<(u32, Self)> = Vec::new();
        for part in parts {
            let Some((first, ahead)) = groups.last_mut() else {
                groups.push((*part, Self::default()));
                continue;
            };
            let distance = *part - *first;
            let stride = if ahead.is_empty() { distance } else { ahead.stride };
            let step = distance / stride.max(1);
            if stride > 0
                && distance.is_multiple_of(stride)
                && (1..=u32::from(AHEAD_MAX)).contains(&step)
            {
                *ahead = Self::of(stride, ahead.bits | 1 << (step - 1));
            } else {
                groups.push((*part, Self::default()));
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { store: 0, inode: 7, generation: 0 };

    #[test]
    fn parts_have_one_size_and_an_end() {
        assert!(PART_BYTES.is_power_of_two());
        assert_eq!(Object::part_at(FILE, PART_BYTES - 1), Some(Object::part(FILE, 0)));
        let last = Object::part(FILE, u32::MAX);
        assert_eq!(Object::part_at(FILE, (PART_BYTES << 32) - 1), Some(last));
        assert_eq!(Object::part_at(FILE, PART_BYTES << 32), None);
        // One home for 4096 of them, and the first ones are where the file is.
        let partition = |part| Object::part(FILE, part).partition();
        assert_eq!(partition(4095), Object::whole(FILE).partition());
        assert_eq!(Object::size(FILE).partition(), Object::whole(FILE).partition());
        assert_ne!(partition(4096), partition(4095));
        assert!(Object::below(FILE).contains(&last) && Object::whole(FILE) < Object::size(FILE));
    }

    #[test]
    fn parts_ahead_are_those_of_one_home() {
        let part = |number| Object::part(FILE, number);
        let numbers = |first, terms: Terms| {
            let terms = terms.of(part(first), Level::Write);
            terms.all().from(part(first)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3, Terms::ahead(2)), [part(4), part(5)]);
        assert_eq!(numbers(3, Terms::strided(2, 8)), [part(11), part(19)]);
        assert_eq!(numbers(4094, Terms::ahead(9)), [part(4095)]);
        assert_eq!(numbers(u32::MAX - 1, Terms::ahead(200)), [part(u32::MAX)]);
        assert_eq!(numbers(0, Terms::ahead(200)).len(), 63);
        assert_eq!(numbers(1, Terms::strided(3, u32::MAX)), []);
        assert_eq!(numbers(5, Terms::default()), []);
        let whole = Object::whole(FILE);
        assert_eq!(Terms::ahead(4).of(whole, Level::Write), Terms::default());
        assert_eq!(Terms::share().of(whole, Level::Write), Terms::share());
        assert_eq!(Terms::share().of(whole, Level::Direct), Terms::default());
        assert_eq!(Terms::borrow().of(whole, Level::Read), Terms::borrow());
        assert_eq!(Terms::borrow().of(whole, Level::Write), Terms::share());
        let some = Terms::ahead(4).all().filter(part(3), |other| other != part(5));
        assert_eq!(some.from(part(3)).collect::<Vec<_>>(), [part(4), part(6), part(7)]);
    }

    #[test]
    fn groups_have_all_parts_once() {
        let runs = Run::of([1, 2, 3, 7, 9, 10]);
        let run = |first, count| Run { first, count };
        assert_eq!(runs, [run(1, 3), run(7, 1), run(9, 2)]);
        let all: Vec<u32> = (0..64).chain((64..1000).step_by(8)).chain([1001, 1500]).collect();
        let groups = Ahead::groups(&all);
        assert!(groups.len() <= 6, "{groups:?}");
        let parts = |(first, ahead): (u32, Ahead)| {
            let first = Object::part(FILE, first);
            std::iter::once(first).chain(ahead.from(first)).collect::<Vec<_>>()
        };
        let again: Vec<Object> = groups.into_iter().flat_map(parts).collect();
        let all: Vec<Object> = all.into_iter().map(|number| Object::part(FILE, number)).collect();
        assert_eq!(again, all);
    }
}
