//! All operations, by name and options: one meaning for the command and the configuration.

use crate::checksum::{Checksum, Sum};
use crate::encoded::{self, Codec, Compress, Dedup, Format};
use crate::error::{Error, Result, doing};
use crate::filter::Filter;
use crate::function::{By, Function};
use crate::records::Records;
use crate::sort::Sort;
use crate::transpose::Transpose;
use crate::{Context, Input, Output};
use std::collections::BTreeMap;
use std::io::SeekFrom;
use std::path::PathBuf;
use std::str::FromStr;

/// An operation on the bytes of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Records in the order of keys.
    Sort(Sort),
    /// Frames of zstd or lz4.
    Compress(Compress),
    /// Chunks that are there twice, once.
    Dedup(Dedup),
    /// Records for which conditions hold.
    Filter(Filter),
    /// A manifest with the file's sum.
    Checksum(Checksum),
    /// Rows to columns, or back.
    Transpose(Transpose),
    /// A function of the user's.
    Function(Function),
}

/// What is known about an operation without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// Options that it has to have.
    pub needs: &'static [&'static str],
    /// Options that it may have.
    pub takes: &'static [&'static str],
}

/// All options, with what each means; for help.
pub const OPTIONS: &[(&str, &str)] = &[
    ("record", "bytes of a record"),
    ("header", "bytes before the first record, which the result has as they are"),
    ("key", "fields to sort by: TYPE@OFFSET, with :desc behind it, and commas between"),
    ("where", "conditions: FIELD, one of < <= == != >= >, and a value; and between them"),
    ("codec", "zstd or lz4"),
    ("level", "level of zstd, 1 (fast) to 19 (small)"),
    ("frame", "original bytes of a frame, 64KiB to 16MiB"),
    ("chunk", "bytes of a chunk on average, a power of two of 1KiB to 4MiB"),
    ("sum", "crc32c, sha256 or blake3"),
    ("fields", "bytes of the fields of a record, with commas between; 8,4x3 is 8,4,4,4"),
    ("rows", "records of a matrix, where a file has several"),
    ("inverse", "true: from columns to rows"),
    ("module", "a WebAssembly module, see forebay/function.h"),
    ("command", "a text for /bin/sh, from standard input to standard output"),
    ("output_max", "bytes of the result at most"),
    ("memory", "bytes of memory, some 256MiB where nothing else is given"),
];

/// Options whose values are paths, and those that are bytes.
const PATHS: &[&str] = &["module"];
const SIZES: &[&str] = &["record", "header", "frame", "chunk", "output_max", "memory"];

impl About {
    /// All operations.
    pub const ALL: [About; 7] = [
        About { name: "sort", needs: &["record", "key"], takes: &["header", "memory"] },
        About { name: "compress", needs: &[], takes: &["codec", "level", "frame"] },
        About { name: "dedup", needs: &[], takes: &["chunk", "memory"] },
        About { name: "filter", needs: &["record", "where"], takes: &["header"] },
        About { name: "checksum", needs: &[], takes: &["sum"] },
        About {
            name: "transpose",
            needs: &["fields"],
            takes: &["header", "rows", "inverse", "memory"],
        },
        About { name: "function", needs: &[], takes: &["module", "command", "output_max"] },
    ];

    /// The operation of that name.
    ///
    /// # Errors
    /// There is none; which there are.
    pub fn named(name: &str) -> Result<&'static About> {
        About::ALL.iter().find(|about| about.name == name).ok_or_else(|| {
            let names = About::ALL.map(|about| about.name).join(", ");
            Error::Option(format!("\"{name}\" is no operation; there are {names}"))
        })
    }

    /// Whether it has such an option.
    pub fn has(&self, option: &str) -> bool {
        self.needs.contains(&option) || self.takes.contains(&option)
    }
}

/// Options by name, as texts; those of [`is_size`] are numbers of bytes.
pub type Options = BTreeMap<String, String>;

/// Whether the value of an option is a path, which a configuration means from its own folder.
pub fn is_path(option: &str) -> bool {
    PATHS.contains(&option)
}

/// Whether the value of an option is a number of bytes, for which people may give a unit.
pub fn is_size(option: &str) -> bool {
    SIZES.contains(&option)
}

