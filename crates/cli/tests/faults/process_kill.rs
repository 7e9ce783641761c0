//! Programs, node managers and `forebay run` are killed; no completed write may be missing.

use crate::harness::{
    self, LAZY, LIMIT, LONG, Ran, Running, SLOW_STORE, Setup, Site, TINY, assert_same_bytes,
    is_alive, kill, python_with, skip, wait_for,
};
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Records that the reporter writes, and bytes of each: no multiple of a page.
const RECORDS: usize = 400;
const BYTES: usize = 50_003;

/// A hierarchy in which everything moves all the time.
const RESTLESS: Setup = Setup {
    flush: "trigger = \"periodic\"\nperiod = \"10ms\"",
    store_emulate: Some("{ bandwidth = \"40MB/s\", latency = \"1ms\" }"),
    ..TINY
};

/// `programs/reporter.c` under `forebay run`: it is at work until it is killed or told that it is
/// enough, however long a test takes to look at it.
struct Reporter {
    site: Site,
    run: Running,
    pid: u32,
}

impl Reporter {
    fn start(setup: &Setup, pause_us: u32) -> Option<Self> {
        let site = Site::new(setup);
        if !site.compile("reporter.c", &[]) {
            return None;
        }
        let program = site.root().join("reporter");
        let numbers = [RECORDS, BYTES, pause_us as usize].map(|number| number.to_string());
        let enough = Self::enough(&site);
        let mut words = vec![program.to_str().unwrap(), "file"];
        words.extend(numbers.iter().map(String::as_str));
        words.push(enough.to_str().unwrap());
        let run = site.start(site.buffered(&words));
        let pid = wait_for("the program", LIMIT, || {
            run.stdout().lines().next()?.strip_prefix("pid ")?.parse().ok()
        });
        Some(Reporter { site, run, pid })
    }

    /// The file that tells the program to end when each record is written.
    fn enough(site: &Site) -> PathBuf {
        site.out.join("enough")
    }

    fn wait_for_records(&self, number: usize) {
        wait_for("records", Duration::from_secs(30), || {
            (reported(&self.run.stdout()) >= number).then_some(())
        });
    }

    fn manager(&self) -> u32 {
        let pid = self.site.status().manager;
        assert!(is_alive(pid), "{}", self.site.log());
        pid
    }

    /// A kill now must hit the program in the middle of its work.
    fn assert_at_work(&self) {
        assert!(is_alive(self.pid), "{} {}", self.run.stdout(), self.run.stderr());
    }

    /// Lets the program end when each record is written, and waits for the end of its run.
    fn finish(self) -> (Site, Ran) {
        std::fs::write(Self::enough(&self.site), "").unwrap();
        (self.site, self.run.end())
    }
}

/// How many writes have returned, of what the reporter said.
fn reported(said: &str) -> usize {
    let whole = said.rfind('\n').map_or("", |end| &said[..end]);
    let numbers: Vec<usize> = whole.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
    numbers.len()
}

/// What write `n` has put into which record.
fn written(n: usize) -> (usize, impl Fn(usize) -> u8) {
    let number = n * 7919 % RECORDS;
    let content = number + n / RECORDS + 1;
    (number, move |i| (content * 31 + i * 13 + (i >> 7)) as u8)
}

/// Each record in the file must have what was written there last, of `writes` that have returned.
/// Of the next one, if the program was `killed` in it, any byte may be there.
fn assert_complete(site: &Site, writes: usize, killed: bool, what: &str) {
    let file = std::fs::read(site.store.join("file")).unwrap();
    let (next, newer) = written(writes);
    for n in writes.saturating_sub(RECORDS)..writes {
        let (number, byte) = written(n);
        let end = file.len().min((number + 1) * BYTES);
        let got = &file[end.min(number * BYTES)..end];
        let is_newer = |i: usize| killed && number == next && got.get(i) == Some(&newer(i));
        let wanted: Vec<u8> =
            (0..BYTES).map(|i| if is_newer(i) { newer(i) } else { byte(i) }).collect();
        assert_same_bytes(&format!("{what}: record {number}, write {n}"), got, &wanted);
    }
}

/// Moments of a run at which something is killed, as records written so far.
const MOMENTS: [usize; 5] = [1, 37, 120, 211, 350];

