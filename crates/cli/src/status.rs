//! `forebay status`.

use crate::analyse;
use crate::aside::Aside;
use crate::explain::in_force;
use crate::gauges;
use crate::group;
use crate::output;
use crate::text::{self, bytes, counted, fitted};
use crate::watch::stopped;
use crate::web;
use forebay_node::holders::{Holder, What};
use forebay_node::in_force::Source;
use forebay_node::log::shown;
use forebay_node::outlook::{Drain, Oldest, Outlook, Rates};
use forebay_node::runtime::{Runtime, newest_last_log};
use forebay_node::status::{
    Count, FailedPredictor, FileStatus, JobStatus, Observer, StagedFiles, TierStatus,
};
use forebay_placement::rounds::Ages;
use forebay_pool::moves::Flow;
use forebay_pool::stay::Stay;
use serde_core::Serialize as _;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::io;
use std::process::ExitCode;

/// Options of `forebay status`.
#[derive(clap::Args)]
pub struct StatusArguments {
    /// As JSON: an array with one object for each pool
    #[arg(long)]
    json: bool,
    /// All files that are not yet on the store, not the largest ones alone
    #[arg(long, conflicts_with = "json")]
    files: bool,
    /// All that programs did since the pool was made, each with unit and meaning; where the output
    /// is no terminal that is always shown
    #[arg(long, conflicts_with = "json")]
    counters: bool,
    /// As a page with live charts, on this machine alone, until Ctrl-C: prints its address,
    /// with the token that opens it
    #[arg(long, conflicts_with_all = ["json", "files", "counters"])]
    web: bool,
    /// The port of the page [default: a free one]
    #[arg(long, value_name = "N", requires = "web", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Serve the page until this node manager is gone, whichever else run: for `forebay up --web`
    #[arg(long, value_name = "PID", requires = "web", hide = true)]
    of_manager: Option<u32>,
}

/// Raised when a key of the JSON is taken away, or means something else. New ones may come.
const JSON_VERSION: u32 = 1;
/// The width of bars.
const BAR: usize = 24;
/// Rates that are means of more than so many seconds are said to be.
const RATES_SHORT: u64 = 3;
/// Files of the JSON that are used most.
const HOTTEST: usize = 20;

/// Files that are shown without `--files`.
const FILES_SHOWN: usize = 10;

