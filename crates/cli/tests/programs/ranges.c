/* Ranges of a file: allocating, punching, seeking data, advising. Prints what it saw, so that two runs
 * can be compared.
 *
 *     ranges errors FILE            what each call says to odd arguments
 *     ranges random FILE SEED COUNT random operations, checked against a copy in memory
 *     ranges punch FILE TURNS       four processes write, punch and check, each its regions
 *     ranges alone FILE WHO TURNS   one of them, which says each turn that it has done
 *     ranges verify FILE WHO TURN   whether what it said it had done up to TURN is there
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, long result)
{
    printf("%s %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
}

static void say_error(const char *what, int error)
{
    printf("%s %s\n", what, error ? strerror(error) : "ok");
}

static int errors(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), in = open(name, O_RDONLY), pipes[2];
    pipe(pipes);
    write(fd, "twelve bytes", 12);
    say("read-only", fallocate(in, 0, 0, 10));
    say("read-only punch", fallocate(in, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 10));
    say("no length", fallocate(fd, 0, 0, 0));
    say("negative length", fallocate(fd, 0, 0, -1));
    say("negative offset", fallocate(fd, 0, -1, 10));
    say("too large", fallocate(fd, 0, (1ll << 62), (1ll << 62)));
    say("larger than files can be", fallocate(fd, 0, (1ll << 60), 10));
    say("punch without keep", fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10));
    say("punch and zero", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 10));
    say("unknown mode", fallocate(fd, 0x4000, 0, 10));
    say("collapse unaligned", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 1, 10));
    say("insert unaligned", fallocate(fd, FALLOC_FL_INSERT_RANGE, 1, 10));
    say("a pipe", fallocate(pipes[1], 0, 0, 10));
    say_error("posix read-only", posix_fallocate(in, 0, 10));
    say_error("posix no length", posix_fallocate(fd, 0, 0));
    say_error("posix negative", posix_fallocate(fd, -1, 10));
    say_error("posix pipe", posix_fallocate(pipes[1], 0, 10));
    say_error("posix closed", posix_fallocate(-1, 0, 10));
    say_error("posix good", posix_fallocate(fd, 5, 100000));
    say("size", lseek(fd, 0, SEEK_END));
    say("keep", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
    say("size", lseek(fd, 0, SEEK_END));
    say("zero keep", fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 3, 1 << 20));
    say("size", lseek(fd, 0, SEEK_END));
    say("zero", fallocate(fd, FALLOC_FL_ZERO_RANGE, 6, 1 << 20));
    say("size", lseek(fd, 0, SEEK_END));
    char text[13] = {0};
    say("read", pread(fd, text, 12, 0));
    printf("%s\n", text);
    for (int advice = -1; advice < 8; advice++)
        say_error("advice", posix_fadvise(fd, 0, 0, advice));
    say_error("advice negative", posix_fadvise(fd, 0, -1, POSIX_FADV_WILLNEED));
    say_error("advice pipe", posix_fadvise(pipes[0], 0, 0, POSIX_FADV_WILLNEED));
    say_error("advice closed", posix_fadvise(-1, 0, 0, POSIX_FADV_WILLNEED));
    say_error("advice write-only", posix_fadvise(open(name, O_WRONLY), 0, 0, POSIX_FADV_DONTNEED));
    say("readahead", readahead(fd, 0, 1 << 20));
    say("readahead pipe", readahead(pipes[0], 0, 10));
    say("readahead write-only", readahead(open(name, O_WRONLY), 0, 10));
    say("readahead closed", readahead(-1, 0, 10));
    say("data negative", lseek(fd, -1, SEEK_DATA));
    say("hole negative", lseek(fd, -1, SEEK_HOLE));
    say("data at the end", lseek(fd, (1 << 20) + 6, SEEK_DATA));
    say("hole at the end", lseek(fd, (1 << 20) + 6, SEEK_HOLE));
    ftruncate(fd, 0);
    say("empty data", lseek(fd, 0, SEEK_DATA));
    say("empty hole", lseek(fd, 0, SEEK_HOLE));
    ftruncate(fd, 3 << 20);
    say("sparse data", lseek(fd, 0, SEEK_DATA));
    say("sparse hole", lseek(fd, 0, SEEK_HOLE));
    pwrite(fd, "x", 1, 2 << 20);
    say("one byte's data", lseek(fd, 0, SEEK_DATA));
    say("one byte's hole", lseek(fd, 2 << 20, SEEK_HOLE));
    say("where", lseek(fd, 0, SEEK_CUR));
    unlink(name);
    return 0;
}

#define MOST (14u << 20)
static unsigned char *model;
static long long size;
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

/* Everything that is not reported as data is zero, and the regions cover the file. */
static void check_holes(int fd)
{
    long long at = 0;
    while (at < size) {
        long long data = lseek(fd, at, SEEK_DATA);
        if (data < 0) {
            if (errno != ENXIO) printf("SEEK_DATA %lld: %s\n", at, strerror(errno));
            data = size;
        }
        for (long long byte = at; byte < data; byte++)
            if (model[byte]) {
                printf("data at %lld is called a hole (%lld..%lld)\n", byte, at, data);
                return;
            }
        if (data >= size) return;
        at = lseek(fd, data, SEEK_HOLE);
        if (at < data || at > size || (at == data && model[data])) {
            printf("SEEK_HOLE %lld of %lld: %lld\n", data, size, at);
            return;
        }
        /* Zeros that were allocated are data while they are in the page cache, and may leave it. */
        at += at == data;
    }
}

