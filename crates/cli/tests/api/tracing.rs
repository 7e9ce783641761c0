//! `forebay trace`: what programs mark and do is in a picture and in a file for Perfetto, whatever
//! becomes of them.

use crate::c_library::{install, link};
use crate::harness::{
    LAZY, LIMIT, Ran, SLOW_STORE, Site, TINY, USUAL, descendants, have, is_alive, kill,
    python_with, skip, wait_for, works,
};
use crate::{built, root};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

/// A site with a program; `None`, and loud, without a compiler.
fn site(setup: &crate::harness::Setup, source: &str) -> Option<Site> {
    let site = Site::new(setup);
    link(&site, source, &[]).then_some(site)
}

/// `forebay trace` of a command in the buffered directory.
fn tracing(site: &Site, options: &[&str], words: &[&str]) -> Command {
    let (config, out) = (site.config.to_str().unwrap(), site.root().join("traced"));
    let begin = ["trace", "--config", config, "--out", out.to_str().unwrap()];
    site.forebay(&[&begin, options, &["--"], words].concat())
}

fn program(site: &Site, name: &str) -> String {
    site.root().join(name).to_str().unwrap().to_owned()
}

fn file(site: &Site, name: &str) -> String {
    site.store.join(name).to_str().unwrap().to_owned()
}

/// An event of a file.
#[derive(Debug, Clone)]
struct Event {
    name: String,
    kind: String,
    at: f64,
    end: f64,
    args: Value,
}

/// What is in the two files, once it was seen that both are sound.
struct Traced {
    whole: Value,
    /// Those of each thread, in their order.
    threads: BTreeMap<(u64, u64), Vec<Event>>,
    counters: usize,
    picture: String,
}

impl Traced {
    /// Reads both files by other parsers than ours, too, and checks what holds of all.
    fn of(site: &Site) -> Traced {
        let out = site.root();
        if have(&["python3"]) {
            let script = "import json, sys, xml.dom.minidom as xml\n\
                 json.load(open(sys.argv[1] + '.json', encoding='utf-8'))\n\
                 assert xml.parse(sys.argv[1] + '.svg').documentElement.tagName == 'svg'";
            let prefix = out.join("traced");
            let read = Command::new("python3").args(["-c", script]).arg(prefix).output().unwrap();
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        }
        let whole: Value =
            serde_json::from_str(&fs::read_to_string(out.join("traced.json")).unwrap()).unwrap();
        let picture = fs::read_to_string(out.join("traced.svg")).unwrap();
        for outside in ["<script", "href", "url(", "<image"] {
            assert!(!picture.contains(outside), "{outside} in the picture");
        }
        let seconds = whole["otherData"]["seconds"].as_f64().unwrap();
        let mut threads: BTreeMap<_, Vec<Event>> = BTreeMap::new();
        let (mut counters, mut names) = (0, BTreeSet::new());
        for event in whole["traceEvents"].as_array().unwrap() {
            let number = |key: &str| event[key].as_u64().unwrap();
            match event["ph"].as_str().unwrap() {
                "X" => {
                    let at = event["ts"].as_f64().unwrap();
                    let of = threads.entry((number("pid"), number("tid"))).or_default();
                    of.push(Event {
                        name: event["name"].as_str().unwrap().to_owned(),
                        kind: event["cat"].as_str().unwrap().to_owned(),
                        at,
                        end: at + event["dur"].as_f64().unwrap(),
                        args: event["args"].clone(),
                    });
                }
                "C" => counters += 1,
                "M" => drop(names.insert((number("pid"), number("tid")))),
                other => panic!("an event of kind {other}"),
            }
        }
        for (thread, events) in &threads {
            assert!(names.contains(thread), "{thread:?} has no name");
            let mut around: Vec<&Event> = Vec::new();
            let mut before = 0.0;
            for event in events {
                assert!(event.at >= before && event.at <= event.end, "{event:?}");
                before = event.at;
                around.retain(|outer| outer.end > event.at + 1e-6);
                let inside = around.iter().all(|outer| event.end <= outer.end + 0.002);
                assert!(inside, "{event:?} crosses one of {around:?}");
                if ["io", "phase", "compute"].contains(&event.kind.as_str()) {
                    assert!(event.end <= seconds * 1e6 + 1.0, "{event:?} of {seconds} s");
                }
                around.push(event);
            }
        }
        assert!(counters > 0, "the tiers have no levels");
        Traced { whole, threads, counters, picture }
    }

