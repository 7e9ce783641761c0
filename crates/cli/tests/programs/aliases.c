// Calls the forms that the C library's headers choose: 64-bit aliases, fortified forms, old stat forms. Compiled without
// those headers' help: each is looked up by its name.
#define _GNU_SOURCE
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

typedef long (*call)();

static call named(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        printf("%s is missing\n", name);
        exit(1);
    }
    return (call)found;
}

// Most give an int: the upper half of the register is anything.
#define INT(name, ...) ((int)named(#name)(__VA_ARGS__))
#define SHOW(name, ...) printf("%s %d\n", #name, INT(name, __VA_ARGS__))

static void content(const char *path) {
    char text[200] = {0};
    int fd = open(path, O_RDONLY);
    int got = read(fd, text, sizeof text - 1);
    close(fd);
    printf("%s: %d bytes, %s\n", path, got, text);
}

static void opened(const char *name, int fd, const char *text) {
    printf("%s %d %zd\n", name, fd >= 0, write(fd, text, strlen(text)));
    close(fd);
}

static void opens(void) {
    opened("open64", INT(open64, "a", O_RDWR | O_CREAT, 0644), "open64");
    opened("openat64", INT(openat64, AT_FDCWD, "a", O_RDWR | O_APPEND, 0), " openat64");
    opened("__open_2", INT(__open_2, "a", O_WRONLY | O_APPEND), " __open_2");
    opened("__open64_2", INT(__open64_2, "a", O_WRONLY | O_APPEND), " __open64_2");
    opened("__openat_2", INT(__openat_2, AT_FDCWD, "a", O_WRONLY | O_APPEND), " __openat_2");
    opened("__openat64_2", INT(__openat64_2, AT_FDCWD, "a", O_WRONLY | O_APPEND), " __openat64_2");
    content("a");
    opened("creat64", INT(creat64, "a", 0644), "creat64");
    content("a");
    const char *names[] = {"mkstemp64", "mkostemp64", "mkstemps", "mkstemps64", "mkostemps", "mkostemps64"};
    for (int i = 0; i < 6; i++) {
        char template[] = "tXXXXXX.x";
        int suffix = i >= 2 ? 2 : 0;
        if (!suffix) template[7] = 0;
        opened(names[i], i < 2 ? (int)named(names[i])(template, 0) : (int)named(names[i])(template, suffix, 0), names[i]);
        rename(template, names[i]);
        content(names[i]);
    }
}

static void positions(int fd) {
    char text[64] = {0};
    struct iovec piece = {"vector", 6}, to = {text, 6};
    SHOW(pwrite64, fd, "positional", 10, 0L);
    SHOW(pwritev64, fd, &piece, 1, 20L);
    SHOW(pwritev64v2, fd, &piece, 1, 40L, 0);
    SHOW(pread64, fd, text, 10, 0L); puts(text);
    memset(text, 0, sizeof text);
    SHOW(preadv64, fd, &to, 1, 20L); puts(text);
    SHOW(preadv64v2, fd, &to, 1, 40L, 0); puts(text);
    SHOW(__pread_chk, fd, text, 5, 2L, 64L); puts(text);
    SHOW(__pread64_chk, fd, text, 5, 3L, 64L); puts(text);
    SHOW(lseek64, fd, 20L, SEEK_SET);
    SHOW(__read_chk, fd, text, 6, 64L); puts(text);
    SHOW(ftruncate64, fd, 30L);
    SHOW(truncate64, "b", 35L);
    SHOW(fallocate64, fd, 0, 0L, 50L);
    SHOW(posix_fallocate64, fd, 0L, 60L);
    SHOW(posix_fadvise64, fd, 0L, 60L, POSIX_FADV_WILLNEED);
    printf("fcntl64 %d\n", INT(fcntl64, fd, F_GETFL) & O_ACCMODE);
    int waiting = -1, result = INT(ioctl, fd, FIONREAD, &waiting);
    printf("ioctl %d %d\n", result, waiting);
    int other = open("c", O_RDWR | O_CREAT, 0644);
    off_t from = 0;
    SHOW(sendfile64, other, fd, &from, 25L);
    char *map = (char *)named("mmap64")(NULL, 10L, PROT_READ, MAP_PRIVATE, fd, 0L);
    printf("mmap64 %.10s\n", map);
    munmap(map, 10);
    close(other);
    content("c");
}

