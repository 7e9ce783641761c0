"""NumPy, HDF5, netCDF, Zarr and checkpoints as PyTorch writes them: everything is read back."""
import subprocess, sys, time, numpy as np, h5py, netCDF4, zarr, os, pickle, zipfile, io, hashlib, mmap
r = np.random.default_rng(3)
# numpy
a = r.random((700, 900)); np.save("a.npy", a); assert (np.load("a.npy") == a).all()
m = np.load("a.npy", mmap_mode="r"); assert (m[::7, 5] == a[::7, 5]).all()
w = np.load("a.npy", mmap_mode="r+"); w[3] = 7; w.flush(); del w; a[3] = 7; assert (np.load("a.npy") == a).all(); assert (m[3] == 7).all(); del m
c = np.load("a.npy", mmap_mode="c"); c[5] = 1; assert (np.load("a.npy")[5] == a[5]).all(); del c
np.savez("z.npz", a=a, b=np.arange(10)); z = np.load("z.npz"); assert (z["a"] == a).all(); z.close(); np.savez_compressed("zc.npz", a=(a * 9).astype(int)); assert (np.load("zc.npz")["a"] == (a * 9).astype(int)).all()
a.tofile("raw"); assert (np.fromfile("raw").reshape(a.shape) == a).all(); 
with open("raw", "ab") as f: a[:10].tofile(f)
assert (np.fromfile("raw", offset=a.nbytes) == a[:10].ravel()).all(); np.savetxt("t.txt", a[:200, :20]); assert np.allclose(np.loadtxt("t.txt"), a[:200, :20])
M = np.memmap("mm", np.int32, "w+", shape=(2000, 1000)); M[:] = np.arange(2000)[:, None]; M.flush(); assert (np.fromfile("mm", np.int32).reshape(M.shape) == M).all()
with open("mm", "r+b") as f: f.seek(4000); f.write(b"\xff" * 4000)
assert (M[1] == -1).all(); M2 = np.memmap("mm", np.int32, "r+", offset=8000, shape=(10, 1000)); M2[0] = 5; assert (M[2] == 5).all(); del M, M2; np.lib.format.open_memmap("om.npy", "w+", "<f8", (100, 100))[:] = 4; assert np.load("om.npy").sum() == 40000
# hdf5
with h5py.File("h.h5", "w", libver="latest") as f:
    d = f.create_dataset("plain", data=a); e = f.create_dataset("chunks", (1000, 1000), "f4", chunks=(100, 100), compression="gzip", shuffle=True, fletcher32=True); e[::3] = 1.5
    g = f.create_group("g"); g.attrs["x"] = "text"; v = g.create_dataset("grow", (0,), "i8", maxshape=(None,), chunks=(1000,))
    for i in range(50): v.resize((i + 1) * 997, 0); v[i * 997:] = i
    f.flush(); f["s"] = [b"a", b"bc"]; f.create_dataset("vl", (10,), h5py.string_dtype())[:] = "variable"; del f["s"]
with h5py.File("h.h5", "r+") as f:
    assert (f["plain"][()] == a).all() and f["chunks"][()].sum() == 1.5 * 334000 and (f["g/grow"][::997] == np.arange(50)).all(); f["plain"][5] = -1
