//! What commands say is true, and their status says the same: also where they cannot write it,
//! where nothing fits what they were given, and where programs go on.

use crate::harness::{
    self, LAZY, LIMIT, LONG, NOBODY, Site, Steps, USUAL, descendants, is_alive, kill, skip,
    wait_for, with_mounts, works,
};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Runs a command whose standard output goes to `sink`; its status and what it says.
fn into(sink: impl Into<Stdio>, mut command: Command) -> (Option<i32>, String) {
    let done = command.stdin(Stdio::null()).stdout(sink).stderr(Stdio::piped()).output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

/// The process below `pid` that runs a program of this name.
fn named(pid: u32, name: &str) -> u32 {
    let is = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == name)
    };
    wait_for(name, LONG, || descendants(pid).into_iter().find(is))
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let site = Site::new(&USUAL);
    let commands: &[&[&str]] = &[
        &["status"],
        &["status", "--json"],
        &["recover"],
        &["fsck"],
        &["stop"],
        &["schema"],
        &["flush", "."],
        &["wait", "."],
        &["simulate", "--show", "hermes-fig8"],
        &["--version"],
        &["help"],
        &["stop", "--help"],
    ];
    for words in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = into(full, site.forebay(words));
        assert_eq!(code, Some(125), "{words:?}: {said}");
        assert!(said.contains("standard output: No space left on device"), "{words:?}: {said}");
        let mut closed = site.command(&site.store, "sh");
        closed.args(["-c", "exec \"$FOREBAY\" \"$@\" >&-", "sh"]).args(*words);
        let (code, said) = into(Stdio::null(), closed);
        assert_eq!(code, Some(125), "{words:?}: {said}");
        assert!(said.contains("standard output: Bad file descriptor"), "{words:?}: {said}");
        // A reader that goes away is none of our business.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = into(writer, site.forebay(words));
        assert_eq!((code, said.as_str()), (Some(0), ""), "{words:?}");
    }
    // What cannot be said does not end what is to be done.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut run =
        site.forebay(&["run", "--backing", ".", "--", "sh", "-c", "echo text > file; exit 3"]);
    let status = run.stdin(Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(3));
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "text\n");
}

#[test]
fn programs_find_closed_what_the_run_was_started_without() {
    let site = Site::new(&USUAL);
    for fd in 0..3 {
        let mut run = site.command(&site.store, "sh");
        let script = format!("echo text > file; test ! -e /proc/self/fd/{fd}");
        let words = format!("exec \"$FOREBAY\" run --backing . -- sh -c '{script}' {fd}>&-");
        run.args(["-c", &words]).stdin(Stdio::null()).stderr(Stdio::null());
        let status = run.status().unwrap();
        assert_eq!(status.code(), Some(0), "descriptor {fd}");
        assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "text\n");
        fs::remove_file(site.store.join("file")).unwrap();
    }
}

#[test]
fn errors_and_counts_are_said_as_people_say_them() {
    let site = Site::new(&USUAL);
    for words in [&["flush", "none"][..], &["wait", "none"], &["run", "--config", "none", "true"]] {
        let said = site.end(site.forebay(words)).stderr;
        assert!(said.contains("No such file or directory"), "{said}");
        assert!(!said.contains("os error"), "{said}");
    }
    assert_eq!(site.end(site.forebay(&["stop"])).expect(0).stdout, "stopped 0 node managers\n");
    let words = ["run", "--backing", ".", "--report", "r.html", "--", "true"];
    let said = site.end(site.forebay(&words)).expect(127).stderr;
    assert!(said.contains("(to write the report there, say --report=r.html)"), "{said}");
    let text = fs::read_to_string(&site.config).unwrap().replace("64MiB", "65536GiB");
    fs::write(&site.config, text).unwrap();
    let said = site.end(site.buffered(&["true"])).expect(125).stderr;
    assert!(said.contains("64TiB is more than this machine's memory ("), "{said}");
    let limit = said.split('(').nth(1).unwrap().split(')').next().unwrap();
    assert!(limit.len() < 12 && limit.ends_with("iB"), "{limit}");
}

#[cfg(feature = "torture")]
#[test]
fn torture_leaves_out_what_without_names() {
    let site = Site::new(&USUAL);
    let help = site.end(site.forebay(&["torture", "--help"])).expect(0).stdout;
    assert!(help.contains("Leave out this kind of trouble"), "{help}");
    assert!(help.contains("Kills of programs"), "{help}");
}

