//! Predictors that users supply: one thread tells them what programs read of the files whose rule
//! names one, and has what they expect brought up.
//!
//! What a predictor does is this thread's business alone: one that fails is not asked any more
//! about that file, and programs follow its patterns from then on. See docs/predictors.md.

use super::{List, Request, Requests};
use crate::config::load_predictor;
use crate::node::Node;
use crate::observe::log::shown;
use forebay_placement::prefetch::{Account, DEPTH_MAX, Expectations, Limit, room};
use forebay_pool::clock::{Timer, stamp_age};
use forebay_pool::layout::{FileRecord, TierId, file_state};
use forebay_pool::message::Message;
use forebay_pool::{Entry, FileId, Owner};
use forebay_sandbox::{Fault, FaultKind, Predictor, Program, Read};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Reads that wait to be told; what comes beyond is only a hint, and forgotten.
const TOLD_MAX: usize = 64;
/// Blocks of one read that are told.
const BLOCKS_MAX: u64 = 64;
/// Files with a predictor that has memory: 128 MiB of it at most. Of more, the one that was read
/// least lately begins anew when it is read.
const FILES_MAX: usize = 64;
/// Threads that read one file and have a number of their own.
const READERS_MAX: usize = 4096;
/// Processes that have an account; those that are gone are forgotten then.
const ACCOUNTS_MAX: usize = 1024;
/// How long after its last read a file counts as one that is read, and has its part of RAM.
const GOES_ON: Timer = Timer::seconds(1);

/// Blocks that a program reads.
pub(crate) struct Told {
    file: FileId,
    generation: u32,
    reader: u32,
    blocks: Range<u64>,
    is_up: bool,
    /// Can be read.
    held: OwnedFd,
}

impl Told {
    /// What a message tells, with its descriptor; none if it tells nothing of the kind.
    pub fn of(message: &Message, held: OwnedFd) -> Option<Told> {
        let Message::Read { file, generation, reader, block, blocks, is_up } = *message else {
            return None;
        };
        let blocks = block..block.checked_add(u64::from(blocks).min(BLOCKS_MAX))?;
        Some(Told { file, generation, reader, blocks, is_up, held })
    }
}

/// Reads that wait to be told.
#[derive(Default)]
pub(crate) struct Reads(Mutex<Waiting>, Condvar);

#[derive(Default)]
struct Waiting {
    reads: VecDeque<Told>,
    /// A thread takes them: not before it is there, and not at the end.
    is_served: bool,
}

impl Reads {
    /// Adds a read, or forgets it if there are too many, or no rule names a predictor.
    pub fn push(&self, told: Told) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.reads.len() < TOLD_MAX && waiting.is_served {
            waiting.reads.push_back(told);
            self.1.notify_one();
        }
    }

    /// From now on reads are taken.
    fn begin(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_served = true;
    }

    /// No read counts any more.
    pub fn end(&self) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_served = false;
        waiting.reads.clear();
        self.1.notify_all();
    }

    /// Waits for the next one; `None` at the end.
    fn next(&self) -> Option<Told> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |waiting: &mut Waiting| waiting.reads.is_empty() && waiting.is_served;
        let woken = self.1.wait_while(waiting, is_idle);
        woken.unwrap_or_else(PoisonError::into_inner).reads.pop_front()
    }
}

/// A file whose rule names a predictor.
struct Predicted {
    generation: u32,
    rule: usize,
    predictor: Result<Predictor, Fault>,
    expectations: Expectations,
    /// Each thread that has read it, with its number and the blocks that it was last told with.
    readers: HashMap<u32, (u32, Range<u64>)>,
    /// When it was read last, in milliseconds of the manager's clock.
    read_at: u32,
}

/// The thread that tells predictors of reads.
pub(crate) struct Predicting {
    node: Arc<Node>,
    requests: Arc<Requests>,
    owner: Owner,
    /// Of each rule, where it names one.
    programs: Vec<Option<Result<Program, Fault>>>,
    files: HashMap<FileId, Predicted>,
    /// What may be guessed in vain for each process: of a client slot and a process id.
    accounts: HashMap<u64, Account>,
}

