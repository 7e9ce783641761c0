//! The `forebay` command.

// First: its macros take the place of those of the standard library in all that follow.
#[macro_use]
mod output;

mod active;
mod analyse;
mod aside;
mod ask;
mod bars;
mod batch;
mod batch_script;
#[cfg(feature = "bench")]
mod bench;
mod check;
mod demo;
mod detach;
mod directives;
mod disposable;
mod drain;
mod elsewhere;
mod explain;
mod fills;
mod flush;
mod follow;
mod fsck;
mod gauges;
mod give_up;
mod group;
mod holders;
mod instance;
mod keep;
mod lost;
mod manager;
mod manual;
mod metrics;
mod model;
mod movements;
mod named;
mod picture;
mod pin;
mod ping_pong;
mod predictor;
mod profile;
mod progress_bar;
mod recorder;
mod recording;
mod replace;
mod report;
mod run;
mod salvage;
mod signals;
mod simulate;
mod stage_in;
mod stage_out;
mod status;
mod summary;
mod task;
mod text;
mod timeline;
mod top;
#[cfg(feature = "torture")]
mod torture;
mod trace;
mod wait;
mod watch;
mod web;

use clap::{FromArgMatches, Parser, Subcommand};
use forebay_node::log::Level;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Buffers the files of unmodified programs in RAM, NVMe and burst buffers, and drains them to
/// their own paths in the background.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
#[cfg_attr(not(feature = "ucx"), command(long_version = BUILD))]
#[cfg_attr(feature = "ucx", command(long_version = NOTICES.as_str()))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command with its files buffered; drain; exit with the command's status
    Run(run::RunArguments),
    /// Run a batch script whose `#FB` lines say what is buffered, staged in before and out after it
    Batch(batch_script::BatchArguments),
    /// Run a command as `run` does; draw what its threads and the tiers did; say how much faster
    /// than its store it is, and should be
    Trace(trace::TraceArguments),
    /// Show the main job on an emulated hierarchy: first without, then with Forebay
    Demo {
        /// Where to put the table and the timeline picture
        #[arg(long, value_name = "DIR", default_value = "forebay-demo")]
        output: PathBuf,
        /// Show so many nodes over one store instead, each made of namespaces of this machine
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(2..=4))]
        nodes: Option<u8>,
    },
    #[cfg(feature = "bench")]
    /// Repeat a paper's evaluation on emulated tiers, against the systems it compares
    Bench(bench::BenchArguments),
    #[cfg(feature = "bench")]
    /// What `bench` runs to move files as a staging system does
    #[command(hide = true)]
    BenchWorker(bench::WorkerArguments),
    #[cfg(feature = "bench")]
    /// What `bench hermes-fig6` runs to publish messages from a process of its own
    #[command(hide = true)]
    BenchPublisher(bench::PublisherArguments),
    #[cfg(feature = "bench")]
    /// What `bench fabric` runs as the other end of its links
    #[command(hide = true)]
    BenchPeer(bench::PeerArguments),
    /// Check a configuration: all errors at once, what it will do, its sizes against this machine
    Check(check::CheckArguments),
    /// Find this machine's devices, measure them, and write a configuration
    Profile(profile::ProfileArguments),
    /// Show what a model of I/O says, beside the tables of its paper
    Model(model::ModelArguments),
    /// Simulate a cluster, and compare ways of buffering on it
    Simulate(simulate::SimulateArguments),
    /// Show what the last run did: bytes, hit rates, time hidden, what to change
    Report(report::ReportArguments),
    /// Show the node managers of this user: tiers, clients, files not yet on the store
    Status(status::StatusArguments),
    /// Show the same live: tiers, how fast bytes come and go, processes and files by use
    Top(top::TopArguments),
    /// Print the metrics of the node managers of this user, as Prometheus reads them
    Metrics(metrics::MetricsArguments),
    /// Say which rule holds for a file, where its bytes are, and where new ones would go
    Explain(explain::ExplainArguments),
    /// Run a command on files while they are in the tiers: after each close, or each step
    Analyse(analyse::AnalyseArguments),
    /// Try a program that predicts what is read, before a rule names it
    Predictor(predictor::PredictorArguments),
    /// Do an operation on a file (sort, compress, deduplicate, ...), or bring its original back
    Active(active::ActiveArguments),
    /// Print the XML Schema definition of buffering schemas, for editors and validators
    Schema,
    /// Bring files to the backing store now, and make them durable
    Flush(flush::FlushArguments),
    /// Bring files from the backing store into a tier, so that programs read them from there
    StageIn(stage_in::StageInArguments),
    /// Bring what is buffered of files to the backing store, and make it durable; with --drop also
    /// give up their room on the tiers
    StageOut(stage_out::StageOutArguments),
    /// Give up the room on the tiers of what the store has of files; nothing is brought there
    Drop(stage_out::DropArguments),
    /// Keep files in a tier, whatever else wants the room, as long as this command runs
    Pin(pin::PinArguments),
    /// Replace files on the backing store by an encoded form, which takes less room; programs that
    /// run buffered find the original bytes
    Replace(replace::ReplaceArguments),
    /// Give files that were replaced their original bytes again
    Restore(replace::RestoreArguments),
    /// Wait until files are on the backing store, without pushing them there
    Wait(wait::WaitArguments),
    /// Drain what node managers that are gone have left, and end them; with --config or --backing
    /// also what a reboot has left of that instance's tiers
    Recover(instance::InstanceArguments),
    /// Give up what a node that has gone had not flushed, so that others may have its files
    GiveUp(give_up::GiveUpArguments),
    /// Write what a dead store cannot take to another directory, without changing anything
    Salvage(salvage::SalvageArguments),
    /// Check pools and their tiers, without changing them
    Fsck(fsck::PoolArguments),
    /// Drain a running node manager's tiers and end it; without options the only one that runs
    Stop(manager::StopArguments),
    #[cfg(feature = "torture")]
    /// Kill workers and node managers under load on a failing store, and verify every byte
    Torture(torture::TortureArguments),
    #[cfg(feature = "torture")]
    /// What `torture` runs under `forebay run`
    #[command(hide = true)]
    TortureWorker(torture::WorkerArguments),
    /// Start a node manager that goes on until `forebay down`, here or on all hosts of a group, and
    /// wait until it is in its group
    Up(manager::UpArguments),
    /// End what `forebay up` has started, as `forebay stop` does, here or on all hosts of a group
    Down(manager::DownArguments),
    /// Serve as node manager in the foreground (`forebay run` starts one by itself)
    Node(manager::NodeArguments),
    /// Print a script that completes the command line in a shell
    Completions(manual::CompletionsArguments),
    /// Write manual pages to a folder
    ManPages(manual::ManPagesArguments),
}

