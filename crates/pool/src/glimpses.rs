//! Asking how long a file is that other nodes of the group may have: a process asks its node
//! manager by the queue, with a number of its own, and looks for an answer to that. Nothing is
//! held meanwhile, so that one that is killed leaves nothing behind. An answer that another one
//! has overwritten before it was looked at, which takes 1024 later questions, is asked for again.
//!
//! ```
//! use forebay_pool::glimpses::{AnswerTable, Glimpsed};
//!
//! let table = AnswerTable::default();
//! let number = table.begin();
//! assert_eq!(table.answer_to(number), None);
//! table.answer(number, Glimpsed::AtLeast { size: 7 });
//! assert_eq!(table.answer_to(number), Some(Glimpsed::AtLeast { size: 7 }));
//! ```

use crate::sync::{AtomicU64, Ordering, fence};
use forebay_placement::mix;
use rustix::io::Errno;

/// Answers that are kept: 32 KiB.
pub const ANSWERS: usize = 1024;

/// What is known of a file that this node may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glimpsed {
    /// The store has all that was acknowledged before.
    Stored,
    /// Another node writes it, and this is what its programs see.
    Known {
        /// Bytes.
        size: u64,
        /// Last modification, nanoseconds of CLOCK_REALTIME.
        mtime_ns: u64,
    },
    /// It has so many bytes, or those that the store has, if they are more: several nodes write it.
    AtLeast {
        /// Bytes.
        size: u64,
    },
    /// It cannot be known.
    Refused(Errno),
}

/// One answer. Zeroed memory answers nothing: 0 is no number.
#[repr(C)]
#[derive(Default)]
struct Answer {
    number: AtomicU64,
    /// Which one in the lower half, the errno of a refusal in the upper.
    kind: AtomicU64,
    size: AtomicU64,
    mtime_ns: AtomicU64,
}

/// Questions and answers.
#[repr(C)]
pub struct AnswerTable {
    /// Questions so far.
    asked: AtomicU64,
    unused: [u64; 7],
    answers: [Answer; ANSWERS],
}

impl Default for AnswerTable {
    fn default() -> Self {
        let answers = core::array::from_fn(|_| Answer::default());
        Self { asked: AtomicU64::new(0), unused: [0; 7], answers }
    }
}

impl AnswerTable {
    /// The number of a new question: never 0.
    pub fn begin(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }

    fn place(&self, number: u64) -> &Answer {
        &self.answers[number as usize % ANSWERS]
    }

    /// Answers a question. One thread of the node manager alone; it wakes those that wait.
    pub fn answer(&self, number: u64, glimpsed: Glimpsed) {
        let (kind, size, mtime_ns) = match glimpsed {
            Glimpsed::Stored => (1, 0, 0),
            Glimpsed::Known { size, mtime_ns } => (2, size, mtime_ns),
            Glimpsed::AtLeast { size } => (3, size, 0),
            Glimpsed::Refused(errno) => (4 | (errno.raw_os_error() as u64) << 32, 0, 0),
        };
        let place = self.place(number);
        place.number.store(0, Ordering::Relaxed);
        // Who reads what is written from here on finds that it was overwritten.
        fence(Ordering::Release);
        place.kind.store(kind, Ordering::Relaxed);
        place.size.store(size, Ordering::Relaxed);
        place.mtime_ns.store(mtime_ns, Ordering::Relaxed);
        place.number.store(number, Ordering::Release);
    }

    /// The answer, if it is there.
    pub fn answer_to(&self, number: u64) -> Option<Glimpsed> {
        let place = self.place(number);
        let is_it = |order| place.number.load(order) == number;
        if number == 0 || !is_it(Ordering::Acquire) {
            return None;
        }
        let kind = place.kind.load(Ordering::Relaxed);
        let size = place.size.load(Ordering::Relaxed);
        let mtime_ns = place.mtime_ns.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if !is_it(Ordering::Relaxed) {
            return None;
        }
        Some(match kind as u32 {
            1 => Glimpsed::Stored,
            2 => Glimpsed::Known { size, mtime_ns },
            3 => Glimpsed::AtLeast { size },
            _ => Glimpsed::Refused(Errno::from_raw_os_error((kind >> 32).clamp(1, 4095) as i32)),
        })
    }
}

/// What tells a file from an earlier one with its inode in the group: `born_ns` is its time of
/// birth, nanoseconds of CLOCK_REALTIME, or 0.
pub fn group_generation(born_ns: u64) -> u32 {
    (mix(born_ns) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_seen_until_it_is_overwritten() {
        let table = AnswerTable::default();
        let number = table.begin();
        let all = [
            Glimpsed::Stored,
            Glimpsed::Known { size: u64::MAX, mtime_ns: 5 },
            Glimpsed::AtLeast { size: 6 },
            Glimpsed::Refused(Errno::IO),
        ];
        for glimpsed in all {
            table.answer(number, glimpsed);
            assert_eq!(table.answer_to(number), Some(glimpsed));
        }
        let later = number + ANSWERS as u64;
        assert_eq!(table.answer_to(later), None);
        table.answer(later, Glimpsed::Stored);
        assert_eq!(table.answer_to(number), None, "it is asked for again");
        assert_eq!(AnswerTable::default().answer_to(0), None);
    }
}
