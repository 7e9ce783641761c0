//! Waiting for a block that another node may have in memory: a process asks its node manager by the
//! queue, with a ticket, and looks at the ticket's bit. It leaves nothing behind when it is killed;
//! two that have the same ticket, which takes 1024 that wait, see each other's answer and go to
//! the store.

use crate::layout::OTHERS_WORDS;
use crate::message::Message;
use crate::sync::Ordering;
use crate::{FileId, Owner, Segment, futex};

/// What a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OthersTicket {
    number: u16,
    before: u64,
}

impl Segment {
    /// Asks the node manager for a block that no tier has; `generation` is that of the record.
    /// `None` if the queue is full.
    pub fn ask_others(
        &self,
        owner: Owner,
        file: FileId,
        generation: u32,
        block: u64,
    ) -> Option<OthersTicket> {
        let asked = self.header().others_asked.fetch_add(1, Ordering::Relaxed);
        let number = asked as u16 % (64 * OTHERS_WORDS as u16);
        let ticket = OthersTicket { number, before: self.others_bit(number) };
        let message = Message::Fetch { file, generation, block, ticket: number };
        self.ask_group(owner, &message).then_some(ticket)
    }

    /// Says that a block which was asked for, and is not there, is read and not kept: other nodes
    /// wait for it in vain.
    pub fn tell_unkept(&self, owner: Owner, file: FileId, generation: u32, block: u64) {
        let _ = self.ask_group(owner, &Message::Unkept { file, generation, block });
    }

    /// Whether it is answered: the block is there now, or no other node has it.
    pub fn is_answered(&self, ticket: OthersTicket) -> bool {
        self.others_bit(ticket.number) != ticket.before
    }

    /// Answers a ticket of [`Message::Fetch`], and wakes those that wait.
    pub fn answer_others(&self, number: u16) {
        let header = self.header();
        let word = usize::from(number / 64) % OTHERS_WORDS;
        header.others_answered[word].fetch_xor(1 << (number % 64), Ordering::AcqRel);
        header.work_done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&header.work_done);
    }

    fn others_bit(&self, number: u16) -> u64 {
        let word = usize::from(number / 64) % OTHERS_WORDS;
        let answered = self.header().others_answered[word].load(Ordering::Acquire);
        answered >> (number % 64) & 1
    }
}
