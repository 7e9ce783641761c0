use super::paper::{self, BUFFER_MB, DEVICES, Reading, TABLES, TOTAL_MB};
use super::*;
use crate::{Random, pace};

/// Of all tests here that draw parameters.
const SEED: u64 = 0x5eed_0016;

fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found} is not {expected}");
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

#[test]
fn independent_times_are_those_that_the_paper_prints_but_for_nvm() {
    let found = DEVICES.map(|device| two_digits(device.independent_s()));
    assert_eq!(found, ["613.17", "160.85", "148.26"]);
    for table in TABLES {
        near(table.independent[0].estimated_s, DEVICES[0].independent_s(), 1e-4);
        near(table.independent[1].estimated_s, DEVICES[1].independent_s(), 1e-4);
        // Its 145.88 s are with the sequential bandwidth.
        near(table.independent[2].estimated_s, io_s(TOTAL_MB, DEVICES[2].sequential), 1e-4);
    }
}

#[test]
fn the_exchange_behind_the_tables_is_another_than_the_text_says() {
    let [fifth, sixth] = &TABLES;
    assert_eq!(two_digits(Reading::Text.exchange_s(fifth)), "417.17");
    assert_eq!(two_digits(Reading::Text.exchange_s(sixth)), "485.78");
    assert_eq!(format!("{:.1}", Reading::Tables.exchange_s(fifth)), "138.6");
    assert_eq!(two_digits(Reading::Tables.exchange_s(sixth)), "69.30");
    // What is printed, without its I/O: 138.6 s on SSD and NVM, and 129.8 s on HDD.
    let printed = |device| two_digits(fifth.printed_exchange_s(device));
    assert_eq!([0, 1, 2].map(printed), ["129.83", "138.58", "138.58"]);
    let printed = |device| two_digits(sixth.printed_exchange_s(device));
    assert_eq!([0, 1, 2].map(printed), ["68.95", "68.95", "68.95"]);
}

#[test]
fn the_reading_of_the_tables_gives_all_printed_estimates_of_collective_io() {
    for table in TABLES {
        for (device, cell) in DEVICES.iter().zip(table.collective) {
            let found = device.collective_s(Reading::Tables.exchange_s(&table));
            near(found, cell.estimated_s, 0.022);
        }
    }
}

#[test]
fn the_mean_of_the_printed_errors_is_right_and_two_of_them_are_not() {
    let cells: Vec<_> =
        TABLES.iter().flat_map(|table| table.collective.iter().chain(&table.independent)).collect();
    assert_eq!(cells.len(), 12);
    let mean = cells.iter().map(|cell| cell.error).sum::<f64>() / 12.0;
    assert!((mean - paper::MEAN_ERROR).abs() < 0.01, "{mean}");
    let wrong: Vec<_> = cells
        .iter()
        .filter(|cell| (cell.error_of_times() - cell.error).abs() > 0.06)
        .map(|cell| (cell.error, two_digits(cell.error_of_times())))
        .collect();
    assert_eq!(wrong, [(14.4, "17.28".to_owned()), (3.2, "0.32".to_owned())]);
    assert!(cells.iter().all(|cell| cell.error <= paper::LARGEST_ERROR));
}

#[test]
fn on_hdd_collective_io_gains_nothing_in_figure_11() {
    let gains = [0.032, 2.0, 16.0].map(|mb| format!("{:.3}", paper::tradeoff_s(&DEVICES[0], mb).1));
    assert_eq!(gains, ["-0.006", "-0.015", "-0.084"]);
    for device in &DEVICES {
        let (small, large) =
            (paper::tradeoff_s(device, 0.032), paper::tradeoff_s(device, BUFFER_MB));
        assert!(small.0 < large.0 && large.1 < 0.0, "{device:?}");
    }
}

/// The example of section IV.C: 6 of 8 MB go to 2 aggregators of 8 processes.
#[test]
fn tau_is_the_share_of_those_that_do_no_io() {
    assert_eq!(
        (tau(8, 2), tau(16, 4), tau(1, 1), tau(0, 0), tau(2, 3)),
        (0.75, 0.75, 0.0, 0.0, 0.0)
    );
}

fn network() -> Network {
    Network {
        between: Link { start_s: 1e-3, byte_s: 1e-8 },
        within: Link { start_s: 1e-5, byte_s: 1e-9 },
    }
}

fn call() -> Call {
    Call {
        ranks: 16,
        nodes: 4,
        aggregators: 4,
        buffer: 1_000_000,
        bytes: 16_000_000,
        largest_domain: 0,
        piece: 10_000,
        is_contiguous: false,
    }
}

