//! What an administrator has when things went wrong: `forebay fsck`, `salvage`, `recover`,
//! `status`.

use crate::harness::{self, LAZY, LONG, Ran, Setup, Site, TINY, assert_same_bytes, wait_for};
use forebay_pool::BucketId;
use forebay_pool::FileId;
use forebay_pool::Segment;
use forebay_pool::layout::file_state;
use forebay_pool::segment::open_pool;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Nothing reaches the store before the end, and RAM overflows to the file tier.
const KEPT: Setup = Setup { flush: LAZY.flush, ..TINY };

/// Writes a file that only its owner may use, as all of Forebay's are.
fn restore(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs a script whose processes are all killed when it is done; what they wrote is only in the
/// tiers.
fn crash(site: &Site, script: &str) -> PathBuf {
    let script = format!("{script}; echo done > $OUT/done; exec sleep 60");
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    wait_for("the script", harness::LIMIT, || site.out.join("done").exists().then_some(()));
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
        let folder = site.instances().last().unwrap().unwrap().path();
        let file = open_pool(&pool).unwrap();
        let (segment, wrong) = Segment::attach_copy(file.as_fd()).unwrap();
        assert!(wrong.is_none());
        let base = std::ptr::from_ref(segment.header()).addr();
        let tables = segment.bucket_data(BucketId::from_raw(0)).addr() - base;
        let mut unprotected = Vec::new();
        let word = |at: *const u8| at.addr() - base..at.addr() - base + 8;
        for file in segment.header().file_ids() {
            let record = segment.file(file);
            if record.state.load(Ordering::Relaxed) != file_state::LIVE {
                continue;
            }
            for field in [&record.size, &record.mtime_ns, &record.intent, &record.range_end] {
                unprotected.push(word(std::ptr::from_ref(field).cast()));
            }
            unprotected.push(word(std::ptr::from_ref(&record.flags).cast()));
        }
        for bucket in segment.header().bucket_ids() {
            let meta = segment.bucket(bucket).unwrap();
            unprotected.push(word(std::ptr::from_ref(&meta.valid).cast()));
            let pages = word(std::ptr::from_ref(&meta.pages).cast());
            unprotected.push(pages.start..pages.end + 8);
        }
        let used = |at: &usize| bytes[*at..at + 8].iter().any(|&byte| byte != 0);
        let used = (0..tables).step_by(8).filter(used).collect();
        let slots = slots.collect();
        let config = fs::read(folder.join("config")).unwrap();
        Left { site, pool, bytes, slots, folder, config, tables, used, unprotected }
    }

    /// As it was left.
    fn put_back(&self) {
        restore(&self.pool, b"");
        let pool = fs::File::options().write(true).open(&self.pool).unwrap();
        pool.set_len(self.bytes.len() as u64).unwrap();
        // What was never touched stays a hole: most of the tables.
        for (number, page) in self.bytes.chunks(4096).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                pool.write_all_at(page, number as u64 * 4096).unwrap();
            }
        }
        self.slots.iter().for_each(|(path, bytes)| restore(path, bytes));
        let _ = fs::DirBuilder::new().mode(0o700).create(&self.folder);
        restore(&self.folder.join("config"), &self.config);
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
    let cases = std::env::var("FOREBAY_CASES").map_or(10, |cases| cases.parse().unwrap());
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
        } else if all_known && !checked.stdout.contains("keeps") {
            assert_eq!(recovered.code, 0, "{said}");
        }
        if recovered.code == 0 {
            drained += 1;
            if all_known && checked.code == 0 {
                // Of a record whose file is nowhere the data is kept beside the store, and that is
                // said.
                let kept = count_set_aside(&site);
                assert_eq!(recovered.stdout.contains("set aside"), kept > 0, "{said}");
                let (store, plain) = (harness::tree(&site.store), harness::tree(&site.plain));
                let differ = plain.iter().filter(|&(name, file)| store.get(name) != Some(file));
                assert_eq!((store.len(), differ.count()), (plain.len(), kept), "{said}\n{store:?}");
            }
        }
        site.drop_removed();
        site.kill_all();
    }
    eprintln!("{drained} drained, {refused} refused");
    assert!(drained + refused > 0, "neither drained nor refused");
    left.put_back();
    site.recover().expect(0);
    site.assert_same_files();
    // Damage may hit what says which file a record is of: then it is nowhere, and set aside.
    site.drop_removed();
}

fn words(ran: &Ran) -> String {
    format!("{}{}", ran.stdout, ran.stderr)
}