    fn all(&self) -> impl Iterator<Item = &Event> {
        self.threads.values().flatten()
    }

    fn count(&self, kind: &str, name: &str) -> usize {
        self.all().filter(|event| event.kind == kind && event.name == name).count()
    }

    fn bytes(&self, name: &str) -> u64 {
        let named = self.all().filter(|event| event.kind == "io" && event.name == name);
        named.map(|event| event.args["bytes"].as_u64().unwrap()).sum()
    }
}

fn said(ran: &Ran) -> &str {
    assert!(ran.stderr.contains("forebay: traced "), "{}", ran.stderr);
    &ran.stderr
}

#[test]
fn threads_and_processes_are_traced_with_their_marks() {
    let Some(site) = site(&USUAL, "trace.c") else { return };
    let words = [&program(&site, "trace"), "marks", site.store.to_str().unwrap()];
    let ran = site.end(tracing(&site, &[], &words)).expect(0);
    assert_eq!(ran.stdout, "done\ndone\n", "one is what a child executes");
    said(&ran);
    let traced = Traced::of(&site);
    let of_program = |(process, _): &&(u64, u64)| {
        let io = |event: &Event| event.kind == "io";
        traced.threads.iter().any(|((other, _), all)| other == process && all.iter().any(io))
    };
    let processes: BTreeSet<_> =
        traced.threads.keys().filter(of_program).map(|key| key.0).collect();
    // The first process does I/O in three threads and marks in a fourth; each child is one.
    assert_eq!(processes.len(), 3, "{:?}", traced.threads.keys());
    let marks = [("forward", 6), ("backward", 6), ("inner", 15), ("forked", 2), ("executed", 1)];
    for (name, count) in marks {
        assert_eq!(traced.count("phase", name), count, "{name}");
        assert!(name == "inner" || traced.picture.contains(&format!("\n{name}\n")), "{name}");
    }
    // One was ended by an exec, one by the end of its process.
    assert_eq!(traced.count("phase", "before the exec"), 2);
    assert_eq!(traced.count("phase", "children"), 1);
    assert_eq!((traced.bytes("write"), traced.bytes("read")), (15 << 20, 15 << 20));
    for call in ["open", "close", "sync"] {
        assert_eq!(traced.count("io", call), 15, "{call}");
    }
    let children = traced.all().find(|event| event.name == "children").unwrap().clone();
    let forked: Vec<_> = traced.all().filter(|event| event.name == "forked").collect();
    assert!(forked.iter().all(|event| children.at < event.at && event.end < children.end));
    // A step computes 25 ms.
    assert!(forked.iter().all(|event| event.end - event.at > 25_000.0), "{forked:?}");
    assert!(traced.counters >= 4);
    assert_eq!(traced.whole["otherData"]["left_out"], Value::Null);
}

