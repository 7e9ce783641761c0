/* Opens files through every kind of name, while directories, links and the current directory
 * change: folders ELSEWHERE, an empty directory outside of the current one on the same device.
 * What is written through one descriptor has to be read through all others at once. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char here[PATH_MAX], there[PATH_MAX];

static void need_(int done, const char *what, int line)
{
	if (!done) {
		printf("line %d: %s: %s\n", line, what, strerror(errno));
		exit(1);
	}
}
#define need(what) need_(!!(what), #what, __LINE__)

/* Paths by turns in eight buffers. */
static const char *path(const char *folder, const char *name)
{
	static char made[8][2 * PATH_MAX];
	static int turn;
	char *at = made[turn++ % 8];
	snprintf(at, sizeof made[0], "%s/%s", folder, name);
	return at;
}

static void put(int fd, const char *text)
{
	need(pwrite(fd, text, strlen(text) + 1, 0) == (ssize_t)strlen(text) + 1);
}

static int make(const char *name, const char *text)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	need(fd >= 0);
	put(fd, text);
	return fd;
}

/* What a file that is open holds. */
static void show(const char *what, int fd)
{
	char text[64] = "";
	struct stat found;
	need(fd >= 0);
	ssize_t got = pread(fd, text, sizeof text - 1, 0);
	need(fstat(fd, &found) == 0);
	printf("%s: %zd of %lld: %s\n", what, got, (long long)found.st_size, text);
	close(fd);
}

static void same(const char *what, int fd, int other)
{
	char text[64];
	static int number;
	snprintf(text, sizeof text, "%s %d", what, ++number);
	need(fd >= 0 && other >= 0);
	put(fd, text);
	show(what, other);
	close(fd);
}

/* Has this thread know where FOLDER is. */
static void know(const char *folder)
{
	for (int i = 0; i < 3; i++) {
		int fd = open(path(folder, "known"), O_RDONLY);
		need(fd >= 0 && close(fd) == 0);
	}
}

static void links(void)
{
	int fd = make("a", "first");
	know(there);
	need(link("a", path(there, "hard")) == 0);
	show("hard link elsewhere", open(path(there, "hard"), O_RDONLY));
	put(fd, "second");
	show("again", open(path(there, "hard"), O_RDONLY));
	need(symlink(path(here, "a"), path(there, "soft")) == 0);
	know(there);
	show("symbolic link elsewhere", open(path(there, "soft"), O_RDONLY));
	need(open(path(there, "soft"), O_RDONLY | O_NOFOLLOW) == -1 && errno == ELOOP);
	need(open(path(there, "nothing"), O_RDONLY) == -1 && errno == ENOENT);
	know(there);
	int cut = open(path(there, "hard"), O_WRONLY | O_TRUNC);
	struct stat found;
	need(fstat(fd, &found) == 0 && found.st_size == 0);
	same("truncated by the other name", cut, open("a", O_RDONLY));
	show("and still open", fd);
	/* A dangling one is made. */
	need(symlink(path(here, "dangling"), path(there, "to-dangling")) == 0);
	know(there);
	same("made through a link", open(path(there, "to-dangling"), O_RDWR | O_CREAT, 0644),
	     open("dangling", O_RDONLY));
}

static void moves(void)
{
	int fd = make("leaver", "inside");
	know(there);
	need(rename("leaver", path(there, "leaver")) == 0);
	show("moved elsewhere", open(path(there, "leaver"), O_RDONLY));
	same("both see it", fd, open(path(there, "leaver"), O_RDONLY));
	know(there);
	need(rename(path(there, "leaver"), "comer") == 0);
	same("moved back", open("comer", O_RDWR), open(path(here, "comer"), O_RDONLY));

	/* A directory goes, with what lies in it. */
	need(mkdir("dir", 0755) == 0);
	fd = make("dir/file", "in a directory");
	know(there);
	need(rename("dir", path(there, "dir")) == 0);
	same("in a moved directory", fd, open(path(there, "dir/file"), O_RDONLY));
}

