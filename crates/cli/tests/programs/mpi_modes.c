/* Collective calls that an adapter may turn into independent ones, and those that it must not: what
   each returns, counts, reads and leaves is said, rank by rank. A line says how a part was made. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>

enum { ROWS = 64, COLUMNS = 96, CALLS = 12 };

static int me, ranks, step;
static char said[1 << 16];

static void note(const char *what, long value) {
    size_t end = strlen(said);
    snprintf(said + end, sizeof said - end, "%d %s: %ld\n", step++, what, value);
}

static void note_call(const char *what, int result, MPI_Status *status) {
    int class = 0, count = -1;
    MPI_Error_class(result, &class);
    if (result == MPI_SUCCESS) MPI_Get_count(status, MPI_INT, &count);
    note(what, result == MPI_SUCCESS ? count : -100 - (class != MPI_SUCCESS));
}

static unsigned sum(const int *numbers, int count) {
    unsigned all = 7;
    for (int i = 0; i < count; i++) all = all * 31 + (unsigned)numbers[i];
    return all;
}

static long position(MPI_File f) {
    MPI_Offset at = -1;
    MPI_File_get_position(f, &at);
    return at;
}

static int first_column(int rank, int width) {
    int start = rank * COLUMNS, most = COLUMNS * ranks - width;
    return start > most ? most : start;
}

/* The columns of this rank of a matrix. */
static MPI_Datatype columns_of(int rank, int width) {
    int sizes[2] = {ROWS, COLUMNS * ranks}, part[2] = {ROWS, width}, starts[2] = {0, rank * COLUMNS};
    starts[1] = first_column(rank, width);
    MPI_Datatype tile;
    MPI_Type_create_subarray(2, sizes, part, starts, MPI_ORDER_C, MPI_INT, &tile);
    MPI_Type_commit(&tile);
    return tile;
}

static MPI_File open_with(const char *name, MPI_Datatype tile) {
    MPI_File f;
    if (MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f)) exit(1);
    note("set_view", MPI_File_set_view(f, 0, MPI_INT, tile, "native", MPI_INFO_NULL));
    return f;
}

static void disjoint(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS);
    MPI_File f = open_with("disjoint", tile);
    const int all = ROWS * COLUMNS;
    int *out = malloc(all * sizeof *out), *in = malloc(all * sizeof *in);
    MPI_Status s;
    /* A library may leave anything in bytes behind the end that nobody has written. */
    note("set_size", MPI_File_set_size(f, (MPI_Offset)2 * CALLS * all * ranks * sizeof *out));
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < all; i++) out[i] = (me + 1) * 1000003 + call * 7919 + i;
        /* Some ranks have nothing for some of the calls, others a part. */
        int count = call % 4 == 3 && me % 2 ? 0 : call % 4 == 2 ? all - 17 * (me + 1) : all;
        note_call("write_all", MPI_File_write_all(f, out, count, MPI_INT, &s), &s);
        note("position", position(f));
    }
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < all; i++) out[i] = (me + 1) * 15485863 + call * 104729 + i;
        note_call("write_at_all", MPI_File_write_at_all(f, (MPI_Offset)(CALLS + call) * all, out, all, MPI_INT, &s), &s);
        note("position", position(f));
    }
    /* What others have written is there without a word between. */
    MPI_Datatype other = columns_of((me + 1) % ranks, COLUMNS);
    note("set_view", MPI_File_set_view(f, 0, MPI_INT, other, "native", MPI_INFO_NULL));
    for (int call = 0; call < 2 * CALLS; call++) {
        memset(in, 0, all * sizeof *in);
        if (call % 2) note_call("read_all", MPI_File_read_all(f, in, all, MPI_INT, &s), &s);
        else note_call("read_at_all", MPI_File_read_at_all(f, position(f), in, all, MPI_INT, &s), &s);
        note("content", sum(in, all));
        if (call % 2 == 0) MPI_File_seek(f, all, MPI_SEEK_CUR);
    }
    MPI_File_close(&f);
    MPI_Type_free(&tile);
    MPI_Type_free(&other);
    free(out);
    free(in);
}

/* Whether a number of the last call is what one of the ranks has written there. */
static int was_written(int number, int row, int column, int width) {
    for (int rank = 0; rank < ranks; rank++) {
        int at = column - first_column(rank, width);
        int wrote = (rank + 1) * 1000003 + (CALLS - 1) * 7919 + row * width + at;
        if (at >= 0 && at < width && number == wrote) return 1;
    }
    return 0;
}

/* Each rank writes a column of its neighbour's, too: which one wins, the library says, and not
   always the same. The file is removed. */
