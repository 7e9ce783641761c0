//! What the node manager of a traced run does meanwhile: what it moves between the tiers, and how
//! full they are. Both are kept in a bounded room, more coarsely the longer the run lasts.

use crate::fills::Fills;
use crate::timeline::{Activity, Row, Span, merged, movement};
use forebay_node::status::Observer;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Movements of a way that are kept apart.
const SPANS_MAX: usize = 16_384;
/// The time between two looks, at first.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A look may take such a part of the time.
const LOOK_SHARE: u32 = 50;
/// The same where no user has asked for them, and the time between them.
const SELDOM_SHARE: u32 = 200;
const SELDOM: Duration = Duration::from_secs(1);
/// How movements call the backing store.
const STORE: &str = "store";
/// The longest line that a node manager writes.
const LINE_MAX: usize = 4096;

/// From where to where something was moved, and when.
pub struct Way {
    action: Activity,
    from: String,
    to: String,
    spans: Vec<Span>,
    /// Movements no further apart are one.
    gap_us: u64,
    bytes: u64,
}

impl Way {
    /// How it is called.
    pub fn name(&self) -> String {
        format!("{} → {}", self.from, self.to)
    }

    /// What is done there, for the file.
    pub fn action(&self) -> &'static str {
        match self.action {
            Activity::Flush => "flush",
            Activity::Demote => "demote",
            _ => "raise",
        }
    }

    /// When; in order, and none reaches into another.
    pub fn spans(&self) -> Vec<Span> {
        merged(&self.spans, self.gap_us)
    }

    /// From where to where.
    pub fn ends(&self) -> (&str, &str) {
        (&self.from, &self.to)
    }

    /// Bytes that were moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, span: Span) {
        self.bytes += span.bytes;
        match self.spans.last_mut() {
            // The manager's threads end what they do in no certain order.
            Some(last) if span.start_us <= last.end_us.saturating_add(self.gap_us) => {
                last.start_us = last.start_us.min(span.start_us);
                last.end_us = last.end_us.max(span.end_us);
                last.bytes += span.bytes;
            }
            _ => self.spans.push(span),
        }
        while self.spans.len() > SPANS_MAX {
            self.gap_us = (self.gap_us * 2).max(100);
            self.spans = merged(&self.spans, self.gap_us);
        }
    }
}

/// Where the node manager writes what it moves.
pub struct Source {
    file: File,
    at: u64,
    /// What was read is not kept.
    is_ours: bool,
    /// A line whose end is still to come.
    rest: Vec<u8>,
}

impl Source {
    /// Memory of this process's, or a file that others want to have.
    pub fn of(file: File, is_ours: bool) -> Source {
        Source { file, at: 0, is_ours, rest: Vec::new() }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Calls `take` with each line that has come since.
    fn lines(&mut self, mut take: impl FnMut(&str)) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let got = self.file.read_at(&mut buffer, self.at)?;
            if got == 0 {
                return Ok(());
            }
            for byte in &buffer[..got] {
                match byte {
                    b'\n' => {
                        take(&String::from_utf8_lossy(&self.rest));
                        self.rest.clear();
                    }
                    _ if self.rest.len() < LINE_MAX => self.rest.push(*byte),
                    _ => {}
                }
            }
            if self.is_ours {
                use rustix::fs::{FallocateFlags, fallocate};
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // It costs memory if it fails.
                let _ = fallocate(&self.file, flags, self.at, got as u64);
            }
            self.at += got as u64;
        }
    }
}

/// All that is known of manager and tiers.
pub struct Ledger {
    source: Source,
    ways: Vec<Way>,
    fills: Fills,
    look_every: Duration,
    look_share: u32,
    next_look: Instant,
    manager: u32,
    /// What had been moved from and to RAM when the command ended.
    until_end: Option<u64>,
}

impl Ledger {
    /// Of what is written to a source.
    pub fn of(source: Source) -> Ledger {
        Ledger {
            source,
            ways: Vec::new(),
            fills: Fills::default(),
            look_every: LOOK_EVERY,
            look_share: LOOK_SHARE,
            next_look: Instant::now(),
            manager: 0,
            until_end: None,
        }
    }

    /// Looks at the tiers less often from now on, in less of the time.
    pub fn look_seldom(&mut self) {
        (self.look_every, self.look_share) = (SELDOM, SELDOM_SHARE);
    }

    /// How often the tiers were looked at, as far as that is kept.
    pub fn looks(&self) -> usize {
        self.fills.looks()
    }

    /// For how many seconds something went to the store, or came from there, until `end_us`
    /// (microseconds of CLOCK_REALTIME), and after that. What goes on at once counts once.
    pub fn store_seconds(&self, to_store: bool, end_us: u64) -> (f64, f64) {
        let is_meant = |way: &&Way| (if to_store { &way.to } else { &way.from }) == STORE;
        let spans: Vec<_> =
            self.ways.iter().filter(is_meant).flat_map(|way| way.spans.iter().copied()).collect();
        let (mut until, mut after) = (0, 0);
        for span in merged(&spans, 0) {
            until += span.end_us.min(end_us).saturating_sub(span.start_us);
            after += span.end_us.saturating_sub(span.start_us.max(end_us));
        }
        (until as f64 / 1e6, after as f64 / 1e6)
    }

    /// Where the node manager writes.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Another source.
    pub fn read_from(&mut self, source: Source) {
        self.source = source;
    }

    /// Takes what the node manager has written since, and, if it is time or `always`, how full the
    /// tiers are.
    pub fn look(&mut self, observer: Option<&Observer>, always: bool) {
        let ways = &mut self.ways;
        // What cannot be read is not there.
        let _ = self.source.lines(|line| add(ways, line));
        let began = Instant::now();
        let Some(observer) = observer.filter(|_| always || began >= self.next_look) else { return };
        self.manager = observer.manager();
        if self.fills.note(&observer.tiers()) {
            self.look_every *= 2;
        }
        let cost = began.elapsed();
        self.next_look = Instant::now() + self.look_every.max(cost * self.look_share);
    }

