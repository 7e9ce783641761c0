//! The exchange of a file's bytes in place, to its encoded form and back.
//!
//! | step | the file has | its mark says | beside it |
//! |---|---|---|---|
//! | 0 | original | - | encoded bytes, durable |
//! | 1 | original | beside | encoded bytes |
//! | 2 | anything | beside | encoded bytes |
//! | 3 | encoded bytes | here | encoded bytes, not needed |
//! | 4 | encoded bytes | here | - |
//!
//! Before the mark says "beside" the file gets the sticky bit ([`EXCHANGING`]), and keeps it until
//! the mark says something else, or is gone.
//!
//! Replacing goes down this table, restoring up: from 4 to 3 by copying, and in the end the mark
//! goes. Each line is durable before the next one begins. What is between the lines is repeated
//! from "beside" as often as it takes.

use super::beside::{Beside, Seen, edges_of, find_original};
use super::encode::check_kind;
use super::{Failure, Refusal, doing, store_of};
use crate::store::beneath::reopen;
use forebay_active::Error;
use forebay_active::encoded::Reader;
use forebay_pool::encoded::{
    Content, EXCHANGING, MARK, Mark, is_marked, mark_of_any_size, may_be_marked,
};
use forebay_pool::{Identity, clock, crash, power_loss};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags, fstat,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// fcntl(2): by which signal a lease's holder is told of an opener; libc does not have it.
const F_SETSIG: libc::c_int = 10;
/// Runs of zeros of this length are not written where the file has none of its own.
const ZEROS: usize = 64 << 10;

/// What is to be there afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropping {
    /// The original bytes.
    Nothing,
    /// No bytes: the program truncates the file.
    Bytes,
}

/// Where and how files are exchanged.
pub(crate) struct Context<'a> {
    /// The directories of the stores.
    pub stores: &'a [PathBuf],
    /// Managers of other nodes may do the same with the same files.
    pub shares: bool,
    /// Whether a long copy is to be left.
    pub is_ending: &'a dyn Fn() -> bool,
}

impl Context<'_> {
    fn go_on(&self) -> Result<(), Failure> {
        if (self.is_ending)() { Err(Failure::Ending) } else { Ok(()) }
    }

    /// The folder beside a file. One that was moved out of all stores has it in the first one on
    /// its device.
    fn beside(&self, path: &Path, device: u64) -> Result<Beside, Failure> {
        let on_device = || {
            let has = |store: &&PathBuf| {
                rustix::fs::stat(store.as_path()).is_ok_and(|stat| stat.st_dev == device)
            };
            self.stores.iter().find(has).map(PathBuf::as_path)
        };
        let store = store_of(self.stores, path).or_else(on_device).ok_or(Refusal::Elsewhere)?;
        Beside::of(store).map_err(doing("making the folder for what is encoded"))
    }
}

/// Where a file is, for messages and for those who look for it later.
pub(super) fn path_of(fd: impl AsFd) -> PathBuf {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(link).unwrap_or_default()
}

/// Gives the file behind `fd` its original bytes, or takes them away. Returns its mark; `None` if
/// it has none that is true. The caller sees to it that no other thread does that.
///
/// # Errors
/// What failed. The file has its original bytes, or its mark.
pub(crate) fn restore(
    context: &Context<'_>,
    fd: OwnedFd,
    dropping: Dropping,
) -> Result<Option<Mark>, Failure> {
    let path = path_of(&fd);
    tidy(context, &path);
    let file = File::from(reopen(&fd, OFlags::RDWR).map_err(doing("opening it to be restored"))?);
    drop(fd);
    let stat = fstat(&file).map_err(doing("looking at it"))?;
    let found = mark_of_any_size(&file).map_err(doing("reading its mark"))?;
    let Some(mark) = found else { return Ok(None) };
    let size = stat.st_size as u64;
    if mark.original != size && !begins_as_marked(&file, &mark)? {
        return Ok(None);
    }
    // What others have marked is not decoded here.
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Refusal::Owner.into());
    }
    let mut beside = context.beside(&path, stat.st_dev)?;
    let _alone = alone_among_nodes(context, &beside)?;
    // Another node's manager may have been faster.
    let found = mark_of_any_size(&file).map_err(doing("reading its mark"))?;
    let Some(mark) = found.filter(|now| now.number == mark.number) else { return Ok(None) };
    if mark.original != size && dropping == Dropping::Nothing {
        beside.remove_if_empty();
        return Err(match size < mark.encoded && mark.content == Content::Here {
            true => Failure::Damaged("was cut short by a program without Forebay".to_owned()),
            false => Failure::Resized { original: mark.original, size },
        });
    }
    if dropping == Dropping::Bytes {
        power_loss::resizing(file.as_fd(), 0);
        rustix::fs::ftruncate(&file, 0).map_err(doing("truncating it"))?;
        sync(&file)?;
        crash::point("restore.emptied");
        unmark(&file)?;
        beside.remove(mark.number);
        return Ok(Some(mark));
    }
    let restored = restore_marked(context, &file, &stat, &path, &mut beside, mark);
    beside.remove_if_empty();
    restored
}

