//! Buffering modes: what a process without Forebay sees of each, what ends with a run, and what is
//! set aside for one.

use crate::harness::{
    self, LAZY, LONG, Setup, Site, Steps, TINY, USUAL, becomes, descendants, have, is_alive, kill,
    sees, wait_for,
};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Everything is flushed as soon as may be.
const EAGER: Setup = Setup { flush: "trigger = \"periodic\"\nperiod = \"20ms\"", ..USUAL };

/// Adds to the configuration of a site.
fn add(site: &Site, text: &str) {
    let before = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("{before}{text}")).unwrap();
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn names(site: &Site) -> Vec<String> {
    let entries = fs::read_dir(&site.store).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn gone(path: &Path) {
    wait_for("a file's end", LONG, || (!exists(path)).then_some(()));
}

/// Parts of a file that `forebay explain` finds in a place.
fn parts_in(site: &Site, file: &str, place: &str) -> usize {
    let said = site.end(site.forebay(&["explain", "--all", file])).expect(0).stdout;
    let lies = said.split("new data").next().unwrap();
    let parts = lies.lines().filter(|line| line.contains(" .. "));
    let lies_there = |line: &&str| {
        let behind = line.split(" .. ").nth(1).unwrap();
        behind.split_whitespace().nth(1) == Some(place)
    };
    parts.filter(lies_there).count()
}

/// A node manager that goes on without a run.
fn serve(site: &Site) -> harness::Running {
    // An earlier run's may be ending.
    wait_for("quiet", LONG, || site.processes().is_empty().then_some(()));
    let manager = site.start(site.forebay(&["node", "--config", site.config.to_str().unwrap()]));
    wait_for("the node manager", LONG, || manager.stderr().contains("serving").then_some(()));
    manager
}

fn stop(site: &Site, manager: harness::Running) {
    site.end(site.forebay(&["stop", "--config", site.config.to_str().unwrap()])).expect(0);
    manager.end().expect(0);
}

#[test]
fn scratch_files_never_reach_the_store_and_end_with_their_run() {
    let site = Site::new(&EAGER);
    add(&site, "[[rule]]\npath = \"kept\"\nmode = \"async\"\n");
    let script = "seq 100000 > file; python3 - <<'E'
import os
fd = os.open('synced', os.O_CREAT | os.O_WRONLY | os.O_SYNC)
os.write(fd, b'text'); os.fsync(fd); os.fdatasync(fd); os.sync()
E
        mkdir -p folder; env -i /bin/bash -c 'echo clean > folder/environment'; echo kept > kept; step 1
        seq 100000 | cmp - file; cat synced folder/environment; step 2";
    let steps = Steps::with(&site, &["--mode", "scratch"], script);
    // Flushes go through all files: what comes last has gone, so what came first will not.
    steps.at("1");
    becomes(&site.store.join("kept"), "kept\n");
    site.end(site.forebay(&["flush", "."])).expect(0);
    site.end(site.forebay(&["wait", "file"])).expect(0);
    for name in ["file", "synced", "folder/environment"] {
        assert_eq!(sees(&site.store.join(name)), "", "{name}");
    }
    let status = site.status();
    status.assert_live();
    assert!(status.text.contains("mode scratch, 3 scratch files"), "{}", status.text);
    assert!(status.text.contains("scratch  "), "{}", status.text);
    assert!(!status.text.contains("  ahead  "), "{}", status.text);
    let said = site.end(site.forebay(&["explain", "file"])).expect(0).stdout;
    assert!(said.contains("mode scratch of job"), "{said}");
    steps.past("1");
    steps.at("2");
    steps.past("2");
    assert_eq!(steps.end().stdout, "textclean\n");
    assert_eq!(names(&site), ["folder", "kept"]);
    assert_eq!(fs::read_dir(site.store.join("folder")).unwrap().count(), 0);
    assert_eq!(sees(&site.store.join("kept")), "kept\n");
}

#[test]
fn what_was_there_before_is_nobodys_scratch() {
    let site = Site::new(&LAZY);
    for name in ["read", "appended", "cut", "replaced"] {
        fs::write(site.store.join(name), "before\n").unwrap();
    }
    fs::write(site.store.join("empty"), "").unwrap();
    let script = "cat read; echo more >> appended; echo new > cut; echo text > empty
        echo scratch > own; echo again > own; cat own; echo late > made; mv made replaced; ls";
    let steps = Steps::with(&site, &["--mode", "scratch"], script);
    let said = steps.end().stdout;
    assert_eq!(said, "before\nagain\nappended\ncut\nempty\nown\nread\nreplaced\n");
    assert_eq!(names(&site), ["appended", "cut", "empty", "read"]);
    assert_eq!(sees(&site.store.join("appended")), "before\nmore\n");
    assert_eq!(sees(&site.store.join("cut")), "new\n");
    assert_eq!(sees(&site.store.join("empty")), "text\n");
}

#[test]
fn a_scratch_file_that_gets_a_lasting_name_is_kept() {
    let site = Site::new(&LAZY);
    add(&site, "[[rule]]\npath = \"tmp/**\"\nmode = \"scratch\"\n");
    let outside = site.plain.to_str().unwrap();
    let script = format!(
        "mkdir tmp; for name in a b c d e f; do seq 50000 > tmp/$name; done
         mv tmp/a result; mv tmp/b tmp/other; ln tmp/c linked; mv tmp/d {outside}/moved
         mv tmp tmp2; mkdir tmp; mv tmp2/e tmp; exec 3> tmp/open; rm tmp/open; echo x >&3"
    );
    Steps::of(&site, &script).end();
    let wanted: String = (1..=50_000).map(|line| format!("{line}\n")).collect();
    for kept in [site.store.join("result"), site.store.join("linked"), site.plain.join("moved")] {
        assert!(sees(&kept) == wanted, "{}", kept.display());
    }
    // A folder that was moved is seen when its files are looked for.
    assert!(sees(&site.store.join("tmp2/f")) == wanted);
    assert_eq!(fs::read_dir(site.store.join("tmp")).unwrap().count(), 0);
}

#[test]
fn scratch_files_are_used_like_others() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let is_static = site.compile("unmanaged.c", &["-static"]);
    let script = "import os, mmap, subprocess, sys
fd = os.open('file', os.O_CREAT | os.O_RDWR)
os.write(fd, b'x' * 300000); os.ftruncate(fd, 200000); os.ftruncate(fd, 400000)
assert os.pread(fd, 400001, 0) == b'x' * 200000 + bytes(200000)
os.rename('file', 'renamed'); assert os.stat('renamed').st_size == 400000
shared = mmap.mmap(fd, 400000); shared[0] = 121; shared[399999] = 122
assert os.pread(fd, 2, 0) == b'yx' and os.pread(fd, 9, 399999) == b'z'
os.pwrite(fd, b'w', 1); assert shared[1] == 119
shared.close(); os.close(fd)
other = os.open('other', os.O_CREAT | os.O_RDWR); os.write(other, b'o' * 500000); os.unlink('other')
assert os.pread(other, 9, 499999) == b'o'
with open('text', 'w') as text: text.write('for the kernel')
with open('program', 'w') as program: program.write('#!/bin/sh\\necho runs\\n')
os.chmod('program', 0o755); print(subprocess.check_output('./program').decode(), end='')
if len(sys.argv) > 1: print(subprocess.check_output([sys.argv[1], 'text']).decode())";
    let program = site.root().join("unmanaged");
    let mut words = vec!["run", "--config", site.config.to_str().unwrap(), "--mode", "scratch"];
    words.extend(["--", "python3", "-c", script]);
    if is_static {
        words.push(program.to_str().unwrap());
    }
    let said = site.end(site.forebay(&words)).expect(0).stdout;
    assert_eq!(said, if is_static { "runs\nfor the kernel\n" } else { "runs\n" });
    assert_eq!(names(&site), [""; 0]);
}

