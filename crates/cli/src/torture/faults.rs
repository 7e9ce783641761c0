//! Scripts of faults, made up at random.

use super::content::Random;

/// Forms of lines; `N` becomes a number, `E` an error.
const LINES: [&str; 10] = [
    "store write fail E next N",
    "store write fail E every N",
    "store write tear E every N",
    "store write short",
    "store write delay Nms every 3",
    "store sync fail E every N",
    "store sync delay Nms",
    "nvme write delay Nms every 7",
    "nvme read short",
    "store write fail E",
];
const ERRORS: [&str; 4] = ["EIO", "ENOSPC", "EDQUOT", "ESTALE"];

/// A script of one to three lines.
pub fn script(random: &mut Random) -> String {
    let mut script = String::new();
    for _ in 0..=random.below(3) {
        let line = LINES[random.below(LINES.len() as u64) as usize];
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
        for _ in 0..200 {
            let script = script(&mut random);
            assert!(!script.contains('N') || script.contains("ENOSPC"), "{script}");
        }
    }
}
