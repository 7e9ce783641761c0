"""MPI-IO on shared files: independent, collective, shared pointers, sizes, atomicity. Run under mpiexec."""
from mpi4py import MPI
import numpy as np, sys
comm = MPI.COMM_WORLD; me, n = comm.rank, comm.size
rng = np.random.default_rng(me)
def check(ok, what):
    assert ok, (me, what)
def opened(name, mode=MPI.MODE_RDWR | MPI.MODE_CREATE):
    return MPI.File.Open(comm, name, mode)
# independent, at explicit offsets, a block each in turn
N, B = 40, 30011
f = opened("at")
for i in range(N): f.Write_at((i * n + me) * B, np.full(B, (i + me) % 251, np.uint8))
f.Sync(); comm.Barrier(); f.Sync()
b = np.empty(B, np.uint8)
for i in range(N):
    other = (me + 1) % n; f.Read_at((i * n + other) * B, b); check((b == (i + other) % 251).all(), i)
check(f.Get_size() == N * n * B, "size"); f.Close()
# collective, interleaved by a view
f = opened("view"); t = MPI.INT.Create_vector(50, 100, 100 * n).Create_resized(0, 4 * 100 * n * 50).Commit()
f.Set_view(me * 400, MPI.INT, t)
data = (np.arange(50 * 100 * 20, dtype=np.int32) * n + me)
f.Write_all(data); f.Seek(0); back = np.empty_like(data); f.Read_all(back); check((back == data).all(), "view"); f.Close()
f = opened("at_all"); d = np.full(700001, me + 1, np.uint8)
f.Write_at_all(me * d.size, d); b = np.empty_like(d); f.Read_at_all(((me + 1) % n) * d.size, b); check((b == (me + 1) % n + 1).all(), "at_all")
r = f.Iwrite_at(me * d.size + 5, np.full(1000, 99, np.uint8)); r.Wait(); r = f.Iread_at(me * d.size, b[:2000]); r.Wait(); check((b[5:1005] == 99).all(), "iread")
f.Write_at_all_begin(me * d.size, d); f.Write_at_all_end(d)
comm.Barrier(); f.Set_size(500000); comm.Barrier(); check(f.Get_size() == 500000, "set_size"); f.Preallocate(900000); check(f.Get_size() == 900000, "prealloc"); comm.Barrier()
f.Set_atomicity(True); check(f.Get_atomicity(), "atomic"); f.Write_at(me * 1000, np.full(1000, me, np.uint8)); comm.Barrier(); f.Read_at(((me + 1) % n) * 1000, b[:1000]); check((b[:1000] == (me + 1) % n).all(), "atomic read"); f.Set_atomicity(False); f.Close()
# shared pointer: every record whole, in any order
f = opened("shared")
for i in range(60): f.Write_shared(np.full(997, me * 60 + i, np.int64))
comm.Barrier(); f.Sync(); comm.Barrier()
whole = np.fromfile("shared", np.int64).reshape(-1, 997); check(len(whole) == 60 * n and (whole == whole[:, :1]).all() and sorted(whole[:, 0]) == list(range(60 * n)), "shared"); f.Close()
f = opened("ordered"); f.Write_ordered(np.full(1000 + me, me, np.uint8)); f.Seek_shared(0); b = np.empty(1000 + me, np.uint8); f.Read_ordered(b); check((b == me).all(), "ordered"); f.Close()
# individual pointers, append, delete on close, data representation
f = opened("seek"); f.Seek(me * 100); f.Write(b"x" * 100); check(f.Get_position() == me * 100 + 100, "position"); f.Close()
f = MPI.File.Open(comm, "append", MPI.MODE_WRONLY | MPI.MODE_CREATE | MPI.MODE_APPEND); 
if me == 0: f.Write(b"first")
f.Close()
f = opened("gone", MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_DELETE_ON_CLOSE); f.Write_at_all(me * 10, b"0123456789"); f.Close()
comm.Barrier()
if me == 0: print("all right with", n)
