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
