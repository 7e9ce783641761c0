/*
 * Messages that are written to standard error where no preloaded library sees it.
 *
 *   heap                libc finds the heap damaged, and ends the program
 *   stack               the same of the stack
 *   herror              a function of libc that writes by itself
 *   raw                 a system call instruction
 *   spawned FILE PROG   posix_spawn of PROG, whose standard output and error FILE is to be
 *   reopened FILE       descriptor 2 is closed, and FILE opened and duplicated in its place
 *
 * With SYMBOL it calls a function in the end that the loader does not find.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
	} else if (strcmp(what, "spawned") == 0) {
		spawned(argv[2], argv[3]);
	} else if (strcmp(what, "reopened") == 0) {
		reopened(argv[2]);
	}
#ifdef SYMBOL
	nowhere_to_be_found();
#endif
	return 0;
}
