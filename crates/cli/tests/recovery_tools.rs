//! What an administrator has when things went wrong: `forebay fsck`, `salvage`, `recover`, `status`.

mod common;

use common::{LAZY, Ran, Setup, Site, TINY, wait_for};
use forebay_pool::Segment;
use forebay_pool::layout::file_state;
use forebay_pool::segment::open_pool;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Nothing reaches the store before the end, and RAM overflows to the file tier.
const KEPT: Setup = Setup { flush: LAZY.flush, ..TINY };

/// Runs a script whose processes are all killed when it is done; what they wrote is only in the tiers.
fn crash(site: &Site, script: &str) -> PathBuf {
    let script = format!("{script}; echo done > $OUT/done; exec sleep 60");
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    wait_for("the script", common::LIMIT, || site.out.join("done").exists().then_some(()));
    site.status().assert_live();
    site.kill_all();
    run.end();
    site.pools().pop().expect("a pool was left")
}

fn seed() -> u64 {
    match std::env::var("FOREBAY_SEED") {
        Ok(seed) => seed.parse().expect("FOREBAY_SEED is a number"),
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.as_nanos() as u64),
    }
}

/// xorshift64*: short, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A pool that was left, with all that belongs to it, to be put back as often as it is damaged.
struct Left<'a> {
    site: &'a Site,
    pool: PathBuf,
    bytes: Vec<u8>,
    slots: Vec<(PathBuf, Vec<u8>)>,
    folder: PathBuf,
    config: Vec<u8>,
    /// Bytes in front of the RAM tier's data.
    tables: usize,
    /// Words of the tables that are not zero.
    used: Vec<usize>,
    /// Words that nothing else tells anything about: which pages are dirty, sizes, times, flags.
    unprotected: Vec<std::ops::Range<usize>>,
}

impl Left<'_> {
    fn of<'a>(site: &'a Site, script: &str) -> Left<'a> {
        let pool = crash(site, script);
        let bytes = fs::read(&pool).unwrap();
        let files = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            entries.collect::<Vec<_>>()
        };
        let slots =
            files(&site.nvme).into_iter().map(|path| (path.clone(), fs::read(path).unwrap()));
        let folder = files(&site.runtime()).pop().unwrap();
        let file = open_pool(&pool).unwrap();
        let (segment, wrong) = Segment::attach_copy(file.as_fd()).unwrap();
        assert!(wrong.is_none());
        let base = std::ptr::from_ref(segment.header()).addr();
        let tables = segment.bucket_data(0).addr() - base;
        let mut unprotected = Vec::new();
        let word = |at: *const u8| at.addr() - base..at.addr() - base + 8;
        for file in 0..segment.header().files {
            let record = segment.file(file);
            if record.state.load(Ordering::Relaxed) != file_state::LIVE {
                continue;
            }
            for field in [&record.size, &record.mtime_ns, &record.intent, &record.range_end] {
                unprotected.push(word(std::ptr::from_ref(field).cast()));
            }
            unprotected.push(word(std::ptr::from_ref(&record.flags).cast()));
        }
        for bucket in 0..segment.header().buckets {
            let meta = segment.bucket(bucket).unwrap();
            for field in [&meta.valid, &meta.dirty, &meta.writeback] {
                unprotected.push(word(std::ptr::from_ref(field).cast()));
            }
        }
        let used = |at: &usize| bytes[*at..at + 8].iter().any(|&byte| byte != 0);
        let used = (0..tables).step_by(8).filter(used).collect();
        let slots = slots.collect();
        let config = fs::read(folder.join("config")).unwrap();
        Left { site, pool, bytes, slots, folder, config, tables, used, unprotected }
    }

    /// As it was left.
    fn put_back(&self) {
        let pool = fs::File::create(&self.pool).unwrap();
        pool.set_len(self.bytes.len() as u64).unwrap();
        // What was never touched stays a hole: most of the tables.
        for (number, page) in self.bytes.chunks(4096).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                pool.write_all_at(page, number as u64 * 4096).unwrap();
            }
        }
        self.slots.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        let _ = fs::DirBuilder::new().mode(0o700).create(&self.folder);
        fs::write(self.folder.join("config"), &self.config).unwrap();
        for entry in fs::read_dir(&self.site.store).unwrap() {
            fs::File::options().write(true).truncate(true).open(entry.unwrap().path()).unwrap();
        }
    }

    /// Damages the pool in one of several ways. Returns the bytes that it may have changed.
    fn damage(&self, random: &mut Random) -> Vec<std::ops::Range<usize>> {
        let file = fs::File::options().write(true).open(&self.pool).unwrap();
        let mut changed = Vec::new();
        let mut write = |at: usize, bytes: &[u8]| {
            file.write_all_at(bytes, at as u64).unwrap();
            changed.push(at..at + bytes.len());
        };
        let anywhere = |random: &mut Random| match random.below(4) {
            0 => random.below(self.tables),
            1 => random.below(4096),
            _ => self.used[random.below(self.used.len())] + random.below(8),
        };
        match random.below(6) {
            0..3 => {
                let at = anywhere(random);
                write(at, &[self.bytes[at] ^ 1 << random.below(8)]);
            }
            3 => {
                for _ in 0..1 + random.below(8) {
                    let at = anywhere(random);
                    write(at, &[random.next() as u8]);
                }
            }
            4 => write(anywhere(random) / 64 * 64, &[0; 64]),
            _ => {
                let rubbish: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
                write(anywhere(random) / 64 * 64, &rubbish);
            }
        }
        changed
    }
}

