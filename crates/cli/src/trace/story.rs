//! What the threads of a traced run did: what they noted in shared memory, in order, so that it can
//! be shown. A process may have been killed while it noted something, clocks are set back, and
//! programs may write to that memory: here it is made such that spans lie within each other and
//! within the run.

use forebay_pool::spans::{Missed, Span, SpanKind, Spans, Thread};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Pauses between calls from which the thread is shown to compute, in nanoseconds.
const PAUSE_NS: u64 = 100_000;

/// A run, from its begin on, in nanoseconds of CLOCK_REALTIME.
pub struct Story {
    /// When the command was started.
    pub begin_ns: u64,
    /// When it ended, or now.
    pub end_ns: u64,
    /// Threads that did something, in the order of their processes.
    pub threads: Vec<Deeds>,
    /// The names of phases: the outermost ones first, and of these those that took longest.
    pub phases: Vec<String>,
    /// What is not there.
    pub missed: Missed,
}

/// What a thread did.
pub struct Deeds {
    /// Who it is.
    pub thread: Thread,
    /// Calls, marked phases, and time between them ([`Deed::Compute`]); each lies within another or
    /// beside it, and comes behind those in which it lies.
    pub deeds: Vec<(Deed, Stretch)>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Calls of a kind.
    Calls(SpanKind),
    /// A phase by the number of its name, and how many others it lies in.
    Phase {
        /// See [`Spans::name`].
        name: u32,
        /// 0 is the outermost.
        depth: u32,
    },
    /// Neither calls nor a phase.
    Compute,
}

/// When, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Nanoseconds of CLOCK_REALTIME.
    pub start_ns: u64,
    /// See `start_ns`; not before it.
    pub end_ns: u64,
    /// What was read or written.
    pub bytes: u64,
    /// What its calls took of it, in nanoseconds.
    pub busy_ns: u64,
    /// How many calls.
    pub calls: u64,
}

impl Stretch {
    /// Its length.
    pub fn length_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

impl Deeds {
    /// The stretches of calls.
    pub fn calls(&self) -> impl Iterator<Item = (SpanKind, &Stretch)> {
        self.deeds.iter().filter_map(|(deed, stretch)| match deed {
            Deed::Calls(kind) => Some((*kind, stretch)),
            _ => None,
        })
    }

    /// The outermost phases, with the numbers of their names.
    pub fn phases(&self) -> impl Iterator<Item = (u32, &Stretch)> {
        self.deeds.iter().filter_map(|(deed, stretch)| match deed {
            Deed::Phase { name, depth: 0 } => Some((*name, stretch)),
            _ => None,
        })
    }

    /// The time between calls and phases.
    pub fn pauses(&self) -> impl Iterator<Item = &Stretch> {
        self.deeds.iter().filter_map(|(deed, stretch)| (*deed == Deed::Compute).then_some(stretch))
    }

    /// The time that its calls took, in nanoseconds, however many stretches were noted.
    pub fn blocked_ns(&self) -> u64 {
        let calls = SpanKind::ALL.iter().filter(|kind| **kind != SpanKind::Phase);
        calls.map(|kind| self.thread.total(*kind).busy_ns).fold(0, u64::saturating_add)
    }

