# One database in each journal mode. Run plainly and buffered; both must print the same.
for mode in delete truncate persist wal memory; do
    for sync in full normal; do
        sqlite3 $mode-$sync.db <<S
pragma journal_mode = $mode; pragma synchronous = $sync; pragma cache_size = 100;
create table t(a integer primary key, b text, c blob); create index i on t(b);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 8000)
insert into t select x, 'text ' || (x * 7919 % 10007), zeroblob(x % 300) from n;
begin; update t set b = b || 'u' where a % 5 = 0; delete from t where a % 7 = 0; savepoint s; delete from t; rollback to s; commit;
begin; delete from t; rollback; pragma integrity_check; select count(*), sum(length(b)), sum(length(c)) from t;
S
        sqlite3 $mode-$sync.db "vacuum; pragma integrity_check; select count(*) from t; pragma wal_checkpoint(truncate);"
    done
done
sqlite3 wal-full.db "pragma mmap_size = 100000000; update t set b = 'mapped' || a; select count(*), min(b), max(b) from t; pragma integrity_check"
sqlite3 delete-full.db ".backup copy.db" ".dump" | md5sum
sqlite3 copy.db "pragma integrity_check" "select count(*) from t"
sqlite3 delete-full.db .dump | sqlite3 again.db; sqlite3 again.db .dump | md5sum
sqlite3 copy.db "attach 'again.db' as z; create table z.u as select * from main.t; select count(*) from z.u; detach z;"
