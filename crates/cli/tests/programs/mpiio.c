/* MPI-IO in all its forms: what each call returns, counts and leaves is printed, rank by rank. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES = 24, INTS = 512 };

static int me, ranks, step;
static char said[1 << 16];

/* Notes the class of a result, and how many of a type a status counts. */
static void note(const char *what, int result, MPI_Status *status, MPI_Datatype type) {
    int class = 0, count = -1;
    MPI_Error_class(result, &class);
    if (status && result == MPI_SUCCESS) MPI_Get_count(status, type, &count);
    size_t end = strlen(said);
    snprintf(said + end, sizeof said - end, "%d %s: %s %d\n", step++, what,
             class == MPI_SUCCESS ? "done" : class == MPI_ERR_NO_SUCH_FILE ? "no such file" : "failed",
             count);
}

static unsigned sum(const int *numbers, int count) {
    unsigned all = 7;
    for (int i = 0; i < count; i++) all = all * 31 + (unsigned)numbers[i];
    return all;
}

static void note_sum(const char *what, const int *numbers, int count) {
    size_t end = strlen(said);
    snprintf(said + end, sizeof said - end, "%d %s: %u\n", step++, what, sum(numbers, count));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int all = PIECES * INTS;
    int *out = malloc(all * sizeof *out), *in = calloc(all, sizeof *in);
    for (int i = 0; i < all; i++) out[i] = me * 1000003 + i;
    MPI_File f;
    MPI_Status s;
    MPI_Request r;
    MPI_Offset at = (MPI_Offset)me * all * 4, size = 0;

    note("open of none", MPI_File_open(MPI_COMM_WORLD, "not-there", MPI_MODE_RDONLY, MPI_INFO_NULL, &f), NULL, 0);
    note("open", MPI_File_open(MPI_COMM_WORLD, "plain", MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f), NULL, 0);
    note("write_at", MPI_File_write_at(f, at, out, all, MPI_INT, &s), &s, MPI_INT);
    note("write_at_all", MPI_File_write_at_all(f, at, out, all, MPI_INT, &s), &s, MPI_INT);
    /* Errors are returned: to ask for the size of no type would end the program. */
    note("write of no type", MPI_File_write_at(f, at, out, 1, MPI_DATATYPE_NULL, &s), NULL, 0);
    note("write of less than nothing", MPI_File_write_at(f, at, out, -1, MPI_INT, &s), NULL, 0);
    note("sync", MPI_File_sync(f), NULL, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    note("read_at", MPI_File_read_at(f, at, in, all, MPI_INT, &s), &s, MPI_INT);
    note_sum("content", in, all);
    note("read_at_all", MPI_File_read_at_all(f, (at + all * 4) % ((MPI_Offset)ranks * all * 4), in, all, MPI_INT, &s), &s, MPI_INT);
    note_sum("content", in, all);
    note("read past the end", MPI_File_read_at(f, (MPI_Offset)ranks * all * 4 - 8, in, all, MPI_INT, &s), &s, MPI_INT);
    note("iwrite_at", MPI_File_iwrite_at(f, at, out, all, MPI_INT, &r), NULL, 0);
    note("wait", MPI_Wait(&r, &s), &s, MPI_INT);
    note("iread_at", MPI_File_iread_at(f, at, in, all, MPI_INT, &r), NULL, 0);
    note("wait", MPI_Wait(&r, &s), &s, MPI_INT);
    note("seek", MPI_File_seek(f, at, MPI_SEEK_SET), NULL, 0);
    note("write", MPI_File_write(f, out, 100, MPI_INT, &s), &s, MPI_INT);
    note("iwrite", MPI_File_iwrite(f, out + 100, 100, MPI_INT, &r), NULL, 0);
    note("wait", MPI_Wait(&r, &s), &s, MPI_INT);
    note("seek", MPI_File_seek(f, at, MPI_SEEK_SET), NULL, 0);
    note("read", MPI_File_read(f, in, 100, MPI_INT, &s), &s, MPI_INT);
    note("iread", MPI_File_iread(f, in + 100, 100, MPI_INT, &r), NULL, 0);
    note("wait", MPI_Wait(&r, &s), &s, MPI_INT);
    note_sum("content", in, 200);
    MPI_Barrier(MPI_COMM_WORLD);
    note("set_size", MPI_File_set_size(f, (MPI_Offset)ranks * all * 4 - 4), NULL, 0);
    note("preallocate", MPI_File_preallocate(f, (MPI_Offset)ranks * all * 4), NULL, 0);
    MPI_File_get_size(f, &size);
    note(size == (MPI_Offset)ranks * all * 4 ? "size" : "wrong size", 0, NULL, 0);
    note("set_atomicity", MPI_File_set_atomicity(f, 1), NULL, 0);
    note("write_at", MPI_File_write_at(f, at, out, 64, MPI_INT, &s), &s, MPI_INT);
    note("close", MPI_File_close(&f), NULL, 0);
    note(f == MPI_FILE_NULL ? "null" : "not null", 0, NULL, 0);

    /* A view with holes: each rank has every ranks-th piece. */
    MPI_Datatype tile;
    MPI_Type_vector(PIECES, INTS, INTS * ranks, MPI_INT, &tile);
    MPI_Type_commit(&tile);
    note("open", MPI_File_open(MPI_COMM_WORLD, "view", MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f), NULL, 0);
    note("set_view", MPI_File_set_view(f, (MPI_Offset)me * INTS * 4, MPI_INT, tile, "native", MPI_INFO_NULL), NULL, 0);
    note("write_all", MPI_File_write_all(f, out, all, MPI_INT, &s), &s, MPI_INT);
    note("write_all_begin", MPI_File_write_all_begin(f, out, all, MPI_INT), NULL, 0);
    note("write_all_end", MPI_File_write_all_end(f, out, &s), &s, MPI_INT);
    note("sync", MPI_File_sync(f), NULL, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    note("seek", MPI_File_seek(f, 0, MPI_SEEK_SET), NULL, 0);
    memset(in, 0, all * sizeof *in);
    note("read_all", MPI_File_read_all(f, in, all, MPI_INT, &s), &s, MPI_INT);
    note_sum("content", in, all);
    note("seek", MPI_File_seek(f, INTS / 2, MPI_SEEK_SET), NULL, 0);
    note("read_all_begin", MPI_File_read_all_begin(f, in, all / 2, MPI_INT), NULL, 0);
    note("read_all_end", MPI_File_read_all_end(f, in, &s), &s, MPI_INT);
    note_sum("content", in, all / 2);
    for (int i = 0; i < 4; i++) {
        note("read_at", MPI_File_read_at(f, (MPI_Offset)i * all / 4, in, all / 4, MPI_INT, &s), &s, MPI_INT);
        note_sum("content", in, all / 4);
    }
    note("close", MPI_File_close(&f), NULL, 0);

    /* One pointer of all ranks. */
    note("open", MPI_File_open(MPI_COMM_WORLD, "ordered", MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f), NULL, 0);
    note("write_ordered", MPI_File_write_ordered(f, out, 1000 + me, MPI_INT, &s), &s, MPI_INT);
    note("write_ordered_begin", MPI_File_write_ordered_begin(f, out, 10, MPI_INT), NULL, 0);
    note("write_ordered_end", MPI_File_write_ordered_end(f, out, &s), &s, MPI_INT);
    note("seek_shared", MPI_File_seek_shared(f, 0, MPI_SEEK_SET), NULL, 0);
    note("read_ordered", MPI_File_read_ordered(f, in, 1000 + me, MPI_INT, &s), &s, MPI_INT);
    note_sum("content", in, 1000 + me);
    MPI_Barrier(MPI_COMM_WORLD);
    note("write_shared", MPI_File_write_shared(f, &step, 0, MPI_INT, &s), &s, MPI_INT);
    note("close", MPI_File_close(&f), NULL, 0);

    /* Only one of them prints: what several print comes in any order. */
    char *all_said = malloc((size_t)ranks * sizeof said);
    MPI_Gather(said, sizeof said, MPI_CHAR, all_said, sizeof said, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int rank = 0; rank < ranks && me == 0; rank++)
        printf("rank %d\n%s", rank, all_said + rank * sizeof said);
    MPI_Type_free(&tile);
    MPI_Finalize();
    return 0;
}