static void check_bytes(int fd, long long from, long long length)
{
    unsigned char *got = malloc(length + 1);
    long long wanted = from >= size ? 0 : from + length > size ? size - from : length;
    long long read = pread(fd, got, length, from);
    if (read != wanted) printf("read %lld+%lld of %lld: %lld\n", from, length, size, read);
    for (long long i = 0; i < wanted && i < read; i++)
        if (got[i] != model[from + i]) {
            printf("byte %lld is %d, not %d\n", from + i, got[i], model[from + i]);
            exit(1);
        }
    free(got);
}

static int random_operations(const char *name, long seed, int count)
{
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    static const int page = 4096;
    state = seed * 2654435761u + 88172645463325252ull;
    model = calloc(1, MOST * 2);
    for (int turn = 0; turn < count; turn++) {
        long long at = draw(MOST), length = 1 + draw(draw(4) ? 20000 : 900000);
        if (draw(3) == 0) at = at / page * page;
        if (draw(3) == 0) length = (length + page - 1) / page * page;
        if (at + length > MOST) length = MOST - at;
        if (length <= 0) continue;
        int kind = draw(20), result = 0;
        switch (kind) {
        case 0 ... 5: {
            unsigned char *bytes = malloc(length);
            memset(bytes, 1 + draw(255), length);
            result = pwrite(fd, bytes, length, at) == length;
            memcpy(model + at, bytes, length);
            free(bytes);
            if (at + length > size) size = at + length;
            break;
        }
        case 6 ... 9:
            result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, length);
            memset(model + at, 0, length);
            break;
        case 10:
            result = fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, at, length);
            memset(model + at, 0, length);
            break;
        case 11:
            result = fallocate(fd, FALLOC_FL_ZERO_RANGE, at, length);
            memset(model + at, 0, length);
            if (at + length > size) size = at + length;
            break;
        case 12:
            result = fallocate(fd, 0, at, length);
            if (at + length > size) size = at + length;
            break;
        case 13:
            result = fallocate(fd, FALLOC_FL_KEEP_SIZE, at, length);
            break;
        case 14:
            if (draw(3)) break;
            result = ftruncate(fd, at);
            if (at < size) memset(model + at, 0, MOST - at);
            size = at;
            break;
        case 15: {
            long long block = at / page * page, many = (length / page + 1) * page;
            if (block + many >= size || draw(2)) break;
            result = fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, block, many);
            memmove(model + block, model + block + many, MOST - block - many);
            memset(model + MOST - many, 0, many);
            size -= many;
            break;
        }
        case 16:
            check_holes(fd);
            break;
        case 17:
            result = posix_fadvise(fd, at, length, draw(2) ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED);
            break;
        case 18:
            result = fsync(fd);
            break;
        default:
            check_bytes(fd, at, length);
        }
        if (result < 0) printf("turn %d, operation %d, %lld+%lld: %s\n", turn, kind, at, length, strerror(errno));
        struct stat found;
        fstat(fd, &found);
        if (found.st_size != size) {
            printf("turn %d, operation %d: size %lld, not %lld\n", turn, kind, (long long)found.st_size, size);
            return 1;
        }
    }
    check_holes(fd);
    check_bytes(fd, 0, size);
    uint64_t sum = 0;
    for (long long i = 0; i < size; i++) sum = sum * 31 + model[i];
    printf("%lld bytes, sum %llx\n", size, (unsigned long long)sum);
    return close(fd);
}

