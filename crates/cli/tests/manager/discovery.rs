//! Every pool of a user is found, wherever its node manager was started: from a login by ssh, a
//! batch step or cron the runtime folder is another one.

use crate::harness::{self, LAZY, LONG, Ran, Site, Steps, USUAL, is_report, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A runtime folder beside the site's.
fn folder(site: &Site, name: &str) -> PathBuf {
    let folder = site.root().join(name);
    if !folder.exists() {
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    folder
}

fn elsewhere(site: &Site, words: &[&str]) -> Command {
    let mut command = site.forebay(words);
    command.env("FOREBAY_RUNTIME_DIR", folder(site, "elsewhere"));
    command
}

fn from_elsewhere(site: &Site, words: &[&str]) -> Ran {
    site.end(elsewhere(site, words))
}

#[test]
fn a_manager_with_another_runtime_folder_is_seen_joined_and_stopped() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    // One that stays when the run has ended.
    let node = site.start(site.forebay(&["node", "--config", config]));
    wait_for("the node manager", LONG, || (site.status().manager != 0).then_some(()));
    let steps = Steps::of(&site, "echo text > file; step 1");
    steps.at("1");
    let manager = site.status().manager;
    assert_eq!(manager, node.pid());
    let said = from_elsewhere(&site, &["status"]).expect(0).stdout;
    assert!(said.contains(&format!("node manager {manager}")) && said.contains("/file"), "{said}");
    let said = from_elsewhere(&site, &["status", "--json"]).expect(0).stdout;
    assert!(said.contains(&format!("\"manager\": {manager}")), "{said}");
    let said = from_elsewhere(&site, &["fsck"]).expect(0).stdout;
    assert!(said.contains("in use; 1 file ahead"), "{said}");
    // A run with the same configuration sees what the first has written.
    let said = from_elsewhere(&site, &["run", "--config", config, "--", "cat", "file"]);
    assert_eq!(said.expect(0).stdout, "text\n");
    let names = || {
        let found = fs::read_dir(folder(&site, "elsewhere")).unwrap();
        found.filter(|found| !is_report(&found.as_ref().unwrap().path())).count()
    };
    assert_eq!((names(), site.pools().len(), site.status().manager), (0, 1, manager));
    // Another configuration for the same directory is refused.
    let other = site.root().join("other.toml");
    let text = fs::read_to_string(&site.config).unwrap().replace("64MiB", "32MiB");
    fs::write(&other, text).unwrap();
    let words = ["run", "--config", other.to_str().unwrap(), "--", "true"];
    let said = from_elsewhere(&site, &words).expect(125);
    assert!(said.stderr.contains("is served with another configuration"), "{said:?}");
    steps.past("1");
    let said = from_elsewhere(&site, &["stop"]).expect(0);
    assert!(said.stdout.contains("stopped 1"), "{said:?}");
    node.end().expect(0);
    assert_eq!(harness::sees(&site.store.join("file")), "text\n");
    steps.running.end();
}

#[test]
fn what_a_dead_manager_with_another_runtime_folder_left_is_seen_and_drained() {
    for command in ["recover", "run"] {
        let site = Site::new(&LAZY);
        let steps = Steps::of(&site, "echo text > file; step 1");
        steps.at("1");
        site.kill_all();
        steps.running.end();
        wait_for("a status without node manager", LONG, || {
            let said = from_elsewhere(&site, &["status"]).expect(0).stdout;
            assert!(said.contains("/file"), "{said}");
            said.contains("no node manager").then_some(())
        });
        let said = from_elsewhere(&site, &["fsck"]).expect(0).stdout;
        assert!(said.contains("not served; 1 file ahead"), "{said}");
        // With another configuration, for the directory that it has.
        let store = site.store.to_str().unwrap();
        let words = match command {
            "run" => vec!["run", "--backing", store, "--", "cat", "file"],
            other => vec![other],
        };
        let mut command = elsewhere(&site, &words);
        command.env("FOREBAY_SCRATCH", &site.out);
        let said = site.end(command).expect(0);
        assert!(said.stderr.contains("recovered") && said.stderr.contains("/file"), "{said:?}");
        assert_eq!(harness::sees(&site.store.join("file")), "text\n");
    }
}

/// Four runs that start at once, each with a runtime folder of its own, with one or the other of
/// these configurations. Returns how many were refused.
fn race(site: &Site, configs: [&str; 2], round: u32) -> usize {
    let script = "seq 2000 >> shared.$0; ls /dev/shm | grep -c pool; sleep 0.1";
    let start = |number: usize| {
        let config = configs[number % 2];
        let words = ["run", "--config", config, "--", "bash", "-c", script, &round.to_string()];
        let mut command = site.forebay(&words);
        command.env("FOREBAY_RUNTIME_DIR", folder(site, &format!("run-{number}")));
        site.start(command)
    };
    let runs: Vec<_> = (0..4).map(start).collect();
    let ran: Vec<Ran> = runs.into_iter().map(harness::Running::end).collect();
    let (good, refused): (Vec<_>, Vec<_>) = ran.iter().partition(|ran| ran.code == 0);
    for ran in &good {
        assert_eq!(ran.stdout, "1\n", "so many pools at once: {ran:?}");
    }
    for ran in &refused {
        let known = ["is served with another", "another node manager of yours"];
        assert!(known.iter().any(|known| ran.stderr.contains(known)), "{ran:?}");
    }
    wait_for("the end of the pool", LONG, || site.pools().is_empty().then_some(()));
    let shared = harness::sees(&site.store.join(format!("shared.{round}")));
    assert_eq!(shared.lines().count(), 2000 * good.len(), "round {round}");
    assert!(!good.is_empty(), "{refused:?}");
    refused.len()
}

#[test]
fn of_runs_with_different_runtime_folders_that_start_at_once_one_manager_serves() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    for round in 0..4 {
        assert_eq!(race(&site, [config, config], round), 0);
    }
}

