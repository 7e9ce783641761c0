//! Figure 5: operations on metadata. Where does this block of this file lie, and: it now lies
//! there.
//!
//! Forebay looks the file up in the file table, under its lock, and then the block in the index:
//! what a program pays for a file that it did not keep open. The paper's own is a hash map in
//! shared memory; the others are servers, a client in each of two threads. Redis and memcached are
//! asked 64 times before an answer is waited for, as their own benchmark tools do (`redis-benchmark
//! -P`, `memtier_benchmark --pipeline`), the single server once, as in the paper. As there, an
//! update of a server's first fetches what is there. Every answer is compared with the one that is
//! due.

use super::{CLIENTS, Pool, together};
use crate::measured::{Claim, Measured, Unit};
use crate::site::Site;
use crate::systems::{Place, Store, Stream, digits, memcached, redis, single_server};
use crate::{Options, Scale};
use forebay_pool::BucketId;
use forebay_pool::TierId;
use forebay_pool::layout::Geometry;
use forebay_pool::{Entry, Identity};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const FOREBAY: &str = "Forebay index";
const LOOKUP: &str = "lookup";
const UPDATE: &str = "update";

/// Requests that are sent before an answer is waited for.
pub(crate) const PIPELINE: usize = 64;
const ROUNDS: u32 = 5;

/// Files of each client, and blocks of each file.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub files: usize,
    pub blocks: usize,
}

impl Keys {
    fn count(self) -> usize {
        self.files * self.blocks
    }

    /// File and block of a client's key, so that neighbours in time are none in space.
    fn at(self, client: usize, turn: usize) -> (usize, usize) {
        // A number without a common divisor with any power of two visits every key.
        let key = turn.wrapping_mul(0x9e37_79b1) % self.count();
        (client * self.files + key / self.blocks, key % self.blocks)
    }
}

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which answer was wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Hermes, Figure 5: metadata operations, two clients";
    let mut measured = Measured::new("hermes-fig5", title, rounds, is_small);
    let keys = Keys { files: options.scale.of(256, 16), blocks: 128 };
    let operations = options.scale.of(512 << 10, 2 << 10);

    let index = Index::new(keys)?;
    let systems: [(&Store, Place, usize); 5] = [
        (&redis::STORE, Place::loopback()?, PIPELINE),
        (&redis::STORE, Place::Socket(site.path("redis.socket")), PIPELINE),
        (&memcached::STORE, Place::loopback()?, PIPELINE),
        (&memcached::STORE, Place::Socket(site.path("memcached.socket")), PIPELINE),
        (&single_server::STORE, Place::Socket(site.path("single.socket")), 1),
    ];
    let mut served = Vec::new();
    for (store, place, pipeline) in systems {
        let name = format!("{}, {}", store.name, place.name());
        if measured.lacks(&name, store.program) {
            continue;
        }
        say(&format!("starting {name}"));
        let mut server = (store.start)(&site, &place, &site.path("server.log"))?;
        server.wait(|| place.connect().is_ok())?;
        measured.notes.push(format!("{name}: {}", store.configuration));
        let clients = (0..CLIENTS)
            .map(|id| {
                let mut client = Client::new(store, &place, pipeline, keys, id)?;
                client.fill()?;
                Ok(Mutex::new(client))
            })
            .collect::<Result<Vec<_>, String>>()?;
        served.push((name, server, store, clients, pipeline));
    }
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for (work, updates) in [(LOOKUP, false), (UPDATE, true)] {
            say(&format!("round {round}: {work}"));
            let rate = |count: usize, ns: f64| (count * CLIENTS) as f64 / ns * 1e9;
            let ns = together(|client| index.work(client, operations, updates))?;
            measured.add(work, FOREBAY, Unit::Rate, rate(operations, ns));
            for (name, _, _, clients, pipeline) in &served {
                // To wait for each answer would take ten times as long.
                let count = if *pipeline == 1 { operations / 8 } else { operations };
                let ns = together(|client| {
                    let mut client = clients[client].lock().unwrap_or_else(PoisonError::into_inner);
                    client.work(count, updates)
                })
                .map_err(|e| format!("{name}: {e}"))?;
                measured.add(work, name, Unit::Rate, rate(count, ns));
            }
        }
    }
    for work in [LOOKUP, UPDATE] {
        for (name, _, store, ..) in &served {
            measured.claims.push(Claim {
                // What is wanted is what the paper says.
                paper: Some(store.wanted),
                ..Claim::ratio(work, (work, FOREBAY), (work, name), store.wanted)
            });
        }
    }
    Ok(measured)
}

/// Forebay's file table and block index.
struct Index {
    pool: Pool,
    keys: Keys,
}

impl Index {
    fn new(keys: Keys) -> Result<Index, String> {
        let pool = Pool::new(&Geometry::for_tiers(4096, &[64 << 20]))?;
        let owner = pool.owner(0);
        for file in 0..CLIENTS * keys.files {
            let table = pool.segment.enter_table(owner);
            let made = pool.segment.with_file_or_new(identity(file), owner, |record, _| {
                (0..keys.blocks).all(|block| {
                    let entry = pool.segment.entry_or_insert(
                        pool.segment.file(record),
                        block as u64,
                        owner,
                    );
                    let resident = Entry::resident(TierId::RAM, BucketId::from_raw(0)).encode();
                    entry.map(|entry| entry.store(resident, Ordering::Release)).is_some()
                })
            });
            drop(table);
            if made != Some(true) {
                return Err("the index is too small".into());
            }
        }
        Ok(Index { pool, keys })
    }

