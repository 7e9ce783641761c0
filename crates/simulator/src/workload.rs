//! What the ranks do: phases of computing, writing and reading, or a recorded trace.

use forebay_placement::Random;

/// One step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Compute for so many nanoseconds.
    Compute(u64),
    /// Open a file.
    Open(u32),
    /// Open a file, and cut it to nothing.
    Create(u32),
    /// Write a range of a file.
    Write(Range),
    /// Read a range of a file.
    Read(Range),
    /// Close a file.
    Close(u32),
    /// Give a file another size in bytes.
    Truncate(u32, u64),
    /// Take a file's last name away: it is gone as soon as no rank has it open.
    Remove(u32),
    /// Wait for all other ranks.
    Barrier,
}

/// A range of a file in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The file's number.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Whose data a rank reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// What it has written itself in this phase.
    Phase,
    /// What it has written itself in any phase so far, the phase chosen at random.
    Own,
    /// What any rank has written in any phase so far, both chosen at random.
    Any,
}

/// The same phase again and again: compute, write, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// How often.
    pub phases: u32,
    /// Nanoseconds of computing before the I/O of each phase.
    pub compute_ns: u64,
    /// The most that computing takes longer on some ranks, in thousandths; drawn evenly.
    pub jitter: u64,
    /// Bytes that each rank writes in a phase.
    pub write: u64,
    /// Bytes that each rank reads in a phase.
    pub read: u64,
    /// How often each byte of `read / repeat` is read.
    pub repeat: u64,
    /// What is read.
    pub read_from: ReadFrom,
    /// Whether all ranks write into one file in each phase, rather than into one each.
    pub shared_file: bool,
    /// Files that each rank opens in a phase; more than one only cost opens.
    pub opens: u32,
}

/// What all ranks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Phases, the same for all ranks.
    Phases(Phases),
    /// The steps of each rank.
    Trace(Vec<Vec<Op>>),
}

/// The position of a rank in its workload.
#[derive(Clone, Debug)]
pub struct Cursor {
    rank: u32,
    ranks: u32,
    phase: u32,
    step: u64,
    random: Random,
    reading: Range,
}

impl Cursor {
    /// The beginning of a rank's steps.
    pub fn new(rank: u32, ranks: u32, seed: u64) -> Self {
        let seed = Random::new(seed ^ u64::from(rank) << 32).next_u64();
        Self {
            rank,
            ranks,
            phase: 0,
            step: 0,
            random: Random::new(seed),
            reading: Range::default(),
        }
    }

    /// The next step, or `None` at the end.
    pub fn next(&mut self, workload: &Workload) -> Option<Op> {
        match workload {
            Workload::Phases(phases) => self.next_of_phase(phases),
            Workload::Trace(ranks) => {
                let op = ranks.get(self.rank as usize)?.get(self.step as usize)?;
                self.step += 1;
                Some(*op)
            }
        }
    }

    fn next_of_phase(&mut self, phases: &Phases) -> Option<Op> {
        if self.phase == phases.phases {
            return None;
        }
        let step = self.step;
        self.step += 1;
        let opens = u64::from(phases.opens.max(1));
        let reads = if phases.read == 0 { 0 } else { phases.repeat.max(1) };
        let file = self.file(phases, self.phase, self.rank);
        Some(match step {
            0 => Op::Compute(self.compute_ns(phases)),
            1 => Op::Barrier,
            n if n < 2 + opens => Op::Open(file),
            n if n == 2 + opens => Op::Write(Range {
                file,
                offset: self.offset(phases, self.rank),
                bytes: phases.write,
            }),
            n if n == 3 + opens => Op::Close(file),
            n if n == 4 + opens => Op::Barrier,
            n if n < 5 + opens + reads => Op::Read(self.read(phases, n - 5 - opens)),
            _ => {
                (self.phase, self.step) = (self.phase + 1, 0);
                if reads > 0 { Op::Barrier } else { return self.next_of_phase(phases) }
            }
        })
    }

    fn compute_ns(&mut self, phases: &Phases) -> u64 {
        let more = phases.compute_ns / 1000 * phases.jitter;
        phases.compute_ns + if more > 0 { self.random.below(more + 1) } else { 0 }
    }

