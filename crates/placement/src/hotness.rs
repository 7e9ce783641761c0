//! How often and how lately something was used: the hotness score of Hermes section 3.2.2 C, as
//! words that fit into shared memory and change by compare-and-swap.
//!
//! *Hotness is accesses per byte*, each counting half as much for every half-life that has passed
//! since. Of a block: its uses. Of a file: the mean of its blocks, as if those that lie in no tier
//! were counted, too. So what was written once has 1 while that is new, however large it is, and an
//! index that is read sixty times has 61. Under a steady rate of r accesses in a half-life hotness
//! settles near 1.44 r.
//!
//! A [`Score`] is the sum of a file's accesses in blocks, which does not change when the file
//! grows; [`Score::per_byte`] is its hotness. Decay is computed in integers, so that every process
//! computes the same. Times are milliseconds of a clock that wraps after 49 days; what seems older
//! than 24 days is taken to be new.
//!
//! ```
//! use forebay_placement::hotness::Score;
//!
//! const HALF_LIFE_MS: u32 = 60_000;
//! const BLOCK: u64 = 256 << 10;
//! // Eight uses of blocks of a file of four blocks.
//! let score = (0..8).fold(Score::default(), |score, _| score.plus(1.0, 0, HALF_LIFE_MS));
//! let per_byte = |now_ms| score.per_byte(now_ms, HALF_LIFE_MS, 4 * BLOCK, BLOCK);
//! assert_eq!(per_byte(0), 2.0);
//! assert!((per_byte(HALF_LIFE_MS) - 1.0).abs() < 0.01);
//! ```

use crate::random::mix;

/// Bits of a file's stamp: milliseconds / 64, so that it wraps when the clock does.
const STAMP_BITS: u32 = 26;
const STAMP_SHIFT: u32 = 32 - STAMP_BITS;
/// Bits behind the point of a file's score; 28 are left before it: each block of 64 TiB used once.
const FRACTION_BITS: u32 = 10;
const VALUE_MAX: u64 = (1 << (64 - STAMP_BITS)) - 1;
const ONE: u64 = 1 << FRACTION_BITS;

/// One in so many uses is counted where they are sampled, as so many.
const SAMPLE: u32 = 8;
/// So many accesses of a file's blocks are counted one by one before its uses are sampled: then
/// the standard deviation of n accesses, sqrt((SAMPLE - 1) (n - EXACT)), is 6 % of n at most.
const EXACT: u64 = 512 * ONE;

/// How many accesses one use counts as where uses are sampled, each of which has another number:
/// one on average, whatever the rhythm of the program.
#[inline]
pub fn sampled(number: u64) -> u32 {
    if mix(number).is_multiple_of(u64::from(SAMPLE)) { SAMPLE } else { 0 }
}

/// A file's accesses in blocks: 38 bits of fixed point above 26 bits of time. Zero has never been
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score(pub u64);

impl Score {
    /// How many accesses one more use of a block counts as, which has another number than other
    /// uses: one, and later one on average, so that what is used all the time is not written to.
    #[inline]
    pub fn counts(self, number: impl FnOnce() -> u64) -> u32 {
        if self.0 >> STAMP_BITS < EXACT { 1 } else { sampled(number()) }
    }

    /// The score after so many more accesses in blocks, to be stored in its place.
    pub fn plus(self, accesses: f32, now_ms: u32, half_life_ms: u32) -> Score {
        let more = (accesses * ONE as f32).round() as u64;
        let value = self.value(now_ms, half_life_ms).saturating_add(more).min(VALUE_MAX);
        // A process whose look at the clock is older must not turn the stamp back.
        let stamp = self.stamp().wrapping_add(self.age(now_ms)) & ((1 << STAMP_BITS) - 1);
        let stamp = if self.0 == 0 { now_ms >> STAMP_SHIFT } else { stamp };
        Score(value << STAMP_BITS | u64::from(stamp))
    }

    /// The score of a file that was cut from `before` to `after` bytes: the accesses of what is
    /// gone are gone.
    pub fn cut(self, before: u64, after: u64) -> Score {
        let value = u128::from(self.0 >> STAMP_BITS) * u128::from(after.min(before));
        let left = (value / u128::from(before.max(1))) as u64;
        Score(left << STAMP_BITS | u64::from(self.stamp()))
    }

    /// The hotness at a later time of a file of so many bytes. What is smaller than a block is one.
    pub fn per_byte(
        self,
        now_ms: u32,
        half_life_ms: u32,
        file_bytes: u64,
        block_bytes: u64,
    ) -> f32 {
        let blocks = file_bytes.max(block_bytes) as f32 / block_bytes.max(1) as f32;
        self.value_at(now_ms, half_life_ms) / blocks.max(1.0)
    }

