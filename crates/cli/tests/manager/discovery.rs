//! Every pool of a user is found, wherever its node manager was started: from a login by ssh, a
//! batch step or cron the runtime folder is another one.

use crate::harness::{self, LAZY, LONG, Ran, Site, Steps, USUAL, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
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
    let names = || fs::read_dir(folder(&site, "elsewhere")).unwrap().count();
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
