/*
 * What programs do first that begin with nothing of the pool: each is started by a process that has no file open,
 * and reads what that has just written, or writes what that reads then. Lines on stdout are compared with those of
 * a plain run.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#if __GLIBC_PREREQ(2, 36)
#include <sys/pidfd.h>
#endif

extern char **environ;
extern int pivot_root(const char *, const char *);
extern int __clone(int (*begin)(void *), void *stack, int flags, void *argument, ...);

#define PATH "late-file"

static void show(const char *what, int fd)
{
	char text[100] = "";
	ssize_t length = fd < 0 ? -errno : read(fd, text, sizeof text - 1);
	printf("  %s: %zd %s\n", what, length, text);
	fflush(stdout);
	if (fd >= 0)
		close(fd);
}

static void show_path(const char *what)
{
	show(what, open(PATH, O_RDONLY));
}

static void reap(pid_t child)
{
	int status = -1;
	if (child <= 0 || waitpid(child, &status, 0) != child)
		printf("  no child: %d\n", errno);
	else
		printf("  %s %d\n", WIFSIGNALED(status) ? "signal" : "status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	fflush(stdout);
}

static void handler(int number)
{
	(void)number;
	show_path("handled");
}

static void *thread(void *argument)
{
	show_path(argument);
	return NULL;
}

static void by_stat(void)
{
	struct stat stat_of;
	int result = stat(PATH, &stat_of);
	printf("  stat %d %ld\n", result, (long)stat_of.st_size);
}

static void by_stream(void)
{
	char line[100] = "";
	FILE *file = fopen(PATH, "r");
	if (file && fgets(line, sizeof line, file))
		printf("  stream: %s\n", line);
	if (file)
		fclose(file);
}

static void by_syscall(void)
{
	show("syscall", syscall(SYS_openat, AT_FDCWD, PATH, O_RDONLY, 0));
}

static void by_fork(void)
{
	pid_t child = fork();
	if (child == 0) {
		show_path("forked");
		_exit(3);
	}
	reap(child);
}

static void by_vfork(void)
{
	pid_t child = vfork();
	if (child == 0) {
		show_path("vforked");
		_exit(4);
	}
	reap(child);
}

static void by_thread(void)
{
	pthread_t other;
	pthread_create(&other, NULL, thread, "thread");
	pthread_join(other, NULL);
}

static void by_handler(void)
{
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void by_older_handler(void)
{
	sigset(SIGUSR1, handler);
	raise(SIGUSR1);
}

static int begin(void *argument)
{
	show_path(argument);
	return 5;
}

static void by_clone(void)
{
	static char stack[256 << 10] __attribute__((aligned(64)));
	reap(__clone(begin, stack + sizeof stack, SIGCHLD, "cloned"));
}

static void by_exec(void)
{
	execl("/bin/cat", "cat", PATH, (char *)NULL);
}

static void by_spawn(void)
{
	char *arguments[] = { "cat", PATH, NULL };
	pid_t child = 0;
	posix_spawnp(&child, "cat", NULL, NULL, arguments, environ);
	reap(child);
}

static void by_system(void)
{
	printf("  status %d\n", system("cat " PATH));
}

static void by_pipe(void)
{
	char line[100] = "";
	FILE *pipe = popen("cat " PATH, "r");
	if (pipe && fgets(line, sizeof line, pipe))
		printf("  pipe: %s\n", line);
	if (pipe)
		pclose(pipe);
}

static void by_message(void)
{
	/* From the parent, which has the other end: what it has open by now. */
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	int fd = -1;
	if (recvmsg(3, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	show("received", fd);
}

/* The parent's descriptor, of which it says the number. */
static void by_copy(void)
{
	unsigned char number = 0;
	ssize_t length = read(3, &number, 1);
	int parent = syscall(SYS_pidfd_open, getppid(), 0);
	show("copied", length == 1 ? (int)syscall(SYS_pidfd_getfd, parent, number, 0) : -1);
#if __GLIBC_PREREQ(2, 36)
	int again = pidfd_getfd(parent, number, 0);
	printf("  offset %ld\n", (long)lseek(again, 0, SEEK_CUR));
#endif
}

/* For something on its standard input. */
static void waits(void)
{
	char byte;
	printf("  waited %d\n", read(0, &byte, 1) >= 0);
	printf("  without an end");
	show_path("waited");
}

static void few_descriptors(void)
{
	struct rlimit limit = { 8, 8 };
	printf("  limit %d\n", setrlimit(RLIMIT_NOFILE, &limit));
	show_path("few");
}

static void all_descriptors(void)
{
	int count = 0;
	while (dup(0) >= 0)
		count++;
	printf("  full %d\n", count > 20 && errno == EMFILE);
	by_stat();
	close(30);
	show_path("one left");
}

/* Other files come to be where shared memory was. */
static void unshared(void)
{
	int is_other = unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
		mount("none", "/dev/shm", "tmpfs", 0, NULL) == 0;
	printf("  unshared %d\n", is_other);
	show_path("unshared");
}

/* None of these does anything here. */
static void privileges(void)
{
	printf("  umount %d %d\n", umount2("no-such-place", MNT_DETACH), umount("no-such-place"));
	printf("  setns %d\n", setns(-1, CLONE_NEWNS));
	printf("  setfsuid %d\n", setfsuid(-1));
	printf("  prctl %d\n", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	printf("  mlockall %d\n", mlockall(0));
	printf("  pivot_root %d\n", pivot_root("no-such-place", "no-such-place"));
#if __GLIBC_PREREQ(2, 36)
	struct mount_attr nothing = { 0 };
	printf("  move_mount %d\n", move_mount(-1, "", -1, "", 0));
	printf("  mount_setattr %d\n", mount_setattr(-1, "", 0, &nothing, sizeof nothing));
#endif
	show_path("privileges");
}

static void rooted(void)
{
	char here[4096];
	printf("  root %d\n", getcwd(here, sizeof here) && chroot(here) == 0);
	show("rooted", open("/" PATH, O_RDONLY));
}

static void other_user(void)
{
	printf("  user %d\n", seteuid(12345));
	show_path("other user");
}

static void small_memory(void)
{
	struct rlimit limit = { 200 << 20, 200 << 20 };
	printf("  memory %d\n", setrlimit(RLIMIT_AS, &limit));
	show_path("small");
}

static void writes(void)
{
	int fd = open(PATH, O_WRONLY | O_APPEND);
	printf("  wrote %zd\n", write(fd, " and more", 9));
	close(fd);
}

/* Streams that were there before. */
static void redirects(void)
{
	FILE *before = stdout;
	fprintf(before, "  before\n");
	fflush(before);
	int saved = dup(1), fd = open(PATH, O_WRONLY | O_TRUNC);
	dup2(fd, 1);
	close(fd);
	printf("printed");
	fprintf(before, " twice");
	fflush(stdout);
	dup2(saved, 1);
	close(saved);
	printf("  after\n");
}

/* A stream that was there before its descriptor becomes the file's. */
static void reopens(void)
{
	FILE *before = fdopen(dup(1), "w");
	int fd = open(PATH, O_WRONLY | O_TRUNC);
	if (write(fd, "HEAD ", 5) != 5 || dup2(fd, fileno(before)) < 0)
		perror("dup2");
	fprintf(before, "through the stream");
	printf("  closed %d %d\n", fclose(before), close(fd));
}

static void renames(void)
{
	printf("  renamed %d\n", rename(PATH, PATH ".new") | rename(PATH ".new", PATH));
	show_path("renamed");
}

static void lists(void)
{
	int found = 0;
	DIR *folder = opendir(".");
	for (struct dirent *entry; folder && (entry = readdir(folder));)
		found += strcmp(entry->d_name, PATH) == 0;
	printf("  listed %d\n", found);
	if (folder)
		closedir(folder);
	show_path("listed");
}

static void maps(void)
{
	int fd = open(PATH, O_RDONLY);
	char *text = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	printf("  mapped: %.4s\n", text == MAP_FAILED ? "none" : text);
}

static void nothing(void)
{
	printf("  nothing\n");
}

static const struct {
	const char *name;
	void (*act)(void);
} ACTS[] = {
	{ "stat", by_stat }, { "stream", by_stream }, { "syscall", by_syscall }, { "fork", by_fork },
	{ "vfork", by_vfork }, { "thread", by_thread }, { "handler", by_handler },
	{ "sigset", by_older_handler }, { "clone", by_clone }, { "reopens", reopens },
	{ "exec", by_exec }, { "spawn", by_spawn }, { "system", by_system }, { "pipe", by_pipe },
	{ "message", by_message }, { "copy", by_copy }, { "few", few_descriptors },
	{ "full", all_descriptors }, { "unshared", unshared }, { "rooted", rooted },
	{ "user", other_user }, { "memory", small_memory }, { "writes", writes },
	{ "redirects", redirects }, { "renames", renames }, { "lists", lists },
	{ "privileges", privileges }, { "maps", maps }, { "nothing", nothing }, { "waits", waits },
};

/* A program that does `name` first, by a vfork, a fork or a posix_spawn. */
static pid_t start(const char *self, const char *how, const char *name)
{
	char *arguments[] = { "late", "does", (char *)name, NULL };
	pid_t child = -1;
	if (!strcmp(how, "spawned"))
		posix_spawn(&child, self, NULL, NULL, arguments, environ);
	else if ((child = !strcmp(how, "forked") ? fork() : vfork()) == 0) {
		execv(self, arguments);
		_exit(127);
	}
	return child;
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t at = 0; count == 3 && !strcmp(arguments[1], "does") && at < sizeof ACTS / sizeof *ACTS; at++)
		if (!strcmp(arguments[2], ACTS[at].name)) {
			ACTS[at].act();
			return 7;
		}
	/* What a program cannot have opened more than before it joins. */
	struct rlimit limit = { 0, 0 };
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 40;
	setrlimit(RLIMIT_NOFILE, &limit);
	for (size_t at = 0; count == 2 && at < sizeof ACTS / sizeof *ACTS; at++) {
		int ends[2], fd = open(PATH, O_WRONLY | O_CREAT | O_TRUNC, 0666);
		char text[100];
		int length = sprintf(text, "written for %s", ACTS[at].name);
		if (write(fd, text, length) != length || close(fd) != 0)
			perror(PATH);
		printf("%s %s\n", arguments[1], ACTS[at].name);
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || ends[0] != 3)
			printf("another descriptor: %d\n", ends[0]);
		pid_t child = start(arguments[0], arguments[1], ACTS[at].name);
		if (!strcmp(ACTS[at].name, "message")) {
			char byte = 1, control[CMSG_SPACE(sizeof(int))] = { 0 };
			struct iovec part = { &byte, 1 };
			struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
			struct cmsghdr *header = CMSG_FIRSTHDR(&message);
			header->cmsg_level = SOL_SOCKET;
			header->cmsg_type = SCM_RIGHTS;
			header->cmsg_len = CMSG_LEN(sizeof(int));
			fd = open(PATH, O_RDONLY);
			memcpy(CMSG_DATA(header), &fd, sizeof fd);
			if (sendmsg(ends[1], &message, 0) != 1)
				perror("sendmsg");
			close(fd);
		}
		int is_copied = !strcmp(ACTS[at].name, "copy");
		if (is_copied) {
			unsigned char number = fd = open(PATH, O_RDONLY);
			if (lseek(fd, 4, SEEK_SET) != 4 || write(ends[1], &number, 1) != 1)
				perror("number");
		}
		reap(child);
		if (is_copied)
			close(fd);
		close(ends[0]);
		close(ends[1]);
		show_path("parent");
	}
	return 0;
}
