//! Where the node manager tells its metrics.

use super::reader::{self, Value};
use super::types::{Config, quoted, quoted_path};
use super::variables::expand;
use super::{Errors, Result as ConfigResult, types::ConfigError};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const KEYS: &[&str] = &["textfile", "interval", "listen"];
/// The keys that name what is made.
pub(super) const PATHS: [&str; 2] = ["metrics.textfile", "metrics.listen"];
/// How often the file is written where that is not said: as often as Prometheus looks by default.
const INTERVAL: Duration = Duration::from_secs(15);
/// More often it would only keep processors busy; the longest is what any dashboard shows at once.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// What a collector of such files takes.
const ENDING: &str = "prom";
/// The longest path of a Unix socket, its terminating zero left out.
const SOCKET_PATH_MAX: usize = 107;

/// Where metrics can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket, for the manager's user alone.
    Unix(PathBuf),
    /// An address of this machine that no other one reaches.
    Loopback(SocketAddr),
}

/// The table `[metrics]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// The file that is written anew at each interval.
    pub textfile: Option<PathBuf>,
    /// Between two of its writes.
    pub interval: Duration,
    /// Where metrics can be asked for.
    pub listen: Option<Listen>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics { textfile: None, interval: INTERVAL, listen: None }
    }
}

impl Metrics {
    /// As a part of a configuration's text; nothing where nothing is wanted.
    pub fn write(&self, text: &mut String) {
        if *self == Metrics::default() {
            return;
        }
        *text += "[metrics]\n";
        if let Some(file) = &self.textfile {
            let _ = writeln!(text, "textfile = {}", quoted_path(file));
        }
        let _ = writeln!(text, "interval = \"{}ns\"", self.interval.as_nanos());
        match &self.listen {
            Some(Listen::Unix(path)) => _ = writeln!(text, "listen = {}", quoted_path(path)),
            Some(Listen::Loopback(at)) => {
                _ = writeln!(text, "listen = {}", quoted(&at.to_string()));
            }
            None => {}
        }
    }
}

impl Config {
    /// Checks that the folders are there in which `[metrics]` wants something to be made; `places`
    /// are those of [`PATHS`].
    ///
    /// # Errors
    /// All that are not.
    pub(super) fn check_metrics(&self, places: &[String; 2]) -> ConfigResult<()> {
        let socket = match &self.metrics.listen {
            Some(Listen::Unix(path)) => Some(path),
            _ => None,
        };
        let errors = Errors::default();
        for (place, path) in places.iter().zip([self.metrics.textfile.as_ref(), socket]) {
            let folder = path.and_then(|path| path.parent());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                errors.note(ConfigError::new(
                    place,
                    format_args!("{} is no directory; make it, or give another", folder.display()),
                ));
            }
        }
        errors.end()
    }
}

impl Value<'_> {
    /// The table `[metrics]`.
    pub(super) fn metrics(&self, errors: &Errors) -> reader::Result<Metrics> {
        let section = self.table(KEYS, "a table: [metrics]")?;
        let textfile = section.get("textfile").and_then(|entry| errors.ok(entry.textfile()));
        let listen = section.get("listen").and_then(|entry| errors.ok(entry.listen()));
        let interval = section.get("interval").map_or(Ok(INTERVAL), |entry| entry.interval());
        Ok(Metrics { textfile, interval: errors.or(interval, INTERVAL), listen })
    }

    fn textfile(&self) -> reader::Result<PathBuf> {
        let path = self.path_such_as("a file such as \"/var/lib/node_exporter/forebay.prom\"")?;
        match path.extension() {
            Some(ending) if ending == ENDING => Ok(path),
            _ => Err(self.error(format_args!(
                "{} does not end with .{ENDING}, and no collector would read it; give such a name",
                path.display()
            ))),
        }
    }

    fn interval(&self) -> reader::Result<Duration> {
        let interval = Duration::from_nanos(self.duration_ns("15s")?);
        match (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
            true => Ok(interval),
            false => Err(self.error("is out of range; give a time from 1s to 60min")),
        }
    }

    fn listen(&self) -> reader::Result<Listen> {
        const WANTED: &str = "give a path such as \"/run/user/1000/forebay-metrics\", or an address of this machine \
             such as \"127.0.0.1:9477\"";
        let text = self.text()?;
        if text.contains('/') || text.starts_with(['~', '$']) {
            let text = match self.source.name {
                // What this program wrote is as it stands.
                None => text.to_owned(),
                Some(_) => expand(text, |name| std::env::var(name).ok())
                    .map_err(|why| self.error(format_args!("\"{text}\": {why}")))?,
            };
            let path = self.source.folder.join(text);
            return match path.as_os_str().len() {
                0..=SOCKET_PATH_MAX => Ok(Listen::Unix(path)),
                _ => Err(self.error(format_args!(
                    "a socket's path has at most {SOCKET_PATH_MAX} bytes; give a shorter one"
                ))),
            };
        }
        let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = local.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        match local.or_else(|| text.parse().ok()) {
            Some(at) if at.ip().is_loopback() && at.port() > 0 => Ok(Listen::Loopback(at)),
            Some(at) if at.ip().is_loopback() => {
                Err(self.error(format_args!("port 0 is no port; {WANTED}")))
            }
            Some(at) => Err(self.error(format_args!(
                "{} can be reached from other machines, by all their users; {WANTED}",
                at.ip()
            ))),
            None => Err(self.error(format_args!(
                "\"{text}\" is no address, and without a slash no path; {WANTED}"
            ))),
        }
    }
}
