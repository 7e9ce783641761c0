//! Commands that run on files while these are in the tiers: `[[analysis]]`, and what
//! `forebay analyse` registers in the same words (docs/analyse.md).

use super::reader::{self, Table, Value};
use super::types::{Config, quoted};
use super::variables::expand;
use forebay_placement::glob;
use forebay_pool::program;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const KEYS: &[&str] = &[
    "name",
    "match",
    "on",
    "command",
    "timeout",
    "results",
    "drain",
    "may_drop",
    "result_max",
    "since",
];
/// Analyses of one node manager.
pub const ANALYSES_MAX: usize = 64;
/// Longest name in bytes: it is a part of names of files.
const NAME_MAX: usize = 63;
/// Words of a command, and bytes of each.
const WORDS_MAX: usize = 256;
const WORD_MAX: usize = 4096;
/// A week: longer than any job.
const TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// What a command that is not told otherwise may take, and may say.
pub(super) const TIMEOUT: Duration = Duration::from_secs(600);
pub(super) const RESULT_MAX: u64 = 1 << 30;

/// After what a command runs on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The last process that had it open for writing has closed it.
    Close,
    /// A program has finished a step of it: an fsync, `forebay_step`, or that close.
    Step,
}

/// When a file is drained on which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainWhen {
    /// At the same time.
    With,
    /// Afterwards, as long as there is room.
    After,
}

/// The names of [`On`] and [`DrainWhen`].
pub const ON: &[(&str, On)] = &[("close", On::Close), ("step", On::Step)];
/// See [`ON`].
pub const DRAIN: &[(&str, DrainWhen)] = &[("with", DrainWhen::With), ("after", DrainWhen::After)];

/// A command, and the files on which it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// What messages and names of results call it.
    pub name: String,
    /// Pattern of the files' paths, as the `path` of a rule is one.
    pub pattern: String,
    /// What starts it.
    pub on: On,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// What it is given before it is killed.
    pub timeout: Duration,
    /// The directory of results; none: that of the file.
    pub results: Option<PathBuf>,
    /// When the file is drained.
    pub drain: DrainWhen,
    /// Whether it may say that the file is not to be drained.
    pub may_drop: bool,
    /// Most bytes of a result.
    pub result_max: u64,
    /// Only files that were changed at this time or later, nanoseconds of CLOCK_REALTIME; 0: all.
    /// Of one that was registered while the node manager ran.
    pub since: u64,
}

impl Analysis {
    /// Whether the file at `path`, beneath the managed directory `store`, is meant.
    pub fn is_of(&self, path: &[u8], store: &[u8]) -> bool {
        let below = path.strip_prefix(store).and_then(|rest| rest.strip_prefix(b"/"));
        let name = if self.pattern.starts_with('/') { Some(path) } else { below };
        name.is_some_and(|name| glob::matches(self.pattern.as_bytes(), name))
    }

    /// Adds it to a text that [`Registered::of_text`] reads.
    ///
    /// [`Registered::of_text`]: super::Registered::of_text
    pub fn write(&self, text: &mut String) {
        let words: Vec<_> = self.command.iter().map(|word| quoted(word)).collect();
        let on = if self.on == On::Close { "close" } else { "step" };
        let drain = if self.drain == DrainWhen::With { "with" } else { "after" };
        let _ = write!(
            text,
            "[[analysis]]\nname = {}\nmatch = {}\non = \"{on}\"\ncommand = [{}]\n\
             timeout = \"{}ns\"\ndrain = \"{drain}\"\nmay_drop = {}\nresult_max = {}\nsince = {}\n",
            quoted(&self.name),
            quoted(&self.pattern),
            words.join(", "),
            self.timeout.as_nanos(),
            self.may_drop,
            self.result_max,
            self.since
        );
        if let Some(results) = &self.results {
            let _ = writeln!(text, "results = {}", quoted(&results.to_string_lossy()));
        }
    }
}

/// Those of `[[analysis]]`.
pub(super) fn read(root: &Table<'_>) -> reader::Result<Vec<Analysis>> {
    let sections = root.tables("analysis", KEYS)?;
    if let Some(more) = sections.get(ANALYSES_MAX) {
        return Err(more.error("name", format_args!("give at most {ANALYSES_MAX} analyses")));
    }
    let mut all: Vec<Analysis> = Vec::new();
    for section in &sections {
        let one = section.analysis()?;
        if all.iter().any(|other| other.name == one.name) {
            let problem =
                format_args!("\"{}\" is the name of another one; give each its own", one.name);
            return Err(section.error("name", problem));
        }
        all.push(one);
    }
    Ok(all)
}

