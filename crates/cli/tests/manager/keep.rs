//! Node managers that stay after a run: for a time that it asks for, or as `forebay up` has them.

use crate::harness::{LONG, Ran, SLOW_STORE, Site, Steps, USUAL, is_alive, kill, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

/// A run of a script with options.
fn run(site: &Site, options: &[&str], script: &str) -> Ran {
    let config = site.config.to_str().unwrap();
    let first = [&["run", "--config", config], options].concat();
    site.end(site.forebay(&[&first[..], &["--", "bash", "-c", script]].concat()))
}

/// What `forebay status --json` says of the only instance; null where there is none.
fn now(site: &Site) -> Value {
    let said = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
    serde_json::from_str::<Value>(&said).unwrap().get(0).cloned().unwrap_or_default()
}

/// Waits until it stays for more than so many seconds: the manager sees the end of a run after it.
fn stays_for(site: &Site, seconds: f64) {
    let stays = || now(site)["stays"]["seconds"].as_f64().filter(|left| *left > seconds);
    wait_for("a manager that stays", LONG, || stays().map(drop));
}

fn give(site: &Site, verb: &str) -> Ran {
    site.end(site.forebay(&[verb, "--config", site.config.to_str().unwrap()])).expect(0)
}

/// Waits until nothing is left.
fn is_gone(site: &Site) {
    wait_for("the end of everything", LONG, || site.processes().is_empty().then_some(()));
    assert!(site.pools().is_empty());
    assert_eq!(site.instances().count(), 0);
}

/// A data set that is on the store before any run.
fn fill(site: &Site) {
    for name in 0..20 {
        fs::write(site.store.join(format!("sample-{name}")), vec![name; 300_000]).unwrap();
    }
}

const READ: &str = "cat sample-* | cksum";

#[test]
fn the_next_run_over_the_same_directory_reads_nothing_from_its_store() {
    let site = Site::new(&SLOW_STORE);
    fill(&site);
    let first = run(&site, &["--keep", "1h"], &format!("{READ}; echo one > result")).expect(0);
    // All is on the store when a run has ended, whatever stays.
    assert_eq!(fs::read_to_string(site.store.join("result")).unwrap(), "one\n");
    stays_for(&site, 3000.0);
    let status = site.status();
    let missed = status.count("missed_bytes");
    assert!(missed > 0 && status.text.contains("  stays    for "), "{}", status.text);

    let second = run(&site, &[], &format!("{READ}; echo two > result")).expect(0);
    assert_eq!(second.stdout, first.stdout);
    assert_eq!(fs::read_to_string(site.store.join("result")).unwrap(), "two\n");
    let after = site.status();
    assert_eq!((after.manager, after.count("missed_bytes")), (status.manager, missed));

    // What others change meanwhile is seen.
    fs::write(site.store.join("sample-3"), "other").unwrap();
    let third = run(&site, &[], "cat sample-3").expect(0);
    assert_eq!(third.stdout, "other");
    give(&site, "down");
    is_gone(&site);
}

#[test]
fn it_ends_by_itself_after_its_time_and_leaves_nothing() {
    let site = Site::new(&USUAL);
    let said = run(&site, &["--keep", "300ms", "--verbose"], "echo kept > file").expect(0).stderr;
    assert!(said.contains("the node manager stays for 0.3 s"), "{said}");
    is_gone(&site);
    // The same by the configuration, which the option overrules.
    let text = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("{text}[run]\nkeep = \"1h\"\n")).unwrap();
    run(&site, &["--keep", "0s"], "cat file").expect(0);
    is_gone(&site);
    run(&site, &[], "cat file").expect(0);
    stays_for(&site, 3000.0);
    give(&site, "stop");
    is_gone(&site);
    // A command that never began needs no manager after it.
    let config = site.config.to_str().unwrap();
    site.end(site.forebay(&["run", "--config", config, "--", "./missing"])).expect(127);
    is_gone(&site);
}

