/* Whether a file is direct while processes have it mapped, and buffered once none has: by system calls
 * that cannot be intercepted, this process sees what the store has.
 *
 *     unmaps CASE FILE                     prints what was seen
 *     unmaps race FILE WRITERS SECONDS     mappings come and go while the file is written
 *     unmaps wait                          what an exec leads to
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 4
static const char *name, *program;

static void need(int condition, const char *what)
{
    if (!condition) perror(what), exit(1);
}
#define NEED(condition) need((condition), #condition)

/* A system call that no library sees. */
static long raw(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long number_ __asm__("x8") = number;
    register long first __asm__("x0") = a, second __asm__("x1") = b, third __asm__("x2") = c,
                       fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number_), "r"(second), "r"(third), "r"(fourth)
                     : "memory");
    return first;
#endif
}

/* Where processes meet, each as often as the others. */
static struct shared {
    atomic_int step;
    atomic_int gone;
    atomic_ulong written[16];
} *shared;

static int store = -1;

/* Whether what is written goes to the store at once. */
static const char *written_to(int fd)
{
    static char last;
    char seen = 0;
    if (store < 0) store = raw(SYS_openat, AT_FDCWD, (long)name, O_RDONLY | O_CLOEXEC, 0);
    last++;
    NEED(pwrite(fd, &last, 1, 100) == 1);
    NEED(raw(SYS_pread64, store, (long)&seen, 1, 100) >= 0);
    char own = 0;
    NEED(pread(fd, &own, 1, 100) == 1 && own == last);
    return seen == last ? "direct" : "buffered";
}

/* What it comes to, within ten seconds. */
static const char *comes_to(int fd, const char *wanted)
{
    const char *state = "";
    for (int turn = 0; turn < 1000 && strcmp(state = written_to(fd), wanted); turn++) usleep(10000);
    return state;
}

/* That it is still direct after a time in which it would have been found unmapped. */
static const char *stays(int fd)
{
    for (int turn = 0; turn < 15; turn++) {
        const char *state = written_to(fd);
        if (strcmp(state, "direct")) return state;
        usleep(100000);
    }
    return "direct";
}

