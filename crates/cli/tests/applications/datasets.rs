//! Datasets of HDF5 are known by name, whichever library a program brings, and rules hold for them;
//! results are what they are without Forebay.

use crate::harness::{LAZY, SMALL, Setup, Site, USUAL, python_with, skip, works};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The adapter that was built with the command.
fn adapter() -> PathBuf {
    let folder = Path::new(crate::harness::FOREBAY).parent().unwrap();
    let name = "libforebay_hdf5.so";
    let places = [folder.join("deps").join(name), folder.join(name)];
    let found = places.iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("none of {places:?}")).clone()
}

/// What a run has in its environment that loads no adapter.
const WITHOUT: (&str, &str) = ("FOREBAY_ADAPTERS", "none");

/// A script that is run with the adapter, whether Forebay runs it or not.
fn adapted(script: &str) -> String {
    format!("export LD_PRELOAD=\"$LD_PRELOAD:{}\"; {script}", adapter().display())
}

/// A site with the C program, if Debian's HDF5 is there: the serial one, else MPICH's.
fn with_program(setup: &Setup) -> Option<Site> {
    let site = Site::new(setup);
    let serial = ["-I/usr/include/hdf5/serial", "-lhdf5_serial"];
    let with_mpi = [
        "-I/usr/include/hdf5/mpich",
        "-I/usr/include/x86_64-linux-gnu/mpich",
        "-lhdf5_mpich",
        "-lmpich",
    ];
    let is_there = |folder: &str| Path::new(folder).join("hdf5.h").is_file();
    let flags = match (is_there("/usr/include/hdf5/serial"), is_there("/usr/include/hdf5/mpich")) {
        (true, _) => &serial[..],
        (_, true) => &with_mpi[..],
        _ => {
            skip("hdf5.h is not installed");
            return None;
        }
    };
    site.compile("datasets.c", flags).then_some(site)
}

/// Adds rules to a site's configuration.
fn with_rules(site: &Site, rules: &str) {
    let config = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, config + rules).unwrap();
}

fn objects(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
}

/// Has `explain --json` printed of each, in a run that begins with `script`.
fn explained(site: &Site, script: &str, files: &[&str]) -> (Vec<Value>, String) {
    let each: String = files
        .iter()
        .map(|file| format!("\"$FOREBAY\" explain --json {file} >> $OUT/explained; "))
        .collect();
    let (ran, status) = site.run_buffered(&format!("{{ {script}; }} && {each}"));
    let ran = ran.expect(0);
    status.assert_live();
    (objects(&fs::read_to_string(site.out.join("explained")).unwrap()), ran.stderr)
}

/// Bytes of an explanation's parts that are in a tier, or on their way there.
fn bytes_in(found: &Value, tier: &str) -> u64 {
    let extents = found["extents"].as_array().unwrap().iter();
    let is_there = |part: &&Value| match part["bound_for"].as_str() {
        Some(to) => to == tier,
        None => part["tier"] == tier,
    };
    let length =
        |part: &Value| part["range"][1].as_u64().unwrap() - part["range"][0].as_u64().unwrap();
    extents.filter(is_there).map(length).sum()
}

/// Blocks at both ends of a dataset may be another one's as well, or hold the file's metadata.
const EDGES: u64 = 512 << 10;

const FIELDS_DOWN: &str = "[[rule]]\nname = \"fields\"\ndataset = \"/fields/*\"\ntier = \"nvme\"\n\
    [[rule]]\nname = \"mesh\"\ndataset = \"/mesh\"\ntier = \"ram\"\npin = true\n";

#[test]
fn files_and_output_are_the_same_with_the_adapter() {
    let Some(site) = with_program(&SMALL) else { return };
    with_rules(&site, FIELDS_DOWN);
    let script = "$BIN/datasets write f.h5 && $BIN/datasets read f.h5 && $BIN/datasets more f.h5 && \
                  $BIN/datasets read f.h5";
    site.same(script);
}

#[test]
fn errors_are_the_programs_own() {
    let Some(site) = with_program(&USUAL) else { return };
    let script = "$BIN/datasets write f.h5 && $BIN/datasets errors f.h5";
    let (plain, (buffered, _)) = (site.run_plainly(script), site.run_buffered(script));
    let (plain, buffered) = (plain.expect(0), buffered.expect(0));
    assert_eq!(buffered.stdout, "done\n-1 told\n-1 told\nkept 1\ndone\n");
    assert_eq!(buffered.stdout, plain.stdout);
    // The library numbers threads, and prints the same stack but for that.
    assert_eq!(
        buffered.stderr.lines().count(),
        plain.stderr.lines().count(),
        "{}",
        buffered.stderr
    );
    assert_eq!(buffered.stderr.matches("not a dataset").count(), 1, "{}", buffered.stderr);
}

