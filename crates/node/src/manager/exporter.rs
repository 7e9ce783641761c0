//! Tells metrics: writes them to a file now and then, and answers those who ask on a Unix socket or
//! on loopback. One thread, which waits for all of them at once: an asker that does not go on holds
//! up no other one, and is left after [`PATIENCE`].

use crate::config::{Listen, Metrics};
use crate::node::Node;
use crate::observe::http::{self, Refusal};
use crate::observe::metrics::{CONTENT_TYPE, Source, text};
use crate::observe::status::Observer;
use forebay_pool::clock::Timer;
use forebay_pool::{crash, private};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one who asks may take to do so, and to take the answer.
const PATIENCE: Timer = Timer::seconds(2);
/// Askers whose questions are waited for; of more the first one is left.
const ASKERS_MAX: usize = 64;
/// The longest question.
const QUESTION_MAX: usize = 8 << 10;

/// Where the manager listens.
enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// What tells the metrics of a manager.
pub(crate) struct Exporter {
    metrics: Metrics,
    listener: Option<Listener>,
    /// Ends the thread's wait.
    waker: OwnedFd,
    /// Why the file could not be written at first.
    failure: Option<String>,
}

impl Exporter {
    /// What a configuration wants, with what is to be said of a file or an endpoint that cannot be
    /// had: the manager serves without it. `None` if nothing is wanted.
    pub fn of(node: &Node) -> Result<Option<(Exporter, Vec<String>)>, String> {
        let metrics = node.config.metrics.clone();
        if metrics.textfile.is_none() && metrics.listen.is_none() {
            return Ok(None);
        }
        let mut warnings = Vec::new();
        let listener = metrics.listen.as_ref().map(listen).transpose().unwrap_or_else(|why| {
            warnings.push(format!("metrics.listen: {why}"));
            None
        });
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("making an event descriptor: {errno}"))?;
        let mut exporter = Exporter { metrics, listener, waker, failure: None };
        let observer = Observer::of_file(node.pool_file.as_fd());
        let observer = observer.map_err(|error| format!("metrics: {error}"))?;
        exporter.failure = exporter.write_file(node, &observer).err();
        warnings.extend(exporter.failure.clone());
        Ok(Some((exporter, warnings)))
    }

    /// Ends the life of its thread.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// The life of its thread, until the manager ends.
    pub fn run(&self, node: &Node) {
        let observer = match Observer::of_file(node.pool_file.as_fd()) {
            Ok(observer) => observer,
            Err(error) => return eprintln!("metrics: {error}"),
        };
        let mut due = Instant::now() + self.metrics.interval;
        let mut failure = self.failure.clone();
        let mut asking: Vec<Asking> = Vec::new();
        while !node.stopping.load(std::sync::atomic::Ordering::Acquire) {
            if self.metrics.textfile.is_some() && Instant::now() >= due {
                due = Instant::now() + self.metrics.interval;
                let failed = self.write_file(node, &observer).err();
                match &failed {
                    // Said once, until it is another one.
                    Some(why) if failed != failure => eprintln!("{why}"),
                    None if failure.is_some() => info!("metrics.textfile is written again"),
                    _ => {}
                }
                failure = failed;
            }
            if self.is_asked(due, &asking)
                && let Some(Ok(asker)) = self.listener.as_ref().map(Listener::accept)
            {
                if asking.len() == ASKERS_MAX {
                    asking.remove(0);
                }
                asking.push(Asking::new(asker));
            }
            // One who has gone away needs no answer.
            asking.retain_mut(|one| one.go_on(|| tell(node, &observer)).is_ok_and(|ended| !ended));
        }
    }

    /// Waits until the file is due, an asker goes on or is late, or another one comes: whether one
    /// does.
    fn is_asked(&self, due: Instant, asking: &[Asking]) -> bool {
        let listener = self.listener.as_ref().map(Listener::as_fd);
        let fds = [Some(self.waker.as_fd()), listener].into_iter().flatten();
        let fds = fds.chain(asking.iter().map(|one| one.asker.as_fd()));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let due = self.metrics.textfile.is_some().then_some(due);
        let until = due.into_iter().chain(asking.iter().map(|one| one.until)).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let woken = rustix::event::poll(&mut fds, limit.as_ref());
        woken.is_ok() && listener.is_some() && !fds[1].revents().is_empty()
    }

    /// Writes the file beside its place, and gives it its name then: a reader finds all of it.
    fn write_file(&self, node: &Node, observer: &Observer) -> Result<(), String> {
        let Some(path) = &self.metrics.textfile else { return Ok(()) };
        let beside = beside(path, &node.runtime.instance);
        let write = || {
            // What a manager that was killed has left there.
            let _ = fs::remove_file(&beside);
            let mut file = File::options().write(true).create_new(true).open(&beside)?;
            // The collector is another user.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(tell(node, observer).as_bytes())?;
            crash::point("metrics.written");
            fs::rename(&beside, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&beside);
            format!("metrics.textfile: {}: {error}; it is tried again", path.display())
        })
    }

    /// At the end of the manager, which serves its pool no more: takes away the file of one that
    /// has drained everything. Of another one the file says that nothing serves what is left.
    pub fn end(&self, node: &Node, has_drained: bool) {
        if let Some(Listener::Unix(_, path)) = &self.listener {
            let _ = fs::remove_file(path);
        }
        let Some(path) = &self.metrics.textfile else { return };
        if has_drained {
            let _ = fs::remove_file(path);
        } else if let Ok(observer) = Observer::of_file(node.pool_file.as_fd())
            && let Err(why) = self.write_file(node, &observer)
        {
            eprintln!("{why}");
        }
    }
}

