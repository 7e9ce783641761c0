/* Writes and reads a block that is in RAM, between two calls that strace shows: resident FILE */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static char block[262144], page[4096];
	memset(page, 'p', sizeof page);
	int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);
	for (int i = 0; i < 4; i++)
		if (write(fd, block, sizeof block) != sizeof block)
			return 1;
	/* The first use of a buffer may have to look whether it is one. */
	if (pread(fd, page, sizeof page, 0) != sizeof page || pwrite(fd, page, sizeof page, 0) != sizeof page)
		return 1;
	access("first-marker", F_OK);
	for (int i = 0; i < 200; i++) {
		off_t at = (i * 37 % 256) * 4096;
		if (pwrite(fd, page, sizeof page, at) != sizeof page)
			return 1;
	}
	access("second-marker", F_OK);
	for (int i = 0; i < 200; i++) {
		off_t at = (i * 41 % 256) * 4096;
		if (pread(fd, page, sizeof page, at) != sizeof page)
			return 1;
	}
	access("third-marker", F_OK);
	return close(fd);
}
