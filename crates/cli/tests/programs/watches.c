/* What a program that watches files is told, and what it then finds on the store.
 *
 *     watches FILE NEW
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int events;

/* A system call that no library sees. */
static long raw(long number, long a, long b, long c, long d)
{
#ifdef __x86_64__
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long number_ __asm__("x8") = number;
    register long first __asm__("x0") = a, second __asm__("x1") = b, third __asm__("x2") = c,
                       fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number_), "r"(second), "r"(third), "r"(fourth)
                     : "memory");
    return first;
#endif
}

/* What the store has of a file. */
static long stored(const char *name, char *bytes, long length)
{
    long fd = raw(SYS_openat, AT_FDCWD, (long)name, O_RDONLY, 0);
    long got = raw(SYS_pread64, fd, (long)bytes, length, 0);
    raw(SYS_close, fd, 0, 0, 0);
    return got;
}

/* Waits for an IN_MODIFY of `wanted`, or of the watched file itself. */
static void told(const char *what, const char *wanted)
{
    char room[4096] __attribute__((aligned(8)));
    struct pollfd ready = {events, POLLIN, 0};
    for (;;) {
        if (poll(&ready, 1, 20000) != 1) {
            printf("%s: told of nothing\n", what);
            exit(1);
        }
        long got = read(events, room, sizeof room);
        for (char *at = room; at < room + got;) {
            struct inotify_event *event = (void *)at;
            at += sizeof *event + event->len;
            const char *name = event->len ? event->name : "";
            if (event->mask & IN_MODIFY && strcmp(name, wanted) == 0) {
                printf("%s: told\n", what);
                return;
            }
        }
    }
}

static void expect(const char *what, const char *name, const char *bytes, long length)
{
    static char seen[4 << 20];
    for (int turn = 0; turn < 2000; turn++) {
        if (stored(name, seen, sizeof seen) == length && memcmp(seen, bytes, length) == 0) {
            printf("%s: there\n", what);
            return;
        }
        /* More than the writer brings there itself may take a moment. */
        usleep(5000);
    }
    printf("%s: not there\n", what);
    exit(1);
}

static void elsewhere(const char *name, const char *text)
{
    fflush(stdout);
    if (fork() == 0) {
        int fd = open(name, O_WRONLY | O_CREAT, 0644);
        _exit(write(fd, text, strlen(text)) != (long)strlen(text));
    }
    wait(NULL);
}

int main(int argc, char **argv)
{
    static char large[3 << 20];
    if (argc < 3) return 2;
    const char *file = argv[1], *fresh = argv[2];
    memset(large, 'l', sizeof large);
    int before = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
    events = inotify_init1(IN_CLOEXEC);
    int watch = inotify_add_watch(events, file, IN_MODIFY);
    if (watch < 0) return 3;
    elsewhere(file, "first");
    told("another process", "");
    expect("another process", file, "first", 5);
    pwrite(before, "F", 1, 0);
    told("a descriptor from before", "");
    expect("a descriptor from before", file, "First", 5);
    pwrite(before, large, sizeof large, 0);
    told("much", "");
    expect("much", file, large, sizeof large);
    inotify_rm_watch(events, watch);
    inotify_add_watch(events, ".", IN_MODIFY);
    elsewhere(fresh, "new");
    told("a new file", fresh);
    expect("a new file", fresh, "new", 3);
    FILE *stream = fopen(fresh, "a");
    fputs(" line", stream);
    fflush(stream);
    told("a stream", fresh);
    expect("a stream", fresh, "new line", 8);
    return 0;
}
