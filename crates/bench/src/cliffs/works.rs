//! What is done, and what it may cost.

/// An operation costs at most so many times what it costs in the plain directory.
const LIKE_PLAIN: f64 = 1.1;
/// The same of creations and of first reads, of which a buffering system has to take note.
const FIRST: f64 = 1.3;
/// The same of programs that start, beside the same with a preload library that does nothing.
const START: f64 = 1.15;

/// What needs more open files than some systems allow.
pub(super) const OPEN_MANY: &str = "open-many";

/// The text of a shell script, and of the one that prepares what it finds; both run in an empty
/// directory of their own, with a tree of small files in `$OTHER/tree`.
pub(super) struct Script {
    /// The program that has to be installed for it.
    pub program: &'static str,
    pub prepare: &'static str,
    pub run: &'static str,
}

/// A kind of operation.
pub(super) struct Work {
    pub name: &'static str,
    /// How often it is done.
    pub count: u64,
    /// How many times the plain cost it may have.
    pub most: f64,
    /// Processes that start are what is measured: the plain cost is that with an empty preload
    /// library.
    pub starts: bool,
    /// `None`: a work of the C program.
    pub script: Option<Script>,
}

/// What is done before all else in each round: what a run alone costs the manager is no cost of its
/// operations.
pub(super) const NOTHING: Work = work("nothing", 1, 1.0);

impl Work {
    /// Whether it is a program that has files to read and write.
    pub fn is_of_files(&self) -> bool {
        self.script.is_some() && !self.starts
    }
}

const fn work(name: &'static str, count: u64, most: f64) -> Work {
    Work { name, count, most, starts: false, script: None }
}

const fn start(name: &'static str, count: u64) -> Work {
    Work { starts: true, ..work(name, count, START) }
}

const fn program(name: &'static str, program: &'static str, scripts: [&'static str; 2]) -> Work {
    let [prepare, run] = scripts;
    Work { script: Some(Script { program, prepare, run }), ..work(name, 2, LIKE_PLAIN) }
}

/// Makes the tree a repository with one commit, without a configuration of git.
macro_rules! commit {
    () => {
        "(cd \"$OTHER/tree\"; git init -q; git add .; \
         git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm all)"
    };
}

const COMMIT: &str = commit!();
const CLONE: &str = concat!(commit!(), "; git clone -q \"$OTHER/tree\" copy");
const SOURCES: &str = "for n in 1 2 3 4 5 6 7 8; do \
    echo \"int f$n(int n) { return n + $n; }\" > f$n.c; done; \
    echo 'int main(void) { return 0; }' > main.c; \
    echo 'prog: $(patsubst %.c,%.o,$(wildcard *.c)); cc -o $@ $^' > Makefile";
/// Two hundred programs, one after the other.
const LOOP: &str = "n=0; while [ $n -lt 200 ]; do /bin/true; n=$((n+1)); done";

/// All that is measured.
pub(super) const WORKS: [Work; 38] = [
    work("write-4k-buffers", 262_144, LIKE_PLAIN),
    work("read-4k-buffers", 262_144, LIKE_PLAIN),
    work("read-1m-buffers", 2048, LIKE_PLAIN),
    work("chmod-written", 4096, FIRST),
    work("chmod-executable", 32_768, LIKE_PLAIN),
    work("chmod-same", 32_768, LIKE_PLAIN),
    work("write-fsync", 2048, LIKE_PLAIN),
    work("write-osync", 2048, LIKE_PLAIN),
    work("ioctl-getflags", 1_048_576, LIKE_PLAIN),
    work("create-close", 4096, FIRST),
    work("create-unlink", 4096, FIRST),
    work("open-absolute", 65_536, LIKE_PLAIN),
    work("open-relative", 65_536, LIKE_PLAIN),
    work("openat-directory", 65_536, LIKE_PLAIN),
    work("open-elsewhere", 65_536, 1.05),
    work("cold-open-read", 8192, FIRST),
    work("cold-read-1m", 512, FIRST),
    work("cold-read-larger", 1280, 1.2),
    work("cold-read-random", 4096, FIRST),
    work("mmap-private", 2048, LIKE_PLAIN),
    work("sendfile-pipe", 32_768, LIKE_PLAIN),
    work("splice-pipe", 32_768, LIKE_PLAIN),
    work("rename", 16_384, LIKE_PLAIN),
    work("link-unlink", 16_384, LIKE_PLAIN),
    work("set-times", 65_536, LIKE_PLAIN),
    work("truncate", 16_384, LIKE_PLAIN),
    start("fork-exit", 512),
    start("vfork-exec", 128),
    start("vfork-exec-large", 64),
    work(OPEN_MANY, 19_000, LIKE_PLAIN),
    Work { starts: true, most: START, ..program("sh-loop", "sh", ["true", LOOP]) },
    program(
        "tar-extract",
        "tar",
        ["tar cf \"$OTHER/a.tar\" -C \"$OTHER\" tree", "tar xf \"$OTHER/a.tar\""],
    ),
    program("cp-recursive", "cp", ["true", "rm -rf copy; cp -r \"$OTHER/tree\" copy"]),
    Work {
        count: 1,
        ..program("rm-recursive", "rm", ["cp -r \"$OTHER/tree\" copy", "rm -rf copy"])
    },
    program("rsync", "rsync", ["true", "rm -rf copy; rsync -a \"$OTHER/tree/\" copy"]),
    program("git-clone", "git", [COMMIT, "rm -rf copy; git clone -q \"$OTHER/tree\" copy"]),
    program("git-status", "git", [CLONE, "cd copy; git status --short"]),
    program("make", "make", [SOURCES, "rm -f *.o; make -s"]),
];