#[test]
fn status_names_the_largest_files_and_counts_the_others() {
    let site = Site::new(&LAZY);
    let script = "for i in $(seq 30); do echo text > small$i; done; head -c 1M /dev/zero > large; \
        $FOREBAY status > $OUT/short; $FOREBAY status --files > $OUT/all";
    site.end(site.buffered(&["bash", "-c", script])).expect(0);
    let said = |name: &str| fs::read_to_string(site.out.join(name)).unwrap();
    let ahead = |text: &str| -> Vec<String> {
        let files = text.lines().filter_map(|line| line.trim().strip_prefix("ahead"));
        files.map(str::to_owned).collect()
    };
    let short = said("short");
    assert_eq!(ahead(&short).len(), 10, "{short}");
    assert!(ahead(&short)[0].ends_with("/large (1.00 MiB)"), "{short}");
    assert!(short.contains("and 21 further files ahead of the store with 84.00 KiB"), "{short}");
    assert_eq!(ahead(&said("all")).len(), 31, "{}", said("all"));
    let is_first = |line: &str| line.split_whitespace().take(2).eq(["job", "1"]);
    assert!(short.lines().any(is_first), "the first job is not the first: {short}");
    for line in short.lines().filter(|line| line.trim().starts_with("count")) {
        let (counted, help) = line.split_once(": ").expect(line);
        assert_eq!(counted.split_whitespace().count(), 4, "name, count and unit: {line}");
        assert!(!help.is_empty(), "{line}");
    }
}

/// Runs `forebay` as another user, who has a runtime folder of its own.
fn as_nobody(site: &Site, words: &[&str]) -> harness::Ran {
    let runtime = site.root().join("run-of-nobody");
    if !runtime.exists() {
        fs::create_dir(&runtime).unwrap();
        std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let mut command = site.forebay(words);
    command.env("FOREBAY_RUNTIME_DIR", runtime);
    harness::as_user(&mut command, NOBODY);
    site.end(command)
}

#[test]
fn nothing_is_safe_that_another_user_may_have_in_memory() {
    let site = Site::new(&LAZY);
    if !site.share() {
        return;
    }
    let script = "head -c 1M /dev/zero > file; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 0, "it is in memory alone");
    for words in [
        &["wait", "file"][..],
        &["wait", "--durable", "file"],
        &["wait", "--durable", "."],
        &["flush", "file"],
        &["flush", "/"],
    ] {
        let ran = as_nobody(&site, words).expect(1);
        assert!(ran.stdout.is_empty(), "{words:?}: {ran:?}");
        assert!(ran.stderr.contains("not known to be safe"), "{words:?}: {ran:?}");
        assert!(ran.stderr.contains("user 0 (root)"), "{words:?}: {ran:?}");
    }
    // Its owner is told of it, wherever the runtime folder is taken to be.
    let elsewhere = site.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    let mut flush = site.forebay(&["flush", "file"]);
    flush.env("FOREBAY_RUNTIME_DIR", &elsewhere);
    assert_eq!(site.end(flush).expect(0).stdout, "flushed 1 file (1.00 MiB)\n");
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 1 << 20);
    let safe = site.end(site.forebay(&["wait", "--durable", "file"])).expect(0);
    assert!(safe.stdout.starts_with("safe: everything was on the store already\n"), "{safe:?}");
    steps.past("1");
    steps.end();
}

#[test]
fn nothing_is_safe_that_only_a_file_tier_has() {
    let site = Site::new(&LAZY);
    let script = "head -c 1M /dev/zero > file; sync file; step 1";
    let steps = Steps::with(&site, &["--durability", "nonvolatile"], script);
    steps.at("1");
    // As after a reboot.
    site.kill_all();
    steps.running.end();
    site.pools().into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
    for words in [&["wait", "--durable", "file"][..], &["flush", "."]] {
        let ran = site.end(site.forebay(words)).expect(1);
        assert!(ran.stderr.contains("an earlier run has left data"), "{words:?}: {ran:?}");
        assert!(ran.stdout.is_empty(), "{words:?}: {ran:?}");
    }
    site.recover().expect(0);
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 1 << 20);
    site.end(site.forebay(&["wait", "--durable", "file"])).expect(0);
}

