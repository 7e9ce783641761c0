//! How far to look ahead.

use crate::cost::Pace;

/// Requests that are under way at the same time: while one waits for the device's latency, others
/// move bytes.
pub const UNDER_WAY: u64 = 4;
/// The most blocks that are looked ahead: 256 MiB.
pub const DEPTH_MAX: u64 = 1024;
/// The most blocks that are read at once.
const BATCH_MAX: u64 = 16;
/// Nanoseconds that a request takes at least, so that its bytes count and not its overhead.
const BATCH_NS: f64 = 4e6;
/// How much further than the arithmetic says, for what it does not know of.
const MARGIN: f64 = 2.0;
/// The weight of the latest reading in [`Consumption`].
const LATEST: f64 = 0.125;

/// Blocks that are read at once: as many as take as long as the latency, so that it is hidden by
/// one other request.
pub fn batch(source: &Pace, block_bytes: u64) -> u64 {
    let block_ns = (source.read_ns * block_bytes as f64).max(1.0);
    ((source.latency_ns.max(BATCH_NS) / block_ns) as u64).clamp(1, BATCH_MAX)
}

/// How many blocks ahead of a reader are to be asked for: twice what it reads between the moment at
/// which a block is asked for and that at which it is there. That takes, behind the other requests
/// under way, one latency and [`UNDER_WAY`] batches. Of a reader that is faster than the source
/// ([`Consumption::byte_ns`] of 0 is one that is not known) no more than the source has by then.
/// `room` is how many blocks the fastest tier has room for: half of them.
///
/// ```
/// use forebay_placement::cost::Pace;
/// use forebay_placement::prefetch::depth;
///
/// // 200 MB/s and 1 ms: batches of 3 blocks, so 2 x (1 ms + 4 x 3.9 ms) at 1.3 ms a block.
/// let store = Pace { read_ns: 5.0, latency_ns: 1e6, ..Pace::default() };
/// assert_eq!(depth(&store, 0.0, 256 << 10, 10_000), 26);
/// // A program that takes 10 ms for each block needs little.
/// assert_eq!(depth(&store, 40.0, 256 << 10, 10_000), 4);
/// ```
pub fn depth(source: &Pace, reader_byte_ns: f64, block_bytes: u64, room: u64) -> u64 {
    let block = block_bytes as f64;
    let lead_ns = source.latency_ns
        + (UNDER_WAY * batch(source, block_bytes)) as f64 * block * source.read_ns;
    let block_ns = (reader_byte_ns.max(source.read_ns) * block).max(1.0);
    ((MARGIN * lead_ns / block_ns).ceil() as u64).clamp(2, DEPTH_MAX).min(room / 2)
}

/// Blocks behind a reader that are left alone: it may be reading them still.
pub const KEPT: u64 = 4;

/// For how many blocks the fastest tier has room that one of `readers` is looked ahead of: its part
/// of `free`, the blocks there above the low mark, and what it has `left` behind, which makes room
/// for its next ones but for the last [`KEPT`]; no more than its part of `capacity`, all blocks
/// that may be there.
///
/// ```
/// use forebay_placement::prefetch::room;
///
/// assert_eq!(room(1000, 1000, 1, 0), 996);
/// assert_eq!(room(0, 1000, 1, 10), 6, "what it has read makes room");
/// assert_eq!(room(0, 1000, 10, 5000), 96, "others have theirs");
/// assert_eq!(room(0, 32, 8, 5000), 0, "none is better than those of others");
/// ```
pub fn room(free: u64, capacity: u64, readers: u64, left: u64) -> u64 {
    let readers = readers.max(1);
    let part = (capacity / readers).saturating_sub(KEPT);
    (free / readers).saturating_add(left.saturating_sub(KEPT)).min(part)
}

/// How fast a reader takes what it need not wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Consumption {
    byte_ns: f64,
    last_ns: u64,
    /// Bytes of the last read, if they did not have to be waited for.
    last_bytes: u64,
}

impl Consumption {
    /// A read of `bytes` is over, at `now_ns` of any clock that goes on; whether it had to wait for
    /// a lower tier. The time between two that had not counts.
    pub fn on_read(&mut self, bytes: u64, waited: bool, now_ns: u64) {
        if self.last_bytes > 0 && !waited {
            let sample = now_ns.saturating_sub(self.last_ns) as f64 / self.last_bytes as f64;
            self.byte_ns = match self.byte_ns {
                0.0 => sample,
                known => known + (sample - known) * LATEST,
            };
        }
        (self.last_ns, self.last_bytes) = (now_ns, if waited { 0 } else { bytes });
    }

    /// Nanoseconds for each byte; 0: not known.
    pub fn byte_ns(&self) -> f64 {
        self.byte_ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Account, Limit, Predictor};
    use super::*;
    use std::collections::{HashMap, VecDeque};

    const BLOCK: u64 = 256 << 10;