#[test]
fn a_left_pool_is_clean_and_rubbish_is_none() {
    let site = Site::new(&KEPT);
    assert!(words(&site.end(site.forebay(&["fsck"])).expect(0)).contains("no pools"));
    let pool = crash(&site, "seq 100000 > file");
    let name = site.seen(&pool);
    let name = name.to_str().unwrap();
    let said = site.end(site.forebay(&["fsck"])).expect(0);
    assert!(said.stdout.contains("clean (not served; 1 file"), "{said:?}");
    let rubbish = site.out.join("rubbish");
    fs::write(&rubbish, vec![7; 1 << 20]).unwrap();
    let rubbish = rubbish.to_str().unwrap();
    let said = site.end(site.forebay(&["fsck", "--pool", rubbish])).expect(2);
    assert!(
        said.stderr.contains(rubbish) && said.stderr.contains("not a Forebay pool"),
        "{said:?}"
    );
    // The file tier is gone.
    let mut files = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let slots = files.find(|path| path.extension().is_some_and(|end| end == "slots")).unwrap();
    let kept = fs::read(&slots).unwrap();
    fs::remove_file(&slots).unwrap();
    let said = site.end(site.forebay(&["fsck", "--pool", name]));
    // All but its head.
    let needed = kept[..kept.len() - 1024].iter().any(|&byte| byte != 0);
    assert_eq!(said.code, i32::from(needed), "{said:?}");
    fs::write(&slots, kept).unwrap();
    // Others may have it open.
    fs::set_permissions(&slots, fs::Permissions::from_mode(0o644)).unwrap();
    let said = site.recover().expect(125);
    let name = slots.to_str().unwrap();
    assert!(said.stderr.contains(name) && said.stderr.contains("chmod 600"), "{said:?}");
    fs::set_permissions(&slots, fs::Permissions::from_mode(0o600)).unwrap();
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 100_000);
}

#[test]
fn fsck_says_that_a_file_cannot_be_drained_because_its_inode_is_anothers() {
    let site = Site::new(&KEPT);
    let pool = crash(&site, "seq 9 > file; seq 9 > other");
    let opened = open_pool(&pool).unwrap();
    let (segment, _) = Segment::attach_copy(opened.as_fd()).unwrap();
    let is_file = |&file: &FileId| segment.path_of(segment.file(file)).ends_with(b"/file");
    let born = &segment.file(segment.files().live().find(is_file).unwrap()).born_ns;
    let at = std::ptr::from_ref(born).addr() - std::ptr::from_ref(segment.header()).addr();
    let writable = fs::File::options().write(true).open(&pool).unwrap();
    let right = born.load(Ordering::Relaxed);
    assert_ne!(right, 0, "this file system does not know when files were born");
    writable.write_all_at(&(right - 1).to_le_bytes(), at as u64).unwrap();
    let said = site.end(site.forebay(&["fsck"])).expect(1);
    assert!(said.stdout.contains("/file): another file has its inode number"), "{said:?}");
    assert!(!said.stdout.contains("/other"), "{said:?}");
    let said = site.recover().expect(0);
    assert!(!said.stderr.contains("/file ("), "{said:?}");
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "");
    assert_eq!(fs::read_to_string(site.store.join("other")).unwrap().lines().count(), 9);
    assert_eq!(set_aside(&site, "file").lines().count(), 9);
    site.drop_removed();
}

/// How many files were kept beside the store.
fn count_set_aside(site: &Site) -> usize {
    let files = harness::tree(&site.nvme).into_keys();
    files.filter(|path| path.to_string_lossy().contains(".removed/")).count()
}

/// What was set aside of a file of the store that is nowhere.
fn set_aside(site: &Site, name: &str) -> String {
    let files = harness::tree(&site.nvme);
    let mark = format!(".removed/{name}.");
    let of_file: Vec<_> =
        files.iter().filter(|(path, _)| path.to_string_lossy().contains(&mark)).collect();
    let [(_, file)] = &of_file[..] else { panic!("{files:?}") };
    String::from_utf8(file.bytes()).unwrap()
}

#[test]
fn a_pool_whose_runtime_folder_is_gone_is_named_and_drained_by_its_configuration() {
    let site = Site::new(&KEPT);
    let config = fs::read_to_string(&site.config).unwrap();
    // No file tier, whose files would tell.
    let ram_only = config.split("[[tier]]\nname = \"nvme\"").next().unwrap();
    fs::write(&site.config, ram_only).unwrap();
    let pool = crash(&site, "seq 5000 > file");
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let name = pool.file_name().unwrap().to_str().unwrap();
    let said = site.end(site.forebay(&["recover"])).expect(125);
    assert!(said.stderr.contains(name) && said.stderr.contains("--backing"), "{said:?}");
    for words in [&["status"][..], &["fsck"]] {
        let said = site.end(site.forebay(words)).expect(0);
        let instance = name.split(['-', '.']).nth(2).unwrap();
        assert!(said.stdout.contains(instance), "{words:?}: {said:?}");
    }
    let said = site.end(site.forebay(&["salvage", "--to", "../out/saved"])).expect(0);
    assert!(said.stdout.contains("salvaged 1 file"), "{said:?}");
    for words in [["wait", "file"], ["flush", "file"]] {
        let said = site.end(site.forebay(&words)).expect(1);
        assert!(said.stderr.contains(name), "{words:?}: {said:?}");
    }
    let words = ["recover", "--config", site.config.to_str().unwrap()];
    site.end(site.forebay(&words)).expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 5000);
}

