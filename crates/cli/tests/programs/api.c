/* What a program gets from include/forebay/forebay.h: the first argument says which part. */
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 256 << 10, BYTES = 3 * BLOCK + 1000 };

static char written[BYTES], got[BYTES];

static void pattern(char *to, int bytes, int seed) {
    for (int at = 0; at < bytes; at++)
        to[at] = (char)(at * 7 + at / 256 + seed);
}

static forebay_session *started(unsigned flags) {
    forebay_session *session;
    CHECK(forebay_start(flags, &session) == 0 && session);
    return session;
}

static forebay_file *opened(forebay_session *session, const char *path) {
    forebay_file *file;
    CHECK(forebay_open(session, path, O_RDWR | O_CREAT, 0600, &file) == 0 && file);
    return file;
}

static void nap(int ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static struct forebay_safety_info safety(forebay_file *file) {
    struct forebay_safety_info info;
    memset(&info, 0x55, sizeof info);
    info.size = sizeof info;
    CHECK(forebay_safety(file, &info) == 0);
    return info;
}

static struct forebay_pool_info pool(forebay_session *session) {
    struct forebay_pool_info info;
    info.size = sizeof info;
    CHECK(forebay_pool(session, &info) == 0);
    return info;
}

static void write_all(forebay_file *file, const char *from, int64_t bytes, int64_t offset) {
    CHECK(forebay_write(file, from, bytes, offset) == bytes);
}

static int safe_in_time(forebay_file *file, int level) {
    for (int turn = 0; turn < 1000; turn++, nap(1))
        if (forebay_is_safe(file, level) == 1)
            return 1;
    return 0;
}

/* Under Forebay, where nothing is flushed but what is asked for. */
static void buffered(const char *path, const char *on_store) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    CHECK(forebay_is_active(session) == 1);
    struct forebay_pool_info info = pool(session);
    CHECK(info.tiers == 2 && info.stores == 1 && info.is_served == 1 && info.job > 0);
    CHECK(info.page_bytes == 4096 && info.block_bytes == BLOCK && strlen(info.instance) == 16);
    CHECK(access(info.path, F_OK) == 0 && kill((pid_t)info.manager, 0) == 0);
    struct forebay_tier_info ram = {.size = sizeof ram}, nvme = {.size = sizeof nvme};
    CHECK(forebay_tier(session, 0, &ram) == 0 && forebay_tier(session, 1, &nvme) == 0);
    CHECK(!strcmp(ram.name, "ram") && !*ram.path && !ram.is_lasting && !ram.has_failed);
    CHECK(!strcmp(nvme.name, "nvme") && access(nvme.path, F_OK) == 0 && nvme.is_lasting);
    CHECK(ram.capacity == 64u << 20 && ram.free <= ram.capacity && nvme.capacity == 256u << 20);
    GIVES(forebay_tier(session, 2, &ram), -ENOENT, "no tier 2");
    GIVES(forebay_tier(session, -1, &ram), -ENOENT, "no tier -1");

    forebay_file *file = opened(session, path);
    CHECK(forebay_is_buffered(file) == 1);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0);
    pattern(written, BYTES, 1);
    write_all(file, written, BYTES, 0);
    CHECK(forebay_size(file) == BYTES);
    CHECK(forebay_read(file, got, BYTES, 0) == BYTES && !memcmp(got, written, BYTES));
    CHECK(forebay_read(file, got, 100, BYTES - 10) == 10 && forebay_read(file, got, 9, BYTES) == 0);
    CHECK(lseek(forebay_fd(file), 0, SEEK_CUR) == 0);

    struct forebay_safety_info now = safety(file);
    CHECK(now.where == FOREBAY_WHERE_MEMORY && now.is_buffered == 1 && now.tier_bytes == 0);
    CHECK(now.memory_bytes == 3 * BLOCK + 4096);
    struct forebay_extent extents[4];
    CHECK(forebay_placement(file, 0, INT64_MAX, extents, 4) == 1);
    CHECK(extents[0].offset == 0 && extents[0].bytes == BYTES);
    CHECK(extents[0].tier == 0 && extents[0].is_ahead == 1 && extents[0].reserved == 0);
    CHECK(forebay_placement(file, 5000, 100, extents, 4) == 1);
    CHECK(extents[0].offset == 5000 && extents[0].bytes == 100);
    CHECK(forebay_placement(file, BYTES, 100, extents, 4) == 0);
    CHECK(forebay_placement(file, 0, BYTES, NULL, 0) == 1);

    CHECK(forebay_is_safe(file, FOREBAY_DURABLE) == 0 && forebay_is_safe(file, FOREBAY_STORE) == 0);
    CHECK(forebay_flush(file, FOREBAY_STORE) == 0);
    for (int turn = 0; forebay_is_safe(file, FOREBAY_STORE) == 0; turn++) {
        CHECK(turn < 10000);
        nap(2);
    }
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 1 && forebay_is_safe(file, FOREBAY_DURABLE) == 1);
    CHECK(safety(file).where != FOREBAY_WHERE_TIER && safety(file).memory_bytes == 0);
    CHECK(forebay_wait(file, FOREBAY_STORE, -1) == 0);
    CHECK(forebay_placement(file, 0, BYTES, extents, 4) == 1 && extents[0].is_ahead == 0);
    /* It stays safe while the node manager gives the store's file its times. */
    for (int turn = 0; safety(file).where != FOREBAY_WHERE_STORE; turn++) {
        CHECK(turn < 10000);
        CHECK(forebay_is_safe(file, FOREBAY_STORE) == 1);
        nap(2);
    }
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 1);

    /* A write takes that away, through this handle or another one. */
    write_all(file, "new", 3, 4096);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0 && safety(file).memory_bytes == 4096);
    CHECK(forebay_placement(file, 0, BYTES, extents, 4) == 3);
    CHECK(extents[1].offset == 4096 && extents[1].bytes == 4096 && extents[1].is_ahead == 1);
    CHECK(extents[2].offset == 8192 && extents[2].is_ahead == 0);
    memset(extents, 0x55, sizeof extents);
    CHECK(forebay_placement(file, 0, BYTES, extents, 1) == 3);
    CHECK(extents[0].bytes == 4096 && extents[1].bytes == 0x5555555555555555);
    CHECK(forebay_wait(file, FOREBAY_DURABLE, 60000) == 0);
    CHECK(forebay_is_safe(file, FOREBAY_DURABLE) == 1);
    CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0 && forebay_is_safe(file, FOREBAY_STORE) == 1);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "other", 5, 0) == 5);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0 && forebay_is_safe(file, FOREBAY_DURABLE) == 0);
    /* At once, through the descriptor, and where the file keeps its time. */
    for (int turn = 0; turn < 20; turn++) {
        int level = turn % 2 ? FOREBAY_STORE : FOREBAY_DURABLE;
        CHECK(forebay_wait(file, level, 60000) == 0 && forebay_is_safe(file, level) == 1);
        /* One that only looks finds it so, and does not begin another. */
        CHECK(forebay_wait(file, level, 0) == 0);
        struct stat before;
        CHECK(fstat(fd, &before) == 0);
        CHECK(pwrite(turn % 3 ? fd : forebay_fd(file), "other", 5, 0) == 5);
        struct timespec times[2] = {before.st_atim, before.st_mtim};
        CHECK(turn % 5 || futimens(fd, times) == 0);
        CHECK(forebay_is_safe(file, level) == 0);
    }

    /* A size alone, and bytes that end before it. */
    for (int turn = 0; turn < 4; turn++) {
        int level = turn % 2 ? FOREBAY_STORE : FOREBAY_DURABLE;
        CHECK(ftruncate(fd, BYTES + 5000 * (turn % 3)) == 0 && forebay_is_safe(file, level) == 0);
        CHECK(turn < 2 || pwrite(fd, "other", 5, 0) == 5);
        CHECK(forebay_flush(file, level) == 0 && safe_in_time(file, level));
        CHECK(forebay_wait(file, level, 60000) == 0 && forebay_is_safe(file, level) == 1);
    }
    CHECK(ftruncate(fd, BYTES) == 0);

    /* A file that the program has opened itself. */
    forebay_file *own;
    CHECK(forebay_use_fd(session, fd, &own) == 0 && forebay_fd(own) == fd);
    CHECK(forebay_read(own, got, 5, 0) == 5 && !memcmp(got, "other", 5));
    CHECK(forebay_wait_all(session, FOREBAY_STORE, 60000) == 0);
    CHECK(safety(own).memory_bytes == 0);
    CHECK(forebay_flush_all(session, FOREBAY_DURABLE) == 0);
    /* Its number becomes another file's: what was said of the one is not said of the other. */
    CHECK(forebay_wait(own, FOREBAY_STORE, 60000) == 0 && forebay_is_safe(own, FOREBAY_STORE) == 1);
    char beside[4096];
    snprintf(beside, sizeof beside, "%s-beside", path);
    int second = open(beside, O_RDWR | O_CREAT, 0600);
    CHECK(second >= 0 && pwrite(second, "beside", 6, 0) == 6 && dup2(second, fd) == fd);
    GIVES(forebay_is_safe(own, FOREBAY_STORE), -EBADFD, "another file");
    GIVES(forebay_wait(own, FOREBAY_STORE, 60000), -EBADFD, "another handle");
    CHECK(close(second) == 0);
    CHECK(forebay_close(own) == 0 && fcntl(fd, F_GETFD) >= 0 && close(fd) == 0);

    /* One that is not buffered, in another directory. */
    forebay_file *outside = opened(session, on_store);
    CHECK(forebay_is_buffered(outside) == 0);
    write_all(outside, "outside", 7, 0);
    CHECK(forebay_read(outside, got, 9, 0) == 7 && forebay_size(outside) == 7);
    CHECK(safety(outside).is_buffered == 0 && safety(outside).where == FOREBAY_WHERE_STORE);
    CHECK(forebay_is_safe(outside, FOREBAY_STORE) == 0);
    CHECK(forebay_flush(outside, FOREBAY_STORE) == 0 && forebay_is_safe(outside, FOREBAY_STORE) == 1);
    CHECK(pwrite(forebay_fd(outside), "OUT", 3, 0) == 3 && forebay_is_safe(outside, FOREBAY_STORE) == 0);
    CHECK(forebay_wait(outside, FOREBAY_STORE, 0) == 0 && forebay_is_safe(outside, FOREBAY_STORE) == 1);
    GIVES(forebay_placement(outside, 0, 9, extents, 4), FOREBAY_E_NOT_BUFFERED, "forebay explain");

    /* A short struct of an older program, and a longer one of a later program. */
    struct { size_t size; char path[256]; char rest[8]; } old = {.size = sizeof old - 8};
    memset(old.rest, 0x55, sizeof old.rest);
    CHECK(forebay_pool(session, (struct forebay_pool_info *)&old) == 0);
    CHECK(!strcmp(old.path, info.path) && old.rest[0] == 0x55);
    struct { struct forebay_safety_info known; uint64_t more; } later = {.more = 7};
    later.known.size = sizeof later;
    CHECK(forebay_safety(file, &later.known) == 0 && later.more == 0);

    int kept = forebay_fd(file);
    CHECK(forebay_end(session) == 0 && fcntl(kept, F_GETFD) < 0);
    GIVES(forebay_read(file, got, 1, 0), FOREBAY_E_CLOSED, "closed");
    GIVES(forebay_is_active(session), FOREBAY_E_CLOSED, "session");
    puts("done");
}

