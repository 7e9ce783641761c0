//! Rest: when nothing has happened for a while, and nothing is left to be done, the manager's
//! threads wait until they are woken, and the control thread looks once a second at words of shared
//! memory whether a program did anything that it told no thread. That look is one system call, and
//! reads the slots of processes, not the records of files. It is what makes programs that write to
//! files without a word to the manager seen in time: their writes take no system call to wake it.
//!
//! Messages, the ends of processes, signals, requests in the queue, and threads that want room or a
//! flush wake the thread that they are meant for at once. A thread asks `Node::wait_ms` after it
//! has read the word on which it will sleep, and the end of the rest changes that word after it has
//! said that the rest is over: no wake is lost.

use super::housekeeping::Housekeeper;
use super::jobs;
use crate::node::Node;
use forebay_pool::clock::{Timer, monotonic_ns, stamp_age};
use forebay_pool::layout::*;
use forebay_pool::segment::Segment;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// For how long nothing has to have happened.
///
/// Longer than a description waits for an exec, and than calm memory of small files is kept.
const QUIET: Timer = Timer::seconds(3);
/// How often it is looked at, where flushes are not more urgent.
const LOOK: Timer = Timer::seconds(1);
/// The least of that.
const LOOK_MIN: Timer = Timer::ms(10);
/// How often a manager that rests looks at everything all the same: programs without Forebay delete
/// files that are open here, too, and what was missed in spite of all is not missed for ever.
const LOOK_EVERYWHERE: Timer = Timer::seconds(60);

/// Whether the manager rests, or how long nothing has happened.
pub(super) struct Rest {
    /// All that programs change, as of the last look.
    seen: u64,
    looked: u32,
    /// Since when it has been the same; at rest, since the last look at everything.
    since: u32,
    /// Between two looks.
    pause: Duration,
}

impl Rest {
    pub fn new(node: &Node) -> Rest {
        let flush = &node.config.flush;
        // What was written is no later seen to be due than by a flusher that looks for itself.
        let pause = LOOK.as_duration().min(flush.period).min(flush.max_age / 4);
        let pause = pause.max(LOOK_MIN.as_duration());
        Rest { seen: 0, looked: node.now(), since: node.now(), pause }
    }

    /// For how long the control thread waits at rest.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// After a round of a manager that is awake: begins to rest if it is time. `is_idle`: no
    /// request is under way.
    pub fn consider(&mut self, node: &Node, housekeeper: &Housekeeper, is_idle: bool) {
        let now = node.now();
        if !is_idle {
            self.since = now;
            return;
        }
        if u128::from(stamp_age(now, self.looked)) < self.pause.as_millis() {
            return;
        }
        self.looked = now;
        let seen = sum_of(&node.segment);
        if seen != self.seen {
            (self.seen, self.since) = (seen, now);
        } else if stamp_age(now, self.since) >= QUIET.as_stamp() {
            self.since = now;
            if housekeeper.has_nothing_to_do() && is_settled(node) {
                node.resting.store(true, Ordering::SeqCst);
            }
        }
    }

    /// At rest, when nothing has woken the manager: whether still nothing has happened. Now and
    /// then `look` looks at everything.
    pub fn goes_on(&mut self, node: &Node, look: impl FnOnce()) -> bool {
        let now = node.now();
        node.header().now_ms.store(now, Ordering::Relaxed);
        if stamp_age(now, self.since) >= LOOK_EVERYWHERE.as_stamp() {
            self.since = now;
            look();
        }
        let is_same = sum_of(&node.segment) == self.seen;
        if is_same {
            // What comes next is not taken for what came in all of the rest.
            node.segment.sample(monotonic_ns());
        }
        is_same
    }

    /// Ends the rest, of all threads.
    pub fn end(&mut self, node: &Node) {
        self.since = node.now();
        node.resting.store(false, Ordering::SeqCst);
        node.want_work();
        node.segment.want_room();
        node.segment.want_caps();
    }
}

