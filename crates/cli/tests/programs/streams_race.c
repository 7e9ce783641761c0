// Threads open and close streams and descriptors, of files that are buffered and of others, so that numbers of descriptors go
// from one to the other all the time. Each writes files of its own and looks whether they have what it wrote.
// streams_race ELSEWHERE SEED ROUNDS
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 6, KINDS = 6 };

static const char *elsewhere;
static unsigned seed;
static int rounds;

static void fail(const char *what, int thread, int round)
{
    fprintf(stderr, "%s: thread %d round %d seed %u: %m\n", what, thread, round, seed);
    _exit(1);
}

static void *work(void *argument)
{
    int thread = (int)(long)argument;
    unsigned random = seed * 31 + thread;
    for (int round = 0; round < rounds; round++) {
        int kind = rand_r(&random) % KINDS;
        char name[4096], text[64], got[64] = "";
        int length = snprintf(text, sizeof text, "thread %d round %d\n", thread, round);
        if (kind == 0 || kind == 3)
            snprintf(name, sizeof name, "%s/other-%d", elsewhere, thread);
        else
            snprintf(name, sizeof name, "file-%d-%d", thread, round % 5);
        FILE *stream = NULL;
        int fd = -1;
        switch (kind) {
        case 0:
        case 1:
            stream = fopen(name, "w");
            break;
        case 2:
        case 3:
            fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
            break;
        case 4:
            fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
            if (fd >= 0)
                stream = fdopen(fd, "w");
            break;
        case 5:
            stream = fopen("/dev/null", "w");
            if (stream)
                stream = freopen(name, "w", stream);
            break;
        }
        if (!stream && fd < 0)
            fail("open", thread, round);
        if (stream) {
            if (fputs(text, stream) < 0)
                fail("fputs", thread, round);
            if (fclose(stream))
                fail("fclose", thread, round);
        } else {
            if (write(fd, text, length) != length)
                fail("write", thread, round);
            if (close(fd))
                fail("close", thread, round);
        }
        stream = rand_r(&random) % 2 ? fopen(name, "r") : NULL;
        if (stream) {
            if (!fgets(got, sizeof got, stream) || fclose(stream))
                fail("fgets", thread, round);
        } else {
            fd = open(name, O_RDONLY);
            if (fd < 0 || read(fd, got, sizeof got - 1) != length || close(fd))
                fail("read", thread, round);
        }
        if (strcmp(got, text)) {
            fprintf(stderr, "%s has %s", name, got);
            fail("compare", thread, round);
        }
    }
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[THREADS];
    if (count != 4)
        return 2;
    elsewhere = words[1];
    seed = atoi(words[2]);
    rounds = atoi(words[3]);
    for (long thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, work, (void *)thread))
            return 2;
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    return 0;
}
