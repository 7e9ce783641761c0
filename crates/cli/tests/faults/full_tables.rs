//! Tables that all processes share are full: a process that finds no place there never sees other
//! bytes than those that have one.

use crate::harness::{LAZY, Setup, Site, assert_same_bytes, skip};

#[test]
fn a_program_without_a_slot_does_not_start() {
    if !cfg!(debug_assertions) {
        return skip("timers are scaled in builds with debug assertions only");
    }
    let site = Site::new(&LAZY);
    if !site.compile("crowd.c", &[]) {
        return;
    }
    // What the file has is in RAM alone.
    let script = "echo old > file; sync file; echo new > file\n\
        FOREBAY_TIME_SCALE=50 $BIN/crowd cat file";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert_eq!(ran.stdout, "new\n", "{ran:?}");
    let refused = "cannot start cat: all 1023 processes that can use this node's pool";
    assert!(ran.stderr.contains(refused) && ran.stderr.contains("EAGAIN"), "{ran:?}");
    // Standard error is the kernel's, if it is a file of the directory.
    let script = "FOREBAY_TIME_SCALE=50 $BIN/crowd cat file 2> log; wc -c < log; cat log";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    let (file, rest) = ran.stdout.split_once('\n').unwrap();
    let (bytes, log) = rest.split_once('\n').unwrap();
    assert_eq!((file, bytes), ("new", &*log.len().to_string()), "{ran:?}");
    assert!(log.contains(refused) && log.contains("EAGAIN"), "{ran:?}");
}

/// Slots of processes that have ended come back when the node manager gets to it: a fork waits.
#[test]
fn a_fork_waits_for_slots_of_processes_that_have_ended() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("crowd.c", &[]) {
        return;
    }
    let mut run = site.buffered(&["bash", "-c", "$BIN/crowd again"]);
    run.env("FOREBAY_PAUSE", "reap.*:1/1:500").env("FOREBAY_PAUSE_IN", "node");
    run.env("FOREBAY_PAUSE_MOST", "4");
    let ran = site.end(run).expect(0);
    assert!(ran.stderr.contains(", then as many\n"), "{ran:?}");
}

