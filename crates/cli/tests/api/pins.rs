//! What a program has pinned stays in its tier, whatever else wants the room, and for no longer
//! than the program.

use crate::c_library::link;
use crate::harness::{LIMIT, Setup, Site, Steps, USUAL, kill, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

/// Tiers that a few writes fill.
const PRESSED: Setup = Setup { ram: "32MiB", nvme: "32MiB", nvme_emulate: None, ..USUAL };

fn site() -> Option<Site> {
    let site = Site::new(&PRESSED);
    link(&site, "pins.c", &[]).then_some(site)
}

fn run(site: &Site, script: &str) {
    let (ran, status) = site.run_buffered(script);
    assert_eq!(ran.expect(0).stdout, "done\n");
    status.assert_live();
}

fn status(site: &Site) -> Value {
    let text = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
    serde_json::from_str::<Value>(&text).unwrap()[0].take()
}

fn pinned(site: &Site) -> u64 {
    status(site)["tiers"][0]["pinned"].as_u64().unwrap()
}

fn jobs(site: &Site) -> usize {
    status(site)["jobs"].as_array().unwrap().len()
}

/// Starts a part of the program beside others, and waits until it says that it has pinned.
fn stays(site: &Site, part: &[&str], mark: &Path) -> crate::harness::Running {
    let program = site.root().join("pins");
    let words: Vec<_> =
        [program.to_str().unwrap()].into_iter().chain(part.iter().copied()).collect();
    let run = site.start(site.buffered(&words));
    wait_for("the pins", LIMIT, || mark.exists().then_some(()));
    run
}

/// The process of a run that has pinned.
fn program_of(run: &crate::harness::Running, wanted: &str) -> u32 {
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let found = crate::harness::descendants(run.pid());
    found.into_iter().find(|pid| name(pid).trim() == wanted).unwrap()
}

#[test]
fn what_is_pinned_stays_until_it_is_unpinned() {
    let Some(site) = site() else { return };
    run(&site, "$BIN/pins hold $PWD/file $PWD/other");
}

#[test]
fn bad_pins_are_named_and_pin_nothing() {
    let Some(site) = site() else { return };
    run(&site, "$BIN/pins bad $PWD/file");
    assert_eq!(site.run_plainly("$BIN/pins plain $PWD/file").expect(0).stdout, "done\n");
}

#[test]
fn pins_keep_to_the_quotas_of_their_run() {
    let Some(site) = site() else { return };
    let quotas = ["--quota", "ram=4MiB", "--quota", "nvme=4MiB"];
    let steps = Steps::with(&site, &quotas, "$BIN/pins quota $PWD/file");
    assert_eq!(steps.end().expect(0).stdout, "done\n");
}

#[test]
fn an_order_to_drop_what_is_pinned_says_that_it_stays() {
    let Some(site) = site() else { return };
    let (file, mark) = (site.store.join("file"), site.out.join("mark"));
    let (file, mark_) = (file.to_str().unwrap(), mark.to_str().unwrap());
    let run_of = stays(&site, &["stay", file, mark_], &mark);
    let said = site.end(site.forebay(&["stage-out", "--drop", file])).expect(1);
    assert!(said.stderr.contains("8.00 MiB") && said.stderr.contains("pinned"), "{said:?}");
    assert_eq!(pinned(&site), 8 << 20);
    kill(program_of(&run_of, "pins"), Signal::KILL);
    run_of.end();
}

#[test]
fn a_child_shares_the_pins_of_its_parent() {
    let Some(site) = site() else { return };
    run(&site, "$BIN/pins forks $PWD/file $PWD/other");
}

#[test]
fn pins_end_with_a_kill_and_outlive_the_node_manager() {
    let Some(site) = site() else { return };
    let (file, mark) = (site.store.join("file"), site.out.join("mark"));
    let part = ["stay", file.to_str().unwrap(), mark.to_str().unwrap()];
    let run_of = stays(&site, &part, &mark);
    assert_eq!(pinned(&site), 8 << 20);
    let found = status(&site);
    assert_eq!(found["jobs"][0]["pinned"], 8 << 20);
    let words = ["explain", "--json", file.to_str().unwrap()];
    let explained = site.end(site.forebay(&words)).expect(0).stdout;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["pins"][0]["range"], serde_json::json!([0, 8 << 20]));
    assert_eq!(explained["pins"][0]["tier"], "ram");
    let explained = site.end(site.forebay(&["explain", file.to_str().unwrap()])).expect(0).stdout;
    assert!(explained.contains("pinned"), "{explained}");
    assert!(site.status().text.contains("8.00 MiB pinned"), "{}", site.status().text);

    // The next node manager knows them.
    let manager = found["manager"].as_u64().unwrap() as u32;
    kill(manager, Signal::KILL);
    run(&site, "$BIN/pins press $PWD/other");
    assert_ne!(status(&site)["manager"].as_u64().unwrap() as u32, manager);
    assert_eq!(pinned(&site), 8 << 20);
    let words = ["explain", "--json", file.to_str().unwrap()];
    let explained = site.end(site.forebay(&words)).expect(0).stdout;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let extents = explained["extents"].as_array().unwrap();
    assert!(extents.iter().all(|extent| extent["tier"] == "ram"), "{extents:?}");

    // Another run, for which the node manager stays.
    let other = site.start(site.buffered(&["sleep", "100"]));
    let sleeper = || crate::harness::descendants(other.pid()).into_iter().next();
    wait_for("another run", LIMIT, || sleeper().filter(|_| jobs(&site) == 2));
    kill(program_of(&run_of, "pins"), Signal::KILL);
    run_of.end();
    wait_for("the end of the pins", LIMIT, || (pinned(&site) == 0).then_some(()));
    run(&site, "$BIN/pins press $PWD/other");
    kill(program_of(&other, "sleep"), Signal::KILL);
    other.end();
}

#[test]
fn pins_end_with_an_exec() {
    let Some(site) = site() else { return };
    let (file, mark) = (site.store.join("file"), site.out.join("mark"));
    let part = ["stay", file.to_str().unwrap(), mark.to_str().unwrap(), "sleep", "60"];
    let run_of = stays(&site, &part, &mark);
    wait_for("the end of the pins", LIMIT, || (pinned(&site) == 0).then_some(()));
    kill(program_of(&run_of, "sleep"), Signal::KILL);
    run_of.end();
}

#[test]
fn where_all_that_may_be_is_pinned_a_writer_beside_it_goes_on() {
    let Some(site) = site() else { return };
    let runs: Vec<_> = (0..2)
        .map(|number| {
            let (file, mark) = (format!("file{number}"), format!("mark{number}"));
            let (file, mark) = (site.store.join(file), site.out.join(mark));
            stays(&site, &["full", file.to_str().unwrap(), mark.to_str().unwrap()], &mark)
        })
        .collect();
    assert_eq!(pinned(&site), 24 << 20, "three quarters of the tier");
    let jobs = status(&site)["jobs"].as_array().unwrap().clone();
    let of_jobs: Vec<_> = jobs.iter().map(|job| job["pinned"].as_u64().unwrap()).collect();
    assert_eq!(of_jobs, [16 << 20, 8 << 20]);
    run(&site, "$BIN/pins press $PWD/other");
    assert_eq!(pinned(&site), 24 << 20);
    for run_of in runs {
        kill(program_of(&run_of, "pins"), Signal::KILL);
        run_of.end();
    }
}
