//! The list `points`: each point once with a pause and once with a kill, in programs and in node
//! managers, while others work; with what leads there.

use super::operations::Operation::{
    self, Allocate, Common, CopyRange, Exec, Extend, Far, Fdatasync, Fork, Fsync, Inherit, MapRead,
    MapWrite, OpenAppend, OpenEmpty, Over, Punch, ReadCommon, Sparse, Stored, Truncate, Whole,
    Write,
};
use super::place::{Tiers, send};
use super::points::{self, CRATES};
use super::{DAMAGED, Torture};
use forebay_placement::Random;
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a case goes on at most until its point is passed.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How long it goes on afterwards: longer than the pause, and than every timer.
const AFTER_MS: u64 = 150;
/// How long there is no node manager: longer than every timer.
const ABSENCE_MS: u64 = 100;
/// At one of so many passes of its point a victim kills itself.
const VICTIMS_PASSES: u64 = 12;

const CLIENT: &str = "client";
const NODE: &str = "node";

/// Points of the pool that programs alone pass: they open files, write, and cut.
const OF_CLIENTS: &[&str] = &[
    "bucket.cached",
    "bucket.refilled",
    "bucket.uncached",
    "description.adopting",
    "description.closed",
    "description.closing",
    "description.held",
    "description.live",
    "description.named",
    "description.taken",
    "file.described",
    "file.exclusive",
    "file.exclusive-waiting",
    "file.found",
    "file.linked",
    "file.linking",
    "file.taken",
    "fork.inheriting",
    "index.child",
    "lengthen.begun",
    "lengthen.ending",
    "slot.bequeathed",
    "slot.reserved",
    "tail.dead",
    "tail.dirty",
    "tail.zeroed",
    "truncate.discarded",
    "truncate.done",
    "truncate.intent",
    "truncate.quiesced",
    "truncate.size",
    "truncate.store",
];
/// Points of the pool that node managers alone pass: they take back what the dead held, and forget
/// files.
const OF_NODES: &[&str] = &[
    "description.sweep",
    "file.pruned",
    "file.removing",
    "file.settling",
    "file.unlinked",
    "flush.failed",
    "flush.writeback",
    "index.pruned",
    "lend.raised",
    "memory.backed",
    "memory.restored",
    "reap.begin",
    "reap.bucket",
    "reap.cache",
    "reap.exclusive",
    "reap.holdings",
    "reap.inside",
    "reap.locks",
    "recover.buckets",
    "recover.lent",
    "recover.lent-slots",
    "recover.marks",
    "recover.memory",
    "recover.reaped",
    "recover.writeback",
    "slot.unnoted",
    "sparse.removed",
    "sparse.shrinking",
];

/// Points of the pool that a node manager passes, too, but to which no case leads there.
const SELDOM_IN_NODES: &[&str] = &[
    // What no program has written is staged in.
    "index.node",
    "index.root",
    // A small file that is hot comes back to RAM.
    "sparse.backed",
    "sparse.claimed",
    "sparse.claiming",
    "sparse.ready",
    "sparse.taken",
];