    /// What it read and wrote.
    pub fn bytes(&self) -> (u64, u64) {
        (self.thread.total(SpanKind::Read).bytes, self.thread.total(SpanKind::Write).bytes)
    }
}

impl Story {
    /// What was noted in `spans` between two moments.
    pub fn of(spans: &Spans, begin_ns: u64, end_ns: u64) -> Story {
        let lanes = spans.lanes();
        let mut noted: Vec<Vec<Span>> = vec![Vec::new(); lanes.len()];
        for span in spans.spans() {
            if let Some(of_lane) = noted.get_mut(span.lane as usize) {
                of_lane.push(span);
            }
        }
        // What a process that is gone has left open ends with the last thing that it noted.
        let last_of = |process: u32| {
            let its = lanes.iter().zip(&noted).filter(|(lane, _)| lane.process == process);
            let last = its.flat_map(|(_, noted)| noted).map(|span| span.end_ns.max(span.start_ns));
            last.max().unwrap_or(0)
        };
        let end_of = |process: u32| if lives(process) { end_ns } else { last_of(process) };
        let mut threads: Vec<Deeds> = Vec::new();
        for (thread, noted) in lanes.iter().zip(&noted).filter(|(_, noted)| !noted.is_empty()) {
            let is_open = noted.iter().any(|span| span.end_ns == 0);
            let left_ns = if is_open { end_of(thread.process) } else { 0 };
            let deeds = noted.iter().map(|span| deed(span, left_ns));
            threads.push(Deeds {
                thread: thread.clone(),
                deeds: with_pauses(nested(deeds.collect(), (begin_ns, end_ns))),
            });
        }
        // Stable: threads of a process stay in the order in which they were seen.
        threads.sort_by_key(|deeds| {
            let process = deeds.thread.process;
            let first = lanes.iter().position(|lane| lane.process == process);
            (first, deeds.thread.seen_ns)
        });
        // The depth and the time of each name.
        let mut phases: HashMap<u32, (u32, u64)> = HashMap::new();
        for (deed, stretch) in threads.iter().flat_map(|deeds| &deeds.deeds) {
            if let Deed::Phase { name, depth } = *deed {
                let (least, time_ns) = phases.entry(name).or_insert((depth, 0));
                *least = depth.min(*least);
                *time_ns += stretch.length_ns();
            }
        }
        let mut phases: Vec<_> = phases.into_iter().collect();
        phases.sort_by_key(|&(name, (depth, time_ns))| (depth, Reverse(time_ns), name));
        let phases = phases.into_iter().map(|(name, _)| spans.name(name)).collect();
        Story { begin_ns, end_ns, threads, phases, missed: spans.missed() }
    }

    /// What could not be noted, in words; nothing if all was.
    pub fn describe_missed(&self) -> Option<String> {
        let Missed { spans, threads, depth, ends, names } = self.missed;
        let said = [
            (spans, "spans (the memory for them is full)"),
            (threads, "threads (4096 are noted)"),
            (depth, "phases that lie in 16 others"),
            (names, "names of phases (1024 are noted)"),
            (ends, "ends of phases that had not begun"),
        ];
        let said: Vec<_> = said
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!said.is_empty()).then(|| format!("left out: {}", said.join(", ")))
    }
}

fn lives(process: u32) -> bool {
    std::fs::exists(format!("/proc/{process}")).unwrap_or(false)
}

fn deed(span: &Span, left_ns: u64) -> (Deed, Stretch) {
    let Span { kind, name, depth, start_ns, bytes, busy_ns, calls, .. } = *span;
    let end_ns = if span.end_ns == 0 { left_ns } else { span.end_ns };
    let deed = match kind {
        SpanKind::Phase => Deed::Phase { name, depth },
        kind => Deed::Calls(kind),
    };
    (deed, Stretch { start_ns, end_ns, bytes, busy_ns, calls })
}

/// In order, cut off such that each lies within another or beside it, and all within the run.
fn nested(mut deeds: Vec<(Deed, Stretch)>, run: (u64, u64)) -> Vec<(Deed, Stretch)> {
    for (_, stretch) in &mut deeds {
        stretch.start_ns = stretch.start_ns.clamp(run.0, run.1);
        stretch.end_ns = stretch.end_ns.clamp(stretch.start_ns, run.1);
    }
    let depth = |deed: &Deed| match deed {
        Deed::Phase { depth, .. } => *depth,
        _ => u32::MAX,
    };
    deeds.sort_by_key(|(deed, stretch)| (stretch.start_ns, Reverse(stretch.end_ns), depth(deed)));
    let mut around: Vec<(u64, bool)> = Vec::new();
    let mut before_ns = run.0;
    for (deed, stretch) in &mut deeds {
        // What was before may have been put off.
        stretch.start_ns = stretch.start_ns.max(before_ns);
        stretch.end_ns = stretch.end_ns.max(stretch.start_ns);
        let is_phase = matches!(deed, Deed::Phase { .. });
        while let Some(&(end_ns, holds)) = around.last() {
            if holds && end_ns > stretch.start_ns {
                break;
            }
            // Nothing lies in calls: what began in them begins behind them.
            if !holds {
                stretch.start_ns = stretch.start_ns.max(end_ns);
                stretch.end_ns = stretch.end_ns.max(stretch.start_ns);
            }
            around.pop();
        }
        if let Some(&(end_ns, _)) = around.last() {
            stretch.end_ns = stretch.end_ns.min(end_ns);
        }
        before_ns = stretch.start_ns;
        stretch.busy_ns = stretch.busy_ns.min(stretch.length_ns());
        around.push((stretch.end_ns, is_phase));
    }
    deeds
}

