//! `forebay node`: this process becomes a node manager.

use crate::group::GroupArguments;
use crate::instance::InstanceArguments;
use crate::output;
use crate::text::{self, counted, files as files_of};
use clap::Args;
use forebay_node::log::Level;
use forebay_node::runtime::{Runtime, read_private};
use forebay_node::{Config, Ending, Options, Rebuilt, Service, serve};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `forebay node`.
#[derive(Args)]
pub struct NodeArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    #[command(flatten)]
    group: GroupArguments,
    /// Record every movement in this file (CSV)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The instance's own configuration, as `forebay run` writes it
    #[arg(long, hide = true)]
    resolved: Option<PathBuf>,
    /// The instance that it goes on with
    #[arg(long, hide = true, requires = "resolved")]
    instance_name: Option<String>,
    /// End when no run needs it any more
    #[arg(long, hide = true)]
    ephemeral: bool,
    /// Drain and end
    #[arg(long, hide = true)]
    drain_and_end: bool,
    /// Descriptor to report on once clients can connect
    #[arg(long, hide = true)]
    ready_fd: Option<i32>,
}

/// `forebay node`.
pub fn node(arguments: &NodeArguments) -> Result<ExitCode, String> {
    let mut report = arguments
        .ready_fd
        // SAFETY: the descriptor was opened by our parent for this.
        .map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    forebay_node::log::begin();
    let result = serve_instance(arguments, &mut report);
    if let (Err(message), Some(mut report)) = (&result, report) {
        let _ = report.write_all(message.as_bytes());
    }
    result
}

pub(super) fn serve_instance(
    arguments: &NodeArguments,
    report: &mut Option<File>,
) -> Result<ExitCode, String> {
    let (config, runtime) = match &arguments.resolved {
        Some(file) => {
            let text =
                read_private(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let config = Config::parse(&text).map_err(|error| error.to_string())?;
            let runtime = match &arguments.instance_name {
                Some(name) => Runtime::of_instance(name)?,
                None => Runtime::of(&config)?,
            };
            (config, runtime)
        }
        None => {
            let (mut config, runtime) = arguments.instance.runtime()?;
            arguments.group.take(&mut config, &runtime)?;
            (config, runtime)
        }
    };
    runtime.prepare()?;
    spare_from_oom();
    let foreground = report.is_none();
    let options = Options {
        ephemeral: arguments.ephemeral,
        drain_and_end: arguments.drain_and_end,
        trace: arguments.trace.clone(),
        report: report.as_ref().and_then(|report| report.try_clone().ok()),
        // One that a command has started is not the service's main process.
        service: if foreground { Service::of_environment() } else { Service::default() },
    };
    let described = config.describe();
    let ending = serve(config, &runtime, &options, |started| {
        let rebuilt = started.rebuilt.map(describe_rebuilt).map(|said| (Level::Info, said));
        let warnings = started.warnings.into_iter().map(|said| (Level::Warning, said));
        for (level, said) in rebuilt.into_iter().chain(warnings) {
            output::tell_as(level, format_args!("forebay: {said}"));
            if let Some(report) = report.as_mut() {
                writeln!(report, "{said}").map_err(|error| error.to_string())?;
            }
        }
        if foreground {
            let served = runtime.read_config().map_or(described, |config| config.describe());
            eprintln!("forebay: serving {served} ({})", runtime.socket().display());
        }
        if let Some(mut report) = report.take() {
            report.write_all(b"ready\n").map_err(|error| error.to_string())?;
        }
        Ok(())
    })?;
    match ending {
        Ending::Drained => Ok(ExitCode::SUCCESS),
        Ending::InUse => {
            eprintln!(
                "forebay: everything is on the backing store; programs use it without buffering, and {} \
                 stays for the next node manager",
                runtime.pool.display()
            );
            Ok(ExitCode::SUCCESS)
        }
        Ending::Kept { failing, bytes } => Err(format!(
            "{} ({}) could not be written; {} keeps the data for `forebay recover`",
            files_of(failing),
            text::bytes(bytes),
            runtime.pool.display()
        )),
    }
}

/// Where memory gets scarce, the manager is the last to be killed, if we may say so: what it has
/// mapped is the RAM tier, which its end would not free, and its work is what does.
pub(super) fn spare_from_oom() {
    const SCORE: i32 = -500;
    let place = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(place).ok().and_then(|now| now.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > SCORE) {
        let _ = fs::write(place, SCORE.to_string());
    }
}

/// Files that are named which were not finished.
const UNFINISHED_NAMED: usize = 10;

pub(super) fn describe_rebuilt(rebuilt: Rebuilt) -> String {
    let Rebuilt { files, bytes, removed, kept, kept_in, unfinished } = rebuilt;
    let mut said = format!(
        "recovered {} ({}) from the tiers of an earlier run",
        files_of(files),
        text::bytes(bytes)
    );
    if removed > 0 {
        said.push_str(&format!(
            "; data of {} removed since is dropped",
            counted(removed, "file that was", "files that were")
        ));
    }
    if kept > 0 {
        let folders: Vec<_> = kept_in.iter().map(|folder| folder.display().to_string()).collect();
        said.push_str(&format!(
            "; what fsync has acknowledged of {} not on the store any more is kept in {}: remove it if it is not wanted",
            counted(kept, "file that is", "files that are"),
            folders.join(", ")
        ));
    }
    if !unfinished.is_empty() {
        let named = unfinished.iter().take(UNFINISHED_NAMED).map(|path| path.display().to_string());
        let named: Vec<_> = named.collect();
        let more = match unfinished.len().saturating_sub(UNFINISHED_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        said.push_str(&format!(
            "; {} still being written then, and may lack what came last: {}{more}",
            counted(unfinished.len() as u64, "staged file was", "staged files were"),
            named.join(", ")
        ));
    }
    said
}
