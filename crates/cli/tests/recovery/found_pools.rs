//! A pool that is found stands for itself: whatever memory is free today, whichever tiers a
//! configuration has now or chooses, and whichever version made it. What cannot be taken over is
//! left as it is.

use crate::harness::{self, LAZY, LIMIT, Site, Steps, TINY, kill, skip, wait_for, with_mounts};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Shell functions: `leave FILE` writes a file that only the tiers have, and kills everything.
/// `whole FILE` looks whether the store has it. What `run` chooses by itself depends on `memory
/// SIZE` and FOREBAY_SCRATCH.
const HELPERS: &str = r#"
set -Eeu
trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
memory() { mount -o "remount,size=$1" /dev/shm; }
mount -t tmpfs -o size=160M none /dev/shm
mount -t tmpfs none $STORE
cd $STORE
mkdir $OUT/scratch1 $OUT/scratch2
leave() {
    rm -f $OUT/at
    $FOREBAY run --backing $STORE --trigger on-exit "${@:2}" -- \
        bash -c "seq 300000 > $STORE/$1; ${SYNC:-true}; : > $OUT/at; exec sleep 1000" 2> $OUT/said &
    local run=$!
    until [ -e $OUT/at ]; do [ -e /proc/$run ] || { cat $OUT/said; exit 1; }; sleep 0.01; done
    local manager=$($FOREBAY status | sed -n 's/^instance .*node manager //p')
    # The manager first: it would drain.
    kill -9 $manager $run $(cat /proc/$run/task/$run/children) || true
    wait $run || true
    while [ -e /proc/$manager ] && ! grep -q 'State:.Z' /proc/$manager/status; do sleep 0.01; done
}
whole() { seq 300000 | cmp - $STORE/$1; }
tidy() {
    local tries=0
    # A manager that ends has the memory a little longer than the name.
    while ls /dev/shm $OUT/scratch1 $OUT/scratch2 | grep -q forebay ||
        [ $(df --output=used /dev/shm | tail -n 1) != 0 ]; do
        [ $((tries += 1)) -lt 1000 ] || { echo "left:"; ls /dev/shm $OUT/scratch*; exit 1; }
        sleep 0.01
    done
}
"#;

fn passes(site: &Site, script: &str) {
    let script = format!("{HELPERS}{script}");
    let Some(ran) = with_mounts(site, &script) else { return };
    ran.expect(0);
}

#[test]
fn a_pool_is_taken_over_whatever_memory_is_free() {
    let site = Site::new(&LAZY);
    let script = r#"
for size in 320M 104M; do
    memory 160M; leave file; memory $size
    $FOREBAY run --backing $STORE -- true 2> $OUT/said || { cat $OUT/said; exit 1; }
    grep -q 'ram 80.0 MiB.*(found' $OUT/said || { cat $OUT/said; exit 1; }
    whole file; rm file; tidy

    memory 160M; leave file; memory $size
    $FOREBAY status | grep -q 'ahead .*file'
    $FOREBAY fsck --backing $STORE | grep -q 'clean'
    $FOREBAY salvage --backing $STORE --to $OUT/saved-$size
    seq 300000 | cmp - $OUT/saved-$size/file
    $FOREBAY recover; whole file; rm file; tidy

    memory 160M; leave file; memory $size
    $FOREBAY recover --backing $STORE; whole file; rm file; tidy
done
# The folder's configuration is gone, too.
memory 160M; leave file; memory 320M
rm $FOREBAY_RUNTIME_DIR/*/config
$FOREBAY recover; whole file; rm file; tidy
memory 160M; leave file; memory 320M
rm $FOREBAY_RUNTIME_DIR/*/config
$FOREBAY run --backing $STORE -- true; whole file; rm file; tidy
"#;
    passes(&site, script);
}

