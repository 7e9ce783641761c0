/* Creates small files, and writes and closes them, between two calls that strace shows:
 * creates FOLDER COUNT, FOLDER absolute and the current directory. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void create(const char *folder, const char *name, int number, int flags)
{
	static char page[4096];
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s%s-%d", folder, name, number);
	int fd = open(path, O_WRONLY | O_CREAT | flags, 0644);
	if (fd < 0 || write(fd, page, sizeof page) != sizeof page || close(fd) != 0) {
		perror(path);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	char folder[PATH_MAX];
	int count = argc > 2 ? atoi(argv[2]) : 0;
	snprintf(folder, sizeof folder, "%s/", argv[1]);
	for (int i = 0; i < 3; i++) /* until the folder is known, and the manager awake */
		create(folder, "first", i, 0);
	access("absolute-begins", F_OK);
	for (int i = 0; i < count; i++)
		create(folder, "absolute", i, O_EXCL);
	access("absolute-ends", F_OK);
	access("truncating-begins", F_OK);
	for (int i = 0; i < count; i++)
		create(folder, "truncating", i, O_TRUNC);
	access("truncating-ends", F_OK);
	access("relative-begins", F_OK);
	for (int i = 0; i < count; i++)
		create("", "relative", i, O_TRUNC);
	access("relative-ends", F_OK);
	return 0;
}
