/* glibc's asynchronous I/O: aio FILE */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char buffers[64][9000];
static struct aiocb blocks[64];
static sem_t done;

static void result(const char *what, int got)
{
	printf("%s: %d %s\n", what, got, got < 0 ? strerror(errno) : "");
}

static struct aiocb *request(int number, int fd, off_t offset, size_t bytes)
{
	struct aiocb *block = &blocks[number];
	memset(block, 0, sizeof *block);
	block->aio_fildes = fd;
	block->aio_offset = offset;
	block->aio_buf = buffers[number];
	block->aio_nbytes = bytes;
	block->aio_sigevent.sigev_notify = SIGEV_NONE;
	return block;
}

static void finish(const char *what, struct aiocb *block)
{
	const struct aiocb *list[] = { NULL, block };
	while (aio_error(block) == EINPROGRESS)
		aio_suspend(list, 2, NULL);
	int error = aio_error(block);
	printf("%s: error %s, result %zd\n", what, error ? strerror(error) : "none",
	       aio_return(block));
}

static volatile int signals, code, value;

static void on_signal(int number, siginfo_t *info, void *context)
{
	code = info->si_code;
	value = info->si_value.sival_int;
	signals++;
}

static void in_thread(union sigval given)
{
	value = given.sival_int;
	sem_post(&done);
}

int main(int count, char **words)
{
	const char *name = words[1];
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	struct aiocb *block;
	/* Writes in any order, then reads of them. */
	for (int i = 0; i < 64; i++) {
		memset(buffers[i], 'A' + i % 26, sizeof buffers[i]);
		if (aio_write(request(i, fd, (63 - i) * 9000, 9000)) != 0)
			result("aio_write", -1);
	}
	for (int i = 0; i < 64; i++) {
		const struct aiocb *list[] = { &blocks[i] };
		while (aio_error(&blocks[i]) == EINPROGRESS)
			aio_suspend(list, 1, NULL);
		if (aio_return(&blocks[i]) != 9000)
			printf("short write\n");
	}
	struct stat found;
	fstat(fd, &found);
	printf("size %lld\n", (long long)found.st_size);
	for (int i = 0; i < 64; i++) {
		memset(buffers[i], 0, sizeof buffers[i]);
		aio_read(request(i, fd, i * 9000, 9000));
	}
	for (int i = 0; i < 64; i++) {
		while (aio_error(&blocks[i]) == EINPROGRESS)
			usleep(100);
		if (aio_return(&blocks[i]) != 9000 || buffers[i][0] != 'A' + (63 - i) % 26 ||
		    memcmp(buffers[i], buffers[i] + 1, 8999))
			printf("wrong bytes in %d\n", i);
	}
	/* At the end, across it, behind it. */
	aio_read(block = request(0, fd, 64 * 9000 - 10, 9000));
	finish("across the end", block);
	aio_read(block = request(0, fd, 1 << 30, 9000));
	finish("behind the end", block);
	/* What is wrong with a request. */
	block = request(0, fd, -5, 100);
	result("negative offset", aio_read(block));
	finish("negative offset", block);
	block = request(0, fd, 0, 100);
	block->aio_reqprio = -1;
	result("negative priority", aio_read(block));
	printf("%d %zd\n", aio_error(block), aio_return(block));
	block = request(0, fd, 0, 4096);
	block->aio_buf = (void *)16;
	result("bad buffer", aio_write(block));
	finish("bad buffer", block);
	int reading = open(name, O_RDONLY);
	block = request(0, reading, 0, 100);
	result("write to a reader", aio_write(block));
	finish("write to a reader", block);
	block = request(0, reading, 0, 0);
	result("sync of a reader", aio_fsync(O_SYNC, block));
	result("unknown sync", aio_fsync(O_RDWR, request(0, fd, 0, 0)));
	result("bad descriptor", aio_fsync(O_SYNC, request(0, 999, 0, 0)));
	/* Syncs. */
	aio_fsync(O_SYNC, block = request(0, fd, 0, 0));
	finish("sync", block);
	aio_fsync(O_DSYNC, block = request(0, fd, 0, 0));
	finish("data sync", block);
	printf("cancel: %d\n", aio_cancel(fd, block) == AIO_ALLDONE);
	/* Appending. */
	int appending = open(name, O_WRONLY | O_APPEND);
	memset(buffers[1], 'z', 9000);
	aio_write(block = request(1, appending, 3, 500));
	finish("append", block);
	fstat(fd, &found);
	printf("size %lld\n", (long long)found.st_size);
	/* A signal when it is done. */
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	sigaction(SIGRTMIN + 1, &action, NULL);
	block = request(2, fd, 100, 200);
	block->aio_sigevent.sigev_notify = SIGEV_SIGNAL;
	block->aio_sigevent.sigev_signo = SIGRTMIN + 1;
	block->aio_sigevent.sigev_value.sival_int = 42;
	aio_write(block);
	for (int i = 0; i < 5000 && !signals; i++)
		usleep(1000);
	finish("with a signal", block);
	printf("signals %d, code is SI_ASYNCIO: %d, value %d\n", signals, code == SI_ASYNCIO, value);
	/* A function in a thread. */
	sem_init(&done, 0, 0);
	block = request(3, fd, 300, 200);
	block->aio_sigevent.sigev_notify = SIGEV_THREAD;
	block->aio_sigevent.sigev_notify_function = in_thread;
	block->aio_sigevent.sigev_value.sival_int = 43;
	aio_write(block);
	sem_wait(&done);
	finish("with a thread", block);
	printf("value %d\n", value);
	/* Lists: a pipe, nothing, and a request that fails among them. */
	int ends[2];
	pipe(ends);
	write(ends[1], "from the pipe", 13);
	struct aiocb *list[6] = { request(4, fd, 0, 9000), NULL, request(5, fd, 9000, 9000),
				  request(6, ends[0], 0, 13), request(7, fd, 0, 9000),
				  request(8, reading, 0, 9000) };
	list[0]->aio_lio_opcode = LIO_WRITE;
	list[2]->aio_lio_opcode = LIO_READ;
	list[3]->aio_lio_opcode = LIO_READ;
	list[4]->aio_lio_opcode = LIO_NOP;
	list[5]->aio_lio_opcode = LIO_READ;
	result("list", lio_listio(LIO_WAIT, list, 6, NULL));
	for (int i = 0; i < 6; i++)
		if (i != 1 && i != 3 && i != 4)
			finish("of the list", list[i]);
	list[2] = request(9, reading, 0, 10);
	list[2]->aio_lio_opcode = LIO_WRITE;
	list[3] = NULL;
	result("list that fails", lio_listio(LIO_WAIT, list, 6, NULL));
	finish("the one that failed", list[2]);
	list[2]->aio_lio_opcode = LIO_READ;
	signals = 0;
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1,
				  .sigev_value.sival_int = 44 };
	result("list without waiting", lio_listio(LIO_NOWAIT, list, 6, &event));
	for (int i = 0; i < 5000 && !signals; i++)
		usleep(1000);
	printf("signals %d, value %d\n", signals, value);
	event.sigev_notify = SIGEV_THREAD;
	event.sigev_notify_function = in_thread;
	event.sigev_value.sival_int = 45;
	result("list with a thread", lio_listio(LIO_NOWAIT, list, 6, &event));
	sem_wait(&done);
	printf("value %d\n", value);
	result("unknown mode", lio_listio(7, list, 6, NULL));
	return 0;
}
