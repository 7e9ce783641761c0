//! Client slots, and what is counted in them.

use super::{CACHED_BUCKETS, CACHED_NODES, SHARED_LOCKS};
use crate::sync::{AtomicU32, AtomicU64};

/// What clients count, from the start of their pool. Tests use it to prove that interception was
/// live.
#[repr(C)]
pub struct Counters {
    /// Calls: files opened for buffering.
    pub opens: AtomicU64,
    /// Calls: writes served from the tiers.
    pub writes: AtomicU64,
    /// Bytes: written by them.
    pub write_bytes: AtomicU64,
    /// Calls: reads served at least in part from the tiers.
    pub reads: AtomicU64,
    /// Bytes: read by them.
    pub read_bytes: AtomicU64,
    /// Blocks: written to the store past the tiers, which had no room.
    pub write_around: AtomicU64,
    /// Waits: of a writer, for room in the tiers.
    pub backpressure: AtomicU64,
    /// Waits: of those, for room in what a run may have of a tier.
    pub quota_waits: AtomicU64,
    /// Waits: of those, at a cap on what the store lacks.
    pub cap_waits: AtomicU64,
    /// Files: written through while they were new and small, as the store is as quick.
    pub small_files: AtomicU64,
    /// Calls: passed to the kernel after the file was made clean.
    pub passthrough: AtomicU64,
    /// Bytes: read from the store by programs that waited for them.
    pub missed_bytes: AtomicU64,
    /// Blocks: brought to RAM because a program will probably read them. Counted by the manager.
    pub guessed: AtomicU64,
    /// Blocks: of those, read from RAM after that.
    pub guess_hits: AtomicU64,
    /// Files: opened through MPI-IO, once for each process.
    pub mpi_files: AtomicU64,
    /// Calls: that read or write through MPI-IO.
    pub mpi_calls: AtomicU64,
    /// Bytes: asked for by them.
    pub mpi_bytes: AtomicU64,
    /// Pieces: of views, asked for before MPI-IO reads them.
    pub mpi_ahead: AtomicU64,
    /// Calls: collective ones of MPI-IO that each process made by itself.
    pub mpi_independent: AtomicU64,
    /// Files: opened through MPI-IO with hints that the program had not set.
    pub mpi_hinted: AtomicU64,
    /// Processes: whose MPI library lacks what the adapter asks it for.
    pub mpi_unadapted: AtomicU64,
}

/// One of the [`Counters`].
pub struct Counter<'a> {
    /// Its name, as `forebay status` has it.
    pub name: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// Which of that: a line for people.
    pub help: &'static str,
    /// The count.
    pub value: &'a AtomicU64,
}

impl Counters {
    /// All counters, always in the same order.
    pub fn all(&self) -> [Counter<'_>; 21] {
        let of = |name, unit, help, value| Counter { name, unit, help, value };
        [
            of("opens", "calls", "files opened for buffering", &self.opens),
            of("writes", "calls", "writes served from the tiers", &self.writes),
            of("write_bytes", "bytes", "written by them", &self.write_bytes),
            of("reads", "calls", "reads served at least in part from the tiers", &self.reads),
            of("read_bytes", "bytes", "read by them", &self.read_bytes),
            of(
                "write_around",
                "blocks",
                "written to the store past the tiers, which had no room",
                &self.write_around,
            ),
            of("backpressure", "waits", "of a writer, for room in the tiers", &self.backpressure),
            of(
                "quota_waits",
                "waits",
                "of them, for room in the quota of their run",
                &self.quota_waits,
            ),
            of("cap_waits", "waits", "of them, at a cap on what the store lacks", &self.cap_waits),
            of(
                "small_files",
                "files",
                "written through while new and small, as the store is as quick",
                &self.small_files,
            ),
            of(
                "passthrough",
                "calls",
                "passed to the kernel after the file was made clean",
                &self.passthrough,
            ),
            of(
                "missed_bytes",
                "bytes",
                "read from the store by programs that waited for them",
                &self.missed_bytes,
            ),
            of(
                "guessed",
                "blocks",
                "brought to RAM because a program will probably read them",
                &self.guessed,
            ),
            of("guess_hits", "blocks", "of them, read from RAM after that", &self.guess_hits),
            of("mpi_files", "files", "opened through MPI-IO, by each process", &self.mpi_files),
            of("mpi_calls", "calls", "that read or write through MPI-IO", &self.mpi_calls),
            of("mpi_bytes", "bytes", "asked for by them", &self.mpi_bytes),
            of(
                "mpi_ahead",
                "pieces",
                "of views, asked for before MPI-IO reads them",
                &self.mpi_ahead,
            ),
            of(
                "mpi_independent",
                "calls",
                "collective ones, which each process made by itself",
                &self.mpi_independent,
            ),
            of(
                "mpi_hinted",
                "files",
                "opened with hints that the program had not set",
                &self.mpi_hinted,
            ),
            of(
                "mpi_unadapted",
                "processes",
                "whose MPI library lacks what the adapter asks it for",
                &self.mpi_unadapted,
            ),
        ]
    }
}

