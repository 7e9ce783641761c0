//! Ordinary tools and scripts leave the same files, output and exit status as without Forebay.

use crate::harness::{LAZY, SLOW_STORE, SMALL, Site, TINY, USUAL, have, skip, works};

/// A file of `mib` pseudo-random megabytes, the same every time.
fn seeded(site: &Site, name: &str, mib: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(mib << 20);
    while bytes.len() < mib << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    for folder in [&site.store, &site.plain] {
        std::fs::write(folder.join(name), &bytes).unwrap();
    }
}

#[test]
fn dd_writes_reads_and_patches() {
    let site = Site::new(&SLOW_STORE);
    seeded(&site, "source", 24);
    let status = site.same(
        "dd if=source of=copy bs=1M status=none
         dd if=copy of=odd bs=77777 status=none
         dd if=source of=copy bs=4K seek=100 skip=300 count=50 conv=notrunc status=none
         dd if=odd of=tail bs=1000 skip=20000 status=none
         dd if=source of=appended bs=64K count=10 oflag=append conv=notrunc status=none
         dd if=source of=appended bs=64K count=10 oflag=append conv=notrunc status=none
         dd if=/dev/zero of=sparse bs=1 count=1 seek=50M status=none
         dd if=source of=synced bs=1M count=3 oflag=sync status=none
         dd if=source of=fsynced bs=1M count=3 conv=fsync status=none
         dd if=source of=direct bs=1M count=3 oflag=direct status=none
         dd if=source of=cut bs=1M count=5 status=none; dd of=cut bs=1M count=0 seek=2 status=none
         cmp copy odd; cmp -n 409600 copy odd && echo same head; wc -c copy odd tail sparse cut
         dd if=copy bs=5000 skip=1 count=3 status=none | od -An -tx1 | head -3",
    );
    assert!(status.count("write_bytes") > 48 << 20, "{}", status.text);
    assert!(status.count("reads") > 0, "{}", status.text);
}

#[test]
fn cp_cat_and_checksums() {
    let site = Site::new(&SLOW_STORE);
    seeded(&site, "source", 16);
    site.same(
        "mkdir -p a/b; cp source a/one; cp -p source a/b/two; cp -r a c; cp --sparse=always a/one holes
         cat source a/one > both; cat both | cat - source > three; tac < a/one | tac > tactac; cat three | tail -c 1000 >> three
         ln a/one hard; ln -s a/one soft; cp soft followed; cp -P soft unfollowed; mv a/b/two moved
         install -m 755 source installed; head -c 100000 hard | tee t1 t2 > t3
         sha256sum source a/one c/b/two both three hard soft t1 t2 t3 | tee sums; sha256sum --quiet -c sums && echo verified
         sort -R --random-source=source sums | sort > sorted; split -b 5M both part-; cat part-* | cmp - both && rm part-*
         du -b both three; find . -type f -size +10M | sort; find . -type f -newer source -name t1 -empty; wc -c * | tail -1",
    );
}

#[test]
fn tar_packs_and_unpacks() {
    let site = Site::new(&SLOW_STORE);
    seeded(&site, "source", 4);
    site.same(
        "mkdir tree; for i in $(seq 150); do mkdir -p tree/$((i % 7)); head -c $((i * 313)) source > tree/$((i % 7))/$i; done
         ln -s 3 tree/link; chmod 640 tree/1/1
         tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=2001-02-03 -cf all.tar tree && mkdir out && tar -xf all.tar -C out
         diff -r tree out/tree && echo same; tar -tf all.tar | wc -l; tar --mtime=2001-02-03 -czf all.tgz tree; tar -xzOf all.tgz | sha256sum; rm all.tgz
         tar --mtime=2001-02-03 -rf all.tar source; tar -tf all.tar | tail -1",
    );
    for name in ["out/tree/2/100", "out/tree/1/1", "out/tree/0/147"] {
        let (got, wanted) = site.mtimes(name);
        assert_eq!(got, wanted, "{name}: tar set its time");
    }
}

