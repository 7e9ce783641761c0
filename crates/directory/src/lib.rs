//! Which node may keep, read and write which file: leases, without I/O, clock or threads. The node
//! manager drives a [`Directory`] with its links and its table of files, the simulator with a
//! virtual clock.
//!
//! Each file has one home, a member of the view that `membership` computes. It hands out leases:
//! many nodes may read a file, or one may write it, or all use the store's file. Who has a lease
//! sends no message for what it does under it. The home's table is in memory only: after a change
//! of the view the new home asks all members what they hold before it grants anything.
//!
//! Nodes that write different parts of one file share it: each has the whole as
//! [`Level::Shared`], and leases of those [parts](PART_BYTES), and of the size, that it uses.
//!
//! ```
//! use forebay_directory::{Directory, Effect, Level, Object, Terms, Tuning};
//! use forebay_membership::{FileId, Member, Seat, View};
//!
//! let me = Member::new(0, 1);
//! let mut directory = Directory::new(me, me.incarnation, Tuning::default());
//! let seats = vec![Seat { member: me, since: 1 }];
//! let view = View { number: 1, seats, ..View::default() };
//! directory.view(&view, 0);
//! let file = FileId { store: 0, inode: 7, generation: 0 };
//! let object = Object::whole(file);
//! directory.want(object, Level::Write, Terms::default(), 0);
//! // A node alone has everything at once, without a message.
//! let granted = Effect::Granted { object, level: Level::Write, facts: None };
//! assert_eq!(directory.effects(), [granted]);
//! ```
//!
//! docs/design/nodes.md, section "Leases", has the rules, the alternatives and the arithmetic; it
//! follows the invariants 1 to 8 of the design brief for several nodes.

#![forbid(unsafe_code)]

mod changes;
mod directory;
mod holder;
mod home;
mod level;
mod message;
mod object;
mod partitions;
mod roll;

pub use directory::{Directory, Effect, Group, LOST_NAMED, Status};
pub use level::{Facts, Level, Sized, Tuning, Why};
pub use message::{Body, Claim, DecodeError, KINDS, MESSAGE_MAX, MESSAGE_VERSION, Message, Step};
pub use object::{AHEAD_MAX, Ahead, Object, Of, PART_BYTES, Run, Terms};
pub use partitions::Partitions;