    /// The accesses in blocks at a later time: 0 to 268,435,456.
    pub fn value_at(self, now_ms: u32, half_life_ms: u32) -> f32 {
        self.value(now_ms, half_life_ms) as f32 / ONE as f32
    }

    fn value(self, now_ms: u32, half_life_ms: u32) -> u64 {
        decayed(self.0 >> STAMP_BITS, u64::from(self.age(now_ms)) << STAMP_SHIFT, half_life_ms)
    }

    fn stamp(self) -> u32 {
        self.0 as u32 & ((1 << STAMP_BITS) - 1)
    }

    /// Stamp units since the last access.
    fn age(self, now_ms: u32) -> u32 {
        age(now_ms >> STAMP_SHIFT, self.stamp(), STAMP_BITS)
    }
}

/// What is known of the use of one block, in 32 bits: 0 is a block of which nothing is known.
///
/// ```text
/// 31                          8 7     5   4   3 2       0
/// +----------------------------+-------+-----+-+---------+
/// | stamp, milliseconds / 256  | moves |  a  |m| count   |
/// +----------------------------+-------+-----+-+---------+
/// ```
///
/// `count` accesses (at most 7), `m`: in the main queue of [`crate::evict`], `moves`: promotions
/// that [`crate::promote`] still holds against it (at most 7), `a`: brought up ahead of a reader by
/// [`crate::prefetch`], and not used since. A count of three bits needs no time of
/// its own: the tier's maintenance calls [`AccessStats::cooled`] once in a half-life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessStats(pub u32);

const BLOCK_STAMP_SHIFT: u32 = 8;
const MAIN: u32 = 1 << 3;
const AHEAD: u32 = 1 << 4;
const MOVES_SHIFT: u32 = 5;
const SMALL_MAX: u32 = 7;

/// The usual half-life: a minute, so that what the last phase of a job read is cold after some
/// more.
pub const HALF_LIFE_MS: u32 = 60_000;

/// Half-lives in which one promotion of each block is forgiven.
pub const FORGIVE_PASSES: u32 = 16;

impl AccessStats {
    /// A block that just came to its tier, in the main queue or on probation.
    pub fn arriving(now_ms: u32, main: bool) -> AccessStats {
        AccessStats(now_ms >> BLOCK_STAMP_SHIFT << BLOCK_STAMP_SHIFT).in_main(main)
    }

    /// One more access; the stamp stays. After seven nothing changes, so a hot block is not
    /// written to.
    pub fn counted(self) -> AccessStats {
        self.with_count(self.count() + 1)
    }

    /// The access statistics when a half-life has passed: half the accesses count, and with every
    /// sixteenth pass one promotion less.
    pub fn cooled(self, pass: u32) -> AccessStats {
        let forgiven = u32::from(pass.is_multiple_of(FORGIVE_PASSES));
        self.with_count(self.count() / 2).with_moves(self.moves().saturating_sub(forgiven))
    }

    /// The same with this many accesses, at most 7.
    pub fn with_count(self, count: u32) -> AccessStats {
        AccessStats(self.0 & !SMALL_MAX | count.min(SMALL_MAX))
    }

    /// The same with another stamp.
    pub fn stamped(self, now_ms: u32) -> AccessStats {
        let low = (1 << BLOCK_STAMP_SHIFT) - 1;
        AccessStats(now_ms & !low | self.0 & low)
    }

    /// The same, in the main queue or not.
    pub fn in_main(self, main: bool) -> AccessStats {
        AccessStats(self.0 & !MAIN | if main { MAIN } else { 0 })
    }

    /// The same, brought up ahead of its reader or not.
    pub fn ahead(self, ahead: bool) -> AccessStats {
        AccessStats(self.0 & !AHEAD | if ahead { AHEAD } else { 0 })
    }

    /// Whether it was brought up ahead of its reader, and was not used since.
    pub fn is_ahead(self) -> bool {
        self.0 & AHEAD != 0
    }

    /// The same with this many promotions held against it, at most 7.
    pub fn with_moves(self, moves: u32) -> AccessStats {
        let mask = SMALL_MAX << MOVES_SHIFT;
        AccessStats(self.0 & !mask | moves.min(SMALL_MAX) << MOVES_SHIFT)
    }

    /// Accesses, up to 7.
    pub fn count(self) -> u32 {
        self.0 & SMALL_MAX
    }

    /// Whether it has left probation.
    pub fn is_main(self) -> bool {
        self.0 & MAIN != 0
    }

