/* Handlers that use the files their thread was busy with: signals WHAT FILE SEED */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CELL 48
#define CELLS (64 << 10)

static const char *file;
static int stream, cells, appended, plain;
static volatile int handled, sent, ours, theirs, forks, busy;
static unsigned char model[CELLS];
static volatile sig_atomic_t wanted = 4000;
static sigjmp_buf back;

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			dprintf(2, "line %d: %s: %s\n", __LINE__, #condition,   \
				strerror(errno));                               \
			_exit(1);                                               \
		}                                                               \
	} while (0)

/* A record of 24 bytes: who wrote it and its number. */
static void record(int fd, char who, int number)
{
	char line[32];
	int length = snprintf(line, sizeof line, "%c %020d\n", who, number);
	CHECK(write(fd, line, length) == length);
}

/* Cells of a page belong to the program and to its handler in turn. */
static void cell(int number, unsigned char value)
{
	unsigned char bytes[CELL];
	memset(bytes, value, sizeof bytes);
	model[number] = value;
	CHECK(pwrite(cells, bytes, sizeof bytes, (off_t)number * CELL) == CELL);
}

static void look(int number)
{
	unsigned char bytes[CELL];
	CHECK(pread(cells, bytes, sizeof bytes, (off_t)number * CELL) == CELL);
	for (int i = 0; i < CELL; i++)
		CHECK(bytes[i] == model[number]);
}

static volatile int at;

static void on_timer(int number)
{
	int kept = errno, turn = ++handled;
	int near = (at + 2 * (turn % 5)) % (CELLS - 1) | 1;
	cell(near, turn | 1);
	look(near);
	record(stream, 'h', theirs);
	record(appended, 'h', theirs++);
	if (turn % 50 == 0) {
		int fd = open(file, O_RDWR);
		CHECK(fd >= 0);
		look(near);
		CHECK(close(fd) == 0);
		fd = open("made by the handler", O_RDWR | O_CREAT | O_TRUNC, 0644);
		CHECK(fd >= 0);
		record(fd, 'n', 0);
		CHECK(close(fd) == 0);
	}
	if (turn % 200 == 0) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			cell(near, turn | 1);
			look(near);
			_exit(0);
		}
		int status;
		while (waitpid(child, &status, 0) < 0)
			CHECK(errno == EINTR);
		CHECK(status == 0);
		forks++;
	}
	errno = kept;
}

