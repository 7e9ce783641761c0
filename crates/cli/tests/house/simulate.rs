//! `forebay simulate`: the paper's figures, repeatability, pictures, and errors that say what is
//! wrong.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn simulate(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .current_dir(folder)
        .arg("simulate")
        .args(arguments)
        .output()
        .unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = simulate(Path::new("/"), arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A scenario's outcome.
fn outcome(scenario: &str) -> Value {
    serde_json::from_str(&printed(&[scenario, "--json"])).unwrap()
}

/// How far a number that follows from what the paper says may be off.
const BAND_PERCENT: f64 = 15.0;
/// How far one that needs something else may be from what was recorded in docs/simulator.md.
const REGRESSION_PERCENT: f64 = 5.0;

/// What was recorded of figure 8.
const FIGURE_8: &[(&str, f64)] = &[
    ("data-intensive: write, No buffering / Forebay MaxBandwidth", 4.98),
    ("data-intensive: write, Data Elevator / Forebay MaxBandwidth", 1.36),
    ("data-intensive: write, DataWarp / Forebay MaxBandwidth", 1.32),
    ("balanced: write, No buffering / Forebay MaxBandwidth", 6.55),
    ("balanced: write, Data Elevator / Forebay MaxBandwidth", 1.79),
    ("balanced: write, DataWarp / Forebay MaxBandwidth", 1.74),
    ("compute-intensive: write, No buffering / Forebay MaxBandwidth", 8.75),
    ("compute-intensive: write, Data Elevator / Forebay MaxBandwidth", 2.39),
    ("compute-intensive: write, DataWarp / Forebay MaxBandwidth", 2.33),
    ("compute-intensive: write, Forebay MaxLocality / Forebay MaxBandwidth", 1.35),
    ("data-intensive: write, Forebay MaxLocality / Forebay MaxBandwidth", 1.04),
];
/// What was recorded of figure 9.
const FIGURE_9: &[(&str, f64)] = &[
    ("read-many x16: read, No buffering / Forebay HotData", 25.0),
    ("read-many x16: read, Data Elevator / Forebay HotData", 6.64),
    ("read-many x16: read, DataWarp / Forebay HotData", 6.64),
];
/// What was recorded of figure 10.
const FIGURE_10: &[(&str, f64)] = &[
    ("1024 ranks: write s, No buffering", 1426.6),
    ("1024 ranks: total s, No buffering", 1426.6),
    ("1024 ranks: flush s, Data Elevator", 1086.7),
    ("1024 ranks: total s, Data Elevator", 1475.6),
    ("1024 ranks: flush s, DataWarp", 1274.1),
    ("1024 ranks: total s, DataWarp", 1653.7),
    ("1024 ranks: write s, Forebay MaxBandwidth", 218.0),
    ("1024 ranks: flush s, Forebay MaxBandwidth", 908.0),
    ("1024 ranks: total s, Forebay MaxBandwidth", 1126.0),
    ("1024 ranks: write, No buffering / Forebay MaxBandwidth", 6.54),
    ("1024 ranks: write, Data Elevator / Forebay MaxBandwidth", 1.78),
    ("1024 ranks: write, DataWarp / Forebay MaxBandwidth", 1.74),
    ("1024 ranks: total, No buffering / Forebay MaxBandwidth", 1.267),
    ("1024 ranks: total, Data Elevator / Forebay MaxBandwidth", 1.31),
    ("1024 ranks: total, DataWarp / Forebay MaxBandwidth", 1.469),
];
/// What was recorded of figure 11.
const FIGURE_11: &[(&str, f64)] = &[
    ("1024 ranks: flush s, Data Elevator", 403.5),
    ("1024 ranks: total s, Data Elevator", 760.5),
    ("1024 ranks: flush s, DataWarp", 637.0),
    ("1024 ranks: total s, DataWarp", 984.5),
    ("1024 ranks: io s, Forebay MaxBandwidth", 59.8),
    ("1024 ranks: flush s, Forebay MaxBandwidth", 384.0),
    ("1024 ranks: total s, Forebay MaxBandwidth", 444.0),
    ("1024 ranks: io, No buffering / Forebay MaxBandwidth", 21.9),
    ("1024 ranks: io, Data Elevator / Forebay MaxBandwidth", 5.97),
    ("1024 ranks: io, DataWarp / Forebay MaxBandwidth", 5.81),
];

/// Compares a figure's numbers: those that follow from the paper with the paper's, in both
/// directions, and the others with what was recorded.
fn compare(figure: &Value, determined: usize, recorded: &[(&str, f64)]) {
    let numbers = figure["numbers"].as_array().unwrap();
    assert_eq!(numbers.len(), determined + recorded.len(), "{numbers:#?}");
    for number in numbers {
        let title = number["number"].as_str().unwrap();
        let simulated = number["simulated"].as_f64().unwrap();
        let paper = number["paper"].as_f64().unwrap();
        let (expected, band) = match number["needs"].as_str() {
            None => (paper, BAND_PERCENT),
            Some(_) => {
                let known = recorded.iter().find(|(of, _)| *of == title);
                (known.unwrap_or_else(|| panic!("{title}: not recorded")).1, REGRESSION_PERCENT)
            }
        };
        let off = (simulated / expected - 1.0) * 100.0;
        assert!(off.abs() <= band, "{title}: {simulated}, expected {expected} +- {band} %");
        let error = number["error_percent"].as_f64().unwrap();
        assert!((error - (simulated / paper - 1.0) * 100.0).abs() < 0.01, "{title}: {error}");
    }
}

/// Seconds and bytes of a strategy in a case.
fn of<'o>(figure: &'o Value, case: &str, strategy: &str) -> &'o Value {
    let find = |list: &'o Value, key: &str, name: &str| {
        list.as_array().unwrap().iter().find(|of| of[key] == name).unwrap()
    };
    find(&find(&figure["cases"], "case", case)["outcomes"], "strategy", strategy)
}