#[test]
fn marks_of_other_languages_are_traced() {
    let site = Site::new(&USUAL);
    let flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"];
    if have(&["c++"]) && link(&site, "trace_phases.cc", &flags) {
        let words = [&program(&site, "trace_phases"), &file(&site, "of-c++")[..]];
        said(&site.end(tracing(&site, &[], &words)).expect(0));
        let traced = Traced::of(&site);
        let counts = ["outer", "inner"].map(|name| traced.count("phase", name));
        assert_eq!((counts, traced.bytes("write")), ([3, 3], 9));
    }
    let site = Site::new(&USUAL);
    let Some(python) = python_with("ctypes") else { return };
    let script = "import sys\n\
         from forebay import trace\n\
         @trace.phase('decorated')\n\
         def f(): pass\n\
         with trace.phase('outer <ö>'):\n\
         \x20   f(); open(sys.argv[1], 'wb').write(b'abc')\n\
         trace.begin('x' * 200); trace.end()\n\
         print(trace.is_on())";
    let run = |mut command: Command| {
        command.env("PYTHONPATH", root().join("python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        site.end(command).expect(0).stdout
    };
    let words = [&python, "-c", script, &file(&site, "of-python")[..]];
    assert_eq!(run(tracing(&site, &[], &words)), "True\n");
    let traced = Traced::of(&site);
    for name in ["decorated", "outer <ö>", &"x".repeat(63)] {
        assert_eq!(traced.count("phase", name), 1, "{name}");
    }
    // The same program without Forebay, with the library and without it.
    let library = install(&site).join("libforebay.so.0");
    for library in [library.to_str().unwrap(), "/no/such/library"] {
        let mut command = site.command(&site.plain, &python);
        command.args(["-c", script, "file"]).env("FOREBAY_LIBRARY", library);
        assert_eq!(run(command), "False\n");
    }
}

#[test]
fn marks_cost_nothing_where_nothing_is_traced() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    assert_eq!(site.run_plainly("$BIN/trace plain").expect(0).stdout, "done\n");
    let (ran, status) = site.run_buffered("$BIN/trace names $PWD/file");
    assert_eq!(ran.expect(0).stdout, "done\n");
    status.assert_live();
    assert!(built("libforebay_capi.so").is_file());
}

#[test]
fn no_name_breaks_a_file() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    // The command line is in both files, too.
    let hostile = "</text>&\"'\u{1}\u{fffe}<script>]]>";
    let script = format!("exec -a '{}' {}", "x", program(&site, "trace"));
    let script = format!("{script} names {} # {hostile}", file(&site, "names"));
    let ran = site.end(tracing(&site, &[], &["bash", "-c", &script])).expect(0);
    assert!(said(&ran).contains("1 ends of phases that had not begun"), "{}", ran.stderr);
    let traced = Traced::of(&site);
    for name in ["</text><script>alert(1)</script>", "\"},{\"ph\":\"X\"", "]]>&amp;<!--", ""] {
        assert_eq!(traced.count("phase", name), 1, "{name}");
    }
    assert_eq!(traced.count("phase", &"n".repeat(63)), 1);
    assert_eq!(traced.all().filter(|event| event.kind == "phase").count(), 7);
    assert!(traced.whole["otherData"]["command"].as_str().unwrap().contains("<script>]]>"));
}

#[test]
fn what_a_killed_process_has_noted_is_there() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let words = [&program(&site, "trace"), "killed", &file(&site, "file")[..]];
    let ran = site.end(tracing(&site, &[], &words)).expect(128 + Signal::KILL.as_raw());
    said(&ran);
    let traced = Traced::of(&site);
    assert_eq!((traced.count("phase", "doomed"), traced.bytes("write")), (1, 2 << 20));
    let doomed = traced.all().find(|event| event.name == "doomed").unwrap();
    // It ends with the last call, 50 ms later.
    assert!((50_000.0..5e6).contains(&(doomed.end - doomed.at)), "{doomed:?}");
}

