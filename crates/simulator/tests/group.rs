//! Groups to which things happen: no two nodes are ever in charge of the same, and in the end all
//! agree.

use forebay_simulator::group::{Fault, Group, simulate};

/// In CI; `FOREBAY_GROUP_SEEDS` has another number, `FOREBAY_GROUP_SEED` the only one.
const SEEDS: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn no_node_acts_for_one_that_others_may_take_over_from() {
    let only = number("FOREBAY_GROUP_SEED");
    let seeds = number("FOREBAY_GROUP_SEEDS").unwrap_or(SEEDS);
    let seeds = only.map_or(1..=seeds, |seed| seed..=seed);
    for seed in seeds {
        let group = Group::random(seed);
        if let Err(why) = simulate(&group) {
            panic!("FOREBAY_GROUP_SEED={seed}: {why}\n{:#?}", group.faults);
        }
    }
}

/// How many of some seeds break a promise, with what `change` makes of the group.
fn broken(seeds: u64, change: impl Fn(&mut Group)) -> usize {
    let breaks = |seed: &u64| {
        let mut group = Group::random(*seed);
        change(&mut group);
        simulate(&group).is_err()
    };
    (1..=seeds).filter(breaks).count()
}

/// What would be wrong is seen: the test above can fail.
#[test]
fn planted_faults_are_noticed() {
    assert!(broken(100, |group| group.times.valid = 2 * group.times.grace) > 0, "stale looks");
    assert!(broken(100, |group| group.times.grace = 0) > 0, "taken over at once");
}

#[test]
fn a_group_forms_and_stays_whole_where_packets_are_lost() {
    for (nodes, loss) in [(1, 0), (2, 0), (2, 100), (16, 0), (16, 100), (64, 0)] {
        let length_ms = 600_000;
        let outcome = simulate(&Group { loss, length_ms, ..Group::of(nodes) }).unwrap();
        let formed_ms = outcome.formed_ms.unwrap();
        assert!(formed_ms < 15_000, "{nodes} nodes, {loss}: {formed_ms}");
        assert_eq!(outcome.left_out_living, [], "{nodes} nodes, {loss}");
        assert_eq!(outcome.fenced_ms, 0, "{nodes} nodes, {loss}");
    }
}

/// What a kill leads to, in ms after it; the medians are in docs/simulator.md.
#[test]
fn a_killed_manager_is_left_out_and_succeeded_in_time() {
    for (nodes, seed) in [(2, 1), (3, 2), (16, 3), (16, 4), (64, 5)] {
        let mut group = Group { seed, ..Group::of(nodes) };
        group.faults.push((60_000, Fault::Kill(1)));
        let outcome = simulate(&group).unwrap();
        let [kill] = &outcome.kills[..] else { panic!("{:?}", outcome.kills) };
        let at = |reached: Option<u64>| reached.unwrap_or(u64::MAX);
        // One of two alone has no majority, and waits for 2 T.
        let alone_ms = if nodes == 2 { 20_000 } else { 0 };
        assert!((5_000..8_500).contains(&at(kill.noticed_ms)), "{nodes}: {kill:?}");
        assert!(at(kill.known_ms) < 9_500, "{nodes}: {kill:?}");
        assert!(at(kill.left_out_ms) < 14_000 + alone_ms, "{nodes}: {kill:?}");
        assert!(at(kill.succeeded_ms) > at(kill.left_out_ms) + 9_500, "{nodes}: {kill:?}");
        assert!(at(kill.succeeded_ms) < 26_000 + alone_ms, "{nodes}: {kill:?}");
    }
}

/// A node that stops for less than the suspicion lasts is taken for living.
#[test]
fn a_node_that_stops_for_a_moment_stays() {
    for seed in 1..=20 {
        let mut group = Group { seed, ..Group::of(5) };
        for at_ms in (20_000..100_000).step_by(20_000) {
            group.faults.push((at_ms, Fault::Stop(2)));
            group.faults.push((at_ms + 4_000, Fault::Continue(2)));
        }
        let outcome = simulate(&group).unwrap();
        assert_eq!(outcome.views.len(), 1 + usize::from(outcome.views.len() > 1), "{outcome:?}");
        assert_eq!(outcome.left_out_living, [], "seed {seed}");
    }
}

/// After a split the larger part goes on, and the others come back when it is over.
#[test]
fn the_larger_part_of_a_split_group_goes_on() {
    for seed in 1..=20 {
        let mut group = Group { seed, length_ms: 200_000, ..Group::of(16) };
        group.faults.push((60_000, Fault::Split(vec![0, 3, 7, 9, 12])));
        group.faults.push((90_000, Fault::Heal));
        let outcome = simulate(&group).unwrap();
        let all = [&outcome.views[0].1, &outcome.views[1].1].map(|view| view.members.len());
        assert_eq!(all, [16, 11], "seed {seed}: {:?}", outcome.views);
        let of_larger = |(at_ms, view): &&(u64, forebay_membership::View)| {
            (60_000..90_000).contains(at_ms) && view.members.len() == 11
        };
        let larger = outcome.views.iter().find(of_larger);
        let (at_ms, _) = larger.unwrap_or_else(|| panic!("seed {seed}: {:?}", outcome.views));
        // Those that were left out could plead, and were given time.
        assert!(*at_ms > 75_000, "seed {seed}: {at_ms}");
        let (whole_ms, _) =
            outcome.views.iter().rfind(|(_, view)| view.members.len() == 16).unwrap();
        assert!((90_000..110_000).contains(whole_ms), "seed {seed}: {whole_ms}");
    }
}
