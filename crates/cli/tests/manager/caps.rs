//! What of a run's files, and of all, the store may lack, and for how long.

use crate::harness::{LAZY, LONG, Setup, Site, Steps, descendants, kill, wait_for, with_mounts};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = MIB / 4;

/// Nothing leaves for the store, which is slower than any writer, but because of a cap.
const SLOW: Setup = Setup {
    nvme_emulate: None,
    store_emulate: Some("{ bandwidth = \"16MB/s\", latency = \"1ms\" }"),
    ..LAZY
};

fn status(site: &Site) -> Value {
    let said = site.forebay(&["status", "--json"]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let status: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert!(status[0].is_object(), "no pool: {status}");
    status[0].clone()
}

fn count(status: &Value, counter: &str) -> u64 {
    status["counters"][counter].as_u64().unwrap()
}

/// What the stores lack of all files, and of those of the first run with a cap, and its limit.
fn lacking(status: &Value) -> (u64, Option<(u64, u64)>) {
    let caps = status["jobs"].as_array().unwrap().iter().map(|job| &job["unsafe"]);
    let of_run = caps
        .filter(|cap| cap.is_object())
        .map(|cap| (cap["used"].as_u64().unwrap(), cap["limit"].as_u64().unwrap()));
    (status["unsafe"]["bytes"].as_u64().unwrap(), of_run.min())
}

fn site(setup: &Setup, mib: u64) -> Site {
    let site = Site::new(setup);
    let bytes: Vec<u8> = (0..mib * MIB).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(site.out.join("bytes"), bytes).unwrap();
    site
}

/// Copies `mib` MiB to `name`, a block at a time.
fn dd(name: &str, mib: u64) -> String {
    format!("dd if=$OUT/bytes of={name} bs=256k count={} 2>/dev/null", mib * 4)
}

/// A run of the script that has begun.
fn begin<'a>(site: &'a Site, options: &[&str], script: &str) -> Steps<'a> {
    let steps = Steps::with(site, options, &format!("step begin; {script}"));
    steps.at("begin");
    steps.past("begin");
    steps
}

/// The processes `dd` of a run.
fn writers(run: u32) -> Vec<u32> {
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    descendants(run).into_iter().filter(|&pid| name(pid).trim() == "dd").collect()
}

/// What status says while no writer of a run goes on: what it finds one after the other was there
/// when it began to look.
fn still(site: &Site, run: u32) -> Value {
    let writers = writers(run);
    writers.iter().for_each(|&pid| kill(pid, Signal::STOP));
    for pid in &writers {
        let is_still = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
            state.is_none_or(|state| "TZX".contains(state)).then_some(())
        };
        wait_for("a writer that stands", LONG, is_still);
    }
    let status = status(site);
    writers.iter().for_each(|&pid| kill(pid, Signal::CONT));
    status
}

/// Looks at a run until it is at a step; the most that the stores lacked of all files.
fn watch(site: &Site, steps: &Steps<'_>, step: &str, look: impl Fn(&Value)) -> u64 {
    let mut most = 0;
    let mark = site.out.join(format!("at-{step}"));
    while !mark.exists() {
        let seen = still(site, steps.running.pid());
        look(&seen);
        most = most.max(lacking(&seen).0);
    }
    most
}

fn assert_same(site: &Site, name: &str, mib: u64) {
    let wanted = fs::read(site.out.join("bytes")).unwrap();
    assert!(fs::read(site.store.join(name)).unwrap() == wanted[..(mib * MIB) as usize], "{name}");
}

#[test]
fn unsafe_bytes_of_a_run_do_not_pass_its_cap_but_for_a_block_of_each_thread() {
    let site = site(&SLOW, 12);
    let script = format!("{} & {} & wait; step 1", dd("one", 12), dd("two", 12));
    let steps = begin(&site, &["--max-unsafe", "6MiB"], &script);
    let most = watch(&site, &steps, "1", |status| {
        let (all, of_run) = lacking(status);
        let (used, limit) = of_run.unwrap_or((0, 6 * MIB));
        assert_eq!(limit, 6 * MIB);
        assert!(used.max(all) <= limit + 2 * BLOCK, "{used} of {limit}, {all}");
    });
    assert!(most > 3 * MIB, "{most}");
    let seen = status(&site);
    assert!(count(&seen, "cap_waits") > 0 && count(&seen, "write_around") == 0, "{seen}");
    let text = site.status().text;
    assert!(text.contains("of 6.00 MiB not yet on the store"), "{text}");
    steps.past("1");
    steps.end().expect(0);
    assert_same(&site, "one", 12);
    assert_same(&site, "two", 12);
}

