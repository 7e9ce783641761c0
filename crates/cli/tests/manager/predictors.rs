//! Predictors that users supply: what programs read in an order that no pattern has is in RAM
//! before, and whatever a predictor does, programs and the node manager go on.

#![cfg(feature = "wasm")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{LAZY, Ran, Setup, Site, Status, Steps, TINY, have, skip, works};

const SLOW: Setup = Setup {
    ram: "64MiB",
    store_emulate: Some("{ bandwidth = \"200MB/s\", latency = \"1ms\" }"),
    ..TINY
};

/// Reads blocks of the file in an order that is given, and compares them. `pace` waits until a
/// block that was brought up ahead waits in RAM, so that the program is slower than the store
/// however busy the machine is.
const PRELUDE: &str = "
import os, random, subprocess, sys, time
BLOCK = 256 << 10
fd = os.open('file', os.O_RDONLY)
def counts():
    status = subprocess.run([os.environ['FOREBAY'], 'status'], stdout=subprocess.PIPE, text=True)
    words = [line.split() for line in status.stdout.splitlines()]
    return {word[1]: int(word[2]) for word in words if word[:1] == ['count']}
def read(block):
    data = os.pread(fd, BLOCK, block * BLOCK)
    words = range(block * BLOCK // 8, (block + 1) * BLOCK // 8)
    assert data == b''.join(word.to_bytes(8, 'little') for word in words), block
def pace():
    for turn in range(30):
        count = counts()
        if count['guessed'] > count['guess_hits'] + count['guess_misses']: return
        time.sleep(0.02)
def lehmer(count, block=1):
    for turn in range(count):
        yield block
        block = block * 71 % 251
def hilbert(side, distance):
    x = y = 0
    part = 1
    while part < side:
        right = 1 & distance // 2
        up = 1 & (distance ^ right)
        if not up:
            if right: x, y = part - 1 - x, part - 1 - y
            x, y = y, x
        x, y = x + part * right, y + part * up
        distance //= 4
        part *= 2
    return y * side + x
";

/// Reads what [`lehmer`] expects: all but the first come from RAM.
const LEHMER_READS: &str = "
for block in lehmer(150):
    read(block)
    pace()";

/// A module of the example whose text has this name.
fn example(name: &str) -> Vec<u8> {
    wat::parse_file(root().join("examples/predictors").join(name)).unwrap()
}

/// A module whose `forebay_read` does `body`.
fn module(fields: &str, body: &str) -> Vec<u8> {
    let text = format!(
        "(module (import \"forebay\" \"expect\" (func $expect (param i64 i64))) {fields}
            (func (export \"forebay_read\") (param $reader i32) (param $block i64)
                (param $blocks i64) (param $hit i32) {body}))"
    );
    wat::parse_str(text).unwrap()
}

/// A site with a file of 64 MiB that only the store has, and a rule that names `program` for it.
fn site(setup: &Setup, program: Option<&[u8]>) -> Option<Site> {
    if !works(&["python3", "-c", "pass"]) {
        skip("python3 is missing");
        return None;
    }
    let site = Site::new(setup);
    let content: Vec<u8> = (0..8_u64 << 20).flat_map(u64::to_le_bytes).collect();
    std::fs::write(site.store.join("file"), content).unwrap();
    if let Some(program) = program {
        std::fs::write(site.root().join("order.wasm"), program).unwrap();
        with_rule(&site, "order.wasm");
    }
    Some(site)
}

fn with_rule(site: &Site, predictor: &str) {
    let config = std::fs::read_to_string(&site.config).unwrap();
    let rule = format!("[[rule]]\nname = \"own\"\npath = \"file*\"\npredictor = \"{predictor}\"\n");
    std::fs::write(&site.config, config + &rule).unwrap();
}

fn script(site: &Site, statements: &str) -> &'static str {
    std::fs::write(site.out.join("script.py"), format!("{PRELUDE}{statements}")).unwrap();
    "python3 $OUT/script.py"
}

