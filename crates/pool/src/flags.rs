//! Sets of flags in shared memory: of a file record, and of an open-file description.
//!
//! ```
//! use forebay_pool::flags::FileFlags;
//!
//! let flags = FileFlags::DIRECT | FileFlags::LOGGED;
//! assert!(flags.contains(FileFlags::DIRECT));
//! assert!(flags.intersects(FileFlags::LOGGED | FileFlags::UNLINKED));
//! assert!(!flags.contains(FileFlags::LOGGED | FileFlags::UNLINKED));
//! assert_eq!(FileFlags::LOGGED.when(false), FileFlags::NONE);
//! ```

use crate::sync::{AtomicU32, Ordering};
use core::marker::PhantomData;
use core::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A set of flags that one word holds.
pub trait Flags: Copy {
    /// The set that a word holds.
    fn from_bits(bits: u32) -> Self;
    /// The word.
    fn bits(self) -> u32;
}

/// A set of flags that many threads change.
#[repr(transparent)]
pub struct AtomicFlags<F> {
    word: AtomicU32,
    flags: PhantomData<F>,
}

impl<F: Flags> AtomicFlags<F> {
    /// A word in which `flags` are set.
    pub fn new(flags: F) -> AtomicFlags<F> {
        AtomicFlags { word: AtomicU32::new(flags.bits()), flags: PhantomData }
    }

    /// The flags that are set.
    #[inline]
    pub fn load(&self, order: Ordering) -> F {
        F::from_bits(self.word.load(order))
    }

    /// Sets these flags, and clears all others.
    #[inline]
    pub fn store(&self, flags: F, order: Ordering) {
        self.word.store(flags.bits(), order);
    }

    /// Sets flags; returns those that were set before.
    #[inline]
    pub fn set(&self, flags: F, order: Ordering) -> F {
        F::from_bits(self.word.fetch_or(flags.bits(), order))
    }

    /// Clears flags; returns those that were set before.
    #[inline]
    pub fn clear(&self, flags: F, order: Ordering) -> F {
        F::from_bits(self.word.fetch_and(!flags.bits(), order))
    }
}

macro_rules! flag_set {
    ($name:ident) => {
        impl $name {
            /// No flag.
            pub const NONE: $name = $name(0);

            /// Whether all of `flags` are in the set.
            #[inline]
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// Whether any of `flags` is in the set.
            #[inline]
            pub const fn intersects(self, flags: $name) -> bool {
                self.0 & flags.0 != 0
            }

            /// The set if `condition` holds, else none.
            #[inline]
            pub const fn when(self, condition: bool) -> $name {
                if condition { self } else { $name::NONE }
            }
        }

        impl Flags for $name {
            #[inline]
            fn from_bits(bits: u32) -> $name {
                $name(bits)
            }

            #[inline]
            fn bits(self) -> u32 {
                self.0
            }
        }

        impl BitOr for $name {
            type Output = $name;

            #[inline]
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            #[inline]
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = $name;

            #[inline]
            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }

        impl Not for $name {
            type Output = $name;

            #[inline]
            fn not(self) -> $name {
                $name(!self.0)
            }
        }
    };
}

/// Flags of a file record.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileFlags(u32);