/* Without Forebay. */
static void plain(const char *path) {
    forebay_session *session;
    GIVES(forebay_start(FOREBAY_REQUIRE, &session), FOREBAY_E_NOT_RUNNING, "forebay run");
    CHECK(session == NULL);
    session = started(0);
    CHECK(forebay_is_active(session) == 0);
    struct forebay_pool_info info = {.size = sizeof info};
    struct forebay_tier_info tier = {.size = sizeof tier};
    GIVES(forebay_pool(session, &info), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_tier(session, 0, &tier), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_flush_all(session, FOREBAY_STORE), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_wait_all(session, FOREBAY_STORE, 0), FOREBAY_E_NOT_RUNNING, "forebay run");
    forebay_file *file = opened(session, path);
    CHECK(forebay_is_buffered(file) == 0);
    pattern(written, BYTES, 2);
    write_all(file, written, BYTES, 0);
    CHECK(forebay_read(file, got, BYTES, 0) == BYTES && !memcmp(got, written, BYTES));
    CHECK(forebay_size(file) == BYTES && safety(file).where == FOREBAY_WHERE_STORE);
    CHECK(forebay_flush(file, FOREBAY_DURABLE) == 0 && forebay_is_safe(file, FOREBAY_DURABLE) == 1);
    CHECK(forebay_wait(file, FOREBAY_STORE, 10) == 0 && forebay_is_safe(file, FOREBAY_STORE) == 1);
    write_all(file, "x", 1, 0);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0 && forebay_flush(file, FOREBAY_STORE) == 0);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 1);
    CHECK(pwrite(forebay_fd(file), "y", 1, 0) == 1 && forebay_is_safe(file, FOREBAY_STORE) == 0);
    /* A descriptor that the program closed, or gave to another file. */
    int spare = dup(forebay_fd(file));
    forebay_file *lost;
    CHECK(forebay_use_fd(session, spare, &lost) == 0 && forebay_flush(lost, FOREBAY_STORE) == 0);
    CHECK(forebay_is_safe(lost, FOREBAY_STORE) == 1 && close(spare) == 0);
    GIVES(forebay_is_safe(lost, FOREBAY_STORE), -EBADFD, "descriptor");
    CHECK(dup2(0, spare) == spare);
    GIVES(forebay_is_safe(lost, FOREBAY_STORE), -EBADFD, "another file");
    GIVES(forebay_flush(lost, FOREBAY_STORE), -EBADFD, "another file");
    CHECK(forebay_close(lost) == 0 && close(spare) == 0);
    struct forebay_range ranges[2] = {{0, 100}, {5000, 100}};
    CHECK(forebay_will_read(file, ranges, 2) == 0);
    CHECK(forebay_hint(file, FOREBAY_HINT_SEQUENTIAL, 0, 0) == 0);
    struct forebay_extent extent;
    GIVES(forebay_placement(file, 0, 1, &extent, 1), FOREBAY_E_NOT_RUNNING, "forebay run");
    CHECK(forebay_close(file) == 0 && forebay_end(session) == 0);
    puts("done");
}

