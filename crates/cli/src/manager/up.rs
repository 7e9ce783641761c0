//! `forebay up` and `forebay down`: node managers that go on without runs, on this host or on all
//! of a group.

use super::orphans::drain_orphans;
use super::stop::stop_instance;
use super::{Joined, join_to_stay};
use crate::group::{GroupArguments, await_part};
use crate::instance::InstanceArguments;
use crate::signals;
use crate::web;
use clap::Args;
use forebay_node::Config;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::stay::Stay;
use std::fs;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Options of `forebay up`.
#[derive(Args)]
pub struct UpArguments {
    #[command(flatten)]
    which: DownArguments,
    /// Serve a page with live charts as long as the node manager lives, on this machine alone, and
    /// print its address, with the token that opens it: at a free port, or at 127.0.0.1:PORT
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
          default_missing_value = "0", value_parser = web::port_of)]
    web: Option<u16>,
}

/// Options of `forebay down`, which those of `forebay up` have, too.
#[derive(Args)]
pub struct DownArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    #[command(flatten)]
    group: GroupArguments,
    /// Do so on each host of --hosts, by COMMAND HOST and the command line: ssh, for instance.
    /// Paths and the program have to be the same there
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    launcher: Option<String>,
}

/// How long a node may take to get into its group: a view of members that have died is followed by
/// another one in less.
const PART: Duration = Duration::from_secs(60);

/// `forebay up`.
pub fn up(UpArguments { which: arguments, web }: &UpArguments) -> Result<ExitCode, String> {
    if let Some(launcher) = &arguments.launcher {
        return everywhere(launcher, arguments);
    }
    let (mut config, mut runtime) = arguments.instance.runtime()?;
    arguments.group.take(&mut config, &runtime)?;
    drain_orphans(&config, &runtime)?;
    signals::install()?;
    let is_new = serve(&config, &mut runtime)?;
    let served = runtime.read_config().unwrap_or(config);
    let part = match served.is_in_group() {
        true => format!(", {}", await_part(&runtime, PART)?),
        false => String::new(),
    };
    println!("{}{part}", describe_served(&runtime, &served, is_new));
    if let Some(port) = web {
        let manager = runtime.manager().ok_or("--web: the node manager has ended meanwhile")?;
        println!("{}", web::start(Some(*port).filter(|port| *port > 0), manager)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// `forebay down`.
pub fn down(arguments: &DownArguments) -> Result<ExitCode, String> {
    match &arguments.launcher {
        Some(launcher) => everywhere(launcher, arguments),
        None => stop_instance(&arguments.instance),
    }
}

/// Which node manager serves what.
pub fn describe_served(runtime: &Runtime, served: &Config, is_new: bool) -> String {
    let how = if is_new { "serves" } else { "serves already" };
    format!("node manager {} {how} {}", manager(runtime), served.describe())
}

fn manager(runtime: &Runtime) -> String {
    runtime.manager().map_or("?".to_owned(), |pid| pid.to_string())
}

/// Makes sure that a node manager serves the instance until it is ended; whether it is a new one.
fn serve(config: &Config, runtime: &mut Runtime) -> Result<bool, String> {
    let joined = join_to_stay(config, runtime)?;
    Ok(matches!(joined, Joined::Started))
}

/// Whether the instance's node manager ends when no run needs it, or some time after that: its
/// command line says so, and `forebay up` has not asked for more.
pub fn ends_with_runs(runtime: &Runtime) -> bool {
    let line = runtime.manager().and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
    line.is_some_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"--ephemeral"))
        && Observer::of(&runtime.pool).is_ok_and(|observer| observer.stay() != Stay::UntilTold)
}

/// Gives this command on each host of the list, at once, and says what each has said.
fn everywhere(launcher: &str, arguments: &DownArguments) -> Result<ExitCode, String> {
    let hosts = arguments.group.list()?;
    let command = same_command()?;
    let mut words = launcher.split_whitespace();
    let program = words.next().ok_or("--launcher: give a command such as ssh")?;
    let begun: Vec<(&String, Result<Child, String>)> = hosts
        .names()
        .iter()
        .map(|host| {
            let mut starter = Command::new(program);
            starter.args(words.clone()).args([host, &command]);
            starter.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            (host, starter.spawn().map_err(|error| format!("{program}: {error}")))
        })
        .collect();
    let mut failed = Vec::new();
    for (host, child) in begun {
        let ended = child.and_then(|child| child.wait_with_output().map_err(|e| e.to_string()));
        let (said, is_good) = match ended {
            Ok(ended) => ([ended.stdout, ended.stderr].concat(), ended.status.success()),
            Err(error) => (error.into_bytes(), false),
        };
        for line in String::from_utf8_lossy(&said).lines() {
            println!("{host}: {}", shown(line.strip_prefix("forebay: ").unwrap_or(line)));
        }
        if !is_good {
            failed.push(host.as_str());
        }
    }
    match failed[..] {
        [] => Ok(ExitCode::SUCCESS),
        _ => Err(format!("this failed on {}: see above", failed.join(", "))),
    }
}

/// This command line for a shell in another place, without --launcher.
fn same_command() -> Result<String, String> {
    let text = |path: std::path::PathBuf| {
        path.into_os_string().into_string().map_err(|path| format!("{path:?}: not UTF-8"))
    };
    let failed = |error: std::io::Error| format!("finding myself: {error}");
    let here = text(std::env::current_dir().map_err(failed)?)?;
    let program = text(std::env::current_exe().map_err(failed)?)?;
    let mut words = vec![program];
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--launcher" => _ = given.next(),
            word if word.starts_with("--launcher=") => {}
            _ => words.push(word),
        }
    }
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    Ok(format!("cd {} && exec {}", quoted(&here), words.join(" ")))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_quoted_words_as_they_are() {
        for word in ["plain", "with blanks", "it's", "$HOME `ls` \"x\" \\ ;&|", ""] {
            let ran =
                Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            assert_eq!(String::from_utf8_lossy(&ran.unwrap().stdout), word);
        }
    }
}
