//! Operations on files while these are in the tiers: `[[active]]`, and `forebay active`.

use crate::harness::{EAGER, LONG, Site, Steps, sees, wait_for};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// A site in which files of the name `staged*` are staged, with these operations.
fn site_with(rules: &str) -> Site {
    let site = Site::new(&EAGER);
    let mut text = fs::read_to_string(&site.config).unwrap();
    text += "[[rule]]\npath = \"staged*\"\nmode = \"staged\"\ntier = \"nvme\"\n";
    text += rules;
    fs::write(&site.config, text).unwrap();
    site
}

fn explained(site: &Site, file: &str) -> String {
    let said = site.end(site.forebay(&["explain", "--all", file])).expect(0).stdout;
    said.replace("\n            ", " ")
}

#[test]
fn results_lie_beside_and_the_original_has_its_own_bytes() {
    let site = site_with(
        "[[active]]\nmatch = \"*.dat\"\noperation = \"compress\"\npatience = \"0s\"\n\
         [[active]]\nmatch = \"*.dat\"\noperation = \"sort\"\nrecord = 2\nkey = \"u8@0\"\n\
         patience = \"0s\"\ndrain = \"after\"\n\
         [[active]]\nmatch = \"*.dat\"\noperation = \"checksum\"\npatience = \"0s\"\n",
    );
    let script = "umask 077; printf 'c1a2b3' > staged.dat; printf 'z9y8' > plain.dat; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    wait_for("six results", LONG, || {
        let said = site.status().text;
        let done = ["compress: 2 done", "sort: 2 done", "checksum: 2 done"];
        done.iter().all(|name| said.contains(&format!("operation {name}"))).then_some(())
    });
    assert_eq!(sees(&site.store.join("staged.dat.sorted")), "a2b3c1");
    assert_eq!(sees(&site.store.join("plain.dat.sorted")), "y8z9");
    // As private as the file.
    let mode = fs::metadata(site.store.join("plain.dat.zst")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(explained(&site, "plain.dat").contains("operation sort done"));
    steps.past("1");
    assert_eq!(steps.end().stderr, "");
    assert_eq!(sees(&site.store.join("staged.dat")), "c1a2b3");
    assert_eq!(sees(&site.store.join("plain.dat")), "z9y8");
    // Results are no files on which operations are done, nothing else is left.
    let mut left: Vec<_> = fs::read_dir(&site.store)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let of = |name: &str| ["", ".sha256", ".sorted", ".zst"].map(|end| format!("{name}.dat{end}"));
    assert_eq!(left, [of("plain"), of("staged")].concat());

    let forebay = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).current_dir(&site.store).output().unwrap()
    };
    let restored = forebay(&["active", "restore", "plain.dat.zst", "-o", "again"]);
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(sees(&site.store.join("again")), "z9y8");
    let checked = forebay(&["active", "check", "staged.dat.sha256"]);
    assert_eq!(String::from_utf8_lossy(&checked.stdout), "staged.dat: OK\n");
    fs::write(site.store.join("staged.dat"), "other").unwrap();
    let checked = forebay(&["active", "check", "staged.dat.sha256"]);
    assert_eq!(checked.status.code(), Some(125));
}

#[test]
fn what_does_not_fit_is_said_and_its_file_is_drained() {
    let site = site_with(
        "[[active]]\nmatch = \"staged*\"\noperation = \"sort\"\nrecord = 4\nkey = \"u8@0\"\n\
         patience = \"0s\"\ndrain = \"after\"\n\
         [[active]]\nname = \"slow\"\nmatch = \"staged*\"\noperation = \"function\"\n\
         command = \"sleep 300\"\ntimeout = \"300ms\"\npatience = \"0s\"\ndrain = \"after\"\n",
    );
    let steps = Steps::of(&site, "printf 12345 > staged; step 1");
    steps.at("1");
    wait_for("both ends", LONG, || {
        let said = explained(&site, "staged");
        let ends = ["1 bytes are left", "it was killed after 300ms"];
        ends.iter().all(|end| said.contains(end)).then_some(())
    });
    steps.past("1");
    steps.end();
    assert_eq!(sees(&site.store.join("staged")), "12345");
    assert_eq!(fs::read_dir(&site.store).unwrap().count(), 1);
}

#[test]
fn a_rule_that_cannot_be_is_an_error_before_anything_runs() {
    let site = site_with("[[active]]\nmatch = \"*\"\noperation = \"sort\"\nreplace = true\n");
    let ran = site.end(site.buffered(&["sh", "-c", "echo > ran"])).expect(125);
    assert!(ran.stderr.contains("sort: key is missing"), "{}", ran.stderr);
    let site = site_with("[[active]]\nmatch = \"*\"\noperation = \"checksum\"\nreplace = true\n");
    let ran = site.end(site.buffered(&["sh", "-c", "echo > ran"])).expect(125);
    assert!(ran.stderr.contains("only compress and dedup may replace"), "{}", ran.stderr);
    assert!(!site.store.join("ran").exists());
}

#[test]
fn a_file_that_is_replaced_by_a_rule_is_small_and_has_its_bytes_for_programs() {
    let site = site_with(
        "[[active]]\nname = \"pack\"\nmatch = \"*.dat\"\noperation = \"compress\"\nlevel = 1\n\
         replace = true\npatience = \"0s\"\n",
    );
    let make = "yes 'some text' | head -c 3000000";
    let steps = Steps::of(&site, &format!("{make} > a.dat; step 1; {make} | cmp - a.dat; step 2"));
    steps.at("1");
    let file = site.store.join("a.dat");
    let marked =
        || rustix::fs::getxattr(&file, "user.forebay.encoded", &mut [0u8; 256][..]).is_ok();
    wait_for("the end", LONG, || {
        site.status().text.contains("operation pack: 1 done").then_some(())
    });
    assert!(marked());
    let found = fs::metadata(&file).unwrap();
    assert_eq!(found.len(), 3_000_000);
    assert!(found.blocks() * 512 < 300_000, "{}", found.blocks());
    steps.past("1");
    steps.at("2");
    steps.past("2");
    assert_eq!(steps.end().stderr, "");
    // What only read it has given it its bytes again.
    assert!(!marked());
    assert_eq!(fs::read_dir(&site.store).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_not_to_be_replaced_is_refused_and_no_failure() {
    let site = site_with(
        "[[active]]\nname = \"pack\"\nmatch = \"*.dat\"\noperation = \"compress\"\n\
         replace = true\npatience = \"0s\"\n",
    );
    let steps = Steps::of(&site, "echo text > a.dat; step 1");
    steps.at("1");
    wait_for("the end", LONG, || {
        site.status().text.contains("operation pack: 1 refused").then_some(())
    });
    assert!(!site.status().text.contains("FAILED"), "{}", site.status().text);
    let said = explained(&site, "a.dat");
    assert!(said.contains("operation pack refused: ") && said.contains("64 KiB"), "{said}");
    steps.past("1");
    let ran = steps.end();
    assert!(ran.stderr.contains("ran on files: 1 refused"), "{}", ran.stderr);
    assert_eq!(sees(&site.store.join("a.dat")), "text\n");
}
