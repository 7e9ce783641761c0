//! Threads are stopped at chosen points, for longer than every timer of the manager, while others
//! go on.

use crate::harness::{
    LAZY, LIMIT, LONG, NOBODY, Setup, Site, as_user, assert_same_bytes, kill, skip, wait_for,
};
use forebay_pool::Segment;
use forebay_pool::segment::open_pool;
use rustix::process::Signal;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Under this, no timer of manager or client exceeds 80 ms.
const SCALE: &str = "export FOREBAY_TIME_SCALE=50\n";

/// Steps of an open, of a close and of a first write, in about the order in which they are passed.
const STEPS: [&str; 17] = [
    "open.seen",
    "file.taken",
    "open.recorded",
    "file.linking",
    "file.linked",
    "file.found",
    "description.taken",
    "description.named",
    "description.held",
    "description.live",
    "file.described",
    "open.found",
    "open.marked",
    "write.store-written",
    "write.published",
    "write.valid",
    "write.copied",
];

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
        FOREBAY_PAUSE=open.*:4:300 FOREBAY_PAUSE_IN=client dd if=/dev/zero of=a bs=1 count=1\n\
        FOREBAY_PAUSE=open.marked:1:300 FOREBAY_PAUSE_IN=node dd if=/dev/zero of=b bs=1 count=1\n\
        FOREBAY_PAUSE=open.marked:2:300 dd if=/dev/zero of=c bs=1 count=1\n\
        FOREBAY_PAUSE=write.*:1/1:1 FOREBAY_PAUSE_SEED=7 dd if=/dev/zero of=d bs=1 count=9\n\
        FOREBAY_PAUSE=file.*:1/1:1 FOREBAY_PAUSE_MOST=2 dd if=/dev/zero of=e bs=1 count=1\n";
    let since = Instant::now();
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert!(since.elapsed() > Duration::from_millis(300), "{ran:?}");
    let seen = pauses(&log);
    assert!(seen.iter().all(|(role, ..)| role == "client"), "{seen:?}");
    assert_eq!(seen.iter().filter(|(_, name, _)| name.starts_with("open.")).count(), 1, "{seen:?}");
    assert_eq!(seen[0].1, "open.recorded", "the third of a new file; the first was of /dev/zero");
    let writes = seen.iter().filter(|(_, name, _)| name.starts_with("write.")).count();
    assert!(writes >= 9, "{seen:?}");
    assert_eq!(seen.iter().filter(|(_, name, _)| name.starts_with("file.")).count(), 2, "{seen:?}");
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

/// What `victim` writes: no multiple of a page, and nothing that others write.
fn bytes_of(victim: usize) -> Vec<u8> {
    (0..150_001).map(|at| (at * 7 + at / 251 + victim * 31) as u8 | 1).collect()
}

