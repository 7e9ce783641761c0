//! In which order records will be read: Algorithm 1 of the MLBS paper has LIFO and FIFO; a list may
//! be given, and an order that was read once is learned. Pure: no clock, no I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

/// What a caller has said of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// First in, first out.
    Fifo,
    /// Last in, first out.
    Lifo,
    /// What the reads show: one of these two, or the order of the last pass.
    Detect,
}

/// An order that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Trace,
    Lifo,
    Fifo,
}

const WAYS: [Way; 3] = [Way::Trace, Way::Lifo, Way::Fifo];

/// Right guesses in a row that count; a wrong one halves them.
const SURE: u32 = 8;

/// Reads of a pass that are remembered.
const REMEMBERED: usize = 1 << 20;

/// What was written and read, and what comes next.
#[derive(Debug)]
pub(crate) struct Order {
    rule: Rule,
    /// Records by the time of their last write.
    sequence: BTreeMap<u64, u64>,
    stamps: HashMap<u64, u64>,
    stamp: u64,
    /// Where the reads are in `sequence`.
    cursor: Option<u64>,
    /// Reads have begun, and no write has come since that ends them.
    is_reading: bool,
    /// What the caller has said will be read, and how far it was.
    listed: Vec<u64>,
    listed_at: usize,
    /// The reads of the last pass, and where in it the reads are now.
    trace: Vec<u64>,
    places: HashMap<u64, usize>,
    trace_at: usize,
    /// The reads of this pass.
    pass: Vec<u64>,
    in_pass: HashSet<u64>,
    scores: [u32; 3],
}

impl Order {
    pub fn new(rule: Rule) -> Order {
        Order {
            rule,
            sequence: BTreeMap::new(),
            stamps: HashMap::new(),
            stamp: 0,
            cursor: None,
            is_reading: false,
            listed: Vec::new(),
            listed_at: 0,
            trace: Vec::new(),
            places: HashMap::new(),
            trace_at: 0,
            pass: Vec::new(),
            in_pass: HashSet::new(),
            scores: [0; 3],
        }
    }

    /// A record was written.
    pub fn wrote(&mut self, id: u64) {
        self.dropped(id);
        self.stamp += 1;
        self.sequence.insert(self.stamp, id);
        self.stamps.insert(id, self.stamp);
        if self.is_reading && self.way() != Some(Way::Fifo) {
            self.is_reading = false;
            self.cursor = None;
        }
        self.end_pass();
    }

    /// A record is there no more.
    pub fn dropped(&mut self, id: u64) {
        if let Some(stamp) = self.stamps.remove(&id) {
            self.sequence.remove(&stamp);
        }
    }

    /// The caller will read these next.
    pub fn will_read(&mut self, ids: &[u64]) {
        self.listed.drain(..self.listed_at);
        self.listed_at = 0;
        self.listed.extend_from_slice(ids);
        self.is_reading = true;
    }

    /// The order in which an earlier process has read.
    pub fn learn(&mut self, trace: Vec<u64>) {
        self.places = trace.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        self.trace = trace;
        self.trace_at = 0;
    }

    /// What this process has read in its last pass.
    pub fn learned(&self) -> &[u64] {
        if self.pass.len() > 1 { &self.pass } else { &self.trace }
    }

    fn end_pass(&mut self) {
        self.in_pass.clear();
        // A single read shows no order.
        if self.pass.len() > 1 {
            let pass = std::mem::take(&mut self.pass);
            self.learn(pass);
        }
        self.pass.clear();
        self.trace_at = 0;
    }

    /// A record was read.
    pub fn read(&mut self, id: u64) {
        if self.in_pass.contains(&id) {
            self.end_pass();
        }
        for (at, way) in WAYS.into_iter().enumerate() {
            let is_right = self.along(way).next() == Some(id);
            let score = self.scores.get_mut(at);
            if let Some(score) = score {
                *score = if is_right { (*score + 1).min(SURE) } else { *score / 2 };
            }
        }
        if self.pass.len() < REMEMBERED && self.in_pass.insert(id) {
            self.pass.push(id);
        }
        self.is_reading = true;
        self.cursor = self.stamps.get(&id).copied().or(self.cursor);
        if let Some(&at) = self.places.get(&id) {
            self.trace_at = at + 1;
        }
        let left = self.listed.get(self.listed_at..).unwrap_or(&[]);
        match left.iter().position(|&listed| listed == id) {
            Some(at) => self.listed_at += at + 1,
            // What is read is not what was said: it is not believed any more.
            None => self.listed_at = self.listed.len(),
        }
    }

    /// The order that is followed.
    fn way(&self) -> Option<Way> {
        match self.rule {
            Rule::Fifo => Some(Way::Fifo),
            Rule::Lifo => Some(Way::Lifo),
            Rule::Detect => {
                let best = WAYS.into_iter().zip(self.scores).rev().max_by_key(|&(_, score)| score);
                best.filter(|&(_, score)| score > 0).map(|(way, _)| way)
            }
        }
    }