#[test]
fn rules_hold_for_datasets_of_a_c_program() {
    let Some(site) = with_program(&LAZY) else { return };
    with_rules(&site, FIELDS_DOWN);
    let files = ["f.h5", "f.h5:/fields/rho", "f.h5:/fields/u", "f.h5:/mesh", "f.h5:/none"];
    let (found, stderr) = explained(&site, "$BIN/datasets write f.h5", &files);
    let [all, rho, u, mesh, none] = &found[..] else { panic!("{found:?}") };
    let datasets = all["datasets"].as_array().unwrap();
    let names: Vec<_> = datasets.iter().map(|dataset| dataset["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["/fields/packed", "/fields/rho", "/fields/u", "/mesh"], "no compact one");
    assert_eq!(all["dataset"], Value::Null);
    for (dataset, name) in [(rho, "/fields/rho"), (u, "/fields/u")] {
        assert_eq!(dataset["dataset"], name);
        assert!(bytes_in(dataset, "nvme") >= 3 << 21, "{dataset:#}");
        assert_eq!(dataset["rules"][0]["holds"], true);
        assert_eq!(dataset["placement"]["plan"][0]["to"], "nvme");
    }
    assert!(bytes_in(mesh, "ram") >= (8 << 20) - EDGES, "{mesh:#}");
    assert_eq!(mesh["settings"], "policy user-defined, tier ram, pin true");
    assert_eq!(
        (&none["datasets"], &none["extents"]),
        (&Value::from(vec![0; 0]), &Value::from(vec![0; 0]))
    );
    assert!(!stderr.contains("no dataset"), "{stderr}");
}

#[test]
fn a_dataset_that_grows_is_followed() {
    let Some(site) = with_program(&LAZY) else { return };
    with_rules(&site, FIELDS_DOWN);
    let script = "$BIN/datasets write f.h5 && $BIN/datasets more f.h5";
    let (found, _) = explained(&site, script, &["f.h5:/fields/u"]);
    assert!(bytes_in(&found[0], "nvme") >= 12 << 20, "{:#}", found[0]);
    // A file that is made anew has none of the old ones.
    fs::remove_file(site.out.join("explained")).unwrap();
    let script = "$BIN/datasets write g.h5 && : > g.h5 && echo > g.h5";
    let (found, _) = explained(&site, script, &["g.h5"]);
    assert_eq!(found[0]["datasets"], Value::from(vec![0; 0]));
}

#[test]
fn a_rule_without_datasets_is_named_at_the_end() {
    let Some(site) = with_program(&USUAL) else { return };
    let rules = "[[rule]]\ndataset = \"/nothing/*\"\ntier = \"nvme\"\n";
    with_rules(&site, rules);
    let run = |words: &[(&str, &str)]| {
        site.run_buffered_with(words, "$BIN/datasets write f.h5").0.expect(0).stderr
    };
    let said = run(&[]);
    let at = "no dataset that was used is called \"/nothing/*\"";
    assert!(said.contains("forebay.toml:") && said.contains(at), "{said}");
    assert!(said.contains("lists the datasets"), "{said}");
    let said = run(&[WITHOUT]);
    assert!(said.contains(at) && said.contains("no dataset of HDF5 was seen at all"), "{said}");
}

#[test]
fn three_libraries_in_one_process() {
    let Some(python) = python_with("h5py, netCDF4, tables") else { return };
    let site = Site::new(&LAZY);
    let rules = "[[rule]]\ndataset = \"/{fields/*,temperature,grown}\"\ntier = \"nvme\"\n";
    with_rules(&site, rules);
    let script = format!("{python} $SCRIPTS/datasets.py write");
    let files =
        ["h5py.h5:/fields/u", "h5py.h5:/fields/rho", "netcdf.nc:/temperature", "tables.h5:/grown"];
    let (found, _) = explained(&site, &script, &files);
    for dataset in &found {
        assert!(bytes_in(dataset, "nvme") >= 3 << 20, "{dataset:#}");
    }
    let (read, _) = site.run_buffered(&format!("{python} $SCRIPTS/datasets.py read"));
    let said = read.expect(0).stdout;
    assert_eq!((said.lines().count(), said.matches("True").count()), (6, 6), "{said}");
    let plain = site.run_plainly(&format!(
        "{python} $SCRIPTS/datasets.py write && cmp h5py.h5 {}",
        site.store.join("h5py.h5").display()
    ));
    assert_eq!(plain.expect(0).stdout, said);
}

#[test]
fn the_next_hyperslab_is_there_before_it_is_read() {
    let Some(site) = with_program(&USUAL) else { return };
    site.run_plainly("$BIN/datasets scatter f.h5").expect(0);
    let read = |words: &[(&str, &str)]| {
        fs::copy(site.plain.join("f.h5"), site.store.join("f.h5")).unwrap();
        let (ran, status) = site.run_buffered_with(words, "$BIN/datasets rows f.h5");
        assert_eq!(ran.expect(0).stdout, "done\n");
        status.count("missed_bytes")
    };
    let (without, with) = (read(&[WITHOUT]), read(&[]));
    assert!(with * 2 < without, "waited for {with} bytes, without predictions for {without}");
}

#[test]
fn without_a_session_there_are_only_the_calls() {
    let Some(site) = with_program(&USUAL) else { return };
    let ran =
        site.run_plainly(&adapted("$BIN/datasets write f.h5; $BIN/datasets errors f.h5")).expect(0);
    assert_eq!(ran.stdout, "done\n-1 told\n-1 told\nkept 1\ndone\n");
    if works(&["h5dump", "--version"]) {
        site.run_plainly(&adapted("h5dump -H f.h5 > /dev/null")).expect(0);
    }
}
