/* What programs do with descriptors: descriptors WHAT FILE */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *self, *file;

#define CHECK(call)                                                          \
	do {                                                                 \
		if ((call) < 0) {                                            \
			printf("%s: %s\n", #call, strerror(errno));          \
			exit(1);                                             \
		}                                                            \
	} while (0)

static void say(int fd, const char *text)
{
	CHECK(write(fd, text, strlen(text)));
}

static void where(const char *who, int fd)
{
	struct stat found;
	CHECK(fstat(fd, &found));
	printf("%s: offset %lld, size %lld\n", who, (long long)lseek(fd, 0, SEEK_CUR),
	       (long long)found.st_size);
	fflush(stdout);
}

static void result(const char *what, ssize_t result)
{
	printf("%s: %zd %s\n", what, result, result < 0 ? strerror(errno) : "");
}

static void reap(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0));
	printf("child ended %x\n", status);
	fflush(stdout);
}

/* Parent and child write in turn through one descriptor. */
static void forked(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "parent 1\n");
	for (int turn = 0; turn < 50; turn++) {
		pid_t child = fork();
		if (child == 0) {
			char line[32];
			sprintf(line, "child %d\n", turn);
			say(fd, line);
			_exit(0);
		}
		reap(child);
		say(fd, "parent again\n");
		where("parent", fd);
	}
	/* A child's seek moves the parent too. */
	if (fork() == 0)
		_exit(lseek(fd, 3, SEEK_SET) != 3);
	wait(NULL);
	say(fd, "MOVED");
	where("parent", fd);
}

static void duplicated(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	int other = open(file, O_RDWR);
	int copies[] = { dup(fd), dup2(fd, 77), dup3(fd, 78, O_CLOEXEC), fcntl(fd, F_DUPFD, 100),
			 fcntl(fd, F_DUPFD_CLOEXEC, 200) };
	for (int i = 0; i < 5; i++) {
		char line[32];
		sprintf(line, "copy %d is %s\n", i, copies[i] > 0 ? "open" : "closed");
		say(copies[i], line);
		where("copy", copies[i]);
		where("original", fd);
	}
	where("other", other);
	/* The original closes; its copies live on. */
	close(fd);
	say(77, "still here\n");
	where("copy", 78);
	/* dup2 over a managed descriptor closes it. */
	CHECK(dup2(other, 77));
	say(77, "OTHER");
	where("other", other);
	where("copy", 78);
	result("write to a closed one", write(fd, "x", 1));
	result("dup2 of a closed one", dup2(fd, 78));
	where("copy", 78);
	/* A file that is not managed over one that is, and back. */
	int null = open("/dev/null", O_WRONLY);
	CHECK(dup2(null, 78));
	say(78, "nowhere\n");
	CHECK(dup2(100, 78));
	say(78, "back\n");
	where("copy", 100);
}

/* The new image writes through descriptor 9 and says where it is. */
static void successor(void)
{
	say(9, "after exec\n");
	where("successor", 9);
	struct stat found;
	printf("flags %x, close-on-exec is %s\n", fcntl(9, F_GETFL) & (O_ACCMODE | O_APPEND),
	       fstat(10, &found) < 0 ? "closed" : "open");
}

static void executed(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	say(fd, "before exec\n");
	CHECK(dup2(fd, 9));
	CHECK(dup3(fd, 10, O_CLOEXEC));
	if (fork() == 0) {
		execl(self, self, "successor", file, (char *)NULL);
		_exit(9);
	}
	wait(NULL);
	where("parent", fd);
	say(fd, "parent\n");
	char *empty[] = { NULL };
	char *words[] = { (char *)self, "successor", (char *)file, NULL };
	if (fork() == 0) {
		execve(self, words, empty);
		_exit(9);
	}
	wait(NULL);
	say(fd, "parent\n");
	execv(self, words);
}

static void spawned(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644), status;
	say(fd, "before spawn\n");
	char *words[] = { (char *)self, "successor", (char *)file, NULL };
	pid_t child;
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 9);
	int failed = posix_spawn(&child, self, &actions, NULL, words, environ);
	CHECK(waitpid(child, &status, 0));
	printf("spawn %d\n", failed);
	where("parent", fd);
	/* The same file, opened for the child by posix_spawn itself. */
	posix_spawn_file_actions_t opening;
	posix_spawn_file_actions_init(&opening);
	posix_spawn_file_actions_addopen(&opening, 1, file, O_WRONLY | O_APPEND, 0);
	char *echo[] = { "echo", "from echo", NULL };
	failed = posix_spawnp(&child, "echo", &opening, NULL, echo, environ);
	CHECK(waitpid(child, &status, 0));
	printf("spawn %d, child ended %x\n", failed, status);
	where("parent", fd);
	lseek(fd, 0, SEEK_END);
	say(fd, "after spawn\n");
	where("parent", fd);
	fflush(stdout);
	if (system("echo from system >> relay; cat relay; rm relay") != 0)
		puts("system failed");
	FILE *pipe = popen("cat", "w");
	fputs("through a pipe\n", pipe);
	pclose(pipe);
}

