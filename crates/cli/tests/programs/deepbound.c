/* A library: counts the bytes of a file that are an x. */
#include <fcntl.h>
#include <unistd.h>

long count(const char *path) {
    char text[4096];
    long found = 0, got;
    int fd = open(path, O_RDONLY);
    while (fd >= 0 && (got = read(fd, text, sizeof text)) > 0)
        for (long at = 0; at < got; at++) found += text[at] == 'x';
    close(fd);
    return found;
}