#[test]
fn figure_8_is_as_recorded() {
    compare(&outcome("hermes-fig8"), 0, FIGURE_8);
}

#[test]
fn figure_9_is_as_recorded_and_hot_data_comes_up() {
    let figure = outcome("hermes-fig9");
    compare(&figure, 0, FIGURE_9);
    let read_s = |case: &str, of_: &str| of(&figure, case, of_)["read_s"].as_f64().unwrap();
    let promoted = |of_: &str| {
        let tiers = of(&figure, "read-many x16", of_)["tiers"].as_array().unwrap();
        tiers.iter().map(|tier| tier["promoted_bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let (hot, usual) = ("Forebay HotData", "Forebay MaxBandwidth");
    assert_eq!(promoted(usual), 0);
    assert!(promoted(hot) > 1 << 30, "{}", promoted(hot));
    assert!(read_s("read-many x16", hot) * 2.0 < read_s("read-many x16", usual));
}

#[test]
fn figures_10_and_11_are_as_the_paper_says_or_as_recorded() {
    compare(&outcome("hermes-fig10"), 2, FIGURE_10);
    compare(&outcome("hermes-fig11"), 4, FIGURE_11);
}

#[test]
fn all_figures_have_one_machine() {
    let machine = |name: &str| {
        let text = printed(&[name, "--show"]);
        text.split_once("# ---- The machine").expect("the common part").1.to_owned()
    };
    for name in ["hermes-fig9", "hermes-fig10", "hermes-fig11"] {
        assert_eq!(machine("hermes-fig8"), machine(name));
    }
}

#[test]
fn free_parameters_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let free = |parameter: &str, values: &str| {
        format!("[[free]]\nparameter = \"{parameter}\"\nvalues = [{values}]\nwhy = \"a test\"\n")
    };
    let reference = "[[reference]]\ncase = \"all\"\nstrategy = \"direct\"\nwrite = 16\n\
                     [[reference]]\ncase = \"all\"\nstrategy = \"forebay\"\nwrite = 4\nneeds = \"it\"\n";
    let sweep = |free: &str| {
        fs::write(folder.path().join("own.toml"), format!("{SMALL}{reference}{free}")).unwrap();
        let output = simulate(folder.path(), &["own.toml", "--sweep"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), output.stderr)
    };
    // The number of the paper, and what comes out for each value.
    let row = |text: &str, strategy: &str| {
        let line =
            text.lines().find(|line| line.contains(strategy)).unwrap_or_else(|| panic!("{text}"));
        let (_, numbers) = line.split_once(strategy).unwrap();
        numbers.split_whitespace().map(|n| n.parse::<f64>().unwrap()).collect::<Vec<_>>()
    };
    let (_, text, _) = sweep(&free("store", "\"4MiB/s\", \"8MiB/s\""));
    assert!(text.contains("*4MiB/s") && text.contains(" 8MiB/s"), "{text}");
    let direct = row(&text, "write s, direct");
    assert_eq!(direct[0], 16.0);
    assert!(direct[1] > direct[2] * 1.5, "{text}");
    let (_, text, _) = sweep(&free("capacity", "\"4MiB\", \"16MiB\", \"64MiB\""));
    let forebay = row(&text, "write s, forebay");
    assert!(
        text.contains("*16MiB") && forebay[1] > forebay[2] && forebay[2] > forebay[3],
        "{text}"
    );
    let all = free("flush", "\"8MiB/s\"")
        + &free("queue_depth", "1, 16")
        + &free("exposed", "\"measured\", 0.5, 0.98")
        + &free("compute", "1, 2")
        + &free("period", "\"1s\", \"2s\"")
        + &free("read_from", "\"own\", \"any\"");
    let (is_fine, text, errors) = sweep(&all);
    assert!(is_fine, "{}", String::from_utf8_lossy(&errors));
    for in_force in ["*16", "*measured", "*x 1", "*1s", "*any"] {
        assert!(text.contains(&format!(" {in_force}")), "{in_force}: {text}");
    }
    let (is_fine, _, errors) = sweep(&free("weather", "1"));
    let errors = String::from_utf8_lossy(&errors);
    assert!(!is_fine && errors.contains("free[0].parameter: \"weather\" is unknown"), "{errors}");
    let (is_fine, _, errors) = sweep("");
    let errors = String::from_utf8_lossy(&errors);
    assert!(!is_fine && errors.contains("no free parameters"), "{errors}");
}

/// A small scenario; its lines are counted by [`errors_name_file_line_and_key`].
const SMALL: &str = r#"title = "small"

[cluster]
nodes = 2
ranks_per_node = 2
block = "1MiB"

[[tier]]
name = "ram"
capacity = "16MiB"
read = "64MiB/s"
write = "64MiB/s"

[store]
read = "4MiB/s"
write = "4MiB/s"
latency = "1ms"

[workload]
kind = "reads"
phases = 4
write = "4MiB"
read = "2MiB"
read_from = "any"
jitter = 0.3
compute = "1s"

[[strategy]]
name = "direct"
kind = "direct"

[[strategy]]
name = "forebay"
kind = "forebay"

[[fault]]
at = "3s"
kind = "node"
node = 1
"#;

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let run = |seed: &str, svg: &str| {
        let arguments = ["small.toml", "--json", "--seed", seed, "--svg", svg];
        let output = simulate(folder.path(), &arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, fs::read(folder.path().join(svg)).unwrap())
    };
    let first = run("7", "first.svg");
    assert_eq!(first, run("7", "second.svg"));
    assert_ne!(first.0, run("8", "third.svg").0);
    let json = String::from_utf8(first.0).unwrap();
    assert!(json.contains("\"seed\": 7") && json.contains("\"lost_bytes\": "), "{json}");
    let svg = String::from_utf8(first.1).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("direct") && svg.contains("seconds"));
}

