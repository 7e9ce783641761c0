for k in pwrite64 pread64 write64 read64 fwrite64 fread64 pwrite4096 pread4096 open; do
 for n in 1000 3000; do
  valgrind --tool=callgrind --callgrind-out-file=/tmp/hot-c/cg.$k.$n ./calls /dev/shm/hot-store/c $k $n 2>&1 | grep Collected | sed "s/.*: //" > n.$n
 done
 echo $k $(( ($(cat n.3000) - $(cat n.1000)) / 2000 ))
done
