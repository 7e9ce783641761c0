//! Commands that run on files while these are in the tiers: `[[analysis]]` and `forebay analyse`.

use crate::harness::{EAGER, LONG, Setup, Site, Steps, becomes, is_alive, kill, sees, wait_for};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;

/// A site in which files of the name `staged*` are staged, with these analyses: other keys and the
/// text of a shell for each.
fn site_with(setup: &Setup, analyses: &[(&str, &str)]) -> Site {
    let site = Site::new(setup);
    let mut text = fs::read_to_string(&site.config).unwrap();
    text += "[[rule]]\npath = \"staged*\"\nmode = \"staged\"\ntier = \"nvme\"\n";
    for (keys, script) in analyses {
        let script = script.replace("OUT", site.out.to_str().unwrap());
        text += &format!("[[analysis]]\n{keys}\ncommand = '''{script}'''\n");
    }
    fs::write(&site.config, text).unwrap();
    site
}

fn explained(site: &Site, file: &str) -> String {
    let said = site.end(site.forebay(&["explain", "--all", file])).expect(0).stdout;
    said.replace("\n            ", " ")
}

/// Waits until what is said of the file has this in it.
fn comes_to(site: &Site, file: &str, wanted: &str) {
    wait_for(wanted, LONG, || explained(site, file).contains(wanted).then_some(()));
}

fn lines(path: PathBuf) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_closed_file_is_analysed_once_and_what_is_written_meanwhile_starts_nothing() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"size\"\nmatch = \"*\"",
            "wc -c < \"$FOREBAY_FILE\"; echo run >> OUT/runs; echo x > made-by-it; ls /proc/self/fd > OUT/fds",
        )],
    );
    let steps =
        Steps::of(&site, "echo text > plain; echo other > staged; step 1; cat plain > /dev/null");
    steps.at("1");
    becomes(&site.store.join("plain.size.out"), "5\n");
    becomes(&site.store.join("staged.size.out"), "6\n");
    becomes(&site.store.join("made-by-it"), "x\n");
    assert!(
        explained(&site, "plain").contains("analysis size done"),
        "{}",
        explained(&site, "plain")
    );
    let status = site.status();
    status.assert_live();
    assert!(status.text.contains("analysis size: 2 done"), "{}", status.text);
    steps.past("1");
    // What was only read is not analysed, nor is what the command and its result are.
    assert_eq!(steps.end().stderr, "");
    assert_eq!(lines(site.out.join("runs")), 2);
    // Its three, and the one of `ls`.
    assert_eq!(lines(site.out.join("fds")), 4, "{}", sees(&site.out.join("fds")));
}

#[test]
fn a_file_is_held_until_all_of_its_analyses_have_ended() {
    let wait = "while [ ! -e OUT/gate ]; do sleep 0.05; done; cat \"$FOREBAY_FILE\"";
    let keys = |name: &str| format!("name = \"{name}\"\nmatch = \"staged*\"\ndrain = \"after\"");
    let (first, second) = (keys("first"), keys("second"));
    let site = site_with(&EAGER, &[(&first, wait), (&second, "cat \"$FOREBAY_FILE\"")]);
    let steps = Steps::of(&site, "echo text > staged; step 1");
    steps.at("1");
    comes_to(&site, "staged", "(A)");
    becomes(&site.store.join("staged.second.out"), "text\n");
    assert_eq!(sees(&site.store.join("staged")), "");
    assert!(site.status().text.contains("analysis first: 1 running"), "{}", site.status().text);
    // The end of the run waits for it.
    steps.past("1");
    assert_eq!(sees(&site.store.join("staged")), "");
    fs::write(site.out.join("gate"), "").unwrap();
    assert_eq!(steps.end().stderr, "");
    assert_eq!(sees(&site.store.join("staged")), "text\n");
    assert_eq!(sees(&site.store.join("staged.first.out")), "text\n");
}

