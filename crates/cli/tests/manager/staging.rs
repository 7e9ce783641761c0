//! `forebay stage-in` and `forebay stage-out`.

use crate::harness::{
    LAZY, LONG, NOBODY, Ran, Running, SLOW_STORE, Setup, Site, Steps, TINY, USUAL, as_user,
    assert_same_bytes, kill, wait_for,
};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

/// A store that takes some seconds for what these tests stage in.
const CRAWLING: Setup = Setup {
    store_emulate: Some("{ bandwidth = \"4MB/s\", latency = \"1ms\" }"),
    nvme_emulate: None,
    ..USUAL
};

/// A site with a node manager that `forebay up` has started.
struct Served {
    site: Site,
}

impl Served {
    fn new(setup: &Setup) -> Served {
        Served::with(setup, |_| {})
    }

    /// The same; `change` has the command that starts the node manager.
    fn with(setup: &Setup, change: impl FnOnce(&mut Command)) -> Served {
        let site = Site::new(setup);
        let mut up = site.forebay(&["up", "--config", site.config.to_str().unwrap()]);
        change(&mut up);
        site.end(up).expect(0);
        Served { site }
    }

    fn run(&self, words: &[&str]) -> Ran {
        self.site.end(self.site.forebay(words))
    }

    /// What `forebay explain` says of the places of a file: tier, or null, and bytes, of each part.
    fn places(&self, name: &str) -> Vec<(Option<String>, u64)> {
        let said = self.run(&["explain", "--json", name]).expect(0).stdout;
        let said: Value = serde_json::from_str(&said).unwrap();
        let extents = said["extents"].as_array().unwrap().iter();
        extents
            .map(|extent| {
                let range = [0, 1].map(|end| extent["range"][end].as_u64().unwrap());
                (extent["tier"].as_str().map(str::to_owned), range[1] - range[0])
            })
            .collect()
    }

    /// Bytes of a file that a tier of this name has.
    fn bytes_in(&self, tier: &str, name: &str) -> u64 {
        let is_there = |(place, _): &&(Option<String>, u64)| place.as_deref() == Some(tier);
        self.places(name).iter().filter(is_there).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of a file that any tier has. Of a dropped file the record is given up soon, and no
    /// extent may be told while that is under way.
    fn in_tiers(&self, name: &str) -> u64 {
        self.places(name).iter().filter(|(tier, _)| tier.is_some()).map(|(_, bytes)| bytes).sum()
    }

    /// What a program under `forebay run` reads from a file, and how many bytes programs have
    /// waited for at the store so far.
    fn read(&self, name: &str) -> (Vec<u8>, u64) {
        let copy = self.site.out.join("copy");
        let script = format!("cat '{name}' > {}", copy.display());
        let (ran, status) = self.site.run_buffered(&script);
        ran.expect(0);
        (fs::read(copy).unwrap(), status.count("missed_bytes"))
    }

    fn down(self) {
        self.run(&["down", "--config", self.site.config.to_str().unwrap()]).expect(0);
    }
}

/// Bytes that differ with the number of the file and the place.
fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + (at >> 9) * 3 + number * 31) as u8).collect()
}

