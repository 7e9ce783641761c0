//! A scenario: a machine, a workload in several cases, the strategies to compare, and what a paper
//! says that should come out.

mod cases;
mod cluster;
mod free;
mod strategies;
mod workload;

pub(super) use free::Free;

use cases::{cases, faults};
use std::fs;
use std::path::Path;
use strategies::strategies;
use workload::base;

use forebay_node::config::reader::{Result, Source, Table};
use forebay_simulator::{Cluster, Fault, Run, Strategy, Workload};

/// A node's ids have 16 bits; ten times the largest machines of today.
const NODES_MAX: u32 = 100_000;
const RANKS_MAX: u32 = 1_024;
const DEVICES_MAX: u32 = 100_000;
const PHASES_MAX: u32 = 10_000;
const REPEAT_MAX: u64 = 1_000;
/// More blocks than this would not fit in an ordinary machine's memory.
const BLOCKS_MAX: u64 = 20_000_000;
const GRAIN_NS: u64 = 100_000;
const BLOCK: u64 = 16 << 20;
const SECONDS_MAX: f64 = 1e9;
const RATIO_MAX: f64 = 1e6;

const ROOT: &[&str] = &[
    "title",
    "seed",
    "grain",
    "cluster",
    "tier",
    "store",
    "workload",
    "case",
    "strategy",
    "fault",
    "free",
    "reference",
    "ratio",
];
const REFERENCE: &[&str] =
    &["case", "strategy", "open", "write", "read", "io", "flush", "total", "determined", "needs"];
const RATIO: &[&str] = &["case", "measure", "of", "over", "paper", "needs"];
/// What of an outcome is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Open,
    Write,
    Read,
    Io,
    Flush,
    Total,
}

pub(super) const MEASURES: &[(&str, Measure)] = &[
    ("open", Measure::Open),
    ("write", Measure::Write),
    ("read", Measure::Read),
    ("io", Measure::Io),
    ("flush", Measure::Flush),
    ("total", Measure::Total),
];

/// A scenario, every default filled in.
#[derive(Clone)]
pub(super) struct Scenario {
    pub title: String,
    pub seed: u64,
    pub grain_ns: u64,
    pub cases: Vec<Case>,
    pub strategies: Vec<Strategy>,
    pub faults: Vec<Fault>,
    pub references: Vec<Reference>,
    pub ratios: Vec<Ratio>,
    pub free: Vec<Free>,
}

/// One group of bars.
#[derive(Clone)]
pub(super) struct Case {
    pub name: String,
    pub cluster: Cluster,
    pub workload: Workload,
}

/// Seconds that a paper gives.
#[derive(Clone)]
pub(super) struct Reference {
    pub case: usize,
    pub strategy: usize,
    pub seconds: Vec<(Measure, f64)>,
    /// Which of them follow from what the paper says, although others need something.
    pub determined: Vec<Measure>,
    /// What the others need that the paper does not state.
    pub needs: Option<String>,
}

/// How many times as long something takes with one strategy as with another, as a paper gives it.
#[derive(Clone)]
pub(super) struct Ratio {
    pub case: usize,
    pub measure: Measure,
    pub of: usize,
    pub over: usize,
    pub paper: f64,
    /// What it needs that the paper does not state.
    pub needs: Option<String>,
}

/// A number of the paper: seconds, or how many times as many.
pub(super) struct Number<'s> {
    pub case: usize,
    pub measure: Measure,
    pub of: usize,
    pub over: Option<usize>,
    pub paper: f64,
    /// What it needs that the paper does not state. None: it follows from what the paper says.
    pub needs: Option<&'s str>,
}

fn needs(table: &Table) -> Result<Option<String>> {
    table.get("needs").map(|value| value.text().map(str::to_owned)).transpose()
}

impl Scenario {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|e| {
            format!(
                "{name}: cannot be read: {e}; give an existing file, or one of {}",
                super::builtin_names()
            )
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::parse(&name, &text, folder)
    }

