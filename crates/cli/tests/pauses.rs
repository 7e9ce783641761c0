//! Threads are stopped at chosen points, for longer than every timer of the manager, while others go on.

mod common;

use common::{LAZY, LIMIT, Site, wait_for};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lines of a log of pauses: role, point and pid.
fn pauses(log: &Path) -> Vec<(String, String, u32)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| {
        let [role, name, pid] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}: not a pause")
        };
        (role.to_owned(), name.to_owned(), pid.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn a_thread_pauses_where_and_for_as_long_as_asked() {
    let site = Site::new(&LAZY);
    let log = site.out.join("log");
    let script = "export FOREBAY_PAUSE_LOG=$OUT/log\n\
        FOREBAY_PAUSE=open.*:2:300 FOREBAY_PAUSE_IN=client dd if=/dev/zero of=a bs=1 count=1\n\
        FOREBAY_PAUSE=open.marked:1:300 FOREBAY_PAUSE_IN=node dd if=/dev/zero of=b bs=1 count=1\n\
        FOREBAY_PAUSE=open.marked:2:300 dd if=/dev/zero of=c bs=1 count=1\n\
        FOREBAY_PAUSE=write.*:1/1:1 FOREBAY_PAUSE_SEED=7 dd if=/dev/zero of=d bs=1 count=9\n";
    let since = Instant::now();
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert!(since.elapsed() > Duration::from_millis(300), "{ran:?}");
    let seen = pauses(&log);
    assert!(seen.iter().all(|(role, ..)| role == "client"), "{seen:?}");
    assert_eq!(seen.iter().filter(|(_, name, _)| name.starts_with("open.")).count(), 1, "{seen:?}");
    assert_eq!(seen[0].1, "open.marked", "the second of a new file, after open.recorded");
    let writes = seen.iter().filter(|(_, name, _)| name.starts_with("write.")).count();
    assert!(writes >= 9, "{seen:?}");
}

#[test]
fn a_thread_pauses_until_a_file_is_gone() {
    let site = Site::new(&LAZY);
    let (log, held) = (site.out.join("log"), site.out.join("held"));
    fs::write(&held, "").unwrap();
    let script = "FOREBAY_PAUSE=open.marked:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log \
        dd if=/dev/zero of=a bs=1 count=1 && : > $OUT/done";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the pause", LIMIT, || (pauses(&log).len() == 1).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!site.out.join("done").exists());
    fs::remove_file(&held).unwrap();
    run.end().expect(0);
    assert!(site.out.join("done").exists());
}
