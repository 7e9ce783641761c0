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
use forebay_node::status::{FileStatus, Observer};
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
        None => "no end in sight".to_owned(),
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
    /// What was done, and when, the oldest first: of the last [`Recent::SPAN`], and one before.
    looks: VecDeque<(Duration, u64)>,
}

impl Recent {
    const SPAN: Duration = Duration::from_secs(5);

    /// Bytes a second, when `done` are done at a time since the beginning.
    pub fn rate(&mut self, at: Duration, done: u64) -> f64 {
        self.looks.push_back((at, done));
        while self.looks.get(1).is_some_and(|&(second, _)| at.saturating_sub(second) > Self::SPAN) {
            self.looks.pop_front();
        }
        let (since, before) = self.looks[0];
        done.saturating_sub(before) as f64 / at.saturating_sub(since).as_secs_f64().max(1e-3)
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
            recent: Recent { looks: VecDeque::from([(Duration::ZERO, 0)]) },
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

    /// Shows that `left` bytes are left, if it takes long enough for that.
    pub fn show(&mut self, left: u64) {
        self.show_held(left, || None);
    }

    /// The same, where `held` may know what keeps it from going on.
    fn show_held(&mut self, left: u64, held: impl FnOnce() -> Option<String>) {
        self.most = self.most.max(left);
        let done = self.most - left;
        let rate = self.recent.rate(self.since.elapsed(), done);
        if self.most == 0 || self.since.elapsed() < SHORT && !self.always {
            return;
        }
        let left_seconds = if rate > 0.0 { left as f64 / rate } else { f64::INFINITY };
        // What moves has an end in sight, whatever else is held.
        let held = if rate > 0.0 { None } else { held() };
        let safe = held.unwrap_or_else(|| safe_at(SystemTime::now(), left_seconds));
        if std::io::stderr().is_terminal() {
            self.bar.show(self.what, template, safe, (done, self.most));
        } else if self.is_time_for_a_line(rate > 0.0) {
            self.line = Some(Instant::now());
            self.is_vague = rate <= 0.0;
            eprintln!(
                "forebay: {}: {} of {} done, {}/s, {safe}",
                self.what,
                bytes(done),
                bytes(self.most),
                bytes(rate as u64),
            );
        }
    }

    fn is_time_for_a_line(&self, moves: bool) -> bool {
        match self.line {
            Some(line) if self.is_vague && moves => line.elapsed() >= SHORT,
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
                progress.show_held(observer.dirty(), || analyse::held(runtime));
                holders.tell(|| observer.holders());
            }
        }
    };
    let result = look();
    progress.end();
    result
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
        true => Err(format!(
            "{}: the node manager has died before it removed its pool; `forebay recover` does",
            runtime.folder.display()
        )),
        false => Err(describe(runtime, &files)),
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