/// What an operation has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes that it read.
    pub input: u64,
    /// Bytes of its result.
    pub output: u64,
    /// Records, frames or chunks that it read, and those that its result has; 0 where there are
    /// none.
    pub units: (u64, u64),
}

/// Options that are read one by one.
struct Given<'a>(&'a Options);

impl Given<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn needed(&self, name: &'static str) -> Result<&str> {
        self.text(name).ok_or_else(|| Error::Option(format!("{name} is missing; give it")))
    }

    fn with<T>(&self, name: &str, default: T, of: impl Fn(&str) -> Result<T>) -> Result<T> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => of(text).map_err(|error| match error {
                Error::Option(what) => Error::Option(format!("{name}: {what}")),
                other => other,
            }),
        }
    }

    fn bytes<T: TryFrom<u64>>(&self, name: &str, default: T) -> Result<T> {
        self.with(name, default, |text| {
            let bytes = text.parse::<u64>().ok().and_then(|bytes| T::try_from(bytes).ok());
            bytes.ok_or_else(|| {
                Error::Option(format!("\"{text}\" is no number of bytes, or too many"))
            })
        })
    }

    fn parsed<T: FromStr>(&self, name: &str, default: T, what: &str) -> Result<T> {
        self.with(name, default, |text| {
            text.parse().map_err(|_| Error::Option(format!("\"{text}\" is not {what}")))
        })
    }

    fn one_of<T: Copy>(&self, name: &str, default: T, all: &[(&str, T)]) -> Result<T> {
        self.with(name, default, |text| {
            let found = all.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value).ok_or_else(|| {
                let words: Vec<_> = all.iter().map(|(word, _)| *word).collect();
                Error::Option(format!("\"{text}\" is not one of {}", words.join(", ")))
            })
        })
    }

    fn records(&self) -> Result<Records> {
        self.needed("record")?;
        Ok(Records { record: self.bytes("record", 0)?, header: self.bytes("header", 0)? })
    }
}

impl Operation {
    /// The operation of that name with these options.
    ///
    /// # Errors
    /// There is no such operation, an option is missing or not one of its own, or a value cannot
    /// be.
    pub fn of(name: &str, options: &Options) -> Result<Operation> {
        let about = About::named(name)?;
        if let Some(other) = options.keys().find(|option| !about.has(option)) {
            let own = [about.needs, about.takes].concat().join(", ");
            return Err(Error::Option(format!("{other} is no option of {name}, which has {own}")));
        }
        let given = Given(options);
        let operation = match name {
            "sort" => {
                let keys = given.needed("key")?;
                Operation::Sort(Sort { records: given.records()?, keys: Sort::keys_of(keys)? })
            }
            "compress" => {
                let codecs = [("zstd", Codec::Zstd), ("lz4", Codec::Lz4)];
                let standard = Compress::new(given.one_of("codec", Codec::Zstd, &codecs)?);
                if standard.codec == Codec::Lz4 && given.text("level").is_some() {
                    let what = "lz4 has no level; remove it, or take codec zstd";
                    return Err(Error::Option(what.to_owned()));
                }
                let level = given.parsed("level", standard.level, "a level of 1 to 19")?;
                Operation::Compress(Compress {
                    level,
                    frame: given.bytes("frame", standard.frame)?,
                    ..standard
                })
            }
            "dedup" => {
                let Dedup { chunk, memory } = Dedup::default();
                Operation::Dedup(Dedup {
                    chunk: given.bytes("chunk", chunk)?,
                    memory: given.bytes("memory", memory)?,
                })
            }
            "filter" => Operation::Filter(Filter {
                records: given.records()?,
                conditions: given.needed("where")?.parse()?,
            }),
            "checksum" => {
                Operation::Checksum(Checksum { sum: given.one_of("sum", Sum::Sha256, &Sum::ALL)? })
            }
            "transpose" => {
                let fields = Transpose::fields_of(given.needed("fields")?)?;
                let record = fields.iter().map(|&length| u64::from(length)).sum::<u64>();
                let record = u32::try_from(record).unwrap_or(u32::MAX);
                let rows = given.parsed("rows", 0, "a number of rows")?;
                let rows = given.text("rows").map(|_| rows);
                Operation::Transpose(Transpose {
                    records: Records { record, header: given.bytes("header", 0)? },
                    fields,
                    rows,
                    is_inverse: given.parsed("inverse", false, "true or false")?,
                })
            }
            _ => {
                let by = match (given.text("module"), given.text("command")) {
                    (Some(module), None) => By::Module(PathBuf::from(module)),
                    (None, Some(command)) => By::Command(command.to_owned()),
                    _ => {
                        let what = "a function is a module or a command; give one of both";
                        return Err(Error::Option(what.to_owned()));
                    }
                };
                let most = given.bytes("output_max", 0)?;
                let output_max = given.text("output_max").map(|_| most);
                Operation::Function(Function { by, output_max })
            }
        };
        let _: u64 = given.bytes("memory", 0)?;
        operation.check()?;
        Ok(operation)
    }

