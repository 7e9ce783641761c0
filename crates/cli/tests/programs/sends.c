/* Files that are copied to pipes and sockets while the store has all, some or none of them.
 *
 *     sends states FILE    prints what came out, in which pieces that depends on nothing
 *     sends turns FILE     what another process has written before a copy begins is in it
 *     sends counts FILE    makes calls between markers
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, KIB = 1024, MOST = 1 << 22 };

static unsigned char bytes[MOST];
static int broken;

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void need(int worked, const char *what)
{
    if (!worked) fail(what);
}

static void count_broken(int signal)
{
    broken += signal == SIGPIPE;
}

static void put(int fd, long at, long length, int seed)
{
    for (long i = 0; i < length; i++) bytes[i] = (at + i + seed) * 2654435761u >> 13;
    need(pwrite(fd, bytes, length, at) == length, "pwrite");
}

/* A child that reads all of it, and says what it got. */
static void take(const char *what, int from, int other)
{
    fflush(stdout);
    if (fork() != 0) return;
    close(other);
    unsigned long sum = 0;
    long got, all = 0;
    while ((got = read(from, bytes, 7777)) > 0)
        for (long i = 0; i < got; i++, all++) sum = sum * 31 + bytes[i];
    printf("%s: %ld bytes, sum %lx\n", what, all, sum);
    fflush(stdout);
    _exit(0);
}

static void sent(const char *what, int file, int to_pipe, int by_splice, int own_offset)
{
    int ends[2];
    if (to_pipe) need(pipe(ends) == 0, "pipe");
    else need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    take(what, ends[0], ends[1]);
    close(ends[0]);
    off_t at = 10;
    long moved, all = 0;
    lseek(file, 10, SEEK_SET);
    off_t *offset = own_offset ? NULL : &at;
    do {
        moved = by_splice ? splice(file, offset, ends[1], NULL, MOST, 0)
                          : sendfile(ends[1], file, offset, MOST);
        need(moved >= 0, what);
        all += moved;
    } while (moved > 0);
    close(ends[1]);
    wait(NULL);
    printf("%s: %ld moved, offsets %ld %ld\n", what, all, (long)at, (long)lseek(file, 0, SEEK_CUR));
}

static void all_ways(const char *state, int file)
{
    char what[100];
    for (int way = 0; way < 6; way++) {
        int to_pipe = way >= 2, by_splice = way >= 4;
        sprintf(what, "%s, %s to a %s", state, by_splice ? "splice" : "sendfile",
                to_pipe ? "pipe" : "socket");
        sent(what, file, to_pipe, by_splice, way % 2);
    }
}

static void states(const char *name)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    need(file >= 0, "open");
    put(file, 0, 3000000, 0);
    all_ways("new", file);
    need(fsync(file) == 0, "fsync");
    all_ways("stored", file);
    put(file, 1000000, 10, 1);
    all_ways("a page changed", file);
    put(file, 1500000, 200000, 2);
    all_ways("pages changed", file);
    put(file, 3500000, 5, 3);
    all_ways("a gap at the end", file);
    need(ftruncate(file, 2500000) == 0, "ftruncate");
    all_ways("cut", file);
    need(ftruncate(file, 3600000) == 0, "ftruncate");
    all_ways("longer", file);
    need(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100000, 500000) == 0, "punch");
    all_ways("punched", file);
    int reader = open(name, O_RDONLY);
    put(file, 700, 9, 4);
    all_ways("through another descriptor", reader);
    /* Neither waits, nor loses what was refused. */
    int ends[2], full[2];
    need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "socketpair");
    need(pipe2(full, O_NONBLOCK) == 0, "pipe");
    for (int way = 0; way < 3; way++) {
        int from = way ? full[0] : ends[0], to = way ? full[1] : ends[1];
        off_t at = 0;
        long moved, all = 0, seen = 0, got, wrong = 0;
        put(file, 3000, 300000, 5 + way);
        do {
            moved = way == 2 ? splice(file, &at, to, NULL, MOST, 0) : sendfile(to, file, &at, MOST);
            if (moved > 0) all += moved;
        } while (moved > 0);
        printf("full: %s, moved as it says: %d\n", strerror(errno), all == at && all > 0);
        static unsigned char expected[MOST];
        need(pread(file, expected, all, 0) == all, "pread");
        while ((got = read(from, bytes, 5000)) > 0) {
            wrong += memcmp(bytes, expected + seen, got) != 0;
            seen += got;
        }
        printf("taken out: %d, wrong: %ld\n", seen == all, wrong);
    }
    /* The other end is gone. */
    signal(SIGPIPE, count_broken);
    for (int changed = 0; changed < 2; changed++) {
        for (int way = 0; way < 3; way++) {
            int gone[2];
            need((way ? pipe(gone) : socketpair(AF_UNIX, SOCK_STREAM, 0, gone)) == 0, "pipe");
            close(gone[0]);
            off_t at = 50;
            if (changed) put(file, 0, 100, way);
            else need(fsync(file) == 0, "fsync");
            long moved = way == 2 ? splice(file, &at, gone[1], NULL, 100, 0)
                                  : sendfile(gone[1], file, &at, 100);
            printf("gone: %ld %s, at %ld, %d signals\n", moved, strerror(errno), (long)at, broken);
            close(gone[1]);
        }
    }
    int appends = open(name, O_RDONLY | O_APPEND), writes = open(name, O_WRONLY);
    off_t at = 0;
    long moved = sendfile(full[1], appends, &at, 100);
    printf("from O_APPEND: %ld\n", moved);
    moved = sendfile(full[1], writes, &at, 100);
    printf("from O_WRONLY: %ld %s\n", moved, strerror(errno));
    at = 3600000;
    printf("at the end: %ld\n", (long)sendfile(full[1], file, &at, 100));
    at = 0x7fffffffffffff00;
    moved = sendfile(full[1], file, &at, 1000);
    printf("behind all: %ld %s\n", moved, moved < 0 ? strerror(errno) : "");
    moved = sendfile(full[0], file, NULL, 100);
    printf("to the reader's end: %ld %s\n", moved, strerror(errno));
}

