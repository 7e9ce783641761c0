//! Journal, slots, pool and configuration as a hostile writer leaves them: whatever they say,
//! nothing outside of the managed directory is written or read, every command ends and says what it
//! did not bring back, and what was not tampered with comes to the store.

use crate::harness::forge::{Identity, Log, Record, set_head};
use crate::harness::{self, LIMIT, NOBODY, Ran, Setup, Site, kill, skip, tree, wait_for};
use forebay_pool::FileId;
use forebay_pool::layout::{FileFlags, Header};
use forebay_pool::segment::open_pool;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::{Owner, Segment, SlotRecord};
use rustix::fd::AsFd;
use rustix::fs::SeekFrom;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What no command may take, whatever it finds.
const BOUND: Duration = Duration::from_secs(60);
/// What files outside hold, and nothing else may come to hold.
const SECRET: &str = "outside: not to be read, not to be written";
/// Flushed at the end only; syncs go to the journal; the RAM tier is soon full.
const SETUP: Setup = Setup {
    ram: "4MiB",
    nvme: "12MiB",
    nvme_emulate: None,
    store_emulate: None,
    flush: "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"2MiB\"",
};

/// Bytes as `programs/durable.c` writes them.
fn pattern(offset: usize, bytes: usize, byte: u8) -> Vec<u8> {
    (0..bytes).map(|n| byte.wrapping_add(((n + offset) / 7) as u8)).collect()
}

/// The regular files below `folder`.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files
}

/// Whether a file has what is outside. Its holes are not read: a record that was tampered with may
/// make its own file of any size.
fn has_secret(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        let mut data = vec![0; (end - start) as usize];
        file.read_exact_at(&mut data, start).unwrap();
        if data.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
            return true;
        }
        at = end;
    }
    false
}

/// A file that is kept by its bytes, time and mode.
struct Kept {
    bytes: Vec<u8>,
    mode: u32,
    modified: std::time::SystemTime,
}

impl Kept {
    fn of(path: &Path) -> Kept {
        let found = fs::metadata(path).unwrap();
        let modified = found.modified().unwrap();
        Kept { bytes: fs::read(path).unwrap(), mode: found.mode(), modified }
    }

    /// Brings it back, without holes becoming data; the same file, if it is there.
    fn put(&self, path: &Path) {
        let file = File::options().write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(self.bytes.len() as u64).unwrap();
        for (number, piece) in self.bytes.chunks(4096).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                file.write_all_at(piece, number as u64 * 4096).unwrap();
            }
        }
        file.set_permissions(fs::Permissions::from_mode(self.mode)).unwrap();
        file.set_times(FileTimes::new().set_modified(self.modified)).unwrap();
    }
}

/// Everything that may be seen of a file but when it was read.
type Facts = (u32, u32, u64, i64, i64, i64, i64, Vec<u8>);

/// A directory that was left with unflushed data in pool, slots and journal, and files outside of
/// it on the same file system.
struct World {
    site: Site,
    outside: PathBuf,
    /// What a hostile writer gets into its hands, and where it lies.
    left: BTreeMap<PathBuf, Kept>,
    /// Files of the store as they are there, and as they must become.
    store: BTreeMap<PathBuf, Kept>,
    wanted: BTreeMap<PathBuf, Vec<u8>>,
    /// Those of them that fsync has acknowledged.
    synced: Vec<PathBuf>,
}

impl World {
    fn new() -> Option<World> {
        let site = Site::new(&SETUP);
        if !site.compile("durable.c", &[]) {
            return None;
        }
        let outside = site.store.parent().unwrap().join("outside");
        fs::create_dir_all(outside.join("deep")).unwrap();
        for name in ["canary", "deep/canary", "forebay-canary.slots"] {
            fs::write(outside.join(name), SECRET.repeat(400)).unwrap();
            let private = fs::Permissions::from_mode(0o600);
            fs::set_permissions(outside.join(name), private).unwrap();
        }
        fs::create_dir(site.store.join("real")).unwrap();
        symlink(site.store.join("real"), site.store.join("link")).unwrap();
        symlink("../outside", site.store.join("exit")).unwrap();
        symlink("../outside/canary", site.store.join("way")).unwrap();
        let mut script =
            "w a 0 60000 1\ns a\nw link/c 0 9000 2\ns link/c\nw exit/deep/new 0 500 5\n\
             w b 5000 100000 3\nw scrap 0 50 9\ns scrap\nw cut 0 9000 6\ns cut\nt cut 4000\n"
                .to_owned();
        (0..9).for_each(|n| script += &format!("w big {} 700000 4\n", n * 700_000));
        let count = script.lines().count();
        fs::write(site.out.join("script"), script).unwrap();
        let program = site.root().join("durable");
        let words =
            [&program, &site.out.join("script")].map(|path| path.to_str().unwrap().to_owned());
        let run = site.start(site.buffered(&words.each_ref().map(String::as_str)));
        wait_for("the script", LIMIT, || run.stdout().ends_with("done\n").then_some(()));
        assert_eq!(run.stdout().lines().count(), count + 1);
        site.status().assert_live();
        // What lies outside is not managed, whatever leads there.
        let new = fs::read(outside.join("deep/new")).unwrap();
        assert_eq!(new, pattern(0, 500, 5));
        site.kill_all();
        run.end();
        let mut world = World {
            wanted: BTreeMap::new(),
            synced: Vec::new(),
            left: BTreeMap::new(),
            store: BTreeMap::new(),
            outside,
            site,
        };
        world.remember();
        Some(world)
    }

