//! What is brought to RAM ahead of programs that say nothing, over a slow store: how much of what
//! they read comes from there, and how much was brought in vain.

use std::process::Command;

use crate::harness::{Setup, Site, Status, TINY, skip, works};

const SLOW: Setup = Setup {
    ram: "64MiB",
    store_emulate: Some("{ bandwidth = \"200MB/s\", latency = \"1ms\" }"),
    ..TINY
};

/// Statements for all programs. `read` reads and compares; `pace` waits until a block that was
/// brought up ahead waits in RAM, so that the program is slower than the store however busy the
/// machine is.
const PRELUDE: &str = "
import os, random, subprocess, sys, time
BLOCK = 256 << 10
fd = os.open('file', os.O_RDONLY)
def counts():
    status = subprocess.run([os.environ['FOREBAY'], 'status'], stdout=subprocess.PIPE, text=True)
    words = [line.split() for line in status.stdout.splitlines()]
    return {word[1]: int(word[2]) for word in words if word[:1] == ['count']}
def content(offset, bytes):
    first, end = offset // 8, (offset + bytes + 7) // 8
    data = b''.join(number.to_bytes(8, 'little') for number in range(first, end))
    return data[offset - first * 8:][:bytes]
def read(offset, bytes):
    assert os.pread(fd, bytes, offset) == content(offset, bytes), offset
reads = 0
def pace():
    global reads
    reads += 1
    for turn in range(100 if reads > 30 else 3):
        count = counts()
        if count['guessed'] > count['guess_hits'] + count['guess_misses']: return
        time.sleep(0.02)
";

/// Runs the statements above a file of 64 MiB that only the store has.
fn program(setup: &Setup, statements: &str) -> Option<Status> {
    if !works(&["python3", "-c", "pass"]) {
        skip("python3 is missing");
        return None;
    }
    let site = Site::new(setup);
    let content: Vec<u8> = (0..8_u64 << 20).flat_map(u64::to_le_bytes).collect();
    std::fs::write(site.store.join("file"), content).unwrap();
    std::fs::write(site.out.join("script.py"), format!("{PRELUDE}{statements}")).unwrap();
    let (ran, status) = site.run_buffered("python3 $OUT/script.py");
    ran.expect(0);
    Some(status)
}

/// Of `blocks` that are read, all but those of the beginning came from RAM, and hardly any were
/// brought up in vain.
fn assert_foreseen(status: &Status, blocks: u64, beginning: u64) {
    let [guessed, hits] = ["guessed", "guess_hits"].map(|name| status.count(name));
    assert!(hits * 100 >= (blocks - beginning) * 95, "of {blocks}: {}", status.text);
    assert!(guessed - hits <= 16 + blocks / 20, "of {blocks}: {}", status.text);
}

#[test]
fn a_sequence_is_read_from_ram() {
    let statements = "
for block in range(200):
    read(block * BLOCK, 4096)
    read(block * BLOCK + 4096, BLOCK - 4096)
    pace()";
    let Some(status) = program(&SLOW, statements) else { return };
    assert_foreseen(&status, 200, 3);
}

#[test]
fn a_sequence_that_is_larger_than_ram_is_read_from_there() {
    let statements = "
for block in range(200):
    read(block * BLOCK, BLOCK)
    pace()";
    let Some(status) = program(&Setup { ram: "16MiB", ..SLOW }, statements) else { return };
    assert_foreseen(&status, 200, 3);
}

/// What was brought up in vain while eight threads, or one, read parts of the file in a row, as
/// fast as they can, with so little RAM that the blocks of one may displace those of another.
#[test]
fn readers_that_share_a_small_tier_do_not_throw_out_what_others_will_read() {
    for (ram, threads) in [("16MiB", 8), ("4MiB", 1), ("4MiB", 8)] {
        let statements = format!(
            "
import threading
def part(first, count):
    for block in range(first, first + count): os.pread(fd, BLOCK, block * BLOCK)
count = 256 // {threads}
threads = [threading.Thread(target=part, args=(n * count, count)) for n in range({threads})]
for thread in threads: thread.start()
for thread in threads: thread.join()"
        );
        let store_emulate = Some("{ bandwidth = \"400MB/s\", latency = \"4ms\" }");
        let setup = Setup { ram, store_emulate, ..SLOW };
        let Some(status) = program(&setup, &statements) else { return };
        let [guessed, hits] = ["guessed", "guess_hits"].map(|name| status.count(name));
        assert!(guessed - hits <= 16 + 256 / 20, "{threads} threads, {ram}: {}", status.text);
    }
}