const DEVICE: Device = Device { bandwidth: 1e8, seek_s: 1e-4, latency_s: 2e-4 };

#[test]
fn terms_are_what_they_are_by_hand() {
    let found = times(&call(), &network(), &DEVICE).unwrap();
    // Four rounds of 1 MB each, in 100 pieces; of 16 ranks 12 are elsewhere. With one piece some
    // aggregator of four gets its own from elsewhere in 255 of 256 rounds.
    let elsewhere = 0.75 + (255.0 / 256.0 - 0.75) / 10.0;
    assert_eq!(found.rounds, 4.0);
    near(found.between_s, 4.0 * (1e-3 + 1e-8 * 1e6 * elsewhere), 1e-9);
    near(found.within_s, 4.0 * 1e-9 * 1e6 * (15.0 / 16.0 - elsewhere), 1e-9);
    near(found.sequential_s, 0.16 + 4.0 * 2e-4, 1e-9);
    near(found.random_s, 0.16 + 1600.0 * 1e-4 + 2e-4, 1e-9);
    // The one that has got more from its own node writes while others still wait.
    near(found.hidden_s, 0.16 * (elsewhere - 0.75), 1e-9);
    near(found.collective_s(), found.exchange_s() + 0.160_8 - found.hidden_s, 1e-9);
    // The first exchange, and the I/O of all rounds: exchanges are shorter.
    near(found.overlapped_s(), found.exchange_s() / 4.0 + 0.160_8, 1e-9);

    // On one node there are no messages between nodes, whatever is known of those.
    let alone = Network { between: Link::default(), ..network() };
    let one = times(&Call { nodes: 1, ..call() }, &alone, &DEVICE).unwrap();
    near(one.within_s, 4.0 * (1e-5 + 1e-9 * 1e6 * 15.0 / 16.0), 1e-9);
    assert_eq!(one.between_s, 0.0);
    // A rank's own bytes are in the domain of the aggregator that it is.
    let together = Call { is_contiguous: true, ..call() };
    let together = times(&together, &network(), &DEVICE).unwrap();
    near(together.between_s, 4.0 * (1e-3 + 1e-8 * 1e6 * 0.75), 1e-9);
    assert_eq!(together.within_s, 0.0);
    near(together.random_s, 0.16 + 16.0 * 1e-4 + 2e-4, 1e-9);
}

#[test]
fn the_largest_aggregator_and_its_neighbours_decide_how_long_the_exchange_is() {
    let with = |call: Call| times(&Call { piece: 1, ..call }, &network(), &DEVICE).unwrap();
    let (even, uneven) = (with(call()), with(Call { largest_domain: 8_000_000, ..call() }));
    assert_eq!((even.rounds, uneven.rounds), (4.0, 8.0));
    near(uneven.between_s, 2.0 * even.between_s, 1e-9);
    let one_piece = Call { piece: 1_000_000, ..call() };
    let one_piece = times(&one_piece, &network(), &DEVICE).unwrap();
    near(one_piece.between_s, 4.0 * (1e-3 + 1e-8 * 1e6 * 255.0 / 256.0), 1e-9);
    // Two on each node share its link: half the rounds, and the bytes take as long.
    let eight = with(Call { aggregators: 8, ..call() });
    near(eight.between_s, 2.0 * 1e-3 + 1e-8 * 4e6 * 0.75, 1e-3);
    // One for all nodes has all bytes.
    let one = with(Call { aggregators: 1, ..call() });
    near(one.between_s, 16.0 * (1e-3 + 1e-8 * 1e6 * 0.75), 1e-3);
}

#[test]
fn small_requests_wait_for_the_latency_and_ranks_overlap_it() {
    let slow = Device { seek_s: 0.0, latency_s: 0.01, ..DEVICE };
    let found = times(&call(), &network(), &slow).unwrap();
    // 100 requests of each rank, one after the other; the device is idle most of the time.
    near(found.random_s, 100.0 * 0.01 + 0.01, 1e-9);
}