/* What is wrong is said, in both ways of running. */
static void bad(const char *path) {
    forebay_session *session = started(0), *none = (forebay_session *)&path;
    forebay_file *file, *wild = (forebay_file *)written;
    GIVES(forebay_start(6, &file ? (forebay_session **)&file : NULL), -EINVAL, "flags");
    GIVES(forebay_start(0, NULL), -EINVAL, "NULL");
    GIVES(forebay_end(NULL), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_end(none), FOREBAY_E_HANDLE, "session");
    GIVES(forebay_is_active(none), FOREBAY_E_HANDLE, "not the handle of a session");
    GIVES(forebay_pool(none, NULL), FOREBAY_E_HANDLE, "session");
    GIVES(forebay_open(NULL, path, O_RDWR, 0, &file), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_open(session, NULL, O_RDWR, 0, &file), -EINVAL, "path");
    GIVES(forebay_open(session, path, O_RDWR, 0, NULL), -EINVAL, "file");
    GIVES(forebay_open(session, "/no/such\nplace", O_RDWR, 0, &file), -ENOENT, "/no/such\\nplace");
    CHECK(file == NULL);
    static char deep[6000];
    memset(deep, 'a', sizeof deep - 1);
    CHECK(forebay_open(session, deep, O_RDWR, 0, &file) < 0 && strstr(forebay_last_message(), "aaa"));
    GIVES(forebay_use_fd(session, -1, &file), -EBADF, "descriptor -1");
    GIVES(forebay_use_fd(session, 12345, &file), -EBADF, "descriptor 12345");
    GIVES(forebay_use_fd(session, 0, NULL), -EINVAL, "NULL");
    GIVES(forebay_read(wild, got, 1, 0), FOREBAY_E_HANDLE, "handle");
    GIVES(forebay_close(NULL), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_close((forebay_file *)session), FOREBAY_E_HANDLE, "not the handle of a file");

    file = opened(session, path);
    GIVES(forebay_read(file, got, -1, 0), -EINVAL, "-1 bytes");
    GIVES(forebay_read(file, got, 1, -5), -EINVAL, "offset -5");
    GIVES(forebay_write(file, got, 2, INT64_MAX), -EINVAL, "no part");
    GIVES(forebay_write(file, NULL, 2, 0), -EINVAL, "NULL");
    CHECK(forebay_write(file, NULL, 0, 0) == 0 && forebay_read(file, NULL, 0, 0) == 0);
    CHECK(forebay_write(file, (void *)16, 10, 0) == -EFAULT && forebay_size(file) == 0);
    write_all(file, "0123456789", 10, 0);
    CHECK(forebay_read(file, (void *)16, 10, 0) == -EFAULT);
    GIVES(forebay_flush(file, 0), -EINVAL, "FOREBAY_STORE");
    GIVES(forebay_flush(file, 99), -EINVAL, "99");
    GIVES(forebay_wait(file, 1, 0), -EINVAL, "level");
    GIVES(forebay_is_safe(file, -3), -EINVAL, "level");
    GIVES(forebay_flush_all(session, 4), -EINVAL, "level");
    GIVES(forebay_wait_all(session, 4, 0), -EINVAL, "level");
    GIVES(forebay_hint(file, 5, 0, 0), -EINVAL, "FOREBAY_HINT_");
    GIVES(forebay_hint(file, -1, 0, 0), -EINVAL, "-1");
    GIVES(forebay_hint(file, 0, -1, 0), -EINVAL, "offset -1");
    struct forebay_range ranges[65] = {{0, 1}, {0, -1}};
    GIVES(forebay_will_read(file, ranges, 65), -EINVAL, "64");
    GIVES(forebay_will_read(file, ranges, -1), -EINVAL, "-1 ranges");
    GIVES(forebay_will_read(file, ranges, 2), -EINVAL, "-1 bytes");
    GIVES(forebay_will_read(file, NULL, 2), -EINVAL, "NULL");
    CHECK(forebay_will_read(file, NULL, 0) == 0);
    struct forebay_safety_info info = {.size = 3};
    GIVES(forebay_safety(file, &info), -EINVAL, "sizeof");
    info.size = (size_t)-1;
    GIVES(forebay_safety(file, &info), -EINVAL, "sizeof");
    GIVES(forebay_safety(file, NULL), -EINVAL, "NULL");
    struct forebay_extent extent;
    GIVES(forebay_placement(file, -1, 1, &extent, 1), -EINVAL, "-1");
    GIVES(forebay_placement(file, 0, 1, &extent, -1), -EINVAL, "-1");
    GIVES(forebay_placement(file, 0, 1, NULL, 1), -EINVAL, "NULL");

    /* The program closes what is not its own; another file gets the number. */
    CHECK(close(forebay_fd(file)) == 0);
    GIVES(forebay_read(file, got, 1, 0), -EBADF, "descriptor");
    GIVES(forebay_wait(file, FOREBAY_STORE, -1), -EBADF, "descriptor");
    GIVES(forebay_close(file), -EBADF, "written");
    GIVES(forebay_close(file), FOREBAY_E_CLOSED, "closed");
    GIVES(forebay_size(file), FOREBAY_E_CLOSED, "closed");
    forebay_file *reader;
    CHECK(forebay_open(session, path, O_RDONLY, 0, &reader) == 0);
    GIVES(forebay_write(reader, "x", 1, 0), -EBADF, "1 bytes at offset 0");
    int ends[2];
    CHECK(pipe(ends) == 0 && forebay_use_fd(session, ends[0], &file) == 0);
    GIVES(forebay_read(file, got, 1, 0), -ESPIPE, "descriptor");
    GIVES(forebay_hint(file, FOREBAY_HINT_WILLNEED, 0, 0), -ESPIPE, "descriptor");
    GIVES(forebay_flush(file, FOREBAY_STORE), -EINVAL, "flush pipe:");
    GIVES(forebay_wait(file, FOREBAY_STORE, 0), -EINVAL, "flush");

    forebay_session *many[1100];
    int count = 0;
    while (count < 1100 && forebay_start(0, &many[count]) == 0)
        count++;
    CHECK(count == 1023 && strstr(forebay_last_message(), "1024 sessions"));
    while (count > 0)
        CHECK(forebay_end(many[--count]) == 0);
    CHECK(forebay_end(session) == 0);
    GIVES(forebay_close(reader), FOREBAY_E_CLOSED, "session");
    CHECK(strstr(forebay_strerror(FOREBAY_E_NOT_RUNNING), "forebay run"));
    CHECK(!strcmp(forebay_strerror(-ENOENT), strerror(ENOENT)) && *forebay_strerror(-1000000));
    CHECK(forebay_api_version() == FOREBAY_API_VERSION);
    puts("done");
}