#[test]
fn a_command_without_end_is_traced_meanwhile_and_after_an_interrupt() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let words = [&program(&site, "trace"), "endless", &file(&site, "file")[..]];
    let run = site.start(tracing(&site, &["--every", "1", "--verbose"], &words));
    let written = site.root().join("traced.json");
    wait_for("the first files", LIMIT, || written.exists().then_some(()));
    let first = wait_for("steps in them", LIMIT, || {
        let traced = Traced::of(&site);
        Some(traced.count("phase", "step")).filter(|&count| count > 2)
    });
    let run_pid = run.pid();
    assert!(is_alive(run_pid));
    wait_for("a line of the model", LIMIT, || run.stderr().contains("speed-up").then_some(()));
    // As a terminal does it: to all.
    descendants(run_pid).into_iter().for_each(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if pid == run_pid || name == "trace\n" {
            kill(pid, Signal::INT);
        }
    });
    let ran = run.end().expect(128 + Signal::INT.as_raw());
    said(&ran);
    assert!(Traced::of(&site).count("phase", "step") > first);
    let left: Vec<_> = fs::read_dir(site.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn a_trace_survives_its_node_manager() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let words = [&program(&site, "trace"), "endless", &file(&site, "file")[..]];
    let run = site.start(tracing(&site, &["--every", "1"], &words));
    let written = site.root().join("traced.json");
    wait_for("the first files", LIMIT, || written.exists().then_some(()));
    let first = site.status().manager;
    kill(first, Signal::KILL);
    let is_new = || Some(site.status().manager).filter(|&now| now != first && is_alive(now));
    wait_for("another node manager", LIMIT, is_new);
    let before = Traced::of(&site).count("phase", "step");
    wait_for("more steps", LIMIT, || {
        (Traced::of(&site).count("phase", "step") > before + 10).then_some(())
    });
    for pid in descendants(run.pid()) {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name == "trace\n" {
            kill(pid, Signal::TERM);
        }
    }
    said(&run.end().expect(128 + Signal::TERM.as_raw()));
    let traced = Traced::of(&site);
    assert!(traced.count("flush", "ram → store") > 0, "what the second one has moved is not there");
}

#[test]
fn ranks_are_named() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let script = "for rank in 0 1; do PMI_RANK=$rank $0 image $1/ & done; wait";
    let words = ["bash", "-c", script, &program(&site, "trace"), site.store.to_str().unwrap()];
    said(&site.end(tracing(&site, &[], &words)).expect(0));
    let traced = Traced::of(&site);
    let names = traced.whole["traceEvents"].as_array().unwrap().iter();
    let names = names.filter(|event| event["name"] == "process_name");
    let names: Vec<_> = names.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    for rank in ["trace (rank 0)", "trace (rank 1)"] {
        assert!(names.contains(&rank), "{names:?}");
    }
}

#[test]
fn many_small_calls_are_few_stretches() {
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let words = [&program(&site, "trace"), "many", &file(&site, "file")[..], "500000"];
    said(&site.end(tracing(&site, &[], &words)).expect(0));
    let traced = Traced::of(&site);
    assert_eq!((traced.bytes("write"), traced.bytes("read")), (32_000_000, 32_000_000));
    let calls = traced.all().filter_map(|event| event.args["calls"].as_u64()).sum::<u64>();
    // Beside an open and a close.
    assert_eq!(calls, 1_000_002);
    let count = traced.all().count();
    assert!(count < 20_000, "{count}");
}

#[test]
fn marks_and_traced_calls_make_no_system_calls() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let calls = site.out.join("calls");
    let marks = [&program(&site, "trace"), "cost", &file(&site, "file")[..], "1000"];
    let strace = ["strace", "-f", "-o", calls.to_str().unwrap()];
    site.end(tracing(&site, &[], &[&strace[..], &marks].concat())).expect(0);
    let text = fs::read_to_string(&calls).unwrap();
    let between = text.lines().skip_while(|line| !line.contains("first-marker")).skip(1);
    let between: Vec<_> = between.take_while(|line| !line.contains("second-marker")).collect();
    assert!(text.contains("second-marker") && between.is_empty(), "{between:#?}");
    // Reads and writes: no more of them with ten times the calls.
    let count = |turns: &str| {
        let many = [&program(&site, "trace"), "many", &file(&site, "many")[..], turns];
        site.end(tracing(&site, &[], &[&strace[..], &many].concat())).expect(0);
        fs::read_to_string(&calls).unwrap().lines().count()
    };
    let (few, many) = (count("1000"), count("10000"));
    assert!(many < few + 100, "{few} system calls with 2000 calls, {many} with 20000");
}

