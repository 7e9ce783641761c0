//! What a process tells the program that it executes: which slot they have, and which descriptors
//! may be managed. The program then need not ask /proc who it is and what it has inherited.
//!
//! It is told in the environment, and a word of it in the slot. A program that finds the word there
//! takes it away, and no other process will: a child that has inherited the environment has another
//! number, and one in another namespace finds the word gone.

use super::Variables;
use super::environment::defines_at;
use crate::fork::Fork;
use crate::session::Session;
use crate::user_memory::Strings;
use core::ffi::{CStr, c_char};
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;
use forebay_pool::clock::Timer;
use forebay_pool::layout::slot_state;
use forebay_pool::{Segment, clock, crash, interruption};
use rustix::fd::RawFd;

const NAME: &CStr = c"FOREBAY_PROCESS";

/// How [`Managed::Nothing`] is told.
const NOTHING: &str = "nothing";

/// Descriptors that are told one by one.
const LISTED: usize = 16;

/// How long a program may take to its start after it was told: longer ago, a process of another
/// namespace might have the number by now.
const START: Timer = Timer::seconds(1);

/// Variables of a program that is told anything.
const VARIABLES: usize = 510;

/// Which descriptors may be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// Any.
    Any,
    /// So many of these, and no other.
    These([RawFd; LISTED], usize),
    /// None, and the slot has nothing of the pool: a program need not join before it does what
    /// concerns a file.
    Nothing,
}

impl Managed {
    /// None.
    pub const NONE: Managed = Managed::These([0; LISTED], 0);

    fn with(self, fd: RawFd) -> Managed {
        match self {
            Managed::These(mut all, count) if count < LISTED => {
                all[count] = fd;
                Managed::These(all, count + 1)
            }
            _ => Managed::Any,
        }
    }

    /// Nothing, where there are none, and `has_nothing` says that there is nothing else either.
    pub(crate) fn or_nothing(self, has_nothing: impl FnOnce() -> bool) -> Managed {
        if self == Managed::NONE && has_nothing() { Managed::Nothing } else { self }
    }
}

/// A number in decimal digits.
#[inline]
fn number(text: &[u8]) -> Option<u64> {
    let digit = |sum: u64, &byte: &u8| match byte {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    text.iter().try_fold(0, digit).filter(|_| !text.is_empty())
}

/// What this program was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub(crate) slot: u32,
    word: u64,
    pub(crate) managed: Managed,
    /// Where it is a child that was made for the program: the slot is not its own yet.
    pub(crate) fork: Option<Fork>,
}

impl Told {
    /// What is in the environment. Each program runs this at its start: what is inlined touches no
    /// page of its own.
    #[inline]
    pub fn of(given: Variables<'_>) -> Option<Told> {
        let text = given.find(NAME)?.to_bytes();
        let mut parts = text.get(NAME.count_bytes() + 1..)?.split(|&byte| byte == b'-');
        let (slot, word) = (number(parts.next()?)?.try_into().ok()?, number(parts.next()?)?);
        let managed = match parts.next()? {
            text if text == NOTHING.as_bytes() => Managed::Nothing,
            listed => listed.split(|&byte| byte == b',').filter(|fd| !fd.is_empty()).fold(
                Managed::NONE,
                |all, fd| match number(fd).and_then(|fd| fd.try_into().ok()) {
                    Some(fd) => all.with(fd),
                    None => Managed::Any,
                },
            ),
        };
        let mut numbers = parts.map(number);
        let fork = match numbers.next() {
            None => None,
            Some(generation) => Some(Fork::told(
                slot,
                generation?.try_into().ok()?,
                numbers.next()??.try_into().ok()?,
                numbers.next()??,
            )),
        };
        (word != 0).then_some(Told { slot, word, managed, fork })
    }

    /// The same, and takes it out of the list: what differs with each exec is nothing for programs.
    ///
    /// # Safety
    /// The list is the one that the kernel has given to this process, ends with null, and is used
    /// by no other thread yet.
    #[inline]
    pub unsafe fn take(list: *mut *const c_char) -> Option<Told> {
        if list.is_null() {
            return None;
        }
        // SAFETY: as the caller says.
        let told = Told::of(unsafe { Variables::given(list) });
        let (mut from, mut to) = (list, list);
        // SAFETY: both stay within the list, the end of which moves with the other entries.
        unsafe {
            while !from.read().is_null() {
                if !defines_at(from.read(), NAME) {
                    to.write(from.read());
                    to = to.add(1);
                }
                from = from.add(1);
            }
            if to != from {
                to.write(core::ptr::null());
            }
        }
        told
    }

