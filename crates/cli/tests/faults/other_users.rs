//! Another user of the node, who knows every name beforehand and can write to /dev/shm and to the
//! folder of a file tier as every user can: what they do there neither lets them read or change
//! anything, nor keeps Forebay from its work. Root is the victim, and an ordinary user is.

use crate::harness::{self, LAZY, LONG, Ran, Site, as_user, kill, sees, wait_for, works};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ATTACKER: u32 = 65533;
const VICTIMS: [u32; 2] = [0, 65534];

/// Ends a process with the test.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A site of `victim`'s, whose file tier lies in a folder that every user can write to. `None`, and
/// loud, where there can be no two users.
struct Scene {
    site: Site,
    victim: u32,
}

impl Scene {
    fn of(victim: u32) -> Option<Scene> {
        let site = Site::new(&LAZY);
        if !site.share() {
            return None;
        }
        for folder in [&site.store, &site.out, &site.runtime()] {
            chown(folder, Some(victim), Some(victim)).unwrap();
        }
        fs::set_permissions(&site.nvme, fs::Permissions::from_mode(0o1777)).unwrap();
        Some(Scene { site, victim })
    }

    fn command(&self, user: u32, program: &str, words: &[&str]) -> Command {
        let mut command = self.site.command(&self.site.store, program);
        command.args(words);
        as_user(&mut command, user);
        command
    }

    /// `forebay` as the victim.
    fn forebay(&self, words: &[&str]) -> Ran {
        self.site.end(self.command(self.victim, self.site.program(), words))
    }

    /// What a run with other names than the usual ones leaves when it is killed. Returns the usual
    /// ones, which another user has.
    fn left_under_other_names(&self) -> Vec<PathBuf> {
        let site = &self.site;
        let names = self.names();
        names.iter().for_each(|name| drop(plant("file", name, &site.out)));
        let script = "seq 50000 > file; sync file; : > $OUT/left; exec sleep 1000";
        let run = site.start(self.run_command(script));
        wait_for("the script", LONG, || site.out.join("left").exists().then_some(()));
        site.kill_all();
        run.end();
        names
    }

    /// Removes the pools, but not what was `planted`, as a reboot does.
    fn lose_memory(&self, planted: &[PathBuf]) {
        let pools = self.files().into_iter().filter(|path| path.starts_with(self.site.shm()));
        pools.filter(|path| !planted.contains(path)).for_each(|p| fs::remove_file(p).unwrap());
    }

    fn run_command(&self, script: &str) -> Command {
        let config = self.site.config.to_str().unwrap();
        let options = ["run", "--config", config, "--durability", "nonvolatile", "--"];
        let words = [&options[..], &["bash", "-c", script]].concat();
        self.command(self.victim, self.site.program(), &words)
    }

    fn run(&self, script: &str) -> Ran {
        self.site.end(self.run_command(script))
    }

    /// What is there now of pool, slots, table, journal and kept configuration, as this process
    /// sees it.
    fn files(&self) -> Vec<PathBuf> {
        let in_folder = |folder: &Path| {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        [in_folder(&self.site.shm()), in_folder(&self.site.nvme)].concat()
    }

    /// The names that a run takes if they are free: those are free again.
    fn names(&self) -> Vec<PathBuf> {
        let names = self.site.out.join("names");
        let run = self.site.start(self.run_command(
            "seq 10 > file; sync file; : > $OUT/up; until [ -e $OUT/end ]; do sleep 0.01; done",
        ));
        wait_for("the run", LONG, || self.site.out.join("up").exists().then_some(()));
        let found = self.files();
        fs::write(self.site.out.join("end"), "").unwrap();
        run.end().expect(0);
        wait_for("its end", LONG, || self.files().is_empty().then_some(()));
        let _ = fs::remove_file(names);
        assert_eq!(found.len(), 5, "pool, slots, table, journal, configuration: {found:?}");
        found
    }
}

/// The other name of a file with two.
fn other_name(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.theirs", path.display()))
}

/// Takes a name for the attacker, and keeps what it names open if it can be read.
fn plant(kind: &str, path: &Path, precious: &Path) -> Option<File> {
    let all = || {
        chown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    };
    match kind {
        "file" => {
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            all();
            return Some(file);
        }
        "hard link" => {
            let other = other_name(path);
            fs::write(&other, "").unwrap();
            fs::hard_link(&other, path).unwrap();
            all();
        }
        "fifo" => {
            assert!(works(&["mkfifo", path.to_str().unwrap()]));
            all();
        }
        "symlink" => {
            symlink(precious, path).unwrap();
            std::os::unix::fs::lchown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
        }
        _ => {
            fs::create_dir(path).unwrap();
            chown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
        }
    }
    None
}

#[test]
fn planted_names_are_neither_used_nor_in_the_way() {
    for victim in VICTIMS {
        let Some(scene) = Scene::of(victim) else { return };
        let site = &scene.site;
        let names = scene.names();
        let precious = site.out.join("precious");
        fs::write(&precious, "precious").unwrap();
        for kind in ["file", "hard link", "fifo", "symlink", "folder"] {
            let what = format!("{kind}, victim {victim}");
            let held: Vec<_> = names.iter().filter_map(|n| plant(kind, n, &precious)).collect();
            let planted = scene.files().len();
            let script = "seq 50000 > file && sync file && $FOREBAY status && $FOREBAY fsck";
            let ran = scene.run(script);
            assert_eq!(ran.code, 0, "{what}: {ran:?}");
            let said = &ran.stdout;
            assert!(said.contains(": node manager") && said.contains("in use;"), "{what}: {ran:?}");
            assert_eq!(sees(&site.store.join("file")).lines().count(), 50_000, "{what}");
            wait_for("its end", LONG, || (scene.files().len() == planted).then_some(()));
            for mut file in held {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).unwrap();
                assert!(bytes.is_empty(), "{what}: {} bytes can be read", bytes.len());
            }
            assert_eq!(sees(&precious), "precious", "{what}");
            for name in &names {
                let found = fs::symlink_metadata(name).unwrap();
                assert_eq!(found.uid(), ATTACKER, "{what}: {}", name.display());
                match found.is_dir() {
                    true => fs::remove_dir(name).unwrap(),
                    false => fs::remove_file(name).unwrap(),
                }
                let _ = fs::remove_file(other_name(name));
            }
        }
    }
}

