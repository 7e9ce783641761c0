//! `forebay flush` and `forebay wait`, and what a process without Forebay sees, and when.

use crate::harness::{
    self, LAZY, LONG, NOBODY, SLOW_STORE, Setup, Site, Steps, USUAL, as_user, becomes, have, sees,
    skip, wait_for,
};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_flushed_file_is_on_the_store_while_the_program_goes_on() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "exec 3> file; echo one >&3; step 1; echo two >&3; step 2");
    let file = site.store.join("file");
    steps.at("1");
    assert_eq!(sees(&file), "", "nothing flushes it by itself");
    let said = site.end(site.forebay(&["flush", "file"])).expect(0);
    assert_eq!(said.stdout, "flushed 1 file (4.00 KiB)\n");
    assert_eq!(sees(&file), "one\n");
    steps.past("1");
    steps.at("2");
    assert_eq!(sees(&file), "one\n");
    site.end(site.forebay(&["flush", file.to_str().unwrap()])).expect(0);
    assert_eq!(sees(&file), "one\ntwo\n");
    assert_eq!(
        site.end(site.forebay(&["flush", "file"])).expect(0).stdout,
        "flushed 0 files (0 B)\n"
    );
    steps.past("2");
    steps.end();
}

#[test]
fn a_flushed_directory_has_everything_below_it_on_the_store() {
    let site = Site::new(&SLOW_STORE);
    site.configure(&Setup { flush: LAZY.flush, ..SLOW_STORE });
    let steps = Steps::of(
        &site,
        "mkdir -p a/b c; for number in 1 2 3 4 5; do seq $number 50000 > a/b/$number; done
         echo moved > a/old; mv a a2; echo elsewhere > c/file; ln a2/b/1 c/linked; step 1",
    );
    steps.at("1");
    site.end(site.forebay(&["flush", "a2"])).expect(0);
    for number in 1..=5 {
        let wanted: String = (number..=50_000).map(|line| format!("{line}\n")).collect();
        assert!(sees(&site.store.join(format!("a2/b/{number}"))) == wanted, "a2/b/{number}");
    }
    assert_eq!(sees(&site.store.join("a2/old")), "moved\n");
    assert_eq!(sees(&site.store.join("c/file")), "", "it was not asked for");
    site.end(site.forebay(&["flush", "c/../c", "."])).expect(0);
    assert_eq!(sees(&site.store.join("c/file")), "elsewhere\n");
    steps.past("1");
    steps.end();
}

