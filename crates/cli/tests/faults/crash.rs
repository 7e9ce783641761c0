//! Processes are killed at chosen steps, one after the other, and nothing acknowledged may be
//! missing.
//!
//! Scripts of operations (`crash/model.rs`) run in one or two processes (`programs/scripted.c`),
//! which report each operation that has returned. A process kills itself with SIGKILL at the n-th
//! of the points that stand in the code of all crates (`forebay_pool::crash`): the program, the
//! node manager, or one and then the other. Afterwards everything is drained and compared, byte by
//! byte, with what the model allows.
//!
//! - `FOREBAY_SEED=n` repeats one run of each test.
//! - `FOREBAY_CRASH_MINUTES=n` goes on for so long, instead of 20 s.
//!
//! A test whose time is up goes on until it has hit enough, as long as it makes progress.

mod harness;
mod model;
mod power;
mod punched;
mod script;

use crate::harness::{LAZY, Setup, TINY};
use forebay_placement::Random;
use harness::{Harness, Kill, follow};
use model::{Contents, Line, Model, Step};
use power::Fate;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A hierarchy in which flushes and movements happen all the time.
const RESTLESS: Setup = Setup { flush: "trigger = \"periodic\"\nperiod = \"1ms\"", ..SMALLEST };
/// 16 buckets above 32.
const SMALLEST: Setup = Setup { ram: "4MiB", nvme: "8MiB", ..TINY };
/// Nothing reaches the store by itself.
const RESTING: Setup = Setup { flush: LAZY.flush, ..SMALLEST };

/// The same where fsync is answered when the journal has it.
const RESTLESS_JOURNAL: Setup = Setup {
    flush: "trigger = \"periodic\"\nperiod = \"1ms\"\ndurability = \"nonvolatile\"",
    ..SMALLEST
};
const RESTING_JOURNAL: Setup = Setup {
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"16MiB\"",
    ..SMALLEST
};
/// A journal that a few writes fill.
const SMALL_JOURNAL: Setup = Setup {
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"1MiB\"",
    ..SMALLEST
};

/// All files are staged: what they have goes to the store when they are closed, and is compared.
const STAGED: Setup = Setup {
    flush: "trigger = \"on-exit\"\njournal = \"16MiB\"\n\
            [[rule]]\nmode = \"staged\"\ntier = \"nvme\"",
    ..SMALLEST
};

/// What lies below takes long to read, and goes up in exchange for what is colder.
const EXCHANGING: Setup = Setup {
    flush: "trigger = \"on-exit\"\n[placement]\npolicy = \"hot-data\"",
    nvme_emulate: Some("{ bandwidth = \"20MB/s\", latency = \"20us\" }"),
    ..SMALLEST
};

/// The beginnings of the names of a manager's points.
const PREFIXES: [&str; 22] = [
    "aside",
    "exchange",
    "register",
    "bucket",
    "description",
    "discard",
    "file",
    "flush",
    "housekeeping",
    "io",
    "journal",
    "manager",
    "map",
    "message",
    "move",
    "reap",
    "reconcile",
    "record",
    "recover",
    "staged",
    "sync",
    "takeover",
];

/// How long each test goes on, if nothing else is said, and if it has hit enough by then.
const USUAL: Duration = Duration::from_secs(20);
/// How long it goes on beyond that without progress.
const IN_VAIN: Duration = Duration::from_secs(60);

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Seeds and time of a test.
struct Course {
    seed: u64,
    /// Where further seeds come from.
    rng: Random,
    until: Instant,
    only: bool,
    hits: BTreeMap<String, u32>,
    kills: u32,
    cases: u32,
    /// Kills and points that are enough.
    wanted: (u32, usize),
    /// Pages that losses of power took, where power is lost: not to be none.
    lost: Option<usize>,
    /// When a kill brought it nearer to what is wanted.
    last: Instant,
}

