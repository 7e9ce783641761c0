//! Measuring a device through its batches: what the system profiler runs.
//!
//! ```
//! use forebay_tiers::measure::{Buffer, Order, Probe};
//! use forebay_device::{Direction, StoreFile};
//! use forebay_tiers::Null;
//! use std::time::Duration;
//!
//! let probe =
//!     Probe { order: Order::Sequential, direction: Direction::Read, bytes: 4096, at_once: 4 };
//! let buffer = Buffer::new(4 * 4096);
//! let time = Duration::from_millis(1);
//! let sample = probe.run(&mut Null, StoreFile::NONE, 1 << 20, &buffer, time).unwrap();
//! assert!(sample.bytes >= 4 * 4096);
//! ```

use forebay_device::{Batch, Direction, Errno, Span, StoreFile, Transfer};
use forebay_placement::Random;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::time::{Duration, Instant};

/// Direct I/O wants memory and offsets that are multiples of the device's block, at most this.
const ALIGNMENT: usize = 4096;

/// In which order the parts of a file are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other, from the beginning again after the end.
    Sequential,
    /// Anywhere.
    Random,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// In which order.
    pub order: Order,
    /// Which way.
    pub direction: Direction,
    /// Bytes of a request, a multiple of 4096.
    pub bytes: usize,
    /// Requests at once.
    pub at_once: usize,
}

/// What one run of a probe found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Bytes per second of all requests together.
    pub bandwidth: f64,
    /// Nanoseconds of a round of requests at once: the median.
    pub round_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Memory for requests, filled with bytes that no file system can compress.
pub struct Buffer {
    base: *mut u8,
    layout: Layout,
}

