//! Configurations, sockets, pools and file systems that are not as they should be: a clear message
//! before the command is started, and nothing lost.

use crate::harness::{self, LAZY, Ran, Site, TINY, USUAL, with_mounts};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;

/// Runs a command that would leave a witness; it must not be started.
fn refused(site: &Site, options: &[&str], named: &[&str]) -> Ran {
    let witness = site.out.join("witness");
    let words = [&["run"], options, &["--", "touch", witness.to_str().unwrap()]].concat();
    let ran = site.end(site.forebay(&words));
    assert_refused(site, ran, named)
}

fn assert_refused(site: &Site, ran: Ran, named: &[&str]) -> Ran {
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(!site.out.join("witness").exists(), "the command was started: {ran:?}");
    for name in named {
        assert!(ran.stderr.contains(name), "no word of {name}: {ran:?}");
    }
    ran
}

/// A configuration with one thing changed.
fn refused_config(change: (&str, &str), named: &[&str]) {
    let site = Site::new(&USUAL);
    let text = fs::read_to_string(&site.config).unwrap();
    assert!(text.contains(change.0), "{text}");
    fs::write(&site.config, text.replacen(change.0, change.1, 1)).unwrap();
    refused(&site, &["--config", site.config.to_str().unwrap()], named);
}

#[test]
fn wrong_configurations_name_file_line_and_key() {
    for (from, to, named) in [
        ("path = \"store\"", "path = \"none\"", ["forebay.toml:5", "backing[0].path", "none"]),
        (
            "path = \"store\"",
            "path = \"forebay.toml\"",
            ["forebay.toml:5", "backing[0].path", "not a directory"],
        ),
        ("path = \"store\"", "path = \"\"", ["forebay.toml:5", "backing[0].path", "empty"]),
        ("path = \"store\"", "pth = \"store\"", ["forebay.toml:5", "pth", "unknown"]),
        ("path = \"nvme\"", "path = \"store\"", ["forebay.toml", "tier[1].path", "same directory"]),
        ("path = \"nvme\"", "path = \"gone/nvme\"", ["forebay.toml", "tier[1].path", "gone"]),
        ("64MiB", "64 bananas", ["forebay.toml:9", "tier[0].capacity", "bananas"]),
        ("64MiB", "1KiB", ["forebay.toml:9", "tier[0].capacity", "less than"]),
        ("64MiB", "900TiB", ["forebay.toml:9", "tier[0].capacity", "memory"]),
        ("\"ram\"\nkind", "\"nvme\"\nkind", ["forebay.toml", "tier[1].name", "nvme"]),
        ("periodic", "sometimes", ["forebay.toml:2", "flush.trigger", "sometimes"]),
        ("[[tier]]", "[[tier", ["forebay.toml:6", "[[tier", "TOML"]),
    ] {
        refused_config((from, to), &named);
    }
}

#[test]
fn two_tiers_on_one_path_are_refused() {
    let twin = "[[tier]]\nname = \"bb\"\nkind = \"file\"\npath = \"./nvme\"\ncapacity = \"64MiB\"\n[[tier]]\nname = \"nvme\"";
    refused_config(
        ("[[tier]]\nname = \"nvme\"", twin),
        &["tier[2].path", "same directory", "nvme"],
    );
}

#[test]
fn wrong_options_name_the_directory() {
    let site = Site::new(&USUAL);
    refused(&site, &["--backing", "/no/such/directory"], &["--backing", "/no/such/directory"]);
    refused(&site, &["--backing", "/dev/null"], &["--backing", "/dev/null", "not a directory"]);
    refused(&site, &["--config", "/no/such/file.toml"], &["/no/such/file.toml"]);
    refused(&site, &[], &["--backing"]);
    let store = site.store.to_str().unwrap();
    let inside = site.store.join("inside");
    fs::create_dir(&inside).unwrap();
    refused(
        &site,
        &["--backing", store, "--backing", inside.to_str().unwrap()],
        &["inside", store],
    );
}

#[test]
fn a_directory_that_may_not_be_read_is_refused() {
    let site = Site::new(&USUAL);
    let witness = site.out.join("witness");
    let config = site.config.to_str().unwrap().to_owned();
    let words = ["run", "--config", &config, "--", "touch", witness.to_str().unwrap()];
    let mut command = site.forebay(&words);
    let runtime = site.root().join("run-of-nobody");
    if rustix::process::geteuid().is_root() {
        if !site.share() {
            return;
        }
        fs::create_dir(&runtime).unwrap();
        for folder in [&runtime, &site.out, &site.nvme] {
            std::os::unix::fs::chown(folder, Some(65534), Some(65534)).unwrap();
        }
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        command = site.command(&site.store, harness::AS_NOBODY[0]);
        command.args(&harness::AS_NOBODY[1..]).arg(site.program()).args(words);
        command.env("FOREBAY_RUNTIME_DIR", &runtime);
    }
    fs::set_permissions(&site.store, fs::Permissions::from_mode(0o711)).unwrap();
    let ran = site.end(command);
    assert_refused(&site, ran, &["forebay.toml:5", "backing[0].path", "not readable"]);
    assert!(site.pools().is_empty());
}