impl Predicting {
    /// None where no rule names a predictor.
    pub fn new(node: &Arc<Node>, requests: &Arc<Requests>) -> Option<Predicting> {
        let rules = &node.config.rules;
        if rules.iter().all(|rule| rule.predictor.is_empty()) {
            return None;
        }
        let load = |path: &str| {
            load_predictor(Path::new(path)).map_err(|problem| {
                eprintln!("{}: {problem}; until the next start patterns count", shown(path));
                Fault::new(FaultKind::NotLoaded, problem)
            })
        };
        let named = |path: &str| (!path.is_empty()).then(|| load(path));
        requests.told.begin();
        Some(Predicting {
            node: Arc::clone(node),
            requests: Arc::clone(requests),
            owner: Node::new_owner(),
            programs: rules.iter().map(|rule| named(&rule.predictor)).collect(),
            files: HashMap::new(),
            accounts: HashMap::new(),
        })
    }

    /// The thread's life.
    pub fn run(mut self) {
        let requests = Arc::clone(&self.requests);
        while let Some(told) = requests.told.next() {
            if self.node.stopping() {
                return;
            }
            self.on_read(told);
        }
    }

    fn on_read(&mut self, told: Told) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let (file, record) = (told.file, segment.file(told.file));
        let rule = record.rule.load(Ordering::Acquire);
        let is_current = record.generation.load(Ordering::Acquire) == told.generation
            && record.state.load(Ordering::Acquire) == file_state::LIVE
            && record.predictor_fault.load(Ordering::Relaxed) == 0;
        let (true, Some(rule)) = (is_current, usize::from(rule).checked_sub(1)) else { return };
        let Some(Some(program)) = self.programs.get(rule) else { return };
        let known = self.files.get(&file);
        if known.is_none_or(|known| (known.generation, known.rule) != (told.generation, rule)) {
            let begun = program.as_ref().map_err(Fault::clone).and_then(Program::begin);
            self.begin(file, told.generation, rule, begun);
        }
        let block_bytes = segment.bucket_bytes() as u64;
        let payer = self.payer(told.reader);
        if let Some(predicted) = self.files.get_mut(&file) {
            predicted.read_at = node.now();
        }
        let is_read =
            |other: &&Predicted| stamp_age(node.now(), other.read_at) < GOES_ON.as_stamp();
        let sharing = self.files.values().filter(is_read).count() as u64;
        let Some(predicted) = self.files.get_mut(&file) else { return };
        if told.is_up
            && let Some(payer) = predicted.expectations.settle(told.blocks.start)
            && let Some(account) = self.accounts.get(&payer)
        {
            account.was_used(block_bytes);
        }
        let blocks = record.size.load(Ordering::Acquire).div_ceil(block_bytes);
        let asked = predicted.tell(&told, blocks, |block| lacks(&node, record, block));
        let account = self.accounts.entry(payer).or_default();
        let failed = match asked {
            Ok(read) => {
                account.was_read(read * block_bytes);
                None
            }
            Err(fault) => Some(fault),
        };
        if let Some(fault) = failed {
            let program = &node.config.rules[rule].predictor;
            self.switch_off(&told, program, fault);
            return;
        }
        let limit = Limit {
            depth: depth(&node, sharing, predicted.expectations.reads()),
            more: account.balance() / block_bytes,
        };
        let blocks = predicted.expectations.ask(limit, payer, |block| lacks(&node, record, block));
        if blocks.is_empty() {
            return;
        }
        account.take(blocks.len() as u64 * block_bytes);
        forebay_pool::crash::point("predict.asked");
        let list = List { next: blocks, behind: predicted.expectations.behind().collect() };
        self.requests.push(Request::listed((file, told.generation), list, told.held));
    }

    /// Begins with a file, and forgets another one if there are too many.
    fn begin(
        &mut self,
        file: FileId,
        generation: u32,
        rule: usize,
        predictor: Result<Predictor, Fault>,
    ) {
        let now = self.node.now();
        self.files.remove(&file);
        if self.files.len() >= FILES_MAX {
            let age = |predicted: &Predicted| stamp_age(now, predicted.read_at);
            let oldest = self.files.iter().max_by_key(|(_, predicted)| age(predicted));
            if let Some(oldest) = oldest.map(|(&file, _)| file) {
                self.files.remove(&oldest);
            }
        }
        let expectations = Expectations::default();
        let readers = HashMap::new();
        let predicted =
            Predicted { generation, rule, predictor, expectations, readers, read_at: now };
        self.files.insert(file, predicted);
    }

    /// Whose account is charged for what follows from a read: the process's.
    fn payer(&mut self, reader: u32) -> u64 {
        let segment = &self.node.segment;
        let of_slot = |slot: u32| {
            u64::from(slot) << 32 | u64::from(segment.client(slot).pid.load(Ordering::Relaxed))
        };
        if self.accounts.len() >= ACCOUNTS_MAX {
            self.accounts.retain(|&payer, _| of_slot((payer >> 32) as u32) == payer);
        }
        of_slot(Owner::from_raw(reader).map_or(0, Owner::slot))
    }

    /// The file's predictor is not asked any more: patterns count instead.
    fn switch_off(&mut self, told: &Told, program: &str, fault: Fault) {
        let segment = &self.node.segment;
        // Inside the file its record is no other's.
        let Ok(_inside) = segment.try_enter(told.file, self.owner) else {
            // The next read fails again, and is another try.
            if let Some(predicted) = self.files.get_mut(&told.file) {
                predicted.predictor = Err(fault);
            }
            return;
        };
        let record = segment.file(told.file);
        if record.generation.load(Ordering::Acquire) != told.generation {
            return;
        }
        record.predictor_fault.store(fault.kind as u8, Ordering::Release);
        eprintln!(
            "{}: its predictor {} is switched off, as it {fault}; patterns count instead",
            self.node.shown_path(record),
            shown(program)
        );
        self.files.remove(&told.file);
    }
}

