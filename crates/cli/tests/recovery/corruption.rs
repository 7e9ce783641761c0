//! Bits flip on file tiers, a device fails, the machine reboots: what is wrong is noticed and
//! named, and nothing wrong is ever read or written to the store.

use crate::harness::{
    self, LAZY, LIMIT, Ran, Running, Setup, Site, TINY, assert_same_bytes, wait_for,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
/// Bytes of a record of the slot table.
const RECORD: usize = 1024;
/// What `forebay` returns when it could not do its part.
const FAILED: i32 = 125;

/// Numbers that look random; another seed, another run.
struct Numbers(u64);

impl Numbers {
    fn new() -> Numbers {
        let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = given.unwrap_or(now.as_nanos() as u64);
        println!("replay with FOREBAY_SEED={seed}");
        Numbers(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.flatten().take(count).collect()
    }
}

/// A site all of whose data goes to the NVMe tier, and stays there until a program wants it
/// flushed.
fn site() -> Site {
    let site = Site::new(&Setup { nvme_emulate: None, ..LAZY });
    let text = fs::read_to_string(&site.config).unwrap();
    let rule = "[[rule]]\npath = \"**\"\ntier = \"nvme\"\n";
    fs::write(&site.config, format!("{text}{rule}")).unwrap();
    site
}

/// A shell script under `forebay run` that stops wherever it says `step NAME`, until the test has
/// looked.
struct Steps<'a> {
    site: &'a Site,
    running: Running,
}

impl<'a> Steps<'a> {
    fn of(site: &'a Site, script: &str) -> Steps<'a> {
        let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }\n\
             put() { dd if=$OUT/$1 of=$2 bs=${3:-64k} conv=notrunc status=none; }\n";
        let words = ["bash", "-c", &format!("{step}{script}")];
        Steps { site, running: site.start(site.buffered(&words)) }
    }

    fn at(&self, step: &str) {
        let mark = self.site.out.join(format!("at-{step}"));
        wait_for(&format!("step {step}"), LIMIT, || mark.exists().then_some(()));
    }

    fn past(&self, step: &str) {
        fs::write(self.site.out.join(format!("past-{step}")), "").unwrap();
    }

    fn end(self) -> Ran {
        self.running.end()
    }

    /// A reboot: every process is gone, and so is the segment.
    fn reboot(self) {
        self.site.status().assert_live();
        self.site.kill_all();
        self.running.end();
        let pools = self.site.pools();
        assert_eq!(pools.len(), 1);
        pools.iter().for_each(|pool| fs::remove_file(pool).unwrap());
    }
}

/// The file of the NVMe tier whose name ends so.
fn tier_file(site: &Site, end: &str) -> PathBuf {
    let files = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn flip(path: &Path, offset: u64, bit: u32) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, offset).unwrap();
}

/// Where a file has anything but zeros, in pieces of `unit` bytes.
fn used(path: &Path, unit: usize) -> Vec<u64> {
    let content = fs::read(path).unwrap();
    // But the head at the end, which is there twice.
    let pieces = content[..content.len() - RECORD].chunks(unit).enumerate();
    let used = pieces.filter(|(_, piece)| piece.iter().any(|&byte| byte != 0));
    used.map(|(number, _)| (number * unit) as u64).collect()
}

/// Where the tier's slots have `bytes`.
fn offset_of(site: &Site, bytes: &[u8]) -> u64 {
    let slots = fs::read(tier_file(site, ".slots")).unwrap();
    let found = slots.chunks(PAGE).position(|page| page.starts_with(&bytes[..64]));
    found.expect("the slots have it") as u64 * PAGE as u64
}

fn sees(site: &Site, name: &str, wanted: &[u8]) {
    assert_same_bytes(name, &fs::read(site.store.join(name)).unwrap(), wanted);
}

/// Removes what was kept of lost data; says what that was.
fn remove_lost(site: &Site) -> usize {
    let files = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let lost: Vec<_> = files.filter(|path| path.to_str().unwrap().contains(".lost")).collect();
    lost.iter().for_each(|path| fs::remove_file(path).unwrap());
    lost.len()
}

