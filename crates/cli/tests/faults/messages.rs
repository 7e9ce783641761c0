//! Messages that carry descriptors and are under way when their sender, their receiver or their
//! file comes to an end.

use crate::harness::{
    LAZY, LONG, Setup, Site, Steps, assert_same_bytes, kill, sees, skip, wait_for, works,
};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timers of managers and clients end within 80 ms.
const SCALE: (&str, &str) = ("FOREBAY_TIME_SCALE", "50");

fn steps<'a>(site: &'a Site, script: &str, words: &[(&str, &str)]) -> Steps<'a> {
    let mut run = Steps::command(site, &[], script);
    run.envs(words.iter().copied());
    Steps::start(site, run)
}

/// A program writes while the node manager is stopped, and is killed before or after it has sent
/// the descriptor; what it has written is found by name, also by another one.
#[test]
fn a_program_that_is_killed_with_its_message_under_way_loses_nothing() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    // What may not be opened by its owner is sent; other files the node manager finds by their
    // names.
    let points = [
        ("umask 222", "message.sending"),
        ("umask 222", "message.sent"),
        ("umask 022", "register.marked"),
        ("umask 022", "register.to-find"),
        ("umask 022", "register.told"),
    ];
    for (umask, point) in points {
        for change in ["", "mv file other; ln other file", "mkdir sub; mv file sub/file"] {
            let site = Site::new(&LAZY);
            // The first write is acknowledged; the second descriptor's program dies in its own.
            let script = format!(
                "step stopped\n{umask}\n\
                 FOREBAY_CRASH={point}:1 dd if=/dev/zero of=dies bs=1000 count=1 status=none \
                 || echo died\n\
                 exec 3> file; echo written >&3; exec 3>&-\n\
                 {change}\nstep done\n"
            );
            let steps = steps(&site, &script, &[]);
            steps.at("stopped");
            let manager = site.status().manager;
            kill(manager, Signal::STOP);
            steps.past("stopped");
            steps.at("done");
            kill(manager, Signal::CONT);
            steps.past("done");
            let ran = steps.running.end();
            assert_eq!(ran.code, 0, "{point}: {ran:?} {}", site.log());
            assert_eq!(ran.stdout, "died\n", "{point} was not reached: {ran:?}");
            let name = if change.contains("sub") { "sub/file" } else { "file" };
            assert_eq!(sees(&site.store.join(name)), "written\n", "{point} {change}");
            let died = fs::read(site.store.join("dies")).unwrap();
            assert!(died.iter().all(|&byte| byte == 0) && died.len() <= 1000, "{point}");
        }
    }
}

/// Files are renamed by a program without Forebay, or removed, before the node manager came to look
/// for them: some are still open, of the others only the inode says which they are.
#[test]
fn files_that_others_rename_before_they_are_found_are_found_all_the_same() {
    const FILES: usize = 30;
    let site = Site::new(&LAZY);
    let script = format!(
        "mkdir sub deep deep/er\nstep stopped\n\
         for n in {{1..{FILES}}}; do echo $n > closed-$n; done\n\
         exec 3> open; echo open >&3; exec 4<> removed; echo removed >&4\n\
         mkdir folder; echo below > folder/below\n\
         step written\nstep renamed\n\
         echo more >&3; cat <&4 > /dev/null; echo more >&4; exec 3>&-\n\
         cat /proc/self/fd/4; exec 4>&-\n"
    );
    let steps = steps(&site, &script, &[]);
    steps.at("stopped");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    steps.past("stopped");
    steps.at("written");
    let to = |name: &str| site.store.join(name);
    let place = |n: usize| match n % 3 {
        0 => to(&format!("other-{n}")),
        1 => to(&format!("sub/closed-{n}")),
        _ => to(&format!("deep/er/other-{n}")),
    };
    for n in 1..=FILES {
        fs::rename(to(&format!("closed-{n}")), place(n)).unwrap();
    }
    // Another file has the name now.
    fs::write(to("closed-1"), "another").unwrap();
    fs::rename(to("open"), to("sub/open")).unwrap();
    fs::remove_file(to("removed")).unwrap();
    fs::rename(to("folder"), to("sub/folder")).unwrap();
    kill(manager, Signal::CONT);
    steps.past("written");
    steps.at("renamed");
    steps.past("renamed");
    let ran = steps.running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "removed\nmore\n"), "{ran:?} {}", site.log());
    for n in 1..=FILES {
        assert_eq!(sees(&place(n)), format!("{n}\n"), "{}", site.log());
    }
    assert_eq!(sees(&to("closed-1")), "another");
    assert_eq!(sees(&to("sub/open")), "open\nmore\n");
    assert_eq!(sees(&to("sub/folder/below")), "below\n");
    assert!(!to("removed").exists());
}