    /// Promotions held against it.
    pub fn moves(self) -> u32 {
        self.0 >> MOVES_SHIFT & SMALL_MAX
    }

    /// Milliseconds since the stamp, in steps of 256.
    pub fn age_ms(self, now_ms: u32) -> u32 {
        let bits = 32 - BLOCK_STAMP_SHIFT;
        age(now_ms >> BLOCK_STAMP_SHIFT, self.0 >> BLOCK_STAMP_SHIFT, bits) << BLOCK_STAMP_SHIFT
    }
}

/// Units from `earlier` to `later` on a clock of so many bits; 0 if `earlier` is the later one.
fn age(later: u32, earlier: u32, bits: u32) -> u32 {
    let mask = (1_u64 << bits) - 1;
    let age = u64::from(later.wrapping_sub(earlier)) & mask;
    if age > mask / 2 { 0 } else { age as u32 }
}

/// 2^-(n/16) for n = 0..16, with 32 bits behind the point.
const HALVING: [u128; 16] = [
    4294967296, 4112874773, 3938502376, 3771522796, 3611622603, 3458501653, 3311872529, 3171459999,
    3037000500, 2908241642, 2784941738, 2666869345, 2553802834, 2445529972, 2341847524, 2242560872,
];

/// The natural logarithm of 2, with 32 bits behind the point.
const LN_2: u64 = 2_977_044_472;

