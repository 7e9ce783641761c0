//! New small files on a store that takes them as quickly as the tiers: written through until they
//! are no such files any more, and what other processes see of them.

use crate::harness::{Ran, SLOW_STORE, Setup, Site, Status, USUAL, have, skip, wait_for};
use std::io::Write;
use std::time::Duration;

/// Nothing is flushed by itself before a run ends.
const SELDOM: Setup = Setup { flush: "trigger = \"periodic\"\nperiod = \"60s\"", ..USUAL };
const THROUGH: [(&str, &str); 1] = [("FOREBAY_SMALL_FILES", "write-through")];

/// Runs a Python program in the buffered directory, as `program.py` of the folder for what is left
/// outside.
fn run(site: &Site, program: &str) -> (Ran, Status) {
    std::fs::write(site.out.join("program.py"), program).unwrap();
    site.run_buffered_with(&THROUGH, "exec python3 -IS $OUT/program.py")
}

const GROWS: &str = r#"
import json, os, subprocess, time
out, forebay = os.environ['OUT'], os.environ['FOREBAY']
def shown(name):
    open(f'{out}/{name}', 'w').close()
    while not os.path.exists(f'{out}/{name}-seen'):
        time.sleep(0.01)
def made(name, *texts):
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    for text in texts:
        assert os.write(fd, text) == len(text)
    return fd
def told(name):
    said = subprocess.run([forebay, 'explain', '--json', name], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(said)['file']
os.close(made('small', b's' * 4096))
grown = made('grown', b'g' * 100000, b'h' * 100000)
large = made('large', b'l' * 1000000)
changed = made('changed', b'c' * 100000, b'd' * 100000)
ruled = made('ruled', b'r' * 4096)
assert not told('ruled')['direct'], 'a rule may hold when it grows'
os.close(made('staged', b's' * 4096))
old = made('old', b'new')
synced = os.open('synced', os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o644)
assert not told('synced')['direct'] and told('grown')['ahead'] and not told('grown')['direct']
shown('made')
assert os.pread(grown, 300000, 0) == b'g' * 100000 + b'h' * 100000
assert os.fstat(grown).st_size == os.stat('grown').st_size == 200000
# It is emptied by an open that finds no record of it any more, or one of a file that is small.
with open('small', 'wb', buffering=0) as file:
    file.write(b'two')
subprocess.run([forebay, 'flush', 'changed'], stdout=subprocess.DEVNULL, check=True)
shown('again')
# What stays open is buffered after a moment.
log, lines, end = made('log', b'line\n'), 1, time.monotonic() + 60
while told('log')['direct']:
    assert time.monotonic() < end, 'it stays direct'
    os.write(log, b'line\n')
    lines += 1
os.write(log, b'line\n')
assert told('log')['ahead']
assert os.pread(log, 100000, 0) == b'line\n' * (lines + 1)
"#;

#[test]
fn small_files_are_written_through_until_they_grow_or_age() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&SELDOM);
    std::fs::write(site.store.join("old"), "old").unwrap();
    std::fs::write(site.out.join("program.py"), GROWS).unwrap();
    let rule = "[[rule]]\npath = \"ruled*\"\nsize_min = \"64KiB\"\ntier = \"ram\"\n";
    let config = std::fs::read_to_string(&site.config).unwrap();
    std::fs::write(&site.config, config + rule).unwrap();
    let mut command = site.buffered(&["bash", "-c", "exec python3 -IS $OUT/program.py"]);
    command.envs(THROUGH);
    let running = site.start(command);
    let limit = Duration::from_secs(60);
    let stored = |name: &str| std::fs::read(site.store.join(name)).unwrap();
    let marked = |name: &str| site.out.join(name).exists().then_some(());
    let seen = |name: &str| std::fs::write(site.out.join(format!("{name}-seen")), "").unwrap();
    wait_for("what is made first", limit, || marked("made"));
    assert_eq!(stored("small"), [b's'; 4096]);
    // The second write has made it larger than small files are.
    assert_eq!(stored("grown"), [b'g'; 100_000]);
    assert_eq!((stored("large").len(), stored("old")), (0, b"old".to_vec()));
    let others = std::fs::File::options().append(true).open(site.store.join("changed"));
    others.unwrap().write_all(b"theirs").unwrap();
    let staged = site.store.join("staged");
    site.end(site.forebay(&["stage-in", staged.to_str().unwrap()])).expect(0);
    seen("made");
    wait_for("a file that is emptied", limit, || marked("again"));
    assert_eq!(stored("small"), b"two");
    // What others do to it once it is buffered is noticed at the flush.
    let log = site.log();
    let conflict =
        log.lines().find(|line| line.contains("conflict: ") && line.contains("/changed"));
    assert!(conflict.is_some_and(|line| line.contains("grew from 100000 to 100006")), "{log}");
    seen("again");
    running.end().expect(0);
    assert_eq!(stored("grown"), [[b'g'; 100_000], [b'h'; 100_000]].concat());
    assert_eq!((stored("large"), stored("old")), (vec![b'l'; 1_000_000], b"new".to_vec()));
    assert!(stored("log").chunks(5).all(|line| line == b"line\n"));
}

