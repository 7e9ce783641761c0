/* copy_file_range, sendfile and splice, and what they say to odd arguments. Prints what it saw.
 *
 *     copies FILE OTHER
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, long result)
{
    printf("%s %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
}

static void content(const char *what, int fd)
{
    static unsigned char bytes[8 << 20];
    long length = pread(fd, bytes, sizeof bytes, 0);
    uint64_t sum = 0;
    for (long i = 0; i < length; i++) sum = sum * 31 + bytes[i];
    printf("%s: %ld bytes, sum %llx, offset %ld\n", what, length, (unsigned long long)sum,
           (long)lseek(fd, 0, SEEK_CUR));
}

static int filled(const char *name, long length)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *bytes = malloc(length);
    for (long i = 0; i < length; i++) bytes[i] = i * 2654435761u >> 13;
    write(fd, bytes, length);
    lseek(fd, 0, SEEK_SET);
    free(bytes);
    return fd;
}

static void ranges(const char *name, const char *other)
{
    int from = filled(name, 3000000), to = filled(other, 10), pipes[2];
    pipe(pipes);
    off_t in = 5, out = 100;
    say("whole", copy_file_range(from, NULL, to, NULL, 1 << 30, 0));
    content("from", from), content("to", to);
    say("at the end", copy_file_range(from, NULL, to, NULL, 100, 0));
    say("with offsets", copy_file_range(from, &in, to, &out, 1000000, 0));
    printf("%ld %ld\n", (long)in, (long)out);
    content("to", to);
    in = 2999990, out = 5000000;
    say("short", copy_file_range(from, &in, to, &out, 100, 0));
    printf("%ld %ld\n", (long)in, (long)out);
    content("to", to);
    in = 4000000;
    say("behind the end", copy_file_range(from, &in, to, &out, 100, 0));
    in = 0, out = 50;
    say("overlapping", copy_file_range(from, &in, from, &out, 100, 0));
    out = 100;
    say("touching", copy_file_range(from, &in, from, &out, 100, 0));
    in = out = 7;
    say("onto itself", copy_file_range(from, &in, from, &out, 100, 0));
    int again = open(name, O_RDWR);
    in = 0, out = 3000000;
    say("two descriptors, behind", copy_file_range(from, &in, again, &out, 3000000, 0));
    content("from", from);
    in = -1;
    say("negative", copy_file_range(from, &in, to, NULL, 10, 0));
    in = 0, out = -1;
    say("negative target", copy_file_range(from, &in, to, &out, 10, 0));
    say("flags", copy_file_range(from, NULL, to, NULL, 10, 1));
    say("bad pointer", copy_file_range(from, (off_t *)8, to, NULL, 10, 0));
    say("closed", copy_file_range(from, NULL, 999, NULL, 10, 0));
    say("closed source", copy_file_range(-1, NULL, to, NULL, 10, 0));
    say("read-only target", copy_file_range(from, NULL, open(other, O_RDONLY), NULL, 10, 0));
    say("write-only source", copy_file_range(open(name, O_WRONLY), NULL, to, NULL, 10, 0));
    say("appending target", copy_file_range(from, NULL, open(other, O_WRONLY | O_APPEND), NULL, 10, 0));
    say("directory", copy_file_range(open(".", O_RDONLY), NULL, to, NULL, 10, 0));
    say("pipe", copy_file_range(from, NULL, pipes[1], NULL, 10, 0));
    in = (off_t)1 << 62;
    say("overflow", copy_file_range(from, &in, to, NULL, (size_t)1 << 62, 0));
    say("nothing", copy_file_range(from, NULL, to, NULL, 0, 0));
    close(from), close(to);
}

static void sends(const char *name, const char *other)
{
    int from = filled(name, 3000000), to = filled(other, 0), ends[2], pipes[2];
    pipe(pipes);
    say("to a file", sendfile(to, from, NULL, 1 << 30));
    content("from", from), content("to", to);
    off_t at = 1000000;
    say("from an offset", sendfile(to, from, &at, 100000));
    printf("%ld\n", (long)at);
    content("from", from), content("to", to);
    say("at the end", sendfile(to, from, NULL, 100));
    at = -1;
    say("negative", sendfile(to, from, &at, 100));
    at = 0;
    say("appending target", sendfile(open(other, O_WRONLY | O_APPEND), from, &at, 10));
    say("read-only target", sendfile(open(other, O_RDONLY), from, &at, 10));
    say("write-only source", sendfile(to, open(name, O_WRONLY), &at, 10));
    say("bad pointer", sendfile(to, from, (off_t *)8, 10));
    say("closed", sendfile(-1, from, NULL, 10));
    say("from a pipe", sendfile(to, pipes[0], NULL, 10));
    /* A socket whose other side reads slowly; then one that does not wait. */
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (fork() == 0) {
        close(ends[0]);
        long sum = 0, got, all = 0;
        unsigned char bytes[70000];
        while ((got = read(ends[1], bytes, sizeof bytes)) > 0)
            for (long i = 0; i < got; i++, all++) sum = sum * 31 + bytes[i];
        printf("the socket got %ld bytes, sum %lx\n", all, sum);
        fflush(stdout);
        _exit(0);
    }
    at = 0;
    fflush(stdout);
    long sent = sendfile(ends[0], from, &at, 1 << 30);
    close(ends[0]), close(ends[1]);
    wait(NULL);
    say("to a socket", sent);
    printf("%ld\n", (long)at);
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends);
    at = 0;
    long all = 0, refused = 0;
    while ((sent = sendfile(ends[0], from, &at, 1 << 20)) > 0) all += sent;
    refused = errno;
    printf("%d %s\n", all == at && all > 0, strerror(refused));
    unsigned char bytes[4096];
    long got, seen = 0;
    while ((got = read(ends[1], bytes, sizeof bytes)) > 0) seen += got;
    printf("%d\n", seen == all);
    at = lseek(from, 0, SEEK_SET);
    while ((sent = sendfile(ends[0], from, NULL, 1 << 20)) > 0) at += sent;
    printf("%d\n", at == lseek(from, 0, SEEK_CUR));
    close(from), close(to);
}

