//! Scripts of operations, made from a seed.
//!
//! A script is a list of lines `ACTOR OPERATION ARGUMENT...`, which `programs/fuzz.c` executes.
//! The model kept here is rough: it only makes most operations meaningful. Nothing depends on it
//! being right, so that any subset of the lines is a script as well.

use forebay_placement::Random;

const SLOTS: usize = 16;
const ACTORS: usize = 8;

/// Kinds of operations. Each script has its own mixture of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Open,
    Transfer,
    Vector,
    Seek,
    Size,
    Range,
    Sync,
    Stat,
    Times,
    Names,
    Duplicates,
    Mappings,
    Copies,
    Locks,
    Passing,
    Streams,
    Processes,
    Invalid,
    Races,
    Hints,
}

use Family::*;

/// With how often each is wanted at least, out of about a hundred.
const FAMILIES: [(Family, u64); 20] = [
    (Open, 8),
    (Transfer, 12),
    (Vector, 0),
    (Seek, 1),
    (Size, 1),
    (Range, 0),
    (Sync, 0),
    (Stat, 4),
    (Times, 0),
    (Names, 0),
    (Duplicates, 0),
    (Mappings, 0),
    (Copies, 0),
    (Locks, 0),
    (Passing, 0),
    (Streams, 0),
    (Processes, 1),
    (Invalid, 0),
    (Races, 0),
    (Hints, 0),
];

const NAMES: [&str; 10] = ["a", "b", "c", "D/a", "D/b", "l", "d", "E/a", "m", "none/x"];

#[derive(Clone, Default)]
struct Process {
    open: [bool; SLOTS],
    direct: [bool; SLOTS],
    streams: [bool; 4],
    maps: [bool; 4],
}

pub struct Generator {
    rng: Random,
    weights: Vec<(Family, u64)>,
    /// Exact answers to SEEK_DATA can be compared: nothing is allocated without being written.
    exact_holes: bool,
    names: usize,
    largest: u64,
    processes: Vec<Process>,
    /// The process of each actor that lives.
    actors: [Option<usize>; ACTORS],
    lines: Vec<String>,
}

impl Generator {
    /// A script of about `length` operations.
    pub fn script(seed: u64, length: usize) -> Vec<String> {
        let mut rng = Random::new(seed);
        let weights: Vec<_> = FAMILIES
            .iter()
            .map(|&(family, least)| {
                let usual = rng.pick(&[0, 0, 2, 4, 10]);
                let rare = matches!(family, Sync | Races | Processes | Invalid);
                (family, least + if rare { usual / 3 } else { usual })
            })
            .collect();
        let names = 2 + rng.below(NAMES.len() as u64 - 1) as usize;
        let largest = rng.pick(&[20_000, 300_000, 800_000, 1_500_000]);
        let mut actors = [None; ACTORS];
        actors[0] = Some(0);
        let mut generator = Generator {
            rng,
            weights,
            exact_holes: false,
            names,
            largest,
            processes: vec![Process::default()],
            actors,
            lines: Vec::new(),
        };
        generator.exact_holes = !generator.has(Range);
        for line in ["0 mkdir D", "0 mkdir E"] {
            generator.lines.push(line.to_owned());
        }
        while generator.lines.len() < length {
            generator.step();
        }
        generator.lines
    }

    fn step(&mut self) {
        let alive: Vec<usize> = (0..ACTORS).filter(|&a| self.actors[a].is_some()).collect();
        let actor = self.rng.pick(&alive);
        let process = self.actors[actor].unwrap();
        let total = self.weights.iter().map(|&(_, weight)| weight).sum();
        let mut at = self.rng.below(total);
        let family = self.weights.iter().find(|&&(_, weight)| {
            let here = at < weight;
            at = at.wrapping_sub(weight);
            here
        });
        let family = family.unwrap().0;
        let text = match family {
            Open => self.open(process),
            Transfer => self.transfer(process),
            Vector => self.vector(process),
            Seek => self.seek(process),
            Size => self.size(process),
            Range => self.range(process),
            Sync => self.sync(process),
            Stat => self.stat(process),
            Times => self.times(process),
            Names => self.name_changes(process),
            Duplicates => self.duplicates(process),
            Mappings => self.mappings(process),
            Copies => self.copies(process),
            Locks => self.locks(process),
            Passing => self.passing(process),
            Streams => self.streams(process),
            Processes => self.processes(actor, process),
            Invalid => self.invalid(process),
            Races => self.races(),
            Hints => self.hints(process),
        };
        self.lines.push(format!("{actor} {text}"));
    }

