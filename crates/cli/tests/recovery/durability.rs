//! What fsync has acknowledged outlives programs, managers and the segment: everything is killed,
//! and the segment removed, as a loss of power does it.

use crate::harness::{
    self, LAZY, LIMIT, Running, Setup, Site, Steps, USUAL, assert_same_bytes, wait_for,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Nothing reaches the store before the run ends, unless a sync brings it there.
const JOURNAL: Setup =
    Setup { flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"", ..LAZY };
/// With room for the two blocks that each file of an enumeration may have: none is flushed for
/// room.
const ROOMY_JOURNAL: Setup = Setup { ram: "160MiB", ..JOURNAL };
/// Flushes come between all the time.
const RESTLESS: Setup = Setup {
    flush: "trigger = \"periodic\"\nperiod = \"3ms\"\ndurability = \"nonvolatile\"",
    ..USUAL
};
/// A log that a megabyte fills.
const SMALL_LOG: Setup = Setup {
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"1MiB\"",
    ..LAZY
};

/// `programs/durable.c` at work.
struct Program {
    site: Site,
    run: Running,
    lines: usize,
}

impl Program {
    fn start(site: Site, script: &str, options: &[&str]) -> Option<Program> {
        if !site.compile("durable.c", &[]) {
            return None;
        }
        let file = site.out.join("script");
        fs::write(&file, script).unwrap();
        let program = site.root().join("durable");
        let config = site.config.to_str().unwrap();
        // While its tier is small, blocks are flushed for room that it will have.
        let once_set_up = "while $FOREBAY status | grep -q 'when set up'; do sleep 0.02; done; \
            exec \"$@\"";
        let words = ["bash", "-c", once_set_up, "bash", program.to_str().unwrap()];
        let words = [&["run", "--config", config], options, &["--"], &words].concat();
        let words = [&words[..], &[file.to_str().unwrap()]].concat();
        let run = site.start(site.forebay(&words));
        Some(Program { site, run, lines: script.lines().count() })
    }

    /// Waits until all lines are done.
    fn done(&mut self) {
        wait_for("the script", LIMIT, || {
            let said = self.run.stdout();
            assert!(said.ends_with("done\n") || self.run.is_running(), "{}", self.run.stderr());
            said.ends_with("done\n").then_some(())
        });
        assert_eq!(self.run.stdout().lines().count(), self.lines + 1);
        self.site.status().assert_live();
    }

    /// Kills everything. The segment is gone, too.
    fn lose_power(self) -> Site {
        let Program { site, run, .. } = self;
        site.kill_all();
        run.end();
        assert!(!site.pools().is_empty(), "nothing was lost");
        site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
        site
    }
}

/// What the next node manager makes of what was left.
fn restart(site: &Site) -> String {
    let config = site.config.to_str().unwrap();
    let script = "cat $FOREBAY_RUNTIME_DIR/*/log";
    let ran = site.end(site.forebay(&["run", "--config", config, "--", "bash", "-c", script]));
    ran.expect(0).stdout
}

fn journals(site: &Site) -> Vec<PathBuf> {
    let entries = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "journal")).collect()
}

fn pattern(offset: usize, bytes: usize, byte: u8) -> Vec<u8> {
    let at = |n: usize| byte.wrapping_add(((n + offset) / 7) as u8);
    (0..bytes).map(at).collect()
}

/// A file as it was after each change since its last sync, that one included.
#[derive(Clone, Default)]
struct Model {
    versions: Vec<Vec<u8>>,
    /// A part of a change may be found.
    torn: bool,
}

impl Model {
    fn now(&self) -> Vec<u8> {
        self.versions.last().cloned().unwrap_or_default()
    }

    /// Whether nothing but whole versions may be found: one change was not synced, and pages of it
    /// are not flushed one by one.
    fn is_plain(&self) -> bool {
        self.versions.len() == 2 && !self.torn
    }