/// The first program of a run, too.
#[test]
fn a_run_whose_command_gets_no_slot_ends_with_126() {
    if !cfg!(debug_assertions) {
        return skip("refusals are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let mut run = site.buffered(&["cat", "file"]);
    run.env("FOREBAY_REFUSE", "client:1..").env("FOREBAY_TIME_SCALE", "50");
    std::fs::write(site.store.join("file"), "old\n").unwrap();
    let ran = site.end(run);
    assert_eq!((ran.code, ran.stdout.as_str()), (126, ""), "{ran:?}");
    assert!(ran.stderr.contains("cannot start cat"), "{ran:?}");
}

/// A process that has a file open past the full file table, and others that open it when there is
/// room again.
#[test]
fn a_file_without_a_record_is_buffered_by_no_process() {
    if !cfg!(debug_assertions) {
        return skip("refusals are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    std::fs::write(site.store.join("file"), "old\n").unwrap();
    let script = "exec 3<>file\n\
        env -u FOREBAY_REFUSE bash -c 'echo newer > file' 3>&-\n\
        read -r line <&3; echo $line\n\
        echo newest >&3\n\
        env -u FOREBAY_REFUSE cat file 3>&-";
    let mut run = site.buffered(&["env", "FOREBAY_REFUSE=file:1..", "bash", "-c", script]);
    run.env("FOREBAY_REFUSE_LOG", site.out.join("log"));
    let ran = site.end(run).expect(0);
    assert_eq!(ran.stdout, "newer\nnewer\nnewest\n", "{ran:?}");
    let log = std::fs::read_to_string(site.out.join("log")).unwrap();
    assert!(log.contains("file"), "{log}");
}

/// It is a child that goes on with the descriptor.
#[test]
fn a_file_without_a_record_stays_so_for_the_children_of_its_opener() {
    if !cfg!(debug_assertions) {
        return skip("refusals are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    std::fs::write(site.store.join("file"), "old\n").unwrap();
    let opener = "exec 3<>file\n\
        (while [ ! -e $OUT/go ]; do sleep 0.05; done; read -r line <&3; echo $line > $OUT/seen) &";
    let script = format!(
        "FOREBAY_REFUSE=file:1.. bash -c '{opener}'\n\
         # The manager has taken the opener's slot back by then, and looked at its tables.\n\
         sleep 1; echo newer > file; : > $OUT/go\n\
         until [ -s $OUT/seen ]; do sleep 0.05; done; cat $OUT/seen"
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script])).expect(0);
    assert_eq!(ran.stdout, "newer\n", "{ran:?}");
}

/// An open that nothing else can be done for than to let all use the file through the kernel.
#[test]
fn what_cannot_be_made_direct_for_want_of_a_description_is_not_opened() {
    if !cfg!(debug_assertions) {
        return skip("refusals are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    if !site.compile("ring.c", &[]) {
        return;
    }
    let script = "echo old > file; sync file; echo new > file\n\
        export FOREBAY_TIME_SCALE=50\n\
        FOREBAY_REFUSE=description:1.. $BIN/ring file; echo $?; $BIN/ring file";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert_eq!(ran.stdout, "3\nnew\n", "{ran:?}");
    // What a program has inherited, too.
    std::fs::write(site.store.join("given"), "bytes\n").unwrap();
    let mut run = site.buffered(&["cat"]);
    run.env("FOREBAY_TIME_SCALE", "50").env("FOREBAY_REFUSE", "description:1..");
    let started = site.start_with(run, std::fs::File::open(site.store.join("given")).unwrap());
    let ran = started.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (126, ""), "{ran:?}");
    assert!(ran.stderr.contains("open-file descriptions"), "{ran:?}");
}

/// The table grows, and nothing waits: three processes have 18,000 open at the same time.
#[test]
fn more_open_files_than_one_piece_of_the_table_are_all_buffered() {
    let site = Site::new(&LAZY);
    let script = r#"
import os, resource, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if hard != resource.RLIM_INFINITY and hard < 6100: sys.exit(77)
resource.setrlimit(resource.RLIMIT_NOFILE, (6100, hard))
out = os.environ["OUT"]
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        children = []
        break
    children.append(child)
fds = [os.open("file", os.O_RDONLY) for _ in range(6000)]
open(f"{out}/{os.getpid()}", "w").close()
while sum(name.isdigit() for name in os.listdir(out)) < 3: time.sleep(0.01)
assert {os.pread(fd, 9, 0) for fd in fds} == {b"new\n"}
for fd in fds: os.close(fd)
for child in children: assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
"#;
    let script =
        format!("echo old > file; sync file; echo new > file\npython3 - <<'P'\n{script}\nP");
    let ran = site.end(site.buffered(&["bash", "-c", &script]));
    if ran.code == 77 {
        return skip("the limit of open files is too low");
    }
    assert_eq!(ran.stdout, "done\n".repeat(3), "{ran:?}");
}

/// Each has content of its own, so that a descriptor that is taken for another's shows it.
#[test]
fn descriptions_that_are_freed_at_once_are_never_those_of_another_descriptor() {
    let site = Site::new(&LAZY);
    let script = r#"
import os, random, socket, threading
def name(n): return f"file-{n}"
for n in range(16):
    with open(name(n), "w") as file: file.write(f"{n:08}" * 3)
def look(fd, n):
    assert os.read(fd, 8) == b"%08d" % n, (fd, n)
def churn(seed):
    rng = random.Random(seed)
    for _ in range(300):
        n = rng.randrange(16)
        fd = os.open(name(n), os.O_RDONLY)
        look(fd, n)
        way = rng.randrange(5)
        if way == 0:
            other = os.dup(fd); os.close(fd); look(other, n); os.close(other)
        elif way == 1:
            one, two = socket.socketpair()
            socket.send_fds(one, [b"x"], [fd]); os.close(fd)
            for m in range(40): os.close(os.open(name(m % 16), os.O_RDONLY))
            other = socket.recv_fds(two, 1, 1)[1][0]
            look(other, n); os.close(other); one.close(); two.close()
        elif way == 2:
            child = os.fork()
            if child == 0:
                try:
                    look(fd, n); os._exit(0)
                except BaseException: os._exit(1)
            os.close(fd)
            assert os.waitpid(child, 0)[1] == 0
        elif way == 3:
            m = rng.randrange(16)
            other = os.open(name(m), os.O_RDONLY); look(other, m)
            os.dup2(other, fd); os.close(other); look(fd, m); os.close(fd)
        else:
            os.close(fd)
for process in range(3):
    if os.fork() == 0:
        failed = []
        def run(seed):
            try: churn(seed)
            except BaseException as error: failed.append(error); print(error, flush=True)
        threads = [threading.Thread(target=run, args=(process * 10 + k,)) for k in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os._exit(len(failed))
print([os.wait()[1] for _ in range(3)])
"#;
    let script = format!("python3 - <<'P'\n{script}\nP");
    let ran = site.end(site.buffered(&["bash", "-c", &script]));
    assert_eq!(ran.stdout, "[0, 0, 0]\n", "{ran:?}");
}

/// Each free bucket of a tiny RAM tier is still locked by a process that gave it back, and does not
/// go on.
#[test]
fn writers_find_no_free_bucket_that_is_not_locked() {
    if !cfg!(debug_assertions) {
        return skip("pauses are only in builds with debug assertions");
    }
    const BUCKETS: usize = 16;
    // Some may find those in use that an ended process has kept for itself, and go to the other
    // tier.
    const FILES: usize = BUCKETS + 4;
    let site = Site::new(&Setup { ram: "4MiB", ..LAZY });
    let mut text = std::fs::read_to_string(&site.config).unwrap();
    text += "[[rule]]\npath = \"slotted\"\ntier = \"nvme\"\n";
    std::fs::write(&site.config, text).unwrap();
    let script = format!(
        ": > $OUT/held; head -c 262144 /dev/zero > slotted\n\
         for n in {{1..{FILES}}}; do\n\
         timeout 20 head -c 262144 /dev/zero > file-$n || break\n\
         FOREBAY_PAUSE=discard.freed:1:while=$OUT/held FOREBAY_PAUSE_LOG=$OUT/log-$n truncate -s 0 file-$n & pid=$!\n\
         until [ -s $OUT/log-$n ] || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done; done\n\
         cat $OUT/log-* | wc -l\n\
         timeout 30 head -c 600000 /dev/urandom > around; echo $?\n\
         : > $OUT/fails\n\
         printf new | FOREBAY_SLOT_FAULT=write:5:$OUT/fails \
         timeout 30 dd of=slotted conv=notrunc status=none; echo $?\n\
         rm $OUT/fails $OUT/held; wait\n\
         cksum < around; cp around $OUT/seen\n\
         printf new | dd of=slotted conv=notrunc status=none; head -c 3 slotted"
    );
    let ran = site.end(site.buffered(&["bash", "-c", &script])).expect(0);
    let mut lines = ran.stdout.lines();
    // The manager may have one for itself.
    let locked: usize = lines.next().unwrap().parse().unwrap();
    assert!(locked + 2 >= BUCKETS, "{ran:?}");
    assert_eq!(lines.next(), Some("0"), "{ran:?}");
    assert_eq!(lines.next(), Some("1"), "{ran:?}");
    assert!(ran.stderr.contains("Input/output error"), "{ran:?}");
    assert_eq!(ran.stdout.lines().last(), Some("new"), "{ran:?}");
    let [seen, wanted] = [site.out.join("seen"), site.store.join("around")];
    assert_same_bytes("around", &std::fs::read(seen).unwrap(), &std::fs::read(wanted).unwrap());
}
