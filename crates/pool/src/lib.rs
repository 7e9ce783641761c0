//! Everything in shared memory: segment, bucket pool, block index, file table, open-file
//! descriptions. The only place with lock-free code.
//!
//! The layout and its reasons are in docs/design/main-job.md. All types are used by many processes
//! at once; whatever a killed process can leave behind carries its owner's stamp, see [`owner`].
//!
//! Public modules begin with an example, but for [`crash`] and [`power_loss`], which are about a
//! process that dies on the way: `tests/killed.rs` and the tests of `cli` show them.

pub mod backoff;
mod block_guard;
mod blocks;
pub mod buckets;
pub mod calls;
pub mod caps;
pub mod check;
pub mod checksum;
pub mod checksums;
pub mod clients;
pub mod clock;
pub mod crash;
pub mod datasets;
pub mod descriptions;
#[cfg(test)]
mod descriptions_tests;
pub mod dirty_pages;
pub mod encoded;
pub mod entry;
#[cfg(debug_assertions)]
pub(crate) mod environment;
pub mod fence;
mod file_guards;
pub mod files;
pub mod flags;
pub mod free_map;
pub mod futex;
pub mod glimpses;
pub mod guards;
mod ids;
pub mod index;
#[cfg(test)]
mod index_tests;
pub mod interruption;
mod jobs;
pub mod layout;
pub mod lease;
pub mod liveness;
mod lock_scope;
mod locks;
pub mod mark;
pub mod message;
pub mod moves;
mod needed;
pub mod opens;
pub mod orders;
mod others;
pub mod owner;
pub mod page_set;
pub mod parts;
#[cfg(test)]
mod parts_tests;
pub mod pending;
pub mod pins;
#[cfg(test)]
mod plain;
pub mod power_loss;
pub mod private;
pub mod program;
pub mod queue;
pub mod quota;
mod raise;
mod ranks;
mod rules;
pub mod segment;
pub mod seq_lock;
pub mod shared_device;
pub mod slot_bits;
pub mod slot_head;
pub mod slot_record;
pub mod spans;
pub mod sparse;
pub mod stay;
mod sync;
mod tail;
pub mod truncate;
mod unrecorded;
pub mod watches;

pub use descriptions::Marker;
pub use entry::Entry;
pub use files::{FoundFile, Identity, SyncState};
pub use forebay_placement::{NodeId, TierId};
pub use ids::{AtomicFileId, BucketId, FileId};
pub use others::OthersTicket;
pub use owner::Owner;
pub use page_set::PageSet;
pub use queue::Queue;
pub use segment::{Segment, SegmentError};
pub use slot_head::SlotHead;
pub use slot_record::SlotRecord;
