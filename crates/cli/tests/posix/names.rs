//! Files are opened while other processes change their names: whichever comes first at each step,
//! the file is found by the name that it has in the end, and one without any is given up.

use crate::harness::{self, LAZY, Site, Steps, kill, sees, skip, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Points at which a process has no stripe of the file table, from the kernel's open to the end of
/// ours.
const STEPS: [&str; 6] =
    ["open.opened", "open.seen", "open.recorded", "file.linking", "open.found", "open.marked"];

/// A process stops at `point` of the open of `file`; meanwhile `change` happens; then the process
/// goes on and writes, the node manager is killed, and the process ends. The next node manager has
/// no descriptor of the file.
fn change_while_opened(prepare: &str, point: &str, change: &str) -> Site {
    let site = Site::new(&LAZY);
    change_at(&site, prepare, point, change);
    site
}

fn change_at(site: &Site, prepare: &str, point: &str, change: &str) {
    let script = format!(
        "{prepare}\n: > $OUT/held\n\
         FOREBAY_PAUSE={point}:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log bash -c '\
         exec 3<> file; echo written >&3; : > $OUT/written
         until [ -e $OUT/past-written ]; do sleep 0.01; done' &\n\
         until [ -s $OUT/log ]; do sleep 0.01; done\n\
         {change} || exit 3\n\
         rm $OUT/held; until [ -e $OUT/written ]; do sleep 0.01; done\n\
         step written; wait $!\n"
    );
    let steps = Steps::of(site, &script);
    steps.at("written");
    kill(site.status().manager, Signal::KILL);
    steps.past("written");
    let ran = steps.running.end();
    assert_eq!(ran.code, 0, "{point}: {ran:?} {}", site.log());
}

#[test]
fn a_file_that_is_unlinked_while_it_is_opened_is_given_up() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for point in STEPS {
        let site = change_while_opened("", point, "rm file");
        assert!(!site.store.join("file").exists());
    }
    // One that is known before.
    for point in ["open.opened", "open.seen", "open.found", "open.marked"] {
        let prepare = "head -c 100000 /dev/zero > file; exec 4< file";
        let site = change_while_opened(prepare, point, "rm file");
        assert!(!site.store.join("file").exists());
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_given_up() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for point in STEPS {
        let site = change_while_opened("echo new > other", point, "mv -f other file");
        assert_eq!(sees(&site.store.join("file")), "new\n", "{point}");
    }
}

/// It has no name any more then, and no open description that the node manager could see, and
/// nothing of it is on the store.
#[test]
fn a_file_that_is_replaced_while_it_is_opened_to_read_keeps_what_was_written() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let script = "head -c 600000 /dev/urandom > $OUT/old; : > $OUT/held\n\
        for point in open.opened open.seen; do for end in 'mv -f other file' 'rm file'; do\n\
        cat $OUT/old > file; echo new > other; : > $OUT/log; : > $OUT/held\n\
        FOREBAY_PAUSE=$point:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log bash -c 'exec 3< file; cat <&3 > $OUT/seen' &\n\
        until [ -s $OUT/log ]; do sleep 0.01; done\n\
        $end; sleep 0.7; rm $OUT/held; wait $!\n\
        cmp $OUT/old $OUT/seen || echo \"$point, $end\"; done; done\n";
    let site = Site::new(&LAZY);
    let ran = site.run_buffered_with(&[("FOREBAY_TIME_SCALE", "50")], script).0;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?} {}", site.log());
}

