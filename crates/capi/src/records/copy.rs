//! Copies between a buffer that was read ahead and the caller's memory, MLBS IV.A: through the
//! caches, past them (non-temporal), or past them by several threads. Which is faster depends on
//! machine and size, and on whether the source is still in a cache. Of copies that caches can hold
//! it is measured once, in some milliseconds; of larger ones it is learned from those that are
//! made.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::time::Instant;

/// Bytes of the least copy that may go past the caches, where the source is in memory, and where
/// it is in a cache. `usize::MAX`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub cold: usize,
    pub hot: usize,
}

/// What is measured: from sizes that caches hold to one that most second levels do not.
const SIZES: [usize; 3] = [256 << 10, 1 << 20, 4 << 20];
/// No more than this is measured: 20 ms in all.
const TIME_NS: u128 = 1_500_000;

/// Copies past the caches. False where the processor has no such way, and nothing was done.
///
/// # Safety
/// `bytes` bytes can be read at `from` and written at `to`; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past(from: *const u8, to: *mut u8, bytes: usize) -> bool {
    if !std::is_x86_feature_detected!("avx") {
        return false;
    }
    // SAFETY: as the caller says, and the processor has AVX.
    unsafe { with_avx(from, to, bytes) };
    true
}

/// There is no such way here.
///
/// # Safety
/// As the other one of this name.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past(_from: *const u8, _to: *mut u8, _bytes: usize) -> bool {
    false
}

/// Lines of 64 bytes that are not kept in a cache.
///
/// # Safety
/// As [`copy_past`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn with_avx(from: *const u8, to: *mut u8, bytes: usize) {
    use core::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    // SAFETY: head, lines and the rest are the bytes that the caller gives; `to` is aligned to a
    // line behind the head.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, low);
            _mm256_stream_si256(to.add(1), high);
        }
        let at = head + lines * LINE;
        core::ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes - at);
    }
    _mm_sfence();
}

/// The least time of some copies, in nanoseconds. The program reads what it was given: so does
/// each measurement, which makes copies past the cache pay for that.
fn time(from: &[u8], to: &mut [u8], is_past: bool, is_hot: bool, evict: &[u8]) -> u64 {
    let mut best = u64::MAX;
    let since = Instant::now();
    for turn in 0..5 {
        let mut kept = 0u64;
        if is_hot {
            kept += touch(from);
        } else {
            kept += touch(evict);
        }
        let start = Instant::now();
        if is_past {
            // SAFETY: two slices of one length.
            unsafe { copy_past(from.as_ptr(), to.as_mut_ptr(), from.len()) };
        } else {
            to.copy_from_slice(from);
        }
        kept += touch(to);
        best = best.min(start.elapsed().as_nanos() as u64);
        std::hint::black_box(kept);
        if turn > 0 && since.elapsed().as_nanos() > TIME_NS {
            break;
        }
    }
    best
}

/// Reads a byte of each line.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|&byte| u64::from(byte)).sum()
}

/// The least size from which copies past the caches are faster, by more than a tenth, in all
/// measurements from there on.
fn least(times: &[(usize, u64, u64)]) -> usize {
    let slower = times.iter().rposition(|&(_, through, past)| past * 11 > through * 10);
    let first = slower.map_or(0, |at| at + 1);
    times.get(first).map_or(usize::MAX, |&(size, _, _)| size)
}

fn measure() -> Limits {
    let none = Limits { cold: usize::MAX, hot: usize::MAX };
    // SAFETY: nothing is copied.
    if !unsafe { copy_past([].as_ptr(), [].as_mut_ptr(), 0) } {
        return none;
    }
    let largest = SIZES.into_iter().max().unwrap_or(0);
    let mut from = Vec::new();
    let mut to = Vec::new();
    if from.try_reserve_exact(2 * largest).is_err() || to.try_reserve_exact(largest).is_err() {
        return none;
    }
    from.resize(2 * largest, 1u8);
    to.resize(largest, 0u8);
    let (source, evict) = from.split_at(largest);
    let all = |is_hot: bool, to: &mut [u8]| {
        let one = |&size: &usize| {
            let (source, to) = (&source[..size], &mut to[..size]);
            let through = time(source, to, false, is_hot, evict);
            (size, through, time(source, to, true, is_hot, evict))
        };
        SIZES.iter().map(one).collect::<Vec<_>>()
    };
    Limits { cold: least(&all(false, &mut to)), hot: least(&all(true, &mut to)) }
}