#[test]
fn what_does_not_fit_lies_on_the_store_meanwhile() {
    let site = Site::new(&TINY);
    let script = "head -c 30000000 /dev/zero | tr '\\0' x > file; md5sum < file > $OUT/first; step 1
        md5sum < file | cmp - $OUT/first && head -c 30000000 /dev/zero | tr '\\0' x | md5sum | cmp - $OUT/first";
    let steps = Steps::with(&site, &["--mode", "scratch"], script);
    steps.at("1");
    let taken = fs::metadata(site.store.join("file")).unwrap().blocks() * 512;
    assert!(taken >= 15_000_000, "something had to go: {taken}");
    steps.past("1");
    steps.end();
    assert_eq!(names(&site), [""; 0]);
}

#[test]
fn two_runs_end_with_their_own_files() {
    let site = Site::new(&USUAL);
    let manager = serve(&site);
    let script = |name: &str| {
        format!("echo {name} > {name}; step {name}; cat {name}; step {name}-late; cat {name}")
    };
    let one = Steps::with(&site, &["--mode", "scratch"], &script("one"));
    let two = Steps::with(&site, &["--mode", "scratch"], &script("two"));
    one.at("one");
    two.at("two");
    one.past("one");
    one.past("one-late");
    one.end();
    assert_eq!(names(&site), ["two"]);
    two.past("two");
    two.at("two-late");
    // A process that is left behind keeps its run's files until it ends.
    let left = "echo three > three; (step three; cat three > $OUT/late) & :";
    let mut three = Steps::with(&site, &["--mode", "scratch"], left);
    three.at("three");
    wait_for("its end", LONG, || (!three.running.is_running()).then_some(()));
    assert_eq!(names(&site), ["three", "two"]);
    three.past("three");
    gone(&site.store.join("three"));
    becomes(&site.out.join("late"), "three\n");
    three.end();
    two.past("two-late");
    assert_eq!(two.end().stdout, "two\ntwo\n");
    assert_eq!(names(&site), [""; 0]);
    stop(&site, manager);
}

