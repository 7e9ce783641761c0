//! Programs that use it, under Forebay and plainly.

use crate::harness::{self, LAZY, LIMIT, Setup, Site, TINY, USUAL, skip, wait_for};
use crate::{built, root};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Nothing reaches the store before the run ends, unless that is asked for; there is a journal.
pub const JOURNAL: Setup =
    Setup { flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"", ..LAZY };

/// Puts the C library into a folder of the site, by the names that linker and loader look for.
pub fn install(site: &Site) -> PathBuf {
    let folder = site.root().join("lib");
    fs::create_dir_all(&folder).unwrap();
    for name in ["libforebay.so", "libforebay.so.0"] {
        symlink(built("libforebay_capi.so"), folder.join(name)).unwrap();
    }
    folder
}

/// Compiles a program and links it to the library. False, and loud, without a compiler.
pub fn link(site: &Site, source: &str, more: &[&str]) -> bool {
    let (library, include) = (install(site), root().join("include"));
    let flags = [
        format!("-I{}", include.display()),
        format!("-L{}", library.display()),
        format!("-Wl,-rpath,{}", library.display()),
        "-lforebay".to_owned(),
        "-pthread".to_owned(),
    ];
    let flags: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    site.compile(source, &flags)
}

/// A site with `api.c`; `None`, and loud, without a compiler.
fn site(setup: &Setup) -> Option<Site> {
    let site = Site::new(setup);
    link(&site, "api.c", &[]).then_some(site)
}

/// Runs a part of `api.c` under Forebay, in the buffered directory.
fn under_forebay(site: &Site, script: &str) {
    let (ran, status) = site.run_buffered(script);
    assert_eq!(ran.expect(0).stdout, "done\n");
    status.assert_live();
}

#[test]
fn a_program_knows_what_is_safe_and_where_it_is() {
    let Some(site) = site(&LAZY) else { return };
    under_forebay(&site, "$BIN/api buffered $PWD/file $OUT/outside");
    let file = fs::read(site.store.join("file")).unwrap();
    assert_eq!(&file[..5], b"other");
    assert_eq!(&file[4096..4099], b"new");
    // The same answers with a journal.
    site.configure(&JOURNAL);
    under_forebay(&site, "$BIN/api buffered $PWD/file2 $OUT/outside2");
}

#[test]
fn the_same_program_works_without_forebay() {
    let Some(site) = site(&LAZY) else { return };
    assert_eq!(site.run_plainly("$BIN/api plain $PWD/file").expect(0).stdout, "done\n");
    assert_eq!(fs::metadata(site.plain.join("file")).unwrap().len(), 3 * (256 << 10) + 1000);
}

#[test]
fn bad_input_is_named_and_harms_nothing() {
    let Some(site) = site(&LAZY) else { return };
    assert_eq!(site.run_plainly("$BIN/api bad $PWD/file").expect(0).stdout, "done\n");
    let (ran, _) = site.run_buffered("$BIN/api bad $PWD/file");
    assert_eq!(ran.expect(0).stdout, "done\n");
    site.assert_same_files();
}

#[test]
fn a_wait_ends_in_time_where_the_node_manager_does_not_go_on() {
    let Some(site) = site(&LAZY) else { return };
    under_forebay(&site, "$BIN/api late $PWD/file");
}

#[test]
fn without_a_node_manager_a_flush_brings_the_file_to_the_store() {
    for setup in [LAZY, JOURNAL] {
        let Some(site) = site(&setup) else { return };
        let (program, mark, file) =
            (site.root().join("api"), site.out.join("mark"), site.store.join("file"));
        let mut command =
            site.buffered(&[program.to_str().unwrap(), "alone", file.to_str().unwrap()]);
        command.env("MARK", &mark);
        let run = site.start(command);
        // The program goes on without the process that has started it.
        let ran = run.end();
        wait_for("the end of the program", LIMIT, || mark.exists().then_some(()));
        assert_eq!(ran.code, 128 + Signal::KILL.as_raw());
        assert_eq!(&fs::read(&file).unwrap()[..5], b"later");
        site.kill_all();
        site.end(site.forebay(&["recover", "--config", site.config.to_str().unwrap()])).expect(0);
    }
}

