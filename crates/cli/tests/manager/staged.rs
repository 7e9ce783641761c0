//! Mode `staged`: a whole file on a named tier, drained after the last close in whole stripes,
//! compared with the store, and gone on with after a kill at the first stripe that was not.

use crate::harness::{EAGER, LONG, Setup, Site, Status, Steps, becomes, kill, sees, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A store that takes two seconds for the file of a test.
const SLOW: Setup =
    Setup { store_emulate: Some("{ bandwidth = \"20MB/s\", latency = \"1ms\" }"), ..EAGER };

/// A site whose store has stripes of 1 MiB; files of the name `staged*` are staged.
fn site(setup: &Setup) -> Site {
    let site = Site::new(setup);
    let text = fs::read_to_string(&site.config).unwrap();
    let text = text.replacen("path = \"store\"", "path = \"store\"\nstripe = \"1MiB\"", 1);
    let rule = "[[rule]]\npath = \"staged*\"\nmode = \"staged\"\ntier = \"nvme\"\n";
    fs::write(&site.config, text + rule).unwrap();
    site
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + (at >> 9)) as u8).collect()
}

/// A file outside with that content.
fn input(site: &Site, bytes: usize) -> PathBuf {
    let input = site.out.join("input");
    fs::write(&input, content(bytes)).unwrap();
    input
}

/// What `explain` says, whose lines it breaks.
fn explained(site: &Site, file: &str) -> String {
    let said = site.end(site.forebay(&["explain", "--all", file])).expect(0).stdout;
    said.replace("\n            ", " ")
}

/// Waits until the file is in the state of this letter.
fn comes_to(site: &Site, file: &str, letter: char) {
    let wanted = format!("({letter})");
    wait_for(&wanted, LONG, || explained(site, file).contains(&wanted).then_some(()));
}

#[test]
fn a_staged_file_is_drained_after_its_last_close_in_whole_stripes() {
    const BYTES: usize = (10 << 20) + 123;
    let site = site(&EAGER);
    let input = input(&site, BYTES);
    let script = format!(
        "exec 3> staged; cat {0} >&3; exec 4>> staged; exec 3>&-; echo text > usual; step 1; exec 4>&-
         step 2; cmp staged {0}; step 3",
        input.display()
    );
    let steps = Steps::of(&site, &script);
    steps.at("1");
    becomes(&site.store.join("usual"), "text\n");
    // One descriptor is open still.
    assert_eq!(sees(&site.store.join("staged")), "");
    let said = explained(&site, "staged");
    assert!(said.contains("mode staged, being written (W)"), "{said}");
    assert!(said.contains("mode staged (rule), trigger per-file (rule)"), "{said}");
    let lies = said.split("new data").next().unwrap();
    let parts: Vec<_> = lies.lines().filter(|line| line.contains(" .. ")).collect();
    assert!(!parts.is_empty() && parts.iter().all(|part| part.contains(" nvme ")), "{said}");
    let status = site.status();
    status.assert_live();
    assert!(status.text.contains("staged   1 file being written (W), 10.00 MiB"), "{status:?}");
    assert_eq!(status.count("staged_requests"), 0);
    steps.past("1");
    steps.at("2");
    comes_to(&site, "staged", 'F');
    assert!(fs::read(site.store.join("staged")).unwrap() == content(BYTES));
    let status = site.status();
    // Ten stripes, and the end.
    assert_eq!(status.count("staged_requests"), 11, "{}", status.text);
    assert_eq!(status.count("staged_whole"), 11, "{}", status.text);
    assert_eq!(status.count("staged_compared"), BYTES as u64, "{}", status.text);
    assert_eq!(status.count("staged_unequal"), 0);
    steps.past("2");
    steps.at("3");
    steps.past("3");
    assert_eq!(steps.end().stdout, "");
}

#[test]
fn a_staged_file_that_is_written_again_is_drained_again() {
    let site = site(&EAGER);
    let script = "echo one > staged; step 1; echo two >> staged; step 2";
    let steps = Steps::of(&site, script);
    steps.at("1");
    becomes(&site.store.join("staged"), "one\n");
    comes_to(&site, "staged", 'F');
    steps.past("1");
    steps.at("2");
    becomes(&site.store.join("staged"), "one\ntwo\n");
    comes_to(&site, "staged", 'F');
    steps.past("2");
    steps.end();
}

#[test]
fn a_sync_of_a_staged_file_still_means_the_store() {
    let site = site(&EAGER);
    let script = "python3 -c \"
import os
fd = os.open('staged', os.O_CREAT | os.O_WRONLY)
os.write(fd, b'text'); os.fsync(fd)
\"; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    assert_eq!(sees(&site.store.join("staged")), "text");
    steps.past("1");
    steps.end();
}

/// The manager's counts once they say what `wanted` waits for.
fn counts(site: &Site, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    wait_for(what, LONG, || Some(site.status()).filter(&wanted))
}

