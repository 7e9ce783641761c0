/* Programs of two nodes take turns with the names of files, as soon as each can, and compare what
 * they see with what it has to be on one node. Whose turn it is, stands in a file that is not
 * buffered:
 *
 *     relay names TURNS ROLE ROUNDS    two roles, 0 and 1
 *     relay log TURNS ROLE RECORDS     0 and 1 append to a log; 2 reads its last records
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

enum { LENGTH = 30000, RECORD = 64 };

static struct {
    atomic_int turn;
    atomic_int ended;
} * shared;
static int role, next;

/* Waits for the next turn; whether it is this program's. */
static int turn(int whose)
{
    while (atomic_load(&shared->turn) < next)
        sched_yield();
    return role == whose;
}

/* Its turn is over. */
static void over(int whose)
{
    next++;
    if (role == whose)
        atomic_store(&shared->turn, next);
}

#define TURN(whose) for (int own_ = turn(whose), once_ = 1; once_; once_ = 0, over(whose)) if (own_)

static int opened(const char *name, int flags)
{
    int file = open(name, flags, 0644);
    CHECK(file >= 0);
    return file;
}

static void fill(char *bytes, int seed)
{
    for (int i = 0; i < LENGTH; i++)
        bytes[i] = (char)(1 + (seed + i) % 251);
}

static void put(int file, int seed, size_t length)
{
    char bytes[LENGTH];
    fill(bytes, seed);
    CHECK(pwrite(file, bytes, length, 0) == (ssize_t)length);
}

static void make(const char *name, int seed, size_t length)
{
    int file = opened(name, O_CREAT | O_EXCL | O_WRONLY);
    put(file, seed, length);
    CHECK(close(file) == 0);
}

static void expect(int file, int seed, size_t length)
{
    char wanted[LENGTH], found[LENGTH + 1];
    fill(wanted, seed);
    ssize_t got = pread(file, found, sizeof found, 0);
    if (got != (ssize_t)length || memcmp(found, wanted, length) != 0) {
        fprintf(stderr, "file of %d: %zd of %zu bytes\n", seed, got, length);
        exit(1);
    }
}

static void expect_named(const char *name, int seed, size_t length)
{
    int file = opened(name, O_RDONLY);
    struct stat status;
    CHECK(fstat(file, &status) == 0 && status.st_size == (off_t)length);
    expect(file, seed, length);
    CHECK(close(file) == 0);
}

static void names(int rounds)
{
    for (int round = 0; round < rounds; round++) {
        int file = -1, own = -1, creates = round % 2 ? O_CREAT : 0;
        size_t length = round % 3 ? LENGTH : 10;

        /* One truncates what the other one has just made. */
        TURN(1) make("cut", round, length);
        TURN(0) {
            file = opened("cut", O_RDWR | O_TRUNC | creates);
            expect(file, 0, 0);
            if (round % 4 < 2)
                put(file, round + 7, 5);
            CHECK(close(file) == 0);
        }
        TURN(1) expect_named("cut", round + 7, round % 4 < 2 ? 5 : 0);
        TURN(0) CHECK(unlink("cut") == 0);

        /* One removes what it has made, or replaces it, and the other one has it open. */
        TURN(1) make("open", round, length);
        TURN(0) file = opened("open", O_RDONLY);
        TURN(1) {
            if (round % 2) {
                CHECK(unlink("open") == 0);
            } else {
                make("new", round + 1, length);
                CHECK(rename("new", "open") == 0);
            }
        }
        TURN(0) {
            expect(file, round, length);
            CHECK(close(file) == 0);
        }
        TURN(0) if (round % 2 == 0) {
            expect_named("open", round + 1, length);
            CHECK(unlink("open") == 0);
        }

        /* One opens, removes and then reads what the other one has just made. */
        TURN(1) make("gone", round, length);
        TURN(0) {
            file = opened("gone", O_RDONLY);
            CHECK(unlink("gone") == 0);
            expect(file, round, length);
            CHECK(close(file) == 0);
        }

        /* Both go on with what has no name any more. */
        TURN(0) file = opened("both", O_CREAT | O_RDWR);
        TURN(1) {
            own = opened("both", O_RDWR);
            put(own, round, length);
        }
        TURN(0) expect(file, round, length);
        TURN(1) CHECK(unlink("both") == 0);
        TURN(0) {
            put(file, round + 3, length);
            CHECK(close(file) == 0);
        }
        TURN(1) {
            expect(own, round + 3, length);
            put(own, round + 5, length);
            expect(own, round + 5, length);
            CHECK(close(own) == 0);
        }
    }
}

static void append(int records)
{
    char record[RECORD];
    int file = opened("log", O_CREAT | O_WRONLY | O_APPEND);
    memset(record, 'a' + role, sizeof record);
    for (int i = 0; i < records; i++)
        CHECK(write(file, record, sizeof record) == RECORD);
    CHECK(close(file) == 0);
    atomic_fetch_add(&shared->ended, 1);
}

static void look(void)
{
    char record[RECORD];
    off_t before = 0;
    while (atomic_load(&shared->ended) < 2) {
        struct stat status;
        if (stat("log", &status) != 0)
            continue;
        CHECK(status.st_size >= before);
        before = status.st_size;
        if (before < RECORD)
            continue;
        int file = opened("log", O_RDONLY);
        ssize_t got = pread(file, record, sizeof record, before / RECORD * RECORD - RECORD);
        if (got != RECORD || record[0] != record[RECORD - 1] || record[0] < 'a') {
            fprintf(stderr, "of %lld bytes the last %zd\n", (long long)before, got);
            exit(1);
        }
        CHECK(close(file) == 0);
    }
}

int main(int count, char **words)
{
    CHECK(count == 5);
    int turns = open(words[2], O_RDWR | O_CREAT, 0600);
    CHECK(turns >= 0 && ftruncate(turns, 4096) == 0);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, turns, 0);
    CHECK(shared != MAP_FAILED);
    role = atoi(words[3]);
    if (strcmp(words[1], "names") == 0)
        names(atoi(words[4]));
    else if (role < 2)
        append(atoi(words[4]));
    else
        look();
    puts("ok");
    return 0;
}
