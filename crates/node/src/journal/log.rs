//! The journal's file: two heads, marks, and the log.
//!
//! ```text
//!      0 head   65536 head      the one with the higher epoch holds; mostly both are the same
//! 131072 marks                  64 bytes for each file record, see `forebay_pool::mark`
//!  start log                    records, from the beginning again in each round (epoch)
//! ```

use super::record::{Body, Key, Name, Place, Record};
use crate::instance::runtime::sync_folder_of;
use forebay_pool::layout::{MAKER, MAKER_BYTES};
use forebay_pool::mark::{MARK_BYTES, MARKS_AT, Mark};
use forebay_pool::private::{self, Wrong};
use forebay_pool::segment::{set_text, text};
use forebay_pool::{clock, crash, undo};
use forebay_tiers::{IoClient, Transfer};
use libc::iovec;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

const MAGIC: u64 = u64::from_le_bytes(*b"FBJOURNL");
const VERSION: u32 = 3;
/// Each of the two heads.
const HEAD_BYTES: u64 = MARKS_AT / 2;
/// Where a head names the version of Forebay that made it, from version 3 of the journal on and in every later one.
const MAKER_AT: usize = 56;
const NAMES_MAKER: u32 = 3;
/// Bytes of a head before the live files, and of each of those.
const FIXED: usize = MAKER_AT + MAKER_BYTES;
const LIVE_BYTES: usize = 32;

/// How the journals of a version are read. Marks and records are the same in all of these.
struct Reader {
    version: u32,
    /// Bytes of a head before the live files.
    fixed: usize,
}

/// This version, which alone is written, and the one before it: what that has left is brought to the store, too.
const READERS: [Reader; 2] =
    [Reader { version: VERSION, fixed: FIXED }, Reader { version: 2, fixed: MAKER_AT }];
/// Files with slots that a head can name.
pub(crate) const LIVE_MAX: usize = (HEAD_BYTES as usize - FIXED) / LIVE_BYTES;
/// This part of the log only records other than data may take: what settles the files that the
/// rest of it has data of must find room.
const RESERVE: u64 = 16;
/// Records are written out when so many bytes have come together.
const BATCH_BYTES: usize = 4 << 20;
/// A log whose records are all dead begins anew only when it has this much: that costs a sync.
const WORTH_RESTART: u64 = 1 << 20;
/// Bytes read at a time.
const READ_BYTES: usize = 8 << 20;

/// Why a record was not appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogError {
    /// There is no room.
    Full,
    /// A client holds what is to be written, and does not go on.
    Held,
    /// The device's.
    Device(Errno),
}

impl LogError {
    fn errno(self) -> Errno {
        match self {
            LogError::Full => Errno::NOSPC,
            LogError::Held => Errno::AGAIN,
            LogError::Device(errno) => errno,
        }
    }
}

/// For a journal that another version has made, which cannot be read.
pub(crate) const OTHER_VERSION: Errno = Errno::PROTONOSUPPORT;

/// For a file in whose place another user has put one, or that another user may have written to.
pub(crate) const NOT_OURS: Errno = Errno::KEYREJECTED;

/// Opens a file that user `owner` has made on a tier; waits for nothing. For those of this user see [`private`].
///
/// # Errors
/// The device's; [`NOT_OURS`] if another user may have written it, or it has another name elsewhere.
pub(crate) fn open_owned(path: &Path, access: OFlags, owner: u32) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let found = rustix::fs::fstat(&file)?;
    let ours = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_uid == owner
        && found.st_mode & 0o022 == 0
        && found.st_nlink == 1;
    if ours { Ok(file) } else { Err(NOT_OURS) }
}

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

/// For people: what of `kind` is of `version`, another than `ours`, and which version of Forebay made it, if it says so.
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
    for at in [0, HEAD_BYTES] {
        let mut bytes = vec![0; FIXED];
        read_full(file, &mut bytes, at)?;
        let version = u32::from_le_bytes(std::array::from_fn(|n| bytes[8 + n]));
        let epoch = u64::from_le_bytes(std::array::from_fn(|n| bytes[16 + n]));
        if bytes[..8] == MAGIC.to_le_bytes() && epoch >= found.0 {
            let maker = if version >= NAMES_MAKER { text(&bytes[MAKER_AT..]) } else { c"" };
            found = (epoch, version, maker.to_string_lossy().into_owned());
        }
    }
    Ok((found.1, found.2))
}

