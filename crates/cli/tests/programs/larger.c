/*
 * One of several programs that use one store, each with more than its node's memory:
 * larger BARRIER RANK RANKS MIB. Each word follows from its place and from how often it was
 * written. Other programs are waited for in folder BARRIER. "ok" goes to stdout; a call that takes
 * longer than SLOWEST seconds is an error: it waited for something that did not come.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)
#define RECORD 47008L
#define SLOWEST 8.0
#define APPENDS 300

static const char *barrier, *phase;
static int rank, ranks, step;
static uint64_t *words;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what, long at)
{
	fprintf(stderr, "rank %d, %s: %s at %ld: %s\n", rank, phase, what, at, strerror(errno));
	exit(1);
}

static void check_time(double began, long at)
{
	errno = 0;
	if (now() - began > SLOWEST)
		fail("too slow", at);
}

/* All programs have come to the end of a phase. */
static void meet(const char *next)
{
	char path[4096];
	phase = next;
	step++;
	snprintf(path, sizeof path, "%s/%d-%d", barrier, step, rank);
	if (close(open(path, O_CREAT | O_WRONLY, 0600)))
		fail("meet", step);
	for (int other = 0; other < ranks; other++) {
		snprintf(path, sizeof path, "%s/%d-%d", barrier, step, other);
		while (access(path, F_OK))
			usleep(1000);
	}
}

static uint64_t word(long at, int version)
{
	return (uint64_t)version << 56 ^ (uint64_t)at;
}

static void put(int fd, long at, long bytes, int version)
{
	for (long i = 0; i < bytes / 8; i++)
		words[i] = word(at + 8 * i, version);
	double began = now();
	if (pwrite(fd, words, bytes, at) != bytes)
		fail("write", at);
	check_time(began, at);
}

static void get(int fd, long at, long bytes, int version)
{
	double began = now();
	if (pread(fd, words, bytes, at) != bytes)
		fail("read", at);
	check_time(began, at);
	for (long i = 0; i < bytes / 8; i++)
		if (words[i] != word(at + 8 * i, version)) {
			fprintf(stderr, "rank %d, %s: %lx at %ld\n", rank, phase, (long)words[i], at + 8 * i);
			exit(1);
		}
}

typedef void Each(int fd, long at, long bytes, int version);

/* A part of the file for each, or pieces in turns. */
static void segment(Each *each, int fd, int whose, long mib, int version)
{
	for (long at = whose * mib * MIB; at < (whose + 1) * mib * MIB; at += MIB)
		each(fd, at, MIB, version);
}

static void turns(Each *each, int fd, int whose, long mib, long bytes, int version)
{
	for (long i = 0; (i + 1) * bytes <= mib * MIB; i++)
		each(fd, (i * ranks + whose) * bytes, bytes, version);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	barrier = argv[1];
	rank = atoi(argv[2]);
	ranks = atoi(argv[3]);
	long mib = atol(argv[4]);
	int next = (rank + 1) % ranks;
	words = malloc(MIB);
	meet("open");
	int segments = open("segments", O_RDWR | O_CREAT, 0600), strided = open("strided", O_RDWR | O_CREAT, 0600);
	int appended = open("appended", O_RDWR | O_CREAT | O_APPEND, 0600);
	if (segments < 0 || strided < 0 || appended < 0 || !words)
		fail("open", 0);
	segment(put, segments, rank, mib, 1);
	meet("read of segments");
	segment(get, segments, next, mib, 1);
	meet("write of others' segments");
	segment(put, segments, next, mib, 2);
	if (fsync(segments))
		fail("fsync", 0);
	meet("read of all");
	for (long at = 0; at < ranks * mib * MIB; at += MIB)
		get(segments, at, 4096, 2);
	meet("records in turns");
	turns(put, strided, rank, mib, RECORD, 3);
	meet("read of records");
	turns(get, strided, next, mib, RECORD, 3);
	meet("pieces in turns");
	turns(put, strided, rank, mib, MIB, 4);
	meet("read of pieces");
	turns(get, strided, next, mib, MIB, 4);
	meet("appends");
	memset(words, rank + 1, 4096);
	for (int i = 0; i < APPENDS; i++) {
		double began = now();
		if (write(appended, words, 4096) != 4096)
			fail("append", i);
		check_time(began, i);
	}
	meet("read of appends");
	int counts[256] = {0};
	unsigned char *bytes = (unsigned char *)words;
	for (long i = 0; i < (long)APPENDS * ranks; i++) {
		double began = now();
		if (pread(appended, bytes, 4096, i * 4096) != 4096 || memcmp(bytes, bytes + 1, 4095))
			fail("torn append", i);
		check_time(began, i);
		counts[bytes[0]]++;
	}
	for (int other = 0; other < ranks; other++)
		if (counts[other + 1] != APPENDS)
			fail("lost append", other);
	meet("end");
	puts("ok");
	return 0;
}