impl Table<'_> {
    fn analysis(&self) -> reader::Result<Analysis> {
        let is_written = self.source.name.is_none();
        let command = self.require("command", "[\"program\", \"{file}\"]")?;
        let words = command.words()?;
        let words = match is_written {
            true => words,
            false => command.resolved(words)?,
        };
        let name = match self.get("name") {
            Some(name) => name.name_of_analysis()?,
            None => {
                let program = Path::new(&words[0]).file_name().unwrap_or_default();
                let usual = |c: char| if is_in_names(c) { c } else { '-' };
                let name: String = program.to_string_lossy().chars().map(usual).collect();
                name.trim_start_matches(['.', '-']).chars().take(NAME_MAX).collect()
            }
        };
        if name.is_empty() {
            return Err(self.error("name", "missing; add name = \"...\" (what results are called)"));
        }
        let pattern = self.require("match", "\"*.h5\" (which files)")?;
        let pattern = pattern.pattern()?;
        let timeout = match self.get("timeout") {
            Some(value) => {
                let given = Duration::from_nanos(value.duration_ns("10min")?);
                if given.is_zero() || given > TIMEOUT_MAX {
                    return Err(value.error("is out of range; give a time from 1ms to 10080min"));
                }
                given
            }
            None => TIMEOUT,
        };
        let drain = self.get("drain").map_or(Ok(DrainWhen::With), |value| value.one_of(DRAIN))?;
        let may_drop = self.get("may_drop").map_or(Ok(false), |value| value.boolean())?;
        if let (true, DrainWhen::With, Some(given)) = (may_drop, drain, self.get("may_drop")) {
            return Err(given.error(
                "needs drain = \"after\": what was drained meanwhile could not be dropped; add it",
            ));
        }
        let results = self.get("results").map(|value| value.path()).transpose()?;
        let result_max = match self.get("result_max") {
            Some(value) => value.bytes("", "a size such as \"1GiB\"")?,
            None => RESULT_MAX,
        };
        Ok(Analysis {
            name,
            pattern,
            on: self.get("on").map_or(Ok(On::Close), |value| value.one_of(ON))?,
            command: words,
            timeout,
            results,
            drain,
            may_drop,
            result_max,
            since: self.get("since").map_or(Ok(0), |value| value.nanoseconds())?,
        })
    }
}

fn is_in_names(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

impl Value<'_> {
    /// A command: a list of words, or a text that a shell reads.
    fn words(&self) -> reader::Result<Vec<String>> {
        let words: Vec<String> = match self.value.as_str() {
            Some(_) => {
                let text = self.text()?.to_owned();
                if text.contains("{file}") {
                    return Err(self.error(
                        "is a text for a shell, which would read the file's name as a part of it; \
                         write \"$FOREBAY_FILE\" there, or give a list of words",
                    ));
                }
                vec!["/bin/sh".to_owned(), "-c".to_owned(), text]
            }
            None => {
                let items = self.list()?;
                let word = |item: &Value<'_>| match item.value.as_str() {
                    Some(word) => Ok(word.to_owned()),
                    None => Err(item.error("must be a text in quotes")),
                };
                items.iter().map(word).collect::<reader::Result<_>>()?
            }
        };
        let is_long = |word: &String| word.len() > WORD_MAX || word.contains('\0');
        match words.first() {
            None => Err(self.error("is empty; give a program and its arguments")),
            Some(first) if first.trim().is_empty() => {
                Err(self.error("names no program; give one, and its arguments"))
            }
            _ if words.len() > WORDS_MAX || words.iter().any(is_long) => Err(self.error(
                format_args!("is too long; give at most {WORDS_MAX} words of {WORD_MAX} bytes"),
            )),
            _ => Ok(words),
        }
    }

    /// The same with the program's own path, so that it does not depend on where a node manager is
    /// started: a name without `/` is looked for as a shell does.
    fn resolved(&self, mut words: Vec<String>) -> reader::Result<Vec<String>> {
        let given = expand(&words[0], |name| std::env::var(name).ok())
            .map_err(|problem| self.error(problem))?;
        let found = program::find(&given, self.source.folder).map_err(|why| self.error(why))?;
        words[0] = found;
        Ok(words)
    }

    pub(super) fn name_of_analysis(&self) -> reader::Result<String> {
        let name = self.text()?;
        let is_good = name.len() <= NAME_MAX
            && name.chars().all(is_in_names)
            && !name.starts_with(['.', '-']);
        if !is_good {
            return Err(self.error(format_args!(
                "\"{name}\" cannot be a part of a file's name; give up to {NAME_MAX} of a-z, A-Z, 0-9, \
                 \"-\", \"_\" and \".\""
            )));
        }
        Ok(name.to_owned())
    }

    pub(super) fn pattern(&self) -> reader::Result<String> {
        let pattern = self.text()?;
        if pattern.len() > glob::PATTERN_MAX {
            return Err(self.error(format_args!("is longer than {} bytes", glob::PATTERN_MAX)));
        }
        if pattern.split('/').any(|name| name == "." || name == "..") {
            return Err(
                self.error("has \".\" or \"..\" in it, which no canonical path has; remove it")
            );
        }
        glob::check(pattern.as_bytes()).map_err(|problem| self.error(problem))?;
        Ok(pattern.to_owned())
    }

    /// A time as this program writes it.
    pub(super) fn nanoseconds(&self) -> reader::Result<u64> {
        self.number(0, u64::MAX >> 1)
    }
}

