//! What this node may do with a file that other nodes of its group may have too.
//!
//! One word of the file's record says it. A process that needs more asks in the same word; the node
//! manager grants it there, and a process that has the file exclusively takes the grant up: it
//! looks at the store's file first, which others may have changed. Only with the file exclusive,
//! and nothing of it buffered beyond what is left, is a lease given back. docs/design/nodes.md has
//! the protocol between nodes.
//!
//! A record without a group is all zero here: everything is allowed.
//!
//! ```
//! use forebay_pool::lease::{Access, AtomicLease, Grant, Lease};
//!
//! let lease = AtomicLease::default();
//! assert!(lease.load().allows(Access::Write));
//! lease.reduce(Lease::Nothing);
//! assert!(!lease.load().allows(Access::Read));
//! lease.ask(Access::Read);
//! assert_eq!(lease.load().asked(), Some(Access::Read));
//! lease.grant(Grant::Read);
//! assert!(!lease.load().allows(Access::Read), "it is not taken up yet");
//! lease.take_up();
//! assert!(lease.load().allows(Access::Read) && !lease.load().allows(Access::Write));
//! ```

use crate::sync::{AtomicU32, Ordering};
use rustix::io::Errno;

/// What a call does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It looks at bytes or size.
    Read,
    /// It may change them.
    Write,
    /// It changes the file in a way that no lease of a part covers: it makes it shorter, punches
    /// it, or has the kernel use it.
    Alone,
}

/// What this node has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// All of it: no other node has anything, or there is none.
    Whole,
    /// Its bytes do not change: they may be read and kept.
    Read,
    /// Nothing: no byte of it is buffered.
    Nothing,
    /// Several nodes use it through the kernel: no byte of it is buffered on any.
    Direct,
    /// Several nodes read and write it: each may do with a part of it, and with its size, what
    /// [`crate::parts`] says.
    Shared,
    /// Several nodes read and write it, and each keeps what it likes: what others have written it
    /// sees once they have synced it and it has opened or synced the file after that. Only bytes
    /// that this node has written are dirty.
    Commit,
    /// It has what was written here, which the store may not have yet: it may be read, kept and
    /// flushed, and is given to the nodes that have borrowed the file.
    Lent,
    /// Its bytes do not change, and the store may be behind: what lies in the tiers here may be
    /// read, and what does not comes from the node that lends the file.
    Borrowed,
}

/// What the group has granted, and no process has taken up yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// [`Lease::Read`].
    Read,
    /// [`Lease::Whole`].
    Whole,
    /// [`Lease::Direct`].
    Direct,
    /// [`Lease::Shared`].
    Shared,
    /// [`Lease::Commit`].
    Commit,
}

impl Lease {
    /// Whether other nodes may write the file at the same time, and this one keeps something of it:
    /// calls look at the lease, and the store's file is never cut or given times by a flush.
    pub const fn is_beside_writers(self) -> bool {
        matches!(self, Lease::Shared | Lease::Commit)
    }
}

impl Grant {
    /// What it makes of the lease once it is taken up.
    pub const fn lease(self) -> Lease {
        match self {
            Self::Read => Lease::Read,
            Self::Whole => Lease::Whole,
            Self::Direct => Lease::Direct,
            Self::Shared => Lease::Shared,
            Self::Commit => Lease::Commit,
        }
    }
}

/// The fields of the word, from the lowest bit on.
const HELD: Field = Field { at: 0, bits: 3 };
const ASKED: Field = Field { at: 3, bits: 2 };
const GRANTED: Field = Field { at: 5, bits: 3 };
const ERRNO: Field = Field { at: 8, bits: 12 };
const REFUSALS: Field = Field { at: 20, bits: 11 };
const UNSURE: Field = Field { at: 31, bits: 1 };

/// Some bits of a word.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    const fn mask(self) -> u32 {
        (1 << self.bits) - 1
    }

    const fn of(self, word: u32) -> u32 {
        word >> self.at & self.mask()
    }

    const fn set(self, word: u32, value: u32) -> u32 {
        word & !(self.mask() << self.at) | (value & self.mask()) << self.at
    }
}

