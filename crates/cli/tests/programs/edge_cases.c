/* Programs that change what they may do, or how they do it: edge_cases WHAT */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char megabyte[1 << 20];
static int shared;

/* Size and first bytes of a file, as stat and read see them. */
static void show(const char *name)
{
	struct stat found;
	char text[100] = "";
	int known = stat(name, &found), fd = open(name, O_RDONLY);
	int got = fd < 0 ? -1 : read(fd, text, 99);
	printf("%s: %lld, %d %.24s\n", name, known ? -1 : (long long)found.st_size, got, text);
	fflush(stdout);
	if (fd >= 0)
		close(fd);
}

static void put(const char *name, const char *text, int flags)
{
	int fd = open(name, O_RDWR | O_CREAT | flags, 0666);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		perror(name);
	close(fd);
}

static void fill(int fd, int megabytes)
{
	for (int i = 0; i < megabytes; i++) {
		memset(megabyte, i + 1, sizeof megabyte);
		if (pwrite(fd, megabyte, sizeof megabyte, (off_t)i << 20) != sizeof megabyte)
			perror("pwrite");
	}
}

static void sum(int fd)
{
	unsigned all = 0;
	off_t at = 0;
	ssize_t got;
	while ((got = pread(fd, megabyte, sizeof megabyte, at)) > 0) {
		for (ssize_t i = 0; i < got; i++)
			all = all * 31 + (unsigned char)megabyte[i];
		at += got;
	}
	printf("%lld bytes, sum %x%s\n", (long long)at, all, got < 0 ? strerror(errno) : "");
	fflush(stdout);
}

static void reap(void)
{
	int status;
	wait(&status);
	printf("ended %x\n", status);
	fflush(stdout);
}

/* There is no /proc, no pool, no socket and no tier in the new root. */
static void new_root(void)
{
	int fd = open("big", O_RDWR | O_CREAT | O_TRUNC, 0666);
	fill(fd, 90);
	mkdir("root", 0755);
	mkdir("root/sub", 0755);
	put("root/in", "inside", O_TRUNC);
	if (chroot("root") || chdir("/"))
		perror("chroot");
	show("/in");
	put("/in", " more", O_APPEND);
	show("sub/../in");
	put("/new", "new file in root", O_TRUNC);
	show("new");
	sum(fd);
	fill(fd, 20);
	if (fork() == 0) {
		put("/child", "by child", O_TRUNC);
		put("/in", "!", O_APPEND);
		usleep(1200000);
		pwrite(fd, "late", 4, 17);
		sum(fd);
		_exit(0);
	}
	reap();
	show("/child");
	show("/in");
	sum(fd);
	rename("/new", "/newer");
	show("/newer");
	ftruncate(fd, 5);
}

static void another_user(void)
{
	const int nobody = 65534;
	umask(0);
	int fd = open("big", O_RDWR | O_CREAT | O_TRUNC, 0666);
	fill(fd, 90);
	put("mine", "root's", O_TRUNC);
	put("secret", "s", O_TRUNC);
	chmod("secret", 0600);
	int secret = open("secret", O_RDWR);
	if (setgid(nobody) || setuid(nobody))
		perror("setuid");
	sum(fd);
	put("new", "by nobody", O_TRUNC);
	put("mine", " added", O_APPEND);
	show("new");
	show("mine");
	show("secret");
	write(secret, "XYZ", 3);
	printf("%d\n", fsync(secret));
	fill(fd, 20);
	printf("%d\n", fsync(fd));
	if (fork() == 0) {
		put("new", " child", O_APPEND);
		fill(fd, 60);
		_exit(0);
	}
	reap();
	show("new");
	sum(fd);
	if (fork() == 0) {
		execl("/bin/sh", "sh", "-c",
		      "cat new; echo ' exec' >> new; cat new; echo made > new3; wc -c < big; id -u",
		      (char *)NULL);
		_exit(9);
	}
	reap();
	show("new");
	put("new3", "after", O_APPEND);
	show("new3");
}

/* Another user's program inherits a descriptor whose data is nowhere but here. */
static void inherited_by_another(void)
{
	int fd = open("inherited", O_RDWR | O_CREAT | O_TRUNC, 0666);
	write(fd, "one\n", 4);
	dup2(fd, 1);
	if (fork() == 0) {
		setgid(65534);
		setuid(65534);
		execl("/bin/sh", "sh", "-c", "echo two; echo three; cat inherited >&2", (char *)NULL);
		_exit(9);
	}
	wait(NULL);
	write(1, "four\n", 5);
	system("cat inherited >&2");
}

