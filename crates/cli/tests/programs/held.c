/* Which process has a lock when the descriptor it was taken through has gone: says what another
 * process gets.
 *
 *     held ways FILES TIMEOUT       each kind of lock, given up in each way
 *     held turns FILE               a file opened, locked, written and closed again and again
 *     held conversions FILE         shared locks that become exclusive ones, and back
 *
 * MANAGER names a process that is stopped meanwhile. TIMEOUT: ms that a lock on a file that no
 * process may open again may outlast its process (see docs/posix.md); negative if that is not to be
 * tried.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int asks[2], answers[2];
static const char *base;
static char name[4096];

static int number_in(const char *variable)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

static void ended(void)
{
    if (number_in("MANAGER")) kill(number_in("MANAGER"), SIGCONT);
}

/* A question: which kind of lock, whether a shared one would do, and of which file. */
struct question {
    char kind, shared, name[200];
};

static int take(int fd, char kind, int shared)
{
    struct flock whole = {.l_type = shared ? F_RDLCK : F_WRLCK, .l_whence = SEEK_SET};
    switch (kind) {
    case 'f': return flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB);
    case 'o': return fcntl(fd, F_OFD_SETLK, &whole);
    case 'p': return fcntl(fd, F_SETLK, &whole);
    case 'L': return lockf64(fd, F_TLOCK, 0);
    default: return lockf(fd, F_TLOCK, 0);
    }
}

/* The other process. */
static void observe(void)
{
    struct question question;
    while (read(asks[0], &question, sizeof question) == sizeof question) {
        /* What cannot be opened for writing is asked for a shared lock, which an exclusive one
         * refuses. */
        int fd = open(question.name, question.shared ? O_RDONLY : O_RDWR);
        char answer = fd < 0 ? '?' : take(fd, question.kind, question.shared) ? 'n' : 'y';
        close(fd);
        write(answers[1], &answer, 1);
    }
    _exit(0);
}

static char ask(char kind, int shared)
{
    struct question question = {.kind = kind == 'l' || kind == 'L' ? 'p' : kind, .shared = shared};
    char answer = '-';
    snprintf(question.name, sizeof question.name, "%s", name);
    write(asks[1], &question, sizeof question);
    read(answers[0], &answer, 1);
    return answer;
}

static char ask_for(char kind, int shared, int ms)
{
    char answer = ask(kind, shared);
    for (int i = 0; i < ms && answer == 'n'; i++) usleep(1000), answer = ask(kind, shared);
    return answer;
}

/* Takes a lock on a fresh file that is written before or after; `access`: usual, mute (for writing
   only, and no process may open it so again), or reader (which has the file read ahead). */
static int begin(const char *access, char kind, int locks_first)
{
    int reads = !strcmp(access, "reader"), mute = !strcmp(access, "mute");
    if (reads) {
        int fd = open(name, O_RDWR | O_CREAT, 0644);
        ftruncate(fd, 200000), pwrite(fd, "data", 4, 100000), close(fd);
    }
    int flags = mute ? O_WRONLY | O_CREAT | O_EXCL : reads ? O_RDONLY : O_RDWR | O_CREAT;
    int fd = open(name, flags, mute ? 0444 : 0644);
    if (fd < 0) perror(name), exit(1);
    int failed = 0;
    if (locks_first) failed |= take(fd, kind, reads);
    if (reads) posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    else failed |= write(fd, "text", 4) != 4;
    if (!locks_first) failed |= take(fd, kind, reads);
    if (failed) printf("begin %s %c: %s\n", access, kind, strerror(errno));
    return fd;
}

static void pass_to_ourselves(int fd, char kind, int shared)
{
    int pair[2];
    char byte = 'x', space[CMSG_SPACE(sizeof(int))] = "";
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    message.msg_control = space, message.msg_controllen = sizeof space;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    sendmsg(pair[0], &message, 0);
    close(fd);
    printf(" %c", ask(kind, shared));
    recvmsg(pair[1], &message, 0);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    printf(" %c", ask(kind, shared));
    close(fd), close(pair[0]), close(pair[1]);
}

static void give_up(const char *way, int fd, char kind, int shared)
{
    int other;
    pid_t child;
    if (!strcmp(way, "close")) {
        close(fd);
    } else if (!strcmp(way, "dup2")) {
        other = open("/dev/null", O_RDONLY), dup2(other, fd), close(other), close(fd);
    } else if (!strcmp(way, "dup3")) {
        other = open("/dev/null", O_RDONLY), dup3(other, fd, O_CLOEXEC), close(other), close(fd);
    } else if (!strcmp(way, "range")) {
        close_range(fd, fd, 0);
    } else if (!strcmp(way, "unlock")) {
        struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
        kind == 'f' ? flock(fd, LOCK_UN) : fcntl(fd, F_OFD_SETLK, &whole);
    } else if (!strcmp(way, "dup")) {
        other = dup(fd), close(fd);
        printf(" %c", ask(kind, shared));
        close(other);
    } else if (!strcmp(way, "fork")) {
        int go[2];
        pipe(go);
        if (!(child = fork())) {
            char byte;
            close(go[1]), read(go[0], &byte, 1), close(fd), _exit(0);
        }
        close(fd), close(go[0]);
        printf(" %c", ask(kind, shared));
        close(go[1]), waitpid(child, NULL, 0);
    } else if (!strcmp(way, "passed")) {
        pass_to_ourselves(fd, kind, shared);
    }
}

