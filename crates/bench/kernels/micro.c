/*
 * Small pieces of I/O, each many times, and memcpy beside them. Nothing here knows how files are
 * stored.
 *
 *     micro all DIRECTORY MIB RANDOM_MIB OPERATIONS FILES UNMANAGED
 *     micro warm MIB          touches so much memory
 *     micro fill PATH MIB     writes a file; then prints the time
 *     micro time              prints the time: microseconds of CLOCK_REALTIME
 *
 * `all` prints a line for each piece of work: its name, how many operations, bytes of each,
 * nanoseconds of all. UNMANAGED is a file that is not buffered; it is only looked at.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096, SMALL = 64, CONTENDED_NS = 200 * 1000 * 1000 };

static char path[4096];
static const char *directory;
static char *block; /* 1 MiB that the caches hold */

static void fail(const char *what)
{
    fprintf(stderr, "micro: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void report(const char *work, uint64_t operations, uint64_t bytes, int64_t ns)
{
    printf("%s %" PRIu64 " %" PRIu64 " %" PRId64 "\n", work, operations, bytes, ns);
}

static const char *named(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int open_file(const char *name, int flags)
{
    int file = open(named(name), flags, 0644);
    if (file < 0)
        fail(path);
    return file;
}

static void close_file(int file)
{
    if (close(file) != 0)
        fail("close");
}

static void remove_file(const char *name)
{
    if (unlink(named(name)) != 0)
        fail(path);
}

static void whole(ssize_t moved, size_t wanted, const char *what)
{
    if (moved != (ssize_t)wanted) {
        if (moved >= 0)
            errno = EIO;
        fail(what);
    }
}

/* Pages that have been touched, huge ones where the system has them. */
static char *memory(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("memory");
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 0xa5, bytes);
    return at;
}

/* The optimiser must not see that nothing looks at what was copied. */
static void copied(void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

/* xorshift64: which page comes next. */
static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The first word of each MiB and of each page says where it is. */
static void stamp(char *memory, uint64_t number)
{
    memcpy(memory, &number, sizeof number);
}

static void expect(const char *memory, uint64_t number)
{
    uint64_t found;
    memcpy(&found, memory, sizeof found);
    if (found != number) {
        fprintf(stderr, "micro: read %" PRIx64 " where %" PRIx64 " was written\n", found, number);
        exit(1);
    }
}

/* Two processes do `body` at the same time; returns what each counted, and the time of both. Each
 * does it once before, so that its page tables are complete. */
struct two {
    volatile int ready, go;
    volatile uint64_t count[2];
};

static int64_t together(void (*body)(int me, volatile uint64_t *count, const void *what),
                        const void *what, uint64_t count[2])
{
    struct two *two = mmap(NULL, sizeof *two, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0);
    if (two == MAP_FAILED)
        fail("memory");
    fflush(stdout);
    for (int me = 0; me < 2; me++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            volatile uint64_t before = 0;
            body(me, &before, what);
            __sync_fetch_and_add(&two->ready, 1);
            while (!two->go)
                usleep(100);
            body(me, &two->count[me], what);
            _exit(0);
        }
    }
    while (two->ready < 2) {
        int status;
        if (waitpid(-1, &status, WNOHANG) > 0) {
            fprintf(stderr, "micro: one of two processes failed\n");
            exit(1);
        }
        usleep(100);
    }
    usleep(1000);
    int64_t since = now_ns();
    two->go = 1;
    for (int child = 0; child < 2; child++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "micro: one of two processes failed\n");
            exit(1);
        }
    }
    int64_t took = now_ns() - since;
    count[0] = two->count[0];
    count[1] = two->count[1];
    munmap(two, sizeof *two);
    return took;
}

/* ---- memcpy: what the machine can do ---- */

static void copy_half(int me, volatile uint64_t *count, const void *what)
{
    static char *own;
    uint64_t mib = *(const uint64_t *)what / 2;
    (void)me;
    if (!own)
        own = memory(mib * MIB);
    for (uint64_t i = 0; i < mib; i++) {
        memcpy(own + i * MIB, block, MIB);
        copied(own);
        *count += 1;
    }
}

