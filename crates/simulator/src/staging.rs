//! Staged files on a large machine: what Data Elevator's figures compare, on the decisions that the
//! node manager carries out (`forebay_placement::staged`, `flush_order`).
//!
//! A program computes, writes a file to a burst buffer's servers, and goes on. A file passes from
//! state to state; while it drains, movers read it from the servers in parts and write these to
//! the targets of the store, request by request. Movers are processes on compute nodes (Data
//! Elevator, Forebay) or the servers themselves (DataWarp). Devices and links are shared as the
//! [fluid model](crate::fluid) says.
//!
//! ```
//! use forebay_simulator::staging::{Job, Machine, Movers, Strategy, simulate};
//!
//! let machine = Machine::cori();
//! let job = Job { nodes: 64, processes: 1024, steps: 1, bytes: 64_000_000_000, compute_ns: 0 };
//! let staged = Strategy::overlapped(Movers::Nodes { nodes: 64, processes: 1024 });
//! let outcome = simulate(&machine, &job, &staged);
//! assert_eq!(outcome.whole, outcome.requests, "each request is a stripe, or the end");
//! ```

use crate::fluid::{Fluid, Resource, Way};
use forebay_placement::flush_order::{Extent, Limits, order};
use forebay_placement::staged::{Seen, Stage, next};
use std::collections::VecDeque;

/// The machine. What a paper does not say of it is assumed, and named where it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes per second of a compute node's link, each way.
    pub link: u64,
    /// Bytes per second that a compute node gives to the store at most.
    pub node_to_store: u64,
    /// Servers of the burst buffer.
    pub servers: u32,
    /// Bytes per second that a server's flash reads.
    pub flash_read: u64,
    /// Bytes per second that a server's flash takes.
    pub flash_write: u64,
    /// Bytes per second that a server passes on, in both directions together.
    pub server: u64,
    /// Bytes per second that a server gives to the store at most, where it moves files itself.
    pub server_to_store: u64,
    /// What part of a server's capacity is lost while it takes new files and moves others.
    pub contention: f64,
    /// Targets (disks) of the store.
    pub targets: u32,
    /// Bytes per second that a target takes of a request.
    pub target: u64,
    /// Nanoseconds that a target loses to each request, or part of one: seek and lock.
    pub piece_ns: u64,
    /// Bytes of a stripe, which lies on one target.
    pub stripe: u64,
}

impl Machine {
    /// Cori, Phase 1 (Data Elevator, section IV): 144 servers, 248 targets, stripes of 8 MB. The
    /// speeds are not in the paper. `piece_ns` is fitted to what alignment gains there (+65 %, with
    /// disks of 180 MB/s; moving the kernels' files then takes 4 and 10 s, as Figure 5 shows), and
    /// `server` to the mean of what overlap saves (39 %). `contention`, and what nodes, links and
    /// flash can do at most, is assumed.
    pub fn cori() -> Machine {
        Machine {
            link: 8_000_000_000,
            node_to_store: 900_000_000,
            servers: 144,
            flash_read: 5_700_000_000,
            flash_write: 5_700_000_000,
            server: 170_000_000,
            server_to_store: 170_000_000,
            contention: 0.6,
            targets: 248,
            target: 180_000_000,
            piece_ns: 82_000_000,
            stripe: 8_000_000,
        }
    }
}

impl Machine {
    /// Device-seconds of all targets for each byte of a file that goes there in so many pieces, by
    /// processes that wait for each of their requests. Each has one at any of the targets, so that
    /// some have several and others none: these are idle.
    fn target_cost(&self, bytes: u64, pieces: u64, processes: u32) -> f64 {
        let seek = self.piece_ns as f64 / 1e9 * pieces as f64 / bytes.max(1) as f64;
        let targets = f64::from(self.targets);
        let busy = 1.0 - (1.0 - 1.0 / targets).powi(processes.max(1) as i32);
        (1.0 / self.target as f64 + seek) / (targets * busy)
    }
}