#[test]
fn a_run_awaits_the_end_of_a_manager_that_has_already_removed_its_pool() {
    use rustix::fs::{FlockOperation, flock};
    let site = Site::new(&KEPT);
    site.end(site.buffered(&["true"])).expect(0);
    let ending = site.runtime().join("00000000000000aa");
    fs::DirBuilder::new().mode(0o700).create(&ending).unwrap();
    // What is left of it: the same directory with other tiers.
    let config = fs::read_to_string(&site.config).unwrap();
    let config = config.replace("path = \"", &format!("path = \"{}/", site.root().display()));
    fs::write(ending.join("config"), config).unwrap();
    let lock = fs::File::create(ending.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let run = site.start(site.buffered(&["true"]));
    // Time to be refused.
    std::thread::sleep(std::time::Duration::from_millis(500));
    fs::remove_dir_all(&ending).unwrap();
    drop(lock);
    run.end().expect(0);
}

/// Another command's manager holds the lock and brings back what was left, and does not answer yet.
fn while_another_recovers(command: impl Fn(&Site) -> std::process::Command) {
    use rustix::fs::{FlockOperation, flock};
    let site = Site::new(&KEPT);
    crash(&site, "seq 5000 > file");
    let folder = site.instances().next().unwrap().unwrap().path();
    let lock = fs::File::create(folder.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut waiting = site.start(command(&site));
    let waits = || waiting.stderr().contains("waiting for a node manager").then_some(());
    wait_for("its waiting", harness::LIMIT, waits);
    assert!(waiting.is_running());
    // It is killed.
    drop(lock);
    let said = waiting.end().expect(0);
    assert_eq!(
        fs::read_to_string(site.store.join("file")).unwrap().lines().count(),
        5000,
        "{said:?}"
    );
}

#[test]
fn what_another_recovery_began_and_did_not_end_is_drained() {
    while_another_recovers(|site| site.forebay(&["recover"]));
}

#[test]
fn a_run_with_another_configuration_drains_what_a_killed_recovery_left() {
    while_another_recovers(|site| {
        let config = fs::read_to_string(&site.config).unwrap();
        fs::write(&site.config, config.replace("[flush]", "[flush]\nmax_age = \"77s\"")).unwrap();
        site.buffered(&["sh", "-c", "test $(wc -l < file) = 5000"])
    });
}

#[test]
fn a_manager_does_not_begin_before_what_another_configuration_left_is_drained() {
    let site = Site::new(&KEPT);
    crash(&site, "seq 5000 > file");
    let config = fs::read_to_string(&site.config).unwrap();
    let other = config.replace("[flush]", "[flush]\nmax_age = \"77s\"");
    fs::write(&site.config, other).unwrap();
    let words = ["node", "--config", site.config.to_str().unwrap()];
    let said = site.end(site.forebay(&words));
    assert!(said.code != 0 && said.stderr.contains("earlier run left for"), "{said:?}");
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 5000);
    // What it made of itself when it was refused.
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
}

#[test]
fn after_a_reboot_that_took_the_runtime_folder_fsck_looks_at_the_journal_of_a_configuration() {
    let site =
        Site::new(&Setup { flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"", ..KEPT });
    let pool = crash(&site, "seq 5000 | dd of=file conv=fsync status=none");
    fs::remove_file(&pool).unwrap();
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let words = ["fsck", "--config", site.config.to_str().unwrap()];
    let said = site.end(site.forebay(&words)).expect(0);
    assert!(said.stdout.contains("of 1 file from it"), "{said:?}");
    assert!(!said.stderr.contains(site.seen(&pool).to_str().unwrap()), "{said:?}");
    // Both copies of the superblock are damaged: nothing of a pool that is gone is advised.
    let files = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let mut journals = files.filter(|path| path.extension().is_some_and(|end| end == "journal"));
    let journal = journals.next().expect("a journal was left");
    let kept = fs::read(&journal).unwrap();
    fs::write(&journal, kept.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>()).unwrap();
    let said = site.end(site.forebay(&words)).expect(1);
    assert!(said.stdout.contains("both copies of its superblock are damaged"), "{said:?}");
    assert!(said.stdout.contains("put right, or moved away"), "{said:?}");
    assert!(!said.stdout.contains("salvage"), "{said:?}");
    fs::write(&journal, kept).unwrap();
    site.end(site.forebay(&["recover", words[1], words[2]])).expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 5000);
}