fn restore_marked(
    context: &Context<'_>,
    file: &File,
    stat: &Stat,
    path: &Path,
    beside: &mut Beside,
    mark: Mark,
) -> Result<Option<Mark>, Failure> {
    if mark.content == Content::Here {
        if !has_what_is_marked(file, &mark)? {
            return Ok(None);
        }
        check_behind(context, file, &mark)?;
        // For nothing but to see that it can be.
        decode(context, file, &mark, |_, _| Ok(()))?;
        let room = rustix::fs::fstatvfs(file).map_err(doing("looking for room"))?;
        if room.f_bavail.saturating_mul(room.f_frsize) < mark.original {
            return Err(Failure::System("making room for the original bytes", Errno::NOSPC));
        }
        // Of an attempt that was left.
        beside.discard(mark.number);
        let copied = copy_beside(context, file, &Seen::of(stat), path, beside, &mark);
        copied.inspect_err(|_| beside.remove(mark.number))?;
        crash::point("restore.copied");
        // As the next one will look for it.
        beside_of(beside, &mark).inspect_err(|_| beside.remove(mark.number))?;
        begin_exchange(file, &mark)?;
        crash::point("restore.marked");
    }
    let (source, seen) = beside_of(beside, &mark)?;
    let punched = punch(file, 0, mark.original).is_ok();
    decode(context, &source, &mark, |piece, at| {
        for (index, part) in piece.chunks(ZEROS).enumerate() {
            if !punched || part.iter().any(|&byte| byte != 0) {
                put(file, part, at + (index * ZEROS) as u64)?;
            }
        }
        Ok(())
    })?;
    sync(file)?;
    crash::point("restore.written");
    unmark(file)?;
    set_times(file, stat, seen.modified_ns)?;
    sync(file)?;
    crash::point("restore.unmarked");
    beside.remove(mark.number);
    crash::point("restore.removed");
    Ok(Some(mark))
}

/// Exchanges the bytes of the file behind `fd` (O_PATH will do) for what was encoded of it, beside
/// it, with number `number`. `is_at_rest` says whether the store has all of it; it is asked while
/// no process can open the file. Returns the mark.
///
/// # Errors
/// Why it is left as it is, or what failed. The file has its original bytes, or its mark.
pub(crate) fn replace(
    context: &Context<'_>,
    fd: OwnedFd,
    number: u64,
    is_at_rest: impl Fn(Identity) -> bool,
) -> Result<Mark, Failure> {
    if context.shares {
        return Err(Refusal::Nodes.into());
    }
    let path = path_of(&fd);
    check_kind(&fstat(&fd).map_err(doing("looking at it"))?)?;
    let store = store_of(context.stores, &path).ok_or(Refusal::Elsewhere)?;
    let mut beside =
        Beside::existing(store).map_err(doing("opening the folder of what is encoded"))?;
    beside.remove_left();
    let (meant, seen, _) = beside.told(number).map_err(doing("opening the encoded file"))?;
    let file = match reopen(&fd, OFlags::RDWR) {
        Ok(file) => File::from(file),
        Err(Errno::AGAIN) => return Err(Refusal::Open.into()),
        Err(errno) => return Err(Failure::System("opening it to be replaced", errno)),
    };
    drop(fd);
    // From here on the kernel keeps every process from opening it, until this is dropped, or the
    // limit of /proc/sys/fs/lease-break-time is over: then the mark tells what it is.
    let lease = Lease::take(&file)?;
    let stat = fstat(&file).map_err(doing("looking at it"))?;
    check_kind(&stat)?;
    if Seen::of(&stat) != seen || meant.original != seen.size {
        return Err(Refusal::Changed.into());
    }
    if may_be_marked(&stat) && is_marked(&file) {
        return Err(Refusal::Already.into());
    }
    if !is_at_rest(Identity { device: stat.st_dev, inode: stat.st_ino }) {
        return Err(Refusal::Pending.into());
    }
    let source = beside.find(&meant).map_err(doing("opening the encoded file"))?;
    crash::point("encoded.leased");
    begin_exchange(&file, &meant)?;
    crash::point("encoded.marked");
    bring_in_place(context, &file, &stat, &source, &meant, seen.modified_ns)?;
    let now = fstat(&file).map_err(doing("looking at it"))?;
    if !may_be_marked(&now) {
        restore_marked(context, &file, &now, &path, &mut beside, meant)?;
        return Err(Refusal::Blocks.into());
    }
    beside.remove(number);
    crash::point("encoded.removed");
    drop(lease);
    Ok(meant)
}

