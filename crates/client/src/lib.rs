//! What runs inside the application: the session with the node manager's segment, the open
//! files, and reading, writing, truncating and syncing them.
//!
//! Nothing here starts a thread, installs a signal handler or aborts, and nothing prints but the
//! reason why a program does not start; all system calls are raw ones (rustix), so that an
//! interposing library cannot intercept itself. The paths that copy data allocate nothing, but for
//! copies between descriptors, which need memory of their own.

mod access;
mod access_stats;
mod adapters;
mod asking;
mod attach;
mod attachment;
mod attributes;
mod changed;
mod committing;
mod copy;
mod datasets;
mod descriptors;
mod dir_cache;
mod encoded;
mod fd;
mod file_mappings;
mod following;
mod fork;
mod glimpsing;
mod kernels;
mod later;
mod leasing;
mod lending;
mod limits;
mod manager;
mod manager_watch;
pub mod mappings;
mod open;
mod open_file;
mod opening;
mod outside;
mod part;
mod parting;
mod pinning;
mod placement;
mod predictors;
mod process;
mod range;
mod read;
mod readahead;
mod readers;
mod recording;
mod relative;
mod rename;
mod rules;
mod safety;
mod scm_rights;
pub mod services;
mod session;
mod sharing;
mod small;
mod span;
mod spawn;
mod store;
mod sync;
mod threads;
mod user_buffers;
pub mod user_memory;
mod vfork;
mod waiting;
mod watching;
mod write;
mod write_back;

pub use adapters::Counted;
pub use asking::Answered;
pub use attach::{Itself, StartError, carries_marker, say};
pub use attributes::{NewTime, StatFields, Whence};
pub use copy::CopySide;
pub use fd::make_room_for_own_descriptors;
pub use forebay_pool::Identity;
pub use forebay_pool::clock::{joined_ns, monotonic_ns as now_ns, parted_ns, realtime_coarse_ns};
pub use forebay_pool::datasets::Noted;
pub use forebay_pool::interruption;
pub use forebay_pool::layout::LAYOUT_VERSION;
pub use forebay_pool::program;
pub use fork::{Fork, Number};
pub use manager::manager_stays;
pub use open::{OpenFlags, inode_and_mount};
pub use open_file::OpenFile;
pub use opening::PathAt;
pub use pinning::{PinRefused, Pinned};
pub use placement::{device_of, hierarchy, hotness_of, network_of, policy_of, question};
pub use range::{Advice, AllocateMode};
pub use safety::{Awaited, Extent, Flush, Level, Progress, Unsafe};
pub use session::{Front, Session};
pub use span::{Readable, Writable};
pub use spawn::{
    Carried, DeepBind, Environment, Managed, MpiIo, Needs, Own, Start, Told, Variables, is_runtime,
    needs_of_command, take_adapters,
};
pub use threads::watch_threads;
pub use user_buffers::{Iovec, UserBuffers};
pub use vfork::Beside;