/* Nothing can be opened, connected, sent or asked any more. */
static void filtered(void)
{
#define DENY(number)                                            \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1),    \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_openat), DENY(SYS_socket), DENY(SYS_connect), DENY(SYS_madvise),
		DENY(SYS_sendmsg), DENY(SYS_memfd_create), DENY(SYS_prlimit64),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	put("filtered", "before", O_TRUNC);
	int fd = open("filtered", O_RDWR);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	printf("%d\n", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
	memset(megabyte, 'b', sizeof megabyte);
	printf("%zd\n", pwrite(fd, megabyte, sizeof megabyte, 3));
	char text[10] = "";
	printf("%zd %s\n", pread(fd, text, 9, 0), text);
	printf("%d %d\n", fsync(fd), ftruncate(fd, 500));
	printf("%d\n", open("filtered", O_RDONLY));
	char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	printf("%.6s\n", map == MAP_FAILED ? "failed" : map);
	printf("%zd\n", write(fd, "end", 3));
}

/* Only read, write and exit are left. */
static void strict(void)
{
	int fd = open("strict", O_RDWR | O_CREAT | O_TRUNC, 0644);
	write(fd, "one", 3);
	if (fork() == 0) {
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		write(fd, "two", 3);
		write(1, "strict\n", 7);
		syscall(SYS_exit, 0);
	}
	reap();
	show("strict");
}

static void storm(void)
{
	char *words[] = { "sh", "-c", "echo spawned; echo twice >&2", NULL };
	put("storm", "x", O_TRUNC);
	for (int i = 0; i < 100; i++) {
		pid_t child = vfork();
		if (child == 0) {
			execl("/bin/sh", "sh", "-c", "echo line >> storm", (char *)NULL);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
	show("storm");
	for (int i = 0; i < 60; i++) {
		posix_spawn_file_actions_t actions;
		pid_t child;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addopen(&actions, 1, i % 2 ? "storm" : "spawned",
						 O_WRONLY | O_CREAT | O_APPEND, 0644);
		posix_spawn_file_actions_addclose(&actions, 0);
		posix_spawn_file_actions_adddup2(&actions, 1, 2);
		posix_spawnp(&child, "sh", &actions, NULL, words, environ);
		waitpid(child, NULL, 0);
		posix_spawn_file_actions_destroy(&actions);
	}
	show("storm");
	show("spawned");
}

static void *small_write(void *number)
{
	char name[30];
	sprintf(name, "thread%ld", (long)number % 50);
	int fd = open(name, O_RDWR | O_CREAT, 0644);
	pwrite(fd, "thread", 6, (long)number * 6);
	close(fd);
	return NULL;
}

static void many_threads(void)
{
	pthread_t threads[400];
	for (long turn = 0; turn < 5; turn++) {
		for (long i = 0; i < 400; i++)
			if (pthread_create(&threads[i], NULL, small_write, (void *)(i + turn * 400)))
				perror("pthread_create");
		for (int i = 0; i < 400; i++)
			pthread_join(threads[i], NULL);
	}
	show("thread0");
	show("thread49");
}

static void late_daemon(void)
{
	put("daemon", "start\n", O_TRUNC);
	int fd = open("daemon", O_WRONLY | O_APPEND);
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			for (int i = 0; i < 3; i++)
				close(i);
			usleep(700000);
			write(fd, "late\n", 5);
			put("second", "later\n", O_TRUNC);
			put("done", "", 0);
		}
		_exit(0);
	}
	wait(NULL);
	write(fd, "parent\n", 7);
}

/* System calls by number. */
static void raw(void)
{
	char text[10] = "";
	struct stat found;
	int fd = syscall(SYS_openat, AT_FDCWD, "raw", O_RDWR | O_CREAT | O_TRUNC, 0644);
	printf("%ld\n", syscall(SYS_write, fd, "hello", 5));
	printf("%ld\n", syscall(SYS_lseek, fd, 1, SEEK_SET));
	printf("%ld %s\n", syscall(SYS_read, fd, text, 9), text);
	printf("%ld\n", syscall(SYS_write, syscall(SYS_dup, fd), "!!", 2));
	printf("%ld\n", syscall(SYS_ftruncate, fd, 6));
	printf("%ld %lld\n", syscall(SYS_fstat, fd, &found), (long long)found.st_size);
	printf("%ld\n", syscall(SYS_renameat2, AT_FDCWD, "raw", AT_FDCWD, "raw2", 0));
	show("raw2");
	printf("%ld\n", syscall(SYS_truncate, "raw2", 3));
	show("raw2");
#ifdef SYS_creat
	int other = syscall(SYS_creat, "raw2", 0644);
	printf("%ld\n", syscall(SYS_write, other, "cc", 2));
	show("raw2");
	printf("%ld %lld\n", syscall(SYS_stat, "raw2", &found), (long long)found.st_size);
#endif
	printf("%ld\n", syscall(SYS_pwrite64, fd, "zz", 2, 8));
	show("raw2");
	printf("%ld %ld\n", syscall(SYS_fsync, fd), syscall(SYS_unlinkat, AT_FDCWD, "raw2", 0));
	show("raw2");
	printf("%ld %ld\n", syscall(SYS_close, fd), syscall(SYS_write, fd, "x", 1));
}

static void show_status(const char *name, long result)
{
	struct stat found = {0};
	int looked = stat(name, &found);
	printf("%ld %d %ld %o\n", result, looked, (long)found.st_mtime, found.st_mode & 07777);
}

/* What changes names, times and modes of a file that is still buffered. */
static void raw_changes(void)
{
	enum { FCHMODAT2 = 452 };
	const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 2000}};
	int fd = open("changed", O_RDWR | O_CREAT | O_TRUNC, 0644);
	printf("%zd\n", write(fd, "changed", 7));
	show_status("changed", syscall(SYS_utimensat, AT_FDCWD, "changed", times, 0));
	lseek(fd, 0, SEEK_SET);
	printf("%zd\n", write(fd, "C", 1));
	show_status("changed", syscall(SYS_utimensat, fd, NULL, times, 0));
	/* Without a path the kernel takes no flags, and no current directory. */
	const struct timespec others[2] = {{.tv_sec = 3000}, {.tv_sec = 4000}};
	const struct { int fd, flags; } refused[] = {
		{fd, AT_SYMLINK_NOFOLLOW}, {fd, AT_EMPTY_PATH}, {-1, AT_SYMLINK_NOFOLLOW}, {-1, 0}, {AT_FDCWD, 0},
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		errno = 0;
		show_status("changed", syscall(SYS_utimensat, refused[i].fd, NULL, others, refused[i].flags));
		printf("%d\n", errno);
		errno = 0;
		show_status("changed", utimensat(refused[i].fd, NULL, others, refused[i].flags));
		printf("%d\n", errno);
	}
	/* One of two names goes: the file is the other one's. */
	printf("%ld\n", syscall(SYS_linkat, AT_FDCWD, "changed", AT_FDCWD, "linked", 0));
	printf("%d\n", unlink("changed"));
	show("linked");
