//! Groups on the loopback interface, with the store in a folder that goes away.
#![allow(dead_code)] // Each test file uses its part.

use forebay_cluster::{Faults, Group, GroupConfig, GroupError, GroupStatus, Operation};
use forebay_membership::{HostList, NodeId, Rank, Times, Tuning};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test fails: what else runs here may take the processors.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the store is for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Good,
    Slow(Duration),
    Fails,
    Hangs,
}

/// A store, and nodes that have it.
pub struct Site {
    _root: TempDir,
    pub folder: PathBuf,
    /// Its own, so that no packet for a port that another site had before comes here.
    address: Ipv4Addr,
    pub hosts: HostList,
    pub times: Times,
    pub tuning: Tuning,
    /// Each node's side of the network: they reach those of the same.
    sides: Arc<Mutex<BTreeMap<NodeId, u8>>>,
    /// Each so many-th packet of a node is lost; 0: none is.
    pub lost_each: u64,
    stores: Arc<(Mutex<BTreeMap<NodeId, Store>>, Condvar)>,
}

impl Site {
    /// With hosts n0, n1 and so on, and a tenth of the default periods.
    pub fn of(nodes: u16) -> Self {
        static SITES: AtomicU8 = AtomicU8::new(0);
        let root = tempfile::tempdir().unwrap();
        let (process, site) = (std::process::id(), SITES.fetch_add(1, Ordering::Relaxed));
        Self {
            address: Ipv4Addr::new(127, 1 + (process % 250) as u8, site, 1),
            folder: root.path().join("group"),
            _root: root,
            hosts: HostList::of_expression(&format!("n[0-{}]", nodes - 1)).unwrap(),
            times: Times::of(1000),
            tuning: Tuning { probe: 50, round_trip: 20, suspicion: 500, announce: 200, late: 100 },
            sides: Arc::default(),
            lost_each: 0,
            stores: Arc::default(),
        }
    }

    pub fn config(&self, node: u16) -> GroupConfig {
        let me = NodeId(node);
        let (sides, stores) = (Arc::clone(&self.sides), Arc::clone(&self.stores));
        let (sent, lost_each) = (AtomicU64::new(1), self.lost_each);
        let loses = move |from, to| {
            let sides = sides.lock().unwrap();
            let number = sent.fetch_add(1, Ordering::Relaxed);
            sides.get(&from) != sides.get(&to) || number.checked_rem(lost_each) == Some(0)
        };
        let before = move |_: Operation| {
            let (states, changed) = &*stores;
            let mut states = states.lock().unwrap();
            loop {
                match states.get(&me).copied().unwrap_or(Store::Good) {
                    Store::Good => return Ok(()),
                    Store::Fails => return Err(Errno::IO),
                    Store::Slow(time) => {
                        drop(states);
                        std::thread::sleep(time);
                        return Ok(());
                    }
                    Store::Hangs => states = changed.wait(states).unwrap(),
                }
            }
        };
        GroupConfig {
            bind: self.address.into(),
            times: self.times,
            tuning: self.tuning,
            faults: Faults {
                loses: Some(Box::new(loses)),
                before: Some(Box::new(before)),
                links: None,
            },
            ..GroupConfig::of(self.hosts.clone(), me, &format!("n{node}"), &self.folder)
        }
    }

    pub fn try_start(&self, node: u16) -> Result<Group, GroupError> {
        Group::start(self.config(node))
    }

    pub fn start(&self, node: u16) -> Group {
        self.try_start(node).unwrap_or_else(|error| panic!("node {node}: {error}"))
    }

    pub fn start_all(&self) -> Vec<Group> {
        (0..self.hosts.names().len() as u16).map(|node| self.start(node)).collect()
    }

    pub fn set_side(&self, nodes: &[u16], side: u8) {
        let mut sides = self.sides.lock().unwrap();
        sides.extend(nodes.iter().map(|node| (NodeId(*node), side)));
    }

    pub fn heal(&self) {
        self.sides.lock().unwrap().clear();
    }

    pub fn set_store(&self, node: u16, store: Store) {
        self.stores.0.lock().unwrap().insert(NodeId(node), store);
        self.stores.1.notify_all();
    }

    /// The names in the group's folder.
    pub fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.folder).unwrap();
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stores.0.lock().unwrap_or_else(|error| error.into_inner()).clear();
        self.stores.1.notify_all();
        // A thread that was left hanging ends before the folder does: it has its share of this.
        let begin = Instant::now();
        while Arc::strong_count(&self.stores) > 1 && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Where a node's packets go.
pub fn socket_of(group: &Group) -> SocketAddr {
    group.status().address.strip_prefix("udp/").unwrap().parse().unwrap()
}

/// Waits until something is so of all of these nodes at one time.
pub fn wait<'g>(
    what: &str,
    groups: impl IntoIterator<Item = &'g Group>,
    is_so: impl Fn(&[GroupStatus]) -> bool,
) -> Vec<GroupStatus> {
    let groups: Vec<_> = groups.into_iter().collect();
    let begin = Instant::now();
    loop {
        let statuses: Vec<_> = groups.iter().map(|group| group.status()).collect();
        if is_so(&statuses) {
            return statuses;
        }
        assert!(begin.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}: {statuses:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until these are the members of one view, have all seen it, and may act.
pub fn wait_agreed<'g>(groups: impl IntoIterator<Item = &'g Group>) -> Vec<GroupStatus> {
    wait("one view of these", groups, |all| {
        let members: Vec<_> = all.iter().map(|status| status.me).collect();
        all.iter().all(|status| {
            let seats = status.nodes.iter().filter_map(|node| node.seat);
            status.rank == Rank::Inside
                && status.view.0 == all[0].view.0
                && seats.map(|seat| seat.member).eq(members.iter().copied())
        })
    })
}