/* A directory that was elsewhere is one of ours by the same name. */
static void replaced(void)
{
	const char *text[] = {"link", "directory"};
	need(mkdir("sub", 0755) == 0);
	for (int kind = 0; kind < 2; kind++) {
		char folder[2 * PATH_MAX], name[32];
		snprintf(folder, sizeof folder, "%s/place-%d", there, kind);
		need(mkdir(folder, 0755) == 0);
		close(make(path(folder, "known"), ""));
		know(folder);
		if (kind == 0) {
			need(rename(folder, path(there, "was")) == 0);
		} else {
			need(unlink(path(folder, "known")) == 0 && rmdir(folder) == 0);
		}
		need(symlink(path(here, "sub"), folder) == 0);
		snprintf(name, sizeof name, "new-%d", kind);
		int fd = open(path(folder, name), O_RDWR | O_CREAT, 0644);
		int other = open(path(path(here, "sub"), name), O_RDWR);
		same(text[kind], other, fd);
	}
	/* And one of ours is elsewhere by the same name. */
	close(make("sub/known", ""));
	know(path(here, "sub"));
	need(rename("sub", path(there, "sub")) == 0 && symlink(path(there, "sub"), "sub") == 0);
	same("gone", open("sub/gone", O_RDWR | O_CREAT, 0644),
	     open(path(there, "sub/gone"), O_RDONLY));
}

static void current(void)
{
	need(mkdir("deep", 0755) == 0 && mkdir("deep/er", 0755) == 0);
	close(make("deep/er/file", "deeper"));
	close(make("deep/file", "deep"));
	close(make(path(there, "file"), "elsewhere"));
	close(make("file", "here"));
	const char *turns[] = {"deep", "deep/er", "", "deep"};
	for (int i = 0; i < 4; i++) {
		need(chdir(path(here, turns[i])) == 0);
		show("relative", open("file", O_RDONLY));
		show("dotted", open("./file", O_RDONLY));
		show("above", open("../file", O_RDONLY | (i == 2 ? O_CREAT : 0), 0644));
	}
	unlink(path(here, "../file"));
	need(chdir(there) == 0);
	show("elsewhere", open("file", O_RDONLY));
	int folder = open(path(here, "deep"), O_RDONLY | O_DIRECTORY);
	show("at", openat(folder, "file", O_RDONLY));
	need(fchdir(folder) == 0);
	show("fchdir", open("file", O_RDONLY));
	/* The number is another directory's, by a close that only the C library sees. */
	DIR *stream = fdopendir(folder);
	need(closedir(stream) == 0);
	need(open(there, O_RDONLY | O_DIRECTORY) == folder);
	show("another directory", openat(folder, "file", O_RDONLY));
	need(dup2(open(here, O_RDONLY | O_DIRECTORY), folder) == folder);
	show("a third", openat(folder, "file", O_RDONLY));
	/* The current directory gets another name, and goes elsewhere. */
	need(rename(path(here, "deep"), path(here, "renamed")) == 0);
	same("renamed", open("new", O_RDWR | O_CREAT, 0644),
	     open(path(here, "renamed/new"), O_RDONLY));
	need(rename(path(here, "renamed"), path(there, "renamed")) == 0);
	same("moved", open("newer", O_RDWR | O_CREAT, 0644),
	     open(path(there, "renamed/newer"), O_RDONLY));
	need(rename(path(there, "renamed"), path(here, "back")) == 0);
	same("back", open("newest", O_RDWR | O_CREAT, 0644),
	     open(path(here, "back/newest"), O_RDONLY));
	need(chdir(here) == 0);
	/* A child has its own. */
	pid_t child = fork();
	if (child == 0) {
		need(chdir(there) == 0);
		int fd = open("file", O_RDONLY);
		char text[64];
		_exit(pread(fd, text, sizeof text, 0) == 10 && strcmp(text, "elsewhere") == 0);
	}
	int status;
	need(waitpid(child, &status, 0) == child);
	printf("child: %d\n", WEXITSTATUS(status));
	show("parent", open("file", O_RDONLY));
	/* One that is gone. */
	need(mkdir("doomed", 0755) == 0 && chdir("doomed") == 0 && rmdir(path(here, "doomed")) == 0);
	need(open("file", O_RDWR | O_CREAT, 0644) == -1 && errno == ENOENT);
	need(chdir(here) == 0);
}

static void magic(void)
{
	char name[64];
	int fd = make("magic", "by its number");
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	show("/proc/self/fd", open(name, O_RDONLY));
	show("/proc/self/cwd", open("/proc/self/cwd/magic", O_RDONLY));
	need(unlink("magic") == 0);
	show("without a name", open(name, O_RDONLY));
	close(fd);

	struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0644, .resolve = RESOLVE_BENEATH};
	fd = syscall(SYS_openat2, AT_FDCWD, "second", &how, sizeof how);
	same("openat2", fd, open("second", O_RDONLY));
	same("openat2, there", open("second", O_RDWR),
	     syscall(SYS_openat2, AT_FDCWD, "second", &(struct open_how){.flags = O_RDONLY},
		     sizeof how));
	same("openat by number", syscall(SYS_openat, AT_FDCWD, "second", O_RDWR, 0),
	     open("second", O_RDONLY));
}

