//! Where a new block goes: the placement engine (Hermes section 3.2.2), asked by the program
//! itself.

use crate::later::{Later, Zeros};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_device::Direction;
use forebay_placement::collective::{Device, Link, Network};
use forebay_placement::hotness::Score;
use forebay_placement::schema::Settings;
use forebay_placement::{
    Destination, Hierarchy, Memo, Piece, Place, PolicyId, Request, TierSnapshot,
};
use forebay_pool::Segment;
use forebay_pool::layout::*;

/// Decisions of each policy that a process remembers.
const REMEMBERED: usize = 16;

/// The policies with what they remember, for one process. A thread that finds them in use decides
/// without them: it may be a signal handler that interrupted their user.
pub(crate) struct Engine {
    busy: AtomicBool,
    /// 0 of one that remembers nothing.
    granularity: u64,
    memos: Later<Memos>,
}

/// What each policy remembers, if it was asked anything.
struct Memos([UnsafeCell<Remembered>; PolicyId::COUNT]);

struct Remembered {
    is_made: bool,
    memo: MaybeUninit<Memo<&'static mut [Place]>>,
    places: [MaybeUninit<Place>; REMEMBERED],
}

// SAFETY: they are touched only by the thread that set `busy`.
unsafe impl Sync for Memos {}
// SAFETY: zeros say that nothing is made.
unsafe impl Zeros for Memos {}

impl Remembered {
    /// What `policy` remembers.
    ///
    /// # Safety
    /// It stays where it is.
    unsafe fn memo(
        &mut self,
        policy: PolicyId,
        granularity: u64,
    ) -> &mut Memo<&'static mut [Place]> {
        if !self.is_made {
            for place in &mut self.places {
                place.write(Place::default());
            }
            // SAFETY: all of them were just written, they stay where they are, and nothing but this
            // memo uses them.
            let places = unsafe {
                core::slice::from_raw_parts_mut(self.places.as_mut_ptr().cast(), REMEMBERED)
            };
            self.memo.write(Memo::within(policy, granularity, places));
            self.is_made = true;
        }
        // SAFETY: it was made.
        unsafe { self.memo.assume_init_mut() }
    }
}

impl Engine {
    pub fn new(segment: &Segment) -> Engine {
        let granularity = segment.header().granularity.load(Ordering::Relaxed).max(1);
        Engine { busy: AtomicBool::new(false), granularity, memos: Later::new() }
    }

    /// One that remembers nothing.
    pub fn forgetful() -> Engine {
        Engine { busy: AtomicBool::new(false), granularity: 0, memos: Later::new() }
    }

    /// The first part of what is requested: where it goes, and what has to leave first.
    pub fn first(&self, policy: PolicyId, hierarchy: &Hierarchy, request: &Request) -> Piece {
        if self.busy.swap(true, Ordering::Acquire) {
            return policy.policy().plan(hierarchy, request).first_piece();
        }
        let memos = (self.granularity > 0).then(|| self.memos.get_or_make()).flatten();
        let plan = match memos.and_then(|memos| memos.0.get(usize::from(policy.number()))) {
            // SAFETY: see `busy`. It lies in a mapping of its own.
            Some(own) => unsafe {
                (*own.get()).memo(policy, self.granularity).plan(hierarchy, request)
            },
            None => policy.policy().plan(hierarchy, request),
        };
        self.busy.store(false, Ordering::Release);
        plan.first_piece()
    }

    /// In a forked child: a thread of the parent may have been deciding.
    pub fn forked(&self) {
        self.busy.store(false, Ordering::Release);
    }
}

/// The policy that places and moves the blocks of files whose rule sets this: the rule's, else the
/// configured one.
pub fn policy_of(segment: &Segment, settings: &Settings) -> PolicyId {
    let configured = segment.header().policy.load(Ordering::Relaxed) as u8;
    settings.policy.or_else(|| PolicyId::numbered(configured)).unwrap_or_default()
}

/// What the placement engine is asked about `bytes` more of a file whose rule sets this, and which
/// policy answers. A file without a record is new.
pub fn question(
    segment: &Segment,
    record: Option<&FileRecord>,
    settings: Settings,
    bytes: u64,
) -> (PolicyId, Request) {
    let own = policy_of(segment, &settings);
    let policy = match settings.tier {
        // A rule that names a tier leaves nothing to decide but what does not fit.
        Some(_) => PolicyId::named("user-defined").unwrap_or(own),
        None => own,
    };
    let request = Request {
        bytes: bytes.next_multiple_of(segment.bucket_bytes() as u64),
        priority: settings.priority,
        pinned: settings.tier.map(|tier| Destination::Tier(usize::from(tier))),
        fallback: own,
        ..record.map_or_else(Request::default, |record| about(segment, record))
    };
    (policy, request)
}

