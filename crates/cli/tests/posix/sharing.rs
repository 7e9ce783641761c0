//! Locks as an order between processes, and mappings mixed with reads and writes.

use crate::harness::{LAZY, Setup, Site, TINY, USUAL, wait_for};
use std::time::Duration;

const OFTEN: Setup = Setup { flush: "trigger = \"periodic\"\nperiod = \"10ms\"", ..TINY };

#[test]
fn no_update_under_a_lock_is_lost() {
    for setup in [LAZY, OFTEN] {
        let site = Site::new(&setup);
        if !site.compile("locks.c", &["-pthread"]) {
            return;
        }
        for kind in ["flock", "fcntl", "ofd"] {
            for access in ["plain", "positioned", "partial", "stdio", "probe"] {
                let script = format!("$BIN/locks {kind} {access} file 4 3 40; rm file");
                let (ran, status) = site.run_buffered(&script);
                assert_eq!(ran.expect(0).stdout, format!("{kind} {access}: 480 0\n"));
                status.assert_live();
            }
        }
    }
}

#[test]
fn a_partial_write_does_not_end_the_locks_of_a_process() {
    let site = Site::new(&LAZY);
    if !site.compile("locks.c", &["-pthread"]) {
        return;
    }
    // The file is on the store already, so that a write of a part of a page has to read the rest.
    for access in ["partial", "probe"] {
        std::fs::write(site.store.join("file"), [b'0'; 9000]).unwrap();
        let (ran, status) = site.run_buffered(&format!("$BIN/locks fcntl {access} file 6 1 100"));
        assert_eq!(ran.expect(0).stdout, format!("fcntl {access}: 600 0\n"));
        status.assert_live();
    }
}

#[test]
fn who_watches_a_file_is_told_of_each_write() {
    // Nothing is flushed before the end but because it is watched.
    let site = Site::new(&LAZY);
    if site.compile("watches.c", &[]) {
        let status = site.same("$BIN/watches file new");
        assert!(status.count("writes") > 0, "{}", status.text);
    }
}

#[test]
fn mappings_show_what_they_show_without_forebay() {
    for setup in [LAZY, OFTEN, USUAL] {
        let site = Site::new(&setup);
        if site.compile("maps.c", &[]) {
            site.same("$BIN/maps file");
        }
    }
}

#[test]
fn a_file_is_buffered_again_when_its_mappings_are_gone() {
    let site = Site::new(&LAZY);
    if !site.compile("maps.c", &[]) {
        return;
    }
    // No process has it open for a while; then it is written, until the store does not have it at
    // once.
    let script = "$BIN/maps file > /dev/null
        for turn in 1 2 3 4 5 6 7 8; do
            sleep 2; echo text > file; : > $OUT/written-$turn
            while [ ! -e $OUT/seen-$turn ]; do sleep 0.01; done
            [ -e $OUT/end ] && exit
        done";
    let running = site.start(site.buffered(&["bash", "-c", script]));
    let mut buffered = false;
    for turn in 1..=8 {
        let written = site.out.join(format!("written-{turn}"));
        wait_for("a write", Duration::from_secs(60), || written.exists().then_some(()));
        buffered |= std::fs::read(site.store.join("file")).unwrap().is_empty();
        if buffered {
            std::fs::write(site.out.join("end"), "").unwrap();
        }
        std::fs::write(site.out.join(format!("seen-{turn}")), "").unwrap();
        if buffered {
            break;
        }
    }
    running.end().expect(0);
    assert!(buffered, "it stays direct");
    assert_eq!(std::fs::read_to_string(site.store.join("file")).unwrap(), "text\n");
}