/// Runs statements where the file's predictor is `program`.
fn program(setup: &Setup, program: Option<&[u8]>, statements: &str) -> Option<(Site, Status)> {
    let site = site(setup, program)?;
    let (ran, status) = site.run_buffered(script(&site, statements));
    ran.expect(0);
    Some((site, status))
}

fn counts(status: &Status) -> (u64, u64) {
    (status.count("guessed"), status.count("guess_hits"))
}

#[test]
fn an_order_that_no_pattern_has_is_read_from_ram_with_its_predictor_and_not_without() {
    let lehmer = example("lehmer.wat");
    let Some((_, status)) = program(&SLOW, Some(&lehmer), LEHMER_READS) else { return };
    let (guessed, hits) = counts(&status);
    assert!(hits * 100 >= 149 * 95, "{guessed} guessed, {hits} hit: {}", status.text);
    assert!(guessed <= 149 + 16, "{guessed} guessed, {hits} hit");
    assert!(!status.text.contains("PREDICTOR"), "{}", status.text);
    let without = "
for block in lehmer(150): read(block)";
    let Some((_, status)) = program(&SLOW, None, without) else { return };
    let (guessed, hits) = counts(&status);
    assert!(hits <= 7, "{guessed} guessed, {hits} hit: {}", status.text);
}

#[test]
fn a_file_larger_than_ram_makes_room_for_what_its_predictor_expects() {
    let small = Setup { ram: "16MiB", ..SLOW };
    let lehmer = example("lehmer.wat");
    let Some((_, status)) = program(&small, Some(&lehmer), LEHMER_READS) else { return };
    let (guessed, hits) = counts(&status);
    assert!(hits * 100 >= 149 * 95, "{guessed} guessed, {hits} hit: {}", status.text);
}

#[test]
fn each_thread_of_two_processes_is_told_apart() {
    // Each reader has its own distance: the first one goes up by 3, the second one down.
    let apart = module(
        "",
        "(local $next i64)
         (local.set $next (select (i64.add (local.get $block) (i64.const 3))
             (i64.sub (local.get $block) (i64.const 3)) (i32.eqz (local.get $reader))))
         (if (i64.lt_u (local.get $next) (local.get $blocks))
             (then (call $expect (local.get $next) (i64.const 1))))",
    );
    let statements = "
read(0)
child = os.fork()
if child == 0: time.sleep(0.2)
for turn in range(1, 40):
    read(3 * turn if child else 256 - 3 * turn)
    time.sleep(0.02)
if child: assert os.waitpid(child, 0)[1] == 0
else: os._exit(0)";
    let Some((_, status)) = program(&SLOW, Some(&apart), statements) else { return };
    let (guessed, hits) = counts(&status);
    // A machine that is busy brings some up too late.
    assert!(guessed >= 60 && hits >= 40, "{guessed} guessed, {hits} hit: {}", status.text);
    assert!(guessed <= 80, "{guessed} guessed, {hits} hit");
}

#[test]
fn one_that_is_always_wrong_costs_a_twentieth_and_4_mib() {
    let wrong = module("", "(call $expect (i64.const 128) (i64.const 128))");
    let statements = "
for block in range(120):
    read(block)
time.sleep(1)";
    let Some((_, status)) = program(&SLOW, Some(&wrong), statements) else { return };
    let (guessed, hits) = counts(&status);
    assert!(hits == 0 && (16..=16 + 120 / 20).contains(&guessed), "{guessed} guessed, {hits} hit");
}

/// What evil programs do, and how `forebay status` calls it.
const EVIL: &[(&str, &str, &str)] = &[
    ("", "(loop (br 0))", "ran for more than 100000 instructions"),
    ("(func $f (call $f))", "(call $f)", "called its functions more than 256 deep"),
    ("(memory 1)", "(loop (drop (memory.grow (i32.const 1))) (br 0))", "100000 instructions"),
    ("", "unreachable", "trapped"),
    ("", "(call $expect (i64.const 0x8000000000000000) (i64.const 1))", "cannot be read"),
    ("", "(call $expect (local.get $blocks) (i64.const 1))", "cannot be read"),
    ("", "(call $expect (i64.const 0) (i64.const 5000000))", "cannot be read"),
];

