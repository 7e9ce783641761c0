//! The start of a session: a slot in the pool, and the files that the process has inherited; and
//! its end.

use crate::attachment::Attachment;
use crate::descriptors::Sparse;
use crate::fd::{borrow, each_descriptor};
use crate::file_mappings::FileMappings;
use crate::fork::Number;
use crate::manager::ManagerLink;
use crate::manager_watch::ManagerWatch;
use crate::open::{Before, OpenStat, identity_of};
use crate::placement::Engine;
use crate::predictors::Predictors;
use crate::process::process_for;
use crate::session::{Front, KEPT_READERS, Session, root};
use crate::spawn::{Carried, Managed, Reach, Told};
use crate::waiting::surely;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_placement::schema::{Consistency, Mode};
use forebay_pool::clock::{self, Timer};
use forebay_pool::layout::*;
use forebay_pool::private::Wrong;
use forebay_pool::segment::SegmentError;
use forebay_pool::shared_device::DeviceError;
use forebay_pool::{Marker, Segment, crash, liveness, segment};
use rustix::fd::{AsFd, RawFd};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Descriptor numbers that can be managed; the map costs nothing until it is used.
const DESCRIPTORS: usize = 1 << 22;

/// How long a process waits for a slot when all are in use, after which part of that it says so,
/// and how often it looks for one.
pub(crate) const SLOT_TIMEOUT: Timer = Timer::seconds(30);
const SLOT_SILENCE: Timer = Timer::seconds(5);
pub(crate) const SLOT_LOOK: Timer = Timer::ms(10);
/// How often a process that goes on after an exec looks whether what it held before can be taken
/// back.
const REAP_LOOK: Timer = Timer::ms(1);

/// Why a process has no session. But for `NoPool`, and `Hidden` where no node manager serves the
/// pool, it must not run: it would not see what other processes have in the tiers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// There is no pool any more, or it is not for this process.
    NoPool,
    /// No pool of this user's is found where it was.
    Hidden,
    /// This process has a session of the pool already.
    Attached,
    /// So many slots are there, and all are in use.
    Slots(u32),
    /// It has inherited a file, and all descriptions are in use.
    Descriptions,
    /// It has inherited a file that it uses through the kernel, which does not have what is
    /// buffered: the store fails.
    Store(Errno),
    /// It was forked, and taken for dead before it could say that it lives.
    Taken,
    /// It is in another PID namespace than the node manager.
    Namespace,
    /// The pool is there, but cannot be opened for now.
    Pool(Errno),
    /// It would not share the emulated device of this store with the others.
    Device(usize, DeviceError),
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
            Self::Hidden => f.write_str(
                "the pool of its node manager, which runs, is not found where the program is now, or not its user's: it \
                 was removed, or the program is in another namespace (docs/design/starting.md#programs-that-use-no-file)",
            ),
            Self::Device(store, error) => {
                write!(f, "the file that backing[{store}].emulate.shared names: {error}")
            }
        }
    }
}

/// What a process knows of itself without asking the kernel. Nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Itself {
    /// Its number, probably: it is believed only where it is the one in a slot.
    pub number: Option<u32>,
    /// Its user.
    pub user: Option<u32>,
}

/// What the process was told, and its number.
fn who(segment: &Segment, told: Option<Told>, guess: Option<u32>) -> (Option<Told>, u32) {
    let was_told = |pid| told.filter(|told| told.was_for(segment, pid));
    if let Some(pid) = guess.filter(|_| told.is_none_or(|told| told.fork.is_none()))
        && let Some(told) = was_told(pid)
    {
        return (Some(told), pid);
    }
    let pid = std::process::id();
    (was_told(pid), pid)
}

/// Says `text` on the program's standard error, unless that is a file that is buffered: the kernel
/// has the marker for its offset.
pub fn say(text: &str) {
    if !carries_marker(2) {
        let _ = rustix::io::write(borrow(2), text.as_bytes());
    }
}