/// It looked for the instance's pool before that was there, and where it would be if its name was
/// not taken.
#[test]
fn a_stop_finds_the_pool_that_is_made_under_another_name_while_it_waits() {
    if !cfg!(debug_assertions) {
        return harness::skip("pauses are only in builds with debug assertions");
    }
    let Some(scene) = Scene::of(VICTIMS[0]) else { return };
    let site = &scene.site;
    let names = scene.left_under_other_names();
    scene.lose_memory(&names);
    // The next manager brings back what is left, and has no pool yet.
    let [held, pauses] = ["held", "pauses"].map(|name| site.out.join(name));
    fs::write(&held, "").unwrap();
    let script = "exec 3> new; : > $OUT/began; until [ -e $OUT/over ]; do sleep 0.02; done";
    let mut run = scene.run_command(script);
    run.env("FOREBAY_PAUSE", format!("rebuild.read:1:while={}", held.display()));
    run.env("FOREBAY_PAUSE_IN", "node").env("FOREBAY_PAUSE_LOG", &pauses);
    let run = site.start(run);
    wait_for("the pause", LONG, || pauses.exists().then_some(()));
    let config = site.config.to_str().unwrap();
    let words = ["stop", "--config", config, "--durability", "nonvolatile"];
    let mut stopping = site.start(site.forebay(&words));
    wait_for("the stop", LONG, || {
        stopping.stderr().contains("waiting for a node manager that recovers").then_some(())
    });
    // A run that joins later would take the stop back.
    kill(stopping.pid(), Signal::STOP);
    fs::remove_file(&held).unwrap();
    wait_for("the run", LONG, || site.out.join("began").exists().then_some(()));
    kill(stopping.pid(), Signal::CONT);
    wait_for("the end of the stop", LONG, || (!stopping.is_running()).then_some(()));
    let ran = stopping.end().expect(0);
    assert!(ran.stderr.contains("the node manager ends with the last of them"), "{ran:?}");
    fs::write(site.out.join("over"), "").unwrap();
    run.end().expect(0);
    names.iter().for_each(|name| fs::remove_file(name).unwrap());
}

#[test]
fn what_was_left_under_other_names_is_found_and_drained() {
    for (victim, reboot) in [(VICTIMS[0], false), (VICTIMS[1], true)] {
        let Some(scene) = Scene::of(victim) else { return };
        let site = &scene.site;
        let names = scene.left_under_other_names();
        if reboot {
            scene.lose_memory(&names);
        }
        // The names are free again, which must not hide what has others.
        names.iter().for_each(|name| fs::remove_file(name).unwrap());
        assert_ne!(sees(&site.store.join("file")).lines().count(), 50_000);
        let said = scene.forebay(&["fsck"]).expect(0);
        assert!(!said.stdout.contains("no pools"), "{said:?}");
        scene.forebay(&["recover"]).expect(0);
        assert_eq!(sees(&site.store.join("file")).lines().count(), 50_000, "reboot {reboot}");
        assert_eq!(scene.files(), Vec::<PathBuf>::new());
    }
}

