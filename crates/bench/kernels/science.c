/*
 * The I/O of scientific programs, by HDF5, by MPI-IO or by POSIX calls:
 *
 *     science KERNEL API MODE DIRECTORY STEPS BYTES COMPUTE_US
 *
 * KERNEL
 *     vpic      a file for each step, eight variables of particles, contiguous in each rank
 *     chombo    a file for each step, three levels of boxes of unequal size, dealt out to ranks
 *     hacc      a file for each step, nine variables of particles, as many bytes as HACC-IO has
 *     madbench  one file of matrices: S writes all, W reads and writes each, C reads all
 *     ior       one file, two segments of a block for each rank, transfers in random order
 *     s3asim    a data base that is read from front to back, and a file of results
 *     metadata  files that are created and closed, and nothing else
 *     index     of the files of vpic: for each chunk of particles, which have Ux > 0.97
 *     query     the positions of these particles, by the index
 *     check     whether the files of KERNEL, named in MODE's place, hold what it has written
 * API       hdf5, mpiio or posix
 * MODE      independent or collective
 * BYTES     of a step, of all ranks together
 *
 * Rank 0 prints one line, in microseconds; START and END are of CLOCK_REALTIME:
 *
 *     WRITE_US,READ_US,START,END
 *
 * Compiled with -DWITH_MPI ranks are those of MPI, otherwise one process (RANKS in the environment
 * makes more); hdf5 wants -DWITH_HDF5 and a parallel HDF5.
 */
#ifdef WITH_MPI
#include <mpi.h>
#endif
#ifdef WITH_HDF5
#include <hdf5.h>
#endif
#include "kernel.h"

enum { VARIABLES_MAX = 16, PIECES_MAX = 4096, CHUNK = 1 << 16, THRESHOLD = 4166118277u };

/* A part of a variable, of one rank; offset and bytes are multiples of eight. */
struct piece {
    uint64_t offset, bytes;
};

/* What is in a file: variables one after the other. */
struct plan {
    const char *name;
    int variables, pieces;
    uint64_t bytes[VARIABLES_MAX];
    struct piece of[VARIABLES_MAX][PIECES_MAX];
    int count[VARIABLES_MAX];
};

static struct plan plan;
static const char *kernel, *api, *mode, *directory;
static int steps;
static uint64_t step_bytes;
static int64_t compute_us, start_us, sum_us[2];
static char *memory; /* of all variables, one after the other */
static uint64_t own_bytes[VARIABLES_MAX];

static void wait_all(void)
{
#ifdef WITH_MPI
    MPI_Barrier(MPI_COMM_WORLD);
#else
    if (shared)
        barrier();
#endif
}

static void phase_begin(void)
{
    wait_all();
    phase_start_us = now_us(CLOCK_MONOTONIC);
}

/* A phase takes as long as its slowest rank. */
static void phase_end(enum activity what)
{
    wait_all();
    sum_us[what] += now_us(CLOCK_MONOTONIC) - phase_start_us;
}

static int is(const char *text, const char *other)
{
    return strcmp(text, other) == 0;
}

static void stop(const char *what)
{
    fprintf(stderr, "science: rank %d: %s\n", rank, what);
#ifdef WITH_MPI
    MPI_Abort(MPI_COMM_WORLD, 1);
#endif
    exit(1);
}

static void add(int variable, uint64_t offset, uint64_t bytes)
{
    int at = plan.count[variable]++;
    if (at == PIECES_MAX)
        stop("too many pieces");
    plan.of[variable][at] = (struct piece){ offset, bytes };
}

static uint64_t eights(uint64_t bytes)
{
    return bytes < 8 ? 8 : bytes / 8 * 8;
}

