//! The superblock of the journal: two copies at the beginning of its file, each of which says where
//! the log is, which generation of it counts, and up to where files are checkpointed.

use super::file::{NOT_OURS, read_full};
use super::record::{FileIdentity, Position};
use forebay_pool::layout::{MAKER, MAKER_BYTES};
use forebay_pool::mark::MARKS_AT;
use forebay_pool::private::{self, Wrong};
use forebay_pool::segment::{set_text, text};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;

const MAGIC: u64 = u64::from_le_bytes(*b"FBJOURNL");
pub(super) const VERSION: u32 = 5;
/// Bytes of each of the two copies; the second lies behind the first.
pub(super) const COPY_BYTES: u64 = MARKS_AT / 2;
/// Where a copy names the version of Forebay that made it, from version 3 of the journal on and in
/// every later one.
pub(super) const MAKER_AT: usize = 56;
const NAMES_MAKER: u32 = 3;
/// Bytes of a copy before the live files, and of each of those.
const FIXED: usize = MAKER_AT + MAKER_BYTES;
const LIVE_BYTES: usize = 32;

/// How the journals of a version are read. Marks and records are the same in all of these; none is
/// of a state of a staged file before version 4, or of A or M before version 5.
struct Reader {
    version: u32,
    /// Bytes of a copy before the live files.
    fixed: usize,
}

/// This version, which alone is written, and those before it: what they have left is brought to the
/// store, too.
const READERS: [Reader; 4] = [
    Reader { version: VERSION, fixed: FIXED },
    Reader { version: 4, fixed: FIXED },
    Reader { version: 3, fixed: FIXED },
    Reader { version: 2, fixed: MAKER_AT },
];
/// Files with slots that a superblock can name.
pub(super) const LIVE_MAX: usize = (COPY_BYTES as usize - FIXED) / LIVE_BYTES;

/// For a journal that another version has made, which cannot be read.
pub(crate) const OTHER_VERSION: Errno = Errno::PROTONOSUPPORT;

/// Why the journal at `path`, or another file of ours on a tier, cannot be opened or read.
pub(crate) fn reason(path: &Path, errno: Errno) -> String {
    match errno {
        NOT_OURS => "it is not a file that only this user can write (another owner or kind, a mode that \
             lets others write, or another name of it); nothing of it was read: look whose it is, and move it away"
            .to_owned(),
        OTHER_VERSION => {
            let file = private::open(path, OFlags::RDONLY).map_err(Wrong::errno);
            let (version, maker) = file.and_then(|file| made_by(&file)).unwrap_or_default();
            other_version("journal", version, VERSION, &maker)
        }
        errno => errno.to_string(),
    }
}

/// For people: what of `kind` is of `version`, another than `ours`, and which version of Forebay
/// made it, if it says so.
pub(crate) fn other_version(kind: &str, version: u32, ours: u32, maker: &str) -> String {
    let maker = if maker.is_empty() { maker } else { &format!(": {maker}") };
    format!(
        "made by another version of Forebay{maker} ({kind} {version}, this is {MAKER} with {kind} {ours}); \
         nothing was changed: run `forebay recover` of that version, which docs/recovery.md#which-version names"
    )
}

/// The version of a journal, and that of Forebay which made it; empty if it does not say.
fn made_by(file: &OwnedFd) -> Result<(u32, String), Errno> {
    let mut found = (0, 0, String::new());
    for at in [0, COPY_BYTES] {
        let mut bytes = vec![0; FIXED];
        read_full(file, &mut bytes, at)?;
        let version = u32::from_le_bytes(std::array::from_fn(|n| bytes[8 + n]));
        let generation = u64::from_le_bytes(std::array::from_fn(|n| bytes[16 + n]));
        if bytes[..8] == MAGIC.to_le_bytes() && generation >= found.0 {
            let maker = if version >= NAMES_MAKER { text(&bytes[MAKER_AT..]) } else { c"" };
            found = (generation, version, maker.to_string_lossy().into_owned());
        }
    }
    Ok((found.1, found.2))
}

/// What the superblock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// Which generation of the log counts: each begins at `start` again, and forgets the one
    /// before.
    pub generation: u64,
    /// Where the log begins, and one past where it may end.
    pub start: u64,
    pub end: u64,
    /// Up to this sequence the store durably has every file, but for those in `live`: them only up
    /// to theirs.
    pub checkpoint_lsn: Option<u64>,
    pub live: Vec<(FileIdentity, Option<u64>)>,
}