/// One program after the other stops at each of [`STEPS`] for as long as others need to make, write
/// and remove hundreds of files, which use inodes and records again, and longer than every timer.
fn stop_in_opens(setup: &Setup, prepare: &str) {
    let site = Site::new(setup);
    for victim in 0..STEPS.len() {
        fs::write(site.out.join(format!("from-{victim}")), bytes_of(victim)).unwrap();
    }
    let script = format!(
        "{SCALE}n=0\nfor step in {}; do\n{prepare}\n\
         FOREBAY_PAUSE=$step:1:250 FOREBAY_PAUSE_LOG=$OUT/log-$n \
         dd if=$OUT/from-$n of=victim-$n bs=40000 conv=notrunc status=none &\n\
         victim=$! round=0\n\
         while kill -0 $victim 2> $OUT/gone; do\n\
           for k in 1 2 3 4; do echo other > other-$round-$k; done\n\
           rm other-$round-[1-3]; round=$((round + 1))\n\
         done\n\
         wait; n=$((n + 1))\ndone\n\
         for k in $(seq 0 $((n - 1))); do cp victim-$k $OUT/seen-$k; done\n",
        STEPS.join(" ")
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    status.assert_live();
    for (victim, step) in STEPS.iter().enumerate() {
        let seen = pauses(&site.out.join(format!("log-{victim}")));
        assert!(seen.len() == 1 && seen[0].1 == *step, "{step}: {seen:?}");
        for file in
            [site.out.join(format!("seen-{victim}")), site.store.join(format!("victim-{victim}"))]
        {
            let got = fs::read(&file).unwrap_or_default();
            assert_same_bytes(&format!("{step}: {}", file.display()), &got, &bytes_of(victim));
        }
    }
    let others = fs::read_dir(&site.store).unwrap().map(|entry| entry.unwrap().path());
    let others: Vec<_> = others.filter(|path| !path.to_string_lossy().contains("victim")).collect();
    assert!(others.len() >= STEPS.len(), "{others:?}");
    for path in others {
        assert_eq!(fs::read_to_string(&path).unwrap(), "other\n", "{}", path.display());
    }
}

#[test]
fn a_program_that_stops_in_the_open_of_a_new_file_loses_nothing() {
    stop_in_opens(&LAZY, "");
}

/// A process dies with bytes behind the end of a file. Another one, which is about to extend it,
/// sees that, but before it has the lock the manager begins to take back what the dead process
/// held.
#[test]
fn a_tail_that_the_manager_is_about_to_take_back_is_never_seen() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let (made, go) = (site.out.join("made"), site.out.join("go"));
    let (extend, reap) = (site.out.join("extend"), site.out.join("reap"));
    let log = site.out.join("log");
    let script = "head -c 1000 /dev/zero > file; : > $OUT/made\n\
        while [ ! -e $OUT/go ]; do sleep 0.02; done\n\
        yes | head -c 3000 > $OUT/tail\n\
        FOREBAY_CRASH=write.dirty:1 \
        dd if=$OUT/tail of=file bs=3000 seek=1000 oflag=seek_bytes conv=notrunc status=none\n\
        FOREBAY_PAUSE=tail.dead:1:while=$OUT/extend FOREBAY_PAUSE_IN=client \
        dd if=/dev/zero of=file bs=1 count=1 seek=8999 conv=notrunc status=none\n\
        cp file $OUT/seen\n";
    let mut run = site.buffered(&["bash", "-c", script]);
    run.env("FOREBAY_PAUSE", format!("reap.inside:1/1:while={}", reap.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &log);
    let run = site.start(run);
    wait_for("the file", LIMIT, || made.exists().then_some(()));
    let manager = site.status().manager;
    for held in [&extend, &reap] {
        fs::write(held, "").unwrap();
    }
    kill(manager, Signal::STOP);
    fs::write(&go, "").unwrap();
    let passed = |name| {
        let pauses = || pauses(&log).iter().any(|(_, seen, _)| seen == name).then_some(());
        wait_for(name, LIMIT, pauses);
    };
    passed("tail.dead");
    kill(manager, Signal::CONT);
    passed("reap.inside");
    fs::remove_file(&extend).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    fs::remove_file(&reap).unwrap();
    run.end().expect(0);
    assert_same_bytes("file", &fs::read(site.out.join("seen")).unwrap(), &[0; 9000]);
    assert_same_bytes("file on the store", &fs::read(site.store.join("file")).unwrap(), &[0; 9000]);
}

/// A program asks the kernel about a file, and stops before it looks at what is buffered of it;
/// meanwhile that comes to the store, and the file is written somewhere else.
#[test]
fn what_is_flushed_in_the_middle_of_a_stat_is_counted() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    fs::write(site.out.join("held"), "").unwrap();
    let script = format!(
        "{SCALE}dd if=/dev/zero of=file bs=64k count=1 status=none\n\
         FOREBAY_PAUSE=stat.asked:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log \
         stat -c %b file > $OUT/seen &\n\
         while [ ! -s $OUT/log ]; do sleep 0.01; done\n\
         sync file; dd if=/dev/zero of=file bs=4k seek=1000 count=1 conv=notrunc status=none\n\
         rm $OUT/held; wait\n"
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    status.assert_live();
    assert_eq!(pauses(&site.out.join("log")).len(), 1);
    let seen = fs::read_to_string(site.out.join("seen")).unwrap();
    // A store may use some for its own purposes.
    assert!(seen.trim().parse::<u32>().unwrap() >= (64 + 4) * 2, "{seen}");
}

/// The time of change that a program has seen while a flush changed it does not go back.
#[test]
fn a_time_of_change_that_was_seen_in_the_middle_of_a_flush_does_not_go_back() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let pause = |point: &str, name: &str| {
        fs::write(site.out.join(format!("held-{name}")), "").unwrap();
        format!("FOREBAY_PAUSE={point}:1:while=$OUT/held-{name} FOREBAY_PAUSE_LOG=$OUT/log-{name}")
    };
    let (sync, stat) = (pause("write-back.written", "sync"), pause("stat.asked", "stat"));
    let script = format!(
        "{SCALE}dd if=/dev/zero of=file bs=64k count=1 status=none; sleep 0.05\n\
         {sync} sync file & sync=$!\n\
         while [ ! -s $OUT/log-sync ] && kill -0 $sync; do sleep 0.01; done\n\
         {stat} stat -c %.9Z file > $OUT/seen & stat=$!\n\
         while [ ! -s $OUT/log-stat ]; do sleep 0.01; done\n\
         rm $OUT/held-sync; wait $sync; rm $OUT/held-stat; wait $stat\n\
         stat -c %.9Z file > $OUT/again\n\
         dd if=/dev/zero of=file bs=1k count=1 conv=notrunc status=none\n\
         stat -c %.9Z file > $OUT/later\n"
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    status.assert_live();
    let [seen, again, later] =
        ["seen", "again", "later"].map(|name| fs::read_to_string(site.out.join(name)).unwrap());
    assert!(seen.len() > 20 && seen <= again && again < later, "{seen}{again}{later}");
}

/// The same of a file that turns direct meanwhile: what was asked before is older than the flush.
#[test]
fn a_file_that_turns_direct_in_the_middle_of_a_stat_has_its_size() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("ring.c", &[]) {
        return;
    }
    fs::write(site.out.join("held"), "").unwrap();
    let script = format!(
        "{SCALE}dd if=/dev/zero of=file bs=64k count=1 status=none\n\
         FOREBAY_PAUSE=stat.asked:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log \
         stat -c %s file > $OUT/seen &\n\
         while [ ! -s $OUT/log ]; do sleep 0.01; done\n\
         $BIN/ring file > /dev/null; rm $OUT/held; wait\n"
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    status.assert_live();
    assert_eq!(pauses(&site.out.join("log")).len(), 1);
    let seen = fs::read_to_string(site.out.join("seen")).unwrap();
    assert_eq!(seen.trim(), "65536");
}

/// A process appends, and stops before it has entered the file; meanwhile another one cuts the
/// file, as a program does that rotates a log by copying and truncating it.
#[test]
fn what_is_appended_while_the_file_is_cut_leaves_no_gap() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let (log, held) = (site.out.join("log"), site.out.join("held"));
    fs::write(&held, "").unwrap();
    let script = format!(
        "{SCALE}yes | head -c 100000 > file\n\
         echo line > $OUT/line\n\
         FOREBAY_PAUSE=append.locked:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log \
         dd if=$OUT/line of=file oflag=append conv=notrunc status=none &\n\
         while [ ! -s $OUT/log ]; do sleep 0.01; done\n\
         truncate -s 10 file; rm $OUT/held; wait; cp file $OUT/seen\n"
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    status.assert_live();
    assert_eq!(pauses(&log).len(), 1);
    let wanted = b"y\ny\ny\ny\ny\nline\n";
    assert_same_bytes("file", &fs::read(site.out.join("seen")).unwrap(), wanted);
    assert_same_bytes("file on the store", &fs::read(site.store.join("file")).unwrap(), wanted);
}

/// Runs `programs/parting.c`, which says what is wrong. It pauses at `point`, if there is one,
/// until it has done what is to happen meanwhile.
fn part(how: &str, kind: &str, point: &str) {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("parting.c", &["-pthread"]) {
        return;
    }
    let script = format!(
        "{SCALE}: > $OUT/held\n\
         [ -z '{point}' ] || export FOREBAY_PAUSE={point}:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log\n\
         timeout 100 $BIN/parting {how} {kind} $OUT/held $OUT/log\n"
    );
    let (ran, status) = site.run_buffered(&script);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""), "{how} {kind}");
    status.assert_live();
    for entry in fs::read_dir(&site.store).unwrap() {
        let entry = entry.unwrap();
        let bytes = entry.metadata().unwrap().len();
        assert!(bytes < 1 << 20, "{how} {kind}: {:?} has {bytes} bytes", entry.file_name());
    }
}