static LIMITS: OnceLock<Limits> = OnceLock::new();

/// What this machine's copies are like; measured by the first caller.
pub(crate) fn limits() -> Limits {
    *LIMITS.get_or_init(measure)
}

/// Whether copies of so many bytes will need that, and it was not measured yet.
pub(crate) fn is_unknown(bytes: u64) -> bool {
    bytes >= SIZES[0] as u64 && LIMITS.get().is_none()
}

/// Copies from a buffer of this library to the caller's memory. `is_hot`: the source was written a
/// moment ago, and is in a cache as far as that holds it.
///
/// # Safety
/// `to` can be written as far as `from` goes, and is no part of it.
pub(crate) unsafe fn copy(from: &[u8], to: *mut u8, is_hot: bool) {
    let least = match from.len() < SIZES[0] {
        true => usize::MAX,
        false if is_hot => limits().hot,
        false => limits().cold,
    };
    // SAFETY: as the caller says.
    unsafe {
        if from.len() < least || !copy_past(from.as_ptr(), to, from.len()) {
            core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }
}

/// How a copy is made that no cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Through,
    Past,
    /// Past the caches, with helpers that have nothing else to do.
    Together,
}

const WAYS: [Way; 3] = [Way::Through, Way::Past, Way::Together];

/// After so many copies the ways that were slower are tried again.
const AGAIN: u32 = 64;

/// What the large copies of a container have shown.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    /// Picoseconds for each byte; 0 is not known. The newer count more.
    paces: [u64; 3],
    copies: u32,
}

impl Chooser {
    /// The way of the next copy; `can_share`: helpers are there.
    pub fn next(&mut self, can_share: bool) -> Way {
        self.copies = self.copies.wrapping_add(1);
        let count = if can_share { 3 } else { 2 };
        let ways = || WAYS.into_iter().zip(self.paces).take(count);
        if let Some((way, _)) = ways().find(|&(_, pace)| pace == 0) {
            return way;
        }
        let again = (self.copies / AGAIN) as usize % count;
        match ways().nth(again) {
            Some((way, _)) if self.copies.is_multiple_of(AGAIN) => way,
            _ => ways().min_by_key(|&(_, pace)| pace).map_or(Way::Through, |(way, _)| way),
        }
    }

    /// A copy was made.
    pub fn note(&mut self, way: Way, bytes: usize, nanoseconds: u64) {
        let pace = (nanoseconds.saturating_mul(1000) / (bytes.max(1) as u64)).max(1);
        if let Some(known) = self.paces.get_mut(way as usize) {
            *known = if *known == 0 { pace } else { (3 * *known + pace) / 4 };
        }
    }
}

/// Bytes that a thread copies at a time of a copy that several make.
const SHARE: usize = 2 << 20;

/// A copy that several threads make. The one that has begun it waits until all is done.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Addresses.
    from: usize,
    to: usize,
    bytes: usize,
    next: AtomicUsize,
    done: AtomicUsize,
}

impl Shared {
    /// # Safety
    /// As [`copy`], until [`Shared::is_done`].
    pub unsafe fn new(from: &[u8], to: *mut u8) -> Shared {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (to, bytes) = (to.expose_provenance(), from.len());
        Shared { from: from.as_ptr().expose_provenance(), to, bytes, next, done }
    }

    fn parts(&self) -> usize {
        self.bytes.div_ceil(SHARE)
    }