    fn remember(&mut self) {
        let files = |folder: &Path| {
            let all = tree(folder).into_keys().map(|name| folder.join(name));
            all.filter(|path| fs::symlink_metadata(path).unwrap().is_file()).collect::<Vec<_>>()
        };
        // A socket is no file.
        let instance = self.site.instances().next().unwrap().unwrap().path();
        let _ = fs::remove_file(instance.join("socket"));
        let left =
            [files(&self.site.nvme), files(&self.site.runtime()), self.site.pools()].concat();
        self.left = left.into_iter().map(|path| (path.clone(), Kept::of(&path))).collect();
        let store = files(&self.site.store).into_iter();
        self.store = store.map(|path| (path.clone(), Kept::of(&path))).collect();
        let at = |name: &str| self.site.store.join(name);
        let b = [vec![0; 5000], pattern(5000, 100_000, 3)].concat();
        let big = (0..9).flat_map(|n| pattern(n * 700_000, 700_000, 4)).collect();
        self.wanted = BTreeMap::from([
            (at("a"), pattern(0, 60_000, 1)),
            (at("real/c"), pattern(0, 9000, 2)),
            (at("scrap"), pattern(0, 50, 9)),
            (at("b"), b),
            (at("big"), big),
        ]);
        self.synced = ["a", "real/c", "scrap"].map(at).to_vec();
        // Else there is nothing to be tampered with.
        for end in ["journal", "slots", "index", "config", "pool"] {
            assert!(self.left.keys().any(|path| path.to_str().unwrap().ends_with(end)), "{end}");
        }
        for (path, wanted) in &self.wanted {
            assert!(self.store[path].bytes != *wanted, "{} was flushed", path.display());
        }
        assert!(Log::read(&self.file("journal")).records.len() > 3);
        assert!(slots_in(&self.file("index")).len() > 3);
    }

    /// The file whose name ends so.
    fn file(&self, end: &str) -> PathBuf {
        let ends = |path: &&PathBuf| path.to_str().unwrap().ends_with(end);
        self.left.keys().find(ends).unwrap().clone()
    }

    /// Everything as it was left, in the very same files of the store.
    fn restore(&self) {
        self.site.kill_all();
        self.site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
        for folder in [self.site.nvme.clone(), self.site.runtime(), self.site.out.clone()] {
            fs::remove_dir_all(&folder).unwrap();
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        for (path, kept) in &self.left {
            let folder = path.parent().unwrap();
            if !folder.exists() {
                fs::create_dir_all(folder).unwrap();
                fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
            }
            kept.put(path);
        }
        self.store.iter().for_each(|(path, kept)| kept.put(path));
    }

    /// Leaves nothing behind.
    fn end(self) {
        self.restore();
        let World { site, left, .. } = self;
        left.keys().for_each(|path| drop(fs::remove_file(path)));
        for entry in site.instances() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }

    /// Everything outside, and which names there are beside the store.
    fn facts(&self) -> BTreeMap<PathBuf, Facts> {
        let mut facts = BTreeMap::new();
        let mut paths = vec![self.outside.clone()];
        paths.extend(tree(&self.outside).into_keys().map(|name| self.outside.join(name)));
        for path in paths {
            let m = fs::symlink_metadata(&path).unwrap();
            let bytes = if m.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
            let fact = (m.mode(), m.uid(), m.nlink(), times.0, times.1, times.2, times.3, bytes);
            facts.insert(path, fact);
        }
        facts
    }

    fn beside(&self) -> Vec<PathBuf> {
        let ours = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            !name.starts_with("stdout-") && !name.starts_with("stderr-")
        };
        let entries = fs::read_dir(self.site.store.parent().unwrap()).unwrap();
        let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(ours).collect();
        found.sort();
        found
    }

