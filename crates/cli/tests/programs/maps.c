/* Mappings mixed with reads and writes, by several processes. Prints what each saw.
 *
 *     maps FILE
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
static sigjmp_buf back;
static const char *name;

static void caught(int signal)
{
    siglongjmp(back, 1);
}

/* A byte of memory, or "bus". */
static const char *at(const char *map, long offset)
{
    static char text[8];
    if (sigsetjmp(back, 1)) return "bus";
    sprintf(text, "%d", ((volatile char *)map)[offset]);
    return text;
}

static int fresh(long length, char with)
{
    unlink(name);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    char *bytes = malloc(length + 1);
    memset(bytes, with, length);
    write(fd, bytes, length);
    free(bytes);
    return fd;
}

static void *map(int fd, long length, int how, int access)
{
    void *at = mmap(NULL, length, access, how, fd, 0);
    if (at == MAP_FAILED) printf("mmap: %s\n", strerror(errno)), exit(1);
    return at;
}

static int byte(int fd, long offset)
{
    char one = -1;
    return pread(fd, &one, 1, offset) == 1 ? one : -100;
}

/* Runs `act` in a process of its own. */
static void elsewhere(void (*act)(void))
{
    fflush(stdout);
    if (fork() == 0) act(), fflush(stdout), _exit(0);
    wait(NULL);
}

static void other_writes(void)
{
    int fd = open(name, O_RDWR);
    pwrite(fd, "\x21", 1, 100), pwrite(fd, "\x22", 1, PAGE + 5);
}

static void other_reads(void)
{
    int fd = open(name, O_RDONLY);
    char *seen = map(fd, 2 * PAGE, MAP_SHARED, PROT_READ);
    char *own = map(fd, 2 * PAGE, MAP_PRIVATE, PROT_READ | PROT_WRITE);
    own[7] = 99;
    printf("elsewhere: %d %d %s", byte(fd, 7), byte(fd, PAGE + 7), at(seen, 7));
    printf(" %s\n", at(seen, PAGE + 7));
}

static void other_truncates(void)
{
    truncate(name, PAGE + 10);
}

static void other_grows(void)
{
    int fd = open(name, O_RDWR);
    ftruncate(fd, 3 * PAGE), pwrite(fd, "\x33", 1, 2 * PAGE);
}