#[test]
fn all_runs_together_are_within_the_cap_of_the_configuration() {
    let setup = Setup { flush: "trigger = \"on-exit\"\nmax_unsafe = \"2%\"", ..SLOW };
    let site = site(&setup, 12);
    // 2 % of 320 MiB in whole blocks.
    let limit = 25 * BLOCK;
    let other = begin(&site, &[], &format!("{}; step other", dd("other", 12)));
    let steps =
        Steps::of(&site, &format!("{}; {} conv=notrunc; step 1", dd("one", 12), dd("one", 4)));
    let most = watch(&site, &steps, "1", |seen| {
        assert_eq!(seen["unsafe"]["limit"], limit);
    });
    // The other run's writer was not stopped: blocks of its may count that were clean at first.
    assert!(most > limit / 2, "{most}");
    other.at("other");
    let (all, of_run) = lacking(&status(&site));
    assert!(all <= limit + 2 * BLOCK && of_run.is_none(), "{all}");
    let metrics = site.end(site.forebay(&["metrics"])).expect(0).stdout;
    let line = metrics.lines().find(|line| line.starts_with("forebay_unsafe_limit_bytes"));
    assert!(line.is_some_and(|line| line.ends_with(&format!(" {limit}"))), "{metrics}");
    other.past("other");
    steps.past("1");
    other.end().expect(0);
    steps.end().expect(0);
    assert_same(&site, "one", 12);
    assert_same(&site, "other", 12);
}

#[test]
fn a_run_at_its_cap_does_not_hold_another_up() {
    let site = site(&SLOW, 24);
    let first = begin(&site, &["--max-unsafe", "16MiB"], &format!("{}; step 1", dd("big", 24)));
    wait_for("a run at its cap", LONG, || (count(&status(&site), "cap_waits") > 0).then_some(()));
    // It has its own turns: what the first one has would take a second before it.
    let second =
        Steps::with(&site, &["--max-unsafe", "4MiB"], &format!("{}; step 2", dd("small", 5)));
    second.at("2");
    let metrics = site.end(site.forebay(&["metrics"])).expect(0).stdout;
    let limits = metrics.lines().filter(|line| line.starts_with("forebay_run_unsafe_limit_bytes{"));
    let mut limits: Vec<_> = limits.map(|line| line.rsplit(' ').next().unwrap()).collect();
    limits.sort_unstable();
    assert_eq!(limits, ["16777216", "4194304"], "{metrics}");
    first.at("1");
    for (steps, step) in [(first, "1"), (second, "2")] {
        steps.past(step);
        steps.end().expect(0);
    }
    assert_eq!(count(&site_counts(&site), "write_around"), 0);
    assert_same(&site, "big", 24);
    assert_same(&site, "small", 5);
}

/// Status of a pool that a run of its own keeps.
fn site_counts(site: &Site) -> Value {
    let steps = Steps::of(site, "step count");
    steps.at("count");
    let seen = status(site);
    steps.past("count");
    steps.end().expect(0);
    seen
}

#[test]
fn writes_over_unsafe_pages_and_scratch_files_are_not_held_up() {
    let site = site(&SLOW, 12);
    let over = format!("for n in $(seq 20); do {} conv=notrunc; done", dd("same", 2));
    let steps = Steps::with(&site, &["--max-unsafe", "4MiB"], &format!("{over}; step 1"));
    steps.at("1");
    let seen = status(&site);
    assert_eq!(lacking(&seen), (2 * MIB, Some((2 * MIB, 4 * MIB))));
    assert_eq!((count(&seen, "cap_waits"), count(&seen, "write_around")), (0, 0));
    steps.past("1");
    steps.end().expect(0);

    let script = format!("{}; step 2", dd("scratch", 12));
    let steps = Steps::with(&site, &["--max-unsafe", "4MiB", "--mode", "scratch"], &script);
    steps.at("2");
    let seen = status(&site);
    assert_eq!(lacking(&seen), (0, Some((0, 4 * MIB))));
    assert_eq!((count(&seen, "cap_waits"), count(&seen, "write_around")), (0, 0));
    steps.past("2");
    steps.end().expect(0);
}

#[test]
fn a_store_that_takes_nothing_is_the_programs_error_and_the_cap_holds() {
    let site = site(&LAZY, 24);
    let script = "
        mount -t tmpfs -o size=6m none $STORE || { echo none; exit; }
        cd $STORE
        $FOREBAY run --config $CONFIG --max-unsafe 4MiB -- bash -c '
            dd if=$OUT/bytes of=big bs=256k count=96 2> $OUT/said; echo dd $?
            $FOREBAY status --json > $OUT/status
            mount -o remount,size=64m $STORE
            dd if=$OUT/bytes of=more bs=256k count=24 2> $OUT/more; echo dd $?'
        echo run $?; $FOREBAY run --config $CONFIG -- true; cmp more <(head -c 6M $OUT/bytes) && echo same
        cmp -n $(stat -c %s big) big $OUT/bytes && echo same";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert_eq!(ran.stdout, "dd 1\ndd 0\nrun 0\nsame\nsame\n", "{ran:?}");
    let said = fs::read_to_string(site.out.join("said")).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
    let text = fs::read(site.out.join("status")).unwrap();
    let seen: Value = serde_json::from_slice(&text).unwrap();
    let (all, of_run) = lacking(&seen[0]);
    assert_eq!(of_run, Some((all, 4 * MIB)));
    assert!(all > 2 * MIB && all <= 4 * MIB + BLOCK, "{all}");
}

