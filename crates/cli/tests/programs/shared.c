/*
 * Several processes on one file: shared HOW FILE PROCESSES RECORDS BYTES
 * HOW: disjoint     each process has a region of its own
 *      interleaved  record by record in turn
 *      append       each process has its own O_APPEND descriptor
 *      inherited    all use one descriptor and its offset
 * In the end the parent reads what all have written.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

/* A line: process, record, and a letter that follows from both. */
static void record(char *line, int bytes, int process, int number)
{
	memset(line, 'a' + (process * 7 + number) % 26, bytes);
	line[sprintf(line, "%03d %06d ", process, number)] = '.';
	line[bytes - 1] = '\n';
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	char how = argv[1][0];
	int processes = atoi(argv[3]), records = atoi(argv[4]), bytes = atoi(argv[5]);
	char *line = malloc(bytes), *seen = calloc(processes, records);
	int flags = O_RDWR | O_CREAT | (how == 'a' ? O_APPEND : 0);
	int shared = open(argv[2], flags, 0644);
	if (shared < 0)
		fail("open");
	for (int p = 0; p < processes; p++) {
		if (fork() != 0)
			continue;
		int fd = how == 'i' && argv[1][2] == 'h' ? shared : open(argv[2], flags);
		for (int r = 0; r < records; r++) {
			record(line, bytes, p, r);
			ssize_t done;
			if (how == 'd')
				done = pwrite(fd, line, bytes, (off_t)(p * records + r) * bytes);
			else if (how == 'a' || fd == shared)
				done = write(fd, line, bytes);
			else
				done = pwrite(fd, line, bytes, (off_t)(r * processes + p) * bytes);
			if (done != bytes)
				fail("write");
		}
		_exit(close(fd));
	}
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	struct stat found;
	fstat(shared, &found);
	printf("failed %d size %lld\n", failed, (long long)found.st_size);
	char *got = malloc(bytes);
	for (long n = 0; n < (long)processes * records; n++) {
		int p, r;
		if (pread(shared, got, bytes, n * bytes) != bytes)
			fail("read");
		if (sscanf(got, "%d %d", &p, &r) != 2 || p >= processes || r >= records) {
			printf("record %ld: %.12s\n", n, got);
			return 1;
		}
		record(line, bytes, p, r);
		if (memcmp(line, got, bytes) != 0 || seen[p * records + r]++) {
			printf("record %ld is torn or doubled\n", n);
			return 1;
		}
	}
	puts("all records are there");
	return failed;
}