    fn check(&self, name: &str, got: &[u8]) {
        if let [only] = &self.versions[..] {
            return assert_same_bytes(name, got, only);
        }
        if self.is_plain() && self.versions.iter().any(|version| version == got) {
            return;
        }
        let differ = |version: &Vec<u8>| {
            let at = version.iter().zip(got).position(|(a, b)| a != b);
            format!("from one of {} bytes at {at:?}", version.len())
        };
        assert!(
            !self.is_plain(),
            "{name}: neither before nor after the last change: {} bytes; they differ {:?}",
            got.len(),
            self.versions.iter().map(differ).collect::<Vec<_>>()
        );
        let sizes = || self.versions.iter().map(Vec::len);
        let (least, most) = (sizes().min().unwrap(), sizes().max().unwrap());
        assert!((least..=most).contains(&got.len()), "{name}: {} bytes", got.len());
        for (at, byte) in got.iter().enumerate() {
            let possible = |version: &Vec<u8>| version.get(at).unwrap_or(&0) == byte;
            assert!(self.versions.iter().any(possible), "{name}: {byte} at {at}");
        }
    }
}

/// Names and what they stand for, as a script changes them.
#[derive(Default)]
struct World {
    script: String,
    /// Flushes come between.
    torn: bool,
    files: BTreeMap<String, Model>,
}

impl World {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let torn = self.torn;
        let new = || Model { versions: vec![Vec::new()], torn };
        let file = self.files.entry(name.to_owned()).or_insert_with(new);
        let mut now = file.now();
        change(&mut now);
        file.versions.push(now);
    }

    fn write(&mut self, name: &str, offset: usize, bytes: usize, byte: u8) {
        let _ = writeln!(self.script, "w {name} {offset} {bytes} {byte}");
        self.change(name, |now| {
            now.resize(now.len().max(offset + bytes), 0);
            now[offset..offset + bytes].copy_from_slice(&pattern(offset, bytes, byte));
        });
    }

    fn write_anew(&mut self, name: &str, bytes: usize, byte: u8) {
        let _ = writeln!(self.script, "o {name} {bytes} {byte}");
        self.change(name, Vec::clear);
        self.change(name, |now| *now = pattern(0, bytes, byte));
    }

    fn truncate(&mut self, name: &str, size: usize) {
        let _ = writeln!(self.script, "t {name} {size}");
        self.change(name, |now| now.resize(size, 0));
    }

    fn punch(&mut self, name: &str, offset: usize, bytes: usize) {
        let _ = writeln!(self.script, "p {name} {offset} {bytes}");
        self.change(name, |now| {
            let size = now.len();
            now[offset.min(size)..(offset + bytes).min(size)].fill(0);
        });
    }

    fn rename(&mut self, from: &str, to: &str) {
        let _ = writeln!(self.script, "m {from} {to}");
        let file = self.files.remove(from).unwrap();
        self.files.insert(to.to_owned(), file);
    }

    fn unlink(&mut self, name: &str) {
        let _ = writeln!(self.script, "u {name}");
        self.files.remove(name);
    }

    fn flush(&mut self, name: &str) {
        self.sync(name);
        let line = self.script.trim_end().rfind('\n').map_or(0, |at| at + 1);
        self.script.replace_range(line..line + 1, "f");
    }

    fn sync(&mut self, name: &str) {
        let _ = writeln!(self.script, "s {name}");
        let file = self.files.get_mut(name).unwrap();
        file.versions = vec![file.now()];
    }

    fn check(&self, site: &Site, log: &str) {
        let found = harness::tree(&site.store);
        let names: Vec<_> = found.keys().map(|name| name.to_string_lossy().into_owned()).collect();
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        for (name, file) in &self.files {
            let got = found[&PathBuf::from(name)].bytes();
            file.check(&format!("{name} of\n{}\n{log}\n{name}", self.script), &got);
        }
        site.drop_removed();
    }
}

/// Runs the world's script, loses power, and compares.
fn survives(setup: &Setup, world: &World) -> Option<Site> {
    let mut program = Program::start(Site::new(setup), &world.script, &[])?;
    program.done();
    let site = program.lose_power();
    let log = restart(&site);
    world.check(&site, &log);
    Some(site)
}

