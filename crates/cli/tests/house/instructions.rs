//! How many instructions a buffered call takes, counted by callgrind: a measure that no other
//! program on the machine disturbs.

use crate::harness::{LAZY, Site, skip, works};

/// Calls in a row.
const TURNS: u64 = 2000;

/// Processes that have come and gone before: what a call takes does not depend on them.
const GONE: u32 = 150;

/// The most instructions that each kind of call of `programs/calls.c` may take, that of the C
/// library's part and the copy included. About a sixth above what it is now in the profile of the
/// tests, where little is inlined; a release takes two thirds. Raise one only with a reason.
const CEILINGS: [(&str, u64); 12] = [
    ("pwrite64", 1300),
    ("pread64", 900),
    ("write64", 1410),
    ("read64", 940),
    ("fwrite64", 230),
    ("fread64", 280),
    ("pwrite4096", 1840),
    ("pread4096", 1610),
    ("open", 4700),
    ("stat", 280),
    ("truncate", 20_600),
    ("map", 23_600),
];

#[test]
fn calls_take_no_more_instructions_than_they_did() {
    // The order of the locks is asserted in builds with debug assertions alone.
    const CALLGRIND: &str = "valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect=forebay_pool::ranks::asserted::* --collect-atstart=yes";
    let trial: Vec<&str> = CALLGRIND.split(' ').chain(["true"]).collect();
    if !works(&trial) {
        return skip("no valgrind, or it cannot run here: instructions are not counted");
    }
    let site = Site::new(&LAZY);
    if !site.compile("calls.c", &[]) {
        return;
    }
    let kinds: Vec<&str> = CEILINGS.iter().map(|(kind, _)| *kind).collect();
    let script = format!(
        "for n in $(seq {GONE}); do /bin/true; done
         count() {{ {CALLGRIND} $BIN/calls $PWD/file $1 $2 2>&1 | sed -n 's/.*Collected : //p'; }}\n\
         count none 0; echo none $(count none 0); for kind in {}; do echo $kind $(count $kind {TURNS}); done",
        kinds.join(" ")
    );
    let (ran, status) = site.run_buffered(&script);
    status.assert_live();
    let ran = ran.expect(0);
    // The first process of a pool does some 200,000 instructions of work that no later one has to.
    let counted = |kind: &str| -> u64 {
        let line = ran.stdout.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{ran:?}"))
    };
    let setup = counted("none");
    let each = CEILINGS.map(|(kind, most)| (kind, (counted(kind) - setup) / TURNS, most));
    for (kind, instructions, most) in each {
        println!("{kind:12} {instructions:6} instructions, at most {most}");
    }
    for (kind, instructions, most) in each {
        assert!(instructions > 50, "{kind}: nothing was counted: {each:?}");
        assert!(instructions <= most, "{kind} takes {instructions} instructions: {each:?}");
    }
}
