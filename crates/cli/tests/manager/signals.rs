//! Signals to `forebay run`: those for its command, and those that end its wait for the drain.

use crate::harness::{
    LAZY, LIMIT, LONG, Ran, Running, Setup, Site, Steps, USUAL, is_alive, kill, skip, wait_for,
    works,
};
use rustix::process::Signal;

/// Nothing reaches the store before the end, and then it takes seconds.
const LATE: Setup =
    Setup { store_emulate: Some("{ bandwidth = \"8MB/s\", latency = \"1ms\" }"), ..LAZY };

/// What the scripts write: more than a second's worth for the store of [`LATE`].
const WRITE: &str = "head -c 24M /dev/zero | tr '\\0' x > data";

#[test]
fn a_signal_is_for_the_command_while_it_runs() {
    for (signal, code) in [(Signal::TERM, 7), (Signal::HUP, 8), (Signal::INT, 9)] {
        let site = Site::new(&USUAL);
        let script = "trap 'echo term > data; exit 7' TERM; trap 'echo hup > data; exit 8' HUP
            trap 'echo int > data; exit 9' INT; step go";
        let steps = Steps::of(&site, script);
        steps.at("go");
        kill(steps.running.pid(), signal);
        let ran = steps.running.end().expect(code);
        assert_eq!(ran.stderr, "");
        let name = ["term\n", "hup\n", "int\n"][code as usize - 7];
        assert_eq!(std::fs::read_to_string(site.store.join("data")).unwrap(), name);
    }
}

const COMMAND: &str = ": > $OUT/started; while :; do sleep 1; done";

/// Ends a run by SIGTERM in the middle of its `number`-th call of `calls`. Its command leaves
/// `$OUT/started`.
fn terminated_in(site: &Site, calls: &str, number: u32) -> Ran {
    let mut command = site.command(&site.store, "strace");
    let (trace, inject) =
        (format!("trace={calls}"), format!("inject={calls}:signal=TERM:when={number}"));
    command.args(["-qq", "-o", site.out.join("calls").to_str().unwrap(), "-e", &trace]);
    command.args(["-e", &inject, site.program(), "run", "--config"]).arg(&site.config);
    command.args(["--", "bash", "-c", COMMAND]);
    let ran = site.end(command);
    let traced = std::fs::read_to_string(site.out.join("calls")).unwrap();
    assert!(traced.contains("--- SIGTERM"), "no call was hit: {traced}");
    ran
}

#[test]
fn a_signal_while_the_command_starts_is_for_the_command() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&USUAL);
    // Under this manager the first process that a run makes is its command.
    let other = Steps::of(&site, "step go");
    other.at("go");
    // It is sent to the run alone.
    terminated_in(&site, "clone,clone3,vfork", 1).expect(143);
    let line = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let goes_on = site.processes().into_iter().any(|pid| line(pid).contains(COMMAND));
    assert!(!goes_on, "the command goes on");
    other.past("go");
    other.end();
}

#[test]
fn a_signal_before_the_command_is_started_ends_run_and_manager() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    // While it starts its manager, before it holds that, and before it has begun its job.
    for (call, number) in [("clone", 1), ("sendto", 1), ("sendto", 2)] {
        let site = Site::new(&USUAL);
        let ran = terminated_in(&site, call, number).expect(143);
        assert_eq!(ran.stderr, "", "{call}");
        assert!(!site.out.join("started").exists(), "{call}: the command was started");
        wait_for("the manager's end", LONG, || site.processes().is_empty().then_some(()));
        assert!(site.pools().is_empty(), "{call}");
    }
    let site = Site::new(&USUAL);
    let other = Steps::of(&site, "step go; seq 1000 > data");
    other.at("go");
    terminated_in(&site, "sendto", 1).expect(143);
    assert!(!site.out.join("started").exists(), "the command was started");
    other.past("go");
    other.end();
}