const SHARED: &str = r#"
import mmap, os, subprocess, sys
def other(program):
    words = [sys.executable, '-IS', '-c', 'import mmap, os\n' + program]
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
def made(name):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
fd = made('f')
os.write(fd, b'a' * 1000)
assert other('print(open("f").read() == "a" * 1000)') == 'True\n'
other('os.write(os.open("f", os.O_WRONLY | os.O_APPEND), b"b" * 1000)')
assert os.fstat(fd).st_size == 2000 and os.pread(fd, 9000, 0) == b'a' * 1000 + b'b' * 1000
other('os.rename("f", "g"); os.link("g", "h"); os.unlink("g")')
os.pwrite(fd, b'c' * 10, 0)
assert other('print(open("h").read(10))') == 'c' * 10 + '\n'
# Another process makes it a large one, and this one sees that, and the other way round.
other('os.pwrite(os.open("h", os.O_WRONLY), b"d" * 300000, 2000)')
assert os.fstat(fd).st_size == 302000 and os.pread(fd, 400000, 1999) == b'b' + b'd' * 300000
os.pwrite(fd, b'e', 0)
assert other('print(open("h").read(2))') == 'ec\n'
other('os.truncate("h", 5)')
assert os.fstat(fd).st_size == 5 and os.pread(fd, 9, 0) == b'ecccc'
# One that is mapped stays direct, however large it becomes.
mapped = made('mapped')
os.write(mapped, b'm' * 4096)
with mmap.mmap(mapped, 4096) as view:
    os.pwrite(mapped, b'n' * 300000, 1)
    assert view[:4] == b'mnnn'
    view[0] = ord('o')
    assert other('print(open("mapped").read(3))') == 'onn\n'
    other('view = mmap.mmap(os.open("mapped", os.O_RDWR), 300001); view[300000] = 112; view.close()')
    assert os.pread(mapped, 9, 300000) == b'p'
os.pwrite(mapped, b'q', 300001)
assert os.pread(mapped, 9, 299999) == b'npq' and os.fstat(mapped).st_size == 300002
# Without a name.
gone = made('gone')
os.write(gone, b'x' * 100)
os.unlink('gone')
os.write(gone, b'y' * 300000)
assert os.pread(gone, 400000, 0) == b'x' * 100 + b'y' * 300000
os.close(gone)
# A file that gets the inode, and the record, of a small one that was removed is one by itself.
for turn in range(20):
    fd = made('turn')
    os.write(fd, b'%d' % turn)
    os.close(fd)
    os.unlink('turn')
    fd = made('large')
    os.write(fd, b'%d' % turn + b'z' * 300000)
    assert os.fstat(fd).st_size > 300000 and os.pread(fd, 2, 0) == (b'%dz' % turn)[:2]
    explain = [os.environ['FOREBAY'], 'explain', '--json', 'large']
    assert '"direct":false' in subprocess.run(explain, stdout=subprocess.PIPE, text=True).stdout, turn
    os.close(fd)
    os.unlink('large')
"#;

#[test]
fn processes_see_what_others_write_through() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&SELDOM);
    let (ran, status) = run(&site, SHARED);
    ran.expect(0);
    assert!(status.count("small_files") >= 3, "{}", status.text);
    let stored = |name: &str| std::fs::read(site.store.join(name)).unwrap();
    assert_eq!(stored("h"), b"ecccc");
    let mapped = [&b"o"[..], &[b'n'; 299_999], b"pq"].concat();
    assert_eq!(stored("mapped"), mapped);
}

const COPIES: &str = r#"
import ctypes, errno, mmap, os, subprocess, sys
out = os.environ['OUT']
def bytes_of(length):
    return bytes(at * 7 % 251 for at in range(length))
def made(name, flags=0):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
def source(name, length):
    with open(name, 'wb') as file:
        file.write(bytes_of(length))
    return os.open(name, os.O_RDONLY)
