/* Pins of include/forebay/forebay.h: the first argument says which part. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 256 << 10 };
static const int64_t MIB = 1 << 20;

static char block[BLOCK], got[BLOCK];

static forebay_session *session;

static forebay_file *opened(const char *path) {
    forebay_file *file;
    CHECK(forebay_open(session, path, O_RDWR | O_CREAT, 0600, &file) == 0);
    return file;
}

static void nap(int ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static void fill(forebay_file *file, int64_t from, int64_t to, int seed) {
    for (int64_t at = from; at < to; at += BLOCK) {
        memset(block, (int)(at / BLOCK * 7 + seed), BLOCK);
        CHECK(forebay_write(file, block, BLOCK, at) == BLOCK);
    }
}

static void same(forebay_file *file, int64_t from, int64_t to, int seed) {
    for (int64_t at = from; at < to; at += BLOCK) {
        memset(block, (int)(at / BLOCK * 7 + seed), BLOCK);
        CHECK(forebay_read(file, got, BLOCK, at) == BLOCK && !memcmp(block, got, BLOCK));
    }
}

/* Bytes of a part of a file that are in `tier` or a faster one. */
static int64_t there(forebay_file *file, int64_t offset, int64_t bytes, int tier) {
    static struct forebay_extent extents[1024];
    int64_t count = forebay_placement(file, offset, bytes, extents, 1024), sum = 0;
    CHECK(count >= 0 && count <= 1024);
    for (int64_t at = 0; at < count; at++)
        if (extents[at].tier >= 0 && extents[at].tier <= tier)
            sum += extents[at].bytes;
    return sum;
}

/* Writes more than RAM and tiers hold, and reads it again: all else has to make way. */
static void press(const char *path, int64_t bytes) {
    forebay_file *file = opened(path);
    for (int turn = 0; turn < 2; turn++) {
        fill(file, 0, bytes, turn);
        same(file, 0, bytes, turn);
    }
    CHECK(forebay_close(file) == 0);
}

/* Presses until something of the part has left RAM. */
static void leaves(forebay_file *file, int64_t offset, int64_t bytes, const char *other) {
    for (int turn = 0; there(file, offset, bytes, 0) == bytes; turn++) {
        CHECK(turn < 50);
        press(other, 48 * MIB);
        nap(50);
    }
}

static void hold(const char *path, const char *other) {
    forebay_file *file = opened(path), *beside = opened(path);
    fill(file, 0, 6 * MIB, 3);
    CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0);
    /* From the store, and what is in RAM already. */
    CHECK(forebay_hint(file, FOREBAY_HINT_DONTNEED, 0, 2 * MIB) == 0);
    CHECK(there(file, 0, 2 * MIB, 1) == 0);
    CHECK(forebay_pin(file, 0, 4 * MIB, FOREBAY_TIER_RAM) == 0);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    press(other, 48 * MIB);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    leaves(file, 4 * MIB, 2 * MIB, other);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    same(file, 0, 6 * MIB, 3);
    CHECK(forebay_hint(file, FOREBAY_HINT_DONTNEED, 0, 0) == 0);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    /* What is written to it is flushed, and stays. */
    fill(file, 0, 4 * MIB, 5);
    CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0);
    press(other, 48 * MIB);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    /* Another handle has pinned nothing; a part of a pin is none. */
    CHECK(forebay_unpin(beside, 0, 0) == 0);
    CHECK(forebay_unpin(file, 0, MIB) == 0 && forebay_unpin(file, 0, 4 * MIB) == 1);
    CHECK(forebay_unpin(file, 0, 0) == 0);
    leaves(file, 0, 4 * MIB, other);
    same(file, 0, 4 * MIB, 5);

    /* From a file tier, and bytes that are not there yet. */
    CHECK(forebay_pin(file, 0, 8 * MIB, FOREBAY_TIER_RAM) == 0);
    CHECK(there(file, 0, 6 * MIB, 0) == 6 * MIB);
    fill(file, 6 * MIB, 8 * MIB, 5);
    press(other, 48 * MIB);
    CHECK(there(file, 0, 8 * MIB, 0) == 8 * MIB);
    CHECK(forebay_close(file) == 0);
    leaves(beside, 0, 8 * MIB, other);

    /* In a file tier, or above. */
    CHECK(forebay_pin(beside, 0, 0, 1) == 0);
    leaves(beside, 0, 8 * MIB, other);
    press(other, 80 * MIB);
    CHECK(there(beside, 0, 8 * MIB, 1) == 8 * MIB);
    same(beside, 0, 4 * MIB, 5);
    CHECK(forebay_end(session) == 0);
}