/// Removes what writers that are gone have begun in the folder of the store of a file.
fn tidy(context: &Context<'_>, path: &Path) {
    let Some(store) = store_of(context.stores, path) else { return };
    let Ok(beside) = Beside::existing(store) else { return };
    let Ok(_alone) = alone_among_nodes(context, &beside) else { return };
    beside.remove_left();
    beside.remove_if_empty();
}

/// Goes on with what a manager that is gone has left beside the files of a store: what is needed is
/// put in place, the rest is removed. Says what cannot be told.
pub(crate) fn settle(
    context: &Context<'_>,
    store: &Path,
    alone: &dyn Fn(Identity, &mut dyn FnMut()),
) {
    let Ok(beside) = Beside::existing(store) else { return };
    let Ok(_alone) = alone_among_nodes(context, &beside) else { return };
    for (number, seen, path) in beside.sweep().unwrap_or_default() {
        let Some(original) = find_original(&path, &seen) else {
            eprintln!(
                "{}: has the encoded bytes of {}, which is not there any more: if it was moved, they \
                 are needed when it is opened, else they can be removed",
                beside.path(&format!("{number:016x}")).display(),
                path.display()
            );
            continue;
        };
        let Ok(stat) = fstat(&original) else { continue };
        let mut settle = || match settle_one(context, &beside, number, &original, &seen) {
            Ok(()) => {}
            Err(failure) => {
                eprintln!("{}: its encoded bytes are not put in place: {failure}", path.display());
            }
        };
        alone(Identity { device: stat.st_dev, inode: stat.st_ino }, &mut settle);
    }
    beside.remove_if_empty();
}

fn settle_one(
    context: &Context<'_>,
    beside: &Beside,
    number: u64,
    original: &OwnedFd,
    seen: &Seen,
) -> Result<(), Failure> {
    let file = File::from(reopen(original, OFlags::RDWR).map_err(doing("opening it"))?);
    let stat = fstat(&file).map_err(doing("looking at it"))?;
    let found = mark_of_any_size(&file).map_err(doing("reading its mark"))?;
    match found.filter(|mark| mark.number == number && mark.content == Content::Beside) {
        Some(mark) if mark.original != stat.st_size as u64 && begins_as_marked(&file, &mark)? => {
            let (original, size) = (mark.original, stat.st_size as u64);
            return Err(Failure::Resized { original, size });
        }
        Some(mark) if mark.original == stat.st_size as u64 => {
            let (source, _) = beside_of(beside, &mark)?;
            let here = Mark { content: Content::Here, ..mark };
            bring_in_place(context, &file, &stat, &source, &here, seen.modified_ns)?;
            beside.remove(number);
        }
        _ => {
            // What is beside says that the bit is ours.
            end_exchange(&file)?;
            sync(&file)?;
            beside.remove(number);
        }
    }
    Ok(())
}