#[test]
fn a_second_interrupt_before_the_command_is_started_ends_the_wait_for_the_manager() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LATE);
    let (running, manager) = draining(&site);
    kill(running.pid(), Signal::KILL);
    kill(manager, Signal::KILL);
    running.end();
    // Its manager goes on with what the killed one has left: it does not end at once.
    let (calls, program) = (site.out.join("calls"), site.program());
    let mut command = site.command(&site.store, "strace");
    command.args(["-qq", "-o", calls.to_str().unwrap(), "-e", "trace=sendto,flock"]);
    command.args(["-e", "inject=sendto:signal=INT:when=2", program, "run", "--config"]);
    command.arg(&site.config).args(["--", "bash", "-c", COMMAND]);
    let running = site.start(command);
    // It tries to get the manager's lock, and waits for the manager's end for a moment.
    let looks = |interrupts: usize| {
        let traced = std::fs::read_to_string(&calls).unwrap_or_default();
        let after = traced.split("--- SIGINT").nth(interrupts);
        after.map_or(0, |after| after.matches("flock").count())
    };
    wait_for("the wait", LONG, || (looks(1) > 1).then_some(()));
    let line = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_run = |&pid: &u32| line(pid).starts_with(&format!("{program}\0run\0"));
    let run = site.processes().into_iter().find(is_run).unwrap();
    kill(run, Signal::INT);
    let ran = running.end().expect(130);
    assert!(looks(2) < 3, "it waited on: {} looks", looks(2));
    assert!(ran.stderr.contains("goes on in the background"), "{}", ran.stderr);
    assert!(!site.out.join("started").exists(), "the command was started");
    wait_for("the manager's end", LONG, || site.processes().is_empty().then_some(()));
    assert_eq!(std::fs::metadata(site.store.join("data")).unwrap().len(), 24 << 20);
}

/// `env` blocks one signal and ignores another.
#[test]
fn a_command_has_the_signals_of_the_run() {
    let env = ["env", "--block-signal=USR2", "--ignore-signal=HUP"];
    if !works(&[&env[..], &["true"]].concat()) {
        return skip("this env blocks no signals");
    }
    let site = Site::new(&USUAL);
    let look = ["grep", "^Sig[BIC]", "/proc/self/status"];
    let run = [site.program(), "run", "--config", site.config.to_str().unwrap(), "--"];
    let [plain, buffered] = [look.to_vec(), [&run[..], &look].concat()].map(|words| {
        let mut command = site.command(&site.store, env[0]);
        command.args(&env[1..]).args(words);
        let said = site.end(command).expect(0).stdout;
        let masks = said.lines().map(|line| line.rsplit('\t').next().unwrap());
        // Without those of real time: of them the C library keeps two for itself.
        masks.map(|mask| u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff).collect::<Vec<_>>()
    });
    assert_eq!(buffered, plain);
    assert_eq!(plain[..2], [1 << (libc::SIGUSR2 - 1), 1 << (libc::SIGHUP - 1)]);
}

#[test]
fn a_command_that_a_signal_ends_is_drained_and_told_of_as_shells_do() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "seq 100000 > data; step go");
    steps.at("go");
    kill(steps.running.pid(), Signal::TERM);
    let ran = steps.running.end().expect(143);
    assert_eq!(ran.stderr, "");
    let data = std::fs::read_to_string(site.store.join("data")).unwrap();
    assert!(data.ends_with("\n100000\n"), "{}", data.len());
}

/// A run that is in the middle of its drain, and its node manager.
fn draining(site: &Site) -> (Running, u32) {
    let script = format!("{WRITE}; : > $OUT/written");
    let running = site.start(site.buffered(&["bash", "-c", &script]));
    wait_for("the data", LONG, || site.out.join("written").exists().then_some(()));
    let own = running.pid();
    let command = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    wait_for("the end of the command", LONG, || {
        let others = site.processes().into_iter().filter(|&pid| pid != own);
        let shells = others.filter(|&pid| command(pid).starts_with(b"bash"));
        (shells.count() == 0).then_some(())
    });
    let manager = site.status().manager;
    // It has taken note that the command has ended.
    wait_for("the first piece", LONG, || {
        let written = std::fs::metadata(site.store.join("data")).map_or(0, |found| found.len());
        (written > 0).then_some(())
    });
    (running, manager)
}