/* What each rank has. Everything is as much as BYTES says, but for rounding. */
static void make_plan(void)
{
    memset(&plan, 0, sizeof plan);
    if (is(kernel, "vpic") || is(kernel, "hacc")) {
        plan.variables = is(kernel, "vpic") ? 8 : 9;
        uint64_t own = eights(step_bytes / plan.variables / ranks);
        for (int v = 0; v < plan.variables; v++) {
            plan.bytes[v] = own * ranks;
            add(v, own * rank, own);
        }
    } else if (is(kernel, "chombo")) {
        /* Boxes of 1 to 4 parts in turn, so that no border is a stripe's; a finer level has more. */
        plan.variables = 3;
        for (int v = 0; v < 3; v++) {
            uint64_t level = step_bytes * (v + 1) / 6, unit = eights(level / (24 * (v + 1)) / 5 * 2);
            uint64_t at = 0;
            for (int box = 0; at < level; box++) {
                uint64_t bytes = eights(unit * (1 + box % 4) / 2);
                if (bytes > level - at)
                    bytes = eights(level - at);
                if (box % ranks == rank)
                    add(v, at, bytes);
                at += bytes;
            }
            plan.bytes[v] = at;
        }
    } else if (is(kernel, "madbench")) {
        plan.variables = 8; /* NO_BIN */
        uint64_t own = eights(step_bytes / 8 / ranks);
        for (int v = 0; v < 8; v++) {
            plan.bytes[v] = own * ranks;
            add(v, own * rank, own);
        }
    } else if (is(kernel, "ior")) {
        /* Segments of a block for each rank, in sixteen transfers each. */
        plan.variables = 2;
        uint64_t transfer = eights(step_bytes / 2 / ranks / 16), block = transfer * 16;
        for (int v = 0; v < 2; v++) {
            plan.bytes[v] = block * ranks;
            for (int t = 0; t < 16; t++)
                add(v, block * ((rank + v + 1) % ranks) + transfer * ((t * 7 + 3) % 16), transfer);
        }
    } else if (is(kernel, "s3asim")) {
        plan.variables = 1;
        uint64_t own = eights(step_bytes / ranks);
        plan.bytes[0] = own * ranks;
        add(0, own * rank, own);
    } else if (is(kernel, "metadata") || is(kernel, "records")) {
        plan.variables = 0;
    } else {
        stop("no such kernel");
    }
    uint64_t all = CHUNK;
    for (int v = 0; v < plan.variables; v++) {
        own_bytes[v] = 0;
        for (int p = 0; p < plan.count[v]; p++)
            own_bytes[v] += plan.of[v][p].bytes;
        all += own_bytes[v];
    }
    memory = buffer(all);
}

static char *memory_of(int variable)
{
    char *at = memory;
    for (int v = 0; v < variable; v++)
        at += own_bytes[v];
    return at;
}

static uint64_t base_of(int variable)
{
    uint64_t base = 0;
    for (int v = 0; v < variable; v++)
        base += plan.bytes[v];
    return base;
}

/* What a piece holds, of this file. */
static void fill_piece(char *to, int number, int variable, struct piece piece)
{
    fill(to, piece.bytes, (uint64_t)number, base_of(variable) + piece.offset);
}

/* ---- files, by three interfaces ---- */

struct file {
    int fd;
#ifdef WITH_MPI
    MPI_File mpi;
#endif
#ifdef WITH_HDF5
    hid_t h5, transfer;
#endif
};

static void file_open(struct file *file, const char *path, int is_new)
{
    if (is(api, "posix")) {
        file->fd = open_file(path, is_new ? O_RDWR | O_CREAT : O_RDWR);
        return;
    }
#ifdef WITH_MPI
    if (is(api, "mpiio")) {
        int how = is_new ? MPI_MODE_RDWR | MPI_MODE_CREATE : MPI_MODE_RDWR;
        if (MPI_File_open(MPI_COMM_WORLD, path, how, MPI_INFO_NULL, &file->mpi) != MPI_SUCCESS)
            stop("MPI_File_open failed");
        return;
    }
#endif
#ifdef WITH_HDF5
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    file->h5 = is_new ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access)
                      : H5Fopen(path, H5F_ACC_RDWR, access);
    H5Pclose(access);
    file->transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(file->transfer,
                     is(mode, "collective") ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    if (file->h5 < 0)
        stop("the file cannot be opened by HDF5");
    return;
#endif
    stop("compiled without this interface");
}

static void file_close(struct file *file)
{
    if (is(api, "posix")) {
        wait_all();
        close_file(file->fd);
        return;
    }
#ifdef WITH_MPI
    if (is(api, "mpiio")) {
        if (MPI_File_close(&file->mpi) != MPI_SUCCESS)
            stop("MPI_File_close failed");
        return;
    }
#endif
#ifdef WITH_HDF5
    H5Pclose(file->transfer);
    if (H5Fclose(file->h5) < 0)
        stop("the file cannot be closed by HDF5");
#endif
}