/// Points to which no case leads: of a second line of defence, those that have their own tests, and
/// those for which the torture has no operation.
const DEFENCES: &[&str] = &[
    // No command runs on files of the torture: the tests of the manager kill there.
    "action.added",
    "action.decided",
    "action.due",
    "action.ended",
    "action.noted",
    "action.published",
    "action.removed",
    "action.removing",
    "action.started",
    "action.starting",
    "action.synced",
    "action.taking-over",
    "action.writing",
    "staged.released",
    // Nor is one replaced by its encoded form: the same tests.
    "manager.asked",
    "encoded.beside",
    "encoded.guarded",
    "encoded.here",
    "encoded.leased",
    "encoded.marked",
    "encoded.noted",
    "encoded.removed",
    "encoded.unanswered",
    "encoded.written",
    "restore.copied",
    "restore.emptied",
    "restore.marked",
    "restore.open",
    "restore.removed",
    "restore.unmarked",
    "restore.written",
    // No file of the torture is removed by a program without Forebay: `posix names` kills there.
    "aside.begin",
    "aside.dropped",
    "aside.kept",
    "aside.written",
    // A program has written the very block that is being fetched ahead, or read.
    "bucket.aborted",
    // Blocks of full tiers change places where some are hot: `faults crash` kills there.
    "exchange.come",
    "exchange.gone",
    // All slots of programs are in use.
    "fork.waiting",
    // No worker takes an owner's permission away, and no manager is short of descriptors.
    "register.changing",
    "register.giving-up",
    // No worker hands a descriptor to a program without Forebay, or makes it standard error:
    // `posix standard_error` kills there.
    "release.begun",
    "release.sought",
    // Small files of the torture are buffered: `posix written_through` kills there.
    "small.turned",
    "small.turning",
    // Memory that is idle for a while goes back: the tests of the manager kill and pause there.
    "lend.lowered",
    // Nor do small files fill the tiers: the same tests.
    "lend.slot-discarded",
    "lend.slot-unbacked",
    "lend.slots-lowered",
    "lend.slots-retired",
    "sparse.discarded",
    "sparse.idle",
    "sparse.slot-taken",
    "sparse.slots-idle",
    "sparse.slots-ready",
    "sparse.table-synced",
    "map.bits-of-all-taken",
    "map.one-of-all-claimed",
    "memory.given-back",
    "memory.idle-retired",
    "memory.retired",
    // No Lustre: the tests of the manager have a stand-in.
    "staged.laid-out",
    // No worker starts a program by vfork.
    "vfork.beside",
    "vfork.child",
    // A program notes that a file is ahead of the store before the first byte that makes it so.
    "pending.ahead",
];

/// Families of points to which no case leads either: the torture has one node, no HDF5, and pins
/// nothing. The tests of several nodes, of HDF5 and of the manager pass them.
const ELSEWHERE: &[&str] = &["commit", "dataset", "lease", "others", "part", "pin", "remote"];

fn has_no_case(point: &str) -> bool {
    let family = point.split_once('.').map_or(point, |(family, _)| family);
    DEFENCES.contains(&point) || ELSEWHERE.contains(&family)
}

/// What happens at the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The first that passes it pauses, in each process.
    Pause,
    /// The first that passes it kills itself.
    Kill,
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub number: u64,
    pub point: &'static str,
    /// In processes of this role.
    pub role: &'static str,
    pub act: Act,
}

/// What happens again and again until the point is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The node manager is killed.
    Kill,
    /// It is killed, and none comes for some time, in which programs die.
    Absence,
    /// `forebay stop`.
    Stop,
    /// All ends in peace, and begins anew.
    Peace,
    /// Everything is killed, the pool removed, and the rest brought back.
    Memory,
}

/// What leads to a point.
struct Lead {
    tiers: Tiers,
    /// Half of the operations.
    often: &'static [Operation],
    /// Where every other program, or each, kills itself, and where those of two workers pause, if
    /// anywhere.
    victims: &'static str,
    held: &'static str,
    faults: &'static str,
    events: &'static [Event],
}

const PLAIN: Lead =
    Lead { tiers: Tiers::Busy, often: &[], victims: "", held: "", faults: "", events: &[] };
const CUTS: &[Operation] = &[Truncate, OpenEmpty];
const LENGTHENING: &[Operation] = &[Allocate, Truncate, CopyRange, MapWrite, Sparse];
const BEHIND: &[Operation] = &[Common, Sparse, Extend, OpenAppend, ReadCommon];

