/*
 * Starts other programs.
 *
 *     starts HOW PROGRAM [ARGUMENT]   HOW is execvp, execvpe, execlp, posix_spawnp, fexecve; with
 *                                     UNMANAGED in the environment the program runs without Forebay
 *     starts faults PROGRAM           prints the errors of environments that are no memory
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Gives the errno of a call that starts nothing; a child that was started ends here. */
static int start(const char *how, const char *program, char **arguments, char **variables)
{
	int result = -1;
	pid_t child;
	if (!strcmp(how, "execve"))
		result = execve(program, arguments, variables);
	else if (!strcmp(how, "execvp"))
		result = execvp(program, arguments);
	else if (!strcmp(how, "execvpe"))
		result = execvpe(program, arguments, variables);
	else if (!strcmp(how, "execlp"))
		result = execlp(program, program, arguments[1], NULL);
	else if (!strcmp(how, "fexecve"))
		result = fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, variables);
	else if (!strcmp(how, "posix_spawn"))
		result = posix_spawn(&child, program, NULL, NULL, arguments, variables);
	else if (!strcmp(how, "posix_spawnp"))
		result = posix_spawnp(&child, program, NULL, NULL, arguments, variables);
	if (result == 0) {
		int status;
		waitpid(child, &status, 0);
		exit(WEXITSTATUS(status));
	}
	return result == -1 ? errno : result;
}

static void faults(char *program)
{
	static const char *ways[] = { "execve", "execvpe", "fexecve", "posix_spawn", "posix_spawnp" };
	/* Two pages, of which the second is none. */
	char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(edge + 4096, 4096, PROT_NONE);
	char *unended = edge + 4096 - 4;
	memcpy(unended, "A=bc", 4);
	char **list_unended = (char **)(edge + 4096) - 2;
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(page, 4096, PROT_NONE);
	char *longest = malloc(1 << 20);
	memset(longest, 'x', 1 << 20);
	longest[(1 << 20) - 1] = 0;

	char *bad[] = { "A=b", (char *)8, NULL }, *hidden[] = { page, NULL };
	char *open_end[] = { "A=b", unended, NULL }, *kernels[] = { (char *)-4096, NULL };
	char *too_long[] = { "A=b", longest, NULL };
	struct {
		const char *name;
		char **list;
	} lists[] = {
		{ "a list that is none", (char **)8 }, { "a list of the kernel's", (char **)-4096 },
		{ "a list that is out of reach", (char **)page }, { "an entry that is none", bad },
		{ "an entry that is out of reach", hidden }, { "an entry of the kernel's", kernels },
		{ "an entry without an end", open_end }, { "an entry that is too long", too_long },
	};
	char *arguments[] = { program, NULL };
	for (int way = 0; way < 5; way++) {
		for (int list = 0; list < 8; list++)
			printf("%s, %s: %s\n", ways[way], lists[list].name,
			       strerror(start(ways[way], program, arguments, lists[list].list)));
		/* After the string that has no end, which this overwrites. */
		list_unended[0] = list_unended[1] = "A=b";
		printf("%s, a list without an end: %s\n", ways[way],
		       strerror(start(ways[way], program, arguments, list_unended)));
		memcpy(unended, "A=bc", 4);
	}
}

int main(int number, char **arguments)
{
	if (number < 3)
		return 2;
	if (getenv("UNMANAGED"))
		setenv("FOREBAY_DISABLE", "1", 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(arguments[1], "faults")) {
		faults(arguments[2]);
		return 0;
	}
	int error = start(arguments[1], arguments[2], arguments + 2, environ);
	fprintf(stderr, "%s: %s\n", arguments[2], strerror(error));
	return 1;
}