/// Requests that each of DataWarp's servers has under way: one from each of its two devices.
const OF_SERVER: u32 = 2;

fn processes_of(machine: &Machine, strategy: &Strategy) -> u32 {
    match strategy.movers {
        Movers::Nodes { processes, .. } | Movers::OtherNodes { processes, .. } => processes,
        Movers::Servers => machine.servers * OF_SERVER,
    }
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Compute nodes that it runs on.
    pub nodes: u32,
    /// Its processes, which write at the same time.
    pub processes: u32,
    /// Files that it writes, one after the other.
    pub steps: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// Nanoseconds of computing before each.
    pub compute_ns: u64,
}

/// Who moves files to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movers {
    /// Processes on the nodes of the program: they share links, and what nodes give to the store.
    Nodes {
        /// How many of the nodes.
        nodes: u32,
        /// On all of them together.
        processes: u32,
    },
    /// Processes on nodes of their own.
    OtherNodes {
        /// How many.
        nodes: u32,
        /// On all of them together.
        processes: u32,
    },
    /// The servers of the burst buffer.
    Servers,
}

/// A way of staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Who moves.
    pub movers: Movers,
    /// Whether nothing is moved before the program has ended.
    pub waits_for_exit: bool,
    /// Whether the next part is read while one is written.
    pub overlaps: bool,
    /// Whether requests begin and end where stripes do.
    pub is_aligned: bool,
    /// Parts in which a file goes through the movers' memory.
    pub parts: u32,
}

impl Strategy {
    /// Data Elevator's and Forebay's: after the close, overlapped, in whole stripes.
    pub fn overlapped(movers: Movers) -> Strategy {
        Strategy { movers, waits_for_exit: false, overlaps: true, is_aligned: true, parts: 64 }
    }

    /// DataWarp's command (`stage_out` of the job's script) or its API.
    pub fn datawarp(waits_for_exit: bool) -> Strategy {
        Strategy { waits_for_exit, overlaps: false, ..Strategy::overlapped(Movers::Servers) }
    }
}

/// What has come of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Nanoseconds in which the program wrote to the burst buffer.
    pub write_ns: u64,
    /// Nanoseconds in which any file was in state D.
    pub moving_ns: u64,
    /// When the program ended.
    pub exit_ns: u64,
    /// When the store had everything.
    pub end_ns: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Those that are a stripe, or the end of a file.
    pub whole: u64,
    /// Parts of requests on one target each.
    pub pieces: u64,
}

impl Outcome {
    /// Nanoseconds that data movement took from end to end: all but computing.
    pub fn movement_ns(&self, job: &Job) -> u64 {
        self.end_ns.saturating_sub(u64::from(job.steps) * job.compute_ns)
    }
}

/// Requests, whole ones, and pieces of a file that so many movers take to the store.
pub fn requests(bytes: u64, stripe: u64, movers: u32, is_aligned: bool) -> (u64, u64, u64) {
    let share = match is_aligned {
        // Parts end with stripes, but for the file's end.
        true => bytes.div_ceil(stripe).div_ceil(movers.max(1).into()) * stripe,
        false => bytes.div_ceil(movers.max(1).into()),
    };
    let (mut requests, mut whole, mut pieces) = (0, 0, 0);
    for start in (0..bytes).step_by(share.max(1) as usize) {
        let mut part = [Extent { file: 0, offset: start, bytes: share.min(bytes - start), id: 0 }];
        let limits = match is_aligned {
            true => Limits::one_stripe(stripe),
            false => Limits { most: stripe, ..Limits::default() },
        };
        for write in order(&mut part, limits) {
            let end = write.offset + write.bytes;
            let is_end = end.is_multiple_of(stripe) || end == bytes;
            requests += 1;
            whole += u64::from(write.offset.is_multiple_of(stripe) && is_end);
            pieces += (end - 1) / stripe - write.offset / stripe + 1;
        }
    }
    (requests, whole, pieces)
}

/// What a transfer is; its number is the token of the fluid model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Write,
    ReadPart,
    WritePart,
}

