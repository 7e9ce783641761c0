//! What other versions of Forebay have left: brought to the store where it is the version before
//! this one, refused with the version that can recover it, and left as it is, where it is a later
//! one.

use crate::harness::forge::{Identity, Log};
use crate::harness::{LIMIT, Setup, Site, tree, wait_for};
use forebay_node::Config;
use forebay_pool::SlotRecord;
use forebay_pool::checksum::checksum_of;
use forebay_pool::slot_record::RECORD_BYTES;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SETUP: Setup = Setup {
    ram: "4MiB",
    nvme: "12MiB",
    nvme_emulate: None,
    store_emulate: None,
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"1MiB\"",
};
const BLOCK: usize = 256 << 10;

/// What the version before this one has left on the file tier; the file says how it was made.
const PREVIOUS: &str = include_str!("versions/journal-2.txt");

/// Puts the files of `listing` to the file tier of `site`, under the names that its instance has.
/// Returns them by the ends of their names.
fn put(site: &Site, listing: &str) -> BTreeMap<String, PathBuf> {
    let instance = Config::load(&site.config, &[]).unwrap().instance_id();
    let mut files = BTreeMap::new();
    let mut file = None;
    for line in listing.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        if let ["file", end, length] = words[..] {
            let path = site.nvme.join(format!("forebay-{instance}-nvme.{end}"));
            let made = File::create_new(&path).unwrap();
            made.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
            made.set_len(length.parse().unwrap()).unwrap();
            files.insert(end.to_owned(), path);
            file = Some(made);
            continue;
        }
        let [offset, count, digits] = words[..] else { panic!("{line}") };
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.repeat(count.parse().unwrap());
        file.as_ref().unwrap().write_all_at(&bytes, offset.parse().unwrap()).unwrap();
    }
    files
}

/// Lets the records of journal and slot table name the files of this site's store. Returns which
/// blocks of `big` the slots have.
fn rename(site: &Site, files: &BTreeMap<String, PathBuf>) -> Vec<usize> {
    let here = |path: &[u8]| {
        let path = Path::new(std::str::from_utf8(path).unwrap());
        site.store.join(path.file_name().unwrap())
    };
    let mut log = Log::read(&files["journal"]);
    assert!(log.records.len() >= 4);
    let paths: BTreeMap<_, _> = log
        .records
        .iter()
        .filter(|r| !r.path.is_empty())
        .map(|r| (r.of.inode, here(&r.path)))
        .collect();
    for record in &mut log.records {
        let path = &paths[&record.of.inode];
        record.of = Identity::of(path);
        record.handle.clear();
        if !record.path.is_empty() {
            record.path = path.as_os_str().as_encoded_bytes().to_vec();
        }
    }
    log.write(&files["journal"]);
    let table = File::options().read(true).write(true).open(&files["index"]).unwrap();
    let mut blocks = Vec::new();
    for (slot, bytes) in fs::read(&files["index"]).unwrap().chunks(RECORD_BYTES).enumerate() {
        let mut record = SlotRecord::decode(bytes).unwrap().unwrap();
        let path = here(record.path());
        let of = Identity::of(&path);
        (record.device, record.inode, record.born_ns, record.handle) =
            (of.device, of.inode, of.born_ns, 0);
        record.set_path(path.as_os_str().as_encoded_bytes().iter().copied());
        table.write_all_at(&record.encode(), (slot * RECORD_BYTES) as u64).unwrap();
        if path.ends_with("big") {
            assert_eq!(record.dirty, u64::MAX);
            blocks.push(record.block as usize);
        }
    }
    blocks
}

#[test]
fn what_the_version_before_has_left_on_a_file_tier_is_recovered() {
    let site = Site::new(&SETUP);
    for (name, bytes) in [("acknowledged", 0), ("cut", 4000), ("big", 0)] {
        fs::write(site.store.join(name), vec![0; bytes]).unwrap();
    }
    let files = put(&site, PREVIOUS);
    let blocks = rename(&site, &files);
    assert!(blocks.len() >= 4, "{blocks:?}");
    let config = site.config.to_str().unwrap();
    let checked = site.end(site.forebay(&["fsck", "--config", config])).expect(0);
    assert!(checked.stdout.contains("4 records"), "{checked:?}");
    site.end(site.forebay(&["recover", "--config", config])).expect(0);
    let mut acknowledged = b"one ".repeat(1500);
    acknowledged[4000..4004].copy_from_slice(b"two ");
    assert!(fs::read(site.store.join("acknowledged")).unwrap() == acknowledged);
    assert!(fs::read(site.store.join("cut")).unwrap() == b"cut ".repeat(1000));
    let big = fs::read(site.store.join("big")).unwrap();
    for block in blocks {
        assert!(big[block * BLOCK..][..BLOCK] == b"slot".repeat(BLOCK / 4), "block {block}");
    }
}

/// A program that has written what only the tiers have is killed, and its node manager.
fn leave(site: &Site, byte: char) {
    let at = site.out.join("at");
    let _ = fs::remove_file(&at);
    let script = format!(
        "head -c 5M /dev/zero | tr '\\0' {byte} > big; \
         printf acknowledged | dd of=file conv=fsync status=none; : > $OUT/at; exec sleep 1000"
    );
    let run = site.start(site.buffered(&["sh", "-c", &script]));
    wait_for("the script", LIMIT, || at.exists().then_some(()));
    site.status().assert_live();
    site.kill_all();
    run.end();
}