/* Whether all threads of a process are stopped: the signal takes a while to get to each. */
static int is_stopped(pid_t pid) {
    char path[600], line[600];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    CHECK(tasks);
    int running = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (*task->d_name == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, task->d_name);
        FILE *stat = fopen(path, "r");
        if (stat && fgets(line, sizeof line, stat))
            running += strrchr(line, ')')[2] != 'T';
        if (stat)
            fclose(stat);
    }
    closedir(tasks);
    return !running;
}

/* A node manager that does not go on. */
static void late(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    pid_t manager = (pid_t)pool(session).manager;
    forebay_file *file = opened(session, path);
    write_all(file, written, BYTES, 0);
    CHECK(kill(manager, SIGSTOP) == 0);
    while (!is_stopped(manager))
        nap(1);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    GIVES(forebay_wait(file, FOREBAY_STORE, 300), -ETIMEDOUT, "300 ms");
    clock_gettime(CLOCK_MONOTONIC, &after);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    CHECK(ms >= 300 && ms < 20000);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0);
    GIVES(forebay_wait(file, FOREBAY_STORE, 0), -ETIMEDOUT, "goes on");
    GIVES(forebay_wait_all(session, FOREBAY_STORE, 200), -ETIMEDOUT, "200 ms");
    CHECK(kill(manager, SIGCONT) == 0);
    CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0);
    CHECK(forebay_wait_all(session, FOREBAY_STORE, 60000) == 0);
    CHECK(forebay_end(session) == 0);
    puts("done");
}

