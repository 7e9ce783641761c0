/*
 * Starts children, one after the other, and waits for each.
 *
 *     children HOW COUNT PROGRAM [ARGUMENT]   HOW is fork (the child ends), forked, vforked, spawned; limited: forks,
 *                                             and then executes the program with less address space than it had
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int number, char **arguments)
{
	if (number < 4)
		return 2;
	char *how = arguments[1], *program = arguments[3], *words[] = { program, arguments[4], NULL };
	for (int left = atoi(arguments[2]); left > 0; left--) {
		pid_t child;
		if (!strcmp(how, "spawned")) {
			if (posix_spawn(&child, program, NULL, NULL, words, environ) != 0)
				return 3;
		} else {
			child = !strcmp(how, "vforked") ? vfork() : fork();
		}
		if (child == 0) {
			if (strcmp(how, "fork") && strcmp(how, "limited"))
				execve(program, words, environ);
			_exit(strcmp(how, "fork") && strcmp(how, "limited") ? 127 : 0);
		}
		int status;
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			return 4;
	}
	if (!strcmp(how, "limited")) {
		struct rlimit limit = { 64 << 20, 64 << 20 };
		long result = SYS_setrlimit;
#ifdef __x86_64__
		/* No function of a library sees it. */
		__asm__ volatile("syscall"
				 : "+a"(result)
				 : "D"(RLIMIT_AS), "S"(&limit)
				 : "rcx", "r11", "memory");
#else
		result = setrlimit(RLIMIT_AS, &limit);
#endif
		if (result != 0)
			return 5;
		execve(program, words, environ);
		return 6;
	}
	return 0;
}