#[test]
fn what_hangs_or_fails_is_said_and_its_file_is_drained() {
    let site = site_with(
        &EAGER,
        &[
            (
                "name = \"slow\"\nmatch = \"staged-1\"\ndrain = \"after\"\ntimeout = \"500ms\"",
                "echo half; sleep 300 & echo $! > OUT/pid; setsid sleep 300 & echo $! >> OUT/pid; sleep 300",
            ),
            (
                "name = \"bad\"\nmatch = \"staged-2\"\ndrain = \"after\"\nmay_drop = true",
                "echo drop > \"$FOREBAY_DECISION\"; echo half; echo no good >&2; exit 3",
            ),
            (
                "name = \"killed\"\nmatch = \"staged-3\"\ndrain = \"after\"\nmay_drop = true",
                "echo drop > \"$FOREBAY_DECISION\"; kill -9 $$",
            ),
        ],
    );
    let script = "for n in 1 2 3; do echo $n > staged-$n; done";
    let ran = site.end(site.buffered(&["sh", "-c", script])).expect(0);
    for (file, name) in [("staged-1", "slow"), ("staged-2", "bad"), ("staged-3", "killed")] {
        assert_eq!(sees(&site.store.join(file)), format!("{}\n", &file[7..]));
        assert!(!site.store.join(format!("{file}.{name}.out")).exists());
    }
    let said = &ran.stderr;
    assert!(said.contains("1 timed out") && said.contains("it was killed after 500ms"), "{said}");
    assert!(said.contains("it exited with 3; it said: no good"), "{said}");
    assert!(said.contains("signal 9 has ended it"), "{said}");
    // One that was killed before its first line has written none.
    for pid in fs::read_to_string(site.out.join("pid")).unwrap_or_default().lines() {
        assert!(!is_alive(pid.parse().unwrap()), "{pid}");
    }
    let left = fs::read_dir(&site.store).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.count(), 3);
}

#[test]
fn only_what_was_said_and_never_was_on_the_store_is_removed() {
    let site = site_with(
        &EAGER,
        &[
            (
                "name = \"index\"\nmatch = \"staged.*\"\ndrain = \"after\"\nmay_drop = true",
                "echo step $FOREBAY_STEP; echo keep every 2 > \"$FOREBAY_DECISION\"",
            ),
            (
                "name = \"all\"\nmatch = \"staged-old\"\ndrain = \"after\"\nmay_drop = true",
                "echo drop > \"$FOREBAY_DECISION\"",
            ),
        ],
    );
    fs::write(site.store.join("staged-old"), "old\n").unwrap();
    let script = "for n in 1 2 3; do echo $n > staged.00$n; done; echo new >> staged-old";
    let ran = site.end(site.buffered(&["sh", "-c", script])).expect(0);
    assert_eq!(sees(&site.store.join("staged.002")), "2\n");
    assert_eq!(sees(&site.store.join("staged-old")), "old\nnew\n");
    for n in [1, 3] {
        assert!(!site.store.join(format!("staged.00{n}")).exists(), "{n}: {}", ran.stderr);
        assert_eq!(
            sees(&site.store.join(format!("staged.00{n}.index.out"))),
            format!("step {n}\n")
        );
    }
    assert!(ran.stderr.contains("2 dropped"), "{}", ran.stderr);
    assert!(ran.stderr.contains("staged.001, step 1 dropped"), "{}", ran.stderr);
    assert!(ran.stderr.contains("its store has some of it"), "{}", ran.stderr);
}

/// Files that get the inodes of removed ones were used through the kernel if those had been.
#[test]
fn a_file_with_the_inode_of_a_removed_one_is_removed_as_well() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"all\"\nmatch = \"staged*\"\ndrain = \"after\"\nmay_drop = true",
            "echo drop > \"$FOREBAY_DECISION\"",
        )],
    );
    let script = "for n in 1 2 3 4 5 6; do head -c 3000000 /dev/zero > old$n; done; rm old*
        for turn in 1 2 3; do
            for n in 1 2 3 4 5 6; do head -c 300000 /dev/zero > staged$turn$n; done; sleep 0.5
        done";
    let ran = site.end(site.buffered(&["sh", "-c", script])).expect(0);
    assert!(ran.stderr.contains("ran on files: 18 dropped"), "{}", ran.stderr);
    let left = fs::read_dir(&site.store).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.filter(|name| !name.to_str().unwrap().ends_with(".out")).count(), 0);
}

#[test]
fn a_file_is_never_removed_by_what_was_said_of_another_one_with_its_name() {
    let analyses = [
        (
            "name = \"drops\"\nmatch = \"staged-now\"\ndrain = \"after\"\nmay_drop = true",
            "sleep 0.3; cat \"$FOREBAY_FILE\" >> OUT/read; echo drop > \"$FOREBAY_DECISION\"",
        ),
        (
            "name = \"moves\"\nmatch = \"staged-moved\"\ndrain = \"after\"\nmay_drop = true",
            "mv \"$FOREBAY_FILE\" staged-elsewhere; echo drop > \"$FOREBAY_DECISION\"",
        ),
    ];
    // A rotation: before the command begins, while it runs, or after that.
    for pause in ["0", "0.25", "0.4"] {
        let site = site_with(&EAGER, &analyses);
        let script = format!(
            "echo first > staged-now; sleep {pause}; mv staged-now staged-first; \
             echo second > staged-now; echo text > staged-moved; sleep 2"
        );
        let ran = site.end(site.buffered(&["sh", "-c", &script])).expect(0);
        // Only a command that has read it may have said so.
        match fs::read_to_string(site.store.join("staged-first")) {
            Ok(text) => assert_eq!(text, "first\n", "{pause}: {}", ran.stderr),
            Err(_) => {
                let read = sees(&site.out.join("read"));
                assert!(read.contains("first\n"), "{pause}: {read} {}", ran.stderr);
            }
        }
        assert_eq!(sees(&site.store.join("staged-elsewhere")), "text\n", "{}", ran.stderr);
    }
}

