//! Files that are replaced by an encoded form of themselves: programs find the original bytes,
//! whatever they do with them, and whatever is killed meanwhile.

use crate::harness::{EAGER, LONG, Site, Steps, have, kill, wait_for};
use rustix::fs::FileType;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const BYTES: usize = (3 << 20) + 123;

/// Bytes that become a few percent of what they are, and are none twice in a row.
fn content(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| ((at >> 6) as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn mark(file: &Path) -> Option<String> {
    let mut text = [0u8; 256];
    let length = rustix::fs::getxattr(file, "user.forebay.encoded", &mut text[..]).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// A site with files of that content on its store, made without Forebay.
fn site(names: &[&str]) -> Site {
    let site = Site::new(&EAGER);
    for name in names {
        fs::write(site.store.join(name), content(1)).unwrap();
        fs::write(site.plain.join(name), content(1)).unwrap();
    }
    site
}

/// Whether it is encoded, and what it looks like from outside is as before.
fn assert_encoded(file: &Path, magic: &[u8]) {
    let found = fs::metadata(file).unwrap();
    assert!(mark(file).is_some(), "no mark: {}", file.display());
    assert_eq!(found.len(), BYTES as u64);
    assert!(found.blocks() * 512 < found.len() / 4, "{} blocks", found.blocks());
    assert!(fs::read(file).unwrap().starts_with(magic));
}

/// Nothing is left beside the files of a store.
fn assert_tidy(site: &Site) {
    let folder = site.store.join(".forebay-encoded");
    wait_for("an empty store folder", LONG, || (!folder.exists()).then_some(()));
}

/// Replaces files while a run goes on.
fn replace(site: &Site, words: &[&str]) -> String {
    let said = site.end(site.forebay(&[&["replace"], words].concat())).expect(0).stdout;
    assert!(said.contains(":1)"), "{said}");
    said
}

/// Runs `script` on files that were replaced in a run before, and compares with plain files.
fn same_after_replace(names: &[&str], form: &str, script: &str) -> Site {
    let site = site(names);
    let steps = Steps::of(&site, "step 1");
    steps.at("1");
    replace(&site, &[&["--with", form], names].concat());
    for name in names {
        assert!(mark(&site.store.join(name)).is_some());
    }
    steps.past("1");
    steps.end();
    site.same(script);
    assert_tidy(&site);
    site
}

#[test]
fn a_replaced_file_is_what_it_was_to_programs_and_small_on_the_store() {
    for (form, magic) in
        [("zstd", &b"\x28\xb5\x2f\xfd"[..]), ("lz4", b"\x04\x22\x4d\x18"), ("dedup", b"FBYDEDUP")]
    {
        let site = Site::new(&EAGER);
        let input = site.out.join("input");
        fs::write(&input, content(3)).unwrap();
        let script = format!(
            "cat {0} > file; touch -d @1000000000.5 file; step 1; \
            cmp file {0} && stat -c '%s %Y' file; step 2; cmp file {0}",
            input.display()
        );
        let steps = Steps::of(&site, &script);
        steps.at("1");
        let file = site.store.join("file");
        let before = fs::metadata(&file).unwrap();
        let said = replace(&site, &["--with", form, "file"]);
        assert!(said.starts_with(&format!("file: {form}, 3.0")), "{said}");
        assert_encoded(&file, magic);
        assert_tidy(&site);
        let after = fs::metadata(&file).unwrap();
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), 500_000_000));
        assert!(mark(&file).unwrap().starts_with(&format!("1 {form} original {BYTES} ")));
        let explained = site.end(site.forebay(&["explain", "file"])).expect(0).stdout;
        assert!(explained.contains(&format!("encoded   {form}, ")), "{explained}");
        // It is what it is already.
        let again = site.end(site.forebay(&["replace", "file"])).expect(1).stderr;
        assert!(again.contains("encoded already"), "{again}");
        steps.past("1");
        steps.at("2");
        assert_eq!(mark(&file), None);
        assert!(fs::read(&file).unwrap() == content(3));
        let said = site.end(site.forebay(&["restore", "file"])).expect(0).stdout;
        assert_eq!(said, "file: is not encoded\n");
        steps.past("2");
        assert_eq!(steps.end().stdout, format!("{BYTES} 1000000000\n"));
        assert_tidy(&site);
    }
}

