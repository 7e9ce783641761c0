//! Programs that do what few do: handlers that write, limits, closed descriptors, other roots.

use crate::harness::{LAZY, LIMIT, SLOW_STORE, Setup, Site, TINY, skip, wait_for, works};
use std::os::unix::fs::PermissionsExt;

fn seed() -> u32 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        std::process::id() ^ std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()
    });
    eprintln!("FOREBAY_SEED={seed}");
    seed
}

/// Runs a part of a program of `programs` with and without Forebay.
fn same(setup: &Setup, source: &str, words: &str) {
    let site = Site::new(setup);
    if site.compile(source, &["-pthread", "-lrt"]) {
        let name = source.trim_end_matches(".c");
        site.same(&format!("$BIN/{name} {words}"));
    }
}

#[test]
fn handlers_write_to_what_they_interrupt() {
    let seed = seed();
    for setup in [&LAZY, &SLOW_STORE, &TINY] {
        same(setup, "signals.c", &format!("storm file {seed}"));
    }
}

#[test]
fn handlers_that_never_return_leave_nothing_locked() {
    same(&LAZY, "signals.c", &format!("jumps file {}", seed()));
}

#[test]
fn handlers_are_called_as_sigaction_promises() {
    same(&LAZY, "signals.c", "promises file");
}

#[test]
fn threads_are_cancelled_where_they_read_and_write() {
    same(&LAZY, "signals.c", "cancelled file");
}

#[test]
fn glibcs_asynchronous_requests_are_buffered() {
    let site = Site::new(&LAZY);
    if site.compile("aio.c", &["-pthread", "-lrt"]) {
        let status = site.same("$BIN/aio file");
        assert!(status.count("writes") >= 66 && status.count("reads") >= 64, "{}", status.text);
        assert_eq!(status.count("passthrough"), 0, "{}", status.text);
    }
}

#[test]
fn buffers_that_are_invalid_in_part_are_used_up_to_there() {
    same(&LAZY, "limits.c", "buffers file");
    same(&TINY, "limits.c", "buffers file");
}

#[test]
fn lengths_and_counts_have_the_kernels_limits() {
    same(&LAZY, "limits.c", "lengths file");
}

#[test]
fn flags_of_preadv2_and_pwritev2_do_what_they_say() {
    same(&LAZY, "limits.c", "flags file");
}

#[test]
fn files_end_at_the_limits_of_program_and_store() {
    same(&LAZY, "limits.c", "sizes file");
}

#[test]
fn a_run_under_a_limit_on_file_sizes_drains() {
    let site = Site::new(&LAZY);
    let script = "ulimit -S -f 2000; $FOREBAY run --config $CONFIG -- sh -c \
        'head -c 2000000 /dev/zero > small; head -c 3000000 /dev/zero > large; echo $?' 2>&1; ls -s small large";
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", script]).env("CONFIG", &site.config);
    let ran = site.end(command).expect(0);
    let mut plain = site.command(&site.plain, "bash");
    plain.args(["-c", &script.replace("$FOREBAY run --config $CONFIG --", "")]);
    assert_eq!(ran.stdout, site.end(plain).stdout);
}

fn edge_case(what: &str) {
    same(&LAZY, "edge_cases.c", what);
}

#[test]
fn a_program_goes_on_in_another_root_directory() {
    if rustix::process::geteuid().is_root() {
        edge_case("chroot");
    } else {
        skip("only root may call chroot");
    }
}

#[test]
fn a_program_goes_on_as_another_user() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may become another user");
    }
    for what in ["setuid", "inherited"] {
        let site = Site::new(&LAZY);
        if site.compile("edge_cases.c", &["-pthread"]) {
            for folder in [site.root(), &site.store, &site.plain] {
                std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
            }
            site.same(&format!("$BIN/edge_cases {what}"));
        }
    }
}

#[test]
fn a_program_that_may_make_few_system_calls_goes_on() {
    edge_case("filtered");
    edge_case("strict");
}

#[test]
fn children_start_in_storms() {
    edge_case("storm");
    edge_case("environment");
    edge_case("clone");
}

#[test]
fn two_thousand_threads_write() {
    edge_case("threads");
}

