//! Writing and reading what is in RAM makes no system call.

use crate::harness::{LAZY, Setup, Site, USUAL, have, skip, works};

#[test]
fn resident_blocks_are_written_and_read_without_system_calls() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("resident.c", &[]) {
        return;
    }
    let (ran, status) = site.run_buffered("strace -f -o $OUT/calls $BIN/resident file");
    ran.expect(0);
    assert!(status.count("writes") >= 200 && status.count("reads") >= 200, "{}", status.text);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    // Each line is a process and its call; between two markers there must be none.
    let marked: Vec<_> = calls.lines().skip_while(|line| !line.contains("first-marker")).collect();
    for (place, marker) in ["first-marker", "second-marker", "third-marker"].iter().enumerate() {
        assert!(marked[place].contains(marker), "a system call: {:#?}", &marked[..place + 4]);
    }
    // A request that does not look at the content costs itself alone, though the file is dirty.
    let mut requests = marked[3..].iter().take_while(|line| !line.contains("fourth-marker"));
    assert!(requests.clone().count() == 100 && requests.all(|line| line.contains("ioctl(")));
    // What is known of buffers outlives a change of other memory.
    let beside = all_between(&calls, "fourth-marker", "fifth-marker");
    assert!(beside.len() == 200, "{beside:?}");
    assert!(beside.iter().all(|name| matches!(*name, "mmap" | "munmap")), "{beside:?}");
}

#[test]
fn files_that_are_deleted_when_they_are_clean_are_searched_for_nowhere() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    // A tracer that may not attach ends at once. The first files are still buffered when they go,
    // the others are on the store, too.
    let script = "manager=$($FOREBAY status | sed -n 's/.*node manager //p')\n\
         used() { $FOREBAY status | grep -q 'tier ram *0 B of' && echo none || echo some; }\n\
         for i in {1..50}; do echo $i > clean-$i; done; sync\n\
         for i in {1..50}; do echo $i > dirty-$i; done; used\n\
         env -u LD_PRELOAD strace -f -y -e trace=getdents64 -o $OUT/calls -p $manager \
         2> /dev/null > /dev/null < /dev/null & tracer=$!\n\
         while kill -0 $tracer 2> /dev/null; do\n\
         grep -q 'TracerPid:.*[1-9]' /proc/$manager/status && echo traced && break\n\
         sleep 0.02; done\n\
         rm clean-* dirty-*\n\
         until [ $(used) = none ]; do sleep 0.1; done\n\
         kill $tracer 2> /dev/null; wait $tracer; true";
    let (ran, status) = site.run_buffered(script);
    let ran = ran.expect(0);
    if !ran.stdout.contains("traced") {
        return skip("strace may not attach to the node manager");
    }
    assert!(ran.stdout.contains("some"), "nothing was buffered: {ran:?}");
    assert!(status.count("writes") >= 100, "{}", status.text);
    let store = format!("<{}", site.store.display());
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let searches = calls.lines().filter(|line| line.contains(&store)).count();
    assert_eq!(searches, 0, "the manager has looked through the store: {calls}");
}

/// The system calls that each kind of call of `programs/name_calls.c` makes plainly, and those that
/// it may make here.
const NAMES: [(&str, usize, usize); 20] = [
    ("open-absolute", 2, 4),
    ("open-relative", 2, 4),
    ("open-at", 2, 4),
    ("open-dotted", 2, 4),
    ("open-link", 2, 4),
    ("open-elsewhere", 2, 3),
    ("stat", 1, 1),
    ("stat-elsewhere", 1, 1),
    ("rename", 2, 6),
    ("rename-across", 2, 12),
    ("rename-folder", 2, 12),
    ("rename-folder-across", 2, 18),
    ("link", 2, 4),
    ("link-relative", 2, 7),
    ("set-times", 1, 2),
    ("set-times-open", 1, 1),
    ("mode-open", 1, 1),
    ("owner-open", 1, 1),
    // What the store lacks is copied into RAM: two questions and a read.
    ("copy", 1, 3),
    ("copy-to-the-end", 1, 2),
];