/// A file that the node manager has found, or is about to, is moved out of its directories by a
/// program without Forebay: it is still written.
#[test]
fn a_file_that_was_found_is_written_wherever_it_was_moved_to() {
    let site = Site::new(&LAZY);
    let script = "echo first > first; step written\nstep moved\n";
    let steps = steps(&site, script, &[]);
    steps.at("written");
    let manager = site.status().manager;
    let first = site.store.join("first");
    let has_found = || {
        let entries = fs::read_dir(format!("/proc/{manager}/fd")).unwrap();
        let mut links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.any(|link| link.ends_with("store/first")).then_some(())
    };
    wait_for("a descriptor of the file", LONG, has_found);
    let moved = site.out.join("moved");
    fs::rename(&first, &moved).unwrap();
    steps.past("written");
    steps.at("moved");
    steps.past("moved");
    let ran = steps.running.end();
    assert_eq!(ran.code, 0, "{ran:?} {}", site.log());
    assert_eq!(sees(&moved), "first\n");
}

/// The node manager is killed while it looks for files; the next one finds them.
#[test]
fn a_node_manager_that_is_killed_while_it_finds_files_loses_nothing() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    for point in ["register.finding", "register.found"] {
        let site = Site::new(&LAZY);
        let script = "for n in {1..20}; do echo $n > file-$n; done; mv file-1 moved; rm file-2\n\
            exec 3<> gone; echo gone >&3; rm gone; sleep 0.3; cat /proc/self/fd/3; sync file-3\n";
        let words = [("FOREBAY_CRASH", &*format!("node:{point}:5"))];
        let (ran, _) = site.run_buffered_with(&words, script);
        assert_eq!(ran.stdout, "gone\n", "{point}: {ran:?} {}", site.log());
        site.recover();
        for n in 3..=20 {
            assert_eq!(sees(&site.store.join(format!("file-{n}"))), format!("{n}\n"), "{point}");
        }
        assert_eq!(sees(&site.store.join("moved")), "1\n", "{point}");
        assert!(!site.store.join("file-2").exists() && !site.store.join("gone").exists());
    }
}

/// The node manager is killed with descriptors in its queue, among them the only ones of files
/// without a name.
#[test]
fn a_node_manager_that_is_killed_with_messages_in_its_queue_loses_nothing() {
    let site = Site::new(&LAZY);
    let script = "exec 3<> gone; rm gone; exec 4<> moved\n\
        step stopped\n\
        head -c 300000 /dev/zero | tr '\\0' x >&3; echo moved >&4; echo kept > kept\n\
        mkdir sub; mv moved sub/there\n\
        step written\n\
        sync /proc/self/fd/3 && sync sub/there && cat sub/there && cat /proc/self/fd/3 | wc -c\n\
        cat /proc/self/fd/3 | tr -d x | wc -c; cat kept\n";
    let steps = steps(&site, script, &[]);
    steps.at("stopped");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    steps.past("stopped");
    steps.at("written");
    kill(manager, Signal::KILL);
    steps.past("written");
    let ran = steps.running.end();
    assert_eq!(ran.stdout, "moved\n300000\n0\nkept\n", "{ran:?} {}", site.log());
    assert_eq!(ran.code, 0, "{ran:?} {}", site.log());
    assert_eq!(sees(&site.store.join("sub/there")), "moved\n");
    assert_eq!(sees(&site.store.join("kept")), "kept\n");
}