fn lead(aim: &Aim) -> Lead {
    use Event::{Absence, Kill, Memory, Peace, Stop};
    let in_node = aim.role == NODE;
    let (family, step) = aim.point.split_once('.').unwrap_or((aim.point, ""));
    match (family, step) {
        ("bucket", "cached" | "uncached") => Lead { tiers: Tiers::Wide, ..PLAIN },
        ("reap", "cache") => Lead { tiers: Tiers::Wide, victims: "write.published", ..PLAIN },
        ("description", "adopted" | "adopting") | ("spawn", _) => {
            Lead { often: &[Inherit], ..PLAIN }
        }
        ("descriptor", "replacing" | "replaced") => Lead { often: &[Over], ..PLAIN },
        ("slot", "summing") if in_node => Lead {
            tiers: Tiers::Full,
            often: &[Truncate, Punch, Write],
            victims: "truncate.quiesced",
            ..PLAIN
        },
        ("lend" | "sparse", _) => Lead { tiers: Tiers::Wide, ..PLAIN },
        ("fork", _) => Lead { often: &[Fork], ..PLAIN },
        ("index", "child" | "pruned") => Lead { often: &[Far], ..PLAIN },
        // A program dies in a cut, which the manager completes in a slot that it cannot write.
        ("replace", _) if in_node => Lead {
            tiers: Tiers::Full,
            often: &[Whole, Truncate, Punch],
            victims: "truncate.intent",
            ..PLAIN
        },
        ("replace", _) => Lead { tiers: Tiers::Full, often: &[Whole], ..PLAIN },
        ("lengthen", "repairing" | "repaired") => {
            let events = &[Absence];
            let (tiers, victims) = (Tiers::Full, "lengthen.ending");
            Lead { tiers, often: LENGTHENING, victims, events, ..PLAIN }
        }
        // The tiers stay full: what is written goes around them.
        ("store" | "around", _) => Lead {
            tiers: Tiers::Full,
            often: &[Whole, Extend, Write],
            faults: "store write delay 30ms",
            ..PLAIN
        },
        ("lengthen" | "allocate", _) => Lead { tiers: Tiers::Full, often: LENGTHENING, ..PLAIN },
        ("tail", _) => Lead { often: BEHIND, victims: "write.dirty", events: &[Absence], ..PLAIN },
        ("complete" | "finish", _) | ("reap", "exclusive") => {
            let events: &[Event] = if in_node { &[] } else { &[Absence] };
            Lead { often: CUTS, victims: "truncate.quiesced", events, ..PLAIN }
        }
        ("cut-block", _) if in_node => {
            Lead { often: &[Truncate, Write], victims: "truncate.quiesced", ..PLAIN }
        }
        ("punch-block", _) if in_node => {
            Lead { often: &[Punch, Write], victims: "punch.quiesced", ..PLAIN }
        }
        ("punch", _) if in_node => Lead { often: &[Punch], victims: "punch.intent", ..PLAIN },
        ("punch" | "punch-block", _) => Lead { often: &[Punch], ..PLAIN },
        ("truncate" | "cut-block" | "passthrough", _) => Lead { often: CUTS, ..PLAIN },
        ("reap", "bucket") => Lead { often: &[Write], victims: "write.marked", ..PLAIN },
        ("reap", _) => Lead { victims: "write.dirty", ..PLAIN },
        ("takeover", "unfinished") => {
            Lead { often: CUTS, victims: "truncate.quiesced", events: &[Absence], ..PLAIN }
        }
        ("table", _) => {
            Lead { tiers: Tiers::Full, victims: "record.writing", events: &[Absence], ..PLAIN }
        }
        ("slot", "bequeathed") => Lead { often: &[Exec, Write], ..PLAIN },
        ("recover", "writeback") => {
            Lead { faults: "store write delay 30ms", events: &[Kill], ..PLAIN }
        }
        ("recover" | "takeover", _) => Lead { events: &[Kill], ..PLAIN },
        ("manager", "took-over") => Lead { events: &[Kill], ..PLAIN },
        ("manager", _) | ("message", "answering") | ("journal", "stopped") => {
            Lead { events: &[Stop, Peace], ..PLAIN }
        }
        ("rebuild", "kept") => Lead {
            tiers: Tiers::Full,
            often: &[Write, Whole],
            victims: "slot.written",
            events: &[Memory],
            ..PLAIN
        },
        ("rebuild", _) => Lead { often: &[Write, Fsync], events: &[Memory], ..PLAIN },
        ("sync", "deferred") => {
            Lead { often: &[Common, Stored, Fdatasync], held: "write.dirty", ..PLAIN }
        }
        ("flush-here" | "mark", _) => {
            Lead { often: &[Fsync, Stored, Write], events: &[Absence], ..PLAIN }
        }
        ("write-back", _) => Lead { often: &[Fsync, Write], ..PLAIN },
        ("mapping", _) => Lead { often: &[MapRead, MapWrite], ..PLAIN },
        ("housekeeping", "unmapped") => {
            Lead { often: &[MapRead, MapWrite], victims: "mapping.direct", ..PLAIN }
        }
        ("flush", "failed") => Lead { faults: "store write fail EIO every 3", ..PLAIN },
        ("record" | "slot" | "move", _) if aim.point != "slot.reserved" => {
            Lead { tiers: Tiers::Full, ..PLAIN }
        }
        _ => PLAIN,
    }
}