/// The manager opens a file when it flushes it: what its owner may not write any more by then has
/// to be on the store all the same, also for those that no capability lets write.
#[test]
fn a_file_that_became_read_only_after_it_was_written_is_flushed() {
    let site = Site::new(&LAZY);
    let as_nobody = site.share();
    if as_nobody {
        for folder in [&site.store, &site.out, &site.nvme, &site.runtime()] {
            std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let script = "echo path > path; chmod 400 path; echo old > at; chmod 0 $PWD/at
         echo content > from; install -m 444 from installed; \
         exec 3> open; chmod 444 open; echo open >&3; exec 3>&-
         exec 4> other; echo other >&4; chmod 444 other; exec 4>&-
         echo again > again; chmod 444 again; chmod 644 again; echo more >> again; chmod 400 again";
    let mut run = site.buffered(&["bash", "-ec", script]);
    if as_nobody {
        as_user(&mut run, NOBODY);
    }
    site.end(run).expect(0);
    for (name, content) in [
        ("path", "path\n"),
        ("at", "old\n"),
        ("installed", "content\n"),
        ("open", "open\n"),
        ("other", "other\n"),
        ("again", "again\nmore\n"),
    ] {
        assert_eq!(fs::read_to_string(site.store.join(name)).unwrap(), content, "{name}");
    }
}

/// What a flush has left is not asked again before the times are set: what another program has cut
/// meanwhile is found all the same.
#[test]
fn a_file_that_was_cut_after_its_flush_has_its_size_in_the_end() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let (flag, log) = (site.out.join("flag"), site.out.join("log"));
    fs::write(&flag, "").unwrap();
    let mut run = site.buffered(&["bash", "-c", "seq 1000 > file"]);
    run.env("FOREBAY_PAUSE", format!("reconcile.sized:1:while={}", flag.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &log);
    let run = site.start(run);
    let is_paused = || fs::read(&log).is_ok_and(|log| !log.is_empty()).then_some(());
    wait_for("the pause", LONG, is_paused);
    let file = site.store.join("file");
    assert_eq!(fs::metadata(&file).unwrap().len(), 3893);
    fs::File::options().write(true).open(&file).unwrap().set_len(10).unwrap();
    fs::remove_file(&flag).unwrap();
    run.end().expect(0);
    // The run ends when the store has the bytes; the node manager goes on to size and times.
    let is_whole = || (fs::metadata(&file).unwrap().len() == 3893).then_some(());
    wait_for("the size", LONG, is_whole);
}

/// What is written past the page cache leaves nothing there, but for the end of the file.
#[test]
fn a_large_file_goes_past_the_page_cache() {
    if !have(&["fincore", "stat", "bash"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(&site.store).output().unwrap();
    let kind = String::from_utf8(kind.stdout).unwrap();
    if !["ext2/ext3", "xfs"].contains(&kind.trim()) {
        return skip(&format!("files on {} are not written past the page cache", kind.trim()));
    }
    let steps =
        Steps::of(&site, "printf '%1000003d\n' 1 2 3 > file; step 1; printf 4 >> file; step 2");
    let file = site.store.join("file");
    steps.at("1");
    site.end(site.forebay(&["flush", "file"])).expect(0);
    let cached =
        Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(&file).output().unwrap().stdout;
    let cached: u64 = String::from_utf8(cached).unwrap().trim().parse().unwrap();
    assert!(cached < 64, "{cached} pages of 733 are in the page cache");
    let line = |number: &str| " ".repeat(1_000_002) + number + "\n";
    let mut wanted = ["1", "2", "3"].map(line).concat();
    assert!(sees(&file) == wanted, "written past the page cache");
    // Now the page cache has it, and the end of the file is written through that.
    steps.past("1");
    steps.at("2");
    site.end(site.forebay(&["flush", "file"])).expect(0);
    wanted.push('4');
    assert!(sees(&file) == wanted, "written through the page cache");
    steps.past("2");
    steps.end();
}

#[test]
fn the_program_itself_may_flush() {
    let site = Site::new(&LAZY);
    let script = "echo text > file; $FOREBAY flush file && $FOREBAY wait --durable file; \
                  LD_PRELOAD= FOREBAY_DISABLE=1 cat file";
    let (ran, status) = site.run_buffered(script);
    assert_eq!(ran.expect(0).stdout.lines().last(), Some("text"));
    status.assert_live();
}

#[test]
fn what_cannot_be_found_is_named_and_the_rest_is_flushed() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "echo text > file; step 1");
    steps.at("1");
    let ran = site.end(site.forebay(&["flush", "missing", "file"])).expect(1);
    assert!(ran.stderr.contains("missing: No such file"), "{ran:?}");
    assert_eq!(sees(&site.store.join("file")), "text\n");
    let ran = site.end(site.forebay(&["wait", "missing"])).expect(1);
    assert!(ran.stderr.contains("missing: No such file"), "{ran:?}");
    for words in [&["flush"][..], &["wait", "--durable"]] {
        assert!(site.end(site.forebay(words)).expect(2).stderr.contains("PATH"));
    }
    steps.past("1");
    steps.end();
    // Without any node manager everything is where it belongs.
    site.end(site.forebay(&["flush", "."])).expect(0);
    site.end(site.forebay(&["wait", "file"])).expect(0);
}

#[test]
fn waiting_pushes_nothing_and_ends_when_all_is_safe() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "seq 100000 > file; echo other > other; step 1");
    steps.at("1");
    let mut waiting = site.start(site.forebay(&["wait", "--durable", "file"]));
    wait_for("its note", LONG, || waiting.stderr().contains("on-exit").then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.is_running());
    assert_eq!(sees(&site.store.join("file")), "");
    site.end(site.forebay(&["flush", "file"])).expect(0);
    let said = waiting.end().expect(0);
    assert!(
        said.stdout.starts_with("safe: 1 file was not yet on the store, now it is"),
        "{said:?}"
    );
    assert_eq!(sees(&site.store.join("other")), "");
    steps.past("1");
    steps.end();
}

