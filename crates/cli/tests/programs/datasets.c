/*
 * Datasets of HDF5, all layouts, by plain C: datasets write|more|read|scatter|rows|errors FILE. What is written has no times in it,
 * so that files can be compared.
 */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIDE 128 /* of a cube of floats: 8 MiB */
#define ROWS 64
#define COLUMNS 65536

static float values[SIDE * SIDE * SIDE];

static void need(long long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "WRONG: %s\n", what);
	exit(1);
}

static void fill(int which)
{
	for (size_t i = 0; i < SIDE * SIDE * SIDE; i++)
		values[i] = (float)((i * 2654435761u >> 7) % 1000003 + which);
}

static hid_t layout(int is_chunked, int is_deflated)
{
	hsize_t chunk[3] = { 16, SIDE, SIDE };
	hid_t list = H5Pcreate(H5P_DATASET_CREATE);
	H5Pset_obj_track_times(list, 0);
	if (is_chunked)
		need(H5Pset_chunk(list, 3, chunk), "chunk");
	if (is_deflated)
		need(H5Pset_deflate(list, 1), "deflate");
	return list;
}

/* Writes planes first .. end of a dataset, `step` at a time. */
static void planes(hid_t dataset, hsize_t first, hsize_t end, hsize_t step)
{
	for (hsize_t z = first; z < end; z += step) {
		hsize_t start[3] = { z, 0, 0 }, count[3] = { step, SIDE, SIDE };
		hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(3, count, NULL);
		need(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
		need(H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values + z % SIDE * SIDE * SIDE), "write");
		H5Sclose(space);
		H5Sclose(memory);
	}
}

static void write_all(const char *path)
{
	hsize_t dims[3] = { SIDE, SIDE, SIDE }, most[3] = { H5S_UNLIMITED, SIDE, SIDE }, few[1] = { 10 };
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
	need(file, "create");
	hid_t group = H5Gcreate2(file, "fields", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
	hid_t space = H5Screate_simple(3, dims, most), plain = H5Screate_simple(3, dims, NULL);
	hid_t rho = H5Dcreate2(file, "/fields/rho", H5T_NATIVE_FLOAT, plain, H5P_DEFAULT, layout(0, 0), H5P_DEFAULT);
	hid_t u = H5Dcreate2(group, "u", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, layout(1, 0), H5P_DEFAULT);
	hid_t packed = H5Dcreate2(group, "packed", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, layout(1, 1), H5P_DEFAULT);
	hid_t mesh = H5Dcreate2(file, "/mesh", H5T_NATIVE_FLOAT, plain, H5P_DEFAULT, layout(0, 0), H5P_DEFAULT);
	/* The second identifier of one dataset keeps its chunks in memory. */
	hid_t again = H5Dopen2(file, "/fields/packed", H5P_DEFAULT);
	for (int step = 0; step < 8; step++) {
		fill(step);
		planes(rho, step * 16, step * 16 + 16, 4);
		planes(u, step * 16, step * 16 + 16, 16);
		planes(packed, step * 16, step * 16 + 16, 1);
		if (step == 4)
			need(H5Fflush(file, H5F_SCOPE_GLOBAL), "flush");
	}
	need(H5Dclose(packed), "close");
	fill(99);
	planes(again, 60, 61, 1);
	need(H5Dwrite(mesh, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), "write all");
	hid_t list = H5Pcreate(H5P_DATASET_CREATE);
	H5Pset_obj_track_times(list, 0);
	H5Pset_layout(list, H5D_COMPACT);
	hid_t small = H5Dcreate2(file, "small", H5T_NATIVE_FLOAT, H5Screate_simple(1, few, NULL), H5P_DEFAULT, list, H5P_DEFAULT);
	need(H5Dwrite(small, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), "write small");
	need(H5Dclose(rho) | H5Dclose(u) | H5Oclose(mesh) | H5Dclose(again) | H5Idec_ref(small), "close");
	need(H5Gclose(group) | H5Fclose(file), "close");
}

/* Adds planes to a dataset that is there. */
static void more(const char *path)
{
	hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
	need(file, "open");
	hid_t u = H5Oopen(file, "/fields/u", H5P_DEFAULT);
	hsize_t dims[3] = { 2 * SIDE, SIDE, SIDE };
	need(H5Dset_extent(u, dims), "extend");
	fill(7);
	planes(u, SIDE, 2 * SIDE, 16);
	need(H5Dflush(u), "flush");
	need(H5Oclose(u) | H5Fclose(file), "close");
}

static void read_all(const char *path)
{
	static const char *names[] = { "/fields/rho", "/fields/packed", "/mesh" };
	hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
	need(file, "open");
	for (int i = 0; i < 3; i++) {
		unsigned long sum = 5381;
		hid_t dataset = H5Dopen2(file, names[i], H5P_DEFAULT);
		memset(values, 0, sizeof values);
		need(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), "read");
		for (size_t at = 0; at < sizeof values; at++)
			sum = sum * 33 + ((unsigned char *)values)[at];
		printf("%s %lx\n", names[i], sum);
		need(H5Dclose(dataset), "close");
	}
	need(H5Fclose(file), "close");
}

