//! The room of sparse slots is taken from a file tier, and power is lost before, amid or after it:
//! the old bytes are back, or the records of the slots, or both.

use super::model::{Contents, Line, Model, Step};
use super::power::{self, Fate};
use super::{Course, Harness, Kill, Loss, alone, any, follow, power_loss, powered};
use crate::harness::{LONG, Setup, TINY, paused, wait_for};
use forebay_placement::Random;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;

/// A file tier with room for sparse slots; a RAM tier without.
const PUNCHED: Setup = Setup {
    ram: "4MiB",
    nvme: "32MiB",
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"4MiB\"",
    ..TINY
};
/// The same where flushes come all the time.
const PUNCHED_AMID_FLUSHES: Setup = Setup {
    flush: "trigger = \"periodic\"\nperiod = \"1ms\"\ndurability = \"nonvolatile\"\njournal = \"4MiB\"",
    ..PUNCHED
};

/// Points of a manager around taking the room of slots.
const POINTS: [&str; 7] = [
    "lend.slots-retired",
    "lend.slot-discarded",
    "lend.slot-unbacked",
    "sparse.slots-idle",
    "sparse.table-synced",
    "sparse.discarded",
    "record.voiding",
];

fn is_slots(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "slots")
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "index")
}

/// The slots have their old bytes, holes that were filled again included.
fn old_slots(path: &Path) -> Fate {
    if is_slots(path) { Fate::Old } else { Fate::New }
}

/// The slots are what they were last, and their records are old.
fn old_table(path: &Path) -> Fate {
    if is_table(path) { Fate::Old } else { Fate::New }
}

/// The records are those of some moments since they were synced.
fn any_table(path: &Path) -> Fate {
    if is_table(path) { Fate::Any } else { Fate::New }
}

fn old_tier(path: &Path) -> Fate {
    if is_slots(path) || is_table(path) { Fate::Old } else { Fate::New }
}

fn nothing(_: &Path) -> Fate {
    Fate::New
}

const FATES: [fn(&Path) -> Fate; 5] = [any, old_slots, old_table, old_tier, nothing];

/// Where all files lie on the file tier, and room is taken from it each few milliseconds.
fn punching(setup: &Setup) -> Option<Harness> {
    let mut harness = powered(setup)?;
    let mut text = fs::read_to_string(&harness.site.config).unwrap();
    text.push_str("[[rule]]\npath = \"**\"\ntier = \"nvme\"\n");
    fs::write(&harness.site.config, text).unwrap();
    harness.settings.push(("FOREBAY_TIME_SCALE", "50".to_owned()));
    Some(harness)
}

fn write(file: u8, at: usize, bytes: usize, seed: u64) -> Step {
    Step::Write { file, at, bytes, seed, pieces: false }
}

fn sync(file: u8) -> Step {
    Step::Sync { file, data_only: false }
}

/// Small files that come and go, most of them synced.
fn small_files(rng: &mut Random, length: usize) -> Vec<Line> {
    let mut model = Model::with(&Contents::new());
    let mut steps = Vec::new();
    for _ in 0..length {
        let file = rng.index(5) as u8;
        let (size, seed) = (model.size(file), rng.next_u64() >> 40);
        let step = match rng.index(12) {
            0..=4 => write(file, rng.index(size + PAGE), 1 + rng.index(6 * PAGE), seed),
            5 => Step::Truncate { file, size: rng.index(size + PAGE) },
            6..=7 => Step::Empty { file },
            8..=9 => {
                steps.push(Step::Close { file });
                Step::Unlink { file }
            }
            _ => sync(file),
        };
        model.apply(step);
        steps.push(step);
        if matches!(step, Step::Write { .. }) && rng.one_in(2) {
            model.apply(sync(file));
            steps.push(sync(file));
        }
    }
    alone(&steps)
}

