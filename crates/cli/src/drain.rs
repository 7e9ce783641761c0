//! Waiting for a drain, with a progress bar on a terminal and plain lines elsewhere.

use crate::analyse;
use crate::holders::Holders;
use crate::progress_bar::{Bar, LINE_EVERY, SHORT};
use crate::task;
use crate::text::{bytes, counted, files as files_of};
use crate::watch::Watch;
use forebay_node::Connection;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::{FileStatus, Observer, TierStatus};
use forebay_pool::clock::Timer;
use forebay_pool::liveness::{self, Halt};
use forebay_pool::message::Message;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a line of so many columns says. The longest numbers leave eight columns for the bar.
fn template(columns: u16) -> &'static str {
    match columns {
        95.. => {
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {prefix}"
        }
        80.. => "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes}, {prefix}",
        62.. => "{msg} {wide_bar} {percent} %, {prefix}",
        _ => "{wide_bar} {percent} %",
    }
}

/// Of what stands still.
const NO_END: &str = "no end in sight";

/// Of what has just begun.
pub const NO_ESTIMATE: &str = "no estimate yet";

/// When all will be safe that takes `seconds` from `now` on.
fn safe_at(now: SystemTime, seconds: f64) -> String {
    /// Beyond this an estimate says nothing.
    const DAY: u64 = 86_400;
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match Some(seconds.ceil() as u64).filter(|&seconds| seconds < DAY) {
        Some(seconds) => {
            let at = (since + seconds) % DAY;
            let (hours, minutes) = (at / 3600, at / 60 % 60);
            format!("{seconds} s left, safe at {hours:02}:{minutes:02}:{:02} UTC", at % 60)
        }
        None => NO_END.to_owned(),
    }
}

/// When all will be safe, where `left` bytes are left at `rate`, if that is known.
fn outlook(now: SystemTime, left: u64, rate: f64, is_known: bool) -> String {
    match left {
        // How long a store takes to sync many small files is not known.
        0 => "all is written, not yet synced".to_owned(),
        _ if rate > 0.0 && !is_known => NO_ESTIMATE.to_owned(),
        _ => safe_at(now, left as f64 / rate),
    }
}

/// How a drain ended.
pub enum Drained {
    /// Everything is on the store.
    All,
    /// These files are not.
    Kept(Vec<FileStatus>),
    /// The manager went away meanwhile.
    Lost,
}

/// How fast something is lately: what stands still has no end in sight, however fast it was.
#[derive(Default)]
pub struct Recent {
    /// When more was done, and how much then, the oldest first: of the last [`Recent::span`], and
    /// one before.
    steps: VecDeque<(Duration, u64)>,
    /// Whether the oldest one is such a step, and not just a look before the first.
    from_step: bool,
    /// When the last one was, or the beginning, and how long it took.
    last: Duration,
    pace: Duration,
}

impl Recent {
    const SPAN: Duration = Duration::from_secs(5);
    /// The first bytes come late, or many at once: a rate of less time says little of what is left.
    const SURE: Duration = Duration::from_secs(1);
    /// A step that took longer says that it stood still.
    const PACE_MOST: Duration = Duration::from_secs(30);

    /// For how long nothing has to be done before what is begun stands still: a slow store takes
    /// long for the first of its requests.
    const BEGINNING: Duration = Duration::from_secs(30);

    /// From nothing done at the beginning on.
    fn begun() -> Recent {
        Recent { steps: VecDeque::from([(Duration::ZERO, 0)]), ..Recent::default() }
    }

    /// Bytes a second, when `done` are done at a time since the beginning.
    pub fn rate(&mut self, at: Duration, done: u64) -> f64 {
        match self.steps.back() {
            None => {
                self.last = at;
                self.steps.push_back((at, done));
            }
            Some(&(_, before)) if before != done => self.step(at, done),
            // Before anything is done it is no matter how long that takes to begin.
            Some(_) if self.steps.len() == 1 => (self.steps[0].0, self.from_step) = (at, false),
            Some(_) => {}
        }
        let span = self.span();
        while self.steps.get(1).is_some_and(|&(second, _)| at.saturating_sub(second) > span) {
            self.steps.pop_front();
            self.from_step = true;
        }
        let (since, before) = (self.since(at), self.steps[0].1);
        done.saturating_sub(before) as f64 / at.saturating_sub(since).as_secs_f64().max(1e-3)
    }

