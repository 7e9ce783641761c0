/* Which of Forebay's libraries this process has, and behind a bar those of a child. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const char *look = "grep -o 'libforebay_[a-z_]*' /proc/%d/maps | sort -u | tr '\\n' ' '";
    char command[200];
    snprintf(command, sizeof command, look, (int)getpid());
    fflush(stdout);
    system(command);
    system("echo '|'; grep -o 'libforebay_[a-z_]*' /proc/self/maps | sort -u | tr '\\n' ' '; echo $LD_PRELOAD");
    MPI_Finalize();
    return 0;
}