/// The name of a file while it is written, in the same folder.
fn beside(path: &Path, instance: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{instance}"))
}

fn tell(node: &Node, observer: &Observer) -> String {
    let ages = node.config.flush.ages();
    text(&[Source { instance: &node.runtime.instance, observer, ages }])
}

/// Listens there, for this user alone where that can be said.
///
/// # Errors
/// A message that names the place, and what to do.
fn listen(at: &Listen) -> Result<Listener, String> {
    match at {
        Listen::Loopback(address) => {
            let listener = TcpListener::bind(address).map_err(|error| {
                format!("{address}: {error}; give another port, or end what has it")
            })?;
            listener.set_nonblocking(true).map_err(|error| format!("{address}: {error}"))?;
            Ok(Listener::Tcp(listener))
        }
        Listen::Unix(path) => {
            let failed = |error| format!("{}: {error}; give another path", path.display());
            let shown = path.display();
            match fs::symlink_metadata(path) {
                Ok(found) if !found.file_type().is_socket() => {
                    return Err(format!("{shown}: is there, and no socket; give another path"));
                }
                Ok(_) if UnixStream::connect(path).is_ok() => {
                    return Err(format!("{shown}: another process listens there; give another"));
                }
                _ => {}
            }
            // With its mode before others can see it; what a dead manager has left goes.
            let beside = beside(path, &std::process::id().to_string());
            let _ = fs::remove_file(&beside);
            let listener = UnixListener::bind(&beside).map_err(failed)?;
            let named = fs::set_permissions(&beside, Permissions::from_mode(0o600))
                .and_then(|()| listener.set_nonblocking(true))
                .and_then(|()| fs::rename(&beside, path));
            named.map_err(|error| {
                private::remove(&beside);
                failed(error)
            })?;
            Ok(Listener::Unix(listener, path.clone()))
        }
    }
}

/// The end of a connection.
trait Asker: Read + Write + AsFd {
    /// Whether calls wait, and how long those that write may take.
    fn wait(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Whether a request may be to a host of this name, or to none.
    fn is_host(&self, name: Option<&str>) -> bool;
}

impl Asker for TcpStream {
    fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(limit.is_none())?;
        self.set_write_timeout(limit)
    }

    fn is_host(&self, name: Option<&str>) -> bool {
        name.is_some_and(is_loopback)
    }
}

impl Asker for UnixStream {
    fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(limit.is_none())?;
        self.set_write_timeout(limit)
    }

    fn is_host(&self, _name: Option<&str>) -> bool {
        // No browser reaches it: those who do call it as they like.
        true
    }
}

impl Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Asker>> {
        Ok(match self {
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.wait(None)?;
                Box::new(stream)
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.wait(None)?;
                Box::new(stream)
            }
        })
    }
}

/// One whose question has begun.
struct Asking {
    asker: Box<dyn Asker>,
    question: Vec<u8>,
    /// When it is left.
    until: Instant,
}

