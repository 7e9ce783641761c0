//! Waiting for a drain, with a progress bar on a terminal and plain lines elsewhere.

use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_node::status::{FileStatus, Observer};
use forebay_pool::message::Message;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Nothing is shown for a drain that takes less.
const SHORT: Duration = Duration::from_millis(300);
/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Bytes for people.
pub fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
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
    line: Instant,
}

impl Progress {
    /// Of `what` is being done.
    pub fn new(what: &'static str) -> Progress {
        let now = Instant::now();
        Progress { what, since: now, most: 0, bar: None, line: now }
    }

    /// Shows that `left` bytes are left, if it takes long enough for that.
    pub fn show(&mut self, left: u64) {
        self.most = self.most.max(left);
        if self.since.elapsed() < SHORT || self.most == 0 {
            return;
        }
        let done = self.most - left;
        if std::io::stderr().is_terminal() {
            let most = self.most;
            let bar = self.bar.get_or_insert_with(|| {
                let style = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} \
                             {binary_bytes_per_sec}, {eta} left";
                let style = ProgressStyle::with_template(style);
                let bar = ProgressBar::new(most);
                bar.with_message(self.what)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            bar.set_length(self.most);
            bar.set_position(done);
        } else if self.line.elapsed() >= LINE_EVERY {
            self.line = Instant::now();
            let seconds = self.since.elapsed().as_secs_f64();
            let rate = done as f64 / seconds;
            let left_seconds = if rate > 0.0 { left as f64 / rate } else { f64::INFINITY };
            eprintln!(
                "forebay: {}: {} of {} done, {}/s, {left_seconds:.0} s left",
                self.what,
                bytes(done),
                bytes(self.most),
                bytes(rate as u64),
            );
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

fn wait(connection: &Connection, runtime: &Runtime, request: Message) -> Result<Drained, String> {
    if connection.send(request).is_err() {
        return Ok(Drained::Lost);
    }
    let observer = Observer::of(&runtime.pool);
    let mut progress = Progress::new("draining");
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
        if let Ok(observer) = &observer {
            progress.show(observer.dirty());
        }
    };
    progress.end();
    Ok(result)
}

/// Tells a manager to drain and end, and waits until it has.
pub fn stop(connection: &Connection, runtime: &Runtime) -> Result<(), String> {
    match wait(connection, runtime, Message::Stop)? {
        Drained::Kept(files) => Err(describe(&files)),
        Drained::All | Drained::Lost => wait_for_end(runtime),
    }
}

/// Waits until no manager serves the instance any more.
pub fn wait_for_end(runtime: &Runtime) -> Result<(), String> {
    let mut progress = Progress::new("draining");
    let observer = Observer::of(&runtime.pool);
    loop {
        match runtime.lock() {
            Ok(Some(_lock)) => {
                // What asking for the lock has made, where the manager had ended before.
                runtime.remove_unless_used();
                break;
            }
            Err(Errno::NOENT) => break,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        if let Ok(observer) = &observer {
            progress.show(observer.dirty());
        }
    }
    progress.end();
    match observer {
        Ok(observer) if runtime.pool.exists() => Err(describe(&observer.files())),
        _ => Ok(()),
    }
}

/// Says which files could not be drained.
pub fn describe(files: &[FileStatus]) -> String {
    let mut text = format!("{} files could not be drained; their data is kept:", files.len());
    for file in files.iter().take(20) {
        let why = file.errno.map_or("not yet tried".to_owned(), |errno| {
            std::io::Error::from_raw_os_error(errno).to_string()
        });
        text.push_str(&format!("\n  {}: {why}", file.path));
    }
    if files.len() > 20 {
        text.push_str(&format!("\n  and {} more; see `forebay status`", files.len() - 20));
    }
    text.push_str("\nFree space or mend the store, then run `forebay recover`.");
    text
}
