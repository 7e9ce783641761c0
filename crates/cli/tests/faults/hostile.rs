//! Other users, links in the way, and clients of the same user that send rubbish: no user gets in,
//! no other file is touched, and the others go on.

use crate::harness::{
    self, AS_NOBODY, FOREBAY, LAZY, LIMIT, Running, Site, USUAL, is_alive, wait_for, works,
};
use forebay_pool::FileId;
use forebay_pool::Segment;
use forebay_pool::layout::{ClientSlot, FileFlags, FileRecord};
use forebay_pool::message::{MESSAGE_BYTES, Message, StageEnd};
use forebay_pool::segment::open_pool;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A run that has written a file and waits.
struct Target {
    site: Site,
    run: Option<Running>,
    manager: u32,
}

/// A predictor that expects the block that is read.
const SAME: &str = "(module (import \"forebay\" \"expect\" (func $expect (param i64 i64)))
    (func (export \"forebay_read\") (param i32 i64 i64 i32)
        (call $expect (local.get 1) (i64.const 1))))";

impl Target {
    fn new() -> Self {
        let site = Site::new(&LAZY);
        if cfg!(feature = "wasm") {
            fs::write(site.root().join("same.wasm"), wat::parse_str(SAME).unwrap()).unwrap();
            let config = fs::read_to_string(&site.config).unwrap();
            let rule = "[[rule]]\npath = \"*\"\npredictor = \"same.wasm\"\n";
            fs::write(&site.config, config + rule).unwrap();
        }
        let script = "exec 5<> file; seq 100000 >&5; echo other > other; exec 6<> open; echo x >&6
            echo done > $OUT/done
            until [ -e $OUT/end ]; do sleep 0.02; done; echo more >&5";
        let run = site.start(site.buffered(&["bash", "-c", script]));
        wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
        let manager = site.status().manager;
        Target { site, run: Some(run), manager }
    }

    fn instance(&self) -> PathBuf {
        self.site.instances().next().unwrap().unwrap().path()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.instance().join("socket")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn segment(&self) -> Segment {
        let file = open_pool(&self.site.pools()[0]).unwrap();
        Segment::attach(file.as_fd()).unwrap()
    }

    /// The manager is the one that it was, and answers others.
    fn assert_at_work(&self, what: &str) {
        assert!(is_alive(self.manager), "{what}: {}", self.site.log());
        assert_eq!(ask(&self.connect(), Message::Hold), Some(Message::Held), "{what}");
    }

    /// Everything goes on and drains.
    fn end(mut self) {
        fs::write(self.site.out.join("end"), "").unwrap();
        let ran = self.run.take().unwrap().end().expect(0);
        assert!(!ran.stderr.contains("starting another"), "{ran:?}");
        let wanted: String = (1..=100_000).map(|n| format!("{n}\n")).collect::<String>() + "more\n";
        let got = fs::read_to_string(self.site.store.join("file")).unwrap();
        harness::assert_same_bytes("file", got.as_bytes(), wanted.as_bytes());
        assert_eq!(fs::read_to_string(self.site.store.join("other")).unwrap(), "other\n");
    }
}

/// Sends bytes with descriptors.
fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// The next message; `None` if the other end closed.
fn answer(mut stream: &UnixStream) -> Option<Message> {
    let mut packet = [0; MESSAGE_BYTES];
    stream.read_exact(&mut packet).ok()?;
    Message::decode(&packet)
}

fn ask(stream: &UnixStream, message: Message) -> Option<Message> {
    send(stream, &message.encode(), &[]).then(|| answer(stream))?
}

/// Numbers from a seed that is printed, or given in FOREBAY_SEED.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7919);
        println!("FOREBAY_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 << 20)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 7) % limit
    }
}

