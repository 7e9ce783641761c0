/* Passes a descriptor to a program: passing FILE [RECEIVER] */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void pass(int socket, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(socket, &message, 0) != 1)
		perror("sendmsg");
}

static int receive(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	int fd = -1;
	if (recvmsg(socket, &message, 0) != 1)
		perror("recvmsg");
	else
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

int main(int count, char **words)
{
	if (!strcmp(words[1], "receive")) {
		char text[100] = "";
		int fd = receive(9);
		struct stat found;
		fstat(fd, &found);
		printf("size %lld, offset %lld\n", (long long)found.st_size,
		       (long long)lseek(fd, 0, SEEK_CUR));
		printf("%zd %zd %s\n", write(fd, "received\n", 9), pread(fd, text, 99, 0), text);
		return 0;
	}
	const char *receiver = count > 2 ? words[2] : words[0];
	int ends[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	int fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	write(fd, "sent\n", 5);
	fflush(stdout);
	if (fork() == 0) {
		dup2(ends[1], 9);
		close(fd);
		execl(receiver, receiver, "receive", (char *)NULL);
		_exit(9);
	}
	/* Not before the receiver is what it will be. */
	usleep(300000);
	pass(ends[0], fd);
	wait(NULL);
	printf("offset %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
	write(fd, "back\n", 5);
	return 0;
}