/// What a traced call takes beyond one that is not, by callgrind: in the profile of the tests.
#[test]
fn traced_calls_take_few_more_instructions() {
    const CALLGRIND: &str = "valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect=forebay_pool::ranks::asserted::* --collect-atstart=yes";
    let callgrind: Vec<&str> = CALLGRIND.split_whitespace().collect();
    if !works(&[&callgrind[..], &["true"]].concat()) {
        return skip("no valgrind, or it cannot run here: instructions are not counted");
    }
    let Some(site) = site(&LAZY, "trace.c") else { return };
    let counted = |is_traced: bool, what: &str, turns: &str| -> u64 {
        let words = [&program(&site, "trace"), what, &file(&site, "file")[..], turns];
        let words = [&callgrind[..], &words].concat();
        let command = if is_traced { tracing(&site, &[], &words) } else { site.buffered(&words) };
        let ran = site.end(command).expect(0);
        let line = ran.stderr.lines().find_map(|line| line.split("Collected : ").nth(1));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{ran:?}"))
    };
    let each = |is_traced, what| {
        (counted(is_traced, what, "3000") - counted(is_traced, what, "1000")) / 2000
    };
    // A write and a read of 64 bytes; a begin and an end.
    let (plain, traced) = (each(false, "many"), each(true, "many"));
    let (idle, mark) = (each(false, "cost"), each(true, "cost"));
    println!("write and read: {plain}, traced {traced}; begin and end: {idle}, traced {mark}");
    assert!(plain > 1000 && idle > 50, "nothing was counted");
    assert!(traced < plain + 1600, "{plain} instructions, traced {traced}");
    assert!(idle < 500 && mark < 2000, "{idle} instructions, traced {mark}");
}

#[test]
fn a_real_program_is_traced() {
    let Some(python) = python_with("sqlite3") else { return };
    let site = Site::new(&SLOW_STORE);
    let script = "import sqlite3, sys\n\
         db = sqlite3.connect(sys.argv[1])\n\
         db.execute('create table t (a, b)')\n\
         for turn in range(5):\n\
         \x20   db.executemany('insert into t values (?, ?)', [(i, 'x' * 500) for i in range(2000)])\n\
         \x20   db.commit()\n\
         print(db.execute('select count(*) from t').fetchone()[0])";
    let words = [&python, "-c", script, &file(&site, "base")[..]];
    let ran = site.end(tracing(&site, &[], &words)).expect(0);
    assert_eq!(ran.stdout, "10000\n");
    said(&ran);
    let traced = Traced::of(&site);
    assert!(traced.count("io", "sync") >= 5 && traced.bytes("write") > 5_000_000);
    assert!(traced.count("compute", "compute") > 0);
}

#[test]
fn the_model_says_what_it_knows() {
    let site = Site::new(&SLOW_STORE);
    if !link(&site, "trace.c", &[]) || !site.compile("phases.c", &[]) {
        return;
    }
    let words = [&program(&site, "phases"), site.store.to_str().unwrap(), "8", "4", "60"];
    let ran = site.end(tracing(&site, &[], &words)).expect(0);
    let line = said(&ran).lines().find(|line| line.contains("equation 3")).unwrap().to_owned();
    let traced = Traced::of(&site);
    let number = |key: &str| traced.whole["model"][key].as_f64().unwrap_or_else(|| panic!("{key}"));
    // 40.5 MiB were written, and 10 MiB of the index read; the store does 60 MB/s.
    assert_eq!(number("written_bytes"), f64::from(40 << 20) + f64::from(512 << 10));
    assert_eq!(number("store_write_bytes_per_s").round() as u64 / 30_000_000, 1, "{line}");
    assert!(number("iterations") >= 7.0 && number("kernel_s") > 0.4, "{line}");
    let (kernel, copy, io) = (number("kernel_s"), number("copy_s"), number("io_s"));
    let reference = kernel + number("direct_s");
    let expected = reference / (kernel + copy).max(io);
    assert!((number("expected_equation_3") / expected - 1.0).abs() < 1e-9);
    let loss = 1.0 + number("kernel_loss");
    let beyond = reference / (kernel * loss + copy).max(io * (1.0 - number("resident")));
    assert!((number("expected") / beyond - 1.0).abs() < 1e-9);
    let actual = reference / (kernel * loss + number("blocked_s"));
    assert!((number("actual") / actual - 1.0).abs() < 1e-9);
    assert!(number("actual") > 1.0, "{line}");
    // What is not known is not invented: the store of this one is as fast as it is.
    site.configure(&LAZY);
    let words = [&program(&site, "trace"), "many", &file(&site, "file")[..], "10"];
    let ran = site.end(tracing(&site, &[], &words)).expect(0);
    assert!(said(&ran).contains("no speed-up can be expected: "), "{}", ran.stderr);
    assert!(Traced::of(&site).whole["model"]["silent"].is_string());
}