/// The word of a file's lease at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWord(u32);

impl LeaseWord {
    /// What this node has.
    pub const fn held(self) -> Lease {
        match HELD.of(self.0) {
            0 => Lease::Whole,
            1 => Lease::Read,
            2 => Lease::Nothing,
            3 => Lease::Direct,
            5 => Lease::Commit,
            6 => Lease::Lent,
            7 => Lease::Borrowed,
            _ => Lease::Shared,
        }
    }

    /// Whether that is enough, of the file as a whole.
    #[inline]
    pub const fn allows(self, access: Access) -> bool {
        match self.held() {
            Lease::Whole => true,
            Lease::Direct => !self.is_unsure(),
            Lease::Lent => matches!(access, Access::Read),
            Lease::Read => matches!(access, Access::Read) && !self.is_unsure(),
            Lease::Nothing | Lease::Shared | Lease::Commit | Lease::Borrowed => false,
        }
    }

    /// Whether this node has the file as [`Lease::Commit`], and may use it so.
    pub const fn commits(self) -> bool {
        matches!(self.held(), Lease::Commit) && !self.is_unsure()
    }

    /// Whether what this node has beside others may be out of date, see [`AtomicLease::doubt`].
    pub const fn is_unsure(self) -> bool {
        UNSURE.of(self.0) != 0
    }

    /// What processes wait for.
    pub const fn asked(self) -> Option<Access> {
        match ASKED.of(self.0) {
            0 => None,
            1 => Some(Access::Read),
            2 => Some(Access::Write),
            _ => Some(Access::Alone),
        }
    }

    /// What was granted and waits for a process that takes it up.
    pub const fn granted(self) -> Option<Grant> {
        match GRANTED.of(self.0) {
            0 => None,
            1 => Some(Grant::Read),
            2 => Some(Grant::Whole),
            3 => Some(Grant::Direct),
            5 => Some(Grant::Commit),
            _ => Some(Grant::Shared),
        }
    }

    /// Which refusal was the last: differs from an earlier value if there was one since.
    pub const fn refusals(self) -> u32 {
        REFUSALS.of(self.0)
    }

    /// Why the last one was refused.
    pub fn refused(self) -> Errno {
        match ERRNO.of(self.0) {
            0 => Errno::IO,
            errno => Errno::from_raw_os_error(errno as i32),
        }
    }
}

/// A file's lease, in its record.
#[repr(transparent)]
pub struct AtomicLease(AtomicU32);

impl Default for AtomicLease {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl AtomicLease {
    /// What it is now.
    #[inline]
    pub fn load(&self) -> LeaseWord {
        LeaseWord(self.0.load(Ordering::Acquire))
    }

    fn change(&self, change: impl Fn(u32) -> u32) -> LeaseWord {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let wanted = change(seen);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self.0.compare_exchange_weak(seen, wanted, order.0, order.1) {
                Ok(_) => return LeaseWord(wanted),
                Err(now) => seen = now,
            }
        }
    }

    /// A record begins, or becomes another file's: with `lease`, and nothing else.
    pub fn begin(&self, lease: Lease) {
        self.0.store(HELD.set(0, held_bits(lease)), Ordering::Release);
    }

    /// A process needs `access`, and waits for it. Returns whether none has asked for as much yet,
    /// so that the node manager is to be told.
    pub fn ask(&self, access: Access) -> bool {
        let bits = asked_bits(access);
        let before = LeaseWord(self.0.load(Ordering::Relaxed)).asked();
        self.change(|word| ASKED.set(word, ASKED.of(word).max(bits)));
        before < Some(access)
    }

    /// The node manager has not looked for too long which nodes the group has: what this node has
    /// beside others may be out of date. Until it is [sure](AtomicLease::trust) no call may use it.
    /// What this node alone has, no other is given.
    pub fn doubt(&self) {
        self.change(|word| {
            let lease = LeaseWord(word);
            let is_beside =
                |lease: Lease| !matches!(lease, Lease::Whole | Lease::Lent | Lease::Nothing);
            let granted = lease.granted().map(Grant::lease);
            match is_beside(lease.held()) || granted.is_some_and(is_beside) {
                true => UNSURE.set(word, 1),
                false => word,
            }
        });
    }

