//! `forebay torture`: a short one finds nothing, one whose data is spoilt says so, and an interrupted
//! one leaves nothing behind.

mod common;

use common::{LIMIT, Running, Site, USUAL, kill, wait_for};
use rustix::process::Signal;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

fn start(site: &Site, minutes: &str, more: &[&str]) -> Running {
    let seed = std::env::var("FOREBAY_SEED").unwrap_or_else(|_| std::process::id().to_string());
    let dir = site.out.to_str().unwrap();
    let words = ["torture", "--minutes", minutes, "--dir", dir, "--seed", &seed];
    site.start(site.forebay(&[&words, more].concat()))
}

/// The torture's own directory.
fn place(site: &Site) -> Option<PathBuf> {
    fs::read_dir(&site.out).unwrap().next().map(|entry| entry.unwrap().path())
}

/// Pools whose torture took place in the site.
fn pools(site: &Site) -> Vec<PathBuf> {
    let mark = site.out.to_str().unwrap().as_bytes().to_vec();
    let all = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|end| end == "pool"))
        .filter(|path| {
            // Others may be large.
            let mut head = Vec::new();
            if let Ok(pool) = fs::File::open(path) {
                let _ = pool.take(128 << 10).read_to_end(&mut head);
            }
            head.windows(mark.len()).any(|window| window == mark)
        })
        .collect()
}

#[test]
fn a_short_torture_loses_nothing_and_leaves_nothing() {
    let site = Site::new(&USUAL);
    let ran = start(&site, "0.15", &[]).end().expect(0);
    assert!(ran.stdout.contains("losses      none"), "{ran:?}");
    let count = |what: &str| {
        let line = ran.stdout.lines().find(|line| line.trim_start().starts_with(what)).unwrap();
        let digits = line.trim_start()[what.len()..].trim_start();
        digits.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    assert!(count("operations") > 100 && count("crashes") > 0, "{ran:?}");
    assert!(place(&site).is_none() && pools(&site).is_empty());
}

#[test]
fn an_interrupted_torture_leaves_nothing() {
    let site = Site::new(&USUAL);
    let run = start(&site, "30", &[]);
    wait_for("a pool", LIMIT, || (!pools(&site).is_empty()).then_some(()));
    wait_for("a worker", LIMIT, || {
        place(&site)?.join("worker-0/counts").metadata().ok().filter(|found| found.len() > 0)
    });
    kill(run.pid(), Signal::INT);
    run.end().expect(0);
    assert!(place(&site).is_none() && pools(&site).is_empty());
}

#[test]
fn spoilt_data_is_noticed() {
    let site = Site::new(&USUAL);
    // What is taken for synced may be spoilt, too.
    let mut run = start(&site, "30", &["--without", "memory"]);
    wait_for("a loss", LIMIT, || {
        if let Some(place) = place(&site) {
            for file in 0..6 {
                // What a worker believes to have written.
                let shadow = place.join(format!("worker-1/shadow-{file}"));
                let Ok(bytes) = fs::read(&shadow) else { continue };
                let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                let opened = fs::OpenOptions::new().write(true).open(&shadow).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&opened, &other, 0).unwrap();
            }
        }
        (!run.is_running()).then_some(())
    });
    let ran = run.end().expect(1);
    assert!(ran.stdout.contains("are wrong") && ran.stdout.contains("worker-1-file"), "{ran:?}");
    // Left to be looked at, and now removed.
    fs::remove_dir_all(place(&site).unwrap()).unwrap();
    pools(&site).into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
}
