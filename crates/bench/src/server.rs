//! Processes that serve while something is measured, each ended by its id, also on failure.

use crate::site;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take to begin to serve, and to end.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Lines of a log that an error shows.
const SHOWN: usize = 5;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A running process; dropping ends it.
pub(crate) struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts it; what it says goes to a file.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Server, String> {
        let failed = |e: std::io::Error| format!("starting {name}: {e}");
        let out = File::create(log).map_err(failed)?;
        let error = out.try_clone().map_err(failed)?;
        // Should this process be killed, it ends as well, and undoes its mount.
        // SAFETY: prctl is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                set_parent_process_death_signal(Some(Signal::TERM)).map_err(Into::into)
            });
        }
        let child = command.stdin(Stdio::null()).stdout(out).stderr(error).spawn();
        Ok(Server { name: name.to_owned(), child: child.map_err(failed)?, log: log.to_owned() })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `is_ready`, as long as the process lives.
    pub fn wait(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<(), String> {
        let since = Instant::now();
        while !is_ready() {
            let ended = self.child.try_wait().map_err(|e| format!("{}: {e}", self.name))?;
            let why = match ended {
                Some(status) => format!("ended with {status}"),
                None if since.elapsed() > WAIT_MAX => "does not begin to serve".to_owned(),
                None => {
                    thread::sleep(LOOK);
                    continue;
                }
            };
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            // Some say a lot; why they ended stands last.
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(SHOWN)..];
            return Err(format!("{} {why}\n{}", self.name, last.join("\n")));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it is gone.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let since = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if since.elapsed() > WAIT_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// Runs a command to its end; returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    printed(command, output.map_err(|e| failed(command, &e))?)
}

/// Runs a command that prints the line `ready`, and goes on when its standard input ends, to its
/// end. Returns what `look` has seen in between, and what was printed after that line.
pub(crate) fn run_from<T>(
    command: &mut Command,
    ready: &str,
    look: impl FnOnce() -> Result<T, String>,
) -> Result<(T, String), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(command, &e))?;
    let mut line = vec![0; ready.len() + 1];
    let read = child.stdout.as_mut().map(|out| out.read_exact(&mut line));
    let is_ready =
        matches!(read, Some(Ok(()))) && line.strip_suffix(b"\n") == Some(ready.as_bytes());
    let seen = if is_ready { Some(look()) } else { None };
    drop(child.stdin.take());
    let output = child.wait_with_output().map_err(|e| failed(command, &e))?;
    let printed = printed(command, output)?;
    match seen {
        Some(seen) => Ok((seen?, printed)),
        None => Err(format!("{} did not say that it is {ready}", name_of(command))),
    }
}

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn failed(command: &Command, error: &std::io::Error) -> String {
    format!("{}: {error}", name_of(command))
}

fn printed(command: &Command, output: Output) -> Result<String, String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{} ended with {}\n{}",
            name_of(command),
            output.status,
            said.trim_end()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Nanoseconds that the living threads of a process have run.
pub(crate) fn cpu_ns(id: u32) -> Result<u64, String> {
    let threads = PathBuf::from(format!("/proc/{id}/task"));
    let failed = |e: std::io::Error| site::failed(&threads, &e);
    let mut sum = 0;
    for thread in std::fs::read_dir(&threads).map_err(failed)? {
        let file = thread.map_err(failed)?.path().join("schedstat");
        let text = std::fs::read_to_string(&file).map_err(|e| site::failed(&file, &e))?;
        sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_dropped_is_gone() {
        let log = std::env::temp_dir().join(format!("forebay-bench-log-{}", std::process::id()));
        let server = Server::start("sleep", Command::new("sleep").arg("1000"), &log).unwrap();
        let process = PathBuf::from(format!("/proc/{}", server.id()));
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
        let mut command = Command::new("sh");
        let mut failing =
            Server::start("sh", command.args(["-c", "echo no room; exit 3"]), &log).unwrap();
        let error = failing.wait(|| false).unwrap_err();
        assert!(error.contains("exit status: 3") && error.contains("no room"), "{error}");
        drop(failing);
        std::fs::remove_file(&log).unwrap();
    }
}
