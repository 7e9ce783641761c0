/*
 * A simulation in phases: reads an index again and again, then computes and writes a file in each
 * phase, the last one larger than RAM.
 *
 *     phases DIR PHASES MIB PAUSE_MS
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char data[1 << 20];

static int opened(const char *folder, const char *name, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags, 0600);
    if (fd < 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

static void written(const char *folder, const char *name, size_t bytes)
{
    int fd = opened(folder, name, O_CREAT | O_TRUNC | O_WRONLY);
    while (bytes > 0) {
        size_t length = bytes < sizeof data ? bytes : sizeof data;
        ssize_t got = write(fd, data, length);
        if (got <= 0) {
            perror(name);
            exit(1);
        }
        bytes -= (size_t)got;
    }
    close(fd);
}

int main(int count, char **words)
{
    if (count != 5)
        return 2;
    const char *folder = words[1];
    int phases = atoi(words[2]);
    size_t mib = strtoul(words[3], NULL, 10);
    useconds_t pause = (useconds_t)atoi(words[4]) * 1000;
    memset(data, 'x', sizeof data);
    written(folder, "index", 512 << 10);
    for (int time = 0; time < 20; time++) {
        int fd = opened(folder, "index", O_RDONLY);
        while (read(fd, data, sizeof data) > 0)
            ;
        close(fd);
    }
    for (int phase = 0; phase < phases; phase++) {
        char name[32];
        snprintf(name, sizeof name, phase + 1 < phases ? "part%d" : "huge", phase);
        written(folder, name, (phase + 1 < phases ? mib : 3 * mib) << 20);
        usleep(pause);
    }
    return 0;
}