    /// Whether there is something for another thread to do.
    pub fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.parts()
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.parts()
    }

    /// Copies parts until none is left.
    pub fn work(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts() {
                return;
            }
            let at = part * SHARE;
            let bytes = SHARE.min(self.bytes - at);
            let from = core::ptr::with_exposed_provenance::<u8>(self.from + at);
            let to = core::ptr::with_exposed_provenance_mut::<u8>(self.to + at);
            // SAFETY: both are there until all parts are done, of which this is one.
            unsafe { past_or_through(from, to, bytes) };
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

/// Copies past the caches where the processor can.
///
/// # Safety
/// As [`copy_past`].
unsafe fn past_or_through(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller says.
    unsafe {
        if !copy_past(from, to, bytes) {
            core::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

/// Copies all by this thread.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_alone(from: &[u8], to: *mut u8, way: Way) {
    // SAFETY: as the caller says.
    unsafe {
        match way {
            Way::Through => core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()),
            Way::Past | Way::Together => past_or_through(from.as_ptr(), to, from.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_way_is_taken_and_the_others_are_tried_again() {
        let mut chooser = Chooser::default();
        let pace = |way| match way {
            Way::Through => 300,
            Way::Past => 200,
            Way::Together => 100,
        };
        let mut taken = [0; 3];
        for _ in 0..400 {
            let way = chooser.next(true);
            taken[way as usize] += 1;
            chooser.note(way, 1000, pace(way));
        }
        assert!(taken[2] >= 390 && taken[0] >= 2 && taken[1] >= 2, "{taken:?}");
        assert_eq!(chooser.next(false), Way::Past);
        // The machine has become another one.
        for _ in 0..400 {
            let way = chooser.next(true);
            chooser.note(way, 1000, if way == Way::Through { 50 } else { 400 });
        }
        assert_eq!(chooser.next(true), Way::Through);
    }

    #[test]
    fn threads_that_share_a_copy_make_each_part_once() {
        let from: Vec<u8> = (0..3 * SHARE + 777).map(|at| (at / 5) as u8).collect();
        let mut to = vec![0u8; from.len()];
        // SAFETY: both outlive the threads.
        let shared = unsafe { Shared::new(&from, to.as_mut_ptr()) };
        assert!(shared.has_more() && !shared.is_done());
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| shared.work())));
        });
        assert!(shared.is_done() && !shared.has_more());
        assert_eq!(to, from);
    }

    #[test]
    fn copies_past_the_caches_are_right_at_all_ends() {
        let from: Vec<u8> = (0..5000u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for start in [0, 1, 63] {
            for bytes in [0, 1, 31, 64, 100, 127, 128, 4096, 4900] {
                let mut to = vec![0xee; 5100];
                // SAFETY: within both.
                let done = unsafe {
                    copy_past(from.as_ptr().add(start), to.as_mut_ptr().add(start + 7), bytes)
                };
                if !done {
                    return;
                }
                let (at, end) = (start + 7, start + 7 + bytes);
                assert_eq!(to[at..end], from[start..start + bytes]);
                assert!(to[..at].iter().chain(&to[end..]).all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn the_limit_is_where_all_larger_ones_gain() {
        assert_eq!(least(&[(1, 100, 100), (2, 100, 50), (3, 100, 80)]), 2);
        assert_eq!(least(&[(1, 100, 50), (2, 100, 95), (3, 100, 80)]), 3);
        assert_eq!(least(&[(1, 100, 50), (2, 100, 200)]), usize::MAX);
        assert_eq!(least(&[(1, 100, 50)]), 1);
    }

    #[test]
    fn both_ways_give_the_same_bytes() {
        let from: Vec<u8> = (0..1u32 << 20).map(|at| (at / 3) as u8).collect();
        for is_hot in [true, false] {
            let mut to = vec![0; from.len()];
            // SAFETY: of one length.
            unsafe { copy(&from, to.as_mut_ptr(), is_hot) };
            assert_eq!(to, from);
        }
    }
}