/// What a head says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Head {
    epoch: u64,
    /// Where the log begins, and one past where it may end.
    start: u64,
    end: u64,
    /// Up to this sequence every file is settled, but for those in `live`: they only up to theirs.
    floor: Option<u64>,
    live: Vec<(Name, Option<u64>)>,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let up = |sequence: Option<u64>| sequence.map_or(0, |sequence| sequence.saturating_add(1));
        let mut out = vec![0; 16];
        let head = [self.epoch, self.start, self.end, up(self.floor), self.live.len() as u64];
        let live = self
            .live
            .iter()
            .flat_map(|&((device, inode, born_ns), settled)| [device, inode, born_ns, up(settled)]);
        let mut maker = [0; MAKER_BYTES];
        set_text(&mut maker, MAKER.as_bytes());
        out.extend(head.into_iter().flat_map(u64::to_le_bytes));
        out.extend_from_slice(&maker);
        out.extend(live.flat_map(u64::to_le_bytes));
        let crc = crc32c::crc32c(&out[16..]);
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The head in some bytes, and the version that it is of.
    fn decode(from: &[u8]) -> Option<(Head, u32)> {
        let word = |at: usize| Some(u64::from_le_bytes(from.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(from.get(at..at + 4)?.try_into().ok()?));
        let version = short(8)?;
        let reader = READERS.iter().find(|reader| reader.version == version)?;
        if word(0)? != MAGIC {
            return None;
        }
        let most = (HEAD_BYTES as usize - reader.fixed) / LIVE_BYTES;
        let count = usize::try_from(word(48)?).ok().filter(|&count| count <= most)?;
        if short(12)? != crc32c::crc32c(from.get(16..reader.fixed + count * LIVE_BYTES)?) {
            return None;
        }
        let names = from[reader.fixed..][..count * LIVE_BYTES].as_chunks::<LIVE_BYTES>().0.iter();
        let name = |name: &[u8; LIVE_BYTES]| {
            let [device, inode, born_ns, settled] =
                [0, 8, 16, 24].map(|at| u64::from_le_bytes(std::array::from_fn(|n| name[at + n])));
            ((device, inode, born_ns), settled.checked_sub(1))
        };
        let head = Head {
            epoch: word(16)?,
            start: word(24)?,
            end: word(32)?,
            floor: word(40)?.checked_sub(1),
            live: names.map(name).collect(),
        };
        let is_possible = head.start <= head.end && head.start >= MARKS_AT && head.epoch < u64::MAX;
        is_possible.then_some((head, version))
    }

    /// The epoch, if a version has made it that cannot be read.
    fn epoch_of_other(from: &[u8]) -> Option<u64> {
        let (magic, rest) = from.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let version = u32::from_le_bytes(*version);
        let is_other = u64::from_le_bytes(*magic) == MAGIC
            && READERS.iter().all(|reader| reader.version != version);
        let epoch = rest.get(4..)?.first_chunk()?;
        is_other.then(|| u64::from_le_bytes(*epoch))
    }

    /// The first record's place.
    fn first(&self) -> Place {
        Place { epoch: self.epoch, link: self.epoch as u32, synced: 0 }
    }
}

/// The heads of a journal's file.
#[derive(Default)]
struct Heads {
    /// The one that holds, and which version it is of.
    best: Option<Head>,
    version: u32,
    /// How many can be read, and how many are there and cannot.
    sound: usize,
    damaged: usize,
    /// Where the one that holds is, and whether the other is the same.
    best_at: u64,
    are_twins: bool,
}

impl Heads {
    /// Reads them.
    ///
    /// # Errors
    /// The device's; [`OTHER_VERSION`].
    fn of(file: &OwnedFd) -> Result<Heads, Errno> {
        let mut heads = Heads::default();
        let mut others = None;
        for at in [0, HEAD_BYTES] {
            let mut bytes = vec![0; HEAD_BYTES as usize];
            let got = read_full(file, &mut bytes, at)?;
            others = others.max(Head::epoch_of_other(&bytes));
            match Head::decode(&bytes[..got]) {
                Some((head, version)) => {
                    heads.sound += 1;
                    heads.are_twins = heads.best.as_ref() == Some(&head);
                    if heads.best.as_ref().is_none_or(|best| best.epoch < head.epoch) {
                        (heads.best, heads.best_at) = (Some(head), at);
                        heads.version = version;
                    }
                }
                None if bytes.iter().any(|&byte| byte != 0) => heads.damaged += 1,
                None => {}
            }
        }
        // A version that has rotted beside a head like this one is no other version's.
        match others > heads.best.as_ref().map(|best| best.epoch) {
            true => Err(OTHER_VERSION),
            false => Ok(heads),
        }
    }

    /// Whether none that was once complete can be read: while the first one is written, there is nothing
    /// in the other's place.
    fn are_lost(&self) -> bool {
        self.sound == 0 && self.damaged > 1
    }
}

/// The log as the manager writes it.
pub(crate) struct Log {
    file: OwnedFd,
    head: Head,
    /// Where the next batch goes, and the place of the record after it.
    at: u64,
    place: Place,
    batch: Vec<u8>,
    /// The other head is to be made like this one before anything of the round is promised.
    twin_due: bool,
    /// The highest sequence of the records that were there.
    found: Option<u64>,
    /// A record that was durable is none any more: what came behind it could not be read back.
    is_damaged: bool,
}