    /// Since when what was done after the oldest step, or look, was being done.
    fn since(&self, at: Duration) -> Duration {
        match self.steps.get(1) {
            // A single large step, which may have been under way since the one before.
            Some(&(only, _)) if self.is_single() && at.saturating_sub(only) >= Self::SURE => {
                only.saturating_sub(self.pace)
            }
            _ => self.steps[0].0,
        }
    }

    fn is_single(&self) -> bool {
        self.steps.len() == 2 && !self.from_step
    }

    /// Notes that more is done than before.
    fn step(&mut self, at: Duration, done: u64) {
        let took = at.saturating_sub(self.last);
        (self.last, self.pace) = (at, took.min(Self::PACE_MOST));
        self.steps.push_back((at, done));
        // The first of large steps was under way before the look that it is measured from.
        if self.steps.len() == 3 && !self.from_step && took > Self::SURE {
            self.steps.pop_front();
            self.from_step = true;
        }
    }

    /// How far back what is done counts: of large steps that take long at least the last one.
    fn span(&self) -> Duration {
        Self::SPAN.max(self.pace * 3 / 2)
    }

    /// Whether it is too early, at this time, to say that nothing goes on.
    pub fn is_beginning(at: Duration, done: u64) -> bool {
        done == 0 && at < Self::BEGINNING
    }

    /// Whether the rate of the last look, at this time, says when all will be done.
    pub fn is_sure(&self, at: Duration) -> bool {
        let since = self
            .steps
            .get(usize::from(self.is_single()))
            .map(|&(since, _)| at.saturating_sub(since));
        self.steps.len() > 1 && since.is_some_and(|since| since >= Self::SURE)
    }
}

/// How a drain comes along, for people.
pub struct Progress {
    what: &'static str,
    since: Instant,
    most: u64,
    recent: Recent,
    bar: Bar,
    line: Option<Instant>,
    /// Of the last line: it could not say how long it will take.
    is_vague: bool,
    /// Shown from the first look on.
    always: bool,
}

impl Progress {
    /// Of `what` is being done.
    pub fn new(what: &'static str) -> Progress {
        Progress {
            what,
            since: Instant::now(),
            most: 0,
            recent: Recent::begun(),
            bar: Bar::default(),
            line: None,
            is_vague: false,
            always: false,
        }
    }

    /// The same, shown however little time it takes, if `always`.
    pub fn shown(what: &'static str, always: bool) -> Progress {
        Progress { always, ..Progress::new(what) }
    }

    /// Shows that `left` bytes are left, if it takes long enough for that. Where nothing goes on
    /// `fails` is asked whether the store refuses it.
    pub fn show(&mut self, left: u64, fails: impl FnOnce() -> bool) {
        self.show_held(left, || fails().then(|| NO_END.to_owned()));
    }

    /// The same, where `held` may know what keeps it from going on.
    fn show_held(&mut self, left: u64, held: impl FnOnce() -> Option<String>) {
        self.most = self.most.max(left);
        let done = self.most - left;
        let taken = self.since.elapsed();
        let rate = self.recent.rate(taken, done);
        if taken < SHORT && !self.always {
            return;
        }
        // What moves has an end in sight, whatever else is held.
        let held = if rate > 0.0 { None } else { held() };
        if self.most == 0 && held.is_none() {
            return;
        }
        let is_known = rate > 0.0 && self.recent.is_sure(taken);
        let begins = left > 0 && Recent::is_beginning(taken, done);
        let held = held.or_else(|| begins.then(|| NO_ESTIMATE.to_owned()));
        let safe = held.unwrap_or_else(|| outlook(SystemTime::now(), left, rate, is_known));
        if std::io::stderr().is_terminal() {
            self.bar.show(self.what, template, safe, (done, self.most));
        } else if self.is_time_for_a_line(is_known) {
            self.line = Some(Instant::now());
            self.is_vague = !is_known;
            let far = match self.most {
                0 => String::new(),
                most => {
                    format!("{} of {} done, {}/s, ", bytes(done), bytes(most), bytes(rate as u64))
                }
            };
            eprintln!("forebay: {}: {far}{safe}", self.what);
        }
    }

