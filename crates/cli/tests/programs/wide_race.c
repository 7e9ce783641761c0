/* A stream that goes wide, ends and is opened anew while another thread waits for its lock to read:
 * wide_race. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wchar.h>

enum { LARGE = 1 << 16 };

static char read_to[LARGE];
static pid_t reader;

static void *read_all(void *result)
{
	__atomic_store_n(&reader, gettid(), __ATOMIC_RELEASE);
	*(size_t *)result = fread(read_to, 1, LARGE, stdin);
	return NULL;
}

static void wait_until_it_waits(void)
{
	char path[64];
	while (!__atomic_load_n(&reader, __ATOMIC_ACQUIRE))
		usleep(1000);
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", reader);
	for (long number = -1; number != SYS_futex; usleep(1000)) {
		FILE *file = fopen(path, "r");
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
}

static void fill(const char *name, int byte)
{
	char bytes[LARGE];
	memset(bytes, byte, LARGE);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (write(fd, bytes, LARGE) != LARGE || close(fd))
		perror(name);
}

int main(void)
{
	fill("first", 'f');
	fill("other", 'o');
	fill("second", 's');
	stdin = freopen("first", "r", stdin);
	size_t got = 0;
	pthread_t thread;
	flockfile(stdin);
	pthread_create(&thread, NULL, read_all, &got);
	wait_until_it_waits();
	fwide(stdin, 1);
	fclose(stdin);
	int other = open("other", O_RDONLY);
	FILE *again = freopen("second", "r", stdin);
	funlockfile(stdin);
	pthread_join(thread, NULL);
	size_t right = 0;
	while (right < got && read_to[right] == 's')
		right++;
	printf("%d, %s: %zu, %zu of them right\n", other, again ? "open" : "closed", got, right);
	return 0;
}