#[test]
fn a_killed_program_loses_no_completed_write() {
    for (setup, moment) in [LAZY, SLOW_STORE, RESTLESS].iter().zip(MOMENTS).chain([
        (&RESTLESS, 350),
        (&TINY, 90),
        (&LAZY, 399),
    ]) {
        let Some(reporter) = Reporter::start(setup, 200) else { return };
        reporter.wait_for_records(moment);
        kill(reporter.pid, Signal::KILL);
        let Reporter { site, run, .. } = reporter;
        let ran = run.end().expect(128 + 9);
        assert_complete(&site, reported(&ran.stdout), true, &format!("killed after {moment}"));
    }
}

/// Kills the manager at some moments of one run each; the program must neither hang nor fail.
fn kill_managers(setup: &Setup, pause_us: u32, moments: &[usize], signal: Signal) {
    for &moment in moments {
        let Some(reporter) = Reporter::start(setup, pause_us) else { return };
        reporter.wait_for_records(moment);
        let manager = reporter.manager();
        reporter.assert_at_work();
        kill(manager, signal);
        let since = Instant::now();
        let (site, ran) = reporter.finish();
        assert_eq!(ran.code, 0, "manager killed after {moment}: {ran:?}\n{}", site.log());
        let writes = reported(&ran.stdout);
        assert!(writes >= RECORDS, "{ran:?}");
        assert_complete(&site, writes, false, &format!("manager killed after {moment}"));
        assert!(since.elapsed() < Duration::from_secs(60), "took {:?}", since.elapsed());
        // A terminated one drains first, and the program may be through before it ends.
        let replaced = signal == Signal::KILL;
        assert!(!replaced || ran.stderr.contains("starting another"), "{ran:?}");
    }
}

#[test]
fn a_killed_manager_is_replaced() {
    kill_managers(&LAZY, 500, &[1, 200], Signal::KILL);
    kill_managers(&SLOW_STORE, 500, &[50, 300], Signal::KILL);
}

#[test]
fn a_manager_killed_while_everything_moves_is_replaced() {
    kill_managers(&RESTLESS, 500, &[10, 100, 180, 300], Signal::KILL);
}

#[test]
fn a_terminated_manager_leaves_nothing_unwritten() {
    kill_managers(&LAZY, 500, &[1, 200], Signal::TERM);
    // So slow that the manager finds everything drained while the program still has files open.
    kill_managers(&LAZY, 8_000, &[20, 150], Signal::TERM);
    kill_managers(&RESTLESS, 500, &[150], Signal::TERM);
}

#[test]
fn managers_killed_again_and_again_are_replaced() {
    let Some(reporter) = Reporter::start(&RESTLESS, 3_000) else { return };
    let mut last = 0;
    for _ in 0..8 {
        let manager = wait_for("another manager", LONG, || {
            let manager = reporter.site.status().manager;
            (manager != last && is_alive(manager)).then_some(manager)
        });
        reporter.assert_at_work();
        last = manager;
        kill(manager, Signal::KILL);
        std::thread::sleep(Duration::from_millis(130));
    }
    let (site, ran) = reporter.finish();
    let writes = reported(&ran.expect(0).stdout);
    assert!(writes >= RECORDS, "{writes}");
    assert_complete(&site, writes, false, "managers killed again and again");
}

#[test]
fn mappings_show_each_write_while_managers_are_killed() {
    let site = Site::new(&RESTLESS);
    if !site.compile("unmaps.c", &["-pthread"]) {
        return;
    }
    let mut run = site.start(site.buffered(&["sh", "-c", "exec $BIN/unmaps race file 3 8"]));
    let mut last = 0;
    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(1));
        let manager = wait_for("another manager", LONG, || {
            let manager = site.status().manager;
            (manager != last && is_alive(manager)).then_some(manager)
        });
        assert!(run.is_running(), "{} {}", run.stdout(), run.stderr());
        last = manager;
        kill(manager, Signal::KILL);
    }
    assert_eq!(run.end().expect(0).stdout, "wrong: 0\n");
}

