/* Every corner of the C library's byte streams: family FILE. What it finds out goes to stdout. */
#define _GNU_SOURCE
#include <errno.h>
#include <error.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *file;

#define SAY(...) (printf(__VA_ARGS__), printf("\n"))

/* Position, indicators, errno. */
static void show(const char *what, FILE *stream)
{
	int seen = errno;
	long at = ftell(stream);
	SAY("%s: at %ld, eof %d, error %d, errno %d", what, at, feof(stream), ferror(stream), seen);
	errno = 0;
}

static void dump(const char *what)
{
	char content[4096];
	int fd = open(file, O_RDONLY);
	ssize_t got = read(fd, content, sizeof content);
	printf("%s: %zd bytes:", what, got);
	for (ssize_t i = 0; i < got && i < 120; i++)
		printf(content[i] >= ' ' && content[i] < 127 ? "%c" : "\\%02x", content[i] & 255);
	printf("\n");
	close(fd);
}

static void fill(const char *text)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (write(fd, text, strlen(text)) < 0)
		perror(file);
	close(fd);
}

static void modes(void)
{
	static const char *const all[] = {
		"r", "rb", "r+", "rb+", "r+b", "rt", "rm", "rc", "re", "rx", "rbe+", "r+e",
		"w", "wb", "w+", "wb+", "w+b", "wx", "wxe", "w+x", "wbx", "we", "wc", "wm",
		"a", "ab", "a+", "ab+", "a+b", "ax", "ae", "a+e",
		"", "q", "+", "R", "br", "wwwwww+", "wwwwwww+", "r,+", "rw", "ra+",
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int missing = 0; missing < 2; missing++) {
			fill("twelve bytes");
			if (missing)
				remove(file);
			errno = 0;
			FILE *stream = (i % 2 ? fopen : fopen64)(file, all[i]);
			if (stream == NULL) {
				SAY("fopen %s: errno %d, there %d", all[i], errno, access(file, F_OK));
				continue;
			}
			int fd = fileno(stream);
			int flags = fcntl(fd, F_GETFL);
			printf("fopen %s: flags %o, %d; ", all[i], flags & (O_ACCMODE | O_APPEND | O_CREAT | O_EXCL | O_TRUNC), fcntl(fd, F_GETFD));
			printf("at %ld; readable %d, writable %d; ", ftell(stream), __freadable(stream) != 0, __fwritable(stream) != 0);
			errno = 0;
			printf("getc %d, ", getc(stream));
			printf("error %d, errno %d; ", ferror(stream), errno);
			clearerr(stream);
			fseek(stream, 0, SEEK_CUR);
			errno = 0;
			printf("putc %d, ", putc('P', stream));
			printf("error %d, errno %d; ", ferror(stream), errno);
			SAY("close %d", fclose(stream));
			dump("after");
		}
	errno = 0;
	SAY("fopen of a folder: %d", fopen(".", "w") != NULL);
	SAY("errno %d", errno);
	FILE *folder = fopen(".", "r");
	errno = 0;
	SAY("a folder: getc %d", getc(folder));
	SAY("error %d, errno %d", ferror(folder), errno);
	fclose(folder);
}

static void fdopens(void)
{
	static const int access[] = { O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_APPEND, O_WRONLY | O_APPEND };
	static const char *const all[] = { "r", "w", "a", "r+", "w+", "a+", "rx", "z", "", "re", "we" };
	for (int i = 0; i < 5; i++)
		for (int j = 0; j < 11; j++) {
			fill("twelve bytes");
			int fd = open(file, access[i]);
			lseek(fd, 3, SEEK_SET);
			errno = 0;
			FILE *stream = fdopen(fd, all[j]);
			printf("fdopen %d %s: %d, errno %d; ", i, all[j], stream != NULL, errno);
			if (stream == NULL) {
				SAY("offset %ld", (long)lseek(fd, 0, SEEK_CUR));
				close(fd);
				continue;
			}
			printf("flags %o %d, at %ld; ", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND), fcntl(fd, F_GETFD), ftell(stream));
			fputs("++", stream);
			fflush(stream);
			printf("at %ld, ", ftell(stream));
			printf("offset %ld; ", (long)lseek(fd, 0, SEEK_CUR));
			SAY("close %d", fclose(stream));
			dump("after");
		}
	errno = 0;
	FILE *none = fdopen(777, "r");
	SAY("fdopen of nothing: %d, errno %d", none != NULL, errno);
}

