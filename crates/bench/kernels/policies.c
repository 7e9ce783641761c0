/*
 * What a placement policy makes a difference to: ranks that compute and write a file each, again and
 * again (Hermes, Figure 8); an index that is read again and again, files that fit, and one that
 * is larger than the fast tiers; a set that is read beside a stream; one large write.
 *
 *     policies DIR WORK MIB
 *
 * MIB is the size of the fastest tier; all sizes follow from it. Prints lines of a name, bytes and
 * nanoseconds.
 */
#include "kernel.h"

#include <sys/stat.h>
#include <sys/wait.h>

#define RANKS 4
#define STEPS 24

static char *content;
static size_t content_bytes;
static char path[4096];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int opened(const char *folder, const char *name, int flags)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags, 0600);
    if (fd < 0)
        fail(path);
    return fd;
}

/* Writes so many bytes in calls of at most `piece`. Returns the time of the calls. */
static int64_t written(const char *folder, const char *name, size_t bytes, size_t piece)
{
    int fd = opened(folder, name, O_CREAT | O_TRUNC | O_WRONLY);
    int64_t took = 0;
    for (size_t done = 0; done < bytes;) {
        size_t left = bytes - done, length = left < piece ? left : piece;
        int64_t start = now_ns();
        ssize_t got = write(fd, content + done % content_bytes, length);
        took += now_ns() - start;
        if (got <= 0)
            fail(path);
        done += (size_t)got;
    }
    close(fd);
    return took;
}

static int64_t read_whole(const char *folder, const char *name, size_t piece)
{
    int fd = opened(folder, name, O_RDONLY);
    int64_t start = now_ns();
    ssize_t got;
    while ((got = read(fd, content, piece)) > 0)
        ;
    if (got < 0)
        fail(path);
    int64_t took = now_ns() - start;
    close(fd);
    return took;
}

static void say(const char *what, size_t bytes, int64_t ns)
{
    printf("%s %zu %" PRId64 "\n", what, bytes, ns > 0 ? ns : 1);
}

/* One rank's steps, each of computing and of a file. Returns the time of its writes. */
static int64_t steps_of(int rank, const char *folder, size_t bytes, int pause_ms)
{
    char name[24];
    int64_t took = 0;
    for (int step = 0; step < STEPS; step++) {
        if (pause_ms > 0)
            usleep((useconds_t)pause_ms * 1000);
        snprintf(name, sizeof name, "%d.%d", step, rank);
        took += written(folder, name, bytes, 1 << 20);
    }
    return took;
}

/* Four ranks that compute and write, until RAM could have been filled six times. No file is large
 * beside any tier. The time is that of the slowest rank. */
static void write_in_steps(const char *folder, size_t mib, int pause_ms)
{
    size_t bytes = mib << 16;
    int ends[2];
    if (pipe(ends) != 0)
        fail("pipe");
    for (int rank = 0; rank < RANKS; rank++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            int64_t took = steps_of(rank, folder, bytes, pause_ms);
            _exit(write(ends[1], &took, sizeof took) == sizeof took ? 0 : 1);
        }
    }
    close(ends[1]);
    int64_t took, most = 0;
    int heard = 0;
    for (; read(ends[0], &took, sizeof took) == sizeof took; heard++)
        if (took > most)
            most = took;
    while (wait(NULL) > 0)
        ;
    if (heard < RANKS) {
        fprintf(stderr, "only %d of %d ranks ended well\n", heard, RANKS);
        exit(1);
    }
    say("write", (size_t)(STEPS * RANKS) * bytes, most);
}

/* The index, the files that fit, the huge one. */
static void write_all(const char *folder, size_t mib)
{
    size_t index = mib << 14, part = mib << 18, huge = mib * 75 / 16 << 20;
    int64_t took = written(folder, "index", index, 1 << 20);
    for (int time = 0; time < 60; time++)
        read_whole(folder, "index", 1 << 20);
    char name[16];
    for (int number = 1; number <= 6; number++) {
        snprintf(name, sizeof name, "part%d", number);
        took += written(folder, name, part, 1 << 20);
    }
    took += written(folder, "huge", huge, 1 << 20);
    say("write", index + 6 * part + huge, took);
}

/* A set that is read in each turn of a stream that is not. */
static void read_beside_stream(const char *folder, size_t mib)
{
    size_t hot = mib / 2 << 20, cold = mib / 4 << 20;
    char name[16];
    int64_t took = 0;
    written(folder, "hot", hot, 1 << 20);
    for (int time = 0; time < 10; time++)
        read_whole(folder, "hot", 1 << 20);
    int turns = 12;
    for (int turn = 0; turn < turns; turn++) {
        snprintf(name, sizeof name, "cold%d", turn);
        written(folder, name, cold, 1 << 20);
        took += read_whole(folder, "hot", 1 << 20);
    }
    say("read", hot * (size_t)turns, took);
}

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "policies DIR WORK MIB\n");
        return 2;
    }
    const char *folder = words[1], *work = words[2];
    size_t mib = strtoul(words[3], NULL, 10);
    /* More than one level of cache, so that sources are as cold as a program's. */
    content_bytes = !strcmp(work, "large") ? mib * 5 / 2 << 20 : 64u << 20;
    content = malloc(content_bytes);
    if (!content)
        fail("malloc");
    memset(content, 'x', content_bytes);
    if (!strcmp(work, "data")) {
        write_in_steps(folder, mib, 0);
    } else if (!strcmp(work, "compute")) {
        write_in_steps(folder, mib, 150);
    } else if (!strcmp(work, "mixed")) {
        write_all(folder, mib);
    } else if (!strcmp(work, "hot")) {
        read_beside_stream(folder, mib);
    } else if (!strcmp(work, "large")) {
        size_t bytes = content_bytes / 2;
        /* So that memory and devices have been used once, as what follows is compared with a copy
         * to memory that has. The node manager takes a moment to forget the file. */
        written(folder, "large", content_bytes, content_bytes);
        snprintf(path, sizeof path, "%s/large", folder);
        if (unlink(path) != 0)
            fail(path);
        sleep(1);
        memcpy(content, content + bytes, bytes);
        int64_t start = now_ns();
        memcpy(content, content + bytes, bytes);
        say("memcpy", bytes, now_ns() - start);
        start = now_ns();
        int64_t took = written(folder, "large", content_bytes, content_bytes);
        say("write", content_bytes, took);
    } else {
        fprintf(stderr, "%s: no such work\n", work);
        return 2;
    }
    return 0;
}
