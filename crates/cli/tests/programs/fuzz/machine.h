/*
 * What all actors of a run share: whose turn it is, which live, which descriptors each process
 * has, and the log. It lies in a file outside the directory under test, mapped by every process;
 * no descriptor of ours stays open, so that descriptor numbers are the operations' own.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	ACTORS = 16,
	SLOTS = 16,
	WORDS = 10,
	LINES = 1 << 17,
	LOG_BYTES = 32 << 20,
	BUFFER_BYTES = 4 << 20,
	TIMEOUT_S = 60,
	PAGE = 4096,
};

struct slot {
	int fd;
};

struct shared {
	uint32_t next, lines, over, progress;
	/* Whether any descriptor was opened with O_DIRECT. */
	uint32_t direct;
	/* Whether any file was locked by fcntl. */
	uint32_t locked;
	struct timespec start;
	struct {
		uint32_t alive, process, turn;
	} actors[ACTORS];
	struct {
		pid_t pid;
		struct slot slots[SLOTS];
	} processes[ACTORS];
	/* A process that is about to exit, for the supervisor to wait for. */
	pid_t leaving;
	uint32_t log_bytes;
	char log[LOG_BYTES];
};

/* One operation: `ACTOR NAME ARGUMENT...`. */
struct line {
	int actor, words;
	char *word[WORDS];
};

static struct shared *S;
static struct line *script;
static const char *script_path, *state_path;
static char self_path[4096];
static __thread int me;
static int process;

static void say(const char *format, ...)
{
	va_list list;
	uint32_t at = S->log_bytes;
	if (at > LOG_BYTES - 4096)
		return;
	va_start(list, format);
	S->log_bytes = at + vsnprintf(S->log + at, 4000, format, list);
	va_end(list);
}

static void futex_wait(uint32_t *word, uint32_t value, int milliseconds)
{
	struct timespec limit = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
	syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, 0, 0);
}

static void futex_wake(uint32_t *word)
{
	__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, 0, 0, 0);
}

