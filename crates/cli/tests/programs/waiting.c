/* Makes one call that has to wait, and tells what came of it: waiting HOW CALL PATH.
 * HOW: "end" installs a handler of SIGUSR1 without SA_RESTART, "restart" one with it, "jump" one that jumps away;
 * "timer" has signals come all the time, whose handler has it.
 * Prints "ready", "signal" for each that was handled, and at last the call's errno, the bytes of "part", or 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef FIGETBSZ
#define FIGETBSZ _IO(0x00, 2)
#endif

static int jumps;
static sigjmp_buf out;

static void tick(int number) {
    (void)number;
}

static void handle(int number) {
    (void)number;
    (void)!write(1, "signal\n", 7);
    if (jumps) siglongjmp(out, 1);
}

static long call(const char *name, const char *path, int fd) {
    static char piece[300000];
    long result = 0;
    struct stat stat;
    if (!strcmp(name, "pwrite")) result = pwrite(fd, piece, 100, 300 << 10);
    else if (!strncmp(name, "append", 6)) result = write(fd, piece, 100);
    else if (!strcmp(name, "dsync-append")) {
        struct iovec one = {piece, 100};
        result = pwritev2(fd, &one, 1, -1, RWF_DSYNC | RWF_APPEND);
    } else if (!strcmp(name, "stream-append")) {
        FILE *stream = fdopen(fd, "a");
        fwrite(piece, 1, 100, stream);
        result = fflush(stream);
    } else if (!strcmp(name, "syncfs")) result = syncfs(fd);
    else if (!strcmp(name, "sync")) sync();
    else if (!strcmp(name, "write-0")) result = pwrite(fd, piece, 100, 0);
    else if (!strcmp(name, "read-0")) result = pread(fd, piece, 100, 0);
    else if (!strcmp(name, "beyond")) result = pwrite(fd, piece, 100, 8 << 20);
    else if (!strcmp(name, "sync-write")) result = pwrite(fd, piece, 100, 0);
    else if (!strcmp(name, "part")) result = pwrite(fd, piece, 300000, (256 << 10) - 200000);
    else if (!strcmp(name, "pread")) result = pread(fd, piece, 100, 300 << 10);
    else if (!strcmp(name, "fsync")) result = fsync(fd);
    else if (!strcmp(name, "ftruncate")) result = ftruncate(fd, 5000);
    else if (!strcmp(name, "punch"))
        result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
    else if (!strcmp(name, "ioctl")) {
        int block;
        result = ioctl(fd, FIGETBSZ, &block);
    } else if (!strcmp(name, "mmap")) {
        if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) result = -1;
    } else if (!strcmp(name, "lseek")) result = lseek(3, 0, SEEK_CUR);
    else if (!strcmp(name, "write")) result = write(3, piece, 100);
    else if (!strcmp(name, "read")) result = read(3, piece, 100);
    else if (!strcmp(name, "cut")) result = open(path, O_RDWR | O_TRUNC);
    else if (!strcmp(name, "open")) result = open(path, O_RDWR);
    else if (!strcmp(name, "stat")) result = lstat(path, &stat);
    else if (!strcmp(name, "utimens")) result = utimensat(AT_FDCWD, path, NULL, 0);
    else exit(2);
    return result;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    struct sigaction action = {.sa_handler = handle};
    if (!strcmp(argv[1], "restart")) action.sa_flags = SA_RESTART;
    jumps = !strcmp(argv[1], "jump");
    if (!strcmp(argv[1], "timer")) {
        struct sigaction ticking = {.sa_handler = tick, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &ticking, NULL);
        struct itimerval often = {{0, 10000}, {0, 10000}};
        setitimer(ITIMER_REAL, &often, NULL);
    }
    sigaction(SIGUSR1, &action, NULL);
    int flags = O_RDWR, opens = strcmp(argv[2], "cut") && strcmp(argv[2], "open") &&
                                strcmp(argv[2], "stat") && strcmp(argv[2], "utimens");
    if (strstr(argv[2], "append")) flags |= O_APPEND;
    if (strstr(argv[2], "sync-write")) flags |= O_SYNC;
    if (!strcmp(argv[2], "append-dsync") || !strcmp(argv[2], "stream-append")) flags |= O_DSYNC;
    if (!strcmp(argv[2], "append-sync")) flags |= O_SYNC;
    int fd = opens ? open(argv[3], flags) : -1;
    if (opens && fd < 0) return 3;
    printf("ready\n");
    fflush(stdout);
    errno = 0;
    if (sigsetjmp(out, 1)) {
        printf("jumped\n");
        return 0;
    }
    long result = call(argv[2], argv[3], fd);
    if (result >= 0 && !strcmp(argv[2], "part")) printf("%ld\n", result);
    else printf("%s\n", result < 0 ? strerrorname_np(errno) : "0");
    return 0;
}
