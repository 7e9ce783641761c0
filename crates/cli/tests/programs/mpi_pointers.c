/* Random calls of several ranks at their pointers, mostly collective: mpi_pointers SEED HINTS STEPS.
   Views have cells of the ranks here and there in a tile, with holes between them, behind a displacement, in
   units of one to twelve bytes; calls read and write nothing, some or much, also beyond the end of the file.
   Behind each call each rank says what it returned, how much it has read or written, a sum of that, and
   where its pointer is. HINTS is "exchange" (writes are exchanged always, and never sieved), "ranges" (the
   library looks at the ranges of the ranks, and writes are never sieved) or "usual". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 24, TILES = 40, MOST = 1 << 17 };

static int me, ranks;
static char said[1 << 17];
static size_t said_bytes;
/* The same in all ranks, and this rank's own. */
static unsigned long long common, own;
static MPI_File f;
static MPI_Datatype unit, tile;
static int unit_bytes, tile_units;

static unsigned next(unsigned long long *seed, unsigned below) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(*seed >> 33) % below;
}

static void say(const char *what, long a, long b, long c) {
    if (said_bytes < sizeof said - 128)
        said_bytes += (size_t)snprintf(said + said_bytes, 128, "%s %ld %ld %ld\n", what, a, b, c);
}