/// Everything below the target but the manifest is as below `wanted`, byte for byte.
fn assert_salvaged(target: &Path, wanted: &Path, names: &[&str]) {
    for name in names {
        let (got, wanted) = (fs::read(target.join(name)), fs::read(wanted.join(name)));
        harness::assert_same_bytes(name, &got.unwrap(), &wanted.unwrap());
    }
    let files = harness::tree(target);
    let found: Vec<_> = files.keys().filter(|path| target.join(path).is_file()).collect();
    assert_eq!(found.len(), names.len() + 1, "{found:?}");
}

/// Two files over RAM and file tier, one of them with old content on the store; and one on the
/// store.
const MIXED: &str = "seq 300000 > a/first; head -c 900001 /dev/zero | tr '\\0' y > second
    echo changed | dd of=a/old bs=1 seek=600000 conv=notrunc status=none
    echo end | dd of=a/old bs=1 seek=5000000 conv=notrunc status=none; cat clean > $OUT/cat";

fn mixed(site: &Site) {
    for folder in [&site.store, &site.plain] {
        fs::create_dir(folder.join("a")).unwrap();
        let old: String = (0..200_000).map(|line| format!("{line}\n")).collect();
        fs::write(folder.join("a/old"), old).unwrap();
        fs::write(folder.join("clean"), "on the store").unwrap();
    }
    site.run_plainly(MIXED).expect(0);
}

#[test]
fn what_a_dead_run_left_is_salvaged_and_the_pool_stays() {
    let site = Site::new(&KEPT);
    mixed(&site);
    let pool = crash(&site, MIXED);
    let before = fs::read(&pool).unwrap();
    let target = site.out.join("saved");
    let to = target.to_str().unwrap();
    let said = site.end(site.forebay(&["salvage", "--to", to])).expect(0);
    assert!(said.stdout.contains("salvaged 3 files"), "{said:?}");
    assert_salvaged(&target, &site.plain, &["a/first", "second", "a/old"]);
    let manifest = fs::read_to_string(target.join("MANIFEST")).unwrap();
    let mode = fs::metadata(target.join("MANIFEST")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "{mode:o}");
    for line in ["file\ta/old\t5000004\t", "store\t0\t", "tier\t", "\twhole\t"] {
        assert!(manifest.contains(line), "no {line:?} in {manifest}");
    }
    use std::os::unix::fs::MetadataExt;
    let sparse = fs::metadata(target.join("a/old")).unwrap();
    assert!(sparse.blocks() * 512 < 3_000_000, "{} blocks", sparse.blocks());
    assert!(fs::read(&pool).unwrap() == before, "the pool was changed");
    // Never into a directory that has something, and not without one.
    let ran = site.end(site.forebay(&["salvage", "--to", to])).expect(125);
    assert!(ran.stderr.contains("not empty"), "{ran:?}");
    site.end(site.forebay(&["salvage"])).expect(2);
    let recovered = site.recover().expect(0);
    for name in ["a/first", "second", "a/old"] {
        let line = format!("recovered {}", site.store.join(name).display());
        assert!(recovered.stderr.contains(&line), "{recovered:?}");
    }
    site.assert_same_files();
}

#[test]
fn of_a_store_that_is_gone_everything_in_the_tiers_is_salvaged() {
    let site = Site::new(&KEPT);
    mixed(&site);
    crash(&site, MIXED);
    let away = site.root().join("away");
    fs::rename(&site.store, &away).unwrap();
    let target = site.out.join("saved");
    let to = target.to_str().unwrap();
    let config = site.runtime().read_dir().unwrap().next().unwrap().unwrap().path();
    assert!(config.join("config").exists());
    let elsewhere = |words: &[&str]| {
        let mut command = site.command(&site.out, harness::FOREBAY);
        command.args(words);
        site.end(command)
    };
    let recovered = elsewhere(&["recover"]);
    assert!(recovered.code != 0 && recovered.stderr.contains("salvage"), "{recovered:?}");
    let said = elsewhere(&["salvage", "--to", to]).expect(1);
    assert!(said.stderr.contains("MANIFEST") && said.stdout.contains("MISSING"), "{said:?}");
    let saved = |name: &str| fs::read(target.join(name)).unwrap();
    let plain = |name: &str| fs::read(site.plain.join(name)).unwrap();
    for whole in ["a/first", "second"] {
        harness::assert_same_bytes(whole, &saved(whole), &plain(whole));
    }
    // Of the file that was changed, the pages that were, and holes for what only the store had.
    let (got, wanted) = (saved("a/old"), plain("a/old"));
    assert_eq!(got.len(), wanted.len());
    assert!(got[600_000..600_008] == *b"changed\n" && got[5_000_000..] == *b"end\n");
    assert!(got[..4096].iter().all(|&byte| byte == 0));
    let manifest = fs::read_to_string(target.join("MANIFEST")).unwrap();
    assert!(manifest.contains("missing\t0\t") && manifest.contains("No such file"), "{manifest}");
    fs::rename(&away, &site.store).unwrap();
    site.recover().expect(0);
    site.assert_same_files();
}

