//! Transfers as fluids: each device and link is a resource, each transfer takes a share of all
//! resources on its way, and the shares are max-min fair.
//!
//! A resource has a capacity in *device-seconds per second* (1 when healthy), and a transfer costs
//! so many device-seconds for each byte: 1 / bandwidth, plus whatever a seek adds. Reads and writes
//! of different cost so share one device. All transfers get the same rate until a resource on their
//! way is used up; those rates are then fixed and the rest goes on growing (progressive filling).
//!
//! Transfers that take the same way get the same rate, so they form one *class*: the work of a
//! change grows with the number of ways, not of transfers.
//!
//! ```
//! use forebay_simulator::fluid::{Fluid, Way};
//!
//! // Two transfers of 1000 bytes share a device of 1000 bytes per second.
//! let mut fluid = Fluid::new(1);
//! let device = fluid.add(1.0);
//! for token in 0..2 {
//!     fluid.start(Way::default().through(device, 1_000), 1_000, token);
//! }
//! let end_ns = fluid.next_end_ns().unwrap();
//! assert!(end_ns.abs_diff(2_000_000_000) < 10);
//! let mut done = Vec::new();
//! fluid.advance(end_ns, &mut done);
//! assert_eq!(done.len(), 2);
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::{Hash, Hasher};

/// The most resources a transfer passes: a device, four links, and a device.
pub const WAY_MAX: usize = 6;
/// Bytes that rounding may leave over; less than the smallest transfer.
const CRUMB: f64 = 0.5;

/// The number of a resource.
pub type Resource = u32;

/// One resource on the way of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// The resource.
    pub resource: Resource,
    /// Device-seconds for each byte.
    pub cost: f64,
}

/// The resources a transfer passes, each at most once, and the requests it keeps under way.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    shares: [Share; WAY_MAX],
    len: usize,
    requests: u32,
}

impl Default for Way {
    fn default() -> Self {
        Self { shares: [Share::default(); WAY_MAX], len: 0, requests: 1 }
    }
}

impl Way {
    /// The same for a transfer that keeps so many requests under way: of each resource it gets so
    /// many times the share of one that waits for each of its requests.
    pub fn at_once(mut self, requests: u32) -> Self {
        self.requests = requests.max(1);
        self
    }

    /// Adds a resource of `bandwidth` bytes per second; 0 is not limited and adds nothing.
    pub fn through(self, resource: Resource, bandwidth: u64) -> Self {
        match bandwidth {
            0 => self,
            bandwidth => self.at_cost(resource, 1.0 / bandwidth as f64),
        }
    }

    /// Adds a resource of which each byte costs so many device-seconds. A resource passed twice
    /// (a copy within one device) costs the sum.
    pub fn at_cost(mut self, resource: Resource, cost: f64) -> Self {
        let known = self.shares[..self.len].iter_mut().find(|share| share.resource == resource);
        match known {
            Some(share) => share.cost += cost,
            None => {
                self.shares[self.len] = Share { resource, cost };
                self.len += 1;
            }
        }
        self
    }

    /// The resources.
    pub fn shares(&self) -> &[Share] {
        &self.shares[..self.len]
    }
}

impl PartialEq for Way {
    fn eq(&self, other: &Self) -> bool {
        self.shares() == other.shares() && self.requests == other.requests
    }
}

impl Eq for Way {}

impl Hash for Way {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for share in self.shares() {
            (share.resource, share.cost.to_bits()).hash(state);
        }
        self.requests.hash(state);
    }
}

/// A number that is not NaN, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A resource and the classes that pass it.
#[derive(Clone, Debug)]
struct Node {
    capacity: f64,
    classes: Vec<u32>,
    /// Device-seconds per second that the classes on it take.
    used: f64,
    /// The integral of `used` up to `since_ns`: busy seconds.
    busy: f64,
    since_ns: u64,
    // While rates are found: what is left, the cost of all rates not yet fixed, and their number.
    left: f64,
    demand: f64,
    open: u32,
    mark: u64,
}

/// All transfers that take the same way.
#[derive(Clone, Debug)]
struct Class {
    way: Way,
    /// Bytes that each request of the class would have had since the class was last empty.
    served: f64,
    since_ns: u64,
    /// Bytes per second of each request.
    rate: f64,
    /// What `served` will be when a transfer is done; and the transfer's number and token.
    transfers: BinaryHeap<Reverse<(Ordered, u64, usize)>>,
    version: u64,
    /// The version whose next end is known.
    scheduled: u64,
    listed: bool,
    fixed: bool,
    mark: u64,
}

