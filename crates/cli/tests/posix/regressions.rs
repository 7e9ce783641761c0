//! Errors that were found by review: each test is named after what went wrong.

use crate::harness::{self, LAZY, Site, works};

/// Whether python3 is there; says so loudly if not.
fn python() -> bool {
    let there = works(&["python3", "-c", "pass"]);
    if !there {
        harness::skip("python3 is missing");
    }
    there
}

/// Has python3 run `script` in the plain and in the buffered directory, if it is there.
fn same_in_python(script: &str) {
    if python() {
        Site::new(&LAZY).same(&format!("python3 - <<'P'\n{script}\nP"));
    }
}

#[test]
fn a_descriptor_inherited_from_outside_lost_its_writes() {
    let site = Site::new(&LAZY);
    let script = "$FOREBAY run --config $CONFIG -- \
                  sh -c 'echo a; echo b >> out; echo c; echo d >> out' >> out; cat out";
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", script]).env("CONFIG", &site.config);
    let ran = site.end(command).expect(0);
    assert_eq!(ran.stdout, "a\nb\nc\nd\n", "{ran:?}");
}

#[test]
fn an_offset_that_the_store_cannot_have_was_accepted() {
    same_in_python(
        "import os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'small')
try:
    print(os.pwrite(fd, b'x', 1 << 60))
except OSError as error:
    print(error.errno)
print(os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd).st_size)",
    );
}

#[test]
fn a_file_lock_outlived_its_descriptor() {
    same_in_python(
        "import os, fcntl
for turn in range(20):
    fd = os.open('locked', os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, b'written under the lock')
    os.close(fd)
print('free every time')",
    );
}

#[test]
fn splice_waited_for_a_pipe_to_be_closed() {
    same_in_python(
        "import os
r, w = os.pipe()
os.write(w, b'0123456789')
fd = os.open('file', os.O_RDWR | os.O_CREAT)
splice = getattr(os, 'splice', None)
print(splice(r, fd, 65536) if splice else os.write(fd, os.read(r, 10)))
print(os.pread(fd, 100, 0))",
    );
}

#[test]
fn without_a_path_a_program_was_looked_for_in_the_current_directory() {
    let site = Site::new(&LAZY);
    if !site.compile("starts.c", &[]) {
        return;
    }
    site.same(
        "echo one > file; env -i FOREBAY_DISABLE=1 cat file
         for how in execvp execvpe execlp posix_spawnp; do
             echo $how >> file; (unset PATH; UNMANAGED=1 $BIN/starts $how cat file)
         done",
    );
}

#[test]
fn a_directory_of_the_name_was_taken_for_the_program() {
    let site = Site::new(&LAZY);
    if !site.compile("starts.c", &[]) {
        return;
    }
    // As one that cannot load the library, for which every inherited file turns direct.
    let status = site.same(
        "mkdir -p first/cat; exec 3<> file; echo one >&3
         for how in execvp execvpe execlp posix_spawnp; do
             PATH=first:$PATH $BIN/starts $how cat file; echo $how >&3
         done; cat file",
    );
    assert_eq!(status.count("passthrough"), 0, "{}", status.text);
}

#[test]
fn an_environment_that_is_no_memory_ended_the_program() {
    let site = Site::new(&LAZY);
    if site.compile("starts.c", &[]) {
        site.same("echo one > file; $BIN/starts faults /bin/true; cat file");
    }
}

#[test]
fn an_unmanaged_program_that_fexecve_started_read_the_store() {
    let site = Site::new(&LAZY);
    if !site.compile("starts.c", &[]) {
        return;
    }
    site.same(
        "echo one > file; UNMANAGED=1 $BIN/starts fexecve /bin/cat file
         exec 3<> file; echo written >&3; (UNMANAGED=1 $BIN/starts fexecve /bin/cat <&3); cat file",
    );
}

#[test]
fn a_stream_opened_for_appending_told_position_zero() {
    let site = Site::new(&LAZY);
    if !site.compile("append.c", &[]) {
        return;
    }
    site.same("echo first > log; $BIN/append log; $BIN/append log; cat log");
}

#[test]
fn a_namesake_by_inode_inherited_the_content_of_a_deleted_file() {
    if !python() {
        return;
    }
    let site = Site::new(&LAZY);
    // The manager that pinned the inode is killed; the file system then gives it to a new file.
    let script = "
import os, signal, sys, time
open('old', 'w').write('secret' * 1000)
os.kill(int(sys.argv[1]), signal.SIGKILL)
time.sleep(0.2)
os.unlink('old')
for number in range(50):
    with open('new%d' % number, 'w') as file:
        file.write('x')
    assert open('new%d' % number).read() == 'x', number
    assert os.path.getsize('new%d' % number) == 1, number
";
    std::fs::write(site.out.join("script.py"), script).unwrap();
    let shell = "$FOREBAY status > $OUT/status; \
                 exec python3 $OUT/script.py $(sed -n 's/.*node manager //p' $OUT/status)";
    site.end(site.buffered(&["bash", "-c", shell])).expect(0);
    for number in 0..50 {
        let name = site.store.join(format!("new{number}"));
        assert_eq!(std::fs::read_to_string(name).unwrap(), "x");
    }
}

