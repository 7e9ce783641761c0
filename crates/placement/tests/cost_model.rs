//! Which cost model, and which share of a move to count, makes programs wait least: the measurement
//! behind the defaults, see docs/design/placement.md.
//!
//! A fluid model of the paper's testbed (Figure 7, bandwidths as tested): a program writes 64 GB
//! sixteen times and computes in between. The organizer moves and flushes all the time; a program
//! that writes to a tier shares its bandwidth with what the organizer moves through it.

use forebay_placement::organizer::{Event, Settings, Task, organize};
use forebay_placement::{
    Costs, Destination, Hierarchy, Model, Request, TierSnapshot, Watermarks, policy,
};

const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;
const PHASES: u64 = 16;
const PHASE_BYTES: u64 = 64 * GB;
const REQUEST_BYTES: u64 = GB;
/// Seconds of the model's clock, for tiers of full size.
const STEP: f64 = 0.002;

struct Cluster {
    hierarchy: Hierarchy,
    /// Bytes that left a tier, but not yet whole: moving is continuous, snapshots are not.
    flows: Vec<f64>,
    settings: Settings,
    /// The program is writing to the store itself.
    is_around: bool,
    step: f64,
}

fn tier(capacity: u64, read: u64, write: u64, latency_ns: u64) -> TierSnapshot {
    TierSnapshot {
        capacity,
        free: capacity,
        read_bandwidth: read * MB,
        write_bandwidth: write * MB,
        latency_ns,
        ..TierSnapshot::default()
    }
}

impl Cluster {
    fn new(costs: Costs, moves_down: bool, scale: u64) -> Self {
        let tiers = [
            tier(128 * GB / scale, 92_647, 86_496, 14),
            tier(384 * GB / scale, 38_674, 33_103, 20_000),
            tier(512 * GB / scale, 3_326, 2_762, 60_000),
        ];
        let store = tier(u64::MAX, 883, 735, 4_160_000);
        let hierarchy = Hierarchy::new(&tiers).unwrap().with_store(store).with_costs(costs);
        let settings = Settings { marks: Watermarks::default(), unit: MB, moves_down };
        Self {
            hierarchy,
            flows: vec![0.0; 3],
            settings,
            is_around: false,
            step: STEP * scale as f64,
        }
    }

    /// Lets the organizer work for some time.
    fn pass(&mut self, seconds: f64) {
        let mut left = seconds;
        while left > 0.0 {
            let step = left.min(self.step);
            left -= step;
            self.flows.fill(0.0);
            for task in organize(&Event::Periodic, &self.hierarchy, &self.settings).iter() {
                match task {
                    Task::Demote { from, to: Destination::Tier(to), bytes } => {
                        self.demote(from, to, bytes, step);
                    }
                    Task::Flush { tier, bytes } => self.flush(tier, bytes, step),
                    // Room that only a flush can make is made by the flush above.
                    Task::Demote { to: Destination::Store, .. } => {}
                }
            }
        }
    }

    fn demote(&mut self, from: usize, to: usize, bytes: u64, seconds: f64) {
        let tiers = self.hierarchy.tiers_mut();
        let speed = tiers[from].read_bandwidth.min(tiers[to].write_bandwidth) as f64;
        let moved = bytes.min((speed * seconds) as u64).min(tiers[from].dirty);
        (tiers[from].free, tiers[from].dirty) =
            (tiers[from].free + moved, tiers[from].dirty - moved);
        (tiers[to].free, tiers[to].dirty) = (tiers[to].free - moved, tiers[to].dirty + moved);
        self.flows[from] += speed;
        self.flows[to] += speed;
    }