    /// Reads a text; `folder` is where relative paths start.
    pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Self> {
        let source = Source { name: Some(name), text, folder, errors: None };
        let document = source.parse()?;
        let root = source.root(&document, ROOT)?;
        let base = base(&root, folder)?;
        let cases = cases(&root, &base)?;
        let strategies = strategies(&root)?;
        let mut scenario = Self {
            title: root.get("title").map_or(Ok(name), |v| v.text())?.to_owned(),
            seed: root.get("seed").map_or(Ok(1), |v| v.number(0, i64::MAX as u64))?,
            grain_ns: root.get("grain").map_or(Ok(GRAIN_NS), |v| v.time())?.max(1),
            faults: faults(&root, &cases)?,
            references: Vec::new(),
            ratios: Vec::new(),
            free: free::free(&root)?,
            cases,
            strategies,
        };
        scenario.read_references(&root)?;
        scenario.read_ratios(&root)?;
        Ok(scenario)
    }

    /// One of its runs.
    pub fn run(&self, case: usize, strategy: usize) -> Run {
        Run {
            cluster: self.cases[case].cluster.clone(),
            workload: self.cases[case].workload.clone(),
            strategy: self.strategies[strategy].clone(),
            faults: self.faults.clone(),
            seed: self.seed,
            grain_ns: self.grain_ns,
        }
    }

    fn read_references(&mut self, root: &Table) -> Result<()> {
        for table in root.tables("reference", REFERENCE)? {
            let mut seconds = Vec::new();
            for &(key, measure) in MEASURES {
                if let Some(value) = table.get(key) {
                    seconds.push((measure, value.fraction(SECONDS_MAX)?));
                }
            }
            if seconds.is_empty() {
                return Err(
                    table.error("write", "missing; add write, read, io, flush or total = SECONDS")
                );
            }
            let (case, strategy) = (self.case(&table)?, self.strategy(&table, "strategy")?);
            let determined = match table.get("determined") {
                Some(value) => {
                    let list = value.list()?;
                    list.iter().map(|value| value.one_of(MEASURES)).collect::<Result<_>>()?
                }
                None => Vec::new(),
            };
            let needs = needs(&table)?;
            self.references.push(Reference { case, strategy, seconds, determined, needs });
        }
        Ok(())
    }

    fn read_ratios(&mut self, root: &Table) -> Result<()> {
        for table in root.tables("ratio", RATIO)? {
            let measure =
                table.require("measure", "\"write\", \"read\", \"io\", \"flush\" or \"total\"")?;
            let paper = table.require("paper", "a number")?.fraction(RATIO_MAX)?;
            self.ratios.push(Ratio {
                case: self.case(&table)?,
                measure: measure.one_of(MEASURES)?,
                of: self.strategy(&table, "of")?,
                over: self.strategy(&table, "over")?,
                paper,
                needs: needs(&table)?,
            });
        }
        Ok(())
    }

    /// The numbers of the paper, in the scenario's order.
    pub fn numbers(&self) -> Vec<Number<'_>> {
        let seconds = self.references.iter().flat_map(|reference| {
            let Reference { case, strategy, ref seconds, ref determined, ref needs } = *reference;
            seconds.iter().filter(|(_, paper)| *paper > 0.0).map(move |&(measure, paper)| {
                let needs = needs.as_deref().filter(|_| !determined.contains(&measure));
                Number { case, measure, of: strategy, over: None, paper, needs }
            })
        });
        let ratios = self.ratios.iter().map(|ratio| {
            let Ratio { case, measure, of, over, paper, ref needs } = *ratio;
            Number { case, measure, of, over: Some(over), paper, needs: needs.as_deref() }
        });
        seconds.chain(ratios).collect()
    }

    fn case(&self, table: &Table) -> Result<usize> {
        let names: Vec<_> = { self.cases.iter().enumerate() }
            .map(|(index, case)| (case.name.as_str(), index))
            .collect();
        table.require("case", "the name of a case")?.one_of(&names)
    }

    fn strategy(&self, table: &Table, key: &str) -> Result<usize> {
        let names: Vec<_> = { self.strategies.iter().enumerate() }
            .map(|(index, strategy)| (strategy.name.as_str(), index))
            .collect();
        table.require(key, "the name of a strategy")?.one_of(&names)
    }
}
