/* Wide characters on streams whose descriptions others use, and after seeks: wide_shared line|both|seek|set|saved. */
#define _GNU_SOURCE
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static void fill(const char *name)
{
	FILE *stream = fopen(name, "w");
	for (int i = 0; i < 10000; i++)
		fprintf(stream, "%04d\n", i);
	fclose(stream);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	setlocale(LC_ALL, "");
	if (!strcmp(what, "line")) {
		fputws(L"wide\n", stdout);
	} else if (!strcmp(what, "both")) {
		for (int i = 0; i < 3; i++) {
			fputws(L"to stdout\n", stdout);
			fflush(stdout);
			fputws(L"to stderr\n", stderr);
		}
	} else if (!strcmp(what, "seek")) {
		fill("numbers");
		FILE *stream = fopen("numbers", "r+");
		fseek(stream, 100, SEEK_SET);
		fseek(stream, 203, SEEK_SET);
		wint_t got = fgetwc(stream);
		long at = ftell(stream);
		fputwc(L'!', (fseek(stream, 0, SEEK_CUR), stream));
		fclose(stream);
		printf("%lc at %ld\n", got, at);
	} else if (!strcmp(what, "set")) {
		fill("numbers");
		FILE *stream = fopen("numbers", "r");
		int first = fgetc(stream);
		stream = freopen("numbers", "r,ccs=ISO-8859-1", stream);
		printf("%c, then %lc\n", first, stream ? fgetwc(stream) : L'?');
	} else if (!strcmp(what, "saved")) {
		int saved = dup(1);
		fputws(L"first\n", stdout);
		fflush(stdout);
		dup2(saved, 1);
		fputws(L"second\n", stdout);
		fflush(stdout);
		dup2(saved, 1);
		fputws(L"third\n", stdout);
	}
	return 0;
}