#[test]
fn waiting_says_how_long_it_takes() {
    let slow = Setup {
        // So slow that the second line comes before the end: at the first nothing may be done yet.
        store_emulate: Some("{ bandwidth = \"6MB/s\", latency = \"1ms\" }"),
        flush: "trigger = \"periodic\"\nperiod = \"50ms\"",
        ..USUAL
    };
    let site = Site::new(&slow);
    let steps = Steps::of(&site, "head -c 30000000 /dev/zero > file; step 1");
    steps.at("1");
    let said = site.end(site.forebay(&["wait", "file"])).expect(0);
    assert!(said.stderr.contains("waiting: ") && said.stderr.contains("s left"), "{said:?}");
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 30_000_000);
    steps.past("1");
    steps.end();
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    if !harness::works(&["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]) {
        return harness::skip("a private mount is not allowed here");
    }
    let site = Site::new(&LAZY);
    let script = "mount -t tmpfs -o size=1m none $STORE; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            echo text > small; head -c 3000000 /dev/zero > large
            $FOREBAY flush large small; echo $?; $FOREBAY wait large small; echo $?
            LD_PRELOAD= FOREBAY_DISABLE=1 cat small; rm large'; echo $?";
    let mut command = site.command(&site.out, "unshare");
    command.args(["-m", "bash", "-c", script]);
    command.env("CONFIG", &site.config).env("STORE", &site.store);
    let ran = site.end(command).expect(0);
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines, ["1", "1", "text", "0"], "{ran:?}");
    let named = ran.stderr.matches("/store/large: No space left").count();
    assert_eq!((named, ran.stderr.matches("/store/small").count()), (2, 0), "{ran:?}");
}

/// A script that has written a file and waits, and the process id of its node manager.
fn written(site: &Site) -> (Steps<'_>, u32) {
    let steps = Steps::of(site, "echo text > file; step 1; echo more >> file; step 2");
    steps.at("1");
    (steps, site.status().manager)
}

fn kill_and_await(pids: &[u32]) {
    pids.iter().for_each(|&pid| harness::kill(pid, rustix::process::Signal::KILL));
    let ended = || pids.iter().all(|&pid| !harness::is_alive(pid)).then_some(());
    wait_for("ends", LONG, ended);
}

fn is_drained(site: &Site) {
    wait_for("the end of the pool", LONG, || site.pools().is_empty().then_some(()));
}

#[test]
fn a_pool_that_no_manager_serves_is_brought_to_the_store() {
    for words in [&["flush", "file"][..], &["wait", "--durable", "file"]] {
        let site = Site::new(&LAZY);
        let (steps, _) = written(&site);
        site.kill_all();
        steps.running.end();
        // Its threads may end a moment after the process shows as ended.
        wait_for("an orphan", LONG, || {
            let status = site.status().text;
            status.contains("orphaned: 4.00 KiB not yet on the store").then_some(())
        });
        let json = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
        assert!(json.contains("\"orphaned\": true"), "{json}");
        assert_eq!(sees(&site.store.join("file")), "");
        let ran = site.end(site.forebay(words)).expect(0);
        assert!(ran.stderr.contains("has no node manager, and 4.00 KiB"), "{ran:?}");
        assert_eq!(sees(&site.store.join("file")), "text\n", "{ran:?}");
        is_drained(&site);
    }
}

#[test]
fn a_flush_goes_on_when_the_node_manager_dies() {
    for words in [&["flush", "file"][..], &["wait", "file"]] {
        // Its run starts another manager, if the command is not faster.
        let site = Site::new(&LAZY);
        let (mut steps, manager) = written(&site);
        kill_and_await(&[manager]);
        let waits = words[0] == "wait";
        let running = site.start(site.forebay(words));
        if waits {
            wait_for("a manager", LONG, || {
                let next = site.status().manager;
                (next != manager && harness::is_alive(next)).then_some(())
            });
            site.end(site.forebay(&["flush", "file"])).expect(0);
        }
        running.end().expect(0);
        assert_eq!(sees(&site.store.join("file")), "text\n");
        assert!(steps.running.is_running());
        steps.past("1");
        steps.past("2");
        steps.end();
        assert_eq!(sees(&site.store.join("file")), "text\nmore\n");
        is_drained(&site);
    }
}