/* Writes or reads some pieces of a variable, which lie in memory one after the other. */
static void transfer(struct file *file, int variable, const struct piece *pieces, int count,
                     char *bytes, int is_write, int is_new)
{
    (void)is_new;
    uint64_t base = base_of(variable);
    if (is(api, "posix")) {
        for (int p = 0; p < count; p++) {
            off_t at = (off_t)(base + pieces[p].offset);
            if (is_write)
                put(file->fd, bytes, pieces[p].bytes, at);
            else
                get(file->fd, bytes, pieces[p].bytes, at);
            bytes += pieces[p].bytes;
        }
        return;
    }
#ifdef WITH_MPI
    if (is(api, "mpiio") && is(mode, "independent")) {
        for (int p = 0; p < count; p++) {
            MPI_Offset at = (MPI_Offset)(base + pieces[p].offset);
            int length = (int)pieces[p].bytes;
            int failed = is_write
                             ? MPI_File_write_at(file->mpi, at, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE)
                             : MPI_File_read_at(file->mpi, at, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE);
            if (failed != MPI_SUCCESS)
                stop("MPI_File_write_at or MPI_File_read_at failed");
            bytes += pieces[p].bytes;
        }
        return;
    }
    if (is(api, "mpiio")) {
        /* A view has its pieces in order of their offsets; so have the bytes in memory. */
        static int lengths[PIECES_MAX], order[PIECES_MAX];
        static MPI_Aint places[PIECES_MAX];
        uint64_t sum = 0;
        for (int p = 0; p < count; p++)
            order[p] = p;
        for (int p = 1; p < count; p++)
            for (int q = p; q > 0 && pieces[order[q]].offset < pieces[order[q - 1]].offset; q--) {
                int swap = order[q];
                order[q] = order[q - 1];
                order[q - 1] = swap;
            }
        char *sorted = buffer(8);
        for (int p = 0; p < count; p++)
            sum += pieces[p].bytes;
        sorted = realloc(sorted, sum + 8);
        uint64_t at = 0;
        for (int p = 0; p < count; p++) {
            const struct piece *piece = &pieces[order[p]];
            lengths[p] = (int)piece->bytes;
            places[p] = (MPI_Aint)piece->offset;
            uint64_t from = 0;
            for (int q = 0; q < order[p]; q++)
                from += pieces[q].bytes;
            if (is_write)
                memcpy(sorted + at, bytes + from, piece->bytes);
            at += piece->bytes;
        }
        MPI_Datatype view;
        MPI_Type_create_hindexed(count, lengths, places, MPI_BYTE, &view);
        MPI_Type_commit(&view);
        MPI_File_set_view(file->mpi, (MPI_Offset)base, MPI_BYTE, view, "native", MPI_INFO_NULL);
        int failed = is_write ? MPI_File_write_all(file->mpi, sorted, (int)sum, MPI_BYTE, MPI_STATUS_IGNORE)
                              : MPI_File_read_all(file->mpi, sorted, (int)sum, MPI_BYTE, MPI_STATUS_IGNORE);
        if (failed != MPI_SUCCESS)
            stop("MPI_File_write_all or MPI_File_read_all failed");
        MPI_File_set_view(file->mpi, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
        MPI_Type_free(&view);
        at = 0;
        for (int p = 0; p < count && !is_write; p++) {
            uint64_t from = 0;
            for (int q = 0; q < order[p]; q++)
                from += pieces[q].bytes;
            memcpy(bytes + from, sorted + at, pieces[order[p]].bytes);
            at += pieces[order[p]].bytes;
        }
        free(sorted);
        return;
    }
#endif
#ifdef WITH_HDF5
    char name[32];
    snprintf(name, sizeof name, "variable-%02d", variable);
    hsize_t all = plan.bytes[variable] / 8;
    hid_t space = H5Screate_simple(1, &all, NULL);
    hid_t set = is_new ? H5Dcreate2(file->h5, name, H5T_NATIVE_UINT64, space, H5P_DEFAULT,
                                    H5P_DEFAULT, H5P_DEFAULT)
                       : H5Dopen2(file->h5, name, H5P_DEFAULT);
    if (set < 0)
        stop("the data set cannot be opened by HDF5");
    for (int p = 0; p < count; p++) {
        hsize_t offset = pieces[p].offset / 8, length = pieces[p].bytes / 8;
        hid_t in_memory = H5Screate_simple(1, &length, NULL);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, &offset, NULL, &length, NULL);
        herr_t result =
            is_write ? H5Dwrite(set, H5T_NATIVE_UINT64, in_memory, space, file->transfer, bytes)
                     : H5Dread(set, H5T_NATIVE_UINT64, in_memory, space, file->transfer, bytes);
        if (result < 0)
            stop("HDF5 cannot transfer a piece");
        H5Sclose(in_memory);
        bytes += pieces[p].bytes;
    }
    H5Dclose(set);
    H5Sclose(space);
    return;
#endif
    stop("compiled without this interface");
}

