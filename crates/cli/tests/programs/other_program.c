/* Uses an MPI library that nobody knows. */
#include <stdio.h>

int MPI_Init(int *, char ***), MPI_Finalize(void);
int MPI_File_open(long, const char *, int, long, void **), MPI_File_close(void **);
int MPI_File_write_at(void *, long, const void *, int, long, void *);
int MPI_File_write_at_all(void *, long, const void *, int, long, void *);
int MPI_File_set_view(void *, long, long, long, const char *, long);

int main(int argc, char **argv) {
    void *file = NULL;
    char text[1000] = "some text";
    int failed = MPI_Init(&argc, &argv) | MPI_File_open(1, argv[1], 5, 2, &file);
    failed |= MPI_File_set_view(file, 0, 3, 4, "native", 2);
    for (int call = 0; call < 10; call++) {
        failed |= MPI_File_write_at(file, call * 2000L, text, sizeof text, 3, NULL);
        failed |= MPI_File_write_at_all(file, call * 2000L + 1000, text, sizeof text, 3, NULL);
    }
    failed |= MPI_File_close(&file) | MPI_Finalize();
    printf("%s\n", failed || file ? "failed" : "done");
    return failed;
}
