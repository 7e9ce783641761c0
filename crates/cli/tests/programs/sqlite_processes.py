"""Processes that write to one SQLite database and others that read it; then writers that are killed."""
import os, random, signal, sqlite3, subprocess, sys, time

path, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
WRITERS = 3


def opened(**options):
    return sqlite3.connect(path, timeout=60, isolation_level=None, **options)


def write(me):
    db, r = opened(), random.Random(me)
    db.execute("pragma synchronous = " + ("full" if me % 2 else "normal"))
    db.execute("pragma cache_size = 20")
    for i in range(count):
        db.execute("begin immediate")
        assert db.execute("select sum(v) from account").fetchone() == (0,)
        moved = r.randrange(50)
        db.execute("update account set v = v + ? where id = ?", (moved, r.randrange(100)))
        db.execute("update account set v = v - ? where id = ?", (moved, r.randrange(100)))
        db.execute("insert into log values (?, ?, ?)", (me, i, "p" * r.randrange(5000)))
        db.execute("commit")


def read():
    db, last = opened(), 0
    while last < WRITERS * count:
        db.execute("begin")
        total, = db.execute("select sum(v) from account").fetchone()
        lines, = db.execute("select count(*) from log").fetchone()
        db.execute("commit")
        assert total == 0 and lines >= last, (total, lines, last)
        last = lines
        time.sleep(0.01)


def die():
    db = opened()
    db.execute("pragma cache_size = 5")
    db.execute("begin immediate")
    db.execute("update log set pad = 'torn' || pad")
    db.execute("update account set v = 1")
    db.execute("insert into log select who + 10, i, pad from log")
    os.kill(os.getpid(), signal.SIGKILL)


if len(sys.argv) > 4:
    {"write": lambda: write(int(sys.argv[5])), "read": read, "die": die}[sys.argv[4]]()
    sys.exit()

db = opened()
print(db.execute(f"pragma journal_mode = {mode}").fetchone())
db.execute("create table account(id integer primary key, v int)")
db.execute("create table log(who, i, pad)")
db.executemany("insert into account values (?, 0)", [(i,) for i in range(100)])
db.close()
start = lambda *words: subprocess.Popen([sys.executable, *sys.argv, *words])
running = [start("write", str(me)) for me in range(1, WRITERS + 1)] + [start("read") for _ in range(2)]
print([process.wait() for process in running])
for turn in range(3):
    print(start("die").wait())
    db = opened()
    print(db.execute("pragma integrity_check").fetchone())
    print(db.execute("select who, count(*), sum(length(pad)) from log group by who").fetchall())
    print(db.execute("select sum(v) from account").fetchone())
    db.execute("insert into log values (99, ?, 'after')", (turn,))
    db.close()