/* Without a node manager the library does it itself. */
static void alone(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    pid_t manager = (pid_t)pool(session).manager;
    forebay_file *file = opened(session, path);
    write_all(file, written, BYTES, 0);
    CHECK(forebay_flush(file, FOREBAY_STORE) == 0);
    CHECK(kill(getppid(), SIGKILL) == 0 && kill(manager, SIGKILL) == 0);
    while (pool(session).is_served)
        nap(1);
    write_all(file, "alone", 5, 0);
    int told = forebay_is_safe(file, FOREBAY_STORE);
    CHECK(told == 0 || (told == -ECONNREFUSED && strstr(forebay_last_message(), "forebay_wait")));
    CHECK(forebay_wait(file, FOREBAY_STORE, 0) == 0 && safe_in_time(file, FOREBAY_STORE));
    write_all(file, "again", 5, 0);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0);
    CHECK(forebay_flush(file, FOREBAY_DURABLE) == 0 && safe_in_time(file, FOREBAY_DURABLE));
    CHECK(safety(file).memory_bytes == 0);
    CHECK(pwrite(forebay_fd(file), "later", 5, 0) == 5);
    CHECK(forebay_is_safe(file, FOREBAY_DURABLE) == 0 && forebay_is_safe(file, FOREBAY_STORE) == 0);
    GIVES(forebay_wait_all(session, FOREBAY_STORE, 500), -ECONNREFUSED, "forebay recover");
    GIVES(forebay_flush_all(session, FOREBAY_STORE), -ECONNREFUSED, "no node manager");
    CHECK(forebay_wait(file, FOREBAY_STORE, 0) == 0 && forebay_end(session) == 0);
    FILE *mark = fopen(getenv("MARK"), "w");
    CHECK(mark && fclose(mark) == 0);
}

