/* Writes the same pages of a file over and over, each time with the next number, until a file is there:
 * rewriting PATH NUMBER END. The number that is in PATH at least comes to NUMBER. */
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static uint64_t pages[3 * 512];
    if (argc != 4) return 2;
    int file = open(argv[1], O_RDWR | O_CREAT, 0644), told = open(argv[2], O_RDWR | O_CREAT, 0644);
    for (uint64_t number = 1; access(argv[3], F_OK); number++) {
        for (int at = 0; at < 3 * 512; at++) pages[at] = number;
        for (int again = 0; again < 200; again++)
            if (pwrite(file, pages, sizeof pages, 0) != sizeof pages) return 1;
        if (pwrite(told, &number, sizeof number, 0) != sizeof number) return 1;
    }
    return 0;
}