/// It may wait for a FIFO's other end, for ever.
#[test]
fn a_file_without_a_name_is_given_up_beside_a_process_that_opens_another_for_long() {
    let site = Site::new(&LAZY);
    let script = "mkfifo $OUT/fifo; cat $OUT/fifo & step waits\n\
        head -c 600000 /dev/urandom > file; step written; rm file; step removed; : > $OUT/fifo; wait";
    let steps = Steps::of(&site, script);
    let is_dirty = || {
        let text = site.status().text;
        text.lines().any(|tier| {
            tier.contains("not yet on the store") && !tier.contains(" 0 B not yet on the store")
        })
    };
    steps.at("waits");
    steps.past("waits");
    steps.at("written");
    assert!(is_dirty(), "{}", site.status().text);
    steps.past("written");
    steps.at("removed");
    wait_for("a clean pool", harness::LONG, || (!is_dirty()).then_some(()));
    steps.past("removed");
    assert_eq!(steps.end().code, 0);
}

/// Where no node manager looks for it.
#[test]
fn a_file_that_is_moved_away_while_it_is_opened_takes_what_is_written() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for point in STEPS {
        let site = change_while_opened("", point, "mv file $OUT/file");
        assert_eq!(sees(&site.out.join("file")), "written\n", "{point}");
        // Together with its folder.
        let site = Site::new(&LAZY);
        let prepare = "mkdir folder; cd folder";
        change_at(&site, prepare, point, "mv ../folder $OUT/folder");
        assert_eq!(sees(&site.out.join("folder/file")), "written\n", "{point}");
    }
}

#[test]
fn a_scratch_file_that_gets_a_lasting_name_while_it_is_opened_is_kept() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    for point in STEPS.into_iter().chain(["rule.found"]) {
        let site = Site::new(&LAZY);
        let rule = "[[rule]]\npath = \"file\"\nmode = \"scratch\"\n";
        let config = fs::read_to_string(&site.config).unwrap();
        fs::write(&site.config, format!("{config}{rule}")).unwrap();
        change_at(&site, "", point, "mv file kept");
        assert_eq!(sees(&site.store.join("kept")), "written\n", "{point}");
    }
}

/// Both see that there is another name.
#[test]
fn a_file_that_loses_two_names_at_once_is_given_up() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let script = ": > $OUT/held\nexec 3<> one; ln one two; echo written >&3\n\
        for name in one two; do\n\
        FOREBAY_PAUSE=unlink.noted:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log-$name rm $name &\n\
        done\n\
        until [ -s $OUT/log-one -a -s $OUT/log-two ]; do sleep 0.01; done\n\
        rm $OUT/held; wait\n\
        step written\n";
    let steps = Steps::of(&site, script);
    steps.at("written");
    kill(site.status().manager, Signal::KILL);
    steps.past("written");
    steps.end();
    wait_for("an empty store", harness::LONG, || {
        fs::read_dir(&site.store).unwrap().next().is_none().then_some(())
    });
}

/// The process that removes the name is killed before it can say so, and the node manager is
/// killed, too.
#[test]
fn a_file_of_which_no_name_is_known_is_written_as_long_as_a_program_has_it() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let script = ": > $OUT/held\n\
        FOREBAY_PAUSE=open.seen:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log bash -c '\
        exec 3<> file; echo written >&3; : > $OUT/written
        until [ -e $OUT/past-written ]; do sleep 0.01; done\n\
        timeout 60 sync $OUT /proc/self/fd/3 && cat /proc/self/fd/3' &\n\
        until [ -s $OUT/log ]; do sleep 0.01; done\n\
        FOREBAY_CRASH=name.changed:1 rm file\n\
        rm $OUT/held; until [ -e $OUT/written ]; do sleep 0.01; done\n\
        step written; wait $!\n";
    let steps = Steps::of(&site, script);
    steps.at("written");
    kill(site.status().manager, Signal::KILL);
    steps.past("written");
    let ran = steps.running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "written\n"), "{ran:?} {}", site.log());
}

/// A program dies in a truncate, and the file is deleted before the node manager comes to that; two
/// programs open a new file with its inode.
#[test]
fn a_truncate_that_was_left_of_a_deleted_file_is_no_error_of_the_next_one() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    // Other tests may get the inode.
    if !(0..10).any(|_| leave_truncate()) {
        skip("the file system gives inodes to no second file");
    }
}

