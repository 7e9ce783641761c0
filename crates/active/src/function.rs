//! Functions of the user's: a WebAssembly module in the sandbox, or a command that reads the file
//! from its standard input and writes the result to its standard output.

use crate::error::{Error, Result, doing};
use forebay_sandbox::{FUNCTION_MODULE_BYTES_MAX, Function as Program, Stop};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes that are passed on at once.
const PART: usize = 256 << 10;
/// Bytes that any function may write besides four times what it reads.
const OUTPUT_MAX_LEAST: u64 = 1 << 20;

/// Who does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A WebAssembly module; see `include/forebay/function.h`.
    Module(PathBuf),
    /// A text for `/bin/sh -c`.
    Command(String),
}

/// Other bytes, made of a file's by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Who does it.
    pub by: By,
    /// Bytes of the result at most; none: four times the file, and 1 MiB.
    pub output_max: Option<u64>,
}

impl Function {
    /// Checks that something is named; a module is looked at when it runs.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.by {
            By::Module(_) => Ok(()),
            By::Command(text) if text.trim().is_empty() => {
                Err(Error::Option("the command is empty; give a text for /bin/sh".to_owned()))
            }
            By::Command(_) => Ok(()),
        }
    }

    /// Runs it over `length` bytes; returns how many it wrote.
    pub(crate) fn run(
        &self,
        input: &mut (impl Read + Send + ?Sized),
        length: u64,
        output: &mut (impl Write + ?Sized),
    ) -> Result<u64> {
        let most = length.saturating_mul(4).saturating_add(OUTPUT_MAX_LEAST);
        let output_max = self.output_max.unwrap_or(most);
        let mut counted = Counted { inner: BufWriter::with_capacity(PART, output), written: 0 };
        match &self.by {
            By::Module(path) => {
                let mut input = io::BufReader::with_capacity(PART, input);
                let done = load(path)?.run(&mut input, &mut counted, output_max);
                done.map_err(|stop| match stop {
                    Stop::Fault(what) => Error::Function(format!("{}: {what}", path.display())),
                    Stop::Read(error) => doing("read the original")(error),
                    Stop::Write(error) => doing("write the result")(error),
                })?;
            }
            By::Command(text) => piped(text, input, &mut counted, output_max)?,
        }
        counted.flush().map_err(doing("write the result"))?;
        Ok(counted.written)
    }
}

fn load(path: &Path) -> Result<Program> {
    let failed = |what: String| Error::Option(format!("{}: {what}", path.display()));
    let unreadable = |error| failed(format!("cannot be read: {error}; give an existing file"));
    // To open a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(failed("is no regular file; give a WebAssembly module".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // What is longer is refused for that.
    let most = FUNCTION_MODULE_BYTES_MAX as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    Program::of(&bytes).map_err(failed)
}

struct Counted<W> {
    inner: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A child that is ended with its guard.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // One that has ended is not sent anything.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn piped(
    text: &str,
    input: &mut (impl Read + Send + ?Sized),
    output: &mut impl Write,
    output_max: u64,
) -> Result<()> {
    let failed = |what: String| Error::Function(format!("the command {what}"));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    let mut child = Ending(child);
    let (stdin, stdout) = (child.0.stdin.take(), child.0.stdout.take());
    let (mut stdin, mut stdout) = stdin.zip(stdout).expect("both are pipes");
    let (fed, taken) = std::thread::scope(|scope| {
        let feeder = scope.spawn(move || feed(input, &mut stdin));
        let taken = take(&mut stdout, output, output_max);
        drop(stdout);
        if taken.is_err() {
            // The feeder is to find its pipe closed.
            let _ = child.0.kill();
        }
        (feeder.join().expect("the feeder does not panic"), taken)
    });
    taken.and_then(|is_within| match is_within {
        true => Ok(()),
        false => Err(failed("wrote more than it may; allow it more, with output_max".to_owned())),
    })?;
    let status = child.0.wait().map_err(doing("wait for the command"))?;
    if !status.success() {
        return Err(failed(format!("ended with {status}")));
    }
    fed.map(drop)
}

/// Passes the file on; a command that does not want all of it may close its input.
fn feed(input: &mut (impl Read + ?Sized), stdin: &mut impl Write) -> Result<()> {
    let mut part = vec![0; PART];
    loop {
        let read = match input.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(doing("read the original")(error)),
        };
        match stdin.write_all(&part[..read]) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(doing("write to the command")(error)),
        }
    }
}

/// Takes its output; false if that is more than it may be.
fn take(stdout: &mut impl Read, output: &mut impl Write, output_max: u64) -> Result<bool> {
    let mut part = vec![0; PART];
    let mut left = output_max;
    loop {
        let read = match stdout.read(&mut part) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(doing("read from the command")(error)),
        };
        if read as u64 > left {
            return Ok(false);
        }
        left -= read as u64;
        output.write_all(&part[..read]).map_err(doing("write the result"))?;
    }
}
