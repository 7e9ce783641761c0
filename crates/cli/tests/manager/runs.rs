//! `forebay run` itself: exit status, several runs at once, and what it prints.

use crate::harness::{FOREBAY, LAZY, LIMIT, Site, Steps, USUAL, skip, wait_for, works};

#[test]
fn the_exit_status_passes_through() {
    let site = Site::new(&USUAL);
    for (script, code) in [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -ABRT $$", 134),
    ] {
        site.end(site.buffered(&["sh", "-c", script])).expect(code);
    }
}

#[test]
fn a_command_that_cannot_be_started_is_told_as_shells_do() {
    let site = Site::new(&USUAL);
    let missing = site.end(site.buffered(&["no-such-command", "word"]));
    assert!(missing.stderr.contains("no-such-command"), "{missing:?}");
    missing.expect(127);
    std::fs::write(site.out.join("text"), "no program").unwrap();
    let text = site.out.join("text");
    let refused = site.end(site.buffered(&[text.to_str().unwrap()]));
    assert!(refused.stderr.contains("text"), "{refused:?}");
    refused.expect(126);
}

#[test]
fn options_after_the_command_are_the_commands() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let ran =
        site.end(site.forebay(&["run", "--config", config, "echo", "--config", "-n", "--", "x"]));
    assert_eq!(ran.clone().expect(0).stdout, "--config -n -- x\n", "{ran:?}");
}

#[test]
fn without_a_configuration_it_says_what_it_chose() {
    let site = Site::new(&USUAL);
    let store = site.store.to_str().unwrap();
    let script = "seq 10000 > file; $FOREBAY status > $OUT/status; cat file | wc -l";
    let ran =
        site.end(site.forebay(&["run", "--backing", store, "--", "sh", "-c", script])).expect(0);
    assert_eq!(ran.stdout, "10000\n");
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].contains("ram ") && lines[0].contains(store), "{lines:?}");
    let status = std::fs::read_to_string(site.out.join("status")).unwrap();
    assert!(status.contains("count opens        1"), "{status}");
}

#[test]
fn many_runs_at_once_share_one_manager() {
    let site = Site::new(&LAZY);
    for round in 0..4 {
        let script = |n: u32| format!("seq {n} 20000 > f{round}-{n}; cat f{round}-{n} | wc -l");
        let runs: Vec<_> =
            (0..6).map(|n| site.start(site.buffered(&["sh", "-c", &script(n)]))).collect();
        for (n, run) in runs.into_iter().enumerate() {
            let ran = run.end();
            let lines = 20001 - n;
            assert_eq!(
                (ran.code, ran.stdout.trim()),
                (0, &lines.to_string()[..]),
                "{ran:?}\n{}",
                site.log()
            );
        }
        (0..6).for_each(|n| drop(site.run_plainly(&script(n))));
    }
    site.assert_same_files();
}

#[test]
fn a_second_run_sees_what_the_first_has_not_drained() {
    let site = Site::new(&LAZY);
    let first = "echo one > file; echo done > $OUT/done; while [ ! -e $OUT/seen ]; do sleep 0.02; done; cat file";
    let run = site.start(site.buffered(&["bash", "-c", first]));
    wait_for("the write", LIMIT, || site.out.join("done").exists().then_some(()));
    let second = site.end(site.buffered(&[
        "sh",
        "-c",
        "cat file; echo two >> file; wc -c < file; touch $OUT/seen",
    ]));
    assert_eq!(second.expect(0).stdout, "one\n8\n");
    assert_eq!(run.end().expect(0).stdout, "one\ntwo\n");
    assert_eq!(std::fs::read_to_string(site.store.join("file")).unwrap(), "one\ntwo\n");
}

#[test]
fn a_process_left_in_the_background_is_drained_too() {
    let site = Site::new(&LAZY);
    let script =
        "(sleep 1; seq 50000 > late; echo done > $OUT/done) > /dev/null 2>&1 & seq 1000 > early";
    let run = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert_eq!(run.stdout, "");
    wait_for("the late one", LIMIT, || site.out.join("done").exists().then_some(()));
    wait_for("the drain", LIMIT, || site.pools().is_empty().then_some(()));
    site.run_plainly("seq 50000 > late; seq 1000 > early");
    site.assert_same_files();
}

#[test]
fn a_run_within_a_run_joins_it() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let inner =
        format!("$FOREBAY run --config {config} -- sh -c 'cat file; echo inner >> file; exit 4'");
    let script = format!("echo outer > file; {inner}; echo $?; echo outer >> file; cat file");
    let ran = site.end(site.buffered(&["sh", "-c", &script])).expect(0);
    assert_eq!(ran.stdout, "outer\n4\nouter\ninner\nouter\n");
    assert_eq!(std::fs::read_to_string(site.store.join("file")).unwrap(), "outer\ninner\nouter\n");
}

#[test]
fn files_outside_of_the_backing_directory_are_left_alone() {
    let site = Site::new(&LAZY);
    let (ran, status) = site.run_buffered("echo outside > $OUT/file; cat $OUT/file; ln -s $OUT out; echo through > out/link; cat out/link");
    assert_eq!(ran.expect(0).stdout, "outside\nthrough\n");
    assert_eq!((status.count("opens"), status.count("writes")), (0, 0), "{}", status.text);
}

#[test]
fn a_manager_that_dies_when_a_run_begins_is_replaced() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    for message in 1..=3 {
        let site = Site::new(&LAZY);
        let mut run = site.buffered(&["sh", "-c", "echo hello > file"]);
        run.env("FOREBAY_CRASH", format!("message.received:{message}"));
        run.env("FOREBAY_CRASH_IN", "node").env("FOREBAY_CRASH_ONCE", site.out.join("once"));
        site.end(run).expect(0);
        assert!(message > 1 || site.out.join("once").exists());
        assert_eq!(std::fs::read_to_string(site.store.join("file")).unwrap(), "hello\n");
    }
}

