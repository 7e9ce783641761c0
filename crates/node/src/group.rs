//! This node's part in its group. It is begun beside everything else, and nothing waits for it: a
//! store that hangs, or a folder that is refused, leaves the node alone, and its programs go on.

mod flush_watch;
pub(crate) mod records;

use crate::config::{Config, Consistency, Group as Settings, Hosts, Rule};
use crate::devices::faults::Faults as ScriptedFaults;
use crate::group::flush_watch::{End, FlushWatch, GIVEN_UP};
use crate::remote::{RemoteEvent, RemotePost};
use forebay_cluster::{
    Faults, Flushing, Group, GroupConfig, GroupError, GroupStatus, LeaseDesk, LeaseOrder,
    LinkState, LinkStatus, LookStatus, NodeStatus, PacketCounters, Sharing, Standing, StoreError,
    Strand, Taker,
};
use forebay_directory::{LOST_NAMED, Level, Object, Status, Tuning};
use forebay_membership::{FileId as GroupFile, Incarnation, Member, NodeId, Rank, Seat};
use forebay_pool::clock::Timer;
use forebay_pool::parts::{self, PartLevel, PartsAhead};
use forebay_pool::{FileId, fence};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::ToSocketAddrs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an end waits for a beginning that is under way.
const END: Timer = Timer::seconds(1);
/// After so long outside its group a node goes on alone, at its beginning after twice that: a view
/// of members that have died is followed by another one after this time.
const PATIENCE: Timer = Timer::seconds(20);
/// How often it is looked whether a node is inside its group, before and after it was so.
const INSIDE_LOOK: (Timer, Timer) = (Timer::ms(100), Timer::seconds(1));

/// When it is looked whether hosts that were not heard are known by name, and so many at most.
const NAMES: Timer = Timer::seconds(5);
const NAMES_MAX: usize = 16;

/// What the keeper of leases is told.
pub(crate) enum LeaseEvent {
    /// Programs of this node wait for more of a file.
    Asked(FileId),
    /// Programs of this node wait for a part of a file that is shared, or for its size.
    Part {
        /// The file.
        file: FileId,
        /// Which part.
        part: parts::Part,
        /// How much of it.
        level: PartLevel,
        /// Others that will be wanted next.
        ahead: PartsAhead,
    },
    /// A file has left the file table.
    Removed(forebay_membership::FileId),
    /// A file that is lent has lost its last name here: it is to be flushed, for those that borrow
    /// it.
    Unlend(FileId),
    /// The group has decided.
    Order(LeaseOrder),
    /// There is no group, and will be none.
    Alone,
}

/// Where events meet what keeps the leases of this node (`manager/leases.rs`). A caller that
/// dispatches one is inside no file, and holds nothing.
pub(crate) type LeaseStrand = Strand<Box<dyn Taker<Event = LeaseEvent>>>;

/// See the module. Used by several threads.
pub(crate) struct Grouping {
    settings: Settings,
    /// A sum of the rules that say when other nodes see what is written.
    rules: u32,
    folder: Option<PathBuf>,
    part: Arc<Mutex<Part>>,
    /// Its other end goes with the thread that begins the group.
    beginning: Mutex<Option<Receiver<()>>>,
    /// Where nodes share files: what goes between the group and the keeper of leases.
    leases: Option<LeasePost>,
    /// There too: what goes between the group and the thread of blocks of other nodes.
    pub remote: Option<RemotePost>,
    /// What is said of hosts whose names have no address here.
    nameless: Arc<Mutex<Vec<String>>>,
    /// Paths of files that programs of this node wanted, and that are lost: the newest ones.
    lost_paths: Mutex<BTreeMap<GroupFile, String>>,
    /// The manager ends.
    end: Arc<End>,
}