static void positions(void)
{
	FILE *stream = fopen(file, "w+");
	show("empty", stream);
	SAY("beyond the end %d", fseek(stream, 10000, SEEK_SET));
	show("beyond", stream);
	SAY("getc %d", getc(stream));
	show("getc", stream);
	SAY("seek %d", fseek(stream, 0, SEEK_CUR));
	SAY("fputs %d", fputs("far", stream));
	show("far", stream);
	SAY("end %d", fseek(stream, -3, SEEK_END));
	SAY("getc %c", getc(stream));
	SAY("before the start %d", fseek(stream, -20000, SEEK_CUR));
	SAY("errno %d", errno), errno = 0;
	SAY("negative %d", fseeko(stream, -1, SEEK_SET));
	SAY("errno %d", errno), errno = 0;
	SAY("nonsense %d", fseek(stream, 0, 99));
	SAY("errno %d", errno), errno = 0;
	show("still", stream);
	rewind(stream);
	show("rewound", stream);
	for (int i = 0; i < 3000; i++)
		fprintf(stream, "%05d\n", i);
	fpos_t here;
	SAY("fgetpos %d", fgetpos(stream, &here));
	rewind(stream);
	char text[100];
	SAY("fgets %s", fgets(text, sizeof text, stream));
	SAY("fsetpos %d", fsetpos(stream, &here));
	show("set", stream);
	fseek(stream, 600, SEEK_SET);
	for (int i = 0; i < 6; i++)
		ungetc('u' + i, stream);
	show("six back", stream);
	SAY("fread %zu", fread(text, 1, 9, stream));
	SAY("%.9s", text);
	show("read over them", stream);
	ungetc('!', stream);
	fseek(stream, 0, SEEK_CUR);
	SAY("a seek drops it: %c", getc(stream));
	ungetc('?', stream);
	SAY("ungetc of EOF %d", ungetc(EOF, stream));
	SAY("ungetc of 300 %d", ungetc(300, stream));
	SAY("%c", getc(stream));
	SAY("%c", getc(stream));
	fseek(stream, 0, SEEK_END);
	SAY("end: %d", getc(stream));
	SAY("eof %d", feof(stream));
	SAY("ungetc at the end %c", ungetc('e', stream));
	SAY("eof %d", feof(stream));
	SAY("%c", getc(stream));
	SAY("then %d", getc(stream));
	SAY("eof %d", feof(stream));
	/* Reading and writing in turns. */
	fseek(stream, 12, SEEK_SET);
	fputs("WRITE", stream);
	fflush(stream);
	SAY("next %d", getc(stream));
	fseek(stream, 0, SEEK_CUR);
	fputs("AGAIN", stream);
	show("in turns", stream);
	SAY("truncate %d", ftruncate(fileno(stream), 20));
	fseek(stream, 0, SEEK_END);
	show("truncated", stream);
	SAY("close %d", fclose(stream));
	dump("positions");
	/* A write in the middle of what was read, and a step from there. */
	stream = fopen(file, "w+");
	for (int i = 0; i < 2000; i++)
		fprintf(stream, "%05d\n", i);
	fseek(stream, 3000, SEEK_SET);
	SAY("%s", fgets(text, sizeof text, stream));
	fseek(stream, 2500, SEEK_SET);
	fputs("seven b", stream);
	fseek(stream, 5, SEEK_CUR);
	show("behind what was written", stream);
	SAY("%s", fgets(text, sizeof text, stream));
	fclose(stream);
	fill("twenty bytes of text");
	/* Appending. */
	stream = fopen(file, "a+");
	show("a+", stream);
	SAY("first %c", getc(stream));
	fputs("one", stream);
	show("a+ wrote", stream);
	rewind(stream);
	SAY("first %c", getc(stream));
	fseek(stream, 0, SEEK_CUR);
	fputs("two", stream);
	fflush(stream);
	show("a+ wrote", stream);
	int other = open(file, O_WRONLY | O_APPEND);
	if (write(other, "other", 5) != 5)
		perror("write");
	fputs("three", stream);
	fflush(stream);
	show("behind the other", stream);
	fseek(stream, 0, SEEK_END);
	show("end", stream);
	fclose(stream);
	close(other);
	dump("appended");
	stream = fopen(file, "a");
	show("a", stream);
	fputs("x", stream);
	show("a", stream);
	SAY("seek %d", fseek(stream, 2, SEEK_SET));
	show("a", stream);
	fputs("y", stream);
	show("a", stream);
	fclose(stream);
	dump("a");
}