/// Whether the new file has the inode of the old one.
fn leave_truncate() -> bool {
    let site = Site::new(&LAZY);
    let [reap, held] = ["reap", "held"].map(|name| site.out.join(name));
    // Nothing but the record is left of the first file: the node manager has no descriptor of it.
    let script = "head -c 100000 /dev/zero > file; sync file; stat -c %i file > $OUT/inode\n\
        step synced\n\
        FOREBAY_CRASH=truncate.intent:1 truncate -s 10 file\n\
        until grep -q reap.inside $OUT/log; do sleep 0.01; done\n\
        rm file; step removed; new=$(cat $OUT/new)\n\
        for k in 1 2; do\n\
        { FOREBAY_PAUSE=open.marked:1:while=$OUT/held FOREBAY_PAUSE_IN=client FOREBAY_PAUSE_LOG=$OUT/log-$k \
        dd if=$OUT/bytes of=$new bs=5 seek=$k conv=notrunc,fsync status=none || echo failed; } &\n\
        until [ -s $OUT/log-$k ]; do sleep 0.01; done; done\n\
        rm $OUT/reap; step taken; wait; cp $new $OUT/seen; rm -f new-*\n";
    fs::write(site.out.join("bytes"), "bytes").unwrap();
    let mut run = Steps::command(&site, &[], script);
    run.env("FOREBAY_PAUSE", format!("reap.inside:1/1:while={}", reap.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", site.out.join("log"));
    let steps = Steps::start(&site, run);
    steps.at("synced");
    [&reap, &held].iter().for_each(|path| fs::write(path, "").unwrap());
    steps.past("synced");
    steps.at("removed");
    let made = (0..200).map(|n| site.store.join(format!("new-{n}")));
    let inode = |path: &std::path::PathBuf| fs::metadata(path).unwrap().ino();
    let mut made = made.inspect(|path| fs::write(path, "").unwrap());
    let known = fs::read_to_string(site.out.join("inode")).unwrap();
    let new = made.find(|path| inode(path).to_string() == known.trim());
    // Else the test is of a file that the node manager does not know.
    fs::write(site.out.join("new"), new.as_ref().map_or("other", |new| new.to_str().unwrap()))
        .unwrap();
    steps.past("removed");
    steps.at("taken");
    // The node manager completes what was left while the two stand in their opens.
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::remove_file(&held).unwrap();
    steps.past("taken");
    let ran = steps.running.end();
    if new.is_none() {
        return false;
    }
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?} {}", site.log());
    assert_eq!(fs::read(site.out.join("seen")).unwrap(), b"\0\0\0\0\0bytesbytes");
    true
}

/// Two processes give their files one name at the same time, or one of them removes it: what the
/// second one replaces is not what it saw there. `held` are the points at which the first and the
/// second stop, which go on in the order in which they make their calls.
fn change_at_once(first: (&str, &str), second: (&str, &str), wanted: &str) {
    let site = Site::new(&LAZY);
    let hold = |(point, command): (&str, &str), name: &str| match point {
        "" => format!("{command}\n"),
        point => format!(
            ": > $OUT/held-{name}\n\
             FOREBAY_PAUSE={point}:1:while=$OUT/held-{name} FOREBAY_PAUSE_LOG=$OUT/log-{name} {command} & {name}=$!\n\
             until [ -s $OUT/log-{name} ]; do sleep 0.01; done\n"
        ),
    };
    let go_on = |point: &str, name: &str| match point {
        "" => String::new(),
        _ => format!("rm $OUT/held-{name}; wait ${name} || echo failed\n"),
    };
    let script = format!(
        "for n in one two three; do yes $n | head -c 300000 > $n; done; mv three file\n\
         {}{}{}{}sleep 1\n",
        hold(first, "first"),
        hold(second, "second"),
        go_on(first.0, "first"),
        go_on(second.0, "second"),
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script])).expect(0);
    let case = format!("{first:?} {second:?}");
    assert_eq!(ran.stdout, "", "{case}: {ran:?}");
    let log = site.log();
    assert!(!log.contains("conflict"), "{case}: {log}");
    let found = fs::read_to_string(site.store.join("file")).unwrap_or_default();
    assert_eq!(found.lines().next().unwrap_or_default(), wanted, "{case}");
}

