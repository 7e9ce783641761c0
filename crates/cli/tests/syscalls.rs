//! Writing and reading what is in RAM makes no system call.

mod common;

use common::{LAZY, Site, skip, works};

#[test]
fn resident_blocks_are_written_and_read_without_system_calls() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("resident.c", &[]) {
        return;
    }
    let (ran, status) = site.run_buffered("strace -f -o $OUT/calls $BIN/resident file");
    ran.expect(0);
    assert!(status.count("writes") >= 200 && status.count("reads") >= 200, "{}", status.text);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    // Each line is a process and its call; between two markers there must be none.
    let marked: Vec<_> = calls.lines().skip_while(|line| !line.contains("first-marker")).collect();
    for (place, marker) in ["first-marker", "second-marker", "third-marker"].iter().enumerate() {
        assert!(marked[place].contains(marker), "a system call: {:#?}", &marked[..place + 4]);
    }
}
