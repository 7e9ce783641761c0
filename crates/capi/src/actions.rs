//! Commands and operations that run on files while these are in the tiers: what
//! `forebay_analyse`, `forebay_operate` and the functions `forebay_action...` of the header are for
//! programs of C, and for those of Rust:
//!
//! ```
//! use forebay_capi::actions::{Analysis, names};
//!
//! let index = Analysis::new("out/*.h5", ["h5dump", "-H", "{file}"]).name("index");
//! match index.register() {
//!     Ok(()) => assert!(names()?.iter().any(|name| name == "index")),
//!     Err(why) => eprintln!("{why}"), // not under `forebay run`, for one
//! }
//! # Ok::<(), forebay_capi::actions::Error>(())
//! ```
//!
//! What is asked is a text, in the words of a configuration; the node manager reads and checks it,
//! as that of `forebay analyse`. Only what depends on this process is made out here: where a
//! program is, and where relative paths start.

mod exported;

pub use crate::records::Error;

use crate::not_running;
use crate::report::{fail, failed};
use crate::session::services;
use core::ffi::c_int;
use forebay_client::services::NOT_MANAGED;
use forebay_client::{program, realtime_coarse_ns};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Room for an answer: the names of all, or what there is to know of one.
const ANSWER: usize = 64 << 10;

/// A command that is to run on files.
#[derive(Clone, Debug)]
pub struct Analysis {
    said: Section,
    words: Vec<String>,
}

/// An operation that is to be done on files.
#[derive(Clone, Debug)]
pub struct Operation(Section);

/// What there is to know of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// An operation, and no analysis.
    pub is_operation: bool,
    /// It stands in the configuration, and cannot be removed.
    pub is_configured: bool,
    /// Pattern of the files.
    pub pattern: String,
    /// Runs that have not begun.
    pub waiting: u64,
    /// Runs that have.
    pub running: u64,
    /// Runs that have ended as they should, of those that the node manager remembers.
    pub done: u64,
    /// Runs that have not, of those.
    pub failed: u64,
    /// What became of the last one that has failed; empty if none has.
    pub failure: String,
}

impl Analysis {
    /// Runs `command` on files of this pattern. The first word is the program: in PATH, or from
    /// the working directory on if it has a `/`; `{file}`, `{step}` and `{name}` in the others
    /// stand for what they say.
    pub fn new<W: Into<String>>(pattern: &str, command: impl IntoIterator<Item = W>) -> Analysis {
        let words = command.into_iter().map(Into::into).collect();
        Analysis { said: Section::of("analysis").text("match", pattern), words }
    }

    fn say(mut self, add: impl FnOnce(Section) -> Section) -> Analysis {
        self.said = add(self.said);
        self
    }

    /// What messages and results call it, in place of the program's name.
    pub fn name(self, name: &str) -> Analysis {
        self.say(|said| said.text("name", name))
    }

    /// It runs after each step of a file, and not only after its close.
    pub fn after_each_step(self) -> Analysis {
        self.say(|said| said.text("on", "step"))
    }

    /// Staged files are drained when it has ended, and not meanwhile.
    pub fn before_the_drain(self) -> Analysis {
        self.say(|said| said.text("drain", "after"))
    }

    /// It may say that a file is removed instead of being drained.
    pub fn may_drop(self) -> Analysis {
        self.say(|said| said.plain("may_drop", true))
    }

    /// What the command may take before it is killed.
    pub fn timeout(self, timeout: Duration) -> Analysis {
        self.say(|said| said.time("timeout", timeout.as_millis()))
    }

    /// The directory of the results, in place of that of the file.
    pub fn results(self, folder: impl AsRef<Path>) -> Analysis {
        self.say(|said| said.path("results", folder.as_ref()))
    }

    /// Most bytes of a result.
    pub fn result_max(self, bytes: u64) -> Analysis {
        self.say(|said| said.plain("result_max", bytes))
    }

    /// Registers it with the node manager of this process. It holds until it is removed, or that
    /// manager ends, which may be later than this process.
    ///
    /// # Errors
    /// As of `forebay_analyse` in the header.
    pub fn register(&self) -> Result<(), Error> {
        self.ask().map_err(Error::last)
    }

    fn ask(&self) -> Result<(), c_int> {
        const FUNCTION: &str = "forebay_analyse";
        if services().is_none() {
            return Err(not_running(FUNCTION));
        }
        let mut words = self.words.clone();
        if let Some(first) = words.first_mut().filter(|first| !first.trim().is_empty()) {
            *first = program::find(first, Path::new(""))
                .map_err(|why| fail(-libc::ENOENT, format_args!("{FUNCTION}(): command: {why}")))?;
        }
        self.said.clone().words("command", &words).register(FUNCTION)
    }
}

