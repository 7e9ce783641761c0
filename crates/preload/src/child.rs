//! What belongs to a vforked child, which runs in the memory of its parent until it has executed a
//! program or ended: a part of the storage of the parent's thread that waits for it.

use core::cell::Cell;
use forebay_client::{Beside, Fork, Managed, Number, Session, StartError};
use libc::c_int;

/// What belongs to the child of the calling thread, from before the vfork until the parent goes on.
struct Child {
    /// Whether the child runs in this thread's storage now.
    runs: Cell<bool>,
    /// The slot that it has.
    fork: Cell<Option<Fork>>,
    /// The signals that were blocked before all were, if all were.
    mask: Cell<Option<u64>>,
    /// The number of the child as the kernel says it to its parent, and to itself; 0 if it says
    /// nothing.
    numbers: [Cell<u32>; 2],
    /// Whether it may have inherited descriptors that are managed.
    has_files: Cell<bool>,
    /// The session that it has taken.
    session: Cell<Option<Beside>>,
}

thread_local! {
    static CHILD: Child = const {
        Child {
            runs: Cell::new(false),
            fork: Cell::new(None),
            mask: Cell::new(None),
            numbers: [const { Cell::new(0) }; 2],
            has_files: Cell::new(false),
            session: Cell::new(None),
        }
    };
}

/// Whether the caller is a vforked child.
pub(crate) fn is_child() -> bool {
    CHILD.with(|child| child.runs.get())
}

/// Whether the caller is a vforked child that has taken no session.
pub(crate) fn is_bare() -> bool {
    CHILD.with(|child| child.runs.get() && child.session.get().is_none())
}

/// The session of the calling child of `parent`'s process, which takes one if it has none.
///
/// # Errors
/// The child must not go on.
#[cold]
pub(crate) fn own_session(parent: &Session) -> Result<&'static Session, StartError> {
    CHILD.with(|child| {
        if let Some(own) = child.session.get() {
            return Ok(own.session());
        }
        let fork = child.fork.get().ok_or(StartError::Taken)?;
        let own = parent.beside(&fork)?;
        child.session.set(Some(own));
        Ok(own.session())
    })
}

/// Whether the calling child of `parent`'s process has a session, or needs one to use `fd`.
#[cold]
pub(crate) fn needs_session(parent: &Session, fd: c_int) -> bool {
    CHILD.with(|child| {
        child.session.get().is_some() || child.has_files.get() && parent.may_be_managed(fd)
    })
}

/// What a program is told that the caller executes, if that is a vforked child without a session.
pub(crate) fn told() -> Option<(u32, Managed)> {
    CHILD.with(|child| {
        let is_bare = child.runs.get() && child.session.get().is_none();
        let fork = child.fork.get().filter(|_| is_bare)?;
        let managed = if child.has_files.get() { Managed::Any } else { Managed::NONE };
        Some((fork.slot(), fork.told_of(managed)))
    })
}

/// Where the kernel may write the numbers of the child that is about to be made, of a word each.
pub(crate) fn numbers() -> *mut u32 {
    CHILD.with(|child| child.numbers.as_ptr().cast_mut().cast())
}

/// In the parent: `fork` is for the child that is about to be made.
pub(crate) fn prepare(fork: Fork, has_files: bool, mask: Option<u64>) {
    CHILD.with(|child| {
        child.numbers.iter().for_each(|number| number.set(0));
        child.fork.set(Some(fork));
        child.has_files.set(has_files);
        child.mask.set(mask);
    });
}

/// In the child, at once. Returns its slot, its number if the kernel has said it, and the signals
/// that were blocked.
pub(crate) fn begin() -> (Option<Fork>, Option<Number>, Option<u64>) {
    CHILD.with(|child| {
        child.runs.set(true);
        let [parents, own] = child.numbers.each_ref().map(Cell::get);
        let number = (own != 0).then_some(Number { own, parents: Some(parents) });
        (child.fork.get(), number, child.mask.get())
    })
}

/// In the parent, when it goes on. Returns the child's slot, the signals that were blocked, and the
/// session that the child has taken.
pub(crate) fn end() -> (Option<Fork>, Option<u64>, Option<Beside>) {
    CHILD.with(|child| {
        child.runs.set(false);
        (child.fork.take(), child.mask.get(), child.session.take())
    })
}

/// In a child that was forked, maybe by a vforked one: the memory is its own now.
pub(crate) fn forked() {
    // The session stays in use.
    end();
}
