//! `forebay run --report` and `forebay report`.

use crate::harness::{LAZY, Setup, Site, TINY, USUAL};
use serde_json::Value;
use std::fs;

/// A store that takes some tenths of a second for what these tests write.
const SLOW: Setup =
    Setup { store_emulate: Some("{ bandwidth = \"20MB/s\", latency = \"1ms\" }"), ..USUAL };

const WRITE: &str = "head -c 8000000 /dev/zero > a; sleep 0.3; cat a > /dev/null";

fn read(site: &Site, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(site.out.join(name)).unwrap()).unwrap()
}

fn reported(site: &Site, report: &str, script: &str) -> crate::harness::Ran {
    let config = site.config.to_str().unwrap();
    let report = format!("--report={report}");
    let words = ["run", "--config", config, &report, "--", "bash", "-ec", script];
    site.end(site.forebay(&words))
}

#[test]
fn a_report_says_what_was_written_and_read_in_three_forms() {
    let site = Site::new(&SLOW);
    let out = |name: &str| site.out.join(name).to_str().unwrap().to_owned();
    reported(&site, &out("run.json"), WRITE).expect(0);
    let document = read(&site, "run.json");
    assert_eq!(document["schema"], 1);
    assert_eq!((&document["exit"], &document["outcome"]["name"]), (&0.into(), &"drained".into()));
    assert_eq!(document["bytes"]["written"], 8_000_000, "{document}");
    assert_eq!(document["bytes"]["read"], 8_000_000, "{document}");
    assert_eq!(document["hits"]["read_share"], 1.0, "{document}");
    assert_eq!(document["hidden"]["basis"], "measured");
    // 8 MB at 20 MB/s: beside the command, or behind its end.
    let busy = ["store_write_seconds", "after_seconds"].map(|key| &document["hidden"][key]);
    let busy: f64 = busy.iter().map(|seconds| seconds.as_f64().unwrap()).sum();
    assert!(busy > 0.3, "{document}");
    let flushed = document["movements"].as_array().unwrap().iter();
    let flushed = flushed.filter(|way| way["to"] == "store").map(|way| way["bytes"].as_u64());
    assert_eq!(flushed.flatten().sum::<u64>(), 8_000_000, "{document}");
    let ram = &document["tiers"][0];
    assert!(ram["peak"].as_u64().unwrap() >= 8_000_000, "{document}");

    // The last run, in each form.
    let last = site.end(site.forebay(&["report", "--json"])).expect(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&last).unwrap(), document);
    let text = site.end(site.forebay(&["report"])).expect(0).stdout;
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("7.63 MiB in") && flat.contains("at least 100 % of what was"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    site.end(site.forebay(&["report", "--output", &out("run.html")])).expect(0);
    let page = fs::read_to_string(site.out.join("run.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("href="), "{page}");
    let of_file = site.end(site.forebay(&["report", &out("run.json")])).expect(0).stdout;
    assert_eq!(of_file, text);
    // What is no report is said to be none.
    fs::write(site.out.join("other.json"), "{}").unwrap();
    let said = site.end(site.forebay(&["report", &out("other.json")])).expect(125).stderr;
    assert!(said.contains("other.json: is no report"), "{said}");
}

#[test]
fn a_report_on_the_standard_error_leaves_output_and_status_to_the_command() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let script = "echo mine; echo data > f; exit 7";
    let ran = site
        .end(site.forebay(&["run", "--config", config, "--report", "--", "bash", "-c", script]));
    let ran = ran.expect(7);
    assert_eq!(ran.stdout, "mine\n");
    assert!(ran.stderr.contains("status 7") && ran.stderr.contains("5 B in 1 write"), "{ran:?}");
    // Not asked for: nothing is said, and the run is there all the same.
    let ran = site.end(site.buffered(&["cat", "f"])).expect(0);
    assert_eq!(ran.stderr, "");
    let last = site.end(site.forebay(&["report", "--json"])).expect(0).stdout;
    let last: Value = serde_json::from_str(&last).unwrap();
    // The first read of a cold file waits for the store.
    assert_eq!(last["bytes"]["from_store"], 5, "{last}");
    assert_eq!((&last["command"], &last["hits"]["read_share"]), (&"cat f".into(), &0.0.into()));
}

#[test]
fn full_tiers_are_named_with_what_helps() {
    let site = Site::new(&TINY);
    let path = site.out.join("run.json");
    let script = "head -c 30000000 /dev/zero > big";
    reported(&site, path.to_str().unwrap(), script).expect(0);
    let document = read(&site, "run.json");
    let waits = &document["counters"]["backpressure"];
    let codes: Vec<_> = document["advice"].as_array().unwrap().iter().map(|a| &a["code"]).collect();
    let was_full =
        waits.as_u64() > Some(0) || document["counters"]["write_around"].as_u64() > Some(0);
    assert_eq!(codes.contains(&&"capacity".into()), was_full, "{document}");
}

#[test]
fn a_run_that_buffers_nothing_says_why() {
    let site = Site::new(&LAZY);
    let path = site.out.join("run.json");
    reported(&site, path.to_str().unwrap(), "true").expect(0);
    let document = read(&site, "run.json");
    let said = document["advice"][0]["text"].as_str().unwrap();
    assert!(said.contains("nothing was buffered"), "{document}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_before_the_command_starts() {
    let site = Site::new(&USUAL);
    let missing = site.out.join("no/folder/run.html");
    let said = reported(&site, missing.to_str().unwrap(), "touch started").expect(125).stderr;
    assert!(said.contains("--report") && said.contains("folder does not exist"), "{said}");
    let said = reported(&site, site.out.to_str().unwrap(), "touch started").expect(125).stderr;
    assert!(said.contains("is a directory"), "{said}");
    assert!(!site.store.join("started").exists());
    let said = site.end(site.forebay(&["report"])).expect(125).stderr;
    assert!(said.contains("no run of yours has ended here yet"), "{said}");
}