    fn is_time_for_a_line(&self, is_known: bool) -> bool {
        match self.line {
            Some(line) if self.is_vague && is_known => line.elapsed() >= SHORT,
            Some(line) => line.elapsed() >= LINE_EVERY,
            None => self.always || self.since.elapsed() >= LINE_EVERY,
        }
    }

    /// Says something, above the bar if there is one.
    pub fn tell(&self, text: &str) {
        self.bar.tell(text);
    }

    /// Takes the bar away.
    pub fn end(self) {
        self.bar.end();
    }
}

/// Asks the manager to drain and waits until it has.
///
/// # Errors
/// What is left, and which processes are in the way, when nothing has changed for [`GIVE_UP`].
pub fn drain(connection: &Connection, runtime: &Runtime) -> Result<Drained, String> {
    wait(connection, runtime, Message::Drain)
}

/// The same, until `leave`, which is asked again and again, gives what to leave it to the manager
/// for.
pub fn drain_unless<L>(
    connection: &Connection,
    runtime: &Runtime,
    mut leave: impl FnMut(&Progress) -> Option<L>,
) -> Result<Result<Drained, L>, String> {
    let left = |progress: &Progress, _: Option<&Observer>| leave(progress);
    let drained = ask(connection, runtime, Message::Drain, drained, left)?;
    Ok(drained.map(|drained| drained.unwrap_or(Drained::Lost)))
}

fn wait(connection: &Connection, runtime: &Runtime, request: Message) -> Result<Drained, String> {
    let drained = ask(connection, runtime, request, drained, until_stuck())??;
    Ok(drained.unwrap_or(Drained::Lost))
}

fn drained(message: Message, observer: Option<&Observer>) -> Option<Drained> {
    match message {
        Message::Drained { bytes: 0, .. } => Some(Drained::All),
        Message::Drained { .. } => {
            Some(Drained::Kept(observer.map(Observer::files).unwrap_or_default()))
        }
        _ => None,
    }
}

/// Sends a request and shows how far the manager is until a message is what `answer` takes for one;
/// `None` when the manager has ended. Until then `leave` is asked again and again.
fn ask<A, L>(
    connection: &Connection,
    runtime: &Runtime,
    request: Message,
    answer: impl Fn(Message, Option<&Observer>) -> Option<A>,
    mut leave: impl FnMut(&Progress, Option<&Observer>) -> Option<L>,
) -> Result<Result<Option<A>, L>, String> {
    if connection.send(request).is_err() {
        return Ok(Ok(None));
    }
    let observer = observe(runtime);
    let mut progress = Progress::new("draining");
    let mut holders = Holders::default();
    let mut watch = Watch::default();
    let mut look = || {
        loop {
            let said = match connection.receive(Duration::from_millis(50)) {
                Ok(said) => said.and_then(|message| answer(message, observer.as_ref())),
                Err(Errno::PROTO) => {
                    return Err("the node manager is of another version".to_owned());
                }
                Err(_) => return Ok(Ok(None)),
            };
            if said.is_some() {
                return Ok(Ok(said));
            }
            if let Some(why) = leave(&progress, observer.as_ref()) {
                return Ok(Err(why));
            }
            watch.look(runtime.manager())?;
            if let Some(observer) = &observer {
                let left = observer.dirty();
                let held = || refused(observer).or_else(|| analyse::awaited(runtime, left == 0));
                progress.show_held(left, held);
                holders.tell(|| observer.holders());
            }
        }
    };
    let result = look();
    progress.end();
    result
}

/// That nothing is left but what the store refuses, so that no rate says when it will be safe.
fn refused(observer: &Observer) -> Option<String> {
    if observer.drain().time.is_some() {
        return None;
    }
    let errno = observer.files().iter().find_map(|file| file.errno)?;
    Some(format!("waits for the store, which refuses it ({})", Errno::from_raw_os_error(errno)))
}

/// What became of a manager that was told to end.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has ended.
    Gone,
    /// It has ended, and another one has begun to serve the instance.
    Replaced,
    /// All is on the store, but processes have files open, and use them through the kernel. It ends
    /// with the last of them.
    InUse,
    /// Another run has joined it, so that it goes on.
    Joined,
}

