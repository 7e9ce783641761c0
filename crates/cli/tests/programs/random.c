/*
 * Random operations on one file by several processes, one at a time: random SEED STEPS WORKERS FILE
 * Prints every result, so that two runs with one seed must print the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 3 << 20, PIECE = 700000 };
enum { PWRITE, PREAD, WRITE, READ, APPEND, TRUNCATE, SIZE, SYNC, REOPEN, TRUNC_OPEN, MAP, ALLOCATE,
       COPY, KINDS };
static const char *const names[] = { "pwrite", "pread", "write", "read", "append", "truncate",
	"size", "sync", "reopen", "open-trunc", "map", "allocate", "copy" };
/* How often each is chosen. */
static const int weights[] = { 30, 25, 10, 10, 5, 6, 6, 1, 3, 1, 1, 1, 2 };

struct step { int kind; uint32_t offset, bytes, fill; };
struct answer { int64_t result; int error; uint64_t sum; };

static uint64_t state;
static uint32_t random_below(uint32_t limit)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (state >> 11) % limit;
}

static unsigned char data[PIECE];

static uint64_t sum(const unsigned char *bytes, int64_t count)
{
	uint64_t hash = 1469598103934665603u;
	for (int64_t i = 0; i < count; i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	return hash;
}

static struct answer act(struct step step, const char *file, int *fd, int appending)
{
	struct answer answer = { 0, 0, 0 };
	struct stat found;
	for (uint32_t i = 0; i < step.bytes; i++)
		data[i] = step.fill + i * 7 + (i >> 8);
	errno = 0;
	switch (step.kind) {
	case PWRITE: answer.result = pwrite(*fd, data, step.bytes, step.offset); break;
	case PREAD: answer.result = pread(*fd, data, step.bytes, step.offset); break;
	case WRITE:
		lseek(*fd, step.offset, SEEK_SET);
		answer.result = write(*fd, data, step.bytes);
		break;
	case READ: answer.result = read(*fd, data, step.bytes); break;
	case APPEND: answer.result = write(appending, data, step.bytes / 8); break;
	case TRUNCATE: answer.result = ftruncate(*fd, step.offset); break;
	case SIZE: answer.result = fstat(*fd, &found) == 0 ? found.st_size : -1; break;
	case SYNC: answer.result = fsync(*fd); break;
	case REOPEN:
		close(*fd);
		*fd = open(file, O_RDWR);
		break;
	case TRUNC_OPEN:
		close(*fd);
		*fd = open(file, O_RDWR | O_TRUNC);
		break;
	case MAP: {
		fstat(*fd, &found);
		unsigned char *map = found.st_size == 0 ? MAP_FAILED :
			mmap(NULL, found.st_size, PROT_READ, MAP_PRIVATE, *fd, 0);
		if (map != MAP_FAILED) {
			answer.sum = sum(map, found.st_size);
			munmap(map, found.st_size);
		}
		break;
	}
	case ALLOCATE: answer.result = posix_fallocate(*fd, step.offset, step.bytes + 1); break;
	case COPY: {
		loff_t from = step.offset, to = MOST + step.bytes % 100000;
		answer.result = copy_file_range(*fd, &from, *fd, &to, step.bytes % 50000, 0);
		break;
	}
	}
	answer.error = answer.result < 0 ? errno : 0;
	if ((step.kind == PREAD || step.kind == READ) && answer.result > 0)
		answer.sum = sum(data, answer.result);
	return answer;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
	int steps = atoi(argv[2]), workers = atoi(argv[3]);
	int to[64], from[64];
	close(open(argv[4], O_RDWR | O_CREAT, 0644));
	for (int w = 0; w < workers; w++) {
		int down[2], up[2];
		if (pipe(down) || pipe(up))
			return 3;
		if (fork() == 0) {
			close(down[1]);
			for (int other = 0; other < w; other++)
				close(to[other]);
			int fd = open(argv[4], O_RDWR), appending = open(argv[4], O_WRONLY | O_APPEND);
			struct step step;
			while (read(down[0], &step, sizeof step) == sizeof step) {
				struct answer answer = act(step, argv[4], &fd, appending);
				if (write(up[1], &answer, sizeof answer) != sizeof answer)
					_exit(3);
			}
			_exit(0);
		}
		close(down[0]);
		close(up[1]);
		to[w] = down[1], from[w] = up[0];
	}
	for (int n = 0; n < steps; n++) {
		struct step step = { 0, random_below(MOST), 0, random_below(256) };
		int choice = random_below(101);
		while ((choice -= weights[step.kind]) >= 0 && step.kind < KINDS - 1)
			step.kind++;
		/* Small ones, page-sized ones, large ones; often at the end of a page or a bucket. */
		uint32_t most[] = { 64, 4096, 9000, 70000, PIECE };
		step.bytes = random_below(most[random_below(5)]);
		if (random_below(4) == 0)
			step.offset = step.offset / 4096 * 4096;
		if (random_below(8) == 0)
			step.offset = step.offset / 262144 * 262144;
		int worker = random_below(workers);
		struct answer answer;
		if (write(to[worker], &step, sizeof step) != sizeof step ||
		    read(from[worker], &answer, sizeof answer) != sizeof answer) {
			printf("%d: worker %d is gone\n", n, worker);
			return 1;
		}
		printf("%d: worker %d %s offset %u bytes %u: %lld %s %llx\n", n, worker,
		       names[step.kind], step.offset, step.bytes, (long long)answer.result,
		       strerror(answer.error), (unsigned long long)answer.sum);
	}
	for (int w = 0; w < workers; w++)
		close(to[w]);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	printf("ended %d\n", failed);
	return 0;
}