/// It takes the mark of the directory away before its pool: another's must not go on with that.
#[test]
fn a_pool_that_is_about_to_be_removed_is_not_taken_by_another_runtime_folder() {
    if !cfg!(debug_assertions) {
        return harness::skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let [began, held, looked] = ["began", "held", "looked"].map(|name| site.out.join(name));
    let run = |number: usize, point: &str, held: &Path, script: &str| {
        let words = ["run", "--config", config, "--", "bash", "-c", script];
        let mut command = site.forebay(&words);
        fs::write(held, "").unwrap();
        let log = held.with_extension("log");
        command.env("FOREBAY_RUNTIME_DIR", folder(&site, &format!("run-{number}")));
        command.env("FOREBAY_SCRATCH", &site.out);
        command.env("FOREBAY_PAUSE", format!("{point}:1:while={}", held.display()));
        command.env("FOREBAY_PAUSE_LOG", &log);
        let running = site.start(command);
        wait_for(point, LONG, || log.exists().then_some(()));
        running
    };
    let script = "touch $OUT/began; while [ -e $OUT/held ]; do sleep 0.02; done; sleep 0.2
        ls /dev/shm | grep -c pool; echo text > file";
    // There is no pool yet.
    let second = run(1, "manager.looked", &looked, script);
    let first = run(0, "manager.unmarked", &held, "true");
    fs::remove_file(&looked).unwrap();
    // It has time to make that mistake.
    let since = std::time::Instant::now();
    while !began.exists() && since.elapsed() < std::time::Duration::from_secs(1) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::remove_file(&held).unwrap();
    first.end().expect(0);
    let ran = second.end().expect(0);
    assert_eq!((&ran.stdout[..], ran.stderr.contains("nothing")), ("1\n", false), "{ran:?}");
    assert_eq!(harness::sees(&site.store.join("file")), "text\n");
}

#[test]
fn of_different_configurations_that_start_at_once_one_is_served_at_a_time() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let other = site.root().join("other.toml");
    let text = fs::read_to_string(&site.config).unwrap().replace("64MiB", "32MiB");
    fs::write(&other, text).unwrap();
    let refused: usize =
        (0..4).map(|round| race(&site, [config, other.to_str().unwrap()], round)).sum();
    eprintln!("{refused} of 16 runs were refused");
}