impl Course {
    /// One that is to hit so many `kills`, at so many `points`.
    fn begin(kills: u32, points: usize) -> Course {
        let given = number_in("FOREBAY_SEED");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = given.unwrap_or(Random::new(now.as_nanos() as u64).next_u64() >> 24);
        let minutes = number_in("FOREBAY_CRASH_MINUTES");
        let time = minutes.map_or(USUAL, |minutes| Duration::from_secs(60 * minutes));
        let until = Instant::now() + time;
        Course {
            seed,
            rng: Random::new(seed),
            until,
            only: given.is_some(),
            hits: BTreeMap::new(),
            kills: 0,
            cases: 0,
            wanted: (kills, points),
            lost: None,
            last: Instant::now(),
        }
    }

    /// The next seed; `None` at the end.
    fn next(&mut self) -> Option<u64> {
        if self.only && self.cases > 0 || self.is_over() {
            return None;
        }
        Some(if self.only { self.seed } else { self.rng.next_u64() >> 24 })
    }

    fn has_enough(&self) -> bool {
        let (kills, points) = self.wanted;
        let is_lost = self.lost != Some(0);
        self.only || self.kills >= kills && self.hits.len() >= points && is_lost
    }

    /// A machine under load hits little in a given time.
    fn is_over(&self) -> bool {
        Instant::now() > self.until && (self.has_enough() || self.last.elapsed() > IN_VAIN)
    }

    fn hit(&mut self, points: Vec<String>) {
        self.cases += 1;
        for point in points.into_iter().filter(|point| !point.is_empty()) {
            let hits = self.hits.entry(point).or_default();
            // Kills beyond those that are wanted, at points that are known, lead nowhere: a point
            // that is no more is never hit.
            if *hits == 0 || self.kills < self.wanted.0 {
                self.last = Instant::now();
            }
            *hits += 1;
            self.kills += 1;
        }
    }

    /// Says what was hit, and fails if that is too little.
    fn end(self) {
        println!(
            "{} cases, {} kills at {} points: {:?}",
            self.cases,
            self.kills,
            self.hits.len(),
            self.hits
        );
        let (kills, points) = (self.kills, self.hits.len());
        if let Some(lost) = self.lost {
            println!("losses of power took {lost} pages");
            assert!(self.only || lost > 0, "nothing was lost");
        }
        assert!(self.has_enough(), "only {kills} kills hit, at {points} points");
    }
}

/// What a case is, for finding out what went wrong.
fn describe(contents: &Contents, lines: &[Line], kills: &[Kill]) -> String {
    let sizes: Vec<_> = contents.iter().map(|(name, bytes)| (name, bytes.len())).collect();
    let lines: Vec<_> = lines.iter().map(Line::to_string).collect();
    let kills: Vec<_> = kills
        .iter()
        .map(|kill| {
            let Kill { role, point, number } = kill;
            format!("FOREBAY_CRASH_IN={role} FOREBAY_CRASH={point}:{number}")
        })
        .collect();
    format!("{}\nfiles and their sizes: {sizes:?}\n{}", kills.join("\n"), lines.join("\n"))
}

/// Runs one case and fails with all that is needed to repeat it.
fn check(
    harness: &Harness,
    seed: u64,
    (contents, lines): (&Contents, &[Line]),
    kills: &[Kill],
    case: impl FnOnce() -> Result<Vec<String>, String>,
) -> Vec<String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(case)) {
        Ok(Ok(points)) => points,
        Ok(Err(what)) => {
            let case = describe(contents, lines, kills);
            panic!("FOREBAY_SEED={seed}: {what}\n{case}\n{}", harness.said())
        }
        Err(panic) => {
            eprintln!("FOREBAY_SEED={seed}\n{}", describe(contents, lines, kills));
            std::panic::resume_unwind(panic)
        }
    }
}