#[test]
fn a_file_that_is_replaced_as_soon_as_it_has_its_name_is_given_up() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let other = "mv -f two file";
    for point in ["", "name.changed", "name.noted"] {
        change_at_once(("unlink.noted", "mv -f one file"), (point, other), "one");
        change_at_once(("unlink.noted", "rm file"), (point, other), "");
    }
}

/// Runs `namesakes.c` in one of its ways: no wrong byte, and everything reaches the store.
fn namesakes(how: &str) {
    let site = Site::new(&LAZY);
    if !site.compile("namesakes.c", &[]) {
        return;
    }
    let script = format!("$BIN/namesakes {how} 20 $OUT");
    let ran = site.end(site.buffered(&["bash", "-c", &script]));
    assert!(ran.stdout.starts_with(&format!("{how}: 0 wrong")), "{ran:?}");
    ran.expect(0);
    // Of an older file that was removed unseen before the node manager has found it nothing says
    // that it was removed, unless a later one comes to its record.
    if ["inherited", "removed", "changed"].contains(&how) {
        site.drop_removed();
    }
}

/// Identity is device, inode number and time of birth: the number alone may be an older file's.
#[test]
fn a_file_with_the_inode_number_of_an_older_one_has_nothing_of_that() {
    for how in ["comes", "folder", "inherited", "removed", "changed"] {
        namesakes(how);
    }
}

/// Nothing tells a file that others removed before the node manager has looked at it from one that
/// they moved away. The manager is killed at a step, and the next one goes on.
fn is_set_aside(point: &str) {
    let site = Site::new(&LAZY);
    if !site.compile("namesakes.c", &[]) {
        return;
    }
    let script = "export MANAGER=$($FOREBAY status | sed -n 's/^instance.* node manager //p')\n\
        exec $BIN/namesakes gone 1 $OUT";
    let mut run = site.buffered(&["bash", "-c", script]);
    if !point.is_empty() {
        run.env("FOREBAY_CRASH", format!("{point}:1")).env("FOREBAY_CRASH_IN", "node");
        run.env("FOREBAY_CRASH_ONCE", site.out.join("once"));
    }
    let ran = site.end(run).expect(0);
    assert_eq!(site.out.join("once").exists(), !point.is_empty(), "{point}: {ran:?}");
    let folder = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let mut folder = folder.filter(|path| path.extension().is_some_and(|end| end == "removed"));
    let folder = folder.next().unwrap_or_else(|| panic!("{point}: {ran:?} {}", site.log()));
    let kept: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [kept] = &kept[..] else { panic!("{point}: {kept:?}") };
    assert!(kept.file_name().unwrap().to_str().unwrap().starts_with("a0."), "{kept:?}");
    assert!(ran.stderr.contains(kept.to_str().unwrap()), "{point}: {ran:?}");
    assert!(fs::read(kept).unwrap() == [b'A'; 138_206], "{point}");
    assert_eq!(fs::metadata(kept).unwrap().mode() & 0o777, 0o600);
    let ran = site.recover().expect(0);
    assert_eq!(ran.stderr, "", "{point}");
    let ran = site.end(site.buffered(&["sh", "-c", "\"$FOREBAY\" status --json"])).expect(0);
    assert!(ran.stderr.contains("1 file is kept"), "{point}: {ran:?}");
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(status[0]["set_aside"], serde_json::json!([kept]), "{point}: {ran:?}");
    site.drop_removed();
}

#[test]
fn what_was_written_to_a_file_that_others_removed_at_once_is_set_aside() {
    is_set_aside("");
    if !cfg!(debug_assertions) {
        return skip("crashes are only in builds with debug assertions");
    }
    for step in ["begin", "written", "kept", "dropped"] {
        is_set_aside(&format!("aside.{step}"));
    }
}