static forebay_file *one;
static int raw;

/* A system call that no library stands before: what the store's file itself has. */
static long kernel(long number, long a, long b, long c, long d) {
#if defined __x86_64__
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
#else
#error "how are system calls made here?"
#endif
}

static void *count(void *number) {
    int64_t at = (long)number * 4096;
    unsigned safe = 0;
    for (unsigned long turn = 1; turn <= 300; turn++) {
        CHECK(forebay_write(one, &turn, sizeof turn, at) == sizeof turn);
        CHECK(forebay_flush(one, FOREBAY_STORE) == 0);
        for (int look = 0; look < 200; look++) {
            if (forebay_is_safe(one, FOREBAY_STORE) != 1)
                continue;
            unsigned long stored = 0;
            CHECK(kernel(SYS_pread64, raw, (long)&stored, sizeof stored, at) == sizeof stored);
            CHECK(stored >= turn);
            safe++;
            break;
        }
    }
    return (void *)(long)safe;
}

/* Threads that flush one file by one handle: none is told that it is safe before it is. */
static void shared(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    one = opened(session, path);
    write_all(one, written, 8 * 4096, 0);
    CHECK(forebay_wait(one, FOREBAY_STORE, -1) == 0);
    raw = (int)kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
    CHECK(raw >= 0);
    pthread_t all[8];
    for (long number = 0; number < 8; number++)
        CHECK(pthread_create(&all[number], NULL, count, (void *)number) == 0);
    for (int number = 0; number < 8; number++)
        CHECK(pthread_join(all[number], NULL) == 0);
    CHECK(forebay_flush(one, FOREBAY_STORE) == 0 && safe_in_time(one, FOREBAY_STORE));
    CHECK(forebay_end(session) == 0);
    puts("done");
}

