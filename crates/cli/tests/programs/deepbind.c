/* Loads a library from beside it with RTLD_DEEPBIND, which reads what the program has written. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char text[4096];
    memset(text, 'x', sizeof text);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, sizeof text) != sizeof text) return 1;
    /* By its name alone: it is looked for where this program says. */
    void *library = dlopen("deepbound", RTLD_NOW | RTLD_DEEPBIND);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    long (*count)(const char *) = (long (*)(const char *))dlsym(library, "count");
    printf("%ld of %zu\n", count(argv[1]), sizeof text);
    return close(fd);
}