impl Operation {
    /// Does `operation`, one of docs/active.md, on files of this pattern.
    pub fn new(pattern: &str, operation: &str) -> Operation {
        Operation(Section::of("active").text("match", pattern).text("operation", operation))
    }

    /// What messages call it, in place of the operation's name.
    pub fn name(self, name: &str) -> Operation {
        Operation(self.0.text("name", name))
    }

    /// An option of the operation: `record`, `key`, `codec` and others.
    pub fn option(self, option: &str, value: &str) -> Operation {
        Operation(self.0.text(option, value))
    }

    /// Staged files are drained when it has ended, and not meanwhile.
    pub fn before_the_drain(self) -> Operation {
        Operation(self.0.text("drain", "after"))
    }

    /// The encoded form takes the place of the file on the store.
    pub fn replace(self) -> Operation {
        Operation(self.0.plain("replace", true))
    }

    /// What it may take before it is killed.
    pub fn timeout(self, timeout: Duration) -> Operation {
        Operation(self.0.time("timeout", timeout.as_millis()))
    }

    /// How long it waits for idle CPU.
    pub fn patience(self, patience: Duration) -> Operation {
        Operation(self.0.time("patience", patience.as_millis()))
    }

    /// The directory of the results, in place of that of the file.
    pub fn results(self, folder: impl AsRef<Path>) -> Operation {
        Operation(self.0.path("results", folder.as_ref()))
    }

    /// What the name of a result ends with.
    pub fn suffix(self, suffix: &str) -> Operation {
        Operation(self.0.text("suffix", suffix))
    }

    /// Where a sort makes files without a name.
    pub fn scratch(self, folder: impl AsRef<Path>) -> Operation {
        Operation(self.0.path("scratch", folder.as_ref()))
    }

    /// Most bytes of a result.
    pub fn result_max(self, bytes: u64) -> Operation {
        Operation(self.0.plain("result_max", bytes))
    }

    /// Registers it, as [`Analysis::register`].
    ///
    /// # Errors
    /// As of `forebay_operate` in the header.
    pub fn register(&self) -> Result<(), Error> {
        self.ask().map_err(Error::last)
    }

    fn ask(&self) -> Result<(), c_int> {
        self.0.clone().register("forebay_operate")
    }
}

/// Removes an action that was registered. What it runs on now ends by itself.
///
/// # Errors
/// As of `forebay_action_remove` in the header.
pub fn remove(name: &str) -> Result<(), Error> {
    removed(name).map_err(Error::last)
}

/// The names of all actions of the node manager, those of its configuration first.
///
/// # Errors
/// As of `forebay_actions` in the header.
pub fn names() -> Result<Vec<String>, Error> {
    all_names().map_err(Error::last)
}

/// What there is to know of the action of this name.
///
/// # Errors
/// As of `forebay_action` in the header.
pub fn show(name: &str) -> Result<Action, Error> {
    shown("forebay_action", name).map_err(Error::last)
}

fn removed(name: &str) -> Result<(), c_int> {
    const FUNCTION: &str = "forebay_action_remove";
    match ask(FUNCTION, &format!("remove {name}"))? {
        // The manager that has done so was killed before it could say it.
        Answer { errno: libc::ENOENT, is_again: true, .. } => Ok(()),
        answer => answer.text(FUNCTION).map(|_| ()),
    }
}

