//! What a service manager such as systemd is told of a node manager that is its service: that it
//! serves, that it ends, and how far it is with that. By the protocol of `sd_notify`: datagrams of
//! assignments to the socket that `NOTIFY_SOCKET` names.

use crate::config::units::Size;
use forebay_pool::clock::Timer;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Instant;

/// How long a service manager that reads nothing may hold us up.
const SEND: Timer = Timer::seconds(1);
/// How often it is told how far a drain is.
const EVERY: Timer = Timer::seconds(1);
/// For how long more it is to wait after a drain has gone on.
const PATIENCE_US: u64 = 60_000_000;

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Service {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Service {
    /// The one that the environment of this process names.
    pub fn of_environment() -> Service {
        let named = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        let Some(address) = address(&named) else { return Service::default() };
        let socket = UnixDatagram::unbound()
            .and_then(|socket| socket.set_write_timeout(Some(SEND.as_duration())).map(|()| socket));
        Service { socket: socket.ok().map(|socket| (socket, address)) }
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Clients can connect.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// The manager ends, and nothing makes it go on any more.
    pub(crate) fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    /// An error is not told: the service manager finds out by its own time-outs.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// The address that a name stands for. Those of virtual machines (`vsock:`) are not for services.
fn address(named: &OsStr) -> Option<SocketAddr> {
    match named.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(named).ok(),
        _ => None,
    }
}

/// A text that is one assignment's.
fn one_line(text: &str) -> String {
    text.replace('\n', "; ")
}

/// What is told of an end that takes time.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    /// When it was told last, and how many bytes were left then.
    last: Option<(Instant, u64)>,
}

impl Farewell {
    /// Tells of the end, at first, and then each second how many bytes are left. When these have
    /// changed it asks for more time: a drain takes as long as it takes, while one that does not go
    /// on is to be ended when the service's own time is up.
    pub fn go_on(&mut self, service: &Service, left: impl FnOnce() -> u64) {
        let is_early = |(at, _): (Instant, u64)| at.elapsed() < EVERY.as_duration();
        if !service.is_there() || self.last.is_some_and(is_early) {
            return;
        }
        let left = left();
        let goes_on = self.last.is_some_and(|(_, before)| before != left);
        if goes_on {
            service.send(&format!("EXTEND_TIMEOUT_USEC={PATIENCE_US}"));
        }
        service.stopping(&format!("draining: {} not on the store yet", Size(left)));
        self.last = Some((Instant::now(), left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A service, and the service manager's end.
    fn pair(folder: &std::path::Path) -> (Service, UnixDatagram) {
        let path = folder.join("notify");
        let theirs = UnixDatagram::bind(&path).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let address = address(path.as_os_str()).unwrap();
        (Service { socket: Some((UnixDatagram::unbound().unwrap(), address)) }, theirs)
    }

    fn told(theirs: &UnixDatagram) -> Vec<String> {
        let mut text = [0u8; 4096];
        let next =
            || theirs.recv(&mut text).ok().map(|n| String::from_utf8_lossy(&text[..n]).into());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn names_are_paths_or_abstract() {
        assert!(address(OsStr::new("/run/notify")).unwrap().as_pathname().is_some());
        let name = address(OsStr::new("@/org/notify")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"/org/notify"[..]));
        for other in ["", "notify", "vsock:2:1234"] {
            assert!(address(OsStr::new(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn a_status_is_one_assignment() {
        let folder = tempfile::tempdir().unwrap();
        let (service, theirs) = pair(folder.path());
        service.ready("serving /a\nMAINPID=1");
        assert_eq!(told(&theirs), ["READY=1\nSTATUS=serving /a; MAINPID=1"]);
    }

    #[test]
    fn more_time_is_asked_for_only_while_the_drain_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (service, theirs) = pair(folder.path());
        let mut farewell = Farewell::default();
        farewell.go_on(&service, || 8 << 20);
        let status = |left| format!("STOPPING=1\nSTATUS=draining: {left} not on the store yet");
        assert_eq!(told(&theirs), [status("8.0 MiB")]);
        farewell.go_on(&service, || panic!("it is too early"));
        let long_ago = |left| Some((Instant::now() - Duration::from_secs(2), left));
        farewell.last = long_ago(8 << 20);
        farewell.go_on(&service, || 4 << 20);
        assert_eq!(told(&theirs), ["EXTEND_TIMEOUT_USEC=60000000".to_owned(), status("4.0 MiB")]);
        farewell.last = long_ago(4 << 20);
        farewell.go_on(&service, || 4 << 20);
        assert_eq!(told(&theirs), [status("4.0 MiB")]);
        // Nothing is counted for a service manager that is not there.
        Farewell::default().go_on(&Service::default(), || panic!("there is none"));
    }
}
