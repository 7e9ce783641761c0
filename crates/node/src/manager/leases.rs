//! Does to the records of files what the group has decided about them, and tells the group what
//! programs ask for. It is a [`Strand`](forebay_cluster::Strand): what is asked and granted is done
//! on the thread that brings it, and what is to be given back on the thread "leases". What a
//! program holds up is tried again, and stops no other file.

use crate::drain::Flusher;
use crate::group::records::{find_at_once, group_file, with_record};
use crate::group::{LeaseEvent, LeaseStrand};
use crate::manager::asks::errno_of;
use crate::manager::clean::{Asked, Left, Outcome, clean_held, clean_part, is_clean, while_held};
use crate::manager::lend::is_worth_lending;
use crate::node::Node;
use forebay_cluster::{LeaseCommand, LeaseDesk, LeaseOrder, Taker};
use forebay_directory::{AHEAD_MAX, Facts, Level, Object, Of, PART_BYTES, Terms, Why};
use forebay_membership::FileId as GroupFile;
use forebay_pool::clock::Timer;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::lease::{Access, Grant, Lease};
use forebay_pool::parts::{Part, PartLevel, PartsAhead};
use forebay_pool::{FileId, Owner, crash, futex};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A file that could not be given back is tried again after this, doubled each time up to the
/// second value.
const RETRY: (Timer, Timer) = (Timer::ms(1), Timer::ms(200));
/// A grant that no program has taken up is given back after this, though the file is open: the
/// program may have ended.
const TAKE_UP: Timer = Timer::ms(100);
/// What has been granted so long is not waited for by a program: it has only opened the file, or
/// closed it again.
const NOT_BEGUN: Timer = Timer::ms(5);
/// So many parts are given back where there is no place for one.
const ROOM_PARTS: usize = 4;

// What the pool calls a part, the group does.
const _: () = assert!(forebay_pool::parts::PART_BYTES == PART_BYTES);

/// A file that is being given back.
struct Reducing {
    to: Level,
    /// Of a whole that this node writes: to share it is as good.
    may_share: bool,
    /// Of a part: it makes room for others, and the group has not asked for it.
    is_own: bool,
    since: Instant,
    next: Instant,
    pause: Duration,
    /// What of it was left to the flushers.
    asked: Option<Asked>,
}

/// See the module.
pub(crate) struct LeaseKeeper {
    node: Arc<Node>,
    desk: LeaseDesk,
    flusher: Flusher,
    owner: Owner,
    reducing: BTreeMap<Object, Reducing>,
    /// Parts and sizes that programs wait for, and since when they may take them up.
    granted: BTreeMap<Object, Instant>,
    /// Files of which a program waits for the size.
    sizes: BTreeSet<GroupFile>,
    /// Parts that programs wait for, for which the table of leases has no place yet.
    without_place: BTreeMap<Object, (FileId, Part, PartLevel)>,
    /// Files that this node may borrow, which some thread is inside of yet.
    borrowing: BTreeMap<GroupFile, Facts>,
    /// There is no group, and will be none: all is granted.
    is_alone: bool,
    /// This node was given up: nothing is granted any more.
    is_given_up: bool,
}

impl Taker for LeaseKeeper {
    type Event = LeaseEvent;

    fn take_at_once(&mut self, event: LeaseEvent) -> Option<LeaseEvent> {
        let file = match &event {
            // About all files.
            LeaseEvent::Alone
            | LeaseEvent::Order(
                LeaseOrder::GivenUp | LeaseOrder::Unsure | LeaseOrder::Sure { .. },
            ) => return Some(event),
            // A program that is inside the file may be waited for, or a large table is looked
            // through.
            LeaseEvent::Order(LeaseOrder::Granted {
                object: Object { of: Of::Whole, .. },
                level: Level::Borrowed | Level::Shared | Level::Direct,
                ..
            }) => return Some(event),
            LeaseEvent::Removed(file) | LeaseEvent::Order(LeaseOrder::Ahead { file, .. }) => *file,
            LeaseEvent::Order(
                LeaseOrder::Granted { object, .. }
                | LeaseOrder::Refused { object, .. }
                | LeaseOrder::Lost { object },
            ) => object.file,
            _ => {
                self.take(event);
                return None;
            }
        };
        // A program may be stopped where the file's record is looked for.
        if find_at_once(&self.node.segment, self.owner, file).is_err() {
            return Some(event);
        }
        self.take(event);
        None
    }