def copied(*words, **more):
    try:
        return os.copy_file_range(*words, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
# A whole file, as cp copies one; it is told of its end as by the kernel.
for length in 0, 1, 5000, 131071, 131072, 131073, 700000:
    out_of, fd = source(f'{out}/s{length}', length), made(f'whole-{length}')
    done = 0
    while (count := copied(out_of, fd, 1 << 60)) > 0:
        done += count
        assert os.lseek(out_of, 0, os.SEEK_CUR) == os.lseek(fd, 0, os.SEEK_CUR) == done
    assert (count, done) == (0, length), (length, count, done)
    os.write(fd, b'end')
    assert os.pread(fd, 1 << 20, 0) == bytes_of(length) + b'end', length
# With offsets, which alone move.
out_of, fd = source(f'{out}/s', 9000), made('offsets')
assert copied(out_of, fd, 500, offset_src=100, offset_dst=300) == 500
assert copied(out_of, fd, 500, offset_src=8900, offset_dst=0) == 100
assert os.lseek(out_of, 0, os.SEEK_CUR) == os.lseek(fd, 0, os.SEEK_CUR) == 0
assert copied(out_of, fd, 50, offset_dst=1000) == 50
assert (os.lseek(out_of, 0, os.SEEK_CUR), os.lseek(fd, 0, os.SEEK_CUR)) == (50, 0)
text = bytes_of(9000)
assert os.pread(fd, 5000, 0) == text[8900:] + bytes(200) + text[100:600] + bytes(200) + text[:50]
assert os.fstat(fd).st_size == os.stat('offsets').st_size == 1050
# From a file of the store: small, buffered and dirty, and clean.
small, dirty = made('small'), made('dirty')
os.write(small, text)
os.write(dirty, bytes_of(200000))
to = made('from-both')
assert copied(small, to, 4000, offset_src=0) == 4000
assert copied(dirty, to, 4000, offset_src=150000) == 4000
os.fsync(dirty)
assert copied(dirty, to, 4000, offset_src=1000) == 4000
whole = bytes_of(200000)
assert os.pread(to, 20000, 0) == text[:4000] + whole[150000:154000] + whole[1000:5000]
assert copied(small, small, 100, offset_src=0, offset_dst=5000) == 100
# One that is mapped is copied to in several pieces, from outside and from the store.
with open(f'{out}/long', 'wb') as file:
    file.write(whole * 15)
mapped, long = made('mapped'), os.open(f'{out}/long', os.O_RDONLY)
os.write(mapped, b'm')
with mmap.mmap(mapped, 1):
    assert copied(long, mapped, 1 << 60) == 3000000
    assert copied(long, mapped, 1 << 60) == 0
    assert copied(dirty, mapped, 200000, offset_src=0, offset_dst=1) == 200000
    assert os.lseek(long, 0, os.SEEK_CUR) == 3000000 == os.lseek(mapped, 0, os.SEEK_CUR) - 1
assert os.pread(mapped, 1 << 22, 0) == b'm' + whole * 15
# The length that is asked for counts, not what is copied at once.
fd = made('wraps')
os.write(fd, b'w' * 100)
assert copied(out_of, fd, (1 << 63) - 1, offset_src=8999) == 1
# What the kernel refuses.
assert copied(small, small, 5000, offset_src=0, offset_dst=100) == 'EINVAL'
assert copied(out_of, os.open('offsets', os.O_RDONLY), 10) == 'EBADF'
assert copied(out_of, made('appends', os.O_APPEND), 10) == 'EBADF'
assert copied(os.open(f'{out}/s', os.O_WRONLY), fd, 10) == 'EBADF'
assert copied(os.open('.', os.O_RDONLY), fd, 10) == 'EISDIR'
assert copied(os.pipe()[0], fd, 10) == 'EINVAL'
# Up to a limit, whose signal comes with the next call: within a small file, and where it ends.
LIMITED = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, lambda *_: print('signal'))
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
source, fd = os.open(sys.argv[1], os.O_RDONLY), os.open(f'limited-{limit}', os.O_RDWR | os.O_CREAT)
print(os.copy_file_range(source, fd, 1 << 40))
try:
    os.copy_file_range(source, fd, 1 << 40)
except OSError as error:
    print(error.errno)
