//! The performance model of `placement::outofcore`, fed from a traced run.

use super::ledger::Ledger;
use super::story::{Deeds, Story};
use crate::text::counted;
use forebay_node::Config;
use forebay_node::config::{Backing, Speed};
use forebay_node::status::{Observer, SpeedStatus};
use forebay_placement::outofcore::{self, BUSY_MAX, FIRST, Measured, Silent, Speedup, median};
use forebay_pool::spans::SpanKind;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A pause that is shorter than such a part of the longest one is no iteration.
const ITERATION_PART: u64 = 4;

/// How fast the devices are, in bytes a second in reading and in writing, where that was measured
/// or is configured. What Forebay assumes of others says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speeds {
    /// Of the slowest store.
    pub store: [Option<f64>; 2],
    /// Of the tier below RAM, or of the store where there is none.
    pub layer: [Option<f64>; 2],
}

impl Speeds {
    /// What is known now.
    pub fn of(observer: &Observer, config: &Config) -> Speeds {
        let (tiers, stores) = (observer.speeds_of_tiers(), observer.speeds_of_stores());
        let slowest = |known: &dyn Fn(usize) -> [Option<f64>; 2]| {
            let all: Vec<_> = (0..config.backing.len().min(stores.len())).map(known).collect();
            let of = |way: usize| all.iter().map(|one| one[way]).min_by(|a, b| order(*a, *b));
            [of(0).flatten(), of(1).flatten()]
        };
        let store = slowest(&|at| {
            let backing: &Backing = &config.backing[at];
            measured(stores[at], backing.said_speed(), backing.known_speed())
        });
        let layer = match (config.tiers.get(1), tiers.get(1)) {
            (Some(tier), Some(now)) => measured(*now, tier.said_speed(), tier.known_speed()),
            _ => store,
        };
        Speeds { store, layer }
    }
}

/// What is not known is least.
fn order(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0))
}

/// The speeds of now of a device, as far as they are configured (`known`), or were corrected since
/// by transfers: are not `begun` any more.
fn measured(now: SpeedStatus, known: Speed, begun: Speed) -> [Option<f64>; 2] {
    let one = |now: u64, known: u64, begun: u64| {
        (now > 0 && (known > 0 || now != begun)).then_some(now as f64)
    };
    [
        one(now.read_bandwidth, known.read_bandwidth, begun.read_bandwidth),
        one(now.write_bandwidth, known.write_bandwidth, begun.write_bandwidth),
    ]
}

/// What the model says, and what it says that by.
pub struct Said {
    measured: Measured,
    speedup: Result<Speedup, Silent>,
    /// Iterations were marked by the program.
    is_marked: bool,
}

impl Said {
    /// Of a run so far.
    pub fn of(story: &Story, ledger: &Ledger, speeds: Speeds) -> Said {
        // The one that takes longest: the program is there when all are.
        let busiest = story.threads.iter().max_by_key(|deeds| {
            let phases: u64 = deeds.phases().map(|(_, phase)| phase.length_ns()).sum();
            phases + deeds.blocked_ns()
        });
        let mut measured = Measured::default();
        for deeds in &story.threads {
            let (read, written) = deeds.bytes();
            measured.read_bytes += read as f64;
            measured.written_bytes += written as f64;
        }
        let mut is_marked = false;
        if let Some(deeds) = busiest {
            let (read, written) = deeds.bytes();
            measured.own_bytes = read as f64 + written as f64;
            measured.blocked_s = seconds(deeds.blocked_ns());
            measured.copy_bandwidth = copy_bandwidth(deeds);
            measured.iterations_s = marked(deeds);
            is_marked = !measured.iterations_s.is_empty();
            if !is_marked {
                measured.iterations_s = unmarked(deeds);
            }
        }
        measured.moved_bytes = ledger.moved() as f64;
        measured.layer_bandwidth = ledger.layer_bandwidth().or_else(|| {
            let [reads, writes] = speeds.layer;
            let time = |bytes: f64, speed: Option<f64>| match bytes > 0.0 {
                true => speed.map(|speed| bytes / speed),
                false => Some(0.0),
            };
            let (read, written) = (measured.read_bytes, measured.written_bytes);
            Some((read + written) / (time(read, reads)? + time(written, writes)?))
        });
        [measured.store_reads, measured.store_writes] = speeds.store;
        Said { speedup: outofcore::speedup(&measured), measured, is_marked }
    }

    /// Of a run that buffers nothing.
    pub fn of_bypassed() -> Said {
        Said {
            measured: Measured::default(),
            speedup: Err(Silent::NothingBuffered),
            is_marked: false,
        }
    }