static void need(int result, const char *what) {
    if (result == MPI_SUCCESS) return;
    fprintf(stderr, "rank %d: %s failed\n", me, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A tile of cells that the ranks have in any order; some are holes. Returns the bytes of a tile. */
static MPI_Aint make_view(void) {
    static const int sizes[] = {1, 4, 8, 12};
    int lengths[CELLS], mine = 0, kind = (int)next(&common, 4);
    MPI_Aint places[CELLS], at = 0;
    unit_bytes = sizes[kind];
    if (kind == 0) MPI_Type_contiguous(1, MPI_BYTE, &unit);
    if (kind == 1) MPI_Type_contiguous(1, MPI_INT, &unit);
    if (kind == 2) MPI_Type_contiguous(1, MPI_DOUBLE, &unit);
    if (kind == 3) MPI_Type_contiguous(12, MPI_BYTE, &unit);
    MPI_Type_commit(&unit);
    tile_units = 0;
    for (int cell = 0; cell < CELLS; cell++) {
        /* Each rank has at least one. */
        int owner = cell < ranks ? cell : (int)next(&common, (unsigned)ranks + 1);
        int length = 1 + (int)next(&common, 40);
        if (owner == me) {
            lengths[mine] = length;
            places[mine++] = at;
            tile_units += length;
        }
        at += (MPI_Aint)length * unit_bytes;
    }
    MPI_Datatype cells;
    MPI_Type_create_hindexed(mine, lengths, places, unit, &cells);
    MPI_Type_create_resized(cells, 0, at, &tile);
    MPI_Type_commit(&tile);
    MPI_Type_free(&cells);
    return at;
}

static void set_view(void) {
    static int has_one;
    if (has_one) {
        MPI_Type_free(&unit);
        MPI_Type_free(&tile);
    }
    has_one = 1;
    make_view();
    MPI_Offset displacement = next(&common, 3) * next(&common, 5000);
    need(MPI_File_set_view(f, displacement, unit, tile, "native", MPI_INFO_NULL), "set_view");
}

static long position(void) {
    MPI_Offset at = -1;
    need(MPI_File_get_position(f, &at), "get_position");
    return (long)at;
}

/* Whether so many units from here on are in the file: what a read leaves of others is not said. */
static int is_there(long from, long units) {
    MPI_Offset last = 0, size = 0;
    if (units == 0) return 1;
    need(MPI_File_get_byte_offset(f, from + units - 1, &last), "get_byte_offset");
    need(MPI_File_get_size(f, &size), "get_size");
    return last + unit_bytes <= size;
}

static unsigned sum(const unsigned char *bytes, size_t count) {
    unsigned all = 7;
    for (size_t i = 0; i < count; i++) all = all * 31 + bytes[i];
    return all;
}

/* In memory units lie together, or each is followed by a hole of its size. */
static MPI_Datatype in_memory(int is_loose) {
    MPI_Datatype type;
    if (is_loose) MPI_Type_create_resized(unit, 0, 2 * unit_bytes, &type);
    else MPI_Type_dup(unit, &type);
    MPI_Type_commit(&type);
    return type;
}

static void step(int number) {
    static unsigned char buffer[MOST];
    MPI_Status status;
    int kind = (int)next(&common, 20), count = 0, got = 0, result = 0;
    int is_loose = next(&own, 3) == 0;
    /* All of the ranks have much, or each as it comes. */
    int is_even = (int)next(&common, 2), tiles = 1 + (int)next(&common, 3);
    if (is_even) count = tiles * tile_units;
    else if (next(&own, 4)) count = (int)next(&own, 3u * (unsigned)tile_units);
    while ((size_t)count * (size_t)unit_bytes * 2 > sizeof buffer) count /= 2;
    /* Of a file that is not long sizes differ: each rank goes somewhere in it. */
    if (position() > TILES * tile_units) MPI_File_seek(f, next(&own, 2u * (unsigned)tile_units), MPI_SEEK_SET);
    long at = position();
    size_t bytes = (size_t)count * (size_t)unit_bytes * (is_loose ? 2 : 1);
    MPI_Datatype type = in_memory(is_loose);
    memset(&status, 0, sizeof status);
    if (kind < 7 || kind == 14) {
        for (size_t i = 0; i < bytes; i++) buffer[i] = (unsigned char)(me * 89 + number * 7 + (int)i * 3 + 1);
        if (kind < 7) result = MPI_File_write_all(f, buffer, count, type, &status);
        else result = MPI_File_write_at_all(f, at + tile_units, buffer, count, type, &status);
        MPI_Get_count(&status, type, &got);
        say(kind < 7 ? "write_all" : "write_at_all", result, got, position());
    } else if (kind < 14 || kind < 17) {
        int is_at = kind == 15, is_single = kind == 16;
        long from = is_at ? at / 2 : at;
        int whole = is_there(from, count);
        memset(buffer, 0, bytes);
        if (is_at) result = MPI_File_read_at_all(f, from, buffer, count, type, &status);
        else if (is_single) result = MPI_File_read(f, buffer, count, type, &status);
        else result = MPI_File_read_all(f, buffer, count, type, &status);
        MPI_Get_count(&status, type, &got);
        say(is_at ? "read_at_all" : is_single ? "read" : "read_all", result, got, position());
        if (whole) say("content", sum(buffer, bytes), count, 0);
    } else if (kind == 17) {
        MPI_File_seek(f, next(&own, TILES * (unsigned)tile_units), MPI_SEEK_SET);
        say("seek", position(), 0, 0);
    } else if (kind == 18) {
        MPI_File_seek(f, next(&own, 5), MPI_SEEK_CUR);
        say("seek on", position(), 0, 0);
    } else {
        MPI_Offset size;
        int what = (int)next(&common, 4);
        if (what == 0) set_view();
        if (what == 1) need(MPI_File_set_atomicity(f, next(&common, 4) == 0), "set_atomicity");
        if (what == 2) need(MPI_File_set_size(f, 1000 + 40 * next(&common, 20000)), "set_size");
        /* Behind the end: the file is longer by what the others write there. */
        need(MPI_File_get_size(f, &size), "get_size");
        if (what == 3) MPI_File_seek(f, (MPI_Offset)(size / unit_bytes / (ranks + 1)), MPI_SEEK_SET);
        say("other", what, position(), 0);
    }
    MPI_Type_free(&type);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) return 2;
    common = strtoull(argv[1], NULL, 10);
    own = common * 1000003 + (unsigned)me;
    MPI_Info info;
    MPI_Info_create(&info);
    if (strcmp(argv[2], "usual")) MPI_Info_set(info, "romio_ds_write", "disable");
    if (!strcmp(argv[2], "exchange")) {
        MPI_Info_set(info, "romio_cb_write", "enable");
        MPI_Info_set(info, "romio_cb_read", "enable");
    }
    char name[64];
    snprintf(name, sizeof name, "pointers-%s-%s", argv[1], argv[2]);
    need(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &f), "open");
    MPI_Info_free(&info);
    need(MPI_File_set_size(f, 400000), "set_size");
    set_view();
    for (int number = 0; number < atoi(argv[3]); number++) step(number);
    need(MPI_File_close(&f), "close");
    char *all_said = malloc((size_t)ranks * sizeof said);
    MPI_Gather(said, sizeof said, MPI_CHAR, all_said, sizeof said, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int rank = 0; rank < ranks && me == 0; rank++)
        printf("rank %d\n%s", rank, all_said + rank * sizeof said);
    MPI_Finalize();
    return 0;
}
