//! What a figure shows: a group of bars for each case, a bar for each system.

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
}
