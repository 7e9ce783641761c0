//! How much of a tier one run may have, or of what else is limited: a size, or a share.

use super::types::BUCKETS_MIN;
use super::units::{size, size_of};
use super::{Config, types::Tier};

/// Reads a quota of a tier of so many bytes.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(super) fn quota_of(text: &str, capacity: u64, bucket_size: u64) -> Result<u64, String> {
    limit_of(text, capacity, bucket_size, "quota")
}

/// Reads a limit of so many bytes, which people call `what`.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(super) fn limit_of(
    text: &str,
    capacity: u64,
    bucket_size: u64,
    what: &str,
) -> Result<u64, String> {
    let share = |number: &str| {
        let percent = number.trim().parse::<f64>().ok()?;
        let is_share = (0.0..=100.0).contains(&percent);
        is_share.then(|| (capacity as f64 * percent / 100.0) as u64)
    };
    let bytes = match text.trim().strip_suffix('%') {
        Some(number) => share(number),
        None => size_of(text),
    };
    let bytes =
        bytes.ok_or("cannot be read; give a size such as \"2GiB\", or a share such as \"50%\"")?;
    whole_limit(bytes, capacity, bucket_size, what)
}

/// A limit in whole buckets; 0 where it is all that there is.
///
/// # Errors
/// That it is too little to work with.
pub(super) fn whole_limit(
    bytes: u64,
    capacity: u64,
    bucket_size: u64,
    what: &str,
) -> Result<u64, String> {
    let least = BUCKETS_MIN * bucket_size;
    match bytes {
        bytes if bytes < least => Err(format!(
            "less than 16 buckets ({}); give at least {}, or no {what}",
            size(least),
            size(least)
        )),
        bytes if bytes >= capacity => Ok(0),
        bytes => Ok(bytes / bucket_size * bucket_size),
    }
}

impl Config {
    /// Reads what `forebay run --quota` was given, `TIER=SIZE` or `TIER=SHARE`, and checks it
    /// against the tiers. The tier's place, and bytes; 0 is all of it.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn quota(&self, given: &str) -> Result<(usize, u64), String> {
        let names = || {
            let names: Vec<_> = self.tiers.iter().map(|tier| tier.name.as_str()).collect();
            names.join(", ")
        };
        let wrong = |why: &str| format!("--quota {given}: {why}");
        let (name, amount) = given.split_once('=').ok_or_else(|| {
            wrong(&format!("give TIER=SIZE or TIER=SHARE, the tiers are {}", names()))
        })?;
        let is_named = |tier: &&Tier| tier.name == name;
        let place = self.tiers.iter().position(|tier| is_named(&tier)).ok_or_else(|| {
            wrong(&format!("there is no tier \"{name}\"; the tiers are {}", names()))
        })?;
        let capacity = self.tiers[place].capacity;
        let bytes = quota_of(amount, capacity, self.bucket_size()).map_err(|why| wrong(&why))?;
        Ok((place, bytes))
    }
}
