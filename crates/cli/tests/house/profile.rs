//! `forebay profile` measures, leaves nothing behind, and writes a configuration that runs.

use crate::harness::{self, Site, USUAL, kill, wait_for, works};
use forebay_node::Config;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn what_it_writes_can_be_run() {
    let site = Site::new(&USUAL);
    let (store, nvme) = (site.store.to_str().unwrap(), site.nvme.to_str().unwrap());
    let file = site.root().join("measured.toml");
    let words = ["profile", "--seconds", "1", "--dir", store, "--dir", nvme];
    let mut command = site.forebay(&words);
    command.args(["--backing", store, "--write"]).arg(&file);
    let ran = site.end(command).expect(0);
    for wanted in ["memory, ", store, nvme, "sequential write", "random read", "4.00 KiB x 16"] {
        assert!(ran.stdout.contains(wanted), "no {wanted:?} in {}", ran.stdout);
    }
    assert!(is_empty(&site.store) && is_empty(&site.nvme), "something was left behind");

    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("bandwidth = { read = ") && text.contains("latency = "), "{text}");
    // A small machine's RAM tier is as large as /dev/shm allows; this one needs little.
    let small = text.lines().map(|line| match line.starts_with("capacity") {
        true => "capacity = \"64MiB\"\n".to_owned(),
        false => format!("{line}\n"),
    });
    fs::write(&file, small.collect::<String>()).unwrap();
    let script = "echo measured > result; \"$FOREBAY\" status > $OUT/status";
    let words = ["run", "--config", file.to_str().unwrap(), "--", "bash", "-c", script];
    site.end(site.forebay(&words)).expect(0);
    assert_eq!(fs::read_to_string(site.store.join("result")).unwrap(), "measured\n");
    assert!(fs::read_to_string(site.out.join("status")).unwrap().contains("count opens"));

    let mut again = site.forebay(&["profile", "--quick", "--dir", nvme, "--write"]);
    again.arg(&file);
    let refused = site.end(again).expect(125);
    assert!(refused.stderr.contains("exists; remove it or name another"), "{refused:?}");
}

#[test]
fn it_says_what_it_leaves_out_and_why() {
    let site = Site::new(&USUAL);
    let (store, gone) = (site.store.to_str().unwrap(), site.root().join("gone"));
    let words = ["profile", "--seconds", "1", "--dir", store, "--dir", gone.to_str().unwrap()];
    let ran = site.end(site.forebay(&words)).expect(0);
    assert!(
        ran.stdout.contains("left out\n") && ran.stdout.contains("gone No such file"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("[[backing]]"), "the slowest is the backing store: {ran:?}");
    let none = site.end(site.forebay(&["profile", "--dir", gone.to_str().unwrap()])).expect(125);
    assert!(none.stderr.contains("nothing can be measured"), "{none:?}");
}

/// With each MPI that is there, and what it prints is a part of a configuration.
#[test]
fn messages_of_mpi_are_measured() {
    let beside =
        harness::python_with("sys").map(|python| Path::new(&python).with_file_name("mpiexec"));
    let beside = beside.map(|launcher| launcher.to_string_lossy().into_owned());
    let usual = ["mpiexec.mpich", "mpiexec.openmpi"].map(str::to_owned);
    let launchers = beside.into_iter().chain(usual);
    let there: Vec<_> = launchers.filter(|launcher| works(&[launcher, "--version"])).collect();
    if there.is_empty() {
        return harness::skip("neither MPICH nor Open MPI");
    }
    let site = Site::new(&USUAL);
    for launcher in there {
        let mut command = Command::new(&launcher);
        if launcher.ends_with("openmpi") {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", "3", env!("CARGO_BIN_EXE_forebay"), "profile", "--mpi"]);
        let ran = site.end(command).expect(0);
        assert!(ran.stdout.contains("# Messages within a node, measured"), "{ran:?}");
        assert_eq!(ran.stdout.matches("[mpi]").count(), 1, "one rank speaks: {ran:?}");
        let file = site.root().join("mpi.toml");
        let usual = fs::read_to_string(&site.config).unwrap();
        fs::write(&file, format!("{usual}\n{}", ran.stdout)).unwrap();
        let messages = Config::load(&file, &[]).unwrap_or_else(|e| panic!("{e}")).messages;
        // Between a slow loopback and more than any memory.
        let within = messages.within;
        assert!((50..50_000_000).contains(&within.latency_ns), "{messages:?}");
        assert!((10_000_000..1_000_000_000_000).contains(&within.bandwidth), "{messages:?}");
        assert_eq!(messages.between.bandwidth, 0, "{messages:?}");
    }
}

#[test]
fn what_is_no_rank_of_mpi_is_told_how_to_be_one() {
    let site = Site::new(&USUAL);
    let alone = site.end(site.forebay(&["profile", "--mpi"])).expect(125);
    assert!(alone.stderr.contains("mpiexec -n 2 forebay profile --mpi"), "{alone:?}");
    for (library, why) in [("/no/such/libmpi.so", "is not found"), ("libc.so.6", "is neither of")] {
        let mut command = site.forebay(&["profile", "--mpi", "--mpi-library", library]);
        command.env("PMI_RANK", "0");
        let refused = site.end(command).expect(125);
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let site = Site::new(&USUAL);
    let file = site.root().join("measured.toml");
    let mut command = site.forebay(&["profile", "--seconds", "60", "--dir"]);
    command.arg(&site.nvme).arg("--write").arg(&file);
    let running = site.start(command);
    let nvme = format!("measuring {}", site.nvme.display());
    wait_for("the device's turn", Duration::from_secs(60), || {
        running.stderr().contains(&nvme).then_some(())
    });
    kill(running.pid(), Signal::INT);
    assert_eq!(running.end().code, 130);
    assert!(is_empty(&site.nvme) && is_empty(&site.store) && !file.exists());
}
