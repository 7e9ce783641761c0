//! Descriptors that are inherited, duplicated, passed on or invalid.

use crate::harness::{LAZY, SLOW_STORE, Setup, Site};
use std::fs;

/// Runs a part of `programs/descriptors.c` with and without Forebay.
fn same(setup: &Setup, what: &str) {
    let site = Site::new(setup);
    if site.compile("descriptors.c", &[]) {
        site.same(&format!("$BIN/descriptors {what} file"));
    }
}

#[test]
fn a_forked_child_shares_the_offset() {
    same(&SLOW_STORE, "fork");
}

#[test]
fn duplicates_share_the_offset() {
    same(&LAZY, "dup");
}

#[test]
fn descriptors_survive_exec() {
    same(&LAZY, "exec");
}

#[test]
fn descriptors_survive_posix_spawn() {
    same(&LAZY, "spawn");
}

/// A growth that waits for all processors (20 ms) is none of the first read's.
#[test]
fn the_table_reaches_forebays_own_before_there_are_threads() {
    let site = Site::new(&LAZY);
    if !site.compile("threaded.c", &[]) {
        return;
    }
    let ran = site.run_buffered("$BIN/threaded").0.expect(0);
    let sizes: Vec<u32> = ran.stdout.lines().map(|line| line.parse().unwrap()).collect();
    let [before, first, parent, child] = sizes[..] else { panic!("{ran:?}") };
    assert!(before < 900, "{ran:?}");
    assert!([first, parent, child].iter().all(|size| *size > 900), "{ran:?}");
}

#[test]
fn a_daemon_that_closes_everything_goes_on() {
    same(&LAZY, "closeall");
}

#[test]
fn invalid_arguments_give_the_same_errors() {
    same(&LAZY, "pointers");
}

#[test]
fn a_descriptor_passes_through_a_socket() {
    same(&LAZY, "pass");
}

#[test]
fn an_open_with_o_trunc_cuts_a_file_that_others_have_open() {
    same(&LAZY, "truncate");
}

#[test]
fn what_ftruncate_cuts_off_never_comes_back() {
    same(&LAZY, "cut");
    same(&SLOW_STORE, "cut");
}

#[test]
fn dirty_files_are_renamed_and_unlinked() {
    same(&LAZY, "rename");
}

#[test]
fn children_without_the_environment_are_still_buffered() {
    let site = Site::new(&LAZY);
    site.same(
        "echo one > log; env -i /bin/sh -c 'echo two >> log; cat log; /bin/echo three >> log; wc -c < log' >> out; env -i /bin/cat log out
         (unset LD_PRELOAD; /bin/echo four >> log; /bin/sh -c '/bin/cat log; echo five >> log');
         exec 7>> log; env -i /bin/sh -c 'echo six >&7'; echo seven >&7; cat log; nohup sh -c 'echo eight' >> log 2> /dev/null; setsid sh -c 'echo nine >> log'; cat log",
    );
}

#[test]
fn children_of_system_and_popen_are_still_buffered() {
    same(&LAZY, "clear");
}

#[test]
fn children_with_another_preload_are_still_right() {
    let site = Site::new(&LAZY);
    site.same(
        "echo one > log; LD_PRELOAD= /bin/cat log; { echo two; LD_PRELOAD= /bin/echo three; echo four; } >> log; stat -c %s log
         head -c 100 log; (export LD_PRELOAD=; /bin/head -c 100 log; /bin/sh -c 'echo five >> log'); head -c 100 log",
    );
}

#[test]
fn a_static_program_writes_through_a_descriptor_that_dup2_made_above_all_others() {
    let site = Site::new(&LAZY);
    if !site.compile("descriptors.c", &["-static"]) {
        return;
    }
    // The shell opens the file as 3, and duplicates that.
    site.same(
        "exec 9> file; echo one >&9; $BIN/descriptors successor file; echo two >&9; cat file",
    );
}

#[test]
fn what_a_program_is_told_is_not_in_its_environment() {
    let site = Site::new(&LAZY);
    let (ran, _) = site.run_buffered("env; exec sh -c 'env'");
    let said = ran.expect(0).stdout;
    assert!(said.contains("FOREBAY_POOL=") && !said.contains("FOREBAY_PROCESS="), "{said}");
}

#[test]
fn children_killed_at_birth_leave_nothing() {
    let site = Site::new(&LAZY);
    if !site.compile("descriptors.c", &[]) {
        return;
    }
    let status = site.same("$BIN/descriptors newborn file");
    let clients = status.text.lines().find_map(|line| line.trim().strip_prefix("clients "));
    let clients: u32 = clients.unwrap().trim().parse().unwrap();
    assert!(clients < 10, "{}", status.text);
}

#[test]
fn a_static_program_writes_to_a_buffered_stdout() {
    let site = Site::new(&LAZY);
    if !site.compile("unlinked.c", &["-static"]) {
        return;
    }
    site.same(
        "echo one > log; { echo two; $BIN/unlinked three four; echo five; } >> log; cat log; stat -c %s log; $BIN/unlinked six >> log; wc -c log
         { echo a; $BIN/unlinked b; echo c; $BIN/unlinked d; } > fresh; cat fresh; exec 3> third; echo x >&3; $BIN/unlinked y >&3; echo z >&3; exec 3>&-; cat third; $BIN/unlinked 1 2 3 | cat > piped",
    );
}

#[test]
fn a_static_program_reads_what_was_just_written() {
    let site = Site::new(&LAZY);
    if !site.compile("unlinked.c", &["-static"]) {
        return;
    }
    site.same("echo one > log; $BIN/unlinked -f log; echo two >> log; $BIN/unlinked -f log; $BIN/unlinked -f /dev/stdin < log");
}

/// A program that joins another pool, or one that is gone, reads and writes what it inherits
/// through the kernel.
#[test]
fn what_another_pool_or_none_inherits_is_the_kernels() {
    let site = Site::new(&LAZY);
    for folder in ["inner", "inner-nvme"] {
        fs::create_dir(site.out.join(folder)).unwrap();
    }
    let text = fs::read_to_string(&site.config).unwrap();
    let text =
        text.replace("\"store\"", "\"out/inner\"").replace("\"nvme\"\nc", "\"out/inner-nvme\"\nc");
    let inner = site.config.with_file_name("inner.toml");
    fs::write(&inner, text).unwrap();
    let script = format!(
        "exec 3<>a; echo data >&3
        FOREBAY_POOL=/dev/shm/forebay-0-0123456789abcdef.pool bash -c 'cat a; echo more >&3'
        cat a
        $FOREBAY run --config {} -- bash -c 'echo even more >&3; echo inner > $OUT/inner/file'
        echo $?; cat a $OUT/inner/file",
        inner.display()
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script])).expect(0);
    let wanted = "data\ndata\nmore\n0\ndata\nmore\neven more\ninner\n";
    assert_eq!(ran.stdout, wanted, "{ran:?}");
    assert_eq!(fs::read_to_string(site.store.join("a")).unwrap(), "data\nmore\neven more\n");
}
