//! `forebay active`: operations on files, those that a rule `[[active]]` has done while a file is
//! buffered, and the way back from encoded forms.

use crate::text::counted;
use forebay_active::checksum::{Sum, read_manifest};
use forebay_active::encoded::{Info, Reader, encoded_end};
use forebay_active::operation::is_size;
use forebay_active::{Context, MEMORY, Operation, Options};
use forebay_node::config::size_of;
use forebay_node::log::shown;
use serde_json::json;
use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forebay active`.
#[derive(clap::Args)]
pub struct ActiveArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Do an operation on a file now: sort, compress, dedup, filter, checksum, transpose, function
    Run(Box<RunArguments>),
    /// Bring back the original of a file that was compressed or deduplicated
    Restore {
        /// The encoded file
        encoded: PathBuf,
        /// Where the original goes; - is standard output
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Say what an encoded file is, how long its original is, and what it saves
    Info {
        /// The encoded file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Decode all of it, to see that it is whole
        #[arg(long)]
        verify: bool,
    },
    /// Compare files with the manifest of a checksum
    Check {
        /// What `forebay active run checksum` wrote
        manifest: PathBuf,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// sort, compress, dedup, filter, checksum, transpose or function
    operation: String,
    /// The file; it stays as it is
    input: PathBuf,
    /// Where the result goes; - is standard output. Without it beside the file, with the
    /// operation's suffix
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where scratch files of a sort are made, without a name; by default beside the result
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The node manager runs it on a buffered file: with limits; the result has the file's mode
    #[arg(long, hide = true)]
    as_action: bool,
    #[command(flatten)]
    options: OperationOptions,
}

/// Declares the options of operations: a field of [`OperationOptions`] for each, with its help.
macro_rules! operation_options {
    ($($(#[$help:meta])* $name:ident $long:literal $value:literal,)*) => {
        #[derive(clap::Args)]
        struct OperationOptions {
            $($(#[$help])*
            #[arg(long = $long, value_name = $value, allow_hyphen_values = true)]
            $name: Option<String>,)*
        }

        impl OperationOptions {
            /// Those that were given, by the names that a configuration has for them.
            fn given(&self) -> Options {
                let all = [$(($long, &self.$name)),*];
                let name = |long: &str| long.replace('-', "_");
                all.into_iter()
                    .filter_map(|(long, value)| Some((name(long), value.clone()?)))
                    .collect()
            }
        }
    };
}

operation_options! {
    /// Bytes of a record (sort, filter)
    record "record" "SIZE",
    /// Bytes before the first record, which the result has as they are (sort, filter, transpose)
    header "header" "SIZE",
    /// Fields to sort by: TYPE@OFFSET, with :desc behind it, and commas between; TYPE is u8 to u64,
    /// i8 to i64, f32, f64 (be behind it for big-endian), or bytesN
    key "key" "FIELDS",
    /// Conditions of a filter: FIELD, one of < <= == != >= >, and a value; ` and ` between them
    condition "where" "CONDITIONS",
    /// zstd or lz4 (compress)
    codec "codec" "CODEC",
    /// Level of zstd: 1 (fast) to 19 (small)
    level "level" "LEVEL",
    /// Original bytes of a frame: 64KiB to 16MiB (compress)
    frame "frame" "SIZE",
    /// Bytes of a chunk on average: a power of two of 1KiB to 4MiB (dedup)
    chunk "chunk" "SIZE",
    /// crc32c, sha256 or blake3 (checksum)
    sum "sum" "SUM",
    /// Bytes of the fields of a record, with commas between; 8,4x3 is 8,4,4,4 (transpose)
    fields "fields" "LENGTHS",
    /// Records of a matrix, where a file has several (transpose)
    rows "rows" "COUNT",
    /// true: from columns to rows (transpose)
    inverse "inverse" "BOOL",
    /// A WebAssembly module (function)
    module "module" "FILE",
    /// A text for /bin/sh, from standard input to standard output (function)
    command "command" "TEXT",
    /// Bytes of the result at most (function)
    output_max "output-max" "SIZE",
    /// Bytes of memory, 256MiB where nothing else is given (sort, dedup, transpose)
    memory "memory" "SIZE",
}

/// Runs `forebay active`.
///
/// # Errors
/// What does not fit, is damaged, or failed; with the file's name.
pub fn active(arguments: &ActiveArguments) -> Result<ExitCode, String> {
    match &arguments.action {
        Action::Run(arguments) => run(arguments),
        Action::Restore { encoded, output } => restore(encoded, output),
        Action::Info { file, json, verify } => info(file, *json, *verify),
        Action::Check { manifest } => check(manifest),
    }
}

fn failed(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> String {
    let shown = shown(path);
    move |problem| format!("{shown}: {problem}")
}

/// The operation and the memory that options ask for.
fn operation_of(name: &str, mut given: Options) -> Result<(Operation, u64), String> {
    for (option, value) in &mut given {
        if is_size(option) {
            let bytes = size_of(value).ok_or_else(|| {
                format!("--{option}: \"{value}\" is no size; give bytes, such as 32 or 1MiB")
            })?;
            *value = bytes.to_string();
        }
    }
    let memory = given.get("memory").and_then(|bytes| bytes.parse().ok()).unwrap_or(MEMORY);
    let operation = Operation::of(name, &given).map_err(|error| format!("{name}: {error}"))?;
    Ok((operation, memory))
}

fn run(arguments: &RunArguments) -> Result<ExitCode, String> {
    let RunArguments { operation, input, output, scratch, as_action, options } = arguments;
    let (operation, memory) = operation_of(operation, options.given())?;
    let problem = failed(input);
    let mut file = open(input)?;
    let beside = || {
        let mut name = input.as_os_str().to_owned();
        name.push(operation.suffix());
        PathBuf::from(name)
    };
    let output = output.clone().unwrap_or_else(beside);
    let mut target = Target::create(&output, &file)?;
    if *as_action {
        limit_memory(memory);
        // The result is as private as the file is, before it has a byte.
        let mode = file.metadata().map_err(|error| problem(&error))?.mode() & 0o666;
        let set = target.file.set_permissions(Permissions::from_mode(mode));
        set.map_err(|error| failed(&output)(&error))?;
    }
    let name = input.file_name().unwrap_or_default().as_bytes().to_vec();
    let scratch = scratch.clone().unwrap_or_else(|| target.folder());
    let context = Context { memory, scratch, name };
    let written = target.file().map_err(|error| failed(&output)(&error))?;
    let done = operation.run(&mut file, written, &context).map_err(|error| problem(&error))?;
    target.publish()?;
    if !is_stdout(&output) {
        let (read, kept) = done.units;
        let units = match operation {
            _ if read == 0 => String::new(),
            Operation::Filter(_) => format!(", {kept} of {}", counted(read, "record", "records")),
            Operation::Dedup(_) => format!(", {kept} of {}", counted(read, "chunk", "chunks")),
            Operation::Compress(_) => format!(", {}", counted(read, "frame", "frames")),
            _ => format!(", {}", counted(read, "record", "records")),
        };
        println!(
            "{}: {} -> {} bytes ({}){units}",
            shown(&output),
            done.input,
            done.output,
            ratio(done.input, done.output)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Has the kernel refuse memory far beyond what the operation is given, also to the commands that
/// it starts. Shared memory, as the pool is, does not count.
fn limit_memory(memory: u64) {
    let most = Some(memory.saturating_mul(2).saturating_add(512 << 20));
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    // A lower limit that there is already stays.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Data, limit);
}

/// What a result has of its original, for people.
fn ratio(original: u64, result: u64) -> String {
    match original {
        0 => "of nothing".to_owned(),
        _ => format!("{:.1} %", result as f64 * 100.0 / original as f64),
    }
}

fn open(path: &Path) -> Result<File, String> {
    let problem = failed(path);
    let file = File::open(path).map_err(|error| problem(&error))?;
    let metadata = file.metadata().map_err(|error| problem(&error))?;
    if metadata.is_file() {
        return Ok(file);
    }
    Err(problem(&"is no regular file; operations read files from their end, too"))
}

/// Opens an encoded file, which may have been made longer.
fn encoded(path: &Path) -> Result<Reader<File>, String> {
    let problem = failed(path);
    let file = open(path)?;
    let length = file.metadata().map_err(|error| problem(&error))?.len();
    let end = data_end(&file, length);
    let end = encoded_end(&file, end).map_err(|error| problem(&error))?;
    Reader::open(file, end).map_err(|error| problem(&error))
}

/// Where the last data of a file ends that has a hole behind it: zeros that are not read.
fn data_end(file: &File, length: u64) -> u64 {
    let seek = |from| rustix::fs::seek(file, from);
    let mut end = length;
    let mut at = 0;
    while let Ok(data) = seek(rustix::fs::SeekFrom::Data(at)) {
        let Ok(hole) = seek(rustix::fs::SeekFrom::Hole(data)) else { return length };
        (end, at) = (hole, hole);
    }
    end.min(length)
}

fn restore(path: &Path, output: &Path) -> Result<ExitCode, String> {
    let mut reader = encoded(path)?;
    let mut target = Target::create(output, reader.source())?;
    let written = target.file().map_err(|error| failed(output)(&error))?;
    let mut written = io::BufWriter::with_capacity(1 << 20, written);
    reader.copy_to(&mut written).map_err(|error| failed(path)(&error))?;
    written.flush().map_err(|error| failed(output)(&error))?;
    drop(written);
    target.publish()?;
    Ok(ExitCode::SUCCESS)
}

fn info(path: &Path, json: bool, verify: bool) -> Result<ExitCode, String> {
    let mut reader = encoded(path)?;
    let Info { format, original_len, encoded_len, pieces, kept } = reader.info();
    if verify {
        reader.copy_to(&mut io::sink()).map_err(|error| failed(path)(&error))?;
    }
    if json {
        let all = json!({
            "file": path.to_string_lossy(),
            "format": format.name(),
            "original_bytes": original_len,
            "encoded_bytes": encoded_len,
            "pieces": pieces,
            "kept_pieces": kept,
            "verified": verify,
        });
        println!("{all}");
        return Ok(ExitCode::SUCCESS);
    }
    let pieces = match kept == pieces {
        true => counted(pieces, "piece", "pieces"),
        false => format!("{kept} of {}", counted(pieces, "piece", "pieces")),
    };
    println!(
        "{}: {format}, {original_len} bytes in {encoded_len} ({}), {pieces}{}",
        shown(path),
        ratio(original_len, encoded_len),
        if verify { ", whole" } else { "" }
    );
    Ok(ExitCode::SUCCESS)
}

fn check(manifest: &Path) -> Result<ExitCode, String> {
    let problem = failed(manifest);
    let sum = Sum::of_manifest(manifest.as_os_str().as_bytes()).ok_or_else(|| {
        problem(&"does not say by its name which sum it has; name it *.crc32c, *.sha256 or *.b3")
    })?;
    let text = fs::read(manifest).map_err(|error| problem(&error))?;
    let entries = read_manifest(&text).map_err(|error| problem(&error))?;
    if entries.is_empty() {
        return Err(problem(&"has no sums"));
    }
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let mut different = 0;
    for (name, wanted) in &entries {
        let path = folder.join(name);
        let (found, _) = sum.of(&mut open(&path)?).map_err(|error| failed(&path)(&error))?;
        let is_same = found == *wanted;
        different += usize::from(!is_same);
        println!("{}: {}", shown(&path), if is_same { "OK" } else { "FAILED" });
    }
    match different {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(problem(&format!(
            "{} not what the manifest says",
            counted(count, "file is", "files are")
        ))),
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Where a result goes: a file that gets its name once it is whole and durable, or standard output.
struct Target {
    path: PathBuf,
    /// The file without its name yet, and its path until it has it; none for standard output that
    /// is a file itself.
    partial: Option<PathBuf>,
    file: File,
    /// What was made has to be copied to standard output, which is a pipe.
    is_copied: bool,
}

impl Target {
    /// Makes a file for what is made of `original`, with its mode.
    fn create(path: &Path, original: &File) -> Result<Target, String> {
        let problem = failed(path);
        if is_stdout(path) {
            return Target::on_output().map_err(|error| format!("standard output: {error}"));
        }
        let of = original.metadata().map_err(|error| problem(&error))?;
        if let Ok(there) = fs::metadata(path) {
            if (there.dev(), there.ino()) == (of.dev(), of.ino()) {
                return Err(problem(&"is the original; give another name with --output"));
            }
            if !there.is_file() {
                return Err(problem(&"is there, and no regular file; give another name"));
            }
        }
        let name = path.file_name().ok_or_else(|| problem(&"has no file name; give one"))?;
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".forebay-partial.{}", std::process::id()));
        let partial = path.with_file_name(partial);
        let mut options = fs::OpenOptions::new();
        let mode = of.mode() & 0o777;
        let options = options.read(true).write(true).create_new(true).mode(mode & 0o600 | 0o200);
        let file = options.open(&partial).map_err(|error| problem(&error))?;
        let target =
            Target { path: path.to_owned(), partial: Some(partial), file, is_copied: false };
        let set = target.file.set_permissions(Permissions::from_mode(mode));
        set.map_err(|error| problem(&error))?;
        Ok(target)
    }

    fn on_output() -> io::Result<Target> {
        let stdout = io::stdout();
        let file = File::from(stdout.as_fd().try_clone_to_owned()?);
        let path = PathBuf::from("-");
        // Written at its beginning: a file that another process has written to is not meant.
        if file.metadata()?.is_file() && (&file).stream_position()? == 0 {
            return Ok(Target { path, partial: None, file, is_copied: false });
        }
        let scratch = std::env::temp_dir().join(format!(".forebay-output.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&scratch)?;
        fs::remove_file(&scratch)?;
        Ok(Target { path, partial: None, file, is_copied: true })
    }

    fn folder(&self) -> PathBuf {
        match self.path.parent() {
            _ if is_stdout(&self.path) => std::env::temp_dir(),
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    fn file(&mut self) -> io::Result<&mut File> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(&mut self.file)
    }

    /// Gives the result its name.
    fn publish(mut self) -> Result<(), String> {
        let problem = failed(&self.path);
        if self.is_copied {
            let copied = self.file.seek(SeekFrom::Start(0)).and_then(|_| {
                let mut stdout = io::stdout();
                io::copy(&mut self.file, &mut stdout)?;
                stdout.flush()
            });
            return copied.map_err(|error| format!("standard output: {error}"));
        }
        let Some(partial) = &self.partial else { return Ok(()) };
        let folder = self.folder();
        let named = self.file.sync_all().and_then(|()| fs::rename(partial, &self.path));
        named.and_then(|()| File::open(&folder)?.sync_all()).map_err(|error| problem(&error))?;
        self.partial = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = fs::remove_file(partial);
        }
    }
}
