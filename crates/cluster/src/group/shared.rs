//! What the threads of a group and those that ask it share.

use crate::clock::now_ms;
use crate::error::GroupError;
use crate::leases::{Flushing, LeaseDesk, ToldFlushing};
use crate::links::Post;
use crate::status::{GroupStatus, LookStatus, NodeStatus, PacketCounters, Standing, StoreError};
use forebay_membership::{GivenUp, HostList, Incarnation, Member, NodeId, Rank, Times, Views};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// In [`Shared::acts_until_ms`]: this node has no seat.
const NO_SEAT: u64 = 0;

/// See the module.
pub struct Shared {
    pub host: String,
    pub folder: PathBuf,
    pub post: Post,
    /// Of the directory of leases, where files are shared.
    desk: OnceLock<LeaseDesk>,
    /// Where files are shared: the oldest life that had this node's pool, and what is told when
    /// what is in that may be flushed.
    pool: OnceLock<(Member, ToldFlushing)>,
    /// That life was given up.
    is_given_up: AtomicBool,
    /// For the failure detector.
    parted: Mutex<Vec<Parted>>,
    names: Vec<String>,
    state: Mutex<State>,
    /// Until when this node may act, or [`NO_SEAT`].
    acts_until_ms: AtomicU64,
    stops: AtomicBool,
    /// It stops by itself, and says so in the folder.
    leaves: AtomicBool,
    wake: OwnedFd,
    tell: fn(&str),
}

/// What other threads have seen of a member.
pub enum Parted {
    /// The link to it was lost: it is to be asked whether it lives.
    Unlinked(Member),
    /// It has said that it ends: it need not be asked.
    Left(Member),
}

/// What is known of the group.
pub struct State {
    pub me: Member,
    /// As its card says.
    pub address: String,
    pub views: Views,
    /// The number of the newest view, and when it was seen first.
    pub view: (u32, u64),
    /// What is known of each host of the list, this one included.
    pub contacts: Vec<Contact>,
    pub packets: PacketCounters,
    /// When the last good look was asked for, and when it was answered.
    pub look_ms: Option<(u64, u64)>,
    pub store_error: Problem,
    pub card_error: Problem,
    /// The last one of a node that is not listed.
    pub stranger: Option<(Member, GroupError)>,
    /// An address is another one.
    pub has_moved: bool,
    /// What the links were told: the number of the view, if this node is in it.
    told: Option<u32>,
}

/// What is known of a node.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    /// Its newest life.
    pub life: Option<Incarnation>,
    /// Where its packets go, and the life that is, or was, there.
    pub address: Option<(Incarnation, SocketAddr)>,
    /// The newest life whose card was read.
    pub card: Option<Incarnation>,
    /// The life that answers.
    pub up: Option<Incarnation>,
    /// It has answered at some time.
    pub is_heard: bool,
    /// The newest life that is known to have ended by itself.
    pub left: Option<Incarnation>,
    /// Why a life is not of this node's group.
    pub refused: Option<(Incarnation, GroupError)>,
}

/// The last error of a kind of operations.
#[derive(Default)]
pub struct Problem {
    last: Option<(u64, GroupError)>,
    lasts: bool,
}

impl Problem {
    /// Notes how an operation has ended. An error that was not there before is told.
    pub fn note(&mut self, error: Option<GroupError>, now_ms: u64, shared: &Shared) {
        let was_there = self.lasts;
        self.lasts = error.is_some();
        let Some(error) = error else { return };
        if !was_there || self.last.as_ref().is_none_or(|(_, last)| *last != error) {
            shared.tell(&error);
        }
        self.last = Some((now_ms, error));
    }

    fn status(&self, now_ms: u64) -> Option<StoreError> {
        let (at_ms, error) = self.last.clone()?;
        Some(StoreError { ago: since(now_ms, at_ms), error, lasts: self.lasts })
    }
}