/* Daemons close everything they do not know. */
static void close_all(void)
{
	for (int fd = 3; fd < 4096; fd++)
		close(fd);
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "one\n");
	CHECK(close_range(fd + 1, ~0u, 0));
	say(fd, "two\n");
	closefrom(fd + 1);
	say(fd, "three\n");
	where("after", fd);
	CHECK(close_range(3, ~0u, 0));
	result("write to a closed one", write(fd, "x", 1));
	fd = open(file, O_RDWR | O_APPEND);
	say(fd, "four\n");
	char text[64] = "";
	printf("read %zd: %s", pread(fd, text, 63, 0), text);
}

static void pointers(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "something to read");
	struct iovec nothing = { NULL, 10 }, end = { (void *)-1, 10 }, empty = { NULL, 0 };
	void *bad[] = { NULL, (void *)-1 };
	for (int i = 0; i < 2; i++) {
		result("write", write(fd, bad[i], 10));
		result("pwrite", pwrite(fd, bad[i], 10, 5));
		result("pread", pread(fd, bad[i], 10, 0));
		lseek(fd, 0, SEEK_SET);
		result("read", read(fd, bad[i], 10));
		result("fstat", fstat(fd, bad[i]));
		result("open", open(bad[i], O_RDWR | O_CREAT, 0644));
		result("open trunc", open(bad[i], O_RDWR | O_TRUNC));
		result("stat", stat(bad[i], NULL));
		result("truncate", truncate(bad[i], 0));
		result("readv", readv(fd, bad[i], 1));
		result("writev", writev(fd, bad[i], 1));
		result("rename", rename(bad[i], bad[i]));
		result("unlink", unlink(bad[i]));
	}
	result("writev", writev(fd, &nothing, 1));
	result("readv", readv(fd, &end, 1));
	result("readv of nothing", readv(fd, &empty, 1));
	result("writev of nothing", writev(fd, NULL, 0));
	result("writev of -1", writev(fd, &empty, -1));
	result("write of nothing", write(fd, NULL, 0));
	result("negative pread", pread(fd, &end, 1, -1));
	result("negative lseek", lseek(fd, -1, SEEK_SET));
	result("lseek of what", lseek(fd, 0, 99));
	result("ftruncate", ftruncate(fd, -1));
	/* What another process takes away: pages of a file behind its end. */
	int source = open("source", O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(ftruncate(source, 8192));
	char *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, source, 0);
	char *private = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, source, 0);
	for (int turn = 0; turn < 2; turn++) {
		result("write from a mapping", pwrite(fd, mapped + 4096, 100, 0));
		result("read into a mapping", pread(fd, mapped + 4096, 100, 0));
		result("write from a copy", pwrite(fd, private + 4096, 100, 0));
		result("read into a copy", pread(fd, private + 4096, 100, 0));
	}
	pid_t child = fork();
	if (child == 0)
		_exit(truncate("source", 100));
	reap(child);
	result("write from behind an end", pwrite(fd, mapped + 4096, 100, 0));
	result("read to behind an end", pread(fd, mapped + 4096, 100, 0));
	result("write from a copy behind an end", pwrite(fd, private + 4096, 100, 0));
	result("read to a copy behind an end", pread(fd, private + 4096, 100, 0));
	result("write from before an end", pwrite(fd, mapped, 100, 0));
	munmap(mapped, 8192), munmap(private, 8192);
	result("write from nothing", pwrite(fd, mapped, 100, 0));
	/* The C library unmaps it where that cannot be seen, and something else comes to its place. */
	char *freed = malloc(64 << 20);
	memset(freed, 'f', 64 << 20);
	result("write from an array", pwrite(fd, freed + 8192, 100, 0));
	result("read into an array", pread(fd, freed + 8192, 100, 0));
	free(freed);
	char *other = mmap((void *)((uintptr_t)freed & -4096), 64 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	result("read into what cannot be written", pread(fd, freed + 8192, 100, 0));
	munmap(other, 64 << 20);
	close(source);
	close(fd);
	int reading = open(file, O_RDONLY), writing = open(file, O_WRONLY);
	char byte;
	result("write to a reader", write(reading, "x", 1));
	result("read from a writer", read(writing, &byte, 1));
	result("ftruncate of a reader", ftruncate(reading, 0));
	result("missing", open("missing", O_RDONLY));
	result("exclusive", open(file, O_CREAT | O_EXCL | O_RDWR, 0644));
	result("directory", open(".", O_RDWR));
	where("in the end", reading);
}

/* A descriptor goes through a socket to a process that did not inherit it. */
static void passed(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
	char byte = 'x';
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control };
	pid_t child = fork();
	if (child == 0) {
		CHECK(recvmsg(pair[1], &message, 0));
		int fd;
		memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
		say(fd, "from the receiver\n");
		where("receiver", fd);
		exit(0);
	}
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "from the sender\n");
	control.header.cmsg_len = CMSG_LEN(sizeof fd);
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	CHECK(sendmsg(pair[0], &message, 0));
	reap(child);
	say(fd, "from the sender again\n");
	where("sender", fd);
}