static void bad(const char *path) {
    forebay_file *file = opened(path);
    fill(file, 0, MIB, 1);
    GIVES(forebay_pin(NULL, 0, 1, 0), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_unpin(NULL, 0, 1), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_step(NULL), FOREBAY_E_HANDLE, "NULL");
    CHECK(forebay_step(file) == 0);
    GIVES(forebay_pin(file, -1, 1, 0), -EINVAL, "-1");
    GIVES(forebay_pin(file, 0, -4096, 0), -EINVAL, "-4096");
    GIVES(forebay_pin(file, INT64_MAX, 1, 0), -EINVAL, "no part of a file");
    GIVES(forebay_pin(file, 0, INT64_MAX, 0), -EINVAL, "less than 128 TiB");
    GIVES(forebay_pin(file, INT64_MAX - 1, 1, 0), -EINVAL, "nvalid");
    CHECK(forebay_pin(file, (int64_t)1 << 49, 1, 0) == 0 && forebay_unpin(file, 0, 0) == 1);
    GIVES(forebay_pin(file, 0, 1, 2), -ENOENT, "no tier 2");
    GIVES(forebay_pin(file, 0, 1, -1), -ENOENT, "no tier -1");
    GIVES(forebay_pin(file, 0, 1, INT_MAX), -ENOENT, "no tier");
    GIVES(forebay_pin(file, 0, 17 * MIB, 0), -EDQUOT, "placement.pin_limit");
    GIVES(forebay_pin(file, 0, (int64_t)1 << 40, 1), -EDQUOT, "placement.pin_limit");
    CHECK(forebay_unpin(file, 0, 0) == 0);
    GIVES(forebay_unpin(file, -1, 0), -EINVAL, "-1");
    /* Nothing, and behind the end. */
    CHECK(forebay_pin(file, MIB, 0, 0) == 0 && forebay_unpin(file, 0, 0) == 0);
    CHECK(forebay_pin(file, 100 * MIB, 0, 0) == 0 && forebay_unpin(file, 0, 0) == 0);
    for (int turn = 0; turn < 16; turn++)
        CHECK(forebay_pin(file, 0, MIB, 0) == 0);
    GIVES(forebay_pin(file, 0, 1, 0), -EDQUOT, "has pinned 16777216");
    CHECK(forebay_unpin(file, 0, 0) == 16);
    /* Mapped: the kernel's. */
    CHECK(forebay_pin(file, 0, MIB, 0) == 0);
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, forebay_fd(file), 0);
    CHECK(map != MAP_FAILED);
    GIVES(forebay_pin(file, 0, 1, 0), FOREBAY_E_NOT_BUFFERED, "kernel");
    CHECK(munmap(map, 4096) == 0 && forebay_close(file) == 0);
    GIVES(forebay_pin(file, 0, 1, 0), FOREBAY_E_CLOSED, "closed");
    CHECK(forebay_end(session) == 0);
}