/// The process that opened it outside has closed it: what it opens now is no file of before.
#[test]
fn a_file_that_was_open_by_a_link_outside_is_buffered() {
    let site = Site::new(&LAZY);
    let script = ": > $OUT/outside; ln $OUT/outside file; echo buffered > file; step written";
    let steps = Steps::of(&site, script);
    steps.at("written");
    assert_eq!(sees(&site.store.join("file")), "");
    steps.past("written");
    steps.end();
    assert_eq!(sees(&site.store.join("file")), "buffered\n");
}

/// Right after they were written, before the node manager has found them.
#[test]
fn files_that_leave_the_store_take_with_them_what_was_written() {
    for how in ["leaves", "renamed", "linked"] {
        namesakes(how);
    }
}

/// What makes a file, what takes it out of the store, the point at which a process that does so is
/// killed, and where the file is then.
const LEAVING: [(&str, &str, &str, &str); 6] = [
    ("mkdir d; seq 5000 > d/file", "mv d $OUT/d", "rename.moved", "d/file"),
    ("mkdir -p a/b; seq 5000 > a/b/file; mv a d", "mv d $OUT/d", "rename.moved", "d/b/file"),
    ("seq 5000 > file", "mv file $OUT/file", "rename.moved", "file"),
    ("seq 5 > file; ln file $OUT/file; seq 6 5000 >> file", "rm file", "unlink.done", "file"),
    (
        "seq 5 > file; ln file $OUT/file; seq 6 5000 >> file; echo > other",
        "mv -f other file",
        "unlink.done",
        "file",
    ),
    (
        "mkdir d; seq 5 > d/file; ln d/file $OUT/file; seq 6 5000 >> d/file; mv d e",
        "rm e/file",
        "unlink.done",
        "file",
    ),
];

/// Neither the node manager, which may be killed before or after, nor the process that did it has
/// to know where the files are.
#[test]
fn files_that_leave_the_store_are_there_whatever_is_killed() {
    let wanted: String = (1..=5000).map(|line| format!("{line}\n")).collect();
    let mut ways = vec![("kill -9 $manager", "", ""), ("", "", "kill -9 $manager")];
    if cfg!(debug_assertions) {
        ways.push(("", "FOREBAY_CRASH=$point:1", "kill -9 $manager"));
        ways.push(("", "FOREBAY_CRASH=rename.handed-over:1", "kill -9 $manager"));
    }
    for (make, leave, point, place) in LEAVING {
        for &(before, words, after) in &ways {
            let site = Site::new(&LAZY);
            let script = format!(
                "manager=$($FOREBAY status | sed -n 's/.*node manager //p'); point={point}\n\
                 {make}\n{before}\nenv {words} {leave}\n{after}\nrm -f $OUT/held"
            );
            // The node manager is about to find the file all the time.
            let held = site.out.join("held");
            fs::write(&held, "").unwrap();
            let pause = format!("register.finding:1/1:while={}", held.display());
            let mut command = site.buffered(&["bash", "-c", &script]);
            command.env("FOREBAY_PAUSE", pause).env("FOREBAY_PAUSE_IN", "node");
            let ran = site.end(command);
            let case = format!("{make}; {before}; {words} {leave}; {after}: {ran:?}");
            assert_eq!(ran.code, 0, "{case}\n{}", site.log());
            let out = site.out.join(place);
            // Killed before it was done.
            let stays = words.contains("handed-over") && !out.exists();
            let name = place.strip_prefix("d/").unwrap_or(place);
            let at = match stays {
                true if place.starts_with("d/") => site.store.join("d").join(name),
                true => site.store.join(name),
                false => out,
            };
            assert_eq!(fs::read_to_string(at).unwrap(), wanted, "{case}");
        }
    }
}

#[test]
fn a_file_that_is_open_by_a_link_outside_is_one_file() {
    namesakes("two-names");
}