/// A file on its way.
struct File {
    stage: Option<Stage>,
    /// Parts that no mover has begun to read, that lie in the movers' memory, that are stored.
    unread: u32,
    in_memory: u32,
    done: u32,
}

/// The resources of a machine, as many together as there are.
struct Resources {
    flash: Resource,
    server: Resource,
    link_out: Resource,
    mover_in: Resource,
    mover_out: Resource,
    mover_to_store: Resource,
    targets: Resource,
}

struct Model<'a> {
    machine: &'a Machine,
    job: &'a Job,
    strategy: &'a Strategy,
    fluid: Fluid,
    at: Resources,
    files: Vec<File>,
    /// Files that may drain, in order; the first is under way.
    queue: VecDeque<usize>,
    tasks: Vec<Task>,
    /// When computing ends; none while the program writes, or has ended.
    computes_until: Option<u64>,
    is_writing: bool,
    has_ended: bool,
    reads: bool,
    writes: bool,
    write_since: u64,
    outcome: Outcome,
    /// Device-seconds of all targets for each byte of a part, and what files are made of.
    target_cost: f64,
}

/// Runs a job.
pub fn simulate(machine: &Machine, job: &Job, strategy: &Strategy) -> Outcome {
    let mut fluid = Fluid::new(1_000);
    let [flash, server, link_out, to_store, targets] = [(); 5].map(|()| fluid.add(1.0));
    let own = |fluid: &mut Fluid| [(); 3].map(|()| fluid.add(1.0));
    let [mover_in, mover_out, mover_to_store] = match strategy.movers {
        Movers::Nodes { .. } => [fluid.add(1.0), link_out, to_store],
        Movers::OtherNodes { .. } | Movers::Servers => own(&mut fluid),
    };
    let at = Resources { flash, server, link_out, mover_in, mover_out, mover_to_store, targets };
    let processes = processes_of(machine, strategy);
    let (count, whole, pieces) =
        requests(job.bytes, machine.stripe, processes, strategy.is_aligned);
    let target_cost = machine.target_cost(job.bytes, pieces, processes);
    let steps = u64::from(job.steps);
    let outcome = Outcome {
        requests: count * steps,
        whole: whole * steps,
        pieces: pieces * steps,
        ..Outcome::default()
    };
    let mut model = Model {
        machine,
        job,
        strategy,
        fluid,
        at,
        files: Vec::new(),
        queue: VecDeque::new(),
        tasks: Vec::new(),
        computes_until: (job.steps > 0).then_some(job.compute_ns),
        is_writing: false,
        has_ended: job.steps == 0,
        reads: false,
        writes: false,
        write_since: 0,
        outcome,
        target_cost,
    };
    model.run();
    model.outcome
}