#[test]
fn nothing_waits_for_files_that_have_no_name_any_more() {
    let keys = "name = \"late\"\nmatch = \"*\"\ndrain = \"after\"";
    let site = site_with(&EAGER, &[(keys, "cat \"$FOREBAY_FILE\"")]);
    let script = "echo text > removed; rm removed; echo first > staged; echo second > new; \
        mv new staged; echo last > staged-last; ln staged-last linked; rm staged-last";
    site.end(site.buffered(&["sh", "-c", script])).expect(0);
    assert_eq!(sees(&site.store.join("staged")), "second\n");
    assert_eq!(sees(&site.store.join("linked")), "last\n");
    assert!(!site.store.join("removed").exists());
}

#[test]
fn a_command_that_writes_to_its_own_file_runs_once_and_loses_nothing() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"own\"\nmatch = \"staged\"\ndrain = \"after\"\nmay_drop = true",
            "echo run >> OUT/runs; echo more >> \"$FOREBAY_FILE\"; echo drop > \"$FOREBAY_DECISION\"",
        )],
    );
    let ran = site.end(site.buffered(&["sh", "-c", "echo text > staged; sleep 1"])).expect(0);
    assert_eq!(sees(&site.store.join("staged")), "text\nmore\n");
    assert_eq!(lines(site.out.join("runs")), 1);
    assert!(ran.stderr.contains("its own analysis has written to it"), "{}", ran.stderr);
}

#[test]
fn a_killed_manager_takes_its_commands_along_and_its_successor_runs_them() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"once\"\nmatch = \"staged\"\ndrain = \"after\"",
            "echo $$ >> OUT/pids; while [ ! -e OUT/gate ]; do sleep 0.05; done; cat \"$FOREBAY_FILE\"",
        )],
    );
    let steps = Steps::of(&site, "echo text > staged; step 1");
    steps.at("1");
    wait_for("a command", LONG, || (lines(site.out.join("pids")) == 1).then_some(()));
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    wait_for("another command", LONG, || (lines(site.out.join("pids")) == 2).then_some(()));
    let first: u32 = sees(&site.out.join("pids")).lines().next().unwrap().parse().unwrap();
    assert!(!is_alive(first));
    assert!(!site.store.join("staged.once.out").exists());
    fs::write(site.out.join("gate"), "").unwrap();
    becomes(&site.store.join("staged.once.out"), "text\n");
    becomes(&site.store.join("staged"), "text\n");
    steps.past("1");
    steps.end();
    assert_eq!(lines(site.out.join("pids")), 2);
}

#[test]
fn a_tier_that_is_short_of_room_holds_nothing() {
    const SHORT: Setup = Setup { ram: "8MiB", nvme: "8MiB", ..EAGER };
    let site = site_with(
        &SHORT,
        &[(
            "name = \"held\"\nmatch = \"staged\"\ndrain = \"after\"\nmay_drop = true",
            "while [ ! -e OUT/gate ]; do sleep 0.05; done; echo drop > \"$FOREBAY_DECISION\"",
        )],
    );
    let script = "head -c 8200000 /dev/zero > staged; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    comes_to(&site, "staged", "(F)");
    assert_eq!(fs::read(site.store.join("staged")).unwrap().len(), 8_200_000);
    assert!(site.log().contains("is short of room"), "{}", site.log());
    fs::write(site.out.join("gate"), "").unwrap();
    steps.past("1");
    steps.end();
    assert!(site.store.join("staged").exists());
}

