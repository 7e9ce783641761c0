//! What the paper compares, one file each.

pub mod data_elevator;
pub mod datawarp;
pub mod forebay;
pub mod iowarp;
pub mod jemalloc;
pub mod juicefs;
pub mod malloc;
pub mod memcached;
pub mod mimalloc;
pub mod nats;
pub mod no_buffering;
pub mod redis;
pub mod single_server;
pub mod tcmalloc;

use crate::hierarchy::Hierarchy;
use crate::server::Server;
use crate::site::Site;
use crate::stage::When;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
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
    /// When its files are moved from there to the store, where another program than Forebay does
    /// it.
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

/// A server that keeps values under keys, and how it is spoken to. All keys are of one length, and
/// so are all values; so each answer is known before it comes, and compared.
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

/// Bytes of a message, as of Forebay's own.
pub const MESSAGE_BYTES: usize = 32;

/// A server that passes messages on.
pub struct Broker {
    /// As in tables.
    pub name: &'static str,
    /// The program; none if it is compiled.
    pub program: Option<&'static str>,
    /// Starts it for clients at `place`.
    pub start: fn(site: &Site, place: &Place, log: &Path) -> Result<Server, String>,
    /// Whether it has a Unix socket rather than a port.
    pub has_socket: bool,
    /// How it is configured and spoken to, for the reader.
    pub configuration: &'static str,
    /// Publishes so many messages.
    pub publish: fn(&Place, id: usize, count: usize) -> Result<(), String>,
    /// Receives so many messages, which were published before if it keeps them; returns the
    /// nanoseconds from the first to the last.
    pub subscribe: fn(&Place, count: usize) -> Result<f64, String>,
    /// So that the next round begins like the first.
    pub clear: fn(&Place) -> Result<(), String>,
    /// How many times its rate is wanted: publishing, and subscribing.
    pub wanted: [f64; 2],
}

/// The message of a publisher: the publisher's number, and the message's.
pub fn message(id: usize, number: usize) -> [u8; MESSAGE_BYTES] {
    let mut message = *b"from 0000 number 000000000000000";
    digits(&mut message[5..9], id);
    digits(&mut message[17..32], number);
    message
}

/// Writes a number into a field of digits.
pub fn digits(field: &mut [u8], mut number: usize) {
    for place in field.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Sends requests, and reads an answer of known length.
fn exchange(stream: &mut dyn Stream, request: &[u8], answer: &mut [u8]) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("talking to a server: {e}");
    stream.write_all(request).map_err(failed)?;
    stream.read_exact(answer).map_err(failed)
}

/// The same, with the answer that is due.
fn expect(stream: &mut dyn Stream, request: &[u8], due: &[u8]) -> Result<(), String> {
    let mut answer = vec![0; due.len()];
    exchange(stream, request, &mut answer)?;
    if answer == due {
        return Ok(());
    }
    Err(format!("a server answered {:?}", String::from_utf8_lossy(&answer)))
}

/// Where a server is found.
#[derive(Clone, Debug)]
pub enum Place {
    /// A port, of the loopback interface or of a node.
    Network(SocketAddrV4),
    /// A Unix socket.
    Socket(PathBuf),
}

/// A connection.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Place {
    /// A port that no process listens on now.
    pub fn loopback() -> Result<Place, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("loopback: {e}"))?;
        let port = listener.local_addr().map_err(|e| format!("loopback: {e}"))?.port();
        Ok(Place::Network(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Place::Network(at) if at.ip().is_loopback() => "loopback",
            Place::Network(_) => "between nodes",
            Place::Socket(_) => "Unix socket",
        }
    }

    pub fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let failed = |e: std::io::Error| format!("connecting to {self:?}: {e}");
        Ok(match self {
            Place::Network(at) => {
                let stream = TcpStream::connect(at).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Box::new(stream)
            }
            Place::Socket(path) => Box::new(UnixStream::connect(path).map_err(failed)?),
        })
    }
}

/// A file system that an unmodified program can use.
pub struct Peer {
    /// As in tables.
    pub name: &'static str,
    /// The package of PyPI.
    pub package: &'static str,
    /// Mounts it, from a Python environment; none if it is not installed there.
    pub mount: fn(site: &Site, environment: &Path) -> Result<Option<Mount>, String>,
    /// How it is configured, for the reader.
    pub configuration: &'static str,
}

/// A mounted file system and its processes. Dropping undoes all of it, last things first.
pub struct Mount {
    /// Where it is.
    pub folder: PathBuf,
    servers: Vec<Server>,
    left: Vec<PathBuf>,
}

impl Mount {
    fn new(folder: PathBuf) -> Mount {
        Mount { folder, servers: Vec::new(), left: Vec::new() }
    }

    /// Takes over a process.
    fn serves(&mut self, server: Server) {
        self.servers.push(server);
    }

    /// Takes over a directory that a process leaves behind.
    fn leaves(&mut self, folder: PathBuf) {
        self.left.push(folder);
    }

    /// Waits for the process that was started last.
    fn wait(&mut self, is_ready: impl FnMut() -> bool) -> Result<(), String> {
        self.servers.last_mut().map_or(Ok(()), |server| server.wait(is_ready))
    }

    fn wait_until_mounted(&mut self) -> Result<(), String> {
        let folder = self.folder.clone();
        self.wait(|| is_mounted(&folder))
    }
}

/// Whether something is mounted on a directory.
fn is_mounted(folder: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(folder))
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Politely; then whatever still uses it.
        for flags in ["-u", "-uz"] {
            for program in ["fusermount3", "fusermount"] {
                if is_mounted(&self.folder) {
                    let mut unmount = std::process::Command::new(program);
                    let _ = unmount.arg(flags).arg(&self.folder).output();
                }
            }
        }
        while let Some(server) = self.servers.pop() {
            drop(server);
        }
        for folder in &self.left {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