/// From "beside" to "here": writes the encoded bytes to the file, and nothing behind them.
fn bring_in_place(
    context: &Context<'_>,
    file: &File,
    stat: &Stat,
    source: &File,
    here: &Mark,
    modified_ns: u64,
) -> Result<(), Failure> {
    copy(context, source, file, here.encoded)?;
    if punch(file, here.encoded, here.original).is_err() {
        power_loss::resizing(file.as_fd(), here.encoded);
        let cut = doing("giving back the room of the original bytes");
        rustix::fs::ftruncate(file, here.encoded).map_err(&cut)?;
        rustix::fs::ftruncate(file, here.original).map_err(&cut)?;
    }
    sync(file)?;
    crash::point("encoded.written");
    set_mark(file, here)?;
    crash::point("encoded.noted");
    end_exchange(file)?;
    set_times(file, stat, modified_ns)?;
    sync(file)?;
    crash::point("encoded.here");
    Ok(())
}

/// Whether what the mark describes is what the file has. One that another program has truncated and
/// written again may still have the mark.
fn has_what_is_marked(file: &File, mark: &Mark) -> Result<bool, Failure> {
    let (head, tail) = edges_of(file, mark.encoded).map_err(doing("reading it"))?;
    if (head, tail) == (mark.head, mark.tail) {
        return Ok(true);
    }
    // One of them may have been damaged; both, only where it still begins as such a form does.
    let begins = Reader::open(file, mark.encoded);
    match begins {
        Err(Error::NotEncoded(_)) => Ok(head == mark.head || tail == mark.tail),
        _ => Ok(true),
    }
}

/// Whether a file of another size than its mark says begins as the encoded form does, or is one
/// whose exchange has not ended. What a program has written anew is neither.
fn begins_as_marked(file: &File, mark: &Mark) -> Result<bool, Failure> {
    let stat = fstat(file).map_err(doing("looking at it"))?;
    if mark.content == Content::Beside {
        return Ok(stat.st_size > 0 && stat.st_mode & EXCHANGING != 0);
    }
    let (head, _) = edges_of(file, mark.encoded).map_err(doing("reading it"))?;
    Ok(head == mark.head)
}

