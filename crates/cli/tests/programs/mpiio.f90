! MPI-IO from Fortran, by mpif.h: a view with holes, written and read back.
program views
    implicit none
    include 'mpif.h'
    integer, parameter :: pieces = 16, ints = 256
    integer :: me, ranks, error, f, tile, i, status(MPI_STATUS_SIZE), counted
    integer :: given(pieces * ints), back(pieces * ints)
    integer(kind=MPI_OFFSET_KIND) :: start
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, me, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    do i = 1, pieces * ints
        given(i) = me * 100000 + i
    end do
    call MPI_Type_vector(pieces, ints, ints * ranks, MPI_INTEGER, tile, error)
    call MPI_Type_commit(tile, error)
    call MPI_File_open(MPI_COMM_WORLD, 'fortran   ', MPI_MODE_RDWR + MPI_MODE_CREATE, MPI_INFO_NULL, f, error)
    if (error /= MPI_SUCCESS) stop 1
    start = me * ints * 4
    call MPI_File_set_view(f, start, MPI_INTEGER, tile, 'native', MPI_INFO_NULL, error)
    call MPI_File_write_all(f, given, pieces * ints, MPI_INTEGER, status, error)
    call MPI_Get_count(status, MPI_INTEGER, counted, error)
    if (counted /= pieces * ints) stop 2
    call MPI_File_sync(f, error)
    call MPI_Barrier(MPI_COMM_WORLD, error)
    start = 0
    call MPI_File_read_at(f, start, back, pieces * ints, MPI_INTEGER, status, error)
    if (any(back /= given)) stop 3
    call MPI_File_close(f, error)
    if (f /= MPI_FILE_NULL) stop 4
    call MPI_Finalize(error)
    if (me == 0) print *, 'all right'
end program
