/* Actions of include/forebay/forebay.h: the first argument says which part. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static forebay_session *session;

static const char *const CAT[] = {"cat", "{file}", NULL};

static void nap(int ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static struct forebay_analysis analysis(const char *name, const char *match) {
    struct forebay_analysis one = FOREBAY_ANALYSIS;
    one.name = name;
    one.match = match;
    one.command = CAT;
    return one;
}

static int registered(const char *name, const char *match) {
    struct forebay_analysis one = analysis(name, match);
    return forebay_analyse(session, &one);
}

static struct forebay_action_info info(const char *name) {
    struct forebay_action_info info;
    memset(&info, 0x55, sizeof info);
    info.size = sizeof info;
    CHECK(forebay_action(session, name, &info) == 0);
    return info;
}

static int is_listed(const char *name) {
    static char names[64][FOREBAY_NAME];
    int count = forebay_actions(session, names, 64);
    CHECK(count >= 0 && count <= 64);
    for (int at = 0; at < count; at++)
        if (!strcmp(names[at], name))
            return 1;
    return 0;
}

static void write_text(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

/* Waits until the file has this text in it. */
static void becomes(const char *path, const char *text) {
    char got[256];
    for (int turn = 0; turn < 3000; turn++, nap(20)) {
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        ssize_t count = read(fd, got, sizeof got - 1);
        close(fd);
        got[count < 0 ? 0 : count] = 0;
        if (strstr(got, text))
            return;
    }
    fprintf(stderr, "%s never has \"%s\" in it\n", path, text);
    exit(1);
}

static void runs(void) {
    CHECK(!is_listed("copy"));
    CHECK(registered("copy", "*.dat") == 0);
    CHECK(is_listed("copy"));
    struct forebay_action_info found = info("copy");
    CHECK(!strcmp(found.name, "copy") && !strcmp(found.match, "*.dat"));
    CHECK(found.kind == FOREBAY_ACTION_ANALYSIS && !found.is_configured && !found.failure[0]);
    write_text("one.dat", "the first");
    write_text("one.other", "another");
    /* The same again, as by another process of a job: it holds from the first time on. */
    CHECK(registered("copy", "*.dat") == 0);
    becomes("one.dat.copy.out", "the first");
    while (info("copy").done == 0)
        nap(20);
    CHECK(access("one.other.copy.out", F_OK) != 0);

    /* Changed: it fails now, and says so. */
    static const char *const fails[] = {"sh", "-c", "echo no good >&2; exit 3", NULL};
    struct forebay_analysis one = analysis("copy", "*.dat");
    one.command = fails;
    CHECK(forebay_analyse(session, &one) == 0);
    write_text("two.dat", "text");
    while ((found = info("copy")).failed == 0)
        nap(20);
    CHECK(strstr(found.failure, "two.dat") && strstr(found.failure, "no good"));
    CHECK(access("two.dat.copy.out", F_OK) != 0);

    /* At each step, with a result in another directory. */
    struct forebay_analysis steps = analysis("steps", "steps");
    steps.on = FOREBAY_ON_STEP;
    steps.results = "results";
    steps.timeout_ms = 60000;
    steps.result_max = 1 << 20;
    CHECK(mkdir("results", 0700) == 0 && forebay_analyse(session, &steps) == 0);
    forebay_file *file;
    CHECK(forebay_open(session, "steps", O_CREAT | O_RDWR, 0600, &file) == 0);
    CHECK(forebay_write(file, "step", 4, 0) == 4 && forebay_step(file) == 0);
    becomes("results/steps.steps.1.out", "step");
    CHECK(forebay_close(file) == 0);

    CHECK(forebay_action_remove(session, "copy") == 0 && !is_listed("copy"));
    GIVES(forebay_action_remove(session, "copy"), -ENOENT, "copy");
    CHECK(is_listed("steps"));
}

