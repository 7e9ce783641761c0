//! Laws that every run keeps, closed-form results of tiny runs, and what faults may take.
//!
//! Random runs print their seed; FOREBAY_SEED=n repeats one.

use forebay_placement::Random;
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::hotness::HALF_LIFE_MS;
use forebay_placement::rounds::Ages;
use forebay_placement::{Model, Watermarks, names};
use forebay_simulator::*;

const MIB: u64 = 1 << 20;
const S: u64 = 1_000_000_000;

fn device(bandwidth: u64) -> Device {
    Device { read_bandwidth: bandwidth, write_bandwidth: bandwidth, latency_ns: 0 }
}

fn tier(name: &str, shared: bool, capacity: u64, bandwidth: u64) -> Tier {
    Tier {
        name: name.to_owned(),
        shared,
        devices: 1,
        capacity,
        device: device(bandwidth),
        stripe: 1,
    }
}

/// Two nodes with two ranks each; RAM 16 MiB at 64 MiB/s, a shared buffer of 64 MiB at 16 MiB/s, a
/// store at 4 MiB/s.
fn cluster() -> Cluster {
    Cluster {
        nodes: 2,
        ranks_per_node: 2,
        link: 0,
        block: MIB,
        tiers: vec![tier("ram", false, 16 * MIB, 64 * MIB), tier("bb", true, 64 * MIB, 16 * MIB)],
        store: Store {
            devices: 1,
            device: device(4 * MIB),
            stripe: 1,
            link: 0,
            seek_ns: 0,
            request: MIB,
            flush_request: MIB,
            flush_bandwidth: 0,
            opens: 0,
        },
    }
}

fn phases() -> Phases {
    Phases {
        phases: 4,
        compute_ns: S,
        jitter: 0,
        write: 4 * MIB,
        read: 0,
        repeat: 1,
        read_from: ReadFrom::Own,
        shared_file: false,
        opens: 1,
    }
}

fn strategy(tiers: Tiers, policy: &str, trigger: Trigger) -> Strategy {
    Strategy {
        name: policy.to_owned(),
        tiers,
        policy: policy.to_owned(),
        trigger,
        movers: Movers::Nodes,
        demote: true,
        promote: policy == "hot-data",
        prefetch: false,
        queue_depth: 1,
        costs: Model::default(),
        exposed: Exposed::Measured,
        eviction: Eviction::default(),
        watermarks: Watermarks::default(),
        half_life_ms: HALF_LIFE_MS,
        manager: None,
    }
}

fn forebay() -> Strategy {
    strategy(Tiers::All, "max-bandwidth", Trigger::Periodic(S))
}

fn run(phases: Phases, strategy: Strategy) -> Run {
    Run {
        cluster: cluster(),
        workload: Workload::Phases(phases),
        strategy,
        faults: Vec::new(),
        seed: 1,
        grain_ns: 1,
    }
}

fn at(seconds: u64, kind: FaultKind) -> Fault {
    Fault { at_ns: seconds * S, kind }
}

fn target(tier: Option<usize>, node: Option<u32>) -> Target {
    Target { tier, node, device: None }
}

fn is_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected * 1e-6 + 1e-6, "{found}, expected {expected}");
}

/// Every byte that was acknowledged is somewhere, and known to be.
fn check(outcome: &Outcome, context: &str) {
    let accounted = outcome.safe + outcome.replaced + outcome.kept + outcome.lost;
    assert_eq!(outcome.written, accounted, "{context}: {outcome:#?}");
    let placed: u64 = outcome.tiers.iter().map(|tier| tier.written).sum();
    assert_eq!(outcome.written, placed + outcome.direct, "{context}: {outcome:#?}");
    assert!(!outcome.stalled, "{context}: {outcome:#?}");
    assert!(outcome.end_s >= outcome.ranks_end_s, "{context}: {outcome:#?}");
    assert_eq!(outcome.lost > 0, !outcome.lost_files.is_empty(), "{context}: {outcome:#?}");
}

#[test]
fn without_buffers_the_store_decides() {
    // 4 ranks * 4 phases * 4 MiB at 4 MiB/s.
    let outcome = simulate(run(phases(), strategy(Tiers::None, "noop", Trigger::OnExit)));
    is_near(outcome.write_s, 16.0);
    is_near(outcome.ranks_end_s, 20.0);
    assert_eq!((outcome.flush_s, outcome.direct), (0.0, 64 * MIB));
    check(&outcome, "none");
}

