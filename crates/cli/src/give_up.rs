//! `forebay give-up`: an operator decides that a node does not come back.

use crate::group;
use crate::instance::InstanceArguments;
use crate::output;
use crate::text::counted;
use clap::Args;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the group may take to make the view that says so.
const VIEW: Duration = Duration::from_secs(30);
/// How often it is asked for.
const PAUSE: Duration = Duration::from_millis(200);
/// From then on others may have the files: what the node may have begun to flush has ended. Twice
/// the grace period of views.
const WAIT_SECONDS: u64 = 20;
/// Files that are named.
const NAMED: usize = 32;

/// Options of `forebay give-up`.
#[derive(Args)]
#[command(after_help = "Give it on a host that is a member of the group. For example:\n  \
    forebay status             names the nodes that have gone, and what is lost with them\n  \
    forebay give-up n2\n\nBe sure that the node is off, or its programs have ended: what they write from \
    then on reaches no store.")]
pub struct GiveUpArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// Print what was given up as JSON
    #[arg(long)]
    json: bool,
    /// The node: its name in the list of hosts, or its number there
    #[arg(value_name = "NODE")]
    node: String,
}

/// Has the group of this host give up a node.
///
/// # Errors
/// No group is here, it has no such node, or the node is a member, or nothing is lost with it.
pub fn give_up(arguments: &GiveUpArguments) -> Result<ExitCode, String> {
    let (runtime, report) = member(&arguments.instance)?;
    let node = find(&report, &arguments.node)?;
    let name = shown(node["name"].as_str().unwrap_or("?"));
    let number = node["node"].as_u64().and_then(|number| u16::try_from(number).ok());
    let number = number.ok_or("the node manager does not say the node's number")?;
    let said = group::give_up(&runtime, number).ok_or("the node manager does not answer")?;
    if let Some(error) = said["error"].as_str() {
        return Err(format!("{name}: {}", shown(error)));
    }
    let view = await_view(&runtime, &said)?;
    let files: Vec<&Value> = lost_files(&report, number).collect();
    match arguments.json {
        true => {
            let said = json!({
                "node": number, "name": name, "life": said["life"], "view": view,
                "files": files, "wait_seconds": WAIT_SECONDS,
            });
            output::json(format_args!("{said:#}"));
        }
        false => print(&name, &said["life"], view, &files),
    }
    Ok(ExitCode::SUCCESS)
}

fn print(name: &str, life: &Value, view: u64, files: &[&Value]) {
    let known = match files.len() {
        0 => "no file that it was writing is known to this node".to_owned(),
        count => format!(
            "with it {} that it was writing, as far as this node knows",
            counted(count, "file", "files")
        ),
    };
    println!("{name} is given up, up to its life {life}, by view {view}; {known}");
    for file in files.iter().take(NAMED) {
        println!("  {}", group::file_name(file));
    }
    if files.len() > NAMED {
        println!("  and {} more", files.len() - NAMED);
    }
    println!("other nodes may have its files {WAIT_SECONDS} s from now, as the store has them");
}

/// The node manager of this host that is in a group, and what it says of that.
fn member(instance: &InstanceArguments) -> Result<(Runtime, Value), String> {
    let runtimes = match instance.is_given() {
        true => vec![instance.runtime()?.1],
        false => Runtime::all()?.into_iter().filter(Runtime::has_pool).collect(),
    };
    let report = |runtime: Runtime| Some(group::json(&runtime)).map(|report| (runtime, report));
    let is_member = |(_, report): &(Runtime, Value)| report["state"] == "member";
    let mut members = runtimes.into_iter().filter_map(report).filter(is_member);
    match (members.next(), members.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err("several node managers here are in groups: name one by --config or --backing"
                .into())
        }
        (None, _) => {
            Err("no node manager here is in a group: give it on a host that is a member, \
                          while a run or `forebay up` keeps a node manager there"
                .into())
        }
    }
}

/// A node of the group, by name or number.
fn find<'r>(report: &'r Value, wanted: &str) -> Result<&'r Value, String> {
    let nodes = report["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = nodes.iter().find(|node| node["name"] == wanted);
    let number = wanted.parse::<u64>().ok();
    let numbered = || nodes.iter().find(|node| number.is_some() && node["node"].as_u64() == number);
    named.or_else(numbered).ok_or_else(|| {
        let names = nodes.iter().filter_map(|node| node["name"].as_str()).take(NAMED);
        let names: Vec<String> = names.map(shown).collect();
        format!("{wanted} is none of the group's nodes: {}", names.join(", "))
    })
}

/// What a node was writing, as far as that is known here.
fn lost_files(report: &Value, node: u16) -> impl Iterator<Item = &Value> {
    let files = report["leases"]["lost_files"].as_array().into_iter().flatten();
    files.filter(move |file| file["node"] == node)
}

/// Waits for the view that gives up a life, and returns its number.
fn await_view(runtime: &Runtime, given: &Value) -> Result<u64, String> {
    let since = Instant::now();
    while since.elapsed() < VIEW {
        let report = group::json(runtime);
        let mut all = report["given_up"].as_array().into_iter().flatten();
        let is_it = |of: &&Value| {
            of["node"] == given["node"] && of["life"].as_u64() >= given["life"].as_u64()
        };
        if let Some(view) = all.find(is_it).and_then(|of| of["view"].as_u64()) {
            return Ok(view);
        }
        std::thread::sleep(PAUSE);
    }
    Err(format!(
        "no view of the group gives it up yet, after {} s: see the store's errors in `forebay status`, \
         and give it again",
        VIEW.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_name_and_by_number() {
        let report = json!({ "nodes": [{ "node": 0, "name": "1" }, { "node": 1, "name": "b" }] });
        assert_eq!(find(&report, "b").unwrap()["node"], 1);
        assert_eq!(find(&report, "0").unwrap()["node"], 0);
        // The name comes first.
        assert_eq!(find(&report, "1").unwrap()["node"], 0);
        assert_eq!(find(&report, "c").unwrap_err(), "c is none of the group's nodes: 1, b");
    }
}
