/*
 * Random calls on files that processes of several nodes share: coherent MODEL SEED STEPS FILE...
 * Each call is made with a lock on MODEL, a file outside of the store that has what FILE... should have, so that
 * whatever was done before, by any process of any node, has to be seen. With MAPS in the environment files are used
 * through shared mappings, too; with PARTS most of them lie where parts of 1 MiB meet, and few need all of a file. "ok" and counts go to stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 4
#define SIZE_MAX_OF_FILE (1u << 22)
#define PART (1u << 20)

struct model {
	unsigned long long size;
	unsigned char content[SIZE_MAX_OF_FILE];
};

static unsigned long long state;
static unsigned long long seed;
static unsigned char buffer[SIZE_MAX_OF_FILE];

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33) % limit;
}

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "seed %llu: ", seed);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, ": %s\n", strerror(errno));
	exit(1);
}

static void compare(const char *name, const struct model *model, const unsigned char *seen, size_t at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (seen[i] != model->content[at + i]) {
			errno = 0;
			fail("%s: byte %zu of %llu is %02x, not %02x (read from %zu)", name, at + i, model->size, seen[i],
			     model->content[at + i], at);
		}
}

int main(int argc, char **argv)
{
	if (argc < 5 || argc - 4 > FILES)
		return 2;
	int files = argc - 4, fd[FILES], appends[FILES];
	seed = strtoull(argv[2], NULL, 10);
	state = seed * 2654435761u + 1;
	int steps = atoi(argv[3]);
	unsigned long long counts[10] = { 0 };
	unsigned char *maps[FILES] = { NULL };
	int kinds = getenv("MAPS") ? 28 : 20, parts = getenv("PARTS") != NULL;
	int lock = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (lock < 0 || ftruncate(lock, FILES * sizeof(struct model)))
		fail("%s", argv[1]);
	struct model *models = mmap(NULL, FILES * sizeof *models, PROT_READ | PROT_WRITE, MAP_SHARED, lock, 0);
	if (models == MAP_FAILED)
		fail("mmap");
	for (int i = 0; i < files; i++) {
		fd[i] = open(argv[4 + i], O_RDWR | O_CREAT, 0600);
		appends[i] = open(argv[4 + i], O_WRONLY | O_APPEND | O_CREAT, 0600);
		if (fd[i] < 0 || appends[i] < 0)
			fail("%s", argv[4 + i]);
	}
	for (int step = 0; step < steps; step++) {
		int i = below(files), what = below(kinds);
		const char *name = argv[4 + i];
		struct model *model = &models[i];
		size_t at = below(4) ? below(300000) : below(SIZE_MAX_OF_FILE / 8);
		if (parts) {
			at = (1 + below(3)) * PART - 60000 + below(120000);
			if ((what == 15 || what == 17 || what == 18) && below(10))
				what = 7;
		}
		size_t bytes = 1 + (below(3) ? below(5000) : below(200000));
		if (flock(lock, LOCK_EX))
			fail("flock");
		if (what < 6) {
			for (size_t j = 0; j < bytes; j++)
				buffer[j] = (unsigned char)below(256);
			if (pwrite(fd[i], buffer, bytes, at) != (ssize_t)bytes)
				fail("%s: write of %zu at %zu", name, bytes, at);
			memcpy(model->content + at, buffer, bytes);
			if (model->size < at + bytes)
				model->size = at + bytes;
			counts[0]++;
		} else if (what < 13) {
			size_t end = model->size < at ? at : model->size;
			size_t expected = end - at < bytes ? end - at : bytes;
			ssize_t got = pread(fd[i], buffer, bytes, at);
			if (got != (ssize_t)expected)
				fail("%s: read of %zu at %zu gave %zd of %llu", name, bytes, at, got, model->size);
			compare(name, model, buffer, at, expected);
			counts[1]++;
		} else if (what < 15) {
			if (model->size + bytes > (parts ? SIZE_MAX_OF_FILE : SIZE_MAX_OF_FILE / 8))
				goto next;
			memset(buffer, step & 255, bytes);
			if (write(appends[i], buffer, bytes) != (ssize_t)bytes)
				fail("%s: append of %zu", name, bytes);
			memcpy(model->content + model->size, buffer, bytes);
			model->size += bytes;
			counts[2]++;
		} else if (what == 15) {
			if (ftruncate(fd[i], at))
				fail("%s: truncate to %zu", name, at);
			if (at < model->size)
				memset(model->content + at, 0, model->size - at);
			model->size = at;
			counts[3]++;
		} else if (what == 16) {
			struct stat seen;
			if (fstat(fd[i], &seen) || (unsigned long long)seen.st_size != model->size)
				fail("%s: size %lld, not %llu", name, (long long)seen.st_size, model->size);
			counts[4]++;
		} else if (what == 17) {
			close(fd[i]);
			int cuts = below(4) ? 0 : O_TRUNC;
			fd[i] = open(name, O_RDWR | cuts, 0600);
			if (fd[i] < 0)
				fail("%s: open", name);
			if (cuts) {
				memset(model->content, 0, model->size);
				model->size = 0;
			}
			struct stat seen;
			if (fstat(fd[i], &seen) || (unsigned long long)seen.st_size != model->size)
				fail("%s: size after an open %lld, not %llu", name, (long long)seen.st_size, model->size);
			counts[5]++;
		} else if (what == 18) {
			if (fsync(fd[i]))
				fail("%s: fsync", name);
			counts[6]++;
		} else if (what == 20) {
			if (maps[i] && munmap(maps[i], SIZE_MAX_OF_FILE))
				fail("%s: munmap", name);
			maps[i] = NULL;
		} else if (what > 20) {
			if (!maps[i]) {
				maps[i] = mmap(NULL, SIZE_MAX_OF_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, fd[i], 0);
				if (maps[i] == MAP_FAILED)
					fail("%s: mmap", name);
			}
			if (at >= model->size)
				goto next;
			if (bytes > model->size - at)
				bytes = model->size - at;
			if (what < 25) {
				for (size_t j = 0; j < bytes; j++)
					maps[i][at + j] = model->content[at + j] = (unsigned char)below(256);
				counts[8]++;
			} else {
				compare(name, model, maps[i] + at, at, bytes);
				counts[9]++;
			}
		} else {
			struct stat seen;
			if (stat(name, &seen) || (unsigned long long)seen.st_size != model->size)
				fail("%s: size by name %lld, not %llu", name, (long long)seen.st_size, model->size);
			counts[7]++;
		}
next:
		flock(lock, LOCK_UN);
	}
	printf("ok");
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
		printf(" %llu", counts[i]);
	printf("\n");
	return 0;
}