#[test]
fn what_is_not_known_is_not_decided() {
    let decided = |call: Call, network: Network, device: Device| {
        decide(&call, &network, &device, &Correction::default(), None).is_some()
    };
    assert!(decided(call(), network(), DEVICE));
    for call in [
        Call { ranks: 0, ..call() },
        Call { nodes: 0, ..call() },
        Call { nodes: 17, ..call() },
        Call { aggregators: 0, ..call() },
        Call { aggregators: 17, ..call() },
        Call { bytes: 0, ..call() },
        Call { buffer: 0, ..call() },
    ] {
        assert!(!decided(call, network(), DEVICE), "{call:?}");
    }
    assert!(!decided(call(), Network { between: Link::default(), ..network() }, DEVICE));
    assert!(!decided(call(), Network { within: Link::default(), ..network() }, DEVICE));
    assert!(decided(
        Call { ranks: 4, ..call() },
        Network { within: Link::default(), ..network() },
        DEVICE
    ));
    assert!(!decided(call(), network(), Device { bandwidth: 0.0, ..DEVICE }));
    assert!(!decided(call(), network(), Device { seek_s: f64::NAN, ..DEVICE }));
    assert_eq!(Device::measured(0.0, 1.0, 1.0, 0.0), None);
    assert_eq!(Device::measured(1.0, 0.0, 1.0, 0.0), None);
    assert_eq!(Device::of_parts(&[]), None);
    // A request of nothing, or of more than there is, changes nothing.
    let extremes = [0, u64::MAX].map(|piece| Call { piece, ..call() });
    assert!(extremes.into_iter().all(|call| decided(call, network(), DEVICE)));
}

#[test]
fn a_device_is_what_its_bandwidths_say() {
    let device = Device::measured(100e6, 50e6, 1e6, 1e-3).unwrap();
    near(device.seek_s, 0.01, 1e-9);
    // Random requests that are faster are noise.
    assert_eq!(Device::measured(100e6, 120e6, 1e6, 0.0).unwrap().seek_s, 0.0);
    // Half of the bytes at half the speed: 0.5 + 1 s for 100 MB.
    let slow = Device { bandwidth: 50e6, ..device };
    let both = Device::of_parts(&[(device, 3.0), (slow, 3.0)]).unwrap();
    near(both.bandwidth, 100e6 / 1.5, 1e-9);
    near(both.seek_s, device.seek_s, 1e-9);
    near(Device::of_parts(&[(device, 1.0), (slow, 0.0)]).unwrap().bandwidth, 100e6, 1e-9);
}

#[test]
fn a_link_is_found_in_noisy_times() {
    let mut random = Random::new(SEED);
    let link = Link { start_s: 2e-6, byte_s: 1.0 / 5e9 };
    let sizes = (0..24).map(|power| f64::from(1_u32 << power));
    let samples: Vec<_> = sizes
        .map(|bytes| {
            let noise = 0.95 + 0.1 * random.below(1000) as f64 / 1000.0;
            (bytes, (link.start_s + link.byte_s * bytes) * noise)
        })
        .collect();
    let found = Link::fitted(&samples).unwrap();
    near(found.start_s, link.start_s, 0.05);
    near(found.byte_s, link.byte_s, 0.05);
    assert_eq!(Link::fitted(&samples[..1]), None);
    assert_eq!(Link::fitted(&[(8.0, 1.0), (8.0, 2.0), (16.0, f64::NAN)]), None);
    // Neither term is below zero.
    let falling = Link::fitted(&[(1.0, 2.0), (100.0, 1.0)]).unwrap();
    assert!(falling.byte_s == 0.0 && (1.0..2.0).contains(&falling.start_s), "{falling:?}");
    let steep = Link::fitted(&[(1.0, 1.0), (2.0, 3.0), (3.0, 5.0)]).unwrap();
    assert!(steep.start_s == 0.0 && steep.byte_s > 1.0, "{steep:?}");
}

#[test]
fn as_few_aggregators_as_are_as_fast_as_all_others() {
    let mut random = Random::new(SEED);
    for _ in 0..300 {
        let drawn = draw(&mut random);
        let with = |aggregators| {
            let call = Call { aggregators, largest_domain: 0, ..drawn.call };
            times(&call, &drawn.network, &drawn.device).unwrap().collective_s()
        };
        let found = aggregators(&drawn.call, &drawn.network, &drawn.device).unwrap();
        let best = (1..=drawn.call.ranks).map(with).min_by(f64::total_cmp).unwrap();
        // Only some numbers are tried.
        assert!(with(found) <= best * 1.1, "{drawn:?}: {found}");
    }
    // Where only the store counts, one is enough; where the link does, one for each node.
    let slow = Device { bandwidth: 1e5, ..DEVICE };
    assert_eq!(aggregators(&call(), &network(), &slow), Some(1));
    let slow = Network { between: Link { start_s: 0.0, byte_s: 1e-5 }, ..network() };
    assert_eq!(aggregators(&call(), &slow, &DEVICE), Some(4));
}

#[test]
fn from_the_crossover_on_independent_io_is_as_fast() {
    let piece = crossover(&call(), &network(), &DEVICE).unwrap();
    let mode = |piece| {
        let call = Call { piece, ..call() };
        decide(&call, &network(), &DEVICE, &Correction::default(), None).unwrap().mode
    };
    assert_eq!((mode(piece / 2), mode(piece)), (Mode::Collective, Mode::Independent));
    let seeking = Device { seek_s: 1.0, ..DEVICE };
    assert_eq!(crossover(&call(), &network(), &seeking), None);
}