static void copies(uint64_t mib, uint64_t random_mib, uint64_t operations)
{
    uint64_t most = mib > random_mib ? mib : random_mib;
    char *cold = memory(most * MIB), *hot = memory(MIB);
    int64_t since = now_ns();
    for (uint64_t i = 0; i < mib; i++) {
        memcpy(cold + i * MIB, block, MIB);
        copied(cold);
    }
    report("memcpy-to-cold-1m", mib, MIB, now_ns() - since);

    since = now_ns();
    for (uint64_t i = 0; i < mib; i++) {
        memcpy(hot, cold + i * MIB, MIB);
        copied(hot);
    }
    report("memcpy-from-cold-1m", mib, MIB, now_ns() - since);

    since = now_ns();
    for (uint64_t i = 0; i < mib; i++) {
        memcpy(hot, block, MIB);
        copied(hot);
    }
    report("memcpy-hot-1m", mib, MIB, now_ns() - since);

    uint64_t state = 88172645463325252u, pages = random_mib * (MIB / PAGE);
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        memcpy(cold + next(&state) % pages * PAGE, block, PAGE);
        copied(cold);
    }
    report("memcpy-to-cold-4k", operations, PAGE, now_ns() - since);
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        memcpy(hot, cold + next(&state) % pages * PAGE, PAGE);
        copied(hot);
    }
    report("memcpy-from-cold-4k", operations, PAGE, now_ns() - since);
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        memcpy(hot + next(&state) % (MIB / PAGE) * PAGE, block, PAGE);
        copied(hot);
    }
    report("memcpy-hot-4k", operations, PAGE, now_ns() - since);
    munmap(cold, most * MIB);

    uint64_t count[2];
    int64_t took = together(copy_half, &mib, count);
    report("memcpy-two", count[0] + count[1], MIB, took);
    munmap(hot, MIB);
}

/* ---- one file, large pieces ---- */

static int64_t write_blocks(int file, uint64_t mib, uint64_t mark)
{
    int64_t since = now_ns();
    for (uint64_t i = 0; i < mib; i++) {
        stamp(block, mark + i);
        whole(pwrite(file, block, MIB, (off_t)(i * MIB)), MIB, "pwrite");
    }
    return now_ns() - since;
}

static int64_t read_blocks(int file, uint64_t mib, uint64_t mark, char *into)
{
    int64_t since = now_ns();
    for (uint64_t i = 0; i < mib; i++) {
        whole(pread(file, into, MIB, (off_t)(i * MIB)), MIB, "pread");
        expect(into, mark + i);
    }
    return now_ns() - since;
}

struct shared_file {
    int file;
    uint64_t mib;
};

static void write_half(int me, volatile uint64_t *count, const void *what)
{
    const struct shared_file *shared = what;
    for (uint64_t i = (uint64_t)me; i < shared->mib; i += 2) {
        stamp(block, i);
        whole(pwrite(shared->file, block, MIB, (off_t)(i * MIB)), MIB, "pwrite");
        *count += 1;
    }
}

static void write_same(int me, volatile uint64_t *count, const void *what)
{
    const struct shared_file *shared = what;
    stamp(block, (uint64_t)me);
    for (int64_t until = now_ns() + CONTENDED_NS; now_ns() < until;)
        for (int i = 0; i < 16; i++) {
            whole(pwrite(shared->file, block, PAGE, 0), PAGE, "pwrite");
            *count += 1;
        }
}

static void large(uint64_t mib, uint64_t operations)
{
    char *into = memory(MIB);
    int file = open_file("large", O_RDWR | O_CREAT | O_EXCL);
    report("write-1m-new", mib, MIB, write_blocks(file, mib, 1000));
    report("write-1m", mib, MIB, write_blocks(file, mib, 2000));
    report("read-1m", mib, MIB, read_blocks(file, mib, 2000, into));

    uint64_t state = 88172645463325252u;
    int64_t since = now_ns();
    for (uint64_t i = 0; i < operations; i++)
        whole(pwrite(file, block, PAGE, (off_t)(next(&state) % (MIB / PAGE) * PAGE)), PAGE,
              "pwrite");
    report("write-4k-hot", operations, PAGE, now_ns() - since);
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++)
        whole(pread(file, into, PAGE, (off_t)(next(&state) % (MIB / PAGE) * PAGE)), PAGE, "pread");
    report("read-4k-hot", operations, PAGE, now_ns() - since);

    struct shared_file shared = { file, mib };
    uint64_t count[2];
    int64_t took = together(write_half, &shared, count);
    report("write-1m-two", count[0] + count[1], MIB, took);
    read_blocks(file, mib, 0, into);

    together(write_same, &shared, count);
    uint64_t fewer = count[0] < count[1] ? count[0] : count[1];
    report("write-4k-same", count[0] + count[1], PAGE, CONTENDED_NS);
    report("write-4k-same-slower", fewer, PAGE, CONTENDED_NS);
    whole(pread(file, into, PAGE, 0), PAGE, "pread");
    if (into[0] > 1 || memcmp(into + 8, block + 8, PAGE - 8) != 0) {
        fprintf(stderr, "micro: neither process's 4 KiB\n");
        exit(1);
    }
    close_file(file);
    remove_file("large");
    munmap(into, MIB);
}

/* ---- one file, small pieces ---- */

