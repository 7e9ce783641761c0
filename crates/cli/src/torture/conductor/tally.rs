//! What came of a list's cases, in numbers.

use super::super::counts::Words;

/// What came of a list's cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases that were judged.
    pub cases: u64,
    /// Programs that were to die within their operation.
    pub kills: u64,
    /// Those that died in it.
    pub kills_hit: u64,
    /// Programs that died right behind their operation.
    pub kills_behind: u64,
    /// Programs that were to pause within their operation.
    pub pauses: u64,
    /// Those that did.
    pub pauses_hit: u64,
    /// Programs that waited behind their operation.
    pub pauses_behind: u64,
    /// Node managers that were killed.
    pub managers: u64,
    /// Those that had something to lose.
    pub managers_hit: u64,
    /// Cases in which an allocation or a transfer was to fail.
    pub faults: u64,
    /// Those in which one did.
    pub faults_hit: u64,
    /// Bytes of files that were judged.
    pub bytes: u64,
}

impl Words for Tally {
    const COUNT: usize = 12;

    fn words(&self) -> Vec<u64> {
        let Tally { cases, kills, kills_hit, kills_behind, pauses, .. } = *self;
        let Tally { pauses_hit, pauses_behind, managers, managers_hit, .. } = *self;
        let Tally { faults, faults_hit, bytes, .. } = *self;
        let kills = [cases, kills, kills_hit, kills_behind];
        let pauses = [pauses, pauses_hit, pauses_behind, managers, managers_hit];
        [&kills[..], &pauses, &[faults, faults_hit, bytes]].concat()
    }

    fn of(words: &[u64]) -> Tally {
        Tally {
            cases: words[0],
            kills: words[1],
            kills_hit: words[2],
            kills_behind: words[3],
            pauses: words[4],
            pauses_hit: words[5],
            pauses_behind: words[6],
            managers: words[7],
            managers_hit: words[8],
            faults: words[9],
            faults_hit: words[10],
            bytes: words[11],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_are_kept_word_by_word() {
        let words: Vec<u64> = (1..=Tally::COUNT as u64).collect();
        assert_eq!(Tally::of(&words).words(), words);
    }
}