#[test]
fn a_shell_script_redirects_pipes_and_appends() {
    let site = Site::new(&SLOW_STORE);
    site.same(
        r#"set -e
        echo first > log; echo second >> log; { echo third; echo fourth >&2; } >> log 2>&1
        cat <<END > here
a here document with $((6 * 7))
END
        cat < here | tr a-z A-Z | tee upper | wc -c
        while read -r word rest; do echo "$rest $word"; done < log > turned
        for i in $(seq 300); do echo "line $i"; done > loop; for i in $(seq 40); do echo "again $i" >> loop; done
        exec 3> three 4<> four; echo to three >&3; echo to four >&4; (echo from a subshell >&3); exec 3>&- 4>&-
        exec 5< loop; read -r a <&5; read -r b <&5; echo "$a, $b" > two-lines; head -n 2 <&5 >> two-lines; exec 5<&-
        sed -i 's/line/LINE/' loop; grep -c LINE loop; awk '{ s += $2 } END { print s > "sum" }' loop; cat sum
        printf '%s\n' c a b | sort -o sorted; sort sorted | diff - sorted && echo sorted
        ( echo one & echo two & wait ) | sort > background
        : > empty; > empty2; echo x > empty; truncate -s 0 empty; truncate -s 100K grown; test -s empty || echo is empty
        [ -e loop ] && [ loop -nt here ] ; stat -c '%n %s' *; read -r -d '' text < log || true; echo "$text"
        set -o noclobber; echo no > log 2> /dev/null || echo refused; echo yes >| log; mapfile -t all < loop; echo ${#all[@]}
        echo 'echo a script of our own; exit 3' > script; chmod +x script; bash script || echo status $?
        diff <(sort loop) <(sort loop) && echo equal; yes | head -n 100000 > yes; tail -n 1 yes; wc -l < yes"#,
    );
}

#[test]
fn python_reads_and_writes_in_every_way() {
    if !works(&["python3", "--version"]) {
        return skip("no python3");
    }
    let site = Site::new(&SLOW_STORE);
    let script = r#"
import os, mmap, shutil, tempfile, subprocess, sys, json, sqlite3, zipfile
with open("text", "w") as f:
    for i in range(30000): f.write(f"line {i}\n")
    print(f.tell())
with open("text") as f:
    print(sum(len(line) for line in f)); f.seek(1000); print(repr(f.readline()), f.tell())
with open("raw", "wb", buffering=0) as f:
    for i in range(3000): f.write(bytes([i % 251]) * (i % 777))
    print(f.tell(), os.fstat(f.fileno()).st_size, os.stat("raw").st_size)
with open("raw", "r+b") as f:
    f.seek(12345); f.write(b"patched"); f.seek(-5, 2); f.write(b"tail!"); f.seek(12340); print(f.read(20)); f.truncate(900000); print(f.seek(0, 2))
with open("raw", "r+b") as f: f.truncate(1000000)
print(os.path.getsize("raw"), open("raw", "rb").read()[899990:900010])
fd = os.open("positional", os.O_RDWR | os.O_CREAT)
print(os.pwrite(fd, b"x" * 5000, 70000), os.pread(fd, 10, 69995), os.pwritev(fd, [b"abc", b"defg"], 3), os.preadv(fd, [bytearray(4), bytearray(6)], 1))
print(os.write(fd, b"head"), os.lseek(fd, 0, os.SEEK_CUR), os.lseek(fd, 0, os.SEEK_END), os.fstat(fd).st_size)
os.ftruncate(fd, 72000); os.fsync(fd); os.fdatasync(fd); os.posix_fallocate(fd, 0, 80000); print(os.fstat(fd).st_size)
src = os.open("text", os.O_RDONLY)
out = os.open("sent", os.O_RDWR | os.O_CREAT)
print(os.sendfile(out, src, 100, 200000), os.sendfile(out, src, None, 50), os.lseek(src, 0, 1))
print(os.copy_file_range(src, out, 30000, 10, 250000), os.fstat(out).st_size)
os.close(out)
pipe = os.pipe(); os.write(pipe[1], b"through a pipe"); print(os.splice(pipe[0], fd, 14, offset_dst=500)); print(os.pread(fd, 14, 500))
with open("mapped", "w+b") as f:
    f.write(b"m" * 300000); f.flush()
    with mmap.mmap(f.fileno(), 0) as m:
        print(m[:5], m.find(b"x")); m[1000:1005] = b"INMAP"; m.flush()
        f.seek(1000); print(f.read(5)); f.seek(2000); f.write(b"WRITE"); f.flush(); print(m[2000:2005])
with open("mapped", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m: print(m[1000:1005], m[2000:2005], len(m))
with open("appended", "ab") as f, open("appended", "ab") as g:
    for i in range(200): f.write(b"f%d\n" % i); f.flush(); g.write(b"g%d\n" % i); g.flush()
    print(f.tell())
shutil.copy2("text", "copied"); shutil.copyfile("raw", "copied2"); os.rename("copied", "renamed"); os.link("raw", "linked")
with tempfile.TemporaryFile(dir=".") as f: f.write(b"gone"); f.seek(0); print(f.read())
print(subprocess.run(["wc", "-c"], stdin=open("raw"), capture_output=True, text=True).stdout)
with open("child", "w") as f: subprocess.run(["echo", "by a child"], stdout=f); f.write("by python\n")
with open("child") as f: print(f.read())
pid = os.fork()
if pid == 0:
    print(os.read(src, 10), flush=True); os._exit(0)
os.waitpid(pid, 0); print(os.read(src, 10))
json.dump({"a": list(range(1000))}, open("json", "w")); print(len(json.load(open("json"))["a"]))
with zipfile.ZipFile("z.zip", "w") as z: z.writestr(zipfile.ZipInfo("a"), "b" * 100000)
print(zipfile.ZipFile("z.zip").testzip(), zipfile.ZipFile("z.zip").read("a")[:5])
db = sqlite3.connect("data.db"); db.execute("create table t(a, b)"); db.executemany("insert into t values(?, ?)", [(i, "v%d" % i) for i in range(5000)]); db.commit()
db.execute("update t set b = 'u' where a % 3 = 0"); db.commit(); print(db.execute("select count(*), sum(length(b)) from t").fetchone()); db.close()
db = sqlite3.connect("data.db"); print(db.execute("pragma integrity_check").fetchone(), db.execute("select sum(a) from t").fetchone()); db.close()
try: open("text/none")
except OSError as e: print(e.strerror)
try: os.write(os.open("text", os.O_RDONLY), b"x")
except OSError as e: print(e.strerror)
sys.stdout.flush()
sys.stderr.write("to stderr\n")
"#;
    for folder in [&site.store, &site.plain] {
        std::fs::write(folder.join("script.py"), script).unwrap();
    }
    site.same("python3 -B script.py; mkdir again; cp script.py again; cd again; python3 -B -u script.py > printed 2>&1; tail -n 3 printed");
}

#[test]
fn sizes_and_times_are_right_while_files_are_dirty() {
    let site = Site::new(&LAZY);
    let status = site.same(
        "head -c 300000 /dev/zero > a; stat -c %s a; ls -l a | cut -d' ' -f5; wc -c < a; du --apparent-size -b a
         find . -name a -size 300000c; test -s a && echo not empty; head -c 5000 /dev/zero >> a; stat -Lc %s a
         now=$(date +%s); then=$(stat -c %Y a); [ $((now - then)) -le 2 ] && [ $((now - then)) -ge -1 ] && echo fresh
         touch -d '2003-04-05 06:07:08.123456789' a; stat -c '%Y %y' a; echo more >> a; [ $(stat -c %Y a) -gt 1600000000 ] && echo newer
         echo old > b; touch -d '1999-01-02 03:04:05.5' b; cp -p b c; stat -c %Y b c; cp -p a d; touch -r b e; ls -l --time-style=+%s b c e | cut -d' ' -f5-6
         echo x > newer; [ newer -nt b ] && echo is newer; touch -d '1999-01-02 03:04:06.5' newer; tar -cf t.tar b; rm b; tar -xf t.tar; stat -c %y b; rm t.tar a d
         echo now > f; mv f g; touch -d '2010-10-10 10:10:10' g; cat g; stat -c '%s %Y' g; python3 -c 'import os; os.utime(\"g\", ns=(5, 1234567890123456789)); print(os.stat(\"g\").st_mtime_ns)'",
    );
    assert!(status.text.contains("  ahead  "), "nothing was dirty: {}", status.text);
    for name in ["b", "c", "e", "g", "newer"] {
        let (got, wanted) = site.mtimes(name);
        assert_eq!(got, wanted, "time of {name} after the drain");
    }
}

/// git refuses a merge when the files' times change between two looks.
#[test]
fn a_flush_does_not_show_in_the_time_of_change() {
    Site::new(&SMALL).same(
        "for i in $(seq 500); do echo $i > f$i; stat -c '%n %.9Y %.9Z' f$i >> before; done; sync f*
         seq 400000 > other; cp other more; cat other more > most; sleep 1
         for i in $(seq 500); do stat -c '%n %.9Y %.9Z' f$i; done > after; cmp before after && echo same; rm before after",
    );
}

#[test]
fn sparse_files_read_as_zeros() {
    let site = Site::new(&LAZY);
    site.same(
        "truncate -s 40M holes; printf middle | dd of=holes bs=1 seek=20000000 conv=notrunc status=none
         printf end | dd of=holes bs=1 seek=70000001 conv=notrunc status=none; sha256sum holes; stat -c %s holes
         dd if=holes bs=1 skip=19999990 count=30 status=none | od -c; cp --sparse=always holes copy; cp --sparse=never holes copy2; cmp holes copy && cmp copy copy2 && echo same
         python3 -c 'import os; f = os.open(\"holes\", os.O_RDWR); print(os.lseek(f, 0, os.SEEK_END), len(os.read(f, 5))); os.lseek(f, 10 << 30, 0); print(os.write(f, b\"far\"), os.fstat(f).st_size); os.ftruncate(f, 30 << 20); print(os.pread(f, 10, (30 << 20) - 4))'",
    );
}

#[test]
fn a_program_just_written_is_executed() {
    let site = Site::new(&LAZY);
    let compiler = works(&["cc", "--version"]);
    if !compiler {
        skip("no cc: only copied programs and scripts are executed");
    }
    let script = r#"cp /bin/ls mine; ./mine -d .; cat /bin/echo > mine2; chmod +x mine2; ./mine2 hello
        printf '#!/bin/sh\necho script "$@"\n' > s; chmod +x s; ./s a b; printf 'echo changed\n' >> s; ./s; sh ./s; . ./s"#;
    let building = r#"
        for i in 1 2 3; do echo "int f$i(void) { return $i; }" > f$i.c; cc -c f$i.c; done; ar rcD libf.a f1.o f2.o f3.o
        echo 'int puts(const char *); int f1(void), f2(void), f3(void); int main(void) { puts("linked"); return f1() + f2() + f3(); }' > m.c
        cc m.c -L. -lf -o m; ./m; echo $?; cc -shared -fPIC f1.c -o libg.so; echo 'int f1(void); int main(void) { return f1() + 40; }' > n.c
        cc n.c -L. -lg -Wl,-rpath,. -o n; ./n; echo $?; rm -f *.o libf.a"#;
    site.same(&if compiler { format!("{script}{building}") } else { script.to_owned() });
}

#[test]
fn many_small_files_come_and_go() {
    let site = Site::new(&USUAL);
    site.same(
        "for i in $(seq 400); do echo $i > f$i; done; cat f* | sort -n | sha256sum; for i in $(seq 1 3 400); do rm f$i; done
         for i in $(seq 2 3 400); do mv f$i g$i; done; for i in $(seq 1 3 400); do echo again $i > f$i; done; ls | wc -l
         mkdir d; mv g* d; rm -r d; mkdir d; cp f* d; cat d/* | wc -c; rm -rf d; find . -type f | wc -l",
    );
}

#[test]
fn more_files_than_the_table_holds() {
    let site = Site::new(&TINY);
    site.same(
        "mkdir d; cd d; for i in {1..5000}; do echo $i > $i; done; cat {1..5000} | sha256sum; for i in {1..5000..7}; do echo more >> $i; done
         cat {1..5000} | sha256sum; exec 5> five 6>> six; echo x >&5; echo y >&6; cat five six",
    );
}

#[test]
fn git_makes_and_clones_a_repository() {
    if !works(&["git", "--version"]) {
        return skip("no git");
    }
    let site = Site::new(&LAZY);
    site.same(
        "export GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000' GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
         git init -q -b main r; cd r; for i in $(seq 60); do seq $((i * 20)) > $i; done; git add .; git commit -qm one; seq 99 > 1; git commit -qam two
         git log --oneline; git gc -q; git fsck --no-progress; git status --short; cd ..; git clone -q r c; cd c; git rev-parse HEAD; git diff HEAD~1 --stat | tail -1
         cd ..; rm -rf r/.git c/.git",
    );
}

#[test]
fn every_days_tools_on_files_larger_than_the_tiers() {
    if have(&["python3", "perl", "patch"]) {
        let status = Site::new(&SMALL).same("bash $SCRIPTS/tools.sh");
        assert!(status.count("writes") > 5_000, "{}", status.text);
    }
}

#[test]
fn archives_of_a_large_tree() {
    if have(&["python3", "tar", "gzip"]) {
        let status = Site::new(&SMALL).same("bash $SCRIPTS/archives.sh");
        assert!(status.count("writes") > 5_000, "{}", status.text);
    }
}

#[test]
fn rsync_in_its_ways_of_writing() {
    if have(&["rsync"]) {
        Site::new(&SMALL).same("bash $SCRIPTS/rsync.sh");
    }
}

#[test]
fn editors_save() {
    if have(&["python3"]) {
        Site::new(&SMALL).same("bash $SCRIPTS/editors.sh");
    }
}

#[test]
fn git_keeps_two_thousand_files() {
    if have(&["git", "python3"]) {
        let status = Site::new(&SMALL).same("bash $SCRIPTS/git.sh");
        assert!(status.count("opens") > 5_000, "{}", status.text);
    }
}

#[test]
fn a_c_project_is_built_and_run() {
    if have(&["python3", "make", "gcc", "g++", "strip"]) {
        Site::new(&SMALL).same("bash $SCRIPTS/build.sh");
    }
}

#[test]
fn a_program_that_was_synced_and_closed_could_not_be_executed() {
    if have(&["python3"]) {
        // The node manager still had it open for writing.
        Site::new(&LAZY).same(
            "python3 - <<'P'
import os, shutil, subprocess
for turn in range(100):
    with open('program', 'wb') as f:
        f.write(open('/bin/true', 'rb').read()); f.flush(); os.fsync(f.fileno())
    os.chmod('program', 0o755)
    subprocess.run(['./program'], check=True)
P",
        );
    }
}
