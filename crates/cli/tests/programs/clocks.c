/* No time of a file ever goes back, whatever brings it to the store; and O_TRUNC cuts files that are
   opened to be read, too: clocks OUTSIDE, a relative path without its last number. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMES = 300, FILES = 30 };

static long long later(struct timespec one, struct timespec other)
{
	return (other.tv_sec - one.tv_sec) * 1000000000ll + other.tv_nsec - one.tv_nsec;
}

static void times(const char *what, int how)
{
	static char page[5000];
	int fd = open("timed", O_RDWR | O_CREAT, 0644), changed = 0, modified = 0;
	for (int i = 0; i < TIMES; i++) {
		struct stat before, after;
		pwrite(fd, page, sizeof page, i * 100);
		fstat(fd, &before);
		pwrite(fd, page, 1, 0);
		fstat(fd, &before);
		switch (how) {
		case 0: fsync(fd); break;
		case 1: fdatasync(fd); break;
		case 2: fallocate(fd, 0, 0, 4096); break;
		case 3: ftruncate(fd, 20000); break;
		default: close(fd), fd = open("timed", O_RDWR);
		}
		fstat(fd, &after);
		changed += later(before.st_ctim, after.st_ctim) < 0;
		modified += later(before.st_mtim, after.st_mtim) < 0;
	}
	close(fd);
	printf("%s: ctime went back %d times, mtime %d\n", what, changed, modified);
}

/* Files that were inside go, and new ones elsewhere get their inodes. */
static void truncated(const char *outside)
{
	char inside[40], other[400];
	int left = 0;
	struct stat found;
	for (int i = 0; i < FILES; i++) {
		snprintf(inside, sizeof inside, "in%d", i);
		int fd = open(inside, O_WRONLY | O_CREAT, 0644);
		write(fd, "hello world", 11);
		close(fd);
	}
	for (int i = 0; i < FILES; i++) {
		snprintf(inside, sizeof inside, "in%d", i);
		snprintf(other, sizeof other, "%s%d", outside, i);
		rename(inside, other);
		unlink(other);
	}
	for (int i = 0; i < FILES; i++) {
		snprintf(other, sizeof other, "%s%d", outside, i);
		int fd = open(other, O_WRONLY | O_CREAT, 0644);
		write(fd, "hello", 5);
		close(fd);
		close(open(other, O_RDONLY | O_TRUNC));
		stat(other, &found);
		left += found.st_size != 0;
		unlink(other);
	}
	printf("%d files were not truncated\n", left);
}

int main(int argc, char **argv)
{
	times("fsync", 0), times("fdatasync", 1), times("fallocate", 2), times("ftruncate", 3), times("reopen", 4);
	if (argc == 2)
		truncated(argv[1]);
	return 0;
}