    /// Checks its values.
    ///
    /// # Errors
    /// Which cannot be.
    pub fn check(&self) -> Result<()> {
        match self {
            Operation::Sort(sort) => sort.check(),
            Operation::Compress(compress) => compress.check(),
            Operation::Dedup(dedup) => dedup.check(),
            Operation::Filter(filter) => filter.check(),
            Operation::Checksum(_) => Ok(()),
            Operation::Transpose(transpose) => transpose.check(),
            Operation::Function(function) => function.check(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Sort(_) => "sort",
            Operation::Compress(_) => "compress",
            Operation::Dedup(_) => "dedup",
            Operation::Filter(_) => "filter",
            Operation::Checksum(_) => "checksum",
            Operation::Transpose(_) => "transpose",
            Operation::Function(_) => "function",
        }
    }

    /// What the name of its result ends with, where its caller gives no name.
    pub fn suffix(&self) -> &'static str {
        match self {
            Operation::Sort(_) => ".sorted",
            Operation::Compress(Compress { codec: Codec::Zstd, .. }) => ".zst",
            Operation::Compress(Compress { codec: Codec::Lz4, .. }) => ".lz4",
            Operation::Dedup(_) => ".dedup",
            Operation::Filter(_) => ".filtered",
            Operation::Checksum(checksum) => checksum.sum.suffix(),
            Operation::Transpose(Transpose { is_inverse: false, .. }) => ".columns",
            Operation::Transpose(Transpose { is_inverse: true, .. }) => ".rows",
            Operation::Function(_) => ".function",
        }
    }

    /// The encoded form that it makes, from which the original comes back; none if it does not.
    pub fn format(&self) -> Option<Format> {
        match self {
            Operation::Compress(compress) => Some(compress.codec.format()),
            Operation::Dedup(_) => Some(Format::Dedup),
            _ => None,
        }
    }

    /// Does it: all of `input`, from its first byte on, to `output`, which is empty.
    ///
    /// # Errors
    /// The data does not fit, a function failed, or a read or write did. `output` has some of the
    /// result then.
    pub fn run(
        &self,
        input: &mut dyn Input,
        output: &mut dyn Output,
        context: &Context,
    ) -> Result<Done> {
        let length = input.seek(SeekFrom::End(0)).map_err(doing("find the original's length"))?;
        input.seek(SeekFrom::Start(0)).map_err(doing("seek in the original"))?;
        let units = match self {
            Operation::Sort(sort) => {
                let records = sort.run(input, length, output, context)?;
                (records, records)
            }
            Operation::Compress(options) => {
                let info = encoded::compress(input, output, &options.for_length(length))?;
                (info.pieces, info.kept)
            }
            Operation::Dedup(options) => {
                let info = encoded::dedup(input, output, &options.for_length(length))?;
                (info.pieces, info.kept)
            }
            Operation::Filter(filter) => filter.run(input, length, output)?,
            Operation::Checksum(checksum) => {
                checksum.run(input, &context.name, output)?;
                (0, 0)
            }
            Operation::Transpose(transpose) => {
                let records = transpose.run(input, length, output, context)?;
                (records, records)
            }
            Operation::Function(function) => {
                function.run(input, length, output)?;
                (0, 0)
            }
        };
        let end = output.seek(SeekFrom::End(0)).map_err(doing("find the result's length"))?;
        Ok(Done { input: length, output: end, units })
    }
}