static void fill_variable(int number, int variable)
{
    char *at = memory_of(variable);
    for (int p = 0; p < plan.count[variable]; p++) {
        fill_piece(at, number, variable, plan.of[variable][p]);
        at += plan.of[variable][p].bytes;
    }
}

static void path_of(char *path, size_t bytes, int step)
{
    snprintf(path, bytes, "%s/step-%03d.h5", directory, step);
}

/* Collective calls of HDF5 want as many from all ranks. */
static int collective_is_even(int variable)
{
    int least = plan.count[variable];
#ifdef WITH_MPI
    int most = least;
    MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return least == most;
#else
    return least >= 0;
#endif
}

/* Before the clock runs. */
static void fill_all(int number)
{
    for (int v = 0; v < plan.variables; v++)
        fill_variable(number, v);
}

static void write_variable(struct file *file, int variable, int is_new)
{
    transfer(file, variable, plan.of[variable], plan.count[variable], memory_of(variable), 1,
             is_new);
}

static void read_variable(struct file *file, int variable)
{
    transfer(file, variable, plan.of[variable], plan.count[variable], memory_of(variable), 0, 0);
}

static void check_variable(struct file *file, int number, int variable, const char *path)
{
    char *wanted = buffer(own_bytes[variable] + 8), *found = memory_of(variable);
    fill_variable(number, variable);
    memcpy(wanted, found, own_bytes[variable]);
    memset(found, 0, own_bytes[variable]);
    read_variable(file, variable);
    expect(found, wanted, own_bytes[variable], path);
    free(wanted);
}

/* ---- kernels ---- */

static void write_steps(void)
{
    char path[4096];
    for (int step = 0; step < steps; step++) {
        compute(compute_us);
        path_of(path, sizeof path, step);
        fill_all(step);
        struct file file;
        phase_begin();
        file_open(&file, path, 1);
        for (int v = 0; v < plan.variables; v++)
            write_variable(&file, v, 1);
        file_close(&file);
        phase_end(WRITE);
    }
}

/* S, W and C of MADbench2: in W each matrix is read, and then written again. */
static void madbench(void)
{
    char path[4096];
    path_of(path, sizeof path, 0);
    struct file file;
    fill_all(0);
    file_open(&file, path, 1);
    for (int v = 0; v < plan.variables; v++)
        write_variable(&file, v, 1);
    for (int turn = 0; turn < steps; turn++)
        for (int v = 0; v < plan.variables; v++) {
            phase_begin();
            read_variable(&file, v);
            phase_end(READ);
            compute(compute_us);
            phase_begin();
            write_variable(&file, v, 0);
            phase_end(WRITE);
        }
    for (int v = 0; v < plan.variables; v++)
        check_variable(&file, 0, v, path);
    file_close(&file);
}

/* The data base is there when queries begin; each reads all of it, and writes a thousandth. */
static void s3asim(void)
{
    char path[4096];
    path_of(path, sizeof path, 0);
    struct file file;
    fill_all(0);
    file_open(&file, path, 1);
    write_variable(&file, 0, 1);
    wait_all();
    for (int query = 0; query < steps; query++) {
        phase_begin();
        read_variable(&file, 0);
        phase_end(READ);
        struct piece result = { plan.of[0][0].offset, eights(plan.of[0][0].bytes / 1000) };
        phase_begin();
        transfer(&file, 0, &result, 1, memory, 1, 0);
        phase_end(WRITE);
    }
    file_close(&file);
}

static void metadata(void)
{
    char path[4096];
    for (int step = 0; step < steps; step++) {
        path_of(path, sizeof path, step);
        struct file file;
        phase_begin();
        file_open(&file, path, 1);
        file_close(&file);
        phase_end(WRITE);
    }
}

