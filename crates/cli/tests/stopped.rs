//! Programs that are stopped, with whatever they hold: others go on, people are told of them, and once they
//! are continued nothing is missing.

mod common;

use common::{Ran, Setup, Site, USUAL, assert_same_bytes, kill, skip, wait_for};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// What others may take at most while programs are stopped: a second or two, on a machine that has
/// other things to do.
const BOUND: Duration = Duration::from_secs(20);

const LIVELY: Setup = Setup { flush: "trigger = \"periodic\"\nperiod = \"100ms\"", ..USUAL };

/// A site with the programs that are stopped, and those that are not to notice.
fn site(setup: &Setup) -> Option<Site> {
    if !cfg!(debug_assertions) {
        skip("pauses are only in builds with debug assertions");
        return None;
    }
    let site = Site::new(setup);
    (site.compile("stopped.c", &[]) && site.compile("steps.c", &[])).then_some(site)
}

/// The points that `programs/stopped.c` passes as a client.
fn points(site: &Site) -> BTreeSet<String> {
    let list = site.out.join("points");
    fs::write(&list, "").unwrap();
    let program = site.root().join("stopped");
    let mut command = site.buffered(&[program.to_str().unwrap(), "points"]);
    command.env("FOREBAY_CRASH_LIST", &list);
    site.end(command).expect(0);
    let text = fs::read_to_string(&list).unwrap();
    fs::remove_file(site.store.join("points")).unwrap();
    let points = text.lines().filter_map(|line| line.strip_prefix("client "));
    // A forked child has its slot from its parent.
    points.filter(|point| *point != "slot.reserved").map(str::to_owned).collect()
}

/// Starts a program for each point, all of which pause there; each has a file of its own. Returns the run
/// and the programs' process ids.
fn pause_at(site: &Site, points: &[String]) -> (common::Running, Vec<u32>) {
    let mut script = String::from(": > $OUT/flag\n");
    for (number, point) in points.iter().enumerate() {
        script += &format!(
            "FOREBAY_PAUSE='{point}:1:while='$OUT/flag FOREBAY_PAUSE_IN=client \
             FOREBAY_PAUSE_LOG=$OUT/log-{number} $BIN/stopped file-{number} &\nall[{number}]=$!\n"
        );
    }
    script += "for pid in ${all[*]}; do wait $pid || exit 1; done\n";
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    let pid_of = |number: usize| -> Option<u32> {
        let log = fs::read_to_string(site.out.join(format!("log-{number}"))).ok()?;
        log.lines().next()?.rsplit(' ').next()?.parse().ok()
    };
    let since = Instant::now();
    let pids = loop {
        let found: Vec<_> = (0..points.len()).map(pid_of).collect();
        if let Some(pids) = found.iter().copied().collect::<Option<Vec<u32>>>() {
            break pids;
        }
        let missing = points.iter().zip(&found).filter(|(_, pid)| pid.is_none());
        let missing: Vec<_> = missing.map(|(point, _)| point).collect();
        assert!(since.elapsed() < BOUND, "programs do not come to {missing:?}: {}", run.stderr());
        std::thread::sleep(Duration::from_millis(5));
    };
    (run, pids)
}

/// Lets programs that were paused and stopped go on.
fn go_on(site: &Site, pids: &[u32]) {
    fs::remove_file(site.out.join("flag")).unwrap();
    pids.iter().for_each(|&pid| kill(pid, Signal::CONT));
}

fn steps(site: &Site, steps: &str) -> Command {
    let program = site.root().join("steps");
    let words: Vec<_> =
        std::iter::once(program.to_str().unwrap()).chain(steps.split_whitespace()).collect();
    site.buffered(&words)
}

/// What each program does with its file, done plainly.
fn wanted(site: &Site) -> Vec<u8> {
    let ran: Ran = site.run_plainly("$BIN/stopped file");
    ran.expect(0);
    fs::read(site.plain.join("file")).unwrap()
}

