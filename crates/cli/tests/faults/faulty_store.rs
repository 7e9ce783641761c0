//! Stores and tiers that fail, hang, dawdle or fill up: writes go on, the errors are told once, and
//! nothing is lost.

use crate::harness::{
    self, LAZY, LIMIT, Ran, Running, SMALL, Setup, Site, TINY, assert_same_bytes, wait_for,
    with_mounts,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A site with a script of faults, and a flag that they can wait for.
struct Faulty {
    site: Site,
    faults: PathBuf,
    flag: PathBuf,
}

impl Faulty {
    /// `FLAG` in the script is the flag's path. `None`, and loud, without a C compiler.
    fn new(setup: &Setup, script: &str) -> Option<Self> {
        let site = Site::new(setup);
        let (faults, flag) = (site.out.join("faults"), site.out.join("flag"));
        fs::write(&faults, script.replace("FLAG", flag.to_str().unwrap())).unwrap();
        fs::write(&flag, "").unwrap();
        site.compile("steps.c", &[]).then_some(Faulty { site, faults, flag })
    }

    /// A run of `programs/steps.c`.
    fn steps(&self, steps: &str) -> Command {
        let program = self.site.root().join("steps");
        let out = self.site.out.to_str().unwrap();
        let steps = steps.replace("$OUT", out);
        let words: Vec<_> =
            std::iter::once(program.to_str().unwrap()).chain(steps.split_whitespace()).collect();
        let mut command = self.site.buffered(&words);
        command.env("FOREBAY_FAULTS", &self.faults);
        command
    }

    fn start(&self, steps: &str) -> Running {
        self.site.start(self.steps(steps))
    }

    fn recover_with_faults(&self) -> Ran {
        let mut command = self.site.forebay(&["recover"]);
        command.env("FOREBAY_FAULTS", &self.faults);
        self.site.end(command)
    }

    fn store(&self, name: &str) -> PathBuf {
        self.site.store.join(name)
    }
}

/// What `steps.c` writes through descriptor `n`.
fn content(n: usize, kib: usize) -> Vec<u8> {
    (0..kib << 10).map(|at| (at * 7 + (at >> 9) + n * 31) as u8).collect()
}

fn assert_content(path: &Path, n: usize, kib: usize, what: &str) {
    let got = fs::read(path).unwrap();
    assert_same_bytes(&format!("{what}: {}", path.display()), &got, &content(n, kib));
}

fn wait_for_line(run: &Running, line: &str) {
    wait_for(line, LIMIT, || run.stdout().lines().any(|found| found == line).then_some(()));
}

#[test]
fn each_error_is_told_shown_and_survived() {
    for (errno, text) in [
        ("EIO", "Input/output error"),
        ("ENOSPC", "No space left"),
        ("EDQUOT", "quota exceeded"),
        ("ESTALE", "Stale file handle"),
        ("EROFS", "Read-only file system"),
    ] {
        let script = format!("store write fail {errno} while FLAG");
        let Some(faulty) = Faulty::new(&LAZY, &script) else { return };
        let run = faulty.start(
            "open:1:file write:1:2000 fsync:1 write:1:1000 check:1 touch:$OUT/told \
             gone:$OUT/flag fsync:1 fsync:1 close:1",
        );
        wait_for("the error", LIMIT, || faulty.site.out.join("told").exists().then_some(()));
        let status = faulty.site.status();
        status.assert_live();
        let line = status.text.lines().find(|line| line.contains("/store/file"));
        assert!(line.is_some_and(|line| line.contains(text)), "{}", status.text);
        fs::remove_file(&faulty.flag).unwrap();
        let ran = run.end().expect(0);
        // The first fsync after the fault's end may still tell of a try that came before it.
        let lines: Vec<_> = ran.stdout.lines().collect();
        let told = format!("fsync {errno}");
        let head = ["open 0", "write 0", &told, "write 0", "check 0", "touch 0", "gone 0"];
        assert_eq!(lines[..7], head, "{ran:?}");
        assert!(lines[7] == "fsync 0" || lines[7] == told, "{ran:?}");
        assert_eq!(lines[8..], ["fsync 0", "close 0"], "{ran:?}");
        assert_content(&faulty.store("file"), 1, 3000, errno);
    }
}

#[test]
fn each_descriptor_learns_once() {
    let Some(faulty) = Faulty::new(&LAZY, "store write fail EIO next 1") else { return };
    let ran = faulty.start(
        "open:1:file open:2:file open:3:file write:1:100 fsync:1 fsync:1 fsync:2 fsync:2 close:3 \
         close:2 close:1",
    );
    let ran = ran.end().expect(0);
    let lines: Vec<_> = ran.stdout.lines().skip(4).collect();
    // The third has not written: nothing of its own went wrong, but it may tell as the kernel
    // would.
    let wanted = ["fsync EIO", "fsync 0", "fsync EIO", "fsync 0"];
    assert_eq!(lines[..4], wanted, "{ran:?}");
    assert_eq!(lines[5..], ["close 0", "close 0"], "{ran:?}");
    assert_content(&faulty.store("file"), 1, 100, "once");
}

#[test]
fn a_failing_sync_is_told() {
    let Some(faulty) = Faulty::new(&LAZY, "store sync fail EIO next 1") else { return };
    let ran = faulty.start("open:1:file write:1:100 fsync:1 fsync:1 close:1").end().expect(0);
    let lines: Vec<_> = ran.stdout.lines().skip(2).collect();
    assert_eq!(lines, ["fsync EIO", "fsync 0", "close 0"], "{ran:?}");
    assert_content(&faulty.store("file"), 1, 100, "sync");
}

#[test]
fn nothing_goes_through_the_kernel_that_it_does_not_have() {
    let Some(faulty) = Faulty::new(&LAZY, "store write fail EIO while FLAG") else { return };
    let ran = faulty.start(
        "open:1:file write:1:100 freopen:1:file submit:1 addopen:file check:1 rm:$OUT/flag freopen:1:file \
         addopen:file check:1 close:1",
    );
    let ran = ran.end().expect(0);
    let wanted = [
        ["open 0", "write 0", "freopen EIO", "submit EIO", "addopen EIO", "check 0", "rm 0"]
            .as_slice(),
        // What failed was not told to this descriptor before.
        ["freopen 0", "addopen 0", "check 0", "close EIO"].as_slice(),
    ];
    assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), wanted.concat(), "{ran:?}");
    assert_content(&faulty.store("file"), 1, 100, "in the end");
}

