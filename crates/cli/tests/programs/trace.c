/* Programs that mark phases, for `forebay trace`.
 *
 *     trace marks DIR      three threads, a child, and a child that executes this program
 *     trace image DIR      what that does
 *     trace killed FILE    ends by SIGKILL within a phase
 *     trace endless FILE   goes on until a signal
 *     trace many FILE N    N small writes, and as many reads
 *     trace cost FILE N    N marks
 *     trace names          names that are none
 *     trace plain          says what marks return
 */
#include <fcntl.h>
#include <forebay/forebay.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static forebay_session *session;
static char block[1 << 20];

static void check(int is_good, int line) {
    if (!is_good) {
        fprintf(stderr, "line %d: %s\n", line, forebay_last_message());
        exit(1);
    }
}
#define CHECK(condition) check((condition) != 0, __LINE__)

static void compute(long ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void begin(const char *name) { CHECK(forebay_phase_begin(session, name) == 0); }
static void end(void) { CHECK(forebay_phase_end(session) == 0); }

static int opened(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    return fd;
}

static void step(const char *name, const char *path) {
    begin(name);
    compute(20);
    begin("inner");
    compute(5);
    end();
    int fd = opened(path);
    CHECK(pwrite(fd, block, sizeof block, 0) == sizeof block);
    CHECK(pread(fd, block, sizeof block, 0) == sizeof block);
    end();
    CHECK(fsync(fd) == 0);
    CHECK(close(fd) == 0);
}

static const char *folder;

static void *work(void *number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/thread%d", folder, *(int *)number);
    for (int turn = 0; turn < 4; turn++)
        step(turn < 2 ? "forward" : "backward", path);
    return NULL;
}

static void marks(const char *program) {
    pthread_t threads[3];
    int numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    char path[4096];
    snprintf(path, sizeof path, "%s/child", folder);
    begin("children");
    for (int is_image = 0; is_image < 2; is_image++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            step("forked", path);
            /* Left open by the exec. */
            begin("before the exec");
            if (is_image)
                execl(program, program, "image", folder, (char *)NULL);
            _exit(is_image);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end();
}

static void many(const char *path, int count) {
    int fd = opened(path);
    for (int i = 0; i < count; i++)
        CHECK(pwrite(fd, block, 64, (off_t)i % 4096 * 64) == 64);
    for (int i = 0; i < count; i++)
        CHECK(pread(fd, block, 64, (off_t)i % 4096 * 64) == 64);
    close(fd);
}

int main(int count, char **words) {
    CHECK(count >= 2 && forebay_start(0, &session) == 0);
    const char *what = words[1], *path = words[2];
    folder = path;
    if (strcmp(what, "marks") == 0) {
        marks(words[0]);
    } else if (strcmp(what, "image") == 0) {
        char file[4096];
        snprintf(file, sizeof file, "%s/image", folder);
        step("executed", file);
    } else if (strcmp(what, "killed") == 0) {
        begin("doomed");
        int fd = opened(path);
        CHECK(write(fd, block, sizeof block) == sizeof block);
        compute(50);
        CHECK(write(fd, block, sizeof block) == sizeof block);
        raise(SIGKILL);
    } else if (strcmp(what, "endless") == 0) {
        int fd = opened(path);
        for (;;) {
            begin("step");
            compute(10);
            end();
            CHECK(pwrite(fd, block, sizeof block, 0) == sizeof block);
        }
    } else if (strcmp(what, "many") == 0) {
        many(path, atoi(words[3]));
    } else if (strcmp(what, "cost") == 0) {
        int fd = opened(path), turns = atoi(words[3]);
        begin("first");
        end();
        CHECK(access("first-marker", F_OK) != 0);
        for (int i = 0; i < turns; i++) {
            begin("forward");
            end();
        }
        CHECK(access("second-marker", F_OK) != 0);
        close(fd);
    } else if (strcmp(what, "names") == 0) {
        char long_one[300];
        memset(long_one, 'n', sizeof long_one - 1);
        long_one[sizeof long_one - 1] = 0;
        const char *names[] = {"</text><script>alert(1)</script>", "\"},{\"ph\":\"X\"", "a\\\"b\n\t\x01\x7f",
                               "\xff\xfe broken", "]]>&amp;<!--", "", long_one};
        int fd = opened(path);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            begin(names[i]);
            compute(2);
            CHECK(pwrite(fd, block, 4096, 0) == 4096);
            end();
        }
        /* More ends than begins harm nothing. */
        end();
        CHECK(forebay_phase_begin(session, NULL) == -22);
        CHECK(forebay_phase_begin(NULL, "a") == FOREBAY_E_HANDLE);
        CHECK(forebay_phase_end((forebay_session *)&fd) == FOREBAY_E_HANDLE);
        CHECK(forebay_end(session) == 0);
        CHECK(forebay_phase_begin(session, "a") == FOREBAY_E_CLOSED);
    } else {
        CHECK(forebay_is_active(session) == 0);
        begin("a");
        end();
        end();
    }
    puts("done");
    return 0;
}
