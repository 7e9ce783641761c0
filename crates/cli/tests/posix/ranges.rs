//! Ranges of files: allocating and punching, data and holes, advice, copies, times and blocks.

use crate::harness::{self, LAZY, SLOW_STORE, Setup, Site, TINY, USUAL};

/// A seed: what `FOREBAY_SEED` says, or another one for each run.
fn seed(offset: u64) -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = given.unwrap_or((now.as_nanos() as u64 >> 10) % 1_000_000 + offset * 1_000_000);
    println!("FOREBAY_SEED={seed}");
    seed
}

fn random_ranges(setup: &Setup, offset: u64) {
    let site = Site::new(setup);
    if site.compile("ranges.c", &[]) {
        let seed = seed(offset);
        let status = site.same(&format!("$BIN/ranges random file {seed} 400"));
        assert!(status.count("writes") > 50, "{}", status.text);
    }
}

#[test]
fn odd_arguments_give_the_errors_of_the_kernel() {
    let site = Site::new(&LAZY);
    if site.compile("ranges.c", &[]) {
        site.same("$BIN/ranges errors file");
    }
}

#[test]
fn random_ranges_in_ram() {
    random_ranges(&LAZY, 0);
}

#[test]
fn random_ranges_over_a_slow_store() {
    random_ranges(&Setup { flush: "trigger = \"periodic\"\nperiod = \"20ms\"", ..SLOW_STORE }, 1);
}

#[test]
fn random_ranges_in_tiny_tiers() {
    let tiny = Setup { flush: "trigger = \"periodic\"\nperiod = \"50ms\"", ..TINY };
    (2..5).for_each(|turn| random_ranges(&tiny, turn));
}

#[test]
fn random_ranges_written_through() {
    random_ranges(&Setup { flush: "trigger = \"per-operation\"", ..USUAL }, 5);
}

#[test]
fn a_punch_is_not_undone_by_a_flush_under_way() {
    let busy = Setup { flush: "trigger = \"per-operation\"", ..TINY };
    for setup in [busy, LAZY] {
        let site = Site::new(&setup);
        if site.compile("ranges.c", &[]) {
            let status = site.same("$BIN/ranges punch file 200");
            assert_eq!(status.count("passthrough"), 0, "it was not buffered: {}", status.text);
        }
    }
}

#[test]
fn copies_inside_the_kernel_are_as_the_kernels() {
    for setup in [LAZY, Setup { flush: "trigger = \"per-operation\"", ..TINY }] {
        let site = Site::new(&setup);
        if site.compile("copies.c", &[]) {
            site.same("$BIN/copies file other");
        }
    }
}

#[test]
fn copies_to_pipes_and_sockets_are_of_what_the_file_is() {
    let often = Setup { flush: "trigger = \"periodic\"\nperiod = \"5ms\"", ..TINY };
    let slow = Setup { store_emulate: SLOW_STORE.store_emulate, ..often };
    for setup in [LAZY, USUAL, often, slow] {
        let site = Site::new(&setup);
        if site.compile("sends.c", &[]) {
            site.same("$BIN/sends states file");
        }
    }
}

#[test]
fn what_was_written_before_a_copy_began_is_in_it() {
    let often = "trigger = \"periodic\"\nperiod = \"5ms\"";
    for flush in [LAZY.flush, often, "trigger = \"per-operation\""] {
        // RAM has less room than the file takes.
        let site = Site::new(&Setup { flush, ..TINY });
        if site.compile("sends.c", &[]) {
            site.same("$BIN/sends turns file");
        }
    }
}

#[test]
fn copies_between_a_buffered_and_another_directory_work_both_ways() {
    for setup in [LAZY, USUAL] {
        let site = Site::new(&setup);
        if !site.compile("copies.c", &[]) {
            return;
        }
        let wanted = site.run_plainly("$BIN/copies file other").expect(0).stdout;
        for script in ["$BIN/copies file $OUT/other", "$BIN/copies $OUT/file other"] {
            let (got, status) = site.run_buffered(script);
            assert_eq!(got.code, 0, "{got:?}");
            harness::assert_same_lines(script, &got.stdout, &wanted);
            status.assert_live();
        }
    }
}

