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

/// A site with the C programs, if Debian's HDF5 is there: the serial one, else MPICH's.
fn with_program(setup: &Setup) -> Option<Site> {
    let site = Site::new(setup);
    let flags = flags()?;
    let programs = ["datasets.c", "datasets_more.c"];
    programs.into_iter().all(|program| site.compile(program, flags)).then_some(site)
}

/// What the compiler is to be given for HDF5.
fn flags() -> Option<&'static [&'static str]> {
    let serial = &["-I/usr/include/hdf5/serial", "-lhdf5_serial"];
    let with_mpi = &[
        "-I/usr/include/hdf5/mpich",
        "-I/usr/include/x86_64-linux-gnu/mpich",
        "-lhdf5_mpich",
        "-lmpich",
    ];
    let is_there = |folder: &str| Path::new(folder).join("hdf5.h").is_file();
    match (is_there("/usr/include/hdf5/serial"), is_there("/usr/include/hdf5/mpich")) {
        (true, _) => Some(serial),
        (_, true) => Some(with_mpi),
        _ => {
            skip("hdf5.h is not installed");
            None
        }
    }
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
fn rules_hold_for_datasets_of_a_file_that_was_small_and_written_through() {
    let Some(site) = with_program(&LAZY) else { return };
    with_rules(&site, FIELDS_DOWN);
    let words = [("FOREBAY_SMALL_FILES", "write-through")];
    let script = "$BIN/datasets write f.h5 && \"$FOREBAY\" explain --json f.h5:/fields/rho";
    let (ran, status) = site.run_buffered_with(&words, &format!("{script} > $OUT/explained"));
    let ran = ran.expect(0);
    status.assert_live();
    let found = objects(&fs::read_to_string(site.out.join("explained")).unwrap());
    assert!(bytes_in(&found[0], "nvme") >= 3 << 21, "{:#}", found[0]);
    assert!(!ran.stderr.contains("no dataset"), "{}", ran.stderr);
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

/// A write waited for 5 s, in vain, as often as RAM had nothing but pinned blocks.
#[test]
fn pinned_metadata_that_fills_ram_keeps_no_writer_waiting() {
    let Some(python) = python_with("h5py") else { return };
    let site = Site::new(&Setup { ram: "4MiB", ..USUAL });
    let rules = "[[rule]]\ndataset = \"metadata\"\ntier = \"ram\"\npin = true\n\
        [[rule]]\ndataset = \"/**\"\ntier = \"nvme\"\n";
    with_rules(&site, rules);
    let words = [("FOREBAY_SMALL_FILES", "write-through")];
    let script = "import h5py, numpy; a = numpy.arange(262144.0).reshape(4, 65536)\n\
        for i in range(40):\n with h5py.File(f's{i}.h5', 'w') as f:\n  for k in range(4): f[f'fields/f{k}'] = a[k]";
    let (ran, status) = site.run_buffered_with(&words, &format!("{python} -c \"{script}\""));
    ran.expect(0);
    // It wrote past the tiers then.
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
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
    // The same rows, written and read by the chunk.
    site.run_plainly("rm f.h5 && $BIN/datasets_more chunks f.h5").expect(0);
    fs::copy(site.plain.join("f.h5"), site.store.join("f.h5")).unwrap();
    let (ran, status) = site.run_buffered("$BIN/datasets_more pieces f.h5");
    assert_eq!(ran.expect(0).stdout, "done\n");
    let with = status.count("missed_bytes");
    assert!(with * 2 < without, "waited for {with} bytes of chunks, of rows for {without}");
}

/// The datasets that an explanation lists, each with the rule that asks for it.
fn names(found: &Value) -> Vec<(&str, bool)> {
    let datasets = found["datasets"].as_array().unwrap().iter();
    datasets.map(|one| (one["name"].as_str().unwrap(), !one["rule"].is_null())).collect()
}

#[test]
fn links_that_move_take_the_names_of_datasets_along() {
    let Some(site) = with_program(&LAZY) else { return };
    with_rules(&site, "[[rule]]\ndataset = \"/{b/x,late}\"\ntier = \"nvme\"\n");
    let (found, stderr) = explained(&site, "$BIN/datasets_more names f.h5", &["f.h5"]);
    assert_eq!(names(&found[0]), [("/b/x", true), ("/late", true), ("/moved", false)]);
    assert!(!stderr.contains("no dataset"), "{stderr}");
    fs::remove_file(site.out.join("explained")).unwrap();
    let (found, _) = explained(&site, "$BIN/datasets_more index f.h5", &["f.h5:/b/x"]);
    assert_eq!(names(&found[0]), [("/b/x", true)]);
    assert!(bytes_in(&found[0], "nvme") >= (1 << 20) - EDGES, "{:#}", found[0]);
    site.run_plainly("$BIN/datasets_more names f.h5 && $BIN/datasets_more index f.h5").expect(0);
    site.assert_same_files();
}

#[test]
fn readers_follow_a_dataset_that_grows() {
    let Some(site) = with_program(&SMALL) else { return };
    let script = "$BIN/datasets_more swmr f.h5 > $OUT/writer & $BIN/datasets_more follow f.h5; \
                  wait; cat $OUT/writer; rm started";
    assert_eq!(site.run_plainly(script).expect(0).stdout, "done\ndone\n");
    let (ran, status) = site.run_buffered(script);
    assert_eq!(ran.expect(0).stdout, "done\ndone\n");
    status.assert_live();
    // The time at which it was made is in it. All of it can be read without Forebay.
    let file = site.store.join("f.h5");
    let script = format!("touch started && $BIN/datasets_more follow {}", file.display());
    assert_eq!(site.run_plainly(&script).expect(0).stdout, "done\n");
}

#[test]
fn functions_of_later_libraries() {
    let Some(flags) = flags() else { return };
    let Some(python) = python_with("h5py") else { return };
    let site = Site::new(&LAZY);
    with_rules(&site, "[[rule]]\ndataset = \"/{one,three}\"\ntier = \"nvme\"\n");
    // A library without them: the program is not told that it has them.
    assert!(site.compile("datasets_later.c", flags));
    let (ran, status) = site.run_buffered("$BIN/datasets_later write f.h5; echo > file");
    assert_eq!(ran.expect(0).stdout.lines().next(), Some("none"));
    status.assert_live();
    let find = "import h5py, glob, os; print(glob.glob(os.path.dirname(h5py.__file__) + \
                '.libs/libhdf5-*')[0])";
    let library = site.run_plainly(&format!("{python} -c \"{find}\"")).expect(0).stdout;
    let library = library.trim();
    let folder = Path::new(library).parent().unwrap().display();
    let path = format!("-Wl,-rpath,{folder}");
    let flags = [flags[0], library, &path, "-Wl,--allow-shlib-undefined"];
    assert!(site.compile("datasets_later.c", &flags));
    // What is compiled with the declarations of 1.10 would be refused.
    let unchecked = "export HDF5_DISABLE_VERSION_CHECK=2";
    let write = format!("{unchecked}; $BIN/datasets_later write g.h5");
    let both = format!("{write} && $BIN/datasets_later read g.h5");
    // Without reading: what is read often comes up where there is room, whatever the rule.
    let (found, _) = explained(&site, &write, &["g.h5", "g.h5:/one", "g.h5:/three"]);
    assert_eq!(names(&found[0]), [("/one", true), ("/three", true), ("/two", false)]);
    for dataset in &found[1..] {
        assert!(bytes_in(dataset, "nvme") >= (4 << 20) - EDGES, "{dataset:#}");
    }
    let (ran, status) = site.run_buffered(&both);
    assert_eq!(ran.expect(0).stdout, "done\ndone\n");
    status.assert_live();
    assert_eq!(site.run_plainly(&both).expect(0).stdout, "done\ndone\n");
    // Times are in the files.
    let compare = format!(
        "import h5py; a, b = h5py.File('g.h5'), h5py.File('{}'); \
         print([(a[name][...] == b[name][...]).all() and len(a) for name in b])",
        site.store.join("g.h5").display()
    );
    let same = site.run_plainly(&format!("{python} -c \"{compare}\"")).expect(0).stdout;
    assert_eq!(same, "[3, 3, 3]\n");
}

const METADATA_FIRST: &str = "[[rule]]\nname = \"structure\"\ndataset = \"metadata\"\ntier = \"ram\"\n\
    pin = true\n[[rule]]\ndataset = \"/fields/*\"\ntier = \"nvme\"\n";

/// Ranges of bytes that a list of pairs has.
fn pairs(found: &Value) -> Vec<(u64, u64)> {
    let at = |pair: &Value, side: usize| pair[side].as_u64().unwrap();
    found.as_array().unwrap().iter().map(|pair| (at(pair, 0), at(pair, 1))).collect()
}

/// Blocks of a file of so many bytes that are not whole in what a program has said to be raw.
fn blocks_with_metadata(said: &str, size: u64) -> Vec<u64> {
    let mut raw: Vec<(u64, u64)> = said
        .lines()
        .filter_map(|line| line.strip_prefix("raw ")?.split_once(' '))
        .map(|(start, end)| (start.parse().unwrap(), end.parse().unwrap()))
        .collect();
    raw.sort_unstable();
    let is_raw = |block: &u64| {
        let end = ((block + 1) * BLOCK).min(size);
        let cover = |at, &(start, stop): &(u64, u64)| if start <= at { stop.max(at) } else { at };
        raw.iter().fold(block * BLOCK, cover) >= end
    };
    (0..size.div_ceil(BLOCK)).filter(|block| !is_raw(block)).collect()
}

const BLOCK: u64 = 256 << 10;

#[test]
fn metadata_is_kept_apart_from_raw_data() {
    let Some(site) = with_program(&LAZY) else { return };
    with_rules(&site, METADATA_FIRST);
    // What the first program has said is known while there is the pool.
    let config = site.config.to_str().unwrap();
    site.end(site.forebay(&["up", "--config", config])).expect(0);
    let mut said = String::new();
    // The second program adds to the file of the first.
    for step in ["metadata", "append"] {
        let script = format!("$BIN/datasets_more {step} f.h5 > $OUT/said");
        let files = ["f.h5", "f.h5:metadata", "f.h5:/fields/f0"];
        let (found, stderr) = explained(&site, &script, &files);
        fs::remove_file(site.out.join("explained")).unwrap();
        said += &fs::read_to_string(site.out.join("said")).unwrap();
        assert!(!stderr.contains("no dataset") && !stderr.contains("metadata"), "{stderr}");
        let [all, metadata, _] = &found[..] else { panic!("{found:?}") };
        assert!(names(all).contains(&("metadata", true)), "{all:#}");
        assert_eq!(metadata["settings"], "policy user-defined, tier ram, pin true");
        let ranges = pairs(&metadata["datasets"][0]["ranges"]);
        let noted: Vec<_> =
            ranges.iter().flat_map(|(from, to)| from / BLOCK..to.div_ceil(BLOCK)).collect();
        let size = all["size"].as_u64().unwrap();
        let wanted = blocks_with_metadata(&said, size);
        println!("{step}: metadata in {} of {} blocks", noted.len(), size.div_ceil(BLOCK));
        let missed: Vec<_> = wanted.iter().filter(|block| !noted.contains(block)).collect();
        let needless: Vec<_> = noted.iter().filter(|block| !wanted.contains(block)).collect();
        assert!(missed.is_empty() && needless.is_empty(), "{missed:?} {needless:?} {wanted:?}");
        assert!(noted.len() > 4 && (noted.len() as u64) * 4 < size / BLOCK * 3, "{noted:?}");
        if step == "metadata" {
            // Nothing of it is on its way down, and raw data between it is.
            assert_eq!(bytes_in(metadata, "nvme"), 0, "{metadata:#}");
            // But what was at the end of the file when it was noted.
            let raw = size.div_ceil(BLOCK) - noted.len() as u64 - 2;
            assert!(bytes_in(all, "nvme") >= raw * BLOCK, "{raw} {all:#}");
        }
    }
    site.end(site.forebay(&["stop", "--config", config])).expect(0);
    let plain = "$BIN/datasets_more metadata f.h5 && $BIN/datasets_more append f.h5";
    site.run_plainly(plain).expect(0);
    site.assert_same_files();
}

#[test]
fn a_rule_for_metadata_without_files_is_named_at_the_end() {
    let Some(site) = with_program(&USUAL) else { return };
    let rules = METADATA_FIRST.replace("\"metadata\"", "\"metadata\"\npath = \"other.h5\"");
    with_rules(&site, &rules);
    let (ran, _) = site.run_buffered("$BIN/datasets_more names f.h5");
    let said = ran.expect(0).stderr;
    assert!(said.contains("no file of HDF5 was written for whose metadata it holds"), "{said}");
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
