//! A node manager as a service: what the service manager is told, and what goes to the journal.

use crate::harness::{FOREBAY, LAZY, LONG, Running, Site, have, kill, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

/// The place of a service manager that is told how a service is.
struct Told {
    socket: UnixDatagram,
    lines: Vec<String>,
}

impl Told {
    fn at(path: &Path) -> Told {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Told { socket, lines: Vec::new() }
    }

    /// All assignments so far.
    fn so_far(&mut self) -> &[String] {
        let mut text = [0u8; 4096];
        while let Ok(count) = self.socket.recv(&mut text) {
            let text = String::from_utf8_lossy(&text[..count]);
            self.lines.extend(text.lines().map(str::to_owned));
        }
        &self.lines
    }

    fn has(&mut self, line: &str) -> bool {
        self.so_far().iter().any(|told| told == line)
    }

    fn waits_for(&mut self, line: &str, node: &mut Running) {
        wait_for(line, LONG, || {
            let has = self.has(line);
            assert!(has || node.is_running(), "it has ended: {}", node.stderr());
            has.then_some(())
        });
    }
}

fn service(site: &Site, socket: &Path) -> Command {
    let mut command = site.forebay(&["node", "--config", site.config.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", socket);
    command
}

#[test]
fn a_service_is_ready_when_it_serves_and_says_when_it_ends() {
    let site = Site::new(&LAZY);
    let path = site.out.join("notify");
    let mut told = Told::at(&path);
    // Another one has the directory: it waits.
    let other = site.root().join("other.toml");
    let text = fs::read_to_string(&site.config).unwrap().replace("on-exit", "per-file");
    fs::write(&other, text).unwrap();
    let other = site.start(site.forebay(&["node", "--config", other.to_str().unwrap()]));
    wait_for("the first manager", LONG, || other.stderr().contains(": serving ").then_some(()));
    let mut node = site.start(service(&site, &path));
    wait_for("what it waits for", LONG, || {
        assert!(node.is_running(), "it has ended: {}", node.stderr());
        node.stderr().contains("waiting: ").then_some(())
    });
    assert!(told.so_far().is_empty(), "it is not ready: {:?}", told.lines);
    kill(other.pid(), Signal::TERM);
    other.end().expect(0);
    told.waits_for("READY=1", &mut node);
    let store = site.store.to_str().unwrap();
    let serving = |line: &&String| line.starts_with("STATUS=serving ") && line.contains(store);
    assert_eq!(told.lines.iter().filter(serving).count(), 1, "{:?}", told.lines);
    // At once, with what has been told.
    assert_eq!(site.status().manager, node.pid());
    site.end(site.buffered(&["bash", "-c", "seq 1000 > file"])).expect(0);
    assert!(!told.has("STOPPING=1"), "{:?}", told.lines);
    kill(node.pid(), Signal::TERM);
    node.end().expect(0);
    let lines = told.so_far();
    let stopping = lines.iter().position(|line| line == "STOPPING=1");
    assert!(stopping.is_some(), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "STATUS=everything is on the store");
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 1000);
}

#[test]
fn a_service_that_is_killed_goes_on_where_it_was() {
    let site = Site::new(&LAZY);
    let path = site.out.join("notify");
    let mut told = Told::at(&path);
    let mut node = site.start(service(&site, &path));
    told.waits_for("READY=1", &mut node);
    // The program is killed, and what it wrote is left to the manager, which is killed, too, as at
    // the end of a service's time to stop.
    let script = "seq 1000 > file; kill -KILL $PPID $(cat ../out/manager)";
    fs::write(site.out.join("manager"), node.pid().to_string()).unwrap();
    let run = site.start(site.buffered(&["bash", "-c", script]));
    assert_eq!(run.end().code, 128 + 9);
    assert_eq!(node.end().code, 128 + 9);
    assert_eq!(fs::read(site.store.join("file")).unwrap(), b"", "it is on the store already");
    told.lines.clear();
    let mut node = site.start(service(&site, &path));
    told.waits_for("READY=1", &mut node);
    kill(node.pid(), Signal::TERM);
    node.end().expect(0);
    assert!(told.has("STATUS=everything is on the store"), "{:?}", told.lines);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 1000);
}

#[test]
fn a_service_that_is_ended_by_a_command_says_so() {
    let site = Site::new(&LAZY);
    let path = site.out.join("notify");
    let mut told = Told::at(&path);
    let mut node = site.start(service(&site, &path));
    told.waits_for("READY=1", &mut node);
    site.end(site.forebay(&["stop", "--config", site.config.to_str().unwrap()])).expect(0);
    node.end().expect(0);
    assert_eq!(told.so_far()[2..], ["STOPPING=1", "STATUS=everything is on the store"]);
}

#[test]
fn only_the_service_itself_is_told_of() {
    let site = Site::new(&LAZY);
    let path = site.out.join("notify");
    let mut told = Told::at(&path);
    // A service that runs a program buffered: the socket is that program's to use.
    let mut run = site.buffered(&["bash", "-c", "seq 1000 > file; echo $NOTIFY_SOCKET"]);
    run.env("NOTIFY_SOCKET", &path);
    assert_eq!(site.end(run).expect(0).stdout.trim(), path.to_str().unwrap());
    wait_for("the end of its manager", LONG, || site.pools().is_empty().then_some(()));
    assert!(told.so_far().is_empty(), "{:?}", told.lines);
}

#[test]
fn lines_for_the_journal_have_its_levels_and_no_time() {
    let site = Site::new(&LAZY);
    let (faults, log) = (site.out.join("faults"), site.out.join("journal"));
    fs::write(&faults, "").unwrap();
    fs::write(&log, "").unwrap();
    let found = fs::metadata(&log).unwrap();
    let config = site.config.to_str().unwrap();
    let script = format!("exec $FOREBAY node --config {config} 2> {}", log.display());
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", &script]).env("FOREBAY_FAULTS", &faults);
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    let mut node = site.start(command);
    let said = || fs::read_to_string(&log).unwrap();
    wait_for("the manager", LONG, || {
        assert!(node.is_running(), "it has ended: {}", said());
        said().contains("forebay: serving ").then_some(())
    });
    kill(node.pid(), Signal::TERM);
    node.end().expect(0);
    assert!(said().contains("<6>faults are injected as "), "{}", said());
    assert!(said().contains("<6>forebay: serving "), "{}", said());
    assert!(said().lines().all(|line| line.starts_with('<')), "{}", said());
    // An error of the start.
    let wrong = site.out.join("wrong.toml");
    fs::write(&wrong, "[[tier]]\n").unwrap();
    let script = format!("exec $FOREBAY node --config {} 2>> {}", wrong.display(), log.display());
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", &script]);
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    site.end(command).expect(125);
    assert!(said().contains("\n<3>forebay: "), "{}", said());
}

#[test]
fn systemd_takes_the_unit() {
    if !have(&["systemd-analyze"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let text = fs::read_to_string(source.join("forebay@.service.in")).unwrap();
    let folder = Path::new(FOREBAY).parent().unwrap().to_str().unwrap();
    let unit = site.out.join("forebay@.service");
    fs::write(&unit, text.replace("@BINDIR@", folder)).unwrap();
    let check = |unit: &Path| {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--user", "--man=no"]).arg(unit);
        command.env("XDG_RUNTIME_DIR", &site.out).env("SYSTEMD_LOG_TARGET", "console");
        let ran = command.output().unwrap();
        String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()
    };
    // Other units of the machine may be wrong.
    let ours = |said: String| said.lines().filter(|line| line.contains("forebay@")).count();
    let said = check(&unit);
    assert_eq!(ours(said.clone()), 0, "{said}");
    fs::write(&unit, text.replace("Type=", "Typ=").replace("@BINDIR@", folder)).unwrap();
    assert!(ours(check(&unit)) > 0, "it checks nothing");
}
