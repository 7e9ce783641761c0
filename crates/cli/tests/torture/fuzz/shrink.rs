//! From a script that shows a difference to the smallest one that still does.

use super::run::{Mismatch, Place, run};
use std::time::{Duration, Instant};

/// How long a shrink may take.
const LIMIT: Duration = Duration::from_secs(240);

/// What is left of a script.
pub struct Shrunk {
    pub lines: Vec<String>,
    pub mismatch: Mismatch,
    /// How often it was seen to fail in five runs.
    pub fails: u32,
}

struct Shrinker<'a> {
    place: &'a Place,
    fault: Option<&'a str>,
    kind: String,
    tries: u32,
    since: Instant,
}

impl Shrinker<'_> {
    fn out_of_time(&self) -> bool {
        self.since.elapsed() > LIMIT
    }

    /// The difference, if the script still shows one of the same kind.
    fn fails(&self, lines: &[String]) -> Option<Mismatch> {
        (0..self.tries)
            .find_map(|_| run(self.place, lines, self.fault).mismatch)
            .filter(|found| found.kind == self.kind)
    }

    /// Leaves out pieces of `size` lines.
    fn without_pieces(&self, best: &mut Shrunk, size: usize) -> bool {
        let mut changed = false;
        let mut end = best.lines.len();
        while end > 0 && !self.out_of_time() {
            let start = end.saturating_sub(size);
            let mut fewer = best.lines.clone();
            fewer.drain(start..end.min(fewer.len()));
            if let Some(mismatch) = self.fails(&fewer) {
                cut(&mut fewer, &mismatch);
                (best.lines, best.mismatch) = (fewer, mismatch);
                changed = true;
            }
            end = start.min(best.lines.len());
        }
        changed
    }

    /// Gives one actor's lines to the first.
    fn with_fewer_actors(&self, best: &mut Shrunk) {
        for actor in 1..16 {
            let old = format!("{actor} ");
            let mut lines = best.lines.clone();
            for line in &mut lines {
                if let Some(rest) = line.strip_prefix(&old) {
                    *line = format!("0 {rest}");
                }
            }
            if lines != best.lines
                && let Some(mismatch) = self.fails(&lines)
            {
                (best.lines, best.mismatch) = (lines, mismatch);
            }
        }
    }

    /// Replaces numbers by smaller ones.
    fn with_smaller_numbers(&self, best: &mut Shrunk) {
        for line in 0..best.lines.len() {
            for word in 2..best.lines[line].split(' ').count() {
                let old = best.lines[line].split(' ').nth(word).unwrap().to_owned();
                let Ok(number) = old.parse::<i64>() else { continue };
                for smaller in [0, 1, 10, 4096, 262_144].into_iter().take_while(|&n| n < number) {
                    if self.out_of_time() {
                        return;
                    }
                    let mut words: Vec<_> =
                        best.lines[line].split(' ').map(str::to_owned).collect();
                    words[word] = smaller.to_string();
                    let mut lines = best.lines.clone();
                    lines[line] = words.join(" ");
                    if let Some(mismatch) = self.fails(&lines) {
                        (best.lines, best.mismatch) = (lines, mismatch);
                        break;
                    }
                }
            }
        }
    }
}

/// Lines behind the first that differs do not matter.
fn cut(lines: &mut Vec<String>, mismatch: &Mismatch) {
    if let Some(line) = mismatch.line {
        lines.truncate(line + 1);
    }
}

/// Shrinks a script that showed `mismatch`. One that does not show it again comes back as it is.
pub fn shrink(place: &Place, lines: &[String], mismatch: Mismatch, fault: Option<&str>) -> Shrunk {
    let (kind, since) = (mismatch.kind.clone(), Instant::now());
    let mut shrinker = Shrinker { place, fault, kind, tries: 1, since };
    let mut best = Shrunk { lines: lines.to_vec(), mismatch, fails: 0 };
    cut(&mut best.lines, &best.mismatch);
    let again = (0..5).filter(|_| shrinker.fails(&best.lines).is_some()).count();
    match again {
        0 => {
            best.lines = lines.to_vec();
            return best;
        }
        // What happens now and then needs more than one look.
        1..=3 => shrinker.tries = 4,
        _ => {}
    }
    let mut size = best.lines.len().div_ceil(2);
    while size > 0 && !shrinker.out_of_time() {
        let changed = shrinker.without_pieces(&mut best, size);
        size = match size {
            1 if changed => 1,
            size => size / 2,
        };
    }
    shrinker.with_fewer_actors(&mut best);
    shrinker.without_pieces(&mut best, 1);
    shrinker.with_smaller_numbers(&mut best);
    shrinker.tries = 1;
    best.fails = (0..5).filter(|_| shrinker.fails(&best.lines).is_some()).count() as u32;
    best
}