impl Aim {
    /// The cases, in their order: each point with a pause in each role that passes it, then with a
    /// kill.
    fn all() -> Vec<Aim> {
        let roles = |(point, of): &(&'static str, &str)| -> Vec<(&'static str, &'static str)> {
            let roles: &[&str] = match *of {
                _ if has_no_case(point) => &[],
                "node" => &[NODE],
                "pool" if OF_NODES.contains(point) => &[NODE],
                "pool" if !OF_CLIENTS.contains(point) && !SELDOM_IN_NODES.contains(point) => {
                    &[CLIENT, NODE]
                }
                _ => &[CLIENT],
            };
            roles.iter().map(|role| (*point, *role)).collect()
        };
        let mut targets: Vec<_> = CRATES.iter().flat_map(roles).collect();
        targets.sort_unstable();
        targets.dedup();
        let acts = [Act::Pause, Act::Kill].into_iter();
        let pairs = acts.flat_map(|act| targets.iter().map(move |target| (act, *target)));
        let numbered = (1..).zip(pairs);
        let aim = |(number, (act, (point, role)))| Aim { number, point, role, act };
        numbered.map(aim).collect()
    }

    /// How many there are.
    pub fn count() -> u64 {
        Aim::all().len() as u64
    }

    /// For people.
    pub fn text(&self) -> String {
        let Aim { number, point, role, act } = self;
        format!("case {number}: {act:?} of a {role} at {point}")
    }
}

/// What came of the cases.
#[derive(Default)]
pub struct Aimed {
    /// Those that were played.
    pub played: u64,
    /// Those in which no process came to the point.
    pub missed: Vec<String>,
}

impl Torture {
    /// Plays the list, or the cases of it that are asked for.
    pub(super) fn points(&mut self) -> Result<(), String> {
        if !points::BUILT {
            return Ok(());
        }
        let all = Aim::all();
        for number in self.cases(all.len() as u64) {
            let Some(aim) = all.get(number as usize - 1).filter(|_| !self.is_over()) else {
                break;
            };
            self.report.playing = Some(format!("points: {}", aim.text()));
            self.random = Random::new(self.seed ^ Random::new(number << 20).next_u64());
            let lead = lead(aim);
            self.place.configure(lead.tiers)?;
            let missed = !self.aim(aim, &lead)?;
            if self.has_lost() {
                let again = format!("--scenario points --case {number} --seed {}", self.seed);
                self.report.losses.push(format!("in {}; again: {again}", aim.text()));
            }
            if self.is_over() {
                break;
            }
            self.report.aimed.played += 1;
            if missed {
                self.report.aimed.missed.push(aim.text());
            }
        }
        self.report.playing = None;
        self.aim = None;
        self.place.configure(Tiers::Busy)
    }

