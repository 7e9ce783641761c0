//! What holds for every plan of every policy: it covers the request once, overfills nothing, is as
//! cheap as the best of all splits, and never costs more when more is free.
//!
//! The costs are written down here a second time, from the equations on docs/design/placement.md.

mod common;

use common::seeded;
use forebay_placement::{
    Costs, Destination, Hierarchy, Memo, Model, Piece, Plan, Policy, PolicyId, Random, Request,
    TierSnapshot, names, policy,
};

/// Cost of the first byte, and of each byte.
type Rate = (f64, f64);

/// What it costs to move data from a tier to a place.
type Moving<'a> = Box<dyn Fn(usize, usize) -> Rate + 'a>;

/// One policy's view, as the brute force uses it.
struct Equation {
    /// Bytes each place takes without a move.
    room: Vec<u64>,
    /// Bytes each tier takes at most, after a move.
    limit: Vec<u64>,
    placing: Vec<Rate>,
    /// For each tier and each place below it.
    moving: Vec<Vec<Rate>>,
}

const MS: f64 = 1e6;
const MB: f64 = 1e6;

fn equation(name: &str, hierarchy: &Hierarchy, request: &Request) -> Equation {
    let paper = hierarchy.costs.model == Model::Paper;
    let exposed = f64::from(hierarchy.costs.exposed_permille) / 1000.0;
    let tiers = hierarchy.tiers();
    let places: Vec<_> = tiers.iter().chain([&hierarchy.store]).copied().collect();
    let write: Vec<_> = places.iter().map(|place| 1e9 / place.write_bandwidth as f64).collect();
    let read: Vec<_> = places.iter().map(|place| 1e9 / place.read_bandwidth as f64).collect();
    let latency: Vec<_> = places.iter().map(|place| place.latency_ns as f64).collect();
    let mut room: Vec<_> = tiers.iter().map(|tier| tier.free).collect();
    room.push(u64::MAX);
    let mut limit: Vec<_> = tiers.iter().map(|tier| tier.capacity - tier.pinned).collect();
    limit.push(u64::MAX);
    let one = |place: usize| -> Rate {
        match paper {
            true => (0.0, write[place] * latency[place] / MS),
            false => (latency[place], write[place]),
        }
    };
    let one_move = |from: usize, to: usize| -> Rate {
        if paper { one(to) } else { (latency[to], read[from].max(write[to])) }
    };
    let times = |(fixed, byte): Rate, factor: f64| (fixed * factor, byte * factor);
    let all = 0..places.len();
    let (placing, moving): (Vec<Rate>, Moving<'_>) = match name {
        "max-bandwidth" => (
            all.clone().map(one).collect(),
            Box::new(|from, to| times(one_move(from, to), exposed)),
        ),
        "max-locality" => {
            let degree = f64::from(request.dispersion.count_ones());
            let total: u64 = tiers.iter().map(|tier| tier.capacity).sum();
            let (mut above, mut unit) = (0, request.file_bytes);
            for (index, tier) in tiers.iter().enumerate() {
                above += tier.capacity;
                let share = above as f64 / total.max(1) as f64;
                let share = share + (1.0 - share) * f64::from(request.priority) / 255.0;
                let threshold = (tier.capacity as f64 * share).round() as u64;
                let held = request.dispersion >> index & 1 == 1;
                let held = if held { unit.min(threshold) } else { 0 };
                unit -= held;
                room[index] = room[index].min(threshold - held);
                limit[index] = limit[index].min(threshold - held);
            }
            let weight = |place: usize| {
                let held = place < tiers.len() && request.dispersion >> place & 1 == 1;
                if held { degree } else { degree + 1.0 }
            };
            let plain = |place: usize| if paper { (0.0, write[place]) } else { one(place) };
            let placing = all.clone().map(|place| times(plain(place), weight(place))).collect();
            let write = write.clone();
            let moving = move |from, to: usize| {
                if paper { (0.0, write[to]) } else { one_move(from, to) }
            };
            (placing, Box::new(moving))
        }
        "hot-data" => {
            let hotness = f64::from(request.file_hotness);
            let size = (request.file_bytes + request.bytes) as f64;
            let rate = |place: usize| -> Rate {
                let tier = tiers.get(place);
                if paper {
                    let free = tier.map_or(MB, |tier| tier.free.max(1) as f64);
                    return (0.0, write[place] * MB / free);
                }
                let scarce = tier.map_or(0.0, |tier| size / tier.capacity.max(1) as f64);
                let using = latency[place] * (1.0 + hotness);
                times((using, write[place] + hotness * read[place]), 1.0 + scarce)
            };
            let placing: Vec<_> = all.clone().map(rate).collect();
            for (index, tier) in tiers.iter().enumerate() {
                if request.file_hotness < tier.coldest {
                    limit[index] = room[index];
                }
            }
            let of_place = placing.clone();
            let read = read.clone();
            let moving = move |from: usize, to: usize| {
                if paper {
                    return times(of_place[to], exposed);
                }
                let (fixed, byte) = times(one_move(from, to), exposed);
                let regret = f64::from(tiers[from].coldest) * (read[to] - read[from]).max(0.0);
                (fixed, byte + regret)
            };
            (placing, Box::new(moving))
        }
        _ => unreachable!("{name}"),
    };
    let rate = |from, to| if to > from { moving(from, to) } else { (0.0, 0.0) };
    let of_tier = |from| all.clone().map(|to| rate(from, to)).collect();
    let moving = (0..tiers.len()).map(of_tier).collect();
    Equation { room, limit, placing, moving }
}

