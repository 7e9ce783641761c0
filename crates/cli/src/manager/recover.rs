//! `forebay recover`.

use super::orphans::{Keeper, Orphans, drain_orphan, drain_orphans, pools};
use super::start::write_config;
use crate::aside::Aside;
use crate::drain::{self, Drained};
use crate::instance::InstanceArguments;
use crate::text::counted;
use forebay_node::runtime::Runtime;
use std::process::ExitCode;

/// `forebay recover`.
pub fn recover(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    let mut orphans = Orphans::default();
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
        orphans = drain_orphans(&config, &runtime)?;
    }
    let mut pools = pools()?;
    if arguments.is_given() {
        let (_, named) = arguments.runtime_to_end()?;
        pools.retain(|(runtime, _)| runtime.instance == named.instance);
    }
    let is_orphan = |(_, keeper): &&(Runtime, Keeper)| matches!(keeper, Keeper::None);
    let of_orphans = pools.iter().filter(is_orphan);
    of_orphans.for_each(|(runtime, _)| orphans.count(runtime));
    // One store that is gone must not keep the others from being drained.
    let drained: Vec<_> =
        pools.iter().map(|(runtime, keeper)| drain_pool(runtime, keeper)).collect();
    let set_aside: usize = orphans.set_aside + drained.iter().flatten().sum::<usize>();
    let failures: Vec<_> = drained.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    let Orphans { pools: count, without_ram, .. } = orphans;
    let what = match (count, pools.len()) {
        (0, 0) => {
            println!("nothing to recover");
            return Ok(ExitCode::SUCCESS);
        }
        (0, served) => {
            let served = counted(served, "pool with a node manager", "pools with node managers");
            format!("nothing to recover; drained {served}")
        }
        _ => format!("recovered {}", counted(count, "pool", "pools")),
    };
    match set_aside {
        0 if without_ram > 0 => println!("{what}: what it had is on the backing store"),
        0 => println!("{what}: everything is on the backing store"),
        files => println!(
            "{what}: {} nowhere on the backing store and set aside; everything else is on it",
            counted(files, "file is", "files are")
        ),
    }
    if without_ram > 0 {
        let of = counted(without_ram, "pool", "pools");
        println!(
            "of {of} no memory was left, as after a reboot: what was in memory alone, and was not \
             synced, is lost"
        );
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
