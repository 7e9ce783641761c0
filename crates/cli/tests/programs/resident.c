/* Writes and reads a block that is in RAM, between two calls that strace shows: resident FILE.
 * The buffers are pages of an array that is larger than a thread's caches. The last reads are made
 * while other memory comes and goes. */
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	enum { PAGES = 1000 };
	static char block[262144], pages[PAGES][4096];
	memset(pages, 'p', sizeof pages);
	int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);
	for (int i = 0; i < 4; i++)
		if (write(fd, block, sizeof block) != sizeof block)
			return 1;
	/* The first use of a buffer may have to look whether it is one. */
	for (int i = 0; i < PAGES; i++)
		if (pread(fd, pages[i], 4096, 0) != 4096 || pwrite(fd, pages[i], 4096, 0) != 4096)
			return 1;
	access("first-marker", F_OK);
	for (int i = 0; i < 1000; i++) {
		off_t at = (i * 37 % 256) * 4096;
		if (pwrite(fd, pages[i * 613 % PAGES], 4096, at) != 4096)
			return 1;
	}
	access("second-marker", F_OK);
	for (int i = 0; i < 1000; i++) {
		off_t at = (i * 41 % 256) * 4096;
		if (pread(fd, pages[i * 617 % PAGES], 4096, at) != 4096)
			return 1;
	}
	access("third-marker", F_OK);
	for (int i = 0; i < 100; i++) {
		long flags;
		ioctl(fd, FS_IOC_GETFLAGS, &flags);
	}
	access("fourth-marker", F_OK);
	for (int i = 0; i < 100; i++) {
		void *other = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		off_t at = (i * 41 % 256) * 4096;
		if (pread(fd, pages[i * 617 % PAGES], 4096, at) != 4096 || munmap(other, 4096))
			return 1;
	}
	access("fifth-marker", F_OK);
	return close(fd);
}