impl Buffer {
    /// A buffer of so many bytes, at least one.
    pub fn new(bytes: usize) -> Buffer {
        let layout = Layout::from_size_align(bytes.max(ALIGNMENT), ALIGNMENT)
            .expect("requests are far smaller than the address space");
        // SAFETY: not of size zero.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
        for at in (0..layout.size() / 8 * 8).step_by(8) {
            // SAFETY: within the allocation, and aligned.
            unsafe { base.add(at).cast::<u64>().write(random.next_u64()) };
        }
        Buffer { base, layout }
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// It never is.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn part(&self, index: usize, bytes: usize) -> Vec<Span> {
        vec![Span { base: self.base.wrapping_add(index * bytes), bytes }]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

impl Probe {
    /// Moves data between `buffer` and the first `file_bytes` of `file` for about `time`, at least
    /// one round. What is written is synced before the time is taken, so that no cache is measured.
    ///
    /// # Errors
    /// The file's errno; `INVAL` if file or buffer are too small for one round.
    pub fn run(
        &self,
        client: &mut dyn Batch,
        file: StoreFile,
        file_bytes: u64,
        buffer: &Buffer,
        time: Duration,
    ) -> Result<Sample, Errno> {
        let places = file_bytes / self.bytes as u64;
        let round = self.bytes * self.at_once;
        if places < self.at_once as u64 || buffer.len() < round {
            return Err(Errno::INVAL);
        }
        let mut random = Random::new(0x5851_f42d_4c95_7f2d ^ self.bytes as u64);
        let mut place = 0;
        let (mut rounds, mut bytes) = (Vec::new(), 0);
        let start = Instant::now();
        loop {
            let offsets = (0..self.at_once).map(|_| {
                place = match self.order {
                    Order::Sequential => (place + 1) % places,
                    Order::Random => random.below(places),
                };
                place * self.bytes as u64
            });
            let begun = Instant::now();
            bytes += self.round(client, file, offsets, buffer)?;
            rounds.push(begun.elapsed());
            if start.elapsed() >= time {
                break;
            }
        }
        if self.direction == Direction::Write {
            client.sync(file)?;
        }
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        rounds.sort_unstable();
        let round_ns = u64::try_from(rounds[rounds.len() / 2].as_nanos()).unwrap_or(u64::MAX);
        Ok(Sample { bandwidth: bytes as f64 / seconds, round_ns, bytes })
    }

    /// One round at `offset` of the file, one request after the other, without a sync.
    ///
    /// # Errors
    /// The file's errno; `INVAL` if the buffer is too small.
    pub fn run_at(
        &self,
        client: &mut dyn Batch,
        file: StoreFile,
        offset: u64,
        buffer: &Buffer,
    ) -> Result<u64, Errno> {
        if buffer.len() < self.bytes * self.at_once {
            return Err(Errno::INVAL);
        }
        let offsets = (0..self.at_once).map(|index| offset + (index * self.bytes) as u64);
        self.round(client, file, offsets, buffer)
    }

    fn round(
        &self,
        client: &mut dyn Batch,
        file: StoreFile,
        offsets: impl Iterator<Item = u64>,
        buffer: &Buffer,
    ) -> Result<u64, Errno> {
        let transfer = |(index, offset)| {
            let part = buffer.part(index, self.bytes);
            match self.direction {
                // SAFETY: each part of the buffer is in one transfer, and outlives the run.
                Direction::Read => unsafe { Transfer::read(file, offset, part) },
                // SAFETY: as above.
                Direction::Write => unsafe { Transfer::write(file, offset, part) },
            }
        };
        let mut batch: Vec<Transfer> = offsets.enumerate().map(transfer).collect();
        client.run(&mut batch);
        batch.iter().map(Transfer::result).sum()
    }

    /// As [`Probe::run`], in memory: copies to or from `memory`, by as many threads as there are
    /// requests at once, each in a part of its own. A read of 8 bytes follows pointers: each waits
    /// for the last.
    pub fn run_in_memory(&self, memory: &mut [u64], time: Duration) -> Sample {
        if self.bytes == size_of::<u64>() {
            return chase(memory, time);
        }
        let share = memory.len() / self.at_once;
        let start = Instant::now();
        let moved: Vec<(u64, Vec<Duration>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = memory
                .chunks_mut(share)
                .take(self.at_once)
                .map(|part| scope.spawn(move || self.copy(part, time)))
                .collect();
            workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
        });
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let bytes = moved.iter().map(|(bytes, _)| bytes).sum();
        let mut rounds: Vec<_> = moved.into_iter().flat_map(|(_, rounds)| rounds).collect();
        rounds.sort_unstable();
        let middle = rounds.get(rounds.len() / 2).copied().unwrap_or_default();
        Sample { bandwidth: bytes as f64 / seconds, round_ns: middle.as_nanos() as u64, bytes }
    }

    fn copy(&self, memory: &mut [u64], time: Duration) -> (u64, Vec<Duration>) {
        let words = (self.bytes / size_of::<u64>()).clamp(1, memory.len());
        let mut own = vec![1u64; words];
        let places = memory.len() / words;
        let mut random = Random::new(words as u64);
        let (mut place, mut bytes, mut rounds) = (0, 0, Vec::new());
        let start = Instant::now();
        loop {
            place = match self.order {
                Order::Sequential => (place + 1) % places,
                Order::Random => random.index(places),
            };
            let there = &mut memory[place * words..][..words];
            let begun = Instant::now();
            match self.direction {
                Direction::Write => there.copy_from_slice(std::hint::black_box(&own)),
                Direction::Read => own.copy_from_slice(std::hint::black_box(there)),
            }
            std::hint::black_box(&mut own);
            rounds.push(begun.elapsed());
            bytes += (words * size_of::<u64>()) as u64;
            if start.elapsed() >= time {
                return (bytes, rounds);
            }
        }
    }
}

/// Follows pointers around all of the memory in an order that no prefetcher can guess.
fn chase(memory: &mut [u64], time: Duration) -> Sample {
    // A single cycle through one word of each cache line (Sattolo's shuffle).
    const LINE: usize = 8;
    let lines = memory.len() / LINE;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut random = Random::new(3);
    for last in (1..lines).rev() {
        order.swap(last, random.index(last));
    }
    for (&from, &to) in order.iter().zip(order.iter().cycle().skip(1)) {
        memory[from as usize * LINE] = u64::from(to);
    }
    let (mut at, mut steps) = (0, 0u64);
    let start = Instant::now();
    while steps == 0 || start.elapsed() < time {
        for _ in 0..1000 {
            at = memory[at * LINE] as usize;
        }
        steps += 1000;
    }
    std::hint::black_box(at);
    let elapsed = start.elapsed();
    Sample {
        bandwidth: (steps * 8) as f64 / elapsed.as_secs_f64().max(1e-9),
        round_ns: elapsed.as_nanos() as u64 / steps,
        bytes: steps * 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Null, Throttled};
    use forebay_placement::Speed;
    use forebay_posix::{Positional, store_file};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    const MOMENT: Duration = Duration::from_millis(5);

    fn probe(order: Order, direction: Direction, bytes: usize, at_once: usize) -> Probe {
        Probe { order, direction, bytes, at_once }
    }

    #[test]
    fn writes_only_within_the_file_and_reads_it_back() {
        let file = tempfile::tempfile().unwrap();
        let (bytes, buffer) = (1 << 20, Buffer::new(64 << 10));
        for order in [Order::Sequential, Order::Random] {
            for direction in [Direction::Write, Direction::Read] {
                let probe = probe(order, direction, 16 << 10, 4);
                let sample = probe
                    .run(&mut Positional::default(), store_file(&file), bytes, &buffer, MOMENT)
                    .unwrap();
                assert!(sample.bytes >= 64 << 10 && sample.bandwidth > 0.0, "{sample:?}");
                assert!(file.metadata().unwrap().len() <= bytes);
            }
        }
    }

    #[test]
    fn what_is_too_small_is_refused() {
        let buffer = Buffer::new(8192);
        let one = probe(Order::Random, Direction::Write, 4096, 2);
        assert!(one.run(&mut Null, StoreFile::NONE, 8191, &buffer, MOMENT).is_err());
        assert!(one.run(&mut Null, StoreFile::NONE, 8192, &buffer, MOMENT).is_ok());
        let four = probe(Order::Random, Direction::Write, 4096, 4);
        assert!(four.run(&mut Null, StoreFile::NONE, 1 << 20, &buffer, MOMENT).is_err());
    }

    #[test]
    fn errors_of_the_device_are_passed_on() {
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let buffer = Buffer::new(4096);
        let write = probe(Order::Sequential, Direction::Write, 4096, 1);
        let result =
            write.run(&mut Positional::default(), store_file(&read_only), 1 << 20, &buffer, MOMENT);
        assert_eq!(result, Err(Errno::BADF));
    }

    /// A device cannot be measured faster than it is.
    #[test]
    fn an_emulated_device_is_measured_as_it_is_emulated() {
        let speed = Speed { read_bandwidth: 50_000_000, write_bandwidth: 0, latency_ns: 2_000_000 };
        let mut device = Throttled::new(Null, speed, Arc::new(AtomicU64::new(0)));
        let buffer = Buffer::new(1 << 20);
        let time = Duration::from_millis(50);
        let large = probe(Order::Sequential, Direction::Read, 256 << 10, 4);
        let sample = large.run(&mut device, StoreFile::NONE, 1 << 30, &buffer, time).unwrap();
        assert!(sample.bandwidth <= 50_000_000.0, "{sample:?}");
        let small = probe(Order::Random, Direction::Read, 4096, 1);
        let sample = small.run(&mut device, StoreFile::NONE, 1 << 30, &buffer, time).unwrap();
        assert!(sample.round_ns >= 2_000_000, "{sample:?}");
    }

    #[test]
    fn memory_is_copied_and_chased() {
        let mut memory = vec![0u64; 1 << 17];
        for (direction, at_once) in [(Direction::Write, 1), (Direction::Read, 3)] {
            let sample = probe(Order::Random, direction, 64 << 10, at_once)
                .run_in_memory(&mut memory, MOMENT);
            assert!(sample.bytes >= (at_once as u64) << 16, "{sample:?}");
        }
        assert!(memory.contains(&1), "it was written");
        let chase = probe(Order::Random, Direction::Read, 8, 1).run_in_memory(&mut memory, MOMENT);
        assert!(chase.bytes >= 8000, "{chase:?}");
    }
}