#[test]
fn system_calls_by_number_are_seen() {
    edge_case("raw");
    edge_case("raw-changes");
}

#[test]
fn a_daemon_outlives_the_run() {
    let site = Site::new(&LAZY);
    if !site.compile("edge_cases.c", &["-pthread"]) {
        return;
    }
    let ran =
        site.end(site.buffered(&[site.root().join("edge_cases").to_str().unwrap(), "daemon"]));
    assert!(ran.code == 0, "{ran:?}");
    let drained = || (site.pools().is_empty() && site.store.join("done").exists()).then_some(());
    wait_for("the manager to drain what the daemon wrote", LIMIT, drained);
    let text = |name| std::fs::read_to_string(site.store.join(name)).unwrap();
    assert_eq!(text("daemon"), "start\nparent\nlate\n");
    assert_eq!(text("second"), "later\n");
}

#[test]
fn descriptors_run_out_are_closed_and_are_replaced() {
    if !works(&["python3", "-c", "pass"]) {
        return skip("python3 is missing");
    }
    let site = Site::new(&LAZY);
    let status = site.same(
        "python3 - <<'P'
import os, resource
fd = os.open('closed', os.O_RDWR | os.O_CREAT)
os.write(fd, b'abc')
for number in range(3, 65536):
    try:
        os.close(number)
    except OSError:
        pass
fd = os.open('closed', os.O_RDWR)
print(fd, os.read(fd, 10), os.write(fd, b'def'), os.fsync(fd), os.fstat(fd).st_size)
os.closerange(3, 1 << 20)
fd = os.open('closed', os.O_RDWR)
print(fd, os.read(fd, 10))
big = b'q' * (80 << 20)
print(os.pwrite(fd, big, 0), os.pread(fd, 80 << 20, 0) == big)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for number in range(880, min(limit, 1100)):
    os.dup2(fd, number)
os.pwrite(fd, b'12345', 7)
print(os.pread(fd, 80 << 20, 0)[:20], os.pread(1000, 10, 5), os.fsync(fd))
P
        python3 - <<'P'
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
fds = []
try:
    while True:
        fds.append(os.open('few', os.O_RDWR | os.O_CREAT))
except OSError as error:
    print(error.errno, len(fds) > 10)
os.write(fds[0], b'x' * 300000)
os.write(fds[1], b'hello')
print(os.pread(fds[2], 10, 0), os.fstat(fds[0]).st_size)
for fd in fds:
    os.close(fd)
print(open('few').read()[:10])
P",
    );
    assert_eq!(status.count("write_around"), 0, "{}", status.text);
}

#[test]
fn twelve_thousand_descriptors_are_open() {
    if !works(&["bash", "-c", "ulimit -n 20000 && python3 -c pass"]) {
        return skip("python3 is missing, or descriptors are");
    }
    Site::new(&LAZY).same(
        "ulimit -n 20000; python3 - <<'P'
import os
fds = [os.open('many', os.O_RDWR | os.O_CREAT, 0o644) for number in range(12000)]
for number, fd in enumerate(fds):
    os.pwrite(fd, b'%05d\\n' % number, number * 6)
copies = [os.dup(fds[5]) for number in range(3000)]
os.lseek(copies[77], 50, 0)
print(os.lseek(fds[5], 0, 1), os.fstat(fds[9]).st_size)
print(os.pread(fds[11999], 6, 6 * 11999), os.pread(fds[0], 12, 6 * 6000))
child = os.fork()
if child == 0:
    os.pwrite(fds[10000], b'child', 0)
    os._exit(0)
print(os.waitpid(child, 0)[1], os.pread(fds[1], 6, 0))
P",
    );
}

#[test]
fn programs_run_in_little_memory() {
    Site::new(&LAZY).same(
        "(ulimit -v 400000; echo one > some; cat some; wc -c some)
         (ulimit -v 30000; echo two > little; cat little; exec 3>> little; echo three >&3; cat little >&3; cat little)
         exec 4>> mixed; echo a >&4; (ulimit -v 30000; cat mixed >&4; cat mixed; echo b > new); cat new; echo c >&4; cat mixed
         { (ulimit -c 0; sh -c 'echo a > core; kill -SEGV $$'); } 2> /dev/null; echo $?; cat core
         (ulimit -u 4000; sh -c 'cat core'; ulimit -s 512; cat core)",
    );
}

