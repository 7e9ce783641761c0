//! `forebay batch`: runs a batch script whose `#FB` lines say what is buffered and staged. Each
//! part is the command that a script would give by itself.

use crate::aside::Aside;
use crate::directives::{Directives, Staged};
use crate::drain::{self, Drained};
use crate::gauges;
use crate::instance::InstanceArguments;
use crate::manager::{self, Joined};
use crate::run::{await_end, exit_code};
use crate::signals;
use clap::Args;
use forebay_node::Connection;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::stay::Stay;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Options of `forebay batch`.
#[derive(Args)]
pub struct BatchArguments {
    /// Run nothing: drain and end what a job of the script has left on this node
    #[arg(long)]
    end: bool,
    /// The script; `-` is the standard input, with --end
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,
    /// The script's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, conflicts_with = "end")]
    arguments: Vec<OsString>,
}

/// `forebay batch`.
pub fn batch(arguments: &BatchArguments) -> Result<ExitCode, String> {
    let script = &arguments.script;
    if script.as_os_str() == "-" && !arguments.end {
        return Err("give the script as a file: its shell reads it, too".to_owned());
    }
    if arguments.end {
        let instance = Directives::read_to_end(script)?;
        let runtime = instance.runtime_to_end()?.1;
        signals::install()?;
        signals::command_ended();
        return Ok(ExitCode::from(Parts::of(&instance)?.end(&runtime)?));
    }
    let directives = Directives::read(script)?;
    directives.warnings().for_each(|warning| eprintln!("forebay: {warning}"));
    let parts = Parts::of(&directives.instance)?;
    let (config, mut runtime) = directives.instance.runtime()?;
    directives.check(&config)?;
    if config.is_in_group() || is_heterogeneous() {
        return Err(format!(
            "{}: #FB lines are for jobs of one node, and this one has several; give \
             `srun forebay run` in the script instead, see docs/batch.md",
            shown(script)
        ));
    }
    manager::drain_orphans(&config, &runtime)?;
    signals::install()?;
    // Held as by a run: other jobs may join it, and it ends with the last one.
    let joined = manager::join(&config, &mut runtime);
    if let Some(signal) = signals::early() {
        return Ok(signals::ended_by(signal));
    }
    let (held, joined) = joined?;
    let served = runtime.read_config().unwrap_or(config);
    let is_new = matches!(joined, Joined::Started);
    println!("{}", manager::describe_served(&runtime, &served, is_new));
    let ran = parts.run(&directives, arguments);
    let ended = match manager::ends_with_runs(&runtime) {
        true => parts.leave(held, &runtime),
        // It is not ours to end, nor to drain of what is others'.
        false => Ok(0),
    };
    let code = match ran? {
        0 => ended?,
        code => code,
    };
    Ok(ExitCode::from(code))
}

/// Whether the job has components with nodes of their own, of which the list of its script's own
/// component says nothing: programs that the script starts there would find no node manager.
fn is_heterogeneous() -> bool {
    std::env::var("SLURM_HET_SIZE").is_ok_and(|size| size != "1")
}

/// Gives the commands, one after the other.
struct Parts {
    forebay: PathBuf,
    /// The options that name the instance.
    instance: Vec<OsString>,
}

impl Parts {
    fn of(instance: &InstanceArguments) -> Result<Parts, String> {
        let forebay = std::env::current_exe().map_err(|error| format!("forebay: {error}"))?;
        Ok(Parts { forebay, instance: instance.words() })
    }

    /// Gives one, waits for it, and returns its exit code. Signals are for it meanwhile.
    fn give(&self, verb: &str, words: &[OsString]) -> Result<u8, String> {
        let failed = |error| format!("forebay {verb}: {error}");
        let mut child =
            Command::new(&self.forebay).arg(verb).args(words).spawn().map_err(failed)?;
        signals::attend(child.id());
        await_end(child.id());
        signals::command_ended();
        child.wait().map(exit_code).map_err(failed)
    }

    /// Stages in, runs the script, stages out; the exit code of the first that has failed. What a
    /// failed script has written is staged out, too.
    fn run(&self, directives: &Directives, arguments: &BatchArguments) -> Result<u8, String> {
        match self.stage("stage-in", &directives.stage_in)? {
            0 => {}
            // The script reads from the store what has not come.
            1 => eprintln!("forebay: not all is staged in; the script begins"),
            code => return Ok(code),
        }
        if let Some(signal) = signals::to_leave().or_else(signals::early) {
            return Ok(signals::code_of(signal));
        }
        let mut words = self.instance.clone();
        words.push("--".into());
        words.extend_from_slice(&directives.shell);
        words.push(arguments.script.clone().into());
        words.extend_from_slice(&arguments.arguments);
        let ran = self.give("run", &words)?;
        let staged = self.stage("stage-out", &directives.stage_out)?;
        Ok(if ran == 0 { staged } else { ran })
    }

    fn stage(&self, verb: &str, staged: &[Staged]) -> Result<u8, String> {
        let paths: Vec<OsString> = staged.iter().map(|staged| staged.path.clone().into()).collect();
        if paths.is_empty() { Ok(0) } else { self.give(verb, &paths) }
    }

    /// Drains what is left at the end of a job, and lets go of its node manager.
    fn leave(&self, held: Connection, runtime: &Runtime) -> Result<u8, String> {
        let drained = drain::drain_unless(&held, runtime, |_| signals::to_leave());
        self.conclude(&held, runtime, drained?)
    }

    /// Has the node manager drain what a job has left, or drains what one has left that was killed.
    fn end(&self, runtime: &Runtime) -> Result<u8, String> {
        let Some(connection) = manager::await_answer(runtime) else {
            return self.give("recover", &self.instance);
        };
        let mut aside = Aside::recorded(runtime);
        let connection = connection?;
        let drained = drain::drain_unless(&connection, runtime, |_| signals::to_leave());
        aside.as_mut().map(Aside::tell_new);
        self.conclude(&connection, runtime, drained?)
    }

    /// Waits for the end of a node manager that has drained and that nothing else needs.
    fn conclude(
        &self,
        connection: &Connection,
        runtime: &Runtime,
        drained: Result<Drained, i32>,
    ) -> Result<u8, String> {
        match drained {
            Err(signal) => return Ok(signals::code_of(signal)),
            Ok(Drained::Kept(files)) => return Err(drain::describe(runtime, &files)),
            // The one that the run has started instead has drained, too, if it has ended.
            Ok(Drained::Lost) if runtime.has_left() => {
                return self.give("recover", &self.instance);
            }
            Ok(Drained::Lost | Drained::All) => {}
        }
        if manager::ends_with_runs(runtime) {
            manager::await_end(connection, runtime);
        }
        let observer = Observer::of(&runtime.pool).ok().filter(Observer::is_served);
        match observer.map(|observer| (observer.manager(), observer.stay())) {
            Some((pid, stay @ Stay::For(_))) => {
                println!("node manager {pid} goes on, {}", gauges::stay(stay));
            }
            Some((pid, _)) => println!("node manager {pid} goes on: it is needed by others"),
            None => println!("stopped 1 node manager"),
        }
        Ok(0)
    }
}
