/* Reads a file through a view of pieces that lie here and there, each rank others. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 512 << 10, IN_A_READ = 2 };

int main(int argc, char **argv) {
    int me, ranks, reads = atoi(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_File f;
    MPI_Datatype piece, tile;
    int places[64], place = 0;
    unsigned seed = 12345 + me;
    for (int i = 0; i < reads * IN_A_READ; i++) {
        places[i] = place;
        seed = seed * 1103515245 + 12345;
        place += 1 + (seed >> 16) % 4;
    }
    MPI_Type_contiguous(PIECE, MPI_BYTE, &piece);
    MPI_Type_create_indexed_block(reads * IN_A_READ, 1, places, piece, &tile);
    MPI_Type_commit(&tile);
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &f)) return 1;
    if (MPI_File_set_view(f, 0, MPI_BYTE, tile, "native", MPI_INFO_NULL)) return 1;
    char *buffer = malloc(IN_A_READ * PIECE);
    unsigned long sum = 0;
    for (int i = 0; i < reads; i++) {
        if (MPI_File_read(f, buffer, IN_A_READ * PIECE, MPI_BYTE, MPI_STATUS_IGNORE)) return 1;
        for (int n = 0; n < IN_A_READ * PIECE; n += 4096) sum = sum * 31 + (unsigned char)buffer[n];
        usleep(60000);
    }
    MPI_File_close(&f);
    unsigned long sums[64];
    MPI_Gather(&sum, 1, MPI_UNSIGNED_LONG, sums, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
    for (int rank = 0; rank < ranks && me == 0; rank++) printf("%d: %lu\n", rank, sums[rank]);
    MPI_Finalize();
    return 0;
}
