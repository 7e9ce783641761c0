//! Which blocks that only the store has are worth a bucket when they are read: those whose reads
//! have cost, beside what RAM would have cost, half of what it takes to bring them up, or will have
//! by the end of the block.
//!
//! That is the rule of renting and buying: whatever a program does, it pays at most three times
//! what it would have paid with foresight, and a scan pays nothing. What the kernel has in memory
//! costs a call more than RAM and is left where it is; what comes from a device costs its latency.
//! Where nothing has to leave for the block, and each read of it waits for the store, the read at
//! hand counts as well: the first one brings a block of which it wants half.
//! See docs/design/organizer.md for the arithmetic.
//!
//! ```
//! use forebay_placement::admission::{Origin, Part, Room, Trail, Verdict};
//! use forebay_placement::cost::Pace;
//!
//! let slow = || Pace { read_ns: 2.0, latency_ns: 1e6, ..Pace::default() };
//! let part =
//!     Part { within: 40_960, bytes: 4096, stored: 262_144, block: 262_144, is_uncached: false };
//! let key = 77_u16;
//! let never = Trail::default();
//! assert_eq!(never.admits(key, &part, Room::Much, slow), Verdict::Through);
//! // Once from a device, in a millisecond: the next reader brings the block.
//! let once = never.after(key, &part, Origin::Device, 1_008_192);
//! assert_eq!(once.admits(key, &part, Room::Some, slow), Verdict::Again);
//! // Once from the kernel's memory: it stays there.
//! let cached = never.after(key, &part, Origin::Memory, 0);
//! assert_eq!(cached.admits(key, &part, Room::Much, slow), Verdict::Through);
//! ```

use crate::cost::Pace;

/// Nanoseconds that a call to the kernel takes beside the copy that a read from RAM is as well.
const CALL_NS: u64 = 350;
/// Nanoseconds that it takes to copy a byte into a bucket: the copy, the pages of the bucket that
/// are mapped for it, and its entry in the index.
const COPY_NS: f64 = 0.2;
/// A read that took no longer than so many nanoseconds and [`MEMORY_NS`] for each byte found its
/// bytes in memory. Four times what the slowest memory takes, a third of the fastest device.
const MEMORY_CALL_NS: u64 = 20_000;
/// See [`MEMORY_CALL_NS`].
const MEMORY_NS: f64 = 0.25;
/// Reads of so many bytes of a block that is in the kernel's memory are not even noted: their calls
/// would cost as much as staging after eighty passes over the file.
const LARGE: u64 = 16 << 10;
/// How many times as long as a copy it has to take to read a block from the store, so that the
/// first read of it may bring it.
const SLOW: f64 = 8.0;

/// Where the bytes of a read were that went through to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the memory of this node: the kernel has a copy.
    Memory,
    /// On a device, or on another node.
    Device,
}

impl Origin {
    /// Tells from the time that it took, where the kernel does not say.
    pub fn of(bytes: u64, took_ns: u64) -> Origin {
        match took_ns <= MEMORY_CALL_NS + (bytes as f64 * MEMORY_NS) as u64 {
            true => Origin::Memory,
            false => Origin::Device,
        }
    }
}

/// How much room the fastest tier has for blocks that are only copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Half of its low mark or less: writers want it.
    None,
    /// More; older copies leave for newer ones.
    Some,
    /// The same, but [`keeps_read`](crate::leave::keeps_read) says that the tier below takes what
    /// leaves.
    Below,
    /// A quarter of it: nothing leaves.
    Much,
}

impl Room {
    /// The room of a tier with so many free buckets, a low mark, and so many in all; `below` is
    /// asked whether the tier below takes what leaves. Below the low mark older copies are on their
    /// way down or out already.
    pub fn of(free: u32, low: u32, buckets: u32, below: impl FnOnce() -> bool) -> Room {
        match free {
            free if free <= low / 2 => Room::None,
            free if free > buckets / 4 => Room::Much,
            _ if below() => Room::Below,
            _ => Room::Some,
        }
    }
}

/// What becomes of a read of a block that no tier has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes through to the store.
    Through,
    /// It brings the block, of which nothing is known but this pass over it.
    First,
    /// It brings the block, which has been read before.
    Again,
}

/// The part of a block that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the block it begins.
    pub within: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of the block that the store has.
    pub stored: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Every read of it waits for the store: the kernel keeps no copy that counts.
    pub is_uncached: bool,
}

