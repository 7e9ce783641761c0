//! stdio and iostreams: glibc calls none of its public functions for them.

use crate::harness::{LAZY, SLOW_STORE, Site, TINY, skip, works};

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

#[test]
fn every_corner_of_the_family() {
    let site = Site::new(&LAZY);
    if site.compile("family.c", &["-w", "-pthread"]) {
        site.same("$BIN/family file; $BIN/family file > out 2> err; cat out err");
    }
}

#[test]
fn the_family_while_blocks_move() {
    let site = Site::new(&TINY);
    if site.compile("family.c", &["-w", "-pthread", "-O2", "-D_FORTIFY_SOURCE=2"]) {
        site.same("$BIN/family file > out 2> err; cat out err");
    }
}

/// Pointers to the standard streams that a program keeps are good for whatever dup2 puts there.
#[test]
fn standard_streams_follow_their_descriptors() {
    let site = Site::new(&LAZY);
    if site.compile("standard.c", &[]) {
        site.same("$BIN/standard a; $BIN/standard b > out 2>> err < a.in; cat *.report out err");
    }
}

/// A shell that redirects itself stays buffered: nothing has to be flushed for its streams.
#[test]
fn a_shell_that_redirects_itself_is_buffered() {
    let site = Site::new(&LAZY);
    let status = site.same(
        "exec 3>&1 > log; for i in 1 2 3; do echo line $i; done; ls log
         while read line; do echo got $line; done < log > log2; printf '%s\n' end >> log2
         exec >&3; cat log log2",
    );
    assert_eq!(status.count("passthrough"), 0, "{}", status.text);
}

/// The character set of most locales, which the streams of these tests are in.
fn has_utf8() -> bool {
    let has = works(&["sh", "-c", "test \"$(LC_ALL=C.UTF-8 locale charmap)\" = UTF-8"]);
    if !has {
        skip("there is no locale C.UTF-8");
    }
    has
}

#[test]
fn wide_characters() {
    let site = Site::new(&LAZY);
    if has_utf8() && site.compile("wide.c", &[]) {
        site.same(
            "export LC_ALL=C.UTF-8; $BIN/wide a; $BIN/wide b > out 2> err; cat *.out out err
             export LC_ALL=C; $BIN/wide c; cat c.out",
        );
    }
}

/// Streams on descriptions that are at some offset already, that others share, or that have read
/// ahead.
#[test]
fn wide_characters_go_on_where_others_are() {
    let site = Site::new(&LAZY);
    if has_utf8() && site.compile("wide_shared.c", &[]) {
        site.same(
            "export LC_ALL=C.UTF-8
            (echo header; $BIN/wide_shared line; echo footer) > one
            sh -c '$BIN/wide_shared line; $BIN/wide_shared line' > two
            sh -c '$BIN/wide_shared line; $BIN/wide_shared line' >> two
            $BIN/wide_shared both > three 2>&1
            (echo header; $BIN/wide_shared saved) > four
            $BIN/wide_shared seek; $BIN/wide_shared set; head -50 numbers; cat one two three four",
        );
    }
}

#[test]
fn a_stream_goes_wide_and_is_reopened_while_a_thread_waits_to_read_it() {
    let site = Site::new(&LAZY);
    if site.compile("wide_race.c", &["-pthread"]) {
        site.same("$BIN/wide_race");
    }
}

#[test]
fn fortified_wide_characters() {
    let site = Site::new(&LAZY);
    if has_utf8() && site.compile("wide.c", &["-O2", "-D_FORTIFY_SOURCE=2"]) {
        site.same("export LC_ALL=C.UTF-8; $BIN/wide a > out; cat a.out out");
    }
}

#[test]
fn the_cpp_library() {
    let site = Site::new(&LAZY);
    if has_utf8() && site.compile("library.cc", &["-std=c++17"]) {
        site.same(
            "$BIN/library a; rm -r folder.copy; $BIN/library b async > out 2> err; cat out err",
        );
    }
}

/// Random calls in turns; every result, every position and all content as without Forebay.
#[test]
fn random_turns_of_reading_and_writing() {
    let first = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = first.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u32 / 16
    });
    println!("FOREBAY_SEED={first}");
    let site = Site::new(&TINY);
    if has_utf8() && site.compile("turns.c", &[]) {
        site.same(&format!(
            "for i in 0 1 2 3 4 5 6 7 8 9; do
                 rm -f $OUT/turns-*; echo seed $(({first} + i)); $BIN/turns $(({first} + i)) 2000
                 cat $OUT/turns-* | md5sum; echo code $?
             done"
        ));
    }
}

/// valgrind takes the vDSO away and says so to libc only.
#[test]
fn a_program_under_valgrind() {
    let site = Site::new(&LAZY);
    if !works(&["valgrind", "--version"]) {
        skip("there is no valgrind");
    } else if site.compile("streams.c", &[]) {
        site.same("valgrind -q --error-exitcode=9 $BIN/streams file > out; echo $?; cat out");
    }
}
