//! The group of nodes as commands meet it: which hosts it may have, and what a node manager says of
//! it.

use crate::ask;
use crate::lost;
use crate::text::{bytes, counted};
use forebay_node::Config;
use forebay_node::HostList;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::message::Message;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a node manager may take to say what it knows.
const ANSWER: Duration = Duration::from_secs(1);
/// Nodes that are named where the list has many.
const NODES_SHOWN: usize = 16;

/// Options that name a group.
#[derive(clap::Args, Clone)]
pub struct GroupArguments {
    /// Hosts whose node managers form a group: names such as n[1-4], or a file of them; without it
    /// those of the configuration, else those that Slurm, PBS or LSF give the job, else those on
    /// which mpiexec or mpirun has started this command
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<String>,
}

impl GroupArguments {
    /// The hosts of --hosts, of which this one need not be.
    ///
    /// # Errors
    /// They are not given, or cannot be read.
    pub fn list(&self) -> Result<HostList, String> {
        let hosts = self.hosts.as_deref().ok_or("give the hosts by --hosts")?;
        Config::list_of(hosts, "--hosts").map_err(|error| error.to_string())
    }

    /// Puts the hosts into the configuration. Where nothing names them, processes of a job of MPI
    /// meet, which takes 10 s where others do not come. Where a batch system names hosts of which
    /// this one is none, or says what cannot be understood, that is told, and there is no group.
    ///
    /// # Errors
    /// The hosts that are asked for cannot be read, or this host is none of them.
    pub fn take(&self, config: &mut Config, runtime: &Runtime) -> Result<(), String> {
        if let Some(hosts) = &self.hosts {
            return config.set_hosts(hosts, "--hosts").map_err(|error| error.to_string());
        }
        config.check_own_host().map_err(|error| error.to_string())?;
        let lookup = |name: &str| std::env::var(name).ok();
        let taken = config.take_hosts_of_environment(lookup).and_then(|()| {
            // A later run of a job has its group while one goes on.
            let is_served = Observer::of(&runtime.pool).is_ok_and(|observer| observer.is_served());
            let served = runtime.read_config().filter(|_| is_served);
            match served.is_some_and(|served| config.take_group_of_job(&served, lookup)) {
                true => Ok(()),
                false => config.meet_hosts_of_mpi(lookup),
            }
        });
        if let Err(error) = taken {
            eprintln!("forebay: no group: {error}; this node goes on alone");
        }
        Ok(())
    }
}