#[test]
fn the_latest_end_of_all_times_holds_and_other_configurations_are_told() {
    let site = Site::new(&USUAL);
    run(&site, &["--keep", "2h"], "echo kept > file").expect(0);
    run(&site, &["--keep", "1h"], "cat file").expect(0);
    stays_for(&site, 7000.0);
    run(&site, &["--keep", "3h"], "cat file").expect(0);
    stays_for(&site, 10_000.0);
    let text = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, text.replace("64MiB", "32MiB")).unwrap();
    let refused = run(&site, &[], "cat file").expect(125).stderr;
    assert!(refused.contains("which an earlier run keeps for "), "{refused}");
    let remedy = refused.split_once("`forebay ").unwrap().1.split_once('`').unwrap().0;
    let words: Vec<&str> = remedy.split_whitespace().collect();
    site.end(site.forebay(&words)).expect(0);
    is_gone(&site);
    run(&site, &[], "cat file").expect(0);
}

#[test]
fn one_that_was_killed_stays_as_long_with_the_next_run() {
    let site = Site::new(&USUAL);
    fill(&site);
    let first = run(&site, &["--keep", "1h"], READ).expect(0);
    stays_for(&site, 3000.0);
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    wait_for("its end", LONG, || (!is_alive(manager)).then_some(()));
    assert_eq!(
        (now(&site)["orphaned"].clone(), now(&site)["stays"].clone()),
        (true.into(), Value::Null)
    );
    assert_eq!(run(&site, &[], READ).expect(0).stdout, first.stdout);
    stays_for(&site, 3000.0);
    // As at a logout.
    kill(site.status().manager, Signal::TERM);
    is_gone(&site);
}

#[test]
fn what_up_has_started_is_that_again_after_a_kill() {
    let site = Site::new(&USUAL);
    let until_down = |site: &Site| now(site)["stays"]["until_down"].clone();
    give(&site, "up");
    assert_eq!(until_down(&site), true);
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    wait_for("its end", LONG, || (!is_alive(manager)).then_some(()));
    run(&site, &[], "echo kept > file").expect(0);
    let status = site.status();
    assert_ne!(status.manager, manager);
    assert!(status.text.contains("  stays    until `forebay down`"), "{}", status.text);
    assert_eq!(until_down(&site), true);
    give(&site, "down");
    is_gone(&site);

    // One that a run has started is taken over.
    let steps = Steps::of(&site, "step begun");
    steps.at("begun");
    assert!(give(&site, "up").stdout.contains(" serves already "));
    steps.past("begun");
    steps.end();
    assert_eq!(until_down(&site), true);
    // A run that ends later than `down` was given keeps none.
    let steps = Steps::with(&site, &["--keep", "1h"], "step later");
    steps.at("later");
    give(&site, "down");
    steps.past("later");
    steps.end();
    is_gone(&site);
}

#[test]
fn nothing_is_kept_beyond_a_job() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--keep", "1h", "--", "bash", "-c", "echo 1 > file"];
    let mut command = site.forebay(&words);
    command.env("SLURM_JOB_ID", "17");
    let said = site.end(command).expect(0).stderr;
    assert!(said.contains("not in a job of Slurm"), "{said}");
    is_gone(&site);
}

#[test]
fn a_tier_that_is_larger_than_what_the_job_may_have_is_told_once() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let memory = |mebibytes: &str, file: &str| {
        let script = format!("echo 1 > {file}");
        let words = ["run", "--config", config, "--keep", "1h", "--", "bash", "-c", &script];
        let mut command = site.forebay(&words);
        command.env("SLURM_MEM_PER_NODE", mebibytes);
        site.end(command).expect(0).stderr
    };
    let said = memory("32", "a");
    assert_eq!(said.matches("tier ram: 64.00 MiB are more than the job").count(), 1, "{said}");
    // One that it finds was told of.
    assert_eq!(memory("32", "b"), "");
    give(&site, "down");
    is_gone(&site);
    assert_eq!(memory("1000000", "c"), "");
    give(&site, "down");
}