static void buffers(void)
{
	static char own[300];
	static const int kinds[] = { _IOFBF, _IOLBF, _IONBF };
	for (int i = 0; i < 9; i++) {
		FILE *stream = fopen(file, "w");
		int done = setvbuf(stream, i / 3 == 1 ? own : NULL, kinds[i % 3], i / 3 ? sizeof own : 0);
		printf("setvbuf %d %d: %d; ", i / 3, i % 3, done);
		fputs("a\nb", stream);
		struct stat now;
		stat(file, &now);
		printf("%lld there, pending %zu, lines %d; ", (long long)now.st_size, __fpending(stream), __flbf(stream) != 0);
		for (int j = 0; j < 100; j++)
			fwrite("0123456789\n", 1, 11, stream);
		stat(file, &now);
		SAY("%lld there, close %d", (long long)now.st_size, fclose(stream));
	}
	FILE *stream = fopen(file, "w+");
	setlinebuf(stream);
	fputs("line\nrest", stream);
	SAY("setlinebuf: pending %zu, %d", __fpending(stream), __flbf(stream) != 0);
	SAY("reading %d, writing %d", __freading(stream) != 0, __fwriting(stream) != 0);
	setbuf(stream, NULL);
	setbuffer(stream, own, 100);
	SAY("size %zu", __fbufsize(stream));
	rewind(stream);
	getc(stream);
	SAY("reading %d, writing %d", __freading(stream) != 0, __fwriting(stream) != 0);
	SAY("readable %d, writable %d", __freadable(stream) != 0, __fwritable(stream) != 0);
	fseek(stream, 0, SEEK_END);
	fputs("purged", stream);
	__fpurge(stream);
	fputs("kept", stream);
	SAY("locking %d", __fsetlocking(stream, FSETLOCKING_BYCALLER));
	fclose(stream);
	dump("purged");
	/* Larger than any buffer. */
	char *large = malloc(1 << 20);
	for (int i = 0; i < 1 << 20; i++)
		large[i] = (char)(i * 31 >> 3);
	stream = fopen(file, "w+");
	fputs("head", stream);
	SAY("fwrite %zu", fwrite(large, 1, 1 << 20, stream));
	SAY("fwrite of 3 %zu", fwrite(large, 3, 100000, stream));
	SAY("fwrite of nothing %zu %zu", fwrite(large, 0, 5, stream), fwrite(large, 5, 0, stream));
	show("large", stream);
	rewind(stream);
	getc(stream), getc(stream), getc(stream), getc(stream);
	char *again = calloc(1, 1 << 20);
	SAY("fread %zu, same %d", fread(again, 1, 1 << 20, stream), memcmp(again, large, 1 << 20) == 0);
	SAY("fread of 7 %zu", fread(again, 7, 100000, stream));
	show("the end", stream);
	fclose(stream);
	free(large), free(again);
}