#[test]
fn calls_that_name_files_make_few_others() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("name_calls.c", &[]) {
        return;
    }
    let script = "mkdir $OUT/elsewhere; strace -o $OUT/calls $BIN/name_calls $PWD $OUT/elsewhere";
    let (ran, status) = site.run_buffered(script);
    ran.expect(0);
    status.assert_live();
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    for (kind, plainly, most) in NAMES {
        let marker = format!("marker-{kind}\"");
        let lines = calls.lines().skip_while(|line| !line.contains(&marker)).skip(1);
        // A descriptor that Rust's library closes in a build with debug assertions is asked for
        // first.
        let made: Vec<&str> = lines
            .take_while(|line| !line.contains("marker-end"))
            .filter(|line| !line.contains("F_GETFD"))
            .collect();
        println!("{kind:16} {:4} system calls of a hundred", made.len());
        assert!(made.len() >= 100 * plainly, "{kind}: {made:#?}");
        // What is remembered for a moment is looked at again now and then.
        let few = &made[..made.len().min(20)];
        assert!(made.len() <= 100 * most + 20, "{kind}, {}: {few:#?}", made.len());
    }
}

/// The calls that a traced program has made between two marks, by name.
fn all_between<'t>(calls: &'t str, from: &str, to: &str) -> Vec<&'t str> {
    let after = calls.lines().skip_while(|line| !line.contains(from)).skip(1);
    let lines = after.take_while(|line| !line.contains(to));
    // The number of the process comes first.
    lines.filter_map(|line| line.split_once(' ')?.1.trim_start().split('(').next()).collect()
}

/// The same but for those that give memory to pages of small files, several at once, when the
/// first is written.
fn between<'t>(calls: &'t str, from: &str, to: &str) -> Vec<&'t str> {
    all_between(calls, from, to).into_iter().filter(|&name| name != "madvise").collect()
}

/// How many of `calls` that many files take: but for looks at their folder, of two calls, which
/// come every 10 ms and not with each file.
fn calls_for_files(calls: &[&str], files: usize) -> usize {
    let looks = calls.iter().filter(|&&call| call == "readlinkat").count();
    assert!(looks <= files / 2, "{calls:?}");
    calls.len() - 2 * looks
}

/// Has the node manager traced, in `$OUT/manager`, while it has only `script` to do, until `until`
/// or the tracer ends; says `traced` where that is possible.
fn tracing_manager(script: &str, until: &str) -> String {
    format!(
        "manager=$($FOREBAY status | sed -n 's/.*node manager //p')\n\
         env -u LD_PRELOAD strace -f -y -o $OUT/manager -p $manager \
         2> /dev/null > /dev/null < /dev/null & tracer=$!\n\
         while kill -0 $tracer 2> /dev/null; do\n\
         grep -q 'TracerPid:.*[1-9]' /proc/$manager/status && echo traced && break\n\
         sleep 0.02; done\n\
         {script}\n\
         for i in {{1..1000}}; do [ -d /proc/$tracer ] || break\n\
         {until} && break\n\
         sleep 0.02; done\n\
         kill $tracer 2> /dev/null; wait $tracer; true"
    )
}

