//! `forebay analyse`: commands that run on files while these are in the tiers, and what has become
//! of them.

use crate::ask::ask_in_words;
use crate::instance::InstanceArguments;
use crate::text::counted;
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_node::actions::table::{self, Entry, RunState};
use forebay_node::config::Registered;
use forebay_node::config::analyses::{Analysis, DRAIN, ON};
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_pool::clock;
use forebay_pool::message::Message;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How long the node manager may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Runs that a report names.
const NAMED: usize = 10;

/// Options of `forebay analyse`.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    forebay analyse --match 'out.*.h5' -- python3 index.py {file}\n  \
    forebay analyse --match 'dump.*' --drain after --may-drop -- ./reduce {file}\n  \
    forebay analyse --list\n\nWhat the command writes to its standard output is in FILE.NAME.out when it has \
    exited with 0; see docs/analyse.md.")]
pub struct AnalyseArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// When it runs: after the last close of a file that was written, or after each step of it
    #[arg(long, value_name = "EVENT", default_value = "close", value_parser = names(ON))]
    on: String,
    /// Pattern of the files, beneath the buffered directory, or from / on
    #[arg(long = "match", value_name = "GLOB", required_unless_present_any = ["list", "remove"])]
    pattern: Option<String>,
    /// What messages and results call it [default: the program's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Take the place of a registered one of this name; else another one of it is refused
    #[arg(long, conflicts_with_all = ["list", "remove"])]
    replace: bool,
    /// What the command may take before it is killed, as 90s or 10min
    #[arg(long, value_name = "TIME", default_value = "10min")]
    timeout: String,
    /// Directory of the results [default: that of the file]
    #[arg(long, value_name = "DIR")]
    results: Option<String>,
    /// Most bytes of a result
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    result_max: String,
    /// Whether files of mode staged are drained with it or after it
    #[arg(long, value_name = "WHEN", default_value = "with", value_parser = names(DRAIN))]
    drain: String,
    /// The command may say that a file is removed instead of being drained
    #[arg(long)]
    may_drop: bool,
    /// Show the analyses and operations of the node manager
    #[arg(long, conflicts_with_all = ["pattern", "command"])]
    list: bool,
    /// Remove the one of this name that was registered; what it runs on now ends by itself
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pattern", "command", "list"])]
    remove: Option<String>,
    /// The command and its arguments, in which {file}, {step} and {name} stand for what they say
    #[arg(trailing_var_arg = true, required_unless_present_any = ["list", "remove"])]
    command: Vec<String>,
}

fn names<T>(all: &'static [(&'static str, T)]) -> PossibleValuesParser {
    all.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

/// Registers, lists or removes analyses of the node manager that runs.
///
/// # Errors
/// What is wrong with it; that no node manager runs.
pub fn analyse(arguments: &AnalyseArguments) -> Result<ExitCode, String> {
    let asked = if arguments.list {
        "list".to_owned()
    } else if let Some(name) = &arguments.remove {
        format!("remove {name}")
    } else {
        let mut text = if arguments.replace { String::new() } else { "add\n".to_owned() };
        arguments.read()?.write(&mut text);
        text
    };
    let runtime = served(&arguments.instance)?;
    let answer = ask_in_words(&runtime, Message::Analyse, &asked, ANSWER);
    let answer = answer.and_then(|answer| String::from_utf8(answer).ok());
    let (code, said) = answer
        .as_deref()
        .and_then(|answer| answer.split_once('\n'))
        .ok_or("the node manager does not answer; see its log, which `forebay status` names")?;
    if code != "0" {
        return Err(said.to_owned());
    }
    if arguments.list {
        print_list(&Registered::of_text(said, None, Path::new("/"))?, &table::read(&runtime));
    }
    Ok(ExitCode::SUCCESS)
}

impl AnalyseArguments {
    /// What the options say, checked as in a configuration.
    fn read(&self) -> Result<Analysis, String> {
        // A text of JSON is one of TOML.
        let text = |text: &String| Value::from(text.as_str()).to_string();
        let mut words = vec![
            format!("match = {}", text(self.pattern.as_ref().ok_or("--match is missing")?)),
            format!("command = {}", Value::from(self.command.clone())),
            format!("on = {}", text(&self.on)),
            format!("timeout = {}", text(&self.timeout)),
            format!("result_max = {}", text(&self.result_max)),
            format!("drain = {}", text(&self.drain)),
            format!("may_drop = {}", self.may_drop),
        ];
        words.extend(self.name.as_ref().map(|name| format!("name = {}", text(name))));
        words.extend(self.results.as_ref().map(|results| format!("results = {}", text(results))));
        let here = std::env::current_dir().map_err(|error| error.to_string())?;
        let line = format!("analysis = [{{ {} }}]\n", words.join(", "));
        let read = Registered::of_text(&line, Some("analyse"), &here);
        let mut all = read.map_err(|why| by_option(&why))?;
        let mut one = all.analyses.pop().ok_or("no analysis is given")?;
        // By the clock of what files are stamped with.
        one.since = clock::realtime_coarse_ns();
        Ok(one)
    }
}

/// The node manager that is meant, which runs.
fn served(instance: &InstanceArguments) -> Result<Runtime, String> {
    if instance.is_given() {
        let runtime = instance.runtime()?.1;
        return match runtime.has_pool() {
            true => Ok(runtime),
            false => Err("no node manager runs for that; start it with `forebay up`, or write \
                          [[analysis]] into the configuration"
                .into()),
        };
    }
    let mut all = Runtime::all()?.into_iter().filter(Runtime::has_pool);
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err("several node managers run: name one by --config or --backing".into())
        }
        (None, _) => {
            Err("no node manager runs; start it with `forebay up`, or write [[analysis]] \
                          into the configuration"
                .into())
        }
    }
}