/// Files are written, synced, removed, and others come to lie where they were; managers are killed
/// around taking the room, and what was not synced is lost in part.
#[test]
fn losses_of_power_around_punched_slots() {
    let setups = [&PUNCHED, &PUNCHED_AMID_FLUSHES];
    let mut places: Vec<_> = setups.into_iter().filter_map(punching).collect();
    let Some(_) = places.first() else { return };
    for harness in &mut places {
        // Time for taking room.
        harness.settings.push(("FOREBAY_PAUSE", "open.found:1/3:15".to_owned()));
        harness.settings.push(("FOREBAY_PAUSE_IN", "client".to_owned()));
    }
    let mut course = Course { lost: Some(0), ..Course::begin(30, 8) };
    while let Some(seed) = course.next() {
        let mut rng = Random::new(seed);
        let harness = &places[rng.index(places.len())];
        let length = 10 + rng.index(30);
        let lines = small_files(&mut rng, length);
        let kill = match rng.index(4) {
            0 => Kill::at("client", 1 + rng.index(30 * length) as u64),
            _ => {
                let point = POINTS[rng.index(POINTS.len())].into();
                Kill { point, ..Kill::at("node", 1 + rng.index(4) as u64) }
            }
        };
        let fate = FATES[rng.index(FATES.len())];
        let loss = Loss { kill, replaced: rng.one_in(2), again: Vec::new(), fate };
        let result = power_loss(harness, &mut rng, (&Contents::new(), &lines), &loss);
        let (pieces, points) = result.unwrap_or_else(|what| {
            panic!("FOREBAY_SEED={seed}: {what}\n{}", harness.said());
        });
        course.lost = course.lost.map(|lost| lost + pieces);
        course.hit(points);
    }
    let taking = |point: &str| course.hits.get(point).copied().unwrap_or(0) > 0;
    assert!(course.only || ["sparse.table-synced", "sparse.discarded"].into_iter().any(taking));
    course.end();
}

/// Scripts that run one after the other, until power is lost.
struct Powered<'h> {
    harness: &'h Harness,
    undo: PathBuf,
    folder: PathBuf,
    model: Model,
    /// What the slots take while they are empty.
    empty: u64,
}

impl Powered<'_> {
    /// With a manager.
    fn begin(harness: &Harness) -> Powered<'_> {
        let undo = harness.site.root().join("undo");
        let _ = fs::remove_dir_all(&undo);
        fs::create_dir(&undo).unwrap();
        let contents = Contents::new();
        let folder = harness.folder(&contents);
        assert!(harness.start_manager(None, &harness.mark()), "{}", harness.said());
        let mut powered =
            Powered { harness, undo, folder, model: Model::with(&contents), empty: 0 };
        powered.empty = powered.taken();
        powered
    }

    /// Runs `steps` in a program, which may kill itself in the last one.
    fn run(&mut self, steps: &[Step], kill: Option<&Kill>) {
        let lines = alone(steps);
        let (point, ended) = self.harness.start(&self.folder, &lines, kill).end();
        assert_eq!(point, kill.map(|kill| kill.point.clone()));
        let under_way = follow(&mut self.model, &lines, &ended.reports).unwrap();
        under_way.map(|step| self.model.apply(step));
    }

    /// Bytes that the slots take of the disk.
    fn taken(&self) -> u64 {
        let entries =
            fs::read_dir(&self.harness.site.nvme).unwrap().map(|entry| entry.unwrap().path());
        let slots = entries.filter(|path| is_slots(path));
        slots.map(|path| fs::metadata(path).unwrap().blocks() * 512).sum()
    }

    /// Fails unless so many pages lie in slots.
    fn assert_taken(&self, pages: usize) {
        assert_eq!(self.taken(), self.empty + (pages * PAGE) as u64);
    }

    /// Waits until no slot has any room but the pages of what is `left`.
    fn wait_until_punched(&self, left: usize) {
        let most = self.empty + (left * PAGE) as u64;
        wait_for("the room of slots", LONG, || (self.taken() <= most).then_some(()));
    }

    /// Loses power, and brings back what was not lost. Returns whether a manager says that anything
    /// is lost, or what is wrong.
    fn lose(self, fate: fn(&Path) -> Fate, seed: u64) -> Result<bool, String> {
        let Powered { harness, undo, folder, model, .. } = self;
        harness.kill_manager();
        harness.site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
        power::lose_power(&folder, &harness.site.nvme, &undo, fate, &mut Random::new(seed));
        let said = super::rebuild(harness);
        harness.end_manager();
        model.compare_durable(&harness.contents(&folder), None)?;
        harness.site.drop_removed();
        Ok(said)
    }
}