/// As after a reboot.
fn forget_pool(site: &Site) {
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
}

/// The file of the tier whose name ends so.
fn of_tier(site: &Site, end: &str) -> PathBuf {
    let mut paths = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

/// Writes `bytes` to the file that is there.
fn put_back(path: &Path, bytes: &[u8]) {
    let file = File::options().write(true).truncate(true).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// Every command that would take over what was left refuses it, says `why`, and leaves all as it
/// is.
fn assert_refused(site: &Site, why: &str) {
    let all = || {
        tree(&site.nvme).into_iter().map(|(name, item)| (name, item.bytes())).collect::<Vec<_>>()
    };
    let before = all();
    let config = site.config.to_str().unwrap();
    for words in [&["recover", "--config", config][..], &["run", "--config", config, "--", "true"]]
    {
        let ran = site.end(site.forebay(words));
        assert!(ran.code != 0 && ran.stderr.contains(why), "{words:?}: {ran:?}");
        assert!(before == all(), "{words:?} changed something: {ran:?}");
    }
}

fn assert_found(site: &Site, why: &str) {
    let checked = site.end(site.forebay(&["fsck", "--config", site.config.to_str().unwrap()]));
    assert!(checked.code != 0 && checked.stdout.contains(why), "{checked:?}");
}

#[test]
fn a_journal_of_a_later_version_is_refused_with_its_maker() {
    let site = Site::new(&SETUP);
    leave(&site, 'x');
    forget_pool(&site);
    let path = of_tier(&site, ".journal");
    let bytes = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    // Version and maker lie there in every later version.
    for head in [0, 64 << 10] {
        file.write_all_at(&77u32.to_le_bytes(), head + 8).unwrap();
        file.write_all_at(b"7.7.7\0", head + 56).unwrap();
    }
    let why = "made by another version of Forebay: 7.7.7 (journal 77";
    assert_refused(&site, why);
    assert_found(&site, why);
    file.write_all_at(&bytes, 0).unwrap();
    site.recover().expect(0);
    assert_eq!(fs::read(site.store.join("file")).unwrap(), b"acknowledged");
}

#[test]
fn slots_and_records_of_a_later_version_are_refused_with_their_maker() {
    let site = Site::new(&SETUP);
    leave(&site, 'x');
    forget_pool(&site);
    for end in [".slots", ".index"] {
        let path = of_tier(&site, end);
        let bytes = fs::read(&path).unwrap();
        let mut later = bytes.clone();
        // The last 1 KiB says it, twice, in every later version.
        let end = later.len() - RECORD_BYTES;
        for copy in later[end..].chunks_exact_mut(RECORD_BYTES / 2) {
            copy[8..12].copy_from_slice(&77u32.to_le_bytes());
            copy[24..30].copy_from_slice(b"7.7.7\0");
            let (said, sum) = copy.split_last_chunk_mut::<4>().unwrap();
            *sum = checksum_of(said).to_le_bytes();
        }
        put_back(&path, &later);
        assert_refused(&site, "made by another version of Forebay: 7.7.7 (format 77");
        put_back(&path, &bytes);
    }
    let path = of_tier(&site, ".index");
    let bytes = fs::read(&path).unwrap();
    let mut later = bytes.clone();
    later[80..84].copy_from_slice(&77u32.to_le_bytes());
    let sum = checksum_of(&later[..RECORD_BYTES - 4]);
    later[RECORD_BYTES - 4..RECORD_BYTES].copy_from_slice(&sum.to_le_bytes());
    put_back(&path, &later);
    assert_refused(&site, "made by another version of Forebay (slot records 77");
    put_back(&path, &bytes);
    site.recover().expect(0);
    assert_eq!(fs::read(site.store.join("file")).unwrap(), b"acknowledged");
}

#[test]
fn slots_of_another_pool_are_refused() {
    let site = Site::new(&SETUP);
    leave(&site, 'a');
    let others = fs::read(of_tier(&site, ".slots")).unwrap();
    site.recover().expect(0);
    leave(&site, 'b');
    let slots = of_tier(&site, ".slots");
    let own = fs::read(&slots).unwrap();
    assert_eq!(own.len(), others.len());
    put_back(&slots, &others);
    assert_refused(&site, "it belongs to another pool");
    assert_found(&site, "it belongs to another pool");
    let saved = site.out.join("saved");
    let ran = site.end(site.forebay(&["salvage", "--to", saved.to_str().unwrap()])).expect(1);
    let big = fs::read(saved.join("big")).unwrap();
    assert!(big.iter().all(|&byte| [0, b'b'].contains(&byte)), "{ran:?}");
    // Long enough, but no slots at all.
    put_back(&slots, &vec![b'c'; own.len()]);
    assert_refused(&site, "it does not say that it has slots of this pool");
    // Without the pool their table tells whose they are.
    let pool = site.pools().pop().unwrap();
    let folder = site.shm().join("away");
    fs::create_dir(&folder).unwrap();
    let away = folder.join("pool");
    fs::rename(&pool, &away).unwrap();
    put_back(&slots, &others);
    assert_refused(&site, "not of the same pool");
    put_back(&slots, &own);
    fs::rename(away, pool).unwrap();
    fs::remove_dir(folder).unwrap();
    site.recover().expect(0);
    assert!(fs::read(site.store.join("big")).unwrap() == vec![b'b'; 5 << 20]);
}
