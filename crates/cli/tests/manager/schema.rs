//! Rules of the buffering schema, carried out by real programs.

use crate::harness::{LAZY, Running, Setup, Site, USUAL, wait_for};
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs a script with these rules up to its end, which waits until `finish` is called.
fn start(site: &Site, rules: &str, script: &str) -> Running {
    let schema = site.root().join("site.xml");
    let text = format!("<buffering-schema version='1'>{rules}</buffering-schema>");
    fs::write(&schema, text).unwrap();
    let script = format!(
        "set -e; {script}\n\"$FOREBAY\" status > $OUT/status; : > $OUT/written\n\
         until [ -e $OUT/go ]; do sleep 0.01; done"
    );
    let config = site.config.to_str().unwrap();
    let schema = schema.to_str().unwrap();
    let words = ["run", "--config", config, "--schema", schema, "--", "bash", "-c", &script];
    let mut running = site.start(site.forebay(&words));
    wait_for("the script", LIMIT, || {
        assert!(running.is_running(), "{}", running.stderr());
        site.out.join("written").exists().then_some(())
    });
    running
}

fn finish(site: &Site, running: Running) {
    fs::write(site.out.join("go"), "").unwrap();
    let ran = running.end().expect(0);
    assert_eq!(ran.stderr, "", "{ran:?}");
    let status = fs::read_to_string(site.out.join("status")).unwrap();
    let live = |name: &str| {
        status.lines().any(|line| line.contains(name) && !line.trim_end().ends_with(" 0"))
    };
    assert!(live("count opens") && live("count writes"), "{status}");
}

/// Bytes of a file as a program without Forebay sees them.
fn on_store(site: &Site, name: &str) -> String {
    fs::read_to_string(site.store.join(name)).unwrap()
}

fn appears(site: &Site, name: &str, content: &str) {
    wait_for(name, LIMIT, || (on_store(site, name) == content).then_some(()));
}

#[test]
fn modes_and_triggers_follow_the_rules() {
    let site = Site::new(&LAZY);
    let rules = "
        <rule><match path='**/*.sync'/><set mode='sync'/></rule>
        <rule><match path='*.log'/><set mode='bypass'/></rule>
        <rule><match path='*.op'/><set trigger='per-operation'/></rule>
        <rule><match path='*.file'/><set trigger='per-file'/></rule>
        <rule><match path='*.soon'/><set trigger='periodic'/></rule>
        <rule><match process='dd'/><set mode='sync'/></rule>
        <rule><match ranks='0-7:4'/><set mode='sync'/></rule>
        <rule><match path='grown' size-min='1MiB'/><set mode='sync'/></rule>";
    let script = "
        mkdir d; echo text > d/a.sync; echo text > a.log; echo text > a.op; echo text > a.file
        echo text > a.soon; echo text > plain
        echo text | dd of=by-dd status=none
        PMI_RANK=3 bash -c 'echo text > rank-3'; PMI_RANK=4 bash -c 'echo text > rank-4'
        exec 7> grown; head -c 1048575 /dev/zero >&7; echo x >&7";
    let running = start(&site, rules, script);
    for name in ["d/a.sync", "a.log", "by-dd", "rank-4"] {
        assert_eq!(on_store(&site, name), "text\n", "{name}");
    }
    assert_eq!(on_store(&site, "grown").len(), (1 << 20) + 1);
    for name in ["a.op", "a.file", "a.soon"] {
        appears(&site, name, "text\n");
    }
    for name in ["plain", "rank-3"] {
        assert_eq!(on_store(&site, name), "", "{name}: only when the run ends");
    }
    finish(&site, running);
    assert_eq!(
        (on_store(&site, "plain"), on_store(&site, "rank-3")),
        ("text\n".into(), "text\n".into())
    );
}

#[test]
fn a_rule_can_hold_back_what_is_flushed_otherwise() {
    let quick = Setup { flush: "trigger = \"periodic\"\nperiod = \"20ms\"", ..USUAL };
    let site = Site::new(&quick);
    let rules = "<rule><match path='late'/><set trigger='on-exit'/></rule>";
    let running = start(&site, rules, "echo text > late; echo text > usual");
    appears(&site, "usual", "text\n");
    assert_eq!(on_store(&site, "late"), "");
    finish(&site, running);
    assert_eq!(on_store(&site, "late"), "text\n");
}

#[test]
fn the_first_rule_that_matches_holds_and_the_last_open_decides() {
    let site = Site::new(&LAZY);
    let rules = "
        <rule><match path='a'/><set/></rule>
        <rule><match process='dd'/><set mode='bypass'/></rule>
        <rule><match path='*'/><set mode='sync'/></rule>";
    let script = "echo text > a; echo one > b; exec 7>>c; echo one >&7; echo two | dd of=c oflag=append \
                  conv=notrunc status=none; echo three >&7";
    let running = start(&site, rules, script);
    assert_eq!(on_store(&site, "a"), "", "the rule that sets nothing keeps others away");
    assert_eq!(on_store(&site, "b"), "one\n");
    assert_eq!(on_store(&site, "c"), "one\ntwo\nthree\n");
    finish(&site, running);
}

#[test]
fn the_definition_is_printed() {
    let site = Site::new(&USUAL);
    let printed = site.end(site.forebay(&["schema"])).expect(0).stdout;
    assert!(printed.starts_with("<?xml") && printed.contains("buffering-schema"), "{printed}");
}

#[test]
fn a_schema_with_an_error_starts_nothing() {
    let site = Site::new(&USUAL);
    let schema = site.root().join("bad.xml");
    let text = "<buffering-schema version='1'>\n<rule><set tier='tape'/></rule></buffering-schema>";
    fs::write(&schema, text).unwrap();
    let config = site.config.to_str().unwrap();
    let schema = schema.to_str().unwrap();
    let words = ["run", "--config", config, "--schema", schema, "--", "touch", "started"];
    let ran = site.end(site.forebay(&words)).expect(125);
    let wanted =
        "bad.xml:2:12: rule[0]/set/@tier: \"tape\" is unknown; give one of \"ram\", \"nvme\"";
    assert!(ran.stderr.contains(wanted), "{ran:?}");
    assert!(!site.store.join("started").exists());
}
