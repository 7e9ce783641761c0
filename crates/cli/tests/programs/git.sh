# A repository with 2,000 files and its clones. Run plainly and buffered; both must print the same.
set -e
export GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init -q -b main r; cd r; git config gc.auto 0; git config core.fsync all
python3 - <<'P'
import os
for i in range(2000):
    folder = f"d{i % 40}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/f{i}", "w") as f:
        f.write("".join(f"line {i} {j * i}\n" for j in range(i % 97)))
P
seq 400000 > big
git add .; git commit -qm one; git branch side
for i in 1 2 3; do sed -i "s/^line/row$i/" d$i/*; git commit -qam "change $i"; done
git checkout -q side; seq 300000 > big; git rm -rq d5; git commit -qam side
git checkout -q main; git merge -q --no-edit side; git log --oneline | wc -l; git status --short
git gc -q --prune=now; git fsck --full --no-progress; git repack -adfq; git fsck --full --no-progress
git count-objects -v | grep -v size
cd ..; git clone -q r c; git clone -q --no-hardlinks --bare r b.git
cd c; git rev-parse HEAD; git checkout -q HEAD~2; git checkout -q main; git diff HEAD~1 --stat | tail -1
echo more >> big; git stash -q; git status --short; git stash pop -q; git diff --stat | tail -1
git push -q ../b.git main:pushed; git archive --format=tar HEAD | sha256sum; git grep -c row1 | wc -l
git worktree add -q ../w side; (cd ../w; git status --short; git rev-parse HEAD)
git bundle create -q ../bundle --all; git bundle verify -q ../bundle 2>&1
cd ..; git -C b.git fsck --full --no-progress; rm -rf r/.git c/.git b.git w/.git bundle
