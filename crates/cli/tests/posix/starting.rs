//! Programs that are started: by vfork, and by what is like it.

use crate::harness::{LAZY, SLOW_STORE, Setup, Site, TINY, skip, wait_for, works};
use std::time::Duration;

/// Runs a part of `vforks.c` with and without Forebay.
fn same(setup: &Setup, part: &str) {
    let site = Site::new(setup);
    if site.compile("vforks.c", &["-pthread"]) {
        site.same(&format!("$BIN/vforks {part}"));
    }
}

#[test]
fn what_a_vforked_child_does_with_descriptors_is_its_own() {
    for setup in [&LAZY, &SLOW_STORE, &TINY] {
        same(setup, "redirected");
        same(setup, "goes-on");
        same(setup, "handed");
    }
}

#[test]
fn a_vforked_child_that_uses_files_sees_and_writes_the_right_bytes() {
    for setup in [&LAZY, &SLOW_STORE, &TINY] {
        same(setup, "forbidden");
        same(setup, "calls");
        same(setup, "nested");
    }
}

#[test]
fn a_vforked_child_leaves_handlers_masks_and_limits_as_they_are() {
    same(&LAZY, "settings");
    same(&LAZY, "limits");
}

#[test]
fn a_vforked_child_that_is_killed_leaves_nothing_locked() {
    same(&LAZY, "killed");
    same(&TINY, "killed");
}

#[test]
fn a_vforked_child_outlives_its_parent() {
    same(&LAZY, "orphaned");
    same(&TINY, "orphaned");
}

#[test]
fn threads_go_on_while_others_wait_for_vforked_children() {
    same(&LAZY, "threads");
    same(&TINY, "threads");
}

#[test]
fn a_cloned_child_in_its_parents_memory_is_as_a_vforked_one() {
    same(&LAZY, "cloned");
}

#[test]
fn vforked_children_execute_what_is_buffered() {
    same(&LAZY, "programs");
    same(&SLOW_STORE, "programs");
}

#[test]
fn a_vfork_copies_no_memory() {
    same(&LAZY, "memory");
}

#[test]
fn a_vfork_is_the_kernels() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("vforks.c", &["-pthread"]) {
        return;
    }
    let script = "strace -f -o $OUT/calls -e trace=%process $BIN/vforks redirected";
    site.run_buffered(script).0.expect(0);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let first = calls.lines().find(|line| line.contains("fork(") || line.contains("clone"));
    assert!(first.is_some_and(|line| line.contains("CLONE_VM|CLONE_VFORK|")), "{calls}");
}

/// Whatever a program does first that has joined nothing yet.
#[test]
fn a_program_that_begins_with_nothing_joins_before_it_matters() {
    for setup in [&LAZY, &SLOW_STORE, &TINY] {
        let site = Site::new(setup);
        if !site.compile("late.c", &["-pthread"]) {
            return;
        }
        for how in ["vforked", "forked", "spawned"] {
            site.same(&format!("$BIN/late {how}"));
        }
    }
}

/// One that would read old bytes ends, with what it has printed. One that is left behind by its run
/// joins.
#[test]
fn a_program_that_begins_with_nothing_does_not_go_on_where_its_pool_is_hidden() {
    let site = Site::new(&LAZY);
    if !site.compile("late.c", &["-pthread"]) {
        return;
    }
    let script = "echo old > late-file; sync; echo buffered > late-file\n\
         (sleep 0.5; rm $FOREBAY_POOL; echo go) | $BIN/late does waits 2>&1; echo ${PIPESTATUS[1]}";
    let said = site.run_buffered(script).0.expect(0).stdout;
    let ends = said.starts_with("  waited 1\n  without an end") && said.ends_with("126\n");
    assert!(ends && said.contains("cannot go on with late: the pool"), "{said}");

    let script = "echo buffered > late-file; mkfifo $OUT/asks; exec 9<> $OUT/asks\n\
         setsid $BIN/late does waits <&9 > $OUT/said 2>&1 & sleep 0.5";
    site.run_buffered(script).0.expect(0);
    std::fs::write(site.out.join("asks"), "go").unwrap();
    wait_for("what it reads", Duration::from_secs(10), || {
        let said = std::fs::read_to_string(site.out.join("said")).unwrap();
        said.contains("waited: 9 buffered").then_some(())
    });
}

/// What was found out of a program holds for its file as it was.
#[test]
fn a_program_that_has_become_a_static_one_gets_what_is_buffered() {
    let site = Site::new(&LAZY);
    if !site.compile("unmanaged.c", &["-static"]) {
        return;
    }
    // A file that was changed just now is not remembered.
    let script = "cp /bin/cat $OUT/tool; sleep 2.1; echo first > file\n\
         for i in 1 2 3; do $OUT/tool file; done\n\
         cat $BIN/unmanaged > $OUT/tool; echo second > file; $OUT/tool file\n\
         sleep 2.1; echo third > file; $OUT/tool file; echo fourth > file; $OUT/tool file";
    let said = site.run_buffered(script).0.expect(0).stdout;
    assert_eq!(
        said.split_whitespace().collect::<Vec<_>>().join(" "),
        "first first first second third fourth"
    );
}