/* A table whose rows, a chunk each, lie in the file in no order that bytes show. */
static void scatter(const char *path)
{
	hsize_t dims[2] = { ROWS, COLUMNS }, chunk[2] = { 1, COLUMNS };
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), list = H5Pcreate(H5P_DATASET_CREATE);
	need(H5Pset_chunk(list, 2, chunk), "chunk");
	hid_t space = H5Screate_simple(2, dims, NULL);
	hid_t table = H5Dcreate2(file, "rows", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, list, H5P_DEFAULT);
	need(table, "create");
	for (hsize_t i = 0; i < ROWS; i++) {
		hsize_t start[2] = { i * (i + 1) / 2 % ROWS, 0 }, count[2] = { 1, COLUMNS };
		hid_t memory = H5Screate_simple(2, count, NULL);
		fill((int)start[0]);
		need(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
		need(H5Dwrite(table, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values), "write");
		need(H5Fflush(file, H5F_SCOPE_LOCAL), "flush");
		H5Sclose(memory);
	}
	need(H5Dclose(table) | H5Fclose(file), "close");
}

/* Reads them in order, and computes for 30 ms after each. */
static void rows(const char *path)
{
	hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), table = H5Dopen2(file, "rows", H5P_DEFAULT);
	hid_t space = H5Dget_space(table);
	for (hsize_t row = 0; row < ROWS; row++) {
		hsize_t start[2] = { row, 0 }, count[2] = { 1, COLUMNS };
		hid_t memory = H5Screate_simple(2, count, NULL);
		need(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
		need(H5Dread(table, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values), "read");
		float found = values[1];
		fill((int)row);
		need(found == values[1] ? 0 : -1, "the row");
		H5Sclose(memory);
		usleep(30000);
	}
	need(H5Dclose(table) | H5Fclose(file), "close");
}

static herr_t count(unsigned n, const H5E_error2_t *error, void *data)
{
	(void)n;
	(void)error;
	++*(int *)data;
	return 0;
}

/* The stack of errors is that of the call that has failed, and is printed as the program has set it. */
static void errors(const char *path)
{
	hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
	int found = 0;
	need(file, "open");
	fprintf(stderr, "code %d\n", (int)H5Dclose(file));
	H5E_auto2_t set;
	void *data;
	need(H5Eget_auto2(H5E_DEFAULT, &set, &data), "handler");
	H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
	long long id = H5Dopen2(file, "/none", H5P_DEFAULT);
	H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, count, &found);
	printf("%lld %s\n", id, found > 2 ? "told" : "lost");
	found = 0;
	id = H5Dclose((hid_t)-5);
	H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, count, &found);
	printf("%lld %s\n", id, found > 0 ? "told" : "lost");
	hid_t rho = H5Dopen2(file, "/fields/rho", H5P_DEFAULT);
	H5E_auto2_t now;
	need(H5Eget_auto2(H5E_DEFAULT, &now, &data), "handler");
	printf("%s %d\n", now == NULL && set != NULL ? "kept" : "changed", H5Iget_ref(rho));
	need(H5Dclose(rho) | H5Fclose(file), "close");
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	if (!strcmp(words[1], "write"))
		write_all(words[2]);
	else if (!strcmp(words[1], "more"))
		more(words[2]);
	else if (!strcmp(words[1], "read"))
		read_all(words[2]);
	else if (!strcmp(words[1], "scatter"))
		scatter(words[2]);
	else if (!strcmp(words[1], "rows"))
		rows(words[2]);
	else if (!strcmp(words[1], "errors"))
		errors(words[2]);
	else
		return 2;
	puts("done");
	return 0;
}
