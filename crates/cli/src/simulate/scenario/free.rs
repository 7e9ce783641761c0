//! Free parameters: values of a scenario that the paper does not state, and others to try.

use super::Scenario;
use super::strategies::exposed;
use forebay_node::config::reader::{Result, Table, Value};
use forebay_placement::exposure::Exposed;
use forebay_simulator::{ReadFrom, Tiers, Trigger, Workload};

const FREE: &[&str] = &["parameter", "values", "fitted", "why"];
const DEPTH_MAX: u32 = 4096;
const FACTOR_MAX: f64 = 1000.0;

/// What may be tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameter {
    Capacity,
    Flush,
    Store,
    QueueDepth,
    Exposed,
    Compute,
    Period,
    ReadFrom,
}

const PARAMETERS: &[(&str, Parameter)] = &[
    ("capacity", Parameter::Capacity),
    ("flush", Parameter::Flush),
    ("store", Parameter::Store),
    ("queue_depth", Parameter::QueueDepth),
    ("exposed", Parameter::Exposed),
    ("compute", Parameter::Compute),
    ("period", Parameter::Period),
    ("read_from", Parameter::ReadFrom),
];

/// A value to try.
#[derive(Clone, Copy, PartialEq)]
enum Setting {
    /// Bytes of each tier of a node.
    Capacity(u64),
    /// Bytes per second that a server of the store takes of a flush.
    Flush(u64),
    /// Bytes per second that a server of the store takes of programs.
    Store(u64),
    /// Requests of each of Forebay's movers.
    QueueDepth(u32),
    /// The share of a move that counts as waiting.
    Exposed(Exposed),
    /// How many times as long is computed.
    Compute(f64),
    /// Nanoseconds between flushes.
    Period(u64),
    /// What is read.
    ReadFrom(ReadFrom),
}

/// A value that the paper does not state.
#[derive(Clone)]
pub(crate) struct Free {
    pub name: &'static str,
    /// Whether the value was chosen so that the paper's numbers come out.
    pub is_fitted: bool,
    /// Where the value comes from.
    pub why: String,
    tries: Vec<(String, Setting)>,
}

impl Free {
    /// The values to try, as they are written.
    pub fn tries(&self) -> impl Iterator<Item = &str> {
        self.tries.iter().map(|(text, _)| text.as_str())
    }

    /// Whether the scenario has this value.
    pub fn is_in_force(&self, scenario: &Scenario, number: usize) -> bool {
        self.tries[number].1.is_in_force(scenario)
    }

    /// Gives the scenario this value.
    pub fn apply(&self, scenario: &mut Scenario, number: usize) {
        self.tries[number].1.apply(scenario);
    }
}

impl Setting {
    fn read(parameter: Parameter, value: &Value<'_>) -> Result<(String, Self)> {
        const READ_FROM: &[(&str, (&str, ReadFrom))] = &[
            ("phase", ("phase", ReadFrom::Phase)),
            ("own", ("own", ReadFrom::Own)),
            ("any", ("any", ReadFrom::Any)),
        ];
        let text = |value: &Value<'_>| value.text().map(str::to_owned);
        Ok(match parameter {
            Parameter::Capacity => (text(value)?, Self::Capacity(value.size()?)),
            Parameter::Flush => (text(value)?, Self::Flush(value.bandwidth()?)),
            Parameter::Store => (text(value)?, Self::Store(value.bandwidth()?.max(1))),
            Parameter::Period => (text(value)?, Self::Period(value.time()?.max(1))),
            Parameter::QueueDepth => {
                let depth = value.count(1, DEPTH_MAX)?;
                (depth.to_string(), Self::QueueDepth(depth))
            }
            Parameter::Exposed => {
                let exposed = exposed(value)?;
                let text = match exposed {
                    Exposed::Measured => Exposed::MEASURED.to_owned(),
                    Exposed::Fixed(permille) => (f64::from(permille) / 1000.0).to_string(),
                };
                (text, Self::Exposed(exposed))
            }
            Parameter::Compute => {
                let factor = value.fraction(FACTOR_MAX)?;
                (format!("x {factor}"), Self::Compute(factor))
            }
            Parameter::ReadFrom => {
                let (name, from) = value.one_of(READ_FROM)?;
                (name.to_owned(), Self::ReadFrom(from))
            }
        })
    }

