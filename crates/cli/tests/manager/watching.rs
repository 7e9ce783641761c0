//! What `forebay status --json` and metrics promise to programs.

use crate::harness::{LAZY, LONG, Site, Steps, USUAL, kill, python_with, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A family of metrics: its type, and its samples by their labels.
#[derive(Default)]
struct Family {
    kind: String,
    samples: BTreeMap<String, f64>,
}

/// Reads the text format of Prometheus strictly: HELP and TYPE before the samples of each name, all
/// samples of a name together, no sample twice, names with units, values that are numbers.
fn parsed(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut has_help = false;
    assert!(text.ends_with('\n'), "the last line has no end");
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(!help.is_empty() && !families.contains_key(name), "{line}");
            (current, has_help) = (name.to_owned(), true);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert!(has_help && name == current, "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            families.insert(name.to_owned(), family);
            has_help = false;
        } else {
            let (name, rest) = line.split_once('{').expect(line);
            assert_eq!(name, current, "{line}");
            let (labels, value) = rest.rsplit_once("} ").expect(line);
            let is_name = |name: &str| {
                name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            };
            assert!(name.starts_with("forebay_") && is_name(name), "{line}");
            check_labels(labels);
            let value: f64 = value.parse().expect(line);
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let family = families.get_mut(name).expect(line);
            assert!(family.samples.insert(labels.to_owned(), value).is_none(), "{line}");
        }
    }
    assert!(families.values().all(|family| !family.samples.is_empty()));
    families
}

/// Labels are names with quoted values in which quotes are escaped.
fn check_labels(mut labels: &str) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect(labels);
        assert!(name.chars().all(|c| c.is_ascii_lowercase()), "{labels}");
        let mut escaped = false;
        let end = rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        labels = &rest[end.expect(labels) + 1..];
        labels = labels.strip_prefix(',').unwrap_or(labels);
    }
}

/// Asks an endpoint as a scraper does: head and content of the answer.
fn ask(mut endpoint: impl Read + Write, question: &str) -> (String, String) {
    endpoint.write_all(question.as_bytes()).unwrap();
    let mut said = String::new();
    endpoint.read_to_string(&mut said).unwrap();
    let (head, content) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{said}"));
    (head.to_owned(), content.to_owned())
}

