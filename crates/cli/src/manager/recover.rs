//! `forebay recover`.

use super::orphans::{Keeper, drain_orphan, drain_orphans, pools};
use super::start::write_config;
use crate::aside::Aside;
use crate::drain::{self, Drained};
use crate::instance::InstanceArguments;
use crate::text::counted;
use forebay_node::runtime::Runtime;
use std::process::ExitCode;

/// `forebay recover`.
pub fn recover(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    if arguments.is_given() {
        // Only the pool, or after a reboot the tiers' files, may be left; the folder says whose
        // they are.
        let (config, runtime) = arguments.runtime_to_end()?;
        if runtime.has_pool() {
            runtime.prepare()?;
        } else if !runtime.config().exists()
            && let Some(left) = runtime.left_on_tiers(&config)
        {
            runtime.prepare()?;
            write_config(&left, &runtime)?;
        }
        // What must come to the store before anything of this one.
        drain_orphans(&config, &runtime)?;
    }
    let mut pools = pools()?;
    if arguments.is_given() {
        let (_, named) = arguments.runtime_to_end()?;
        pools.retain(|(runtime, _)| runtime.instance == named.instance);
    }
    // One store that is gone must not keep the others from being drained.
    let drained: Vec<_> =
        pools.iter().map(|(runtime, keeper)| drain_pool(runtime, keeper)).collect();
    let set_aside: usize = drained.iter().flatten().sum();
    let failures: Vec<_> = drained.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    let recovered = format!("recovered {}", counted(pools.len(), "pool", "pools"));
    match (pools.len(), set_aside) {
        (0, _) => println!("nothing to recover"),
        (_, 0) => println!("{recovered}: everything is on the backing store"),
        (_, files) => println!(
            "{recovered}: {} nowhere on the backing store and set aside; everything else is on it",
            counted(files, "file is", "files are")
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Drains what one instance has left. Tells what is set aside for that, and returns the number of
/// files.
///
/// # Errors
/// What is left, and why.
fn drain_pool(runtime: &Runtime, keeper: &Keeper) -> Result<usize, String> {
    let Keeper::Manager(connection) = keeper else { return drain_orphan(runtime) };
    let mut aside = Aside::recorded(runtime);
    let drained = drain::drain(connection, runtime);
    let set_aside = aside.as_mut().map_or(0, Aside::tell_new);
    match drained? {
        Drained::All => Ok(set_aside),
        Drained::Kept(files) => Err(drain::describe(runtime, &files)),
        Drained::Lost => Ok(set_aside + drain_orphan(runtime)?),
    }
}
