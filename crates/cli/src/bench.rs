//! `forebay bench`, and the worker that its staging systems use.

use crate::bars::{self, Bar, Chart, Group};
use crate::demo;
use crate::picture::{BLUE, GREEN, SKY, Width};
use clap::{Args, ValueEnum};
use forebay_bench::stage::{Movers, When, stage};
use forebay_bench::{Bars, Measured, Options, Scale};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

/// Options of `forebay bench`.
#[derive(Args)]
pub struct BenchArguments {
    /// What to run: the hot path, or a figure of the Hermes paper
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(names()))]
    name: String,
    /// Write all numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to this file, as a page has them (not of figures 8 to 11)
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the figure (not of the hot path)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// How wide the picture is: as many pixels as it has, or for one or both columns of a page
    #[arg(long, value_enum, default_value_t = Width::Screen, requires = "svg")]
    width: Width,
    /// Measure nothing: draw the numbers that an earlier --json wrote to this file
    #[arg(long, value_name = "FILE", requires = "svg", conflicts_with_all = ["json", "markdown"])]
    redraw: Option<PathBuf>,
    /// small: only whether it works, in a few seconds; its ratios mean nothing
    #[arg(long, value_enum, default_value_t = Size::Usual)]
    scale: Size,
    /// The same as --scale small
    #[arg(long)]
    quick: bool,
    /// How often everything is run [default: 3 to 5, small scale: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Where files are [default: of figures 8 to 11 /dev/shm if it has the room, else /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// peers: install competitors from PyPI into a virtual environment below --dir
    #[arg(long)]
    install: bool,
    /// cliffs: only these kinds of operation, such as create-close
    #[arg(long = "work", value_name = "NAME")]
    works: Vec<String>,
    /// nodes-fig5, nodes-fig6: how many nodes, of namespaces that the command makes
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(2..=4))]
    nodes: u8,
}

impl BenchArguments {
    /// Where the folders are that a benchmark makes.
    pub fn parents(&self) -> Vec<PathBuf> {
        let usual = [PathBuf::from("/dev/shm"), env::temp_dir()];
        self.dir.clone().into_iter().chain(usual).collect()
    }
}

/// A benchmark that is no figure on emulated tiers.
type Benchmark = fn(&Options, &mut dyn FnMut(&str)) -> Result<Measured, String>;

/// All of them.
const BENCHMARKS: [(&str, Benchmark); 29] = [
    ("micro", forebay_bench::micro),
    ("cliffs", forebay_bench::cliffs),
    ("peers", forebay_bench::peers),
    ("policies", forebay_bench::policies),
    ("prefetch", forebay_bench::prefetch),
    ("mlbs", forebay_bench::mlbs),
    ("data-elevator-analysis", forebay_bench::analysis),
    ("active", forebay_bench::active),
    ("fabric", forebay_bench::fabric),
    ("hermes-fig4", forebay_bench::hermes_fig4),
    ("hermes-fig5", forebay_bench::hermes_fig5),
    ("hermes-fig6", forebay_bench::hermes_fig6),
    ("nodes", forebay_bench::nodes),
    ("nodes-fig5", forebay_bench::nodes_fig5),
    ("nodes-fig6", forebay_bench::nodes_fig6),
    ("nvm-model", forebay_bench::nvm_model),
    ("nvm-adapter", forebay_bench::nvm_adapter),
    ("data-elevator-fig5", forebay_bench::data_elevator_fig5),
    ("data-elevator-fig6", forebay_bench::data_elevator_fig6),
    ("data-elevator-fig7", forebay_bench::data_elevator_fig7),
    ("data-elevator-fig8", forebay_bench::data_elevator_fig8),
    ("nvm-fig4", forebay_bench::nvm_fig4),
    ("nvm-fig5", forebay_bench::nvm_fig5),
    ("nvm-fig6", forebay_bench::nvm_fig6),
    ("nvm-fig7", forebay_bench::nvm_fig7),
    ("nvm-fig8", forebay_bench::nvm_fig8),
    ("nvm-fig9", forebay_bench::nvm_fig9),
    ("nvm-fig10", forebay_bench::nvm_fig10),
    ("nvm-fig11", forebay_bench::nvm_fig11),
];

/// Those that make nodes.
const OF_NODES: [&str; 3] = ["nodes", "nodes-fig5", "nodes-fig6"];

fn names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|(name, _)| *name).chain(forebay_bench::names())
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
    /// Threads that copy
    #[arg(long, default_value_t = Movers::default().count)]
    movers: usize,
    /// Bytes that each copies at once
    #[arg(long, default_value_t = Movers::default().piece)]
    piece: u64,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Arguments of `forebay bench-publisher`.
#[derive(Args)]
pub struct PublisherArguments {
    /// The file in which the processes meet
    file: PathBuf,
    /// Which of them this is
    client: u32,
    /// Messages to publish
    count: usize,
}

