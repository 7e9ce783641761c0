//! Operations on files while these are in the tiers: `[[active]]` (docs/active.md). What options
//! mean is decided in `forebay_active::operation`.

use super::analyses::{ANALYSES_MAX, Analysis, DRAIN, DrainWhen, RESULT_MAX, TIMEOUT};
use super::reader::{self, Table, Value};
use super::types::{Config, quoted};
use forebay_active::operation::{OPTIONS, is_path, is_size};
use forebay_active::{About, Operation, Options};
use forebay_placement::glob;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use toml::de::DeValue;

/// Keys besides the options of operations.
const OWN_KEYS: &[&str] = &[
    "name",
    "match",
    "operation",
    "timeout",
    "results",
    "suffix",
    "result_max",
    "drain",
    "replace",
    "scratch",
    "patience",
    "since",
];
/// How long an operation waits for idle CPU, where nothing else is said. Then it runs all the same,
/// and takes what others leave.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest suffix in bytes: it is a part of names of files.
const SUFFIX_MAX: usize = 63;
/// Options that `forebay replace` knows.
const OF_REPLACED: &[&str] = &["codec", "level"];

/// An operation, and the files on which it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRule {
    /// What messages call it.
    pub name: String,
    /// Pattern of the files' paths, as the `path` of a rule is one.
    pub pattern: String,
    /// The operation's name.
    pub operation: String,
    /// Its options: sizes are numbers of bytes, paths are absolute.
    pub options: Options,
    /// What it is given before it is killed.
    pub timeout: Duration,
    /// The directory of results; none: that of the file.
    pub results: Option<PathBuf>,
    /// What the name of a result ends with.
    pub suffix: String,
    /// Most bytes of a result.
    pub result_max: u64,
    /// When the file is drained.
    pub drain: DrainWhen,
    /// Whether the encoded form takes the file's place on the store, in place of a result.
    pub replace: bool,
    /// Where a sort makes scratch files; none: beside the file.
    pub scratch: Option<PathBuf>,
    /// How long it waits for idle CPU.
    pub patience: Duration,
    /// See [`Analysis::since`].
    pub since: u64,
}

impl ActiveRule {
    /// Whether the file at `path`, beneath the managed directory `store`, is meant.
    pub fn is_of(&self, path: &[u8], store: &[u8]) -> bool {
        let below = path.strip_prefix(store).and_then(|rest| rest.strip_prefix(b"/"));
        let name = if self.pattern.starts_with('/') { Some(path) } else { below };
        name.is_some_and(|name| glob::matches(self.pattern.as_bytes(), name))
    }

    /// Whether its results are those of `other` for the same files.
    pub fn collides(&self, other: &ActiveRule) -> bool {
        !self.replace
            && !other.replace
            && (&other.pattern, &other.suffix, &other.results)
                == (&self.pattern, &self.suffix, &self.results)
    }

    /// What is wrong where it [collides](ActiveRule::collides) with `other`, and what to do.
    pub fn collision(&self, other: &ActiveRule) -> String {
        format!(
            "\"{}\" is what the results of \"{}\" for the same files end with; give another",
            self.suffix, other.name
        )
    }

    /// Adds it to a text that [`Registered::of_text`] reads.
    ///
    /// [`Registered::of_text`]: super::Registered::of_text
    pub fn write(&self, text: &mut String) {
        let _ = write!(
            text,
            "[[active]]\nname = {}\nmatch = {}\noperation = {}\ntimeout = \"{}ns\"\n\
             replace = {}\npatience = \"{}ns\"\nsince = {}\n",
            quoted(&self.name),
            quoted(&self.pattern),
            quoted(&self.operation),
            self.timeout.as_nanos(),
            self.replace,
            self.patience.as_nanos(),
            self.since,
        );
        if !self.replace {
            let drain = if self.drain == DrainWhen::With { "with" } else { "after" };
            let _ = write!(
                text,
                "suffix = {}\nresult_max = {}\ndrain = \"{drain}\"\n",
                quoted(&self.suffix),
                self.result_max
            );
        }
        for (key, path) in [("results", &self.results), ("scratch", &self.scratch)] {
            if let Some(path) = path {
                let _ = writeln!(text, "{key} = {}", quoted(&path.to_string_lossy()));
            }
        }
        for (option, value) in &self.options {
            let _ = writeln!(text, "{option} = {}", quoted(value));
        }
    }
}

