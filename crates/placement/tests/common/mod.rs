//! Random numbers that a seed repeats.

use forebay_placement::Random;

/// The stream of `FOREBAY_SEED`, or of the seed given; prints which.
pub fn seeded(default: u64) -> Random {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("FOREBAY_SEED={seed}");
    Random::new(seed)
}
