/*
 * Datasets of HDF5 by functions that came with 1.14, which are declared here: several at once, and asynchronous ones.
 * datasets_later write FILE and read FILE; each says of a library before that it has none.
 */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT (1 << 20) /* floats of a dataset: 4 MiB */

#define WHERE const char *, const char *, unsigned
#define HERE __FILE__, __func__, __LINE__

#pragma weak H5Dwrite_multi
#pragma weak H5Dread_multi
#pragma weak H5Dcreate_async
#pragma weak H5Dopen_async
#pragma weak H5Dwrite_async
#pragma weak H5Dclose_async
#pragma weak H5Fcreate_async
#pragma weak H5Fopen_async
#pragma weak H5Fflush_async
#pragma weak H5Fclose_async
#pragma weak H5EScreate
#pragma weak H5ESwait
#pragma weak H5ESclose
extern herr_t H5Dwrite_multi(size_t, hid_t *, hid_t *, hid_t *, hid_t *, hid_t, const void **);
extern herr_t H5Dread_multi(size_t, hid_t *, hid_t *, hid_t *, hid_t *, hid_t, void **);
extern hid_t H5Dcreate_async(WHERE, hid_t, const char *, hid_t, hid_t, hid_t, hid_t, hid_t, hid_t);
extern hid_t H5Dopen_async(WHERE, hid_t, const char *, hid_t, hid_t);
extern herr_t H5Dwrite_async(WHERE, hid_t, hid_t, hid_t, hid_t, hid_t, const void *, hid_t);
extern herr_t H5Dclose_async(WHERE, hid_t, hid_t);
extern hid_t H5Fcreate_async(WHERE, const char *, unsigned, hid_t, hid_t, hid_t);
extern hid_t H5Fopen_async(WHERE, const char *, unsigned, hid_t, hid_t);
extern herr_t H5Fflush_async(WHERE, hid_t, int, hid_t);
extern herr_t H5Fclose_async(WHERE, hid_t, hid_t);
extern hid_t H5EScreate(void);
extern herr_t H5ESwait(hid_t, uint64_t, size_t *, _Bool *);
extern herr_t H5ESclose(hid_t);

static const char *names[] = { "one", "two", "three" };
static float values[3][COUNT], found[3][COUNT];
static hid_t types[3], spaces[3];
static const void *from[3];
static void *to[3];

static void need(long long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "WRONG: %s\n", what);
	exit(1);
}

static void end(hid_t file, hid_t *datasets, hid_t events)
{
	size_t under_way;
	_Bool failed;
	for (int i = 0; i < 3; i++)
		need(H5Dclose_async(HERE, datasets[i], events), "close");
	need(H5Fclose_async(HERE, file, events), "close");
	need(H5ESwait(events, UINT64_MAX, &under_way, &failed) | H5ESclose(events), "wait");
	puts(failed ? "failed" : "done");
}

static void write_all(const char *path)
{
	hsize_t dims[1] = { COUNT }, chunk[1] = { 100000 };
	hid_t datasets[3];
	hid_t events = H5EScreate(), list = H5Pcreate(H5P_DATASET_CREATE), chunked = H5Pcreate(H5P_DATASET_CREATE);
	H5Pset_obj_track_times(list, 0);
	H5Pset_obj_track_times(chunked, 0);
	need(H5Pset_chunk(chunked, 1, chunk), "chunk");
	hid_t space = H5Screate_simple(1, dims, NULL);
	hid_t file = H5Fcreate_async(HERE, path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT, events);
	need(file, "create");
	for (int i = 0; i < 3; i++) {
		datasets[i] = H5Dcreate_async(HERE, file, names[i], H5T_NATIVE_FLOAT, space, H5P_DEFAULT, i == 2 ? chunked : list,
			H5P_DEFAULT, events);
		need(datasets[i], names[i]);
	}
	need(H5Dwrite_multi(2, datasets, types, spaces, spaces, H5P_DEFAULT, from), "write two");
	need(H5Dwrite_async(HERE, datasets[2], H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values[2], events), "write");
	need(H5Fflush_async(HERE, file, H5F_SCOPE_LOCAL, events), "flush");
	end(file, datasets, events);
}

static void read_all(const char *path)
{
	hid_t datasets[3];
	hid_t events = H5EScreate();
	hid_t file = H5Fopen_async(HERE, path, H5F_ACC_RDWR, H5P_DEFAULT, events);
	for (int i = 0; i < 3; i++)
		need(datasets[i] = H5Dopen_async(HERE, file, names[i], H5P_DEFAULT, events), "open");
	need(H5Dread_multi(3, datasets, types, spaces, spaces, H5P_DEFAULT, to), "read three");
	need(memcmp(values, found, sizeof found) ? -1 : 0, "what was read");
	end(file, datasets, events);
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	if (H5Dwrite_multi == NULL || H5Dopen_async == NULL) {
		puts("none");
		return 0;
	}
	for (int which = 0; which < 3; which++) {
		for (size_t i = 0; i < COUNT; i++)
			values[which][i] = (float)((i * 2654435761u >> 7) % 1000003 + which);
		types[which] = H5T_NATIVE_FLOAT;
		spaces[which] = H5S_ALL;
		from[which] = values[which];
		to[which] = found[which];
	}
	if (strcmp(words[1], "write") == 0)
		write_all(words[2]);
	else
		read_all(words[2]);
	return 0;
}
