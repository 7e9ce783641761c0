//! Programs that are stopped, with whatever they hold: others go on, people are told of them, and
//! once they are continued nothing is missing.

use crate::harness::{
    self, Ran, Setup, Site, USUAL, assert_same_bytes, kill, paused, skip, wait_for,
};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// What others may take at most while programs are stopped: a second or two, on a machine that has
/// other things to do.
const BOUND: Duration = Duration::from_secs(20);

/// What it may take until one more of seventy programs, which start at once, comes to its point.
const START: Duration = Duration::from_secs(60);

/// RAM for what eighty programs keep at hand: where that is all of it, others wait for room, five
/// seconds for each write.
const LIVELY: Setup =
    Setup { ram: "256MiB", flush: "trigger = \"periodic\"\nperiod = \"100ms\"", ..USUAL };

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
    // A forked child has its slot from its parent, and pages that others have left are there.
    let passed = |point: &&str| *point != "slot.reserved" && !point.starts_with("sparse.");
    points.filter(passed).map(str::to_owned).collect()
}

/// Starts a program for each point, each with a file of its own, and stops it there: it pauses for
/// 180 s at most, and the last of them may come later than that. Returns the run and the programs'
/// process ids.
fn stop_at(site: &Site, points: &[String]) -> (harness::Running, Vec<u32>) {
    let mut script = String::from(": > $OUT/flag\n");
    for (number, point) in points.iter().enumerate() {
        script += &format!(
            "FOREBAY_PAUSE='{point}:1:while='$OUT/flag FOREBAY_PAUSE_IN=client \
             FOREBAY_PAUSE_LOG=$OUT/log-{number} $BIN/stopped file-{number} &\nall[{number}]=$!\n"
        );
    }
    script += "for pid in ${all[*]}; do wait $pid || exit 1; done\n";
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    let pid_of = |number: usize| paused(&site.out.join(format!("log-{number}")));
    let (mut last, mut stopped) = (Instant::now(), BTreeSet::new());
    let pids = loop {
        let found: Vec<_> = (0..points.len()).map(pid_of).collect();
        for &pid in found.iter().flatten() {
            if stopped.insert(pid) {
                kill(pid, Signal::STOP);
                last = Instant::now();
            }
        }
        if let Some(pids) = found.iter().copied().collect::<Option<Vec<u32>>>() {
            break pids;
        }
        let missing = points.iter().zip(&found).filter(|(_, pid)| pid.is_none());
        let missing: Vec<_> = missing.map(|(point, _)| point).collect();
        assert!(last.elapsed() < START, "programs do not come to {missing:?}: {}", run.stderr());
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
fn no_process_waits_for_one_that_is_stopped_at_any_step() {
    let Some(site) = site(&LIVELY) else { return };
    let wanted = wanted(&site);
    // Where programs write to the store themselves, unless the manager was faster; and what else
    // depends on that.
    let chance = |point: &String| point.starts_with("write-back.");
    let passed = (0..4).map(|_| points(&site)).reduce(|all, again| &all & &again).unwrap();
    let points: Vec<String> = passed.into_iter().filter(|point| !chance(point)).collect();
    assert!(points.len() > 40, "{points:?}");
    let (run, pids) = stop_at(&site, &points);
    // Processes that want the stopped ones' files on the store wait, and know for which process.
    let all: Vec<_> = (0..points.len()).map(|number| format!("file-{number}")).collect();
    let script = format!("for name in {}; do sync $name & done; wait", all.join(" "));
    let waiters = site.start(site.buffered(&["bash", "-c", &script]));
    let holder = points.iter().position(|point| point == "cut-block.dirty").unwrap();
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

/// A program is stopped wherever it brings its file to the store itself. The file is synced by
/// others once it goes on, other files at once.
#[test]
fn no_process_waits_for_one_that_is_stopped_while_it_writes_back() {
    let Some(site) = site(&harness::LAZY) else { return };
    let wanted = wanted(&site);
    let points: Vec<String> = points(&site).into_iter().collect();
    let points: Vec<_> =
        points.into_iter().filter(|point| point.starts_with("write-back.")).collect();
    assert!(points.len() >= 8, "{points:?}");
    let (run, pids) = stop_at(&site, &points);
    let all: Vec<_> = (0..points.len()).map(|number| format!("file-{number}")).collect();
    let script = format!("for name in {}; do sync $name & done; wait", all.join(" "));
    let waiters = site.start(site.buffered(&["bash", "-c", &script]));
    let others = site.start(steps(&site, "open:1:other write:1:3000 fsync:1 close:1"));
    let line = "fsync 0\nclose 0\n";
    wait_for("another program's fsync", BOUND, || others.stdout().contains(line).then_some(()));
    go_on(&site, &pids);
    run.end().expect(0);
    waiters.end().expect(0);
    others.end().expect(0);
    for (number, point) in points.iter().enumerate() {
        let got = fs::read(site.store.join(format!("file-{number}"))).unwrap();
        assert_same_bytes(&format!("stopped at {point}"), &got, &wanted);
    }
}

/// A run of `script`, in which a process pauses, and that is stopped then. It goes on by [`go_on`].
fn stopped_in(site: &Site, script: &str) -> (harness::Running, u32) {
    let script = format!(
        ": > $OUT/flag; pausing() {{ FOREBAY_PAUSE=\"$1:while=$OUT/flag\" FOREBAY_PAUSE_IN=client \
         FOREBAY_PAUSE_LOG=$OUT/log \"${{@:2}}\"; }}\n{script}"
    );
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    let pid = wait_for("the pause", BOUND, || paused(&site.out.join("log")));
    kill(pid, Signal::STOP);
    (run, pid)
}

/// The process of `programs/waiting.c` below `running` that has come to wait.
fn waiter(site: &Site, running: &harness::Running, call: &str) -> u32 {
    let program = site.root().join("waiting");
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program)
            && line.split(|&byte| byte == 0).any(|word| word == call.as_bytes())
    };
    wait_for("the call", BOUND, || running.stdout().ends_with("ready\n").then_some(()));
    let found = || harness::descendants(running.pid()).into_iter().find(is_it);
    let pid = wait_for("its process", BOUND, found);
    std::thread::sleep(Duration::from_millis(100));
    assert!(running.stdout().ends_with("ready\n"), "{call} does not wait: {}", running.stdout());
    pid
}

fn waiting(site: &Site, how: &str, call: &str) -> harness::Running {
    let program = site.root().join("waiting");
    site.start(site.buffered(&[program.to_str().unwrap(), how, call, "file"]))
}

/// Makes `call` wait, sends its process a signal, and waits until it has printed `wanted`. The run
/// may wait for a drain after that.
fn interrupted(site: &Site, how: &str, call: &str, wanted: &str) -> harness::Running {
    let running = waiting(site, how, call);
    kill(waiter(site, &running, call), Signal::USR1);
    let wanted = format!("ready\nsignal\n{wanted}");
    let done = || (running.stdout().lines().count() >= wanted.lines().count()).then_some(());
    wait_for(&format!("{call} to be interrupted: {wanted:?}"), BOUND, done);
    assert_eq!(running.stdout(), wanted, "{call}");
    running
}

#[test]
fn a_signal_ends_the_wait_for_a_block_of_a_stopped_process() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 | head -c 400000 > file
        pausing write.filled:2 dd if=/dev/zero of=file bs=1k count=4 seek=300 conv=notrunc status=none";
    let (run, pid) = stopped_in(&site, script);
    let calls =
        ["pwrite", "pread", "append", "fsync", "ftruncate", "punch", "ioctl", "mmap", "cut"];
    let mut ended: Vec<_> =
        calls.iter().map(|call| interrupted(&site, "end", call, "EINTR\n")).collect();
    // One that is not synced is written nevertheless: it must not be made again.
    ended.push(interrupted(&site, "end", "sync-write", "EIO\n"));
    // What was written before the wait counts.
    ended.push(interrupted(&site, "end", "part", "200000\n"));
    ended.push(interrupted(&site, "jump", "pwrite", "jumped\n"));
    // A signal without a handler ends the program.
    let killed = [("pwrite", Signal::TERM), ("fsync", Signal::INT)].map(|(call, signal)| {
        let running = waiting(&site, "end", call);
        let pid = waiter(&site, &running, call);
        kill(pid, signal);
        wait_for("its end", BOUND, || (!harness::is_alive(pid)).then_some(()));
        (running, signal)
    });
    // One with SA_RESTART goes on waiting. Others wait for one that waits: that takes longer.
    let calls = ["fsync", "pread", "append", "pwrite", "ftruncate", "mmap", "punch"];
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

/// A file of whole lines, `bytes` long.
fn lines(bytes: usize) -> String {
    let all: String = (1..100_000).map(|number| format!("{number}\n")).collect();
    all[..bytes].to_owned()
}

/// Lets the run of a script make `calls`, one after the other, each of which a signal ends, or the
/// run itself. Each must print what is wanted of it.
fn signalled(site: &Site, run: &harness::Running, calls: &[(&str, &str)]) {
    fs::write(site.out.join("go"), "").unwrap();
    let mut wanted = String::new();
    for (call, result) in calls {
        kill(waiter(site, run, call), Signal::USR1);
        wanted += &format!("ready\nsignal\n{result}\n");
        let done = || run.stdout().starts_with(&wanted).then_some(());
        wait_for(&format!("the end of {call}: {}", run.stdout()), BOUND, done);
    }
}

#[test]
fn what_is_appended_and_not_synced_is_not_appended_again() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 | head -c 400000 > file
        pausing write.filled:2 dd if=/dev/zero of=file bs=1k count=4 seek=100 conv=notrunc status=none";
    let (run, pid) = stopped_in(&site, script);
    let calls = ["append-sync", "append-dsync", "dsync-append", "stream-append"];
    let mut length = 400_000;
    let size = || fs::metadata(site.store.join("file")).unwrap().len();
    let mut done = Vec::new();
    for call in calls {
        done.push(interrupted(&site, "end", call, "EIO\n"));
        length += 100;
    }
    for call in calls {
        let running = interrupted(&site, "restart", call, "");
        length += 100;
        // Time enough to do it again.
        std::thread::sleep(Duration::from_millis(300));
        done.push(running);
    }
    go_on(&site, &[pid]);
    let ended = |running: harness::Running| running.end().expect(0).stdout;
    let said: Vec<_> = done.into_iter().map(ended).collect();
    run.end().expect(0);
    assert_eq!(said[..4], ["ready\nsignal\nEIO\n"; 4]);
    assert_eq!(said[4..], ["ready\nsignal\n0\n"; 4]);
    assert_eq!(size(), length);
}

