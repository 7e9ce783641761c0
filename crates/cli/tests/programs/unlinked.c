/* Statically linked, so that Forebay is not in it: says its words on stdout, or copies FILE there. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char bytes[4096];
	ssize_t got;
	if (argc > 2 && strcmp(argv[1], "-f") == 0) {
		int fd = open(argv[2], O_RDONLY);
		while ((got = read(fd, bytes, sizeof bytes)) > 0)
			if (write(1, bytes, got) != got)
				return 1;
		return got < 0;
	}
	for (int i = 1; i < argc; i++)
		if (write(1, argv[i], strlen(argv[i])) < 0 || write(1, "\n", 1) < 0)
			return 1;
	return 0;
}
