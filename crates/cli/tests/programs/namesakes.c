/* Files whose inode number an older file had, of which the pool still has a record, and files that
   leave the store right after they were written:
   namesakes HOW ROUNDS OUTSIDE, in the store; OUTSIDE is a directory on the same device. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OLD_BYTES 138206
static const char *outside;
static char old_content[OLD_BYTES], got[OLD_BYTES + 1];
static int round_number, same, wrong;

static void check(int good, const char *what) {
    if (!good && wrong++ < 3) printf("round %d: %s\n", round_number, what);
}

/* What a program does that is not under Forebay. */
static void unseen_unlink(const char *path) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(87L), "D"(path) : "rcx", "r11", "memory");
#else
    char command[600];
    snprintf(command, sizeof command, "env -u LD_PRELOAD rm %s", path);
    check(system(command) == 0, "no rm");
#endif
}

static int unseen_content(const char *path) {
    char command[600];
    snprintf(command, sizeof command, "env -u LD_PRELOAD cat %s", path);
    FILE *pipe = popen(command, "r");
    int bytes = (int)fread(got, 1, sizeof got, pipe);
    pclose(pipe);
    return bytes;
}

static char *name(const char *folder, const char *stem) {
    static char names[8][300];
    static int next;
    char *made = names[next++ % 8];
    snprintf(made, sizeof names[0], "%s/%s%d", folder, stem, round_number);
    return made;
}

/* A file in the store, closed; returns its inode number. */
static ino_t old_file(const char *path, int is_written) {
    struct stat found;
    int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0644);
    fstat(fd, &found);
    if (is_written) check(write(fd, old_content, OLD_BYTES) == OLD_BYTES, "a short write");
    else check(ftruncate(fd, OLD_BYTES) == 0, "no truncate");
    close(fd);
    return found.st_ino;
}

/* A new file outside that stays open. */
static int new_file(const char *path, ino_t old) {
    struct stat found;
    int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0644);
    check(write(fd, "hello", 5) == 5, "a short write");
    fstat(fd, &found);
    same += found.st_ino == old;
    check(found.st_size == 5, "the new file has the old one's size");
    return fd;
}

/* It comes into the store while it is open: both descriptors are of one file. */
static void comes(int in_folder) {
    char *a = name(".", "a"), *in = name(".", "in"), *b = name(outside, "b"), path[700];
    ino_t inode = old_file(a, 0);
    unlink(a);
    if (in_folder) {
        mkdir(b, 0755);
        snprintf(path, sizeof path, "%s/x", b);
    } else {
        strcpy(path, b);
    }
    int before = new_file(path, inode);
    check(rename(b, in) == 0, "no rename");
    snprintf(path, sizeof path, in_folder ? "%s/x" : "%s", in);
    int after = open(path, O_RDWR);
    struct stat found;
    check(pwrite(after, "WORLD!", 6, 0) == 6, "a short write");
    check(pread(before, got, sizeof got, 0) == 6 && !memcmp(got, "WORLD!", 6), "two files");
    check(fstat(before, &found) == 0 && found.st_size == 6, "two sizes");
    close(before);
    close(after);
    unlink(path);
    if (in_folder) rmdir(in);
}

/* The old one was removed unseen, and has bytes that are not on the store. */
static void inherited(void) {
    char *a = name(".", "a"), *in = name(".", "in"), *b = name(outside, "b");
    ino_t inode = old_file(a, 1);
    unseen_unlink(a);
    int fd = new_file(b, inode);
    check(rename(b, in) == 0, "no rename");
    check(system("true") == 0, "no program");
    check(unseen_content(in) == 5 && !memcmp(got, "hello", 5), "the old one's bytes");
    close(fd);
    unlink(in);
}

/* Stops a process, and waits until none of its threads does anything more. */
static void stop(const char *pid) {
    char path[600], line[600];
    check(kill(atoi(pid), SIGSTOP) == 0, "no such process");
    for (int running = 1; running;) {
        running = 0;
        snprintf(path, sizeof path, "/proc/%s/task", pid);
        DIR *threads = opendir(path);
        for (struct dirent *entry; threads && (entry = readdir(threads));) {
            snprintf(path, sizeof path, "/proc/%s/task/%s/stat", pid, entry->d_name);
            int fd = open(path, O_RDONLY);
            int bytes = fd < 0 ? 0 : (int)read(fd, line, sizeof line - 1);
            if (fd >= 0) close(fd);
            line[bytes > 0 ? bytes : 0] = 0;
            char *name = strrchr(line, ')');
            running |= name && name[1] && name[2] != 'T';
        }
        if (threads) closedir(threads);
    }
}

