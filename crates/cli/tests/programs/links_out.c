/* The name of a folder that was just used becomes a symbolic link that leads out of the managed
 * directory: links_out OUTSIDE. What is written by it lies there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char here[2048];

static void put(const char *folder, const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s/%s", here, folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (write(fd, "text\n", 5) != 5 || close(fd))
		exit(1);
}

static void use(const char *folder, const char *moved)
{
	if (mkdir(folder, 0755))
		exit(1);
	/* What is seen twice is remembered. */
	for (int i = 0; i < 3; i++)
		put(folder, "used");
	if (rename(folder, moved))
		exit(1);
}

int main(int argc, char **argv)
{
	const char *outside = argv[argc - 1];
	if (!getcwd(here, sizeof here))
		return 1;
	use("a", "a-moved");
	if (symlink(outside, "a"))
		return 1;
	put("a", "linked");
	use("b", "b-moved");
	if (symlinkat(outside, AT_FDCWD, "b"))
		return 1;
	put("b", "linked-at");
	use("c", "c-moved");
	if (symlink(outside, "other") || rename("other", "c"))
		return 1;
	put("c", "renamed");
	use("d", "d-moved");
	if (linkat(AT_FDCWD, "a", AT_FDCWD, "d", 0))
		return 1;
	put("d", "twice");
	puts("ready");
	fflush(stdout);
	return pause();
}
