//! What came out: a table, JSON, and the figure.

use crate::bars::{Bar, Bars, Group};
use crate::figures::{Claim, Figure, Measure};
use crate::machine::Machine;
use crate::measured::{Spread, is_steady};
use serde_json::json;
use std::fmt::Write as _;

/// Seconds of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// What the program waited for its writes; as MPI programs do, for the slowest rank of each
    /// phase.
    pub write: f64,
    /// The same for reads.
    pub read: f64,
    /// From the program's end until all was on the store.
    pub flush: f64,
}

impl Times {
    fn of(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Write => self.write,
            Measure::Read => self.read,
            Measure::Flush => self.flush,
            Measure::Access => self.write + self.read,
            Measure::Total => self.write + self.read + self.flush,
        }
    }
}

/// All runs of a case on a system.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub case: usize,
    pub system: &'static str,
    pub runs: Vec<Times>,
}

impl Row {
    fn values(&self, measure: Measure) -> impl Iterator<Item = f64> {
        self.runs.iter().map(move |times| times.of(measure))
    }

    fn spread(&self, measure: Measure) -> Spread {
        Spread::of(self.values(measure)).unwrap_or(Spread::UNKNOWN)
    }

    /// Whether more rounds would hardly change the median.
    pub fn is_steady(&self) -> bool {
        is_steady(&self.values(Measure::Total).collect::<Vec<_>>())
    }

    fn median(&self, measure: Measure) -> f64 {
        self.spread(measure).median
    }
}

/// The results of a figure.
#[derive(Clone)]
pub struct Report {
    pub(crate) figure: &'static Figure,
    pub(crate) cases: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
    pub(crate) is_small: bool,
    pub(crate) machine: Machine,
}

/// What the table and the JSON tell of each row.
const MEASURES: [Measure; 4] = [Measure::Write, Measure::Read, Measure::Flush, Measure::Total];

/// What the bars of the picture consist of.
const PARTS: [Measure; 3] = [Measure::Write, Measure::Read, Measure::Flush];

impl Report {
    /// The row of a system; one that is steady has its row in the first case.
    fn row(&self, case: usize, system: &str) -> Option<&Row> {
        let of = |case| self.rows.iter().find(|row| row.case == case && row.system == system);
        of(case).or_else(|| of(0))
    }

    /// Round by round: what ran in the same minute is compared.
    fn ratio(&self, claim: &Claim) -> Spread {
        let values = |system| self.row(claim.case, system).map(|row| row.values(claim.measure));
        let pairs = values(claim.of).zip(values(claim.over));
        pairs.and_then(|(of, over)| Spread::of_ratios(of, over)).unwrap_or(Spread::UNKNOWN)
    }

    fn rounds(&self) -> usize {
        self.rows.first().map_or(0, |row| row.runs.len())
    }

