/*
 * A checkpointing kernel: compute, write a checkpoint, repeat; at the end read the last one back.
 *
 *     checkpoint DIRECTORY STEPS BYTES COMPUTE_MS
 *
 * Nothing here knows how its files are stored. STEPS files of BYTES bytes are written by plain
 * write(2). A step computes COMPUTE_MS milliseconds on average; the mesh is refined as the run goes
 * on, so that step s costs as much as s squared. What is written depends on the step alone, never
 * on the time. Each phase is one line on standard output, its times in microseconds of
 * CLOCK_REALTIME:
 *
 *     compute|write|read,START,END,BYTES
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, MESH = 256 };

static double mesh[2][MESH][MESH];

static void fail(const char *what)
{
    fprintf(stderr, "checkpoint: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void report(const char *phase, int64_t start_us, size_t bytes)
{
    printf("%s,%" PRId64 ",%" PRId64 ",%zu\n", phase, start_us, now_us(), bytes);
    fflush(stdout);
}

/* One Jacobi sweep of the heat equation; returns the temperature in the middle. */
static double sweep(int from)
{
    double(*old)[MESH] = mesh[from], (*new)[MESH] = mesh[!from];
    for (int y = 1; y < MESH - 1; y++)
        for (int x = 1; x < MESH - 1; x++)
            new[y][x] = 0.25 * (old[y - 1][x] + old[y + 1][x] + old[y][x - 1] + old[y][x + 1]);
    return new[MESH / 2][MESH / 2];
}

/* The state of the simulation after a step: xorshift64 from a seed that only the step decides. */
static void fill(uint64_t *state, size_t bytes, int step)
{
    uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)step;
    for (size_t i = 0; i < bytes / sizeof *state; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state[i] = x;
    }
}

static void compute(uint64_t *state, size_t bytes, int step, int64_t duration_us)
{
    int64_t start_us = now_us();
    fill(state, bytes, step);
    volatile double middle = 0;
    for (int from = 0; now_us() - start_us < duration_us; from = !from)
        middle = sweep(from);
    (void)middle;
    report("compute", start_us, 0);
}

static void write_checkpoint(const char *path, const char *state, size_t bytes)
{
    int64_t start_us = now_us();
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0)
        fail(path);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(file, state + done, bytes - done < PIECE ? bytes - done : PIECE);
        if (n < 0)
            fail(path);
        done += (size_t)n;
    }
    if (close(file) != 0)
        fail(path);
    report("write", start_us, bytes);
}

static void read_checkpoint(const char *path, char *state, size_t bytes)
{
    int64_t start_us = now_us();
    int file = open(path, O_RDONLY);
    if (file < 0)
        fail(path);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(file, state + done, bytes - done < PIECE ? bytes - done : PIECE);
        if (n < 0)
            fail(path);
        if (n == 0) {
            fprintf(stderr, "checkpoint: %s: only %zu of %zu bytes\n", path, done, bytes);
            exit(1);
        }
        done += (size_t)n;
    }
    close(file);
    report("read", start_us, bytes);
}

int main(int argc, char **argv)
{
    int steps = argc == 5 ? atoi(argv[2]) : 0;
    size_t bytes = argc == 5 ? strtoull(argv[3], NULL, 10) / sizeof(uint64_t) * sizeof(uint64_t) : 0;
    if (steps < 1 || bytes == 0) {
        fprintf(stderr, "usage: checkpoint DIRECTORY STEPS BYTES COMPUTE_MS\n");
        return 2;
    }
    int64_t compute_us = atoll(argv[4]) * 1000 * steps;
    int64_t cost = (int64_t)steps * (steps + 1) * (2 * steps + 1) / 6; /* 1 + 4 + ... + steps^2 */

    uint64_t *state = malloc(bytes), *restored = malloc(bytes);
    if (!state || !restored)
        fail("memory");
    memset(restored, 0, bytes);
    for (int x = 0; x < MESH; x++)
        mesh[0][0][x] = mesh[1][0][x] = 100; /* the hot edge */

    char path[4096];
    for (int step = 1; step <= steps; step++) {
        compute(state, bytes, step, compute_us * step * step / cost);
        snprintf(path, sizeof path, "%s/step-%02d.dat", argv[1], step);
        write_checkpoint(path, (const char *)state, bytes);
    }
    read_checkpoint(path, (char *)restored, bytes);
    if (memcmp(state, restored, bytes) != 0) {
        fprintf(stderr, "checkpoint: %s: read back other bytes than were written\n", path);
        return 1;
    }
    return 0;
}