    /// How many iterations it goes by.
    fn iterations(&self) -> usize {
        self.measured.iterations_s.iter().map(Vec::len).sum()
    }

    /// In a line.
    pub fn line(&self) -> String {
        match &self.speedup {
            Ok(found) => format!(
                "speed-up over the store: expected {:.2} (equation 3), {:.2} with {:.0} % of the \
                 bytes staying in RAM and a kernel that loses {:.1} %; actual {:.2}",
                found.expected,
                found.expected_beyond,
                found.beyond.resident * 100.0,
                found.beyond.kernel_loss * 100.0,
                found.actual
            ),
            Err(silent) => format!("no speed-up can be expected: {}", silent.why()),
        }
    }

    /// What it is made of; empty where there is none.
    pub fn terms(&self) -> String {
        let Ok(found) = &self.speedup else { return String::new() };
        let (terms, measured) = (&found.terms, &self.measured);
        let gib = |speed: Option<f64>| match speed {
            Some(speed) => format!("{:.2} GiB/s", speed / f64::from(1 << 30)),
            None => "not measured".to_owned(),
        };
        let way = if self.is_marked { "marked" } else { "between I/O" };
        let mut said = format!(
            "kernel {:.3} s ({}, {way}), copies {:.3} s at {}, I/O {:.3} s at {}, directly {:.3} s \
             (reads {}, writes {}); kernel and calls really took {:.3} s",
            terms.kernel_s,
            counted(self.iterations(), "iteration", "iterations"),
            terms.copy_s,
            gib(measured.copy_bandwidth),
            terms.io_s,
            gib(measured.layer_bandwidth),
            terms.direct_s,
            gib(measured.store_reads),
            gib(measured.store_writes),
            found.actual_s,
        );
        let busy = terms.busy(found.beyond);
        if busy > BUSY_MAX {
            said.push_str(&format!(
                "; what is behind RAM is busy for {:.0} % of the time: above {:.0} % waits have no \
                 bound",
                busy.min(1.0) * 100.0,
                BUSY_MAX * 100.0
            ));
        }
        said
    }