static void texts(void)
{
	fill("first line\nsecond, longer line\n\nnul\n42 -17 0x1f 3.25e2 word 'a b' c\nlast without end");
	FILE *stream = fopen(file, "r");
	char text[40], *line = NULL, word[20];
	size_t room = 0;
	SAY("fgets %s", fgets(text, 6, stream));
	SAY("getline %zd", getline(&line, &room, stream));
	SAY("%s", line);
	SAY("getdelim %zd", getdelim(&line, &room, ',', stream));
	SAY("%s", line);
	SAY("__getdelim %zd", __getdelim(&line, &room, '\n', stream));
	SAY("%s", line);
	SAY("getc %d", getc(stream));
	int a = 0, b = 0, n = 0;
	unsigned c = 0;
	double d = 0;
	SAY("fscanf %d", fscanf(stream, "%5s %d%d %x %lf %n", word, &a, &b, &c, &d, &n));
	SAY("%s %d %d %u %g %d", word, a, b, c, d, n);
	char *made = NULL;
	SAY("fscanf %d", fscanf(stream, "%ms", &made));
	SAY("%s", made);
	free(made);
	SAY("fscanf %d", fscanf(stream, " '%[^']'", word));
	SAY("%s", word);
	SAY("no match %d", fscanf(stream, " %d", &a));
	SAY("next %c", getc(stream));
	show("texts", stream);
	SAY("getw %x", getw(stream));
	while (getline(&line, &room, stream) >= 0)
		printf("rest %s;", line);
	show("end", stream);
	SAY("fscanf at the end %d", fscanf(stream, "%d", &a));
	SAY("write to a reader: putc %d", putc('x', stream));
	show("reader", stream);
	SAY("fprintf %d", fprintf(stream, "%d", 5));
	SAY("fwrite %zu", fwrite("xyz", 1, 3, stream));
	show("reader", stream);
	fclose(stream);
	free(line);
	stream = fopen(file, "w");
	SAY("read from a writer: getc %d", getc(stream));
	show("writer", stream);
	SAY("fgets %d", fgets(text, 9, stream) != NULL);
	SAY("fread %zu", fread(text, 1, 9, stream));
	clearerr(stream);
	putw(0x41424344, stream);
	putc_unlocked('u', stream), fputc_unlocked('v', stream), fputs_unlocked("w\n", stream);
	fwrite_unlocked("xx", 1, 2, stream);
	SAY("fflush_unlocked %d", fflush_unlocked(stream));
	SAY("fprintf %d", fprintf(stream, "%s %*d %-8.3f|%c%%%5s\n", "text", 7, 42, 3.14159, 'c', "ab"));
	SAY("long fprintf %d", fprintf(stream, "%9000d", 1));
	flockfile(stream);
	SAY("ftrylockfile %d", ftrylockfile(stream));
	funlockfile(stream), funlockfile(stream);
	fclose(stream);
	stream = fopen(file, "r");
	SAY("%d %d", getc_unlocked(stream), fgetc_unlocked(stream));
	SAY("%zu", fread_unlocked(text, 1, 5, stream));
	SAY("%s", fgets_unlocked(text, 9, stream));
	SAY("feof %d, ferror %d, fileno %d", feof_unlocked(stream), ferror_unlocked(stream), fileno_unlocked(stream) > 2);
	clearerr_unlocked(stream);
	fclose(stream);
}