#[test]
fn threads_that_share_a_handle_are_told_the_truth() {
    for setup in [LAZY, JOURNAL] {
        let Some(site) = site(&setup) else { return };
        under_forebay(&site, "$BIN/api shared $PWD/file");
    }
}

#[test]
fn threads_share_sessions_and_files() {
    for setup in [USUAL, TINY] {
        let Some(site) = site(&setup) else { return };
        under_forebay(&site, "$BIN/api threads $PWD");
    }
}

#[test]
fn a_child_goes_on_with_the_handles_of_its_parent() {
    let Some(site) = site(&LAZY) else { return };
    under_forebay(&site, "$BIN/api forks $PWD/file");
    assert_eq!(fs::read(site.store.join("file")).unwrap(), b"parentchild again");
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..3 * (256 << 10) + 1000).map(|at| (at * 7 + at / 256 + seed) as u8).collect()
}

/// How many pages of the file at `path` were written, and how many of these no sync has followed:
/// what a loss of power may take. `kept` is where a build for tests notes that, see
/// `pool/src/power_loss.rs`; `None` in other builds.
fn written_and_unsynced(kept: &Path, path: &Path) -> Option<(usize, usize)> {
    let start = format!("{}-", fs::metadata(path).unwrap().dev());
    let inode = format!("{start}{}-", fs::metadata(path).unwrap().ino());
    let notes = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path());
    let (mut writes, mut synced) = (Vec::new(), 0);
    let mut any = false;
    for note in notes {
        let name = note.file_name().unwrap().to_str().unwrap().to_owned();
        any = true;
        if !name.starts_with(&inode) && name != format!("{start}all") {
            continue;
        }
        let text = fs::read(note).unwrap();
        let mut left = text.as_slice();
        while let Some((head, rest)) = left.split_at_checked(40) {
            let word = |at: usize| u64::from_ne_bytes(head[at * 8..][..8].try_into().unwrap());
            let bytes = word(3) as usize;
            match word(1) {
                1 => synced = synced.max(word(0)),
                0 | 2 => writes.push(word(0)),
                kind => panic!("{kind}"),
            }
            left = &rest[bytes.min(rest.len())..];
        }
    }
    any.then(|| (writes.len(), writes.iter().filter(|&&time| time >= synced).count()))
}

#[test]
fn what_is_safe_is_there_after_everything_was_killed() {
    for (level, setup) in [("store", LAZY), ("store", JOURNAL), ("durable", JOURNAL)] {
        let Some(site) = site(&setup) else { return };
        let (program, mark) = (site.root().join("api"), site.out.join("safe"));
        let (file, kept) = (site.store.join("file"), site.root().join("kept"));
        fs::create_dir(&kept).unwrap();
        let words = [program.as_path(), Path::new("killed"), &file, Path::new(level), &mark];
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let mut command = site.buffered(&words);
        command.env("FOREBAY_POWER_LOSS", &kept);
        let mut run = site.start(command);
        wait_for("a safe file", LIMIT, || {
            assert!(mark.exists() || run.is_running(), "{}", run.stderr());
            mark.exists().then_some(())
        });
        site.kill_all();
        assert_eq!(run.end().code, 128 + Signal::KILL.as_raw());
        // The memory is lost, as when the node is started again.
        assert!(!site.pools().is_empty());
        site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
        let stored = fs::read(&file).unwrap();
        let at_risk = match level {
            "store" => {
                harness::assert_same_bytes(level, &stored, &pattern(4));
                written_and_unsynced(&kept, &file)
            }
            _ => {
                assert!(stored != pattern(4), "the journal had nothing to do");
                let entries = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
                let is_journal =
                    |path: &PathBuf| path.extension().is_some_and(|end| end == "journal");
                let journal = entries.into_iter().find(is_journal).unwrap();
                written_and_unsynced(&kept, &journal)
            }
        };
        match at_risk {
            Some((written, unsynced)) => assert!(written > 0 && unsynced == 0, "{at_risk:?}"),
            None => skip("only a build with debug assertions notes what was synced"),
        }
        site.end(site.forebay(&["recover", "--config", site.config.to_str().unwrap()])).expect(0);
        harness::assert_same_bytes(level, &fs::read(&file).unwrap(), &pattern(4));
    }
}