with h5py.File("h.h5", "r", rdcc_nbytes=1 << 16) as f: assert (f["plain"][5] == -1).all() and f["vl"][3] == b"variable"
with h5py.File("core.h5", "w", driver="core", backing_store=True) as f: f["x"] = a
with h5py.File("fam%d.h5", "w", driver="family", memb_size=1 << 20) as f: f["x"] = a
with h5py.File("fam%d.h5", "r", driver="family", memb_size=1 << 20) as f: assert (f["x"][()] == a).all()
with h5py.File("split.h5", "w", driver="split") as f: f["x"] = a
with h5py.File("page.h5", "w", fs_strategy="page", fs_page_size=16384, page_buf_size=1 << 20) as f: f["x"] = a
with h5py.File("stdio.h5", "w", driver="stdio") as f: f["x"] = a
with h5py.File("stdio.h5", "r", driver="sec2") as f: assert (f["x"][()] == a).all()
fo = open("obj.h5", "w+b"); f = h5py.File(fo, "w"); f["x"] = a; f.close(); fo.close(); assert (h5py.File("obj.h5")["x"][()] == a).all()
reader = """
import h5py, numpy as np, time
while True:
    try: g = h5py.File("swmr.h5", "r", libver="latest", swmr=True); break
    except OSError: time.sleep(.01)
seen = 0
while seen < 3000:
    g["d"].refresh(); n = len(g["d"]); assert n >= seen and (g["d"][:n] == np.arange(n)).all(), n; seen = n; time.sleep(.005)
"""
f = h5py.File("swmr.h5", "w", libver="latest"); d = f.create_dataset("d", (0,), "i4", maxshape=(None,), chunks=(100,)); f.swmr_mode = True
child = subprocess.Popen([sys.executable, "-c", reader])
for i in range(30): d.resize(((i + 1) * 100,)); d[i * 100:] = np.arange(i * 100, i * 100 + 100); d.flush(); time.sleep(.01)
assert child.wait() == 0; f.close()
# netCDF
for kind in ("NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4_CLASSIC"):
    with netCDF4.Dataset(kind + ".nc", "w", format=kind) as n:
        n.createDimension("t", None); n.createDimension("x", 900); v = n.createVariable("v", "f8", ("t", "x")); v.units = "m"
        for i in range(100): v[i] = a[i]
        n.sync()
        n.title = "added later"
    with netCDF4.Dataset(kind + ".nc", "a") as n: n["v"][100:200] = a[100:200]; n["v"][7, 7] = 0
    with netCDF4.Dataset(kind + ".nc") as n: assert (n["v"][50:200] == a[50:200]).all() and n["v"][7, 7] == 0 and n.title == "added later"
# zarr
for form in (2, 3):
    z = zarr.open_array(f"z{form}.zarr", mode="w", shape=(900, 900), chunks=(90, 90), dtype="f8", zarr_format=form); z[:700] = a[:, :900]; z[650:800, ::2] = 3
    z = zarr.open_array(f"z{form}.zarr", mode="r+"); assert (z[:650] == a[:650]).all() and (z[700:800, ::2] == 3).all(); z.resize((950, 900)); z[900:] = 8; assert z[925, 5] == 8
g = zarr.open_group("g.zarr", mode="w"); g.create_array("x", data=a[:100]); g.attrs["k"] = [1, 2]; assert zarr.open_group("g.zarr", mode="r")["x"][5, 5] == a[5, 5]
s = zarr.storage.ZipStore("zip.zarr.zip", mode="w"); zarr.create_array(s, data=a); s.close(); assert (zarr.open_array(zarr.storage.ZipStore("zip.zarr.zip", mode="r"))[:] == a).all()
# checkpoints as PyTorch writes them: a zip of raw tensors, stored, aligned, and a pickle
def checkpoint(name, tensors):
    with zipfile.ZipFile(name + ".tmp", "w", zipfile.ZIP_STORED) as z:
        z.writestr(zipfile.ZipInfo("archive/data.pkl"), pickle.dumps({k: (v.shape, v.dtype.str) for k, v in tensors.items()}))
        for k, v in tensors.items():
            with z.open(zipfile.ZipInfo(f"archive/data/{k}"), "w", force_zip64=True) as f: f.write(v.tobytes())
    with open(name + ".tmp", "rb") as f: os.fsync(f.fileno())
    os.replace(name + ".tmp", name)
for step in range(4):
    t = {f"layer{i}": r.random((200, 300)).astype("f4") for i in range(8)}; checkpoint("model.pt", t)
    with zipfile.ZipFile("model.pt") as z:
        assert z.testzip() is None; shapes = pickle.loads(z.read("archive/data.pkl"))
        for k, v in t.items(): assert (np.frombuffer(z.read(f"archive/data/{k}"), shapes[k][1]).reshape(shapes[k][0]) == v).all()
pickle.dump(t, open("t.pkl", "wb"), protocol=5); assert all((pickle.load(open("t.pkl", "rb"))[k] == t[k]).all() for k in t)
print("all equal")
