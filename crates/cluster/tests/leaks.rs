//! Groups leave nothing behind. Alone in its process, for others would change the counts.

mod support;

use std::time::{Duration, Instant};
use support::{Site, Store, wait, wait_agreed};

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn starts_and_stops_leave_no_thread_descriptor_or_file() {
    let site = Site::of(2);
    let before = (count("/proc/self/task"), count("/proc/self/fd"));
    for round in 0..20 {
        let groups = site.start_all();
        if round % 5 == 0 {
            wait_agreed(&groups);
        }
        drop(groups);
        assert_eq!((count("/proc/self/task"), count("/proc/self/fd")), before, "{round}");
    }
    // One that hangs is left behind, and ends with what it hangs in.
    let groups = site.start_all();
    site.set_store(0, Store::Hangs);
    wait("a look hangs", [&groups[0]], |all| {
        all[0].last_look.is_none_or(|look| look.ago > Duration::from_secs(1))
    });
    drop(groups);
    assert_eq!(count("/proc/self/task"), before.0 + 1);
    site.set_store(0, Store::Good);
    let begin = Instant::now();
    while (count("/proc/self/task"), count("/proc/self/fd")) != before {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is still there");
        std::thread::sleep(Duration::from_millis(5));
    }

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