enum { EACH = 100000, MANY = 12 };

/* What a turn leaves: a region of one byte's value with a punch in it. */
static long long region(int who, int turn, unsigned char *bytes, int *from, int *length)
{
    *from = (turn * 7919ll) % EACH, *length = 1 + (turn * 104729ll) % (EACH - *from);
    memset(bytes, 1 + turn % 250, EACH);
    memset(bytes + *from, 0, *length);
    return ((long long)(turn % MANY) * 4 + who) * EACH;
}

static int punches(const char *name, int who, int turns, int says)
{
    int fd = open(name, O_RDWR | O_CREAT, 0644), from, length;
    unsigned char *full = malloc(EACH), *bytes = malloc(EACH), *got = malloc(EACH);
    for (int turn = 0; turn < turns; turn++) {
        long long at = region(who, turn, bytes, &from, &length);
        memset(full, 1 + turn % 250, EACH);
        pwrite(fd, full, EACH, at);
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at + from, length);
        if (says) dprintf(1, "%d\n", turn);
        if (turn % 3 == 0) fsync(fd);
        pread(fd, got, EACH, at);
        if (memcmp(bytes, got, EACH)) dprintf(1, "process %d, turn %d: other bytes\n", who, turn);
    }
    return 0;
}

static int punch(const char *name, int turns)
{
    for (int who = 0; who < 4; who++)
        if (fork() == 0) _exit(punches(name, who, turns, 0));
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    printf("done %d\n", failed);
    return 0;
}

/* The turn after the last that it said may have begun. */
static int verify(const char *name, int who, int last)
{
    int fd = open(name, O_RDONLY), from, length;
    unsigned char *bytes = malloc(EACH), *got = malloc(EACH);
    for (int turn = last; turn >= 0 && turn > last - MANY + 1; turn--) {
        long long at = region(who, turn, bytes, &from, &length);
        memset(got, 255, EACH);
        long read = pread(fd, got, EACH, at);
        if (read != EACH) printf("turn %d: %ld bytes\n", turn, read);
        for (int i = 0; i < EACH; i++)
            if (bytes[i] != got[i]) {
                printf("turn %d: byte %d is %d, not %d\n", turn, i, got[i], bytes[i]);
                return 0;
            }
    }
    printf("all there\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && !strcmp(argv[1], "errors")) return errors(argv[2]);
    if (argc >= 5 && !strcmp(argv[1], "random")) return random_operations(argv[2], atol(argv[3]), atoi(argv[4]));
    if (argc >= 4 && !strcmp(argv[1], "punch")) return punch(argv[2], atoi(argv[3]));
    if (argc >= 5 && !strcmp(argv[1], "alone")) return punches(argv[2], atoi(argv[3]), atoi(argv[4]), 1);
    if (argc >= 5 && !strcmp(argv[1], "verify")) return verify(argv[2], atoi(argv[3]), atoi(argv[4]));
    return 2;
}