#[test]
fn staging_writes_at_the_speed_of_its_tier_and_flushes_at_the_store_s() {
    let at_the_end = strategy(Tiers::Shared, "max-bandwidth", Trigger::OnExit);
    let roomy = Run {
        cluster: Cluster { tiers: vec![tier("bb", true, 640 * MIB, 16 * MIB)], ..cluster() },
        ..run(phases(), at_the_end)
    };
    let outcome = simulate(roomy);
    is_near(outcome.write_s, 4.0);
    is_near(outcome.flush_s, 16.0);
    check(&outcome, "on exit");
}

#[test]
fn flushing_overlaps_computing() {
    // A phase of 16 MiB is flushed in 4 s, and 10 s pass before the next.
    let long = Phases { compute_ns: 10 * S, ..phases() };
    let outcome = simulate(run(long, forebay()));
    is_near(outcome.write_s, 4.0 * 8.0 / 64.0);
    // The last phase is not hidden; its blocks are flushed as soon as the last rank ends.
    is_near(outcome.flush_s, 4.0);
    check(&outcome, "overlapped");
}

#[test]
fn reads_come_from_where_the_data_is() {
    let reading = Phases { read: 4 * MIB, read_from: ReadFrom::Phase, compute_ns: 0, ..phases() };
    let scratch = strategy(Tiers::All, "max-bandwidth", Trigger::Never);
    let outcome = simulate(run(Phases { phases: 1, ..reading }, scratch));
    is_near(outcome.read_s, 8.0 / 64.0);
    assert_eq!(outcome.tiers[0].read, 16 * MIB);
    let direct = strategy(Tiers::None, "noop", Trigger::Never);
    let outcome = simulate(run(Phases { phases: 1, ..reading }, direct));
    is_near(outcome.read_s, 4.0);
}

#[test]
fn opens_queue_at_the_metadata_server() {
    let mut slow = run(Phases { opens: 3, ..phases() }, forebay());
    slow.cluster.store.opens = 6;
    let outcome = simulate(slow);
    // 4 ranks * 3 opens at 6 a second, 4 times.
    is_near(outcome.open_s, 8.0);
}

#[test]
fn a_seek_for_each_piece_slows_the_store() {
    let mut seeking = run(phases(), strategy(Tiers::None, "noop", Trigger::OnExit));
    // A piece of 1 MiB takes 0.25 s and a seek of 0.25 s.
    seeking.cluster.store.seek_ns = S / 4;
    is_near(simulate(seeking).write_s, 32.0);
}

#[test]
fn a_flush_may_be_faster_than_what_applications_write() {
    let at_the_end = strategy(Tiers::Shared, "max-bandwidth", Trigger::OnExit);
    let mut roomy = run(phases(), at_the_end);
    roomy.cluster.tiers = vec![tier("bb", true, 640 * MIB, 16 * MIB)];
    roomy.cluster.store.flush_bandwidth = 8 * MIB;
    is_near(simulate(roomy.clone()).flush_s, 8.0);
    roomy.strategy = strategy(Tiers::None, "noop", Trigger::OnExit);
    is_near(simulate(roomy).write_s, 16.0);
}

#[test]
fn links_limit() {
    let mut narrow = run(phases(), strategy(Tiers::None, "noop", Trigger::OnExit));
    narrow.cluster.link = MIB;
    is_near(simulate(narrow).write_s, 32.0);
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let jittered = Phases { jitter: 300, read: 2 * MIB, repeat: 2, ..phases() };
    let first = simulate(run(jittered, forebay()));
    assert_eq!(first, simulate(run(jittered, forebay())));
    let other = simulate(Run { seed: 2, ..run(jittered, forebay()) });
    assert_ne!(first, other);
    check(&other, "jitter");
}

#[test]
fn a_traced_application_is_repeated() {
    let write = |file, offset, bytes| Op::Write(Range { file, offset, bytes });
    let read = |file, offset, bytes| Op::Read(Range { file, offset, bytes });
    // Two writers of one block, a rewrite, odd offsets, a file that was there before.
    let ranks = vec![
        vec![Op::Open(0), write(0, 0, 3 * MIB / 2), Op::Barrier, write(0, 0, MIB), Op::Close(0)],
        vec![Op::Open(0), Op::Barrier, write(0, 3 * MIB / 2, 100), Op::Close(0)],
        vec![Op::Compute(S), Op::Barrier, read(1, 7, 5 * MIB)],
        vec![Op::Barrier],
    ];
    let traced = Run { workload: Workload::Trace(ranks), ..run(phases(), forebay()) };
    let outcome = simulate(traced);
    assert_eq!(outcome.written, 5 * MIB / 2 + 100);
    assert_eq!(outcome.read, 5 * MIB);
    assert_eq!(outcome.kept, 0);
    check(&outcome, "trace");
}