impl Predicted {
    /// Tells the predictor of those blocks that it was not told of with the same read before;
    /// returns how many they are. The file has `blocks`; `lacks` says whether one has still to be
    /// brought up.
    fn tell(
        &mut self,
        told: &Told,
        blocks: u64,
        lacks: impl Fn(u64) -> bool,
    ) -> Result<u64, Fault> {
        let number = self.readers.len() as u32;
        if self.readers.len() >= READERS_MAX {
            self.readers.clear();
        }
        let (number, before) = self.readers.entry(told.reader).or_insert((number, 0..0));
        let before = std::mem::replace(before, told.blocks.clone());
        let reader = *number;
        let predictor = self.predictor.as_mut().map_err(|fault| fault.clone())?;
        let mut read = 0;
        let is_new = |block: &u64| *block < blocks && !before.contains(block);
        for block in told.blocks.clone().filter(is_new) {
            self.expectations.note_read(block);
            let hit = if block == told.blocks.start { told.is_up } else { !lacks(block) };
            self.expectations.expect(predictor.on_read(Read { reader, block, blocks, hit })?);
            read += 1;
        }
        Ok(read)
    }
}

/// Whether the file's block is not in RAM, nor on its way there.
fn lacks(node: &Node, record: &FileRecord, block: u64) -> bool {
    let Some(entry) = node.segment.entry(record, block) else { return true };
    match Entry::decode(entry.load(Ordering::Acquire)) {
        Entry::Empty => true,
        Entry::Resident { tier, .. } => !tier.is_ram(),
        Entry::Busy(_) | Entry::Elsewhere { .. } => false,
    }
}

/// How many blocks that were not read may be up of a file of which so many were, where `sharing`
/// files have their part of RAM.
fn depth(node: &Node, sharing: u64, reads: u64) -> u64 {
    let ram = &node.header().tier[TierId::RAM];
    let low = ram.low.load(Ordering::Relaxed);
    let free = node.segment.free_in(TierId::RAM).saturating_sub(low);
    let capacity = ram.buckets.saturating_sub(low);
    (room(free.into(), capacity.into(), sharing, reads) / 2).min(DEPTH_MAX)
}