int main(int argc, char **argv)
{
    name = argv[1];
    signal(SIGBUS, caught);

    int fd = fresh(2 * PAGE, 1);
    char *own = map(fd, 2 * PAGE, MAP_PRIVATE, PROT_READ | PROT_WRITE);
    char *seen = map(fd, 2 * PAGE, MAP_SHARED, PROT_READ);
    printf("buffered bytes: %s", at(own, 5)), printf(" %s\n", at(seen, PAGE + 5));
    pwrite(fd, "\x02", 1, 5), elsewhere(other_writes);
    printf("written later: %s", at(seen, 5)), printf(" %s", at(own, 5)), printf(" %s", at(seen, 100));
    printf(" %s\n", at(seen, PAGE + 5));
    own[50] = 77;
    printf("private: %d\n", byte(fd, 50));
    munmap(own, 2 * PAGE), munmap(seen, 2 * PAGE), close(fd);

    fd = fresh(2 * PAGE, 1);
    char *shared = map(fd, 2 * PAGE, MAP_SHARED, PROT_READ | PROT_WRITE);
    shared[7] = 8, shared[PAGE + 7] = 9;
    printf("through the mapping: %d %d\n", byte(fd, 7), byte(fd, PAGE + 7));
    elsewhere(other_reads), elsewhere(other_writes);
    printf("from elsewhere: %s", at(shared, 100)), printf(" %s\n", at(shared, PAGE + 5));
    printf("msync %d, munmap of a part %d\n", msync(shared, 2 * PAGE, MS_SYNC), munmap(shared, PAGE));
    shared[PAGE + 8] = 10;
    printf("the rest: %d\n", byte(fd, PAGE + 8));
    close(fd);
    shared[PAGE + 9] = 11;
    elsewhere(other_reads);
    fd = open(name, O_RDWR);
    printf("after the close: %d\n", byte(fd, PAGE + 9));
    pwrite(fd, "\x0c", 1, PAGE + 10);
    printf("another descriptor: %s\n", at(shared, PAGE + 10));
    fflush(stdout);
    if (fork() == 0) {
        shared[PAGE + 11] = 13;
        pwrite(fd, "\x0e", 1, PAGE + 12);
        _exit(0);
    }
    wait(NULL);
    printf("from a child: %d %s\n", byte(fd, PAGE + 11), at(shared, PAGE + 12));
    munmap(shared + PAGE, PAGE);
    pwrite(fd, "\x0f", 1, 3);
    printf("without mapping: %d\n", byte(fd, 3));
    close(fd);

    fd = fresh(PAGE + 10, 1);
    shared = map(fd, 4 * PAGE, MAP_SHARED, PROT_READ | PROT_WRITE);
    printf("behind the end: %s", at(shared, PAGE + 10)), printf(" %s\n", at(shared, 2 * PAGE));
    shared[PAGE + 20] = 5;
    elsewhere(other_grows);
    printf("grown: %s", at(shared, 2 * PAGE)), printf(" %s\n", at(shared, 3 * PAGE));
    elsewhere(other_truncates);
    printf("cut: %s", at(shared, PAGE + 9)), printf(" %s\n", at(shared, 2 * PAGE));
    ftruncate(fd, 0);
    printf("empty: %s\n", at(shared, 0));
    write(fd, "x", 0), pwrite(fd, "again", 5, 0);
    printf("written: %s", at(shared, 0)), printf(" %s\n", at(shared, 5));
    ftruncate(fd, 6 * PAGE);
    char *moved = mremap(shared, 4 * PAGE, 6 * PAGE, MREMAP_MAYMOVE);
    moved[5 * PAGE] = 42;
    printf("grown mapping: %d %s\n", byte(fd, 5 * PAGE), at(moved, 0));
    moved = mremap(moved, 6 * PAGE, PAGE, 0);
    pwrite(fd, "shrunk", 6, 0);
    printf("shrunk mapping: %s\n", at(moved, 0));
    struct stat found;
    fstat(fd, &found);
    printf("size %ld\n", (long)found.st_size);
    munmap(moved, PAGE), close(fd);

    /* A private mapping that was there before the bytes. */
    fd = fresh(0, 0);
    own = map(fd, 2 * PAGE, MAP_PRIVATE, PROT_READ);
    char bytes[PAGE + 100];
    memset(bytes, 3, sizeof bytes), write(fd, bytes, sizeof bytes);
    printf("mapped before: %s", at(own, 0)), printf(" %s\n", at(own, PAGE + 50));
    close(fd);

    /* What the kernel refuses. */
    int in = open(name, O_RDONLY), out = open(name, O_WRONLY);
    printf("%d", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, in, 0) == MAP_FAILED);
    printf(" %s", strerror(errno));
    printf(" %d", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, out, 0) == MAP_FAILED);
    printf(" %s", strerror(errno));
    printf(" %d", mmap(NULL, PAGE, PROT_READ, MAP_SHARED, in, 1) == MAP_FAILED);
    printf(" %s", strerror(errno));
    printf(" %d", mmap(NULL, 0, PROT_READ, MAP_SHARED, in, 0) == MAP_FAILED);
    printf(" %s\n", strerror(errno));

    /* Four processes: each raises its own counters in the mapping and by pwrite. */
    fd = fresh(4 * PAGE, 0);
    fflush(stdout);
    for (int who = 0; who < 4; who++)
        if (fork() == 0) {
            int here = open(name, O_RDWR);
            uint32_t *words = map(here, 4 * PAGE, MAP_SHARED, PROT_READ | PROT_WRITE), next;
            for (int turn = 0; turn < 5000; turn++) {
                __atomic_fetch_add(&words[who], 1, __ATOMIC_SEQ_CST);
                __atomic_fetch_add(&words[8], 1, __ATOMIC_SEQ_CST);
                pread(here, &next, 4, PAGE + 4 * who), next++, pwrite(here, &next, 4, PAGE + 4 * who);
            }
            if (who % 2) munmap(words, 4 * PAGE);
            _exit(0);
        }
    while (wait(NULL) > 0) {}
    uint32_t sums[PAGE / 2];
    pread(fd, sums, sizeof sums, 0);
    printf("%u %u %u %u, %u; %u %u\n", sums[0], sums[1], sums[2], sums[3], sums[8], sums[1024], sums[1027]);
    close(fd);
    return 0;
}