#[test]
fn analyses_are_registered_listed_and_removed_while_a_manager_runs() {
    let site = site_with(&EAGER, &[]);
    let config = site.config.to_str().unwrap().to_owned();
    let analyse = |words: &[&str]| {
        let words = [&["analyse", "--config", &config][..], words].concat();
        site.end(site.forebay(&words))
    };
    assert!(analyse(&["--list"]).expect(125).stderr.contains("no node manager runs"));
    let write = "python3 -c \"
import os
fd = os.open('plain', os.O_CREAT | os.O_WRONLY)
for n in range(2):
    os.write(fd, b'x'); os.fsync(fd)
    while not os.path.exists('plain.count.%d.out' % (n + 1)): pass
\"";
    let script = format!("echo before > early; step 1; {write}; step 2; echo after > late; step 3");
    let steps = Steps::of(&site, &script);
    steps.at("1");
    let missing = analyse(&["--match", "*", "--", "no-such-program"]).expect(125);
    assert!(
        missing.stderr.contains("there is no program \"no-such-program\" in PATH"),
        "{missing:?}"
    );
    let wrong = analyse(&["--match", "*", "--may-drop", "--", "true"]).expect(125);
    assert!(wrong.stderr.contains("--may-drop: needs drain = \"after\""), "{wrong:?}");
    analyse(&["--match", "*", "--on", "step", "--name", "count", "--", "wc", "-c", "{file}"])
        .expect(0);
    // Another one takes its name only if that is said, and the same is no other one.
    let other = ["--match", "none", "--name", "count", "--", "true"];
    let refused = analyse(&other).expect(125).stderr;
    assert!(refused.contains("\"count\" is registered already") && refused.contains("--replace"));
    analyse(&["--match", "*", "--on", "step", "--name", "count", "--", "wc", "-c", "{file}"])
        .expect(0);
    assert!(analyse(&["--list"]).expect(0).stdout.starts_with("count: * -> /"));
    steps.past("1");
    steps.at("2");
    assert_eq!(
        sees(&site.store.join("plain.count.2.out")),
        format!("2 {}\n", site.store.join("plain").display())
    );
    let listed = analyse(&["--list"]).expect(0).stdout;
    assert!(listed.starts_with("count: * -> /"), "{listed}");
    analyse(&[&["--replace"][..], &other].concat()).expect(0);
    let listed = analyse(&["--list"]).expect(0).stdout;
    assert!(listed.starts_with("count: none -> /") && listed.lines().count() == 2, "{listed}");
    analyse(&["--remove", "count"]).expect(0);
    assert!(analyse(&["--remove", "count"]).expect(125).stderr.contains("there is no analysis"));
    steps.past("2");
    steps.at("3");
    steps.past("3");
    steps.end();
    let results = fs::read_dir(&site.store).unwrap().flatten();
    let results = results.filter(|entry| entry.file_name().to_str().unwrap().contains(".count."));
    // Neither what was there before, nor what came later; the close after the last step has
    // nothing new.
    assert!(results.count() >= 2);
    assert!(
        !site.store.join("early.count.out").exists() && !site.store.join("late.count.out").exists()
    );
}

/// Wherever the manager is killed, its successor has the file analysed and drained, or removed with
/// its result on the store.
#[test]
fn a_manager_that_is_killed_at_any_step_loses_nothing() {
    const POINTS: [&str; 12] = [
        "action.due",
        "action.noted",
        "action.added",
        "action.starting",
        "action.started",
        "action.ended",
        "action.synced",
        "action.published",
        "action.removing",
        "action.removed",
        "action.decided",
        "staged.passed",
    ];
    for point in POINTS {
        let site = site_with(
            &EAGER,
            &[(
                "name = \"index\"\nmatch = \"staged.*\"\ndrain = \"after\"\nmay_drop = true",
                "cat \"$FOREBAY_FILE\"; echo keep every 2 > \"$FOREBAY_DECISION\"",
            )],
        );
        let once = site.out.join("crashed");
        let script = "for n in 1 2 3; do echo $n > staged.00$n; done";
        let mut command = site.buffered(&["sh", "-c", script]);
        command.env("FOREBAY_CRASH", format!("{point}:1")).env("FOREBAY_CRASH_IN", "node");
        command.env("FOREBAY_CRASH_ONCE", &once);
        let ran = site.end(command).expect(0);
        assert!(once.exists(), "{point} was not passed");
        assert_eq!(sees(&site.store.join("staged.002")), "2\n", "{point}: {ran:?}");
        for n in 1..=3 {
            let name = format!("staged.00{n}");
            let file = site.store.join(&name);
            let result = sees(&site.store.join(format!("{name}.index.out")));
            assert_eq!(result, format!("{n}\n"), "{point}, {name}: {ran:?}");
            assert!(!file.exists() || sees(&file) == result, "{point}, {name}: {ran:?}");
        }
        let left = fs::read_dir(&site.store).unwrap().flatten();
        let hidden = left.filter(|entry| entry.file_name().to_str().unwrap().starts_with('.'));
        assert_eq!(hidden.count(), 0, "{point}");
    }
}

