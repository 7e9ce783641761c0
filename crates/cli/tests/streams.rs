//! stdio and iostreams: glibc calls none of its public functions for them.

mod common;

use common::{LAZY, SLOW_STORE, Site};

#[test]
fn stdio_streams() {
    let site = Site::new(&LAZY);
    if site.compile("streams.c", &[]) {
        site.same("$BIN/streams file");
    }
}

#[test]
fn stdio_with_standard_streams_in_buffered_files() {
    let site = Site::new(&SLOW_STORE);
    if site.compile("streams.c", &[]) {
        site.same("$BIN/streams file > out 2> err; echo $?; $BIN/streams file >> out 2>&1; $BIN/streams file &> both; cat out err both");
    }
}

#[test]
fn fortified_streams() {
    let site = Site::new(&LAZY);
    if site.compile("streams.c", &["-O2", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"]) {
        site.same("$BIN/streams file > out; cat out");
    }
}

#[test]
fn cpp_streams() {
    let site = Site::new(&LAZY);
    if site.compile("streams_cpp.cc", &[]) {
        site.same("$BIN/streams_cpp file; $BIN/streams_cpp file > out 2>> err; $BIN/streams_cpp file >> out 2>> err; cat out err");
    }
}