    fn has(&self, wanted: Family) -> bool {
        self.weights.iter().any(|&(family, weight)| family == wanted && weight > 0)
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.rng.below(self.names as u64) as usize]
    }

    /// Mostly a slot that has a descriptor.
    fn slot(&mut self, process: usize) -> usize {
        let open: Vec<_> = (0..SLOTS).filter(|&s| self.processes[process].open[s]).collect();
        if open.is_empty() || self.rng.one_in(30) {
            return self.rng.below(SLOTS as u64) as usize;
        }
        self.rng.pick(&open)
    }

    /// A slot to put something into; mostly a small number of them is in use.
    fn new_slot(&mut self, process: usize) -> usize {
        let most = if self.rng.one_in(4) { SLOTS } else { 6 };
        let slot = self.rng.below(most as u64) as usize;
        self.processes[process].open[slot] = true;
        slot
    }

    fn near(&mut self, to: u64) -> u64 {
        (to + self.rng.below(3)).saturating_sub(1)
    }

    fn offset(&mut self) -> i64 {
        let offset = match self.rng.below(12) {
            0 => 0,
            1 => self.rng.below(10),
            2 | 3 => self.rng.below(5000),
            4 => {
                let page = self.rng.below(80);
                self.near(page * 4096)
            }
            5 => {
                let block = self.rng.below(4);
                self.near(block << 18)
            }
            _ => self.rng.below(self.largest),
        };
        if offset > self.largest { offset as i64 % 5000 } else { offset as i64 }
    }

    /// Now and then one that cannot be.
    fn any_offset(&mut self) -> i64 {
        if self.rng.one_in(60) {
            return self.rng.pick(&[
                -1,
                i64::MIN,
                i64::MAX,
                1 << 44,
                (1 << 44) - 1,
                1 << 62,
                9 << 20,
            ]);
        }
        self.offset()
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.below(16) {
            0 => self.rng.below(2),
            1..=5 => self.rng.below(300),
            6 => {
                let page = self.rng.pick(&[1, 2, 16]);
                self.near(page * 4096)
            }
            7 if self.largest > 20_000 => self.near(1 << 18),
            8 if self.largest > 20_000 => self.rng.below(400_000),
            9 if self.largest > 20_000 => self.rng.below(60_000),
            _ => self.rng.below(12_000),
        }
    }

    fn seed(&mut self) -> u64 {
        self.rng.below(100_000)
    }

    fn open(&mut self, process: usize) -> String {
        if self.rng.one_in(5) {
            let slot = self.slot(process);
            self.processes[process].open[slot] = false;
            return format!("close {slot}");
        }
        let slot = self.new_slot(process);
        let name = self.name();
        self.processes[process].direct[slot] = false;
        match self.rng.below(30) {
            0 => return format!("creat {slot} {name} 0644"),
            1 => {
                let append = self.rng.below(2);
                return format!("mkstemp {slot} {append}");
            }
            2 => {
                let access =
                    self.rng.pick(&["RDWR", "WRONLY", "RDWR|EXCL", "RDWR|APPEND", "RDONLY"]);
                let folder = self.rng.pick(&[".", "D", "none"]);
                return format!("open {slot} {folder} TMPFILE|{access} 0600");
            }
            _ => {}
        }
        let mut flags = String::from(self.rng.pick(&["RDWR", "RDWR", "RDWR", "WRONLY", "RDONLY"]));
        let optional: [(&str, u64); 12] = [
            ("CREAT", 0),
            ("TRUNC", 12),
            ("APPEND", 6),
            ("EXCL", 12),
            ("CLOEXEC", 4),
            ("SYNC", 100),
            ("DSYNC", 100),
            ("NOFOLLOW", 20),
            ("DIRECTORY", 60),
            ("NONBLOCK", 20),
            ("PATH", 50),
            ("DIRECT", 25),
        ];
        for (flag, times) in optional {
            let wanted = if times == 0 { !self.rng.one_in(5) } else { self.rng.one_in(times) };
            if wanted && !(flag == "DIRECT" && flags.contains("APPEND")) {
                flags.push('|');
                flags.push_str(flag);
            }
        }
        self.processes[process].direct[slot] = flags.contains("DIRECT");
        let how = self.rng.pick(&["open", "open", "openat"]);
        let mode = self.rng.pick(&["0644", "0644", "0600", "0755"]);
        format!("{how} {slot} {name} {flags} {mode}")
    }

    fn transfer(&mut self, process: usize) -> String {
        let (slot, bytes, offset) = (self.slot(process), self.bytes(), self.any_offset());
        let seed = self.seed();
        match self.rng.below(10) {
            0 | 1 => format!("read {slot} {bytes}"),
            2 | 3 => format!("write {slot} {seed} {bytes}"),
            4..=6 => format!("pread {slot} {bytes} {offset}"),
            _ => format!("pwrite {slot} {seed} {bytes} {offset}"),
        }
    }

    fn vector(&mut self, process: usize) -> String {
        let (slot, bytes, offset) = (self.slot(process), self.bytes(), self.any_offset());
        let (seed, count) = (self.seed(), 1 + self.rng.below(16));
        let flags = self.rng.pick(&["0", "0", "0", "0", "0", "0", "RWF_DSYNC", "RWF_SYNC"]);
        let offset2 = if self.rng.one_in(4) { -1 } else { offset };
        match self.rng.below(6) {
            0 => format!("readv {slot} {bytes} {count}"),
            1 => format!("writev {slot} {seed} {bytes} {count}"),
            2 => format!("preadv {slot} {bytes} {offset} {count}"),
            3 => format!("pwritev {slot} {seed} {bytes} {offset} {count}"),
            4 => format!("preadv2 {slot} {bytes} {offset2} {count} 0"),
            _ => format!("pwritev2 {slot} {seed} {bytes} {offset2} {count} {flags}"),
        }
    }

    fn seek(&mut self, process: usize) -> String {
        let (slot, offset) = (self.slot(process), self.any_offset());
        match self.rng.below(12) {
            0..=3 => format!("lseek {slot} {offset} SET"),
            4..=6 => format!("lseek {slot} {} CUR", self.rng.below(9000) as i64 - 4500),
            7 | 8 => format!("lseek {slot} {} END", 100 - self.rng.below(9000) as i64),
            9 if self.rng.one_in(4) => format!("lseek {slot} {offset} {}", 5 + self.rng.below(99)),
            9 => format!("lseek {slot} 0 CUR"),
            _ => {
                let how = if self.exact_holes { "lseek" } else { "hole" };
                format!("{how} {slot} {offset} {}", self.rng.pick(&["DATA", "HOLE"]))
            }
        }
    }

    fn size(&mut self, process: usize) -> String {
        let mut size = self.any_offset();
        if self.rng.one_in(5) {
            size = 0;
        }
        match self.rng.below(3) {
            0 => format!("truncate {} {size}", self.name()),
            _ => format!("ftruncate {} {size}", self.slot(process)),
        }
    }

    fn range(&mut self, process: usize) -> String {
        let (slot, mut offset, mut bytes) = (self.slot(process), self.any_offset(), self.bytes());
        let mode = self.rng.pick(&[
            "0",
            "0",
            "KEEP_SIZE",
            "PUNCH_HOLE|KEEP_SIZE",
            "PUNCH_HOLE|KEEP_SIZE",
            "PUNCH_HOLE|KEEP_SIZE",
            "ZERO_RANGE",
            "ZERO_RANGE|KEEP_SIZE",
            "COLLAPSE_RANGE",
            "INSERT_RANGE",
            "PUNCH_HOLE",
            "0x1000",
        ]);
        if mode.contains("COLLAPSE") || mode.contains("INSERT") {
            offset &= -4096;
            bytes &= !4095;
        }
        match self.rng.below(8) {
            0 => format!("posix_fallocate {slot} {offset} {bytes}"),
            _ => format!("fallocate {slot} {mode} {offset} {bytes}"),
        }
    }

    fn sync(&mut self, process: usize) -> String {
        let slot = self.slot(process);
        match self.rng.below(300) {
            0 => "sync".to_owned(),
            1 => format!("syncfs {slot}"),
            2..=60 => format!("fsync {slot}"),
            61..=120 => format!("fdatasync {slot}"),
            121..=200 => format!("sleep {}", 1 + self.rng.below(15)),
            201..=210 => format!("sync_file_range {slot} -1 5 WRITE"),
            211..=215 => format!("sync_file_range {slot} 0 5 64"),
            _ => {
                let (offset, bytes) = (self.offset(), self.bytes());
                format!("sync_file_range {slot} {offset} {bytes} WAIT_BEFORE|WRITE|WAIT_AFTER")
            }
        }
    }

    fn stat(&mut self, process: usize) -> String {
        let (slot, name) = (self.slot(process), self.name());
        match self.rng.below(12) {
            0..=2 => format!("fstat {slot}"),
            3 => format!("stat {name}"),
            4 => format!("lstat {name}"),
            5 => format!("fstatat {name} {}", self.rng.pick(&["0", "SYMLINK_NOFOLLOW", "0x4"])),
            6 => format!("statx {name} {}", self.rng.pick(&["0", "SYMLINK_NOFOLLOW"])),
            7 => format!("fstatx {slot}"),
            8 => format!("readdir {}", self.rng.pick(&[".", "D", "E", "a"])),
            9 => format!("access {name} {}", self.rng.below(9)),
            _ => format!("check {name}"),
        }
    }

    fn times(&mut self, process: usize) -> String {
        let (slot, name) = (self.slot(process), self.name());
        let when = self.rng.pick(&[
            "1000000000 0",
            "1234567890 123456789",
            "1 999999999",
            "3000000000 5",
            "0 NOW",
            "0 OMIT",
            "5 2000000000",
        ]);
        let mode = self.rng.pick(&["0600", "0644", "0755", "0444", "04711"]);
        match self.rng.below(6) {
            0 | 1 => format!("futimens {slot} {when}"),
            2 => format!("utimensat {name} {when} {}", self.rng.pick(&["0", "SYMLINK_NOFOLLOW"])),
            3 => format!("utimes {name} {}", self.rng.pick(&["1000000000", "77", "2999999999"])),
            4 => format!("chmod {name} {mode}"),
            _ => format!("fchmod {slot} {mode}"),
        }
    }

    fn name_changes(&mut self, process: usize) -> String {
        let (one, other) = (self.name(), self.name());
        match self.rng.below(20) {
            0..=5 => format!("rename {one} {other}"),
            6 => format!(
                "renameat2 {one} {other} {}",
                self.rng.pick(&["0", "NOREPLACE", "EXCHANGE", "NOREPLACE|EXCHANGE"])
            ),
            7..=10 => format!("unlink {one}"),
            11 => format!("remove {}", self.rng.pick(&[one, other, "D", "E"])),
            12 | 13 => format!("link {one} {other}"),
            14 | 15 => format!("linkfd {} {other}", self.slot(process)),
            16 => format!("symlink {} {other}", self.rng.pick(&[one, "a", "D/a", "gone"])),
            17 => format!("readlink {one}"),
            18 => format!("rename {}", self.rng.pick(&["D E", "E D", "D F", "F D", "a D", "D a"])),
            _ => self.rng.pick(&["mkdir D", "mkdir E", "rmdir D", "rmdir E", "mkdir a"]).to_owned(),
        }
    }

    fn duplicates(&mut self, process: usize) -> String {
        let (from, to) = (self.slot(process), self.new_slot(process));
        match self.rng.below(12) {
            0 | 1 => format!("dup {from} {to}"),
            2 | 3 => format!("dup2 {from} {to}"),
            4 => format!("dup3 {from} {to} {}", self.rng.pick(&["0", "CLOEXEC", "APPEND"])),
            5 => format!(
                "dupfd {from} {to} {} {}",
                self.rng.pick(&["0", "50", "-1"]),
                self.rng.below(2)
            ),
            6 | 7 => format!("getfl {from}"),
            8 => format!(
                "setfl {from} {}",
                self.rng.pick(&["APPEND", "0", "NONBLOCK", "APPEND|NONBLOCK", "NOATIME"])
            ),
            9 => format!("getfd {from}"),
            10 => format!("setfd {from} {}", self.rng.pick(&["0", "FD_CLOEXEC"])),
            _ if self.rng.one_in(4) => {
                format!("closeslots {from} {to} {}", self.rng.pick(&["0", "CLOSE_RANGE_CLOEXEC"]))
            }
            _ => {
                self.processes[process].open[from] = false;
                format!("close {from}")
            }
        }
    }

    fn mappings(&mut self, process: usize) -> String {
        let (slot, offset, bytes) = (self.slot(process), self.offset(), self.bytes());
        let (seed, map) = (self.seed(), self.rng.below(4) as usize);
        // A file that is mapped is used through the kernel from then on: not all the time.
        match self.rng.below(12) {
            0 => {
                self.processes[process].maps[map] = true;
                format!("map {map} {slot} {offset} {bytes}")
            }
            1 | 2 if self.processes[process].maps[map] => {
                format!("mset {map} {} {bytes} {seed}", self.rng.below(10_000))
            }
            3 | 4 if self.processes[process].maps[map] => {
                format!("mget {map} {} {bytes}", self.rng.below(10_000))
            }
            5 if self.processes[process].maps[map] => format!("unmap {map}"),
            6 => format!("mmap {slot} {offset} {bytes} SHARED 1 {seed}"),
            7 => format!("mmap {slot} {offset} {bytes} SHARED 0 {seed}"),
            8 => format!("mmap {slot} {offset} {bytes} PRIVATE 1 {seed}"),
            _ => format!("mmap {slot} {offset} {bytes} PRIVATE 0 {seed}"),
        }
    }

    fn copies(&mut self, process: usize) -> String {
        let (from, to, bytes) = (self.slot(process), self.slot(process), self.bytes());
        let mut offset = || if self.rng.one_in(3) { -2 } else { self.any_offset() };
        let (one, other) = (offset(), offset());
        match self.rng.below(4) {
            0 => format!("sendfile {to} {from} {one} {bytes}"),
            1 => format!("splice {from} {to} {one} {other} {bytes}"),
            _ => {
                let flags = u64::from(self.rng.one_in(40));
                format!("copy {from} {to} {one} {other} {bytes} {flags}")
            }
        }
    }

    fn locks(&mut self, process: usize) -> String {
        let (slot, start, bytes) = (self.slot(process), self.rng.below(20), self.rng.below(20));
        let kind = self.rng.pick(&["RDLCK", "WRLCK", "UNLCK"]);
        match self.rng.below(6) {
            0 | 1 => format!("flock {slot} {}|NB", self.rng.pick(&["SH", "EX", "UN"])),
            2 | 3 => format!("lock {slot} {kind} {start} {bytes}"),
            4 => format!("getlk {slot} {kind} {start} {bytes}"),
            _ => format!("olock {slot} {kind} {start} {bytes}"),
        }
    }

    fn passing(&mut self, process: usize) -> String {
        match self.rng.below(2) {
            0 => format!("send {}", self.slot(process)),
            _ => format!("receive {} {}", self.new_slot(process), self.rng.below(2)),
        }
    }

    fn streams(&mut self, process: usize) -> String {
        let stream = self.rng.below(4) as usize;
        let mode = self.rng.pick(&["r", "r+", "w", "w+", "a", "a+", "r+e", "w+x", "rb", "q"]);
        let buffering = self.rng.pick(&[0, 0, 0, 1, 2, 64, 5000, 100_000]);
        if !self.processes[process].streams[stream] || self.rng.one_in(20) {
            self.processes[process].streams[stream] = true;
            return match self.rng.below(4) {
                0 => format!("fdopen {stream} {} {mode} {buffering}", self.slot(process)),
                _ => format!("fopen {stream} {} {mode} {buffering}", self.name()),
            };
        }
        match self.rng.below(12) {
            0 => {
                self.processes[process].streams[stream] = false;
                format!("fclose {stream}")
            }
            1 => format!("freopen {stream} {} {mode}", self.name()),
            _ => format!("stream {stream} {} {}", self.seed(), 1 + self.rng.below(10)),
        }
    }

    fn processes(&mut self, actor: usize, process: usize) -> String {
        let free = (0..ACTORS).find(|&a| self.actors[a].is_none());
        let lives = self.actors.iter().flatten().count();
        match (self.rng.below(12), free) {
            (0..=5, Some(free)) if lives < 6 => {
                self.processes.push(self.processes[process].clone());
                self.actors[free] = Some(self.processes.len() - 1);
                format!("fork {free}")
            }
            (6 | 7, Some(free)) if lives < 6 => {
                self.actors[free] = Some(process);
                format!("thread {free}")
            }
            (8 | 9, _) if !self.has(Locks) => {
                self.end_actors(process, Some(actor));
                self.processes[process].streams = [false; 4];
                self.processes[process].maps = [false; 4];
                "exec".to_owned()
            }
            (10, _) if self.lives_elsewhere(process) => {
                self.end_actors(process, None);
                "exit".to_owned()
            }
            (11, _) if self.lives_elsewhere(process) => {
                let others = |a: &usize| self.actors[*a].is_some_and(|p| p != process);
                let others: Vec<_> = (0..ACTORS).filter(others).collect();
                let victim = self.rng.pick(&others);
                let doomed = self.actors[victim].unwrap();
                self.end_actors(doomed, None);
                format!("kill {victim} {}", self.rng.pick(&["KILL", "TERM"]))
            }
            _ => format!("fstat {}", self.slot(process)),
        }
    }

    fn lives_elsewhere(&self, process: usize) -> bool {
        self.actors.iter().flatten().any(|&other| other != process)
    }

    fn end_actors(&mut self, of: usize, except: Option<usize>) {
        for (number, actor) in self.actors.iter_mut().enumerate() {
            if *actor == Some(of) && Some(number) != except {
                *actor = None;
            }
        }
    }

    fn invalid(&mut self, process: usize) -> String {
        let (slot, bytes, offset) = (self.slot(process), self.bytes(), self.offset());
        let kind = self.rng.below(6);
        match self.rng.below(8) {
            0..=2 => format!("badread {slot} {kind} {bytes} {offset}"),
            3..=5 => format!("badwrite {slot} {kind} {bytes} {offset}"),
            6 => format!("badpath {}", self.rng.below(2)),
            _ => format!("badstat {slot}"),
        }
    }

    fn races(&mut self) -> String {
        let kind = self.rng.pick(&["append", "disjoint", "lock", "offset", "replace", "truncate"]);
        if !self.rng.one_in(6) {
            return format!("check {}", self.name());
        }
        let (processes, rounds) = (self.rng.below(4), 5 + self.rng.below(50));
        format!("race {kind} race {processes} {rounds} {}", self.seed())
    }

    fn hints(&mut self, process: usize) -> String {
        let (slot, offset, bytes) = (self.slot(process), self.offset(), self.bytes());
        match self.rng.below(3) {
            0 => format!("readahead {slot} {offset} {bytes}"),
            _ => {
                let advice = self.rng.pick(&[
                    "NORMAL",
                    "SEQUENTIAL",
                    "RANDOM",
                    "WILLNEED",
                    "DONTNEED",
                    "77",
                ]);
                format!("fadvise {slot} {offset} {bytes} {advice}")
            }
        }
    }
}