    /// The records of an order from the last read on.
    fn along(&self, way: Way) -> Box<dyn Iterator<Item = u64> + '_> {
        match (way, self.cursor) {
            (Way::Fifo, None) => Box::new(self.sequence.values().copied()),
            (Way::Fifo, Some(at)) => Box::new(self.sequence.range(at + 1..).map(|(_, &id)| id)),
            (Way::Lifo, None) => Box::new(self.sequence.values().rev().copied()),
            (Way::Lifo, Some(at)) => Box::new(self.sequence.range(..at).rev().map(|(_, &id)| id)),
            (Way::Trace, _) => {
                Box::new(self.trace.get(self.trace_at..).unwrap_or(&[]).iter().copied())
            }
        }
    }

    /// What will be read next, the first first; nothing before the reads have begun.
    pub fn ahead(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        let listed = self.listed.get(self.listed_at..).unwrap_or(&[]);
        match (self.is_reading, listed, self.way()) {
            (false, _, _) | (_, [], None) => Box::new(std::iter::empty()),
            (true, [], Some(way)) => self.along(way),
            (true, listed, _) => Box::new(listed.iter().copied()),
        }
    }

    /// All records that are known, the one that will be read last first.
    pub fn farthest(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        match self.way() {
            Some(Way::Fifo) => Box::new(self.sequence.values().rev().copied()),
            _ => Box::new(self.sequence.values().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rule: Rule, count: u64) -> Order {
        let mut order = Order::new(rule);
        (0..count).for_each(|id| order.wrote(id));
        order
    }

    fn next(order: &Order, count: usize) -> Vec<u64> {
        order.ahead().take(count).collect()
    }

    #[test]
    fn the_two_orders_of_the_paper() {
        let mut fifo = written(Rule::Fifo, 6);
        assert_eq!(next(&fifo, 9), [], "reads have not begun");
        fifo.read(0);
        assert_eq!(next(&fifo, 3), [1, 2, 3]);
        fifo.wrote(6);
        assert_eq!(next(&fifo, 9), [1, 2, 3, 4, 5, 6], "a write of a pipeline ends nothing");
        let mut lifo = written(Rule::Lifo, 6);
        lifo.read(5);
        assert_eq!(next(&lifo, 9), [4, 3, 2, 1, 0]);
        lifo.dropped(5);
        lifo.dropped(3);
        assert_eq!(next(&lifo, 9), [4, 2, 1, 0]);
        (10..13).for_each(|id| lifo.wrote(id));
        assert_eq!(next(&lifo, 9), [], "the next forward phase");
        lifo.read(12);
        assert_eq!(next(&lifo, 3), [11, 10, 4]);
    }

    #[test]
    fn an_order_is_detected_by_the_first_read() {
        let mut order = written(Rule::Detect, 6);
        order.read(5);
        assert_eq!(next(&order, 2), [4, 3]);
        let mut order = written(Rule::Detect, 6);
        order.read(0);
        assert_eq!(next(&order, 2), [1, 2]);
        let mut order = written(Rule::Detect, 6);
        order.read(3);
        assert_eq!(next(&order, 2), [], "no order has it first");
        order.read(4);
        assert_eq!(next(&order, 2), [5]);
    }

    #[test]
    fn an_order_that_was_read_once_is_followed_the_next_time() {
        let odd = [3, 0, 4, 1, 5, 2];
        let mut order = written(Rule::Detect, 6);
        odd.iter().for_each(|&id| order.read(id));
        order.read(3);
        assert_eq!(next(&order, 9), odd[1..]);
        // The next pass, after writes, and in another process.
        (0..6).for_each(|id| order.wrote(id));
        order.read(3);
        order.read(0);
        assert_eq!(next(&order, 9), odd[2..]);
        let mut other = written(Rule::Detect, 6);
        other.learn(odd.to_vec());
        other.read(3);
        assert_eq!(next(&other, 9), odd[1..]);
        // Something else is read: what fits is followed.
        other.read(4);
        other.read(3);
        other.read(2);
        other.read(1);
        assert_eq!(next(&other, 9), [0]);
    }

    #[test]
    fn a_list_goes_before_and_is_left_when_it_is_not_followed() {
        let mut order = written(Rule::Fifo, 6);
        order.will_read(&[4, 2, 0]);
        assert_eq!(next(&order, 9), [4, 2, 0]);
        order.read(4);
        order.will_read(&[1]);
        assert_eq!(next(&order, 9), [2, 0, 1]);
        order.read(0);
        assert_eq!(next(&order, 9), [1], "2 was left out");
        order.read(5);
        assert_eq!(next(&order, 9), []);
        order.read(3);
        assert_eq!(next(&order, 9), [4, 5]);
    }

    #[test]
    fn what_is_read_last_leaves_first() {
        let mut lifo = written(Rule::Lifo, 3);
        assert_eq!(lifo.farthest().collect::<Vec<_>>(), [0, 1, 2]);
        lifo.dropped(0);
        assert_eq!(lifo.farthest().next(), Some(1));
        assert_eq!(written(Rule::Fifo, 3).farthest().next(), Some(2));
    }
}