/* In a child: the process ends, or becomes another program. */
static void give_up_in_child(const char *way, const char *access, char kind, int locks_first)
{
    int ready[2], go[2], shared = strcmp(access, "usual") != 0, reads = !strcmp(access, "reader");
    char byte;
    pipe2(ready, O_CLOEXEC), pipe(go);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int fd = begin(access, kind, locks_first);
        fflush(stdout);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        write(ready[1], "r", 1), close(go[1]), read(go[0], &byte, 1);
        if (!strcmp(way, "kill")) kill(getpid(), SIGKILL);
        if (!strcmp(way, "exit")) exit(0);
        if (!strcmp(way, "_exit")) _exit(0);
        execlp("sleep", "sleep", "60", NULL);
        _exit(1);
    }
    close(ready[1]), read(ready[0], &byte, 1);
    printf(" %c", ask(kind, shared && !reads));
    close(go[0]), close(go[1]);
    if (!strcmp(way, "exec")) {
        /* It ends with the exec. */
        read(ready[0], &byte, 1);
        printf(" %c", ask_for(kind, shared && !reads, 2000));
        kill(child, SIGKILL);
    }
    waitpid(child, NULL, 0), close(ready[0]);
}

static int ways(int timeout)
{
    const char *all[] = {"close", "dup2",   "dup3", "range", "unlock", "dup",
                         "fork",  "passed", "exit", "_exit", "kill",   "exec"};
    const char *accesses[] = {"usual", "mute", "reader"};
    int serial = 0;
    for (int access = 0; access < 3; access++)
        for (const char *kind = "fo"; *kind; kind++)
            for (int locks_first = 0; locks_first < 2; locks_first++)
                for (int way = 0; way < 12; way++) {
                    int in_child = way >= 8, mute = access == 1;
                    /* Only the manager can end such locks. */
                    if (in_child && mute && timeout < 0) continue;
                    snprintf(name, sizeof name, "%s-%d", base, serial++);
                    printf("%s %c %d %s:", accesses[access], *kind, locks_first, all[way]);
                    int shared = access == 1;
                    if (in_child) {
                        give_up_in_child(all[way], accesses[access], *kind, locks_first);
                    } else {
                        int fd = begin(accesses[access], *kind, locks_first);
                        printf(" %c", ask(*kind, shared));
                        give_up(all[way], fd, *kind, shared);
                    }
                    printf(" %c\n", ask_for(*kind, shared, in_child && mute ? timeout : 0));
                    unlink(name);
                }
    /* Locks of the process end with any descriptor of the file: none of ours may be closed. */
    for (const char *kind = "plL"; *kind; kind++)
        for (int access = 0; access < 3; access += 2) {
            snprintf(name, sizeof name, "%s-%d", base, serial++);
            /* It needs a descriptor for writing. */
            if (access == 2 && *kind != 'p') continue;
            int fd = begin(accesses[access], *kind, 1);
            printf("%s %c: %c", accesses[access], *kind, ask(*kind, 0));
            close(fd);
            printf(" %c\n", ask(*kind, 0));
            unlink(name);
        }
    return 0;
}

static int turns(void)
{
    int failed = 0;
    for (int turn = 0; turn < 100; turn++) {
        int fd = open(name, O_RDWR | O_CREAT, 0644);
        failed += flock(fd, LOCK_EX | LOCK_NB) != 0;
        failed += pwrite(fd, &turn, sizeof turn, turn * sizeof turn) != sizeof turn;
        turn % 3 ? close(fd) : (dup2(asks[0], fd), close(fd));
        int value = -1;
        fd = open(name, O_RDONLY);
        failed += flock(fd, LOCK_SH | LOCK_NB) != 0;
        off_t at = turn * sizeof turn;
        failed += pread(fd, &value, sizeof value, at) != sizeof value || value != turn;
        close(fd);
    }
    printf("%d failed\n", failed);
    unlink(name);
    return 0;
}

static int conversions(void)
{
    int one = open(name, O_RDWR | O_CREAT, 0644), two = open(name, O_RDWR);
    write(one, "one", 3), write(two, "two", 3);
    for (const char *kind = "fo"; *kind; kind++) {
        printf("%c: %d", *kind, take(one, *kind, 1));
        printf(" %d", take(two, *kind, 1));
        printf(" %d", take(one, *kind, 0));
        close(two);
        /* The kernel may have given the old lock up before it tried for the new one. */
        printf(" %d", take(one, *kind, 0));
        printf(" %c", ask(*kind, 1));
        printf(" %d", take(one, *kind, 1));
        printf(" %c", ask(*kind, 1));
        printf(" %c\n", ask(*kind, 0));
        two = open(name, O_RDWR);
        close(one);
        printf("%c\n", ask(*kind, 0));
        one = open(name, O_RDWR);
    }
    unlink(name);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    base = argv[2];
    snprintf(name, sizeof name, "%s", base);
    pipe2(asks, O_CLOEXEC), pipe2(answers, O_CLOEXEC);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pid_t observer = fork();
    if (!observer) close(asks[1]), observe();
    if (number_in("MANAGER")) kill(number_in("MANAGER"), SIGSTOP);
    int result = !strcmp(argv[1], "ways")    ? ways(argc > 3 ? atoi(argv[3]) : 0)
                 : !strcmp(argv[1], "turns") ? turns()
                                             : conversions();
    ended();
    return result;
}
