//! `forebay torture`: a short one finds nothing, one whose data is spoilt says so, and an
//! interrupted one leaves nothing behind.

use crate::harness::{LIMIT, Ran, Running, Site, USUAL, kill, wait_for};
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
    let all = fs::read_dir(site.shm()).unwrap().map(|entry| entry.unwrap().path());
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

/// What the report says in the line that begins with `what`: its first number.
fn count(ran: &Ran, what: &str) -> u64 {
    let of_line = |line: &str| {
        let rest = line.trim_start().strip_prefix(what)?;
        let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    ran.stdout.lines().find_map(of_line).unwrap_or_else(|| panic!("no {what}: {ran:?}"))
}

/// How often the report says that a kind of operation, of kills, or of faults happened.
fn times(ran: &Ran, what: &str) -> u64 {
    let of_line = |line: &str| {
        let (number, rest) = line.trim_start().split_once(' ')?;
        (rest == what || rest.split_once(' ')?.1.split_once(' ')?.1 == what)
            .then(|| number.parse().ok())?
    };
    ran.stdout.lines().find_map(of_line).unwrap_or_else(|| panic!("no {what}: {ran:?}"))
}

#[test]
fn a_short_torture_loses_nothing_covers_everything_and_leaves_nothing() {
    let site = Site::new(&USUAL);
    let ran = start(&site, "0.2", &[]).end().expect(0);
    assert!(ran.stdout.contains("losses      none"), "{ran:?}");
    assert!(count(&ran, "operations") > 1000, "{ran:?}");
    // One that does nothing must not pass.
    for what in ["kills", "pauses", "stops", "faults"] {
        assert!(count(&ran, what) > 0, "{what}: {ran:?}");
    }
    if rustix::process::getuid().is_root() {
        assert!(count(&ran, "users") > 10, "{ran:?}");
    } else {
        assert!(ran.stdout.contains("left out    users"), "{ran:?}");
    }
    for what in [
        "write",
        "read",
        "ftruncate",
        "hard link",
        "rename over an open file",
        "file without a name",
        "two descriptors",
        "mmap MAP_SHARED, write",
        "punch a hole",
        "copy_file_range",
        "sendfile",
        "write, two programs",
        "append, all programs",
        "fsync, seen on the store",
        "programs",
        "programs, by themselves at a point",
    ] {
        assert!(times(&ran, what) > 0, "{what}: {ran:?}");
    }
    assert!(place(&site).is_none() && pools(&site).is_empty());
}

#[test]
fn a_torture_with_goals_ends_when_they_are_reached() {
    let site = Site::new(&USUAL);
    let dir = site.out.to_str().unwrap();
    let words = ["torture", "--kills", "3", "--operations", "500", "--dir", dir];
    let ran = site.start(site.forebay(&words)).end().expect(0);
    let reached = |line: &str| line.contains(" of 500 operations: reached");
    assert!(ran.stdout.lines().any(reached) && !ran.stdout.contains("NOT REACHED"), "{ran:?}");
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
    let ran = run.end().expect(0);
    assert!(ran.stdout.contains("interrupted: all files were compared"), "{ran:?}");
    assert!(!ran.stdout.contains("in 0 comparisons of all files"), "{ran:?}");
    assert!(place(&site).is_none() && pools(&site).is_empty());
}

#[test]
fn spoilt_data_is_noticed() {
    let site = Site::new(&USUAL);
    // What is taken for synced may be spoilt, too.
    let mut run = start(&site, "30", &["--without", "memory", "--without", "stops"]);
    wait_for("a loss", LIMIT, || {
        if let Some(place) = place(&site) {
            for file in 0..6 {
                // What a worker believes to have written.
                let shadow = place.join(format!("worker-0/shadow-{file}"));
                let Ok(bytes) = fs::read(&shadow) else { continue };
                let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                let opened = fs::OpenOptions::new().write(true).open(&shadow).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&opened, &other, 0).unwrap();
            }
        }
        (!run.is_running()).then_some(())
    });
    let ran = run.end().expect(1);
    // With what led to it. One that was replaced while it was open has no name.
    let named =
        ran.stdout.contains("worker-0-file") && ran.stdout.contains("the last of worker 0 on file");
    let nameless = ran.stdout.contains("worker 0: a file without a name:")
        && ran.stdout.contains("the last of worker 0 on all files");
    // Bytes that are put back behind a cut make the shadow longer than the file.
    let losses = ["are wrong", "nothing can be read at"];
    let told = losses.iter().any(|what| ran.stdout.contains(what));
    assert!(told && (named || nameless), "{ran:?}");
    // Left to be looked at, and now removed.
    fs::remove_dir_all(place(&site).unwrap()).unwrap();
    pools(&site).into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
}
