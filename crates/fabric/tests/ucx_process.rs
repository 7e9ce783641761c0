//! UCX leaves the process as it was: signals, `mmap`, the environment. A program of its own, with
//! one thread at its start.

mod support;

use forebay_fabric::{Access, Outcome, begin_ucx};
use std::process::{Command, ExitCode};
use support::{Memory, Subject, local, remote};

/// What a child of this test is told to be.
const CHILD: &str = "FOREBAY_TEST_UCX_CHILD";

fn caught_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // Those from 32 on are the C library's, for its threads.
    u64::from_str_radix(line.trim(), 16).unwrap() & 0x7fff_ffff
}

fn catches(signal: i32) -> bool {
    caught_signals() >> (signal - 1) & 1 == 1
}

/// The first bytes of the functions that UCX rewrites by default.
fn first_bytes() -> [[u8; 16]; 3] {
    let functions =
        [libc::mmap as *const u8, libc::munmap as *const u8, libc::madvise as *const u8];
    // SAFETY: the code of functions, which is longer and readable.
    functions.map(|function| unsafe { *function.cast::<[u8; 16]>() })
}

/// The addresses at which sockets of this process listen, of IPv4 as the kernel writes them.
fn listening() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let own: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_own =
        |words: &Vec<&str>| words[3] == "0A" && own.contains(&format!("socket:[{}]", words[9]));
    let found = lines.filter(is_own).map(|words| words[1].split(':').next().unwrap().to_owned());
    let found: Vec<_> = found.collect();
    assert!(found.len() >= 2, "UCX has ports of its own");
    found
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn main() -> ExitCode {
    let before_main = (caught_signals(), threads());
    // SAFETY: there is one thread.
    unsafe { begin_ucx() };
    if std::env::var_os(CHILD).is_some() {
        // What the user has set is there, and UCX has not looked at it.
        assert_eq!(std::env::var("UCX_DEBUG_SIGNO").as_deref(), Ok("SIGUSR1"));
        assert!(!catches(libc::SIGUSR1) && !catches(libc::SIGHUP));
        return ExitCode::SUCCESS;
    }
    let bytes = first_bytes();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        assert!(!name.starts_with("UCX_"), "{name} is left in the environment");
    }
    assert_eq!(before_main.1, 1);
    assert!(!catches(libc::SIGHUP), "SIGHUP is taken before main");

    let mut subject = Subject::ucx(None);
    let (ours, _) = subject.pair();
    let (mut here, mut there) = (Memory::of(1, 1 << 20), Memory::of(2, 1 << 20));
    let into = subject.expose(0, &mut here, Access::ReadWrite);
    let from = subject.expose(1, &mut there, Access::ReadOnly);
    for at in listening() {
        assert!(at.ends_with("7F"), "UCX listens beside the loopback interface: {at}");
    }
    subject.pull(0, ours, (remote(from, 0, 1 << 20), local(into, 0, 1 << 20)), 1);
    assert_eq!(subject.outcome(0, 1), Outcome::Ok);

    assert_eq!(caught_signals(), before_main.0, "UCX takes signals");
    assert_eq!(first_bytes(), bytes, "UCX rewrites functions of the C library");
    for (name, _) in std::env::vars_os() {
        assert!(!name.to_string_lossy().starts_with("UCX_"));
    }
    drop(subject);
    let own = std::env::current_exe().unwrap();
    let child = Command::new(own).env(CHILD, "1").env("UCX_DEBUG_SIGNO", "SIGUSR1").status();
    assert!(child.unwrap().success());
    println!("the process is as it was");
    ExitCode::SUCCESS
}