/// The script of a run whose manager is stopped while it makes `calls`: `HOW/CALL`.
fn calls_of(calls: &[&str]) -> String {
    let calls: String = calls
        .iter()
        .map(|call| format!("$BIN/waiting {} file\n", call.replace('/', " ")))
        .collect();
    format!(
        "seq 100000 | head -c 400000 > file; : > $OUT/made
        while [ ! -e $OUT/go ]; do sleep 0.01; done
        {calls}: > $OUT/done
        while [ ! -e $OUT/on ]; do sleep 0.01; done; cp file $OUT/seen"
    )
}

/// Stops the manager of a run, once that has come to `point`, or to nothing in particular.
fn manager_stopped_at(
    site: &Site,
    point: &str,
    script: &str,
    scale: u32,
) -> (harness::Running, u32) {
    let mut command = site.buffered(&["bash", "-c", script]);
    // A program that could do without the manager would.
    command.env("FOREBAY_TIME_SCALE", scale.to_string()).env("FOREBAY_REFUSE", "write-back:1..");
    if !point.is_empty() {
        fs::write(site.out.join("flag"), "").unwrap();
        let flag = site.out.join("flag");
        command.env("FOREBAY_PAUSE", format!("{point}:1:while={}", flag.display()));
        command.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", site.out.join("log"));
    }
    let run = site.start(command);
    wait_for("the file", BOUND, || site.out.join("made").exists().then_some(()));
    let manager = site.status().manager;
    if !point.is_empty() {
        let log = || fs::read_to_string(site.out.join("log")).is_ok_and(|log| !log.is_empty());
        wait_for("the pause", BOUND, || log().then_some(()));
    }
    kill(manager, Signal::STOP);
    (run, manager)
}

