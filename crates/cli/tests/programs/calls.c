/* Makes one kind of call again and again on FILE, whose first MiB is written, or stat of this program, which is not managed: for counting
   instructions. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char buffer[4096];

int main(int count, char **words)
{
    if (count != 4)
        return 1;
    const char *path = words[1], *kind = words[2];
    int turns = atoi(words[3]);
    int fd = open(path, O_CREAT | O_RDWR, 0644);
    FILE *stream = fopen(path, "r+");
    if (fd < 0 || !stream)
        return 1;
    memset(buffer, 7, sizeof buffer);
    for (int i = 0; i < 256; i++)
        if (write(fd, buffer, sizeof buffer) != sizeof buffer)
            return 1;
    lseek(fd, 0, SEEK_SET);
    fread(buffer, 64, 1, stream);
    rewind(stream);
#define REPEAT(name, call, wanted)                     \
    if (!strcmp(kind, name))                           \
        for (int i = 0; i < turns; i++)                \
            if ((long)(call) != (wanted))              \
                return 1;
    REPEAT("pwrite64", pwrite(fd, buffer, 64, i * 64 % (1 << 20)), 64)
    REPEAT("pread64", pread(fd, buffer, 64, i * 64 % (1 << 20)), 64)
    REPEAT("write64", write(fd, buffer, 64), 64)
    REPEAT("read64", read(fd, buffer, 64), 64)
    REPEAT("fwrite64", fwrite(buffer, 64, 1, stream), 1)
    REPEAT("fread64", fread(buffer, 64, 1, stream), 1)
    REPEAT("pwrite4096", pwrite(fd, buffer, 4096, i * 4096 % (1 << 20)), 4096)
    REPEAT("pread4096", pread(fd, buffer, 4096, i * 4096 % (1 << 20)), 4096)
    struct stat found;
    REPEAT("stat", stat(words[0], &found), 0)
    REPEAT("open", close(open(path, O_RDWR)), 0)
    REPEAT("truncate", ftruncate(fd, i % 2 ? 1 << 20 : 1 << 19), 0)
    REPEAT("map", munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0), 4096), 0)
    return 0;
}
