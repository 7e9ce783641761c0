/*
 * Hermes (HPDC'18), section 4.2.1, "alternating compute-I/O phases": each rank computes, then writes
 * a file of its own, again and again.
 *
 *     alternating DIRECTORY RANKS STEPS BYTES COMPUTE_US
 */
#include "kernel.h"

static const char *directory;
static int steps;
static size_t bytes;
static int64_t compute_us;

static void body(void)
{
    char path[4096], *data = buffer(bytes);
    for (int step = 0; step < steps; step++) {
        fill(data, bytes, (uint64_t)(step * ranks + rank), 0);
        compute(compute_us);
        snprintf(path, sizeof path, "%s/step-%02d.rank-%02d", directory, step, rank);
        begin();
        int file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
        put(file, data, bytes, 0);
        close_file(file);
        end(WRITE);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: alternating DIRECTORY RANKS STEPS BYTES COMPUTE_US\n");
        return 2;
    }
    directory = argv[1];
    steps = atoi(argv[3]);
    bytes = strtoull(argv[4], NULL, 10) / 8 * 8;
    compute_us = atoll(argv[5]);
    return run(atoi(argv[2]), body);
}
