//! What the paper compares, one file each.

pub mod data_elevator;
pub mod datawarp;
pub mod forebay;
pub mod jemalloc;
pub mod malloc;
pub mod memcached;
pub mod mimalloc;
pub mod no_buffering;
pub mod redis;
pub mod single_server;
pub mod tcmalloc;

use crate::hierarchy::Hierarchy;
use crate::server::Server;
use crate::site::Site;
use crate::stage::When;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A way to run a program on the emulated devices.
pub struct System {
    /// As in tables.
    pub name: &'static str,
    /// The configuration file that emulates the devices; for a workload whose files are scratch
    /// data, nothing is flushed while the program runs.
    pub config: fn(&Hierarchy, scratch: bool) -> String,
    /// The directory that the program is given.
    pub target: &'static str,
    /// Whether anything is left to be flushed when the program ends.
    pub flushes: bool,
    /// When its files are moved from there to the store, where somebody other than Forebay does it.
    pub stage: Option<When>,
}

/// The store and the burst buffer, each as slow as it is, and neither buffered: what the staging
/// systems have.
fn staging(hierarchy: &Hierarchy, _scratch: bool) -> String {
    hierarchy.store("bypass") + &hierarchy.burst_buffer_directory() + &hierarchy.no_tiers()
}

/// An allocator that takes the place of malloc.
pub struct Allocator {
    /// As in tables.
    pub name: &'static str,
    /// Names of its library, for LD_PRELOAD; none for the one that is there anyway.
    pub libraries: &'static [&'static str],
    /// How many times its rate is wanted.
    pub wanted: f64,
    /// What the paper says.
    pub paper: Option<f64>,
}

impl Allocator {
    /// Its library. The error is a note about what is not measured.
    pub fn find(&self) -> Result<Option<PathBuf>, String> {
        const FOLDERS: [&str; 6] = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib64",
            "/usr/local/lib",
        ];
        let places = self
            .libraries
            .iter()
            .flat_map(|library| FOLDERS.iter().map(move |folder| Path::new(folder).join(library)));
        match places.into_iter().find(|path| path.is_file()) {
            None if !self.libraries.is_empty() => {
                Err(format!("NOT MEASURED: {}: no {}", self.name, self.libraries.join(" or ")))
            }
            found => Ok(found),
        }
    }
}

/// A server that keeps values under keys, and how it is spoken to. All keys are of one length, and so
/// are all values; so each answer is known before it comes, and compared.
pub struct Store {
    /// As in tables.
    pub name: &'static str,
    /// The program; none if it is compiled.
    pub program: Option<&'static str>,
    /// Starts it for clients at `place`.
    pub start: fn(site: &Site, place: &Place, log: &Path) -> Result<Server, String>,
    /// How it is configured, for the reader.
    pub configuration: &'static str,
    /// Adds a request to fetch, and one to store.
    pub get: fn(&mut Vec<u8>, key: &[u8]),
    pub set: fn(&mut Vec<u8>, key: &[u8], value: &[u8]),
    /// Adds what they are answered with.
    pub got: fn(&mut Vec<u8>, key: &[u8], value: &[u8]),
    pub done: fn(&mut Vec<u8>),
    /// How many times its rate is wanted.
    pub wanted: f64,
}

/// Where a server is found.
#[derive(Clone, Debug)]
pub enum Place {
    /// A port of the loopback interface.
    Loopback(u16),
    /// A Unix socket.
    Socket(PathBuf),
}

/// A connection.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Place {
    /// A port that nobody listens on now.
    pub fn loopback() -> Result<Place, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("loopback: {e}"))?;
        let port = listener.local_addr().map_err(|e| format!("loopback: {e}"))?.port();
        Ok(Place::Loopback(port))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Place::Loopback(_) => "loopback",
            Place::Socket(_) => "Unix socket",
        }
    }

    pub fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let failed = |e: std::io::Error| format!("connecting to {self:?}: {e}");
        Ok(match self {
            Place::Loopback(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port)).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Box::new(stream)
            }
            Place::Socket(path) => Box::new(UnixStream::connect(path).map_err(failed)?),
        })
    }
}
