/*
 * Errors of a bad interposer, made between the program and Forebay: preloaded before its library,
 * with the name of the error in FAULT. The fuzzer has to notice each.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int is(const char *name)
{
	const char *fault = getenv("FAULT");
	return fault && strcmp(fault, name) == 0;
}

/* Once in `times` calls. */
static int now(unsigned times)
{
	static unsigned calls;
	return __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % times == 0;
}

/* Only regular files in a managed directory are treated badly. */
static int managed(int fd)
{
	char link[64], path[4096] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/store/");
}

#define REAL(result, name, ...) \
	static result (*real_##name)(__VA_ARGS__); \
	if (!real_##name) \
		real_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *from, size_t bytes)
{
	REAL(ssize_t, write, int, const void *, size_t);
	if (is("a write in 40 is dropped") && managed(fd) && now(40))
		return bytes;
	return real_write(fd, from, bytes);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
	REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	if (is("a write in 40 is dropped") && managed(fd) && now(40))
		return bytes;
	if (is("a write in 20 is torn") && bytes > 4096 && managed(fd) && now(20)) {
		ssize_t done = real_pwrite(fd, from, bytes / 2, offset);
		return done < 0 ? done : (ssize_t)bytes;
	}
	return real_pwrite(fd, from, bytes, offset);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
	REAL(ssize_t, pread, int, void *, size_t, off_t);
	ssize_t got = real_pread(fd, to, bytes, offset);
	if (is("a read in 40 has a page of zeros") && got > 0 && managed(fd) && now(40))
		memset(to, 0, got < 4096 ? got : 4096);
	return got;
}

int fstat(int fd, struct stat *to)
{
	static off_t last;
	REAL(int, fstat, int, struct stat *);
	int result = real_fstat(fd, to);
	if (result == 0 && is("a size in 10 is that of before") && S_ISREG(to->st_mode) && managed(fd)) {
		off_t size = to->st_size;
		if (now(10))
			to->st_size = last;
		last = size;
	}
	return result;
}

int open(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	REAL(int, open, const char *, int, ...);
	if (path > (const char *)4096 && path[0] != '/') {
		if (is("O_APPEND is lost"))
			flags &= ~O_APPEND;
		if (is("O_TRUNC is lost"))
			flags &= ~O_TRUNC;
		if (is("O_EXCL is lost"))
			flags &= ~O_EXCL;
	}
	return real_open(path, flags, mode);
}

int dup(int fd)
{
	REAL(int, dup, int);
	if (is("dup has an offset of its own") && managed(fd)) {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		int other = open(path, fcntl(fd, F_GETFL) & ~(O_CREAT | O_EXCL | O_TRUNC));
		if (other >= 0)
			return other;
	}
	return real_dup(fd);
}

int ftruncate(int fd, off_t size)
{
	struct stat stat;
	REAL(int, ftruncate, int, off_t);
	if (is("a cut in 3 is not done") && managed(fd) && fstat(fd, &stat) == 0 && stat.st_size > size && now(3))
		return 0;
	return real_ftruncate(fd, size);
}

int flock(int fd, int how)
{
	REAL(int, flock, int, int);
	int result = real_flock(fd, how);
	return is("locks are always granted") && managed(fd) ? 0 : result;
}

int futimens(int fd, const struct timespec times[2])
{
	REAL(int, futimens, int, const struct timespec *);
	return is("times are not set") && managed(fd) ? 0 : real_futimens(fd, times);
}

int rename(const char *from, const char *to)
{
	REAL(int, rename, const char *, const char *);
	int result = real_rename(from, to);
	if (result == 0 && is("a rename keeps the old name") && to[0] != '/')
		link(to, from);
	return result;
}

size_t fwrite(const void *from, size_t size, size_t count, FILE *stream)
{
	REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
	if (is("an fwrite in 5 is lost") && managed(fileno(stream)) && now(5))
		return count;
	return real_fwrite(from, size, count, stream);
}
