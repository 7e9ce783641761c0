//! What suites of file system tests found.

use crate::harness::{self, LAZY, Setup, Site, USUAL, works};

/// A pipe that got the inode of a buffered file that was removed passed for that file, and was
/// opened for reading.
#[test]
fn a_fifo_with_the_inode_of_a_removed_file_is_not_opened() {
    if !works(&["python3", "-c", "pass"]) {
        return harness::skip("python3 is missing");
    }
    Site::new(&LAZY).same(
        "timeout 60 python3 - <<'P'
import os, posix
for turn in range(20):
    with open('file', 'w') as file:
        file.write('some data')
    os.unlink('file')
    os.mkfifo('file')
    os.chmod('file', 0o111)
    try:
        os.execv('file', ['file'])
    except PermissionError as error:
        print(error.errno)
    os.unlink('file')
P",
    );
}

/// The kernel's answer came from before the end of a flush, the look at the file table from after.
#[test]
fn stat_in_the_middle_of_a_flush_shows_neither_old_size_nor_a_time_of_the_flush() {
    if !works(&["python3", "-c", "pass"]) {
        return harness::skip("python3 is missing");
    }
    let setup = Setup { flush: "trigger = \"per-operation\"", ..USUAL };
    let status = Site::new(&setup).same(
        "python3 - <<'P'
import os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
for turn in range(1, 3000):
    os.pwrite(fd, b'x', turn * 1000 - 1)
    first = os.fstat(fd)
    for look in range(20):
        found = os.stat('file')
        assert found.st_size == turn * 1000, (found.st_size, turn * 1000)
        assert found.st_mtime_ns == first.st_mtime_ns, (turn, look)
P",
    );
    assert!(status.count("writes") >= 2999, "{}", status.text);
}

/// What was buffered when a file was put behind a loop device was flushed over what the device
/// wrote afterwards.
#[test]
fn a_file_behind_a_loop_device_belongs_to_the_device() {
    let site = Site::new(&LAZY);
    let tools = "truncate -s 1M ../out/probe; losetup -f --show ../out/probe > ../out/device && \
                 losetup -d $(cat ../out/device)";
    if site.run_plainly(tools).code != 0 {
        return harness::skip("no loop devices for this user");
    }
    site.same(
        "set -e
dd if=/dev/zero of=image bs=64k count=64 status=none
device=$(losetup -f --show image)
trap 'losetup -d $device' EXIT
seq 200000 > ../out/numbers
dd if=../out/numbers of=$device bs=64k conv=fsync status=none
cksum < $device",
    );
}

/// A range that the kernel refuses was taken for an empty one, and unknown flags made the files of
/// the range unmanaged although they stayed open.
#[test]
fn a_close_range_that_is_refused_closes_nothing() {
    if !works(&["python3", "-c", "pass"]) {
        return harness::skip("python3 is missing");
    }
    Site::new(&LAZY).same(
        "python3 - <<'P'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'before ')
print(libc.close_range(fd, fd - 1, 0), ctypes.get_errno())
print(libc.close_range(fd, fd, 1 << 30), ctypes.get_errno())
os.write(fd, b'after')
print(os.fstat(fd).st_size, os.pread(fd, 100, 0))
P",
    );
}

/// Addresses that are none were read: the program crashed instead of being refused.
#[test]
fn io_submit_of_invalid_addresses_is_refused() {
    let there = "import ctypes; ctypes.CDLL('libaio.so.1')";
    if !works(&["python3", "-c", there]) {
        return harness::skip("python3 or libaio is missing");
    }
    Site::new(&LAZY).same(
        "python3 - <<'P'
import ctypes
with open('file', 'w') as file:
    file.write('buffered')
aio = ctypes.CDLL('libaio.so.1')
aio.io_submit.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
context = ctypes.c_void_p()
print(aio.io_setup(4, ctypes.byref(context)))
for blocks in [2**64 - 1, 0, 4096]:
    print(aio.io_submit(context, 1, blocks))
for block in [0, 2**64 - 1, 4096]:
    pointer = ctypes.c_void_p(block)
    print(aio.io_submit(context, 1, ctypes.addressof(pointer)))
print(aio.io_destroy(context))
P",
    );
}

/// Control data at an address that is none, or that claims to be longer than it is, was read.
#[test]
fn sendmsg_of_invalid_control_data_is_refused() {
    if !works(&["python3", "-c", "pass"]) {
        return harness::skip("python3 is missing");
    }
    Site::new(&LAZY).same(
        "python3 - <<'P'
import ctypes, socket, struct
with open('file', 'w') as file:
    file.write('buffered')
libc = ctypes.CDLL(None, use_errno=True)
ours, theirs = socket.socketpair()
data = ctypes.create_string_buffer(b'data')
piece = (ctypes.c_uint64 * 2)(ctypes.addressof(data), 4)
liar = ctypes.create_string_buffer(struct.pack('Qiii', 1 << 40, 1, 1, 0), 24)
for control in [2**64 - 1, 4096, ctypes.addressof(liar)]:
    message = struct.pack('QQQQQQQ', 0, 0, ctypes.addressof(piece), 1, control, 24, 0)
    print(libc.sendmsg(ours.fileno(), message, 0), ctypes.get_errno())
P",
    );
}
