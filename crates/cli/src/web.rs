//! `forebay status --web`: a page on loopback that shows what `forebay status` does, live.
//!
//! As `status` it reads the pools in shared memory and asks no node manager anything; no request
//! changes anything. `forebay up --web` starts the same as a process of its own.

mod request;

use crate::{detach, explain, output, signals, status};
use forebay_node::http;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_node::unguessable;
use forebay_pool::clock::Timer;
use request::{Answer, Door, Target};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a browser may take to ask, and to take the answer.
const PATIENCE: Timer = Timer::seconds(2);
/// How long a signal, or the end of the managers, may wait.
const NOTICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The longest request: a path of 4 KiB, each byte of it as %XX, and what browsers say of
/// themselves.
const REQUEST_MAX: usize = 32 << 10;
/// Connections that are answered at once; a browser opens up to six. Others are closed.
const CONNECTIONS: usize = 32;

const PAGE: &str = include_str!("web/page.html");

/// Serves the page until a signal comes, or all node managers that it began with are gone; or this
/// one, where one is named.
pub fn serve(port: Option<u16>, manager: Option<u32>) -> Result<ExitCode, String> {
    let mut managers = serving()?;
    managers.retain(|pid| manager.is_none_or(|named| named == *pid));
    if managers.is_empty() {
        return Err("status --web: no node manager of yours runs; start one by `forebay up`".into());
    }
    let ending = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&ending), signal as usize)
            .map_err(|error| format!("setting up signals: {error}"))?;
    }
    let failed = |error: io::Error| format!("status --web: 127.0.0.1: {error}; give another port");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let door = Arc::new(Door { port, token: secret() });
    println!("http://127.0.0.1:{port}/?token={}", door.token);
    output::flush();
    let answering = Arc::new(());
    loop {
        match ending.load(Ordering::Relaxed) {
            0 => {}
            signal => return Ok(signals::ended_by(signal as i32)),
        }
        if !serving()?.iter().any(|manager| managers.contains(manager)) {
            eprintln!("forebay: the node manager is gone, and so is its page");
            return Ok(ExitCode::SUCCESS);
        }
        // A signal ends the wait; it is seen above.
        let _ = rustix::event::poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&NOTICE));
        while let Ok((mut browser, _)) = listener.accept() {
            if Arc::strong_count(&answering) > CONNECTIONS {
                continue;
            }
            // Each in its own thread: browsers open connections ahead, and say nothing on them yet.
            let (door, one) = (Arc::clone(&door), Arc::clone(&answering));
            let answer = move || {
                // One that has gone away needs no answer.
                let _ = attend(&mut browser, &door);
                drop(one);
            };
            // One that cannot be answered now asks again.
            let _ = thread::Builder::new().name("web".to_owned()).spawn(answer);
        }
    }
}

/// Starts a process that serves the page as long as this node manager lives, and outlives us; the
/// address of the page.
///
/// # Errors
/// Why there is no page.
pub fn start(port: Option<u16>, manager: u32) -> Result<String, String> {
    let failed = |error: io::Error| format!("starting the page: {error}");
    let (said, their_end) = io::pipe().map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["status", "--web", "--of-manager", &manager.to_string()]);
    if let Some(port) = port {
        command.args(["--port", &port.to_string()]);
    }
    command
        .env_remove("LD_PRELOAD")
        .env("FOREBAY_DISABLE", "1")
        .stdin(Stdio::null())
        .stdout(their_end.try_clone().map_err(failed)?)
        .stderr(their_end.try_clone().map_err(failed)?)
        .current_dir("/");
    let page = detach::spawn(command, their_end.into()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line).map_err(failed)?;
    let line = line.trim_end();
    match line.starts_with("http://") {
        true => {
            page.release();
            Ok(line.to_owned())
        }
        false if line.is_empty() => {
            let how = page.wait().map_err(failed)?;
            Err(format!("the page ended while it started ({how})"))
        }
        false => Err(line.strip_prefix("forebay: ").unwrap_or(line).to_owned()),
    }
}

/// The port of an address on loopback, given as `PORT`, `127.0.0.1:PORT` or `localhost:PORT`; 0 is
/// a free one.
///
/// # Errors
/// That the page is served elsewhere nowhere, and what to do.
pub fn port_of(address: &str) -> Result<u16, String> {
    let (host, port) = address.rsplit_once(':').unwrap_or(("127.0.0.1", address));
    let port = port.parse().map_err(|_| "give a port, as in 127.0.0.1:8080".to_owned())?;
    match host {
        "127.0.0.1" | "localhost" => Ok(port),
        _ => Err("the page is served on 127.0.0.1 alone; forward its port by ssh -L".to_owned()),
    }
}

/// Process ids of the node managers of this user that serve a pool.
fn serving() -> Result<Vec<u32>, String> {
    let manager = |runtime: &Runtime| {
        let pool = Observer::of(&runtime.pool).ok()?;
        pool.is_served().then(|| pool.manager())
    };
    Ok(Runtime::all()?.iter().filter(|found| found.has_pool()).filter_map(manager).collect())
}

/// 128 random bits as hexadecimal digits.
fn secret() -> String {
    format!("{:016x}{:016x}", unguessable(), unguessable())
}

/// Reads a request, and answers it.
fn attend(browser: &mut TcpStream, door: &Door) -> io::Result<()> {
    browser.set_nonblocking(false)?;
    let end = Instant::now() + PATIENCE.as_duration();
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !http::is_whole(&request) && request.len() < REQUEST_MAX {
        browser.set_read_timeout(Some(left()?))?;
        match browser.read(&mut buffer)? {
            0 => return Ok(()),
            got => request.extend_from_slice(&buffer[..got]),
        }
    }
    let answer = match request::read(&request, door) {
        Ok(target) => answer(&target),
        Err(refusal) => refusal,
    };
    browser.set_write_timeout(Some(PATIENCE.as_duration()))?;
    browser.write_all(&answer.bytes(request.starts_with(b"HEAD ")))
}

fn answer(target: &Target) -> Answer {
    let found = match target {
        // What the page may run is what was sent with it.
        Target::Page => Ok(Answer::page(PAGE, &secret())),
        Target::Status => status::json_of_all().map(Answer::json),
        Target::Explain(path) => {
            explain::json_of(path).map(|found| Answer::json(found.to_string()))
        }
    };
    found.unwrap_or_else(Answer::failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_on_loopback() {
        for (address, port) in [("0", 0), ("127.0.0.1:8080", 8080), ("localhost:65535", 65535)] {
            assert_eq!(port_of(address), Ok(port), "{address}");
        }
        for wrong in ["", "a", "65536", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1"] {
            assert!(port_of(wrong).is_err_and(|why| why.contains("give a port")), "{wrong}");
        }
        for wrong in ["0.0.0.0:80", "[::1]:80", ":80", "evil.example:80", "127.0.0.2:80"] {
            assert!(port_of(wrong).is_err_and(|why| why.contains("alone")), "{wrong}");
        }
    }
}
