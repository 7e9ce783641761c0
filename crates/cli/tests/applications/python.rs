//! CPython's own tests, with their directory managed.

use std::collections::BTreeSet;

use crate::harness::{SMALL, Site, have, skip, works};

/// The tests that failed, as unittest names them, and the files that could not be run: not every
/// distribution has all of them.
fn failed(output: &str) -> BTreeSet<String> {
    let named = |line: &str| {
        let file = || Some(line.strip_prefix("test ")?.split_once(" crashed -- ")?.0);
        let test = ["FAIL: ", "ERROR: "].iter().find_map(|head| line.strip_prefix(head));
        test.or_else(file).map(str::to_owned)
    };
    output.lines().filter_map(named).collect()
}

/// Runs test files of CPython; what fails must fail without Forebay too.
fn passes(words: &str) {
    if !have(&["python3"]) {
        return;
    }
    if !works(&["python3", "-c", "import test.test_io, test.support"]) {
        return skip("this Python has no test package (Debian: libpython3.11-testsuite)");
    }
    let site = Site::new(&SMALL);
    let script =
        format!("export TMPDIR=$PWD; python3 -m test --tempdir $PWD --timeout 300 -v {words} 2>&1");
    let (ran, status) = site.run_buffered(&script);
    status.assert_live();
    let tests = ran.stdout.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(tests > 20, "only {tests} tests ran: {}", ran.stdout);
    if ran.code != 0 {
        let (got, wanted) = (failed(&ran.stdout), failed(&site.run_plainly(&script).stdout));
        let new: Vec<_> = got.difference(&wanted).collect();
        assert!(!got.is_empty() && new.is_empty(), "{new:#?} fail: {}", ran.stdout);
    }
}

#[test]
fn files_and_directories() {
    passes(
        "test_fileio test_file test_tempfile test_shutil test_fileinput test_filecmp test_pathlib test_glob",
    );
}

#[test]
fn streams() {
    // Those that wait for alarms only take long.
    passes("-i '*interrupt*' -i '*daemon_threads*' test_io test_bufio test_univnewlines");
}

#[test]
fn descriptors_and_mappings() {
    passes("test_mmap test_os test_posix test_fcntl test_select");
}

#[test]
fn archives() {
    passes("test_zipfile test_tarfile test_bz2 test_gzip test_lzma test_zipapp");
}

#[test]
fn databases() {
    passes(
        "test_dbm test_dbm_dumb test_dbm_gnu test_dbm_ndbm test_shelve test_sqlite3 test_mailbox",
    );
}

#[test]
#[ignore = "takes two minutes: cargo test -p forebay --test applications python -- --ignored"]
fn children_modules_and_large_files() {
    passes("test_subprocess test_logging test_import test_zipimport test_py_compile");
    passes("-m '*interrupt*' -m '*daemon_threads*' test_io");
    passes("-u largefile test_largefile");
}
