//! What was measured, claims about it, and how they are shown: tables for people and for pages,
//! JSON, pictures. A figure is always shown beside what it is compared with.

use crate::bars::{Bar, Bars, Group};
use crate::machine::Machine;
use crate::{Options, Scale};
use serde_json::json;
use std::fmt::Write as _;
use std::process::Command;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Operations in a second, of so many bytes each, shown as bytes in a second.
    Bandwidth(u64),
    /// Operations in a second.
    Rate,
    /// Seconds.
    Time,
    /// A part of one.
    Share,
    /// Bytes.
    Memory,
    /// A number of something.
    Count,
}

impl Unit {
    /// A number with its unit, in three digits.
    fn show(self, value: f64) -> String {
        let scaled = |value: f64, steps: &[(f64, &str)]| {
            let (by, name) = steps
                .iter()
                .copied()
                .find(|(by, _)| value.abs() >= *by)
                .or(steps.last().copied())
                .unwrap_or((1.0, ""));
            format!("{} {name}", digits(value / by))
        };
        match self {
            Unit::Bandwidth(bytes) => {
                scaled(value * bytes as f64, &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")])
            }
            Unit::Rate => scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")]),
            Unit::Time => scaled(value, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]),
            Unit::Share => format!("{} %", digits(value * 100.0)),
            Unit::Count => digits(value),
            Unit::Memory => scaled(value, &[(1_048_576.0, "MiB"), (1024.0, "KiB")]),
        }
    }
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// All rounds of a piece of work on a system.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub work: String,
    pub system: String,
    pub unit: Unit,
    pub rounds: Vec<f64>,
}

/// What is wanted of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// So many times the rate that it is compared with.
    AtLeast(f64),
    /// An operation takes at most so many seconds longer.
    Within(f64),
    /// The number itself, at most.
    AtMost(f64),
}

/// A line of what is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub what: String,
    /// Work and system.
    pub of: (String, String),
    /// Work and system that it is compared with; none for [`Wanted::AtMost`].
    pub against: Option<(String, String)>,
    pub wanted: Wanted,
    /// The ratio that a paper gives.
    pub paper: Option<f64>,
}

impl Claim {
    /// `of` runs at least `times` as fast as `against`.
    pub fn ratio(what: &str, of: (&str, &str), against: (&str, &str), times: f64) -> Claim {
        Claim {
            what: what.to_owned(),
            of: owned(of),
            against: Some(owned(against)),
            wanted: Wanted::AtLeast(times),
            paper: None,
        }
    }

    /// What is measured of a work is itself at most so much.
    pub fn at_most(work: &str, system: &str, most: f64) -> Claim {
        Claim {
            what: work.to_owned(),
            of: owned((work, system)),
            against: None,
            wanted: Wanted::AtMost(most),
            paper: None,
        }
    }
}

fn owned((work, system): (&str, &str)) -> (String, String) {
    (work.to_owned(), system.to_owned())
}

/// Median, least and most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Of what was not measured.
    pub const UNKNOWN: Spread = Spread { median: f64::NAN, least: f64::NAN, most: f64::NAN };

    pub fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = values.collect();
        all.sort_by(f64::total_cmp);
        let (least, most) = (*all.first()?, *all.last()?);
        let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
        Some(Spread { median, least, most })
    }

    /// Of the ratios of values of the same round.
    pub fn of_ratios(
        of: impl Iterator<Item = f64>,
        over: impl Iterator<Item = f64>,
    ) -> Option<Spread> {
        Spread::of(of.zip(over).map(|(of, over)| of / over))
    }

    /// Half of the distance between the extremes, relative to the median.
    fn half_width(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.most - self.least) / 2.0 / self.median }
    }
}

/// The median of what is measured is known to so much of itself before rounds end.
const STEADY: f64 = 0.15;
/// So many times the usual rounds are the most.
const MORE_ROUNDS: u32 = 4;

/// Whether half of the interval in which the median lies with 95 % certainty is narrower than
/// [`STEADY`]. The interval is between two of the values, whatever their distribution; with up to
/// six values it is between the extremes.
pub(crate) fn is_steady(values: &[f64]) -> bool {
    let mut all = values.to_vec();
    all.sort_by(f64::total_cmp);
    let (count, middle) = (all.len(), all.len() as f64 / 2.0);
    let low = (middle - 0.98 * middle.sqrt() * 2_f64.sqrt()).floor().max(0.0) as usize;
    match (all.get(low), all.get(count.wrapping_sub(1 + low)), all.get(count / 2)) {
        (Some(low), Some(high), Some(median)) => (high - low).abs() / 2.0 <= STEADY * median.abs(),
        _ => false,
    }
}