/// The hotness of a file now.
pub fn hotness_of(segment: &Segment, record: &FileRecord) -> f32 {
    let now = segment.header().now_ms.load(Ordering::Relaxed);
    let size = record.size.load(Ordering::Relaxed);
    let score = Score(record.hotness.load(Ordering::Relaxed));
    score.per_byte(now, segment.header().half_life_ms(), size, segment.bucket_bytes() as u64)
}

/// What is known of a file.
fn about(segment: &Segment, record: &FileRecord) -> Request {
    Request {
        file_bytes: record.size.load(Ordering::Relaxed),
        file_hotness: hotness_of(segment, record),
        dispersion: record.placed.load(Ordering::Relaxed) as u8,
        ..Request::default()
    }
}

/// The tiers as they are now, above store `store`.
pub fn hierarchy(segment: &Segment, store: usize) -> Hierarchy {
    let header = segment.header();
    let bucket = segment.bucket_bytes() as u64;
    let count = header.tiers as usize;
    let mut tiers = [TierSnapshot::default(); TIERS_MAX];
    for (id, snapshot) in TierId::all(count).zip(&mut tiers) {
        let tier = &header.tier[id];
        // What the store has is as good as free: it is dropped when a block needs its room.
        let (free, clean) = (segment.free_in(id), tier.clean.load(Ordering::Relaxed));
        // What is on its way there has its room.
        let free = free.saturating_sub(tier.bound.load(Ordering::Relaxed));
        let (free, clean) = if segment.is_sound(id) { (free, clean) } else { (0, 0) };
        // What is set aside for jobs they find themselves.
        let buckets = tier.buckets.saturating_sub(header.set_aside[id].load(Ordering::Relaxed));
        *snapshot = TierSnapshot {
            capacity: u64::from(buckets) * bucket,
            free: u64::from(free.saturating_add(clean).min(buckets)) * bucket,
            pinned: u64::from(tier.pinned.load(Ordering::Relaxed)) * bucket,
            coldest: f32::from_bits(tier.coldest.load(Ordering::Relaxed)),
            ..with_speed(&tier.speed)
        };
    }
    let store = TierSnapshot {
        capacity: u64::MAX,
        free: u64::MAX,
        ..with_speed(&header.store[store % STORES_MAX].speed)
    };
    let hierarchy = Hierarchy::new(&tiers[..count]).unwrap_or_default();
    hierarchy.with_store(store).with_costs(header.costs())
}

/// In steps of an eighth: small corrections are no reason to decide anew.
fn with_speed(speed: &DeviceSpeed) -> TierSnapshot {
    let in_steps = |number: &AtomicU64| {
        let number = number.load(Ordering::Relaxed);
        let step = number.checked_ilog2().map_or(0, |log| log.saturating_sub(3));
        number >> step << step
    };
    TierSnapshot {
        read_bandwidth: in_steps(&speed.read_bandwidth),
        write_bandwidth: in_steps(&speed.write_bandwidth),
        latency_ns: in_steps(&speed.latency_ns),
        ..TierSnapshot::default()
    }
}

/// One direction of a tier's or a store's device, for [`forebay_placement::collective`]; `None` if
/// its speed is not known. Other users of the device are not counted.
pub fn device_of(speed: &DeviceSpeed, direction: Direction) -> Option<Device> {
    let (bandwidth, seek_ns) = match direction {
        Direction::Read => (&speed.read_bandwidth, &speed.read_seek_ns),
        Direction::Write => (&speed.write_bandwidth, &speed.write_seek_ns),
    };
    let number = |number: &AtomicU64| number.load(Ordering::Relaxed) as f64;
    let device = Device {
        bandwidth: number(bandwidth),
        seek_s: number(seek_ns) / 1e9,
        latency_s: number(&speed.latency_ns) / 1e9,
    };
    device.known()
}

/// Messages between ranks of MPI programs, as far as the configuration says.
pub fn network_of(segment: &Segment) -> Network {
    let link = |speed: &LinkSpeed| match speed.bandwidth.load(Ordering::Relaxed) {
        0 => Link::default(),
        bandwidth => Link {
            start_s: speed.latency_ns.load(Ordering::Relaxed) as f64 / 1e9,
            byte_s: 1.0 / bandwidth as f64,
        },
    };
    let header = segment.header();
    Network { between: link(&header.between_nodes), within: link(&header.within_node) }
}