    /// Whether who executed the process expects it to join, as far as is known without the pool: it
    /// was told so a moment ago, or is to join whenever it likes.
    pub(crate) fn is_expected(&self) -> bool {
        self.may_join_later() || self.is_recent()
    }

    fn is_recent(&self) -> bool {
        clock::monotonic_ns().saturating_sub(self.word) <= START.as_ns()
    }

    /// Whether the process has nothing of the pool, and need not join before it does what concerns
    /// a file. That holds for each process that finds it in its environment: to another than was
    /// told so it comes by way of that one alone, where that does not load the library.
    pub fn may_join_later(&self) -> bool {
        self.managed == Managed::Nothing
    }

    /// Whether it was told to process `pid`, the calling one. It is not told again.
    pub(crate) fn was_for(&self, segment: &Segment, pid: u32) -> bool {
        if self.slot >= segment.header().clients {
            return false;
        }
        let client = segment.client(self.slot);
        let state = client.state.load(Ordering::SeqCst);
        let is_its = match &self.fork {
            // How long the child has taken to its start does not matter: the slot waits for it.
            Some(fork) => {
                state == slot_state::RESERVED
                    && client.generation.load(Ordering::SeqCst) == fork.generation
            }
            // One that joins later may do so long after it was told: then its number counts where
            // it is that of the slot's namespace.
            None => {
                state == slot_state::LIVE
                    && client.pid.load(Ordering::SeqCst) == pid
                    && match self.may_join_later() {
                        true => segment.has_numbers_of_here(),
                        false => self.is_recent(),
                    }
            }
        };
        is_its
            && (client.told.compare_exchange(self.word, 0, Ordering::SeqCst, Ordering::SeqCst))
                .is_ok()
    }
}

/// An entry of the environment in the making.
struct Text {
    bytes: [u8; 256],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// The entry, which ends with a zero.
fn entry(slot: u32, word: u64, managed: Managed, fork: Option<&Fork>) -> Result<Text, fmt::Error> {
    let mut text = Text { bytes: [0; 256], length: 0 };
    write!(text, "{}={slot}-{word}-", NAME.to_str().unwrap_or_default())?;
    match managed {
        Managed::Any => text.write_str("any")?,
        Managed::Nothing => text.write_str(NOTHING)?,
        Managed::These(all, count) => {
            for (place, fd) in all[..count].iter().enumerate() {
                let comma = if place > 0 { "," } else { "" };
                write!(text, "{comma}{fd}")?;
            }
        }
    }
    if let Some(Fork { generation, parent, since, .. }) = fork {
        write!(text, "-{generation}-{parent}-{}", since.as_ns())?;
    }
    text.write_str("\0")?;
    Ok(text)
}

impl Session {
    /// Which descriptors may be managed that a program inherits which this process executes now.
    pub fn managed_descriptors(&self) -> Managed {
        // Another thread may be opening files.
        if self.is_kernel_only() || self.may_have_other_threads() {
            return Managed::Any;
        }
        let listed = self.files().fold(Managed::NONE, |managed, file| managed.with(file.fd));
        listed.or_nothing(|| !interruption::is_inside() && self.segment.has_nothing(self.slot()))
    }

    /// The slot of this process.
    pub fn own_slot(&self) -> u32 {
        self.slot()
    }

    /// Calls `execute`, which executes a program with the environment given to it, that of `list`
    /// and what the program is told: that it has `slot`, and that it may have inherited `managed`.
    ///
    /// # Safety
    /// The list ends with null, and its entries with zeros; they stay as they are meanwhile.
    pub unsafe fn telling<R>(
        &self,
        list: Strings,
        (slot, managed): (u32, Managed),
        execute: impl FnOnce(Strings) -> R,
    ) -> R {
        // The clock has another time at each exec of a process.
        let word = clock::monotonic_ns().max(1);
        let managed = self.told_within_limits(managed);
        let Ok(text) = entry(slot, word, managed, None) else { return execute(list) };
        if managed == Managed::Nothing {
            self.segment.client(slot).joined();
        }
        let told = &self.segment.client(slot).told;
        told.store(word, Ordering::SeqCst);
        // SAFETY: as the caller says.
        let result = unsafe { with_entry(list, &text, execute) };
        // It was not executed.
        told.store(0, Ordering::SeqCst);
        result
    }

