//! `forebay check`: whether a configuration is good, what it will do, and whether its sizes fit
//! this machine. Nothing is started or made.

use crate::batch::BatchJob;
use crate::directives::{Directives, is_script};
use crate::gauges;
use crate::instance::{InstanceArguments, startable};
use crate::output;
use crate::text::{bytes, counted};
use clap::Args;
use forebay_node::Config;
use forebay_node::config::{Mode, Room, TierKind, Trigger};
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `forebay check`.
#[derive(Args)]
pub struct CheckArguments {
    /// The configuration, as --config names it to other commands, or a batch script with `#FB`
    /// lines
    #[arg(value_name = "CONFIG", conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    instance: InstanceArguments,
    /// As JSON, see docs/check.md
    #[arg(long)]
    json: bool,
}

/// `forebay check`.
pub fn check(arguments: &CheckArguments) -> Result<ExitCode, String> {
    let mut instance = arguments.instance.clone();
    let file = arguments.file.as_deref();
    // Once: a pipe does not have it again.
    let content = file.map(Config::content_of).transpose();
    let is_script = matches!(&content, Ok(Some(content)) if is_script(content));
    if is_script && instance.is_given() {
        return Err("a script says by itself what is buffered; give no other options".to_owned());
    }
    if !is_script && instance.config.is_none() {
        instance.config.clone_from(&arguments.file);
    }
    if !is_script && !instance.is_given() {
        return Err("give a configuration file, a batch script, or --backing DIR".to_owned());
    }
    let named = file.or(instance.config.as_deref());
    let name = named.map_or("these options".to_owned(), shown);
    let refused = |errors: &[&str], start: Option<&str>, said: String| match arguments.json {
        true => {
            let start = json!(start);
            output::json(json!({ "schema": 1, "good": false, "errors": errors, "start": start }));
            Ok(ExitCode::from(crate::FAILED))
        }
        false => Err(said),
    };
    let read = content.map_err(|error| error.to_string()).and_then(|content| {
        let Some((script, content)) = file.zip(content.as_ref()).filter(|_| is_script) else {
            return Ok((None, instance.load_of(content)?));
        };
        let directives = Directives::of_script(script, content)?;
        let as_given = |errors: String| {
            errors.replace("--backing: ", &format!("{}: #FB backing=", shown(script)))
        };
        let config = directives.instance.load().map_err(as_given)?;
        directives.check(&config)?;
        Ok((Some(directives), config))
    });
    let (directives, config) = match read {
        Ok(read) => read,
        Err(errors) => {
            let each: Vec<_> = errors.lines().collect();
            let count = counted(each.len(), "error", "errors");
            return refused(&each, None, format!("{errors}\n{name}: {count}"));
        }
    };
    let runtime = match startable(&config) {
        Ok(runtime) => runtime,
        Err(why) => {
            let said = format!("{why}\n{name}: no errors, but it cannot be started here now");
            return refused(&[], Some(&why), said);
        }
    };
    let mut found = Found::of(&config, &runtime);
    found.warnings.extend(directives.iter().flat_map(Directives::warnings));
    found.warnings.extend(directives.iter().flat_map(Directives::missing));
    match arguments.json {
        true => output::json(found.json(&config, &runtime)),
        false => found.show(&name, &config, &runtime),
    }
    Ok(ExitCode::SUCCESS)
}

/// What was found beside the configuration itself.
struct Found {
    /// Of each tier, where its room comes from.
    rooms: Vec<Vec<Room>>,
    /// What may go wrong, or is not as it was meant.
    warnings: Vec<String>,
    /// Process id of the node manager that serves it.
    manager: Option<u32>,
}

impl Found {
    fn of(config: &Config, runtime: &Runtime) -> Found {
        let observer = Observer::of(&runtime.pool).ok();
        let manager = observer.filter(Observer::is_served).map(|observer| observer.manager());
        let rooms: Vec<_> = config.tiers.iter().map(|tier| Room::of(&tier.kind)).collect();
        let mut warnings = Vec::new();
        // What one that runs has taken is not free.
        let tiers = config.tiers.iter().zip(&rooms).filter(|_| manager.is_none());
        for (tier, rooms) in tiers {
            for room in rooms.iter().filter(|room| room.free < tier.capacity) {
                warnings.push(format!(
                    "tier {}: {} are more than {} now ({}): give less, or make room there",
                    tier.name,
                    bytes(tier.capacity),
                    room.what,
                    bytes(room.free)
                ));
            }
        }
        for window in
            config.tiers.windows(2).filter(|window| window[1].capacity < window[0].capacity)
        {
            warnings.push(format!(
                "tier {}: is smaller than {} above it: what leaves that finds little room, and goes to the \
                 store at once",
                window[1].name, window[0].name
            ));
        }
        if config.backing.iter().all(|backing| backing.mode == Mode::Bypass) {
            warnings.push("nothing is buffered: all directories have mode \"bypass\"".to_owned());
        }
        if config.flush.trigger == Trigger::OnExit {
            warnings.push(
                "flush.trigger = \"on-exit\": nothing is on the store before a run ends; in a job with a time \
                 limit, end the program before that"
                    .to_owned(),
            );
        }
        Found { rooms, warnings, manager }
    }

