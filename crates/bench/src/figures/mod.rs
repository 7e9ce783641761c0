//! The paper's figures, one file each: which program with which arguments, which systems, and what
//! the paper says.

mod fig10;
mod fig11;
mod fig8;
mod fig9;

use crate::Scale;
use crate::systems::System;

/// A figure of the paper.
pub struct Figure {
    /// As on the command line.
    pub name: &'static str,
    /// As in tables and pictures.
    pub title: &'static str,
    /// The program: its name, and its source beside `kernel.h`.
    pub(crate) program: (&'static str, &'static str),
    /// Whether the files are scratch data, which need not be flushed.
    pub(crate) scratch: bool,
    /// What one of the paper's 32 nodes wrote, in GiB.
    pub(crate) paper_gib: u64,
    /// The groups of bars.
    pub(crate) cases: fn(Scale) -> Vec<Case>,
    /// The bars of each group.
    pub(crate) systems: &'static [&'static System],
    /// Systems of which the case changes nothing: measured in the first one only.
    pub(crate) steady: &'static [&'static str],
    /// What the paper says.
    pub(crate) claims: &'static [Claim],
}

/// What a program is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub name: &'static str,
    /// Processes.
    pub ranks: u64,
    /// Files that each writes one after the other.
    pub steps: u64,
    /// How much each writes in a step, in units of the program's: bytes or particles.
    pub amount: u64,
    /// Bytes of that unit.
    pub unit: u64,
    /// Bytes that only one rank writes in each step.
    pub header: u64,
    /// What comes after these on the command line: computing time in microseconds, or repetitions.
    pub last: u64,
}

impl Case {
    /// Bytes that are written altogether.
    pub fn bytes(&self) -> u64 {
        self.steps * (self.ranks * self.amount * self.unit + self.header)
    }

    /// The command line behind the directory.
    pub fn arguments(&self) -> [String; 4] {
        [self.ranks, self.steps, self.amount, self.last].map(|number| number.to_string())
    }
}

/// What is measured of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Write,
    Read,
    Flush,
    /// Writing and reading.
    Access,
    /// Writing, reading and flushing.
    Total,
}

impl Measure {
    pub fn name(self) -> &'static str {
        match self {
            Measure::Write => "write",
            Measure::Read => "read",
            Measure::Flush => "flush",
            Measure::Access => "write + read",
            Measure::Total => "write + read + flush",
        }
    }
}

/// A ratio that the paper gives.
pub(crate) struct Claim {
    pub measure: Measure,
    pub case: usize,
    /// The slower system.
    pub of: &'static str,
    /// The faster one.
    pub over: &'static str,
    pub paper: f64,
}

const NO_BUFFERING: &str = crate::systems::no_buffering::SYSTEM.name;
const DATA_ELEVATOR: &str = crate::systems::data_elevator::SYSTEM.name;
const DATAWARP: &str = crate::systems::datawarp::SYSTEM.name;
const MAX_BANDWIDTH: &str = crate::systems::forebay::MAX_BANDWIDTH.name;
const MAX_LOCALITY: &str = crate::systems::forebay::MAX_LOCALITY.name;
const HOT_DATA: &str = crate::systems::forebay::HOT_DATA.name;

const ALL: [&Figure; 4] = [&fig8::FIGURE, &fig9::FIGURE, &fig10::FIGURE, &fig11::FIGURE];

/// The names of all figures.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|figure| figure.name)
}

/// The figure of this name.
pub fn figure(name: &str) -> Option<&'static Figure> {
    ALL.into_iter().find(|figure| figure.name == name)
}