/* Another process writes a page, or several; then a copy has them, whatever a flush does. */
static void turns(const char *name)
{
    enum { PAGES = 1000 };
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), go[2], done[2], out[2];
    put(file, 0, PAGES * PAGE, 0);
    need(pipe(go) == 0 && pipe(done) == 0 && pipe(out) == 0, "pipe");
    if (fork() == 0) {
        int turn;
        close(go[1]), close(done[0]);
        while (read(go[0], &turn, sizeof turn) == sizeof turn) {
            int page = turn * 7 % (PAGES - 16), count = turn % 3 ? 1 : 16;
            for (int i = 0; i < count * PAGE / 4; i++) ((int *)bytes)[i] = turn;
            need(pwrite(file, bytes, count * PAGE, page * PAGE) == count * PAGE, "pwrite");
            if (turn % 50 == 0) need(ftruncate(file, (PAGES - 1) * PAGE) == 0, "ftruncate");
            need(write(done[1], &turn, sizeof turn) == sizeof turn, "write");
        }
        _exit(0);
    }
    close(go[0]), close(done[1]);
    for (int turn = 1; turn <= 3000; turn++) {
        int seen, page = turn * 7 % (PAGES - 16), count = turn % 3 ? 1 : 16;
        need(write(go[1], &turn, sizeof turn) == sizeof turn, "write");
        need(read(done[0], &seen, sizeof seen) == sizeof seen, "read");
        off_t at = page * PAGE;
        long length = count * PAGE;
        for (long all = 0, moved; all < length; all += moved) {
            moved = turn % 2 ? sendfile(out[1], file, &at, length - all)
                             : splice(file, &at, out[1], NULL, length - all, 0);
            need(moved > 0, "copy");
            need(read(out[0], bytes + all, moved) == moved, "read");
        }
        for (int i = 0; i < length / 4; i++)
            if (((int *)bytes)[i] != turn) {
                printf("turn %d: word %d of page %d is of turn %d\n", turn, i, page,
                       ((int *)bytes)[i]);
                exit(1);
            }
    }
    close(go[1]);
    wait(NULL);
    printf("all there\n");
}

static void counts(const char *name)
{
    static char back[64 * KIB];
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), ends[2];
    need(file >= 0 && pipe(ends) == 0, "pipe");
    for (int way = 0; way < 2; way++) {
        put(file, 0, sizeof back, way);
        off_t at = 0;
        access(way ? "splice-first" : "sendfile-first", F_OK);
        for (int turn = 0; turn < 51; turn++) {
            if (turn == 1) access(way ? "splice-begins" : "sendfile-begins", F_OK);
            at = 0;
            long moved = way ? splice(file, &at, ends[1], NULL, sizeof back, 0)
                             : sendfile(ends[1], file, &at, sizeof back);
            need(moved == sizeof back, "copy");
            need(read(ends[0], back, sizeof back) == sizeof back, "read");
        }
        access(way ? "splice-ends" : "sendfile-ends", F_OK);
    }
    /* A little that was changed goes from RAM. */
    put(file, 0, 100, 3);
    off_t at = 0;
    access("little-begins", F_OK);
    need(sendfile(ends[1], file, &at, 100) == 100, "sendfile");
    access("little-ends", F_OK);
    /* What was just written is mapped, and is in RAM as before. */
    put(file, 0, sizeof back, 4);
    close(file);
    file = open(name, O_RDONLY);
    access("map-begins", F_OK);
    char *seen = mmap(NULL, sizeof back, PROT_READ, MAP_PRIVATE, file, 0);
    access("map-ends", F_OK);
    need(seen != MAP_FAILED && memcmp(seen, bytes, sizeof back) == 0, "mmap");
    need(pread(file, back, sizeof back, 0) == sizeof back, "pread");
    access("again-begins", F_OK);
    need(pread(file, back, sizeof back, 0) == sizeof back, "pread");
    access("again-ends", F_OK);
    need(memcmp(seen, back, sizeof back) == 0, "pread");
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    if (strcmp(argv[1], "states") == 0) states(argv[2]);
    else if (strcmp(argv[1], "turns") == 0) turns(argv[2]);
    else counts(argv[2]);
    return 0;
}