/// Whether `fd` is of a managed file whose offset is not the kernel's.
pub fn carries_marker(fd: RawFd) -> bool {
    fd >= 0 && rustix::fs::tell(borrow(fd)).ok().and_then(Marker::decode).is_some()
}

/// Whether the numbers of processes in the pool's slots are what they are here.
///
/// # Errors
/// [`StartError::Namespace`].
pub(crate) fn check_namespace(segment: &Segment) -> Result<(), StartError> {
    match segment.has_numbers_of_here() || segment.header().is_over() {
        true => Ok(()),
        false => Err(StartError::Namespace),
    }
}

/// A slot; `NoPool` if the node manager has ended meanwhile.
fn wait_for_slot(segment: &Segment, pid: u32, start: u64) -> Result<u32, StartError> {
    let slots = StartError::Slots(segment.header().clients - 1);
    let since = clock::monotonic_ns();
    let mut silent = true;
    loop {
        if let Some(slot) = segment.clients().claim(pid, start) {
            return Ok(slot);
        }
        if segment.header().is_over() {
            return Err(StartError::NoPool);
        }
        let waited = clock::monotonic_ns().saturating_sub(since);
        if waited >= SLOT_TIMEOUT.as_ns() {
            segment.header().opens_refused.fetch_add(1, Ordering::Relaxed);
            return Err(slots);
        }
        if silent && waited >= SLOT_SILENCE.as_ns() {
            silent = false;
            let wait = SLOT_TIMEOUT.as_ns() / 1_000_000_000;
            say(&format!("forebay: waiting up to {wait} s to start: {slots}\n"));
        }
        clock::sleep_ns(SLOT_LOOK.as_ns());
    }
}

