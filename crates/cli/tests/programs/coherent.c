/*
 * Random calls on files that processes of several nodes share: coherent MODEL SEED STEPS FILE...
 * Each call is made with a lock on MODEL, a file outside of the store that has what FILE... should have, so that
 * whatever was done before, by any process of any node, has to be seen. With MAPS in the environment files are used
 * through shared mappings, too; with PARTS most of them lie where parts of 1 MiB meet, and few need all of a file;
 * with NAMES files are removed, replaced, exchanged, linked and made anew, while processes have them open. "ok" and
 * counts go to stdout.
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

/* So many files at a time have a name, or are open in some process. */
#define ALIVE 64

/* A file; after its size all is zero. */
struct model {
	unsigned long long size;
	unsigned char content[SIZE_MAX_OF_FILE];
};

/* What MODEL is. Names and descriptors refer to files. */
struct models {
	unsigned long long begun, named[FILES], references[ALIVE];
	struct model files[ALIVE];
};

static struct models *models;

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

static void resize(struct model *model, size_t size)
{
	if (size < model->size)
		memset(model->content + size, 0, model->size - size);
	model->size = size;
}

static void unrefer(unsigned long long file)
{
	if (!--models->references[file])
		resize(&models->files[file], 0);
}

/* Lets a name or a descriptor refer to another file. */
static void refer(unsigned long long *reference, unsigned long long file)
{
	models->references[file]++;
	unrefer(*reference);
	*reference = file;
}

/* A file that nothing refers to; ALIVE where there is none. */
static unsigned long long unused(void)
{
	unsigned long long file = 0;
	while (file < ALIVE && models->references[file])
		file++;
	return file;
}

static void fill(unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = (unsigned char)below(256);
}

/* Writes an empty file. */
static void write_anew(const char *name, int fd, struct model *model, size_t bytes)
{
	resize(model, bytes);
	fill(model->content, bytes);
	if (write(fd, model->content, bytes) != (ssize_t)bytes)
		fail("%s: write of %zu", name, bytes);
}

static int opened(const char *name, int flags)
{
	int fd = open(name, flags, 0600);
	if (fd < 0)
		fail("%s: open with %x", name, flags);
	return fd;
}

static void expect_size(const char *name, const char *by, unsigned long long wanted)
{
	struct stat seen;
	if (stat(by, &seen) || (unsigned long long)seen.st_size != wanted)
		fail("%s: size by %s %lld, not %llu", name, by, (long long)seen.st_size, wanted);
}

/* A call on names. `fd` is open on what `name`, the one of this number, meant at some time, and `is` says on what. */
static void change_names(char **names, int files, int number, int *fd, unsigned long long *is, size_t bytes)
{
	const char *name = names[number];
	unsigned long long file = unused(), *named = &models->named[number];
	struct model *model = &models->files[*named];
	char beside[300];
	snprintf(beside, sizeof beside, "%s.%d", name, (int)getpid());
	int what = below(7), other = below(files);
	switch (what) {
	case 0: /* removed, and made anew */
	case 1: /* replaced */
		if (file == ALIVE)
			return;
		if (what == 0 && unlink(name))
			fail("%s: unlink", name);
		int made = opened(what ? beside : name, O_RDWR | O_CREAT | O_EXCL);
		write_anew(name, made, &models->files[file], bytes);
		if (what && rename(beside, name))
			fail("%s: rename", name);
		refer(named, file);
		if (below(2)) {
			close(*fd);
			*fd = made;
			refer(is, file);
		} else {
			close(made);
		}
		break;
	case 2: /* exchanged with another one */
		if (other == number)
			return;
		if (rename(name, beside) || rename(names[other], name) || rename(beside, names[other]))
			fail("%s: exchange with %s", name, names[other]);
		file = *named;
		*named = models->named[other];
		models->named[other] = file;
		break;
	case 3: /* written anew */
		made = opened(name, O_WRONLY | O_TRUNC | O_CREAT);
		write_anew(name, made, model, bytes);
		close(made);
		break;
	case 4: /* linked */
		if (link(name, beside))
			fail("%s: link", name);
		expect_size(name, beside, model->size);
		if (unlink(beside))
			fail("%s: unlink of a link", name);
		break;
	case 5: /* truncated */
		if (truncate(name, bytes))
			fail("%s: truncate", name);
		resize(model, bytes);
		break;
	default: /* opened anew */
		close(*fd);
		*fd = opened(name, O_RDWR);
		refer(is, *named);
	}
	expect_size(name, name, models->files[*named].size);
}