#[test]
fn a_thread_that_stops_before_it_uses_a_descriptor_uses_no_other_file() {
    for kind in ["write", "pwrite", "append", "lseek", "ftruncate"] {
        part("closed", kind, "file.entering");
    }
}

#[test]
fn a_descriptor_that_is_being_closed_or_replaced_is_never_the_kernels_alone() {
    for point in ["descriptor.parting", "descriptor.replacing", "descriptor.replaced"] {
        part("replaced", "write", point);
    }
    part("replaced", "close", "descriptor.parting");
}

#[test]
fn threads_that_write_while_their_descriptor_is_replaced_lose_no_record() {
    part("rotated", "-", "");
}

/// glibc closes the descriptors of its own streams where it cannot be seen, and other threads get
/// their numbers.
#[test]
fn numbers_that_streams_give_up_are_never_taken_for_what_they_were() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for seed in 1..=3 {
        let site = Site::new(&LAZY);
        if !site.compile("streams_race.c", &["-pthread"]) {
            return;
        }
        let script = format!(
            "{SCALE}export FOREBAY_PAUSE=*:1/40:3 FOREBAY_PAUSE_SEED={seed} FOREBAY_PAUSE_MOST=600\n\
             timeout 100 $BIN/streams_race $OUT {seed} 250; timeout 100 $BIN/streams_race $OUT {seed} 250"
        );
        let (ran, status) = site.run_buffered(&script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "seed {seed}: {}", site.log());
        status.assert_live();
    }
}

