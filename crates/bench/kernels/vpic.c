/*
 * VPIC-IO: at the end of each time step all ranks write one file with 8 variables of their
 * particles, each variable an array over all ranks, as H5Part lays it out, behind one header.
 *
 *     vpic DIRECTORY RANKS STEPS PARTICLES COMPUTE_US
 *
 * PARTICLES is for each rank.
 */
#include "kernel.h"

enum { VARIABLES = 8, HEADER = 4096 };

static const char *directory;
static int steps;
static size_t particles;
static int64_t compute_us;

static void body(void)
{
    char path[4096], header[HEADER], *data[VARIABLES]; /* x, y, z, i, ux, uy, uz, q */
    size_t bytes = particles * sizeof(float);
    for (int v = 0; v < VARIABLES; v++)
        data[v] = buffer(bytes);
    for (int step = 0; step < steps; step++) {
        fill(header, HEADER, (uint64_t)step, 0);
        for (int v = 0; v < VARIABLES; v++)
            fill(data[v], bytes, (uint64_t)step, HEADER + (uint64_t)(v * ranks + rank) * bytes);
        compute(compute_us);
        snprintf(path, sizeof path, "%s/step-%02d.h5p", directory, step);
        begin();
        int file = open_file(path, O_WRONLY | O_CREAT);
        if (rank == 0)
            put(file, header, HEADER, 0);
        for (int v = 0; v < VARIABLES; v++)
            put(file, data[v], bytes, HEADER + (off_t)(v * ranks + rank) * (off_t)bytes);
        close_together(file);
        end(WRITE);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: vpic DIRECTORY RANKS STEPS PARTICLES COMPUTE_US\n");
        return 2;
    }
    directory = argv[1];
    steps = atoi(argv[3]);
    particles = strtoull(argv[4], NULL, 10) / 2 * 2;
    compute_us = atoll(argv[5]);
    return run(atoi(argv[2]), body);
}
