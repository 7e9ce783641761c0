//! `forebay stop` while programs have files open, and what happens when a node manager stands
//! still.

use crate::harness::{
    self, LAZY, LONG, Setup, Site, TINY, is_alive, kill, paused, sees, wait_for, with_mounts,
};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Commands that a driver of one open file understands, one a line, each answered in a line.
const DRIVER: &str = r#"
import os, sys
fds = {}
for line in sys.stdin:
    words = line.split()
    what, args = words[0], words[1:]
    try:
        if what == 'open':
            flags = 0
            for flag in args[2].split('|'):
                flags |= getattr(os, 'O_' + flag)
            fds[args[0]] = os.open(args[1], flags, 0o644)
            said = 'opened'
        elif what == 'write':
            said = os.write(fds[args[0]], args[1].encode())
        elif what == 'fill':
            said = os.pwrite(fds[args[0]], args[1].encode() * int(args[2]), 0)
        elif what == 'pwrite':
            said = os.pwrite(fds[args[0]], args[1].encode(), int(args[2]))
        elif what == 'pread':
            said = os.pread(fds[args[0]], int(args[1]), int(args[2])).decode()
        elif what == 'end':
            said = os.lseek(fds[args[0]], 0, os.SEEK_END)
        elif what == 'size':
            said = os.stat(args[0]).st_size
        elif what == 'fsync':
            os.fsync(fds[args[0]])
            said = 'synced'
        elif what == 'close':
            os.close(fds.pop(args[0]))
            said = 'closed'
        else:
            said = getattr(os, what)(*[int(a) if a.isdigit() else a for a in args])
    except OSError as error:
        said = os.strerror(error.errno)
    print(said, flush=True)
"#;

/// A program that does what it is told, one call at a time.
struct Program {
    child: std::process::Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(site: &Site) -> Program {
        Program::from(site, site.buffered(&["python3", "-c", DRIVER]))
    }

    fn from(site: &Site, mut command: std::process::Command) -> Program {
        use std::io::BufRead;
        use std::process::Stdio;
        let log = site.root().join("programs");
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut program = Program { child, answers };
        program.ask("getpid");
        program
    }

    fn ask(&mut self, line: &str) -> String {
        use std::io::Write;
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.answers.next().unwrap().unwrap()
    }

