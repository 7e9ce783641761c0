//! Small commands: check, drop, completions, man-pages.

use crate::harness::{LAZY, LONG, Site, USUAL, kill, wait_for, works};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

#[test]
fn check_says_what_a_configuration_does_and_names_all_errors_at_once() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let said = site.end(site.forebay(&["check", config])).expect(0).stdout;
    assert!(said.starts_with(&format!("{config}: good\n")), "{said}");
    for part in ["tier      ram: 64.00 MiB", "flush     when a block", "no node manager yet"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // It leaves nothing, and starts nothing.
    assert_eq!(site.instances().count(), 0);

    let text = fs::read_to_string(&site.config).unwrap();
    fs::write(
        &site.config,
        text.replace("\"64MiB\"", "\"1 lot\"").replace("kind = \"file\"", "knid = \"file\""),
    )
    .unwrap();
    let said = site.end(site.forebay(&["check", config])).expect(125).stderr;
    assert!(said.contains("1 lot") && said.contains("knid"), "{said}");
    let said = site.end(site.forebay(&["check", "--json", config])).expect(125).stdout;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["good"], false);
    assert!(said["errors"].as_array().unwrap().len() >= 2, "{said}");
    let said = site.end(site.forebay(&["check"])).expect(125).stderr;
    assert!(said.contains("give a configuration file"), "{said}");

    // One that a program writes to a pipe: no byte of it is read twice.
    fs::write(&site.config, text).unwrap();
    let mut command = site.command(&site.store, "bash");
    let script = "\"$0\" check <(sed \"s|path = .|&$PWD/../|\" \"$1\")";
    command.args(["-c", script, site.program(), config]);
    let said = site.end(command).expect(0).stdout;
    assert!(said.contains(": good\n"), "{said}");
}

#[test]
fn check_tells_what_keeps_a_good_configuration_from_starting_apart_from_errors() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let without_folder = |words: &[&str]| {
        let mut check = site.forebay(words);
        check.env("FOREBAY_RUNTIME_DIR", config);
        site.end(check).expect(125)
    };
    let said = without_folder(&["check", config]).stderr;
    let last = said.lines().last().unwrap();
    assert_eq!(last, format!("{config}: no errors, but it cannot be started here now"), "{said}");
    assert!(said.lines().count() > 1 && !said.contains("1 error"), "{said}");
    let said = without_folder(&["check", "--json", config]).stdout;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["errors"].as_array().unwrap().is_empty() && said["good"] == false, "{said}");
    assert!(said["start"].as_str().is_some_and(|why| why.contains(config)), "{said}");
}

#[test]
fn check_warns_of_tiers_for_which_there_is_no_room_now() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let said = site.end(site.forebay(&["check", "--json", config])).expect(0).stdout;
    let good: Value = serde_json::from_str(&said).unwrap();
    let rooms = good["tiers"][0]["rooms"].as_array().unwrap();
    assert!(rooms.iter().any(|room| room["of"].as_str().unwrap().contains("/dev/shm")), "{good}");
    // A job of Slurm that was given 48 MiB.
    let mut check = site.forebay(&["check", "--json", config]);
    check.env("SLURM_MEM_PER_NODE", "48").env("SLURM_JOB_ID", "17");
    let said: Value = serde_json::from_str(&site.end(check).expect(0).stdout).unwrap();
    let warnings = said["warnings"].to_string();
    assert!(
        warnings.contains("tier ram") && warnings.contains("the job or control group"),
        "{said}"
    );
    assert_eq!(said["job"]["id"], "17");
    // A run that chooses its tiers stays within it.
    let mut run = site.forebay(&["run", "--backing", site.store.to_str().unwrap(), "--", "true"]);
    run.env("SLURM_MEM_PER_NODE", "48");
    let said = site.end(run).expect(0).stderr;
    assert!(said.contains("ram 12.0 MiB"), "{said}");
}