/// `sync FILE` opens it to read.
#[test]
fn without_a_manager_a_descriptor_that_may_only_read_syncs() {
    let site = Site::new(&LAZY);
    let script = "yes | head -c 300000 > file; : > $OUT/made\n\
        while [ ! -e $OUT/go ]; do sleep 0.02; done\n\
        sync file && cp file $OUT/seen\n: > $OUT/synced";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the file", LIMIT, || site.out.join("made").exists().then_some(()));
    let manager = site.status().manager;
    // No other one is started.
    kill(run.pid(), Signal::STOP);
    kill(manager, Signal::KILL);
    wait_for("its end", LIMIT, || (!is_alive(manager)).then_some(()));
    std::fs::write(site.out.join("go"), "").unwrap();
    wait_for("the sync", LIMIT, || site.out.join("synced").exists().then_some(()));
    let seen = std::fs::read(site.out.join("seen")).expect("what was synced, without an error");
    assert_same_bytes("file", &std::fs::read(site.store.join("file")).unwrap(), &seen);
    assert!(seen.len() == 300_000, "{} bytes", seen.len());
    kill(run.pid(), Signal::CONT);
    run.end().expect(0);
}

#[test]
fn a_manager_killed_in_the_final_drain_is_replaced() {
    let site = Site::new(&Setup {
        store_emulate: Some("{ bandwidth = \"20MB/s\", latency = \"1ms\" }"),
        ..LAZY
    });
    let script = "head -c 40M /dev/zero | tr '\\0' x > big; echo written > $OUT/written";
    site.run_plainly(script);
    std::fs::remove_file(site.out.join("written")).unwrap();
    let mut run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the write", LIMIT, || site.out.join("written").exists().then_some(()));
    std::thread::sleep(Duration::from_millis(400));
    assert!(run.is_running(), "{}", run.stderr());
    kill(site.status().manager, Signal::KILL);
    run.end().expect(0);
    site.assert_same_files();
}

/// Kills program, `forebay run` and manager; then recovers.
fn kill_all(setup: &Setup, moment: usize, by_next_run: bool) {
    let Some(reporter) = Reporter::start(setup, 300) else { return };
    reporter.wait_for_records(moment);
    let manager = reporter.manager();
    reporter.assert_at_work();
    for pid in [reporter.run.pid(), manager, reporter.pid] {
        kill(pid, Signal::KILL);
    }
    let Reporter { site, run, pid } = reporter;
    run.end();
    wait_for("their ends", LIMIT, || (!is_alive(manager) && !is_alive(pid)).then_some(()));
    // What the program had said when it died.
    let said = std::fs::read_to_string(site.root().join("stdout-0")).unwrap();
    let writes = reported(&said);
    assert!(!site.pools().is_empty(), "no pool was left");
    // Its threads may end a moment after the process shows as ended.
    wait_for("a status without manager", LIMIT, || {
        site.status().text.contains("no node manager; run `forebay recover`").then_some(())
    });
    let ran = match by_next_run {
        true => site.end(site.buffered(&["true"])),
        false => site.recover(),
    };
    assert_eq!(ran.code, 0, "{ran:?}\n{}", site.log());
    assert_complete(&site, writes, true, &format!("all killed after {moment}"));
    // The manager of the next run ends a moment after it.
    wait_for("the end of the pool", LIMIT, || site.pools().is_empty().then_some(()));
    let again = site.recover().expect(0);
    assert!(again.stdout.contains("nothing to recover"), "{again:?}");
}

#[test]
fn after_a_crash_of_everything_recover_drains_the_pool() {
    for (setup, moment) in [(&LAZY, 5), (&LAZY, 350), (&SLOW_STORE, 120), (&RESTLESS, 60)] {
        kill_all(setup, moment, false);
    }
    kill_all(&RESTLESS, 250, false);
}

#[test]
fn after_a_crash_of_everything_the_next_run_drains_the_pool() {
    kill_all(&LAZY, 200, true);
    kill_all(&TINY, 200, true);
}

#[test]
fn a_file_renamed_before_the_crash_is_found_again() {
    let site = Site::new(&LAZY);
    let script = "echo content > old; mkdir d; mv old d/new; echo gone > away; rm away; echo two > a; mv a b; echo three > a; echo done > $OUT/done; exec sleep 60";
    let mut run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
    assert!(run.is_running());
    site.kill_all();
    run.end();
    let ran = site.recover();
    assert_eq!(ran.code, 0, "{ran:?}\n{}", site.log());
    for (name, wanted) in [("d/new", "content\n"), ("b", "two\n"), ("a", "three\n")] {
        assert_eq!(std::fs::read_to_string(site.store.join(name)).unwrap(), wanted, "{name}");
    }
    assert!(!site.store.join("away").exists());
}