static void operates(void) {
    static const char *const sha256[] = {"sum=sha256", NULL};
    static const char *const by_number[] = {"record=4", "key=u32@0:desc", NULL};
    struct forebay_operation sum = FOREBAY_OPERATION, sort = FOREBAY_OPERATION;
    sum.match = sort.match = "*.dat";
    sum.operation = "checksum";
    sum.options = sha256;
    sum.patience_ms = 1;
    CHECK(forebay_operate(session, &sum) == 0);
    struct forebay_action_info found = info("checksum");
    CHECK(found.kind == FOREBAY_ACTION_OPERATION && !strcmp(found.match, "*.dat"));
    sort.operation = "sort";
    sort.options = by_number;
    sort.name = "largest-first";
    sort.suffix = ".by-number";
    sort.patience_ms = 1;
    CHECK(forebay_operate(session, &sort) == 0);
    write_text("records.dat", "aaaacccc");
    becomes("records.dat.sha256", "records.dat");
    becomes("records.dat.by-number", "ccccaaaa");
    /* Both kinds are in one list, and share its names. */
    CHECK(is_listed("checksum") && is_listed("largest-first"));
    sum.name = "again";
    GIVES(forebay_operate(session, &sum), -EEXIST, "suffix");
    CHECK(!is_listed("again") && registered("checksum", "*.dat") == 0);
    CHECK(info("checksum").kind == FOREBAY_ACTION_ANALYSIS);

    struct forebay_operation wrong = FOREBAY_OPERATION;
    GIVES(forebay_operate(session, &wrong), -EINVAL, "match is NULL");
    wrong.match = "*";
    GIVES(forebay_operate(session, &wrong), -EINVAL, "operation is NULL");
    wrong.operation = "pack";
    GIVES(forebay_operate(session, &wrong), -EINVAL, "there are sort, compress");
    wrong.operation = "compress";
    static const char *const no_value[] = {"level", NULL}, *const level[] = {"level=77", NULL};
    wrong.options = no_value;
    GIVES(forebay_operate(session, &wrong), -EINVAL, "NAME=VALUE");
    wrong.options = level;
    GIVES(forebay_operate(session, &wrong), -EINVAL, "level 77");
    wrong.options = NULL;
    wrong.replace = 1;
    wrong.results = "results";
    GIVES(forebay_operate(session, &wrong), -EINVAL, "no meaning with replace");
    wrong.results = NULL;
    wrong.drain = 7;
    GIVES(forebay_operate(session, &wrong), -EINVAL, "FOREBAY_DRAIN_");
    wrong.drain = 0;
    CHECK(forebay_operate(session, &wrong) == 0 && forebay_action_remove(session, "compress") == 0);
}

static void bad(void) {
    struct forebay_action_info found;
    char name[1][FOREBAY_NAME];
    struct forebay_analysis one = FOREBAY_ANALYSIS;
    GIVES(forebay_analyse(NULL, &one), FOREBAY_E_HANDLE, "NULL");
    GIVES(forebay_analyse(session, NULL), -EINVAL, "NULL");
    GIVES(forebay_analyse(session, &one), -EINVAL, "command is NULL");
    one.command = CAT;
    GIVES(forebay_analyse(session, &one), -EINVAL, "match is NULL");
    one.size = 0;
    GIVES(forebay_analyse(session, &one), -EINVAL, "FOREBAY_ANALYSIS");
    GIVES(registered("a", "\xff"), -EINVAL, "not UTF-8");
    GIVES(registered("a", "x["), -EINVAL, "match");
    GIVES(registered("a", ""), -EINVAL, "match");
    GIVES(registered("a", "../x"), -EINVAL, "canonical");
    GIVES(registered("a/b", "x"), -EINVAL, "part of a file's name");
    GIVES(registered("a\"\nmatch = \"", "x"), -EINVAL, "part of a file's name");
    GIVES(registered("configured", "x"), -EEXIST, "configuration");

    static const char *const nothing[] = {NULL}, *const blank[] = {"", NULL};
    static const char *const missing[] = {"no-such-program", NULL};
    static const char *const not_one[] = {"/dev/null", NULL};
    one = analysis("a", "x");
    one.command = nothing;
    GIVES(forebay_analyse(session, &one), -EINVAL, "command: is empty");
    one.command = blank;
    GIVES(forebay_analyse(session, &one), -EINVAL, "names no program");
    one.command = missing;
    GIVES(forebay_analyse(session, &one), -ENOENT, "no-such-program");
    one.command = not_one;
    GIVES(forebay_analyse(session, &one), -ENOENT, "/dev/null");
    one = analysis("a", "x");
    one.on = 7;
    GIVES(forebay_analyse(session, &one), -EINVAL, "FOREBAY_ON_");
    one.on = 0;
    one.drain = -1;
    GIVES(forebay_analyse(session, &one), -EINVAL, "FOREBAY_DRAIN_");
    one.drain = 0;
    one.may_drop = 1;
    GIVES(forebay_analyse(session, &one), -EINVAL, "needs drain");
    one.may_drop = 0;
    one.timeout_ms = -1;
    GIVES(forebay_analyse(session, &one), -EINVAL, "timeout");
    static const char *many[5000];
    for (int at = 0; at < 4999; at++)
        many[at] = at ? "a word of a command that is far too long for all that there is" : "cat";
    one = analysis("a", "x");
    one.command = many;
    GIVES(forebay_analyse(session, &one), -E2BIG, "256 KiB");
    CHECK(!is_listed("a"));

    GIVES(forebay_action_remove(session, NULL), -EINVAL, "name is NULL");
    GIVES(forebay_action_remove(session, ""), -ENOENT, "there is no");
    GIVES(forebay_action_remove(session, "configured"), -EPERM, "configuration");
    GIVES(forebay_actions(session, NULL, 1), -EINVAL, "names is NULL");
    GIVES(forebay_actions(session, name, -1), -EINVAL, "-1");
    CHECK(forebay_actions(session, NULL, 0) == 1);
    CHECK(forebay_actions(session, name, 1) == 1 && !strcmp(name[0], "configured"));
    CHECK(info("configured").is_configured == 1);
    found.size = 0;
    GIVES(forebay_action(session, "configured", &found), -EINVAL, "sizeof");
    found.size = sizeof found;
    GIVES(forebay_action(session, "no", &found), -ENOENT, "\"no\"");

    /* As many as there may be; none of them is lost by the one that is too many. */
    for (int at = 1; at < 64; at++) {
        char text[16];
        snprintf(text, sizeof text, "a%d", at);
        CHECK(registered(text, "x") == 0);
    }
    GIVES(registered("one-more", "x"), -ENOSPC, "64");
    CHECK(forebay_actions(session, NULL, 0) == 64 && is_listed("a63"));
    CHECK(registered("a63", "y") == 0 && !strcmp(info("a63").match, "y"));
}