#[test]
fn one_that_fails_is_switched_off_for_its_file_and_patterns_count_again() {
    for &(fields, body, said) in EVIL {
        let evil = module(fields, body);
        let statements = "
for block in range(100):
    read(block)
    if block > 4: pace()";
        let Some((site, status)) = program(&SLOW, Some(&evil), statements) else { return };
        let (guessed, hits) = counts(&status);
        assert!(hits >= 80, "{body}: {guessed} guessed, {hits} hit: {}", status.text);
        let line = status.text.lines().find(|line| line.contains("PREDICTOR"));
        let line = line.unwrap_or_else(|| panic!("{body}: {}", status.text));
        let (file, program) = (site.store.join("file"), site.root().join("order.wasm"));
        for part in [said, file.to_str().unwrap(), program.file_name().unwrap().to_str().unwrap()] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn one_that_fails_hurts_no_other_file_and_its_fault_is_in_json_and_log() {
    // Of a file of 100 blocks and less it traps.
    let picky = module(
        "",
        "(if (i64.le_u (local.get $blocks) (i64.const 100)) (then unreachable))
         (if (i64.lt_u (i64.add (local.get $block) (i64.const 7)) (local.get $blocks))
             (then (call $expect (i64.add (local.get $block) (i64.const 7)) (i64.const 1))))",
    );
    let Some(site) = site(&SLOW, Some(&picky)) else { return };
    std::fs::write(site.store.join("file-small"), vec![7; 20 << 20]).unwrap();
    let statements = "
small = os.open('file-small', os.O_RDONLY)
for turn in range(60):
    assert os.pread(small, 4096, turn * BLOCK) == bytes([7]) * 4096
    read(turn * 7 % 251)
    time.sleep(0.01)
status = [os.environ['FOREBAY'], 'status', '--json']
print(subprocess.run(status, stdout=subprocess.PIPE, text=True).stdout)";
    let (ran, _) = site.run_buffered(script(&site, statements));
    let pools: Value = serde_json::from_str(&ran.expect(0).stdout).unwrap();
    let off = pools[0]["predictors_off"].as_array().unwrap();
    assert_eq!(off.len(), 1, "{pools}");
    let path = site.store.join("file-small");
    assert_eq!(off[0]["path"], path.to_str().unwrap());
    assert_eq!(off[0]["fault"], "trapped");
    assert!(off[0]["predictor"].as_str().unwrap().ends_with("/order.wasm"));
    assert!(off[0]["rule"].as_str().unwrap().contains("forebay.toml:"));
    assert!(pools[0]["counters"]["guess_hits"].as_u64().unwrap() >= 30, "{pools}");
    let said = format!("{}: its predictor ", path.display());
    let log = site.log();
    let line = log.lines().find(|line| line.contains(&said)).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("order.wasm is switched off, as it trapped: "), "{line}");
}

#[test]
fn a_manager_that_is_killed_is_followed_by_one_that_asks_again() {
    let statements = "
def manager():
    status = subprocess.run([os.environ['FOREBAY'], 'status'], stdout=subprocess.PIPE, text=True)
    words = status.stdout.split('node manager ')[1:]
    return int(words[0].split()[0]) if words else 0
order = list(lehmer(150))
for block in order[:40]: read(block); pace()
killed = manager()
os.kill(killed, 9)
for turn in range(600):
    if manager() not in (0, killed): break
    time.sleep(0.05)
before = counts()['guess_hits']
for block in order[40:]: read(block); pace()
assert counts()['guess_hits'] >= before + 90, (before, counts())";
    let lehmer = example("lehmer.wat");
    let Some((_, status)) = program(&SLOW, Some(&lehmer), statements) else { return };
    assert!(!status.text.contains("PREDICTOR"), "{}", status.text);
}

#[test]
fn a_manager_that_dies_with_an_answer_in_its_hand_loses_only_that() {
    let lehmer = example("lehmer.wat");
    let Some(site) = site(&SLOW, Some(&lehmer)) else { return };
    let once = site.out.join("killed");
    let words = [
        ("FOREBAY_CRASH", "predict.asked:20"),
        ("FOREBAY_CRASH_IN", "node"),
        ("FOREBAY_CRASH_ONCE", once.to_str().unwrap()),
    ];
    let (ran, status) = site.run_buffered_with(&words, script(&site, LEHMER_READS));
    ran.expect(0);
    assert!(once.exists(), "it was not killed");
    let (guessed, hits) = counts(&status);
    assert!(hits >= 100, "{guessed} guessed, {hits} hit: {}", status.text);
}

/// `forebay run` of nothing.
fn run(site: &Site) -> Ran {
    let mut run = site.forebay(&["run", "--config"]);
    run.arg(&site.config).args(["--", "true"]);
    site.end(run)
}

#[test]
fn what_is_no_predictor_is_an_error_of_the_configuration_that_names_file_and_remedy() {
    let site = Site::new(&TINY);
    let plain = std::fs::read_to_string(&site.config).unwrap();
    let path = site.root().join("p.wasm");
    let refused = |wanted: &str| {
        std::fs::write(&site.config, &plain).unwrap();
        with_rule(&site, "p.wasm");
        let ran = run(&site).expect(125);
        let line = ran.stderr.lines().find(|line| line.contains("p.wasm")).unwrap_or_default();
        assert!(line.contains("rule[0].predictor: ") && line.contains(wanted), "{ran:?}");
        assert!(line.contains("forebay.toml:") && line.contains(path.to_str().unwrap()), "{line}");
    };
    refused("give an existing file");
    std::fs::create_dir(&path).unwrap();
    refused("is no regular file");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    refused("is empty");
    std::fs::write(&path, "(module)").unwrap();
    refused("is no WebAssembly module; compile it for wasm32");
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    refused("is larger than 64 KiB");
    std::fs::write(&path, wat::parse_str("(module)").unwrap()).unwrap();
    refused("does not export forebay_read");
    let import = "(module (import \"env\" \"clock\" (func)))";
    std::fs::write(&path, wat::parse_str(import).unwrap()).unwrap();
    refused("imports env.clock, which there is not");
    std::fs::write(&path, module("(memory 64)", "")).unwrap();
    refused("cannot be begun");
    std::fs::write(&path, module("", "")).unwrap();
    run(&site).expect(0);
}

#[test]
fn a_schema_in_xml_names_predictors_relative_to_itself_and_explain_shows_them() {
    let site = Site::new(&TINY);
    let folder = site.root().join("rules");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("p.wasm"), module("", "")).unwrap();
    let schema = folder.join("schema.xml");
    let text = "<buffering-schema version='1'><rule><match path='*.dat'/>\
        <set predictor='p.wasm'/></rule></buffering-schema>";
    std::fs::write(&schema, text).unwrap();
    let mut run = site.forebay(&["run", "--schema"]);
    run.arg(&schema).arg("--config").arg(&site.config);
    run.args(["--", "bash", "-c", "echo a > x.dat; \"$FOREBAY\" explain x.dat"]);
    run.current_dir(&site.store);
    let ran = site.end(run).expect(0);
    let wanted = format!("holds: predictor {}", folder.join("p.wasm").display());
    let words: Vec<_> = ran.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains(&wanted), "{ran:?}");
}

