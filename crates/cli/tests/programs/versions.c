/*
 * Files that one process writes anew while others read them, on several nodes:
 *   versions make FILES            makes f0, f1, ...
 *   versions write TABLE FILES SEED     changes some pages of one file after the other
 *   versions read TABLE FILES SEED      reads some pages of one file after the other, and checks them
 *   versions check TABLE FILES     checks all of them, as they are now
 * Each page says which file, place and version it is of, all over. TABLE, outside of the store, has for each page
 * the version that is being written, and the last one that was: what is read is none that is older than the latter
 * was before the read, and none that is newer than the former after it. "read" and "write" go on until there is a
 * file TABLE.end, and say how many calls they have made and how long the longest has taken.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FILES 8
#define PAGES 512
#define PAGE 4096
#define WORDS (PAGE / 8)
#define RUN_MAX 96

struct versions {
	_Atomic unsigned begun, done;
};

static unsigned long long state;
static unsigned long long run[RUN_MAX * WORDS];

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33) % limit;
}

static unsigned long long word(unsigned file, unsigned page, unsigned version, unsigned at)
{
	return (unsigned long long)version << 32 | file << 28 | page << 12 | at;
}

static void must(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static int open_file(unsigned file, int flags)
{
	char name[16];
	snprintf(name, sizeof name, "f%u", file);
	int fd = open(name, flags, 0644);
	must(fd >= 0, name);
	return fd;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void fill(unsigned file, unsigned first, unsigned pages, const unsigned *versions)
{
	for (unsigned i = 0; i < pages * WORDS; i++)
		run[i] = word(file, first + i / WORDS, versions[i / WORDS], i % WORDS);
}

/* All of a page is of one version, which is one of those that it may be of. */
static void compare(unsigned file, unsigned page, const unsigned long long *seen, unsigned least, unsigned most)
{
	unsigned version = seen[0] >> 32;
	for (unsigned i = 0; i < WORDS; i++)
		if (seen[i] != word(file, page, version, i)) {
			printf("f%u page %u word %u is %llx, not %llx\n", file, page, i, seen[i],
			       word(file, page, version, i));
			exit(1);
		}
	if (version < least || version > most) {
		printf("f%u page %u is of version %u, not %u to %u\n", file, page, version, least, most);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static const unsigned first_versions[PAGES];
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "make") && argc == 3) {
		for (unsigned file = 0; file < (unsigned)atoi(argv[2]); file++) {
			int fd = open_file(file, O_CREAT | O_WRONLY);
			for (unsigned page = 0; page < PAGES; page += 64) {
				fill(file, page, 64, first_versions);
				must(write(fd, run, 64 * PAGE) == 64 * PAGE, "write");
			}
			close(fd);
		}
		return 0;
	}
	must(argc >= 4 && atoi(argv[3]) <= FILES, "arguments");
	unsigned files = atoi(argv[3]);
	char end[4096];
	snprintf(end, sizeof end, "%s.end", argv[2]);
	int table = open(argv[2], O_RDWR | O_CREAT, 0644);
	must(table >= 0 && ftruncate(table, sizeof(struct versions[FILES][PAGES])) == 0, argv[2]);
	struct versions(*versions)[PAGES] = mmap(NULL, sizeof(struct versions[FILES][PAGES]), PROT_READ | PROT_WRITE,
						 MAP_SHARED, table, 0);
	must(versions != MAP_FAILED, "mmap");
	int checks = !strcmp(what, "check"), writes = !strcmp(what, "write");
	unsigned long calls = 0;
	double longest = 0;
	state = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
	while (checks ? calls < files * PAGES / 64 : access(end, F_OK) != 0) {
		unsigned file = checks ? calls / (PAGES / 64) : below(files);
		unsigned pages = checks ? 64 : 1 + below(RUN_MAX), first = checks ? calls % (PAGES / 64) * 64 : below(PAGES);
		unsigned of[RUN_MAX];
		/* Some begin where a block does, and so bring it up for all. */
		if (below(2) && !checks)
			first -= first % 64;
		if (pages > PAGES - first)
			pages = PAGES - first;
		int fd = open_file(file, writes ? O_WRONLY : O_RDONLY);
		for (unsigned i = 0; i < pages; i++)
			of[i] = writes ? ++versions[file][first + i].begun : versions[file][first + i].done;
		if (writes)
			fill(file, first, pages, of);
		double began = seconds();
		ssize_t got = writes ? pwrite(fd, run, pages * PAGE, (off_t)first * PAGE)
				     : pread(fd, run, pages * PAGE, (off_t)first * PAGE);
		double took = seconds() - began;
		must(got == (ssize_t)pages * PAGE, what);
		longest = took > longest ? took : longest;
		for (unsigned i = 0; i < pages; i++)
			if (writes)
				versions[file][first + i].done = of[i];
			else
				compare(file, first + i, run + i * WORDS, of[i], versions[file][first + i].begun);
		close(fd);
		calls++;
		/* Readers have the file to themselves most of the time. */
		if (writes)
			usleep(100000 + below(200000));
	}
	printf("ok, %lu calls, the longest %.3f s\n", calls, longest);
	return 0;
}