/// Lives of this node in its group, as its pool knows them.
pub(crate) struct PoolLife {
    /// The first one that had the pool, if it was found.
    pub oldest: Option<Incarnation>,
    /// Notes the one that begins.
    pub begun: Box<dyn FnOnce(Incarnation) + Send>,
    /// The group that had it before: its folder, and this node's number there.
    pub before: Option<(PathBuf, NodeId)>,
    /// A group had it, and it may only be flushed after a look.
    pub is_fenced: bool,
    /// That group has given up this node.
    pub is_given_up: bool,
    /// The first life that had it, once one has begun.
    pub oldest_now: Arc<dyn Fn() -> Option<Incarnation> + Send + Sync>,
    /// Whether nothing may be flushed until the folder was looked at.
    pub is_fenced_now: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Notes until when it may be flushed.
    pub flushing: Arc<dyn Fn(Flushing) + Send + Sync>,
    /// Does what the group decides, where that waits for nothing, and returns what is left.
    pub at_once: Box<dyn FnMut(LeaseOrder) -> Option<LeaseOrder> + Send>,
}

/// Questions of programs that wait for the keeper of leases at most.
const ASKED_MAX: usize = 1 << 13;

/// Sizes that other nodes ask for at once at most: those of more are asked for again.
const MEASURES_MAX: usize = 4096;

/// What is to be measured, and the token of the answer.
type Measure = (Object, (Member, u64));

/// Files whose size another node asks for: from the thread of the group to that of asks.
#[derive(Default)]
pub(crate) struct Measures(Mutex<VecDeque<Measure>>);

impl Measures {
    /// The thread of asks is to be woken.
    pub fn put(&self, object: Object, token: (Member, u64)) {
        let mut measures = lock(&self.0);
        if measures.len() < MEASURES_MAX {
            measures.push_back((object, token));
        }
    }

