/* Executes a script of operations on the files f0 .. f9 of the current directory, in one process or in two
 * that take turns, and reports each operation that has returned:
 *
 *     scripted SCRIPT LOG DUMPS
 *
 * A line of SCRIPT is `PROCESS OPERATION FILE [NUMBER ...]`, one of LOG `LINE RESULT ERRNO HASH`. LOG and DUMPS lie
 * outside of what Forebay manages. The one that finds the other process dead copies what it sees of all files to DUMPS. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 10, LONGEST = 4 << 20, LINES = 4096 };

static struct line {
    int process;
    char operation;
    long number[4];
} lines[LINES];
static int count, me, report, turn[2][2];
static int open_files[2][FILES]; /* 0: positional, 1: appending */
static unsigned char *bytes;

static const char *name(long file) {
    static char text[4][8];
    static int next;
    char *here = text[next++ % 4];
    snprintf(here, sizeof text[0], "f%ld", file);
    return here;
}

static int opened(long file, int appends) {
    int *fd = &open_files[appends][file];
    if (*fd < 0)
        *fd = open(name(file), O_RDWR | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : 0), 0600);
    return *fd;
}

static void close_all(long file) {
    for (int appends = 0; appends < 2; appends++) {
        if (open_files[appends][file] >= 0)
            close(open_files[appends][file]);
        open_files[appends][file] = -1;
    }
}

/* What a write with this seed has at byte `at` of it. The harness knows the same. */
static unsigned char content(uint64_t seed, uint64_t at) {
    uint64_t mixed = (seed * 0x9e3779b97f4a7c15u) ^ (at * 0xd6e8feb86659fd93u);
    return (unsigned char)(mixed >> 56 ^ mixed >> 32) | 1;
}

static void fill(uint64_t seed, long length) {
    for (long at = 0; at < length; at++)
        bytes[at] = content(seed, at);
}

/* Everything of a file, at its size. */
static long read_all(int fd) {
    struct stat found;
    if (fstat(fd, &found) < 0)
        return -1;
    if (found.st_size > LONGEST) {
        errno = EFBIG;
        return -1;
    }
    long done = 0;
    while (done < found.st_size) {
        ssize_t got = pread(fd, bytes + done, found.st_size - done, done);
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += got;
    }
    return done;
}

static uint64_t hash(long length) {
    uint64_t value = 0xcbf29ce484222325u;
    for (long at = 0; at < length; at++)
        value = (value ^ bytes[at]) * 0x100000001b3u;
    return value;
}

static long carry_out(const struct line *line, uint64_t *seen) {
    const long *number = line->number;
    long file = number[0];
    int fd;
    switch (line->operation) {
    case 'w': /* offset, length, seed */
        fill(number[3], number[2]);
        return pwrite(opened(file, 0), bytes, number[2], number[1]);
    case 'W': { /* offset, length, seed: in two pieces */
        fill(number[3], number[2]);
        struct iovec pieces[2] = {{bytes, number[2] / 3}, {bytes + number[2] / 3, number[2] - number[2] / 3}};
        return pwritev(opened(file, 0), pieces, 2, number[1]);
    }
    case 'a': /* length, seed */
        fill(number[2], number[1]);
        return write(opened(file, 1), bytes, number[1]);
    case 't': /* size */
        return ftruncate(opened(file, 0), number[1]);
    case 'z':
        fd = open(name(file), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        return fd < 0 ? -1 : close(fd);
    case 'h': /* offset, length */
        return fallocate(opened(file, 0), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, number[1], number[2]);
    case 'r': /* new name */
        return rename(name(file), name(number[1]));
    case 'u':
        return unlink(name(file));
    case 's':
        return fsync(opened(file, 0));
    case 'd':
        return fdatasync(opened(file, 0));
    case 'c':
        close_all(file);
        return 0;
    case 'v':
        fd = opened(file, 0);
        long length = fd < 0 ? -1 : read_all(fd);
        *seen = length < 0 ? 0 : hash(length);
        return length;
    }
    errno = ENOSYS;
    return -1;
}

static void dump(const char *folder) {
    for (long file = 0; file < FILES; file++) {
        char path[4096];
        close_all(file);
        int from = open(name(file), O_RDONLY | O_CLOEXEC);
        if (from < 0)
            continue;
        long length = read_all(from);
        close(from);
        snprintf(path, sizeof path, "%s/f%ld", folder, file);
        int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (length < 0 || to < 0 || write(to, bytes, length) != length)
            exit(3);
        close(to);
    }
}

static void read_script(const char *path) {
    FILE *script = fopen(path, "r");
    if (!script)
        exit(2);
    char text[200];
    while (count < LINES && fgets(text, sizeof text, script)) {
        struct line *line = &lines[count++];
        long *number = line->number;
        sscanf(text, "%d %c %ld %ld %ld %ld", &line->process, &line->operation, number, number + 1, number + 2,
               number + 3);
    }
    fclose(script);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    memset(open_files, 0xff, sizeof open_files);
    read_script(argv[1]);
    report = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bytes = malloc(LONGEST);
    int two = 0;
    for (int at = 0; at < count; at++)
        two |= lines[at].process;
    if (two) {
        if (pipe2(turn[0], O_CLOEXEC) < 0 || pipe2(turn[1], O_CLOEXEC) < 0)
            return 2;
        me = fork() == 0;
        /* The end of the other is the end of its pipe. */
        close(turn[me][1]);
        close(turn[!me][0]);
    }
    for (int at = 0; at < count; at++) {
        struct line *line = &lines[at];
        if (line->process != me) {
            if (line->operation == 'u' || line->operation == 'r')
                close_all(line->number[0]);
            if (line->operation == 'r')
                close_all(line->number[1]);
            char done;
            if (read(turn[me][0], &done, 1) != 1) {
                dump(argv[3]);
                return 0;
            }
            continue;
        }
        uint64_t seen = 0;
        errno = 0;
        if (line->operation == 'u' || line->operation == 'r')
            close_all(line->number[0]);
        if (line->operation == 'r')
            close_all(line->number[1]);
        long result = carry_out(line, &seen);
        char text[100];
        int length = snprintf(text, sizeof text, "%d %ld %d %llx\n", at, result, result < 0 ? errno : 0,
                              (unsigned long long)seen);
        if (write(report, text, length) != length)
            return 4;
        if (two && write(turn[!me][1], "", 1) != 1) {
            dump(argv[3]);
            return 0;
        }
    }
    return 0;
}
