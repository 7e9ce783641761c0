/* Buffers, lengths, flags and sizes at their limits: limits WHAT FILE */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static const char *file;
static int fd;
static volatile int exceeded;

static void result(const char *what, long got)
{
	struct stat found;
	fstat(fd, &found);
	printf("%s: %ld %s; size %lld, offset %lld, signals %d\n", what, got,
	       got < 0 ? strerror(errno) : "", (long long)found.st_size,
	       (long long)lseek(fd, 0, SEEK_CUR), exceeded);
	fflush(stdout);
}

#define TRY(call)                  \
	do {                       \
		errno = 0;         \
		long got = (call); \
		result(#call, got); \
	} while (0)

static void sum(void)
{
	static char text[100000];
	unsigned all = 0;
	ssize_t got = pread(fd, text, sizeof text, 0);
	for (ssize_t i = 0; i < got; i++)
		all = all * 31 + (unsigned char)text[i];
	printf("%zd bytes, sum %x\n", got, all);
}

static void fresh(int flags)
{
	fd = open(file, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
	if (fd < 0)
		exit(1);
}

/* Three pages of which the last cannot be touched. */
static char *three(int last)
{
	char *at = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 2 * PAGE; i++)
		at[i] = i * 7 + i / 256;
	mprotect(at + 2 * PAGE, PAGE, last);
	return at;
}

static void buffers(void)
{
	fresh(0);
	char *at = three(PROT_NONE), *end = at + 2 * PAGE, *bad = (char *)16;
	TRY(write(fd, at, 3 * PAGE));
	TRY(write(fd, end - 100, 200));
	TRY(write(fd, end, 1));
	TRY(write(fd, bad, 10));
	TRY(pwrite(fd, end - 300, PAGE, 5));
	sum();
	struct iovec pieces[] = { { at, 100 }, { end - 50, 100 }, { at, 100 } };
	TRY(writev(fd, pieces, 3));
	TRY(pwritev(fd, pieces, 3, 10));
	struct iovec first[] = { { bad, 100 }, { at, 100 } };
	TRY(writev(fd, first, 2));
	struct iovec none[] = { { bad, 0 }, { at, 100 } };
	TRY(writev(fd, none, 2));
	sum();
	TRY(pread(fd, end - 100, 200, 0));
	TRY(pread(fd, end, 200, 0));
	TRY(pread(fd, bad, 200, 0));
	TRY(pread(fd, bad, 200, 1 << 20));
	TRY(read(fd, bad, 200));
	TRY(pread(fd, bad, 0, 0));
	TRY(lseek(fd, 0, SEEK_SET));
	TRY(read(fd, end - 70, PAGE));
	TRY(read(fd, bad, 200));
	TRY(readv(fd, pieces, 3));
	TRY(readv(fd, first, 2));
	TRY(lseek(fd, -10, SEEK_END));
	/* Only ten bytes are there, and there is room for them. */
	TRY(read(fd, end - 20, 3 * PAGE));
	char *constant = three(PROT_READ);
	TRY(pread(fd, constant + 2 * PAGE - 10, 20, 0));
	TRY(pwrite(fd, constant + 2 * PAGE - 10, 20, 0));
	munmap(constant + PAGE, PAGE);
	TRY(pwrite(fd, constant, 3 * PAGE, 0));
	TRY(pread(fd, constant, 3 * PAGE, 0));
	sum();
	int reading = open(file, O_RDONLY), writing = open(file, O_WRONLY);
	TRY(write(reading, bad, 10));
	TRY(read(writing, bad, 10));
	TRY(write(reading, at, 0));
	TRY(writev(reading, pieces, -1));
	TRY(readv(writing, (void *)16, 3));
}

static void lengths(void)
{
	fresh(0);
	static struct iovec pieces[1100];
	static char text[100] = "text";
	TRY(write(fd, text, 100));
	TRY(write(fd, text, (size_t)SSIZE_MAX + 1));
	TRY(write(fd, text, (size_t)-1));
	TRY(pread(fd, text, (size_t)-1, 0));
	TRY(pread(fd, text, (size_t)SSIZE_MAX + 1, 0));
	for (int i = 0; i < 1100; i++)
		pieces[i] = (struct iovec){ text, 3 };
	TRY(writev(fd, pieces, 1024));
	TRY(writev(fd, pieces, 1025));
	TRY(writev(fd, pieces, -1));
	TRY(writev(fd, pieces, 0));
	TRY(writev(fd, NULL, 0));
	TRY(writev(fd, NULL, 1));
	TRY(readv(fd, pieces, 1025));
	TRY(preadv(fd, pieces, 1024, 0));
	TRY(preadv(fd, pieces, 1024, -1));
	TRY(pwritev(fd, pieces, 1024, -1));
	pieces[1].iov_len = (size_t)SSIZE_MAX + 1;
	TRY(writev(fd, pieces, 3));
	TRY(preadv(fd, pieces, 3, 0));
	pieces[1].iov_len = SSIZE_MAX;
	TRY(writev(fd, pieces, 3));
	TRY(pread(fd, text, 10, -1));
	TRY(pwrite(fd, text, 10, -1));
	TRY(pwrite(fd, text, 0, -1));
}

static void flags(void)
{
	fresh(0);
	char text[20] = "0123456789", back[20];
	struct iovec out = { text, 10 }, in = { back, 20 };
	TRY(pwritev2(fd, &out, 1, 0, 0));
	TRY(pwritev2(fd, &out, 1, 0, RWF_APPEND));
	TRY(pwritev2(fd, &out, 1, -1, RWF_APPEND));
	TRY(pwritev2(fd, &out, 1, -1, 0));
	TRY(pwritev2(fd, &out, 1, -2, 0));
	TRY(pwritev2(fd, &out, 1, 3, RWF_DSYNC));
	TRY(pwritev2(fd, &out, 1, 5, RWF_SYNC | RWF_APPEND));
	TRY(pwritev2(fd, &out, 1, 5, 0x40000000));
	TRY(pwritev2(fd, &out, 1, 5, RWF_APPEND | 0x20));
	TRY(preadv2(fd, &in, 1, 5, 0));
	TRY(preadv2(fd, &in, 1, -1, 0));
	TRY(preadv2(fd, &in, 1, -1, RWF_DSYNC));
	TRY(preadv2(fd, &in, 1, 0, RWF_APPEND));
	TRY(preadv2(fd, &in, 1, 0, 0x40000000));
	TRY(preadv2(fd, &in, 1, -7, 0));
	TRY(syscall(SYS_pwritev2, fd, &out, 1, 4L, 0L, RWF_APPEND));
	TRY(syscall(SYS_preadv2, fd, &in, 1, 4L, 0L, 0));
	TRY(syscall(SYS_pwritev, fd, &out, 1, 40L, 0L));
	TRY(syscall(SYS_preadv, fd, &in, 1, 38L, 0L));
	sum();
	close(fd);
	fd = open(file, O_RDWR | O_APPEND);
	TRY(pwritev2(fd, &out, 1, 0, 0));
	long kept = pwritev2(fd, &out, 1, 0, 0x20);
	if (kept < 0 && errno == EOPNOTSUPP)
		kept = 10, pwritev2(fd, &out, 1, 0, 0);
	printf("not appended: %ld\n", kept);
	TRY(write(fd, text, 0));
	TRY(write(fd, text, 3));
	sum();
}

static void on_excess(int number)
{
	exceeded++;
}

static void sizes(void)
{
	static char text[20000];
	memset(text, 's', sizeof text);
	signal(SIGXFSZ, on_excess);
	fresh(0);
	struct rlimit limit = { 10000, RLIM_INFINITY };
	TRY(setrlimit(RLIMIT_FSIZE, &limit));
	TRY(write(fd, text, 9000));
	TRY(write(fd, text, 9000));
	TRY(write(fd, text, 1));
	TRY(write(fd, text, 0));
	TRY(pwrite(fd, text, 100, 9950));
	TRY(pwrite(fd, text, 100, 10000));
	TRY(pwrite(fd, text, 100, 20000));
	TRY(pwrite(fd, text, 10000, 0));
	TRY(ftruncate(fd, 10001));
	TRY(ftruncate(fd, 10000));
	TRY(truncate(file, 10001));
	struct iovec pieces[] = { { text, 6000 }, { text, 6000 } };
	TRY(pwritev(fd, pieces, 2, 100));
	close(fd);
	fd = open(file, O_RDWR | O_APPEND | O_TRUNC);
	TRY(write(fd, text, 9990));
	TRY(write(fd, text, 20));
	TRY(write(fd, text, 20));
	limit.rlim_cur = 11000;
	TRY(prlimit(0, RLIMIT_FSIZE, &limit, NULL));
	TRY(write(fd, text, 2000));
	/* A child has it too, a new program as well; the default ends it. */
	if (fork() == 0) {
		TRY(write(fd, text, 20));
		signal(SIGXFSZ, SIG_DFL);
		write(fd, text, 20);
		_exit(0);
	}
	int status;
	wait(&status);
	printf("ended by %d\n", WTERMSIG(status));
	fflush(stdout);
	if (fork() == 0) {
		execl("/bin/sh", "sh", "-c", "head -c 20000 /dev/zero > new; echo $?; wc -c < new",
		      NULL);
		_exit(9);
	}
	wait(&status);
	signal(SIGXFSZ, SIG_IGN);
	TRY(write(fd, text, 20));
	limit.rlim_cur = RLIM_INFINITY;
	TRY(setrlimit(RLIMIT_FSIZE, &limit));
	TRY(write(fd, text, 20000));
	sum();
	close(fd);
	/* As large as can be. */
	fresh(0);
	TRY(pwrite(fd, text, 1, LLONG_MAX));
	TRY(pwrite(fd, text, 10, LLONG_MAX - 5) < 0 ? -1 : 1);
	TRY(lseek(fd, LLONG_MAX, SEEK_SET) < 0 ? -1 : 1);
	TRY(write(fd, text, 10) < 0 ? -1 : 1);
	long long low = 1ll << 42, high = LLONG_MAX;
	while (low < high) {
		long long middle = high - (high - low) / 2;
		if (lseek(fd, middle, SEEK_SET) < 0)
			high = middle - 1;
		else
			low = middle;
	}
	printf("largest %lld\n", low);
	TRY(pwrite(fd, text, 100, low));
	if (low < LLONG_MAX) {
		TRY(ftruncate(fd, low + 1));
		TRY(pwrite(fd, text, 100, low - 10));
		TRY(ftruncate(fd, 0));
	}
}

int main(int count, char **words)
{
	file = words[2];
	if (!strcmp(words[1], "buffers"))
		buffers();
	else if (!strcmp(words[1], "lengths"))
		lengths();
	else if (!strcmp(words[1], "flags"))
		flags();
	else
		sizes();
	return 0;
}