    /// The command has ended: what is moved from now on it has not waited for.
    pub fn end(&mut self) {
        self.until_end = Some(self.through_ram().0);
    }

    /// The process of the node manager.
    pub fn manager(&self) -> u32 {
        self.manager
    }

    /// All ways, from the fastest tier down.
    pub fn ways(&self) -> impl Iterator<Item = &Way> {
        let depth =
            |name: &str| self.fills.names().position(|tier| tier == name).unwrap_or(usize::MAX);
        let mut ways: Vec<_> = self.ways.iter().collect();
        ways.sort_by_key(|way| (depth(&way.from), depth(&way.to), way.action()));
        ways.into_iter()
    }

    /// The same as rows of a picture.
    pub fn rows(&self) -> Vec<Row> {
        self.ways().map(|way| Row::new(way.name(), way.action, way.spans())).collect()
    }

    /// How full each tier was.
    pub fn fills(&self) -> &Fills {
        &self.fills
    }

    /// Bytes that were moved from or to RAM, and in how many seconds.
    fn through_ram(&self) -> (u64, f64) {
        let ram = self.fills.names().next().unwrap_or("ram");
        let ways = self.ways.iter().filter(|way| way.from == ram || way.to == ram);
        let (mut bytes, mut spans) = (0, Vec::new());
        for way in ways {
            bytes += way.bytes;
            spans.extend_from_slice(&way.spans);
        }
        let busy_us: u64 = merged(&spans, 0).iter().map(Span::length_us).sum();
        (bytes, busy_us as f64 / 1e6)
    }

    /// What was moved from and to RAM while the command ran, in bytes.
    pub fn moved(&self) -> u64 {
        self.until_end.unwrap_or_else(|| self.through_ram().0)
    }

    /// The speed at which that went, with what was moved later, in bytes a second; `None` of too
    /// little to tell.
    pub fn layer_bandwidth(&self) -> Option<f64> {
        const LEAST: u64 = 1 << 20;
        let (bytes, busy_s) = self.through_ram();
        (bytes >= LEAST && busy_s > 0.0).then(|| bytes as f64 / busy_s)
    }
}

fn add(ways: &mut Vec<Way>, line: &str) {
    // The heading is no movement, and what is cut off by a manager's death.
    let Some((action, from, to, span)) = movement(line) else { return };
    let is_it = |way: &Way| way.action == action && way.from == from && way.to == to;
    let at = ways.iter().position(is_it).unwrap_or_else(|| {
        let (from, to) = (from.to_owned(), to.to_owned());
        ways.push(Way { action, from, to, spans: Vec::new(), gap_us: 0, bytes: 0 });
        ways.len() - 1
    });
    let end_us = span.end_us.max(span.start_us);
    ways[at].add(Span { end_us, ..span });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn ledger() -> (Ledger, File) {
        let file = tempfile::tempfile().unwrap();
        let writer = file.try_clone().unwrap();
        (Ledger::of(Source::of(file, true)), writer)
    }

    #[test]
    fn movements_are_read_as_they_come() {
        let (mut ledger, mut file) = ledger();
        file.write_all(b"start_us,end_us,action,from,to,bytes\n10,20,demote,ram,nvme,5\n15,2")
            .unwrap();
        ledger.look(None, false);
        assert_eq!(ledger.ways().count(), 1);
        file.write_all(b"5,demote,ram,nvme,7\n40,50,flush,nvme,store,9\nbroken\n").unwrap();
        ledger.look(None, false);
        let ways: Vec<_> = ledger.ways().map(|way| (way.name(), way.spans())).collect();
        let span = |start_us, end_us, bytes| Span { start_us, end_us, bytes };
        assert_eq!(ways[1], ("nvme → store".to_owned(), vec![span(40, 50, 9)]));
        assert_eq!(ways[0], ("ram → nvme".to_owned(), vec![span(10, 25, 12)]));
        assert_eq!(ledger.moved(), 12);
        ledger.end();
        file.write_all(b"60,70,stage,store,ram,100\n").unwrap();
        ledger.look(None, false);
        assert_eq!((ledger.moved(), ledger.through_ram().0), (12, 112));
        assert_eq!(ledger.layer_bandwidth(), None, "too little to tell");
    }

    #[test]
    fn what_goes_to_the_store_is_beside_the_command_or_behind_its_end() {
        let (mut ledger, _) = ledger();
        let lines = [
            "1000000,2000000,flush,ram,store,9",
            "1500000,4000000,flush,nvme,store,9",
            "2000000,2500000,stage,store,ram,9",
            "0,9000000,demote,ram,nvme,9",
        ];
        lines.iter().for_each(|line| add(&mut ledger.ways, line));
        assert_eq!(ledger.store_seconds(true, 3_000_000), (2.0, 1.0));
        assert_eq!(ledger.store_seconds(false, 3_000_000), (0.5, 0.0));
        assert_eq!(ledger.store_seconds(true, 0), (0.0, 3.0));
    }

    #[test]
    fn a_run_without_end_has_room() {
        let (mut ledger, _) = ledger();
        for turn in 0..200_000u64 {
            let at = turn * 1000;
            add(&mut ledger.ways, &format!("{at},{},flush,ram,store,1", at + 1));
        }
        let spans = ledger.ways[0].spans();
        assert!(spans.len() <= SPANS_MAX, "{}", spans.len());
        assert_eq!(spans.iter().map(|span| span.bytes).sum::<u64>(), 200_000);
    }
}
