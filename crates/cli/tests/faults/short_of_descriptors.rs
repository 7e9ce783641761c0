//! A node manager that may open fewer files than are ahead of the store.

use crate::harness::{LAZY, LONG, Site, Steps, sees, wait_for};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a node manager, of which about 50 descriptors are its own, can just work with.
const LIMIT: usize = 160;
/// Of these a few are left at any time.
const LEFT: usize = 20;
const FILES: usize = 3000;

/// Lowers the limits of a command, and so of the node manager that it starts.
fn limit(command: &mut Command, soft: usize, hard: usize) {
    let limit = libc::rlimit { rlim_cur: soft as u64, rlim_max: hard as u64 };
    let lower = move || {
        // SAFETY: a struct that is read.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: an async-signal-safe call between fork and exec.
    unsafe { command.pre_exec(lower) };
}

fn start<'a>(site: &'a Site, script: &str, words: &[(&str, &str)]) -> Steps<'a> {
    let mut command = Steps::command(site, &[], script);
    command.envs(words.iter().copied());
    limit(&mut command, LIMIT, LIMIT);
    Steps::start(site, command)
}

/// Descriptors that a process has.
fn count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn assert_told_of_nothing(site: &Site) {
    let log = site.log();
    assert!(!log.contains("flush of") && !log.contains("Too many"), "{log}");
}

/// Files that the node manager finds by their names, and files whose descriptors are sent, as their
/// owner may not open them.
#[test]
fn many_more_files_than_descriptors_come_to_the_store() {
    for umask in ["022", "222"] {
        let site = Site::new(&LAZY);
        let write = format!("umask {umask}; for n in {{1..{FILES}}}; do echo $n > f$n; done");
        let change = "for n in f*7; do mv $n moved-$n; done; rm -f f*1; cat f*3 | cksum";
        let script = format!("step begin\n{write}\nstep written\n{change}\nstep changed\n");
        let steps = start(&site, &script, &[]);
        steps.at("begin");
        let manager = site.status().manager;
        let before = count(manager);
        steps.past("begin");
        for step in ["written", "changed"] {
            steps.at(step);
            let now = count(manager);
            assert!(now > before && now <= LIMIT - LEFT, "{umask} {step}: {before}, {now}");
            let status = site.status();
            assert!(!status.text.contains("FAILING"), "{umask} {step}: {}", status.text);
            steps.past(step);
        }
        let ran = steps.end();
        assert_told_of_nothing(&site);
        let plain = site.run_plainly(&format!("{write}\n{change}")).expect(0);
        assert_eq!(ran.stdout, plain.stdout, "{umask}");
        site.assert_same_files();
    }
}

/// Programs have them open, and write again and again.
#[test]
fn open_files_beyond_the_limit_are_written_again_and_again() {
    let site = Site::new(&LAZY);
    let write = r#"
import os
for turn in range(3):
    parts = []
    for part in range(4):
        child = os.fork()
        if child == 0:
            files = [open(f"f{part}-{n}", "a") for n in range(100)]
            for line in range(5):
                for n, file in enumerate(files):
                    file.write(f"{turn} {n} {line}\n"); file.flush()
            os._exit(0)
        parts.append(child)
    for child in parts: assert os.waitpid(child, 0)[1] == 0
"#;
    let write = format!("python3 - <<'P'\n{write}\nP");
    let steps = start(&site, &format!("{write}\nstep written\n"), &[]);
    steps.at("written");
    let now = count(site.status().manager);
    assert!(now <= LIMIT - LEFT, "{now}");
    steps.past("written");
    steps.end();
    assert_told_of_nothing(&site);
    site.run_plainly(&write).expect(0);
    site.assert_same_files();
}

/// The store takes nothing, so that no descriptor becomes free by a flush; others rename meanwhile.
#[test]
fn files_that_cannot_be_flushed_are_found_again_when_they_can() {
    let site = Site::new(&LAZY);
    let (fault, faults) = (site.out.join("fault"), site.root().join("faults"));
    fs::write(&faults, format!("store write fail ENOSPC while {}", fault.display())).unwrap();
    fs::write(&fault, "").unwrap();
    let script = "mkdir sub; for n in {1..600}; do echo $n > f$n; done; step written; step tried";
    let steps = start(&site, script, &[("FOREBAY_FAULTS", faults.to_str().unwrap())]);
    steps.at("written");
    let manager = site.status().manager;
    steps.past("written");
    steps.at("tried");
    // All have been tried that had to make room.
    let is_told = || site.status().text.contains("FAILING: No space left").then_some(());
    wait_for("a flush that fails", LONG, is_told);
    wait_for("room", LONG, || (count(manager) <= LIMIT - LEFT).then_some(()));
    let place = |n: usize| match n % 3 {
        0 => site.store.join(format!("sub/g{n}")),
        1 => site.store.join(format!("h{n}")),
        _ => site.store.join(format!("f{n}")),
    };
    for n in 1..=600 {
        fs::rename(site.store.join(format!("f{n}")), place(n)).unwrap();
    }
    fs::remove_file(&fault).unwrap();
    steps.past("tried");
    steps.end();
    for n in 1..=600 {
        assert_eq!(sees(&place(n)), format!("{n}\n"), "{}", site.log());
    }
    assert!(!site.log().contains("Too many"), "{}", site.log());
}

/// All descriptors are gone from one moment to the next: those of files that can be found without
/// make room.
#[test]
fn a_node_manager_that_gets_no_descriptor_closes_some_and_goes_on() {
    let site = Site::new(&LAZY);
    let script = "step begin; for n in {1..400}; do echo $n > f$n; done; step written\n\
        for n in {401..800}; do echo $n > f$n; done; cat f*9 | cksum\n";
    let steps = Steps::of(&site, script);
    steps.at("begin");
    let manager = site.status().manager;
    let before = count(manager);
    steps.past("begin");
    steps.at("written");
    wait_for("descriptors of all files", LONG, || (count(manager) > 400).then_some(()));
    // Fewer than it has: it is as if others had used up what all have.
    let most = (before + 12).to_string();
    let mut lower = Command::new("prlimit");
    lower.args(["--pid", &manager.to_string(), &format!("--nofile={most}:{most}")]);
    assert!(lower.status().unwrap().success());
    steps.past("written");
    let ran = steps.end();
    assert_told_of_nothing(&site);
    let write = "for n in {1..800}; do echo $n > f$n; done; cat f*9 | cksum";
    assert_eq!(ran.stdout, site.run_plainly(write).expect(0).stdout);
    site.assert_same_files();
}

#[test]
fn a_program_with_few_descriptors_is_buffered_or_told_what_is_needed() {
    let site = Site::new(&LAZY);
    let script = "for n in {1..100}; do echo $n > f$n; done; ulimit -n; cat f9";
    let run = |soft, hard| {
        let mut command = site.buffered(&["bash", "-c", script]);
        limit(&mut command, soft, hard);
        site.end(command)
    };
    let ran = run(64, 64);
    assert_eq!(ran.code, 125, "{ran:?}");
    let said = "may open only 64 files; raise the hard limit (ulimit -Hn) to at least 128";
    assert!(ran.stderr.contains(said), "{ran:?}");
    assert!(!site.store.join("f1").exists());
    let ran = run(64, 4096).expect(0);
    assert_eq!(ran.stdout, "64\n9\n");
    assert_eq!(run(128, 128).expect(0).stdout, "128\n9\n");
    assert_told_of_nothing(&site);
}
