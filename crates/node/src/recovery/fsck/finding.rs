//! Findings of one line.

use forebay_pool::check::{Finding, Remedy};
use std::fmt;

pub(super) fn refused(place: impl fmt::Display, what: impl fmt::Display) -> Finding {
    Finding { place: place.to_string(), what: what.to_string(), remedy: Remedy::Refused }
}

pub(super) fn repaired(place: impl fmt::Display, what: impl fmt::Display) -> Finding {
    Finding { place: place.to_string(), what: what.to_string(), remedy: Remedy::Repaired }
}
