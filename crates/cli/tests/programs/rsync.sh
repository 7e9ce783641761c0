# rsync in its ways of writing. Run plainly and buffered; both must print the same.
mkdir -p src/a src/b
for i in $(seq 100); do seq $((i * 300)) > src/a/$i; done; seq 900000 > src/big
truncate -s 9M src/b/holes; printf x | dd of=src/b/holes bs=1 seek=5000000 conv=notrunc status=none
# Equal size in the same second counts as unchanged: what is changed below must not be as new as this.
find src -type f -exec touch -d '2020-02-02 02:02:02' {} +
ln src/big src/hard; ln -s big src/soft
sync_to() { rsync -aH --stats --no-human-readable "$@" | grep -E 'files transferred|Literal data|Matched data'; }

sync_to src/ one/; echo again:; sync_to src/ one/; diff -r src one && echo equal
rsync -aHS src/ two/; diff -r src two && echo equal; sync_to --checksum --inplace src/ two/
# changed in the middle, at the end, and gone
sed -i 's/^77/XX/' src/big; echo end >> src/a/5; rm src/a/6
sync_to --no-whole-file --inplace --delete src/ one/; diff -r src one && echo equal
sync_to --no-whole-file --delete -B 4096 src/ two/; diff -r src two && echo equal
echo more >> src/a/9; sync_to --append src/ one/; cmp src/a/9 one/a/9; sync_to --append-verify src/ one/
sync_to -c --dry-run src/ two/; sync_to -c src/ two/; sync_to -c src/ two/
sync_to --preallocate src/ three/; rsync -a --link-dest=$PWD/three src/ four/; stat -c %h four/a/1
rsync -a --partial --delay-updates --temp-dir=$PWD/four src/ five/; diff -r src five && echo equal
rsync -az --compare-dest=$PWD/three src/ six/; find six -type f | wc -l
rsync -an --itemize-changes src/ one/; md5sum src/big one/big two/big three/big four/big five/big
