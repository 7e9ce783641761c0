//! A vforked child: it runs in the parent's memory, with descriptors and locks of its own.
//!
//! It has a client slot of its own, as a forked one has, and uses what the parent has mapped. The
//! parent's session is not for it: its table says what the parent's descriptors are. What most
//! children do, which is to close and duplicate descriptors and to execute a program, needs no
//! session: the kernel does it, and the new image recognizes what it has inherited. For anything
//! else the child takes a session of its own beside the parent's, see [`Session::beside`].

use crate::attach::StartError;
use crate::fd::borrow;
use crate::file_mappings::FileMappings;
use crate::fork::{Fork, Number};
use crate::manager::ManagerLink;
use crate::manager_watch::ManagerWatch;
use crate::placement::Engine;
use crate::predictors::Predictors;
use crate::session::{KEPT_READERS, Session, root};
use crate::spawn::{Managed, Reach};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_pool::layout::*;
use forebay_pool::{Marker, crash};
use rustix::fd::RawFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The session of a vforked child, in the memory of its parent.
#[derive(Clone, Copy, Debug)]
pub struct Beside(NonNull<Session>);

impl Beside {
    /// The session. The child alone may use it, until it executes a program or ends.
    pub fn session(&self) -> &'static Session {
        // SAFETY: made by `Session::beside`, and given back when no child can use it any more.
        unsafe { self.0.as_ref() }
    }

    /// Gives back the memory. What the session has of the pool, and its descriptors, are the
    /// child's: the program that it executed has them, or they have ended with it.
    ///
    /// # Safety
    /// The child has executed a program or ended, and this is the only call for it.
    pub unsafe fn give_back(self) {
        // SAFETY: no process uses it any more. Only what lies in this memory alone is dropped.
        unsafe {
            let session = self.0.as_ptr();
            for map in [
                &raw mut (*session).table,
                &raw mut (*session).references,
                &raw mut (*session).mapped,
                &raw mut (*session).populated,
            ] {
                core::ptr::drop_in_place(map);
            }
            core::ptr::drop_in_place(&raw mut (*session).predictors);
            core::ptr::drop_in_place(&raw mut (*session).process);
            let _ = rustix::mm::munmap(session.cast(), size_of::<Session>());
        }
    }
}

impl Session {
    /// Whether a child forked now may have descriptors that are managed, as far as this thread can
    /// tell.
    pub fn has_files(&self) -> bool {
        let highest = self.highest.load(Ordering::Acquire);
        self.is_kernel_only()
            || self.may_have_other_threads()
            || (0..=highest).any(|fd| self.table.load(fd as usize) != 0)
    }

    /// In a vforked child of this session's process: its slot is its own from now on, before it
    /// does anything. The kernel may have said which number it has.
    ///
    /// # Errors
    /// It must not go on.
    pub fn vforked(&self, fork: &Fork, number: Option<Number>) -> Result<(), StartError> {
        crash::point("vfork.child");
        let ask = || Number { own: std::process::id(), parents: None };
        fork.confirm(&self.segment, number.unwrap_or_else(ask))?;
        // What other threads opened between the preparation and the vfork, or since. What they have
        // closed since it has, too: it joins when its next image has looked.
        if self.may_have_other_threads() {
            for file in self.files() {
                self.segment.descriptions().hold(fork.slot(), file.description_id());
            }
            self.hold_mapped(fork.slot());
        }
        Ok(())
    }

    /// Whether `fd` of a vforked child, with which this session has nothing to do, may be managed.
    pub fn may_be_managed(&self, fd: RawFd) -> bool {
        if fd < 0 {
            return false;
        }
        // What has no offset carries no marker, and is no file of a store.
        let Ok(offset) = rustix::fs::tell(borrow(fd)) else { return false };
        Marker::decode(offset).is_some()
            || rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && self.is_store_device(stat.st_dev)
            })
    }

    /// A session for the vforked child that has confirmed `fork`: with tables of its own, in which
    /// its descriptors are, and what else is this session's. Allocates nothing: the child may be
    /// killed at any instruction, and the parent's heap goes on.
    ///
    /// # Errors
    /// The child must not go on.
    pub fn beside(&self, fork: &Fork) -> Result<Beside, StartError> {
        let usual = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping.
        let place = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                size_of::<Session>(),
                usual.0,
                usual.1,
            )
        };
        let place = place.ok().and_then(|place| NonNull::new(place.cast::<Session>()));
        let place = place.ok_or(StartError::Pool(Errno::NOMEM))?;
        let session = Session {
            // SAFETY: this session outlives the child's, which is never dropped.
            segment: unsafe { self.segment.again() },
            attachment: self.attachment.again(),
            process: self.process.clone(),
            has_scratch_rules: self.has_scratch_rules,
            has_commit_rules: self.has_commit_rules,
            slot: AtomicU32::new(fork.slot()),
            table: self.table.again(),
            references: self.references.again(),
            mapped: self.mapped.again(),
            // What it maps is in the parent's memory, and stays there when it has gone.
            mappings: FileMappings::none(),
            populated: self.populated.again(),
            waited_in_vain: AtomicU64::new(u64::MAX),
            quota_in_vain: AtomicU64::new(0),
            cap_in_vain: AtomicU64::new(0),
            waited_for_pages: AtomicU64::new(u64::MAX),
            manager: ManagerLink::new(self.manager.path()),
            manager_watch: ManagerWatch::default(),
            engine: Engine::forgetful(),
            predictors: Predictors::new(),
            tier_files: [const { AtomicU32::new(0) }; 2 * TIERS_MAX],
            readers: [const { AtomicU64::new(0) }; KEPT_READERS],
            readers_high: AtomicU32::new(0),
            highest: AtomicU32::new(0),
            largest: [const { AtomicU64::new(0) }; STORES_MAX],
            file_limit: AtomicU64::new(0),
            kernel_only: AtomicBool::new(self.is_kernel_only()),
            root: AtomicU32::new(root::UNKNOWN),
            duplicating: AtomicU32::new(0),
            lending: AtomicU32::new(0),
            user: self.user,
            carried: self.carried,
            reach: Reach::default(),
            front: self.front,
        };
        // SAFETY: room for it, and page-aligned.
        unsafe { place.write(session) };
        let beside = Beside(place);
        crash::point("vfork.beside");
        beside.session().adopt_inherited(Managed::Any).map(|()| beside)
    }
}