/// What `forebay --version` says after the name.
const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit   ",
    env!("FOREBAY_BUILD_COMMIT"),
    "\nprofile  ",
    env!("FOREBAY_BUILD_PROFILE"),
    "\ntarget   ",
    env!("FOREBAY_BUILD_TARGET"),
    "\nfeatures ",
    env!("FOREBAY_BUILD_FEATURES")
);

/// What the licence of UCX asks of programs that have it in them.
#[cfg(feature = "ucx")]
static NOTICES: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
    format!("{BUILD}\n\nThis build contains UCX:\n\n{}", forebay_node::UCX_LICENSE)
});

fn main() -> ExitCode {
    #[cfg(feature = "ucx")]
    // SAFETY: the first thing in `main`: there is one thread.
    unsafe {
        forebay_node::begin_ucx();
    }
    output::pass_on_closed();
    let parsed = manual::command().try_get_matches();
    let arguments = match parsed.and_then(|parsed| Arguments::from_arg_matches(&parsed)) {
        Ok(arguments) => arguments,
        Err(error) => {
            match error.use_stderr() {
                // There is no other place.
                true => drop(error.print()),
                false => output::print_by(|| error.print()),
            }
            // After `forebay run`, 2 would be the command's own.
            let runs = std::env::args_os()
                .nth(1)
                .is_some_and(|word| word == "run" || word == "trace" || word == "batch");
            let code = if runs && error.use_stderr() { FAILED.into() } else { error.exit_code() };
            return output::finish(ExitCode::from(u8::try_from(code).unwrap_or(FAILED)));
        }
    };
    let result = match arguments.command {
        Command::Run(arguments) => run::run(&arguments, None),
        Command::Batch(arguments) => batch_script::batch(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Demo { output, nodes } => {
            let work = || {
                let options = demo::Options::new(output)?;
                match nodes {
                    Some(nodes) => demo::demo_nodes(&options, nodes.into()),
                    None => demo::demo(&options),
                }
            };
            disposable::dispose_of("forebay-demo", &[std::env::temp_dir()], work)
        }
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => {
            let work = || bench::bench(&arguments);
            disposable::dispose_of("forebay-bench", &arguments.parents(), work)
        }
        #[cfg(feature = "bench")]
        Command::BenchWorker(arguments) => bench::worker(&arguments),
        #[cfg(feature = "bench")]
        Command::BenchPublisher(arguments) => bench::publisher(&arguments),
        #[cfg(feature = "bench")]
        Command::BenchPeer(arguments) => bench::peer(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Model(arguments) => model::model(&arguments),
        Command::Simulate(arguments) => simulate::simulate(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Metrics(arguments) => metrics::metrics(&arguments),
        Command::Analyse(arguments) => analyse::analyse(&arguments),
        Command::Predictor(arguments) => predictor::predictor(&arguments),
        Command::Active(arguments) => active::active(&arguments),
        Command::Schema => {
            print!("{}", forebay_node::config::XSD);
            Ok(ExitCode::SUCCESS)
        }
        Command::Flush(arguments) => flush::flush(&arguments),
        Command::StageIn(arguments) => stage_in::stage_in(&arguments),
        Command::StageOut(arguments) => stage_out::stage_out(&arguments),
        Command::Drop(arguments) => stage_out::drop_clean(&arguments),
        Command::Pin(arguments) => pin::pin(&arguments),
        Command::Replace(arguments) => replace::replace(&arguments),
        Command::Restore(arguments) => replace::restore(&arguments),
        Command::Wait(arguments) => wait::wait(&arguments),
        Command::GiveUp(arguments) => give_up::give_up(&arguments),
        Command::Salvage(arguments) => salvage::salvage(&arguments),
        Command::Fsck(arguments) => fsck::fsck(&arguments),
        Command::Recover(arguments) => manager::recover(&arguments),
        Command::Stop(arguments) => manager::stop(&arguments),
        #[cfg(feature = "torture")]
        Command::Torture(arguments) => torture::torture(&arguments),
        #[cfg(feature = "torture")]
        Command::TortureWorker(arguments) => torture::work(&arguments),
        Command::Up(arguments) => manager::up(&arguments),
        Command::Down(arguments) => manager::down(&arguments),
        Command::Node(arguments) => manager::node(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::ManPages(arguments) => manual::man_pages(&arguments),
    };
    output::finish(result.unwrap_or_else(|message| {
        output::tell_as(Level::Error, format_args!("forebay: {message}"));
        ExitCode::from(FAILED)
    }))
}

/// Refuses an output whose folder does not exist, before anything is measured for it.
fn check_folder(file: &Path) -> Result<(), String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(format!("{}: its folder does not exist; make it, or name another", file.display()))
        }
        _ => Ok(()),
    }
}

/// What `forebay run` returns when it could not do its part: 125, as env and timeout do.
const FAILED: u8 = 125;