static void attributes(int fd) {
    struct stat s;
#define SIZE(name, ...) do { memset(&s, 0, sizeof s); int result = INT(name, __VA_ARGS__); \
    printf("%s %d %ld\n", #name, result, (long)s.st_size); } while (0)
    SIZE(stat64, "b", &s);
    SIZE(lstat64, "b", &s);
    SIZE(fstat64, fd, &s);
    SIZE(fstatat64, AT_FDCWD, "b", &s, 0);
    SIZE(__xstat, 1, "b", &s);
    SIZE(__xstat64, 1, "b", &s);
    SIZE(__lxstat, 1, "b", &s);
    SIZE(__lxstat64, 1, "b", &s);
    SIZE(__fxstat, 1, fd, &s);
    SIZE(__fxstat64, 1, fd, &s);
    SIZE(__fxstatat, 1, AT_FDCWD, "b", &s, 0);
    SIZE(__fxstatat64, 1, AT_FDCWD, "b", &s, 0);
    struct timeval times[2] = {{1000, 5}, {2000, 7}};
    SHOW(lutimes, "b", times);
    stat("b", &s); printf("%ld\n", (long)s.st_mtime);
    times[1].tv_sec = 3000;
    SHOW(futimesat, AT_FDCWD, "b", times);
    stat("b", &s); printf("%ld\n", (long)s.st_mtime);
    SHOW(lchown, "b", -1, -1);
    SHOW(fchownat, AT_FDCWD, "b", -1, -1, 0);
    SHOW(renameat, AT_FDCWD, "c", AT_FDCWD, "d");
    SHOW(unlinkat, AT_FDCWD, "d", 0);
}

static void formatted(const char *name, int fd, ...) {
    va_list list;
    va_start(list, fd);
    if (name[0] == '_') named(name)(fd, 1, "%s %d\n", list); else named(name)(fd, "%s %d\n", list);
    va_end(list);
}

static void streams(void) {
    char text[64] = {0};
    FILE *file = fopen("s", "w");
    fputs("from a stream", file);
    file = (FILE *)named("freopen64")("s", "r+", file);
    printf("__fread_chk %ld", (long)named("__fread_chk")(text, 64L, 1L, 4L, file)); puts(text);
    printf("__fread_unlocked_chk %ld", (long)named("__fread_unlocked_chk")(text, 64L, 1L, 4L, file)); puts(text);
    fclose(file);
    int fd = open("f", O_RDWR | O_CREAT, 0644);
    SHOW(__dprintf_chk, fd, 1, "%s\n", "checked");
    formatted("vdprintf", fd, "list", 1);
    formatted("__vdprintf_chk", fd, "list", 2);
    close(fd);
    content("f");
}

static void children(void) {
    int fd = open("p", O_RDWR | O_CREAT | O_APPEND, 0644);
    char *const words[] = {"sh", "-c", "echo $0 by an exec", NULL}, *const none[] = {"A=1", NULL};
    const char *names[] = {"execvp", "execvpe", "execle", "fexecve"};
    for (int i = 0; i < 4; i++) {
        pid_t child = i % 2 ? (pid_t)named("_Fork")() : fork();
        if (child == 0) {
            dup2(fd, 1);
            switch (i) {
            case 0: execvp("sh", words); break;
            case 1: execvpe("sh", words, none); break;
            case 2: execle("/bin/sh", "sh", "-c", "echo execle $A", (char *)NULL, none); break;
            case 3: fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), words, none); break;
            }
            _exit(9);
        }
        int status;
        waitpid(child, &status, 0);
        printf("%s %d\n", names[i], status);
    }
    close(fd);
    content("p");
}

