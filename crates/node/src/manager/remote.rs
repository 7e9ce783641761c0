//! Brings blocks that programs miss from the memory of other nodes, and gives other nodes what this
//! one has. docs/design/nodes.md has the protocol, and why it is right.
//!
//! It is a [`Strand`](forebay_cluster::Strand): each event is taken on the thread that brings it,
//! and waits for no other one: what lies on a file tier, another thread reads (`slots`). The thread
//! "remote" looks when something is due. A block that is wanted ends, one way or the other, within
//! [`FETCH`]; then it is read from the store.

mod slots;

use crate::group::records::{Busy, find_at_once, group_file};
use crate::manager::lend::{LINK_BANDWIDTH, LINK_LATENCY_NS};
use crate::node::Node;
use crate::organize::stage::{claim_block, fill_block};
use crate::remote::{RemoteCounts, RemoteEvent, RemotePost, SLOTS, Wanted};
use forebay_cluster::{
    Finder, Header, Hints, Holders, INLINE_MAX, Outcome, Post, REMOTE, RUN_BLOCKS, Region,
    RemoteMessage, RemoteSpan, Staging, Taker, holder_of,
};
use forebay_membership::{FileId as GroupFile, Member, NodeId, Places, Rank};
use forebay_placement::cost::{Pace, Speeds, peer_budget_ns, peer_gives};
use forebay_placement::observe::Observed;
use forebay_pool::backoff::Backoff;
use forebay_pool::checksum::checksum_of;
use forebay_pool::clock::Timer;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::{BucketMeta, FileFlags, FileRecord, TierId, file_state};
use forebay_pool::lease::Lease;
use forebay_pool::parts::{Part, PartLevel};
use forebay_pool::{Entry, FileId, Owner, PageSet, Segment, clock, crash};
use slots::{Lying, SlotRead, SlotReader};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// After this a block that is wanted is read from the store.
const FETCH: Timer = Timer::ms(1_000);
/// For how much longer bytes may be on their way, that are dropped then.
const PULL_MORE: Timer = Timer::seconds(3);
/// For how long another node is kept waiting for a block that this one is about to read, at most.
const PARK: Timer = Timer::ms(800);
/// The same, in times that the store takes for it, and besides: the block may have come, and have
/// been displaced again.
const READ_TIMES: u32 = 4;
const READ_SLACK: Timer = Timer::ms(5);
/// How often it is looked for meanwhile.
const PARK_LOOK: Timer = Timer::ms(1);
/// Bytes that wait to be pulled are kept for so long: twice what clocks may differ, and more.
const SERVE: Timer = Timer::seconds(4);
/// A node that has not answered in time is not asked for so long.
const SLOW: Timer = Timer::seconds(5);
/// Runs that this node knows the readers of at most: about 10 MiB where each is a small file.
const RUNS_MAX: usize = 1 << 17;
/// Runs of which this node remembers what it was told of their holders at most: some 400 KiB, and
/// 64 GiB in blocks of 256 KiB.
const HINTS_MAX: usize = 1 << 12;
/// Questions of others that wait at most.
const PARKED_MAX: usize = 4096;
/// Blocks that are wanted at once at most.
const JOBS_MAX: usize = 4096;
/// Blocks that are read from file tiers for others at once at most: half of the places, so that a
/// device that hangs leaves the others to what lies in RAM.
const READS_MAX: usize = SLOTS / 2;

/// A block that is wanted. Its number is the ticket of what is asked, and the token of its pull.
struct Job {
    id: FileId,
    generation: u32,
    file: GroupFile,
    block: u64,
    /// Of the file, when the job began.
    epoch: u32,
    until: Instant,
    /// Numbers of the fetches that wait for it.
    waiters: Vec<u64>,
    /// Who did not have it.
    not: Option<NodeId>,
    /// Why one is asked for it that has it, or is said to.
    by: By,
    state: State,
}

/// Why a node is asked for a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The one that knows has named it.
    Finder,
    /// It was named before, with another block.
    Hint,
    /// It is the one that knows: it gives the block if it has it, and else says who has.
    Itself,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is being found out who has it.
    Finding,
    /// This one has it; there is no slot yet.
    Queued(Member),
    /// It was asked, and the slot is for its bytes.
    Asked(Member, usize),
    /// They are on their way.
    Pulling { of: Member, slot: usize, bytes: usize, sum: u32, since_ns: u64 },
    /// They may be yet, and are not wanted any more.
    Over(usize),
}

/// Blocks for which someone waits.
struct Fetch {
    left: usize,
    /// Those that come from other nodes.
    others: Vec<u64>,
    wanted: Wanted,
}

/// A question who has blocks.
struct Find {
    of: Member,
    jobs: Vec<u64>,
}

/// A question of another node that waits.
struct Parked {
    from: Member,
    ticket: u64,
    file: GroupFile,
    block: u64,
    since: Instant,
    /// Within which it has to be given to be sooner there than from the store.
    budget_ns: u64,
    /// What it waits for is a read of a file tier.
    waits_for_tier: bool,
    /// It was asked as the one that knows who has the block.
    is_find: bool,
}

impl Parked {
    /// A question of this moment, with its number: for a block, to be given within `budget_ns`.
    fn new(
        (from, ticket): (Member, u64),
        (file, block): (GroupFile, u64),
        budget_ns: u64,
        is_find: bool,
    ) -> Self {
        let (since, waits_for_tier) = (Instant::now(), false);
        Self { from, ticket, file, block, since, budget_ns, waits_for_tier, is_find }
    }

    /// Whether the one that asks waits still.
    fn is_awaited(&self) -> bool {
        self.since.elapsed() < PARK.as_duration()
    }

    /// Whether it may still be sooner there than from the store.
    fn pays(&self) -> bool {
        self.since.elapsed().as_nanos() < self.budget_ns.into()
    }
}