#[derive(Debug)]
struct Drawn {
    call: Call,
    network: Network,
    device: Device,
}

/// Between `least` and `most`, evenly in the logarithm.
fn between(random: &mut Random, least: f64, most: f64) -> f64 {
    let share = random.below(1 << 20) as f64 / f64::from(1 << 20);
    least * (most / least).powf(share)
}

fn draw(random: &mut Random) -> Drawn {
    let nodes = 1 + random.below(8) as u32;
    let ranks = nodes * (1 + random.below(8) as u32);
    let piece = between(random, 512.0, 4e6) as u64;
    let requests = u64::from(ranks) * (1 + random.below(40));
    let mut link = |start: (f64, f64), bytes: (f64, f64)| Link {
        start_s: between(random, start.0, start.1),
        byte_s: 1.0 / between(random, bytes.0, bytes.1),
    };
    let network = Network {
        between: link((1e-6, 5e-3), (3e7, 2.5e10)),
        within: link((1e-7, 1e-5), (1e9, 2e10)),
    };
    let device = Device {
        bandwidth: between(random, 2e7, 5e9),
        seek_s: between(random, 1e-7, 1e-2),
        latency_s: between(random, 1e-6, 5e-3),
    };
    let call = Call {
        ranks,
        nodes,
        aggregators: 1 + random.below(ranks.into()) as u32,
        buffer: between(random, 64e3, 64e6) as u64,
        bytes: piece * requests,
        largest_domain: 0,
        piece,
        is_contiguous: random.below(8) == 0,
    };
    Drawn { call, network, device }
}

const NS: f64 = 1e9;

/// Seconds until all ranks have their bytes: each rank asks for its next piece when it has the
/// last, in a queue in front of the device.
fn independent_simulated_s(drawn: &Drawn) -> f64 {
    let Drawn { call, device, .. } = drawn;
    let each = call.bytes / u64::from(call.ranks);
    let piece = if call.is_contiguous { each } else { call.piece };
    let (seek_ns, latency_ns) = ((device.seek_s * NS) as u64, (device.latency_s * NS) as u64);
    let mut ranks = vec![(0, each); call.ranks as usize];
    let (mut free_ns, mut end_ns) = (0, 0);
    while let Some((now_ns, left)) =
        ranks.iter_mut().filter(|(_, left)| *left > 0).min_by_key(|(now_ns, _)| *now_ns)
    {
        let bytes = piece.min(*left);
        let after_seek = pace(*now_ns, free_ns, 0, 0, 0).next_free_ns.max(free_ns) + seek_ns;
        let paced = pace(after_seek, after_seek, bytes, device.bandwidth as u64, latency_ns);
        (free_ns, *now_ns, *left) = (paced.next_free_ns, paced.wake_ns, *left - bytes);
        end_ns = end_ns.max(paced.wake_ns);
    }
    end_ns as f64 / NS
}

/// The same of two-phase I/O, round by round: a round of requests begins when all aggregators have
/// their messages, and the next exchange when all have done their requests.
fn collective_simulated_s(drawn: &Drawn) -> f64 {
    let Drawn { call, network, device } = drawn;
    let Call { ranks, nodes, aggregators, buffer, .. } = *call;
    let latency_ns = (device.latency_s * NS) as u64;
    let mut domains = vec![call.bytes / u64::from(aggregators); aggregators as usize];
    let own = if call.is_contiguous { aggregators } else { 1 };
    let own = f64::from(own) / f64::from(ranks);
    let mut now_s = 0.0;
    while domains.iter().any(|left| *left > 0) {
        let largest = domains.iter().max().unwrap().min(&buffer);
        let message = *largest as f64;
        let (mean, elsewhere) = call.shares_elsewhere(own, message);
        let sharing = (f64::from(aggregators) / f64::from(nodes)).max(1.0);
        now_s += match (nodes > 1, ranks > 1) {
            (true, _) => network.between.start_s,
            (false, true) => network.within.start_s,
            (false, false) => 0.0,
        };
        let between_s = network.between.byte_s * message * elsewhere * sharing;
        now_s += between_s;
        now_s += network.within.byte_s * message * (1.0 - own - elsewhere).max(0.0);
        let all: u64 = domains.iter().map(|left| buffer.min(*left)).sum();
        now_s -= between_s.min(io_s(all as f64, device.bandwidth) * (elsewhere - mean));
        let begun_ns = (now_s * NS) as u64;
        let (mut free_ns, mut end_ns) = (begun_ns, begun_ns);
        for left in &mut domains {
            let bytes = buffer.min(*left);
            let paced = pace(begun_ns, free_ns, bytes, device.bandwidth as u64, latency_ns);
            (free_ns, end_ns, *left) = (paced.next_free_ns, paced.wake_ns, *left - bytes);
        }
        now_s = end_ns as f64 / NS;
    }
    now_s
}

