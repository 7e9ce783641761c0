/*
 * One of several that write one file in records: records write|check strided|segmented FILE RANK RANKS RECORDS BYTES.
 * Each byte follows from its place in the file. "ok" goes to stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char *what, unsigned long long record)
{
	fprintf(stderr, "%s of record %llu: %s\n", what, record, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 8)
		return 2;
	int writes = !strcmp(argv[1], "write"), strided = !strcmp(argv[2], "strided");
	unsigned long long rank = strtoull(argv[4], NULL, 10), ranks = strtoull(argv[5], NULL, 10);
	unsigned long long records = strtoull(argv[6], NULL, 10), bytes = strtoull(argv[7], NULL, 10);
	unsigned char *wanted = malloc(bytes), *seen = malloc(bytes);
	int fd = open(argv[3], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || !wanted || !seen)
		return fail("open", 0);
	for (unsigned long long number = 0; number < records / ranks; number++) {
		unsigned long long record = strided ? number * ranks + rank : rank * (records / ranks) + number;
		unsigned long long at = record * bytes;
		for (unsigned long long i = 0; i < bytes; i++)
			wanted[i] = (unsigned char)((at + i) * 2654435761u >> 13);
		if (writes && pwrite(fd, wanted, bytes, at) != (ssize_t)bytes)
			return fail("write", record);
		ssize_t got = pread(fd, seen, bytes, at);
		unsigned long long same = 0;
		while (got > 0 && same < (unsigned long long)got && seen[same] == wanted[same])
			same++;
		if (same != bytes) {
			fprintf(stderr, "%s: read of %llu at %llu gave %zd, right up to %llu\n", argv[3], bytes, at, got, same);
			return fail("read", record);
		}
	}
	struct stat found;
	if (!writes && (fstat(fd, &found) || (unsigned long long)found.st_size != records * bytes))
		return fail("size", records);
	puts("ok");
	return close(fd);
}
