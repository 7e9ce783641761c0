//! Groups to which things happen: no two nodes are ever in charge of the same, and in the end all
//! agree.

use forebay_membership::{Member, View};
use forebay_simulator::group::{Fault, Group, simulate};
use std::sync::Arc;

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
            let faults =
                group.faults.iter().map(|fault| format!("{fault:?}\n")).collect::<String>();
            panic!("FOREBAY_GROUP_SEED={seed}: {why}\n{faults}");
        }
    }
}

/// In how many of some seeds two nodes act for the same, with what `change` makes of the group.
fn broken(seeds: u64, change: impl Fn(&mut Group)) -> usize {
    let breaks = |seed: &u64| {
        let mut group = Group::random(*seed);
        change(&mut group);
        simulate(&group).is_err_and(|why| why.contains("may take over"))
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
        // Those that begin later are taken in by further views.
        let (at_ms, last) = outcome.views.last().unwrap();
        assert!(*at_ms < 5_000 && last.seats.len() == 5, "seed {seed}: {outcome:?}");
        assert_eq!(outcome.left_out_living, [], "seed {seed}");
    }
}

/// After a split the larger part goes on, however long that lasts, and the others come back when
/// it is over.
#[test]
fn the_larger_part_of_a_split_group_goes_on() {
    for (seed, lasts_ms) in (1..=20).zip([30_000, 150_000].into_iter().cycle()) {
        let healed_ms = 60_000 + lasts_ms;
        let mut group = Group { seed, length_ms: healed_ms + 110_000, ..Group::of(16) };
        group.faults.push((60_000, Fault::Split(vec![0, 3, 7, 9, 12])));
        group.faults.push((healed_ms, Fault::Heal));
        let outcome = simulate(&group).unwrap();
        let formed = outcome.views.iter().take_while(|(at_ms, _)| *at_ms < 60_000).count();
        let views = &outcome.views[formed - 1..];
        let sizes: Vec<usize> = views.iter().map(|(_, view)| view.seats.len()).collect();
        // Not all of the others need be missed at the same time.
        let split = sizes.iter().position(|size| *size == 11).unwrap();
        assert!(sizes[0] == 16 && sizes[..=split].is_sorted_by(|a, b| a > b), "{seed}: {sizes:?}");
        // Those that were left out could plead, and were given time.
        let (at_ms, _) = views[split];
        assert!((75_000..90_000).contains(&at_ms), "seed {seed}: {at_ms}");
        assert!(sizes[split + 1..].iter().all(|size| *size > 11), "seed {seed}: {sizes:?}");
        let is_whole = |(_, view): &&(u64, Arc<View>)| view.seats.len() == 16;
        let whole_ms = outcome.views.iter().rfind(is_whole).unwrap().0;
        assert!((healed_ms..healed_ms + 20_000).contains(&whole_ms), "seed {seed}: {whole_ms}");
    }
}

/// Of two nodes that do not reach each other one goes on, and stays in charge.
#[test]
fn one_of_two_goes_on_without_the_other() {
    for seed in 1..=20 {
        let mut group = Group { seed, length_ms: 400_000, ..Group::of(2) };
        group.faults.push((60_000, Fault::Split(vec![1])));
        group.faults.push((300_000, Fault::Heal));
        let outcome = simulate(&group).unwrap();
        let sizes: Vec<usize> = outcome.views.iter().map(|(_, view)| view.seats.len()).collect();
        assert!(matches!(sizes[..], [2, 1, 2] | [1, 2, 1, 2]), "seed {seed}: {:?}", outcome.views);
    }
}

/// Managers that are started again, where the only other member has lost the store for good, do
/// not wait for that one.
#[test]
fn a_group_goes_on_without_members_that_do_not_look() {
    let mut group = Group { length_ms: 250_000, ..Group::of(3) };
    let faults = [Fault::StoreLost(0), Fault::Kill(1), Fault::Kill(2)];
    group.faults.extend(faults.into_iter().map(|fault| (60_000, fault)));
    group.faults.extend([Fault::Start(1), Fault::Start(2)].map(|fault| (75_000, fault)));
    group.faults.push((200_000, Fault::StoreBack(0)));
    let outcome = simulate(&group).unwrap();
    let is_new = |member: &Member| member.incarnation.0 == 2;
    let goes_on = |(at_ms, view): &(u64, Arc<View>)| {
        (75_000..140_000).contains(at_ms) && view.members().filter(is_new).count() == 2
    };
    assert!(outcome.views.iter().any(goes_on), "{:?}", outcome.views);
}

/// A node that learns of a later life of another together with its end does not hold it for living.
#[test]
fn a_life_that_came_and_went_behind_a_split_is_over() {
    for heal_ms in (64_000..76_000).step_by(500) {
        let mut group = Group { length_ms: 160_000, seed: heal_ms, ..Group::of(4) };
        let faults = [
            (30_000, Fault::Kill(3)),
            (45_000, Fault::Split(vec![0])),
            (47_000, Fault::Start(3)),
            (58_000, Fault::Kill(3)),
            (heal_ms, Fault::Heal),
        ];
        group.faults.extend(faults);
        simulate(&group).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Where each look takes longer than from one to the next, views are made all the same.
#[test]
fn a_group_forms_over_a_store_that_is_slow() {
    for seed in 1..=10 {
        let mut group = Group { seed, store_ms: (1_400, 2_500), ..Group::of(5) };
        group.faults.push((60_000, Fault::Kill(0)));
        let outcome = simulate(&group).unwrap();
        assert!(outcome.formed_ms.unwrap() < 20_000, "seed {seed}: {outcome:?}");
    }
}

/// A node alone that is started again does not wait for others.
#[test]
fn a_node_alone_goes_on_at_once() {
    let mut group = Group::of(1);
    group.faults.extend([(30_000, Fault::Kill(0)), (40_000, Fault::Start(0))]);
    let outcome = simulate(&group).unwrap();
    let at_ms = outcome.views.iter().map(|(at_ms, _)| *at_ms).collect::<Vec<_>>();
    assert!(matches!(at_ms[..], [_, 40_000..45_000]), "{:?}", outcome.views);
}

/// Each node has seen a view of all soon after the last has begun, and none is left out meanwhile
/// by one that has not yet been told of all: 512 nodes, whose packets have room for a fifth of it.
#[test]
fn a_large_group_forms_as_fast_as_a_small_one() {
    let outcome = simulate(&Group { length_ms: 30_000, ..Group::of(512) }).unwrap();
    assert!(outcome.formed_ms.unwrap() < 4_000, "{:?}", outcome.formed_ms);
    assert_eq!(outcome.left_out_living, []);
    // Who learns of the others by the view passes them on to no other node.
    assert!(outcome.bytes / outcome.packets < 600, "{} of {}", outcome.bytes, outcome.packets);
    assert!(outcome.packets < 512 * 30 * 12, "{}", outcome.packets);
}
