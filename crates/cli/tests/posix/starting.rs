//! Programs that are started: by vfork, and by what is like it.

use crate::harness::{LAZY, SLOW_STORE, Setup, Site, TINY, skip, works};

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
    assert!(first.is_some_and(|line| line.contains(" vfork(")), "{calls}");
}