    /// The tables, for people.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.figure.title);
        let rounds = match self.rounds() {
            1 => "one round".to_owned(),
            rounds => format!("medians of {rounds} rounds, (least - most)"),
        };
        let _ =
            write!(text, "{}\nseconds, {rounds}; all data compared byte by byte\n\n", self.machine);
        let _ = write!(text, "{:<28}", "");
        let shown: Vec<Measure> = MEASURES.into_iter().filter(|m| self.is_shown(*m)).collect();
        for measure in &shown {
            let name = if *measure == Measure::Total { "sum" } else { measure.name() };
            let _ = write!(text, "{name:>24}");
        }
        for (case, name) in self.cases.iter().enumerate() {
            let _ = write!(text, "\n{name}\n");
            for row in self.rows.iter().filter(|row| row.case == case) {
                let _ = write!(text, "  {:<26}", row.system);
                for measure in &shown {
                    let Spread { median, least, most } = row.spread(*measure);
                    let spread = match row.runs.len() {
                        1 => format!("{median:.3}"),
                        _ => format!("{median:.3} ({least:.3} - {most:.3})"),
                    };
                    let _ = write!(text, "{spread:>24}");
                }
                text.push('\n');
            }
        }
        text + &self.ratios()
    }

    fn is_shown(&self, measure: Measure) -> bool {
        let longest = self.rows.iter().map(|row| row.spread(measure).most).fold(0.0, f64::max);
        longest > 0.0
    }

    fn ratios(&self) -> String {
        let heading = match self.rounds() {
            1 => "ratio",
            _ => "ratio, of the same round, (least - most)",
        };
        let mut text = format!("\n{heading:<78}{:>24}{:>8}\n", "measured", "paper");
        for claim in self.figure.claims {
            let what = format!(
                "{}: {} / {}, {}",
                claim.measure.name(),
                claim.of,
                claim.over,
                self.cases[claim.case]
            );
            let Spread { median, least, most } = self.ratio(claim);
            let measured = match self.rounds() {
                1 => times(median),
                _ => format!("{} ({least:.1} - {most:.1})", times(median)),
            };
            let _ = writeln!(text, "{what:<78}{measured:>24}{:>8}", times(claim.paper));
        }
        if self.is_small {
            text += "\nAt small scale everything runs, but the ratios mean nothing.\n";
        }
        text
    }

    /// All numbers, as JSON.
    pub fn json(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let mut object = json!({ "case": self.cases[row.case], "system": row.system });
            for measure in MEASURES {
                let Spread { median, least, most } = row.spread(measure);
                let name = format!("{}_s", measure.name().replace(" + ", "_"));
                object[name] = json!({ "median": median, "least": least, "most": most });
            }
            object
        });
        let ratios = self.figure.claims.iter().map(|claim| {
            let Spread { median, least, most } = self.ratio(claim);
            json!({
                "measure": claim.measure.name(),
                "case": self.cases[claim.case],
                "of": claim.of,
                "over": claim.over,
                "measured": median,
                "least": least,
                "most": most,
                "paper": claim.paper,
            })
        });
        let all = json!({
            "figure": self.figure.name,
            "title": self.figure.title,
            "scale": if self.is_small { "small" } else { "usual" },
            "machine": self.machine.to_string(),
            "rounds": self.rounds(),
            "rows": rows.collect::<Vec<_>>(),
            "ratios": ratios.collect::<Vec<_>>(),
        });
        format!("{all:#}\n")
    }

    /// The medians as bars.
    pub fn bars(&self) -> Bars {
        let bar = |row: &Row| Bar {
            name: row.system.to_owned(),
            spread: {
                let Spread { least, most, .. } = row.spread(Measure::Total);
                (least, most)
            },
            marks: self.marks(row),
            parts: PARTS.iter().map(|part| row.median(*part)).collect(),
        };
        let groups: Vec<Group> = (0..self.cases.len())
            .map(|case| Group {
                name: self.cases[case].to_owned(),
                bars: self.rows.iter().filter(|row| row.case == case).map(bar).collect(),
            })
            .collect();
        let parts = PARTS.iter().map(|part| part.name()).collect();
        let rounds = self.rounds();
        let mut notes =
            vec![format!("{}; medians of {rounds} rounds, least and most", self.machine)];
        if self.is_small {
            notes.insert(0, crate::bars::MEANINGLESS.to_owned());
        }
        Bars { title: self.figure.title.to_owned(), unit: "seconds", parts, groups, notes }
    }

    /// Where what claims compare would end in the bar of the slower system, by the paper's ratios
    /// to the faster one.
    fn marks(&self, row: &Row) -> Vec<f64> {
        let is_row = |found: &Row| (found.case, found.system) == (row.case, row.system);
        let is_of = |claim: &&Claim| self.row(claim.case, claim.of).is_some_and(is_row);
        let mark = |claim: &Claim| {
            let before = match claim.measure {
                Measure::Write | Measure::Access | Measure::Total => 0.0,
                Measure::Read => row.median(Measure::Write),
                Measure::Flush => row.median(Measure::Access),
            };
            let over = self.row(claim.case, claim.over)?.median(claim.measure);
            Some(before + over * claim.paper)
        };
        self.figure.claims.iter().filter(is_of).filter_map(mark).collect()
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.1}x")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(writes: &[f64]) -> Row {
        let runs = writes.iter().map(|&write| Times { write, read: 0.0, flush: 1.0 }).collect();
        Row { case: 0, system: "no buffering", runs }
    }

    #[test]
    fn medians_stand_between_the_extremes() {
        let spread = row(&[5.0, 1.0, 2.0]).spread(Measure::Write);
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 5.0));
        assert_eq!(row(&[4.0, 2.0]).median(Measure::Total), 4.0);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let figure = crate::figure("hermes-fig10").unwrap();
        let fast = Row { system: "Forebay max-bandwidth", ..row(&[0.5, 1.0, 0.25]) };
        let rows = vec![row(&[4.0, 2.0, 3.0]), fast];
        let report = Report {
            figure,
            cases: vec!["16 steps"],
            rows,
            is_small: true,
            machine: Machine::here(),
        };
        let ratio = report.ratio(&figure.claims[0]);
        assert_eq!((ratio.least, ratio.median, ratio.most), (2.0, 8.0, 12.0));
        let line = "8.0x (2.0 - 12.0)    5.0x";
        assert!(report.table().contains(line), "{}", report.table());
        // Writing 0.5 s with buffers, five times as long without in the paper.
        let bars = report.bars();
        assert_eq!(bars.groups[0].bars[0].marks, [2.5]);
        assert!(bars.groups[0].bars[1].marks.is_empty());
        assert_eq!(bars.groups[0].bars[0].spread, (3.0, 5.0));
        assert!(bars.notes[0].contains("mean nothing"), "{:?}", bars.notes);
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        let ratio = &json["ratios"][0];
        assert_eq!((&ratio["measured"], &ratio["paper"]), (&json!(8.0), &json!(5.0)));
    }
}