#[test]
fn what_fsync_acknowledged_is_in_the_journal_and_not_on_the_store() {
    let mut world = World::default();
    world.write("a", 0, 700_000, 1);
    world.sync("a");
    world.write("b", 100, 50, 2);
    world.sync("b");
    world.write("a", 4000, 5000, 3);
    world.sync("a");
    let Some(mut program) = Program::start(Site::new(&JOURNAL), &world.script, &[]) else { return };
    program.done();
    for name in ["a", "b"] {
        assert_eq!(fs::read(program.site.store.join(name)).unwrap(), b"");
    }
    let site = program.lose_power();
    assert_eq!(journals(&site).len(), 1);
    let log = restart(&site);
    assert!(log.contains("recovered 2 files"), "{log}");
    world.check(&site, &log);
}

#[test]
fn each_durability_by_configuration_rule_and_command_line() {
    let mut world = World::default();
    world.write("plain", 0, 30_000, 1);
    world.sync("plain");
    world.write("safe.db", 0, 30_000, 2);
    world.sync("safe.db");
    world.write("fast.tmp", 0, 30_000, 3);
    world.sync("fast.tmp");
    let rules = "[[rule]]\npath = \"*.db\"\ndurability = \"nonvolatile\"\n\
                 [[rule]]\npath = \"*.tmp\"\ndurability = \"memory\"";
    let by_rule = |flush: &str| format!("{flush}\n{rules}");
    let on_exit = "trigger = \"on-exit\"";
    let of = |durability: &str| format!("{on_exit}\ndurability = \"{durability}\"");
    // For each: whether plain, safe.db and fast.tmp are on the store when fsync has returned.
    for (flush, options, there) in [
        (on_exit.to_owned(), &[][..], [true; 3]),
        (of("store"), &[], [true; 3]),
        (of("nonvolatile"), &[], [false; 3]),
        (of("memory"), &[], [false; 3]),
        (of("memory"), &["--durability", "store"], [true; 3]),
        (on_exit.to_owned(), &["--durability", "nonvolatile"], [false; 3]),
        (by_rule(on_exit), &[], [true, false, false]),
        (by_rule(on_exit), &["--durability", "nonvolatile"], [false; 3]),
    ] {
        let setup = Setup { flush: Box::leak(flush.clone().into_boxed_str()), ..LAZY };
        let Some(mut program) = Program::start(Site::new(&setup), &world.script, options) else {
            return;
        };
        program.done();
        for (name, there) in ["plain", "safe.db", "fast.tmp"].iter().zip(there) {
            let bytes = fs::read(program.site.store.join(name)).unwrap();
            assert_eq!(!bytes.is_empty(), there, "{name}: {flush} {options:?}");
        }
        let Program { site, run, .. } = program;
        // What is acknowledged by whatever it was survives the death of everything but the segment.
        site.kill_all();
        run.end();
        site.recover().expect(0);
        world.check(&site, &flush);
    }
}

#[test]
fn without_a_file_tier_nonvolatile_is_refused() {
    let site = Site::new(&LAZY);
    let text = "[[backing]]\npath = \"store\"\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\n\
                capacity = \"8MiB\"\n";
    fs::write(&site.config, format!("[flush]\ndurability = \"nonvolatile\"\n{text}")).unwrap();
    let ran = site.end(site.buffered(&["true"])).expect(125);
    assert!(ran.stderr.contains("flush"), "{ran:?}");
    assert!(ran.stderr.contains("\"nonvolatile\" needs a file tier; add [[tier]]"), "{ran:?}");
    fs::write(&site.config, text).unwrap();
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--durability", "nonvolatile", "--", "true"];
    let ran = site.end(site.forebay(&words)).expect(125);
    assert!(ran.stderr.contains("--durability"), "{ran:?}");
}

/// The operations of the enumeration, on a file of 30000 bytes.
const OPERATIONS: [&str; 8] =
    ["write", "overwrite", "cut", "grow", "append", "rename", "replace", "punch"];

