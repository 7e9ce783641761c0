/* Appends a line, with a header if the file is new: by the position, as many programs do. */
#include <stdio.h>

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	FILE *log = fopen(words[1], "a");
	if (log == NULL)
		return 1;
	if (ftell(log) == 0)
		fputs("header\n", log);
	fprintf(log, "line at %ld\n", ftell(log));
	return fclose(log);
}
