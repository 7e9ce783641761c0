//! Waiting for a drain, with a progress bar on a terminal and plain lines elsewhere.

use crate::holders::Holders;
use crate::watch::Watch;
use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_node::status::{FileStatus, Observer};
use forebay_pool::liveness::{self, Halt};
use forebay_pool::message::Message;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nothing is shown for a drain that takes less.
const SHORT: Duration = Duration::from_millis(300);
/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Bytes for people.
pub fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
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

/// How a drain comes along, for people.
pub struct Progress {
    what: &'static str,
    since: Instant,
    most: u64,
    bar: Option<ProgressBar>,
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
            bar: None,
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
        self.most = self.most.max(left);
        if self.most == 0 || self.since.elapsed() < SHORT && !self.always {
            return;
        }
        let done = self.most - left;
        let rate = done as f64 / self.since.elapsed().as_secs_f64().max(1e-3);
        let left_seconds = if rate > 0.0 { left as f64 / rate } else { f64::INFINITY };
        let safe = safe_at(SystemTime::now(), left_seconds);
        if std::io::stderr().is_terminal() {
            let most = self.most;
            let bar = self.bar.get_or_insert_with(|| {
                let style = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} \
                             {binary_bytes_per_sec}, {prefix}";
                let style = ProgressStyle::with_template(style);
                let bar = ProgressBar::new(most);
                bar.with_message(self.what)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            bar.set_prefix(safe);
            bar.set_length(self.most);
            bar.set_position(done);
        } else if self.is_time_for_a_line(done > 0) {
            self.line = Some(Instant::now());
            self.is_vague = done == 0;
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
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("forebay: {text}")),
            None => eprintln!("forebay: {text}"),
        }
    }

    /// Takes the bar away.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Asks the manager to drain and waits until it has.
pub fn drain(connection: &Connection, runtime: &Runtime) -> Result<Drained, String> {
    wait(connection, runtime, Message::Drain)
}

/// The same, until `leave`, which is asked again and again, gives what to leave it to the manager for.
pub fn drain_unless<L>(
    connection: &Connection,
    runtime: &Runtime,
    leave: impl FnMut(&Progress) -> Option<L>,
) -> Result<Result<Drained, L>, String> {
    wait_unless(connection, runtime, Message::Drain, leave)
}

fn wait(connection: &Connection, runtime: &Runtime, request: Message) -> Result<Drained, String> {
    let Ok(drained) = wait_unless(connection, runtime, request, |_| None::<Infallible>)?;
    Ok(drained)
}

fn wait_unless<L>(
    connection: &Connection,
    runtime: &Runtime,
    request: Message,
    mut leave: impl FnMut(&Progress) -> Option<L>,
) -> Result<Result<Drained, L>, String> {
    if connection.send(request).is_err() {
        return Ok(Ok(Drained::Lost));
    }
    let observer = Observer::of(&runtime.pool);
    let mut progress = Progress::new("draining");
    let mut holders = Holders::default();
    let mut watch = Watch::default();
    let result = loop {
        match connection.receive(Duration::from_millis(50)) {
            Ok(Some(Message::Drained { bytes: 0, .. })) => break Drained::All,
            Ok(Some(Message::Drained { .. })) => {
                let files = observer.as_ref().map(Observer::files).unwrap_or_default();
                break Drained::Kept(files);
            }
            Ok(Some(_) | None) => {}
            Err(Errno::PROTO) => return Err("the node manager is of another version".into()),
            Err(_) => break Drained::Lost,
        }
        if let Some(why) = leave(&progress) {
            progress.end();
            return Ok(Err(why));
        }
        watch.look(runtime.manager())?;
        if let Ok(observer) = &observer {
            progress.show(observer.dirty());
            holders.tell(|| observer.holders());
        }
    };
    progress.end();
    Ok(Ok(result))
}

/// What became of a manager that was told to end.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has ended.
    Gone,
    /// All is on the store, but processes have files open, and use them through the kernel. It ends
    /// with the last of them.
    InUse,
    /// Another run has joined it, so that it goes on.
    Joined,
}