impl Asking {
    fn new(asker: Box<dyn Asker>) -> Asking {
        Asking { asker, question: Vec::new(), until: Instant::now() + PATIENCE.as_duration() }
    }

    /// Reads what there is of its question, of HTTP, and answers it when that is whole: whether
    /// this one is done with.
    fn go_on(&mut self, metrics: impl FnOnce() -> String) -> io::Result<bool> {
        let mut buffer = [0; QUESTION_MAX];
        match self.asker.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(got) => self.question.extend_from_slice(&buffer[..got]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Instant::now() >= self.until);
            }
            Err(error) => return Err(error),
        }
        if http::is_whole(&self.question) || self.question.len() >= QUESTION_MAX {
            self.answer(metrics)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn answer(&mut self, metrics: impl FnOnce() -> String) -> io::Result<()> {
        let is_host = |name: Option<&str>| self.asker.is_host(name);
        let (status, content) = respond(&self.question, is_host, metrics);
        let is_head = self.question.starts_with(b"HEAD ");
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            content.len()
        );
        let mut rest = head.into_bytes();
        if !is_head {
            rest.extend_from_slice(content.as_bytes());
        }
        let end = Instant::now() + PATIENCE.as_duration();
        let mut at = 0;
        while at < rest.len() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.asker.wait(Some(left))?;
            match self.asker.write(&rest[at..])? {
                0 => return Ok(()),
                put => at += put,
            }
        }
        self.asker.flush()
    }
}

/// Whether a host, with or without a port, is this machine by an address of loopback or by
/// `localhost`: no name of another site, which that may have let lead here for a browser.
fn is_loopback(host: &str) -> bool {
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|c| c.is_ascii_digit()));
    let name = port.map_or(host, |(name, _)| name);
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse().map(IpAddr::V6),
        None => name.parse().map(IpAddr::V4),
    };
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Status and content of the answer to a question.
fn respond(
    question: &[u8],
    is_host: impl Fn(Option<&str>) -> bool,
    metrics: impl FnOnce() -> String,
) -> (&'static str, String) {
    match http::read(question, is_host) {
        Ok(http::Request { path: "/metrics" | "/", .. }) => ("200 OK", metrics()),
        Ok(_) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        Err(Refusal::Misdirected) => {
            let why = "metrics are told to localhost or an address of loopback alone\n".to_owned();
            (Refusal::Misdirected.status(), why)
        }
        Err(other) => (other.status(), "a GET of /metrics is answered\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_answered() {
        let status =
            |question: &str| respond(question.as_bytes(), |_| true, || "m 1\n".to_owned()).0;
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /metrics?name=x HTTP/1.0\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /../etc HTTP/1.0\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.0\r\n\r\n"), "405 Method Not Allowed");
        for nonsense in ["", "\0\0", "GET", "GET /metrics HTTP/1.1\r\n", "GET /metrics\r\n\r\n"] {
            assert_eq!(status(nonsense), "400 Bad Request", "{nonsense:?}");
        }
    }

    #[test]
    fn other_sites_have_no_names_for_this_machine() {
        let ours =
            ["localhost", "LOCALHOST:1", "127.0.0.1:9477", "127.0.0.2", "[::1]:9477", "[::1]"];
        for host in ours {
            assert!(is_loopback(host), "{host}");
        }
        let others = [
            "",
            ":9477",
            "evil.example",
            "evil.example:9477",
            "localhost.evil.example",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "::1",
            "[::2]",
            "[127.0.0.1]",
            "localhost:a",
            "127.0.0.1 ",
        ];
        for host in others {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_question_without_an_end_is_given_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.wait(None).unwrap();
        let mut asking = Asking::new(Box::new(ours));
        assert!(!asking.go_on(String::new).unwrap(), "the asker has said nothing so far");
        theirs.write_all(&[b'a'; QUESTION_MAX]).unwrap();
        while !asking.go_on(String::new).unwrap() {}
        drop(asking);
        let mut said = String::new();
        theirs.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.wait(None).unwrap();
        let mut asking = Asking::new(Box::new(ours));
        asking.until = Instant::now();
        assert!(asking.go_on(String::new).unwrap(), "the asker says nothing");
    }
}
