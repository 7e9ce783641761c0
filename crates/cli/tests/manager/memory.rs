//! The memory of the RAM tier: there when it is written to, given back when it is idle.

use crate::harness::{LIMIT, Setup, Site, Status, USUAL, wait_for, with_mounts};
use std::fs;
use std::os::unix::fs::MetadataExt;

const MIB: u64 = 1 << 20;

/// Nothing reaches the store before the end; what is free for a third of a second is given back.
const SHORT: Setup = Setup {
    ram: "512MiB",
    flush: "trigger = \"on-exit\"\n[placement]\ngive_back = \"300ms\"",
    ..USUAL
};

/// Bytes of memory that the pool of a site takes.
fn resident(site: &Site) -> u64 {
    let blocks = |path: &std::path::PathBuf| fs::metadata(path).map_or(0, |found| found.blocks());
    site.pools().iter().map(blocks).sum::<u64>() * 512
}

/// Waits until a site's pool takes less than so many bytes.
fn shrinks(site: &Site, most: u64) {
    wait_for("memory that is given back", LIMIT, || (resident(site) < most).then_some(()));
}

fn assert_nothing_around(status: &Status) {
    for name in ["write_around", "backpressure"] {
        assert_eq!(status.count(name), 0, "{}", status.text);
    }
}

