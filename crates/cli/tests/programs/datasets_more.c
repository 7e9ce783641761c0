/*
 * Datasets of HDF5 by calls that few programs use: datasets_more names|index|metadata|append|chunks|pieces|swmr|follow FILE.
 */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT (1 << 18) /* floats of a dataset: 1 MiB */
#define ROWS 64
#define COLUMNS 65536
#define STEPS 20

static float values[COUNT];

static void need(long long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "WRONG: %s\n", what);
	exit(1);
}

static void fill(int which)
{
	for (size_t i = 0; i < COUNT; i++)
		values[i] = (float)((i * 2654435761u >> 7) % 1000003 + which);
}

static hid_t plain_list(void)
{
	hid_t list = H5Pcreate(H5P_DATASET_CREATE);
	H5Pset_obj_track_times(list, 0);
	return list;
}

/* Groups without times, so that files can be compared. */
static hid_t group_list(void)
{
	hid_t list = H5Pcreate(H5P_GROUP_CREATE);
	H5Pset_obj_track_times(list, 0);
	return list;
}

static void write_all(hid_t dataset, int which)
{
	fill(which);
	need(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), "write");
}

static hid_t make(hid_t place, const char *name, int which)
{
	hsize_t dims[1] = { COUNT };
	hid_t dataset = H5Dcreate2(place, name, H5T_NATIVE_FLOAT, H5Screate_simple(1, dims, NULL), H5P_DEFAULT, plain_list(), H5P_DEFAULT);
	need(dataset, name);
	write_all(dataset, which);
	return dataset;
}

/* Datasets that are moved with their group, by themselves, removed, and named after they were written. */
static void names(const char *path)
{
	hsize_t dims[1] = { COUNT };
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
	need(file, "create");
	hid_t group = H5Gcreate2(file, "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
	need(H5Dclose(make(group, "x", 1)) | H5Dclose(make(group, "y", 2)) | H5Dclose(make(group, "z", 3)), "close");
	need(H5Lmove(file, "a", H5L_SAME_LOC, "/b", H5P_DEFAULT, H5P_DEFAULT), "move");
	need(H5Lmove(group, "z", file, "moved", H5P_DEFAULT, H5P_DEFAULT), "move");
	need(H5Ldelete(group, "./y", H5P_DEFAULT), "delete");
	hid_t late = H5Dcreate_anon(file, H5T_NATIVE_FLOAT, H5Screate_simple(1, dims, NULL), plain_list(), H5P_DEFAULT);
	write_all(late, 4);
	need(H5Olink(late, file, "late", H5P_DEFAULT, H5P_DEFAULT), "link");
	need(H5Dclose(late) | H5Gclose(group) | H5Fclose(file), "close");
}

static void by_index(const char *path)
{
	hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
	hid_t found = H5Oopen_by_idx(file, "/b", H5_INDEX_NAME, H5_ITER_INC, 0, H5P_DEFAULT);
	need(found, "open by index");
	write_all(found, 5);
	need(H5Oclose(found) | H5Fclose(file), "close");
}

/* Prints where raw data lies, for who wants to know what is metadata. */
static void print_place(hid_t dataset)
{
	hsize_t chunks = 0;
	hid_t space = H5Dget_space(dataset);
	if (H5Dget_offset(dataset) != HADDR_UNDEF) {
		printf("raw %llu %llu\n", (unsigned long long)H5Dget_offset(dataset),
			(unsigned long long)(H5Dget_offset(dataset) + H5Dget_storage_size(dataset)));
		return;
	}
	need(H5Dget_num_chunks(dataset, space, &chunks), "chunks");
	for (hsize_t i = 0; i < chunks; i++) {
		hsize_t offset[1], size;
		haddr_t at;
		unsigned mask;
		need(H5Dget_chunk_info(dataset, space, i, offset, &mask, &at, &size), "chunk");
		printf("raw %llu %llu\n", (unsigned long long)at, (unsigned long long)(at + size));
	}
	H5Sclose(space);
}

static hid_t make_chunked(hid_t place, const char *name, hsize_t chunk)
{
	hsize_t dims[1] = { COUNT };
	hid_t list = plain_list();
	need(H5Pset_chunk(list, 1, &chunk), "chunk");
	need(H5Pset_deflate(list, 1), "deflate");
	hid_t dataset = H5Dcreate2(place, name, H5T_NATIVE_FLOAT, H5Screate_simple(1, dims, NULL), H5P_DEFAULT, list, H5P_DEFAULT);
	need(dataset, name);
	write_all(dataset, 7);
	return dataset;
}

/* Raw data, and between it groups with attributes. */
static void fields(hid_t file, int first)
{
	char name[64];
	hid_t one = H5Screate(H5S_SCALAR);
	for (int i = first; i < first + 6; i++) {
		snprintf(name, sizeof name, "/fields/f%d", i);
		hid_t dataset = i % 3 == 2 ? make_chunked(file, name, 20000) : make(file, name, i);
		need(H5Fflush(file, H5F_SCOPE_LOCAL), "flush");
		print_place(dataset);
		need(H5Dclose(dataset), "close");
		snprintf(name, sizeof name, "/group%d", i);
		hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, group_list(), H5P_DEFAULT);
		for (int k = 0; k < 200; k++) {
			snprintf(name, sizeof name, "an attribute with a long name %d", k);
			hid_t attribute = H5Acreate2(group, name, H5T_NATIVE_INT, one, H5P_DEFAULT, H5P_DEFAULT);
			need(H5Awrite(attribute, H5T_NATIVE_INT, &k), "attribute");
			need(H5Aclose(attribute), "close");
		}
		need(H5Gclose(group), "close");
	}
}