#[test]
fn records_are_read_from_ram_from_the_last_to_the_first() {
    let statements = "
for record in range(59, -1, -1):
    for at in range(0, 1000000, 50000):
        read(record * 1000000 + at, 50000)
    pace()";
    let Some(status) = program(&SLOW, statements) else { return };
    assert_foreseen(&status, 60 * 1_000_000 / (256 << 10), 3 * 4);
}

#[test]
fn rows_of_a_tile_are_read_from_ram() {
    let statements = "
for row in range(20):
    for piece in range(6):
        read((row * 12 + piece * 2) * BLOCK, 5000)
        pace()";
    let Some(status) = program(&SLOW, statements) else { return };
    assert_foreseen(&status, 120, 9);
}

#[test]
fn reads_at_random_bring_up_nothing() {
    let statements = "
random.seed(4)
os.truncate('file', 16 << 30)
fd = os.open('file', os.O_RDONLY)
for turn in range(300):
    at = random.randrange(64 << 20, (16 << 30) - 4096)
    assert os.pread(fd, 4096, at) == bytes(4096)";
    let Some(status) = program(&SLOW, statements) else { return };
    assert_eq!(status.count("guessed"), 0, "{}", status.text);
}

#[test]
fn short_runs_at_random_places_cost_a_twentieth_at_most() {
    let statements = "
random.seed(5)
os.truncate('file', 16 << 30)
fd = os.open('file', os.O_RDONLY)
for turn in range(150):
    at = random.randrange(64 << 20, 15 << 30)
    for block in range(random.randrange(2, 6)):
        assert os.pread(fd, 4096, at + block * BLOCK) == bytes(4096)
print(turn)";
    let Some(status) = program(&SLOW, statements) else { return };
    // At most five blocks each; those of which nothing is known in the end wait still.
    let [guessed, hits] = ["guessed", "guess_hits"].map(|name| status.count(name));
    assert!(guessed <= hits + 16 + 150 * 5 / 20, "{}", status.text);
}

/// Reads the blocks of the file in disorder, another one for each seed, and prints what was guessed
/// and hit.
fn shuffled(seed: u32) -> String {
    format!(
        "{PRELUDE}
random.seed({seed})
blocks = list(range(200))
random.shuffle(blocks)
for block in blocks:
    read(block * BLOCK, BLOCK)
    if 'PACED' in os.environ: pace()
print(counts()['guessed'], counts()['guess_hits'])"
    )
}

#[test]
fn the_order_of_an_earlier_run_is_followed_until_a_program_does_something_else() {
    if !works(&["python3", "-c", "pass"]) {
        return skip("python3 is missing");
    }
    let follow = |seed: u32, paced: bool| {
        let site = Site::new(&SLOW);
        let content: Vec<u8> = (0..8_u64 << 20).flat_map(u64::to_le_bytes).collect();
        std::fs::write(site.store.join("file"), content).unwrap();
        let script = site.out.join("script.py");
        let calls = site.out.join("calls.csv");
        let mut said = String::new();
        for (option, seed, paced) in [("--record", 1, false), ("--follow", seed, paced)] {
            std::fs::write(&script, shuffled(seed)).unwrap();
            let mut command = site.forebay(&["run", "--config"]);
            command.arg(&site.config).arg(option).arg(&calls).args(["--", "python3"]);
            command.arg(&script).current_dir(&site.store);
            if paced {
                command.env("PACED", "1");
            }
            said = site.end(command).expect(0).stdout;
        }
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        (numbers[0], numbers[1])
    };
    let (guessed, hits) = follow(1, true);
    assert!(hits >= 190 && guessed <= 200, "{guessed} guessed, {hits} hit");
    let (guessed, hits) = follow(2, false);
    assert!(guessed <= hits + 40, "in another order: {guessed} guessed, {hits} hit");
}

/// `forebay run` with these options, in the store's directory.
fn run(site: &Site, options: &[&str], command: &[&str]) -> Command {
    let mut run = site.forebay(&["run", "--config"]);
    run.arg(&site.config).args(options).arg("--").args(command).current_dir(&site.store);
    run
}

/// A command that reads and says nothing; `cat` says that it reads a sequence, and is not followed.
fn read(file: &str) -> [&str; 5] {
    ["dd", file, "of=/dev/null", "bs=64k", "status=none"]
}

