//! Leases of files in groups to which things happen: one writer of each file, reads of the newest
//! bytes, and losses that have a name.

use forebay_simulator::leases::{KINDS, Leases, LeasesOutcome, Planted, simulate};
use forebay_simulator::traffic::{Change, Opens, traffic};

/// In CI; `FOREBAY_LEASES_SEEDS` has another number, `FOREBAY_LEASES_SEED` the only one.
/// `FOREBAY_LEASES_TRACE` prints what happens in the seed that it names.
const SEEDS: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn programs_read_the_newest_or_are_told_who_has_it() {
    let only = number("FOREBAY_LEASES_SEED");
    let seeds = number("FOREBAY_LEASES_SEEDS").unwrap_or(SEEDS);
    let mut all = LeasesOutcome::default();
    for seed in only.map_or(1..=seeds, |seed| seed..=seed) {
        match simulate(&Leases::random(seed)) {
            Ok(outcome) => all.add(&outcome),
            Err(why) => panic!("FOREBAY_LEASES_SEED={seed}: {why}"),
        }
    }
    println!("{all:?}");
    // What it is all about has happened.
    if only.is_none() && seeds >= 100 {
        let happened = [
            vec![all.reads, all.writes, all.sizes, all.lost, all.died_dirty, all.kills],
            vec![all.extended, all.appended, all.truncated, all.shared, all.ahead, all.direct],
            vec![all.orphans],
        ]
        .concat();
        let happened = [&happened[..], &[all.lent, all.borrowed, all.pulled]].concat();
        assert!(happened.iter().all(|count| *count >= seeds / 20), "{all:?}");
    }
}

/// In which of some seeds what is wrong on purpose is noticed first, and how.
fn noticed(planted: Planted, seeds: u64) -> Option<(u64, String)> {
    (1..=seeds).find_map(|seed| {
        let leases = Leases { planted: Some(planted), ..Leases::random(seed) };
        simulate(&leases).err().map(|why| (seed, why))
    })
}

/// What would be wrong is seen: the test above can fail.
#[test]
fn planted_faults_are_noticed() {
    let cases = [
        (Planted::GrantsTwice, 20),
        (Planted::RevokeNotAwaited, 20),
        (Planted::ClaimsSkipped, 100),
        (Planted::StaleGrantTaken, 20),
        (Planted::SizeOfOneNode, 20),
        (Planted::MappingForgotten, 100),
        (Planted::PartWithoutShared, 20),
        (Planted::WholeWhilePartHeld, 20),
        (Planted::ExtendsWithoutLease, 20),
        (Planted::SizeOfOneForgotten, 100),
        (Planted::AheadOfOthers, 20),
        (Planted::TellersNotAwaited, 100),
        (Planted::HomesNotAwaited, 100),
        (Planted::FlushNotFenced, 200),
        (Planted::WritesWhatIsLent, 20),
        (Planted::BorrowerReadsStore, 20),
    ];
    for (planted, seeds) in cases {
        let noticed = noticed(planted, seeds);
        println!("{planted:?}: {noticed:?}");
        assert!(noticed.is_some(), "{planted:?} is not noticed in {seeds} seeds");
    }
}

/// An open asks the home and is answered; who is the home asks no other to read. A file that has a
/// writer is taken back first.
#[test]
fn an_open_costs_two_messages_or_four() {
    let each = |nodes: u16| {
        let sum = |opens: Opens| opens.messages.iter().sum::<u64>() as f64 / opens.opens as f64;
        traffic(nodes).opens.into_iter().map(sum).collect::<Vec<f64>>()
    };
    assert_eq!(each(1), [0.0; 4]);
    let [own_read, own_write, shared_read, shared_write] = each(8)[..] else { panic!() };
    // Seven of eight nodes are not the home.
    assert!((1.6..1.9).contains(&own_read) && (1.6..1.9).contains(&shared_read));
    assert!((1.9..2.01).contains(&own_write), "{own_write}");
    assert!((3.2..4.1).contains(&shared_write), "{shared_write}");
}

/// What a change of the view costs is in proportion to the nodes and to what they have, and not to
/// the pairs of nodes: each says it once up and once down, in two steps.
#[test]
fn a_change_of_the_view_costs_each_node_a_few_messages() {
    let partitions = 4096;
    for nodes in [2, 16, 100, 600_u16] {
        for Change { what, messages, most, .. } in traffic(nodes).changes {
            let of = |kind: &str| messages[KINDS.iter().position(|of| *of == kind).unwrap()];
            let members = u64::from(nodes) - u64::from(what == "one node leaves");
            assert_eq!(of("roll"), 4 * (members - 1), "{what} of {nodes}");
            // Each second place asks a home once at most.
            assert!(of("recall") <= partitions.min(members * (members - 1)), "{what} of {nodes}");
            assert_eq!(of("recall"), of("claims"), "{what} of {nodes}");
            assert_eq!(of("tell"), of("told"), "{what} of {nodes}");
            if what == "the first view" {
                assert_eq!(of("tell"), 0, "{what} of {nodes}");
            } else if nodes >= 100 {
                // Of the partitions of one node others tell, where they have files.
                assert!(of("tell") < 4 * partitions, "{what} of {nodes}: {messages:?}");
            }
            assert!(most <= 2 * u64::from(nodes) + 100, "{what} of {nodes}: {most} of one node");
        }
    }
}

#[test]
fn without_faults_everything_is_granted() {
    for (nodes, seed) in [(1, 1), (2, 2), (4, 3), (8, 4)] {
        let shares = seed % 2 == 0;
        let (files, has_faults, planted) = (3, false, None);
        let below = 2;
        let leases = Leases { nodes, files, loss: 0, has_faults, shares, below, planted, seed };
        let outcome = simulate(&leases).unwrap();
        assert_eq!((outcome.lost, outcome.late, outcome.views), (0, 0, 1), "{nodes} nodes");
        assert!(outcome.writes > 100 && outcome.reads > 100, "{outcome:?}");
    }
}