/// All resources and transfers, and a clock in nanoseconds.
#[derive(Clone, Debug)]
pub struct Fluid {
    nodes: Vec<Node>,
    classes: Vec<Class>,
    by_way: HashMap<Way, u32>,
    /// When a class has its next transfer done, unless its version has changed.
    ends: BinaryHeap<Reverse<(u64, u32, u64)>>,
    changed: Vec<Resource>,
    /// Transfers that pass nothing, or move nothing: done at once.
    instant: Vec<usize>,
    now_ns: u64,
    grain_ns: u64,
    started: u64,
    mark: u64,
}

impl Fluid {
    /// No resources yet. Transfers end at whole multiples of `grain_ns`, never early, so that those
    /// that end almost together cost one change of rates.
    pub fn new(grain_ns: u64) -> Self {
        Self {
            nodes: Vec::new(),
            classes: Vec::new(),
            by_way: HashMap::new(),
            ends: BinaryHeap::new(),
            changed: Vec::new(),
            instant: Vec::new(),
            now_ns: 0,
            grain_ns: grain_ns.max(1),
            started: 0,
            mark: 0,
        }
    }

    /// A new resource of this capacity in device-seconds per second.
    pub fn add(&mut self, capacity: f64) -> Resource {
        self.nodes.push(Node {
            capacity,
            classes: Vec::new(),
            used: 0.0,
            busy: 0.0,
            since_ns: 0,
            left: 0.0,
            demand: 0.0,
            open: 0,
            mark: 0,
        });
        (self.nodes.len() - 1) as Resource
    }

    /// Changes a resource's capacity from now on.
    pub fn set_capacity(&mut self, resource: Resource, capacity: f64) {
        self.nodes[resource as usize].capacity = capacity;
        self.changed.push(resource);
    }

    /// The time on the clock.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Seconds a resource has been busy so far.
    pub fn busy_seconds(&self, resource: Resource) -> f64 {
        let node = &self.nodes[resource as usize];
        node.busy + node.used * seconds(self.now_ns - node.since_ns)
    }

    /// Starts a transfer now. `token` is what [`Fluid::advance`] returns when it is done.
    pub fn start(&mut self, way: Way, bytes: u64, token: usize) {
        if way.len == 0 || bytes == 0 {
            self.instant.push(token);
            return;
        }
        let id = self.class(way);
        let now_ns = self.now_ns;
        self.started += 1;
        let class = &mut self.classes[id as usize];
        class.bring_to(now_ns);
        if class.transfers.is_empty() {
            class.served = 0.0;
        }
        let end = Ordered(class.served + bytes as f64 / f64::from(way.requests));
        class.transfers.push(Reverse((end, self.started, token)));
        class.version += 1;
        if !class.listed {
            class.listed = true;
            for share in way.shares() {
                self.nodes[share.resource as usize].classes.push(id);
            }
        }
        self.changed.extend(way.shares().iter().map(|share| share.resource));
    }

    /// When the next transfer is done, if any can be.
    pub fn next_end_ns(&mut self) -> Option<u64> {
        if !self.instant.is_empty() {
            return Some(self.now_ns);
        }
        self.update_rates();
        while let Some(&Reverse((at_ns, id, version))) = self.ends.peek() {
            if self.classes[id as usize].version == version {
                return Some(at_ns);
            }
            self.ends.pop();
        }
        None
    }

    /// Moves the clock to `to_ns`, not beyond the next end, and puts the tokens of the transfers
    /// that are done into `done`, in a fixed order.
    pub fn advance(&mut self, to_ns: u64, done: &mut Vec<usize>) {
        assert!(to_ns >= self.now_ns, "the clock went back from {} to {to_ns}", self.now_ns);
        done.append(&mut self.instant);
        self.update_rates();
        self.now_ns = to_ns;
        while let Some(&Reverse((at_ns, id, version))) = self.ends.peek() {
            if at_ns > to_ns {
                break;
            }
            self.ends.pop();
            let class = &mut self.classes[id as usize];
            if class.version != version {
                continue;
            }
            class.bring_to(to_ns);
            let limit = class.served + CRUMB;
            while let Some(&Reverse((Ordered(end), _, token))) = class.transfers.peek() {
                if end > limit {
                    break;
                }
                class.transfers.pop();
                done.push(token);
            }
            // Also if none was done, through rounding: the class needs a new end.
            class.version += 1;
            let way = class.way;
            self.changed.extend(way.shares().iter().map(|share| share.resource));
        }
    }

