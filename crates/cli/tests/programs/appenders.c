/* Threads that append records to one file: `own` with a description each, `one` with one for all. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *file;
static int shared = -1;
static int records;

static void *append(void *number)
{
    int fd = shared >= 0 ? shared : open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    char record[32];
    for (int i = 0; i < records; i++) {
        int length = snprintf(record, sizeof record, "%03d %05d record\n", (int)(long)number, i);
        if (write(fd, record, length) != length) {
            perror("write");
            exit(1);
        }
    }
    if (shared < 0)
        close(fd);
    return NULL;
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    file = words[1];
    int threads = atoi(words[2]);
    records = atoi(words[3]);
    if (strcmp(file, "one") == 0)
        shared = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    pthread_t *all = calloc(threads, sizeof *all);
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, append, (void *)i);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    off_t size = shared >= 0 ? lseek(shared, 0, SEEK_END) : 0;
    printf("%ld\n", (long)size);
    /* The order is that of the threads' luck. */
    return shared >= 0 ? unlink(file) : 0;
}
