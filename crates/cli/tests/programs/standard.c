/* stdin, stdout and stderr on one file after another: standard NAME. It reports to NAME.report. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *name;
static FILE *report;
/* Kept from the start, as libraries for logging do. */
static FILE *in, *out, *err;

#define SAY(...) (fprintf(report, __VA_ARGS__), fputc('\n', report), fflush(report))

static char *at(const char *suffix)
{
	static char names[8][300];
	static int next;
	char *text = names[next++ % 8];
	snprintf(text, sizeof names[0], "%s.%s", name, suffix);
	return text;
}

static int file(const char *suffix, int flags)
{
	return open(at(suffix), flags | O_CREAT, 0644);
}

static void put(const char *suffix, const char *text)
{
	int fd = file(suffix, O_WRONLY | O_TRUNC);
	if (write(fd, text, strlen(text)) < 0)
		SAY("write: %d", errno);
	close(fd);
}

static void show(const char *suffix)
{
	char text[2000];
	int fd = open(at(suffix), O_RDONLY);
	ssize_t got = read(fd, text, sizeof text);
	struct stat now;
	fstat(fd, &now);
	SAY("%s, %lld bytes: %.*s", suffix, (long long)now.st_size, (int)(got > 0 ? got : 0), text);
	close(fd);
}

static void replace(int fd, int by)
{
	if (dup2(by, fd) != fd)
		SAY("dup2 %d: %d", fd, errno);
	close(by);
}

/* Through variables and kept pointers, in this image. */
static void here(void)
{
	int saved[3] = { dup(0), dup(1), dup(2) };
	fprintf(out, "before, unflushed; ");
	replace(1, file("out", O_WRONLY | O_TRUNC));
	fprintf(out, "kept pointer\n");
	printf("variable\n");
	fflush(out);
	puts("puts"), putchar('c'), fputs("\n", out);
	fwrite("fwrite\n", 1, 7, out);
	fflush(stdout);
	show("out");
	replace(2, dup(1));
	fprintf(err, "kept stderr\n");
	fprintf(stderr, "stderr\n");
	errno = ENOENT;
	perror("perror");
	if (write(1, "write\n", 6) != 6)
		SAY("write: %d", errno);
	fprintf(out, "position %ld\n", ftell(out));
	fflush(NULL);
	show("out");
	put("in", "one 1\ntwo 2\nthree 3\nfour 4\n");
	replace(0, file("in", O_RDONLY));
	char word[20];
	int number = 0;
	int done = scanf("%s %d", word, &number);
	SAY("scanf %d %s %d", done, word, number);
	done = fscanf(in, "%s %d", word, &number);
	SAY("kept stdin %d %s %d", done, word, number);
	SAY("fflush %d", fflush(in));
	SAY("offset %ld", (long)lseek(0, 0, SEEK_CUR));
	/* A child goes on where we stopped. */
	if (system("cat; echo from a child; echo to stderr >&2") != 0)
		SAY("system failed");
	SAY("offset %ld", (long)lseek(0, 0, SEEK_CUR));
	replace(1, dup(saved[1]));
	replace(2, dup(saved[2]));
	replace(0, dup(saved[0]));
	printf("back again\n");
	fflush(stdout);
	show("out");
	/* Again, appending. */
	replace(1, file("out", O_WRONLY | O_APPEND));
	fprintf(out, "appended\n");
	fflush(out);
	replace(1, saved[1]), replace(0, saved[0]), replace(2, saved[2]);
	show("out");
}

/* The same in a child that executes nothing, and in one that does. */
static void children(void)
{
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		replace(1, file("child", O_WRONLY | O_TRUNC));
		replace(2, dup(1));
		fprintf(out, "the child's kept pointer\n");
		printf("the child's variable\n");
		fprintf(err, "at once\n");
		exit(7);
	}
	int status;
	waitpid(child, &status, 0);
	SAY("status %d", WEXITSTATUS(status));
	show("child");
	child = fork();
	if (child == 0) {
		replace(1, file("child", O_WRONLY | O_APPEND));
		printf("before the exec\n");
		fflush(stdout);
		execlp("echo", "echo", "executed", NULL);
		_exit(1);
	}
	waitpid(child, &status, 0);
	show("child");
}