const QUESTION: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn metrics_are_told_by_command_file_and_endpoint() {
    let site = Site::new(&LAZY);
    let config = fs::read_to_string(&site.config).unwrap();
    let file = site.out.join("forebay.prom");
    let socket = site.out.join("asked");
    let text = format!(
        "{config}[metrics]\ntextfile = \"{}\"\ninterval = \"1s\"\nlisten = \"{}\"\n",
        file.display(),
        socket.display()
    );
    fs::write(&site.config, text).unwrap();
    let script = "head -c 3M /dev/zero > file; cat file > /dev/null; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let said = site.end(site.forebay(&["metrics"])).expect(0).stdout;
    let families = parsed(&said);
    let value = |name: &str| families[name].samples.values().sum::<f64>();
    assert_eq!(value("forebay_up"), 1.0);
    assert_eq!(value("forebay_unsafe_bytes"), f64::from(3 << 20));
    assert_eq!(value("forebay_unsafe_files"), 1.0);
    assert_eq!(value("forebay_write_bytes_total"), f64::from(3 << 20));
    assert!(value("forebay_tier_written_bytes_total") >= f64::from(3 << 20), "{said}");
    assert!(value("forebay_read_bytes_total") >= f64::from(3 << 20), "{said}");
    assert!(families.values().any(|family| family.kind == "gauge"));
    if let Some(python) = python_with("prometheus_client") {
        let check = "import sys; from prometheus_client.parser import \
            text_string_to_metric_families as read; print(len(list(read(sys.stdin.read()))))";
        let mut command = site.command(&site.out, &python);
        command.args(["-c", check]);
        let input = site.out.join("said");
        fs::write(&input, &said).unwrap();
        let ran = site.start_with(command, fs::File::open(input).unwrap()).end().expect(0);
        assert_eq!(ran.stdout.trim(), families.len().to_string());
    }
    documented_and_drawn(&families);

    let written = wait_for("the file", LONG, || {
        let text = fs::read_to_string(&file).ok()?;
        text.contains("forebay_unsafe_files{").then_some(text)
    });
    assert_eq!(parsed(&written).keys().collect::<Vec<_>>(), families.keys().collect::<Vec<_>>());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // One who says nothing holds up no other: it is still waited for when they have their answers.
    let is_waited_for = |mut silent: &UnixStream| {
        silent.set_nonblocking(true).unwrap();
        silent.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let goes_beside = (0..20).any(|_| {
        let silent = UnixStream::connect(&socket).unwrap();
        ask(UnixStream::connect(&socket).unwrap(), QUESTION);
        is_waited_for(&silent)
    });
    assert!(goes_beside, "askers wait for one that says nothing");
    let (head, content) = ask(UnixStream::connect(&socket).unwrap(), QUESTION);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert_eq!(parsed(&content).len(), families.len());
    let (head, _) = ask(UnixStream::connect(&socket).unwrap(), "GET /other HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    steps.past("1");
    steps.end().expect(0);
    wait_for("the end", LONG, || site.processes().is_empty().then_some(()));
    assert!(!file.exists() && !socket.exists(), "a manager that has drained leaves nothing");
}

/// Each metric is on its page, and what the dashboard asks for exists.
fn documented_and_drawn(families: &BTreeMap<String, Family>) {
    let page = fs::read_to_string(project().join("docs/metrics.md")).unwrap();
    // Those of staged files, quotas and caps are there where these are.
    let rare = [
        "forebay_staged_files",
        "forebay_quota_used_bytes",
        "forebay_quota_limit_bytes",
        "forebay_unsafe_limit_bytes",
        "forebay_run_unsafe_bytes",
        "forebay_run_unsafe_limit_bytes",
    ];
    let known: BTreeSet<&str> = families.keys().map(String::as_str).chain(rare).collect();
    for name in &known {
        assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
    }
    for word in names_in(&page) {
        assert!(known.contains(&*word), "docs/metrics.md names {word}, which is no metric");
    }
    let dashboard = fs::read_to_string(project().join("examples/grafana/forebay.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut asked = 0;
    for panel in panels {
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{panel}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            for name in names_in(target["expr"].as_str().unwrap()) {
                assert!(known.contains(&*name), "the dashboard asks for {name}");
                asked += 1;
            }
        }
    }
    assert!(panels.len() >= 8 && asked >= 16, "{asked}");
}

/// Words that look like names of metrics.
fn names_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("forebay_")).map(str::to_owned).collect()
}

#[test]
fn metrics_that_cannot_be_told_keep_no_manager_from_serving() {
    let site = Site::new(&USUAL);
    let config = fs::read_to_string(&site.config).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = site.out.join("metrics");
    fs::create_dir(&folder).unwrap();
    let text = format!(
        "{config}[metrics]\ntextfile = \"{}/forebay.prom\"\ninterval = \"1s\"\nlisten = \"{}\"\n",
        folder.display(),
        taken.local_addr().unwrap()
    );
    fs::write(&site.config, text).unwrap();
    let steps = Steps::of(&site, "echo text > file; step 1; echo more >> file; step 2");
    steps.at("1");
    assert!(site.log().contains("metrics.listen: 127.0.0.1:"), "{}", site.log());
    wait_for("the file", LONG, || folder.join("forebay.prom").exists().then_some(()));
    // Its folder goes away, and comes back.
    fs::remove_dir_all(&folder).unwrap();
    wait_for("a word", LONG, || site.log().contains("it is tried again").then_some(()));
    fs::create_dir(&folder).unwrap();
    wait_for("the file", LONG, || folder.join("forebay.prom").exists().then_some(()));
    wait_for("a word", LONG, || site.log().contains("is written again").then_some(()));
    assert_eq!(site.log().matches("it is tried again").count(), 1, "{}", site.log());
    steps.past("1");
    steps.at("2");
    steps.past("2");
    steps.end().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "text\nmore\n");
    // A run says what cannot be had from its start.
    let folder = site.out.join("folder.prom");
    fs::create_dir(&folder).unwrap();
    let text = format!("{config}[metrics]\ntextfile = \"{}\"\n", folder.display());
    fs::write(&site.config, text).unwrap();
    let said = site.end(site.buffered(&["true"])).expect(0).stderr;
    let wanted = format!("metrics.textfile: {}: Is a directory", folder.display());
    assert!(said.contains(&wanted), "{said}");
}

#[test]
fn a_manager_that_is_killed_leaves_whole_metrics_and_the_next_one_goes_on() {
    let site = Site::new(&LAZY);
    let config = fs::read_to_string(&site.config).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = site.out.join("forebay.prom");
    let text = format!(
        "{config}[metrics]\ntextfile = \"{}\"\ninterval = \"1s\"\nlisten = \"localhost:{port}\"\n",
        file.display()
    );
    fs::write(&site.config, text).unwrap();
    // The third time it is about to name the file.
    let words = [("FOREBAY_CRASH", "metrics.written:3"), ("FOREBAY_CRASH_IN", "node")];
    let mut command = Steps::command(&site, &[], "echo text > file; step 1; step 2");
    command.envs(words);
    let steps = Steps::start(&site, command);
    steps.at("1");
    let manager = site.status().manager;
    wait_for("the kill", LONG, || (!crate::harness::is_alive(manager)).then_some(()));
    let families = parsed(&fs::read_to_string(&file).unwrap());
    assert_eq!(families["forebay_unsafe_files"].samples.values().sum::<f64>(), 1.0);
    steps.past("1");
    steps.at("2");
    // A command starts the next one, which listens at the same port.
    let config = site.config.to_str().unwrap();
    let other = Steps::command(&site, &[], "step 3");
    let other = Steps::start(&site, other);
    other.at("3");
    let (head, content) = ask(TcpStream::connect(("127.0.0.1", port)).unwrap(), QUESTION);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head} {config}");
    // As a browser has it that another site leads here by a name of its own.
    let led = QUESTION.replace("localhost", "evil.example");
    let (refused, nothing) = ask(TcpStream::connect(("127.0.0.1", port)).unwrap(), &led);
    assert!(refused.starts_with("HTTP/1.1 421 ") && !nothing.contains("forebay_"), "{refused}");
    assert_eq!(parsed(&content)["forebay_up"].samples.values().sum::<f64>(), 1.0);
    steps.past("2");
    other.past("3");
    other.end().expect(0);
    steps.end().expect(0);
    wait_for("the end", LONG, || site.processes().is_empty().then_some(()));
    assert!(!file.exists());
}