#[test]
fn a_terminated_manager_drains_first() {
    let site = Site::new(&LAZY);
    let script = "seq 200000 > file; seq 1000 > other; echo done > $OUT/done; exec sleep 60";
    site.run_plainly("seq 200000 > file; seq 1000 > other");
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
    let manager = site.status().manager;
    for pid in site.processes().into_iter().filter(|&pid| pid != manager) {
        kill(pid, Signal::KILL);
    }
    run.end();
    kill(manager, Signal::TERM);
    wait_for("the manager's end", LIMIT, || (!is_alive(manager)).then_some(()));
    site.assert_same_files();
}

/// The number that /proc says of `pid` under `key`.
fn field(pid: u32, key: &str, radix: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
    u64::from_str_radix(line.split_whitespace().next().unwrap(), radix).unwrap()
}

#[test]
fn a_manager_outlives_everything_that_started_it() {
    let site = Site::new(&LAZY);
    let pipe = site.root().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // As batch systems and nohup may start it: signals ignored, a pipe to our caller open.
    let script = "trap '' HUP INT QUIT USR1; umask 0757; exec 9<> $BIN/pipe
        exec \"$FOREBAY\" run --config $BIN/forebay.toml -- bash -c '
            umask 022; seq 200000 > file; echo done > $OUT/done; exec sleep 60'";
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", script]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let run = site.start(command);
    wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
    let manager = site.status().manager;

    let family = harness::descendants(run.pid());
    assert!(family.len() > 1 && !family.contains(&manager), "{family:?}");
    let session = |pid| field(pid, "NSsid:", 10);
    assert_eq!((session(manager), field(manager, "NSpgid:", 10)), (manager.into(), manager.into()));
    assert_ne!(session(run.pid()), session(manager));
    let ignored = field(manager, "SigIgn:", 16);
    let usual = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::TERM, Signal::CHILD];
    assert!(usual.iter().all(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0), "{ignored:x}");
    assert_eq!(field(manager, "SigBlk:", 16), 0);
    assert_eq!(field(manager, "Umask:", 8), 0o057, "what its owner may do is not masked");
    let link = |name: String| std::fs::read_link(format!("/proc/{manager}/{name}")).unwrap();
    assert_eq!(link("cwd".into()), std::path::Path::new("/"));
    assert_eq!(link("fd/0".into()), std::path::Path::new("/dev/null"));
    assert!([1, 2].iter().all(|fd| link(format!("fd/{fd}")).ends_with("log")));
    let fds = std::fs::read_dir(format!("/proc/{manager}/fd")).unwrap();
    let open: Vec<_> = fds.map(|fd| std::fs::read_link(fd.unwrap().path())).collect();
    assert!(open.iter().flatten().all(|open| *open != pipe), "{open:?}");

    // What a batch system does at the end of a job's time.
    let group = rustix::process::Pid::from_raw(run.pid() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    family.iter().for_each(|&pid| kill(pid, Signal::KILL));
    run.end();
    site.run_plainly("umask 022; seq 200000 > file");
    wait_for("the manager's end", LIMIT, || (!is_alive(manager)).then_some(()));
    assert!(site.pools().is_empty());
    site.assert_same_files();
}

#[test]
fn a_terminated_run_passes_the_signal_on_and_drains() {
    let site = Site::new(&LAZY);
    site.run_plainly("seq 200000 > file");
    let script = "trap 'exit 7' TERM; seq 200000 > file; echo done > $OUT/done; while :; do sleep 0.05; done";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
    kill(run.pid(), Signal::TERM);
    run.end().expect(7);
    site.assert_same_files();
}

/// Writers are killed while they write behind the end of a file; then the file is extended in all
/// ways. Says what is not as it should be.
const EXTENDER: &str = r#"
import os, subprocess, sys, time
BLOCK, KEPT = 262144, 1000
WRITER = 'import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), b"N" * 3000, int(sys.argv[2]))'
END = 3 * BLOCK + 7
def write(fd):
    os.pwrite(fd, b'e', END - 1)
