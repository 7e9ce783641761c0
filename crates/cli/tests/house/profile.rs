//! `forebay profile` measures, leaves nothing behind, and writes a configuration that runs.

use crate::harness::{Site, USUAL, kill, wait_for};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
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
