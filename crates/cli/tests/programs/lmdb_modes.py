import lmdb, os, sys, subprocess, dbm.dumb, shelve, sqlite3
for kw in ({}, {"writemap": True}, {"sync": False, "map_async": True, "writemap": True}, {"subdir": False}, {"metasync": False}):
    name = "l-" + "-".join(kw); env = lmdb.open(name, map_size=32 << 20, **kw)
    for r in range(10):
        with env.begin(write=True) as t:
            for i in range(500): t.put(b"%d" % (i * 7919 % 5003), os.urandom(0) + b"v%d" % (r * i) * 20)
            if r % 3 == 2: [t.delete(b"%d" % i) for i in range(0, 5003, 5)]
    try:
        with env.begin(write=True) as t: t.put(b"x", b"y"); raise KeyError
    except KeyError: pass
    child = "import lmdb, sys; e = lmdb.open(sys.argv[1], subdir=sys.argv[2] == '1', map_size=32 << 20)\nwith e.begin() as t: print(t.stat()['entries'], t.get(b'x'), sum(len(v) for k, v in t.cursor()))\nwith e.begin(write=True) as t: t.put(b'child', b'here')"
    subprocess.run([sys.executable, "-c", child, name, "01"["subdir" not in kw]], check=True)
    with env.begin() as t: print(t.get(b"child"), t.stat()["entries"])
    env.sync(True); 
    if "subdir" not in kw: os.mkdir(name + "-copy"); env.copy(name + "-copy", compact=True); print(os.path.getsize(name + "-copy/data.mdb"))
    env.close()