#[test]
fn what_will_be_read_is_brought_up_and_no_more() {
    let Some(site) = site(&USUAL) else { return };
    fs::write(site.store.join("file"), vec![1; 12 * (256 << 10)]).unwrap();
    under_forebay(&site, "$BIN/api ahead $PWD/file");
}

#[test]
fn a_flush_that_fails_is_told_and_one_that_succeeds_later_too() {
    let Some(site) = site(&LAZY) else { return };
    let (faults, flag) = (site.out.join("faults"), site.out.join("flag"));
    fs::write(&faults, format!("store write fail ENOSPC while {}", flag.display())).unwrap();
    fs::write(&flag, "").unwrap();
    let words = [("FOREBAY_FAULTS", faults.to_str().unwrap())];
    let (ran, _) = site.run_buffered_with(&words, "$BIN/api failing $PWD/file $OUT/flag");
    assert_eq!(ran.expect(0).stdout, "done\n");
    assert_eq!(fs::metadata(site.store.join("file")).unwrap().len(), 3 * (256 << 10) + 1000);
}

#[test]
fn a_scratch_file_is_never_safe() {
    let Some(site) = site(&LAZY) else { return };
    let program = site.root().join("api");
    let words = ["run", "--config", site.config.to_str().unwrap(), "--mode", "scratch", "--"];
    let file = site.store.join("file");
    let mut command = site.forebay(&words);
    command.arg(&program).arg("scratch").arg(&file);
    assert_eq!(site.end(command).expect(0).stdout, "done\n");
}

#[test]
fn a_library_that_is_loaded_later_uses_the_session_of_the_process() {
    let site = Site::new(&LAZY);
    let include = format!("-I{}", root().join("include").display());
    if !site.compile("api_loaded.c", &[&include, "-ldl"]) {
        return;
    }
    let (first, second) = (install(&site).join("libforebay.so.0"), site.root().join("copy.so"));
    // A file of its own is another library to the loader, with another copy of all its state.
    fs::copy(built("libforebay_capi.so"), &second).unwrap();
    let words = format!("{} {}", first.display(), second.display());
    under_forebay(&site, &format!("$BIN/api_loaded buffered {words} $PWD/file"));
    let ran = site.run_plainly(&format!("$BIN/api_loaded plain {words} $PWD/file"));
    assert_eq!(ran.expect(0).stdout, "done\n");
    site.assert_same_files();
}

#[test]
fn a_program_that_runs_without_forebay_within_a_run_is_told_so() {
    let Some(site) = site(&LAZY) else { return };
    let (ran, _) = site.run_buffered("FOREBAY_DISABLE=1 $BIN/api plain $OUT/file");
    assert_eq!(ran.expect(0).stdout, "done\n");
}