/// What both modes take is simulated, request by request.
#[test]
fn the_choice_takes_at_most_a_twentieth_longer_than_the_better_mode() {
    let mut random = Random::new(SEED);
    let (mut worst, mut chosen) = (0.0_f64, [0; 2]);
    for _ in 0..400 {
        let drawn = draw(&mut random);
        let Drawn { call, network, device } = &drawn;
        let before = [None, Some(Mode::Collective), Some(Mode::Independent)][random.index(3)];
        let found = decide(call, network, device, &Correction::default(), before).unwrap();
        let simulated = [collective_simulated_s(&drawn), independent_simulated_s(&drawn)];
        let index = usize::from(found.mode == Mode::Independent);
        chosen[index] += 1;
        let ratio = simulated[index] / simulated[0].min(simulated[1]);
        assert!(ratio <= 1.05, "seed {SEED:#x}: {ratio} of {simulated:?} for {drawn:?}: {found:?}");
        worst = worst.max(ratio);
    }
    assert!(chosen.iter().all(|count| *count > 50), "one mode is never the better: {chosen:?}");
    assert!(worst > 1.0, "the margin was never used");
}

#[test]
fn a_mode_is_kept_within_the_margin() {
    let found = decide(&call(), &network(), &DEVICE, &Correction::default(), None).unwrap();
    let other = found.mode.other();
    // The correction of the other mode that makes it better by a share.
    let chosen = |better_by: f64| {
        let mut correction = Correction::default();
        let wanted_s = found.expected_s() * (1.0 - better_by);
        (0..400).for_each(|_| correction.observe(other, found.times.of(other), wanted_s));
        // One that was used just now is not due to be tried.
        correction.observe(found.mode, found.expected_s(), found.expected_s());
        let before = Some(found.mode);
        decide(&call(), &network(), &DEVICE, &correction, before).unwrap().mode
    };
    assert_eq!(chosen(MARGIN / 2.0), found.mode);
    assert_eq!(chosen(MARGIN * 1.5), other);
}

/// Calibrated terms may be half or twice of what they are, and calls vary by a tenth.
#[test]
fn corrections_find_the_better_mode_whatever_was_calibrated() {
    const CALLS: usize = 20_000;
    let mut random = Random::new(SEED);
    let mut changed = 0;
    for case in 0..60 {
        let drawn = draw(&mut random);
        let Drawn { call, network, device } = &drawn;
        let model = times(call, network, device).unwrap();
        let factor = [between(&mut random, 0.5, 2.0), between(&mut random, 0.5, 2.0)];
        let true_s = |mode: Mode| model.of(mode) * factor[usize::from(mode == Mode::Independent)];
        let best_s = true_s(Mode::Collective).min(true_s(Mode::Independent));
        let (mut correction, mut before, mut took_s) = (Correction::default(), None, 0.0);
        for _ in 0..CALLS {
            let found = decide(call, network, device, &correction, before).unwrap();
            let noise = 0.9 + 0.2 * random.below(1000) as f64 / 1000.0;
            correction.observe(found.mode, found.times.of(found.mode), true_s(found.mode) * noise);
            took_s += true_s(found.mode);
            before = Some(found.mode);
        }
        let ratio = took_s / (best_s * CALLS as f64);
        assert!(ratio <= 1.05, "seed {SEED:#x}, case {case}: {ratio}, {factor:?}, {drawn:?}");
        let uncorrected = decide(call, network, device, &Correction::default(), None).unwrap();
        changed += usize::from(true_s(uncorrected.mode) > best_s * 1.05);
    }
    assert!(changed > 3, "the calibration was never wrong: {changed}");
}

#[test]
fn nothing_observed_makes_a_correction_senseless() {
    let mut correction = Correction::default();
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300] {
        (0..100).for_each(|_| correction.observe(Mode::Collective, 1.0, value));
        (0..100).for_each(|_| correction.observe(Mode::Independent, value, 1.0));
        for mode in [Mode::Collective, Mode::Independent] {
            let factor = correction.factor(mode);
            assert!((1.0 / 65.0..=65.0).contains(&factor), "{value}: {factor}");
        }
    }
}
