//! All errors of a configuration, met in one reading.

use super::types::{ConfigError, Result};
use std::cell::RefCell;
use std::fmt::Display;

/// Errors that were met while reading went on.
#[derive(Debug, Default)]
pub struct Errors(RefCell<Vec<String>>);

impl Errors {
    /// Notes an error.
    pub fn note(&self, error: impl Display) {
        self.0.borrow_mut().push(error.to_string());
    }

    /// What was read; notes the error if nothing was.
    pub fn ok<T>(&self, read: std::result::Result<T, impl Display>) -> Option<T> {
        read.map_err(|error| self.note(error)).ok()
    }

    /// What was read, or `otherwise` with the error noted.
    pub fn or<T>(&self, read: std::result::Result<T, impl Display>, otherwise: T) -> T {
        self.ok(read).unwrap_or(otherwise)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// # Errors
    /// All that were noted, one on each line.
    pub fn end(self) -> Result<()> {
        match self.0.into_inner() {
            none if none.is_empty() => Ok(()),
            some => Err(ConfigError::from(some.join("\n"))),
        }
    }

    /// All that were noted, and the one that has ended the reading.
    pub fn with(self, last: impl Display) -> ConfigError {
        self.note(last);
        ConfigError::from(self.0.into_inner().join("\n"))
    }
}