    /// What this node has is its own still.
    pub fn trust(&self) {
        self.change(|word| UNSURE.set(word, 0));
    }

    /// The group has granted this. What is asked for beyond it still is.
    pub fn grant(&self, grant: Grant) {
        let (granted, enough) = match grant {
            Grant::Read => (1, asked_bits(Access::Read)),
            Grant::Whole => (2, asked_bits(Access::Alone)),
            Grant::Direct => (3, asked_bits(Access::Alone)),
            Grant::Shared => (4, asked_bits(Access::Write)),
            Grant::Commit => (5, asked_bits(Access::Alone)),
        };
        self.change(|word| {
            let left = if ASKED.of(word) <= enough { 0 } else { ASKED.of(word) };
            UNSURE.set(GRANTED.set(ASKED.set(word, left), granted), 0)
        });
    }

    /// What processes wait for cannot be had.
    pub fn refuse(&self, why: Errno) {
        self.change(|word| {
            let count = REFUSALS.of(word).wrapping_add(1);
            let word = ERRNO.set(ASKED.set(word, 0), why.raw_os_error() as u32);
            REFUSALS.set(word, count)
        });
    }

    /// What was granted is this node's from now on. The caller has the file exclusively, and the
    /// record says what the store's file is.
    pub fn take_up(&self) {
        self.change(|word| match LeaseWord(word).granted() {
            Some(grant) => GRANTED.set(HELD.set(word, held_bits(grant.lease())), 0),
            None => word,
        });
    }

    /// This node has `left` from now on, and a grant that was not taken up is gone. The caller has
    /// the file exclusively, and nothing of it is buffered that `left` does not allow.
    pub fn reduce(&self, left: Lease) {
        self.change(|word| {
            let word = GRANTED.set(HELD.set(word, held_bits(left)), 0);
            if left == Lease::Nothing { UNSURE.set(word, 0) } else { word }
        });
    }

    /// The group has let this node borrow the file, of which it had nothing. What is asked for
    /// beyond reading still is. The caller has the file exclusively, and the record says what the
    /// node that lends it has.
    pub fn borrow(&self) {
        self.change(|word| {
            let left = if ASKED.of(word) <= asked_bits(Access::Read) { 0 } else { ASKED.of(word) };
            let word = GRANTED.set(HELD.set(word, held_bits(Lease::Borrowed)), 0);
            UNSURE.set(ASKED.set(word, left), 0)
        });
    }
}

const fn held_bits(lease: Lease) -> u32 {
    match lease {
        Lease::Whole => 0,
        Lease::Read => 1,
        Lease::Nothing => 2,
        Lease::Direct => 3,
        Lease::Shared => 4,
        Lease::Commit => 5,
        Lease::Lent => 6,
        Lease::Borrowed => 7,
    }
}

