//! What a run may have of each tier, and that others are not in its way.

use crate::harness::{LAZY, LONG, Setup, Site, Steps, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Nothing leaves for the store but for want of room.
const ROOMY: Setup = Setup { ram: "32MiB", nvme: "64MiB", nvme_emulate: None, ..LAZY };

const MIB: u64 = 1 << 20;

fn status(site: &Site) -> Option<Value> {
    look(&mut site.forebay(&["status", "--json"]))
}

fn look(command: &mut Command) -> Option<Value> {
    let said = command.output().unwrap();
    assert!(said.status.success(), "{said:?}");
    serde_json::from_slice::<Value>(&said.stdout).unwrap().get_mut(0).map(Value::take)
}

/// Used and limit of each tier of which a run has a quota, by the number of the run.
fn quotas(site: &Site) -> BTreeMap<u64, Vec<(String, u64, u64)>> {
    quotas_in(status(site))
}

fn quotas_in(status: Option<Value>) -> BTreeMap<u64, Vec<(String, u64, u64)>> {
    let Some(status) = status else { return BTreeMap::new() };
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap();
    let quota = |of: &Value| {
        (of["tier"].as_str().unwrap().to_owned(), number(of, "used"), number(of, "limit"))
    };
    let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
    let of_job = |job: &Value| {
        (number(job, "number"), job["quotas"].as_array().unwrap().iter().map(quota).collect())
    };
    jobs.iter().map(of_job).collect()
}

fn used_of(site: &Site, tier: usize) -> u64 {
    status(site).unwrap()["tiers"][tier]["used"].as_u64().unwrap()
}

/// The script writes `mib` MiB, and then the same again over it.
fn writes(mib: u64) -> String {
    let dd = format!("dd if=$OUT/bytes of=big bs=256k count={} 2>/dev/null", mib * 4);
    format!("{dd}; {dd} conv=notrunc; cmp big $OUT/bytes")
}

fn site(setup: &Setup, mib: u64) -> Site {
    let site = Site::new(setup);
    let bytes: Vec<u8> = (0..mib * MIB).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(site.out.join("bytes"), bytes).unwrap();
    site
}

/// Runs `act` while another thread looks at what runs with quotas use; the most of each.
fn watched(site: &Site, act: impl FnOnce()) -> BTreeMap<String, u64> {
    let over = AtomicBool::new(false);
    let mut command = site.forebay(&["status", "--json"]);
    std::thread::scope(|scope| {
        let over = &over;
        let looks = scope.spawn(move || {
            let mut most = BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                for (tier, used, limit) in quotas_in(look(&mut command)).into_values().flatten() {
                    // Blocks that are claimed while the manager counts count twice until the next
                    // count.
                    assert!(used <= limit + MIB, "{used} of {limit} of {tier}");
                    let known = most.entry(tier).or_insert(0);
                    *known = used.max(*known);
                }
            }
            most
        });
        let acted = catch_unwind(AssertUnwindSafe(act));
        over.store(true, Ordering::Relaxed);
        let most = looks.join();
        acted.unwrap_or_else(|panic| resume_unwind(panic));
        most.unwrap()
    })
}

#[test]
fn a_run_at_its_limit_moves_its_own_blocks_down_and_leaves_others_alone() {
    let site = site(&ROOMY, 24);
    let other = Steps::of(&site, "dd if=$OUT/bytes of=other bs=256k count=64 2>/dev/null; step 1");
    other.at("1");
    let before = used_of(&site, 0);
    assert!(before >= 16 * MIB, "{before}");
    let most = watched(&site, || {
        let script = format!("{}; step 2", writes(24));
        let steps = Steps::with(&site, &["--quota", "ram=8MiB"], &script);
        steps.at("2");
        let now = quotas(&site);
        let (tier, used, limit) = &now.values().find(|quotas| !quotas.is_empty()).unwrap()[0];
        assert_eq!((tier.as_str(), *limit), ("ram", 8 * MIB));
        assert!(*used > 4 * MIB, "{used}");
        assert!(site.status().text.contains("of 8.00 MiB of ram used"), "{}", site.status().text);
        // The other run's blocks are where they were.
        // Blocks still go down, and what is used is counted now and then. A tier that grows makes
        // room, too, of what lies there longest: some of the other run's. By size, all of that
        // would have gone.
        wait_for("a count of what is where", LONG, || {
            let now = status(&site)?;
            let in_ram = now["tiers"][0]["used"].as_u64().unwrap();
            let counted = quotas_in(Some(now));
            let used = counted.values().find(|quotas| !quotas.is_empty())?[0].1;
            (in_ram >= before - 4 * MIB + used).then_some(())
        });
        assert!(used_of(&site, 1) >= 14 * MIB, "{}", used_of(&site, 1));
        steps.past("2");
        steps.end().expect(0);
    });
    assert!(most["ram"] > 6 * MIB, "{most:?}");
    other.past("1");
    other.end().expect(0);
}

