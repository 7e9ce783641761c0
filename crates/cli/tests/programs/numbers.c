/* A thread uses a number that was not managed when it looked, while another one makes it something else:
   numbers PART HELD LOG. Says what is wrong. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBER = 40 };

static const char *held, *list;
static int made;

static void must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* What a thread does that has found a descriptor not to be managed, and comes to the kernel only now. */
static long late_write(int fd, const char *bytes, unsigned long count) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(1L), "D"((long)fd), "S"(bytes), "d"(count)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = 64, first __asm__("x0") = fd;
    register const char *second __asm__("x1") = bytes;
    register unsigned long third __asm__("x2") = count;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second), "r"(third) : "memory");
    return first;
#endif
}

static void wait_for_pause(void) {
    FILE *log;
    while (!(log = fopen(list, "r")) || fgetc(log) == EOF) {
        if (log) fclose(log);
        usleep(1000);
    }
    fclose(log);
}

static void *park(void *unused) {
    for (;;) pause();
}

static void *duplicate(void *unused) {
    made = dup(NUMBER);
    return NULL;
}

static void *close_all(void *unused) {
    must(close_range(100, 120, 0) == 0, "close_range");
    return NULL;
}

static int file(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0, name);
    return fd;
}

static void replaced(void) {
    char seen[100] = {0};
    pthread_t other;
    pthread_create(&other, NULL, park, NULL);
    int fd = file("file");
    must(write(fd, "one\n", 4) == 4, "write");
    must(dup2(fd, NUMBER) == NUMBER, "dup2");
    must(late_write(NUMBER, "two\n", 4) == 4, "the write of a thread that came late");
    must(write(fd, "three\n", 6) == 6, "write");
    long got = pread(fd, seen, sizeof seen, 0);
    must(got == 14 && !strcmp(seen, "one\ntwo\nthree\n"), seen);
}

static void duplicated(void) {
    char seen[4] = {0};
    pthread_t other;
    int fd = file("file");
    must(write(fd, "one\n", 4) == 4, "write");
    pthread_create(&other, NULL, duplicate, NULL);
    wait_for_pause();
    must(dup2(fd, NUMBER) == NUMBER, "dup2");
    must(unlink(held) == 0, held);
    pthread_join(other, NULL);
    must(made >= 0, "dup");
    must(close(fd) == 0 && close(NUMBER) == 0, "close");
    /* The record of a file that no process has open would be gone by then. */
    sleep(2);
    must(system("printf ONE | dd of=file conv=notrunc status=none") == 0, "dd");
    must(pread(made, seen, 3, 0) == 3 && !strcmp(seen, "ONE"), seen);
}

static void ranged(void) {
    pthread_t other;
    struct stat status;
    uint64_t count = 7, seen = 0;
    int one = file("one"), two = file("two"), fd;
    must(fcntl(one, F_DUPFD, 100) == 100, "F_DUPFD");
    pthread_create(&other, NULL, close_all, NULL);
    wait_for_pause();
    must(fcntl(two, F_DUPFD, 102) == 102, "F_DUPFD");
    must(unlink(held) == 0, held);
    pthread_join(other, NULL);
    while ((fd = eventfd(0, EFD_NONBLOCK)) < 102) must(fd >= 0, "eventfd");
    must(fd == 102 && write(fd, &count, sizeof count) == sizeof count, "write");
    must(fstat(two, &status) == 0 && status.st_size == 0, "the write went to a file");
    must(read(fd, &seen, sizeof seen) == sizeof seen && seen == count, "read");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    held = argv[2];
    list = argv[3];
    int null = open("/dev/null", O_RDWR);
    must(dup2(null, NUMBER) == NUMBER, "dup2");
    if (!strcmp(argv[1], "replaced")) replaced();
    else if (!strcmp(argv[1], "duplicated")) duplicated();
    else ranged();
    puts("right");
    fflush(stdout);
    _exit(0);
}