/// Whether a benchmark does another round after `done` ones: the usual rounds, and more while a
/// median is not known well. Where the user says how many rounds, or at small scale, no more.
pub(crate) fn goes_on(
    options: &Options,
    done: u32,
    rounds: u32,
    is_steady: impl FnOnce() -> bool,
) -> bool {
    let may_more = options.rounds.is_none() && options.scale == Scale::Usual;
    done < rounds || may_more && done < rounds * MORE_ROUNDS && !is_steady()
}

/// A claim with its numbers.
struct Judged<'a> {
    claim: &'a Claim,
    value: String,
    other: String,
    ratio: Option<Spread>,
    measured: f64,
    met: bool,
}

/// The results of a benchmark.
#[derive(Clone, Debug)]
pub struct Measured {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    /// Rounds that are done at least.
    usual_rounds: u32,
    pub(crate) is_small: bool,
    pub(crate) series: Vec<Series>,
    pub(crate) claims: Vec<Claim>,
    /// What a reader must know: what was left out, how competitors are configured.
    pub(crate) notes: Vec<String>,
    /// Whether the bars of its picture can be compared with each other.
    pub(crate) is_drawn: bool,
}

impl Measured {
    pub(crate) fn new(name: &'static str, title: &str, rounds: u32, is_small: bool) -> Measured {
        Measured {
            name,
            title: title.to_owned(),
            machine: Machine::here(),
            rounds,
            usual_rounds: rounds,
            is_small,
            series: Vec::new(),
            claims: Vec::new(),
            notes: Vec::new(),
            is_drawn: true,
        }
    }

    /// Whether a program that a system needs is not installed, which is noted.
    pub(crate) fn lacks(&mut self, system: &str, program: Option<&str>) -> bool {
        let is_missing = |program: &&str| Command::new(program).arg("--version").output().is_err();
        let Some(program) = program.filter(is_missing) else { return false };
        self.notes.push(format!("NOT MEASURED: {system}: {program} is not installed"));
        true
    }

    /// Adds a number of a round.
    pub(crate) fn add(&mut self, work: &str, system: &str, unit: Unit, value: f64) {
        let is_it = |series: &&mut Series| series.work == work && series.system == system;
        match self.series.iter_mut().find(is_it) {
            Some(series) => series.rounds.push(value),
            None => self.series.push(Series {
                work: work.to_owned(),
                system: system.to_owned(),
                unit,
                rounds: vec![value],
            }),
        }
    }

    /// Whether another round is to be done; counts it. What is counted and not timed asks for none.
    pub(crate) fn next_round(&mut self, options: &Options, round: &mut u32) -> bool {
        let timed = |series: &&Series| !matches!(series.unit, Unit::Memory | Unit::Count);
        let is_steady = || self.series.iter().filter(timed).all(|series| is_steady(&series.rounds));
        let rounds = options.rounds.unwrap_or(self.usual_rounds).max(1);
        let goes_on = goes_on(options, *round, rounds, is_steady);
        if goes_on {
            *round += 1;
            self.rounds = *round;
        }
        goes_on
    }

