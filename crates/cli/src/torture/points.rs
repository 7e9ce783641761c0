//! Points at which a build with debug assertions lets processes pause or kill themselves.

use forebay_placement::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The names of all points, as the sources have them.
pub const KNOWN: &[&str] = include!(concat!(env!("OUT_DIR"), "/points.rs"));

/// Each with the crate that has it; some stand in two.
pub const CRATES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/crates-of-points.rs"));

/// Whether this build has them.
pub const BUILT: bool = cfg!(debug_assertions);

/// All timers pass by so many times faster.
pub const TIME_SCALE: u64 = 50;
/// How long a pause takes, in milliseconds: longer than every timer then.
const PAUSE_MS: u64 = 100;
/// How often one process pauses: a manager that did at each of thousands of passes would come to a
/// standstill.
const PAUSES_MOST: u64 = 20;

/// Environment that lets a process of a role pause: half of them at one point, most of these at one
/// of those that the file `missed` names, at which no process has paused so far; the others
/// anywhere.
pub fn pause(
    random: &mut Random,
    role: &str,
    log: &Path,
    missed: &Path,
) -> Vec<(&'static str, String)> {
    let what = match random.below(2) {
        0 => {
            let missed = std::fs::read_to_string(missed).unwrap_or_default();
            let missed: Vec<_> = missed.lines().collect();
            let (point, most) = match missed.len() as u64 {
                count @ 1.. if !random.one_in(4) => (missed[random.below(count) as usize], 3),
                _ => (KNOWN[random.below(KNOWN.len() as u64) as usize], 20),
            };
            format!("{point}:1/{}:{PAUSE_MS}", 1 + random.below(most))
        }
        _ => format!("*:1/{}:{PAUSE_MS}", [100, 400, 1500][random.below(3) as usize]),
    };
    pauses(random, what, role, log)
}

/// Environment that lets each process of a role pause at its first pass of `point`; or, if `again`,
/// at one in five.
pub fn pause_at(
    random: &mut Random,
    (role, point): (&str, &str),
    again: bool,
    log: &Path,
) -> Vec<(&'static str, String)> {
    let when = if again { "1/5" } else { "1" };
    pauses(random, format!("{point}:{when}:{PAUSE_MS}"), role, log)
}

fn pauses(
    random: &mut Random,
    what: String,
    role: &str,
    log: &Path,
) -> Vec<(&'static str, String)> {
    vec![
        ("FOREBAY_PAUSE", what),
        ("FOREBAY_PAUSE_IN", role.to_owned()),
        ("FOREBAY_PAUSE_SEED", random.below(1 << 30).to_string()),
        ("FOREBAY_PAUSE_LOG", log.display().to_string()),
        ("FOREBAY_PAUSE_MOST", PAUSES_MOST.to_string()),
    ]
}

/// Environment that lets a process of a role kill itself once, at one of its first `most` points;
/// `mark` then says where.
pub fn kill(
    random: &mut Random,
    role: &str,
    most: u64,
    mark: &Path,
) -> Vec<(&'static str, String)> {
    // As often among the first ten as among the next hundred.
    let scale = [10, 100, 1000, most][random.below(4) as usize].min(most);
    let what = match random.below(3) {
        0 => {
            let point = KNOWN[random.below(KNOWN.len() as u64) as usize];
            format!("{point}:{}", 1 + random.below(3))
        }
        _ => format!("*:{}", 1 + random.below(scale)),
    };
    kills(what, role, mark)
}

/// Environment that lets a process of a role kill itself once, at this pass of `point`.
pub fn kill_at((role, point): (&str, &str), pass: u64, mark: &Path) -> Vec<(&'static str, String)> {
    kills(format!("{point}:{pass}"), role, mark)
}

fn kills(what: String, role: &str, mark: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("FOREBAY_CRASH", what),
        ("FOREBAY_CRASH_IN", role.to_owned()),
        ("FOREBAY_CRASH_ONCE", mark.display().to_string()),
    ]
}

/// What happened at points: by role, at which, and how often.
#[derive(Default)]
pub struct Seen(BTreeMap<String, BTreeMap<String, u64>>);

impl Seen {
    /// Something happened in a process of `role` at `point`.
    pub fn add(&mut self, role: &str, point: &str) {
        let points = self.0.entry(role.to_owned()).or_default();
        *points.entry(point.to_owned()).or_default() += 1;
    }

    /// How often in processes of `role` at `point`.
    pub fn at(&self, role: &str, point: &str) -> u64 {
        self.0.get(role).and_then(|points| points.get(point)).copied().unwrap_or_default()
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// At how many points.
    pub fn points(&self) -> usize {
        self.0.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>().len()
    }

    /// For people: by role.
    pub fn text(&self) -> String {
        let one = |(role, points): (&String, &BTreeMap<String, u64>)| {
            let count: u64 = points.values().sum();
            format!("{count} in {role}s at {} points", points.len())
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Points at which nothing happened.
    pub fn missed(&self) -> Vec<&'static str> {
        let is_missed = |name: &&str| !self.0.values().any(|points| points.contains_key(*name));
        KNOWN.iter().copied().filter(is_missed).collect()
    }

    /// Adds the lines `role point pid` of a log, and begins it anew.
    pub fn gather(&mut self, log: &Path) {
        let taken = log.with_extension("taken");
        if std::fs::rename(log, &taken).is_err() {
            return;
        }
        // The processes that have it open, or look for it now, are few: a line that is lost is not
        // counted.
        let _ = std::fs::File::create(log);
        for line in std::fs::read_to_string(&taken).unwrap_or_default().lines() {
            if let [role, point, ..] = line.split(' ').collect::<Vec<_>>()[..] {
                self.add(role, point);
            }
        }
        let _ = std::fs::remove_file(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_known_and_counted() {
        assert!(KNOWN.len() > 100 && KNOWN.contains(&"flush.writing"));
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, "node flush.writing 7\nclient index.node 8\nnode flush.writing 7\n")
            .unwrap();
        let mut seen = Seen::default();
        seen.gather(&log);
        seen.gather(&log);
        assert_eq!((seen.count(), seen.points()), (3, 2));
        assert_eq!((seen.at("node", "flush.writing"), seen.at("client", "flush.writing")), (2, 0));
        assert_eq!(seen.text(), "1 in clients at 1 points, 2 in nodes at 1 points");
        assert_eq!(seen.missed().len(), KNOWN.len() - 2);
    }
}