#[test]
fn a_program_that_inherits_what_the_store_lacks_does_not_start() {
    let Some(faulty) = Faulty::new(&LAZY, "store write fail EIO while FLAG") else { return };
    fs::write(faulty.store("file"), "old bytes\n").unwrap();
    let site = &faulty.site;
    // Opened by a shell without Forebay, for a program with it.
    let script = "printf new | dd conv=notrunc of=file status=none; \
                  FOREBAY_DISABLE=1 sh -c 'unset FOREBAY_DISABLE; exec head -c 100 < file'; code=$?; \
                  rm $OUT/flag; exit $code";
    let mut command = site.buffered(&["bash", "-c", script]);
    command.env("FOREBAY_FAULTS", &faulty.faults);
    let ran = site.end(command);
    assert_eq!((ran.code, ran.stdout.as_str()), (126, ""), "{ran:?}");
    assert!(ran.stderr.contains("cannot be brought to the store: Input/output error"), "{ran:?}");
    assert_eq!(fs::read_to_string(faulty.store("file")).unwrap(), "new bytes\n");
}

#[test]
fn slow_short_and_torn_writes_lose_nothing() {
    for script in [
        "store write delay 20ms every 2",
        "store write hang 1s next 2\nstore sync hang 1s",
        "store write short",
        "store write tear EIO every 3",
        "nvme read short\nnvme write short every 2\nstore write short",
        "nvme read delay 5ms every 3\nnvme write delay 5ms every 4",
    ] {
        let Some(faulty) = Faulty::new(&SMALL, script) else { return };
        let ran = faulty.start("open:1:file write:1:24000 check:1 fsync:1 close:1").end().expect(0);
        let lines: Vec<_> = ran.stdout.lines().take(3).collect();
        assert_eq!(lines, ["open 0", "write 0", "check 0"], "{script}: {ran:?}");
        assert_content(&faulty.store("file"), 1, 24000, script);
    }
}

#[test]
fn a_tier_that_cannot_be_read_or_written_for_a_while_loses_nothing() {
    for script in ["nvme write fail EIO while FLAG", "nvme read fail EIO while FLAG"] {
        let Some(faulty) = Faulty::new(&SMALL, script) else { return };
        let run = faulty.start("open:1:file write:1:30000 touch:$OUT/told gone:$OUT/flag close:1");
        wait_for_line(&run, "touch 0");
        fs::remove_file(&faulty.flag).unwrap();
        let ran = run.end().expect(0);
        assert!(ran.stdout.starts_with("open 0\nwrite 0\n"), "{script}: {ran:?}");
        assert_content(&faulty.store("file"), 1, 30000, script);
    }
}

#[test]
fn what_fails_for_ever_is_named_kept_and_recovered() {
    let Some(faulty) = Faulty::new(&LAZY, "store write fail EIO") else { return };
    let ran = faulty.start("open:1:one write:1:3000 close:1 open:2:two write:2:10 close:2").end();
    assert_eq!(ran.code, 125, "{ran:?}");
    for word in ["/store/one", "/store/two", "Input/output error", "forebay recover"] {
        assert!(ran.stderr.contains(word), "{word}: {ran:?}");
    }
    assert_eq!(faulty.site.pools().len(), 1);
    // As long as the store fails, nothing changes.
    let again = faulty.recover_with_faults();
    assert!(again.code != 0 && again.stderr.contains("/store/one"), "{again:?}");
    faulty.site.kill_all();
    let again = faulty.recover_with_faults();
    assert!(again.code != 0 && again.stderr.contains("/store/one"), "{again:?}");
    faulty.site.kill_all();
    faulty.site.recover().expect(0);
    assert_content(&faulty.store("one"), 1, 3000, "recovered");
    assert_content(&faulty.store("two"), 2, 10, "recovered");
}

