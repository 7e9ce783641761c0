//! Benchmarks against what users would pick instead, always side by side in one run.
//!
//! [`bench()`]: the evaluation of the Hermes paper (HPDC'18, Figures 8 to 11), repeated on emulated
//! tiers of one machine: unmodified C programs, directly on the store, on two staging systems, and
//! under Forebay. One file for each figure in `figures`, one for each competitor in `systems`.
//!
//! [`micro`]: the hot path, against memcpy, tmpfs and the page cache. [`hermes_fig4`],
//! [`hermes_fig5`] and [`hermes_fig6`]: what lies in shared memory, against allocators and servers.
//! [`prefetch()`]: what is read ahead. [`mlbs()`]: computing out of core. [`analysis()`]: commands
//! that read a file in transit. [`active()`]: operations on it. [`cliffs`]: what ordinary
//! operations around it cost.
//! [`peers`]: the same program on other file systems that buffer. [`fabric()`]: the links between
//! node managers, beside plain sockets. [`nodes()`], [`nodes_fig5`] and [`nodes_fig6`]: a group of
//! several nodes, each a set of namespaces. [`nvm_model`]: what a model of collective I/O says,
//! and what was measured. [`data_elevator_fig5`] to `8` and [`nvm_fig4`] to `11`: the figures of
//! the papers on Data Elevator and NVM, with the I/O of scientific programs over HDF5 and MPI.

mod active;
mod analysis;
mod bars;
mod cliffs;
mod elevator;
mod figures;
mod hierarchy;
mod links;
mod machine;
mod measured;
mod memory;
mod micro;
mod mlbs;
mod nodes;
mod nvm;
mod paper;
mod peers;
mod policies;
mod prefetch;
mod redraw;
mod report;
mod runner;
mod science;
mod server;
mod site;
pub mod stage;
mod systems;

pub use active::active;
pub use analysis::analysis;
pub use bars::{Bar, Bars, Group};
pub use cliffs::cliffs;
pub use elevator::fig5::run as data_elevator_fig5;
pub use elevator::fig6::run as data_elevator_fig6;
pub use elevator::fig7::run as data_elevator_fig7;
pub use elevator::fig8::run as data_elevator_fig8;
pub use figures::{Figure, figure, names};
pub use links::{fabric, peer};
pub use measured::Measured;
pub use memory::fig4::run as hermes_fig4;
pub use memory::fig5::run as hermes_fig5;
pub use memory::fig6::publisher;
pub use memory::fig6::run as hermes_fig6;
pub use micro::micro;
pub use mlbs::mlbs;
pub use nodes::budgets::run as nodes;
pub use nodes::enter as enter_network;
pub use nodes::fig5::run as nodes_fig5;
pub use nodes::fig6::run as nodes_fig6;
pub use nvm::adapter::nvm_adapter;
pub use nvm::caches::{fig4 as nvm_fig4, fig5 as nvm_fig5, fig6 as nvm_fig6};
pub use nvm::interfaces::{fig7 as nvm_fig7, fig8 as nvm_fig8};
pub use nvm::modes::{fig9 as nvm_fig9, fig10 as nvm_fig10, fig11 as nvm_fig11};
pub use nvm::nvm_model;
pub use peers::peers;
pub use policies::policies;
pub use prefetch::prefetch;
pub use redraw::redraw;
pub use report::Report;

pub use runner::now_us;

use std::path::PathBuf;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A thousandth of what a node did in the paper, in about 90 seconds.
    Usual,
    /// Only whether everything works, in a few seconds: the ratios say nothing.
    Small,
}

impl Scale {
    /// Every `n` of the usual scale is this here.
    fn of<T>(self, usual: T, small: T) -> T {
        match self {
            Scale::Usual => usual,
            Scale::Small => small,
        }
    }
}

/// What is run, with what, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `forebay` command.
    pub forebay: PathBuf,
    /// How much.
    pub scale: Scale,
    /// How often each run is repeated; without it 3 to 5 times, once at small scale.
    pub rounds: Option<u32>,
    /// Where the emulated devices keep their bytes; without it /dev/shm, where no real device is in
    /// their way, or the directory for temporary files.
    pub folder: Option<PathBuf>,
    /// Nodes that `nodes-fig5` and `nodes-fig6` have, 2 to 4.
    pub nodes: usize,
    /// Whether competitors that Python's package index has are installed, below `folder`.
    pub install: bool,
    /// Of `cliffs`, the kinds of operation that are measured; all, where none is named.
    pub works: Vec<String>,
}

/// Runs a figure; `say` is told what is being done.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong. The files are kept then.
pub fn bench(
    figure: &'static Figure,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    let site = site::Site::new(options)?;
    let result = runner::run(figure, options, &site, say);
    if result.is_err() {
        say(&format!("the files are kept in {}", site.keep().display()));
    }
    result
}