/* One process has a dirty file open while another opens it with O_TRUNC. */
static void truncated(void)
{
	static char block[300000];
	memset(block, 'a', sizeof block);
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(write(fd, block, sizeof block));
	pid_t child = fork();
	if (child == 0) {
		int again = open(file, O_RDWR | O_TRUNC);
		where("child", again);
		say(again, "short");
		_exit(0);
	}
	reap(child);
	where("parent", fd);
	printf("read %zd of %.5s\n", pread(fd, block, sizeof block, 0), block);
	/* Writing goes on at the old offset: the hole between reads as zeros. */
	say(fd, "tail");
	where("parent", fd);
	ssize_t got = pread(fd, block, 200000, 100000), zeros = 0;
	while (zeros < got && block[zeros] == 0)
		zeros++;
	printf("read %zd, %zd zeros\n", got, zeros);
}

/* ftruncate both ways: what was cut off must never come back. */
static void cut(void)
{
	static char block[1 << 20], got[1 << 20];
	memset(block, 'b', sizeof block);
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	long sizes[] = { 700001, 262144, 262145, 1, 4096, 4095, 0, 12345, 900000 };
	for (int i = 0; i < 9; i++) {
		CHECK(pwrite(fd, block, sizeof block - 1000 * i, 0));
		CHECK(ftruncate(fd, sizes[i]));
		where("cut", fd);
		CHECK(ftruncate(fd, sizeof block));
		where("grown", fd);
		long letters = 0, other = 0;
		ssize_t bytes = pread(fd, got, sizeof got, 0);
		for (ssize_t at = 0; at < bytes; at++) {
			letters += got[at] == 'b';
			other += got[at] != 'b' && got[at] != 0;
		}
		printf("%ld: read %zd, %ld letters, %ld other\n", sizes[i], bytes, letters, other);
	}
	CHECK(ftruncate(fd, 555555));
	CHECK(truncate(file, 444444));
	where("in the end", fd);
}

/* A file without a name lives as long as a process has it open; one with a new name goes on. */
static void renamed(void)
{
	char other[256];
	sprintf(other, "%s.other", file);
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "written under the old name\n");
	CHECK(rename(file, other));
	say(fd, "written under the new name\n");
	int again = open(other, O_RDONLY);
	char text[128] = "";
	printf("read %zd: %s", read(again, text, 127), text);
	/* A new file takes the old name. */
	int fresh = open(file, O_RDWR | O_CREAT, 0644);
	say(fresh, "another file\n");
	where("fresh", fresh);
	CHECK(unlink(file));
	say(fresh, "without a name\n");
	where("nameless", fresh);
	memset(text, 0, sizeof text);
	printf("read %zd: %s", pread(fresh, text, 127, 0), text);
	result("access", access(file, F_OK));
	close(fresh);
	/* The number of the nameless file may come back. */
	fresh = open(file, O_RDWR | O_CREAT, 0644);
	where("new", fresh);
	say(fresh, "new\n");
	/* Rename over a dirty file, and over one that is open. */
	CHECK(rename(other, file));
	where("replaced", fresh);
	say(fresh, "into the void\n");
	say(fd, "still the first\n");
	where("first", fd);
}

/* Children that are killed before they have run. */
static void newborn(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (int i = 0; i < 200; i++) {
		pid_t child = fork();
		if (child == 0)
			pause();
		CHECK(kill(child, SIGKILL));
		reap(child);
	}
	say(fd, "all are gone\n");
	sleep(1);
	where("parent", fd);
}

/* Children that the C library starts by itself, with an environment that was emptied. */
static void cleared(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	say(fd, "parent\n");
	CHECK(dup2(fd, 9));
	clearenv();
	if (system("echo from a shell >&9; /bin/echo from echo >&9; /bin/echo appended >> relay; /bin/cat relay") != 0)
		puts("system failed");
	where("parent", fd);
	FILE *pipe = popen("/bin/cat >&9", "w");
	fputs("through a pipe\n", pipe);
	pclose(pipe);
	say(fd, "parent\n");
	where("parent", fd);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	self = argv[0];
	file = argv[2];
	struct { const char *name; void (*act)(void); } acts[] = {
		{ "fork", forked }, { "dup", duplicated }, { "exec", executed },
		{ "successor", successor }, { "spawn", spawned }, { "closeall", close_all },
		{ "pointers", pointers }, { "pass", passed }, { "truncate", truncated },
		{ "cut", cut }, { "rename", renamed }, { "newborn", newborn }, { "clear", cleared },
	};
	for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
		if (strcmp(acts[i].name, argv[1]) == 0) {
			acts[i].act();
			return 0;
		}
	return 2;
}