static void overlapping(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS + 1);
    MPI_File f = open_with("overlapping", tile);
    const int all = ROWS * (COLUMNS + 1);
    int *out = malloc(all * sizeof *out);
    MPI_Status s;
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < all; i++) out[i] = (me + 1) * 1000003 + call * 7919 + i;
        note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    }
    MPI_File_close(&f);
    if (me == 0) {
        int width = COLUMNS * ranks, *last = malloc(ROWS * width * sizeof *last), sound = 1;
        FILE *file = fopen("overlapping", "r");
        fseek(file, (long)(CALLS - 1) * ROWS * width * sizeof *last, SEEK_SET);
        note("read", fread(last, sizeof *last, ROWS * width, file));
        for (int i = 0; i < ROWS * width; i++)
            sound &= was_written(last[i], i / width, i % width, COLUMNS + 1);
        note("each number is one that was written there", sound);
        fclose(file);
        free(last);
        remove("overlapping");
    }
    MPI_Type_free(&tile);
    free(out);
}

static void atomic(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS);
    MPI_File f = open_with("atomic", tile);
    const int all = ROWS * COLUMNS;
    int *out = malloc(all * sizeof *out);
    MPI_Status s;
    note("set_atomicity", MPI_File_set_atomicity(f, 1));
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < all; i++) out[i] = (me + 1) * 1000003 + call * 7919 + i;
        note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    }
    MPI_File_close(&f);
    MPI_Type_free(&tile);
    free(out);
}

static void split(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS);
    MPI_File f = open_with("split", tile);
    const int all = ROWS * COLUMNS;
    int *out = malloc(all * sizeof *out);
    MPI_Status s;
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < all; i++) out[i] = (me + 1) * 1000003 + call * 7919 + i;
        note("write_all_begin", MPI_File_write_all_begin(f, out, all, MPI_INT));
        note_call("write_all_end", MPI_File_write_all_end(f, out, &s), &s);
        note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    }
    MPI_File_close(&f);
    MPI_Type_free(&tile);
    free(out);
}

/* All give arguments that are wrong, after calls that were made alone; then one rank cannot write. */
static void errors(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS);
    MPI_File f = open_with("errors", tile);
    const int all = ROWS * COLUMNS;
    int *out = calloc(all, sizeof *out);
    MPI_Status s;
    for (int call = 0; call < CALLS; call++)
        note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    note_call("of no type", MPI_File_write_all(f, out, all, MPI_DATATYPE_NULL, &s), &s);
    note_call("less than nothing", MPI_File_write_all(f, out, -1, MPI_INT, &s), &s);
    note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    note("position", position(f));
    MPI_File_close(&f);
    MPI_Type_free(&tile);
    free(out);
}

/* One rank may write no further than here: all hear of it. The file is removed, as it depends on
   who wrote first. */
static void one_fails(void) {
    MPI_Datatype tile = columns_of(me, COLUMNS);
    MPI_File f = open_with("fails", tile);
    const int all = ROWS * COLUMNS;
    int *out = calloc(all, sizeof *out), failed = 0;
    MPI_Status s;
    for (int call = 0; call < CALLS; call++)
        note_call("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit none = {4096, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none);
    failed = MPI_File_write_all(f, out, all, MPI_INT, &s) != MPI_SUCCESS;
    note("all hear that it failed", failed);
    struct rlimit back = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &back);
    MPI_File_close(&f);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) remove("fails");
    MPI_Type_free(&tile);
    free(out);
}

/* What a program has set of hints stays as it is. */
static void hinted(void) {
    MPI_Info info, used;
    char value[MPI_MAX_INFO_VAL + 1] = "";
    int is_there = 0;
    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_ds_write", "enable");
    MPI_Info_set(info, "cb_nodes", "1");
    MPI_File f;
    if (MPI_File_open(MPI_COMM_WORLD, "hinted", MPI_MODE_RDWR | MPI_MODE_CREATE, info, &f)) exit(1);
    MPI_File_get_info(f, &used);
    MPI_Info_get(used, "romio_ds_write", MPI_MAX_INFO_VAL, value, &is_there);
    note("sieving is enabled", !is_there || !strcmp(value, "enable"));
    MPI_Info_get_nkeys(info, &is_there);
    note("hints", is_there);
    MPI_Info_free(&used);
    MPI_Datatype tile = columns_of(me, COLUMNS);
    note("set_view", MPI_File_set_view(f, 0, MPI_INT, tile, "native", MPI_INFO_NULL));
    int *out = calloc(ROWS * COLUMNS, sizeof *out);
    MPI_Status s;
    for (int call = 0; call < CALLS; call++)
        note_call("write_all", MPI_File_write_all(f, out, ROWS * COLUMNS, MPI_INT, &s), &s);
    MPI_File_close(&f);
    MPI_Info_free(&info);
    MPI_Type_free(&tile);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const struct { const char *name; void (*make)(void); } parts[] = {
        {"disjoint", disjoint}, {"overlapping", overlapping}, {"atomic", atomic}, {"split", split},
        {"errors", errors},     {"fails", one_fails},         {"hinted", hinted},
    };
    for (int word = 1; word < argc; word++)
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
            if (!strcmp(argv[word], parts[part].name)) parts[part].make();
    char *all_said = malloc((size_t)ranks * sizeof said);
    MPI_Gather(said, sizeof said, MPI_CHAR, all_said, sizeof said, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int rank = 0; rank < ranks && me == 0; rank++)
        printf("rank %d\n%s", rank, all_said + rank * sizeof said);
    MPI_Finalize();
    return 0;
}
