// Replaces the C library's mmap and munmap, in its code, by functions that end in syscall(), as UCX does.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int mapped, unmapped;

static void *hooked_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    mapped++;
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

static int hooked_munmap(void *at, size_t length) {
    unmapped++;
    return syscall(SYS_munmap, at, length);
}

// mov $to, %rax; jmp *%rax
static void patch(void *libc, const char *name, void *to) {
    unsigned char *code = dlsym(libc, name);
    unsigned char *page = (unsigned char *)((unsigned long)code & ~4095ul);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) {
        perror("mprotect");
        exit(1);
    }
    memcpy(code, "\x48\xb8", 2);
    memcpy(code + 2, &to, 8);
    memcpy(code + 10, "\xff\xe0", 2);
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
}

int main(int argc, char **argv) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    patch(libc, "mmap", hooked_mmap);
    patch(libc, "munmap", hooked_munmap);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (write(fd, "some bytes", 10) != 10) return 1;
    char *file = mmap(NULL, 10, PROT_READ, MAP_PRIVATE, fd, 0);
    char *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, "in memory", 10);
    printf("%.10s, %s, %zd\n", file, memory, pwrite(fd, memory, 9, 100));
    munmap(memory, 1 << 20);
    // Gone: the kernel says so, and so must code that looks at the buffer first.
    printf("%zd\n", pwrite(fd, memory, 9, 50));
    munmap(file, 10);
    printf("%s\n", mapped >= 2 && unmapped >= 2 ? "hooked" : "not hooked");
    return 0;
}
