//! The thread "group-store": what is done at the group's folder, one after the other.

use super::shared::Shared;
use super::{TRANSPORT, Transport};
use crate::error::GroupError;
use crate::faults::{Before, Operation};
use crate::folder::{Known, Life};
use crate::terms::Terms;
use forebay_membership::{Ask, Card, Found, NodeId};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// So many cards are read, and so long names resolved, before looks have their turn again.
pub const CARDS: usize = 64;
const RESOLVING: Duration = Duration::from_millis(200);

/// What is to be done.
pub enum Task {
    /// What [`forebay_membership::Views`] ask of the store; the number of the moment comes back.
    /// Of a look: whether it is to list the folder.
    Ask(Ask, u64, bool),
    /// The cards of these nodes that say more than is known.
    Find(BTreeMap<NodeId, Known>),
}

/// What has become of it.
pub enum Done {
    Asked(Ask, u64, Result<Found, GroupError>),
    Cards(Vec<FoundCard>, Option<GroupError>),
}

/// A card that was found.
pub struct FoundCard {
    pub card: Card,
    /// Its life has ended by itself.
    pub is_left: bool,
    /// Where its node's packets go, if its name has an address.
    pub address: Option<SocketAddr>,
    /// Why it is not of this node's group.
    pub refused: Option<GroupError>,
}

/// See the module.
pub struct Keeper {
    pub life: Life,
    pub before: Option<Before>,
    pub is_ipv4: bool,
    /// That of this node, which the others should have, too.
    pub transport: Transport,
    pub terms: Terms,
    pub results: Sender<Done>,
    pub shared: Arc<Shared>,
}

impl Keeper {
    /// Until the other end of the queue is gone, or the group stops.
    pub fn run(mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            if self.shared.stops() {
                break;
            }
            let done = match task {
                Task::Ask(ask, asked_ms, lists) => {
                    let found = self.ask(&ask, lists);
                    Done::Asked(ask, asked_ms, found)
                }
                Task::Find(wanted) => {
                    let (cards, error) = self.find(&wanted);
                    Done::Cards(cards, error)
                }
            };
            if self.results.send(done).is_err() {
                break;
            }
            self.shared.wake();
        }
        if self.shared.leaves()
            && let Err(error) = self.before(Operation::Leave).and_then(|()| self.life.leave())
        {
            self.shared.tell(&error);
        }
    }

    /// What the folder answers; nothing is found by what is no look.
    fn ask(&mut self, ask: &Ask, lists: bool) -> Result<Found, GroupError> {
        let none = |()| Found::default();
        match ask {
            Ask::Look => {
                self.before(Operation::Look)?;
                self.life.look(lists)
            }
            Ask::Propose(view) => {
                self.before(Operation::Propose)?;
                self.life.propose(view).map(|_| ()).map(none)
            }
            Ask::Plead(number) => {
                self.before(Operation::Plead)?;
                self.life.plead(*number).map(none)
            }
            // Asked of another node, not of the store.
            Ask::Inquire(..) => Ok(Found::default()),
        }
    }

    fn before(&mut self, operation: Operation) -> Result<(), GroupError> {
        let outcome = self.before.as_mut().map_or(Ok(()), |before| before(operation));
        let path = || self.shared.folder.clone();
        let failed = |errno: Errno| GroupError::File { path: path(), what: "injected", errno };
        outcome.map_err(failed)
    }

    fn find(&mut self, wanted: &BTreeMap<NodeId, Known>) -> (Vec<FoundCard>, Option<GroupError>) {
        if let Err(error) = self.before(Operation::Find) {
            return (Vec::new(), Some(error));
        }
        let (cards, mut wrong) = self.life.find(wanted, self.shared.hosts(), CARDS);
        let mut found = Vec::new();
        let begin = Instant::now();
        for (card, is_left) in cards {
            if begin.elapsed() > RESOLVING {
                break;
            }
            let refused = self.refusal(&card);
            let address = match (!is_left).then(|| self.resolve(&card)) {
                None => None,
                Some(Ok(address)) => Some(address),
                Some(Err(error)) => {
                    wrong = wrong.or(Some(error).filter(|_| refused.is_none()));
                    None
                }
            };
            found.push(FoundCard { card, is_left, address, refused });
        }
        (found, wrong)
    }

    /// Why a card is none of this node's group.
    fn refusal(&self, card: &Card) -> Option<GroupError> {
        // What else a card of another build says may mean something else.
        let by_protocol = self.terms.protocol_differs(card.host(), card.terms());
        if by_protocol.is_some() {
            return by_protocol;
        }
        let (theirs, ours) = (Transport::name_in_card(card.address()), self.transport.name());
        let host = card.host().to_owned();
        let by_links = (theirs != ours).then_some(GroupError::Transport { host, theirs, ours });
        by_links.or_else(|| self.terms.differ(card.host(), card.terms()))
    }

    /// The address of a card, which may have several for several transports.
    fn resolve(&self, card: &Card) -> Result<SocketAddr, GroupError> {
        let address = card.address();
        let failed = |why: String| GroupError::Name { address: address.to_owned(), why };
        let own = address.split(',').find_map(|part| part.strip_prefix(TRANSPORT));
        let own = own.ok_or_else(|| failed(format!("no part begins with {TRANSPORT}")))?;
        let mut all = own.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let fits = |at: &SocketAddr| at.is_ipv4() == self.is_ipv4;
        all.find(fits).ok_or_else(|| failed("has no address of the kind in use here".to_owned()))
    }
}