/// What reads of one block have cost because it was not in RAM, in a word; 0 is nothing.
///
/// ```text
/// 63       48 47      40 39    38  37 36                  0
/// +----------+----------+------+------+-------------------+
/// | whose    | end      |device| runs | lost, nanoseconds |
/// +----------+----------+------+------+-------------------+
/// ```
///
/// `end` says where the last read ended, `device` that one of them came from a device, `runs` how
/// many of the last, up to three, went on where the one before had ended. Blocks share
/// words: a read of another one begins anew, so that there are as many trails as buckets, and what
/// comes again only after more blocks than the tiers have is not remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail(pub u64);

const KEY_SHIFT: u32 = 48;
const END_SHIFT: u32 = 40;
const DEVICE: u64 = 1 << 39;
const RUNS_SHIFT: u32 = 37;
const RUNS_MAX: u64 = 3;
const LOST_MAX: u64 = (1 << RUNS_SHIFT) - 1;
/// Reads in a row after which the rest of a block in memory is taken to be read so, too: of reads
/// of 4 KiB at random one in 64 goes on where the last one ended.
const RUNS: u64 = RUNS_MAX;

impl Trail {
    /// Whether a read is to be noted at all.
    pub fn notes(part: &Part, origin: Origin) -> bool {
        origin == Origin::Device || part.bytes < LARGE
    }

    /// The trail when a part of the block of this key (16 bits) was read from the store. From a
    /// device that took `took_ns`.
    pub fn after(self, key: u16, part: &Part, origin: Origin, took_ns: u64) -> Trail {
        let before = if self.is_of(key) { self.0 } else { 0 };
        let (device, more) = match origin {
            Origin::Memory => (0, CALL_NS),
            Origin::Device => (DEVICE, took_ns),
        };
        let lost = (before & LOST_MAX).saturating_add(more).min(LOST_MAX);
        let goes_on = before != 0 && Trail(before).ends_at(part.within);
        let runs = if goes_on { (Trail(before).runs() + 1).min(RUNS_MAX) } else { 0 };
        let place = u64::from(key) << KEY_SHIFT | place(part.within + part.bytes) << END_SHIFT;
        Trail(place | before & DEVICE | device | runs << RUNS_SHIFT | lost)
    }

    /// Whether the block is to be brought up for this read of it, which no tier has; `store` says
    /// how fast the device is. What is in memory anyway displaces nothing.
    pub fn admits(
        self,
        key: u16,
        part: &Part,
        room: Room,
        store: impl FnOnce() -> Pace,
    ) -> Verdict {
        let known = if self.is_of(key) { self } else { Trail::default() };
        let (lost, from_device) = (known.0 & LOST_MAX, known.0 & DEVICE != 0 || part.is_uncached);
        let least = if from_device { Room::Some } else { Room::Much };
        let is_first = part.is_uncached && room >= Room::Below;
        if lost == 0 && !is_first || part.bytes == 0 || room < least {
            return Verdict::Through;
        }
        // Reads that go on where the last one ended will go on to the end of the block.
        let left = part.stored.saturating_sub(part.within);
        let goes_on = lost > 0 && known.ends_at(part.within);
        let follows = goes_on && (from_device || known.runs() >= RUNS);
        let calls = if follows { left / part.bytes } else { 0 };
        let (stage, each, at_hand) = if from_device {
            let store = store();
            // What is taken for the latency is at most what a read has been seen to take.
            let seen = if lost > 0 { lost as f64 } else { f64::INFINITY };
            let store = Pace { latency_ns: store.latency_ns.min(seen), ..store };
            let (whole, each) = (store.reading(part.stored), store.reading(part.bytes));
            let copy = part.stored as f64 * COPY_NS;
            let counts = is_first && whole >= SLOW * copy;
            (whole + copy, each, if counts { each } else { 0.0 })
        } else {
            // A bucket for a small file is as dear as one for a block of a large one.
            (part.block as f64 * COPY_NS, CALL_NS as f64, 0.0)
        };
        match 2.0 * (lost as f64 + at_hand + calls as f64 * each) >= stage {
            false => Verdict::Through,
            true if lost == 0 || goes_on => Verdict::First,
            true => Verdict::Again,
        }
    }

    /// Whether a read of the block of this key has waited for a device.
    pub fn is_from_device(self, key: u16) -> bool {
        self.is_of(key) && self.0 & DEVICE != 0
    }

