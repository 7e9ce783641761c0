//! Collects the names of all crash points, for `forebay torture` to say how many of them it has
//! reached, and of all allocations that it refuses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

const CRATES: [&str; 4] = ["client", "node", "pool", "preload"];

fn main() {
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
