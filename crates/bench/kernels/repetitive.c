/*
 * Hermes (HPDC'18), section 4.2.1, "repetitive read operations": in each phase each rank writes a
 * file of its own, then reads as many bytes, a part of some file REPEATS times.
 *
 *     repetitive DIRECTORY RANKS PHASES BYTES REPEATS
 *
 * The file that is read is the neighbour's of this phase or of an earlier one: not necessarily what
 * was just written.
 */
#include "kernel.h"

static const char *directory;
static int phases, repeats;
static size_t bytes;

static const char *path_of(int phase, int of_rank)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/phase-%02d.rank-%02d", directory, phase, of_rank);
    return path;
}

static void body(void)
{
    size_t part = bytes / (size_t)repeats / 8 * 8;
    char *data = buffer(bytes), *again = buffer(part), *wanted = buffer(part);
    for (int phase = 0; phase < phases; phase++) {
        fill(data, bytes, (uint64_t)(phase * ranks + rank), 0);
        begin();
        int file = open_file(path_of(phase, rank), O_WRONLY | O_CREAT | O_TRUNC);
        put(file, data, bytes, 0);
        close_file(file);
        end(WRITE);

        int from = (5 * phase + 3) % (phase + 1), neighbour = (rank + 1) % ranks;
        fill(wanted, part, (uint64_t)(from * ranks + neighbour), 0);
        begin();
        file = open_file(path_of(from, neighbour), O_RDONLY);
        for (int time = 0; time < repeats; time++)
            get(file, again, part, 0);
        close_file(file);
        end(READ);
        expect(again, wanted, part, path_of(from, neighbour));
    }
}

int main(int argc, char **argv)
{
    if (argc != 6 || atoi(argv[5]) < 1) {
        fprintf(stderr, "usage: repetitive DIRECTORY RANKS PHASES BYTES REPEATS\n");
        return 2;
    }
    directory = argv[1];
    phases = atoi(argv[3]);
    bytes = strtoull(argv[4], NULL, 10) / 8 * 8;
    repeats = atoi(argv[5]);
    return run(atoi(argv[2]), body);
}
