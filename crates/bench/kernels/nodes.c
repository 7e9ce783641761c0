/*
 * What a program does on one of several nodes, as it is told, one command in a line of standard
 * input. Each is answered by a line of nanoseconds.
 *
 *     rate FILE BYTES COUNT            of a write, of a read; of a file that stays open
 *     opens PREFIX COUNT               of an open of a file, of a second open, of a stat
 *     read FILE BYTES COUNT            of a read, one after the other
 *     read-each PREFIX BYTES COUNT     of the first read of a file
 *     write FILE OFFSET STRIDE BYTES COUNT NUMBER    of an open and all writes together
 *     check FILE OFFSET STRIDE BYTES COUNT NUMBER    0; fails if such writes are not to be read
 */
#include "kernel.h"

#include <sys/stat.h>

enum { BATCHES = 15, FILE_BYTES = 8 << 20, FILES_MAX = 4096 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

static void rate(const char *path, size_t bytes, long count)
{
    char *memory = buffer(bytes);
    int file = open_file(path, O_RDWR | O_CREAT);
    long places = FILE_BYTES / (long)bytes;
    double took[2][BATCHES];
    for (long i = 0; i < places; i++)
        put(file, memory, bytes, i * (off_t)bytes);
    for (int batch = 0; batch < BATCHES; batch++) {
        int64_t since = now_ns();
        for (long i = 0; i < count; i++)
            put(file, memory, bytes, i % places * (off_t)bytes);
        int64_t between = now_ns();
        for (long i = 0; i < count; i++)
            get(file, memory, bytes, i % places * (off_t)bytes);
        took[WRITE][batch] = (double)(between - since) / (double)count;
        took[READ][batch] = (double)(now_ns() - between) / (double)count;
    }
    close_file(file);
    free(memory);
    printf("%.2f %.2f\n", median(took[WRITE], BATCHES), median(took[READ], BATCHES));
}

static void opens(const char *prefix, long count)
{
    static double took[3][FILES_MAX];
    if (count < 1 || count > FILES_MAX) {
        errno = EINVAL;
        fail("the number of files");
    }
    for (int again = 0; again < 2; again++)
        for (long i = 0; i < count; i++) {
            char path[4096];
            snprintf(path, sizeof path, "%s%ld", prefix, i);
            int64_t since = now_ns();
            int file = open_file(path, O_RDONLY);
            took[again][i] = (double)(now_ns() - since);
            if (again) {
                struct stat found;
                since = now_ns();
                if (stat(path, &found) != 0)
                    fail(path);
                took[2][i] = (double)(now_ns() - since);
            }
            close_file(file);
        }
    printf("%.2f %.2f %.2f\n", median(took[0], (size_t)count), median(took[1], (size_t)count),
           median(took[2], (size_t)count));
}

/* Of one file, or of each one. */
static void reads(const char *path, size_t bytes, long count, int each)
{
    static double took[FILES_MAX];
    if (count < 1 || count > FILES_MAX) {
        errno = EINVAL;
        fail("the number of reads");
    }
    char *memory = buffer(bytes);
    int file = each ? -1 : open_file(path, O_RDONLY);
    for (long i = 0; i < count; i++) {
        if (each) {
            char name[4200];
            snprintf(name, sizeof name, "%s%ld", path, i);
            file = open_file(name, O_RDONLY);
        }
        int64_t since = now_ns();
        get(file, memory, bytes, each ? 0 : i * (off_t)bytes);
        took[i] = (double)(now_ns() - since);
        if (each)
            close_file(file);
    }
    if (!each)
        close_file(file);
    free(memory);
    printf("%.2f\n", median(took, (size_t)count));
}

/* A piece follows from the number of its writer and from its own. */
static void pieces(const char *path, off_t offset, off_t stride, size_t bytes, long count,
                   long number, int is_check)
{
    char *memory = buffer(bytes), *wanted = buffer(bytes);
    int64_t since = now_ns();
    int file = open_file(path, is_check ? O_RDONLY : O_RDWR | O_CREAT);
    for (long i = 0; i < count; i++) {
        off_t at = offset + i * stride;
        memset(wanted, (int)(1 + 2 * (i % 100) + number), bytes);
        if (is_check) {
            get(file, memory, bytes, at);
            expect(memory, wanted, bytes, path);
        } else
            put(file, wanted, bytes, at);
    }
    int64_t took = is_check ? 0 : now_ns() - since;
    close_file(file);
    free(memory);
    free(wanted);
    printf("%" PRId64 "\n", took);
}

int main(void)
{
    char line[8192], path[4096];
    long offset, stride, bytes, count, number;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "rate %4095s %ld %ld", path, &bytes, &count) == 3)
            rate(path, (size_t)bytes, count);
        else if (sscanf(line, "opens %4095s %ld", path, &count) == 2)
            opens(path, count);
        else if (sscanf(line, "read %4095s %ld %ld", path, &bytes, &count) == 3)
            reads(path, (size_t)bytes, count, 0);
        else if (sscanf(line, "read-each %4095s %ld %ld", path, &bytes, &count) == 3)
            reads(path, (size_t)bytes, count, 1);
        else if (sscanf(line, "write %4095s %ld %ld %ld %ld %ld", path, &offset, &stride, &bytes,
                        &count, &number) == 6)
            pieces(path, offset, stride, (size_t)bytes, count, number, 0);
        else if (sscanf(line, "check %4095s %ld %ld %ld %ld %ld", path, &offset, &stride, &bytes,
                        &count, &number) == 6)
            pieces(path, offset, stride, (size_t)bytes, count, number, 1);
        else {
            fprintf(stderr, "nodes: no such command: %s", line);
            return 2;
        }
        fflush(stdout);
    }
    return 0;
}