/// Tells a manager to drain and end, and waits until it has, or only programs keep it.
pub fn stop(connection: &Connection, runtime: &Runtime) -> Result<Ended, String> {
    match wait(connection, runtime, Message::Stop)? {
        Drained::Kept(files) => Err(describe(runtime, &files)),
        Drained::All | Drained::Lost => wait_for_end(Some(connection), runtime),
    }
}

/// How long what is left may stay the same before it is said why, and before it is given up on.
const EXPLAIN: Duration = Duration::from_secs(2);
const GIVE_UP: Timer = Timer::seconds(60);
/// The least of that where timers are scaled: a machine under load may do nothing for some seconds.
const GIVE_UP_LEAST: Duration = Duration::from_secs(10);

fn give_up() -> Duration {
    GIVE_UP.as_duration().max(GIVE_UP_LEAST)
}

/// Waits until the manager that was told to end has ended, only programs that use its files keep
/// it, or a run has joined it. `connection` leads to it, unless it has ended.
pub fn wait_for_end(connection: Option<&Connection>, runtime: &Runtime) -> Result<Ended, String> {
    /// What it keeps open and mapped goes when it has removed its pool: memory, and tiers that may
    /// be to be unmounted. Nothing else depends on that.
    const EXIT: Duration = Duration::from_secs(2);
    let manager = observe(runtime).filter(Observer::is_served).map(|observer| observer.manager());
    let ended = wait_for_pool(connection, runtime)?;
    if ended == Ended::Gone
        && let Some(manager) = manager
    {
        task::await_end(manager, EXIT);
    }
    Ok(ended)
}