#[test]
fn a_runtime_folder_open_to_others_is_refused() {
    let site = Site::new(&USUAL);
    fs::set_permissions(site.runtime(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = site.config.to_str().unwrap();
    refused(&site, &["--config", config], &[site.runtime().to_str().unwrap(), "chmod 700"]);
}

#[test]
fn a_runtime_folder_that_cannot_be_used_is_named_with_its_variable() {
    let site = Site::new(&USUAL);
    let witness = site.out.join("witness");
    let config = site.config.to_str().unwrap();
    let long = site.root().join("r".repeat(90));
    fs::create_dir(&long).unwrap();
    fs::set_permissions(&long, fs::Permissions::from_mode(0o700)).unwrap();
    for (folder, told) in [
        ("run", "absolute"),
        ("/no/such/folder", "/no/such/folder: cannot make the folder"),
        (long.to_str().unwrap(), "too long"),
    ] {
        let mut command =
            site.forebay(&["run", "--config", config, "--", "touch", witness.to_str().unwrap()]);
        command.env("FOREBAY_RUNTIME_DIR", folder);
        assert_refused(&site, site.end(command), &[told, "FOREBAY_RUNTIME_DIR"]);
    }
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0, "something was left");
}

#[test]
fn a_runtime_folder_of_no_name_counts_as_not_set() {
    let site = Site::new(&USUAL);
    let mut command = site.forebay(&["status"]);
    command.env("FOREBAY_RUNTIME_DIR", "").env("XDG_RUNTIME_DIR", &site.out);
    fs::set_permissions(&site.out, fs::Permissions::from_mode(0o700)).unwrap();
    site.end(command).expect(0);
    assert!(site.out.join("forebay").is_dir());
}

#[test]
fn a_library_that_is_not_there_is_refused_rather_than_run_without() {
    let site = Site::new(&USUAL);
    let witness = site.out.join("witness");
    let config = site.config.to_str().unwrap();
    let mut command =
        site.forebay(&["run", "--config", config, "--", "touch", witness.to_str().unwrap()]);
    command.env("FOREBAY_PRELOAD", "/no/such/library.so");
    let ran = site.end(command);
    assert_refused(&site, ran, &["FOREBAY_PRELOAD", "/no/such/library.so"]).expect(125);
}

#[test]
fn wrong_options_of_a_run_end_with_a_status_of_its_own() {
    let site = Site::new(&USUAL);
    refused(&site, &["--durability", "sometimes"], &["--durability", "nonvolatile"]).expect(125);
    let ran = refused(&site, &["--no-such-option"], &["unexpected argument", "--no-such-option"]);
    ran.expect(125);
    // Those of the command are its own.
    let config = site.config.to_str().unwrap();
    let ran = site.end(site.forebay(&["run", "--config", config, "echo", "-n", "--config"]));
    assert_eq!(ran.expect(0).stdout, "--config");
    site.end(site.forebay(&["run", "--help"])).expect(0);
}

#[test]
fn a_trace_that_cannot_be_written_is_named() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let trace = site.root().join("none/moves.csv");
    let trace = trace.to_str().unwrap();
    refused(&site, &["--config", config, "--trace", trace], &["--trace", trace]).expect(125);
}

#[test]
fn a_trace_is_taken_by_a_manager_that_runs_and_ends_with_its_run() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let inner = format!(
        "echo before > before; $FOREBAY run --config {config} --trace $OUT/moves.csv -- \
         sh -c 'head -c 1M /dev/zero > traced'; wc -l < $OUT/moves.csv; \
         head -c 1M /dev/zero > after; $FOREBAY flush after > $OUT/flushed"
    );
    let ran = site.end(site.buffered(&["sh", "-c", &inner])).expect(0);
    let trace = fs::read_to_string(site.out.join("moves.csv")).unwrap();
    assert!(trace.starts_with("start_us,end_us,action,from,to,bytes\n"), "{trace}");
    assert!(trace.lines().any(|line| line.contains(",flush,ram,store,")), "{trace}");
    assert_eq!(ran.stdout.trim(), trace.lines().count().to_string(), "{trace}");
    let words = ["--config", config, "--trace", "/dev/null"];
    refused(&site, &words, &["--trace", "regular file"]).expect(125);
}

