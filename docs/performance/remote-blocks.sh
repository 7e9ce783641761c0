#!/usr/bin/env bash
# How long a program waits for a block that another node has in memory: two nodes as namespaces, on
# one emulated store. Needs root, ip, unshare, nsenter, python3.
#
#   docs/performance/remote-blocks.sh path/to/forebay
#
# Prints, for blocks of 256 KiB and of 4 KiB (files of that size), the median and the tenth
# percentile of one read that misses, in microseconds, and the load of the machine. A block of a
# large file is one read; a small file is read after it was opened.
set -eu
forebay=$(realpath "${1:?which forebay}")
root=$(mktemp -d /tmp/fb-remote-XXXXXX)
nodes=()
cleanup() {
    : > "$root/end"
    for _ in $(seq 100); do
        [ -z "$(jobs -pr)" ] && break
        sleep 0.1
    done
    for pid in "${nodes[@]}"; do kill -9 "$pid" 2> /dev/null || :; done
    wait 2> /dev/null || :
    rm -rf "$root"
}
trap cleanup EXIT
mkdir "$root/store"
head -c 33554432 /dev/urandom > "$root/store/large"
for n in $(seq 128); do head -c 4096 /dev/urandom > "$root/store/s$n"; done
printf '127.0.0.1 localhost\n10.9.0.1 n0\n10.9.0.2 n1\n' > "$root/hosts"

for n in 0 1; do
    mkdir -m 700 "$root/run$n"
    cat > "$root/node$n.toml" << EOF
[flush]
trigger = "on-exit"
[placement]
prefetch = false
[[backing]]
path = "$root/store"
emulate = { bandwidth = "64MB/s", latency = "4ms", shared = "$root/device" }
[[tier]]
name = "ram"
kind = "ram"
capacity = "128MiB"
[group]
hosts = "n[0-1]"
consistency = "strict"
folder = "$root/group"
EOF
    unshare -m -n -u -p --fork --kill-child --mount-proc bash -c "
        mount -t tmpfs tmpfs /dev/shm; mount --bind '$root/hosts' /etc/hosts
        hostname n$n; ip link set lo up; : > '$root/made$n'; exec sleep 1000" &
    nodes+=($!)
done
while [ ! -e "$root/made0" ] || [ ! -e "$root/made1" ]; do sleep 0.05; done
inside() { pgrep -P "${nodes[$1]}" | head -1; }
on() { nsenter --target="$(inside "$1")" -m -n -u -p env -C "$root/store" FOREBAY_RUNTIME_DIR="$root/run$1" "${@:2}"; }
ip link add fbr0 netns "$(inside 0)" type veth peer name fbr1 netns "$(inside 1)"
for n in 0 1; do on "$n" bash -c "ip addr add 10.9.0.$((n + 1))/24 dev fbr$n && ip link set fbr$n up"; done

cat > "$root/reader.py" << 'EOF'
import os, sys, time
root, role = sys.argv[1:]
def wait(name):
    while not os.path.exists(f"{root}/{name}"):
        time.sleep(0.05)
def reads():
    large, small = [], []
    fd = os.open("large", os.O_RDONLY)
    for block in range(128):
        began = time.perf_counter_ns()
        os.pread(fd, 1 << 18, block << 18)
        large.append(time.perf_counter_ns() - began)
    for n in range(1, 129):
        fd = os.open(f"s{n}", os.O_RDONLY)
        began = time.perf_counter_ns()
        os.pread(fd, 4096, 0)
        small.append(time.perf_counter_ns() - began)
        os.close(fd)
    return large, small
open(f"{root}/up{role}", "w").close()
wait("whole")
if role == "0":
    reads()
    open(f"{root}/had", "w").close()
    wait("end")
else:
    wait("had")
    for what, times in zip(("256 KiB", "4 KiB"), reads()):
        times.sort()
        print(f"{what}: p50 {times[64] / 1e3:.0f} us, p10 {times[12] / 1e3:.0f} us")
EOF
on 0 "$forebay" run --config "$root/node0.toml" -- python3 "$root/reader.py" "$root" 0 &
on 1 "$forebay" run --config "$root/node1.toml" -- python3 "$root/reader.py" "$root" 1 &
reader=$!
while [ ! -e "$root/up0" ] || [ ! -e "$root/up1" ]; do sleep 0.05; done
until on 0 "$forebay" status | grep -q "link     up" && on 1 "$forebay" status | grep -q "link     up"; do sleep 0.2; done
: > "$root/whole"
while [ ! -e "$root/had" ]; do sleep 0.1; done
while kill -0 "$reader" 2> /dev/null && [ ! -e "$root/over" ]; do
    sleep 0.1
    on 1 "$forebay" status 2> /dev/null | grep "    blocks" > "$root/blocks.new" && mv "$root/blocks.new" "$root/blocks" || :
done
wait "$reader"
cat "$root/blocks" 2> /dev/null || :
uptime
