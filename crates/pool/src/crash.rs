//! Moments at which a process of a test build kills itself or pauses, and errors that it makes on
//! purpose.
//!
//! Without debug assertions all of this is nothing. With them, `FOREBAY_CRASH=NAME:N` kills the
//! process with SIGKILL when it passes the N-th point of that name (`*`: of any name; `flush.*`: of
//! any name that begins so), `FOREBAY_CRASH_IN=client|node` only in processes of that role, and
//! `FOREBAY_CRASH_ONCE=FILE` only if FILE is not there, and names in it the point at which it
//! happened. `FOREBAY_CRASH_LIST=FILE` adds role and name of each point passed to FILE, which is
//! there, and kills no process. `FOREBAY_PLANT=NAME` makes an error on purpose, see [`planted`].
//!
//! `FOREBAY_PAUSE=NAME:WHEN:HOW_LONG` lets a thread pause when it passes a point of that name
//! (patterns as above), with whatever it holds, while all other threads go on:
//!
//! - WHEN is `N`, at the N-th pass in its process, or `1/K`, at each pass by chance, once in K
//!   times; the chance comes from `FOREBAY_PAUSE_SEED`, process, thread and number of the pass;
//! - HOW_LONG is a number of milliseconds, or `while=/FILE`: until FILE is gone, or 180 s.
//!
//! `FOREBAY_PAUSE_IN=client|node` restricts it to processes of that role, `FOREBAY_PAUSE_MOST=N`
//! each process to its first N pauses. `FOREBAY_PAUSE_LOG=FILE` gets a line with role, name and pid
//! after each pause that lasted all of its time; with `while=` when the pause begins, and only if
//! FILE is there, so that a test can wait for the line, act, and remove FILE. A process may be
//! killed and paused at the same point; the pause comes first. [`crate::clock::Timer`] shortens
//! what a pause is to outlast.
//!
//! `FOREBAY_REFUSE=NAME:N` refuses the N-th allocation of that name in each process, `NAME:N..`
//! that and all after it; up to twelve of them stand with commas between. `FOREBAY_REFUSE_LOG=FILE`
//! gets a line with the name for each.
//!
//! `FOREBAY_SLOT_FAULT=OPERATION:ERRNO:FILE` lets a client's reads or writes (`read`, `write`) of
//! slots of file tiers fail with the error of this number while FILE is there, or what a node
//! manager writes to them itself (`manager-write`).
//!
//! A point stands between two steps whose order matters to a thread that finds the first done and
//! the second not. Where it is off it costs a load.

/// A moment at which the process may die; `name` is `what.step`.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(debug_assertions)]
    if !armed::is_off() {
        armed::pass(name);
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Whether this allocation of `name`, a resource that all processes share, is to be refused, as if
/// there was none left.
#[inline(always)]
pub fn refused(name: &'static str) -> bool {
    #[cfg(debug_assertions)]
    return refusals::refused(name);
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        false
    }
}

/// The error with which a client's `operation` (`read` or `write`), or a node manager's own
/// (`manager-write`), on slots of file tiers is to fail.
#[inline(always)]
pub fn slot_fault(operation: &str) -> Option<rustix::io::Errno> {
    #[cfg(debug_assertions)]
    return armed::slot_fault(operation);
    #[cfg(not(debug_assertions))]
    {
        let _ = operation;
        None
    }
}

/// From here on this process counts as a node manager, not as a client.
#[inline(always)]
pub fn in_node() {
    #[cfg(debug_assertions)]
    armed::NODE.store(true, core::sync::atomic::Ordering::Relaxed);
}

/// Whether the error `name` is to be made: so that tests can show that they would notice it.
#[inline(always)]
pub fn planted(name: &str) -> bool {
    #[cfg(debug_assertions)]
    return armed::armed().plant.is(name.as_bytes());
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        false
    }
}

#[cfg(debug_assertions)]
mod pauses;
#[cfg(debug_assertions)]
mod refusals;

#[cfg(debug_assertions)]
mod armed {
    use super::pauses::Pauses;
    use crate::environment::Variable;
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use rustix::fs::{Mode, OFlags};
    use rustix::io::IoSlice;
    use std::sync::OnceLock;

