/*
 * What vforked children do with descriptors before they execute a program, and what they should not do. What
 * the parent has must stay as it is; lines on stdout are compared with those of a plain run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void reap(pid_t child)
{
	int status = -1;
	if (child <= 0 || waitpid(child, &status, 0) != child)
		printf("no child: %d\n", errno);
	else if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	else
		printf("status %d\n", WEXITSTATUS(status));
	fflush(stdout);
}

static void show(int fd)
{
	char text[200] = "";
	ssize_t length = pread(fd, text, sizeof text - 1, 0);
	struct stat stat;
	fstat(fd, &stat);
	printf("%zd of %ld at %ld: %s\n", length, (long)stat.st_size, (long)lseek(fd, 0, SEEK_CUR), text);
	fflush(stdout);
}

static int make(const char *name, const char *text)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (write(fd, text, strlen(text)) < 0)
		perror(name);
	return fd;
}

/* Standard output into a file that the parent goes on with, and everything else closed. */
static void redirected(void)
{
	int fd = make("redirected", "parent ");
	pid_t child = vfork();
	if (child == 0) {
		dup2(fd, 1);
		close(fd);
		close_range(3, ~0u, 0);
		execl("/bin/sh", "sh", "-c", "printf 'child '; ls /proc/self/fd | wc -l >&2", (char *)NULL);
		_exit(1);
	}
	reap(child);
	if (write(fd, "after", 5) != 5)
		perror("after");
	show(fd);
	close(fd);
}

/* Given up by the parent as soon as the child has executed a program. */
static void handed(void)
{
	for (int i = 0; i < 50; i++) {
		int fd = make("handed", "");
		pid_t child = vfork();
		if (child == 0) {
			dup2(fd, 1);
			execl("/bin/echo", "echo", "handed over", (char *)NULL);
			_exit(1);
		}
		close(fd);
		int other = make("other", "other");
		close(other);
		int status;
		waitpid(child, &status, 0);
		if (status != 0)
			printf("status %x\n", status);
	}
	int fd = open("handed", O_RDONLY);
	show(fd);
	close(fd);
}

/* The child writes, truncates, makes and reads files, and has closed what the parent uses. */
static void forbidden(void)
{
	int fd = make("forbidden", "0123456789"), spare = make("spare", "spare");
	pid_t child = vfork();
	if (child == 0) {
		close(spare);
		int same = open("made", O_RDWR | O_CREAT | O_TRUNC, 0644);
		if (same != spare || write(same, "made by the child", 17) != 17)
			_exit(2);
		lseek(fd, 2, SEEK_SET);
		if (write(fd, "child", 5) != 5 || ftruncate(fd, 8) != 0)
			_exit(3);
		char byte = 0;
		if (pread(same, &byte, 1, 8) != 1 || byte != 't')
			_exit(4);
		if (rename("made", "renamed") != 0 || dup2(same, fd) != fd || close(same) != 0)
			_exit(5);
		if (write(fd, "!", 1) != 1)
			_exit(6);
		_exit(0);
	}
	reap(child);
	show(fd);
	show(spare);
	int made = open("renamed", O_RDONLY);
	show(made);
	close(made);
	close(spare);
	close(fd);
}