#[test]
fn a_running_job_can_be_salvaged() {
    let site = Site::new(&KEPT);
    let script = "seq 200000 > still; : > $OUT/ready
        number=0; while [ ! -e $OUT/stop ]; do number=$((number + 1)); printf '%08d' $number | dd of=busy bs=8 conv=notrunc status=none; done
        seq 3 > last";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", harness::LIMIT, || site.out.join("ready").exists().then_some(()));
    let before = site.status().count("writes");
    let counts = || (site.status().count("writes") > before + 5).then_some(());
    wait_for("its counting", harness::LIMIT, counts);
    site.status().assert_live();
    for turn in 0..3 {
        let target = site.out.join(format!("saved{turn}"));
        let ran = site.end(site.forebay(&["salvage", "--to", target.to_str().unwrap()]));
        assert!(ran.code < 2, "{ran:?}");
        let wanted: String = (1..=200_000).map(|line| format!("{line}\n")).collect();
        assert!(fs::read_to_string(target.join("still")).unwrap() == wanted);
        let busy = fs::read_to_string(target.join("busy")).unwrap();
        assert!(busy.len() == 8 && busy.parse::<u32>().is_ok(), "{busy:?}");
        site.end(site.forebay(&["fsck"])).expect(0);
    }
    fs::write(site.out.join("stop"), "").unwrap();
    run.end().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("last")).unwrap(), "1\n2\n3\n");
}

/// A shell script under `forebay run` that stops at each `step N` until the test lets it go on.
struct Steps<'a> {
    site: &'a Site,
    running: harness::Running,
}

impl<'a> Steps<'a> {
    fn of(site: &'a Site, script: &str) -> Steps<'a> {
        let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }";
        let script = format!("{step}\n{script}");
        Steps { site, running: site.start(site.buffered(&["bash", "-c", &script])) }
    }

    fn at(&self, step: &str) {
        let mark = self.site.out.join(format!("at-{step}"));
        wait_for(step, harness::LIMIT, || mark.exists().then_some(()));
    }

    fn past(&self, step: &str) {
        fs::write(self.site.out.join(format!("past-{step}")), "").unwrap();
    }
}

/// Changes a file behind Forebay's back while a program has written a page of it. Returns what the
/// manager said of it, and the file's content in the end.
fn behind_our_back(change: impl Fn(&Path)) -> (String, Vec<u8>) {
    let site = Site::new(&KEPT);
    let file = site.store.join("file");
    fs::write(&file, vec![b'o'; 20_000]).unwrap();
    let script =
        "exec 3<> file; dd bs=4096 count=1 of=/dev/fd/3 conv=notrunc status=none < /dev/zero
        head -c 4096 /dev/zero | tr '\\0' n >&3; step 1; $FOREBAY flush file; sync; step 2";
    let steps = Steps::of(&site, script);
    steps.at("1");
    site.status().assert_live();
    assert!(!site.status().text.contains("changed on the store"));
    change(&file);
    steps.past("1");
    steps.at("2");
    let status = site.status().text;
    let log = site.log();
    let told = log.lines().find(|line| line.contains("Z WARN  conflict: ")).unwrap_or_default();
    assert_eq!(told.is_empty(), !status.contains("1 time a file was found changed"), "{status}");
    steps.past("2");
    steps.running.end().expect(0);
    (told.to_owned(), fs::read(&file).unwrap_or_default())
}

#[test]
fn changes_by_others_are_noticed_and_told() {
    use std::io::Write;
    let whole = |head: &[u8], rest: &[u8]| [head, rest].concat();
    let ours = [b'n'; 4096];
    let (told, content) = behind_our_back(|_| ());
    assert_eq!(told, "", "it was not changed");
    assert_eq!(content, whole(&ours, &[b'o'; 20_000 - 4096]));

    let (told, content) = behind_our_back(|file| {
        fs::File::options().append(true).open(file).unwrap().write_all(b"theirs").unwrap();
    });
    assert!(told.contains("/store/file: ") && told.contains("grew from 20000 to 20006"), "{told}");
    assert_eq!(content, whole(&whole(&ours, &[b'o'; 20_000 - 4096]), b"theirs"));

    let (told, content) = behind_our_back(|file| {
        fs::File::options().write(true).open(file).unwrap().set_len(10_000).unwrap();
    });
    assert!(told.contains("cut from 20000 to 10000 bytes"), "{told}");
    assert_eq!(content[..4096], ours);

    let (told, content) = behind_our_back(|file| {
        let file = fs::File::options().write(true).open(file).unwrap();
        file.write_all_at(b"theirs", 10_000).unwrap();
    });
    assert!(told.contains("it was written"), "{told}");
    assert!(content[..4096] == ours && content[10_000..10_006] == *b"theirs");

    let (told, content) = behind_our_back(|file| {
        let other = file.with_extension("new");
        fs::write(&other, "another file").unwrap();
        fs::rename(other, file).unwrap();
    });
    assert!(told.contains("deleted or replaced"), "{told}");
    assert_eq!(content, b"another file");

    let (told, _) = behind_our_back(|file| fs::remove_file(file).unwrap());
    assert!(told.contains("deleted or replaced"), "{told}");
}