impl Model<'_> {
    fn run(&mut self) {
        let mut done = Vec::new();
        while let Some(to_ns) = self.next_ns() {
            let was_moving = self.is_moving();
            let since = self.fluid.now_ns();
            self.fluid.advance(to_ns, &mut done);
            if was_moving {
                self.outcome.moving_ns += to_ns - since;
            }
            for token in done.drain(..) {
                self.finish(self.tasks[token]);
            }
            if self.computes_until.is_some_and(|until| until <= to_ns) {
                self.begin_write();
            }
            self.pass_on();
            self.move_parts();
            self.contend();
        }
        self.outcome.end_ns = self.fluid.now_ns();
        assert!(self.files.iter().all(|file| file.stage == Some(Stage::Drained)));
    }

    fn next_ns(&mut self) -> Option<u64> {
        let end = self.fluid.next_end_ns();
        [end, self.computes_until].into_iter().flatten().min()
    }

    fn is_moving(&self) -> bool {
        self.files.iter().any(|file| file.stage == Some(Stage::Draining))
    }

    fn start(&mut self, task: Task, way: Way, bytes: u64) {
        self.tasks.push(task);
        self.fluid.start(way, bytes, self.tasks.len() - 1);
    }

    fn all(&self, bandwidth: u64, count: u32) -> u64 {
        bandwidth * u64::from(count)
    }

    fn begin_write(&mut self) {
        let Machine { servers, .. } = *self.machine;
        self.computes_until = None;
        self.is_writing = true;
        self.write_since = self.fluid.now_ns();
        self.files.push(File { stage: None, unread: 0, in_memory: 0, done: 0 });
        let way = Way::default()
            .through(self.at.link_out, self.all(self.machine.link, self.job.nodes))
            .through(self.at.server, self.all(self.machine.server, servers))
            .through(self.at.flash, self.all(self.machine.flash_write, servers))
            .at_once(self.job.processes);
        self.start(Task::Write, way, self.job.bytes);
    }

    fn finish(&mut self, task: Task) {
        let now = self.fluid.now_ns();
        match task {
            Task::Write => {
                self.is_writing = false;
                self.outcome.write_ns += now - self.write_since;
                if let Some(file) = self.files.last_mut() {
                    file.unread = self.strategy.parts.max(1);
                }
                match self.files.len() < self.job.steps as usize {
                    true => self.computes_until = Some(now + self.job.compute_ns),
                    false => {
                        self.has_ended = true;
                        self.outcome.exit_ns = now;
                    }
                }
            }
            Task::ReadPart => {
                self.reads = false;
                if let Some(file) = self.draining() {
                    file.in_memory += 1;
                }
            }
            Task::WritePart => {
                self.writes = false;
                if let Some(file) = self.draining() {
                    file.in_memory -= 1;
                    file.done += 1;
                }
            }
        }
    }

    fn draining(&mut self) -> Option<&mut File> {
        let &first = self.queue.front()?;
        self.files.get_mut(first)
    }

    /// Takes each file from state to state, as far as it can go.
    fn pass_on(&mut self) {
        let parts = self.strategy.parts.max(1);
        let newest = self.files.len().wrapping_sub(1);
        let may_drain = self.has_ended || !self.strategy.waits_for_exit;
        for (number, file) in self.files.iter_mut().enumerate() {
            let is_written = self.is_writing && number == newest;
            loop {
                let seen = Seen { is_written, is_held: false, is_behind: file.done < parts };
                let Some(to) = next(file.stage, seen) else { break };
                if to == Stage::Draining {
                    if !may_drain {
                        break;
                    }
                    self.queue.push_back(number);
                }
                file.stage = Some(to);
                if to == Stage::Drained {
                    self.queue.retain(|queued| *queued != number);
                }
            }
        }
    }

    /// Begins what movers can do now: a read, if there is memory for it, and a write.
    fn move_parts(&mut self) {
        let parts = self.strategy.parts.max(1);
        let bytes = self.job.bytes.div_ceil(parts.into());
        let buffers = if self.strategy.overlaps { 2 } else { 1 };
        let (reads, writes) = (self.reads, self.writes);
        let Some(file) = self.draining() else { return };
        let can_write = !writes && file.in_memory > 0;
        let can_read = !reads && file.unread > 0 && file.in_memory < buffers;
        if can_read {
            file.unread -= 1;
        }
        if can_write {
            self.writes = true;
            let way = self.way_to_store();
            self.start(Task::WritePart, way, bytes);
        }
        if can_read {
            self.reads = true;
            let way = self.way_from_servers();
            self.start(Task::ReadPart, way, bytes);
        }
    }

    /// Nodes and processes of the movers.
    fn movers(&self) -> (u32, u32) {
        match self.strategy.movers {
            Movers::Nodes { nodes, processes } | Movers::OtherNodes { nodes, processes } => {
                (nodes, processes)
            }
            Movers::Servers => (self.machine.servers, processes_of(self.machine, self.strategy)),
        }
    }

    fn way_from_servers(&self) -> Way {
        let Machine { servers, flash_read, server, link, .. } = *self.machine;
        let (nodes, processes) = self.movers();
        let way = Way::default().through(self.at.flash, self.all(flash_read, servers));
        let way = match self.strategy.movers {
            Movers::Servers => way,
            Movers::Nodes { .. } | Movers::OtherNodes { .. } => way
                .through(self.at.server, self.all(server, servers))
                .through(self.at.mover_in, self.all(link, nodes)),
        };
        way.at_once(processes)
    }

    fn way_to_store(&self) -> Way {
        let Machine { servers, server, link, node_to_store, server_to_store, .. } = *self.machine;
        let (nodes, processes) = self.movers();
        let way = match self.strategy.movers {
            Movers::Servers => Way::default()
                .through(self.at.server, self.all(server, servers))
                .through(self.at.mover_to_store, self.all(server_to_store, servers)),
            Movers::Nodes { .. } | Movers::OtherNodes { .. } => Way::default()
                .through(self.at.mover_out, self.all(link, nodes))
                .through(self.at.mover_to_store, self.all(node_to_store, nodes)),
        };
        way.at_cost(self.at.targets, self.target_cost).at_once(processes)
    }

    /// Servers that take new files and move others at the same time do both more slowly.
    fn contend(&mut self) {
        let is_both = self.is_writing
            && (self.reads || self.writes)
            && self.strategy.movers == Movers::Servers;
        let left = if is_both { 1.0 - self.machine.contention.clamp(0.0, 0.99) } else { 1.0 };
        self.fluid.set_capacity(self.at.server, left);
        self.fluid.set_capacity(self.at.flash, left);
        if self.strategy.movers == Movers::Servers {
            self.fluid.set_capacity(self.at.mover_to_store, left);
        }
    }
}