fn operate(world: &mut World, operation: &str, name: &mut String, byte: u8) {
    match operation {
        "write" => world.write(name, 300_000, 9_000, byte),
        "overwrite" => world.write(name, 5_000, 10_000, byte),
        "cut" => world.truncate(name, 7_000),
        "grow" => world.truncate(name, 50_000),
        "append" => {
            let size = world.files[name.as_str()].now().len();
            world.write(name, size, 3_000, byte);
        }
        "rename" => {
            let to = format!("{name}-moved");
            world.rename(name, &to);
            *name = to;
        }
        "replace" => {
            world.unlink(name);
            world.write(name, 0, 12_000, byte);
        }
        _ => world.punch(name, 3_000, 9_000),
    }
}

fn enumerate(setup: &Setup, torn: bool) {
    let mut world = World { torn, ..World::default() };
    for (first, one) in OPERATIONS.iter().enumerate() {
        for (second, two) in OPERATIONS.iter().enumerate() {
            // Synced or not after the first, and after the second.
            for syncs in 0..4 {
                let mut name = format!("f{first}{second}{syncs}-{one}-{two}");
                let byte = (first * 31 + second * 7 + syncs) as u8;
                world.write(&name, 0, 30_000, byte);
                world.sync(&name);
                if syncs == 0 {
                    // One part on the store, the other in the journal.
                    world.flush(&name);
                    world.write(&name, 10_000, 20_000, byte.wrapping_add(40));
                    world.sync(&name);
                }
                operate(&mut world, one, &mut name, byte.wrapping_add(85));
                if syncs & 1 == 1 {
                    world.sync(&name);
                }
                operate(&mut world, two, &mut name, byte.wrapping_add(170));
                if syncs & 2 == 2 {
                    world.sync(&name);
                }
            }
        }
    }
    survives(setup, &world);
}

#[test]
fn all_sequences_of_two_operations_survive() {
    enumerate(&ROOMY_JOURNAL, false);
}

#[test]
fn all_sequences_of_two_operations_survive_among_flushes() {
    enumerate(&RESTLESS, true);
}

/// Tiers that a few megabytes fill: blocks move between RAM, slots and the store.
const CROWDED: Setup = Setup {
    ram: "4MiB",
    nvme: "8MiB",
    nvme_emulate: None,
    flush: "trigger = \"periodic\"\nperiod = \"20ms\"\ndurability = \"nonvolatile\"",
    ..USUAL
};

#[test]
fn what_slots_hold_and_what_the_journal_holds_are_brought_back_in_order() {
    let mut world = World { torn: true, ..World::default() };
    for turn in 0..60 {
        let name = format!("f{}", turn % 3);
        world.write(&name, turn * 370_000 % 5_000_000, 900_000, turn as u8);
        if turn % 2 == 0 {
            world.write(&name, turn * 110_000 % 3_000_000, 5_000, 200 - turn as u8);
        }
        if turn % 4 != 3 {
            world.sync(&name);
        }
        if turn % 13 == 12 {
            world.truncate(&name, 1_000_000);
        }
    }
    for name in ["f0", "f1", "f2"] {
        world.sync(name);
    }
    survives(&CROWDED, &world);
}

#[test]
fn a_log_that_is_full_again_and_again_loses_nothing() {
    let mut world = World::default();
    for turn in 0..400 {
        let name = format!("f{}", turn % 7);
        world.write(&name, turn * 1_000 % 60_000, 20_000, turn as u8);
        world.sync(&name);
    }
    world.write("large", 0, 3_000_000, 9);
    world.sync("large");
    let Some(mut program) = Program::start(Site::new(&SMALL_LOG), &world.script, &[]) else {
        return;
    };
    program.done();
    let journal = journals(&program.site);
    let bytes = fs::metadata(&journal[0]).unwrap().len();
    assert!(bytes < 16 << 20, "{bytes}");
    let site = program.lose_power();
    let log = restart(&site);
    world.check(&site, &log);
}

/// Numbers from a seed, which is printed.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed: u64 = seed.unwrap_or_else(now);
        eprintln!("FOREBAY_SEED={seed}");
        Random(seed | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end as u64) as usize
    }
}

