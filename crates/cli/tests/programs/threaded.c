/* How many descriptors the kernel's table of the process has room for: before its first thread, with
 * it, while a managed file is used, and in a forked child that has a thread, too. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(void)
{
	char line[128];
	FILE *status = fopen("/proc/self/status", "r");
	int size = 0;
	while (status && fgets(line, sizeof line, status))
		sscanf(line, "FDSize: %d", &size);
	fclose(status);
	printf("%d\n", size);
	fflush(stdout);
}

static void *shown(void *nothing)
{
	show();
	return nothing;
}

static void thread(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, shown, NULL) || pthread_join(thread, NULL))
		exit(1);
}

int main(void)
{
	show();
	thread();
	int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (write(fd, "x", 1) != 1 || close(fd))
		return 1;
	show();
	if (fork() == 0) {
		thread();
		_exit(0);
	}
	int status;
	return wait(&status) < 0 || status;
}
