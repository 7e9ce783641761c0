//! Small files take as much of a tier as they have pages.

use crate::harness::{LAZY, LONG, Setup, Site, Status, skip, wait_for, with_mounts};
use std::os::unix::fs::MetadataExt;

const PAGE: u64 = 4096;
const SLOT: u64 = 64 * PAGE;
const MIB: u64 = 1 << 20;

/// Bytes in use of the RAM tier, by a JSON status.
fn used(json: &str) -> u64 {
    used_of(json, 0)
}

/// Bytes in use of a tier.
fn used_of(json: &str, tier: usize) -> u64 {
    let tiers = &json[json.find("\"tiers\"").unwrap()..];
    let of = tiers.split("\"used\"").nth(tier + 1).unwrap();
    let number = of.split([':', ',', '}']).nth(1).unwrap();
    number.trim().parse().unwrap_or_else(|_| panic!("{json}"))
}

/// Runs a script that says what is used in between by `look NAME`.
fn run(site: &Site, script: &str) -> Status {
    let look = "look() { \"$FOREBAY\" status --json > $OUT/$1 || exit 9; }";
    let (ran, status) = site.run_buffered(&format!("set -e; {look}; {script}"));
    ran.expect(0);
    status
}

fn seen(site: &Site, name: &str) -> u64 {
    used(&std::fs::read_to_string(site.out.join(name)).unwrap())
}