/// The same with what lies between calls and outermost phases.
fn with_pauses(deeds: Vec<(Deed, Stretch)>) -> Vec<(Deed, Stretch)> {
    let mut all = Vec::with_capacity(deeds.len() * 2);
    let mut end_ns = deeds.first().map_or(0, |(_, stretch)| stretch.start_ns);
    for (deed, stretch) in deeds {
        if stretch.start_ns.saturating_sub(end_ns) >= PAUSE_NS {
            let pause =
                Stretch { start_ns: end_ns, end_ns: stretch.start_ns, ..Stretch::default() };
            all.push((Deed::Compute, pause));
        }
        end_ns = end_ns.max(stretch.end_ns);
        all.push((deed, stretch));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(start_ns: u64, end_ns: u64) -> Stretch {
        Stretch { start_ns, end_ns, ..Stretch::default() }
    }

    fn phase(depth: u32) -> Deed {
        Deed::Phase { name: 1, depth }
    }

    const READ: Deed = Deed::Calls(SpanKind::Read);

    /// Whatever lies there, nothing crosses.
    fn check(deeds: &[(Deed, Stretch)], (begin_ns, end_ns): (u64, u64)) {
        let mut around: Vec<Stretch> = Vec::new();
        let mut before_ns = begin_ns;
        for (deed, at) in deeds {
            assert!(before_ns <= at.start_ns && at.start_ns <= at.end_ns && at.end_ns <= end_ns);
            before_ns = at.start_ns;
            around.retain(|outer| outer.end_ns > at.start_ns);
            assert!(around.iter().all(|outer| at.end_ns <= outer.end_ns), "{deed:?} {at:?}");
            around.push(*at);
        }
    }

    #[test]
    fn what_crosses_is_cut_off() {
        let found = nested(
            vec![
                (READ, stretch(15, 30)),
                (phase(0), stretch(10, 20)),
                (phase(1), stretch(10, 40)),
                (READ, stretch(0, 12)),
                (phase(0), stretch(90, 5000)),
            ],
            (5, 100),
        );
        check(&found, (5, 100));
        assert_eq!(found.len(), 5);
        assert_eq!(found.last(), Some(&(phase(0), stretch(90, 100))));
    }

    #[test]
    fn anything_in_that_memory_becomes_spans_within_each_other() {
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random >> 33
        };
        for _ in 0..500 {
            let one = |()| {
                let start = next() % 60;
                let deed = if next() % 2 == 0 { READ } else { phase(next() as u32 % 3) };
                (deed, stretch(start, (start + next() % 30).saturating_sub(next() % 10)))
            };
            let deeds = std::iter::repeat_n((), 12).map(one).collect();
            check(&nested(deeds, (10, 70)), (10, 70));
        }
    }

    #[test]
    fn the_time_between_is_computing() {
        let at = |start_us: u64, end_us: u64| stretch(start_us * 1000, end_us * 1000);
        let deeds = vec![
            (READ, at(0, 10)),
            (READ, at(50, 60)),
            (phase(0), at(500, 900)),
            (READ, at(600, 700)),
            (READ, at(1000, 1001)),
        ];
        let found = with_pauses(deeds);
        let pauses: Vec<_> = found.iter().filter(|(deed, _)| *deed == Deed::Compute).collect();
        assert_eq!(pauses, [&(Deed::Compute, at(60, 500)), &(Deed::Compute, at(900, 1000))]);
    }
}