/// The object that a command has printed.
fn object(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[test]
fn a_tree_is_read_from_the_tier_that_it_was_staged_in_to() {
    for tier in ["ram", "nvme"] {
        let served = Served::new(&SLOW_STORE);
        let files = [("tree/large", 5_000_000), ("tree/a/half", 100_000), ("tree/a/small", 5_000)];
        fs::create_dir_all(served.site.store.join("tree/a")).unwrap();
        for (number, (name, bytes)) in files.iter().enumerate() {
            fs::write(served.site.store.join(name), content(number, *bytes)).unwrap();
        }
        fs::write(served.site.store.join("tree/empty"), "").unwrap();
        let said = object(&served.run(&["stage-in", "--json", "--tier", tier, "tree"]).expect(0));
        assert_eq!((&said["files"], &said["bytes"]), (&4.into(), &5_105_000.into()), "{said}");
        assert_eq!(said["tiers"][tier], 5_105_000, "{said}");
        for (number, (name, bytes)) in files.into_iter().enumerate() {
            assert_eq!(served.places(name), [(Some(tier.to_owned()), bytes as u64)], "{name}");
            let (read, missed) = served.read(name);
            assert_same_bytes(name, &read, &content(number, bytes));
            assert_eq!(missed, 0, "{name} was read from the store");
        }
        // It is there.
        let again = object(&served.run(&["stage-in", "--json", "--tier", tier, "tree"]).expect(0));
        assert_eq!((&again["came"], &again["files"]), (&0.into(), &4.into()), "{again}");
        let said = served.run(&["stage-in", "--tier", tier, "tree"]).expect(0).stdout;
        assert_eq!(said, "staged in 4 files (4.87 MiB): all was there already\n");
        served.down();
    }
}

#[test]
fn what_a_slower_tier_has_comes_up_without_the_store() {
    let served = Served::new(&SLOW_STORE);
    fs::write(served.site.store.join("file"), content(1, 3_000_000)).unwrap();
    served.run(&["stage-in", "--tier", "nvme", "file"]).expect(0);
    let ran = served.run(&["stage-in", "--json", "file"]).expect(0);
    assert_eq!(object(&ran)["tiers"]["ram"], 3_000_000, "{ran:?}");
    assert_eq!(served.bytes_in("ram", "file"), 3_000_000);
    let (read, missed) = served.read("file");
    assert_same_bytes("file", &read, &content(1, 3_000_000));
    assert_eq!(missed, 0);
    served.down();
}

#[test]
fn a_block_of_which_a_tier_has_a_part_is_staged_in_as_a_whole() {
    let served = Served::new(&SLOW_STORE);
    fs::write(served.site.store.join("file"), content(1, 500_000)).unwrap();
    let script = "printf new | dd of=file bs=1 seek=8192 conv=notrunc status=none; step 1";
    let steps = Steps::of(&served.site, script);
    steps.at("1");
    served.run(&["stage-out", "file"]).expect(0);
    let ran = served.run(&["stage-in", "--json", "file"]).expect(0);
    assert_eq!(object(&ran)["came"], 500_000, "{ran:?}");
    steps.past("1");
    steps.end();
    let mut wanted = content(1, 500_000);
    wanted[8192..8195].copy_from_slice(b"new");
    let before = served.site.status().count("missed_bytes");
    let (read, missed) = served.read("file");
    assert_same_bytes("file", &read, &wanted);
    assert_eq!(missed, before);
    served.down();
}

#[test]
fn a_file_that_was_changed_on_the_store_since_is_read_from_there() {
    for tier in ["ram", "nvme"] {
        let served = Served::new(&SLOW_STORE);
        let file = served.site.store.join("file");
        fs::write(&file, content(1, 1_000_000)).unwrap();
        served.run(&["stage-in", "--tier", tier, "file"]).expect(0);
        fs::write(&file, content(2, 1_000_000)).unwrap();
        let (read, missed) = served.read("file");
        assert_same_bytes("file", &read, &content(2, 1_000_000));
        assert!(missed > 0, "what was staged in is no content any more");
        // A stage-in notices it, too.
        fs::write(&file, content(3, 500_000)).unwrap();
        served.run(&["stage-in", "--tier", tier, "file"]).expect(0);
        let before = served.site.status().count("missed_bytes");
        let (read, missed) = served.read("file");
        assert_same_bytes("file", &read, &content(3, 500_000));
        assert_eq!(missed, before);
        served.down();
    }
}

#[test]
fn a_tier_that_is_too_small_says_so_and_displaces_nothing() {
    let served = Served::new(&Setup { flush: LAZY.flush, ..TINY });
    let steps = Steps::of(&served.site, "head -c 2000000 /dev/zero > dirty; step 1");
    steps.at("1");
    for (number, name) in ["one", "two"].iter().enumerate() {
        fs::write(served.site.store.join(name), content(number, 3_000_000)).unwrap();
    }
    let dirty = served.places("dirty");
    assert_eq!(dirty, [(Some("ram".to_owned()), 2_000_000)]);
    let ran = served.run(&["stage-in", "--tier", "ram", "one"]).expect(1);
    let there = served.bytes_in("ram", "one");
    assert!(there > 0 && there < 3_000_000, "{there}");
    assert!(ran.stderr.contains("one: tier ram is full"), "{ran:?}");
    assert!(ran.stderr.contains("came there; leave out --tier"), "{ran:?}");
    assert_eq!(served.places("dirty"), dirty);
    // Without a name the rest goes down.
    let ran = served.run(&["stage-in", "one"]).expect(0);
    assert!(ran.stderr.contains("tier ram is full; the rest goes to nvme"), "{ran:?}");
    assert_eq!(served.bytes_in("ram", "one"), there);
    assert_eq!(served.bytes_in("nvme", "one"), 3_000_000 - there);
    // And then there is no other tier.
    fs::write(served.site.store.join("large"), content(3, 9_000_000)).unwrap();
    let ran = served.run(&["stage-in", "two", "large"]).expect(1);
    assert!(ran.stderr.contains("large: tier nvme is full"), "{ran:?}");
    assert!(ran.stderr.contains("no lower tier is left"), "{ran:?}");
    assert_eq!(served.places("dirty"), dirty);
    let (read, _) = served.read("large");
    assert_same_bytes("large", &read, &content(3, 9_000_000));
    steps.past("1");
    steps.end();
    served.down();
}

/// Starts to stage a file in to a tier, which takes seconds, and waits until some of it is there.
fn begun(served: &Served, tier: &str) -> Running {
    fs::write(served.site.store.join("file"), content(1, 30_000_000)).unwrap();
    let running = served.site.start(served.site.forebay(&["stage-in", "--tier", tier, "file"]));
    wait_for("the first blocks", LONG, || (served.bytes_in(tier, "file") > 0).then_some(()));
    running
}

#[test]
fn the_end_of_the_node_manager_is_said() {
    for tier in ["ram", "nvme"] {
        let served = Served::new(&CRAWLING);
        let running = begun(&served, tier);
        kill(served.site.status().manager, Signal::KILL);
        let ran = running.end().expect(125);
        assert!(ran.stderr.contains("the node manager has ended"), "{ran:?}");
        assert!(ran.stderr.contains("forebay up"), "{ran:?}");
        assert!(ran.stderr.contains("file: given up before all of it was there"), "{ran:?}");
        // The next one goes on with what is there.
        served.run(&["up", "--config", served.site.config.to_str().unwrap()]).expect(0);
        fs::write(served.site.store.join("small"), content(2, 300_000)).unwrap();
        served.run(&["stage-in", "--tier", tier, "small", "file"]).expect(0);
        assert_eq!(served.bytes_in(tier, "file"), 30_000_000);
        let (read, missed) = served.read("file");
        assert_same_bytes("file", &read, &content(1, 30_000_000));
        assert_eq!(missed, 0);
        served.run(&["fsck"]).expect(0);
        served.down();
    }
}

#[test]
fn an_interrupt_leaves_what_is_staged_in() {
    let served = Served::new(&CRAWLING);
    let running = begun(&served, "ram");
    kill(running.pid(), Signal::INT);
    let ran = running.end().expect(130);
    assert!(ran.stderr.contains("interrupted; what is staged in stays"), "{ran:?}");
    assert!(ran.stderr.contains("file: interrupted before all of it was there"), "{ran:?}");
    let there = served.bytes_in("ram", "file");
    assert!(there > 0 && there < 30_000_000, "{there}");
    let (read, _) = served.read("file");
    assert_same_bytes("file", &read, &content(1, 30_000_000));
    served.down();
}

/// The process is reaped as one of a run is.
#[test]
fn a_killed_command_leaves_nothing_but_what_is_staged_in() {
    let served = Served::new(&CRAWLING);
    let running = begun(&served, "ram");
    kill(running.pid(), Signal::KILL);
    running.end().expect(137);
    let clients = || served.site.status().text.contains("clients  0").then_some(());
    wait_for("the end of the slot", LONG, clients);
    served.run(&["stage-out", "--drop", "file"]).expect(0);
    served.down();
}

#[test]
fn lists_have_names_of_any_bytes() {
    let served = Served::new(&SLOW_STORE);
    let names: [&[u8]; 3] = [b"two\nlines", b"not\xffutf-8", b" spaces "];
    let list = served.site.out.join("list");
    fs::write(&list, names.map(|name| [name, b"\0"].concat()).concat()).unwrap();
    for (number, name) in names.iter().enumerate() {
        let path = served.site.store.join(OsStr::from_bytes(name));
        fs::write(path, content(number, 10_000)).unwrap();
    }
    let input = fs::File::open(&list).unwrap();
    let words = ["stage-in", "-0", "--files-from", "-", "--json"];
    let ran = served.site.start_with(served.site.forebay(&words), input).end().expect(0);
    assert_eq!(object(&ran)["files"], 3);
    // As lines, the first is two names.
    fs::write(&list, [names[0], b"\n", names[1]].concat()).unwrap();
    let words = ["stage-in", "--files-from", list.to_str().unwrap(), "--json"];
    let ran = served.run(&words).expect(1);
    assert_eq!(object(&ran)["failed"].as_array().unwrap().len(), 2, "{ran:?}");
    assert!(ran.stderr.contains("two: No such file"), "{ran:?}");
    fs::write(&list, "a\0b").unwrap();
    let ran = served.run(&words).expect(125);
    assert!(ran.stderr.contains("with -0"), "{ran:?}");
    let ran = served.run(&["stage-in"]).expect(2);
    assert!(ran.stderr.contains("<PATH>"), "{ran:?}");
    let (read, missed) = served.read("two\nlines");
    assert_same_bytes("two\nlines", &read, &content(0, 10_000));
    assert_eq!(missed, 0);
    served.down();
}

#[test]
fn two_commands_at_once_bring_a_file_once() {
    let served = Served::new(&SLOW_STORE);
    fs::write(served.site.store.join("file"), content(1, 20_000_000)).unwrap();
    let words = ["stage-in", "--json", "file"];
    let both = [(); 2].map(|()| served.site.start(served.site.forebay(&words)));
    let came: u64 = both
        .into_iter()
        .map(|running| object(&running.end().expect(0))["came"].as_u64().unwrap())
        .sum();
    assert_eq!(came, 20_000_000);
    let (read, missed) = served.read("file");
    assert_same_bytes("file", &read, &content(1, 20_000_000));
    assert_eq!(missed, 0);
    served.down();
}

/// What another command's order has only claimed is not there: the node manager may be killed
/// before it comes.
#[test]
fn what_another_command_brings_is_waited_for() {
    for tier in ["ram", "nvme"] {
        let served = Served::new(&CRAWLING);
        fs::write(served.site.store.join("file"), content(1, 4_000_000)).unwrap();
        let words = ["stage-in", "--tier", tier, "file"];
        let restart = || {
            kill(served.site.status().manager, Signal::KILL);
            served.run(&["up", "--config", served.site.config.to_str().unwrap()]).expect(0);
        };
        let claimed = || {
            let explained = served.run(&["explain", "file"]).expect(0);
            explained.stdout.contains(tier).then_some(())
        };
        let first = served.site.start(served.site.forebay(&words));
        wait_for("the first claims", LONG, claimed);
        let second = served.site.start(served.site.forebay(&words));
        std::thread::sleep(Duration::from_millis(100));
        kill(served.site.status().manager, Signal::KILL);
        for ran in [first.end(), second.end()] {
            assert!(ran.expect(125).stderr.contains("the node manager has ended"));
        }
        served.run(&["up", "--config", served.site.config.to_str().unwrap()]).expect(0);
        served.run(&["stage-out", "--drop", "file"]).expect(0);
        let first = served.site.start(served.site.forebay(&words));
        wait_for("the first claims", LONG, claimed);
        served.run(&words).expect(0);
        restart();
        let (read, missed) = served.read("file");
        assert_same_bytes("file", &read, &content(1, 4_000_000));
        assert_eq!(missed, 0, "it was said to be there");
        first.end();
        served.down();
    }
}

#[test]
fn a_part_that_the_store_lacks_keeps_the_rest_of_its_block_out_and_is_named() {
    let served = Served::new(&LAZY);
    fs::write(served.site.store.join("file"), content(1, 500_000)).unwrap();
    let script = "printf new | dd of=file bs=1 seek=8192 conv=notrunc status=none; step 1";
    let steps = Steps::of(&served.site, script);
    steps.at("1");
    let ran = served.run(&["stage-in", "file"]).expect(1);
    assert!(ran.stderr.contains("file: a program has written a part of a block"), "{ran:?}");
    assert!(served.bytes_in("ram", "file") > 300_000, "the other blocks are there");
    served.run(&["stage-out", "file"]).expect(0);
    served.run(&["stage-in", "file"]).expect(0);
    assert_eq!(served.bytes_in("ram", "file"), 500_000);
    steps.past("1");
    steps.end();
    served.down();
}

#[test]
fn what_cannot_be_staged_in_is_named() {
    let served = Served::new(&USUAL);
    let store = &served.site.store;
    fs::create_dir(store.join("folder")).unwrap();
    fs::write(store.join("folder/file"), content(1, 10_000)).unwrap();
    symlink("..", store.join("folder/loop")).unwrap();
    symlink("nowhere", store.join("folder/dangling")).unwrap();
    symlink(served.site.plain.join("elsewhere"), store.join("folder/elsewhere")).unwrap();
    fs::write(served.site.plain.join("elsewhere"), "elsewhere").unwrap();
    let _listener = UnixListener::bind(store.join("folder/socket")).unwrap();
    let fifo = store.join("folder/fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    let ran = served.run(&["stage-in", ".", "missing", "/dev/null"]).expect(1);
    for wanted in [
        "folder/loop: it leads to a directory that it lies in",
        "folder/dangling: No such file or directory",
        "plain/elsewhere: no node manager of yours buffers it",
        "folder/socket: it is a socket",
        "folder/fifo: it is a FIFO",
        "missing: No such file or directory",
        "/dev/null: it is a device",
        "7 files not staged in",
    ] {
        assert!(ran.stderr.contains(wanted), "{wanted}: {ran:?}");
    }
    assert!(ran.stdout.starts_with("staged in 1 file (9.77 KiB): 9.77 KiB to ram"), "{ran:?}");
    let ran = served.run(&["stage-in", "--tier", "tape", "folder/file"]).expect(125);
    assert!(ran.stderr.contains("there is no such tier; there are: ram, nvme"), "{ran:?}");
    served.down();
}

#[test]
fn a_file_that_its_user_may_not_read_is_named() {
    let site = Site::new(&USUAL);
    if !site.share() {
        return;
    }
    for folder in [&site.store, &site.out, &site.nvme, &site.runtime()] {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for name in ["closed", "open"] {
        let path = site.store.join(name);
        fs::write(&path, content(1, 10_000)).unwrap();
        let mode = if name == "open" { 0o644 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |words: &[&str]| {
        let mut command = site.forebay(words);
        as_user(&mut command, NOBODY);
        site.end(command)
    };
    let config = site.config.to_str().unwrap();
    run(&["up", "--config", config]).expect(0);
    let ran = run(&["stage-in", "."]).expect(1);
    assert!(ran.stderr.contains("closed: Permission denied"), "{ran:?}");
    assert!(ran.stdout.starts_with("staged in 1 file"), "{ran:?}");
    run(&["down", "--config", config]).expect(0);
}

#[test]
fn without_a_node_manager_or_within_a_run_the_way_out_is_named() {
    let site = Site::new(&USUAL);
    fs::write(site.store.join("file"), content(1, 10_000)).unwrap();
    let ran = site.end(site.forebay(&["stage-in", "file"])).expect(1);
    assert!(ran.stderr.contains("`forebay up` starts one"), "{ran:?}");
    let (ran, _) = site.run_buffered("$FOREBAY stage-in file");
    let ran = ran.expect(125);
    assert!(ran.stderr.contains("cannot work under `forebay run`"), "{ran:?}");
    // Beside a run it can.
    let steps = Steps::of(&site, "step 1; cat file > /dev/null");
    steps.at("1");
    site.end(site.forebay(&["stage-in", "file"])).expect(0);
    steps.past("1");
    steps.end();
}

#[test]
fn in_the_background_it_goes_on_after_its_command() {
    let served = Served::new(&CRAWLING);
    fs::write(served.site.store.join("file"), content(1, 5_000_000)).unwrap();
    let ran = served.run(&["stage-in", "--no-wait", "file"]).expect(0);
    assert!(ran.stdout.contains("goes on in the background"), "{ran:?}");
    let is_there = || (served.bytes_in("ram", "file") == 5_000_000).then_some(());
    wait_for("all of it", LONG, is_there);
    served.down();
}

#[test]
fn stage_out_brings_files_to_the_store_and_drops_them() {
    let served = Served::new(&LAZY);
    let steps = Steps::of(
        &served.site,
        "mkdir d; head -c 3000000 /dev/zero | tr '\\0' x > d/written; step 1; cat d/written | cksum; step 2",
    );
    steps.at("1");
    let wanted = vec![b'x'; 3_000_000];
    fs::write(served.site.store.join("d/read"), content(1, 2_000_000)).unwrap();
    served.run(&["stage-in", "d/read"]).expect(0);
    let said = served.run(&["stage-out", "d"]).expect(0).stdout;
    assert_eq!(said, "staged out 1 file (2.86 MiB)\n");
    assert!(fs::read(served.site.store.join("d/written")).unwrap() == wanted);
    assert_eq!(served.bytes_in("ram", "d/written"), 3_000_000, "it stays without --drop");
    let said = served.run(&["stage-out", "--drop", "d"]).expect(0).stdout;
    assert_eq!(said, "staged out 0 files (0 B); dropped 2 files (4.77 MiB) from the tiers\n");
    for name in ["d/written", "d/read"] {
        assert_eq!(served.in_tiers(name), 0, "{name}");
    }
    let ran = served.run(&["stage-out", "--drop", "--json", "d"]).expect(0);
    assert_eq!(object(&ran)["dropped"]["files"], 0, "{ran:?}");
    steps.past("1");
    steps.at("2");
    steps.past("2");
    let cksum = served.site.run_plainly("head -c 3000000 /dev/zero | tr '\\0' x | cksum");
    assert_eq!(steps.end().stdout, cksum.stdout);
    served.down();
}

/// Which files are dropped is told by what they are, not by the names they were opened by.
#[test]
fn moved_files_are_dropped_and_others_are_not() {
    let served = Served::new(&USUAL);
    let store = &served.site.store;
    for folder in ["old", "other"] {
        fs::create_dir(store.join(folder)).unwrap();
    }
    for (number, name) in ["old/one", "old/two", "other/moved", "other/replaced"].iter().enumerate()
    {
        fs::write(store.join(name), content(number, 300_000)).unwrap();
    }
    served.run(&["stage-in", "old", "other"]).expect(0);
    fs::rename(store.join("old"), store.join("new")).unwrap();
    fs::rename(store.join("other/moved"), store.join("other/elsewhere")).unwrap();
    // What is left of it is no file of any directory.
    let replaced = fs::File::open(store.join("other/replaced")).unwrap();
    fs::write(store.join("next"), content(5, 200_000)).unwrap();
    fs::rename(store.join("next"), store.join("other/replaced")).unwrap();
    symlink("nowhere", store.join("new/dangling")).unwrap();
    symlink("two", store.join("new/link")).unwrap();
    let ran = served.run(&["stage-out", "--drop", "--json", "new"]).expect(0);
    let said = object(&ran);
    assert_eq!(said["dropped"]["files"], 2, "{said}");
    assert_eq!(said["dropped"]["bytes"], 600_000, "{said}");
    assert_eq!(served.in_tiers("new/one"), 0);
    assert_eq!(served.bytes_in("ram", "other/elsewhere"), 300_000, "it was not named");
    served.run(&["stage-in", "other/replaced"]).expect(0);
    let said = object(&served.run(&["stage-out", "--drop", "--json", "other"]).expect(0));
    assert_eq!(said["dropped"]["bytes"], 500_000, "{said}");
    assert_eq!(served.in_tiers("other/replaced"), 0);
    drop(replaced);
    served.down();
}

#[test]
fn what_the_store_refuses_is_not_counted_as_staged_out() {
    let (served, faults) = with_failing_store("write");
    let steps = Steps::of(&served.site, "echo one > one; head -c 5000 /dev/zero > two; step 1");
    steps.at("1");
    let said = object(&served.run(&["stage-out", "--json", "one", "two"]).expect(1));
    assert_eq!((&said["files"], &said["bytes"]), (&0.into(), &0.into()), "{said}");
    assert_eq!(said["errors"].as_array().unwrap().len(), 2, "{said}");
    mend(&faults);
    let said = object(&served.run(&["stage-out", "--json", "one", "two"]).expect(0));
    assert_eq!((&said["files"], &said["bytes"]), (&2.into(), &5_004.into()), "{said}");
    steps.past("1");
    steps.end();
    served.down();
}

#[test]
fn what_the_store_refuses_has_no_estimate() {
    let (served, faults) = with_failing_store("write");
    let steps =
        Steps::of(&served.site, "echo one > one; step 1; head -c 2M /dev/zero > two; step 2");
    let look = || -> (String, Value) {
        let text = served.run(&["status"]).expect(0).stdout;
        let said = served.run(&["status", "--json"]).expect(0).stdout;
        (text, serde_json::from_str::<Value>(&said).unwrap()[0]["unsafe"].take())
    };
    steps.at("1");
    let (text, said) = look();
    assert!(text.contains("of 1 file, which the store takes in "), "{text}");
    assert!(said["refused"] == 0 && said["drain_seconds"].is_f64(), "{said}");
    served.run(&["flush", "one"]).expect(1);
    let (text, said) = look();
    assert!(text.contains("of 1 file, which wait for the store: it refuses them"), "{text}");
    assert!(said["refused"] == said["bytes"] && said["drain_seconds"].is_null(), "{said}");
    steps.past("1");
    steps.at("2");
    let (text, said) = look();
    assert!(
        text.contains(" wait for the store, which refuses them, and takes the others"),
        "{text}"
    );
    assert!(said["drain_seconds"].is_f64(), "{said}");
    let metrics = served.run(&["metrics"]).expect(0).stdout;
    let refused = metrics.lines().find(|line| line.starts_with("forebay_refused_bytes{")).unwrap();
    assert!(refused.ends_with(&format!(" {}", said["refused"])), "{refused} {said}");
    mend(&faults);
    steps.past("2");
    steps.end();
    served.down();
}

#[test]
fn a_command_that_cannot_begin_prints_its_object_too() {
    let site = Site::new(&USUAL);
    let words = ["stage-in", "--json", "--files-from", "missing"];
    let ran = site.end(site.forebay(&words)).expect(125);
    let said = object(&ran);
    assert!(said["errors"][0].as_str().unwrap().contains("missing"), "{said}");
}

/// A service whose store fails in this direction, until [`mend`].
fn with_failing_store(direction: &str) -> (Served, tempfile::TempDir) {
    let faults = tempfile::tempdir().unwrap();
    let (script, flag) = (faults.path().join("script"), faults.path().join("flag"));
    fs::write(&flag, "").unwrap();
    fs::write(&script, format!("store {direction} fail EIO while {}", flag.display())).unwrap();
    let served = Served::with(&LAZY, |up| {
        up.env("FOREBAY_FAULTS", &script);
    });
    (served, faults)
}

fn mend(faults: &tempfile::TempDir) {
    fs::remove_file(faults.path().join("flag")).unwrap();
}

#[test]
fn errors_of_the_store_are_named_for_each_file() {
    for direction in ["write", "read"] {
        let (served, faults) = with_failing_store(direction);
        fs::write(served.site.store.join("file"), content(1, 1_000_000)).unwrap();
        if direction == "read" {
            let ran = served.run(&["stage-in", "file"]).expect(1);
            assert!(ran.stderr.contains("file: reading it from the store: Input"), "{ran:?}");
            assert_eq!(served.places("file"), [(None, 1_000_000)]);
            mend(&faults);
            served.run(&["stage-in", "file"]).expect(0);
        } else {
            let steps = Steps::of(&served.site, "echo one > one; echo two > two; step 1");
            steps.at("1");
            let ran = served.run(&["stage-out", "--drop", "one", "two", "file"]).expect(1);
            for name in ["one", "two"] {
                assert!(ran.stderr.contains(&format!("{name}: Input/output error")), "{ran:?}");
                assert_eq!(served.bytes_in("ram", name), 4, "what only the tiers have stays");
            }
            mend(&faults);
            served.run(&["stage-out", "--drop", "one", "two"]).expect(0);
            assert_eq!(fs::read(served.site.store.join("two")).unwrap(), b"two\n");
            steps.past("1");
            steps.end();
        }
        served.down();
    }
}