#[test]
fn scratch_files_end_whichever_process_is_killed() {
    let site = Site::new(&EAGER);
    add(&site, "[[rule]]\npath = \"kept\"\ntrigger = \"on-exit\"\nmode = \"async\"\n");
    let script =
        "echo kept > kept; seq 100000 > file; echo $$ > $OUT/pid; step 1; seq 100000 | cmp - file";
    let begin = || {
        for name in ["at-1", "past-1", "pid"] {
            let _ = fs::remove_file(site.out.join(name));
        }
        let _ = fs::remove_file(site.store.join("kept"));
        let options = ["--mode", "scratch", "--reserve", "2MiB"];
        let steps = Steps::with(&site, &options, script);
        steps.at("1");
        steps
    };
    let assert_drained = || {
        assert_eq!(names(&site), ["kept"]);
        assert_eq!(sees(&site.store.join("kept")), "kept\n");
    };

    // The program, after what it has started: that would be a program that goes on.
    let steps = begin();
    let shell = sees(&site.out.join("pid")).trim().parse().unwrap();
    kill(shell, Signal::STOP);
    let stat = PathBuf::from(format!("/proc/{shell}/stat"));
    wait_for("its stop", LONG, || sees(&stat).contains(") T ").then_some(()));
    for &child in &descendants(shell)[1..] {
        kill(child, Signal::KILL);
        wait_for("its end", LONG, || (!is_alive(child)).then_some(()));
    }
    kill(shell, Signal::KILL);
    steps.running.end().expect(137);
    assert_drained();

    // The run: its program goes on, and then all is drained and deleted.
    let steps = begin();
    kill(steps.running.pid(), Signal::KILL);
    steps.past("1");
    let _ = steps.running.end();
    gone(&site.store.join("file"));
    becomes(&site.store.join("kept"), "kept\n");
    wait_for("its manager's end", LONG, || site.processes().is_empty().then_some(()));

    // The node manager: the run starts another.
    let steps = begin();
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    wait_for("its end", LONG, || (!is_alive(manager)).then_some(()));
    let next = || Some(site.status()).filter(|status| ![0, manager].contains(&status.manager));
    let shown = wait_for("the next one", LONG, next).text;
    assert!(shown.contains("of 2.00 MiB reserved used"), "{shown}");
    steps.past("1");
    steps.end();
    assert_drained();

    // Everything.
    let steps = begin();
    site.kill_all();
    let _ = steps.running.end();
    assert_eq!(names(&site), ["file", "kept"]);
    let said = site.recover().expect(0);
    assert!(!said.stderr.contains("/file"), "{said:?}");
    assert_drained();
}

