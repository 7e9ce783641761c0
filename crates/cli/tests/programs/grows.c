/*
 * A file whose size one process changes again and again, and which others look at: grows LOG SEED STEPS FILE writes,
 * and grows LOG SEED 0 FILE looks until the writer has ended. LOG, outside of the store, has all sizes in order: a
 * look may see one that was acknowledged before it began, or any after that one which was begun before it ended. A
 * write that is under way may be there in part, as on the store itself. "ok" and counts go to stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEPS_MAX 20000

struct log {
	_Atomic unsigned begun;
	_Atomic unsigned done;
	_Atomic unsigned ended;
	_Atomic unsigned long long sizes[STEPS_MAX + 1];
	/* Those that are written; the others are set. */
	_Atomic unsigned char written[STEPS_MAX + 1];
};

static unsigned long long state;
static const char *seed;

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33) % limit;
}

static void fail(const char *what, unsigned long long size, unsigned first, unsigned last)
{
	fprintf(stderr, "seed %s: %s: %llu (sizes %u to %u): %s\n", seed, what, size, first, last, strerror(errno));
	exit(1);
}

static void change(struct log *log, unsigned steps, const char *name)
{
	static char bytes[9000];
	unsigned long long size = 0;
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		fail("open", 0, 0, 0);
	for (unsigned step = 1; step <= steps; step++) {
		unsigned kind = below(20), length = 1 + below(sizeof bytes);
		unsigned long long before = size;
		size = kind == 0 ? below(5000) : before + length;
		log->sizes[step] = size;
		log->written[step] = kind >= 4;
		log->begun = step;
		int failed = kind < 4 ? ftruncate(fd, size) : pwrite(fd, bytes, length, before) != (ssize_t)length;
		if (failed)
			fail("change", size, step, step);
		log->done = step;
		if (kind == 1)
			fsync(fd);
		if (kind == 2) {
			/* Others may have it meanwhile. */
			close(fd);
			fd = open(name, O_RDWR);
			if (fd < 0)
				fail("open again", 0, step, step);
		}
		usleep(below(500));
	}
	close(fd);
	log->ended = 1;
	printf("ok %u changes\n", steps);
}

static void look(struct log *log, const char *name)
{
	unsigned looks = 0, news = 0;
	unsigned long long last = 0;
	int fd = -1;
	for (int ended = 0; !ended;) {
		ended = log->ended;
		unsigned first = log->done, way = below(8);
		struct stat seen;
		if (first == 0) {
			usleep(1000);
			continue;
		}
		if (fd < 0 && (fd = open(name, O_RDONLY)) < 0)
			fail("open", 0, first, first);
		if (way == 0)
			seen.st_size = lseek(fd, 0, SEEK_END);
		else if (way == 1 ? fstat(fd, &seen) : stat(name, &seen))
			fail("stat", 0, first, log->begun);
		unsigned long long size = seen.st_size;
		unsigned until = log->begun, known = 0;
		for (unsigned step = first; step <= until && !known; step++) {
			known = log->sizes[step] == size;
			if (step > first && log->written[step])
				known |= log->sizes[step - 1] < size && size < log->sizes[step];
		}
		if (!known)
			fail(way == 0 ? "lseek" : way == 1 ? "fstat" : "stat", size, first, until);
		looks++;
		news += size != last;
		last = size;
		if (way == 2 && below(10) == 0) {
			/* It gets a lease, which the writer takes away again. */
			char byte;
			if (pread(fd, &byte, 1, 0) < 0)
				fail("read", 0, first, until);
		}
	}
	printf("ok %u looks, %u sizes\n", looks, news);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	seed = argv[2];
	state = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	unsigned steps = atoi(argv[3]);
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (steps > STEPS_MAX || fd < 0 || ftruncate(fd, sizeof(struct log)))
		return 2;
	struct log *log = mmap(NULL, sizeof *log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (log == MAP_FAILED)
		return 2;
	if (steps)
		change(log, steps, argv[4]);
	else
		look(log, argv[4]);
	return 0;
}