/// More files than its socket takes messages are written while the node manager is stopped.
#[test]
fn a_stopped_node_manager_with_a_full_queue_stops_no_program() {
    const FILES: usize = 1500;
    let site = Site::new(&LAZY);
    let script = format!(
        "step stopped\n\
         for n in {{1..{FILES}}}; do echo $n > file-$n; done\n\
         rm file-*0; for n in {{1..{FILES}..10}}; do mv file-$n moved-$n; done\n\
         step written\n"
    );
    let steps = steps(&site, &script, &[]);
    steps.at("stopped");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    let since = Instant::now();
    steps.past("stopped");
    let mark = site.out.join("at-written");
    let written = || mark.exists().then_some(());
    wait_for("the writes", LONG, written);
    let took = since.elapsed();
    kill(manager, Signal::CONT);
    steps.past("written");
    let ran = steps.running.end();
    assert_eq!(ran.code, 0, "{ran:?} {}", site.log());
    for n in 1..=FILES {
        let name = if n % 10 == 1 { format!("moved-{n}") } else { format!("file-{n}") };
        let wanted = (n % 10 != 0).then(|| format!("{n}\n"));
        assert_eq!(fs::read_to_string(site.store.join(&name)).ok(), wanted, "{name}");
    }
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// The records of files are used for others, again and again, while messages for the first ones lie
/// in the queue.
#[test]
fn a_message_for_a_record_that_has_another_file_by_now_is_of_no_effect() {
    let site = Site::new(&LAZY);
    let script = "step stopped\n\
        for n in {1..150}; do echo gone > gone-$n; rm gone-$n; done\n\
        step queued\n\
        for n in {1..150}; do echo $n > kept-$n; [ $((n % 3)) != 0 ] || sync kept-$n; done\n\
        sleep 0.5; for n in {1..150}; do cat kept-$n; done | sort -n | uniq | wc -l\n";
    let steps = steps(&site, script, &[SCALE]);
    steps.at("stopped");
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    steps.past("stopped");
    steps.at("queued");
    kill(manager, Signal::CONT);
    steps.past("queued");
    let ran = steps.running.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "150\n"), "{ran:?} {}", site.log());
    for n in 1..=150 {
        assert_eq!(sees(&site.store.join(format!("kept-{n}"))), format!("{n}\n"));
    }
    // Nothing that was deleted is held open.
    assert_eq!(fs::read_dir(&site.store).unwrap().count(), 150);
}

/// Runs a script of python3 under Forebay with short timers.
fn python(setup: &Setup, script: &str) {
    if !works(&["python3", "-c", "import socket; socket.send_fds"]) {
        return skip("python3 is missing, or older than 3.9");
    }
    let site = Site::new(setup);
    let script = format!("python3 - <<'P'\n{script}\nP");
    let (ran, status) = site.run_buffered_with(&[SCALE], &script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?} {}", site.log());
    status.assert_live();
    let file = site.store.join("file");
    if Path::exists(&file) {
        assert_same_bytes("file", &fs::read(file).unwrap(), ran.stdout.trim_end().as_bytes());
    }
}

/// A descriptor is received after the time for which one may be under way, when its description is
/// free, or another's.
#[test]
fn a_descriptor_that_was_under_way_for_too_long_is_no_other_files() {
    for others in [0, 70_000] {
        python(
            &LAZY,
            &format!(
                "
import os, socket, time
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    fd = os.open('file', os.O_RDWR | os.O_CREAT)
    os.write(fd, b'first')
    socket.send_fds(here, [b'x'], [fd])
    os._exit(0)
os.waitpid(child, 0)
time.sleep(1)
others = [os.open('other', os.O_RDWR | os.O_CREAT) for n in range(3)]
for n in range({others}):
    os.close(os.open('other', os.O_RDWR))
data, fds, flags, _ = socket.recv_fds(there, 10, 1)
for fd in fds:
    try:
        os.write(fd, b' more')
    except OSError:
        pass
for fd in others:
    assert os.fstat(fd).st_size == 0 and os.lseek(fd, 0, os.SEEK_CUR) == 0
print(open('file').read())
"
            ),
        );
    }
}