    pub(super) static NODE: AtomicBool = AtomicBool::new(false);
    static PASSED: AtomicU64 = AtomicU64::new(0);

    /// `OPERATION:ERRNO:FILE` of `FOREBAY_SLOT_FAULT`, while FILE is there.
    pub(super) fn slot_fault(operation: &str) -> Option<rustix::io::Errno> {
        static ASKED: OnceLock<Variable> = OnceLock::new();
        let asked = ASKED.get_or_init(|| Variable::of(b"FOREBAY_SLOT_FAULT="));
        let mut parts = core::str::from_utf8(asked.bytes()).ok()?.splitn(3, ':');
        let (of, errno, file) = (parts.next()?, parts.next()?, parts.next()?);
        let hits = of == operation
            && rustix::fs::access(Variable::from(file).c_str(), rustix::fs::Access::EXISTS).is_ok();
        hits.then(|| errno.parse().ok().map(rustix::io::Errno::from_raw_os_error)).flatten()
    }

    pub(super) struct Armed {
        name: Variable,
        number: u64,
        role: Variable,
        once: Variable,
        list: Variable,
        pauses: Option<Pauses>,
        pub plant: Variable,
    }

    pub(super) fn armed() -> &'static Armed {
        static ARMED: OnceLock<Armed> = OnceLock::new();
        ARMED.get_or_init(|| {
            let mut name = Variable::of(b"FOREBAY_CRASH=");
            let mut number = 0;
            if let Some(colon) = name.bytes().iter().rposition(|&byte| byte == b':') {
                let digits = core::str::from_utf8(&name.bytes()[colon + 1..]).unwrap_or("");
                number = digits.parse().unwrap_or(0);
                name.truncate(colon);
            }
            Armed {
                name,
                number,
                role: Variable::of(b"FOREBAY_CRASH_IN="),
                once: Variable::of(b"FOREBAY_CRASH_ONCE="),
                list: Variable::of(b"FOREBAY_CRASH_LIST="),
                pauses: Pauses::asked_for(),
                plant: Variable::of(b"FOREBAY_PLANT="),
            }
        })
    }

    /// Whether `name` is what `pattern` says, or begins as it does before its `*`.
    pub(super) fn matches(pattern: &[u8], name: &str) -> bool {
        match pattern {
            [start @ .., b'*'] => name.as_bytes().starts_with(start),
            whole => name.as_bytes() == whole,
        }
    }

    /// This process has looked, and is to kill itself and to pause nowhere.
    static OFF: AtomicBool = AtomicBool::new(false);

    #[inline(always)]
    pub(super) fn is_off() -> bool {
        OFF.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn pass(name: &'static str) {
        let armed = armed();
        if armed.number == 0 && armed.list.is_empty() && armed.pauses.is_none() {
            OFF.store(true, Ordering::Relaxed);
            return;
        }
        let role: &[u8] = if NODE.load(Ordering::Relaxed) { b"node" } else { b"client" };
        if !armed.list.is_empty() {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
            if let Ok(list) =
                rustix::fs::openat(rustix::fs::CWD, armed.list.c_str(), flags, Mode::empty())
            {
                let line = [role, b" ", name.as_bytes(), b"\n"].map(IoSlice::new);
                let _ = rustix::io::writev(list, &line);
            }
            return;
        }
        if let Some(pauses) = &armed.pauses {
            pauses.pass(name, role);
        }
        if armed.number == 0 || !armed.role.allows(role) || !matches(armed.name.bytes(), name) {
            return;
        }
        if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == armed.number {
            die(name, &armed.once);
        }
    }

    fn die(name: &str, once: &Variable) {
        if !once.is_empty() {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let Ok(mark) = rustix::fs::openat(rustix::fs::CWD, once.c_str(), flags, Mode::RUSR)
            else {
                return;
            };
            let _ = rustix::io::write(mark, name.as_bytes());
        }
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        // Not one step further, even if the signal comes late.
        loop {
            core::hint::spin_loop();
        }
    }
}
