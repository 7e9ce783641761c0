//! A process's part in a node manager's segment.

use crate::ahead::Predictors;
use crate::descriptors::Sparse;
use crate::manager::ManagerLink;
use crate::open::Seen;
use crate::open_file::OpenFile;
use crate::place::Engine;
use crate::vigil::Vigil;
use crate::waits::surely;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use forebay_placement::schema::Mode;
use forebay_pool::clock::Timer;
use forebay_pool::layout::*;
use forebay_pool::private::Wrong;
use forebay_pool::{Identity, Marker, Owner, Segment, liveness, segment};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Forebay's own descriptors go above this, out of the way of programs that count theirs.
const OWN_DESCRIPTORS: RawFd = 900;
/// Or above the program's limit, if that is not higher than this: the kernel's table of
/// descriptors grows with the highest.
const LIMIT_MAX: u64 = 4096;
/// The lowest of them.
static LOWEST_OWN: AtomicI32 = AtomicI32::new(RawFd::MAX);
/// Descriptor numbers that can be managed; the map costs nothing until it is used.
const DESCRIPTORS: usize = 1 << 22;

/// Descriptors of our own for files that the program has open in a way that we cannot use: for
/// writing only, mostly. More are made and closed at each use.
const READERS: usize = 64;

/// This process's part in a pool, of which it has one at most. When it is dropped, the files that are
/// still open are used through the kernel.
pub struct Session {
    pub(crate) segment: Segment,
    attachment: Attachment,
    slot: AtomicU32,
    /// Descriptor number -> description plus one, see `parting.rs`.
    pub(crate) table: Sparse,
    /// Description -> descriptors of this process that refer to it.
    pub(crate) references: Sparse,
    /// File record -> its generation (plus one) when this process mapped it.
    pub(crate) mapped: Sparse,
    /// RAM bucket / 16 -> whether its pages are mapped here.
    pub(crate) populated: Sparse,
    /// `room_made` of the header when somebody here had waited in vain for room.
    pub(crate) waited_in_vain: AtomicU64,
    pub(crate) manager: ManagerLink,
    pub(crate) vigil: Vigil,
    pub(crate) engine: Engine,
    pub(crate) predictors: Predictors,
    /// The slots of each tier, and behind [`TIERS_MAX`] their tables.
    pub(crate) tier_files: [AtomicU32; 2 * TIERS_MAX],
    /// What rules ask about this process; none without rules.
    pub(crate) process: Option<crate::rules::Process>,
    /// Some rule makes files scratch.
    pub(crate) has_scratch_rules: bool,
    /// Descriptors for reading of our own (upper half), and the descriptions (plus one) that they
    /// are for; see [`Session::reader`].
    readers: [AtomicU64; READERS],
    /// One more than the last place of `readers` that was ever taken.
    readers_high: AtomicU32,
    /// Highest descriptor number that was ever managed.
    pub(crate) highest: AtomicU32,
    /// Largest size of a file on each store; 0 is not known yet.
    pub(crate) largest: [AtomicU64; STORES_MAX],
    /// See [`Session::use_kernel_only`].
    kernel_only: AtomicBool,
    /// Threads that have a descriptor of the program's files that they are about to close.
    pub(crate) lending: AtomicU32,
    /// Ends all locks of a descriptor's description.
    pub(crate) unlock: fn(RawFd),
}

/// How long a process waits for a slot when all are in use, after which part of that it says so, and how often it
/// looks for one.
const SLOT_PATIENCE: Timer = Timer::seconds(30);
const SLOT_SILENCE: Timer = Timer::seconds(5);
const SLOT_LOOK: Timer = Timer::ms(10);
/// How often a process that goes on after an exec looks whether what it held before can be taken back.
const REAP_LOOK: Timer = Timer::ms(1);