/* The calls alone that make a file known and say that it is whole. */
static void records(void)
{
    char path[4096];
    for (int step = 0; step < steps; step++) {
        path_of(path, sizeof path, step);
        phase_begin();
        int file = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
        phase_end(WRITE);
        put(file, memory, CHUNK, 0);
        phase_begin();
        close_file(file);
        phase_end(WRITE);
    }
}

/* ---- analysis of vpic's files (FastQuery): which particles have Ux > 0.97 ---- */

enum { UX = 4 };

/* One in eight chunks is where particles are fast; elsewhere none is. */
static int is_fast(const uint32_t *ux, uint64_t particle, uint64_t chunk)
{
    return chunk % 8 == 3 && ux[particle] > THRESHOLD;
}

/* Calls `look` with each of this rank's chunks of Ux. */
static void for_each_chunk(struct file *file, void (*look)(uint64_t, const uint32_t *, uint64_t))
{
    struct piece own = plan.of[UX][0];
    for (uint64_t at = 0; at < own.bytes; at += CHUNK) {
        uint64_t bytes = own.bytes - at < CHUNK ? own.bytes - at : CHUNK;
        struct piece part = { own.offset + at, bytes };
        transfer(file, UX, &part, 1, memory, 0, 0);
        look(at / CHUNK, (const uint32_t *)memory, bytes / 4);
    }
}

static uint64_t *bitmap, bitmap_words;

static void note(uint64_t chunk, const uint32_t *ux, uint64_t particles)
{
    for (uint64_t n = 0; n < particles; n++)
        if (is_fast(ux, n, chunk)) {
            uint64_t bit = chunk * (CHUNK / 4) + n;
            bitmap[bit / 64] |= (uint64_t)1 << bit % 64;
        }
}

static void index_path(char *path, size_t bytes, int step)
{
    const char *folder = getenv("SCIENCE_INDEX");
    snprintf(path, bytes, "%s/index-%03d-%d", folder ? folder : directory, step, rank);
}

static void make_bitmap(void)
{
    bitmap_words = plan.of[UX][0].bytes / 4 / 64 + 1;
    bitmap = calloc(bitmap_words, 8);
    if (!bitmap)
        fail("memory");
}

static void index_steps(void)
{
    char path[4096];
    make_bitmap();
    for (int step = 0; step < steps; step++) {
        memset(bitmap, 0, bitmap_words * 8);
        struct file file;
        phase_begin();
        path_of(path, sizeof path, step);
        file_open(&file, path, 0);
        for_each_chunk(&file, note);
        file_close(&file);
        index_path(path, sizeof path, step);
        int out = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
        put(out, (const char *)bitmap, bitmap_words * 8, 0);
        close_file(out);
        phase_end(READ);
    }
}

/* Chunks that the index names, and which of them a particle is in. */
static uint64_t hits_in(uint64_t at, uint64_t bytes)
{
    uint64_t hits = 0;
    for (uint64_t n = 0; n < bytes / 4; n++) {
        uint64_t bit = at / 4 + n;
        hits += bitmap[bit / 64] >> bit % 64 & 1;
    }
    return hits;
}

static struct piece chunk_at(struct piece own, uint64_t at)
{
    return (struct piece){ own.offset + at, own.bytes - at < CHUNK ? own.bytes - at : CHUNK };
}

/* What a query reads of a chunk, Ux first. */
static const int queried[] = { UX, 0, 1, 2 };

/* Reads Ux, x, y and z of what the index names, chunk by chunk, and checks all of it when the time
   is taken. */