#[test]
fn a_reservation_that_cannot_be_met_is_refused() {
    let site = Site::new(&TINY);
    let config = site.config.to_str().unwrap();
    let run = |size: &str| {
        let words = ["run", "--config", config, "--reserve", size, "--", "touch", "begun"];
        site.end(site.forebay(&words))
    };
    let said = run("1GiB").expect(125);
    assert!(
        said.stderr.contains("1.00 GiB cannot be reserved; 11.00 MiB could be now"),
        "{said:?}"
    );
    assert!(run("much").expect(125).stderr.contains("4GiB"));
    assert!(!exists(&site.store.join("begun")));
    // Another's counts.
    let manager = serve(&site);
    let steps = Steps::with(&site, &["--reserve", "8MiB"], "step 1");
    steps.at("1");
    let said = run("4MiB").expect(125);
    assert!(said.stderr.contains("3.00 MiB could be now"), "{said:?}");
    let shown = site.status().text;
    assert!(shown.contains("0 B of 8.00 MiB reserved used"), "{shown}");
    // It is free again when its run was killed, and its program has ended.
    kill(steps.running.pid(), Signal::KILL);
    steps.past("1");
    let _ = steps.running.end();
    let free = || (!site.status().text.contains("reserved")).then_some(());
    wait_for("its reservation's end", LONG, free);
    run("11MiB").expect(0);
    stop(&site, manager);
    // A rule's counts for each run; the command line's goes before it.
    add(&site, "[[rule]]\npath = \"big/**\"\nmode = \"scratch\"\nreserve = \"1GiB\"\n");
    run("11MiB").expect(0);
    let words = ["run", "--config", config, "--", "true"];
    assert!(site.end(site.forebay(&words)).expect(125).stderr.contains("1.00 GiB cannot"));
}

#[test]
fn what_is_reserved_holds_under_pressure() {
    let site = Site::new(&TINY);
    add(&site, "[[rule]]\npath = \"mine/**\"\nmode = \"scratch\"\nreserve = \"6MiB\"\n");
    fs::create_dir(site.store.join("mine")).unwrap();
    let manager = serve(&site);
    let script = "head -c 5000000 /dev/zero | tr '\\0' x > mine/file; md5sum < mine/file > $OUT/first; step 1
        md5sum < mine/file | cmp - $OUT/first; step 2; head -c 20000000 /dev/zero | tr '\\0' y > mine/larger
        md5sum < mine/file | cmp - $OUT/first; head -c 20000000 /dev/zero | tr '\\0' y | cmp - mine/larger";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let shown = site.status().text;
    assert!(shown.contains("5.00 MiB of 6.00 MiB reserved used"), "{shown}");
    // Three times as much as all tiers together, with a reservation too small for it.
    let other = "head -c 40000000 /dev/zero | tr '\\0' o > other; head -c 40000000 /dev/zero | tr '\\0' o | cmp - other";
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--reserve", "1MiB", "--", "bash", "-c", other];
    site.end(site.forebay(&words)).expect(0);
    assert_eq!(parts_in(&site, "mine/file", "store"), 0);
    assert!(!site.status().text.contains("1.00 MiB reserved used"));
    steps.past("1");
    steps.at("2");
    assert_eq!(fs::metadata(site.store.join("mine/file")).unwrap().len(), 0);
    steps.past("2");
    steps.end();
    assert_eq!(names(&site), ["mine", "other"]);
    assert_eq!(fs::read_dir(site.store.join("mine")).unwrap().count(), 0);
    assert_eq!(fs::metadata(site.store.join("other")).unwrap().len(), 40_000_000);
    stop(&site, manager);
}