#[test]
fn full_tiers_over_a_failing_store_do_not_hang_or_lose() {
    let Some(faulty) = Faulty::new(&TINY, "store write fail ENOSPC while FLAG") else { return };
    let run =
        faulty.start("open:1:file write:1:30000 touch:$OUT/told gone:$OUT/flag check:1 close:1");
    wait_for_line(&run, "touch 0");
    let dirty = faulty.site.status();
    assert!(dirty.text.contains("FAILING"), "{}", dirty.text);
    fs::remove_file(&faulty.flag).unwrap();
    let ran = run.end().expect(0);
    assert!(ran.stdout.contains("write 0\n") && ran.stdout.contains("check 0\n"), "{ran:?}");
    assert_content(&faulty.store("file"), 1, 30000, "full tiers");
}

#[test]
fn a_script_is_read_again_and_its_errors_are_told_with_their_line() {
    let Some(faulty) = Faulty::new(&LAZY, "store write short\nstore write fail EWHAT") else {
        return;
    };
    let ran = faulty.start("touch:$OUT/started").end();
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.stderr.contains("faults:2: unknown error EWHAT"), "{ran:?}");
    assert!(!faulty.site.out.join("started").exists());
    fs::write(&faulty.faults, "tape write short").unwrap();
    let ran = faulty.start("touch:$OUT/started").end();
    assert!(
        ran.stderr.contains("faults:1: unknown device tape; one of store, ram, nvme, links"),
        "{ran:?}"
    );
    fs::write(&faulty.faults, "store write short\nlinks pull break").unwrap();
    let ran = faulty.start("touch:$OUT/started").end();
    assert!(ran.stderr.contains("faults:2: unknown fault break; cut,"), "{ran:?}");
    fs::write(&faulty.faults, "").unwrap();
    let run = faulty.start(
        "open:1:file write:1:10 fsync:1 wait:$OUT/failing write:1:10 fsync:1 wait:$OUT/wrong \
         write:1:10 fsync:1 wait:$OUT/gone write:1:10 fsync:1 fsync:1 close:1",
    );
    let out = |name: &str| faulty.site.out.join(name);
    wait_for_line(&run, "fsync 0");
    fs::write(&faulty.faults, "store write fail EIO").unwrap();
    fs::write(out("failing"), "").unwrap();
    wait_for_line(&run, "fsync EIO");
    // A script that is wrong changes nothing.
    fs::write(&faulty.faults, "store write file EIO").unwrap();
    fs::write(out("wrong"), "").unwrap();
    wait_for("the second error", LIMIT, || {
        (run.stdout().matches("fsync EIO").count() >= 2).then_some(())
    });
    assert!(faulty.site.log().contains("faults:1: unknown fault file"), "{}", faulty.site.log());
    fs::remove_file(&faulty.faults).unwrap();
    fs::write(out("gone"), "").unwrap();
    let ran = run.end().expect(0);
    assert!(ran.stdout.ends_with("fsync 0\nclose 0\n"), "{ran:?}");
    assert_content(&faulty.store("file"), 1, 40, "script");
}

#[test]
fn space_that_comes_back_is_used_without_being_asked() {
    let site = Site::new(&Setup { flush: "trigger = \"periodic\"\nperiod = \"100ms\"", ..LAZY });
    let script = "mount -t tmpfs -o size=8m none $STORE; cd $STORE
        dd if=/dev/zero of=filler bs=1M count=6 status=none
        $FOREBAY run --config $CONFIG -- bash -c '
            seq 900000 > big 2> $OUT/told
            until $FOREBAY status | grep -q \"FAILING: No space left\"; do sleep 0.01; done
            rm filler
            until ! $FOREBAY status | grep -q FAILING; do sleep 0.01; done'
        echo status $?; seq 900000 | cmp big - && echo same";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert_eq!(ran.stdout, "status 0\nsame\n", "{ran:?}");
}

/// Stores that are images, as a program makes them with these words, and whether their files can
/// be buffered.
const IMAGES: [(&str, bool); 7] = [
    ("mkfs.ext4 -b 1024", true),
    ("mkfs.ext4 -b 2048", true),
    ("mkfs.ext4 -b 4096", true),
    ("mkfs.ext3 -b 4096", true),
    ("mkfs.ext3 -b 1024", false),
    ("mkfs.ext4 -b 2048 -O ^extents,^64bit", false),
    ("mkfs.vfat", false),
];

