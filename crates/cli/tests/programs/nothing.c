/* A program that does nothing; with a path, it opens that and closes it. */
#include <fcntl.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count > 1)
		close(open(arguments[1], O_RDONLY));
	return 0;
}