#[test]
fn whatever_a_program_does_with_a_replaced_file_is_as_with_the_original() {
    const NAMES: [&str; 12] = [
        "read", "parts", "append", "inside", "cut", "empty", "moved", "gone", "map", "exec",
        "linked", "end",
    ];
    let script = "md5sum read
        dd if=parts bs=1000 skip=1234 count=3 status=none | md5sum
        tail -c 100 end | md5sum
        echo text >> append; md5sum append
        printf inside | dd of=inside bs=1 seek=2000000 conv=notrunc status=none
        truncate -s 100000 cut; md5sum cut
        echo other > empty; cat empty
        mv moved there; md5sum there
        rm gone
        chmod +x exec; ls -l exec | cut -c -10
        ln linked second; md5sum second; echo more >> linked
        python3 -c \"
import mmap, os, hashlib
f = os.open('map', os.O_RDWR)
m = mmap.mmap(f, 0)
print(hashlib.md5(m[:]).hexdigest())
m[5:9] = b'four'
m.flush()
\"
        md5sum inside map";
    let site = same_after_replace(&NAMES, "zstd", script);
    // Not looked at by the script, but by the comparison with the plain directory.
    assert_eq!(mark(&site.store.join("inside")), None);
}

#[test]
fn a_program_that_is_replaced_before_it_may_be_executed_runs() {
    let site = Site::new(&EAGER);
    // A script is refused, whatever its mode.
    let text = format!("#!/bin/sh\necho runs\nexit\n{}", "# padding\n".repeat(30_000));
    fs::write(site.store.join("script"), &text).unwrap();
    fs::write(site.store.join("late"), text.replacen("#!", ": ", 1)).unwrap();
    let steps = Steps::of(&site, "step 1; chmod +x late; ./late; mv late later; sh later");
    steps.at("1");
    let refused = site.end(site.forebay(&["replace", "script"])).expect(1).stderr;
    assert!(refused.contains("may be, a program"), "{refused}");
    replace(&site, &["late"]);
    steps.past("1");
    assert_eq!(steps.end().stdout, "runs\nruns\n");
    assert_tidy(&site);
}

#[test]
fn a_descriptor_from_outside_has_the_original_bytes() {
    let site = site(&["file"]);
    let steps = Steps::of(&site, "step 1");
    steps.at("1");
    replace(&site, &["file"]);
    steps.past("1");
    steps.end();
    let input = fs::File::open(site.store.join("file")).unwrap();
    let command = site.buffered(&["cat"]);
    let ran = site.start_with(command, input).end();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout == String::from_utf8_lossy(&content(1)));
}

#[test]
fn a_file_that_is_open_or_too_small_or_another_kind_is_left_alone() {
    let site = site(&["file"]);
    fs::write(site.store.join("small"), "text").unwrap();
    let noise = site.store.join("noise");
    let mut state = 1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    fs::write(&noise, (0..300_000).map(|_| random()).collect::<Vec<u8>>()).unwrap();
    let steps = Steps::of(&site, "step 1");
    steps.at("1");
    let held = fs::File::open(site.store.join("file")).unwrap();
    for (file, why) in [("file", "a process has it open"), ("small", "64 KiB"), ("noise", "64 KiB")]
    {
        let said = site.end(site.forebay(&["replace", file])).expect(1).stderr;
        assert!(said.contains(why), "{said}");
        assert_eq!(mark(&site.store.join(file)), None);
    }
    assert!(fs::read(site.store.join("file")).unwrap() == content(1));
    drop(held);
    // The open of a FIFO would not return.
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, site.store.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    fs::create_dir(site.store.join("folder")).unwrap();
    for words in
        [["replace", "fifo"], ["restore", "fifo"], ["replace", "folder"], ["restore", "folder"]]
    {
        let said = site.end(site.forebay(&words)).expect(1).stderr;
        assert!(said.contains("it is no regular file"), "{words:?}: {said}");
    }
    assert_tidy(&site);
    steps.past("1");
    steps.end();
}