#[test]
fn modes_and_triggers_hold_from_the_command_line() {
    let site = Site::new(&LAZY);
    add(&site, "[[rule]]\npath = \"ruled\"\nmode = \"async\"\ntrigger = \"on-exit\"\n");
    let (file, ruled) = (site.store.join("file"), site.store.join("ruled"));
    let script = "exec 3> file; echo text >&3; echo text > ruled; step 1; exec 3>&-; step 2";
    for (options, at_write, at_close) in [
        (["--mode", "sync"], true, true),
        (["--mode", "bypass"], true, true),
        (["--mode", "async"], false, false),
        (["--trigger", "on-exit"], false, false),
        (["--trigger", "per-file"], false, true),
        (["--trigger", "per-operation"], true, true),
        (["--trigger", "periodic"], true, true),
    ] {
        for name in ["at-1", "past-1", "at-2", "past-2"] {
            let _ = fs::remove_file(site.out.join(name));
        }
        let steps = Steps::with(&site, &options, script);
        steps.at("1");
        match at_write {
            // A write that is acknowledged when the store has it.
            true if options[0] == "--mode" => assert_eq!(sees(&file), "text\n", "{options:?}"),
            true => becomes(&file, "text\n"),
            false => assert_eq!(sees(&file), "", "{options:?}"),
        }
        assert_eq!(sees(&ruled), "", "a rule goes before {options:?}");
        steps.past("1");
        if at_close {
            becomes(&file, "text\n");
        }
        steps.at("2");
        if !at_close {
            assert_eq!(sees(&file), "", "{options:?}");
        }
        steps.past("2");
        steps.end();
        for path in [&file, &ruled] {
            assert_eq!(sees(path), "text\n", "{options:?}");
            fs::remove_file(path).unwrap();
        }
    }
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--mode", "slow", "--", "true"];
    assert!(site.end(site.forebay(&words)).expect(125).stderr.contains("scratch"));
}

#[test]
fn a_directory_has_a_mode() {
    let site = Site::new(&LAZY);
    let text = fs::read_to_string(&site.config).unwrap();
    let with = |mode: &str| {
        let mode = format!("path = \"store\"\nmode = \"{mode}\"");
        fs::write(&site.config, text.replacen("path = \"store\"", &mode, 1)).unwrap();
    };
    with("sync");
    let steps = Steps::of(&site, "exec 3> file; echo text >&3; step 1");
    steps.at("1");
    assert_eq!(sees(&site.store.join("file")), "text\n");
    site.status().assert_live();
    steps.past("1");
    steps.end();
    with("scratch");
    add(&site, "[[rule]]\npath = \"kept\"\nmode = \"async\"\n");
    let steps = Steps::of(&site, "echo text > scratch; echo text > kept; step 2");
    steps.at("2");
    assert!(exists(&site.store.join("scratch")));
    steps.past("2");
    steps.end();
    assert_eq!(names(&site), ["file", "kept"]);
    assert_eq!(sees(&site.store.join("kept")), "text\n");
}

#[test]
fn no_block_stays_dirty_for_longer_than_it_may() {
    let flush = "trigger = \"periodic\"\nperiod = \"1min\"\nmax_age = \"300ms\"";
    let site = Site::new(&Setup { flush, ..USUAL });
    // Written all the time, so that it never rests for a period.
    let script = "exec 3<> file; while [ ! -e $OUT/enough ]; do echo text >&3; done; step 1";
    let steps = Steps::of(&site, script);
    let there = || sees(&site.store.join("file")).starts_with("text\n").then_some(());
    wait_for("its bytes", LONG, there);
    fs::write(site.out.join("enough"), "").unwrap();
    steps.at("1");
    steps.past("1");
    steps.end();
}

