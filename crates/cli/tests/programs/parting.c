/* A thread uses a descriptor that another one closes or replaces: parting HOW KIND HELD LOG. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Descriptions that there are, and files that others have open. */
enum { ALL = 16384, OTHERS = 200, RECORDS = 4000, THREADS = 3 };

static const char *kind, *held, *list;
static int fd;
static long result;
static int error;

static void must(long done, const char *what) {
    if (done < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static int file(const char *name, int number, int flags) {
    char path[100];
    snprintf(path, sizeof path, "%s-%d", name, number);
    int opened = open(path, flags | O_CREAT, 0644);
    must(opened, path);
    return opened;
}

static void *use(void *unused) {
    (void)unused;
    if (!strcmp(kind, "pwrite")) result = pwrite(fd, "late", 4, 0);
    else if (!strcmp(kind, "lseek")) result = lseek(fd, 4, SEEK_CUR);
    else if (!strcmp(kind, "ftruncate")) result = ftruncate(fd, 1);
    else result = write(fd, "late", 4);
    error = errno;
    return NULL;
}

static void wait_for_pause(void) {
    FILE *log;
    while (!(log = fopen(list, "r")) || fgetc(log) == EOF) {
        if (log) fclose(log);
        usleep(1000);
    }
    fclose(log);
}

/* Uses the description and the record of a closed file again, each of others, and goes on when told. */
static void be_others(int ready, int go) {
    static int opened[OTHERS];
    char byte = 0;
    for (int turn = 0; turn < ALL - OTHERS / 2; turn++) {
        must(close(file("spin", 0, O_RDWR)), "spin");
        // The manager frees them now and then.
        if (turn % 4000 == 0) usleep(200000);
    }
    for (int k = 0; k < OTHERS; k++) {
        opened[k] = file("other", k, O_RDWR);
        must(write(opened[k], "first ", 6), "write");
    }
    must(write(ready, &byte, 1), "pipe");
    must(read(go, &byte, 1), "pipe");
    for (int k = 0; k < OTHERS; k++) must(write(opened[k], "second\n", 7), "write");
    exit(0);
}

static void is(const char *name, int number, const char *wanted) {
    char got[100] = {0};
    int opened = file(name, number, O_RDONLY);
    long size = lseek(opened, 0, SEEK_END);
    must(pread(opened, got, sizeof got - 1, 0), "pread");
    if (size != (long)strlen(wanted) || strcmp(got, wanted)) {
        printf("%s-%d has %ld bytes: %s\n", name, number, size, got);
    }
    close(opened);
}

/* The thread pauses after it has looked the descriptor up. */
static void closed(void) {
    pthread_t thread;
    int ready[2], go[2];
    char byte = 0;
    must(pipe(ready) | pipe(go), "pipe");
    fd = file("victim", 0, O_RDWR | (strcmp(kind, "append") ? 0 : O_APPEND));
    must(-pthread_create(&thread, NULL, use, NULL), "thread");
    wait_for_pause();
    must(close(fd), "close");
    usleep(200000);
    pid_t child = fork();
    must(child, "fork");
    if (child == 0) be_others(ready[1], go[0]);
    close(ready[1]);
    must(read(ready[0], &byte, 1) == 1 ? 0 : -1, "others");
    must(unlink(held), held);
    pthread_join(thread, NULL);
    if (result != -1 || error != EBADF) printf("%ld, %s\n", result, strerror(error));
    must(write(go[1], &byte, 1), "pipe");
    must(waitpid(child, NULL, 0), "wait");
    is("victim", 0, "");
    is("spin", 0, "");
    for (int k = 0; k < OTHERS; k++) is("other", k, "first second\n");
}

static void *replace(void *unused) {
    (void)unused;
    int other = file("new", 0, O_RDWR);
    must(write(other, "new ", 4), "write");
    if (!strcmp(kind, "close")) must(close(fd), "close");
    else must(dup2(other, fd), "dup2");
    return NULL;
}

/* The thread that closes or replaces the descriptor pauses. */
static void replaced(void) {
    pthread_t replacing, using;
    fd = file("old", 0, O_RDWR);
    must(write(fd, "old ", 4), "write");
    must(-pthread_create(&replacing, NULL, replace, NULL), "thread");
    wait_for_pause();
    must(-pthread_create(&using, NULL, use, NULL), "thread");
    usleep(100000);
    must(unlink(held), held);
    pthread_join(using, NULL);
    pthread_join(replacing, NULL);
    int closes = !strcmp(kind, "close");
    if (closes ? result != -1 || error != EBADF : result != 4) {
        printf("%ld, %s\n", result, strerror(error));
    }
    is("old", 0, "old ");
    is("new", 0, closes ? "new " : "new late");
}

static volatile int ended;

static void *write_records(void *number) {
    char record[9];
    for (int k = 0; k < RECORDS; k++) {
        snprintf(record, sizeof record, "%ld%06d\n", (long)number, k);
        if (write(fd, record, 8) != 8) printf("%s: %s\n", record, strerror(errno));
    }
    __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Threads write records while the descriptor is one file and then the other. */
static void rotated(void) {
    pthread_t threads[THREADS];
    static char seen[THREADS][RECORDS];
    int files[2] = {file("log", 0, O_RDWR), file("log", 1, O_RDWR)}, found = 0;
    must(fd = dup(files[0]), "dup");
    for (long k = 0; k < THREADS; k++) must(-pthread_create(threads + k, NULL, write_records, (void *)k), "thread");
    for (int turn = 1; ended < THREADS; turn++) {
        must(dup2(files[turn % 2], fd), "dup2");
        usleep(50);
    }
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    for (int k = 0; k < 2; k++) {
        long size = lseek(files[k], 0, SEEK_END);
        if (size > 8L * THREADS * RECORDS) printf("log-%d has %ld bytes\n", k, size), exit(1);
        for (long at = 0; at < size; at += 8) {
            char record[9] = {0};
            must(pread(files[k], record, 8, at), "pread");
            int thread = record[0] - '0', number = atoi(record + 1);
            if (record[7] != '\n' || thread < 0 || thread >= THREADS || number >= RECORDS || seen[thread][number]++) {
                printf("log-%d at %ld: %s\n", k, at, record);
            } else {
                found++;
            }
        }
    }
    if (found != THREADS * RECORDS) printf("%d records\n", found);
}

int main(int argc, char **argv) {
    (void)argc;
    kind = argv[2], held = argv[3], list = argv[4];
    if (!strcmp(argv[1], "closed")) closed();
    else if (!strcmp(argv[1], "replaced")) replaced();
    else rotated();
    return 0;
}
