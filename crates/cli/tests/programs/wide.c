/* Wide characters on streams: wide FILE. What it finds out goes to stdout, in bytes, and at the end wide. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static const char *file;

#define SAY(...) (printf(__VA_ARGS__), printf("\n"))

static void show(const char *what, FILE *stream)
{
	int seen = errno;
	long at = ftell(stream);
	SAY("%s: at %ld, eof %d, error %d, errno %d, wide %d", what, at, feof(stream), ferror(stream), seen, fwide(stream, 0));
	errno = 0;
}

static void dump(const char *what)
{
	unsigned char content[4096];
	int fd = open(file, O_RDONLY);
	ssize_t got = read(fd, content, sizeof content);
	printf("%s: %zd bytes:", what, got);
	for (ssize_t i = 0; i < got && i < 120; i++)
		printf(content[i] >= ' ' && content[i] < 127 ? "%c" : "\\%02x", content[i]);
	printf("\n");
	close(fd);
}

static void fill(const char *text, size_t bytes)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (write(fd, text, bytes) < 0)
		perror(file);
	close(fd);
}

static void orientations(void)
{
	FILE *stream = fopen(file, "w+");
	show("none", stream);
	setvbuf(stream, NULL, _IOFBF, 1000);
	fseek(stream, 0, SEEK_SET);
	show("still none", stream);
	SAY("fwide %d", fwide(stream, -1));
	SAY("fwide %d", fwide(stream, 1));
	SAY("fputwc %x", fputwc(L'a', stream));
	SAY("fputws %d", fputws(L"a", stream));
	/* It does not look at the orientation. */
	SAY("putwc %x %x %x", putwc(L'b', stream), putwc_unlocked(L'c', stream), putwc(0x20ac, stream));
	SAY("fwprintf %d", fwprintf(stream, L"a"));
	SAY("fgetwc %x", fgetwc(stream));
	show("bytes", stream);
	fclose(stream);
	dump("bytes");
	stream = fopen(file, "w+");
	SAY("fwide %d", fwide(stream, 5));
	SAY("fwide %d", fwide(stream, -5));
	stream = freopen(file, "w+", stream);
	show("none again", stream);
	fputc('x', stream);
	show("bytes", stream);
	fclose(stream);
	stream = fopen(file, "r");
	fgetwc(stream);
	show("wide", stream);
	fclose(stream);
	wchar_t *made = NULL;
	size_t size = 0;
	stream = open_wmemstream(&made, &size);
	SAY("memory %d", fwprintf(stream, L"%d", 77));
	fclose(stream);
	SAY("%zu, %d", size, wcscmp(made, L"77"));
	free(made);
}

static void writes(void)
{
	FILE *stream = fopen(file, "w");
	SAY("%x %x %x", fputwc(L'a', stream), putwc(0xe9, stream), fputwc_unlocked(0x20ac, stream));
	SAY("%d", fputws(L"text \u00fc\u4e2d\U0001f600 end\n", stream));
	SAY("%d", fwprintf(stream, L"%d %ls %s %lc %c %5.2f|%-6ls|%6s|%%\n", 42, L"w\u00e4", "bytes", L'\u00f6', 'c', 3.14159, L"\u00e9", "r"));
	SAY("%d", fwprintf(stream, L"%5000d", 1));
	fflush(stream);
	show("written", stream);
	fclose(stream);
	dump("written");
	stream = fopen(file, "w");
	setvbuf(stream, NULL, _IONBF, 0);
	fputws(L"unbuffered\u00e9", stream);
	dump("unbuffered");
	fclose(stream);
	stream = fopen(file, "w");
	setlinebuf(stream);
	fputws(L"line \u20ac\nrest", stream);
	dump("line-buffered");
	fclose(stream);
	dump("closed");
	stream = fopen(file, "w");
	errno = 0;
	SAY("bad bytes %d", fwprintf(stream, L"ok %s", "\xff\xfe"));
	SAY("errno %d, error %d", errno, ferror(stream));
	fputwc(0xd800, stream), fputwc(0x2014, stream);
	fclose(stream);
	dump("odd");
	stream = fopen(file, "r");
	errno = 0;
	SAY("write to a reader: %d", fputwc(L'a', stream));
	show("reader", stream);
	SAY("fwprintf %d", fwprintf(stream, L"%d", 1));
	show("reader", stream);
	fclose(stream);
	/* Long texts, over many buffers. */
	stream = fopen(file, "w+");
	for (int i = 0; i < 5000; i++)
		fwprintf(stream, L"%d \u00e9\u4e2d;", i);
	rewind(stream);
	wchar_t text[64];
	long sum = 0, count = 0;
	for (wint_t c; (c = fgetwc(stream)) != WEOF; count++)
		sum += c;
	SAY("%ld characters, sum %ld", count, sum);
	show("end", stream);
	fseek(stream, 7, SEEK_SET);
	SAY("%d", fgetws(text, 8, stream) != NULL);
	SAY("%d", wcsncmp(text, L";1", 2) == 0);
	fseek(stream, 0, SEEK_END);
	fputws(L"appended", stream);
	show("appended", stream);
	fclose(stream);
}