    pub fn take(&self) -> Option<Measure> {
        lock(&self.0).pop_front()
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

/// See [`Grouping`].
#[derive(Default)]
struct LeasePost {
    desk: LeaseDesk,
    strand: Arc<LeaseStrand>,
    measures: Arc<Measures>,
    /// What programs have asked, and the keeper of leases has not taken yet.
    asked: AtomicUsize,
}

impl LeasePost {
    /// What a group that begins needs to share files.
    fn sharing(&self, pool: PoolLife) -> Sharing {
        let PoolLife { oldest, begun, mut at_once, flushing, .. } = pool;
        let flushing = Box::new(move |until| flushing(until));
        let strand = Arc::clone(&self.strand);
        let order = Box::new(move |order| {
            let _ = at_once(order).map(|order| strand.dispatch(LeaseEvent::Order(order)));
        });
        let (desk, tuning) = (self.desk.clone(), Tuning::default());
        Sharing { desk, oldest, begun, flushing, tuning, order }
    }
}

/// How it stands.
enum Part {
    /// No hosts are named, or this node is not to be in their group.
    None,
    /// The list has this host alone: there is nothing to be agreed on.
    Alone,
    /// The folder is being looked at.
    Beginning,
    /// It has a life in the group.
    Member(Group),
    /// Why it has none.
    Failed(GroupError),
    /// The manager ends.
    Ended,
}

impl Grouping {
    /// Of a configuration; nothing is begun.
    pub fn of(config: &Config) -> Self {
        let part = match &config.group.hosts {
            Some(hosts) if hosts.is_alone() => Part::Alone,
            _ => Part::None,
        };
        Self {
            settings: config.group.clone(),
            rules: if config.shares_files() { sum_of_rules(&config.rules) } else { 0 },
            folder: config.group_folder(),
            part: Arc::new(Mutex::new(part)),
            beginning: Mutex::default(),
            leases: config.shares_files().then(LeasePost::default),
            remote: config.shares_files().then(|| RemotePost::new(config.bucket_size() as usize)),
            nameless: Arc::default(),
            lost_paths: Mutex::default(),
            end: Arc::default(),
        }
    }

    /// What the keeper of leases needs, if there is to be one.
    pub fn leases(&self) -> Option<(Arc<LeaseStrand>, LeaseDesk)> {
        let leases = self.leases.as_ref()?;
        Some((Arc::clone(&leases.strand), leases.desk.clone()))
    }

    /// Tells the keeper of leases what programs ask, of which so much waits at most: more is
    /// dropped, and asked again. The caller is inside no file, and holds nothing.
    pub fn ask_leases(&self, event: LeaseEvent) {
        let Some(leases) = &self.leases else { return };
        if leases.asked.fetch_add(1, Ordering::Relaxed) < ASKED_MAX {
            leases.strand.dispatch(event);
        } else {
            leases.asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The keeper of leases has what programs have asked.
    pub fn note_asked(&self) {
        if let Some(leases) = &self.leases {
            leases.asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Where nodes share files: how the group is asked, and what it asks.
    pub fn asks(&self) -> Option<(LeaseDesk, Arc<Measures>)> {
        let leases = self.leases.as_ref()?;
        Some((leases.desk.clone(), Arc::clone(&leases.measures)))
    }

    /// Tells the keeper of leases, where there is one. The caller may hold anything.
    pub fn tell_leases(&self, event: LeaseEvent) {
        if let Some(leases) = &self.leases {
            leases.strand.post(event);
        }
    }

    /// The manager ends.
    pub fn end_leases(&self) {
        if let Some(leases) = &self.leases {
            leases.strand.end();
        }
    }

    /// This node's number in its group.
    pub fn number(&self) -> Option<NodeId> {
        self.settings.hosts.as_ref().map(|hosts| hosts.node)
    }

    /// Begins a life in the group of several hosts, on a thread of its own. `faults` say what goes
    /// wrong on purpose. Where there is no group to begin, and the pool was in one, that one is
    /// watched: it may give up this node.
    pub fn begin(&self, pool: PoolLife, faults: Option<&ScriptedFaults>) {
        let Settings { hosts, bind, fabric, consistency, .. } = &self.settings;
        let hosts = hosts.as_ref().filter(|hosts| !hosts.is_alone());
        let (was_given_up, is_sharing) = (pool.is_given_up, self.leases.is_some());
        let mut before = FlushWatch::of(&pool, Arc::clone(&self.end));
        if before.is_none() && pool.is_fenced && self.leases.is_none() {
            eprintln!("it is not known which group had the pool: what it has is flushed");
            (pool.flushing)(Flushing::Until(u64::MAX));
        }
        if self.leases.is_none() {
            before.take().into_iter().for_each(FlushWatch::spawn);
        }
        let (Some(hosts), Some(folder)) = (hosts, self.folder.clone()) else {
            return before.into_iter().for_each(FlushWatch::spawn);
        };
        let after = FlushWatch::of_group(&pool, &folder, hosts.node, Arc::clone(&self.end));
        let Hosts { list, node, .. } = hosts;
        let of = GroupConfig::of(list.clone(), *node, hosts.own_name(), folder);
        let tell = |text: &str| eprintln!("{text}");
        let sharing = self.leases.as_ref().map(|leases| leases.sharing(pool));
        let alone = self.leases.as_ref().map(|leases| Arc::clone(&leases.strand));
        let desk = self.leases.as_ref().map(|leases| leases.desk.clone());
        let remote = self.remote.as_ref().map(RemotePost::ends);
        let (staging, handler, told) = match remote {
            Some((staging, handler, begun)) => (Some(staging), handler, Some(begun)),
            None => (None, of.handler, None),
        };
        let bind = bind.unwrap_or(of.bind);
        let mut protocol = of.protocol.clone();
        if let Some(version) = faults.and_then(ScriptedFaults::protocol) {
            protocol.version = version;
        }
        let links = faults.map(ScriptedFaults::links);
        let (transport, faults) = (*fabric, Faults { links, ..of.faults });
        let config = GroupConfig { bind, transport, tell, sharing, staging, handler, faults, ..of };
        let (consistency_name, rules) = (consistency.name(), self.rules);
        let config = GroupConfig { consistency: consistency_name, protocol, rules, ..config };
        let patience = (*consistency == Consistency::Auto).then(|| PATIENCE.as_duration());
        *lock(&self.part) = Part::Beginning;
        let (part, nameless) = (Arc::clone(&self.part), Arc::clone(&self.nameless));
        let (end, ended) = mpsc::channel();
        let begins = move || {
            let _end = end;
            // What was flushed after this node was given up by another group cannot be taken back.
            let is_given_up =
                was_given_up || before.as_ref().is_some_and(|watch| !watch.await_look());
            let begun = match is_given_up {
                true => Err(GroupError::System(GIVEN_UP.to_owned())),
                false => Group::start(config),
            };
            let go_alone = |part: &mut Part, error: GroupError| {
                let is_given_up = is_given_up || matches!(error, GroupError::GivenUp { .. });
                let event = match is_given_up {
                    true => LeaseEvent::Order(LeaseOrder::GivenUp),
                    false => LeaseEvent::Alone,
                };
                let what = if is_given_up { "flushes nothing" } else { "goes on alone" };
                eprintln!("no group: {error}; this node {what}");
                let _ = alone.as_ref().map(|leases| leases.post(event));
                std::mem::replace(part, Part::Failed(error))
            };
            let watch_alone = |watch: Option<FlushWatch>| {
                watch.or(before).into_iter().for_each(FlushWatch::spawn);
            };
            let mut now = lock(&part);
            match (&*now, begun) {
                (Part::Beginning, Ok(group)) => {
                    let event = RemoteEvent::Begun(group.post(), Box::new(group.ranks()));
                    let _ = told.map(|told| told(event));
                    if is_sharing {
                        after.clone().spawn_beside();
                    }
                    *now = Part::Member(group);
                    drop(now);
                    let watch = Watch { part: &part, nameless: &nameless, patience };
                    if let Some(error) = watch.watch() {
                        let mut now = lock(&part);
                        if matches!(*now, Part::Member(_))
                            && let Part::Member(group) = go_alone(&mut now, error)
                        {
                            drop(now);
                            group.stop();
                            watch_alone(Some(after));
                        }
                    }
                }
                (Part::Beginning, Err(error)) => {
                    drop(go_alone(&mut now, error));
                    drop(now);
                    let _ = desk.map(|desk| desk.abandon());
                    watch_alone(None);
                }
                (_, Ok(group)) => {
                    drop(now);
                    group.stop();
                }
                (_, Err(_)) => {}
            }
        };
        match std::thread::Builder::new().name("group-begin".into()).spawn(begins) {
            Ok(_) => *lock(&self.beginning) = Some(ended),
            Err(error) => {
                *lock(&self.part) = Part::Failed(GroupError::System(format!("no thread: {error}")));
                self.tell_leases(LeaseEvent::Alone);
                let _ = self.leases.as_ref().map(|leases| leases.desk.abandon());
            }
        }
    }

    /// Has the group give up what a node wrote that has gone, and writes into a file in memory what
    /// becomes of it, as JSON; false where this node is in no group.
    pub fn give_up(&self, node: u16, file: OwnedFd) -> bool {
        let said = match &*lock(&self.part) {
            Part::Member(group) => match group.give_up(NodeId(node)) {
                Ok(member) => json!({ "node": member.node.0, "life": member.incarnation.0 }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            _ => return false,
        };
        write_memory(file, &said)
    }

    /// A program of this node is refused a file that is lost.
    pub fn note_lost(&self, file: GroupFile, path: String) {
        let mut paths = lock(&self.lost_paths);
        if paths.len() >= LOST_NAMED {
            paths.pop_first();
        }
        paths.insert(file, path);
    }

    /// The path of a file that is lost, if a program of this node wanted it.
    fn lost_path(&self, file: GroupFile) -> Option<String> {
        lock(&self.lost_paths).get(&file).cloned()
    }

    /// Ends this node's life in its group, in about a second at most. A thread that hangs at the
    /// store is left behind.
    pub fn end(&self) {
        self.end.begin();
        let part = std::mem::replace(&mut *lock(&self.part), Part::Ended);
        match (part, lock(&self.beginning).take()) {
            (Part::Member(group), _) => group.stop(),
            (Part::Beginning, Some(ended)) => _ = ended.recv_timeout(END.as_duration()),
            _ => {}
        }
    }

    /// What is known of the group, for people and programs; `None` where no hosts are named.
    fn report(
        &self,
        pool: fence::Flushing,
        path: impl Fn(GroupFile) -> Option<String>,
    ) -> Option<Value> {
        let hosts = self.settings.hosts.as_ref()?;
        let mut report = json!({
            "state": "none",
            "hosts": hosts.list.names().len(),
            "node": hosts.node.0,
            "name": hosts.own_name(),
            "folder": self.folder.as_ref().map(|folder| folder.to_string_lossy()),
        });
        let state = match &*lock(&self.part) {
            Part::None | Part::Ended => "none",
            Part::Alone => "alone",
            Part::Beginning => "beginning",
            Part::Failed(error) => {
                report["error"] = json!(error.to_string());
                "failed"
            }
            Part::Member(group) => {
                add_status(&mut report, &group.status());
                report["notices"] = json!(self.notices(&group.status()));
                let path = |file| path(file).or_else(|| self.lost_path(file));
                let named = |status: &Status| leases(status, path);
                report["leases"] = json!(group.leases().as_ref().map(named));
                report["blocks"] = json!(self.remote.as_ref().map(|remote| remote.report()));
                "member"
            }
        };
        report["state"] = json!(state);
        report["flushing"] = json!(match pool {
            fence::Flushing::Free => "free",
            fence::Flushing::Fenced => "fenced",
            fence::Flushing::GivenUp => "given up",
        });
        Some(report)
    }

    /// What people have to know, who may do something about it.
    fn notices(&self, status: &GroupStatus) -> Vec<String> {
        let refused = status.nodes.iter().filter_map(|node| node.refused.as_ref());
        let refused = refused.chain(&status.stranger).map(GroupError::to_string);
        refused.chain(lock(&self.nameless).iter().cloned()).collect()
    }

    /// Writes the report as JSON into a file in memory that a command has sent; whether it is
    /// there. `path` gives the path of a file that has a record here. Of the files that are used
    /// beside other nodes, `committed` are under commit.
    pub fn report_to(
        &self,
        file: OwnedFd,
        (pool, committed): (fence::Flushing, usize),
        path: impl Fn(GroupFile) -> Option<String>,
    ) -> bool {
        let Some(mut report) = self.report(pool, path) else { return false };
        if report["leases"].is_object() {
            report["leases"]["committed"] = json!(committed);
        }
        write_memory(file, &report)
    }
}

/// What is looked at now and then while a node has a part in its group.
struct Watch<'g> {
    part: &'g Mutex<Part>,
    nameless: &'g Mutex<Vec<String>>,
    /// How long it may be outside, if it then goes on alone.
    patience: Option<Duration>,
}

impl Watch<'_> {
    /// Returns when this node has no part in its group any more, or there is nothing more to be
    /// looked at; or if it is not inside it for long, twice as long at the beginning: why that is.
    fn watch(&self) -> Option<GroupError> {
        let patience = self.patience;
        let begun = Instant::now();
        let (mut inside, mut look, mut limit) = (begun, INSIDE_LOOK.0, patience.map(|of| 2 * of));
        let mut is_named = false;
        while is_wanted(patience, is_named) {
            let status = match &*lock(self.part) {
                Part::Member(group) if group.rank() == Rank::Inside => {
                    (inside, look, limit) = (Instant::now(), INSIDE_LOOK.1, patience);
                    (!is_named).then(|| group.status())
                }
                Part::Member(group) => Some(group.status()),
                _ => return None,
            };
            if status.as_ref().is_some_and(|status| status.is_given_up) {
                return None;
            }
            if let Some(status) = status {
                if !is_named && begun.elapsed() >= NAMES.as_duration() {
                    is_named = true;
                    self.look_at_names(&status);
                }
                let waited = limit.filter(|limit| inside.elapsed() >= *limit);
                let is_out = status.rank == Rank::Outside && patience.is_some();
                if let Some(error) = is_out.then(|| never_taken(&status)).flatten() {
                    return Some(error);
                }
                if let Some(waited) = waited.filter(|_| status.rank != Rank::Inside) {
                    return Some(unreached(status, waited));
                }
            }
            std::thread::sleep(look.as_duration());
        }
        None
    }

    /// Looks whether hosts that have never been heard have names that are known here. This may
    /// take as long as the resolver does: the thread is left to itself.
    fn look_at_names(&self, status: &GroupStatus) {
        let is_missing = |node: &&NodeStatus| {
            node.standing == Standing::NeverHeard && node.incarnation.is_none()
        };
        for node in status.nodes.iter().filter(is_missing).take(NAMES_MAX) {
            if let Err(why) = (&*node.name, 0_u16).to_socket_addrs() {
                let said = format!(
                    "host {} of the list has no address here ({why}): is its name as the host \
                     itself has it, and known on all nodes?",
                    node.name
                );
                eprintln!("group: {said}");
                lock(self.nameless).push(said);
            }
        }
    }
}

/// A sum of all that rules say of consistency, in order; 0 if they say nothing of it.
fn sum_of_rules(rules: &[Rule]) -> u32 {
    let said = rules.iter().filter_map(|rule| Some((&rule.path, rule.set.consistency?)));
    said.fold(0, |sum, (path, consistency)| {
        let text = format!("{} {path}\n", consistency.name());
        crc32c::crc32c_append(sum, text.as_bytes())
    })
}

/// Whether there is anything to be looked at.
fn is_wanted(patience: Option<Duration>, is_named: bool) -> bool {
    patience.is_some() || !is_named
}

/// Why the members of the newest view do not take this node in, if one is of another group.
fn never_taken(status: &GroupStatus) -> Option<GroupError> {
    let mut members = status.nodes.iter().filter(|node| node.seat.is_some());
    members.find_map(|node| node.refused.clone())
}

/// That members have not answered for so long.
fn unreached(status: GroupStatus, waited: Duration) -> GroupError {
    let GroupStatus { address, nodes, me, .. } = status;
    let silent = nodes.into_iter().filter(|node| {
        node.node != me.node && node.seat.is_some() && node.standing != Standing::Up
    });
    let silent = silent.map(|node| node.name).collect();
    GroupError::Unreached { waited_ms: waited.as_millis() as u64, address, silent }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds, in steps of a thousandth.
fn seconds(time: Duration) -> Value {
    json!(time.as_millis() as f64 / 1e3)
}

fn add_status(report: &mut Value, status: &GroupStatus) {
    let (view, since) = status.view;
    report["life"] = json!(status.me.incarnation.0);
    report["address"] = json!(status.address);
    report["rank"] = json!(match status.rank {
        Rank::Inside => "inside",
        Rank::Fenced => "fenced",
        Rank::Outside => "outside",
    });
    report["acts_for_seconds"] = seconds(status.acts_for);
    report["view"] = json!({ "number": view, "seconds": seconds(since) });
    report["seat"] = seat(status.seat);
    let lost = status.lost.iter().map(|seat| {
        let given_up = status.given_up.iter().any(|given| given.covers(seat.member));
        let Member { node, incarnation } = seat.member;
        json!({ "node": node.0, "life": incarnation.0, "since": seat.since, "given_up": given_up })
    });
    report["lost"] = lost.collect();
    let given_up = status.given_up.iter().map(|given| {
        let Member { node, incarnation } = given.member;
        json!({ "node": node.0, "life": incarnation.0, "view": given.view })
    });
    report["given_up"] = given_up.collect();
    report["nodes"] = status.nodes.iter().map(node).collect();
    report["last_look"] = json!(status.last_look.map(|LookStatus { ago, took }| {
        json!({ "ago_seconds": seconds(ago), "took_seconds": seconds(took) })
    }));
    report["store_error"] = error(status.store_error.as_ref());
    report["card_error"] = error(status.card_error.as_ref());
    report["packets"] = packets(&status.packets);
    report["links"] = status.links.iter().map(link).collect();
}

fn link(link: &LinkStatus) -> Value {
    let state = match link.state {
        LinkState::Unused => "unused",
        LinkState::Connecting => "connecting",
        LinkState::Up => "up",
        LinkState::Waiting => "waiting",
    };
    json!({
        "node": link.peer.node.0,
        "life": link.peer.incarnation.0,
        "state": state,
        "seconds": seconds(link.since),
        "round_trip_seconds": link.round_trip.map(|time| time.as_secs_f64()),
        "bytes_in": link.bytes_in,
        "bytes_out": link.bytes_out,
        "bytes_in_per_second": link.rate_in,
        "bytes_out_per_second": link.rate_out,
        "waiting": link.waiting,
        "last_down": link.last_down.map(|(ago, why)| {
            json!({ "ago_seconds": seconds(ago), "why": why.to_string() })
        }),
    })
}

fn seat(seat: Option<Seat>) -> Value {
    json!(seat.map(|seat| json!({ "life": seat.member.incarnation.0, "since": seat.since })))
}

fn node(node: &NodeStatus) -> Value {
    json!({
        "node": node.node.0,
        "name": node.name,
        "life": node.incarnation.map(|life| life.0),
        "address": node.address.map(|address| address.to_string()),
        "standing": match node.standing {
            Standing::Up => "up",
            Standing::Left => "left",
            Standing::Down => "down",
            Standing::LeftOut => "left out",
            Standing::NeverHeard => "never heard",
        },
        "seat": seat(node.seat),
    })
}

fn error(error: Option<&StoreError>) -> Value {
    json!(error.map(|StoreError { ago, error, lasts }| {
        json!({ "ago_seconds": seconds(*ago), "error": error.to_string(), "lasts": lasts })
    }))
}

fn packets(packets: &PacketCounters) -> Value {
    json!({
        "sent": packets.sent,
        "unsent": packets.unsent,
        "taken": packets.taken,
        "malformed": packets.malformed,
        "version": packets.version,
        "group": packets.group,
        "sum": packets.sum,
        "astray": packets.astray,
        "own": packets.own,
        "outdated": packets.outdated,
        "unlisted": packets.unlisted,
    })
}

/// What is held and granted: to read, to write, and through the kernel.
fn leases(status: &Status, path: impl Fn(GroupFile) -> Option<String>) -> Value {
    let lost: usize = status.lost.values().sum();
    let mut files: Vec<(NodeId, GroupFile)> =
        status.lost_objects.iter().map(|(node, object)| (*node, object.file)).collect();
    files.dedup();
    let lost_files: Vec<Value> =
        files.iter().map(|(node, file)| lost_file(*node, *file, path(*file))).collect();
    let by_level = |counts: &[usize; Level::ALL.len()]| {
        json!({
            "borrowed": counts[Level::Borrowed as usize], "read": counts[Level::Read as usize],
            "lent": counts[Level::Lent as usize], "shared": counts[Level::Shared as usize],
            "write": counts[Level::Write as usize], "direct": counts[Level::Direct as usize],
        })
    };
    json!({
        "held": by_level(&status.held),
        "granted": by_level(&status.granted),
        "wanted": status.wants.0,
        "waiting": status.waits,
        "partitions": { "home": status.partitions.0, "frozen": status.partitions.1 },
        "lost": lost,
        "lost_files": lost_files,
        "doubted": status.doubted.values().max().copied().unwrap_or(0),
    })
}

/// A file that is lost with a node, by its path where a program of this node has named it.
fn lost_file(node: NodeId, file: GroupFile, path: Option<String>) -> Value {
    json!({ "node": node.0, "path": path, "store": file.store, "inode": file.inode })
}

/// Writes into a file in memory that a command has sent: no other kind, which may make its writer
/// wait. Whether it is there.
fn write_memory(file: OwnedFd, said: &Value) -> bool {
    let is_memory = rustix::fs::fcntl_get_seals(&file).is_ok();
    is_memory && File::from(file).write_all_at(said.to_string().as_bytes(), 0).is_ok()
}