#[test]
fn a_pool_is_taken_over_with_the_tiers_that_it_has() {
    let site = Site::new(&LAZY);
    let script = r#"
export FOREBAY_SCRATCH=
for tiers in ",$OUT/scratch1" "$OUT/scratch1," "$OUT/scratch1,$OUT/scratch2"; do
    for command in "recover" "recover --backing $STORE" "run --backing $STORE -- true"; do
        FOREBAY_SCRATCH=${tiers%,*} leave file
        FOREBAY_SCRATCH=${tiers#*,} $FOREBAY $command 2> $OUT/said || { cat $OUT/said; exit 1; }
        whole file; rm file; tidy
    done
done
# As after a reboot: the journal lies where the configuration of that time has it.
export FOREBAY_SCRATCH=$OUT/scratch1
for command in "recover" "recover --backing $STORE --durability nonvolatile" \
    "run --backing $STORE --durability nonvolatile -- true"; do
    SYNC="sync $STORE/file" FOREBAY_SCRATCH=$OUT/scratch1 leave file --durability nonvolatile
    rm /dev/shm/forebay-*
    # What was killed has the memory until its last thread has ended.
    until [ $(df --output=used /dev/shm | tail -n 1) = 0 ]; do sleep 0.01; done
    FOREBAY_SCRATCH=$OUT/scratch2 $FOREBAY $command 2> $OUT/said || { cat $OUT/said; exit 1; }
    whole file; rm file; tidy
done
# A tier that is not there any more is named, and nothing is changed.
FOREBAY_SCRATCH=$OUT/scratch1 leave file
mv $OUT/scratch1 $OUT/away
before=$(cat /dev/shm/forebay-*.pool $FOREBAY_RUNTIME_DIR/*/config | sha256sum)
for command in "recover" "run --backing $STORE -- true"; do
    ! $FOREBAY $command 2> $OUT/said
    grep -q "scratch1.*have the directory again" $OUT/said || { cat $OUT/said; exit 1; }
done
[ "$before" = "$(cat /dev/shm/forebay-*.pool $FOREBAY_RUNTIME_DIR/*/config | sha256sum)" ]
mv $OUT/away $OUT/scratch1
$FOREBAY recover; whole file; tidy
"#;
    passes(&site, script);
}

#[test]
fn what_another_configuration_left_is_drained_first() {
    let others = [
        "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"16MiB\"\n",
        "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"16MiB\"\n\
         [[tier]]\nname = \"other\"\nkind = \"file\"\npath = \"out\"\ncapacity = \"32MiB\"\n",
        "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n\
         [[tier]]\nname = \"nvme\"\nkind = \"file\"\npath = \"nvme\"\ncapacity = \"16MiB\"\n\
         [[tier]]\nname = \"third\"\nkind = \"file\"\npath = \"out\"\ncapacity = \"16MiB\"\n",
    ];
    for (number, other) in others.iter().enumerate() {
        let site = Site::new(&LAZY);
        let config = site.config.to_str().unwrap();
        for command in
            [&["run", "--config", config, "--", "true"][..], &["recover", "--config", config]]
        {
            site.configure(&LAZY);
            leave(&site);
            fs::write(&site.config, format!("[[backing]]\npath = \"store\"\n{other}")).unwrap();
            let ran = site.end(site.forebay(command)).expect(0);
            let file = site.store.join("file");
            assert_eq!(
                fs::read(&file).unwrap(),
                vec![b'x'; 1 << 20],
                "{number} {command:?}: {ran:?}"
            );
            fs::remove_file(file).unwrap();
        }
    }
}

/// Writes a file of 1 MiB that only the tiers have, and kills everything.
fn leave(site: &Site) {
    let _ = fs::remove_file(site.out.join("at-1"));
    let script = "head -c 1M /dev/zero | tr '\\0' x > file; step 1";
    let steps = Steps::with(site, &["--trigger", "on-exit"], script);
    steps.at("1");
    site.kill_all();
    steps.running.end();
}

/// Everything that a killed instance has left.
fn left(site: &Site) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths = site.pools();
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    paths.extend(files(&site.nvme));
    for instance in site.instances() {
        paths
            .extend(files(&instance.unwrap().path()).into_iter().filter(|p| p.ends_with("config")));
    }
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_pool_of_another_layout_is_refused_by_name_and_not_touched() {
    let site = Site::new(&LAZY);
    leave(&site);
    let config = site.config.to_str().unwrap();
    let [pool] = &site.pools()[..] else { panic!("{:?}", site.pools()) };
    let file = fs::File::options().read(true).write(true).open(pool).unwrap();
    // Behind the magic number.
    let mut word = [0; 4];
    file.read_exact_at(&mut word, 8).unwrap();
    let named = |other: u32| format!("layout {other}");
    for other in [1, u32::from_ne_bytes(word) - 1, u32::from_ne_bytes(word) + 1] {
        file.write_all_at(&other.to_ne_bytes(), 8).unwrap();
        let before = left(&site);
        let run = ["run", "--config", config, "--", "true"];
        for command in [&run[..], &["recover"], &["recover", "--config", config], &["flush", "."]] {
            let ran = site.end(site.forebay(command));
            assert_ne!(ran.code, 0, "{command:?}: {ran:?}");
            assert!(ran.stderr.contains(&named(other)), "{command:?}: {ran:?}");
            assert!(ran.stderr.contains("which-version"), "{command:?}: {ran:?}");
            // Layouts that record it tell the version that made them.
            let maker = format!("another version of Forebay: {}", env!("CARGO_PKG_VERSION"));
            let tells = other >= 11;
            assert_eq!(ran.stderr.contains(&maker), tells, "{command:?}: {ran:?}");
        }
        // It has nothing of what lies elsewhere.
        for command in ["flush", "wait"] {
            let ran = site.end(site.forebay(&[command, site.out.to_str().unwrap()])).expect(0);
            assert!(ran.stderr.contains("passed over") && ran.stderr.contains(&named(other)));
        }
        assert!(site.status().text.contains(&format!("layout {other}")));
        assert!(left(&site) == before, "something was changed");
        // Without its folder it may have anything.
        let instance = site.instances().next().unwrap().unwrap().path();
        let away = site.out.join("away");
        fs::rename(&instance, &away).unwrap();
        for words in [&["flush", "file"][..], &["wait", "file"], &["wait", "--durable", "file"]] {
            let ran = site.end(site.forebay(words)).expect(1);
            assert!(
                !ran.stdout.contains("safe") && !ran.stdout.contains("flushed"),
                "{words:?}: {ran:?}"
            );
            assert!(ran.stderr.contains(&named(other)), "{words:?}: {ran:?}");
            assert!(ran.stderr.contains("not known to be safe"), "{words:?}: {ran:?}");
        }
        fs::rename(away, instance).unwrap();
        assert!(left(&site) == before, "something was changed");
    }
    file.write_all_at(&word, 8).unwrap();
    site.recover().expect(0);
    assert!(fs::read(site.store.join("file")).unwrap() == vec![b'x'; 1 << 20]);
}

#[test]
fn a_journal_of_another_version_is_refused_by_name_and_not_touched() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let options = ["--config", config, "--durability", "nonvolatile"];
    let script = "head -c 1M /dev/zero | tr '\\0' x > file; sync file; step 1";
    let steps = Steps::with(&site, &["--durability", "nonvolatile"], script);
    steps.at("1");
    site.kill_all();
    steps.running.end();
    site.pools().into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
    let mut entries = fs::read_dir(&site.nvme).unwrap().map(|entry| entry.unwrap().path());
    let path = entries.find(|path| path.extension().is_some_and(|e| e == "journal")).unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut word = [0; 4];
    file.read_exact_at(&mut word, 8).unwrap();
    let heads = [8, 65536 + 8];
    let other = u32::from_le_bytes(word) + 1;
    heads.iter().for_each(|&at| file.write_all_at(&other.to_le_bytes(), at).unwrap());
    let before = left(&site);
    let run = [&["run"][..], &options, &["--", "true"]].concat();
    for command in [&run[..], &["recover"], &[&["recover"][..], &options].concat()] {
        let ran = site.end(site.forebay(command)).expect(125);
        assert!(ran.stderr.contains("another version"), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("which-version"), "{command:?}: {ran:?}");
    }
    assert!(left(&site) == before, "something was changed");
    heads.iter().for_each(|&at| file.write_all_at(&word, at).unwrap());
    site.recover().expect(0);
    assert!(fs::read(site.store.join("file")).unwrap() == vec![b'x'; 1 << 20]);
}

