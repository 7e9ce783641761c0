//! The programs that rules name as predictors of what is read of their files.

use super::read_up_to;
use super::types::{Config, ConfigError, Result};
use super::variables::expand;
use forebay_sandbox::{MODULE_BYTES_MAX, Program};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Whether the programs of predictors have to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictors {
    /// Something is started that asks them.
    Needed,
    /// What is left is to come to the store, also where a predictor is gone meanwhile.
    NotNeeded,
}

/// Loads the program of a predictor, of which its user may have made anything.
///
/// # Errors
/// What is wrong with the file, and what to do about it; not its path.
pub fn load_predictor(path: &Path) -> std::result::Result<Program, String> {
    let unreadable = |error| format!("cannot be read: {error}; give an existing file");
    // To open a pipe would wait for its other end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is no regular file; give a WebAssembly module".to_owned());
    }
    let most = MODULE_BYTES_MAX as u64;
    let content = fs::File::open(path).and_then(|file| read_up_to(most, file));
    // What is longer is refused for that.
    let content = content.map_err(unreadable)?.unwrap_or_else(|| vec![0; MODULE_BYTES_MAX + 1]);
    Program::of(&content)
}

/// The absolute path that a rule's value means, of a file in `folder`; of a text that this program
/// wrote (`None`) the value itself.
///
/// # Errors
/// Why it is none.
pub(super) fn path_of(value: &str, folder: Option<&Path>) -> std::result::Result<String, String> {
    if value.is_empty() {
        return Err("is empty; give the path of a WebAssembly module".to_owned());
    }
    let Some(folder) = folder else { return Ok(value.to_owned()) };
    let path = expand(value, |name| std::env::var(name).ok())?;
    let path = std::path::absolute(folder.join(path)).map_err(|error| error.to_string())?;
    path.into_os_string()
        .into_string()
        .map_err(|path| format!("{} is not UTF-8; rename it", path.display()))
}

impl Config {
    /// Loads the predictors of these rules once, to see that they can be; `places` is where each is
    /// named.
    pub(super) fn check_predictors(&self, rules: Range<usize>, places: &[String]) -> Result<()> {
        let rules = self.rules[rules].iter().zip(places);
        for (rule, place) in rules.filter(|(rule, _)| !rule.predictor.is_empty()) {
            load_predictor(Path::new(&rule.predictor)).map_err(|problem| {
                ConfigError::new(place, format_args!("{}: {problem}", rule.predictor))
            })?;
        }
        Ok(())
    }
}