fn print_list(all: &Registered, runs: &[Entry]) {
    let analyses = all.analyses.iter().map(|one| (&one.name, &one.pattern, one.command.join(" ")));
    let operations = all.operations.iter();
    let operations = operations.map(|one| (&one.name, &one.pattern, one.operation.clone()));
    for (name, pattern, what) in analyses.chain(operations) {
        let of = runs.iter().filter(|run| run.action == *name);
        let stands = counts(of).join(", ");
        println!("{name}: {} -> {}", shown(pattern), shown(&what));
        println!("  {}", if stands.is_empty() { "has not run yet" } else { &stands });
    }
}

/// How many runs stand how, in words.
fn counts<'e>(runs: impl Iterator<Item = &'e Entry>) -> Vec<String> {
    let mut found = [0u64; RunState::ALL.len()];
    for run in runs {
        let at = RunState::ALL.iter().position(|(_, state)| *state == run.state);
        found[at.unwrap_or(0)] += 1;
    }
    let states = RunState::ALL.iter().zip(found).filter(|(_, count)| *count > 0);
    states.map(|((name, _), count)| format!("{count} {name}")).collect()
}

/// What `forebay status` says.
pub fn lines(runtime: &Runtime) -> Vec<String> {
    let runs = table::read(runtime);
    let mut by_action: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
    for run in &runs {
        by_action.entry((&run.kind, &run.action)).or_default().push(run);
    }
    let line = |((kind, name), runs): (&(&str, &str), &Vec<&Entry>)| {
        format!("  {kind} {name}: {}", counts(runs.iter().copied()).join(", "))
    };
    let mut lines: Vec<String> = by_action.iter().map(line).collect();
    let failed = runs.iter().rev().filter(|run| run.state.has_failed()).take(NAMED);
    lines.extend(failed.map(|run| format!("  FAILED   {}", describe(run))));
    lines
}

fn describe(run: &Entry) -> String {
    let step = run.step.map_or(String::new(), |step| format!(", step {step}"));
    let said = if run.said.is_empty() { String::new() } else { format!(": {}", shown(&run.said)) };
    format!("{} {} of {}{step} {}{said}", run.kind, run.action, shown(&run.path), run.state.name())
}

/// What is wrong with a key of an analysis, by the option that has said it.
fn by_option(why: &str) -> String {
    match why.strip_prefix("analyse:1: analysis[0].").and_then(|rest| rest.split_once(':')) {
        Some(("command", rest)) => format!("COMMAND:{rest}"),
        Some((key, rest)) => format!("--{}:{rest}", key.replace('_', "-")),
        None => why.to_owned(),
    }
}

/// What a drain waits for, in few words: what files are held for until it has ended, or, where
/// `all_are_safe`, what is still to be done on them.
pub fn awaited(runtime: &Runtime, all_are_safe: bool) -> Option<String> {
    let runs = table::read(runtime);
    let awaited = runs.iter().filter(|run| (run.holds || all_are_safe) && !run.state.is_end());
    let names: BTreeSet<(&str, &str)> =
        awaited.map(|run| (run.kind.as_str(), run.action.as_str())).collect();
    let (kind, name) = names.first()?;
    Some(match names.len() {
        1 => format!("waits for {kind} {}", shown(name)),
        more => format!("waits for {kind} {} and {} more", shown(name), more - 1),
    })
}

/// The same, for people who ask about one file: what ran on it, and is to.
pub fn of_file(runtime: &Runtime, path: &Path) -> Vec<String> {
    let runs = table::read(runtime);
    let line = |run: &Entry| {
        let result = run.result.as_ref();
        let result =
            result.map_or(String::new(), |path| format!("; its result is {}", shown(path)));
        let said =
            if run.said.is_empty() { String::new() } else { format!(": {}", shown(&run.said)) };
        format!("{} {} {}{said}{result}", run.kind, run.action, run.state.name())
    };
    runs.iter().filter(|run| run.path == path).map(line).collect()
}

/// For programs.
pub fn json(runtime: &Runtime, path: Option<&Path>) -> Value {
    let text = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let object = |run: &Entry| {
        json!({
            "name": run.action, "kind": run.kind, "path": text(&run.path), "step": run.step,
            "state": run.state.name(), "said": run.said, "holds": run.holds, "merged": run.merged,
            "result": run.result.as_ref().map(text),
        })
    };
    let runs = table::read(runtime);
    runs.iter().filter(|run| path.is_none_or(|path| run.path == path)).map(object).collect()
}

/// What a run's end says of what ran since a time, milliseconds since 1970: what has failed, what
/// was removed, and what there is to know.
pub fn report(runtime: &Runtime, since_ms: u64) -> Option<String> {
    let runs = table::read(runtime);
    let runs: Vec<&Entry> = runs.iter().filter(|run| run.noted_ms >= since_ms).collect();
    let is_told = |run: &&&Entry| run.state != RunState::Done || !run.said.is_empty();
    let told: Vec<&&Entry> = runs.iter().filter(is_told).collect();
    if told.is_empty() {
        return None;
    }
    let mut said = vec![format!("ran on files: {}", counts(runs.iter().copied()).join(", "))];
    said.extend(told.iter().take(NAMED).map(|run| describe(run)));
    if told.len() > NAMED {
        let more = counted((told.len() - NAMED) as u64, "more", "more");
        said.push(format!("and {more}, see `forebay status`"));
    }
    Some(said.join("\n"))
}