#[test]
fn pkg_config_says_how_to_compile_and_link() {
    let site = Site::new(&LAZY);
    if !harness::have(&["pkg-config", "cc"]) {
        return;
    }
    let folder = install(&site).join("pkgconfig");
    fs::create_dir(&folder).unwrap();
    symlink(root().join("include"), site.root().join("include")).unwrap();
    let file = fs::read_to_string(root().join("crates/capi/forebay.pc.in")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    fs::write(folder.join("forebay.pc"), file.replace("@VERSION@", version)).unwrap();
    let asked = Command::new("pkg-config")
        .args(["--cflags", "--libs", &format!("forebay = {version}")])
        .env("PKG_CONFIG_PATH", &folder)
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let flags = String::from_utf8(asked.stdout).unwrap();
    let path = format!("-Wl,-rpath,{}", site.root().join("lib").display());
    let flags: Vec<_> = flags.split_whitespace().chain([path.as_str(), "-pthread"]).collect();
    if site.compile("api.c", &flags) {
        assert_eq!(site.run_plainly("$BIN/api plain $PWD/file").expect(0).stdout, "done\n");
    }
}

/// The example project finds what is installed, is built, and does what it says.
#[test]
fn cmake_finds_the_library_for_the_example_project() {
    let site = Site::new(&USUAL);
    if !harness::have(&["cmake", "make", "cc"]) {
        return;
    }
    let prefix = site.root().to_owned();
    let folder = install(&site).join("cmake/forebay");
    fs::create_dir_all(&folder).unwrap();
    symlink(root().join("include"), prefix.join("include")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for name in ["forebay-config.cmake", "forebay-config-version.cmake"] {
        let file = fs::read_to_string(root().join(format!("crates/capi/{name}.in"))).unwrap();
        fs::write(folder.join(name), file.replace("@VERSION@", version)).unwrap();
    }
    let (source, build) = (root().join("examples/api"), prefix.join("build"));
    let (source, build) = (source.display(), build.display());
    let script = format!(
        "cmake -S {source} -B {build} -DCMAKE_PREFIX_PATH={} -DCMAKE_C_FLAGS='-Wall -Wextra -Werror' && \
         cmake --build {build}",
        prefix.display()
    );
    site.run_plainly(&script).expect(0);
    let (ran, status) = site.run_buffered(&format!("{build}/checkpoints ."));
    assert_eq!(ran.expect(0).stdout, "the latest state is ./state.40\n");
    status.assert_live();
    let left: Vec<_> = fs::read_dir(&site.store).unwrap().map(|at| at.unwrap().path()).collect();
    assert_eq!(left, [site.store.join("state.40")]);
    assert_eq!(fs::metadata(&left[0]).unwrap().len(), 8 << 20);
    // A version that has other declarations is not taken.
    let other = format!(
        "mkdir other && printf 'cmake_minimum_required(VERSION 3.13)\\nproject(other C)\\n\
         find_package(forebay 9.9 REQUIRED)\\n' > other/CMakeLists.txt && \
         cmake -S other -B other/build -DCMAKE_PREFIX_PATH={}",
        prefix.display()
    );
    let refused = site.run_plainly(&other);
    assert!(refused.code != 0 && refused.stderr.contains("version: "), "{refused:?}");
}

/// The example of the page for users is compiled and run as it says.
#[test]
fn the_example_of_the_page_works() {
    let page = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let example = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let Some(site) = site(&LAZY) else { return };
    let (source, program) = (site.root().join("example.c"), site.root().join("example"));
    fs::write(&source, example).unwrap();
    let library = site.root().join("lib");
    let made = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .args([&program, &source])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lforebay")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let script = "mkdir project && $BIN/example && wc -c < project/checkpoint.1";
    site.same(script);
    assert_eq!(fs::metadata(site.store.join("project/checkpoint.1")).unwrap().len(), 8 << 20);
}

#[test]
fn c_and_cxx_compilers_take_the_header_as_it_is() {
    let site = Site::new(&LAZY);
    let include = format!("-I{}", root().join("include").display());
    let programs = root().join("crates/cli/tests/programs");
    let strict = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic", "-c"];
    let ways: [(&str, &str, &[&str]); 4] = [
        ("cc", "api_header.c", &["-std=c99"]),
        ("cc", "api_header.c", &["-std=c17"]),
        ("c++", "api_header.cc", &["-std=c++17"]),
        ("c++", "api_header.cc", &["-std=c++20"]),
    ];
    for (compiler, source, standard) in ways {
        let made = Command::new(compiler)
            .args(strict)
            .args(standard)
            .arg(&include)
            .arg("-o")
            .arg(site.root().join("object"))
            .arg(programs.join(source))
            .output();
        match made {
            Ok(made) => assert!(
                made.status.success(),
                "{compiler} {standard:?}: {}",
                String::from_utf8_lossy(&made.stderr)
            ),
            Err(error) => skip(&format!("{compiler}: {error}")),
        }
    }
    // A program of C++ runs, too.
    if harness::have(&["c++"]) && link(&site, "api_header.cc", &["-std=c++17"]) {
        assert_eq!(site.run_plainly("$BIN/api_header $PWD/file").expect(0).stdout, "1\n");
        let (ran, status) = site.run_buffered("$BIN/api_header $PWD/file");
        assert_eq!(ran.expect(0).stdout, "1\n");
        status.assert_live();
        assert_eq!(fs::read(site.store.join("file")).unwrap(), b"from C++");
    }
}