    fn take(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Alone => self.go_alone(),
            LeaseEvent::Asked(file) => {
                self.node.group.note_asked();
                self.forget_namesakes(file);
                self.ask(file);
            }
            LeaseEvent::Part { file, part, level, ahead } => {
                self.node.group.note_asked();
                self.ask_part(file, part, level, ahead);
            }
            LeaseEvent::Removed(file) => self.release(file),
            LeaseEvent::Unlend(file) => self.unlend(file),
            LeaseEvent::Order(order) => self.order(order),
        }
    }

    fn look_around(&mut self) {
        self.go_on();
    }

    fn due(&self) -> Option<Instant> {
        let next = self.reducing.values().map(|reducing| reducing.next);
        // What is given back makes a place.
        let has_no_place = !self.without_place.is_empty() && self.reducing.is_empty();
        let waits = !self.borrowing.is_empty() || has_no_place;
        next.chain(waits.then(|| Instant::now() + RETRY.0.as_duration())).min()
    }

    /// The manager ends: what is clean is given back, the rest a next one goes on with.
    fn end(&mut self) {
        let node = Arc::clone(&self.node);
        let mut kept = BTreeSet::new();
        for file in node.segment.files().live() {
            // No manager comes that could say that it is sure.
            node.segment.file(file).lease.trust();
            let give_back = |record: &FileRecord| {
                if !is_clean(&node, file) {
                    return Outcome::Refused;
                }
                void_pulls(&node, file);
                let held = record.lease.load().held();
                // Programs that go on use it through the kernel, for which nothing is asked.
                record.reduce_lease(match record.has(FileFlags::DIRECT) {
                    true => Lease::Direct,
                    false => Lease::Nothing,
                });
                if held == Lease::Shared {
                    node.segment.part_leases().remove_all(file);
                }
                Outcome::Done
            };
            if while_held(&node, file, self.owner, give_back) != Outcome::Done {
                kept.insert(group_file(node.segment.file(file)));
            }
        }
        // Also what has no record any more.
        self.desk.tell(LeaseCommand::ReleaseOthers { kept });
    }
}

impl LeaseKeeper {
    pub fn new(node: &Arc<Node>, desk: LeaseDesk) -> LeaseKeeper {
        LeaseKeeper {
            node: Arc::clone(node),
            desk,
            flusher: Flusher::new(node),
            owner: Node::new_owner(),
            reducing: BTreeMap::new(),
            granted: BTreeMap::new(),
            sizes: BTreeSet::new(),
            without_place: BTreeMap::new(),
            borrowing: BTreeMap::new(),
            is_alone: false,
            is_given_up: false,
        }
    }

    /// The life of the thread "leases", until the manager ends. First the group is told what a pool
    /// that was found holds.
    pub fn run(mut self, strand: &LeaseStrand) {
        self.adopt();
        strand.keep(Box::new(self));
    }

    fn adopt(&mut self) {
        let segment = &self.node.segment;
        for file in segment.files().live() {
            let record = segment.file(file);
            let level = match record.lease.load().held() {
                Lease::Whole => Level::Write,
                Lease::Read => Level::Read,
                Lease::Lent => Level::Lent,
                Lease::Borrowed => Level::Borrowed,
                Lease::Shared => Level::Shared,
                Lease::Direct | Lease::Commit => Level::Direct,
                // It was being made direct everywhere.
                Lease::Nothing if record.has(FileFlags::DIRECT) => Level::Direct,
                Lease::Nothing => Level::None,
            };
            record.doubt_lease();
            let object = Object::whole(group_file(record));
            self.desk.tell(LeaseCommand::Adopt { object, level });
            self.ask(file);
        }
        let leases = segment.part_leases();
        for (file, part) in leases.all() {
            let record = segment.file(file);
            if record.lease.load().held() != Lease::Shared {
                leases.remove(file, part);
                continue;
            }
            let level = level_of(leases.load(file, part).level());
            let object = object_of(group_file(record), part);
            self.desk.tell(LeaseCommand::Adopt { object, level });
        }
        self.desk.tell(LeaseCommand::Begin);
    }

    /// There is no group: this node has everything.
    fn go_alone(&mut self) {
        let segment = &self.node.segment;
        segment.header().shares_files.store(0, Ordering::Release);
        self.is_alone = true;
        self.reducing.clear();
        self.without_place.clear();
        self.sizes.clear();
        self.borrowing.clear();
        for file in segment.files().live() {
            segment.file(file).lease.trust();
            self.ask(file);
        }
        self.wake();
    }