/// A rename replaces a file, and stops when that is noted, but not yet done; another process opens
/// the file meanwhile, and finds that it has its name.
#[test]
fn a_file_that_is_opened_while_another_one_replaces_it_is_not_kept_for_ever() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    fs::write(site.out.join("held"), "").unwrap();
    let script = "yes | head -c 300000 > file; echo new > other\n\
        FOREBAY_PAUSE=unlink.noted:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log mv other file &\n\
        while [ ! -s $OUT/log ]; do sleep 0.01; done\n\
        cat file > $OUT/seen; rm $OUT/held; wait\n: > $OUT/moved\n\
        while [ ! -e $OUT/go ]; do sleep 0.02; done\n";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the rename", LIMIT, || site.out.join("moved").exists().then_some(()));
    assert_eq!(pauses(&site.out.join("log")).len(), 1);
    assert_eq!(fs::read(site.out.join("seen")).unwrap().len(), 300_000);
    // The next one has no descriptor of it.
    kill(site.status().manager, Signal::KILL);
    fs::write(site.out.join("go"), "").unwrap();
    run.end().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "new\n");
}

/// A parent dies after its fork, before it has told the manager of the child, which stops before it
/// has its slot. `hidden` is a further word for `programs/orphan.c`.
fn orphan_goes_on(site: &Site, hidden: &str, change: impl FnOnce(&mut Command)) {
    if !site.compile("orphan.c", &[]) {
        return;
    }
    let script = format!(
        "{SCALE}: > $OUT/held\n\
         FOREBAY_CRASH=fork.parent:1 FOREBAY_PAUSE=fork.child:1:while=$OUT/held \
         FOREBAY_PAUSE_LOG=$OUT/log $BIN/orphan $OUT/result {hidden}\n\
         until [ -s $OUT/log ]; do sleep 0.02; done; sleep 1\n\
         for n in {{1..50}}; do head -c 200000 /dev/zero > other-$n; done\n\
         rm $OUT/held\n\
         for n in {{1..500}}; do [ -s $OUT/result ] && break; sleep 0.02; done; cat $OUT/result\n"
    );
    let mut run = site.buffered(&["bash", "-c", &script]);
    // The manager's timers, too.
    run.env("FOREBAY_TIME_SCALE", "50");
    change(&mut run);
    let ran = site.end(run);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "whole\n"), "{ran:?}");
}

