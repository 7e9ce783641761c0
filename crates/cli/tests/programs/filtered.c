/* A program that lets itself be killed for system calls that it does not make: it has threads and
 * files, but no events. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SYS_open
#define OPEN SYS_open
#else
#define OPEN SYS_eventfd2
#endif

static const char *name;

static void *use(void *unused)
{
    char bytes[4096], found[4096];
    int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0644);
    memset(bytes, 'x', sizeof bytes);
    if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes)
        return NULL;
    if (pread(fd, found, sizeof found, 0) != sizeof found || memcmp(bytes, found, sizeof found))
        return NULL;
    return close(fd) == 0 ? &name : unused;
}

int main(int count, char **names)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_eventfd2, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OPEN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    pthread_t thread;
    void *done = NULL;
    name = names[count - 1];
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("prctl");
        return 2;
    }
    if (pthread_create(&thread, NULL, use, NULL) || pthread_join(thread, &done) || !done)
        return 1;
    puts("done");
    return 0;
}