#[test]
fn a_thousand_tiny_files_take_a_page_each() {
    let site = Site::new(&LAZY);
    let script = "seq 10000 10999 | split -a 4 -d -l 1 - tiny; look tiny; cat tiny* | cksum; \
        for n in 0 1 2 3; do sed -i s/1/2/ tiny000$n; done; look again; rm tiny*";
    let status = run(&site, script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    for name in ["tiny", "again"] {
        let bytes = seen(&site, name);
        assert!((1000 * PAGE..=1100 * PAGE).contains(&bytes), "{name}: {bytes} bytes");
    }
    site.run_plainly("seq 10000 10999 | split -a 4 -d -l 1 - tiny; rm tiny*").expect(0);
    site.assert_same_files();
}

/// More than half of the tier: with a bucket each they would take fifteen times of it.
#[test]
fn files_of_all_small_sizes_take_at_most_twice_their_bytes() {
    let site = Site::new(&LAZY);
    let make = |from: &str| {
        format!(
            "for kib in 3 7 14 30 58 90; do head -c 4M {from} | split -a 4 -d -b ${{kib}}k - f$kib-; done"
        )
    };
    let script =
        format!("head -c 4M /dev/urandom > $OUT/random; {}; look all", make("$OUT/random"));
    let status = run(&site, &script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    let files: Vec<_> = std::fs::read_dir(&site.store).unwrap().collect();
    let bound = 2 * 24 * MIB + PAGE * files.len() as u64;
    let bytes = seen(&site, "all");
    assert!(files.len() > 2000 && bytes >= 24 * MIB && bytes <= bound, "{bytes} of {bound}");
    site.run_plainly(&make("$OUT/random")).expect(0);
    site.assert_same_files();
}

/// The memory of the pool's file itself follows, and comes back when the files are gone.
#[test]
fn memory_goes_from_large_files_to_small_ones_and_back() {
    let site = Site::new(&Setup { ram: "32MiB", ..LAZY });
    let run = site.start(site.buffered(&[
        "bash",
        "-c",
        "wait_for() { until [ -e $OUT/$1 ]; do sleep 0.01; done; }; set -e; wait_for go\n\
         head -c 20M /dev/urandom > $OUT/random; split -a 4 -d -b 60k $OUT/random small-; : > $OUT/small\n\
         wait_for next; cat small-* | cmp - $OUT/random; rm small-*; : > $OUT/removed; wait_for large\n\
         cp $OUT/random large; cmp large $OUT/random; : > $OUT/done; wait_for end",
    ]));
    let memory = || {
        let pools = site.pools();
        pools.first().map(|pool| pool.metadata().unwrap().blocks() * 512)
    };
    let is_there = |name: &str| site.out.join(name).exists().then_some(());
    let step = |name: &str| std::fs::write(site.out.join(name), "").unwrap();
    let tables = 10 * MIB;
    wait_for("the pool", LONG, || memory().filter(|&bytes| bytes > 0));
    step("go");
    wait_for("small files", LONG, || is_there("small"));
    let (with_small, json) =
        (memory().unwrap(), site.end(site.forebay(&["status", "--json"])).stdout);
    assert!((20 * MIB..42 * MIB).contains(&used(&json)), "{json}");
    assert!(with_small <= 32 * MIB + tables, "{with_small}");
    step("next");
    wait_for("their end", LONG, || is_there("removed"));
    let is_back = || {
        let json = site.end(site.forebay(&["status", "--json"])).stdout;
        (used(&json) == 0).then_some(())
    };
    wait_for("nothing to be in use", LONG, is_back);
    step("large");
    wait_for("a large file", LONG, || is_there("done"));
    step("end");
    run.end().expect(0);
}

/// A file begins small, and grows page by page; one shrinks, has holes, and grows again.
#[test]
fn files_grow_out_of_what_is_small() {
    let site = Site::new(&LAZY);
    site.same(
        "for n in {1..90}; do head -c 5000 /dev/zero | tr '\\0' $((n % 10)) >> grows; done\n\
         cksum < grows; head -c 300000 grows > copy; truncate -s 5000 copy; cat grows >> copy\n\
         echo far | dd of=copy bs=1 seek=120000 conv=notrunc status=none; cksum < copy\n\
         echo x | dd of=gap bs=1 seek=100000 status=none; echo y | dd of=gap bs=1 conv=notrunc status=none\n\
         truncate -s 200000 gap; echo z >> gap; cksum < gap; fallocate -p -o 4096 -l 90000 gap; cksum < gap",
    );
}

/// Programs that are killed between any two steps of getting pages leave none that count for ever.
#[test]
fn pages_of_programs_that_were_killed_come_back() {
    if !cfg!(debug_assertions) {
        return skip("a release build has no points to crash at");
    }
    let site = Site::new(&LAZY);
    // Each asks for more pages than a bucket has that is free.
    let script = "size=5000; for point in ready taken claiming claimed backed; do\n\
         FOREBAY_CRASH=sparse.$point:1 FOREBAY_CRASH_IN=client \
         dd if=/dev/zero of=victim-$point bs=$size count=1 status=none && code=0 || code=$?; echo $point $code >> $OUT/codes\n\
         size=$((size + 20000)); done; echo kept > kept; cksum kept; rm victim-*\n\
         for i in {1..1000}; do look after; grep -q '\"used\": *4096,' $OUT/after && break; sleep 0.02; done";
    let status = run(&site, script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    let codes = std::fs::read_to_string(site.out.join("codes")).unwrap();
    let wanted =
        ["ready", "taken", "claiming", "claimed", "backed"].map(|name| format!("{name} 137\n"));
    assert_eq!(codes, wanted.concat());
    assert_eq!(seen(&site, "after"), PAGE);
    assert_eq!(std::fs::read(site.store.join("kept")).unwrap(), b"kept\n");
}

/// A manager that is killed at each of `points` while small files come and go at a site of `make`.
fn loses_nothing_when_killed_at(points: &[&str], make: impl Fn() -> Site) {
    if !cfg!(debug_assertions) {
        return skip("a release build has no points to crash at");
    }
    for point in points {
        let site = make();
        let script = "seq 1500000 > $OUT/random; split -a 4 -d -b 20k $OUT/random first-; cat first-* | cksum\n\
             rm first-0*; for i in {1..400}; do [ -e $OUT/killed ] && break; sleep 0.02; done\n\
             split -a 4 -d -b 9k $OUT/random second-; cat second-* | cmp - $OUT/random; true";
        let mut command = site.buffered(&["bash", "-c", script]);
        command
            .env("FOREBAY_CRASH", point)
            .env("FOREBAY_CRASH_IN", "node")
            .env("FOREBAY_CRASH_ONCE", site.out.join("killed"));
        let ran = site.end(command);
        let died = std::fs::read_to_string(site.out.join("killed")).unwrap_or_default();
        assert!(
            died.contains(point.split(':').next().unwrap()),
            "{point}: {ran:?}\n{}",
            site.log()
        );
        let after = "cat second-* | cmp - $OUT/random && split -a 4 -d -b 30k $OUT/random third-";
        let (ran, _) = site.run_buffered(after);
        ran.expect(0);
        let plain = "for k in '9k second' '30k third'; do set -- $k; split -a 4 -d -b $1 $OUT/random $2-; done\n\
             split -a 4 -d -b 20k $OUT/random first-; rm first-0*";
        site.run_plainly(plain).expect(0);
        site.assert_same_files();
    }
}

/// A manager that is killed while it lends, takes back or gives up memory.
#[test]
fn a_manager_that_dies_while_it_lends_loses_nothing() {
    let points = ["lend.raised:2", "lend.lowered:1", "sparse.shrinking:9", "sparse.removed:9"];
    loses_nothing_when_killed_at(&points, || Site::new(&LAZY));
}

/// What cannot get a page goes elsewhere, and is what it would be without Forebay.
#[test]
fn small_files_grow_beside_a_full_shared_memory() {
    let site = Site::new(&LAZY);
    let script = "mount -t tmpfs -o size=60m none /dev/shm; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            for i in {1..200}; do echo $i > small-$i; done
            dd if=/dev/zero of=/dev/shm/other bs=64k status=none 2> /dev/null
            for i in {1..200}; do seq 9000 >> small-$i; done; seq 9000 > new; cksum * | cksum'; code=$?
        cksum * | cksum; for i in {1..200}; do echo $i > small-$i; seq 9000 >> small-$i; done; cksum * | cksum
        exit $code";
    let Some(ran) = with_mounts(&site, script) else { return };
    let ran = ran.expect(0);
    let [buffered, drained, plain] = ran.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{ran:?}")
    };
    assert_eq!([buffered, drained], [plain; 2], "{ran:?}");
}

/// A small RAM tier over one of files.
const LOW: Setup = Setup { ram: "16MiB", nvme: "64MiB", nvme_emulate: None, ..LAZY };

/// A site whose files lie on its file tier, unless that has no room.
fn below(setup: &Setup) -> Site {
    let site = Site::new(setup);
    let mut text = std::fs::read_to_string(&site.config).unwrap();
    text.push_str("[[rule]]\npath = \"*\"\ntier = \"nvme\"\n");
    std::fs::write(&site.config, text).unwrap();
    site
}

/// Bytes that the file of the tier's slots takes.
const DISK: &str = "stat -c %b $ROOT/nvme/*.slots";

fn number(site: &Site, name: &str) -> u64 {
    let text = std::fs::read_to_string(site.out.join(name)).unwrap();
    text.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Bytes of the files in the store's directory, and how many there are.
fn bytes_and_files(site: &Site) -> (u64, u64) {
    let entries = std::fs::read_dir(&site.store).unwrap().map(|entry| entry.unwrap());
    let sizes: Vec<u64> = entries.map(|entry| entry.metadata().unwrap().len()).collect();
    (sizes.iter().sum(), sizes.len() as u64)
}

/// Where the node manager gets no processor for a tenth of a second, a file has a whole slot: so
/// the whole is tried again on a busy machine.
#[test]
fn tiny_files_take_a_page_each_on_a_file_tier() {
    let tries = (1..=4).find(|_| are_tiny_files_a_page_each());
    assert!(tries.is_some(), "they have whole slots");
}

fn are_tiny_files_a_page_each() -> bool {
    let site = below(&LOW);
    let make = "seq 10000 13999 | split -a 4 -d -l 1 - tiny";
    let script = format!(
        "{make}; look tiny; {} > $OUT/disk; cat tiny* | cksum; \
         for n in 0 1 2 3; do sed -i s/1/2/ tiny000$n; done; look again; rm tiny*; \
         for i in {{1..1000}}; do {} > $OUT/left; \
         [ $(cat $OUT/left) -lt 700 ] && break; sleep 0.02; done; look gone",
        DISK.replace("$ROOT", site.root().to_str().unwrap()),
        DISK.replace("$ROOT", site.root().to_str().unwrap())
    );
    let status = run(&site, &script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    for name in ["tiny", "again"] {
        let json = std::fs::read_to_string(site.out.join(name)).unwrap();
        let (ram, low) = (used_of(&json, 0), used_of(&json, 1));
        // What was read may have come up to RAM meanwhile.
        let lies = if name == "tiny" { low } else { ram + low };
        assert!(lies >= 3800 * PAGE, "{name}: {ram} and {low} bytes");
        // The first one has a whole slot, where the node manager was late.
        let bound = 4000 * (2 * 6 + PAGE) + SLOT;
        if ram + low > bound {
            eprintln!("{name}: {ram} and {low} bytes");
            return false;
        }
    }
    let disk = number(&site, "disk") * 512;
    let bound = 3800 * PAGE..=4000 * PAGE + 16 * PAGE + SLOT;
    assert!(bound.contains(&disk), "{disk} bytes of the disk");
    let json = std::fs::read_to_string(site.out.join("gone")).unwrap();
    let (left, disk) = (used_of(&json, 1), number(&site, "left") * 512);
    assert!(left == 0 && disk <= 25 * PAGE + SLOT, "{left} and {disk} bytes left");
    site.run_plainly(&format!("{make}; rm tiny*")).expect(0);
    site.assert_same_files();
    true
}

/// Three quarters of the tier, and more than RAM.
#[test]
fn files_of_all_small_sizes_take_at_most_twice_their_bytes_below_ram() {
    let site = Site::new(&LOW);
    let make = |from: &str| {
        format!(
            "for kib in 3 7 14 30 58 90; do head -c 4M {from} | split -a 4 -d -b ${{kib}}k - f$kib-; done"
        )
    };
    // Until nothing moves.
    let script = format!(
        "head -c 4M /dev/urandom > $OUT/random; {}; cat f*-* | cksum > /dev/null; sleep 1; look all; {} > $OUT/disk; \
         for kib in 3 7 14 30 58 90; do cat f$kib-* | cmp - $OUT/random; done",
        make("$OUT/random"),
        DISK.replace("$ROOT", site.root().to_str().unwrap())
    );
    let status = run(&site, &script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    let json = std::fs::read_to_string(site.out.join("all")).unwrap();
    let (ram, low) = (used_of(&json, 0), used_of(&json, 1));
    let (bytes, files) = bytes_and_files(&site);
    let bound = 2 * bytes + PAGE * files;
    assert!(files > 2000 && low >= 8 * MIB, "{ram} and {low} bytes of {files} files");
    assert!(ram + low >= bytes && ram + low <= bound, "{ram} and {low} of {bound} bytes");
    let disk = number(&site, "disk") * 512;
    assert!(disk <= low + 4 * MIB, "{disk} bytes of the disk");
    site.run_plainly(&make("$OUT/random")).expect(0);
    site.assert_same_files();
}

/// What small files need no more, others get, and the other way round; far more than the tiers hold
/// goes on to the store.
#[test]
fn a_full_file_tier_is_shared_by_small_files_and_large_ones() {
    for site in [Site::new(&Setup { nvme: "24MiB", ..LOW }), below(&Setup { nvme: "24MiB", ..LOW })]
    {
        let script = |out: &str| {
            format!(
                "for turn in 1 2; do split -a 4 -d -b 20k {out} small-$turn-; cat small-$turn-* | cmp - {out}; \
                 cp {out} large-$turn; cmp large-$turn {out}; cat small-* | cksum; rm small-$turn-*5; done; \
                 rm large-1; split -a 4 -d -b 3k {out} tiny-; cat tiny-* | cmp - {out}; cksum large-2"
            )
        };
        let random = "$OUT/random";
        let full = format!("head -c 20M /dev/urandom > {random}; {}", script(random));
        run(&site, &full);
        site.run_plainly(&script(random)).expect(0);
        site.assert_same_files();
    }
}

#[test]
fn files_grow_out_of_their_small_slots() {
    // In place, beside a tier that has nothing left for them, and out of that of RAM.
    for nvme in ["64MiB", "16MiB"] {
        let site = below(&Setup { nvme, ..LOW });
        site.same(
            "for n in {1..90}; do head -c 5000 /dev/zero | tr '\\0' $((n % 10)) >> grows; done\n\
             cksum < grows; head -c 300000 grows > copy; truncate -s 5000 copy; cat grows >> copy\n\
             echo far | dd of=copy bs=1 seek=120000 conv=notrunc status=none; cksum < copy\n\
             echo x | dd of=gap bs=1 seek=100000 status=none; echo y | dd of=gap bs=1 conv=notrunc status=none\n\
             truncate -s 200000 gap; echo z >> gap; cksum < gap; fallocate -p -o 4096 -l 90000 gap; cksum < gap\n\
             for n in {1..150}; do echo $n > many-$n; done\n\
             for turn in 1 2 3; do for n in {1..150}; do seq $((turn * 9000)) >> many-$n; done; done; cat many-* | cksum",
        );
    }
}

/// Programs that are killed between any two steps of getting pages of a slot.
#[test]
fn slots_of_programs_that_were_killed_come_back() {
    if !cfg!(debug_assertions) {
        return skip("a release build has no points to crash at");
    }
    let site = below(&LOW);
    // Until something is lent, and what is in use stays what it is.
    let script = "echo kept > kept; for i in {1..1000}; do rm kept; sleep 0.02; echo kept > kept; look before;\n\
         grep -q '\"used\": *4096,' $OUT/before && break; done; for point in slot-taken claiming; do\n\
         FOREBAY_CRASH=sparse.$point:1 FOREBAY_CRASH_IN=client \
         dd if=/dev/zero of=victim-$point bs=9000 count=1 status=none && code=0 || code=$?; echo $point $code >> $OUT/codes\n\
         done; cksum kept; rm victim-*\n\
         for i in {1..1000}; do look after; grep -q '\"used\": *4096,' $OUT/after && break; sleep 0.02; done";
    let status = run(&site, script);
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
    let codes = std::fs::read_to_string(site.out.join("codes")).unwrap();
    assert_eq!(codes, "slot-taken 137\nclaiming 137\n");
    let json = std::fs::read_to_string(site.out.join("after")).unwrap();
    assert_eq!((used_of(&json, 0), used_of(&json, 1)), (0, PAGE));
    assert_eq!(std::fs::read(site.store.join("kept")).unwrap(), b"kept\n");
}

/// A manager that is killed while it lends slots, takes them back, or gives up their room.
#[test]
fn a_manager_that_dies_while_it_lends_slots_loses_nothing() {
    let points = [
        "lend.slots-retired:2",
        "lend.slot-discarded:2",
        "lend.slot-unbacked:6",
        "lend.slots-lowered:1",
        "sparse.idle:2",
        "sparse.slots-ready:2",
        "sparse.slots-idle:1",
        "sparse.discarded:1",
    ];
    loses_nothing_when_killed_at(&points, || below(&LOW));
}

/// Everything is killed, and the segment is gone: the records of sparse slots lead to all of it.
#[test]
fn small_files_of_a_file_tier_are_found_without_the_pool() {
    let site = below(&LOW);
    let script = "seq 900000 > $OUT/random; split -a 4 -d -b 9k $OUT/random kept-; rm kept-*7; seq 900 > again; echo done; sleep 600";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the files", LONG, || run.stdout().contains("done").then_some(()));
    let json = site.end(site.forebay(&["status", "--json"])).stdout;
    let (bytes, files) = bytes_and_files(&site);
    let low = used_of(&json, 1);
    assert!(bytes == 0 && files > 500 && low <= 9 * MIB, "{bytes} {files} {json}");
    site.kill_all();
    run.end();
    site.pools().iter().for_each(|pool| std::fs::remove_file(pool).unwrap());
    site.recover().expect(0);
    site.run_plainly(&script.replace("; echo done; sleep 600", "")).expect(0);
    site.assert_same_files();
    site.drop_removed();
}
