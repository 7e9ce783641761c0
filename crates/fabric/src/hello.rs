//! The first frame of both sides: who is there, and which links are alive.

use crate::flow::Roll;
use crate::header::HEADER_BYTES;
use crate::{Differs, Down, Header, Kind, Refusal};
use forebay_membership::Member;

/// Group, and whom it is for; a roll follows.
const FIXED: usize = 32 + 6;

/// The body is for one member: the side that connects knows which.
const FOR_ONE: u16 = 1;

/// There will be no link: it only says who is here.
const NO_LINK: u16 = 2;

/// Who this side is.
pub(crate) struct Hello {
    pub(crate) group: [u8; 32],
    pub(crate) me: Member,
}

impl Hello {
    /// The frame: the header names the sender. Without a roll there will be no link.
    pub(crate) fn frame(&self, to: Option<Member>, roll: Option<&Roll>) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.group);
        let wanted = to.unwrap_or_default();
        body.extend(wanted.node.0.to_le_bytes());
        body.extend(wanted.incarnation.0.to_le_bytes());
        body.extend(roll.unwrap_or(&Roll::default()).write());
        let flags =
            if to.is_some() { FOR_ONE } else { 0 } | if roll.is_some() { 0 } else { NO_LINK };
        let header = Header { kind: Kind::HELLO, flags, sender: self.me, ..Header::default() };
        [&header.write(&body)[..], &body].concat()
    }

    /// Who the other side is, if it may be a peer: the one that this side wants, if it wants one,
    /// and one that wants this side.
    fn check(
        &self,
        head: &[u8; HEADER_BYTES],
        body: &[u8],
        wanted: Option<Member>,
    ) -> Result<(Member, Roll), Down> {
        let header = Header::read(head, body).map_err(|why| match why {
            Refusal::Version => Down::Mismatch(Differs::Version),
            other => Down::Refused(other),
        })?;
        if header.kind != Kind::HELLO {
            return Err(Down::Refused(Refusal::Order));
        }
        let roll = Roll::read(body.get(FIXED..).ok_or(Down::Refused(Refusal::Length))?)?;
        if body[..32] != self.group {
            return Err(Down::Mismatch(Differs::Group));
        }
        if let Some(wanted) = wanted {
            differ(header.sender, wanted)?;
        }
        if header.flags & FOR_ONE != 0 {
            let node = u16::from_le_bytes([body[32], body[33]]);
            let incarnation = u32::from_le_bytes([body[34], body[35], body[36], body[37]]);
            differ(Member::new(node, incarnation), self.me)?;
        }
        if header.flags & NO_LINK != 0 {
            return Err(Down::RefusedByPeer);
        }
        Ok((header.sender, roll))
    }
}

/// What differs between two lives, if anything.
pub(crate) fn differ(found: Member, wanted: Member) -> Result<(), Down> {
    if found.node != wanted.node {
        return Err(Down::Mismatch(Differs::Node));
    }
    if found.incarnation != wanted.incarnation {
        return Err(Down::Mismatch(Differs::Incarnation));
    }
    Ok(())
}

/// For carriers that have proved it already.
pub(crate) fn no_proof(_frame: &[u8], _proof: &[u8]) -> Result<(), Down> {
    Ok(())
}

/// Gathers the first frame, and so many bytes behind it that prove who sent it.
#[derive(Default)]
pub(crate) struct Greeting {
    bytes: Vec<u8>,
    proof_bytes: usize,
}

impl Greeting {
    /// One with a proof of this length behind the frame.
    #[cfg(feature = "ucx")]
    pub(crate) fn with_proof(proof_bytes: usize) -> Self {
        Self { bytes: Vec::new(), proof_bytes }
    }