static void reads(void)
{
	static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\nsecond line\n\nlast";
	fill(text, sizeof text - 1);
	FILE *stream = fopen(file, "r");
	for (int i = 0; i < 6; i++) {
		errno = 0;
		SAY("%x", i % 2 ? getwc(stream) : fgetwc_unlocked(stream));
		show("one", stream);
	}
	fclose(stream);
	stream = fopen(file, "r");
	fseek(stream, 10, SEEK_SET);
	wchar_t line[30];
	while (fgetws(line, 8, stream) != NULL) {
		printf("line:");
		for (wchar_t *c = line; *c; c++)
			printf(" %x", *c);
		printf("\n");
	}
	show("end", stream);
	/* glibc does not know the position of such a stream. */
	SAY("unget %x", ungetwc(L'z', stream));
	SAY("eof %d", feof(stream));
	SAY("%x", fgetwc(stream));
	SAY("%x", fgetwc(stream));
	fseek(stream, 11, SEEK_SET);
	SAY("unget %x", ungetwc(0x20ac, stream));
	SAY("unget of WEOF %x", ungetwc(WEOF, stream));
	SAY("%x", fgetwc(stream));
	SAY("%x", fgetwc(stream));
	SAY("none %d", fgetws(line, 0, stream) != NULL);
	SAY("one %d %x", fgetws(line, 1, stream) != NULL, line[0]);
	fclose(stream);
	fill("ab\xff", 3);
	stream = fopen(file, "r");
	errno = 0;
	SAY("%d", fgetws(line, 10, stream) != NULL);
	show("illegal", stream);
	SAY("%x", fgetwc(stream));
	show("again", stream);
	fclose(stream);
	fill("ab\xe2\x82", 4);
	stream = fopen(file, "r");
	errno = 0;
	SAY("%x", fgetwc(stream));
	SAY("%x", fgetwc(stream));
	SAY("%x", fgetwc(stream));
	show("cut short", stream);
	fclose(stream);
}

static void show_bytes(const char *what, const void *from, size_t bytes)
{
	printf("%s:", what);
	for (size_t i = 0; i < bytes; i++)
		printf(" %02x", ((const unsigned char *)from)[i]);
	printf("\n");
}

static void scans(void)
{
	static const char text[] = "12 -7 0x1f 010 3.5e1 (nil) 99999999999 h\xc3\xa9llo w\xc3\xb6rld "
		"abc\xc3\xa9\xc3\xb6xyz 1234567 %  end\xe2\x80\x83of line\nlast 5";
	fill(text, sizeof text - 1);
	FILE *stream = fopen(file, "r");
	int a = 0, b = 0, n = 0;
	unsigned x = 0, o = 0;
	double d = 0;
	void *p = stream;
	long long l = 0;
	char s[64];
	wchar_t w[64];
	/* glibc ends texts with two zeros. */
	memset(s, 0, sizeof s), memset(w, 0, sizeof w);
	SAY("%d", fwscanf(stream, L"%d%d%x%o%lf%p%lld%n", &a, &b, &x, &o, &d, &p, &l, &n));
	SAY("%d %d %x %o %g %d %lld %d", a, b, x, o, d, p == NULL, l, n);
	show("numbers", stream);
	SAY("%d", fwscanf(stream, L"%s%n%ls", s, &n, w));
	show_bytes("s", s, 10), show_bytes("w", w, 28);
	SAY("%d", n);
	SAY("%d", fwscanf(stream, L" %3c%n", s, &n));
	show_bytes("c", s, 6);
	SAY("%d", fwscanf(stream, L"%2lc", w));
	show_bytes("lc", w, 12);
	SAY("%d", fwscanf(stream, L"%[x-z]%*[ ]%3d%d", s, &a, &b));
	SAY("set %s", s);
	SAY("%d %d", a, b);
	SAY("%d", fwscanf(stream, L"%% %l[^\n]%n", w, &n));
	show_bytes("negated", w, 64);
	SAY("%d", n);
	char *made = NULL;
	wchar_t *wide = NULL;
	SAY("%d", fwscanf(stream, L"%ms", &made));
	SAY("%s", made);
	free(made);
	SAY("%d", fwscanf(stream, L"%d%d", &a, &b));
	SAY("%d", a);
	show("end", stream);
	SAY("%d", fwscanf(stream, L"%mls", &wide));
	SAY("%d", wide == NULL);
	SAY("%d", fwscanf(stream, L"%d", &a));
	rewind(stream);
	SAY("%d", fwscanf(stream, L"x%d", &a));
	SAY("%x", fgetwc(stream));
	rewind(stream);
	SAY("%d", fwscanf(stream, L"12 %*d %i %i", &a, &b));
	SAY("%d %d", a, b);
	SAY("%d", fwscanf(stream, L"%2$lf %1$n", &n, &d));
	SAY("%d %g", n, d);
	SAY("%d", fwscanf(stream, L"%*s %hhn%*lld%hn", s, &n));
	SAY("%d", fwscanf(stream, L" h%1[\u00e9]llo %4[^r-l]%n", s, s + 20, &n));
	SAY("sets %s %s", s, s + 20);
	SAY("%d", fwscanf(stream, L"%d", &a));
	show("no match", stream);
	SAY("%d", fwscanf(stream, L"%S%C", w, w + 20));
	show_bytes("S", w, 92);
	SAY("%d", fwscanf(stream, L"%"));
	SAY("%d", fwscanf(stream, L"%y"));
	SAY("%d", fwscanf(stream, L"   "));
	show("spaces", stream);
	fclose(stream);
	fill("- +x 1e 0x nan inf 5", 20);
	stream = fopen(file, "r");
	for (int i = 0; i < 8; i++) {
		d = 0;
		int done = i % 2 ? fwscanf(stream, L"%lf", &d) : fwscanf(stream, L"%d", &a);
		printf("%d %g; ", done, d);
		show("odd numbers", stream);
		fgetwc(stream);
	}
	fclose(stream);
	fill("ab \xff", 4);
	stream = fopen(file, "r");
	errno = 0;
	SAY("%d", fwscanf(stream, L"%s%s", s, s + 20));
	show("illegal", stream);
	fclose(stream);
	errno = 0;
}