const HEADER: &str = "rank,operation,file,offset,bytes,seconds\n";

/// A line of a recording: a rank reads the begin of a block.
fn read_line(rank: u32, block: u64) -> String {
    format!("{rank},read,/file,{},4096,0.1\n", block * (256 << 10))
}

fn check(site: &Site, program: &Path, calls: &Path) -> Ran {
    let mut check = site.forebay(&["predictor", "check"]);
    check.arg(program).arg("--trace").arg(calls);
    site.end(check)
}

#[test]
fn a_predictor_is_tried_on_a_recording() {
    let Some(site) = site(&SLOW, None) else { return };
    let [program, calls] = ["order.wasm", "calls.csv"].map(|name| site.out.join(name));
    std::fs::write(&program, example("lehmer.wat")).unwrap();
    let line = "for block in lehmer(150): read(block)";
    std::fs::write(site.out.join("script.py"), format!("{PRELUDE}{line}")).unwrap();
    let mut record = site.forebay(&["run", "--config"]);
    record.arg(&site.config).arg("--record").arg(&calls).args(["--", "python3"]);
    record.arg(site.out.join("script.py")).current_dir(&site.store);
    site.end(record).expect(0);
    let ran = check(&site, &program, &calls).expect(0);
    let said = format!(
        "{}: 150 blocks were read, 149 of them foreseen (99.3 %), ",
        site.store.join("file").display()
    );
    assert!(ran.stdout.contains(&said), "{ran:?}");
    std::fs::write(&program, module("", "unreachable")).unwrap();
    let ran = check(&site, &program, &calls).expect(125);
    assert!(ran.stderr.contains("order.wasm: trapped"), "{ran:?}");
    std::fs::write(&program, "x").unwrap();
    let ran = check(&site, &program, &calls).expect(125);
    assert!(ran.stderr.contains("is no WebAssembly module"), "{ran:?}");
    std::fs::write(&program, example("lehmer.wat")).unwrap();
    let ran = check(&site, &program, &program).expect(125);
    assert!(ran.stderr.contains("is no recording"), "{ran:?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles a source file.
fn compiled(site: &Site, compiler: &[&str], source: &Path) -> PathBuf {
    let program = site.out.join(source.file_name().unwrap()).with_extension("wasm");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).arg("-o").arg(&program).arg(source).current_dir(root());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// The first block of the page's text in a language.
fn of_page(language: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/predictors.md")).unwrap();
    let block = page.split(&format!("```{language}\n")).nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

#[test]
fn the_rule_of_the_page_is_one() {
    let site = Site::new(&TINY);
    std::fs::write(site.root().join("lehmer.wasm"), example("lehmer.wat")).unwrap();
    let config = std::fs::read_to_string(&site.config).unwrap();
    let page = of_page("toml");
    let rule = &page[page.find("[[rule]]").unwrap()..];
    std::fs::write(&site.config, config + rule).unwrap();
    let (ran, _) = site.run_buffered("echo a > x.records && $FOREBAY explain x.records");
    let said = ran.expect(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let program = site.root().canonicalize().unwrap().join("lehmer.wasm");
    assert!(said.contains(&format!("holds: predictor {}", program.display())), "{said}");
}

#[test]
fn the_example_in_c_foresees_the_curve_of_hilbert_and_that_of_the_page_both_ends() {
    let site = Site::new(&TINY);
    let clang = ["clang", "--target=wasm32", "-Oz", "-nostdlib", "-Wall", "-Werror"];
    let clang = [&clang[..], &["-Wl,--no-entry", "-Wl,-s", "-Iinclude"]].concat();
    let curve = root().join("examples/predictors/hilbert.c");
    let mut probe = [&clang[..], &["-o", "/dev/null"]].concat();
    probe.retain(|word| *word != "-Iinclude");
    let include = format!("-I{}", root().join("include").display());
    probe.extend([include.as_str(), curve.to_str().unwrap()]);
    if !have(&["clang"]) || !works(&probe) {
        return skip("clang cannot compile for wasm32");
    }
    let ends = site.out.join("ends.c");
    std::fs::write(&ends, of_page("c")).unwrap();
    let ends = compiled(&site, &clang, &ends);
    let calls = site.out.join("ends.csv");
    let mut text = HEADER.to_owned();
    for turn in 0..100_u64 {
        text += &read_line(0, turn);
        text += &read_line(1, 299 - turn);
    }
    std::fs::write(&calls, text).unwrap();
    let ran = check(&site, &ends, &calls).expect(0);
    assert!(ran.stdout.contains("200 blocks were read, 198 of them foreseen"), "{ran:?}");
    let program = compiled(&site, &clang, &curve);
    let calls = site.out.join("calls.csv");
    let mut text = HEADER.to_owned();
    for distance in 0..1024_u64 {
        text += &read_line(0, hilbert(32, distance));
    }
    std::fs::write(&calls, text).unwrap();
    let ran = check(&site, &program, &calls).expect(0);
    assert!(ran.stdout.contains("1024 blocks were read, 1023 of them foreseen"), "{ran:?}");
}

/// The block of a grid at which Hilbert's curve is after so many steps.
fn hilbert(side: u64, mut distance: u64) -> u64 {
    let (mut x, mut y, mut part) = (0, 0, 1);
    while part < side {
        let right = 1 & (distance / 2);
        let up = 1 & (distance ^ right);
        if up == 0 {
            if right == 1 {
                (x, y) = (part - 1 - x, part - 1 - y);
            }
            (x, y) = (y, x);
        }
        (x, y) = (x + part * right, y + part * up);
        distance /= 4;
        part *= 2;
    }
    y * side + x
}

#[test]
fn the_example_in_rust_is_the_one_in_text() {
    let rustc = ["rustc", "--edition=2024", "--target", "wasm32-unknown-unknown"];
    let rustc = [&rustc[..], &["--crate-type", "cdylib", "-C", "opt-level=z"]].concat();
    let rustc = [&rustc[..], &["-C", "strip=symbols", "-C", "panic=abort"]].concat();
    let site = Site::new(&TINY);
    let target = ["rustc", "--print", "target-libdir", "--target", "wasm32-unknown-unknown"];
    let there = Command::new(target[0]).args(&target[1..]).output();
    let there =
        there.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir());
    if !there {
        return skip("rustc cannot compile for wasm32-unknown-unknown");
    }
    let program = compiled(&site, &rustc, &root().join("examples/predictors/lehmer.rs"));
    let calls = site.out.join("calls.csv");
    let mut text = HEADER.to_owned();
    let mut block = 1_u64;
    for _ in 0..250 {
        text += &read_line(0, block);
        block = block * 71 % 251;
    }
    std::fs::write(&calls, text).unwrap();
    let ran = check(&site, &program, &calls).expect(0);
    assert!(ran.stdout.contains("250 blocks were read, 249 of them foreseen"), "{ran:?}");
}

/// What is buffered comes to the store, also where a predictor of its rules is gone meanwhile.
#[test]
fn a_predictor_that_is_gone_keeps_nothing_from_the_store() {
    let site = Site::new(&LAZY);
    std::fs::write(site.root().join("order.wasm"), example("lehmer.wat")).unwrap();
    with_rule(&site, "order.wasm");
    let steps = Steps::of(&site, "echo text > file; step 1");
    steps.at("1");
    site.kill_all();
    steps.running.end();
    std::fs::write(site.root().join("order.wasm"), "no module").unwrap();
    let config = site.config.to_str().unwrap();
    let ran = site.end(site.forebay(&["run", "--config", config, "--", "true"])).expect(125);
    assert!(ran.stderr.contains("order.wasm"), "{ran:?}");
    let ran = site.end(site.forebay(&["stop", "--config", config])).expect(125);
    assert!(ran.stderr.contains("`forebay recover` drains"), "{ran:?}");
    site.end(site.forebay(&["recover", "--config", config])).expect(0);
    assert_eq!(std::fs::read_to_string(site.store.join("file")).unwrap(), "text\n");
}
