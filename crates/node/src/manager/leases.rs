//! Does to the records of files what the group has decided about them, and tells the group what
//! programs ask for. One thread: what a program holds up is tried again, and stops no other file.

use crate::drain::Flusher;
use crate::group::LeaseEvent;
use crate::manager::clean::{Left, Outcome, clean_held, is_clean, is_left_to_flushers, while_held};
use crate::node::Node;
use forebay_cluster::{LeaseCommand, LeaseDesk, LeaseOrder};
use forebay_directory::{Facts, Level, Why};
use forebay_membership::FileId as GroupFile;
use forebay_placement::mix;
use forebay_pool::clock::Timer;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::lease::{Access, Grant, Lease};
use forebay_pool::{FileId, Identity, Owner, Segment, crash, futex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A file that could not be given back is tried again after this, doubled each time up to the
/// second value.
const RETRY: (Timer, Timer) = (Timer::ms(1), Timer::ms(200));
/// A grant that no program has taken up is given back after this: it may have ended.
const TAKE_UP: Timer = Timer::ms(100);

/// A file that is being given back.
struct Reducing {
    to: Level,
    since: Instant,
    next: Instant,
    pause: Duration,
    is_asked: bool,
}

/// See the module.
pub(crate) struct LeaseKeeper {
    node: Arc<Node>,
    events: Receiver<LeaseEvent>,
    desk: LeaseDesk,
    flusher: Flusher,
    owner: Owner,
    reducing: BTreeMap<GroupFile, Reducing>,
    /// There is no group, and will be none: all is granted.
    is_alone: bool,
}

/// The name that a file has in the group.
pub(crate) fn group_file(record: &FileRecord) -> GroupFile {
    GroupFile {
        store: record.store.load(Ordering::Acquire) as u16,
        inode: record.identity().inode,
        generation: (mix(record.born_ns.load(Ordering::Acquire)) >> 32) as u32,
    }
}

/// [`LeaseKeeper::with_record`], for any thread.
pub(crate) fn with_record<R>(
    segment: &Segment,
    owner: Owner,
    file: GroupFile,
    act: impl FnOnce(FileId, &FileRecord) -> R,
) -> Option<R> {
    let header = segment.header();
    let store = header.store[..header.stores as usize].get(usize::from(file.store))?;
    let identity = Identity { device: store.device, inode: file.inode };
    let _inside = segment.enter_table(owner);
    let found = segment.with_file(identity, owner, |found| {
        let found = found?;
        let record = segment.file(found);
        (group_file(record) == file).then(|| act(found, record))
    });
    found.ok().flatten()
}

impl LeaseKeeper {
    pub fn new(node: &Arc<Node>, events: Receiver<LeaseEvent>, desk: LeaseDesk) -> LeaseKeeper {
        LeaseKeeper {
            node: Arc::clone(node),
            events,
            desk,
            flusher: Flusher::new(node),
            owner: Node::new_owner(),
            reducing: BTreeMap::new(),
            is_alone: false,
        }
    }

    /// Runs until the manager ends. First the group is told what a pool that was found holds.
    pub fn run(mut self) {
        self.adopt();
        loop {
            let next = self.reducing.values().map(|reducing| reducing.next).min();
            let event = match next {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => self.events.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(LeaseEvent::Alone) => self.go_alone(),
                Ok(LeaseEvent::End) | Err(RecvTimeoutError::Disconnected) => return self.end(),
                Ok(LeaseEvent::Asked(file)) => self.ask(file),
                Ok(LeaseEvent::Removed(file)) => self.release(file),
                Ok(LeaseEvent::Order(order)) => self.take(order),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.go_on();
        }
    }

    fn adopt(&mut self) {
        let segment = &self.node.segment;
        for file in segment.files().live() {
            let record = segment.file(file);
            let level = match record.lease.load().held() {
                Lease::Whole => Level::Write,
                Lease::Read => Level::Read,
                Lease::Direct => Level::Direct,
                // It was being made direct everywhere.
                Lease::Nothing if record.has(FileFlags::DIRECT) => Level::Direct,
                Lease::Nothing => Level::None,
            };
            doubt(record);
            self.desk.tell(LeaseCommand::Adopt { file: group_file(record), level });
            self.ask(file);
        }
        self.desk.tell(LeaseCommand::Begin);
    }

    /// The manager ends: what is clean is given back, the rest a next one goes on with.
    fn end(&mut self) {
        let node = Arc::clone(&self.node);
        for file in node.segment.files().live() {
            // No manager comes that could say that it is sure.
            node.segment.file(file).clear(FileFlags::UNSURE);
            let give_back = |record: &FileRecord| {
                if !is_clean(&node, file) {
                    return Outcome::Refused;
                }
                self.void_pulls(file);
                // Programs that go on use it through the kernel, for which nothing is asked.
                record.lease.reduce(match record.has(FileFlags::DIRECT) {
                    true => Lease::Direct,
                    false => Lease::Nothing,
                });
                self.desk.tell(LeaseCommand::Release { file: group_file(record) });
                Outcome::Done
            };
            while_held(&node, file, self.owner, give_back);
        }
    }

    /// There is no group: this node has everything.
    fn go_alone(&mut self) {
        let segment = &self.node.segment;
        segment.header().shares_files.store(0, Ordering::Release);
        self.is_alone = true;
        self.reducing.clear();
        for file in segment.files().live() {
            segment.file(file).clear(FileFlags::UNSURE);
            self.ask(file);
        }
    }

    /// Asks the group for what programs wait for.
    fn ask(&self, file: FileId) {
        let record = self.node.segment.file(file);
        let level = match record.lease.load().asked() {
            Some(_) if self.is_alone => {
                record.lease.grant(Grant::Whole);
                return self.wake();
            }
            Some(Access::Read) => Level::Read,
            Some(Access::Write) => Level::Write,
            None => return,
        };
        self.desk.tell(LeaseCommand::Want { file: group_file(record), level });
    }

    /// Gives back a file that has left the file table, unless it has come back since.
    fn release(&self, file: GroupFile) {
        if self.find(file).is_none() {
            self.desk.tell(LeaseCommand::Release { file });
        }
    }

    fn take(&mut self, order: LeaseOrder) {
        match order {
            LeaseOrder::Granted { file, level } => self.grant(file, level),
            LeaseOrder::Refused { file, why } => self.refuse(file, why),
            LeaseOrder::Reduce { file, to } => {
                let now = Instant::now();
                let pause = RETRY.0.as_duration();
                let new = Reducing { to, since: now, next: now, pause, is_asked: false };
                let reducing = self.reducing.entry(file).or_insert(new);
                (reducing.to, reducing.next) = (reducing.to.min(to), now);
            }
            LeaseOrder::Measure { file, token } => {
                let facts = self.with_record(file, |_, record| facts_of(record));
                self.desk.tell(LeaseCommand::Sized { file, token, facts });
            }
            LeaseOrder::Lost { file } => self.lose(file),
            LeaseOrder::Unsure => {
                let segment = &self.node.segment;
                segment.files().live().for_each(|file| doubt(segment.file(file)));
            }
            LeaseOrder::Sure { file } => {
                self.with_record(file, |_, record| record.clear(FileFlags::UNSURE));
                self.wake();
            }
        }
    }

    /// Calls `act` with the record that a file of the group has here, while that cannot become
    /// another file's. `None` if there is none.
    fn with_record<R>(
        &self,
        file: GroupFile,
        act: impl FnOnce(FileId, &FileRecord) -> R,
    ) -> Option<R> {
        with_record(&self.node.segment, self.owner, file, act)
    }

    /// The record that a file of the group has here now.
    fn find(&self, file: GroupFile) -> Option<FileId> {
        self.with_record(file, |found, _| found)
    }

    fn grant(&mut self, file: GroupFile, level: Level) {
        self.reducing.remove(&file);
        let grant = match level {
            Level::None => return,
            Level::Read => Grant::Read,
            Level::Write => Grant::Whole,
            Level::Direct => Grant::Direct,
        };
        crash::point("lease.granting");
        let granted = self.with_record(file, |found, record| {
            record.clear(FileFlags::UNSURE);
            record.lease.grant(grant);
            (found, record.has(FileFlags::DIRECT))
        });
        let Some((found, is_direct)) = granted else { return self.release(file) };
        if level == Level::Direct && is_direct {
            // Programs use it through the kernel as it is, also after the last of its mappings.
            let take_up = |record: &FileRecord| {
                record.turn_direct();
                record.lease.take_up();
                Outcome::Done
            };
            while_held(&self.node, found, self.owner, take_up);
        }
        self.wake();
    }

    fn refuse(&self, file: GroupFile, why: Why) {
        let errno = match why {
            Why::Lost(_) => Errno::IO,
            Why::Full => Errno::NOLCK,
            Why::Superseded => Errno::STALE,
            Why::Late => Errno::TIMEDOUT,
        };
        self.with_record(file, |_, record| record.lease.refuse(errno));
        self.wake();
    }

    /// Others were given a file while this node was out of the group, which takes an operator who
    /// has given this node up: what it has of the file is the older. That is said, and programs are
    /// refused.
    fn lose(&self, file: GroupFile) {
        let path = self.with_record(file, |_, record| self.node.shown_path(record));
        let Some(path) = path else { return };
        eprintln!("{path}: other nodes were given it while this one was out of its group");
        self.refuse(file, Why::Superseded);
    }

    /// What is under way from other nodes is not taken any more. The file is held exclusively.
    fn void_pulls(&self, file: FileId) {
        if let Some(remote) = &self.node.group.remote {
            remote.void_pulls(file);
        }
    }

    fn wake(&self) {
        let done = &self.node.header().work_done;
        done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(done);
    }

    /// Gives back what can be given back now.
    fn go_on(&mut self) {
        let now = Instant::now();
        let due = self.reducing.iter().filter(|(_, reducing)| reducing.next <= now);
        let due: Vec<GroupFile> = due.map(|(&file, _)| file).collect();
        for file in due {
            match self.reduce(file) {
                Outcome::Done => drop(self.reducing.remove(&file)),
                Outcome::Busy | Outcome::Refused => {
                    if let Some(reducing) = self.reducing.get_mut(&file) {
                        reducing.next = now + reducing.pause;
                        reducing.pause = (2 * reducing.pause).min(RETRY.1.as_duration());
                    }
                }
            }
        }
    }

    /// Gives a file back as far as that is asked for.
    fn reduce(&mut self, file: GroupFile) -> Outcome {
        let Some(found) = self.find(file) else {
            self.desk.tell(LeaseCommand::Release { file });
            return Outcome::Done;
        };
        let Some(reducing) = self.reducing.get_mut(&file) else { return Outcome::Done };
        let (node, owner, to) = (Arc::clone(&self.node), self.owner, reducing.to);
        let record = node.segment.file(found);
        let waited = reducing.since.elapsed();
        if record.lease.load().granted().is_some() && waited < TAKE_UP.as_duration() {
            return Outcome::Busy;
        }
        if record.has(FileFlags::DIRECT) {
            // Mappings and programs without Forebay are not taken anything from: all use it so.
            let outcome = while_held(&node, found, owner, |record| {
                crash::point("lease.staying");
                self.void_pulls(found);
                record.lease.reduce(Lease::Nothing);
                Outcome::Done
            });
            if outcome == Outcome::Done {
                let (level, facts) = (Level::Direct, None);
                self.desk.tell(LeaseCommand::Reduced { file, level, facts });
                self.desk.tell(LeaseCommand::Want { file, level });
            }
            return outcome;
        }
        if is_left_to_flushers(&node, found, waited) {
            if !std::mem::replace(&mut reducing.is_asked, true) {
                node.segment.request_sync(found, None, false);
                node.want_work();
            }
            return Outcome::Busy;
        }
        let mut facts = None;
        let flusher = &mut self.flusher;
        let outcome = while_held(&node, found, owner, |record| {
            if group_file(record) != file {
                return Outcome::Done;
            }
            let (left, lease) = match to {
                Level::Read => (Left::Copies, Lease::Read),
                _ => (Left::Nothing, Lease::Nothing),
            };
            let outcome = clean_held(&node, flusher, found, owner, left);
            if outcome == Outcome::Done {
                crash::point("lease.reducing");
                if let Some(remote) = &node.group.remote {
                    remote.void_pulls(found);
                }
                facts = Some(facts_of(record));
                record.lease.reduce(lease);
                if lease == Lease::Nothing {
                    record.clear(FileFlags::UNSURE);
                }
            }
            outcome
        });
        if outcome == Outcome::Done {
            crash::point("lease.reduced");
            let level = if to == Level::Read { Level::Read } else { Level::None };
            self.desk.tell(LeaseCommand::Reduced { file, level, facts });
            self.ask(found);
        }
        outcome
    }
}

/// What this node has of a file beside others may be out of date, also what was granted and not
/// taken up yet.
fn doubt(record: &FileRecord) {
    let lease = record.lease.load();
    let is_beside = |lease: Lease| matches!(lease, Lease::Read | Lease::Direct);
    if is_beside(lease.held()) || lease.granted().is_some_and(|grant| is_beside(grant.lease())) {
        record.set(FileFlags::UNSURE);
    }
}

/// Size and time of change of a file as programs of this node see them.
fn facts_of(record: &FileRecord) -> Facts {
    let modified = match record.has(FileFlags::METADATA_DIRTY) {
        true => &record.mtime_ns,
        false => &record.store_mtime_ns,
    };
    Facts {
        size: record.size.load(Ordering::Acquire),
        mtime_ns: modified.load(Ordering::Acquire) as i64,
    }
}
