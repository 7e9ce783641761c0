/* Connects to a socket and sends a greeting of 32 bytes. Prints how far it came. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char packet[32] = {3, 0, 2, 0};
    int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc < 2) return 2;
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    if (connect(socket_fd, (struct sockaddr *)&address, sizeof address)) {
        puts("not connected");
        return 0;
    }
    if (send(socket_fd, packet, sizeof packet, MSG_NOSIGNAL) < 0) {
        puts("cut off");
        return 0;
    }
    puts(read(socket_fd, packet, sizeof packet) > 0 ? "answered" : "cut off");
    return 0;
}