def move_and_write(fd):
    os.lseek(fd, END - 1, os.SEEK_SET)
    os.write(fd, b'e')
def step_by_step(fd):
    # First behind what was written in the same page, then farther on.
    for at in (3998, 8191, 60000, END - 1):
        os.pwrite(fd, b'e', at)
def up(fd):
    os.ftruncate(fd, END)
def twice_up(fd):
    os.ftruncate(fd, KEPT + 100)
    os.ftruncate(fd, END)
def allocate(fd):
    os.posix_fallocate(fd, END - 10, 10)
ways = [write, up, step_by_step, allocate, move_and_write, twice_up]
number = 0
for point in sys.argv[1:]:
    for start in (KEPT, 20000, BLOCK + 5000):
        for turn in range(2):
            number += 1
            way = ways[number % len(ways)]
            case = f'{point} at {start}, {way.__name__}'
            fd = os.open(f'file{number}', os.O_RDWR | os.O_CREAT, 0o644)
            os.pwrite(fd, b'o' * KEPT, 0)
            env = dict(os.environ, FOREBAY_CRASH=f'{point}:1')
            words = [sys.executable, '-IS', '-c', WRITER, f'file{number}', str(start)]
            ended = subprocess.run(words, env=env).returncode
            assert ended == -9, f'{case}: the writer ended with {ended}'
            if number % 4 == 1:
                # Before any call asks for the size.
                os.fsync(fd)
                words = [os.environ['BIN'] + '/unmanaged', f'file{number}']
                stored = len(subprocess.run(words, stdout=subprocess.PIPE).stdout)
                assert stored == KEPT, f'{case}: {stored} bytes on the store after fsync'
            size = os.fstat(fd).st_size
            assert size == KEPT, f'{case}: {size} bytes after the kill'
            if number % 4 == 2:
                time.sleep(0.3)
            way(fd)
            wanted = bytearray(END)
            wanted[:KEPT] = b'o' * KEPT
            if way in (write, move_and_write, step_by_step):
                wanted[END - 1] = ord('e')
            if way is step_by_step:
                for at in (3998, 8191, 60000):
                    wanted[at] = ord('e')
            got = os.pread(fd, END + 10, 0)
            wrong = [at for at, (a, b) in enumerate(zip(got, wanted)) if a != b]
            if len(got) != END or wrong:
                print(f'{case}: {len(got)} bytes, {len(wrong)} differ from {wrong[:1]} to {wrong[-1:]}')
            with open(os.environ['OUT'] + f'/file{number}', 'wb') as file:
                file.write(wanted)
            os.close(fd)
"#;

/// A site with a rule, and with a program of Python's that kills others at points; and what runs
/// it.
fn site_with_killer(rule: &str, name: &str, program: &str) -> Option<(Site, String)> {
    if !cfg!(debug_assertions) {
        skip("crash points are only in builds with debug assertions");
        return None;
    }
    let python = python_with("os")?;
    let site = Site::new(&LAZY);
    let text = std::fs::read_to_string(&site.config).unwrap();
    std::fs::write(&site.config, text + rule).unwrap();
    std::fs::write(site.out.join(name), program).unwrap();
    Some((site, python))
}

/// Kills writers at `points` between their first byte behind the end and the new size.
fn kill_writers_behind_the_end(rule: &str, points: &[&str]) {
    let Some((site, python)) = site_with_killer(rule, "extender.py", EXTENDER) else { return };
    if !site.compile("unmanaged.c", &["-static"]) {
        return;
    }
    let script = site.out.join("extender.py");
    let words = [&[&*python, script.to_str().unwrap()], points].concat();
    let ran = site.end(site.buffered(&words)).expect(0);
    assert_eq!(ran.stdout, "", "bytes of killed writers are seen");
    for entry in std::fs::read_dir(&site.store).unwrap() {
        let name = entry.unwrap().file_name();
        let wanted = std::fs::read(site.out.join(&name)).unwrap();
        let got = std::fs::read(site.store.join(&name)).unwrap();
        assert_same_bytes(&name.to_string_lossy(), &got, &wanted);
    }
}