/// What a look for a block has found.
enum Found {
    /// So many bytes, which were copied.
    Bytes(usize),
    /// A file tier has it.
    Below(Lying),
    /// The one that asks has it sooner from the store.
    Slower,
    /// A thread is at work in it.
    Busy,
    /// There is no place from which it could be given.
    Full,
    /// No tier has it.
    Absent,
    /// It may not be given, or is not whole.
    No,
}

/// How the group is reached.
struct Group {
    post: Post,
    rank: Box<dyn Fn() -> Rank + Send>,
    me: NodeId,
    members: Vec<Member>,
    places: Places,
}

/// See the module.
pub(crate) struct Remote {
    node: Arc<Node>,
    staging: Arc<Staging>,
    owner: Owner,
    hint: u32,
    group: Option<Group>,
    finder: Finder,
    hints: Hints,
    next: u64,
    jobs: BTreeMap<u64, Job>,
    by_block: HashMap<(GroupFile, u64), u64>,
    fetches: BTreeMap<u64, Fetch>,
    finds: BTreeMap<u64, Find>,
    queued: VecDeque<u64>,
    /// Slots for what comes, and for what is given away.
    free: [Vec<usize>; 2],
    parked: Vec<Parked>,
    /// What waits to be pulled from a slot, and until when.
    served: BTreeMap<(Member, u64), (usize, Instant)>,
    /// What is being read from file tiers, and to whom it is to be given from which slot.
    slot_reads: BTreeMap<u64, (Parked, Lying, usize)>,
    /// The threads that do it, one for each tier.
    slot_readers: BTreeMap<TierId, Sender<SlotRead>>,
    /// Blocks that this node reads from the store for all, and until when others wait for them.
    reading: HashMap<(GroupFile, u64), Instant>,
    slow: BTreeMap<Member, Instant>,
    observed: BTreeMap<NodeId, Observed>,
}

/// How many bytes of a block are given to other nodes: those that the store has, and of a file that
/// is lent all. The lease says that they do not change.
fn length(segment: &Segment, record: &FileRecord, block: u64) -> usize {
    let bucket = segment.bucket_bytes() as u64;
    let size = record.size.load(Ordering::Acquire);
    let known = match record.lease.load().held() {
        Lease::Lent => size,
        _ => record.stored().min(size),
    };
    known.saturating_sub(block.saturating_mul(bucket)).min(bucket) as usize
}

/// Whether this node has a block to read, and so no other one to write. The caller is inside the
/// file.
fn is_read_by_several(segment: &Segment, file: FileId, block: u64) -> bool {
    let record = segment.file(file);
    let is_read = || match record.lease.load().held() {
        Lease::Read | Lease::Lent | Lease::Borrowed => true,
        Lease::Shared => {
            let part = Part::at(block.saturating_mul(segment.bucket_bytes() as u64));
            let level = |part| segment.part_leases().load(file, part).level();
            part.is_some_and(|part| level(part) == PartLevel::Read)
        }
        Lease::Whole | Lease::Nothing | Lease::Direct | Lease::Commit => false,
    };
    record.state.load(Ordering::Acquire) == file_state::LIVE
        && is_read()
        && !record.has(FileFlags::DIRECT)
}

/// Whether a bucket has all these pages of a file, and they are those that other nodes may have:
/// the store has them, too, or the file is lent.
fn is_whole(record: &FileRecord, meta: &BucketMeta, pages: PageSet) -> bool {
    meta.valid.load(Ordering::Acquire) & pages.0 == pages.0
        && (meta.pending() == 0 || record.lease.load().held() == Lease::Lent)
}

impl Remote {
    /// That of a manager whose files are shared, and for each file tier the thread that reads it.
    pub fn of(node: &Arc<Node>) -> Option<(Remote, Vec<SlotReader>)> {
        let post = node.group.remote.as_ref()?;
        let readers = node.file_tiers().map(|tier| SlotReader::new(node, tier));
        let (slot_readers, readers) = readers.unzip();
        let remote = Remote {
            node: Arc::clone(node),
            staging: Arc::clone(&post.staging),
            owner: Node::new_owner(),
            hint: 0,
            group: None,
            finder: Finder::new(RUNS_MAX),
            hints: Hints::new(HINTS_MAX),
            next: 0,
            jobs: BTreeMap::new(),
            by_block: HashMap::new(),
            fetches: BTreeMap::new(),
            finds: BTreeMap::new(),
            queued: VecDeque::new(),
            free: [(0..SLOTS).collect(), (SLOTS..2 * SLOTS).collect()],
            parked: Vec::new(),
            served: BTreeMap::new(),
            slot_reads: BTreeMap::new(),
            slot_readers,
            reading: HashMap::new(),
            slow: BTreeMap::new(),
            observed: BTreeMap::new(),
        };
        Some((remote, readers))
    }

    fn post(&self) -> Option<&RemotePost> {
        self.node.group.remote.as_ref()
    }

