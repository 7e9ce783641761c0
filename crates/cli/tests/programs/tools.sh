# The tools of every day, on files larger than the tiers. Run plainly and buffered; both must print the same.
seq 900000 > source

# cp: modes, holes, reflinks that cannot be
cp -a source a; cp --sparse=always source b; cp --reflink=auto source c; cp -u source a
cp --reflink=always source c2 2> /dev/null; echo $?; rm -f c2
cmp a b && cmp b c && echo same

# dd: in place, sparse, appending, synced, direct, exclusive
dd if=source of=d bs=64k conv=fsync status=none
dd if=/dev/zero of=d bs=1k seek=100 count=50 conv=notrunc,fdatasync status=none
dd if=/dev/zero bs=1M count=3 status=none | cat source - source | dd of=e conv=sparse bs=4k status=none
dd if=source of=f oflag=append conv=notrunc bs=7777 status=none
dd if=source of=f oflag=append conv=notrunc bs=32k status=none
dd if=source of=g oflag=direct bs=1M status=none
dd if=g of=h iflag=direct oflag=sync bs=512k status=none
dd if=source of=i oflag=dsync bs=1M iflag=fullblock,skip_bytes,count_bytes skip=12345 count=3333333 status=none
dd if=source of=j conv=excl bs=1M status=none; dd if=source of=j conv=excl bs=1M status=none 2>&1
stat -c '%n %s' d e f g h i j

# sort with temporary files on the same directory
mkdir tmp
sort -R --random-source=source source > shuffled
sort -n -S 1M -T tmp shuffled > sorted; cmp sorted source && echo sorted
sort -S 1M -T tmp -u --parallel=2 shuffled source | wc
sort -o shuffled -S 1M -T tmp shuffled; sort -m shuffled shuffled | uniq -d | wc -l

# editing in place
sed -i 's/7/seven/g; 1000,2000d' a; sed -i.bak -e '$d' b; sed -s -n '5p;$p' a b b.bak
perl -i -pe 's/1/one/' c
awk '{ print > ("awk" $1 % 5) }' source; wc -l awk*
awk -v OFS=, '{ $1 = $1 * 2 } 1' source > doubled; paste -d: source doubled | md5sum
head -1000 source > p; cp p q; diff -u --label p --label q p <(head -1000 a) > p.diff
patch -s q p.diff; cmp q <(head -1000 a); patch -sR q p.diff; cmp p q; patch -b -s p p.diff; ls p*

# names
ln source hard; ln -s source soft; ln -f b hard2; stat -c '%h %s' hard hard2
echo tail >> hard; tail -1 source; cmp soft hard
install -m 640 -D source in/s/t/alled; stat -c '%a %s' in/s/t/alled
truncate -s 3M t; truncate -s +100 t; truncate -s -1M t; truncate -s %4096 t; truncate -r source t2; stat -c %s t t2
truncate -s 1000 source; wc -c hard source; tac source | head -3

# in pieces, and put together
split -n 7 sorted n.; cat n.* | cmp - sorted
split -l 100000 --filter='gzip -n > $FILE.gz' sorted l.; zcat l.*.gz | cmp - sorted
csplit -s sorted 1000 '{3}'; wc -l xx*
cat n.aa n.ab > n.all; tac n.ab | md5sum; tee x1 x2 x3 < sorted | wc

# searched and summed
find . -type f -size +1M | sort; find . -name 'n.*' -newer hard | sort
find . -type f -print0 | sort -z | xargs -0 md5sum > $OUT/sums; md5sum --quiet -c $OUT/sums && echo verified
grep -rc 4242 . | sort; grep -rl seven . | sort
sha512sum sorted; cksum sorted; od -An -c -j 100 -N 40 sorted; cut -c2- sorted | md5sum; base64 sorted | base64 -d | cmp - sorted
nl sorted | tail -1; fold -w 3 sorted | tail -1; shuf --random-source=sorted -n 3 sorted; tr 0-9 a-j < sorted | tail -1

# moved, overwritten, gone
mv n.aa moved; mkdir md; mv -t md n.ab n.ac; mv md md2; mv -n moved source; mv --backup source moved; ls
shred -u -n 2 xx00; ls xx00 2> /dev/null; rm -r md2 tmp; mkfifo pipe; cat pipe > got & echo through > pipe; wait; cat got; rm pipe
