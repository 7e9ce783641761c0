//! The differential fuzzer: random operations of several processes and threads, executed on a
//! plain directory and on a managed one, must do the same.
//!
//! A script is made from a seed (`fuzz/generate.rs`), executed on both sides by `programs/fuzz.c`,
//! one operation at a time and each by the process or thread that its line names, and compared
//! (`fuzz/run.rs`): every return value, errno, byte, size, offset, mode, link count, and whether a
//! modification time is the one that was set or that of a write; in the end all files. `race`
//! lines run processes and threads at the same time, on work whose outcome does not depend on which
//! is first. A script that shows a difference is shrunk (`fuzz/shrink.rs`), printed, and left in
//! the target directory; put into `fuzz/corpus`, it is a regression test.
//!
//! - `FOREBAY_SEED=n` repeats one script, in every place or in that of the test named.
//! - `FOREBAY_FUZZ_SCRIPT=path` executes one script file, or those in a folder.
//! - `FOREBAY_FUZZ_MINUTES=n` goes on for so long, through all places.
//!
//! Not compared, because Forebay or the kernel leave it open:
//!
//! - access and change times; the number of blocks, but for none or some;
//! - where holes are in files that were pre-allocated: the kernel's answer there depends on what
//!   its page cache has. It must be possible;
//! - unaligned O_DIRECT, which Forebay allows; transfers of such descriptors are aligned;
//! - the kernel's offset of a managed descriptor (/proc/self/fdinfo), which is Forebay's marker;
//! - descriptor numbers once a file was locked by fcntl: Forebay then keeps what it had to open at
//!   the lowest free number, because moving it would end the locks;
//! - fcntl locks over exec: a descriptor of Forebay's own on the same file, which is closed then,
//!   may end them;
//! - failing writes beyond the end, which let ext4 grow the file or its blocks;
//! - streams without "a" on descriptors that append: the C library does not know where they are;
//! - RWF_NOWAIT, and at how many bytes splice stops when the pipe is full.

mod generate;
mod run;
mod shrink;

use crate::harness;
use forebay_placement::Random;
use generate::Generator;
use run::{PLACES, Place, place, run};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations of each place in a usual run; those with troubles have fewer.
const OPERATIONS: usize = 18_000;
/// Operations of one script.
const LENGTH: usize = 1_500;

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn new_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Random::new(now.as_nanos() as u64).next_u64() >> 24
}

/// Runs one script; one that shows a difference is shrunk and fails the test. Returns how many
/// operations were executed.
fn fuzz(place: &Place, seed: u64) -> usize {
    let lines = Generator::script(seed, LENGTH);
    let outcome = run(place, &lines, None);
    let Some(mismatch) = outcome.mismatch else {
        if let Some(trouble) = place.trouble {
            println!("{} {trouble:?}", outcome.troubles);
            assert!(outcome.troubles > 0, "FOREBAY_SEED={seed}: no {trouble:?}");
        }
        assert!(outcome.buffered > 0, "FOREBAY_SEED={seed} {}: nothing was buffered", place.name);
        return outcome.operations;
    };
    eprintln!("FOREBAY_SEED={seed} {}: {}\nshrinking ...", place.name, mismatch.text);
    let shrunk = shrink::shrink(place, &lines, mismatch, None);
    let script = format!("# place: {}\n{}\n", place.name, shrunk.lines.join("\n"));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{seed}.fuzz", place.name));
    std::fs::write(&kept, &script).unwrap();
    if shrunk.fails == 0 && number_in("FOREBAY_FUZZ_MINUTES").is_none() {
        // A race, and not one that this change need have made. A hunt for differences fails.
        let kept = kept.display();
        harness::skip(&format!(
            "FOREBAY_SEED={seed} differed once, and not in 5 more runs: {kept}"
        ));
        return outcome.operations;
    }
    panic!(
        "FOREBAY_SEED={seed} {}: {}\nThe smallest script, which failed in {} of 5 runs, is in {}:\n{}",
        place.name,
        shrunk.mismatch.text,
        shrunk.fails,
        kept.display(),
        if shrunk.lines.len() > 200 { "(long)" } else { &script },
    );
}

/// The scripts of the usual run: the same every time, so that a change shows what
/// it broke. FOREBAY_FUZZ_MINUTES looks for what was never seen.
const USUAL_SEEDS: [u64; 12] = [1, 2, 3, 6, 7, 9, 12, 13, 17, 18, 20, 22];

/// The usual number of operations in one place.
fn usual(name: &str) {
    usual_with(name, &USUAL_SEEDS);
}

