/* A counter in a file, raised by many processes and threads under a lock. Prints its end.
 *
 *     locks KIND ACCESS FILE PROCESSES THREADS TURNS
 *
 * KIND: flock, fcntl, ofd. ACCESS: plain (read, write), positioned (pread, pwrite), partial (for writing only; what
 * is there is read by another descriptor), stdio (fread, fwrite, fflush), probe (as positioned, with a
 * SEEK_DATA under the lock).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *kind, *access_kind, *name;
static int turns;
static pthread_mutex_t inside = PTHREAD_MUTEX_INITIALIZER;

static void set(int fd, int type)
{
    if (!strcmp(kind, "flock")) {
        while (flock(fd, type == F_UNLCK ? LOCK_UN : LOCK_EX)) {}
        return;
    }
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    /* fcntl locks are the process's: its threads need one of their own. */
    if (!strcmp(kind, "fcntl") && type == F_WRLCK) pthread_mutex_lock(&inside);
    while (fcntl(fd, strcmp(kind, "ofd") ? F_SETLKW : F_OFD_SETLKW, &lock)) {
        if (errno != EINTR) perror("lock"), exit(1);
    }
    if (!strcmp(kind, "fcntl") && type == F_UNLCK) pthread_mutex_unlock(&inside);
}

static void *work(void *nothing)
{
    int partial = !strcmp(access_kind, "partial"), stream = !strcmp(access_kind, "stdio");
    /* A descriptor that is closed would end the process's fcntl locks. */
    static int reader = -1;
    pthread_mutex_lock(&inside);
    if (reader < 0) reader = open(name, O_RDONLY);
    pthread_mutex_unlock(&inside);
    int fd = open(name, partial ? O_WRONLY : O_RDWR);
    FILE *file = stream ? fdopen(fd, "r+") : NULL;
    for (int turn = 0; turn < turns; turn++) {
        char text[32] = "";
        set(fd, F_WRLCK);
        if (stream) {
            fseek(file, 0, SEEK_SET), fread(text, 1, 20, file);
        } else if (!strcmp(access_kind, "plain")) {
            lseek(fd, 0, SEEK_SET), read(fd, text, 20);
        } else {
            if (!strcmp(access_kind, "probe")) lseek(fd, 0, SEEK_DATA);
            pread(partial ? reader : fd, text, 20, 0);
        }
        sprintf(text, "%019ld\n", atol(text) + 1);
        if (stream) {
            fseek(file, 0, SEEK_SET), fwrite(text, 1, 20, file), fflush(file);
            /* What is read ahead is of before the lock. */
            fseek(file, 0, SEEK_END);
        } else if (!strcmp(access_kind, "plain")) {
            lseek(fd, 0, SEEK_SET), write(fd, text, 20);
        } else {
            pwrite(fd, text, 20, 0);
        }
        set(fd, F_UNLCK);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 7) return 2;
    kind = argv[1], access_kind = argv[2], name = argv[3];
    int processes = atoi(argv[4]), threads = atoi(argv[5]);
    turns = atoi(argv[6]);
    close(open(name, O_RDWR | O_CREAT, 0644));
    for (int process = 0; process < processes; process++)
        if (fork() == 0) {
            pthread_t started[64];
            for (int thread = 0; thread < threads; thread++) pthread_create(&started[thread], NULL, work, NULL);
            for (int thread = 0; thread < threads; thread++) pthread_join(started[thread], NULL);
            _exit(0);
        }
    int status, failed = 0;
    while (wait(&status) > 0) failed |= status;
    char text[32] = "";
    pread(open(name, O_RDONLY), text, 20, 0);
    printf("%s %s: %ld %d\n", kind, access_kind, atol(text), failed);
    return 0;
}