/* What a descriptor shows of a stream on it. */
static void shared_offsets(void)
{
	fill("line one\nline two\nline three\n");
	char text[40];
	FILE *stream = fopen(file, "r");
	int fd = dup(fileno(stream));
	SAY("%s", fgets(text, sizeof text, stream));
	SAY("read ahead %ld", (long)lseek(fd, 0, SEEK_CUR));
	SAY("fflush %d", fflush(stream));
	SAY("after fflush %ld", (long)lseek(fd, 0, SEEK_CUR));
	SAY("%s", fgets(text, sizeof text, stream));
	fclose(stream);
	SAY("after fclose %ld", (long)lseek(fd, 0, SEEK_CUR));
	lseek(fd, 0, SEEK_SET);
	fflush(stdout);
	if (fork() == 0) {
		FILE *in = fdopen(fd, "r");
		fgets(text, sizeof text, in);
		exit(0);
	}
	wait(NULL);
	SAY("after a child's exit %ld", (long)lseek(fd, 0, SEEK_CUR));
	lseek(fd, 0, SEEK_SET);
	fflush(stdout);
	if (fork() == 0) {
		FILE *in = fdopen(fd, "r");
		fgets(text, sizeof text, in);
		_exit(0);
	}
	wait(NULL);
	SAY("after a child's _exit %ld", (long)lseek(fd, 0, SEEK_CUR));
	lseek(fd, 0, SEEK_SET);
	FILE *in = fdopen(fd, "r");
	fgets(text, sizeof text, in);
	SAY("fflush of all %d", fflush(NULL));
	SAY("then %ld", (long)lseek(fd, 0, SEEK_CUR));
	ungetc('x', in);
	SAY("fflush %d", fflush(in));
	SAY("then %ld", (long)lseek(fd, 0, SEEK_CUR));
	SAY("next %c", getc(in));
	freopen(file, "r", in);
	SAY("first %c", getc(in));
	fclose(in);
	fd = open(file, O_RDWR);
	in = fdopen(fd, "r+");
	fgets(text, sizeof text, in);
	/* A descriptor that was closed below its stream. */
	close(fd);
	errno = 0;
	SAY("fseek %d", fseek(in, 0, SEEK_SET));
	SAY("errno %d, getc %d", errno, getc(in));
	SAY("error %d", ferror(in));
	errno = 0;
	SAY("fclose %d", fclose(in));
	SAY("errno %d", errno);
	FILE *out = fopen(file, "w");
	fputs("never written", out);
	close(fileno(out));
	errno = 0;
	SAY("fflush %d", fflush(out));
	SAY("errno %d, error %d", errno, ferror(out));
	SAY("fclose %d", fclose(out));
}

static void ends(void)
{
	static const char *const how[] = { "exit", "_exit", "quick_exit", "abort", "return" };
	for (int i = 0; i < 4; i++) {
		fill("");
		fflush(NULL);
		pid_t child = fork();
		if (child == 0) {
			FILE *out = fopen(file, "w");
			fprintf(out, "buffered before %s\n", how[i]);
			switch (i) {
			case 0: exit(3);
			case 1: _exit(4);
			case 2: quick_exit(5);
			default: abort();
			}
		}
		int status;
		waitpid(child, &status, 0);
		SAY("%s: %d %d", how[i], WEXITSTATUS(status), WTERMSIG(status));
		dump("left");
	}
	/* Buffers that were not empty at a fork are written twice. */
	FILE *out = fopen(file, "w");
	fputs("twice\n", out);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		exit(0);
	waitpid(child, NULL, 0);
	fputs("once\n", out);
	fclose(out);
	dump("forked");
}

static void *writer(void *stream)
{
	for (int i = 0; i < 2000; i++)
		fprintf(stream, "%p\n", (void *)&i > NULL ? (void *)16 : NULL);
	return NULL;
}

static void threads(void)
{
	FILE *out = fopen(file, "w");
	pthread_t all[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&all[i], NULL, writer, out);
	for (int i = 0; i < 4; i++)
		pthread_join(all[i], NULL);
	SAY("threads: %ld bytes", ftell(out));
	SAY("close %d", fclose(out));
	out = fopen(file, "r");
	char line[64];
	int good = 0;
	while (fgets(line, sizeof line, out))
		good += strcmp(line, "0x10\n") == 0;
	SAY("%d lines", good);
	fclose(out);
}

