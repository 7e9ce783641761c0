/* Forks until no more children are to be had, and starts a program; then again after one of them has ended:
   crowd PROGRAM ARGUMENT. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static pid_t children[4096];

static int start(char **words) {
    pid_t pid;
    int status;
    /* Its slot is the new program's own: it claims one when it starts. */
    if (posix_spawnp(&pid, words[0], NULL, NULL, words, environ)) return -1;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

static int count;

static void fill(void) {
    while (count < 4096) {
        pid_t child = fork();
        if (child == 0) for (;;) pause();
        if (child < 0) break;
        children[count++] = child;
    }
}

int main(int argc, char **argv) {
    char *nothing[] = {"true", NULL};
    if (argc < 3) return 2;
    fill();
    int refused = errno;
    /* Slots of processes that ended before this one began may come back until now. */
    for (int turns = 0; start(nothing) == 0 && turns < 50; turns++) {
        usleep(100000);
        fill();
    }
    int first = start(argv + 1);
    fprintf(stderr, "%s after %d, then %d\n", refused == EAGAIN ? "EAGAIN" : "another error", count, first);
    kill(children[--count], SIGKILL);
    waitpid(children[count], NULL, 0);
    /* The node manager takes the ended one's slot back when it gets to it. */
    int second = 126, turns = 0;
    while (second == 126 && turns++ < 20) second = start(argv + 1);
    fprintf(stderr, "then %d\n", second);
    while (count > 0) {
        kill(children[--count], SIGKILL);
        waitpid(children[count], NULL, 0);
    }
    return first != 126 || second != 0;
}