#[test]
fn a_new_small_file_takes_few_calls_of_its_program_and_of_the_manager() {
    const FILES: usize = 200;
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("creates.c", &[]) {
        return;
    }
    // The manager is traced from when it has nothing to do until it has a descriptor of each file.
    let script = tracing_manager(
        &format!("strace -f -o $OUT/calls $BIN/creates $PWD {FILES}"),
        &format!(
            "[ $(ls -l /proc/$manager/fd | grep -c 'store/') -ge {} ] && echo found",
            3 * FILES
        ),
    );
    let (ran, status) = site.run_buffered(&script);
    let said = ran.expect(0).stdout;
    assert!(status.count("writes") >= 3 * FILES as u64, "{}", status.text);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    // One of them gets memory for the file's page; a relative path needs the canonical one, too.
    for (kind, most) in [("absolute", 5), ("truncating", 5), ("relative", 6)] {
        let made = all_between(&calls, &format!("{kind}-begins"), &format!("{kind}-ends"));
        println!("{kind}: {} system calls for {FILES} files", made.len());
        assert!(made.len() >= 4 * FILES, "{kind}: {made:?}");
        let taken = calls_for_files(&made, FILES);
        assert!(taken <= most * FILES + 20, "{kind}, {taken}: {made:?}");
        // The manager finds the files itself, and is not woken for each of them.
        assert!(!made.contains(&"sendmsg"), "{kind}: {made:?}");
        assert!(made.iter().filter(|&&call| call == "futex").count() <= 10, "{kind}: {made:?}");
    }
    if !said.contains("traced") {
        return skip("strace may not attach to the node manager");
    }
    assert!(said.contains("found"), "the manager has not found all files: {said}");
    let calls = std::fs::read_to_string(site.out.join("manager")).unwrap();
    let store = format!("{}", site.store.display());
    let of_files = |line: &&str| line.contains(&store) && !line.contains("resumed>");
    let made = calls.lines().filter(of_files).count();
    println!("{made} system calls of the manager for {} files", 3 * FILES);
    assert!(made >= 3 * FILES, "{calls}");
    assert!(made <= 4 * 3 * FILES, "{made}: {calls}");
}

#[test]
fn a_small_file_that_is_written_through_takes_no_call_of_the_manager() {
    const FILES: usize = 200;
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"1s\"", ..LAZY });
    if !site.compile("creates.c", &[]) {
        return;
    }
    // The manager is traced until it has forgotten the files, which it has then looked at.
    let script = tracing_manager(
        &format!("strace -f -o $OUT/calls $BIN/creates $PWD {FILES}"),
        &format!(
            "$FOREBAY explain --json relative-{} | grep -q '\"file\":null' && echo forgotten",
            FILES - 1
        ),
    );
    let words = [("FOREBAY_SMALL_FILES", "write-through")];
    let (ran, status) = site.run_buffered_with(&words, &script);
    let said = ran.expect(0).stdout;
    assert!(status.count("small_files") >= 3 * FILES as u64, "{}", status.text);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    // Open, look, marker, write and close; a relative path needs the canonical one, too.
    for (kind, most) in [("absolute", 5), ("truncating", 5), ("relative", 6)] {
        let made = all_between(&calls, &format!("{kind}-begins"), &format!("{kind}-ends"));
        println!("{kind}: {} system calls for {FILES} files", made.len());
        let writes = made.iter().filter(|&&call| call == "pwrite64").count();
        assert_eq!(writes, FILES, "{kind}: {made:?}");
        let taken = calls_for_files(&made, FILES);
        assert!(taken <= most * FILES + 20, "{kind}, {taken}: {made:?}");
    }
    if !said.contains("traced") {
        return skip("strace may not attach to the node manager");
    }
    assert!(said.contains("forgotten"), "the manager keeps the files: {said}");
    let calls = std::fs::read_to_string(site.out.join("manager")).unwrap();
    let of_files =
        |line: &&str| ["absolute-", "truncating-", "relative-"].iter().any(|of| line.contains(of));
    let made: Vec<_> = calls.lines().filter(of_files).collect();
    println!("{} system calls of the manager for {} files", made.len(), 3 * FILES);
    // A file that the manager's look has found open is buffered from then on.
    assert!(made.len() <= 3 * FILES / 10, "{made:#?}");
}