    /// Plays a case; whether a process has paused, or killed itself, at the point.
    fn aim(&mut self, aim: &Aim, lead: &Lead) -> Result<bool, String> {
        self.place.injects = !lead.faults.is_empty();
        self.begin_round()?;
        let _ = std::fs::remove_file(self.place.aimed());
        let mark = self.mark_of(aim);
        self.aim = Some(*aim);
        self.set_faults(lead.faults)?;
        let before = self.count_at(aim);
        let since = Instant::now();
        let mut hit = false;
        while !hit && since.elapsed() < WAIT_MAX && !self.is_over() {
            self.start_other_user()?;
            self.start_workers()?;
            let pause = 20 + self.random.below(60);
            self.wait(pause);
            if !lead.events.is_empty() && self.random.one_in(3) {
                let event = self.random.below(lead.events.len() as u64) as usize;
                self.happen(lead.events[event])?;
            }
            self.gather();
            hit = self.count_at(aim) > before || mark.exists();
            self.report.progress(self.since.elapsed());
        }
        // From here on no more happens there.
        std::fs::write(self.place.aimed(), "")
            .map_err(|error| format!("{}: {error}", mark.display()))?;
        self.wait(AFTER_MS);
        self.thaw(true);
        if !self.has_lost() {
            // In some managers do not come to their end.
            let choice = if self.is_interrupted() { 9 } else { aim.number % 5 };
            self.end_round(choice)?;
        }
        if std::fs::remove_file(&mark).is_ok() {
            self.report.crashes.add(aim.role, aim.point);
            hit = true;
        }
        Ok(hit || self.count_at(aim) > before)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Kill => self.kill_manager(),
            Event::Absence => {
                // Programs start another one.
                self.signal_runs(Signal::STOP);
                self.kill_manager();
                self.wait(ABSENCE_MS);
                self.signal_runs(Signal::CONT);
            }
            Event::Peace => {
                self.calm()?;
                self.end_in_peace()?;
                self.begin_round()?;
            }
            Event::Stop => self.stop_managers()?,
            Event::Memory => {
                self.kill_everything()?;
                self.place.lose_memory()?;
                self.report.memory_lost += 1;
                self.recover(&[DAMAGED])?;
                self.gather();
                self.survive()?;
            }
        }
        Ok(())
    }

    fn signal_runs(&self, signal: Signal) {
        for run in self.runs.iter().flatten() {
            send(run.id(), signal);
        }
    }

    /// How often it has happened.
    fn count_at(&self, aim: &Aim) -> u64 {
        let seen = match aim.act {
            Act::Pause => &self.report.pauses,
            Act::Kill => &self.report.crashes,
        };
        seen.at(aim.role, aim.point)
    }

    /// What a node manager makes that kills itself at the point.
    fn mark_of(&self, aim: &Aim) -> PathBuf {
        self.place.root().join(format!("killed-{}", aim.number))
    }

    /// Whether `aim` still goes on.
    fn is_aiming(&self) -> Option<Aim> {
        self.aim.filter(|_| !self.place.aimed().exists())
    }

    /// Whether a node manager has killed itself in the case.
    pub(super) fn has_just_aimed(&self) -> bool {
        self.aim.is_some_and(|aim| aim.act == Act::Kill && self.mark_of(&aim).exists())
    }

    /// Environment of node managers in a case; `None` in the mixture.
    pub(super) fn of_aimed_managers(&mut self) -> Option<Vec<(&'static str, String)>> {
        let aim = self.aim?;
        if self.is_aiming().is_none() || aim.role != NODE {
            return Some(Vec::new());
        }
        let (place, log) = ((aim.role, aim.point), self.place.root().join("pauses"));
        let mut environment = match aim.act {
            Act::Pause => points::pause_at(&mut self.random, place, false, &log),
            Act::Kill => points::kill_at(place, 1, &self.mark_of(&aim)),
        };
        if aim.point.starts_with("replace.") {
            let fault = format!("manager-write:{}:{}", libc::ENOSPC, self.place.root().display());
            environment.push(("FOREBAY_SLOT_FAULT", fault));
        }
        Some(environment)
    }

    /// What the keeper of `worker` is told in a case; `None` in the mixture.
    pub(super) fn words_of_aim(&self, worker: u64) -> Option<Vec<String>> {
        let aim = self.aim?;
        let lead = lead(&aim);
        let mut words = vec!["--trouble=none".to_owned()];
        if !lead.often.is_empty() {
            let often = lead.often.iter().map(|operation| operation.index().to_string());
            words.push(format!("--often={}", often.collect::<Vec<_>>().join(",")));
        }
        let kind = match aim.act {
            Act::Pause => "pause",
            Act::Kill => "kill",
        };
        let (die, hold) = (format!("die:{}", lead.victims), format!("hold:{}", lead.held));
        let at_point = format!("{kind}:{}", aim.point);
        let what = match (aim.role == CLIENT, lead.victims.is_empty(), lead.held.is_empty()) {
            // The next process finds what the one before has left.
            (true, false, _) => format!("{die}+{at_point}"),
            (true, _, false) if worker < 2 => hold,
            (true, ..) => at_point,
            (false, false, _) => die,
            (false, _, false) if worker < 2 => hold,
            (false, ..) => return Some(words),
        };
        words.push(format!("--aim={what}"));
        Some(words)
    }
}

