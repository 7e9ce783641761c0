/* Sizes, blocks, times, modes and names of a file with unflushed data. Prints relations, so that two runs
 * can be compared.
 *
 *     times       in the current directory
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

typedef struct timespec Time;
static struct stat now, before;

static int order(Time a, Time b)
{
    return a.tv_sec != b.tv_sec ? (a.tv_sec > b.tv_sec) - (a.tv_sec < b.tv_sec)
                                : (a.tv_nsec > b.tv_nsec) - (a.tv_nsec < b.tv_nsec);
}

/* How the times are to those of the last look. */
static void look(const char *what, int fd)
{
    before = now;
    fstat(fd, &now);
    printf("%s: size %ld, blocks %d, modified %+d, changed %+d, order %+d, links %ld, mode %o\n", what,
           (long)now.st_size, now.st_blocks > 0, order(now.st_mtim, before.st_mtim),
           order(now.st_ctim, before.st_ctim), order(now.st_mtim, now.st_ctim), (long)now.st_nlink,
           now.st_mode);
}

static void pause_a_little(void)
{
    usleep(12000);
}

static void plain_writes(void)
{
    memset(&now, 0, sizeof now);
    int fd = open("written", O_RDWR | O_CREAT | O_TRUNC, 0640);
    char bytes[10000] = "x";
    look("created", fd), memcpy(&before, &now, sizeof now), look("again", fd);
    write(fd, bytes, sizeof bytes), look("written", fd);
    write(fd, bytes, sizeof bytes), look("written at once", fd);
    write(fd, bytes, 0), look("nothing written", fd);
    pause_a_little(), look("looked at", fd);
    pread(fd, bytes, 100, 0), look("read", fd);
    fsync(fd), look("synced", fd);
    fsync(fd), look("synced again", fd);
    pause_a_little();
    pwrite(fd, bytes, 1, 5), look("written over", fd);
    pause_a_little(), ftruncate(fd, 5000), look("cut", fd);
    pause_a_little(), ftruncate(fd, 5000), look("cut to its size", fd);
    pause_a_little(), ftruncate(fd, 1 << 20), look("stretched", fd);
    pause_a_little(), fallocate(fd, 0, 1 << 20, 1 << 20), look("allocated", fd);
    pause_a_little(), fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), look("punched", fd);
    int again = open("written", O_WRONLY | O_TRUNC);
    look("emptied", fd), close(again);
    pause_a_little();
    again = open("written", O_WRONLY | O_CREAT, 0600), look("opened", fd), close(again), look("closed", fd);
    char name[64];
    sprintf(name, "/proc/self/fd/%d", fd);
    stat(name, &before), printf("by its link: %d\n", before.st_size == now.st_size);
    close(fd);
}

