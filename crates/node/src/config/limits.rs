//! What of a run's files the store may lack, and for how long: keys of the table `[run]`. What all
//! runs together may have is `max_unsafe` of `[flush]`.

use super::Config;
use super::errors::Errors;
use super::quota::limit_of;
use super::reader::{self, Table, Value};
use super::units::time_of;
use std::time::Duration;

/// The shortest age that can be kept, and the longest.
const AGE_MIN: Duration = Duration::from_millis(100);
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Limits of a run that says nothing itself. They do not belong to the identity of the instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// Bytes of its files that the tiers may have and the store may lack; 0 is no limit.
    pub max_unsafe: u64,
    /// For how long it may lack any of them; zero is no limit.
    pub max_age: Duration,
}

/// Reads for how long the store may lack what a run has written.
fn age_of(text: &str) -> Result<Duration, String> {
    let age = time_of(text)
        .map(Duration::from_nanos)
        .ok_or("cannot be read; give a time such as \"60s\", in ns, us, ms, s or min")?;
    match (AGE_MIN..=AGE_MAX).contains(&age) {
        true => Ok(age),
        false => Err("is out of range; give a time from 100ms to 1440min".to_owned()),
    }
}

impl Config {
    /// Bytes of all tiers together.
    pub fn capacity(&self) -> u64 {
        self.tiers.iter().fold(0, |sum, tier| sum.saturating_add(tier.capacity))
    }

    /// Reads what `forebay run --max-unsafe` was given, a size or a share of all tiers together.
    /// 0 is no limit.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn max_unsafe(&self, given: &str) -> Result<u64, String> {
        limit_of(given, self.capacity(), self.bucket_size(), "limit")
            .map_err(|why| format!("--max-unsafe {given}: {why}"))
    }

    /// Reads what `forebay run --max-age` was given.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn max_age(given: &str) -> Result<Duration, String> {
        age_of(given).map_err(|why| format!("--max-age {given}: {why}"))
    }

    /// What is said of runs, as lines of the table `[run]`.
    pub(super) fn run_limits(&self) -> impl Iterator<Item = String> {
        let RunLimits { max_unsafe, max_age } = self.run;
        let cap = (max_unsafe > 0).then(|| format!("max_unsafe = {max_unsafe}"));
        let age = (!max_age.is_zero()).then(|| format!("max_age = \"{}ns\"", max_age.as_nanos()));
        cap.into_iter().chain(age)
    }
}

impl Table<'_> {
    /// The limits of the tables `[flush]`, which comes first, and `[run]`, in tiers of so many
    /// bytes together.
    pub(super) fn limits(&self, all: u64, bucket_size: u64, errors: &Errors) -> (u64, RunLimits) {
        let cap = |section: &str| match self.within(section, "max_unsafe") {
            Some(value) => errors.or(value.limit(all, bucket_size, "limit"), 0),
            None => 0,
        };
        let age = |value: Value<'_>| errors.or(value.age(), Duration::ZERO);
        let max_age = self.within("run", "max_age").map_or(Duration::ZERO, age);
        (cap("flush"), RunLimits { max_unsafe: cap("run"), max_age })
    }
}

impl Value<'_> {
    fn age(&self) -> reader::Result<Duration> {
        let text = self.value.as_str().ok_or_else(|| self.wrong_type("a time such as \"60s\""))?;
        age_of(text).map_err(|why| self.error(format_args!("\"{text}\" {why}")))
    }
}
