"""MPI-IO of a shared file, each rank its own part: independent, and collective through a view. Run under mpiexec."""
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD; me, n = comm.rank, comm.size
f = MPI.File.Open(comm, "small", MPI.MODE_RDWR | MPI.MODE_CREATE)
for i in range(20): f.Write_at((i * n + me) * 1000, np.full(1000, i + me, np.uint8))
tile = MPI.BYTE.Create_vector(20, 1000, 1000 * n).Create_resized(0, 20 * 1000 * n).Commit()
f.Set_view(me * 1000, MPI.BYTE, tile)
back = np.empty(20000, np.uint8); f.Read_all(back)
assert (back == np.repeat(np.arange(20) + me, 1000)).all(), me
f.Write_all(back + 1); f.Close()
comm.Barrier()
if me == 0: print("all right with", n)