#[test]
fn what_killed_writers_had_counted_is_no_ones_for_long() {
    let site = site(&SLOW, 12);
    let one =
        |name: &str| format!("{} & sleep 0.0$((RANDOM % 100)); kill -9 $!; wait $!", dd(name, 12));
    let script = format!(
        "for n in $(seq 12); do {}; done 2>/dev/null; {}; step 1",
        one("torn.$n"),
        dd("big", 12)
    );
    let steps = begin(&site, &["--max-unsafe", "5MiB"], &script);
    watch(&site, &steps, "1", |status| {
        let used = lacking(status).1.map_or(0, |(used, _)| used);
        assert!(used <= 5 * MIB + 2 * BLOCK, "{used}");
    });
    let seen = status(&site);
    assert!(count(&seen, "cap_waits") > 0 && count(&seen, "write_around") == 0, "{seen}");
    steps.past("1");
    steps.end().expect(0);
    assert_same(&site, "big", 12);
}

#[test]
fn caps_hold_after_the_node_manager_was_killed() {
    let site = site(&SLOW, 12);
    let script =
        format!("{}; step 1; {}; step 2; {}; step 3", dd("one", 12), dd("two", 3), dd("three", 12));
    let steps = begin(&site, &["--max-unsafe", "6MiB"], &script);
    // While there is none to flush, what does not fit goes to the store.
    steps.without_manager("1", "2");
    watch(&site, &steps, "3", |status| {
        let (used, limit) = lacking(status).1.unwrap();
        assert_eq!(limit, 6 * MIB);
        assert!(used <= limit + BLOCK, "{used}");
    });
    steps.past("3");
    steps.end().expect(0);
    assert_same(&site, "one", 12);
    assert_same(&site, "three", 12);
    assert_same(&site, "two", 3);
}

#[test]
fn nothing_is_unsafe_for_longer_than_a_run_may_leave_it_so() {
    let site = site(&LAZY, 1);
    let script = format!("exec 3> open; cat $OUT/bytes >&3; step 1; {}; step 2", dd("closed", 1));
    let steps = Steps::with(&site, &["--max-age", "500ms"], &script);
    steps.at("1");
    let on_store = |path: &Path| {
        let wanted = fs::read(site.out.join("bytes")).unwrap();
        wait_for("what was written on the store", LONG, || {
            fs::read(path).is_ok_and(|got| got == wanted).then_some(())
        });
    };
    on_store(&site.store.join("open"));
    let seen = status(&site);
    assert_eq!(seen["jobs"][0]["max_age_seconds"], 0.5);
    assert!(seen["jobs"][0]["unsafe"].is_null() && seen["unsafe"]["limit"].is_null(), "{seen}");
    steps.past("1");
    steps.at("2");
    on_store(&site.store.join("closed"));
    steps.past("2");
    steps.end().expect(0);
}

#[test]
fn the_table_of_runs_says_the_same_and_options_come_before_it() {
    let site = site(&LAZY, 1);
    let before = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("{before}[run]\nmax_unsafe = \"5MiB\"\nmax_age = \"1min\"\n"))
        .unwrap();
    for (options, limit, age) in [
        (&[][..], 5 * MIB, 60.0),
        (&["--max-unsafe", "50%", "--max-age", "250ms"], 160 * MIB, 0.25),
    ] {
        let steps = Steps::with(&site, options, "step 1; rm $OUT/at-1 $OUT/past-1");
        steps.at("1");
        let seen = status(&site);
        assert_eq!(lacking(&seen), (0, Some((0, limit))));
        assert_eq!(seen["jobs"][0]["max_age_seconds"], age);
        steps.past("1");
        steps.end().expect(0);
    }
    let said = site.end(site.forebay(&["check", site.config.to_str().unwrap()])).expect(0).stdout;
    assert!(said.contains("of a run at most 5.00 MiB unsafe, for 60 s at most"), "{said}");
}

#[test]
fn bad_limits_are_named() {
    let site = site(&LAZY, 1);
    let config = site.config.to_str().unwrap();
    for (option, given, why) in [
        ("--max-unsafe", "4KiB", "less than 16 buckets (4MiB); give at least 4MiB"),
        ("--max-unsafe", "1%", "less than 16 buckets (4MiB); give at least 4MiB"),
        ("--max-unsafe", "101%", "cannot be read; give a size such as \"2GiB\", or a share"),
        ("--max-unsafe", "much", "cannot be read"),
        ("--max-age", "60", "cannot be read; give a time such as \"60s\""),
        ("--max-age", "99ms", "is out of range; give a time from 100ms to 1440min"),
        ("--max-age", "1441min", "is out of range"),
    ] {
        let words = ["run", "--config", config, option, given, "--", "touch", "begun"];
        let said = site.end(site.forebay(&words)).expect(125).stderr;
        assert!(said.contains(&format!("{option} {given}: ")) && said.contains(why), "{said}");
        assert!(!site.store.join("begun").exists());
    }
    // As much as there is, and more, is no limit.
    let words = ["run", "--config", config, "--max-unsafe", "1TiB", "--", "true"];
    site.end(site.forebay(&words)).expect(0);
}