/// A limit that is set unseen, after a process has looked whether programs find room for the pool.
#[test]
fn a_program_that_was_expected_to_join_does_not_run_on_old_bytes() {
    let site = Site::new(&LAZY);
    if !site.compile("children.c", &[]) {
        return;
    }
    let script = "echo old > file; sync; echo buffered > file\n\
         for i in {1..10}; do $BIN/children limited 3 /bin/cat file 2>&1; done; true";
    let said = site.run_buffered(script).0.expect(0).stdout;
    assert_eq!(said.lines().count(), 10, "{said}");
    // Where the look was too long ago, the child has looked itself, and what is buffered went to
    // the store.
    let is_right = |line: &str| line == "buffered" || line.contains("the pool cannot be opened");
    assert!(said.lines().all(is_right), "{said}");
}

/// Builds `loads.c` as the program and as its libraries.
fn compile_loads(site: &Site) -> bool {
    let root = site.root();
    let library = |name: &str, words: &[&str]| {
        let mut command = std::process::Command::new("cc");
        command.arg("-shared").arg("-fPIC").arg("-o").arg(root.join(name)).args(words);
        command
            .arg(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/loads.c"));
        command.status().is_ok_and(|status| status.success())
    };
    std::fs::create_dir(root.join("far")).unwrap();
    site.compile("loads.c", &["-ldl"])
        && library("far/libforebay_test_inner.so", &["-DINNER"])
        && library("libmpi_none.so", &["-DINNER"])
        && library("libforebay_test_caller.so", &["-DCALLER", "-Wl,-rpath,$ORIGIN/far", "-ldl"])
}

#[test]
fn a_library_is_looked_for_in_the_folders_of_its_caller() {
    let site = Site::new(&LAZY);
    if compile_loads(&site) {
        let (ran, _) = site.run_buffered("$BIN/loads $BIN; true > file");
        let wanted = site.run_plainly("$BIN/loads $BIN; true > file");
        assert_eq!(ran, wanted);
        assert!(wanted.stdout.starts_with("inner: 42\nhere: found\n"), "{wanted:?}");
    }
}

#[test]
fn an_adapter_comes_before_the_library_that_a_program_loads() {
    let site = Site::new(&LAZY);
    if compile_loads(&site) {
        let said = site.run_buffered("$BIN/loads $BIN mpi").0.expect(0).stdout;
        let wanted = "before: 0\nloaded: 1\nadapter: 1, with large counts: 0\n";
        assert!(said.ends_with(wanted), "{said}");
        let off = site.run_buffered("FOREBAY_ADAPTERS=none $BIN/loads $BIN mpi").0.expect(0).stdout;
        assert!(off.ends_with("loaded: 1\nadapter: 0, with large counts: 0\n"), "{off}");
    }
}

#[test]
fn what_a_program_needs_is_looked_for_once() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("nothing.c", &[]) {
        return;
    }
    // A shell executes the program three times; what it does for that lies between the last look
    // at the program before the exec and the exec.
    let script = "trace() { strace -f -e trace=%file,pread64 -o $OUT/$1 bash -c '$BIN/nothing; $BIN/nothing; $BIN/nothing; :' \
         > /dev/null < /dev/null; }; trace with; FOREBAY_ADAPTERS=none; export FOREBAY_ADAPTERS; trace without";
    site.run_buffered(script).0.expect(0);
    let counts = |name: &str| -> Vec<usize> {
        let calls = std::fs::read_to_string(site.out.join(name)).unwrap();
        let executes = |line: &str| line.contains("execve(") && line.contains("/nothing\", [");
        let of = |pid: &str| {
            let own = calls.lines().filter(|line| line.starts_with(pid));
            let own: Vec<_> = own.take_while(|line| !executes(line)).collect();
            own.iter().rev().take_while(|line| !line.contains("/nothing\", {")).count()
        };
        let pids = calls.lines().filter(|line| executes(line));
        pids.map(|line| of(line.split(' ').next().unwrap())).collect()
    };
    let (with, without) = (counts("with"), counts("without"));
    assert_eq!((with.len(), without.len()), (3, 3), "{with:?} {without:?}");
    println!("system calls before an exec: {with:?}, without adapters {without:?}");
    // The program needs the C library alone, which is known to need none.
    assert!(with[0] <= without[0] + 6, "{with:?} {without:?}");
    let most = without[1].max(without[2]) + 1;
    assert!(with[1] <= most && with[2] <= most, "{with:?} {without:?}");
}

/// Of its own calls at a program's first thread and file none is one that the program would not
/// make: filters of system calls kill for such a one.
#[test]
fn a_program_that_forbids_itself_other_calls_lives() {
    let site = Site::new(&LAZY);
    if site.compile("filtered.c", &["-pthread"]) {
        site.same("$BIN/filtered file");
    }
}

/// The runtime of AddressSanitizer has to be the first library; what such a program starts has none
/// of it.
#[test]
fn a_program_with_the_runtime_of_a_sanitizer_starts() {
    if !works(&["sh", "-c", "test -e \"$(cc -print-file-name=libasan.so)\""]) {
        return skip("the compiler has no libasan.so");
    }
    let site = Site::new(&LAZY);
    if site.compile("sanitized.c", &["-fsanitize=address"]) {
        site.same("$BIN/sanitized file");
        site.same("sh -c '$BIN/sanitized file; echo $?'");
    }
}
