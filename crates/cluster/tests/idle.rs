//! What a group costs while nothing happens. Alone in its process, for it counts all of the threads
//! that groups have.

mod support;

use forebay_cluster::{Group, LinkState};
use forebay_membership::{Times, Tuning};
use std::time::{Duration, Instant};
use support::{Site, wait, wait_agreed};

/// Time on a processor of all threads of groups so far.
fn used() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let of_groups = tasks.filter(|task| read(task.path().join("comm")).starts_with("group"));
    let spent = of_groups.map(|task| {
        let spent = read(task.path().join("schedstat"));
        spent.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
    });
    Duration::from_nanos(spent.sum())
}

#[test]
fn an_idle_group_takes_less_than_half_a_percent_of_a_core() {
    const LOOK: Duration = Duration::from_secs(10);
    let mut site = Site::of(2);
    (site.times, site.tuning) = (Times::default(), Tuning::default());
    let groups: Vec<Group> = site.start_all();
    wait_agreed(&groups);
    wait("links", &groups, |all| {
        all.iter().flat_map(|status| &status.links).all(|link| link.state == LinkState::Up)
    });
    let sent =
        |groups: &[Group]| -> u64 { groups.iter().map(|group| group.status().packets.sent).sum() };
    let (before, packets, begin) = (used(), sent(&groups), Instant::now());
    std::thread::sleep(LOOK);
    let (spent, passed) = (used() - before, begin.elapsed());
    let each = (sent(&groups) - packets) as f64 / passed.as_secs_f64() / groups.len() as f64;
    let share = spent.as_secs_f64() / passed.as_secs_f64() / groups.len() as f64;
    println!("{:.3} % of a core and {each:.1} packets a second for each node", share * 100.0);
    assert!(spent > Duration::ZERO && share < 0.005, "{spent:?} in {passed:?}");
    assert!(each < 6.0, "{each} packets a second");
}