"""
for limit in 6000, 131072:
    words = [sys.executable, '-IS', '-c', LIMITED, f'{out}/s700000', str(limit)]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout
    assert said == f'{limit}\nsignal\n{errno.EFBIG}\n', said
# One variable for both offsets moves once.
libc, at = ctypes.CDLL(None, use_errno=True), ctypes.c_longlong(10)
fd = made('one-offset')
for turn in range(2):
    both = ctypes.byref(at)
    assert libc.copy_file_range(out_of, both, fd, both, ctypes.c_size_t(1000), 0) == 1000
    assert at.value == 1010 + 1000 * turn
assert os.pread(fd, 9999, 10) == text[10:2010]
# Where the kernel has the offset: the file is the standard output of a program without Forebay, too.
script = f'exec > shared-offset; printf head; env -u LD_PRELOAD printf HEAD; cat {out}/s; printf tail'
subprocess.run(['sh', '-c', script], check=True)
assert open('shared-offset', 'rb').read() == b'headHEAD' + text + b'tail'
# Others see it at once, and it is theirs, too, as it grows.
fd = made('shared')
other = os.open('shared', os.O_RDWR)
assert copied(out_of, fd, 100000, offset_src=0) == 9000
assert os.pread(other, 9999, 0) == text
os.pwrite(other, bytes_of(300000), 0)
assert copied(out_of, fd, 100000, offset_src=0) == 9000
assert os.pread(other, 1 << 20, 0) == whole[:9000] + text + bytes_of(300000)[18000:]
"#;

#[test]
fn the_kernel_copies_to_small_files_as_without_forebay() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&SELDOM);
    let (ran, status) = run(&site, COPIES);
    ran.expect(0);
    site.run_plainly("exec python3 -IS $OUT/program.py").expect(0);
    assert!(status.count("small_files") >= 10, "{}", status.text);
    let plain = |length: usize| (0..length).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>();
    for length in [0, 1, 5000, 131_071, 131_072, 131_073, 700_000] {
        let stored = std::fs::read(site.store.join(format!("whole-{length}"))).unwrap();
        assert!(stored == [&plain(length)[..], b"end"].concat(), "{length}");
    }
    for limit in [6000, 131_072] {
        let stored = std::fs::read(site.store.join(format!("limited-{limit}"))).unwrap();
        assert!(stored == plain(limit), "{limit}");
    }
}

const KILLS: &str = r#"
import os, subprocess, sys
GROWS = '''
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, b'o' * 60000, 0)
os.pwrite(fd, b'n' * 100000, 60000)
'''
points = 'small.turning small.turned mapping.unmapped mapping.buffering mapping.buffered'.split()
for point in points:
    for is_open in (False, True):
        if is_open and point.startswith('small'):
            continue
        path = f'{point}-{is_open}'
        held = None
        if is_open:
            held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.write(held, b'o' * 50000)
        env = dict(os.environ, FOREBAY_CRASH=f'{point}:1')
        ended = subprocess.run([sys.executable, '-IS', '-c', GROWS, path], env=env).returncode
        assert ended == -9, f'{path}: {ended}'
        fd = os.open(path, os.O_RDWR)
        size = os.fstat(fd).st_size
        # One that has aged is buffered when it is opened, before the program writes to it.
        sizes = (0,) if point.startswith('small') else (50000, 60000) if is_open else (60000,)
        assert size in sizes, f'{path}: {size}'
        for seen in filter(None, (fd, held)):
            assert os.pread(seen, 200000, 0) == b'o' * size, path
        os.pwrite(fd, b'x' * 200000, size)
        for seen in filter(None, (fd, held)):
            assert os.pread(seen, 400000, 0) == b'o' * size + b'x' * 200000, path
            assert os.fstat(seen).st_size == size + 200000, path
            os.close(seen)
"#;

#[test]
fn a_kill_while_a_small_file_turns_loses_nothing() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&SELDOM);
    run(&site, KILLS).0.expect(0);
    let mut files = 0;
    for entry in std::fs::read_dir(&site.store).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let kept = bytes.len() - 200_000;
        assert!(bytes[..kept].iter().all(|&byte| byte == b'o'));
        assert!(bytes[kept..].iter().all(|&byte| byte == b'x'));
        files += 1;
    }
    assert_eq!(files, 8);
}

/// What `forebay explain` says of a file of a directory: whether new small files are written
/// through, and in how many nanoseconds its store takes one.
fn found(site: &Site) -> (bool, Option<u64>) {
    let words = [("FOREBAY_SMALL_FILES", "auto")];
    let (ran, _) = site.run_buffered_with(&words, "$FOREBAY explain --json none");
    let said: serde_json::Value = serde_json::from_str(&ran.expect(0).stdout).unwrap();
    (said["writes_through"].as_bool().unwrap(), said["small_file_ns"].as_u64())
}

#[test]
fn a_store_says_itself_whether_it_is_quick() {
    let (through, ns) = found(&Site::new(&SELDOM));
    match ns {
        Some(ns) => assert_eq!(through, ns <= 60_000, "{ns} ns"),
        None => assert!(!through, "nothing was measured"),
    }
    // An emulated store takes as long as it pretends, whatever lies below.
    let (through, ns) = found(&Site::new(&SLOW_STORE));
    assert!(!through && ns.is_none_or(|ns| ns >= 4_000_000), "{ns:?}");
}

#[test]
fn a_variable_that_says_nothing_known_is_refused() {
    let site = Site::new(&SELDOM);
    let mut command = site.buffered(&["true"]);
    command.env("FOREBAY_SMALL_FILES", "maybe");
    let ran = site.end(command).expect(125);
    assert!(ran.stderr.contains("FOREBAY_SMALL_FILES=maybe: give auto"), "{}", ran.stderr);
}
