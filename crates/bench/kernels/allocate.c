/*
 * Hermes (HPDC'18), Figure 4: memory for data that is on its way to the disk. Two threads take
 * buffers with malloc, copy a write's data there if asked to, and give all of a burst back.
 *
 *     allocate LIBRARY BYTES OPERATIONS BURST COPY
 *
 * LIBRARY is a part of the name of the allocator's library, or -; it must have been loaded.
 * Prints nanoseconds of the slower thread.
 */
#define _GNU_SOURCE

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2, BURST_MAX = 1 << 16 };

static size_t bytes, operations, burst;
static int copies;
static pthread_barrier_t start;
static int64_t took_ns[THREADS];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "allocate: %s\n", what);
    exit(1);
}

static void *work(void *number)
{
    char **held = calloc(burst, sizeof *held), *data = malloc(bytes);
    if (!held || !data)
        die("no memory");
    memset(data, 0xa5, bytes);
    pthread_barrier_wait(&start);
    int64_t since = now_ns();
    for (size_t i = 0; i < operations; i++) {
        char **place = &held[i % burst];
        *place = malloc(bytes);
        if (!*place)
            die("no memory");
        if (copies)
            memcpy(*place, data, bytes);
        else
            **(char volatile **)place = 1;
        if (i % burst == burst - 1 || i == operations - 1)
            for (size_t j = 0; j <= i % burst; j++)
                free(held[j]);
    }
    took_ns[(size_t)number] = now_ns() - since;
    free(held);
    free(data);
    return NULL;
}

static void expect_library(const char *name)
{
    char line[1024];
    int found = strcmp(name, "-") == 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    if (maps)
        fclose(maps);
    if (!found)
        die("the allocator was not loaded");
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: allocate LIBRARY BYTES OPERATIONS BURST COPY\n");
        return 2;
    }
    expect_library(argv[1]);
    bytes = strtoull(argv[2], NULL, 10);
    operations = strtoull(argv[3], NULL, 10);
    burst = strtoull(argv[4], NULL, 10);
    copies = atoi(argv[5]);
    if (bytes == 0 || burst == 0 || burst > BURST_MAX)
        die("a number is out of range");
    pthread_t thread[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)i) != 0)
            die("no thread");
    int64_t longest = 0;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        if (took_ns[i] > longest)
            longest = took_ns[i];
    }
    printf("%" PRId64 "\n", longest);
    return 0;
}
