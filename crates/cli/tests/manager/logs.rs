//! The node manager's log.

use crate::harness::{LAZY, LONG, Site, is_report, kill, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::DirBuilderExt;

/// Whether a line begins with a time such as 2026-12-31T23:59:59.999Z, and a level.
fn has_time(line: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:dd.dddZ ";
    let fits =
        |(form, is): (char, char)| if form == 'd' { is.is_ascii_digit() } else { form == is };
    let is_level = |rest: &str| ["ERROR ", "WARN  ", "INFO  "].iter().any(|l| rest.starts_with(l));
    form.chars().zip(line.chars()).all(fits) && line.get(form.len()..).is_some_and(is_level)
}

#[test]
fn each_line_has_the_time() {
    let site = Site::new(&LAZY);
    let faults = site.out.join("faults");
    fs::write(&faults, "").unwrap();
    let mut command = site.buffered(&["bash", "-c", "cat $FOREBAY_RUNTIME_DIR/*/log"]);
    command.env("FOREBAY_FAULTS", &faults);
    let log = site.end(command).expect(0).stdout;
    assert!(log.contains("Z INFO  faults are injected as "), "{log}");
    assert!(log.lines().all(has_time), "{log}");
}

#[test]
fn a_manager_whose_log_can_take_nothing_more_goes_on() {
    let site = Site::new(&LAZY);
    let faults = site.out.join("faults");
    fs::write(&faults, "").unwrap();
    let config = site.config.to_str().unwrap();
    let script = format!("exec $FOREBAY node --config {config} 2> /dev/full");
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", &script]).env("FOREBAY_FAULTS", &faults);
    let mut node = site.start(command);
    wait_for("the manager", LONG, || {
        assert!(node.is_running(), "it has ended");
        (site.status().manager == node.pid()).then_some(())
    });
    site.end(site.buffered(&["bash", "-c", "seq 1000 > file"])).expect(0);
    site.end(site.forebay(&["stop", "--config", config])).expect(0);
    node.end().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 1000);
}

#[test]
fn the_log_outlives_its_manager() {
    let site = Site::new(&LAZY);
    let faults = site.out.join("faults");
    fs::write(&faults, "").unwrap();
    // Of others that have ended; what is no such log is left alone.
    let others = fs::DirBuilder::new().mode(0o700).create(site.runtime());
    others.unwrap_or_else(|error| assert!(site.runtime().is_dir(), "{error}"));
    for number in 0..40 {
        fs::write(site.runtime().join(format!("last-{number:016x}.log")), "old\n").unwrap();
    }
    let mine = site.runtime().join("last-mine.log");
    fs::write(&mine, "").unwrap();
    let script = "basename $(dirname $FOREBAY_RUNTIME_DIR/*/log)";
    let mut command = site.buffered(&["bash", "-c", script]);
    command.env("FOREBAY_FAULTS", &faults);
    let instance = site.end(command).expect(0).stdout;
    let log = site.runtime().join(format!("last-{}.log", instance.trim()));
    wait_for("the log", LONG, || log.exists().then_some(()));
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("faults are injected as ") && text.lines().all(has_time), "{text}");
    assert!(!site.runtime().join(instance.trim()).exists());
    wait_for("the others", LONG, || {
        let kept = fs::read_dir(site.runtime()).unwrap();
        let kept = kept.filter(|found| !is_report(&found.as_ref().unwrap().path()));
        (kept.count() == 16 + 1).then_some(())
    });
    assert!(mine.exists());
    let status = site.end(site.forebay(&["status"])).expect(0).stdout;
    assert!(status.contains(log.to_str().unwrap()), "{status}");
}

#[test]
fn a_start_says_at_once_for_which_manager_it_waits() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap().to_owned();
    let mut node = site.start(site.forebay(&["node", "--config", &config]));
    wait_for("the manager", LONG, || {
        assert!(node.is_running(), "it has ended");
        // Without one it is said that no node manager runs.
        site.end(site.forebay(&["status"])).stdout.contains(": node manager").then_some(())
    });
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("on-exit", "per-file")).unwrap();
    let mut run = site.start(site.buffered(&["true"]));
    let said = "forebay: waiting: ";
    wait_for("what it waits for", LONG, || run.stderr().contains(said).then_some(()));
    assert!(run.is_running(), "it is said at the end only: {}", run.stderr());
    kill(node.pid(), Signal::TERM);
    run.end().expect(0);
    node.end().expect(0);
}
