/*
 * Variadic functions, which Rust cannot define. Each has a naked Rust function of the public name that jumps
 * here with its arguments untouched.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

extern int forebay_execve(const char *path, char *const argv[], char *const envp[]);
extern int forebay_execvpe(const char *file, char *const argv[], char *const envp[]);
extern char **environ;

/* Formats and writes through the interposed write. */
int forebay_vdprintf(int fd, const char *format, va_list arguments)
{
	char *text;
	int length = vasprintf(&text, format, arguments);
	if (length < 0)
		return length;
	int done = 0;
	while (done < length) {
		ssize_t written = write(fd, text + done, (size_t)(length - done));
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0) {
			length = -1;
			break;
		}
		done += (int)written;
	}
	free(text);
	return length;
}

int forebay_dprintf(int fd, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int result = forebay_vdprintf(fd, format, arguments);
	va_end(arguments);
	return result;
}

/* The fortified variants have a flag before the format. */
int forebay_vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
	(void)flag;
	return forebay_vdprintf(fd, format, arguments);
}

int forebay_dprintf_chk(int fd, int flag, const char *format, ...)
{
	(void)flag;
	va_list arguments;
	va_start(arguments, format);
	int result = forebay_vdprintf(fd, format, arguments);
	va_end(arguments);
	return result;
}

/* Wide printing and scanning: each ends in its va_list form. */
extern int __vfwprintf_chk(FILE *stream, int flag, const wchar_t *format, va_list arguments);
extern int __vwprintf_chk(int flag, const wchar_t *format, va_list arguments);

#define VARIADIC(name, target, parameters, last, ...)                           \
	int name parameters                                                     \
	{                                                                       \
		va_list arguments;                                              \
		va_start(arguments, last);                                      \
		int result = target(__VA_ARGS__, arguments);                    \
		va_end(arguments);                                              \
		return result;                                                  \
	}

#define FORMAT const wchar_t *format, ...
VARIADIC(forebay_fwprintf, vfwprintf, (FILE *stream, FORMAT), format, stream, format)
VARIADIC(forebay_wprintf, vwprintf, (FORMAT), format, format)
VARIADIC(forebay_fwprintf_chk, __vfwprintf_chk, (FILE *stream, int flag, FORMAT), format, stream, flag, format)
VARIADIC(forebay_wprintf_chk, __vwprintf_chk, (int flag, FORMAT), format, flag, format)

/* The headers rename the plain scanners to those of the C standard in use. */
#define SCANNER(prefix, public)                                                 \
	extern int prefix##stream(FILE *, const wchar_t *, va_list) __asm__(#public "vfwscanf"); \
	extern int prefix##stdin(const wchar_t *, va_list) __asm__(#public "vwscanf"); \
	VARIADIC(prefix##fwscanf, prefix##stream, (FILE *stream, FORMAT), format, stream, format) \
	VARIADIC(prefix##wscanf, prefix##stdin, (FORMAT), format, format)

SCANNER(forebay_, )
SCANNER(forebay_isoc99_, __isoc99_)
SCANNER(forebay_isoc23_, __isoc23_)

/* Collects the arguments of an execl call up to its null pointer. */
#define COLLECT(first)                                                          \
	va_list list, counted;                                                  \
	size_t count = 1;                                                       \
	va_start(list, first);                                                  \
	va_copy(counted, list);                                                 \
	while (va_arg(counted, char *) != NULL)                                 \
		count++;                                                        \
	va_end(counted);                                                        \
	char *argv[count + 1];                                                  \
	argv[0] = (char *)first;                                                \
	for (size_t i = 1; i <= count; i++)                                     \
		argv[i] = va_arg(list, char *)

int forebay_execl(const char *path, const char *argument, ...)
{
	COLLECT(argument);
	va_end(list);
	return forebay_execve(path, argv, environ);
}

int forebay_execlp(const char *file, const char *argument, ...)
{
	COLLECT(argument);
	va_end(list);
	return forebay_execvpe(file, argv, environ);
}

int forebay_execle(const char *path, const char *argument, ...)
{
	COLLECT(argument);
	char **envp = va_arg(list, char **);
	va_end(list);
	return forebay_execve(path, argv, envp);
}