#[test]
fn what_is_read_in_order_is_there_before() {
    // 12 pieces of 1 MiB, 0.25 s each from the store, with 1 s of computing between them.
    let steps = (0..12).flat_map(|number| {
        let piece = Range { file: 0, offset: number * MIB, bytes: MIB };
        [Op::Read(piece), Op::Compute(S)]
    });
    let ranks = vec![steps.collect(), vec![], vec![], vec![]];
    let reader = |prefetch| {
        let strategy = Strategy { prefetch, ..forebay() };
        let workload = Workload::Trace(ranks.clone());
        simulate(Run { workload, ..run(phases(), strategy) })
    };
    is_near(reader(false).read_s * 4.0, 12.0 / 4.0);
    let ahead = reader(true);
    assert!(ahead.read_s * 4.0 < 1.0, "{ahead:#?}");
    assert_eq!((ahead.read, ahead.tiers[0].promoted), (12 * MIB, ahead.tiers[0].read));
}

#[test]
fn what_is_read_again_and_again_comes_from_the_tiers_after_the_first_time() {
    // Three epochs over 24 MiB, above 16 MiB of RAM and a burst buffer of 32 MiB for the node.
    let epoch = (0..24).flat_map(|number| {
        let piece = Range { file: 0, offset: number * MIB, bytes: MIB };
        [Op::Read(piece), Op::Compute(S)]
    });
    let steps: Vec<Op> = (0..3).flat_map(|_| epoch.clone()).collect();
    let reader = |promote| {
        let mut cluster = cluster();
        cluster.tiers[1].device = device(64 * MIB);
        let strategy = Strategy { promote, ..forebay() };
        let workload = Workload::Trace(vec![steps.clone(), vec![], vec![], vec![]]);
        let outcome = simulate(Run { cluster, workload, ..run(phases(), strategy) });
        assert_eq!(outcome.read, 3 * 24 * MIB);
        check(&outcome, "epochs");
        outcome.read - outcome.tiers.iter().map(|tier| tier.read).sum::<u64>()
    };
    assert_eq!(reader(false), 3 * 24 * MIB);
    assert_eq!(reader(true), 24 * MIB);
}

#[test]
fn hot_data_comes_up_although_writers_fill_the_tier() {
    // Each node writes eight times 16 MiB above 16 MiB of RAM, and after each time reads one block
    // of what each rank has written so far, again and again.
    let again = Phases { phases: 8, write: 8 * MIB, read: 32 * MIB, repeat: 32, ..phases() };
    let reader = |policy: &str, phases| {
        let mut cluster = cluster();
        cluster.tiers[1].capacity = 640 * MIB;
        let scratch = strategy(Tiers::All, policy, Trigger::Never);
        let outcome = simulate(Run { cluster, ..run(phases, scratch) });
        check(&outcome, policy);
        (outcome.read_s, outcome.tiers[0].promoted)
    };
    let (hot_s, promoted) = reader("hot-data", again);
    let (usual_s, none) = reader("max-bandwidth", again);
    assert_eq!(none, 0);
    assert!(promoted > 0 && hot_s < usual_s / 2.0, "{hot_s} and {usual_s}, {promoted} promoted");
    // No block goes up more than three times: of 2 * 64 MiB in each node.
    assert!(promoted <= 3 * 2 * 128 * MIB, "{promoted}");
}

#[test]
fn a_slow_store_shows_only_where_it_is_used() {
    let slow = at(0, FaultKind::Slow { target: target(None, None), factor: 0.5 });
    let direct = strategy(Tiers::None, "noop", Trigger::OnExit);
    let outcome = simulate(Run { faults: vec![slow], ..run(phases(), direct) });
    is_near(outcome.write_s, 32.0);
    let healthy = simulate(run(phases(), forebay()));
    let outcome = simulate(Run { faults: vec![slow], ..run(phases(), forebay()) });
    assert!(outcome.end_s > healthy.end_s + 10.0 && outcome.lost == 0);
    check(&outcome, "slow store");
}

