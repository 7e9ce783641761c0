/* Forks until no more children are to be had, and starts a program; then again after one of them has ended:
   crowd PROGRAM ARGUMENT; or forks as many once more when all of them have ended: crowd again. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void end_all(void) {
    for (int i = 0; i < count; i++) kill(children[i], SIGKILL);
    while (count > 0) waitpid(children[--count], NULL, 0);
}

static int again(void) {
    fill();
    int first = count;
    end_all();
    fill();
    int second = count;
    end_all();
    fprintf(stderr, "%d, then %s\n", first, second >= first ? "as many" : "fewer");
    return second < first;
}

int main(int argc, char **argv) {
    char *nothing[] = {"true", NULL};
    if (argc == 2 && !strcmp(argv[1], "again")) return again();
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
    end_all();
    return first != 126 || second != 0;
}