#[test]
fn random_operations_survive() {
    let mut random = Random::new();
    for setup in [&JOURNAL, &RESTLESS, &SMALL_LOG, &CROWDED] {
        let mut world = World { torn: true, ..World::default() };
        for step in 0..250 {
            let name = format!("f{}", random.below(5));
            let size = world.files.get(&name).map_or(0, |file| file.now().len());
            let byte = step as u8;
            match random.below(12) {
                _ if size == 0 => world.write(&name, 0, 1 + random.below(90_000), byte),
                0 => world.truncate(&name, random.below(120_000)),
                1 => world.punch(&name, random.below(size), 1 + random.below(30_000)),
                2 => world.write_anew(&name, 1 + random.below(50_000), byte),
                3 => world.unlink(&name),
                4 => world.rename(&name, &format!("f{}", random.below(5))),
                5 | 6 => world.write(&name, size, 1 + random.below(9_000), byte),
                _ => world.write(&name, random.below(size), 1 + random.below(40_000), byte),
            }
            if random.below(2) == 0 && world.files.contains_key(&name) {
                world.sync(&name);
            }
        }
        survives(setup, &world);
    }
}

/// A journal whose records hold something that was acknowledged.
fn with_journal() -> Option<(World, Site)> {
    let mut world = World::default();
    for (turn, name) in ["a", "b", "c"].iter().enumerate() {
        world.write(name, 0, 50_000, turn as u8);
        world.sync(name);
    }
    let mut program = Program::start(Site::new(&JOURNAL), &world.script, &[])?;
    program.done();
    Some((world, program.lose_power()))
}

#[test]
fn damage_in_the_journal_ends_it_there() {
    let Some((world, site)) = with_journal() else { return };
    let journal = journals(&site).remove(0);
    let mut bytes = fs::read(&journal).unwrap();
    // In the last record, and rubbish behind it.
    let end = bytes.len();
    bytes[end - 20_000] ^= 4;
    bytes.extend([0x5a; 9000]);
    fs::write(&journal, &bytes).unwrap();
    let log = restart(&site);
    let found = harness::tree(&site.store);
    let got = |name: &str| found[&PathBuf::from(name)].bytes();
    for name in ["a", "b"] {
        world.files[name].check(&format!("{log}{name}"), &got(name));
    }
    assert_eq!(got("c"), b"");
}

