//! Ranks on nodes around one storage node: threads, with emulated links and an emulated device.

use forebay_placement::{Random, occupy, transfer_ns};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Streams that the device knows: a request that goes on where one of them has ended needs no
/// seek. A disk's scheduler and a server's read-ahead keep as many apart.
const STREAMS: usize = 16;
/// Bytes of messages of the calibration.
const SIZES: [u64; 8] = [0, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
/// Messages of each size.
const MESSAGES: usize = 9;

/// What an emulated device does, in both directions.
#[derive(Clone, Copy)]
pub struct Emulated {
    /// Bytes per second.
    pub bandwidth: u64,
    /// Nanoseconds that it takes to go elsewhere.
    pub seek_ns: u64,
}

/// Who has which bytes.
#[derive(Clone, Copy)]
pub struct Layout {
    pub ranks: u32,
    pub nodes: u32,
    pub aggregators: u32,
    /// Bytes that an aggregator collects, a multiple of those of a piece, or a divisor.
    pub buffer: u64,
    /// Bytes of a request.
    pub piece: u64,
    /// Bytes of all.
    pub total: u64,
}

/// The end of each stream, the one used last at the end, and when the device is free again.
#[derive(Default)]
struct Queue {
    ends: Vec<u64>,
    free_ns: u64,
}

/// The testbed, with a file that is removed at its end.
pub struct Testbed {
    layout: Layout,
    device: Emulated,
    link: forebay_placement::collective::Link,
    /// The rank that has each piece, in random order, as often as all others.
    owners: Vec<u32>,
    file: File,
    path: PathBuf,
    begun: Instant,
    queue: Mutex<Queue>,
    /// When the link into each node is free again.
    links: Vec<AtomicU64>,
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Testbed {
    pub fn new(
        layout: Layout,
        device: Emulated,
        link: forebay_placement::collective::Link,
        path: &Path,
    ) -> Result<Testbed, String> {
        let named = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(named)?;
        file.set_len(layout.total).map_err(named)?;
        let pieces = layout.total / layout.piece;
        let mut owners: Vec<u32> = (0..pieces).map(|n| n as u32 % layout.ranks).collect();
        shuffle(&mut owners, 1);
        let links = (0..layout.nodes).map(|_| AtomicU64::new(0)).collect();
        Ok(Testbed {
            layout,
            device,
            link,
            owners,
            file,
            path: path.to_owned(),
            begun: Instant::now(),
            queue: Mutex::default(),
            links,
        })
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn sleep_until(&self, wake_ns: u64) {
        let now_ns = self.now_ns();
        if wake_ns > now_ns {
            thread::sleep(Duration::from_nanos(wake_ns - now_ns));
        }
    }

    /// Writes, and returns when the device has the bytes.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let now_ns = self.now_ns();
        self.file
            .write_all_at(bytes, offset)
            .map_err(|e| format!("{}: {e}", self.path.display()))?;
        let end = offset + bytes.len() as u64;
        let wake_ns = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let stream = queue.ends.iter().position(|known| *known == offset);
            let seek_ns = if stream.is_some() { 0 } else { self.device.seek_ns };
            match stream {
                Some(stream) => drop(queue.ends.remove(stream)),
                None if queue.ends.len() == STREAMS => drop(queue.ends.remove(0)),
                None => {}
            }
            queue.ends.push(end);
            let busy_ns = transfer_ns(bytes.len() as u64, self.device.bandwidth) + seek_ns;
            queue.free_ns = queue.free_ns.max(now_ns) + busy_ns;
            queue.free_ns
        };
        self.sleep_until(wake_ns);
        Ok(())
    }

    fn node_of(&self, rank: u32) -> u32 {
        rank / (self.layout.ranks / self.layout.nodes)
    }

    /// Messages of so many bytes to a node.
    fn message(&self, to: u32, bytes: u64) {
        let bandwidth = (1.0 / self.link.byte_s) as u64;
        let start_ns = (self.link.start_s * 1e9) as u64;
        let link = &self.links[to as usize];
        self.sleep_until(occupy(link, self.now_ns(), bytes, bandwidth, start_ns).wake_ns);
    }

    /// What a rank has at an offset.
    fn fill(rank: u32, offset: u64, bytes: &mut [u8]) {
        for (at, word) in (offset..).step_by(8).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&(at << 8 | u64::from(rank)).to_le_bytes());
        }
    }

    /// Runs a thread for each of so many, and takes the time of all.
    fn timed(count: u32, work: impl Fn(u32) -> Result<(), String> + Sync) -> Result<f64, String> {
        let start = Barrier::new(count as usize + 1);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|index| {
                    let (work, start) = (&work, &start);
                    scope.spawn(move || {
                        start.wait();
                        work(index)
                    })
                })
                .collect();
            start.wait();
            let begun = Instant::now();
            for thread in threads {
                thread.join().map_err(|_| "a rank has panicked")??;
            }
            Ok(begun.elapsed().as_secs_f64())
        })
    }

    /// Pieces that each rank has.
    pub fn pieces(&self) -> usize {
        self.owners.len() / self.layout.ranks as usize
    }

    /// Seconds until each rank has written so many of its pieces, in an order of its own.
    pub fn independent(&self, count: usize) -> Result<f64, String> {
        Self::timed(self.layout.ranks, |rank| {
            let pieces = self.owners.iter().zip(0_u64..);
            let mut own: Vec<u64> =
                pieces.filter(|(owner, _)| **owner == rank).map(|(_, piece)| piece).collect();
            shuffle(&mut own, u64::from(rank) + 2);
            self.write_pieces(rank, own.into_iter().take(count))
        })
    }

    /// Seconds until each rank has written so many pieces of a part of the file, one after the
    /// other. The device has found the beginning of each part before.
    pub fn in_order(&self, count: usize) -> Result<f64, String> {
        let first = |rank: u32| u64::from(rank) * self.pieces() as u64;
        let begins = (0..self.layout.ranks).map(|rank| first(rank) * self.layout.piece);
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).ends = begins.collect();
        Self::timed(self.layout.ranks, |rank| self.write_pieces(rank, (first(rank)..).take(count)))
    }

    fn write_pieces(&self, rank: u32, pieces: impl Iterator<Item = u64>) -> Result<(), String> {
        let mut bytes = vec![0; self.layout.piece as usize];
        for piece in pieces {
            let offset = piece * self.layout.piece;
            Self::fill(rank, offset, &mut bytes);
            self.write(offset, &bytes)?;
        }
        Ok(())
    }

    /// Seconds of two-phase I/O: in each round each aggregator gets what ranks have of its part of
    /// the file, and writes it. As in ROMIO, all begin a round together.
    pub fn collective(&self) -> Result<f64, String> {
        let Layout { ranks, aggregators, buffer, total, .. } = self.layout;
        let domain = total / u64::from(aggregators);
        let round = Barrier::new(aggregators as usize);
        Self::timed(aggregators, |aggregator| {
            let node = self.node_of(aggregator * (ranks / aggregators));
            let first = u64::from(aggregator) * domain;
            let mut bytes = vec![0; buffer as usize];
            let mut result = Ok(());
            for offset in (first..first + domain).step_by(buffer as usize) {
                round.wait();
                let length = buffer.min(first + domain - offset);
                let bytes = &mut bytes[..length as usize];
                self.collect(node, offset, bytes);
                // The others wait at the next round, whatever happens here.
                result = result.and(self.write(offset, bytes));
            }
            result
        })
    }

    /// Gets a part of the file from those that have it.
    fn collect(&self, node: u32, offset: u64, bytes: &mut [u8]) {
        let piece = self.layout.piece;
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        let mut from_elsewhere = 0;
        while at < end {
            let owner = self.owners[(at / piece) as usize];
            let next = (at / piece + 1).saturating_mul(piece).min(end);
            Self::fill(owner, at, &mut bytes[(at - offset) as usize..(next - offset) as usize]);
            if self.node_of(owner) != node {
                from_elsewhere += next - at;
            }
            at = next;
        }
        if self.layout.nodes > 1 {
            self.message(node, from_elsewhere);
        }
    }

    /// Bytes and seconds of messages of many sizes.
    pub fn ping_pong(&self) -> Vec<(f64, f64)> {
        let one = |bytes: u64| {
            let begun = Instant::now();
            self.message(0, bytes);
            begun.elapsed().as_secs_f64()
        };
        let median = |bytes: u64| {
            let mut times: Vec<f64> = (0..MESSAGES).map(|_| one(bytes)).collect();
            times.sort_by(f64::total_cmp);
            (bytes as f64, times[MESSAGES / 2])
        };
        SIZES.map(median).to_vec()
    }

    /// Compares the file with what all ranks have.
    pub fn verify(&self) -> Result<(), String> {
        let mut wanted = vec![0; self.layout.piece as usize];
        let mut found = wanted.clone();
        for (owner, piece) in self.owners.iter().zip(0_u64..) {
            let offset = piece * self.layout.piece;
            Self::fill(*owner, offset, &mut wanted);
            self.file.read_exact_at(&mut found, offset).map_err(|e| e.to_string())?;
            if wanted != found {
                return Err(format!("wrong bytes behind {offset} of {}", self.path.display()));
            }
        }
        Ok(())
    }
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, random.index(last + 1));
    }
}
