//! `forebay recover`.

use super::orphans::{Keeper, drain_orphan, drain_orphans, pools};
use super::start::write_config;
use crate::aside::Aside;
use crate::drain;
use crate::instance::InstanceArguments;
use crate::text::counted;
use std::process::ExitCode;

/// `forebay recover`.
pub fn recover(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    if arguments.is_given() {
        // Only the pool, or after a reboot the tiers' files, may be left; the folder says whose
        // they are.
        let (config, runtime) = arguments.runtime()?;
        if runtime.pool.exists() {
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
        let (_, named) = arguments.runtime()?;
        pools.retain(|(runtime, _)| runtime.instance == named.instance);
    }
    let mut aside: Vec<_> = pools
        .iter()
        .filter_map(|(runtime, _)| Some(Aside::of(&runtime.recorded()?, runtime)))
        .collect();
    // One store that is gone must not keep the others from being drained.
    let failures: Vec<String> = pools
        .iter()
        .filter_map(|(runtime, keeper)| match keeper {
            Keeper::None => drain_orphan(runtime).err(),
            Keeper::Manager(connection) => match drain::drain(connection, runtime) {
                Ok(drain::Drained::All) => None,
                Ok(drain::Drained::Kept(files)) => Some(drain::describe(&files)),
                Ok(drain::Drained::Lost) => drain_orphan(runtime).err(),
                Err(message) => Some(message),
            },
        })
        .collect();
    aside.iter_mut().for_each(Aside::tell_new);
    match pools.len() {
        0 => println!("nothing to recover"),
        count if failures.is_empty() => {
            let pools = counted(count, "pool", "pools");
            println!("recovered {pools}: everything is on the backing store");
        }
        _ => return Err(failures.join("\n")),
    }
    Ok(ExitCode::SUCCESS)
}
