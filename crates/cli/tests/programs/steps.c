/* Does what its arguments say, one step each, and prints each step with its errno's name, or 0:
 *   open:N:PATH  write:N:KIB  fsync:N  close:N  wait:PATH (until it is there)  gone:PATH (until it is not)
 *   touch:PATH  rm:PATH  check:N (what was written through N can be read)
 * and through the kernel, which does not see what is buffered:
 *   freopen:N:PATH (reads through a stream of glibc's what N has written)  submit:N (io_submit of no read)
 *   addopen:PATH (posix_spawn_file_actions_addopen)
 * The bytes that N writes depend on N and on where they are. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fds[16];
static long sizes[16];

static unsigned char byte_of(int n, long at) { return (unsigned char)(at * 7 + (at >> 9) + n * 31); }

static int write_to(int n, long kib) {
    char piece[1024];
    for (long k = 0; k < kib; k++) {
        for (int i = 0; i < 1024; i++) piece[i] = byte_of(n, sizes[n] + i);
        for (int done = 0; done < 1024;) {
            ssize_t wrote = write(fds[n], piece + done, 1024 - done);
            if (wrote <= 0) return -1;
            done += wrote;
            sizes[n] += wrote;
        }
    }
    return 0;
}

static int check(int n) {
    char piece[1024];
    for (long at = 0; at < sizes[n]; at += 1024) {
        if (pread(fds[n], piece, 1024, at) != 1024) return -1;
        for (int i = 0; i < 1024; i++)
            if ((unsigned char)piece[i] != byte_of(n, at + i)) {
                errno = EILSEQ;
                return -1;
            }
    }
    return 0;
}

static int read_stream(int n, const char *path) {
    unsigned char piece[1024];
    FILE *stream = freopen(path, "r", fopen("/dev/null", "r"));
    if (!stream) return -1;
    size_t got = fread(piece, 1, sizeof piece, stream);
    int same = got == sizeof piece;
    for (int i = 0; same && i < 1024; i++) same = piece[i] == byte_of(n, i);
    fclose(stream);
    if (!same) errno = EILSEQ;
    return same ? 0 : -1;
}

/* The library's own, which calls libaio's. */
extern int io_submit(void *context, long number, void **blocks) __attribute__((weak));

/* A context that is none: what gets as far as the kernel is refused with EINVAL, and without libaio with ENOSYS. */
static int submit(int n) {
    unsigned char block[64] = {0};
    void *blocks[] = {block};
    memcpy(block + 20, &fds[n], sizeof fds[n]);
    int result = io_submit ? io_submit(NULL, 1, blocks) : -ENOSYS;
    errno = -result;
    return result < 0 ? -1 : 0;
}

static int add_open(const char *path) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    errno = posix_spawn_file_actions_addopen(&actions, 0, path, O_RDONLY, 0);
    posix_spawn_file_actions_destroy(&actions);
    return errno ? -1 : 0;
}

int main(int argc, char **argv) {
    for (int step = 1; step < argc; step++) {
        char *word = argv[step], *rest = strchr(word, ':');
        int result = 0, n;
        if (!rest) return 2;
        *rest++ = 0;
        n = atoi(rest);
        char *more = strchr(rest, ':');
        errno = 0;
        if (!strcmp(word, "open")) result = fds[n] = open(more + 1, O_RDWR | O_CREAT, 0644);
        else if (!strcmp(word, "write")) result = write_to(n, atol(more + 1));
        else if (!strcmp(word, "check")) result = check(n);
        else if (!strcmp(word, "freopen")) result = read_stream(n, more + 1);
        else if (!strcmp(word, "submit")) result = submit(n);
        else if (!strcmp(word, "addopen")) result = add_open(rest);
        else if (!strcmp(word, "fsync")) result = fsync(fds[n]);
        else if (!strcmp(word, "close")) result = close(fds[n]);
        else if (!strcmp(word, "touch")) result = open(rest, O_WRONLY | O_CREAT, 0644);
        else if (!strcmp(word, "rm")) result = unlink(rest);
        else if (!strcmp(word, "wait")) while (access(rest, F_OK)) usleep(5000);
        else if (!strcmp(word, "gone")) while (!access(rest, F_OK)) usleep(5000);
        else return 2;
        printf("%s %s\n", word, result < 0 ? strerrorname_np(errno) : "0");
        fflush(stdout);
    }
    return 0;
}
