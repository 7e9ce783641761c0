//! What libc, the loader and runtimes write to standard error, where no call is seen.

use crate::harness::{LAZY, Setup, Site, TINY, assert_same_lines, have, skip};
use std::path::Path;
use std::process::Command;

/// Whether the C compiler makes `$BIN/NAME` of these words.
fn link(site: &Site, name: &str, words: &[&str]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/messages.c");
    let mut cc = Command::new("cc");
    cc.current_dir(site.root()).args(["-w", "-o", name]).arg(source).args(words);
    cc.status().is_ok_and(|status| status.success())
}

/// Programs of `messages.c`, and one of which a library is missing. Addresses and numbers of
/// processes, which differ each time, are in none of their messages.
fn programs(site: &Site) -> bool {
    if !have(&["bash"]) || !site.compile("messages.c", &["-fstack-protector-all", "-pthread"]) {
        return false;
    }
    let library = ["-shared", "-fPIC"];
    let gone = site.root().join("libgone.so");
    assert!(link(site, "libgone.so", &library));
    assert!(link(site, "misses", &["-Wl,--no-as-needed", gone.to_str().unwrap()]));
    std::fs::remove_file(gone).unwrap();
    assert!(link(site, "calls", &["-DSYMBOL", "-Wl,--unresolved-symbols=ignore-all"]));
    true
}

/// Runs a script that uses them with and without Forebay.
fn same(setup: &Setup, script: &str) {
    let site = Site::new(setup);
    if programs(&site) {
        site.same(script);
    }
}

#[test]
fn messages_that_no_call_is_seen_of_are_where_they_belong() {
    for setup in [&LAZY, &TINY] {
        // The shell says of a program that a signal has ended which process that was.
        let script = r#"
            each() {
                for what in heap stack herror raw; do
                    echo "before $what"; (exec $BIN/messages $what); echo "behind $what: $?"
                done
                $BIN/misses; echo $?
                $BIN/calls; echo $?
                LD_PRELOAD=/none/such.so:$LD_PRELOAD $BIN/messages raw; echo $?
            }
            each > both 2>&1; each &> both-again; each 2> error > output
            seq 400000 > large; each >> large 2>&1; echo done >> large
            { seq 400000; each; seq 10; } > within 2>&1
            exec 3>> kept 2>&3; each >&3; exec 2> last; each; exec 2>&1
            $BIN/misses > alone 2>&1; cat alone; stat -c %s alone
            here=$PWD; cd /
            for program in messages misses; do
                $BIN/messages spawned $here/spawned $BIN/$program
                $BIN/messages chained $here/chained-$program $BIN/$program
                $BIN/messages vforked $here/vforked-$program $BIN/$program
            done
            $BIN/messages reopened $here/reopened; $BIN/messages received $here/received; cd $here
            for file in *; do sed -i 's/.*line [0-9]*: *[0-9]* Aborted/Aborted/' $file; done"#;
        same(setup, script);
    }
}

#[test]
fn no_line_is_lost_when_a_file_becomes_standard_error() {
    for setup in [&LAZY, &TINY] {
        // In the end it is not buffered any more.
        same(
            setup,
            "seq 400000 > seen; $BIN/messages racing raced 5000; $BIN/messages appended appended",
        );
    }
}

#[test]
fn a_kill_while_a_file_becomes_standard_error_leaves_its_offset() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !programs(&site) {
        return;
    }
    for point in ["release.begun", "release.sought"] {
        for (open, kept) in [(">", ""), (">>", "kept\n")] {
            let script = format!(
                "echo kept > log
                {{ seq 1000; FOREBAY_CRASH={point}:1 $BIN/messages becomes || echo $?
                   seq 3; $BIN/messages becomes; seq 2; }} {open} log; cat log"
            );
            let said = site.end(site.buffered(&["bash", "-c", &script])).expect(0).stdout;
            let lines: String = (1..=1000).map(|line| format!("{line}\n")).collect();
            let rest = "137\n1\n2\n3\nby an instruction\n1\n2\n";
            assert_same_lines(point, &said, &format!("{kept}{lines}{rest}"));
        }
    }
}

#[test]
fn what_the_loader_lists_is_where_it_belongs() {
    let script = "
        LD_TRACE_LOADED_OBJECTS=1 $BIN/messages > listed; sed -i 's/ (0x.*//; /forebay/d' listed
        seq 400000 > seen; LD_SHOW_AUXV=1 $BIN/messages > shown; grep -c AT_ shown; rm shown
        LD_DEBUG=help $BIN/messages > helped 2>&1; cat helped | head -c 100k
        LD_DEBUG=libs $BIN/messages raw > debugged 2>&1
        head -c 100M debugged | tr -dc '\\0' | wc -c; rm debugged";
    same(&LAZY, script);
}

#[test]
fn messages_of_programs_that_python_starts_are_where_they_belong() {
    if !have(&["python3"]) {
        return;
    }
    let script = r#"python3 - <<'END'
import os, subprocess
programs = os.environ['BIN']
with open('buffered', 'wb') as file:
    file.write(b'b' * 2000000)
for close in True, False:
    for program in 'misses', 'calls', 'messages':
        with open('log', 'ab') as log:
            log.write(b'before\n'); log.flush()
            words = [f'{programs}/{program}', 'raw']
            subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, close_fds=close)
            subprocess.run(words, stderr=log, close_fds=close)
            actions = [(os.POSIX_SPAWN_DUP2, log.fileno(), 2)]
            os.waitpid(os.posix_spawn(words[0], words, os.environ, file_actions=actions), 0)
            log.write(b'behind\n')
END"#;
    same(&LAZY, script);
}