#[test]
fn a_small_file_is_copied_into_the_store_by_two_calls() {
    const FILES: usize = 50;
    if !works(&["strace", "-o", "/dev/null", "true"]) || !have(&["python3"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"60s\"", ..LAZY });
    let program = "import os, sys\n\
        out, files = sys.argv[1], int(sys.argv[2])\n\
        for at in range(files):\n\
        \x20   with open(f'{out}/s{at}', 'wb') as source: source.write(b'a' * 3000)\n\
        os.access('copies-begin', 0)\n\
        for at in range(files):\n\
        \x20   source = os.open(f'{out}/s{at}', os.O_RDONLY)\n\
        \x20   target = os.open(f'd{at}', os.O_WRONLY | os.O_CREAT | os.O_EXCL)\n\
        \x20   while os.copy_file_range(source, target, 1 << 60) > 0: pass\n\
        \x20   os.close(target), os.close(source)\n\
        os.access('copies-end', 0)\n";
    std::fs::write(site.out.join("copies.py"), program).unwrap();
    let script = format!("strace -f -o $OUT/calls python3 -IS $OUT/copies.py $OUT {FILES}");
    let (ran, status) =
        site.run_buffered_with(&[("FOREBAY_SMALL_FILES", "write-through")], &script);
    ran.expect(0);
    assert!(status.count("small_files") >= FILES as u64, "{}", status.text);
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let made = all_between(&calls, "copies-begin", "copies-end");
    // The copy, and the look that finds the end; nothing goes through the program's memory. A file
    // that the manager's look has found open is buffered after its first copy.
    let copies = made.iter().filter(|&&call| call == "copy_file_range").count();
    assert!((2 * FILES - 5..=2 * FILES).contains(&copies), "{copies}: {made:?}");
    assert!(!made.iter().any(|call| matches!(*call, "pread64" | "pwrite64")), "{made:?}");
    // Open, look and close of both, with a look at the folder for relative names, and the marker.
    println!("{} system calls for {FILES} copies", made.len());
    assert!(calls_for_files(&made, FILES) <= 10 * FILES + 50, "{}: {made:?}", made.len());
}

#[test]
fn a_small_sync_is_made_by_its_caller() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("syncs.c", &[]) {
        return;
    }
    let (ran, status) = site.run_buffered("strace -f -o $OUT/calls $BIN/syncs");
    ran.expect(0);
    status.assert_live();
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let count = |calls: &[&str], name: &str| calls.iter().filter(|&&call| call == name).count();
    // The write, the sync, and what keeps the times: the manager has no part in it. It would be
    // woken by futex.
    let synced = between(&calls, "fsync-begins", "fsync-ends");
    assert_eq!((count(&synced, "pwrite64"), count(&synced, "fsync")), (49, 49), "{synced:?}");
    assert_eq!(count(&synced, "utimensat"), 49, "{synced:?}");
    assert_eq!(synced.len(), 49 * 5, "{synced:?}");
    // A file that does not grow gets its times once a second, and when it is closed.
    let again = between(&calls, "fsync-ends", "again-ends");
    assert_eq!((count(&again, "pwrite64"), count(&again, "fsync")), (50, 50), "{again:?}");
    assert!(again.len() <= 2 * 50 + 3 * 5, "{again:?}");
    let closed = between(&calls, "fsync-ends", "close-ends");
    assert!(count(&closed, "utimensat") >= 1, "{closed:?}");
    // What O_SYNC has made durable is not synced again.
    let through = between(&calls, "through-begins", "through-ends");
    assert_eq!(count(&through, "pwrite64"), 49, "{through:?}");
    assert_eq!(through.len(), 49 * 4, "{through:?}");
    let changed = between(&calls, "chmod-begins", "chmod-ends");
    assert!(changed.len() <= 2, "{changed:?}");
    // What was just written and can be executed now is brought to the store by its caller, without
    // a wait for the manager to close a descriptor of it.
    let executable = between(&calls, "execute-begins", "execute-ends");
    assert_eq!(count(&executable, "pwrite64"), 50, "{executable:?}");
    let waits = ["futex", "sendmsg", "nanosleep", "clock_nanosleep", "sched_yield"];
    assert!(!executable.iter().any(|call| waits.contains(call)), "{executable:?}");
    assert!(executable.len() <= 50 * 12, "{}: {executable:?}", executable.len());
}