static forebay_session *common;
static const char *folder;

static void *work(void *number) {
    char path[4096], mine[5000], back[5000];
    snprintf(path, sizeof path, "%s/thread-%ld", folder, (long)number);
    forebay_file *shared;
    CHECK(forebay_open(common, folder, O_RDWR, 0, &shared) == -EISDIR);
    for (int turn = 0; turn < 300; turn++) {
        forebay_file *file = opened(common, path);
        pattern(mine, sizeof mine, turn + (int)(long)number);
        write_all(file, mine, sizeof mine, turn * 1000);
        CHECK(forebay_read(file, back, sizeof back, turn * 1000) == sizeof back);
        CHECK(!memcmp(mine, back, sizeof mine));
        if (turn % 50 == 0)
            CHECK(forebay_wait(file, turn % 100 ? FOREBAY_STORE : FOREBAY_DURABLE, -1) == 0);
        CHECK(forebay_close(file) == 0);
        CHECK(forebay_close(file) == FOREBAY_E_CLOSED);
    }
    return NULL;
}

static forebay_file *passed;

/* Uses a file that another thread closes at some time. */
static void *use(void *nothing) {
    char back[100];
    int64_t result;
    while ((result = forebay_read(passed, back, sizeof back, 0)) == 100)
        CHECK(back[0] == written[0] && back[99] == written[99]);
    CHECK(result == FOREBAY_E_CLOSED);
    return nothing;
}

static void threads(const char *path) {
    common = started(FOREBAY_REQUIRE);
    folder = path;
    pthread_t all[4];
    for (long number = 0; number < 4; number++)
        CHECK(pthread_create(&all[number], NULL, work, (void *)number) == 0);
    for (int number = 0; number < 4; number++)
        CHECK(pthread_join(all[number], NULL) == 0);
    char file[4096];
    pattern(written, 100, 9);
    snprintf(file, sizeof file, "%s/passed", path);
    for (int turn = 0; turn < 50; turn++) {
        passed = opened(common, file);
        int fd = forebay_fd(passed);
        write_all(passed, written, 100, 0);
        for (int number = 0; number < 2; number++)
            CHECK(pthread_create(&all[number], NULL, use, NULL) == 0);
        nap(1);
        CHECK(forebay_close(passed) == 0);
        for (int number = 0; number < 2; number++)
            CHECK(pthread_join(all[number], NULL) == 0);
        CHECK(fcntl(fd, F_GETFD) < 0);
    }
    CHECK(forebay_end(common) == 0);
    puts("done");
}

static void forks(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    forebay_file *file = opened(session, path);
    write_all(file, "parent", 6, 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(forebay_is_active(session) == 1 && forebay_is_safe(file, FOREBAY_STORE) == 0);
        CHECK(forebay_read(file, got, 6, 0) == 6 && !memcmp(got, "parent", 6));
        write_all(file, "child ", 6, 6);
        CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0);
        CHECK(forebay_close(file) == 0 && forebay_end(session) == 0);
        forebay_session *own = started(FOREBAY_REQUIRE);
        file = opened(own, path);
        write_all(file, "again", 5, 12);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(forebay_read(file, got, 99, 0) == 17 && !memcmp(got, "parentchild again", 17));
    CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0 && forebay_end(session) == 0);
    puts("done");
}

/* Writes, waits until it is safe, says so, and is killed. */
static void killed(const char *path, const char *level, const char *mark) {
    int wanted = !strcmp(level, "store") ? FOREBAY_STORE : FOREBAY_DURABLE;
    forebay_session *session = started(FOREBAY_REQUIRE);
    forebay_file *file = opened(session, path);
    pattern(written, BYTES, 4);
    write_all(file, written, BYTES, 0);
    CHECK(forebay_flush(file, wanted) == 0);
    while (forebay_is_safe(file, wanted) == 0)
        nap(1);
    CHECK(forebay_is_safe(file, wanted) == 1);
    close(open(mark, O_CREAT | O_WRONLY, 0600));
    for (;;)
        pause();
}