#[test]
fn a_child_that_stops_before_it_has_its_slot_outlives_its_parent_whole() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    orphan_goes_on(&Site::new(&LAZY), "", |_| ());
}

/// It is not dumpable, and the manager not root: /proc says little of it.
#[test]
fn a_child_that_its_user_cannot_look_into_outlives_its_parent_whole() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.share() {
        return;
    }
    for folder in [&site.store, &site.out, &site.nvme, &site.runtime()] {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    orphan_goes_on(&site, "hidden", |run| as_user(run, NOBODY));
}

#[test]
fn a_slot_ends_with_parent_and_child() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("orphan.c", &[]) {
        return;
    }
    let script = "for point in fork.* slot.reserved; do\n\
         FOREBAY_CRASH=$point:1 FOREBAY_CRASH_IN=client $BIN/orphan $OUT/result; done\n\
         for n in 1 2 3; do echo other > other-$n; done";
    let (ran, _) = site.run_buffered(script);
    ran.expect(0);
    assert!(!site.out.join("result").exists());
}

/// A program begins in the slot of a child that has ended, and stops before it has registered.
#[test]
fn a_program_that_stops_as_it_takes_the_slot_of_a_dead_child_keeps_it() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let (held, log) = (site.out.join("held"), site.out.join("log"));
    let fifo = |name: &str| fs::write(site.out.join(name), "\n").unwrap();
    let is_there = |name: &str| {
        wait_for(name, LIMIT, || site.out.join(name).exists().then_some(()));
    };
    for name in ["go-first", "end-first", "go-third"] {
        assert!(Command::new("mkfifo").arg(site.out.join(name)).status().unwrap().success());
    }
    // What bash waits for without a child of its own.
    let await_ = "await() { read -r < $OUT/$1; }\n";
    let run = |script: &str| site.buffered(&["bash", "-c", &format!("{await_}{script}")]);
    let mut first = run("(:); (:); : > $OUT/began; await go-first\n\
        exec 9> other; printf other >&9; : > $OUT/other; await end-first");
    first.env("FOREBAY_TIME_SCALE", "50");
    let first = site.start(first);
    is_there("began");
    // Its children's slots are free again.
    std::thread::sleep(Duration::from_millis(200));
    fs::write(&held, "").unwrap();
    let mut second = run("true");
    second.env("FOREBAY_PAUSE", format!("slot.reserved:1:while={}", held.display()));
    let second = site.start({
        second.env("FOREBAY_PAUSE_LOG", &log);
        second
    });
    wait_for("the pause", LIMIT, || (!pauses(&log).is_empty()).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    let third = site.start(run("exec 9<> file; : > $OUT/open; await go-third; printf hello >&9"));
    is_there("open");
    fs::remove_file(&held).unwrap();
    second.end().expect(0);
    // What no process holds is swept by then.
    std::thread::sleep(Duration::from_millis(500));
    fifo("go-first");
    is_there("other");
    fifo("go-third");
    third.end().expect(0);
    fifo("end-first");
    first.end().expect(0);
    let seen = |name: &str| fs::read_to_string(site.store.join(name)).unwrap();
    assert_eq!((seen("file"), seen("other")), ("hello".to_owned(), "other".to_owned()));
}

