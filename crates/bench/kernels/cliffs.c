/*
 * Ordinary operations, each many times, one kind in a run. Nothing here knows how files are stored.
 *
 *     cliffs prepare WORK DIRECTORY OTHER COUNT    makes the files that WORK finds
 *     cliffs WORK DIRECTORY OTHER COUNT            does WORK so many times, and prints two lines: `ready`
 *                                                  when it is about to begin, which it does at the
 *                                                  end of standard input; then
 *                                                  operations, CPU nanoseconds, elapsed nanoseconds
 *
 * The work `script` takes the text of a shell script as a last argument, and runs it in DIRECTORY with
 * OTHER in its environment; to prepare it makes a tree of small files, OTHER/tree, first.
 *
 * OTHER is a directory on the same file system that is never buffered. The CPU time is that of this
 * process and of the children it has waited for, around the operations alone: not that of what is
 * made before and taken away afterwards.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    KIB = 1 << 10,
    MIB = 1 << 20,
    PAGE = 4 << 10,
    BUFFERS = 64 << 20,   /* bytes that changing buffers are taken from */
    WARM = 128 << 20,     /* bytes that the kernel finds at once when they are wanted */
    LARGE = 512 << 20,    /* bytes of a large program */
    STRIDE = 256 << 10,   /* between random reads: each meets another block */
    SPARE = 64,           /* descriptors beside those of open-many */
    FOLDERS = 16,         /* of the tree that scripts find */
    FILES = 25,           /* in each of them */
};

static const char *directory, *elsewhere, *script;
static long count;
static char path[4096], other[2 * 4096];

