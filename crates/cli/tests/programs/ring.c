/* Sets up a ring as a program does whose I/O cannot be seen, and then reads a file: ring FILE. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char parameters[128] = {0}, bytes[100];
    if (argc != 2) return 2;
    /* Whether the kernel allows it makes no difference. */
    syscall(SYS_io_uring_setup, 1, parameters);
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0) return errno == ENFILE ? 3 : 1;
    long got = read(fd, bytes, sizeof bytes);
    return got < 0 || write(1, bytes, got) != got;
}