impl FileFlags {
    /// Read and written through the kernel by all processes, until its last description is gone,
    /// or, if it is `MAPPED` besides, its last mapping, or it is small and new no more.
    pub const DIRECT: FileFlags = FileFlags(1);
    /// `size` and `mtime_ns` are the truth; the store lags behind.
    pub const METADATA_DIRTY: FileFlags = FileFlags(2);
    /// Some block may be dirty. Set by writers, cleared by the flusher before it looks.
    pub const DIRTY: FileFlags = FileFlags(4);
    /// The node manager was sent a descriptor, or, where `TO_FIND` is or was set, told to find it.
    pub const REGISTERED: FileFlags = FileFlags(8);
    /// The next sync shall also make the store durable.
    pub const DURABLE: FileFlags = FileFlags(16);
    /// A flush of this file failed and has not succeeded since.
    pub const FAILING: FileFlags = FileFlags(32);
    /// Its last name was removed: what no process has open any more is dropped.
    pub const UNLINKED: FileFlags = FileFlags(64);
    /// The next sync shall also see to it that the manager has no descriptor of it, nor one on
    /// its way.
    pub const RELEASE: FileFlags = FileFlags(128);
    /// Its times were looked at since the last write: the next write must show in them.
    pub const LOOKED_AT: FileFlags = FileFlags(256);
    /// Has a set-user-id or set-group-id bit that a write has to clear.
    pub const SET_ID: FileFlags = FileFlags(512);
    /// Some process may have a fcntl lock on it, which ends when that process closes any descriptor
    /// of the file.
    pub const FCNTL_LOCKED: FileFlags = FileFlags(1024);
    /// The node manager has yet to find out where the file lies: it was told of it by the queue of
    /// registrations, which carries no descriptor. Set after `REGISTERED`; the thread that clears
    /// it has to see to it that the manager knows.
    pub const TO_FIND: FileFlags = FileFlags(1 << 14);
    /// Its path was noted by a process that has the same root directory and the same mount of the
    /// store as the node manager, which so finds it there.
    pub const FINDABLE: FileFlags = FileFlags(1 << 15);
    /// The store's file was changed by our own processes since it was last known to agree, so that
    /// changes of others cannot be told from ours.
    pub const STORE_WRITTEN: FileFlags = FileFlags(1 << 16);
    /// Looked at since it last agreed with the store: no other program had changed it.
    pub const CONFLICT_CHECKED: FileFlags = FileFlags(1 << 17);
    /// Others changed it on the store while Forebay had data for it, see
    /// [`crate::layout::Header::conflicts`].
    pub const CONFLICT: FileFlags = FileFlags(1 << 18);
    /// Not persistent: never flushed but for want of room, deleted at the end of its job.
    pub const SCRATCH: FileFlags = FileFlags(2048);
    /// Read to its end since it was last written; noted only where a lifetime asks for it.
    pub const READ_OUT: FileFlags = FileFlags(4096);
    /// Can be executed, as far as known: what is written to it is on the store when it is closed.
    pub const EXECUTABLE: FileFlags = FileFlags(8192);
    /// A program watches it, or its directory: what is written is brought to the store at once, by
    /// the process that writes if it can.
    pub const WATCHED: FileFlags = FileFlags(1 << 19);
    /// Nothing of the store's file was changed since it was last made durable. Cleared after each
    /// change, and before pages that a flush wrote count as clean.
    pub const SYNCED: FileFlags = FileFlags(1 << 20);
    /// The journal has records of it that a recovery would apply. Set and cleared by the node
    /// manager; before a truncate or a punch changes the store, the journal is told
    /// (`TO_RECORD_TRUNCATE`).
    pub const LOGGED: FileFlags = FileFlags(1 << 21);
    /// Slots have bytes of it that a recovery would apply. Set before the first such record is
    /// written, cleared by the node manager before it looks for what is dirty.
    pub const SLOTTED: FileFlags = FileFlags(1 << 22);
    /// The next sync shall bring it to the journal, where the store need not have it.
    pub const TO_LOG: FileFlags = FileFlags(1 << 23);
    /// The next sync shall bring it to the store.
    pub const TO_FLUSH: FileFlags = FileFlags(1 << 24);
    /// It is clean: what journal and slots have of it shall count no more.
    pub const TO_CHECKPOINT: FileFlags = FileFlags(1 << 25);
    /// A thread that truncates or punches waits until the journal has it, and this is cleared.
    pub const TO_RECORD_TRUNCATE: FileFlags = FileFlags(1 << 26);
    /// The node manager has a descriptor of it, with which it could be written.
    pub const HELD: FileFlags = FileFlags(1 << 27);
    /// Its owner, whose processes these are, may write to it by its mode: the node manager is sent
    /// which file it is, and opens it for each flush. Set when a record begins; cleared for good
    /// before a program takes the permission away, and a descriptor is sent then.
    pub const OWNER_WRITES: FileFlags = FileFlags(1 << 28);
    /// `DIRECT` only for a time: because processes have it mapped, or because it is new and small,
    /// on a store that takes such files as quickly as a tier ([`crate::layout::FileRecord::small`]
    /// tells which). A process that needs it direct for another reason clears this. Set while the
    /// file is held exclusively.
    pub const MAPPED: FileFlags = FileFlags(1 << 29);
    /// A hint: no mapping of it is left, or it has been new for long enough, and a process that
    /// uses it may buffer it again. Counts only beside `MAPPED`, and is looked into before it is
    /// believed.
    pub const UNMAPPED: FileFlags = FileFlags(1 << 30);
    /// Calls look at its lease: several nodes write it (it is [`crate::lease::Lease::Shared`] or
    /// [`crate::lease::Lease::Commit`]), or what this node has beside others may be out of date.
    /// The store's file is others' as well, and its size is what is known of it at least. Of a file
    /// that this node lends ([`crate::lease::Lease::Lent`]) only the first is true. Cleared while
    /// the file is held exclusively.
    pub const SHARED: FileFlags = FileFlags(1 << 31);
}

