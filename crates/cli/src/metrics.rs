//! `forebay metrics`.

use crate::gauges;
use clap::Args;
use forebay_node::metrics::{Source, text};
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use std::process::ExitCode;

/// Options of `forebay metrics`.
#[derive(Args)]
pub struct MetricsArguments {}

/// Prints the metrics of every instance of this user that has a pool.
pub fn metrics(_: &MetricsArguments) -> Result<ExitCode, String> {
    let mut code = ExitCode::SUCCESS;
    let mut observed = Vec::new();
    for runtime in Runtime::all()?.into_iter().filter(Runtime::has_pool) {
        match Observer::of(&runtime.pool) {
            Ok(observer) => observed.push((runtime, observer)),
            // One that has ended meanwhile has no metrics.
            Err(error) if runtime.has_pool() => {
                eprintln!("forebay: {}: {error}", runtime.pool.display());
                code = ExitCode::from(crate::FAILED);
            }
            Err(_) => {}
        }
    }
    let sources = observed.iter().map(|(runtime, observer)| {
        let ages = gauges::ages(runtime);
        Source { instance: &runtime.instance, observer, ages }
    });
    print!("{}", text(&sources.collect::<Vec<_>>()));
    Ok(code)
}
