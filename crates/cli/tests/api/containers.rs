//! Containers of records, from C++, with MPI and from Python, under Forebay and plainly.

use crate::c_library::{JOURNAL, install, link};
use crate::harness::{self, LAZY, LIMIT, SLOW_STORE, Setup, Site, TINY, wait_for};
use crate::root;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// RAM that a fifth of the records fills, and a file tier that all of them fill.
const FEW: Setup = Setup { ram: "8MiB", nvme: "24MiB", nvme_emulate: None, ..TINY };

/// A site with `container.cc`.
fn site(setup: &Setup, standard: &[&str]) -> Option<Site> {
    let site = Site::new(setup);
    (harness::have(&["c++"]) && link(&site, "container.cc", standard)).then_some(site)
}

const NEW: &[&str] = &["-std=c++20"];
const OLD: &[&str] = &["-std=c++17", "-fno-exceptions", "-fno-rtti"];

/// Nothing of containers that are not kept.
fn assert_clean(folder: &Path) {
    let left: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn both(site: &Site, script: &str) {
    let ran = site.run_plainly(script).expect(0);
    assert!(ran.stdout.ends_with("done\n"), "{ran:?}");
    assert_clean(&site.plain);
    let (ran, status) = site.run_buffered(script);
    assert!(ran.clone().expect(0).stdout.ends_with("done\n"), "{ran:?}");
    status.assert_live();
    assert_clean(&site.store);
}

#[test]
fn each_order_finds_its_records_in_memory_and_every_byte_is_right() {
    for setup in [FEW, SLOW_STORE] {
        let Some(site) = site(&setup, NEW) else { return };
        // 32 MiB of records; the program itself wants 0.95 of the reads after the first two.
        both(&site, "$BIN/container phases $PWD");
    }
}

#[test]
fn programs_of_each_standard_work_also_without_exceptions() {
    for standard in [OLD, NEW] {
        let Some(site) = site(&LAZY, standard) else { return };
        both(&site, "$BIN/container elements $PWD");
        both(&site, "$BIN/container bad $PWD");
    }
}

#[test]
fn what_is_beyond_the_limits_leaves_the_tiers() {
    let Some(site) = site(&LAZY, NEW) else { return };
    both(&site, "$BIN/container limits $PWD");
}

#[test]
fn a_store_that_is_full_takes_no_record_away() {
    let Some(site) = site(&LAZY, NEW) else { return };
    let (faults, flag) = (site.out.join("faults"), site.out.join("flag"));
    fs::write(&faults, format!("store write fail ENOSPC while {}", flag.display())).unwrap();
    fs::write(&flag, "").unwrap();
    let words = [("FOREBAY_FAULTS", faults.to_str().unwrap())];
    let (ran, _) = site.run_buffered_with(&words, "$BIN/container full $PWD; rm $OUT/flag");
    assert_eq!(ran.expect(0).stdout, "done\n");
    assert_clean(&site.store);
}

/// The part of the page for users in a block of `kind`, the first that contains `words`.
fn example(kind: &str, words: &str) -> String {
    let page = fs::read_to_string(root().join("docs/container.md")).unwrap();
    let start = format!("```{kind}\n");
    let blocks = page.split(start.as_str()).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).find(|block| block.contains(words)).unwrap()
}

#[test]
fn scratch_records_never_reach_the_store_by_the_rule_of_the_page() {
    let Some(site) = site(&FEW, NEW) else { return };
    let schema = site.root().join("schema.xml");
    fs::write(&schema, example("xml", "scratch")).unwrap();
    let words = ["--config", site.config.to_str().unwrap(), "--schema", schema.to_str().unwrap()];
    for part in ["scratch", "phases"] {
        let mut command = site.forebay(&[&["run"], &words[..], &["--"]].concat());
        command.arg(site.root().join("container")).arg(part).arg(&site.store);
        let ran = site.end(command).expect(0);
        assert!(ran.stdout.ends_with("done\n"), "{ran:?}");
        assert_clean(&site.store);
    }
}