/// Numbers that become another file's while a thread uses them that has found them not to be
/// managed.
#[test]
fn a_number_that_was_not_managed_is_used_as_what_it_becomes() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let parts = [
        ("replaced", "none:1"),
        ("duplicated", "descriptor.duplicating:1"),
        ("ranged", "descriptor.parting:1"),
    ];
    for (part, point) in parts {
        let site = Site::new(&LAZY);
        if !site.compile("numbers.c", &["-pthread"]) {
            return;
        }
        let script = format!(
            ": > $OUT/held\n\
             FOREBAY_PAUSE={point}:while=$OUT/held FOREBAY_PAUSE_IN=client FOREBAY_PAUSE_LOG=$OUT/log \
             timeout 60 $BIN/numbers {part} $OUT/held $OUT/log"
        );
        let ran = site.end(site.buffered(&["bash", "-c", &script]));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "right\n"), "{part}: {ran:?}");
    }
}

/// A thread that an exec ends in the middle of a truncate: it happens, or does not, and never half
/// of it.
#[test]
fn a_truncate_that_an_exec_ends_is_completed() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for point in [
        "truncate.intent",
        "truncate.quiesced",
        "truncate.store",
        "truncate.size",
        "truncate.discarded",
    ] {
        let site = Site::new(&LAZY);
        if !site.compile("cut.c", &["-pthread"]) {
            return;
        }
        let after = "stat -c %s file; truncate -s 900000 file; tail -c +101 file | tr -d '\\0' | wc -c; \
            head -c 100 file | tr -d a | wc -c";
        let script = format!(
            "head -c 600000 /dev/zero | tr '\\0' a > file; : > $OUT/held\n\
             export FOREBAY_PAUSE={point}:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log\n\
             timeout 60 $BIN/cut file $OUT/log \"unset FOREBAY_PAUSE; {after}\""
        );
        let ran = site.end(site.buffered(&["bash", "-c", &script]));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "100\n0\n0\n"), "{point}: {ran:?}");
    }
}

/// A program flushes a file itself, because the node manager was killed; the next one has come
/// meanwhile, and is writing the same pages. Then the program cuts the file.
#[test]
fn what_a_new_manager_is_writing_is_waited_for_by_a_program_that_flushes_without_one() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let (held, writing) = (site.out.join("held"), site.out.join("writing"));
    let (log, node_log) = (site.out.join("log"), site.out.join("node-log"));
    let script = "head -c 270000 /dev/zero | tr '\\0' a > file; sync file; : > $OUT/made\n\
        while [ ! -e $OUT/go ]; do sleep 0.02; done\n\
        FOREBAY_PAUSE=flush-here.alone:1:while=$OUT/held FOREBAY_PAUSE_IN=client FOREBAY_PAUSE_LOG=$OUT/log \
        dd if=/dev/zero of=file bs=6000 count=1 seek=259000 oflag=seek_bytes conv=notrunc,fsync status=none\n\
        truncate -s 100001 file; : > $OUT/cut; sync file; stat -c %s file > $OUT/size\n";
    let mut run = site.buffered(&["bash", "-c", script]);
    let pause = format!("flush.writing:1/1:while={}", writing.display());
    run.env("FOREBAY_PAUSE", pause).env("FOREBAY_PAUSE_IN", "node");
    run.env("FOREBAY_PAUSE_LOG", &node_log).env("FOREBAY_TIME_SCALE", "50");
    // Else the program would not need a manager.
    run.env("FOREBAY_REFUSE", "write-back:1..");
    let run = site.start(run);
    let is_there = |name: &str| {
        wait_for(name, LIMIT, || site.out.join(name).exists().then_some(()));
    };
    let paused = |log: &Path| {
        wait_for("a pause", LIMIT, || (!pauses(log).is_empty()).then_some(()));
    };
    is_there("made");
    for held in [&held, &writing] {
        fs::write(held, "").unwrap();
    }
    // No other manager until the program has seen that there is none.
    let manager = site.status().manager;
    kill(run.pid(), Signal::STOP);
    kill(manager, Signal::KILL);
    fs::write(site.out.join("go"), "").unwrap();
    paused(&log);
    kill(run.pid(), Signal::CONT);
    paused(&node_log);
    fs::remove_file(&held).unwrap();
    // Time enough for the cut, if the program does not wait.
    std::thread::sleep(Duration::from_millis(500));
    fs::remove_file(&writing).unwrap();
    is_there("cut");
    run.end().expect(0);
    assert_eq!(fs::read_to_string(site.out.join("size")).unwrap(), "100001\n");
    assert_eq!(fs::read(site.store.join("file")).unwrap(), vec![b'a'; 100_001]);
}