fn usual_with(name: &str, seeds: &[u64]) {
    if run::executor().is_none() {
        return;
    }
    let place = place(name);
    if let Some(seed) = number_in("FOREBAY_SEED") {
        fuzz(place, seed);
        return;
    }
    let mut done = 0;
    for &seed in seeds {
        println!("FOREBAY_SEED={seed}");
        done += fuzz(place, seed);
    }
    println!("{done} operations");
    let wanted = OPERATIONS * seeds.len() / USUAL_SEEDS.len();
    assert!(done >= wanted, "only {done} operations");
}

#[test]
fn in_ram() {
    usual("ram");
}

#[test]
fn in_small_tiers() {
    usual("lazy");
}

#[test]
fn flushed_all_the_time() {
    usual("periodic");
}

#[test]
fn written_through() {
    usual("through");
}

#[test]
fn flushed_when_closed() {
    usual("closed");
}

#[test]
fn over_a_slow_store() {
    usual("slow");
}

#[test]
fn exchanged_all_the_time() {
    usual_with("hot", &USUAL_SEEDS[..6]);
}

#[test]
fn stopped_and_started_all_the_time() {
    // Each run of the command takes its time.
    usual_with("stopped", &USUAL_SEEDS[..4]);
}

#[test]
fn paused_at_points_all_the_time() {
    match place("paused").is_possible() {
        true => usual_with("paused", &USUAL_SEEDS[..2]),
        false => harness::skip("pauses are only in builds with debug assertions"),
    }
}

#[test]
fn stopped_by_signals_all_the_time() {
    usual_with("frozen", &USUAL_SEEDS[..2]);
}

#[test]
fn for_as_long_as_wanted() {
    let Some(minutes) = number_in("FOREBAY_FUZZ_MINUTES").filter(|_| run::executor().is_some())
    else {
        return;
    };
    let since = Instant::now();
    let (mut seeds, mut done) = (Random::new(new_seed()), 0);
    while since.elapsed() < Duration::from_secs(minutes * 60) {
        for place in PLACES.iter().filter(|place| place.is_possible()) {
            done += fuzz(place, seeds.next_u64() >> 24);
        }
    }
    println!("{done} operations");
}

/// What `programs/fuzz/faults.c` can do wrong.
const FAULTS: [&str; 13] = [
    "a write in 40 is dropped",
    "a write in 20 is torn",
    "a read in 40 has a page of zeros",
    "a size in 10 is that of before",
    "O_APPEND is lost",
    "O_TRUNC is lost",
    "O_EXCL is lost",
    "dup has an offset of its own",
    "a cut in 3 is not done",
    "locks are always granted",
    "times are not set",
    "a rename keeps the old name",
    "an fwrite in 5 is lost",
];

/// Scripts within which each must be noticed; most are in the first.
const FAULTY_SCRIPTS: usize = 20;

#[test]
fn each_planted_error_is_noticed() {
    if run::executor().is_none() {
        return;
    }
    let first = number_in("FOREBAY_SEED").unwrap_or(USUAL_SEEDS[0]);
    println!("FOREBAY_SEED={first}");
    let mut seeds = Random::new(first);
    let scripts: Vec<_> =
        (0..FAULTY_SCRIPTS).map(|_| Generator::script(seeds.next_u64() >> 24, LENGTH)).collect();
    // So that what is noticed is the error, and not that there is a library more.
    assert_eq!(run(place("ram"), &scripts[0], Some("none")).mismatch.map(|found| found.text), None);
    let mut missed = Vec::new();
    for fault in FAULTS {
        let fails = |lines: &Vec<_>| run(place("ram"), lines, Some(fault)).mismatch.is_some();
        let noticed = scripts.iter().position(fails);
        match noticed {
            Some(before) => println!("{fault}: noticed after {before} scripts"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "FOREBAY_SEED={first}: not noticed: {missed:?}");
}

/// Scripts that showed an error once. The first line names the place.
#[test]
fn the_corpus() {
    if run::executor().is_none() {
        return;
    }
    let wanted = std::env::var_os("FOREBAY_FUZZ_SCRIPT").map(PathBuf::from);
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture/fuzz/corpus");
    let wanted = wanted.unwrap_or_else(usual);
    let mut files: Vec<PathBuf> = match std::fs::read_dir(&wanted) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => vec![wanted],
    };
    files.sort();
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = text.lines().next().and_then(|line| line.strip_prefix("# place: "));
        let name = name.unwrap_or_else(|| panic!("{}: no place", file.display()));
        let script = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let lines: Vec<_> = script.map(str::to_owned).collect();
        if let Some(mismatch) = run(place(name.trim()), &lines, None).mismatch {
            wrong.push(format!("{}: {}", file.display(), mismatch.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