    fn show(&self, name: &str, config: &Config, runtime: &Runtime) {
        println!("{name}: good");
        for backing in &config.backing {
            let what = match backing.mode {
                Mode::Bypass => "not buffered",
                Mode::Sync => "buffered; each write is on the store when it returns",
                Mode::Scratch => {
                    "buffered; removed when the run ends, and not brought to the store"
                }
                _ => "buffered",
            };
            let emulated = if backing.emulate.is_some() { ", emulated" } else { "" };
            println!("  directory {}: {what}{emulated}", shown(&backing.path));
        }
        for (tier, rooms) in config.tiers.iter().zip(&self.rooms) {
            let place = match &tier.kind {
                TierKind::Ram => "of memory".to_owned(),
                TierKind::File { path } => format!("in {}", shown(path)),
            };
            println!("  tier      {}: {} {place}", tier.name, bytes(tier.capacity));
            for room in rooms {
                println!("            {}: {}", room.what, bytes(room.free));
            }
        }
        println!("  flush     {}", when(config));
        for limit in limits(config) {
            println!("            {limit}");
        }
        println!("  fsync     waits for {}", config.flush.durability.name());
        let has = [
            (config.rules.len(), "rule", "rules"),
            (config.analyses.len(), "analysis", "analyses"),
            (config.active.len(), "operation on files", "operations on files"),
        ];
        for (count, one, several) in has.into_iter().filter(|(count, ..)| *count > 0) {
            println!("  with      {}", counted(count, one, several));
        }
        if config.is_in_group() {
            println!("  group     of the hosts of the job, or of the configuration");
        }
        if let Some(job) = BatchJob::current() {
            println!("  job       {} of {}", shown(&job.id), job.system);
        }
        match self.manager {
            Some(manager) => {
                println!("  served    by node manager {manager} (instance {})", runtime.instance)
            }
            None => println!("  served    by no node manager yet (instance {})", runtime.instance),
        }
        for warning in &self.warnings {
            println!("  WARNING   {warning}");
        }
    }

    fn json(&self, config: &Config, runtime: &Runtime) -> Value {
        let directory = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let backing = config.backing.iter().map(|backing| {
            json!({
                "path": directory(&backing.path),
                "buffered": backing.mode != Mode::Bypass,
                "emulated": backing.emulate.is_some(),
            })
        });
        let tiers = config.tiers.iter().zip(&self.rooms).map(|(tier, rooms)| {
            let path = match &tier.kind {
                TierKind::Ram => None,
                TierKind::File { path } => Some(directory(path)),
            };
            let rooms = rooms.iter().map(|room| json!({ "of": room.what, "free": room.free }));
            json!({
                "name": tier.name, "path": path, "capacity": tier.capacity,
                "rooms": rooms.collect::<Vec<_>>(),
            })
        });
        json!({
            "schema": 1,
            "good": true,
            "errors": [],
            "start": null,
            "warnings": self.warnings,
            "instance": runtime.instance,
            "manager": self.manager,
            "directories": backing.collect::<Vec<_>>(),
            "tiers": tiers.collect::<Vec<_>>(),
            "trigger": config.flush.trigger.name(),
            "durability": config.flush.durability.name(),
            "max_unsafe": given(config.flush.max_unsafe),
            "run": {
                "max_unsafe": given(config.run.max_unsafe),
                "max_age_seconds": (!config.run.max_age.is_zero())
                    .then_some(config.run.max_age.as_secs_f64()),
            },
            "rules": config.rules.len(),
            "job": BatchJob::current().map(|job| job.json()),
        })
    }
}

/// A limit that is one.
fn given(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|&bytes| bytes > 0)
}

/// What the store may lack at most.
fn limits(config: &Config) -> impl Iterator<Item = String> {
    let all = given(config.flush.max_unsafe)
        .map(|most| format!("of all runs at most {} unsafe", bytes(most)));
    let age = gauges::time(config.run.max_age);
    let run = match (given(config.run.max_unsafe), config.run.max_age.is_zero()) {
        (None, true) => None,
        (None, false) => Some(format!("of a run nothing unsafe for more than {age}")),
        (Some(most), true) => Some(format!("of a run at most {} unsafe", bytes(most))),
        (Some(most), false) => {
            Some(format!("of a run at most {} unsafe, for {age} at most", bytes(most)))
        }
    };
    all.into_iter().chain(run)
}

/// When data goes to the store.
fn when(config: &Config) -> String {
    match config.flush.trigger {
        Trigger::Periodic => format!(
            "when a block was not written for {:?}, and after {:?} at the latest",
            config.flush.period, config.flush.max_age
        ),
        Trigger::PerOperation => "with each write".to_owned(),
        Trigger::PerFile => "when a file is closed".to_owned(),
        Trigger::OnExit => "when a run ends, or for want of room".to_owned(),
    }
}
