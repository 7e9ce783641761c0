/* Loads libraries: one that loads another from the folder that it names itself, one that is not
   there, one that is there already. Compiled once as the program, once as the library. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef CALLER
int load(void) {
    void *inner = dlopen("libforebay_test_inner.so", RTLD_NOW);
    if (!inner) return printf("not found: %s\n", dlerror());
    return printf("inner: %d\n", ((int (*)(void))dlsym(inner, "inner"))());
}
#elif defined(INNER)
int inner(void) { return 42; }
#else
static int has(const char *name) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libforebay_test_caller.so", argv[1]);
    void *caller = dlopen(path, RTLD_NOW);
    if (!caller) return printf("%s\n", dlerror()), 1;
    ((int (*)(void))dlsym(caller, "load"))();
    printf("here: %s\n", dlopen("libforebay_test_inner.so", RTLD_NOW) ? "found" : "not found");
    printf("itself: %d\n", dlopen(NULL, RTLD_NOW) != NULL);
    printf("again: %d\n", dlopen(path, RTLD_NOW | RTLD_NOLOAD) == caller);
    printf("none: %d\n", dlopen("/not/there.so", RTLD_NOW) == NULL);
    printf("error: %s\n", dlerror());
    if (argc > 2) {
        printf("before: %d\n", has("libforebay_mpiio"));
        snprintf(path, sizeof path, "%s/libmpi_none.so", argv[1]);
        printf("loaded: %d\n", dlopen(path, RTLD_NOW) != NULL);
        printf("adapter: %d, with large counts: %d\n", has("libforebay_mpiio.so"), has("mpiio_large"));
    }
    return 0;
}
#endif