    pub(crate) fn find(&self, work: &str, system: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.work == work && series.system == system)
    }

    /// Median of all rounds.
    pub(crate) fn median(&self, work: &str, system: &str) -> Option<f64> {
        Some(Spread::of(self.find(work, system)?.rounds.iter().copied())?.median)
    }

    /// What can be said about a claim; none if one side was not measured.
    fn judge<'a>(&self, claim: &'a Claim) -> Option<Judged<'a>> {
        let own = self.find(&claim.of.0, &claim.of.1)?;
        let own_spread = Spread::of(own.rounds.iter().copied())?;
        let other = match &claim.against {
            Some((work, system)) => Some(self.find(work, system)?),
            None => None,
        };
        // Round by round: what was measured in the same minute is compared.
        let ratio = other.and_then(|other| {
            Spread::of_ratios(own.rounds.iter().copied(), other.rounds.iter().copied())
        });
        let longer = other.and_then(|other| {
            let pairs = own.rounds.iter().zip(&other.rounds);
            Spread::of(pairs.map(|(of, over)| 1.0 / of - 1.0 / over))
        });
        let (measured, met) = match claim.wanted {
            Wanted::AtLeast(times) => {
                let measured = ratio?.median;
                (measured, measured >= times)
            }
            Wanted::Within(seconds) => {
                let measured = longer?.median;
                (measured, measured <= seconds)
            }
            Wanted::AtMost(most) => (own_spread.median, own_spread.median <= most),
        };
        let other = other.and_then(|other| {
            Some(other.unit.show(Spread::of(other.rounds.iter().copied())?.median))
        });
        Some(Judged {
            claim,
            value: own.unit.show(own_spread.median),
            other: other.unwrap_or_default(),
            ratio,
            measured,
            met,
        })
    }

    fn judged(&self) -> Vec<Judged<'_>> {
        self.claims.iter().filter_map(|claim| self.judge(claim)).collect()
    }

    /// Names of all works, and of all systems, as they were met.
    fn names(&self) -> (Vec<&str>, Vec<&str>) {
        let mut works: Vec<&str> = Vec::new();
        let mut systems: Vec<&str> = Vec::new();
        for series in &self.series {
            if !works.contains(&series.work.as_str()) {
                works.push(&series.work);
            }
            if !systems.contains(&series.system.as_str()) {
                systems.push(&series.system);
            }
        }
        (works, systems)
    }

    /// The rows of the table of claims, heading first.
    fn claim_rows(&self) -> Vec<Vec<String>> {
        let has_paper = self.claims.iter().any(|claim| claim.paper.is_some());
        let mut heading = vec!["work", "measured", "against", "", "ratio", "wanted", "met"];
        if has_paper {
            heading.push("paper");
        }
        let mut rows = vec![heading.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for judged in self.judged() {
            let claim = judged.claim;
            let against = match &claim.against {
                Some((work, system)) if *work == claim.of.0 => system.clone(),
                Some((work, system)) if *system == claim.of.1 => work.clone(),
                Some((work, system)) => format!("{work}, {system}"),
                None => String::new(),
            };
            let ratio = judged.ratio.map_or(String::new(), |ratio| match self.rounds {
                1 => format!("{}x", digits(ratio.median)),
                _ => format!(
                    "{}x ({} - {})",
                    digits(ratio.median),
                    digits(ratio.least),
                    digits(ratio.most)
                ),
            });
            let wanted = match claim.wanted {
                Wanted::AtLeast(times) => format!("{}x", digits(times)),
                Wanted::Within(seconds) => format!(
                    "+{}, is {}{}",
                    Unit::Time.show(seconds),
                    if judged.measured < 0.0 { "" } else { "+" },
                    Unit::Time.show(judged.measured)
                ),
                Wanted::AtMost(most) => {
                    let unit = self.find(&claim.of.0, &claim.of.1).map_or(Unit::Time, |s| s.unit);
                    format!("at most {}", unit.show(most))
                }
            };
            let met = if judged.met { "yes" } else { "NO" };
            let mut row =
                vec![claim.what.clone(), judged.value, against, judged.other, ratio, wanted];
            row.push(met.to_owned());
            if has_paper {
                row.push(claim.paper.map_or(String::new(), |paper| format!("{}x", digits(paper))));
            }
            rows.push(row);
        }
        rows
    }

    /// The rows of the table of everything, heading first.
    fn series_rows(&self) -> Vec<Vec<String>> {
        let (works, systems) = self.names();
        let heading = std::iter::once("work").chain(systems.iter().copied());
        let mut rows = vec![heading.map(str::to_owned).collect::<Vec<_>>()];
        for work in works {
            let cell = |system: &&str| {
                let found = self.find(work, system);
                let spread = found.and_then(|s| Spread::of(s.rounds.iter().copied()));
                match (found, spread) {
                    (Some(series), Some(spread)) if series.rounds.len() > 1 => format!(
                        "{} ±{:.0}%",
                        series.unit.show(spread.median),
                        spread.half_width() * 100.0
                    ),
                    (Some(series), Some(spread)) => series.unit.show(spread.median),
                    _ => String::new(),
                }
            };
            let cells = systems.iter().map(cell);
            rows.push(std::iter::once(work.to_owned()).chain(cells).collect());
        }
        rows
    }

    fn introduction(&self) -> String {
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!(
                "medians of {rounds} rounds; ratios are of the same round, with least and most; \
                 ± is half of the distance between least and most"
            ),
        };
        let small = if self.is_small { "; small scale: the ratios mean nothing" } else { "" };
        format!("{rounds}{small}")
    }

    /// The tables, for people.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n\n", self.title, self.machine, self.introduction());
        aligned(&mut text, &self.claim_rows());
        text.push('\n');
        aligned(&mut text, &self.series_rows());
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    /// The tables, for a page.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}, {}.\n\n", self.machine, self.introduction());
        for rows in [self.claim_rows(), self.series_rows()] {
            for (number, row) in rows.iter().enumerate() {
                let _ = writeln!(text, "| {} |", row.join(" | "));
                if number == 0 {
                    let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
                }
            }
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}\n");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    /// All numbers, as JSON.
    pub fn json(&self) -> String {
        let series = self.series.iter().map(|series| {
            let (unit, by) = match series.unit {
                Unit::Bandwidth(bytes) => ("bytes/s", bytes as f64),
                Unit::Rate => ("operations/s", 1.0),
                Unit::Time => ("s", 1.0),
                Unit::Share => ("share", 1.0),
                Unit::Memory => ("bytes", 1.0),
                Unit::Count => ("number", 1.0),
            };
            let rounds: Vec<f64> = series.rounds.iter().map(|value| value * by).collect();
            let mut object = json!({ "work": series.work, "system": series.system, "unit": unit });
            if let Some(spread) = Spread::of(rounds.iter().copied()) {
                object["median"] = json!(spread.median);
                object["least"] = json!(spread.least);
                object["most"] = json!(spread.most);
            }
            object["rounds"] = json!(rounds);
            object
        });
        let claims = self.judged().into_iter().map(|judged| {
            let claim = judged.claim;
            let (kind, wanted) = match claim.wanted {
                Wanted::AtLeast(times) => ("ratio_at_least", times),
                Wanted::Within(seconds) => ("longer_by_at_most_s", seconds),
                Wanted::AtMost(most) => ("at_most", most),
            };
            let against = claim.against.as_ref();
            json!({
                "what": claim.what,
                "against": against.map(|(work, system)| json!({ "work": work, "system": system })),
                "kind": kind,
                "wanted": wanted,
                "measured": judged.measured,
                "met": judged.met,
                "paper": claim.paper,
            })
        });
        let all = json!({
            "bench": self.name,
            "title": self.title,
            "machine": self.machine.to_string(),
            "scale": if self.is_small { "small" } else { "usual" },
            "rounds": self.rounds,
            "series": series.collect::<Vec<_>>(),
            "claims": claims.collect::<Vec<_>>(),
            "notes": self.notes,
        });
        format!("{all:#}\n")
    }

    /// The medians as bars; none if it has no picture.
    pub fn bars(&self) -> Option<Bars> {
        if !self.is_drawn {
            return None;
        }
        let (works, systems) = self.names();
        let groups: Vec<Group> = works
            .iter()
            .map(|work| Group {
                name: (*work).to_owned(),
                bars: systems
                    .iter()
                    .filter_map(|system| {
                        let series = self.find(work, system)?;
                        let by = millions(series.unit)?.0;
                        let rates = series.rounds.iter().map(|rate| rate * by);
                        let Spread { median, least, most } = Spread::of(rates)?;
                        let marks = self.marks(work, system).map(|mark| mark * by).collect();
                        let (name, spread) = ((*system).to_owned(), (least, most));
                        Some(Bar { name, parts: vec![median], spread, marks })
                    })
                    .collect(),
            })
            .filter(|group: &Group| !group.bars.is_empty())
            .collect();
        let units = self.series.iter().filter_map(|series| millions(series.unit));
        let (title, unit) = (self.title.clone(), units.map(|unit| unit.1).next()?);
        let mut notes = vec![format!("{}, {}", self.machine, self.introduction())];
        if self.is_small {
            notes.insert(0, crate::bars::MEANINGLESS.to_owned());
        }
        Some(Bars { title, unit, parts: Vec::new(), groups, notes })
    }

    /// Where the bar of a system would end by the ratios that a paper gives of others to it.
    fn marks(&self, work: &str, system: &str) -> impl Iterator<Item = f64> {
        self.claims.iter().filter_map(move |claim| {
            let (other, system_of_other) = claim.against.as_ref()?;
            let paper = claim.paper.filter(|_| other == work && system_of_other == system)?;
            Some(self.median(&claim.of.0, &claim.of.1)? / paper)
        })
    }
}