    /// For the file.
    pub fn json(&self) -> Value {
        let measured = &self.measured;
        let mut said = json!({
            "iterations": self.iterations(),
            "marked": self.is_marked,
            "blocked_s": measured.blocked_s,
            "read_bytes": measured.read_bytes,
            "written_bytes": measured.written_bytes,
            "moved_bytes": measured.moved_bytes,
            "copy_bytes_per_s": measured.copy_bandwidth,
            "layer_bytes_per_s": measured.layer_bandwidth,
            "store_read_bytes_per_s": measured.store_reads,
            "store_write_bytes_per_s": measured.store_writes,
        });
        match &self.speedup {
            Ok(found) => {
                said["kernel_s"] = found.terms.kernel_s.into();
                said["copy_s"] = found.terms.copy_s.into();
                said["io_s"] = found.terms.io_s.into();
                said["direct_s"] = found.terms.direct_s.into();
                said["resident"] = found.beyond.resident.into();
                said["kernel_loss"] = found.beyond.kernel_loss.into();
                said["expected_equation_3"] = found.expected.into();
                said["expected"] = found.expected_beyond.into();
                said["actual"] = found.actual.into();
            }
            Err(silent) => said["silent"] = silent.why().into(),
        }
        said
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The first writes of the thread are copies: the buffers are empty. Of a thread that only reads,
/// its first reads.
fn copy_bandwidth(deeds: &Deeds) -> Option<f64> {
    let speeds = |wanted: SpanKind| {
        let calls = deeds.calls().filter(|(kind, at)| *kind == wanted && at.bytes * at.busy_ns > 0);
        let first = calls.take(FIRST).map(|(_, at)| at.bytes as f64 / seconds(at.busy_ns));
        median(&first.collect::<Vec<_>>())
    };
    speeds(SpanKind::Write).or_else(|| speeds(SpanKind::Read))
}

/// The kernel's time in each outermost phase that the thread has marked, by name: what is not spent
/// in calls. A phase that is mostly calls is no kernel.
fn marked(deeds: &Deeds) -> Vec<Vec<f64>> {
    let mut by_name: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    let mut calls = deeds.calls().map(|(_, at)| at).peekable();
    for (name, phase) in deeds.phases() {
        let mut busy_ns = 0;
        while let Some(call) = calls.next_if(|call| call.start_ns < phase.end_ns) {
            busy_ns += if call.start_ns >= phase.start_ns { call.busy_ns } else { 0 };
        }
        let kernel_ns = phase.length_ns().saturating_sub(busy_ns);
        by_name.entry(name).or_default().push((kernel_ns, busy_ns));
    }
    by_name.retain(|_, phases| {
        let sum = |of: fn(&(u64, u64)) -> u64| phases.iter().map(of).sum::<u64>();
        sum(|(kernel_ns, _)| *kernel_ns) > sum(|(_, busy_ns)| *busy_ns)
    });
    let times = |phases: Vec<(u64, u64)>| phases.iter().map(|(ns, _)| seconds(*ns)).collect();
    by_name.into_values().map(times).collect()
}

/// The time between the calls of the thread: the long pauses, and all others as one.
fn unmarked(deeds: &Deeds) -> Vec<Vec<f64>> {
    let longest = deeds.pauses().map(|pause| pause.length_ns()).max().unwrap_or(0);
    let is_long = |ns: &u64| *ns >= longest / ITERATION_PART;
    let (long, short): (Vec<u64>, Vec<u64>) =
        deeds.pauses().map(|pause| pause.length_ns()).partition(is_long);
    let others = seconds(short.into_iter().sum());
    vec![long.into_iter().map(seconds).collect(), vec![others]]
}

#[cfg(test)]
mod tests {
    use super::super::story::{Deed, Stretch};
    use super::*;
    use forebay_pool::spans::Thread;

    fn deeds(deeds: &[(Deed, u64, u64, u64)]) -> Deeds {
        let thread = Thread {
            process: 1,
            id: 1,
            rank: None,
            name: Vec::new(),
            seen_ns: 0,
            totals: <_>::default(),
        };
        let stretch = |&(deed, start_ns, end_ns, bytes)| {
            let busy_ns = if matches!(deed, Deed::Calls(_)) { end_ns - start_ns } else { 0 };
            (deed, Stretch { start_ns, end_ns, bytes, busy_ns, calls: 1 })
        };
        Deeds { thread, deeds: deeds.iter().map(stretch).collect() }
    }

    const WRITE: Deed = Deed::Calls(SpanKind::Write);

    #[test]
    fn marked_phases_are_the_kernel_but_for_their_calls() {
        let phase = |name| Deed::Phase { name, depth: 0 };
        let second = 1_000_000_000;
        let found = marked(&deeds(&[
            (phase(1), 0, 3 * second, 0),
            (WRITE, second, 2 * second, 8),
            (Deed::Phase { name: 7, depth: 1 }, 2 * second, 3 * second, 0),
            (WRITE, 3 * second, 4 * second, 8),
            (phase(2), 4 * second, 6 * second, 0),
            (WRITE, 4 * second, 6 * second, 8),
            (phase(1), 6 * second, 7 * second, 0),
        ]));
        assert_eq!(found, [[2.0, 1.0]], "the phase of calls alone is no kernel");
    }

    #[test]
    fn long_pauses_are_the_iterations_of_a_program_without_marks() {
        let pause = |start, end| (Deed::Compute, start, end, 0);
        let second = 1_000_000_000;
        let found = unmarked(&deeds(&[
            pause(0, second),
            pause(2 * second, 2 * second + second / 10),
            pause(3 * second, 4 * second + second / 2),
        ]));
        assert_eq!(found, [vec![1.0, 1.5], vec![0.1]]);
    }

    #[test]
    fn the_first_writes_say_how_fast_a_copy_is() {
        let mut all = vec![(Deed::Calls(SpanKind::Read), 0, 1000, 1)];
        all.extend((1..20).map(|at| {
            let length = if at <= 10 { 100 } else { 1000 };
            (WRITE, at * 10_000, at * 10_000 + length, 200)
        }));
        assert_eq!(copy_bandwidth(&deeds(&all)), Some(2e9));
        assert_eq!(copy_bandwidth(&deeds(&all[..1])), Some(1e6));
        assert_eq!(copy_bandwidth(&deeds(&[])), None);
    }

    #[test]
    fn speeds_that_are_only_assumed_are_not_known() {
        let [none, assumed, said] = [0, 500, 70].map(|speed| Speed {
            read_bandwidth: speed,
            write_bandwidth: speed,
            latency_ns: 1,
            ..Speed::default()
        });
        let now = |read, write| SpeedStatus { read_bandwidth: read, write_bandwidth: write };
        assert_eq!(measured(now(500, 500), none, assumed), [None, None]);
        assert_eq!(measured(now(500, 80), none, assumed), [None, Some(80.0)]);
        assert_eq!(measured(now(70, 90), said, said), [Some(70.0), Some(90.0)]);
    }
}
