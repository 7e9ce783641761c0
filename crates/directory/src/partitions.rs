//! A set of partitions.

use forebay_membership::{PARTITIONS, Partition};

/// How many words of 64 bits a set has.
pub(crate) const WORDS: usize = PARTITIONS / 64;

/// Some of the partitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partitions(pub(crate) Box<[u64; WORDS]>);

impl Default for Partitions {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl Partitions {
    /// All of them.
    pub(crate) fn all() -> Self {
        Self(Box::new([u64::MAX; WORDS]))
    }

    /// Whether this one is in it.
    pub fn has(&self, partition: Partition) -> bool {
        let number = usize::from(partition.number());
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    /// Adds one, or takes it away.
    pub fn set(&mut self, partition: Partition, is_in: bool) {
        let number = usize::from(partition.number());
        let bit = 1 << (number % 64);
        match is_in {
            true => self.0[number / 64] |= bit,
            false => self.0[number / 64] &= !bit,
        }
    }

    /// Adds all of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(to, from)| *to |= from);
    }

    /// Takes away all that another set does not have.
    pub(crate) fn keep(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(to, from)| *to &= from);
    }

    /// Takes away all that another set has.
    pub(crate) fn take(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(to, from)| *to &= !from);
    }

    /// How many it has.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Those that it has, by number.
    pub fn iter(&self) -> impl Iterator<Item = Partition> {
        Partition::all().filter(|partition| self.has(*partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_added() {
        let mut set = Partitions::default();
        assert!(set.is_empty());
        for number in [0, 63, 64, 4095] {
            set.set(Partition::of_number(number).unwrap(), true);
        }
        assert_eq!(set.iter().map(Partition::number).collect::<Vec<_>>(), [0, 63, 64, 4095]);
        let mut other = Partitions::default();
        other.set(Partition::of_number(7).unwrap(), true);
        set.add(&other);
        set.set(Partition::of_number(63).unwrap(), false);
        assert_eq!(set.iter().map(Partition::number).collect::<Vec<_>>(), [0, 7, 64, 4095]);
        assert_eq!(set.count(), 4);
        other.set(Partition::of_number(8).unwrap(), true);
        other.set(Partition::of_number(7).unwrap(), false);
        set.keep(&other);
        assert!(set.is_empty());
        assert_eq!(Partition::of_number(4096), None);
    }
}