#[test]
fn a_library_of_another_version_is_refused_before_the_program_runs() {
    let site = Site::new(&LAZY);
    let built = Path::new(harness::FOREBAY).parent().unwrap();
    let places = [built.join("deps"), built.to_owned()];
    let from =
        places.iter().map(|place| place.join("libforebay_preload.so")).find(|path| path.is_file());
    let mut library = fs::read(from.unwrap()).unwrap();
    // One from before it said so.
    let name = b".forebay.layout\0";
    let at = library.windows(name.len()).position(|bytes| bytes == name).expect("the section");
    library[at + 1] = b'x';
    let other = site.out.join("library.so");
    fs::write(&other, &library).unwrap();
    let mut command = site.buffered(&["touch", "file"]);
    command.env("FOREBAY_PRELOAD", &other);
    let ran = site.end(command).expect(125);
    assert!(ran.stderr.contains("is of another version than this command"), "{ran:?}");
    assert!(!site.store.join("file").exists(), "the program has run");
    library[at + 1] = b'f';
    fs::write(&other, &library).unwrap();
    let mut command = site.buffered(&["touch", "file"]);
    command.env("FOREBAY_PRELOAD", &other);
    site.end(command).expect(0);
    assert!(site.store.join("file").exists());
}

/// Everything is on the store then, and no program is left that could miss anything.
#[test]
fn a_manager_that_is_killed_while_it_removes_its_pool_leaves_none_that_is_damaged() {
    if !cfg!(debug_assertions) {
        return skip("crash points are only in builds with debug assertions");
    }
    // RAM overflows to the file tier, which keeps what was drained.
    let site = Site::new(&TINY);
    let mark = site.out.join("killed");
    for point in ["manager.table-gone", "manager.slots-gone", "manager.unmarked"] {
        for next in ["recover", "run", "fsck"] {
            let _ = fs::remove_file(&mark);
            let mut manager = site.forebay(&["node", "--config", site.config.to_str().unwrap()]);
            manager.env("FOREBAY_CRASH", format!("{point}:1")).env("FOREBAY_CRASH_ONCE", &mark);
            let manager = site.start(manager);
            wait_for("the manager", LIMIT, || {
                let status = site.end(site.forebay(&["status"])).stdout;
                status.contains("node manager").then_some(())
            });
            site.end(site.buffered(&["bash", "-c", "seq 700000 > file; seq 9 > small"])).expect(0);
            kill(manager.pid(), Signal::TERM);
            manager.end();
            assert_eq!(fs::read_to_string(&mark).unwrap().trim(), point);
            assert_eq!(site.pools().len(), 1, "{point}");
            let said = match next {
                "run" => site.end(site.buffered(&["wc", "-l", "file"])),
                command => site.end(site.forebay(&[command])),
            };
            let said = said.expect(0);
            let all = format!("{}{}", said.stdout, said.stderr);
            assert!(!all.contains("damaged") && !all.contains("No such file"), "{point}: {all}");
            if next == "fsck" {
                assert!(all.contains(": clean"), "{point}: {all}");
                site.recover().expect(0);
            }
            // A run's manager ends a moment after it.
            wait_for("the end of the pool", LIMIT, || site.pools().is_empty().then_some(()));
            assert_eq!(
                fs::read_to_string(site.store.join("file")).unwrap().lines().count(),
                700_000
            );
        }
    }
}