#[test]
fn what_a_killed_writer_left_behind_the_end_is_never_seen_in_ram() {
    let points = ["write.marked", "write.filled", "write.dirty", "write.valid"];
    kill_writers_behind_the_end("", &points);
}

#[test]
fn what_a_killed_writer_left_behind_the_end_is_never_seen_on_a_file_tier() {
    let rule = "[[rule]]\npath = \"**\"\ntier = \"nvme\"\n";
    kill_writers_behind_the_end(rule, &["slot.written", "write.dirty", "write.valid"]);
}

#[test]
fn what_a_killed_writer_left_behind_the_end_is_never_seen_on_the_store() {
    let rule = "[[rule]]\npath = \"**\"\npolicy = \"noop\"\n";
    kill_writers_behind_the_end(rule, &["lengthen.begun", "store.written"]);
}

/// Processes are killed while they change the size of a file. Says which calls of another process
/// do not see one and the same size afterwards, and which of them change their minds.
const SIZES: &str = r#"
import os, signal, subprocess, sys, threading
KEPT, END = 1000, 9000
CHANGE = '''
import mmap, os, sys
fd = os.open(sys.argv[2], os.O_RDWR)
if sys.argv[3] != '0':
    os.kill(int(sys.argv[3]), 19)
match sys.argv[1]:
    case 'write': os.pwrite(fd, b'N' * 3000, 500)
    case 'cut': os.ftruncate(fd, 300)
    case 'extend': os.ftruncate(fd, 9000)
    case 'allocate': os.posix_fallocate(fd, 0, 9000)
    case 'map': mmap.mmap(fd, 0)
    case 'unmap':
        mmap.mmap(fd, 0).close()
        os.pread(fd, 1, 0)
'''
POINTS = {
    'write': 'write.store-written write.metadata-dirty write.marked write.dirty write.size write.copied',
    'cut': 'truncate.intent truncate.quiesced truncate.store truncate.size truncate.discarded truncate.done',
    'extend': 'truncate.intent truncate.store truncate.size truncate.done',
    'allocate': 'lengthen.begun allocate.store lengthen.ending',
    'map': 'mapping.held passthrough.begin lengthen.begun mapping.direct passthrough.end lengthen.ending',
    'unmap': 'mapping.gone mapping.given-up mapping.unmapped mapping.buffering mapping.buffered',
}
if 'around' in sys.argv:
    POINTS = {'write': 'around.busy lengthen.begun store.written lengthen.ending around.written'}
MAY = {'write': range(KEPT, 3501), 'cut': (300, KEPT), 'extend': (KEPT, END), 'allocate': (KEPT, END), 'map': (KEPT,),
       'unmap': (KEPT,)}
manager = int(sys.argv[1])
def let_go_on(seen_all, timeout):
    while not seen_all.wait(timeout):
        os.kill(manager, signal.SIGCONT)
def append(path):
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    os.write(fd, b'A')
    end = os.lseek(fd, 0, os.SEEK_CUR)
    assert os.fstat(fd).st_size == end
    os.ftruncate(fd, end - 1)
    os.close(fd)
    return end - 1
views = [
    ('fstat', lambda fd, path: os.fstat(fd).st_size),
    ('stat', lambda fd, path: os.stat(path).st_size),
    ('end', lambda fd, path: os.lseek(fd, 0, os.SEEK_END)),
    ('read', lambda fd, path: len(os.pread(fd, 100000, 0))),
    ('hole', lambda fd, path: os.lseek(fd, 0, os.SEEK_HOLE) if os.fstat(fd).st_size <= 4096 else None),
    ('append', lambda fd, path: append(path)),
]
number = 0
for kind, points in POINTS.items():
    for point in points.split():
        for is_synced in (False, True):
            for is_stopped in (False, True):
                first = number % len(views)
                number += 1
                path = f'file{number}'
                case = f'{kind} at {point}, {is_synced=}, {is_stopped=}'
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                os.pwrite(fd, b'o' * KEPT, 0)
                if is_synced:
                    os.fsync(fd)
                env = dict(os.environ, FOREBAY_CRASH=f'{point}:1')
                stopped = manager if is_stopped else 0
                words = [sys.executable, '-IS', '-c', CHANGE, kind, path, str(stopped)]
                ended = subprocess.Popen(words, env=env)
                # To map a file takes one that goes on, and so may anything if it was stopped with a lock.
                timeout = 0.1 if kind in ('map', 'unmap') else 1.0
                seen_all = threading.Event()
                threading.Thread(target=let_go_on, args=(seen_all, timeout)).start()
                ended = ended.wait()
                assert ended in ((-9, 0) if is_synced else (-9,)), f'{case}: {ended}'
                seen = []
                for name, view in views[first:] + views[:first]:
                    seen.append((name, view(fd, path)))
                    if name == 'append':
                        break
                seen_all.set()
                os.kill(manager, signal.SIGCONT)
                os.fsync(fd)
                seen += [(name, view(fd, path)) for name, view in views]
                sizes = {size for _, size in seen if size is not None}
                if len(sizes) != 1 or not sizes <= set(MAY[kind]):
                    print(f'{case}: {seen}')
                with open(os.environ['OUT'] + f'/{path}', 'w') as file:
                    file.write(str(os.fstat(fd).st_size))
                os.close(fd)
