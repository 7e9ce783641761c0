/*
 * What the kernels share: ranks as processes, barriers, the clock around I/O, and content that
 * follows from a file's number and the position in it.
 *
 * Nothing here knows how files are stored. As in an MPI program, a phase of I/O takes as long as its
 * slowest rank. At the end a kernel prints one line, in microseconds; END is of CLOCK_REALTIME:
 *
 *     WRITE_US,READ_US,END
 */
#ifndef KERNEL_H
#define KERNEL_H

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Not every kernel needs everything. */
#define UNUSED __attribute__((unused))

enum { PIECE = 1 << 20, RANKS_MAX = 64 };
enum activity { WRITE, READ };

struct shared {
    pthread_barrier_t barrier;
    int64_t took_us[RANKS_MAX];
    int64_t total_us[2];
};

static struct shared *shared;
static int rank, ranks;
static int64_t phase_start_us;

static void fail(const char *what)
{
    fprintf(stderr, "kernel: rank %d: %s: %s\n", rank, what, strerror(errno));
    exit(1);
}

static int64_t now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void barrier(void)
{
    pthread_barrier_wait(&shared->barrier);
}

/* As the paper does: computing is emulated by sleeping. */
static UNUSED void compute(int64_t us)
{
    struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    while (nanosleep(&t, &t) != 0)
        continue;
}

static void begin(void)
{
    barrier();
    phase_start_us = now_us(CLOCK_MONOTONIC);
}

static void end(enum activity what)
{
    shared->took_us[rank] = now_us(CLOCK_MONOTONIC) - phase_start_us;
    barrier();
    if (rank == 0) {
        int64_t longest_us = 0;
        for (int r = 0; r < ranks; r++)
            if (shared->took_us[r] > longest_us)
                longest_us = shared->took_us[r];
        shared->total_us[what] += longest_us;
    }
    barrier();
}

static void *buffer(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory)
        fail("memory");
    memset(memory, 0xa5, bytes); /* so that no page is touched for the first time during I/O */
    return memory;
}

/* The words from byte `offset` of file `file` on (splitmix64). */
static void fill(void *memory, size_t bytes, uint64_t file, uint64_t offset)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t x = (file << 40) + offset / 8 + i;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        memcpy((char *)memory + 8 * i, &x, 8);
    }
}

static void put(int file, const char *memory, size_t bytes, off_t offset)
{
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        ssize_t n = pwrite(file, memory + done, piece, offset + (off_t)done);
        if (n <= 0)
            fail("pwrite");
        done += (size_t)n;
    }
}

static UNUSED void get(int file, char *memory, size_t bytes, off_t offset)
{
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        ssize_t n = pread(file, memory + done, piece, offset + (off_t)done);
        if (n <= 0)
            fail("pread");
        done += (size_t)n;
    }
}

static UNUSED void expect(const void *found, const void *wanted, size_t bytes, const char *path)
{
    if (memcmp(found, wanted, bytes) != 0) {
        fprintf(stderr, "kernel: rank %d: %s: read other bytes than were written\n", rank, path);
        exit(1);
    }
}

static int open_file(const char *path, int flags)
{
    int file = open(path, flags, 0644);
    if (file < 0)
        fail(path);
    return file;
}

static void close_file(int file)
{
    if (close(file) != 0)
        fail("close");
}

/* As MPI_File_close is, collective: no rank closes a file that others still write. */
static UNUSED void close_together(int file)
{
    barrier();
    close_file(file);
}

/* Says how many ranks there are, before they are forked, and lets them meet. */
static void share(int count)
{
    ranks = count;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("memory");
    pthread_barrierattr_t across;
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across, (unsigned)ranks);
}

/* Runs `body` as `ranks` processes, and reports. */
static int run(int count, void (*body)(void))
{
    if (count < 1 || count > RANKS_MAX) {
        fprintf(stderr, "kernel: 1 to %d ranks\n", RANKS_MAX);
        return 2;
    }
    share(count);
    pid_t child[RANKS_MAX];
    for (int r = 0; r < ranks; r++) {
        child[r] = fork();
        if (child[r] < 0)
            fail("fork");
        if (child[r] == 0) {
            rank = r;
            body();
            exit(0);
        }
    }
    int result = 0;
    for (int r = 0; r < ranks; r++) {
        int status;
        if (wait(&status) < 0)
            fail("wait");
        if (status != 0 && result == 0) {
            result = 1;
            for (int other = 0; other < ranks; other++)
                kill(child[other], SIGTERM); /* they would wait at a barrier for ever */
        }
    }
    if (result == 0)
        printf("%" PRId64 ",%" PRId64 ",%" PRId64 "\n", shared->total_us[WRITE],
               shared->total_us[READ], now_us(CLOCK_REALTIME));
    return result;
}

#endif
