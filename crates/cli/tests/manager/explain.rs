//! `forebay explain` says which rule holds, where the bytes are, and where new ones would go.

use crate::harness::{LAZY, Ran, Site, wait_for};
use std::fs;
use std::time::Duration;

const RULES: &str = "<buffering-schema version='1'>
<rule name='logs'><match path='*.log'/><set mode='bypass'/></rule>
<rule name='fields'><match path='run/**'/><set tier='nvme' trigger='on-exit' priority='9'/></rule>
<rule name='of dd'><match process='dd'/><set policy='max-bandwidth'/></rule>
</buffering-schema>";

#[test]
fn rules_places_and_plans_are_told() {
    let site = Site::new(&LAZY);
    let schema = site.root().join("site.xml");
    fs::write(&schema, RULES).unwrap();
    fs::write(site.store.join("old"), vec![b'x'; 5 << 20]).unwrap();
    let script = "set -e; mkdir run; dd if=/dev/zero of=by-dd bs=1M count=3 status=none
        dd if=/dev/zero of=old bs=1M seek=1 count=1 conv=notrunc status=none
        exec 7> a.log; echo >&7; : > $OUT/written; until [ -e $OUT/go ]; do sleep 0.01; done";
    let (config, schema) = (site.config.to_str().unwrap(), schema.to_str().unwrap());
    let words = ["run", "--config", config, "--schema", schema, "--", "bash", "-c", script];
    let mut running = site.start(site.forebay(&words));
    wait_for("the script", Duration::from_secs(30), || {
        assert!(running.is_running(), "{}", running.stderr());
        site.out.join("written").exists().then_some(())
    });
    let explain = |words: &[&str]| -> Ran {
        let mut command = site.forebay(&["explain"]);
        command.args(words);
        site.end(command)
    };

    let by_dd = explain(&["by-dd"]).expect(0).stdout;
    has(&by_dd, "file      3.00 MiB, ahead of the store's 0 B");
    has(&by_dd, "logs (");
    has(&by_dd, "site.xml:2) does not match: path");
    has(&by_dd, "rule      of dd (");
    has(&by_dd, "site.xml:4) holds: policy max-bandwidth");
    has(&by_dd, "0 .. 3145728 ram 3.00 MiB, 3.00 MiB not yet on the store");
    has(&by_dd, "new data  1.00 MiB by policy max-bandwidth, hotness of the file ");
    has(&by_dd, "  moves     98 % exposed\n");
    for place in ["ram  ", "nvme  ", "store  "] {
        has(&by_dd, place);
    }
    has(&by_dd, "-> 1.00 MiB to ram\n");

    let old = explain(&["old"]).expect(0).stdout;
    has(&old, "0 .. 1048576 store 1.00 MiB\n");
    has(&old, "1048576 .. 2097152 ram 1.00 MiB, 1.00 MiB not yet on the store");
    has(&old, "2097152 .. 5242880 store 3.00 MiB\n");

    let new = explain(&["run/new", "--bytes", "3000000"]).expect(0).stdout;
    has(&new, "file      0 B, nothing of it is buffered");
    has(&new, "site.xml:3) holds: policy user-defined, tier nvme, trigger on-exit, priority 9");
    has(&new, "new data  3.00 MiB by policy user-defined, hotness of the file 0.0:");
    has(&new, "-> 3.00 MiB to nvme\n");
    assert!(!new.contains("of dd"), "rules below the one that holds are not asked: {new}");

    for text in [&by_dd, &old, &new] {
        let site = site.root().to_str().unwrap();
        let wide = |line: &&str| line.chars().count() > 80 && !line.contains(site);
        assert_eq!(text.lines().filter(wide).collect::<Vec<_>>(), [""; 0], "{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&explain(&["by-dd", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(json["size"], 3 << 20, "{json}");
    assert_eq!(json["file"]["ahead"], true, "{json}");
    assert_eq!(json["rules"][2]["holds"], true, "{json}");
    assert_eq!(json["settings"], "policy max-bandwidth", "{json}");
    assert_eq!(json["extents"][0]["range"], serde_json::json!([0, 3 << 20]), "{json}");
    assert_eq!(json["extents"][0]["tier"], "ram", "{json}");
    assert_eq!(json["placement"]["places"][2]["name"], "store", "{json}");
    assert_eq!(json["placement"]["plan"][0]["to"], "ram", "{json}");
    documented(&json);

    let log = explain(&["a.log"]).expect(0).stdout;
    has(&log, "used through the kernel");
    has(&log, "holds: mode bypass");

    let elsewhere = explain(&["../out/written"]).expect(125);
    has(&elsewhere.stderr, "is in no directory that a node manager of yours buffers now");
    fs::write(site.out.join("go"), "").unwrap();
    running.end().expect(0);
    assert_eq!(fs::metadata(site.store.join("by-dd")).unwrap().len(), 3 << 20);
}

#[test]
fn a_flag_changes_what_it_names_and_it_is_said_where_everything_comes_from() {
    let site = Site::new(&LAZY);
    let config = fs::read_to_string(&site.config).unwrap().replace("on-exit", "periodic");
    let placement = "[placement]\npolicy = \"max-locality\"\n\
        [[rule]]\npath = \"*.log\"\npolicy = \"hot-data\"\ntrigger = \"per-file\"\n";
    fs::write(&site.config, config + placement).unwrap();
    let script = "echo > file; echo > a.log; \
        for name in file a.log new; do \"$FOREBAY\" explain $name; done; \
        \"$FOREBAY\" status; \"$FOREBAY\" status --json";
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--trigger", "on-exit", "--", "bash", "-c", script];
    let said = site.end(site.forebay(&words)).expect(0).stdout;
    // `explain` breaks its lines.
    let whole = said.replace("\n            ", " ");
    let in_force = whole.lines().filter_map(|line| line.trim().strip_prefix("in force "));
    let expected = [
        "policy max-locality (configuration), mode async (default), trigger on-exit (run)",
        "policy hot-data (rule), mode async (default), trigger per-file (rule)",
        // Which run will open it is not known.
        "policy max-locality (configuration), mode async (default), trigger periodic (default)",
        "policy max-locality (configuration), mode async (default), trigger periodic (default), \
         where neither rule nor run says otherwise",
    ];
    assert_eq!(in_force.map(str::trim).collect::<Vec<_>>(), expected, "{said}");
    has(&said, r#""policy": {"name": "max-locality", "from": "configuration"}"#);
    has(&said, r#""mode": null, "trigger": "on-exit", "pinned": 0, "quotas": [], "unsafe": null"#);
}

/// Both modes of I/O of the ranks of an MPI program on a file that two tiers and the store hold.
#[test]
fn collective_and_independent_io_are_compared_by_their_terms() {
    let site = Site::new(&LAZY);
    let config = fs::read_to_string(&site.config).unwrap();
    let store = "latency = \"1ms\"\nseek = { read = \"10ms\", write = \"1us\" }\n\
        bandwidth = { read = \"100MB/s\", write = \"1GB/s\" }\n";
    let config = config.replacen("[[backing]]\n", &format!("[[backing]]\n{store}"), 1);
    let mpi = "[mpi]\nwithin = { latency = \"1us\", bandwidth = \"1GB/s\" }\n";
    fs::write(&site.config, format!("{config}{mpi}")).unwrap();
    fs::write(site.store.join("old"), vec![b'x'; 1 << 20]).unwrap();
    let ask = "\"$FOREBAY\" explain old --ranks 4 --bytes 1048576 --piece 10000";
    let script = format!(
        "{ask} --buffer 1048576 --aggregators 2; {ask} --json; \"$FOREBAY\" explain old --json
        {ask} --nodes 2 && exit 1; {ask} --nodes 5 && exit 1; {ask} --aggregators 5 && exit 1; :"
    );
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--", "bash", "-c", &script];
    let ran = site.end(site.forebay(&words)).expect(0);
    let said = &ran.stdout;
    // 4 MiB from the store, where each of 420 pieces is 10 ms away; each of two aggregators reads
    // two rounds, and has a quarter itself.
    has(said, "mpi reads 4.00 MiB of 4 ranks: collective I/O");
    has(said, "independent 4.24s: 100MB/s, 10.0ms each seek");
    has(said, "2 aggregators, 2 rounds");
    has(said, "0s between nodes, 1.57ms within, 43.9ms I/O");
    has(said, "mpi write 4.00 MiB of 4 ranks: independent I/O");
    let mut objects =
        said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let (with, without) = (objects.next().unwrap(), objects.next().unwrap());
    documented(&with);
    assert_eq!(with["modes"][0]["mode"], "collective", "{with}");
    assert_eq!(with["modes"][1]["direction"], "write", "{with}");
    assert_eq!(with["modes"][0]["bytes"], 4 << 20, "{with}");
    assert!(without["modes"].is_null(), "{without}");
    for wanted in [
        "messages between nodes are (mpi.between); `forebay profile --mpi` measures it",
        "4 ranks on 5 nodes; give each node one at least",
        "of 4 ranks at least one and at most all can be aggregators",
    ] {
        assert!(ran.stderr.contains(wanted), "no {wanted:?} in {}", ran.stderr);
    }
}

/// Every key of the object is in the page about it.
fn documented(value: &serde_json::Value) {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explain.md");
    let page = fs::read_to_string(page).unwrap();
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        if let Some(object) = value.as_object() {
            for key in object.keys() {
                assert!(page.contains(&format!("{key}`")), "{key} is not documented");
            }
            left.extend(object.values());
        }
        left.extend(value.as_array().into_iter().flatten());
    }
}

/// The line may have been broken.
#[track_caller]
fn has(text: &str, wanted: &str) {
    let whole = text.replace("\n            ", " ");
    assert!(text.contains(wanted) || whole.contains(wanted), "no {wanted:?} in\n{text}");
}