/* Blocks that are told to be read next are in RAM when they are read, and no others. */
static void ahead(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    forebay_file *file = opened(session, path);
    struct forebay_extent extents[8];
    CHECK(forebay_size(file) == 12 * BLOCK);
    CHECK(forebay_placement(file, 0, INT64_MAX, extents, 8) == 1);
    CHECK(extents[0].tier == FOREBAY_TIER_STORE && extents[0].bytes == 12 * BLOCK);
    struct forebay_range ranges[2] = {{8 * BLOCK, 2 * BLOCK}, {BLOCK, BLOCK}};
    CHECK(forebay_will_read(file, ranges, 2) == 0);
    for (int turn = 0; forebay_placement(file, 0, INT64_MAX, extents, 8) != 5; turn++) {
        CHECK(turn < 10000);
        nap(2);
    }
    CHECK(extents[1].offset == BLOCK && extents[1].bytes == BLOCK && extents[1].tier == 0);
    CHECK(extents[3].offset == 8 * BLOCK && extents[3].bytes == 2 * BLOCK && extents[3].tier == 0);
    CHECK(!extents[1].is_ahead && !extents[3].is_ahead && extents[4].tier == FOREBAY_TIER_STORE);
    CHECK(forebay_read(file, got, BLOCK, 8 * BLOCK) == BLOCK && got[0] == 1 && got[BLOCK - 1] == 1);
    CHECK(forebay_hint(file, FOREBAY_HINT_DONTNEED, 0, 4 * BLOCK) == 0);
    CHECK(forebay_placement(file, 0, INT64_MAX, extents, 8) == 3 && extents[1].offset == 8 * BLOCK);
    CHECK(forebay_hint(file, FOREBAY_HINT_RANDOM, 0, 0) == 0);
    CHECK(forebay_hint(file, FOREBAY_HINT_NORMAL, 0, 0) == 0);
    CHECK(forebay_hint(file, FOREBAY_HINT_WILLNEED, 0, BLOCK) == 0);
    for (int turn = 0; forebay_placement(file, 0, BLOCK, extents, 8) != 1 || extents[0].tier; turn++) {
        CHECK(turn < 10000);
        nap(2);
    }
    CHECK(forebay_end(session) == 0);
    puts("done");
}

/* A file that cannot be brought to the store, and that is told. */
static void failing(const char *path, const char *fault) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    forebay_file *file = opened(session, path);
    write_all(file, written, BYTES, 0);
    GIVES(forebay_wait(file, FOREBAY_STORE, -1), -ENOSPC, "flush");
    CHECK(forebay_is_safe(file, FOREBAY_STORE) != 1);
    CHECK(forebay_flush(file, FOREBAY_STORE) == 0);
    int result;
    while ((result = forebay_is_safe(file, FOREBAY_STORE)) == 0)
        nap(1);
    CHECK(result == -ENOSPC || result == 1);
    CHECK(unlink(fault) == 0);
    while (forebay_wait(file, FOREBAY_STORE, -1) != 0)
        nap(1);
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 1 && forebay_end(session) == 0);
    puts("done");
}

/* A file that its run has made scratch. */
static void scratch(const char *path) {
    forebay_session *session = started(FOREBAY_REQUIRE);
    forebay_file *file = opened(session, path);
    write_all(file, written, 100, 0);
    GIVES(forebay_flush(file, FOREBAY_STORE), -EOPNOTSUPP, "scratch");
    GIVES(forebay_wait(file, FOREBAY_DURABLE, -1), -EOPNOTSUPP, "scratch");
    CHECK(forebay_is_safe(file, FOREBAY_STORE) == 0 && forebay_end(session) == 0);
    puts("done");
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";
    if (!strcmp(part, "buffered") && argc == 4)
        buffered(path, argv[3]);
    else if (!strcmp(part, "plain"))
        plain(path);
    else if (!strcmp(part, "bad"))
        bad(path);
    else if (!strcmp(part, "late"))
        late(path);
    else if (!strcmp(part, "alone"))
        alone(path);
    else if (!strcmp(part, "shared"))
        shared(path);
    else if (!strcmp(part, "threads"))
        threads(path);
    else if (!strcmp(part, "forks"))
        forks(path);
    else if (!strcmp(part, "killed") && argc == 5)
        killed(path, argv[3], argv[4]);
    else if (!strcmp(part, "ahead"))
        ahead(path);
    else if (!strcmp(part, "failing") && argc == 4)
        failing(path, argv[3]);
    else if (!strcmp(part, "scratch"))
        scratch(path);
    else
        return 2;
    return 0;
}
