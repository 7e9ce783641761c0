# PostgreSQL: a bank under load, killed, recovered, checked. Run as a user that is not root.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
mkdir -p $OUT/sockets; log=$OUT/postgres.log
$bin/initdb -D db -U t --no-locale -E UTF8 -k > $log 2>&1 || { tail $log; exit 1; }
cat >> db/postgresql.conf <<C
listen_addresses = ''
unix_socket_directories = '$OUT/sockets'
shared_buffers = 2MB
max_wal_size = 32MB
min_wal_size = 32MB
C
start() {
    $bin/postgres -D db >> $log 2>&1 &
    server=$!
    for i in $(seq 300); do $bin/pg_isready -q -h $OUT/sockets && break; sleep 0.1; done
}
sql() { $bin/psql -h $OUT/sockets -U t -X -qAt "$@"; }
bench() { $bin/pgbench -h $OUT/sockets -U t "$@" >> $log 2>&1; }
balanced="select sum(abalance) = (select sum(bbalance) from pgbench_branches), sum(abalance) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts"
start
sql -d postgres -c "create database b"; bench -i -s 1 b; bench -c 4 -j 2 -t 150 b; echo $?; sql b -c "$balanced"
sql b -c "create table big as select i, md5(i::text) m from generate_series(1, 40000) i" -c "create index on big(m)" -c "vacuum full big" -c "checkpoint"
sql b -c "create database c template b strategy file_copy"
bench -c 4 -T 60 b & sleep 1.5; kill -9 $server; wait 2> /dev/null
# its children go when they notice
while ls -l /proc/[0-9]*/cwd 2> /dev/null | grep -q "$PWD/db$"; do sleep 0.1; done
rm -f db/postmaster.pid
start
sql b -c "$balanced" -c "select count(*), max(m) from big" -c "create extension amcheck"
sql b -c "select count(bt_index_check(c.oid, true)) from pg_class c join pg_index i on i.indexrelid = c.oid where relkind = 'i' and relname ~ '^(pgbench|big)'"
sql c -c "select count(*), max(m) from big"
kill -INT $server; wait $server; echo stopped: $?
$bin/pg_controldata db | grep state; $bin/pg_checksums --check -D db | grep -i 'bad checksums'