/* Removed before the node manager, of the process id in MANAGER if that is set, can look at them: a
   file with data, and one that has only a size. */
static void gone(void) {
    char *a = name(".", "a"), *b = name(".", "b"), *manager = getenv("MANAGER");
    if (manager) stop(manager);
    old_file(a, 1);
    old_file(b, 0);
    unseen_unlink(a);
    unseen_unlink(b);
    if (manager) kill(atoi(manager), SIGCONT);
}

static void sent(int is_removed) {
    char *a = name(".", "a"), *b = name(outside, "b");
    ino_t inode = old_file(a, 1);
    unseen_unlink(a);
    int fd = new_file(b, inode);
    check((is_removed ? unlink(b) : chmod(b, 0444)) == 0, "no change");
    sync();
    check(pread(fd, got, sizeof got, 0) == 5 && !memcmp(got, "hello", 5), "the old one's bytes");
    close(fd);
    unlink(b);
}

/* A folder leaves the store with a file just written; `again`, after it got another name there. */
static void leaves(int again) {
    char *d = name(".", "d"), *e = name(".", "e"), *out = name(outside, "d"), path[700];
    mkdir(d, 0755);
    snprintf(path, sizeof path, "%s/f", d);
    old_file(path, 1);
    if (again) {
        check(rename(d, e) == 0, "no rename");
        d = e;
    }
    check(rename(d, out) == 0, "no rename");
    snprintf(path, sizeof path, "%s/f", out);
    int fd = open(path, O_RDWR);
    check(fsync(fd) == 0, "no sync");
    close(fd);
    check(unseen_content(path) == OLD_BYTES && !memcmp(got, old_content, OLD_BYTES), "lost");
}

/* The name in the store goes; the one outside stays. */
static void linked(void) {
    char *a = name(".", "a"), *b = name(outside, "b");
    close(open(a, O_CREAT | O_RDWR, 0644));
    check(link(a, b) == 0, "no link");
    int fd = open(a, O_WRONLY);
    check(write(fd, old_content, OLD_BYTES) == OLD_BYTES, "a short write");
    close(fd);
    unlink(a);
    fd = open(b, O_RDWR);
    check(fsync(fd) == 0, "no sync");
    close(fd);
    check(unseen_content(b) == OLD_BYTES && !memcmp(got, old_content, OLD_BYTES), "lost");
}

/* A link outside is open before the file is known by its name in the store. */
static void two_names(void) {
    char *a = name(".", "a"), *b = name(outside, "b"), command[900];
    snprintf(command, sizeof command, "env -u LD_PRELOAD sh -c 'echo hello > %s; ln %s %s'", a, a, b);
    check(system(command) == 0, "no link");
    int before = open(b, O_RDWR), after = open(a, O_RDWR);
    check(pwrite(after, "WORLD!", 6, 0) == 6, "a short write");
    check(pread(before, got, sizeof got, 0) == 6 && !memcmp(got, "WORLD!", 6), "two files");
    check(pwrite(before, "Again!", 6, 0) == 6, "a short write");
    check(pread(after, got, sizeof got, 0) == 6 && !memcmp(got, "Again!", 6), "two files");
    close(before);
    close(after);
    unlink(b);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    memset(old_content, 'A', OLD_BYTES);
    outside = words[3];
    const char *how = words[1];
    for (; round_number < atoi(words[2]); round_number++) {
        if (!strcmp(how, "comes")) comes(0);
        else if (!strcmp(how, "folder")) comes(1);
        else if (!strcmp(how, "inherited")) inherited();
        else if (!strcmp(how, "gone")) gone();
        else if (!strcmp(how, "removed")) sent(1);
        else if (!strcmp(how, "changed")) sent(0);
        else if (!strcmp(how, "leaves")) leaves(0);
        else if (!strcmp(how, "renamed")) leaves(1);
        else if (!strcmp(how, "linked")) linked();
        else if (!strcmp(how, "two-names")) two_names();
        else return 2;
    }
    printf("%s: %d wrong, inode numbers %s\n", how, wrong, same ? "came again" : "new");
    return wrong != 0;
}