#[test]
fn changes_while_no_manager_served_the_pool_are_noticed() {
    let site = Site::new(&KEPT);
    let file = site.store.join("file");
    fs::write(&file, vec![b'o'; 20_000]).unwrap();
    crash(&site, "printf ours | dd of=file conv=notrunc status=none");
    let there = fs::File::options().write(true).open(&file).unwrap();
    there.write_all_at(b"theirs", 10_000).unwrap();
    site.recover().expect(0);
    let content = fs::read(&file).unwrap();
    assert!(content[..5] == *b"ourso" && content[10_000..10_006] == *b"theirs");
}

/// Our own programs' ways to change a file on the store are not taken for others'.
#[test]
fn our_own_changes_are_no_conflicts() {
    let site = Site::new(&Setup { flush: "trigger = \"per-operation\"", ..TINY });
    let script = "seq 1000 > file; truncate -s 100 file; truncate -s 5000 file; seq 10 >> file
        touch -d @1000 file; seq 20 >> file; chmod 600 file; seq 5 >> file; mv file other; seq 3 >> other
        ln other linked; seq 4 >> linked; fallocate -l 100000 other; seq 7 >> other
        cp -p other copy; seq 9 >> copy; : > copy; seq 2 > copy; sync copy; seq 2 >> copy; rm linked
        head -c 20000000 /dev/zero > large; seq 5 | dd of=large conv=notrunc status=none
        exec 3>> gone; seq 3 >&3; rm gone; sync other; seq 3 >&3; exec 3>&-; echo new > temp; mv temp other
        echo more >> other; $FOREBAY flush . > /dev/null";
    let (ran, status) = site.run_buffered(script);
    ran.expect(0);
    status.assert_live();
    assert!(!status.text.contains("changed on the store"), "{}\n{}", status.text, site.log());
}

/// Runs a script with a small store of its own; `None` where that is not allowed.
fn with_small_store(site: &Site, script: &str) -> Option<Ran> {
    if !harness::works(&["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]) {
        harness::skip("a private mount is not allowed here");
        return None;
    }
    let script = format!("mount -t tmpfs -o size=2m none $STORE; cd $STORE\n{script}");
    let mut command = site.command(&site.out, "unshare");
    command
        .args(["-m", "bash", "-c", &script])
        .env("CONFIG", &site.config)
        .env("STORE", &site.store);
    Some(site.end(command))
}

#[test]
fn each_descriptor_learns_of_a_failing_store_once() {
    let site = Site::new(&KEPT);
    let python = "import os, errno
def tell(name, act):
    try:
        act(); print(name, 'ok')
    except OSError as error:
        print(name, errno.errorcode[error.errno])
flags = os.O_RDWR | os.O_CREAT
one, two = os.open('big', flags), os.open('big', flags)
three = os.open('big', os.O_RDONLY)
for _ in range(4): os.write(one, b'x' * 1000000)
tell('one', lambda: os.fsync(one))
filler = os.open('filler', os.O_WRONLY)
tell('two', lambda: os.fsync(two))
late = os.open('big', flags)
os.ftruncate(one, 1000)
tell('one again', lambda: os.fsync(one))
tell('one once more', lambda: os.fsync(one))
tell('two at close', lambda: os.close(two))
tell('late', lambda: os.fsync(late))
tell('reader at close', lambda: os.close(three))
tell('late at close', lambda: os.close(late))
tell('one at close', lambda: os.close(one))
";
    fs::write(site.out.join("errors.py"), python).unwrap();
    let script = "head -c 1000000 /dev/zero > filler
        $FOREBAY run --config $CONFIG -- bash -c 'python3 $OUT/errors.py; $FOREBAY status'";
    if !harness::have(&["python3"]) {
        return;
    }
    let Some(ran) = with_small_store(&site, script) else { return };
    let told: Vec<_> = ran.stdout.lines().take(8).collect();
    let wanted = [
        "one ENOSPC",
        "two ENOSPC",
        // The second descriptor's fsync has failed, too, meanwhile.
        "one again ENOSPC",
        "one once more ok",
        "two at close ok",
        "late ok",
        "reader at close ok",
        "late at close ok",
    ];
    assert_eq!(told, wanted, "{ran:?}");
}

#[test]
fn a_failing_file_is_shown_with_all_that_is_known() {
    let site = Site::new(&KEPT);
    let script = "$FOREBAY run --config $CONFIG -- bash -c '
            head -c 3000000 /dev/zero > large
            for time in first refused-before; do $FOREBAY flush --progress large; done
            $FOREBAY status; echo ---; $FOREBAY status --json; rm large; echo small > small
            $FOREBAY wait --progress small & $FOREBAY flush small; wait'; echo $?";
    let Some(ran) = with_small_store(&site, script) else { return };
    let (status, json) = ran.stdout.split_once("---").unwrap();
    for part in ["FAILING: No space left", "not yet on the store (bytes ", "; tried ", "again in "]
    {
        assert!(status.contains(part), "no {part:?}: {ran:?}");
    }
    for part in
        ["\"errno\": 28", "\"retry_seconds\": ", "\"ranges\": [[", "/store/large\"", "\"tries\": "]
    {
        assert!(json.contains(part), "no {part:?}: {ran:?}");
    }
    assert!(ran.stderr.contains("flushing: ") && ran.stderr.contains("no end in sight"), "{ran:?}");
    assert!(ran.stdout.ends_with("0\n"), "{ran:?}");
}

/// A new file may get the inode of one that was deleted: it must not get its data.
#[test]
fn data_of_a_deleted_file_does_not_come_into_a_new_one() {
    let site = Site::new(&KEPT);
    crash(&site, "seq 100 > file");
    let file = site.store.join("file");
    fs::remove_file(&file).unwrap();
    for name in ["file", "other", "third"] {
        fs::write(site.store.join(name), "theirs").unwrap();
    }
    let target = site.out.join("saved");
    site.end(site.forebay(&["salvage", "--to", target.to_str().unwrap()])).expect(0);
    let wanted: String = (1..=100).map(|line| format!("{line}\n")).collect();
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), wanted);
    site.recover().expect(0);
    for name in ["file", "other", "third"] {
        assert_eq!(fs::read_to_string(site.store.join(name)).unwrap(), "theirs", "{name}");
    }
    assert_eq!(set_aside(&site, "file"), wanted);
    site.drop_removed();
}