#[test]
fn a_program_whose_run_and_manager_were_killed_is_flushed_and_goes_on() {
    let site = Site::new(&LAZY);
    let (steps, manager) = written(&site);
    kill_and_await(&[steps.running.pid(), manager]);
    let ran = site.end(site.forebay(&["flush", "file"])).expect(0);
    assert!(ran.stderr.contains("another goes on"), "{ran:?}");
    assert_eq!(sees(&site.store.join("file")), "text\n");
    steps.past("1");
    steps.at("2");
    assert_eq!(sees(&site.store.join("file")), "text\n", "it is buffered as before");
    site.end(site.forebay(&["flush", "file"])).expect(0);
    assert_eq!(sees(&site.store.join("file")), "text\nmore\n");
    steps.past("2");
    is_drained(&site);
}

#[test]
fn a_pool_that_cannot_be_served_is_not_said_to_be_flushed() {
    let site = Site::new(&LAZY);
    let (steps, _) = written(&site);
    site.kill_all();
    steps.running.end();
    let away = site.nvme.with_extension("away");
    fs::rename(&site.nvme, &away).unwrap();
    for words in [&["flush", "file"][..], &["wait", "file"]] {
        let ran = site.end(site.forebay(words)).expect(1);
        assert!(ran.stderr.contains(site.nvme.to_str().unwrap()), "{ran:?}");
    }
    fs::rename(&away, &site.nvme).unwrap();
    // The pool itself says what it is of.
    let instance = site.instances().next().unwrap().unwrap().path();
    fs::write(instance.join("config"), "rubbish").unwrap();
    site.end(site.forebay(&["flush", "file"])).expect(0);
    assert_eq!(sees(&site.store.join("file")), "text\n");
    is_drained(&site);
}

#[test]
fn a_process_without_forebay_sees_what_the_table_says() {
    // Periodic: some time after the write.
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"100ms\"", ..USUAL });
    let steps = Steps::of(&site, "exec 3> file; echo text >&3; step 1");
    becomes(&site.store.join("file"), "text\n");
    steps.past("1");
    steps.end();

    // Per-operation: soon after each write, the file still open.
    let site = Site::new(&Setup { flush: "trigger = \"per-operation\"", ..USUAL });
    let steps = Steps::of(&site, "exec 3> file; echo text >&3; step 1");
    becomes(&site.store.join("file"), "text\n");
    steps.past("1");
    steps.end();

    // Per-file: not while it is open, soon after it was closed.
    let site = Site::new(&Setup { flush: "trigger = \"per-file\"", ..USUAL });
    let steps = Steps::of(&site, "exec 3> file; echo text >&3; step 1; exec 3>&-; step 2");
    steps.at("1");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sees(&site.store.join("file")), "");
    steps.past("1");
    becomes(&site.store.join("file"), "text\n");
    steps.past("2");
    steps.end();

    // On-exit: names and truncation at once, bytes by fsync, sync, or at the end; times and size as
    // the program sees them.
    let site = Site::new(&LAZY);
    fs::write(site.store.join("before"), "what others wrote").unwrap();
    let steps = Steps::of(
        &site,
        "cat before; : > before; echo text > file; mv file moved; step 1
         sync moved; step 2; echo late > late; sync; step 3; echo last > last; touch -d @1000 last; step 4
         cat others",
    );
    steps.at("1");
    assert_eq!(sees(&site.store.join("before")), "");
    assert_eq!(sees(&site.store.join("moved")), "");
    steps.past("1");
    steps.at("2");
    assert_eq!(sees(&site.store.join("moved")), "text\n");
    steps.past("2");
    steps.at("3");
    assert_eq!(sees(&site.store.join("late")), "late\n");
    steps.past("3");
    steps.at("4");
    assert_eq!(sees(&site.store.join("last")), "");
    fs::write(site.store.join("others"), "from outside").unwrap();
    steps.past("4");
    let ran = steps.running.end().expect(0);
    assert_eq!(ran.stdout, "what others wrotefrom outside");
    assert_eq!(sees(&site.store.join("last")), "last\n");
    let modified = fs::metadata(site.store.join("last")).unwrap().modified().unwrap();
    assert_eq!(modified, std::time::UNIX_EPOCH + Duration::from_secs(1000));
}