"#;

fn kill_in_changes_of_size(rule: &str, words: &[&str]) {
    let Some((site, python)) = site_with_killer(rule, "sizes.py", SIZES) else { return };
    let script = format!(
        "manager=$($FOREBAY status | sed -n 's/.*node manager //p')\n\
         exec {python} $OUT/sizes.py $manager {}",
        words.join(" ")
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script])).expect(0);
    assert_eq!(ran.stdout, "", "calls do not agree about a size");
    for entry in std::fs::read_dir(&site.store).unwrap() {
        let name = entry.unwrap().file_name();
        let Ok(wanted) = std::fs::read_to_string(site.out.join(&name)) else { continue };
        let got = std::fs::metadata(site.store.join(&name)).unwrap().len();
        assert_eq!(got.to_string(), wanted, "{name:?} on the store");
    }
}

#[test]
fn after_a_kill_in_a_change_of_size_all_calls_see_one_size() {
    kill_in_changes_of_size("", &[]);
}

#[test]
fn after_a_kill_in_a_write_around_the_tiers_all_calls_see_one_size() {
    kill_in_changes_of_size("[[rule]]\npath = \"**\"\npolicy = \"noop\"\n", &["around"]);
}

/// The run that has started it was killed before it could say that it holds it.
#[test]
fn a_node_manager_that_no_run_joins_ends() {
    if !cfg!(debug_assertions) {
        return skip("timers are scaled only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let mut command = site.forebay(&["node", "--ephemeral", "--config", config]);
    command.env("FOREBAY_TIME_SCALE", "50");
    site.end(command).expect(0);
}

/// A write around the tiers to a hole of a file that is ahead of the store: the store's file ends
/// before it.
#[test]
fn what_a_write_around_the_tiers_left_in_a_hole_is_there_at_once_or_never() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    for point in ["store.written", "lengthen.begun", "lengthen.ending", "around.written"] {
        let site = Site::new(&LAZY);
        let script = format!(
            "export FOREBAY_TIME_SCALE=50\n\
             echo end | dd of=file bs=1 seek=1500000 conv=notrunc status=none\n\
             yes | head -c 5000 > $OUT/new\n\
             (FOREBAY_REFUSE=bucket:1..,slot:1.. FOREBAY_CRASH={point}:1 FOREBAY_CRASH_ONCE=$OUT/killed \
              dd if=$OUT/new of=file bs=5000 seek=100 conv=notrunc status=none; true) 2> /dev/null\n\
             cp file $OUT/seen; sync file; cp file $OUT/later; cat $OUT/killed"
        );
        let (ran, _) = site.run_buffered(&script);
        assert_eq!((ran.code, ran.stdout.trim()), (0, point), "{ran:?}");
        let read = |path| std::fs::read(path).unwrap();
        let seen = read(site.out.join("seen"));
        let written = seen[500_000..505_000] == read(site.out.join("new"))[..];
        assert!(written || seen[500_000..505_000] == [0; 5000], "{point}");
        assert_same_bytes(point, &read(site.out.join("later")), &seen);
        assert_same_bytes(point, &read(site.store.join("file")), &seen);
    }
}

/// Without a manager, which holds what it has data of, a new file gets the inode of a deleted one;
/// its creator is killed before the open has looked at it. Prints what a managed process then sees,
/// or `other` if it has another inode.
const NAMESAKE: &str = r#"
import os, signal, subprocess, sys, time
run, manager = int(sys.argv[1]), int(sys.argv[2])
with open('old', 'wb') as old:
    old.write(b'o' * 5000)
    inode = os.fstat(old.fileno()).st_ino
os.kill(run, signal.SIGSTOP)
os.kill(manager, signal.SIGKILL)
while os.path.exists(f'/proc/{manager}/fd/0'):
    time.sleep(0.01)
os.remove('old')
CREATE = 'import os; os.open("new", os.O_RDWR | os.O_CREAT, 0o644)'
env = dict(os.environ, FOREBAY_CRASH='open.seen:1')
assert subprocess.run([sys.executable, '-IS', '-c', CREATE], env=env).returncode == -9
fd = os.open('.', os.O_RDONLY)
seen = [os.stat('new'), os.lstat('new'), os.stat('new', dir_fd=fd)]
print(*[stat.st_size for stat in seen] if seen[0].st_ino == inode else ['other'])
os.kill(run, signal.SIGCONT)
"#;

/// Runs one of these programs, which get the processes that they stop and kill.
fn with_inode_used_again(name: &str, program: &str, wanted: &str) {
    let Some((site, python)) = site_with_killer("", name, program) else { return };
    let script = format!(
        "manager=$($FOREBAY status | sed -n 's/.*node manager //p')\n\
         {python} $OUT/{name} $PPID $manager"
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script]));
    if ran.stdout == "other\n" {
        return skip("the file system gives a new file another inode");
    }
    assert_eq!((ran.code, ran.stdout.as_str()), (0, wanted), "{ran:?}");
}