impl Log {
    /// Opens the journal at `path`, or makes one of `bytes` with marks for `files` file records. One
    /// of this version that is there is carried on.
    ///
    /// # Errors
    /// The device's; [`OTHER_VERSION`].
    pub fn open(path: &Path, bytes: u64, files: u32, io: &mut dyn IoClient) -> Result<Log, Errno> {
        let file = private::open_or_create(path, OFlags::RDWR).map_err(Wrong::errno)?;
        let start = (MARKS_AT + u64::from(files) * MARK_BYTES as u64).next_multiple_of(4096);
        let heads = Heads::of(&file)?;
        let Some(head) = heads.best else {
            // Epochs that no other journal has: neither what damaged heads were about, nor what lies in
            // data of users, is of this log.
            let epoch = clock::realtime_ns();
            let head = Head { epoch, start, end: start + bytes, floor: None, live: Vec::new() };
            let mut log = Log::new(file, head);
            log.restart(None, &[], io).map_err(|error| {
                if heads.damaged == 0 {
                    // A part of a head is none, and recovery would take it for one that has rotted.
                    undo::resizing(log.file.as_fd(), 0);
                    let _ = rustix::fs::ftruncate(&log.file, 0);
                }
                error.errno()
            })?;
            sync_folder_of(path);
            return Ok(log);
        };
        if heads.version != VERSION {
            // What it has is brought to the store before there is a pool; it is never written to.
            return Err(OTHER_VERSION);
        }
        let mut log = Log::new(file, head);
        scan(&log.file, &log.head, |record, at, place| {
            log.found = log.found.max(Some(record.sequence));
            (log.at, log.place) = (at, place);
        })?;
        stragglers(&log.file, &log.head, log.at, |record, _, synced| {
            log.found = log.found.max(Some(record.sequence));
            log.is_damaged |= synced > log.at;
            true
        })?;
        if !heads.are_twins {
            // It may be in the page cache only, and the other one has to go before it rots, too.
            io.sync(log.file.as_raw_fd())?;
            let at = if heads.best_at == 0 { HEAD_BYTES } else { 0 };
            write(io, &log.file, at, &mut log.head.encode())?;
            io.sync(log.file.as_raw_fd())?;
        }
        Ok(log)
    }

    fn new(file: OwnedFd, head: Head) -> Log {
        let (at, place) = (head.start, head.first());
        let (batch, twin_due, found, is_damaged) = (Vec::new(), false, None, false);
        Log { file, head, at, place, batch, twin_due, found, is_damaged }
    }

    /// Whether it must not be carried on: what comes to it could not be read back.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// The highest sequence of what was there when it was opened.
    pub fn found(&self) -> Option<u64> {
        self.found.max(self.head.floor)
    }

    /// Bytes of the log in use.
    pub fn used(&self) -> u64 {
        self.at - self.head.start + self.batch.len() as u64
    }

    /// Bytes of the log.
    pub fn bytes(&self) -> u64 {
        self.head.end - self.head.start
    }

    /// Up to which sequence this round's head calls settled what it does not name.
    pub fn floor(&self) -> Option<u64> {
        self.head.floor
    }

    /// Whether beginning anew is worth its sync.
    pub fn is_worth_restart(&self) -> bool {
        self.used() >= WORTH_RESTART.min(self.bytes() / 2)
    }

    /// Adds a record to the batch; it is safe after [`Log::commit`].
    ///
    /// # Errors
    /// `Full`, and nothing was added; the device's, if a full batch could not be written.
    pub fn append(&mut self, record: &Record<'_>, io: &mut dyn IoClient) -> Result<(), LogError> {
        self.push(record)?;
        if self.batch.len() >= BATCH_BYTES { self.write_out(io) } else { Ok(()) }
    }

