//! `forebay status`.

use crate::drain::bytes;
use crate::simulate::report::text;
use crate::watch::stopped;
use forebay_node::holders::{Holder, What};
use forebay_node::runtime::{Runtime, newest_last_log};
use forebay_node::status::{FileStatus, Observer, TierStatus};
use std::process::ExitCode;

/// Options of `forebay status`.
#[derive(clap::Args)]
pub struct StatusArguments {
    /// As JSON: an array with one object for each pool
    #[arg(long)]
    json: bool,
}

/// Prints what every instance of this user holds.
pub fn status(arguments: &StatusArguments) -> Result<ExitCode, String> {
    if arguments.json {
        let pools = Runtime::all()?.into_iter().filter(|runtime| runtime.pool.exists());
        let objects: Vec<_> = pools.map(|runtime| json(&runtime)).collect();
        println!("[{}]", objects.join(",\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = 0;
    for runtime in Runtime::all()? {
        if !runtime.pool.exists() {
            continue;
        }
        shown += 1;
        match Observer::of(&runtime.pool) {
            Ok(observer) => show(&runtime, &observer),
            Err(error) => println!("{}: {error}", runtime.pool.display()),
        }
    }
    if shown == 0 {
        println!("no node manager runs, and none has left anything");
        if let Some(log) = newest_last_log()? {
            println!("the log of the last one: {}", log.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An object of already written values.
fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| format!("{}: {value}", text(name))).collect();
    format!("{{{}}}", fields.join(", "))
}

fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn json(runtime: &Runtime) -> String {
    let mut fields = vec![
        ("instance", text(&runtime.instance)),
        ("pool", text(&runtime.pool.to_string_lossy())),
    ];
    match Observer::of(&runtime.pool) {
        Err(error) => fields.push(("error", text(&error.to_string()))),
        Ok(observer) => {
            let manager = match observer.is_served() {
                true => observer.manager().to_string(),
                false => "null".to_owned(),
            };
            let halts = observer.is_served() && stopped(observer.manager()).is_some();
            let tier = |tier: &TierStatus| {
                let mut fields = vec![
                    ("name", text(&tier.name)),
                    ("capacity", tier.capacity.to_string()),
                    ("used", tier.used.to_string()),
                    ("dirty", tier.dirty.to_string()),
                ];
                if let Some((errno, ms)) = tier.failed {
                    fields.extend([
                        ("errno", errno.to_string()),
                        ("failed_seconds", format!("{:.3}", f64::from(ms) / 1e3)),
                    ]);
                }
                object(&fields)
            };
            let counters: Vec<_> = observer.counters();
            let counters: Vec<_> =
                counters.iter().map(|(name, value)| (*name, value.to_string())).collect();
            fields.extend([
                ("manager", manager),
                ("manager_stopped", halts.to_string()),
                ("orphaned", (!observer.is_served()).to_string()),
                ("stores", array(observer.stores().iter().map(|store| text(store)))),
                ("clients", observer.clients().to_string()),
                ("tiers", array(observer.tiers().iter().map(tier))),
                ("counters", object(&counters)),
                ("holders", array(observer.holders().iter().map(holder_object))),
                ("conflicts", observer.conflicts().to_string()),
                ("files", array(observer.files().iter().map(file_object))),
            ]);
        }
    }
    object(&fields)
}

/// A process that holds something for which others wait, and does not go on.
fn holder_object(holder: &Holder) -> String {
    let held = holder.held.iter().map(|held| {
        let mut fields = vec![("path", text(&held.path)), ("what", text(&held.to_string()))];
        if let What::Bytes(range) = &held.what {
            fields.push(("range", format!("[{}, {}]", range.start, range.end)));
        }
        object(&fields)
    });
    object(&[
        ("pid", holder.pid.to_string()),
        ("stopped", holder.is_stopped.to_string()),
        ("seconds", format!("{:.3}", f64::from(holder.standing_ms) / 1e3)),
        ("held", array(held)),
    ])
}

/// A file that is ahead of the store. Its ranges may be only the first ones.
fn file_object(file: &FileStatus) -> String {
    let range = |range: &std::ops::Range<u64>| format!("[{}, {}]", range.start, range.end);
    let mut fields = vec![
        ("path", text(&file.path)),
        ("size", file.size.to_string()),
        ("dirty", file.dirty.to_string()),
        ("ranges", array(file.ranges.iter().map(range))),
        ("conflict", file.conflict.to_string()),
    ];
    if let (Some(failing), Some(errno)) = (&file.failing, file.errno) {
        fields.extend([
            ("errno", errno.to_string()),
            ("error", text(&std::io::Error::from_raw_os_error(errno).to_string())),
            ("tries", failing.tries.to_string()),
            ("retry_seconds", format!("{:.3}", f64::from(failing.retry_ms) / 1e3)),
        ]);
    }
    object(&fields)
}

fn show(runtime: &Runtime, observer: &Observer) {
    let state = match observer.is_served() {
        true => format!("node manager {}", observer.manager()),
        false => format!(
            "no node manager; run `forebay recover` to drain it (orphaned: {} not yet on the store)",
            bytes(observer.dirty())
        ),
    };
    println!("instance {}: {state}", runtime.instance);
    if let Some(text) = stopped(observer.manager()).filter(|_| observer.is_served()) {
        println!("  STOPPED  {text}");
    }
    println!("  stores   {}", observer.stores().join(", "));
    println!("  clients  {}", observer.clients());
    for tier in observer.tiers() {
        let growing = match tier.configured > tier.capacity {
            true => format!(", {} when set up", bytes(tier.configured)),
            false => String::new(),
        };
        println!(
            "  tier {:8} {} of {} used, {} not yet on the store{growing}",
            tier.name,
            bytes(tier.used),
            bytes(tier.capacity),
            bytes(tier.dirty)
        );
        if let Some((errno, ms)) = tier.failed {
            println!(
                "    FAILED   takes nothing new since {:.1} s: {}",
                f64::from(ms) / 1e3,
                std::io::Error::from_raw_os_error(errno)
            );
        }
        for (what, size) in [("scratch", tier.scratch), ("reserved", tier.reserved)] {
            if size > 0 {
                println!("    {what:8} {}", bytes(size));
            }
        }
    }
    for job in observer.jobs() {
        let run = match job.pid {
            0 => "its run has ended".to_owned(),
            pid => format!("run {pid}"),
        };
        let mode = job.mode.map_or(String::new(), |mode| format!(", mode {}", mode.name()));
        let trigger =
            job.trigger.map_or(String::new(), |trigger| format!(", trigger {}", trigger.name()));
        let reserved = match job.reserved {
            0 => String::new(),
            reserved => format!(", {} of {} reserved used", bytes(job.in_use), bytes(reserved)),
        };
        let scratch = match job.scratch_files {
            0 => String::new(),
            files => format!(", {files} scratch files"),
        };
        println!("  job {:8} {run}{mode}{trigger}{reserved}{scratch}", job.number);
    }
    for (name, value) in observer.counters() {
        println!("  count {name:12} {value}");
    }
    if observer.refused() > 0 {
        println!(
            "  {} opens were not buffered: the tables are full; more tier capacity makes them larger",
            observer.refused()
        );
    }
    for holder in observer.holders() {
        println!("  HELD     {holder}");
    }
    for (path, range) in observer.rotten() {
        println!(
            "  ROTTEN   {path}: bytes {}..{} cannot be read from their tier",
            range.start, range.end
        );
    }
    if observer.conflicts() > 0 {
        println!(
            "  {} times files were found changed on the store by others; {} says which",
            observer.conflicts(),
            runtime.readable_log().display()
        );
    }
    for file in observer.files() {
        let error = file.errno.map_or(String::new(), |errno| {
            format!("  FAILING: {}", std::io::Error::from_raw_os_error(errno))
        });
        let conflict =
            if file.conflict { "  CONFLICT: changed on the store by others" } else { "" };
        println!("  ahead    {} ({}){error}{conflict}", file.path, bytes(file.size));
        if let Some(failing) = &file.failing {
            let ranges: Vec<_> =
                file.ranges.iter().map(|r| format!("{}-{}", r.start, r.end)).collect();
            let all: u64 = file.ranges.iter().map(|range| range.end - range.start).sum();
            let more = if all < file.dirty { ", ..." } else { "" };
            println!(
                "    {} not yet on the store (bytes {}{more}); tried {} times, again in {:.1} s",
                bytes(file.dirty),
                ranges.join(", "),
                failing.tries,
                f64::from(failing.retry_ms) / 1e3
            );
        }
    }
}