#[test]
fn one_slow_server_slows_what_is_striped_over_it() {
    let one = Target { tier: None, node: None, device: Some(1) };
    let slow = at(0, FaultKind::Slow { target: one, factor: 0.5 });
    let direct = strategy(Tiers::None, "noop", Trigger::OnExit);
    let with_stripe = |stripe| {
        let mut run = Run { faults: vec![slow], ..run(phases(), direct.clone()) };
        run.cluster.store.devices = 2;
        run.cluster.store.device = device(2 * MIB);
        run.cluster.store.stripe = stripe;
        simulate(run).write_s
    };
    is_near(with_stripe(2), 32.0);
    // Files on one server each: half of them are slow, and the barrier waits for those.
    is_near(with_stripe(1), 32.0);
    let mut apart = Run { faults: vec![slow], ..run(Phases { phases: 1, ..phases() }, direct) };
    apart.cluster.store.devices = 2;
    apart.cluster.store.device = device(2 * MIB);
    apart.cluster.store.stripe = 1;
    apart.workload = Workload::Trace(vec![
        vec![Op::Write(Range { file: 0, offset: 0, bytes: 4 * MIB })],
        vec![Op::Write(Range { file: 1, offset: 0, bytes: 4 * MIB })],
        vec![],
        vec![],
    ]);
    // 2 s on the healthy server, 4 s on the slow one; the mean of four ranks.
    is_near(simulate(apart).write_s, 1.5);
}

#[test]
fn a_store_that_is_away_stalls_and_comes_back() {
    let away = FaultKind::Slow { target: target(None, None), factor: 0.0 };
    let back = FaultKind::Slow { target: target(None, None), factor: 1.0 };
    let outcome = simulate(Run { faults: vec![at(1, away)], ..run(phases(), forebay()) });
    assert!(outcome.stalled && outcome.lost == 0);
    let faults = vec![at(1, away), at(100, back)];
    let outcome = simulate(Run { faults, ..run(phases(), forebay()) });
    assert!(outcome.end_s > 100.0 && outcome.kept == 0);
    check(&outcome, "away");
}

#[test]
fn a_node_takes_with_it_only_what_was_not_flushed() {
    // 16 MiB are written at 1 s, and flushed at 4 MiB/s from 2 s on.
    let once = Phases { phases: 1, ..phases() };
    let lost = |seconds| {
        let faults = vec![at(seconds, FaultKind::Node(0))];
        let outcome = simulate(Run {
            faults,
            ..run(Phases { phases: 2, compute_ns: 20 * S, ..once }, forebay())
        });
        check(&outcome, "node");
        outcome
    };
    // Nothing is there yet; all is there; all is flushed.
    assert_eq!(lost(10).lost, 0);
    let before = lost(21);
    assert_eq!((before.lost, before.lost_files.len()), (8 * MIB, 2));
    assert_eq!(lost(39).lost, 0);
    // The other node's ranks go on: their second phase is written.
    assert_eq!(lost(39).written, 24 * MIB);
}

#[test]
fn shared_tiers_outlive_their_writers() {
    let staging = strategy(Tiers::Shared, "max-bandwidth", Trigger::OnExit);
    let faults = vec![at(3, FaultKind::Node(1))];
    let outcome = simulate(Run { faults, ..run(phases(), staging) });
    assert_eq!((outcome.lost, outcome.kept), (0, 0));
    assert!(outcome.written < 64 * MIB && outcome.safe == outcome.written);
    check(&outcome, "adopted");
}

#[test]
fn a_failed_tier_is_named_and_done_without() {
    let slow_store = Phases { compute_ns: S / 10, ..phases() };
    let faults = vec![at(1, FaultKind::Fail(target(Some(0), Some(0))))];
    let outcome = simulate(Run { faults, ..run(slow_store, forebay()) });
    assert!(outcome.lost > 0 && outcome.lost <= 16 * MIB);
    assert_eq!(outcome.written, 64 * MIB, "the ranks went on");
    check(&outcome, "failed");
    // Reads of what was lost fail, and say so.
    let reading = Phases { read: 4 * MIB, read_from: ReadFrom::Own, ..slow_store };
    let scratch = strategy(Tiers::All, "max-bandwidth", Trigger::Never);
    let faults = vec![at(1, FaultKind::Fail(target(Some(0), None)))];
    let outcome = simulate(Run { faults, ..run(reading, scratch) });
    assert!(outcome.unreadable > 0);
    assert_eq!(outcome.read + outcome.unreadable, 64 * MIB);
}

