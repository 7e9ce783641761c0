//! Starting a node manager that outlives the command.

use crate::detach;
use crate::signals;
use crate::watch::Watch;
use forebay_node::log::Level;
use forebay_node::runtime::{Runtime, SERVED, append_private, write_private};
use forebay_node::status::Observer;
use forebay_node::{Config, WAITS};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often a manager is started again that dies before it can be reached.
pub(super) const START_TRIES: u32 = 4;

/// How long a manager that starts is waited for when a signal has come.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Why a manager could not be started.
pub(super) enum StartError {
    /// It says that another one serves the instance. That may be gone by now.
    Served(String),
    /// It says why it cannot serve.
    Refused(String),
    /// It was killed before it could be reached, or could not say why it ended.
    Died(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Served(text) | Self::Refused(text) | Self::Died(text)) = self;
        f.write_str(text)
    }
}

impl From<String> for StartError {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

/// Keeps the configuration in the instance's folder, which has none.
pub(super) fn write_config(config: &Config, runtime: &Runtime) -> Result<(), String> {
    // Others may be reading it: it is replaced in one step.
    let resolved = runtime.config();
    let fresh = resolved.with_extension(std::process::id().to_string());
    write_private(&fresh, &config.canonical())
        .and_then(|()| fs::rename(&fresh, &resolved))
        .map_err(|error| format!("{}: {error}", resolved.display()))
}

/// A configuration for a node manager to begin with. What it finds may have another: so it is not
/// kept in the instance's folder under the name of the one that holds, and goes when the start has
/// ended.
pub(super) struct Proposed(PathBuf);

impl Proposed {
    fn write(config: &Config, runtime: &Runtime) -> Result<Proposed, String> {
        let path = runtime.config().with_extension(format!("proposed-{}", std::process::id()));
        write_private(&path, &config.canonical())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Proposed(path))
    }
}

impl Drop for Proposed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts a node manager that outlives us (see [`detach`]) and waits until clients can connect.
pub(super) fn start(config: &Config, runtime: &Runtime, flags: &[&str]) -> Result<(), StartError> {
    let fail = |what: &str, error: &dyn std::fmt::Display| {
        format!("starting a node manager: {what}: {error}")
    };
    let proposed = Proposed::write(config, runtime)?;
    let log = append_private(&runtime.log()).map_err(|error| fail("log", &error))?;
    let mut its_log = log.try_clone().map_err(|error| fail("log", &error))?;
    let (mut report, their_end) = std::io::pipe().map_err(|error| fail("pipe", &error))?;
    let program = std::env::current_exe().map_err(|error| fail("forebay", &error))?;
    let mut command = Command::new(program);
    command.arg("node").arg("--resolved").arg(&proposed.0).args(flags);
    command.arg("--instance-name").arg(&runtime.instance);
    command
        .arg("--ready-fd")
        .arg(detach::REPORT.to_string())
        .env_remove("LD_PRELOAD")
        .env("FOREBAY_DISABLE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| fail("log", &error))?)
        .stderr(log)
        .current_dir("/");
    let manager =
        detach::spawn(command, their_end.into()).map_err(|error| fail("forebay", &error))?;
    let mut said = String::new();
    let mut byte = [0u8; 4096];
    let mut watch = Watch::default();
    let mut signalled = None;
    while !said.ends_with("ready\n") {
        let mut fds = [PollFd::new(&report, PollFlags::IN)];
        let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if matches!(rustix::event::poll(&mut fds, Some(&look)), Ok(0) | Err(Errno::INTR)) {
            // Not by trying the lock, which would keep it from that.
            watch.look(runtime.manager())?;
            // In a moment it can be told that it is not wanted. One that brings back what was left
            // may take long: it ends when it has, and finds that we are gone.
            if let Some(signal) = signals::early()
                && signalled.get_or_insert_with(Instant::now).elapsed() > A_MOMENT
            {
                return Err(StartError::Refused(format!("ended by signal {signal}")));
            }
            continue;
        }
        match report.read(&mut byte) {
            Ok(0) | Err(_) => break,
            Ok(count) => said.push_str(&String::from_utf8_lossy(&byte[..count])),
        }
        // At once: it takes seconds before it is known what comes of it.
        while said.starts_with(WAITS)
            && let Some((line, rest)) = said.split_once('\n')
        {
            eprintln!("forebay: {line}");
            said = rest.to_owned();
        }
    }
    if let Some(before) = said.strip_suffix("ready\n") {
        before.lines().for_each(|line| eprintln!("forebay: {line}"));
        manager.release();
        if let Ok(observer) = Observer::of(&runtime.again()?.pool) {
            detach::reap_if_ours(observer.manager());
        }
        return Ok(());
    }
    let status = manager.wait();
    if !said.is_empty() {
        let is_served = said.contains(SERVED);
        return Err(if is_served { StartError::Served(said) } else { StartError::Refused(said) });
    }
    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    let why = format!("the node manager died while it started ({how})");
    let _ = its_log.write_all(forebay_node::log::lines(Level::Error, &why).as_bytes());
    Err(StartError::Died(format!("{why}; see {}", runtime.readable_log().display())))
}

/// An error after which a pool is still there, and how its data can be had all the same.
pub(super) fn keeps_all(error: String, runtime: &Runtime) -> String {
    let pool = runtime.pool.display();
    match runtime.has_pool() {
        true => format!(
            "{error}\n{pool} keeps all data; `forebay salvage --to DIR --pool {pool}` saves it to \
             another place"
        ),
        false => error,
    }
}
