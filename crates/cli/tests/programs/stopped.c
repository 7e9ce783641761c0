/* Does most of what can be done to a file, so that it can be stopped at each step: stopped NAME. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned char piece[700000];

static void must(long result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void put(int fd, long at, long bytes, int seed) {
    for (long i = 0; i < bytes; i++) piece[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 9));
    must(pwrite(fd, piece, bytes, at), "pwrite");
}

int main(int argc, char **argv) {
    char other[300];
    const char *name = argv[argc - 1];
    snprintf(other, sizeof other, "%s-more", name);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    must(fd, name);
    put(fd, 0, 700000, 1);
    put(fd, 10, 5000, 2);
    put(fd, 5 << 20, 5000, 3);
    must(pread(fd, piece, 600000, 100), "pread");
    must(lseek(fd, 300, SEEK_SET), "lseek");
    must(write(fd, piece, 20000), "write");
    int end = open(name, O_WRONLY | O_APPEND);
    must(end, "append");
    must(write(end, piece, 3000), "append");
    must(ftruncate(fd, 600123), "ftruncate");
    put(fd, 599000, 10000, 4);
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 50000, 300000), "punch");
    must(ftruncate(fd, 900000), "ftruncate");
    must(fsync(fd), "fsync");
    // A file that has grown gets its times at once.
    put(fd, 900000, 1000, 9);
    must(fsync(fd), "fsync");
    put(fd, 100, 100000, 5);
    int more = open(other, O_RDWR | O_CREAT, 0644);
    must(more, other);
    put(more, 0, 9000, 6);
    must(close(more), "close");
    must(more = open(other, O_RDWR | O_TRUNC), "O_TRUNC");
    put(more, 0, 5000, 7);
    must(rename(other, name) ? -1 : 0, "rename");
    must(close(more), "close");
    must(close(end), "close");
    must(close(fd), "close");
    must(fd = open(name, O_RDWR), "open");
    put(fd, 4000, 300000, 8);
    struct stat stat;
    must(fstat(fd, &stat), "fstat");
    must(unlink(other) && errno != ENOENT ? -1 : 0, "unlink");
    char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    must(map == MAP_FAILED ? -1 : 0, "mmap");
    piece[0] = (unsigned char)map[0];
    munmap(map, 4096);
    must(close(fd), "close");
    return 0;
}
