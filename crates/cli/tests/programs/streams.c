/* The C library's streams: streams FILE. What it finds out goes to stdout. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

static const char *file;

static void show(const char *what, FILE *stream)
{
	printf("%s: at %ld, eof %d, error %d\n", what, ftell(stream), feof(stream), ferror(stream));
}

static void show_size(const char *what)
{
	struct stat found = { 0 };
	int missing = stat(file, &found);
	printf("%s: %d, %lld bytes\n", what, missing, (long long)found.st_size);
}

static void lines(void)
{
	FILE *out = fopen(file, "w");
	for (int i = 0; i < 20000; i++)
		fprintf(out, "line %d of %s\n", i, "twenty thousand");
	show("written", out);
	printf("flush %d\n", fflush(out));
	show_size("flushed");
	printf("close %d\n", fclose(out));
	FILE *in = fopen(file, "r");
	char *line = NULL, text[64];
	size_t room = 0;
	long count = 0, bytes = 0;
	while (getline(&line, &room, in) > 0)
		count++, bytes += strlen(line);
	printf("%ld lines, %ld bytes\n", count, bytes);
	show("read", in);
	rewind(in);
	int number = 0;
	printf("scanned %d, %d\n", fscanf(in, "line %d of", &number), number);
	printf("fseek %d\n", fseek(in, -30, SEEK_END));
	printf("fgets %s", fgets(text, sizeof text, in));
	printf("ungetc %c, %c\n", ungetc('#', in), getc(in));
	show("read", in);
	printf("fseeko %d, ", fseeko(in, 7000, SEEK_SET));
	printf("getc %d, fread %zu\n", getc(in), fread(text, 1, 50, in));
	fpos_t position;
	fgetpos(in, &position);
	fgets(text, sizeof text, in);
	fsetpos(in, &position);
	printf("again %s", fgets(text, sizeof text, in));
	printf("write to a reader %d\n", fputs("x", in));
	fclose(in);
	free(line);
}

static void updates(void)
{
	FILE *both = fopen(file, "r+");
	fseek(both, 100, SEEK_SET);
	fputs("UPDATED", both);
	fseek(both, 90, SEEK_SET);
	char text[40] = "";
	printf("read %zu: %.30s\n", fread(text, 1, 30, both), text);
	show("r+", both);
	fclose(both);
	both = fopen(file, "a+");
	show("a+", both);
	printf("first %c\n", getc(both));
	fseek(both, 0, SEEK_SET);
	fputs("appended\n", both);
	show("a+", both);
	fseek(both, -9, SEEK_END);
	printf("last %s", fgets(text, sizeof text, both));
	fclose(both);
	show_size("appended");
	both = fopen(file, "a");
	fprintf(both, "%05d\n", 7);
	fclose(both);
	both = fopen(file, "w+");
	fwrite("abcdefghij", 1, 10, both);
	fseek(both, 4, SEEK_SET);
	printf("w+ %c\n", fgetc(both));
	fseek(both, 0, SEEK_CUR);
	fputc('X', both);
	fclose(both);
	printf("exclusive %d\n", fopen(file, "wx") != NULL);
	printf("nonsense %d\n", fopen(file, "q") != NULL);
	printf("missing %d\n", fopen("missing", "r") != NULL);
	printf("cloexec %d\n", (both = fopen(file, "re")) != NULL);
	printf("flags %d\n", fcntl(fileno(both), F_GETFD));
	fclose(both);
	show_size("updated");
}

/* Descriptors and streams on one file. */
static void mixed(void)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
	FILE *stream = fdopen(fd, "r+");
	fputs("through the stream\n", stream);
	show_size("not flushed");
	fflush(stream);
	show_size("flushed");
	printf("write %zd\n", write(fileno(stream), "through the descriptor\n", 23));
	fseek(stream, 0, SEEK_END);
	fputs("the stream again\n", stream);
	show("mixed", stream);
	int copy = dup(fd);
	fclose(stream);
	printf("dprintf %d\n", dprintf(copy, "%s\n", "dprintf"));
	printf("offset %lld\n", (long long)lseek(copy, 0, SEEK_CUR));
	stream = fdopen(copy, "a");
	setvbuf(stream, NULL, _IONBF, 0);
	fputs("unbuffered\n", stream);
	show_size("unbuffered");
	fclose(stream);
	stream = fopen(file, "a");
	setvbuf(stream, NULL, _IOLBF, 4096);
	fputs("a line\nhalf a li", stream);
	show_size("line buffered");
	fputs("ne\n", stream);
	show_size("line buffered");
	fclose(stream);
	printf("fdopen for what is not allowed %d\n", fdopen(open(file, O_RDONLY), "w") != NULL);
	/* A child's exit flushes what it inherited in the buffer. */
	stream = fopen(file, "a");
	fflush(stdout);
	fputs("by the child\n", stream);
	pid_t child = fork();
	if (child == 0)
		exit(0);
	waitpid(child, NULL, 0);
	fputs("by the parent\n", stream);
	fclose(stream);
	stream = tmpfile();
	fputs("temporary", stream);
	rewind(stream);
	char text[20] = "";
	printf("tmpfile %s\n", fgets(text, sizeof text, stream));
	fclose(stream);
	char name[] = "made-XXXXXX";
	fd = mkstemp(name);
	printf("mkstemp %zd\n", write(fd, "made", 4));
	close(fd);
	rename(name, "made");
	stream = fopen(file, "r");
	printf("unlocked %d\n", getc_unlocked(stream));
	printf("close %d\n", fclose(stream));
}

/* stdout becomes another file; printf must go there. */
static void redirected(void)
{
	char name[256];
	fflush(stdout);
	int saved = dup(1);
	sprintf(name, "%s.freopen", file);
	printf("%s", freopen(name, "w", stdout) ? "" : "failed\n");
	printf("after freopen\n");
	puts("puts too");
	if (system("echo from a child") != 0)
		puts("system failed");
	fflush(stdout);
	dup2(saved, 1);
	sprintf(name, "%s.dup2", file);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	dup2(fd, 1);
	printf("after dup2\n");
	fflush(stdout);
	if (system("echo from a child") != 0)
		puts("system failed");
	printf("after the child\n");
	fflush(stdout);
	dup2(saved, 1);
	printf("back again\n");
	sprintf(name, "%s.freopen", file);
	FILE *stream = fopen(file, "r");
	stream = freopen(name, "a+", stream);
	fputs("appended after freopen\n", stream);
	rewind(stream);
	char text[64] = "";
	printf("freopened %s", fgets(text, sizeof text, stream));
	fclose(stream);
	stream = fopen(file, "r");
	fclose(stream);
	fprintf(stderr, "to stderr\n");
	perror("perror");
}

/* The room for what is pushed back ends with the file, before the stream does. */
static void reopened(void)
{
	FILE *stream = fopen(file, "r");
	printf("read %d, ", getc(stream));
	printf("pushed back %d, ", ungetc('#', stream));
	printf("read %d, ", getc(stream));
	printf("read %d\n", getc(stream));
	stream = freopen(file, "r", stream);
	printf("reopened %d\n", getc(stream));
	printf("closed %d\n", fclose(stream));
	stream = fopen(file, "r");
	printf("read %d, ", getc(stream));
	printf("pushed back %d, ", ungetc('#', stream));
	printf("read %d, ", getc(stream));
	printf("read %d\n", getc(stream));
	stream = freopen(file, "r", stream);
	printf("wide %d\n", (int)fgetwc(stream));
	printf("closed %d\n", fclose(stream));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	file = argv[1];
	lines();
	updates();
	mixed();
	redirected();
	reopened();
	return 0;
}
