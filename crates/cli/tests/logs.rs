//! The node manager's log.

mod common;

use common::{LAZY, LONG, Site, wait_for};
use std::fs;

/// Whether a line begins with a time such as 2026-12-31T23:59:59.999Z.
fn has_time(line: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:dd.dddZ ";
    let fits =
        |(form, is): (char, char)| if form == 'd' { is.is_ascii_digit() } else { form == is };
    line.len() > form.len() && form.chars().zip(line.chars()).all(fits)
}

#[test]
fn each_line_has_the_time() {
    let site = Site::new(&LAZY);
    let faults = site.out.join("faults");
    fs::write(&faults, "").unwrap();
    let mut command = site.buffered(&["bash", "-c", "cat $FOREBAY_RUNTIME_DIR/*/log"]);
    command.env("FOREBAY_FAULTS", &faults);
    let log = site.end(command).expect(0).stdout;
    assert!(log.contains("Z faults are injected as "), "{log}");
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
