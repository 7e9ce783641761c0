//! A group from start to stop.

mod engine;
mod keeper;
mod shared;

pub(crate) use shared::{Parted, Shared};

use crate::clock::now_ms;
use crate::error::GroupError;
use crate::faults::Faults;
use crate::folder::{GroupFolder, Life, OPENING};
use crate::leases::{Leases, Sharing};
use crate::links::{LinkHandler, Links, Post, SendError};
use crate::packets::{Packets, tag_of};
use crate::protocol::Protocol;
use crate::remote::Staging;
use crate::status::GroupStatus;
use crate::terms::Terms;
use engine::Engine;
use forebay_fabric::{Fabric, FaultScript, Faulty, Header, Identity, Tls};
use forebay_membership::{HostList, Incarnation, Member, NodeId, Rank, Times, Tuning};
use keeper::Keeper;
use rustix::io::Errno;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long the store may take to let a node begin.
const BEGIN: Duration = Duration::from_secs(30);
/// How long a stop waits for messages that are on their way out.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a stop waits for what is under way at the store.
const END: Duration = Duration::from_secs(1);
/// Groups have their ports from this one on; which one follows from the group's secret.
const PORT_FIRST: u16 = 20_000;
/// Among so many.
const PORTS: u16 = 20_000;
/// How many ports are tried, one after the other, where others use them.
const PORTS_TRIED: u16 = 256;
/// How often a folder is opened that others remove.
const TRIES: usize = 16;
/// How a card begins the address of the socket of its node's group.
const TRANSPORT: &str = "udp/";
/// How it begins the address of its node's links by UCX. Without one they are by TLS, at the same
/// address as the socket.
const UCX_TRANSPORT: &str = "ucx/";

/// By what nodes have links to each other. All nodes of a group have to have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// TLS over TCP.
    #[default]
    Tls,
    /// UCX over RDMA devices; over TCP only where the network is trusted, for who reaches the host
    /// can write the manager's memory there.
    Ucx {
        /// Everyone who can reach this host is trusted.
        trusted_network: bool,
    },
}

impl Transport {
    /// Whether this build has UCX.
    pub const HAS_UCX: bool = cfg!(feature = "ucx");

    /// The name by which people give it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Ucx { .. } => "ucx",
        }
    }

    /// What a card says of links at this address, which the group's socket has, too.
    fn card_address(self, at: &str) -> String {
        match self {
            Self::Tls => format!("{TRANSPORT}{at}"),
            Self::Ucx { .. } => format!("{TRANSPORT}{at},{UCX_TRANSPORT}{at}"),
        }
    }

    /// The name of what a card's address says.
    fn name_in_card(address: &str) -> &'static str {
        let is_ucx = address.split(',').any(|part| part.starts_with(UCX_TRANSPORT));
        if is_ucx { "ucx" } else { "tls" }
    }
}

/// How a node takes part in a group.
pub struct GroupConfig {
    /// The hosts that the group may have: the same list on all of them.
    pub hosts: HostList,
    /// This node's number in it.
    pub me: NodeId,
    /// The name of its host, by which the others find it.
    pub host: String,
    /// The group's folder on the backing store; the folder that it is in has to be there.
    pub folder: PathBuf,
    /// The address of this host that the others reach. An unspecified one is all that it has; the
    /// others then reach it by its name.
    pub bind: IpAddr,
    /// By what nodes have links.
    pub transport: Transport,
    /// The name of what programs see of other nodes' files, which all nodes have to have alike;
    /// empty if that need not be.
    pub consistency: &'static str,
    /// Which messages its nodes have: only those of one version form a group.
    pub protocol: Protocol,
    /// A sum of the rules that say so of single files, which all nodes have to have alike where
    /// they have to in `consistency`; 0 without any.
    pub rules: u32,
    /// Periods of the failure detector.
    pub tuning: Tuning,
    /// Periods of views: the same on all nodes.
    pub times: Times,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// Told of errors at the folder, each when it is new. Called by the group's threads.
    pub tell: fn(&str),
    /// Told of what comes by links, and of links that come and go.
    pub handler: LinkHandler,
    /// Where nodes share files.
    pub sharing: Option<Sharing>,
    /// Memory from which the other members may pull, and into which [`Post::pull`] does.
    pub staging: Option<Arc<Staging>>,
}