/// What was never synced, and is gone before the power is, is no loss: the table says so before the
/// room of its slot is taken.
#[test]
fn records_are_void_for_good_before_the_room_of_slots_is_taken() {
    let Some(mut harness) = punching(&PUNCHED) else { return };
    let lose = |harness: &Harness, seed| {
        let mut powered = Powered::begin(harness);
        powered.run(&[write(0, 0, 3 * PAGE, 1), write(1, 0, 5 * PAGE, 2)], None);
        powered.assert_taken(8);
        powered.run(&[Step::Unlink { file: 0 }, write(1, 0, 10, 3), sync(1)], None);
        powered.wait_until_punched(5);
        powered.lose(any_table, seed).unwrap()
    };
    (0..8).for_each(|seed| assert!(!lose(&harness, seed), "{}", harness.said()));
    harness.settings.push(("FOREBAY_PLANT", "punch-unsynced".to_owned()));
    assert!((0..40).any(|seed| lose(&harness, seed)), "that it is not synced is not noticed");
}

/// A flush has ended and not yet written the slot's record when the block is cut, and the room of
/// its slot is taken.
#[test]
fn the_record_of_a_flush_that_has_just_ended_is_void_before_room_is_taken() {
    let Some(mut harness) = punching(&PUNCHED_AMID_FLUSHES) else { return };
    let (held, log) = (harness.site.out.join("held"), harness.site.out.join("pauses"));
    fs::write(&held, "").unwrap();
    let pause = format!("flush.ended:1:while={}", held.display());
    harness.settings.push(("FOREBAY_PAUSE", pause));
    harness.settings.push(("FOREBAY_PAUSE_IN", "node".to_owned()));
    harness.settings.push(("FOREBAY_PAUSE_LOG", log.display().to_string()));
    let mut powered = Powered::begin(&harness);
    powered.run(&[write(0, 0, 3 * PAGE, 1)], None);
    wait_for("the end of a flush", LONG, || paused(&log));
    powered.run(&[Step::Empty { file: 0 }], None);
    powered.wait_until_punched(0);
    assert_eq!(powered.lose(old_table, 0), Ok(false), "{}", harness.said());
}

/// A program is killed in the middle of a write to a slot, so that the page has no sum; another one
/// writes the slot's record. The bytes of both are lost, those that were synced before are not.
#[test]
fn a_page_of_a_killed_writer_does_not_stand_for_what_a_slot_had_before() {
    let Some(harness) = punching(&PUNCHED) else { return };
    for (at, bytes) in [(0, PAGE), (100, 50)] {
        let mut powered = Powered::begin(&harness);
        // What other file's bytes the slot has.
        powered.run(&[write(1, 0, 3 * PAGE, 9), sync(1), Step::Close { file: 1 }], None);
        powered.assert_taken(3);
        powered.run(&[Step::Unlink { file: 1 }], None);
        powered.wait_until_punched(0);
        powered.run(&[write(0, 0, 3 * PAGE, 1), sync(0)], None);
        let kill = Kill { role: "client", point: "slot.summing".into(), number: 1 };
        powered.run(&[write(0, at, bytes, 2)], Some(&kill));
        powered.run(&[write(0, PAGE + 100, 50, 3)], None);
        powered.assert_taken(3);
        powered
            .lose(old_slots, 0)
            .unwrap_or_else(|what| panic!("{at}: {what}\n{}", harness.said()));
    }
}