/// What it waits for are answers, and ends of processes. The programs of another run are none of
/// its.
#[test]
fn a_run_that_joins_another_ones_manager_does_not_sleep() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&USUAL);
    let other = Steps::of(&site, "step go");
    other.at("go");
    let traced = site.out.join("calls");
    let mut command = site.command(&site.store, "strace");
    let calls = "trace=nanosleep,clock_nanosleep,execve";
    command.args(["-qq", "-o", traced.to_str().unwrap(), "-e", calls, site.program(), "run"]);
    command.arg("--config").arg(&site.config).args(["--", "bash", "-c", "echo data > file"]);
    let ran = site.end(command).expect(0);
    assert_eq!(ran.stderr, "", "programs of the other run are mentioned");
    let traced = std::fs::read_to_string(traced).unwrap();
    assert!(traced.contains("execve"), "{traced}");
    assert!(!traced.contains("nanosleep"), "{traced}");
    other.past("go");
    other.end();
}

#[test]
fn a_run_says_what_it_did_if_asked_and_that_it_buffered_nothing() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let script = "head -c 1M /dev/zero > file; cat file > /dev/null";
    let run = |options: &[&str], script: &str| {
        let words = [&["run", "--config", config], options, &["--", "sh", "-c", script]].concat();
        site.end(site.forebay(&words)).expect(0).stderr
    };
    assert_eq!(run(&[], script), "");
    let said = run(&["--verbose"], script);
    assert!(said.starts_with("forebay: 2 opens, 1.00 MiB in "), "{said}");
    assert!(said.contains("all on the store ") && said.lines().count() == 1, "{said}");
    for options in [&[][..], &["--verbose"]] {
        let said = run(options, "echo text > $OUT/elsewhere");
        let wanted = format!(
            "forebay: nothing was buffered: no program of this run was seen to open a file beneath {}.",
            site.store.display()
        );
        assert!(said.starts_with(&wanted) && said.lines().count() == 1, "{said}");
    }
    // It is not meant to be buffered.
    let text = std::fs::read_to_string(config).unwrap();
    let text = text.replace("path = \"store\"", "path = \"store\"\nmode = \"bypass\"");
    std::fs::write(config, text).unwrap();
    assert_eq!(run(&[], script), "");
}

#[test]
fn what_is_left_of_other_directories_is_not_told_at_each_run() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "echo text > file; step 1");
    steps.at("1");
    site.kill_all();
    steps.running.end();
    let elsewhere = site.out.to_str().unwrap();
    let words = ["run", "--backing", elsewhere, "--", "sh", "-c", "echo text > $OUT/file"];
    let said = site.end(site.forebay(&words)).expect(0).stderr;
    assert!(said.lines().count() == 1 && said.contains(elsewhere), "{said}");
    assert!(site.status().text.contains("orphaned: "), "{}", site.status().text);
    site.recover().expect(0);
}

#[test]
fn a_command_that_is_installed_alone_says_how_to_get_its_libraries() {
    let site = Site::new(&USUAL);
    let alone = site.out.join("bin");
    std::fs::create_dir(&alone).unwrap();
    let forebay = alone.join("forebay");
    std::fs::copy(site.program(), &forebay).unwrap();
    let (program, config) = (forebay.display(), site.config.display());
    let script = format!("{program} run --config {config} -- touch ran");
    let ran = site.run_plainly(&script).expect(125);
    let place = format!("libforebay_preload.so is not beside {}", forebay.display());
    assert!(ran.stderr.contains(&place), "{ran:?}");
    assert!(ran.stderr.contains("`scripts/install PREFIX`"), "{ran:?}");
    assert!(!site.plain.join("ran").exists() && site.instances().count() == 0, "{ran:?}");
}

#[test]
fn a_terminal_gets_a_line_of_what_a_run_did_and_a_file_only_if_asked() {
    let site = Site::new(&USUAL);
    let run = |options: &str| {
        let (store, config) = (site.store.display(), site.config.display());
        format!(
            "cd {store} && {FOREBAY} run {options} --config {config} -- sh -c \"seq 1000 > file\""
        )
    };
    let is_told =
        |said: &str| said.contains("3.80 KiB in 1 write") && said.contains("all on the store");
    let quiet = site.run_plainly(&run("")).expect(0);
    assert!(!is_told(&quiet.stderr), "{quiet:?}");
    let asked = site.run_plainly(&run("--verbose")).expect(0);
    assert!(is_told(&asked.stderr), "{asked:?}");
    if !works(&["script", "-qec", "true", "/dev/null"]) {
        return skip("script (of util-linux) is not installed");
    }
    let shown = site.run_plainly(&format!("script -qec '{}' /dev/null", run(""))).expect(0);
    assert!(is_told(&shown.stdout), "{shown:?}");
}

#[test]
fn programs_of_a_run_within_a_run_are_those_of_the_inner_one() {
    let site = Site::new(&LAZY);
    let script =
        "echo outer > outer; $FOREBAY run --config $OUT/../forebay.toml --mode scratch -- \
         sh -c 'echo inner > inner; /bin/echo child > child; exec /bin/cat inner child'
         echo again > again";
    let (ran, _) = site.run_buffered(script);
    assert_eq!(ran.expect(0).stdout, "inner\nchild\n");
    let on_store = |name: &str| site.store.join(name).exists();
    assert!(on_store("outer") && on_store("again"));
    assert!(!on_store("inner") && !on_store("child"), "scratch files of the inner run");
}