static void splices(const char *name, const char *other)
{
    int from = filled(name, 3000000), to = filled(other, 0), pipes[2], full[2], ends[2];
    pipe(pipes), pipe(full);
    int room = fcntl(pipes[1], F_GETPIPE_SZ);
    /* One thread moves a file through a pipe: no call may wait for a reader. */
    long all = 0, in, out;
    while ((in = splice(from, NULL, pipes[1], NULL, 1 << 20, 0)) > 0)
        for (all += in; in > 0; in -= out) {
            out = splice(pipes[0], NULL, to, NULL, in, 0);
            if (out <= 0) {
                say("to the file", out);
                return;
            }
        }
    say("at the end", in);
    printf("%ld moved\n", all);
    content("from", from), content("to", to);
    off_t at = 17, to_at = 4000000;
    in = splice(from, &at, pipes[1], NULL, 5000, SPLICE_F_MOVE | SPLICE_F_MORE);
    out = splice(pipes[0], NULL, to, &to_at, 100000, 0);
    printf("%ld %ld %ld %ld\n", in, out, (long)at, (long)to_at);
    content("to", to);
    write(pipes[1], "abc", 3);
    say("beside what it holds", splice(from, &at, pipes[1], NULL, 100, 0));
    char bytes[1 << 17];
    say("pipe", read(pipes[0], bytes, sizeof bytes));
    printf("%.3s\n", bytes);
    at = 0;
    in = splice(from, &at, pipes[1], NULL, 1 << 20, SPLICE_F_NONBLOCK);
    printf("fills it: %d\n", in == room);
    say("full", splice(from, &at, pipes[1], NULL, 100, SPLICE_F_NONBLOCK));
    while (read(pipes[0], bytes, sizeof bytes) == sizeof bytes) {}
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    while (read(pipes[0], bytes, sizeof bytes) > 0) {}
    say("empty", splice(pipes[0], NULL, to, NULL, 100, SPLICE_F_NONBLOCK));
    say("empty, not waiting", splice(pipes[0], NULL, to, NULL, 100, 0));
    close(pipes[1]);
    say("no writer", splice(pipes[0], NULL, to, NULL, 100, 0));
    say("no length", splice(from, NULL, full[1], NULL, 0, 0));
    say("no pipe", splice(from, NULL, to, NULL, 10, 0));
    say("offset of a pipe", splice(from, NULL, full[1], &at, 10, 0));
    say("offset of a source pipe", splice(full[0], &at, to, NULL, 10, 0));
    say("unknown flags", splice(from, NULL, full[1], NULL, 10, 0x1000));
    write(full[1], "text", 4);
    say("appending", splice(full[0], NULL, open(other, O_WRONLY | O_APPEND), NULL, 4, 0));
    say("read-only", splice(full[0], NULL, open(other, O_RDONLY), NULL, 4, 0));
    say("still there", read(full[0], bytes, 100));
    say("bad pointer", splice(from, (off_t *)8, full[1], NULL, 10, 0));
    at = -1;
    say("negative", splice(from, &at, full[1], NULL, 10, 0));
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    say("socket", splice(from, NULL, ends[0], NULL, 10, 0));
    /* A pipe with its reader at work. */
    pipe(pipes);
    fflush(stdout);
    if (fork() == 0) {
        close(pipes[1]);
        long sum = 0, got, all = 0;
        while ((got = read(pipes[0], bytes, 7777)) > 0)
            for (long i = 0; i < got; i++, all++) sum = sum * 31 + bytes[i];
        printf("the pipe got %ld bytes, sum %lx\n", all, sum);
        fflush(stdout);
        _exit(0);
    }
    at = 0;
    while ((in = splice(from, &at, pipes[1], NULL, 300000, 0)) > 0) {}
    close(pipes[1]), close(pipes[0]);
    wait(NULL);
    /* The tee of what a file gave. */
    pipe(pipes), pipe(full);
    at = 0;
    splice(from, &at, pipes[1], NULL, 1000, 0);
    say("tee", tee(pipes[0], full[1], 1000, 0));
    say("copy", splice(full[0], NULL, to, NULL, 1000, 0));
    content("to", to);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    ranges(argv[1], argv[2]);
    sends(argv[1], argv[2]);
    splices(argv[1], argv[2]);
    return 0;
}