#[test]
fn the_examples_of_the_page_work() {
    let site = Site::new(&FEW);
    if !harness::have(&["c++"]) {
        return;
    }
    let (source, library) = (site.root().join("solver.cc"), install(&site));
    fs::write(&source, example("cpp", "int main")).unwrap();
    let compile = |compiler: &str, more: &[&str], source: &Path| {
        let made = Command::new(compiler)
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror"])
            .args(more)
            .arg(source)
            .arg(format!("-I{}", root().join("include").display()))
            .arg(format!("-L{}", library.display()))
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-lforebay")
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let program = site.root().join("solver");
    compile("c++", &["-o", program.to_str().unwrap()], &source);
    both(&site, "$BIN/solver && echo done");
    if harness::have(&["mpicxx.mpich"]) {
        fs::write(&source, example("cpp", "setComm")).unwrap();
        let object = site.root().join("image.o");
        compile("mpicxx.mpich", &["-c", "-o", object.to_str().unwrap()], &source);
    }
    let Some(python) = harness::python_with("numpy") else { return };
    let script = site.root().join("solver.py");
    fs::write(&script, example("python", "MLBStore")).unwrap();
    let script = format!(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={} FOREBAY_LIBRARY={} {python} {} && echo done",
        root().join("python").display(),
        library.join("libforebay.so.0").display(),
        script.display()
    );
    both(&site, &script);
    assert_eq!(site.run_plainly(&script).stdout, "20825\ndone\n");
}

#[test]
fn compilers_take_the_headers_without_a_warning() {
    let site = Site::new(&LAZY);
    let source = root().join("crates/cli/tests/programs/container.cc");
    for standard in [OLD, NEW] {
        if !harness::have(&["c++"]) {
            return;
        }
        let made = Command::new("c++")
            .args(["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-pedantic", "-c"])
            .args(standard)
            .arg(format!("-I{}", root().join("include").display()))
            .arg("-o")
            .arg(site.root().join("object"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}

/// A type whose bytes are not its value is refused by the compiler.
#[test]
fn elements_have_to_be_trivially_copyable() {
    let site = Site::new(&LAZY);
    if !harness::have(&["c++"]) {
        return;
    }
    let source = site.root().join("wrong.cc");
    let text = "#include <forebay/mlbs.hpp>\nforebay::MLBStore<std::string> store;\n";
    fs::write(&source, text).unwrap();
    let made = Command::new("c++")
        .args(["-std=c++17", "-fsyntax-only"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(!made.status.success() && said.contains("must be trivially copyable"), "{said}");
}

/// Starts `part` of the program, and kills it once it has said so many numbers. The last one.
fn killed_after(site: &Site, part: &str, count: usize, all: bool) -> u64 {
    let program = site.root().join("container");
    let store = site.store.to_str().unwrap();
    let mut command = site.buffered(&[program.to_str().unwrap(), part, store]);
    // Both layouts, in turn.
    if count % 2 == 1 {
        command.env("PER_RECORD", "1");
    }
    let mut run = site.start(command);
    let lines = |text: &str| text.matches('\n').count();
    wait_for("records", LIMIT, || {
        assert!(run.is_running(), "{}", run.stderr());
        (lines(&run.stdout()) >= count).then_some(())
    });
    if all {
        site.kill_all();
    } else {
        let mine = |&pid: &u32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program)
        };
        let pid = site.processes().into_iter().find(mine).unwrap();
        harness::kill(pid, Signal::KILL);
    }
    let said = run.end().stdout;
    let (whole, _) = said.rsplit_once('\n').unwrap();
    whole.rsplit('\n').next().unwrap().parse().unwrap()
}

fn finds(site: &Site, last: u64) {
    let (ran, _) = site.run_buffered(&format!("$BIN/container finds $PWD {last}"));
    assert!(ran.clone().expect(0).stdout.ends_with("done\n"), "{ran:?}");
    // And what is on the store after it.
    let plainly = format!("cd {} && $BIN/container finds $PWD {last}", site.store.display());
    let ran = site.run_plainly(&plainly);
    assert!(ran.clone().expect(0).stdout.ends_with("done\n"), "{ran:?}");
}

#[test]
fn what_was_written_is_there_after_the_program_was_killed() {
    for (setup, count) in [(FEW, 7), (FEW, 61), (FEW, 200), (LAZY, 130)] {
        let Some(site) = site(&setup, NEW) else { return };
        let last = killed_after(&site, "writes", count, false);
        finds(&site, last);
    }
}

#[test]
fn what_was_written_is_there_after_program_and_manager_were_killed() {
    for (setup, count) in [(FEW, 5), (FEW, 77), (FEW, 210), (LAZY, 120)] {
        let Some(site) = site(&setup, NEW) else { return };
        let last = killed_after(&site, "writes", count, true);
        let config = site.config.to_str().unwrap();
        site.end(site.forebay(&["recover", "--config", config])).expect(0);
        finds(&site, last);
    }
}

/// The same of files of the kernel's, at many moments.
#[test]
fn what_was_written_plainly_is_there_after_each_of_many_kills() {
    let Some(site) = site(&LAZY, NEW) else { return };
    let script = "
        $BIN/container writes $PWD > said & pid=$!
        sleep 0.$1; kill -9 $pid; wait $pid 2> /dev/null
        last=$(grep -c '' said) || last=0
        rm -f said
        [ $last = 0 ] || $BIN/container finds $PWD $((last - 1)) || exit
        rm -rf kept.records";
    let mut whole = 0;
    for turn in 0..24 {
        let layout = if turn % 2 == 0 { "unset PER_RECORD" } else { "export PER_RECORD=1" };
        let script = format!("set -- {:03}; {layout}; {script}", 20 + turn * 7);
        whole += usize::from(site.run_plainly(&script).expect(0).stdout.contains("done"));
    }
    assert!(whole >= 12, "{whole}");
}

#[test]
fn what_was_synced_is_there_after_the_memory_was_lost() {
    for setup in [LAZY, JOURNAL] {
        let Some(site) = site(&setup, NEW) else { return };
        let last = killed_after(&site, "syncs", 70, true);
        site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
        let config = site.config.to_str().unwrap();
        site.end(site.forebay(&["recover", "--config", config])).expect(0);
        finds(&site, last);
    }
}

#[test]
fn python_and_numpy_see_the_elements_without_a_copy() {
    let site = Site::new(&FEW);
    let Some(python) = harness::python_with("numpy") else { return };
    let library = install(&site).join("libforebay.so.0");
    let (sources, script) =
        (root().join("python"), root().join("crates/cli/tests/programs/container.py"));
    let script = format!(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={} FOREBAY_LIBRARY={} {python} {} $PWD",
        sources.display(),
        library.display(),
        script.display()
    );
    both(&site, &script);
}

#[test]
fn ranks_of_mpi_share_a_container_and_reduce_it() {
    let site = Site::new(&FEW);
    if !harness::have(&["mpicxx.mpich", "mpiexec.mpich"]) {
        return;
    }
    let library = install(&site);
    let flags = [
        "-std=c++17".to_owned(),
        format!("-I{}", root().join("include").display()),
        format!("-L{}", library.display()),
        format!("-Wl,-rpath,{}", library.display()),
        "-lforebay".to_owned(),
    ];
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    if !harness::compile_by("mpicxx.mpich", site.root(), "container_mpi.cc", &flags) {
        return;
    }
    for ranks in [2, 3] {
        both(&site, &format!("FOREBAY_RECORDS=$PWD mpiexec.mpich -n {ranks} $BIN/container_mpi"));
    }
}
