/* Makes and opens files by paths that start at a directory, current or open, while directories are
   changed, moved and replaced: what each name is then. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char store[PATH_MAX], outside[PATH_MAX];
static int number;

/* Writes a text of its own to a file, and says what came of it. */
static void put(int folder, const char *name, int flags)
{
	char text[40];
	snprintf(text, sizeof text, "%s %d", name, number++);
	int fd = openat(folder, name, flags | O_CREAT | O_WRONLY, 0644);
	if (fd < 0) {
		printf("%s: %s\n", name, strerror(errno));
		return;
	}
	int shown = fcntl(fd, F_GETFL);
	ssize_t written = write(fd, text, strlen(text));
	printf("%s: %ld, flags %x\n", name, (long)written, shown);
	close(fd);
}

static void show(const char *folder, const char *name)
{
	char path[3 * PATH_MAX], text[100];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_RDONLY);
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);
	printf("  %s: %.*s (%d)\n", name, got > 0 ? (int)got : 0, text, fd < 0 ? errno : 0);
	if (fd >= 0)
		close(fd);
}

static void command(const char *text)
{
	if (system(text) != 0)
		printf("failed: %s\n", text);
}

static int visit(const char *path, const struct stat *found, int kind, struct FTW *at)
{
	(void)found;
	if (kind == FTW_F && strcmp(path + at->base, "0") == 0)
		put(AT_FDCWD, "beside", 0);
	return 0;
}

static void *elsewhere(void *unused)
{
	if (chdir(outside) != 0)
		perror("chdir");
	return unused;
}

int main(void)
{
	if (!getcwd(store, sizeof store - 100))
		return 1;
	snprintf(outside, sizeof outside, "%s/relative", getenv("OUT"));
	mkdir(outside, 0755);
	mkdir("a", 0755), mkdir("a/b", 0755), mkdir("c", 0755);

	/* Several in one folder, by several ways. */
	int a = open("a", O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < 3; i++) {
		char name[20];
		sprintf(name, "a/b/%d", i), put(AT_FDCWD, name, O_EXCL);
		sprintf(name, "b/%d", 10 + i), put(a, name, 0);
		sprintf(name, "a/../c/%d", i), put(AT_FDCWD, name, O_TRUNC);
	}
	show(store, "a/b/2"), show(store, "a/b/12"), show(store, "c/2");

	/* The current directory is another one; as the C library changes it for itself, too. */
	if (chdir("c") != 0)
		return 1;
	put(AT_FDCWD, "here", 0), put(AT_FDCWD, "here2", O_EXCL);
	if (chdir(outside) != 0)
		return 1;
	put(AT_FDCWD, "here", 0), put(AT_FDCWD, "here2", O_EXCL);
	if (fchdir(a) != 0)
		return 1;
	put(AT_FDCWD, "here", 0), put(AT_FDCWD, "b/here2", O_EXCL);
	if (chdir(store) != 0)
		return 1;
	nftw("a", visit, 10, FTW_CHDIR | FTW_PHYS);
	show(store, "c/here"), show(store, "c/here2"), show(outside, "here"), show(outside, "here2");
	show(store, "a/here"), show(store, "a/b/here2"), show(store, "a/b/beside"), show(store, "a/beside");

	/* The folder moves, within the store and out of it, by this process and by others. */
	put(a, "b/x", 0);
	rename("a", "moved");
	put(a, "b/y", 0), put(AT_FDCWD, "a/never", 0), put(AT_FDCWD, "moved/b/z", 0);
	show(store, "moved/b/x"), show(store, "moved/b/y"), show(store, "moved/b/z");
	char text[5 * PATH_MAX];
	put(a, "b/before", 0);
	snprintf(text, sizeof text, "mv moved '%s/far'", outside);
	command(text);
	put(a, "b/after", 0);
	show(outside, "far/b/before"), show(outside, "far/b/after");
	snprintf(text, sizeof text, "env -u LD_PRELOAD mv '%s/far' back", outside);
	command(text);
	put(a, "b/again", O_EXCL);
	show(store, "back/b/again"), show(store, "back/b/after");

	/* A link takes the place of a folder, and a folder that of a link. */
	put(AT_FDCWD, "c/one", 0);
	rename("c", "d");
	symlink(outside, "c");
	put(AT_FDCWD, "c/two", 0), put(AT_FDCWD, "d/two", 0);
	show(outside, "two"), show(store, "d/two"), show(store, "d/one");
	unlink("c");
	rename("d", "c");
	put(AT_FDCWD, "c/three", 0);
	show(store, "c/three"), show(outside, "three");

	/* A folder takes the place of a link, on both sides of the store's border. */
	symlink(outside, "link");
	put(AT_FDCWD, "link/1", 0), put(AT_FDCWD, "link/2", 0);
	unlink("link"), mkdir("link", 0755);
	put(AT_FDCWD, "link/3", 0), put(AT_FDCWD, "link/4", O_EXCL);
	show(store, "link/3"), show(store, "link/4"), show(outside, "2");
	int far = open(outside, O_RDONLY | O_DIRECTORY);
	snprintf(text, sizeof text, "%s/link", store);
	symlinkat(text, far, "link");
	put(far, "link/5", 0), put(far, "link/6", 0);
	unlinkat(far, "link", 0), mkdirat(far, "link", 0755);
	put(far, "link/7", 0), put(far, "link/8", O_EXCL);
	show(outside, "link/7"), show(outside, "link/8"), show(store, "link/6");
	close(far);

	/* The name is a link itself. */
	snprintf(text, sizeof text, "%s/target", outside);
	symlink(text, "out");
	symlink("c/one", "in");
	symlink("nowhere", "dangling");
	put(AT_FDCWD, "beside", 0);
	put(AT_FDCWD, "out", 0), put(AT_FDCWD, "in", O_TRUNC), put(AT_FDCWD, "dangling", 0);
	put(AT_FDCWD, "in", O_NOFOLLOW), put(AT_FDCWD, "in", O_EXCL), put(AT_FDCWD, "c/one", O_NOFOLLOW);
	show(outside, "target"), show(store, "c/one"), show(store, "nowhere");

	/* A thread has changed the current directory. */
	pthread_t thread;
	put(AT_FDCWD, "before", 0);
	pthread_create(&thread, NULL, elsewhere, NULL);
	pthread_join(thread, NULL);
	put(AT_FDCWD, "after", O_EXCL), put(AT_FDCWD, "later", 0);
	show(outside, "after"), show(store, "before"), show(store, "after"), show(outside, "later");
	if (chdir(store) != 0)
		return 1;
	snprintf(text, sizeof text, "rm -r '%s'", outside);
	command(text);
	return 0;
}