impl GroupConfig {
    /// With all addresses of IPv4 that the host has, the default periods, and without faults.
    /// Errors go to the standard error, and what comes by links is dropped.
    pub fn of(hosts: HostList, me: NodeId, host: &str, folder: impl Into<PathBuf>) -> Self {
        let times = Times::of_hosts(hosts.names().len());
        Self {
            hosts,
            me,
            host: host.to_owned(),
            folder: folder.into(),
            bind: Ipv4Addr::UNSPECIFIED.into(),
            transport: Transport::default(),
            consistency: "",
            protocol: Protocol::of_this_build(),
            rules: 0,
            tuning: Tuning::default(),
            times,
            faults: Faults::default(),
            // Where nothing can be written is no place to say so.
            tell: |text| _ = writeln!(std::io::stderr(), "{text}"),
            handler: Box::new(|_, _| {}),
            sharing: None,
            staging: None,
        }
    }
}

/// This node's part in a group, from [`Group::start`] on. May be used by several threads.
///
/// A group that stops tells the others nothing: they hold a node that has stopped for dead when it
/// does not answer, and the next view is without it. [`Group::stop`] notes in the folder that this
/// life has ended; the last one that does so removes the folder. Dropping a group stops it without
/// that, as a crash does.
///
/// ```
/// use forebay_cluster::{Group, GroupConfig};
/// use forebay_membership::{HostList, NodeId, Rank};
/// # use std::time::Duration;
///
/// let store = tempfile::tempdir().unwrap();
/// let hosts = HostList::of_expression("localhost").unwrap();
/// let folder = store.path().join("group");
/// let group = Group::start(GroupConfig::of(hosts, NodeId(0), "localhost", folder)).unwrap();
/// while group.rank() != Rank::Inside {
///     // Of a group of one this takes as long as the store does, and 50 ms.
/// #   std::thread::sleep(Duration::from_millis(10));
/// }
/// assert_eq!(group.status().view.0, 1);
/// group.stop();
/// ```
pub struct Group {
    shared: Arc<Shared>,
    group: Option<JoinHandle<()>>,
    links: Option<JoinHandle<()>>,
    leases: Option<JoinHandle<()>>,
    store: Option<StoreThread>,
}

/// The thread "group-store", and what ends with it.
struct StoreThread {
    handle: JoinHandle<()>,
    /// A queue in which nothing is ever put: its other end goes with the thread.
    ended: Mutex<Receiver<()>>,
}

/// A life that has begun.
struct Begun {
    me: Member,
    secret: [u8; 32],
    socket: UdpSocket,
    fabric: Box<dyn Fabric>,
    address: String,
}