#[test]
fn a_copy_within_one_file_followed_its_moving_end() {
    same_in_python(
        "import os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(range(250)) * 2000)
print(os.copy_file_range(fd, fd, 900000, 300000, 500000))
print(os.fstat(fd).st_size)",
    );
}

/// The kernel's clock is behind the one that gives times to what was looked at.
#[test]
fn no_time_goes_back_and_what_is_opened_to_be_read_is_truncated() {
    let site = Site::new(&LAZY);
    if site.compile("clocks.c", &[]) {
        site.same("$BIN/clocks ../out/beside");
    }
}

/// A starter without Forebay has opened it with O_APPEND.
#[test]
fn o_append_could_not_be_taken_from_an_inherited_descriptor() {
    if !python() {
        return;
    }
    let site = Site::new(&LAZY);
    let program = "import fcntl, os
flags = fcntl.fcntl(9, fcntl.F_GETFL)
fcntl.fcntl(9, fcntl.F_SETFL, flags & ~os.O_APPEND)
print(fcntl.fcntl(9, fcntl.F_GETFL) & os.O_APPEND)
os.pwrite(9, b'XX', 0)
fcntl.fcntl(9, fcntl.F_SETFL, flags)
print(fcntl.fcntl(9, fcntl.F_GETFL) & os.O_APPEND == os.O_APPEND)
os.pwrite(9, b'YY', 0)";
    std::fs::write(site.out.join("program.py"), program).unwrap();
    let script = format!(
        "echo hello > file; exec 9>>file
         $FOREBAY run --config {} -- python3 $OUT/program.py; cat file",
        site.config.display()
    );
    let mut run = site.command(&site.store, "bash");
    run.args(["-c", &script]);
    assert_eq!(site.end(run).expect(0).stdout, "0\nTrue\nXXllo\nYY");
}

/// Its folder was known by then, and the kernel has nothing of a file that is in memory.
#[test]
fn what_is_opened_to_be_read_by_an_absolute_path_was_not_truncated() {
    same_in_python(
        "import os
for number in range(3):
    path = os.path.abspath('file%d' % number)
    open(path, 'w').write('hello')
    fd = os.open(path, os.O_RDONLY | os.O_TRUNC)
    print(os.fstat(fd).st_size, os.stat(path).st_size, os.read(fd, 10), open(path).read())
    open(path, 'a').write('abc')
    print(os.read(fd, 10), open(path).read())",
    );
}

/// Files were given the time of another clock than the kernel's, once a process had looked at them:
/// what was made after them was older, and `make` made things again.
#[test]
fn what_was_written_later_was_older() {
    same_in_python(
        "import os, time
def write(name, data, flags=os.O_TRUNC):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    os.write(fd, data)
    os.close(fd)
def time_of(name):
    return os.stat(name).st_mtime_ns
def fresh():
    if os.path.exists('b'):
        os.unlink('b')
older, back = {}, 0
ways = {
    'touch': lambda: os.utime('b'),
    'small': lambda: write('b', b'1'),
    'large': lambda: write('b', b'1' * 300_000),
    'new': lambda: (fresh(), write('b', b'1')),
    'empty': lambda: (fresh(), write('b', b'')),
}
for way, second in ways.items():
    for size in 5, 300_000:
        write('a', b'a' * size)
        write('b', b'b')
        for number in range(20):
            before = time_of('a')
            write('a', b'a' * (size + number))
            second()
            older[way] = older.get(way, 0) + (time_of('b') < time_of('a'))
            back += time_of('a') < before
            write('a', b'')
            older['a'] = older.get('a', 0) + (time_of('a') < time_of('b'))
            time.sleep(0.0007 * (number % 6))
print(older, back)",
    );
}

/// Only its bytes were looked at, and there were none.
#[test]
fn an_open_that_emptied_a_file_of_the_same_moment_left_its_time() {
    same_in_python(
        "import os, tempfile
elsewhere = tempfile.mkdtemp(dir=os.environ['OUT'])
for folder in '.', elsewhere:
    kept = 0
    for number in range(50):
        name = os.path.join(folder, 'file%d' % number)
        for turn in range(2):
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
            kept += os.stat(name).st_mtime == 1e9
            os.utime(name, (1e9, 1e9))
    print(kept)
open('data', 'w').write('data')",
    );
}

#[test]
fn an_allocation_left_a_time_that_was_still_to_come() {
    same_in_python(
        "import os, time
for size in 1000, 300_000:
    fd = os.open('file%d' % size, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b'x' * size)
    os.utime(fd, (time.time() + 1000, time.time() + 1000))
    os.posix_fallocate(fd, size, 10)
    print(os.fstat(fd).st_mtime < time.time() + 500)",
    );
}