#[test]
fn nobody_waits_for_who_is_stopped_at_any_step() {
    let Some(site) = site(&LIVELY) else { return };
    let wanted = wanted(&site);
    let points: Vec<String> = points(&site).into_iter().collect();
    assert!(points.len() > 40, "{points:?}");
    let (run, pids) = pause_at(&site, &points);
    pids.iter().for_each(|&pid| kill(pid, Signal::STOP));
    // Those who want the stopped ones' files on the store wait, and know for whom.
    let all: Vec<_> = (0..points.len()).map(|number| format!("file-{number}")).collect();
    let script = format!("for name in {}; do sync $name & done; wait", all.join(" "));
    let waiters = site.start(site.buffered(&["bash", "-c", &script]));
    let holder = points.iter().position(|point| point == "cut.dirty").unwrap();
    let flush = site.start(site.forebay(&["flush", &all[holder]]));
    let named = format!("process {} is stopped", pids[holder]);
    wait_for("a flush to name it", BOUND, || flush.stderr().contains(&named).then_some(()));
    let since = Instant::now();
    let others = site.start(steps(
        &site,
        "open:1:other write:1:3000 fsync:1 close:1 open:2:new \
        write:2:10 fsync:2 close:2",
    ));
    let line = "fsync 0\nclose 0\nopen 0\nwrite 0\nfsync 0\nclose 0\n";
    wait_for("another program's fsync", BOUND, || others.stdout().contains(line).then_some(()));
    println!("{} points, others took {:?}", points.len(), since.elapsed());
    // Each that holds something is named.
    let named = wait_for("the status", BOUND, || {
        let text = site.status().text;
        let held: Vec<_> = text.lines().filter(|line| line.contains("HELD")).collect();
        let names = |pid: &&u32| held.iter().any(|line| line.contains(&format!("process {pid} ")));
        let named = pids.iter().filter(names).count();
        (named > points.len() / 2).then_some((named, text))
    });
    println!("{} are named:\n{}", named.0, named.1);
    go_on(&site, &pids);
    run.end().expect(0);
    waiters.end().expect(0);
    flush.end().expect(0);
    others.end().expect(0);
    for (number, point) in points.iter().enumerate() {
        let got = fs::read(site.store.join(format!("file-{number}"))).unwrap();
        assert_same_bytes(&format!("stopped at {point}"), &got, &wanted);
    }
}

/// A run of `script`, in which a process pauses, and that is stopped then. It goes on by [`go_on`].
fn stopped_in(site: &Site, script: &str) -> (common::Running, u32) {
    let script = format!(
        ": > $OUT/flag; pausing() {{ FOREBAY_PAUSE=\"$1:while=$OUT/flag\" FOREBAY_PAUSE_IN=client \
         FOREBAY_PAUSE_LOG=$OUT/log \"${{@:2}}\"; }}\n{script}"
    );
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    let pid = wait_for("the pause", BOUND, || {
        let log = fs::read_to_string(site.out.join("log")).ok()?;
        log.lines().next()?.rsplit(' ').next()?.parse().ok()
    });
    kill(pid, Signal::STOP);
    (run, pid)
}

/// The process of `programs/waiting.c` below `running` that has come to wait.
fn waiter(site: &Site, running: &common::Running, call: &str) -> u32 {
    let program = site.root().join("waiting");
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program)
            && line.split(|&byte| byte == 0).any(|word| word == call.as_bytes())
    };
    wait_for("the call", BOUND, || running.stdout().ends_with("ready\n").then_some(()));
    let found = || common::descendants(running.pid()).into_iter().find(is_it);
    let pid = wait_for("its process", BOUND, found);
    std::thread::sleep(Duration::from_millis(100));
    assert!(running.stdout().ends_with("ready\n"), "{call} does not wait: {}", running.stdout());
    pid
}

fn waiting(site: &Site, how: &str, call: &str) -> common::Running {
    let program = site.root().join("waiting");
    site.start(site.buffered(&[program.to_str().unwrap(), how, call, "file"]))
}