#[test]
fn files_are_buffered_whatever_the_blocks_of_the_store_or_it_is_said_why_not() {
    for (make, buffered) in IMAGES {
        let program = make.split(' ').next().unwrap();
        if !harness::have(&[program]) {
            continue;
        }
        let site = Site::new(&TINY);
        let script = "truncate -s 12M $OUT/image
            MAKE $OUT/image > $OUT/made 2>&1 && mount -o loop $OUT/image $STORE || { echo none; exit; }
            cd $STORE; echo there > there
            $FOREBAY run --config $CONFIG --verbose -- bash -c '
                seq 9000 > file; cat there file | cksum
                $FOREBAY explain file > $OUT/explained; $FOREBAY explain new >> $OUT/explained
                $FOREBAY run --config $CONFIG -- true 2> $OUT/second'
            (cat there; seq 9000) | cksum; cat there file | cksum; cd /; umount -l $STORE";
        let Some(ran) = with_mounts(&site, &script.replace("MAKE", make)) else { return };
        let ran = ran.expect(0);
        if ran.stdout == "none\n" {
            harness::skip(&format!("no image by {make}: {}", ran.stderr));
            continue;
        }
        let read = |name| fs::read_to_string(site.out.join(name)).unwrap();
        let (second, explained) = (read("second"), read("explained"));
        let told = format!("{make}: {ran:?}\n{second}\n{explained}");
        let sums: Vec<_> = ran.stdout.lines().collect();
        assert!(sums.len() == 3 && sums.iter().all(|sum| *sum == sums[0]), "{told}");
        let said = if buffered { 0 } else { 1 };
        let reason = "its file system has no files of 1.75 TiB";
        // At the start of both runs, of the file that is there and the one that is not, and at the
        // end.
        let start = format!("its files cannot be buffered: {reason}");
        assert_eq!(ran.stderr.matches(&start).count(), said, "{told}");
        assert_eq!(second.matches(&start).count(), said, "{told}");
        assert_eq!(explained.matches("its files cannot be buffered").count(), 2 * said, "{told}");
        let end = format!("could not be buffered: {reason}");
        assert_eq!(ran.stderr.matches(&end).count(), said, "{told}");
        assert!(!ran.stderr.contains("nothing was buffered"), "{told}");
        assert_eq!(ran.stderr.contains("all on the store"), buffered, "{told}");
    }
}

#[test]
fn files_of_a_store_that_is_only_read_are_buffered_and_not_said_to_be_refused() {
    let site = Site::new(&TINY);
    // tmpfs is none of the file systems that the C library knows the largest size of.
    let script = "mount -t tmpfs none $STORE; cd $STORE; seq 90000 > file; sum=$(cksum < file)
        mount -o remount,ro $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            $FOREBAY explain file > $OUT/explained
            test \"$(cksum < file)\" = \"$0\" && echo same' \"$sum\"
        echo status $?";
    let Some(ran) = with_mounts(&site, script) else { return };
    let explained = fs::read_to_string(site.out.join("explained")).unwrap();
    assert_eq!(ran.stdout, "same\nstatus 0\n", "{ran:?}");
    let told = format!("{explained}{}", ran.stderr);
    assert!(explained.contains("in force") && !told.contains("cannot be buffered"), "{told}");
}

#[test]
fn a_store_that_turns_read_only_keeps_the_data_in_the_tiers() {
    let site = Site::new(&LAZY);
    let script = "mount -t tmpfs -o size=80m none $STORE; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            seq 900000 > big; exec 5>>big; cat big > copy; exec 5>&-'
        echo first $?
        $FOREBAY run --config $CONFIG -- bash -c 'echo more >> big; mount -o remount,ro $STORE'
        echo status $?
        mount -o remount,rw $STORE; $FOREBAY recover; echo recover $?
        (seq 900000; echo more) | cmp big - && seq 900000 | cmp copy - && echo same";
    let Some(ran) = with_mounts(&site, script) else { return };
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0] == "first 0" && lines.ends_with(&["recover 0", "same"]), "{ran:?}");
}

#[test]
fn a_store_that_is_moved_away_and_back_loses_nothing() {
    let Some(faulty) = Faulty::new(&LAZY, "") else { return };
    let site = &faulty.site;
    let run = faulty.start("open:1:file write:1:3000 touch:$OUT/told wait:$OUT/moved close:1");
    wait_for_line(&run, "touch 0");
    // The manager that had its descriptor is gone, too: only the path is left to find the file by.
    let away = site.root().join("away");
    fs::rename(&site.store, &away).unwrap();
    site.kill_all();
    let ran = run.end();
    assert_eq!(ran.code, 128 + 9, "{ran:?}");
    let ran = site.end({
        let mut command = site.command(&site.out, harness::FOREBAY);
        command.arg("recover");
        command
    });
    assert!(ran.code != 0 && ran.stderr.contains("/store"), "{ran:?}");
    assert_eq!(site.pools().len(), 1);
    site.kill_all();
    fs::rename(&away, &site.store).unwrap();
    site.recover().expect(0);
    assert_content(&faulty.store("file"), 1, 3000, "moved");
}