#[test]
fn what_a_program_has_written_is_not_said_to_be_the_analysis_own() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"slow\"\nmatch = \"staged\"\ndrain = \"after\"\nmay_drop = true",
            "echo run >> OUT/runs; while [ ! -e OUT/gate ]; do sleep 0.05; done; \
             echo drop > \"$FOREBAY_DECISION\"",
        )],
    );
    let steps = Steps::of(&site, "echo text > staged; step 1; echo more >> staged; step 2");
    steps.at("1");
    wait_for("the command", LONG, || (lines(site.out.join("runs")) == 1).then_some(()));
    steps.past("1");
    steps.at("2");
    // The change is noted while the command still runs.
    wait_for("another run", LONG, || {
        let said = site.status().text;
        said.contains("analysis slow: 1 waiting, 1 running").then_some(())
    });
    fs::write(site.out.join("gate"), "").unwrap();
    wait_for("both ends", LONG, || (lines(site.out.join("runs")) == 2).then_some(()));
    steps.past("2");
    let ran = steps.end();
    let log = format!("{}{}", site.log(), ran.stderr);
    assert!(!log.contains("its own analysis") && !log.contains("has written to it"), "{log}");
    assert!(log.contains("its file was changed meanwhile"), "{log}");
}

#[test]
fn a_file_of_which_nothing_is_left_in_the_tiers_is_analysed_all_the_same() {
    let wait = "while [ ! -e OUT/gate ]; do sleep 0.05; done; cat \"$FOREBAY_FILE\"";
    let site = site_with(
        &EAGER,
        &[
            ("name = \"slow\"\nmatch = \"plain\"", wait),
            ("name = \"quick\"\nmatch = \"other*\"", "cat \"$FOREBAY_FILE\""),
        ],
    );
    let steps = Steps::of(
        &site,
        "echo text > plain; step 1; echo more >> plain; step 2; chmod 640 plain; step 3; \
         for n in 1 2 3 4 5 6 7 8 9; do echo $n > other$n; step other$n; done",
    );
    steps.at("1");
    comes_to(&site, "plain", "analysis slow running");
    steps.past("1");
    steps.at("2");
    comes_to(&site, "plain", "analysis slow waiting");
    let drop = || site.end(site.forebay(&["stage-out", "--drop", "plain"])).expect(0);
    drop();
    // Nothing has to be kept of a file that was changed since it was flushed.
    steps.past("2");
    steps.at("3");
    drop();
    let mut last = "3".to_owned();
    // Files are looked at meanwhile, some times.
    for n in 1..=9 {
        steps.past(&last);
        last = format!("other{n}");
        steps.at(&last);
        becomes(&site.store.join(format!("{last}.quick.out")), &format!("{n}\n"));
    }
    fs::write(site.out.join("gate"), "").unwrap();
    steps.past(&last);
    let ran = steps.end();
    assert!(!ran.stderr.contains("stopped"), "{}", ran.stderr);
    assert_eq!(sees(&site.store.join("plain.slow.out")), "text\nmore\n");
}

#[test]
fn a_run_that_ends_says_for_what_its_files_are_held() {
    let site = site_with(
        &EAGER,
        &[(
            "name = \"slow\"\nmatch = \"staged\"\ndrain = \"after\"",
            "while [ ! -e OUT/gate ]; do sleep 0.05; done",
        )],
    );
    let running = site.start(site.buffered(&["sh", "-c", "echo text > staged"]));
    wait_for("a line", LONG, || running.stderr().contains("draining: ").then_some(()));
    fs::write(site.out.join("gate"), "").unwrap();
    let said = running.end().expect(0).stderr;
    assert!(said.contains("done, 0 B/s, waits for analysis slow\n"), "{said}");
    assert!(!said.contains("no end in sight"), "{said}");
}

#[test]
fn a_run_that_ends_says_what_runs_on_files_that_are_safe() {
    let wait = "while [ ! -e OUT/gate ]; do sleep 0.05; done";
    let site = site_with(&EAGER, &[("name = \"slow\"\nmatch = \"plain\"", wait)]);
    let running = site.start(site.buffered(&["sh", "-c", "echo text > plain"]));
    wait_for("a line", LONG, || {
        running.stderr().contains("waits for analysis slow\n").then_some(())
    });
    fs::write(site.out.join("gate"), "").unwrap();
    let said = running.end().expect(0).stderr;
    assert!(!said.contains("no end in sight"), "{said}");
}