/// Arguments of `forebay bench-peer`.
#[derive(Args)]
pub struct PeerArguments {
    /// The kind of link
    system: String,
    /// The file that says where it is
    file: PathBuf,
    /// The address that it listens at
    #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
    own: Ipv4Addr,
}

#[derive(Clone, Copy, ValueEnum)]
enum Moment {
    Close,
    Exit,
}

/// Runs a benchmark and shows what came out.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, String> {
    let outputs = [&arguments.json, &arguments.markdown, &arguments.svg];
    outputs.into_iter().flatten().try_for_each(|file| crate::check_folder(file))?;
    let name = &arguments.name;
    if let (Some(from), Some(to)) = (&arguments.redraw, &arguments.svg) {
        let failed = |error: String| format!("{}: {error}", from.display());
        let json = fs::read_to_string(from).map_err(|error| failed(error.to_string()))?;
        let figure = forebay_bench::redraw(name, &json).map_err(failed)?;
        draw(to, figure, arguments.width)?;
        return Ok(ExitCode::SUCCESS);
    }
    if OF_NODES.contains(&&**name) {
        forebay_bench::enter_network(demo::user_namespace()?)?;
    }
    let options = Options {
        forebay: env::current_exe().map_err(|e| format!("cannot find my own binary: {e}"))?,
        scale: match arguments.scale {
            Size::Usual if !arguments.quick => Scale::Usual,
            _ => Scale::Small,
        },
        rounds: arguments.rounds,
        folder: arguments.dir.clone(),
        nodes: arguments.nodes.into(),
        install: arguments.install,
        works: arguments.works.clone(),
    };
    let mut say = |what: &str| eprintln!("forebay: {what}");
    let save = |file: &Option<PathBuf>, text: String| match file {
        Some(file) => fs::write(file, text).map_err(|e| format!("{}: {e}", file.display())),
        None => Ok(()),
    };
    if let Some((_, benchmark)) = BENCHMARKS.iter().find(|(found, _)| found == name) {
        let measured = benchmark(&options, &mut say)?;
        print!("{}", measured.table());
        save(&arguments.json, measured.json())?;
        save(&arguments.markdown, measured.markdown())?;
        if let Some(file) = &arguments.svg {
            let missing = || format!("cannot draw {}: {name} has no picture", file.display());
            draw(file, measured.bars().ok_or_else(missing)?, arguments.width)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let figure = forebay_bench::figure(name).ok_or_else(|| format!("{name}: no such figure"))?;
    let report = forebay_bench::bench(figure, &options, &mut say)?;
    print!("{}", report.table());
    save(&arguments.json, report.json())?;
    arguments.svg.iter().try_for_each(|file| draw(file, report.bars(), arguments.width))?;
    Ok(ExitCode::SUCCESS)
}

/// Draws a benchmark's bars into an SVG file.
fn draw(file: &Path, figure: Bars, width: Width) -> Result<(), String> {
    let names = if figure.parts.is_empty() { vec![""] } else { figure.parts };
    let parts: Vec<_> = names.into_iter().zip([BLUE, SKY, GREEN]).collect();
    let bar = |bar: forebay_bench::Bar| Bar {
        name: bar.name,
        parts: bar.parts,
        marks: bar.marks,
        spread: Some(bar.spread),
    };
    let has_marks =
        figure.groups.iter().flat_map(|group| &group.bars).any(|bar| !bar.marks.is_empty());
    let group = |group: forebay_bench::Group| Group {
        name: group.name,
        bars: group.bars.into_iter().map(bar).collect(),
    };
    let chart = Chart {
        title: &figure.title,
        unit: figure.unit,
        parts: &parts,
        margins: (230, 100),
        label: |length| if length < 0.1 { format!("{length:.4}") } else { format!("{length:.2}") },
        marks: if has_marks { "by the paper's ratios" } else { "" },
        notes: &figure.notes,
        groups: figure.groups.into_iter().map(group).collect(),
        width,
    };
    bars::draw(file, &chart)
}

/// Publishes messages when all processes of the figure are ready.
pub fn publisher(arguments: &PublisherArguments) -> Result<ExitCode, String> {
    let PublisherArguments { file, client, count } = arguments;
    forebay_bench::publisher(file, *client, *count)?;
    Ok(ExitCode::SUCCESS)
}

/// Answers at the other end of a link.
pub fn peer(arguments: &PeerArguments) -> Result<ExitCode, String> {
    forebay_bench::peer(&arguments.system, &arguments.file, arguments.own)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a program and moves its files as a staging system does.
pub fn worker(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let when = match arguments.when {
        Moment::Close => When::Close,
        Moment::Exit => When::Exit,
    };
    let movers = Movers { count: arguments.movers, piece: arguments.piece };
    let status = stage(&arguments.from, &arguments.to, when, movers, &arguments.command)?;
    // Behind the program's own line: when all was on the store.
    println!("{}", forebay_bench::now_us());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::from(crate::FAILED) })
}