static void explicit_times(void)
{
    memset(&now, 0, sizeof now);
    int fd = open("timed", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, "data", 4), look("written", fd);
    Time past[2] = {{1000, 1}, {2000, 123456789}}, future[2] = {{4000000000, 0}, {4000000000, 7}};
    Time omit[2] = {{55, 5}, {0, UTIME_OMIT}}, none[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    Time old[2] = {{0, UTIME_OMIT}, {-1000, 500000000}};
    futimens(fd, past);
    look("past", fd), printf("%ld.%09ld %ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec, (long)now.st_atim.tv_sec);
    fsync(fd), look("synced", fd), printf("%ld.%09ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
    futimens(fd, omit);
    look("omitted", fd), printf("%ld.%09ld %ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec, (long)now.st_atim.tv_sec);
    pause_a_little();
    write(fd, "more", 4), look("written", fd);
    utimensat(AT_FDCWD, "timed", omit, 0);
    look("omitted", fd), printf("%ld\n", (long)now.st_atim.tv_sec);
    utimensat(AT_FDCWD, "timed", future, 0);
    look("future", fd), printf("%ld.%09ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
    fsync(fd), look("synced", fd);
    write(fd, "more", 4), look("written", fd);
    futimens(fd, old);
    look("before 1970", fd), printf("%ld.%09ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
    fsync(fd), look("synced", fd), printf("%ld.%09ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
    write(fd, "more", 4), futimens(fd, none), look("now", fd);
    struct timeval micro[2] = {{11, 12}, {13, 14}};
    futimes(fd, micro), look("futimes", fd), printf("%ld.%09ld\n", (long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
    write(fd, "x", 1), utimes("timed", micro), look("utimes", fd), printf("%ld\n", (long)now.st_mtim.tv_sec);
    struct utimbuf seconds = {21, 22};
    write(fd, "x", 1), utime("timed", &seconds), look("utime", fd), printf("%ld\n", (long)now.st_mtim.tv_sec);
    printf("%d %s\n", futimens(fd, (void *)8), strerror(errno));
    printf("%d\n", utimensat(AT_FDCWD, "missing", NULL, 0));
    look("failed", fd);
    write(fd, "x", 1), futimens(fd, past), close(fd);
    fd = open("timed", O_RDONLY);
    look("opened again", fd), printf("%ld\n", (long)now.st_mtim.tv_sec);
    close(fd);
}

static void modes(void)
{
    memset(&now, 0, sizeof now);
    int fd = open("mode", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, "data", 4), look("written", fd);
    pause_a_little(), chmod("mode", 0644), look("chmod", fd);
    pause_a_little(), fchmod(fd, 0600), look("fchmod", fd);
    pause_a_little(), fchmodat(AT_FDCWD, "mode", 0640, 0), look("fchmodat", fd);
    pause_a_little(), chown("mode", -1, -1), look("chown", fd);
    if (geteuid() == 0) {
        pause_a_little(), fchown(fd, 12, 34), look("fchown", fd);
        printf("%d %d\n", now.st_uid, now.st_gid);
        chmod("mode", 06775), look("set-id", fd);
        chown("mode", 0, 0), look("chown", fd);
        chmod("mode", 06775), write(fd, "x", 1), look("written by root", fd);
        /* As a user that may not keep the bits. */
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct data[2];
        syscall(SYS_capget, &head, data);
        data[0].effective &= ~(1 << CAP_FSETID);
        syscall(SYS_capset, &head, data);
        chmod("mode", 06775), look("set-id", fd);
        write(fd, "x", 1), look("written", fd);
        chmod("mode", 06665), look("set-id", fd);
        pwrite(fd, "x", 1, 0), look("written without group's execution", fd);
        fchmod(fd, 04711), close(fd);
        fd = open("mode", O_RDWR), look("set-id", fd);
        write(fd, "x", 1), look("written after an open", fd);
        data[0].effective |= 1 << CAP_FSETID;
        syscall(SYS_capset, &head, data);
        /* As a user that may not change the mode. */
        int modes[] = {06777, 04777, 02777, 02767};
        for (int i = 0; i < 4; i++) {
            fchmod(fd, modes[i]), look("set-id", fd);
            seteuid(65534);
            pwrite(fd, "y", 1, 9 + i), look("written by another user", fd);
            seteuid(0);
        }
    }
    close(fd);
}

static void show(const char *what, const char *name)
{
    char text[64] = "";
    int fd = open(name, O_RDONLY);
    long got = fd < 0 ? -1 : read(fd, text, 63);
    struct stat found = {0};
    printf("%s: %ld \"%s\", stat %d, size %ld\n", what, got, text, stat(name, &found), (long)found.st_size);
    if (fd >= 0) close(fd);
}

static void names(void)
{
    char text[64] = "", path[64];
    memset(&now, 0, sizeof now);
    int fd = open("old", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, "old content", 11), look("written", fd);
    pause_a_little(), link("old", "second"), look("linked", fd);
    show("by its second name", "second");
    int second = open("second", O_WRONLY);
    pwrite(second, "NEW", 3, 0), show("by its first name", "old");
    pause_a_little(), rename("second", "third"), look("renamed", fd);
    symlink("old", "symbolic"), show("by its symbolic link", "symbolic");
    int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(other, "other content", 13);
    pause_a_little(), rename("other", "old"), look("replaced", fd);
    show("what replaced it", "old"), show("its other name", "third");
    pread(fd, text, 63, 0), printf("still \"%s\"\n", text);
    pause_a_little(), unlink("third"), look("unlinked", fd);
    pwrite(fd, "!", 1, 11), memset(text, 0, 64), pread(fd, text, 63, 0), printf("still \"%s\"\n", text);
    look("written", fd);
    close(fd), close(second);
    look("the other", other), close(other);
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    write(fd, "without a name", 14), look("temporary", fd);
    sprintf(path, "/proc/self/fd/%d", fd);
    printf("%d\n", linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    look("named", fd);
    write(fd, ", no more", 9), close(fd), show("named", "named");
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    write(fd, "dropped", 7), close(fd);
    show("missing", "third");
}

static void masks(void)
{
    int fd = open("masked", O_RDWR | O_CREAT | O_TRUNC, 0600);
    pause_a_little();
    write(fd, "12345", 5);
    fstat(fd, &now);
    unsigned masks[] = {0, STATX_SIZE, STATX_MTIME, STATX_BLOCKS, STATX_INO, STATX_CTIME, STATX_BASIC_STATS, STATX_ALL};
    for (int i = 0; i < 8; i++)
        for (int way = 0; way < 3; way++) {
            struct statx found = {0};
            int result = way == 0 ? statx(fd, "", AT_EMPTY_PATH, masks[i], &found)
                       : way == 1 ? statx(AT_FDCWD, "masked", AT_STATX_DONT_SYNC, masks[i], &found)
                                  : statx(AT_FDCWD, "masked", AT_STATX_FORCE_SYNC, masks[i], &found);
            printf("%x: %d %d %d %d %d\n", masks[i], result, (int)found.stx_size, found.stx_blocks > 0,
                   found.stx_mtime.tv_nsec == now.st_mtim.tv_nsec, found.stx_ctime.tv_nsec == now.st_ctim.tv_nsec);
        }
    printf("%d %s\n", statx(fd, "", AT_EMPTY_PATH, STATX_ALL, (void *)8), strerror(errno));
    printf("%d %s\n", fstat(fd, (void *)8), strerror(errno));
    close(fd);
}

int main(void)
{
    plain_writes(), explicit_times(), modes(), names(), masks();
    return 0;
}