/// A program dies as it truncates a file without a name, and then the manager that could not bring
/// that to an end.
#[test]
fn a_truncate_left_of_a_deleted_file_keeps_no_pool_from_being_recovered() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let log = site.out.join("log");
    fs::write(site.out.join("held"), "").unwrap();
    let script = "exec 9<> gone; rm gone; head -c 100000 /dev/zero >&9; echo kept > file\n\
        FOREBAY_PAUSE=truncate.intent:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log truncate -s 10 /dev/fd/9";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the pause", LIMIT, || (!pauses(&log).is_empty()).then_some(()));
    site.kill_all();
    run.end();
    let mut recover = site.forebay(&["recover"]);
    recover.env("FOREBAY_CRASH", "takeover.completed:1").env("FOREBAY_CRASH_IN", "node");
    assert_ne!(site.end(recover).code, 0);
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "kept\n");
}

/// A node manager is killed as it writes pages; then a program cuts them off, makes the file longer
/// again, and flushes it itself.
#[test]
fn what_was_cut_after_a_manager_died_writing_it_is_not_written_again() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let often = "trigger = \"periodic\"\nperiod = \"100ms\"";
    let site = Site::new(&Setup { flush: often, ..LAZY });
    let (writing, node_log) = (site.out.join("writing"), site.out.join("node-log"));
    fs::write(&writing, "").unwrap();
    fs::write(site.out.join("piece"), vec![b'a'; 32768]).unwrap();
    let script = "dd if=$OUT/piece of=file bs=32768 count=1 status=none\n\
        while [ ! -e $OUT/go ]; do sleep 0.02; done\n\
        truncate -s 6885 file\n\
        printf end | dd of=file bs=3 seek=37349 oflag=seek_bytes conv=notrunc,fsync status=none\n\
        : > $OUT/flushed; while [ ! -e $OUT/end ]; do sleep 0.02; done\n";
    let mut run = site.buffered(&["bash", "-c", script]);
    run.env("FOREBAY_PAUSE", format!("flush.writing:1:while={}", writing.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &node_log);
    let run = site.start(run);
    wait_for("the flush", LIMIT, || (!pauses(&node_log).is_empty()).then_some(()));
    // No other manager comes.
    let manager = site.status().manager;
    kill(run.pid(), Signal::STOP);
    kill(manager, Signal::KILL);
    fs::write(site.out.join("go"), "").unwrap();
    let flushed = || site.out.join("flushed").exists().then_some(());
    wait_for("the flush without a manager", LIMIT, flushed);
    let stored = fs::read(site.store.join("file")).unwrap();
    kill(run.pid(), Signal::CONT);
    fs::write(site.out.join("end"), "").unwrap();
    run.end().expect(0);
    let mut wanted = vec![b'a'; 6885];
    wanted.resize(37349, 0);
    wanted.extend(b"end");
    assert_same_bytes("the store's file", &stored, &wanted);
    assert_same_bytes("the file in the end", &fs::read(site.store.join("file")).unwrap(), &wanted);
}