/// Prints what every instance of this user holds.
pub fn status(arguments: &StatusArguments) -> Result<ExitCode, String> {
    if arguments.web {
        return web::serve(arguments.port, arguments.of_manager);
    }
    if arguments.json {
        output::json(json_of_all()?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = 0;
    for runtime in Runtime::all()? {
        if !runtime.has_pool() {
            continue;
        }
        shown += 1;
        match Observer::of(&runtime.pool) {
            Ok(observer) => {
                let counters = arguments.counters || !output::is_terminal();
                show(&runtime, &observer, counters);
                show_files(observer.files(), arguments.files);
            }
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

/// Every instance of this user that has a pool, as JSON.
pub fn json_of_all() -> Result<String, String> {
    let pools = Runtime::all()?.into_iter().filter(|runtime| runtime.has_pool());
    let objects: Vec<_> = pools.map(|runtime| one_line(&json(&runtime))).collect();
    Ok(format!("[{}]", objects.join(",\n")))
}

/// JSON on one line, with a space behind each colon and comma.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

fn one_line(value: &Value) -> String {
    let mut line = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut line, OneLine));
    written.expect("memory can be written");
    String::from_utf8(line).expect("JSON is UTF-8")
}

fn json(runtime: &Runtime) -> Value {
    let mut object = json!({
        "version": JSON_VERSION,
        "instance": runtime.instance,
        "pool": runtime.pool.to_string_lossy(),
    });
    let observer = match Observer::of(&runtime.pool) {
        Ok(observer) => observer,
        Err(error) => {
            object["error"] = json!(error.to_string());
            return object;
        }
    };
    let is_served = observer.is_served();
    let counters: Map<_, _> = observer
        .counters()
        .iter()
        .map(|count| (count.name.to_owned(), json!(count.value)))
        .collect();
    object["manager"] = json!(is_served.then(|| observer.manager()));
    object["manager_stopped"] = json!(is_served && stopped(observer.manager()).is_some());
    object["orphaned"] = json!(!is_served);
    object["stores"] = json!(observer.stores());
    object["clients"] = json!(observer.clients());
    for (what, name, source) in observer.in_force().parts() {
        object[what] = json!({ "name": name, "from": source.name() });
    }
    object["group"] = if is_served { group::json(runtime) } else { Value::Null };
    object["stays"] = if is_served { stay_object(observer.stay()) } else { Value::Null };
    object["jobs"] = observer.jobs().iter().map(job_object).collect();
    let rates = observer.rates();
    let tiers = observer.tiers().into_iter().enumerate();
    let with_rates = tiers.map(|(at, tier)| {
        let mut object = tier_object(&tier);
        let rate = rates.as_ref().and_then(|rates| rates.tiers.get(at)).copied();
        object["rates"] = rate_object(rate);
        object
    });
    object["tiers"] = with_rates.collect();
    object["rates_over_seconds"] = json!(rates.as_ref().map(|rates| rates.over.as_secs_f64()));
    object["store_rates"] = rate_object(rates.as_ref().map(|rates| rates.store));
    object["unsafe"] = unsafe_object(&observer, &gauges::ages(runtime));
    object["processes"] = observer
        .process_status()
        .iter()
        .map(|process| {
            json!({
                "pid": process.pid,
                "name": process.name,
                "job": process.job,
                "written": process.written,
                "read": process.read,
            })
        })
        .collect();
    object["half_life_seconds"] = json!(observer.half_life().as_secs_f64());
    object["hottest"] = observer
        .hottest(HOTTEST)
        .iter()
        .map(|file| {
            json!({
                "path": file.path,
                "accesses": f64::from(file.accesses),
                "size": file.size,
                "dirty": file.dirty,
            })
        })
        .collect();
    object["counters"] = Value::Object(counters);
    object["staged"] = observer.staged().iter().map(staged_object).collect();
    object["actions"] = analyse::json(runtime, None);
    object["holders"] = observer.holders().iter().map(holder_object).collect();
    object["conflicts"] = json!(observer.conflicts());
    if let Some(aside) = Aside::recorded(runtime) {
        object["set_aside"] = aside.old().map(|path| json!(path.to_string_lossy())).collect();
    }
    let predictors = observer.failed_predictors();
    object["predictors_off"] = predictors.iter().map(predictor_object).collect();
    object["files"] = observer.files().iter().map(file_object).collect();
    object
}

/// Bytes a second; null where nothing is known yet.
fn rate_object(flow: Option<Flow>) -> Value {
    flow.map_or(
        Value::Null,
        |flow| json!({ "in_bytes_per_second": flow.into, "out_bytes_per_second": flow.out }),
    )
}

/// For how long the node manager stays without a run: null where it ends with the last one, or was
/// not asked for more by one.
fn stay_object(stay: Stay) -> Value {
    match stay {
        Stay::Not => Value::Null,
        Stay::For(left) => json!({ "until_down": false, "seconds": left.as_secs_f64() }),
        Stay::UntilTold => json!({ "until_down": true, "seconds": null }),
    }
}

/// What is not yet on the store.
fn unsafe_object(observer: &Observer, ages: &Ages) -> Value {
    let oldest = observer.oldest(ages).map(|Oldest { path, range, age, outlook }| {
        let (word, seconds) = match outlook {
            Outlook::Within(left) => ("soon", Some(left)),
            Outlook::AtClose => ("close", None),
            Outlook::AtEnd => ("end", None),
            Outlook::Fails(_, retry) => ("failing", Some(retry)),
            Outlook::Stopped => ("stopped", None),
            Outlook::Unserved => ("unserved", None),
            Outlook::GivenUp => ("given up", None),
        };
        json!({
            "path": path,
            "range": [range.start, range.end],
            "age_seconds": age.as_secs_f64(),
            "safe": word,
            "in_seconds": seconds.map(|left| left.as_secs_f64()),
        })
    });
    let Drain { refused, time } = observer.drain();
    json!({
        "bytes": observer.dirty(),
        "limit": observer.cap(),
        "files": observer.files().len(),
        "refused": refused,
        "drain_seconds": time.map(|time| time.as_secs_f64()),
        "oldest": oldest,
    })
}

/// A run under way: mode and trigger are null where it was told none.
fn job_object(job: &JobStatus) -> Value {
    let quotas = job
        .quotas
        .iter()
        .map(|(tier, used, limit)| json!({ "tier": tier, "used": used, "limit": limit }));
    json!({
        "number": job.number,
        "mode": job.mode.map(|mode| mode.name()),
        "trigger": job.trigger.map(|trigger| trigger.name()),
        "pinned": job.pinned,
        "quotas": quotas.collect::<Vec<_>>(),
        "unsafe": job.cap.map(|(used, limit)| json!({ "used": used, "limit": limit })),
        "max_age_seconds": job.max_age.map(|age| age.as_secs_f64()),
    })
}

fn tier_object(tier: &TierStatus) -> Value {
    let mut object = json!({
        "name": tier.name,
        "capacity": tier.capacity,
        "configured": tier.configured,
        "backed": tier.backed,
        "used": tier.used,
        "dirty": tier.dirty,
        "pinned": tier.pinned,
    });
    if let Some((errno, ms)) = tier.failed {
        object["errno"] = json!(errno);
        object["failed_seconds"] = json!(f64::from(ms) / 1e3);
    }
    object
}

/// The staged files of one state.
fn staged_object(staged: &StagedFiles) -> Value {
    json!({
        "stage": staged.stage.letter().to_string(),
        "files": staged.files,
        "bytes": staged.bytes,
        "dirty": staged.dirty,
    })
}

/// A process that holds something for which others wait, and does not go on.
fn holder_object(holder: &Holder) -> Value {
    let held = holder.held.iter().map(|held| {
        let mut object = json!({ "path": held.path, "what": held.to_string() });
        if let What::Bytes(range) = &held.what {
            object["range"] = json!([range.start, range.end]);
        }
        object
    });
    json!({
        "pid": holder.pid,
        "stopped": holder.is_stopped,
        "seconds": f64::from(holder.standing_ms) / 1e3,
        "held": held.collect::<Vec<_>>(),
    })
}

/// A file whose rule's predictor is switched off.
fn predictor_object(failed: &FailedPredictor) -> Value {
    json!({
        "path": failed.path,
        "predictor": failed.program,
        "rule": failed.source,
        "fault": failed.fault,
    })
}

/// A file that is ahead of the store. Its ranges may be only the first ones.
fn file_object(file: &FileStatus) -> Value {
    let ranges: Vec<_> = file.ranges.iter().map(|range| [range.start, range.end]).collect();
    let mut object = json!({
        "path": file.path,
        "size": file.size,
        "dirty": file.dirty,
        "ranges": ranges,
        "conflict": file.conflict,
    });
    if let (Some(failing), Some(errno)) = (&file.failing, file.errno) {
        object["errno"] = json!(errno);
        object["error"] = json!(io::Error::from_raw_os_error(errno).to_string());
        object["tries"] = json!(failing.tries);
        object["retry_seconds"] = json!(f64::from(failing.retry_ms) / 1e3);
    }
    object
}

fn show(runtime: &Runtime, observer: &Observer, with_counters: bool) {
    let state = match observer.is_served() {
        true => format!("node manager {}", observer.manager()),
        false => format!(
            "no node manager; run `forebay recover` to drain it (orphaned: {} not yet on the store)",
            bytes(observer.dirty())
        ),
    };
    line(&format!("instance {}: {state}", runtime.instance));
    let rates = observer.rates();
    if let Some(text) = stopped(observer.manager()).filter(|_| observer.is_served()) {
        println!("  STOPPED  {text}");
    }
    let of_store = rates.as_ref().map(|rates| format!("; {}", gauges::rates(rates.store)));
    line(&format!("  stores   {}{}", observer.stores().join(", "), of_store.unwrap_or_default()));
    match with_counters {
        true => println!("  clients  {}", observer.clients()),
        false => line(&format!("  clients  {}; {}", observer.clients(), did(&observer.counters()))),
    }
    let in_force_now = observer.in_force();
    let is_usual = in_force_now.parts().iter().all(|(.., source)| *source == Source::Default);
    if with_counters || !is_usual {
        line(&format!(
            "  in force {}, where neither rule nor run says otherwise",
            in_force(&in_force_now)
        ));
    }
    if observer.is_served() {
        group::show(runtime);
        if observer.stay() != Stay::Not {
            line(&format!("  stays    {}", gauges::stay(observer.stay())));
        }
    }
    for (at, tier) in observer.tiers().into_iter().enumerate() {
        let memory = match tier.backed < tier.capacity {
            true => format!(", {} in memory", bytes(tier.backed)),
            false => String::new(),
        };
        let limited = match tier.capacity < tier.configured {
            true => format!(", {} configured", bytes(tier.configured)),
            false => String::new(),
        };
        line(&format!(
            "  tier {:8} {} of {} used, {} not yet on the store{memory}{limited}",
            tier.name,
            bytes(tier.used),
            bytes(tier.capacity),
            bytes(tier.dirty)
        ));
        let rate = rates.as_ref().and_then(|rates| rates.tiers.get(at)).copied();
        let rate = rate.map_or(String::new(), |rate| format!(", {}", gauges::rates(rate)));
        let bar = gauges::bar(&tier, BAR);
        line(&format!("           [{bar}] {} %{rate}", gauges::percent(&tier)));
        if let Some((errno, ms)) = tier.failed {
            println!(
                "    FAILED   takes nothing new since {:.1} s: {}",
                f64::from(ms) / 1e3,
                io::Error::from_raw_os_error(errno)
            );
        }
        for (what, size) in
            [("scratch", tier.scratch), ("reserved", tier.reserved), ("pinned", tier.pinned)]
        {
            if size > 0 {
                println!("    {what:8} {}", bytes(size));
            }
        }
    }
    if let Some(Rates { over, .. }) = rates.filter(|rates| rates.over.as_secs() > RATES_SHORT) {
        println!("           rates are means of the last {}", gauges::time(over));
    }
    show_unsafe(runtime, observer);
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
        let pinned = match job.pinned {
            0 => String::new(),
            pinned => format!(", {} pinned", bytes(pinned)),
        };
        line(&format!("  job {:8} {run}{mode}{trigger}{reserved}{scratch}{pinned}", job.number));
        for (tier, used, limit) in &job.quotas {
            println!("    quota    {} of {} of {tier} used", bytes(*used), bytes(*limit));
        }
        if let Some((used, limit)) = job.cap {
            println!("    unsafe   {} of {} not yet on the store", bytes(used), bytes(limit));
        }
        if let Some(age) = job.max_age {
            println!("    unsafe   for {} at most", gauges::time(age));
        }
    }
    for StagedFiles { stage, files, bytes: size, dirty } in observer.staged() {
        println!(
            "  staged   {} {} ({}), {}, {} not yet on the store",
            text::files(files),
            stage.name(),
            stage.letter(),
            bytes(size),
            bytes(dirty)
        );
    }
    analyse::lines(runtime).iter().for_each(|line| println!("{line}"));
    let counters = if with_counters { observer.counters() } else { Vec::new() };
    for Count { name, unit, help, value } in counters {
        println!("  count {name:12} {value} {unit}: {help}");
    }
    for FailedPredictor { path, program, source, fault } in observer.failed_predictors() {
        println!(
            "  PREDICTOR {} is switched off for {}, as it {fault}; patterns count instead. Mend it, \
             or remove it from its rule ({source})",
            shown(&program),
            shown(&path)
        );
    }
    if observer.refused() > 0 {
        println!(
            "  {} not buffered: the tables are full; more tier capacity makes them larger",
            counted(observer.refused(), "open was", "opens were")
        );
    }
    for holder in observer.holders() {
        println!("  HELD     {holder}");
    }
    if let Some(text) = Aside::recorded(runtime).and_then(|aside| aside.describe_old()) {
        println!("  KEPT     {text}");
    }
    for (path, range) in observer.corrupt() {
        println!(
            "  CORRUPT  {}: bytes {}..{} cannot be read from their tier",
            shown(&path),
            range.start,
            range.end
        );
    }
    if observer.conflicts() > 0 {
        println!(
            "  {} changed on the store by others; {} says which",
            counted(observer.conflicts(), "time a file was found", "times files were found"),
            runtime.readable_log().display()
        );
    }
}

/// What begins the lines that follow a long one.
const INDENT: usize = 11;

/// A line; on a terminal broken where that is narrow.
fn line(text: &str) {
    match output::is_terminal() {
        true => println!("{}", fitted(text, INDENT)),
        false => println!("{text}"),
    }
}

/// What is not yet on the store, when it will be, and what is wrong.
fn show_unsafe(runtime: &Runtime, observer: &Observer) {
    let (bytes_left, files) = (observer.dirty(), observer.files());
    let most = observer.cap().map_or(String::new(), |cap| format!("; {} at most", bytes(cap)));
    match observer.oldest(&gauges::ages(runtime)) {
        None => println!("  unsafe   0 B: all is on the store{most}"),
        Some(Oldest { path, age, outlook, .. }) => {
            let drain = match observer.is_served() && !observer.is_given_up() {
                true => gauges::drain(&observer.drain()),
                false => String::new(),
            };
            line(&format!(
                "  unsafe   {} of {}{drain}{most} (# above)",
                bytes(bytes_left),
                text::files(files.len())
            ));
            line(&format!(
                "  oldest   written {} ago, {}: {}",
                gauges::time(age),
                gauges::outlook(&outlook),
                shown(&path)
            ));
        }
    }
    let failing = files.iter().filter(|file| file.errno.is_some()).count();
    let conflicts = files.iter().filter(|file| file.conflict).count();
    let failed = observer.tiers().iter().filter(|tier| tier.failed.is_some()).count();
    let corrupt = observer.corrupt().len();
    let wrong: Vec<_> = [
        (failing, "file is refused by its store", "files are refused by their stores"),
        (conflicts, "file was changed by others", "files were changed by others"),
        (failed, "tier has failed", "tiers have failed"),
        (corrupt, "range cannot be read", "ranges cannot be read"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, one, several)| counted(count as u64, one, several))
    .collect();
    let wrong = if wrong.is_empty() { "none".to_owned() } else { wrong.join(", ") };
    line(&format!("  errors   {wrong}"));
}

/// What programs did, in a line.
fn did(counters: &[Count]) -> String {
    let of = |name: &str| counters.iter().find(|count| count.name == name).map_or(0, |c| c.value);
    let waits = match of("backpressure") {
        0 => String::new(),
        waits => format!(", waited for room {}", counted(waits, "time", "times")),
    };
    format!(
        "programs wrote {} in {}, read {} in {}{waits}",
        bytes(of("write_bytes")),
        counted(of("writes"), "call", "calls"),
        bytes(of("read_bytes")),
        counted(of("reads"), "call", "calls")
    )
}

/// What helps where the error alone does not tell.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EMFILE => ": those of the node manager; raise its hard limit (ulimit -Hn)",
        libc::ENFILE => ": those of the machine; raise fs.file-max",
        _ => "",
    }
}

/// Those that fail or are in conflict first, then the largest.
fn show_files(mut files: Vec<FileStatus>, all: bool) {
    files.sort_by_key(|file| {
        let is_trouble = file.errno.is_some() || file.conflict;
        Reverse((is_trouble, file.dirty, file.size))
    });
    let named = if all { files.len() } else { files.len().min(FILES_SHOWN) };
    for file in &files[..named] {
        let error = file.errno.map_or(String::new(), |errno| {
            format!("  FAILING: {}{}", io::Error::from_raw_os_error(errno), advice(errno))
        });
        let conflict =
            if file.conflict { "  CONFLICT: changed on the store by others" } else { "" };
        println!("  ahead    {} ({}){error}{conflict}", shown(&file.path), bytes(file.size));
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
    let rest = &files[named..];
    if !rest.is_empty() {
        let left = rest.iter().map(|file| file.dirty).sum();
        println!(
            "  and {} ahead of the store with {} (--files names them)",
            counted(rest.len(), "further file", "further files"),
            bytes(left)
        );
    }
}