    fn count(&self, which: impl Fn(&RemoteCounts) -> &AtomicU64) {
        if let Some(post) = self.post() {
            which(&post.counts).fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Taker for Remote {
    type Event = RemoteEvent;

    fn take_at_once(&mut self, event: RemoteEvent) -> Option<RemoteEvent> {
        self.take(event);
        None
    }

    fn take(&mut self, event: RemoteEvent) {
        if let Some(post) = self.post() {
            post.waiting.taken(&event);
        }
        match event {
            RemoteEvent::Begun(post, rank) => {
                self.group = self.node.group.number().map(|me| {
                    let (members, places) = (Vec::new(), Places::of(&[]));
                    Group { post, rank, me, members, places }
                });
            }
            RemoteEvent::Fetch { file, generation, blocks, wanted } => {
                self.fetch(file, generation, blocks, wanted);
            }
            RemoteEvent::Kept { file, bytes } => self.kept(file, bytes),
            RemoteEvent::Unkept { file, generation, block } => self.unkept(file, generation, block),
            RemoteEvent::Granted { file, to } => self.tell_reader(to, file),
            RemoteEvent::Message(from, body) => match RemoteMessage::decode(&body) {
                Some(message) => self.message(from, message),
                None => eprintln!("node {} has sent a message that is none", from.node.0),
            },
            RemoteEvent::Pulled(token, outcome) => self.pulled(token, outcome),
            RemoteEvent::SlotRead(number, is_read) => self.slot_read(number, is_read),
            RemoteEvent::Down(member) => self.down(member),
        }
        // A slot may be free now.
        self.ask_queued();
    }

    fn look_around(&mut self) {
        let now = Instant::now();
        let is_late = |job: &Job| job.until <= now && !matches!(job.state, State::Over(_));
        let late: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| is_late(job)).map(|(&job, _)| job).collect();
        for job in late {
            let Some(found) = self.jobs.get(&job) else { continue };
            let of = match found.state {
                State::Asked(of, _) | State::Pulling { of, .. } => Some(of),
                State::Finding => {
                    self.finds.values().find(|find| find.jobs.contains(&job)).map(|find| find.of)
                }
                State::Queued(_) | State::Over(_) => None,
            };
            if let Some(of) = of {
                self.slow.insert(of, now + SLOW.as_duration());
            }
            self.give_up(job);
        }
        let jobs = &self.jobs;
        self.finds.retain(|_, find| find.jobs.iter().any(|job| jobs.contains_key(job)));
        let over = self.served.iter().filter(|(_, (_, until))| *until <= now);
        let over: Vec<(Member, u64)> = over.map(|(&key, _)| key).collect();
        over.into_iter().for_each(|key| self.unserve(key));
        for parked in std::mem::take(&mut self.parked) {
            self.serve(parked);
        }
        if self.reading.len() > JOBS_MAX {
            self.reading.retain(|_, until| now < *until);
        }
        self.slow.retain(|_, until| *until > now);
        self.ask_queued();
        self.note_coming();
    }

    fn due(&self) -> Option<Instant> {
        let looks = (!self.parked.is_empty()).then(|| Instant::now() + PARK_LOOK.as_duration());
        let jobs = self.jobs.values().filter(|job| !matches!(job.state, State::Over(_)));
        let due = jobs.map(|job| job.until).chain(self.served.values().map(|(_, until)| *until));
        due.chain(self.slow.values().copied()).chain(looks).min()
    }

    fn end(&mut self) {
        let jobs: Vec<u64> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.give_up(job));
    }
}

impl Remote {
    fn send(&self, to: Member, message: &RemoteMessage) -> bool {
        let header = Header { kind: REMOTE, ..Header::default() };
        let group = self.group.as_ref();
        group.is_some_and(|group| group.post.send(to, &header, &message.encode()).is_ok())
    }

    fn is_inside(&self) -> bool {
        self.group.as_ref().is_some_and(|group| (group.rank)() == Rank::Inside)
    }

