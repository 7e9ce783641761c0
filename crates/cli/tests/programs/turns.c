/*
 * Random calls on streams that read and write in turns: turns SEED STEPS. Every result goes to stdout. Each stream has files
 * of its own: glibc may keep in its buffer what others have changed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define STREAMS 4

static unsigned long long state;

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33) % limit;
}

enum turn { NONE, READING, WRITING };

static struct {
	FILE *stream;
	enum turn turn;
	int reads, writes, wide, pushed;
} all[STREAMS];

static char text[20000];
static wchar_t wide_text[5000];
static const char *const names[] = { "a", "b", "outside" };

static void show(const char *what, long long result, const void *content, size_t bytes)
{
	unsigned sum = 0;
	for (size_t i = 0; i < bytes; i++)
		sum = sum * 31 + ((const unsigned char *)content)[i];
	printf("%s %lld %zu %08x\n", what, result, bytes, sum);
}

static size_t make_text(void)
{
	size_t length = below(10) ? below(60) : below(sizeof text - 1);
	for (size_t i = 0; i < length; i++)
		text[i] = "abc def\n0123456789"[below(18)];
	text[length] = 0;
	return length;
}

static void make_wide(void)
{
	size_t length = below(10) ? below(60) : below(4000);
	for (size_t i = 0; i < length; i++)
		wide_text[i] = L"ab 12\n\u00e9\u20ac\U0001f600\u00ff"[below(10)];
	wide_text[length] = 0;
}

static void open_one(int i)
{
	static const char *const modes[] = { "r", "w", "a", "r+", "w+", "a+", "rb+", "we" };
	const char *mode = modes[below(8)], *name = names[below(3)];
	char path[400];
	snprintf(path, sizeof path, "%s%s%s%d", name[1] ? getenv("OUT") : "", name[1] ? "/turns-" : "", name, i);
	/* Wide ones so that no reader cuts their characters, and without updates, in which glibc does not find its place. */
	int same = all[i].stream != NULL && below(16) == 0, wide = same ? all[i].wide : below(3) == 0;
	if (wide)
		snprintf(path, sizeof path, "wide%d", i), name = path, mode = modes[below(3)];
	if (all[i].stream != NULL && (same || below(2))) {
		all[i].stream = freopen(same ? NULL : path, mode, all[i].stream);
		printf("%d: freopen ", i);
	} else {
		if (all[i].stream != NULL)
			printf("fclose %d: %d ", i, fclose(all[i].stream));
		all[i].stream = NULL;
		if (below(2)) {
			all[i].stream = fopen(path, mode);
			printf("%d: fopen ", i);
		} else {
			int fd = open(path, O_RDWR | O_CREAT | (below(4) ? 0 : O_TRUNC) | (mode[0] == 'a' && below(2) ? O_APPEND : 0), 0644);
			lseek(fd, wide ? 0 : below(100), SEEK_SET);
			all[i].stream = fdopen(fd, mode);
			printf("%d: fdopen ", i);
		}
	}
	printf("%s %s %d\n", name, mode, all[i].stream != NULL);
	if (all[i].stream == NULL)
		return;
	all[i].turn = NONE;
	all[i].reads = __freadable(all[i].stream) != 0, all[i].writes = __fwritable(all[i].stream) != 0;
	all[i].wide = wide, all[i].pushed = 0;
	static const int kinds[] = { _IOFBF, _IOLBF, _IONBF };
	if (below(4) == 0)
		printf("setvbuf %d\n", setvbuf(all[i].stream, NULL, kinds[below(3)], 1 + below(9000)));
}

static void read_bytes(int i)
{
	FILE *stream = all[i].stream;
	size_t size = 1 + (below(10) ? below(60) : below(sizeof text - 1));
	int number = -1;
	memset(text, 0, sizeof text);
	switch (below(8)) {
	case 0: show("fread", fread(text, 1, size, stream), text, size); break;
	case 1: show("fgets", fgets(text, size, stream) != NULL, text, size); break;
	case 2: show("getc", getc(stream), "", 0); break;
	case 3: show("fscanf", fscanf(stream, "%50s", text), text, 50); break;
	case 4: show("fscanf", fscanf(stream, " %6d", &number), &number, sizeof number); break;
	case 5: show("fscanf", fscanf(stream, "%9[a-z \n]", text), text, 9); break;
	case 6: {
		char *line = NULL;
		size_t room = 0;
		ssize_t got = getline(&line, &room, stream);
		show("getline", got, line, got > 0 ? got : 0);
		free(line);
		break;
	}
	default: {
		int byte = getc_unlocked(stream);
		if (byte != EOF)
			show("ungetc", ungetc(below(2) ? byte : 'U', stream), "", 0), all[i].pushed = 1;
	}
	}
}