    /// Adds a record to the batch, which is written with the next commit.
    ///
    /// # Errors
    /// `Full`, and nothing was added.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), LogError> {
        let is_data = matches!(record.body, Body::Data { .. });
        let reserve = if is_data { self.bytes() / RESERVE } else { 0 };
        let needed = record.encoded_len() as u64 + reserve;
        if self.used() + needed > self.bytes() {
            return Err(LogError::Full);
        }
        self.place = record.encode(self.place, &mut self.batch);
        crash::point("journal.append");
        Ok(())
    }

    fn write_out(&mut self, io: &mut dyn IoClient) -> Result<(), LogError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        crash::point("journal.writing");
        write(io, &self.file, self.at, &mut self.batch).map_err(LogError::Device)?;
        crash::point("journal.written");
        self.at += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }

    /// Writes what was appended; durably, if asked.
    ///
    /// # Errors
    /// The device's. The records stay in the batch if they could not be written.
    pub fn commit(&mut self, durably: bool, io: &mut dyn IoClient) -> Result<(), LogError> {
        self.write_out(io)?;
        if durably && self.twin_due {
            self.write_twin(io).map_err(LogError::Device)?;
        }
        if durably && !crash::planted("journal-unsynced") {
            io.sync(self.file.as_raw_fd()).map_err(LogError::Device)?;
            self.place.synced = self.at;
            crash::point("journal.synced");
        }
        Ok(())
    }

    /// Begins a new round: all records are forgotten, also those that were not yet written.
    ///
    /// # Errors
    /// `Full` if there are too many live files to name: the round before goes on. The device's: which of
    /// the two rounds holds after a power loss is open, and neither may be carried on.
    pub fn restart(
        &mut self,
        floor: Option<u64>,
        live: &[(Name, Option<u64>)],
        io: &mut dyn IoClient,
    ) -> Result<(), LogError> {
        if live.len() > LIVE_MAX {
            return Err(LogError::Full);
        }
        let head = Head { epoch: self.head.epoch + 1, floor, live: live.to_vec(), ..self.head };
        crash::point("journal.restarting");
        let at = head.epoch % 2 * HEAD_BYTES;
        write(io, &self.file, at, &mut head.encode()).map_err(LogError::Device)?;
        crash::point("journal.head");
        io.sync(self.file.as_raw_fd()).map_err(LogError::Device)?;
        crash::point("journal.restarted");
        (self.at, self.place) = (head.start, head.first());
        self.head = head;
        self.batch.clear();
        // It is durable with the first commit of the round, before which there is nothing to lose; what
        // fails now is tried again then.
        self.twin_due = true;
        let _ = self.write_twin(io);
        Ok(())
    }

    /// Writes the other head, too: else, if this one rots, an earlier round would hold again.
    fn write_twin(&mut self, io: &mut dyn IoClient) -> Result<(), Errno> {
        let at = (1 - self.head.epoch % 2) * HEAD_BYTES;
        write(io, &self.file, at, &mut self.head.encode())?;
        self.twin_due = false;
        crash::point("journal.heads");
        Ok(())
    }
}

