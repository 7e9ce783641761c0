//! Random numbers that a seed repeats.

use forebay_placement::mix;

/// A stream of numbers: SplitMix64.
pub struct Random(u64);

// Each test program uses its part.
#[allow(dead_code)]
impl Random {
    /// The stream of `FOREBAY_SEED`, or of the seed given; prints which.
    pub fn seeded(default: u64) -> Self {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(default);
        println!("FOREBAY_SEED={seed}");
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number up to `max`, of any length.
    pub fn up_to(&mut self, max: u64) -> u64 {
        let length = self.below(64);
        self.next() >> length & max
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len() as u64) as usize]
    }
}