/// Two managed directories beside one that is not, all on one file system, in which files are
/// written, moved and linked; then everything is killed.
fn moved_and_killed(setup: &Setup) -> Site {
    let site = Site::new(setup);
    fs::create_dir(site.root().join("second")).unwrap();
    let mut config = fs::read_to_string(&site.config).unwrap();
    config.push_str("[[backing]]\npath = \"second\"\n");
    fs::write(&site.config, config).unwrap();
    let script = "for name in over out same linked folder/in gone; do
            mkdir -p folder; seq 5000 | dd of=$name conv=fsync status=none
        done
        mv over ../second/over; mv out ../out/out; mv same other; mv folder ../second/folder
        ln linked ../second/linked; rm linked gone
        : > renamed; ln renamed ../out/renamed; seq 5000 | dd of=renamed conv=fsync status=none; rm renamed
        mkdir leaves; seq 5000 > leaves/with; exec 6> leaves/open; seq 2500 >&6
        seq 5000 | dd of=leaves/synced conv=fsync status=none
        seq 2500 > leaves/closed; mv leaves ../out/leaves
        exec 5> still-written; seq 2500 >&5; mv still-written ../out/still-written
        seq 2501 5000 >&5; sync
        seq 2501 5000 >&6; seq 2501 5000 >> ../out/leaves/closed
        echo ready; sleep 1000";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LONG, || run.stdout().contains("ready").then_some(()));
    site.status().assert_live();
    site.kill_all();
    run.end();
    assert_eq!(site.pools().len(), 1);
    site
}

fn assert_all_moved(site: &Site) {
    let wanted: String = (1..=5000).map(|number| format!("{number}\n")).collect();
    let inside = ["store/other", "second/over", "second/linked", "second/folder/in"];
    let leaves = ["with", "open", "closed", "synced"].map(|name| format!("out/leaves/{name}"));
    let outside = ["out/out", "out/still-written", "out/renamed"];
    let outside = outside.into_iter().chain(leaves.iter().map(|name| &**name));
    for name in inside.into_iter().chain(outside) {
        assert_same_bytes(name, &fs::read(site.root().join(name)).unwrap(), wanted.as_bytes());
    }
}

#[test]
fn files_moved_to_another_managed_directory_or_out_of_all_outlive_everything() {
    let flush = "trigger = \"on-exit\"\ndurability = \"memory\"";
    let site = moved_and_killed(&Setup { flush, ..KEPT });
    site.recover().expect(0);
    assert_all_moved(&site);
}

