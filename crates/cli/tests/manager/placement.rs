//! Where the data of one program lies under each policy: a small index that is read again and
//! again, some files that fit, and one that is larger than the fast tiers.

use crate::harness::{Site, TINY};
use std::collections::BTreeMap;
use std::fs;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A store so slow that a program which waits for it is noticed.
const HIERARCHY: &str = r#"
[[backing]]
path = "store"
emulate = { bandwidth = "23MB/s", latency = "4ms" }
[[tier]]
name = "ram"
kind = "ram"
capacity = "16MiB"
[[tier]]
name = "nvme"
kind = "file"
path = "nvme"
capacity = "32MiB"
emulate = { bandwidth = "1034MB/s", latency = "20us" }
[[tier]]
name = "bb"
kind = "file"
path = "bb"
capacity = "128MiB"
emulate = { bandwidth = "345MB/s", latency = "60us" }
"#;

const PROGRAM: &str = "set -e; dd if=/dev/zero of=index bs=256k count=1 status=none
    for time in $(seq 20); do cat index > /dev/null; done
    for part in 1 2 3 4 5 6; do dd if=/dev/zero of=part$part bs=1M count=4 status=none; done
    [ -z \"$REST\" ] || sleep \"$REST\"
    dd if=/dev/zero of=huge bs=1M count=75 status=none";

/// What was seen when the program had ended, and nothing was flushed yet.
#[derive(Debug)]
struct Seen {
    /// Bytes of each file on each place.
    lies: BTreeMap<(String, String), u64>,
    /// Bytes that moved, by what the trace calls it, from where and to where.
    moved: BTreeMap<(String, String, String), u64>,
    around: u64,
}

impl Seen {
    fn of(&self, file: &str, place: &str) -> u64 {
        self.lies.get(&(file.to_owned(), place.to_owned())).copied().unwrap_or(0)
    }

    /// Bytes of all files on a place.
    fn on(&self, place: &str) -> u64 {
        self.lies.iter().filter(|((_, on), _)| on == place).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that left RAM for a tier.
    fn left_ram_for(&self, what: &str, tier: &str) -> u64 {
        let way = (what.to_owned(), "ram".to_owned(), tier.to_owned());
        self.moved.get(&way).copied().unwrap_or(0)
    }

    fn moved(&self, what: &str) -> u64 {
        self.moved.iter().filter(|((kind, ..), _)| kind == what).map(|(_, bytes)| bytes).sum()
    }
}

/// Runs the program, and more after it, with a configuration's `[placement]` and `[flush]`, and
/// words more for `forebay run`.
fn run(settings: &str, more_words: &[&str]) -> Seen {
    run_with(settings, more_words, &[])
}

/// The same with variables of the environment.
fn run_with(settings: &str, more_words: &[&str], variables: &[(&str, &str)]) -> Seen {
    let site = Site::new(&TINY);
    fs::create_dir(site.root().join("bb")).unwrap();
    fs::write(&site.config, format!("{settings}{HIERARCHY}")).unwrap();
    let trace = site.root().join("trace.csv");
    let script = format!(
        "{PROGRAM}; for file in index part1 part2 part3 part4 part5 part6 huge; do \
         while \"$FOREBAY\" explain --all $file | grep -q 'on its way'; do sleep 0.1; done; done; \
         for file in index part1 part2 part3 part4 part5 part6 huge; do \
         echo \"file $file\"; \"$FOREBAY\" explain --all $file; done; \
         \"$FOREBAY\" status | grep write_around"
    );
    let (config, trace_name) = (site.config.to_str().unwrap(), trace.to_str().unwrap());
    let words = ["run", "--config", config, "--trace", trace_name];
    let mut command = site.forebay(&[&words, more_words, &["--", "bash", "-c", &script]].concat());
    command.envs(variables.iter().copied());
    let ran = site.end(command);
    let said = ran.expect(0).stdout;
    let mut seen = Seen { lies: BTreeMap::new(), moved: BTreeMap::new(), around: 0 };
    let mut file = "";
    for line in said.lines() {
        let words: Vec<_> = line.trim().trim_start_matches("lies").split_whitespace().collect();
        match words[..] {
            ["file", name] => file = name,
            [start, "..", end, place, ..] => {
                let bytes = end.parse::<u64>().unwrap() - start.parse::<u64>().unwrap();
                *seen.lies.entry((file.to_owned(), place.to_owned())).or_default() += bytes;
            }
            ["count", "write_around", count, ..] => seen.around = count.parse().unwrap(),
            _ => {}
        }
    }
    assert_eq!(seen.lies.values().sum::<u64>(), 256 * KIB + 99 * MIB, "{said}");
    for line in fs::read_to_string(&trace).unwrap().lines().skip(1) {
        let words: Vec<_> = line.split(',').collect();
        let [_, _, what, from, to, bytes] = words[..] else { panic!("{line}") };
        let kind = (what.to_owned(), from.to_owned(), to.to_owned());
        *seen.moved.entry(kind).or_default() += bytes.parse::<u64>().unwrap();
    }
    // No write waited for the store: there is room for all of it in the tiers.
    assert_eq!((seen.on("store"), seen.around), (0, 0), "{seen:?}");
    seen
}

fn placement(policy: &str) -> String {
    format!("[placement]\npolicy = \"{policy}\"\n[flush]\ntrigger = \"on-exit\"\n")
}

#[test]
fn max_bandwidth_makes_room_in_ram_by_moving_down() {
    let seen = run(&placement("max-bandwidth"), &[]);
    // 99 MiB came to RAM, of whose 16 MiB a tenth to a quarter is kept free, and up to three
    // quarters while the writer waits for room; some is on its way.
    assert!(seen.on("ram") >= 2 * MIB, "{seen:?}");
    assert!(seen.moved("demote") >= 80 * MIB && seen.on("bb") > 32 * MIB, "{seen:?}");
    // The writer waits for room, which both lower tiers make at the same time; no byte was written
    // there by the program.
    let below = ["nvme", "bb"].map(|tier| seen.left_ram_for("demote", tier));
    assert!(below[0] >= 16 * MIB && below[1] >= 16 * MIB, "{seen:?}");
    assert!(below[0] + below[1] >= seen.on("nvme") + seen.on("bb"), "{seen:?}");
}

#[test]
fn max_locality_uses_all_tiers_and_moves_nothing() {
    let once = run(&placement("max-locality"), &[]);
    // Of one file RAM takes at most 16 MiB x 16/176, NVMe 32 MiB x 48/176.
    let (ram, nvme) = (16 * MIB * 16 / 176, 32 * MIB * 48 / 176);
    assert_eq!(once.of("index", "ram"), 256 * KIB, "{once:?}");
    for file in ["part1", "part6", "huge"] {
        let of_ram = once.of(file, "ram");
        assert!(of_ram.abs_diff(ram) <= 512 * KIB, "{file}: {once:?}");
    }
    // Decisions are remembered for sizes of three significant bits: steps of 2 MiB above 8.
    assert!(once.of("huge", "nvme").abs_diff(nvme) <= 2 * MIB, "{once:?}");
    assert!(once.of("huge", "bb") > 60 * MIB && once.of("part6", "bb") == 0, "{once:?}");
    assert_eq!((once.moved("demote"), once.moved("promote")), (0, 0), "{once:?}");
    // Every byte of the lower tiers was brought there from RAM: the program waits for no device.
    for tier in ["nvme", "bb"] {
        assert_eq!(once.left_ram_for("place", tier), once.on(tier), "{once:?}");
    }

    // The same trigger from the command line changes nothing of that.
    let periodic = "[placement]\npolicy = \"max-locality\"\n[flush]\ntrigger = \"periodic\"\n";
    let again = run(periodic, &["--trigger", "on-exit"]);
    assert_eq!(again.lies, once.lies);
    assert_eq!((again.moved("demote"), again.moved("promote")), (0, 0), "{again:?}");
}

/// The count of blocks on their way out of RAM is too small while a placer looks for them: that
/// is no reason to move what lies in RAM, however long the look takes.
#[test]
fn max_locality_moves_nothing_while_placers_dawdle() {
    let dawdle = [("FOREBAY_PAUSE", "place.found:1/1:20"), ("FOREBAY_PAUSE_IN", "node")];
    let seen = run_with(&placement("max-locality"), &[], &dawdle);
    assert_eq!((seen.moved("demote"), seen.moved("promote")), (0, 0), "{seen:?}");
    assert_eq!(seen.of("index", "ram"), 256 * KIB, "{seen:?}");
}

/// Ranks that write files, none of them larger than its share of a tier, fill one tier after the
/// other: what lies in RAM makes way for no more than the rest of the files that began there.
#[test]
fn max_locality_lets_ranks_fill_the_tiers_and_moves_nothing_but_for_files_on_the_border() {
    let site = Site::new(&TINY);
    fs::create_dir(site.root().join("bb")).unwrap();
    fs::write(&site.config, format!("{}{HIERARCHY}", placement("max-locality"))).unwrap();
    let trace = site.root().join("trace.csv");
    let script = "for rank in 1 2 3 4; do (for step in $(seq 12); do \
        dd if=/dev/zero of=$rank.$step bs=256k count=4 status=none; done) & done; wait";
    let (config, trace_name) = (site.config.to_str().unwrap(), trace.to_str().unwrap());
    let words = ["run", "--config", config, "--trace", trace_name, "--", "bash", "-c", script];
    site.end(site.forebay(&words)).expect(0);
    let lines = fs::read_to_string(&trace).unwrap();
    let moved = lines.lines().filter(|line| line.contains("demote,"));
    let moved = moved.map(|line| line.rsplit(',').next().unwrap().parse::<u64>().unwrap());
    let moved = moved.sum::<u64>();
    // Four files of 1 MiB at most are begun in RAM and not ended when that is full.
    assert!(moved <= 4 * MIB, "{moved} bytes moved\n{lines}");
}

#[test]
fn hot_data_keeps_the_index_on_top_and_gives_up_the_huge_file_first() {
    // Before the huge file begins, room has been made for as much of it as shows that it is huge:
    // until then it is worth as much as a part.
    let seen = run_with(&placement("hot-data"), &[], &[("REST", "1")]);
    assert_eq!(seen.of("index", "ram"), 256 * KIB, "{seen:?}");
    // The newest of it is in RAM until room is made there: how much depends on how the writer and
    // the manager take turns. What it displaces goes one tier down at most.
    assert!(seen.of("huge", "bb") > 50 * MIB, "{seen:?}");
    let parts = |place| (1..=6).map(|part| seen.of(&format!("part{part}"), place)).sum::<u64>();
    assert!(parts("ram") + parts("nvme") > 22 * MIB && parts("bb") < MIB, "{seen:?}");

    // Of that policy only what a rule gives it is treated so.
    let rule = "[[rule]]\npath = \"index\"\npolicy = \"hot-data\"\n";
    let seen = run(&format!("{rule}{}", placement("max-bandwidth")), &[]);
    assert_eq!(seen.of("index", "ram"), 256 * KIB, "{seen:?}");
    assert_eq!(seen.of("part1", "ram"), 0, "{seen:?}");
}

#[test]
fn a_rule_puts_the_huge_file_below_and_leaves_the_fast_tiers_to_the_others() {
    let rule = "[[rule]]\npath = \"huge\"\ntier = \"bb\"\n";
    let seen = run(&format!("{rule}{}", placement("max-locality")), &[]);
    assert_eq!(seen.of("huge", "bb"), 75 * MIB, "{seen:?}");
    assert_eq!(seen.moved("demote"), 0, "{seen:?}");
}

/// What takes long to read or to write below RAM, so that a stream keeps RAM full.
const SLOW_HIERARCHY: &str = r#"
[flush]
trigger = "on-exit"
[[backing]]
path = "store"
[[tier]]
name = "ram"
kind = "ram"
capacity = "16MiB"
[[tier]]
name = "nvme"
kind = "file"
path = "nvme"
capacity = "64MiB"
emulate = { bandwidth = "60MB/s", latency = "20us" }
[[tier]]
name = "bb"
kind = "file"
path = "bb"
capacity = "2GiB"
emulate = { bandwidth = "30MB/s", latency = "60us" }
"#;

/// Most of a set of 6 MiB.
const MOST: u64 = 5 * MIB;

/// Bytes of that set that lie in RAM after it was read so often, or until most came up,
/// beside a stream that keeps RAM full; what came up; and the most that RAM
/// held. Before, all of it lay below.
fn hot_beside_cold(policy: &str, mode: &str, turns: u32) -> (u64, u64, u64) {
    let site = Site::new(&TINY);
    fs::create_dir(site.root().join("bb")).unwrap();
    let settings = format!("[placement]\npolicy = \"{policy}\"\n");
    fs::write(&site.config, format!("{settings}{SLOW_HIERARCHY}")).unwrap();
    let trace = site.root().join("trace.csv");
    let script = r#"set -e
        in_ram() {
            "$FOREBAY" explain --all hot | sed 's/^ *lies//' |
                awk '$2 == ".." && $4 == "ram" { sum += $3 - $1 } END { print 0 + sum }'
        }
        seq 2000000 | head -c 6M > $OUT/hot; dd if=$OUT/hot of=hot bs=1M status=none
        for part in $(seq 24); do dd if=/dev/zero of=part$part bs=1M count=1 status=none; done
        # What is removed has left RAM long ago.
        part=0; until [ -e $OUT/enough ]; do
            part=$((part + 1)); dd if=/dev/zero of=stream$part bs=1M count=200 status=none
            rm -f stream$((part - 4))
        done & stream=$!
        for look in $(seq 100); do
            now=$(in_ram); [ $now -gt 0 ] || break; sleep 0.1
        done
        echo $now
        for time in $(seq $TURNS); do
            cat hot > /dev/null; sleep 0.1
            seen=$(in_ram); "$FOREBAY" status --json >> $OUT/status
            kill -0 $stream; now=$seen
            [ $now -lt $MOST ] || break
        done
        echo $now; touch $OUT/enough; wait $stream; cmp hot $OUT/hot >&2"#;
    let (config, trace_name) = (site.config.to_str().unwrap(), trace.to_str().unwrap());
    let words = ["run", "--config", config, "--mode", mode, "--trace", trace_name];
    let mut run = site.forebay(&[&words[..], &["--", "bash", "-c", script]].concat());
    run.env("TURNS", turns.to_string()).env("MOST", MOST.to_string());
    let said = site.end(run).expect(0).stdout;
    let in_ram: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let [0, in_ram] = in_ram[..] else { panic!("{said}") };
    let status = fs::read_to_string(site.out.join("status")).unwrap();
    let looks = serde_json::Deserializer::from_str(&status).into_iter::<serde_json::Value>();
    let used = looks.map(|look| look.unwrap()[0]["tiers"][0]["used"].as_u64().unwrap());
    let used = used.max().unwrap();
    let lines = fs::read_to_string(&trace).unwrap();
    let came = lines.lines().filter(|line| line.contains("promote,"));
    let came = came.map(|line| line.rsplit(',').next().unwrap().parse::<u64>().unwrap()).sum();
    (in_ram, came, used)
}

/// A tier that has to make room for writers all the time takes a block from below only in exchange
/// for a colder one.
#[test]
fn a_hot_set_below_a_full_tier_comes_up_where_the_policy_compares_hotness() {
    for mode in ["async", "scratch"] {
        // On a busy machine the tiers below make room slowly: it ends when most came up.
        let (in_ram, came, used) = hot_beside_cold("hot-data", mode, 600);
        let context = format!("{mode}: {in_ram} bytes in RAM of {used}, {came} came up");
        assert!(in_ram >= MOST && came >= MOST && used >= 14 * MIB, "{context}");
    }
    // Some blocks find room whenever the stream has none of the processors.
    let (in_ram, _, used) = hot_beside_cold("max-bandwidth", "async", 20);
    assert!(in_ram < MOST && used >= 14 * MIB, "{in_ram} bytes in RAM of {used}");
}
