/*
 * Parallel netCDF by MPI ranks of several nodes: mpi_pnetcdf FILE. A variable of fixed size and one of records, collective
 * and independent; all of it is read by all ranks from the file opened anew, and written again by another one.
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>

#define ROWS 40
#define COLUMNS 997
#define RECORDS 5

static int me, ranks;
static int part[ROWS][COLUMNS];

static void need(int code, const char *what)
{
	if (code == NC_NOERR)
		return;
	fprintf(stderr, "WRONG rank %d: %s: %s\n", me, what, ncmpi_strerror(code));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(int rank, int seed)
{
	for (int row = 0; row < ROWS; row++)
		for (int column = 0; column < COLUMNS; column++)
			part[row][column] = ((rank * ROWS + row) * 1000003 + column * 17 + seed) | 1;
}

static void compare(int rank, int seed, const char *what)
{
	for (int row = 0; row < ROWS; row++)
		for (int column = 0; column < COLUMNS; column++)
			if (part[row][column] != (((rank * ROWS + row) * 1000003 + column * 17 + seed) | 1)) {
				fprintf(stderr, "WRONG rank %d: %s, row %d of rank %d, column %d is %d\n", me, what, row, rank, column,
					part[row][column]);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
}

/* All parts of one writer: rank `rank`, by collective calls, and by independent ones. */
static void put(int file, int rank)
{
	MPI_Offset start[3] = { rank * ROWS, 0 }, count[3] = { ROWS, COLUMNS };
	fill(rank, 1);
	need(ncmpi_put_vara_int_all(file, 0, start, count, part[0]), "put");
	for (int record = 0; record < RECORDS; record++) {
		MPI_Offset at[3] = { record, rank * ROWS, 0 }, all[3] = { 1, ROWS, COLUMNS };
		fill(rank, 2 + record);
		need(ncmpi_put_vara_int_all(file, 2, at, all, part[0]), "put of a record");
	}
	need(ncmpi_begin_indep_data(file), "begin");
	fill(rank, 100);
	need(ncmpi_put_vara_int(file, 1, start, count, part[0]), "put alone");
	need(ncmpi_end_indep_data(file), "end");
}

static void look(int file, int rank)
{
	MPI_Offset start[3] = { rank * ROWS, 0 }, count[3] = { ROWS, COLUMNS };
	need(ncmpi_get_vara_int_all(file, 0, start, count, part[0]), "get");
	compare(rank, 1, "fixed");
	need(ncmpi_get_vara_int_all(file, 1, start, count, part[0]), "get");
	compare(rank, 100, "alone");
	for (int record = 0; record < RECORDS; record++) {
		MPI_Offset at[3] = { record, rank * ROWS, 0 }, all[3] = { 1, ROWS, COLUMNS };
		need(ncmpi_get_vara_int_all(file, 2, at, all, part[0]), "get of a record");
		compare(rank, 2 + record, "record");
	}
}

int main(int count, char **words)
{
	int file, dimensions[3], variable;
	if (count != 2)
		return 2;
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	need(ncmpi_create(MPI_COMM_WORLD, words[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file), "create");
	need(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dimensions[0]), "dimension");
	need(ncmpi_def_dim(file, "y", (MPI_Offset)ROWS * ranks, &dimensions[1]), "dimension");
	need(ncmpi_def_dim(file, "x", COLUMNS, &dimensions[2]), "dimension");
	need(ncmpi_def_var(file, "fixed", NC_INT, 2, dimensions + 1, &variable), "variable");
	need(ncmpi_def_var(file, "alone", NC_INT, 2, dimensions + 1, &variable), "variable");
	need(ncmpi_def_var(file, "records", NC_INT, 3, dimensions, &variable), "variable");
	need(ncmpi_enddef(file), "definitions");
	put(file, me);
	need(ncmpi_sync(file), "sync");
	need(ncmpi_close(file), "close");
	MPI_Barrier(MPI_COMM_WORLD);
	need(ncmpi_open(MPI_COMM_WORLD, words[1], NC_WRITE, MPI_INFO_NULL, &file), "open");
	for (int rank = 0; rank < ranks; rank++)
		look(file, (me + rank) % ranks);
	/* Another node takes over. */
	put(file, (me + 1) % ranks);
	need(ncmpi_close(file), "close");
	if (me == 0)
		printf("all ok with %d ranks\n", ranks);
	MPI_Finalize();
	return 0;
}