#[test]
fn files_moved_to_another_managed_directory_or_out_of_all_outlive_a_loss_of_power() {
    let flush = "trigger = \"on-exit\"\ndurability = \"nonvolatile\"";
    let site = moved_and_killed(&Setup { flush, ..KEPT });
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    site.recover().expect(0);
    assert_all_moved(&site);
}

/// The last sync came after they were removed.
#[test]
fn files_that_are_removed_before_a_sync_do_not_come_back_after_a_loss_of_power() {
    let flush = "trigger = \"on-exit\"\ndurability = \"nonvolatile\"";
    let site = Site::new(&Setup { flush, ..KEPT });
    let script = "for name in stays synced; do seq 5000 | dd of=$name conv=fsync status=none; done
        seq 5000 > not-synced; rm synced not-synced; sync; echo ready; sleep 1000";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LONG, || run.stdout().contains("ready").then_some(()));
    site.kill_all();
    run.end();
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    site.recover().expect(0);
    let names: Vec<_> = harness::tree(&site.store).into_keys().collect();
    assert_eq!(names, [PathBuf::from("stays")]);
    let wanted: String = (1..=5000).map(|number| format!("{number}\n")).collect();
    assert_eq!(fs::read_to_string(site.store.join("stays")).unwrap(), wanted);
    // The site finds nothing that was kept of the others.
}

#[test]
fn what_a_new_symbolic_link_leads_to_outside_is_not_buffered() {
    let site = Site::new(&KEPT);
    if !site.compile("links_out.c", &[]) {
        return;
    }
    let outside = site.root().join("outside");
    fs::create_dir(&outside).unwrap();
    let run = site.start(site.buffered(&["bash", "-c", "exec $BIN/links_out $OUT/../outside"]));
    wait_for("the program", LONG, || run.stdout().contains("ready").then_some(()));
    site.status().assert_live();
    for name in ["linked", "linked-at", "renamed", "twice"] {
        assert_eq!(fs::read_to_string(outside.join(name)).unwrap(), "text\n", "{name}");
    }
    site.kill_all();
    run.end();
    site.recover().expect(0);
}

#[test]
fn salvage_and_recover_name_files_as_they_are_named_last() {
    let site = Site::new(&KEPT);
    // The inode number of a removed file is soon that of a new one.
    let script = "seq 9 > part; mv part whole; mkdir a
        for n in $(seq 40); do seq 99 > old; rm old; sync; seq $n > a/new-$n; done
        echo ready; sleep 1000";
    let run = site.start(site.buffered(&["bash", "-c", script]));
    wait_for("the script", LONG, || run.stdout().contains("ready").then_some(()));
    site.kill_all();
    run.end();
    let target = site.out.join("salvaged");
    let said = site.end(site.forebay(&["salvage", "--to", target.to_str().unwrap()])).expect(0);
    assert!(!target.join("old").exists() && !target.join("part").exists(), "{said:?}");
    let recovered = site.recover().expect(0);
    assert!(!recovered.stderr.contains("store/part"), "{recovered:?}");
    assert!(!recovered.stderr.contains("store/old ("), "{recovered:?}");
    assert_eq!(fs::read_to_string(site.store.join("a/new-2")).unwrap(), "1\n2\n");
}

/// Each file is told by where it lies when the drain is over.
#[test]
fn what_was_moved_while_no_manager_ran_is_not_told_by_the_path_of_another() {
    let site = Site::new(&LAZY);
    crash(
        &site,
        "echo one > moved; echo two > stays; echo three > gone; echo four > $'no\\xff text'",
    );
    fs::create_dir(site.store.join("below")).unwrap();
    for (from, to) in [("moved", "below/moved"), ("gone", "below/gone")] {
        fs::rename(site.store.join(from), site.store.join(to)).unwrap();
    }
    fs::write(site.store.join("moved"), "other\n").unwrap();
    let recovered = site.recover().expect(0);
    let contents = ["below/moved", "below/gone", "stays", "moved"]
        .map(|name| fs::read_to_string(site.store.join(name)).unwrap());
    assert_eq!(contents, ["one\n", "three\n", "two\n", "other\n"], "{recovered:?}");
    let says = |start: &str, name: &str, end: &str| {
        let line = format!("forebay: recovered {start}{}/{name} ({end}", site.store.display());
        recovered.stderr.contains(&line)
    };
    let elsewhere = "). It lies elsewhere now";
    assert!(
        says("the file that was opened as ", "moved", &format!("4 B{elsewhere}")),
        "{recovered:?}"
    );
    assert!(
        says("the file that was opened as ", "gone", &format!("6 B{elsewhere}")),
        "{recovered:?}"
    );
    assert!(says("", "stays", "4 B)\n"), "{recovered:?}");
    assert!(says("", "no\u{fffd} text", "5 B)\n"), "{recovered:?}");
}