/// How long a fuzzer goes on.
fn fuzz_time() -> Duration {
    let minutes = std::env::var("FOREBAY_FUZZ_MINUTES").ok().and_then(|text| text.parse().ok());
    minutes.map_or(Duration::from_secs(4), |minutes: f64| Duration::from_secs_f64(minutes * 60.0))
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        at += 1;
        if path.is_dir() {
            found.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

#[test]
fn everything_that_is_made_is_its_users_alone() {
    let target = Target::new();
    let site = &target.site;
    let mut made = below(&site.runtime());
    made.extend(below(&site.nvme).into_iter().skip(1));
    made.extend(site.pools());
    assert!(made.len() >= 8, "{made:?}");
    for path in made {
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o077, 0, "{}: {:o}", path.display(), found.mode());
        assert_eq!(found.uid(), rustix::process::geteuid().as_raw(), "{}", path.display());
    }
    target.end();
}

#[test]
fn another_user_gets_nowhere() {
    let target = Target::new();
    let site = &target.site;
    if !site.compile("connect.c", &[]) || !site.share() {
        return target.end();
    }
    let as_other = |words: &[&str]| {
        let mut command = site.command(Path::new("/"), AS_NOBODY[0]);
        command.args(&AS_NOBODY[1..]).args(words);
        site.end(command)
    };
    let mut private = below(&target.instance());
    private.extend(below(&site.nvme).into_iter().skip(1));
    private.extend(site.pools());
    for path in private.iter().filter(|path| path.is_file()) {
        let path = match path.starts_with(site.shm()) {
            true => site.seen(path),
            false => path.clone(),
        };
        let path = path.to_str().unwrap();
        assert_ne!(as_other(&["head", "-c1", path]).code, 0, "{path} can be read");
        assert_ne!(as_other(&["sh", "-c", "echo >> $0", path]).code, 0, "{path} can be written");
    }
    assert_ne!(as_other(&["ls", site.runtime().to_str().unwrap()]).code, 0);
    let program = site.root().join("connect").to_str().unwrap().to_owned();
    let socket = target.instance().join("socket");
    let connect = || as_other(&[&program, socket.to_str().unwrap()]).expect(0).stdout;
    assert_eq!(connect(), "not connected\n");
    // Even one whose modes were opened by mistake.
    for (path, mode) in
        [(site.runtime(), 0o711), (target.instance(), 0o711), (socket.clone(), 0o666)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(connect(), "cut off\n");
    for (path, mode) in [(site.runtime(), 0o700), (target.instance(), 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(site.log().contains("refused a connection of another user"), "{}", site.log());
    target.assert_at_work("after another user's try");
    target.end();
}

#[test]
fn a_directory_that_a_manager_with_another_runtime_folder_buffers_is_refused() {
    let target = Target::new();
    let site = &target.site;
    // The other manager is known by its pool.
    let folder = site.out.join("run");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(site.store.join("below")).unwrap();
    let below = site.store.join("below");
    for backing in [&site.store, &below] {
        let words = ["run", "--backing", backing.to_str().unwrap(), "--", "touch", "made"];
        let mut command = site.forebay(&words);
        command.env("FOREBAY_RUNTIME_DIR", &folder).env("FOREBAY_SCRATCH", &site.out);
        let ran = site.end(command);
        assert_eq!(ran.code, 125, "{ran:?}");
        assert!(ran.stderr.contains("is served with another configuration"), "{ran:?}");
    }
    assert!(!site.store.join("made").exists());
    target.end();
}

#[test]
fn links_in_the_way_are_not_followed() {
    let site = Site::new(&USUAL);
    // Which names the instance has.
    let script = "ls $FOREBAY_RUNTIME_DIR > $OUT/name; ls $OUT/../nvme > $OUT/slots";
    site.end(site.buffered(&["bash", "-c", script])).expect(0);
    let instance = fs::read_to_string(site.out.join("name")).unwrap().trim().to_owned();
    let slots = fs::read_to_string(site.out.join("slots")).unwrap();
    wait_for("the end", LIMIT, || site.processes().is_empty().then_some(()));
    let victim = site.out.join("victim");
    fs::write(&victim, "precious").unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let pool = site.shm().join(format!("forebay-{uid}-{instance}.pool"));
    let folder = site.runtime().join(&instance);
    let elsewhere = site.out.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    let mut places = vec![(pool, &victim), (folder, &elsewhere)];
    for name in slots.lines() {
        places.push((site.nvme.join(name), &victim));
    }
    for (place, leads_to) in places {
        symlink(leads_to, &place).unwrap();
        let ran = site.end(site.buffered(&["touch", "made"]));
        assert_ne!(ran.code, 0, "{}: {ran:?}", place.display());
        let name = place.file_name().unwrap().to_str().unwrap();
        assert!(ran.stderr.contains(name), "{name}: {ran:?}");
        assert!(!site.store.join("made").exists(), "the command was started");
        fs::remove_file(&place).unwrap();
        wait_for("the end", LIMIT, || site.processes().is_empty().then_some(()));
        let _ = fs::remove_dir_all(site.runtime().join(&instance));
        site.pools().into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
        below(&site.nvme).into_iter().skip(1).for_each(|file| fs::remove_file(file).unwrap());
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    // In the folder that is the user's alone, what lies in the way of the socket is replaced.
    fs::create_dir(site.runtime().join(&instance)).unwrap();
    fs::set_permissions(site.runtime().join(&instance), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&victim, site.runtime().join(&instance).join("socket")).unwrap();
    site.end(site.buffered(&["touch", "made"])).expect(0);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // The folder of all instances.
    wait_for("the end", LIMIT, || site.processes().is_empty().then_some(()));
    fs::remove_dir_all(site.runtime()).unwrap();
    symlink(&elsewhere, site.runtime()).unwrap();
    let ran = site.end(site.buffered(&["true"]));
    assert!(ran.code != 0 && ran.stderr.contains("is not a folder of yours"), "{ran:?}");
    fs::remove_file(site.runtime()).unwrap();
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    let target = Target::new();
    let segment = target.segment();
    let of = |name: &str| {
        let path = target.site.store.join(name);
        let is_it = |&file: &FileId| {
            segment.path_of(segment.file(file)) == path.as_os_str().as_encoded_bytes()
        };
        segment.files().live().find(is_it).unwrap()
    };
    let file = of("file");
    assert!(segment.file(file).has(FileFlags::REGISTERED));
    let generation = segment.file(file).generation.load(Ordering::Relaxed);
    let fifo = target.site.out.join("fifo");
    assert!(works(&["mkfifo", fifo.to_str().unwrap()]));
    let mut all = File::options();
    let victim = target.site.out.join("victim");
    fs::write(&victim, "precious").unwrap();
    let path_only = rustix::fs::OFlags::PATH.bits() as i32;
    let wrong = [
        ("passwd", File::open("/etc/passwd").unwrap()),
        ("folder", File::open(&target.site.store).unwrap()),
        ("device", File::options().write(true).open("/dev/null").unwrap()),
        ("outside", File::options().write(true).open(&victim).unwrap()),
        ("another", File::options().write(true).open(target.site.store.join("other")).unwrap()),
        ("reader", File::open(target.site.store.join("file")).unwrap()),
        (
            "path",
            all.read(true).custom_flags(path_only).open(target.site.store.join("file")).unwrap(),
        ),
        ("fifo", File::options().read(true).write(true).open(&fifo).unwrap()),
    ];
    for (name, fd) in &wrong {
        let stream = target.connect();
        let is_it = ["reader", "path"].contains(name);
        for to_open in [false, true].into_iter().filter(|to_open| !(*to_open && is_it)) {
            let register = Message::Register { file, generation, to_open }.encode();
            assert!(send(&stream, &register, &[fd.as_fd()]), "{name}");
            assert_eq!(answer(&stream), Some(Message::Refused), "{name}");
        }
        // Only a hint: it is forgotten, and never waited for.
        let stage = Message::Stage { file, generation, first: 0, blocks: 4 }.encode();
        assert!(send(&stream, &stage, &[fd.as_fd()]), "{name}");
        assert_eq!(ask(&stream, Message::Hold), Some(Message::Held), "{name}");
        if !is_it {
            let (first, blocks, tier, ticket) = (0, 4, 0, 7);
            let order = Message::StageIn { file, generation, first, blocks, tier, ticket }.encode();
            assert!(send(&stream, &order, &[fd.as_fd()]), "{name}");
            let refused = Message::StagedIn { ticket, blocks: 0, end: StageEnd::Changed, came: 0 };
            assert_eq!(answer(&stream), Some(refused), "{name}");
        }
    }
    let stream = target.connect();
    for (first, tier) in [(u64::MAX, 0), (0, u8::MAX)] {
        let good = File::open(target.site.store.join("file")).unwrap();
        let (blocks, ticket) = (u16::MAX, 1);
        let order = Message::StageIn { file, generation, first, blocks, tier, ticket };
        assert!(send(&stream, &order.encode(), &[good.as_fd()]));
        assert_eq!(answer(&stream), Some(Message::Refused));
    }
    let numbers = [u32::MAX, 1 << 20].map(FileId::from_raw);
    for (file, generation) in [(numbers[0], generation), (numbers[1], 0), (file, generation + 1)] {
        let good = File::options().write(true).open(target.site.store.join("file")).unwrap();
        for to_open in [false, true] {
            let register = Message::Register { file, generation, to_open }.encode();
            assert!(send(&stream, &register, &[good.as_fd()]));
            assert_eq!(answer(&stream), Some(Message::Refused));
        }
        let stage = Message::Stage { file, generation, first: u64::MAX, blocks: u32::MAX }.encode();
        assert!(send(&stream, &stage, &[good.as_fd()]));
    }
    for offset in [0, 1 << 62, u64::MAX] {
        for stride in [i64::MIN, -1, 0, i64::MAX] {
            let good = File::open(target.site.store.join("file")).unwrap();
            let (units, pieces) = (u16::MAX, u16::MAX);
            let expect = Message::Expect { file, generation, offset, stride, units, pieces };
            assert!(send(&stream, &expect.encode(), &[good.as_fd()]));
        }
    }
    assert_eq!(
        ask(&stream, Message::Register { file, generation, to_open: true }),
        Some(Message::Refused)
    );
    target.assert_at_work("after wrong descriptors");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    target.end();
}

#[test]
fn a_client_that_never_stops_does_not_keep_the_others_waiting() {
    let target = Target::new();
    let stream = target.connect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (mut flood, stop) = (target.connect(), &stop);
            scope.spawn(move || {
                flood.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                let file = FileId::from_raw(0);
                let stage = Message::Stage { file, generation: 0, first: 0, blocks: 0 }.encode();
                let packets = stage.repeat(64);
                while !stop.load(Ordering::Relaxed) {
                    let _ = flood.write(&packets);
                }
            });
        }
        for _ in 0..50 {
            assert_eq!(ask(&stream, Message::Hold), Some(Message::Held));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(stream);
    target.assert_at_work("after a flood");
    target.end();
}

#[test]
fn no_message_brings_the_manager_down() {
    let target = Target::new();
    let mut random = Random::new();
    let (end, mut count) = (Instant::now() + fuzz_time(), 0);
    let files = ["file", "other", "open"].map(|name| target.site.store.join(name));
    let fds: Vec<File> = files
        .iter()
        .map(|path| File::options().read(true).write(true).open(path).unwrap())
        .chain([File::open("/etc/passwd").unwrap(), File::open("/").unwrap()])
        .collect();
    while Instant::now() < end {
        let stream = target.connect();
        // What is cut short goes on in the next one.
        let mut begun = Vec::new();
        for _ in 0..=random.below(6) {
            let mut bytes = match random.below(7) {
                0 => (0..random.below(200)).map(|_| random.next() as u8).collect::<Vec<u8>>(),
                kind => {
                    let number = random.below(8) as u32;
                    let (file, generation) = (FileId::from_raw(number), random.below(4) as u32);
                    let blocks = random.next() as u32;
                    let (offset, stride) = (random.next(), random.next() as i64);
                    let (few, pieces) = (blocks as u16, (blocks >> 16) as u16);
                    let message = match kind {
                        3 => {
                            Message::Expect { file, generation, offset, stride, units: few, pieces }
                        }
                        1 => Message::Register { file, generation, to_open: few % 2 == 0 },
                        6 => Message::Read {
                            file,
                            generation,
                            reader: random.next() as u32,
                            block: random.next() >> random.below(64),
                            blocks: few,
                            is_up: few % 2 == 0,
                        },
                        2 => Message::Stage { file, generation, first: random.next(), blocks },
                        5 => Message::StageIn {
                            file,
                            generation,
                            first: random.next() >> random.below(64),
                            blocks: few,
                            tier: random.below(4) as u8,
                            ticket: blocks,
                        },
                        _ => Message::Drained { failing: number, bytes: random.next() },
                    };
                    message.encode().to_vec()
                }
            };
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next() as u8;
                }
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
            // Any process may stop it, or keep it when its run has ended.
            let ends = |part| {
                let message = Message::decode(part);
                message.is_some_and(|it| matches!(it, Message::Stop | Message::Keep { .. }))
            };
            begun.extend_from_slice(&bytes);
            let stops = begun.chunks(MESSAGE_BYTES).any(ends);
            begun.drain(..begun.len() / MESSAGE_BYTES * MESSAGE_BYTES);
            let some = random.below(7).saturating_sub(2) as usize;
            let sent: Vec<_> =
                fds.iter().cycle().skip(some * 3).take(some).map(File::as_fd).collect();
            if stops || bytes.is_empty() || !send(&stream, &bytes, &sent) {
                break;
            }
            count += 1;
        }
        drop(stream);
        if count % 50 == 0 {
            target.assert_at_work("while messages are fuzzed");
        }
    }
    assert!(count > 100, "only {count} messages");
    target.assert_at_work("after messages were fuzzed");
    target.end();
}

/// The words of a structure in shared memory, which any process that has it mapped may write.
fn words<T>(shared: &T) -> &[AtomicU64] {
    let count = size_of::<T>() / 8;
    // SAFETY: made of atomics in shared memory; a process with a fault may write them in any way.
    unsafe { std::slice::from_raw_parts((shared as *const T).cast(), count) }
}

#[test]
fn no_word_in_shared_memory_brings_the_manager_down() {
    let mut random = Random::new();
    let (end, mut count) = (Instant::now() + fuzz_time(), 0);
    let victim_text = "precious".repeat(1000);
    while Instant::now() < end || count == 0 {
        let site = Site::new(&USUAL);
        let victim = site.out.join("victim");
        fs::write(&victim, &victim_text).unwrap();
        let script = "for n in 1 2 3 4 5 6; do seq 30000 > file$n; done; exec 5<> open; echo x >&5
            echo done > $OUT/done; exec sleep 1000";
        let run = site.start(site.buffered(&["bash", "-c", script]));
        wait_for("the script", LIMIT, || site.out.join("done").exists().then_some(()));
        let manager = site.status().manager;
        let file = open_pool(&site.pools()[0]).unwrap();
        let segment = Segment::attach(file.as_fd()).unwrap();
        let files: Vec<FileId> = segment.files().live().collect();
        // One claims to be a file elsewhere.
        let found = fs::metadata(&victim).unwrap();
        let record: &FileRecord = segment.file(files[0]);
        record.device.store(found.dev(), Ordering::Relaxed);
        record.inode.store(found.ino(), Ordering::Relaxed);
        segment.set_path(record, victim.as_os_str().as_encoded_bytes());
        let slots = segment.clients().used().map(|(slot, _)| slot + 1).max().unwrap_or(1);
        for _ in 0..200 {
            let value = match random.below(5) {
                0 => 0,
                1 => u64::MAX,
                2 => random.below(100),
                3 => random.next() << 32 | random.below(100),
                _ => random.next() ^ random.next() << 31,
            };
            match random.below(4) {
                0 => {
                    let queue = match random.below(2) {
                        0 => segment.queue(),
                        _ => segment.asks(),
                    };
                    let words = words(queue);
                    words[random.below(words.len() as u64) as usize]
                        .store(value, Ordering::Relaxed);
                }
                1 if slots > 1 => {
                    let slot: &ClientSlot =
                        segment.client(1 + random.below(u64::from(slots) - 1) as u32);
                    let words = words(slot);
                    words[random.below(words.len() as u64) as usize]
                        .store(value, Ordering::Relaxed);
                }
                _ => {
                    let record = segment.file(files[random.below(files.len() as u64) as usize]);
                    let words = words(record);
                    words[random.below(words.len() as u64) as usize]
                        .store(value, Ordering::Relaxed);
                }
            }
            count += 1;
        }
        segment.header().work_wanted.fetch_add(1, Ordering::Relaxed);
        // Its threads are all there, its rounds go on, and it answers.
        let socket = site.instances().next().unwrap().unwrap().path().join("socket");
        for _ in 0..3 {
            let stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            assert_eq!(ask(&stream, Message::Hold), Some(Message::Held), "{}", site.log());
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(is_alive(manager), "{}", site.log());
        assert!(!site.log().contains("panicked"), "{}", site.log());
        assert_eq!(fs::read_to_string(&victim).unwrap(), victim_text);
        site.end(site.forebay(&["status"])).expect(0);
        site.kill_all();
        run.end();
        assert_eq!(fs::read_to_string(&victim).unwrap(), victim_text);
        site.pools().into_iter().for_each(|pool| fs::remove_file(pool).unwrap());
        for left in [&site.runtime(), &site.nvme] {
            for path in fs::read_dir(left).unwrap().map(|entry| entry.unwrap().path()) {
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            }
        }
    }
    assert!(Path::new(FOREBAY).exists() && count >= 200);
}