static void query_steps(void)
{
    char path[4096];
    make_bitmap();
    struct piece own = plan.of[UX][0];
    char *answer = buffer(4 * (own.bytes + CHUNK));
    uint64_t found = 0, *wanted = buffer(CHUNK);
    for (int step = 0; step < steps; step++) {
        struct file file;
        char *to = answer;
        phase_begin();
        index_path(path, sizeof path, step);
        int in = open_file(path, O_RDONLY);
        get(in, (char *)bitmap, bitmap_words * 8, 0);
        close_file(in);
        path_of(path, sizeof path, step);
        file_open(&file, path, 0);
        for (uint64_t at = 0; at < own.bytes; at += CHUNK) {
            struct piece part = chunk_at(own, at);
            uint64_t hits = hits_in(at, part.bytes);
            found += hits;
            for (int v = 0; hits && v < 4; v++, to += CHUNK)
                transfer(&file, queried[v], &part, 1, to, 0, 0);
        }
        file_close(&file);
        phase_end(READ);
        to = answer;
        for (uint64_t at = 0; at < own.bytes; at += CHUNK) {
            struct piece part = chunk_at(own, at);
            if (!hits_in(at, part.bytes))
                continue;
            const uint32_t *ux = (const uint32_t *)to;
            for (uint64_t n = 0; n < part.bytes / 4; n++) {
                uint64_t bit = at / 4 + n;
                if ((bitmap[bit / 64] >> bit % 64 & 1) != (uint64_t)is_fast(ux, n, at / CHUNK))
                    stop("the index names other particles than the data");
            }
            for (int v = 0; v < 4; v++, to += CHUNK) {
                fill_piece((char *)wanted, step, queried[v], part);
                expect(to, wanted, part.bytes, path);
            }
        }
    }
    if (found == 0)
        stop("the query has found nothing");
}

static void check_steps(void)
{
    char path[4096];
    int files = is(kernel, "madbench") ? 1 : steps;
    for (int step = 0; step < files; step++) {
        path_of(path, sizeof path, step);
        struct file file;
        file_open(&file, path, 0);
        for (int v = 0; v < plan.variables; v++)
            check_variable(&file, step, v, path);
        file_close(&file);
    }
}

static void work(void)
{
    char what[32];
    snprintf(what, sizeof what, "%s", kernel);
    if (is(what, "index") || is(what, "query"))
        kernel = "vpic";
    if (is(what, "check")) {
        kernel = mode;
        mode = "independent";
    }
    make_plan();
    for (int v = 0; v < plan.variables; v++)
        if (is(api, "hdf5") && is(mode, "collective") && !collective_is_even(v))
            stop("collective calls of HDF5 want as many pieces of each rank");
    wait_all();
    start_us = now_us(CLOCK_REALTIME);
    if (is(what, "index"))
        index_steps();
    else if (is(what, "query"))
        query_steps();
    else if (is(what, "check"))
        check_steps();
    else if (is(what, "madbench"))
        madbench();
    else if (is(what, "s3asim"))
        s3asim();
    else if (is(what, "metadata"))
        metadata();
    else if (is(what, "records"))
        records();
    else
        write_steps();
    wait_all();
    if (rank == 0) {
        printf("%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "\n", sum_us[WRITE], sum_us[READ],
               start_us, now_us(CLOCK_REALTIME));
        fflush(stdout);
    }
}

/* Ranks without MPI: processes that meet at a barrier, of which the first reports. */
static UNUSED int fork_ranks(int count)
{
    if (count < 1 || count > RANKS_MAX)
        stop("RANKS is 1 to 64");
    if (count == 1) {
        ranks = count;
        work();
        return 0;
    }
    share(count);
    pid_t child[RANKS_MAX];
    for (int r = 1; r < ranks; r++) {
        child[r] = fork();
        if (child[r] < 0)
            fail("fork");
        if (child[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            rank = r;
            work();
            exit(0);
        }
    }
    work();
    int result = 0, status;
    for (int r = 1; r < ranks; r++)
        if (waitpid(child[r], &status, 0) < 0 || status != 0)
            result = 1;
    return result;
}

int main(int argc, char **argv)
{
#ifdef WITH_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#endif
    if (argc == 2 && is(argv[1], "probe")) {
#ifdef WITH_MPI
        int sum = 1;
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%d ranks\n", sum);
        MPI_Finalize();
#endif
        return 0;
    }
    if (argc != 8) {
        fprintf(stderr, "usage: science KERNEL API MODE DIRECTORY STEPS BYTES COMPUTE_US\n");
        return 2;
    }
    kernel = argv[1];
    api = argv[2];
    mode = argv[3];
    directory = argv[4];
    steps = atoi(argv[5]);
    step_bytes = strtoull(argv[6], NULL, 10);
    compute_us = atoll(argv[7]);
#ifdef WITH_MPI
    work();
    MPI_Finalize();
    return 0;
#else
    const char *count = getenv("RANKS");
    return fork_ranks(count ? atoi(count) : 1);
#endif
}
