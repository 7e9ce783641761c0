//! What suites of file system tests found.

mod common;

use common::{Setup, Site, USUAL, works};

/// The kernel's answer came from before the end of a flush, the look at the file table from after.
#[test]
fn stat_in_the_middle_of_a_flush_shows_neither_old_size_nor_a_time_of_the_flush() {
    if !works(&["python3", "-c", "pass"]) {
        return common::skip("python3 is missing");
    }
    let setup = Setup { flush: "trigger = \"per-operation\"", ..USUAL };
    let status = Site::new(&setup).same(
        "python3 - <<'P'
import os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
for turn in range(1, 3000):
    os.pwrite(fd, b'x', turn * 1000 - 1)
    first = os.fstat(fd)
    for look in range(20):
        found = os.stat('file')
        assert found.st_size == turn * 1000, (found.st_size, turn * 1000)
        assert found.st_mtime_ns == first.st_mtime_ns, (turn, look)
P",
    );
    assert!(status.count("writes") >= 2999, "{}", status.text);
}
