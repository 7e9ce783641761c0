//! Data for tests, from seeds that are printed.

use forebay_placement::Random;

/// The seed of this run: FOREBAY_SEED, or the time. Printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = given.unwrap_or_else(now);
    println!("FOREBAY_SEED={seed}");
    seed
}

/// Bytes of which parts are zeros, noise, text and copies of what was before.
pub fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(length);
    while bytes.len() < length {
        let part = 1 + random.index(200_000);
        match random.below(4) {
            0 => bytes.resize(bytes.len() + part, 0),
            1 => bytes.extend((0..part).map(|_| random.next_u64() as u8)),
            2 => bytes.extend((0..part).map(|at| b"time=0123 "[(at / 3) % 10])),
            _ if bytes.is_empty() => {}
            _ => {
                let from = random.index(bytes.len());
                let to = (from + part).min(bytes.len());
                bytes.extend_from_within(from..to);
            }
        }
    }
    bytes.truncate(length);
    bytes
}
