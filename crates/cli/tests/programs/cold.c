/* Reads a file that only the store has, and looks at each byte.
 *
 * cold read FILE COUNT STRIDE BYTES PASSES ORDER: BYTES at each of COUNT (a power of two) multiples
 * of STRIDE, PASSES times, in a row or in an order that no pattern shows. Word n of the file is
 * n * FACTOR.
 *
 * cold write FILE SEEN, cold watch FILE SEEN TURNS: a writer, which may be killed, gives pages new
 * versions, cuts the file and lets it grow again behind half of it; a reader sees no version of the
 * first half older than the writer had written before it asked, or than it has seen. SEEN is shared
 * by them: the last version of each page whose write has returned. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FACTOR 0x9e3779b97f4a7c15u
enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 2048 };

static int failed(const char *what, long page)
{
	printf("%s at %ld: %s\n", what, page, strerror(errno));
	return 1;
}

static int read_all(char **argv)
{
	unsigned long count = atol(argv[3]), stride = atol(argv[4]), bytes = atol(argv[5]);
	int fd = open(argv[2], O_RDONLY), random = argv[7][0] == 'r';
	uint64_t *words = malloc(bytes);
	memset(words, 1, bytes);
	for (int pass = 0; pass < atoi(argv[6]); pass++) {
		access("marker", F_OK);
		for (unsigned long i = 0, next = 1; i < count; i++) {
			unsigned long at = (random ? next : i) * stride;
			/* Each of a power of two of places once, at changing distances. */
			next = (next * 5 + 3) % count;
			if (pread(fd, words, bytes, at) != (ssize_t)bytes)
				return failed("short", at);
			for (unsigned long n = 0; n < bytes / 8; n++)
				if (words[n] != (at / 8 + n) * FACTOR)
					return failed("wrong", at + 8 * n);
		}
	}
	access("marker", F_OK);
	return 0;
}

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* A version above the number of the page. */
static void fill(uint64_t *words, long page, uint64_t version)
{
	for (int n = 0; n < WORDS; n++)
		words[n] = version << 16 | page;
}

static int write_on(int fd, _Atomic uint64_t *seen)
{
	uint64_t state = getpid(), words[WORDS];
	for (;;) {
		long page = draw(&state) % PAGES;
		uint64_t version = seen[page] + 2;
		fill(words, page, version);
		if (page >= PAGES / 2 && page % 64 == 0) {
			if (ftruncate(fd, page * PAGE) || ftruncate(fd, (long)PAGES * PAGE))
				return failed("truncate", page);
			continue;
		}
		if (pwrite(fd, words, PAGE, page * PAGE) != PAGE)
			return failed("write", page);
		seen[page] = version;
	}
}

static int watch(int fd, _Atomic uint64_t *seen, long turns)
{
	static uint64_t newest[PAGES], words[64 * WORDS];
	uint64_t state = getpid();
	for (long turn = 0; turn < turns; turn++) {
		long first = draw(&state) % PAGES, pages = draw(&state) % 4 ? 1 : 1 + draw(&state) % 64;
		if (first + pages > PAGES)
			pages = PAGES - first;
		uint64_t least[64];
		for (long n = 0; n < pages; n++)
			least[n] = seen[first + n] > newest[first + n] ? seen[first + n] : newest[first + n];
		ssize_t got = pread(fd, words, pages * PAGE, first * PAGE);
		if (got < 0 || (first < PAGES / 2 && got < PAGE))
			return failed("short", first);
		/* A write under way may be seen in part: the oldest word is what is there for sure. */
		uint64_t oldest = 0;
		for (long n = 0; n < got / 8; n++) {
			long page = first + n / WORDS, stable = page < PAGES / 2;
			uint64_t version = words[n] >> 16;
			oldest = n % WORDS == 0 || version < oldest ? version : oldest;
			if (words[n] == 0 && !stable)
				continue;
			if ((long)(words[n] & 0xffff) != page)
				return failed("of another page", page);
			if (stable && version < least[n / WORDS])
				return failed("old", page);
			if (stable && n % WORDS == WORDS - 1)
				newest[page] = oldest;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 8 && strcmp(argv[1], "read") == 0)
		return read_all(argv);
	int fd = open(argv[2], O_RDWR), shared = open(argv[3], O_RDWR | O_CREAT, 0644);
	if (fd < 0 || shared < 0 || ftruncate(shared, PAGES * 8))
		return failed("open", 0);
	_Atomic uint64_t *seen =
	    mmap(NULL, PAGES * 8, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	return argc == 4 ? write_on(fd, seen) : watch(fd, seen, atol(argv[4]));
}