#[test]
fn random_runs_keep_the_laws() {
    let replay = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = replay.map_or(0..300, |seed: u64| seed..seed + 1);
    let mut faulty = 0;
    for seed in seeds {
        let mut random = Random::new(seed);
        let run = random_run(&mut random, seed);
        let scratch = run.strategy.trigger == Trigger::Never;
        let heirs = run.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Node(_)));
        let broken = run.faults.iter().any(|fault| !matches!(fault.kind, FaultKind::Slow { .. }));
        println!("FOREBAY_SEED={seed}: {run:?}");
        let outcome = simulate(run.clone());
        check(&outcome, &format!("seed {seed}"));
        // When the last node has died, what is in a shared tier waits for a node to come back.
        let nodes = 0..run.cluster.nodes;
        let all_dead = { nodes }
            .all(|node| run.faults.iter().any(|fault| fault.kind == FaultKind::Node(node)));
        assert!(scratch || all_dead || outcome.kept == 0, "seed {seed}: {outcome:#?}");
        assert!(broken || outcome.lost == 0, "seed {seed}: {outcome:#?}");
        for tier in &outcome.tiers {
            assert!(heirs || tier.peak <= tier.capacity, "seed {seed}: {outcome:#?}");
        }
        assert_eq!(outcome, simulate(run), "seed {seed}");
        faulty += u32::from(outcome.lost > 0);
    }
    assert!(replay.is_some() || faulty > 10, "only {faulty} runs lost something");
}

fn random_run(random: &mut Random, seed: u64) -> Run {
    let pick = |random: &mut Random, limit: u64| random.below(limit);
    let policies: Vec<_> = names().collect();
    let policy = policies[pick(random, policies.len() as u64) as usize];
    let trigger = match pick(random, 5) {
        0 => Trigger::PerOperation,
        1 => Trigger::PerFile,
        2 => Trigger::OnExit,
        3 => Trigger::Never,
        _ => Trigger::Periodic(S / 2),
    };
    let tiers = [Tiers::All, Tiers::All, Tiers::Shared, Tiers::None][pick(random, 4) as usize];
    let mut cluster = cluster();
    cluster.nodes = 1 + pick(random, 3) as u32;
    cluster.link = [0, 20 * MIB][pick(random, 2) as usize];
    cluster.tiers.insert(1, tier("nvme", false, (1 + pick(random, 20)) * MIB, 32 * MIB));
    cluster.tiers[0].capacity = (1 + pick(random, 20)) * MIB;
    let write = (1 + pick(random, 8)) * MIB;
    let phases = Phases {
        phases: 1 + pick(random, 4) as u32,
        compute_ns: pick(random, 3) * S,
        jitter: pick(random, 500),
        write,
        read: pick(random, 3) * MIB,
        repeat: 1 + pick(random, 3),
        read_from: [ReadFrom::Phase, ReadFrom::Own, ReadFrom::Any][pick(random, 3) as usize],
        shared_file: pick(random, 2) == 0,
        opens: 1,
    };
    let faults = (0..pick(random, 3)).map(|_| {
        let tier = pick(random, 3) as usize;
        let node = pick(random, u64::from(cluster.nodes)) as u32;
        let target = target(Some(tier), (tier < 2).then_some(node));
        let kind = match pick(random, 3) {
            0 => FaultKind::Slow { target, factor: 0.1 + random.fraction() },
            1 => FaultKind::Fail(target),
            _ => FaultKind::Node(node),
        };
        Fault { at_ns: pick(random, 10 * S), kind }
    });
    let faults = faults.collect();
    let strategy = Strategy {
        demote: pick(random, 4) > 0,
        promote: pick(random, 2) == 0,
        prefetch: pick(random, 2) == 0,
        queue_depth: 1 + pick(random, 16) as u32,
        movers: [Movers::Nodes, Movers::Servers][pick(random, 2) as usize],
        ..strategy(tiers, policy, trigger)
    };
    let workload = Workload::Phases(phases);
    Run { cluster, workload, strategy, faults, seed, grain_ns: 1_000 }
}

/// One node, whose manager takes what its ranks leave in RAM to a tier and to the store.
fn managed(policy: &str, trigger: Trigger, ranks: Vec<Vec<Op>>) -> Run {
    let cluster = Cluster {
        nodes: 1,
        ranks_per_node: ranks.len() as u32,
        tiers: vec![tier("ram", false, 16 * MIB, 64 * MIB), tier("bb", false, 64 * MIB, 16 * MIB)],
        ..cluster()
    };
    let speeds = vec![device(64 * MIB), device(16 * MIB), device(4 * MIB)];
    let settings = ManagerSettings {
        ages: Ages::new(200, 30_000),
        granularity: MIB,
        files: Vec::new(),
        speeds,
    };
    let manager = Some(settings);
    let strategy = Strategy { manager, ..strategy(Tiers::All, policy, trigger) };
    let workload = Workload::Trace(ranks);
    Run { cluster, workload, strategy, ..run(phases(), forebay()) }
}