#[test]
fn names_are_whatever_the_kernel_makes_of_them() {
    Site::new(&LAZY).same(
        "mkdir -p a/b real; echo one > real/f; ln -s real link; ln -s ../real/f a/up; ln -s $PWD/real/f absolute
         echo two >> link/f; echo three >> a/up; echo four >> ./a/../real/./f
         (cd a/b; echo five >> ../../real/f; cat ../../link/f); cat absolute; wc -c a/up
         ln real/f hard; echo six >> hard; stat -c '%s %h' real/f; mv real moved; wc -l < hard
         echo seven >> moved/f; tail -1 hard; umask 077; echo x > masked; stat -c %a masked
         rm link a/up absolute; (cd moved; rm ../hard; echo eight >> f; cd ..; cat moved/f)",
    );
}

#[test]
fn listings_show_buffered_sizes() {
    Site::new(&LAZY).same(
        "head -c 300000 /dev/zero > big; yes | head -c 5000000 > big2; echo small > small
         ls -l big big2 small | awk '{print $5, $9}'; du --apparent-size -b big big2; ls -S
         find . -type f -size +200k | sort; find . -name 'big*' -printf '%s %p\\n' | sort; stat -c '%s %n' *
         test -s big && echo nonempty; du -k big2 | awk '{print ($1 >= 4800)}'
         truncate -s 100 big; wc -c big; tar cf all.tar big big2; tar tvf all.tar | awk '{print $3, $6}'; rm all.tar
         cp -a big2 big3; cmp big2 big3 && echo same; dd if=big2 of=dd bs=1000 count=7 seek=3 conv=notrunc status=none
         split -b 1000000 big2 part; cat part* | cmp - big2 && echo split; echo text | tee t1 t2; sed -i s/text/TEXT/ t1; cat t1 t2",
    );
}

#[test]
fn a_program_runs_under_valgrind() {
    if !works(&["valgrind", "-q", "true"]) {
        return skip("valgrind is missing");
    }
    let site = Site::new(&LAZY);
    if site.compile("aio.c", &["-g", "-pthread", "-lrt"]) && site.compile("append.c", &["-g"]) {
        let status = site.same(
            "valgrind -q --error-exitcode=9 sh -c 'echo one > log; cat log; echo two >> log; wc -c < log' 2>&1",
        );
        assert!(status.count("writes") >= 2, "{}", status.text);
        let (ran, _) = site.run_buffered("valgrind -q --error-exitcode=9 $BIN/aio file 2> errors; echo $?; grep -c 'Invalid\\|uninit' errors");
        assert!(ran.stdout.ends_with("0\n"), "{ran:?}");
    }
}

#[test]
fn a_program_is_traced() {
    if !works(&["strace", "-o", "/dev/null", "true"]) {
        return skip("no strace, or it may not trace");
    }
    Site::new(&LAZY).same(
        "strace -f -o /dev/null sh -c 'echo one > log; cat log | cat; echo two >> log; cat log'",
    );
}

#[test]
fn a_ring_of_the_programs_own_works_on_the_store() {
    if !works(&["fio", "--version"]) {
        return skip("fio is missing");
    }
    let site = Site::new(&LAZY);
    for engine in ["io_uring", "libaio", "posixaio"] {
        let job = format!(
            "head -c 3000000 /dev/zero > file; fio --name=job --filename=file --size=8M --rw=randrw --bs=4k \\
             --ioengine={engine} --iodepth=8 --verify=crc32c --fallocate=none > $OUT/log 2>&1 || cat $OUT/log; rm file"
        );
        let (ran, status) = site.run_buffered(&job);
        assert!(ran.code == 0 && ran.stdout.is_empty(), "{engine}: {ran:?}");
        status.assert_live();
    }
}

#[test]
fn names_from_a_directory_are_what_they_are() {
    for setup in [&LAZY, &SLOW_STORE] {
        same(setup, "relative_names.c", "");
    }
}

#[test]
fn names_in_a_folder_just_used_are_what_they_are() {
    for setup in [&LAZY, &SLOW_STORE] {
        same(setup, "small_files.c", "");
    }
}