/// Without any other command all data comes to the store, and the node manager ends.
fn arrives(site: &Site, manager: u32) {
    wait_for("the manager's end", LIMIT, || (!is_alive(manager)).then_some(()));
    let data = std::fs::read(site.store.join("data")).unwrap();
    assert_eq!(data.len(), 24 << 20);
    assert!(data.iter().all(|&byte| byte == b'x'));
}

#[test]
fn what_ends_a_drain_leaves_it_to_the_manager_and_says_so() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let site = Site::new(&LATE);
        let (running, manager) = draining(&site);
        kill(running.pid(), signal);
        let ran = running.end().expect(code);
        let store = site.store.display();
        assert!(is_alive(manager), "{ran:?}");
        for said in [
            "MiB of 1 file are not yet on the backing store",
            &format!("node manager {manager} goes on in the background"),
            "`forebay status`",
            &format!("`forebay wait {store}/data`"),
        ] {
            assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
        }
        arrives(&site, manager);
    }
}

#[test]
fn the_first_interrupt_of_a_drain_says_what_the_second_does() {
    let site = Site::new(&LATE);
    let (running, manager) = draining(&site);
    kill(running.pid(), Signal::INT);
    wait_for("a word", LONG, || running.stderr().contains("interrupt again").then_some(()));
    let said = running.stderr();
    assert!(said.contains(&format!("node manager {manager} goes on")), "{said}");
    kill(running.pid(), Signal::INT);
    let ran = running.end().expect(130);
    assert!(is_alive(manager), "{ran:?}");
    assert_eq!(ran.stderr.matches("goes on in the background").count(), 2, "{}", ran.stderr);
    arrives(&site, manager);
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let site = Site::new(&LATE);
    let config = site.config.to_str().unwrap();
    let script = format!(
        "trap '' HUP; exec $FOREBAY run --config {config} -- bash -c '{}; : > $OUT/written'",
        WRITE.replace('\'', "'\\''")
    );
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", &script]);
    let running = site.start(command);
    wait_for("the data", LONG, || site.out.join("written").exists().then_some(()));
    kill(running.pid(), Signal::HUP);
    running.end().expect(0);
    let manager = site.processes().into_iter().next();
    wait_for("the end", LONG, || manager.is_none_or(|pid| !is_alive(pid)).then_some(()));
    assert_eq!(std::fs::metadata(site.store.join("data")).unwrap().len(), 24 << 20);
}

/// Neither folders, pools nor processes: the terminal's interrupt, which the whole group gets, and
/// a signal to the command alone.
#[test]
fn a_demo_and_a_benchmark_that_are_interrupted_leave_nothing() {
    let words: [&[&str]; 2] = [&["demo"], &["bench", "policies", "--quick"]];
    for (words, signal, code) in [(words[0], Signal::INT, 130), (words[1], Signal::TERM, 143)] {
        let site = Site::new(&USUAL);
        let folder = site.root().join("temporary");
        std::fs::create_dir(&folder).unwrap();
        let mut command = site.forebay(words);
        command.env("TMPDIR", &folder).current_dir(site.root());
        match words[0] {
            "bench" => command.arg("--dir").arg(&folder),
            _ => command.arg("--output").arg(site.out.join("demo")),
        };
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let running = site.start(command);
        wait_for("a run", LONG, || {
            let mut all = site.processes().into_iter();
            let line = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            all.any(|pid| line(pid).is_ok_and(|line| line.contains("\0--ephemeral"))).then_some(())
        });
        let pid = rustix::process::Pid::from_raw(running.pid() as i32).unwrap();
        match signal {
            Signal::INT => rustix::process::kill_process_group(pid, signal).unwrap(),
            _ => kill(running.pid(), signal),
        }
        running.end().expect(code);
        assert!(site.processes().is_empty(), "{words:?}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{words:?}");
        assert!(site.instances().next().is_none(), "{words:?}");
    }
}