impl Group {
    /// Begins a life of this node in its group. When this returns it is in no view yet.
    ///
    /// It takes as long as the store does, at most 30 s; where the card of another host has this
    /// node's number, also as long as a look is valid.
    ///
    /// # Errors
    /// The folder or its secret is not this user's alone, the number is another host's, the store
    /// does not answer or refuses, or there is no socket or thread.
    pub fn start(config: GroupConfig) -> Result<Self, GroupError> {
        let GroupConfig { hosts, me, host, folder, bind, tuning, times, .. } = config;
        let GroupConfig { faults, tell, mut handler, sharing, staging, transport, .. } = config;
        let terms = Terms::of(config.protocol, &hosts, config.consistency, config.rules);
        let said = terms.to_string();
        if hosts.name_of(me).is_none() {
            return Err(GroupError::Unlisted { node: me, hosts: hosts.names().len() });
        }
        let shared = Arc::new(Shared::new(&hosts, host, folder, (me, times), tell)?);
        let (tasks, task_queue) = mpsc::channel();
        let (results, result_queue) = mpsc::channel();
        let oldest = sharing.as_ref().and_then(|sharing| sharing.oldest);
        let (begun, first) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::channel();
        let Faults { before, loses, links } = faults;
        let handle = {
            let shared = Arc::clone(&shared);
            let valid = Duration::from_millis(times.valid);
            spawn("group-store", move || {
                let _end = end;
                let of_links = Making { bind, transport, script: links };
                match begin(&shared, (me, &terms, oldest), &of_links, valid) {
                    Ok((life, new)) => {
                        let is_ipv4 = bind.is_ipv4();
                        if begun.send(Ok(new)).is_ok() {
                            Keeper { life, before, is_ipv4, transport, terms, results, shared }
                                .run(&task_queue);
                        }
                    }
                    Err(error) => {
                        let _ = begun.send(Err(error));
                    }
                }
            })?
        };
        let store = Some(StoreThread { handle, ended: Mutex::new(ended) });
        // Where this returns early, dropping it ends the thread.
        let mut group =
            Self { shared: Arc::clone(&shared), group: None, links: None, leases: None, store };
        let waited = BEGIN + Duration::from_millis(times.valid);
        let new = first.recv_timeout(waited).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let folder = shared.folder.clone();
                GroupError::Silent { folder, waited_ms: waited.as_millis() as u64 }
            }
            RecvTimeoutError::Disconnected => {
                GroupError::System("the thread group-store has ended".to_owned())
            }
        })??;
        let packets = Packets::new(&new.secret, &said, new.me);
        shared.begin(new.me, new.address, times);
        let mut fabric = new.fabric;
        if let Some(staging) = &staging {
            let failed = |error| GroupError::System(format!("memory for links: {error}"));
            staging.expose(&mut *fabric).map_err(failed)?;
        }
        let lost = {
            let shared = Arc::clone(&shared);
            Box::new(move |member| shared.note_parted(Parted::Unlinked(member)))
        };
        if let Some(sharing) = sharing {
            let desk = sharing.desk.clone();
            shared.set_desk(desk.clone());
            let taking = desk.clone();
            handler = Box::new(move |post, event| match taking.takes(&event) {
                true => {}
                false => handler(post, event),
            });
            let oldest = Member { incarnation: oldest.unwrap_or(new.me.incarnation), ..new.me };
            let mut sharing = sharing;
            let flushing = std::mem::replace(&mut sharing.flushing, Box::new(|_| {}));
            shared.share(oldest, flushing);
            let leases = Leases::new(sharing, Arc::clone(&shared), new.me);
            group.leases = Some(spawn("group-leases", move || desk.keep(leases))?);
        }
        let links = Links::new(shared.post.clone(), fabric, staging, handler, lost);
        let faults = Faults { loses, ..Faults::default() };
        let queues = (tasks, result_queue);
        let engine = Engine::new(shared, new.socket, packets, tuning, (faults, queues))?;
        group.links = Some(spawn("group-links", move || links.run())?);
        group.group = Some(spawn("group", move || engine.run())?);
        Ok(group)
    }

    /// What this node is in its group, and so what it may do, at this moment. One look at the
    /// clock, no lock.
    pub fn rank(&self) -> Rank {
        self.shared.rank()
    }

    /// What this node knows of its group. Takes a lock that the thread "group" holds while it
    /// handles what has come, and no longer.
    pub fn status(&self) -> GroupStatus {
        self.shared.status()
    }

    /// Counts of leases, where files are shared. `None` too if the directory does not answer in a
    /// second.
    pub fn leases(&self) -> Option<forebay_directory::Status> {
        self.shared.desk().and_then(|desk| desk.status())
    }

    /// Has the group give up what a node that has gone wrote and did not flush: its next view says
    /// so, and [`Times::patience`] after that others may have those files. Returns the newest life
    /// that is given up; the view follows in a second or two.
    ///
    /// # Errors
    /// [`GroupError::NotGivenUp`].
    pub fn give_up(&self, node: NodeId) -> Result<Member, GroupError> {
        let given = self.shared.lock().views.give_up(node, now_ms());
        self.shared.wake();
        given.map_err(|why| GroupError::NotGivenUp { node, why })
    }

    /// Sends a message to a member of the newest view: see [`Post::send`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&self, to: Member, header: &Header, body: &[u8]) -> Result<(), SendError> {
        self.shared.post.send(to, header, body)
    }

    /// [`Group::rank`] for threads that outlive it: [`Rank::Outside`] then.
    pub fn ranks(&self) -> impl Fn() -> Rank + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.rank()
    }

    /// What sends messages, for other threads.
    pub fn post(&self) -> Post {
        self.shared.post.clone()
    }

    /// Ends all threads, and this life: its card says so, and the folder goes with the last one.
    /// A thread that hangs at the store after a second is left to itself: it ends with what it has
    /// begun there.
    pub fn stop(self) {
        self.shared.leave();
    }

    fn end(&mut self) {
        // While it is a member still: it gives back what it has, and says good-bye.
        if let Some((leases, desk)) = self.leases.take().zip(self.shared.desk()) {
            desk.stop();
            let _ = leases.join();
            self.shared.post.settle(SETTLE);
        }
        self.shared.stop();
        for thread in self.links.take().into_iter().chain(self.group.take()) {
            let _ = thread.join();
        }
        if let Some(StoreThread { handle, ended }) = self.store.take() {
            let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
            if ended.recv_timeout(END) != Err(RecvTimeoutError::Timeout) {
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GroupError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| GroupError::System(format!("no thread {name}: {error}")))
}

/// Opens the folder, and begins a life in it.
fn begin(
    shared: &Shared,
    (me, terms, oldest): (NodeId, &Terms, Option<Incarnation>),
    making: &Making,
    valid: Duration,
) -> Result<(Life, Begun), GroupError> {
    for _ in 0..TRIES {
        let folder = match GroupFolder::open(&shared.folder) {
            // It was there, and has gone with its last member.
            Err(GroupError::File { what: OPENING, errno: Errno::NOENT, .. }) => continue,
            folder => folder?,
        };
        if let Some(incarnation) = oldest {
            // Before its card, which would take those of its earlier lives away.
            folder.refuse_given_up(Member { node: me, incarnation })?;
        }
        let same = folder.again()?;
        let begun = begin_in(folder, shared, (me, terms), making, valid);
        // The last member of what was there may have removed it meanwhile, with all that is in it.
        if same.is_in_place()? {
            return begun;
        }
        if let Ok((life, _)) = begun {
            life.abandon();
        }
    }
    let why = "is removed and made again and again".to_owned();
    Err(GroupError::Refused { path: shared.folder.clone(), why })
}

fn begin_in(
    folder: GroupFolder,
    shared: &Shared,
    (me, terms): (NodeId, &Terms),
    making: &Making,
    valid: Duration,
) -> Result<(Life, Begun), GroupError> {
    let secret = folder.secret()?;
    let tag = tag_of(&secret);
    let mut listens = making.listens()?;
    let socket = sockets(making.bind, tag, &mut listens)?;
    let failed = |error| GroupError::System(format!("a UDP socket: {error}"));
    let own = socket.local_addr().map_err(failed)?;
    let at = match making.bind.is_unspecified() {
        true => format!("{}:{}", shared.host, own.port()),
        false => own.to_string(),
    };
    let address = making.transport.card_address(&at);
    let life = folder.begin(me, &shared.host, (&address, &terms.in_card()), valid)?;
    let member = life.me();
    let fabric = making.fabric(listens, member, &secret, &at)?;
    Ok((life, Begun { me: member, secret, socket, fabric, address }))
}

/// How links are made.
struct Making {
    bind: IpAddr,
    transport: Transport,
    /// What goes wrong with them on purpose.
    script: Option<FaultScript>,
}

/// What peers connect to.
enum Listens {
    /// None before it listens.
    Tls(Option<TcpListener>),
    #[cfg(feature = "ucx")]
    Ucx(forebay_fabric::UcxListener),
}

impl Listens {
    /// Listens; false if something else does so there.
    fn at(&mut self, at: SocketAddr) -> Result<bool, GroupError> {
        match self {
            Self::Tls(listener) => match TcpListener::bind(at) {
                Ok(bound) => {
                    *listener = Some(bound);
                    Ok(true)
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(false),
                Err(error) => Err(GroupError::System(format!("a socket at {at}: {error}"))),
            },
            #[cfg(feature = "ucx")]
            Self::Ucx(listener) => match listener.listen(at) {
                Ok(_) => Ok(true),
                Err(forebay_fabric::FabricError::InUse(_)) => Ok(false),
                Err(error) => Err(GroupError::System(format!("links: {error}"))),
            },
        }
    }
}

impl Making {
    fn listens(&self) -> Result<Listens, GroupError> {
        match self.transport {
            Transport::Tls => Ok(Listens::Tls(None)),
            #[cfg(feature = "ucx")]
            Transport::Ucx { trusted_network } => {
                use forebay_fabric::{Over, UcxListener};
                let over = if trusted_network { Over::TrustedNetwork } else { Over::Rdma };
                let failed = |error| GroupError::System(format!("links: {error}"));
                UcxListener::new(over, &[self.bind]).map(Listens::Ucx).map_err(failed)
            }
            #[cfg(not(feature = "ucx"))]
            Transport::Ucx { .. } => Err(GroupError::System(
                "this build has no ucx: build with --features ucx".to_owned(),
            )),
        }
    }

    /// The links of a member, which its peers find at this address.
    fn fabric(
        &self,
        listens: Listens,
        member: Member,
        secret: &[u8; 32],
        at: &str,
    ) -> Result<Box<dyn Fabric>, GroupError> {
        let group = format!("{:016x}", u64::from_le_bytes(tag_of(secret)));
        let identity = Identity { member, group };
        let failed = |error| GroupError::System(format!("links: {error}"));
        match listens {
            Listens::Tls(listener) => {
                let listeners = listener.into_iter().collect();
                let made = Tls::on(identity, secret, listeners, at).map_err(failed)?;
                Ok(self.spoiled(made))
            }
            #[cfg(feature = "ucx")]
            Listens::Ucx(listener) => {
                let made = forebay_fabric::Ucx::on(identity, secret, listener, at);
                Ok(self.spoiled(made.map_err(failed)?))
            }
        }
    }

    /// With its faults, if there are any.
    fn spoiled<F: Fabric + 'static>(&self, made: F) -> Box<dyn Fabric> {
        match &self.script {
            Some(script) => Box::new(Faulty::new(made, script.clone())),
            None => Box::new(made),
        }
    }
}

/// The socket of packets at a port where links listen, too: the first one that is free for both,
/// from the group's own on. Who knows where packets go so knows where to connect.
fn sockets(bind: IpAddr, tag: [u8; 8], listens: &mut Listens) -> Result<UdpSocket, GroupError> {
    let first = (u64::from_le_bytes(tag) % u64::from(PORTS)) as u16;
    for more in 0..PORTS_TRIED {
        let at = SocketAddr::new(bind, PORT_FIRST + (first + more) % PORTS);
        let bound = UdpSocket::bind(at).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match bound {
            Ok(socket) if listens.at(at)? => return Ok(socket),
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                return Err(GroupError::System(format!("a socket at {at}: {error}")));
            }
            _ => {}
        }
    }
    let (from, to) = (PORT_FIRST + first, PORT_FIRST + (first + PORTS_TRIED - 1) % PORTS);
    let why = format!("{bind}: all ports from {from} to {to} are in use, by UDP or TCP");
    Err(GroupError::System(why))
}
