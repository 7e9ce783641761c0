//! Why a program is not asked any more.

use std::fmt;
use std::io;

/// What kind of thing a program did; its code is what `pool` keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultKind {
    /// It cannot be loaded, or its memory cannot be had.
    NotLoaded = 1,
    /// It trapped: `unreachable`, a division by zero, memory that it does not have.
    Trapped = 2,
    /// A call took more than [`crate::FUEL_MAX`] instructions.
    TooLong = 3,
    /// Its functions called each other more than [`crate::DEPTH_MAX`] deep.
    TooDeep = 4,
    /// It expected what the file does not have, or more than [`crate::EXPECTED_MAX`] blocks.
    Nonsense = 5,
}

impl FaultKind {
    /// All kinds, by code.
    pub const ALL: [FaultKind; 5] = [
        FaultKind::NotLoaded,
        FaultKind::Trapped,
        FaultKind::TooLong,
        FaultKind::TooDeep,
        FaultKind::Nonsense,
    ];

    /// The kind of a code that `as u8` gave.
    pub fn from_code(code: u8) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|&kind| kind as u8 == code)
    }

    /// What the program did, for people.
    pub fn describe(self) -> &'static str {
        match self {
            FaultKind::NotLoaded => "cannot be loaded",
            FaultKind::Trapped => "trapped",
            FaultKind::TooLong => "ran for more than 100000 instructions in one call",
            FaultKind::TooDeep => "called its functions more than 256 deep",
            FaultKind::Nonsense => "expected blocks that cannot be read",
        }
    }
}

/// What a program did, for which it is not asked any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which kind of thing.
    pub kind: FaultKind,
    /// More of it, for its author; may be empty.
    pub detail: String,
}

impl Fault {
    /// A fault with what is known of it besides.
    pub fn new(kind: FaultKind, detail: impl Into<String>) -> Fault {
        Fault { kind, detail: detail.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.describe())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

impl std::error::Error for Fault {}

/// Why a function did not come to its end.
#[derive(Debug)]
pub enum Stop {
    /// What it did, or said, for people.
    Fault(String),
    /// Its input could not be read.
    Read(io::Error),
    /// Its output could not be written.
    Write(io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_from_their_codes_and_name_the_limits() {
        for kind in FaultKind::ALL {
            assert_eq!(FaultKind::from_code(kind as u8), Some(kind));
        }
        assert_eq!(FaultKind::from_code(0), None);
        let limit = crate::FUEL_MAX.to_string();
        assert!(FaultKind::TooLong.describe().contains(&limit));
        let limit = crate::DEPTH_MAX.to_string();
        assert!(FaultKind::TooDeep.describe().contains(&limit));
    }
}