/* The flags that a program sees are its own. */
static void flags(void)
{
	int kinds[] = {O_RDONLY, O_RDWR | O_APPEND, O_WRONLY | O_NONBLOCK, O_RDONLY | O_NOFOLLOW};
	for (int i = 0; i < 4; i++) {
		know(there);
		int fd = open(path(there, "known"), kinds[i]), second = dup(fd);
		int third = dup2(fd, 100), fourth = fcntl(fd, F_DUPFD, 200);
		printf("flags: %x %x %x %x\n", fcntl(fd, F_GETFL), fcntl(second, F_GETFL),
		       fcntl(third, F_GETFL), fcntl(fourth, F_GETFL));
		close(fd), close(second), close(third), close(fourth);
	}
	/* Truncated, made, refused. */
	struct stat found;
	for (int i = 0; i < 3; i++) {
		know(there);
		int fd = open(path(there, "cut"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
		need(fd >= 0 && fstat(fd, &found) == 0 && write(fd, "abc", 3) == 3);
		printf("cut: %lld\n", (long long)found.st_size);
		close(fd);
	}
	know(there);
	need(open(path(there, "cut"), O_WRONLY | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
	need(open(there, O_WRONLY) == -1 && errno == EISDIR);
	need(mkfifo(path(there, "fifo"), 0600) == 0);
	know(there);
	int fifo = open(path(there, "fifo"), O_RDWR | O_TRUNC);
	need(write(fifo, "x", 1) == 1 && close(fifo) == 0);
}

/* Deeper than any path. */
static void deep(void)
{
	static char name[201];
	enum { LEVELS = 25 };
	memset(name, 'd', 200);
	for (int i = 0; i < LEVELS; i++)
		need(mkdir(name, 0755) == 0 && chdir(name) == 0);
	int fd = open("bottom", O_RDWR | O_CREAT, 0644);
	same("bottom", fd, open("bottom", O_RDONLY));
	need(link("bottom", "other") == 0 && rename("bottom", "third") == 0);
	show("its other name", open("other", O_RDONLY));
	show("its third name", open("third", O_RDONLY));
	need(unlink("other") == 0 && unlink("third") == 0);
	for (int i = 0; i < LEVELS; i++)
		need(chdir("..") == 0 && rmdir(name) == 0);
}

static atomic_int racing = 1;

static void *changes_directory(void *unused)
{
	while (racing)
		need(chdir(there) == 0 && chdir(here) == 0);
	return NULL;
}

/* Another thread changes the current directory all the time. */
static void races(void)
{
	pthread_t thread;
	struct stat inside, outside, found;
	int fd = make("race", "inside");
	need(fstat(fd, &inside) == 0 && fsync(fd) == 0);
	close(make(path(there, "race"), "outside"));
	need(stat(path(there, "race"), &outside) == 0);
	need(pthread_create(&thread, NULL, changes_directory, NULL) == 0);
	for (int i = 0; i < 3000; i++) {
		char text[64], name[64], is[64] = "";
		snprintf(text, sizeof text, "inside %d", i);
		put(fd, text);
		int opened = open("race", O_RDONLY);
		need(opened >= 0 && fstat(opened, &found) == 0);
		need(pread(opened, is, sizeof is, 0) > 0);
		need(strcmp(is, found.st_ino == inside.st_ino ? text : "outside") == 0);
		close(opened);
		/* A new one lies in one of the two, and is found there. */
		snprintf(name, sizeof name, "race-%d", i);
		opened = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
		need(opened >= 0);
		int again = open(path(here, name), O_RDWR);
		if (again < 0)
			again = open(path(there, name), O_RDWR);
		need(again >= 0);
		put(again, text);
		need(pread(opened, is, sizeof is, 0) > 0 && strcmp(is, text) == 0);
		close(opened), close(again);
		unlink(path(here, name)), unlink(path(there, name));
	}
	racing = 0;
	need(pthread_join(thread, NULL) == 0 && chdir(here) == 0);
	puts("raced");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	need(getcwd(here, sizeof here) && realpath(argv[1], there));
	close(make(path(there, "known"), "known"));
	links();
	moves();
	replaced();
	current();
	magic();
	flags();
	deep();
	races();
	return 0;
}
