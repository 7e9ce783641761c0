//! `forebay demo --nodes`.

use crate::harness::{self, skip, wait_for};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The demo, with all that it makes below `folder`.
fn start(folder: &Path, nodes: &str) -> harness::Running {
    let mut command = Command::new(harness::FOREBAY);
    command.args(["demo", "--nodes", nodes, "--output"]).arg(folder.join("output"));
    let temporary = folder.join("temporary");
    fs::create_dir(&temporary).unwrap();
    command.env("TMPDIR", &temporary).env_remove("SLURM_JOB_ID");
    harness::Running::start(command, std::process::Stdio::null(), folder, 0)
}

fn assert_nothing_left(folder: &Path) {
    let temporary = folder.join("temporary");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{temporary:?} is not empty");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(temporary.to_str().unwrap()), "{mounts}");
    wait_for("the end of its processes", harness::LONG, || {
        let own = temporary.as_os_str().as_encoded_bytes();
        let is_there = fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.windows(own.len()).any(|part| part == own)
        });
        (!is_there).then_some(())
    });
}

#[test]
fn the_demo_of_several_nodes_shows_a_group_a_read_and_a_death() {
    let folder = tempfile::tempdir().unwrap();
    let ran = start(folder.path(), "3").end();
    if ran.stderr.contains("this user may make neither") || ran.stderr.contains("nodes need the") {
        skip(&ran.stderr);
        return;
    }
    let ran = ran.expect(0);
    for text in [
        "node 0 of 3 (n0)",
        "the same bytes",
        "on the store are 0 MiB of it yet",
        "n2, life 1: DOWN",
        "the store has all of the file",
    ] {
        assert!(ran.stdout.contains(text), "{text}: {ran:?}");
    }
    let picture = fs::read_to_string(folder.path().join("output/nodes.svg")).unwrap();
    for text in ["a group of 3", "n2 was killed", "ram → store", "16 MiB in"] {
        assert!(picture.contains(text), "{text}: {picture}");
    }
    assert_nothing_left(folder.path());
}

#[test]
fn an_interrupted_demo_of_several_nodes_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(folder.path(), "2");
    wait_for("its first words of the group", harness::LONG, || {
        (demo.stdout().contains("node 0 of 2") || !demo.is_running()).then_some(())
    });
    if !demo.is_running() {
        let ran = demo.end();
        assert!(ran.stderr.contains("nodes") || ran.stderr.contains("neither"), "{ran:?}");
        skip(&ran.stderr);
        return;
    }
    harness::kill(demo.pid(), Signal::INT);
    assert_eq!(demo.end().code, 128 + 2);
    assert_nothing_left(folder.path());
}

#[test]
fn a_demo_of_too_many_nodes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ran = start(folder.path(), "9").end().expect(2);
    assert!(ran.stderr.contains("2..=4"), "{ran:?}");
}