static void fail(const char *what)
{
    fprintf(stderr, "cliffs: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void need(int worked, const char *what)
{
    if (!worked)
        fail(what);
}

static const char *named(const char *name, long number)
{
    snprintf(path, sizeof path, "%s/%s-%ld", directory, name, number);
    return path;
}

static int open_file(const char *name, int flags)
{
    int file = open(name, flags, 0644);
    need(file >= 0, name);
    return file;
}

static char *memory(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(at != MAP_FAILED, "memory");
    memset(at, 0xa5, bytes);
    return at;
}

/* A virtual machine may give free memory back to its host within seconds; what takes it next would
 * pay for that, be it the kernel with a file's bytes. */
static void warm(size_t bytes)
{
    need(munmap(memory(bytes), bytes) == 0, "munmap");
}

static void write_all(int file, const char *from, size_t bytes, off_t at)
{
    need(pwrite(file, from, bytes, at) == (ssize_t)bytes, "pwrite");
}

static void read_all(int file, char *to, size_t bytes, off_t at)
{
    need(pread(file, to, bytes, at) == (ssize_t)bytes, "pread");
}

static void make(const char *name, size_t bytes)
{
    static char piece[MIB];
    int file = open_file(name, O_WRONLY | O_CREAT | O_TRUNC);
    for (size_t at = 0; at < bytes; at += sizeof piece)
        write_all(file, piece, bytes - at < sizeof piece ? bytes - at : sizeof piece, at);
    need(close(file) == 0, "close");
}

/* What was written before is no part of what is measured. */
static void settle(const char *name)
{
    int file = open_file(name, O_RDWR);
    need(fsync(file) == 0 && close(file) == 0, name);
}

static void make_settled(size_t bytes)
{
    make(named("file", 0), bytes);
    settle(path);
}

static void make_many(const char *name, size_t bytes)
{
    for (long i = 0; i < count; i++)
        make(named(name, i), bytes);
}

/* A new file of a page, closed; its name is in `path`. */
static void create(long number)
{
    static char page[PAGE];
    int file = open_file(named("file", number), O_WRONLY | O_CREAT | O_EXCL);
    write_all(file, page, PAGE, 0);
    need(close(file) == 0, "close");
}

static int64_t spent_ns(void)
{
    struct timespec own;
    struct rusage children;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    int64_t s = own.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec;
    int64_t us = children.ru_utime.tv_usec + children.ru_stime.tv_usec;
    return s * 1000000000 + own.tv_nsec + us * 1000;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t cpu, elapsed;

static void begin(void)
{
    char none;
    puts("ready");
    need(fflush(stdout) == 0 && read(STDIN_FILENO, &none, 1) >= 0, "standard input");
    elapsed = now_ns();
    cpu = spent_ns();
}

static void end(void)
{
    cpu = spent_ns() - cpu;
    elapsed = now_ns() - elapsed;
}

static void nothing(void)
{
    begin();
    end();
}

/* A file that is there, and buffers that are not the ones before. */
static void transfer_buffers(size_t bytes, int writes)
{
    char *buffers = memory(BUFFERS);
    int file = open_file(named("file", 0), O_RDWR | O_CREAT);
    for (size_t at = 0; at < BUFFERS; at += MIB)
        write_all(file, buffers, MIB, at);
    settle(path);
    begin();
    for (long i = 0; i < count; i++) {
        char *buffer = buffers + i * bytes % BUFFERS;
        off_t at = i * bytes % (writes ? MIB : BUFFERS);
        if (writes)
            write_all(file, buffer, bytes, at);
        else
            read_all(file, buffer, bytes, at);
    }
    end();
    close(file);
}

static void write_4k_buffers(void) { transfer_buffers(PAGE, 1); }
static void read_4k_buffers(void) { transfer_buffers(PAGE, 0); }
static void read_1m_buffers(void) { transfer_buffers(MIB, 0); }

/* As compilers and linkers leave programs. */
static void chmod_written(void)
{
    begin();
    for (long i = 0; i < count; i++) {
        create(i);
        need(chmod(path, 0755) == 0, "chmod");
    }
    end();
}

/* Of a file whose bytes have long been written. */
static void change_modes(mode_t one, mode_t other)
{
    make_settled(PAGE);
    begin();
    for (long i = 0; i < count; i++)
        need(chmod(path, i % 2 ? one : other) == 0, "chmod");
    end();
}

static void chmod_executable(void) { change_modes(0644, 0755); }
static void chmod_same(void) { change_modes(0644, 0644); }

static void write_synced(int flags)
{
    static char page[PAGE];
    make_settled(MIB);
    int file = open_file(path, O_RDWR | flags);
    begin();
    for (long i = 0; i < count; i++) {
        write_all(file, page, PAGE, i * PAGE % MIB);
        if (!flags)
            need(fsync(file) == 0, "fsync");
    }
    end();
    close(file);
}

static void write_fsync(void) { write_synced(0); }
static void write_osync(void) { write_synced(O_SYNC); }

static void ioctl_getflags(void)
{
    static char page[PAGE];
    int file = open_file(named("file", 0), O_RDWR | O_CREAT), flags;
    write_all(file, page, PAGE, 0);
    begin();
    /* Not every file system has flags; that it has none is an answer, too. */
    for (long i = 0; i < count; i++)
        need(ioctl(file, FS_IOC_GETFLAGS, &flags) == 0 || errno == ENOTTY, "ioctl");
    end();
    close(file);
}

static void create_close(void)
{
    begin();
    for (long i = 0; i < count; i++)
        create(i);
    end();
}

static void create_unlink(void)
{
    struct stat found;
    begin();
    for (long i = 0; i < count; i++) {
        create(i);
        need(stat(path, &found) == 0 && unlink(path) == 0, path);
    }
    end();
}

static void open_paths(const char *name, int base)
{
    begin();
    for (long i = 0; i < count; i++) {
        int file = openat(base, name, O_RDONLY);
        need(file >= 0 && close(file) == 0, name);
    }
    end();
}

static void open_absolute(void)
{
    make_settled(PAGE);
    open_paths(path, AT_FDCWD);
}

static void open_relative(void)
{
    make_settled(PAGE);
    need(chdir(directory) == 0, directory);
    open_paths("file-0", AT_FDCWD);
}

static void openat_directory(void)
{
    make_settled(PAGE);
    open_paths("file-0", open_file(directory, O_RDONLY | O_DIRECTORY));
}

static void prepare_elsewhere(void)
{
    snprintf(other, sizeof other, "%s/file", elsewhere);
    make(other, PAGE);
}

static void open_elsewhere(void)
{
    snprintf(other, sizeof other, "%s/file", elsewhere);
    open_paths(other, AT_FDCWD);
}

static void prepare_small(void) { make_many("cold", PAGE); }

static void cold_open_read(void)
{
    static char page[PAGE];
    begin();
    for (long i = 0; i < count; i++) {
        int file = open_file(named("cold", i), O_RDONLY);
        need(read(file, page, PAGE) == PAGE && close(file) == 0, path);
    }
    end();
}

static void prepare_large(void) { make(named("cold", 0), count * MIB); }

static void cold_read_1m(void)
{
    static char piece[MIB];
    int file = open_file(named("cold", 0), O_RDONLY);
    begin();
    for (long i = 0; i < count; i++)
        read_all(file, piece, MIB, i * MIB);
    end();
    close(file);
}

/* Not in the kernel's memory either. */
static void prepare_evicted(void)
{
    prepare_large();
    int file = open_file(path, O_RDONLY);
    need(fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, path);
    close(file);
    warm(count * MIB);
}

/* As cat and cp read. */
static void cold_read_larger(void)
{
    static char piece[128 * KIB];
    int file = open_file(named("cold", 0), O_RDONLY);
    begin();
    for (long at = 0; at < count * MIB; at += sizeof piece)
        read_all(file, piece, sizeof piece, at);
    end();
    close(file);
}

static void prepare_strided(void) { make(named("cold", 0), count * STRIDE); }

/* Each block once, in an order that no pattern shows: the multiplier and 2^n have no divisor in
 * common, so a power of two of blocks are all met. */
static void cold_read_random(void)
{
    static char page[PAGE];
    int file = open_file(named("cold", 0), O_RDONLY);
    unsigned long blocks = 1;
    while (blocks * 2 <= (unsigned long)count)
        blocks *= 2;
    begin();
    for (unsigned long i = 0; i < (unsigned long)count; i++)
        read_all(file, page, PAGE, i * 40503 % blocks * STRIDE);
    end();
    close(file);
}

static void mmap_private(void)
{
    static char piece[16 * PAGE];
    make_many("file", 0);
    volatile char seen = 0;
    begin();
    for (long i = 0; i < count; i++) {
        /* Written here: wherever the write has put the bytes, the mapping has to show them. */
        int file = open_file(named("file", i), O_WRONLY);
        write_all(file, piece, sizeof piece, 0);
        need(close(file) == 0, "close");
        file = open_file(path, O_RDONLY);
        char *at = mmap(NULL, 16 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
        need(at != MAP_FAILED, "mmap");
        for (int page = 0; page < 16; page++)
            seen += at[page * PAGE];
        need(munmap(at, 16 * PAGE) == 0 && close(file) == 0, "munmap");
    }
    end();
}

static void sendfile_pipe(void)
{
    static char back[64 * KIB];
    int ends[2];
    make_settled(sizeof back);
    int file = open_file(path, O_RDONLY);
    need(pipe(ends) == 0, "pipe");
    begin();
    for (long i = 0; i < count; i++) {
        off_t at = 0;
        need(sendfile(ends[1], file, &at, sizeof back) == sizeof back, "sendfile");
        need(read(ends[0], back, sizeof back) == sizeof back, "read");
    }
    end();
}

static void splice_pipe(void)
{
    static char back[64 * KIB];
    int ends[2];
    make_settled(sizeof back);
    int file = open_file(path, O_RDONLY);
    need(pipe(ends) == 0, "pipe");
    begin();
    for (long i = 0; i < count; i++) {
        off_t at = 0;
        need(splice(file, &at, ends[1], NULL, sizeof back, 0) == sizeof back, "splice");
        need(read(ends[0], back, sizeof back) == sizeof back, "read");
    }
    end();
}

static void rename_file(void)
{
    make_settled(PAGE);
    strcpy(other, path);
    named("file", 1);
    begin();
    for (long i = 0; i < count; i++)
        need((i % 2 ? rename(path, other) : rename(other, path)) == 0, "rename");
    end();
}

static void link_unlink(void)
{
    make_settled(PAGE);
    strcpy(other, path);
    named("file", 1);
    begin();
    for (long i = 0; i < count; i++)
        need(link(other, path) == 0 && unlink(path) == 0, "link");
    end();
}

static void set_times(void)
{
    make_settled(PAGE);
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    begin();
    for (long i = 0; i < count; i++) {
        times[1].tv_sec++;
        need(utimensat(AT_FDCWD, path, times, 0) == 0, "utimensat");
    }
    end();
}

static void truncate_open(void)
{
    make_settled(MIB);
    int file = open_file(path, O_RDWR);
    begin();
    for (long i = 0; i < count; i++)
        need(ftruncate(file, i % 2 ? MIB : MIB / 2) == 0, "ftruncate");
    end();
}

static void run_true(void)
{
    extern char **environ;
    char *words[] = {"true", NULL};
    pid_t child = vfork();
    if (child == 0) {
        execve("/bin/true", words, environ);
        _exit(127);
    }
    int status;
    need(child > 0 && waitpid(child, &status, 0) == child && status == 0, "/bin/true");
}

static void vfork_exec(void)
{
    begin();
    for (long i = 0; i < count; i++)
        run_true();
    end();
}

static void vfork_exec_large(void)
{
    memory(LARGE);
    vfork_exec();
}

static void fork_exit(void)
{
    begin();
    for (long i = 0; i < count; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        need(child > 0 && waitpid(child, &status, 0) == child && status == 0, "fork");
    }
    end();
}

static void open_many(void)
{
    struct rlimit limit = {count + SPARE, count + SPARE};
    need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit: so many open files are not allowed");
    make(named("file", 0), PAGE);
    begin();
    for (long i = 0; i < count; i++)
        open_file(path, O_RDONLY);
    end();
}

static void run_shell(void)
{
    pid_t child = fork();
    if (child == 0) {
        if (chdir(directory) == 0 && setenv("OTHER", elsewhere, 1) == 0)
            execl("/bin/sh", "sh", "-ec", script, NULL);
        _exit(127);
    }
    int status;
    need(child > 0 && waitpid(child, &status, 0) == child && status == 0, script);
}

static void run_script(void)
{
    begin();
    for (long i = 0; i < count; i++)
        run_shell();
    end();
}

/* Files as sources have them: up to 15 KiB, a few larger. */
static void prepare_script(void)
{
    snprintf(other, sizeof other, "%s/tree", elsewhere);
    need(mkdir(other, 0755) == 0, other);
    for (int folder = 0; folder < FOLDERS; folder++) {
        snprintf(other, sizeof other, "%s/tree/folder-%d", elsewhere, folder);
        need(mkdir(other, 0755) == 0, other);
        for (int file = 0; file < FILES; file++) {
            snprintf(other, sizeof other, "%s/tree/folder-%d/file-%d", elsewhere, folder, file);
            make(other, file == 0 ? 100 * KIB : (size_t)(folder + file) % 15 * KIB + 100);
        }
    }
    run_shell();
}

static const struct work {
    const char *name;
    void (*run)(void), (*prepare)(void);
} works[] = {
    {"nothing", nothing, NULL},
    {"write-4k-buffers", write_4k_buffers, NULL},
    {"read-4k-buffers", read_4k_buffers, NULL},
    {"read-1m-buffers", read_1m_buffers, NULL},
    {"chmod-written", chmod_written, NULL},
    {"chmod-executable", chmod_executable, NULL},
    {"chmod-same", chmod_same, NULL},
    {"write-fsync", write_fsync, NULL},
    {"write-osync", write_osync, NULL},
    {"ioctl-getflags", ioctl_getflags, NULL},
    {"create-close", create_close, NULL},
    {"create-unlink", create_unlink, NULL},
    {"open-absolute", open_absolute, NULL},
    {"open-relative", open_relative, NULL},
    {"openat-directory", openat_directory, NULL},
    {"open-elsewhere", open_elsewhere, prepare_elsewhere},
    {"cold-open-read", cold_open_read, prepare_small},
    {"cold-read-1m", cold_read_1m, prepare_large},
    {"cold-read-larger", cold_read_larger, prepare_evicted},
    {"cold-read-random", cold_read_random, prepare_strided},
    {"mmap-private", mmap_private, NULL},
    {"sendfile-pipe", sendfile_pipe, NULL},
    {"splice-pipe", splice_pipe, NULL},
    {"rename", rename_file, NULL},
    {"link-unlink", link_unlink, NULL},
    {"set-times", set_times, NULL},
    {"truncate", truncate_open, NULL},
    {"fork-exit", fork_exit, NULL},
    {"vfork-exec", vfork_exec, NULL},
    {"vfork-exec-large", vfork_exec_large, NULL},
    {"open-many", open_many, NULL},
    {"script", run_script, prepare_script},
};

int main(int argc, char **argv)
{
    int prepares = argc > 1 && strcmp(argv[1], "prepare") == 0;
    int scripted = argc > 1 + prepares && strcmp(argv[1 + prepares], "script") == 0;
    if (argc != 5 + prepares + scripted) {
        fprintf(stderr, "usage: cliffs [prepare] WORK DIRECTORY OTHER COUNT [SCRIPT]\n");
        return 2;
    }
    const char *name = argv[1 + prepares];
    directory = argv[2 + prepares];
    elsewhere = argv[3 + prepares];
    count = atol(argv[4 + prepares]);
    script = scripted ? argv[5 + prepares] : "";
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        if (strcmp(works[i].name, name) != 0)
            continue;
        if (prepares) {
            if (works[i].prepare)
                works[i].prepare();
            warm(WARM);
            return 0;
        }
        works[i].run();
        printf("%ld %" PRId64 " %" PRId64 "\n", count, cpu, elapsed);
        return 0;
    }
    fprintf(stderr, "cliffs: %s: no such work\n", name);
    return 2;
}
