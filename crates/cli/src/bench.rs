//! `forebay bench`, and the worker that its staging systems use.

use clap::{Args, ValueEnum};
use forebay_bench::stage::{When, stage};
use forebay_bench::{Options, Scale};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

/// Options of `forebay bench`.
#[derive(Args)]
pub struct BenchArguments {
    /// What to run: a figure of the Hermes paper
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(forebay_bench::names()))]
    name: String,
    /// Write all numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// small: only whether it works, in a few seconds; its ratios mean nothing
    #[arg(long, value_enum, default_value_t = Size::Usual)]
    scale: Size,
    /// How often everything is run [default: 3, small scale: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Where the emulated devices keep their bytes [default: /dev/shm if it has the room]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Small,
    Usual,
}

/// Arguments of `forebay bench-worker`.
#[derive(Args)]
pub struct WorkerArguments {
    /// When files are copied
    when: Moment,
    /// The directory that the program writes to
    from: PathBuf,
    /// The directory that they are copied to
    to: PathBuf,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Moment {
    Close,
    Exit,
}

/// Runs a figure and shows what came out.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, String> {
    let name = &arguments.name;
    let figure = forebay_bench::figure(name).ok_or_else(|| format!("{name}: no such figure"))?;
    let options = Options {
        forebay: env::current_exe().map_err(|e| format!("cannot find my own binary: {e}"))?,
        scale: match arguments.scale {
            Size::Small => Scale::Small,
            Size::Usual => Scale::Usual,
        },
        rounds: arguments.rounds,
        folder: arguments.dir.clone(),
    };
    let report = forebay_bench::bench(figure, &options, &mut |what| eprintln!("forebay: {what}"))?;
    print!("{}", report.table());
    if let Some(file) = &arguments.json {
        fs::write(file, report.json()).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    arguments.svg.iter().try_for_each(|picture| report.draw(picture))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a program and moves its files as a staging system does.
pub fn worker(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let when = match arguments.when {
        Moment::Close => When::Close,
        Moment::Exit => When::Exit,
    };
    let status = stage(&arguments.from, &arguments.to, when, &arguments.command)?;
    // Behind the program's own line: when all was on the store.
    println!("{}", forebay_bench::now_us());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::from(crate::FAILED) })
}