impl Superblock {
    /// One copy, as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let up = |sequence: Option<u64>| sequence.map_or(0, |sequence| sequence.saturating_add(1));
        let mut out = vec![0; 16];
        let fields = [
            self.generation,
            self.start,
            self.end,
            up(self.checkpoint_lsn),
            self.live.len() as u64,
        ];
        let live = self
            .live
            .iter()
            .flat_map(|&(file, lsn)| [file.device, file.inode, file.born_ns, up(lsn)]);
        let mut maker = [0; MAKER_BYTES];
        set_text(&mut maker, MAKER.as_bytes());
        out.extend(fields.into_iter().flat_map(u64::to_le_bytes));
        out.extend_from_slice(&maker);
        out.extend(live.flat_map(u64::to_le_bytes));
        let crc = crc32c::crc32c(&out[16..]);
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The superblock in some bytes, and the version that it is of.
    pub fn decode(from: &[u8]) -> Option<(Superblock, u32)> {
        let word = |at: usize| Some(u64::from_le_bytes(from.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(from.get(at..at + 4)?.try_into().ok()?));
        let version = short(8)?;
        let reader = READERS.iter().find(|reader| reader.version == version)?;
        if word(0)? != MAGIC {
            return None;
        }
        let most = (COPY_BYTES as usize - reader.fixed) / LIVE_BYTES;
        let count = usize::try_from(word(48)?).ok().filter(|&count| count <= most)?;
        if short(12)? != crc32c::crc32c(from.get(16..reader.fixed + count * LIVE_BYTES)?) {
            return None;
        }
        let names = from[reader.fixed..][..count * LIVE_BYTES].as_chunks::<LIVE_BYTES>().0.iter();
        let name = |name: &[u8; LIVE_BYTES]| {
            let [device, inode, born_ns, lsn] =
                [0, 8, 16, 24].map(|at| u64::from_le_bytes(std::array::from_fn(|n| name[at + n])));
            (FileIdentity { device, inode, born_ns }, lsn.checked_sub(1))
        };
        let superblock = Superblock {
            generation: word(16)?,
            start: word(24)?,
            end: word(32)?,
            checkpoint_lsn: word(40)?.checked_sub(1),
            live: names.map(name).collect(),
        };
        let is_possible = superblock.start <= superblock.end
            && superblock.start >= MARKS_AT
            && superblock.generation < u64::MAX;
        is_possible.then_some((superblock, version))
    }

    /// The generation in a copy that another version has made, which cannot be read.
    fn generation_of_other(from: &[u8]) -> Option<u64> {
        let (magic, rest) = from.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let version = u32::from_le_bytes(*version);
        let is_other = u64::from_le_bytes(*magic) == MAGIC
            && READERS.iter().all(|reader| reader.version != version);
        let generation = rest.get(4..)?.first_chunk()?;
        is_other.then(|| u64::from_le_bytes(*generation))
    }

    /// The first record's position.
    pub fn first(&self) -> Position {
        Position { generation: self.generation, link: self.generation as u32, synced: 0 }
    }
}

/// The two copies of the superblock, as they are found.
#[derive(Default)]
pub(super) struct Copies {
    /// The one that holds, and which version it is of.
    pub best: Option<Superblock>,
    pub version: u32,
    /// How many can be read, and how many are there and cannot.
    pub sound: usize,
    pub damaged: usize,
    /// Where the one that holds is, and whether the other is the same.
    pub best_at: u64,
    pub agree: bool,
}

impl Copies {
    /// Reads them.
    ///
    /// # Errors
    /// The device's; [`OTHER_VERSION`].
    pub fn of(file: &OwnedFd) -> Result<Copies, Errno> {
        let mut copies = Copies::default();
        let mut others = None;
        for at in [0, COPY_BYTES] {
            let mut bytes = vec![0; COPY_BYTES as usize];
            let got = read_full(file, &mut bytes, at)?;
            others = others.max(Superblock::generation_of_other(&bytes));
            match Superblock::decode(&bytes[..got]) {
                Some((copy, version)) => {
                    copies.sound += 1;
                    copies.agree = copies.best.as_ref() == Some(&copy);
                    if copies.best.as_ref().is_none_or(|best| best.generation < copy.generation) {
                        (copies.best, copies.best_at) = (Some(copy), at);
                        copies.version = version;
                    }
                }
                None if bytes.iter().any(|&byte| byte != 0) => copies.damaged += 1,
                None => {}
            }
        }
        // A corrupt version number beside a copy like this one is no other version's.
        match others > copies.best.as_ref().map(|best| best.generation) {
            true => Err(OTHER_VERSION),
            false => Ok(copies),
        }
    }

    /// Whether no copy that was once complete can be read: while the first one is written for the
    /// first time, there is nothing where the second one goes.
    pub fn are_lost(&self) -> bool {
        self.sound == 0 && self.damaged > 1
    }
}