/// It looks how many slots and records are in use while processes come that have more than ever.
#[test]
fn programs_that_start_while_a_node_manager_takes_over_are_seen() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for pass in 1..=2 {
        let site = Site::new(&LAZY);
        let [held, log] = ["held", "log"].map(|name| site.out.join(name));
        let script = "echo $$ > $OUT/began; until [ -s $OUT/log ]; do sleep 0.01; done\n\
            for k in $(seq 30); do\n\
            bash -c 'exec 3<> one-$0; : > $OUT/open-$0; read -r < $OUT/go-$0; echo $0 >&3' $k &\n\
            done\n\
            for k in $(seq 30); do until [ -e $OUT/open-$k ]; do sleep 0.01; done; done\n\
            rm $OUT/held; sleep 0.7\n\
            for k in $(seq 60); do echo other > other-$k; done\n\
            for k in $(seq 30); do echo > $OUT/go-$k; done; wait\n\
            for k in $(seq 60); do [ $(cat other-$k) = other ] || echo wrong other-$k; done\n";
        let fifos = format!("mkfifo $OUT/go-{{1..30}}\n{SCALE}{script}");
        fs::write(&held, "").unwrap();
        let mut run = site.buffered(&["bash", "-c", &fifos]);
        run.env("FOREBAY_TIME_SCALE", "50")
            .env("FOREBAY_PAUSE", format!("recover.marks:{pass}:while={}", held.display()))
            .env("FOREBAY_PAUSE_IN", "node")
            .env("FOREBAY_PAUSE_LOG", &log);
        let running = site.start(run);
        wait_for("the program", LIMIT, || site.out.join("began").exists().then_some(()));
        kill(site.status().manager, Signal::KILL);
        let ran = running.end();
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{pass}: {ran:?} {}", site.log());
        for k in 1..=30 {
            let found = fs::read_to_string(site.store.join(format!("one-{k}"))).unwrap();
            assert_eq!(found, format!("{k}\n"), "{pass}: {}", site.log());
        }
    }
}

/// A file loses its last name, so that its record is given up, while a flush is about to ask for
/// it.
#[test]
fn a_flush_does_not_wait_for_a_file_whose_record_is_given_up_meanwhile() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let [held, log, go] = ["held", "log", "go"].map(|name| site.out.join(name));
    fs::write(&held, "").unwrap();
    let script = "echo one > a; echo two > b; : > $OUT/written\n\
        until [ -e $OUT/go ]; do sleep 0.02; done\n\
        rm a b; : > $OUT/removed; until [ -e $OUT/end ]; do sleep 0.02; done\n";
    let run = site.start(site.buffered(&["bash", "-c", &format!("{SCALE}{script}")]));
    let is_there = |name: &str| {
        wait_for(name, LIMIT, || site.out.join(name).exists().then_some(()));
    };
    is_there("written");
    // It has found both, and asked for the first.
    let mut flush = site.forebay(&["flush", "."]);
    flush.env("FOREBAY_PAUSE", format!("sync.requested:1:while={}", held.display()));
    flush.env("FOREBAY_PAUSE_LOG", &log);
    let mut flush = site.start(flush);
    wait_for("the pause", LIMIT, || (!pauses(&log).is_empty()).then_some(()));
    fs::write(&go, "").unwrap();
    is_there("removed");
    let pool = open_pool(&site.pools()[0]).unwrap();
    let segment = Segment::attach(pool.as_fd()).unwrap();
    wait_for("the end of the records", LONG, || {
        segment.files().live().next().is_none().then_some(())
    });
    fs::remove_file(&held).unwrap();
    wait_for("the end of the flush", LONG, || (!flush.is_running()).then_some(()));
    flush.end().expect(0);
    fs::write(site.out.join("end"), "").unwrap();
    run.end().expect(0);
}