/// The least cost of any split in which at most one tier gives up data, to one place.
fn brute_force(equation: &Equation, bytes: u64) -> f64 {
    let mut split = vec![0; equation.room.len()];
    let mut best = f64::INFINITY;
    split_further(equation, bytes, 0, &mut split, &mut best);
    best
}

fn split_further(
    equation: &Equation,
    left: u64,
    place: usize,
    split: &mut Vec<u64>,
    best: &mut f64,
) {
    if place + 1 == split.len() {
        split[place] = left;
        *best = best.min(cost(equation, split));
        return;
    }
    for bytes in 0..=left {
        split[place] = bytes;
        split_further(equation, left - bytes, place + 1, split, best);
    }
}

fn cost(equation: &Equation, split: &[u64]) -> f64 {
    let mut sum = 0.0;
    let mut over = None;
    for (place, &bytes) in split.iter().enumerate() {
        if bytes > 0 {
            let (fixed, byte) = equation.placing[place];
            sum += fixed + bytes as f64 * byte;
        }
        if bytes > equation.room[place] {
            if over.is_some() || bytes > equation.limit[place] {
                return f64::INFINITY;
            }
            over = Some((place, bytes - equation.room[place]));
        }
    }
    let Some((from, moved)) = over else { return sum };
    let moving = (from + 1..split.len())
        .filter(|&to| equation.room[to] - split[to] >= moved)
        .map(|to| equation.moving[from][to].0 + moved as f64 * equation.moving[from][to].1);
    sum + moving.fold(f64::INFINITY, f64::min)
}

fn tier(speed: u64, latency_ns: u64, capacity: u64, free: u64) -> TierSnapshot {
    TierSnapshot {
        capacity,
        free,
        read_bandwidth: speed + speed / 3,
        write_bandwidth: speed,
        latency_ns,
        ..TierSnapshot::default()
    }
}

const OPTIMIZING: [&str; 3] = ["max-bandwidth", "max-locality", "hot-data"];

fn every_costs() -> impl Iterator<Item = Costs> {
    [Model::Physical, Model::Paper].into_iter().flat_map(|model| {
        [0, 300, 500, 950, 1000].map(|exposed_permille| Costs { model, exposed_permille })
    })
}