#[test]
fn sizes_times_modes_and_names_are_as_without_forebay() {
    let often = Setup { flush: "trigger = \"periodic\"\nperiod = \"5ms\"", ..USUAL };
    for setup in [LAZY, often] {
        let site = Site::new(&setup);
        if site.compile("times.c", &[]) {
            site.same("$BIN/times; stat -c '%n %s %Y' timed; rm *");
        }
    }
}

#[test]
fn programs_see_sizes_and_blocks_of_buffered_files() {
    let site = Site::new(&LAZY);
    let status = site.same(
        "dd if=/dev/urandom of=dense bs=100000 count=30 status=none
         truncate -s 5M sparse && dd if=/dev/zero of=sparse bs=4096 seek=512 count=3 conv=notrunc status=none
         : > empty; echo small > small
         du -k dense sparse empty small; du --apparent-size -k dense sparse
         find . -type f -size +1000k -printf '%p %s %b\\n' | sort
         stat -c '%n %s %b' *; ls -l --time-style=+ | awk '{print $5, $6}'
         rm dense sparse",
    );
    assert_eq!(status.count("passthrough"), 0, "{}", status.text);
}

/// Four processes write and punch until they are killed, after times that the seed gives.
#[test]
fn punches_that_returned_outlive_the_process() {
    let eager = Setup { flush: "trigger = \"per-operation\"", ..TINY };
    for (turn, setup) in [LAZY, eager, SLOW_STORE].into_iter().enumerate() {
        let site = Site::new(&setup);
        if !site.compile("ranges.c", &[]) {
            return;
        }
        let mut state = seed(6 + turn as u64);
        let mut script = String::new();
        for who in 0..4 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let seconds = 0.2 + (state >> 33) as f64 / f64::from(1u32 << 31);
            script += &format!(
                "timeout -s KILL {seconds:.4} $BIN/ranges alone file {who} 100000000 > $OUT/log{who} &\n"
            );
        }
        let (ran, status) = site.run_buffered(&format!("{script} wait"));
        ran.expect(0);
        status.assert_live();
        for who in 0..4 {
            let log = std::fs::read_to_string(site.out.join(format!("log{who}"))).unwrap();
            let last: u32 = log.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0);
            assert!(last > 0, "process {who} was killed before it did anything");
            let file = site.store.join("file");
            let check = format!("$BIN/ranges verify {} {who} {last}", file.display());
            let said = site.run_plainly(&check).expect(0).stdout;
            assert_eq!(said, "all there\n", "process {who} after turn {last}");
        }
    }
}

/// Runs python statements on a file of 4 MiB that only the store has; `used` says how many
/// kilobytes RAM holds, and `wait` waits for that.
fn advised(statements: &str) -> Option<(String, harness::Status)> {
    advised_on(&LAZY, statements)
}

/// The same where the store is slow, and no kernel keeps a copy of what it has.
const SLOW: Setup = Setup { store_emulate: SLOW_STORE.store_emulate, ..LAZY };

