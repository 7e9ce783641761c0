/* A file is open outside of the managed directory when it gets a name in it: comes_in OUTSIDE.
 * What each of two descriptors writes is seen through the other, and stays. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void look(const char *form, const char *from, const char *to, int (*come)(void))
{
	char seen[7] = "";
	struct stat stat;
	int before = open(from, O_RDWR | O_CREAT | O_TRUNC, 0644);
	static char block[100000];
	memset(block, 'A', sizeof block);
	if (write(before, block, sizeof block) != sizeof block || come())
		perror(form);
	int after = open(to, O_RDWR);
	pwrite(after, "CC", 2, 2);
	pread(before, seen, 6, 0);
	printf("%s: before: %s\n", form, seen);
	pwrite(before, "D", 1, 3);
	pread(after, seen, 6, 0);
	printf("%s: after: %s\n", form, seen);
	lseek(before, 0, SEEK_END);
	write(before, "G", 1);
	fstat(after, &stat);
	printf("%s: %lld bytes\n", form, (long long)stat.st_size);
	close(before);
	close(after);
	int again = open(to, O_RDONLY);
	pread(again, seen, 6, 0);
	printf("%s: at last: %s\n", form, seen);
	close(again);
}

static char outside[3][4096];

static int renamed(void)
{
	return rename(outside[0], "renamed");
}

static int linked(void)
{
	return link(outside[1], "linked");
}

static int folder(void)
{
	char path[4096];
	strcpy(path, outside[2]);
	*strrchr(path, '/') = 0;
	return rename(path, "folder");
}

int main(int argc, char **argv)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/folder", argv[argc - 1]);
	mkdir(path, 0755);
	snprintf(outside[0], sizeof outside[0], "%s/renamed", argv[argc - 1]);
	snprintf(outside[1], sizeof outside[1], "%s/linked", argv[argc - 1]);
	snprintf(outside[2], sizeof outside[2], "%s/folder/file", argv[argc - 1]);
	look("renamed", outside[0], "renamed", renamed);
	look("linked", outside[1], "linked", linked);
	look("folder", outside[2], "folder/file", folder);
	return unlink(outside[1]);
}