/// The program is killed while the manager goes on, or both are. Returns the points.
fn crash_program(
    harness: &Harness,
    contents: &Contents,
    lines: &[Line],
    kills: &[Kill],
) -> Result<Vec<String>, String> {
    let folder = harness.folder(contents);
    let mut running = harness.start(&folder, lines, kills.first());
    let both = kills.len() > 1;
    if both {
        // The one that lives longer than the other is killed at once.
        running.wait_for_kill();
        harness.kill_manager();
        running.kill();
    }
    let (mark, mut ended) = running.end();
    if both {
        // Killed while it was looking.
        ended.seen = None;
    }
    let mut points: Vec<_> = mark.into_iter().collect();
    let mut model = Model::with(contents);
    let step = follow(&mut model, lines, &ended.reports)?;
    if points.is_empty() && step.is_some() && !both {
        return Err(format!("it ended before its script did: {:?}", ended.reports));
    }
    if let Some(seen) = &ended.seen {
        model.compare(seen, step).map_err(|what| format!("as the other process saw it: {what}"))?;
    }
    if both {
        points.extend(recover(harness, &kills[1..]));
    } else if !harness.drain() {
        return Err("the manager is gone".into());
    }
    let found = harness.contents(&folder);
    // What the dead left under way may become visible a moment later: the two need not be equal.
    model.compare(&found, step)?;
    Ok(points)
}

/// Starts managers that kill themselves while they take over, or drain, and then one that does not.
fn recover(harness: &Harness, kills: &[Kill]) -> Vec<String> {
    let mut points = Vec::new();
    for kill in kills {
        let mark = harness.mark();
        if harness.start_manager(Some(kill), &mark) && harness.drain() {
            harness.kill_manager();
        } else {
            harness.reap_manager();
        }
        points.extend(std::fs::read_to_string(mark));
    }
    assert!(
        harness.start_manager(None, &harness.mark()),
        "no manager comes up: {}",
        harness.said()
    );
    assert!(harness.drain(), "the manager is gone: {}", harness.said());
    points
}

impl Kill {
    /// Somewhere in a manager: points that are passed once are hit as often as those that are
    /// passed all the time.
    fn somewhere(rng: &mut Random) -> Kill {
        let room = if rng.one_in(3) { "" } else { PREFIXES[rng.index(PREFIXES.len())] };
        let most = if rng.one_in(3) { 60 } else { 4 };
        let point = if room.is_empty() { "*".into() } else { format!("{room}.*") };
        Kill { role: "node", point, number: 1 + rng.index(most) as u64 }
    }
}

/// What happens to the program when its manager is dead.
#[derive(Clone, Copy)]
enum Then {
    /// It goes on alone.
    Alone,
    /// There is a new manager at once.
    Replaced,
    /// It is killed too.
    Killed,
}