static void random_pages(uint64_t mib, uint64_t operations)
{
    char *into = memory(MIB);
    uint64_t state = 362436069u, pages = mib * (MIB / PAGE);
    int file = open_file("random", O_RDWR | O_CREAT | O_EXCL);
    write_blocks(file, mib, 0);
    int64_t since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        uint64_t page = next(&state) % pages;
        stamp(block, page << 32);
        whole(pwrite(file, block, PAGE, (off_t)(page * PAGE)), PAGE, "pwrite");
    }
    report("write-4k-random", operations, PAGE, now_ns() - since);
    uint64_t again = 362436069u;
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        uint64_t page = next(&again) % pages;
        whole(pread(file, into, PAGE, (off_t)(page * PAGE)), PAGE, "pread");
        expect(into, page << 32);
    }
    report("read-4k-random", operations, PAGE, now_ns() - since);
    close_file(file);
    remove_file("random");
    munmap(into, MIB);
}

static void tiny(uint64_t operations)
{
    char piece[SMALL] = { 0 };
    int file = open_file("tiny", O_RDWR | O_CREAT | O_EXCL);
    /* Twice, so that the blocks are there. */
    for (int pass = 0; pass < 2; pass++) {
        if (lseek(file, 0, SEEK_SET) != 0)
            fail("lseek");
        int64_t since = now_ns();
        for (uint64_t i = 0; i < operations; i++) {
            stamp(piece, i);
            whole(write(file, piece, SMALL), SMALL, "write");
        }
        if (pass == 1)
            report("write-64", operations, SMALL, now_ns() - since);
    }
    if (lseek(file, 0, SEEK_SET) != 0)
        fail("lseek");
    int64_t since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        whole(read(file, piece, SMALL), SMALL, "read");
        expect(piece, i);
    }
    report("read-64", operations, SMALL, now_ns() - since);
    close_file(file);
    remove_file("tiny");
}

/* ---- many files ---- */

static void files(uint64_t count)
{
    char name[32];
    int64_t since = now_ns();
    for (uint64_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "small-%06" PRIu64, i);
        int file = open_file(name, O_WRONLY | O_CREAT | O_EXCL);
        whole(write(file, block, PAGE), PAGE, "write");
        close_file(file);
    }
    int64_t created = now_ns();
    for (uint64_t i = 0; i < count; i++) {
        struct stat found;
        snprintf(name, sizeof name, "small-%06" PRIu64, i);
        if (stat(named(name), &found) != 0)
            fail(path);
        whole((ssize_t)found.st_size, PAGE, "stat");
    }
    int64_t looked = now_ns();
    for (uint64_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "small-%06" PRIu64, i);
        remove_file(name);
    }
    int64_t end = now_ns();
    report("files", count, PAGE, end - since);
    report("files-create", count, PAGE, created - since);
    report("files-stat", count, PAGE, looked - created);
    report("files-unlink", count, PAGE, end - looked);
}

static void names(uint64_t operations, const char *unmanaged)
{
    close_file(open_file("opened", O_RDWR | O_CREAT | O_EXCL));
    int64_t since = now_ns();
    for (uint64_t i = 0; i < operations; i++)
        close_file(open_file("opened", O_RDWR));
    report("open-close", operations, 0, now_ns() - since);
    remove_file("opened");
    since = now_ns();
    for (uint64_t i = 0; i < operations; i++) {
        struct stat found;
        if (stat(unmanaged, &found) != 0)
            fail(unmanaged);
    }
    report("stat-unmanaged", operations, 0, now_ns() - since);
}

static void all(uint64_t mib, uint64_t random_mib, uint64_t operations, uint64_t count,
                const char *unmanaged)
{
    copies(mib, random_mib, operations);
    large(mib, operations);
    random_pages(random_mib, operations);
    tiny(operations);
    files(count);
    names(count, unmanaged);
}

static uint64_t number(const char *text)
{
    uint64_t found = strtoull(text, NULL, 10);
    if (found == 0) {
        fprintf(stderr, "micro: %s: not a number above 0\n", text);
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "time") == 0) {
        printf("%" PRId64 "\n", clock_ns(CLOCK_REALTIME) / 1000);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "warm") == 0) {
        memory(number(argv[2]) * MIB);
        return 0;
    }
    block = memory(MIB);
    if (argc == 4 && strcmp(argv[1], "fill") == 0) {
        int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (file < 0)
            fail(argv[2]);
        write_blocks(file, number(argv[3]), 0);
        close_file(file);
        printf("%" PRId64 "\n", clock_ns(CLOCK_REALTIME) / 1000);
        return 0;
    }
    if (argc == 8 && strcmp(argv[1], "all") == 0) {
        directory = argv[2];
        all(number(argv[3]), number(argv[4]), number(argv[5]), number(argv[6]), argv[7]);
        return 0;
    }
    fprintf(stderr, "usage: micro all DIRECTORY MIB RANDOM_MIB OPERATIONS FILES UNMANAGED\n");
    return 2;
}