#[test]
fn a_stop_that_means_another_instance_names_the_directory() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let inner = format!("$FOREBAY stop --config {config} --durability memory");
    let ran = site.end(site.buffered(&["sh", "-c", &inner])).expect(125);
    assert!(ran.stdout.is_empty(), "{ran:?}");
    let store = site.store.to_str().unwrap();
    let same = format!("{store}, with another configuration or other options");
    assert!(ran.stderr.contains("no node manager serves") && ran.stderr.contains(&same), "{ran:?}");
}

#[test]
fn outputs_that_cannot_be_written_are_told_before_anything_is_measured() {
    let site = Site::new(&USUAL);
    let none = site.root().join("none/output");
    let none = none.to_str().unwrap();
    for words in [
        &["profile", "--quick", "--write", none][..],
        &["bench", "hermes-fig4", "--json", none],
        &["salvage", "--to", "salvaged", "--pool", none],
    ] {
        let ran = site.end(site.forebay(words)).expect(125);
        assert!(ran.stderr.contains(none), "{ran:?}");
        assert!(!ran.stderr.contains("measuring") && !ran.stderr.contains("round"), "{ran:?}");
    }
    assert!(!site.store.join("salvaged").exists());
    let ran = site.end(site.forebay(&["demo", "--output", "/dev/null"])).expect(125);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("/dev/null"), "{ran:?}");
}

#[test]
fn too_few_descriptors_are_told_before_the_command_starts() {
    let site = Site::new(&USUAL);
    let script = "ulimit -n 32; exec $FOREBAY run --config $0 -- touch $OUT/witness";
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", script]).arg(&site.config);
    let ran = site.end(command);
    assert_refused(&site, ran, &["ulimit -Hn", "128"]).expect(125);
    assert!(site.pools().is_empty());
}

/// The site's only instance folder, made by a run of nothing whose processes are then killed.
fn left_by_a_crash(site: &Site, script: &str) -> std::path::PathBuf {
    let script = format!("{script}; echo done > $OUT/done; exec sleep 60");
    let run = site.start(site.buffered(&["bash", "-c", &script]));
    harness::wait_for("the script", harness::LIMIT, || {
        site.out.join("done").exists().then_some(())
    });
    site.kill_all();
    run.end();
    let mut folders = site.instances();
    folders.next().unwrap().unwrap().path()
}

#[test]
fn a_socket_left_by_a_dead_manager_is_taken_over() {
    let site = Site::new(&LAZY);
    let folder = left_by_a_crash(&site, "echo before > file");
    assert!(folder.join("socket").exists());
    let (ran, status) = site.run_buffered("cat file; echo after >> file; cat file");
    assert_eq!(ran.expect(0).stdout, "before\nbefore\nafter\n");
    status.assert_live();
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "before\nafter\n");
}

#[test]
fn a_pool_of_another_layout_is_left_untouched() {
    let site = Site::new(&LAZY);
    left_by_a_crash(&site, "echo precious > file");
    let pool = site.pools().pop().expect("a pool was left");
    // The layout version follows the magic number.
    let write_version = |version: u32| {
        let mut file = fs::OpenOptions::new().write(true).open(&pool).unwrap();
        file.seek(SeekFrom::Start(8)).unwrap();
        file.write_all(&version.to_le_bytes()).unwrap();
    };
    let version = u32::from_le_bytes(fs::read(&pool).unwrap()[8..12].try_into().unwrap());
    write_version(version + 1);
    let before = fs::read(&pool).unwrap();
    let config = site.config.to_str().unwrap();
    let name = site.seen(&pool);
    let name = name.to_str().unwrap();
    refused(&site, &["--config", config], &[name, "version"]);
    let recovered = site.recover();
    assert!(recovered.code != 0 && recovered.stderr.contains(name), "{recovered:?}");
    assert!(fs::read(&pool).unwrap() == before, "the pool was changed");
    // Nothing is lost: the version that made it drains it.
    write_version(version);
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "precious\n");
}

#[test]
fn a_pool_that_is_no_pool_is_left_untouched() {
    let site = Site::new(&LAZY);
    left_by_a_crash(&site, "echo precious > file");
    let pool = site.pools().pop().expect("a pool was left");
    let whole = fs::read(&pool).unwrap();
    fs::write(&pool, [&b"not a pool"[..], &whole[10..]].concat()).unwrap();
    refused(
        &site,
        &["--config", site.config.to_str().unwrap()],
        &[site.seen(&pool).to_str().unwrap()],
    );
    fs::write(&pool, &whole[..100_000]).unwrap();
    refused(
        &site,
        &["--config", site.config.to_str().unwrap()],
        &[site.seen(&pool).to_str().unwrap()],
    );
    fs::write(&pool, whole).unwrap();
    site.recover().expect(0);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap(), "precious\n");
}