    /// Ends all transfers whose token `is_wanted`. Returns their tokens and the bytes not yet
    /// moved.
    pub fn cancel(&mut self, mut is_wanted: impl FnMut(usize) -> bool) -> Vec<(usize, u64)> {
        let mut cancelled = Vec::new();
        for token in self.instant.extract_if(.., |token| is_wanted(*token)) {
            cancelled.push((0, token, 0));
        }
        let now_ns = self.now_ns;
        for class in &mut self.classes {
            if !class.transfers.iter().any(|Reverse((.., token))| is_wanted(*token)) {
                continue;
            }
            class.bring_to(now_ns);
            class.version += 1;
            let served = class.served;
            let (out, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut class.transfers)
                .into_iter()
                .partition(|Reverse((.., token))| is_wanted(*token));
            class.transfers = rest.into();
            let requests = f64::from(class.way.requests);
            cancelled.extend(out.into_iter().map(|Reverse((Ordered(end), number, token))| {
                (number, token, ((end - served).max(0.0) * requests).ceil() as u64)
            }));
            self.changed.extend(class.way.shares().iter().map(|share| share.resource));
        }
        cancelled.sort_unstable();
        cancelled.into_iter().map(|(_, token, bytes)| (token, bytes)).collect()
    }

    fn class(&mut self, way: Way) -> u32 {
        if let Some(&id) = self.by_way.get(&way) {
            return id;
        }
        let id = self.classes.len() as u32;
        self.by_way.insert(way, id);
        self.classes.push(Class {
            way,
            served: 0.0,
            since_ns: self.now_ns,
            rate: 0.0,
            transfers: BinaryHeap::new(),
            version: 0,
            scheduled: 0,
            listed: false,
            fixed: false,
            mark: 0,
        });
        id
    }

    /// Finds the rates anew wherever something changed.
    fn update_rates(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        let (resources, classes) = self.connected();
        for &resource in &resources {
            let node = &mut self.nodes[resource as usize];
            node.busy += node.used * seconds(self.now_ns - node.since_ns);
            node.since_ns = self.now_ns;
            (node.left, node.demand, node.open, node.used) = (node.capacity, 0.0, 0, 0.0);
        }
        for &id in &classes {
            let class = &mut self.classes[id as usize];
            class.fixed = false;
            let count = class.requests();
            for share in class.way.shares() {
                let node = &mut self.nodes[share.resource as usize];
                node.demand += count * share.cost;
                node.open += 1;
            }
        }
        self.fill(&resources);
    }

    /// The resources and classes that a change can reach, each once; classes without transfers
    /// leave the lists of their resources.
    fn connected(&mut self) -> (Vec<Resource>, Vec<u32>) {
        self.mark += 1;
        let mark = self.mark;
        let mut resources = Vec::new();
        let mut classes = Vec::new();
        for resource in std::mem::take(&mut self.changed) {
            if std::mem::replace(&mut self.nodes[resource as usize].mark, mark) != mark {
                resources.push(resource);
            }
        }
        let mut next = 0;
        while let Some(&resource) = resources.get(next) {
            next += 1;
            let mut list = std::mem::take(&mut self.nodes[resource as usize].classes);
            list.retain(|&id| {
                let class = &mut self.classes[id as usize];
                if std::mem::replace(&mut class.mark, mark) != mark {
                    class.listed = !class.transfers.is_empty();
                    if class.listed {
                        classes.push(id);
                    }
                    // Also those of a class that leaves: their lists have to forget it now.
                    for share in class.way.shares() {
                        let node = &mut self.nodes[share.resource as usize];
                        if std::mem::replace(&mut node.mark, mark) != mark {
                            resources.push(share.resource);
                        }
                    }
                }
                class.listed
            });
            self.nodes[resource as usize].classes = list;
        }
        (resources, classes)
    }