/// What must hold of any plan.
fn check(plan: &Plan, hierarchy: &Hierarchy, request: &Request, name: &str) {
    let context = || format!("{name}\n{request:?}\n{hierarchy:#?}\n{plan:#?}");
    let sum: u64 = plan.pieces().iter().map(|piece| piece.bytes).sum();
    assert_eq!(sum, request.bytes, "not covered once: {}", context());
    for (index, piece) in plan.pieces().iter().enumerate() {
        assert!(piece.bytes > 0, "{}", context());
        assert!(plan.pieces()[..index].iter().all(|other| other.to != piece.to), "{}", context());
        let Destination::Tier(to) = piece.to else { continue };
        let tier = hierarchy.tiers()[to];
        assert!(
            piece.bytes <= tier.free + piece.room.min(tier.movable()),
            "overfilled: {}",
            context()
        );
        if piece.room == 0 {
            continue;
        }
        if let Destination::Tier(below) = piece.room_to {
            let of_below = plan.pieces().iter().find(|piece| piece.to == Destination::Tier(below));
            let placed = of_below.map_or(0, |piece| piece.bytes - piece.room);
            let moved = plan.pieces().iter().filter(|other| other.room_to == piece.room_to);
            let moved: u64 = moved.map(|other| other.room).sum();
            assert!(below > to && placed + moved <= hierarchy.tiers()[below].free, "{}", context());
        }
    }
    assert!(plan.cost_ns.is_finite() && plan.cost_ns >= 0.0, "{}", context());
}

/// As [`check`], and as cheap as the best split.
fn check_best(name: &str, hierarchy: &Hierarchy, request: &Request) -> f64 {
    let plan = policy(name).unwrap().plan(hierarchy, request);
    check(&plan, hierarchy, request, name);
    let best = brute_force(&equation(name, hierarchy, request), request.bytes);
    let off = (plan.cost_ns - best).abs();
    assert!(
        off <= 1e-9 * best.max(1.0),
        "{} but {best} is possible: {name}\n{request:?}\n{hierarchy:#?}\n{plan:#?}",
        plan.cost_ns
    );
    plan.cost_ns
}