const fn asked_bits(access: Access) -> u32 {
    match access {
        Access::Read => 1,
        Access::Write => 2,
        Access::Alone => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_beyond_a_grant_still_is() {
        let lease = AtomicLease::default();
        lease.begin(Lease::Nothing);
        assert!(lease.ask(Access::Read));
        assert!(!lease.ask(Access::Read), "the manager knows");
        assert!(lease.ask(Access::Write), "this is more");
        assert!(!lease.ask(Access::Read));
        lease.grant(Grant::Read);
        assert_eq!(lease.load().asked(), Some(Access::Write));
        lease.take_up();
        assert_eq!(lease.load().held(), Lease::Read);
        lease.grant(Grant::Whole);
        assert_eq!(lease.load().asked(), None);
        assert_eq!(lease.load().held(), Lease::Read, "until it is taken up");
        lease.take_up();
        assert_eq!(lease.load().held(), Lease::Whole);
        assert_eq!(lease.load().granted(), None);
    }

    #[test]
    fn a_refusal_is_seen_with_its_reason_and_changes_nothing_else() {
        let lease = AtomicLease::default();
        lease.begin(Lease::Read);
        let before = lease.load().refusals();
        lease.ask(Access::Write);
        lease.refuse(Errno::IO);
        let word = lease.load();
        assert_ne!(word.refusals(), before);
        assert_eq!((word.refused(), word.asked(), word.held()), (Errno::IO, None, Lease::Read));
        // The count wraps, and nothing else moves.
        for _ in 0..1 << 11 {
            lease.refuse(Errno::TIMEDOUT);
        }
        assert_eq!(lease.load().refusals(), word.refusals());
        assert_eq!(lease.load().held(), Lease::Read);
    }

    #[test]
    fn a_shared_file_is_enough_for_all_but_what_needs_it_alone() {
        let lease = AtomicLease::default();
        lease.begin(Lease::Nothing);
        lease.ask(Access::Write);
        lease.grant(Grant::Shared);
        lease.take_up();
        let word = lease.load();
        assert_eq!((word.held(), word.asked()), (Lease::Shared, None));
        assert!(!word.allows(Access::Read), "parts are looked at");
        assert!(lease.ask(Access::Alone));
        assert!(!lease.ask(Access::Write), "that is less");
        lease.grant(Grant::Shared);
        assert_eq!(lease.load().asked(), Some(Access::Alone), "it still is");
        lease.grant(Grant::Whole);
        lease.take_up();
        assert_eq!((lease.load().held(), lease.load().asked()), (Lease::Whole, None));
    }

    #[test]
    fn a_file_under_commit_is_enough_for_all_and_calls_look() {
        let lease = AtomicLease::default();
        lease.begin(Lease::Nothing);
        assert!(lease.ask(Access::Alone));
        lease.grant(Grant::Commit);
        assert_eq!(lease.load().asked(), None);
        assert!(!lease.load().commits(), "until it is taken up");
        lease.take_up();
        assert!(lease.load().commits() && lease.load().held().is_beside_writers());
        assert!(!lease.load().allows(Access::Read), "the usual read does not do");
        lease.doubt();
        assert!(!lease.load().commits());
        lease.trust();
        assert!(lease.load().commits());
    }

    #[test]
    fn what_is_held_beside_others_waits_until_it_is_sure() {
        for (held, access) in [(Grant::Read, Access::Read), (Grant::Direct, Access::Write)] {
            let lease = AtomicLease::default();
            lease.doubt();
            assert!(lease.load().allows(Access::Write), "no other is given what it alone has");
            lease.begin(Lease::Nothing);
            lease.grant(held);
            lease.doubt();
            lease.take_up();
            assert!(!lease.load().allows(access), "it was granted before the doubt");
            lease.trust();
            assert!(lease.load().allows(access));
            lease.doubt();
            lease.reduce(Lease::Nothing);
            lease.grant(held);
            lease.take_up();
            assert!(lease.load().allows(access), "what was given back was granted anew");
        }
    }

    #[test]
    fn what_is_lent_is_read_and_what_is_borrowed_is_looked_at() {
        let lease = AtomicLease::default();
        lease.reduce(Lease::Lent);
        lease.doubt();
        assert!(lease.load().allows(Access::Read), "no other is given it to write");
        assert!(!lease.load().allows(Access::Write));
        lease.begin(Lease::Nothing);
        lease.ask(Access::Write);
        lease.borrow();
        assert_eq!(
            (lease.load().held(), lease.load().asked()),
            (Lease::Borrowed, Some(Access::Write))
        );
        assert!(!lease.load().allows(Access::Read), "calls look what is here");
        lease.doubt();
        assert!(lease.load().is_unsure());
    }

    #[test]
    fn a_grant_that_was_not_taken_up_goes_with_the_lease() {
        let lease = AtomicLease::default();
        lease.begin(Lease::Nothing);
        lease.ask(Access::Write);
        lease.grant(Grant::Whole);
        lease.reduce(Lease::Nothing);
        lease.take_up();
        assert_eq!(lease.load().held(), Lease::Nothing);
        lease.reduce(Lease::Direct);
        assert!(lease.load().allows(Access::Write));
    }
}
