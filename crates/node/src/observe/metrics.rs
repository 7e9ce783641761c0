//! Metrics in the text format of Prometheus (version 0.0.4), of any number of pools.
//!
//! Names follow its rules: `forebay_` first, the unit last, and `_total` behind what only grows.
//! A counter begins anew with each pool, which is what a scraper expects of a restart.

use super::status::{Count, Observer, TierStatus};
use forebay_placement::rounds::Ages;
use forebay_pool::liveness::{self, Halt};
use forebay_pool::moves::Flow;
use std::collections::HashMap;
use std::fmt::Write as _;

/// What the answer of an endpoint says that it is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How the numbers of a metric behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Only grows, while the pool is the same.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// All samples of one name.
struct Family {
    name: String,
    kind: Kind,
    help: String,
    samples: Vec<(String, f64)>,
}

/// Metrics that are collected, in the order in which their names come first.
#[derive(Default)]
struct Families {
    all: Vec<Family>,
    known: HashMap<String, usize>,
}

impl Families {
    fn add(
        &mut self,
        (kind, name, help): (Kind, &str, &str),
        labels: &[(&str, &str)],
        value: impl Into<Number>,
    ) {
        let next = self.all.len();
        let at = *self.known.entry(name.to_owned()).or_insert(next);
        if at == next {
            let (name, help) = (name.to_owned(), help.to_owned());
            self.all.push(Family { name, kind, help, samples: Vec::new() });
        }
        self.all[at].samples.push((labels_of(labels), value.into().0));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Family { name, kind, help, samples } in &self.all {
            let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        text
    }
}

/// A value: the format has floating point numbers alone.
struct Number(f64);

impl From<u64> for Number {
    fn from(number: u64) -> Number {
        Number(number as f64)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Number {
        Number(number as f64)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Number {
        Number(f64::from(u8::from(is)))
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number(number)
    }
}

fn labels_of(labels: &[(&str, &str)]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<_> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", all.join(","))
}

/// A pool whose metrics are wanted.
pub struct Source<'a> {
    /// The name of its instance.
    pub instance: &'a str,
    /// A look at it.
    pub observer: &'a Observer,
    /// When flushes of its configuration are due.
    pub ages: Ages,
}

/// The metrics of these pools, as text.
pub fn text(sources: &[Source<'_>]) -> String {
    let mut families = Families::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let about = (Kind::Gauge, "forebay_build_info", "1; its label has the version of Forebay");
    families.add(about, &version, true);
    for source in sources {
        of_pool(&mut families, source);
        of_tiers(&mut families, source);
        of_jobs(&mut families, source);
        for count in source.observer.counters() {
            of_count(&mut families, source.instance, &count);
        }
    }
    families.text()
}

fn of_pool(families: &mut Families, source: &Source<'_>) {
    let observer = source.observer;
    let labels = [("instance", source.instance)];
    let mut gauge = |name: &str, help: &str, value: Number| {
        families.add((Kind::Gauge, name, help), &labels, value);
    };
    let is_served = observer.is_served();
    let halt = liveness::halt(observer.manager()).filter(|_| is_served);
    gauge("forebay_up", "Whether a node manager serves the pool", is_served.into());
    gauge(
        "forebay_manager_stopped",
        "Whether the node manager is stopped, by a signal or a debugger",
        (halt == Some(Halt::Stopped)).into(),
    );
    gauge("forebay_clients", "Processes whose files are buffered", observer.clients().into());
    gauge("forebay_jobs", "Runs under way", observer.jobs().len().into());
    let files = observer.files();
    gauge("forebay_unsafe_bytes", "Bytes that are not yet on the store", observer.dirty().into());
    if let Some(cap) = observer.cap() {
        let help = "Bytes that the stores may lack of all files";
        gauge("forebay_unsafe_limit_bytes", help, cap.into());
    }
    gauge("forebay_unsafe_files", "Files that are ahead of the store", files.len().into());
    let oldest = observer.oldest(&source.ages).map_or(0.0, |oldest| oldest.age.as_secs_f64());
    gauge(
        "forebay_unsafe_oldest_seconds",
        "Time since the oldest write that is not yet on the store; 0 if all is",
        oldest.into(),
    );
    let drain = observer.drain();
    gauge(
        "forebay_drain_estimate_seconds",
        "Time that the store takes for the unsafe bytes that it does not refuse, as fast as it is",
        drain.time.unwrap_or_default().as_secs_f64().into(),
    );
    gauge(
        "forebay_refused_bytes",
        "Unsafe bytes of files that the store refuses to take now",
        drain.refused.into(),
    );
    let failing = files.iter().filter(|file| file.errno.is_some()).count();
    gauge("forebay_failing_files", "Files that the store refuses to take now", failing.into());
    gauge(
        "forebay_held_processes",
        "Processes that do not go on and hold something for which others wait",
        observer.holders().len().into(),
    );
    gauge(
        "forebay_corrupt_ranges",
        "Ranges of files that cannot be read from their tier as they were written (100 at most)",
        observer.corrupt().len().into(),
    );
    let staged = observer.staged();
    let mut counter = |name: &str, help: &str, value: Number| {
        families.add((Kind::Counter, name, help), &labels, value);
    };
    counter(
        "forebay_conflicts_total",
        "Times that a file was found changed by others on the store",
        u64::from(observer.conflicts()).into(),
    );
    counter(
        "forebay_opens_refused_total",
        "Opens that were not buffered because the tables were full",
        u64::from(observer.refused()).into(),
    );
    for state in staged {
        let labels = [("instance", source.instance), ("state", state.stage.name())];
        let about =
            (Kind::Gauge, "forebay_staged_files", "Staged files, by what is being done with them");
        families.add(about, &labels, state.files);
    }
    for (path, speed) in observer.stores().iter().zip(observer.speeds_of_stores()) {
        let labels = [("instance", source.instance), ("directory", path)];
        for (name, help, value) in [
            (
                "forebay_store_write_speed_bytes_per_second",
                "How fast the store is expected to be written: as configured or assumed, corrected \
                 by what was observed",
                speed.write_bandwidth,
            ),
            (
                "forebay_store_read_speed_bytes_per_second",
                "How fast the store is expected to be read",
                speed.read_bandwidth,
            ),
        ] {
            families.add((Kind::Gauge, name, help), &labels, value);
        }
    }
}

fn of_tiers(families: &mut Families, source: &Source<'_>) {
    let totals = source.observer.totals();
    type Of = fn(&TierStatus) -> u64;
    let gauges: [(&str, &str, Of); 7] = [
        ("forebay_tier_capacity_bytes", "Bytes that the tier can hold now", |tier| tier.capacity),
        ("forebay_tier_used_bytes", "Bytes in use on the tier", |tier| tier.used),
        ("forebay_tier_unsafe_bytes", "Bytes of the tier that are not yet on the store", |tier| {
            tier.dirty
        }),
        ("forebay_tier_scratch_bytes", "Bytes of scratch files, not meant for the store", |tier| {
            tier.scratch
        }),
        ("forebay_tier_reserved_bytes", "Bytes of the tier that are set aside for runs", |tier| {
            tier.reserved
        }),
        ("forebay_tier_pinned_bytes", "Bytes that programs have pinned on the tier", |tier| {
            tier.pinned
        }),
        ("forebay_tier_failed", "Whether the tier takes nothing new as its device fails", |tier| {
            u64::from(tier.failed.is_some())
        }),
    ];
    let written = "Bytes written to the tier, by programs and by movements from other tiers";
    let read = "Bytes read from the tier, by programs and by movements to other tiers";
    let mut flows = |labels: &[(&str, &str)], of: &str, flow: Flow, helps: [&str; 2]| {
        for (way, value, help) in [("written", flow.into, helps[0]), ("read", flow.out, helps[1])] {
            let name = format!("forebay_{of}_{way}_bytes_total");
            families.add((Kind::Counter, &name, help), labels, value);
        }
    };
    let tiers = source.observer.tiers();
    for (index, tier) in tiers.iter().enumerate() {
        let labels = [("instance", source.instance), ("tier", &tier.name)];
        flows(&labels, "tier", totals.tier(forebay_placement::TierId::new(index)), [written, read]);
    }
    let helps = [
        "Bytes written to the stores, by flushes and by programs around the tiers",
        "Bytes read from the stores, ahead of programs and while they wait",
    ];
    flows(&[("instance", source.instance)], "store", totals.store(), helps);
    for tier in &tiers {
        let labels = [("instance", source.instance), ("tier", &tier.name)];
        for (name, help, value) in gauges {
            families.add((Kind::Gauge, name, help), &labels, value(tier));
        }
    }
}

fn of_jobs(families: &mut Families, source: &Source<'_>) {
    for job in source.observer.jobs() {
        let number = job.number.to_string();
        if let Some((used, limit)) = job.cap {
            let labels = [("instance", source.instance), ("job", &number)];
            for (name, help, value) in [
                ("forebay_run_unsafe_bytes", "Bytes of the run's files that the stores lack", used),
                ("forebay_run_unsafe_limit_bytes", "Bytes of them that they may lack", limit),
            ] {
                families.add((Kind::Gauge, name, help), &labels, value);
            }
        }
        for (tier, used, limit) in &job.quotas {
            let labels = [("instance", source.instance), ("job", &number), ("tier", tier)];
            for (name, help, value) in [
                ("forebay_quota_used_bytes", "Bytes of the tier that the run's files take", used),
                ("forebay_quota_limit_bytes", "Bytes of the tier that they may take", limit),
            ] {
                families.add((Kind::Gauge, name, help), &labels, *value);
            }
        }
    }
}

/// The name that a count of `forebay status` has as a metric.
fn name_of(count: &Count) -> (String, Kind) {
    let has_unit = ["bytes", "blocks"].contains(&count.unit) && !count.name.ends_with(count.unit);
    let unit = if has_unit { format!("_{}", count.unit) } else { String::new() };
    // It is what two counts differ by.
    match count.name {
        "guess_misses" => (format!("forebay_{}{unit}", count.name), Kind::Gauge),
        name => (format!("forebay_{name}{unit}_total"), Kind::Counter),
    }
}

fn of_count(families: &mut Families, instance: &str, count: &Count) {
    let (name, kind) = name_of(count);
    let help = format!("{}: {}", count.unit, count.help);
    families.add((kind, &name, &help), &[("instance", instance)], count.value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_families_stay_together() {
        let mut families = Families::default();
        for (instance, value) in [("a\"b\\c\nd", 1_u64), ("e", 2)] {
            let labels = [("instance", instance)];
            families.add((Kind::Gauge, "forebay_x_bytes", "One\nline"), &labels, value);
            families.add((Kind::Counter, "forebay_y_total", "y"), &labels, 0.5);
        }
        assert_eq!(
            families.text(),
            "# HELP forebay_x_bytes One\\nline\n# TYPE forebay_x_bytes gauge\n\
             forebay_x_bytes{instance=\"a\\\"b\\\\c\\nd\"} 1\nforebay_x_bytes{instance=\"e\"} 2\n\
             # HELP forebay_y_total y\n# TYPE forebay_y_total counter\n\
             forebay_y_total{instance=\"a\\\"b\\\\c\\nd\"} 0.5\nforebay_y_total{instance=\"e\"} 0.5\n"
        );
    }

    #[test]
    fn counts_have_names_with_units() {
        let name = |name, unit| name_of(&Count { name, unit, help: "", value: 0 }).0;
        assert_eq!(name("write_bytes", "bytes"), "forebay_write_bytes_total");
        assert_eq!(name("write_around", "blocks"), "forebay_write_around_blocks_total");
        assert_eq!(name("opens", "calls"), "forebay_opens_total");
        assert_eq!(name("guess_misses", "blocks"), "forebay_guess_misses_blocks");
    }
}