#[test]
fn what_is_no_file_is_waited_for_no_longer_than_others() {
    let site = Site::new(&USUAL);
    let fifo = site.store.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for words in [&["flush", "fifo", "/dev/null"][..], &["wait", "--durable", "fifo"]] {
        site.end(site.forebay(words)).expect(0);
    }
}

/// The number at the beginning of a file.
fn number(path: &std::path::Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes))
}

#[test]
fn a_program_that_writes_the_same_pages_for_ever_keeps_neither_wait_nor_flush() {
    let site = Site::new(&Setup {
        flush: "trigger = \"periodic\"\nperiod = \"50ms\"\nmax_age = \"300ms\"",
        ..USUAL
    });
    if !site.compile("rewriting.c", &[]) {
        return;
    }
    let (told, end) = (site.out.join("number"), site.out.join("end"));
    let script = "exec $BIN/rewriting file $OUT/number $OUT/end";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the program", LONG, || (number(&told) > 3).then_some(()));
    for words in [&["wait", "file"][..], &["flush", "file"], &["wait", "--durable", "file"]] {
        let before = number(&told);
        let mut command = site.start(site.forebay(words));
        wait_for(&format!("{words:?}"), LONG, || (!command.is_running()).then_some(()));
        command.end().expect(0);
        let got = number(&site.store.join("file"));
        assert!(got >= before, "{words:?}: {got} is on the store, {before} was written");
    }
    fs::write(&end, "").unwrap();
    run.end().expect(0);
}

#[test]
fn what_is_written_after_a_long_silence_is_flushed_all_the_same() {
    let site = Site::new(&USUAL);
    // Nothing but the write itself tells the node manager, which rests by then: no process begins
    // or ends.
    let script = "mkfifo $OUT/never; exec 4<> $OUT/never 3> file; echo first >&3\n\
         read -t 7 -u 4; echo second >&3; echo written > $OUT/written; read -t 50 -u 4; true";
    let mut running = site.start(site.buffered(&["bash", "-c", script]));
    let file = site.store.join("file");
    becomes(&file, "first\n");
    wait_for("the write", LONG, || site.out.join("written").exists().then_some(()));
    becomes(&file, "first\nsecond\n");
    assert!(running.is_running(), "it was flushed by the end of the run");
    harness::kill(running.pid(), rustix::process::Signal::TERM);
    running.end();
}

#[test]
fn a_process_that_is_killed_after_a_long_silence_is_noticed() {
    let site = Site::new(&LAZY);
    let script = "mkfifo $OUT/never; exec 4<> $OUT/never 3> file; echo first >&3\n\
         bash -c 'exec 3> other; echo $$ > $OUT/child; exec 2> /dev/null; read -t 50 -u 4' &\n\
         read -t 50 -u 4; true";
    let running = site.start(site.buffered(&["bash", "-c", script]));
    let clients = || {
        let text = site.status().text;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("clients "));
        line.and_then(|count| count.trim().parse::<u32>().ok()).expect("no clients")
    };
    let child = wait_for("a child", LONG, || {
        fs::read_to_string(site.out.join("child")).ok()?.trim().parse().ok()
    });
    std::thread::sleep(Duration::from_secs(7));
    let before = clients();
    harness::kill(child, rustix::process::Signal::KILL);
    wait_for("the slot to be free", LONG, || (clients() < before).then_some(()));
    harness::kill(running.pid(), rustix::process::Signal::TERM);
    running.end();
}

/// A drain begins when housekeeping has dropped what was removed before.
#[test]
fn what_was_removed_right_before_the_end_of_a_run_is_not_flushed() {
    let site = Site::new(&LAZY);
    let trace = site.root().join("trace.csv");
    let (config, trace_name) = (site.config.to_str().unwrap(), trace.to_str().unwrap());
    let script = "for number in $(seq 40); do head -c 600K /dev/zero > file$number; done
        echo stays > stays; rm file*";
    let words = ["run", "--config", config, "--trace", trace_name, "--", "bash", "-c", script];
    site.end(site.forebay(&words)).expect(0);
    let lines = fs::read_to_string(&trace).unwrap();
    let flushed = lines.lines().filter(|line| line.contains(",flush,"));
    let flushed: Vec<u64> =
        flushed.map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect();
    assert_eq!(flushed, [6], "{lines}");
    assert_eq!(fs::read_to_string(site.store.join("stays")).unwrap(), "stays\n");
}