#[test]
fn the_first_burst_on_a_fresh_manager_stays_in_ram() {
    let site = Site::new(&Setup { flush: "trigger = \"on-exit\"", ..SHORT });
    let script = "for i in {1..600}; do echo $i > small-$i; done\n\
         dd if=/dev/zero of=large bs=1M count=192 status=none\n\
         $FOREBAY status --json > $OUT/status.json";
    let status = site.same(script);
    assert_nothing_around(&status);
    let text = fs::read_to_string(site.out.join("status.json")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ram = &status[0]["tiers"][0];
    let bytes = |key: &str| ram[key].as_u64().unwrap();
    assert_eq!(bytes("used"), 600 * 4096 + 192 * MIB, "{ram}");
    assert_eq!((bytes("capacity"), bytes("configured")), (512 * MIB, 512 * MIB), "{ram}");
    // What is used, what each process has taken for itself, and what is kept ahead.
    assert!(bytes("backed") <= bytes("used") + 88 * MIB, "more than is wanted: {ram}");
}

#[test]
fn little_use_takes_little_memory() {
    let site = Site::new(&SHORT);
    let script = "echo few > file; sleep 0.5; $FOREBAY status --json > $OUT/status.json";
    site.run_buffered(script).0.expect(0);
    let text = fs::read_to_string(site.out.join("status.json")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status[0]["tiers"][0]["backed"], 32 * MIB + 4096, "{status}");
}

#[test]
fn memory_that_is_free_for_long_is_given_back_and_comes_again() {
    let site = Site::new(&SHORT);
    let script = "write() { seq -f \"%0240.0f of $1\" 1000000 > $1; }\n\
         for round in 1 2; do write file-$round; cksum file-$round\n\
         : > $OUT/written-$round; while [ -e $OUT/written-$round ]; do sleep 0.02; done\n\
         rm file-$round\n\
         : > $OUT/removed-$round; while [ -e $OUT/removed-$round ]; do sleep 0.02; done; done\n\
         write last; cksum last";
    let running = site.start(site.buffered(&["bash", "-c", script]));
    let takes = |name: String| {
        let mark = site.out.join(name);
        wait_for("a step", LIMIT, || mark.exists().then_some(()));
        mark
    };
    for round in 1..=2 {
        let mark = takes(format!("written-{round}"));
        assert!(resident(&site) > 230 * MIB, "{} bytes", resident(&site));
        fs::remove_file(mark).unwrap();
        let mark = takes(format!("removed-{round}"));
        // The free buckets that are kept ahead, those of processes, and the tables.
        shrinks(&site, 100 * MIB);
        fs::remove_file(mark).unwrap();
    }
    let ran = running.end().expect(0);
    let plain = site.run_plainly(
        "for name in file-1 file-2 last; do \
         seq -f \"%0240.0f of $name\" 1000000 > $name; cksum $name; done; rm file-*",
    );
    assert_eq!(ran.stdout, plain.stdout);
    site.assert_same_files();
}

/// What is in use stays, whatever is given back around it.
#[test]
fn what_lies_between_free_pieces_stays() {
    let site = Site::new(&SHORT);
    let script = "for i in {1..80}; do seq $((i * 10000)) > file-$i; done\n\
         for i in {1..80}; do [ $((i % 7)) = 0 ] || rm file-$i; done; sleep 2\n\
         for i in {1..40}; do seq $((i * 10000)) > again-$i; done\n\
         cksum file-* again-*";
    assert_nothing_around(&site.same(script));
}

/// A manager that is killed between any two steps of growing and shrinking.
#[test]
fn a_manager_that_dies_while_it_grows_or_shrinks_loses_and_leaks_nothing() {
    if !cfg!(debug_assertions) {
        return crate::harness::skip("a release build has no points to crash at");
    }
    let points = [
        ("memory.backed", 3),
        ("memory.restored", 20),
        ("map.bits-of-all-taken", 3),
        ("map.one-of-all-claimed", 21),
        ("memory.retired", 2),
        ("memory.idle-retired", 1),
        ("memory.given-back", 1),
    ];
    for (point, number) in points {
        let site = Site::new(&SHORT);
        // The pool lies in pieces when it is taken over: some are used, some free, some gone.
        let script = "seq 3000000 > first; seq 2000000 > between; seq 3000000 > second\n\
             rm first; for i in {1..500}; do [ -e $OUT/killed ] && break; sleep 0.02; done\n\
             seq 1000000 > third; sync; true";
        let mut command = site.buffered(&["bash", "-c", script]);
        command
            .env("FOREBAY_CRASH", format!("{point}:{number}"))
            .env("FOREBAY_CRASH_IN", "node")
            .env("FOREBAY_CRASH_ONCE", site.out.join("killed"));
        let ran = site.end(command);
        let died = fs::read_to_string(site.out.join("killed")).unwrap_or_default();
        assert!(died.contains(point), "{point} was not passed: {ran:?}\n{}", site.log());
        let script = "seq 2500000 > fourth; rm -f between; seq 100000 > fifth\n\
             cksum second third fourth fifth > $OUT/sums; : > $OUT/done\n\
             while [ -e $OUT/done ]; do sleep 0.02; done";
        let running = site.start(site.buffered(&["bash", "-c", script]));
        let mark = site.out.join("done");
        wait_for("the second run", LIMIT, || mark.exists().then_some(()));
        // What is in use, what is kept ahead, what processes have for themselves, and the tables.
        shrinks(&site, 160 * MIB);
        fs::remove_file(mark).unwrap();
        running.end().expect(0);
        let plain =
            "seq 3000000 > second; seq 1000000 > third; seq 2500000 > fourth; seq 100000 > fifth";
        site.run_plainly(plain).expect(0);
        site.assert_same_files();
    }
}

/// Memory that was given back may be another program's by the time it is wanted again.
#[test]
fn what_was_given_back_to_a_full_shared_memory_is_done_without() {
    let site = Site::new(&SHORT);
    let script = "mount -t tmpfs -o size=300m none /dev/shm; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            seq 20000000 > first; rm first
            for i in $(seq 500); do [ $(du -m /dev/shm | cut -f1) -lt 120 ] && echo less && break; sleep 0.02; done
            dd if=/dev/zero of=/dev/shm/other bs=1M status=none 2> /dev/null
            seq 20000000 > second; cksum second
            rm /dev/shm/other; sleep 3; seq 21000000 > third; cksum third second'; code=$?
        seq 20000000 | cksum; seq 21000000 | cksum; cksum second third; exit $code";
    let Some(ran) = with_mounts(&site, script) else { return };
    let ran = ran.expect(0);
    let sums: Vec<_> =
        ran.stdout.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    let [less, second, third, again, plain, plain_third, drained, drained_third] = sums[..] else {
        panic!("{ran:?}")
    };
    assert_eq!(less, "less", "{ran:?}");
    assert_eq!([second, again, drained], [plain; 3], "{ran:?}");
    assert_eq!([third, drained_third], [plain_third; 2], "{ran:?}");
    assert!(site.log().contains("the RAM tier stays at"), "{}", site.log());
    assert!(site.log().contains("the RAM tier grows again"), "{}", site.log());
}