/// Nanoseconds until a job is done that writes straight to the store, from its own nodes.
pub fn direct_ns(machine: &Machine, job: &Job) -> u64 {
    let (_, _, pieces) = requests(job.bytes, machine.stripe, job.processes, false);
    let cost = machine.target_cost(job.bytes, pieces, job.processes);
    let nodes = f64::from(job.nodes);
    let slowest = cost
        .max(1.0 / (machine.node_to_store as f64 * nodes))
        .max(1.0 / (machine.link as f64 * nodes));
    let step_s = job.bytes as f64 * slowest;
    u64::from(job.steps) * (job.compute_ns + (step_s * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: Movers = Movers::Nodes { nodes: 64, processes: 1024 };

    fn job(steps: u32, compute_ns: u64) -> Job {
        Job { nodes: 64, processes: 1024, steps, bytes: 64_000_000_000, compute_ns }
    }

    /// Nothing but the flash, and targets that are slow.
    fn simple(flash: u64, store: u64) -> Machine {
        let much = 1_000_000_000_000;
        Machine {
            link: much,
            node_to_store: much,
            servers: 1,
            flash_read: flash,
            flash_write: flash,
            server: much,
            server_to_store: much,
            contention: 0.0,
            targets: 1,
            target: store,
            piece_ns: 0,
            stripe: 1_000_000,
        }
    }

    fn seconds(ns: u64) -> f64 {
        ns as f64 / 1e9
    }

    #[test]
    fn aligned_requests_are_stripes_and_others_touch_two() {
        let (stripe, bytes) = (1_000, 1_000_000 + 7);
        let (requests_, whole, pieces) = requests(bytes, stripe, 64, true);
        assert_eq!((requests_, whole, pieces), (1001, 1001, 1001));
        let (requests_, whole, pieces) = requests(bytes, stripe, 64, false);
        assert!(
            whole < requests_ / 2 && pieces > requests_ * 3 / 2,
            "{requests_} {whole} {pieces}"
        );
        assert_eq!(requests(0, stripe, 4, true), (0, 0, 0));
    }

    #[test]
    fn overlap_hides_the_shorter_of_reading_and_writing() {
        for (flash, store) in [(1, 1), (2, 1), (4, 1), (1, 3)] {
            let machine = simple(flash * 1_000_000_000, store * 1_000_000_000);
            let with = Strategy::overlapped(NODES);
            let without = Strategy { overlaps: false, ..with };
            let moving = |strategy| seconds(simulate(&machine, &job(1, 0), strategy).moving_ns);
            let (r, w) = (64.0 / flash as f64, 64.0 / store as f64);
            assert!((moving(&without) - (r + w)).abs() < 0.1, "{}", moving(&without));
            let longest = r.max(w) + r.min(w) / f64::from(with.parts);
            assert!((moving(&with) - longest).abs() < 0.1, "{} {longest}", moving(&with));
        }
    }

    #[test]
    fn alignment_pays_as_seeks_do() {
        let times = |piece_ns| {
            let machine = Machine { piece_ns, ..simple(1_000_000_000_000, 1_000_000_000) };
            let time = |is_aligned| {
                // Whose shares do not end with stripes.
                let movers = Movers::Nodes { nodes: 64, processes: 1021 };
                let strategy = Strategy { is_aligned, ..Strategy::overlapped(movers) };
                seconds(simulate(&machine, &job(1, 0), &strategy).moving_ns)
            };
            time(false) / time(true)
        };
        assert!((times(0) - 1.0).abs() < 0.01);
        // A stripe takes 1 ms: 2 s more for each second of seek, up to twice as long.
        let gains: Vec<f64> = [500_000, 1_000_000, 10_000_000].map(times).into();
        assert!(gains[0] > 1.2 && gains[1] > gains[0] && gains[2] > gains[1], "{gains:?}");
        assert!(gains[2] < 2.05, "{gains:?}");
    }

    #[test]
    fn a_command_moves_nothing_before_the_end_and_an_api_does() {
        let machine = simple(4_000_000_000, 4_000_000_000);
        let job = job(4, 40_000_000_000);
        let command = simulate(&machine, &job, &Strategy::datawarp(true));
        let api = simulate(&machine, &job, &Strategy::datawarp(false));
        // 4 x (40 + 16) s; then 4 x 32 s, or those of the last file.
        assert!((seconds(command.exit_ns) - 224.0).abs() < 0.5, "{command:?}");
        assert!((seconds(command.end_ns) - 352.0).abs() < 0.5, "{command:?}");
        assert!((seconds(api.end_ns) - 256.0).abs() < 0.5, "{api:?}");
        assert_eq!(command.requests, 4 * 64_000);
    }

    #[test]
    fn servers_that_do_both_lose_what_is_said() {
        let with = |contention| {
            let machine = Machine { contention, ..Machine::cori() };
            simulate(&machine, &job(8, 0), &Strategy::datawarp(false)).end_ns
        };
        assert!(with(0.8) > with(0.4) && with(0.4) > with(0.0));
        let machine = |contention| Machine { contention, ..Machine::cori() };
        let by_nodes = |contention| {
            simulate(&machine(contention), &job(8, 0), &Strategy::overlapped(NODES)).end_ns
        };
        assert_eq!(by_nodes(0.0), by_nodes(0.8), "movers on nodes do not meet it");
    }

    #[test]
    fn fewer_nodes_give_less_to_the_store() {
        let time = |movers| {
            let strategy = Strategy::overlapped(movers);
            simulate(&Machine::cori(), &job(1, 0), &strategy).moving_ns
        };
        let shared = time(NODES);
        // Eight nodes give 7.2 GB/s, and targets take more than that.
        let disjoint = time(Movers::OtherNodes { nodes: 8, processes: 1024 });
        assert!(disjoint > shared * 3 / 2, "{disjoint} {shared}");
        let fewer = time(Movers::Nodes { nodes: 64, processes: 256 });
        assert!(fewer > shared * 5 / 4, "some targets are idle: {fewer} {shared}");
    }

    #[test]
    fn a_job_of_nothing_ends_at_once() {
        let outcome = simulate(&Machine::cori(), &job(0, 5), &Strategy::overlapped(NODES));
        assert_eq!((outcome.end_ns, outcome.write_ns), (0, 0));
    }
}
