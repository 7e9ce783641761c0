/*
 * Messages that are written to standard error where no preloaded library sees it.
 *
 *   heap                libc finds the heap damaged, and ends the program
 *   stack               the same of the stack
 *   herror              a function of libc that writes by itself
 *   raw                 a system call instruction
 *   spawned FILE PROG   posix_spawn of PROG, whose standard output and error FILE is to be
 *   chained FILE PROG   the same, by one action after the other, made before FILE is opened
 *   vforked FILE PROG   vfork, and PROG is executed with FILE as its standard error, by dup and fcntl
 *   becomes             what is standard output becomes standard error, too, and is written to
 *   reopened FILE       descriptor 2 is closed, and FILE opened and duplicated in its place
 *   received FILE       descriptor 2 is closed, and FILE received by a socket in its place
 *   racing FILE COUNT   two threads write COUNT lines each, while FILE becomes standard error
 *   appended FILE       two processes append, of which one has FILE as its standard error
 *
 * With SYMBOL it calls a function in the end that the loader does not find.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s: %m\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

extern char **environ;

#ifdef SYMBOL
void nowhere_to_be_found(void);
#endif

static void raw(const char *text)
{
	long done = SYS_write;
#ifdef __x86_64__
	__asm__ volatile("syscall"
			 : "+a"(done)
			 : "D"(2L), "S"(text), "d"(strlen(text))
			 : "rcx", "r11", "memory");
#else
	done = syscall(SYS_write, 2, text, strlen(text));
#endif
	CHECK(done == (long)strlen(text));
}

static void __attribute__((noinline)) damage(volatile char *bytes, int size)
{
	for (int i = 0; i < size; i++)
		bytes[i] = 'x';
}

static void __attribute__((noinline)) stack(int size)
{
	char small[16];
	damage(small, size);
}

static void spawned(const char *file, char *program)
{
	posix_spawn_file_actions_t actions;
	int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644), status;
	char *words[] = { program, "raw", NULL };
	pid_t child;
	CHECK(fd >= 0);
	CHECK(write(fd, "before\n", 7) == 7);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 2) == 0);
	CHECK(posix_spawn(&child, program, &actions, NULL, words, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(write(fd, "behind\n", 7) == 7);
	CHECK(lseek(fd, 0, SEEK_END) == lseek(fd, 0, SEEK_CUR));
	CHECK(close(fd) == 0);
}

static void chained(const char *file, char *program)
{
	posix_spawn_file_actions_t actions;
	char *words[] = { program, "raw", NULL };
	pid_t child;
	int status, fd;
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, 40, 1) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, 1, 2) == 0);
	CHECK(posix_spawn_file_actions_addclose(&actions, 40) == 0);
	CHECK((fd = open(file, O_WRONLY | O_CREAT, 0644)) >= 0);
	CHECK(write(fd, "before\n", 7) == 7);
	CHECK(dup2(fd, 40) == 40);
	CHECK(posix_spawn(&child, program, &actions, NULL, words, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(write(fd, "behind\n", 7) == 7);
}

static void vforked(const char *file, char *program)
{
	char *words[] = { program, "raw", NULL };
	int fd = open(file, O_WRONLY | O_CREAT, 0644);
	CHECK(fd >= 0);
	for (int way = 0; way < 3; way++) {
		int status;
		CHECK(write(fd, "before\n", 7) == 7);
		pid_t child = vfork();
		CHECK(child >= 0);
		if (child == 0) {
			close(2);
			if (way == 0 ? dup(fd) == 2 : way == 1 ? fcntl(fd, F_DUPFD, 2) == 2 : dup3(fd, 2, 0) == 2)
				execv(program, words);
			_exit(99);
		}
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %d\n", WEXITSTATUS(status));
	}
	CHECK(write(fd, "behind\n", 7) == 7);
}

static void received(const char *file)
{
	int pair[2], fd = open(file, O_WRONLY | O_CREAT, 0644);
	char byte = 0, room[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	CHECK(fd >= 0 && write(fd, "before\n", 7) == 7);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	CHECK(sendmsg(pair[0], &message, 0) == 1);
	CHECK(close(2) == 0);
	CHECK(recvmsg(pair[1], &message, 0) == 1);
	raw("received\n");
	CHECK(write(fd, "behind\n", 7) == 7);
}

static long lines;
static int racing_fd;

static void *writes(void *unused)
{
	for (long i = 0; i < lines; i++)
		CHECK(write(racing_fd, "a line\n", 7) == 7);
	return unused;
}

static void racing(const char *file, long count)
{
	int saved = dup(2);
	lines = count;
	for (int round = 0; round < 20; round++) {
		pthread_t threads[2];
		CHECK((racing_fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_create(&threads[i], NULL, writes, NULL) == 0);
		usleep(100 * round);
		CHECK(dup2(racing_fd, 2) == 2);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		long end = lseek(racing_fd, 0, SEEK_END);
		if (end != 14 * count)
			printf("round %d: %ld bytes instead of %ld\n", round, end, 14 * count);
		CHECK(dup2(saved, 2) == 2);
		CHECK(close(racing_fd) == 0);
	}
}

static void appended(const char *file)
{
	for (int round = 0; round < 5; round++) {
		CHECK(unlink(file) == 0 || round == 0);
		for (int i = 0; i < 2; i++) {
			pid_t child = fork();
			CHECK(child >= 0);
			if (child)
				continue;
			int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
			CHECK(fd >= 0);
			if (i == 1)
				CHECK(dup2(fd, 2) == 2);
			for (int line = 0; line < 3000; line++)
				CHECK(write(i == 1 ? 2 : fd, "appended\n", 9) == 9);
			_exit(0);
		}
		while (wait(NULL) > 0)
			;
		int fd = open(file, O_RDONLY);
		long end = lseek(fd, 0, SEEK_END);
		if (end != 54000)
			printf("round %d: %ld bytes\n", round, end);
		CHECK(close(fd) == 0);
	}
}

static void reopened(const char *file)
{
	CHECK(close(2) == 0);
	CHECK(open(file, O_WRONLY | O_CREAT, 0644) == 2);
	raw("opened as descriptor 2\n");
	int other = dup(2);
	CHECK(close(2) == 0);
	CHECK(dup(other) == 2);
	raw("duplicated\n");
	CHECK(close(2) == 0);
	CHECK(fcntl(other, F_DUPFD, 2) == 2);
	CHECK(write(other, "by another\n", 11) == 11);
	raw("and again\n");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
	if (strcmp(what, "heap") == 0) {
		char *volatile bytes = malloc(40);
		free(bytes);
		free(bytes);
	} else if (strcmp(what, "stack") == 0) {
		stack(64);
	} else if (strcmp(what, "herror") == 0) {
		h_errno = HOST_NOT_FOUND;
		herror("who");
		raw("after it\n");
	} else if (strcmp(what, "raw") == 0) {
		raw("by an instruction\n");
	} else if (strcmp(what, "becomes") == 0) {
		CHECK(dup2(1, 2) == 2);
		raw("by an instruction\n");
	} else if (strcmp(what, "spawned") == 0) {
		spawned(argv[2], argv[3]);
	} else if (strcmp(what, "chained") == 0) {
		chained(argv[2], argv[3]);
	} else if (strcmp(what, "vforked") == 0) {
		vforked(argv[2], argv[3]);
	} else if (strcmp(what, "reopened") == 0) {
		reopened(argv[2]);
	} else if (strcmp(what, "received") == 0) {
		received(argv[2]);
	} else if (strcmp(what, "racing") == 0) {
		racing(argv[2], atol(argv[3]));
	} else if (strcmp(what, "appended") == 0) {
		appended(argv[2]);
	}
#ifdef SYMBOL
	nowhere_to_be_found();
#endif
	return 0;
}
