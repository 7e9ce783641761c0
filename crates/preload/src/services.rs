//! The session of the process for libraries that are loaded into it: libforebay, which programs
//! call, has none of its own. See docs/design/capi.md.

use crate::errno::last_error;
use crate::files::{path_here, text_at};
use crate::session::{managed, session};
use core::ffi::{c_char, c_int};
use forebay_client::services::{
    self, BY_KERNEL, ByteRange, DeviceNow, ExtentNow, FlushBegun, NOT_MANAGED, NetworkNow, PinNow,
    PoolNow, SERVICES, Services, TierNow, UnsafeNow, awaited, counted, dataset, level, progress,
};
use forebay_client::{
    Advice, Awaited, Counted, Extent, Flush, Identity, Level, Noted, OpenFile, OpenFlags,
    PinRefused, Pinned, Progress, Session, UserBuffers,
};
use rustix::io::Errno;

/// The table: its name is [`SERVICES`].
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
static forebay_services_1: Services = Services {
    bytes: size_of::<Services>(),
    is_active,
    pool,
    tier,
    open,
    close,
    manages,
    read,
    write,
    size,
    advise,
    begin_flush,
    progress: progress_of,
    await_flush,
    begin_flush_of_all,
    await_flush_of_all,
    not_on_store,
    placement,
    begin_phase,
    end_phase,
    pin,
    unpin,
    will_read,
    count,
    descriptor_of,
    note_dataset,
    tells_metadata_apart,
    note_metadata,
    rename_datasets,
    end_step,
    device,
    network,
    join_mpi_job,
    ranks_of_mpi_job,
    covers,
    ask_of_actions,
};