/// By what numbers of this unit are multiplied in a picture, and what they are then; none of what
/// is not drawn.
fn millions(unit: Unit) -> Option<(f64, &'static str)> {
    match unit {
        Unit::Bandwidth(bytes) => Some((bytes as f64 / 1e6, "MB/s")),
        Unit::Rate => Some((1e-6, "million operations per second")),
        Unit::Time | Unit::Share | Unit::Memory | Unit::Count => None,
    }
}

/// A table whose first column stands left and the others right.
fn aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            let _ = match column {
                0 => write!(text, "{cell}{gap}"),
                _ => write!(text, "  {gap}{cell}"),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let mut measured = Measured::new("test", "a \"test\"", 3, false);
        for (fast, slow) in [(8.0, 2.0), (9.0, 1.0), (6.0, 3.0)] {
            measured.add("write", "fast", Unit::Rate, fast);
            measured.add("write", "slow", Unit::Rate, slow);
        }
        measured.add("idle", "fast", Unit::Share, 0.004);
        measured
    }

    #[test]
    fn rounds_go_on_until_medians_are_known() {
        let options = |rounds, scale| Options {
            forebay: "forebay".into(),
            scale,
            rounds,
            folder: None,
            nodes: 2,
            install: false,
            works: Vec::new(),
        };
        let usual = options(None, Scale::Usual);
        assert!(goes_on(&usual, 4, 5, || true) && !goes_on(&usual, 5, 5, || true));
        assert!(goes_on(&usual, 5, 5, || false) && !goes_on(&usual, 20, 5, || false));
        assert!(!goes_on(&options(Some(5), Scale::Usual), 5, 5, || false));
        assert!(!goes_on(&options(None, Scale::Small), 1, 1, || false));
        // Of few values the extremes count; of many, one that is far off does not.
        assert!(is_steady(&[1.0, 1.1, 1.2]) && !is_steady(&[1.0, 1.1, 1.5]));
        let mut many = [1.0; 15];
        (many[0], many[7]) = (0.1, 9.0);
        assert!(is_steady(&many) && !is_steady(&[]));
        let mut measured = Measured::new("test", "a test", 2, false);
        let mut round = 0;
        while measured.next_round(&usual, &mut round) {
            let value = if round < 4 { f64::from(round) } else { 2.0 };
            measured.add("write", "one", Unit::Rate, value);
        }
        assert!(measured.rounds > 3 && measured.rounds <= 8, "{}", measured.rounds);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut measured = measured();
        let claim = |wanted| Claim {
            wanted,
            ..Claim::ratio("w", ("write", "fast"), ("write", "slow"), 0.0)
        };
        measured.claims = vec![
            claim(Wanted::AtLeast(4.0)),
            claim(Wanted::AtLeast(4.1)),
            claim(Wanted::Within(-0.3)),
            Claim {
                of: ("idle".into(), "fast".into()),
                against: None,
                ..claim(Wanted::AtMost(0.005))
            },
            // It was not measured.
            Claim::ratio("w", ("write", "fast"), ("write", "absent"), 1.0),
        ];
        let judged = measured.judged();
        let met: Vec<_> = judged.iter().map(|judged| judged.met).collect();
        assert_eq!(met, [true, false, true, true]);
        assert_eq!(judged[0].measured, 4.0);
        let ratio = judged[0].ratio.unwrap();
        assert_eq!((ratio.least, ratio.most), (2.0, 9.0));
        let table = measured.table();
        assert!(table.contains("4.00x (2.00 - 9.00)"), "{table}");
        assert!(measured.markdown().contains("| 4.10x | NO |"), "{}", measured.markdown());
        assert!(measured.json().contains(r#""title": "a \"test\"""#), "{}", measured.json());
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (unit, value, text) in [
            (Unit::Bandwidth(1 << 20), 10_000.0, "10.5 GB/s"),
            (Unit::Rate, 1_250_000.0, "1.25 M/s"),
            (Unit::Rate, 12.0, "12.0 /s"),
            (Unit::Time, 0.000_000_123, "123 ns"),
            (Unit::Time, -0.000_002, "-2.00 us"),
            (Unit::Share, 0.0041, "0.41 %"),
            (Unit::Count, 5.0, "5.00"),
            (Unit::Memory, 67_108_864.0, "64.0 MiB"),
        ] {
            assert_eq!(unit.show(value), text);
        }
    }
}
