//! Where in its file each value of a configuration was written, for errors that name the place.

/// Where the values that are checked against the machine were written.
#[derive(Default)]
pub(super) struct Places {
    pub backing: Vec<String>,
    pub tiers: Vec<TierPlaces>,
    /// The path of each rule, and its predictor.
    pub rules: Vec<String>,
    pub predictors: Vec<String>,
    /// `node.cores`.
    pub cores: String,
    /// What `[metrics]` has made, see [`super::metrics::PATHS`].
    pub metrics: [String; 2],
    /// `[group]`.
    pub group: String,
}

pub(super) struct TierPlaces {
    pub path: String,
    pub capacity: String,
}

impl TierPlaces {
    pub fn keys(tier: &str) -> Self {
        Self { path: format!("{tier}.path"), capacity: format!("{tier}.capacity") }
    }
}
