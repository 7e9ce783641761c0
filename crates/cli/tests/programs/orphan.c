/* A child goes on with a file that has no name after its parent's death: orphan RESULT [hidden]. Hidden, other
   processes of its user cannot look into it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char written[150001], seen[150002];

int main(int argc, char **argv) {
    int fd = open("victim", O_RDWR | O_CREAT, 0600);
    if (argc > 2 && prctl(PR_SET_DUMPABLE, 0)) return 1;
    if (argc < 2 || fd < 0 || unlink("victim")) return 1;
    for (size_t at = 0; at < sizeof written; at++) written[at] = (char)(at * 7 + at / 251 | 1);
    if (write(fd, written, 100000) != 100000) return 1;
    pid_t child = fork();
    if (child != 0) return child < 0 || waitpid(child, NULL, 0) != child;
    long rest = write(fd, written + 100000, 50001), got = pread(fd, seen, sizeof seen, 0);
    int whole = rest == 50001 && got == 150001 && !memcmp(seen, written, sizeof written);
    FILE *result = fopen(argv[1], "w");
    fprintf(result, whole ? "whole\n" : "%ld %ld\n", rest, got);
    return fclose(result);
}