/// Continues the manager, and looks that nothing has changed the file.
fn manager_goes_on(site: &Site, run: harness::Running, manager: u32, wanted: &str) {
    let _ = fs::remove_file(site.out.join("flag"));
    kill(manager, Signal::CONT);
    fs::write(site.out.join("on"), "").unwrap();
    let ran = run.end().expect(0);
    println!("{}", ran.stdout);
    let seen = fs::read(site.out.join("seen")).unwrap();
    assert_same_bytes("as programs see it", &seen, wanted.as_bytes());
    let stored = fs::read(site.store.join("file")).unwrap();
    assert_same_bytes("on the store", &stored, wanted.as_bytes());
}

/// Where a manager is stopped, which holds a block, or reads its bytes, there.
const HOLDING: [&str; 2] = ["flush.writeback", "flush.writing"];

#[test]
fn a_signal_ends_the_wait_for_a_stopped_manager() {
    let waits: [(&str, &[&str]); 3] = [
        ("", &["fsync", "ioctl", "mmap"]),
        (HOLDING[0], &["fsync", "ftruncate", "punch", "cut", "mmap", "write-0"]),
        (HOLDING[1], &["fsync", "ftruncate", "punch", "cut", "mmap"]),
    ];
    for (point, calls) in waits {
        let setup = if point.is_empty() { harness::LAZY } else { LIVELY };
        let Some(site) = site(&setup).filter(|site| site.compile("waiting.c", &[])) else { return };
        let script: Vec<_> = calls.iter().map(|call| format!("end/{call}")).collect();
        let mut script: Vec<_> = script.iter().map(String::as_str).collect();
        script.extend(["restart/fsync", "restart/mmap"]);
        let (run, manager) = manager_stopped_at(&site, point, &calls_of(&script), 1);
        let calls: Vec<_> = calls.iter().map(|&call| (call, "EINTR")).collect();
        signalled(&site, &run, &calls);
        kill(waiter(&site, &run, "fsync"), Signal::USR1);
        let goes_on = || run.stdout().ends_with("EINTR\nready\nsignal\n").then_some(());
        wait_for("the handler", BOUND, goes_on);
        std::thread::sleep(Duration::from_millis(300));
        goes_on().expect("a call that begins again");
        manager_goes_on(&site, run, manager, &lines(400_000));
    }
}

