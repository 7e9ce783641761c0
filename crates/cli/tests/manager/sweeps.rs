//! What the node manager looks at again and again: files that something may be left to be done for.

use crate::harness::{LONG, Setup, Site, Steps, USUAL, wait_for};
use forebay_pool::segment::open_pool;
use forebay_pool::{FileId, Segment};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// The names of the files that the manager looks at.
fn looked_at(segment: &Segment) -> Vec<String> {
    let name = |file| {
        let path = segment.path_of(segment.file(file));
        String::from_utf8_lossy(&path).rsplit('/').next().unwrap_or_default().to_owned()
    };
    let mut names: Vec<String> = segment.files().touched().map(name).collect();
    names.sort_unstable();
    names
}

#[test]
fn files_that_nothing_happens_to_are_not_looked_at() {
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"200ms\"", ..USUAL });
    let script = "mkdir many; for i in {1..2000}; do echo $i > many/$i; done; step written\n\
        exec 3< many/7; cat many/8; step open\n\
        exec 3<&-; echo more >> many/9; mv many/10 many/11; rm many/12; step closed\n";
    let steps = Steps::of(&site, script);
    steps.at("written");
    let pool = open_pool(&site.pools()[0]).unwrap();
    let segment = Segment::attach(pool.as_fd()).unwrap();
    let settles = |wanted: &[&str]| {
        wait_for(&format!("looks at {wanted:?} alone"), LONG, || {
            (looked_at(&segment) == wanted).then_some(())
        });
    };
    settles(&[]);
    assert_eq!(segment.files().live().count(), 2000, "their data is still there");
    steps.past("written");
    steps.at("open");
    assert!(looked_at(&segment).contains(&"7".to_owned()));
    settles(&["7"]);
    steps.past("open");
    steps.at("closed");
    settles(&[]);
    // What was removed, and what another file was given the name of, went with the looks.
    assert_eq!(segment.files().live().count(), 1998);
    steps.past("closed");
    steps.end();
}

#[test]
fn only_versions_are_looked_at_for_their_lifetime() {
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"200ms\"", ..USUAL });
    let rules = "[[rule]]\npath = \"v.*\"\nkeep_versions = 2\n\
                 [[rule]]\npath = \"many/*\"\nexpires = \"60min\"\n";
    fs::write(&site.config, fs::read_to_string(&site.config).unwrap() + rules).unwrap();
    // So many lie between the versions that they are not among those of one turn.
    let script = "mkdir many; for v in 1 2 3; do echo $v > v.$v\n\
        for i in {1..1500}; do echo $i > many/$v.$i; done; done; step written\n";
    let steps = Steps::of(&site, script);
    steps.at("written");
    let pool = open_pool(&site.pools()[0]).unwrap();
    let segment = Segment::attach(pool.as_fd()).unwrap();
    // The buffers of the oldest go. On a busy machine those of the second may have made room.
    let has_buffers = |version: &&str| {
        let path = site.store.join(version);
        let mut files = segment.files().live();
        let is_it =
            |file: &FileId| segment.has_path(segment.file(*file), path.as_os_str().as_bytes());
        files.find(is_it).is_some_and(|file| !segment.resident_blocks(file).is_empty())
    };
    wait_for("looks at the last versions alone", LONG, || {
        let buffered: Vec<_> = ["v.1", "v.2", "v.3"].into_iter().filter(has_buffers).collect();
        let are_last = matches!(buffered[..], ["v.2", "v.3"] | ["v.3"]);
        (are_last && looked_at(&segment) == buffered).then_some(())
    });
    steps.past("written");
    steps.end();
}
