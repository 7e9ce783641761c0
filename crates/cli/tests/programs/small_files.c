/* Opens files by absolute paths in a folder that was just used: what the name is then. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char place[PATH_MAX / 2];

static const char *in(const char *name)
{
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", place, name);
    return path;
}

/* Opens, writes and closes, and says what came of it. */
static void put(const char *name, int flags, const char *text)
{
    int fd = open(in(name), flags, 0644);
    if (fd < 0) {
        printf("%s: %s\n", name, strerror(errno));
        return;
    }
    struct stat before, after;
    fstat(fd, &before);
    int shown = S_ISREG(before.st_mode) ? fcntl(fd, F_GETFL) : 0;
    ssize_t written = write(fd, text, strlen(text));
    fstat(fd, &after);
    printf("%s: %ld bytes, %ld written, %ld bytes, flags %x\n", name, (long)before.st_size,
           (long)written, (long)after.st_size, shown);
    close(fd);
}

static void show(const char *name)
{
    char text[100];
    int fd = open(in(name), O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);
    printf("%s: %.*s (%d)\n", name, got > 0 ? (int)got : 0, text, fd < 0 ? errno : 0);
    close(fd);
}

int main(void)
{
    const int fresh = O_CREAT | O_TRUNC | O_WRONLY;
    if (!getcwd(place, sizeof place - 10))
        return 1;
    strcat(place, "/d");
    mkdir(place, 0755);
    put("a", fresh, "first");
    put("a", fresh, "2nd");
    show("a");
    put("a", O_WRONLY | O_APPEND, "+");
    put("a", O_WRONLY | O_NOFOLLOW, "=");
    put("a", O_RDWR | O_CREAT | O_EXCL, "never");
    put("b", O_RDWR | O_CREAT | O_EXCL | O_TRUNC, "new");
    show("a");

    /* Cut off while another process has it open. */
    int other = open(in("a"), O_RDWR);
    write(other, "a long text", 11);
    put("a", fresh, "cut");
    printf("seen by another: %ld\n", (long)lseek(other, 0, SEEK_END));
    close(other);

    /* An empty file gets a new time. */
    put("stamp", fresh, "");
    struct stat before, after;
    stat(in("stamp"), &before);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    put("stamp", fresh, "");
    stat(in("stamp"), &after);
    printf("stamp: %s\n", before.st_mtim.tv_nsec != after.st_mtim.tv_nsec ? "later" : "the same");

    /* Links lead elsewhere, here and out of the directory. */
    char outside[PATH_MAX];
    snprintf(outside, sizeof outside, "%s/small", getenv("OUT"));
    symlink("b", in("to-b"));
    symlink(outside, in("out"));
    symlink("nothing", in("dangling"));
    put("to-b", fresh, "through");
    put("to-b", O_WRONLY | O_NOFOLLOW, "never");
    put("out", fresh, "outside");
    put("dangling", fresh, "made");
    show("b");
    show("out");
    show("nothing");
    unlink(outside);

    mkfifo(in("fifo"), 0600);
    put("fifo", O_RDWR | O_TRUNC | O_NONBLOCK, "pipe");
    unlink(in("fifo"));
    put("", O_WRONLY, "never");
    put("missing/x", fresh, "never");

    /* The folder is another one, and the old one is read-only. */
    char old[PATH_MAX];
    snprintf(old, sizeof old, "%s-old", place);
    rename(place, old);
    put("a", fresh, "never");
    mkdir(place, 0755);
    put("a", fresh, "another");
    show("a");
    strcat(place, "-old");
    show("a");
    return 0;
}