    /// What a call must say.
    fn does(&mut self, line: &str, wanted: &str) {
        assert_eq!(self.ask(line), wanted, "{line}");
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn stop(site: &Site) -> harness::Ran {
    site.end(site.forebay(&["stop", "--config", site.config.to_str().unwrap()]))
}

fn quiet(site: &Site) {
    wait_for("the end of everything", LONG, || site.processes().is_empty().then_some(()));
    assert!(site.pools().is_empty());
}

#[test]
fn a_file_without_a_name_that_a_new_manager_has_no_descriptor_of_does_not_hold_up_a_stop() {
    let site = Site::new(&LAZY);
    let mut program = Program::start(&site);
    program.does("open f file RDWR|CREAT", "opened");
    program.does("fill f x 300000", "300000");
    program.does("unlink file", "None");
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    wait_for("another manager", LONG, || {
        let now = site.status().manager;
        (now != manager && is_alive(now)).then_some(())
    });
    // The program's own run may come to join it only now, which takes a stop back.
    let ran = wait_for("a stop that no run takes back", LONG, || {
        Some(stop(&site)).filter(|ran| !ran.stderr.contains("another run has joined"))
    });
    ran.expect(0);
    program.does("pread f 3 299998", "xx");
    program.does("pwrite f yy 299999", "2");
    program.does("end f", "300001");
    program.does("pread f 9 299998", "xyy");
    program.end();
    quiet(&site);
}

#[test]
fn a_file_that_cannot_be_reached_does_not_make_a_stop_wait() {
    // Neither by its name nor, where /proc does not show it, through the program that has it open.
    let site = Site::new(&LAZY);
    let script = "exec 3<>file; echo content >&3; rm file; : > $OUT/ready; sleep 60";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the program", LONG, || site.out.join("ready").exists().then_some(()));
    for pid in site.processes() {
        kill(pid, Signal::KILL);
    }
    run.end();
    let ran = site.recover().expect(0);
    assert!(!ran.stdout.contains("file"), "{ran:?}");
    quiet(&site);
}

/// All that have a file open see the same of it, whatever the manager does.
fn look_through_all(site: &Site, old: &mut Program, new: &mut Program, round: usize) {
    let name = format!("shared{round}");
    let steps = [
        ("old", format!("open a {name} RDWR|CREAT"), "opened"),
        ("old", "fill a o 9000".into(), "9000"),
        ("new", format!("open b {name} RDWR"), "opened"),
        ("new", "end b".into(), "9000"),
        ("new", "pread b 2 8999".into(), "o"),
        ("new", "pwrite b n 8999".into(), "1"),
        ("old", "pread a 2 8999".into(), "n"),
        ("new", format!("truncate {name} 5000"), "None"),
        ("old", "end a".into(), "5000"),
        ("old", format!("size {name}"), "5000"),
        ("old", "write a more".into(), "4"),
        ("new", "end b".into(), "5004"),
        ("new", format!("open c {name} WRONLY|TRUNC"), "opened"),
        ("old", "end a".into(), "0"),
        ("new", "open d other WRONLY|CREAT|TRUNC".into(), "opened"),
        ("new", "write d other".into(), "5"),
        ("old", "pwrite a kept 0".into(), "4"),
        ("new", format!("rename other {name}"), "None"),
        ("old", "pread a 9 0".into(), "kept"),
        ("new", format!("open e {name} RDWR|APPEND"), "opened"),
        ("new", "write e +".into(), "1"),
        ("old", format!("open f {name} RDONLY"), "opened"),
        ("old", "pread f 9 0".into(), "other+"),
        ("new", "pread b 9 0".into(), "kept"),
    ];
    for (which, line, wanted) in steps {
        let program = if which == "old" { &mut *old } else { &mut *new };
        assert_eq!(program.ask(&line), wanted, "round {round}: {which} {line}");
    }
    for (program, fds) in [(old, "a f"), (new, "b c d e")] {
        fds.split(' ').for_each(|fd| program.does(&format!("close {fd}"), "closed"));
    }
    assert_eq!(sees(&site.store.join("none")), "No such file or directory (os error 2)");
}

#[test]
fn programs_see_the_same_of_a_file_after_a_stop_and_after_the_next_run() {
    let site = Site::new(&LAZY);
    let (mut old, mut new) = (Program::start(&site), Program::start(&site));
    look_through_all(&site, &mut old, &mut new, 0);
    old.does("open k kept RDWR|CREAT", "opened");
    old.does("write k before", "6");
    let manager = site.status().manager;
    let ran = stop(&site).expect(0);
    assert!(ran.stderr.contains("run on, without buffering"), "{ran:?}");
    assert_eq!(sees(&site.store.join("kept")), "before");
    assert!(is_alive(manager), "it stays for those that have files open");
    look_through_all(&site, &mut old, &mut new, 1);
    assert_eq!(sees(&site.store.join("shared1")), "other+", "nothing is buffered");
    // The next run is served by the same manager, and what it opens is one file with what they have
    // open.
    let mut third = Program::start(&site);
    assert_eq!(site.status().manager, manager);
    third.does("open k kept RDWR", "opened");
    third.does("pwrite k after 6", "5");
    old.does("pread k 20 0", "beforeafter");
    third.does("close k", "closed");
    look_through_all(&site, &mut old, &mut third, 2);
    third.does("open n new WRONLY|CREAT", "opened");
    third.does("write n text", "4");
    assert_eq!(sees(&site.store.join("new")), "", "the new run is buffered");
    old.end();
    new.end();
    third.end();
    quiet(&site);
    assert_eq!(sees(&site.store.join("shared2")), "other+");
    assert_eq!(sees(&site.store.join("kept")), "beforeafter");
}

#[test]
fn programs_see_the_same_of_a_file_while_the_manager_makes_it_direct() {
    let site = Site::new(&LAZY);
    let (held, log) = (site.out.join("held"), site.out.join("pauses"));
    fs::write(&held, "").unwrap();
    let config = site.config.to_str().unwrap();
    let mut node = site.forebay(&["node", "--config", config]);
    node.env("FOREBAY_PAUSE", format!("manager.retiring:1:while={}", held.display()));
    node.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &log);
    let node = site.start(node);
    wait_for("the node manager", LONG, || node.stderr().contains("serving").then_some(()));
    let (mut old, mut new) = (Program::start(&site), Program::start(&site));
    old.does("open k kept RDWR|CREAT", "opened");
    old.does("fill k x 9000", "9000");
    let stopping = site.start(site.forebay(&["stop", "--config", config]));
    wait_for("the pause", LONG, || sees(&log).contains("manager.retiring").then_some(()));
    new.does("open k kept WRONLY|TRUNC", "opened");
    old.does("end k", "0");
    new.does("pwrite k cut 0", "3");
    old.does("pread k 9 0", "cut");
    look_through_all(&site, &mut old, &mut new, 1);
    fs::remove_file(&held).unwrap();
    stopping.end().expect(0);
    old.does("pread k 9 0", "cut");
    look_through_all(&site, &mut old, &mut new, 2);
    old.end();
    new.end();
    node.end().expect(0);
    quiet(&site);
    assert_eq!(sees(&site.store.join("kept")), "cut");
}

#[test]
fn a_stop_that_a_stopped_program_holds_up_names_it() {
    let site = Site::new(&LAZY);
    let held = site.out.join("held");
    fs::write(&held, "").unwrap();
    // In the middle of a write, inside the file.
    let script = "FOREBAY_PAUSE=write.filled:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/pauses \
        dd if=/dev/zero of=file bs=9 count=1 2>/dev/null";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the pause", LONG, || site.out.join("pauses").exists().then_some(()));
    let stopping = site.start(site.forebay(&["stop", "--config", site.config.to_str().unwrap()]));
    // The control thread answers meanwhile, and a new program finds its place.
    let said = wait_for("what is in the way", LONG, || {
        let said = stopping.stderr();
        said.contains("store/file: in use by").then_some(said)
    });
    let pid = said.split("in use by ").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(site.processes().contains(&pid.parse().unwrap()), "{said}");
    site.end(site.forebay(&["status"])).expect(0);
    fs::remove_file(&held).unwrap();
    run.end().expect(0);
    stopping.end();
    quiet(&site);
    assert_eq!(fs::read(site.store.join("file")).unwrap(), [0; 9]);
}

#[test]
fn a_recover_that_a_stopped_program_holds_up_names_it_and_ends() {
    if !cfg!(debug_assertions) {
        return harness::skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let held = site.out.join("held");
    fs::write(&held, "").unwrap();
    // It holds the block that its first write has made dirty.
    let script = "FOREBAY_PAUSE=write.filled:2:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/pauses \
        dd if=/dev/zero of=file bs=9 count=2 2>/dev/null";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    let pid = wait_for("the pause", LONG, || paused(&site.out.join("pauses")));
    // A pause ends after a minute.
    kill(pid, Signal::STOP);
    let mut command = site.forebay(&["recover"]);
    command.env("FOREBAY_TIME_SCALE", "10");
    let mut recovering = site.start(command);
    wait_for("the end of it", LONG, || (!recovering.is_running()).then_some(()));
    let ran = recovering.end().expect(125);
    assert!(ran.stderr.contains(&format!("store/file: in use by {pid} (stopped")), "{ran:?}");
    assert!(ran.stderr.contains("goes on trying"), "{ran:?}");
    fs::remove_file(&held).unwrap();
    kill(pid, Signal::CONT);
    run.end().expect(0);
    quiet(&site);
    assert_eq!(fs::read(site.store.join("file")).unwrap(), [0; 18]);
}

#[test]
fn a_stop_says_at_once_that_a_run_without_clients_has_joined() {
    if !cfg!(debug_assertions) {
        return harness::skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("unmanaged.c", &["-static"]) {
        return;
    }
    let [held, fifo] = ["held", "fifo"].map(|name| site.out.join(name));
    fs::write(&held, "").unwrap();
    let script = "mkfifo $OUT/fifo\n\
        FOREBAY_PAUSE=write.filled:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/pauses \
        dd if=/dev/zero of=file bs=9 count=1 2>/dev/null";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    let pid = wait_for("the pause", LONG, || paused(&site.out.join("pauses")));
    let mut stopping =
        site.start(site.forebay(&["stop", "--config", site.config.to_str().unwrap()]));
    wait_for("what is in the way", LONG, || {
        stopping.stderr().contains("store/file: in use by").then_some(())
    });
    let program = site.root().join("unmanaged");
    let [program, path] = [&program, &fifo].map(|path| path.to_str().unwrap());
    let joined = site.start(site.buffered(&[program, path]));
    wait_for("the second run", LONG, || site.log().contains("run has joined").then_some(()));
    // From here on that one, which has no client, is all there is.
    kill(pid, Signal::KILL);
    run.end().expect(137);
    let since = Instant::now();
    wait_for("the end of the stop", LONG, || (!stopping.is_running()).then_some(()));
    assert!(since.elapsed() < LONG / 2, "it guesses: {:?}", since.elapsed());
    let ran = stopping.end().expect(125);
    assert!(ran.stderr.contains("another run has joined; its node manager goes on"), "{ran:?}");
    assert!(ran.stdout.contains("stopped 0 node managers"), "{ran:?}");
    fs::write(&fifo, "").unwrap();
    joined.end().expect(0);
    quiet(&site);
}

/// A run that joins while a stop still waits for the drain that it has asked for is not left
/// without buffering.
#[test]
fn a_run_that_joins_while_a_stop_drains_takes_it_back() {
    let slow = "{ bandwidth = \"6MB/s\", latency = \"1ms\" }";
    let site = Site::new(&Setup { store_emulate: Some(slow), ..LAZY });
    let mut first = Program::start(&site);
    first.does("open f file RDWR|CREAT", "opened");
    first.does("fill f x 12000000", "12000000");
    let mut stopping =
        site.start(site.forebay(&["stop", "--config", site.config.to_str().unwrap()]));
    let on_store = |name: &str| fs::metadata(site.store.join(name)).unwrap().len();
    wait_for("the drain", LONG, || (on_store("file") > 0).then_some(()));
    let mut second = Program::start(&site);
    wait_for("the end of the stop", LONG, || (!stopping.is_running()).then_some(()));
    let ran = stopping.end().expect(125);
    assert!(ran.stderr.contains("another run has joined; its node manager goes on"), "{ran:?}");
    second.does("open f second RDWR|CREAT", "opened");
    second.does("fill f y 300000", "300000");
    assert_eq!(on_store("second"), 0, "it is not buffered");
    first.end();
    second.end();
    quiet(&site);
    assert_eq!(fs::read(site.store.join("second")).unwrap(), [b'y'; 300000]);
}

#[test]
fn a_stop_says_that_another_manager_serves_when_its_own_has_ended() {
    if !cfg!(debug_assertions) {
        return harness::skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let [held, pauses] = ["held", "pauses"].map(|name| site.out.join(name));
    fs::write(&held, "").unwrap();
    let config = site.config.to_str().unwrap();
    let mut node = site.forebay(&["node", "--config", config]);
    node.env("FOREBAY_PAUSE", format!("manager.ending:1:while={}", held.display()));
    node.env("FOREBAY_PAUSE_LOG", &pauses);
    let node = site.start(node);
    wait_for("the node manager", LONG, || node.stderr().contains("serving").then_some(()));
    let mut stopping = site.start(site.forebay(&["stop", "--config", config]));
    wait_for("its end", LONG, || pauses.exists().then_some(()));
    // It looks again when the next one serves.
    kill(stopping.pid(), Signal::STOP);
    fs::remove_file(&held).unwrap();
    node.end().expect(0);
    let script = ": > $OUT/began; until [ -e $OUT/end ]; do sleep 0.02; done";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the next one", LONG, || site.out.join("began").exists().then_some(()));
    kill(stopping.pid(), Signal::CONT);
    wait_for("the end of the stop", LONG, || (!stopping.is_running()).then_some(()));
    let ran = stopping.end().expect(125);
    assert!(ran.stderr.contains("has ended, and another run has started one"), "{ran:?}");
    assert!(ran.stdout.contains("stopped 1 node manager"), "{ran:?}");
    fs::write(site.out.join("end"), "").unwrap();
    run.end().expect(0);
    quiet(&site);
}

#[test]
fn commands_say_that_the_manager_they_wait_for_is_stopped() {
    let site = Site::new(&LAZY);
    let mut program = Program::start(&site);
    program.does("open f file WRONLY|CREAT", "opened");
    program.does("write f text", "4");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    let config = site.config.to_str().unwrap();
    let commands = [
        vec!["run", "--config", config, "--", "true"],
        vec!["flush", "file"],
        vec!["wait", "file"],
        vec!["stop", "--config", config],
    ];
    let mut running: Vec<_> =
        commands.iter().map(|words| (words[0], site.start(site.forebay(words)))).collect();
    let message = format!("node manager {manager} is stopped");
    assert!(site.status().text.contains(&message), "{}", site.status().text);
    let told = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
    assert!(told.contains("\"manager_stopped\": true"), "{told}");
    for (name, command) in &mut running {
        wait_for(name, LONG, || command.stderr().contains(&message).then_some(()));
        assert!(command.is_running(), "{name}: {}", command.stderr());
    }
    // One that is not continued is given up on.
    for words in commands {
        let mut command = site.forebay(&words);
        command.env("FOREBAY_TIME_SCALE", "50");
        let ran = site.end(command);
        assert_ne!(ran.code, 0, "{words:?}: {ran:?}");
        assert!(ran.stderr.contains(&message), "{words:?}: {ran:?}");
    }
    kill(manager, Signal::CONT);
    for (name, command) in running {
        let ran = command.end();
        // A run that joins keeps the manager from ending.
        let joined = name == "stop" && ran.stderr.contains("another run has joined");
        assert!(ran.code == 0 || joined, "{name}: {ran:?}");
    }
    program.end();
    quiet(&site);
    assert_eq!(sees(&site.store.join("file")), "text");
}

#[test]
fn an_fsync_whose_manager_is_stopped_ends_with_an_error_and_the_next_is_good() {
    if !cfg!(debug_assertions) {
        return harness::skip("only builds with debug assertions leave so little to the manager");
    }
    let site = Site::new(&LAZY);
    let mut command = site.buffered(&["python3", "-c", DRIVER]);
    command.env("FOREBAY_TIME_SCALE", "10").env("FOREBAY_REFUSE", "write-back:1..");
    let mut program = Program::from(&site, command);
    program.does("open f file WRONLY|CREAT", "opened");
    program.does("write f text", "4");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    program.does("fsync f", "Connection timed out");
    program.does("write f more", "4");
    kill(manager, Signal::CONT);
    program.does("fsync f", "synced");
    assert_eq!(sees(&site.store.join("file")), "textmore");
    program.end();
    quiet(&site);
}

#[test]
fn a_few_pages_are_synced_while_the_manager_is_stopped() {
    let site = Site::new(&LAZY);
    let mut program = Program::from(&site, site.buffered(&["python3", "-c", DRIVER]));
    program.does("open f file WRONLY|CREAT", "opened");
    program.does("write f text", "4");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    program.does("fsync f", "synced");
    assert_eq!(sees(&site.store.join("file")), "text");
    program.does("write f more", "4");
    kill(manager, Signal::CONT);
    program.end();
    quiet(&site);
    assert_eq!(sees(&site.store.join("file")), "textmore");
}

/// How many files a program can make whose manager does not read its socket: more than fit into
/// that.
const UNREAD: usize = 400;

#[test]
fn a_program_goes_on_with_new_files_while_its_manager_is_stopped() {
    let site = Site::new(&LAZY);
    let mut command = site.buffered(&["python3", "-c", DRIVER]);
    command.env("FOREBAY_TIME_SCALE", "10");
    let mut program = Program::from(&site, command);
    program.does("open f first WRONLY|CREAT", "opened");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    for number in 0..UNREAD {
        program.does(&format!("open f file{number} WRONLY|CREAT"), "opened");
        program.does(&format!("write f {number}"), &number.to_string().len().to_string());
        program.does("close f", "closed");
    }
    kill(manager, Signal::CONT);
    program.end();
    quiet(&site);
    for number in 0..UNREAD {
        assert_eq!(sees(&site.store.join(format!("file{number}"))), number.to_string());
    }
}

#[test]
fn a_manager_that_is_killed_while_it_starts_is_started_again() {
    for point in ["*", "manager.took-over"] {
        let site = Site::new(&LAZY);
        let mut command = site.buffered(&["bash", "-c", "echo text > file"]);
        command.env("FOREBAY_CRASH", format!("{point}:1")).env("FOREBAY_CRASH_IN", "node");
        command.env("FOREBAY_CRASH_ONCE", site.out.join("once"));
        let ran = site.end(command).expect(0);
        assert!(ran.stderr.contains("died while it started"), "{point}: {ran:?}");
        quiet(&site);
        assert_eq!(sees(&site.store.join("file")), "text\n");
    }
    let site = Site::new(&LAZY);
    let mut command = site.buffered(&["true"]);
    command.env("FOREBAY_CRASH", "manager.took-over:1").env("FOREBAY_CRASH_IN", "node");
    let ran = site.end(command).expect(125);
    assert_eq!(ran.stderr.matches("died while it started (signal: 9").count(), 5, "{ran:?}");
    assert!(site.log().contains("died while it started"), "{}", site.log());
    site.recover().expect(0);
    quiet(&site);
}

/// A worker that makes files, and removes, replaces and cuts them while they are open; it must find
/// in each what it wrote.
const WORKER: &str = r#"
import os, random, sys, time
name, seed, over = sys.argv[1], int(sys.argv[2]), os.environ['OUT'] + '/over'
rng = random.Random(f'{name} {seed}')
while not os.path.exists(over):
    kind, path = rng.randrange(4), f'{name}-{rng.randrange(5)}'
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    data = bytes([rng.randrange(256)]) * rng.randrange(1, 300000)
    assert os.pwrite(fd, data, 0) == len(data)
    if kind == 0:
        os.unlink(path)
    if kind == 1:
        other = os.open(path + '.new', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(other, b'new', 0)
        os.rename(path + '.new', path)
        assert open(path, 'rb').read() == b'new', 'replaced'
        os.close(other)
    if kind == 2:
        size = rng.randrange(len(data))
        os.truncate(path, size)
        data = data[:size]
        assert (os.lseek(fd, 0, os.SEEK_END), os.stat(path).st_size) == (size, size), 'cut'
    time.sleep(rng.random() * 0.02)
    got = os.pread(fd, 400000, 0)
    assert got == data, f'{path}, kind {kind}: {len(got)} bytes, {len(data)} were written'
    os.close(fd)
"#;

/// Stops that take effect before the workers end.
const STOPS: usize = 24;

#[test]
fn stops_and_joins_under_load_lose_and_undo_nothing() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u32 = seed.unwrap_or_else(|| std::process::id().wrapping_mul(2_654_435_761));
    println!("FOREBAY_SEED={seed}");
    let site = Site::new(&TINY);
    fs::write(site.root().join("worker.py"), WORKER).unwrap();
    let script = format!(
        "for name in a b c d; do python3 $BIN/worker.py $name {seed} & jobs=\"$jobs $!\"; done
        for job in $jobs; do wait $job || exit 1; done"
    );
    let mut run = site.start(site.buffered(&["bash", "-c", &script]));
    wait_for("the manager", LONG, || (!site.pools().is_empty()).then_some(()));
    let (mut stops, mut joins) = (0, Vec::new());
    let over = site.out.join("over");
    let begun = Instant::now();
    while run.is_running() {
        let since = Instant::now();
        let ran = stop(&site);
        assert!(since.elapsed() < LONG, "{ran:?}");
        // One that a join was faster than has begun, and was taken back.
        let joined = ran.stderr.contains("another run has joined");
        stops += usize::from(joined || ran.stdout.contains("stopped 1"));
        let config = site.config.to_str().unwrap();
        joins.push(site.start(site.forebay(&["run", "--config", config, "--", "true"])));
        std::thread::sleep(std::time::Duration::from_millis(50));
        if stops >= STOPS || begun.elapsed() > LONG {
            fs::write(&over, "").unwrap();
        }
    }
    let ran = run.end();
    assert_eq!(ran.code, 0, "FOREBAY_SEED={seed} {ran:?}\n{}", site.log());
    joins.into_iter().for_each(|join| drop(join.end().expect(0)));
    assert!(stops >= STOPS, "FOREBAY_SEED={seed}: {stops} stops");
    quiet(&site);
}

/// `forebay stop && umount STORE`: the manager has nothing open there when the command returns.
#[test]
fn a_store_can_be_unmounted_when_its_manager_was_stopped_or_its_data_recovered() {
    let site = Site::new(&LAZY);
    let script = "for round in {1..20}; do
            mount -t tmpfs none $STORE
            $FOREBAY node --config $CONFIG 2> /dev/null & manager=$!
            until $FOREBAY status 2> /dev/null | grep -q \"node manager $manager\"; do sleep 0.01; done
            (cd $STORE; $FOREBAY run --config $CONFIG -- bash -c 'for i in {1..50}; do echo $i > file-$i; done')
            if [ $((round % 2)) = 0 ]; then kill -9 $manager; wait $manager; $FOREBAY recover
            else $FOREBAY stop --config $CONFIG; fi > /dev/null 2>&1 || echo failed
            umount $STORE && echo free || { umount -l $STORE; echo busy; }
            wait
        done";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert_eq!(ran.stdout, "free\n".repeat(20), "{ran:?}");
}

/// Two jobs of one user: neither ends the other's manager by chance.
#[test]
fn of_several_managers_the_named_one_is_ended() {
    let site = Site::new(&LAZY);
    let other_config = site.root().join("other.toml");
    fs::create_dir(site.root().join("other")).unwrap();
    fs::create_dir(site.root().join("nvme2")).unwrap();
    let text = fs::read_to_string(&site.config).unwrap();
    let other_text =
        text.replace("= \"store\"", "= \"other\"").replace("= \"nvme\"\ncap", "= \"nvme2\"\ncap");
    assert_ne!(text, other_text);
    fs::write(&other_config, other_text).unwrap();
    let serve = |config: &Path| {
        let node = site.start(site.forebay(&["node", "--config", config.to_str().unwrap()]));
        wait_for("a manager", LONG, || node.stderr().contains("serving").then_some(()));
        node
    };
    let (one, other) = (serve(&site.config), serve(&other_config));
    let said = site.end(site.forebay(&["stop"])).expect(125);
    assert!(said.stderr.contains("2 node managers run") && said.stdout.is_empty(), "{said:?}");
    let name = |pid: u32| {
        let line = said.stderr.lines().find(|line| line.contains(&format!("manager {pid})")));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    let name = name(other.pid());
    let ended = site.end(site.forebay(&["stop", "--instance", &name])).expect(0);
    assert_eq!(ended.stdout, "stopped 1 node manager\n");
    other.end().expect(0);
    let again = site.end(site.forebay(&["stop", "--instance", &name])).expect(125);
    assert!(again.stderr.contains("no instance"), "{again:?}");
    let again = serve(&other_config);
    let ended = site.end(site.forebay(&["stop", "--all"])).expect(0);
    assert_eq!(ended.stdout, "stopped 2 node managers\n");
    one.end().expect(0);
    again.end().expect(0);
    quiet(&site);
}