#[test]
fn the_wait_for_a_stopped_manager_ends_by_itself() {
    let waits: [(&str, &[(&str, &str)]); 3] = [
        ("", &[("fsync", "ETIMEDOUT"), ("mmap", "ETIMEDOUT"), ("ioctl", "ETIMEDOUT")]),
        (
            HOLDING[0],
            &[
                ("fsync", "ETIMEDOUT"),
                ("mmap", "ETIMEDOUT"),
                ("ftruncate", "ETIMEDOUT"),
                ("punch", "ETIMEDOUT"),
                ("cut", "ETIMEDOUT"),
                ("write-0", "ETIMEDOUT"),
            ],
        ),
        (
            HOLDING[1],
            &[
                ("fsync", "ETIMEDOUT"),
                ("ftruncate", "ETIMEDOUT"),
                ("punch", "ETIMEDOUT"),
                ("cut", "ETIMEDOUT"),
                ("read-0", "0"),
                ("syncfs", "EIO"),
                ("sync", "0"),
            ],
        ),
    ];
    for (point, calls) in waits {
        let setup = if point.is_empty() { harness::LAZY } else { LIVELY };
        let Some(site) = site(&setup).filter(|site| site.compile("waiting.c", &[])) else { return };
        // Once in silence, and once while signals come.
        let script: Vec<_> = ["end", "timer"]
            .iter()
            .flat_map(|how| calls.iter().map(move |(call, _)| format!("{how}/{call}")))
            .collect();
        let script: Vec<_> = script.iter().map(String::as_str).collect();
        let (run, manager) = manager_stopped_at(&site, point, &calls_of(&script), 50);
        fs::write(site.out.join("go"), "").unwrap();
        let all = || site.out.join("done").exists().then_some(());
        wait_for(&format!("the end of all calls at {point}"), 2 * BOUND, all);
        let wanted: String = calls.iter().map(|(_, result)| format!("ready\n{result}\n")).collect();
        assert_eq!(run.stdout(), wanted.repeat(2), "stopped at {point:?}");
        manager_goes_on(&site, run, manager, &lines(400_000));
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_manager_that_is_stopped_while_it_takes_back_what_a_dead_writer_had()
{
    let Some(site) = site(&harness::LAZY).filter(|site| site.compile("waiting.c", &[])) else {
        return;
    };
    let script = "head -c 1000 /dev/zero > file; : > $OUT/made; yes | head -c 3000 > $OUT/tail
        FOREBAY_CRASH=write.dirty:1 dd if=$OUT/tail of=file bs=3000 seek=1000 oflag=seek_bytes \
            conv=notrunc status=none
        while [ ! -e $OUT/go ]; do sleep 0.01; done
        $BIN/waiting end beyond file
        while [ ! -e $OUT/on ]; do sleep 0.01; done; cp file $OUT/seen";
    let (run, manager) = manager_stopped_at(&site, "reap.inside", script, 1);
    signalled(&site, &run, &[("beyond", "EINTR")]);
    manager_goes_on(&site, run, manager, &"\0".repeat(1000));
}

/// As many as can make one file's store longer at a time.
#[test]
fn a_wait_for_four_that_are_stopped_while_they_write_around_the_tiers_is_ended_by_a_signal() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 1000 > file; : > $OUT/flag; export FOREBAY_REFUSE=bucket:1..,slot:1..
        for n in 1 2 3 4; do
            FOREBAY_PAUSE=lengthen.begun:1:while=$OUT/flag FOREBAY_PAUSE_LOG=$OUT/log \
                dd if=/dev/zero of=file bs=1k count=1 seek=$((n * 300)) conv=notrunc status=none &
        done
        while [ ! -e $OUT/go ]; do sleep 0.01; done
        $BIN/waiting end beyond file; $BIN/waiting end beyond file; wait";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    let pids = wait_for("four writers", BOUND, || {
        let log = fs::read_to_string(site.out.join("log")).ok()?;
        let pids: Vec<u32> =
            log.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        (pids.len() == 4).then_some(pids)
    });
    pids.iter().for_each(|&pid| kill(pid, Signal::STOP));
    signalled(&site, &run, &[("beyond", "EINTR"), ("beyond", "EINTR")]);
    let others = "open:1:other write:1:3000 fsync:1 close:1";
    let others = site.start(steps(&site, others));
    wait_for("another file", BOUND, || others.stdout().contains("close 0").then_some(()));
    let status = site.status().text;
    for pid in &pids {
        assert!(status.contains(&format!("process {pid} is stopped")), "{pid}: {status}");
    }
    go_on(&site, &pids);
    run.end().expect(0);
    others.end().expect(0);
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 1201 << 10);
}

#[test]
fn a_sync_of_everything_does_not_wait_for_ever_for_what_a_stopped_process_holds() {
    let Some(site) = site(&LIVELY).filter(|site| site.compile("waiting.c", &[])) else { return };
    let script = "seq 100000 | head -c 400000 > file
        pausing write.filled:2 dd if=/dev/zero of=file bs=1k count=4 seek=300 conv=notrunc status=none";
    let (run, pid) = stopped_in(&site, script);
    let program = site.root().join("waiting");
    let ended = [("syncfs", "ready\nEIO\n"), ("sync", "ready\n0\n")].map(|(call, wanted)| {
        let mut command = site.buffered(&[program.to_str().unwrap(), "timer", call, "file"]);
        command.env("FOREBAY_TIME_SCALE", "50");
        let running = site.start(command);
        wait_for(call, BOUND, || (running.stdout() == wanted).then_some(()));
        running
    });
    go_on(&site, &[pid]);
    ended.into_iter().chain([run]).for_each(|running| drop(running.end().expect(0)));
}