    /// What this node has beside others may be out of date.
    fn doubt_all(&self) {
        let segment = &self.node.segment;
        segment.files().live().for_each(|file| segment.file(file).doubt_lease());
    }

    /// This node was given up. What programs have alone they go on with, and none of it reaches the
    /// store; they get errors for what they have beside others, and for all else.
    fn end_sharing(&mut self) {
        self.node.header().end_flushing();
        self.is_given_up = true;
        self.reducing.clear();
        self.granted.clear();
        self.without_place.clear();
        self.sizes.clear();
        self.borrowing.clear();
        self.doubt_all();
        let segment = &self.node.segment;
        segment.files().live().for_each(|file| self.ask(file));
        self.node.want_work();
        self.wake();
    }

    /// Asks the group for what programs wait for.
    fn ask(&self, file: FileId) {
        let record = self.node.segment.file(file);
        let lease = record.lease.load();
        let may_share = self.may_share(record);
        // A node that has borrowed a file, and asks for more, needs the store's.
        let may_borrow = lease.held() == Lease::Nothing;
        let (level, terms) = match lease.asked() {
            Some(_) if self.is_given_up => {
                record.lease.refuse(Errno::IO);
                return self.wake();
            }
            Some(_) if self.is_alone => {
                record.lease.grant(Grant::Whole);
                return self.wake();
            }
            // What a mapping changes here needs no lease: others may not keep copies of it.
            Some(_) if record.has(FileFlags::DIRECT) => (Level::Direct, Terms::default()),
            // Others may write it as they like, under commit too, or through the kernel.
            Some(_) if record.is_to_commit() => (Level::Direct, Terms::default()),
            Some(Access::Read) => {
                (Level::Read, Terms { may_share, may_borrow, ..Terms::default() })
            }
            Some(Access::Write) => (Level::Write, Terms { may_share, ..Terms::default() }),
            Some(Access::Alone) => (Level::Write, Terms::default()),
            None => return,
        };
        let object = Object::whole(group_file(record));
        self.desk.tell(LeaseCommand::Want { object, level, terms });
    }

    /// Whether parts of a file can be leased: a block lies in one part.
    fn may_share(&self, record: &FileRecord) -> bool {
        self.node.segment.bucket_bytes() as u64 <= PART_BYTES && !record.has(FileFlags::SCRATCH)
    }

    /// Asks the group for a part that programs wait for.
    fn ask_part(&mut self, file: FileId, part: Part, level: PartLevel, ahead: PartsAhead) {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        if self.is_given_up {
            match node.segment.part_leases().insert(file, part) {
                Some(lease) => lease.refuse(Errno::IO),
                None => record.lease.refuse(Errno::IO),
            }
            return self.wake();
        }
        if self.is_alone {
            record.lease.grant(Grant::Whole);
        }
        if self.is_alone || record.lease.load().held() != Lease::Shared {
            // They look again.
            return self.wake();
        }
        let object = object_of(group_file(record), part);
        if part == Part::SIZE {
            self.sizes.insert(object.file);
        }
        if !self.has_place(file, part) {
            // What is ahead of it would only be in the way.
            self.without_place.insert(object, (file, part, level));
            return;
        }
        let count = ahead.count.min(AHEAD_MAX.into()) as u8;
        let (level, terms) = (level_of(level), Terms::strided(count, ahead.stride));
        self.desk.tell(LeaseCommand::Want { object, level, terms });
    }

    /// Whether the table of leases has a place for a part. If not, others begin to make one.
    fn has_place(&mut self, file: FileId, part: Part) -> bool {
        let node = Arc::clone(&self.node);
        let (segment, leases) = (&node.segment, node.segment.part_leases());
        if leases.insert(file, part).is_some() {
            return true;
        }
        let mut others = Vec::new();
        for (file, part) in leases.in_the_way(file, part) {
            let record = segment.file(file);
            match record.lease.load().held() {
                Lease::Shared => others.push((object_of(group_file(record), part), file, part)),
                // Of a file that was removed.
                _ => leases.remove(file, part),
            }
        }
        if leases.insert(file, part).is_some() {
            return true;
        }
        if others.iter().any(|(object, ..)| self.reducing.contains_key(object)) {
            return false;
        }
        // What was granted and not used yet will be, soon.
        others.sort_by_key(|&(_, file, part)| !leases.load(file, part).is_taken());
        for (object, ..) in others.into_iter().take(ROOM_PARTS) {
            self.begin(object, Level::None, false, true);
        }
        false
    }

