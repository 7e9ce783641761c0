//! What a torture can be asked to do, and the options of the processes that do it.

use clap::{Args, ValueEnum};

/// What a torture does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Every ordered pair of operations on a file, with kills and pauses
    Pairs,
    /// Every transfer of the node manager to the store and the file tier failed, once and for ever
    BackendCalls,
    /// Every allocation of what all processes share refused, once and for ever
    Allocations,
    /// Each point at which processes can be stopped or killed, with a pause and with a kill there
    Points,
    /// The mixture on tiers that are full all the time
    FullTiers,
    /// Random operations and troubles, for a time or until goals are reached
    Mixture,
}

/// All, in the order in which a release does them.
pub const ALL: [Scenario; 6] = [
    Scenario::Pairs,
    Scenario::BackendCalls,
    Scenario::Allocations,
    Scenario::Points,
    Scenario::FullTiers,
    Scenario::Mixture,
];

impl Scenario {
    /// How users call it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Hidden options of the processes that play cases.
#[derive(Args, Clone)]
pub struct ListArguments {
    /// Play cases of this list
    #[arg(long)]
    pub list: Option<Scenario>,
    /// Their numbers
    #[arg(long, value_delimiter = ',')]
    pub cases: Vec<u64>,
    /// Be a program of the first of them: first, second, or both
    #[arg(long)]
    pub play: Option<String>,
    /// What names of its files begin with
    #[arg(long, default_value = "")]
    pub stem: String,
    /// Go on with this step
    #[arg(long)]
    pub from: Option<usize>,
    /// With these descriptors
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    pub slots: Vec<i32>,
}
