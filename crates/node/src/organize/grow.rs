//! The thread that keeps free buckets of RAM with memory ahead of the writers, and gives memory
//! back that has been free for long.

use crate::node::Node;
use forebay_pool::clock::Timer;
use forebay_pool::futex;
use forebay_pool::layout::TierId;
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that the tier grows by at a time: some huge pages, which waiting writers get at once.
const PIECE: u64 = 8 << 20;
/// Where memory is wanted again so soon after there was enough, the same writers go on.
const AGAIN: Timer = Timer::ms(100);
/// Bytes that there are ahead at most, or an eighth of the tier: so writers at memory speed seldom
/// wait, and what one was ahead too much is idle soon.
const AHEAD_MOST: u64 = 256 << 20;
/// What is made ahead is in vain when the writers end: at most one part in so many.
const VAIN: u32 = 3;
/// How long /dev/shm is left alone once it was full.
const RETRY: Timer = Timer::seconds(2);
/// When nothing is to be looked at: until it is asked for memory.
const FOR_EVER: Timer = Timer::seconds(24 * 3600);
/// Free memory is looked at so often in the time after which it is given back.
const LOOKS: u32 = 6;
/// The least that is given back in one step, if so much is idle.
const STEP_MIN: u64 = 32 << 20;

/// The thread that keeps free buckets with memory ahead of the writers.
pub(crate) struct Grower {
    node: Arc<Node>,
    /// Since it was asked for memory, until there is enough.
    grows: bool,
    /// Buckets that got memory for writers that go on, and since when there were enough.
    grown: u32,
    rested: Instant,
    /// When /dev/shm was full, if it is.
    full: Option<Instant>,
    /// A predecessor may have retired buckets that still have their memory.
    unfinished: bool,
    /// Free buckets with memory at the last looks, and when the last one was.
    free: VecDeque<u32>,
    looked: Instant,
}

impl Grower {
    /// `found`: the pool was there before.
    pub fn new(node: &Arc<Node>, found: bool) -> Grower {
        Grower {
            node: Arc::clone(node),
            grows: false,
            grown: 0,
            rested: Instant::now(),
            full: None,
            unfinished: found,
            free: VecDeque::new(),
            looked: Instant::now(),
        }
    }

    /// The grower's life.
    pub fn run(mut self) {
        let node = Arc::clone(&self.node);
        let wanted = &node.header().memory_wanted;
        // For those that gave up on a predecessor.
        node.post_room();
        while !node.stopping() {
            wanted.store(0, Ordering::SeqCst);
            if self.is_short() {
                self.grow();
                continue;
            }
            let pause = self.look_for_idle();
            futex::wait(wanted, 0, u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1));
        }
    }

    /// Whether to grow by another piece now.
    fn is_short(&mut self) -> bool {
        let segment = &self.node.segment;
        let free = segment.free_buckets(TierId::RAM).available();
        let marks = segment.spare_marks();
        let buckets = (AHEAD_MOST / segment.bucket_bytes() as u64) as u32;
        let most = buckets.min(segment.ram_buckets() / 8);
        if !self.grows && free < marks.start {
            if self.rested.elapsed() >= AGAIN.as_duration() {
                self.grown = 0;
            }
            self.grows = true;
        } else if self.grows && free >= ahead(self.grown, most).max(marks.end) {
            self.grows = false;
            self.rested = Instant::now();
        }
        let may_grow = match self.full {
            None => segment.growable() > 0,
            Some(since) => since.elapsed() > RETRY.as_duration(),
        };
        self.grows && may_grow
    }

    fn grow(&mut self) {
        let node = &self.node;
        let segment = &node.segment;
        let mib = |buckets: u32| (u64::from(buckets) * segment.bucket_bytes() as u64) >> 20;
        self.free.clear();
        match node.memory.grow(segment, node.pool_file.as_fd(), PIECE) {
            Ok(grown) => {
                self.grown = self.grown.saturating_add(grown);
                if self.full.take().is_some() {
                    segment.set_ram_limit(segment.ram_buckets());
                    info!("the RAM tier grows again: /dev/shm has room");
                }
            }
            Err(errno) => {
                segment.set_ram_limit(segment.backed());
                if self.full.replace(Instant::now()).is_none() {
                    eprintln!(
                        "the RAM tier stays at {} MiB of {} MiB: /dev/shm: {errno}",
                        mib(segment.backed()),
                        mib(segment.ram_buckets()),
                    );
                }
            }
        }
        // Those that wait for memory must wait for room now where there is none.
        node.post_room();
    }

    /// Gives some memory back that has been idle for long. Returns how long nothing is to be done.
    fn look_for_idle(&mut self) -> Duration {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let after = node.config.placement.give_back;
        let retry = if self.full.is_some() { RETRY } else { FOR_EVER }.as_duration();
        let marks = segment.spare_marks();
        if after.is_zero() || segment.backed() <= marks.end && !self.unfinished {
            return retry;
        }
        let tick = after / LOOKS;
        let rest = tick.saturating_sub(self.looked.elapsed());
        if !rest.is_zero() {
            return rest.min(retry);
        }
        self.looked = Instant::now();
        if self.unfinished {
            self.unfinished = !node.memory.finish(segment, node.pool_file.as_fd());
        }
        let free = segment.free_buckets(TierId::RAM).available();
        if free <= marks.end {
            // What is in use now may become free without a word.
            self.free.clear();
            return after.min(retry);
        }
        self.free.push_back(free);
        if self.free.len() > LOOKS as usize {
            self.free.pop_front();
            let least = self.free.iter().copied().min().unwrap_or(0);
            let idle = least.saturating_sub(marks.end);
            let step_min = (STEP_MIN / segment.bucket_bytes() as u64) as u32;
            let step = idle.min(step_min.max(idle / 2));
            let given = node.memory.shrink(segment, node.pool_file.as_fd(), step);
            self.free.iter_mut().for_each(|seen| *seen = seen.saturating_sub(given));
        }
        tick.min(retry)
    }
}

/// Free buckets with memory that are enough for writers who took all but them of `grown`; `most`
/// are in any case.
fn ahead(grown: u32, most: u32) -> u32 {
    (grown / VAIN).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_what_was_grown_is_ahead_at_most() {
        assert_eq!([0, 2, 3, 300, 3000].map(|grown| ahead(grown, 512)), [0, 0, 1, 100, 512]);
    }
}
