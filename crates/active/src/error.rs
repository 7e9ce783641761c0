//! Why an operation did not do what it was asked for.

use std::fmt;
use std::io;

/// Why an operation, or the reading of what one has encoded, failed. No text names the file: the
/// caller knows its name.
#[derive(Debug)]
pub enum Error {
    /// A read or write failed; what was being done.
    Io(&'static str, io::Error),
    /// The data does not fit the operation: what does not, and what to do about it.
    Unfit(String),
    /// An option has a value that cannot be.
    Option(String),
    /// It is not in an encoded form that is known here.
    NotEncoded(String),
    /// It is encoded, and its bytes are not what was written: it was cut short, or changed.
    Damaged(String),
    /// A function of the user's failed, or did what it must not.
    Function(String),
}

/// What an operation comes to.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error of the operating system, where there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Error::Io(_, error) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Error {
        Error::Damaged(what.into())
    }
}

/// For `map_err`: a failed read or write, with what was being done.
pub(crate) fn doing(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Io(what, error)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(doing, error) => write!(f, "cannot {doing}: {error}"),
            Error::Unfit(what) | Error::Option(what) | Error::Function(what) => f.write_str(what),
            Error::NotEncoded(what) => write!(f, "is not encoded by Forebay: {what}"),
            Error::Damaged(what) => write!(f, "is damaged: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.io().map(|error| error as _)
    }
}
