//! The header of a message: 64 bytes, little-endian.

use crate::Refusal;
use forebay_membership::{Incarnation, Member, NodeId};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

/// Bytes of a body at most.
pub const BODY_MAX: usize = 64 << 10;

/// The version of headers and of what the fabric itself sends.
pub const VERSION: u16 = 1;

/// Where the checksum is: behind all that it is made of.
const SUM_AT: usize = 60;

/// What a message is about. The fabric knows its own only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Kind(pub u16);

impl Kind {
    /// The first that the fabric keeps for itself.
    pub const OWN: Kind = Kind(0xff00);
    /// The first frame of both sides: who is there.
    pub(crate) const HELLO: Kind = Kind(0xff00);
    /// Wants `count` bytes from `first_block` of the region `file`, as the answer to `request`.
    pub(crate) const PULL: Kind = Kind(0xff01);
    /// `count` bytes follow, which belong at `first_block` of what `request` wants.
    pub(crate) const PULL_DATA: Kind = Kind(0xff02);
    /// `count` bytes follow, for `first_block` of the region `file`.
    pub(crate) const PUSH_DATA: Kind = Kind(0xff03);
    /// All bytes of the push `request` are there.
    pub(crate) const PUSH_DONE: Kind = Kind(0xff04);
    /// `request` was refused, or with 0 the sender of it.
    pub(crate) const REFUSAL: Kind = Kind(0xff05);
    /// Wants a pong with the same `request`.
    pub(crate) const PING: Kind = Kind(0xff06);
    /// The answer.
    pub(crate) const PONG: Kind = Kind(0xff07);

    /// Whether only the fabric may send it.
    pub const fn is_own(self) -> bool {
        self.0 >= Kind::OWN.0
    }

    const fn is_known(self) -> bool {
        self.0 <= Kind::PONG.0
    }
}

/// What stands before each body.
///
/// ```
/// use forebay_fabric::{Header, Kind};
///
/// let header = Header { kind: Kind(7), request: 42, ..Header::default() };
/// let bytes = header.write(b"the body");
/// assert_eq!(Header::read(&bytes, b"the body"), Ok(header));
/// assert!(Header::read(&bytes, b"the b0dy").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// What it is about.
    pub kind: Kind,
    /// Bits that the kind gives a meaning.
    pub flags: u16,
    /// Who sends it; filled in by the fabric.
    pub sender: Member,
    /// The view of the group that the sender acts on.
    pub view: u32,
    /// The same in question and answer.
    pub request: u64,
    /// The file's inode.
    pub file: u64,
    /// The store of the file, by its number in the group's configuration.
    pub store: u16,
    /// A tier.
    pub tier: u8,
    /// The file's generation.
    pub generation: u32,
    /// The first block that it is about.
    pub first_block: u64,
    /// How many blocks.
    pub count: u32,
    /// How long the sender waits for an answer, in milliseconds.
    pub deadline_ms: u32,
}

impl Header {
    /// The bytes of the header of this body, which has at most [`BODY_MAX`] bytes.
    pub fn write(&self, body: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&VERSION.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.kind.0.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.sender.node.0.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sender.incarnation.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.view.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.store.to_le_bytes());
        bytes[34] = self.tier;
        bytes[36..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_block.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.count.to_le_bytes());
        bytes[52..56].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes[56..60].copy_from_slice(&self.deadline_ms.to_le_bytes());
        let sum = sum_of(&bytes, body);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// How long the body is that follows, from a header that may say anything.
    ///
    /// # Errors
    /// What is wrong with the version, the kind, the unused byte or the length.
    pub fn body_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<usize, Refusal> {
        if u16_at(bytes, 0) != VERSION {
            return Err(Refusal::Version);
        }
        if !Kind(u16_at(bytes, 2)).is_known() || bytes[35] != 0 {
            return Err(Refusal::Kind);
        }
        let len = u32_at(bytes, 52) as usize;
        if len > BODY_MAX { Err(Refusal::Length) } else { Ok(len) }
    }

    /// The header that these bytes are, which may be anything.
    ///
    /// # Errors
    /// What is wrong, of header or body.
    pub fn read(bytes: &[u8; HEADER_BYTES], body: &[u8]) -> Result<Header, Refusal> {
        if Header::body_bytes(bytes)? != body.len() {
            return Err(Refusal::Length);
        }
        if u32_at(bytes, SUM_AT) != sum_of(bytes, body) {
            return Err(Refusal::Sum);
        }
        Ok(Header {
            kind: Kind(u16_at(bytes, 2)),
            flags: u16_at(bytes, 6),
            sender: Member {
                node: NodeId(u16_at(bytes, 4)),
                incarnation: Incarnation(u32_at(bytes, 8)),
            },
            view: u32_at(bytes, 12),
            request: u64_at(bytes, 16),
            file: u64_at(bytes, 24),
            store: u16_at(bytes, 32),
            tier: bytes[34],
            generation: u32_at(bytes, 36),
            first_block: u64_at(bytes, 40),
            count: u32_at(bytes, 48),
            deadline_ms: u32_at(bytes, 56),
        })
    }
}