/// Sees to it that there is nothing behind the encoded bytes, where restoring would lose it.
fn check_behind(context: &Context<'_>, file: &File, mark: &Mark) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE];
    let mut at = mark.encoded;
    while at < mark.original {
        context.go_on()?;
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(mark.original),
            Err(Errno::NXIO) => return Ok(()),
            // It does not tell of its holes: all of it is read.
            Err(_) => at,
        };
        let part = &mut piece[..(mark.original - at).min(PIECE as u64) as usize];
        file.read_exact_at(part, at).map_err(|error| {
            Failure::System("reading behind its encoded bytes", Failure::errno_of(&error))
        })?;
        if let Some(written) = part.iter().position(|&byte| byte != 0) {
            return Err(Failure::Overwritten(at + written as u64));
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Decodes all that a file has, as its mark describes it, and has `take` each piece of the original
/// with its offset.
fn decode(
    context: &Context<'_>,
    file: &File,
    mark: &Mark,
    take: impl Fn(&[u8], u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut reader = Reader::open(file, mark.encoded)?;
    if reader.original_len() != mark.original {
        return Err(Failure::Damaged("is of another length than its mark says".to_owned()));
    }
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < mark.original {
        context.go_on()?;
        let bytes = reader.read_at(&mut piece, at)?;
        if bytes == 0 {
            return Err(Failure::Damaged("ends too early".to_owned()));
        }
        take(&piece[..bytes], at)?;
        at += bytes as u64;
    }
    Ok(())
}

fn copy_beside(
    context: &Context<'_>,
    file: &File,
    seen: &Seen,
    path: &Path,
    beside: &mut Beside,
    mark: &Mark,
) -> Result<(), Failure> {
    let made = beside.begin(mark.number).map_err(doing("making a copy of its encoded bytes"))?;
    copy(context, file, &made, mark.encoded)?;
    // Its size says that it is complete: a sum of all would say no more than the sums inside.
    let here = Mark { content: Content::Here, ..*mark };
    beside.finish(&made, &here, seen, path).map_err(doing("making its copy durable"))
}

/// The encoded bytes beside, and how the original was when they were made.
fn beside_of(beside: &Beside, mark: &Mark) -> Result<(File, Seen), Failure> {
    let missing = |errno| match errno {
        Errno::NOENT | Errno::BADMSG => Failure::Missing(beside.path(&mark.name_beside())),
        errno => Failure::System("opening its encoded bytes", errno),
    };
    let source = beside.find(mark).map_err(missing)?;
    let (_, seen, _) = beside.told(mark.number).map_err(missing)?;
    Ok((source, seen))
}

fn copy(context: &Context<'_>, from: &File, to: &File, bytes: u64) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < bytes {
        context.go_on()?;
        let part = &mut piece[..(bytes - at).min(PIECE as u64) as usize];
        from.read_exact_at(part, at)
            .map_err(|error| Failure::System("reading encoded bytes", Failure::errno_of(&error)))?;
        put(to, part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn put(file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
    power_loss::writing(file.as_fd(), offset, bytes.len() as u64);
    file.write_all_at(bytes, offset)
        .map_err(|error| Failure::System("writing to it", Failure::errno_of(&error)))
}

fn punch(file: &File, from: u64, to: u64) -> Result<(), Errno> {
    power_loss::writing(file.as_fd(), from, to - from);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, from, to - from)
}

fn sync(file: &File) -> Result<(), Failure> {
    let began = clock::monotonic_ns();
    rustix::fs::fsync(file).map_err(doing("making it durable"))?;
    power_loss::synced(file.as_fd(), began);
    Ok(())
}

fn set_mark(file: &File, mark: &Mark) -> Result<(), Failure> {
    let set = rustix::fs::fsetxattr(file, MARK, &mark.text(), XattrFlags::empty());
    set.map_err(|errno| match errno {
        Errno::OPNOTSUPP => Refusal::Attributes.into(),
        errno => Failure::System("marking it", errno),
    })
}

/// From here on the true bytes are those beside.
fn begin_exchange(file: &File, mark: &Mark) -> Result<(), Failure> {
    let stat = fstat(file).map_err(doing("looking at it"))?;
    set_mode(file, stat.st_mode | EXCHANGING)?;
    crash::point("encoded.guarded");
    let marked = set_mark(file, &Mark { content: Content::Beside, ..*mark });
    if marked.is_err() {
        let _ = end_exchange(file);
    }
    marked?;
    sync(file)
}

fn end_exchange(file: &File) -> Result<(), Failure> {
    let stat = fstat(file).map_err(doing("looking at it"))?;
    match stat.st_mode & EXCHANGING {
        0 => Ok(()),
        _ => set_mode(file, stat.st_mode & !EXCHANGING),
    }
}

fn set_mode(file: &File, mode: u32) -> Result<(), Failure> {
    let mode = rustix::fs::Mode::from_raw_mode(mode & 0o7777);
    rustix::fs::fchmod(file, mode).map_err(doing("setting its sticky bit"))
}

/// The file's own bytes are the true ones.
fn unmark(file: &File) -> Result<(), Failure> {
    match rustix::fs::fremovexattr(file, MARK) {
        Ok(()) | Err(Errno::NODATA) => {}
        Err(errno) => return Err(Failure::System("removing its mark", errno)),
    }
    crash::point("restore.open");
    end_exchange(file)
}

/// Gives the file the times that it had: of its last access as it was before, of its last write
/// `modified_ns`.
fn set_times(file: &File, stat: &Stat, modified_ns: u64) -> Result<(), Failure> {
    let second = 1_000_000_000;
    let times = Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec {
            tv_sec: (modified_ns / second) as _,
            tv_nsec: (modified_ns % second) as _,
        },
    };
    rustix::fs::futimens(file, &times).map_err(doing("giving it its times"))
}

/// Keeps managers of other nodes from the folder until this is dropped.
fn alone_among_nodes(context: &Context<'_>, beside: &Beside) -> Result<Option<OwnedFd>, Failure> {
    if !context.shares {
        return Ok(None);
    }
    let folder = beside.duplicate().map_err(doing("locking the folder of what is encoded"))?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)
        .map_err(doing("locking the folder of what is encoded"))?;
    Ok(Some(folder))
}

/// A lease on an open file (fcntl(2), F_SETLEASE): no other process of this machine has it open,
/// and one that opens it waits.
struct Lease<'a>(&'a File);

impl<'a> Lease<'a> {
    fn take(file: &'a File) -> Result<Lease<'a>, Failure> {
        let fd = file.as_raw_fd();
        // The signal that tells of an opener: one that does nothing, in place of SIGIO, which ends
        // a process.
        // SAFETY: numbers only.
        unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) };
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) } == 0 {
            return Ok(Lease(file));
        }
        let error = std::io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EAGAIN) => Refusal::Open.into(),
            _ => Refusal::Leases.into(),
        })
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}