    /// Takes bytes from the start of `bytes`, which is moved on; the peer, once it is known.
    /// `check` looks at frame and proof before anything that the frame says is believed.
    pub(crate) fn take(
        &mut self,
        bytes: &mut &[u8],
        hello: &Hello,
        wanted: Option<Member>,
        check: impl FnOnce(&[u8], &[u8]) -> Result<(), Down>,
    ) -> Result<Option<(Member, Roll)>, Down> {
        self.take_to(bytes, HEADER_BYTES);
        let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>().copied() else {
            return Ok(None);
        };
        let len = Header::body_bytes(&head).map_err(|why| match why {
            Refusal::Version => Down::Mismatch(Differs::Version),
            other => Down::Refused(other),
        })?;
        if len > FIXED + Roll::BYTES_MAX {
            return Err(Down::Refused(Refusal::Length));
        }
        let frame_end = HEADER_BYTES + len;
        self.take_to(bytes, frame_end + self.proof_bytes);
        if self.bytes.len() < frame_end + self.proof_bytes {
            return Ok(None);
        }
        let (frame, proof) = self.bytes.split_at(frame_end);
        check(frame, proof)?;
        hello.check(&head, &frame[HEADER_BYTES..], wanted).map(Some)
    }

    fn take_to(&mut self, bytes: &mut &[u8], len: usize) {
        let (now, later) = bytes.split_at(len.saturating_sub(self.bytes.len()).min(bytes.len()));
        self.bytes.extend_from_slice(now);
        *bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(group: u8, node: u16, incarnation: u32) -> Hello {
        Hello { group: [group; 32], me: Member::new(node, incarnation) }
    }

    fn roll() -> Roll {
        Roll { number: 5, alive: vec![2, 4] }
    }

    /// What `at` says of the bytes, in pieces of `piece`.
    fn told(at: &Hello, wanted: Option<Member>, all: &[u8], piece: usize) -> Result<Member, Down> {
        let mut greeting = Greeting::default();
        for mut bytes in all.chunks(piece) {
            if let Some((peer, said)) = greeting.take(&mut bytes, at, wanted, no_proof)? {
                assert_eq!(said, roll());
                return Ok(peer);
            }
        }
        panic!("no end of the frame")
    }

    #[test]
    fn what_differs_is_named() {
        let (one, two) = (hello(1, 1, 7), hello(1, 2, 8));
        let (wanted, me) = (Some(one.me), Some(two.me));
        for piece in [1, 7, 64, 1000] {
            assert_eq!(told(&two, None, &one.frame(me, Some(&roll())), piece), Ok(one.me));
            assert_eq!(told(&two, wanted, &one.frame(None, Some(&roll())), piece), Ok(one.me));
        }
        let differs = |what| Err(Down::Mismatch(what));
        let other = hello(2, 1, 7);
        assert_eq!(
            told(&two, wanted, &other.frame(None, Some(&roll())), 64),
            differs(Differs::Group)
        );
        let later = hello(1, 1, 9);
        assert_eq!(
            told(&two, wanted, &later.frame(None, Some(&roll())), 64),
            differs(Differs::Incarnation)
        );
        let third = hello(1, 3, 7);
        assert_eq!(
            told(&two, wanted, &third.frame(None, Some(&roll())), 64),
            differs(Differs::Node)
        );
        assert_eq!(
            told(&two, None, &one.frame(Some(later.me), Some(&roll())), 64),
            differs(Differs::Node)
        );
        let past = Member::new(2, 7);
        assert_eq!(
            told(&two, None, &one.frame(Some(past), Some(&roll())), 64),
            differs(Differs::Incarnation)
        );
        assert_eq!(told(&two, wanted, &one.frame(me, None), 64), Err(Down::RefusedByPeer));
        let mut newer = one.frame(me, Some(&roll()));
        newer[0] += 1;
        assert_eq!(told(&two, None, &newer, 64), differs(Differs::Version));
    }

    #[test]
    fn rubbish_is_refused() {
        let two = hello(1, 2, 8);
        let message = Header { kind: Kind(3), ..Header::default() }.write(&[]);
        let short = Header { kind: Kind::HELLO, ..Header::default() };
        let short = [&short.write(&[1; 45])[..], &[1; 45]].concat();
        let long = Header { kind: Kind::HELLO, ..Header::default() }.write(&[1; 3000]);
        let mut torn = hello(1, 1, 7).frame(None, Some(&roll()));
        torn[HEADER_BYTES + 38] += 1;
        let refused = |why| Err(Down::Refused(why));
        assert_eq!(told(&two, None, &message, 64), refused(Refusal::Order));
        assert_eq!(told(&two, None, &short, 64), refused(Refusal::Length));
        assert_eq!(told(&two, None, &long, 64), refused(Refusal::Length));
        assert_eq!(told(&two, None, &torn, 64), refused(Refusal::Sum));
    }
}