#[test]
fn a_full_shared_memory_is_told_before_the_command_starts() {
    let site = Site::new(&USUAL);
    let script = "mount -t tmpfs -o size=2m none /dev/shm
        dd if=/dev/zero of=/dev/shm/filler bs=64k count=30 status=none
        $FOREBAY run --config $CONFIG -- touch $OUT/witness; code=$?
        ls /dev/shm; $FOREBAY recover > $OUT/recovered; exit $code";
    let Some(ran) = with_mounts(&site, script) else { return };
    let ran = assert_refused(&site, ran, &["/dev/shm"]);
    assert_eq!(ran.stdout, "filler\n", "a pool was left: {ran:?}");
}

#[test]
fn a_small_shared_memory_makes_a_small_tier() {
    let site = Site::new(&USUAL);
    let script = "mount -t tmpfs -o size=40m none /dev/shm; cd $STORE
        $FOREBAY run --config $CONFIG -- sh -c 'dd if=/dev/urandom of=big bs=1M count=60 status=none; sha256sum < big > $OUT/sum; $FOREBAY status > $OUT/status'; code=$?
        sha256sum < big | cmp - $OUT/sum && echo same
        # The manager ends a moment after the run.
        for i in $(seq 1000); do ls /dev/shm | grep -q . || break; sleep 0.02; done
        ls /dev/shm; exit $code";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert_eq!(ran.clone().expect(0).stdout, "same\n", "{ran:?}");
}

#[test]
fn a_full_store_keeps_the_data_until_there_is_space() {
    let site = Site::new(&LAZY);
    let script = "mount -t tmpfs -o size=20m none $STORE; cd $STORE
        $FOREBAY run --config $CONFIG -- sh -c 'seq 3000000 > first; seq 2000000 > second; sha256sum first second > $OUT/sums; rm -f nothing'
        echo status $?
        $FOREBAY status > $OUT/kept; ls /dev/shm/*.pool | wc -l
        mount -o remount,size=100m $STORE
        $FOREBAY recover > $OUT/recovered 2>&1; echo recover $?
        sha256sum first second | cmp - $OUT/sums && echo same";
    let Some(ran) = with_mounts(&site, script) else { return };
    let lines: Vec<_> = ran.stdout.lines().collect();
    let told = fs::read_to_string(site.out.join("recovered")).unwrap_or_default();
    let [status, _, recovered, rest @ ..] = &lines[..] else { panic!("{ran:?}") };
    assert!(*status != "status 0" && status.starts_with("status "), "{ran:?}");
    assert!(
        ran.stderr.contains("No space left") && ran.stderr.contains("/store/second"),
        "{ran:?}"
    );
    assert_eq!((*recovered, rest), ("recover 0", &["same"][..]), "{told}\n{ran:?}");
}

#[test]
fn a_full_store_is_told_at_fsync() {
    let site = Site::new(&TINY);
    let script = "mount -t tmpfs -o size=4m none $STORE; cd $STORE
        $FOREBAY run --config $CONFIG -- dd if=/dev/urandom of=big bs=1M count=6 conv=fsync status=none; echo status $?
        mount -o remount,size=100m $STORE; $FOREBAY recover; stat -c %s big";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert!(ran.stderr.contains("fsync") && ran.stderr.contains("No space left"), "{ran:?}");
    assert!(ran.stdout.contains("6291456"), "{ran:?}");
}

#[test]
fn a_full_store_and_full_tiers_do_not_hang_the_writer() {
    let site = Site::new(&TINY);
    let script = "mount -t tmpfs -o size=4m none $STORE; cd $STORE
        timeout 50 $FOREBAY run --config $CONFIG -- bash -c 'seq 9000000 | dd of=big bs=1M count=40 iflag=fullblock status=noxfer'; echo status $?
        mount -o remount,size=100m $STORE; $FOREBAY recover; echo recover $?; stat -c %s big; cmp big <(seq 9000000)";
    let Some(ran) = with_mounts(&site, script) else { return };
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(!["status 0", "status 124"].contains(&lines[0]), "{ran:?}");
    let [.., "recover 0", size] = lines[..] else { panic!("{ran:?}") };
    // What dd was told to be written is there, and nothing else.
    let written =
        ran.stderr.lines().find_map(|line| line.split_once('+').filter(|_| line.contains("out")));
    // It says so only if its close succeeded, which it need not: close reports the error too.
    let written: u64 = written.map_or(1, |(count, _)| count.parse().unwrap());
    assert!(size.parse::<u64>().unwrap() >= written << 20, "{ran:?}");
    assert!(ran.stderr.contains("cmp: EOF on big"), "{ran:?}");
}