#[test]
fn a_drain_that_is_killed_goes_on_at_the_first_missing_stripe() {
    const STRIPES: u64 = 40;
    /// Those that are flushed and compared together.
    const BATCH: u64 = 16;
    let site = site(&SLOW);
    let input = input(&site, (STRIPES as usize) << 20);
    let steps = Steps::of(&site, &format!("cp {} staged; step 1", input.display()));
    steps.at("1");
    let status =
        counts(&site, "two batches", |now| now.count("staged_compared") >= (2 * BATCH) << 20);
    assert!(status.text.contains("draining (D)"), "{}", status.text);
    let done = status.count("staged_compared") >> 20;
    assert!(done < STRIPES, "too fast");
    kill(status.manager, Signal::KILL);
    // The run starts another one.
    let is_new = |now: &Status| now.manager != 0 && now.manager != status.manager;
    counts(&site, "a new manager", is_new);
    comes_to(&site, "staged", 'F');
    let status = site.status();
    assert!(fs::read(site.store.join("staged")).unwrap() == fs::read(&input).unwrap());
    // What was under way at the kill is written again, and nothing that was compared.
    let requests = status.count("staged_requests");
    assert!(requests <= STRIPES + BATCH, "{requests}: {}", status.text);
    assert_eq!(status.count("staged_whole"), requests, "{}", status.text);
    steps.past("1");
    steps.end();
}

#[test]
fn whole_stripes_that_rest_go_before_the_close() {
    let site = site(&EAGER);
    let input = input(&site, (3 << 20) + 5);
    let script = format!("exec 3> staged; cat {} >&3; step 1; exec 3>&-; step 2", input.display());
    let steps = Steps::of(&site, &script);
    steps.at("1");
    let status = counts(&site, "stripes", |now| now.count("staged_whole") > 0);
    assert!(status.text.contains("being written (W)"), "{}", status.text);
    counts(&site, "three stripes", |now| now.count("staged_compared") == 3 << 20);
    assert!(fs::read(site.store.join("staged")).unwrap() == content(3 << 20));
    steps.past("1");
    steps.at("2");
    comes_to(&site, "staged", 'F');
    let status = site.status();
    assert_eq!((status.count("staged_requests"), status.count("staged_whole")), (4, 4));
    steps.past("2");
    steps.end();
}

#[test]
fn a_file_is_laid_out_before_its_first_byte_and_after_its_size_is_known() {
    let site = site(&EAGER);
    let text = fs::read_to_string(&site.config).unwrap();
    let more = "stripe = \"1MiB\"\nstripe_count = 8";
    fs::write(&site.config, text.replacen("stripe = \"1MiB\"", more, 1)).unwrap();
    // Lustre's command, as far as it is used.
    let folder = site.out.join("bin");
    fs::create_dir(&folder).unwrap();
    let (lfs, said) = (folder.join("lfs"), site.out.join("said"));
    let script = format!("#!/bin/sh\necho \"$@\" $(stat -c %s \"$7\") >> {}\n", said.display());
    fs::write(&lfs, script).unwrap();
    fs::set_permissions(&lfs, fs::Permissions::from_mode(0o755)).unwrap();
    let input = input(&site, (3 << 20) + 5);
    let script = format!("cp {} staged-large; echo text > staged-small; step 1", input.display());
    let mut command = Steps::command(&site, &[], &script);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path);
    let steps = Steps::start(&site, command);
    steps.at("1");
    for name in ["staged-large", "staged-small"] {
        comes_to(&site, name, 'F');
    }
    steps.past("1");
    steps.end();
    let mut lines: Vec<String> = sees(&said).lines().map(str::to_owned).collect();
    lines.sort();
    let line = |name: &str, count: u32| {
        let path = site.store.join(name);
        format!("migrate -c {count} -S 1048576 -- {} 0", path.display())
    };
    assert_eq!(lines, [line("staged-small", 1), line("staged-large", 4)]);
    assert!(fs::read(site.store.join("staged-large")).unwrap() == content((3 << 20) + 5));
}

#[test]
fn without_lustre_a_file_is_drained_as_its_directory_lays_it_out() {
    let site = site(&EAGER);
    let text = fs::read_to_string(&site.config).unwrap();
    let more = "stripe = \"1MiB\"\nstripe_count = 8";
    fs::write(&site.config, text.replacen("stripe = \"1MiB\"", more, 1)).unwrap();
    let steps = Steps::of(&site, "echo text > staged; echo text > staged-2; step 1");
    steps.at("1");
    for name in ["staged", "staged-2"] {
        becomes(&site.store.join(name), "text\n");
    }
    assert_eq!(site.log().matches("its layout stays").count(), 1, "{}", site.log());
    steps.past("1");
    steps.end();
}

#[test]
fn what_a_staged_file_needs_is_said() {
    let site = Site::new(&EAGER);
    let before = fs::read_to_string(&site.config).unwrap();
    for (rule, why) in [
        ("mode = \"staged\"", "staged needs the tier on which the files lie; add a file tier"),
        ("mode = \"staged\"\ntier = \"ram\"", "staged needs a file tier"),
        (
            "mode = \"staged\"\ntier = \"nvme\"\ntrigger = \"periodic\"",
            "has no meaning with mode staged; remove one",
        ),
    ] {
        fs::write(&site.config, format!("{before}[[rule]]\n{rule}\n")).unwrap();
        let ran = site.end(site.buffered(&["true"])).expect(125);
        assert!(ran.stderr.contains(why), "{rule}: {ran:?}");
    }
    fs::write(&site.config, before).unwrap();
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--mode", "staged", "--", "true"];
    let ran = site.end(site.forebay(&words)).expect(125);
    assert!(ran.stderr.contains("possible values: async"), "{ran:?}");
}