fn write(file: u32, offset: u64, bytes: u64) -> Op {
    Op::Write(Range { file, offset, bytes })
}

#[test]
fn a_managed_write_goes_to_ram_and_waits_for_its_movers_only() {
    let ops = vec![Op::Create(0), write(0, 0, 48 * MIB), Op::Close(0)];
    let outcome = simulate(managed("max-bandwidth", Trigger::OnExit, vec![ops]));
    check(&outcome, "managed");
    assert_eq!(outcome.tiers[0].written, 48 * MIB, "none of it was written to the lower tier");
    let down: u64 = outcome.moved.iter().filter(|m| m.to == Some(1)).map(|m| m.bytes).sum();
    assert!((32 * MIB..=40 * MIB).contains(&down), "{outcome:#?}");
    // 32 MiB have to leave at 16 MiB/s; the last of them is not waited for.
    assert!((1.9..2.3).contains(&outcome.write_s), "{outcome:#?}");
    assert_eq!(
        outcome.moved.iter().filter(|m| m.to.is_none()).map(|m| m.bytes).sum::<u64>(),
        48 * MIB
    );
}

/// Of what is used often before others are written a tier keeps most by uses, and least by age.
#[test]
fn blocks_leave_as_the_strategy_says() {
    let read = Op::Read(Range { file: 0, offset: 0, bytes: 4 * MIB });
    let ops: Vec<_> = [Op::Create(0), write(0, 0, 4 * MIB)]
        .into_iter()
        .chain([read; 6])
        .chain((1..25).flat_map(|file| [Op::Create(file), write(file, 0, MIB), Op::Close(file)]))
        .chain([read, Op::Close(0)])
        .collect();
    let below = |eviction| {
        let mut run = managed("max-bandwidth", Trigger::OnExit, vec![ops.clone()]);
        run.strategy = Strategy { eviction, ..run.strategy };
        let outcome = simulate(run);
        check(&outcome, eviction.name());
        outcome.tiers[1].read
    };
    assert_eq!((below(Eviction::Lfu), below(Eviction::Lru)), (0, 4 * MIB));
}

#[test]
fn a_file_that_is_cut_is_not_flushed() {
    let ops = vec![Op::Create(0), write(0, 0, 4 * MIB), Op::Close(0), Op::Create(0), Op::Close(0)];
    let outcome = simulate(managed("max-bandwidth", Trigger::OnExit, vec![ops]));
    check(&outcome, "cut");
    assert_eq!((outcome.replaced, outcome.safe), (4 * MIB, 0));
}

#[test]
fn random_managed_runs_keep_the_laws() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(0..200, |seed| seed..seed + 1) {
        let random = &mut Random::new(seed);
        let triggers =
            [Trigger::PerOperation, Trigger::PerFile, Trigger::OnExit, Trigger::Periodic(S / 5)];
        let ranks = 1 + random.below(3);
        let ops = |random: &mut Random| {
            let mut ops = Vec::new();
            for _ in 0..4 + random.below(30) {
                let file = random.below(4) as u32;
                let range = Range {
                    file,
                    offset: random.below(40) * MIB / 2,
                    bytes: random.below(30) * MIB / 4,
                };
                ops.push(match random.below(8) {
                    0 => Op::Create(file),
                    1 => Op::Open(file),
                    2 => Op::Close(file),
                    3 => Op::Compute(random.below(500) * S / 1000),
                    4 | 5 => Op::Read(range),
                    _ => Op::Write(range),
                });
            }
            ops
        };
        let ranks: Vec<_> = (0..ranks).map(|_| ops(random)).collect();
        let policies = ["max-bandwidth", "max-locality", "hot-data", "user-defined", "noop"];
        let policy = policies[random.below(5) as usize];
        let trigger = triggers[random.below(4) as usize];
        let context = format!("FOREBAY_SEED={seed}: {policy}, {trigger:?}");
        let run = managed(policy, trigger, ranks);
        let outcome = simulate(run.clone());
        check(&outcome, &context);
        assert_eq!(outcome.kept, 0, "{context}: {outcome:#?}");
        assert_eq!(outcome, simulate(run), "{context}");
    }
}
