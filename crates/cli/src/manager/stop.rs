//! `forebay stop`.

use super::orphans::{await_answer, overlap};
use crate::aside::Aside;
use crate::drain::{self, Ended};
use crate::instance::InstanceArguments;
use crate::text::counted;
use clap::Args;
use forebay_node::Config;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use std::fs;
use std::process::ExitCode;

/// Options of `forebay stop`.
#[derive(Args)]
pub struct StopArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The instance of this name, as `forebay status` shows it
    #[arg(long = "instance", value_name = "NAME",
          conflicts_with_all = ["config", "backing", "schema", "durability"])]
    name: Option<String>,
    /// All node managers of yours
    #[arg(long, conflicts_with_all = ["name", "config", "backing", "schema", "durability"])]
    all: bool,
}

/// Whether an instance of `config` shares a directory with another's.
pub(super) fn serves_the_same(runtime: &Runtime, config: &Config) -> bool {
    runtime.backing().is_some_and(|theirs| overlap(config, &theirs))
}

/// Says that no manager serves what was named, what does run, and what to do.
pub(super) fn nothing_to_stop(config: &Config, named: &Runtime) -> Result<String, String> {
    let wanted: Vec<_> =
        config.backing.iter().map(|backing| backing.path.display().to_string()).collect();
    let mut said = format!(
        "no node manager serves {} with this configuration and these options (instance {})",
        wanted.join(", "),
        named.instance
    );
    if named.has_left() {
        said.push_str("; an earlier one has left data, which `forebay recover` drains");
    }
    said.push_str(&what_runs(&served(&Runtime::all()?), Some(config)));
    Ok(said)
}

/// Those of these instances that are served.
fn served(instances: &[Runtime]) -> Vec<(&Runtime, Observer)> {
    let observed = |runtime: &Runtime| Observer::of(&runtime.pool).ok();
    let all = instances.iter().filter_map(|runtime| Some((runtime, observed(runtime)?)));
    all.filter(|(_, observer)| observer.is_served()).collect()
}

/// A line for each of these instances, and what to do. `config` is what was asked for.
fn what_runs(running: &[(&Runtime, Observer)], config: Option<&Config>) -> String {
    let mut said = String::new();
    for (runtime, observer) in running {
        let (instance, pid) = (&runtime.instance, observer.manager());
        said.push_str(&format!(
            "\n  instance {instance} runs (node manager {pid}): {}",
            observer.stores().join(", ")
        ));
        if config.is_some_and(|config| serves_the_same(runtime, config)) {
            said.push_str(", with another configuration or other options");
        }
    }
    said.push_str(match running.len() {
        0 => "\nNone runs.",
        1 => "\n`forebay stop` without options ends it.",
        _ => "\n`forebay stop --instance NAME` ends one of them, `forebay stop --all` all.",
    });
    said
}

/// Says which programs go on without the manager that they had.
pub(super) fn mention_processes(observer: &Observer, ended: &Ended) {
    /// Processes that are named.
    const NAMED: usize = 10;
    let left = observer.processes();
    if left.is_empty() {
        return;
    }
    let name = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} ({})", name.trim_end())
    };
    let named: Vec<_> = left.iter().take(NAMED).map(name).collect();
    let more = if left.len() > NAMED { ", ..." } else { "" };
    eprintln!(
        "forebay: {} on, without buffering: the backing store is read and written directly from now \
         on: {}{more}{}",
        counted(left.len(), "process runs", "processes run"),
        named.join(", "),
        match ended {
            Ended::InUse => "; the node manager ends with the last of them",
            _ => "",
        }
    );
}

/// `forebay stop`.
pub fn stop(arguments: &StopArguments) -> Result<ExitCode, String> {
    let instances = match &arguments.name {
        Some(name) => vec![named(name)?],
        None if arguments.all => Runtime::all()?,
        None => return stop_instance(&arguments.instance),
    };
    let no_other = || match &arguments.name {
        Some(name) => Err(format!("no node manager serves instance {name}")),
        None => Ok(()),
    };
    end(&instances, no_other)
}

/// The instance of this name.
fn named(name: &str) -> Result<Runtime, String> {
    let all = Runtime::all()?;
    let none = format!("no instance {name}{}", what_runs(&served(&all), None));
    all.into_iter().find(|runtime| runtime.instance == name).ok_or(none)
}

/// `forebay stop` of what the options name, or of the only one that runs.
pub(super) fn stop_instance(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    let instances = match arguments.is_given() {
        true => vec![arguments.runtime_to_end()?.1],
        false => Runtime::all()?,
    };
    let running = served(&instances);
    if running.len() > 1 {
        // They may serve jobs that have nothing to do with each other.
        return Err(format!("{} node managers run{}", running.len(), what_runs(&running, None)));
    }
    drop(running);
    let no_other = || match arguments.is_given() {
        true => Err(nothing_to_stop(&arguments.runtime_to_end()?.0, &instances[0])?),
        false => Ok(()),
    };
    end(&instances, no_other)
}

/// Ends what serves these instances; `none` says what it means that nothing does.
fn end(
    instances: &[Runtime],
    none: impl FnOnce() -> Result<(), String>,
) -> Result<ExitCode, String> {
    let (mut found, mut stopped, mut failures) = (0, 0, Vec::new());
    for runtime in instances {
        // One that takes over what was left answers only when it has.
        let Some(connection) = await_answer(runtime) else { continue };
        found += 1;
        // Its pool is gone when it has ended.
        let observer = drain::observe(runtime);
        let mut aside = Aside::recorded(runtime);
        let instance = &runtime.instance;
        match connection.and_then(|connection| drain::stop(&connection, runtime)) {
            Ok(ended @ (Ended::Gone | Ended::InUse)) => {
                stopped += 1;
                observer.iter().for_each(|observer| mention_processes(observer, &ended));
            }
            Ok(Ended::Joined) => failures.push(format!(
                "instance {instance}: another run has joined; its node manager goes on. `forebay status` shows it"
            )),
            Ok(Ended::Replaced) => {
                stopped += 1;
                failures.push(format!(
                    "instance {instance}: its node manager has ended, and another run has started one, which goes on. \
                     `forebay status` shows it"
                ));
            }
            Err(message) => failures.push(message),
        }
        aside.as_mut().map(Aside::tell_new);
    }
    if found == 0 {
        none()?;
    }
    println!("stopped {}", counted(stopped, "node manager", "node managers"));
    match failures.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(failures.join("\n")),
    }
}