/* A child that writes, and then executes a program that goes on with the file. */
static void goes_on(void)
{
	int fd = open("on", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	pid_t child = vfork();
	if (child == 0) {
		if (write(fd, "child ", 6) != 6)
			_exit(2);
		dup2(fd, 1);
		execl("/bin/sh", "sh", "-c", "printf program", (char *)NULL);
		_exit(1);
	}
	reap(child);
	show(fd);
	close(fd);
}

static void nested(void)
{
	int fd = make("nested", "");
	pid_t child = vfork();
	if (child == 0) {
		pid_t grandchild = vfork();
		if (grandchild == 0) {
			dup2(fd, 1);
			close(fd);
			execl("/bin/echo", "echo", "grandchild", (char *)NULL);
			_exit(1);
		}
		int status;
		waitpid(grandchild, &status, 0);
		grandchild = fork();
		if (grandchild == 0) {
			if (write(fd, "forked", 6) != 6)
				_exit(1);
			_exit(0);
		}
		waitpid(grandchild, &status, 0);
		_exit(status == 0 ? 7 : 8);
	}
	reap(child);
	show(fd);
	close(fd);
}

static volatile int caught;

static void catch(int number)
{
	caught = caught * 100 + number;
}

/* Dispositions, masks and limits are the child's own. */
static void settings(void)
{
	struct sigaction action = { .sa_handler = catch }, old;
	sigaction(SIGUSR1, &action, NULL);
	pid_t child = vfork();
	if (child == 0) {
		signal(SIGUSR1, SIG_IGN);
		signal(SIGUSR2, SIG_IGN);
		struct rlimit limit = { 4, 4 };
		setrlimit(RLIMIT_FSIZE, &limit);
		sigset_t set;
		sigfillset(&set);
		sigprocmask(SIG_BLOCK, &set, NULL);
		raise(SIGUSR1);
		_exit(0);
	}
	reap(child);
	sigaction(SIGUSR1, NULL, &old);
	sigset_t set;
	sigprocmask(SIG_BLOCK, NULL, &set);
	raise(SIGUSR1);
	printf("%d %d %d\n", old.sa_handler == catch, sigismember(&set, SIGUSR1), caught);
	int fd = make("limits", "more than four");
	show(fd);
	close(fd);
}

static volatile int written[3];

/* The limit of a child, which it sets before or after it has used a file, is no limit of its parent,
 * which has not asked for its own before. */
static void limits(void)
{
	struct rlimit before, limit;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	int fd = open("limited", O_RDWR | O_CREAT, 0644);
	for (int late = 0; late < 2; late++) {
		pid_t child = vfork();
		if (child == 0) {
			int own = open("own", O_RDWR | O_CREAT, 0644);
			limit = before;
			limit.rlim_cur = 4;
			if (late)
				written[0] = pwrite(own, "ab", 2, 0);
			setrlimit(RLIMIT_FSIZE, &limit);
			written[1] = pwrite(own, "more than four", 14, 0);
			written[2] = pwrite(own, "more", 4, 4);
			_exit(0);
		}
		reap(child);
		printf("child: %d %d %d\n", written[0], written[1], written[2]);
		printf("parent: %d\n", (int)pwrite(fd, "more than four", 14, 0));
	}
	show(fd);
	close(fd);
}

/* Killed in the middle of what it should not do. */
static void killed(void)
{
	int fd = make("killed", "0123456789");
	for (int i = 0; i < 20; i++) {
		pid_t parent = getpid();
		int pipes[2];
		if (pipe(pipes) != 0)
			return;
		pid_t child = fork();
		if (child == 0) {
			/* The process that kills. */
			pid_t victim;
			close(pipes[1]);
			if (read(pipes[0], &victim, sizeof victim) == sizeof victim) {
				usleep(i * 100);
				kill(victim, SIGKILL);
			}
			_exit(getppid() == parent ? 0 : 1);
		}
		close(pipes[0]);
		pid_t vforked = vfork();
		if (vforked == 0) {
			pid_t me = getpid();
			if (write(pipes[1], &me, sizeof me) < 0)
				_exit(1);
			for (;;)
				if (pwrite(fd, "abcde", 5, 2) != 5)
					_exit(1);
		}
		close(pipes[1]);
		int status;
		waitpid(vforked, &status, 0);
		if (!WIFSIGNALED(status))
			printf("ended with %x\n", status);
		waitpid(child, &status, 0);
	}
	if (pwrite(fd, "ABCDEFGHIJ", 10, 0) != 10)
		perror("killed");
	show(fd);
	close(fd);
}

static volatile int stop;

/* Calls on the descriptor of a file, on one that is closed, and on none, each of a child of its own. */
static void calls(void)
{
	int file = make("calls", "some text");
	const int fds[] = {file, 99, -1};
	for (int kind = 0; kind < 14; kind++) {
		for (int i = 0; i < 3; i++) {
			const int fd = fds[i];
			char byte = 0;
			char terminal[64];
			int off = 0;
			struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
			pid_t child = vfork();
			if (child == 0) {
				long got = -2;
				errno = 0;
				switch (kind) {
				case 0: got = ioctl(fd, FIOCLEX); break;
				case 1: got = ioctl(fd, TCGETS, terminal); break;
				case 2: got = ioctl(fd, FIONBIO, &off); break;
				case 3: got = read(fd, &byte, 0); break;
				case 4: got = pread(fd, &byte, 1, 2); break;
				case 5: got = write(fd, "", 0); break;
				case 6: got = lseek(fd, 0, SEEK_CUR); break;
				case 7: got = ftruncate(fd, 9); break;
				case 8: got = fsync(fd); break;
				case 9: got = fcntl(fd, F_SETLK, &lock); break;
				case 10: got = flock(fd, LOCK_SH | LOCK_NB); break;
				case 11: got = posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL); break;
				case 12: got = fcntl(fd, F_GETFL) < 0 ? -1 : 0; break;
				case 13: got = fchmod(fd, 0644); break;
				}
				_exit(got == -1 ? errno : (int)got);
			}
			printf("%d of %d: ", kind, i);
			reap(child);
		}
	}
	close(file);
}

static void *go_on(void *name)
{
	long rounds = 0;
	while (!stop) {
		int fd = open(name, O_RDWR | O_CREAT, 0644);
		char byte = rounds % 100, seen = 0;
		if (fd < 0 || pwrite(fd, &byte, 1, 0) != 1 || pread(fd, &seen, 1, 0) != 1 || seen != byte) {
			printf("%s: %d instead of %d\n", (char *)name, seen, byte);
			break;
		}
		close(fd);
		rounds++;
	}
	unlink(name);
	return rounds > 0 ? NULL : name;
}

