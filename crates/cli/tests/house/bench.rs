//! `forebay bench` at small scale: every figure runs on every system, and the data are right. Times
//! are not looked at.

use crate::harness::{self, Site, USUAL, works};
use std::fs;

/// Runs a figure; looks for so many rows, and for the systems in them.
fn run(figure: &str, rows: usize, systems: &[&str]) {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let site = Site::new(&USUAL);
    let (json, svg) = (site.out.join("figure.json"), site.out.join("figure.svg"));
    let mut command = site.forebay(&["bench", figure, "--scale", "small"]);
    command.arg("--dir").arg(&site.out).arg("--json").arg(&json).arg("--svg").arg(&svg);
    let ran = site.end(command).expect(0);
    assert!(ran.stdout.contains("all data compared byte by byte"), "{ran:?}");

    let (json, svg) = (fs::read_to_string(json).unwrap(), fs::read_to_string(svg).unwrap());
    assert_eq!(json.matches("\"system\":").count(), rows, "{json}");
    assert!(!json.contains("NaN"), "{json}");
    for system in ["no buffering", "Data Elevator", "DataWarp"].iter().chain(systems) {
        for text in [&ran.stdout, &json, &svg] {
            assert!(text.contains(system), "no {system} in {text}");
        }
    }
    let left: Vec<_> = fs::read_dir(&site.out).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("forebay-bench")), "{left:?}");
}

#[test]
fn alternating_compute_and_io() {
    run("hermes-fig8", 11, &["Forebay max-bandwidth", "Forebay max-locality"]);
}

#[test]
fn repetitive_reads() {
    run("hermes-fig9", 9, &["Forebay max-bandwidth", "Forebay hot-data"]);
}

#[test]
fn vpic() {
    run("hermes-fig10", 4, &["Forebay max-bandwidth"]);
}

#[test]
fn hacc() {
    run("hermes-fig11", 4, &["Forebay max-bandwidth"]);
}

/// Runs a benchmark that shows its own table; looks for these words in the table, the JSON and the
/// page.
fn compare(name: &str, words: &[&str]) -> String {
    let site = Site::new(&USUAL);
    let (json, page) = (site.out.join("out.json"), site.out.join("out.md"));
    let mut command = site.forebay(&["bench", name, "--quick"]);
    command.arg("--dir").arg(&site.out).arg("--json").arg(&json).arg("--markdown").arg(&page);
    let ran = site.end(command).expect(0);
    let (json, page) = (fs::read_to_string(json).unwrap(), fs::read_to_string(page).unwrap());
    for text in [&ran.stdout, &json, &page] {
        for word in words {
            assert!(text.contains(word), "no {word} in {text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
    let left: Vec<_> = fs::read_dir(&site.out).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("forebay-bench")), "{left:?}");
    json
}

#[test]
fn micro() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let json = compare("micro", &["forebay", "tmpfs", "page cache", "write-1m-new", "memcpy"]);
    // Every line of the table of what is wanted.
    assert_eq!(json.matches("\"wanted\":").count(), 23, "{json}");
}

#[test]
fn cliffs() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let words = ["tmpfs", "page cache", "write-4k-buffers (program alone)", "open-many (elapsed)"];
    let json = compare("cliffs", &words);
    // Each kind of operation is compared with the plain directory, and programs over a slow store,
    // too, but those that are missing.
    let missing = json.matches("is not installed").count();
    assert_eq!(json.matches("\"wanted\":").count() + 2 * missing, 38 + 7, "{json}");
}

#[test]
fn peers() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    // Nothing is installed here: the others say so, and the rest runs.
    let words =
        ["forebay", "tmpfs", "page cache", "NOT MEASURED: iowarp-core", "NOT MEASURED: JuiceFS"];
    compare("peers", &words);
}

#[test]
fn policies() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let words =
        ["max-bandwidth", "max-locality", "hot-data", "user-defined", "bound", "data: in bb"];
    compare("policies", &words);
}

#[test]
fn nvm_model() {
    let words = ["Table V HDD", "Table VI NVM", "the choice", "collective: the paper"];
    let json = compare("nvm-model", &words);
    // Two errors and a choice of each device, and random access on NVM, of both tables.
    assert_eq!(json.matches("\"wanted\":").count(), 2 * (3 * 3 + 1), "{json}");
}

#[test]
fn the_adapter_on_emulated_devices() {
    if !works(&["mpicc.mpich", "--version"]) || !works(&["mpiexec.mpich", "--version"]) {
        return harness::skip("no MPICH");
    }
    let words = ["NVM, read, pieces", "Forebay auto", "calls made alone", "Beside the model"];
    let json = compare("nvm-adapter", &words);
    // Over the better mode on three devices, and over collective calls on NVM, writing and reading.
    assert_eq!(json.matches("\"wanted\":").count(), 2 * (3 + 1), "{json}");
}

