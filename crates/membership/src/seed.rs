//! What randomized tests begin with.

use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Prints the seed of a test that panics while it is there.
pub struct Seed(u64);

/// The generator of this seed, and what prints it.
pub fn of(seed: u64) -> (SmallRng, Seed) {
    (SmallRng::seed_from_u64(seed), Seed(seed))
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