/// The same, until its pool is gone.
fn wait_for_pool(connection: Option<&Connection>, runtime: &Runtime) -> Result<Ended, String> {
    if let Some(connection) = connection {
        // It is asked: what can be seen of a pool does not tell whether a run without clients has
        // joined.
        let word = |message, _: Option<&Observer>| match message {
            Message::InUse => Some(Ended::InUse),
            Message::GoesOn => Some(Ended::Joined),
            _ => None,
        };
        if let Some(ended) = ask(connection, runtime, Message::AwaitEnd, word, until_stuck())?? {
            return Ok(ended);
        }
    }
    let mut watch = Watch::default();
    let since = Instant::now();
    loop {
        match runtime.lock() {
            Ok(Some(_lock)) => {
                // What asking for the lock has made, where the manager had ended before.
                runtime.remove_unless_used();
                break;
            }
            Err(Errno::NOENT) => break,
            _ => {}
        }
        // The one that has closed its connections takes none any more.
        if Connection::to(&runtime.socket()).is_ok() {
            return Ok(Ended::Replaced);
        }
        watch.look(runtime.manager())?;
        if since.elapsed() > give_up() {
            return Err(format!(
                "{}: a node manager holds its lock and does not answer; see {}",
                runtime.folder.display(),
                runtime.readable_log().display()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // It has removed its pool, unless it could not.
    let Some(left) = observe(runtime) else { return Ok(Ended::Gone) };
    let files = left.files();
    match files.is_empty() {
        _ if left.is_served() => Ok(Ended::Replaced),
        // A signal has ended it, which waits for no program.
        true if !left.processes().is_empty() => Ok(Ended::Gone),
        true => Err(why_kept(runtime, &left)),
        false => Err(describe(runtime, &files)),
    }
}

/// Why the pool of a manager that has ended is there although nothing is left to drain.
fn why_kept(runtime: &Runtime, left: &Observer) -> String {
    let failed = |tier: TierStatus| tier.failed.map(|(errno, _)| (tier.name, errno));
    match left.tiers().into_iter().find_map(failed) {
        Some((tier, errno)) => format!(
            "everything is on the store, but tier {tier} ({}) cannot note that, and {} is kept for \
             it: repair or make room on the tier, then run `forebay recover`",
            Errno::from_raw_os_error(errno),
            runtime.pool.display()
        ),
        None => format!(
            "{}: the node manager has died before it removed its pool; `forebay recover` does",
            runtime.folder.display()
        ),
    }
}

/// Looks at the instance's pool, under the name that it has now: it may have been made since
/// `runtime` was found.
pub fn observe(runtime: &Runtime) -> Option<Observer> {
    Observer::of(&runtime.again().ok()?.pool).ok()
}

/// Leaves a manager that comes no further.
fn until_stuck() -> impl FnMut(&Progress, Option<&Observer>) -> Option<String> {
    let mut stuck = Stuck::default();
    move |_, observer| stuck.look(observer).err()
}

/// Notices that a manager that drains comes no further.
#[derive(Default)]
struct Stuck {
    /// What was left, and since when.
    left: Option<(u64, usize, Instant)>,
    told: bool,
}

impl Stuck {
    /// `observer` sees the manager's pool, if it has one.
    ///
    /// # Errors
    /// What is left, and which processes are in the way, when nothing has changed for [`GIVE_UP`].
    fn look(&mut self, observer: Option<&Observer>) -> Result<(), String> {
        let (bytes, files) =
            observer.map_or((0, Vec::new()), |observer| (observer.dirty(), observer.unfinished()));
        let (since, same) = match self.left {
            Some((b, f, since)) if (b, f) == (bytes, files.len()) => (since, true),
            _ => (Instant::now(), false),
        };
        if !same {
            self.left = Some((bytes, files.len(), since));
            self.told = false;
            return Ok(());
        }
        let explain = || {
            if files.is_empty() {
                return "the node manager does not answer".to_owned();
            }
            let unfinished = counted(files.len(), "file is", "files are");
            let mut text = format!("{unfinished} not finished:");
            for (path, pids) in files.iter().take(20) {
                text.push_str(&format!("\n  {}", shown(path)));
                if !pids.is_empty() {
                    text.push_str(&format!(": in use by {}", processes(pids)));
                }
            }
            text
        };
        if since.elapsed() > give_up() {
            return Err(format!(
                "{}\nTheir data is kept. The node manager goes on trying, and `forebay status` shows how far it is",
                explain()
            ));
        }
        if since.elapsed() > EXPLAIN && !self.told && !files.is_empty() {
            self.told = true;
            eprintln!("forebay: {}", explain());
        }
        Ok(())
    }
}

/// Process ids for people, with what keeps those from going on that do not.
pub fn processes(pids: &[u32]) -> String {
    let one = |&pid: &u32| match liveness::halt(pid) {
        Some(Halt::Stopped) => format!("{pid} (stopped; kill -CONT {pid} continues it)"),
        Some(Halt::Device) => format!("{pid} (waiting for a device)"),
        None => pid.to_string(),
    };
    const MOST: usize = 20;
    let mut text = pids.iter().take(MOST).map(one).collect::<Vec<_>>().join(", ");
    if pids.len() > MOST {
        text.push_str(&format!(" and {} more", pids.len() - MOST));
    }
    text
}

/// Says which files of an instance could not be drained, and what to do.
pub fn describe(runtime: &Runtime, files: &[FileStatus]) -> String {
    let count = files_of(files.len());
    let mut text = format!("{count} could not be drained; the data is kept:");
    for file in files.iter().take(20) {
        let why = match file.errno {
            None => "not yet tried".to_owned(),
            Some(0) => {
                "it has lost its last name, and goes with the programs that have it open".into()
            }
            Some(libc::ESTALE) => format!(
                "{}: it was removed, moved away, or hidden by a mount, by a program without Forebay, and could not be \
                 set aside; the node manager's log says why. Bring it back; or save the data, and move the pool away",
                std::io::Error::from_raw_os_error(libc::ESTALE)
            ),
            Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        text.push_str(&format!("\n  {}: {why}", shown(&file.path)));
    }
    if files.len() > 20 {
        text.push_str(&format!("\n  and {} more; see `forebay status`", files.len() - 20));
    }
    if observe(runtime).is_some_and(|observer| observer.is_given_up()) {
        text.push_str(
            "\nThis node was given up by its group, so that others may have written these files: \
             nothing here brings them to the store. Save the data to another place with `forebay \
             salvage --to DIR`, and compare it by hand.",
        );
        return text;
    }
    text.push_str(
        "\nFree space or repair the store, then run `forebay recover`; or save the data to another \
         place with `forebay salvage --to DIR`.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_a_time_of_day() {
        let noon = UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 + 43_200);
        assert_eq!(safe_at(noon, 61.5), "62 s left, safe at 12:01:02 UTC");
        assert_eq!(safe_at(noon, 43_200.0), "43200 s left, safe at 00:00:00 UTC");
        assert_eq!(safe_at(noon, f64::INFINITY), "no end in sight");
        assert_eq!(safe_at(noon, 1e9), "no end in sight");
    }

    #[test]
    fn what_is_written_is_not_said_to_be_safe_before_it_is_synced() {
        let outlook = |left, rate, is_known| outlook(UNIX_EPOCH, left, rate, is_known);
        assert_eq!(outlook(0, 0.0, true), "all is written, not yet synced");
        assert_eq!(outlook(0, 9.0, true), outlook(0, 0.0, false));
        assert_eq!(outlook(90, 9.0, true), "10 s left, safe at 00:00:10 UTC");
        assert_eq!(outlook(90, 9.0, false), "no estimate yet");
        assert_eq!(outlook(90, 0.0, false), "no end in sight");
    }

    #[test]
    fn what_stands_still_has_no_rate() {
        let mut recent = Recent::default();
        let mut rate = |seconds, done| recent.rate(Duration::from_secs(seconds), done);
        assert_eq!(rate(0, 0), 0.0);
        assert_eq!((rate(1, 100), rate(4, 400)), (100.0, 100.0));
        // Of the last five seconds.
        assert_eq!((rate(8, 400), rate(10, 400)), (300.0 / 7.0, 0.0));
        assert_eq!(rate(12, 600), 25.0);
    }

    #[test]
    fn a_store_that_takes_seconds_for_a_step_has_a_rate_and_an_end() {
        // 16 bytes in each 16 s, looked at often.
        let mut recent = Recent::default();
        let mut look = |ms: u64| {
            let at = Duration::from_millis(ms);
            (recent.rate(at, ms / 16_000 * 16), recent.is_sure(at))
        };
        for ms in (0..100_000).step_by(50) {
            let (rate, is_sure) = look(ms);
            match ms {
                ..16_000 => assert_eq!(rate, 0.0),
                16_000..17_000 => assert!(!is_sure, "{ms}"),
                _ => assert!(is_sure && (0.49..1.01).contains(&rate), "{ms}: {rate}"),
            }
        }
    }

    #[test]
    fn a_step_after_a_stall_is_as_slow_as_that_was() {
        let mut recent = Recent::default();
        let mut look = |seconds: u64, done| {
            let at = Duration::from_secs(seconds);
            (recent.rate(at, done), recent.is_sure(at))
        };
        (0..10).for_each(|seconds| _ = look(seconds, seconds * 10));
        (10..70).for_each(|seconds| _ = look(seconds, 90));
        assert_eq!(look(69, 90).0, 0.0);
        (70..115).for_each(|seconds| {
            let (rate, is_sure) = look(seconds, 200);
            assert!(!is_sure || rate < 4.0, "{seconds}: {rate}");
        });
        // Not for as long as the stall was: it stands still again.
        assert_eq!(look(120, 200).0, 0.0);
    }

    #[test]
    fn a_rate_counts_from_the_first_byte_and_is_believed_after_a_while() {
        let mut recent = Recent::default();
        let mut look = |ms, done| {
            let at = Duration::from_millis(ms);
            (recent.rate(at, done), recent.is_sure(at))
        };
        for ms in (0..3000).step_by(50) {
            assert_eq!(look(ms, 0).0, 0.0);
        }
        assert_eq!(look(3000, 100), (100.0 / 0.05, false));
        assert_eq!(look(3900, 1000), (1000.0 / 0.95, false));
        assert_eq!(look(4950, 2000), (1000.0, true));
    }

    #[test]
    fn a_line_of_progress_fits_its_terminal() {
        let longest = [
            ("{msg}", "draining"),
            ("{wide_bar}", "########"),
            ("{binary_bytes}", "1023.99 MiB"),
            ("{binary_total_bytes}", "1023.99 GiB"),
            ("{binary_bytes_per_sec}", "1023.99 MiB/s"),
            ("{percent}", "100"),
            ("{prefix}", "86400 s left, safe at 00:00:00 UTC"),
        ];
        for columns in 20..300 {
            let mut line = template(columns).to_owned();
            longest.iter().for_each(|(key, value)| line = line.replace(key, value));
            assert!(!line.contains('{') && line.len() <= usize::from(columns), "{columns}: {line}");
        }
        assert!(template(80).contains("total"), "a usual terminal says how much");
    }
}