#[test]
fn rot_in_a_clean_page_is_read_from_the_store() {
    let site = site();
    let data = Numbers::new().bytes(600_000);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        &site,
        "put data file; step written; cat file > $OUT/got; dd if=file of=$OUT/odd bs=1000 status=none; \
         step read",
    );
    steps.at("written");
    site.end(site.forebay(&["flush", "file"])).expect(0);
    let before = site.status().count("missed_bytes");
    let corrupt = [0, 70, 146].map(|page: usize| offset_of(&site, &data[page * PAGE..]));
    corrupt.iter().for_each(|&at| flip(&tier_file(&site, ".slots"), at + 77, 3));
    steps.past("written");
    steps.at("read");
    let missed = site.status().count("missed_bytes") - before;
    assert!(missed >= 2 * PAGE as u64, "only {missed} bytes came from the store");
    steps.past("read");
    steps.end().expect(0);
    for name in ["got", "odd"] {
        assert_same_bytes(name, &fs::read(site.out.join(name)).unwrap(), &data);
    }
    sees(&site, "file", &data);
}

#[test]
fn rot_in_a_dirty_page_is_an_error_and_never_reaches_the_store() {
    let site = site();
    let data = Numbers::new().bytes(64 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    // The programs' own messages are the test's business.
    let steps = Steps::of(
        &site,
        "put data file; put data other; step written
         page() { dd if=file of=$OUT/page-$1 bs=4096 skip=$1 count=1 status=none 2> $OUT/said-$1; echo $?; }
         page 6; page 7; page 8
         printf x | dd of=file bs=1 seek=$((7 * 4096 + 5)) conv=notrunc status=none 2> /dev/null; echo $?
         dd if=$OUT/data of=file bs=4096 count=1 conv=notrunc,fsync status=none 2> /dev/null; echo $?
         dd if=$OUT/data of=other bs=4096 count=1 conv=notrunc,fsync status=none; echo $?
         \"$FOREBAY\" status > $OUT/status",
    );
    steps.at("written");
    let slots = fs::read(tier_file(&site, ".slots")).unwrap();
    // Both files have the same content: the first copy is the first file's.
    let at = slots.chunks(PAGE).position(|page| page == &data[7 * PAGE..8 * PAGE]).unwrap() * PAGE;
    flip(&tier_file(&site, ".slots"), at as u64 + 4000, 0);
    steps.past("written");
    let ran = steps.end().expect(FAILED);
    assert_eq!(ran.stdout, "0\n1\n0\n1\n1\n0\n", "{ran:?}");
    assert!(ran.stderr.contains("/store/file: Input/output error"), "{ran:?}");
    let said = fs::read_to_string(site.out.join("said-7")).unwrap();
    assert!(said.contains("Input/output error"), "{said}");
    for page in [6, 8] {
        let got = fs::read(site.out.join(format!("page-{page}"))).unwrap();
        assert_same_bytes("a page beside", &got, &data[page * PAGE..(page + 1) * PAGE]);
    }
    // All but the corrupt page came to the store.
    let mut wanted = data.clone();
    wanted[7 * PAGE..8 * PAGE].fill(0);
    sees(&site, "file", &wanted);
    sees(&site, "other", &data);
    let log = site.log();
    assert!(log.contains("/store/file: bytes 28672..32768 cannot be read"), "{log}");
    let status = fs::read_to_string(site.out.join("status")).unwrap();
    assert!(status.contains("/store/file: bytes 28672..32768 cannot be read"), "{status}");
    // It is kept: were it a matter of the cable, it would come to the store after all.
    flip(&tier_file(&site, ".slots"), at as u64 + 4000, 0);
    site.recover().expect(0);
    sees(&site, "file", &data);
}

#[test]
fn a_corrupt_page_that_is_written_anew_as_a_whole_is_good_again() {
    let site = site();
    let data = Numbers::new().bytes(10 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    fs::write(site.out.join("page"), [9; PAGE]).unwrap();
    let steps = Steps::of(
        &site,
        "put data file; step written; cat file > /dev/null 2>&1; echo $?
         dd if=$OUT/page of=file bs=4096 seek=3 conv=notrunc status=none; cat file > $OUT/got; echo $?",
    );
    steps.at("written");
    flip(&tier_file(&site, ".slots"), offset_of(&site, &data[3 * PAGE..]), 7);
    steps.past("written");
    assert_eq!(steps.end().expect(0).stdout, "1\n0\n");
    let mut wanted = data;
    wanted[3 * PAGE..4 * PAGE].fill(9);
    assert_same_bytes("got", &fs::read(site.out.join("got")).unwrap(), &wanted);
    sees(&site, "file", &wanted);
}

/// Writes files in odd ways to the NVMe tier, and reboots.
fn write_and_reboot(site: &Site) -> Vec<u8> {
    let data = Numbers::new().bytes(700_001);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        site,
        "put data whole; put data odd 1013; mkdir d; put data old; mv old d/new
         put data removed; rm removed
         put data cut; truncate -s 300005 cut; put data grown; truncate -s 800000 grown
         put data flushed; \"$FOREBAY\" flush flushed > /dev/null
         put data half; \"$FOREBAY\" flush half > /dev/null
         dd if=$OUT/data of=half bs=1000 count=5 seek=3 conv=notrunc status=none
         dd if=$OUT/data of=sparse bs=4096 count=2 seek=200 conv=notrunc status=none
         chmod 640 whole; step written",
    );
    steps.at("written");
    steps.reboot();
    data
}

fn all_is_back(site: &Site, data: &[u8]) {
    for name in ["whole", "odd", "d/new", "flushed"] {
        sees(site, name, data);
    }
    sees(site, "cut", &data[..300_005]);
    let mut grown = data.to_vec();
    grown.resize(800_000, 0);
    sees(site, "grown", &grown);
    let mut half = data.to_vec();
    half[3000..8000].copy_from_slice(&data[..5000]);
    sees(site, "half", &half);
    let mut sparse = vec![0; 200 * PAGE];
    sparse.extend_from_slice(&data[..2 * PAGE]);
    sees(site, "sparse", &sparse);
    assert!(!site.store.join("removed").exists());
}

#[test]
fn after_a_reboot_recover_finds_what_the_tier_holds() {
    let site = site();
    let data = write_and_reboot(&site);
    let ran = site.recover().expect(0);
    assert!(ran.stderr.contains("recovered 7 files ("), "{ran:?}");
    all_is_back(&site, &data);
    let again = site.recover().expect(0);
    assert!(again.stdout.contains("nothing to recover"), "{again:?}");
}

#[test]
fn after_a_reboot_that_also_took_the_runtime_folder_it_is_named_by_its_configuration() {
    let site = site();
    let data = write_and_reboot(&site);
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let ran = site.recover().expect(0);
    assert!(ran.stdout.contains("nothing to recover"), "{ran:?}");
    let config = site.config.to_str().unwrap();
    let ran = site.end(site.forebay(&["recover", "--config", config])).expect(0);
    assert!(ran.stderr.contains("recovered 7 files ("), "{ran:?}");
    all_is_back(&site, &data);
}

#[test]
fn after_a_reboot_a_run_with_another_configuration_finds_what_the_tier_holds() {
    let site = site();
    let data = write_and_reboot(&site);
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let first = fs::read_to_string(&site.config).unwrap();
    let larger = first.replacen("capacity = \"", "capacity = \"1", 1);
    fs::write(&site.config, larger).unwrap();
    let ran = site.end(site.buffered(&["bash", "-c", "cp d/new $OUT/new; echo later > d/new"]));
    ran.expect(0);
    assert!(fs::read(site.out.join("new")).unwrap() == fs::read(site.out.join("data")).unwrap());
    // Nothing old comes over it when the first one is back.
    fs::write(&site.config, first).unwrap();
    site.end(site.buffered(&["true"])).expect(0);
    assert_eq!(fs::read_to_string(site.store.join("d/new")).unwrap(), "later\n");
    sees(&site, "whole", &data);
}

#[test]
fn what_another_machine_has_on_a_shared_tier_is_left_alone() {
    let site = site();
    let data = write_and_reboot(&site);
    for entry in site.instances() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let kept = tier_file(&site, ".config");
    let ours = fs::read_to_string(&kept).unwrap();
    let (machine, rest) = ours.split_once('\n').unwrap();
    fs::write(&kept, format!("{machine}-2\n{rest}")).unwrap();
    let slots = tier_file(&site, ".slots");
    let theirs = fs::read(&slots).unwrap();
    let first = fs::read_to_string(&site.config).unwrap();
    let other = first.replacen("capacity = \"", "capacity = \"1", 1);
    let run_with_another = || {
        fs::write(&site.config, &other).unwrap();
        let ran = site.end(site.buffered(&["true"])).expect(0);
        assert_eq!(ran.stderr.matches("another machine buffers").count(), 1, "{ran:?}");
        assert!(fs::read(&slots).unwrap() == theirs);
    };
    run_with_another();
    // The same configuration would even mean the same files.
    fs::write(&site.config, &first).unwrap();
    let ran = site.end(site.buffered(&["true"]));
    assert!(ran.code != 0 && ran.stderr.contains("another machine has left"), "{ran:?}");
    let words = ["recover", "--config", site.config.to_str().unwrap()];
    let ran = site.end(site.forebay(&words));
    assert!(ran.code != 0 && ran.stderr.contains("another machine has left"), "{ran:?}");
    // Having been refused stands in the way of nothing.
    run_with_another();
    fs::write(&site.config, first).unwrap();
    fs::remove_file(&kept).unwrap();
    site.end(site.forebay(&words)).expect(0);
    all_is_back(&site, &data);
}

#[test]
fn after_a_reboot_the_next_run_finds_what_the_tier_holds() {
    let site = site();
    let data = write_and_reboot(&site);
    let ran = site.end(site.buffered(&["cat", "d/new"]));
    assert!(ran.stderr.contains("recovered 7 files ("), "{ran:?}");
    ran.expect(0);
    all_is_back(&site, &data);
}

#[test]
fn a_reboot_does_not_bring_old_bytes_back_over_new_ones() {
    let site = site();
    let mut numbers = Numbers::new();
    let (old, new) = (numbers.bytes(512 << 10), numbers.bytes(512 << 10));
    fs::write(site.out.join("old"), &old).unwrap();
    fs::write(site.out.join("new"), &new).unwrap();
    let steps = Steps::of(
        &site,
        // Blocks that are written whole move to RAM: what their slots have counts no more.
        "put old file; put old emptied; put old gone; step slots
         dd if=$OUT/new of=file bs=512k conv=notrunc,fsync status=none
         : > emptied; rm gone; exec 3> gone; echo another >&3; sync gone; step written",
    );
    steps.at("slots");
    steps.past("slots");
    steps.at("written");
    sees(&site, "file", &new);
    steps.reboot();
    site.recover().expect(0);
    sees(&site, "file", &new);
    sees(&site, "emptied", b"");
    sees(&site, "gone", b"another\n");
}

/// The file `slots` lies on the NVMe tier, all others in RAM, and fsync wants the journal only.
fn site_with_journal() -> Site {
    let flush = "trigger = \"on-exit\"\ndurability = \"nonvolatile\"";
    let site = Site::new(&Setup { nvme_emulate: None, flush, ..LAZY });
    let text = fs::read_to_string(&site.config).unwrap();
    let rule = "[[rule]]\npath = \"slots\"\ntier = \"nvme\"\n";
    fs::write(&site.config, format!("{text}{rule}")).unwrap();
    site
}

#[test]
fn slots_and_journal_come_back_in_the_order_in_which_they_were_written() {
    let site = site_with_journal();
    let mut numbers = Numbers::new();
    let all = ["one", "two", "three"].map(|name| {
        let data = numbers.bytes(300_000);
        fs::write(site.out.join(name), &data).unwrap();
        data
    });
    let steps = Steps::of(
        &site,
        "put one slots
         while \"$FOREBAY\" explain slots | grep -q 'on its way'; do sleep 0.1; done
         dd if=$OUT/two of=slots bs=100000 count=1 conv=notrunc,fsync status=none
         dd if=$OUT/three of=slots bs=50000 count=1 conv=notrunc status=none
         put one ram; sync ram; put two ram 1000; dd if=$OUT/three of=ram bs=1000 count=7 conv=notrunc,fsync status=none
         put one ram; ls $OUT/../nvme; step written",
    );
    steps.at("written");
    assert!(steps.running.stdout().contains(".journal"), "{}", steps.running.stdout());
    assert_eq!(fs::metadata(site.store.join("ram")).unwrap().len(), 0);
    let checked = site.end(site.forebay(&["fsck"])).expect(0).stdout;
    let would = "if the pool were lost, `forebay recover` would bring";
    assert!(checked.contains(would) && checked.contains(" file from it"), "{checked}");
    steps.reboot();
    // One of the two superblock copies, and one of the records in the middle.
    let journal = tier_file(&site, ".journal");
    let sound = fs::read(&journal).unwrap();
    let checked = site.end(site.forebay(&["fsck"])).expect(0).stdout;
    assert!(checked.contains("will bring") && !checked.contains(" 0 records"), "{checked}");
    let copies: Vec<_> =
        (0..sound.len() - 8).filter(|&at| &sound[at..][..8] == b"FBJOURNL").collect();
    flip(&journal, copies[1] as u64 + 20, 1);
    flip(&journal, copies[0] as u64 + 20, 1);
    let checked = site.end(site.forebay(&["fsck"])).expect(1).stdout;
    assert!(checked.contains("both copies of its superblock are damaged"), "{checked}");
    let refused = site.recover().expect(125).stderr;
    assert!(refused.contains("both copies of its superblock are damaged"), "{refused}");
    fs::write(&journal, &sound).unwrap();
    let logged = sound.windows(100).position(|bytes| bytes == &all[0][..100]).unwrap();
    flip(&journal, logged as u64, 1);
    let checked = site.end(site.forebay(&["fsck"])).expect(1).stdout;
    assert!(checked.contains("is damaged: what a sync acknowledged is lost"), "{checked}");
    fs::write(&journal, &sound).unwrap();
    flip(&journal, copies[1] as u64 + 20, 1);
    let checked = site.end(site.forebay(&["fsck"])).expect(1).stdout;
    assert!(checked.contains("the other holds"), "{checked}");
    site.recover().expect(0);
    let [one, two, three] = &all;
    let slots = [&three[..50_000], &two[50_000..100_000], &one[100_000..]].concat();
    sees(&site, "slots", &slots);
    // What was written after the last fsync was in RAM only.
    let ram = [&three[..7000], &two[7000..]].concat();
    sees(&site, "ram", &ram);
}

#[test]
fn a_damaged_record_of_the_journal_is_told_and_the_others_count() {
    let site = site_with_journal();
    let data = Numbers::new().bytes(3 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let script = "for name in first second third; do
            dd if=$OUT/data of=$name bs=64k conv=fsync status=none
        done; step written";
    let steps = Steps::of(&site, script);
    steps.at("written");
    steps.reboot();
    let journal = tier_file(&site, ".journal");
    let bytes = fs::read(&journal).unwrap();
    let records: Vec<_> =
        (0..bytes.len() - 100).filter(|&at| bytes[at..][..100] == data[..100]).collect();
    flip(&journal, records[1] as u64, 3);
    let said = site.recover().expect(125).stderr;
    assert!(said.contains("a record is damaged") && said.contains(".journal.lost"), "{said}");
    sees(&site, "first", &data);
    sees(&site, "third", &data);
    assert!(remove_lost(&site) > 0);
    site.recover().expect(0);
}

#[test]
fn rot_does_not_reach_the_journal() {
    let site = site_with_journal();
    let data = Numbers::new().bytes(10 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        &site,
        "put data slots; step written
         dd if=$OUT/data of=slots bs=4096 count=1 conv=notrunc,fsync status=none 2> /dev/null; echo $?; step synced",
    );
    steps.at("written");
    let at = offset_of(&site, &data[4 * PAGE..]);
    flip(&tier_file(&site, ".slots"), at + 5, 5);
    steps.past("written");
    steps.at("synced");
    assert_eq!(steps.running.stdout(), "1\n");
    steps.reboot();
    let ran = site.recover().expect(FAILED);
    assert!(ran.stderr.contains("/store/slots: bytes 16384..20480: its checksum"), "{ran:?}");
    let mut wanted = data;
    wanted[4 * PAGE..5 * PAGE].fill(0);
    sees(&site, "slots", &wanted);
    assert!(remove_lost(&site) >= 2);
    site.recover().expect(0);
}

#[test]
fn what_has_rotted_at_a_reboot_is_named_and_kept() {
    let site = site();
    let mut numbers = Numbers::new();
    let (data, other) = (numbers.bytes(600_000), numbers.bytes(600_000));
    fs::write(site.out.join("data"), &data).unwrap();
    fs::write(site.out.join("other"), &other).unwrap();
    let steps = Steps::of(&site, "put data whole; put other odd; step written");
    steps.at("written");
    steps.reboot();
    for page in [5, 6] {
        let at = offset_of(&site, &data[page * PAGE..]);
        flip(&tier_file(&site, ".slots"), at + 100, 1);
    }
    let ran = site.recover().expect(FAILED);
    let name = site.store.join("whole");
    let said = format!("{}: bytes 20480..28672: its checksum is wrong", name.display());
    assert!(ran.stderr.contains(&said), "{ran:?}");
    let mut wanted = data.clone();
    wanted[5 * PAGE..7 * PAGE].fill(0);
    sees(&site, "whole", &wanted);
    sees(&site, "odd", &other);
    assert_eq!(remove_lost(&site), 2);
    site.recover().expect(0);
}

#[test]
fn a_damaged_slot_table_is_noticed_at_a_reboot() {
    for what in ["record", "table"] {
        let site = site();
        let data = Numbers::new().bytes(64 * PAGE);
        fs::write(site.out.join("data"), &data).unwrap();
        let steps = Steps::of(&site, "put data a; put data b; step written");
        steps.at("written");
        steps.reboot();
        let index = tier_file(&site, ".index");
        match what {
            "record" => flip(&index, used(&index, RECORD)[0] + 40, 2),
            _ => fs::remove_file(&index).unwrap(),
        }
        // A run that finds the loss says so, and does not begin.
        let ran = match what {
            "record" => site.recover(),
            _ => site.end(site.buffered(&["true"])),
        };
        let ran = ran.expect(FAILED);
        assert!(ran.stderr.contains("what it") && ran.stderr.contains("not known"), "{ran:?}");
        assert!(ran.stderr.contains("kept in"), "{ran:?}");
        let there: Vec<bool> =
            ["a", "b"].map(|name| fs::read(site.store.join(name)).unwrap() == data).to_vec();
        assert_eq!(there.iter().filter(|&&good| good).count(), usize::from(what == "record"));
        assert!(remove_lost(&site) > 0);
        site.recover().expect(0);
    }
}

#[test]
fn a_damaged_slot_table_does_not_matter_while_the_segment_is_there() {
    let site = site();
    let data = Numbers::new().bytes(64 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(&site, "put data a; put data b; step written");
    steps.at("written");
    let index = tier_file(&site, ".index");
    flip(&index, used(&index, RECORD)[0] + 40, 2);
    // A manager that takes over writes the record anew.
    let manager = site.status().manager;
    harness::kill(manager, rustix::process::Signal::KILL);
    wait_for("another manager", LIMIT, || {
        let status = site.status();
        (status.manager != manager && status.text.contains("node manager")).then_some(())
    });
    wait_for("the table", LIMIT, || site.log().contains("took over").then_some(()));
    steps.reboot();
    site.recover().expect(0);
    sees(&site, "a", &data);
    sees(&site, "b", &data);
}

#[test]
fn random_flips_are_all_noticed() {
    let mut numbers = Numbers::new();
    for round in 0..3 {
        let site = site();
        let odd = numbers.below(3 * PAGE);
        let data = numbers.bytes(100 * PAGE + odd);
        fs::write(site.out.join("data"), &data).unwrap();
        let names = ["a", "b", "c", "d"];
        let steps = Steps::of(&site, "for name in a b c d; do put data $name; done; step written");
        steps.at("written");
        steps.reboot();
        let files = [(".index", RECORD), (".slots", PAGE)].map(|(end, unit)| {
            let path = tier_file(&site, end);
            (used(&path, unit), path, unit)
        });
        for _ in 0..=numbers.below(12) {
            let (used, path, unit) = &files[usize::from(numbers.below(4) > 0)];
            let at = used[numbers.below(used.len())] + numbers.below(*unit) as u64;
            flip(path, at, numbers.below(8) as u32);
        }
        let ran = site.recover();
        let (mut missing, mut wrong) = (0, Vec::new());
        for name in names {
            let got = fs::read(site.store.join(name)).unwrap();
            for (number, wanted) in data.chunks(PAGE).enumerate() {
                let from = (number * PAGE).min(got.len());
                let page = &got[from..(from + wanted.len()).min(got.len())];
                if page != wanted {
                    missing += 1;
                    if page.iter().any(|&byte| byte != 0) {
                        wrong.push((name, number));
                    }
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "round {round}: {wrong:?} are neither right nor missing: {ran:?}"
        );
        let noticed = ran.code == FAILED;
        assert!(noticed || missing == 0, "round {round}: {missing} pages are missing: {ran:?}");
        assert!(!noticed || remove_lost(&site) == 2, "round {round}: {ran:?}");
        site.recover().expect(0);
    }
}

#[test]
fn after_a_reboot_at_any_moment_every_byte_is_right_or_missing() {
    let mut numbers = Numbers::new();
    for round in 0..4 {
        let site = Site::new(&Setup {
            flush: "trigger = \"periodic\"\nperiod = \"10ms\"",
            store_emulate: Some("{ bandwidth = \"40MB/s\", latency = \"1ms\" }"),
            ..TINY
        });
        let names = ["a", "b", "c"];
        let all: Vec<_> = names.iter().map(|_| numbers.bytes(3_000_000)).collect();
        for (name, data) in names.iter().zip(&all) {
            fs::write(site.out.join(name), data).unwrap();
        }
        let steps = Steps::of(
            &site,
            "step begin; while :; do put a a 3001; put b b 64k; put c c 512k; cat a > /dev/null; done",
        );
        steps.at("begin");
        steps.past("begin");
        wait_for("writes", LIMIT, || (site.status().count("writes") > 200).then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(numbers.next() % 700));
        steps.reboot();
        let ran = site.recover();
        assert!(ran.code == 0 || ran.stderr.contains("is lost:"), "round {round}: {ran:?}");
        for (name, data) in names.iter().zip(&all) {
            let got = fs::read(site.store.join(name)).unwrap_or_default();
            let wrong = got.iter().zip(data).position(|(got, data)| got != data && *got != 0);
            assert!(wrong.is_none() && got.len() <= data.len(), "round {round}: {name}: {wrong:?}");
        }
        remove_lost(&site);
        site.recover().expect(0);
    }
}

#[test]
fn random_flips_under_a_running_program_give_errors_and_never_wrong_bytes() {
    let mut numbers = Numbers::new();
    let site = site();
    let data = numbers.bytes(200 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        &site,
        "put data clean; \"$FOREBAY\" flush clean > /dev/null; put data dirty; step written
         cat clean > $OUT/clean
         for page in $(seq 0 199); do
             dd if=dirty bs=4096 count=1 skip=$page status=none 2> /dev/null > $OUT/page-$page || echo $page
         done",
    );
    steps.at("written");
    let slots = tier_file(&site, ".slots");
    let used = used(&slots, PAGE);
    let mut flips = Vec::new();
    for _ in 0..12 {
        let at = used[numbers.below(used.len())] + numbers.below(PAGE) as u64;
        flips.push((at, numbers.below(8) as u32));
    }
    flips.iter().for_each(|&(at, bit)| flip(&slots, at, bit));
    steps.past("written");
    let ran = steps.end();
    assert_same_bytes("clean", &fs::read(site.out.join("clean")).unwrap(), &data);
    let bad: Vec<usize> = ran.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    for (number, wanted) in data.chunks(PAGE).enumerate().filter(|(page, _)| !bad.contains(page)) {
        let got = fs::read(site.out.join(format!("page-{number}"))).unwrap();
        assert_same_bytes(&format!("page {number}"), &got, wanted);
    }
    assert_eq!(ran.code, if bad.is_empty() { 0 } else { FAILED }, "{ran:?}");
    let mut wanted = data.clone();
    bad.iter().for_each(|page| wanted[page * PAGE..(page + 1) * PAGE].fill(0));
    if bad.last() == Some(&199) {
        let whole = (0..200).rev().find(|page| !bad.contains(page)).unwrap() + 1;
        wanted.truncate(whole * PAGE);
    }
    sees(&site, "dirty", &wanted);
    if !bad.is_empty() {
        flips.iter().for_each(|&(at, bit)| flip(&slots, at, bit));
        site.recover().expect(0);
        sees(&site, "dirty", &data);
    }
}

/// How often a file that fails was tried, and in how many seconds it is tried again.
fn tries(site: &Site) -> Option<(u64, f64)> {
    let text = site.status().text;
    let said = text.split_once("; tried ")?.1;
    let (tries, rest) = said.split_once(" times, again in ")?;
    Some((tries.parse().unwrap(), rest.split_once(" s")?.0.parse().unwrap()))
}

#[test]
fn rot_on_a_tier_keeps_nothing_of_the_file_in_other_tiers_from_the_store() {
    let site = site();
    let data = Numbers::new().bytes(256 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        &site,
        "page() { head -c 4096 $OUT/data | dd of=dirty bs=4096 seek=$1 conv=notrunc status=none; }
         put data dirty; step written
         until \"$FOREBAY\" explain dirty | sed -n '/^  lies/,/^  new/p' | grep -q ' ram '; do
             tail -c 512K dirty > /dev/null
         done
         export -f step page
         \"$FOREBAY\" run --config $OUT/../forebay.toml --trigger periodic -- bash -c 'page 249; step failing; page 250; step end'",
    );
    steps.at("written");
    let slots = tier_file(&site, ".slots");
    let at = offset_of(&site, &data[10 * PAGE..]);
    flip(&slots, at + 5, 3);
    steps.past("written");
    steps.at("failing");
    let (before, _) = wait_for("some tries", LIMIT, || tries(&site).filter(|tries| tries.1 > 5.0));
    steps.past("failing");
    steps.at("end");
    wait_for("the page in memory", LIMIT, || {
        let stored = fs::read(site.store.join("dirty")).unwrap();
        (stored.get(250 * PAGE..251 * PAGE) == Some(&data[..PAGE])).then_some(())
    });
    let after = tries(&site).map(|tries| tries.0);
    assert_eq!(after, Some(before), "the rest waits for what has rotted");
    steps.past("end");
    let ran = steps.end().expect(FAILED);
    assert!(ran.stderr.contains("/store/dirty: Input/output error"), "{ran:?}");
    let mut wanted = data.clone();
    wanted.copy_within(..PAGE, 249 * PAGE);
    wanted.copy_within(..PAGE, 250 * PAGE);
    wanted[10 * PAGE..11 * PAGE].fill(0);
    sees(&site, "dirty", &wanted);
    flip(&slots, at + 5, 3);
    site.recover().expect(0);
    wanted[10 * PAGE..11 * PAGE].copy_from_slice(&data[10 * PAGE..11 * PAGE]);
    sees(&site, "dirty", &wanted);
}

#[test]
fn a_device_that_fails_leaves_the_hierarchy_and_the_rest_goes_on() {
    let site = site();
    let data = Numbers::new().bytes(64 * PAGE);
    fs::write(site.out.join("data"), &data).unwrap();
    let steps = Steps::of(
        &site,
        "put data clean; \"$FOREBAY\" flush clean > /dev/null; put data dirty; step written
         cat clean > $OUT/clean; echo $?; cat dirty > /dev/null 2>&1; echo $?
         put data later; cat later > $OUT/later; echo $?; \"$FOREBAY\" explain later; step failed",
    );
    steps.at("written");
    // What reads of a device that is gone have to say.
    let slots = File::options().write(true).open(tier_file(&site, ".slots")).unwrap();
    slots.set_len(0).unwrap();
    steps.past("written");
    steps.at("failed");
    let said = steps.running.stdout();
    assert!(said.starts_with("0\n1\n0\n"), "{said}");
    let lies = &said[said.find("  lies").unwrap()..said.find("  new data").unwrap()];
    assert!(lies.contains(" ram ") && !lies.contains(" nvme "), "{said}");
    for name in ["clean", "later"] {
        assert_same_bytes(name, &fs::read(site.out.join(name)).unwrap(), &data);
    }
    steps.past("failed");
    let ran = steps.end().expect(FAILED);
    assert!(ran.stderr.contains("/store/dirty: Input/output error"), "{ran:?}");
    sees(&site, "clean", &data);
    sees(&site, "later", &data);
    let log = site.log();
    assert!(log.contains("/store/dirty: bytes 0..262144 cannot be read"), "{log}");
    // Nothing brings it back: that is said once more, and what is left is kept.
    site.kill_all();
    site.pools().iter().for_each(|pool| fs::remove_file(pool).unwrap());
    let ran = site.recover().expect(FAILED);
    assert!(ran.stderr.contains("/store/dirty: bytes 0..262144: "), "{ran:?}");
    assert_eq!(remove_lost(&site), 2);
    site.recover().expect(0);
}