    /// Runs `forebay` with some words: it ends in time, and in none of the ways in which nothing
    /// should.
    fn forebay(&self, words: &[&str], what: &str) -> Ran {
        let mut run = self.site.start(self.site.forebay(words));
        let since = Instant::now();
        while run.is_running() {
            if since.elapsed() > BOUND {
                let said = (run.stdout(), run.stderr(), self.site.log());
                self.site.kill_all();
                kill(run.pid(), Signal::KILL);
                panic!("{what}: {words:?} hangs: {said:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let ran = run.end();
        let said = format!("{}{}{}", ran.stdout, ran.stderr, self.site.log());
        assert!(!said.contains("panicked"), "{what}: {words:?}: {said}");
        assert!(matches!(ran.code, 0 | 1 | 2 | 125), "{what}: {words:?}: {ran:?}\n{said}");
        assert!(!said.contains(SECRET), "{what}: {words:?}: {said}");
        ran
    }

    fn config(&self) -> &str {
        self.site.config.to_str().unwrap()
    }

    /// No file below `folder` has what is outside.
    fn assert_no_secret(&self, folder: &Path, what: &str) {
        for path in files_below(folder) {
            assert!(!has_secret(&path), "{what}: {} has what is outside", path.display());
        }
    }

    /// Lets the commands look at what was left, tampered with as `what` says, and checks what they
    /// did. `spared` are the files about which nothing was changed.
    fn check(&self, what: &str, commands: &[Words], spared: &[PathBuf]) -> Vec<Ran> {
        let (facts, beside) = (self.facts(), self.beside());
        let mut said = Vec::new();
        for command in commands {
            let config = self.config();
            said.push(match command {
                Words::Fsck => self.forebay(&["fsck"], what),
                Words::Salvage => {
                    let target = self.site.out.join("saved");
                    let ran = self.forebay(&["salvage", "--to", target.to_str().unwrap()], what);
                    if target.exists() {
                        self.assert_no_secret(&target, what);
                    }
                    ran
                }
                Words::Recover => self.forebay(&["recover", "--config", config], what),
                Words::Run => self.forebay(&["run", "--config", config, "--", "true"], what),
            });
        }
        assert!(facts == self.facts(), "{what}: something outside was touched: {said:#?}");
        assert_eq!(beside, self.beside(), "{what}: {said:#?}");
        self.assert_no_secret(&self.site.store, what);
        let paths = files_below(&self.site.store);
        let known = |path: &PathBuf| self.store.contains_key(path);
        assert!(paths.iter().all(known), "{what}: {paths:?}: {said:#?}");
        for path in spared {
            let right = fs::read(path).unwrap() == self.wanted[path];
            let told = said.iter().any(|ran| ran.code != 0 && !ran.stderr.trim().is_empty());
            assert!(right || told, "{what}: {} is lost silently: {said:#?}", path.display());
        }
        said
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Words {
    Fsck,
    Salvage,
    Recover,
    Run,
}

/// The records of slots in a table that are of files, with where they are.
fn slots_in(index: &Path) -> Vec<(usize, SlotRecord)> {
    let bytes = fs::read(index).unwrap();
    let records = bytes.chunks(RECORD_BYTES).enumerate();
    let of = |bytes: &[u8]| SlotRecord::decode(bytes).ok().flatten().filter(|r| r.dirty != 0);
    records.filter_map(|(slot, bytes)| Some((slot, of(bytes)?))).collect()
}

/// Changes the pool as a process that maps it can.
fn in_pool(pool: &Path, change: impl FnOnce(&Segment)) {
    let file = open_pool(pool).unwrap();
    change(&Segment::attach(file.as_fd()).unwrap());
}

/// Makes the header's checksum right for what it says now.
fn seal_pool(pool: &Path) {
    let file = open_pool(pool).unwrap();
    if let Ok((copy, _)) = Segment::attach_copy(file.as_fd()) {
        let at = std::mem::offset_of!(Header, checksum) as u64;
        let _ = rustix::io::pwrite(&file, &copy.sum().to_le_bytes(), at);
    }
}

fn file_of(segment: &Segment, path: &Path) -> FileId {
    let is_it =
        |file: &FileId| segment.path_of(segment.file(*file)) == path.as_os_str().as_encoded_bytes();
    segment.files().live().find(is_it).unwrap()
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

/// Paths that lead to the canary, each in its way.
fn ways_out(world: &World) -> Vec<PathBuf> {
    let store = &world.site.store;
    let ways = ["../outside/canary", "real/../../outside/canary", "way", "exit/canary"];
    let mut ways: Vec<_> = ways.into_iter().map(|way| store.join(way)).collect();
    ways.push(world.outside.join("canary"));
    ways.push(store.join("link/../../outside/canary"));
    ways
}

#[test]
fn what_is_written_through_a_linked_folder_is_recovered_and_what_lies_outside_is_not_managed() {
    let Some(world) = World::new() else { return };
    // Pool and all, and then the tiers alone.
    let all: Vec<_> = world.wanted.keys().cloned().collect();
    let said = world.check("nothing", &[Words::Recover], &all);
    assert!(said[0].code == 0, "{said:?}");
    for path in &all {
        harness::assert_same_bytes("all", &fs::read(path).unwrap(), &world.wanted[path]);
    }
    world.restore();
    fs::remove_file(world.file("pool")).unwrap();
    world.check("without the pool", &[Words::Run], &world.synced);
    for path in &world.synced {
        harness::assert_same_bytes("synced", &fs::read(path).unwrap(), &world.wanted[path]);
    }
}

#[test]
fn a_patched_record_of_the_journal_changes_nothing_outside() {
    let Some(world) = World::new() else { return };
    let canary = Identity::of(&world.outside.join("canary"));
    for way in ways_out(&world) {
        for born_ns in [0, canary.born_ns] {
            world.restore();
            fs::remove_file(world.file("pool")).unwrap();
            let journal = world.file("journal");
            let mut log = Log::read(&journal);
            let scrap = bytes_of(&world.site.store.join("scrap"));
            let record = log.records.iter_mut().find(|record| record.path == scrap).unwrap();
            (record.path, record.handle) = (bytes_of(&way), Vec::new());
            record.of = Identity { born_ns, ..canary };
            log.write(&journal);
            let what = format!("{} born {born_ns}", way.display());
            let said = world.check(&what, &[Words::Run], &world.synced[..2]);
            // It is named, kept, and does not keep the others from being recovered.
            let name = way.file_name().unwrap().to_str().unwrap();
            // A link in the store may have replaced a file: what that had is kept elsewhere.
            let told = match name {
                "way" => said[0].stderr.contains("not on the store any more is kept"),
                _ => false,
            };
            let named = said[0].code == 125 && said[0].stderr.contains(name);
            assert!(named || told, "{what}: {said:?}");
            for path in &world.synced[..2] {
                let got = fs::read(path).unwrap();
                harness::assert_same_bytes(&what, &got, &world.wanted[path]);
            }
        }
    }
    world.restore();
    world.check("nothing", &[Words::Recover], &world.synced);
}

#[test]
fn a_journal_of_another_user_is_not_believed() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can give files away");
    }
    let Some(world) = World::new() else { return };
    let canary = Identity::of(&world.outside.join("canary"));
    for end in ["journal", "slots", "index"] {
        world.restore();
        fs::remove_file(world.file("pool")).unwrap();
        let journal = world.file("journal");
        let mut log = Log::read(&journal);
        for record in &mut log.records {
            record.path = bytes_of(&world.site.store.join("../outside/canary"));
            (record.of, record.handle) = (Identity { born_ns: 0, ..canary }, Vec::new());
        }
        log.write(&journal);
        let theirs = world.file(end);
        fs::set_permissions(&world.site.nvme, fs::Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        let said = world.check(end, &[Words::Fsck, Words::Run, Words::Recover], &world.synced);
        let name = theirs.file_name().unwrap().to_str().unwrap();
        assert!(said.iter().any(|ran| ran.stderr.contains(name)), "{end}: {said:#?}");
        assert!(theirs.exists(), "{end}: it was removed");
    }
    world.restore();
    world.check("nothing", &[Words::Recover], &world.synced);
}

/// Lets what is buffered of the file at `path` be of another one, by a record where the table
/// expects it.
fn give_to(segment: &Segment, path: &Path, of: Identity, way: &Path) {
    let owner = Owner::new(1, 4000);
    let old = file_of(segment, path);
    let identity = forebay_pool::Identity { device: of.device, inode: of.inode };
    let new = segment.with_file_or_new(identity, owner, |file, _| file).unwrap();
    let buckets: Vec<_> = segment.resident_blocks(old).into_iter().map(|(_, b)| b).collect();
    let (old, record) = (segment.file(old), segment.file(new));
    for (to, from) in [
        (&record.size, &old.size),
        (&record.store_size, &old.store_size),
        (&record.mtime_ns, &old.mtime_ns),
        (&record.entry0, &old.entry0),
        (&record.root, &old.root),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    record.flags.store(old.flags.load(Ordering::Relaxed), Ordering::Relaxed);
    record.store.store(old.store.load(Ordering::Relaxed), Ordering::Relaxed);
    record.born_ns.store(of.born_ns, Ordering::Relaxed);
    segment.set_path(record, &bytes_of(way));
    old.entry0.store(0, Ordering::Relaxed);
    old.root.store(0, Ordering::Relaxed);
    old.clear(FileFlags::METADATA_DIRTY | FileFlags::DIRTY);
    for bucket in buckets {
        segment.bucket(bucket).unwrap().file.store(new, Ordering::Relaxed);
    }
}

#[test]
fn a_patched_record_of_the_pool_changes_nothing_outside() {
    let Some(world) = World::new() else { return };
    let canary = Identity::of(&world.outside.join("canary"));
    let deep = Identity::of(&world.outside.join("deep/canary"));
    let ways = ways_out(&world);
    let victims = ["scrap", "cut", "a", "real/c"].map(|name| world.site.store.join(name));
    for (turn, born) in [true, false].into_iter().enumerate() {
        world.restore();
        let ways: Vec<_> = ways.iter().cycle().skip(turn * 2).take(4).collect();
        in_pool(&world.file("pool"), |segment| {
            // Two with what is outside as theirs; the others with a path only.
            let known = |of: Identity| if born { of } else { Identity { born_ns: 0, ..of } };
            give_to(segment, &victims[0], known(canary), ways[0]);
            give_to(segment, &victims[1], known(deep), &world.site.store.join("exit/deep/canary"));
            for (victim, way) in victims[2..].iter().zip(&ways[2..]) {
                let record = segment.file(file_of(segment, victim));
                segment.set_path(record, &bytes_of(way));
                record.handle.store(0, Ordering::Relaxed);
                if !born {
                    record.born_ns.store(0, Ordering::Relaxed);
                }
            }
        });
        let what = format!("{ways:?} born {born}");
        let spared = ["b", "big"].map(|name| world.site.store.join(name));
        let said = world.check(&what, &[Words::Fsck, Words::Salvage, Words::Recover], &spared);
        // What is of no file of the store is set aside whole, and told; the rest is recovered.
        let nvme = files_below(&world.site.nvme).into_iter();
        let aside: Vec<_> =
            nvme.filter(|path| path.to_str().unwrap().contains(".removed/")).collect();
        assert_eq!(aside.len(), if born { 2 } else { 4 }, "{what}: {said:#?}");
        let Ran { code, stdout, stderr } = &said[2];
        let told = format!("{} files are nowhere", aside.len());
        assert!(*code == 0 && stdout.contains(&told), "{what}: {said:#?}");
        assert_eq!(stderr.matches("recovered").count(), 6 - aside.len(), "{what}: {said:#?}");
        let contents: Vec<_> = aside.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(aside.iter().all(|path| stderr.contains(path.to_str().unwrap())), "{said:#?}");
        let whole = [&victims[..1], if born { &[] } else { &victims[2..] }].concat();
        assert!(whole.iter().all(|path| contents.contains(&world.wanted[path])), "{what}");
        for path in spared {
            let got = fs::read(&path).unwrap();
            harness::assert_same_bytes(&what, &got, &world.wanted[&path]);
        }
        for path in &victims[2..] {
            // Found by what it is, wherever its record says.
            let got = fs::read(path).unwrap();
            let wanted = if born { world.wanted[path].clone() } else { Vec::new() };
            harness::assert_same_bytes(&what, &got, &wanted);
        }
    }
    world.restore();
    world.check("nothing", &[Words::Recover], &world.synced);
}

#[test]
fn a_pool_whose_slots_are_not_where_it_says_makes_no_file_there() {
    let Some(world) = World::new() else { return };
    // With its own slots there to be found, and without.
    for end in [None, Some("slots")] {
        world.restore();
        place_slots(&world.file("pool"), &world.outside.join("canary"));
        if let Some(end) = end {
            fs::remove_file(world.file(end)).unwrap();
        }
        let what = format!("slots outside, without {end:?}");
        let said = world.check(&what, &[Words::Fsck, Words::Recover, Words::Run], &[]);
        assert_ne!(said[1].code, 0, "{what}: {said:#?}");
    }
    world.restore();
    world.check("nothing", &[Words::Recover], &world.synced);
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as usize % end.max(1)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A number that may have been forgotten.
    fn number(&mut self) -> u64 {
        let any = (self.below(1 << 30) as u64) << 31 | self.below(1 << 30) as u64;
        let bit = 1u64 << self.below(64);
        let known = [0, 1, 4095, 4096, 1 << 32, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
        let known = self.one(&known);
        self.one(&[any, bit, bit - 1, known, known, known.wrapping_sub(4096)])
    }

    /// The user id to write instead, and a path to it.
    fn victim(&mut self, world: &World) -> (Identity, Vec<u8>) {
        if self.below(5) < 3 {
            let of = Identity::of(&world.outside.join("canary"));
            let born_ns = self.one(&[0, of.born_ns]);
            return (Identity { born_ns, ..of }, bytes_of(&self.one(&ways_out(world))));
        }
        let names = ["canary", "deep/canary", "deep", "forebay-canary.slots"];
        let of = Identity::of(&world.outside.join(self.one(&names)));
        let ways = ways_out(world);
        let more = ["", "/", ".", "a/b", "real", "link/c", "exit/deep/canary", "big", "\0", "a\0b"];
        let more = more.map(|name| bytes_of(&world.site.store.join(name)));
        let path = match self.below(3) {
            0 => self.one(&more),
            1 => {
                self.one(&[Vec::new(), b"..".to_vec(), vec![b'x'; 300], b"/proc/self/mem".to_vec()])
            }
            _ => bytes_of(&self.one(&ways)),
        };
        let born_ns = self.one(&[0, of.born_ns, of.born_ns]);
        (Identity { born_ns, ..of }, path)
    }

    /// Lets a record say something else of which file it is about.
    fn mislead(&mut self, world: &World, of: &mut Identity, path: &mut Vec<u8>) {
        let (victim, way) = self.victim(world);
        match self.below(5) {
            0 => *path = way,
            1 => *of = victim,
            2 => of.born_ns = 0,
            _ => (*of, *path) = (victim, way),
        }
    }
}

/// Spoils a file byte by byte, or its length.
fn scribble(random: &mut Random, path: &Path) -> String {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let name = path.file_name().unwrap().display();
    match random.below(8) {
        0 => {
            let to = random.below(length as usize + 1) as u64;
            file.set_len(to).unwrap();
            format!("{name} cut to {to}")
        }
        1 => {
            let to = random.one(&[length * 2, 1 << 30, 1 << 40]);
            // Where a file may be so long.
            let _ = file.set_len(to);
            format!("{name} grown to {to}")
        }
        2 => {
            let (from, to) = (random.below(length as usize), random.below(length as usize));
            let mut piece = vec![0; random.below(70_000)];
            let got = file.read_at(&mut piece, from as u64).unwrap();
            file.write_all_at(&piece[..got], to as u64).unwrap();
            format!("{got} bytes of {name} copied from {from} to {to}")
        }
        _ => {
            // Mostly where something is.
            let end = random.one(&[4096, 140 << 10, 1 << 20, length as usize]).min(length as usize);
            let count = 1 + random.below(20);
            for _ in 0..count {
                let at = random.below(end) as u64;
                file.write_all_at(&[random.below(256) as u8], at).unwrap();
            }
            format!("{count} bytes of {name} below {end}")
        }
    }
}

fn spoil_journal(random: &mut Random, world: &World) -> String {
    let path = world.file("journal");
    if random.below(4) == 0 {
        let (word, value) = (random.below(8), random.number());
        let mut file = fs::read(&path).unwrap();
        set_head(&mut file, word, value);
        fs::write(&path, file).unwrap();
        return format!("word {word} of the journal's heads is {value}");
    }
    let mut log = Log::read(&path);
    let count = random.one(&[1, 1, 2, log.records.len()]);
    let mut what = String::from("records of the journal:");
    for _ in 0..count {
        let number = random.below(log.records.len());
        let record = &mut log.records[number];
        match random.below(12) {
            0 => record.kind = random.one(&[0, 2, 3, 4, 5, 6, 7, 255]),
            1 => record.store = random.one(&[1, 7, 255]),
            2 => record.sequence = random.number(),
            3 | 4 => {
                let which = random.below(3);
                record.numbers[which] = random.number();
            }
            5 => record.pretended = Some(random.number() as u32),
            6 => record.bytes = vec![7; random.below(9000)],
            7 => record.of.device = random.number(),
            _ => {
                let (mut of, mut path) = (record.of, record.path.clone());
                random.mislead(world, &mut of, &mut path);
                (record.of, record.path) = (of, path);
                if random.below(3) > 0 {
                    record.handle.clear();
                }
            }
        }
        what += &format!("\n {number}: {:?}", Record { bytes: Vec::new(), ..record.clone() });
    }
    log.write(&path);
    what
}

fn spoil_slots(random: &mut Random, world: &World) -> String {
    let path = world.file("index");
    let slots = slots_in(&path);
    let table = File::options().write(true).open(&path).unwrap();
    let mut what = String::from("records of slots:");
    for _ in 0..random.one(&[1, 1, 3, slots.len()]) {
        let (mut slot, mut record) = random.one(&slots);
        match random.below(12) {
            0 => record.block = random.number(),
            1 => record.size = random.number(),
            2 => record.valid = random.number(),
            3 => record.dirty = random.number(),
            4 => record.sequence = random.number(),
            5 => record.store = random.number() as u32,
            6 => record.page_bytes = random.number() as u32,
            7 => slot = random.one(&[0, slot + 1, 100_000, 1 << 30]),
            8 => record.mtime_ns = random.number(),
            _ => {
                let (device, inode, born_ns) = (record.device, record.inode, record.born_ns);
                let (mut of, mut path) =
                    (Identity { device, inode, born_ns }, record.path().to_vec());
                random.mislead(world, &mut of, &mut path);
                (record.device, record.inode, record.born_ns) = (of.device, of.inode, of.born_ns);
                record.set_path(path.into_iter());
                record.handle = random.one(&[0, 0, record.handle, 77]);
            }
        }
        what += &format!("\n {slot}: {record:?}");
        table.write_all_at(&record.encode(), (slot * RECORD_BYTES) as u64).unwrap();
    }
    what
}

/// Lets the pool say that the slots of its file tier are in `to`.
fn place_slots(pool: &Path, to: &Path) {
    let file = open_pool(pool).unwrap();
    let (copy, _) = Segment::attach_copy(file.as_fd()).unwrap();
    let tier = &copy.header().tier[1];
    let at = tier.path.as_ptr().addr() - std::ptr::from_ref(copy.header()).addr();
    let mut path = bytes_of(to);
    path.push(0);
    rustix::io::pwrite(&file, &path, at as u64).unwrap();
    seal_pool(pool);
}

fn spoil_pool(random: &mut Random, world: &World) -> String {
    let pool = world.file("pool");
    let names = ["a", "b", "big", "cut", "real/c", "scrap"];
    let name = random.one(&names);
    let store = &world.site.store;
    match random.below(5) {
        0 => {
            let to = random.one(&[world.outside.clone(), "/".into(), store.join("../outside")]);
            let at = std::mem::offset_of!(Header, store);
            let mut known = None;
            in_pool(&pool, |segment| known = Some(file_of(segment, &store.join(name))));
            let file = File::options().write(true).open(&pool).unwrap();
            let mut path = bytes_of(&to);
            path.push(0);
            file.write_all_at(&path, at as u64).unwrap();
            seal_pool(&pool);
            in_pool(&pool, |segment| {
                let record = segment.file(known.unwrap());
                segment.set_path(record, &bytes_of(&world.outside.join("canary")));
            });
            format!("the pool's store is {}", to.display())
        }
        1 => {
            let to = world.outside.join(random.one(&["forebay-canary.slots", "canary", "deep"]));
            place_slots(&pool, &to);
            format!("the pool's slots are {}", to.display())
        }
        2 => {
            let (of, way) = random.victim(world);
            let way = PathBuf::from(std::ffi::OsString::from_vec(way));
            in_pool(&pool, |segment| give_to(segment, &store.join(name), of, &way));
            format!("{name} in the pool is {of:?} at {}", way.display())
        }
        3 => {
            let number = random.number();
            let which = random.below(9);
            in_pool(&pool, |segment| {
                let record = segment.file(file_of(segment, &store.join(name)));
                let longs = [&record.size, &record.store_size, &record.intent, &record.range_start];
                let longs = [&longs[..], &[&record.range_end, &record.born_ns]].concat();
                match which {
                    6 => record.store.store(number as u32, Ordering::Relaxed),
                    7 => record.job.store(number as u32, Ordering::Relaxed),
                    8 => record.handle.store(number as u32, Ordering::Relaxed),
                    which => longs[which].store(number, Ordering::Relaxed),
                }
            });
            format!("number {which} of {name} in the pool is {number}")
        }
        _ => {
            let (_, path) = random.victim(world);
            let scratch = random.below(2) == 0;
            in_pool(&pool, |segment| {
                let record = segment.file(file_of(segment, &store.join(name)));
                segment.set_path(record, &path);
                if scratch {
                    record.set(FileFlags::SCRATCH);
                }
            });
            let way = String::from_utf8_lossy(&path).into_owned();
            format!("path of {name} in the pool is {way}, scratch: {scratch}")
        }
    }
}

fn spoil_config(random: &mut Random, world: &World) -> String {
    let configs: Vec<_> = world.left.keys().filter(|path| path.ends_with("config")).collect();
    let kept = world.file(".config");
    let path = random.one(&[configs[0].clone(), kept]);
    if random.below(2) == 0 {
        return scribble(random, &path);
    }
    let text = fs::read_to_string(&path).unwrap();
    let (store, nvme) = (world.site.store.to_str().unwrap(), world.site.nvme.to_str().unwrap());
    let outside = world.outside.to_str().unwrap();
    let text = match random.below(3) {
        0 => text.replace(store, outside),
        1 => text.replace(nvme, outside),
        _ => text.replace("MiB", "EiB"),
    };
    fs::write(&path, &text).unwrap();
    format!("{} is {text}", path.display())
}

/// One round: something is spoiled, and the commands look at it.
fn attack(world: &World, seed: u64) {
    let random = &mut Random(seed);
    world.restore();
    // Recovery waits for a while for what a pool has of files that cannot be written.
    let has_pool = random.below(3) == 0;
    if !has_pool {
        fs::remove_file(world.file("pool")).unwrap();
    }
    let mut what = format!("FOREBAY_SEED={seed}: pool: {has_pool}");
    // Of each file once: what was scribbled over need not be one of ours any more.
    let mut kinds = vec!["journal", "journal", "index", "index", ".config", "slots"];
    if has_pool {
        kinds.extend(["pool", "pool", "pool"]);
    }
    for _ in 0..1 + random.below(2) {
        let kind = random.one(&kinds);
        kinds.retain(|other| *other != kind);
        let more = match (kind, random.below(4)) {
            ("journal", 1..) => spoil_journal(random, world),
            ("index", 1..) => spoil_slots(random, world),
            (".config", _) => spoil_config(random, world),
            ("pool", 1..) => spoil_pool(random, world),
            _ => scribble(random, &world.file(kind)),
        };
        what += &format!("\n{more}");
    }
    let theirs = rustix::process::geteuid().is_root() && random.below(5) == 0;
    if theirs {
        fs::set_permissions(&world.site.nvme, fs::Permissions::from_mode(0o1777)).unwrap();
        let ends = ["journal", "slots", "index", ".config"];
        let path = world.file(random.one(&ends));
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        what += &format!("\n{} is another user's", path.display());
    }
    let commands = [
        &[Words::Recover][..],
        &[Words::Run],
        &[Words::Fsck, Words::Recover],
        &[Words::Fsck, Words::Salvage, Words::Run],
    ];
    world.check(&what, random.one(&commands), &[]);
}

/// What is read of it is bounded: 1 GiB that was read, parsed and shown took a minute.
#[test]
fn a_kept_configuration_that_was_grown_is_not_read_whole() {
    let Some(world) = World::new() else { return };
    fs::remove_file(world.file("pool")).unwrap();
    let kept = world.file(".config");
    File::options().write(true).open(&kept).unwrap().set_len(1 << 30).unwrap();
    world.check("grown to 1 GiB", &[Words::Run], &world.synced);
    for path in &world.synced {
        harness::assert_same_bytes("synced", &fs::read(path).unwrap(), &world.wanted[path]);
    }
}

#[test]
fn whatever_a_hostile_writer_leaves_nothing_outside_is_touched() {
    let Some(mut world) = World::new() else { return };
    let given = |name: &str| std::env::var(name).ok()?.parse::<f64>().ok();
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let limit = given("FOREBAY_FUZZ_MINUTES")
        .map_or(Duration::from_secs(8), |minutes| Duration::from_secs_f64(minutes * 60.0));
    let since = Instant::now();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let first = now.as_secs() << 20;
    let mut rounds = 0;
    while seed.is_none() && since.elapsed() < limit || rounds == 0 {
        attack(&world, seed.unwrap_or(first + rounds));
        rounds += 1;
        // A file that was said to be scratch is deleted; what is made in its place is another one.
        if !world.store.keys().all(|path| path.exists()) {
            world.end();
            world = World::new().unwrap();
        }
    }
    println!("{rounds} hostile states from FOREBAY_SEED={first} on: nothing outside was touched");
    world.restore();
    world.check("nothing", &[Words::Recover], &world.synced);
}
