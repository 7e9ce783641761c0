/* A program that was not linked to the C library loads it, as Python does: two copies, or one that
 * looks for all symbols in itself first. Both use the session that the process has. */
#include <dlfcn.h>
#include <fcntl.h>
#include <forebay/forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *(*message)(void);

static void check(int is_good, int line) {
    if (!is_good) {
        fprintf(stderr, "line %d: %s\n", line, message ? message() : dlerror());
        exit(1);
    }
}
#define CHECK(condition) check((condition) != 0, __LINE__)

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found);
    return found;
}

static void use(const char *name, int mode, const char *path, int is_buffered, const char *text) {
    void *library = dlopen(name, mode);
    CHECK(library);
    message = (const char *(*)(void))symbol(library, "forebay_last_message");
    int (*start)(unsigned, forebay_session **) =
        (int (*)(unsigned, forebay_session **))symbol(library, "forebay_start");
    int (*open_file)(forebay_session *, const char *, int, unsigned, forebay_file **) =
        (int (*)(forebay_session *, const char *, int, unsigned, forebay_file **))symbol(
            library, "forebay_open");
    int (*buffered)(forebay_file *) = (int (*)(forebay_file *))symbol(library, "forebay_is_buffered");
    int64_t (*write_at)(forebay_file *, const void *, int64_t, int64_t) =
        (int64_t(*)(forebay_file *, const void *, int64_t, int64_t))symbol(library, "forebay_write");
    int64_t (*read_at)(forebay_file *, void *, int64_t, int64_t) =
        (int64_t(*)(forebay_file *, void *, int64_t, int64_t))symbol(library, "forebay_read");
    int (*wait_for)(forebay_file *, int, int64_t) =
        (int (*)(forebay_file *, int, int64_t))symbol(library, "forebay_wait");
    int (*end)(forebay_session *) = (int (*)(forebay_session *))symbol(library, "forebay_end");
    forebay_session *session;
    forebay_file *file;
    char back[16] = "";
    CHECK(start(is_buffered ? FOREBAY_REQUIRE : 0, &session) == 0);
    CHECK(open_file(session, path, O_RDWR | O_CREAT, 0600, &file) == 0);
    CHECK(buffered(file) == is_buffered);
    CHECK(write_at(file, text, 5, 0) == 5);
    /* The program's own calls see it. */
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, back, 5) == 5 && !memcmp(back, text, 5));
    CHECK(read_at(file, back, 5, 0) == 5 && !memcmp(back, text, 5));
    CHECK(wait_for(file, FOREBAY_STORE, 60000) == 0);
    CHECK(end(session) == 0 && close(fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    int is_buffered = !strcmp(argv[1], "buffered");
    use(argv[2], RTLD_NOW | RTLD_LOCAL, argv[4], is_buffered, "first");
    use(argv[3], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND, argv[4], is_buffered, "other");
    puts("done");
    return 0;
}