/// Makes `call` wait, sends its process a signal, and waits until it has printed `wanted`. The run may wait for a
/// drain after that.
fn interrupted(site: &Site, how: &str, call: &str, wanted: &str) -> common::Running {
    let running = waiting(site, how, call);
    kill(waiter(site, &running, call), Signal::USR1);
    let wanted = format!("ready\nsignal\n{wanted}");
    let done = || (running.stdout() == wanted).then_some(());
    wait_for(&format!("{call} to be interrupted: {wanted:?}"), BOUND, done);
    running
}

#[test]
fn a_signal_ends_the_wait_for_a_block_of_a_stopped_process() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 | head -c 400000 > file
        pausing write.filled:2 dd if=/dev/zero of=file bs=1k count=4 seek=300 conv=notrunc status=none";
    let (run, pid) = stopped_in(&site, script);
    let calls = [
        "pwrite",
        "pread",
        "append",
        "fsync",
        "sync-write",
        "ftruncate",
        "punch",
        "ioctl",
        "mmap",
        "cut",
    ];
    let mut ended: Vec<_> =
        calls.iter().map(|call| interrupted(&site, "end", call, "EINTR\n")).collect();
    // What was written before the wait counts.
    ended.push(interrupted(&site, "end", "part", "200000\n"));
    ended.push(interrupted(&site, "jump", "pwrite", "jumped\n"));
    // A signal without a handler ends the program.
    let killed = [("pwrite", Signal::TERM), ("fsync", Signal::INT)].map(|(call, signal)| {
        let running = waiting(&site, "end", call);
        let pid = waiter(&site, &running, call);
        kill(pid, signal);
        wait_for("its end", BOUND, || (!common::is_alive(pid)).then_some(()));
        (running, signal)
    });
    // One with SA_RESTART goes on waiting. Others wait for one that waits: that takes longer.
    let calls = ["fsync", "pread", "append", "pwrite", "ftruncate"];
    let restarted = calls.map(|call| interrupted(&site, "restart", call, ""));
    ended.push(interrupted(&site, "end", "pwrite", "EINTR\n"));
    for running in &restarted {
        assert_eq!(running.stdout(), "ready\nsignal\n");
    }
    go_on(&site, &[pid]);
    for running in restarted {
        assert_eq!(running.end().expect(0).stdout, "ready\nsignal\n0\n");
    }
    for (running, signal) in killed {
        running.end().expect(128 + signal.as_raw());
    }
    ended.into_iter().chain([run]).for_each(|running| drop(running.end().expect(0)));
}

#[test]
fn a_signal_ends_the_wait_for_an_offset_of_a_stopped_process() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 > file; exec 3<>file
        pausing write.filled:1 head -c 1000 /dev/zero >&3 & stopped=$!
        while [ ! -e $OUT/go ]; do sleep 0.01; done
        for call in lseek read write; do $BIN/waiting end $call file; done; wait $stopped";
    let (run, pid) = stopped_in(&site, script);
    fs::write(site.out.join("go"), "").unwrap();
    for (before, call) in ["lseek", "read", "write"].into_iter().enumerate() {
        kill(waiter(&site, &run, call), Signal::USR1);
        let done = "ready\nsignal\nEINTR\n".repeat(before + 1);
        let done = || run.stdout().starts_with(&done).then_some(());
        wait_for(&format!("the end of {call}"), BOUND, done);
    }
    go_on(&site, &[pid]);
    run.end().expect(0);
}

#[test]
fn a_signal_ends_the_wait_for_a_stopped_process_that_opens() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 > file; pausing file.found:1 $BIN/steps open:1:file write:1:4 close:1";
    let (run, pid) = stopped_in(&site, script);
    for call in ["open", "stat", "utimens"] {
        interrupted(&site, "end", call, "EINTR\n").end().expect(0);
    }
    let restarts = interrupted(&site, "restart", "open", "");
    go_on(&site, &[pid]);
    assert_eq!(restarts.end().expect(0).stdout, "ready\nsignal\n0\n");
    run.end().expect(0);
}
