//! Groups leave nothing behind. Alone in its process, for others would change the counts.

mod support;

use forebay_membership::Rank;
use std::time::{Duration, Instant};
use support::{Site, Store, wait, wait_agreed};

/// Threads and descriptors of this process.
fn counts() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// A thread that was joined is in the kernel's list for a moment.
fn wait_counts(expected: (usize, usize)) {
    let begin = Instant::now();
    while counts() != expected {
        let (is, patience) = (counts(), Duration::from_secs(60));
        assert!(begin.elapsed() < patience, "{is:?} threads and descriptors, not {expected:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn starts_and_stops_leave_no_thread_descriptor_or_file() {
    let site = Site::of(2);
    let before = counts();
    for round in 0..20 {
        let groups = site.start_all();
        if round % 5 == 0 {
            wait_agreed(&groups);
        }
        drop(groups);
        wait_counts(before);
    }
    // One that hangs is left behind, and ends with what it hangs in.
    let mut groups = site.start_all();
    wait_agreed(&groups);
    site.set_store(0, Store::Hangs);
    wait("its look hangs", [&groups[0]], |all| all[0].rank == Rank::Fenced);
    drop(groups.remove(1));
    // The folder, two sockets, what wakes their threads, and the epoll set and the timer of links.
    wait_counts((before.0 + 3, before.1 + 7));
    drop(groups);
    wait_counts((before.0 + 1, before.1 + 3));
    site.set_store(0, Store::Good);
    wait_counts(before);

    let mut names = site.names();
    let views = names.iter().filter(|name| name.starts_with("view.")).count();
    assert!((1..=32).contains(&views), "{names:?}");
    names.retain(|name| !name.starts_with("view."));
    names.sort();
    // One card of each node, of its last life.
    assert!(names[0].starts_with("member.0.21."), "{names:?}");
    assert!(names[1].starts_with("member.1.21."), "{names:?}");
    assert_eq!(names[2..], ["secret"]);
}