#[test]
fn what_a_run_may_have_of_no_tier_goes_to_the_store() {
    let site = site(&ROOMY, 24);
    let most = watched(&site, || {
        let script = format!("{}; step 1", writes(24));
        let steps = Steps::with(&site, &["--quota", "ram=8MiB", "--quota", "nvme=12.5%"], &script);
        steps.at("1");
        assert!(used_of(&site, 1) <= 8 * MIB && used_of(&site, 0) <= 8 * MIB);
        steps.past("1");
        steps.end().expect(0);
    });
    assert!(most["ram"] > 4 * MIB && most["nvme"] > 4 * MIB, "{most:?}");
    let wanted = fs::read(site.out.join("bytes")).unwrap();
    assert!(fs::read(site.store.join("big")).unwrap() == wanted);
}

#[test]
fn runs_share_tiers_each_within_its_quota() {
    let site = site(&ROOMY, 24);
    let before = fs::read_to_string(&site.config).unwrap();
    let with = before.replacen("capacity = \"32MiB\"", "capacity = \"32MiB\"\nquota = \"25%\"", 1);
    assert_ne!(before, with);
    fs::write(&site.config, with).unwrap();
    watched(&site, || {
        let scripts = ["one", "two", "three"].map(|name| {
            format!(
                "mkdir {name}; cd {name}; {}; rm big; cp -r $OUT/bytes again; cmp again $OUT/bytes",
                writes(24)
            )
        });
        let runs = scripts.map(|script| site.start(Steps::command(&site, &[], &script)));
        runs.into_iter().for_each(|run| drop(run.end().expect(0)));
    });
    let wanted = fs::read(site.out.join("bytes")).unwrap();
    for name in ["one", "two", "three"] {
        assert!(fs::read(site.store.join(name).join("again")).unwrap() == wanted);
    }
}

#[test]
fn small_files_count_and_what_is_read_does_too() {
    let site = site(&ROOMY, 24);
    site.run_buffered("cp $OUT/bytes big").0.expect(0);
    let most = watched(&site, || {
        let script = "for n in $(seq 600); do head -c 20000 $OUT/bytes > small.$n; done; \
                      for n in 1 2 3; do cmp big $OUT/bytes; done; step 1";
        let steps = Steps::with(&site, &["--quota", "ram=8MiB"], script);
        steps.at("1");
        steps.past("1");
        steps.end().expect(0);
    });
    assert!(most["ram"] > 4 * MIB, "{most:?}");
    assert_eq!(fs::metadata(site.store.join("small.600")).unwrap().len(), 20_000);
}

#[test]
fn quotas_are_known_after_the_node_manager_was_killed() {
    let site = site(&ROOMY, 24);
    watched(&site, || {
        let again = "cp $OUT/bytes again; cmp again $OUT/bytes; step 3";
        let script = format!("{}; step 1; {}; step 2; {again}", writes(24), writes(24));
        let steps = Steps::with(&site, &["--quota", "ram=8MiB"], &script);
        // What is written while there is none to make room goes to the next tier: all of it,
        // perhaps. Its successor knows them: a quick program would be done before that is there.
        steps.without_manager("1", "2");
        steps.at("3");
        let (_, used, limit) = &quotas(&site).into_values().next().unwrap()[0];
        assert!(*used > 0 && *limit == 8 * MIB, "{used} {limit}");
        steps.past("3");
        steps.end().expect(0);
    });
}

#[test]
fn bad_quotas_are_named() {
    let site = site(&ROOMY, 1);
    let config = site.config.to_str().unwrap();
    for (given, why) in [
        ("ram", "give TIER=SIZE or TIER=SHARE, the tiers are ram, nvme"),
        ("tape=1GiB", "there is no tier \"tape\"; the tiers are ram, nvme"),
        ("ram=0", "less than 16 buckets (4MiB); give at least 4MiB"),
        ("ram=-5MiB", "cannot be read; give a size such as \"2GiB\", or a share"),
        ("ram=101%", "cannot be read"),
        ("ram=-1%", "cannot be read"),
        ("ram=NaN%", "cannot be read"),
        ("ram=", "cannot be read"),
        ("ram=99999999999999999999TB", "cannot be read"),
        ("nvme=1%", "less than 16 buckets"),
    ] {
        let words = ["run", "--config", config, "--quota", given, "--", "touch", "begun"];
        let said = site.end(site.forebay(&words)).expect(125).stderr;
        assert!(said.contains(&format!("--quota {given}: ")) && said.contains(why), "{said}");
        assert!(!site.store.join("begun").exists());
    }
    // As much as there is, and more, is no quota.
    let words = ["run", "--config", config, "--quota", "ram=1TiB", "--", "true"];
    site.end(site.forebay(&words)).expect(0);
}
