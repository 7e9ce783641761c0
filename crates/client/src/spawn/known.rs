//! What some process of the pool has found out of the files of programs: one look at the file is
//! then enough.

use super::program::is_privileged;
use super::{Needs, Variables, needs};
use crate::open::{ctime_ns, mtime_ns};
use crate::session::Session;
use forebay_pool::clock::{self, Timer};
use rustix::fs::Stat;

/// Stands for the LD_LIBRARY_PATH where it is noted that a file is a program: none has a zero.
const IS_PROGRAM: &[u8] = b"\0program";

/// How long ago a file must have been changed: in the same tick of its clock it may be changed once
/// more, which is not seen.
const SETTLED: Timer = Timer::seconds(2);

/// A number for a file as it is now, and something that is asked about it.
pub(super) fn key_of(stat: &Stat, question: &[u8]) -> u64 {
    let of_file = [stat.st_dev, stat.st_ino, stat.st_size as u64, mtime_ns(stat), ctime_ns(stat)];
    of_file
        .iter()
        .fold(needs::sum_of(question, 0), |sum, number| needs::sum_of(&number.to_le_bytes(), sum))
}

impl Session {
    /// Notes that the file is a program that the kernel starts through a loader, and no script.
    pub(super) fn note_program(&self, stat: &Stat) {
        let age_ns = clock::realtime_coarse_ns().saturating_sub(ctime_ns(stat));
        if age_ns >= SETTLED.as_ns() {
            self.segment.header().note_needs(key_of(stat, IS_PROGRAM), 0);
        }
    }

    /// The adapters, and the runtime, that a program with these `variables` needs, of which `stat`
    /// was seen: if it is known to be one that preloads the library, and nothing of it is buffered.
    pub(super) fn needs_of_known_program(
        &self,
        stat: &Stat,
        variables: Variables<'_>,
    ) -> Option<Needs> {
        let header = self.segment.header();
        header.needs_of(key_of(stat, IS_PROGRAM))?;
        if is_privileged(stat) || self.is_in_table(stat) {
            return None;
        }
        let admitted = self.carried.admitted_for(variables).with(Needs::RUNTIMES);
        let bits = header.needs_of(key_of(stat, variables.library_path()))?;
        Some(Needs::from_bits(bits).among(admitted))
    }
}