fn advised_on(setup: &Setup, statements: &str) -> Option<(String, harness::Status)> {
    if !harness::works(&["python3", "-c", "pass"]) {
        harness::skip("python3 is missing");
        return None;
    }
    let site = Site::new(setup);
    let bytes: Vec<u8> =
        (0..4 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(site.store.join("file"), &bytes).unwrap();
    let script = format!(
        "
import os, re, subprocess, sys, time
bytes = open(os.environ['OUT'] + '/copy', 'rb').read()
def used():
    status = subprocess.run([os.environ['FOREBAY'], 'status'], stdout=subprocess.PIPE, text=True).stdout
    amount, unit = re.search('tier ram +([0-9.]+) (B|KiB|MiB) of', status).groups()
    return float(amount) * {{'B': 0, 'KiB': 1, 'MiB': 1024}}[unit]
def wait(kilobytes):
    for turn in range(1000):
        if used() == kilobytes: return
        time.sleep(0.02)
    sys.exit('RAM holds %d KiB, not %d' % (used(), kilobytes))
fd = os.open('file', os.O_RDWR)
{statements}
"
    );
    std::fs::write(site.out.join("copy"), &bytes).unwrap();
    std::fs::write(site.out.join("script.py"), script).unwrap();
    let (ran, status) = site.run_buffered("python3 $OUT/script.py");
    let ran = ran.expect(0);
    assert!(status.count("opens") > 0, "{}", status.text);
    Some((ran.stdout, status))
}

#[test]
fn what_will_be_needed_is_staged_in() {
    for call in
        ["os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)", "libc.readahead(fd, 0, 4 << 20)"]
    {
        let statements = format!(
            "
import ctypes
libc = ctypes.CDLL(None)
libc.readahead.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_size_t]
assert {call} in (None, 0)
wait(4096)
assert os.pread(fd, 4 << 20, 0) == bytes"
        );
        let Some((_, status)) = advised(&statements) else { return };
        assert_eq!(status.count("read_bytes"), 4 << 20, "{}", status.text);
    }
}

#[test]
fn a_large_first_read_without_advice_stays_out_of_ram() {
    let Some((_, status)) = advised("assert os.pread(fd, 4 << 20, 0) == bytes") else { return };
    assert_eq!(status.count("read_bytes"), 0, "{}", status.text);
}

#[test]
fn random_access_brings_in_only_what_is_asked_for_again() {
    advised_on(
        &SLOW,
        "
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
for turn in range(3):
    assert os.pread(fd, 1000, 1 << 20) == bytes[1 << 20:][:1000]
    assert used() == 0, used()
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
assert os.pread(fd, 1000, 1 << 20) == bytes[1 << 20:][:1000]
assert used() == 256, used()",
    );
}

#[test]
fn a_sequential_reader_finds_the_next_blocks_in_ram() {
    advised_on(
        &SLOW,
        "
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
assert os.read(fd, 1000) == bytes[:1000]
wait(9 * 256)
for at in range(1000, 4 << 20, 50000):
    assert os.read(fd, 50000) == bytes[at:at + 50000]",
    );
}

#[test]
fn blocks_that_are_read_in_a_row_come_to_ram_ahead_of_the_reader() {
    advised_on(
        &SLOW,
        "
assert os.pread(fd, 1000, 0) == bytes[:1000]
assert os.pread(fd, 1000, 256 << 10) == bytes[256 << 10:][:1000]
wait(2 * 256)
assert os.pread(fd, 1000, 512 << 10) == bytes[512 << 10:][:1000]
wait(5 * 256)
for at in range(0, 4 << 20, 50000):
    assert os.pread(fd, 50000, at) == bytes[at:at + 50000]",
    );
    advised_on(
        &SLOW,
        "
assert os.pread(fd, 1 << 20, 0) == bytes[:1 << 20]
wait(1024)
assert os.pread(fd, 1 << 20, 1 << 20) == bytes[1 << 20:][:1 << 20]
wait(3 * 1024)
assert os.pread(fd, 2 << 20, 2 << 20) == bytes[2 << 20:]",
    );
}

#[test]
fn what_is_read_at_equal_distances_comes_to_ram_ahead_of_the_reader() {
    advised_on(
        &SLOW,
        "
def read(n):
    at = 5000 + n * 700001
    assert os.pread(fd, 1000, at) == bytes[at:at + 1000]
for n in range(3): read(n)
wait(2 * 256)
read(3)
wait(3 * 256)
for n in range(4, 6): read(n)
assert used() == 3 * 256, used()",
    );
}

