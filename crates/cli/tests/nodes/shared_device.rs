//! One emulated store under the node managers of several nodes: together they get what one gets.

use crate::harness::{self, wait_for};
use crate::namespaces::Nodes;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;

/// Bytes per second of the store in both directions.
const SPEED: u64 = 32 << 20;
/// Where a device's file has the moment at which the device is free again.
const NEXT_FREE: usize = 48;

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The moment to which a device is booked, by the clock of [`now_ns`]; 0 before it is made.
fn booked(device: &Path) -> u64 {
    let bytes = fs::read(device).unwrap_or_default();
    let word = bytes.get(NEXT_FREE..NEXT_FREE + 8).unwrap_or(&[0; 8]);
    u64::from_le_bytes(word.try_into().unwrap())
}

fn backing(device: &str, mode: &str) -> String {
    format!(
        "mode = \"{mode}\"\nemulate = {{ bandwidth = \"{SPEED}B/s\", latency = \"1ms\", shared = \"{device}\" }}"
    )
}

/// Nothing here depends on how fast the machine is: what a transfer books is a part of the device's
/// time that no other transfer gets, and a program goes on when that is over.
#[test]
fn several_managers_have_one_emulated_store() {
    let Some(nodes) = Nodes::new(2) else { return };
    const MIB: u64 = 16;
    let device = nodes.root().join("device");
    let bypass =
        nodes.configure("bypass.toml", "trigger = \"on-exit\"", &backing("device", "bypass"));
    let buffered =
        nodes.configure("buffered.toml", "trigger = \"on-exit\"", &backing("device", "buffered"));
    let dd = |name: &str| format!("dd if=/dev/zero of={name} bs=1M count={MIB} status=none");

    // Programs that write to the store themselves, on both nodes at once.
    let began = now_ns();
    let runs: Vec<_> = nodes
        .iter()
        .map(|node| node.spawn_buffered(&bypass, &[], &dd(&node.to_string())))
        .collect();
    runs.into_iter().for_each(|run| drop(run.end().expect(0)));
    let alone = (MIB << 20) * 1_000_000_000 / SPEED;
    assert!(booked(&device) >= began + 2 * alone, "both had the whole bandwidth");
    assert!(now_ns() >= began + 2 * alone, "they went on before the store was free");

    // One manager that flushes, and a program of the other that reads.
    let began = now_ns();
    let flushed = nodes[0].spawn_buffered(&buffered, &[], &dd("flushed"));
    let read = nodes[1].spawn_buffered(&bypass, &[], "cat n0 | cksum");
    flushed.end().expect(0);
    let sum = read.end().expect(0).stdout;
    assert_eq!(sum, nodes[1].run("cksum < n0").expect(0).stdout);
    assert!(booked(&device) >= began + 2 * alone, "one of both did not pay");

    // It is one device: nothing of it is in the pools, and what was booked stays with it.
    let before = booked(&device);
    nodes[1].run_buffered(&bypass, "echo more > more").0.expect(0);
    assert!(booked(&device) > before);
    for node in nodes.iter() {
        assert_eq!(fs::metadata(nodes.store.join(node.to_string())).unwrap().len(), MIB << 20);
    }
}

#[test]
fn a_device_that_cannot_be_shared_is_refused_by_manager_and_program() {
    let Some(nodes) = Nodes::new(1) else { return };
    let node = &nodes[0];
    let device = nodes.root().join("device");
    let config = nodes.configure("one.toml", "trigger = \"on-exit\"", &backing("device", "bypass"));
    node.run_buffered(&config, "echo text > file").0.expect(0);

    let faster = backing("device", "bypass").replace("1ms", "2ms");
    let other = nodes.configure("other.toml", "trigger = \"on-exit\"", &faster);
    let ran = node.spawn_buffered(&other, &[], "echo new > file").end();
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.stderr.contains("(backing[0].emulate.shared): it is of a device with"), "{ran:?}");
    assert!(ran.stderr.contains("give the same bandwidth and latency"), "{ran:?}");
    // A program of a manager that runs: one that would not share the device does not start.
    let script = "step moved; cat file; echo \"code $?\"; step back; cat file";
    let run = node.spawn_buffered(&config, &[], script);
    node.at("moved");
    let aside = nodes.root().join("aside");
    fs::rename(&device, &aside).unwrap();
    node.past("moved");
    node.at("back");
    fs::rename(&aside, &device).unwrap();
    node.past("back");
    let ran = run.end().expect(0);
    assert_eq!(ran.stdout, "code 126\ntext\n");
    assert!(ran.stderr.contains("backing[0].emulate.shared names: "), "{ran:?}");

    fs::write(&device, "notes").unwrap();
    let ran = node.spawn_buffered(&config, &[], "true").end();
    assert!(ran.code == 125 && ran.stderr.contains("no file of a shared device"), "{ran:?}");
    assert_eq!(harness::sees(&device), "notes");
    fs::remove_file(&device).unwrap();
    fs::create_dir(&device).unwrap();
    let ran = node.spawn_buffered(&config, &[], "true").end();
    assert!(ran.code == 125 && ran.stderr.contains("not a regular file"), "{ran:?}");
    let none = backing("missing/device", "bypass");
    let none = nodes.configure("none.toml", "trigger = \"on-exit\"", &none);
    let ran = node.spawn_buffered(&none, &[], "true").end();
    assert!(ran.code == 125 && ran.stderr.contains("name a file that can be made"), "{ran:?}");
}

/// What a killed process has booked passes; it holds nothing.
#[test]
fn killed_programs_and_managers_leave_the_device_to_others() {
    let Some(nodes) = Nodes::new(2) else { return };
    let device = nodes.root().join("device");
    let config = nodes.configure("one.toml", "trigger = \"on-exit\"", &backing("device", "bypass"));
    let endless =
        "while :; do dd if=/dev/zero of=mine bs=1M count=4 conv=notrunc status=none; done";
    let run = nodes[0].spawn_buffered(&config, &[], endless);
    wait_for("transfers", harness::LONG, || (booked(&device) > now_ns()).then_some(()));
    nodes[0].kill_all();
    run.end();
    // No more is booked than what was under way: a transfer of each of two processes, or so.
    let most = now_ns() + 16 * (1 << 20) * 1_000_000_000 / SPEED;
    assert!(booked(&device) < most, "killed processes hold the device");
    nodes[1].run_buffered(&config, "echo text > file; cat file").0.expect(0);
    assert_eq!(harness::sees(&nodes.store.join("file")), "text\n");
    // What the killed manager has left.
    nodes[0].spawn(&[harness::FOREBAY, "recover"]).end().expect(0);
}
