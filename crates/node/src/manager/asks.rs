//! What programs ask of the group goes from their queue to the threads that ask for it, and what
//! the group asks at once is answered. One thread, which waits for no device: a lease, or a size,
//! is not late because something is flushed, or synced.

use crate::group::records::with_record;
use crate::group::{LeaseEvent, Measures};
use crate::manager::leases::facts_of;
use crate::node::Node;
use crate::remote::Wanted;
use forebay_cluster::{LeaseCommand, LeaseDesk, LeaseOrder};
use forebay_directory::{Facts, Sized as Known, Why};
use forebay_membership::FileId as GroupFile;
use forebay_pool::clock::Timer;
use forebay_pool::glimpses::Glimpsed;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::lease::Lease;
use forebay_pool::message::Message;
use forebay_pool::{Owner, futex};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often the thread looks whether it shall end.
const LOOK: Timer = Timer::ms(250);

/// See the module.
pub(crate) struct Asks {
    node: Arc<Node>,
    desk: LeaseDesk,
    measures: Arc<Measures>,
    owner: Owner,
}

impl Asks {
    pub fn new(node: &Arc<Node>, desk: LeaseDesk, measures: Arc<Measures>) -> Asks {
        Asks { node: Arc::clone(node), desk, measures, owner: Node::new_owner() }
    }

    /// Runs until the manager ends.
    pub fn run(self) {
        let queue = self.node.segment.asks();
        while !self.node.stopping() {
            while let Some(message) = queue.pop() {
                self.take(message);
            }
            while let Some((object, token)) = self.measures.take() {
                let measured =
                    with_record(&self.node.segment, self.owner, object.file, |_, record| {
                        ahead_of_store(record)
                    });
                let facts = measured.flatten();
                self.desk.tell(LeaseCommand::Sized { object, token, facts });
            }
            // Programs, the group, and the end ring.
            let wait_ms = self.node.wait_ms(LOOK.as_ms());
            queue.wait(wait_ms, || self.node.stopping() || !self.measures.is_empty());
        }
    }

    /// Whatever it says, it is only a hint.
    fn take(&self, message: Message) {
        let (node, group) = (&self.node, &self.node.group);
        match message {
            Message::Lease { file } if node.header().has_file(file) => {
                group.ask_leases(LeaseEvent::Asked(file));
            }
            Message::Part { file, part, level, ahead } if node.header().has_file(file) => {
                group.ask_leases(LeaseEvent::Part { file, part, level, ahead });
            }
            Message::Fetch { file, generation, block, ticket } => {
                let remote = group.remote.as_ref().filter(|_| node.header().has_file(file));
                let wanted = Wanted::Ticket(ticket);
                let asked =
                    remote.map(|remote| remote.fetch(file, generation, vec![block], wanted));
                if !matches!(asked, Some(Ok(()))) {
                    node.segment.answer_others(ticket);
                }
            }
            Message::Unkept { file, generation, block } if node.header().has_file(file) => {
                if let Some(remote) = &group.remote {
                    remote.unkept(file, generation, block);
                }
            }
            Message::Glimpse { store, inode, generation, number } => {
                let file = GroupFile { store, inode, generation };
                self.desk.tell(LeaseCommand::Glimpse { file, number });
            }
            _ => {}
        }
    }
}

/// What programs of this node see of a file, if the store may not have it yet. What was granted to
/// it, and no program has taken up, others have brought to the store.
fn ahead_of_store(record: &FileRecord) -> Option<Facts> {
    let goal = record.truncated_to();
    let is_ahead = match record.lease.load().held() {
        Lease::Whole | Lease::Lent => record.has(FileFlags::METADATA_DIRTY) || goal.is_some(),
        Lease::Shared => true,
        // What is not committed yet, no other node is to see.
        Lease::Read | Lease::Borrowed | Lease::Nothing | Lease::Direct | Lease::Commit => false,
    };
    let facts = facts_of(record);
    is_ahead.then(|| Facts { size: goal.unwrap_or(facts.size), ..facts })
}

/// Does what waits for nothing on the thread that has brought it about, and returns the rest.
pub(super) fn at_once(
    node: &Arc<Node>,
    measures: &Arc<Measures>,
) -> Box<dyn FnMut(LeaseOrder) -> Option<LeaseOrder> + Send> {
    let (node, measures) = (Arc::clone(node), Arc::clone(measures));
    Box::new(move |order| match order {
        LeaseOrder::Glimpsed { number, known } => {
            node.segment.glimpses().answer(number, glimpsed(known));
            let done = &node.header().work_done;
            done.fetch_add(1, Ordering::AcqRel);
            futex::wake_all(done);
            None
        }
        LeaseOrder::Measure { object, token } => {
            measures.put(object, token);
            node.segment.asks().ring();
            None
        }
        LeaseOrder::Reads { file, by } => {
            if let Some(remote) = &node.group.remote {
                remote.granted(file, by);
            }
            None
        }
        other => Some(other),
    })
}

fn glimpsed(known: Known) -> Glimpsed {
    match known {
        Known::Known(Facts { size, mtime_ns }) => {
            Glimpsed::Known { size, mtime_ns: mtime_ns as u64 }
        }
        Known::AtLeast(Facts { size, .. }) => Glimpsed::AtLeast { size },
        Known::Store => Glimpsed::Stored,
        Known::Refused(why) => Glimpsed::Refused(errno_of(why).unwrap_or(Errno::IO)),
    }
}

/// What programs are told that cannot have something; `None`: that they are to look again.
pub(super) fn errno_of(why: Why) -> Option<Errno> {
    match why {
        Why::Lost(_) => Some(Errno::IO),
        Why::Full => Some(Errno::NOLCK),
        Why::Superseded => Some(Errno::STALE),
        Why::Late => Some(Errno::TIMEDOUT),
        Why::Unshared => None,
    }
}