    /// Gives back a file that has left the file table, unless it has come back since.
    fn release(&mut self, file: GroupFile) {
        if self.find(file).is_none() {
            let object = Object::whole(file);
            self.desk.tell(LeaseCommand::Release { object });
            self.forget_parts(file);
            self.reducing.remove(&object);
            self.borrowing.remove(&file);
        }
    }

    /// Forgets what other files have left that have had the record and the inode of this one.
    fn forget_namesakes(&mut self, file: FileId) {
        let file = group_file(self.node.segment.file(file));
        let namesakes = Object::of_namesakes(file).into_iter();
        let granted = namesakes.flat_map(|namesakes| self.granted.range(namesakes));
        let found: BTreeSet<GroupFile> = granted.map(|(part, _)| part.file).collect();
        found.into_iter().for_each(|file| self.forget_parts(file));
    }

    /// Has a file that is lent be flushed now.
    fn unlend(&mut self, file: FileId) {
        let record = self.node.segment.file(file);
        let object = Object::whole(group_file(record));
        if record.lease.load().held() == Lease::Lent && !self.reducing.contains_key(&object) {
            self.begin(object, Level::Read, false, false);
        }
    }

    /// Forgets what waits for parts of a file.
    fn forget_parts(&mut self, file: GroupFile) {
        let parts =
            object_of(file, Part::from_raw(0))..=object_of(file, Part::from_raw(u32::MAX - 1));
        let size = Object::size(file);
        let is_other = |object: &Object| !parts.contains(object) && *object != size;
        self.granted.retain(|object, _| is_other(object));
        self.without_place.retain(|object, _| is_other(object));
        self.sizes.remove(&file);
        self.reducing.retain(|object, _| is_other(object));
    }

    fn order(&mut self, order: LeaseOrder) {
        match order {
            LeaseOrder::Granted { object, level, facts } => match part_of(object) {
                None => self.grant(object.file, level, facts),
                Some(part) => self.grant_part(object, part, level, facts),
            },
            LeaseOrder::Ahead { file, level, runs } => {
                for run in runs {
                    for part in (run.first..).take(run.count as usize).map(Part::from_raw) {
                        self.note_part(object_of(file, part), part, level);
                    }
                }
            }
            LeaseOrder::Refused { object, why } => self.refuse(object, why),
            LeaseOrder::Reduce { object, to, may_share } => {
                self.begin(object, to, may_share, false)
            }
            // Done at once, see `manager/asks.rs`.
            LeaseOrder::Measure { .. } | LeaseOrder::Glimpsed { .. } | LeaseOrder::Reads { .. } => {
            }
            LeaseOrder::Lost { object } => self.lose(object),
            LeaseOrder::Unsure => self.doubt_all(),
            LeaseOrder::GivenUp => self.end_sharing(),
            LeaseOrder::Sure { file } => self.trust(file),
        }
    }

