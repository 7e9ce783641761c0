//! `forebay status`.

use crate::drain::bytes;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use std::process::ExitCode;

/// A line on standard output; whoever does not read it to its end does not want it.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints what every instance of this user holds.
pub fn status() -> Result<ExitCode, String> {
    let mut shown = 0;
    for runtime in Runtime::all()? {
        if !runtime.pool.exists() {
            continue;
        }
        shown += 1;
        match Observer::of(&runtime.pool) {
            Ok(observer) => show(&runtime, &observer),
            Err(error) => say!("{}: {error}", runtime.pool.display()),
        }
    }
    if shown == 0 {
        say!("no node manager runs, and none has left anything");
    }
    Ok(ExitCode::SUCCESS)
}

fn show(runtime: &Runtime, observer: &Observer) {
    let state = match observer.is_served() {
        true => format!("node manager {}", observer.manager()),
        false => "no node manager; run `forebay recover` to drain it".to_owned(),
    };
    say!("instance {}: {state}", runtime.instance);
    say!("  stores   {}", observer.stores().join(", "));
    say!("  clients  {}", observer.clients());
    for tier in observer.tiers() {
        let growing = match tier.configured > tier.capacity {
            true => format!(", {} when set up", bytes(tier.configured)),
            false => String::new(),
        };
        say!(
            "  tier {:8} {} of {} used, {} not yet on the store{growing}",
            tier.name,
            bytes(tier.used),
            bytes(tier.capacity),
            bytes(tier.dirty)
        );
        for (what, size) in [("scratch", tier.scratch), ("reserved", tier.reserved)] {
            if size > 0 {
                say!("    {what:8} {}", bytes(size));
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
        say!("  job {:8} {run}{mode}{trigger}{reserved}{scratch}", job.number);
    }
    for (name, value) in observer.counters() {
        say!("  count {name:12} {value}");
    }
    if observer.refused() > 0 {
        say!(
            "  {} opens were not buffered: the tables are full; more tier capacity makes them larger",
            observer.refused()
        );
    }
    for (path, range) in observer.rotten() {
        say!(
            "  ROTTEN   {path}: bytes {}..{} cannot be read from their tier",
            range.start,
            range.end
        );
    }
    for file in observer.files() {
        let error = file.errno.map_or(String::new(), |errno| {
            format!("  FAILING: {}", std::io::Error::from_raw_os_error(errno))
        });
        say!("  ahead    {} ({}){error}", file.path, bytes(file.size));
    }
}