    /// Progressive filling: again and again the resource that allows the lowest rate fixes it.
    fn fill(&mut self, resources: &[Resource]) {
        let mut levels: BinaryHeap<Reverse<(Ordered, Resource)>> = resources
            .iter()
            .filter(|&&resource| self.nodes[resource as usize].open > 0)
            .map(|&resource| Reverse((self.level(resource), resource)))
            .collect();
        while let Some(Reverse((known, resource))) = levels.pop() {
            if self.nodes[resource as usize].open == 0 {
                continue;
            }
            // Levels only rise while others are fixed, so an outdated one comes too early.
            let level = self.level(resource);
            if level > known {
                levels.push(Reverse((level, resource)));
                continue;
            }
            let classes = std::mem::take(&mut self.nodes[resource as usize].classes);
            for &id in &classes {
                self.fix(id, level.0);
            }
            self.nodes[resource as usize].classes = classes;
        }
    }

    fn level(&self, resource: Resource) -> Ordered {
        let node = &self.nodes[resource as usize];
        Ordered(node.left.max(0.0) / node.demand)
    }

    fn fix(&mut self, id: u32, rate: f64) {
        let class = &mut self.classes[id as usize];
        if std::mem::replace(&mut class.fixed, true) {
            return;
        }
        let count = class.requests();
        for share in class.way.shares() {
            let node = &mut self.nodes[share.resource as usize];
            node.left -= count * share.cost * rate;
            node.used += count * share.cost * rate;
            node.demand -= count * share.cost;
            node.open -= 1;
        }
        if class.rate == rate && class.version == class.scheduled {
            return;
        }
        class.bring_to(self.now_ns);
        class.rate = rate;
        class.version += 1;
        class.scheduled = class.version;
        if let Some(&Reverse((Ordered(end), ..))) = class.transfers.peek()
            && rate > 0.0
        {
            let wait = ((end - class.served).max(0.0) / rate * 1e9).ceil();
            let at_ns = self.now_ns.saturating_add(wait as u64);
            let at_ns = at_ns.checked_next_multiple_of(self.grain_ns).unwrap_or(u64::MAX);
            self.ends.push(Reverse((at_ns, id, class.version)));
        }
    }
}

impl Class {
    /// Requests of all its transfers.
    fn requests(&self) -> f64 {
        self.transfers.len() as f64 * f64::from(self.way.requests)
    }

    /// Adds what moved since the rate was last looked at.
    fn bring_to(&mut self, now_ns: u64) {
        self.served += self.rate * seconds(now_ns - self.since_ns);
        self.since_ns = now_ns;
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Runs until nothing moves; when each token was done.
    fn ends(fluid: &mut Fluid) -> Vec<(usize, u64)> {
        let mut ends = Vec::new();
        let mut done = Vec::new();
        while let Some(at) = fluid.next_end_ns() {
            fluid.advance(at, &mut done);
            ends.extend(done.drain(..).map(|token| (token, at)));
        }
        ends
    }

    #[test]
    fn many_requests_get_many_shares() {
        // Three of four requests are the mover's: 3000 bytes in 1 s, beside 1000 of a rank.
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        let way = Way::default().through(device, 4_000);
        fluid.start(way.at_once(3), 3_000, 0);
        fluid.start(way, 1_000, 1);
        fluid.start(way.at_once(3), 0, 2);
        let at = |token, ends: &[(usize, u64)]| ends.iter().find(|(of, _)| *of == token).unwrap().1;
        let found = ends(&mut fluid);
        assert!(at(0, &found).abs_diff(S) < 10 && at(1, &found).abs_diff(S) < 10, "{found:?}");
        assert_eq!(at(2, &found), 0);
        // What is cancelled says what is left in bytes.
        fluid.start(way.at_once(3), 4_000, 3);
        assert_eq!(fluid.next_end_ns().map(|end| end.abs_diff(2 * S) < 10), Some(true));
        assert_eq!(fluid.cancel(|token| token == 3), [(3, 4_000)]);
    }

    #[test]
    fn one_transfer_has_the_device_for_itself() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        fluid.start(Way::default().through(device, 100), 250, 7);
        assert_eq!(ends(&mut fluid), [(7, 2_500_000_000)]);
        assert!((fluid.busy_seconds(device) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn equals_share_and_the_last_gets_all() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        let way = Way::default().through(device, 100);
        fluid.start(way, 100, 0);
        fluid.start(way, 300, 1);
        // Both at 50 until 2 s; then 200 bytes at 100.
        assert_eq!(ends(&mut fluid), [(0, 2 * S), (1, 4 * S)]);
    }

    #[test]
    fn a_transfer_that_comes_later_slows_the_others() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        let way = Way::default().through(device, 100);
        fluid.start(way, 200, 0);
        fluid.advance(S, &mut Vec::new());
        fluid.start(way, 50, 1);
        assert_eq!(ends(&mut fluid), [(1, 2 * S), (0, 2 * S + S / 2)]);
    }

    #[test]
    fn reads_and_writes_share_device_time() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        // At the same rate r: r / 300 + r / 100 = 1, so r = 75.
        fluid.start(Way::default().through(device, 300), 75, 0);
        fluid.start(Way::default().through(device, 100), 75, 1);
        assert_eq!(ends(&mut fluid), [(0, S), (1, S)]);
    }