    fn file(&self, phases: &Phases, phase: u32, rank: u32) -> u32 {
        if phases.shared_file { phase } else { phase * self.ranks + rank }
    }

    fn offset(&self, phases: &Phases, rank: u32) -> u64 {
        if phases.shared_file { u64::from(rank) * phases.write } else { 0 }
    }

    /// The range of one of the phase's reads. The first repetition chooses it.
    fn read(&mut self, phases: &Phases, repetition: u64) -> Range {
        let bytes = phases.read / phases.repeat.max(1);
        if repetition > 0 {
            return self.reading;
        }
        let (phase, rank) = match phases.read_from {
            ReadFrom::Phase => (self.phase, self.rank),
            ReadFrom::Own => (self.drawn(self.phase), self.rank),
            ReadFrom::Any => (self.drawn(self.phase), self.drawn(self.ranks - 1)),
        };
        let places = phases.write.checked_div(bytes).unwrap_or(1).max(1);
        let place = self.random.below(places) * bytes;
        let file = self.file(phases, phase, rank);
        self.reading = Range { file, offset: self.offset(phases, rank) + place, bytes };
        self.reading
    }

    /// A number from 0 to `last`.
    fn drawn(&mut self, last: u32) -> u32 {
        self.random.below(u64::from(last) + 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: Phases = Phases {
        phases: 3,
        compute_ns: 1000,
        jitter: 0,
        write: 64,
        read: 32,
        repeat: 4,
        read_from: ReadFrom::Any,
        shared_file: false,
        opens: 1,
    };

    fn all(phases: Phases, rank: u32) -> Vec<Op> {
        let workload = Workload::Phases(phases);
        let mut cursor = Cursor::new(rank, 4, 7);
        std::iter::from_fn(|| cursor.next(&workload)).collect()
    }

    #[test]
    fn a_phase_computes_writes_and_reads() {
        let ops = all(PHASES, 2);
        assert_eq!(ops.len(), 3 * 11);
        assert_eq!(ops[..2], [Op::Compute(1000), Op::Barrier]);
        assert_eq!(ops[2], Op::Open(2));
        assert_eq!(ops[3], Op::Write(Range { file: 2, offset: 0, bytes: 64 }));
        assert_eq!(ops[4..6], [Op::Close(2), Op::Barrier]);
        let Op::Read(range) = ops[6] else { panic!("{ops:?}") };
        assert_eq!(range.bytes, 8);
        assert!(range.file < 4 && range.offset + range.bytes <= 64);
        assert_eq!(ops[6..10], [Op::Read(range); 4], "the same range again and again");
        assert_eq!(ops[10], Op::Barrier);
        assert_eq!(ops[13], Op::Open(6));
    }

    #[test]
    fn a_shared_file_has_a_part_for_each_rank() {
        let ops = all(Phases { shared_file: true, read_from: ReadFrom::Phase, ..PHASES }, 3);
        assert_eq!(ops[3], Op::Write(Range { file: 0, offset: 192, bytes: 64 }));
        let Op::Read(range) = ops[6] else { panic!("{ops:?}") };
        assert!(range.file == 0 && range.offset >= 192 && range.offset + 8 <= 256);
    }

    #[test]
    fn the_seed_decides_what_is_read() {
        let workload = Workload::Phases(PHASES);
        let run = |seed| {
            let mut cursor = Cursor::new(0, 4, seed);
            std::iter::from_fn(|| cursor.next(&workload)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn jitter_only_adds() {
        let ops = all(Phases { jitter: 500, phases: 100, read: 0, ..PHASES }, 1);
        let times: Vec<_> = ops
            .iter()
            .filter_map(|op| if let Op::Compute(ns) = op { Some(*ns) } else { None })
            .collect();
        assert_eq!(times.len(), 100);
        assert!(times.iter().all(|ns| (1000..=1500).contains(ns)));
        assert!(times.iter().any(|ns| *ns > 1250) && times.iter().any(|ns| *ns < 1250));
    }
}