int main(int argc, char **argv)
{
	if (argc < 5 || argc - 4 > FILES)
		return 2;
	int files = argc - 4, fd[FILES], appends[FILES];
	seed = strtoull(argv[2], NULL, 10);
	state = seed * 2654435761u + 1;
	int steps = atoi(argv[3]);
	unsigned long long counts[11] = { 0 }, is[FILES], appends_is[FILES], maps_is[FILES];
	unsigned char *maps[FILES] = { NULL };
	int kinds = getenv("MAPS") ? 28 : 20, parts = getenv("PARTS") != NULL;
	int names = getenv("NAMES") != NULL;
	int lock = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (lock < 0 || ftruncate(lock, sizeof *models))
		fail("%s", argv[1]);
	models = mmap(NULL, sizeof *models, PROT_READ | PROT_WRITE, MAP_SHARED, lock, 0);
	if (models == MAP_FAILED)
		fail("mmap");
	if (flock(lock, LOCK_EX))
		fail("flock");
	for (int i = 0; i < FILES && !models->begun; i++)
		models->references[models->named[i] = i] = 1;
	models->begun = 1;
	for (int i = 0; i < files; i++) {
		fd[i] = opened(argv[4 + i], O_RDWR | O_CREAT);
		appends[i] = opened(argv[4 + i], O_WRONLY | O_APPEND | O_CREAT);
		is[i] = appends_is[i] = models->named[i];
		models->references[is[i]] += 2;
	}
	flock(lock, LOCK_UN);
	for (int step = 0; step < steps; step++) {
		int i = below(files), what = below(kinds);
		const char *name = argv[4 + i];
		size_t at = below(4) ? below(300000) : below(SIZE_MAX_OF_FILE / 8);
		if (parts) {
			at = (1 + below(3)) * PART - 60000 + below(120000);
			if ((what == 15 || what == 17 || what == 18) && below(10))
				what = 7;
		}
		size_t bytes = 1 + (below(3) ? below(5000) : below(200000));
		if (flock(lock, LOCK_EX))
			fail("flock");
		if (names && !below(4)) {
			change_names(argv + 4, files, i, &fd[i], &is[i], bytes);
			counts[10]++;
			goto next;
		}
		/* Which file is meant: by its name, or as it is open. */
		unsigned long long file = is[i];
		if (what == 17 || what == 19)
			file = models->named[i];
		else if (what == 13 || what == 14)
			file = appends_is[i];
		else if (what >= 20 && maps[i])
			file = maps_is[i];
		struct model *model = &models->files[file];
		if (what < 6) {
			fill(buffer, bytes);
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
			resize(model, at);
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
			refer(&is[i], file);
			if (cuts)
				resize(model, 0);
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
			if (maps[i])
				unrefer(file);
			maps[i] = NULL;
		} else if (what > 20) {
			if (!maps[i]) {
				maps[i] = mmap(NULL, SIZE_MAX_OF_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, fd[i], 0);
				if (maps[i] == MAP_FAILED)
					fail("%s: mmap", name);
				maps_is[i] = file;
				models->references[file]++;
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
			expect_size(name, name, model->size);
			if (names) {
				close(appends[i]);
				appends[i] = opened(name, O_WRONLY | O_APPEND);
				refer(&appends_is[i], file);
			}
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
