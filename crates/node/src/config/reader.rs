//! Reading TOML, of configurations and scenarios, so that each error names file, line, key and what
//! is allowed: `FILE:LINE: KEY: what is wrong; what to do`.
//!
//! ```
//! use forebay_node::config::reader::Source;
//! use std::path::Path;
//!
//! let text = "[machine]\nnodes = 4\nmemory = \"2 GB\"\n";
//! let source = Source { name: Some("case.toml"), text, folder: Path::new("/"), errors: None };
//! let document = source.parse()?;
//! let root = source.root(&document, &["machine"])?;
//! let machine = root.require("machine", "a table")?.table(&["nodes", "memory"], "a table")?;
//! assert_eq!(machine.require("nodes", "4")?.count(1, 1_000)?, 4);
//! assert_eq!(machine.require("memory", "\"1 GiB\"")?.size()?, 2_000_000_000);
//! let wrong = machine.require("nodes", "4")?.count(1, 3).unwrap_err();
//! assert!(wrong.starts_with("case.toml:2: machine.nodes: "), "{wrong}");
//! # Ok::<(), String>(())
//! ```

use super::errors::Errors;
use super::units::{SIZE_UNITS, TIME_UNITS, quantity};
use std::fmt;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The error is the whole message.
pub type Result<T> = std::result::Result<T, String>;

/// More would only be a mistake: what is computed of numbers below stays exact.
const NUMBER_MAX: u64 = 1 << 53;

/// Characters of a line that an error shows.
const LINE_MAX: usize = 200;

/// A text, and what is needed to name a place in it.
#[derive(Clone, Copy)]
pub struct Source<'t> {
    /// The file; none for a text that a program wrote.
    pub name: Option<&'t str>,
    /// What is read.
    pub text: &'t str,
    /// Where relative paths start.
    pub folder: &'t Path,
    /// Where unknown keys are noted; without it the first one ends the reading.
    pub errors: Option<&'t Errors>,
}

impl<'t> Source<'t> {
    /// The parsed text; hand it to [`Source::root`].
    pub fn parse(self) -> Result<Spanned<DeTable<'t>>> {
        DeTable::parse(self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start).min(self.text.len());
            let start = self.text[..offset].rfind('\n').map_or(0, |at| at + 1);
            let line = self.text[start..].lines().next().unwrap_or("").trim();
            let line: String = line.chars().take(LINE_MAX).collect();
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            format!("{}: not valid TOML: {message}", self.place(offset, &line))
        })
    }

    /// The outermost table.
    pub fn root<'d>(self, document: &'d Spanned<DeTable<'t>>, known: &[&str]) -> Result<Table<'d>>
    where
        't: 'd,
    {
        Table::new(self, String::new(), 0, document.get_ref(), known)
    }

    /// Where a key is, for errors.
    pub fn place(self, offset: usize, key: &str) -> String {
        match self.name {
            Some(name) => format!("{name}:{}: {key}", line_of(self.text.as_bytes(), offset)),
            None => format!("configuration: {key}"),
        }
    }
}

/// A table, all of whose keys are known.
pub struct Table<'d> {
    pub(super) source: Source<'d>,
    /// Its key, as `tier[1]`; empty for the root.
    pub(super) path: String,
    pub(super) offset: usize,
    pub(super) table: &'d DeTable<'d>,
}

impl<'d> Table<'d> {
    fn new(
        source: Source<'d>,
        path: String,
        offset: usize,
        table: &'d DeTable<'d>,
        known: &[&str],
    ) -> Result<Self> {
        let table = Self { source, path, offset, table };
        let mut unknown: Vec<_> =
            { table.table.keys() }.filter(|key| !known.contains(&key.get_ref().as_ref())).collect();
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown {
            let error = format!(
                "{}: unknown key; known here: {}",
                source.place(key.span().start, &table.path_of(key.get_ref())),
                known.join(", ")
            );
            match source.errors {
                Some(errors) => errors.note(error),
                None => return Err(error),
            }
        }
        Ok(table)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'d>> {
        let (name, value) = self.table.get_key_value(key)?;
        let (offset, path) = (name.span().start, self.path_of(key));
        Some(Value { source: self.source, path, offset, value: value.get_ref() })
    }

    /// The value of a key of the table that another key has.
    pub(super) fn within(&self, section: &str, key: &str) -> Option<Value<'d>> {
        let section = self.get(section)?;
        let (name, value) = section.value.as_table()?.get_key_value(key)?;
        let path = format!("{}.{key}", section.path);
        Some(Value { path, offset: name.span().start, value: value.get_ref(), ..section })
    }

    /// Where a key such as `node.cores` is, or the innermost of its tables that is there.
    pub(super) fn place_of(&self, path: &str) -> String {
        let (mut table, mut offset) = (Some(self.table), self.offset);
        for key in path.split('.') {
            let found = table.and_then(|table| table.get_key_value(key));
            let Some((name, value)) = found else { break };
            (table, offset) = (value.get_ref().as_table(), name.span().start);
        }
        self.source.place(offset, path)
    }

    /// The value of a key that must be there.
    pub fn require(&self, key: &str, meaning: &str) -> Result<Value<'d>> {
        self.get(key).ok_or_else(|| self.error(key, format_args!("missing; add {key} = {meaning}")))
    }

    /// An error about a key that is not there, shown at the head of the table.
    pub fn error(&self, key: &str, problem: impl fmt::Display) -> String {
        format!("{}: {problem}", self.source.place(self.offset, &self.path_of(key)))
    }

    /// The table of `[key]`.
    pub fn table(&self, key: &str, known: &[&str]) -> Result<Option<Table<'d>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.table(known, "a table").map(Some)
    }

    /// The tables of `[[key]]`.
    pub fn tables(&self, key: &str, known: &[&str]) -> Result<Vec<Table<'d>>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || value.error(format_args!("must be a list of tables; write [[{key}]]"));
        let tables = value.value.as_array().ok_or_else(wrong)?;
        let read = |(index, table): (usize, &'d Spanned<DeValue<'d>>)| {
            let (offset, path) = (table.span().start, format!("{}[{index}]", value.path));
            let table = table.get_ref().as_table().ok_or_else(wrong)?;
            Table::new(self.source, path, offset, table, known)
        };
        tables.iter().enumerate().map(read).collect()
    }
}

