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
    let between = |first: &str, last: &str| {
        let from = calls.find(first).unwrap_or_else(|| panic!("no {first} in {calls}"));
        let part = &calls[from..from + calls[from..].find(last).unwrap()];
        part.lines().skip(1).filter(|line| !line.contains(last)).map(str::to_owned).collect::<Vec<_>>()
    };
    let line_of = |line: &String| !line.contains("access(");
    let writes = between("first-marker", "second-marker");
    let reads = between("second-marker", "third-marker");
    let extra: Vec<_> = writes.iter().chain(&reads).filter(|line| line_of(line)).collect();
    // The last line of each part is the beginning of the next marker's.
    assert!(extra.iter().all(|line| line.trim().parse::<u32>().is_ok()), "{extra:#?}");
}