    /// The textbook case: links of 10 and 8; one transfer over both, one over each, two more on the
    /// second. The second gives 2 to each of its four; the first has 8 left for its own.
    #[test]
    fn shares_are_max_min_fair() {
        let mut fluid = Fluid::new(1);
        let (a, b) = (fluid.add(1.0), fluid.add(1.0));
        let over_a = Way::default().through(a, 10);
        let over_b = Way::default().through(b, 8);
        fluid.start(over_a.through(b, 8), 2, 0);
        fluid.start(over_a, 8, 1);
        for token in 2..5 {
            fluid.start(over_b, 2, token);
        }
        let mut ends = ends(&mut fluid);
        ends.sort_unstable();
        assert_eq!(ends, [(0, S), (1, S), (2, S), (3, S), (4, S)]);
    }

    #[test]
    fn a_slower_device_slows_and_a_dead_one_stops() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        fluid.start(Way::default().through(device, 100), 100, 0);
        fluid.set_capacity(device, 0.0);
        assert_eq!(fluid.next_end_ns(), None);
        fluid.advance(5 * S, &mut Vec::new());
        fluid.set_capacity(device, 0.5);
        assert_eq!(ends(&mut fluid), [(0, 7 * S)]);
    }

    #[test]
    fn what_passes_nothing_is_done_at_once() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        fluid.start(Way::default().through(device, 0), 1 << 40, 0);
        fluid.start(Way::default().through(device, 1), 0, 1);
        assert_eq!(ends(&mut fluid), [(0, 0), (1, 0)]);
    }

    #[test]
    fn cancelled_transfers_say_what_was_left() {
        let mut fluid = Fluid::new(1);
        let device = fluid.add(1.0);
        let way = Way::default().through(device, 100);
        for token in 0..4 {
            fluid.start(way, 100, token);
        }
        fluid.advance(2 * S, &mut Vec::new());
        let cancelled = fluid.cancel(|token| token % 2 == 0);
        assert_eq!(cancelled, [(0, 50), (2, 50)]);
        assert_eq!(ends(&mut fluid), [(1, 3 * S), (3, 3 * S)]);
    }

    /// Random ways over a few devices: no device is overloaded, and no way could have more without
    /// another at the same or a lower rate having less.
    #[test]
    fn random_shares_are_max_min_fair() {
        for seed in 0..200 {
            let mut random = forebay_placement::Random::new(seed);
            let mut fluid = Fluid::new(1);
            let devices: Vec<_> = (0..5).map(|_| fluid.add(1.0)).collect();
            for token in 0..12 {
                let mut way = Way::default();
                for &device in &devices {
                    if random.below(2) == 1 {
                        way = way.through(device, 1 + random.below(1000));
                    }
                }
                fluid.start(way, 1000 + random.below(100_000), token);
            }
            while let Some(at) = fluid.next_end_ns() {
                fluid.update_rates();
                check(&fluid, seed);
                fluid.advance(at, &mut Vec::new());
            }
        }
    }

    fn check(fluid: &Fluid, seed: u64) {
        let active = || fluid.classes.iter().filter(|class| !class.transfers.is_empty());
        let mut used = vec![0.0; fluid.nodes.len()];
        let mut fastest = vec![0.0_f64; fluid.nodes.len()];
        for class in active() {
            for share in class.way.shares() {
                let at = share.resource as usize;
                used[at] += class.transfers.len() as f64 * class.rate * share.cost;
                fastest[at] = fastest[at].max(class.rate);
            }
        }
        assert!(used.iter().all(|used| *used <= 1.0 + 1e-9), "seed {seed}: overload {used:?}");
        for class in active() {
            let bottleneck = class.way.shares().iter().any(|share| {
                let at = share.resource as usize;
                used[at] >= 1.0 - 1e-9 && class.rate >= fastest[at] * (1.0 - 1e-9)
            });
            assert!(bottleneck, "seed {seed}: {class:?} could have more");
        }
    }
}