/// Why a process has no session. But for `NoPool` it must not run: it would not see what other processes have in the
/// tiers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// There is no pool any more, or it is not for this process.
    NoPool,
    /// This process has a session of the pool already.
    Attached,
    /// So many slots are there, and all are in use.
    Slots(u32),
    /// It has inherited a file, and all descriptions are in use.
    Descriptions,
    /// It has inherited a file that it uses through the kernel, which does not have what is buffered: the store fails.
    Store(Errno),
    /// It was forked, and taken for dead before it could say that it lives.
    Taken,
    /// It is in another PID namespace than the node manager.
    Namespace,
    /// The pool is there, but cannot be opened for now.
    Pool(Errno),
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoPool => f.write_str("there is no pool"),
            Self::Attached => f.write_str("this process uses the pool already"),
            Self::Slots(slots) => write!(
                f,
                "all {slots} processes that can use this node's pool at a time are there; end some of them, or run \
                 fewer at a time (docs/posix.md#limits)"
            ),
            Self::Descriptions => f.write_str(
                "it has inherited open files, and all open-file descriptions of this node's pool are in use \
                 (docs/posix.md#limits)",
            ),
            Self::Store(errno) => write!(
                f,
                "it has inherited an open file, and what is buffered of that cannot be brought to the store: {errno}"
            ),
            Self::Taken => f.write_str("the node manager has taken it for dead"),
            Self::Namespace => f.write_str(
                "it is in another PID namespace than the node manager, which could not tell whether it lives; run all \
                 programs that use a directory in one namespace, with `forebay run` inside of it (docs/posix.md#limits)",
            ),
            Self::Pool(errno) => write!(f, "the pool cannot be opened: {errno}"),
        }
    }
}