    fn work(&self, client: usize, operations: usize, updates: bool) -> Result<(), String> {
        let (segment, owner) = (&self.pool.segment, self.pool.owner(client));
        for turn in 0..operations {
            let (file, block) = self.keys.at(client, turn);
            let table = segment.enter_table(owner);
            let record = segment.with_file(identity(file), owner, |record| record).unwrap_or(None);
            drop(table);
            let record = record.ok_or("a file is not in the table")?;
            let entry = segment.entry(segment.file(record), block as u64);
            let entry = entry.ok_or("a block is not in the index")?;
            let word = entry.load(Ordering::Acquire);
            let Entry::Resident { tier, bucket, .. } = Entry::decode(word) else {
                return Err("a block is nowhere".into());
            };
            if updates {
                let next = Entry::resident(tier, bucket.next()).encode();
                let changed =
                    entry.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire);
                changed.map_err(|_| "another client changed a client's own block")?;
            }
        }
        Ok(())
    }
}

fn identity(file: usize) -> Identity {
    Identity { device: 1, inode: file as u64 + 1 }
}

/// A connection to a server.
pub(crate) struct Client {
    store: &'static Store,
    stream: Box<dyn Stream>,
    pipeline: usize,
    keys: Keys,
    id: usize,
    /// How often each key was stored.
    versions: Vec<u32>,
    request: Vec<u8>,
    due: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    pub fn new(
        store: &'static Store,
        place: &Place,
        pipeline: usize,
        keys: Keys,
        id: usize,
    ) -> Result<Client, String> {
        Ok(Client {
            store,
            stream: place.connect()?,
            pipeline,
            keys,
            id,
            versions: vec![0; keys.count()],
            request: Vec::new(),
            due: Vec::new(),
            answer: Vec::new(),
        })
    }

    /// Stores every key once.
    pub fn fill(&mut self) -> Result<(), String> {
        for first in (0..self.keys.count()).step_by(self.pipeline) {
            self.set(first..(first + self.pipeline).min(self.keys.count()));
            self.exchange()?;
        }
        Ok(())
    }

    /// Asks for so many keys, and stores each again if `updates`.
    pub fn work(&mut self, operations: usize, updates: bool) -> Result<(), String> {
        for first in (0..operations).step_by(self.pipeline) {
            let turns = first..(first + self.pipeline).min(operations);
            for turn in turns.clone() {
                let (key, value) = self.item(turn);
                (self.store.get)(&mut self.request, &key);
                (self.store.got)(&mut self.due, &key, &value);
            }
            self.exchange()?;
            if updates {
                self.set(turns);
                self.exchange()?;
            }
        }
        Ok(())
    }

    fn set(&mut self, turns: std::ops::Range<usize>) {
        for turn in turns {
            let (file, block) = self.keys.at(self.id, turn);
            self.versions[file % self.keys.files * self.keys.blocks + block] += 1;
            let (key, value) = self.item(turn);
            (self.store.set)(&mut self.request, &key, &value);
            (self.store.done)(&mut self.due);
        }
    }

    /// 28 bytes that name file and block; 32 that say where it lies.
    fn item(&self, turn: usize) -> ([u8; 28], [u8; 32]) {
        let (file, block) = self.keys.at(self.id, turn);
        let version = self.versions[file % self.keys.files * self.keys.blocks + block];
        let mut key = *b"file-0000000:block-000000000";
        digits(&mut key[5..12], file);
        digits(&mut key[19..28], block);
        let mut value = *b"node 0 tier 0 bucket 00000000000";
        digits(&mut value[21..32], version as usize);
        (key, value)
    }

    /// Sends what was requested, and reads as much as is due.
    fn exchange(&mut self) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("talking to a server: {e}");
        self.stream.write_all(&self.request).map_err(failed)?;
        self.answer.resize(self.due.len(), 0);
        self.stream.read_exact(&mut self.answer).map_err(failed)?;
        if self.answer != self.due {
            let found = String::from_utf8_lossy(&self.answer);
            return Err(format!("a server answered {found:?}"));
        }
        self.request.clear();
        self.due.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_met_once_in_a_round() {
        let keys = Keys { files: 16, blocks: 128 };
        for client in 0..CLIENTS {
            let met: std::collections::BTreeSet<_> =
                (0..keys.count()).map(|turn| keys.at(client, turn)).collect();
            assert_eq!(met.len(), keys.count());
            assert!(met.iter().all(|(file, _)| file / keys.files == client));
        }
    }

    #[test]
    fn the_index_counts_updates() {
        let keys = Keys { files: 2, blocks: 64 };
        let index = Index::new(keys).unwrap();
        index.work(1, keys.count() * 3, true).unwrap();
        index.work(1, keys.count(), false).unwrap();
        let segment = &index.pool.segment;
        let owner = index.pool.owner(0);
        let bucket = |file: usize| {
            let table = segment.enter_table(owner);
            let record =
                segment.with_file(identity(file), owner, |record| record).unwrap().unwrap();
            drop(table);
            let entry = segment.entry(segment.file(record), 63).unwrap();
            match Entry::decode(entry.load(Ordering::Acquire)) {
                Entry::Resident { bucket, .. } => bucket.raw(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((bucket(0), bucket(3)), (0, 3));
    }
}