impl Shared {
    /// Of a node that has no life yet.
    pub fn new(
        hosts: &HostList,
        host: String,
        folder: PathBuf,
        (me, times): (NodeId, Times),
        tell: fn(&str),
    ) -> Result<Self, GroupError> {
        let failed = |errno| GroupError::System(format!("no event descriptor: {errno}"));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let me = Member { node: me, incarnation: Incarnation(0) };
        let now_ms = now_ms();
        let state = State {
            me,
            address: String::new(),
            views: Views::new(me, times, now_ms),
            view: (0, now_ms),
            contacts: vec![Contact::default(); hosts.names().len()],
            packets: PacketCounters::default(),
            look_ms: None,
            store_error: Problem::default(),
            card_error: Problem::default(),
            stranger: None,
            has_moved: false,
            told: None,
        };
        Ok(Self {
            host,
            folder,
            post: Post::new()?,
            desk: OnceLock::new(),
            pool: OnceLock::new(),
            is_given_up: AtomicBool::new(false),
            parted: Mutex::default(),
            names: hosts.names().to_vec(),
            state: Mutex::new(state),
            acts_until_ms: AtomicU64::new(NO_SEAT),
            stops: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            wake,
            tell,
        })
    }

    /// This node has a life.
    pub fn begin(&self, me: Member, address: String, times: Times) {
        let mut state = self.lock();
        let now_ms = now_ms();
        (state.me, state.address) = (me, address);
        state.views = Views::new(me, times, now_ms);
        state.view = (0, now_ms);
        state.contacts[usize::from(me.node.0)].life = Some(me.incarnation);
    }

    /// How many hosts the list has.
    pub fn hosts(&self) -> usize {
        self.names.len()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if no other thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What wakes the thread "group".
    pub fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub fn wake(&self) {
        // One that is full wakes, too.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.post.stop();
        self.wake();
    }

    /// Files are shared.
    pub fn set_desk(&self, desk: LeaseDesk) {
        let _ = self.desk.set(desk);
    }

    /// Files are shared: views say what may be lost, and `flushing` is told when what is in the
    /// pool, which this life had first, may be flushed.
    pub fn share(&self, oldest: Member, flushing: ToldFlushing) {
        self.lock().views.remember_lost();
        let _ = self.pool.set((oldest, flushing));
    }

    /// What the newest view says of the life that had this node's pool first.
    fn given_up(&self, state: &State) -> Option<GivenUp> {
        let (oldest, _) = self.pool.get()?;
        let given = state.views.view()?.given_up_of(oldest.node)?;
        given.covers(*oldest).then_some(given)
    }

    /// Says until when the pool may be flushed: what nodes have given up has to be seen in time,
    /// for which it does not matter whether this node is a member.
    fn publish_flushing(&self, state: &State) {
        let Some((_, flushing)) = self.pool.get() else { return };
        match (self.given_up(state), state.views.valid_until()) {
            (Some(GivenUp { member, view }), _) => {
                if !self.is_given_up.swap(true, Ordering::AcqRel) {
                    flushing(Flushing::GivenUp);
                    self.tell(&GroupError::GivenUp { member, view, folder: self.folder.clone() });
                    if let Some(desk) = self.desk.get() {
                        desk.look();
                    }
                }
            }
            (None, Some(until_ms)) => flushing(Flushing::Until(until_ms)),
            (None, None) => {}
        }
    }

    /// Whether the newest view gives up this node, or the life that had its pool first.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Of the directory of leases, where files are shared.
    pub fn desk(&self) -> Option<&LeaseDesk> {
        self.desk.get()
    }

    /// A member may be gone, or is.
    pub fn note_parted(&self, parted: Parted) {
        self.parted.lock().unwrap_or_else(PoisonError::into_inner).push(parted);
        self.wake();
    }

    /// Those since the last call.
    pub fn take_parted(&self) -> Vec<Parted> {
        std::mem::take(&mut self.parted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This node is to end its life in the folder when it stops.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Release);
    }

    /// It leaves something behind that its next life goes on with: for the others it ends as one
    /// that was killed.
    pub fn stay(&self) {
        self.leaves.store(false, Ordering::Release);
    }

    pub fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Acquire)
    }

    /// Says what is wrong.
    pub fn tell(&self, error: &GroupError) {
        (self.tell)(&format!("group: {error}"));
    }

    pub fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Tells those that ask for the rank.
    pub fn publish(&self, state: &mut State, now_ms: u64) {
        self.publish_flushing(state);
        let views = &state.views;
        let until_ms = views.seat().map(|_| views.valid_until().unwrap_or(0).max(NO_SEAT + 1));
        self.acts_until_ms.store(until_ms.unwrap_or(NO_SEAT), Ordering::Release);
        let number = views.view().map_or(0, |view| view.number);
        if number != state.view.0 {
            state.view = (number, now_ms);
        }
        let told = views.seat().map(|_| number);
        if told != state.told || std::mem::take(&mut state.has_moved) {
            state.told = told;
            self.post.set_members(state.others());
            if let Some(desk) = self.desk.get() {
                desk.look();
            }
        }
    }

    /// Until when it is [`Rank::Inside`] by its last look, if it has a seat.
    pub fn acts_until_ms(&self) -> Option<u64> {
        let until_ms = self.acts_until_ms.load(Ordering::Acquire);
        (until_ms != NO_SEAT).then_some(until_ms)
    }

    pub fn rank(&self) -> Rank {
        match self.acts_until_ms.load(Ordering::Acquire) {
            // It may not go on behind the back of one that holds it for stopped.
            _ if self.stops() || self.is_given_up() => Rank::Outside,
            NO_SEAT => Rank::Outside,
            until_ms if now_ms() < until_ms => Rank::Inside,
            _ => Rank::Fenced,
        }
    }

    pub fn status(&self) -> GroupStatus {
        let state = self.lock();
        let now_ms = now_ms();
        let rank = self.rank();
        let until_ms = state.views.valid_until().filter(|_| rank == Rank::Inside);
        let nodes = self.names.iter().zip(&state.contacts).zip(0..);
        let nodes = nodes.map(|((name, contact), node)| state.node(NodeId(node), name, contact));
        GroupStatus {
            me: state.me,
            host: self.host.clone(),
            address: state.address.clone(),
            folder: self.folder.clone(),
            rank,
            acts_for: since(until_ms.unwrap_or(0), now_ms),
            seat: state.views.seat(),
            view: (state.view.0, since(now_ms, state.view.1)),
            lost: state.views.lost().collect(),
            given_up: state.views.view().map_or(Vec::new(), |view| view.given_up.clone()),
            is_given_up: self.is_given_up(),
            nodes: nodes.collect(),
            last_look: state.look_ms.map(|(asked_ms, answered_ms)| LookStatus {
                ago: since(now_ms, asked_ms),
                took: since(answered_ms, asked_ms),
            }),
            store_error: state.store_error.status(now_ms),
            card_error: state.card_error.status(now_ms),
            packets: state.packets,
            links: self.post.status(now_ms),
            stranger: state.stranger.as_ref().map(|(_, error)| error.clone()),
        }
    }
}

