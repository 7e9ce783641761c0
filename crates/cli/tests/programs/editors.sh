# How editors save: in place, by a backup, by a temporary file that is synced and renamed.
seq 200000 > text; cp text t2; cp text t3
if command -v ed > /dev/null; then
    printf '1,$s/7/seven/\n500,600d\nw\n$r t2\nw t4\nq\n' | ed -s text; wc text t4
fi
if command -v vim > /dev/null; then
    vim -u NONE -i NONE -es -N +'%s/1/one/g' +'set nobackup writebackup backupcopy=no' +w +'norm ggdd' +w +q t2
    vim -u NONE -i NONE -es -N +'set backup backupcopy=yes backupext=.bak' +'%s/5/five/g' +w +'1,100d' +'set fsync' +'w!' +q t3
    ls; wc t?
fi
python3 - <<'P'
import os
for i in range(30):
    text = f"version {i}\n" * (i * 1000)
    with open("doc.tmp", "w") as f:
        f.write(text); f.flush(); os.fsync(f.fileno())
    os.rename("doc.tmp", "doc")
    folder = os.open(".", os.O_RDONLY); os.fsync(folder); os.close(folder)
    assert open("doc").read() == text and os.path.getsize("doc") == len(text)
    os.rename("doc", "doc~")
    with open("doc", "w") as f: f.write("short")
    os.replace("doc~", "doc"); os.link("doc", f"doc.{i}")
    with open("doc", "r+") as f: f.truncate(10 * i)
print(os.stat("doc").st_nlink, os.path.getsize("doc.29"))
P
md5sum *
