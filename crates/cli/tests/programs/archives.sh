# Trees of files packed and unpacked. Run plainly and buffered; both must print the same.
python3 - <<'P'
import os, random
r = random.Random(5)
for i in range(600):
    folder = f"tree/{i % 13}/{i % 7}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/f{i}", "wb") as f:
        f.write(r.randbytes(r.choice((0, 10, 4095, 4096, 9000, 30000))))
    os.utime(f"{folder}/f{i}", (1e9, 1e9 + i))
for i in range(12):
    with open(f"tree/sparse{i}", "wb") as f:
        f.seek(i * 100000); f.write(b"island" * 1000); f.seek(1 << 22); f.write(b"end"); f.truncate(5 << 20)
    os.utime(f"tree/sparse{i}", (1e9, 1e9))
os.symlink("3/3", "tree/link"); os.link("tree/1/1/f1", "tree/hard"); os.chmod("tree/2/2/f2", 0o755)
P
(cd tree; find . -type f -print0 | sort -z | xargs -0 sha256sum) > sums; sha256sum sums
equal() { (cd $1; sha256sum --quiet -c $OLDPWD/sums && echo $1 is equal); }
pack="tar --sort=name --owner=0 --group=0 --numeric-owner"

$pack -cf a.tar tree; mkdir x; tar -xpf a.tar -C x; equal x/tree; tar -df a.tar -C x && echo no differences
$pack --sparse -cf s.tar tree; mkdir y; tar -xpf s.tar -C y; equal y/tree; tar --compare -f s.tar -C y
diff -r --no-dereference x y; tar -tf a.tar | sha256sum
tar -rf a.tar sums; tar -uf a.tar sums; tar --delete -f a.tar tree/3; tar -tf a.tar | wc -l
for by in gzip bzip2 xz zstd; do
    command -v $by > /dev/null || continue
    $pack -c tree/1 tree/2 | $by -c > $by.tz; $by -q -t $by.tz; $by -dc $by.tz | tar -t | wc -l
    cp sums packed; $by -q packed; rm -f packed; $by -q -d packed.*; cmp packed sums && echo $by and back; rm packed*
done
if command -v zip > /dev/null && command -v unzip > /dev/null; then
    zip -qr -X a.zip tree; unzip -tq a.zip; mkdir z; unzip -q a.zip -d z; equal z/tree
    zip -q -u a.zip sums; zip -q -d a.zip 'tree/1/*'; unzip -l a.zip | tail -1 | awk '{ print $2 }'
fi
cp -a tree copied; mv copied moved; equal moved; find moved -type f -newermt 2001-09-09T01:50 | wc -l
stat -c '%n %s %Y %a %h' moved/1/1/f1 x/tree/2/2/f2 y/tree/sparse3
rm -rf *.tar *.tz a.zip z x
