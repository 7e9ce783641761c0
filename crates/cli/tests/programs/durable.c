/* Does what a script says, one line at a time, says how many lines are done, and then waits to be
 * killed. Every line opens the file by its name and closes it, unless it was kept open by `k`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char kept_name[200];
static int kept = -1;

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
    exit(1);
}

static int file(const char *name, int flags, int line) {
    int fd = strcmp(name, kept_name) == 0 && !(flags & O_TRUNC) ? dup(kept) : -1;
    if (fd < 0)
        fd = open(name, O_RDWR | O_CREAT | flags, 0644);
    if (fd < 0)
        fail(name, line);
    return fd;
}

static void put(int fd, long offset, long bytes, int byte, int line) {
    char *data = malloc(bytes);
    for (long i = 0; i < bytes; i++)
        data[i] = (char)(byte + (i + offset) / 7);
    if (pwrite(fd, data, bytes, offset) != bytes)
        fail("write", line);
    free(data);
}

int main(int count, char **words) {
    char text[600], op, a[200], b[200];
    long x, y, z;
    int line = 0, code = 0;
    FILE *script = count > 1 ? fopen(words[1], "r") : NULL;
    if (script == NULL)
        return 2;
    while (fgets(text, sizeof text, script)) {
        int fd = -1;
        line++;
        x = y = z = 0;
        op = text[0];
        if (op == 'm' || op == 'l')
            sscanf(text, "%c %199s %199s", &op, a, b);
        else
            sscanf(text, "%c %199s %ld %ld %ld", &op, a, &x, &y, &z);
        switch (op) {
        case 'w': /* write FILE OFFSET BYTES BYTE */
            put(fd = file(a, 0, line), x, y, z, line);
            break;
        case 'o': /* truncate by open, write FILE BYTES BYTE */
            put(fd = file(a, O_TRUNC, line), 0, x, y, line);
            break;
        case 'd': { /* as w, with O_DSYNC */
            fd = open(a, O_RDWR | O_CREAT | O_DSYNC, 0644);
            put(fd, x, y, z, line);
            break;
        }
        case 't': /* truncate FILE SIZE */
            if (ftruncate(fd = file(a, 0, line), x))
                fail("ftruncate", line);
            break;
        case 'p': /* punch FILE OFFSET BYTES */
            if (fallocate(fd = file(a, 0, line), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, x, y))
                fail("fallocate", line);
            break;
        case 'm': /* rename FILE FILE */
            if (rename(a, b))
                fail("rename", line);
            break;
        case 'u': /* unlink FILE */
            if (unlink(a))
                fail("unlink", line);
            break;
        case 's': /* fsync FILE */
            if (fsync(fd = file(a, 0, line)))
                fail("fsync", line);
            break;
        case 'k': /* keep FILE open */
            strcpy(kept_name, a);
            kept = file(a, 0, line);
            break;
        case 'f': /* bring FILE to the store */
            snprintf(text, sizeof text, "\"$FOREBAY\" flush '%s' >&2", a);
            if (system(text))
                fail("flush", line);
            break;
        case 'h': /* wait until FILE is there */
            while (access(a, F_OK))
                usleep(2000);
            break;
        default:
            return 2;
        }
        if (fd >= 0)
            close(fd);
        printf("%d\n", line);
        fflush(stdout);
    }
    puts("done");
    fflush(stdout);
    pause();
    return code;
}