flag_set!(FileFlags);

/// Flags of an open-file description.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptionFlags(u32);

impl DescriptionFlags {
    /// Opened for reading.
    pub const READ: DescriptionFlags = DescriptionFlags(1);
    /// Opened for writing.
    pub const WRITE: DescriptionFlags = DescriptionFlags(2);
    /// O_APPEND.
    pub const APPEND: DescriptionFlags = DescriptionFlags(4);
    /// O_DIRECT was asked for and is not needed.
    pub const UNCACHED: DescriptionFlags = DescriptionFlags(8);
    /// The kernel's offset is the truth: the descriptor is used by a program without Forebay.
    pub const KERNEL_OFFSET: DescriptionFlags = DescriptionFlags(16);
    /// Not a descriptor but a memory mapping.
    pub const MAPPING: DescriptionFlags = DescriptionFlags(32);
    /// O_SYNC or O_DSYNC: each write is made durable before it returns.
    pub const SYNC: DescriptionFlags = DescriptionFlags(64);
    /// May carry a lock of its own, which must end with its last descriptor.
    pub const LOCKED: DescriptionFlags = DescriptionFlags(128);
    /// POSIX_FADV_RANDOM: nothing is brought to RAM but what is asked for.
    pub const RANDOM: DescriptionFlags = DescriptionFlags(256);
    /// POSIX_FADV_SEQUENTIAL: what follows is brought to RAM ahead of the reader.
    pub const SEQUENTIAL: DescriptionFlags = DescriptionFlags(512);
    /// O_NOFOLLOW was asked for: the kernel may have it without.
    pub const NO_FOLLOW: DescriptionFlags = DescriptionFlags(1 << 16);
    /// The node manager has it, too, or will get it: the one that gives it up last ends its locks.
    pub const SHARED: DescriptionFlags = DescriptionFlags(1 << 17);
    /// Its run records the calls of its processes, see [`crate::calls`].
    pub const RECORDED: DescriptionFlags = DescriptionFlags(1 << 18);
    /// Not a descriptor but a pin, see [`crate::pins`].
    pub const PIN: DescriptionFlags = DescriptionFlags(1 << 19);
    /// Its file is direct, and the kernel is about to have its offset: who finds this without
    /// [`DescriptionFlags::KERNEL_OFFSET`], under the lock of the offset, sees to it.
    pub const RELEASING: DescriptionFlags = DescriptionFlags(1 << 20);
}

flag_set!(DescriptionFlags);