    /// Something is to be given back.
    fn begin(&mut self, object: Object, to: Level, may_share: bool, is_own: bool) {
        let now = Instant::now();
        let pause = RETRY.0.as_duration();
        let new = Reducing { to, may_share, is_own, since: now, next: now, pause, asked: None };
        if object.of == Of::Whole {
            self.borrowing.remove(&object.file);
        }
        let reducing = self.reducing.entry(object).or_insert(new);
        (reducing.to, reducing.next) = (reducing.to.min(to), now);
        reducing.may_share &= may_share;
        reducing.is_own &= is_own;
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

    fn grant(&mut self, file: GroupFile, level: Level, facts: Option<Facts>) {
        self.reducing.remove(&Object::whole(file));
        self.borrowing.remove(&file);
        let grant = match level {
            Level::None => return,
            // It has it, and needs nothing for what was wanted.
            Level::Lent => return self.wake(),
            Level::Borrowed => return self.may_borrow(file, facts),
            Level::Read => Grant::Read,
            Level::Shared => Grant::Shared,
            Level::Write => Grant::Whole,
            Level::Direct => Grant::Direct,
        };
        crash::point("lease.granting");
        let leases = self.node.segment.part_leases();
        let granted = self.with_record(file, |found, record| {
            match record.lease.load().held() {
                // What others have made of it while it was shared.
                Lease::Shared => learn_size(record, facts),
                // Of another file that had the record.
                Lease::Nothing | Lease::Read if grant == Grant::Shared => leases.remove_all(found),
                _ => {}
            }
            let is_direct = record.has(FileFlags::DIRECT);
            let commits = grant == Grant::Direct && !is_direct && record.is_to_commit();
            record.lease.grant(if commits { Grant::Commit } else { grant });
            (found, is_direct)
        });
        let Some((found, is_direct)) = granted else { return self.release(file) };
        if level == Level::Direct && is_direct {
            // Programs use it through the kernel as it is, also after the last of its mappings.
            let take_up = |record: &FileRecord| {
                record.turn_direct();
                record.take_up_lease();
                Outcome::Done
            };
            while_held(&self.node, found, self.owner, take_up);
        }
        self.wake();
    }

    /// Another node lends a file, of which that is known.
    fn may_borrow(&mut self, file: GroupFile, facts: Option<Facts>) {
        match facts {
            Some(facts) => {
                self.borrowing.insert(file, facts);
                self.borrow(file);
            }
            None => self.decline(file),
        }
    }

    /// Borrows a file, if no thread is inside of it.
    fn borrow(&mut self, file: GroupFile) {
        let Some(&facts) = self.borrowing.get(&file) else { return };
        let Some(found) = self.find(file) else { return self.release(file) };
        let node = &self.node;
        let outcome = while_held(node, found, self.owner, |record| {
            let can_be = record.lease.load().held() == Lease::Nothing
                && !record.has(FileFlags::DIRECT)
                && is_clean(node, found);
            if group_file(record) != file || !can_be {
                return Outcome::Refused;
            }
            crash::point("lease.borrowing");
            record.borrow(facts.size, facts.mtime_ns as u64);
            Outcome::Done
        });
        match outcome {
            // It is tried again.
            Outcome::Busy => {}
            Outcome::Done => {
                self.borrowing.remove(&file);
                self.wake();
            }
            Outcome::Refused => self.decline(file),
        }
    }

    /// What was offered to be borrowed cannot be: programs wait for what the store has.
    fn decline(&mut self, file: GroupFile) {
        self.borrowing.remove(&file);
        let object = Object::whole(file);
        self.desk.tell(LeaseCommand::Release { object });
        let terms = Terms::share();
        self.desk.tell(LeaseCommand::Want { object, level: Level::Read, terms });
    }

    /// A part, or the size, of a file that is shared is this node's.
    fn grant_part(&mut self, object: Object, part: Part, level: Level, facts: Option<Facts>) {
        crash::point("part.granting");
        if part == Part::SIZE {
            self.sizes.remove(&object.file);
            self.with_record(object.file, |_, record| learn_size(record, facts));
        }
        if self.note_part(object, part, level) {
            self.granted.insert(object, Instant::now());
        }
        self.wake();
    }

    /// Puts a part that was granted into the table. Returns whether it is there: it is not while
    /// the file is not shared, or if there is no place for what comes besides what was asked for.
    fn note_part(&mut self, object: Object, part: Part, level: Level) -> bool {
        let leases = self.node.segment.part_leases();
        let found = self.with_record(object.file, |found, record| {
            (record.lease.load().held() == Lease::Shared).then_some(found)
        });
        // It goes with the whole.
        let Some(Some(file)) = found else { return false };
        let had = leases.load(file, part).level();
        let level = part_level_of(level);
        if level == PartLevel::Direct && !matches!(had, PartLevel::None | PartLevel::Direct) {
            // What is kept of it is dropped before.
            self.begin(object, Level::Direct, false, false);
            return false;
        }
        self.reducing.remove(&object);
        if let Some(lease) = leases.insert(file, part) {
            if !had.covers(level) {
                lease.grant(level);
            }
            return true;
        }
        self.desk.tell(LeaseCommand::Release { object });
        false
    }

    fn refuse(&mut self, object: Object, why: Why) {
        if object.of == Of::Size {
            self.sizes.remove(&object.file);
        }
        let Some(errno) = errno_of(why) else { return self.wake() };
        if matches!(why, Why::Lost(_)) {
            let path = self.with_record(object.file, |_, record| self.node.shown_path(record));
            path.into_iter().for_each(|path| self.node.group.note_lost(object.file, path));
        }
        let leases = self.node.segment.part_leases();
        self.with_record(object.file, |file, record| {
            match part_of(object).and_then(|part| leases.insert(file, part)) {
                Some(lease) => lease.refuse(errno),
                None => record.lease.refuse(errno),
            }
        });
        self.wake();
    }

    /// Others were given a file, or a part of it, while this node was out of the group, which takes
    /// an operator who has given this node up: what it has of it is the older. That is said, and
    /// programs are refused.
    fn lose(&mut self, object: Object) {
        let path = self.with_record(object.file, |_, record| self.node.shown_path(record));
        let Some(path) = path else { return };
        let what = match object.of {
            Of::Whole => String::new(),
            Of::Size => "the size of ".into(),
            Of::Part(part) => format!("1 MiB from {} on of ", u64::from(part) * PART_BYTES),
        };
        error!("{what}{path}: other nodes were given it while this one was out of its group");
        self.refuse(object, Why::Superseded);
    }

    /// What this node has of a file beside others is its own still.
    fn trust(&self, file: GroupFile) {
        let trust = |found, record: &FileRecord| {
            record.lease.trust();
            found
        };
        if let Some(found) = self.with_record(file, trust) {
            let settle = |record: &FileRecord| {
                record.settle_lease();
                Outcome::Done
            };
            // Where a program is inside, calls look at the lease for longer than they need to.
            while_held(&self.node, found, self.owner, settle);
        }
        self.wake();
    }

    fn wake(&self) {
        let done = &self.node.header().work_done;
        done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(done);
    }

    /// Gives back what can be given back now.
    fn go_on(&mut self) {
        let borrowing: Vec<GroupFile> = self.borrowing.keys().copied().collect();
        borrowing.into_iter().for_each(|file| self.borrow(file));
        let now = Instant::now();
        let due = self.reducing.iter().filter(|(_, reducing)| reducing.next <= now);
        let due: Vec<Object> = due.map(|(&file, _)| file).collect();
        for object in due {
            let outcome = match part_of(object) {
                None => self.reduce(object.file),
                Some(part) => self.reduce_part(object, part),
            };
            match outcome {
                Outcome::Done => drop(self.reducing.remove(&object)),
                Outcome::Busy | Outcome::Refused => {
                    if let Some(reducing) = self.reducing.get_mut(&object) {
                        reducing.next = now + reducing.pause;
                        reducing.pause = (2 * reducing.pause).min(RETRY.1.as_duration());
                    }
                }
            }
        }
        for (object, (file, part, level)) in std::mem::take(&mut self.without_place) {
            if self.find(object.file) == Some(file) {
                self.ask_part(file, part, level, PartsAhead::default());
            }
        }
    }

    /// Others may read what this node has kept of these bytes.
    fn tell_kept(&self, file: FileId, bytes: Range<u64>) {
        if let Some(remote) = &self.node.group.remote {
            remote.kept(file, bytes);
        }
    }

    /// Gives a file back as far as that is asked for.
    fn reduce(&mut self, file: GroupFile) -> Outcome {
        let object = Object::whole(file);
        let Some(found) = self.find(file) else {
            self.desk.tell(LeaseCommand::Release { object });
            return Outcome::Done;
        };
        let may_share = self.may_share(self.node.segment.file(found));
        let Some(reducing) = self.reducing.get_mut(&object) else { return Outcome::Done };
        let (node, owner, to) = (Arc::clone(&self.node), self.owner, reducing.to);
        let may_share = may_share && reducing.may_share;
        let record = node.segment.file(found);
        let waited = reducing.since.elapsed();
        // Of one that programs have open to write, and have not begun with, nothing is flushed.
        let is_open = || node.segment.descriptions().is_open_for_writing(found);
        let is_untaken = waited >= NOT_BEGUN.as_duration() && is_untaken_whole(record);
        if is_untaken && may_share && is_open() {
            let outcome = while_held(&node, found, owner, |record| {
                if group_file(record) != file || !is_untaken_whole(record) {
                    return Outcome::Busy;
                }
                crash::point("lease.sharing");
                node.segment.part_leases().remove_all(found);
                record.lease.grant(Grant::Shared);
                Outcome::Done
            });
            if outcome == Outcome::Done {
                self.desk.tell(LeaseCommand::Reduced { object, level: Level::Shared, facts: None });
                self.ask(found);
                self.wake();
            }
            return outcome;
        }
        // One that was closed without a write is not waited for.
        let is_closed = || is_untaken && !node.segment.descriptions().is_open(found);
        let is_over = || waited >= TAKE_UP.as_duration() || is_closed();
        if record.lease.load().granted().is_some() && !is_over() {
            return Outcome::Busy;
        }
        if record.has(FileFlags::DIRECT) {
            // Mappings and programs without Forebay are not taken anything from: all use it so.
            let outcome = while_held(&node, found, owner, |record| {
                crash::point("lease.staying");
                void_pulls(&node, found);
                record.reduce_lease(Lease::Nothing);
                node.segment.part_leases().remove_all(found);
                Outcome::Done
            });
            if outcome == Outcome::Done {
                let (level, facts, terms) = (Level::Direct, None, Terms::default());
                self.forget_parts(file);
                self.desk.tell(LeaseCommand::Reduced { object, level, facts });
                self.desk.tell(LeaseCommand::Want { object, level, terms });
            }
            return outcome;
        }
        let is_open_to_share = || may_share && is_open();
        if to == Level::Lent && !is_open_to_share() && is_worth_lending(&node, found) {
            match self.lend(file, found) {
                Outcome::Refused => {}
                outcome => return outcome,
            }
        }
        let Some(reducing) = self.reducing.get_mut(&object) else { return Outcome::Done };
        if Asked::go_on(&mut reducing.asked, &node, found, waited) {
            return Outcome::Busy;
        }
        let (mut facts, mut level) = (None, Level::None);
        let flusher = &mut self.flusher;
        let outcome = while_held(&node, found, owner, |record| {
            if group_file(record) != file {
                return Outcome::Done;
            }
            let held = record.lease.load().held();
            // Only one that programs write now: who reads what was written gets all of it.
            let shares = may_share
                && held == Lease::Whole
                && node.segment.descriptions().is_open_for_writing(found);
            let (left, lease);
            (left, lease, level) = match to {
                _ if shares => (Left::Nothing, Lease::Shared, Level::Shared),
                // What was not taken up is no copy: the record has not learned what others made of
                // the file.
                _ if held == Lease::Nothing => (Left::Nothing, Lease::Nothing, Level::None),
                // What others have written there, copies of such a file do not have.
                Level::Read | Level::Lent if !held.is_beside_writers() => {
                    (Left::Copies, Lease::Read, Level::Read)
                }
                _ => (Left::Nothing, Lease::Nothing, Level::None),
            };
            let outcome = clean_held(&node, flusher, found, owner, left);
            if outcome == Outcome::Done {
                crash::point("lease.reducing");
                void_pulls(&node, found);
                // What was not taken up, this node knows nothing of.
                facts = (held != Lease::Nothing).then(|| facts_of(record));
                if held == Lease::Shared || lease == Lease::Shared {
                    // Also those of another file that had the record.
                    node.segment.part_leases().remove_all(found);
                }
                record.reduce_lease(lease);
            }
            outcome
        });
        if outcome == Outcome::Done {
            crash::point("lease.reduced");
            if level != Level::Shared {
                self.forget_parts(file);
            }
            if level == Level::Read {
                self.tell_kept(found, 0..u64::MAX);
            }
            self.desk.tell(LeaseCommand::Reduced { object, level, facts });
            self.ask(found);
            // Those that wait for its parts look what it is now.
            self.wake();
        }
        outcome
    }

    /// Lends a file that another node wants to read, without a flush.
    fn lend(&mut self, file: GroupFile, found: FileId) -> Outcome {
        let (node, mut facts) = (Arc::clone(&self.node), None);
        let outcome = while_held(&node, found, self.owner, |record| {
            if group_file(record) != file || !is_worth_lending(&node, found) {
                return Outcome::Refused;
            }
            crash::point("lease.lending");
            void_pulls(&node, found);
            facts = Some(facts_of(record));
            record.reduce_lease(Lease::Lent);
            Outcome::Done
        });
        if outcome == Outcome::Done {
            crash::point("lease.lent");
            self.tell_kept(found, 0..u64::MAX);
            let (object, level) = (Object::whole(file), Level::Lent);
            self.desk.tell(LeaseCommand::Reduced { object, level, facts });
            self.ask(found);
        }
        outcome
    }

    /// Gives back a part of a file that is shared, or its size, as far as that is asked for.
    fn reduce_part(&mut self, object: Object, part: Part) -> Outcome {
        let Some(reducing) = self.reducing.get(&object) else { return Outcome::Done };
        let (node, owner) = (Arc::clone(&self.node), self.owner);
        let (to, is_own) = (reducing.to, reducing.is_own);
        let leases = node.segment.part_leases();
        let found = self.find(object.file);
        // The size comes before the parts: the node that has it may wait for this one.
        let may_keep = part == Part::SIZE || !self.sizes.contains(&object.file);
        let is_fresh = |since: &Instant| may_keep && since.elapsed() < TAKE_UP.as_duration();
        if let Some(file) = found
            && !leases.load(file, part).is_taken()
            && self.granted.get(&object).is_some_and(is_fresh)
        {
            return Outcome::Busy;
        }
        self.granted.remove(&object);
        if let Some(file) = found.filter(|_| !is_own) {
            flush_the_rest(&node, file);
        }
        let mut facts = None;
        let outcome = match found {
            None => Outcome::Done,
            Some(file) => while_held(&node, file, owner, |record| {
                if group_file(record) != object.file || record.lease.load().held() != Lease::Shared
                {
                    // It went with the whole.
                    leases.remove(file, part);
                    return Outcome::Done;
                }
                let outcome = clean_part(&node, &mut self.flusher, file, owner, part, to);
                if outcome == Outcome::Done {
                    crash::point("part.reducing");
                    void_pulls(&node, file);
                    facts = Some(facts_of(record));
                    match (part_level_of(to), leases.find(file, part)) {
                        (PartLevel::None, _) => leases.remove(file, part),
                        (PartLevel::Direct, Some(lease)) => lease.grant(PartLevel::Direct),
                        (left, Some(lease)) => lease.reduce(left),
                        (_, None) => {}
                    }
                }
                outcome
            }),
        };
        if outcome == Outcome::Done {
            crash::point("part.reduced");
            if let Some(file) = found.filter(|_| to == Level::Read) {
                self.tell_kept(file, part.bytes());
            }
            match to {
                // It was granted so.
                Level::Direct => {}
                _ if is_own => self.desk.tell(LeaseCommand::Release { object }),
                level => self.desk.tell(LeaseCommand::Reduced { object, level, facts }),
            }
            self.wake();
        }
        outcome
    }
}

/// Has the flushers bring to the store what there is of a file of which another node wants a part,
/// and will want the next ones, too, or which it may have open without a name.
pub(super) fn flush_the_rest(node: &Node, file: FileId) {
    let record = node.segment.file(file);
    if record.has(FileFlags::DIRTY) && !record.has(FileFlags::TO_FLUSH) {
        node.segment.request_sync(file, None, false);
        node.want_work();
    }
}

/// How many files are under commit here.
pub(super) fn committed(node: &Node) -> usize {
    let segment = &node.segment;
    let is_it = |file: &FileId| segment.file(*file).lease.load().held() == Lease::Commit;
    segment.files().live().filter(is_it).count()
}

/// Whether a file was granted to be written, and no program has taken that up yet.
fn is_untaken_whole(record: &FileRecord) -> bool {
    let lease = record.lease.load();
    (lease.held(), lease.granted()) == (Lease::Nothing, Some(Grant::Whole))
}

/// Which part an object is; `None` of a whole.
fn part_of(object: Object) -> Option<Part> {
    match object.of {
        Of::Whole => None,
        Of::Size => Some(Part::SIZE),
        Of::Part(number) => Some(Part::from_raw(number)),
    }
}

fn object_of(file: GroupFile, part: Part) -> Object {
    match part {
        Part::SIZE => Object::size(file),
        part => Object::part(file, part.raw()),
    }
}

fn level_of(level: PartLevel) -> Level {
    match level {
        PartLevel::None => Level::None,
        PartLevel::Read => Level::Read,
        PartLevel::Shared => Level::Shared,
        PartLevel::Write => Level::Write,
        PartLevel::Direct => Level::Direct,
    }
}

fn part_level_of(level: Level) -> PartLevel {
    match level {
        // No part is borrowed, or lent.
        Level::None | Level::Borrowed => PartLevel::None,
        Level::Read | Level::Lent => PartLevel::Read,
        Level::Shared => PartLevel::Shared,
        Level::Write => PartLevel::Write,
        Level::Direct => PartLevel::Direct,
    }
}

/// A file that is shared has so many bytes at least.
fn learn_size(record: &FileRecord, facts: Option<Facts>) {
    if let Some(facts) = facts {
        record.size.fetch_max(facts.size, Ordering::AcqRel);
    }
}

/// What is under way from other nodes is not taken any more. The file is held exclusively.
fn void_pulls(node: &Node, file: FileId) {
    if let Some(remote) = &node.group.remote {
        remote.void_pulls(file);
    }
}

/// Size and time of change of a file as programs of this node see them.
pub(crate) fn facts_of(record: &FileRecord) -> Facts {
    let modified = match record.has(FileFlags::METADATA_DIRTY) {
        true => &record.mtime_ns,
        false => &record.store_mtime_ns,
    };
    Facts {
        size: record.size.load(Ordering::Acquire),
        mtime_ns: modified.load(Ordering::Acquire) as i64,
    }
}