/// A value after so many milliseconds: halved for each half-life. Between table points
/// 2^-x = 1 - x ln 2 + (x ln 2)^2 / 2, which is 0.0014 % too low at most. A half-life of 0 is taken
/// for 1.
pub(crate) fn decayed(value: u64, age_ms: u64, half_life_ms: u32) -> u64 {
    let half_life = u64::from(half_life_ms.max(1));
    let halvings = age_ms / half_life;
    if value == 0 || halvings >= 64 {
        return 0;
    }
    // Half-lives with 32 bits behind the point; the first four of them name the table's entry.
    let part = ((age_ms % half_life) << 32) / half_life;
    let x = ((part & ((1 << 28) - 1)) * LN_2) >> 32;
    let factor = HALVING[(part >> 28) as usize] * u128::from((1 << 32) - x + ((x * x) >> 33));
    let half = 1_u128 << 31;
    ((u128::from(value) * (factor >> 32) + half) >> 32) as u64 >> halvings
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: u32 = 60_000;

    #[test]
    fn the_table_is_powers_of_two() {
        for (index, &entry) in HALVING.iter().enumerate() {
            let exact = 2_f64.powf(32.0 - index as f64 / 16.0);
            assert!((entry as f64 - exact).abs() <= 0.5, "{index}");
        }
    }

    #[test]
    fn scores_halve_with_each_half_life() {
        let mut score = Score::default();
        for _ in 0..64 {
            score = score.plus(1.0, 1_000_000, HALF_LIFE);
        }
        for (half_lives, expected) in [(0, 64.0), (1, 32.0), (3, 8.0), (30, 0.0)] {
            let now = 1_000_000 + half_lives * HALF_LIFE;
            let value = score.value_at(now, HALF_LIFE);
            assert!((value - expected).abs() < 0.05, "{value} instead of {expected}");
        }
        for ms in 0..2 * HALF_LIFE {
            let value = score.value_at(1_000_000 + ms, HALF_LIFE);
            let exact = 64.0 * 2_f32.powf(-(ms as f32) / HALF_LIFE as f32);
            assert!((value - exact).abs() < 0.002 * exact, "{value} instead of {exact} at {ms}");
        }
    }

    #[test]
    fn a_steady_rate_settles() {
        let mut score = Score::default();
        for n in 0..20 * HALF_LIFE / 600 {
            score = score.plus(1.0, n * 600, HALF_LIFE);
        }
        let value = score.value_at(20 * HALF_LIFE, HALF_LIFE);
        assert!((value - 144.27).abs() < 1.0, "100 accesses in a half-life settle at {value}");
    }

    #[test]
    fn the_clock_may_wrap_and_may_be_read_late() {
        let before = u32::MAX - 30_000;
        let score = Score::default().plus(2.0, before, HALF_LIFE);
        let value = score.value_at(before.wrapping_add(HALF_LIFE), HALF_LIFE);
        assert!((value - 1.0).abs() < 0.01, "{value}");
        let late = score.plus(1.0, before - 10_000, HALF_LIFE);
        assert_eq!(late.value_at(before, HALF_LIFE), 3.0, "the stamp stays the newer one");
        let access_stats = AccessStats::arriving(before, false).counted();
        assert_eq!(access_stats.age_ms(before.wrapping_add(60_000)) / 1_000, 60);
        assert_eq!(access_stats.age_ms(before - 5_000), 0);
    }

    #[test]
    fn values_end_at_their_limits() {
        let mut score = Score(u64::MAX << STAMP_BITS);
        assert_eq!(score.value_at(0, HALF_LIFE), 268_435_456.0);
        score = score.plus(f32::MAX, 0, HALF_LIFE);
        assert_eq!(score.value_at(0, HALF_LIFE), 268_435_456.0);
        assert_eq!(score.value_at(1 << 30, 0), 0.0);
    }

    #[test]
    fn small_and_often_used_is_hotter_than_large_and_used_once() {
        const BLOCK: u64 = 256 << 10;
        // Each as it grows: 300 MiB written once, 1 MiB written once and read sixty times.
        let (mut large, mut small) = (Score::default(), Score::default());
        (0..1200).for_each(|_| large = large.plus(1.0, 0, HALF_LIFE));
        (0..4 * 61).for_each(|_| small = small.plus(1.0, 0, HALF_LIFE));
        assert_eq!(large.per_byte(0, HALF_LIFE, 300 << 20, BLOCK), 1.0);
        assert_eq!(small.per_byte(0, HALF_LIFE, 1 << 20, BLOCK), 61.0);
        let page = Score::default().plus(3.0, 0, HALF_LIFE);
        assert_eq!(page.per_byte(0, HALF_LIFE, 4096, BLOCK), 3.0, "less than a block is one");
        assert_eq!(Score::default().per_byte(0, HALF_LIFE, 0, 0), 0.0);
        // A file that is cut and written anew is not hot because of what it was.
        let anew = large.cut(300 << 20, 0);
        assert_eq!(anew.per_byte(0, HALF_LIFE, 0, BLOCK), 0.0);
        assert_eq!(large.cut(300 << 20, 3 << 20).per_byte(0, HALF_LIFE, 3 << 20, BLOCK), 1.0);
        assert_eq!(large.cut(0, 0).value_at(0, HALF_LIFE), 0.0);
    }

    /// Whatever the rhythm in which uses are numbered, on average each counts as one.
    #[test]
    fn sampling_has_no_bias() {
        const USES: u64 = 40_000;
        for rhythm in [1, 2, 7, 8, 64, 1 << 20, 1 << 40, (1 << 32) + 8] {
            let mut score = Score::default();
            for number in (0..USES).map(|use_| use_ * rhythm) {
                score = score.plus(score.counts(|| number) as f32, 0, HALF_LIFE);
            }
            let counted = f64::from(score.value_at(0, HALF_LIFE));
            let sampled = USES as f64 - EXACT as f64 / ONE as f64;
            let deviation = (f64::from(SAMPLE - 1) * sampled).sqrt();
            let off = (counted - USES as f64).abs();
            assert!(off < 4.0 * deviation, "{counted} of {USES} uses in steps of {rhythm}");
        }
    }

    #[test]
    fn few_uses_are_counted_one_by_one() {
        let count = |score: Score, _| score.plus(score.counts(|| 0) as f32, 0, HALF_LIFE);
        let score = (0..512).fold(Score::default(), count);
        assert_eq!(score.value_at(0, HALF_LIFE), 512.0);
        assert!([0, SAMPLE].contains(&score.counts(|| 0)));
    }

    #[test]
    fn every_part_of_access_statistics_stands_alone() {
        for (count, moves) in (0..10).flat_map(|count| (0..10).map(move |moves| (count, moves))) {
            for main in [false, true] {
                let access_stats =
                    AccessStats(u32::MAX).stamped(77 << 8).with_moves(moves).in_main(main);
                let access_stats = access_stats.with_count(count);
                assert_eq!(
                    (access_stats.count(), access_stats.moves()),
                    (count.min(7), moves.min(7))
                );
                assert_eq!((access_stats.is_main(), access_stats.age_ms(79 << 8)), (main, 512));
                assert_eq!(access_stats.counted().count(), (count + 1).min(7));
                assert_eq!(access_stats.counted().moves(), moves.min(7));
            }
        }
    }

    #[test]
    fn passes_cool_and_now_and_then_forgive() {
        let mut access_stats = AccessStats::arriving(9_999, true).with_count(7).with_moves(3);
        for (pass, (count, moves)) in
            (1..17).zip([(3, 3), (1, 3), (0, 3)].into_iter().chain([(0, 3); 12]).chain([(0, 2)]))
        {
            access_stats = access_stats.cooled(pass);
            assert_eq!((access_stats.count(), access_stats.moves()), (count, moves), "pass {pass}");
        }
        assert!(access_stats.is_main() && access_stats.age_ms(9_999) == 0);
    }
}