/// Environment of program `number` of a case whose keeper was told to `aim`, and whether it is to
/// kill itself.
pub fn of_program(
    random: &mut Random,
    number: u64,
    aim: &str,
    log: &std::path::Path,
    mark: &std::path::Path,
) -> (Vec<(&'static str, String)>, bool) {
    let parts: Vec<_> = aim.split('+').collect();
    let part = parts[number as usize % parts.len()];
    let (kind, point) = part.split_once(':').unwrap_or((part, ""));
    match kind {
        "kill" => (points::kill_at((CLIENT, point), 1, mark), true),
        "die" => {
            let pass = 1 + random.below(VICTIMS_PASSES);
            (points::kill_at((CLIENT, point), pass, mark), true)
        }
        "hold" => (points::pause_at(random, (CLIENT, point), true, log), false),
        _ => (points::pause_at(random, (CLIENT, point), false, log), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_point_has_its_cases() {
        let all = Aim::all();
        for act in [Act::Pause, Act::Kill] {
            let played = all.iter().filter(|aim| aim.act == act).map(|aim| aim.point);
            let without = points::KNOWN.iter().copied().filter(|point| has_no_case(point));
            let names: BTreeSet<_> = played.chain(without).collect();
            assert!(names.iter().eq(points::KNOWN), "{act:?}");
            assert!(!all.iter().any(|aim| has_no_case(aim.point)));
        }
        for point in DEFENCES {
            assert!(points::KNOWN.contains(point), "{point} is no point");
        }
        for family in ELSEWHERE {
            let is_of = |point: &&str| point.split('.').next() == Some(family);
            assert!(points::KNOWN.iter().any(is_of), "{family} has no point");
        }
        for point in OF_CLIENTS.iter().chain(OF_NODES).chain(SELDOM_IN_NODES) {
            assert!(CRATES.contains(&(*point, "pool")), "{point} is no point of the pool");
        }
        assert!(all.iter().enumerate().all(|(index, aim)| aim.number == index as u64 + 1));
        for aim in &all {
            let Lead { victims, held, .. } = lead(aim);
            let is_known = |name: &str| name.is_empty() || points::KNOWN.contains(&name);
            assert!(is_known(victims) && is_known(held), "{aim:?}: {victims} {held}");
        }
    }
}
