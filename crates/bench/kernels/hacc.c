/*
 * HACC-IO: in each time step all ranks write one shared file with 9 variables of their particles
 * (xx, yy, zz, vx, vy, vz, phi, pid, mask; 38 bytes a particle), each variable an array over all
 * ranks; then an analysis reads it back, each rank what its neighbour wrote.
 *
 *     hacc DIRECTORY RANKS STEPS PARTICLES COMPUTE_US
 *
 * PARTICLES is for each rank.
 */
#include "kernel.h"

enum { VARIABLES = 9 };
static const size_t width[VARIABLES] = { 4, 4, 4, 4, 4, 4, 4, 8, 2 };

static const char *directory;
static int steps;
static size_t particles;
static int64_t compute_us;

/* Where rank r's part of variable v begins. */
static off_t place(int v, int r)
{
    size_t before = 0;
    for (int other = 0; other < v; other++)
        before += width[other] * (size_t)ranks;
    return (off_t)((before + width[v] * (size_t)r) * particles);
}

static void body(void)
{
    char path[4096], *data[VARIABLES], *again[VARIABLES], *wanted = buffer(particles * 8);
    for (int v = 0; v < VARIABLES; v++) {
        data[v] = buffer(particles * width[v]);
        again[v] = buffer(particles * width[v]);
    }
    int neighbour = (rank + 1) % ranks;
    for (int step = 0; step < steps; step++) {
        for (int v = 0; v < VARIABLES; v++)
            fill(data[v], particles * width[v], (uint64_t)step, (uint64_t)place(v, rank));
        compute(compute_us);
        snprintf(path, sizeof path, "%s/step-%02d.gio", directory, step);
        begin();
        int file = open_file(path, O_WRONLY | O_CREAT);
        for (int v = 0; v < VARIABLES; v++)
            put(file, data[v], particles * width[v], place(v, rank));
        close_together(file);
        end(WRITE);

        begin();
        file = open_file(path, O_RDONLY);
        for (int v = 0; v < VARIABLES; v++)
            get(file, again[v], particles * width[v], place(v, neighbour));
        close_file(file);
        end(READ);
        for (int v = 0; v < VARIABLES; v++) {
            fill(wanted, particles * width[v], (uint64_t)step, (uint64_t)place(v, neighbour));
            expect(again[v], wanted, particles * width[v], path);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: hacc DIRECTORY RANKS STEPS PARTICLES COMPUTE_US\n");
        return 2;
    }
    directory = argv[1];
    steps = atoi(argv[3]);
    particles = strtoull(argv[4], NULL, 10) / 4 * 4;
    compute_us = atoll(argv[5]);
    return run(atoi(argv[2]), body);
}