/// Waits until the node of an instance is in its group, and says how that stands. A node that goes
/// on alone is no error: what keeps it from the group is said.
///
/// # Errors
/// Its manager says nothing for so long.
pub fn await_part(runtime: &Runtime, limit: Duration) -> Result<String, String> {
    const PAUSE: Duration = Duration::from_millis(50);
    let since = Instant::now();
    let mut report = Value::Null;
    while since.elapsed() < limit {
        report = ask(runtime, ANSWER).unwrap_or(report);
        let is_inside = report["state"] == "member" && report["rank"] == "inside";
        let is_under_way = ["beginning", "member"].iter().any(|state| report["state"] == *state);
        if is_inside || !is_under_way && !report.is_null() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let line = lines(&report).into_iter().next().filter(|_| !report.is_null());
    line.map(|line| line.trim().replacen("group    ", "group: ", 1))
        .ok_or_else(|| "the node manager does not say how its group is".to_owned())
}

/// What the node manager of an instance says of its group. `None` if it is in none, or says
/// nothing.
fn ask(runtime: &Runtime, limit: Duration) -> Option<Value> {
    let mut report = ask::ask(runtime, Message::Group, "", limit)?;
    lost::name(runtime, &mut report);
    Some(report)
}

/// Has the group of an instance give up a node; returns what becomes of that, `None` where its
/// manager says nothing or is in no group.
pub fn give_up(runtime: &Runtime, node: u16) -> Option<Value> {
    ask::ask(runtime, Message::GiveUp { node }, "", ANSWER)
}

/// Whether the instance is to be in a group, as far as its configuration tells.
fn is_wanted(runtime: &Runtime) -> bool {
    runtime.read_config().is_some_and(|config| config.group.hosts.is_some())
}

/// The group of an instance, as `forebay status --json` shows it: null where it is in none.
pub fn json(runtime: &Runtime) -> Value {
    Some(runtime).filter(|runtime| is_wanted(runtime)).and_then(|_| ask(runtime, ANSWER)).into()
}

/// Says that the node manager which a run has joined is in another group than the run asks for.
pub fn mention_other(wanted: &Config, runtime: &Runtime) {
    let Some(hosts) = &wanted.group.hosts else { return };
    let Some(served) = runtime.read_config().filter(|served| served.group != wanted.group) else {
        return;
    };
    let list = |of: &Config| of.group.hosts.as_ref().map(|hosts| hosts.list.clone());
    let (asks, is) = match &served.group.hosts {
        _ if list(wanted) == list(&served)
            && wanted.group.consistency != served.group.consistency =>
        {
            let [asks, is] = [wanted, &served].map(|of| of.group.consistency.name());
            (format!("consistency = {asks:?}"), format!("has {is:?}"))
        }
        other => {
            let is = match other {
                Some(hosts) if hosts.is_alone() => "is in no group with others".to_owned(),
                Some(served) => format!("is in the group of {}", served.list),
                None => "is in no group".to_owned(),
            };
            (format!("the group of {}", hosts.list), is)
        }
    };
    eprintln!(
        "forebay: this run asks for {asks}, and the node manager that runs here {is}, as the run that has \
         started it asked: it goes on as it is. `forebay stop` ends it, and the next run starts another"
    );
}

/// Watches for a run whether its node gets into its group, and what is wrong with it: each is said
/// once.
pub struct Beginning {
    /// What was said.
    told: BTreeSet<String>,
    /// When it is looked at next, and how long after that; `None` when all is said.
    next: Option<(Instant, Duration)>,
}

impl Beginning {
    /// Of a run that wants this.
    pub fn of(config: &Config) -> Self {
        const FIRST: Duration = Duration::from_millis(200);
        let is_wanted = config.group.hosts.as_ref().is_some_and(|hosts| !hosts.is_alone());
        Self { told: BTreeSet::new(), next: is_wanted.then(|| (Instant::now(), FIRST)) }
    }

    /// To be called now and then.
    pub fn look(&mut self, runtime: &Runtime) {
        if self.next.is_some_and(|(at, _)| at <= Instant::now()) {
            self.look_now(runtime);
        }
    }

    /// The last look: the run ends.
    pub fn end(&mut self, runtime: &Runtime) {
        if self.next.is_some() {
            self.look_now(runtime);
        }
    }

    fn look_now(&mut self, runtime: &Runtime) {
        const SLOWEST: Duration = Duration::from_secs(10);
        let Some((_, pause)) = self.next else { return };
        let report = ask(runtime, ANSWER).unwrap_or_default();
        for said in report["notices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if self.told.insert(said.to_owned()) {
                eprintln!("forebay: group: {}", shown(said));
            }
        }
        self.next = match report["state"].as_str() {
            // Outside it may yet give up, and others may come that are not to be.
            Some("beginning" | "member") | None => {
                Some((Instant::now() + pause, (2 * pause).min(SLOWEST)))
            }
            Some("failed") => {
                let why = report["error"].as_str().unwrap_or("for no reason that it tells");
                eprintln!("forebay: no group: {}; this node goes on alone", shown(why));
                None
            }
            Some(_) => None,
        };
    }
}

/// Prints the group of an instance, if it is to be in one.
pub fn show(runtime: &Runtime) {
    if !is_wanted(runtime) {
        return;
    }
    let Some(report) = ask(runtime, ANSWER) else {
        println!("  group    its node manager does not say");
        return;
    };
    lines(&report).iter().for_each(|line| println!("{line}"));
}