static void write_bytes(int i)
{
	FILE *stream = all[i].stream;
	size_t length = make_text();
	switch (below(5)) {
	case 0: show("fwrite", fwrite(text, 1, length, stream), "", 0); break;
	case 1: show("fputs", fputs(text, stream) >= 0, "", 0); break;
	case 2: show("fprintf", fprintf(stream, "%s|%d\n", text, below(1000)), "", 0); break;
	case 3: show("putc", putc('p', stream), "", 0); break;
	default: show("fputc_unlocked", fputc_unlocked('\n', stream), "", 0);
	}
}

static void read_wide(int i)
{
	FILE *stream = all[i].stream;
	int number = -1;
	/* What does not match is pushed back. */
	all[i].pushed = 1;
	memset(wide_text, 0, sizeof wide_text);
	memset(text, 0, sizeof text);
	switch (below(7)) {
	case 0: show("fgetwc", fgetwc(stream), "", 0); break;
	case 1: show("fgetws", fgetws(wide_text, 2 + below(300), stream) != NULL, wide_text, 1300); break;
	case 2: show("fwscanf", fwscanf(stream, L"%50ls", wide_text), wide_text, 240); break;
	case 3: show("fwscanf", fwscanf(stream, L"%6d", &number), &number, sizeof number); break;
	case 4: show("fwscanf", fwscanf(stream, L"%9[a-z \u00e9-\u00ff\n]", text), text, 36); break;
	case 5: show("fwscanf", fwscanf(stream, L"%5c%n", text, &number), text, 20), show("n", number, "", 0); break;
	default: {
		wint_t c = getwc(stream);
		if (c != WEOF)
			show("ungetwc", ungetwc(c, stream), "", 0);
	}
	}
}

static void write_wide(int i)
{
	FILE *stream = all[i].stream;
	make_wide();
	switch (below(3)) {
	case 0: show("fputws", fputws(wide_text, stream) >= 0, "", 0); break;
	case 1: show("fwprintf", fwprintf(stream, L"%ls|%d\n", wide_text, below(1000)), "", 0); break;
	default: show("fputwc", fputwc(0x20ac, stream), "", 0);
	}
}

/* A turn ends with one of these. */
static void move(int i)
{
	FILE *stream = all[i].stream;
	fpos_t here;
	/* Writing over characters would leave halves. */
	if (all[i].wide && all[i].writes) {
		show("to the end", fseek(stream, 0, SEEK_END), "", 0);
		return;
	}
	/* glibc decodes the last block of a wide stream from its start, which may be within a character. */
	switch (all[i].wide ? 0 : below(5)) {
	case 0: rewind(stream); break;
	case 1: show("to the end", fseek(stream, 0, SEEK_END), "", 0); break;
	case 2: show("fseek", fseek(stream, below(3000), SEEK_SET), "", 0); break;
	case 3: show("fseeko", fseeko(stream, (int)below(200) - 100, SEEK_CUR), "", 0); break;
	default:
		show("fgetpos", fgetpos(stream, &here), "", 0);
		show("fsetpos", fsetpos(stream, &here), "", 0);
	}
	all[i].turn = NONE, all[i].pushed = 0;
}

/* Behind a flushed byte that was pushed back glibc gives the last one of its buffer twice, wherever that ends. */
static int may_flush(int i)
{
	return all[i].turn != READING || !(all[i].wide || all[i].pushed);
}

static void step(void)
{
	int i = below(STREAMS);
	if (all[i].stream == NULL || below(25) == 0) {
		open_one(i);
		return;
	}
	FILE *stream = all[i].stream;
	printf("stream %d, ", i);
	switch (below(12)) {
	case 0: move(i); break;
	case 1: show("fflush", may_flush(i) ? fflush(stream) : 0, "", 0); break;
	case 2:
		/* glibc does not know where a wide stream is behind a character that was pushed back. */
		if (!all[i].wide || !all[i].pushed)
			show("ftell", ftell(stream), "", 0);
		break;
	case 3: {
		struct stat now = { 0 };
		if (may_flush(i))
			fflush(stream);
		fstat(fileno(stream), &now);
		show("size", now.st_size, "", 0);
		break;
	}
	default: {
		enum turn turn = below(2) ? READING : WRITING;
		if (all[i].turn != NONE && all[i].turn != turn) {
			move(i);
			break;
		}
		/* Large reads of a stream that may not read do read in glibc. */
		if ((all[i].wide || turn == READING) && !(turn == READING ? all[i].reads : all[i].writes))
			break;
		all[i].turn = turn;
		if (all[i].wide)
			(turn == READING ? read_wide : write_wide)(i);
		else
			(turn == READING ? read_bytes : write_bytes)(i);
	}
	}
	show("state", feof(stream) * 2 + ferror(stream), "", 0);
	if (below(3) == 0)
		clearerr(stream);
}

int main(int argc, char **argv)
{
	if (argc != 3 || setlocale(LC_ALL, "C.UTF-8") == NULL)
		return 2;
	state = strtoull(argv[1], NULL, 10) * 2 + 1;
	for (int left = atoi(argv[2]); left > 0; left--) {
		printf("%d: ", left);
		step();
	}
	/* What is still open is flushed by the exit. */
	return 0;
}
