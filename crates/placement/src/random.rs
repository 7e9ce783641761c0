//! Numbers that look random and that a seed repeats, everywhere.

/// Added to the state for each number: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(STEP);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A stream of numbers: SplitMix64. The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit.max(1)
    }

    /// A position in a list of this length; 0 if it is empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from 0 up to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation.
    #[test]
    fn the_stream_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first: [u64; 3] = std::array::from_fn(|_| random.next_u64());
        let reference =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, reference);
    }

    #[test]
    fn numbers_stay_within_their_limits() {
        let mut random = Random::new(1);
        for limit in [1, 2, 3, 100, u64::MAX] {
            assert!((0..100).all(|_| random.below(limit) < limit));
        }
        assert_eq!((random.below(0), random.index(0)), (0, 0));
        assert!((0..100).all(|_| (0.0..1.0).contains(&random.fraction())));
        let seen: std::collections::BTreeSet<_> =
            (0..100).map(|_| random.pick(&[1, 2, 3])).collect();
        assert_eq!(seen.len(), 3);
    }
}