/// The lines of a report.
fn lines(report: &Value) -> Vec<String> {
    let text = |value: &Value| shown(value.as_str().unwrap_or("?"));
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let me = format!(
        "node {} of {} ({})",
        number(&report["node"]),
        number(&report["hosts"]),
        text(&report["name"])
    );
    match report["state"].as_str() {
        Some("member") => {}
        Some("alone") => return vec![format!("  group    {me}: no other host is in the list")],
        Some("beginning") => {
            return vec![format!(
                "  group    {me}: looks for its folder {}",
                text(&report["folder"])
            )];
        }
        Some("failed") => {
            let why = text(&report["error"]);
            return vec![format!("  group    {me}: NONE, the node is alone: {why}")];
        }
        _ => return vec![format!("  group    {me}: none")],
    }
    let view = (number(&report["view"]["number"]), seconds(&report["view"]["seconds"]));
    let rank = match (report["rank"].as_str(), view) {
        (Some("inside"), (view, since)) => format!("in view {view} since {since}"),
        (Some("fenced"), (view, since)) => {
            format!("FENCED in view {view} of {since} ago: its last look at the store is too old")
        }
        (_, (0, _)) => "in no view yet".to_owned(),
        (_, (view, since)) => format!("not in view {view}, which it has seen for {since}"),
    };
    let mut lines = vec![
        format!("  group    {me}, life {}: {rank}", number(&report["life"])),
        format!("    folder   {}", text(&report["folder"])),
        format!("    address  {}", text(&report["address"])),
    ];
    if let Some(look) = report["last_look"].as_object() {
        let (ago, took) = (seconds(&look["ago_seconds"]), seconds(&look["took_seconds"]));
        lines.push(format!("    look     {ago} ago, took {took}"));
    }
    for (what, key) in [("STORE", "store_error"), ("CARDS", "card_error")] {
        let error = &report[key];
        if !error.is_null() {
            let lasts = if error["lasts"] == true { "" } else { ", and is over" };
            let (ago, why) = (seconds(&error["ago_seconds"]), text(&error["error"]));
            lines.push(format!("    {what:8} {why} ({ago} ago{lasts})"));
        }
    }
    let notices = report["notices"].as_array().into_iter().flatten();
    lines.extend(notices.map(|said| format!("    WRONG    {}", text(said))));
    lines.extend(leases(&report["leases"]));
    lines.extend(lost(report));
    lines.extend(blocks(&report["blocks"]));
    lines.extend(dropped(&report["packets"]));
    lines.extend(nodes(report));
    lines
}

/// Leases, where nodes share files.
fn leases(leases: &Value) -> Option<String> {
    let held = leases["held"].as_object()?;
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let of = |key: &str| held.get(key).map_or(0, number);
    let mut line = format!(
        "    leases   {} files to write, {} to read, {} through the kernel",
        of("write"),
        of("read"),
        of("direct")
    );
    for (what, count) in [
        ("of those under commit", number(&leases["committed"])),
        ("lent to other nodes", of("lent")),
        ("borrowed", of("borrowed")),
        ("wanted", number(&leases["wanted"])),
        ("LOST with nodes that are gone", number(&leases["lost"])),
        ("partitions frozen", number(&leases["partitions"]["frozen"])),
    ] {
        if count > 0 {
            line += &format!("; {count} {what}");
        }
    }
    Some(line)
}

/// A file that is lost, as people are shown it.
pub fn file_name(file: &Value) -> String {
    match file["path"].as_str() {
        Some(path) => shown(path),
        None => format!("inode {} of store {}", file["inode"], file["store"]),
    }
}

