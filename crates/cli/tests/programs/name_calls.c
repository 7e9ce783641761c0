/* Makes calls that name files, a hundred of each kind between two calls that strace shows:
 * name_calls FOLDER ELSEWHERE, both absolute, FOLDER the current directory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char here[PATH_MAX], there[PATH_MAX], other[PATH_MAX];

static void need(int done)
{
	if (!done) {
		perror("name_calls");
		exit(1);
	}
}

static void open_and_close(int folder, const char *path, int flags)
{
	int fd = openat(folder, path, flags, 0644);
	need(fd >= 0 && close(fd) == 0);
}

#define TIMES(name, act)                                                                           \
	do {                                                                                       \
		act; /* once, to be known */                                                       \
		access("marker-" name, F_OK);                                                      \
		for (int i = 0; i < 100; i++) {                                                    \
			act;                                                                       \
		}                                                                                  \
		access("marker-end", F_OK);                                                        \
	} while (0)

int main(int argc, char **argv)
{
	struct stat stat_;
	const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 2000}};
	snprintf(here, sizeof here, "%s/known", argv[1]);
	snprintf(other, sizeof other, "%s/other", argv[1]);
	snprintf(there, sizeof there, "%s/file", argv[2]);
	int fd = open(here, O_RDWR | O_CREAT, 0644);
	need(write(fd, "known", 5) == 5 && fsync(fd) == 0);
	int beside = open(there, O_WRONLY | O_CREAT, 0644);
	need(write(beside, "there", 5) == 5 && close(beside) == 0);
	int folder = open(argv[1], O_RDONLY | O_DIRECTORY);
	need(symlink("known", "link") == 0);

	TIMES("open-absolute", open_and_close(AT_FDCWD, here, O_RDONLY));
	TIMES("open-relative", open_and_close(AT_FDCWD, "known", O_RDONLY));
	TIMES("open-at", open_and_close(folder, "known", O_RDWR));
	TIMES("open-dotted", open_and_close(AT_FDCWD, "./known", O_RDONLY));
	TIMES("open-link", open_and_close(AT_FDCWD, "link", O_RDONLY));
	TIMES("open-elsewhere", open_and_close(AT_FDCWD, there, O_RDONLY));
	TIMES("stat", need(stat(here, &stat_) == 0 && stat_.st_size == 5));
	TIMES("stat-elsewhere", need(stat(there, &stat_) == 0));
	TIMES("rename", need(rename("known", "other") == 0 && rename("other", "known") == 0));
	need(mkdir("a", 0755) == 0 && mkdir("b", 0755) == 0);
	TIMES("rename-across", need(rename("known", "a/known") == 0 && rename("a/known", "known") == 0));
	TIMES("rename-folder", need(rename("a", "c") == 0 && rename("c", "a") == 0));
	TIMES("rename-folder-across", need(rename("a", "b/a") == 0 && rename("b/a", "a") == 0));
	TIMES("link", need(link(here, other) == 0 && unlink(other) == 0));
	TIMES("link-relative", need(link("known", "other") == 0 && unlink("other") == 0));
	TIMES("set-times", need(utimensat(AT_FDCWD, "known", times, 0) == 0));
	TIMES("set-times-open", need(futimens(fd, times) == 0));
	TIMES("mode-open", need(fchmod(fd, 0644) == 0));
	gid_t group = getegid();
	TIMES("owner-open", need(fchown(fd, -1, group) == 0));
	int source = open(there, O_RDONLY);
	loff_t from = 0, to = 0;
	TIMES("copy", from = to = 0; need(copy_file_range(source, &from, fd, &to, 5, 0) == 5));
	TIMES("copy-to-the-end", need(copy_file_range(source, &from, fd, &to, 5, 0) == 0));
	return close(fd);
}