/// The value of a key.
pub struct Value<'d> {
    pub(super) source: Source<'d>,
    path: String,
    offset: usize,
    pub(super) value: &'d DeValue<'d>,
}

impl<'d> Value<'d> {
    /// Where it is, for errors.
    pub fn place(&self) -> String {
        self.source.place(self.offset, &self.path)
    }

    /// An error about it.
    pub fn error(&self, problem: impl fmt::Display) -> String {
        format!("{}: {problem}", self.place())
    }

    pub(super) fn wrong_type(&self, expected: &str) -> String {
        self.error(format_args!("is of type {}; give {expected}", self.value.type_str()))
    }

    /// A table, all of whose keys are known.
    pub fn table(&self, known: &[&str], expected: &str) -> Result<Table<'d>> {
        let table = self.value.as_table().ok_or_else(|| self.wrong_type(expected))?;
        Table::new(self.source, self.path.clone(), self.offset, table, known)
    }

    /// The values of a list.
    pub fn list(&self) -> Result<Vec<Value<'d>>> {
        let DeValue::Array(items) = self.value else {
            return Err(self.error("must be a list; give values in brackets"));
        };
        let value = |(index, item): (usize, &'d Spanned<DeValue<'d>>)| Value {
            source: self.source,
            path: format!("{}[{index}]", self.path),
            offset: item.span().start,
            value: item.get_ref(),
        };
        Ok(items.iter().enumerate().map(value).collect())
    }

    /// True or false.
    pub fn boolean(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// A text that is not empty.
    pub fn text(&self) -> Result<&'d str> {
        let text = self.value.as_str().ok_or_else(|| self.wrong_type("a text in quotes"))?;
        if text.trim().is_empty() {
            return Err(self.error("is empty; give a text"));
        }
        Ok(text)
    }

    /// One of the names, or what it stands for.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T> {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let expected = format!("one of {}", names.join(", "));
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(&expected))?;
        let found = choices.iter().find(|(name, _)| *name == value);
        let unknown = || self.error(format_args!("\"{value}\" is unknown; give {expected}"));
        found.map(|(_, choice)| *choice).ok_or_else(unknown)
    }

    /// A whole number from `least` to `most`.
    pub fn number(&self, least: u64, most: u64) -> Result<u64> {
        let expected = format!("a whole number from {least} to {most}");
        let DeValue::Integer(number) = self.value else { return Err(self.wrong_type(&expected)) };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => {
                Err(self
                    .error(format_args!("{} is out of range; give {expected}", number.as_str())))
            }
        }
    }

    /// [`Value::number`] in 32 bits.
    pub fn count(&self, least: u32, most: u32) -> Result<u32> {
        Ok(self.number(u64::from(least), u64::from(most))? as u32)
    }

    /// A number from 0 to `most`, whole or not.
    pub fn fraction(&self, most: f64) -> Result<f64> {
        let expected = format!("a number from 0 to {most}");
        let number: Option<f64> = match self.value {
            DeValue::Integer(number) => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => return Err(self.wrong_type(&expected)),
        };
        let is_good = |number: &f64| number.is_finite() && (0.0..=most).contains(number);
        number
            .filter(is_good)
            .ok_or_else(|| self.error(format_args!("is out of range; give {expected}")))
    }

    /// A size in bytes, such as "64MiB".
    pub fn size(&self) -> Result<u64> {
        self.read_quantity("", SIZE_UNITS, "a size such as \"64MiB\"")
    }

    /// Bytes per second, such as "735MiB/s".
    pub fn bandwidth(&self) -> Result<u64> {
        self.read_quantity("/s", SIZE_UNITS, "a bandwidth such as \"735MiB/s\"")
    }

    /// Nanoseconds, such as "4.16ms".
    pub fn time(&self) -> Result<u64> {
        self.read_quantity("", TIME_UNITS, "a time such as \"4.16ms\"")
    }

    fn read_quantity(&self, suffix: &str, units: &[(&str, u64)], expected: &str) -> Result<u64> {
        let names: Vec<_> = units.iter().map(|(name, _)| format!("{name}{suffix}")).collect();
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(expected))?;
        let number = value.strip_suffix(suffix).and_then(|value| quantity(value, units));
        number.filter(|number| *number <= NUMBER_MAX).ok_or_else(|| {
            self.error(format_args!(
                "\"{value}\" cannot be read; give {expected}, in {}",
                names.join(", ")
            ))
        })
    }
}

/// The line of a byte, counted from one.
pub(super) fn line_of(text: &[u8], offset: usize) -> usize {
    text[..offset].iter().filter(|&&b| b == b'\n').count() + 1
}