    /// Calls `spawn`, which makes a child that executes a program, with the environment that the
    /// child is to have: that of `list` and what it is told, which is that it may have inherited
    /// `managed`. `spawn` returns the number of the child, if there is one. The child joins at its
    /// start: a slot that is not its own yet stands for a child that is on its way.
    ///
    /// # Safety
    /// As of [`Session::telling`].
    pub unsafe fn telling_child(
        &self,
        list: Strings,
        managed: Managed,
        spawn: impl FnOnce(Strings) -> Option<u32>,
    ) {
        // Where all slots are in use the child looks, and waits, for one itself.
        let fork = self.before_fork();
        let word = clock::monotonic_ns().max(1);
        let text = fork.as_ref().map(|fork| entry(fork.slot(), word, managed, Some(fork)));
        let (Some(fork), Some(Ok(text))) = (fork, text) else {
            spawn(list);
            return;
        };
        self.segment.client(fork.slot()).told.store(word, Ordering::SeqCst);
        crash::point("spawn.told");
        // SAFETY: as the caller says.
        match unsafe { with_entry(list, &text, spawn) } {
            Some(child) => self.fork_succeeded(&fork, child),
            None => self.fork_failed(fork),
        }
    }
}

/// Calls `act` with the environment of `list`, and this entry in the place of an older one; without
/// it if there are too many.
///
/// # Safety
/// The list ends with null, and its entries with zeros; they stay as they are meanwhile.
unsafe fn with_entry<R>(list: Strings, entry: &Text, act: impl FnOnce(Strings) -> R) -> R {
    let mut room = [core::ptr::null::<c_char>(); VARIABLES + 2];
    let (mut from, mut to) = (0, 0);
    loop {
        // SAFETY: the list has not ended before.
        let variable = unsafe { list.add(from).read_unaligned() };
        from += 1;
        if variable.is_null() {
            break;
        }
        // SAFETY: an entry, see above.
        if unsafe { defines_at(variable, NAME) } {
            continue;
        }
        if to == VARIABLES {
            return act(list);
        }
        room[to] = variable;
        to += 1;
    }
    room[to] = entry.bytes.as_ptr().cast();
    act(room.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &Text) -> Option<Told> {
        let list = [c"A=b".as_ptr(), text.bytes.as_ptr().cast(), core::ptr::null()];
        // SAFETY: they stay as they are.
        let told = Told::of(unsafe { Variables::at(list.as_ptr()) }.unwrap());
        let mut given = [list[0], list[1], c"C=d".as_ptr(), core::ptr::null()];
        // SAFETY: the same.
        assert_eq!(unsafe { Told::take(given.as_mut_ptr()) }, told);
        let end = usize::from(!text.bytes.starts_with(b"FOREBAY_PROCESS=")) + 2;
        assert!(given[..end].iter().all(|entry| !entry.is_null()) && given[end].is_null());
        told
    }

    #[test]
    fn what_is_told_is_understood() {
        let many = (0..LISTED as RawFd).fold(Managed::NONE, Managed::with);
        assert_eq!(many.with(99), Managed::Any);
        let of_child = Fork::told(1023, u32::MAX, 4_194_303, u64::MAX);
        let some = Managed::NONE.with(1).with(1000);
        for managed in [Managed::Any, Managed::NONE, Managed::Nothing, some, many] {
            for fork in [None, Some(of_child)] {
                let told = read(&entry(1023, u64::MAX, managed, fork.as_ref()).ok().unwrap());
                assert_eq!(told, Some(Told { slot: 1023, word: u64::MAX, managed, fork }));
            }
        }
        for (managed, is_so) in [(Managed::NONE, false), (Managed::Nothing, true)] {
            let long_ago = read(&entry(1023, 1, managed, None).ok().unwrap()).unwrap();
            assert_eq!((long_ago.is_expected(), long_ago.may_join_later()), (is_so, is_so));
        }
        let other = |text: &str| {
            let mut made = Text { bytes: [0; 256], length: 0 };
            made.write_str(text).unwrap();
            read(&made)
        };
        assert_eq!(other("FOREBAY_PROCESS=1-0-"), None);
        assert_eq!(other("FOREBAY_PROCESS=1-2"), None);
        assert_eq!(other("FOREBAY_PROCESS=1-2--3-4"), None);
        assert_eq!(other("FOREBAY_PROCESS=1-2--x-4-5"), None);
        assert_eq!(other("FOREBAY_PROCESS="), None);
        assert_eq!(other("FOREBAY_PROCESSES=1-2-"), None);
    }
}