const HEADER: &str = "rank,operation,file,offset,bytes,seconds\n";

#[test]
fn what_is_no_recording_is_not_followed() {
    let site = Site::new(&TINY);
    let calls = site.out.join("calls.csv");
    let path = calls.to_str().unwrap();
    let refused = |path: &str, wanted: &str| {
        let ran = site.end(run(&site, &["--follow", path], &["true"])).expect(125);
        let named = format!("--follow: {path}: {wanted}");
        assert!(ran.stderr.contains(&named) && !ran.stderr.contains("line 1"), "{ran:?}");
    };
    refused(path, "No such file");
    std::fs::write(&calls, "").unwrap();
    refused(path, "is empty; give a file that");
    std::fs::write(&calls, "a,b\n").unwrap();
    refused(path, "is no recording; give a file that");
    refused("/dev/zero", "is a device or a pipe and not a regular file; give a file that");
    refused(site.out.to_str().unwrap(), "is a directory and not a regular file; give a file that");
}

#[test]
fn a_recording_of_which_nothing_is_followed_is_named() {
    let site = Site::new(&SLOW);
    let calls = site.out.join("calls.csv");
    let path = calls.to_str().unwrap();
    let said = |site: &Site, text: &str| {
        std::fs::write(&calls, text).unwrap();
        std::fs::write(site.store.join("a,b"), vec![1; 1 << 20]).unwrap();
        site.end(run(site, &["--follow", path], &read("if=a,b"))).expect(0).stderr
    };
    let of = |file: &str| format!("{HEADER}0,read,{file},0,1048576,0.1\n");
    let met = of(&site.store.canonicalize().unwrap().join("a_b").display().to_string());
    assert!(said(&site, HEADER).contains(&format!("--follow: {path}: has no reads")));
    let unmet = format!("--follow: {path}: nothing was read in its order");
    assert!(said(&site, &of("/other")).contains(&unmet));
    // The recorder writes `_` for what would end a field.
    let stderr = said(&site, &met);
    assert!(!stderr.contains("--follow"), "{stderr}");
    let config = std::fs::read_to_string(&site.config).unwrap();
    std::fs::write(&site.config, with_prefetch_off(&config)).unwrap();
    let stderr = said(&site, &met);
    assert!(stderr.contains(&format!("--follow: {path}: is not followed, as `prefetch = false`")));
    assert!(!stderr.contains(&unmet), "{stderr}");
}

fn with_prefetch_off(config: &str) -> String {
    match config.contains("[placement]\n") {
        true => config.replace("[placement]\n", "[placement]\nprefetch = false\n"),
        false => format!("{config}\n[placement]\nprefetch = false\n"),
    }
}

#[test]
fn a_recording_stays_until_a_command_has_run() {
    let site = Site::new(&TINY);
    std::fs::write(site.store.join("file"), vec![1; 1 << 20]).unwrap();
    let [calls, new] = ["calls.csv", "new.csv"].map(|name| site.out.join(name));
    let (path, new_path) = (calls.to_str().unwrap(), new.to_str().unwrap());
    let old = format!("{HEADER}0,read,/old,0,1,0.1\n");
    std::fs::write(&calls, &old).unwrap();
    let unchanged = || assert_eq!(std::fs::read_to_string(&calls).unwrap(), old);
    site.end(run(&site, &["--record", path], &["/no/command"])).expect(127);
    unchanged();
    site.end(run(&site, &["--record", path, "--follow", "/no/file"], &["true"])).expect(125);
    unchanged();
    site.end(run(&site, &["--record", new_path], &["/no/command"])).expect(127);
    assert!(!new.exists(), "an empty recording is left");
    // The orders are read before the calls are written to the same file, which was longer.
    std::fs::write(&calls, old.clone() + &"0,compute,,,,1.0\n".repeat(100_000)).unwrap();
    let both = ["--follow", path, "--record", path];
    let ran = site.end(run(&site, &both, &read("if=file"))).expect(0);
    assert!(ran.stderr.contains("nothing was read in its order"), "{ran:?}");
    let text = std::fs::read_to_string(&calls).unwrap();
    assert!(text.starts_with(HEADER) && text.contains(",read,") && text.len() < 10_000, "{text}");
    let ran = site.end(run(&site, &both, &read("if=file"))).expect(0);
    assert!(!ran.stderr.contains("--follow"), "{ran:?}");
}
