//! Descriptors that are passed to other processes through sockets.

use crate::harness::{LAZY, SLOW_STORE, Setup, Site, Status, skip, works};

/// Runs a script of python3 plainly and under Forebay; the counters if python3 is there.
fn python(setup: &Setup, script: &str) -> Option<Status> {
    if !works(&["python3", "-c", "import socket; socket.send_fds"]) {
        skip("python3 is missing, or older than 3.9");
        return None;
    }
    Some(Site::new(setup).same(&format!("python3 - <<'P'\n{script}\nP")))
}

/// Nothing was flushed for a call, and nothing went around the tiers.
fn assert_buffered(status: Option<Status>) {
    if let Some(status) = status {
        let counts = ["passthrough", "write_around"].map(|name| status.count(name));
        assert_eq!(counts, [0, 0], "{}", status.text);
    }
}

#[test]
fn a_passed_descriptor_shares_offset_and_flags() {
    for setup in [&LAZY, &SLOW_STORE] {
        assert_buffered(python(
            setup,
            "
import fcntl, os, socket
here, there = socket.socketpair()
plain = os.open('file', os.O_RDWR | os.O_CREAT)
log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(plain, b'0123456789')
os.write(log, b'parent\\n')
child = os.fork()
if child == 0:
    here.close()
    os.close(plain)
    os.close(log)
    for turn in range(20):
        data, fds, flags, _ = socket.recv_fds(there, 10, 2)
        plain, log = fds
        assert os.lseek(plain, 0, os.SEEK_CUR) == 10 + 8 * turn
        assert fcntl.fcntl(log, fcntl.F_GETFL) & os.O_APPEND
        os.write(plain, b'%4d' % turn)
        os.write(log, b'child %d\\n' % turn)
        assert os.pread(plain, 10, 0) == b'0123456789'
        os.close(plain)
        os.close(log)
        there.send(b'done')
    os._exit(0)
there.close()
for turn in range(20):
    socket.send_fds(here, [b'x'], [plain, log])
    here.recv(4)
    print(os.lseek(plain, 0, os.SEEK_CUR), os.fstat(log).st_size)
    os.write(plain, b'%4d' % turn)
print(os.waitpid(child, 0)[1], os.pread(plain, 1000, 0))
print(open('log').read())
",
        ));
    }
}

#[test]
fn a_descriptor_on_its_way_outlives_its_sender() {
    assert_buffered(python(
        &LAZY,
        "
import os, socket, time
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    fd = os.open('file', os.O_RDWR | os.O_CREAT)
    os.write(fd, b'a' * 100000)
    os.lseek(fd, 5, os.SEEK_SET)
    socket.send_fds(here, [b'x'], [fd])
    os._exit(0)
os.waitpid(child, 0)
here.close()
time.sleep(3.5)
data, fds, flags, _ = socket.recv_fds(there, 10, 1)
print(os.write(fds[0], b'HERE'), os.lseek(fds[0], 0, os.SEEK_CUR), os.pread(fds[0], 12, 0), os.fstat(fds[0]).st_size)
os.close(fds[0])
print(os.path.getsize('file'))
",
    ));
}

#[test]
fn messages_are_peeked_at_cut_short_and_never_read() {
    assert_buffered(python(
        &LAZY,
        "
import array, os, socket
here, there = socket.socketpair()
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'first')
other = os.open('other', os.O_RDWR | os.O_CREAT)
os.write(other, b'other')
socket.send_fds(here, [b'x'], [fd])
seen = array.array('i', there.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_PEEK)[1][0][2])[0]
os.write(seen, b' peek')
os.close(seen)
got = socket.recv_fds(there, 1, 1)[1][0]
os.write(got, b' got')
print(os.lseek(fd, 0, os.SEEK_CUR), os.get_inheritable(got))
# Room for one of two.
socket.send_fds(here, [b'y'], [fd, other])
data, control, flags, _ = there.recvmsg(1, socket.CMSG_LEN(4))
one = array.array('i', control[0][2][:4])[0]
print(len(control), flags & socket.MSG_CTRUNC != 0, os.write(one, b' cut'))
# None for any.
socket.send_fds(here, [b'z'], [fd])
print(there.recv(1))
# Cannot be sent, cannot be received.
closed, gone = socket.socketpair()
gone.close()
try:
    socket.send_fds(closed, [b'x'], [fd])
except OSError as error:
    print(error.errno)
for turn in range(50):
    a, b = socket.socketpair()
    temporary = os.open('lost%d' % turn, os.O_RDWR | os.O_CREAT)
    os.write(temporary, b'x' * 1000)
    socket.send_fds(a, [b'x'], [temporary])
    os.close(temporary)
print(os.write(fd, b' end'), os.pread(fd, 100, 0), os.pread(other, 9, 0))
print(sum(os.path.getsize('lost%d' % turn) for turn in range(50)))
",
    ));
}

#[test]
fn a_server_hands_out_descriptors() {
    assert_buffered(python(
        &LAZY,
        "
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind('socket')
server.listen()
children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        client = socket.socket(socket.AF_UNIX)
        client.connect('socket')
        fd = socket.recv_fds(client, 1, 1)[1][0]
        for turn in range(100):
            os.write(fd, b'client %d turn %02d\\n' % (number, turn))
        os._exit(0)
    children.append(child)
fd = os.open('log', os.O_WRONLY | os.O_CREAT)
for child in children:
    socket.send_fds(server.accept()[0], [b'x'], [fd])
print([os.waitpid(child, 0)[1] for child in children])
lines = open('log').read().split('\\n')
print(len(lines), len(set(lines)), os.lseek(fd, 0, os.SEEK_CUR))
os.unlink('log')
os.unlink('socket')
",
    ));
}

#[test]
fn multiprocessing_passes_files() {
    let script = "
import multiprocessing as mp, multiprocessing.reduction as reduction, os

def work(pipe, queue):
    fd = reduction.recv_handle(pipe)
    os.write(fd, b'worker')
    queue.put((os.lseek(fd, 0, os.SEEK_CUR), os.pread(fd, 100, 0)))
    os.close(fd)

if __name__ == '__main__':
    for method in ['fork', 'spawn', 'forkserver']:
        context = mp.get_context(method)
        here, there = context.Pipe()
        queue = context.Queue()
        worker = context.Process(target=work, args=(there, queue))
        worker.start()
        fd = os.open('file-' + method, os.O_RDWR | os.O_CREAT)
        os.write(fd, b'parent ')
        reduction.send_handle(here, fd, worker.pid)
        print(method, queue.get())
        worker.join()
        os.write(fd, b' again')
        print(worker.exitcode, os.pread(fd, 100, 0))
";
    if !works(&["python3", "-c", "import multiprocessing"]) {
        return skip("python3 is missing");
    }
    let site = Site::new(&LAZY);
    std::fs::write(site.out.join("work.py"), script).unwrap();
    site.same("python3 $OUT/work.py");
}

#[test]
fn a_program_without_the_library_receives_what_was_written() {
    let site = Site::new(&LAZY);
    if !site.compile("passing.c", &["-static"]) {
        return;
    }
    site.same("$BIN/passing file; cat file; echo more >> file; cat file");
    std::fs::rename(site.root().join("passing"), site.root().join("receiver")).unwrap();
    // The sender has the library, the receiver has not.
    if site.compile("passing.c", &[]) {
        site.same("$BIN/passing other $BIN/receiver; cat other; echo more >> other; cat other");
    }
}
