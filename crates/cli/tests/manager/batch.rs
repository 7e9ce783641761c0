//! The scripts of examples/batch: those of Slurm under a real one, a controller and two nodes on
//! this machine; those of other systems as their shells run them.

use crate::harness::{FOREBAY, LAZY, LONG, Site, assert_same_bytes, have, skip, wait_for};
use std::cell::RefCell;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

const PROGRAMS: [&str; 7] =
    ["slurmctld", "slurmd", "munged", "sbatch", "scancel", "squeue", "setpriv"];

/// A cluster of two nodes, for one site.
struct Cluster<'s> {
    site: &'s Site,
    folder: PathBuf,
    /// Where the daemons say what their process ids are.
    pids: RefCell<Vec<PathBuf>>,
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/batch").canonicalize().unwrap()
}

fn scripts() -> PathBuf {
    examples().join("slurm")
}

/// Ports that nothing uses.
fn ports() -> [u16; 3] {
    let bound = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    bound.map(|socket| socket.local_addr().unwrap().port())
}

impl<'s> Cluster<'s> {
    /// Starts one whose hooks find the site's configuration; `None`, and loud, if it cannot be had.
    fn start(site: &'s Site) -> Option<Cluster<'s>> {
        // Its daemons are somewhere that the search path of users need not have.
        if !rustix::process::geteuid().is_root() {
            skip("Slurm's daemons need root");
            return None;
        }
        if !have(&PROGRAMS) {
            return None;
        }
        let folder = site.root().join("slurm");
        fs::create_dir(&folder).unwrap();
        let cluster = Cluster { site, folder, pids: RefCell::default() };
        cluster.configure();
        let at = |name: &str| cluster.folder.join(name).to_str().unwrap().to_owned();
        let key: Vec<u8> = (0..1024u32).map(|at| (at * 167 + 13) as u8).collect();
        fs::write(at("munge.key"), key).unwrap();
        fs::set_permissions(at("munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        cluster.daemon(
            "munged.pid",
            &[
                "munged",
                "--force",
                "--key-file",
                &at("munge.key"),
                "--socket",
                &at("munge.sock"),
                "--pid-file",
                &at("munged.pid"),
                "--log-file",
                &at("munged.log"),
                "--seed-file",
                &at("munge.seed"),
            ],
        );
        let config = at("slurm.conf");
        cluster.daemon("slurmctld.pid", &["slurmctld", "-f", &config, "-L", &at("slurmctld.log")]);
        for node in ["n1", "n2"] {
            let (pid, log) = (format!("{node}/slurmd.pid"), at(&format!("{node}.log")));
            cluster.daemon(&pid, &["slurmd", "-f", &config, "-N", node, "-L", &log]);
        }
        wait_for("two idle nodes", LONG, || {
            let said = site.end(cluster.command("sinfo", &["-h", "-o", "%T %D"])).stdout;
            (said.trim() == "idle 2").then_some(())
        });
        Some(cluster)
    }

    fn configure(&self) {
        let (folder, hooks) = (self.folder.display(), self.folder.join("hooks"));
        fs::create_dir(&hooks).unwrap();
        for hook in ["prolog", "epilog", "taskprolog", "taskepilog"] {
            fs::copy(scripts().join(hook), hooks.join(hook)).unwrap();
        }
        let settings = format!(
            "FOREBAY_BIN={}\nFOREBAY_JOB_CONFIG={}\nFOREBAY_RUNTIME_DIR={}\nFOREBAY_DRAIN_SECONDS=60\n",
            Path::new(FOREBAY).parent().unwrap().display(),
            self.site.config.display(),
            self.site.runtime().display()
        );
        fs::write(hooks.join("forebay.env"), settings).unwrap();
        for name in ["ctld", "n1", "n2"] {
            fs::create_dir(self.folder.join(name)).unwrap();
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let (host, [control, one, two]) = (host.trim(), ports());
        let node = |name: &str, port: u16| {
            format!(
                "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 \
                 State=UNKNOWN\n"
            )
        };
        let hooks = hooks.display();
        let text = format!(
            "ClusterName=fb\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             SlurmctldPort={control}\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge.sock\n\
             CredType=cred/munge\nMpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\nSwitchType=switch/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nReturnToService=2\nStateSaveLocation={folder}/ctld\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/%n/slurmd.pid\n\
             SlurmdSpoolDir={folder}/%n\nCommunicationParameters=NoCtldInAddrAny,NoInAddrAny\nKillWait=5\n\
             SchedulerParameters=sched_interval=1,bf_interval=1\nProlog={hooks}/prolog\nEpilog={hooks}/epilog\n\
             TaskProlog={hooks}/taskprolog\nTaskEpilog={hooks}/taskepilog\nPrologFlags=Alloc\n\
             {}{}PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n",
            node("n1", one),
            node("n2", two),
        );
        fs::write(self.folder.join("slurm.conf"), text).unwrap();
    }

    /// A command of Slurm, as a user of the site gives it.
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = self.site.command(&self.site.store, program);
        let path = std::env::var("PATH").unwrap_or_default();
        let built = Path::new(FOREBAY).parent().unwrap().display();
        command
            .args(words)
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .env("FOREBAY_PROJECT", &self.site.store)
            .env("SITE_FOLDER", self.site.config.parent().unwrap())
            .env("FOREBAY_LOCAL", self.folder.join("local"))
            .env("PATH", format!("{built}:{path}"));
        command
    }

    /// Starts what goes on in the background, and leaves its process id in `pid`.
    fn daemon(&self, pid: &str, words: &[&str]) {
        self.pids.borrow_mut().push(self.folder.join(pid));
        self.site.end(self.command(words[0], &words[1..])).expect(0);
    }

    /// Gives a job to Slurm, and waits for its end, the epilog's included; returns what it said.
    fn run(&self, options: &[&str], words: &[&str]) -> String {
        let said = self.folder.join("said");
        let output = format!("--output={}", said.display());
        let sbatch = self.command("sbatch", &[&["--wait", &output], options, words].concat());
        let ran = self.site.end(sbatch);
        let said = fs::read_to_string(said).unwrap_or_default();
        assert_eq!(ran.code, 0, "{ran:?}\n{said}\n{}", self.logs());
        self.await_idle();
        said
    }

    fn await_idle(&self) {
        wait_for("idle nodes", LONG, || {
            let said = self.site.end(self.command("sinfo", &["-h", "-o", "%T %D"])).stdout;
            (said.trim() == "idle 2").then_some(())
        });
    }

    fn logs(&self) -> String {
        ["slurmctld.log", "n1.log", "n2.log"]
            .map(|log| fs::read_to_string(self.folder.join(log)).unwrap_or_default())
            .concat()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for pid in self.pids.borrow().iter().rev() {
            let pid = fs::read_to_string(pid).ok().and_then(|pid| pid.trim().parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            let _ = kill_process(pid, Signal::TERM);
            let gone =
                || (!crate::harness::is_alive(pid.as_raw_nonzero().get() as u32)).then_some(());
            wait_for("the end of a daemon of Slurm", LONG, gone);
        }
    }
}

/// A script of the examples, as a shell runs it in the site's store.
fn script(site: &Site, name: &str, words: &[&str]) -> Command {
    let mut command = site.command(&site.store, "bash");
    let path = std::env::var("PATH").unwrap_or_default();
    let built = Path::new(FOREBAY).parent().unwrap().display();
    command
        .arg(examples().join(name))
        .args(words)
        .env("PATH", format!("{built}:{path}"))
        .env("PBS_O_WORKDIR", &site.out)
        .env("FOREBAY_PROJECT", &site.store);
    command
}

#[test]
fn a_laptop_s_script_shows_what_the_run_did() {
    let site = Site::new(&LAZY);
    let ran = site.end(script(&site, "laptop/run.sh", &["sh", "-c", "echo data > file"])).expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "data\n");
    assert!(ran.stdout.contains("5 B in 1 write"), "{ran:?}");
    assert!(site.pools().is_empty());
}

#[test]
fn scripts_of_pbs_and_lsf_drain_when_the_system_ends_them() {
    for (name, number) in [("pbs/job.pbs", 1), ("lsf/job.lsf", 2)] {
        let site = Site::new(&LAZY);
        let program = |text: &str| {
            let mut command = script(&site, name, &[]);
            command.current_dir(&site.out).env("FOREBAY_PROGRAM", text);
            command
        };
        let store = site.store.display();
        site.end(program(&format!("seq 1000 > {store}/whole"))).expect(0);
        assert_eq!(fs::metadata(site.store.join("whole")).unwrap().len(), 3893, "{name}");
        assert!(site.out.join("report.html").is_file(), "{name}");
        let text = format!(
            "echo $PPID > $OUT/pid{number}; seq 100000 > {store}/part; touch $OUT/go{number}; sleep 100"
        );
        let running = site.start(program(&text));
        let go = site.out.join(format!("go{number}"));
        wait_for("the program", LONG, || go.exists().then_some(()));
        // A shell that passed the signal on would give a second one to a run that has its own.
        let run = fs::read_to_string(site.out.join(format!("pid{number}"))).unwrap();
        assert_eq!(run.trim(), running.pid().to_string(), "{name}");
        crate::harness::kill(running.pid(), Signal::TERM);
        let ran = running.end();
        assert_ne!(ran.code, 0, "{name}: {ran:?}");
        assert_eq!(
            fs::metadata(site.store.join("part")).unwrap().len(),
            588_895,
            "{name}: {ran:?}"
        );
    }
}

#[test]
fn jobs_of_slurm_are_buffered_drained_and_drained_after_a_kill() {
    let site = Site::new(&LAZY);
    let Some(cluster) = Cluster::start(&site) else { return };
    let example = |name: &str| scripts().join(name).to_str().unwrap().to_owned();

    // The prolog has started the node manager that the steps join; the epilog ends it.
    let script = site.out.join("steps");
    let config = site.config.display();
    fs::write(
        &script,
        format!(
            "#!/bin/bash\nset -e\nforebay status | head -n 1\n\
             srun forebay run --config {config} -- sh -c 'seq 100000 > steps-$SLURM_PROCID; cat steps-$SLURM_PROCID \
             > $OUT/copy-$SLURM_PROCID; echo scratch $FOREBAY_SCRATCH'\n"
        ),
    )
    .unwrap();
    let said = cluster.run(&["-N1", "-n2"], &[script.to_str().unwrap()]);
    assert!(said.contains(": node manager "), "{said}\n{}", cluster.logs());
    let scratch = format!("scratch {}", cluster.folder.join("local").display());
    assert_eq!(said.matches(&scratch).count(), 2, "the task prolog's export: {said}");
    let wanted: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    for name in ["steps-0", "steps-1"] {
        let stored = fs::read(site.store.join(name)).unwrap();
        assert_same_bytes(name, &stored, wanted.as_bytes());
    }
    assert_same_bytes("copy-1", &fs::read(site.out.join("copy-1")).unwrap(), wanted.as_bytes());
    assert!(site.pools().is_empty(), "the epilog has left a pool: {}", cluster.logs());

    // A job that is killed with data which the store does not have: the epilog drains it.
    let script = site.out.join("killed");
    fs::write(
        &script,
        format!(
            "#!/bin/bash\nforebay run --config {config} -- sh -c 'seq 200000 > killed; touch $OUT/go; sleep 100'\n"
        ),
    )
    .unwrap();
    let output = format!("--output={}", site.out.join("killed.said").display());
    let sbatch =
        cluster.command("sbatch", &["--parsable", "-N1", &output, script.to_str().unwrap()]);
    let job = site.end(sbatch).expect(0).stdout.trim().to_owned();
    wait_for("the job's data", LONG, || site.out.join("go").exists().then_some(()));
    assert_eq!(
        fs::metadata(site.store.join("killed")).unwrap().len(),
        0,
        "it is on the store already"
    );
    site.end(cluster.command("scancel", &["--signal=KILL", "--full", &job])).expect(0);
    wait_for("the job's end", LONG, || {
        let said = site.end(cluster.command("squeue", &["-h"])).stdout;
        said.trim().is_empty().then_some(())
    });
    cluster.await_idle();
    let wanted: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert_same_bytes("killed", &fs::read(site.store.join("killed")).unwrap(), wanted.as_bytes());
    assert!(site.pools().is_empty(), "the epilog has left a pool: {}", cluster.logs());

    // The examples as they are, without hooks that have a configuration.
    fs::remove_file(cluster.folder.join("hooks/forebay.env")).unwrap();
    let words = [&example("job.sbatch"), "sh", "-c", "echo $SLURM_PROCID > task-$SLURM_PROCID"];
    let said = cluster.run(&["--mem=300"], &words);
    // A quarter of what the job may have.
    assert!(said.contains("ram 74.0 MiB"), "{said}");
    assert_eq!(fs::read_to_string(site.store.join("task-1")).unwrap(), "1\n");
    fs::create_dir(site.store.join("in")).unwrap();
    fs::create_dir(site.store.join("results")).unwrap();
    fs::write(site.store.join("in/a"), wanted.as_bytes()).unwrap();
    let mut sbatch = cluster.command("sbatch", &["--wait"]);
    sbatch
        .arg(format!("--output={}", site.out.join("staged.said").display()))
        .arg(example("stage.sbatch"))
        .args(["cp", "in/a", "results/b"])
        .env("FOREBAY_INPUT", site.store.join("in"))
        .env("FOREBAY_RESULTS", site.store.join("results"));
    let ran = site.end(sbatch);
    let said = fs::read_to_string(site.out.join("staged.said")).unwrap_or_default();
    assert_eq!(ran.code, 0, "{said}");
    assert!(said.contains("staged in 1 file") && said.contains("stopped 1 node manager"), "{said}");
    assert_same_bytes("b", &fs::read(site.store.join("results/b")).unwrap(), wanted.as_bytes());
}

/// A script with these lines before its command, and the site's configuration.
fn with_lines(site: &Site, name: &str, lines: &str, command: &str) -> PathBuf {
    let path = site.out.join(name);
    let config = site.config.display();
    fs::write(&path, format!("#!/bin/bash\n#FB config={config}\n{lines}\n{command}\n")).unwrap();
    path
}

/// `forebay` with a script and its words.
fn forebay(site: &Site, words: &[&str], script: &Path, rest: &[&str]) -> Command {
    let mut command = site.command(&site.store, FOREBAY);
    command.args(words).arg(script).args(rest);
    command
}

#[test]
fn lines_of_a_script_stage_in_run_it_and_stage_out() {
    let site = Site::new(&LAZY);
    fs::create_dir(site.store.join("in")).unwrap();
    fs::create_dir(site.store.join("results")).unwrap();
    fs::write(site.store.join("in/a b"), "data\n".repeat(10_000)).unwrap();
    let store = site.store.display();
    let lines = format!("#FB stage_in=\"{store}/in/a b\"\n#FB stage_out={store}/results");
    let script = with_lines(&site, "good", &lines, "cp 'in/a b' results/$1; exit $2");

    let checked = site.end(forebay(&site, &["check"], &script, &[])).expect(0);
    assert!(checked.stdout.contains("good: good"), "{checked:?}");
    let ran = site.end(forebay(&site, &["batch"], &script, &["b", "0"])).expect(0);
    let said = ["node manager ", "staged in 1 file", "stopped 1 node manager"];
    assert!(said.iter().all(|said| ran.stdout.contains(said)), "{ran:?}");
    let wanted = "data\n".repeat(10_000);
    assert_eq!(fs::read_to_string(site.store.join("results/b")).unwrap(), wanted);
    assert!(site.pools().is_empty());

    // A script that fails has its results on the store, and its status.
    site.end(forebay(&site, &["batch"], &script, &["c", "3"])).expect(3);
    assert_eq!(fs::read_to_string(site.store.join("results/c")).unwrap(), wanted);
    let lines = format!("#FB stage_out={store}/missing");
    let script = with_lines(&site, "missing", &lines, "true");
    let ran = site.end(forebay(&site, &["batch"], &script, &[])).expect(1);
    assert!(ran.stderr.contains("missing"), "{ran:?}");

    // A manager that was there before goes on.
    let config = site.config.to_str().unwrap();
    let mut up = site.command(&site.store, FOREBAY);
    up.args(["up", "--config", config]);
    site.end(up).expect(0);
    let ran = site.end(forebay(&site, &["batch"], &site.out.join("good"), &["d", "0"])).expect(0);
    assert!(!ran.stdout.contains("stopped"), "{ran:?}");
    assert_eq!(site.pools().len(), 1);
    let ended = site.end(forebay(&site, &["batch", "--end"], &site.out.join("good"), &[]));
    assert!(ended.expect(0).stdout.contains("goes on"));
    let mut down = site.command(&site.store, FOREBAY);
    down.args(["down", "--config", config]);
    site.end(down).expect(0);
    assert!(site.pools().is_empty());

    // Below a link, and not there when the job begins.
    let link = site.out.join("link");
    std::os::unix::fs::symlink(&site.store, &link).unwrap();
    let lines = format!("#FB stage_out={}/later/results", link.display());
    let script = with_lines(&site, "linked", &lines, "mkdir -p later/results");
    site.end(forebay(&site, &["batch"], &script, &[])).expect(0);
    assert!(site.pools().is_empty());
}

#[test]
fn jobs_of_one_directory_share_a_manager_that_ends_with_the_last() {
    let site = Site::new(&LAZY);
    let command = "touch $OUT/begun-$1; until [ -e $OUT/go-$1 ]; do sleep 0.02; done; seq 1000 > $1\n\
                   touch $OUT/written-$1; until [ -e $OUT/end-$1 ]; do sleep 0.02; done";
    let script = with_lines(&site, "shared", "", command);
    let mark = |what: &str, name: &str| site.out.join(format!("{what}-{name}"));
    let go = |what: &str, name: &str| fs::write(mark(what, name), "").unwrap();
    let await_mark = |what: &str, name: &str| {
        wait_for("a job", LONG, || mark(what, name).exists().then_some(()));
    };
    let begin = |command: Command, name: &str| {
        let running = site.start(command);
        await_mark("begun", name);
        running
    };
    // A run has started it.
    let mut run = site.command(&site.store, FOREBAY);
    run.args(["run", "--config", site.config.to_str().unwrap(), "--", "sh"]);
    run.args([script.to_str().unwrap(), "run"]);
    let run = begin(run, "run");
    let [first, second] =
        ["first", "second"].map(|name| begin(forebay(&site, &["batch"], &script, &[name]), name));
    let end = |running: crate::harness::Running, name: &str| {
        go("go", name);
        go("end", name);
        running.end().expect(0)
    };
    end(run, "run");
    let ended = end(first, "first");
    assert!(ended.stdout.contains("serves already"), "{ended:?}");
    assert!(ended.stdout.contains("goes on"), "{ended:?}");
    assert!(!ended.stderr.contains("without buffering"), "{ended:?}");
    // What the second writes from now on is buffered still.
    go("go", "second");
    await_mark("written", "second");
    let length = |name: &str| fs::metadata(site.store.join(name)).unwrap().len();
    assert_eq!(length("second"), 0, "it is on the store already");
    let ended = end(second, "second");
    assert!(ended.stdout.contains("stopped 1 node manager"), "{ended:?}");
    for name in ["run", "first", "second"] {
        assert_eq!(length(name), 3893, "{name}");
    }
    assert!(site.pools().is_empty());
}

#[test]
fn a_wrong_line_of_a_script_is_refused_before_anything_is_run() {
    let site = Site::new(&LAZY);
    let (elsewhere, store) = (site.out.display(), site.store.display());
    let ran = site.out.join("ran");
    let command = format!("touch {}", ran.display());
    for (lines, says) in [
        ("#FB stagein=/a".to_owned(), "wrong:3: stagein is no key"),
        (format!("\n#FB stage_in={elsewhere}"), "wrong:4: "),
        ("#FB config=/missing.toml".to_owned(), "wrong:3: config is given a second time"),
        (format!("#FB stage_out={store}/missing/../../new"), "is in no buffered directory"),
        ("#FB shell=/missing/sh".to_owned(), "wrong:3: shell=/missing/sh: No such file"),
    ] {
        let script = with_lines(&site, "wrong", &lines, &command);
        for verb in ["check", "batch"] {
            let refused = site.end(forebay(&site, &[verb], &script, &[])).expect(125);
            assert!(refused.stderr.contains(says), "{verb}: {lines}: {refused:?}");
        }
    }
    // Programs on the other nodes would find no node manager.
    let script = with_lines(&site, "several", "", &command);
    let mut several = forebay(&site, &["batch"], &script, &[]);
    several.env("SLURM_HET_SIZE", "2");
    let refused = site.end(several).expect(125);
    assert!(refused.stderr.contains("jobs of one node"), "{refused:?}");
    // Below the command it is no line of ours, and that is said.
    let script = with_lines(&site, "below", "true\n#FB stagein=/a", &command);
    let checked = site.end(forebay(&site, &["check"], &script, &[])).expect(0);
    assert!(checked.stdout.contains("below:4: #FB below the first command"), "{checked:?}");
    // What was meant to be a line is a comment, and that is said.
    let script = with_lines(&site, "nearly", &format!("# FB stage_in={store}"), "true");
    let says = "nearly:3: this is a comment; if it is meant for Forebay, write `#FB stage_in=...`";
    let checked = site.end(forebay(&site, &["check"], &script, &[])).expect(0);
    assert!(checked.stdout.contains(says), "{checked:?}");
    let batch = site.end(forebay(&site, &["batch"], &script, &[])).expect(0);
    assert!(batch.stderr.contains(says), "{batch:?}");
    // Another job may make it before this one begins.
    let script = with_lines(&site, "later", &format!("#FB stage_in={store}/later"), &command);
    let checked = site.end(forebay(&site, &["check"], &script, &[])).expect(0);
    assert!(checked.stdout.contains("later:3: "), "{checked:?}");
    assert!(checked.stdout.contains("/later is not there now"), "{checked:?}");
    assert!(!ran.exists() && site.pools().is_empty());
    // A script that comes from a pipe is one.
    for given in ["\"$0\" check <(cat \"$1\")", "cat \"$1\" | \"$0\" check /dev/stdin"] {
        let mut piped = site.command(&site.store, "bash");
        piped.args(["-c", given, site.program()]).arg(&script);
        let checked = site.end(piped).expect(0);
        assert!(
            checked.stdout.contains(":3: ") && checked.stdout.contains(": good\n"),
            "{checked:?}"
        );
    }
}

#[test]
fn a_script_with_lines_that_is_ended_has_all_on_the_store() {
    let site = Site::new(&LAZY);
    let command = "seq 100000 > part; touch $OUT/go; exec sleep 100";
    let script = with_lines(&site, "ended", "", command);
    let running = site.start(forebay(&site, &["batch"], &script, &[]));
    wait_for("the script", LONG, || site.out.join("go").exists().then_some(()));
    crate::harness::kill(running.pid(), Signal::TERM);
    running.end().expect(143);
    assert_eq!(fs::metadata(site.store.join("part")).unwrap().len(), 588_895);
    assert!(site.pools().is_empty());
}

#[test]
fn jobs_of_slurm_are_staged_by_their_lines_and_drained_after_a_kill() {
    let site = Site::new(&LAZY);
    let Some(cluster) = Cluster::start(&site) else { return };
    // What is drained here, the lines of the script say, and not the node's settings.
    let settings = cluster.folder.join("hooks/forebay.env");
    let text = fs::read_to_string(&settings).unwrap();
    let kept = text.lines().filter(|line| !line.starts_with("FOREBAY_JOB_CONFIG="));
    fs::write(&settings, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();

    for folder in ["input", "results"] {
        fs::create_dir(site.store.join(folder)).unwrap();
    }
    fs::write(site.store.join("input/a"), "data\n".repeat(10_000)).unwrap();
    let example = fs::read_to_string(scripts().join("directives.sbatch")).unwrap();
    let example = example.replace("/lustre/project", site.store.to_str().unwrap());
    let script = site.out.join("example");
    fs::write(&script, example).unwrap();
    let words = [script.to_str().unwrap(), "cp", "input/a", "results/b"];
    let said = cluster.run(&["--mem=300"], &words);
    assert!(said.contains("staged in 1 file") && said.contains("stopped 1 node manager"), "{said}");
    let stored = fs::read(site.store.join("results/b")).unwrap();
    assert_same_bytes("b", &stored, "data\n".repeat(10_000).as_bytes());

    let config = site.config.display();
    let job = |name: &str, lines: &str, command: &str| {
        let script = site.out.join(name);
        let first = "#!/usr/bin/env -S forebay batch\n#SBATCH --nodes=1";
        fs::write(&script, format!("{first}\n#FB config={config}\n{lines}\n{command}\n")).unwrap();
        let output = format!("--output={}", site.out.join(format!("{name}.said")).display());
        (script, output)
    };
    let (script, output) = job("wrong", "#FB stagein=/a", "touch $OUT/ran");
    let words = ["--wait", &output, script.to_str().unwrap()];
    let refused = site.end(cluster.command("sbatch", &words));
    assert_eq!(refused.code, 125, "{refused:?}");
    let said = fs::read_to_string(site.out.join("wrong.said")).unwrap();
    assert!(said.contains(":4: stagein is no key") && !site.out.join("ran").exists(), "{said}");

    // Another job of the user's on the node, of another directory, is no reason to leave it.
    let other = site.out.join("other");
    fs::create_dir(&other).unwrap();
    let beside = site.out.join("beside");
    let text = format!(
        "#!/usr/bin/env -S forebay batch\n#FB backing={}\ntouch $OUT/beside-begun\n\
         until [ -e $OUT/beside-end ]; do sleep 0.1; done\n",
        other.display()
    );
    fs::write(&beside, text).unwrap();
    let output = format!("--output={}", site.out.join("beside.said").display());
    let words = ["-w", "n1", &output, beside.to_str().unwrap()];
    site.end(cluster.command("sbatch", &words)).expect(0);
    let begun = site.out.join("beside-begun");
    wait_for("the job beside", LONG, || begun.exists().then_some(()));

    // In the epilog there is no variable of the task's number, and one of the site's by its
    // settings.
    let lines = format!("#FB stage_out={}/$SLURM_LOCALID", site.store.display());
    let (script, output) = job("killed", &lines, "seq 200000 > killed; touch $OUT/go; sleep 100");
    let (folder, name) = (site.config.parent().unwrap(), site.config.file_name().unwrap());
    let named = format!("$SITE_FOLDER/{}", name.display());
    let text = fs::read_to_string(&script).unwrap().replace(&config.to_string(), &named);
    fs::write(&script, text).unwrap();
    let text = fs::read_to_string(&settings).unwrap();
    let ours = format!("{text}FOREBAY_JOB_VARIABLES=(\"SITE_FOLDER={}\")\n", folder.display());
    fs::write(&settings, ours).unwrap();
    let words = ["--parsable", "-w", "n1", &output, script.to_str().unwrap()];
    let number = site.end(cluster.command("sbatch", &words)).expect(0).stdout.trim().to_owned();
    wait_for("the job's data", LONG, || site.out.join("go").exists().then_some(()));
    let length = || fs::metadata(site.store.join("killed")).unwrap().len();
    assert_eq!(length(), 0, "it is on the store already");
    // With the manager, as what tracks processes by control groups kills it.
    let said = fs::read_to_string(site.out.join("killed.said")).unwrap();
    let manager = said.split_once("node manager ").and_then(|(_, rest)| rest.split_once(' '));
    let manager: u32 = manager.and_then(|(pid, _)| pid.parse().ok()).expect(&said);
    site.end(cluster.command("scancel", &["--signal=KILL", "--full", &number])).expect(0);
    crate::harness::kill(manager, Signal::KILL);
    wait_for("the epilog's drain", LONG, || {
        (length() == 1_288_895 && site.pools().is_empty()).then_some(())
    });
    let said = site.end(cluster.command("squeue", &["-h", "-t", "running", "-o", "%j"])).stdout;
    assert_eq!(said.trim(), "beside", "{}", cluster.logs());
    fs::write(site.out.join("beside-end"), "").unwrap();
    wait_for("the jobs' end", LONG, || {
        let said = site.end(cluster.command("squeue", &["-h"])).stdout;
        said.trim().is_empty().then_some(())
    });
    cluster.await_idle();
    assert!(site.pools().is_empty(), "the epilog has left a pool: {}", cluster.logs());
}

#[test]
fn tasks_of_srun_are_buffered_by_the_plugin() {
    if !Path::new("/usr/include/slurm/spank.h").is_file() {
        return skip("there is no slurm/spank.h, of libslurm-dev");
    }
    if !have(&["gcc", "srun"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let Some(cluster) = Cluster::start(&site) else { return };
    let source = examples().join("../../packaging/slurm/forebay_spank.c");
    let plugin = cluster.folder.join("forebay_spank.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    assert!(gcc.arg(&plugin).arg(source).status().unwrap().success());
    let line = format!("required {} {FOREBAY}\n", plugin.display());
    fs::write(cluster.folder.join("plugstack.conf"), line).unwrap();

    let asked = format!("--forebay={}", site.config.display());
    let said = "test -n \"$LD_PRELOAD\"; echo $?; seq 100000 > task-$SLURM_PROCID; exit 3";
    let srun = cluster.command("srun", &["-N1", "-n2", &asked, "sh", "-c", said]);
    let ran = site.end(srun).expect(3);
    assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), ["0", "0"], "{ran:?}");
    for name in ["task-0", "task-1"] {
        assert_eq!(fs::metadata(site.store.join(name)).unwrap().len(), 588_895, "{ran:?}");
    }
    // Of a batch job the steps, and not the script.
    let script = site.out.join("steps");
    let text = "#!/bin/bash\necho script $LD_PRELOAD\nsrun sh -c 'echo step $LD_PRELOAD'\n";
    fs::write(&script, text).unwrap();
    let said = cluster.run(&["-N1", &asked], &[script.to_str().unwrap()]);
    assert!(said.lines().any(|line| line == "script"), "{said}");
    assert!(said.contains("step /"), "{said}");

    // What is no path is refused by srun, and what cannot be read by the command.
    for (path, code, says) in [("store", 255, "absolute path"), ("/missing.toml", 125, "missing")] {
        let asked = format!("--forebay={path}");
        let ran = site.end(cluster.command("srun", &["-N1", &asked, "touch", "ran"])).expect(code);
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
    assert!(!site.store.join("ran").exists());
    let plain = cluster.command("srun", &["-N1", "sh", "-c", "echo plain $LD_PRELOAD"]);
    assert_eq!(site.end(plain).expect(0).stdout, "plain\n");
}