/// A client slot's states.
pub mod slot_state {
    /// Free.
    pub const FREE: u32 = 0;
    /// Taken by a parent for the child it is about to fork.
    pub const RESERVED: u32 = 1;
    /// A running process.
    pub const LIVE: u32 = 2;
    /// Being cleared by the thread that saw the process dead.
    pub const REAPING: u32 = 3;
}

/// A process that buffers. Padded so that no two slots share a cache line.
#[repr(C, align(128))]
pub struct ClientSlot {
    /// See [`slot_state`].
    pub state: AtomicU32,
    /// Process id.
    pub pid: AtomicU32,
    /// Start time of the process in clock ticks: with the pid, its identity.
    pub start: AtomicU64,
    /// Raised when the slot is taken and when it becomes free, so that nothing late is taken for
    /// the new process's.
    pub generation: AtomicU32,
    /// Next word of the free map to search.
    pub bucket_hint: AtomicU32,
    /// Free buckets kept for this process, plus one; 0 is an empty place.
    pub buckets: [AtomicU32; CACHED_BUCKETS],
    /// Index nodes kept for this process, plus one.
    pub nodes: [AtomicU32; CACHED_NODES],
    /// Of a reserved slot: the child it is for, as soon as the parent knows, see
    /// [`ClientSlot::child`].
    pub child: AtomicU32,
    /// The bucket that was used last, plus one: uses that follow each other count as one until the
    /// node manager forgets it, once in a second.
    pub last_bucket: AtomicU32,
    /// What this process did.
    pub counters: Counters,
    /// For each thread inside a buffered file: the thread and the scope, see [`super::SharedLock`].
    pub shared_locks: [AtomicU64; SHARED_LOCKS],
    /// Number of the job that the process belongs to; 0 is none. Inherited by forked children.
    pub job: AtomicU32,
    /// Milliseconds, never 0: since when it has been in one and the same place without doing
    /// anything, as the node manager sees it. 0: it goes on.
    pub standing: AtomicU32,
    /// The numbers of files that the process uses without a record, a bit each, see
    /// `unrecorded.rs`. Inherited by forked children.
    pub unrecorded: AtomicU64,
    /// Opens that are under way, from before the kernel's until the file's description is live, see
    /// [`crate::clients::Clients::openers`].
    pub opening: AtomicU32,
    /// 1 from before a child that is about to be forked gets what its parent holds, until it holds
    /// all that it was forked with, see [`crate::descriptions::Descriptions::free`].
    pub joining: AtomicU32,
    /// What the process has told the program that it is about to execute, 0 if nothing: the program
    /// that says the same is the one, and no other process.
    pub told: AtomicU64,
    /// The job of MPI of which the process is a rank and has the adapter, as a sum over what names
    /// it; 0 is none. Not inherited.
    pub mpi_job: AtomicU64,
}

pin_size!(Counters, 168);
pin_size!(ClientSlot, 1024);