/* In a run that has a quota of 4 MiB of each tier: pins keep to it, and wait for its room. */
static void quota(const char *path, int is_stored) {
    forebay_file *file = opened(path);
    fill(file, 0, 12 * MIB, 4);
    if (is_stored)
        CHECK(forebay_wait(file, FOREBAY_STORE, 60000) == 0);
    GIVES(forebay_pin(file, 0, 8 * MIB, 0), -EDQUOT, "quota");
    GIVES(forebay_pin(file, 0, 4 * MIB + 1, 1), -EDQUOT, "has pinned 0");
    CHECK(forebay_unpin(file, 0, 0) == 0);
    CHECK(forebay_pin(file, 0, 4 * MIB, 0) == 0);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    CHECK(there(file, 0, 12 * MIB, 0) <= 4 * MIB + BLOCK);
    GIVES(forebay_pin(file, 8 * MIB, 1, 0), -EDQUOT, "has pinned 4194304");
    /* RAM is used up by pins: what goes to the next tier is there for a block at a time. */
    CHECK(forebay_pin(file, 8 * MIB, 4 * MIB, 1) == 0);
    CHECK(there(file, 8 * MIB, 4 * MIB, 1) == 4 * MIB);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    CHECK(there(file, 0, 12 * MIB, 0) <= 4 * MIB + BLOCK);
    CHECK(there(file, 0, 12 * MIB, 1) <= 8 * MIB + BLOCK);
    same(file, 0, 12 * MIB, 4);
    CHECK(forebay_unpin(file, 0, 0) == 2);
    CHECK(forebay_pin(file, 4 * MIB, 4 * MIB, 0) == 0);
    CHECK(there(file, 4 * MIB, 4 * MIB, 0) == 4 * MIB);
    CHECK(forebay_close(file) == 0);
}

static void plain(const char *path) {
    forebay_file *file = opened(path);
    GIVES(forebay_pin(file, 0, 1, 0), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_unpin(file, 0, 1), FOREBAY_E_NOT_RUNNING, "forebay run");
    CHECK(forebay_end(session) == 0);
}

/* A child has the pins of its parent, until both have let go. */
static void forks(const char *path, const char *other) {
    forebay_file *file = opened(path);
    fill(file, 0, 4 * MIB, 2);
    CHECK(forebay_pin(file, 0, 4 * MIB, 0) == 0);
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(go[1]);
        CHECK(read(go[0], got, 1) == 0);
        _exit(0);
    }
    CHECK(forebay_close(file) == 0);
    press(other, 48 * MIB);
    file = opened(path);
    CHECK(there(file, 0, 4 * MIB, 0) == 4 * MIB);
    close(go[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int turn = 0; there(file, 0, 4 * MIB, 0) == 4 * MIB; turn++) {
        CHECK(turn < 100);
        press(other, 48 * MIB);
        nap(100);
    }
    CHECK(forebay_end(session) == 0);
}

/* Pins, says so, and stays, or executes another program. */
static void stay(const char *path, const char *mark, char **then) {
    forebay_file *file = opened(path);
    fill(file, 0, 8 * MIB, 2);
    CHECK(forebay_pin(file, 0, 8 * MIB, 0) == 0);
    close(open(mark, O_CREAT | O_WRONLY, 0600));
    if (then)
        execvp(then[0], then);
    for (;;)
        nap(1000);
}

/* As much as the run may; then a writer beside it. */
static void full(const char *path, const char *mark) {
    forebay_file *file = opened(path);
    fill(file, 0, 32 * MIB, 2);
    int64_t pinned = 0;
    int code = 0;
    while (pinned < 32 * MIB && (code = forebay_pin(file, pinned, BLOCK, 0)) == 0)
        pinned += BLOCK;
    CHECK(code == -EDQUOT || code == -ENOSPC);
    CHECK(there(file, 0, pinned, 0) == pinned);
    close(open(mark, O_CREAT | O_WRONLY, 0600));
    for (;;)
        nap(1000);
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";
    const char *other = argc > 3 ? argv[3] : "";
    CHECK(forebay_start(0, &session) == 0);
    if (!strcmp(part, "hold"))
        hold(path, other);
    else if (!strcmp(part, "bad"))
        bad(path);
    else if (!strcmp(part, "plain"))
        plain(path);
    else if (!strcmp(part, "forks"))
        forks(path, other);
    else if (!strcmp(part, "quota"))
        for (int is_stored = 0; is_stored < 2; is_stored++)
            quota(path, is_stored);
    else if (!strcmp(part, "press"))
        press(path, 64 * MIB);
    else if (!strcmp(part, "stay"))
        stay(path, other, argc > 4 ? argv + 4 : NULL);
    else if (!strcmp(part, "full"))
        full(path, other);
    else
        return 2;
    puts("done");
    return 0;
}