#[test]
fn stop_says_when_nothing_fits() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let none = site.end(site.forebay(&["stop", "--config", config])).expect(125);
    let store = site.store.to_str().unwrap();
    assert!(none.stderr.contains(&format!("no node manager serves {store}")), "{none:?}");
    assert!(none.stderr.contains("None runs") && none.stdout.is_empty(), "{none:?}");

    let run = site.start(site.buffered(&["sleep", "1000"]));
    let manager = wait_for("a program", LONG, || {
        let status = site.status();
        status.text.contains("clients  1").then_some(status.manager)
    });
    let other = site.end(site.forebay(&["stop", "--backing", "."])).expect(125);
    assert!(other.stderr.contains(&format!("(node manager {manager})")), "{other:?}");
    assert!(other.stderr.contains("another configuration or other options"), "{other:?}");
    assert!(is_alive(manager));
    let none = site.end(site.forebay(&["stop", "--instance", "none"])).expect(125);
    assert!(none.stderr.contains("no instance none"), "{none:?}");
    assert!(none.stderr.contains(&format!("(node manager {manager})")), "{none:?}");
    let sleeper = named(run.pid(), "sleep");
    let stopped = site.end(site.forebay(&["stop", "--config", config])).expect(0);
    assert_eq!(stopped.stdout, "stopped 1 node manager\n");
    assert!(stopped.stderr.contains("1 process runs on, without buffering"), "{stopped:?}");
    assert!(stopped.stderr.contains(&format!("{sleeper} (sleep)")), "{stopped:?}");
    kill(sleeper, Signal::TERM);
    run.end().expect(143);
}

/// Numbers of processes say nothing there: a living one would be taken for dead.
#[test]
fn no_part_is_taken_in_another_pid_namespace() {
    let site = Site::new(&LAZY);
    if !works(&["unshare", "-pf", "--mount-proc", "true"]) {
        return skip("a PID namespace is not allowed here");
    }
    let elsewhere = "unshare -pf --mount-proc";
    let script = format!(
        "echo old > file; sync file; echo new > file; {elsewhere} cat file; echo $?; : > $OUT/at; exec sleep 1000"
    );
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    wait_for("the script", LIMIT, || site.out.join("at").exists().then_some(()));
    site.kill_all();
    let left = run.end();
    assert_eq!(left.stdout, "126\n", "{left:?}");
    assert!(left.stderr.contains("another PID namespace than the node manager"), "{left:?}");
    let mut recover = site.command(&site.out, "unshare");
    recover.args(["-pf", "--mount-proc"]).arg(env!("CARGO_BIN_EXE_forebay")).arg("recover");
    let refused = site.end(recover);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("it was served in another PID namespace"), "{refused:?}");
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "new\n");
}

#[test]
fn what_a_manager_in_another_container_buffers_is_not_called_safe() {
    let site = Site::new(&LAZY);
    let script = r#"
set -eu
mount -t tmpfs none /dev/shm
cd $STORE
$FOREBAY run --config $CONFIG -- sh -c 'echo text > file; : > $OUT/at; while [ ! -e $OUT/go ]; do sleep 0.01; done' &
until [ -e $OUT/at ]; do [ -e /proc/$! ] || exit 1; sleep 0.01; done
for command in "wait --durable file" "flush $STORE" "wait $OUT/.."; do
    code=0
    unshare -m sh -c "mount -t tmpfs none /dev/shm; exec $FOREBAY $command" > $OUT/said 2>&1 || code=$?
    [ $code = 1 ] && grep -q 'not known to be safe: a node manager whose pool is not seen' $OUT/said ||
        { echo "$command: $code"; cat $OUT/said; exit 1; }
    ! grep -q '^safe\|^flushed' $OUT/said || { cat $OUT/said; exit 1; }
done
# A program would read what the store has.
code=0
unshare -m sh -c "mount -t tmpfs none /dev/shm; exec $FOREBAY run --config $CONFIG -- cat file" > $OUT/said 2>&1 || code=$?
[ $code = 125 ] && grep -q 'has a pool that is not seen from here' $OUT/said || { echo "run: $code"; cat $OUT/said; exit 1; }
: > $OUT/go
wait
while ls -d $FOREBAY_RUNTIME_DIR/*/ > /dev/null 2>&1; do sleep 0.01; done
$FOREBAY wait --durable file | grep -q '^safe'
unshare -m sh -c "mount -t tmpfs none /dev/shm; exec $FOREBAY wait --durable file" | grep -q '^safe'
"#;
    let Some(ran) = with_mounts(&site, script) else { return };
    ran.expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "text\n");
}