#[test]
fn a_trace_and_a_recording_go_together() {
    let site = Site::new(&TINY);
    if !site.compile("phases.c", &[]) {
        return;
    }
    let [calls, moves] = ["calls.csv", "moves.csv"].map(|name| site.root().join(name));
    let options = ["--record", calls.to_str().unwrap(), "--trace", moves.to_str().unwrap()];
    let words = [&program(&site, "phases"), site.store.to_str().unwrap(), "8", "4", "20"];
    said(&site.end(tracing(&site, &options, &words)).expect(0));
    let calls = fs::read_to_string(calls).unwrap();
    assert_eq!(calls.matches(",write,").count(), 41, "{calls}");
    let moved = fs::read_to_string(moves).unwrap().matches(",flush,").count();
    let traced = Traced::of(&site);
    assert!(moved > 0 && traced.all().any(|event| event.kind == "flush"));
}

/// What becomes of the picture is not what becomes of the command.
#[test]
fn a_command_keeps_its_exit_status_when_its_trace_cannot_be_written() {
    let site = Site::new(&LAZY);
    let (config, folder) = (site.config.to_str().unwrap(), site.root().join("gone"));
    fs::create_dir(&folder).unwrap();
    let (out, script) = (folder.join("t"), format!("rm -r {}; exit 5", folder.display()));
    let words = ["trace", "--config", config, "--out", out.to_str().unwrap()];
    let ran = site.end(site.forebay(&[&words[..], &["--", "sh", "-c", &script]].concat()));
    let said = ran.expect(5).stderr;
    assert!(said.contains("the trace is not written: ") && said.contains("--out"), "{said}");
}

#[test]
fn bad_input_is_named() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let refused = |words: &[&str], said: &str| {
        let ran = site.end(site.forebay(words)).expect(125);
        assert!(ran.stderr.contains(said) && !ran.stderr.contains("traced"), "{}", ran.stderr);
    };
    let at = |out| ["trace", "--config", config, "--out", out, "--", "true"];
    refused(&at("/no/such/folder/t"), "--out: /no/such/folder/t.svg.part: ");
    fs::create_dir(site.root().join("t.json")).unwrap();
    let folder = site.root().join("t");
    refused(&at(folder.to_str().unwrap()), "is a directory; give another prefix");
    refused(&["trace", "--config", config, "--every", "0", "--", "true"], "--every");
    refused(&["trace", "--config", config], "COMMAND");
    // A command that cannot be started leaves nothing.
    let out = site.root().join("none");
    let words = ["trace", "--config", config, "--out", out.to_str().unwrap(), "--", "/no/command"];
    site.end(site.forebay(&words)).expect(127);
    assert!(!site.root().join("none.svg").exists() && !site.root().join("none.json").exists());
}

#[test]
fn the_example_of_the_page_runs() {
    let page = fs::read_to_string(root().join("docs/tracing.md")).unwrap();
    let block = |language: &str| {
        let begin = format!("```{language}\n");
        let at = page.find(&begin).unwrap() + begin.len();
        page[at..].split("```").next().unwrap().to_owned()
    };
    let site = Site::new(&USUAL);
    let source = site.root().join("example.c");
    fs::write(&source, block("c")).unwrap();
    if !link(&site, source.to_str().unwrap(), &[]) {
        return;
    }
    let ran = site.end(tracing(&site, &[], &[&program(&site, "example")[..]])).expect(0);
    said(&ran);
    let traced = Traced::of(&site);
    assert!(traced.count("phase", "forward") > 1 && traced.count("phase", "backward") > 1);
    assert!(traced.bytes("write") > 0 && traced.bytes("read") > 0);
}