static void plain(void) {
    struct forebay_operation one = FOREBAY_OPERATION;
    struct forebay_action_info found = {sizeof found};
    one.match = "*";
    one.operation = "compress";
    GIVES(registered("a", "*"), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_operate(session, &one), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_action_remove(session, "a"), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_actions(session, NULL, 0), FOREBAY_E_NOT_RUNNING, "forebay run");
    GIVES(forebay_action(session, "a", &found), FOREBAY_E_NOT_RUNNING, "forebay run");
}

static void forks(void) {
    CHECK(registered("of-the-parent", "*.dat") == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(is_listed("of-the-parent") && registered("of-the-child", "*.dat") == 0);
        CHECK(forebay_action_remove(session, "of-the-parent") == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* What a process has registered outlives it. */
    CHECK(is_listed("of-the-child") && !is_listed("of-the-parent"));
    write_text("file.dat", "text");
    becomes("file.dat.of-the-child.out", "text");
}

static void killed(void) {
    struct forebay_pool_info pool = {sizeof pool};
    CHECK(registered("before", "*.dat") == 0 && forebay_pool(session, &pool) == 0);
    CHECK(kill((pid_t)pool.manager, SIGKILL) == 0);
    /* Its successor is waited for, and has what was registered. */
    CHECK(registered("after", "*.dat") == 0 && is_listed("before"));
    write_text("file.dat", "text");
    becomes("file.dat.before.out", "text");
    becomes("file.dat.after.out", "text");
}

/* Where the node manager is killed on the way, nothing is noticed. */
static void survives(void) {
    CHECK(registered("first", "*.dat") == 0 && registered("second", "*.dat") == 0);
    CHECK(is_listed("first") && is_listed("second"));
    CHECK(registered("third", "*") == 0 && forebay_action_remove(session, "third") == 0);
    CHECK(is_listed("first") && is_listed("second") && !is_listed("third"));
    write_text("file.dat", "text");
    becomes("file.dat.first.out", "text");
    becomes("file.dat.second.out", "text");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*part)(void);
    } parts[] = {{"runs", runs},   {"operates", operates}, {"bad", bad},          {"plain", plain},
                 {"forks", forks}, {"killed", killed},     {"survives", survives}};
    CHECK(argc == 2 && forebay_start(0, &session) == 0);
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++)
        if (!strcmp(argv[1], parts[at].name)) {
            parts[at].part();
            CHECK(forebay_end(session) == 0);
            GIVES(registered("late", "*"), FOREBAY_E_CLOSED, "");
            puts("done");
            return 0;
        }
    return 2;
}