#[test]
fn another_user_can_neither_read_nor_change_nor_remove_anything() {
    for victim in VICTIMS {
        let Some(scene) = Scene::of(victim) else { return };
        let site = &scene.site;
        let script =
            "seq 50000 > file; sync file; : > $OUT/up; until [ -e $OUT/end ]; do sleep 0.01; done";
        let run = site.start(scene.run_command(script));
        wait_for("the run", LONG, || site.out.join("up").exists().then_some(()));
        let files = scene.files();
        assert_eq!(files.len(), 5, "{files:?}");
        for path in &files {
            let seen = match path.starts_with(site.shm()) {
                true => site.seen(path),
                false => path.clone(),
            };
            let seen = seen.to_str().unwrap();
            for attack in ["head -c1 $0", ": >> $0", "rm -f $0", "mv $0 $0.x", "chmod 666 $0"] {
                let ran = site.end(scene.command(ATTACKER, "sh", &["-c", attack, seen]));
                assert_ne!(ran.code, 0, "{attack} {seen}: {ran:?}");
            }
            let found = fs::symlink_metadata(path).unwrap();
            let facts = (found.uid(), found.mode() & 0o7777, found.nlink());
            assert_eq!(facts, (victim, 0o600, 1), "{}", path.display());
        }
        fs::write(site.out.join("end"), "").unwrap();
        run.end().expect(0);
        assert_eq!(sees(&site.store.join("file")).lines().count(), 50_000);
        wait_for("its end", LONG, || scene.files().is_empty().then_some(()));
    }
}

#[test]
fn what_another_user_has_put_in_the_place_of_a_file_stays() {
    for victim in VICTIMS {
        let Some(scene) = Scene::of(victim) else { return };
        let site = &scene.site;
        // Its owner could remove what is there, as root could.
        chown(&site.nvme, Some(victim), Some(victim)).unwrap();
        let script = "echo text > file; : > $OUT/up; until [ -e $OUT/end ]; do sleep 0.01; done";
        let run = site.start(scene.run_command(script));
        wait_for("the run", LONG, || site.out.join("up").exists().then_some(()));
        let of_slots =
            |path: &PathBuf| path.extension().is_some_and(|e| e == "slots" || e == "index");
        let names: Vec<_> = scene.files().into_iter().filter(of_slots).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        for name in &names {
            fs::remove_file(name).unwrap();
            plant("file", name, &site.out);
        }
        fs::write(site.out.join("end"), "").unwrap();
        run.end().expect(0);
        assert_eq!(sees(&site.store.join("file")), "text\n");
        wait_for("its end", LONG, || (scene.files().len() <= 2).then_some(()));
        for name in &names {
            let found = fs::symlink_metadata(name).unwrap();
            assert_eq!(found.uid(), ATTACKER, "victim {victim}: {}", name.display());
            fs::remove_file(name).unwrap();
        }
    }
}

/// Holds the lock by which managers mark a directory, as a user.
fn hold_mark(folder: &str, user: u32) -> Helper {
    let folder = std::ffi::CString::new(folder).unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    as_user(&mut command, user);
    let lock = move || {
        // SAFETY: system calls with pointers to what lives longer; all zeros are a good lock.
        let good = unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_RDLCK as i16;
            // Both bytes, and all around them.
            (lock.l_start, lock.l_len) = (0, 0);
            let folder = libc::open(folder.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            libc::fcntl(folder, libc::F_OFD_SETLK, &mut lock) == 0
        };
        if good { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: only system calls between fork and exec.
    unsafe { command.pre_exec(lock) };
    Helper(command.spawn().unwrap())
}

#[test]
fn a_lock_of_another_user_is_a_hint_and_no_refusal() {
    for victim in VICTIMS {
        let Some(scene) = Scene::of(victim) else { return };
        // Another manager of the same user, which has marked `/`, too.
        let Some(beside) = Scene::of(victim) else { return };
        let script = ": > $OUT/up; until [ -e $OUT/end ]; do sleep 0.01; done";
        let run = beside.site.start(beside.run_command(script));
        wait_for("the run", LONG, || beside.site.out.join("up").exists().then_some(()));
        for folder in ["/", scene.site.store.to_str().unwrap()] {
            let held = hold_mark(folder, ATTACKER);
            let ran = scene.run("echo text > file; $FOREBAY status");
            assert_eq!(ran.code, 0, "{folder}: {ran:?}");
            assert!(ran.stdout.contains("node manager"), "{folder}: {ran:?}");
            assert_eq!(ran.stderr.matches("a program of another user").count(), 1, "{ran:?}");
            assert_eq!(sees(&scene.site.store.join("file")), "text\n");
            wait_for("its end", LONG, || scene.files().is_empty().then_some(()));
            drop(held);
        }
        let ran = scene.run("echo text > file");
        assert!(!ran.stderr.contains("another user"), "{ran:?}");
        fs::write(beside.site.out.join("end"), "").unwrap();
        run.end().expect(0);
    }
}