#[test]
fn analysis_in_transit() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    // Over HDF5 and MPI where they are; the query compares each byte that it reads.
    let words = ["Forebay staged", "build the index", "query Ux", "Beside the paper: 8:"];
    let json = compare("data-elevator-fig8", &words);
    assert_eq!(json.matches("\"wanted\":").count(), 2, "{json}");
}

#[test]
fn the_trade_off_of_collective_io() {
    let words = ["HDD, messages of 32 KB", "NVM, messages of 16 MB", "does not follow"];
    compare("nvm-fig11", &words);
}

/// A measurement: it may be disturbed by what else runs.
#[test]
fn the_model_of_collective_io_is_near_what_is_measured() {
    const ATTEMPTS: usize = 4;
    let mut said = Vec::new();
    for _ in 0..ATTEMPTS {
        let json = compare("nvm-model", &["Table V HDD"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let claims = json["claims"].as_array().unwrap();
        let missed = claims.iter().filter(|claim| claim["met"] == false);
        let missed: Vec<_> = missed.map(ToString::to_string).collect();
        if missed.is_empty() {
            return;
        }
        said.push(missed.join("\n"));
    }
    panic!("in {ATTEMPTS} attempts:\n{}", said.join("\n\n"));
}

#[test]
fn prefetch() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let words = ["reading ahead", "without", "tile: time over", "random: brought up in vain"];
    let json = compare("prefetch", &words);
    // Two for each pattern, and one for reads at random.
    assert_eq!(json.matches("\"wanted\":").count(), 2 * 4 + 1, "{json}");
}

#[test]
fn computing_out_of_core() {
    if !works(&["c++", "--version"]) {
        return harness::skip("no C++ compiler");
    }
    let words = ["burst buffer", "MLBS on Forebay", "ratio 1: expected", "migration, large grid"];
    let json = compare("mlbs", &words);
    // Faster than three systems and as expected, in each row; without waits where the model says
    // so: migration on the small grid.
    assert_eq!(json.matches("\"wanted\":").count(), 4 * 12 + 1, "{json}");
}

#[test]
fn links_between_nodes() {
    let words = ["tls", "sockets", "request of 64 B and answer", "pull 256 KiB", "push 16 MiB"];
    compare("fabric", &words);
}

/// Each benchmark that makes nodes, one after the other: they measure the same processors.
#[test]
fn several_nodes() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let wrong = |words: &[&str], code, why: &str| {
        let site = Site::new(&USUAL);
        let ran = site.end(site.forebay(&[&["bench"], words].concat())).expect(code);
        assert!(ran.stderr.contains(why), "{ran:?}");
    };
    wrong(&["nodes-fig5", "--nodes", "5"], 2, "5 is not in 2..=4");
    let spaces = ["unshare", "-m", "-n", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"];
    if !works(&spaces) && !works(&[&["unshare", "-U", "-r"], &spaces[1..]].concat()) {
        wrong(&["nodes", "--quick"], 125, "run it as root");
        return harness::skip(
            "neither root nor a user namespace may make networks and mounts here",
        );
    }
    wrong(&["nodes", "--quick", "--dir", "/dev/shm"], 125, "name another directory with --dir");

    let words = ["Forebay, single node", "Forebay, group of 3", "a killed manager is noticed"];
    let json = compare("nodes", &words);
    // Every line of the table of what is wanted; those of UCX where it is built in.
    let ucx = if cfg!(feature = "ucx") { 7 } else { 0 };
    assert_eq!(json.matches("\"wanted\":").count(), 23 + ucx, "{json}");
    compare("nodes-fig5", &["Forebay, group", "Redis", "memcached", "open, first on the node"]);
    compare("nodes-fig6", &["Forebay links, tls", "NATS", "publish", "subscribe"]);
}

#[test]
fn memory_operations() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    // Allocators that are not installed are named all the same.
    compare("hermes-fig4", &["Forebay buckets", "malloc", "tcmalloc", "jemalloc", "mimalloc"]);
}

#[test]
fn metadata_operations() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let words = ["Forebay index", "Redis", "memcached", "single server", "loopback", "lookup"];
    compare("hermes-fig5", &words);
}

#[test]
fn queue_operations() {
    if !works(&["cc", "--version"]) {
        return harness::skip("no C compiler");
    }
    let words = ["Forebay queue", "NATS", "memcached", "single server", "publish", "subscribe"];
    compare("hermes-fig6", &words);
}

#[test]
fn a_compiler_that_fails_is_an_error() {
    let site = Site::new(&USUAL);
    let mut command = site.forebay(&["bench", "hermes-fig8", "--scale", "small"]);
    command.arg("--dir").arg(&site.out).env("CC", "false");
    let ran = site.end(command).expect(125);
    assert!(ran.stderr.contains("`false` cannot compile alternating.c"), "{ran:?}");
}