#[test]
fn what_the_kernel_has_in_memory_is_left_there_however_it_is_read() {
    let statements = "
for at in range(0, 4 << 20, 50000):
    assert os.read(fd, 50000) == bytes[at:at + 50000]
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
os.lseek(fd, 0, os.SEEK_SET)
for at in range(0, 4 << 20, 1 << 20):
    assert os.read(fd, 1 << 20) == bytes[at:at + (1 << 20)]
assert os.read(fd, 10) == b''
assert os.pread(fd, 100, (4 << 20) - 10) == bytes[-10:]
assert used() == 0, used()";
    let Some((_, status)) = advised(statements) else { return };
    assert_eq!(status.count("missed_bytes"), (8 << 20) + 10, "{}", status.text);
}

#[test]
fn tiny_reads_in_a_row_are_served_from_ram() {
    let statements = "
for at in range(0, 4 << 20, 1000):
    assert os.read(fd, 1000) == bytes[at:at + 1000]
assert used() == 4096, used()";
    let Some((_, status)) = advised(statements) else { return };
    assert!(status.count("read_bytes") > (4 << 20) - 80_000, "{}", status.text);
}

#[test]
fn a_file_that_is_read_from_end_to_end_is_itself_where_ram_is_too_small_for_it() {
    // RAM of 16 blocks, half of it with another file's data, above a file of 64.
    let site = Site::new(&Setup { store_emulate: SLOW_STORE.store_emulate, ..TINY });
    let bytes: Vec<u8> =
        (0..16 << 20).map(|at: u32| (at.wrapping_mul(747_796_405) >> 11) as u8).collect();
    std::fs::write(site.store.join("file"), &bytes).unwrap();
    let sum = site.run_plainly(&format!("cksum < {}", site.store.join("file").display()));
    let wanted = sum.expect(0).stdout.repeat(3);
    let (ran, status) = site.run_buffered(
        "dd if=/dev/zero of=other bs=64K count=32 status=none
         for size in 50000 4096 2M; do dd if=file bs=$size status=none | cksum; done",
    );
    assert_eq!(ran.expect(0).stdout, wanted);
    assert!(status.count("read_bytes") > 0, "{}", status.text);
}

#[test]
fn what_is_not_needed_leaves_ram_and_what_is_dirty_is_flushed() {
    advised(
        "
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
wait(4096)
os.posix_fadvise(fd, 256 << 10, 512 << 10, os.POSIX_FADV_DONTNEED)
wait(4096 - 512)
os.posix_fadvise(fd, 1 << 20, 300 << 10, os.POSIX_FADV_DONTNEED)
wait(4096 - 512 - 256)
os.pwrite(fd, b'new', 3 << 20)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
store = os.environ['OUT'] + '/../store/file'
for turn in range(500):
    seen = subprocess.run(['env', '-u', 'LD_PRELOAD', 'FOREBAY_DISABLE=1', 'sh', '-c', 'tail -c +3145729 ' + store + ' | head -c 3'], stdout=subprocess.PIPE).stdout
    if seen == b'new': break
    time.sleep(0.01)
else:
    sys.exit('never flushed')
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
wait(0)
assert os.pread(fd, 4, 3 << 20) == b'new' + bytes[(3 << 20) + 3:][:1]",
    );
}

#[test]
fn advice_for_more_than_ram_has_room_for_is_taken_as_far_as_it_goes() {
    let statements = "
other = os.open('file', os.O_RDWR)
for turn in range(200):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
    os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, 5000, turn * 20000) == bytes[turn * 20000:][:5000]
os.posix_fadvise(fd, 1 << 40, 1 << 50, os.POSIX_FADV_WILLNEED)
os.posix_fadvise(fd, 0, (1 << 63) - 1, os.POSIX_FADV_WILLNEED)
assert os.pread(fd, 4 << 20, 0) == bytes";
    advised(statements);
}