    fn ends_at(self, within: u64) -> bool {
        self.0 >> END_SHIFT & 0xff == place(within)
    }

    fn runs(self) -> u64 {
        self.0 >> RUNS_SHIFT & RUNS_MAX
    }

    fn is_of(self, key: u16) -> bool {
        self.0 >> KEY_SHIFT == u64::from(key)
    }
}

/// Eight bits that tell places in a block apart.
fn place(within: u64) -> u64 {
    within.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    const BLOCK: u64 = 256 << 10;
    const KEY: u16 = 4711;

    fn part(within: u64, bytes: u64) -> Part {
        Part { within, bytes, stored: BLOCK, block: BLOCK, is_uncached: false }
    }

    fn device() -> Pace {
        Pace { read_ns: 2.0, latency_ns: 1e6, ..Pace::default() }
    }

    fn took(bytes: u64) -> u64 {
        (1e6 + bytes as f64 * 2.0) as u64
    }

    fn brings(
        trail: Trail,
        key: u16,
        part: &Part,
        room: Room,
        store: impl FnOnce() -> Pace,
    ) -> bool {
        trail.admits(key, part, room, store) != Verdict::Through
    }

    /// Reads parts until one is admitted; returns how many went through, and what they have lost.
    fn through(parts: impl Iterator<Item = Part>, origin: Origin) -> (usize, u64) {
        let (mut trail, mut count) = (Trail::default(), 0);
        for part in parts {
            if brings(trail, KEY, &part, Room::Much, device) {
                break;
            }
            if Trail::notes(&part, origin) {
                trail = trail.after(KEY, &part, origin, took(part.bytes));
            }
            count += 1;
        }
        (count, trail.0 & LOST_MAX)
    }

    #[test]
    fn a_scan_of_what_is_in_memory_stages_nothing() {
        for bytes in [4096, 8192, 65_536, BLOCK] {
            let parts = (0..BLOCK / bytes).map(|n| part(n * bytes, bytes));
            assert_eq!(through(parts, Origin::Memory).0, (BLOCK / bytes) as usize, "{bytes}");
        }
    }

    #[test]
    fn tiny_reads_in_a_row_are_worth_a_copy_after_four() {
        for bytes in [1, 64, 1000, 2048] {
            let parts = (0..BLOCK / bytes).map(|n| part(n * bytes, bytes));
            assert_eq!(through(parts, Origin::Memory).0, 4, "{bytes}");
        }
    }

    #[test]
    fn what_is_lost_in_memory_is_at_most_half_of_a_copy() {
        let parts = (0..10_000).map(|n| part(mix(n) % 64 * 4096, 4096));
        let (count, lost) = through(parts, Origin::Memory);
        let copy = BLOCK as f64 * COPY_NS;
        assert!((20..=75).contains(&count) && 2 * lost <= copy as u64 + 2 * CALL_NS, "{count}");
        let large = (0..100_000).map(|_| part(0, BLOCK));
        assert_eq!(through(large, Origin::Memory).0, 100_000, "a copy would gain nothing");
    }

    #[test]
    fn the_second_touch_of_what_a_device_has_brings_it() {
        for bytes in [4096, 65_536, BLOCK] {
            let parts = (0..10).map(|n| part(n * 77_777 % (BLOCK - bytes + 1), bytes));
            assert!(through(parts, Origin::Device).0 <= 2, "{bytes}");
        }
        let slow = |within| part(within, 4096);
        let once = Trail::default().after(KEY, &slow(0), Origin::Device, took(4096));
        assert!(brings(once, KEY, &slow(4096), Room::Much, device), "it follows");
        assert!(!brings(Trail::default(), KEY, &slow(0), Room::Much, device), "the first never");
    }

    #[test]
    fn a_device_whose_latency_is_overestimated_is_believed_what_it_took() {
        let guess = || Pace { read_ns: 2.0, latency_ns: 5e6, ..Pace::default() };
        let once = Trail::default().after(KEY, &part(0, 4096), Origin::Device, 642_000);
        assert!(brings(once, KEY, &part(131_072, 4096), Room::Much, guess));
        let fast = Trail::default().after(KEY, &part(0, 4096), Origin::Device, 80_000);
        assert!(
            !brings(fast, KEY, &part(131_072, 4096), Room::Much, guess),
            "read once, on a fast device"
        );
    }

    #[test]
    fn copies_of_what_is_in_memory_displace_nothing() {
        let room = |below| move |free| Room::of(free, 10, 100, || below);
        let rooms = [5, 6, 25, 26].map(room(false));
        assert_eq!(rooms, [Room::None, Room::Some, Room::Some, Room::Much]);
        assert_eq!([5, 6, 26].map(room(true)), [Room::None, Room::Below, Room::Much]);
        for (origin, answers) in [
            (Origin::Memory, [false, false, false, true]),
            (Origin::Device, [false, true, true, true]),
        ] {
            let next = part(256, 64);
            let trail = (0..4).fold(Trail::default(), |trail, n| {
                trail.after(KEY, &part(n * 64, 64), origin, took(BLOCK))
            });
            assert_eq!(rooms.map(|room| brings(trail, KEY, &next, room, device)), answers);
        }
    }

    #[test]
    fn the_first_read_brings_what_displaces_nothing_if_it_wants_much_of_it() {
        let first = |part: Part, room, store: fn() -> Pace| {
            Trail::default().admits(KEY, &Part { is_uncached: true, ..part }, room, store)
        };
        let cases = [(Room::None, false), (Room::Some, false), (Room::Below, true)];
        for (room, brings) in [&cases[..], &[(Room::Much, true)]].concat() {
            let verdict = if brings { Verdict::First } else { Verdict::Through };
            assert_eq!(first(part(0, BLOCK), room, device), verdict, "{room:?}");
        }
        // A read of 4 KiB takes a millisecond, one of the block 1.5.
        assert_eq!(first(part(0, 4096), Room::Much, device), Verdict::First);
        let far = || Pace { read_ns: 20.0, latency_ns: 1e6, ..Pace::default() };
        assert_eq!(first(part(0, 4096), Room::Much, far), Verdict::Through);
        assert_eq!(first(part(0, BLOCK / 2), Room::Much, far), Verdict::First);
        let fast = || Pace { read_ns: 1.0, latency_ns: 1e5, ..Pace::default() };
        assert_eq!(first(part(0, BLOCK), Room::Much, fast), Verdict::Through, "a copy costs");
        let cached = Trail::default().admits(KEY, &part(0, BLOCK), Room::Much, device);
        assert_eq!(cached, Verdict::Through, "the kernel has a copy of it since");
    }

    #[test]
    fn what_was_read_in_an_earlier_pass_is_read_again() {
        let slow = |within, bytes| Part { is_uncached: true, ..part(within, bytes) };
        let trail = Trail::default().after(KEY, &slow(0, 4096), Origin::Device, took(4096));
        let next = trail.admits(KEY, &slow(4096, 4096), Room::Some, device);
        assert_eq!(next, Verdict::First, "the same pass goes on");
        let again = trail.admits(KEY, &slow(0, 4096), Room::Some, device);
        assert_eq!(again, Verdict::Again);
    }

    #[test]
    fn another_block_begins_anew() {
        let trail = Trail::default().after(KEY, &part(0, BLOCK), Origin::Device, 5_000_000);
        assert!(brings(trail, KEY, &part(0, BLOCK), Room::Much, device));
        assert!(!brings(trail, KEY + 1, &part(0, BLOCK), Room::Much, device));
        let other = trail.after(KEY + 1, &part(0, 64), Origin::Memory, 0);
        assert_eq!(other.0 & (LOST_MAX | DEVICE), CALL_NS);
    }

    #[test]
    fn the_time_tells_memory_from_devices() {
        assert_eq!(Origin::of(4096, 1_200), Origin::Memory);
        assert_eq!(Origin::of(4096, 60_000), Origin::Device);
        assert_eq!(Origin::of(1 << 20, 200_000), Origin::Memory);
        assert_eq!(Origin::of(1 << 20, 1_000_000), Origin::Device);
    }

    #[test]
    fn nothing_overflows() {
        let extremes = [0, 1, 4096, BLOCK, u64::MAX / 4];
        let mut trail = Trail::default();
        for n in 0..20_000 {
            let pick = |n: u64| extremes[(mix(n) % 5) as usize];
            let part = part(pick(n), pick(n + 1_000_000));
            brings(trail, KEY, &part, Room::Much, device);
            trail = trail.after(KEY, &part, Origin::Device, pick(n + 2_000_000));
            assert!(trail.is_of(KEY));
        }
    }
}