#[test]
fn copies_to_pipes_and_private_mappings_take_few_calls() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    // Nothing is flushed meanwhile, but by the program.
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"60s\"", ..LAZY });
    if !site.compile("sends.c", &[]) {
        return;
    }
    let (ran, status) = site.run_buffered("strace -f -o $OUT/calls $BIN/sends counts file");
    ran.expect(0);
    status.assert_live();
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let count = |calls: &[&str], name: &str| calls.iter().filter(|&&call| call == name).count();
    for name in ["sendfile", "splice"] {
        let [first, begins, ends] = ["first", "begins", "ends"].map(|at| format!("{name}-{at}\""));
        // What was just written goes to the store, which would get it later, and from there.
        let written = between(&calls, &first, &begins);
        assert_eq!((count(&written, "pwrite64"), count(&written, name)), (1, 1), "{written:?}");
        // And a look at the offset's memory, when that is first used.
        assert!(written.len() <= 12 && count(&written, "futex") == 0, "{written:?}");
        let copied = between(&calls, &begins, &ends);
        assert_eq!((count(&copied, name), count(&copied, "read")), (50, 50), "{copied:?}");
        assert_eq!(copied.len(), 100, "{copied:?}");
    }
    let little = between(&calls, "little-begins", "little-ends");
    assert_eq!((count(&little, "pwritev2"), count(&little, "pwrite64")), (1, 0), "{little:?}");
    // The manager has no part in a private mapping of a file just written, and that stays in RAM.
    let mapped = between(&calls, "map-begins", "map-ends");
    assert_eq!((count(&mapped, "mmap"), count(&mapped, "pwrite64")), (1, 1), "{mapped:?}");
    assert!(mapped.len() <= 8 && count(&mapped, "futex") == 0, "{mapped:?}");
    assert!(between(&calls, "again-begins", "again-ends").is_empty());
}

/// A file of the store of `kibibytes`, word n of which is what `cold.c` expects.
fn cold_file(site: &Site, kibibytes: u64) {
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let bytes: Vec<u8> = (0..kibibytes * 128).flat_map(word).collect();
    std::fs::write(site.store.join("file"), bytes).unwrap();
}

/// What a cold read of a file in the kernel's memory takes: one call of the program, and of the
/// manager none, because nothing is staged.
#[test]
fn what_is_read_once_takes_one_call_and_no_bucket() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    for (count, stride, bytes, order) in
        [(64, 262_144, 4096, "random"), (16, 1 << 20, 1 << 20, "row"), (4096, 4096, 4096, "row")]
    {
        let site = Site::new(&LAZY);
        if !site.compile("cold.c", &[]) {
            return;
        }
        cold_file(&site, 16 << 10);
        let (ran, status) = site.run_buffered(&format!(
            "strace -f -o $OUT/calls $BIN/cold read file {count} {stride} {bytes} 1 {order}; \
             \"$FOREBAY\" status"
        ));
        let said = ran.expect(0).stdout;
        assert_eq!(status.count("missed_bytes"), count * bytes, "{}", status.text);
        assert!(said.contains("tier ram      0 B of"), "something was staged: {said}");
        let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
        let between = calls.lines().skip_while(|line| !line.contains("marker")).skip(1);
        let between: Vec<_> = between.take_while(|line| !line.contains("marker")).collect();
        let reads = between.iter().filter(|line| line.contains("pread")).count() as u64;
        assert_eq!(reads, count, "{between:#?}");
        // The first use of a buffer may have to look whether it is one.
        let others = between.iter().filter(|line| !line.contains("pread"));
        assert!(others.clone().count() <= 8, "{:#?}", others.collect::<Vec<_>>());
    }
}