/// Tells a manager to drain and end, and waits until it has, or only programs keep it.
pub fn stop(connection: &Connection, runtime: &Runtime) -> Result<Ended, String> {
    match wait(connection, runtime, Message::Stop)? {
        Drained::Kept(files) => Err(describe(&files)),
        Drained::All | Drained::Lost => wait_for_end(runtime),
    }
}

/// How long a manager goes on as if it had not been told to end, before that is believed.
const TOLD: Duration = Duration::from_secs(2);
/// How long what is left may stay the same before it is said why, and before it is given up on.
const EXPLAIN: Duration = Duration::from_secs(2);
const GIVE_UP: Duration = Duration::from_secs(60);

/// Waits until no manager serves the instance any more, or only programs that use its files keep it.
pub fn wait_for_end(runtime: &Runtime) -> Result<Ended, String> {
    let mut progress = Progress::new("draining");
    let mut holders = Holders::default();
    let observer = Observer::of(&runtime.pool);
    let mut watch = Watch::default();
    let (mut goes_on, mut direct): (Option<Instant>, Option<Instant>) = (None, None);
    let mut stuck = Stuck::default();
    let ended = loop {
        match runtime.lock() {
            Ok(Some(_lock)) => {
                // What asking for the lock has made, where the manager had ended before.
                runtime.remove_unless_used();
                break Ended::Gone;
            }
            Err(Errno::NOENT) => break Ended::Gone,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        watch.look(runtime.manager())?;
        let Ok(observer) = &observer else { continue };
        // Without one it ends in a moment, unless a run holds it whose programs cannot be seen.
        match observer.is_direct() {
            true if observer.clients() > 0 => break Ended::InUse,
            true if direct.get_or_insert_with(Instant::now).elapsed() > TOLD => break Ended::InUse,
            true => continue,
            false => direct = None,
        }
        // With clients it says at once that it was told.
        if observer.is_served() && observer.clients() > 0 && !observer.is_retiring() {
            if goes_on.get_or_insert_with(Instant::now).elapsed() > TOLD {
                break Ended::Joined;
            }
        } else {
            goes_on = None;
        }
        stuck.look(observer)?;
        progress.show(observer.dirty());
        holders.tell(|| observer.holders());
    };
    progress.end();
    match (&ended, observer) {
        (Ended::Gone, Ok(observer)) if runtime.pool.exists() => Err(describe(&observer.files())),
        _ => Ok(ended),
    }
}

/// Notices that a manager that was told to end comes no further.
#[derive(Default)]
struct Stuck {
    /// What was left, and since when.
    left: Option<(u64, usize, Instant)>,
    told: bool,
}

impl Stuck {
    /// # Errors
    /// What is left, and who is in the way, when nothing has changed for [`GIVE_UP`].
    fn look(&mut self, observer: &Observer) -> Result<(), String> {
        let (bytes, files) = (observer.dirty(), observer.unsettled());
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
            let mut text = format!("{} files are not settled:", files.len());
            for (path, pids) in files.iter().take(20) {
                text.push_str(&format!("\n  {path}"));
                if !pids.is_empty() {
                    text.push_str(&format!(": in use by {}", processes(pids)));
                }
            }
            text
        };
        if since.elapsed() > GIVE_UP {
            return Err(format!(
                "{}\nTheir data is kept. The node manager goes on trying, and ends when it can",
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

/// Says which files could not be drained.
pub fn describe(files: &[FileStatus]) -> String {
    let mut text = format!("{} files could not be drained; their data is kept:", files.len());
    for file in files.iter().take(20) {
        let why = match file.errno {
            None => "not yet tried".to_owned(),
            Some(0) => {
                "it has lost its last name, and goes with the programs that have it open".into()
            }
            Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        text.push_str(&format!("\n  {}: {why}", file.path));
    }
    if files.len() > 20 {
        text.push_str(&format!("\n  and {} more; see `forebay status`", files.len() - 20));
    }
    text.push_str(
        "\nFree space or mend the store, then run `forebay recover`; or save the data to another \
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
}