    /// A device on a virtual clock, with [`UNDER_WAY`] threads that bring up what is asked for, and
    /// a reader that takes `reader_ns` for each block. Returns the share of the blocks, after the
    /// first `warm`, that were there when they were read, and the time that they took over that of
    /// the device alone.
    fn run(
        source: Pace,
        reader_ns: f64,
        blocks: impl Iterator<Item = u64>,
        warm: usize,
    ) -> (f64, f64) {
        let block_ns = source.read_ns * BLOCK as f64;
        let (mut now, mut device_free) = (0.0_f64, 0.0_f64);
        let mut threads = [0.0_f64; UNDER_WAY as usize];
        let mut queue: VecDeque<(f64, VecDeque<u64>)> = VecDeque::new();
        let mut there: HashMap<u64, f64> = HashMap::new();
        let mut reader = Predictor::default();
        let mut consumption = Consumption::default();
        let account = Account::default();
        let (mut hits, mut count, mut begun) = (0, 0, 0.0);
        let size = batch(&source, BLOCK) as usize;
        for block in blocks {
            // What the threads have begun by now.
            loop {
                let thread = (0..threads.len()).min_by(|&a, &b| threads[a].total_cmp(&threads[b]));
                let thread = thread.unwrap();
                let Some(&(asked, _)) = queue.front() else { break };
                let begin = threads[thread].max(asked);
                if begin > now {
                    break;
                }
                // Requests that have come by then are one batch.
                let mut taken = Vec::new();
                while taken.len() < size
                    && let Some((asked, wanted)) = queue.front_mut()
                    && *asked <= begin
                {
                    taken.extend(wanted.drain(..(size - taken.len()).min(wanted.len())));
                    if wanted.is_empty() {
                        queue.pop_front();
                    }
                }
                let taken: Vec<_> = taken.into_iter().filter(|b| !there.contains_key(b)).collect();
                device_free = device_free.max(begin) + block_ns * taken.len() as f64;
                threads[thread] = device_free + source.latency_ns;
                there.extend(taken.into_iter().map(|block| (block, threads[thread])));
            }
            let is_up = there.contains_key(&block);
            let waited = match there.get(&block) {
                Some(&at) => {
                    let waited = at > now;
                    now = now.max(at);
                    waited
                }
                None => {
                    device_free = device_free.max(now) + block_ns;
                    now = device_free + source.latency_ns;
                    there.insert(block, now);
                    true
                }
            };
            if count == warm {
                begun = now;
            }
            count += 1;
            hits += usize::from(count > warm && !waited);
            let touched = reader.on_touch(block * BLOCK, BLOCK, is_up, BLOCK);
            account.was_used(touched.used * BLOCK);
            account.was_read(touched.blocks * BLOCK);
            consumption.on_read(BLOCK, waited, now as u64);
            let depth = depth(&source, consumption.byte_ns(), BLOCK, 4096);
            while let Some(ahead) =
                reader.ask(Limit { depth, more: account.balance() / BLOCK }, BLOCK)
            {
                let blocks =
                    ahead.pieces().flat_map(|(at, bytes)| at / BLOCK..=(at + bytes - 1) / BLOCK);
                let blocks: VecDeque<u64> = blocks.filter(|b| !there.contains_key(b)).collect();
                reader.charge(account.take(blocks.len() as u64 * BLOCK) / BLOCK);
                queue.push_back((now, blocks));
            }
            now += reader_ns;
        }
        let counted = (count - warm) as f64;
        (hits as f64 / counted, (now - begun) / (counted * block_ns))
    }

    fn sources() -> impl Iterator<Item = Pace> {
        let speeds = [50e6, 500e6, 2e9];
        let latencies = [100e3, 4e6];
        speeds.into_iter().flat_map(move |speed| {
            latencies.map(|latency_ns| Pace { read_ns: 1e9 / speed, latency_ns, ..Pace::default() })
        })
    }

    fn patterns() -> [(&'static str, Box<dyn Iterator<Item = u64>>); 4] {
        [
            ("forwards", Box::new(0..)),
            ("backwards", Box::new((0..1 << 30).rev())),
            ("stride", Box::new((0..).map(|n| n * 7))),
            ("tile", Box::new((0..).flat_map(|row| (0..20).map(move |n| row * 1000 + n * 3)))),
        ]
    }

    /// Blocks after which the account allows the depth, which is at most a twentieth of them.
    fn warm(source: &Pace) -> usize {
        20 * depth(source, 0.0, BLOCK, 4096) as usize
    }

    #[test]
    fn a_reader_that_is_slower_than_its_source_does_not_wait_for_it() {
        for source in sources() {
            for share in [0.3, 0.9] {
                let reader_ns = source.read_ns * BLOCK as f64 / share;
                for (name, blocks) in patterns() {
                    let warm = warm(&source);
                    let (hits, _) = run(source, reader_ns, blocks.take(warm + 1000), warm);
                    assert!(hits >= 0.95, "{name} at {share} of {source:?}: {hits}");
                }
            }
        }
    }

    #[test]
    fn a_reader_that_is_faster_takes_as_long_as_the_source() {
        for source in sources() {
            let reader_ns = source.read_ns * BLOCK as f64 / 10.0;
            for (name, blocks) in patterns() {
                let warm = warm(&source);
                let (_, time) = run(source, reader_ns, blocks.take(warm + 1000), warm);
                assert!(time <= 1.05, "{name} from {source:?}: {time}");
            }
        }
    }

    #[test]
    fn what_had_to_be_waited_for_does_not_count_as_consumption() {
        let mut consumption = Consumption::default();
        for n in 0..100 {
            consumption.on_read(1000, false, n * 5_000);
        }
        assert_eq!(consumption.byte_ns(), 5.0);
        consumption.on_read(1000, true, 500_000);
        let known = consumption.byte_ns();
        consumption.on_read(1000, false, 900_000_000);
        assert_eq!(consumption.byte_ns(), known);
    }

    #[test]
    fn depth_is_within_the_room() {
        let slow = Pace { read_ns: 1e6, latency_ns: 1e12, ..Pace::default() };
        assert_eq!(depth(&slow, 0.0, BLOCK, 10), 5);
        assert_eq!(depth(&Pace::default(), f64::INFINITY, BLOCK, 10), 2);
        assert_eq!(depth(&Pace::default(), f64::NAN, BLOCK, 0), 0);
        let far = Pace { read_ns: 0.01, latency_ns: 1e12, ..Pace::default() };
        assert_eq!(depth(&far, 0.0, BLOCK, u64::MAX), DEPTH_MAX);
    }
}