static void every(int microseconds)
{
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void handle(int number, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	CHECK(sigaction(number, &action, NULL) == 0);
	struct sigaction seen;
	CHECK(sigaction(number, NULL, &seen) == 0);
	CHECK(seen.sa_handler == handler);
}

/* Whole records, each writer's in order, none missing. */
static void check_records(const char *name)
{
	FILE *in = fopen(name, "r");
	CHECK(in);
	int next[2] = { 0, 0 }, number;
	char who, end;
	while (fscanf(in, "%c %d%c", &who, &number, &end) == 3) {
		CHECK(end == '\n' && (who == 'm' || who == 'h'));
		CHECK(number == next[who == 'h']);
		next[who == 'h']++;
	}
	CHECK(next[0] == ours && next[1] == theirs);
	fclose(in);
}

/* The handler writes to the same file, block, page and description as what it interrupts. */
static void storm(unsigned seed)
{
	cells = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	stream = open("stream", O_RDWR | O_CREAT | O_TRUNC, 0644);
	appended = open("appended", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	CHECK(cells >= 0 && stream >= 0 && appended >= 0);
	/* The store has a file of this size, so that each page is filled from it first. */
	CHECK(ftruncate(cells, (off_t)CELLS * CELL) == 0);
	handle(SIGALRM, on_timer, SA_RESTART);
	every(30);
	srand(seed);
	for (int turn = 0; handled < wanted; turn++) {
		at = turn * 2 % CELLS;
		cell(at, rand());
		look(rand() % CELLS & ~1);
		record(stream, 'm', ours);
		record(appended, 'm', ours++);
		if (turn % 1000 == 999)
			CHECK(fdatasync(appended) == 0);
	}
	every(0);
	for (int number = 0; number < CELLS; number++)
		look(number);
	check_records("stream");
	check_records("appended");
	printf("handled and %s\n", forks > 0 ? "forked" : "not forked");
	unlink("stream");
	unlink("appended");
	unlink(file);
}

static void jump(int number)
{
	handled++;
	siglongjmp(back, 1);
}

/* Handlers that never return: what they interrupted must hold nothing for ever. */
static void jumps(unsigned seed)
{
	static char big[700000];
	cells = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(cells >= 0);
	handle(SIGALRM, jump, SA_RESTART);
	sigsetjmp(back, 1);
	every(0);
	if (handled < 1500) {
		every(20 + rand() % 200);
		for (;;) {
			CHECK(pwrite(cells, big, sizeof big, 1000) == sizeof big);
			CHECK(lseek(cells, 0, SEEK_SET) == 0);
			CHECK(write(cells, big, 5000) == 5000);
			CHECK(ftruncate(cells, 600000) == 0);
		}
	}
	every(0);
	/* Others, and this thread, go on. */
	pid_t child = fork();
	if (child == 0) {
		alarm(60);
		signal(SIGALRM, SIG_DFL);
		CHECK(ftruncate(cells, 0) == 0);
		CHECK(pwrite(cells, "child", 5, 0) == 5);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pwrite(cells, "CH", 2, 0) == 2);
	char text[6] = "";
	CHECK(pread(cells, text, 6, 0) == 5);
	printf("%s\n", text);
}

static void note(int number, siginfo_t *info, void *context)
{
	char line[64];
	int length = snprintf(line, sizeof line, "signal %d code %d value %d\n", number,
			      info->si_code, info->si_value.sival_int);
	CHECK(write(stream, line, length) == length);
}

static void once(int number)
{
	CHECK(write(stream, "once\n", 5) == 5);
}

/* What sigaction promises holds for handlers that are held off as well. */
static void promises(void)
{
	stream = open(file, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	struct sigaction action = { .sa_sigaction = note, .sa_flags = SA_SIGINFO }, old;
	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK(sigaction(SIGRTMIN + 3, &action, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = i }) == 0);
	CHECK(sigaction(SIGRTMIN + 3, NULL, &old) == 0);
	CHECK(old.sa_sigaction == note && old.sa_flags & SA_SIGINFO);
	CHECK(sigismember(&old.sa_mask, SIGUSR2) == 1 && sigismember(&old.sa_mask, SIGUSR1) == 0);
	action = (struct sigaction){ .sa_handler = once, .sa_flags = SA_RESETHAND | SA_NODEFER };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(sigaction(SIGUSR1, NULL, &old) == 0);
	CHECK(old.sa_handler == once && old.sa_flags & SA_RESETHAND);
	raise(SIGUSR1);
	CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	CHECK(signal(SIGUSR2, once) == SIG_DFL);
	CHECK(signal(SIGUSR2, SIG_IGN) == once);
	CHECK(signal(SIGUSR2, SIG_DFL) == SIG_IGN);
	CHECK(signal(SIGKILL, once) == SIG_ERR && errno == EINVAL);
	CHECK(signal(999, once) == SIG_ERR && errno == EINVAL);
	/* Interrupted calls fail, or are taken up again, as asked for. */
	int ends[2];
	char byte;
	CHECK(pipe(ends) == 0);
	handle(SIGALRM, once, 0);
	alarm(1);
	CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR);
	CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1);
	if (fork() == 0)
		kill(getpid(), SIGUSR1);
	int status;
	wait(&status);
	printf("ended by %d\n", WTERMSIG(status));
	off_t size = lseek(stream, 0, SEEK_END);
	char text[1000] = "";
	CHECK(pread(stream, text, sizeof text, 0) == size);
	printf("%s", text);
}

static void *in_a_pipe(void *end)
{
	char byte;
	read(*(int *)end, &byte, 1);
	return NULL;
}

static void *in_a_file(void *unused)
{
	for (;;)
		CHECK(pwrite(cells, "again", 5, 0) == 5);
	return NULL;
}

static void *in_a_stream(void *unused)
{
	for (;;) {
		CHECK(fseek(unused, 0, SEEK_SET) == 0);
		CHECK(fprintf(unused, "%5000d", 7) == 5000);
	}
	return NULL;
}

static void *in_a_copy(void *unused)
{
	for (;;) {
		off_t from = 0, to = 100000;
		copy_file_range(cells, &from, stream, &to, 50000, 0);
		pthread_testcancel();
	}
	return NULL;
}

/* Threads are cancelled where they wait, and where they write. */
static void cancelled(void)
{
	int ends[2];
	pthread_t thread;
	void *result;
	CHECK(pipe(ends) == 0);
	cells = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(pthread_create(&thread, NULL, in_a_pipe, ends) == 0);
	usleep(50000);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	printf("cancelled in a pipe\n");
	fflush(stdout);
	for (int turn = 0; turn < 50; turn++) {
		CHECK(pthread_create(&thread, NULL, in_a_file, NULL) == 0);
		usleep(200);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
		CHECK(pwrite(cells, "mine!", 5, 0) == 5);
	}
	printf("cancelled in a file\n");
	fflush(stdout);
	stream = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(ftruncate(cells, 50000) == 0);
	FILE *opened = fopen("stream", "w+");
	for (int turn = 0; turn < 50; turn++) {
		CHECK(pthread_create(&thread, NULL, turn % 2 ? in_a_stream : in_a_copy, opened) == 0);
		usleep(500);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	printf("cancelled in a stream and in a copy\n");
	fflush(stdout);
	_exit(unlink("stream") || unlink("other") || unlink(file));
}

int main(int count, char **words)
{
	file = words[2];
	unsigned seed = count > 3 ? atoi(words[3]) : 1;
	if (!strcmp(words[1], "storm"))
		storm(seed);
	else if (!strcmp(words[1], "jumps"))
		jumps(seed);
	else if (!strcmp(words[1], "promises"))
		promises();
	else
		cancelled();
	return 0;
}