#ifdef SYS_link
	printf("%ld\n", syscall(SYS_link, "linked", "again"));
#else
	printf("%ld\n", syscall(SYS_linkat, AT_FDCWD, "linked", AT_FDCWD, "again", 0));
#endif
	printf("%d\n", unlink("linked"));
	show("again");
	printf("%ld\n", syscall(SYS_linkat, AT_FDCWD, "missing", AT_FDCWD, "none", 0));
	/* Kernels before 6.6 have no fchmodat2. */
	long changed = syscall(FCHMODAT2, AT_FDCWD, "again", 0444, 0);
	if (changed != 0 && errno == ENOSYS)
		changed = syscall(SYS_fchmodat, AT_FDCWD, "again", 0444);
	show_status("again", changed);
	changed = syscall(FCHMODAT2, fd, "", 0755, AT_EMPTY_PATH);
	if (changed != 0 && errno == ENOSYS)
		changed = syscall(SYS_fchmod, fd, 0755);
	show_status("again", changed);
	show_status("again", syscall(SYS_fchmod, fd, 0600));
	close(fd);
	show("again");
}

static int in_clone(void *unused)
{
	return write(shared, "cloned", 6) != 6;
}

static void cloned(void)
{
	char *stack = malloc(1 << 16);
	put("clone", "x", O_TRUNC);
	shared = open("clone", O_RDWR | O_APPEND);
	clone(in_clone, stack + (1 << 16), CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
	reap();
	show("clone");
	clone(in_clone, stack + (1 << 16), SIGCHLD, NULL);
	reap();
	show("clone");
	write(shared, "p", 1);
	show("clone");
}

static void no_environment(void)
{
	char *words[] = { "sh", "-c", "echo z >> env; cat env", NULL }, *none[] = { NULL };
	pid_t child;
	put("env", "x", O_TRUNC);
	clearenv();
	system("/bin/cat env; echo y >> env");
	show("env");
	if (fork() == 0)
		execve("/bin/sh", words, none);
	reap();
	if (fork() == 0)
		execve("/bin/sh", words, NULL);
	reap();
	environ = NULL;
	posix_spawn(&child, "/bin/sh", NULL, NULL, words, NULL);
	reap();
	show("env");
}

int main(int count, char **words)
{
	const struct {
		const char *name;
		void (*act)(void);
	} all[] = {
		{ "chroot", new_root },	       { "setuid", another_user },
		{ "inherited", inherited_by_another }, { "filtered", filtered },
		{ "strict", strict },	       { "storm", storm },
		{ "threads", many_threads },   { "daemon", late_daemon },
		{ "raw", raw }, { "raw-changes", raw_changes },		       { "clone", cloned },
		{ "environment", no_environment },
	};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(words[1], all[i].name))
			return all[i].act(), 0;
	return 1;
}