impl Session {
    /// Attaches this process to the pool at `pool`, whose manager listens at `socket`, and takes
    /// over the managed descriptors it inherited. `job` is the number of the run that it belongs
    /// to, `told` what the image before has said, and `itself` what it knows of itself.
    ///
    /// # Errors
    /// [`StartError::NoPool`] where the process may go on without buffering; after any other error
    /// it would see other bytes than the processes that have a session.
    pub fn start(
        pool: &CStr,
        socket: &CStr,
        job: Option<&CStr>,
        told: Option<Told>,
        itself: Itself,
        front: Front,
    ) -> Result<Box<Session>, StartError> {
        let user = itself.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let pool = Path::new(OsStr::from_bytes(pool.to_bytes()));
        let job = job.and_then(|job| job.to_str().ok()?.parse().ok()).unwrap_or(0);
        let (file, seen) = match segment::open_pool_seen(pool, user) {
            Ok(file) => file,
            // For want of something that other processes have.
            Err(Wrong::System(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM))) => {
                return Err(StartError::Pool(errno));
            }
            Err(_) => return Err(StartError::Hidden),
        };
        let attachment = Attachment::to(&seen).ok_or(StartError::Attached)?;
        let is_expected = told.as_ref().is_some_and(Told::is_expected);
        let mut segment =
            Segment::attach_bounded(file.as_fd(), &seen).map_err(|error| match error {
                // Who executed it took it for one that joins, and has left to it what is buffered.
                SegmentError::System(_, errno) if is_expected => StartError::Pool(errno),
                _ => StartError::NoPool,
            })?;
        // What is said below is not to go into it, should it have the number of the standard error.
        drop(file);
        let (told, pid) = who(&segment, told, itself.number);
        if told.is_none() && segment.check_sum().is_err() {
            return Err(StartError::NoPool);
        }
        segment
            .join_shared_devices(user)
            .map_err(|(store, error)| StartError::Device(store, error))?;
        Session::join(segment, attachment, socket.to_bytes(), job, (told, pid, user), front)
    }

    fn join(
        segment: Segment,
        attachment: Attachment,
        socket: &[u8],
        job: u32,
        (told, pid, user): (Option<Told>, u32, u32),
        front: Front,
    ) -> Result<Box<Session>, StartError> {
        // The slot of a child is not its own yet. One that was taken from it is as none.
        let told = match told.and_then(|told| told.fork) {
            None => told,
            Some(fork) => match fork.confirm(&segment, Number { own: pid, parents: None }) {
                Ok(()) => told,
                Err(StartError::Taken) => None,
                Err(error) => return Err(error),
            },
        };
        let (start, slot) = match told {
            Some(told) => {
                (segment.client(told.slot).start.load(Ordering::Acquire), Some(told.slot))
            }
            None => {
                check_namespace(&segment)?;
                // Unknown without /proc, or descriptors; the manager will fill it in.
                let start = liveness::start_time(pid).unwrap_or(0);
                (start, segment.clients().slot_of(pid, start))
            }
        };
        let slot = match slot {
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
                    clock::sleep_ns(REAP_LOOK.as_ns());
                }
                if left.is_err() {
                    // This process ends now, and is reaped as one that died in the middle of it.
                    segment.client(slot).seem_inside();
                }
                left.map(|()| slot)?
            }
            None => wait_for_slot(&segment, pid, start)?,
        };
        // Looked at after the slot was claimed: the manager looks at the slots after it has said
        // so.
        if segment.header().is_over() {
            segment.cancel_slot(slot);
            return Err(StartError::NoPool);
        }
        // An exec keeps the slot, and the job with it, unless the program was given another one: a
        // run within a run.
        if job != segment.client(slot).job.load(Ordering::Relaxed) {
            segment.join_job(slot, job);
        }
        let pieces = segment.ram_buckets().div_ceil(segment.piece_buckets());
        let descriptions = segment.header().descriptions;
        let files = segment.header().files;
        let engine = Engine::new(&segment);
        let process = process_for(&segment).map(Arc::new);
        let scratch = |rule: &RuleRecord| rule.settings().mode == Some(Mode::Scratch);
        let has_scratch_rules = segment.rules().iter().any(scratch);
        let commits = |rule: &RuleRecord| rule.settings().consistency == Some(Consistency::Commit);
        let has_commit_rules = segment.rules().iter().any(commits);
        // Few copies: the program may have little stack where it opens its first file.
        let session = Box::new(Session {
            segment,
            attachment,
            process,
            has_scratch_rules,
            has_commit_rules,
            slot: AtomicU32::new(slot),
            table: Sparse::new(DESCRIPTORS),
            references: Sparse::new(descriptions as usize),
            duplicating: AtomicU32::new(0),
            mapped: Sparse::new(files as usize),
            mappings: FileMappings::new(),
            populated: Sparse::new(pieces as usize),
            waited_in_vain: AtomicU64::new(u64::MAX),
            quota_in_vain: AtomicU64::new(0),
            cap_in_vain: AtomicU64::new(0),
            waited_for_pages: AtomicU64::new(u64::MAX),
            manager: ManagerLink::new(socket),
            manager_watch: ManagerWatch::default(),
            engine,
            predictors: Predictors::new(),
            tier_files: [const { AtomicU32::new(0) }; 2 * TIERS_MAX],
            readers: [const { AtomicU64::new(0) }; KEPT_READERS],
            readers_high: AtomicU32::new(0),
            highest: AtomicU32::new(0),
            largest: [const { AtomicU64::new(0) }; STORES_MAX],
            file_limit: AtomicU64::new(0),
            kernel_only: AtomicBool::new(false),
            root: AtomicU32::new(root::UNKNOWN),
            lending: AtomicU32::new(0),
            user,
            carried: Carried::default(),
            reach: Reach::default(),
            front,
        });
        session.join_recording();
        session.join_following();
        match session.adopt_inherited(told.map_or(Managed::Any, |told| told.managed)) {
            Ok(()) => Ok(session),
            Err(error) => {
                // This process ends now, and is reaped. To end the session would take the files
                // that it shares with its parent away from the tiers.
                core::mem::forget(session);
                Err(error)
            }
        }
    }

    /// Takes over descriptors that were managed before an exec, by the marker in their offset.
    pub(crate) fn adopt_inherited(&self, managed: Managed) -> Result<(), StartError> {
        let mut refused = None;
        let mut adopt = |fd| match self.adopt_or_open(fd) {
            Ok(()) => {}
            Err(Errno::NFILE) => refused = Some(StartError::Descriptions),
            Err(errno) => refused = Some(StartError::Store(errno)),
        };
        match managed {
            Managed::Any => {
                each_descriptor(adopt);
            }
            Managed::These(all, count) => all[..count].iter().for_each(|&fd| adopt(fd)),
            Managed::Nothing => {}
        }
        // What the image before the exec held and this one has not inherited; a vforked child has
        // what is mapped in the memory that it shares.
        let descriptions = self.segment.descriptions();
        let stays = |id: u32| {
            let flags = descriptions.get(id).flags.load(Ordering::Relaxed);
            let of_memory = DescriptionFlags::MAPPING | DescriptionFlags::PIN;
            !self.mappings.are_followed() && flags.intersects(of_memory)
        };
        for word in 0..descriptions.words() {
            let held = descriptions.held(self.slot(), word).load(Ordering::Relaxed);
            if held == 0 {
                continue;
            }
            for id in (0..64).filter(|bit| held >> bit & 1 == 1).map(|bit| word * 64 + bit) {
                let references = self.references.get(id as usize);
                let is_left = match references {
                    Some(references) => references.load(Ordering::SeqCst) == 0,
                    None => self.references.is_unused(),
                };
                if is_left && !stays(id) {
                    descriptions.release(self.slot(), id);
                }
            }
        }
        self.segment.client(self.slot()).joined();
        refused.map_or(Ok(()), Err)
    }

    /// Takes over `fd`, whether its offset carries a marker or it was opened unseen.
    ///
    /// # Errors
    /// As of [`Session::opened_raw`]: it must not be used.
    pub(crate) fn adopt_or_open(&self, fd: RawFd) -> Result<(), Errno> {
        match self.adopt(fd) {
            Some(_) => self.release_if_standard_error(fd, fd),
            None => drop(self.opened_raw(fd)?),
        }
        Ok(())
    }

    /// Takes over `fd` if its offset carries a marker of a managed file. Returns the description.
    pub fn adopt(&self, fd: RawFd) -> Option<u32> {
        let offset = rustix::fs::tell(borrow(fd)).ok()?;
        let marker = Marker::decode(offset)?;
        let names = self.segment.names().changes();
        let seen = OpenStat::of(fd)?;
        let identity = identity_of(&seen.stat);
        if marker.description >= self.segment.descriptions().ready() {
            return None;
        }
        let owner = self.owner();
        // It may not have been held by any process for a while, and the file's record removed: so
        // it is as an open.
        let take_part = |file| {
            let adopted = self.segment.descriptions().adopt(marker, owner);
            if adopted {
                let description = self.segment.description(marker.description);
                description.file.store(file, Ordering::Release);
                crash::point("description.adopted");
            }
            adopted
        };
        let adopted = surely(|| {
            let inside = self.segment.enter_table(owner);
            let known = self.segment.reopen_file(identity, owner, take_part);
            drop(inside);
            match known? {
                Some(adopted) => Ok(Some(adopted)),
                None => self.find_or_insert(&seen, fd, Before::NOTHING, |file, _| take_part(file)),
            }
        });
        if adopted != Ok(Some(true)) {
            return None;
        }
        self.bind(fd, marker.description);
        if self.segment.names().changes() != names {
            self.look_for_name(fd);
        }
        Some(marker.description)
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
        self.keep_mapped_direct();
        for file in &self.tier_files {
            if let Some(fd) = file.load(Ordering::Relaxed).checked_sub(1) {
                // SAFETY: the session's own descriptor, and no other thread has the session.
                unsafe { rustix::io::close(fd as RawFd) };
            }
        }
        self.manager.disconnect();
        while self.segment.reap_slot(self.slot(), |_, _| {}).is_none() {
            clock::sleep_ns(REAP_LOOK.as_ns());
        }
    }
}
