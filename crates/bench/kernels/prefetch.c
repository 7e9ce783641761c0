/*
 * Reads blocks of a file in a pattern, each at once, and takes a given time for each of them:
 *
 *     prefetch FILE PATTERN BLOCKS NANOSECONDS WAITS
 *
 * A read of more than WAITS nanoseconds has waited for what is slower than memory. The first quarter
 * warms up. Prints the reads after that, how many of them waited, and the nanoseconds of all.
 */
#include "kernel.h"

#define BLOCK ((size_t)256 << 10)

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wait_until(int64_t ns)
{
    struct timespec t = { ns / 1000000000, ns % 1000000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

/* The block of read n of so many. */
static uint64_t block_of(const char *pattern, uint64_t n, uint64_t count)
{
    static uint64_t state = 88172645463325252;
    if (strcmp(pattern, "sequence") == 0)
        return n;
    if (strcmp(pattern, "backwards") == 0)
        return count - 1 - n;
    if (strcmp(pattern, "stride") == 0)
        return n * 3;
    if (strcmp(pattern, "tile") == 0)
        return n / 16 * 64 + n % 16 * 3;
    if (strcmp(pattern, "random") != 0)
        fail(pattern);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % (count * 4);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: prefetch FILE PATTERN BLOCKS NANOSECONDS WAITS\n");
        return 2;
    }
    uint64_t count = strtoull(argv[3], NULL, 10);
    int64_t takes = strtoll(argv[4], NULL, 10), waits = strtoll(argv[5], NULL, 10);
    char *buffer = malloc(BLOCK);
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0 || buffer == NULL)
        fail(argv[1]);
    memset(buffer, 1, BLOCK);
    int64_t begun = 0;
    uint64_t waited = 0;
    for (uint64_t n = 0; n < count; n++) {
        int64_t start = now_ns();
        if (n == count / 4)
            begun = start;
        off_t at = (off_t)(block_of(argv[2], n, count) * BLOCK);
        if (pread(fd, buffer, BLOCK, at) != (ssize_t)BLOCK)
            fail(argv[1]);
        int64_t end = now_ns();
        waited += n >= count / 4 && end - start > waits;
        if (takes > 0)
            wait_until(end + takes);
    }
    printf("%llu %llu %lld\n", (unsigned long long)(count - count / 4), (unsigned long long)waited,
           (long long)(now_ns() - begun));
    return 0;
}