#[test]
fn what_is_wrong_with_the_metrics_of_a_configuration_is_said() {
    let site = Site::new(&LAZY);
    let config = fs::read_to_string(&site.config).unwrap();
    for (text, wanted) in [
        ("textfile = \"a.txt\"", "does not end with .prom"),
        ("textfile = \"/none/a.prom\"", "/none is no directory; make it"),
        ("listen = \"0.0.0.0:9477\"", "can be reached from other machines"),
        ("listen = \"[::]:9477\"", "can be reached from other machines"),
        ("listen = \"127.0.0.1:0\"", "port 0 is no port"),
        ("listen = \"nonsense\"", "is no address, and without a slash no path; give a path"),
        ("listen = \"/none/socket\"", "/none is no directory"),
        ("interval = \"1ms\"", "give a time from 1s to 60min"),
        ("listens = 1", "listens"),
    ] {
        fs::write(&site.config, format!("{config}[metrics]\n{text}\n")).unwrap();
        let ran = site.end(site.buffered(&["true"])).expect(125);
        assert!(ran.stderr.contains(wanted) && ran.stderr.contains("metrics"), "{text}: {ran:?}");
    }
}

#[test]
fn the_dead_are_no_clients_of_an_orphaned_pool() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "head -c 3M /dev/zero > file; step 1");
    steps.at("1");
    let look = || -> Value {
        let text = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    };
    assert!(look()["clients"].as_u64().unwrap() > 0);
    site.kill_all();
    let seen = look();
    assert_eq!((&seen["orphaned"], &seen["clients"]), (&true.into(), &0.into()), "{seen}");
    assert_eq!(seen["unsafe"]["bytes"], 3 << 20, "{seen}");
    drop(steps);
    site.recover().expect(0);
}

#[test]
fn status_for_programs_is_documented() {
    let site = Site::new(&LAZY);
    let script = "head -c 3M /dev/zero > file; cat file > /dev/null; sleep 1.2; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let look = || -> Value {
        let text = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    };
    let seen = look();
    assert_eq!(seen["version"], 1);
    assert_eq!(seen["unsafe"]["bytes"], 3 << 20, "{seen}");
    assert_eq!(seen["unsafe"]["oldest"]["safe"], "end", "{seen}");
    assert!(seen["rates_over_seconds"].as_f64().unwrap() > 0.0, "{seen}");
    assert!(seen["tiers"][0]["rates"]["in_bytes_per_second"].is_u64(), "{seen}");
    assert!(seen["hottest"][0]["path"].as_str().unwrap().ends_with("/file"), "{seen}");
    let page = fs::read_to_string(project().join("docs/status.md")).unwrap();
    let mut left = vec![&seen];
    while let Some(value) = left.pop() {
        if let Some(object) = value.as_object() {
            for (key, value) in object {
                assert!(page.contains(&format!("{key}`")), "{key} is not documented");
                // They have pages of their own.
                if !["counters", "group", "actions"].contains(&&**key) {
                    left.push(value);
                }
            }
        }
        left.extend(value.as_array().into_iter().flatten());
    }
    let text = site.end(site.forebay(&["status"])).expect(0).stdout;
    for wanted in [
        "  unsafe   3.00 MiB of 1 file, which the store takes in ",
        ", safe after the end of its run: ",
        "  errors   none",
        "] 5 %, in ",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    wait_for("the stop", LONG, || {
        let seen = look();
        (seen["manager_stopped"] == true).then(|| {
            assert_eq!(seen["unsafe"]["oldest"]["safe"], "stopped", "{seen}");
        })
    });
    // It would start another one.
    kill(steps.running.pid(), Signal::STOP);
    kill(manager, Signal::KILL);
    wait_for("the kill", LONG, || (!crate::harness::is_alive(manager)).then_some(()));
    let seen = look();
    kill(steps.running.pid(), Signal::CONT);
    assert_eq!(seen["unsafe"]["oldest"]["safe"], "unserved", "{seen}");
    steps.past("1");
    steps.end().expect(0);
}
