//! Why a group cannot be joined, or its folder not be used.

use crate::protocol::Protocol;
use forebay_membership::{Member, NodeId, NotGivenUp, TextError};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What went wrong, where, and what to do where there is something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// The system refused something at this file.
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// A file or folder is not as it has to be: owner, mode, kind or size; or it is gone.
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and the remedy.
        why: String,
    },
    /// What is in a file cannot be understood.
    Text {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TextError,
    },
    /// Another host runs under this node's number.
    Taken {
        /// The number.
        node: NodeId,
        /// This host.
        host: String,
        /// The other one.
        other: String,
        /// The group's folder.
        folder: PathBuf,
    },
    /// The store has not answered in so many milliseconds.
    Silent {
        /// The group's folder.
        folder: PathBuf,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// This node is in no view of the group after so long.
    Unreached {
        /// How long it was waited for.
        waited_ms: u64,
        /// Where this node listens, by UDP and TCP.
        address: String,
        /// Members of the newest view that do not answer.
        silent: Vec<String>,
    },
    /// This node's number is not one of the list of hosts.
    Unlisted {
        /// The number.
        node: NodeId,
        /// How many hosts the list has.
        hosts: usize,
    },
    /// Another node's name has no address.
    Name {
        /// The address of its card.
        address: String,
        /// What the resolver says.
        why: String,
    },
    /// Another node has links of another kind, so there are none to it.
    Transport {
        /// The other host.
        host: String,
        /// What it has.
        theirs: &'static str,
        /// What this node has.
        ours: &'static str,
    },
    /// Another node has a build whose messages are not those of this one: it is of another group.
    Protocol {
        /// The other host.
        host: String,
        /// What it has; `None`: of a build that did not say it.
        theirs: Option<Protocol>,
        /// What this node has.
        ours: Protocol,
    },
    /// Another node has another list of hosts, so it is of another group.
    List {
        /// The other host.
        host: String,
        /// How many hosts its list has.
        theirs: String,
        /// How many this node's has.
        ours: String,
    },
    /// The programs of another node are to see other things of files, so it is of another group.
    Consistency {
        /// The other host.
        host: String,
        /// What it has.
        theirs: String,
        /// What this node has.
        ours: &'static str,
    },
    /// The rules of another node have other files be under commit, so it is of another group.
    Rules {
        /// The other host.
        host: String,
    },
    /// This node was given up, with what its pool has.
    GivenUp {
        /// Which of its lives.
        member: Member,
        /// The view that says so.
        view: u32,
        /// The group's folder.
        folder: PathBuf,
    },
    /// A node cannot be given up.
    NotGivenUp {
        /// The node.
        node: NodeId,
        /// Why.
        why: NotGivenUp,
    },
    /// Processes of a job that was to meet have not come, or more than it has.
    Unmet {
        /// The group's folder.
        folder: PathBuf,
        /// How long they were waited for.
        waited_ms: u64,
        /// How many processes the job has.
        all: u32,
        /// The hosts that came, and how many each has.
        came: BTreeMap<String, u32>,
    },
    /// No socket, thread or descriptor.
    System(String),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::File { path, what, errno } => {
                write!(f, "{}: {what}: {errno}", path.display())?;
                match *errno {
                    Errno::ACCESS | Errno::PERM | Errno::ROFS => f.write_str(
                        ": this user has to be able to write there, on all nodes; name another \
                         folder by folder in [group]",
                    ),
                    _ => Ok(()),
                }
            }
            Self::Refused { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Text { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Taken { node, host, other, folder } => write!(
                f,
                "{}: host {other} runs as node {}, which {host} is to be: give all nodes the same \
                 list of hosts, or this group a folder of its own",
                folder.display(),
                node.0
            ),
            Self::Silent { folder, waited_ms } => {
                write!(f, "{}: the store has not answered in {waited_ms} ms", folder.display())
            }
            Self::Unreached { waited_ms, address, silent } => {
                let seconds = waited_ms / 1000;
                match &silent[..] {
                    [] => write!(f, "the store has shown no view with this node in {seconds} s"),
                    silent => write!(
                        f,
                        "{} {} not answered in {seconds} s: let UDP and TCP pass between all \
                         nodes, here at {address}, or name the address that others reach by bind \
                         in [group]",
                        silent.join(", "),
                        if silent.len() == 1 { "has" } else { "have" }
                    ),
                }
            }
            Self::Unlisted { node, hosts } => {
                write!(f, "node {} is none of the {hosts} hosts of the list", node.0)
            }
            Self::Name { address, why } => write!(f, "{address}: {why}"),
            Self::Transport { host, theirs, ours } => write!(
                f,
                "host {host} has links by {theirs}, this one by {ours}: give all nodes of the \
                 group the same fabric in [group]"
            ),
            Self::Protocol { host, theirs, ours } => {
                match theirs {
                    Some(theirs) => write!(f, "host {host} has {theirs}")?,
                    None => write!(f, "host {host} has an earlier build of Forebay")?,
                }
                write!(
                    f,
                    ", this one {ours}: install the same build of Forebay on all nodes of the group"
                )
            }
            Self::List { host, theirs, ours } => {
                match theirs == ours {
                    true => {
                        write!(f, "host {host} has another list of {ours} hosts than this one")?
                    }
                    false => write!(
                        f,
                        "host {host} has a list of {theirs} hosts, this one a list of {ours}"
                    )?,
                }
                f.write_str(
                    ": give all nodes of the group the same list of hosts, in one order, or each \
                     group a folder of its own",
                )
            }
            Self::Consistency { host, theirs, ours } => write!(
                f,
                "host {host} has consistency = {theirs:?}, this one {ours:?}: give all nodes of \
                 the group the same consistency in [group]"
            ),
            Self::Rules { host } => write!(
                f,
                "host {host} has other rules that set consistency than this one: give all nodes of \
                 the group the same rules that set it, in one order"
            ),
            Self::GivenUp { member, view, folder } => write!(
                f,
                "{}: view {view} gives up node {}, up to its life {}: others may have written the \
                 files of which this node's tiers have bytes that are not on the store. These are \
                 kept, and do not go there: forebay salvage writes them to another directory",
                folder.display(),
                member.node.0,
                member.incarnation.0
            ),
            Self::NotGivenUp { node, why } => {
                let why = match why {
                    NotGivenUp::NotInside => {
                        "this node is not in the group itself now, and cannot decide for it"
                    }
                    NotGivenUp::Member => "it is a member of the group: stop its manager first",
                    NotGivenUp::NothingLost => "nothing is known that it may have lost",
                };
                write!(f, "node {} cannot be given up: {why}", node.0)
            }
            Self::Unmet { folder, waited_ms, all, came } => {
                let came: Vec<_> =
                    came.iter().map(|(host, here)| format!("{host} ({here})")).collect();
                write!(
                    f,
                    "{}: MPI has {all} processes, and after {:.1} s those of these hosts have come \
                     here by forebay run: {}; start all processes by it, on a store that all hosts \
                     see, or give the hosts by --hosts (--hosts localhost: no group)",
                    folder.display(),
                    *waited_ms as f64 / 1e3,
                    came.join(", ")
                )
            }
            Self::System(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for GroupError {}
