//! `forebay stage-in`: brings files into a tier before programs read them.

pub(crate) mod found;
pub mod orders;
mod progress;

use crate::named::{Named, Pool};
use crate::output;
use crate::signals;
use crate::text::{bytes, files};
use clap::Args;
use forebay_node::log::shown;
use found::{Files, Found, Left, NOT_BUFFERED, listed};
use orders::Staging;
use progress::{Amount, Progress};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Options of `forebay stage-in`.
#[derive(Args)]
pub struct StageInArguments {
    /// The tier, by its name: an error where it has no room for all. By default the fastest one
    /// with room, and what that cannot take goes to the next
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// A list of paths, one on each line; `-` is the standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// The paths of the list are ended by NUL bytes, as `find -print0` ends them
    #[arg(short = '0', long = "null", requires = "files_from")]
    null: bool,
    /// Wait until all is staged in (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Go on in the background; what cannot be staged in is not told then
    #[arg(long, overrides_with = "wait", conflicts_with = "json")]
    no_wait: bool,
    /// Say at the end what came where as JSON: an object, see docs/staging.md
    #[arg(long)]
    json: bool,
    /// Files, and directories with everything below them
    #[arg(value_name = "PATH", required_unless_present = "files_from")]
    paths: Vec<PathBuf>,
}

/// What came of a command.
#[derive(Default)]
pub struct Summary {
    /// Files that are on the tiers.
    files: usize,
    /// Bytes of them.
    bytes: u64,
    /// Bytes that came to each tier.
    came: BTreeMap<String, u64>,
    left: Vec<Left>,
}

impl Summary {
    /// Notes a file that is in the tiers.
    pub fn note_staged(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    /// Notes bytes that have come to a tier.
    pub fn note_came(&mut self, tier: &str, bytes: u64) {
        if bytes > 0 {
            *self.came.entry(tier.to_owned()).or_default() += bytes;
        }
    }

    /// Notes a file that is not, or not as a whole, in the tiers.
    pub fn leave(&mut self, path: &Path, reason: impl ToString) {
        self.left.push(Left { path: path.to_owned(), reason: reason.to_string(), error: None });
    }

    fn came(&self) -> u64 {
        self.came.values().sum()
    }

    fn describe(&self, seconds: f64) -> String {
        let mut text = match (self.files, self.came()) {
            (0, 0) => return "staged in no file".to_owned(),
            _ => format!("staged in {} ({})", files(self.files), bytes(self.bytes)),
        };
        let came: Vec<_> =
            self.came.iter().map(|(tier, came)| format!("{} to {tier}", bytes(*came))).collect();
        match &came[..] {
            [] => text += ": all was there already",
            came => text += &format!(": {} in {seconds:.1} s", came.join(", ")),
        }
        text
    }

    fn json(&self, seconds: f64, errors: &[String], interrupted: bool) -> serde_json::Value {
        let tiers: Map<_, _> =
            self.came.iter().map(|(tier, came)| (tier.clone(), json!(came))).collect();
        let left = self
            .left
            .iter()
            .map(|left| json!({ "path": left.path.to_string_lossy(), "reason": left.reason }));
        json!({
            "files": self.files,
            "bytes": self.bytes,
            "came": self.came(),
            "tiers": tiers,
            "seconds": seconds,
            "interrupted": interrupted,
            "failed": left.collect::<Vec<_>>(),
            "errors": errors,
        })
    }
}

/// `forebay stage-in`.
pub fn stage_in(arguments: &StageInArguments) -> Result<ExitCode, String> {
    let ended = stage_all(arguments);
    if let Err(error) = &ended
        && arguments.json
    {
        let errors = std::slice::from_ref(error);
        output::json(Summary::default().json(0.0, errors, signals::early().is_some()));
    }
    ended
}

fn stage_all(arguments: &StageInArguments) -> Result<ExitCode, String> {
    let mut paths = arguments.paths.clone();
    if let Some(list) = &arguments.files_from {
        paths.extend(listed(list, arguments.null)?);
    }
    if arguments.no_wait {
        return go_on_in_background(arguments, &paths);
    }
    let began = Instant::now();
    signals::install()?;
    let goes_on = || signals::early().is_none();
    let paths_left = || paths.iter().take_while(|_| goes_on());
    let named: Vec<Named> = paths_left().filter_map(|path| Named::of(path).ok()).collect();
    let (pools, unreadable) = Pool::all(&named)?;
    unreadable.iter().for_each(|error| eprintln!("forebay: {error}"));
    let stores = pools.iter().flat_map(Pool::stores).map(Path::to_owned).collect();
    let mut all = Files::within(stores);
    paths_left().for_each(|path| all.add(path));
    let mut summary = Summary { left: all.left, ..Summary::default() };
    let mut of_pools: Vec<Vec<Found>> = pools.iter().map(|_| Vec::new()).collect();
    for found in all.found {
        match pools.iter().position(|pool| pool.holds(&found.path)) {
            Some(pool) => of_pools[pool].push(found),
            None => summary.leave(&found.path, NOT_BUFFERED),
        }
    }
    let all = of_pools.iter().flatten();
    let amount = all.fold(Amount::default(), |sum, found| sum.and(found.size));
    let mut progress = Progress::of(amount);
    let mut failed = Vec::new();
    for (pool, found) in pools.iter().zip(of_pools) {
        if !found.is_empty()
            && signals::early().is_none()
            && let Err(error) =
                Staging::stage(pool, found, arguments.tier.as_deref(), &mut summary, &mut progress)
        {
            failed.push(error);
        }
    }
    progress.end();
    Ok(end(arguments, &summary, &failed, began.elapsed().as_secs_f64()))
}

/// Says what came of it.
fn end(
    arguments: &StageInArguments,
    summary: &Summary,
    failed: &[String],
    seconds: f64,
) -> ExitCode {
    let signal = signals::early();
    for left in &summary.left {
        eprintln!("forebay: {}: {}", shown(&left.path), left.reason);
    }
    failed.iter().for_each(|error| eprintln!("forebay: {error}"));
    if arguments.json {
        output::json(summary.json(seconds, failed, signal.is_some()));
    } else {
        println!("{}", summary.describe(seconds));
    }
    if !summary.left.is_empty() {
        eprintln!("forebay: {} not staged in", files(summary.left.len()));
    }
    match signal {
        Some(signal) => {
            eprintln!("forebay: interrupted; what is staged in stays");
            signals::ended_by(signal)
        }
        None if !failed.is_empty() => ExitCode::from(crate::FAILED),
        None => ExitCode::from(u8::from(!summary.left.is_empty())),
    }
}

/// Gives the command once more, to a process that is not waited for.
fn go_on_in_background(
    arguments: &StageInArguments,
    paths: &[PathBuf],
) -> Result<ExitCode, String> {
    let failed = |error: std::io::Error| format!("going on in the background: {error}");
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["stage-in", "--wait", "--null", "--files-from", "-"]);
    if let Some(tier) = &arguments.tier {
        command.args(["--tier", tier]);
    }
    // A group of its own: the terminal's signals are not for it.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut list) = child.stdin.take() {
        for path in paths {
            let line = [path.as_os_str().as_bytes(), b"\0"].concat();
            list.write_all(&line).map_err(failed)?;
        }
    }
    println!("process {} goes on in the background", child.id());
    Ok(ExitCode::SUCCESS)
}
