/*
 * Data Elevator (HiPC'16), Figure 8: an index of the particles of a step above an energy, and a query
 * by it. A particle has eight floats, as in VPIC-IO; the last is its energy.
 *
 *     particles write FILE MIB         makes the file; one piece of 64 KiB in 16 has such particles
 *     particles analyse FILE           reads all of it for the index, then the pieces that it names
 *
 * The second prints microseconds of index and query, and how many particles there are.
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIELDS = 8, ENERGY = 7, PIECE = 64 << 10, READ = 4 << 20, SPARSE = 16 };
enum { PARTICLES = PIECE / (FIELDS * 4), PIECES_MAX = 1 << 20 };

static const float ABOVE = 0.97f;
static uint32_t named[PIECES_MAX];

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int count_above(const float *piece)
{
    int found = 0;
    for (int i = 0; i < PARTICLES; i++)
        found += piece[i * FIELDS + ENERGY] > ABOVE;
    return found;
}

static void write_all(const char *path, int mib)
{
    float *data = calloc(1, READ);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (fd < 0 || !data)
        die(path);
    uint32_t piece = 0;
    for (int64_t at = 0; at < (int64_t)mib << 20; at += READ) {
        for (int within = 0; within < READ / PIECE; within++, piece++) {
            float *one = data + (size_t)within * PIECE / 4;
            for (int i = 0; i < PARTICLES; i++)
                one[i * FIELDS + ENERGY] = (float)((piece * 7919u + (uint32_t)i * 31u) % 960u) / 1000.0f;
            if (piece % SPARSE == 0)
                one[(piece % PARTICLES) * FIELDS + ENERGY] = 0.99f;
        }
        if (write(fd, data, READ) != READ)
            die("write");
    }
    if (close(fd))
        die("close");
}

static void analyse(const char *path)
{
    float *data = malloc(READ);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || !data)
        die(path);
    int64_t begun = now_us(), indexed = 0, found = 0;
    uint32_t piece = 0, names = 0;
    for (ssize_t got; (got = read(fd, data, READ)) != 0;) {
        if (got < 0 || got % PIECE)
            die("read");
        for (ssize_t within = 0; within < got / PIECE; within++, piece++) {
            int here = count_above(data + within * PIECE / 4);
            indexed += here;
            if (here && names < PIECES_MAX)
                named[names++] = piece;
        }
    }
    int64_t between = now_us();
    for (uint32_t i = 0; i < names; i++) {
        if (pread(fd, data, PIECE, (off_t)named[i] * PIECE) != PIECE)
            die("pread");
        found += count_above(data);
    }
    int64_t ended = now_us();
    if (found != indexed || !found) {
        fprintf(stderr, "particles: the query has found %" PRId64 " of %" PRId64 "\n", found, indexed);
        exit(1);
    }
    printf("%" PRId64 ",%" PRId64 ",%" PRId64 "\n", between - begun, ended - between, found);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "write"))
        write_all(argv[2], atoi(argv[3]));
    else if (argc == 3 && !strcmp(argv[1], "analyse"))
        analyse(argv[2]);
    else {
        fprintf(stderr, "particles write FILE MIB | analyse FILE\n");
        return 2;
    }
    return 0;
}
