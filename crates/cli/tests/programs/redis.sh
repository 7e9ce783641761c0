# Redis with an append-only file: rewritten, synced at each command, killed, loaded again.
start() {
    redis-server --port 0 --unixsocket $OUT/redis.sock --dir $PWD --appendonly yes --save '' --enable-debug-command local > /dev/null &
    server=$!
    for i in $(seq 300); do [ "$(say ping 2> /dev/null)" = PONG ] && break; sleep 0.1; done
}
say() { redis-cli -s $OUT/redis.sock "$@"; }
start
awk 'BEGIN { for (i = 0; i < 30000; i++) { printf "set key:%d %0*d\r\n", i, i % 200 + 1, i; if (i % 3 == 0) printf "append key:%d more\r\n", i } }' |
    say --pipe | tail -1
say bgrewriteaof > /dev/null; say config set appendfsync always
for i in $(seq 50); do say incr counter > /dev/null; done
while say info persistence | grep -q 'aof_rewrite_in_progress:1'; do sleep 0.1; done
say save; say dbsize; say debug digest
kill -9 $server; wait $server 2> /dev/null
redis-check-aof appendonlydir/*.manifest | tail -1; redis-check-rdb dump.rdb | grep -o 'looks OK'
start
say dbsize; say get counter; say strlen key:29999; say debug digest
say shutdown nosave; wait $server; rm -r appendonlydir dump.rdb
