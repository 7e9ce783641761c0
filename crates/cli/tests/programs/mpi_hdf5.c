/*
 * Parallel HDF5 by MPI ranks of several nodes: mpi_hdf5 strict|open FILE. A dataset in one piece and one in chunks, by
 * collective and by independent calls; another rank reads each part, and all of it is read from a file opened anew.
 */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 96
#define COLUMNS 1531

static int me, ranks;

static void need(long long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "WRONG rank %d: %s\n", me, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static int value(hsize_t row, hsize_t column, int which)
{
	return (int)(row * 1000003 + column * 17 + which) | 1;
}

/* Writes or compares the rows of a rank. */
static void rows(hid_t dataset, int rank, int which, int is_collective, int is_reading)
{
	static int part[ROWS][COLUMNS];
	hsize_t start[2] = { (hsize_t)rank * ROWS, 0 }, count[2] = { ROWS, COLUMNS };
	hid_t memory = H5Screate_simple(2, count, NULL), space = H5Dget_space(dataset), how = H5Pcreate(H5P_DATASET_XFER);
	need(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
	need(H5Pset_dxpl_mpio(how, is_collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT), "transfer");
	for (hsize_t row = 0; row < ROWS; row++)
		for (hsize_t column = 0; column < COLUMNS; column++)
			part[row][column] = is_reading ? 0 : value(start[0] + row, column, which);
	if (is_reading)
		need(H5Dread(dataset, H5T_NATIVE_INT, memory, space, how, part), "read");
	else
		need(H5Dwrite(dataset, H5T_NATIVE_INT, memory, space, how, part), "write");
	for (hsize_t row = 0; row < ROWS && is_reading; row++)
		for (hsize_t column = 0; column < COLUMNS; column++)
			if (part[row][column] != value(start[0] + row, column, which)) {
				fprintf(stderr, "dataset %d, row %d, column %d is %d\n", which, (int)(start[0] + row), (int)column,
					part[row][column]);
				need(-1, "content");
			}
	H5Sclose(memory);
	H5Sclose(space);
	H5Pclose(how);
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	int is_strict = !strcmp(words[1], "strict");
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	hid_t access = H5Pcreate(H5P_FILE_ACCESS);
	need(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "access");
	hid_t file = H5Fcreate(words[2], H5F_ACC_TRUNC, H5P_DEFAULT, access);
	need(file, "create");
	hsize_t size[2] = { (hsize_t)ranks * ROWS, COLUMNS }, chunk[2] = { 64, 500 };
	hid_t space = H5Screate_simple(2, size, NULL), datasets[4];
	for (int which = 0; which < 4; which++) {
		char name[16];
		hid_t how = H5Pcreate(H5P_DATASET_CREATE);
		snprintf(name, sizeof name, "data%d", which);
		/* Files of two runs are to be the same. */
		need(H5Pset_obj_track_times(how, 0), "times");
		if (which % 2)
			need(H5Pset_chunk(how, 2, chunk), "chunks");
		datasets[which] = H5Dcreate2(file, name, H5T_STD_I32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
		need(datasets[which], "dataset");
		H5Pclose(how);
		rows(datasets[which], me, which, which / 2, 0);
	}
	/* HDF5 shows others what was written after a flush and a barrier, where the files do. */
	need(H5Fflush(file, H5F_SCOPE_GLOBAL), "flush");
	MPI_Barrier(MPI_COMM_WORLD);
	for (int which = 0; which < 4; which++) {
		if (is_strict)
			rows(datasets[which], (me + 1) % ranks, which, which / 2, 1);
		H5Dclose(datasets[which]);
	}
	need(H5Fclose(file), "close");
	MPI_Barrier(MPI_COMM_WORLD);
	file = H5Fopen(words[2], H5F_ACC_RDWR, access);
	need(file, "open");
	for (int which = 0; which < 4; which++) {
		char name[16];
		snprintf(name, sizeof name, "data%d", which);
		hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
		need(dataset, "open of a dataset");
		for (int rank = 0; rank < ranks; rank++)
			rows(dataset, rank, which, which / 2, 1);
		/* Another node takes over. */
		rows(dataset, (me + 1) % ranks, which, which / 2, 0);
		H5Dclose(dataset);
	}
	need(H5Fclose(file), "close");
	H5Pclose(access);
	H5Sclose(space);
	if (me == 0)
		printf("all ok with %d ranks\n", ranks);
	MPI_Finalize();
	return 0;
}