fn sum_of(bytes: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..SUM_AT]), body)
}

fn part<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes(part(bytes, at))
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngExt, SeedableRng};

    fn filled() -> Header {
        Header {
            kind: Kind(0x0102),
            flags: 0x0304,
            sender: Member::new(0x0506, 0x0708_090a),
            view: 0x0b0c_0d0e,
            request: 0x0f10_1112_1314_1516,
            file: 0x1718_191a_1b1c_1d1e,
            store: 0x1f20,
            tier: 0x21,
            generation: 0x2223_2425,
            first_block: 0x2627_2829_2a2b_2c2d,
            count: 0x2e2f_3031,
            deadline_ms: 0x3233_3435,
        }
    }

    #[test]
    fn each_field_has_its_place() {
        let bytes = filled().write(&[9; 300]);
        let words = [
            (0, 2, 1),
            (2, 2, 0x0102),
            (4, 2, 0x0506),
            (6, 2, 0x0304),
            (8, 4, 0x0708_090a),
            (12, 4, 0x0b0c_0d0e),
            (16, 8, 0x0f10_1112_1314_1516),
            (24, 8, 0x1718_191a_1b1c_1d1e),
            (32, 2, 0x1f20),
            (34, 1, 0x21),
            (35, 1, 0),
            (36, 4, 0x2223_2425),
            (40, 8, 0x2627_2829_2a2b_2c2d),
            (48, 4, 0x2e2f_3031),
            (52, 4, 300),
            (56, 4, 0x3233_3435),
        ];
        for (at, len, wanted) in words {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at..at + len]);
            assert_eq!(u64::from_le_bytes(word), wanted, "at {at}");
        }
        assert_eq!(Header::read(&bytes, &[9; 300]), Ok(filled()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let spoiled = |at: usize, value: u8| {
            let mut bytes = filled().write(b"body");
            bytes[at] = value;
            Header::read(&bytes, b"body")
        };
        assert_eq!(spoiled(0, 2), Err(Refusal::Version));
        assert_eq!(spoiled(35, 1), Err(Refusal::Kind));
        assert_eq!(spoiled(52, 5), Err(Refusal::Length));
        assert_eq!(spoiled(54, 2), Err(Refusal::Length));
        assert_eq!(spoiled(20, 0), Err(Refusal::Sum));
        let unknown = Header { kind: Kind(Kind::PONG.0 + 1), ..filled() };
        assert_eq!(Header::read(&unknown.write(b""), b""), Err(Refusal::Kind));
        let bytes = filled().write(b"body");
        assert_eq!(Header::read(&bytes, b"bodY"), Err(Refusal::Sum));
        assert_eq!(Header::read(&bytes, b"bod"), Err(Refusal::Length));
        let longest = filled().write(&vec![1; BODY_MAX]);
        assert_eq!(Header::body_bytes(&longest), Ok(BODY_MAX));
        let longer = filled().write(&vec![1; BODY_MAX + 1]);
        assert_eq!(Header::body_bytes(&longer), Err(Refusal::Length));
    }

    #[test]
    fn any_spoiled_byte_is_refused() {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = since.as_nanos() as u64;
        println!("seed {seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..200 {
            let mut body = vec![0; rng.random_range(0..200)];
            rng.fill_bytes(&mut body);
            let header = Header {
                kind: Kind(rng.random_range(0..Kind::OWN.0)),
                flags: rng.random(),
                sender: Member::new(rng.random(), rng.random()),
                view: rng.random(),
                request: rng.random(),
                file: rng.random(),
                store: rng.random(),
                tier: rng.random(),
                generation: rng.random(),
                first_block: rng.random(),
                count: rng.random(),
                deadline_ms: rng.random(),
            };
            let bytes = header.write(&body);
            assert_eq!(Header::read(&bytes, &body), Ok(header));
            for at in 0..HEADER_BYTES + body.len() {
                let (mut bytes, mut body) = (bytes, body.clone());
                let byte = if at < 64 { &mut bytes[at] } else { &mut body[at - 64] };
                *byte ^= rng.random_range(1..=u8::MAX);
                assert!(Header::read(&bytes, &body).is_err(), "byte {at} of {header:?}");
            }
        }
    }
}