    /// What is flushed is as good as free.
    fn flush(&mut self, tier: usize, bytes: u64, seconds: f64) {
        let dirty: u64 = self.hierarchy.tiers().iter().map(|tier| tier.dirty).sum();
        let mut store = self.hierarchy.store.write_bandwidth as f64;
        if self.is_around {
            store /= 2.0;
        }
        let tier = &mut self.hierarchy.tiers_mut()[tier];
        let share = store * tier.dirty as f64 / dirty.max(1) as f64;
        let flushed = bytes.min((share * seconds) as u64);
        (tier.free, tier.dirty) = (tier.free + flushed, tier.dirty - flushed);
    }

    /// Writes a request as planned; returns the seconds that the program waits.
    fn write(&mut self, name: &str) -> f64 {
        let request = Request { bytes: REQUEST_BYTES, ..Request::default() };
        let plan = policy(name).unwrap().plan(&self.hierarchy, &request);
        let mut seconds = 0.0;
        for piece in plan.pieces() {
            let Destination::Tier(to) = piece.to else {
                let is_flushing = self.hierarchy.tiers().iter().any(|tier| tier.dirty > 0);
                let sharers = if is_flushing { 2.0 } else { 1.0 };
                let store = self.hierarchy.store.write_bandwidth as f64;
                let taken = piece.bytes as f64 * sharers / store;
                self.is_around = true;
                self.pass(taken);
                self.is_around = false;
                seconds += taken;
                continue;
            };
            while self.hierarchy.tiers()[to].free < piece.bytes {
                self.pass(self.step);
                seconds += self.step;
            }
            let tier = &mut self.hierarchy.tiers_mut()[to];
            (tier.free, tier.dirty) = (tier.free - piece.bytes, tier.dirty + piece.bytes);
            let full = tier.write_bandwidth as f64;
            let speed = (full - self.flows[to]).max(full / 2.0);
            self.pass(piece.bytes as f64 / speed);
            seconds += piece.bytes as f64 / speed;
        }
        seconds
    }
}

/// Seconds that a program waits for its writes when it computes so long after each phase.
fn write_seconds(name: &str, costs: Costs, compute_seconds: f64, scale: u64) -> f64 {
    let mut cluster = Cluster::new(costs, policy(name).unwrap().moves_down(), scale);
    let mut seconds = 0.0;
    for _ in 0..PHASES {
        for _ in 0..PHASE_BYTES / REQUEST_BYTES {
            seconds += cluster.write(name);
        }
        cluster.pass(compute_seconds);
    }
    seconds
}

/// Seconds of computation after each phase, and what part of their size the tiers have.
const CASES: [(f64, u64); 4] = [(0.0, 1), (5.0, 1), (60.0, 1), (5.0, 4)];

#[test]
fn the_default_costs_make_programs_wait_least() {
    let page = include_str!("../../../docs/design/placement.md");
    let mut missing = Vec::new();
    for name in ["max-bandwidth", "max-locality", "hot-data"] {
        let mut rows = Vec::new();
        for model in [Model::Physical, Model::Paper] {
            for exposed_permille in [500, 750, 980, 1000] {
                let costs = Costs { model, exposed_permille };
                let row = CASES.map(|(compute, scale)| write_seconds(name, costs, compute, scale));
                let cells = row.map(|seconds| format!("{seconds:.1} s")).join(" | ");
                let model = if model == Model::Paper { "paper" } else { "physical" };
                let share = f64::from(exposed_permille) / 10.0;
                let line = format!("| {name} | {model} | {share} % | {cells} |");
                println!("{line}");
                if !page.contains(&line) {
                    missing.push(line);
                }
                rows.push((costs, row));
            }
        }
        let of_default = rows.iter().find(|(costs, _)| *costs == Costs::default());
        let (_, of_default) = of_default.expect("the default is among them");
        for (index, waited) in of_default.iter().enumerate() {
            let best = rows.iter().map(|(_, row)| row[index]).fold(f64::INFINITY, f64::min);
            assert!(*waited <= 1.01 * best, "{name}: {waited} instead of {best}");
        }
    }
    assert!(missing.is_empty(), "docs/design/placement.md lacks\n{}", missing.join("\n"));
}
