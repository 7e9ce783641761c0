//! Notes how the command is built, for `forebay --version`; collects the names of all crash points,
//! for `forebay torture` to say how many of them it has reached, and of all allocations that it
//! refuses.

#[path = "build/commit.rs"]
mod commit;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

const CRATES: [&str; 4] = ["client", "node", "pool", "preload"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    note_build();
    if env::var_os("CARGO_FEATURE_TORTURE").is_none() {
        return;
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut points, mut refusals) = (BTreeSet::new(), BTreeSet::new());
    let mut crates_of: Vec<(String, &str)> = Vec::new();
    for name in CRATES {
        let folder = crates.join(name).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut here = BTreeSet::new();
        collect(&folder, "crash::point(", &mut here);
        crates_of.extend(here.iter().map(|point| (point.clone(), name)));
        points.append(&mut here);
        collect(&folder, "crash::refused(", &mut refusals);
    }
    crates_of.sort();
    let lines =
        |names: BTreeSet<String>| names.iter().map(|name| format!("    {name:?},\n")).collect();
    let crates_of = crates_of.iter().map(|pair| format!("    {pair:?},\n")).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo gives a folder"));
    let files: [(&str, String); 3] = [
        ("points.rs", lines(points)),
        ("refusals.rs", lines(refusals)),
        ("crates-of-points.rs", crates_of),
    ];
    for (file, list) in files {
        fs::write(out.join(file), format!("&[\n{list}]\n")).expect("the folder can be written");
    }
}

/// Nothing here differs between two builds of the same sources: no time, no name of a host.
fn note_build() {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    println!("cargo::rerun-if-env-changed=FOREBAY_COMMIT");
    let profile = variable("PROFILE");
    let commit = match variable("FOREBAY_COMMIT") {
        // A developer's build would be done anew after each commit.
        unknown if unknown.is_empty() && profile == "debug" => unknown,
        unknown if unknown.is_empty() => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let found = commit::checkout(&root);
            for file in found.iter().flat_map(|found| &found.files) {
                println!("cargo::rerun-if-changed={}", file.display());
            }
            found.map(|found| found.commit).unwrap_or_default()
        }
        given => given,
    };
    let features = ["bench", "torture", "wasm", "ucx", "rdma"];
    let is_on =
        |name: &&str| env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some();
    let features: Vec<_> = features.into_iter().filter(is_on).collect();
    let or_none = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    for (name, value) in [
        ("COMMIT", or_none(commit, "not known")),
        ("PROFILE", profile),
        ("TARGET", variable("TARGET")),
        ("FEATURES", or_none(features.join(", "), "none")),
    ] {
        println!("cargo::rustc-env=FOREBAY_BUILD_{name}={value}");
    }
}

fn collect(folder: &Path, call: &str, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a crate has sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, call, names);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            let calls = text.split(call).skip(1);
            // A name that is not written there, or not in one piece, is none that can be told.
            let written = calls.filter_map(|rest| rest.trim_start().strip_prefix('"'));
            names.extend(written.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
}