impl Config {
    /// What is said of analyses, as part of the canonical text. They are no part of the instance's
    /// identity: they change no byte of it.
    pub(super) fn write_analyses(&self, text: &mut String) {
        self.analyses.iter().for_each(|analysis| analysis.write(text));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Registered;
    use super::*;

    fn of_text(text: &str, name: Option<&str>) -> Result<Vec<Analysis>, String> {
        Registered::of_text(text, name, Path::new("/")).map(|read| read.analyses)
    }

    fn read(text: &str) -> Result<Vec<Analysis>, String> {
        of_text(text, Some("case.toml"))
    }

    #[test]
    fn what_is_read_is_written_and_read_again() {
        let text = "[[analysis]]\nmatch = \"out.*\"\ncommand = \"wc -c $FOREBAY_FILE\"\n\
            [[analysis]]\nname = \"index\"\nmatch = \"/x/**/*.h5\"\non = \"step\"\n\
            command = [\"bin/sh\", \"-c\", \"true\"]\ntimeout = \"2s\"\nresults = \"found\"\n\
            drain = \"after\"\nmay_drop = true\nresult_max = \"1MiB\"\n";
        let all = read(text).unwrap();
        assert_eq!(all[0].name, "sh");
        assert_eq!(all[0].command, ["/bin/sh", "-c", "wc -c $FOREBAY_FILE"]);
        assert_eq!((all[0].on, all[0].drain, all[0].may_drop), (On::Close, DrainWhen::With, false));
        assert_eq!(all[1].command[0], "/bin/sh");
        assert_eq!(all[1].results.as_deref(), Some(Path::new("/found")));
        assert_eq!((all[1].timeout, all[1].result_max), (Duration::from_secs(2), 1 << 20));
        let mut written = String::new();
        all.iter().for_each(|analysis| analysis.write(&mut written));
        assert_eq!(of_text(&written, None).unwrap(), all);
        assert!(
            all[0].is_of(b"/store/out.7", b"/store") && !all[0].is_of(b"/other/out.7", b"/store")
        );
        assert!(all[1].is_of(b"/x/y/z.h5", b"/x"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |keys: &str| {
            read(&format!("[[analysis]]\nmatch = \"*\"\ncommand = [\"sh\"]\n{keys}\n")).unwrap_err()
        };
        for (keys, said) in [
            ("may_drop = true", "needs drain = \"after\""),
            ("on = \"open\"", "\"open\" is unknown"),
            ("name = \"a/b\"", "cannot be a part of a file's name"),
            ("timeout = \"0s\"", "out of range"),
            ("wait = true", "unknown key"),
        ] {
            assert!(with(keys).contains(said), "{keys}: {}", with(keys));
        }
        for (command, said) in [
            ("[]", "is empty"),
            ("[\"no-such-program-here\"]", "no program \"no-such-program-here\" in PATH"),
            ("[\"/no/such\"]", "no such file"),
            ("[1]", "must be a text"),
            ("\"wc {file}\"", "write \"$FOREBAY_FILE\" there"),
        ] {
            let wrong = read(&format!("[[analysis]]\nmatch = \"*\"\ncommand = {command}\n"));
            assert!(wrong.as_ref().unwrap_err().contains(said), "{wrong:?}");
        }
        let twice = "[[analysis]]\nmatch = \"*\"\ncommand = [\"sh\"]\n".repeat(2);
        assert!(read(&twice).unwrap_err().contains("the name of another one"));
    }
}
