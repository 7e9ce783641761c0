//! What adapters give a session: what a library that they stand before will read next, and what is
//! counted of it.

use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::prefetch::{Ahead, DEPTH_MAX};
use forebay_pool::layout::Counters;
use forebay_pool::message::{EXPECT_UNIT, Message};

/// What adapters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// [`Counters::mpi_files`].
    MpiFiles,
    /// [`Counters::mpi_calls`].
    MpiCalls,
    /// [`Counters::mpi_bytes`].
    MpiBytes,
}

impl Counted {
    fn of(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Counted::MpiFiles => &counters.mpi_files,
            Counted::MpiCalls => &counters.mpi_calls,
            Counted::MpiBytes => &counters.mpi_bytes,
        }
    }
}

impl Session {
    /// Counts `more`.
    pub fn count(&self, what: Counted, more: u64) {
        self.count_up(what.of(self.counters()), more);
    }
}

impl OpenFile<'_> {
    /// Asks the node manager to bring to RAM what the caller knows that it will read: pieces of
    /// `bytes`, from each to the next `stride` further on. It does so while there is room, and not
    /// where reading ahead is switched off. At most [`DEPTH_MAX`] pieces count, and of each what a
    /// message can say. Returns whether it was asked.
    pub fn will_read(&self, offset: u64, bytes: u64, stride: i64, pieces: u64) -> bool {
        if self.session.segment.header().prefetch.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let pieces = pieces.min(DEPTH_MAX);
        let ahead = Ahead { offset, bytes, stride, count: pieces };
        // What cannot be entered is not read ahead: it is advice.
        let lacks = self.enter(self.session.owner()).is_ok_and(|inside| inside.lacking(&ahead) > 0);
        if !lacks {
            return false;
        }
        let few = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
        self.ask_to_stage(|file, generation| Message::Expect {
            file,
            generation,
            offset,
            stride,
            units: few(bytes.div_ceil(EXPECT_UNIT)),
            pieces: few(pieces),
        });
        self.session.count_up(&self.session.counters().mpi_ahead, pieces);
        true
    }
}