#[test]
fn a_file_whose_creator_was_killed_has_nothing_of_an_older_one() {
    with_inode_used_again("namesake.py", NAMESAKE, "0 0 0\n");
}

/// The same of files that never have a name: nothing of the second is to be saved either.
const NAMELESS: &str = r#"
import os, signal, sys, time
run, manager = int(sys.argv[1]), int(sys.argv[2])
def make():
    fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b'o' * 5000)
    return os.fstat(fd).st_ino, fd
old, fd = make()
os.kill(run, signal.SIGSTOP)
os.kill(manager, signal.SIGKILL)
while os.path.exists(f'/proc/{manager}/fd/0'):
    time.sleep(0.01)
os.close(fd)
new, fd = make()
os.close(fd)
print('same' if new == old else 'other')
os.kill(run, signal.SIGCONT)
"#;

#[test]
fn a_file_without_a_name_is_dropped_though_an_older_one_had_its_inode() {
    with_inode_used_again("nameless.py", NAMELESS, "same\n");
}

/// Nothing of the file is in the tiers at first, and little later: what is read through to the
/// store, or staged for it, is never older than what was written before, and of the right page,
/// while writers are killed and cut the file.
#[test]
fn cold_reads_beside_writers_that_are_killed_see_no_old_bytes() {
    let emulated = Some("{ bandwidth = \"400MB/s\", latency = \"200us\" }");
    let quick = "trigger = \"periodic\"\nperiod = \"10ms\"";
    for store_emulate in [None, emulated] {
        let site = Site::new(&Setup { store_emulate, flush: quick, ..TINY });
        if !site.compile("cold.c", &["-O1"]) {
            return;
        }
        let pages = (0..2048u64).flat_map(|page| page.to_le_bytes().repeat(512));
        std::fs::write(site.store.join("file"), pages.collect::<Vec<_>>()).unwrap();
        let (ran, status) = site.run_buffered(
            "for reader in 1 2; do $BIN/cold watch file $OUT/seen 8000 & readers+=\" $!\"; done\n\
             (for turn in {1..400}; do timeout -s KILL 0.0$((RANDOM % 90 + 10)) \
             $BIN/cold write file $OUT/seen 2> /dev/null; done) & writers=$!\n\
             for reader in $readers; do wait $reader || bad=1; done\n\
             kill $writers; wait; exit ${bad:-0}",
        );
        ran.expect(0);
        assert!(status.count("writes") > 500, "{}", status.text);
        assert!(status.count("missed_bytes") > 1 << 20, "{}", status.text);
    }
}