/* Other ways to come to such a descriptor. */
static void other_ways(void)
{
	fflush(NULL);
	int saved = dup(1);
	close(1);
	SAY("open gives %d", file("opened", O_WRONLY | O_TRUNC));
	fprintf(out, "opened at 1\n");
	fflush(out);
	close(1);
	int fd = file("opened", O_WRONLY | O_APPEND);
	SAY("open gives %d", fd);
	fd = file("opened", O_WRONLY | O_APPEND);
	close(1);
	SAY("F_DUPFD gives %d", fcntl(fd, F_DUPFD, 0));
	printf("F_DUPFD at 1\n");
	fflush(stdout);
	close(1);
	SAY("dup gives %d", dup(fd));
	close(fd);
	printf("dup at 1\n");
	fflush(stdout);
	SAY("freopen %d", freopen(at("reopened"), "w", stdout) == out);
	fprintf(out, "reopened\n");
	if (system("echo from a child") != 0)
		SAY("system failed");
	SAY("freopen outside %d", freopen("/dev/null", "w", stdout) == out);
	printf("nowhere\n");
	fflush(stdout);
	SAY("dup2 %d", dup2(saved, 1));
	close(saved);
	show("opened");
	show("reopened");
	put("in", "first\nsecond\n");
	SAY("freopen %d", freopen(at("in"), "r", stdin) == in);
	char line[20];
	SAY("%s", fgets(line, sizeof line, in));
	SAY("freopen %d", freopen(at("missing"), "r", stdin) != NULL);
	SAY("getc %d", getc(in));
	SAY("freopen %d", freopen(at("in"), "r+", in) == in);
	SAY("fileno %d, %s", fileno(in), fgets(line, sizeof line, in));
}

/* dup2 below streams of other descriptors. */
static void below_others(void)
{
	char outside[300], line[40];
	snprintf(outside, sizeof outside, "%s/outside", getenv("OUT"));
	FILE *stream = fopen(outside, "w");
	fprintf(stream, "outside\n");
	fflush(stream);
	replace(fileno(stream), file("below", O_WRONLY | O_TRUNC));
	fprintf(stream, "inside\n");
	fflush(stream);
	show("below");
	fprintf(stream, "inside again\n");
	SAY("at %ld", ftell(stream));
	SAY("close %d", fclose(stream));
	show("below");
	stream = fopen(at("above"), "w");
	fprintf(stream, "inside\n");
	fflush(stream);
	int fd = open(outside, O_WRONLY | O_TRUNC);
	replace(fileno(stream), fd);
	fprintf(stream, "outside\n");
	fclose(stream);
	show("above");
	put("read", "line one\nline two\n");
	stream = popen("echo popen", "r");
	SAY("%s", fgets(line, sizeof line, stream));
	replace(fileno(stream), file("read", O_RDONLY));
	clearerr(stream);
	SAY("%s", fgets(line, sizeof line, stream));
	SAY("pclose %d", pclose(stream));
	stream = tmpfile();
	fprintf(stream, "temporary");
	fflush(stream);
	replace(fileno(stream), file("below", O_RDWR));
	rewind(stream);
	SAY("%s", fgets(line, sizeof line, stream));
	SAY("close %d", fclose(stream));
	/* When the stream is gone its number is like any other. */
	fd = file("below", O_RDWR);
	SAY("read %zd", read(fd, line, 7));
	SAY("offset %ld", (long)lseek(fd, 0, SEEK_CUR));
	close(fd);
}

static void at_the_end(void)
{
	printf("from a handler\n");
	SAY("fclose %d", fclose(stdout));
	errno = 0;
	SAY("fclose %d", fclose(stdout));
	errno = 0;
	SAY("printf %d, errno %d", printf("too late"), errno);
	SAY("error %d, fileno %d, errno %d", ferror(stdout), fileno(stdout), errno);
	show("last");
}

/* The descriptor of a stream is closed and opened again, or changed in a vforked child alone. */
static void one_that_glibc_has(void)
{
	int saved = dup(1);
	fflush(stdout);
	close(1);
	int opened = file("next", O_WRONLY | O_TRUNC);
	SAY("opened %d", opened);
	printf("the next file\n");
	fflush(out);
	show("next");
	replace(1, saved);
	int fd = file("vforked", O_WRONLY | O_TRUNC);
	pid_t child = vfork();
	if (child == 0) {
		dup2(fd, 1);
		printf("a vforked child's\n");
		fflush(out);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	close(fd);
	printf("its parent's\n");
	fflush(out);
	show("vforked");
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	name = argv[1];
	report = fopen(at("report"), "w");
	in = stdin, out = stdout, err = stderr;
	printf("its first line\n");
	one_that_glibc_has();
	here();
	children();
	other_ways();
	below_others();
	fflush(stdout);
	replace(1, file("last", O_WRONLY | O_TRUNC));
	atexit(at_the_end);
	printf("the last line\n");
	return 0;
}