/// Those of `[[active]]`; none has the name of one of `analyses`.
pub(super) fn read(root: &Table<'_>, analyses: &[Analysis]) -> reader::Result<Vec<ActiveRule>> {
    let keys: Vec<&str> =
        OWN_KEYS.iter().copied().chain(OPTIONS.iter().map(|(name, _)| *name)).collect();
    let sections = root.tables("active", &keys)?;
    if let Some(more) = sections.get(ANALYSES_MAX) {
        return Err(more.error("name", format_args!("give at most {ANALYSES_MAX} operations")));
    }
    let mut all: Vec<ActiveRule> = Vec::new();
    for section in &sections {
        let rule = section.active_rule()?;
        let is_taken = all.iter().any(|other| other.name == rule.name)
            || analyses.iter().any(|other| other.name == rule.name);
        if is_taken {
            return Err(section.error(
                "name",
                format_args!("\"{}\" is the name of another one; give each its own", rule.name),
            ));
        }
        if let Some(other) = all.iter().find(|other| rule.collides(other)) {
            return Err(section.error("suffix", rule.collision(other)));
        }
        all.push(rule);
    }
    Ok(all)
}

impl Table<'_> {
    fn active_rule(&self) -> reader::Result<ActiveRule> {
        let named = self.require("operation", "\"compress\" (what is done)")?;
        let about = About::named(named.text()?).map_err(|error| named.error(error))?;
        let mut options = Options::new();
        for (option, _) in OPTIONS {
            if let Some(value) = self.get(option) {
                options.insert((*option).to_owned(), value.option(option)?);
            }
        }
        let operation = Operation::of(about.name, &options)
            .map_err(|error| self.error("operation", format_args!("{}: {error}", about.name)))?;
        let pattern = self.require("match", "\"*.dat\" (which files)")?.pattern()?;
        let name = match self.get("name") {
            Some(name) => name.name_of_analysis()?,
            None => about.name.to_owned(),
        };
        let time = |key: &str, default: Duration| match self.get(key) {
            Some(value) => value.duration_ns("10min").map(Duration::from_nanos),
            None => Ok(default),
        };
        let timeout = time("timeout", TIMEOUT)?;
        if timeout.is_zero() {
            return Err(self.error("timeout", "is zero; give a time such as \"10min\""));
        }
        let path = |key: &str| self.get(key).map(|value| value.path()).transpose();
        let rule = ActiveRule {
            name,
            pattern,
            operation: about.name.to_owned(),
            timeout,
            results: path("results")?,
            suffix: match self.get("suffix") {
                Some(value) => value.suffix()?,
                None => operation.suffix().to_owned(),
            },
            result_max: match self.get("result_max") {
                Some(value) => value.bytes("", "a size such as \"1GiB\"")?,
                // No operation but a function makes more of a file than a little more than it is.
                None => match operation {
                    Operation::Function(_) => RESULT_MAX,
                    _ => u64::MAX >> 1,
                },
            },
            drain: self.get("drain").map_or(Ok(DrainWhen::With), |value| value.one_of(DRAIN))?,
            replace: self.get("replace").map_or(Ok(false), |value| value.boolean())?,
            scratch: path("scratch")?,
            patience: time("patience", PATIENCE)?,
            since: self.get("since").map_or(Ok(0), |value| value.nanoseconds())?,
            options,
        };
        self.check_replace(&rule, &operation)?;
        Ok(rule)
    }

    fn check_replace(&self, rule: &ActiveRule, operation: &Operation) -> reader::Result<()> {
        if !rule.replace {
            return Ok(());
        }
        if operation.format().is_none() {
            return Err(self.error(
                "replace",
                format_args!(
                    "the original does not come back from what {} makes; only compress and dedup \
                     may replace it: remove it, and the result is a file beside",
                    rule.operation
                ),
            ));
        }
        let of_results = ["results", "result_max", "scratch", "drain"].into_iter();
        let unknown = rule.options.keys().map(String::as_str);
        let unknown = unknown.filter(|option| !OF_REPLACED.contains(option));
        let is_given = |key: &&str| self.get(key).is_some();
        if let Some(key) = of_results.chain(["suffix"]).filter(is_given).chain(unknown).next() {
            return Err(self.error(key, "has no meaning with replace = true; remove one"));
        }
        Ok(())
    }
}

impl Value<'_> {
    /// The value of an option, as `forebay_active` takes it.
    fn option(&self, option: &str) -> reader::Result<String> {
        if is_path(option) {
            let path = self.path()?.into_os_string().into_string();
            return path.map_err(|_| self.error("is not UTF-8; rename it"));
        }
        match self.value {
            _ if is_size(option) && !matches!(self.zero(), Some(true)) => {
                self.bytes("", "a size such as 32 or \"1MiB\"").map(|bytes| bytes.to_string())
            }
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(is) => Ok(is.to_string()),
            _ => Err(self.wrong_type("a text, a number, true or false")),
        }
    }

    /// Whether it is the number 0, which a header may have.
    fn zero(&self) -> Option<bool> {
        match self.value {
            DeValue::Integer(number) => Some(number.as_str() == "0"),
            DeValue::String(text) => Some(text.as_ref() == "0"),
            _ => None,
        }
    }

    fn suffix(&self) -> reader::Result<String> {
        let suffix = self.text()?;
        let is_good = (2..=SUFFIX_MAX).contains(&suffix.len())
            && suffix.starts_with('.')
            && !suffix.contains(['/', '\0']);
        if is_good {
            return Ok(suffix.to_owned());
        }
        Err(self.error(format_args!(
            "\"{suffix}\" cannot end a file's name; give a dot and up to {} bytes",
            SUFFIX_MAX - 1
        )))
    }
}