/// A script during which the manager is killed at a point, once, and the file that is there then.
fn killed_at<'s>(site: &'s Site, point: &str, script: &str) -> (Steps<'s>, PathBuf) {
    let once = site.root().join("once");
    let mut command = Steps::command(site, &[], script);
    command
        .env("FOREBAY_CRASH", format!("{point}:1"))
        .env("FOREBAY_CRASH_IN", "node")
        .env("FOREBAY_CRASH_ONCE", &once);
    (Steps::start(site, command), once)
}

#[test]
fn a_kill_of_the_manager_at_any_step_of_replacing_leaves_the_original_bytes() {
    for point in [
        "encoded.leased",
        "encoded.guarded",
        "encoded.marked",
        "encoded.written",
        "encoded.noted",
        "encoded.here",
        "encoded.removed",
    ] {
        let site = site(&["file"]);
        let (steps, once) = killed_at(&site, point, "step 1; md5sum < file");
        steps.at("1");
        let said = site.end(site.forebay(&["replace", "file"])).expect(1).stderr;
        assert!(said.contains("ended meanwhile"), "{point}: {said}");
        assert!(once.exists(), "{point} was not passed");
        steps.past("1");
        let wanted = site.run_plainly("md5sum < file").stdout;
        assert_eq!(steps.end().stdout, wanted, "{point}");
        assert!(fs::read(site.store.join("file")).unwrap() == content(1), "{point}");
        assert_tidy(&site);
        site.assert_same_files();
    }
}

#[test]
fn a_kill_of_the_manager_at_any_step_of_restoring_leaves_the_original_bytes() {
    for point in [
        "encoded.beside",
        "restore.copied",
        "encoded.guarded",
        "restore.marked",
        "restore.written",
        "restore.open",
        "restore.unmarked",
        "restore.removed",
    ] {
        let site = site(&["file"]);
        let steps = Steps::of(&site, "step 1");
        steps.at("1");
        replace(&site, &["file"]);
        steps.past("1");
        steps.end();
        let (steps, once) = killed_at(&site, point, "md5sum < file; step 2");
        steps.at("2");
        assert!(once.exists(), "{point} was not passed");
        assert!(fs::read(site.store.join("file")).unwrap() == content(1), "{point}");
        steps.past("2");
        assert_eq!(steps.end().stdout, site.run_plainly("md5sum < file").stdout, "{point}");
        assert_tidy(&site);
    }
}

#[test]
fn a_damaged_file_is_an_error_and_says_what_to_do() {
    let site = site(&["file"]);
    let steps = Steps::of(
        &site,
        "step 1; cat file > $OUT/copy; echo $?; step 2; echo new > file; cat file",
    );
    steps.at("1");
    replace(&site, &["file"]);
    let file = site.store.join("file");
    let encoded = fs::read(&file).unwrap();
    let raw = fs::File::options().write(true).open(&file).unwrap();
    raw.write_all_at(&[encoded[5000] ^ 1, 7, 7], 5000).unwrap();
    drop(raw);
    steps.past("1");
    steps.at("2");
    assert_eq!(fs::read(site.out.join("copy")).unwrap(), b"");
    let log = site.log();
    assert!(log.contains("file: it is encoded, and not restored: its encoded form"), "{log}");
    assert!(log.contains("docs/encoded.md"), "{log}");
    // As it was, to be looked at.
    assert!(mark(&file).is_some());
    steps.past("2");
    assert_eq!(steps.running.stdout().lines().next(), Some("1"));
    assert_eq!(steps.end().stdout, "1\nnew\n");
    assert_eq!(mark(&file), None);
    assert_tidy(&site);
}