/// All hierarchies of up to two tiers with up to 4 bytes each, ordered by speed and not, with all
/// requests of up to 6 bytes.
#[test]
fn every_plan_for_small_hierarchies_is_the_best() {
    let speeds = [[900_000_000, 100_000_000, 10_000_000], [200_000_000, 300_000_000, 40_000_000]];
    let mut checked = 0;
    for (costs, speeds) in every_costs().flat_map(|costs| speeds.map(|speeds| (costs, speeds))) {
        for latencies in [[1, 10, 100], [1_000_000, 20, 5]] {
            for code in 0..15 * 15 {
                let shapes: Vec<(u64, u64)> = (0..=4)
                    .flat_map(|capacity| (0..=capacity).map(move |f| (capacity, f)))
                    .collect();
                let (first, second) = (shapes[code % 15], shapes[code / 15]);
                let hierarchy = Hierarchy::new(&[
                    tier(speeds[0], latencies[0], first.0, first.1),
                    tier(speeds[1], latencies[1], second.0, second.1),
                ]);
                let store = tier(speeds[2], latencies[2], u64::MAX, u64::MAX);
                let hierarchy = hierarchy.unwrap().with_store(store).with_costs(costs);
                for (name, bytes) in OPTIMIZING.iter().flat_map(|n| (0..=6).map(move |b| (n, b))) {
                    check_best(name, &hierarchy, &Request { bytes, ..Request::default() });
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} plans");
}

/// A number up to `max`, of any length.
fn up_to(random: &mut Random, max: u64) -> u64 {
    let length = random.below(64);
    random.next_u64() >> length & max
}

fn any_hierarchy(random: &mut Random, tiers: u64, costs: Costs) -> Hierarchy {
    let mut any_tier = |_| {
        let capacity = random.below(5);
        let free = random.below(capacity + 1);
        let speed = 1_000_000 + up_to(random, 1_000_000_000);
        let latency_ns = 1 + up_to(random, 1 << 20);
        TierSnapshot {
            pinned: random.below(capacity - free + 1),
            coldest: random.below(4) as f32,
            ..tier(speed, latency_ns, capacity, free)
        }
    };
    let tiers: Vec<_> = (0..tiers).map(&mut any_tier).collect();
    let store = tier(1_000_000 + random.below(50_000_000), 1_000, u64::MAX, u64::MAX);
    Hierarchy::new(&tiers).unwrap().with_store(store).with_costs(costs)
}

fn any_request(random: &mut Random, bytes: u64) -> Request {
    Request {
        bytes,
        file_bytes: random.below(12),
        file_hotness: random.below(5) as f32,
        dispersion: random.below(8) as u8,
        priority: random.pick(&[0, 0, 1, 100, 255]),
        pinned: None,
        fallback: PolicyId::default(),
        seed: random.next_u64(),
    }
}

#[test]
fn plans_for_random_hierarchies_are_the_best_and_cost_no_more_with_more_room() {
    let mut random = seeded(4);
    let all_costs: Vec<_> = every_costs().collect();
    for round in 0..30_000 {
        let costs = random.pick(&all_costs);
        let tiers = random.below(4);
        let hierarchy = any_hierarchy(&mut random, tiers, costs);
        let bytes = random.below(8);
        let mut request = any_request(&mut random, bytes);
        request.dispersion &= (1 << tiers) - 1;
        for name in OPTIMIZING {
            let cost = check_best(name, &hierarchy, &request);
            for index in 0..hierarchy.len() {
                let mut roomier = hierarchy;
                let tier = &mut roomier.tiers_mut()[index];
                if tier.free + tier.pinned == tier.capacity {
                    continue;
                }
                tier.free += 1;
                let then = policy(name).unwrap().plan(&roomier, &request).cost_ns;
                assert!(
                    then <= cost + 1e-9 * cost.max(1.0),
                    "round {round}, {name}: {cost}, but {then} with more room in tier {index}\n\
                     {request:?}\n{hierarchy:#?}"
                );
            }
        }
    }
}

/// Sizes and speeds as they are in the world, eight tiers, all policies.
#[test]
fn plans_of_every_policy_cover_and_fit() {
    let mut random = seeded(5);
    for _ in 0..20_000 {
        let tiers: Vec<_> = (0..random.below(9))
            .map(|_| {
                let capacity = up_to(&mut random, 1 << 60);
                let free = random.below(capacity + 1) >> random.below(40);
                TierSnapshot {
                    capacity,
                    free,
                    kept: random.below(free + 1),
                    pinned: random.below(capacity - free + 1) >> random.below(40),
                    read_bandwidth: random.next_u64() >> random.below(64),
                    write_bandwidth: random.next_u64() >> random.below(64),
                    latency_ns: random.next_u64() >> random.below(64),
                    sharers: random.next_u64() as u32 >> random.below(32),
                    coldest: random.pick(&[0.0, 1.0, 1e9, f32::MAX]),
                    dirty: 0,
                }
            })
            .collect();
        let hierarchy = Hierarchy::new(&tiers).unwrap();
        let mut request = any_request(&mut random, 0);
        request.bytes = up_to(&mut random, 1 << 60);
        request.file_bytes = random.next_u64() >> random.below(60);
        let pins = [
            None,
            Some(Destination::Store),
            Some(Destination::Tier(1)),
            Some(Destination::Tier(9)),
        ];
        request.pinned = random.pick(&pins);
        let all: Vec<_> = names().collect();
        request.fallback = PolicyId::named(random.pick(&all)).unwrap();
        for name in all {
            let plan = policy(name).unwrap().plan(&hierarchy, &request);
            check(&plan, &hierarchy, &request, name);
        }
    }
}

#[test]
fn a_rule_puts_in_its_tier_what_the_tier_can_hold() {
    let user_defined = policy("user-defined").unwrap();
    let full = TierSnapshot { pinned: 3, ..tier(1_000_000_000, 100, 10, 2) };
    let hierarchy = Hierarchy::new(&[full, tier(1_000_000, 100, 10, 10)]).unwrap();
    let wanted = Some(Destination::Tier(0));
    let request = Request { bytes: 9, pinned: wanted, ..Request::default() };
    let plan = user_defined.plan(&hierarchy, &request);
    let first =
        Piece { to: Destination::Tier(0), bytes: 7, room: 5, room_to: Destination::Tier(1) };
    assert_eq!(plan.pieces(), [first, Piece::in_room(Destination::Tier(1), 2)]);

    let request = Request { pinned: Some(Destination::Store), ..request };
    assert_eq!(user_defined.plan(&hierarchy, &request).first(), Destination::Store);

    let request = Request { bytes: 1, pinned: None, ..request };
    for name in ["max-bandwidth", "noop", "hot-data"] {
        let request = Request { fallback: PolicyId::named(name).unwrap(), ..request };
        let expected = policy(name).unwrap().plan(&hierarchy, &request);
        assert_eq!(user_defined.plan(&hierarchy, &request), expected);
    }
}

#[test]
fn noop_buffers_nothing_and_random_uses_every_place_with_room() {
    let mut random = seeded(6);
    let with_room = tier(1_000, 1, 10, 10);
    let hierarchy = Hierarchy::new(&[with_room, tier(1_000, 1, 10, 4), with_room]).unwrap();
    let mut count = [0; 4];
    for _ in 0..3_000 {
        let request = any_request(&mut random, 5);
        assert_eq!(policy("noop").unwrap().plan(&hierarchy, &request).first(), Destination::Store);
        let plan = policy("random").unwrap().plan(&hierarchy, &request);
        assert_eq!(plan, policy("random").unwrap().plan(&hierarchy, &request));
        match plan.first() {
            Destination::Tier(to) => count[to] += 1,
            Destination::Store => count[3] += 1,
        }
    }
    assert_eq!(count[1], 0);
    for place in [0, 2, 3] {
        assert!((900..1100).contains(&count[place]), "{count:?}");
    }
}

/// What the memo decides is what the policy decides for the rounded hierarchy; it fits the real
/// one, and costs as much as if the rounded one were real.
#[test]
fn remembered_plans_fit_and_are_the_policys_own() {
    let mut random = seeded(7);
    let unit = 1 << 20;
    for name in names() {
        let id = PolicyId::named(name).unwrap();
        let mut memo = Memo::new(id, unit, 32);
        let mut hierarchy = Hierarchy::new(&[
            tier(8_000_000_000, 100, 64 << 20, 2 << 20),
            tier(1_000_000_000, 20_000, 256 << 20, 2 << 20),
        ])
        .unwrap();
        for round in 0..20_000 {
            for tier in hierarchy.tiers_mut() {
                let step = random.below(1 << 18);
                tier.free = match random.below(2) {
                    0 => tier.free.saturating_sub(step),
                    _ => (tier.free + step).min(3 << 20),
                };
                tier.pinned = tier.capacity - tier.free - random.below(1 << 20);
            }
            if round % 5_000 == 4_999 {
                hierarchy.tiers_mut()[1].write_bandwidth += 1;
            }
            let bytes = random.pick(&[1 << 12, 1 << 20, 3 << 19]);
            let mut request = any_request(&mut random, bytes);
            request.file_bytes <<= 20;
            request.dispersion &= 3;
            request.seed = 1;
            request.pinned = random.pick(&[None, None, Some(Destination::Tier(0))]);
            let plan = memo.plan(&hierarchy, &request);
            let mut rounded = hierarchy;
            for tier in rounded.tiers_mut() {
                tier.free -= tier.free % unit;
                tier.pinned = tier.pinned.next_multiple_of(unit);
            }
            check(&plan, &hierarchy, &request, name);
            // Sizes and scores of these requests have at most three significant bits, but 9 and 11.
            if request.file_bytes < 8 << 20 {
                let expected = id.policy().plan(&rounded, &request);
                assert_eq!(plan, expected, "{name} round {round}\n{request:?}\n{hierarchy:#?}");
            }
        }
        let (hits, misses) = memo.hits_and_misses();
        println!("{name}: {hits} remembered, {misses} decided");
        assert_eq!(hits + misses, 20_000);
        assert!(hits > 0, "{name} remembers nothing");
    }
}

#[test]
fn hierarchies_without_numbers_are_used_from_the_top() {
    let tiers = [TierSnapshot { capacity: 100, free: 100, ..TierSnapshot::default() }; 3];
    let mut hierarchy = Hierarchy::new(&tiers).unwrap();
    let max_bandwidth: &dyn Policy = policy("max-bandwidth").unwrap();
    let request = Request { bytes: 100, ..Request::default() };
    for full in 0..=tiers.len() {
        let expected = match full {
            3 => Destination::Store,
            _ => Destination::Tier(full),
        };
        let first = max_bandwidth.plan(&hierarchy, &request).first();
        assert_eq!(first, expected);
        if let Some(tier) = hierarchy.tiers_mut().get_mut(full) {
            (tier.free, tier.pinned) = (0, 100);
        }
    }
}