static uint32_t load(uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Ends the run: all actors see it and leave. */
static void finish(uint32_t how)
{
	__atomic_store_n(&S->over, how, __ATOMIC_SEQ_CST);
	for (int a = 0; a < ACTORS; a++)
		futex_wake(&S->actors[a].turn);
	futex_wake(&S->progress);
}

/* Gives the turn to the actor of the next line; lines of actors that do not live are left out. */
static void pass(void)
{
	uint32_t next = S->next + 1;
	while (next < S->lines && !S->actors[script[next].actor].alive)
		next++;
	if (next >= S->lines) {
		finish(1);
		return;
	}
	__atomic_store_n(&S->next, next, __ATOMIC_SEQ_CST);
	futex_wake(&S->actors[script[next].actor].turn);
}

/* Numbers of a deterministic sequence. */
static uint64_t mix(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void fill(char *to, size_t bytes, uint64_t seed)
{
	size_t at = 0;
	for (; at + 8 <= bytes; at += 8) {
		uint64_t word = mix(&seed);
		memcpy(to + at, &word, 8);
	}
	for (uint64_t word = mix(&seed); at < bytes; at++, word >>= 8)
		to[at] = word;
}

static uint64_t sum(const char *from, size_t bytes)
{
	uint64_t hash = 0xcbf29ce484222325 ^ bytes;
	size_t at = 0;
	for (; at + 8 <= bytes; at += 8) {
		uint64_t word;
		memcpy(&word, from + at, 8);
		hash = (hash ^ word) * 0x100000001b3;
		hash ^= hash >> 29;
	}
	for (; at < bytes; at++)
		hash = (hash ^ (unsigned char)from[at]) * 0x100000001b3;
	return hash;
}

/* What a call returned. */
static void gave(long result)
{
	int error = errno;
	if (result == -1)
		say(" -1 %s", strerrorname_np(error));
	else
		say(" %ld", result);
}

/* Which descriptor a call returned. Forebay must not close what it opens of a file that is locked
 * by fcntl, and so keeps it at the lowest free number: numbers are not compared from then on. */
static void gave_descriptor(int fd)
{
	if (fd >= 0 && S->locked)
		say(" fd");
	else
		gave(fd);
}

static void pieces_summed(long result, const char *from)
{
	gave(result);
	if (result > 0)
		say(" sum %016llx", (unsigned long long)sum(from, result));
}

/* Names of flags, joined by |; a number stands for itself. */
struct name {
	const char *name;
	long value;
};

static const struct name NAMES[] = {
#define N(prefix, name) { #name, prefix##name }
	N(O_, RDONLY), N(O_, WRONLY), N(O_, RDWR), N(O_, CREAT), N(O_, EXCL), N(O_, TRUNC),
	N(O_, APPEND), N(O_, TMPFILE), N(O_, DIRECT), N(O_, SYNC), N(O_, DSYNC), N(O_, CLOEXEC),
	N(O_, NOFOLLOW), N(O_, PATH), N(O_, DIRECTORY), N(O_, NONBLOCK), N(O_, NOATIME),
	N(SEEK_, SET), N(SEEK_, CUR), N(SEEK_, END), N(SEEK_, DATA), N(SEEK_, HOLE),
	N(FALLOC_FL_, KEEP_SIZE), N(FALLOC_FL_, PUNCH_HOLE), N(FALLOC_FL_, ZERO_RANGE),
	N(FALLOC_FL_, COLLAPSE_RANGE), N(FALLOC_FL_, INSERT_RANGE),
	N(SYNC_FILE_RANGE_, WAIT_BEFORE), N(SYNC_FILE_RANGE_, WRITE), N(SYNC_FILE_RANGE_, WAIT_AFTER),
	N(LOCK_, SH), N(LOCK_, EX), N(LOCK_, UN), N(LOCK_, NB),
	N(F_, RDLCK), N(F_, WRLCK), N(F_, UNLCK),
	N(RWF_, HIPRI), N(RWF_, APPEND), { "RWF_SYNC", RWF_SYNC }, { "RWF_DSYNC", RWF_DSYNC },
	{ "RWF_APPEND", RWF_APPEND }, { "NOREPLACE", RENAME_NOREPLACE }, { "EXCHANGE", RENAME_EXCHANGE },
	{ "SHARED", MAP_SHARED }, { "PRIVATE", MAP_PRIVATE },
	{ "SYMLINK_NOFOLLOW", AT_SYMLINK_NOFOLLOW }, { "EMPTY_PATH", AT_EMPTY_PATH },
	{ "FD_CLOEXEC", FD_CLOEXEC }, { "CLOSE_RANGE_CLOEXEC", CLOSE_RANGE_CLOEXEC },
	{ "NOW", UTIME_NOW }, { "OMIT", UTIME_OMIT }, { "KILL", SIGKILL }, { "TERM", SIGTERM },
	{ "NORMAL", POSIX_FADV_NORMAL }, { "SEQUENTIAL", POSIX_FADV_SEQUENTIAL },
	{ "RANDOM", POSIX_FADV_RANDOM }, { "WILLNEED", POSIX_FADV_WILLNEED },
	{ "DONTNEED", POSIX_FADV_DONTNEED },
#undef N
};

static long number(const char *text)
{
	long value = 0;
	if (isdigit((unsigned char)*text) || *text == '-')
		return strtol(text, 0, 0);
	while (*text) {
		size_t length = strcspn(text, "|"), n = 0, count = sizeof NAMES / sizeof *NAMES;
		while (n < count && (strlen(NAMES[n].name) != length || strncmp(NAMES[n].name, text, length)))
			n++;
		if (n == count) {
			fprintf(stderr, "no such flag: %s\n", text);
			_exit(2);
		}
		value |= NAMES[n].value;
		text += length + (text[length] == '|');
	}
	return value;
}

static void load_script(void)
{
	FILE *file = fopen(script_path, "re");
	static char text[1024];
	script = calloc(LINES, sizeof *script);
	uint32_t lines = 0;
	while (file && fgets(text, sizeof text, file) && lines < LINES) {
		text[strcspn(text, "#\n")] = 0;
		struct line *line = &script[lines];
		char *rest = strdup(text);
		for (char *word; line->words < WORDS && (word = strsep(&rest, " "));)
			if (*word)
				line->word[line->words++] = word;
		if (line->words < 2)
			continue;
		line->actor = atoi(line->word[0]) % ACTORS;
		lines++;
	}
	if (!file)
		_exit(2);
	fclose(file);
	S->lines = lines;
}

static void map_state(int create)
{
	int fd = open(state_path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0), 0600);
	if (fd < 0 || (create && ftruncate(fd, sizeof *S) != 0))
		_exit(2);
	S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (S == MAP_FAILED)
		_exit(2);
	close(fd);
}