#[test]
fn a_mark_that_is_not_true_changes_nothing() {
    let site = site(&["real", "sparse", "forged"]);
    let steps = Steps::of(&site, "step 1; md5sum < sparse; md5sum < forged");
    steps.at("1");
    replace(&site, &["real"]);
    let text = mark(&site.store.join("real")).unwrap();
    for (name, value) in [("sparse", "1 zstd original 9 rubbish"), ("forged", &*text)] {
        let path = site.store.join(name);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(100_000).unwrap();
        file.set_len(BYTES as u64).unwrap();
        fs::copy(&path, site.plain.join(name)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.forebay.encoded", value.as_bytes(), flags).unwrap();
    }
    steps.past("1");
    let wanted = site.run_plainly("md5sum < sparse; md5sum < forged").stdout;
    assert_eq!(steps.end().stdout, wanted);
}

#[test]
fn a_manager_that_is_killed_while_it_restores_is_followed_by_one_that_does() {
    if !have(&["python3"]) {
        return;
    }
    let site = site(&["file"]);
    let steps = Steps::of(&site, "step 1; step 2; md5sum < file");
    steps.at("1");
    replace(&site, &["file"]);
    steps.past("1");
    steps.at("2");
    kill(site.status().manager, Signal::KILL);
    steps.past("2");
    assert_eq!(steps.end().stdout, site.run_plainly("md5sum < file").stdout);
}

#[test]
fn what_was_changed_without_forebay_is_an_error_and_never_encoded_bytes() {
    let site = site(&["cut", "longer", "behind", "emptied", "anew"]);
    let steps = Steps::of(
        &site,
        "step 1
        for file in cut longer behind; do cat $file > $OUT/$file; echo $?; done
        md5sum < anew; echo new > emptied; cat emptied; step 2
        md5sum < cut; md5sum < longer",
    );
    steps.at("1");
    replace(&site, &["cut", "longer", "behind", "emptied", "anew"]);
    let open = |name: &str| fs::File::options().write(true).open(site.store.join(name)).unwrap();
    let size = |name: &str, bytes: usize| open(name).set_len(bytes as u64).unwrap();
    size("cut", 2_000_000);
    size("emptied", 2_000_000);
    size("longer", BYTES + 5000);
    open("behind").write_all_at(b"text", 2_000_000).unwrap();
    // It still has its mark.
    fs::write(site.store.join("anew"), "other").unwrap();
    size("anew", 100_000);
    assert!(mark(&site.store.join("anew")).is_some());
    fs::copy(site.store.join("anew"), site.plain.join("anew")).unwrap();
    steps.past("1");
    steps.at("2");
    for name in ["cut", "longer", "behind"] {
        assert_eq!(fs::read(site.out.join(name)).unwrap(), b"", "{name}");
        assert!(mark(&site.store.join(name)).is_some(), "{name}");
    }
    let log = site.log();
    for (name, size) in [("cut", 2_000_000), ("longer", BYTES + 5000)] {
        let wanted = format!(
            "{name}: it is encoded, and not restored: a program without Forebay has made it {size} \
             bytes long; `truncate -s {BYTES}` of it undoes that"
        );
        assert!(log.contains(&wanted), "{wanted}: {log}");
    }
    assert!(log.contains("has written to it, at byte 2000000, "), "{log}");
    // As the log says.
    size("cut", BYTES);
    size("longer", BYTES);
    steps.past("2");
    let plain = site.run_plainly("md5sum < anew; md5sum < cut; md5sum < longer").stdout;
    let (anew, rest) = plain.split_at(plain.find('\n').unwrap() + 1);
    assert_eq!(steps.end().stdout, format!("1\n1\n1\n{anew}new\n{rest}"));
}

#[test]
fn what_a_killed_replace_has_left_is_removed_and_not_what_a_living_one_writes() {
    let site = site(&["file"]);
    let steps = Steps::of(&site, "step 1");
    steps.at("1");
    let folder = site.store.join(".forebay-encoded");
    let make = || {
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let living = fs::File::create(folder.join("0000000000000002.new")).unwrap();
        living.try_lock().unwrap();
        fs::write(folder.join("0000000000000001.new"), "left").unwrap();
        living
    };
    let look = || (1..3).map(|n| folder.join(format!("{n:016x}.new")).exists()).collect::<Vec<_>>();
    let living = make();
    replace(&site, &["file"]);
    assert_eq!(look(), [false, true]);
    drop(living);
    let living = make();
    site.end(site.forebay(&["restore", "file"])).expect(0);
    assert_eq!(look(), [false, true]);
    drop(living);
    site.end(site.forebay(&["restore", "file"])).expect(0);
    assert_tidy(&site);
    steps.past("1");
    steps.end();
}

#[test]
fn a_restore_says_what_it_waits_for_and_does_not_wait_for_good() {
    let site = site(&["file", "other"]);
    let (flag, log) = (site.out.join("flag"), site.out.join("log"));
    fs::write(&flag, "").unwrap();
    fs::write(&log, "").unwrap();
    let mut command = Steps::command(&site, &[], "step 1; step 2");
    command
        .env("FOREBAY_PAUSE", format!("restore.copied:1:while={}", flag.display()))
        .env("FOREBAY_PAUSE_IN", "node")
        .env("FOREBAY_PAUSE_LOG", &log);
    let steps = Steps::start(&site, command);
    steps.at("1");
    replace(&site, &["file", "other"]);
    // A thread of it hangs.
    let restore = |file| {
        let mut command = site.forebay(&["restore", file]);
        command.env("FOREBAY_TIME_SCALE", "10");
        site.end(command).expect(1).stderr
    };
    let hung = restore("file");
    let manager = site.status().manager;
    assert!(hung.contains(&format!("file: waiting for node manager {manager}\n")), "{hung}");
    assert!(hung.contains(&format!("node manager {manager} has not answered for")), "{hung}");
    kill(manager, Signal::STOP);
    let stopped = restore("other");
    kill(manager, Signal::CONT);
    let wanted = format!("other: node manager {manager} is stopped (SIGSTOP");
    assert!(stopped.contains(&wanted), "{stopped}");
    assert!(stopped.contains(&format!("kill -CONT {manager}")), "{stopped}");
    fs::remove_file(&flag).unwrap();
    // The manager goes on with what it has in hand.
    wait_for("the original", LONG, || {
        (fs::read(site.store.join("file")).unwrap() == content(1)).then_some(())
    });
    steps.past("1");
    steps.past("2");
    steps.end();
}

#[test]
fn the_instance_of_a_file_can_be_named() {
    let site = site(&["file"]);
    let steps = Steps::of(&site, "step 1");
    steps.at("1");
    let config = site.config.to_str().unwrap().to_owned();
    let said = replace(&site, &["--config", &config, "file"]);
    assert!(said.starts_with("file: zstd, "), "{said}");
    // There is none that has another directory.
    let other = site.out.to_str().unwrap();
    for command in ["replace", "restore"] {
        let ran = site.end(site.forebay(&[command, "--backing", other, "file"])).expect(125);
        assert!(ran.stderr.contains("no node manager runs for that"), "{}", ran.stderr);
    }
    let ran = site.end(site.forebay(&["restore", "--config", &config, "file"])).expect(0);
    assert_eq!(ran.stdout, "file: has its original bytes again\n");
    steps.past("1");
    steps.end();
}