#[test]
fn another_file_never_gets_the_bytes() {
    let Some((world, site)) = with_journal() else { return };
    // Another file's: often the inode number of what was just removed.
    for name in ["a", "b"] {
        fs::remove_file(site.store.join(name)).unwrap();
        fs::write(site.store.join(name), "another").unwrap();
    }
    fs::create_dir(site.store.join("deep")).unwrap();
    fs::rename(site.store.join("c"), site.store.join("deep/moved")).unwrap();
    let log = restart(&site);
    for name in ["a", "b"] {
        assert_eq!(fs::read_to_string(site.store.join(name)).unwrap(), "another", "{log}");
    }
    assert!(log.contains("recovered 1 file"), "{log}");
    // What fsync has acknowledged is not thrown away: another program may have replaced the file.
    assert!(log.contains("2 files that are not on the store any more is kept in "), "{log}");
    let folders = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let kept = folders.filter(|path| path.extension().is_some_and(|end| end == "removed"));
    let [kept] = &kept.collect::<Vec<_>>()[..] else { panic!("{log}") };
    assert!(log.contains(kept.to_str().unwrap()), "{log}");
    assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o700);
    for name in ["a", "b"] {
        world.files[name].check(name, &fs::read(kept.join(name)).unwrap());
        assert_eq!(fs::metadata(kept.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    fs::remove_dir_all(kept).unwrap();
    world.files["c"].check("c", &fs::read(site.store.join("deep/moved")).unwrap());
}

#[test]
fn a_manager_that_takes_over_goes_on_with_the_journal() {
    let mut world = World::default();
    world.write("a", 0, 60_000, 1);
    world.sync("a");
    world.write("b", 0, 60_000, 2);
    world.sync("b");
    let before = world.script.lines().count();
    // The manager is killed here.
    world.script.push_str("h ../out/go\n");
    world.write("a", 1_000, 2_000, 3);
    world.sync("a");
    world.truncate("b", 10_000);
    world.write("b", 20_000, 2_000, 4);
    world.sync("b");
    let Some(mut program) = Program::start(Site::new(&JOURNAL), &world.script, &[]) else { return };
    wait_for("the first half", LIMIT, || {
        (program.run.stdout().lines().count() == before).then_some(())
    });
    let manager = program.site.status().manager;
    harness::kill(manager, rustix::process::Signal::KILL);
    fs::write(program.site.out.join("go"), "").unwrap();
    program.done();
    let site = program.lose_power();
    let log = restart(&site);
    world.check(&site, &log);
}

#[test]
fn without_a_manager_the_store_has_it_and_the_journal_nothing_older() {
    let mut world = World::default();
    world.write("a", 0, 60_000, 1);
    world.sync("a");
    world.write("b", 0, 60_000, 2);
    world.sync("b");
    let before = world.script.lines().count();
    world.script.push_str("h ../out/go\n");
    world.write("a", 1_000, 2_000, 3);
    world.sync("a");
    world.truncate("b", 10_000);
    world.truncate("b", 40_000);
    world.sync("b");
    let Some(program) = Program::start(Site::new(&JOURNAL), &world.script, &[]) else { return };
    wait_for("the first half", LIMIT, || {
        (program.run.stdout().lines().count() == before).then_some(())
    });
    // No process starts another.
    harness::kill(program.run.pid(), rustix::process::Signal::STOP);
    let manager = program.site.status().manager;
    harness::kill(manager, rustix::process::Signal::KILL);
    wait_for("its end", LIMIT, || (!harness::is_alive(manager)).then_some(()));
    fs::write(program.site.out.join("go"), "").unwrap();
    wait_for("the script", LIMIT, || program.run.stdout().ends_with("done\n").then_some(()));
    let site = program.lose_power();
    let log = restart(&site);
    world.check(&site, &log);
}

/// A program dies in a truncate while a sync of the file is under way, and the manager ends the
/// truncate between what the sync covers and its checkpoint. What is written and synced later must
/// not be cut by a replay of that truncate.
#[test]
fn a_truncate_amid_a_sync_is_not_replayed_over_what_was_synced_later() {
    if !cfg!(debug_assertions) {
        return harness::skip("crash points are only in builds with debug assertions");
    }
    let setup = Setup {
        ram: "4MiB",
        nvme_emulate: None,
        flush: "trigger = \"on-exit\"\n[[rule]]\npath = \"*.journaled\"\ndurability = \"nonvolatile\"",
        ..USUAL
    };
    let site = Site::new(&setup);
    let (held, log) = (site.out.join("held"), site.out.join("log"));
    fs::write(&held, "").unwrap();
    let script = "head -c 16000000 /dev/zero > file; : > $OUT/made\n\
        sync file & syncing=$!\n\
        while [ ! -e $OUT/cut ]; do sleep 0.01; done\n\
        FOREBAY_CRASH=truncate.intent:1 truncate -s 5000000 file; : > $OUT/died\n\
        wait $syncing; : > $OUT/synced\n\
        while [ ! -e $OUT/write ]; do sleep 0.01; done\n\
        yes | head -c 500000 > $OUT/lines\n\
        dd if=$OUT/lines of=file bs=1M conv=notrunc,fsync oflag=append status=none\n\
        : > $OUT/done; sleep 1000\n";
    let mut run = site.buffered(&["bash", "-c", script]);
    run.env("FOREBAY_PAUSE", format!("journal.checkpointing:1:while={}", held.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &log);
    let run = site.start(run);
    let await_file = |name: &str| {
        let path = site.out.join(name);
        wait_for(name, LIMIT, || path.exists().then_some(()));
    };
    wait_for("the sync", LIMIT, || harness::paused(&log));
    fs::write(site.out.join("cut"), "").unwrap();
    await_file("died");
    // The manager finds the dead program's truncate, and waits to tell the journal.
    std::thread::sleep(std::time::Duration::from_secs(2));
    fs::remove_file(&held).unwrap();
    await_file("synced");
    let is_cut = || fs::metadata(site.store.join("file")).unwrap().len() == 5_000_000;
    wait_for("the cut", LIMIT, || is_cut().then_some(()));
    fs::write(site.out.join("write"), "").unwrap();
    await_file("done");
    site.kill_all();
    run.end();
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    restart(&site);
    let mut wanted = vec![0; 5_000_000];
    wanted.extend(fs::read(site.out.join("lines")).unwrap());
    assert_same_bytes("file", &fs::read(site.store.join("file")).unwrap(), &wanted);
}

/// The slots have what was written, and the journal that it was not all.
#[test]
fn a_staged_file_that_was_being_written_is_named_after_a_loss_of_power() {
    let site = Site::new(&LAZY);
    let rule = "[[rule]]\npath = \"staged-*\"\nmode = \"staged\"\ntier = \"nvme\"\n";
    let config = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, config + rule).unwrap();
    // The flag keeps the second one from its store: it stays where it is.
    let flag = site.out.join("flag");
    fs::write(&flag, "").unwrap();
    let faults = site.out.join("faults");
    fs::write(&faults, format!("store write fail EIO while {}\n", flag.display())).unwrap();
    let script = "exec 3> staged-open; seq 100000 >&3; seq 100000 > staged-closed; step 1";
    let mut command = Steps::command(&site, &[], script);
    command.env("FOREBAY_FAULTS", &faults);
    let steps = Steps::start(&site, command);
    steps.at("1");
    let is_in = |name: &str, letter: &str| {
        let said = site.end(site.forebay(&["explain", name])).expect(0).stdout;
        said.contains(letter).then_some(())
    };
    wait_for("W", LIMIT, || is_in("staged-open", "(W)"));
    wait_for("D", LIMIT, || is_in("staged-closed", "(D)"));
    // The journal is told of a state after it has come about.
    let told = |name: &str| {
        let has = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes.windows(name.len()).any(|window| window == name.as_bytes())
        };
        journals(&site).iter().any(has).then_some(())
    };
    wait_for("the journal", LIMIT, || told("staged-open"));
    wait_for("the journal", LIMIT, || told("staged-closed"));
    site.kill_all();
    steps.running.end();
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    let said = restart(&site);
    let named = said.split("1 staged file was still being written then").nth(1);
    let is_right = |named: &str| named.contains("staged-open") && !named.contains("staged-closed");
    assert!(named.is_some_and(is_right), "{said}");
    let wanted: String = (1..=100_000).map(|line| format!("{line}\n")).collect();
    assert_same_bytes(
        "closed",
        &fs::read(site.store.join("staged-closed")).unwrap(),
        wanted.as_bytes(),
    );
}

/// A file of which a mapping is left is used through the kernel, which knows nothing of the
/// journal: a cut that this one was told of is not to come back over what was synced since.
#[test]
fn what_was_synced_of_a_staged_file_that_is_mapped_outlives_a_loss_of_power() {
    if !harness::have(&["python3"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let rule = "[[rule]]\npath = \"staged-*\"\nmode = \"staged\"\ntier = \"nvme\"\n";
    let config = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, config + rule).unwrap();
    // Renamed for a while to where no rule holds, it is staged anew, which the elevator has the
    // time to see each time.
    let program = "\
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
fd = os.open('staged-mapped', os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b'a' * 200000, 0)
memory = libc.mmap(None, 200000, 3, 1, fd, 0)
ctypes.memset(memory, 98, 100)
for names in ('staged-mapped', 'other'), ('other', 'staged-mapped'):
    os.rename(*names)
    time.sleep(0.6)
os.ftruncate(fd, 5000)
os.pwrite(fd, b'd' * 8000, 150000)
os.fsync(fd)
open(os.environ['OUT'] + '/synced', 'w').close()
time.sleep(600)
";
    fs::write(site.out.join("mapped.py"), program).unwrap();
    let command = Steps::command(&site, &[], "exec python3 $OUT/mapped.py");
    let steps = Steps::start(&site, command);
    wait_for("the sync", LIMIT, || site.out.join("synced").exists().then_some(()));
    site.kill_all();
    steps.running.end();
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    restart(&site);
    let wanted = [vec![b'b'; 100], vec![b'a'; 4900], vec![0; 145_000], vec![b'd'; 8000]].concat();
    assert_same_bytes("mapped", &fs::read(site.store.join("staged-mapped")).unwrap(), &wanted);
}
