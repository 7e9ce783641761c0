//! Locks as an order between processes, and mappings mixed with reads and writes.

use crate::harness::{LAZY, Setup, Site, TINY, USUAL, assert_same_lines, have, wait_for};
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

#[test]
fn a_file_is_direct_as_long_as_it_is_mapped() {
    let site = Site::new(&LAZY);
    if !site.compile("unmaps.c", &["-pthread"]) {
        return;
    }
    // What it is for as long as the process lives, or the mapping of another one.
    let lines = |of: &str, between: &str| {
        format!(
            "{of}:\nbefore: buffered\nmapped: at once\nwith a mapping: direct\n{between}\
             after: buffered\n{}opened again: buffered\n",
            if of == "writable" { "written by the mapping: w\n" } else { "" }
        )
    };
    let lives = "while it lives: direct\n";
    let cases = [
        ("unmap", String::new()),
        ("called", String::new()),
        ("writable", String::new()),
        ("exit", String::new()),
        ("kill", String::new()),
        ("exec", String::new()),
        ("fixed", String::new()),
        ("vfork", "after a vfork: at once\n".into()),
        ("twice", "the other: at once\n".into()),
        ("fork", "with the other: direct\nin the child: at once\n".into()),
        ("two", "with the other: direct\nin the other: at once\n".into()),
        ("orphan", "with the child: direct\nin the child: at once\n".into()),
        ("part", format!("the rest: at once\n{lives}")),
        ("fixed-part", format!("the rest: at once\n{lives}")),
        ("moved", format!("where it is now: at once\n{lives}")),
        ("doubled", format!("the double: at once\n{lives}")),
        ("kernel", lives.into()),
    ];
    let script: String = cases
        .iter()
        .map(|(case, _)| format!("echo {case}:; $BIN/unmaps {case} {case} || exit 1\n"))
        .collect();
    let (ran, status) = site.run_buffered(&script);
    let wanted: String = cases.iter().map(|(case, between)| lines(case, between)).collect();
    assert_same_lines("what the file was", &ran.expect(0).stdout, &wanted);
    status.assert_live();
}

#[test]
fn mappings_that_come_and_go_show_each_write() {
    for setup in [LAZY, OFTEN] {
        let site = Site::new(&setup);
        if !site.compile("unmaps.c", &["-pthread"]) {
            return;
        }
        let (ran, status) = site.run_buffered("$BIN/unmaps race file 3 6");
        assert_eq!(ran.expect(0).stdout, "wrong: 0\n");
        assert!(status.count("writes") > 0, "never buffered: {}", status.text);
    }
}

/// What a Python program maps and lets go, and one that it resizes.
const PYTHON_MAPS: &str = r#"
import mmap, os, time
out = os.environ['OUT']
with open('file', 'w+b', buffering=0) as file:
    file.write(bytes(10000))
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
        for number in range(100):
            os.pwrite(file.fileno(), b'%03d' % number, 5000)
            assert seen[5000:5003] == b'%03d' % number
    os.pwrite(file.fileno(), b'one', 0)
    os.pwrite(file.fileno(), b'two', 0)
    open(out + '/written', 'w').close()
    while not os.path.exists(out + '/seen'):
        time.sleep(0.01)
    with mmap.mmap(file.fileno(), 0) as changed:
        assert changed[:3] == b'two' and changed[5000:5003] == b'099'
        changed.resize(20000)
        changed[15000:15003] = b'six'
        assert os.pread(file.fileno(), 3, 15000) == b'six'
        os.pwrite(file.fileno(), b'ten', 16000)
        assert changed[16000:16003] == b'ten'
    assert os.pread(file.fileno(), 3, 15000) == b'six' and os.fstat(file.fileno()).st_size == 20000
"#;

#[test]
fn python_programs_map_files_for_a_while() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let running = site.start(site.buffered(&["python3", "-c", PYTHON_MAPS]));
    let written = site.out.join("written");
    wait_for("a write", Duration::from_secs(60), || written.exists().then_some(()));
    let stored = || std::fs::read(site.store.join("file")).unwrap();
    // The first write after the mapping finds that it is gone, the second one is buffered.
    assert_eq!(&stored()[..3], b"one");
    std::fs::write(site.out.join("seen"), "").unwrap();
    running.end().expect(0);
    let end = stored();
    assert_eq!((&end[..3], &end[15000..15003], end.len()), (&b"two"[..], &b"six"[..], 20000));
}
