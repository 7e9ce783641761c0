//! What programs register to run on files: it runs, and outlives them and a node manager that is
//! killed.

use crate::c_library::link;
use crate::harness::{EAGER, Site, have, sees};
use std::fs;

/// A site with `actions.c`; `None`, and loud, without a compiler.
fn site() -> Option<Site> {
    let site = Site::new(&EAGER);
    link(&site, "actions.c", &[]).then_some(site)
}

fn run(site: &Site, part: &str) {
    let (ran, status) = site.run_buffered(&format!("$BIN/actions {part}"));
    assert_eq!(ran.expect(0).stdout, "done\n");
    status.assert_live();
}

#[test]
fn what_a_program_registers_runs_until_it_is_removed() {
    let Some(site) = site() else { return };
    run(&site, "runs");
    // It has ended with the node manager.
    run(&site, "forks");
    assert!(!site.store.join("file.dat.steps.1.out").exists());
}

#[test]
fn operations_are_registered_too() {
    let Some(site) = site() else { return };
    // The command has the same list.
    let analyse = format!("$FOREBAY analyse --config {}", site.config.display());
    let script = format!(
        "$BIN/actions operates && {analyse} --list && {analyse} --remove largest-first && \
         {analyse} --list"
    );
    let (ran, status) = site.run_buffered(&script);
    let said = ran.expect(0).stdout;
    status.assert_live();
    assert_eq!(said.matches("largest-first: *.dat -> sort\n  1 done\n").count(), 1, "{said}");
    assert_eq!(said.matches("checksum: *.dat -> ").count(), 2, "{said}");
    assert_eq!(sees(&site.store.join("records.dat.by-number")), "ccccaaaa");
}

#[test]
fn what_cannot_be_registered_is_named_and_changes_nothing() {
    let Some(site) = site() else { return };
    assert_eq!(site.run_plainly("$BIN/actions plain").expect(0).stdout, "done\n");
    let mut text = fs::read_to_string(&site.config).unwrap();
    text += "[[analysis]]\nname = \"configured\"\nmatch = \"none\"\ncommand = [\"true\"]\n";
    fs::write(&site.config, text).unwrap();
    let (ran, _) = site.run_buffered("$BIN/actions bad");
    assert_eq!(ran.expect(0).stdout, "done\n");
}

#[test]
fn a_successor_of_the_node_manager_has_what_was_registered() {
    let Some(site) = site() else { return };
    run(&site, "killed");
}

/// Also where it was killed while it wrote down what is registered, or before it has answered.
#[test]
fn a_node_manager_that_is_killed_while_it_registers_loses_nothing() {
    for point in ["action.writing:1", "action.writing:3", "action.writing:5", "action.writing:7"] {
        let Some(site) = site() else { return };
        let once = site.out.join("crashed");
        let words = [
            ("FOREBAY_CRASH", point),
            ("FOREBAY_CRASH_IN", "node"),
            ("FOREBAY_CRASH_ONCE", once.to_str().unwrap()),
        ];
        let (ran, _) = site.run_buffered_with(&words, "$BIN/actions survives");
        assert_eq!(ran.expect(0).stdout, "done\n", "{point}");
        assert!(once.exists() || !cfg!(debug_assertions), "{point} was not passed");
    }
}

#[test]
fn a_program_of_cpp_registers_too() {
    let site = Site::new(&EAGER);
    if !have(&["c++"]) || !link(&site, "actions.cc", &["-std=c++17"]) {
        return;
    }
    let (ran, _) = site.run_buffered("$BIN/actions $PWD/file");
    assert_eq!(ran.expect(0).stdout, "wc 1 0\nchecksum 1 0\n");
    assert!(sees(&site.store.join("file.wc.out")).starts_with("3 "));
    assert!(sees(&site.store.join("file.b3")).contains("file"));
}