/// A file that a mount hides, or that lies in a directory whose name another one has, is not lost:
/// its data stays in the pool until it is there again.
fn is_hidden(hide: &str, show: &str) {
    let site = Site::new(&LAZY);
    let script = format!(
        "mkdir $STORE/../other; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            mkdir a; echo kept > a/file; $FOREBAY status > $OUT/status
            echo $$ > $OUT/program; exec sleep 1000' &
        until [ -s $OUT/program ]; do sleep 0.01; done; cd /
        kill -9 $! $(sed -n 's/^instance.* node manager //p' $OUT/status) $(cat $OUT/program); wait
        {hide}
        $FOREBAY recover; echo recover $?; ls -d $STORE/../nvme/*.removed
        {show}
        $FOREBAY recover > /dev/null; echo recover $?; cat $STORE/a/file; ls -d $STORE/../nvme/*.removed"
    );
    let Some(ran) = with_mounts(&site, &script) else { return };
    let wanted = "recover 125\nrecover 0\nkept\n";
    assert_eq!(ran.stdout, wanted, "{hide}: {ran:?} {}", site.log());
}

#[test]
fn a_file_that_a_mount_hides_is_not_set_aside() {
    is_hidden("mount -t tmpfs none $STORE/a", "umount -l $STORE/a");
    is_hidden("mount --bind $STORE/../other $STORE/a", "umount -l $STORE/a");
    is_hidden("mount --bind $STORE/../other $STORE", "umount -l $STORE");
    let moved = "mv $STORE $STORE.moved; mkdir $STORE";
    is_hidden(moved, "rmdir $STORE; mv $STORE.moved $STORE");
}

/// A program says that it is about to remove the last name of a file, and is killed before it does;
/// the next node manager finds another file system mounted over the store. Of none of the files it
/// is certain that they are nowhere.
#[test]
fn a_file_that_was_to_be_removed_is_kept_while_its_store_is_not_mounted() {
    if !cfg!(debug_assertions) {
        return harness::skip("crashes are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let script = "
        cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            echo kept > file; echo gone > other; echo there > there
            FOREBAY_CRASH=unlink.noted:1 FOREBAY_CRASH_IN=client rm file
            FOREBAY_CRASH=unlink.done:1 FOREBAY_CRASH_IN=client rm other
            cd /; LD_PRELOAD= mount -t tmpfs none $STORE
            kill -9 $($FOREBAY status | sed -n \"s/^instance.* node manager //p\")'
        echo run $?; cd /; ls $STORE
        $FOREBAY recover; echo recover $?; ls -d $STORE/../nvme/*.removed
        umount -l $STORE; cat $STORE/file
        $FOREBAY recover > /dev/null; echo recover $?; cat $STORE/*; ls $STORE";
    let Some(ran) = with_mounts(&site, script) else { return };
    let wanted = "run 125\nrecover 125\nrecover 0\nkept\nthere\nfile\nthere\n";
    assert_eq!(ran.stdout, wanted, "{ran:?} {}", site.log());
    assert!(ran.stderr.contains("/store/file: No such device"), "{ran:?}");
}

/// Puts new blocks anywhere, so that programs write to slots themselves.
fn place_at_random(site: &Site) {
    let text = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("[placement]\npolicy = \"random\"\n{text}")).unwrap();
}

/// Whether the node manager has left the tier out, as `status` or the log says: it tries one that
/// is full again after a second, and finds that it can write there.
fn was_left_out(site: &Site, status: &str) -> bool {
    status.contains("FAILED   takes nothing new") || site.log().contains("no more blocks go there")
}

#[test]
fn a_tier_that_cannot_be_written_is_left_out_and_no_program_notices() {
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO, libc::EMFILE] {
        let Some(faulty) = Faulty::new(&SMALL, "") else { return };
        place_at_random(&faulty.site);
        let fault = faulty.site.out.join("fault");
        // New blocks, and parts of those that lie in slots already.
        let mut command = faulty.steps(
            "open:1:file write:1:8000 touch:$OUT/fault write:1:4000 check:1 open:2:file write:2:16000 check:2 \
             touch:$OUT/told gone:$OUT/flag fsync:2 close:2 close:1",
        );
        command.env("FOREBAY_SLOT_FAULT", format!("write:{errno}:{}", fault.display()));
        let run = faulty.site.start(command);
        wait_for("all writes", LIMIT, || faulty.site.out.join("told").exists().then_some(()));
        let status = faulty.site.status();
        status.assert_live();
        let is_shown = was_left_out(&faulty.site, &status.text);
        // Running out of descriptors is the program's own affair.
        assert!(is_shown == (errno != libc::EMFILE), "{errno}: {}", status.text);
        fs::remove_file(&faulty.flag).unwrap();
        let ran = run.end().expect(0);
        assert!(ran.stdout.lines().all(|line| line.ends_with(" 0")), "{errno}: {ran:?}");
        assert_content(&faulty.store("file"), 2, 16000, &format!("errno {errno}"));
    }
}

/// The drain of a tier that has failed cannot note in the journal, which lies there too, that the
/// store has everything.
#[test]
fn a_tier_that_fails_with_its_journal_is_told_only_to_those_that_sync() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let name = if errno == libc::EIO { "EIO" } else { "ENOSPC" };
        let Some(faulty) = Faulty::new(&SMALL, "") else { return };
        place_at_random(&faulty.site);
        let (fault_file, hits) = (faulty.site.out.join("fault"), faulty.site.out.join("hits"));
        let script = format!("nvme write fail {name} while {}", fault_file.display());
        fs::write(&faulty.faults, script).unwrap();
        let mut command = faulty.steps(
            "open:1:file write:1:8000 touch:$OUT/fault open:2:other write:2:8000 touch:$OUT/told \
             gone:$OUT/flag close:2 check:1 close:1",
        );
        command.env("FOREBAY_SLOT_FAULT", format!("write:{errno}:{}", fault_file.display()));
        command.env("FOREBAY_FAULTS_LOG", &hits);
        let run = faulty.site.start(command);
        wait_for("the journal's error", LIMIT, || {
            fs::read_to_string(&hits).is_ok_and(|hits| hits.contains(" nvme write ")).then_some(())
        });
        wait_for("the drain", LIMIT, || {
            let status = faulty.site.status();
            let is_failed = status.text.contains("FAILED   takes nothing new");
            (is_failed && faulty.site.out.join("told").exists()).then_some(())
        });
        assert!(!faulty.site.status().text.contains("FAILING: "), "{name}");
        for file in ["file", "other"] {
            let ran = faulty.site.end(faulty.site.forebay(&["explain", file])).expect(0);
            assert!(!ran.stdout.contains("its last flush failed"), "{name}: {ran:?}");
        }
        fs::remove_file(&fault_file).unwrap();
        fs::remove_file(&faulty.flag).unwrap();
        let ran = run.end().expect(0);
        assert!(ran.stdout.lines().all(|line| line.ends_with(" 0")), "{name}: {ran:?}");
        assert_content(&faulty.store("file"), 1, 8000, name);
        assert_content(&faulty.store("other"), 2, 8000, name);
    }
}

#[test]
fn a_stop_that_a_full_tier_holds_up_names_it() {
    let Some(faulty) = Faulty::new(&SMALL, "") else { return };
    place_at_random(&faulty.site);
    let fault = faulty.site.out.join("fault");
    let script = format!("nvme write fail ENOSPC while {}", fault.display());
    fs::write(&faulty.faults, script).unwrap();
    let steps =
        "open:1:file write:1:8000 touch:$OUT/fault open:2:other write:2:8000 close:2 close:1";
    let mut command = faulty.steps(steps);
    command.env("FOREBAY_SLOT_FAULT", format!("write:28:{}", fault.display()));
    faulty.site.start(command).end().expect(0);
    assert_content(&faulty.store("file"), 1, 8000, "drained");
    let ran = faulty.site.end(faulty.site.forebay(&["stop"])).expect(125);
    for word in ["everything is on the store, but tier nvme (No space left", "forebay recover"] {
        assert!(ran.stderr.contains(word), "{word}: {ran:?}");
    }
    fs::remove_file(&fault).unwrap();
    faulty.site.recover().expect(0);
    assert_content(&faulty.store("file"), 1, 8000, "recovered");
    assert_content(&faulty.store("other"), 2, 8000, "recovered");
}

#[test]
fn what_is_cut_or_punched_on_a_tier_that_cannot_be_written_moves_up() {
    for errno in [libc::ENOSPC, libc::EIO] {
        let setup = Setup { nvme_emulate: None, ..harness::LAZY };
        let site = Site::new(&setup);
        place_at_random(&site);
        // Half of the blocks lie in slots, and nothing of them on the store.
        let script = format!(
            "rm -f $OUT/fault; export FOREBAY_SLOT_FAULT=write:{errno}:$OUT/fault
            for n in {{1..24}}; do seq 100000 > f$n; done; : > $OUT/fault
            for n in {{1..24}}; do
                truncate -s $((300000 + n)) f$n && fallocate -p -o 100 -l 5000 f$n &&
                    truncate -s 500000 f$n && echo end >> f$n && cksum f$n || echo failed $n
            done"
        );
        let status = site.same(&script);
        assert!(was_left_out(&site, &status.text), "{errno}: {}", status.text);
    }
}

#[test]
fn a_full_tier_is_used_again_when_there_is_room() {
    let site = Site::new(&SMALL);
    place_at_random(&site);
    let script = "mount -t tmpfs -o size=40m none $NVME; cd $STORE
        dd if=/dev/zero of=$NVME/filler bs=1M count=38 status=none
        $FOREBAY run --config $CONFIG -- bash -c '
            seq 2000000 > big || echo failed
            until $FOREBAY status | grep -q \"FAILED .* No space left\"; do seq 90000 > more || echo failed; done
            rm $NVME/filler
            while $FOREBAY status | grep -q FAILED; do sleep 0.05; done
            seq 2000000 > again || echo failed'
        echo status $?; seq 2000000 | cmp big - && seq 2000000 | cmp again - && echo same";
    let script = script.replace("$NVME", site.nvme.to_str().unwrap());
    let Some(ran) = with_mounts(&site, &script) else { return };
    assert_eq!(ran.stdout, "status 0\nsame\n", "{ran:?}");
}

/// Mounts a tier's folder so that it has no room for as much as a page.
const FULL: &str = "mount -t tmpfs -o size=40m none $NVME; cd $STORE
    head -c 50M /dev/zero > $NVME/filler 2> $OUT/full && echo not full\n";

/// Runs a script that mounts `$NVME` itself. `. $OUT/files FOLDER` tells what a tier's folder has,
/// by the ends of the names; `. $OUT/ended` waits until no pool is left.
fn with_tier(site: &Site, script: &str) -> Option<Ran> {
    let files = "echo files: $(ls $1 | sed 's/.*[.]//' | sort)\n";
    fs::write(site.out.join("files"), files).unwrap();
    let ended = "while ls /dev/shm | grep -q pool; do sleep 0.01; done\n";
    fs::write(site.out.join("ended"), ended).unwrap();
    with_mounts(site, &script.replace("$NVME", site.nvme.to_str().unwrap()))
}

#[test]
fn a_tier_that_is_full_from_the_start_is_left_out_until_there_is_room() {
    for durability in ["store", "nonvolatile"] {
        let site = Site::new(&SMALL);
        place_at_random(&site);
        let script = "$FOREBAY run --config $CONFIG --durability DURABILITY -- bash -c '
                seq 2000000 > big && sync big && cmp big <(seq 2000000) && echo synced
                $FOREBAY status | grep -c \"FAILED .* No space left\"
                rm $NVME/filler
                while $FOREBAY status | grep -q FAILED; do sleep 0.05; done
                until [ $(stat -c %b $NVME/*.slots) -gt 1000 ]; do seq 2000000 > again || exit; done
                sync again; . $OUT/files $NVME'
            echo status $?; . $OUT/ended; . $OUT/files $NVME
            seq 2000000 | cmp big - && seq 2000000 | cmp again - && echo same";
        let script = format!("{FULL}{}", script.replace("DURABILITY", durability));
        let Some(ran) = with_tier(&site, &script) else { return };
        let wanted = "synced\n1\nfiles: config index journal slots\nstatus 0\nfiles:\nsame\n";
        assert_eq!(ran.stdout, wanted, "{durability}: {ran:?}");
        let said = "No space left on device; it is left out until there is room";
        assert!(ran.stderr.contains(said), "{durability}: {ran:?}");
        let waits = ran.stderr.contains("durability nonvolatile waits for the backing store");
        assert_eq!(waits, durability == "nonvolatile", "{ran:?}");
    }
}

/// Its device makes no file, or not all.
#[test]
fn a_tier_that_can_make_no_files_is_left_out() {
    let site = Site::new(&SMALL);
    place_at_random(&site);
    for files in 0..4 {
        let script = "mount -t tmpfs -o size=40m,nr_inodes=INODES none $NVME; cd $STORE
            $FOREBAY run --config $CONFIG --durability nonvolatile -- bash -c '
                seq 2000000 > big && sync big && cmp big <(seq 2000000) && echo synced
                $FOREBAY status | grep -c \"FAILED .* No space left\"
                $FOREBAY fsck > $OUT/fsck; echo fsck $?'
            echo status $?; . $OUT/ended; . $OUT/files $NVME
            seq 2000000 | cmp big - && echo same";
        // The folder is one.
        let script = script.replace("INODES", &(files + 1).to_string());
        let Some(ran) = with_tier(&site, &script) else { return };
        let wanted = "synced\n1\nfsck 0\nstatus 0\nfiles:\nsame\n";
        assert_eq!(ran.stdout, wanted, "{files}: {ran:?}");
        assert!(ran.stderr.contains("it is left out"), "{files}: {ran:?}");
    }
}

/// A manager that was killed has left its pool, with a tier that has no files. The run goes first:
/// it would start another manager.
#[test]
fn a_pool_with_a_tier_that_was_left_out_is_taken_over() {
    let site = Site::new(&LAZY);
    place_at_random(&site);
    let script = "mount -t tmpfs -o size=300m,nr_inodes=1 none $NVME; cd $STORE
        $FOREBAY run --config $CONFIG -- bash -c '
            seq 2000000 > big
            killed=\"$PPID $($FOREBAY status | sed -n \"s/^instance .*node manager //p\")\"
            kill -STOP $killed; kill -9 $killed $$'
        seq 2000000 | cmp -s big - || echo behind
        $FOREBAY recover 2>&1; echo recover $?
        . $OUT/ended; seq 2000000 | cmp big - && echo same";
    let Some(ran) = with_tier(&site, script) else { return };
    assert!(ran.stdout.starts_with("behind\n"), "{ran:?}");
    assert!(ran.stdout.ends_with("recover 0\nsame\n"), "{ran:?}");
}

/// The next one has the journal then, and what fsync has acknowledged outlives the pool.
#[test]
fn the_journal_lies_on_the_fastest_tier_that_takes_it() {
    // A log that the file fills sends syncs to the store until it has begun again.
    let flush = "trigger = \"on-exit\"\ndurability = \"nonvolatile\"\njournal = \"12MiB\"";
    let site = Site::new(&Setup { flush, ..SMALL });
    let second = site.root().join("second");
    fs::create_dir(&second).unwrap();
    let text = fs::read_to_string(&site.config).unwrap();
    let tier =
        "[[tier]]\nname = \"disk\"\nkind = \"file\"\npath = \"second\"\ncapacity = \"12MiB\"\n";
    fs::write(&site.config, format!("{text}{tier}")).unwrap();
    place_at_random(&site);
    let script = "$FOREBAY run --config $CONFIG -- bash -c '
            seq 499999 > file && sync file && echo 500000 >> file && sync file && echo synced
            . $OUT/files $SECOND
            killed=\"$PPID $($FOREBAY status | sed -n \"s/^instance .*node manager //p\")\"
            kill -STOP $killed; kill -9 $killed $$'
        seq 500000 | cmp -s file - || echo behind
        rm /dev/shm/*.pool; $FOREBAY recover; echo recover $?
        . $OUT/files $SECOND; . $OUT/files $NVME; seq 500000 | cmp file - && echo same";
    let script = format!("{FULL}{script}").replace("$SECOND", second.to_str().unwrap());
    let Some(ran) = with_tier(&site, &script) else { return };
    let wanted = "synced\nfiles: config index journal slots\nbehind\n\
        recovered 1 pool: what it had is on the backing store\n\
        of 1 pool no memory was left, as after a reboot: what was in memory alone, and was not \
        synced, is lost\nrecover 0\nfiles:\nfiles: filler\nsame\n";
    assert_eq!(ran.stdout, wanted, "{ran:?}");
    assert!(!ran.stderr.contains("no file tier takes the journal"), "{ran:?}");
}

/// A folder in which nothing can be written is a mistake of the configuration; a file there that
/// others can write is not touched. The first run's manager has its files open a moment longer than
/// their names.
#[test]
fn a_start_that_fails_leaves_nothing() {
    let site = Site::new(&SMALL);
    let script =
        "run() { $FOREBAY run --config $CONFIG \"$@\" 2>&1 | grep -v 'nothing was buffered'
            echo status ${PIPESTATUS[0]}; }
        mount -t tmpfs -o size=40m none $NVME; cd $STORE
        run -- bash -c 'echo $NVME/*.config > $OUT/name'; . $OUT/ended; name=$(cat $OUT/name)
        until mount -o remount,ro $NVME; do sleep 0.1; done 2>&-; run -- true; ls /dev/shm
        mount -o remount,rw $NVME; : > $name; chmod 666 $name; run -- true
        ls /dev/shm; . $OUT/files $NVME; rm $name";
    let Some(ran) = with_tier(&site, script) else { return };
    let lines: Vec<_> = ran.stdout.lines().collect();
    let [first, readonly, status, open, last @ ..] = &lines[..] else { panic!("{ran:?}") };
    assert_eq!([*first, *status], ["status 0", "status 125"], "{ran:?}");
    assert!(readonly.contains("not writable (Read-only file system"), "{ran:?}");
    assert!(open.contains("its mode is 0666"), "{ran:?}");
    assert_eq!(last, ["status 125", "files: config"], "{ran:?}");
}

/// What is written to a staged file is read back before it counts as clean.
#[test]
fn a_write_to_a_staged_file_that_the_store_loses_is_made_again() {
    let Some(faulty) = Faulty::new(&LAZY, "store write lose next 2") else { return };
    let rule = "[[rule]]\nmode = \"staged\"\ntier = \"nvme\"\n";
    let config = fs::read_to_string(&faulty.site.config).unwrap();
    fs::write(&faulty.site.config, config + rule).unwrap();
    let run = faulty.start("open:1:file write:1:9000 close:1 gone:$OUT/flag");
    wait_for("the whole file", LIMIT, || {
        let found = fs::read(faulty.store("file")).unwrap_or_default();
        (found == content(1, 9000)).then_some(())
    });
    let status = faulty.site.status();
    assert_eq!(status.count("staged_unequal"), 2, "{}", status.text);
    assert!(faulty.site.log().contains("are not what was written"), "{}", faulty.site.log());
    fs::remove_file(&faulty.flag).unwrap();
    run.end().expect(0);
    assert_content(&faulty.store("file"), 1, 9000, "lost writes");
}