fn all_names() -> Result<Vec<String>, c_int> {
    const FUNCTION: &str = "forebay_actions";
    let text = ask(FUNCTION, "names")?.text(FUNCTION)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn shown(function: &str, name: &str) -> Result<Action, c_int> {
    let text = ask(function, &format!("show {name}"))?.text(function)?;
    let mut action = Action::default();
    for (key, value) in text.split('\0').filter_map(|field| field.split_once('=')) {
        let number = || value.parse().unwrap_or(0);
        match key {
            "kind" => action.is_operation = value == "operation",
            "configured" => action.is_configured = number() == 1,
            "match" => value.clone_into(&mut action.pattern),
            "waiting" => action.waiting = number(),
            "running" => action.running = number(),
            "done" => action.done = number(),
            "failed" => action.failed = number(),
            "failure" => value.clone_into(&mut action.failure),
            // Of a later node manager.
            _ => {}
        }
    }
    Ok(action)
}

/// What the node manager says.
struct Answer {
    /// 0: it was done.
    errno: c_int,
    said: String,
    /// An earlier manager may have done it.
    is_again: bool,
}

impl Answer {
    /// What was asked for.
    fn text(self, function: &str) -> Result<String, c_int> {
        match self.errno {
            0 => Ok(self.said),
            errno => Err(fail(-errno, format_args!("{function}(): {}", self.said))),
        }
    }
}

/// Says why the node manager was not asked, or has not answered.
#[cold]
fn unanswered(function: &str, errno: c_int) -> c_int {
    let why = match -errno {
        libc::ETIMEDOUT => "the node manager is stopped; let it go on, `forebay status` names it",
        libc::ECONNREFUSED => {
            "the node manager has ended, and no other one has come; run the program anew"
        }
        _ => return failed(errno, format_args!("{function}(): asking the node manager")),
    };
    fail(errno, format_args!("{function}(): {why}"))
}

fn ask(function: &str, question: &str) -> Result<Answer, c_int> {
    let Some(services) = services() else { return Err(not_running(function)) };
    let mut answer = vec![0u8; ANSWER];
    let mut is_again = 0;
    // SAFETY: a text, room for another one, and a number, of these lengths.
    let told = unsafe {
        let (from, to) = (question.as_ptr(), answer.as_mut_ptr());
        (services.ask_of_actions)(from, question.len(), to, answer.len(), &mut is_again)
    };
    let bytes = match told {
        bytes @ 0.. => bytes as usize,
        none if none == NOT_MANAGED.into() => return Err(not_running(function)),
        errno => return Err(unanswered(function, errno as c_int)),
    };
    answer.truncate(bytes);
    let text = String::from_utf8_lossy(&answer);
    let said = text.split_once('\n').and_then(|(code, said)| Some((code.parse().ok()?, said)));
    let Some((errno, said)) = said else {
        let text = format_args!("{function}(): the node manager is of another build");
        return Err(fail(-libc::EPROTO, text));
    };
    Ok(Answer { errno, said: said.to_owned(), is_again: is_again == 1 })
}

/// A section of a configuration.
#[derive(Clone, Debug, Default)]
struct Section {
    text: String,
    /// What cannot be said in it.
    wrong: Option<String>,
}

impl Section {
    fn of(kind: &str) -> Section {
        Section { text: format!("[[{kind}]]\n"), wrong: None }
    }

    fn text(mut self, key: &str, value: &str) -> Section {
        let _ = writeln!(self.text, "{} = {}", Quoted(key), Quoted(value));
        self
    }

    fn plain(mut self, key: &str, value: impl core::fmt::Display) -> Section {
        let _ = writeln!(self.text, "{key} = {value}");
        self
    }

    fn time(self, key: &str, ms: impl core::fmt::Display) -> Section {
        self.text(key, &format!("{ms}ms"))
    }

    fn path(mut self, key: &str, path: &Path) -> Section {
        // An empty one is no path, and is said to be none.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match path.to_str() {
            Some(path) => self.text(key, path),
            None => {
                self.wrong = Some(format!("{key}: {} is not UTF-8; rename it", path.display()));
                self
            }
        }
    }

    fn words(mut self, key: &str, words: &[String]) -> Section {
        let _ = write!(self.text, "{key} = [");
        for word in words {
            let _ = write!(self.text, "{},", Quoted(word));
        }
        self.text.push_str("]\n");
        self
    }

    /// Files that are changed from now on count.
    fn register(self, function: &str) -> Result<(), c_int> {
        let Section { text, wrong } = self.plain("since", realtime_coarse_ns());
        if let Some(wrong) = wrong {
            return Err(fail(-libc::EINVAL, format_args!("{function}(): {wrong}")));
        }
        ask(function, &text)?.text(function).map(|_| ())
    }
}

/// A text in quotes, as TOML has it.
struct Quoted<'t>(&'t str);

impl core::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn texts_are_quoted_so_that_nothing_ends_them() {
        assert_eq!(Quoted("a\"b\\c\n\u{7f}ä").to_string(), r#""a\"b\\c\u000a\u007fä""#);
        let said = Section::of("active").text("key", "f64@8").plain("replace", true);
        assert_eq!(said.text, "[[active]]\n\"key\" = \"f64@8\"\nreplace = true\n");
        let words = ["/bin/sh".to_owned(), "a]\"".to_owned()];
        let said = Section::default().words("command", &words).text;
        assert_eq!(said, "command = [\"/bin/sh\",\"a]\\\"\",]\n");
        let other = std::ffi::OsStr::from_bytes(b"/\xff");
        assert!(Section::default().path("results", Path::new(other)).wrong.is_some());
    }

    #[test]
    fn without_forebay_nothing_is_registered() {
        let wrong = Analysis::new("*", ["true"]).register().unwrap_err();
        assert_eq!(wrong.code, crate::report::code::NOT_RUNNING);
        assert!(wrong.message.contains("forebay run"), "{wrong}");
        assert_eq!(names().unwrap_err().code, wrong.code);
    }
}