/// What may be lost with nodes that have gone, and what was given up.
fn lost(report: &Value) -> Vec<String> {
    let of = |key: &str| report[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |number: &Value| {
        let node = of("nodes").iter().find(|node| node["node"] == *number);
        shown(node.and_then(|node| node["name"].as_str()).unwrap_or("?"))
    };
    let mut lines = Vec::new();
    if report["flushing"] == "given up" {
        lines.push(
            "    GIVEN UP this node: what its tiers have and the store has not stays in them, as \
             others may have written those files; forebay salvage writes it to another directory"
                .to_owned(),
        );
    }
    for seat in of("lost").iter().take(NODES_SHOWN) {
        let (name, life) = (name(&seat["node"]), &seat["life"]);
        lines.push(match seat["given_up"].as_bool() {
            Some(true) => format!("    LOST     {name}, life {life}, is given up"),
            _ => format!(
                "    LOST     {name}, life {life}, has gone with what it had not flushed, until it is \
                 back with that, or `forebay give-up {name}`"
            ),
        });
    }
    let files = report["leases"]["lost_files"].as_array().map(Vec::as_slice).unwrap_or_default();
    for file in files.iter().take(NODES_SHOWN) {
        lines.push(format!("      file     {}, by {}", file_name(file), name(&file["node"])));
    }
    if files.len() > NODES_SHOWN {
        lines.push(format!("      and {} more (--json names them)", files.len() - NODES_SHOWN));
    }
    lines
}

/// Blocks that other nodes have, where nodes share files.
fn blocks(blocks: &Value) -> Option<String> {
    blocks.as_object()?;
    let of = |key: &str| blocks[key].as_u64().unwrap_or(0);
    let all = |key: &str| {
        let nodes = blocks["nodes"].as_array().into_iter().flatten();
        bytes(nodes.filter_map(|node| node[key].as_u64()).sum())
    };
    let mut line = format!(
        "    blocks   {} from other nodes ({}), {} from the store; {} given to other nodes",
        of("from_nodes"),
        all("pulled_bytes"),
        of("from_store"),
        all("given_bytes")
    );
    for (what, key) in [
        ("blocks of that from file tiers", "given_from_tiers"),
        ("not given, as the store is faster", "declined"),
    ] {
        if of(key) > 0 {
            line += &format!("; {} {what}", of(key));
        }
    }
    if of("failed") > 0 {
        line += &format!("; {} that other nodes had did not come", of("failed"));
    }
    Some(line)
}

/// Packets that were dropped, by reason.
fn dropped(packets: &Value) -> Option<String> {
    const REASONS: [(&str, &str); 8] = [
        ("malformed", "no packet of a group"),
        ("version", "of another version"),
        ("group", "of another group, or with another secret"),
        ("sum", "changed on the way, or forged"),
        ("astray", "for another node"),
        ("own", "of this node's number"),
        ("outdated", "of an earlier life"),
        ("unlisted", "of a node that is not in the list"),
    ];
    let count = |key: &str| packets[key].as_u64().unwrap_or(0);
    let found = REASONS.iter().map(|(key, why)| (count(key), why)).filter(|(count, _)| *count > 0);
    let found: Vec<_> = found.map(|(count, why)| format!("{count} {why}")).collect();
    (!found.is_empty()).then(|| format!("    DROPPED  packets: {}", found.join(", ")))
}

/// A line for each node, those first that do not answer or are in no view; of many the first ones.
fn nodes(report: &Value) -> Vec<String> {
    let mut nodes: Vec<&Value> = report["nodes"].as_array().into_iter().flatten().collect();
    let is_well = |node: &Value| node["standing"] == "up" && !node["seat"].is_null();
    if nodes.len() > NODES_SHOWN {
        nodes.sort_by_key(|node| is_well(node));
    }
    let rest = nodes.split_off(nodes.len().min(NODES_SHOWN));
    let links = report["links"].as_array().map(Vec::as_slice).unwrap_or_default();
    let moved = report["blocks"]["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |node: &&Value| {
        let number = node["node"].as_u64().unwrap_or(0);
        let name = shown(node["name"].as_str().unwrap_or("?"));
        let life = node["life"].as_u64().map_or(String::new(), |life| format!(", life {life}"));
        let standing = match (node["standing"].as_str(), node["seat"].is_null()) {
            _ if report["node"] == node["node"] => "this node",
            (Some("up"), false) => "up",
            (Some("up"), true) => "up, in no view yet",
            (Some("down"), _) => "DOWN: does not answer, and is in the view still",
            (Some("left"), _) => "left: its manager has ended, or goes on alone",
            (Some("left out"), _) => "LEFT OUT: does not answer, and is in no view any more",
            (Some("never heard"), false) => "in the view, not heard yet",
            _ if node["life"].is_null() => {
                "never heard: no run there has begun, or it sees another folder"
            }
            _ => "never heard: it has begun, and no packet of it comes",
        };
        let seat = node["seat"]["since"].as_u64();
        let seat = seat.map_or(String::new(), |view| format!(", member since view {view}"));
        let at = node["address"].as_str().map_or(String::new(), |at| format!(", at {}", shown(at)));
        let of_node = links.iter().find(|link| link["node"] == node["node"]);
        let moved = moved.iter().find(|of| of["node"] == node["node"]).map(|of| {
            let size = |key: &str| bytes(of[key].as_u64().unwrap_or(0));
            let (pulled, given) = (size("pulled_bytes"), size("given_bytes"));
            format!("      blocks   {pulled} pulled, {given} given")
        });
        let line = format!("    node {number:3}  {name}{life}: {standing}{seat}{at}");
        [line].into_iter().chain(of_node.and_then(link)).chain(moved)
    };
    let mut lines: Vec<_> = nodes.iter().flat_map(line).collect();
    if !rest.is_empty() {
        let well = rest.iter().filter(|node| is_well(node)).count();
        lines.push(format!(
            "    and {}, {well} of them up and in the view (--json names them)",
            counted(rest.len(), "further node", "further nodes")
        ));
    }
    lines
}

/// A line for a link that is there, or was.
fn link(link: &Value) -> Option<String> {
    let lost = &link["last_down"];
    let (ago, why) = (seconds(&lost["ago_seconds"]), lost["why"].as_str().unwrap_or("?"));
    let line = match link["state"].as_str() {
        Some("up") => {
            let size = |key: &str| bytes(link[key].as_u64().unwrap_or(0));
            let time = link["round_trip_seconds"].as_f64();
            let time = time.map_or(String::new(), |time| format!(", {:.2} ms", time * 1e3));
            let ways = ["in", "out"].map(|way| {
                let (all, rate) = (format!("bytes_{way}"), format!("bytes_{way}_per_second"));
                format!("{} {way} ({}/s)", size(&all), size(&rate))
            });
            format!("up since {}{time}, {}", seconds(&link["seconds"]), ways.join(", "))
        }
        Some("connecting") => "is being made".to_owned(),
        Some("waiting") => format!("NONE, is tried again; {ago} ago: {}", shown(why)),
        _ if !lost.is_null() => format!("none, lost {ago} ago: {}", shown(why)),
        _ => return None,
    };
    Some(format!("      link     {line}"))
}

/// A time for people.
fn seconds(value: &Value) -> String {
    format!("{:.1} s", value.as_f64().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_a_member_is_one_line() {
        let of = |state: &str| {
            lines(&json!({ "state": state, "node": 1, "hosts": 2, "name": "b", "folder": "/s/g",
                           "error": "/s/g: has mode 0777" }))
        };
        assert_eq!(of("alone"), ["  group    node 1 of 2 (b): no other host is in the list"]);
        assert_eq!(of("beginning"), ["  group    node 1 of 2 (b): looks for its folder /s/g"]);
        assert_eq!(
            of("failed"),
            ["  group    node 1 of 2 (b): NONE, the node is alone: /s/g: has mode 0777"]
        );
    }

    fn member() -> Value {
        json!({
            "state": "member", "node": 0, "hosts": 3, "name": "a", "folder": "/s/g", "life": 2,
            "address": "udp/a:20001", "rank": "inside", "view": { "number": 4, "seconds": 12.34 },
            "last_look": { "ago_seconds": 0.5, "took_seconds": 0.01 }, "store_error": null,
            "notices": ["host d has a list of 2 hosts"],
            "card_error": { "ago_seconds": 3.0, "error": "udp/c:1: unknown\n", "lasts": false },
            "packets": { "sent": 9, "group": 2, "malformed": 1 },
            "leases": { "held": { "read": 3, "write": 2, "direct": 0, "lent": 4, "borrowed": 5 }, "wanted": 1, "lost": 0,
                        "partitions": { "home": 9, "frozen": 0 } },
            "blocks": { "from_nodes": 8, "from_store": 5, "failed": 1,
                        "given_from_tiers": 3, "declined": 2, "finds": 1, "gets": 9,
                        "staged_bytes": 0,
                        "nodes": [{ "node": 1, "pulled_bytes": 2_097_152, "given_bytes": 1024 }] },
            "nodes": [
                { "node": 0, "name": "a", "life": 2, "address": null, "standing": "up",
                  "seat": { "life": 2, "since": 3 } },
                { "node": 1, "name": "b", "life": 1, "address": "10.0.0.2:20001",
                  "standing": "down", "seat": { "life": 1, "since": 1 } },
                { "node": 2, "name": "c", "life": null, "address": null,
                  "standing": "never heard", "seat": null },
            ],
            "links": [
                { "node": 1, "life": 1, "state": "up", "seconds": 9.5,
                  "round_trip_seconds": 0.000123, "bytes_in": 2048, "bytes_out": 3_145_728,
                  "bytes_in_per_second": 0, "bytes_out_per_second": 1024, "waiting": 0,
                  "last_down": null },
            ],
        })
    }

    #[test]
    fn a_link_says_how_it_is() {
        let mut one = member()["links"][0].clone();
        let mut of = |state: &str, last_down: Value| {
            (one["state"], one["last_down"]) = (json!(state), last_down);
            link(&one)
        };
        assert_eq!(of("unused", Value::Null), None);
        assert_eq!(of("connecting", Value::Null).unwrap(), "      link     is being made");
        let down = json!({ "ago_seconds": 2.0, "why": "nothing listens there" });
        let wanted = "      link     NONE, is tried again; 2.0 s ago: nothing listens there";
        assert_eq!(of("waiting", down.clone()).unwrap(), wanted);
        let wanted = "      link     none, lost 2.0 s ago: nothing listens there";
        assert_eq!(of("unused", down).unwrap(), wanted);
    }

    #[test]
    fn a_member_shows_what_it_knows() {
        let wanted = [
            "  group    node 0 of 3 (a), life 2: in view 4 since 12.3 s",
            "    folder   /s/g",
            "    address  udp/a:20001",
            "    look     0.5 s ago, took 0.0 s",
            "    CARDS    udp/c:1: unknown\\n (3.0 s ago, and is over)",
            "    WRONG    host d has a list of 2 hosts",
            "    leases   2 files to write, 3 to read, 0 through the kernel; \
             4 lent to other nodes; 5 borrowed; 1 wanted",
            "    blocks   8 from other nodes (2.00 MiB), 5 from the store; \
             1.00 KiB given to other nodes; 3 blocks of that from file tiers; \
             2 not given, as the store is faster; 1 that other nodes had did not come",
            "    DROPPED  packets: 1 no packet of a group, 2 of another group, or with another secret",
            "    node   0  a, life 2: this node, member since view 3",
            "    node   1  b, life 1: DOWN: does not answer, and is in the view still, \
             member since view 1, at 10.0.0.2:20001",
            "      link     up since 9.5 s, 0.12 ms, 2.00 KiB in (0 B/s), 3.00 MiB out (1.00 KiB/s)",
            "      blocks   2.00 MiB pulled, 1.00 KiB given",
            "    node   2  c: never heard: no run there has begun, or it sees another folder",
        ];
        assert_eq!(lines(&member()), wanted);
        let mut fenced = member();
        fenced["rank"] = json!("fenced");
        assert!(lines(&fenced)[0].contains("FENCED in view 4"), "{:?}", lines(&fenced));
        fenced["rank"] = json!("outside");
        assert!(lines(&fenced)[0].ends_with("not in view 4, which it has seen for 12.3 s"));
        fenced["view"]["number"] = json!(0);
        assert!(lines(&fenced)[0].ends_with("in no view yet"));
    }

    #[test]
    fn of_many_nodes_those_in_trouble_are_named() {
        let mut large = member();
        let node = |node: u64| {
            let standing = if node == 70 { "left out" } else { "up" };
            let seat = (node != 70).then(|| json!({ "life": 1, "since": 1 }));
            json!({ "node": node, "name": format!("n{node}"), "life": 1, "address": null,
                    "standing": standing, "seat": seat })
        };
        large["nodes"] = (0..100).map(node).collect();
        let lines = lines(&large);
        let nodes: Vec<_> = lines.iter().filter(|line| line.starts_with("    node")).collect();
        assert_eq!(nodes.len(), NODES_SHOWN);
        assert!(nodes[0].contains("n70, life 1: LEFT OUT"), "{}", nodes[0]);
        let last = "    and 84 further nodes, 84 of them up and in the view (--json names them)";
        assert_eq!(lines.last().map(String::as_str), Some(last));
    }
}
