//! The first frame of both sides: who is there.

use crate::header::HEADER_BYTES;
use crate::{ADDRESS_MAX, Differs, Down, Header, Kind, Refusal};
use forebay_membership::Member;

/// Group, whom it is for, length of the address.
const FIXED: usize = 32 + 6 + 2;

/// The body is for one member: the side that connects knows which.
const FOR_ONE: u16 = 1;

/// Who this side is.
pub(super) struct Hello {
    pub(super) group: [u8; 32],
    pub(super) me: Member,
    pub(super) address: String,
}

impl Hello {
    /// The frame: the header names the sender.
    pub(super) fn frame(&self, to: Option<Member>) -> Vec<u8> {
        let mut body = Vec::with_capacity(FIXED + self.address.len());
        body.extend(self.group);
        let wanted = to.unwrap_or_default();
        body.extend(wanted.node.0.to_le_bytes());
        body.extend(wanted.incarnation.0.to_le_bytes());
        body.extend((self.address.len() as u16).to_le_bytes());
        body.extend(self.address.as_bytes());
        let flags = if to.is_some() { FOR_ONE } else { 0 };
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
    ) -> Result<Member, Down> {
        let header = Header::read(head, body).map_err(|why| match why {
            Refusal::Version => Down::Mismatch(Differs::Version),
            other => Down::Refused(other),
        })?;
        if header.kind != Kind::HELLO {
            return Err(Down::Refused(Refusal::Order));
        }
        let address = body.get(FIXED..).ok_or(Down::Refused(Refusal::Length))?;
        let len = usize::from(u16::from_le_bytes([body[38], body[39]]));
        if len != address.len() || len > ADDRESS_MAX {
            return Err(Down::Refused(Refusal::Length));
        }
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
        Ok(header.sender)
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

/// Gathers the first frame.
#[derive(Default)]
pub(super) struct Greeting(Vec<u8>);

impl Greeting {
    /// Takes bytes from the start of `bytes`, which is moved on; the peer, once it is known.
    pub(super) fn take(
        &mut self,
        bytes: &mut &[u8],
        hello: &Hello,
        wanted: Option<Member>,
    ) -> Result<Option<Member>, Down> {
        self.take_to(bytes, HEADER_BYTES);
        let Some(head) = self.0.first_chunk::<HEADER_BYTES>().copied() else { return Ok(None) };
        let len = Header::body_bytes(&head).map_err(|why| match why {
            Refusal::Version => Down::Mismatch(Differs::Version),
            other => Down::Refused(other),
        })?;
        if len > FIXED + ADDRESS_MAX {
            return Err(Down::Refused(Refusal::Length));
        }
        self.take_to(bytes, HEADER_BYTES + len);
        if self.0.len() < HEADER_BYTES + len {
            return Ok(None);
        }
        hello.check(&head, &self.0[HEADER_BYTES..], wanted).map(Some)
    }

    fn take_to(&mut self, bytes: &mut &[u8], len: usize) {
        let (now, later) = bytes.split_at(len.saturating_sub(self.0.len()).min(bytes.len()));
        self.0.extend_from_slice(now);
        *bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(group: u8, node: u16, incarnation: u32) -> Hello {
        let me = Member::new(node, incarnation);
        Hello { group: [group; 32], me, address: "127.0.0.1:1".into() }
    }

    /// What `at` says of the bytes, in pieces of `piece`.
    fn told(at: &Hello, wanted: Option<Member>, all: &[u8], piece: usize) -> Result<Member, Down> {
        let mut greeting = Greeting::default();
        for mut bytes in all.chunks(piece) {
            if let Some(peer) = greeting.take(&mut bytes, at, wanted)? {
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
            assert_eq!(told(&two, None, &one.frame(me), piece), Ok(one.me));
            assert_eq!(told(&two, wanted, &one.frame(None), piece), Ok(one.me));
        }
        let differs = |what| Err(Down::Mismatch(what));
        let other = hello(2, 1, 7);
        assert_eq!(told(&two, wanted, &other.frame(None), 64), differs(Differs::Group));
        let later = hello(1, 1, 9);
        assert_eq!(told(&two, wanted, &later.frame(None), 64), differs(Differs::Incarnation));
        let third = hello(1, 3, 7);
        assert_eq!(told(&two, wanted, &third.frame(None), 64), differs(Differs::Node));
        assert_eq!(told(&two, None, &one.frame(Some(later.me)), 64), differs(Differs::Node));
        let past = Member::new(2, 7);
        assert_eq!(told(&two, None, &one.frame(Some(past)), 64), differs(Differs::Incarnation));
        let mut newer = one.frame(me);
        newer[0] += 1;
        assert_eq!(told(&two, None, &newer, 64), differs(Differs::Version));
    }

    #[test]
    fn rubbish_is_refused() {
        let two = hello(1, 2, 8);
        let message = Header { kind: Kind(3), ..Header::default() }.write(&[]);
        let short = Header { kind: Kind::HELLO, ..Header::default() };
        let short = [&short.write(&[1; 39])[..], &[1; 39]].concat();
        let long = Header { kind: Kind::HELLO, ..Header::default() }.write(&[1; 1000]);
        let mut torn = hello(1, 1, 7).frame(None);
        torn[HEADER_BYTES + 38] += 1;
        let refused = |why| Err(Down::Refused(why));
        assert_eq!(told(&two, None, &message, 64), refused(Refusal::Order));
        assert_eq!(told(&two, None, &short, 64), refused(Refusal::Length));
        assert_eq!(told(&two, None, &long, 64), refused(Refusal::Length));
        assert_eq!(told(&two, None, &torn, 64), refused(Refusal::Sum));
    }
}
