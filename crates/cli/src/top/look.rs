//! What `forebay top` sees at one moment, and how fast it has changed since another.

use crate::gauges;
use crate::watch::stopped;
use forebay_node::outlook::{Drain, HotFile, Oldest, ProcessStatus, Rates};
use forebay_node::runtime::Runtime;
use forebay_node::status::{JobStatus, Observer, TierStatus};
use forebay_pool::moves::Totals;
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Instant;

/// Files that are looked at for the list of those that are used most.
const FILES: usize = 200;

/// A process, and how fast it reads and writes.
#[derive(Clone, Debug)]
pub struct Process {
    /// What it did so far.
    pub status: ProcessStatus,
    /// Bytes a second that it writes.
    pub writes: u64,
    /// Bytes a second that it reads.
    pub reads: u64,
}

/// A pool at one moment.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The name of its instance.
    pub instance: String,
    /// What its node manager does, in words, and whether that is as it should be.
    pub state: (String, bool),
    /// The buffered directories.
    pub stores: Vec<String>,
    /// Its tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    /// How fast bytes come and go.
    pub rates: Option<Rates>,
    /// Bytes that are not yet on the store.
    pub dirty: u64,
    /// Bytes that may be at most, if that is limited.
    pub cap: Option<u64>,
    /// Of each run with such a limit: its number, bytes that are not on the store, and the limit.
    pub capped: Vec<(u32, u64, u64)>,
    /// Files that are ahead of the store.
    pub ahead: usize,
    /// How they come to the store.
    pub drain: Drain,
    /// What is not on the store for longest.
    pub oldest: Option<Oldest>,
    /// What is wrong, a line each.
    pub errors: Vec<String>,
    /// The processes that buffer.
    pub processes: Vec<Process>,
    /// Files that are used, or ahead of the store.
    pub files: Vec<HotFile>,
}

/// What is kept of a look for the next one.
struct Before {
    at: Instant,
    totals: Totals,
    processes: HashMap<(u32, u64), (u64, u64)>,
}

/// The eyes of `forebay top`.
#[derive(Default)]
pub struct Eyes {
    before: HashMap<String, Before>,
}

impl Eyes {
    /// Looks at all pools of this user. What cannot be looked at has an error in the place of all
    /// else.
    ///
    /// # Errors
    /// Those of [`Runtime::all`].
    pub fn look(&mut self) -> Result<Vec<Pool>, String> {
        let mut pools = Vec::new();
        for runtime in Runtime::all()?.iter().filter(|runtime| runtime.has_pool()) {
            match Observer::of(&runtime.pool) {
                Ok(observer) => pools.push(self.pool(runtime, &observer)),
                Err(error) if runtime.has_pool() => pools.push(unreadable(runtime, &error)),
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        let there: HashSet<&String> = pools.iter().map(|pool| &pool.instance).collect();
        self.before.retain(|instance, _| there.contains(instance));
        Ok(pools)
    }

    fn pool(&mut self, runtime: &Runtime, observer: &Observer) -> Pool {
        let now = Instant::now();
        let before = self.before.get(&runtime.instance);
        // At first the node manager's own looks say how fast it goes.
        let rates = match before {
            Some(before) => Some(observer.rates_since(&before.totals, now - before.at)),
            None => observer.rates(),
        };
        let processes = observer.process_status();
        let with_rates = processes.iter().map(|status| {
            let known = before.and_then(|before| {
                let known = before.processes.get(&(status.pid, status.start))?;
                Some((known, (now - before.at).as_secs_f64()))
            });
            let rate = |bytes: u64, then: u64, seconds: f64| {
                (bytes.saturating_sub(then) as f64 / seconds.max(1e-3)) as u64
            };
            let (writes, reads) = known.map_or((0, 0), |(&(written, read), seconds)| {
                (rate(status.written, written, seconds), rate(status.read, read, seconds))
            });
            Process { status: status.clone(), writes, reads }
        });
        let with_rates = with_rates.collect();
        let of = |process: &ProcessStatus| {
            ((process.pid, process.start), (process.written, process.read))
        };
        let kept = Before {
            at: now,
            totals: observer.totals(),
            processes: processes.iter().map(of).collect(),
        };
        self.before.insert(runtime.instance.clone(), kept);
        let ahead = observer.files();
        let mut files = observer.hottest(FILES);
        let known: HashSet<String> = files.iter().map(|file| file.path.clone()).collect();
        files.extend(ahead.iter().filter(|file| !known.contains(&file.path)).map(|file| HotFile {
            path: file.path.clone(),
            accesses: 0.0,
            size: file.size,
            dirty: file.dirty,
        }));
        let tiers = observer.tiers();
        Pool {
            instance: runtime.instance.clone(),
            state: state(observer),
            stores: observer.stores(),
            rates,
            dirty: observer.dirty(),
            cap: observer.cap(),
            capped: capped(observer),
            ahead: ahead.len(),
            drain: observer.drain(),
            oldest: observer.oldest(&gauges::ages(runtime)),
            errors: errors(observer, &tiers, &ahead),
            tiers,
            processes: with_rates,
            files,
        }
    }
}

fn capped(observer: &Observer) -> Vec<(u32, u64, u64)> {
    let of_job = |job: JobStatus| job.cap.map(|(used, limit)| (job.number, used, limit));
    observer.jobs().into_iter().filter_map(of_job).collect()
}

fn unreadable(runtime: &Runtime, error: &dyn std::fmt::Display) -> Pool {
    Pool {
        instance: runtime.instance.clone(),
        state: (error.to_string(), false),
        stores: Vec::new(),
        tiers: Vec::new(),
        rates: None,
        dirty: 0,
        cap: None,
        capped: Vec::new(),
        ahead: 0,
        drain: Drain { refused: 0, time: None },
        oldest: None,
        errors: Vec::new(),
        processes: Vec::new(),
        files: Vec::new(),
    }
}

fn state(observer: &Observer) -> (String, bool) {
    let manager = observer.manager();
    match observer.is_served() {
        false => ("no node manager; `forebay recover` drains it".to_owned(), false),
        true if observer.is_given_up() => (format!("node manager {manager}, given up"), false),
        true => match stopped(manager) {
            Some(text) => (text, false),
            None if observer.is_retiring() => (format!("node manager {manager}, ending"), true),
            None => (format!("node manager {manager}"), true),
        },
    }
}

fn errors(
    observer: &Observer,
    tiers: &[TierStatus],
    ahead: &[forebay_node::status::FileStatus],
) -> Vec<String> {
    let error = io::Error::from_raw_os_error;
    let mut lines = Vec::new();
    for (tier, (errno, _)) in tiers.iter().filter_map(|tier| Some((tier, tier.failed?))) {
        lines.push(format!("tier {} takes nothing new: {}", tier.name, error(errno)));
    }
    let mut failing = ahead.iter().filter_map(|file| Some((file, file.errno?)));
    if let Some((file, errno)) = failing.next() {
        let more = failing.count();
        let more = if more > 0 { format!(", and {more} more files") } else { String::new() };
        lines.push(format!("cannot be written ({}): {}{more}", error(errno), file.path));
    }
    if let Some(file) = ahead.iter().find(|file| file.conflict) {
        lines.push(format!("changed on the store by others: {}", file.path));
    }
    if let Some((path, _)) = observer.corrupt().first() {
        lines.push(format!("cannot be read from its tier: {path}"));
    }
    lines.extend(observer.holders().iter().map(|holder| format!("held up: {holder}")));
    lines
        .iter()
        .map(|line| forebay_node::log::shown(&crate::text::without_numbers(line)[..]))
        .collect()
}