/* Other threads go on, open and close, and vfork themselves. */
static void *start_programs(void *none)
{
	for (int i = 0; i < 60; i++) {
		pid_t child = vfork();
		if (child == 0) {
			close_range(3, ~0u, 0);
			if (i % 3 == 0)
				_exit(0);
			if (i % 3 == 1) {
				int fd = open("child", O_WRONLY | O_CREAT | O_APPEND, 0644);
				if (write(fd, ".", 1) != 1)
					_exit(1);
				_exit(0);
			}
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		int status;
		if (waitpid(child, &status, 0) != child || status != 0)
			printf("child: %x\n", status);
	}
	return none;
}

static void threads(void)
{
	pthread_t all[4];
	close(make("child", ""));
	pthread_create(&all[0], NULL, go_on, "first");
	pthread_create(&all[1], NULL, go_on, "second");
	pthread_create(&all[2], NULL, start_programs, NULL);
	pthread_create(&all[3], NULL, start_programs, NULL);
	pthread_join(all[2], NULL);
	pthread_join(all[3], NULL);
	stop = 1;
	for (int i = 0; i < 2; i++) {
		void *wrong;
		pthread_join(all[i], &wrong);
		printf("%s\n", wrong == NULL ? "went on" : "did nothing");
	}
	int fd = open("child", O_RDONLY);
	show(fd);
	close(fd);
}

/* The parent is killed while its child runs in its memory. */
static void orphaned(void)
{
	int fd = make("orphaned", "parent "), pipes[2], status;
	if (pipe(pipes) != 0)
		return;
	pid_t parent = fork();
	if (parent == 0) {
		pid_t me = getpid();
		if (vfork() == 0) {
			if (write(fd, "child ", 6) != 6 || write(pipes[1], "r", 1) != 1)
				_exit(1);
			while (getppid() == me)
				usleep(1000);
			if (write(fd, "orphan ", 7) != 7)
				_exit(2);
			dup2(fd, 1);
			execl("/bin/sh", "sh", "-c", "printf program", (char *)NULL);
			_exit(3);
		}
		_exit(4);
	}
	char ready;
	close(pipes[1]);
	if (read(pipes[0], &ready, 1) != 1)
		perror("ready");
	kill(parent, SIGKILL);
	waitpid(parent, &status, 0);
	if (read(pipes[0], &ready, 1) != 0)
		perror("end");
	close(pipes[0]);
	show(fd);
	close(fd);
}

/* What the parent has is not copied: it finds its memory as it was. */
static void memory(void)
{
	enum { SIZE = 64 << 20 };
	char *bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(bytes, SIZE, MADV_NOHUGEPAGE);
	memset(bytes, 1, SIZE);
	struct rusage before, after;
	int fd = make("memory", "");
	getrusage(RUSAGE_SELF, &before);
	for (int i = 0; i < 4; i++) {
		pid_t child = vfork();
		if (child == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		memset(bytes, i, SIZE);
		int status;
		waitpid(child, &status, 0);
	}
	getrusage(RUSAGE_SELF, &after);
	long faults = after.ru_minflt - before.ru_minflt;
	if (faults < 1000)
		printf("not copied\n");
	else
		printf("%ld page faults\n", faults);
	if (write(fd, bytes, 10000) != 10000)
		perror("memory");
	close(fd);
	munmap(bytes, SIZE);
}

static int run_cloned(void *fd)
{
	dup2(*(int *)fd, 1);
	close(*(int *)fd);
	execl("/bin/echo", "echo", "cloned", (char *)NULL);
	return 1;
}

static void cloned(void)
{
	int fd = make("cloned", "");
	char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reap(clone(run_cloned, stack + (1 << 20), CLONE_VM | CLONE_VFORK | SIGCHLD, &fd));
	if (write(fd, "parent", 6) != 6)
		perror("parent");
	show(fd);
	close(fd);
}

/* A program that is executed from the buffered folder, one that loads no library, and none. */
static void programs(void)
{
	int fd = open("script", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	if (write(fd, "#!/bin/sh\necho script; exit 3\n", 30) != 30)
		perror("script");
	close(fd);
	char *words[] = { "x", NULL }, *none[] = { NULL };
	for (int i = 0; i < 3; i++) {
		pid_t child = vfork();
		if (child == 0) {
			if (i == 0)
				execve("./script", words, environ);
			if (i == 1)
				execve("./script", words, none);
			execve("./missing", words, environ);
			_exit(errno == ENOENT ? 4 : 5);
		}
		reap(child);
	}
}

int main(int count, char **words)
{
	(void)count;
	struct { const char *name; void (*run)(void); } all[] = {
		{ "redirected", redirected }, { "handed", handed }, { "forbidden", forbidden },
		{ "goes-on", goes_on }, { "nested", nested }, { "settings", settings }, { "limits", limits },
		{ "killed", killed }, { "threads", threads }, { "cloned", cloned }, { "calls", calls },
		{ "programs", programs }, { "orphaned", orphaned }, { "memory", memory },
	};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (words[1] == NULL || strcmp(words[1], all[i].name) == 0) {
			printf("%s\n", all[i].name);
			fflush(stdout);
			all[i].run();
		}
	return 0;
}