#[test]
fn what_begins_within_a_page_of_a_slot_is_read_by_one_request() {
    if !works(&["strace", "-o", "/dev/null", "true"]) || !have(&["python3"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    let rule = "[[rule]]\npath = \"below\"\ntier = \"nvme\"\n";
    std::fs::write(&site.config, std::fs::read_to_string(&site.config).unwrap() + rule).unwrap();
    // As HDF5's pieces lie, behind a header, and pieces within two pages.
    let program = "import os\n\
        file = os.open('below', os.O_RDWR | os.O_CREAT)\n\
        data = bytes(n * 7919 >> 5 & 255 for n in range(1 << 20))\n\
        os.write(file, data)\n\
        os.access('first-mark', 0)\n\
        found = [(at, os.pread(file, size, at))\n    \
        for at in range(2048, 1 << 20, 1 << 18) for size in (65536, 2050)]\n\
        os.access('last-mark', 0)\n\
        assert all(part == data[at:at + len(part)] for at, part in found)\n\
        assert [len(part) for _, part in found] == 4 * [65536, 2050]\n";
    std::fs::write(site.out.join("pieces.py"), program).unwrap();
    let calls = "trace=access,faccessat,faccessat2,pread64,preadv,preadv2,read";
    let script = format!("strace -f -o $OUT/calls -e {calls} python3 $OUT/pieces.py");
    let (ran, status) = site.run_buffered(&script);
    ran.expect(0);
    status.assert_live();
    let calls = std::fs::read_to_string(site.out.join("calls")).unwrap();
    let made = all_between(&calls, "first-mark", "last-mark");
    // Pieces at equal distances come to RAM before the last ones are read.
    assert!((4..=8).contains(&made.len()), "{made:?}");
}

/// System calls of a node manager in five seconds of a run that does nothing any more, with
/// `files` files that it knows. `None` where it cannot be traced.
fn calls_of_an_idle_manager(files: u32) -> Option<Vec<String>> {
    let site = Site::new(&USUAL);
    let script = format!(
        "manager=$($FOREBAY status | sed -n 's/.*node manager //p')\n\
         for ((i = 0; i < {files}; i++)); do echo $i > file-$i; done; sync\n\
         env -u LD_PRELOAD strace -f -ttt -o $OUT/calls -p $manager \
         2> /dev/null > /dev/null < /dev/null & tracer=$!\n\
         while kill -0 $tracer 2> /dev/null; do\n\
         grep -q 'TracerPid:.*[1-9]' /proc/$manager/status && echo traced && break\n\
         sleep 0.02; done\n\
         sleep 11; echo $EPOCHREALTIME > $OUT/ended\n\
         kill $tracer 2> /dev/null; wait $tracer; true"
    );
    let (ran, status) = site.run_buffered(&script);
    if !ran.expect(0).stdout.contains("traced") {
        return None;
    }
    assert!(status.count("writes") >= u64::from(files), "{}", status.text);
    let read = |name: &str| std::fs::read_to_string(site.out.join(name)).unwrap();
    let ended: f64 = read("ended").trim().parse().unwrap();
    let is_last = |line: &&str| {
        let time = line.split_whitespace().nth(1).and_then(|time| time.parse::<f64>().ok());
        time.is_some_and(|time| (ended - 6.0..ended - 1.0).contains(&time))
            && !line.contains("resumed>")
    };
    Some(read("calls").lines().filter(is_last).map(str::to_owned).collect())
}

#[test]
fn a_manager_without_anything_to_do_does_nothing() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    for files in [0, 4000] {
        let Some(calls) = calls_of_an_idle_manager(files) else {
            return skip("strace may not attach to the node manager");
        };
        println!("{files} files: {} system calls in five seconds", calls.len());
        // One a second to see whether programs did anything, and now and then one of a thread that
        // looks after what cools.
        assert!(calls.len() <= 10, "{files} files: {calls:#?}");
    }
}

/// System calls of a program as strace has them, those of the loader with the library's own. A
/// build with debug assertions looks besides for what injects faults, and whether descriptors that
/// it closes are open.
fn calls_of(trace: &str) -> Vec<&str> {
    let mut looks = false;
    let is_call = |line: &&str| {
        looks |= line.contains("/proc/self/environ");
        let counts = !looks && line.contains('(') && !line.contains("F_GETFD");
        looks &= !line.contains("close(");
        counts
    };
    trace.lines().filter(is_call).collect()
}

/// Those of `calls` that are more by their name than in `without`, but for searches that find
/// nothing.
fn more_of<'a>(calls: &[&'a str], without: &[&str]) -> Vec<&'a str> {
    fn name<'b>(call: &&'b str) -> &'b str {
        call.split('(').next().unwrap_or_default()
    }
    let mut left: Vec<&str> = without.iter().map(name).collect();
    let is_more = |call: &&&str| {
        let place = left.iter().position(|other| *other == name(call));
        place.map(|place| left.swap_remove(place)).is_none()
    };
    calls.iter().filter(|call| !call.contains("ENOENT")).filter(is_more).copied().collect()
}

