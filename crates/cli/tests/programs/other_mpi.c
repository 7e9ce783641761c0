/* An MPI library that nobody knows: some functions, none of which another one can ask. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { int fd; } *File;

int MPI_Init(int *count, char ***words) { return 0; }
int MPI_Finalize(void) { return 0; }

int MPI_File_open(long communicator, const char *name, int mode, long info, File *file) {
    *file = malloc(sizeof **file);
    (*file)->fd = open(name, O_RDWR | O_CREAT, 0644);
    return (*file)->fd < 0;
}

int MPI_File_write_at(File file, long offset, const void *data, int count, long type, void *status) {
    return pwrite(file->fd, data, count, offset) != count;
}

int MPI_File_write_at_all(File file, long offset, const void *data, int count, long type, void *status) {
    return MPI_File_write_at(file, offset, data, count, type, status);
}

int MPI_File_set_view(File file, long at, long unit, long tile, const char *as, long info) { return 0; }

int MPI_File_close(File *file) {
    int result = close((*file)->fd);
    free(*file);
    *file = NULL;
    return result;
}
