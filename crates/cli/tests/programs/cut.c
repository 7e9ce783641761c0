/* Executes a shell's script while a thread is in the middle of a truncate: cut FILE LOG SCRIPT. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int fd;

static void *cut(void *unused) {
    ftruncate(fd, 100);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t other;
    FILE *log;
    if (argc != 4 || (fd = open(argv[1], O_RDWR | O_CLOEXEC)) < 0) return 1;
    pthread_create(&other, NULL, cut, NULL);
    while (!(log = fopen(argv[2], "r")) || fgetc(log) == EOF) {
        if (log) fclose(log);
        usleep(1000);
    }
    execlp("bash", "bash", "-c", argv[3], NULL);
    return 1;
}