/// For what the loader searches for libraries in the folders that cargo gives its tests, it takes a
/// page more or less, by the length of their names.
const OWN_LIBRARIES: &str = "unset LD_LIBRARY_PATH\n";

/// Another library in the place of ours, which does nothing: $OUT/empty.so.
fn link_empty_library(site: &Site) -> bool {
    let made = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"])
        .arg(site.out.join("empty.so"))
        .status();
    made.is_ok_and(|made| made.success())
}

#[test]
fn a_program_that_starts_makes_few_system_calls_more() {
    /// Three for the first memory of the heap, which a program that does something takes itself;
    /// one less, because the loader protects nothing. A linker may make one more segment of the
    /// library.
    const NOTHING: usize = 2;
    /// The same, four to map the pool, three that find out which user and process this is and in
    /// which namespace; four before the first path is read, which find out what memory there is,
    /// and one of the open, which finds out what was opened.
    const OPENS: usize = 14;
    const SEGMENTS: usize = 4;
    /// The fewest count: one that finds something locked waits.
    const STARTS: usize = 5;
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("nothing.c", &[]) {
        return;
    }
    if !link_empty_library(&site) {
        return skip("no library can be linked");
    }
    let script = format!(
        "{OWN_LIBRARIES}for time in $(seq {STARTS}); do\n\
         strace -o $OUT/nothing-$time $BIN/nothing < /dev/null > /dev/null\n\
         strace -o $OUT/opens-$time $BIN/nothing /dev/null < /dev/null > /dev/null\n\
         done\n\
         export FOREBAY_DISABLE=1\n\
         strace -E LD_PRELOAD=$OUT/empty.so -o $OUT/nothing $BIN/nothing < /dev/null > /dev/null\n\
         strace -E LD_PRELOAD=$OUT/empty.so -o $OUT/opens $BIN/nothing /dev/null < /dev/null > /dev/null\n\
         unset FOREBAY_DISABLE\n\
         echo here > opened; exec 5< opened\n\
         strace -o $OUT/inherits $BIN/nothing < /dev/null > /dev/null"
    );
    site.run_buffered(&script).0.expect(0);
    let read = |name: &str| std::fs::read_to_string(site.out.join(name)).unwrap();
    for (what, most) in [("nothing", NOTHING), ("opens", OPENS)] {
        let empty = read(what);
        let joined: Vec<_> = (1..=STARTS).map(|time| read(&format!("{what}-{time}"))).collect();
        let without = calls_of(&empty);
        let starts: Vec<_> = joined.iter().map(|trace| calls_of(trace)).collect();
        let counts: Vec<_> = starts.iter().map(Vec::len).collect();
        let calls = starts.iter().min_by_key(|calls| calls.len()).unwrap();
        let more = calls.len().saturating_sub(without.len());
        println!("{what}: {more} system calls more, of {counts:?} and {}", without.len());
        let segments = calls.iter().skip_while(|call| !call.contains("libforebay_preload"));
        let segments = segments.take_while(|call| !call.starts_with("close"));
        let segments = segments.filter(|call| call.starts_with("mmap")).count();
        let most = most + segments.saturating_sub(SEGMENTS).min(1);
        let found = more_of(calls, &without);
        assert!(more <= most, "{more} more, of {counts:?}: {found:#?}\n{calls:#?}\n{without:#?}");
        let looks = |what: &str| calls.iter().any(|call| call.contains(what));
        assert!(!looks("libgcc_s"), "{calls:#?}");
        // The pool is mapped, writable, by a program that joins, and by no other.
        let joins = looks("PROT_READ|PROT_WRITE, MAP_SHARED");
        assert_eq!(joins, what == "opens", "{calls:#?}");
        assert_eq!(looks("/proc"), joins && looks("/proc/self/ns/pid"), "{calls:#?}");
    }
    // One that it has inherited is looked at, and no other.
    let inherits = read("inherits");
    assert!(!inherits.contains("/proc/self/fd\""), "{inherits}");
    assert!(inherits.contains("lseek(5") && !inherits.contains("lseek(0"), "{inherits}");
}