/// Damage to header and tables of a left pool is never the end of the manager, and never brings
/// wrong bytes to the store without an error or a finding.
#[test]
fn damaged_pools_are_noticed() {
    let site = Site::new(&KEPT);
    let script = "for number in 1 2 3 4 5 6 7 8 9; do seq $number 20000 > file$number; done
        head -c 3000000 /dev/zero | tr '\\0' x > large
        echo far | dd of=sparse bs=1 seek=900000000 conv=notrunc status=none";
    site.run_plainly(script).expect(0);
    let left = Left::of(&site, script);
    let seed = seed();
    let cases = std::env::var("FOREBAY_CASES").map_or(15, |cases| cases.parse().unwrap());
    eprintln!("FOREBAY_SEED={seed}, {cases} cases");
    let mut random = Random(seed | 1);
    let (mut drained, mut refused) = (0, 0);
    for case in 0..cases {
        left.put_back();
        let changed = left.damage(&mut random);
        let what = format!("FOREBAY_SEED={seed}, case {case}, bytes {changed:?}");
        let before = fs::read(&left.pool).unwrap();
        let checked = site.end(site.forebay(&["fsck"]));
        assert!((0..=2).contains(&checked.code), "{what}: {checked:?}");
        assert!(fs::read(&left.pool).unwrap() == before, "{what}: fsck changed the pool");
        let recovered = site.recover();
        let said =
            format!("{what}\nfsck: {checked:?}\nrecover: {recovered:?}\nlog: {}", site.log());
        assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{said}");
        let known = |part: &std::ops::Range<usize>| {
            let overlaps = |w: &std::ops::Range<usize>| w.start < part.end && part.start < w.end;
            !left.unprotected.iter().any(overlaps)
        };
        let all_known = changed.iter().all(known);
        if checked.stdout.contains("refuses") || checked.code == 2 {
            assert_ne!(recovered.code, 0, "{said}");
            refused += 1;
        } else if all_known {
            assert_eq!(recovered.code, 0, "{said}");
        }
        if recovered.code == 0 {
            drained += 1;
            if all_known && checked.code == 0 {
                let same = common::tree(&site.store) == common::tree(&site.plain);
                assert!(same, "{said}\n{:?}", common::tree(&site.store));
            }
        }
        site.kill_all();
    }
    eprintln!("{drained} drained, {refused} refused");
    assert!(drained + refused > 0, "neither drained nor refused");
    left.put_back();
    site.recover().expect(0);
    site.assert_same_files();
}

fn words(ran: &Ran) -> String {
    format!("{}{}", ran.stdout, ran.stderr)
}

#[test]
fn a_left_pool_is_clean_and_rubbish_is_none() {
    let site = Site::new(&KEPT);
    assert!(words(&site.end(site.forebay(&["fsck"])).expect(0)).contains("no pools"));
    let pool = crash(&site, "seq 100000 > file");
    let name = pool.to_str().unwrap();
    let said = site.end(site.forebay(&["fsck"])).expect(0);
    assert!(said.stdout.contains("clean (nobody serves it; 1 files"), "{said:?}");
    let rubbish = site.out.join("rubbish");
    fs::write(&rubbish, vec![7; 1 << 20]).unwrap();
    let rubbish = rubbish.to_str().unwrap();
    let said = site.end(site.forebay(&["fsck", "--pool", rubbish])).expect(2);
    assert!(
        said.stderr.contains(rubbish) && said.stderr.contains("not a Forebay pool"),
        "{said:?}"
    );
    // The file tier is gone.
    let slots = fs::read_dir(&site.nvme).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(&slots).unwrap();
    fs::remove_file(&slots).unwrap();
    let said = site.end(site.forebay(&["fsck", "--pool", name]));
    let needed = !kept.is_empty();
    assert_eq!(said.code, i32::from(needed), "{said:?}");
    fs::write(&slots, kept).unwrap();
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 100_000);
}