/// A sum of what programs change whatever they do with files.
fn sum_of(segment: &Segment) -> u64 {
    let header = segment.header();
    let mut sum = DefaultHasher::new();
    let mut add = |word: &AtomicU32| word.load(Ordering::Relaxed).hash(&mut sum);
    let words = [
        &header.manager_epoch,
        &header.files_high,
        &header.description_cursor,
        &header.forks,
        &header.room_wanted,
        &header.work_wanted,
        &header.opens_refused,
        &header.failed_tiers,
        &header.retired,
    ];
    words.into_iter().for_each(&mut add);
    header.tier.iter().for_each(|tier| add(&tier.used));
    let wide = |word: &AtomicU64, sum: &mut DefaultHasher| {
        word.load(Ordering::Relaxed).hash(sum);
    };
    wide(&header.name_changes, &mut sum);
    wide(&header.sequence, &mut sum);
    header.past.all().iter().for_each(|counter| wide(counter.value, &mut sum));
    let descriptions = segment.descriptions();
    for (slot, client) in segment.clients().used() {
        let state = client.state.load(Ordering::Acquire);
        (slot, state).hash(&mut sum);
        if state == slot_state::FREE {
            continue;
        }
        for word in [&client.pid, &client.generation, &client.opening, &client.joining, &client.job]
        {
            word.load(Ordering::Relaxed).hash(&mut sum);
        }
        wide(&client.start, &mut sum);
        client.shared_locks.iter().for_each(|word| wide(word, &mut sum));
        client.counters.all().iter().for_each(|counter| wide(counter.value, &mut sum));
        for id in descriptions.held_of(slot) {
            id.hash(&mut sum);
            let description = segment.description(id);
            wide(&description.word, &mut sum);
            wide(&description.offset, &mut sum);
            let file = description.file.load(Ordering::Relaxed);
            if !header.has_file(file) {
                continue;
            }
            let record = segment.file(file);
            record.flags.load(Ordering::Relaxed).contains(FileFlags::DIRTY).hash(&mut sum);
            record.flags.load(Ordering::Relaxed).contains(FileFlags::METADATA_DIRTY).hash(&mut sum);
            wide(&record.size, &mut sum);
            wide(&record.mtime_ns, &mut sum);
            wide(&record.intent, &mut sum);
        }
    }
    sum.finish()
}

/// Whether nothing is left to be done for any file, description or run. A process that changes
/// something meanwhile changes the sum.
fn is_settled(node: &Node) -> bool {
    let segment = &node.segment;
    let has_lifetimes = segment.rules().iter().any(|rule| rule.settings().lifetime.is_some());
    // What it writes may be due before a look at rest would see that it did.
    let has_age = |job: &JobRecord| job.max_age_ms.load(Ordering::Relaxed) > 0;
    let is_quiet =
        |job: &JobRecord| job.state.load(Ordering::SeqCst) != job_state::STARTING && !has_age(job);
    !has_lifetimes
        && !node.has_actions_left()
        && segment.header().retired.load(Ordering::Acquire) == retirement::NONE
        && segment.jobs().all(is_quiet)
        && !jobs::is_any_ending(node)
        && segment.descriptions().are_settled()
        && are_files_settled(segment)
}

fn are_files_settled(segment: &Segment) -> bool {
    const BUSY: [FileFlags; 10] = [
        FileFlags::DIRTY,
        FileFlags::METADATA_DIRTY,
        FileFlags::FAILING,
        FileFlags::SCRATCH,
        FileFlags::DURABLE,
        FileFlags::RELEASE,
        FileFlags::TO_LOG,
        FileFlags::TO_FLUSH,
        FileFlags::TO_CHECKPOINT,
        FileFlags::TO_RECORD_TRUNCATE,
    ];
    let busy = BUSY.into_iter().fold(FileFlags::UNLINKED, |all, flag| all | flag);
    // Of one without a name nothing is done while it is open.
    let open = segment.descriptions().open_files(segment.header().files);
    segment.files().touched().all(|file| {
        let record = segment.file(file);
        let flags = record.flags.load(Ordering::Acquire) & busy;
        (!flags.intersects(busy) || flags == FileFlags::UNLINKED && open[file.index()])
            && record.exclusive.load(Ordering::Acquire) == 0
            && !record.awaits_sync()
    })
}
