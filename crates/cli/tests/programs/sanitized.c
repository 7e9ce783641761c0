/* Linked with the runtime of AddressSanitizer, which wants to be the first library of all. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

static void ignore(int number)
{
    (void)number;
}

/* What it writes on the stack, the parent finds there. */
__attribute__((noinline)) static void execute(void)
{
    char command[300];
    snprintf(command, sizeof command, "exit %d", 3);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(99);
}

int main(int count, char **names)
{
    enum { SIZE = 1 << 20 };
    char *written = malloc(SIZE), *read_back = malloc(SIZE);
    CHECK(count == 2 && written && read_back);
    for (int at = 0; at < SIZE; at++)
        written[at] = (char)(at * 7);
    int fd = open(names[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, written, SIZE) == SIZE);
    CHECK(pread(fd, read_back, SIZE, 0) == SIZE);
    CHECK(memcmp(written, read_back, SIZE) == 0);
    CHECK(close(fd) == 0);
    free(written);
    free(read_back);
    /* What it starts was not linked with the runtime, and has none. */
    fflush(stdout);
    CHECK(system("! grep -q libasan /proc/self/maps") == 0);
    for (int handled = 0; handled < 2; handled++) {
        int status = -1;
        pid_t child = vfork();
        if (child == 0)
            execute();
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
        signal(SIGUSR1, ignore);
    }
    if (getenv("ONCE") == NULL) {
        setenv("ONCE", "", 1);
        CHECK(system("$BIN/sanitized again") == 0);
    }
    return 0;
}
