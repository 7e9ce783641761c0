/*
 * Writes records in scattered order, and reports each that is written on stdout by the number of
 * the write. It writes all of them once, and goes on with other content until ENOUGH exists:
 * reporter FILE RECORDS BYTES PAUSE_US ENOUGH
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	uint64_t records = strtoull(argv[2], NULL, 10), bytes = strtoull(argv[3], NULL, 10);
	unsigned char *record = malloc(bytes);
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	dprintf(1, "pid %d\n", getpid());
	for (uint64_t n = 0; n < records || access(argv[5], F_OK) != 0; n++) {
		uint64_t number = n * 7919 % records, content = number + n / records + 1;
		for (uint64_t i = 0; i < bytes; i++)
			record[i] = content * 31 + i * 13 + (i >> 7);
		for (uint64_t done = 0; done < bytes;) {
			ssize_t put = pwrite(fd, record + done, bytes - done, number * bytes + done);
			if (put <= 0) {
				perror("pwrite");
				return 1;
			}
			done += put;
		}
		dprintf(1, "%llu\n", (unsigned long long)n);
		usleep(atoi(argv[4]));
	}
	return close(fd);
}