static void charsets(void)
{
	static const char *const all[] = { "UTF-16LE", "UTF-16", "ISO-8859-1", "UTF-8", "ISO-2022-JP", "SHIFT_JIS", "nonsense" };
	for (int i = 0; i < 7; i++) {
		char mode[40];
		errno = 0;
		snprintf(mode, sizeof mode, "w,ccs=%s", all[i]);
		FILE *stream = fopen(file, mode);
		printf("%s: %d, errno %d\n", mode, stream != NULL, errno);
		if (stream == NULL)
			continue;
		SAY("fwide %d", fwide(stream, 0));
		SAY("fwprintf %d", fwprintf(stream, L"a%d\u65e5\u672cb\u00e9\n", 5));
		SAY("fclose %d", fclose(stream));
		dump("content");
		snprintf(mode, sizeof mode, "r,ccs=%s", all[i]);
		stream = fopen(file, mode);
		for (wint_t c; (c = fgetwc(stream)) != WEOF;)
			printf(" %x", c);
		SAY("; eof %d, error %d", feof(stream), ferror(stream));
		fclose(stream);
	}
}

/* Other users of the conversion: the orientation keeps the locale of the first use. */
static void locales(void)
{
	FILE *stream = fopen(file, "w");
	fputwc(L'\u00e9', stream);
	fflush(stream);
	setlocale(LC_ALL, "C");
	fputwc(L'\u00f6', stream);
	fclose(stream);
	dump("UTF-8 if it was");
	stream = fopen(file, "w");
	fputws(L"C: \u00e9\u2014\u20ac", stream);
	fflush(stream);
	setlocale(LC_ALL, "");
	fputwc(L'\u00e9', stream);
	fclose(stream);
	dump("the C locale");
}

int main(int argc, char **argv)
{
	if (argc != 2 || setlocale(LC_ALL, "") == NULL)
		return 2;
	file = argv[1];
	orientations();
	writes();
	reads();
	scans();
	charsets();
	locales();
	fflush(stdout);
	/* The standard streams. */
	char name[300];
	snprintf(name, sizeof name, "%s.out", file);
	if (freopen(name, "w", stdout) == NULL)
		return 3;
	wprintf(L"wprintf %ls %d\n", L"\u00e9\u4e2d", 5);
	putwchar(L'\u20ac');
	fputws(L"\n", stdout);
	fwprintf(stderr, L"stderr \u00e9\n");
	fill("12 \xc3\xa9t\xc3\xa9 rest", 13);
	if (freopen(file, "r", stdin) == NULL)
		return 4;
	int number = 0;
	wchar_t word[20] = L"";
	int done = wscanf(L"%d %ls", &number, word);
	wprintf(L"%d: %d %ls, wide %d, next %lc%lc\n", done, number, word, fwide(stdin, 0), getwchar(), getwchar_unlocked());
	return 0;
}