static void metadata(const char *path, int is_new)
{
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), made = H5Pcreate(H5P_FILE_CREATE);
	/* Many attributes want a newer format. */
	need(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST), "bounds");
	need(H5Pset_obj_track_times(made, 0), "times");
	hid_t file = is_new ? H5Fcreate(path, H5F_ACC_TRUNC, made, access) : H5Fopen(path, H5F_ACC_RDWR, access);
	need(file, "open");
	if (is_new)
		need(H5Gclose(H5Gcreate2(file, "fields", H5P_DEFAULT, group_list(), H5P_DEFAULT)), "group");
	fields(file, is_new ? 0 : 6);
	need(H5Fclose(file), "close");
}

/* Rows, a chunk each, in no order that bytes show, written as they lie in the file. */
static void chunks(const char *path)
{
	hsize_t dims[2] = { ROWS, COLUMNS }, chunk[2] = { 1, COLUMNS };
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), list = plain_list();
	need(H5Pset_chunk(list, 2, chunk), "chunk");
	hid_t table = H5Dcreate2(file, "rows", H5T_NATIVE_FLOAT, H5Screate_simple(2, dims, NULL), H5P_DEFAULT, list, H5P_DEFAULT);
	for (hsize_t i = 0; i < ROWS; i++) {
		hsize_t offset[2] = { i * (i + 1) / 2 % ROWS, 0 };
		fill((int)offset[0]);
		need(H5Dwrite_chunk(table, H5P_DEFAULT, 0, offset, COLUMNS * sizeof(float), values), "write");
	}
	need(H5Dclose(table) | H5Fclose(file), "close");
}

/* Reads them in order, and computes for 30 ms after each. */
static void pieces(const char *path)
{
	hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), table = H5Dopen2(file, "rows", H5P_DEFAULT);
	for (hsize_t row = 0; row < ROWS; row++) {
		hsize_t offset[2] = { row, 0 };
		uint32_t mask;
		need(H5Dread_chunk(table, H5P_DEFAULT, offset, &mask, values), "read");
		float found = values[1];
		fill((int)row);
		need(found == values[1] ? 0 : -1, "the row");
		usleep(30000);
	}
	need(H5Dclose(table) | H5Fclose(file), "close");
}

/* One that writes while another one reads. */
static void swmr(const char *path)
{
	hsize_t dims[1] = { 0 }, most[1] = { H5S_UNLIMITED }, chunk[1] = { 50000 };
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), list = plain_list();
	need(H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), "bounds");
	hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
	need(H5Pset_chunk(list, 1, chunk), "chunk");
	hid_t grows = H5Dcreate2(file, "grows", H5T_NATIVE_FLOAT, H5Screate_simple(1, dims, most), H5P_DEFAULT, list, H5P_DEFAULT);
	need(H5Fstart_swmr_write(file), "start");
	/* The reader may open it. */
	fclose(fopen("started", "w"));
	for (int step = 0; step < STEPS; step++) {
		hsize_t start[1] = { (hsize_t)step * 30000 }, count[1] = { 30000 };
		dims[0] = start[0] + count[0];
		need(H5Dset_extent(grows, dims), "extent");
		hid_t space = H5Dget_space(grows), memory = H5Screate_simple(1, count, NULL);
		fill(step);
		need(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
		need(H5Dwrite(grows, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values), "write");
		need(H5Dflush(grows), "flush");
		H5Sclose(space);
		H5Sclose(memory);
		usleep(20000);
	}
	need(H5Dclose(grows) | H5Fclose(file), "close");
}

static void follow(const char *path)
{
	static float found[STEPS * 30000];
	while (access("started", F_OK) != 0)
		usleep(1000);
	hid_t file = H5Fopen(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, H5P_DEFAULT), grows = H5Dopen2(file, "grows", H5P_DEFAULT);
	need(grows, "open");
	for (hsize_t last = 0; last < STEPS * 30000;) {
		hsize_t dims[1];
		need(H5Drefresh(grows), "refresh");
		hid_t space = H5Dget_space(grows);
		need(H5Sget_simple_extent_dims(space, dims, NULL), "extent");
		H5Sclose(space);
		if (dims[0] == last) {
			usleep(1000);
			continue;
		}
		need(H5Dread(grows, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, found), "read");
		for (hsize_t at = last; at < dims[0]; at += 30000) {
			fill((int)(at / 30000));
			need(memcmp(found + at, values, 30000 * sizeof *found) ? -1 : 0, "what was written");
		}
		last = dims[0];
	}
	need(H5Dclose(grows) | H5Fclose(file), "close");
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	if (!strcmp(words[1], "names"))
		names(words[2]);
	else if (!strcmp(words[1], "index"))
		by_index(words[2]);
	else if (!strcmp(words[1], "metadata") || !strcmp(words[1], "append"))
		metadata(words[2], words[1][0] == 'm');
	else if (!strcmp(words[1], "chunks"))
		chunks(words[2]);
	else if (!strcmp(words[1], "pieces"))
		pieces(words[2]);
	else if (!strcmp(words[1], "swmr"))
		swmr(words[2]);
	else if (!strcmp(words[1], "follow"))
		follow(words[2]);
	else
		return 2;
	puts("done");
	return 0;
}
