//! What a figure shows: a group of bars for each case, a bar for each system.

/// What stands on a picture of a run that only shows that everything works.
pub(crate) const MEANINGLESS: &str =
    "SMALL SCALE: only whether it works. These numbers mean nothing.";

/// A bar chart.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Its heading.
    pub title: String,
    /// What stands below its axis.
    pub unit: &'static str,
    /// What stacked bars consist of; empty where bars have one part.
    pub parts: Vec<&'static str>,
    /// Its bars.
    pub groups: Vec<Group>,
    /// What stands below: machine, rounds, and whether it means anything.
    pub notes: Vec<String>,
}

/// Bars with one heading.
#[derive(Clone, Debug)]
pub struct Group {
    /// The heading.
    pub name: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar; its parts stand one behind the other.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it stands for.
    pub name: String,
    /// The lengths of its parts.
    pub parts: Vec<f64>,
    /// Least and most of the whole length, in all rounds.
    pub spread: (f64, f64),
    /// Where each ratio that a paper gives would end what it compares.
    pub marks: Vec<f64>,
}
