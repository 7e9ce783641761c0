//! What a run did, as a page for people and programs: `forebay run --report`, and `forebay report`
//! of the last run. One JSON document is made at the end of a run; text and HTML are made of that.

mod advice;
mod collect;
mod html;
mod page;
mod text;

pub use collect::{Collector, Outcome};

use crate::output;
use clap::Args;
use forebay_node::runtime::{base, read_private, write_private};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The version of the document: raised when a key changes its meaning or goes.
pub const SCHEMA: u64 = 1;

/// Where the document of the last run is, in the folder of all instances.
const LAST: &str = "last-report.json";

/// Options of `forebay report`.
#[derive(Args)]
#[command(after_help = "Examples:\n  forebay report\n  forebay report --output run.html\n  \
    forebay report --json | jq .advice")]
pub struct ReportArguments {
    /// A report that `forebay run --report=FILE.json` has written; without it that of the last run
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write it to this file: as JSON or HTML if its name ends so, else as text
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// As JSON, see docs/report.md
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// `forebay report`.
pub fn report(arguments: &ReportArguments) -> Result<ExitCode, String> {
    let document = match &arguments.file {
        Some(file) => {
            let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            parse(&fs::read_to_string(file).map_err(|error| failed(&error))?)
                .map_err(|error| failed(&error))?
        }
        None => last()?,
    };
    match &arguments.output {
        Some(output) => write_to(output, &document)?,
        None if arguments.json => output::json(pretty(&document)),
        None => print!("{}", text::of(&document)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The document of the last run.
fn last() -> Result<Value, String> {
    let base = base()?;
    let file = base.join(LAST);
    match read_private(&file) {
        Ok(read) => parse(&read).map_err(|error| format!("{}: {error}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
            "no run of yours has ended here yet: there is no report in {}. Another host, or a job whose \
             FOREBAY_RUNTIME_DIR or XDG_RUNTIME_DIR is another one, has its own; `forebay run \
             --report=FILE` writes one where you want it",
            base.display()
        )),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

fn parse(text: &str) -> Result<Value, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| {
        format!("is no report: {error}; give a file of `run --report=FILE.json`")
    })?;
    match document["schema"].as_u64() {
        Some(SCHEMA) => Ok(document),
        Some(other) => Err(format!(
            "is a report of version {other}; this command reads version {SCHEMA}: use one of that version"
        )),
        None => Err("is no report; give a file of `run --report=FILE.json`".to_owned()),
    }
}

fn pretty(document: &Value) -> String {
    serde_json::to_string_pretty(document).unwrap_or_default()
}

/// Keeps the document for `forebay report`. One that cannot be kept is no error of the run.
fn keep(document: &Value) {
    let Ok(base) = base() else { return };
    // Another run may be ending: a reader finds one of both, whole.
    let fresh = base.join(format!("{LAST}.{}", std::process::id()));
    let kept = write_private(&fresh, &document.to_string());
    if kept.and_then(|()| fs::rename(&fresh, base.join(LAST))).is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

/// Writes it in the form that the name of the file says, whole or not at all.
fn write_to(file: &Path, document: &Value) -> Result<(), String> {
    let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let content = match ending.to_ascii_lowercase().as_str() {
        "json" => pretty(document) + "\n",
        "html" | "htm" => html::of(document),
        _ => text::of(document),
    };
    let failed = |error: std::io::Error| format!("{}: {error}; give another file", file.display());
    if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        // A FIFO, or a terminal, is written to as it is.
        return fs::write(file, content).map_err(failed);
    }
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = fs::write(&part, content).and_then(|()| fs::rename(&part, file));
    written.map_err(|error| {
        let _ = fs::remove_file(&part);
        failed(error)
    })
}