fn write(
    io: &mut dyn IoClient,
    file: &OwnedFd,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), Errno> {
    let buffer = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` outlives the run.
    let mut writes = [unsafe { Transfer::write(file.as_raw_fd(), offset, vec![buffer]) }];
    io.run(&mut writes);
    match writes[0].result()? {
        written if written == bytes.len() as u64 => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn read_full(file: &OwnedFd, to: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < to.len() {
        match rustix::io::pread(file, &mut to[done..], at + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Where data is at or behind `at`; the end of the file, if there is none.
pub(crate) fn data_from(file: impl AsFd, at: u64) -> Result<u64, Errno> {
    match rustix::fs::seek(&file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // Where it cannot be told.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno),
    }
}

/// Calls `each` for every record, with where the next begins and its place.
fn scan(
    file: &OwnedFd,
    head: &Head,
    mut each: impl FnMut(Record<'_>, u64, Place),
) -> Result<(), Errno> {
    let (mut at, mut place) = (head.start, head.first());
    let mut window: Vec<u8> = Vec::new();
    loop {
        let room = (head.end - at).min(READ_BYTES as u64) as usize;
        window.resize(room, 0);
        let got = read_full(file, &mut window, at)?;
        let mut done = 0;
        while let Some((record, length, next)) = Record::decode(&window[done..got], place) {
            done += length;
            place = next;
            each(record, at + done as u64, place);
        }
        if done == 0 {
            return Ok(());
        }
        at += done as u64;
    }
}

/// Calls `each` for every record of this round behind `from`, whatever it follows, with where it is and
/// what was durable when it was made, until that says false.
fn stragglers(
    file: &OwnedFd,
    head: &Head,
    from: u64,
    mut each: impl FnMut(Record<'_>, u64, u64) -> bool,
) -> Result<(), Errno> {
    let mut window = vec![0; READ_BYTES];
    let mut start = from;
    while start < head.end {
        // A hole may be longer than can be read in years.
        start = start.max(data_from(file, start)? & !7);
        if start >= head.end {
            break;
        }
        let room = (head.end - start).min(READ_BYTES as u64) as usize;
        let got = read_full(file, &mut window[..room], start)?;
        let (mut at, half) = (0, READ_BYTES / 2);
        // One that is cut off at the end is looked at again, unless it is longer than half of all.
        while at < if got < READ_BYTES { got } else { half } {
            let from = &window[at..got];
            let link = from.get(12..16).and_then(|link| link.try_into().ok());
            let link = u32::from_le_bytes(link.unwrap_or([0; 4]));
            let place = Place { epoch: head.epoch, link, synced: 0 };
            match Record::decode(from, place) {
                // What was durable lay before it: else it is a copy from elsewhere.
                Some((record, length, next)) if next.synced <= start + at as u64 => {
                    if !each(record, start + at as u64, next.synced) {
                        return Ok(());
                    }
                    at += length;
                }
                _ => at += 8,
            }
        }
        if got < READ_BYTES {
            break;
        }
        start += at as u64;
    }
    Ok(())
}

/// A journal's file as it is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Examined {
    /// Heads that can be read, and those that are there and cannot.
    pub heads: usize,
    pub damaged_heads: usize,
    /// Records of this round, the bytes that they take, and those that there are.
    pub records: u64,
    pub used: u64,
    pub size: u64,
    /// Where the last record ends.
    pub end: u64,
    /// The highest of their numbers.
    pub last_sequence: Option<u64>,
    /// A record of this round that nothing leads to.
    pub behind: Option<u64>,
    /// What lies at `end` was durable once, and is no record any more.
    pub is_damaged: bool,
}

/// Looks at the journal at `path`.
///
/// # Errors
/// The device's; `NOENT` if there is none; [`OTHER_VERSION`].
pub(crate) fn examine(path: &Path) -> Result<Examined, Errno> {
    let file = private::open(path, OFlags::RDONLY).map_err(Wrong::errno)?;
    let heads = Heads::of(&file)?;
    let mut found =
        Examined { heads: heads.sound, damaged_heads: heads.damaged, ..Examined::default() };
    let Some(head) = heads.best else { return Ok(found) };
    (found.end, found.size) = (head.start, head.end - head.start);
    scan(&file, &head, |record, end, _| {
        found.records += 1;
        found.end = end;
        found.last_sequence = found.last_sequence.max(Some(record.sequence));
    })?;
    found.used = found.end - head.start;
    stragglers(&file, &head, found.end, |_, at, synced| {
        found.behind = found.behind.or(Some(at));
        found.is_damaged = synced > found.end;
        !found.is_damaged
    })?;
    Ok(found)
}

/// One change of a file that a sync had acknowledged, or that has to come after such ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Data { offset: u64, size: u64, mtime_ns: u64, bytes: Vec<u8> },
    Cut { size: u64 },
    Punch { start: u64, end: u64 },
}

/// What a journal says about one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileLog {
    /// A hint.
    pub path: Vec<u8>,
    /// By ascending sequence, as appended; only what is not settled.
    pub changes: Vec<(u64, Change)>,
}

/// What is to be applied, as a journal says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Contents {
    /// There was a journal.
    pub found: bool,
    pub files: HashMap<Key, FileLog>,
    /// Up to which sequence a file is settled, as records and marks say.
    settled: HashMap<Name, u64>,
    live: HashMap<Name, Option<u64>>,
    floor: Option<u64>,
    /// Where a record was that was durable and is not one any more. What comes behind it counts all the
    /// same.
    pub damaged: Option<u64>,
}

impl Contents {
    /// Reads the journal at `path`; there may be none.
    ///
    /// # Errors
    /// The device's; `BADMSG` if it cannot be told what was settled; [`OTHER_VERSION`].
    pub fn read(path: &Path) -> Result<Contents, Errno> {
        let file = match private::open(path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(wrong) if wrong.is_missing() => return Ok(Contents::default()),
            Err(wrong) => return Err(wrong.errno()),
        };
        let mut contents = Contents { found: true, ..Contents::default() };
        let heads = Heads::of(&file)?;
        if heads.are_lost() {
            return Err(Errno::BADMSG);
        }
        // Without a head nothing was ever committed.
        let Some(head) = heads.best else { return Ok(contents) };
        contents.floor = head.floor;
        contents.live = head.live.iter().copied().collect();
        contents.read_marks(&file, &head)?;
        let mut end = head.start;
        scan(&file, &head, |record, at, _| {
            contents.take(record);
            end = at;
        })?;
        stragglers(&file, &head, end, |_, _, synced| {
            contents.damaged = (synced > end).then_some(end);
            contents.damaged.is_none()
        })?;
        if contents.damaged.is_some() {
            stragglers(&file, &head, end, |record, _, _| {
                contents.take(record);
                true
            })?;
        }
        let Contents { files, settled, .. } = &mut contents;
        files.retain(|key, file| {
            let settled = settled.get(&key.name()).copied();
            file.changes.retain(|(sequence, _)| settled.is_none_or(|settled| *sequence > settled));
            !file.changes.is_empty()
        });
        Ok(contents)
    }

    fn read_marks(&mut self, file: &OwnedFd, head: &Head) -> Result<(), Errno> {
        // Whatever the head says, not more than there is.
        let end = head.start.min(rustix::fs::fstat(file)?.st_size as u64);
        let mut bytes = vec![0; end.saturating_sub(MARKS_AT) as usize];
        let got = read_full(file, &mut bytes, MARKS_AT)?;
        for bytes in bytes[..got].as_chunks::<MARK_BYTES>().0 {
            if let Some(mark) = Mark::decode(bytes) {
                self.settle((mark.device, mark.inode, mark.born_ns), mark.sequence);
            }
        }
        Ok(())
    }

    /// How many files have something to be applied, and how many bytes.
    pub fn pending(&self) -> (usize, u64) {
        let bytes = |change: &(u64, Change)| match &change.1 {
            Change::Data { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        let changes = self.files.values().flat_map(|file| &file.changes);
        (self.files.len(), changes.map(bytes).sum())
    }

    /// Whether it has all bytes of a range of a file.
    pub fn covers(&self, name: Name, range: &Range<u64>) -> bool {
        let has = |change: &(u64, Change)| match &change.1 {
            Change::Data { offset, bytes, .. } => {
                *offset <= range.start && range.end <= offset.saturating_add(bytes.len() as u64)
            }
            _ => false,
        };
        let files = self.files.iter().filter(|(key, _)| key.name() == name);
        files.flat_map(|(_, file)| &file.changes).any(has)
    }

    /// Up to which sequence the store durably has everything of a file.
    pub fn settled_up_to(&self, name: Name) -> Option<u64> {
        let at_start = self.live.get(&name).copied().unwrap_or(self.floor);
        self.settled.get(&name).copied().max(at_start)
    }

    fn settle(&mut self, name: Name, sequence: u64) {
        let settled = self.settled.entry(name).or_default();
        *settled = sequence.max(*settled);
    }

    fn take(&mut self, record: Record<'_>) {
        let Record { sequence, key, body } = record;
        let change = match body {
            Body::Data { offset, size, mtime_ns, path, bytes } => {
                let file = self.files.entry(key.clone()).or_default();
                if !path.is_empty() {
                    file.path = path.to_vec();
                }
                Change::Data { offset, size, mtime_ns, bytes: bytes.to_vec() }
            }
            Body::Cut { size } => Change::Cut { size },
            Body::Punch { start, end } => Change::Punch { start, end },
            Body::Gone | Body::Settled => {
                if let Some(file) = self.files.get_mut(&key) {
                    file.changes.retain(|&(of, _)| of > sequence);
                }
                self.settle(key.name(), sequence);
                return;
            }
            Body::Stop => {
                self.files.clear();
                self.live.clear();
                self.floor = self.floor.max(Some(sequence));
                return;
            }
        };
        self.files.entry(key).or_default().changes.push((sequence, change));
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{any, bytes_of, seeded};
    use super::*;
    use forebay_tiers::{Fault, FaultScript, Faulty, Operation, Positional, Rule, When};

    fn key(inode: u64) -> Key {
        Key { device: 1, inode, born_ns: 7, ..Key::default() }
    }

    fn data(inode: u64, sequence: u64, bytes: &[u8]) -> Record<'_> {
        let body = Body::Data { offset: sequence, size: 99, mtime_ns: 5, path: b"/a", bytes };
        Record { sequence, key: key(inode), body }
    }

    fn sequences(contents: &Contents, inode: u64) -> Vec<u64> {
        let file = contents.files.get(&key(inode));
        file.map_or(Vec::new(), |file| file.changes.iter().map(|&(sequence, _)| sequence).collect())
    }

    #[test]
    fn what_is_settled_gone_or_of_an_earlier_round_is_not_applied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let io = &mut Positional;
        assert!(!Contents::read(&path).unwrap().found);
        let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
        for (inode, sequence) in [(1, 1), (2, 2), (1, 3), (3, 4)] {
            log.append(&data(inode, sequence, b"bytes"), io).unwrap();
        }
        log.append(&Record { sequence: 2, key: key(2), body: Body::Settled }, io).unwrap();
        log.append(&data(2, 5, b"again"), io).unwrap();
        log.append(&Record { sequence: 6, key: key(3), body: Body::Gone }, io).unwrap();
        log.append(&Record { sequence: 7, key: key(1), body: Body::Cut { size: 3 } }, io).unwrap();
        log.commit(true, io).unwrap();
        // Not committed: not there.
        log.append(&data(4, 8, b"late"), io).unwrap();
        let contents = Contents::read(&path).unwrap();
        assert_eq!(sequences(&contents, 1), [1, 3, 7]);
        assert_eq!(sequences(&contents, 2), [5]);
        assert_eq!(contents.files.len(), 2);
        assert_eq!(contents.files[&key(1)].path, b"/a");
        assert_eq!(contents.pending(), (2, 15));
        let found = examine(&path).unwrap();
        let counts = (found.heads, found.damaged_heads, found.records, found.last_sequence);
        assert_eq!(counts, (2, 0, 8, Some(7)));
        assert!(0 < found.used && found.used < log.used());
        assert_eq!(found.behind, None);
        drop(log);

        // Carried on by another manager, whose records come where the uncommitted one was to come.
        let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
        log.append(&data(4, 9, b"next"), io).unwrap();
        log.commit(true, io).unwrap();
        assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [9]);
        log.restart(Some(9), &[], io).unwrap();
        assert_eq!(Contents::read(&path).unwrap().files.len(), 0);
        log.append(&data(4, 10, b"new round"), io).unwrap();
        log.commit(true, io).unwrap();
        assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [10]);

        // A mark, as clients make it when no manager is there.
        let mark = Mark { device: 1, inode: 4, born_ns: 7, sequence: 10 };
        rustix::io::pwrite(&log.file, &mark.encode(), MARKS_AT + 3 * MARK_BYTES as u64).unwrap();
        assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [0; 0]);
    }

    #[test]
    fn a_full_log_has_room_for_what_settles() {
        let folder = tempfile::tempdir().unwrap();
        let io = &mut Positional;
        let mut log = Log::open(&folder.path().join("j"), 256 << 10, 8, io).unwrap();
        let bytes = vec![1; 30_000];
        let taken = (0..100).take_while(|&n| log.append(&data(1, n, &bytes), io).is_ok()).count();
        assert!((4..9).contains(&taken), "{taken}");
        assert_eq!(log.append(&data(1, 0, &bytes), io), Err(LogError::Full));
        log.append(&Record { sequence: 9, key: key(1), body: Body::Settled }, io).unwrap();
        assert!(log.is_worth_restart());
    }

    /// Its first copy counts alone until the first commit, not longer.
    #[test]
    fn a_second_head_that_could_not_be_written_is_written_with_the_first_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut log = Log::open(&path, 1 << 20, 8, &mut Positional).unwrap();
        let script = FaultScript::new();
        let io = &mut Faulty::new(Positional, script.clone());
        let fail = |writes: &[Fault]| {
            let rules =
                writes.iter().map(|&fault| Rule::new(Operation::Write, When::Next(1), fault));
            script.replace(rules.collect());
        };
        fail(&[Fault::Delay(std::time::Duration::ZERO), Fault::Fail(Errno::IO)]);
        log.restart(Some(9), &[], io).unwrap();
        assert!(log.twin_due && script.hits() == 2);
        log.append(&data(1, 10, b"bytes"), io).unwrap();
        log.commit(true, io).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (one, other) = bytes[..MARKS_AT as usize].split_at(HEAD_BYTES as usize);
        assert_eq!(Head::decode(one).unwrap(), (log.head.clone(), VERSION));
        assert_eq!(Head::decode(other).unwrap(), (log.head, VERSION));
    }

    /// Whichever it is: a journal that is opened has two again, durably.
    #[test]
    fn a_head_that_rotted_is_made_again_when_the_journal_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let io = &mut Positional;
        let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
        log.append(&data(1, 1, b"bytes"), io).unwrap();
        log.commit(true, io).unwrap();
        let sound = std::fs::read(&path).unwrap();
        for at in [0, HEAD_BYTES as usize] {
            let mut bytes = sound.clone();
            bytes[at + 30] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let script = FaultScript::new();
            let failing = Rule::new(Operation::Sync, When::Next(1), Fault::Fail(Errno::IO));
            script.add(failing);
            let opened = Log::open(&path, 1 << 20, 8, &mut Faulty::new(Positional, script));
            assert_eq!(opened.err(), Some(Errno::IO));
            Log::open(&path, 1 << 20, 8, io).unwrap();
            assert!(std::fs::read(&path).unwrap() == sound);
        }
    }

    #[test]
    fn a_journal_of_another_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let io = &mut Positional;
        drop(Log::open(&path, 1 << 20, 8, io).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        // One byte that rots is another thing.
        bytes[8] += 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(examine(&path).unwrap().damaged_heads, 1);
        assert!(Contents::read(&path).is_ok());
        let second = HEAD_BYTES as usize;
        let mut later = bytes.clone();
        later[second + 8] += 1;
        // Its round has begun, and one of the heads is still the earlier version's.
        bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        for bytes in [&mut later, &mut bytes] {
            bytes[MAKER_AT..][..4].copy_from_slice(b"9.9\0");
            bytes[second + MAKER_AT..][..4].copy_from_slice(b"9.9\0");
            std::fs::write(&path, &*bytes).unwrap();
            let why = reason(&path, OTHER_VERSION);
            assert!(
                why.starts_with(&format!(
                    "made by another version of Forebay: 9.9 (journal {}",
                    VERSION + 1
                )),
                "{why}"
            );
            assert_eq!(examine(&path), Err(OTHER_VERSION));
            assert_eq!(Contents::read(&path), Err(OTHER_VERSION));
            assert_eq!(Log::open(&path, 1 << 20, 8, io).err(), Some(OTHER_VERSION));
            assert!(std::fs::read(&path).unwrap() == *bytes);
        }
    }

    /// What was durable and has rotted is told from what was never durable.
    #[test]
    fn rot_is_told_from_what_was_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let io = &mut Positional;
        let mut log = Log::open(&path, 64 << 20, 1, io).unwrap();
        let mut starts = Vec::new();
        // The last ones lie across what is read at a time.
        let large = vec![7; READ_BYTES / 2 - 300];
        for (sequence, durably) in [(1, true), (2, true), (3, false), (4, false)] {
            starts.push(log.head.start + log.used());
            let bytes = if sequence == 2 { &large[..] } else { b"some" };
            log.append(&data(sequence, sequence, bytes), io).unwrap();
            log.commit(durably, io).unwrap();
        }
        let sound = std::fs::read(&path).unwrap();
        for (record, damaged) in [(0, Some(starts[0])), (1, Some(starts[1])), (2, None), (3, None)]
        {
            let mut bytes = sound.clone();
            bytes[starts[record] as usize + 40] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let contents = Contents::read(&path).unwrap();
            assert_eq!(contents.damaged, damaged, "{record}");
            assert_eq!(examine(&path).unwrap().is_damaged, damaged.is_some());
            let others = if damaged.is_some() { 3 } else { record };
            assert_eq!(contents.files.len(), others, "{record}");
        }
        let mut bytes = sound.clone();
        bytes[30] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Contents::read(&path).unwrap().files.len(), 4);
        bytes[HEAD_BYTES as usize + 30] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Contents::read(&path), Err(Errno::BADMSG));
    }

    /// The bytes of a file that is a journal itself, which this one has as data.
    #[test]
    fn a_journal_within_the_data_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let io = &mut Positional;
        let paths = ["other", "journal"].map(|name| folder.path().join(name));
        let [other, path] = &paths;
        let mut inner = Log::open(other, 1 << 20, 1, io).unwrap();
        for sequence in 1..9 {
            inner.append(&data(99, sequence, b"not ours"), io).unwrap();
            inner.commit(true, io).unwrap();
        }
        let copy = std::fs::read(other).unwrap().split_off(inner.head.start as usize);
        let mut log = Log::open(path, 1 << 20, 1, io).unwrap();
        let first = log.at;
        // So that it lies where records would.
        let body = Body::Data { offset: 0, size: 99, mtime_ns: 5, path: b"", bytes: &copy };
        log.append(&Record { sequence: 1, key: key(1), body }, io).unwrap();
        log.commit(true, io).unwrap();
        log.append(&data(2, 2, b"more"), io).unwrap();
        log.commit(true, io).unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        bytes[first as usize + 40] ^= 1;
        // A copy of a record of this round, nearer to the beginning than where it was.
        let place = Place { synced: u64::MAX / 2, link: 3, ..log.head.first() };
        let mut moved = Vec::new();
        data(98, 7, b"moved").encode(place, &mut moved);
        bytes.resize(bytes.len() + 8, 0);
        bytes.extend(moved);
        std::fs::write(path, &bytes).unwrap();
        let contents = Contents::read(path).unwrap();
        assert_eq!(contents.damaged, Some(first));
        assert_eq!(contents.files.keys().cloned().collect::<Vec<_>>(), [key(2)]);
    }

    /// Whatever happened to the file, a beginning of what was committed is read, or it is called damaged;
    /// and nothing else is read.
    #[test]
    fn damage_never_makes_records() {
        let mut random = seeded();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let io = &mut Positional;
        for _ in 0..60 {
            let _ = std::fs::remove_file(&path);
            let mut log = Log::open(&path, 1 << 20, 1, io).unwrap();
            let mut written = Vec::new();
            for sequence in 0..random.below(20) {
                let bytes = bytes_of(&mut random, 5000);
                let record = data(sequence % 3, sequence + 1, &bytes);
                log.append(&record, io).unwrap();
                written.push(sequence + 1);
                if random.below(3) == 0 {
                    log.commit(false, io).unwrap();
                }
            }
            log.commit(true, io).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let start = log.head.start as usize;
            for _ in 0..random.below(4) {
                match random.below(3) {
                    0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                    1 if !bytes.is_empty() => {
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] = random.below(256) as u8;
                    }
                    _ => {
                        let mut junk = bytes_of(&mut random, 500);
                        let inside = Record { sequence: 99, ..any(&mut random, b"/x", b"yy") };
                        let epoch = log.head.epoch - 1;
                        inside.encode(Place { epoch, link: 0, synced: 0 }, &mut junk);
                        let at = (start + random.below(50_000) as usize).min(bytes.len());
                        let end = (at + junk.len()).min(bytes.len());
                        bytes.splice(at..end, junk);
                    }
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            let mut read: Vec<u64> = Vec::new();
            let contents = match Contents::read(&path) {
                Err(errno) => {
                    assert!([Errno::BADMSG, OTHER_VERSION].contains(&errno), "{errno}");
                    continue;
                }
                Ok(contents) => contents,
            };
            for file in contents.files.values() {
                read.extend(file.changes.iter().map(|&(sequence, _)| sequence));
            }
            read.sort_unstable();
            match contents.damaged {
                Some(_) => assert!(read.iter().all(|sequence| written.contains(sequence))),
                None => assert_eq!(read, written[..read.len()]),
            }
        }
    }
}