/// Says `text` on the program's standard error, unless that is a file that is buffered: the kernel has the marker for
/// its offset.
pub fn say(text: &str) {
    let stderr = borrow(2);
    if rustix::fs::tell(stderr).ok().and_then(Marker::decode).is_none() {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}

/// Whether the numbers of processes in the pool's slots are what they are here.
///
/// # Errors
/// [`StartError::Namespace`].
pub(crate) fn check_namespace(segment: &Segment) -> Result<(), StartError> {
    let is_over = segment.header().retired.load(Ordering::SeqCst) == retirement::GONE;
    match segment.has_numbers_of_here() || is_over {
        true => Ok(()),
        false => Err(StartError::Namespace),
    }
}

/// A slot; `NoPool` if the node manager has ended meanwhile.
fn wait_for_slot(segment: &Segment, pid: u32, start: u64) -> Result<u32, StartError> {
    let slots = StartError::Slots(segment.header().clients - 1);
    let since = forebay_pool::clock::monotonic_ns();
    let mut silent = true;
    loop {
        if let Some(slot) = segment.claim_slot(pid, start) {
            return Ok(slot);
        }
        if segment.header().retired.load(Ordering::SeqCst) == retirement::GONE {
            return Err(StartError::NoPool);
        }
        let waited = forebay_pool::clock::monotonic_ns().saturating_sub(since);
        if waited >= SLOT_PATIENCE.as_ns() {
            segment.header().opens_refused.fetch_add(1, Ordering::Relaxed);
            return Err(slots);
        }
        if silent && waited >= SLOT_SILENCE.as_ns() {
            silent = false;
            let wait = SLOT_PATIENCE.as_ns() / 1_000_000_000;
            say(&format!("forebay: waiting up to {wait} s to start: {slots}\n"));
        }
        forebay_pool::clock::sleep_ns(SLOT_LOOK.as_ns());
    }
}

/// Threads of this process that have a number, whichever session they use.
pub(crate) static THREADS: AtomicU32 = AtomicU32::new(0);

/// The pools (device and inode) that this process has sessions of: it has one slot in each.
static ATTACHED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// An entry of [`ATTACHED`].
struct Attachment((u64, u64));

impl Attachment {
    fn to(pool: BorrowedFd<'_>) -> Result<Attachment, StartError> {
        let stat = rustix::fs::fstat(pool).map_err(StartError::Pool)?;
        let pool = (stat.st_dev, stat.st_ino);
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.contains(&pool) {
            return Err(StartError::Attached);
        }
        attached.push(pool);
        Ok(Attachment(pool))
    }

    /// What tells the sessions of a process apart.
    fn number(&self) -> u64 {
        self.0.1
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|pool| *pool != self.0);
    }
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// `fd` for system calls.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: a program may close any descriptor at any time, so that nothing here relies on one being
    // open: a call on one that is closed fails with EBADF, and one that was closed and opened again is
    // noticed, see `parting.rs`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl OpenFile<'_> {
    /// Calls `act` with a descriptor of our own through which the file can be read. It is
    /// kept until the program closes the description: closing any descriptor of a file ends all
    /// fcntl locks that the process has on it.
    ///
    /// # Errors
    /// The errno of opening the file again, or that of `act`.
    pub(crate) fn reader<R>(
        &self,
        act: impl FnOnce(RawFd) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        for place in &self.session.readers {
            let word = place.load(Ordering::Acquire);
            if word as u32 != self.description_id() + 1 {
                continue;
            }
            let fd = (word >> 32) as RawFd;
            if self.session.is_of(fd, self.id) {
                return act(fd);
            }
            let _ = place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let flags = rustix::fs::OFlags::RDONLY;
        let own = crate::store::reopen(self.fd, flags)?;
        // To move it out of the program's way is to close the one that was opened.
        let fd = match self.record.has(FileFlags::FCNTL_LOCKED) {
            true => own.into_raw_fd(),
            false => Session::hide(own),
        };
        let word = (fd as u64) << 32 | u64::from(self.description_id() + 1);
        let keeps = self.session.readers.iter().zip(1..).any(|(place, number)| {
            self.session.readers_high.fetch_max(number, Ordering::SeqCst);
            place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let result = act(fd);
        if !keeps {
            // SAFETY: just opened here, known to no other thread.
            unsafe { rustix::io::close(fd) };
        }
        result
    }

    pub(crate) fn closing(&self) {
        let written = self.may(DescriptionFlags::WRITE) && self.record.has(FileFlags::DIRTY);
        if !written {
            return;
        }
        // The kernel and ld.so read programs and libraries from the store, at a time we cannot see.
        if self.record.has(FileFlags::EXECUTABLE) {
            let _ = surely(|| self.flush(false));
        } else if !self.record.has(FileFlags::SCRATCH)
            && self.session.trigger(self.record) == Trigger::PerFile
        {
            self.session.segment.request_sync(self.id, Some(self.session.owner()), false);
        }
    }
}

impl Session {
    /// Attaches this process to the pool at `pool`, whose manager listens at `socket`, and takes
    /// over the managed descriptors it inherited. `job` is the number of the run that it belongs to.
    /// `unlock` ends the locks of flock and F_OFD_SETLK that a descriptor's description has.
    ///
    /// # Errors
    /// [`StartError::NoPool`] where the process may go on without buffering; after any other error
    /// it would see other bytes than the processes that have a session.
    pub fn start(
        pool: &CStr,
        socket: &CStr,
        job: Option<&CStr>,
        unlock: fn(RawFd),
    ) -> Result<Session, StartError> {
        let pool = Path::new(OsStr::from_bytes(pool.to_bytes()));
        let job = job.and_then(|job| job.to_str().ok()?.parse().ok()).unwrap_or(0);
        let file = match segment::open_pool(pool) {
            Ok(file) => file,
            // For want of something that other processes have.
            Err(Wrong::System(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM))) => {
                return Err(StartError::Pool(errno));
            }
            Err(_) => return Err(StartError::NoPool),
        };
        let attachment = Attachment::to(file.as_fd())?;
        let segment = Segment::attach(file.as_fd()).map_err(|_| StartError::NoPool)?;
        // What is said below is not to go into it, should it have the number of the standard error.
        drop(file);
        Session::join(segment, attachment, socket.to_bytes(), job, unlock)
    }

    fn join(
        segment: Segment,
        attachment: Attachment,
        socket: &[u8],
        job: u32,
        unlock: fn(RawFd),
    ) -> Result<Session, StartError> {
        let pid = std::process::id();
        check_namespace(&segment)?;
        // Unknown without /proc, or descriptors; the manager will fill it in.
        let start = liveness::start_time(pid).unwrap_or(0);
        let slot = match segment.slot_of(pid, start) {
            // The same process before its exec: its other threads ended inside whatever they did.
            Some(slot) => {
                let mut left = Ok(());
                let mut unfinished = |file, reaper| {
                    // A truncate or a punch, of which the store may have one half already.
                    match wait_for_slot(&segment, pid, start) {
                        Ok(heir) => segment.bequeath(file, reaper, heir),
                        Err(StartError::NoPool) => {}
                        Err(error) => left = Err(error),
                    }
                };
                while segment.reap_holdings(slot, &mut unfinished).is_none() {
                    forebay_pool::clock::sleep_ns(REAP_LOOK.as_ns());
                }
                if left.is_err() {
                    // This process ends now, and is reaped as one that died in the middle of it.
                    segment.seem_inside(slot);
                }
                left.map(|()| slot)?
            }
            None => wait_for_slot(&segment, pid, start)?,
        };
        // Looked at after the slot was claimed: the manager looks at the slots after it has said so.
        if segment.header().retired.load(Ordering::SeqCst) == retirement::GONE {
            segment.cancel_slot(slot);
            return Err(StartError::NoPool);
        }
        // An exec keeps the slot, and the job with it.
        if segment.client(slot).job.load(Ordering::Relaxed) == 0 {
            segment.join_job(slot, job);
        }
        let buckets = segment.ram_buckets();
        let descriptions = segment.header().descriptions;
        let files = segment.header().files;
        let engine = Engine::new(&segment);
        let process = crate::rules::process_for(&segment);
        let scratch = |rule: &RuleRecord| rule.settings().mode == Some(Mode::Scratch);
        let has_scratch_rules = segment.rules().iter().any(scratch);
        let session = Session {
            segment,
            attachment,
            process,
            has_scratch_rules,
            slot: AtomicU32::new(slot),
            table: Sparse::new(DESCRIPTORS),
            references: Sparse::new(descriptions as usize),
            mapped: Sparse::new(files as usize),
            populated: Sparse::new(buckets as usize / 16 + 1),
            waited_in_vain: AtomicU64::new(u64::MAX),
            manager: ManagerLink::new(socket),
            vigil: Vigil::default(),
            engine,
            predictors: Predictors::new(),
            tier_files: [const { AtomicU32::new(0) }; 2 * TIERS_MAX],
            readers: [const { AtomicU64::new(0) }; READERS],
            readers_high: AtomicU32::new(0),
            highest: AtomicU32::new(0),
            largest: [const { AtomicU64::new(0) }; STORES_MAX],
            kernel_only: AtomicBool::new(false),
            lending: AtomicU32::new(0),
            unlock,
        };
        crate::limits::limits_changed();
        match session.adopt_inherited() {
            Ok(()) => Ok(session),
            Err(error) => {
                // This process ends now, and is reaped. To end the session would take the files that it
                // shares with its parent away from the tiers.
                core::mem::forget(session);
                Err(error)
            }
        }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Tells it from other sessions of this process.
    pub(crate) fn number(&self) -> u64 {
        self.attachment.number()
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// The stamp of the calling thread.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        let thread = THREAD.with(|thread| {
            let mut number = thread.get();
            if number == 0 {
                number = THREADS.fetch_add(1, Ordering::SeqCst) + 1;
                thread.set(number);
            }
            number
        });
        Owner::new(self.slot(), thread)
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.segment.client(self.slot()).counters
    }

    /// Counts `more`. While no other thread has come here, without a locked instruction; one that
    /// comes at this very moment may make us lose a count.
    #[inline]
    pub(crate) fn count_up(&self, counter: &AtomicU64, more: u64) {
        if THREADS.load(Ordering::Relaxed) <= 1 {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        } else {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Whether `fd` is one of Forebay's own, which a program must not close.
    pub fn owns(&self, fd: RawFd) -> bool {
        fd >= LOWEST_OWN.load(Ordering::Relaxed)
            && (self.manager.owns(fd)
                || self.tier_files.iter().any(|file| file.load(Ordering::Relaxed) == fd as u32 + 1)
                || self.readers.iter().any(|word| {
                    let word = word.load(Ordering::Relaxed);
                    word != 0 && (word >> 32) as RawFd == fd
                }))
    }

    /// Whether `fd` is still what we opened: a program may close what is not its own.
    pub(crate) fn is_of(&self, fd: RawFd, file: u32) -> bool {
        let identity = self.segment.file(file).identity();
        rustix::fs::fstat(borrow(fd))
            .is_ok_and(|stat| Identity { device: stat.st_dev, inode: stat.st_ino } == identity)
    }

    pub(crate) fn close_readers(&self, description: u32, file: u32) {
        let high = self.readers_high.load(Ordering::SeqCst) as usize;
        for place in &self.readers[..high.min(READERS)] {
            let word = place.load(Ordering::Relaxed);
            if word as u32 == description + 1
                && place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                && self.is_of((word >> 32) as RawFd, file)
            {
                // SAFETY: our own descriptor, which nobody uses any more.
                unsafe { rustix::io::close((word >> 32) as RawFd) };
            }
        }
    }

    /// Takes over descriptors that were managed before an exec, by the marker in their offset.
    fn adopt_inherited(&self) -> Result<(), StartError> {
        let mut keep = [0u64; 1024];
        let mut refused = None;
        each_descriptor(|fd| {
            match self.adopt(fd).map_or_else(|| self.opened_raw(fd), |id| Ok(Some(id))) {
                Ok(Some(description)) => {
                    keep[description as usize / 64] |= 1 << (description % 64);
                }
                Ok(None) => {}
                Err(Errno::NFILE) => refused = Some(StartError::Descriptions),
                Err(errno) => refused = Some(StartError::Store(errno)),
            }
        });
        // What the image before the exec held and this one has not inherited.
        for word in 0..self.segment.header().descriptions / 64 {
            let held = self.segment.held(self.slot(), word);
            if held.load(Ordering::Relaxed) & !keep[word as usize] != 0 {
                held.fetch_and(keep[word as usize], Ordering::SeqCst);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes over `fd` if its offset carries a marker of a managed file. Returns the description.
    pub fn adopt(&self, fd: RawFd) -> Option<u32> {
        let offset = rustix::fs::tell(borrow(fd)).ok()?;
        let marker = Marker::decode(offset)?;
        let names = self.segment.name_changes();
        let seen = Seen::of(fd)?;
        let identity = Identity { device: seen.stat.st_dev, inode: seen.stat.st_ino };
        if marker.description >= self.segment.header().descriptions {
            return None;
        }
        let owner = self.owner();
        // It may not have been held by anybody for a while, and the file's record removed: so it is as an open.
        let take_part = |file| {
            let adopted = self.segment.adopt(marker, owner);
            if adopted {
                let description = self.segment.description(marker.description);
                description.file.store(file, Ordering::Release);
                forebay_pool::crash::point("description.adopted");
            }
            adopted
        };
        let adopted = surely(|| {
            let inside = self.segment.enter_table(owner);
            let known = self.segment.reopen_file(identity, owner, take_part);
            drop(inside);
            match known? {
                Some(adopted) => Ok(Some(adopted)),
                None => self.find_or_insert(&seen, fd, None, None, |file, _| take_part(file)),
            }
        });
        if adopted != Ok(Some(true)) {
            return None;
        }
        self.bind(fd, marker.description);
        if self.segment.name_changes() != names {
            self.look_for_name(fd);
        }
        Some(marker.description)
    }

    /// Moves a descriptor of Forebay's own out of the program's way.
    pub(crate) fn hide(fd: OwnedFd) -> RawFd {
        let hidden = match above_limit(&fd) {
            Some(high) => high.into_raw_fd(),
            None => match rustix::io::fcntl_dupfd_cloexec(&fd, OWN_DESCRIPTORS) {
                Ok(high) => high.into_raw_fd(),
                Err(_) => fd.into_raw_fd(),
            },
        };
        LOWEST_OWN.fetch_min(hidden, Ordering::Relaxed);
        hidden
    }

    /// Gives number `fd`, one of Forebay's own, up to the program. False if no other is to be had.
    pub fn make_way(&self, fd: RawFd) -> bool {
        if self.manager.owns(fd) {
            return self.manager.make_way(fd);
        }
        let mine = |file: &&AtomicU32| file.load(Ordering::Acquire) == fd as u32 + 1;
        if let Some(place) = self.tier_files.iter().find(mine) {
            let Ok(other) = rustix::io::fcntl_dupfd_cloexec(borrow(fd), OWN_DESCRIPTORS) else {
                return false;
            };
            let other = other.into_raw_fd();
            LOWEST_OWN.fetch_min(other, Ordering::Relaxed);
            place.store(other as u32 + 1, Ordering::SeqCst);
            self.wait_for_threads();
        }
        true
    }

    /// Waits until each thread that was inside a file has left it: what it looked up before, it
    /// does not use any more.
    fn wait_for_threads(&self) {
        for place in &self.segment.client(self.slot()).presence {
            let seen = place.load(Ordering::SeqCst);
            let mut backoff = forebay_pool::backoff::Backoff::default();
            while seen != 0 && place.load(Ordering::SeqCst) == seen {
                backoff.wait();
            }
        }
    }

    /// Opens what may be out of reach when the process has another root directory or is another
    /// user's.
    pub fn keep_reach(&self) {
        for tier in self.segment.header().file_tiers() {
            let _ = self.tier_file(tier);
            let _ = self.index_file(tier);
        }
        self.manager.connect();
    }

    /// Whether a process under this one's limits has the address space to join.
    pub fn fits(&self) -> bool {
        /// The maps of descriptors and buckets, and what a program needs for itself.
        const BESIDE: u64 = 64 << 20;
        let needed = self.segment.header().segment_bytes + BESIDE;
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
        limit.is_none_or(|limit| limit >= needed)
    }

    /// The program submits I/O in ways that cannot be seen: all files that it has or will open
    /// are used through the kernel.
    ///
    /// # Errors
    /// The errno of a flush; the program is not to begin then.
    pub fn use_kernel_only(&self) -> Result<(), rustix::io::Errno> {
        self.kernel_only.store(true, Ordering::Release);
        self.files().try_for_each(|file| match file.uses_kernel_offset() {
            true => Ok(()),
            false => file.release_to_kernel(),
        })
    }

    pub(crate) fn is_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Acquire)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for file in self.files() {
            // It may have been closed where that could not be seen.
            if !file.uses_kernel_offset() && self.is_bound_so(file.fd, file.bound) {
                // An error stays with the file.
                let _ = file.release_to_kernel();
            }
            self.forget(file.fd);
        }
        for place in &self.tier_files {
            if let Some(fd) = place.load(Ordering::Relaxed).checked_sub(1) {
                // SAFETY: the session's own descriptor, and no other thread has the session.
                unsafe { rustix::io::close(fd as RawFd) };
            }
        }
        self.manager.disconnect();
        while self.segment.reap_slot(self.slot(), |_, _| {}).is_none() {
            forebay_pool::clock::sleep_ns(REAP_LOOK.as_ns());
        }
    }
}

/// Calls `act` with each descriptor of this process. False if they cannot be listed.
pub(crate) fn each_descriptor(mut act: impl FnMut(RawFd)) -> bool {
    let flags =
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(c"/proc/self/fd", flags, rustix::fs::Mode::empty()) else {
        return false;
    };
    let mut buffer = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = core::str::from_utf8(entry.file_name().to_bytes()).unwrap_or("");
        if let Ok(fd) = name.parse::<RawFd>() {
            act(fd);
        }
    }
    true
}

/// A duplicate of `fd` that no program under the present limit can have asked for.
fn above_limit(fd: &OwnedFd) -> Option<OwnedFd> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// Numbers that are searched for a free one.
    const ROOM: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.filter(|&current| current <= LIMIT_MAX)?;
    let raised = current + ROOM;
    if limit.maximum.is_some_and(|maximum| maximum < raised) {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).ok()?;
    let other = rustix::io::fcntl_dupfd_cloexec(fd, current as RawFd);
    let _ = setrlimit(Resource::Nofile, limit);
    other.ok()
}
