//! Where more files are ahead of the store than descriptors can be kept of them: those of which
//! they have been kept for longest are brought to the store.

use crate::node::Node;
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, Owner};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files whose flush is under way for this: a program's sync waits behind them.
const TOGETHER: usize = 32;
/// Files that are chosen at a time.
const CHOSEN: usize = 1024;
/// Looks for which a file is waited for that does not come to the store: a client may hold it.
const LOOKS: u32 = 100;

pub(super) struct Relief {
    node: Arc<Node>,
    owner: Owner,
    /// Whose turn it is, with the generations of their records.
    chosen: VecDeque<(FileId, u32)>,
    /// What was asked for, by ticket.
    asked: Vec<(FileId, u32, u32)>,
    looks: u32,
    /// Clients were kept waiting at the last look.
    were_too_many: bool,
}

impl Relief {
    pub fn new(node: &Arc<Node>, owner: Owner) -> Relief {
        let (chosen, asked) = (VecDeque::new(), Vec::new());
        Relief { node: Arc::clone(node), owner, chosen, asked, looks: 0, were_too_many: false }
    }

    /// One look. Returns whether descriptors are short.
    pub fn go_on(&mut self) -> bool {
        let descriptors = &self.node.descriptors;
        let are_too_many = descriptors.are_too_many();
        if self.were_too_many && !are_too_many {
            // It reads what clients have sent meanwhile.
            self.node.wake_control();
        }
        self.were_too_many = are_too_many;
        let is_short = descriptors.are_short();
        if self.is_waiting() {
            self.looks += 1;
            return true;
        }
        self.end_turn();
        if is_short {
            self.begin_turn();
        } else {
            self.chosen.clear();
        }
        is_short
    }

    fn is_waiting(&self) -> bool {
        let segment = &self.node.segment;
        let is_under_way = |&(file, generation, ticket): &(FileId, u32, u32)| {
            let record = segment.file(file);
            let done = record.sync_done.load(Ordering::Acquire);
            record.generation.load(Ordering::Acquire) == generation
                && (ticket.wrapping_sub(done) as i32) > 0
        };
        self.looks < LOOKS && self.asked.iter().any(is_under_way)
    }

    /// What is still kept could not be flushed, or is written all the time.
    fn end_turn(&mut self) {
        for (file, generation, _) in std::mem::take(&mut self.asked) {
            self.leave(file, generation);
        }
        self.looks = 0;
    }

    fn leave(&self, file: FileId, generation: u32) {
        let (segment, descriptors) = (&self.node.segment, &self.node.descriptors);
        let is_same = segment.file(file).generation.load(Ordering::Acquire) == generation;
        if is_same && descriptors.has(segment, file) {
            let goes = descriptors.are_full() && descriptors.give_up(segment, file);
            if !goes {
                descriptors.pass_over(file);
            }
        }
    }

    fn begin_turn(&mut self) {
        let node = Arc::clone(&self.node);
        if self.chosen.is_empty() {
            self.chosen = node.descriptors.first_kept(CHOSEN).into();
        }
        for _ in 0..TOGETHER {
            let Some((file, generation)) = self.chosen.pop_front() else { return };
            let record = node.segment.file(file);
            if record.generation.load(Ordering::Acquire) != generation
                || !node.descriptors.has(&node.segment, file)
            {
                continue;
            }
            // What is not to be flushed, or cannot be now.
            if record.has(FileFlags::SCRATCH) || record.has(FileFlags::FAILING) {
                self.leave(file, generation);
                continue;
            }
            let ticket = node.segment.request(file, Some(self.owner), FileFlags::TO_FLUSH);
            self.asked.push((file, generation, ticket));
        }
    }
}