static void asynchronous(int fd) {
    char text[16] = {0};
    struct aiocb block = {.aio_fildes = fd, .aio_buf = "later", .aio_nbytes = 5, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[] = {&block};
    SHOW(aio_write64, &block);
    aio_suspend((const struct aiocb *const *)list, 1, NULL); printf("%zd\n", aio_return(&block));
    SHOW(aio_fsync64, O_SYNC, &block);
    aio_suspend((const struct aiocb *const *)list, 1, NULL); printf("%zd\n", aio_return(&block));
    block.aio_buf = text;
    SHOW(aio_read64, &block);
    aio_suspend((const struct aiocb *const *)list, 1, NULL); printf("%zd %s\n", aio_return(&block), text);
    block.aio_lio_opcode = LIO_READ;
    SHOW(lio_listio64, LIO_WAIT, list, 1, NULL);
    printf("%zd %s\n", aio_return(&block), text);
}

static int caught;

static void handler(int number) { caught += number == SIGUSR2; }

static void process(void) {
    const char *names[] = {"bsd_signal", "ssignal", "sysv_signal", "__sysv_signal"};
    for (int i = 0; i < 4; i++) {
        named(names[i])(SIGUSR2, handler);
        raise(SIGUSR2);
        printf("%s %d\n", names[i], caught);
    }
    struct sigaction action = {.sa_handler = handler};
    SHOW(__sigaction, SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    printf("%d\n", caught);
    struct rlimit limit;
    SHOW(prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
    SHOW(setrlimit64, RLIMIT_NOFILE, &limit);
    SHOW(seteuid, geteuid());
    SHOW(setreuid, -1, -1);
    SHOW(setresuid, -1, -1, -1);
    int pair[2];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    char text[8] = {0};
    struct iovec out = {"packet", 6}, in = {text, 6};
    struct mmsghdr sent = {.msg_hdr = {.msg_iov = &out, .msg_iovlen = 1}};
    struct mmsghdr received = {.msg_hdr = {.msg_iov = &in, .msg_iovlen = 1}};
    SHOW(sendmmsg, pair[0], &sent, 1, 0);
    SHOW(recvmmsg, pair[1], &received, 1, 0, NULL);
    puts(text);
    int terminal;
    pid_t child = INT(forkpty, &terminal, NULL, NULL, NULL);
    if (child == 0) {
        int fd = open("q", O_WRONLY | O_CREAT, 0644);
        _exit(write(fd, "on a terminal", 13) != 13 || !isatty(0));
    }
    int status;
    waitpid(child, &status, 0);
    printf("forkpty %d\n", status);
    content("q");
}

static void wide(const char *name, int checked, FILE *file, ...) {
    va_list list;
    va_start(list, file);
    int result;
    if (checked && file) result = named(name)(file, 1, L"%s\n", list);
    else if (checked) result = named(name)(1, L"%s\n", list);
    else if (file) result = named(name)(file, L"%s\n", list);
    else result = named(name)(L"%s\n", list);
    va_end(list);
    // Not on a stream of wide characters.
    if (file) printf("%s %d\n", name, result);
}

static void scanned(const char *name, int is_list, FILE *file, ...) {
    int number = 0, result;
    va_list list;
    va_start(list, file);
    int *place = va_arg(list, int *);
    va_end(list);
    va_start(list, file);
    if (is_list) result = file ? (int)named(name)(file, L"%d", list) : (int)named(name)(L"%d", list);
    else result = file ? (int)named(name)(file, L"%d", place) : (int)named(name)(L"%d", place);
    va_end(list);
    printf("%s %d %d\n", name, result, *place);
}

static void wide_streams(void) {
    FILE *file = fopen("w", "w+");
    printf("__fwprintf_chk %d\n", INT(__fwprintf_chk, file, 1, L"%s\n", "checked"));
    wide("vfwprintf", 0, file, "listed");
    wide("__vfwprintf_chk", 1, file, "listed and checked");
    SHOW(fputws_unlocked, L"unlocked\n", file);
    for (int i = 0; i < 9; i++) fwprintf(file, L"%d ", i * 11);
    rewind(file);
    wchar_t line[64];
    printf("__fgetws_chk %ls", (wchar_t *)named("__fgetws_chk")(line, 64L, 64, file));
    printf("fgetws_unlocked %ls", (wchar_t *)named("fgetws_unlocked")(line, 64, file));
    printf("__fgetws_unlocked_chk %ls", (wchar_t *)named("__fgetws_unlocked_chk")(line, 64L, 64, file));
    SHOW(getwc_unlocked, file);
    fgetws(line, 64, file);
    int number;
    scanned("vfwscanf", 1, file, &number);
    scanned("__isoc99_fwscanf", 0, file, &number);
    scanned("__isoc99_vfwscanf", 1, file, &number);
    // The C library of this machine may be older than these.
    if (dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "__isoc23_fwscanf")) {
        scanned("__isoc23_fwscanf", 0, file, &number);
        scanned("__isoc23_vfwscanf", 1, file, &number);
    }
    fclose(file);
    content("w");
    // The same on the standard streams, in a child of their own.
    fflush(stdout);
    if (fork() == 0) {
        freopen("w", "r", stdin);
        freopen("x", "w", stdout);
        getwchar();
        while (getwc(stdin) != L'0');
        wprintf(L"now ");
        named("putwchar_unlocked")(L'x');
        fclose(stdout);
        _exit(0);
    }
    wait(NULL);
    const char *printing[] = {"vwprintf", "__vwprintf_chk", "__wprintf_chk"};
    const char *scanning[] = {"vwscanf", "__isoc99_wscanf", "__isoc99_vwscanf", "__isoc23_wscanf", "__isoc23_vwscanf"};
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        if (fork() == 0) {
            freopen("x", "w", stdout);
            if (i == 2) named(printing[i])(1, L"%s\n", "checked");
            else { FILE *none = NULL; wide(printing[i], i == 1, none, "listed"); }
            fclose(stdout);
            _exit(0);
        }
        wait(NULL);
        content("x");
    }
    for (int i = 0; i < 5; i++) {
        if (i >= 3 && !dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), scanning[i])) continue;
        int fd = open("y", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        write(fd, "77 88", 5);
        close(fd);
        fflush(stdout);
        if (fork() == 0) {
            freopen("y", "r", stdin);
            scanned(scanning[i], i == 0 || i == 2 || i == 4, NULL, &number);
            fflush(stdout);
            _exit(0);
        }
        wait(NULL);
    }
}

int main(void) {
    opens();
    int fd = open("b", O_RDWR | O_CREAT, 0644);
    positions(fd);
    attributes(fd);
    asynchronous(fd);
    close(fd);
    streams();
    wide_streams();
    process();
    fflush(stdout);
    children();
    return 0;
}