fn failure(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

fn outcome(result: Result<(), Errno>) -> c_int {
    result.map_or_else(failure, |()| 0)
}

/// Calls `act` with the file behind `fd`, and again where another thread has closed or replaced the
/// descriptor before the call came to it. `None` where it is not managed.
fn with_file<R>(
    fd: c_int,
    act: impl Fn(&OpenFile<'static>) -> Result<R, Errno>,
) -> Option<Result<R, Errno>> {
    loop {
        let file = managed(fd)?;
        match act(&file) {
            Err(Errno::BADF) if !file.is_current() => {}
            result => return Some(result),
        }
    }
}

/// The same for calls that answer by a number.
fn of_file(fd: c_int, act: impl Fn(&OpenFile<'static>) -> Result<c_int, Errno>) -> c_int {
    with_file(fd, act).map_or(NOT_MANAGED, |result| result.unwrap_or_else(failure))
}

fn of_session(act: impl FnOnce(&'static Session) -> Result<(), Errno>) -> c_int {
    session().map_or(NOT_MANAGED, |session| outcome(act(session)))
}

fn level_of(number: u32) -> Result<Level, Errno> {
    match number {
        level::DURABLE => Ok(Level::Durable),
        level::STORE => Ok(Level::Store),
        _ => Err(Errno::INVAL),
    }
}

fn flush_of(begun: &FlushBegun) -> Flush {
    let FlushBegun { ticket, errors, seen, file } = *begun;
    Flush { ticket, errors, seen, file }
}

/// The deadline of a call that waits so many milliseconds; none if they are negative.
fn deadline(timeout_ms: i64) -> Option<u64> {
    let timeout_ms = u64::try_from(timeout_ms).ok()?;
    Some(forebay_client::now_ns().saturating_add(timeout_ms.saturating_mul(1_000_000)))
}

extern "C" fn is_active() -> c_int {
    session().is_some().into()
}

unsafe extern "C" fn pool(now: *mut PoolNow) -> c_int {
    of_session(|session| {
        // SAFETY: the caller's to write.
        unsafe { now.write(session.pool_now()) };
        Ok(())
    })
}

unsafe extern "C" fn tier(number: u32, now: *mut TierNow) -> c_int {
    of_session(|session| {
        let found = session.tier_now(number).ok_or(Errno::NOENT)?;
        // SAFETY: the caller's to write.
        unsafe { now.write(found) };
        Ok(())
    })
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    let Some(session) = session() else { return NOT_MANAGED };
    // SAFETY: the caller's path.
    let at = unsafe { path_here(path) };
    let flags = OpenFlags::from_bits_retain(flags as u32);
    session.open_at(at, flags, mode).unwrap_or_else(failure)
}

extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the caller gives it up.
    match unsafe { crate::descriptors::close(fd) } {
        0 => 0,
        _ => failure(last_error()),
    }
}

extern "C" fn manages(fd: c_int) -> c_int {
    if managed(fd).is_some() { 0 } else { NOT_MANAGED }
}

/// A call that answers by a number of bytes.
fn moved(fd: c_int, act: impl Fn(&OpenFile<'static>) -> Result<usize, Errno>) -> isize {
    match with_file(fd, act) {
        Some(Ok(bytes)) => bytes as isize,
        Some(Err(errno)) => failure(errno) as isize,
        None => NOT_MANAGED as isize,
    }
}

unsafe extern "C" fn read(fd: c_int, buffer: *mut u8, bytes: usize, offset: u64) -> isize {
    // SAFETY: the caller's buffer.
    let to = unsafe { UserBuffers::at(buffer, bytes) };
    moved(fd, |file| file.pread(&to, offset))
}

unsafe extern "C" fn write(fd: c_int, buffer: *const u8, bytes: usize, offset: u64) -> isize {
    // SAFETY: the caller's buffer.
    let from = unsafe { UserBuffers::at(buffer, bytes) };
    moved(fd, |file| file.write_placed(&from, Some(offset), file.appends()))
}

extern "C" fn size(fd: c_int) -> i64 {
    match with_file(fd, |file| file.size()) {
        Some(Ok(bytes)) => bytes as i64,
        Some(Err(errno)) => failure(errno).into(),
        None => NOT_MANAGED.into(),
    }
}

extern "C" fn advise(fd: c_int, offset: u64, bytes: u64, advice: c_int) -> c_int {
    let advice = match advice {
        libc::POSIX_FADV_NORMAL => Advice::Normal,
        libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
        libc::POSIX_FADV_RANDOM => Advice::Random,
        libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
        libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
        _ => return failure(Errno::INVAL),
    };
    of_file(fd, |file| {
        file.advise(offset, bytes, advice);
        Ok(0)
    })
}

unsafe extern "C" fn begin_flush(fd: c_int, level: u32, begun: *mut FlushBegun) -> c_int {
    of_file(fd, |open| {
        let Some(flush) = open.begin_flush(level_of(level)?)? else { return Ok(BY_KERNEL) };
        let Flush { ticket, errors, seen, file } = flush;
        // SAFETY: the caller's to write.
        unsafe { begun.write(FlushBegun { ticket, errors, seen, file }) };
        Ok(0)
    })
}

unsafe extern "C" fn progress_of(fd: c_int, begun: *const FlushBegun) -> c_int {
    // SAFETY: the caller's to read.
    let flush = flush_of(unsafe { &*begun });
    of_file(fd, |file| {
        file.progress(&flush).map(|found| match found {
            Progress::Waiting => progress::WAITING,
            Progress::Done => progress::DONE,
            Progress::Changed => progress::CHANGED,
        })
    })
}

unsafe extern "C" fn await_flush(fd: c_int, begun: *const FlushBegun, timeout_ms: i64) -> c_int {
    // SAFETY: the caller's to read.
    let flush = flush_of(unsafe { &*begun });
    let deadline = deadline(timeout_ms);
    of_file(fd, |file| {
        file.await_flush(&flush, deadline).map(|found| match found {
            Awaited::Late => awaited::LATE,
            Awaited::Done => awaited::DONE,
            Awaited::Alone => awaited::ALONE,
        })
    })
}

extern "C" fn begin_flush_of_all(level: u32) -> c_int {
    of_session(|session| session.begin_flush_of_all(level_of(level)?))
}

extern "C" fn await_flush_of_all(timeout_ms: i64) -> c_int {
    let deadline = deadline(timeout_ms);
    let Some(session) = session() else { return NOT_MANAGED };
    session.await_flush_of_all(deadline).map_or_else(failure, c_int::from)
}

unsafe extern "C" fn not_on_store(fd: c_int, now: *mut UnsafeNow) -> c_int {
    of_file(fd, |file| {
        let found = file.not_on_store()?;
        let (memory, tiers) = (found.memory, found.tiers);
        // SAFETY: the caller's to write.
        unsafe { now.write(UnsafeNow { memory, tiers, is_resized: found.is_resized.into() }) };
        Ok(0)
    })
}

unsafe extern "C" fn placement(
    fd: c_int,
    offset: u64,
    bytes: u64,
    extents: *mut ExtentNow,
    room: usize,
) -> i64 {
    let range = offset..offset.saturating_add(bytes);
    let count = core::cell::Cell::new(0);
    let fill = |found: Extent| {
        if count.get() < room {
            let extent = ExtentNow {
                offset: found.offset as i64,
                bytes: found.bytes as i64,
                tier: found.tier.map_or(-1, |tier| tier.index() as i32),
                is_ahead: found.is_ahead.into(),
                reserved: 0,
            };
            // SAFETY: there is room for it.
            unsafe { extents.add(count.get()).write(extent) };
        }
        count.set(count.get() + 1);
        true
    };
    let look = |file: &OpenFile<'static>| {
        count.set(0);
        file.placement(range.clone(), fill)
    };
    match with_file(fd, look) {
        Some(Ok(())) => count.get() as i64,
        Some(Err(errno)) => failure(errno).into(),
        None => NOT_MANAGED.into(),
    }
}

unsafe extern "C" fn begin_phase(name: *const u8, bytes: usize) -> c_int {
    if let Some(session) = session() {
        // SAFETY: the caller's text.
        session.begin_phase(unsafe { core::slice::from_raw_parts(name, bytes) });
    }
    0
}

extern "C" fn end_phase() -> c_int {
    if let Some(session) = session() {
        session.end_phase();
    }
    0
}

unsafe extern "C" fn pin(
    fd: c_int,
    offset: u64,
    bytes: u64,
    tier: u32,
    handle: u32,
    now: *mut PinNow,
) -> c_int {
    let limit = |Pinned { asked, pinned, most }, which| {
        // SAFETY: the caller's to write.
        unsafe { now.write(PinNow { asked, pinned, most }) };
        Ok(which)
    };
    of_file(fd, |file| match file.pin(offset, bytes, tier, handle) {
        Ok(()) => Ok(services::pin::DONE),
        Err(PinRefused::JobLimit(found)) => limit(found, services::pin::JOB_LIMIT),
        Err(PinRefused::TierLimit(found)) => limit(found, services::pin::TIER_LIMIT),
        Err(PinRefused::Quota(found)) => limit(found, services::pin::QUOTA),
        Err(PinRefused::QuotaRoom(found)) => limit(found, services::pin::QUOTA_ROOM),
        Err(PinRefused::Unserved) => Ok(services::pin::UNSERVED),
        Err(PinRefused::Direct) => Ok(services::pin::BY_KERNEL),
        Err(PinRefused::NoTier) => Err(Errno::NOENT),
        Err(PinRefused::Failed(errno)) => Err(errno),
    })
}

extern "C" fn unpin(handle: u32, offset: u64, bytes: u64) -> c_int {
    session().map_or(0, |session| session.unpin(handle, offset, bytes) as c_int)
}

extern "C" fn will_read(fd: c_int, offset: u64, bytes: u64, stride: i64, pieces: u64) -> c_int {
    managed(fd).is_some_and(|file| file.will_read(offset, bytes, stride, pieces)).into()
}

extern "C" fn count(what: u32, more: u64) -> c_int {
    let what = match what {
        counted::MPI_FILES => Counted::MpiFiles,
        counted::MPI_CALLS => Counted::MpiCalls,
        counted::MPI_BYTES => Counted::MpiBytes,
        counted::MPI_INDEPENDENT => Counted::MpiIndependent,
        counted::MPI_HINTED => Counted::MpiHinted,
        counted::MPI_UNADAPTED => Counted::MpiUnadapted,
        _ => return failure(Errno::INVAL),
    };
    if let Some(session) = session() {
        session.count(what, more);
    }
    0
}

extern "C" fn end_step(fd: c_int) -> c_int {
    managed(fd).map_or(NOT_MANAGED, |file| {
        file.end_step();
        0
    })
}

extern "C" fn descriptor_of(device: u64, inode: u64) -> i32 {
    let found = session().map(|session| session.descriptor_of(Identity { device, inode }));
    found.flatten().unwrap_or(NOT_MANAGED)
}

unsafe extern "C" fn note_dataset(
    fd: c_int,
    name: *const u8,
    bytes: usize,
    ranges: *const ByteRange,
    count: usize,
) -> c_int {
    // SAFETY: the caller's name and ranges.
    let (name, ranges) = unsafe {
        (core::slice::from_raw_parts(name, bytes), core::slice::from_raw_parts(ranges, count))
    };
    let ranges: Vec<_> = ranges.iter().map(|range| range.start..range.end).collect();
    of_file(fd, |file| {
        file.note_dataset(name, &ranges).map(|noted| match noted {
            (_, Noted::Partly | Noted::Nothing) => dataset::NO_ROOM,
            (true, Noted::Whole) => dataset::RULED,
            (false, Noted::Whole) => dataset::NOTED,
        })
    })
}

extern "C" fn tells_metadata_apart(fd: c_int) -> c_int {
    of_file(fd, |file| Ok(file.tells_metadata_apart().into()))
}

unsafe extern "C" fn note_metadata(
    fd: c_int,
    from: u64,
    ranges: *const ByteRange,
    count: usize,
) -> c_int {
    // SAFETY: the caller's ranges.
    let ranges = unsafe { core::slice::from_raw_parts(ranges, count) };
    let ranges: Vec<_> = ranges.iter().map(|range| range.start..range.end).collect();
    of_file(fd, |file| {
        file.note_metadata(from, &ranges).map(|noted| match noted {
            Some(Noted::Partly | Noted::Nothing) => dataset::NO_ROOM,
            Some(Noted::Whole) => dataset::RULED,
            None => dataset::NOTED,
        })
    })
}

unsafe extern "C" fn rename_datasets(
    fd: c_int,
    from: *const u8,
    from_bytes: usize,
    to: *const u8,
    to_bytes: usize,
) -> c_int {
    // SAFETY: the caller's names.
    let (from, to) = unsafe {
        (core::slice::from_raw_parts(from, from_bytes), core::slice::from_raw_parts(to, to_bytes))
    };
    let to = Some(to).filter(|to| !to.is_empty());
    of_file(fd, |file| file.rename_datasets(from, to).map(|count| count as c_int))
}

unsafe extern "C" fn device(
    fd: c_int,
    offset: u64,
    bytes: u64,
    is_write: u32,
    now: *mut DeviceNow,
) -> c_int {
    let is_write = is_write == 1;
    let say = |found: Option<DeviceNow>| {
        // SAFETY: the caller's to write.
        found.map(|found| unsafe { now.write(found) }).ok_or(Errno::NODATA)
    };
    if fd < 0 {
        return of_session(|session| say(session.fastest_device(is_write)));
    }
    of_file(fd, |file| {
        say(file.device_beneath(offset..offset.saturating_add(bytes), is_write)?)?;
        Ok(0)
    })
}

unsafe extern "C" fn network(now: *mut NetworkNow) -> c_int {
    of_session(|session| {
        // SAFETY: the caller's to write.
        unsafe { now.write(session.network_now()) };
        Ok(())
    })
}

extern "C" fn join_mpi_job(job: u64) -> c_int {
    of_session(|session| {
        session.join_mpi_job(job);
        Ok(())
    })
}

extern "C" fn ranks_of_mpi_job(job: u64) -> c_int {
    session().map_or(NOT_MANAGED, |session| session.ranks_of_mpi_job(job) as c_int)
}

unsafe extern "C" fn covers(path: *const c_char) -> c_int {
    // SAFETY: the caller's path.
    let path = unsafe { text_at(path) };
    let is_covered = session().zip(path).is_some_and(|(session, path)| session.covers(path));
    if is_covered { 0 } else { NOT_MANAGED }
}

unsafe extern "C" fn ask_of_actions(
    question: *const u8,
    bytes: usize,
    answer: *mut u8,
    room: usize,
    is_again: *mut u32,
) -> i64 {
    let Some(session) = session() else { return NOT_MANAGED.into() };
    // SAFETY: the caller's text, and its room for another one.
    let (question, answer) = unsafe {
        (
            core::slice::from_raw_parts(question, bytes),
            core::slice::from_raw_parts_mut(answer, room),
        )
    };
    match session.ask_of_actions(question, answer) {
        Ok(answered) => {
            // SAFETY: the caller's to write.
            unsafe { is_again.write(answered.is_again.into()) };
            answered.bytes as i64
        }
        Err(errno) => failure(errno).into(),
    }
}

// The name that libraries look for.
const _: () = assert!(is_same(SERVICES.to_bytes(), b"forebay_services_1"));

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}
