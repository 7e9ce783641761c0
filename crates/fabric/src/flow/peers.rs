//! Which ends of links are over: what two sides that make a link tell each other of the others.
//!
//! Bytes of a link that one side has closed wait at the other until that reads them. Meanwhile the
//! first may have made another link, and written the same memory again: the old bytes must not
//! come after the new ones. So a side says which of its ends are alive before it sends anything
//! by a new link, and the other drops all else.

use crate::{Differs, Down, LINKS_MAX, Refusal};
use forebay_membership::{Incarnation, Member, NodeId};
use std::collections::BTreeMap;

/// What a side says of its ends of links to one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roll {
    /// That of its end of a new link, or of no link: higher than all before.
    pub(crate) number: u64,
    /// Those with lower numbers that are alive, fewer than [`LINKS_MAX`].
    pub(crate) alive: Vec<u64>,
}

impl Roll {
    /// Bytes of the longest.
    pub(crate) const BYTES_MAX: usize = 8 * LINKS_MAX;

    pub(crate) fn write(&self) -> Vec<u8> {
        std::iter::once(&self.number).chain(&self.alive).flat_map(|n| n.to_le_bytes()).collect()
    }

    /// From bytes that may be anything.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Down> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (Some((number, alive)), true, true) =
            (words.split_first(), rest.is_empty(), bytes.len() <= Roll::BYTES_MAX)
        else {
            return Err(Down::Refused(Refusal::Length));
        };
        let alive = alive.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Self { number: u64::from_le_bytes(*number), alive })
    }
}

/// The numbers of this side, and what peers have said of theirs: one life of each node.
#[derive(Default)]
pub(crate) struct Peers {
    last: u64,
    heard: BTreeMap<NodeId, (Incarnation, Roll)>,
    /// Something was heard by which a link may be over.
    pub(crate) has_news: bool,
}

impl Peers {
    /// Numbers go on from here: a later fabric of the same life has higher ones.
    pub(crate) fn begin_at(&mut self, number: u64) {
        self.last = number;
    }

    /// What to say to a peer, of which these ends are alive.
    pub(crate) fn roll(&mut self, alive: Vec<u64>) -> Result<Roll, Down> {
        if alive.len() >= LINKS_MAX {
            return Err(Down::Refused(Refusal::Flood));
        }
        self.last += 1;
        Ok(Roll { number: self.last, alive })
    }

    /// Takes in what a peer says; an error if it has said before that this end is over.
    pub(crate) fn hear(&mut self, peer: Member, roll: Roll) -> Result<(), Down> {
        let number = roll.number;
        match self.heard.get_mut(&peer.node) {
            Some((life, _)) if *life > peer.incarnation => {
                return Err(Down::Mismatch(Differs::Incarnation));
            }
            Some((life, last)) if *life == peer.incarnation && number <= last.number => {
                let is_alive = number < last.number && last.alive.contains(&number);
                return if is_alive { Ok(()) } else { Err(Down::Closed) };
            }
            _ => self.heard.insert(peer.node, (peer.incarnation, roll)),
        };
        self.has_news = true;
        Ok(())
    }

    /// Whether the peer's end of this number is over, by what it or a later life has said.
    pub(crate) fn is_over(&self, peer: Member, number: u64) -> bool {
        self.heard.get(&peer.node).is_some_and(|(life, last)| {
            let is_dead = number < last.number && !last.alive.contains(&number);
            *life > peer.incarnation || (*life == peer.incarnation && is_dead)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(number: u64, alive: &[u64]) -> Roll {
        Roll { number, alive: alive.to_vec() }
    }

    #[test]
    fn what_is_not_alive_is_over() {
        let (peer, other) = (Member::new(1, 2), Member::new(2, 2));
        let mut peers = Peers::default();
        assert!(!peers.is_over(peer, 1));
        assert_eq!(peers.hear(peer, roll(5, &[2, 4])), Ok(()));
        assert!(std::mem::take(&mut peers.has_news));
        let over = |peers: &Peers| (1..8).filter(|n| peers.is_over(peer, *n)).collect::<Vec<_>>();
        assert_eq!(over(&peers), [1, 3]);
        assert!(!peers.is_over(other, 1));
        // What was said before that, and comes later.
        assert_eq!(peers.hear(peer, roll(4, &[2, 3])), Ok(()));
        for number in [1, 3, 5] {
            assert_eq!(peers.hear(peer, roll(number, &[])), Err(Down::Closed));
        }
        assert!(!peers.has_news);
        assert_eq!(over(&peers), [1, 3]);
        assert_eq!(peers.hear(peer, roll(7, &[4])), Ok(()));
        assert_eq!(over(&peers), [1, 2, 3, 5, 6]);
    }

    #[test]
    fn a_later_life_ends_the_earlier() {
        let (first, later) = (Member::new(1, 2), Member::new(1, 3));
        let mut peers = Peers::default();
        assert_eq!(peers.hear(first, roll(9, &[])), Ok(()));
        assert_eq!(peers.hear(later, roll(1, &[])), Ok(()));
        assert!(peers.is_over(first, 9) && !peers.is_over(later, 1));
        let differs = Err(Down::Mismatch(Differs::Incarnation));
        assert_eq!(peers.hear(first, roll(10, &[])), differs);
    }

    #[test]
    fn numbers_rise_and_lists_have_an_end() {
        let mut peers = Peers::default();
        assert_eq!(peers.roll(vec![]), Ok(roll(1, &[])));
        assert_eq!(peers.roll(vec![1]), Ok(roll(2, &[1])));
        let most: Vec<_> = (1..LINKS_MAX as u64).collect();
        let longest = peers.roll(most.clone()).unwrap();
        assert_eq!(longest.write().len(), Roll::BYTES_MAX);
        assert_eq!(Roll::read(&longest.write()), Ok(longest.clone()));
        let refused = |why| Err(Down::Refused(why));
        assert_eq!(peers.roll([&most[..], &[9]].concat()), refused(Refusal::Flood));
        let long = [longest.write(), vec![0; 8]].concat();
        for bytes in [&[][..], &[1; 7], &[1; 15], &long] {
            assert_eq!(Roll::read(bytes), refused(Refusal::Length));
        }
    }
}
