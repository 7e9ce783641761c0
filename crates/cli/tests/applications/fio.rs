//! fio writes and verifies in each of its ways, and once more, plainly, after the drain.

use crate::harness::{SMALL, Site, have};

/// Runs fio with each set of options on a file of its own.
fn verified(jobs: &[(&str, &str)]) {
    if !have(&["fio"]) {
        return;
    }
    let site = Site::new(&SMALL);
    let fio = |only: &str| {
        jobs.iter().map(|(name, options)| {
            format!(
                "fio --name={name} --filename={name} --minimal --randseed=7 --fallocate=none --verify=crc32c \
                 --verify_fatal=1 --verify_state_save=0 {options} {only} > $OUT/log || {{ echo {name} {only}; cat $OUT/log; }}\n"
            )
        }).collect::<String>()
    };
    let (ran, status) = site.run_buffered(&fio(""));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
    status.assert_live();
    let again = fio("--verify_only").replace("--filename=", "--filename=../store/");
    let ran = site.run_plainly(&again);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "after the drain: {}", ran.stderr);
}

#[test]
fn one_call_at_a_time() {
    verified(&[
        ("sequential", "--rw=write --size=20m --bs=128k --ioengine=psync"),
        ("random", "--rw=randwrite --size=12m --bs=4k --ioengine=sync --verify=sha256"),
        ("vectors", "--rw=randwrite --size=6m --bs=3k --ioengine=vsync --iodepth=8 --verify=md5"),
        ("positional", "--rw=randwrite --size=8000k --bs=20k --ioengine=pvsync"),
        ("flags", "--rw=randwrite --size=8m --bs=16k --ioengine=pvsync2"),
    ]);
}

#[test]
fn read_while_it_is_written() {
    verified(&[
        ("backlog", "--rw=write --size=16m --bs=32k --verify_backlog=64 --ioengine=psync"),
        ("scattered", "--rw=randwrite --size=10m --bs=8k --verify_backlog=16 --ioengine=psync"),
    ]);
}

#[test]
fn synced_and_direct() {
    verified(&[
        ("fsync", "--rw=write --size=4m --bs=16k --fsync=16 --ioengine=psync"),
        ("fdatasync", "--rw=randwrite --size=2m --bs=16k --fdatasync=8 --ioengine=sync"),
        (
            "ends",
            "--rw=write --size=6m --bs=64k --end_fsync=1 --fsync_on_close=1 --ioengine=psync --verify=xxhash",
        ),
        ("each", "--rw=randwrite --size=512k --bs=4k --sync=1 --ioengine=psync"),
        ("direct", "--rw=randwrite --size=8m --bs=4k --direct=1 --ioengine=pvsync"),
        ("allocated", "--rw=write --size=4m --bs=64k --fallocate=posix --ioengine=sync"),
    ]);
}

#[test]
fn asynchronously_and_mapped() {
    verified(&[
        ("posixaio", "--rw=randwrite --size=8m --bs=16k --iodepth=8 --ioengine=posixaio"),
        ("libaio", "--rw=randwrite --size=8m --bs=16k --iodepth=16 --direct=1 --ioengine=libaio"),
        ("mapped", "--rw=randwrite --size=8m --bs=4k --ioengine=mmap"),
    ]);
}

#[test]
fn several_jobs_on_one_file() {
    verified(&[
        (
            "processes",
            "--rw=write --numjobs=4 --size=5m --offset_increment=5m --bs=64k --ioengine=psync",
        ),
        (
            "threads",
            "--thread --rw=randwrite --numjobs=4 --size=4m --offset_increment=4m --bs=8k --ioengine=sync",
        ),
    ]);
}