static void others(void)
{
	char text[64] = "", *made = NULL;
	size_t size = 0;
	FILE *memory = fmemopen(text, sizeof text, "w+");
	fprintf(memory, "in memory");
	fclose(memory);
	SAY("fmemopen %s", text);
	memory = open_memstream(&made, &size);
	fprintf(memory, "%d", 12345);
	fclose(memory);
	SAY("open_memstream %s %zu", made, size);
	free(made);
	for (int i = 0; i < 2; i++) {
		FILE *temporary = i ? tmpfile64() : tmpfile();
		fputs("temporary", temporary);
		rewind(temporary);
		SAY("tmpfile %s", fgets(text, sizeof text, temporary));
		struct stat now;
		fflush(temporary);
		fstat(fileno(temporary), &now);
		SAY("%lld bytes, %d names, mode %o", (long long)now.st_size, (int)now.st_nlink, now.st_mode);
		fclose(temporary);
	}
	char command[300];
	sprintf(command, "cat > %s", file);
	FILE *pipe = popen(command, "w");
	fputs("through a pipe", pipe);
	SAY("pclose %d", pclose(pipe));
	dump("piped");
	sprintf(command, "cat %s", file);
	pipe = popen(command, "r");
	SAY("popen %s", fgets(text, sizeof text, pipe));
	SAY("pclose %d", pclose(pipe));
	SAY("fcloseall %d", fcloseall());
	FILE *full = fopen("/dev/full", "w");
	fputs("no room", full);
	errno = 0;
	SAY("fflush %d", fflush(full));
	SAY("errno %d", errno);
	SAY("fclose %d", fclose(full));
	errno = 0;
	SAY("fileno of a closed stream's kin %d", fileno(stderr));
}

/* freopen from each kind of file to each kind. */
static void reopened(void)
{
	char outside[300], text[100];
	sprintf(outside, "%s/%s", getenv("OUT"), "outside");
	const char *names[] = { file, outside };
	for (int i = 0; i < 4; i++) {
		FILE *stream = fopen(names[i / 2], "w");
		fputs("before\n", stream);
		FILE *again = freopen(names[i % 2], i < 2 ? "w+" : "a+", stream);
		printf("freopen %d: same %d, ", i, again == stream);
		fprintf(again, "after %d\n", i);
		rewind(again);
		printf("%s", fgets(text, sizeof text, again));
		SAY("close %d", fclose(again));
		dump("reopened");
	}
	fill("what is buffered of a file that another stream cuts");
	FILE *stream = freopen(file, "w", fopen(outside, "r"));
	fputs("cut", stream);
	fclose(stream);
	dump("cut");
	stream = fopen(file, "w");
	fputs("some text", stream);
	FILE *again = freopen(NULL, "r", stream);
	SAY("freopen of none %d", again == stream);
	SAY("read %s", fgets(text, sizeof text, again));
	SAY("write %d, error %d", fputs("x", again), ferror(again));
	again = freopen(NULL, "a", again);
	SAY("again %d, error %d", again == stream, ferror(again));
	SAY("write %d", fputs(", appended", again));
	fclose(again);
	dump("appended");
	stream = fopen(file, "r");
	errno = 0;
	SAY("freopen of what is missing %d", freopen("not/there", "r", stream) != NULL);
	SAY("errno %d", errno);
	stream = fopen(file, "r");
	errno = 0;
	SAY("freopen in no mode %d", freopen(file, "z", stream) != NULL);
	SAY("errno %d", errno);
}

static void messages(void)
{
	fflush(stdout);
	errno = ENOENT;
	perror("perror");
	errno = ENOSPC;
	perror(NULL);
	error(0, EACCES, "error %d", 5);
	psignal(SIGCHLD, "psignal");
	fprintf(stderr, "fprintf\n");
	void *calls[1] = { (void *)messages };
	char text[300] = "";
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	backtrace_symbols_fd(calls, 1, fd);
	SAY("a line behind %d", lseek(fd, 0, SEEK_CUR) == lseek(fd, 0, SEEK_END));
	SAY("backtrace %d, ends the line %d", pread(fd, text, sizeof text, 0) > 10, text[strlen(text) - 1] == '\n');
	ftruncate(fd, 0);
	close(fd);
	putchar('p'), putchar_unlocked('q'), puts("!");
}

static void at_the_end(void)
{
	printf("from a handler\n");
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	file = argv[1];
	atexit(at_the_end);
	modes();
	fdopens();
	positions();
	buffers();
	texts();
	shared_offsets();
	ends();
	threads();
	others();
	reopened();
	messages();
	FILE *left = fopen(file, "w");
	fputs("left to the exit", left);
	return 0;
}
