/*
 * What ranks of an MPI program have of a file lies in pieces here and there: all write or read their pieces
 * by a view, one step after the other:
 *
 *     modes MODE WHAT FILE STEPS BYTES PIECE
 *
 * MODE   collective (MPI_File_write_all and read_all, at the ranks' pointers) or individual (write_at, read_at)
 * WHAT   write, read (of what write has left), or check: each byte of the file, by POSIX calls
 * BYTES  of a step, of all ranks; the file has SEGMENTS of them, which are written again and again
 * PIECE  bytes that lie together; which rank has which pieces is random, each has as many
 *
 * The program sets romio_ds_write and romio_ds_read to "disable": holes are others' pieces. Rank 0 prints
 * one line, in microseconds: that of the slowest rank for all steps.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEGMENTS = 8 };

static int rank, ranks;

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void stop(const char *what)
{
    fprintf(stderr, "modes: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* The word of a piece's file that lies at an offset, as it was written in a step. */
static uint64_t word_at(uint64_t offset, int step)
{
    return (offset + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(step + 1) * 0xbf58476d1ce4e5b9u;
}

/* Step in which a segment was written last. */
static int last_step(int segment, int steps)
{
    return segment + (steps - 1 - segment) / SEGMENTS * SEGMENTS;
}

/* Who has which piece of a segment. */
static int *owners_of(int pieces)
{
    int *owners = malloc((size_t)pieces * sizeof *owners);
    uint64_t seed = 11;
    for (int n = 0; n < pieces; n++)
        owners[n] = n % ranks;
    for (int n = pieces - 1; n > 0; n--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((seed >> 33) % (uint64_t)(n + 1)), swap = owners[n];
        owners[n] = owners[other];
        owners[other] = swap;
    }
    return owners;
}

static void check(const char *path, int steps, uint64_t bytes)
{
    int fd = open(path, O_RDONLY);
    uint64_t *found = malloc(bytes);
    if (fd < 0 || !found)
        stop("the file cannot be opened");
    for (int segment = 0; segment < SEGMENTS && segment < steps; segment++) {
        uint64_t base = (uint64_t)segment * bytes;
        if (pread(fd, found, bytes, (off_t)base) != (ssize_t)bytes)
            stop("the file is too short");
        for (uint64_t n = 0; n < bytes / 8; n++)
            if (found[n] != word_at(base + n * 8, last_step(segment, steps)))
                stop("the file holds other bytes than were written");
    }
    close(fd);
    free(found);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 7) {
        fprintf(stderr, "usage: modes MODE WHAT FILE STEPS BYTES PIECE\n");
        return 2;
    }
    int is_collective = !strcmp(argv[1], "collective"), is_write = !strcmp(argv[2], "write");
    int steps = atoi(argv[4]), piece = atoi(argv[6]);
    uint64_t bytes = strtoull(argv[5], NULL, 10);
    int pieces = (int)(bytes / (uint64_t)piece), own = 0;
    if (pieces % ranks || piece % 8 || steps < 1)
        stop("as many pieces for each rank, of whole words");
    if (!strcmp(argv[2], "check")) {
        if (rank == 0)
            check(argv[3], steps, bytes);
        MPI_Finalize();
        return 0;
    }
    int *owners = owners_of(pieces), count = pieces / ranks * piece;
    MPI_Aint *places = malloc((size_t)pieces * sizeof *places);
    for (int n = 0; n < pieces; n++)
        if (owners[n] == rank)
            places[own++] = (MPI_Aint)n * piece;
    MPI_Datatype blocks, tile;
    MPI_Type_create_hindexed_block(own, piece, places, MPI_BYTE, &blocks);
    MPI_Type_create_resized(blocks, 0, (MPI_Aint)bytes, &tile);
    MPI_Type_commit(&tile);
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_ds_write", "disable");
    MPI_Info_set(info, "romio_ds_read", "disable");
    MPI_File file;
    int how = is_write ? MPI_MODE_RDWR | MPI_MODE_CREATE : MPI_MODE_RDONLY;
    if (MPI_File_open(MPI_COMM_WORLD, argv[3], how, info, &file) != MPI_SUCCESS)
        stop("MPI_File_open failed");
    if (MPI_File_set_view(file, 0, MPI_BYTE, tile, "native", MPI_INFO_NULL) != MPI_SUCCESS)
        stop("MPI_File_set_view failed");
    uint64_t *buffer = malloc((size_t)count);
    int64_t sum_us = 0;
    for (int step = 0; step < steps; step++) {
        int segment = step % SEGMENTS, wrong = 0;
        uint64_t *word = buffer;
        for (int n = 0; n < own && is_write; n++)
            for (int at = 0; at < piece; at += 8)
                *word++ = word_at((uint64_t)segment * bytes + (uint64_t)places[n] + (uint64_t)at, step);
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t start_us = now_us();
        MPI_Offset offset = (MPI_Offset)segment * count;
        if (is_collective) {
            if (segment == 0)
                wrong |= MPI_File_seek(file, 0, MPI_SEEK_SET);
            wrong |= is_write ? MPI_File_write_all(file, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE)
                              : MPI_File_read_all(file, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE);
        } else {
            wrong |= is_write ? MPI_File_write_at(file, offset, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE)
                              : MPI_File_read_at(file, offset, buffer, count, MPI_BYTE, MPI_STATUS_IGNORE);
        }
        if (wrong)
            stop("a call failed");
        MPI_Barrier(MPI_COMM_WORLD);
        sum_us += now_us() - start_us;
        word = buffer;
        for (int n = 0; n < own && !is_write; n++)
            for (int at = 0; at < piece; at += 8, word++)
                if (*word != word_at((uint64_t)segment * bytes + (uint64_t)places[n] + (uint64_t)at,
                                     last_step(segment, steps)))
                    stop("other bytes than were written are read");
    }
    if (MPI_File_close(&file) != MPI_SUCCESS)
        stop("MPI_File_close failed");
    int64_t slowest_us = 0;
    MPI_Reduce(&sum_us, &slowest_us, 1, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%" PRId64 "\n", slowest_us);
    MPI_Type_free(&tile);
    MPI_Type_free(&blocks);
    MPI_Info_free(&info);
    MPI_Finalize();
    return 0;
}