#[test]
fn drop_gives_up_what_the_store_has_and_keeps_the_rest() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    site.end(site.forebay(&["up", "--config", config])).expect(0);
    let run = |script: &str| {
        let words = ["run", "--config", config, "--", "bash", "-ec", script];
        site.end(site.forebay(&words)).expect(0)
    };
    run("head -c 1000000 /dev/zero > clean");
    // Under a run that goes on, so that nothing has come to the store.
    let held = site.out.join("held");
    let script = format!(
        "head -c 2000000 /dev/zero > ahead; until [ -e {} ]; do sleep 0.02; done",
        held.display()
    );
    let mut running = site.start(site.buffered(&["bash", "-ec", &script]));
    wait_for("the file", LONG, || {
        let status = site.end(site.forebay(&["status", "--json"])).stdout;
        status.contains("\"size\": 2000000").then_some(())
    });
    let said = site.end(site.forebay(&["drop", "--json", "clean", "ahead"])).expect(0).stdout;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["files"], &said["bytes"]), (&1.into(), &1_000_000.into()), "{said}");
    assert_eq!(said["stays"], 2_000_000, "{said}");
    assert!(running.is_running());
    assert_eq!(fs::metadata(site.store.join("ahead")).unwrap().len(), 0, "it was flushed");
    fs::write(held, "").unwrap();
    running.end().expect(0);
    let said = site.end(site.forebay(&["drop", "."])).expect(0).stdout;
    assert_eq!(said, "dropped 1 file (1.91 MiB) from the tiers\n");
    assert_eq!(fs::metadata(site.store.join("ahead")).unwrap().len(), 2_000_000);
    site.end(site.forebay(&["down", "--config", config])).expect(0);
}

#[test]
fn completions_and_manual_pages_are_made() {
    let site = Site::new(&USUAL);
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef forebay"), ("fish", "complete -c forebay")]
    {
        let script = site.end(site.forebay(&["completions", shell])).expect(0).stdout;
        assert!(script.contains(part) && script.contains("stage-in"), "{shell}");
        if works(&[shell, "-c", "true"]) {
            let file = site.out.join(shell);
            fs::write(&file, script).unwrap();
            let mut parse = site.command(&site.out, shell);
            parse.arg("-n").arg(&file);
            site.end(parse).expect(0);
        }
    }
    let folder = site.out.join("man/man1");
    let words = ["man-pages", folder.to_str().unwrap()];
    site.end(site.forebay(&words)).expect(0);
    let page = fs::read_to_string(folder.join("forebay-run.1")).unwrap();
    assert!(page.contains("forebay\\-run") && page.contains("Example:"), "{page}");
    assert!(folder.join("forebay.1").is_file() && folder.join("forebay-stage-in.1").is_file());
    assert!(!folder.join("forebay-torture-worker.1").exists());
}

#[test]
fn pin_keeps_files_as_long_as_it_runs() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    site.end(site.forebay(&["up", "--config", config])).expect(0);
    fs::create_dir(site.store.join("data")).unwrap();
    fs::write(site.store.join("data/a"), vec![7; 1_000_000]).unwrap();
    fs::write(site.store.join("data/b"), "small").unwrap();
    let pinned = || {
        let status = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        let tiers = status[0]["tiers"].as_array().unwrap();
        [0, 1].map(|tier: usize| tiers[tier]["pinned"].as_u64().unwrap())
    };
    let pin = site.start(site.forebay(&["pin", "data"]));
    wait_for("the pins", LONG, || pin.stderr().contains("pinned 2 files").then_some(()));
    assert_eq!(pinned(), [5 << 18, 0], "four blocks, and one");
    // All of it is in memory: `stage-in` finds nothing to do.
    let said = site.end(site.forebay(&["stage-in", "--json", "data"])).expect(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["came"], 0, "{said}");
    kill(pin.pid(), Signal::TERM);
    pin.end().expect(0);
    wait_for("the end of the pins", LONG, || (pinned() == [0, 0]).then_some(()));

    let said = site.end(site.forebay(&["pin", "--tier", "tape", "data"])).expect(1).stderr;
    assert!(said.contains("tape") && said.contains("nvme"), "{said}");
    let said = site.end(site.forebay(&["pin", "data/none"])).expect(1).stderr;
    assert!(said.contains("data/none"), "{said}");
    site.end(site.forebay(&["down", "--config", config])).expect(0);
}