    fn is_in_force(self, scenario: &Scenario) -> bool {
        let clusters = || scenario.cases.iter().map(|case| &case.cluster);
        let forebay = || scenario.strategies.iter().filter(|of| of.tiers == Tiers::All);
        match self {
            Self::Capacity(bytes) => clusters()
                .flat_map(|cluster| cluster.tiers.iter().filter(|tier| !tier.shared))
                .all(|tier| tier.capacity == bytes),
            Self::Flush(rate) => clusters().all(|cluster| {
                let store = &cluster.store;
                let programs = store.device.write_bandwidth;
                rate == if store.flush_bandwidth == 0 { programs } else { store.flush_bandwidth }
            }),
            Self::Store(rate) => {
                clusters().all(|cluster| cluster.store.device.write_bandwidth == rate)
            }
            Self::QueueDepth(depth) => forebay().all(|of| of.queue_depth == depth),
            Self::Exposed(exposed) => forebay().all(|of| of.exposed == exposed),
            Self::Compute(factor) => factor == 1.0,
            Self::Period(ns) => forebay().all(|of| match of.trigger {
                Trigger::Periodic(period_ns) => period_ns == ns,
                _ => true,
            }),
            Self::ReadFrom(from) => scenario.cases.iter().all(|case| match &case.workload {
                Workload::Phases(phases) => phases.read_from == from,
                Workload::Trace(_) => true,
            }),
        }
    }

    fn apply(self, scenario: &mut Scenario) {
        for case in &mut scenario.cases {
            match (self, &mut case.workload) {
                (Self::Capacity(bytes), _) => {
                    let tiers = case.cluster.tiers.iter_mut().filter(|tier| !tier.shared);
                    tiers.for_each(|tier| tier.capacity = bytes);
                }
                (Self::Flush(rate), _) => case.cluster.store.flush_bandwidth = rate,
                (Self::Store(rate), _) => case.cluster.store.device.write_bandwidth = rate,
                (Self::Compute(factor), Workload::Phases(phases)) => {
                    phases.compute_ns = (phases.compute_ns as f64 * factor) as u64;
                }
                (Self::ReadFrom(from), Workload::Phases(phases)) => phases.read_from = from,
                _ => {}
            }
        }
        for strategy in scenario.strategies.iter_mut().filter(|of| of.tiers == Tiers::All) {
            match (self, &mut strategy.trigger) {
                (Self::QueueDepth(depth), _) => strategy.queue_depth = depth,
                (Self::Exposed(exposed), _) => strategy.exposed = exposed,
                (Self::Period(ns), Trigger::Periodic(period_ns)) => *period_ns = ns,
                _ => {}
            }
        }
    }
}

/// Reads the scenario's `[[free]]`.
pub(super) fn free(root: &Table) -> Result<Vec<Free>> {
    let mut all = Vec::new();
    for table in root.tables("free", FREE)? {
        let name = table.require("parameter", "\"capacity\"")?;
        let parameter = name.one_of(PARAMETERS)?;
        let known = PARAMETERS.iter().find(|(_, of)| *of == parameter);
        let values = table.require("values", "a list of values to try")?;
        let list = values.list()?;
        let read = |value| Setting::read(parameter, value);
        let tries: Vec<_> = list.iter().map(read).collect::<Result<_>>()?;
        if tries.is_empty() {
            return Err(values.error("is empty; give values to try"));
        }
        all.push(Free {
            name: known.map_or("", |(name, _)| name),
            is_fitted: table.get("fitted").map_or(Ok(false), |value| value.boolean())?,
            why: table.require("why", "where the value comes from")?.text()?.to_owned(),
            tries,
        });
    }
    Ok(all)
}
