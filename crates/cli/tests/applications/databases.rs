//! Databases: several processes on one file, transactions, writers that are killed.

use crate::harness::{SMALL, Site, have, python_with, skip, works};

#[test]
fn sqlite_in_each_journal_mode() {
    if have(&["sqlite3"]) {
        let status = Site::new(&SMALL).same("bash $SCRIPTS/sqlite.sh");
        assert!(status.count("writes") > 5_000, "{}", status.text);
    }
}

/// Processes that write and read one database; then one that is killed in a transaction.
fn sqlite_processes(mode: &str, transactions: u32) {
    if python_with("sqlite3").is_some() {
        let script =
            format!("python3 $SCRIPTS/sqlite_processes.py db {mode} {transactions}; rm db*");
        Site::new(&SMALL).same(&script);
    }
}

#[test]
fn sqlite_processes_with_a_write_ahead_log() {
    sqlite_processes("wal", 80);
}

#[test]
fn sqlite_processes_with_a_rollback_journal() {
    sqlite_processes("delete", 40);
}

#[test]
fn lmdb_maps_what_others_write() {
    if let Some(python) = python_with("lmdb") {
        Site::new(&SMALL)
            .same(&format!("{python} $SCRIPTS/lmdb_modes.py; rm -f *lock* */lock.mdb"));
    }
}

#[test]
fn redis_recovers_its_append_only_file() {
    if have(&["redis-server", "redis-cli", "redis-check-aof", "redis-check-rdb"]) {
        Site::new(&SMALL).same("bash $SCRIPTS/redis.sh");
    }
}

#[test]
fn postgresql_recovers_under_load() {
    if !works(&["bash", "-c", "ls /usr/lib/postgresql/*/bin/pgbench"]) {
        return skip("PostgreSQL is not installed");
    }
    // It refuses to run as root; in a user namespace without a mapping every user is `nobody`.
    let root = rustix::process::geteuid().is_root();
    if root && !works(&["unshare", "--user", "true"]) {
        return skip("as root, and no user namespace to be had");
    }
    let site = Site::new(&SMALL);
    let script = if root {
        "exec unshare --user bash $SCRIPTS/postgres.sh"
    } else {
        "bash $SCRIPTS/postgres.sh"
    };
    let (ran, status) = site.run_buffered(script);
    status.assert_live();
    let most = "40000|fffe9f664c2ddba4a37bcd35936c7422";
    let wanted = format!(
        "0\nt|t\nt|t\n{most}\n4\n{most}\nstopped: 0\n\
        Database cluster state:               shut down\nBad checksums:  0\n"
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (0, wanted.as_str()), "{ran:?}");
    // The drained files without Forebay.
    let check = "$(ls -d /usr/lib/postgresql/*/bin | tail -1)/pg_checksums --check -D ../store/db | grep -i 'bad checksums'";
    assert_eq!(site.run_plainly(check).stdout, "Bad checksums:  0\n");
}