#[test]
fn a_built_in_scenario_can_be_taken_as_a_start() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["hermes-fig8", "hermes-fig9", "hermes-fig10", "hermes-fig11", "scale-10000"] {
        let text = printed(&[name, "--show"]);
        // Smaller, so that it does not take long.
        let small =
            text.replace("phases = 1", "phases = 1 # 1").replace("nodes = 10000", "nodes = 10");
        fs::write(folder.path().join("own.toml"), small).unwrap();
        let output = simulate(folder.path(), &["own.toml", "--json"]);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_page_s_scenario_runs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator.md");
    let page = fs::read_to_string(page).unwrap();
    let scenario = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("page.toml"), scenario.unwrap()).unwrap();
    let output = simulate(folder.path(), &["page.toml"]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("little memory") && table.contains("lost: "), "{table}");
}

#[test]
fn errors_name_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "nodes = 2",
            "nodes = 0",
            "bad.toml:4: cluster.nodes: 0 is out of range; give a whole number from 1 to 100000",
        ),
        ("nodes = 2", "nods = 2", "bad.toml:4: cluster.nods: unknown key; known here: nodes,"),
        ("nodes = 2", "", "bad.toml:3: cluster.nodes: missing; add nodes ="),
        (
            "nodes = 2",
            "nodes = \"2\"",
            "bad.toml:4: cluster.nodes: is of type string; give a whole number",
        ),
        (
            "\"16MiB\"",
            "\"16mib\"",
            "bad.toml:10: tier[0].capacity: \"16mib\" cannot be read; give a size",
        ),
        (
            "\"4MiB/s\"",
            "\"4MiB\"",
            "bad.toml:15: store.read: \"4MiB\" cannot be read; give a bandwidth such as \"735MiB/s\", in B/s,",
        ),
        (
            "\"1ms\"",
            "\"1 hour\"",
            "bad.toml:17: store.latency: \"1 hour\" cannot be read; give a time",
        ),
        (
            "kind = \"reads\"",
            "kind = \"writes\"",
            "bad.toml:20: workload.kind: \"writes\" is unknown; give one of \"alternating\", \"reads\", \"vpic\", \"hacc\", \"trace\"",
        ),
        (
            "jitter = 0.3",
            "jitter = 3",
            "bad.toml:25: workload.jitter: is out of range; give a number from 0 to 1",
        ),
        (
            "kind = \"forebay\"",
            "kind = \"forebay\"\npolicy = \"best\"",
            "bad.toml:35: strategy[1].policy: \"best\" is unknown; give one of \"max-bandwidth\"",
        ),
        (
            "name = \"forebay\"",
            "name = \"direct\"",
            "bad.toml:33: strategy[1].name: \"direct\" is taken",
        ),
        (
            "node = 1",
            "node = 2",
            "bad.toml:39: fault[0].node: 2 is out of range; give a whole number from 0 to 1",
        ),
        ("kind = \"node\"", "kind = \"slow\"", "bad.toml:36: fault[0].tier: missing"),
        (
            "read_from",
            "trace = \"t.csv\"\nread_from",
            "bad.toml:24: workload.trace: only for kind = \"trace\"; remove it",
        ),
        ("phases = 4", "phases = [", "bad.toml:"),
    ];
    for (old, new, expected) in cases {
        assert!(SMALL.contains(old), "{old}");
        fs::write(folder.path().join("bad.toml"), SMALL.replacen(old, new, 1)).unwrap();
        let output = simulate(folder.path(), &["bad.toml"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{new}: {error}");
        assert!(error.starts_with(&format!("forebay: {expected}")), "{error}\nexpected {expected}");
    }
    let output = simulate(folder.path(), &["hermes-fig7"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("hermes-fig7: cannot be read") && error.contains("hermes-fig8"),
        "{error}"
    );
}

#[test]
fn a_recorded_trace_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let start = SMALL.find("phases = 4").unwrap();
    let end = SMALL.find("[[strategy]]").unwrap();
    let traced = format!("{}trace = \"io.csv\"\n\n{}", &SMALL[..start], &SMALL[end..]);
    let traced = traced.replace("kind = \"reads\"", "kind = \"trace\"");
    fs::write(folder.path().join("traced.toml"), traced).unwrap();
    let lines = "rank,operation,file,offset,bytes,seconds\n0,open,a,,,\n0,write,a,0,3000000,\n\
                 0,close,a,,,\n0,barrier,,,,\n1,barrier,,,,\n2,barrier,,,,\n3,barrier,,,,\n\
                 3,compute,,,,0.5\n1,read,a,1000000,2000000,\n";
    fs::write(folder.path().join("io.csv"), lines).unwrap();
    let output = simulate(folder.path(), &["traced.toml", "--json"]);
    let json = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(json.matches("\"written_bytes\": 3000000").count(), 3, "two runs, and the RAM tier");
    assert_eq!(json.matches("\"read_bytes\": 2000000").count(), 3);
    fs::write(folder.path().join("io.csv"), lines.replace("0,close", "0,shut")).unwrap();
    let output = simulate(folder.path(), &["traced.toml"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("io.csv:4: operation: \"shut\" is unknown"), "{error}");
}

#[test]
fn groups_say_when_a_killed_manager_is_succeeded() {
    let sizes = ["group", "--nodes", "2,9"];
    let text = printed(&sizes);
    assert_eq!(text, printed(&sizes), "the same again");
    assert!(text.starts_with("nodes") && text.contains("may be taken over from after"), "{text}");
    let rows: Value = serde_json::from_str(&printed(&[&sizes[..], &["--json"]].concat())).unwrap();
    let succeeded = |row: usize| rows[row]["succeeded_s"].as_f64().unwrap();
    // One of two alone waits for a majority first.
    assert!((30.0..45.0).contains(&succeeded(0)) && (15.0..25.0).contains(&succeeded(1)), "{rows}");
    assert_eq!(rows[1]["left_out_living"], 0, "{rows}");
    let text = printed(&["group", "--faults", "20", "--seed", "7"]);
    assert!(text.starts_with("20 groups, seeds 7 to 26: "), "{text}");
    for (arguments, wanted) in [
        (&["group", "--nodes", "0"][..], "0 is not in 1..=10000"),
        (&["group", "--loss", "60"], "60 is not in 0..=50"),
        (&["group", "--sweep"], "--sweep: the scenario group has none; leave it out"),
        (&["hermes-fig8", "--nodes", "3"], "--nodes: only the scenario group has it; leave it out"),
    ] {
        let output = simulate(Path::new("/"), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{arguments:?}: {said}");
    }
}