/// System calls that a traced program makes to start a child and to wait for it, and those of the
/// child: of the ones that took the fewest, as a child that comes to its start late, or whose
/// parent has not looked for a while, asks more.
fn calls_of_a_child(trace: &str) -> usize {
    let mut processes: std::collections::BTreeMap<&str, String> = Default::default();
    for line in trace.lines() {
        let Some((process, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if !call.starts_with("<...") {
            let all = processes.entry(process).or_default();
            all.push_str(call);
            all.push('\n');
        }
    }
    let parent = trace.split_once(' ').unwrap().0;
    let parents = calls_of(&processes.remove(parent).unwrap()).join("\n");
    // From one wait to the next; what comes before the second, and after the last, is not that.
    let between: Vec<_> = parents.split("wait4(").map(|calls| calls.lines().count()).collect();
    let between = between[2..between.len() - 1].iter().min().unwrap();
    processes.values().map(|calls| calls_of(calls).len()).min().unwrap() + between
}

/// How a child is started, and how many system calls more it may cost than with a library that does
/// nothing. One of posix_spawn joins at its start; it sets 130 handlers first, and where strace
/// watches that, it has to ask /proc when it started: three of these.
const STARTS: [(&str, usize); 4] = [("fork", 1), ("forked", 5), ("vforked", 4), ("spawned", 13)];

#[test]
fn a_child_costs_few_system_calls_more() {
    const CHILDREN: usize = 40;
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    let site = Site::new(&LAZY);
    if !site.compile("nothing.c", &[]) || !site.compile("children.c", &[]) {
        return;
    }
    if !link_empty_library(&site) {
        return skip("no library can be linked");
    }
    // What was just built is looked at more closely than what is known.
    let kinds = STARTS.map(|(how, _)| how).join(" ");
    let script = format!(
        "{OWN_LIBRARIES}sleep 2.5; for how in {kinds}; do\n\
         strace -f -o $OUT/joined-$how $BIN/children $how {CHILDREN} $BIN/nothing\n\
         FOREBAY_DISABLE=1 strace -f -E LD_PRELOAD=$OUT/empty.so -o $OUT/empty-$how \
         $BIN/children $how {CHILDREN} $BIN/nothing\n\
         done"
    );
    site.run_buffered(&script).0.expect(0);
    let read = |name: String| std::fs::read_to_string(site.out.join(name)).unwrap();
    let counted = STARTS.map(|(how, most)| {
        let joined = calls_of_a_child(&read(format!("joined-{how}")));
        let empty = calls_of_a_child(&read(format!("empty-{how}")));
        println!("{how:8} {joined} system calls, {empty} without");
        (how, joined, empty, most)
    });
    for (how, joined, empty, most) in counted {
        assert!(joined > empty && empty > 2, "{how}: {counted:?}");
        // A linker may make one more segment of the library.
        let segments = usize::from(how != "fork");
        assert!(joined <= empty + most + segments, "{how}: {counted:?}");
    }
}