    /// Enters a file, if no thread has it exclusively.
    fn enter<'s>(&self, segment: &'s Segment, file: FileId) -> Option<SharedGuard<'s>> {
        let mut backoff = Backoff::default();
        loop {
            match segment.try_enter(file, self.owner) {
                Ok(inside) => return Some(inside),
                Err(_) if backoff.is_spent() => return None,
                Err(_) => drop(backoff.wait()),
            }
        }
    }

    // What this node wants.

    fn fetch(&mut self, id: FileId, generation: u32, blocks: Vec<u64>, wanted: Wanted) {
        let node = Arc::clone(&self.node);
        let (segment, remote) = (&node.segment, node.group.remote.as_ref());
        let known = {
            let inside = self.enter(segment, id).filter(|_| self.is_inside());
            let record = segment.file(id);
            let is_right = inside.is_some()
                && blocks.iter().all(|block| is_read_by_several(segment, id, *block))
                && record.generation.load(Ordering::Acquire) == generation;
            // Inside the file: what is given back from now on is seen by it.
            let epoch = remote.map(|remote| remote.epoch(id).load(Ordering::Acquire));
            epoch.filter(|_| is_right).map(|epoch| (group_file(record), epoch))
        };
        let Some((file, epoch)) = known.filter(|_| self.jobs.len() < JOBS_MAX) else {
            return self.answer(wanted, Vec::new());
        };
        let number = self.new_number();
        let until = Instant::now() + FETCH.as_duration();
        // One more, so that it does not end before all are begun.
        let left = 1;
        self.fetches.insert(number, Fetch { left, others: Vec::new(), wanted });
        let mut runs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut hinted = Vec::new();
        for block in blocks {
            if let Some(fetch) = self.fetches.get_mut(&number) {
                fetch.left += 1;
            }
            let known = self.by_block.get(&(file, block)).copied();
            if let Some(job) = known.and_then(|job| self.jobs.get_mut(&job))
                && job.epoch == epoch
            {
                job.waiters.push(number);
                if job.state != State::Finding {
                    self.placed(number, block);
                }
                continue;
            }
            let job = self.new_number();
            let hint = self.hints.who(file, block, epoch).filter(|node| self.may_ask(*node));
            let by = if hint.is_some() { By::Hint } else { By::Finder };
            let (waiters, state, not) = (vec![number], State::Finding, None);
            self.by_block.insert((file, block), job);
            let new = Job { id, generation, file, block, epoch, until, waiters, not, by, state };
            self.jobs.insert(job, new);
            match hint {
                Some(node) => hinted.push((job, node)),
                None => runs.entry(block / RUN_BLOCKS).or_default().push(job),
            }
        }
        // Before the one that waits for where they are asks for more.
        self.note_coming();
        for (job, node) in hinted {
            self.found(job, Some(node));
        }
        for (run, jobs) in runs {
            self.find(file, run, jobs, None);
        }
        self.settle(number);
    }

    fn note_coming(&self) {
        if let Some(post) = self.post() {
            post.coming.store(self.jobs.len() as u32, Ordering::Release);
        }
    }

    fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One block less to wait for.
    fn settle(&mut self, number: u64) {
        let Some(fetch) = self.fetches.get_mut(&number) else { return };
        fetch.left -= 1;
        if fetch.left == 0
            && let Some(Fetch { others, wanted, .. }) = self.fetches.remove(&number)
        {
            self.answer(wanted, others);
        }
    }

    fn answer(&self, wanted: Wanted, others: Vec<u64>) {
        match wanted {
            Wanted::Ticket(ticket) => self.node.segment.answer_others(ticket),
            // It may have given up.
            Wanted::Placed(answer) => _ = answer.send(others),
        }
    }

    /// It is known that a block comes from another node, which is all that a stager waits for.
    fn placed(&mut self, number: u64, block: u64) {
        let Some(fetch) = self.fetches.get_mut(&number) else { return };
        if matches!(fetch.wanted, Wanted::Placed(_)) && !fetch.others.contains(&block) {
            fetch.others.push(block);
            self.settle(number);
        }
    }

    /// Ends a job; its block is here, or to be read from the store.
    fn end(&mut self, number: u64) {
        let Some(job) = self.jobs.remove(&number) else { return };
        let key = (job.file, job.block);
        if self.by_block.get(&key) == Some(&number) {
            self.by_block.remove(&key);
        }
        for waiter in job.waiters {
            let waits = self.fetches.get(&waiter).is_some_and(|fetch| match fetch.wanted {
                Wanted::Ticket(_) => true,
                Wanted::Placed(_) => !fetch.others.contains(&job.block),
            });
            if waits {
                self.settle(waiter);
            }
        }
        match job.state {
            State::Asked(_, slot) => self.free[0].push(slot),
            State::Pulling { slot, .. } | State::Over(slot) => {
                // Until it is told that nothing writes there any more.
                let over = Job { waiters: Vec::new(), state: State::Over(slot), ..job };
                self.jobs.insert(number, over);
            }
            State::Finding | State::Queued(_) => {}
        }
    }

    /// A block did not come: it is read from the store.
    fn give_up(&mut self, number: u64) {
        if let Some(job) = self.jobs.get(&number) {
            let (id, key) = (job.id, (job.file, job.block));
            self.note_reading(id, key);
            self.count(|counts| &counts.failed);
        }
        self.end(number);
    }

    /// This node is about to read a block from the store, as far as that may be read.
    fn note_reading(&mut self, id: FileId, key: (GroupFile, u64)) {
        let segment = &self.node.segment;
        if segment.file(id).is_borrowed() {
            return;
        }
        let bytes = length(segment, segment.file(id), key.1) as u64;
        let takes = Duration::from_nanos(self.store_pace(id).reading(bytes) as u64);
        let waits = (READ_TIMES * takes + READ_SLACK.as_duration()).min(PARK.as_duration());
        self.reading.insert(key, Instant::now() + waits);
    }

    /// A block that this node was to read is not kept here: who waits for it reads it, too.
    fn unkept(&mut self, id: FileId, generation: u32, block: u64) {
        let record = self.node.segment.file(id);
        if record.generation.load(Ordering::Acquire) == generation
            && self.reading.remove(&(group_file(record), block)).is_some()
        {
            crash::point("remote.unkept");
            self.look_around();
        }
    }

    /// The group with its members as they are now.
    fn group_now(&mut self) -> Option<&Group> {
        let group = self.group.as_mut()?;
        let members = group.post.members();
        if group.members != members {
            let nodes = members.iter().map(|member| member.node).chain([group.me]);
            group.places = Places::of(&nodes.collect::<Vec<_>>());
            group.members = members;
        }
        Some(group)
    }

    /// Whether a node is another member, and answers.
    fn may_ask(&mut self, node: NodeId) -> bool {
        let members = self.group_now().map(|group| &group.members[..]).unwrap_or_default();
        let of = members.iter().find(|member| member.node == node).copied();
        of.is_some_and(|of| !self.slow.contains_key(&of))
    }

    /// Which member knows who reads a run.
    fn finder_of(&mut self, file: GroupFile, run: u64) -> Option<Result<Member, NodeId>> {
        let group = self.group_now()?;
        // Each run as if it were a part of its own.
        let home = group.places.home_of_block(file, run << 12)?;
        if home == group.me {
            return Some(Err(home));
        }
        group.members.iter().find(|member| member.node == home).copied().map(Ok)
    }

    /// Finds out who has blocks of a run.
    fn find(&mut self, file: GroupFile, run: u64, jobs: Vec<u64>, not: Option<NodeId>) {
        let blocks = jobs.iter().filter_map(|job| self.jobs.get(job)).map(|job| job.block);
        let mut blocks: Vec<(u64, u64)> = blocks.zip(jobs.iter().copied()).collect();
        blocks.sort_unstable();
        blocks.dedup_by_key(|(block, _)| *block);
        match self.finder_of(file, run) {
            Some(Err(me)) => {
                for (block, job) in blocks {
                    let node = self.finder.find(file, block, me, not);
                    self.found(job, node);
                }
            }
            Some(Ok(of)) if !self.slow.contains_key(&of) => {
                if let [(_, job)] = blocks[..]
                    && self.ask_at_once(of, job, not)
                {
                    return;
                }
                let ticket = self.new_number();
                let mask =
                    blocks.iter().fold(0, |mask, (block, _)| mask | 1 << (block % RUN_BLOCKS));
                let not = not.map_or(u16::MAX, |node| node.0);
                let message = RemoteMessage::Find { ticket, file, run, mask, not, budget_ns: 0 };
                let jobs: Vec<u64> = blocks.into_iter().map(|(_, job)| job).collect();
                self.count(|counts| &counts.finds);
                match self.send(of, &message) {
                    true => _ = self.finds.insert(ticket, Find { of, jobs }),
                    false => jobs.into_iter().for_each(|job| self.found(job, None)),
                }
            }
            _ => blocks.into_iter().for_each(|(_, job)| self.found(job, None)),
        }
    }

    /// Asks the one that knows who has a block for the block, too, should it have it. Whether it
    /// was asked: a stager, which reads at once what no node has, does not wait for bytes.
    fn ask_at_once(&mut self, of: Member, number: u64, not: Option<NodeId>) -> bool {
        let Some(job) = self.jobs.get(&number) else { return false };
        let is_program = |waiter: &u64| {
            let fetch = self.fetches.get(waiter);
            fetch.is_some_and(|fetch| matches!(fetch.wanted, Wanted::Ticket(_)))
        };
        let may = not != Some(of.node) && self.queued.is_empty() && !self.free[0].is_empty();
        let budget_ns = self.budget_ns(of, job).filter(|_| job.waiters.iter().any(is_program));
        let Some(budget_ns) = budget_ns.filter(|_| may) else { return false };
        let (file, run, mask) = (job.file, job.block / RUN_BLOCKS, 1 << (job.block % RUN_BLOCKS));
        let not = not.map_or(u16::MAX, |node| node.0);
        let message = RemoteMessage::Find { ticket: number, file, run, mask, not, budget_ns };
        if !self.send(of, &message) {
            return false;
        }
        self.count(|counts| &counts.finds);
        let slot = self.free[0].pop();
        if let (Some(job), Some(slot)) = (self.jobs.get_mut(&number), slot) {
            (job.by, job.state) = (By::Itself, State::Asked(of, slot));
        }
        true
    }

    /// The one that knows who has blocks has said it.
    fn told(&mut self, from: Member, ticket: u64, holders: Holders) {
        let jobs = match self.finds.get(&ticket) {
            Some(find) if find.of == from => {
                self.finds.remove(&ticket).map_or_else(Vec::new, |find| find.jobs)
            }
            Some(_) => return,
            None => {
                let Some(job) = self.jobs.get_mut(&ticket).filter(|job| job.by == By::Itself)
                else {
                    return;
                };
                let State::Asked(of, slot) = job.state else { return };
                if of != from {
                    return;
                }
                (job.by, job.state) = (By::Finder, State::Finding);
                self.free[0].push(slot);
                vec![ticket]
            }
        };
        let known = jobs.iter().filter_map(|job| self.jobs.get(job)).next();
        if let Some(Job { file, block, epoch, .. }) = known {
            self.hints.put(*file, block / RUN_BLOCKS, *epoch, holders.clone());
        }
        for job in jobs {
            let block = self.jobs.get(&job).map(|job| job.block);
            self.found(job, block.and_then(|block| holder_of(&holders, block)));
        }
    }

    /// The one that knows who has blocks of a file has said it, as this node may read that now.
    fn take_hints(&mut self, from: Member, (file, run): (GroupFile, u64), holders: Holders) {
        // They are hints: those of a file at which another thread is are not missed.
        let found = find_at_once(&self.node.segment, self.owner, file).ok().flatten();
        let is_it = matches!(self.finder_of(file, run), Some(Ok(finder)) if finder == from);
        let epoch = found.filter(|_| is_it).zip(self.post());
        if let Some(epoch) = epoch.map(|(id, post)| post.epoch(id).load(Ordering::Acquire)) {
            self.hints.put(file, run, epoch, holders);
        }
    }

    /// It is known who has a block; `None`: this node reads it from the store.
    fn found(&mut self, number: u64, node: Option<NodeId>) {
        let Some(job) = self.jobs.get(&number) else { return };
        if job.state != State::Finding {
            return;
        }
        let group = self.group.as_ref();
        let members = group.map(|group| &group.members[..]).unwrap_or_default();
        let of = node.and_then(|node| members.iter().find(|member| member.node == node).copied());
        let of = of.filter(|of| !self.slow.contains_key(of) && self.budget_ns(*of, job).is_some());
        let (waiters, block) = (job.waiters.clone(), job.block);
        match of {
            Some(of) => {
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.state = State::Queued(of);
                }
                waiters.into_iter().for_each(|waiter| self.placed(waiter, block));
                self.queued.push_back(number);
                self.ask_queued();
            }
            None => {
                let (id, key) = (job.id, (job.file, block));
                self.note_reading(id, key);
                self.count(|counts| &counts.own);
                self.end(number);
            }
        }
    }

    /// Nanoseconds within which that node has to give a block for it to be here sooner than from
    /// the store; `None` if it cannot be.
    fn budget_ns(&self, of: Member, job: &Job) -> Option<u64> {
        let segment = &self.node.segment;
        if segment.file(job.id).is_borrowed() {
            // The store may not have it.
            return Some(FETCH.as_ns());
        }
        let now_ns = clock::monotonic_ns();
        let observed = self.observed.get(&of.node);
        let bandwidth = observed.map_or(LINK_BANDWIDTH, |observed| observed.bandwidth(now_ns));
        let round_trip = self.group.as_ref().and_then(|group| group.post.round_trip(of));
        let link = Pace {
            read_ns: 1e9 / bandwidth.max(1) as f64,
            latency_ns: round_trip.unwrap_or_default().as_nanos() as f64,
            write_ns: 0.0,
        };
        let bytes = length(segment, segment.file(job.id), job.block) as u64;
        let budget_ns = peer_budget_ns(&link, &self.store_pace(job.id), bytes);
        (budget_ns > 0.0).then_some(budget_ns as u64)
    }

    /// How fast the store of a file is read.
    fn store_pace(&self, id: FileId) -> Pace {
        let hierarchy = forebay_client::hierarchy(&self.node.segment, self.node.store_of(id));
        Speeds::of(&hierarchy).paces().last().copied().unwrap_or_default()
    }

    /// Asks for blocks that wait for a slot.
    fn ask_queued(&mut self) {
        while let Some(&number) = self.queued.front() {
            let Some(job) = self.jobs.get(&number) else {
                self.queued.pop_front();
                continue;
            };
            let State::Queued(of) = job.state else {
                self.queued.pop_front();
                continue;
            };
            let (file, block) = (job.file, job.block);
            // By now it may be too far away: then its holder says so.
            let budget_ns = self.budget_ns(of, job).unwrap_or(0);
            let Some(slot) = self.free[0].pop() else { return };
            self.queued.pop_front();
            if let Some(job) = self.jobs.get_mut(&number) {
                job.state = State::Asked(of, slot);
            }
            self.count(|counts| &counts.gets);
            if !self.send(of, &RemoteMessage::Get { ticket: number, file, block, budget_ns }) {
                self.give_up(number);
            }
        }
    }

    /// The node that was asked does not have a block: once more it is asked who has.
    fn refused(&mut self, number: u64, of: Member) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let State::Asked(_, slot) = job.state else { return };
        self.hints.forget(job.file, job.block);
        // The one that knows has named none yet where it was a hint.
        let by = std::mem::replace(&mut job.by, By::Finder);
        if by != By::Hint && job.not.replace(of.node).is_some() {
            return self.give_up(number);
        }
        job.state = State::Finding;
        let (file, run) = (job.file, job.block / RUN_BLOCKS);
        self.free[0].push(slot);
        self.find(file, run, vec![number], Some(of.node));
    }

    /// A pull has ended: its slot is this thread's again.
    fn pulled(&mut self, number: u64, outcome: Outcome) {
        let Some(job) = self.jobs.get(&number) else { return };
        match job.state {
            State::Over(slot) => {
                self.jobs.remove(&number);
                self.free[0].push(slot);
            }
            State::Pulling { of, slot, bytes, sum, since_ns } => {
                self.send(of, &RemoteMessage::Fetched { ticket: number });
                let now_ns = clock::monotonic_ns();
                let in_time = Instant::now() < job.until && outcome == Outcome::Ok;
                crash::point("remote.pulled");
                let at = self.staging.at(slot);
                // SAFETY: the slot is this thread's, the pull has ended, and `bytes` fit.
                let content = unsafe { std::slice::from_raw_parts(at.cast_const(), bytes) };
                let is_there = in_time && self.deliver(number, content, sum, of);
                if in_time {
                    let new = || Observed::new(LINK_BANDWIDTH, LINK_LATENCY_NS, now_ns);
                    let observed = self.observed.entry(of.node).or_insert_with(new);
                    observed.observe(bytes as u64, now_ns.saturating_sub(since_ns), now_ns);
                }
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.state = State::Asked(of, slot);
                }
                match is_there {
                    true => self.end(number),
                    false => self.give_up(number),
                }
            }
            State::Finding | State::Queued(_) | State::Asked(..) => {}
        }
    }

    /// Takes the bytes of a block, if they are what was said and the file was this node's to read
    /// all the time.
    fn deliver(&mut self, number: u64, content: &[u8], sum: u32, of: Member) -> bool {
        let node = Arc::clone(&self.node);
        let (segment, Some(remote)) = (&node.segment, node.group.remote.as_ref()) else {
            return false;
        };
        let Some(job) = self.jobs.get(&number) else { return false };
        let (id, block) = (job.id, job.block);
        if checksum_of(content) != sum && !crash::planted("remote-unsummed") {
            eprintln!("bytes of node {} are not what it has said", of.node.0);
            return false;
        }
        let Some(_inside) = self.enter(segment, id) else { return false };
        let record = segment.file(id);
        let is_right = is_read_by_several(segment, id, block)
            && record.generation.load(Ordering::Acquire) == job.generation
            && remote.epoch(id).load(Ordering::Acquire) == job.epoch
            && length(segment, record, block) == content.len()
            && !content.is_empty()
            && self.is_inside();
        if !is_right {
            return false;
        }
        let pages = content.len().div_ceil(segment.page_bytes()) as u32;
        let at = (self.owner, &mut self.hint);
        let Some(locked) = claim_block(segment, at, (id, block), pages, false) else {
            // A thread may have been faster.
            let entry = segment.entry(record, block);
            return entry.is_some_and(|entry| entry.load(Ordering::Acquire) != Entry::EMPTY);
        };
        let to = segment.bucket_data(locked.bucket());
        // SAFETY: inside the bucket, which is locked, and has memory for these pages.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to, content.len()) };
        fill_block(&node, &locked, content.len());
        remote.note_pulled(locked.bucket(), id, block);
        crash::point("remote.filled");
        segment.files().touch(id);
        remote.counts.fetched.fetch_add(1, Ordering::Relaxed);
        remote.counts.moved(of.node, false, content.len());
        true
    }

    // What others want.

    /// This node has written these bytes, and has blocks of them yet: that is told to those who are
    /// asked for them.
    fn kept(&mut self, id: FileId, bytes: Range<u64>) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let mut runs: BTreeMap<u64, u64> = BTreeMap::new();
        let file = {
            let Some(_inside) = self.enter(segment, id) else { return };
            let (record, each) = (segment.file(id), segment.bucket_bytes() as u64);
            segment.for_each_entry(record, bytes.start / each, |block, place| {
                if block.saturating_mul(each) >= bytes.end {
                    return false;
                }
                let is_here = || place.load(Ordering::Acquire) != Entry::EMPTY;
                if is_read_by_several(segment, id, block) && is_here() {
                    *runs.entry(block / RUN_BLOCKS).or_default() |= 1 << (block % RUN_BLOCKS);
                }
                true
            });
            group_file(record)
        };
        for (run, mask) in runs {
            match self.finder_of(file, run) {
                Some(Err(me)) => self.note_kept(me, file, run, mask),
                Some(Ok(of)) => _ = self.send(of, &RemoteMessage::Kept { file, run, mask }),
                None => {}
            }
        }
    }

    fn note_kept(&mut self, by: NodeId, file: GroupFile, run: u64, mask: u64) {
        let Some(first) = run.checked_mul(RUN_BLOCKS) else { return };
        for block in (0..RUN_BLOCKS).filter(|block| mask >> block & 1 != 0) {
            self.finder.kept(file, first + block, by);
        }
    }

    fn message(&mut self, from: Member, message: RemoteMessage) {
        match message {
            RemoteMessage::Find { ticket, file, run, mask, not, budget_ns } => {
                let not = (not != u16::MAX).then_some(NodeId(not));
                let Some(first) = run.checked_mul(RUN_BLOCKS) else { return };
                let me = self.group.as_ref().map(|group| group.me);
                for at in (0..RUN_BLOCKS).filter(|block| mask >> block & 1 != 0) {
                    let block = first + at;
                    let node = self.finder.find(file, block, from.node, not);
                    if budget_ns > 0 && mask == 1 << at && node.is_some() && node == me {
                        let asked = Parked::new((from, ticket), (file, block), budget_ns, true);
                        return self.serve(asked);
                    }
                }
                self.tell_holders(from, ticket, (file, run));
            }
            RemoteMessage::Found { ticket, holders } => self.told(from, ticket, holders),
            RemoteMessage::Holders { file, run, holders } => {
                self.take_hints(from, (file, run), holders);
            }
            RemoteMessage::Get { ticket, file, block, budget_ns } => {
                self.serve(Parked::new((from, ticket), (file, block), budget_ns, false));
            }
            RemoteMessage::Have { ticket, file, block, bytes, sum, region, offset } => {
                self.have(from, (ticket, file, block), (bytes, sum), (region, offset));
            }
            RemoteMessage::Bytes { ticket, file, block, sum, bytes } => {
                let asked = self.jobs.get(&ticket).filter(|job| {
                    matches!(job.state, State::Asked(of, _) if of == from)
                        && (job.file, job.block) == (file, block)
                        && Instant::now() < job.until
                });
                if asked.is_none() {
                    return;
                }
                match self.deliver(ticket, &bytes, sum, from) {
                    true => self.end(ticket),
                    false => self.give_up(ticket),
                }
            }
            RemoteMessage::No { ticket } => {
                let asked = self.jobs.get(&ticket).map(|job| job.state);
                if matches!(asked, Some(State::Asked(of, _)) if of == from) {
                    self.refused(ticket, from);
                }
            }
            RemoteMessage::Fetched { ticket } => self.unserve((from, ticket)),
            RemoteMessage::Kept { file, run, mask } => self.note_kept(from.node, file, run, mask),
        }
    }

    fn tell_holders(&self, to: Member, ticket: u64, (file, run): (GroupFile, u64)) {
        let holders = self.finder.holders(file, run, to.node);
        self.send(to, &RemoteMessage::Found { ticket, holders });
    }

    /// Another node may read a file, of which this one is the home, and so the one that knows who
    /// has the blocks of its first run. Those that this node has it gives when it is asked.
    fn tell_reader(&self, to: Member, file: GroupFile) {
        let holders = self.finder.holders(file, 0, to.node);
        let me = self.group.as_ref().map(|group| group.me);
        if holders.iter().any(|(node, _)| Some(*node) != me) {
            self.send(to, &RemoteMessage::Holders { file, run: 0, holders });
        }
    }

    /// A block is not given to the one that has asked for it. If it has asked who has it, that is
    /// said, as far as it is another one.
    fn refuse(&mut self, parked: &Parked) {
        let &Parked { from, ticket, file, block, .. } = parked;
        let me = self.group.as_ref().map(|group| group.me);
        if parked.is_find {
            self.finder.find(file, block, from.node, me);
            self.tell_holders(from, ticket, (file, block / RUN_BLOCKS));
        } else {
            self.send(from, &RemoteMessage::No { ticket });
        }
    }

    /// The bytes of a block wait at another node.
    fn have(
        &mut self,
        from: Member,
        (ticket, file, block): (u64, GroupFile, u64),
        (bytes, sum): (u32, u32),
        (region, offset): (u64, u64),
    ) {
        let bytes = bytes as usize;
        let until = self.jobs.get(&ticket).map(|job| job.until);
        let left = until.and_then(|until| until.checked_duration_since(Instant::now()));
        let fits = bytes > 0 && bytes <= self.staging.slot_bytes();
        let staging = Arc::clone(&self.staging);
        if let Some(job) = self.jobs.get_mut(&ticket)
            && let State::Asked(of, slot) = job.state
            && of == from
            && (job.file, job.block) == (file, block)
            && let Some(within) = left.filter(|_| fits)
            && let Some(group) = &self.group
        {
            crash::point("remote.pulling");
            let since_ns = clock::monotonic_ns();
            job.state = State::Pulling { of, slot, bytes, sum, since_ns };
            let region = Region::from_number(region);
            let span = RemoteSpan { region, offset, bytes: bytes as u64 };
            // The fabric's own deadline closes the link, which a node that is only slow keeps.
            let within = within + PULL_MORE.as_duration();
            group.post.pull(from, span, staging.offset(slot), ticket, within);
            return;
        }
        self.send(from, &RemoteMessage::Fetched { ticket });
    }

    /// Answers a question, or keeps it for later.
    fn serve(&mut self, parked: Parked) {
        let slot = if crash::refused("staging") { None } else { self.free[1].pop() };
        let found = match slot {
            Some(slot) => self.look(&parked, self.staging.at(slot)),
            None => Found::Full,
        };
        let (found, slot) = match (found, slot) {
            (Found::Bytes(bytes), Some(slot)) => {
                self.give(&parked, slot, bytes);
                return;
            }
            (Found::Below(lying), Some(slot)) if self.slot_reads.len() < READS_MAX => {
                return self.read_slot(parked, lying, slot);
            }
            other => other,
        };
        self.free[1].extend(slot);
        let waits_for_tier = matches!(found, Found::Below(_));
        let waits = match found {
            Found::Busy => true,
            // The store does not wait for it.
            Found::Full | Found::Below(_) => parked.pays(),
            // It is about to read it, or its own question is not answered yet.
            Found::Absent => {
                let key = (parked.file, parked.block);
                let reads = self.reading.get(&key);
                reads.is_some_and(|until| Instant::now() < *until)
                    || self.by_block.contains_key(&key)
            }
            Found::Slower => {
                self.count(|counts| &counts.declined);
                false
            }
            Found::Bytes(_) | Found::No => false,
        };
        if waits && parked.is_awaited() && self.parked.len() < PARKED_MAX {
            return self.parked.push(Parked { waits_for_tier, ..parked });
        }
        self.refuse(&parked);
    }

    /// Gives another node the bytes of a block, which are in a slot. Whether they are on their way.
    fn give(&mut self, parked: &Parked, slot: usize, bytes: usize) -> bool {
        let &Parked { from, ticket, file, block, .. } = parked;
        self.reading.remove(&(file, block));
        // SAFETY: the slot is this thread's, and peers only read it.
        let content =
            unsafe { std::slice::from_raw_parts(self.staging.at(slot).cast_const(), bytes) };
        let sum = checksum_of(content);
        // What this node had before it was left out of the group, others may have written since.
        if !self.is_inside() {
            self.free[1].push(slot);
            self.refuse(parked);
            return false;
        }
        crash::point("remote.giving");
        let is_sent = if bytes <= INLINE_MAX {
            let bytes = content.to_vec();
            self.free[1].push(slot);
            self.send(from, &RemoteMessage::Bytes { ticket, file, block, sum, bytes })
        } else if let Some(region) = self.staging.region() {
            let (region, offset) = (region.number(), self.staging.offset(slot));
            let until = Instant::now() + SERVE.as_duration();
            if let Some((old, _)) = self.served.insert((from, ticket), (slot, until)) {
                self.free[1].push(old);
            }
            let bytes = bytes as u32;
            let message = RemoteMessage::Have { ticket, file, block, bytes, sum, region, offset };
            let is_sent = self.send(from, &message);
            if !is_sent {
                self.unserve((from, ticket));
            }
            is_sent
        } else {
            self.free[1].push(slot);
            false
        };
        if let Some(post) = self.post().filter(|_| is_sent) {
            post.counts.moved(from.node, true, bytes);
        }
        is_sent
    }

    fn unserve(&mut self, key: (Member, u64)) {
        if let Some((slot, _)) = self.served.remove(&key) {
            self.free[1].push(slot);
        }
    }

    /// Looks for a block of a file that several nodes read, and copies it to `to` if it is whole in
    /// RAM.
    fn look(&self, parked: &Parked, to: *mut u8) -> Found {
        let &Parked { file, block, budget_ns, .. } = parked;
        let segment = &self.node.segment;
        let id = match find_at_once(segment, self.owner, file) {
            Ok(Some(id)) => id,
            Ok(None) => return Found::No,
            Err(Busy) => return Found::Busy,
        };
        let Some(_inside) = self.enter(segment, id) else { return Found::Busy };
        let record = segment.file(id);
        // What gives the file back has it exclusively: the lease stays while this thread is inside.
        if !is_read_by_several(segment, id, block) || group_file(record) != file {
            return Found::No;
        }
        let bytes = length(segment, record, block);
        let entry = segment.entry(record, block).filter(|_| bytes > 0);
        let Some(entry) = entry else { return if bytes > 0 { Found::Absent } else { Found::No } };
        let word = entry.load(Ordering::Acquire);
        if word == Entry::EMPTY {
            return Found::Absent;
        }
        let Entry::Resident { tier, bucket, .. } = Entry::decode(word) else { return Found::No };
        let Some(meta) = segment.bucket(bucket) else { return Found::No };
        let Some(begin) = meta.lock.read_begin() else { return Found::Busy };
        let pages = PageSet::span(0..bytes.div_ceil(segment.page_bytes()));
        if !is_whole(record, meta, pages) {
            return Found::No;
        }
        if !self.gives(id, tier, bytes as u64, budget_ns) {
            return Found::Slower;
        }
        if !tier.is_ram() {
            let generation = record.generation.load(Ordering::Acquire);
            let lying = Lying::of(&self.node, (id, generation), (word, bucket, begin), bytes);
            return lying.map_or(Found::No, Found::Below);
        }
        let from = segment.bucket_data(bucket).cast_const();
        // SAFETY: both are that long; what other threads write meanwhile is noticed by the version
        // below, and there is no reference to the slot.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        if entry.load(Ordering::Acquire) != word || meta.lock.read_retry(begin) {
            return Found::Busy;
        }
        Found::Bytes(bytes)
    }

    /// Whether a block that lies on this tier is at another node sooner from here than from the
    /// store.
    fn gives(&self, id: FileId, tier: TierId, bytes: u64, budget_ns: u64) -> bool {
        let hierarchy = forebay_client::hierarchy(&self.node.segment, self.node.store_of(id));
        let speeds = Speeds::of(&hierarchy);
        let Some(place) = speeds.paces().get(tier.index()) else { return false };
        let ahead = match tier.is_ram() {
            true => 0,
            false => {
                let waits = self.parked.iter().filter(|parked| parked.waits_for_tier).count();
                self.slot_reads.len() + waits
            }
        };
        peer_gives(place, ahead as u64, bytes, budget_ns as f64)
    }

    /// A link is gone: what was asked is not answered any more, and nothing is pulled from here.
    fn down(&mut self, member: Member) {
        let served: Vec<(Member, u64)> =
            self.served.keys().copied().filter(|(to, _)| *to == member).collect();
        served.into_iter().for_each(|key| self.unserve(key));
        self.parked.retain(|parked| parked.from != member);
        let asked = |(_, job): &(&u64, &Job)| match job.state {
            State::Asked(of, _) | State::Queued(of) => of == member,
            State::Finding | State::Pulling { .. } | State::Over(_) => false,
        };
        let mut jobs: Vec<u64> = self.jobs.iter().filter(asked).map(|(&job, _)| job).collect();
        let finds = self.finds.values().filter(|find| find.of == member);
        jobs.extend(finds.flat_map(|find| find.jobs.iter().copied()));
        self.finds.retain(|_, find| find.of != member);
        jobs.into_iter().for_each(|job| self.give_up(job));
    }
}
