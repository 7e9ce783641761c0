/* Small writes that are made durable one by one, and changes of mode, between calls that a tracer
   finds: see house/syscalls.rs. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMES = 50, PAGE = 4096 };

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void mark(const char *name)
{
    access(name, F_OK);
}

static void write_all(int fd, int at)
{
    static char page[PAGE];
    page[0] = at;
    must(pwrite(fd, page, PAGE, at * PAGE) == PAGE, "pwrite");
}

int main(void)
{
    int fd = open("synced", O_RDWR | O_CREAT, 0644);
    must(fd >= 0, "open");
    for (int i = 0; i < TIMES; i++) {
        write_all(fd, i);
        if (i == 1)
            mark("fsync-begins");
        must(fsync(fd) == 0, "fsync");
    }
    mark("fsync-ends");
    for (int i = 0; i < TIMES; i++) {
        write_all(fd, i);
        must(fsync(fd) == 0, "fsync");
    }
    mark("again-ends");
    close(fd);
    mark("close-ends");

    fd = open("through", O_RDWR | O_CREAT | O_SYNC, 0644);
    must(fd >= 0, "open");
    for (int i = 0; i < TIMES; i++) {
        if (i == 1)
            mark("through-begins");
        write_all(fd, i);
    }
    mark("through-ends");

    int reader = open("synced", O_RDONLY);
    must(reader >= 0, "open");
    close(reader);
    mark("chmod-begins");
    must(chmod("through", 0644) == 0, "chmod");
    mark("chmod-ends");
    close(fd);

    char name[TIMES][16];
    for (int i = 0; i < TIMES; i++) {
        snprintf(name[i], sizeof name[i], "program-%d", i);
        must((fd = open(name[i], O_WRONLY | O_CREAT, 0644)) >= 0, "open");
        write_all(fd, 0);
        close(fd);
    }
    mark("execute-begins");
    for (int i = 0; i < TIMES; i++)
        must(chmod(name[i], 0755) == 0, "chmod");
    mark("execute-ends");
    return 0;
}