static char *map(int access)
{
    int fd = open(name, access & PROT_WRITE ? O_RDWR : O_RDONLY);
    char *at = mmap(NULL, PAGES * PAGE, access, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    close(fd);
    return at;
}

/* The next step of two processes. */
static void step(int number)
{
    while (atomic_load(&shared->step) < number) usleep(500);
}

static void go(int number)
{
    atomic_store(&shared->step, number);
}

/* Says whether a mapping shows a write of `fd` at once. */
static const char *shows(int fd, volatile char *map)
{
    static char last = 50;
    for (int turn = 0; turn < 100; turn++) {
        last++;
        char one = last;
        NEED(pwrite(fd, &one, 1, 3 * PAGE) == 1);
        if (map[3 * PAGE] != one) return "old bytes";
    }
    return "at once";
}

/* What the mapping process does, and the other finds. A step ends with a number of the other. */
static void mapper(const char *kind)
{
    char *at = map(strcmp(kind, "writable") ? PROT_READ : PROT_READ | PROT_WRITE);
    int fd = open(name, O_RDWR);
    printf("mapped: %s\n", shows(fd, at));
    if (!strcmp(kind, "fork") && fork() == 0) {
        step(4);
        printf("in the child: %s\n", shows(fd, at));
        munmap(at, PAGES * PAGE);
        go(5);
        step(7);
        _exit(0);
    }
    if (!strcmp(kind, "orphan") && fork() == 0) {
        step(4);
        printf("in the child: %s\n", shows(fd, at));
        _exit(0);
    }
    if (!strcmp(kind, "two") && fork() == 0) {
        char *own = map(PROT_READ);
        munmap(at, PAGES * PAGE);
        step(4);
        printf("in the other: %s\n", shows(fd, own));
        munmap(own, PAGES * PAGE);
        go(5);
        step(7);
        _exit(0);
    }
    go(1);
    step(2);
    if (!strcmp(kind, "exit")) _exit(0);
    if (!strcmp(kind, "orphan")) _exit(0);
    if (!strcmp(kind, "exec")) execl(program, program, "wait", NULL);
    if (!strcmp(kind, "kill")) pause();
    if (!strcmp(kind, "part")) {
        munmap(at, PAGE);
        printf("the rest: %s\n", shows(fd, at));
        munmap(at + PAGE, (PAGES - 1) * PAGE);
    } else if (!strcmp(kind, "fixed")) {
        NEED(mmap(at, PAGES * PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at);
    } else if (!strcmp(kind, "fixed-part")) {
        NEED(mmap(at, PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at);
        printf("the rest: %s\n", shows(fd, at));
    } else if (!strcmp(kind, "moved")) {
        char *to = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        to = mremap(at, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        NEED(to != MAP_FAILED && to != at);
        char *other = mmap(at, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        munmap(other, PAGES * PAGE);
        printf("where it is now: %s\n", shows(fd, to));
    } else if (!strcmp(kind, "doubled")) {
        char *to = mremap(at, 0, PAGES * PAGE, MREMAP_MAYMOVE);
        NEED(to != MAP_FAILED && to != at);
        munmap(at, PAGES * PAGE);
        printf("the double: %s\n", shows(fd, to));
    } else if (!strcmp(kind, "vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        waitpid(child, NULL, 0);
        printf("after a vfork: %s\n", shows(fd, at));
        munmap(at, PAGES * PAGE);
    } else if (!strcmp(kind, "writable")) {
        at[7] = 'w';
        munmap(at, PAGES * PAGE);
    } else if (!strcmp(kind, "twice")) {
        char *again = map(PROT_READ);
        munmap(at, PAGES * PAGE);
        printf("the other: %s\n", shows(fd, again));
        munmap(again, PAGES * PAGE);
    } else if (!strcmp(kind, "called")) {
        NEED(syscall(SYS_munmap, at, PAGES * PAGE) == 0);
    } else if (!strcmp(kind, "kernel")) {
        /* All files of this process are used through the kernel from here on. */
        syscall(SYS_io_uring_setup, 0, NULL);
        munmap(at, PAGES * PAGE);
    } else {
        munmap(at, PAGES * PAGE);
    }
    go(3);
    step(7);
    _exit(0);
}

static int one(const char *kind)
{
    static char bytes[PAGES * PAGE];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(write(fd, bytes, sizeof bytes) == sizeof bytes);
    printf("before: %s\n", written_to(fd));
    pid_t child = fork();
    if (child == 0) mapper(kind);
    step(1);
    printf("with a mapping: %s\n", written_to(fd));
    go(2);
    if (!strcmp(kind, "kill")) {
        kill(child, SIGKILL);
    } else if (strcmp(kind, "exit") && strcmp(kind, "exec") && strcmp(kind, "orphan")) {
        step(3);
    }
    int lasts = !strcmp(kind, "part") || !strcmp(kind, "fixed-part") || !strcmp(kind, "moved") ||
                !strcmp(kind, "doubled") || !strcmp(kind, "kernel");
    if (!strcmp(kind, "fork") || !strcmp(kind, "two")) {
        printf("with the other: %s\n", stays(fd));
            go(4);
        step(5);
    } else if (!strcmp(kind, "orphan")) {
        waitpid(child, NULL, 0);
        printf("with the child: %s\n", stays(fd));
            go(4);
    } else if (lasts) {
        printf("while it lives: %s\n", stays(fd));
            go(7);
        waitpid(child, NULL, 0);
    }
    if (!strcmp(kind, "kernel")) {
        /* It has to be closed everywhere, and that to be seen. */
        close(fd);
        sleep(4);
        fd = open(name, O_RDWR);
    }
    printf("after: %s\n", comes_to(fd, "buffered"));
    if (!strcmp(kind, "writable")) {
        char seen;
        NEED(pread(fd, &seen, 1, 7) == 1);
        printf("written by the mapping: %c\n", seen);
    }
    /* One that opens it finds it buffered, too. */
    int again = open(name, O_RDWR);
    printf("opened again: %s\n", written_to(again));
    go(7);
    kill(child, SIGKILL);
    return 0;
}

/* A writer of `race`: its own bytes, over and over. */
static void writes(int number)
{
    int fd = open(name, O_RDWR);
    uint64_t turn = 0;
    while (!atomic_load(&shared->gone)) {
        turn++;
        NEED(pwrite(fd, &turn, sizeof turn, number * 512) == sizeof turn);
        atomic_store(&shared->written[number], turn);
        uint64_t own = 0;
        NEED(pread(fd, &own, sizeof own, number * 512) == sizeof own);
        if (own != turn) printf("own bytes: %lu, not %lu\n", own, turn), exit(1);
        if (turn % 64 == 0) close(fd), fd = open(name, O_RDWR);
    }
    _exit(0);
}

static int writers;

static void look(volatile char *at)
{
    for (int turn = 0; turn < 200; turn++) {
        int number = turn % writers;
        uint64_t least = atomic_load(&shared->written[number]);
        uint64_t seen = *(volatile uint64_t *)(at + number * 512);
        if (seen < least) printf("mapped: %lu, not %lu\n", seen, least), abort();
    }
}

static void *maps_on(void *unused)
{
    for (;;) {
        char *at = map(PROT_READ);
        look(at);
        munmap(at, PAGES * PAGE);
    }
    return unused;
}

/* A process that maps: two threads do, and a third forks children that look, too. */
static void maps(void)
{
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, maps_on, NULL) == 0);
    while (!atomic_load(&shared->gone)) {
        char *at = map(PROT_READ);
        pid_t child = fork();
        if (child == 0) {
            look(at);
            munmap(at, PAGES * PAGE);
            _exit(0);
        }
        munmap(at, PAGES * PAGE);
        int status;
        NEED(waitpid(child, &status, 0) == child);
        if (status) printf("the child: %d\n", status), exit(1);
    }
    _exit(0);
}

static int race(int seconds)
{
    static char bytes[PAGES * PAGE];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), wrong = 0, kills = 0;
    NEED(write(fd, bytes, sizeof bytes) == sizeof bytes);
    close(fd);
    pid_t all[16];
    for (int number = 0; number < writers; number++)
        if ((all[number] = fork()) == 0) writes(number);
    time_t end = time(NULL) + seconds;
    srand(getpid());
    while (time(NULL) < end) {
        pid_t child = fork();
        if (child == 0) maps();
        usleep(rand() % 200000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) kills++;
        else wrong++;
    }
    atomic_store(&shared->gone, 1);
    for (int number = 0; number < writers; number++) {
        int status;
        waitpid(all[number], &status, 0);
        if (status) wrong++;
    }
    fd = open(name, O_RDONLY);
    for (int number = 0; number < writers; number++) {
        uint64_t last = 0;
        NEED(pread(fd, &last, sizeof last, number * 512) == sizeof last);
        if (last != atomic_load(&shared->written[number])) wrong++;
    }
    printf("wrong: %d\n", wrong);
    fprintf(stderr, "kills: %d\n", kills);
    return wrong || !kills;
}

int main(int count, char **words)
{
    if (count < 3) return pause();
    setvbuf(stdout, NULL, _IOLBF, 0);
    program = words[0];
    name = words[2];
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    if (!strcmp(words[1], "race")) {
        writers = atoi(words[3]);
        return race(atoi(words[4]));
    }
    return one(words[1]);
}