/// The manager is killed, at the first of `kills`, and its successors are at the others. Returns
/// the points.
fn crash_manager(
    harness: &Harness,
    contents: &Contents,
    lines: &[Line],
    kills: &[Kill],
    then: Then,
) -> Result<Vec<String>, String> {
    let mark = harness.mark();
    let folder = harness.folder(contents);
    let mut answers = harness.start_manager(Some(&kills[0]), &mark);
    let mut running = harness.start(&folder, lines, None);
    while running.is_running() {
        if answers && !harness.has_manager() {
            answers = false;
            match then {
                Then::Alone => {}
                Then::Killed => running.kill(),
                Then::Replaced => {
                    harness.reap_manager();
                    assert!(harness.start_manager(None, &harness.mark()), "{}", harness.said());
                }
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let (_, ended) = running.end();
    let mut model = Model::with(contents);
    let step = follow(&mut model, lines, &ended.reports)?;
    if step.is_some() && !matches!(then, Then::Killed) {
        return Err(format!("it ended before its script did: {:?}", ended.reports));
    }
    let drained = harness.has_manager() && harness.drain();
    let mut points: Vec<_> = std::fs::read_to_string(&mark).into_iter().collect();
    if !drained || !points.is_empty() {
        harness.kill_manager();
        points.extend(recover(harness, &kills[1..]));
    }
    model.compare(&harness.contents(&folder), step)?;
    harness.kill_manager();
    Ok(points)
}

fn alone(steps: &[Step]) -> Vec<Line> {
    steps.iter().map(|&step| Line { process: 0, step }).collect()
}

/// All scripts of one step, and as many of two as there is time for, with a kill at every point.
#[test]
fn every_point_of_short_programs() {
    let Some(harness) = Harness::new(&RESTING) else { return };
    assert!(harness.start_manager(None, &harness.mark()));
    let mut course = Course::begin(200, 40);
    let contents = script::short_contents();
    let scripts = script::short_scripts();
    let single = script::short_steps().len();
    let mut turn = 0;
    while let Some(seed) = course.next() {
        // Without a seed that is given: all of one step first.
        let number = if turn < single { turn } else { Random::new(seed).index(scripts.len()) };
        let number = if course.only { Random::new(seed).index(scripts.len()) } else { number };
        turn += 1;
        let lines = alone(&scripts[number]);
        for number in 1.. {
            let kills = [Kill::at("client", number)];
            let points = check(&harness, seed, (&contents, &lines), &kills, || {
                crash_program(&harness, &contents, &lines, &kills)
            });
            if points.is_empty() || course.is_over() {
                break;
            }
            course.hit(points);
        }
    }
    harness.end_manager();
    course.end();
}

/// Random scripts in one or two processes; a process is killed, or it and the manager.
#[test]
fn programs_that_crash() {
    let setups = [&RESTLESS, &RESTING, &RESTLESS_JOURNAL, &RESTING_JOURNAL, &STAGED];
    let places: Vec<_> = setups.into_iter().filter_map(Harness::new).collect();
    let Some(_) = places.first() else { return };
    for harness in &places {
        assert!(harness.start_manager(None, &harness.mark()));
    }
    let mut course = Course::begin(60, 30);
    while let Some(seed) = course.next() {
        let mut rng = Random::new(seed);
        let harness = &places[rng.index(places.len())];
        let (processes, length) = (1 + rng.index(2), 1 + rng.index(12));
        let (contents, lines) = script::random(&mut rng, processes, length);
        let mut kills = vec![Kill::at("client", 1 + rng.index(25 * length) as u64)];
        if rng.one_in(4) {
            let successors = rng.index(3);
            kills.extend((0..successors).map(|_| Kill::somewhere(&mut rng)));
            // The program's and the manager's common end is a crash of its own.
            kills.push(Kill::at("node", u64::MAX));
        }
        let points = check(harness, seed, (&contents, &lines), &kills, || {
            crash_program(harness, &contents, &lines, &kills)
        });
        course.hit(points);
    }
    places.iter().for_each(Harness::end_manager);
    course.end();
}

/// The node manager is killed at any of its points, and its successors while they take over.
#[test]
fn managers_that_crash() {
    let setups = [&RESTLESS, &RESTING, &RESTLESS_JOURNAL, &RESTING_JOURNAL, &STAGED];
    let places: Vec<_> = setups.into_iter().filter_map(Harness::new).collect();
    let Some(_) = places.first() else { return };
    for harness in &places {
        assert!(harness.start_manager(None, &harness.mark()));
        harness.end_manager();
    }
    let mut course = Course::begin(20, 15);
    while let Some(seed) = course.next() {
        let mut rng = Random::new(seed);
        let harness = &places[rng.index(places.len())];
        let (processes, length) = (1 + rng.index(2), 1 + rng.index(25));
        let (contents, lines) = script::random(&mut rng, processes, length);
        let then = [Then::Alone, Then::Replaced, Then::Killed][rng.index(3)];
        let mut kills = vec![Kill::somewhere(&mut rng)];
        kills.extend((0..rng.index(3)).map(|_| Kill::somewhere(&mut rng)));
        let points = check(harness, seed, (&contents, &lines), &kills, || {
            crash_manager(harness, &contents, &lines, &kills, then)
        });
        course.hit(points);
    }
    for harness in &places {
        recover(harness, &[]);
        harness.end_manager();
    }
    course.end();
}

/// The pages that a dead manager was writing are dirty again, also when its successor dies over
/// that.
#[test]
fn pages_under_writeback_survive_a_crash_in_recovery() {
    let Some(mut harness) = Harness::new(&RESTING) else { return };
    harness.settings.push(left_to_manager());
    let write = Step::Write { file: 0, at: 0, bytes: 9000, seed: 1, pieces: false };
    let lines = alone(&[write, Step::Sync { file: 0, data_only: false }]);
    let kill = |point: &str| Kill { role: "node", point: point.into(), number: 1 };
    let contents = Contents::new();
    for kills in [
        vec![kill("flush.writing"), kill("recover.writeback")],
        vec![kill("flush.writing"), kill("recover.buckets")],
        vec![kill("flush.ending"), kill("takeover.recovered"), kill("takeover.completed")],
    ] {
        let points = check(&harness, 0, (&contents, &lines), &kills, || {
            crash_manager(&harness, &contents, &lines, &kills, Then::Killed)
        });
        let wanted: Vec<_> = kills.iter().map(|kill| kill.point.clone()).collect();
        assert_eq!(points, wanted);
    }
    recover(&harness, &[]);
    harness.end_manager();
}

/// A manager dies when blocks have gone down and those that they are exchanged for have not come
/// up, and when both have.
#[test]
fn exchanges_that_were_killed_lose_nothing() {
    let Some(harness) = Harness::new(&EXCHANGING) else { return };
    const MIB: usize = 1 << 20;
    let write = |file, bytes, seed| Step::Write { file, at: 0, bytes, seed, pieces: false };
    // File 0 leaves RAM for the others, and is then read for longer than reads count as one.
    let mut steps = vec![write(0, 3 * MIB, 1)];
    steps.extend((1..5).map(|file| write(file, MIB, 1 + u64::from(file))));
    steps.extend([Step::Read { file: 0 }; 30]);
    let lines = alone(&steps);
    let contents = Contents::new();
    let kill = |point: &str| Kill { role: "node", point: point.into(), number: 1 };
    let mut left: Vec<_> = [Then::Replaced, Then::Killed]
        .into_iter()
        .flat_map(|then| ["exchange.gone", "exchange.come"].map(|point| (then, point)))
        .collect();
    let (all, since) = (left.len(), Instant::now());
    // Whether a look exchanges anything depends on how many reads were counted by then: beside
    // other programs few do.
    for _ in 0..20 {
        left.retain(|&(then, point)| {
            let kills = [kill(point), kill("recover.buckets")];
            let points = check(&harness, 0, (&contents, &lines), &kills, || {
                crash_manager(&harness, &contents, &lines, &kills, then)
            });
            points.first().map(String::as_str) != Some(point)
        });
        if left.is_empty() || left.len() < all && since.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    assert!(left.len() < all, "no exchange was reached");
    recover(&harness, &[]);
    harness.end_manager();
}

/// A truncate of which the goal is noted and no more is completed; until then a drain waits.
#[test]
fn truncates_that_were_killed_are_completed_before_a_drain_ends() {
    let Some(harness) = Harness::new(&RESTING) else { return };
    assert!(harness.start_manager(None, &harness.mark()));
    let contents = script::short_contents();
    let write = Step::Write { file: 0, at: 1000, bytes: 5000, seed: 2, pieces: false };
    let lines = alone(&[write, Step::Truncate { file: 0, size: 1234 }]);
    for point in ["truncate.intent", "truncate.quiesced", "truncate.store", "truncate.size"] {
        for second in [None, Some("reap.exclusive"), Some("takeover.unfinished")] {
            let first = Kill { role: "client", point: point.into(), number: 1 };
            let mut kills = vec![first];
            kills.extend(second.map(|point| Kill { role: "node", point: point.into(), number: 1 }));
            let points = check(&harness, 0, (&contents, &lines), &kills, || {
                crash_program(&harness, &contents, &lines, &kills)
            });
            assert_eq!(points.first().map(String::as_str), Some(point));
        }
    }
    harness.end_manager();
}

/// Where power is lost: which processes are killed before, and when it is lost once more.
struct Loss {
    /// A program's or a manager's.
    kill: Kill,
    /// There is a new manager as soon as one has killed itself.
    replaced: bool,
    /// Where managers kill themselves that bring back what was lost; power is lost then, too.
    again: Vec<Kill>,
    /// What becomes of what was not synced of a file of the tiers.
    fate: fn(&Path) -> Fate,
}

/// Whatever may be.
fn any(_: &Path) -> Fate {
    Fate::Any
}

impl Loss {
    /// In the end.
    fn late() -> Loss {
        Loss { kill: Kill::at("client", u64::MAX), replaced: false, again: Vec::new(), fate: any }
    }

    fn anywhere(rng: &mut Random, length: usize) -> Loss {
        let kill = match rng.index(5) {
            0..3 => Kill::at("client", 1 + rng.index(40 * length) as u64),
            3 => Kill::somewhere(rng),
            _ => Kill { point: "journal.*".into(), ..Kill::at("node", 1 + rng.index(30) as u64) },
        };
        let rebuilding = |rng: &mut Random| {
            let point = ["rebuild.*", "*"][rng.index(2)].into();
            Kill { point, ..Kill::at("node", 1 + rng.index(8) as u64) }
        };
        let again = (0..rng.index(5).saturating_sub(2)).map(|_| rebuilding(rng)).collect();
        Loss { kill, replaced: rng.one_in(2), again, fate: any }
    }
}

/// Starts a manager on what a loss of power has left. What was not synced may be lost, which it
/// says once. Returns whether it did.
fn rebuild(harness: &Harness) -> bool {
    let is_all = harness.start_manager(None, &harness.mark());
    if !is_all {
        harness.reap_manager();
        // At the end of what names all that is lost.
        assert!(harness.said().contains("what the tiers held is kept in"), "{}", harness.said());
        assert!(harness.start_manager(None, &harness.mark()), "{}", harness.said());
    }
    // A recovery that was killed may have kept something, too.
    for entry in std::fs::read_dir(&harness.site.nvme).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains(".lost") {
            std::fs::remove_file(path).unwrap();
        }
    }
    !is_all
}

/// One loss of power in the middle of a script, or at its end. Returns how many pieces were lost,
/// and the points at which a process was killed.
fn power_loss(
    harness: &Harness,
    rng: &mut Random,
    (contents, lines): (&Contents, &[Line]),
    loss: &Loss,
) -> Result<(usize, Vec<String>), String> {
    let undo = harness.site.root().join("undo");
    let _ = std::fs::remove_dir_all(&undo);
    std::fs::create_dir(&undo).unwrap();
    let mark = harness.mark();
    let in_client = loss.kill.role == "client";
    let folder = harness.folder(contents);
    let mut answers = harness.start_manager((!in_client).then_some(&loss.kill), &mark);
    let mut running = harness.start(&folder, lines, in_client.then_some(&loss.kill));
    while running.is_running() {
        if answers && !harness.has_manager() {
            answers = false;
            if loss.replaced {
                harness.reap_manager();
                assert!(harness.start_manager(None, &harness.mark()), "{}", harness.said());
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let (point, ended) = running.end();
    let mut points: Vec<_> = point.into_iter().chain(std::fs::read_to_string(&mark)).collect();
    let lose = |rng: &mut Random| {
        harness.kill_manager();
        for pool in harness.site.pools() {
            std::fs::remove_file(pool).unwrap();
        }
        power::lose_power(&folder, &harness.site.nvme, &undo, loss.fate, rng)
    };
    let mut lost = lose(rng);
    let mut model = Model::with(contents);
    let step = follow(&mut model, lines, &ended.reports)?;
    for kill in &loss.again {
        let mark = harness.mark();
        harness.start_manager(Some(kill), &mark);
        points.extend(std::fs::read_to_string(mark));
        lost += lose(rng);
    }
    rebuild(harness);
    harness.end_manager();
    let mut kills = vec![loss.kill.clone()];
    kills.extend(loss.again.iter().cloned());
    let explain = |what: String| {
        let case = describe(contents, lines, &kills);
        format!("{what}\nkilled at {points:?}; replaced: {}\n{case}", loss.replaced)
    };
    model.compare_durable(&harness.contents(&folder), step).map_err(explain)?;
    harness.site.drop_removed();
    Ok((lost, points))
}

/// A harness in which power can be lost.
/// Programs leave to the manager what they could bring to the store themselves.
fn left_to_manager() -> (&'static str, String) {
    ("FOREBAY_REFUSE", "write-back:1..".to_owned())
}

fn powered(setup: &Setup) -> Option<Harness> {
    let mut harness = Harness::new(setup)?;
    let undo = harness.site.root().join("undo");
    harness.settings.push(("FOREBAY_POWER_LOSS", undo.to_str().unwrap().to_owned()));
    Some(harness)
}

/// What fsync has acknowledged is there after the power was lost.
#[test]
fn losses_of_power() {
    let setups =
        [&RESTLESS, &RESTING, &RESTLESS_JOURNAL, &RESTING_JOURNAL, &SMALL_JOURNAL, &STAGED];
    let places: Vec<_> = setups.into_iter().filter_map(powered).collect();
    let Some(_) = places.first() else { return };
    let mut course = Course { lost: Some(0), ..Course::begin(5, 5) };
    while let Some(seed) = course.next() {
        let mut rng = Random::new(seed);
        let harness = &places[rng.index(places.len())];
        let length = 2 + rng.index(12);
        let (contents, mut lines) = script::random(&mut rng, 1, length);
        // What was never synced promises nothing.
        for number in 0..lines.len() / 2 {
            let file = rng.index(4) as u8;
            let step = Step::Sync { file, data_only: rng.one_in(2) };
            lines.insert(2 * number + 1, Line { process: 0, step });
        }
        let loss = Loss::anywhere(&mut rng, length);
        let result = power_loss(harness, &mut rng, (&contents, &lines), &loss);
        let (pieces, points) = result.unwrap_or_else(|what| {
            panic!("FOREBAY_SEED={seed}: {what}\n{}", harness.said());
        });
        course.lost = course.lost.map(|lost| lost + pieces);
        course.hit(points);
    }
    course.end();
}

/// A manager that took note of a sync and died has not made it: its successor does.
#[test]
fn syncs_of_a_dead_manager_are_made_by_its_successor() {
    let write = Step::Write { file: 0, at: 0, bytes: 50_000, seed: 1, pieces: false };
    let lines = alone(&[write, Step::Sync { file: 0, data_only: false }]);
    let contents = Contents::new();
    for (setup, point) in [
        (&RESTING, "sync.taken"),
        (&RESTING, "reconcile.sized"),
        (&RESTING_JOURNAL, "sync.logging"),
        (&RESTING_JOURNAL, "journal.written"),
    ] {
        let Some(mut harness) = powered(setup) else { return };
        harness.settings.push(left_to_manager());
        for seed in 0..4 {
            let kill = Kill { role: "node", point: point.into(), number: 1 };
            let loss = Loss { kill, replaced: true, ..Loss::late() };
            let lost = power_loss(&harness, &mut Random::new(seed), (&contents, &lines), &loss);
            let (_, points) = lost.unwrap_or_else(|what| panic!("{what}\n{}", harness.said()));
            assert_eq!(points, [point]);
        }
    }
}

/// A hole behind the end of a file takes its last page, and with it what would give the store's
/// file its size. What a sync has acknowledged is as long as before, whenever the manager dies.
#[test]
fn holes_behind_the_end_keep_the_size_of_what_was_synced() {
    let write = Step::Write { file: 0, at: 289, bytes: 16_385, seed: 1, pieces: false };
    let sync = Step::Sync { file: 0, data_only: false };
    let hole = Step::Punch { file: 0, at: 11_107, bytes: 20_988 };
    let lines = alone(&[write, sync, hole]);
    let Some(harness) = powered(&RESTING_JOURNAL) else { return };
    let mut reached = 0;
    for number in 3..24 {
        for seed in 0..4 {
            let kill = Kill { role: "node", point: "journal.*".into(), number };
            let loss = Loss { kill, ..Loss::late() };
            let rng = &mut Random::new(seed);
            let (_, points) = power_loss(&harness, rng, (&Contents::new(), &lines), &loss)
                .unwrap_or_else(|what| panic!("{what}\n{}", harness.said()));
            reached += points.len();
        }
    }
    assert!(reached > 50, "{reached}");
}

/// A drain reconciles a file that was synced to the journal; from then on programs sync it on the
/// store alone, and what the journal had of it must not come back.
#[test]
fn what_a_drain_has_reconciled_is_so_after_a_loss_of_power() {
    let write = Step::Write { file: 0, at: 0, bytes: 9251, seed: 1, pieces: false };
    let sync = Step::Sync { file: 0, data_only: false };
    let lines = alone(&[write, sync, Step::Empty { file: 0 }, sync]);
    let Some(mut harness) = powered(&RESTLESS_JOURNAL) else { return };
    // Time for the drain, before the second open.
    harness.settings.push(("FOREBAY_PAUSE", "open.seen:2:200".to_owned()));
    harness.settings.push(("FOREBAY_PAUSE_IN", "client".to_owned()));
    for seed in 0..10 {
        let lost =
            power_loss(&harness, &mut Random::new(seed), (&Contents::new(), &lines), &Loss::late());
        lost.unwrap_or_else(|what| panic!("{what}\n{}", harness.said()));
    }
}

/// Syncs that do nothing and records of the journal that are left out are noticed.
#[test]
fn faults_that_only_a_loss_of_power_shows() {
    let write = |at, bytes, seed| Step::Write { file: 0, at, bytes, seed, pieces: false };
    let sync = |file| Step::Sync { file, data_only: false };
    let plain = vec![write(0, 50_000, 1), sync(0)];
    let other = |seed| Step::Write { file: 1, at: 0, bytes: 100, seed, pieces: false };
    // Meanwhile file 0 comes to the store, and what the journal has of it counts no more.
    let mut reconciled = plain.clone();
    reconciled.extend((0..40).flat_map(|seed| [other(seed), sync(1)]));
    reconciled.extend([Step::Truncate { file: 0, size: 100 }, sync(0)]);
    let cut = vec![write(0, 4096, 1), sync(0), Step::Truncate { file: 0, size: 100 }];
    let alone = vec![write(0, 5000, 1), sync(0), write(0, 5000, 2), sync(0)];
    let late = Kill::at("client", u64::MAX);
    let answered = Kill { role: "node", point: "sync.logged".into(), number: 1 };
    let contents = Contents::from([(0, model::content(99, 60_000))]);
    for (plant, setup, steps, kill) in [
        ("fsync-lies", &RESTING, &plain, &late),
        ("journal-unsynced", &RESTING_JOURNAL, &plain, &late),
        ("journal-no-checkpoint", &RESTLESS_JOURNAL, &reconciled, &late),
        ("journal-no-truncate", &RESTING_JOURNAL, &cut, &late),
        ("no-mark", &RESTING_JOURNAL, &alone, &answered),
    ] {
        let Some(mut harness) = powered(setup) else { return };
        let lines = self::alone(steps);
        let loss = || Loss { kill: kill.clone(), ..Loss::late() };
        let lose = |harness: &Harness, seed| {
            power_loss(harness, &mut Random::new(seed), (&contents, &lines), &loss()).err()
        };
        for seed in 0..3 {
            assert_eq!(lose(&harness, seed), None, "without {plant}");
        }
        harness.settings.push(("FOREBAY_PLANT", plant.to_owned()));
        let noticed = (0..40).find_map(|seed| lose(&harness, seed));
        let noticed = noticed.unwrap_or_else(|| panic!("{plant} is not noticed"));
        assert!(noticed.contains("since the sync") || noticed.contains("instead of"), "{noticed}");
        println!("{plant}: {}", noticed.lines().next().unwrap_or(""));
    }
}