#[test]
fn versions_and_what_was_read_and_what_is_old_go() {
    let site = Site::new(&LAZY);
    add(
        &site,
        "[[rule]]\npath = \"ckpt.*\"\nmode = \"scratch\"\nkeep_versions = 2\n\
         [[rule]]\npath = \"once.*\"\nmode = \"scratch\"\noverwrite_when_read = true\n\
         [[rule]]\npath = \"old.*\"\nmode = \"scratch\"\nexpires = \"300ms\"\n\
         [[rule]]\npath = \"last.*\"\nmode = \"async\"\nkeep_versions = 1\n",
    );
    let script = "for n in 1 2 3 4 5; do seq $n 20000 > ckpt.$n; done
        seq 20000 > once.1; read line < once.1; seq 20000 > once.2; cat once.2 > /dev/null
        exec 3> old.open; echo text >&3; seq 20000 > old.1; step 1
        seq 4 20000 | cmp - ckpt.4; seq 5 20000 | cmp - ckpt.5; seq 20000 | cmp - once.1; exec 3>&-; step 2
        for n in 1 2 3; do seq $n 20000 > last.$n; done; sync; step 3
        for n in 1 2 3; do seq $n 20000 | cmp - last.$n; done";
    let steps = Steps::of(&site, script);
    steps.at("1");
    for name in ["ckpt.1", "ckpt.2", "ckpt.3", "once.2", "old.1"] {
        gone(&site.store.join(name));
    }
    assert_eq!(names(&site), ["ckpt.4", "ckpt.5", "old.open", "once.1"]);
    let said = site.end(site.forebay(&["explain", "ckpt.4"])).expect(0).stdout;
    assert!(said.contains("mode scratch") && said.contains("keep-versions 2"), "{said}");
    steps.past("1");
    steps.at("2");
    gone(&site.store.join("old.open"));
    steps.past("2");
    steps.at("3");
    // Of files that stay only the buffers go.
    let buffered = |name: &str| parts_in(&site, name, "ram") + parts_in(&site, name, "nvme");
    for name in ["last.1", "last.2"] {
        wait_for("the end of buffers", LONG, || (buffered(name) == 0).then_some(()));
    }
    assert_eq!(parts_in(&site, "last.3", "store"), 0);
    steps.past("3");
    steps.end();
    assert_eq!(names(&site), ["last.1", "last.2", "last.3"]);
}

#[test]
fn all_names_of_a_scratch_file_go_in_whichever_directory_they_are() {
    let site = Site::new(&USUAL);
    fs::create_dir(site.root().join("second")).unwrap();
    add(&site, "[[backing]]\npath = \"second\"\n");
    let script = "seq 9 > linked; ln linked ../second/linked; seq 9 > moved; mv moved ../second
        seq 9 > unseen; step 1";
    let steps = Steps::with(&site, &["--mode", "scratch"], script);
    steps.at("1");
    // The next manager has no descriptors that would tell.
    let manager = site.status().manager;
    kill(manager, Signal::KILL);
    let second = site.root().join("second");
    fs::rename(site.store.join("unseen"), second.join("unseen")).unwrap();
    steps.past("1");
    steps.end();
    assert_eq!(names(&site), [""; 0]);
    assert_eq!(fs::read_dir(second).unwrap().count(), 0);
}

#[test]
fn only_what_looks_like_a_program_is_on_the_store_when_it_is_closed() {
    let site = Site::new(&LAZY);
    let script = "for name in data script library late; do install -m 755 /dev/null $name; done
        head -c 300000 /dev/zero | tr '\\0' x > data
        printf '#!/bin/sh\\necho runs\\n' > script
        { printf '\\177ELF'; head -c 300000 /dev/zero; } > library
        chmod -x late; printf '#!/bin/sh\\necho late\\n' > late; chmod +x late
        head -c 200000 /dev/zero > turned; chmod +x turned; step 1
        printf '#!' | dd of=data conv=notrunc status=none; step 2";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let room = |name: &str| fs::metadata(site.store.join(name)).unwrap().blocks();
    assert_eq!(room("data"), 0);
    assert!(fs::read(site.store.join("library")).unwrap().starts_with(b"\x7fELF\0"));
    assert_eq!(fs::metadata(site.store.join("turned")).unwrap().len(), 200_000);
    // By the kernel, without Forebay.
    for (name, says) in [("script", "runs\n"), ("late", "late\n")] {
        let ran = std::process::Command::new(site.store.join(name)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), says);
    }
    steps.past("1");
    steps.at("2");
    // It is one since it has another beginning.
    assert!(fs::read(site.store.join("data")).unwrap().starts_with(b"#!xxx"));
    steps.past("2");
    steps.end();
}