impl State {
    /// A node of the list; `None` if it is not one of it.
    pub fn contact(&mut self, node: NodeId) -> Option<&mut Contact> {
        self.contacts.get_mut(usize::from(node.0))
    }

    /// The other members of the newest view, if this node is one, with the addresses of those
    /// lives.
    fn others(&self) -> Vec<(Member, Option<SocketAddr>)> {
        let view = self.views.view().filter(|view| view.has(self.me));
        let members = view.into_iter().flat_map(|view| view.members());
        let with_address = |member: Member| {
            let contact = self.contacts.get(usize::from(member.node.0));
            let address = contact.and_then(|contact| contact.address);
            let address = address.filter(|(life, _)| *life == member.incarnation);
            (member, address.map(|(_, address)| address))
        };
        members.filter(|member| *member != self.me).map(with_address).collect()
    }

    fn node(&self, node: NodeId, name: &str, contact: &Contact) -> NodeStatus {
        let seat = self.views.view().and_then(|view| view.seat_of(node));
        let is_me = node == self.me.node;
        let life = contact.life.max(seat.map(|seat| seat.member.incarnation));
        let has_left = life.is_some_and(|incarnation| {
            let member = Member { node, incarnation };
            contact.left == life || self.views.has_left(member)
        });
        let refused = contact.refused.as_ref().filter(|(of, _)| Some(*of) == life);
        let standing = match seat {
            _ if is_me => Standing::Up,
            _ if has_left => Standing::Left,
            _ if contact.up.is_some() => Standing::Up,
            _ if !contact.is_heard => Standing::NeverHeard,
            Some(_) => Standing::Down,
            None => Standing::LeftOut,
        };
        NodeStatus {
            node,
            name: name.to_owned(),
            incarnation: life,
            address: contact.address.map(|(_, address)| address),
            standing,
            seat,
            refused: refused.map(|(_, error)| error.clone()),
        }
    }
}

fn since(later_ms: u64, earlier_ms: u64) -> Duration {
    Duration::from_millis(later_ms.saturating_sub(earlier_ms))
}