impl Config {
    /// What is said of operations, as part of the canonical text. They are no part of the
    /// instance's identity.
    pub(super) fn write_active(&self, text: &mut String) {
        self.active.iter().for_each(|rule| rule.write(text));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Registered;
    use super::super::reader::Source;
    use super::*;
    use std::path::Path;

    fn read_text(text: &str, name: Option<&str>) -> reader::Result<Vec<ActiveRule>> {
        let source = Source { name, text, folder: Path::new("/cfg"), errors: None };
        let document = source.parse()?;
        read(&source.root(&document, &["active"])?, &[])
    }

    #[test]
    fn what_is_read_is_written_and_read_again() {
        let text = "[[active]]\nmatch = \"*.dat\"\noperation = \"compress\"\nlevel = 9\n\
            frame = \"2MiB\"\n\
            [[active]]\nname = \"by-energy\"\nmatch = \"/p/**\"\noperation = \"sort\"\nrecord = 32\n\
            header = 0\nkey = \"f64@8:desc\"\nscratch = \"tmp\"\nsuffix = \".by-energy\"\n\
            since = 7\ntimeout = \"2min\"\ndrain = \"after\"\nresults = \"out\"\npatience = \"0s\"\n\
            [[active]]\nname = \"pack\"\nmatch = \"*.dat\"\noperation = \"dedup\"\nreplace = true\n\
            [[active]]\nmatch = \"*\"\noperation = \"function\"\nmodule = \"f.wasm\"\n";
        let all = read_text(text, Some("case.toml")).unwrap();
        assert_eq!((all[0].name.as_str(), all[0].suffix.as_str()), ("compress", ".zst"));
        assert_eq!(all[0].options["frame"], "2097152");
        assert_eq!((all[1].options["record"].as_str(), all[1].drain), ("32", DrainWhen::After));
        assert_eq!(all[1].results.as_deref(), Some(Path::new("/cfg/out")));
        assert!(all[2].replace);
        assert_eq!(all[3].options["module"], "/cfg/f.wasm");
        let mut written = String::new();
        all.iter().for_each(|rule| rule.write(&mut written));
        assert_eq!(read_text(&written, None).unwrap(), all);
        let read = Registered::of_text(&written, None, Path::new("/")).unwrap();
        assert_eq!((read.analyses.len(), &read.operations), (0, &all));
        assert_eq!(read.text(), written);
        assert!(all[0].is_of(b"/store/a.dat", b"/store") && !all[0].is_of(b"/x/a.dat", b"/store"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |keys: &str| {
            read_text(&format!("[[active]]\nmatch = \"*\"\n{keys}\n"), Some("case.toml"))
                .unwrap_err()
        };
        for (keys, said) in [
            ("", "operation"),
            ("operation = \"pack\"", "there are sort, compress"),
            ("operation = \"sort\"\nrecord = 8", "key is missing"),
            ("operation = \"compress\"\nrecord = 8", "record is no option of compress"),
            ("operation = \"compress\"\nlevel = 20", "level 20"),
            ("operation = \"compress\"\nframe = [1]", "a size such as"),
            ("operation = \"checksum\"\nreplace = true", "does not come back"),
            ("operation = \"dedup\"\nchunk = 4096\nreplace = true", "no meaning with replace"),
            ("operation = \"dedup\"\nresults = \"x\"\nreplace = true", "no meaning with replace"),
            ("operation = \"dedup\"\nsuffix = \"x\"", "cannot end a file's name"),
            ("operation = \"dedup\"\nlevels = 3", "unknown key"),
        ] {
            assert!(wrong(keys).contains(said), "{keys}: {}", wrong(keys));
            assert!(wrong(keys).starts_with("case.toml:"), "{}", wrong(keys));
        }
        let one = "[[active]]\nmatch = \"*\"\noperation = \"dedup\"\n";
        let error = read_text(&one.repeat(2), Some("c")).unwrap_err();
        assert!(error.contains("the name of another one"), "{error}");
        let error = read_text(&format!("{one}{one}name = \"b\"\n"), Some("c")).unwrap_err();
        assert!(error.contains("end with; give another"), "{error}");
    }
}
