//! Scripts of faults, made up at random.

use forebay_placement::Random;

/// Forms of lines about the store; `N` becomes a number, `E` an error.
const STORE: [&str; 10] = [
    "store write fail E next N",
    "store write fail E every N",
    "store write tear E every N",
    "store write short",
    "store write delay Nms every 3",
    "store sync fail E every N",
    "store sync delay Nms",
    "store read fail E every N",
    "store read short",
    "store write fail E",
];
/// The same about a file tier. What it holds alone and cannot be read is lost: reads fail for a
/// moment only.
const TIERS: [&str; 8] = [
    "nvme write delay Nms every 7",
    "nvme read short",
    "nvme write fail E next N",
    "nvme write fail E every N",
    "nvme write tear E every N",
    "nvme write fail E",
    "nvme read fail E next 1",
    "nvme sync fail E next N",
];
const ERRORS: [&str; 4] = ["EIO", "ENOSPC", "EDQUOT", "ESTALE"];

/// A script of one to three lines about the store, the tier, or both.
pub fn script(random: &mut Random, store: bool, tiers: bool) -> String {
    let mut script = String::new();
    let mut lines: Vec<&str> = Vec::new();
    if store {
        lines.extend(STORE);
    }
    if tiers {
        lines.extend(TIERS);
    }
    for _ in 0..=random.below(3) {
        let line = lines[random.below(lines.len() as u64) as usize];
        let error = ERRORS[random.below(ERRORS.len() as u64) as usize];
        let number = (2 + random.below(20)).to_string();
        let words = line.split(' ').map(|word| match word {
            "E" => error.to_owned(),
            word => word.replacen('N', &number, 1),
        });
        script.push_str(&words.collect::<Vec<_>>().join(" "));
        script.push('\n');
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_no_gaps() {
        let mut random = Random::new(7);
        for round in 0..400 {
            let (store, tiers) = (round % 3 != 0, round % 3 != 1);
            let script = script(&mut random, store, tiers);
            assert!(!script.contains('N') || script.contains("ENOSPC"), "{script}");
            assert!(store || !script.contains("store"), "{script}");
            assert!(tiers || !script.contains("nvme"), "{script}");
        }
    }
}
